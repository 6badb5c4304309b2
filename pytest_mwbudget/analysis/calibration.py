"""Estimate what probes cost, from null layers (docs/decisions/0005). Pure; no clock.

A null layer takes the cost of a probe plus that of its blank layers. More blank layers show the cost of each. Blank
layers that wrap `send` show the extra cost of handing a message from a probe to a function, or back.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from statistics import median

from ..model.estimate import ZERO, Estimate, Microseconds, independent_sum
from ..model.stack import HARNESS, Boundary, EntryIndex, Owner, callers, owner_of, probed_parent
from .intervals import batched_interval
from .samples import BlankLayers, Null, Split

# With fewer readings, a null layer's interval comes from all null layers.
OWN_NULLS = 32
# With fewer readings, its typical value does as well.
FEWEST_NULLS = 4
# The sums of probes that are drawn to tell what probes take together.
DRAWN = 200
# With fewer readings, both sides of a probe cost the same.
FEWEST_DIVIDED = 12

US_PER_NS = 1e-3


class ProbeCosts:
    """What probes cost in the requests of `taken`, of which those in `steady` are from quiet moments.

    `handing` is the extra cost of handing a message from a function to a probe, or from a probe to a function.
    `readings` are the nanoseconds of the null layers by entry, without blank layers and at the typical pace.
    """

    def __init__(
        self,
        taken: Split,
        steady: Split,
        entries: Sequence[Boundary],
        probed: Sequence[EntryIndex],
        sent: Mapping[EntryIndex, int],
        alpha: float,
    ) -> None:
        nulls = _Nulls(taken, steady, entries, alpha) if steady.null else None
        self.readings = _readings(nulls, probed)
        self._unpaced = _probes_ns(nulls, nulls.steady.null_ns) if nulls else {}
        self._passing = _passing(steady, entries)
        self._nulls = _null_estimates(self.readings, alpha)
        self._leaning = _leaning_us(steady, entries)
        self._unsure = {null.index: nulls.blank(null) for null in steady.null} if nulls else {}
        self.handing = _handed(nulls, sent, alpha) / 2

    def halves(
        self, crossings: Mapping[EntryIndex, float], inside: Mapping[EntryIndex, float] | None = None
    ) -> Estimate:
        """Return the cost of one half of the probes at these boundaries, each crossed that many times.

        `inside` is how often it is the inner half, less how often it is the outer one. Errors of the null layers are
        independent, but all of them share the error of the blank layers.
        """
        unsure = max((self._unsure.get(i, ZERO) for i in crossings), key=lambda us: us.half_width)
        own = independent_sum(*(self._nulls[i] * (times / 2) for i, times in crossings.items()))
        leaning_us = sum(self._leaning.get(i, 0.0) * times / 2 for i, times in (inside or {}).items())
        halves = independent_sum(own, -(unsure.centred * (sum(crossings.values()) / 2)))
        return halves + Estimate(leaning_us, leaning_us, leaning_us)

    def share_of_messages(self, index: EntryIndex) -> float:
        """Return the share of a probe's cost that passing messages cause; the rest is for entering and leaving."""
        readings, passing = self.readings.get(index), self._passing.get(index)
        return min(1.0, median(passing) / median(readings)) if readings and passing and median(readings) > 0 else 0.0

    def together(self, number: int) -> tuple[Microseconds, Microseconds]:
        """Return lower and upper bounds of how much the median of `number` probes exceeds the sum of their medians.

        In each request some probes are slow, and not always the same ones. The lower bound is drawn from null layers at
        the typical pace. The upper bound also contains busy moments, which slow all probes of a request alike. On a
        busy machine both are too large.
        """
        scatters = map(_scatter_ns, (self.readings, self._unpaced))
        bounds = [_median_of_sums(scatter_ns, number) * US_PER_NS for scatter_ns in scatters]
        return max(0.0, min(bounds)), max(0.0, *bounds)

    @property
    def typical_us(self) -> Microseconds:
        """The cost of a probe at a typical boundary."""
        return median(interleaved(self.readings.values()) or [0.0]) * US_PER_NS


@dataclass(frozen=True, slots=True)
class _Above:
    """The nanoseconds of a null layer above the typical ones at its boundary with the fewest blank layers.

    `passing_ns` are those in which messages pass it.
    """

    null: Null
    ns: float
    passing_ns: float


