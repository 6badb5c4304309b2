"""From samples to estimates: what each row costs, with intervals that hold together. Pure; no clock.

What a probe costs at a boundary is known from the null layer there: the time between two probes with nothing between
is the inner part of the outer one and the outer part of the inner one. A layer's own time holds the inner part of its
probe and the outer part of its child's, so half of each null is taken off.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress, zip_longest
from statistics import median

from .boundaries import HARNESS
from .discovery import Entry
from .model import Estimate, Microseconds
from .stats import batched_interval, minus, paces, paces_of_others, plus, quickest_quarter, quiet, scaled, spend

# The chance that any interval of a measurement, over all rows and all looks, misses its median.
ALPHA = 0.01
# A null layer with fewer readings of its own borrows those of all boundaries.
OWN_NULLS = 32
# How much slower than in the quickest quarter of the run the machine may be for a moment to count: by the reference
# workload, which is steady, and by the null layers, which are nearer to what an app does, and noisier.
QUIET_REFERENCE, QUIET_NULL = 1.05, 1.10
# Below this the machine's speed is as steady as it gets, and nothing is made of it.
STEADY = 1.10

US_PER_NS = 1e-3
ZERO = Estimate(0.0, 0.0, 0.0)


@dataclass(slots=True)
class Series:
    """Nanoseconds in the order in which they were taken, each with the reference workload's time next to it."""

    values: list[float] = field(default_factory=list)
    reference: list[float] = field(default_factory=list)

    def add(self, value: float, reference: float) -> None:
        """Append one value."""
        self.values.append(value)
        self.reference.append(reference)

    def quiet(self, quick_ns: float) -> list[float]:
        """The values that were taken while the machine ran at its speed, the reference workload taking `quick_ns`."""
        return list(compress(self.values, quiet(self.reference, QUIET_REFERENCE, quick_ns)))


@dataclass(slots=True)
class Split:
    """Requests with every probe in place, one after the other: a column has one value for each.

    `doubled` is the entry that held the null layer, `null` what it read. `owned` is what an owner spent, `resumed` how
    often it was resumed, by owner. All times are nanoseconds.
    """

    reference: list[float] = field(default_factory=list)
    doubled: list[int] = field(default_factory=list)
    null: list[float] = field(default_factory=list)
    owned: dict[int, list[float]] = field(default_factory=dict)
    resumed: dict[int, list[float]] = field(default_factory=dict)

    def add(self, reference: float, doubled: int, null: float, owned: Mapping[int, tuple[float, float]]) -> None:
        """Append one request; `owned` has nanoseconds and resumptions by owner, the same owners every time."""
        self.reference.append(reference)
        self.doubled.append(doubled)
        self.null.append(null)
        for owner, (ns, times) in owned.items():
            self.owned.setdefault(owner, []).append(ns)
            self.resumed.setdefault(owner, []).append(times)

    def steady(self, quick_ns: float) -> Split:
        """The requests that ran while the machine was at its speed, the reference workload taking `quick_ns`."""
        quick = self._kept(quiet(self.reference, QUIET_REFERENCE, quick_ns))
        return quick._kept(quiet(quick.null_paces(), QUIET_NULL))

    def null_paces(self) -> list[float]:
        """What the null layer read in each request, against what the typical one at its boundary reads."""
        at: dict[int, list[float]] = {}
        for index, ns in zip(self.doubled, self.null, strict=True):
            at.setdefault(index, []).append(ns)
        typical = {index: median(values) or 1.0 for index, values in at.items()}
        return [ns / typical[index] for index, ns in zip(self.doubled, self.null, strict=True)]

    def _kept(self, kept: Sequence[bool]) -> Split:
        return Split(
            list(compress(self.reference, kept)),
            list(compress(self.doubled, kept)),
            list(compress(self.null, kept)),
            {owner: list(compress(column, kept)) for owner, column in self.owned.items()},
            {owner: list(compress(column, kept)) for owner, column in self.resumed.items()},
        )


