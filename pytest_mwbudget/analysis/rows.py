"""Make the rows of the table from estimates: a layer's time, and how the layer spends it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from ..model.estimate import Estimate, Microseconds
from ..model.quantities import TRAITS
from ..model.results import Occupation, ResultRow
from ..model.stack import EntryIndex
from .budgeted import Bounded
from .estimates import Estimates

# An interval needs no more requests if its half width, less the known error of the method, is at most this.
PRECISE_US, PRECISE_SHARE = 0.15, 0.03
# A shorter suspension than this cannot be told from the event loop's own work between two steps of a task.
WAIT_SHARE, WAIT_US = 0.25, 5.0
# Holding the event loop without working, for this long and this share of the time, is blocking.
BLOCKING_SHARE, BLOCKING_US = 0.25, 50.0


def rows_of(rows: Sequence[Bounded], estimates: Estimates) -> Iterator[tuple[Bounded, ResultRow]]:
    """Yield each row with the budgets that apply to it.

    If many messages pass some layers, general budgets of messages do not apply to layers that few messages pass, for
    example outside a buffer. Budgets that name such a layer do.
    """
    every = [(bounded, _row(bounded, estimates)) for bounded in rows]
    streamed = any(row.messages for _, row in every)
    for bounded, row in every:
        yield (_without_messages(bounded) if streamed and row.messages is None else bounded), row


def _without_messages(bounded: Bounded) -> Bounded:
    bounds = {
        quantity: most
        for quantity, most in bounded.bounds.items()
        if TRAITS[quantity].source != "messages" or quantity in bounded.by_name
    }
    return replace(bounded, bounds=bounds)


def row_with_time(row: ResultRow, rows: Iterable[ResultRow]) -> ResultRow | None:
    """Return the row with this layer's time: its own, or that of the layer it is merged with; None for the endpoint."""
    if row.layer.merged_with is None:
        return row
    return next((other for other in rows if other.name == row.layer.merged_with and not other.is_frame), None)


def is_narrow(us: Estimate, method_us: Microseconds = 0.0) -> bool:
    """Return whether an interval needs no more requests; they would not narrow `method_us` of it."""
    return us.half_width - method_us <= max(PRECISE_US, PRECISE_SHARE * us.estimate)


def shown(row: ResultRow) -> ResultRow:
    """Return a layer as users see it: without a time that has no interval."""
    if row.us is None or not row.us.bounded:
        return ResultRow(row.layer, judged=row.judged)
    return replace(row, messages=row.messages.bounded if row.messages else None)


def _row(bounded: Bounded, estimates: Estimates) -> ResultRow:
    """Return a row with its time; without one where it was not timed by itself."""
    entry = bounded.entry
    if bounded.frame is not None:
        key = bounded.frame if entry is None else entry
        row = ResultRow.of_frame(bounded.frame, estimates.us_of(key))
        return replace(row, waited_us=estimates.waits.get(key, 0.0))
    if entry is None or entry not in estimates.split:
        return ResultRow(bounded.layer)
    us = estimates.split[entry].widened(estimates.shared_us.get(entry, 0.0))
    occupation = _occupation(entry, us, estimates)
    waited_us = estimates.waits.get(entry, 0.0)
    return ResultRow(bounded.layer, us, occupation, messages=estimates.messages.get(entry), waited_us=waited_us)


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
    cpu_us, blocking = None, False
    if estimates.cpu is not None and estimates.cpu[entry].bounded:
        idle_us = split - estimates.cpu[entry]
        # An idle time that cannot be told from zero counts as zero.
        cpu_us = max(0.0, busy.estimate - idle_us.estimate if idle_us.low > 0 else busy.estimate)
        blocking = idle_us.low > max(BLOCKING_US, BLOCKING_SHARE * busy.estimate)
    return Occupation(busy, wait_us, cpu_us, blocking)
