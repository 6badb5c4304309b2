"""A result as lines for a terminal: the table, the evidence of a failure, one line for those in a hurry."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias, cast

from ..errors import more_about, tagged
from ..model.estimate import Estimate
from ..model.results import (
    COUNTED,
    Books,
    Count,
    CountedQuantity,
    Counts,
    LayerReport,
    Occupation,
    Profile,
    Quantity,
    Result,
    Verdict,
    times_its_budget,
    worst,
)
from ..model.stack import Layer
from .advice import advise

# The names of pytest's own markup.
Style: TypeAlias = str
STYLES: dict[Verdict | None, Style] = {"pass": "green", "fail": "red", "undecided": "yellow", None: ""}

MAX_WIDTH = 120
ESTIMATE, INTERVAL, BUDGET, VERDICT = 10, 19, 8, 11
# Below this a name says nothing: a narrower terminal has to wrap.
MIN_NAME = 12
# In place of a space at which a line must not end: a command is pasted from one line.
TIE = "␣"
# How a message ends that has an id.
TAGGED = re.compile(r" \[[a-z-]+\]\.?$")
# Where columns have to go below the others, the names get so much of the width.
NAME_SHARE = 0.3


@dataclass(frozen=True, slots=True)
class Line:
    """A line of text and the markup for all of it."""

    text: str
    style: Style = ""


def run(
    measured: Sequence[tuple[str, Result]],
    python: str,
    width: int,
    verbosity: int = 0,
    *,
    told: Container[int] = (),
    repeated: Container[int] = (),
) -> Iterator[Line]:
    """All results of a run, each with its test's id: a line for each and, unless `verbosity` is below -1, its table.

    `python` names the interpreter that measured. `told` are the places of the results whose table stands elsewhere,
    `repeated` those of attempts that were repeated: these have no table, and their line says so.
    """
    has_ids = False
    for place, (nodeid, result) in enumerate(measured):
        line = one_line(result)
        again = " (attempt was repeated)" if place in repeated else ""
        yield replace(line, text=f"{printable(nodeid)} {line.text}{again}")
        if verbosity >= -1 and place not in told and place not in repeated:
            lines = [*table(result, width, verbose=verbosity > 0)]
            texts = [*(line.text for line in lines), *undecided(result)]
            has_ids = has_ids or any(map(TAGGED.search, texts))
            yield from lines
            yield Line("")
    loops = ", ".join(sorted({result.loop for _, result in measured}))
    unit = ", µs per request" if any(result.books for _, result in measured) else ""
    yield Line(printable(f"{python}, loop {loops}{unit}"))
    if has_ids:
        yield Line(f"{more_about('ID')}, for an ID in [brackets]")


def table(result: Result, width: int, *, verbose: bool = False) -> Iterator[Line]:
    """The rows of `result` within `width` columns, outermost layer first: what they take, and what they create.

    Below them stand the effort, what to know about the figures, and advice. `verbose` adds how each was measured, and
    the columns in which there are only zeros.
    """
    width = min(width, MAX_WIDTH) - 1
    if result.books is not None:
        yield from _times(result, result.books, width, verbose)
    varies = False
    if result.ledger is not None:
        tally = _Tally.of(result, verbose)
        varies = tally.varies(result)
        yield from tally.lines(result, width, verbose)
    yield from (Line(text) for text in _foot(result, width, varies=varies))


# ---- what they take ----------------------------------------------------------------------------------------------


def _times(result: Result, books: Books, width: int, verbose: bool) -> Iterator[Line]:
    columns = _Columns(max(MIN_NAME, width - ESTIMATE - INTERVAL - BUDGET - VERDICT))
    yield Line(columns.row("layer", "µs/request", "interval", "budget", "verdict"), "bold")
    yield columns.line("(outside)", books.outside)
    for report in result.layers:
        yield from _layer_lines(report, columns, width, verbose)
    if books.endpoint is not None:
        yield columns.line("(endpoint)", books.endpoint)
    yield columns.line("(total)", books.total, result.total_budget_us, result.total_verdict)


@dataclass(frozen=True, slots=True)
class _Columns:
    name_width: int

    def row(self, name: str, estimate: str, interval: str, budget: str, verdict: str) -> str:
        name = shortened(name, self.name_width - 1).ljust(self.name_width)
        return f"{name}{estimate:>{ESTIMATE}}{interval:>{INTERVAL}}{budget:>{BUDGET}}  {verdict}".rstrip()

    def line(
        self, name: str, us: Estimate | None, budget_us: float | None = None, verdict: Verdict | None = None
    ) -> Line:
        """A row with its numbers; a layer without numbers has dashes."""
        budget = "" if budget_us is None else bound(budget_us)
        known = us is not None and math.isfinite(us.half_width)
        numbers = (figure(us.estimate), interval(us)) if us is not None and known else ("-", "")
        return Line(self.row(name, *numbers, budget, verdict or ""), STYLES[verdict])


def _layer_lines(report: LayerReport, columns: _Columns, width: int, verbose: bool) -> Iterator[Line]:
    layer = report.layer
    judged = report.judged.get("us")
    yield columns.line(layer.name, report.us, report.budget_us, judged.verdict if judged else None)
    yield from _remarks(layer, width)
    if verbose:
        how = f", {layer.kind}" + (f", {report.method}" if report.method else "")
        yield Line(f"  {shortened(layer.qualname, width - 2 - len(how))}{how}")


def _remarks(layer: Layer, width: int) -> Iterator[Line]:
    if not layer.entered:
        yield Line("  not entered: a layer outside it answered")
    if layer.merged_with is not None:
        yield Line(shortened(f"  measured with {layer.merged_with}", width))


# ---- what they create and how they spend their time ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of figures: of `Counts` or of `Occupation`."""

    title: str
    quantity: Quantity | None
    of_counts: Callable[[Counts], Count | None] | None = None
    of_time: Callable[[Occupation], float | None] | None = None
    text: Callable[[int], str] = str

    def cell(self, counts: Counts | None, occupation: Occupation | None) -> str:
        """What stands in a row; `~` says that it varies."""
        if self.of_time is not None:
            us = self.of_time(occupation) if occupation else None
            return "" if us is None else figure(us)
        assert self.of_counts is not None
        count = self.of_counts(counts) if counts else None
        if count is None:
            return "-" if counts is None else ""
        return ("" if count.exact else "~") + self.text(count.count)

    def known(self, total: Counts, occupations: Sequence[Occupation]) -> bool:
        """Whether there is anything to show."""
        return bool(occupations) if self.of_counts is None else self.of_counts(total) is not None

    def worth_showing(self, counts: Sequence[Counts], occupations: Sequence[Occupation]) -> bool:
        """Whether a row has something else than zero."""
        if self.of_time is not None:
            return any(occupation.wait_us or occupation.blocking for occupation in occupations)
        assert self.of_counts is not None
        found = [count for count in map(self.of_counts, counts) if count is not None]
        return any(count.count if self.title == "retained" else count.high for count in found)


