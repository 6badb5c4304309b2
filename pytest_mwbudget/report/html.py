"""A run as one self-contained HTML page: pictures of the stacks, sortable tables, what was created, and by what method.

The page asks for nothing from anywhere. Its only style and script are those of this package, which its content security
policy names by their hashes: nothing that comes from an app can become either.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, TypeAlias, cast
from urllib.parse import quote

from ..model.results import QUANTITIES, Quantity, Verdict, times_its_budget
from .terminal import VERBS, amount, bound, figure, size

# A row of a table in the shape of a layer in the document; `(outside)`, `(endpoint)` and `(total)` have that shape too.
Data: TypeAlias = Mapping[str, Any]


def render(document: Data, link: Callable[[str], str] = str) -> str:
    """The page for `document`, which is what `report.json.document` makes.

    `link` gives the path of a file of a profile as it is seen from the page; it is quoted here. ImportError when Jinja2
    is not installed.
    """
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("pytest_mwbudget", "report/templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style, script = _asset("report.css"), _asset("report.js")
    sections = [_section(data, number, link) for number, data in enumerate(document["measurements"], 1)]
    return environment.get_template("report.html.j2").render(
        policy=f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; base-uri 'none'",
        style=style,
        script=script,
        about=document["environment"],
        created=document.get("created"),
        sections=sections,
        headline=_headline(sections),
        figure=figure,
    )


def _asset(name: str) -> str:
    """A file of this package that goes into the page as it is."""
    return files(__package__).joinpath("templates", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """How a content security policy names an inline style or script."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


# ---- the whole run -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Section:
    """One measured request, as the template shows it. `data` is the measurement itself."""

    id: str
    data: Data
    request: str
    worst: _Worst | None
    findings: Sequence[_Finding]
    picture: _Picture | None
    tables: Sequence[_Table]
    made: Sequence[_Made]
    left: Sequence[_Left]
    time: Sequence[str]
    missing: Mapping[str, Sequence[str]]
    advice: Sequence[Data]
    profile: _Profile | None
    total: _Cell
    facts: Sequence[tuple[str, str]]

    @property
    def verdict(self) -> Verdict | None:
        """The worst verdict on its budgets, None when there are none."""
        return cast("Verdict | None", self.data["verdict"])


def _section(data: Data, number: int, link: Callable[[str], str]) -> _Section:
    rows = _rows(data)
    return _Section(
        id=f"m{number}",
        data=data,
        request=f"{data['request']['method']} {data['request']['url']}",
        worst=_worst(data),
        findings=[*_findings(rows)],
        picture=_picture(rows),
        tables=[table for table in (_times(data, rows), _counts(rows)) if table.columns],
        made=[_made(row) for row in rows if row.get("objects") and row["objects"]["types"]],
        left=[*_left(rows)],
        time=[*_time(data["layers"])],
        missing=_missing(data),
        advice=data.get("advice") or [],
        profile=_profile(data, link),
        total=_cell(rows[-1], _US),
        facts=[*_facts(data)],
    )


def _headline(sections: Sequence[_Section]) -> str:
    """The run in a few words: how many requests, and what came of their budgets."""
    verdicts = [section.verdict for section in sections]
    words: tuple[tuple[Verdict | None, str], ...] = (
        ("fail", "over budget"),
        ("undecided", "undecided"),
        ("pass", "within budget"),
        (None, "without a budget"),
    )
    counted = [f"{verdicts.count(verdict)} {word}" for verdict, word in words if verdict in verdicts]
    requests = "1 request" if len(sections) == 1 else f"{len(sections) or 'No'} requests"
    return f"{requests} measured" + (f": {', '.join(counted)}" if counted else "")


