"""A result as lines for a terminal: the table, the evidence of a failure, one line for those in a hurry."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from ..model import Estimate, LayerReport, Result, Verdict

# The names of pytest's own markup.
Style: TypeAlias = str
STYLES: dict[Verdict | None, Style] = {"pass": "green", "fail": "red", "undecided": "yellow", None: ""}

MAX_WIDTH = 120
ESTIMATE, INTERVAL, BUDGET, VERDICT = 10, 19, 8, 11
# Below this a name says nothing: a narrower terminal has to wrap.
MIN_NAME = 12


@dataclass(frozen=True, slots=True)
class Line:
    """A line of text and the markup for all of it."""

    text: str
    style: Style = ""


def table(result: Result, width: int, *, verbose: bool = False) -> Iterator[Line]:
    """The rows of `result` within `width` columns, outermost layer first; `verbose` adds how each was measured."""
    assert result.books is not None
    width = min(width, MAX_WIDTH) - 1
    columns = _Columns(max(MIN_NAME, width - ESTIMATE - INTERVAL - BUDGET - VERDICT))
    yield Line(columns.row("layer", "µs/request", "interval", "budget", "verdict"), "bold")
    yield columns.line("(outside)", result.books.outside)
    for report in result.layers:
        yield from _layer_lines(report, columns, width, verbose)
    if result.books.endpoint is not None:
        yield columns.line("(endpoint)", result.books.endpoint)
    yield columns.line("(total)", result.books.total, result.total_budget_us, result.total_verdict)
    yield from (Line(text) for text in _foot(result, width))


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
    yield columns.line(layer.name, report.us, report.budget_us, report.verdict)
    if not layer.entered:
        yield Line("  not entered: a layer outside it answered")
    if layer.merged_with is not None:
        yield Line(shortened(f"  measured with {layer.merged_with}", width))
    if verbose:
        how = f", {layer.kind}" + (f", {report.method}" if report.method else "")
        yield Line(f"  {shortened(layer.qualname, width - 2 - len(how))}{how}")


def _foot(result: Result, width: int) -> Iterator[str]:
    assert result.books is not None
    assert result.effort is not None
    residue = result.books.residue_us
    total = result.books.total.estimate
    share = f" ({residue / total:+.1%})" if total and math.isfinite(residue) else ""
    effort = result.effort
    yield f"floor {figure(result.floor_us)} µs; rows minus total {figure(residue)} µs{share}"
    yield f"{effort.rounds} rounds, {effort.requests} requests, {effort.seconds:.1f} s"
    for note in result.notes:
        yield from wrapped(f"note: {note}", width)


def one_line(result: Result) -> Line:
    """Request, verdict and the costliest layer."""
    assert result.books is not None
    measured = [report for report in result.layers if report.us is not None]
    worst = max(measured, key=lambda report: report.us.estimate if report.us else 0.0, default=None)
    costliest = f", most in {worst.name}: {figure(worst.us.estimate)} µs" if worst and worst.us else ""
    return Line(
        f"{result.request} {result.verdict}: {figure(result.books.total.estimate)} µs{costliest}",
        STYLES[result.verdict],
    )


def failure(result: Result, width: int, *, undecided_fails: bool = False) -> str:
    """The report of a failing test: what is over, by how much, the table, what to do next."""
    lines = [f"{result.request}: {_headline(result)}", ""]
    lines += [line.text for line in table(result, width)]
    lines.append("")
    over = [report for report in result.layers if report.verdict == "fail"]
    for report in over:
        assert report.us is not None
        assert report.budget_us is not None
        lines += wrapped(f"{report.name} takes {_excess(report.us, report.budget_us)}", width)
        lines += wrapped(_next_step(report), width)
    if result.total_verdict == "fail" and result.books is not None and result.total_budget_us is not None:
        total = result.books.total
        lines += wrapped(f"The whole request takes {_excess(total, result.total_budget_us)}", width)
        lines += wrapped(
            f"Next: begin with the costliest row; if the cost is intended, say total_us={_roomy(total)}.", width
        )
    if undecided_fails or over:
        lines += [line for text in undecided(result) for line in wrapped(text, width)]
    return "\n".join(lines)


def _headline(result: Result) -> str:
    """What fails, short enough for pytest's summary: the layer that is farthest over its budget, and how many are."""
    over = [
        (report.us.estimate - report.budget_us, report)
        for report in result.layers
        if report.verdict == "fail" and report.us and report.budget_us
    ]
    if over:
        _, worst = max(over, key=lambda pair: pair[0])
        judged = sum(report.verdict is not None for report in result.layers)
        assert worst.us is not None
        assert worst.budget_us is not None
        return (
            f"{worst.name} {figure(worst.us.estimate)} µs, budget {bound(worst.budget_us)} µs"
            f" ({len(over)} of {judged} layers over budget)"
        )
    if result.total_verdict == "fail" and result.books is not None and result.total_budget_us is not None:
        return f"total {figure(result.books.total.estimate)} µs, budget {bound(result.total_budget_us)} µs"
    return "undecided"


def _excess(us: Estimate, budget_us: float) -> str:
    over = Estimate(us.estimate - budget_us, us.low - budget_us, us.high - budget_us)
    return (
        f"{figure(us.estimate)} µs per request, its budget is {bound(budget_us)} µs: {figure(over.estimate)} µs too"
        f" much ({figure(over.low)} to {figure(over.high)})."
    )


def _next_step(report: LayerReport) -> str:
    assert report.us is not None
    raise_it = f"if the cost is intended, say layers={{{report.name!r}: {_roomy(report.us)}}}"
    if report.layer.runs_task:
        return (
            "Next: it runs everything inside it in a task of its own, which costs most of this; written as a pure ASGI"
            f" class it needs no task. Or, {raise_it}."
        )
    return f"Next: profile {report.layer.qualname} on this request; {raise_it}."


def _roomy(us: Estimate) -> str:
    """A budget with some room above the estimate, in round numbers."""
    high = us.estimate * 1.3
    step = 10 ** max(0, math.floor(math.log10(max(high, 1.0))) - 1)
    return bound(math.ceil(high / step) * step)


def undecided(result: Result) -> Iterator[str]:
    """A sentence for each open verdict: which, why, how long it would take."""
    for report in result.layers:
        if report.verdict == "undecided":
            yield f"{report.name} is undecided: {report.reason}."
    if result.total_verdict == "undecided":
        yield f"The whole request is undecided: {result.total_reason}."


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


def interval(us: Estimate) -> str:
    """`low … high`."""
    return f"{figure(us.low)} … {figure(us.high)}"


def shortened(text: str, width: int) -> str:
    """`text` in at most `width` columns, cut in the middle, where long names differ least."""
    if len(text) <= width:
        return text
    head = (width - 1) // 2
    return f"{text[:head]}…{text[len(text) - (width - 1 - head) :]}"


def wrapped(text: str, width: int) -> list[str]:
    """`text` in lines of at most `width` columns; a word that is longer stays whole."""
    return textwrap.wrap(text, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
