"""What every report shows of an app under load. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..errors import tagged
from ..model.estimate import Estimate
from ..model.judged import Judged, Verdict
from ..model.load import LayerLoad, Load
from ..model.results import Result, ResultRow
from ..model.stack import ENDPOINT
from .findings import Finding
from .text import figure, percent, rate

MS_IN_US = 1000.0
# Waits shorter than this are not worth a word.
LEAST_WAIT_US = 100.0


@dataclass(frozen=True, slots=True)
class LoadRow:
    """A layer as text: its share of the requests per second with interval, budget and verdict, and what it adds.

    `how` says how the share is known, `why` why it is not known by a bypass. `waits` is how long a request is in the
    layer with one client and with all, empty if unknown. `value`, `added_us` and `all_us` are the numbers behind the
    texts, for sorting.
    """

    name: str
    share: str
    span: str
    budget: str
    verdict: Verdict | None
    added: str
    waits: tuple[str, ...]
    how: str
    why: str
    value: float | None
    added_us: float | None
    all_us: float | None


@dataclass(frozen=True, slots=True)
class LoadView:
    """An app under load as text.

    `summary` has requests per second and latencies, `brief` the same without intervals, `figures` the same as numbers.
    `effects` has a sentence for each effect of concurrency, `findings` the budgets that are exceeded or undecided,
    `effort` the size of the measurement.
    """

    title: str
    summary: str
    brief: str
    figures: Mapping[str, float]
    rows: tuple[LoadRow, ...]
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
        rows=tuple(_row(report, found) for report, found in measured),
        effects=tuple(_effects(load, measured)),
        findings=tuple(_findings(load, measured)),
        notes=load.notes,
        effort=(
            f"{load.rounds} rounds of bursts, {load.quiet} of them quiet; {load.requests} requests,"
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


def _ms(found: Estimate) -> str:
    return f"{figure(found.estimate)} ms ({figure(found.low)} … {figure(found.high)})"


def _row(report: ResultRow, found: LayerLoad) -> LoadRow:
    share, added, wait, judged = found.share, found.added_us, found.wait, found.judged
    return LoadRow(
        name=report.name,
        share="-" if share is None else percent(share.estimate),
        span="" if share is None else f"{percent(share.low)} … {percent(share.high)}",
        budget="" if judged is None else percent(judged.bound),
        verdict=None if judged is None else judged.verdict,
        added="" if added is None else figure(added.estimate),
        waits=() if wait is None else (duration(wait.one_us), duration(wait.all_us)),
        how=found.method or "",
        why=found.why or "",
        value=None if share is None else share.estimate,
        added_us=None if added is None else added.estimate,
        all_us=None if wait is None else wait.all_us,
    )


def duration(us: float) -> str:
    """Format a time in the unit that suits it."""
    return f"{figure(us)} µs" if us < MS_IN_US else f"{figure(us / MS_IN_US)} ms"


def _effects(load: Load, measured: Sequence[tuple[ResultRow, LayerLoad]]) -> Iterator[str]:
    waits = [(report.name, found.wait) for report, found in measured]
    for name, wait in [*waits, (ENDPOINT, load.endpoint)]:
        if wait is not None and wait.serialises:
            yield tagged(
                f"{name} serialises requests: one is in it for {duration(wait.one_us)} with 1 client and for"
                f" {duration(wait.all_us)} with {load.clients}, most of it waiting for the others.",
                "serialises",
            )
    for report, found in measured:
        if found.collects and found.collecting_us is not None and report.us is not None:
            yield tagged(
                f"The garbage of {report.name} costs more than its own time: {figure(found.collecting_us.estimate)} µs"
                f" of garbage collection per request under load, and {figure(report.us.estimate)} µs of its own.",
                "garbage",
            )


# ---- budgets -----------------------------------------------------------------------------------------------------


def _findings(load: Load, measured: Sequence[tuple[ResultRow, LayerLoad]]) -> Iterator[Finding]:
    """Say which budgets under load are exceeded, then which are undecided."""
    judged = [(report.name, found.share, found.judged) for report, found in measured if found.judged is not None]
    for name, share, one in judged:
        if one.verdict == "fail" and share is not None:
            yield Finding(
                name,
                f"costs {percent(share.estimate)} of the requests per second with {clients(load)}"
                f" ({percent(share.low)} to {percent(share.high)}), its budget is {percent(one.bound)}.",
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
    for name, _, one in judged:
        if one.verdict == "undecided":
            reasons.setdefault(one.reason, []).append(name)
    for reason, names in reasons.items():
        yield Finding(f"rps_share of {', '.join(names)}", f"is undecided: {reason}.", "undecided")
    if load.judged is not None and load.judged.verdict == "undecided":
        yield Finding("p99_ms", f"is undecided: {load.judged.reason}.", "undecided")


def _headline(load: Load, measured: Sequence[tuple[ResultRow, LayerLoad]]) -> str:
    """Sum up the failure; empty if no budget under load is exceeded."""
    over: list[tuple[float, str]] = []
    for report, found in measured:
        if _fails(found.judged) and found.share is not None and found.judged is not None:
            text = f"{report.name} {percent(found.share.estimate)} of requests/s, budget {percent(found.judged.bound)}"
            over.append((found.share.estimate / found.judged.bound, text))
    if _fails(load.judged) and load.judged is not None:
        text = f"p99 {figure(load.p99_ms.estimate)} ms, budget {figure(load.judged.bound)} ms"
        over.append((load.p99_ms.estimate / load.judged.bound, text))
    return f"under load {max(over)[1]}" if over else ""


def _fails(judged: Judged | None) -> bool:
    return judged is not None and judged.verdict == "fail"