class _Nulls:
    """The null layers of the split."""

    def __init__(self, taken: Split, steady: Split, entries: Sequence[Boundary], alpha: float) -> None:
        self.steady = steady
        self.entries = entries
        self.typical = steady.typical_nulls()
        self.fewest = min(null.blanks.count for null in self.typical)
        self.most_us = max(self.typical.values()) * US_PER_NS
        self.above = self._above(taken, self.typical)
        kinds = {self.kind(null) for null in self.typical}
        self.blanks = {plain: self._blank(alpha, plain) if self.fewest else ZERO for plain in kinds}

    def kind(self, null: Null) -> bool:
        """Return whether the blank layers are plain functions, which cost less than coroutine functions."""
        return self.entries[null.index].plain

    def blank(self, null: Null) -> Estimate:
        """Return the cost of one call of a blank layer in this null layer."""
        return self.blanks[self.kind(null)]

    def times(self, null: Null) -> int:
        """Return how often the null layer is entered in a request."""
        return len(self.entries[null.index].parents)

    def _above(self, taken: Split, typical: Mapping[Null, float]) -> list[_Above]:
        """Compare null layers in all requests, at the pace of quiet ones: so small a difference needs many requests."""
        plain = BlankLayers(self.fewest)
        known = taken.only([null in typical and Null(null.index, plain) in typical for null in taken.null])
        bare = _by_entry(self.steady.null, self.steady.passing_ns, _is_bare)
        passing = {index: median(own) for index, own in bare.items()}
        at_tempo = zip(known.null, known.nulls_at_typical_tempo(typical), known.null_ns, known.passing_ns, strict=True)
        return [
            _Above(
                null,
                ns - typical[Null(null.index, plain)],
                passing_ns * ns / (took_ns or 1.0) - passing[null.index],
            )
            for null, ns, took_ns, passing_ns in at_tempo
        ]

    def _blank(self, alpha: float, plain: bool) -> Estimate:
        """Estimate the cost of a blank layer: null layers with more of them against those with the fewest."""
        bare = [excess for excess in self.above if not excess.null.blanks.wrapping and self.kind(excess.null) == plain]
        added = [(excess.null.blanks.count - self.fewest, excess.ns / self.times(excess.null)) for excess in bare]
        fewest = [ns for more, ns in added if not more]
        each = [ns / more for more, ns in added if more]
        blank = independent_sum(interval(each, alpha), -interval(fewest, alpha))
        return blank.clipped(0.0, self._most_of_a_blank(plain))

    def _most_of_a_blank(self, plain: bool) -> Microseconds:
        """Return the most that a blank layer can take: its share of a typical null layer.

        Of the typical boundary, because most boundaries have few readings, and some are not entered in each request.
        """
        shares: dict[int, list[float]] = {}
        for null, ns in self.typical.items():
            if ns and not null.blanks.wrapping and self.kind(null) == plain:
                shares.setdefault(null.blanks.count, []).append(ns / null.blanks.count / self.times(null))
        return min(map(median, shares.values()), default=self.most_us / US_PER_NS) * US_PER_NS

    def wrapped_ns(self, sent: Mapping[EntryIndex, int]) -> Iterable[tuple[int, float, float]]:
        """Yield for each null layer that wraps `send` the number of its blank layers and two times per message.

        The first is the time in which messages pass. The second includes entering and leaving the null layer.
        """
        for excess in self.above:
            blanks = excess.null.blanks
            if blanks.wrapping and not blanks.dividing and sent.get(excess.null.index):
                bare_ns = self.fewest * self.times(excess.null) * self.blank(excess.null).estimate / US_PER_NS
                messages = sent[excess.null.index]
                yield blanks.count, excess.passing_ns / messages, (excess.ns + bare_ns) / messages


def _handed(nulls: _Nulls | None, sent: Mapping[EntryIndex, int], alpha: float) -> Estimate:
    """Estimate the extra cost of a message that goes from a probe to a function and from there to a probe.

    Messages that pass null layers whose blank layers wrap `send` take that plus the wrapping, which each further blank
    layer adds. To enter and to leave such a null layer costs more as well, and nothing tells how much of this is the
    probes': half of it is taken, and the interval contains all and none.
    """
    fewest_sent = min(filter(None, sent.values()), default=0)
    if not fewest_sent or nulls is None:
        return ZERO
    passing: dict[int, list[float]] = {}
    entering: dict[int, list[float]] = {}
    for count, passing_ns, ns in nulls.wrapped_ns(sent):
        passing.setdefault(count, []).append(passing_ns)
        entering.setdefault(count, []).append(ns)
    # At most the share of one message in a null layer, with the request itself as one more message.
    most_us = nulls.most_us / (1 + fewest_sent)
    if len(passing) < 2:
        return Estimate(0.0, 0.0, most_us)
    least, most = (_unwrapped(by_count, alpha).clipped(0.0, most_us) for by_count in (passing, entering))
    return Estimate((least.estimate + most.estimate) / 2, min(least.low, most.low), max(least.high, most.high))


def _unwrapped(by_count: Mapping[int, Sequence[float]], alpha: float) -> Estimate:
    """Estimate what null layers would take without the blank layers that they have more or fewer of."""
    fewest, more = min(by_count), max(by_count)
    first, second = interval(by_count[fewest], alpha), interval(by_count[more], alpha)
    return independent_sum(first * (more / (more - fewest)), -(second * (fewest / (more - fewest))))