COLUMNS = (
    _Column("objects", "objects", lambda counts: counts.objects),
    _Column("allocs", "allocations", lambda counts: counts.allocations),
    _Column("bytes", "bytes", lambda counts: counts.bytes, text=lambda number: size(number)),
    _Column("retained", "retained", lambda counts: counts.retained),
    _Column("tasks", "tasks", lambda counts: counts.tasks),
    _Column("threads", "threads", lambda counts: counts.threads),
    _Column("recv", None, lambda counts: counts.received),
    _Column("send", None, lambda counts: counts.sent),
    _Column("busy µs", "busy_us", of_time=lambda occupation: occupation.busy.estimate),
    _Column("wait µs", "busy_us", of_time=lambda occupation: occupation.wait_us),
    _Column("cpu µs", "busy_us", of_time=lambda occupation: occupation.cpu_us),
)


@dataclass(frozen=True, slots=True)
class _Tally:
    """The second part of the table."""

    columns: tuple[_Column, ...]
    judged: bool

    @classmethod
    def of(cls, result: Result, verbose: bool) -> _Tally:
        """With the columns that say something."""
        assert result.ledger is not None
        counts = [result.ledger.total, *(report.counts for report in result.layers if report.counts)]
        occupations = [report.occupation for report in result.layers if report.occupation]
        bounds = {quantity for report in result.layers for quantity in report.judged}
        shown = [
            column
            for column in COLUMNS
            if column.known(result.ledger.total, occupations)
            and (verbose or column.quantity in bounds or column.worth_showing(counts, occupations))
        ]
        return cls(tuple(shown), bool(bounds - {"us"}))

    def varies(self, result: Result) -> bool:
        """Whether a figure is marked as varying."""
        assert result.ledger is not None
        counts = [result.ledger.outside, result.ledger.endpoint, result.ledger.total]
        counts += [report.counts for report in result.layers]
        return any(cell.startswith("~") for found in counts for cell in self._cells(found))

    def lines(self, result: Result, width: int, verbose: bool) -> Iterator[Line]:
        """The heading and a line for each row; below it the columns that have no room there."""
        ledger = result.ledger
        assert ledger is not None
        rows = [_Row("per request", [column.title for column in self.columns], "verdict", "bold")]
        rows.append(_Row("(outside)", self._cells(ledger.outside)))
        for report in result.layers:
            verdict = worst(judged.verdict for quantity, judged in report.judged.items() if quantity != "us")
            cells = self._cells(report.counts, report.occupation)
            rows.append(_Row(report.name, cells, verdict or "", STYLES[verdict], report))
        if ledger.endpoint is not None:
            rows.append(_Row("(endpoint)", self._cells(ledger.endpoint)))
        rows.append(_Row("(total)", self._cells(ledger.total)))
        widths = [2 + max(map(len, cells)) for cells in zip(*(row.cells for row in rows), strict=True)]
        alone, room = result.books is None, VERDICT if self.judged else 0
        for part in _parts(widths, width, room):
            if not alone or part.start:
                yield Line("")
            for row in rows:
                yield row.line(part, widths, width, room if not part.start else 0)
                if row.report is not None and not part.start:
                    yield from _details(row.report, width, alone=alone, verbose=verbose)

    def _cells(self, counts: Counts | None, occupation: Occupation | None = None) -> list[str]:
        return [column.cell(counts, occupation) for column in self.columns]


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of the second part, over all its columns."""

    title: str
    cells: Sequence[str]
    verdict: str = ""
    style: Style = ""
    report: LayerReport | None = None

    def line(self, part: range, widths: Sequence[int], width: int, room: int) -> Line:
        """Some of the columns, and the verdict where there is `room` for it."""
        name = max(MIN_NAME, width - sum(widths[i] for i in part) - room)
        figures = "".join(f"{self.cells[i]:>{widths[i]}}" for i in part)
        verdict = self.verdict if room else ""
        return Line(f"{shortened(self.title, name - 1).ljust(name)}{figures}  {verdict}".rstrip(), self.style)


def _parts(widths: Sequence[int], width: int, room: int) -> Iterator[range]:
    """The columns, all of them where they fit, or else as many at a time as leave the names readable."""
    if not widths or MIN_NAME + sum(widths) + room <= width:
        yield range(len(widths))
        return
    name, begin = max(MIN_NAME, round(NAME_SHARE * width)), 0
    for end in range(1, len(widths) + 1):
        if end == len(widths) or name + sum(widths[begin : end + 1]) + (0 if begin else room) > width:
            yield range(begin, end)
            begin = end


def _details(report: LayerReport, width: int, *, alone: bool, verbose: bool) -> Iterator[Line]:
    """What else there is to say of a row; what the first part of the table has said is not said again."""
    if alone:
        yield from _remarks(report.layer, width)
    if alone and verbose:
        yield Line(f"  {shortened(report.layer.qualname, width - 2)}")
    if verbose:
        yield from _varying(report)


def _varying(report: LayerReport) -> Iterator[Line]:
    for column in COLUMNS:
        count = column.of_counts(report.counts) if column.of_counts and report.counts else None
        if count is not None and not count.exact:
            yield Line(f"  {column.title} {column.text(count.low)} … {column.text(count.high)}")


# ---- the foot ----------------------------------------------------------------------------------------------------


def _foot(result: Result, width: int, *, varies: bool) -> Iterator[str]:
    if result.books is not None and result.effort is not None:
        residue = result.books.residue_us
        total = result.books.total.estimate
        share = f" ({residue / total:+.1%})" if total and math.isfinite(residue) else ""
        effort = result.effort
        yield f"floor {figure(result.floor_us)} µs; rows minus total {figure(residue)} µs{share}"
        yield f"{effort.rounds} rounds, {effort.requests} requests, {effort.seconds:.1f} s"
    if result.ledger is not None:
        yield f"{result.ledger.requests} requests counted" + ("; ~ varies from request to request" if varies else "")
        by_reason: dict[str, list[str]] = {}
        for quantity, why in result.ledger.why.items():
            by_reason.setdefault(why, []).append(quantity)
        for why, quantities in by_reason.items():
            yield from wrapped(tagged(f"not counted: {', '.join(quantities)} ({why})", "uncountable"), width)
    for note in result.notes:
        yield from wrapped(f"note: {note}", width)
    for advice in advise(result):
        command = advice.page.replace(" ", TIE)
        yield from (line.replace(TIE, " ") for line in wrapped(f"advice: {advice.text} ({command})", width))
    if result.profile is not None:
        yield printable(f"flamegraph: {result.profile.flamegraph}")


def one_line(result: Result) -> Line:
    """Request, verdict, the whole and the costliest layer with their intervals."""
    timed = [report for report in result.layers if report.us is not None]
    costliest = max(timed, key=lambda report: report.us.estimate if report.us else 0.0, default=None)
    verdict = result.verdict or "no budget"
    if result.books is None:
        counted = f"{result.ledger.requests} requests counted" if result.ledger else "nothing measured"
        return Line(printable(f"{result.request} {verdict}: {counted}"), STYLES[result.verdict])
    most = f", dearest layer {costliest.name}: {_with_interval(costliest.us)}" if costliest and costliest.us else ""
    text = f"{result.request} {verdict}: {_with_interval(result.books.total)}{most}"
    return Line(printable(text), STYLES[result.verdict])


def _with_interval(us: Estimate) -> str:
    return f"{figure(us.estimate)} ({interval(us)}) µs"


# ---- a failure ---------------------------------------------------------------------------------------------------


def failure(result: Result, width: int, *, undecided_fails: bool = False, verbose: bool = False) -> str:
    """The report of a failing test: what is over, by how much, the table, what to do next."""
    lines = [printable(f"{result.request}: {headline(result)}"), ""]
    # A line near the end names the flamegraph.
    lines += [line.text for line in table(replace(result, profile=None), width, verbose=verbose)]
    lines.append("")
    over = [report for report in result.layers if report.verdict == "fail"]
    for report in over:
        for text in map(printable, (*_evidence(report), *_hottest(report, result.profile, width))):
            lines += [text] if text.startswith(ITEM) else wrapped(text, width)
        lines += wrapped(_next_step(report, result), width)
    if result.total_verdict == "fail" and result.books is not None:
        lines += [line for text in _total_evidence(result) for line in wrapped(text, width)]
        enough = _roomy(result.books.total)
        lines += wrapped(f"Next: begin with the costliest row; if the cost is intended, say total_us={enough}.", width)
    if undecided_fails or over:
        lines += [line for text in undecided(result) for line in wrapped(text, width)]
    if undecided_fails and result.uncountable:
        lines += wrapped(_next_step_uncountable(result.uncountable), width)
    if result.profile is not None:
        lines.append(printable(f"Flamegraph: {result.profile.flamegraph}"))
    has_ids = any(map(TAGGED.search, lines))
    more = more_about("over-budget" if result.verdict == "fail" else "undecided")
    lines.append(f"{more}, or an ID in [brackets]" if has_ids else more)
    return "\n".join(lines)


def reasons(result: Result) -> Iterator[str]:
    """Why a verdict is no pass: by how much which budget is exceeded, what is undecided; items of a list after ITEM."""
    for report in result.layers:
        yield from map(printable, _evidence(report))
    yield from _total_evidence(result)
    yield from undecided(result)


def headline(result: Result) -> str:
    """What fails, short enough for pytest's summary: the excess that is the greatest share, and how many fail."""
    over = [report for report in result.layers if report.verdict == "fail"]
    if over:
        report = max(over, key=excess)
        quantity = max(_exceeded(report), key=lambda quantity: _share(report, quantity))
        judged = sum(report.verdict is not None for report in result.layers)
        busy = "busy " if quantity == "busy_us" else ""
        return (
            f"{printable(report.name)} {busy}{amount(quantity, _value(report, quantity))},"
            f" budget {amount(quantity, report.judged[quantity].bound)} ({len(over)} of {judged} layers over budget)"
        )
    if result.total_verdict == "fail" and result.books is not None and result.total_budget_us is not None:
        return f"total {figure(result.books.total.estimate)} µs, budget {bound(result.total_budget_us)} µs"
    return f"{' and '.join(result.uncountable)} cannot be counted here" if result.uncountable else "undecided"


