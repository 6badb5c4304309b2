"""The figures of a request that two runs are compared by, from a result or from a line of the history."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..model.changes import ENDPOINT, OUTSIDE, TOTAL
from ..model.estimate import Estimate
from ..model.results import COUNTED, Counts, LayerReport, Result


@dataclass(frozen=True, slots=True)
class RowFigures:
    """The known figures of a row by quantity, with their intervals or ranges.

    `method` says how a layer was timed, `runs_task` whether it runs what is inside it in a task. `missing` is the
    reason if the row has no figures.
    """

    figures: Mapping[str, Estimate] = field(default_factory=dict)
    method: str | None = None
    runs_task: bool = False
    missing: str = "it was not measured"

    @property
    def in_threads(self) -> bool:
        """Whether the row hands work to threads."""
        return "threads" in self.figures and self.figures["threads"].high > 0


@dataclass(frozen=True, slots=True)
class RequestFigures:
    """The rows of a request by name, outermost first, the total last; and the speed of the machine meanwhile."""

    rows: Mapping[str, RowFigures]
    slowdown: float | None = None
    reference_ns: float | None = None

    @property
    def in_threads(self) -> bool:
        """Whether the request hands work to threads."""
        return self.rows[TOTAL].in_threads if TOTAL in self.rows else False


def figures_of(result: Result) -> RequestFigures:
    """Return the figures of a result."""
    books, ledger = result.books, result.ledger
    found = {OUTSIDE: _frame(books.outside if books else None, ledger.outside if ledger else None)}
    found |= {report.name: _layer(report) for report in result.layers}
    endpoint = _frame(books.endpoint if books else None, ledger.endpoint if ledger else None)
    if endpoint.figures:
        found[ENDPOINT] = endpoint
    found[TOTAL] = _frame(books.total if books else None, ledger.total if ledger else None)
    return RequestFigures(found, result.slowdown, result.reference_ns)


def _frame(us: Estimate | None, counts: Counts | None) -> RowFigures:
    return RowFigures({**({"us": us} if us else {}), **_counted(counts)})


def _layer(report: LayerReport) -> RowFigures:
    times = {"us": report.us, "busy_us": report.occupation.busy if report.occupation else None}
    times["us_per_message"] = report.messages.us_per_message if report.messages else None
    figures = {**{key: us for key, us in times.items() if us is not None}, **_counted(report.counts)}
    return RowFigures(figures, report.method, report.layer.runs_task, _missing(report))


def _counted(counts: Counts | None) -> Mapping[str, Estimate]:
    found = {quantity: counts.of(quantity) for quantity in COUNTED} if counts else {}
    return {key: Estimate(count.count, count.low, count.high) for key, count in found.items() if count is not None}


def _missing(report: LayerReport) -> str:
    if not report.layer.entered:
        return "the request did not come to this layer"
    if report.layer.merged_with is not None:
        return f"it was measured together with {report.layer.merged_with}"
    return RowFigures().missing