def _rows(data: Data) -> list[Data]:
    """Every row, outermost first; the last one is `(total)`."""
    ledger = data["ledger"]
    budgets = {}
    if data["total_budget_us"] is not None:
        budgets["us"] = {
            "bound": data["total_budget_us"],
            "verdict": data["total_verdict"],
            "reason": data["total_reason"],
        }
    rows = [_frame_row("(outside)", data["outside_us"], ledger["outside"]), *data["layers"]]
    if data["endpoint_us"] is not None or ledger["endpoint"] is not None:
        rows.append(_frame_row("(endpoint)", data["endpoint_us"], ledger["endpoint"]))
    return [*rows, _frame_row("(total)", data["total_us"], ledger["total"], budgets)]


def _frame_row(name: str, us: Data | None, counts: Data | None, budgets: Data | None = None) -> Data:
    """A row that is no layer, in the shape of one."""
    layer = {"name": name, "qualname": name, "kind": "frame", "entered": True, "merged_with": None}
    return {**layer, "us": us, "budgets": budgets or {}, **(counts or {})}


# ---- figures -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Figure:
    """A number per request with what it lies between, None where that is not known."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of figures. `key` is the row's in the document."""

    key: str
    title: str
    meaning: str
    text: Callable[[float], str] = figure

    @property
    def is_count(self) -> bool:
        """Whether its figures are whole numbers, which vary rather than have an interval."""
        return self.text is not figure

    def read(self, row: Data) -> _Figure | None:
        """The figure of a row, None where there is none."""
        if self.key in ("receive", "send"):
            messages = row.get("messages")
            return None if messages is None else _Figure(messages[self.key])
        found = row.get(self.key)
        if found is None:
            return None
        if self.key == "us":
            # Without both ends nothing is known of it.
            bounded = None not in (found["low"], found["high"])
            return _Figure(found["estimate"], found["low"], found["high"]) if bounded else None
        if self.is_count:
            return _Figure(found["count"], found["low"], found["high"])
        return _Figure(found, *(row["busy_interval_us"] if self.key == "busy_us" else ()))


def _bytes(number: float) -> str:
    return size(round(number))


def _whole(number: float) -> str:
    return f"{number:.0f}"


_US = _Column("us", "µs", "microseconds per request")
_SPENT = (
    _Column("busy_us", "busy µs", "of its time, what holds the event loop"),
    _Column("wait_us", "wait µs", "of its time, what it is suspended"),
    _Column("cpu_us", "cpu µs", "of busy, what the processor works for it"),
)
_COUNTS = (
    _Column("objects", "objects", "Python objects created", _whole),
    _Column("allocations", "allocations", "calls of Python's allocators", _whole),
    _Column("bytes", "bytes", "bytes requested of them", _bytes),
    _Column("retained", "retained", "objects still alive afterwards", _whole),
    _Column("tasks", "tasks", "tasks spawned", _whole),
    _Column("threads", "threads", "calls handed to worker threads", _whole),
    _Column("receive", "receive", "messages received through its outer boundary", _whole),
    _Column("send", "send", "messages sent through its outer boundary", _whole),
    _Column("suspensions", "suspensions", "how often a task stood still there", _whole),
)
_BY_QUANTITY = {column.key: column for column in (_US, *_SPENT, *_COUNTS)}


@dataclass(frozen=True, slots=True)
class _Cell:
    """A cell of a table: what it shows, what it is sorted by, and below it the range and the budget."""

    text: str = "–"
    value: float | str | None = None
    range: str = ""
    budget: str = ""
    verdict: Verdict | None = None
    why: str = ""


def _cell(row: Data, column: _Column) -> _Cell:
    """The figure of a row, with its budget if it has one."""
    judged = row["budgets"].get(column.key)
    budget = f"of {column.text(judged['bound']) if column.is_count else bound(judged['bound'])}" if judged else ""
    verdict = judged["verdict"] if judged else None
    found = column.read(row)
    if found is None:
        if row["kind"] == "frame":
            return _Cell("", budget=budget, verdict=verdict)
        return _Cell(budget=budget, verdict=verdict, why=row["why"].get(column.key, ""))
    varies = found.low != found.high
    text = ("~" if varies and column.is_count else "") + column.text(found.value)
    return _Cell(text, found.value, _span(found, column) if varies else "", budget, verdict)


