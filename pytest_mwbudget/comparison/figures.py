"""The figures of a request that two runs are compared by, from a result or from a line of the history."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..model.estimate import Estimate
from ..model.load import Load, LoadClock
from ..model.quantities import RPS_SHARE
from ..model.results import Result, ResultRow
from ..model.stack import ENDPOINT, TOTAL

# Why a row has no figures: the request did not enter its layer, or there are none for another reason.
NOT_ENTERED = "the request did not come to it"
NOT_MEASURED = "it was not measured"
TOO_FEW = "there were too few requests for an interval"


@dataclass(frozen=True, slots=True)
class RowFigures:
    """The known figures of a row by quantity, with their intervals or ranges.

    `clock` is the clock of its share under load, `missing` the reason if the row has no figures, and `why` that of each
    count that is not known.
    """

    figures: Mapping[str, Estimate] = field(default_factory=dict)
    clock: LoadClock | None = None
    missing: str = NOT_MEASURED
    why: Mapping[str, str] = field(default_factory=dict)

    @property
    def in_threads(self) -> bool:
        """Whether the row hands work to threads."""
        return "threads" in self.figures and self.figures["threads"].high > 0


@dataclass(frozen=True, slots=True)
class UnderLoad:
    """How the figures under load came about: by how many clients, behind which server, in how many quiet rounds.

    `slowdown` is how many times slower than at its best the machine ran meanwhile.
    """

    clients: int
    server: str
    quiet: int
    slowdown: float

    @classmethod
    def of(cls, load: Load) -> UnderLoad:
        """Return how these figures came about."""
        return cls(load.clients, load.server, load.quiet, load.slowdown)

    def __str__(self) -> str:
        return f"{self.clients} clients behind {self.server}"


@dataclass(frozen=True, slots=True)
class RequestFigures:
    """The rows of a request by their keys, outermost first, the total last; and the speed of the machine meanwhile.

    `loop` is the event loop. `load` is None without figures under load.
    """

    loop: str
    rows: Mapping[str, RowFigures]
    slowdown: float | None = None
    reference_ns: float | None = None
    load: UnderLoad | None = None

    @property
    def in_threads(self) -> bool:
        """Whether the request hands work to threads."""
        return self.rows[TOTAL].in_threads if TOTAL in self.rows else False

    @property
    def opened(self) -> bool:
        """Whether parts of the endpoint were measured. Those of a closed endpoint have budgets and no figures."""
        return any(is_part(key) and row.figures for key, row in self.rows.items())


def is_part(key: str) -> bool:
    """Return whether a key is that of a part of the endpoint."""
    return key.startswith(f"{ENDPOINT} ")


def figures_of(result: Result) -> RequestFigures:
    """Return the figures of a result."""
    rows = {row.key: _row(row, result.uncounted) for row in result.rows(parts=True)}
    load = UnderLoad.of(result.load) if result.load else None
    return RequestFigures(result.loop, rows, result.slowdown, result.reference_ns, load)


def _row(row: ResultRow, uncounted: Mapping[str, str]) -> RowFigures:
    counts = {name: row.figure(name) for name in row.counted}
    figures = row.estimates | {name: count for name, count in counts.items() if count is not None}
    if row.load is not None and row.load.method != "bypass":
        figures.pop(RPS_SHARE, None)  # a share of the split is a rough one
    why = {**uncounted, **(row.counts.why if row.counts else {})}
    clock = row.load.clock if row.load else None
    return RowFigures(figures, clock, _missing(row), why)


def _missing(report: ResultRow) -> str:
    if not report.layer.entered:
        return NOT_ENTERED
    if report.layer.merged_with is not None:
        return f"it was measured together with {report.layer.merged_with}"
    return NOT_MEASURED
