"""What the rows of a result cost, as limits are recorded of it and judged by it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from ..model.estimate import WIDE_SHARE, WIDE_US, Estimate
from ..model.quantities import COUNTED, Quantity
from ..model.results import Result, ResultRow


@dataclass(frozen=True, slots=True)
class Cost:
    """A figure in one process or in several.

    `least` and `typical` are the least and the greatest typical figure of the processes; `low` and `high` the ends of
    the interval of a time, or of the ranges by which the processes judge a count. `room` is added to the limit of a
    count that varies, because another process may have a greater one: as much as it varies.
    """

    least: float
    typical: float
    low: float
    high: float
    room: float = 0.0

    @classmethod
    def of(cls, figure: Estimate, *, counted: bool) -> Cost:
        """Return what one process has seen. A count that varies has as much room as it varies."""
        room = figure.high - figure.low if counted else 0.0
        return cls(figure.estimate, figure.estimate, figure.low, figure.high, room)

    @property
    def figure(self) -> Estimate:
        """The figure that a limit is held against."""
        return Estimate(self.typical, self.low, self.high)

    @property
    def end(self) -> float:
        """The high end of a count, with room if it varies."""
        return self.high + self.room

    @property
    def differs(self) -> bool:
        """Whether processes had different typical figures."""
        return self.least != self.typical

    def or_higher(self, other: Cost) -> Cost:
        """Return the one with the higher end, from the lower one of both low ends."""
        higher = max(self, other, key=lambda cost: cost.end)
        return replace(higher, low=min(self.low, other.low))

    def with_another(self, other: Cost) -> Cost:
        """Return the cost in both processes."""
        low, high = min(self.low, other.low), max(self.high, other.high)
        return Cost(min(self.least, other.least), max(self.typical, other.typical), low, high, high - low)


def costs(result: Result, quantities: Collection[Quantity]) -> dict[str, dict[Quantity, Cost]]:
    """Return the costs of each row that can be recorded, of these quantities. The parts of the endpoint have no limits.

    Times cannot be recorded if the machine was slow or the interval is wide.
    """
    of_rows = {
        row.name: {q: cost for q in quantities if (cost := _cost(row, q, result.slowdown)) is not None}
        for row in result.rows()
    }
    return {row: of_row for row, of_row in of_rows.items() if of_row}


def _cost(row: ResultRow, quantity: Quantity, slowdown: float | None) -> Cost | None:
    figure, counted = row.figure(quantity), quantity in COUNTED
    if figure is None or not figure.bounded:
        return None
    certain = counted or (slowdown == 1 and figure.half_width <= room_us(figure.estimate))
    return Cost.of(figure, counted=counted) if certain else None


def room_us(us: float) -> float:
    """Return the room above a time: 30 %, and at least as much as an interval that is not wide may have."""
    return max(WIDE_SHARE * us, WIDE_US)
