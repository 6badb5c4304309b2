"""The counts of all rows of a stack, from those of single requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median_low

from ..analysis.slowdown import Hops
from ..analysis.ways import Ways
from ..asgi.stack import Stack
from ..errors import tagged
from ..model.messages import FEWEST_MESSAGES
from ..model.results import FRAMES, Counts, Frame
from ..model.stack import (
    HARNESS,
    OUTERMOST,
    TOTAL,
    EntryIndex,
    Owner,
    RowIndex,
    first_part,
    nearest_probed,
    owner_of,
    parts_of,
)
from .charged_requests import RequestCharges
from .executed import Executed
from .rows import row_counts, with_own_types


@dataclass(frozen=True, slots=True)
class Counted:
    """The counts of rows and of the rest of the stack, the messages that each entry sends, notes on the counting.

    `requests` is the number of counted requests, and `why_not` the reason for each quantity that no row has. `received`
    are the messages that each entry receives, without entries that receive few. `parts` are the rows of the endpoint's
    parts, empty if it was not opened. `ways` are those of all counted requests.
    """

    layers: Mapping[RowIndex, Counts]
    frames: Mapping[Frame, Counts]
    requests: int
    why_not: Mapping[str, str]
    sent: Mapping[EntryIndex, int]
    notes: Sequence[str]
    received: Mapping[EntryIndex, int]
    parts: Mapping[RowIndex, Counts] = field(default_factory=dict)
    ways: Ways = field(default_factory=lambda: Ways({}))

    @property
    def suspending(self) -> bool:
        """Whether a task is suspended in a request."""
        return any(counts.suspensions.count for counts in (*self._inside, self.frames["outside"]))

    @property
    def streamed(self) -> bool:
        """Whether enough messages for a cost per message pass a layer."""
        return any(max(counts.sent.count, counts.received.count) >= FEWEST_MESSAGES for counts in self._inside)

    @property
    def _inside(self) -> list[Counts]:
        return [*self.layers.values(), *(counts for frame, counts in self.frames.items() if frame == "endpoint")]


def counted(
    stack: Stack,
    charges: list[RequestCharges],
    why_not: Mapping[str, str],
    too_low: Mapping[Owner, str],
    executed: Executed,
    notes: Sequence[str],
    *,
    opened: bool = False,
) -> Counted:
    """Return the typical counts of a request of the traced way, `opened` also those of the parts of the endpoint.

    `why_not` says by quantity why something cannot be counted, `too_low` by owner why it was charged too little.
    """
    ways = stack.ways()
    charges = [request for request in charges if ways.add(request.entered)] or charges

    def row(owners: Iterable[Owner]) -> Counts:
        return row_counts(charges, owners, why_not, too_low, executed)

    def parts(entry: EntryIndex) -> Iterator[Owner]:
        return map(owner_of, parts_of(stack.entries, entry))

    rows: dict[RowIndex | Frame, Counts] = {
        layer.index: row(parts(entry))
        for entry, layer in stack.layers
        if entry is not None and entry in stack.probeable
    }
    rows["outside"] = row([HARNESS, owner_of(OUTERMOST)] if stack.outside else [HARNESS])
    if stack.endpoint is not None:
        rows["endpoint"] = row({*parts(stack.endpoint), *map(owner_of, stack.part_entries)})
    outermost = row([owner_of(OUTERMOST)])
    total = row(map(Owner, range(len(stack.entries) + 1)))
    total = replace(total, received=outermost.received, sent=outermost.sent)
    notes = [*notes, *_of_rows(rows, stack)]
    rows = {**with_own_types(rows), "total": total}
    layers = {index: counts for index, counts in rows.items() if isinstance(index, int)}
    frames = {frame: counts for frame, counts in rows.items() if isinstance(frame, str)}
    owners = {entry: owner_of(entry) for entry in stack.probeable}
    sent = {entry: median_low([request.sent[owner] for request in charges]) for entry, owner in owners.items()}
    received = {entry: median_low([request.received[owner] for request in charges]) for entry, owner in owners.items()}
    received = {entry: count for entry, count in received.items() if count >= FEWEST_MESSAGES}
    inside = {layer.index: row(parts(entry)) for entry, layer in stack.parts} if opened else {}
    return Counted(layers, frames, len(charges), why_not, sent, notes, received, with_own_types(inside), ways)


def counted_inside(stack: Stack, counts: Counted) -> Counted:
    """Return the counts of the endpoint's parts, as those of the layers of `Stack.inside`.

    What the endpoint sends is sent by the part that sends the response, past the parts round it.
    """
    assert stack.endpoint is not None
    sent = counts.sent.get(stack.endpoint, 0)
    through = (index for index in stack.part_entries if stack.entries[index].same_send)
    return replace(
        counts, layers=counts.parts, sent={stack.endpoint: sent, **dict.fromkeys(through, sent)}, received={}
    )


def _of_rows(all_counts: Mapping[RowIndex | Frame, Counts], stack: Stack) -> Iterator[str]:
    """Say what could not be counted for single rows."""
    names = {layer.index: layer.name for _, layer in stack.layers}
    rows: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for index, counts in all_counts.items():
        # Common beside threads and timers: budgets, HTML and JSON say it.
        steady = {quantity: why for quantity, why in counts.why.items() if quantity not in counts.ranges}
        for why in dict.fromkeys(steady.values()):
            quantities = tuple(quantity for quantity in steady if steady[quantity] == why)
            rows.setdefault((why, quantities), []).append(FRAMES[index] if isinstance(index, str) else names[index])
    for (why, quantities), named in rows.items():
        of_rows = "all rows" if len(named) == len(all_counts) else " and ".join([*named, TOTAL])
        missing = f"{', '.join(quantities)} of {of_rows} are not counted: {why}."
        yield tagged(missing, "uncountable")


def hops(stack: Stack, counts: Counted) -> Hops:
    """Return how often the request is handed to another thread, and back.

    That is as often as an entry hands a function to a thread, or calls an entry in another thread.
    """
    crossings: Counter[EntryIndex | None] = Counter()
    for entry in stack.entries:
        for parent in entry.parents:
            if entry.elsewhere != (parent is not None and stack.entries[parent].elsewhere):
                outer = nearest_probed(stack.entries, parent, stack.probeable)
                crossings[None if outer is None else first_part(stack.entries, outer)] += 1
    rows = {
        entry: counts.layers[layer.index].threads.count
        for entry, layer in stack.layers
        if layer.index in counts.layers and entry is not None
    }
    if stack.endpoint is not None and "endpoint" in counts.frames:
        rows[stack.endpoint] = counts.frames["endpoint"].threads.count
    rows = {entry: max(rows.get(entry, 0), crossings[entry]) for entry in stack.probeable}
    around = crossings[None] + (crossings[OUTERMOST] if stack.outside else 0)
    outside = max(counts.frames["outside"].threads.count if "outside" in counts.frames else 0, around)
    whole = max(counts.frames["total"].threads.count, sum(crossings.values()))
    return Hops({entry: count for entry, count in rows.items() if count}, whole, outside)