def _span(found: _Figure, column: _Column) -> str:
    """`low … high`."""
    low, high = ("?" if end is None else column.text(end) for end in (found.low, found.high))
    return f"{low} … {high}"


# ---- tables ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Heading:
    """The head of a column; `first` is the order of its first sorting."""

    title: str
    meaning: str
    first: str = "descending"


@dataclass(frozen=True, slots=True)
class _Line:
    """A row of a table."""

    row: Data
    cells: Sequence[_Cell]


@dataclass(frozen=True, slots=True)
class _Table:
    """A table of all rows; `total` stays below the others however they are sorted."""

    id: str
    title: str
    columns: Sequence[_Heading]
    lines: Sequence[_Line]
    total: _Line


def _times(data: Data, rows: Sequence[Data]) -> _Table:
    """What each row takes, against its budget, and how it spends it; without columns when nothing was timed."""
    if data["total_us"] is None:
        return _Table("time", "", (), (), _Line({}, ()))
    spent = _known(_SPENT, rows)
    headings = [
        _Heading("µs", "microseconds per request, the median"),
        _Heading("interval", "what it lies between"),
        _Heading("share", "of the whole request"),
        _Heading("budget µs", "at most so many microseconds per request"),
        _Heading("verdict", "on the budget of time", "ascending"),
        *(_Heading(column.title, column.meaning) for column in spent),
        _Heading("method", "how it was measured", "ascending"),
    ]
    total = _US.read(rows[-1])
    lines = [
        _Line(row, [*_time_cells(row, total), *(_cell(row, column) for column in spent), _method(row)]) for row in rows
    ]
    return _Table("time", "Time", headings, lines[:-1], lines[-1])


def _time_cells(row: Data, total: _Figure | None) -> Iterator[_Cell]:
    found, judged = _US.read(row), row["budgets"].get("us")
    cell = _cell(row, _US)
    yield _Cell(cell.text, cell.value, verdict=cell.verdict, why=cell.why)
    yield _Cell(cell.range or "–", found.low if found else None)
    share = found.value / total.value if found and total and total.value > 0 else None
    yield _Cell() if share is None else _Cell(f"{share:.1%}", share)
    yield _Cell(bound(judged["bound"]), judged["bound"]) if judged else _Cell("")
    yield _Cell(judged["verdict"], judged["verdict"], verdict=judged["verdict"]) if judged else _Cell("")


def _method(row: Data) -> _Cell:
    method = row.get("method")
    return _Cell(method, method) if method else _Cell("")


def _counts(rows: Sequence[Data]) -> _Table:
    """What each row creates, spawns and passes on."""
    shown = _known(_COUNTS, rows)
    headings = [_Heading(column.title, column.meaning) for column in shown]
    lines = [_Line(row, [_cell(row, column) for column in shown]) for row in rows]
    return _Table("counts", "Counts", headings, lines[:-1], lines[-1])


def _known(columns: Iterable[_Column], rows: Sequence[Data]) -> list[_Column]:
    """The columns in which there is anything, if only a budget."""
    return [column for column in columns if any(column.read(row) or column.key in row["budgets"] for row in rows)]


# ---- the picture -------------------------------------------------------------------------------------------------

# A mark that would make the scale so many times as long as the whole stack is shown at its end.
FARTHEST = 2.0
MOST_TICKS = 6
BINARY = (1024**2, 1024)


@dataclass(frozen=True, slots=True)
class _Bar:
    """A row of the picture: positions on its scale are texts such as `12.5%`.

    `enclosed` is the width of its box, which holds its own part and all that is inside it. `over` is the part above the
    budget. `beyond` says that the budget is off the scale.
    """

    row: Data
    text: str
    remark: str
    verdict: Verdict | None
    start: str
    own: str
    enclosed: str
    over_start: str | None
    over: str
    interval: tuple[str, str] | None
    budget: str | None
    budget_text: str
    beyond: bool


