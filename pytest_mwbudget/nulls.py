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

from .boundaries import HARNESS, BlankLayers, probed_parent
from .discovery import Entry
from .model import Estimate, Microseconds
from .samples import Null, Split
from .stats import batched_interval, independent, negative, scaled

# A null layer with fewer readings of its own borrows those of all boundaries.
OWN_NULLS = 32

US_PER_NS = 1e-3
ZERO = Estimate(0.0, 0.0, 0.0)


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
        probed: Sequence[int],
        sent: Mapping[int, int],
        alpha: float,
    ) -> None:
        levels = [_Level(one, quiet, alpha) for one, quiet in zip(taken, steady, strict=True) if quiet.null]
        self.readings = _readings(levels, probed)
        self._nulls = _null_estimates(self.readings, alpha)
        self._unsure = _widest(levels)
        self.handing = scaled(_handed(levels, sent, alpha), 0.5)

    def halves(self, indexes: Sequence[int], share: float = 1.0) -> Estimate:
        """Microseconds for the inside or the outside of the probe at each of these boundaries, or a `share` of them.

        Their null layers were read in different requests, but what a blank layer takes is off all of them alike.
        """
        unsure = max((self._unsure.get(i, ZERO) for i in indexes), key=lambda us: us.half_width)
        own = independent(*(scaled(self._nulls[i], share / 2) for i in indexes))
        return independent(own, negative(scaled(spread(unsure), share / 2 * len(indexes))))

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

    def __init__(self, taken: Split, steady: Split, alpha: float) -> None:
        self.steady = steady
        self.typical = steady.typical_nulls()
        self.fewest = min(null.blanks.count for null in self.typical)
        # No part of a null layer takes more than all of it.
        self.most_us = max(self.typical.values()) * US_PER_NS
        self.above = self._above(taken, self.typical)
        self.blank = self._blank(alpha) if self.fewest else ZERO

    def _above(self, taken: Split, typical: Mapping[Null, float]) -> list[_Above]:
        """Of all requests that were taken, at the tempo of the steady ones: what is looked for is small, needs many."""
        plain = BlankLayers(self.fewest)
        known = taken.only([null in typical and Null(null.index, plain) in typical for null in taken.null])
        at_tempo = zip(known.null, known.nulls_at_typical_tempo(typical), strict=True)
        return [_Above(null, ns - typical[Null(null.index, plain)]) for null, ns in at_tempo]

    def _blank(self, alpha: float) -> Estimate:
        """What a blank layer takes: null layers with more of them against those with the fewest."""
        plain = [one for one in self.above if not one.null.blanks.wrapping]
        fewest = [one.ns for one in plain if one.null.blanks.count == self.fewest]
        more = [one.ns / (one.null.blanks.count - self.fewest) for one in plain if one.null.blanks.count > self.fewest]
        blank = independent(interval(more, alpha), negative(interval(fewest, alpha)))
        return between(blank, 0.0, self._most_of_a_blank())

    def _most_of_a_blank(self) -> Microseconds:
        """Each of several blank layers takes its share of their null layer at most.

        That at the typical boundary: many are known by few readings, and one that is not always entered reads nothing.
        """
        shares: dict[int, list[float]] = {}
        for null, ns in self.typical.items():
            if ns and not null.blanks.wrapping:
                shares.setdefault(null.blanks.count, []).append(ns / null.blanks.count)
        return min(map(median, shares.values()), default=self.most_us / US_PER_NS) * US_PER_NS

    def wrapped_ns(self, sent: Mapping[int, int]) -> Iterable[tuple[int, float]]:
        """Number of blank layers that wrap `send`, and what they and all handing of messages took for each message."""
        for one in self.above:
            if one.null.blanks.wrapping and sent.get(one.null.index):
                plain_ns = self.fewest * self.blank.estimate / US_PER_NS
                yield one.null.blanks.count, (one.ns + plain_ns) / sent[one.null.index]


def _handed(levels: Sequence[_Level], sent: Mapping[int, int], alpha: float) -> Estimate:
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
    unsure = max((spread(level.blank) for level in levels), key=lambda us: us.half_width)
    unsure = scaled(unsure, 1 / fewest_sent)
    fewest, more = min(by_count), max(by_count)
    first, second = interval(by_count[fewest], alpha), interval(by_count[more], alpha)
    nothing_wrapped = scaled(first, more / (more - fewest)), negative(scaled(second, fewest / (more - fewest)))
    return between(independent(*nothing_wrapped, unsure), 0.0, most_us)


def handovers(entries: Sequence[Entry], probed: Sequence[int], sent: Mapping[int, int]) -> dict[int, int]:
    """How often functions of each owner hand a message to a probe, or are handed one by a probe, in one request.

    An owner that does not wrap the `send` it got has no part in what is sent inside it: that goes from probe to probe.
    """
    found = {HARNESS: 0} | {index + 1: sent.get(index, 0) for index in probed}
    for index in probed:
        outer, same_send = probed_parent(entries, index, probed)
        if same_send:
            found[outer] = max(0, found[outer] - sent.get(index, 0))
        else:
            found[outer] += sent.get(index, 0)
    return found


def interval(values_ns: Sequence[float], alpha: float) -> Estimate:
    """Nanoseconds to an estimate in microseconds; unbounded when there are none."""
    if not values_ns:
        return Estimate(0.0, -math.inf, math.inf)
    return scaled(batched_interval(values_ns, alpha), US_PER_NS)


def interleaved(series: Iterable[Sequence[float]]) -> list[float]:
    """All values, a first of each, a second of each, …: in the order of the series they would seem to resemble."""
    return [value for values in zip_longest(*series) for value in values if value is not None]


def spread(us: Estimate) -> Estimate:
    """Zero, with the distances of the interval's ends from the estimate."""
    return Estimate(0.0, us.low - us.estimate, us.high - us.estimate)


def between(us: Estimate, least: Microseconds, most: Microseconds) -> Estimate:
    """The estimate and its interval, as far as they are between these."""
    return Estimate(*(min(max(least, one), most) for one in (us.estimate, us.low, us.high)))


def _readings(levels: Sequence[_Level], probed: Sequence[int]) -> dict[int, list[float]]:
    """What the probes of null layers cost at each boundary, in nanoseconds at the typical tempo."""
    found: dict[int, list[float]] = {index: [] for index in probed}
    for level in levels:
        for null, ns in zip(level.steady.null, level.steady.nulls_at_typical_tempo(level.typical), strict=True):
            if not null.blanks.wrapping:
                found[null.index].append(ns - null.blanks.count * level.blank.estimate / US_PER_NS)
    return found


def _widest(levels: Sequence[_Level]) -> dict[int, Estimate]:
    """For each boundary what a blank layer takes, by the least sure of the levels that had null layers there."""
    found: dict[int, Estimate] = {}
    for level in levels:
        for index in {null.index for null in level.steady.null}:
            found[index] = max(found.get(index, level.blank), level.blank, key=lambda us: us.half_width)
    return found


def _null_estimates(readings: Mapping[int, list[float]], alpha: float) -> dict[int, Estimate]:
    """What a probe costs at each boundary; where there are few readings, what it costs at any boundary."""
    pooled = interval(interleaved(readings.values()), alpha)
    return {index: interval(own, alpha) if len(own) >= OWN_NULLS else pooled for index, own in readings.items()}
