"""From samples to estimates: what each row costs, with intervals that hold together. Pure; no clock.

What a probe costs at a boundary is known from the null layer there: the time between two probes with nothing between
is the inner part of the outer one and the outer part of the inner one. A layer's own time holds the inner part of its
probe and the outer part of its child's, so half of each null is taken off.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from statistics import median

from .boundaries import HARNESS
from .discovery import Entry
from .model import Estimate, Microseconds
from .stats import batched_interval, minus, paces, plus, quiet, scaled, spend

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
    """Values in the order in which they were taken.

    Beside each stands the reference workload's time before the request, and what a typical null layer read in it.
    """

    values: list[float] = field(default_factory=list)
    reference: list[float] = field(default_factory=list)
    null: list[float] = field(default_factory=list)

    def add(self, value: float, reference: float, null: float = 1.0) -> None:
        """Append one value."""
        self.values.append(value)
        self.reference.append(reference)
        self.null.append(null)

    def quiet(self) -> Series:
        """What was taken while the machine ran at its speed, by the reference workload and by the null layers."""
        steady = self._kept(quiet(self.reference, QUIET_REFERENCE))
        return steady._kept(quiet(steady.null, QUIET_NULL))

    def _kept(self, kept: Sequence[bool]) -> Series:
        columns = (self.values, self.reference, self.null)
        return Series(*([value for value, is_kept in zip(one, kept, strict=True) if is_kept] for one in columns))

    def tempo(self) -> list[float]:
        """How much a null layer took near each value, relative to the whole series: what slows all rows alike."""
        typical = median(self.null) if self.null else 0.0
        return [pace / typical if typical else 1.0 for pace in paces(self.null)]


@dataclass(slots=True)
class Samples:
    """Everything measured so far, in nanoseconds.

    `owned` and `resumed` are by owner, `null` and `bypass` by entry of the stack. `inside` is the whole time between
    the first and the last crossing, `inside_stepless` the same in requests without steppers, `whole` that of requests
    without any probe. `messages` is the number of calls of the server's receive and send in one request.
    """

    owned: list[Series]
    null: dict[int, Series]
    whole: Series = field(default_factory=Series)
    bypass: dict[int, Series] = field(default_factory=dict)
    inside: Series = field(default_factory=Series)
    inside_stepless: Series = field(default_factory=Series)
    resumed: list[Series] = field(default_factory=list)
    messages: int = 0
    rounds: int = 0
    requests: int = 0

    @classmethod
    def of(cls, owners: int, probed: Iterable[int]) -> Samples:
        """Empty samples for a stack with so many owners of time, and for the null layer at each probed entry."""
        return cls(
            owned=[Series() for _ in range(owners)],
            resumed=[Series() for _ in range(owners)],
            null={index: Series() for index in probed},
        )


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
        kept = [value for value, is_kept in zip(reference, quiet(reference, QUIET_REFERENCE), strict=True) if is_kept]
        ratio = median(kept) / self.quickest_ns if self.quickest_ns > 0 else 1.0
        return ratio if ratio > STEADY else 1.0


def estimate(samples: Samples, entries: Sequence[Entry], *, outside: bool, look: int, machine: Machine) -> Estimates:
    """Every row's estimate from all samples, at the given look (1, 2, …), `alpha` being spent over looks and rows.

    `outside` says that entry 0 is the app object, whose time is not a layer's.
    """
    probed = sorted(samples.null)
    # One share for each interval that goes into any row: times, nulls, bypasses, and the whole.
    alpha = spend(ALPHA, look) / (2 * len(probed) + len(samples.bypass) + 2)
    nulls = _nulls(samples, alpha)
    step_us = _step_us(samples)
    halves = {index: scaled(null, 0.5) for index, null in nulls.items()}

    def probes_at(index: int) -> Estimate:
        """What the probes cost that are charged to an entry: the inside of its own, the outside of its children's."""
        return plus(halves[index], *(halves[i] for i in probed if _probed_parent(entries, i, nulls) == index))

    def row(index: int) -> Estimate:
        return _row(samples, [index + 1], probes_at(index), alpha, step_us)

    around, probes_around = [HARNESS], [ZERO]
    if probed and samples.messages:
        # The outside of the outermost probe: all but its share of entering and leaving, which nobody logged.
        probes_around.append(scaled(halves[probed[0]], samples.messages / (samples.messages + 1)))
    if outside and 0 in nulls:
        around.append(1)
        probes_around.append(probes_at(0))
    return Estimates(
        split={index: row(index) for index in probed if not (outside and index == 0)},
        bypass={i: _interval(series.quiet().values, alpha) for i, series in samples.bypass.items() if series.values},
        outside=_row(samples, around, plus(*probes_around), alpha, step_us),
        whole=_interval(samples.whole.quiet().values, alpha),
        floor_us=_floor(samples, alpha),
        slowdown=machine.slowdown(samples.whole.reference + samples.inside.reference),
    )


