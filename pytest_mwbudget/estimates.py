"""From samples to estimates: what each row costs, with intervals that hold together. Pure; no clock.

What a probe costs at a boundary is known from the null layer there: the time between two probes with nothing between
is the inner part of the outer one and the outer part of the inner one. A layer's own time holds the inner part of its
probe and the outer part of its child's, so half of each null is taken off.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

from .boundaries import HARNESS
from .discovery import Entry
from .model import Estimate, Microseconds
from .stats import batched_interval, minus, plus, quiet, scaled, spend

# The chance that any interval of a measurement, over all rows and all looks, misses its median.
ALPHA = 0.01
# A null layer with fewer readings of its own borrows those of all boundaries.
OWN_NULLS = 64
# Below this the machine's speed is as steady as it gets, and nothing is made of it.
STEADY = 1.10

US_PER_NS = 1e-3
ZERO = Estimate(0.0, 0.0, 0.0)


@dataclass(slots=True)
class Series:
    """Values in the order in which they were taken, each with the reference workload's time next to it."""

    values: list[float] = field(default_factory=list)
    reference: list[float] = field(default_factory=list)

    def add(self, value: float, reference: float) -> None:
        """Append one value."""
        self.values.append(value)
        self.reference.append(reference)

    def quiet_values(self) -> list[float]:
        """The values that were taken while the machine ran at its speed."""
        return [value for value, kept in zip(self.values, quiet(self.reference), strict=True) if kept]


@dataclass(slots=True)
class Samples:
    """Everything measured so far, in nanoseconds.

    `owned` and `resumed` are by owner, `null` and `bypass` by entry of the stack. `inside` is the whole time inside
    the outermost probe, `inside_stepless` the same in requests without steppers, `whole` that of requests without any
    probe. `messages` is the number of calls of the server's receive and send in one request.
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
        kept = [value for value, is_kept in zip(reference, quiet(reference), strict=True) if is_kept]
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

    def own(index: int) -> Estimate:
        children = [nulls[i] for i in probed if _probed_parent(entries, i, nulls) == index]
        probes = scaled(plus(nulls[index], *children), 0.5)
        return minus(_owned(samples, index + 1, alpha, step_us), probes)

    split = {index: own(index) for index in probed if not (outside and index == 0)}
    server = _owned(samples, HARNESS, alpha, step_us)
    if probed and samples.messages:
        # The outer part of the outermost probe: all but its share of entering and leaving, which nobody logged.
        messages = samples.messages
        server = minus(server, scaled(nulls[probed[0]], 0.5 * messages / (messages + 1)))
    return Estimates(
        split=split,
        bypass={i: _interval(series.quiet_values(), alpha) for i, series in samples.bypass.items() if series.values},
        outside=plus(server, own(0)) if outside and 0 in nulls else server,
        whole=_interval(samples.whole.quiet_values(), alpha),
        floor_us=_floor(samples, alpha),
        slowdown=machine.slowdown(samples.whole.reference + samples.inside.reference),
    )


def _interval(values_ns: Sequence[float], alpha: float) -> Estimate:
    """Nanoseconds to an estimate in microseconds; unbounded when there are none."""
    if not values_ns:
        return Estimate(0.0, -math.inf, math.inf)
    return scaled(batched_interval(values_ns, alpha), US_PER_NS)


def _owned(samples: Samples, owner: int, alpha: float, step_us: Microseconds) -> Estimate:
    """What an owner spent, less what the steppers cost at its resumptions."""
    spent = _interval(samples.owned[owner].quiet_values(), alpha)
    times = median(samples.resumed[owner].values) if samples.resumed[owner].values else 0.0
    return minus(spent, Estimate(step_us * times, step_us * times, step_us * times))


def _nulls(samples: Samples, alpha: float) -> dict[int, Estimate]:
    """What a probe costs at each boundary; where there are few readings, what it costs at any boundary."""
    everywhere = [value for series in samples.null.values() for value in series.quiet_values()]
    pooled = _interval(everywhere, alpha)
    return {
        index: _interval(own, alpha) if len(own := series.quiet_values()) >= OWN_NULLS else pooled
        for index, series in samples.null.items()
    }


def _step_us(samples: Samples) -> Microseconds:
    """What a stepper costs at one suspension: requests with steppers against requests without."""
    resumptions = sum(median(series.values) for series in samples.resumed if series.values)
    if not resumptions or not samples.inside_stepless.values or not samples.inside.values:
        return 0.0
    added = median(samples.inside.quiet_values()) - median(samples.inside_stepless.quiet_values())
    return max(0.0, added * US_PER_NS / resumptions)


def _floor(samples: Samples, alpha: float) -> Microseconds:
    """The least overhead that the samples can tell from a null layer's, at the typical boundary.

    An A/A test: one half of the null layer's readings at a boundary against the other half.
    """
    readings = [series.quiet_values() for series in samples.null.values()]
    enough = [own for own in readings if len(own) >= 2 * OWN_NULLS]
    if not enough:
        enough = [[value for own in readings for value in own]]
    return median(_half_against_half(own, alpha) for own in enough)


def _half_against_half(values_ns: Sequence[float], alpha: float) -> Microseconds:
    difference = minus(_interval(values_ns[0::2], alpha), _interval(values_ns[1::2], alpha))
    return max(abs(difference.low), abs(difference.high))


def _probed_parent(entries: Sequence[Entry], index: int, probed: Iterable[int]) -> int | None:
    parent = entries[index].parent
    while parent is not None and parent not in probed:
        parent = entries[parent].parent
    return parent