@dataclass(frozen=True, slots=True)
class _Tick:
    """A number on the scale; `anchor` is the part of its text that stands at its place."""

    at: str
    text: str
    anchor: str


@dataclass(frozen=True, slots=True)
class _Picture:
    """The stack, nested as the layers are. Heights are shares of the rows."""

    quantity: str
    bars: Sequence[_Bar]
    total: _Bar
    ticks: Sequence[_Tick]

    def top(self, number: int) -> str:
        """Where the box of a row begins."""
        return _percent(number / len(self.bars))

    def height(self, number: int) -> str:
        """How far the box of a row reaches: down to the innermost row."""
        return _percent(1 - number / len(self.bars))


def _picture(rows: Sequence[Data]) -> _Picture | None:
    """The stack by time, or where nothing was timed by what it creates; None when there is nothing to show."""
    column = _pictured(rows)
    if column is None:
        return None
    starts = [0.0]
    for row in rows[:-1]:
        found = column.read(row)
        starts.append(starts[-1] + max(0.0, found.value if found else 0.0))
    whole = starts.pop()
    scale = _Scale.of(rows, starts, whole, column)
    bars = [scale.bar(row, start) for row, start in zip(rows[:-1], starts, strict=True)]
    words = "µs per request" if column is _US else f"{column.title} per request"
    return _Picture(words, bars, scale.bar(rows[-1], 0.0), [*scale.ticks()])


def _pictured(rows: Sequence[Data]) -> _Column | None:
    """The quantity of the picture: time, else a count that has a budget, else one that is known."""
    counts = [_BY_QUANTITY[key] for key in ("objects", "allocations", "bytes", "tasks")]
    budgeted = [column for column in counts if any(column.key in row["budgets"] for row in rows)]
    for column in (_US, *budgeted, *counts):
        found = [column.read(row) for row in rows]
        if found[-1] and any(one.value > 0 for one in found[:-1] if one):
            return column
    return None


@dataclass(frozen=True, slots=True)
class _Scale:
    """From 0 at the left to `end` at the right, in the unit of `column`; the stack ends at `whole`."""

    column: _Column
    whole: float
    end: float

    @classmethod
    def of(cls, rows: Sequence[Data], starts: Sequence[float], whole: float, column: _Column) -> _Scale:
        """One on which everything has room that is not too far away."""
        marks = [whole]
        for row, start in zip(rows, [*starts, 0.0], strict=True):
            found, judged = column.read(row), row["budgets"].get(column.key)
            marks += [start + end for end in (found.value, found.high) if end is not None] if found else []
            marks += [start + judged["bound"]] if judged else []
        return cls(column, whole, 1.02 * max(mark for mark in marks if mark <= FARTHEST * whole))

    def at(self, value: float) -> str:
        """Where a value stands."""
        return _percent(min(max(value / self.end, 0.0), 1.0))

    def ticks(self) -> Iterator[_Tick]:
        """Round numbers along the scale."""
        unit = next((unit for unit in BINARY if self.column.key == "bytes" and unit <= self.end), 1)
        rough = self.end / unit / MOST_TICKS
        power = 10.0 ** math.floor(math.log10(rough))
        step = unit * next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
        if self.column.is_count:
            step = max(1.0, step)
        for number in range(int(self.end / step) + 1):
            value = number * step
            anchor = "start" if not number else "end" if value > 0.95 * self.end else "middle"
            yield _Tick(self.at(value), bound(value) if self.column is _US else self.column.text(value), anchor)

    def bar(self, row: Data, start: float) -> _Bar:
        """The bar of a row that begins at `start`."""
        found, judged = self.column.read(row), row["budgets"].get(self.column.key)
        value = max(0.0, found.value) if found else 0.0
        most = judged["bound"] if judged else math.inf
        kept = min(value, most) if judged and judged["verdict"] != "pass" else value
        own_end = start + kept
        return _Bar(
            row=row,
            text=self._text(found.value) if found else "",
            remark=self._remark(row, value, judged),
            verdict=judged["verdict"] if judged else None,
            start=self.at(start),
            own=self.at(kept),
            enclosed=self.at(self.whole - start),
            over_start=self.at(own_end) if value > kept else None,
            over=self.at(value - kept),
            interval=self._interval(found, start) if found else None,
            budget=self.at(start + most) if judged else None,
            budget_text=amount(cast("Quantity", self.column.key), most) if judged else "",
            beyond=start + most > self.end,
        )

    def _interval(self, found: _Figure, start: float) -> tuple[str, str] | None:
        """Where it begins and ends; None where it is a point."""
        if found.low is None or found.high is None or found.low == found.high:
            return None
        return self.at(start + max(0.0, found.low)), self.at(start + max(0.0, found.high))

    def _text(self, value: float) -> str:
        return f"{figure(value)} µs" if self.column is _US else self.column.text(value)

    def _remark(self, row: Data, value: float, judged: Data | None) -> str:
        """What the bar cannot say."""
        if not row.get("entered", True):
            return "not entered"
        if row.get("merged_with"):
            return f"measured with {row['merged_with']}"
        if judged and judged["verdict"] == "fail":
            return f"{self._text(value - judged['bound'])} over"
        return "undecided" if judged and judged["verdict"] == "undecided" else ""


