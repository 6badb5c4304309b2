"""From samples to estimates: what each row costs, with intervals that hold together. Pure; no clock.

What a probe costs at a boundary is known from the null layer there: the time between two probes, less what the blank
layers between them take, is the inner part of the outer probe and the outer part of the inner one. A layer's own time
holds the inner part of its probe and the outer part of its child's, so half of each null is taken off.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress, zip_longest
from statistics import median

from .boundaries import HARNESS
from .discovery import Entry
from .model import Estimate, Microseconds
from .stats import batched_interval, minus, paces, paces_of_others, plus, quickest_quarter, quiet, scaled, spend
from .timeline import Spent

# The chance that any interval of a measurement, over all rows and all looks, misses its median.
ALPHA = 0.01
# A null layer with fewer readings of its own borrows those of all boundaries.
OWN_NULLS = 32
# With fewer requests than this there may be no interval at all.
ENOUGH_REQUESTS = 40
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

    def steady(self, quick_ns: float) -> Series:
        """What was taken while the machine ran at its speed, the reference workload taking `quick_ns`."""
        kept = quiet(self.reference, QUIET_REFERENCE, quick_ns)
        return Series(list(compress(self.values, kept)), list(compress(self.reference, kept)))


@dataclass(frozen=True, slots=True)
class Null:
    """Which null layer a request had: at the boundary of which entry, and how many blank layers between its probes."""

    index: int
    blanks: int


@dataclass(slots=True)
class Split:
    """Requests with every probe in place, one after the other: what these owners spent, what the null layer read."""

    owners: frozenset[int]
    reference: list[float] = field(default_factory=list)
    null: list[Null] = field(default_factory=list)
    null_ns: list[float] = field(default_factory=list)
    spent: list[Spent] = field(default_factory=list)

    def add(self, reference: float, null: Null, null_ns: float, used: Spent) -> None:
        """Append one request."""
        self.reference.append(reference)
        self.null.append(null)
        self.null_ns.append(null_ns)
        self.spent.append(used)

    def suspended_ns(self, owner: int) -> float:
        """What an owner typically spent in suspensions."""
        return median(used.suspended[owner] for used in self.spent)

    def resumptions(self, owners: Iterable[int]) -> float:
        """How often these owners were typically resumed after one."""
        return sum(median(used.resumed[owner] for used in self.spent) for owner in owners)

    def steady(self, quick_ns: float) -> Split:
        """The requests that ran while the machine was at its speed, the reference workload taking `quick_ns`."""
        quick = self.only(quiet(self.reference, QUIET_REFERENCE, quick_ns))
        return quick.only(quiet(quick.null_paces(), QUIET_NULL))

    def typical_nulls(self) -> dict[Null, float]:
        """What each null layer typically read."""
        read: dict[Null, list[float]] = {}
        for null, ns in zip(self.null, self.null_ns, strict=True):
            read.setdefault(null, []).append(ns)
        return {null: median(values) for null, values in read.items()}

    def null_paces(self, typical: Mapping[Null, float] | None = None) -> list[float]:
        """What the null layer read in each request, against what it typically reads (here, unless said otherwise)."""
        typical = self.typical_nulls() if typical is None else typical
        return [ns / (typical[null] or 1.0) for null, ns in zip(self.null, self.null_ns, strict=True)]

    def nulls_at_typical_tempo(self, typical: Mapping[Null, float] | None = None) -> list[float]:
        """What the null layer would have read if the machine had always run at its typical tempo, in nanoseconds."""
        tempo = paces_of_others(self.null_paces(typical))
        return [ns / (pace or 1.0) for ns, pace in zip(self.null_ns, tempo, strict=True)]

    def only(self, kept: Sequence[bool]) -> Split:
        """These of the requests."""
        return Split(
            self.owners,
            list(compress(self.reference, kept)),
            list(compress(self.null, kept)),
            list(compress(self.null_ns, kept)),
            list(compress(self.spent, kept)),
        )


@dataclass(slots=True)
class Samples:
    """Everything measured so far.

    `splits` are by the number of task layers that requests went past, and so are those of `cpu`, whose probes read the
    processor's time; each has what is inside these task layers. `bypass` is by entry of the stack. `inside` is the
    whole time between the first and the last crossing, `inside_stepless` the same in requests without steppers,
    `whole` that of requests without any probe. `messages` is the number of calls of the server's receive and send in
    one request.
    """

    probed: tuple[int, ...]
    splits: dict[int, Split] = field(default_factory=dict)
    cpu: dict[int, Split] = field(default_factory=dict)
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
    `holding` is the split's time without suspensions, `suspended` the typical time in them; `cpu` and `suspended_cpu`
    are the processor's time for the same (None: it was not measured; a suspension holds the event loop's own work).
    `outside` is the app object with the server's receive and send. `slowdown` is how much slower the machine ran than
    at its best.
    """

    split: dict[int, Estimate]
    bypass: dict[int, Estimate]
    holding: dict[int, Estimate]
    suspended: dict[int, Microseconds]
    cpu: dict[int, Estimate] | None
    suspended_cpu: dict[int, Microseconds]
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
    # One share for each interval that goes into any row: times, nulls, bypasses, blank layers, steppers, the whole.
    alpha = spend(ALPHA, look) / (3 * len(probed) + len(samples.bypass) + 2 * len(samples.splits) + 4)
    quick_ns = samples.quick_ns()
    wall = _Legs(samples, samples.splits, entries, alpha)
    # No verdict hangs on the processor's time, so its rows share their chances with nobody.
    cpu = _Legs(samples, samples.cpu, entries, ALPHA) if samples.cpu else None
    bypass = {index: pairs.steady(quick_ns) for index, pairs in samples.bypass.items()}
    step = _step(samples, wall, quick_ns, alpha)

    around, probes_around = [HARNESS], [ZERO]
    if probed and samples.messages:
        # The outside of the outermost probe: all but its share of entering and leaving, which nobody logged.
        probes_around.append(scaled(wall.halves[probed[0]], samples.messages / (samples.messages + 1)))
    if outside and 0 in probed:
        around.append(1)
        probes_around.append(wall.probes_at(0))
    rows = [index for index in probed if not (outside and index == 0)]
    split = {index: wall.row([index + 1], wall.probes_at(index), step) for index in rows}
    suspended = {index: wall.suspended(index + 1) for index in rows}
    return Estimates(
        split=split,
        bypass={index: _interval(pairs.values, alpha) for index, pairs in bypass.items() if wall.kept_pace(pairs)},
        holding=split | {i: wall.row([i + 1], wall.probes_at(i), step, holding=True) for i in rows if suspended[i]},
        suspended=suspended,
        cpu={index: cpu.row([index + 1], cpu.probes_at(index), step) for index in rows} if cpu else None,
        suspended_cpu={index: cpu.suspended(index + 1) if cpu else 0.0 for index in rows},
        outside=wall.row(around, plus(*probes_around), step),
        whole=_interval(samples.whole.steady(quick_ns).values, alpha),
        floor_us=_floor(wall.nulls, alpha),
        slowdown=machine.slowdown(samples.whole.reference + samples.inside.reference),
    )