def excess(report: LayerReport) -> float:
    """How many times its budget a layer is where that is the most; 0 where it is over none."""
    return max((_share(report, quantity) for quantity in _exceeded(report)), default=0.0)


def _share(report: LayerReport, quantity: Quantity) -> float:
    return times_its_budget(_value(report, quantity), report.judged[quantity].bound)


def _exceeded(report: LayerReport) -> list[Quantity]:
    """The quantities whose budget a layer is over."""
    return [quantity for quantity, judged in report.judged.items() if judged.verdict == "fail"]


def _value(report: LayerReport, quantity: Quantity) -> float:
    """What a failing budget was held against."""
    us = _time(report, quantity)
    return float(_count(report, quantity).count) if us is None else us.estimate


def _time(report: LayerReport, quantity: Quantity) -> Estimate | None:
    if quantity == "us":
        return report.us
    return report.occupation.busy if quantity == "busy_us" and report.occupation else None


def _count(report: LayerReport, quantity: Quantity) -> Count:
    """The count that a failing budget was held against."""
    assert report.counts is not None
    found = report.counts.of(cast("CountedQuantity", quantity))
    assert found is not None
    return found


VERBS = {
    "objects": "creates",
    "allocations": "makes",
    "bytes": "requests",
    "tasks": "spawns",
    "threads": "hands to worker threads",
    "retained": "leaves behind",
}
MOST_KINDS = 10
# How a line begins that is an item of a list; a name stays beside its number, however long.
ITEM = "    "