def _percent(share: float) -> str:
    return f"{100 * share:.2f}%"


# ---- words -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Finding:
    """A budget that was not kept, or on which there is no verdict."""

    verdict: Verdict
    name: str
    text: str


def _findings(rows: Sequence[Data]) -> Iterator[_Finding]:
    """Every budget that did not pass, those that fail first."""
    for verdict in ("fail", "undecided"):
        for row in rows:
            for quantity, judged in row["budgets"].items():
                if judged["verdict"] == verdict:
                    yield _Finding(verdict, row["name"], _finding(row, quantity, judged))


def _finding(row: Data, quantity: Quantity, judged: Data) -> str:
    most = amount(quantity, judged["bound"])
    if judged["verdict"] == "undecided":
        return f"has no verdict on its budget of {most}{' busy' if quantity == 'busy_us' else ''}: {judged['reason']}."
    column = _BY_QUANTITY[quantity]
    found = column.read(row)
    assert found is not None
    text = f"{DOES[quantity]} {amount(quantity, found.value)} per request, its budget is {most}"
    if column.is_count or found.low is None or found.high is None:
        return f"{text}."
    excess, low, high = (figure(end - judged["bound"]) for end in (found.value, found.low, found.high))
    return f"{text}: {excess} µs too much ({low} to {high})."


DOES: Mapping[str, str] = {"us": "takes", "busy_us": "holds the event loop for", **VERBS}


@dataclass(frozen=True, slots=True)
class _Worst:
    """The layer to look at first, and why."""

    name: str
    text: str
    fails: bool


def _worst(data: Data) -> _Worst | None:
    """The layer with the greatest excess for its budget, else the costliest one; None when none was timed."""
    over = [
        (times_its_budget(found.value, judged["bound"]), layer["name"], amount(quantity, found.value))
        for layer in data["layers"]
        for quantity in QUANTITIES
        if (judged := layer["budgets"].get(quantity)) and judged["verdict"] == "fail"
        if (found := _BY_QUANTITY[quantity].read(layer))
    ]
    timed = [(found.value, layer["name"]) for layer in data["layers"] if (found := _US.read(layer))]
    if over:
        _, name, text = max(over)
        return _Worst(name, text, fails=True)
    if timed:
        value, name = max(timed)
        return _Worst(name, f"{figure(value)} µs", fails=False)
    return None