class _Legs:
    """Requests whose probes read one clock: what the probes cost, and what is left for the rows."""

    def __init__(self, samples: Samples, splits: Mapping[int, Split], entries: Sequence[Entry], alpha: float) -> None:
        quick_ns = samples.quick_ns()
        taken = [splits[level] for level in sorted(splits)]
        self.splits = [split.steady(quick_ns) for split in taken]
        self.alpha = alpha
        blanks = [_blank(split, steady, alpha) for split, steady in zip(taken, self.splits, strict=True)]
        self.nulls = _nulls(self.splits, blanks, samples.probed)
        unsure = _widest(self.splits, blanks)
        nulls = _null_estimates(self.nulls, alpha)
        self.halves = {i: scaled(minus(null, _spread(unsure.get(i, ZERO))), 0.5) for i, null in nulls.items()}
        self.tempo = [paces(split.null_paces()) for split in self.splits]
        self.children = _children(entries, samples.probed)

    def probes_at(self, index: int) -> Estimate:
        """What the probes cost that are charged to an entry: the inside of its own, the outside of its children's."""
        return plus(*(self.halves[i] for i in (index, *self.children[index])))

    def row(self, owners: Sequence[int], probes: Estimate, step: Estimate, *, holding: bool = False) -> Estimate:
        """What these owners spent together, less what the probes and the steppers cost them.

        `holding` leaves out suspensions. A busy machine slows the layer and its probes alike, so the probes are taken
        off at the tempo of the moment: paired, most of the noise that requests have in common goes.
        """
        level = self._level(owners)
        if level is None:
            return _interval((), self.alpha)
        split = self.splits[level]
        own_ns = self._less_probes(split, self.tempo[level], owners, probes, holding)
        resumed = split.resumptions(owners)
        steppers = scaled(step, resumed) if resumed else ZERO
        return minus(_interval(own_ns, self.alpha), plus(_spread(probes), steppers))

    def _level(self, owners: Sequence[int]) -> int | None:
        """The split that has these owners and went past the most; of those with few requests, the one with the most."""
        levels = [level for level, split in enumerate(self.splits) if split.spent and split.owners.issuperset(owners)]
        sizes = {level: min(len(self.splits[level].reference), ENOUGH_REQUESTS) for level in levels}
        return max(levels, key=lambda level: (sizes[level], level), default=None)

    def _less_probes(
        self, split: Split, tempo: Sequence[float], owners: Sequence[int], probes: Estimate, holding: bool
    ) -> list[float]:
        together = [sum(used.ns[owner] for owner in owners) for used in split.spent]
        if holding:
            waits = (sum(used.suspended[owner] for owner in owners) for used in split.spent)
            together = [ns - waited for ns, waited in zip(together, waits, strict=True)]
        probes_ns = probes.estimate / US_PER_NS
        return [ns - probes_ns * pace for ns, pace in zip(together, tempo, strict=True)]

    def suspended(self, owner: int) -> Microseconds:
        """How long the owner was typically suspended."""
        level = self._level([owner])
        return 0.0 if level is None else self.splits[level].suspended_ns(owner) * US_PER_NS

    def kept_pace(self, pairs: Series) -> bool:
        """Whether a bypass's pairs were taken while the machine ran as fast as it did for the split.

        Where all pairs fall into one slow stretch they tell what the layer costs on a slower machine. Without enough of
        a split there is nothing to hold them against, nor anything better.
        """
        genuine = self.splits[0].reference if self.splits else []
        if len(genuine) < ENOUGH_REQUESTS:
            return bool(pairs.reference)
        return bool(pairs.reference) and median(pairs.reference) <= STEADY * median(genuine)