@dataclass(slots=True)
class Samples:
    """Everything measured so far.

    `splits` are by the number of task layers that requests went past, `bypass` by entry of the stack. `inside` is the
    whole time between the first and the last crossing, `inside_stepless` the same in requests without steppers,
    `whole` that of requests without any probe. `messages` is the number of calls of the server's receive and send in
    one request.
    """

    probed: tuple[int, ...]
    splits: dict[int, Split] = field(default_factory=dict)
    whole: Series = field(default_factory=Series)
    bypass: dict[int, Series] = field(default_factory=dict)
    inside: Series = field(default_factory=Series)
    inside_stepless: Series = field(default_factory=Series)
    messages: int = 0
    rounds: int = 0
    requests: int = 0

    def quick_ns(self) -> float:
        """What the reference workload took in the quickest quarter of the quickest part of the run."""
        series = [self.whole, self.inside, *self.bypass.values()]
        references = [one.reference for one in series] + [split.reference for split in self.splits.values()]
        return min(map(quickest_quarter, references))


@dataclass(frozen=True, slots=True)
class Estimates:
    """Microseconds per request by entry of the stack, and for the whole.

    `split` has every probed entry but the app object, the endpoint included; `bypass` those that could be bypassed.
    `outside` is the app object with the server's receive and send. `slowdown` is how much slower the machine ran than
    at its best.
    """

    split: dict[int, Estimate]
    bypass: dict[int, Estimate]
    outside: Estimate
    whole: Estimate
    floor_us: float
    slowdown: float


