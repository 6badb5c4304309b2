"""Make the rows of the table from estimates: which method tells a layer's time, and how the layer spends it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..model.estimate import Estimate, Microseconds
from ..model.messages import Messages
from ..model.quantities import TRAITS, Quantity
from ..model.results import Judged, Occupation, ResultRow
from ..model.stack import EntryIndex, Layer
from .estimates import Estimates

# An interval needs no more requests if its half width, less the known error of the method, is at most this.
PRECISE_US, PRECISE_SHARE = 0.15, 0.03
# A shorter suspension than this cannot be told from the event loop's own work between two steps of a task.
WAIT_SHARE, WAIT_US = 0.25, 5.0
# Holding the event loop without working, for this long and this share of the time, is blocking.
BLOCKING_SHARE, BLOCKING_US = 0.25, 50.0


@dataclass(frozen=True, slots=True)
class Together:
    """Layers or the endpoint measured with a layer, because no probe can stand between. `why` names them.

    `bounds` are the sums of the budgets of all of them, of quantities for which each has a budget.
    """

    why: str
    bounds: Mapping[Quantity, float]


@dataclass(frozen=True, slots=True)
class Bounded:
    """A layer that the request entered, with the budgets that apply to it; `entry` is its entry of the stack.

    `by_name` are the quantities whose budget names the layer.
    """

    entry: EntryIndex | None
    layer: Layer
    bounds: Mapping[Quantity, float]
    together: Together | None = None
    by_name: frozenset[Quantity] = frozenset()


@dataclass(frozen=True, slots=True)
class Row:
    """The time of a layer after a look; `us` is None for a layer that was not timed by itself.

    `method_us` is the part of the half width of `us` that more requests do not narrow. `occupation` is None if it is
    unknown. `slowdown` is how many times slower than at its best the machine ran during these requests, and `waited_us`
    how much longer than at its best the row may have waited for threads. `messages` is None where few messages pass.
    `grows` says that the time grows with the requests served.
    """

    bounded: Bounded
    us: Estimate | None = None
    method_us: Microseconds = 0.0
    occupation: Occupation | None = None
    slowdown: float = 1.0
    waited_us: Microseconds = 0.0
    messages: Messages | None = None
    grows: bool = False

    @property
    def entry(self) -> EntryIndex | None:
        """The layer's entry of the stack."""
        return self.bounded.entry

    @property
    def layer(self) -> Layer:
        """The layer itself."""
        return self.bounded.layer

    def estimate_of(self, quantity: Quantity) -> Estimate | None:
        """Return the typical time that a budget of a quantity is about; None for a percentile."""
        source = TRAITS[quantity].source
        if source == "split":
            return self.us
        if source == "messages":
            return self.messages.us_per_message if self.messages else None
        return self.occupation.busy if self.occupation and source == "occupation" else None

    def report(self, judged: Mapping[Quantity, Judged]) -> ResultRow:
        """Return what the user sees of this row, without counts. A time without an interval is not shown."""
        if self.us is None or not self.us.bounded:
            return ResultRow(self.layer, judged=judged)
        messages = self.messages.bounded if self.messages else None
        return ResultRow(self.layer, self.us, "split", self.occupation, judged=judged, messages=messages)


def rows_of(layers: Sequence[Bounded], estimates: Estimates) -> tuple[Row, ...]:
    """Return the row of each layer.

    If many messages pass some layers, general budgets of messages do not apply to layers that few messages pass, for
    example outside a buffer. Budgets that name such a layer do.
    """
    every = [_row(bounded, estimates) for bounded in layers]
    streamed = any(row.messages for row in every)
    return tuple(_without_messages(row) if streamed and row.messages is None else row for row in every)


def _without_messages(row: Row) -> Row:
    bounds = {
        quantity: most
        for quantity, most in row.bounded.bounds.items()
        if TRAITS[quantity].source != "messages" or quantity in row.bounded.by_name
    }
    return replace(row, bounded=replace(row.bounded, bounds=bounds))


def row_with_time(row: Row, rows: Sequence[Row]) -> Row | None:
    """Return the row with this layer's time: its own, or that of the layer it is merged with; None for the endpoint."""
    if row.layer.merged_with is None:
        return row
    return next((other for other in rows if other.layer.name == row.layer.merged_with), None)


def is_narrow(us: Estimate, method_us: Microseconds = 0.0) -> bool:
    """Return whether an interval needs no more requests; they would not narrow `method_us` of it."""
    return us.half_width - method_us <= max(PRECISE_US, PRECISE_SHARE * us.estimate)


def _row(bounded: Bounded, estimates: Estimates) -> Row:
    entry = bounded.entry
    if entry is None or entry not in estimates.split:
        return Row(bounded)
    shared_us = estimates.shared_us.get(entry, 0.0)
    us = estimates.split[entry].widened(shared_us)
    return Row(
        bounded,
        us,
        estimates.method_us[entry] + shared_us,
        _occupation(entry, us, estimates),
        estimates.slowdowns.split[entry],
        estimates.waits.split.get(entry, 0.0),
        estimates.messages.get(entry),
        entry in estimates.growing,
    )


def _waits(entry: EntryIndex, estimates: Estimates) -> bool:
    """Return whether the layer is idle while it is suspended."""
    suspended_us = estimates.suspended[entry]
    return suspended_us - estimates.suspended_cpu[entry].estimate > max(WAIT_US, WAIT_SHARE * suspended_us)


def _busy(entry: EntryIndex, estimates: Estimates) -> Estimate:
    """Return the busy time by the split, which includes the event loop's work while the layer is suspended."""
    return (
        estimates.holding[entry] + estimates.suspended_cpu[entry]
        if _waits(entry, estimates)
        else estimates.split[entry]
    )


def _occupation(entry: EntryIndex, us: Estimate, estimates: Estimates) -> Occupation | None:
    """Return how the layer spends its time `us`; None if an interval is missing, or layers ran in threads."""
    if not us.bounded or estimates.in_threads:
        return None
    split, waits = _busy(entry, estimates), _waits(entry, estimates)
    busy = split.widened(estimates.shared_us.get(entry, 0.0))
    if not busy.bounded:
        return None
    wait_us = max(0.0, us.estimate - busy.estimate) if waits else 0.0
    if estimates.cpu is None or not estimates.cpu[entry].bounded:
        return Occupation(busy, wait_us, None)
    idle_us = split - estimates.cpu[entry]
    # An idle time that cannot be told from zero counts as zero.
    cpu_us = busy.estimate - idle_us.estimate if idle_us.low > 0 else busy.estimate
    blocking = idle_us.low > max(BLOCKING_US, BLOCKING_SHARE * busy.estimate)
    return Occupation(busy, wait_us, max(0.0, cpu_us), blocking)