def handovers(
    entries: Sequence[Boundary],
    probed: Sequence[EntryIndex],
    passed: Mapping[EntryIndex, int],
    *,
    received: bool = False,
) -> dict[Owner, float]:
    """Return how often functions of each owner hand a message to a probe, or get one from a probe, in a request.

    `passed` are the messages sent by entry, or those received. Messages inside an owner that does not wrap `send`, or
    `receive`, go from probe to probe.
    """
    counts: dict[Owner, float] = {HARNESS: 0.0, **{owner_of(index): passed.get(index, 0) for index in probed}}
    for index in probed:
        _, same_send, same_receive = probed_parent(entries, index, probed)
        same = same_receive if received else same_send
        outside = callers(entries, index, probed)
        for outer, times in outside.items():
            messages = passed.get(index, 0) * times / outside.total()
            counts[outer] = max(0.0, counts[outer] - messages) if same else counts[outer] + messages
    return counts


def interval(values_ns: Sequence[float], alpha: float) -> Estimate:
    """Return an estimate in microseconds from nanoseconds, unbounded if there are none."""
    if not values_ns:
        return Estimate(0.0, -math.inf, math.inf)
    return batched_interval(values_ns, alpha) * US_PER_NS


def interleaved(series: Iterable[Sequence[float]]) -> list[float]:
    """Return the first value of each series, the second of each, …. One series after another would look correlated."""
    return [value for values in zip_longest(*series) for value in values if value is not None]


def _readings(nulls: _Nulls | None, probed: Sequence[EntryIndex]) -> dict[EntryIndex, list[float]]:
    """Return by entry the nanoseconds of a probe in each request, at the typical pace."""
    readings: dict[EntryIndex, list[float]] = {index: [] for index in probed}
    if nulls is not None:
        readings |= _probes_ns(nulls, nulls.steady.nulls_at_typical_tempo(nulls.typical))
    return readings


def _probes_ns(nulls: _Nulls, nulls_ns: Iterable[float]) -> dict[EntryIndex, list[float]]:
    """Return by entry the nanoseconds of a probe, given those of the null layer in each request."""
    by_entry: dict[EntryIndex, list[float]] = {}
    for null, ns in zip(nulls.steady.null, nulls_ns, strict=True):
        if not null.blanks.wrapping:
            blanks_ns = null.blanks.count * nulls.blank(null).estimate / US_PER_NS
            by_entry.setdefault(null.index, []).append(ns / nulls.times(null) - blanks_ns)
    return by_entry


def _scatter_ns(by_entry: Mapping[EntryIndex, Sequence[float]]) -> list[float]:
    """Return by how many nanoseconds the probe of each request differs from the typical probe at its boundary.

    A boundary with fewer than FEWEST_NULLS readings uses the typical probe of all boundaries.
    """
    pooled = interleaved(by_entry.values())
    typical = {index: median(own if len(own) >= FEWEST_NULLS else pooled) for index, own in by_entry.items() if own}
    return [ns - typical[index] for index, own in by_entry.items() for ns in own]


def _median_of_sums(values: Sequence[float], number: int) -> float:
    """Return the median of DRAWN sums, each of `number` values chosen at random."""
    if number < 2 or len(values) < OWN_NULLS:
        return 0.0
    rng = random.Random(0)
    return median(sum(rng.choices(values, k=number)) for _ in range(DRAWN))


def _passing(steady: Split, entries: Sequence[Boundary]) -> dict[EntryIndex, list[float]]:
    """Return by entry the nanoseconds in which the messages of one of its calls pass the null layer."""
    passing = _by_entry(steady.null, steady.passing_ns, _is_bare)
    return {index: [ns / len(entries[index].parents) for ns in own] for index, own in passing.items()}


def _is_bare(blanks: BlankLayers) -> bool:
    return not blanks.wrapping


def _by_entry(
    nulls: Sequence[Null], values_ns: Sequence[float], kept: Callable[[BlankLayers], bool]
) -> dict[EntryIndex, list[float]]:
    """Return by entry the values of the requests whose blank layers are to be kept."""
    by_entry: dict[EntryIndex, list[float]] = {}
    for null, ns in zip(nulls, values_ns, strict=True):
        if kept(null.blanks):
            by_entry.setdefault(null.index, []).append(ns)
    return by_entry


def _leaning_us(steady: Split, entries: Sequence[Boundary]) -> dict[EntryIndex, Microseconds]:
    """Estimate by entry how much more the inside of a probe costs than its outside, relative to a typical boundary.

    Whichever probe code runs first after the app's own code finds colder caches.
    """
    leaning = _by_entry(steady.null, steady.leaning_ns, lambda blanks: blanks.dividing)
    known = {
        index: median(own) / len(entries[index].parents) * US_PER_NS
        for index, own in leaning.items()
        if len(own) >= FEWEST_DIVIDED
    }
    typical_us = median(known.values()) if known else 0.0
    return {index: us - typical_us for index, us in known.items()}


def _null_estimates(readings: Mapping[EntryIndex, list[float]], alpha: float) -> dict[EntryIndex, Estimate]:
    """Estimate the cost of a probe at each boundary.

    The interval of a boundary with few readings also covers the medians of all other boundaries.
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
