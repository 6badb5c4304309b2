"""Compute medians with intervals that stay valid although there are several looks. No clock, no I/O.

Nothing here assumes a distribution. The interval of a median is that of the sign test, over batches of consecutive
values, because neighbouring requests are not independent. Batches that still resemble each other count for fewer
(docs/decisions/0009).
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from statistics import median

from ..model.estimate import Estimate

# MIN_BATCHES give an interval at a few parts in ten million. MANY_BATCHES show better how much neighbours resemble each
# other, and are made once each has LONG values.
MIN_BATCHES, MANY_BATCHES, LONG = 32, 64, 7
# A series that only drifts is worth a few values, not none.
MOST_CORRELATED = 0.99
# At least this many values count as quiet, because fewer give no interval.
FEWEST_QUIET = 16
# With fewer values at the known quickest pace, the pace of the quickest values of the series stands in.
FEWEST_QUICK = 24
# The number of values that shows how fast the machine can be; of a long series the share.
QUICKEST, QUICKEST_SHARE = 64, 1 / 32
# The pace at a value is the median of this many neighbours.
NEAR = 7


def spend(alpha: float, look: int, *, last: bool = False) -> float:
    """Return the share of `alpha` for look 1, 2, 3, …: `alpha / (look · (look + 1))`, which sums to `alpha`.

    The `last` look has all that is left, `alpha / look`. Which look is the last must not depend on what it shows.
    """
    return alpha / look if last else alpha / (look * (look + 1))


@lru_cache(maxsize=1024)
def sign_rank(n: int, alpha: float) -> int:
    """Return how many of `n` sorted values to leave out at each end for a two-sided `1 - alpha` interval of the median.

    -1 if even the whole range does not reach that confidence.
    """
    # In integers, because a float cannot hold the terms of a long series.
    numerator, denominator = alpha.as_integer_ratio()
    most = (numerator << n) // (2 * denominator)
    tail, rank, choose = 0, -1, 1
    for k in range(n // 2):
        tail += choose
        if tail > most:
            break
        rank = k
        choose = choose * (n - k) // (k + 1)
    return rank


def median_interval(values: Sequence[float], alpha: float, worth: float | None = None) -> Estimate:
    """Return the median of `values` with its sign-test interval at confidence `1 - alpha`.

    The interval is exact for independent values, and unbounded for too few. Source: Conover, "Practical Nonparametric
    Statistics", 3.4. Correlated values are `worth` fewer independent ones: the ends then have the places that the exact
    ends have among `worth` values. If `worth` is too small for an interval, the whole range is stretched by the square
    root of the missing factor. Raises ValueError if `values` is empty.
    """
    if not values:
        raise ValueError("the median of nothing")
    ordered = sorted(values)
    centre = median(ordered)
    if sign_rank(len(ordered), alpha) < 0:
        return Estimate(centre, -math.inf, math.inf)
    worth = len(ordered) if worth is None else worth
    rank = sign_rank(int(worth), alpha)
    if rank >= 0:
        place = (rank + 1) * (len(ordered) + 1) // (int(worth) + 1) - 1
        return Estimate(centre, ordered[place], ordered[-1 - place])
    least = math.ceil(1 - math.log2(alpha))  # the fewest independent values whose range reaches the confidence
    stretch = math.sqrt(least / worth)
    return Estimate(centre, centre - (centre - ordered[0]) * stretch, centre + (ordered[-1] - centre) * stretch)


def batch_medians(values: Sequence[float]) -> list[float]:
    """Return the medians of consecutive batches of equal, odd length. The remainder joins the last batch.

    Less than three times MIN_BATCHES values are returned as they are. With more values the batches grow in length to
    LONG, then in number to about MANY_BATCHES, then in length again. The length is odd because the median of an even
    number of skewed values tends to the side of the long tail.
    """
    length = min(len(values) // MIN_BATCHES, max(LONG, len(values) // MANY_BATCHES))
    length -= length % 2 == 0
    if length <= 1:
        return list(values)
    count = len(values) // length
    starts = range(0, count * length, length)
    ends = [*range(length, count * length, length), len(values)]
    return [median(values[start:end]) for start, end in zip(starts, ends, strict=True)]


def correlation_of_neighbours(values: Sequence[float]) -> float:
    """Return the rank correlation of each value with the next, from 0 to MOST_CORRELATED.

    Ranks, because one outlier would hide any correlation. Corrected for the bias of a short series. Source: Kendall,
    "Note on bias in the estimation of autocorrelation", Biometrika 41 (1954).
    """
    count, ordered = len(values), sorted(values)
    ranks = [bisect_left(ordered, value) + bisect_right(ordered, value) - count for value in values]
    spread = sum(rank * rank for rank in ranks)
    if not spread:
        return 0.0
    plain = sum(rank * following for rank, following in pairwise(ranks)) / spread
    return min(max(0.0, plain + (1 + 3 * plain) / count), MOST_CORRELATED)


def batched_interval(values: Sequence[float], alpha: float) -> Estimate:
    """Return the median of all `values` with the interval of their batches.

    A series whose neighbours are correlated by `r` is worth `(1 - r) / (1 + r)` of its length.
    """
    return _around(median(values), batch_medians(values), alpha)


def difference_interval(values: Sequence[float], less: Sequence[float], alpha: float) -> Estimate:
    """Return the median of `values` minus the median of `less`, with an interval from the same batches of both.

    Both series are of the same requests, in the same order, so noise that is in both cancels out. The median of the
    differences of single requests would be another figure where values are skewed.
    """
    batches = [ours - theirs for ours, theirs in zip(batch_medians(values), batch_medians(less), strict=True)]
    return _around(median(values) - median(less), batches, alpha)


def _around(centre: float, batches: Sequence[float], alpha: float) -> Estimate:
    r = correlation_of_neighbours(batches)
    spread = median_interval(batches, alpha, len(batches) * (1 - r) / (1 + r))
    return Estimate(centre, min(spread.low, centre), max(spread.high, centre))


def paces(values: Sequence[float]) -> list[float]:
    """Return for each value the median of its group of NEAR consecutive values."""
    parts = [values[start : start + NEAR] for start in range(0, len(values), NEAR)]
    return [pace for part in parts for pace in [median(part)] * len(part)]


def paces_of_others(values: Sequence[float]) -> list[float]:
    """Return for each value the median of the others in its group, itself if it is alone.

    A value that is compared with a pace must have no part in that pace.
    """
    medians: list[float] = []
    for start in range(0, len(values), NEAR):
        part = values[start : start + NEAR]
        medians += [median([*part[:place], *part[place + 1 :]] or part) for place in range(len(part))]
    return medians


def quickest(values: Sequence[float]) -> float:
    """Return the pace of the quickest values: a quarter of a short series, QUICKEST of a long one. Infinite for none.

    A noisy neighbour may pause for only a few hundredths of the time.
    """
    return _quickest(sorted(paces(values)))


def _quickest(ordered: Sequence[float]) -> float:
    place = min(len(ordered) / 4, max(QUICKEST, QUICKEST_SHARE * len(ordered)))
    return ordered[int(place)] if ordered else math.inf


def quiet(values: Sequence[float], factor: float, quick: float | None = None) -> list[bool]:
    """Return which of the `values` are from quiet moments: with a pace of at most `factor` times `quick`.

    `quick` is that of the quickest quarter by default. The values must be independent of the figures that are judged,
    so that the choice favours no verdict.
    """
    pace = paces(values)
    limit = quiet_limit(pace, factor, quick)
    return [value <= limit for value in pace]


def quiet_limit(kept_paces: Sequence[float], factor: float, quick: float | None = None) -> float:
    """Return the slowest pace that counts as quiet: `factor` times `quick`, by default that of the quickest quarter.

    If a given `quick` would keep too few values, that of the `quickest` stands in. At least FEWEST_QUIET are kept.
    """
    if not kept_paces:
        return math.inf
    ordered = sorted(kept_paces)
    if quick is None:
        quick = ordered[len(ordered) // 4]
    elif bisect_right(ordered, quick * factor) < min(len(ordered) / 8, FEWEST_QUICK):
        quick = _quickest(ordered)
    return max(quick * factor, ordered[min(len(ordered), FEWEST_QUIET) - 1])
