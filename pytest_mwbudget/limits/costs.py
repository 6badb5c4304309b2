"""What the rows of a result cost, as limits are recorded of it and judged by it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from ..model.estimate import WIDE_SHARE, WIDE_US, Estimate
from ..model.quantities import COUNTED, Quantity
from ..model.results import Count, Counts, Range, Result

Figure: TypeAlias = Count | Estimate
# The figures of a row that are known.
Figures: TypeAlias = Mapping[str, Figure]


def counts_of(result: Result, row: str) -> Counts | None:
    """Return the counts of a row by its name, None if it has none."""
    return next((each_row.counts for each_row in result.rows() if each_row.name == row), None)


def range_of(result: Result, row: str, quantity: Quantity) -> Range | None:
    """Return the range by which a count is judged, None if it is not known or the quantity is a time."""
    counts = counts_of(result, row) if quantity in COUNTED else None
    return counts.range_of(quantity) if counts else None


def figures(result: Result) -> dict[str, Figures]:
    """Return the known figures of each row by its name. The parts of the endpoint have no limits."""
    figures_by_row: dict[str, Figures] = {
        row.name: {**row.counted, **{name: us for name, us in row.estimates.items() if us.bounded}}
        for row in result.rows()
    }
    return {row: known for row, known in figures_by_row.items() if known}


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
    def of_time(cls, figure: Estimate) -> Cost:
        """Return the time that one process has seen."""
        return cls(figure.estimate, figure.estimate, figure.low, figure.high)

    @classmethod
    def of_count(cls, figure: Count | None, judged_by: Range) -> Cost:
        """Return the count that one process has seen, and judges by a range. Without a typical number, its low end."""
        low, high = judged_by
        typical = low if figure is None else figure.count
        return cls(typical, typical, low, high, high - low)

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


def costs(result: Result, quantities: Iterable[Quantity]) -> dict[str, dict[Quantity, Cost]]:
    """Return the costs of each row that can be recorded, of these quantities.

    Times cannot be recorded if the machine was slow or the interval is wide.
    """
    wanted = [*quantities]
    return {
        row: {quantity: cost for quantity in wanted if (cost := _cost(result, row, quantity, known)) is not None}
        for row, known in figures(result).items()
    }


def _cost(result: Result, row: str, quantity: Quantity, known: Figures) -> Cost | None:
    figure, judged_by = known.get(quantity), range_of(result, row, quantity)
    if isinstance(figure, Estimate):
        certain = result.slowdown == 1 and figure.half_width <= room_us(figure.estimate)
        return Cost.of_time(figure) if certain else None
    return None if judged_by is None else Cost.of_count(figure, judged_by)


def room_us(us: float) -> float:
    """Return the room above a time: 30 %, and at least as much as an interval that is not wide may have."""
    return max(WIDE_SHARE * us, WIDE_US)
