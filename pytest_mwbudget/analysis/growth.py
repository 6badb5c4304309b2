"""Tell whether a layer's time or its objects grow with the requests served. Pure; no clock.

A machine that changes its speed once looks like growth from far. So growth has to show in both halves of the requests,
by more than the reference workload and the known drift explain (docs/decisions/0035).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from statistics import median

from ..model.estimate import Estimate
from .intervals import batch_medians, batched_interval, median_interval, quiet
from .slowdown import APPS_SLOWED, QUIET_REFERENCE

# What a constant layer may drift by within a phase, in nanoseconds and as a share of its time.
DRIFT_NS, DRIFT_SHARE = 100.0, 0.03
# With fewer requests from quiet moments, halves have no intervals.
FEWEST_REQUESTS = 256
# Objects grow if each of this many stretches of the followed requests left some alive.
STRETCHES = 8


@dataclass(frozen=True, slots=True)
class Slope:
    """The nanoseconds that each request adds to the next ones, and whether that is certainly growth."""

    ns_per_request: Estimate
    grows: bool


def slope(
    values_ns: Sequence[float], reference_ns: Sequence[float], alpha: float, served: Sequence[int] = ()
) -> Slope | None:
    """Return how the values grow from request to request, None if too few are from quiet moments.

    `reference_ns` are the times of the reference workload before each request, and `served` the numbers of requests
    before each, if these are not consecutive. The interval and both halves hold jointly at `1 - alpha`.
    """
    kept = quiet(reference_ns, QUIET_REFERENCE)
    places = list(compress(served or range(len(values_ns)), kept))
    if len(places) < FEWEST_REQUESTS:
        return None
    values, reference = list(compress(values_ns, kept)), list(compress(reference_ns, kept))
    half = bisect_left(places, (places[0] + places[-1]) / 2)
    if min(half, len(places) - half) < 2:
        return None  # no growth can be seen within a half
    whole, *halves = (
        _slope(places[part], values[part], reference[part], alpha / 3)
        for part in (slice(None), slice(half), slice(half, None))
    )
    return Slope(whole, all(growth.low > 0 for growth in (whole, *halves)))


def grow(values_ns: Sequence[float], reference_ns: Sequence[float], alpha: float, served: Sequence[int] = ()) -> bool:
    """Return whether values certainly grow from request to request. The parameters are those of `slope`."""
    if not values_ns or batched_interval(values_ns, alpha).half_width <= _drift(median(values_ns)):
        return False  # as always if they do not grow, and sooner known
    trend = slope(values_ns, reference_ns, alpha, served)
    return trend is not None and trend.grows


def course(values: Sequence[float]) -> Estimate:
    """Return the median of values that grow, between the least and the greatest of their batches.

    Growing values have no typical one: their median depends on the number of requests, and an interval of the median
    extends far beyond the values.
    """
    batches = batch_medians(values)
    return Estimate(median(values), min(batches), max(batches))


def _slope(places: Sequence[int], values: Sequence[float], reference: Sequence[float], alpha: float) -> Estimate:
    """Return the median growth from each value to the one half a series later.

    Where the reference workload changed its pace, the values may have changed by up to its square. Its changes are
    those of the machine during these very requests, however they are correlated, and only each timing has an error of
    its own. So their median has the interval of independent values.
    """
    growth = batched_interval(_growths(places, values), alpha / 2)
    machine = median_interval(_growths(places, reference), alpha / 2) / (median(reference) or 1.0)
    typical, half = abs(median(values)), len(places) // 2
    apart = median(places[i + half] - places[i] for i in range(half))
    drift = _drift(typical) / apart
    low = growth.low - typical * APPS_SLOWED * max(0.0, machine.high) - drift
    high = growth.high - typical * APPS_SLOWED * min(0.0, machine.low) + drift
    return Estimate(growth.estimate, low, high)


def _drift(typical: float) -> float:
    return DRIFT_NS + DRIFT_SHARE * abs(typical)


def _growths(places: Sequence[int], values: Sequence[float]) -> list[float]:
    half = len(values) // 2
    return [(values[i + half] - values[i]) / (places[i + half] - places[i]) for i in range(half)]


def lasting(alive: Sequence[Mapping[str, int]]) -> dict[str, float]:
    """Return by type how many objects of a request, on average, stay alive.

    `alive` has for each request, in order, the objects that were alive long after the last one. Empty if only some
    stretches of the requests left any, as a cache does that fills once.
    """
    length = len(alive) // STRETCHES
    if not length:
        return {}
    stretches = [alive[start : start + length] for start in range(0, STRETCHES * length, length)]
    if not all(any(sum(kinds.values()) for kinds in stretch) for stretch in stretches):
        return {}
    total: Counter[str] = Counter()
    for kinds in alive:
        total.update(kinds)
    return {kind: number / len(alive) for kind, number in total.most_common()}