def _interval(values_ns: Sequence[float], alpha: float) -> Estimate:
    """Nanoseconds to an estimate in microseconds; unbounded when there are none."""
    if not values_ns:
        return Estimate(0.0, -math.inf, math.inf)
    return scaled(batched_interval(values_ns, alpha), US_PER_NS)


def _row(samples: Samples, owners: Sequence[int], probes: Estimate, alpha: float, step_us: Microseconds) -> Estimate:
    """What these owners spent together, less what the probes and the steppers cost them.

    A busy machine slows the layer and its probes alike, so the probes are taken off at the pace of the moment: paired,
    most of the noise that requests have in common goes.
    """
    series = [samples.owned[owner].quiet() for owner in owners]
    together = [sum(values) for values in zip(*(one.values for one in series), strict=True)]
    probes_ns = probes.estimate / US_PER_NS
    own = [ns - probes_ns * tempo for ns, tempo in zip(together, series[0].tempo(), strict=True)]
    resumed = sum(median(samples.resumed[owner].values or [0.0]) for owner in owners)
    steppers = Estimate(*[step_us * resumed] * 3)
    return minus(_interval(own, alpha), plus(_spread(probes), steppers))


def _spread(us: Estimate) -> Estimate:
    """Zero, with the distances of the interval's ends from the estimate."""
    return Estimate(0.0, us.low - us.estimate, us.high - us.estimate)


def _nulls(samples: Samples, alpha: float) -> dict[int, Estimate]:
    """What a probe costs at each boundary; where there are few readings, what it costs at any boundary."""
    readings = {index: _paced(series.quiet()) for index, series in samples.null.items()}
    pooled = _interval(_interleaved(readings.values()), alpha)
    return {index: _interval(own, alpha) if len(own) >= OWN_NULLS else pooled for index, own in readings.items()}


def _interleaved(series: Iterable[Sequence[float]]) -> list[float]:
    """All values, a first of each, a second of each, …: in the order of the series they would seem to resemble."""
    return [value for values in zip_longest(*series) for value in values if value is not None]


def _paced(series: Series) -> list[float]:
    """The values at the typical pace of the machine."""
    return [value / (tempo or 1.0) for value, tempo in zip(series.values, series.tempo(), strict=True)]


def _step_us(samples: Samples) -> Microseconds:
    """What a stepper costs at one suspension: requests with steppers against requests without."""
    resumptions = sum(median(series.values) for series in samples.resumed if series.values)
    if not resumptions or not samples.inside_stepless.values or not samples.inside.values:
        return 0.0
    added = median(samples.inside.quiet().values) - median(samples.inside_stepless.quiet().values)
    return max(0.0, added * US_PER_NS / resumptions)


def _floor(samples: Samples, alpha: float) -> Microseconds:
    """The least overhead that the samples can tell from a null layer's, at the typical boundary.

    An A/A test: one half of the null layer's readings at a boundary against the other half.
    """
    readings = [_paced(series.quiet()) for series in samples.null.values()]
    enough = [own for own in readings if len(own) >= 2 * OWN_NULLS]
    if not enough:
        enough = [_interleaved(readings)]
    return median(_half_against_half(own, alpha) for own in enough)


def _half_against_half(values_ns: Sequence[float], alpha: float) -> Microseconds:
    difference = minus(_interval(values_ns[0::2], alpha), _interval(values_ns[1::2], alpha))
    return max(abs(difference.low), abs(difference.high))


def _probed_parent(entries: Sequence[Entry], index: int, probed: Iterable[int]) -> int | None:
    parent = entries[index].parent
    while parent is not None and parent not in probed:
        parent = entries[parent].parent
    return parent