def _evidence(report: LayerReport) -> Iterator[str]:
    """By how much a layer is over its budgets, and what makes it so."""
    over = _exceeded(report)
    for quantity in over:
        most, us = report.judged[quantity].bound, _time(report, quantity)
        if us is not None:
            verb = "takes" if quantity == "us" else "holds the event loop for"
            yield f"{report.name} {verb} {_excess(us, most)}"
        else:
            yield from _counted_evidence(report, quantity, most)
    if report.counts is not None and set(COUNTED).intersection(over):
        yield from _created(report.counts)


def _total_evidence(result: Result) -> Iterator[str]:
    if result.total_verdict == "fail" and result.books is not None and result.total_budget_us is not None:
        yield f"The whole request takes {_excess(result.books.total, result.total_budget_us)}"


def _counted_evidence(report: LayerReport, quantity: Quantity, most: float) -> Iterator[str]:
    count = _count(report, quantity)
    varies = "" if count.exact else f" ({amount(quantity, count.low)} to {amount(quantity, count.high)})"
    yield (
        f"{report.name} {VERBS[quantity]} {amount(quantity, count.count)} per request{varies}, its budget is"
        f" {amount(quantity, most)}."
    )
    if quantity in ("tasks", "threads", "retained"):
        yield from (f"{ITEM}{number} × {kind}" for kind, number in list(count.kinds.items())[:MOST_KINDS])


