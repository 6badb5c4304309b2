"""Estimate what each row takes per message, and until the first part of a body leaves it. Pure; no clock.

What the probes cost is told as for a whole request: by null layers, here per message. Decision 0033 has the details.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median_low

from ..model.estimate import ZERO, Estimate, Microseconds, independent_sum
from ..model.messages import FEWEST_MESSAGES, Messages, PerMessage
from ..model.stack import NULL, Boundary, EntryIndex, Owner, owner_of
from .calibration import US_PER_NS, handovers, interval
from .estimates import Estimates, Legs, detection_limit_of_nulls, method_us, shared_share
from .event_log import Spent
from .message_log import BEGINNING, MessageTimes, Way
from .samples import Null, Samples, Split


def with_messages(estimates: Estimates, samples: Samples, entries: Sequence[Boundary]) -> Estimates:
    """Return the estimates with those by message, if the samples have any."""
    if not samples.by_message:
        return estimates
    reading = _Reading(estimates, samples, entries)
    ways = {way: reading.per_message(way) for way in ("sent", "received")}
    first = reading.first_parts(ways["sent"])
    both = {
        index: Messages(ways["sent"].us.get(index), ways["received"].us.get(index), first.get(index))
        for index in estimates.split
    }
    return replace(
        estimates,
        messages={index: messages for index, messages in both.items() if messages.us_per_message is not None},
        message_limit_us=max(
            (one_way.limit_us for one_way in ways.values() if one_way.us), default=estimates.message_limit_us
        ),
    )


@dataclass(frozen=True, slots=True)
class _OneWay:
    """The messages of one way: what they take by entry, the detection limit, and the cost of a message to a probe."""

    us: Mapping[EntryIndex, PerMessage]
    limit_us: Microseconds
    probe_us: Microseconds


@dataclass(frozen=True, slots=True)
class _Reading:
    """Requests by message, read with the estimates of the whole request."""

    estimates: Estimates
    samples: Samples
    entries: Sequence[Boundary]

    @property
    def _rows(self) -> list[EntryIndex]:
        return list(self.estimates.split)

    def per_message(self, way: Way) -> _OneWay:
        """Estimate what each message takes, in the rows that at least FEWEST_MESSAGES pass; without ends if unknown."""
        inner = self._typical(lambda request: request.flow(way).inner)
        outer = self._typical(lambda request: request.flow(way).outer)
        counts = {i: max(inner[owner_of(i)], outer[owner_of(i)]) for i in self.samples.probed}
        many = {index: count for index, count in counts.items() if count >= FEWEST_MESSAGES}
        if not many:
            return _OneWay({}, 0.0, 0.0)
        # Only `send` is wrapped by null layers.
        sent = dict.fromkeys(many, 1) if way == "sent" else {}
        legs = self._legs(lambda request: request.flow(way).spent, lambda null: null.index in many, sent)
        passed = {index: outer[owner_of(index)] for index in self.samples.probed}
        handed = handovers(self.entries, self.samples.probed, passed, received=way == "received")
        if way == "received":
            legs.probes.handing = self.estimates.handing
        us = {}
        for index in self._rows:
            if index not in many:
                continue
            owner, count = owner_of(index), many[index]
            legs.handovers = {owner: handed[owner] / count}
            inside = dict.fromkeys(legs.inside[owner], inner[owner] / count)
            row = legs.row([owner], legs.probes.halves({index: outer[owner] / count, **inside}), self.estimates.step)
            # Null layers do not show what handing over a message costs that is received.
            unsure_us = 0.0 if way == "sent" else self.estimates.handing.estimate
            row = row.widened(unsure_us + self._shared_us(index, row))
            us[index] = PerMessage(count, row)
        limit_us = detection_limit_of_nulls(legs.probes.readings, self.estimates.alpha) + method_us(0.0, 0.0)
        return _OneWay(us, limit_us, legs.probes.typical_us)

    def first_parts(self, sent: _OneWay) -> dict[EntryIndex, Estimate]:
        """Estimate the time that each row adds before the first part of the body leaves it."""
        if not sent.us:
            return {}
        outer = self._typical(lambda request: request.sent.outer)
        through = {index for index in self.samples.probed if outer[owner_of(index)] >= BEGINNING}
        legs = self._legs(
            lambda request: request.first.spent, lambda null: null.index in through, dict.fromkeys(through, BEGINNING)
        )
        added = {}
        for index in self._rows:
            if index not in through or index not in sent.us:
                continue
            owner = owner_of(index)
            probes = legs.probes.halves({index: 1.0, **dict.fromkeys(legs.inside[owner], 1.0)})
            own = legs.row([owner], probes, self.estimates.step)
            own = own.widened(self._shared_us(index, own))
            total = independent_sum(own, self._held_back(legs, owner, sent.probe_us))
            if total.bounded:
                added[index] = total
        return added

    def _held_back(self, legs: Legs, owner: Owner, probe_us: Microseconds) -> Estimate:
        """Estimate how long the others work or wait while a row keeps the first part; without a buffer zero."""
        firsts = [request.first for request in legs.split.messages]
        if not any(first.arrived[owner] for first in firsts):
            return ZERO
        # A message crosses the probe of a boundary twice, also those probes whose time is in the row itself.
        event_ns = probe_us / US_PER_NS / 2
        held_ns = [first.held_ns[owner] - event_ns * first.crossings[owner] for first in firsts]
        return interval(held_ns, self.estimates.alpha)

    def _shared_us(self, index: EntryIndex, row: Estimate) -> Microseconds:
        """Return how much of a task-spawning layer may be task switches of its neighbours."""
        tasks = self.estimates.shared_us
        return shared_share(len(tasks)) * abs(row.estimate) if index in tasks else 0.0

    def _typical(self, of: Callable[[MessageTimes], tuple[int, ...]]) -> list[int]:
        """Return the typical numbers by owner."""
        every = [of(request) for request in self.samples.split.messages]
        return [median_low(column) for column in zip(*every, strict=True)]

    def _legs(
        self, spent: Callable[[MessageTimes], Spent], kept: Callable[[Null], bool], sent: Mapping[EntryIndex, int]
    ) -> Legs:
        """Return the requests with the time of their messages instead of the time of the whole request."""
        return Legs(
            _of(self.samples.split, spent, kept),
            self.samples.quick_ns(),
            self.samples.quick_hop_ns(),
            self.entries,
            self.samples.probed,
            sent,
            self.estimates.alpha,
            0.0,
        )


def _of(split: Split, spent: Callable[[MessageTimes], Spent], kept: Callable[[Null], bool]) -> Split:
    """Return the requests of a split with other times, without those whose null layer the messages do not pass.

    The time of a divided null layer is not that of its messages only.
    """
    times = [spent(request) for request in split.messages]
    null_ns = [float(used.ns[NULL]) for used in times]
    leaning_ns = [0.0] * len(times)
    requests = Split(split.reference, split.null, null_ns, times, split.hops, split.messages, null_ns, leaning_ns)
    return requests.only([kept(null) and not null.blanks.dividing for null in split.null])
