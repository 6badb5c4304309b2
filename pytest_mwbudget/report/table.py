"""The rows of a finished result, and the columns of figures that a row can have. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace

from ..model.changes import Change
from ..model.estimate import UNINFORMATIVE_TIMES, UNINFORMATIVE_US, WIDE_SHARE, WIDE_US, Estimate
from ..model.paths import at
from ..model.quantities import TRAITS, Quantity, Traits, from_sources
from ..model.reasons import reasons
from ..model.results import Count, RecordedLimit, Result, ResultRow, Verdict, worst
from ..model.stack import Origin
from .text import amount, formatted

US, SAVES = TRAITS["us"], TRAITS["saves_us"]
SPENT, MESSAGES = from_sources("occupation"), from_sources("messages")
TAIL_COLUMNS, TREND_COLUMNS = from_sources("tails"), from_sources("trend")
COUNTS = from_sources("counted", "executed", "boundary")
# What is created: allocations only where objects cannot be counted.
CREATED: tuple[Quantity, ...] = ("objects", "allocations")
# Figures of the request alone.
ALONE = tuple(traits for traits in TRAITS.values() if traits.source != "load")


@dataclass(frozen=True, slots=True)
class Figure:
    """A number per request. `low` and `high` are its interval or range, None if unknown.

    `judged` means that it has a budget or a recorded limit.
    """

    column: Traits
    value: float
    low: float | None = None
    high: float | None = None
    kinds: Mapping[str, int] = field(default_factory=dict)
    judged: bool = False

    @property
    def varies(self) -> bool:
        """Whether the interval or range has more than one value."""
        return self.low != self.high

    @property
    def rough(self) -> bool:
        """Whether the interval of a time is too wide to rely on the number; one that is unknown is."""
        if self.column.counted:
            return False
        if self.low is None or self.high is None:
            return True
        half_us = max(self.high - self.value, self.value - self.low)
        return half_us > max(WIDE_US, WIDE_SHARE * abs(self.value))

    @property
    def uninformative(self) -> bool:
        """Whether the interval of a time is too wide to show. One that a budget or a limit is held against is shown."""
        if self.column.counted or self.judged or self.low is None or self.high is None:
            return False
        farthest = max(self.high, -self.low)
        return self.low <= 0 and farthest > max(UNINFORMATIVE_US, UNINFORMATIVE_TIMES * abs(self.value))

    @property
    def text(self) -> str:
        """The formatted number; `~` marks a count that varies, `?` stands for a time that is not known."""
        if self.uninformative:
            return "?"
        return f"{'~' if self.varies and self.column.counted else ''}{formatted(self.column.name, self.value)}"

    @property
    def span(self) -> str:
        """The interval or range as `low … high`."""
        if self.uninformative:
            return "not known"
        return " … ".join("?" if end is None else formatted(self.column.name, end) for end in (self.low, self.high))

    @property
    def with_half_width(self) -> str:
        """The number and its distance from the farther end of its interval, for a narrow column."""
        if self.low is None or self.high is None or self.uninformative:
            return f"{self.text} ± ?"
        return f"{self.text} ± {formatted(self.column.name, max(self.high - self.value, self.value - self.low))}"


@dataclass(frozen=True, slots=True)
class Row(ResultRow):
    """A row with what reports show of it.

    `figures` has the known figures by the key of their column. `why` has the reason for each figure that is null in the
    JSON. `changes` has what figures changed by, and `limits` the recorded limits, by quantity.
    """

    figures: Mapping[str, Figure] = field(default_factory=dict)
    why: Mapping[str, str] = field(default_factory=dict)
    changes: Mapping[str, Change] = field(default_factory=dict)
    limits: Mapping[Quantity, RecordedLimit] = field(default_factory=dict)

    @property
    def verdict(self) -> Verdict | None:
        """The worst verdict on the budgets and the recorded limits of the row, None if it has none."""
        return worst(self.verdicts.values())

    @property
    def verdicts(self) -> dict[Quantity, Verdict]:
        """The worst verdict on each quantity that has a budget or a recorded limit."""
        verdicts: dict[Quantity, Verdict] = {}
        for quantity in {**self.judged, **self.limits}:
            both = (bounds[quantity].verdict for bounds in (self.judged, self.limits) if quantity in bounds)
            verdict = worst(both)
            assert verdict is not None
            verdicts[quantity] = verdict
        return verdicts

    @property
    def own_types(self) -> tuple[str, ...]:
        """The types of objects that no other row created."""
        return self.counts.own_types if self.counts else ()

    @property
    def qualname(self) -> str:
        """`module.QualName` of a layer."""
        return self.layer.qualname

    @property
    def origin(self) -> Origin | None:
        """Whose code a layer is; None if that is unknown, or the row is not a layer."""
        return self.layer.origin

    @property
    def whose(self) -> str:
        """Whose code a layer is in a few words: `own, shop/app.py:12` or `from starlette`; empty if unknown."""
        if self.origin is None:
            return ""
        if not self.origin.own:
            return f"from {self.origin.distribution}"
        return f"own, {self.origin.place}" if self.origin.place else "own"

    @property
    def entered(self) -> bool:
        """Whether the request reached the row."""
        return self.layer.entered

    @property
    def merged_with(self) -> str | None:
        """The layer whose figures include those of this row, None if the row has its own."""
        return self.layer.merged_with

    @property
    def exceeded(self) -> list[Quantity]:
        """The quantities over their budgets."""
        return [key for key, judged in self.judged.items() if judged.verdict == "fail" and self.figure_of(key)]

    def figure_of(self, quantity: Quantity) -> Figure | None:
        """Return the figure that a budget is held against: where no number is typical of a count, the lowest."""
        if quantity in self.figures or self.counts is None or quantity not in self.counts.ranges:
            return self.figures.get(quantity)
        low, high = self.counts.ranges[quantity]
        return Figure(TRAITS[quantity], low, low, high)

    def amount_of(self, quantity: Quantity) -> str:
        """Format this figure, or the range of a count where no number is typical."""
        figure = self.figure_of(quantity)
        assert figure is not None
        if quantity in self.figures or figure.high is None:
            return amount(quantity, figure.value)
        return f"{figure.value:.0f} to {amount(quantity, figure.high)}"

    @property
    def over_limits(self) -> list[RecordedLimit]:
        """The recorded limits that the row is over."""
        return [limit for limit in self.limits.values() if limit.verdict == "fail" and limit.value is not None]

    @property
    def badness(self) -> float:
        """The largest ratio of a figure to the budget or the recorded limit that it is over; 0 if there is none."""
        over = [self.times_its_budget(quantity) for quantity in self.exceeded]
        over += [(limit.value or 0.0) / max(limit.limit, 0.5) for limit in self.over_limits]
        return max(over, default=0.0)

    def times_its_budget(self, quantity: Quantity) -> float:
        """Return the ratio of a quantity to its budget. A budget of 0 counts as 0.5: one object has the ratio 2."""
        figure = self.figure_of(quantity)
        return (figure.value if figure else 0.0) / max(self.judged[quantity].bound, 0.5)


def created(rows: Iterable[Row]) -> Traits:
    """Return the count that shows what these rows create."""
    counted = {quantity for row in rows for quantity in row.figures}
    return TRAITS[next((quantity for quantity in CREATED if quantity in counted), CREATED[0])]


def rows(result: Result) -> Iterator[Row]:
    """Yield the rows of a result with their limits and changes, outermost first; the last one is `(total)`.

    Those of the parts of the endpoint, which add up to `(endpoint)`, follow it.
    """
    recorded = result.recorded.limits if result.recorded else ()
    for row in result.rows(parts=True):
        limits: dict[Quantity, RecordedLimit] = (
            {} if row.is_part else {limit.quantity: limit for limit in recorded if limit.row == row.name}
        )
        held = {*row.judged, *limits}
        figures = {
            figure.column.name: replace(figure, judged=True) if figure.column.name in held else figure
            for figure in _figures(row)
            if math.isfinite(figure.value)
        }
        yield Row(
            **{attribute.name: getattr(row, attribute.name) for attribute in fields(ResultRow)},
            figures=figures,
            why={} if row.is_frame else reasons(row, result),
            changes={change.quantity: change for change in result.changes if change.row == row.key},
            limits=limits,
        )


def _figures(row: ResultRow) -> Iterator[Figure]:
    for column in ALONE:
        known = at(row, column.path)
        if isinstance(known, Estimate):
            low, high = (end if math.isfinite(end) else None for end in (known.low, known.high))
            if known.bounded or column != US:
                yield Figure(column, known.estimate, low, high)
        elif isinstance(known, Count):
            yield Figure(column, known.count, known.low, known.high, known.kinds)
        elif known is not None:
            yield Figure(column, known)
