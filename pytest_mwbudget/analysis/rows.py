"""From estimates to the rows of the table: which method tells a layer's time, and how the layer spends it. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..model.estimate import Estimate, Microseconds
from ..model.results import Method, Occupation, Quantity
from ..model.stack import EntryIndex, Layer
from .estimates import Estimates

# An interval this narrow, beside what the method may be wrong by, needs no more requests for its own sake.
PRECISE_US, PRECISE_SHARE = 0.15, 0.03
# The event loop's own way from one step of a task to the next is no wait: what is less than this is not told from it.
WAIT_SHARE, WAIT_US = 0.25, 5.0
# Holding the event loop without working, for this long and this share of the time, is blocking.
BLOCKING_SHARE, BLOCKING_US = 0.25, 50.0


@dataclass(frozen=True, slots=True)
class Together:
    """What is measured with a layer, because no probe can stand between: `why` names it.

    `bounds` are the sums of the budgets of all of them, where all have one.
    """

    why: str
    bounds: Mapping[Quantity, float]


@dataclass(frozen=True, slots=True)
class Bounded:
    """A layer that the request entered, with the budgets that apply to it; `entry` is its entry of the stack."""

    entry: EntryIndex | None
    layer: Layer
    bounds: Mapping[Quantity, float]
    together: Together | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """What a look says of a layer; `us` is None where it was not timed by itself.

    `method_us` is the part of the half width of `us` that no more requests would narrow. `occupied` is None where it is
    not known how the layer spends its time. `slowdown` is how much slower than at its best the machine ran meanwhile.
    """

    bounded: Bounded
    us: Estimate | None = None
    method: Method | None = None
    method_us: Microseconds = 0.0
    occupation: Occupation | None = None
    slowdown: float = 1.0

    @property
    def entry(self) -> EntryIndex | None:
        """The layer's entry of the stack."""
        return self.bounded.entry

    @property
    def layer(self) -> Layer:
        """The layer itself."""
        return self.bounded.layer

    @property
    def precise(self) -> bool:
        """Whether its interval is as narrow as it will be shown."""
        return self.us is None or is_narrow(self.us, self.us.half_width - self.method_us)

    def estimate_of(self, quantity: Quantity) -> Estimate | None:
        """Return the estimate that a budget of time is held against."""
        if quantity == "us":
            return self.us
        return self.occupation.busy if self.occupation else None


def rows_of(layers: Sequence[Bounded], found: Estimates) -> tuple[Row, ...]:
    """Return what the estimates say of each layer."""
    return tuple(_row(bounded, found) for bounded in layers)


def told_by(row: Row, rows: Sequence[Row]) -> Row | None:
    """Return the row that tells of this one: itself, or the neighbour that it is merged with, if that is a layer."""
    if row.layer.merged_with is None:
        return row
    return next((other for other in rows if other.layer.name == row.layer.merged_with), None)


def by_split(entry: EntryIndex, quantity: Quantity, found: Estimates) -> Estimate:
    """Return what the split says of a quantity of time, whichever method the row is by."""
    return found.split[entry] if quantity == "us" else _busy(entry, found)


def is_narrow(us: Estimate, half_width_us: Microseconds) -> bool:
    """Say whether an interval of this half width is as narrow as it will be shown."""
    return half_width_us <= max(PRECISE_US, PRECISE_SHARE * us.estimate)


def _row(bounded: Bounded, found: Estimates) -> Row:
    entry = bounded.entry
    if entry is None or entry not in found.split:
        return Row(bounded)
    method_us = found.method_us.get(entry, 0.0)
    if entry in found.bypass and math.isfinite(found.bypass[entry].half_width):
        us, slowdown = found.bypass[entry], found.slowdowns.bypass.get(entry, 1.0)
        return Row(bounded, us, "bypass", method_us, _occupation(entry, us, "bypass", found), slowdown)
    shared_us = found.shared_us.get(entry, 0.0)
    us, slowdown = found.split[entry].widened(shared_us), found.slowdowns.split.get(entry, 1.0)
    return Row(bounded, us, "split", method_us + shared_us, _occupation(entry, us, "split", found), slowdown)


def _waits(entry: EntryIndex, found: Estimates) -> bool:
    """Whether the layer stands idle while it is suspended."""
    suspended_us = found.suspended[entry]
    return suspended_us - found.suspended_cpu[entry].estimate > max(WAIT_US, WAIT_SHARE * suspended_us)


def _busy(entry: EntryIndex, found: Estimates) -> Estimate:
    """By the split, how long it holds the event loop: what the loop works for it while it is suspended included."""
    return found.holding[entry] + found.suspended_cpu[entry] if _waits(entry, found) else found.split[entry]


def _occupation(entry: EntryIndex, us: Estimate, method: Method, found: Estimates) -> Occupation | None:
    """How the layer spends its time; None where that time is not known well enough."""
    if not math.isfinite(us.half_width):
        return None
    split, waits = _busy(entry, found), _waits(entry, found)
    busy = split.widened(found.shared_us.get(entry, 0.0)) if method == "split" else us
    if waits and method == "bypass":
        suspended_us = found.suspended[entry]
        busy = us - (Estimate(suspended_us, suspended_us, suspended_us) - found.suspended_cpu[entry])
    if not math.isfinite(busy.half_width):
        return None
    wait_us = max(0.0, us.estimate - busy.estimate) if waits else 0.0
    if found.cpu is None or not math.isfinite(found.cpu[entry].half_width):
        return Occupation(busy, wait_us, None)
    # Busy without working; where the intervals do not tell it from nothing, there is none.
    idle_us = split - found.cpu[entry]
    cpu_us = busy.estimate - idle_us.estimate if idle_us.low > 0 else busy.estimate
    blocking = idle_us.low > max(BLOCKING_US, BLOCKING_SHARE * busy.estimate)
    return Occupation(busy, wait_us, max(0.0, cpu_us), blocking)
