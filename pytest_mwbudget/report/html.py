"""A run as one self-contained HTML page: pictures of the stacks, sortable tables, what was created.

The page loads nothing. Its only style and script are those of this package; the content security policy of the page
names them by their hashes, so nothing that comes from an app can become style or script.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, cast
from urllib.parse import quote

from ..errors import explain_command
from ..model.results import Judged, Quantity, Verdict
from .json import measured
from .table import COUNTS, SPENT, US, Column, Figure, Row
from .text import amount, bound, figure
from .view import View, view


def render(document: Mapping[str, Any], link: Callable[[str], str] = str) -> str:
    """Make the page for `document`, which `report.json.document` made.

    `link` gives the path of a file of a profile as seen from the page; it is quoted here. Raises ImportError where
    Jinja2 is not installed.
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
    found = [(nodeid, view(result)) for nodeid, result in measured(document)]
    return environment.get_template("report.html.j2").render(
        policy=f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; base-uri 'none'",
        style=style,
        script=script,
        about=document["environment"],
        created=document.get("created"),
        sections=[_section(number, nodeid, shown, link) for number, (nodeid, shown) in enumerate(found, 1)],
        headline=_headline([shown.verdict for _, shown in found]),
        ids_shown=any(shown.has_ids for _, shown in found),
        explain=explain_command("ID"),
        figure=figure,
    )