def _facts(data: Data) -> Iterator[tuple[str, str]]:
    """How well the figures are known."""
    if data["total_us"] is not None:
        yield "floor", f"{figure(data['floor_us'])} µs"
        residue, total = data["residue_us"], data["total_us"]["estimate"]
        share = f" ({residue / total:+.1%})" if residue is not None and total else ""
        yield "rows minus total", f"{figure(residue)} µs{share}"
        yield "timed", f"{data['requests']} requests in {data['rounds']} rounds, {data['seconds']:.1f} s"
    yield "counted", f"{data['ledger']['requests']} requests"


def _time(layers: Sequence[Data]) -> Iterator[str]:
    """A sentence for each layer that waits or blocks, or one for all; none when nothing was timed."""
    known = [layer for layer in layers if layer["busy_us"] is not None]
    remarkable = [layer for layer in known if layer["wait_us"] or layer["blocking"]]
    for layer in remarkable:
        name, busy, wait = layer["name"], figure(layer["busy_us"]), layer["wait_us"]
        if layer["blocking"]:
            worked = f", of which the processor worked {figure(layer['cpu_us'])} µs"
            yield (
                f"{name} blocks the event loop: busy {busy} µs{worked}; it waits for a file, a socket or a lock"
                " without giving way."
            )
        if wait:
            yield f"{name} is suspended for {figure(wait)} µs and holds the event loop for {busy} µs."
    if known and not remarkable:
        yield "No layer waits, and none blocks the event loop: what they take, they work."


# ---- what was created --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Made:
    """The objects that a row creates: number, type, and whether no other row creates it."""

    name: str
    count: int
    types: Sequence[tuple[int, str, bool]]


def _made(row: Data) -> _Made:
    own = set(row["own_types"] or ()) if row["name"] != "(total)" else set()
    types = [(number, kind, kind in own) for kind, number in row["objects"]["types"].items()]
    return _Made(row["name"], row["objects"]["count"], types)


@dataclass(frozen=True, slots=True)
class _Left:
    """A task, a call in a thread or objects left alive, by name."""

    row: str
    what: str
    count: int
    name: str


def _left(rows: Sequence[Data]) -> Iterator[_Left]:
    """What outlives a step of the event loop, row by row."""
    for row in rows[:-1]:
        for key, kinds, what in (
            ("tasks", "names", "task"),
            ("threads", "names", "call in a thread"),
            ("retained", "types", "object retained"),
        ):
            for name, number in ((row.get(key) or {}).get(kinds) or {}).items():
                yield _Left(row["name"], what, number, name)


def _missing(data: Data) -> dict[str, list[str]]:
    """What is not known, by reason: the figures of single layers, then those of the whole run."""
    found: dict[str, list[str]] = {}
    ledger = data["ledger"]["why"]
    for key, why in ledger.items():
        found.setdefault(why, []).append(key)
    for layer in data["layers"]:
        reasons: dict[str, list[str]] = {}
        for key, why in layer["why"].items():
            if ledger.get(key) != why:
                reasons.setdefault(why, []).append(key)
        for why, keys in reasons.items():
            everything = layer["us"] is None and layer["messages"] is None
            what = f"all of {layer['name']}" if everything else f"{', '.join(keys)} of {layer['name']}"
            found.setdefault(why, []).append(what)
    return found


# ---- profiles ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Profile:
    """What was profiled: links to the files, and the hottest functions by layer."""

    data: Data
    links: Sequence[tuple[str, str]]
    hottest: Sequence[tuple[str, Sequence[Data]]]


def _profile(data: Data, link: Callable[[str], str]) -> _Profile | None:
    profile = data.get("profile")
    if not profile:
        return None
    names = {str(layer["index"]): layer["name"] for layer in data["layers"]}
    titles = {"flamegraph": "flamegraph", "pyinstrument": "pyinstrument's own page", "speedscope": "for speedscope"}
    return _Profile(
        profile,
        [(title, quote(link(profile[key]))) for key, title in titles.items()],
        [(names[index], functions) for index, functions in profile["hottest"].items()],
    )