def _created(counts: Counts) -> Iterator[str]:
    """The most frequent types, and those that are nobody else's."""
    if counts.objects is not None and counts.objects.kinds:
        frequent = [f"{number} {kind}" for kind, number in list(counts.objects.kinds.items())[:MOST_KINDS]]
        yield f"Most are {', '.join(frequent)}."
    own = counts.own_types
    if own:
        more = f" and {len(own) - MOST_KINDS} more" if len(own) > MOST_KINDS else ""
        yield f"Types that only it creates: {', '.join(own[:MOST_KINDS])}{more}."


def _excess(us: Estimate, budget_us: float) -> str:
    over = Estimate(us.estimate - budget_us, us.low - budget_us, us.high - budget_us)
    return (
        f"{figure(us.estimate)} µs per request, its budget is {bound(budget_us)} µs: {figure(over.estimate)} µs too"
        f" much ({figure(over.low)} to {figure(over.high)})."
    )


def _hottest(report: LayerReport, profile: Profile | None, width: int) -> Iterator[str]:
    """Where the layer's time goes."""
    functions = profile.hottest.get(report.layer.index, ()) if profile is not None else ()
    if functions:
        yield f"Hottest in {report.name}, µs per request alone and with what they call:"
    for one in functions:
        times = f"{figure(one.own_us):>7}{figure(one.total_us):>8}"
        # Editors and terminals open a place that is whole.
        place = f" ({printable(one.place)})" if one.place else ""
        room = max(MIN_NAME, width - len(f"{ITEM}{times}  {place}"))
        yield f"{ITEM}{times}  {shortened(one.function, room)}{place}"


