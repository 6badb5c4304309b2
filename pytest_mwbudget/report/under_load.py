"""What every report shows of an app under load. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..errors import tagged
from ..model.estimate import Estimate
from ..model.judged import Judged
from ..model.load import CLOCK_NAMES, PROCESSOR, WALL, LayerLoad, Load
from ..model.results import Result, ResultRow
from ..model.stack import ENDPOINT
from .document import BUDGET, INTERVAL, VERDICT, Cell, Code, Column, Table, TableRow
from .findings import Finding
from .text import figure, percent, rate

MS_IN_US = 1000.0
UNKNOWN = "–"


@dataclass(frozen=True, slots=True)
class LoadView:
    """An app under load as text.

    `table` has the layers, whose shares are of the requests per second. `is_split` says whether some shares are the
    layer's own time over the time of a request, because no request was sent past the layer. `summary` has requests per
    second and latencies, `brief` the same without intervals, `figures` the same as numbers. `effects` has a sentence
    for each effect of concurrency, `findings` the budgets that are exceeded or undecided, `effort` the size of the
    measurement.
    """

    title: str
    summary: str
    brief: str
    figures: Mapping[str, float]
    table: Table
    is_split: bool
    effects: tuple[str, ...]
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    effort: str
    headline: str

    @property
    def exceeded(self) -> list[Finding]:
        """The findings on exceeded budgets."""
        return [finding for finding in self.findings if finding.verdict == "fail"]


def load_view(result: Result) -> LoadView | None:
    """Derive what reports show; None if the request was not measured under load."""
    load = result.load
    if load is None:
        return None
    measured = [(report, report.load) for report in result.layers if report.load is not None]
    return LoadView(
        title=f"under load, {clients(load)}",
        summary=summary(load),
        brief=f"{rate(load.rps.estimate)} requests/s, p99 {figure(load.p99_ms.estimate)} ms",
        figures={"clients": load.clients, **{key: getattr(load, key).estimate for key in ("rps", "p50_ms", "p99_ms")}},
        table=_table(f"under load, {clients(load)}", measured),
        is_split=any(layer_load.method == "split" for _, layer_load in measured),
        effects=tuple(_effects(load, measured)),
        findings=tuple(_findings(load, measured)),
        notes=load.notes,
        effort=(
            f"{load.rounds} rounds of bursts, {load.quiet} of them quiet{_clocks(measured)}; {load.requests} requests,"
            f" {load.seconds:.1f} s; {load.server}"
        ),
        headline=_headline(load, measured),
    )


def clients(load: Load) -> str:
    """Return the number of clients with its unit."""
    return "1 client" if load.clients == 1 else f"{load.clients} clients"


def summary(load: Load) -> str:
    """Return requests per second and latencies with their intervals."""
    busy = "" if load.busy is None else f"; the event loop's thread worked {load.busy:.0%} of the time"
    p99 = f"p99 {_ms(load.p99_ms)}"
    if load.judged is not None:
        p99 += f", budget {figure(load.judged.bound)} ms, {load.judged.verdict}"
    rps = f"{rate(load.rps.estimate)} requests/s ({rate(load.rps.low)} … {rate(load.rps.high)})"
    return f"{rps}, p50 {_ms(load.p50_ms)}, {p99}{busy}"


def _ms(latency: Estimate) -> str:
    return f"{figure(latency.estimate)} ms ({figure(latency.low)} … {figure(latency.high)})"


def _clocks(measured: Sequence[tuple[ResultRow, LayerLoad]]) -> str:
    """Say what the shares of bypassed layers are of."""
    names = {
        clock: [row.name for row, layer_load in measured if (layer_load.method, layer_load.clock) == ("bypass", clock)]
        for clock in (PROCESSOR, WALL)
    }
    if not names[PROCESSOR]:
        return f", shares of {CLOCK_NAMES[WALL]}" if names[WALL] else ""
    others = f" (of {CLOCK_NAMES[WALL]}: {', '.join(names[WALL])})" if names[WALL] else ""
    return f", shares of {CLOCK_NAMES[PROCESSOR]}{others}"


def _table(title: str, measured: Sequence[tuple[ResultRow, LayerLoad]]) -> Table:
    columns = (
        Column(title),
        Column("share of requests/s", short="share of req/s", meaning="what the layer costs"),
        Column("interval", least=INTERVAL, meaning="the confidence interval of the share"),
        Column("budget", least=BUDGET, meaning="the largest share that is allowed"),
        Column("verdict", align="left", least=VERDICT, meaning="on the budget of the share"),
        Column("adds µs", meaning="what the layer adds to a request: processor time or wall-clock time, as its share"),
        Column("in it", meaning="how long a request is in the layer, with one client and with all"),
        Column("method", align="left", meaning="how it was measured"),
    )
    return Table(columns, [_row(report, layer_load) for report, layer_load in measured], fills=True)


def _row(report: ResultRow, layer_load: LayerLoad) -> TableRow:
    share, added, wait, judged = layer_load.share, layer_load.added_us, layer_load.wait, layer_load.judged
    how, verdict = layer_load.method or "", judged.verdict if judged else None
    value = share.estimate if share else None
    text = percent(share.estimate) if share else "-"
    span = f"{percent(share.low)} … {percent(share.high)}" if share else ""
    waits = (duration(wait.one_us), duration(wait.all_us)) if wait else ()
    below = [
        f"adds {figure(added.estimate)} µs to a request" if added else "",
        "a request is in it for {} with 1 client, for {} with all".format(*waits) if waits else "",
        f"{'its own time: ' if how == 'split' else ''}{layer_load.why}" if layer_load.why else "",
    ]
    return TableRow(
        [
            Cell(Code(report.name)),
            Cell(text, verdict, value, why=layer_load.why or "", brief=f"~{text}" if how == "split" else text),
            Cell(span or UNKNOWN, value=value, brief=span),
            Cell(percent(judged.bound) if judged else "", value=judged.bound if judged else None),
            Cell(verdict or "", verdict),
            Cell(figure(added.estimate), value=added.estimate) if added else Cell(UNKNOWN),
            Cell(", ".join(waits) or UNKNOWN, value=wait.all_us if wait else None),
            Cell(how),
        ],
        verdict,
        [*filter(None, below)],
    )


def duration(us: float) -> str:
    """Format a time in the unit that suits it."""
    return f"{figure(us)} µs" if us < MS_IN_US else f"{figure(us / MS_IN_US)} ms"


def _effects(load: Load, measured: Sequence[tuple[ResultRow, LayerLoad]]) -> Iterator[str]:
    waits = [(report.name, layer_load.wait) for report, layer_load in measured]
    for name, wait in [*waits, (ENDPOINT, load.endpoint)]:
        if wait is not None and wait.serialises:
            yield tagged(
                f"{name} serialises requests: one is in it for {duration(wait.one_us)} with 1 client and for"
                f" {duration(wait.all_us)} with {load.clients}, most of it waiting for the others.",
                "serialises",
            )
    for report, layer_load in measured:
        if layer_load.collects and layer_load.collecting_us is not None and report.us is not None:
            yield tagged(
                f"The garbage of {report.name} costs more than its own time:"
                f" {figure(layer_load.collecting_us.estimate)} µs of garbage collection per request under load,"
                f" and {figure(report.us.estimate)} µs of its own.",
                "garbage",
            )


# ---- budgets -----------------------------------------------------------------------------------------------------


def _findings(load: Load, measured: Sequence[tuple[ResultRow, LayerLoad]]) -> Iterator[Finding]:
    """Say which budgets under load are exceeded, then which are undecided."""
    judged = [
        (report.name, layer_load.share, layer_load.judged)
        for report, layer_load in measured
        if layer_load.judged is not None
    ]
    for name, share, budget in judged:
        if budget.verdict == "fail" and share is not None:
            yield Finding(
                name,
                f"costs {percent(share.estimate)} of the requests per second with {clients(load)}"
                f" ({percent(share.low)} to {percent(share.high)}), its budget is {percent(budget.bound)}.",
                "fail",
            )
    if load.judged is not None and load.judged.verdict == "fail":
        yield Finding(
            "The whole app",
            f"answers 99 % of the requests of {clients(load)} within {_ms(load.p99_ms)}, its budget is"
            f" {figure(load.judged.bound)} ms.",
            "fail",
        )
    reasons: dict[str | None, list[str]] = {}
    for name, _, budget in judged:
        if budget.verdict == "undecided":
            reasons.setdefault(budget.reason, []).append(name)
    for reason, names in reasons.items():
        yield Finding(f"rps_share of {', '.join(names)}", f"is undecided: {reason}.", "undecided")
    if load.judged is not None and load.judged.verdict == "undecided":
        yield Finding("p99_ms", f"is undecided: {load.judged.reason}.", "undecided")


def _headline(load: Load, measured: Sequence[tuple[ResultRow, LayerLoad]]) -> str:
    """Sum up the failure; empty if no budget under load is exceeded."""
    over: list[tuple[float, str]] = []
    for report, layer_load in measured:
        if _fails(layer_load.judged) and layer_load.share is not None and layer_load.judged is not None:
            text = (
                f"{report.name} {percent(layer_load.share.estimate)} of requests/s,"
                f" budget {percent(layer_load.judged.bound)}"
            )
            over.append((layer_load.share.estimate / layer_load.judged.bound, text))
    if _fails(load.judged) and load.judged is not None:
        text = f"p99 {figure(load.p99_ms.estimate)} ms, budget {figure(load.judged.bound)} ms"
        over.append((load.p99_ms.estimate / load.judged.bound, text))
    return f"under load {max(over)[1]}" if over else ""


def _fails(judged: Judged | None) -> bool:
    return judged is not None and judged.verdict == "fail"