def _interval(values_ns: Sequence[float], alpha: float) -> Estimate:
    """Nanoseconds to an estimate in microseconds; unbounded when there are none."""
    if not values_ns:
        return Estimate(0.0, -math.inf, math.inf)
    return scaled(batched_interval(values_ns, alpha), US_PER_NS)


def _spread(us: Estimate) -> Estimate:
    """Zero, with the distances of the interval's ends from the estimate."""
    return Estimate(0.0, us.low - us.estimate, us.high - us.estimate)


def _blank(taken: Split, steady: Split, alpha: float) -> Estimate:
    """What a blank layer takes: null layers with one more of them against those with the fewest, at each boundary.

    All requests that were taken tell, at the tempo of the steady ones: it is small, and needs many.
    """
    fewest = min((null.blanks for null in steady.null), default=0)
    if not fewest:
        return ZERO
    typical = steady.typical_nulls()
    known = taken.only([null in typical and Null(null.index, fewest) in typical for null in taken.null])
    with_fewest, with_more = [], []
    for null, ns in zip(known.null, known.nulls_at_typical_tempo(typical), strict=True):
        base = typical[Null(null.index, fewest)]
        if null.blanks == fewest:
            with_fewest.append(ns - base)
        else:
            with_more.append((ns - base) / (null.blanks - fewest))
    # It takes something, and less than a null layer does.
    most = max(typical.values()) * US_PER_NS
    added = minus(_interval(with_more, alpha), _interval(with_fewest, alpha))
    return Estimate(*(min(max(0.0, us), most) for us in (added.estimate, added.low, added.high)))


def _nulls(splits: Sequence[Split], blanks: Sequence[Estimate], probed: Sequence[int]) -> dict[int, list[float]]:
    """What the probes of null layers cost at each boundary, in nanoseconds at the typical tempo."""
    nulls: dict[int, list[float]] = {index: [] for index in probed}
    for split, blank in zip(splits, blanks, strict=True):
        for null, ns in zip(split.null, split.nulls_at_typical_tempo(), strict=True):
            nulls[null.index].append(ns - null.blanks * blank.estimate / US_PER_NS)
    return nulls


def _widest(splits: Sequence[Split], blanks: Sequence[Estimate]) -> dict[int, Estimate]:
    """For each boundary what a blank layer takes, by the least sure of the splits that had null layers there."""
    found: dict[int, Estimate] = {}
    for split, blank in zip(splits, blanks, strict=True):
        for index in {null.index for null in split.null}:
            found[index] = max(found.get(index, blank), blank, key=lambda us: us.half_width)
    return found


def _null_estimates(nulls: Mapping[int, list[float]], alpha: float) -> dict[int, Estimate]:
    """What a probe costs at each boundary; where there are few readings, what it costs at any boundary."""
    pooled = _interval(_interleaved(nulls.values()), alpha)
    return {index: _interval(own, alpha) if len(own) >= OWN_NULLS else pooled for index, own in nulls.items()}


def _interleaved(series: Iterable[Sequence[float]]) -> list[float]:
    """All values, a first of each, a second of each, …: in the order of the series they would seem to resemble."""
    return [value for values in zip_longest(*series) for value in values if value is not None]


def _step(samples: Samples, legs: _Legs, quick_ns: float, alpha: float) -> Estimate:
    """What a stepper costs at one suspension: requests with steppers against requests without."""
    if not legs.splits or not samples.inside_stepless.values or not samples.inside.values:
        return ZERO
    resumptions = legs.splits[0].resumptions(legs.splits[0].owners) if legs.splits[0].spent else 0
    if not resumptions:
        return ZERO
    with_steppers = _interval(samples.inside.steady(quick_ns).values, alpha)
    added = minus(with_steppers, _interval(samples.inside_stepless.steady(quick_ns).values, alpha))
    cost = scaled(added, 1 / resumptions)
    # A stepper does less at one suspension than a probe does in a whole request.
    most = median(_interleaved(legs.nulls.values()) or [0.0]) * US_PER_NS
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


def _children(entries: Sequence[Entry], probed: Sequence[int]) -> dict[int, list[int]]:
    """The probed entries right inside each probed entry, those between them having no probe."""
    found: dict[int, list[int]] = {index: [] for index in probed}
    for index in probed:
        parent = entries[index].parent
        while parent is not None and parent not in found:
            parent = entries[parent].parent
        if parent is not None:
            found[parent].append(index)
    return found