def _next_step(report: LayerReport, result: Result) -> str:
    enough = ", ".join(
        f"{quantity!r}: {_enough(report, quantity)}"
        for quantity, judged in report.judged.items()
        if judged.verdict == "fail"
    )
    only_time = enough.startswith("'us': ") and "," not in enough
    roomy = enough.removeprefix("'us': ") if only_time else f"{{{enough}}}"
    raise_it = f"if this is intended, say layers={{{report.name!r}: {roomy}}}"
    if any(one.layer == report.name for one in advise(result)):
        return f"Next: the advice above; or, {raise_it}."
    if result.profile is not None:
        return f"Next: look for {report.name} in the flamegraph; {raise_it}."
    return f"Next: profile {report.layer.qualname} on this request; {raise_it}."


def _next_step_uncountable(quantities: Sequence[Quantity]) -> str:
    named = " and ".join(quantities)
    without = ", ".join(f"{quantity}=None" for quantity in quantities)
    return (
        f"Next: run this test where {named} can be counted, or skip it here; if the budget is not to be enforced here,"
        f" say undecided='warn', or {without} in the marker."
    )


def _enough(report: LayerReport, quantity: Quantity) -> str:
    """A budget that the layer keeps: with room above a time, exact for a count."""
    us = _time(report, quantity)
    return str(_count(report, quantity).high) if us is None else _roomy(us)


def _roomy(us: Estimate) -> str:
    """A budget with some room above the estimate, in round numbers."""
    high = us.estimate * 1.3
    step = 10 ** max(0, math.floor(math.log10(max(high, 1.0))) - 1)
    return bound(math.ceil(high / step) * step)


def undecided(result: Result) -> Iterator[str]:
    """A sentence for each kind of open verdict: of what, why, how long it would take."""
    open_ones: dict[tuple[Quantity, str | None], list[str]] = {}
    for report in result.layers:
        for quantity, judged in report.judged.items():
            if judged.verdict == "undecided":
                open_ones.setdefault((quantity, judged.reason), []).append(report.name)
    for (quantity, reason), names in open_ones.items():
        listed = f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]
        what = listed if quantity == "us" else f"{quantity} of {listed}"
        yield printable(f"{what} {'are' if len(names) > 1 else 'is'} undecided: {reason}.")
    if result.total_verdict == "undecided":
        yield printable(f"The whole request is undecided: {result.total_reason}.")


# ---- text -------------------------------------------------------------------------------------------------------


def figure(value: float | None) -> str:
    """A number of microseconds with the decimals that mean something."""
    if value is None or not math.isfinite(value):
        return "?"
    size = abs(value)
    return f"{value:.2f}" if size < 10 else f"{value:.1f}" if size < 1000 else f"{value:.0f}"


def bound(value: float) -> str:
    """A budget as the user would write it."""
    return f"{value:.0f}" if value >= 1000 else f"{value:.4g}"


NOUNS = {"tasks": ("task", "tasks"), "threads": ("call", "calls"), "retained": ("object", "objects")}


def amount(quantity: Quantity, value: float) -> str:
    """A number of something, with its unit: `50 µs`, `478 objects`, `16.0 KiB`, `1 task`."""
    if quantity in ("us", "busy_us"):
        return f"{figure(value) if value != int(value) else bound(value)} µs"
    if quantity == "bytes":
        return size(round(value))
    one, many = NOUNS.get(quantity, (quantity.removesuffix("s"), quantity))
    return f"{value:.0f} {one if value == 1 else many}"


def size(number: int) -> str:
    """A number of bytes as people read it."""
    if number < 1024:
        return f"{number} B"
    for unit, scale in (("KiB", 1024), ("MiB", 1024**2)):
        if number < 1000 * scale:
            return f"{number / scale:.1f} {unit}"
    return f"{number / 1024**3:.1f} GiB"


def interval(us: Estimate) -> str:
    """`low … high`."""
    return f"{figure(us.low)} … {figure(us.high)}"


def printable(text: str) -> str:
    """`text` in one line that a terminal shows as it is: whatever has no glyph stands as an escape.

    A name of the app could end its line, colour the rest, or begin a line that GitHub's runner obeys.
    """
    shown = "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
    return f"\\x3a{shown.lstrip()[1:]}" if shown.lstrip().startswith("::") else shown


def shortened(text: str, width: int) -> str:
    """`text`, printable and in at most `width` columns, cut in the middle, where long names differ least."""
    text = printable(text)
    if len(text) <= width:
        return text
    head = (width - 1) // 2
    return f"{text[:head]}…{text[len(text) - (width - 1 - head) :]}"


def wrapped(text: str, width: int) -> list[str]:
    """`text`, printable and in lines of at most `width` columns; a word that is longer stays whole."""
    return textwrap.wrap(printable(text), width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