class Machine:
    """How fast this machine can be: the quickest time of the reference workload in this process, in nanoseconds."""

    def __init__(self) -> None:
        self.quickest_ns = math.inf

    def slowdown(self, reference: Sequence[float]) -> float:
        """How much slower than at its best it ran while the quiet ones of these values were taken; at least 1."""
        if not reference:
            return 1.0
        ordered = sorted(reference)
        self.quickest_ns = min(self.quickest_ns, ordered[len(ordered) // 10])
        kept = list(compress(reference, quiet(reference, QUIET_REFERENCE)))
        ratio = median(kept) / self.quickest_ns if self.quickest_ns > 0 else 1.0
        return ratio if ratio > STEADY else 1.0


def estimate(samples: Samples, entries: Sequence[Entry], *, outside: bool, look: int, machine: Machine) -> Estimates:
    """Every row's estimate from all samples, at the given look (1, 2, …), `alpha` being spent over looks and rows.

    `outside` says that entry 0 is the app object, whose time is not a layer's.
    """
    probed = samples.probed
    # One share for each interval that goes into any row: times, nulls, bypasses, steppers, the whole.
    alpha = spend(ALPHA, look) / (2 * len(probed) + len(samples.bypass) + 4)
    quick_ns = samples.quick_ns()
    splits = [split.steady(quick_ns) for split in samples.splits.values()]
    nulls = _nulls(splits, probed)
    halves = {index: scaled(null, 0.5) for index, null in _null_estimates(nulls, alpha).items()}
    step = _step(samples, splits, nulls, quick_ns, alpha)

    def probes_at(index: int) -> Estimate:
        """What the probes cost that are charged to an entry: the inside of its own, the outside of its children's."""
        return plus(halves[index], *(halves[i] for i in probed if _probed_parent(entries, i, probed) == index))

    paced = [(split, paces(split.null_paces())) for split in splits]

    def row(owners: Sequence[int], probes: Estimate) -> Estimate:
        return _row(paced, owners, probes, alpha, step)

    around, probes_around = [HARNESS], [ZERO]
    if probed and samples.messages:
        # The outside of the outermost probe: all but its share of entering and leaving, which nobody logged.
        probes_around.append(scaled(halves[probed[0]], samples.messages / (samples.messages + 1)))
    if outside and 0 in probed:
        around.append(1)
        probes_around.append(probes_at(0))
    return Estimates(
        split={index: row([index + 1], probes_at(index)) for index in probed if not (outside and index == 0)},
        bypass={i: _interval(series.quiet(quick_ns), alpha) for i, series in samples.bypass.items() if series.values},
        outside=row(around, plus(*probes_around)),
        whole=_interval(samples.whole.quiet(quick_ns), alpha),
        floor_us=_floor(nulls, alpha),
        slowdown=machine.slowdown(samples.whole.reference + samples.inside.reference),
    )


def _interval(values_ns: Sequence[float], alpha: float) -> Estimate:
    """Nanoseconds to an estimate in microseconds; unbounded when there are none."""
    if not values_ns:
        return Estimate(0.0, -math.inf, math.inf)
    return scaled(batched_interval(values_ns, alpha), US_PER_NS)


def _row(
    paced: Sequence[tuple[Split, list[float]]],
    owners: Sequence[int],
    probes: Estimate,
    alpha: float,
    step: Estimate,
) -> Estimate:
    """What these owners spent together, less what the probes and the steppers cost them.

    A busy machine slows the layer and its probes alike, so the probes are taken off at the tempo of the moment, which
    stands beside each split: paired, most of the noise that requests have in common goes.
    """
    own_ns: list[float] = []
    resumed = 0.0
    for split, tempo in paced:
        if all(owner in split.owned for owner in owners):
            together = [sum(values) for values in zip(*(split.owned[owner] for owner in owners), strict=True)]
            own_ns += [ns - probes.estimate / US_PER_NS * pace for ns, pace in zip(together, tempo, strict=True)]
            resumed = sum(median(split.resumed[owner]) for owner in owners)
    steppers = scaled(step, resumed) if resumed else ZERO
    return minus(_interval(own_ns, alpha), plus(_spread(probes), steppers))


def _spread(us: Estimate) -> Estimate:
    """Zero, with the distances of the interval's ends from the estimate."""
    return Estimate(0.0, us.low - us.estimate, us.high - us.estimate)


def _nulls(splits: Sequence[Split], probed: Sequence[int]) -> dict[int, list[float]]:
    """What null layers read at each boundary, in nanoseconds at the typical tempo."""
    nulls: dict[int, list[float]] = {index: [] for index in probed}
    for split in splits:
        tempo = paces_of_others(split.null_paces())
        for index, ns, pace in zip(split.doubled, split.null, tempo, strict=True):
            nulls[index].append(ns / (pace or 1.0))
    return nulls


def _null_estimates(nulls: Mapping[int, list[float]], alpha: float) -> dict[int, Estimate]:
    """What a probe costs at each boundary; where there are few readings, what it costs at any boundary."""
    pooled = _interval(_interleaved(nulls.values()), alpha)
    return {index: _interval(own, alpha) if len(own) >= OWN_NULLS else pooled for index, own in nulls.items()}


def _interleaved(series: Iterable[Sequence[float]]) -> list[float]:
    """All values, a first of each, a second of each, …: in the order of the series they would seem to resemble."""
    return [value for values in zip_longest(*series) for value in values if value is not None]


def _step(
    samples: Samples, splits: Sequence[Split], nulls: Mapping[int, list[float]], quick_ns: float, alpha: float
) -> Estimate:
    """What a stepper costs at one suspension: requests with steppers against requests without."""
    if not splits or not samples.inside_stepless.values or not samples.inside.values:
        return ZERO
    resumptions = sum(median(column) for column in splits[0].resumed.values() if column)
    if not resumptions:
        return ZERO
    with_steppers = _interval(samples.inside.quiet(quick_ns), alpha)
    added = minus(with_steppers, _interval(samples.inside_stepless.quiet(quick_ns), alpha))
    cost = scaled(added, 1 / resumptions)
    # A stepper does less at one suspension than a probe does in a whole request.
    most = median(_interleaved(nulls.values()) or [0.0]) * US_PER_NS
    return Estimate(*(min(max(0.0, us), most) for us in (cost.estimate, cost.low, cost.high)))


def _floor(nulls: Mapping[int, list[float]], alpha: float) -> Microseconds:
    """The least overhead that the samples can tell from a null layer's, at the typical boundary.

    An A/A test: one half of the null layer's readings at a boundary against the other half.
    """
    enough = [own for own in nulls.values() if len(own) >= 2 * OWN_NULLS]
    if not enough:
        enough = [_interleaved(nulls.values())]
    return median(_half_against_half(own, alpha) for own in enough)


def _half_against_half(values_ns: Sequence[float], alpha: float) -> Microseconds:
    difference = minus(_interval(values_ns[0::2], alpha), _interval(values_ns[1::2], alpha))
    return max(abs(difference.low), abs(difference.high))


def _probed_parent(entries: Sequence[Entry], index: int, probed: Container[int]) -> int | None:
    parent = entries[index].parent
    while parent is not None and parent not in probed:
        parent = entries[parent].parent
    return parent
