"""What the probes cost, from what the null layers read. Pure; no clock.

A null layer is two probes with blank layers between, which do nothing. More blank layers tell what each of them
takes; what is left is what the inside of one probe and the outside of another cost. A message that goes through there
is handed from probe to probe; where it comes from a function, or goes to one, that costs a little more, which the null
layers tell whose blank layers wrap `send`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from statistics import median

from ..model.estimate import ZERO, Estimate, Microseconds, independent_sum
from ..model.stack import HARNESS, Boundary, EntryIndex, Owner, callers, owner_of, probed_parent
from .intervals import batched_interval
from .samples import BlankLayers, Null, Split

# A null layer with fewer readings of its own has no interval of its own.
OWN_NULLS = 32
# A null layer with fewer readings of its own has no typical value of its own either.
FEWEST_NULLS = 4

US_PER_NS = 1e-3


class ProbeCosts:
    """What probes cost in the requests of `taken`, of which the ones in `steady` ran while the machine was steady.

    Both by the task layers that requests went past. `handing` is what it costs to hand a message from a function to a
    probe or from a probe to a function, each, beyond handing it from one probe to another; `readings` has the
    nanoseconds of the null layers by entry, without blank layers and at the typical tempo.
    """

    def __init__(
        self,
        taken: Sequence[Split],
        steady: Sequence[Split],
        entries: Sequence[Boundary],
        probed: Sequence[EntryIndex],
        sent: Mapping[EntryIndex, int],
        alpha: float,
    ) -> None:
        levels = [_Level(one, quiet, entries, alpha) for one, quiet in zip(taken, steady, strict=True) if quiet.null]
        self.readings = _readings(levels, probed)
        self._nulls = _null_estimates(self.readings, alpha)
        self._unsure = _widest(levels)
        self.handing = _handed(levels, sent, alpha) / 2

    def halves(self, crossings: Mapping[EntryIndex, float]) -> Estimate:
        """Microseconds for the inside or the outside of the probes at these boundaries, each crossed so many times.

        Their null layers were read in different requests, but what a blank layer takes is off all of them alike.
        """
        unsure = max((self._unsure.get(i, ZERO) for i in crossings), key=lambda us: us.half_width)
        own = independent_sum(*(self._nulls[i] * (times / 2) for i, times in crossings.items()))
        return independent_sum(own, -(unsure.centred * (sum(crossings.values()) / 2)))

    @property
    def typical_us(self) -> Microseconds:
        """What a probe costs at a typical boundary."""
        return median(interleaved(self.readings.values()) or [0.0]) * US_PER_NS


@dataclass(frozen=True, slots=True)
class _Above:
    """How much more a null layer read than is typical of those at its boundary with the fewest blank layers."""

    null: Null
    ns: float


class _Level:
    """The null layers of requests that went past the same task layers."""

    def __init__(self, taken: Split, steady: Split, entries: Sequence[Boundary], alpha: float) -> None:
        self.steady = steady
        self.entries = entries
        self.typical = steady.typical_nulls()
        self.fewest = min(null.blanks.count for null in self.typical)
        # No part of a null layer takes more than all of it.
        self.most_us = max(self.typical.values()) * US_PER_NS
        self.above = self._above(taken, self.typical)
        kinds = {self.kind(null) for null in self.typical}
        self.blanks = {plain: self._blank(alpha, plain) if self.fewest else ZERO for plain in kinds}

    def kind(self, null: Null) -> bool:
        """Whether the blank layers are plain functions, as what they stand for is: these cost less."""
        return self.entries[null.index].plain

    def blank(self, null: Null) -> Estimate:
        """What a blank layer takes in such a null layer each time that it is entered."""
        return self.blanks[self.kind(null)]

    def times(self, null: Null) -> int:
        """How often the null layer is entered in a request."""
        return len(self.entries[null.index].parents)

    def _above(self, taken: Split, typical: Mapping[Null, float]) -> list[_Above]:
        """Of all requests that were taken, at the tempo of the steady ones: what is looked for is small, needs many."""
        plain = BlankLayers(self.fewest)
        known = taken.only([null in typical and Null(null.index, plain) in typical for null in taken.null])
        at_tempo = zip(known.null, known.nulls_at_typical_tempo(typical), strict=True)
        return [_Above(null, ns - typical[Null(null.index, plain)]) for null, ns in at_tempo]

    def _blank(self, alpha: float, plain: bool) -> Estimate:
        """What a blank layer takes: null layers with more of them against those with the fewest."""
        bare = [one for one in self.above if not one.null.blanks.wrapping and self.kind(one.null) == plain]
        added = [(one.null.blanks.count - self.fewest, one.ns / self.times(one.null)) for one in bare]
        fewest = [ns for more, ns in added if not more]
        each = [ns / more for more, ns in added if more]
        blank = independent_sum(interval(each, alpha), -interval(fewest, alpha))
        return blank.clipped(0.0, self._most_of_a_blank(plain))

    def _most_of_a_blank(self, plain: bool) -> Microseconds:
        """Each of several blank layers takes its share of their null layer at most.

        That at the typical boundary: many are known by few readings, and one that is not always entered reads nothing.
        """
        shares: dict[int, list[float]] = {}
        for null, ns in self.typical.items():
            if ns and not null.blanks.wrapping and self.kind(null) == plain:
                shares.setdefault(null.blanks.count, []).append(ns / null.blanks.count / self.times(null))
        return min(map(median, shares.values()), default=self.most_us / US_PER_NS) * US_PER_NS

    def wrapped_ns(self, sent: Mapping[EntryIndex, int]) -> Iterable[tuple[int, float]]:
        """Number of blank layers that wrap `send`, and what they and all handing of messages took for each message."""
        for one in self.above:
            if one.null.blanks.wrapping and sent.get(one.null.index):
                bare_ns = self.fewest * self.times(one.null) * self.blank(one.null).estimate / US_PER_NS
                yield one.null.blanks.count, (one.ns + bare_ns) / sent[one.null.index]


def _handed(levels: Sequence[_Level], sent: Mapping[EntryIndex, int], alpha: float) -> Estimate:
    """What it costs a message to go from a probe to a function and from there to a probe.

    Null layers whose blank layers wrap `send`, less what the wrapping itself takes: what each further blank layer adds.
    """
    fewest_sent = min(filter(None, sent.values()), default=0)
    if not fewest_sent or not levels:
        return ZERO
    by_count: dict[int, list[float]] = {}
    for level in levels:
        for count, ns in level.wrapped_ns(sent):
            by_count.setdefault(count, []).append(ns)
    # It takes something, and less than all that a null layer does for one of its messages, or for the request.
    most_us = max(level.most_us for level in levels) / (1 + fewest_sent)
    if len(by_count) < 2:
        return Estimate(0.0, 0.0, most_us)
    # Where the blank layer is not known, it is not known once for all messages of a request.
    blanks = [blank for level in levels for blank in level.blanks.values()]
    unsure = max((blank.centred for blank in blanks), key=lambda us: us.half_width)
    unsure /= fewest_sent
    fewest, more = min(by_count), max(by_count)
    first, second = interval(by_count[fewest], alpha), interval(by_count[more], alpha)
    nothing_wrapped = first * (more / (more - fewest)), -(second * (fewest / (more - fewest)))
    return independent_sum(*nothing_wrapped, unsure).clipped(0.0, most_us)


def handovers(
    entries: Sequence[Boundary], probed: Sequence[EntryIndex], sent: Mapping[EntryIndex, int]
) -> dict[Owner, float]:
    """How often functions of each owner hand a message to a probe, or are handed one by a probe, in one request.

    An owner that does not wrap the `send` it got has no part in what is sent inside it: that goes from probe to probe.
    """
    found: dict[Owner, float] = {HARNESS: 0.0, **{owner_of(index): sent.get(index, 0) for index in probed}}
    for index in probed:
        _, same_send = probed_parent(entries, index, probed)
        outside = callers(entries, index, probed)
        for outer, times in outside.items():
            messages = sent.get(index, 0) * times / outside.total()
            found[outer] = max(0.0, found[outer] - messages) if same_send else found[outer] + messages
    return found


def interval(values_ns: Sequence[float], alpha: float) -> Estimate:
    """Nanoseconds to an estimate in microseconds; unbounded when there are none."""
    if not values_ns:
        return Estimate(0.0, -math.inf, math.inf)
    return batched_interval(values_ns, alpha) * US_PER_NS


def interleaved(series: Iterable[Sequence[float]]) -> list[float]:
    """All values, a first of each, a second of each, …: in the order of the series they would seem to resemble."""
    return [value for values in zip_longest(*series) for value in values if value is not None]


def _readings(levels: Sequence[_Level], probed: Sequence[EntryIndex]) -> dict[EntryIndex, list[float]]:
    """What the probes of null layers cost each time that a boundary is crossed, in nanoseconds at the typical tempo."""
    found: dict[EntryIndex, list[float]] = {index: [] for index in probed}
    for level in levels:
        for null, ns in zip(level.steady.null, level.steady.nulls_at_typical_tempo(level.typical), strict=True):
            if not null.blanks.wrapping:
                blanks_ns = null.blanks.count * level.blank(null).estimate / US_PER_NS
                found[null.index].append(ns / level.times(null) - blanks_ns)
    return found


def _widest(levels: Sequence[_Level]) -> dict[EntryIndex, Estimate]:
    """For each boundary what a blank layer takes, by the least sure of the levels that had null layers there."""
    found: dict[EntryIndex, Estimate] = {}
    for level in levels:
        for null in set(level.steady.null):
            blank = level.blank(null)
            found[null.index] = max(found.get(null.index, blank), blank, key=lambda us: us.half_width)
    return found


def _null_estimates(readings: Mapping[EntryIndex, list[float]], alpha: float) -> dict[EntryIndex, Estimate]:
    """Estimate what a probe costs at each boundary.

    The interval of a boundary with few readings also covers the medians of all other boundaries. The cost of a probe
    depends on the function and the task that it is in and on how often it is entered.
    """
    pooled = interval(interleaved(readings.values()), alpha)
    typical = {index: median(own) * US_PER_NS for index, own in readings.items() if len(own) >= FEWEST_NULLS}
    low, high = min([pooled.low, *typical.values()]), max([pooled.high, *typical.values()])
    return {
        index: interval(own, alpha)
        if len(own) >= OWN_NULLS
        else Estimate(typical.get(index, pooled.estimate), low, high)
        for index, own in readings.items()
    }
