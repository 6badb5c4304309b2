"""Medians with exact intervals that stay valid although they are looked at again and again. No clock, no I/O.

Nothing here assumes a distribution. The interval for a median is the sign test's: between two order statistics,
with binomial coverage. Neighbouring requests are not independent (a busy neighbour stays busy for a while), so
consecutive values are first merged into a few dozen batches that grow with the run; batches much longer than the
correlation are as good as independent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import median

from .model import Estimate

# Between 32 and 63 batches: enough for an interval at a few parts in ten million, few enough to be long.
MIN_BATCHES = 32

# A value belongs to a quiet moment when the reference workload next to it took at most this much longer than in the
# quickest quarter of the run.
QUIET_FACTOR = 1.15


def spend(alpha: float, look: int) -> float:
    """The share of `alpha` for look 1, 2, 3, …: `alpha / (look · (look + 1))`, which sums to `alpha` for ever."""
    return alpha / (look * (look + 1))


@lru_cache(maxsize=1024)
def sign_rank(n: int, alpha: float) -> int:
    """How many values to leave out at each end of `n` sorted ones for a two-sided `1 - alpha` interval of the median.

    -1 when even the whole range does not reach that confidence.
    """
    tail, rank, choose = 0.0, -1, 1
    scale = 0.5**n if n < 1000 else math.exp(-n * math.log(2.0))
    for k in range(n // 2):
        tail += choose * scale
        if tail > alpha / 2:
            break
        rank = k
        choose = choose * (n - k) // (k + 1)
    return rank


def median_interval(values: Sequence[float], alpha: float) -> Estimate:
    """The median of independent `values` with its exact sign-test interval at confidence `1 - alpha`.

    The interval is unbounded when there are too few values. Source: any text on the sign test, e.g. Conover,
    "Practical Nonparametric Statistics", 3.4. Raises ValueError when `values` is empty.
    """
    if not values:
        raise ValueError("the median of nothing")
    ordered = sorted(values)
    rank = sign_rank(len(ordered), alpha)
    if rank < 0:
        return Estimate(median(ordered), -math.inf, math.inf)
    return Estimate(median(ordered), ordered[rank], ordered[-1 - rank])


def batch_medians(values: Sequence[float], at_least: int = MIN_BATCHES) -> list[float]:
    """Medians of consecutive values, merged into `at_least` to `2 * at_least - 1` batches of equal length.

    Fewer than `at_least` values come back as they are. The remainder joins the last batch.
    """
    length = len(values) // at_least
    if length <= 1:
        return list(values)
    count = len(values) // length
    starts = range(0, count * length, length)
    ends = [*range(length, count * length, length), len(values)]
    return [median(values[start:end]) for start, end in zip(starts, ends, strict=True)]


def batched_interval(values: Sequence[float], alpha: float) -> Estimate:
    """`median_interval` over `batch_medians`, the estimate being the median of all values."""
    spread = median_interval(batch_medians(values), alpha)
    centre = median(values)
    return Estimate(centre, min(spread.low, centre), max(spread.high, centre))


def minus(left: Estimate, right: Estimate) -> Estimate:
    """The difference of two estimates; its interval holds whenever both intervals hold."""
    return Estimate(left.estimate - right.estimate, left.low - right.high, left.high - right.low)


def plus(*parts: Estimate) -> Estimate:
    """The sum of estimates; its interval holds whenever all their intervals hold."""
    return Estimate(
        math.fsum(p.estimate for p in parts), math.fsum(p.low for p in parts), math.fsum(p.high for p in parts)
    )


def scaled(estimate: Estimate, factor: float) -> Estimate:
    """The estimate and its interval times a positive `factor`."""
    return Estimate(estimate.estimate * factor, estimate.low * factor, estimate.high * factor)


def quiet(reference: Sequence[float]) -> list[bool]:
    """Which values were taken in quiet moments, judged by the fixed workload that was timed next to each.

    The choice never looks at the values themselves, so it cannot lean towards a verdict. At least a quarter is kept.
    """
    if not reference:
        return []
    quick = sorted(reference)[len(reference) // 4]
    return [value <= quick * QUIET_FACTOR for value in reference]