def _asset(name: str) -> str:
    """Read a file of this package that goes into the page as it is."""
    return files(__package__).joinpath("templates", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """Name an inline style or script as a content security policy does."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _headline(verdicts: Sequence[Verdict | None]) -> str:
    """Sum up the run: how many requests, and what came of their budgets."""
    words: Mapping[Verdict | None, str] = {
        "fail": "over budget",
        "undecided": "undecided",
        "pass": "within budget",
        None: "without a budget",
    }
    counted = [f"{verdicts.count(verdict)} {word}" for verdict, word in words.items() if verdict in verdicts]
    requests = "1 request" if len(verdicts) == 1 else f"{len(verdicts) or 'No'} requests"
    return f"{requests} measured" + (f": {', '.join(counted)}" if counted else "")


# ---- one request -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Section:
    """One measured request, as the template shows it.

    `first` says why to look at the first layer, `left` has row, kind, number and name of what outlives a step of the
    event loop, `links` has title and address of each file of a profile.
    """

    id: str
    nodeid: str
    view: View
    first: str
    picture: _Picture | None
    tables: Sequence[_Table]
    total: _Cell
    left: Sequence[tuple[str, str, int, str]]
    sentences: Sequence[str]
    missing: Mapping[str, Sequence[str]]
    links: Sequence[tuple[str, str]]
    facts: Sequence[tuple[str, str]]


def _section(number: int, nodeid: str, shown: View, link: Callable[[str], str]) -> _Section:
    titles = {"flamegraph": "flamegraph", "pyinstrument": "pyinstrument's own page", "speedscope": "for speedscope"}
    return _Section(
        id=f"m{number}",
        nodeid=nodeid,
        view=shown,
        first=_first(shown.first) if shown.first else "",
        picture=_picture(shown.rows),
        tables=[*_tables(shown)],
        total=_cell(shown.total, US),
        left=[*_left(shown.rows)],
        sentences=[*_sentences(shown)],
        missing=_missing(shown),
        links=[(title, quote(link(getattr(shown.profile, key)))) for key, title in titles.items() if shown.profile],
        facts=[*_facts(shown)],
    )


def _first(row: Row) -> str:
    """Say what of the layer to look at first is exceeded or undecided, else what the layer takes."""
    if row.exceeded:
        quantity = max(row.exceeded, key=row.times_its_budget)
        return f"{amount(quantity, row.figures[quantity].value)}, over budget"
    us = f"{row.figures['us'].text} µs" if "us" in row.figures else ""
    return ", ".join(filter(None, [us, "undecided" if row.verdict == "undecided" else ""]))


def _left(rows: Sequence[Row]) -> Iterator[tuple[str, str, int, str]]:
    for row in rows[:-1]:
        for key, what in (("tasks", "task"), ("threads", "call in a thread"), ("retained", "object retained")):
            for name, number in row.figures[key].kinds.items() if key in row.figures else ():
                yield row.name, what, number, name


def _sentences(shown: View) -> Iterator[str]:
    """Write a sentence for each layer that waits or blocks, or one for all; none where nothing was timed."""
    known = [(row.name, row.report.occupation) for row in shown.layers if row.report and row.report.occupation]
    for name, spent in known:
        busy = figure(spent.busy.estimate)
        if spent.blocking:
            yield (
                f"{name} blocks the event loop: busy {busy} µs, of which the processor worked"
                f" {figure(spent.cpu_us)} µs; it waits for a file, a socket or a lock without giving way."
            )
        if spent.wait_us:
            yield f"{name} is suspended for {figure(spent.wait_us)} µs and holds the event loop for {busy} µs."
    if known and not any(spent.wait_us or spent.blocking for _, spent in known):
        yield "No layer waits, and none blocks the event loop: all their time is work."


def _missing(shown: View) -> dict[str, list[str]]:
    """Group what is not known by reason: the figures of the whole run, then those of single layers."""
    found = {why: [*quantities] for why, quantities in shown.uncounted.items()}
    for row in shown.layers:
        reasons: dict[str, list[str]] = {}
        for key, why in row.why.items():
            if key not in shown.uncounted.get(why, ()):
                reasons.setdefault(why, []).append(key)
        for why, keys in reasons.items():
            nothing = not row.counted and "us" not in row.figures
            found.setdefault(why, []).append(f"{'all' if nothing else ', '.join(keys)} of {row.name}")
    return found


def _facts(shown: View) -> Iterator[tuple[str, str]]:
    """Say how well the figures are known."""
    effort = shown.effort
    if effort is not None:
        yield "detection limit", shown.detection_limit or ""
        yield "unattributed", shown.unattributed or ""
        yield "timed", f"{effort.requests} requests in {effort.rounds} rounds, {effort.seconds:.1f} s"
    yield "counted", f"{shown.counted} requests"


# ---- tables ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Cell:
    """A cell of a table: what it shows, what it is sorted by, and below it the range and the budget."""

    text: str = "–"
    value: float | str | None = None
    range: str = ""
    budget: str = ""
    verdict: Verdict | None = None
    why: str = ""


def _cell(row: Row, column: Column) -> _Cell:
    """Show the figure of a row, with its budget if it has one."""
    found, judged = row.figures.get(column.key), row.judged.get(cast("Quantity", column.key))
    budget = f"of {column.show(judged.bound) if column.counted else bound(judged.bound)}" if judged else ""
    verdict = judged.verdict if judged else None
    if found is None:
        return _Cell("–" if row.report else "", None, "", budget, verdict, row.why.get(column.key, ""))
    return _Cell(found.text, found.value, found.span if found.varies else "", budget, verdict)


@dataclass(frozen=True, slots=True)
class _Heading:
    """The head of a column; `first` is the order of its first sorting."""

    title: str
    meaning: str
    first: str = "descending"


@dataclass(frozen=True, slots=True)
class _Table:
    """A table of all rows; the last row is the total, which stays below the others however they are sorted."""

    id: str
    title: str
    columns: Sequence[_Heading]
    lines: Sequence[tuple[Row, Sequence[_Cell]]]


def _tables(shown: View) -> Iterator[_Table]:
    """Make the table of times, against the budgets, and that of counts."""
    if shown.effort is not None:
        spent, total = _known(SPENT, shown.rows), shown.total.figures.get("us")
        columns = (
            _Heading("µs", "microseconds per request, the median"),
            _Heading("interval", "the confidence interval of the median"),
            _Heading("share", "of the whole request"),
            _Heading("budget µs", "the most microseconds per request that are allowed"),
            _Heading("verdict", "on the budget of time", "ascending"),
            *(_Heading(column.title, column.meaning) for column in spent),
            _Heading("method", "how it was measured", "ascending"),
        )
        yield _Table("time", "Time", columns, [(row, [*_time_cells(row, total, spent)]) for row in shown.rows])
    counted = _known(COUNTS, shown.rows)
    if counted:
        headings = [_Heading(column.title, column.meaning) for column in counted]
        lines = [(row, [_cell(row, column) for column in counted]) for row in shown.rows]
        yield _Table("counts", "Counts", headings, lines)


def _time_cells(row: Row, total: Figure | None, spent: Sequence[Column]) -> Iterator[_Cell]:
    found, judged, cell = row.figures.get("us"), row.judged.get("us"), _cell(row, US)
    yield _Cell(cell.text, cell.value, verdict=cell.verdict, why=cell.why)
    yield _Cell(cell.range or "–", found.low if found else None)
    share = found.value / total.value if found and total and total.value > 0 else None
    yield _Cell() if share is None else _Cell(f"{share:.1%}", share)
    yield _Cell(bound(judged.bound), judged.bound) if judged else _Cell("")
    yield _Cell(judged.verdict, judged.verdict, verdict=judged.verdict) if judged else _Cell("")
    yield from (_cell(row, column) for column in spent)
    method = row.report.method if row.report else None
    yield _Cell(method or "", method)


def _known(columns: Sequence[Column], rows: Sequence[Row]) -> list[Column]:
    """Keep the columns in which there is anything, if only a budget."""
    return [column for column in columns if any(column.key in {*row.figures, *row.judged} for row in rows)]


# ---- the picture -------------------------------------------------------------------------------------------------

# A mark that would make the scale this many times as long as the whole stack is shown at the end of the scale.
FARTHEST = 2.0
MOST_TICKS = 6
BINARY = (1024**2, 1024)


@dataclass(frozen=True, slots=True)
class _Bar:
    """A row of the picture: positions on its scale are texts such as `12.5%`.

    `enclosed` is the width of its box, which holds its own part and all that is inside it. `over` is the part above the
    budget. `beyond` says that the budget is off the scale.
    """

    row: Row
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
        """Give the place where the box of a row begins."""
        return _percent(number / len(self.bars))

    def height(self, number: int) -> str:
        """Give the height of the box of a row, which reaches down to the innermost row."""
        return _percent(1 - number / len(self.bars))


def _picture(rows: Sequence[Row]) -> _Picture | None:
    """Draw the stack by time, or where nothing was timed by what it creates; None where there is nothing to show."""
    column = _pictured(rows)
    if column is None:
        return None
    starts = [0.0]
    for row in rows[:-1]:
        found = row.figures.get(column.key)
        starts.append(starts[-1] + max(0.0, found.value if found else 0.0))
    whole = starts.pop()
    scale = _Scale.of(rows, starts, whole, column)
    bars = [scale.bar(row, start) for row, start in zip(rows[:-1], starts, strict=True)]
    return _Picture(f"{column.title} per request", bars, scale.bar(rows[-1], 0.0), [*scale.ticks()])


def _pictured(rows: Sequence[Row]) -> Column | None:
    """Choose the quantity of the picture: time, else a count that has a budget, else one that is known."""
    counts = [column for column in COUNTS if column.key in ("objects", "allocations", "bytes", "tasks")]
    budgeted = [column for column in counts if any(column.key in row.judged for row in rows)]
    for column in (US, *budgeted, *counts):
        found = [row.figures[column.key] for row in rows[:-1] if column.key in row.figures]
        if column.key in rows[-1].figures and any(one.value > 0 for one in found):
            return column
    return None


@dataclass(frozen=True, slots=True)
class _Scale:
    """From 0 at the left to `end` at the right, in the unit of `column`; the stack ends at `whole`."""

    column: Column
    whole: float
    end: float

    @classmethod
    def of(cls, rows: Sequence[Row], starts: Sequence[float], whole: float, column: Column) -> _Scale:
        """Make one on which everything has room that is not too far away."""
        marks = [whole]
        for row, start in zip(rows, [*starts, 0.0], strict=True):
            found, judged = row.figures.get(column.key), row.judged.get(cast("Quantity", column.key))
            marks += [start + end for end in (found.value, found.high) if end is not None] if found else []
            marks += [start + judged.bound] if judged else []
        return cls(column, whole, 1.02 * max(mark for mark in marks if mark <= FARTHEST * whole))

    def at(self, value: float) -> str:
        """Give the place of a value."""
        return _percent(min(max(value / self.end, 0.0), 1.0))

    def ticks(self) -> Iterator[_Tick]:
        """Yield round numbers along the scale."""
        unit = next((unit for unit in BINARY if self.column.key == "bytes" and unit <= self.end), 1)
        rough = self.end / unit / MOST_TICKS
        power = 10.0 ** math.floor(math.log10(rough))
        step = unit * next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
        if self.column.counted:
            step = max(1.0, step)
        for number in range(int(self.end / step) + 1):
            value = number * step
            anchor = "start" if not number else "end" if value > 0.95 * self.end else "middle"
            yield _Tick(self.at(value), self.column.show(value) if self.column.counted else bound(value), anchor)

    def bar(self, row: Row, start: float) -> _Bar:
        """Draw the bar of a row that begins at `start`."""
        quantity = cast("Quantity", self.column.key)
        found, judged = row.figures.get(quantity), row.judged.get(quantity)
        value = max(0.0, found.value) if found else 0.0
        most = judged.bound if judged else math.inf
        kept = min(value, most) if judged and judged.verdict != "pass" else value
        own_end = start + kept
        return _Bar(
            row=row,
            text=self._text(found.value) if found else "",
            remark=self._remark(row, value, judged),
            verdict=judged.verdict if judged else None,
            start=self.at(start),
            own=self.at(kept),
            enclosed=self.at(self.whole - start),
            over_start=self.at(own_end) if value > kept else None,
            over=self.at(value - kept),
            interval=self._interval(found, start) if found else None,
            budget=self.at(start + most) if judged else None,
            budget_text=amount(quantity, most) if judged else "",
            beyond=start + most > self.end,
        )

    def _interval(self, found: Figure, start: float) -> tuple[str, str] | None:
        """Give the places where it begins and ends; None where it is a point."""
        if found.low is None or found.high is None or not found.varies:
            return None
        return self.at(start + max(0.0, found.low)), self.at(start + max(0.0, found.high))

    def _text(self, value: float) -> str:
        return f"{self.column.show(value)}{'' if self.column.counted else ' µs'}"

    def _remark(self, row: Row, value: float, judged: Judged | None) -> str:
        """Say what the bar cannot show."""
        if not row.entered:
            return "not entered"
        if row.merged_with:
            return f"measured with {row.merged_with}"
        if judged and judged.verdict == "fail":
            return f"{self._text(value - judged.bound)} over"
        return "undecided" if judged and judged.verdict == "undecided" else ""


def _percent(share: float) -> str:
    return f"{100 * share:.2f}%"
