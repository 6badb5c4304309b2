"""Medians with exact intervals that stay valid although they are looked at again and again. No clock, no I/O.

Nothing here assumes a distribution. The interval for a median is the sign test's: between two order statistics,
with binomial coverage. Neighbouring requests are not independent (a busy neighbour stays busy for a while), so
consecutive values are first merged into dozens of batches that grow with the run; batches much longer than the
correlation are as good as independent. While they are not yet, neighbouring batches resemble one another: they then
count only for as many independent ones as they are worth.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from statistics import median

from ..model.estimate import Estimate

# So many batches are enough for an interval at a few parts in ten million. Twice as many tell better how much they
# resemble one another, which costs an interval the more the less it is known: as soon as they are of `LONG` values.
MIN_BATCHES, MANY_BATCHES, LONG = 32, 64, 7

# A series that only ever drifts is worth a few values, not none.
MOST_CORRELATED = 0.99

# Of less there is no interval, and a short series has slow values because it is short.
FEWEST_QUIET = 16

# So many quick moments' values are kept by themselves; with fewer, slower ones are kept as well.
FEWEST_QUICK = 24

# So many values are enough to tell how fast the machine can be; of a long series such a share.
QUICKEST, QUICKEST_SHARE = 64, 1 / 32

# The pace at a value is the median of so many neighbours.
NEAR = 7


def spend(alpha: float, look: int, *, last: bool = False) -> float:
    """The share of `alpha` for look 1, 2, 3, …: `alpha / (look · (look + 1))`, which sums to `alpha` for ever.

    After the `last` look there is none to save for: it has all that is left, `alpha / look`. Which one is the last must
    not depend on what it shows.
    """
    return alpha / look if last else alpha / (look * (look + 1))


@lru_cache(maxsize=1024)
def sign_rank(n: int, alpha: float) -> int:
    """How many values to leave out at each end of `n` sorted ones for a two-sided `1 - alpha` interval of the median.

    -1 when even the whole range does not reach that confidence.
    """
    # In whole numbers, or the terms of a long series would be too large and its scale too small for a float.
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
    """The median of `values` with its sign-test interval at confidence `1 - alpha`.

    The interval is exact for independent values, and unbounded when there are too few. Source: any text on the sign
    test, e.g. Conover, "Practical Nonparametric Statistics", 3.4. Values that are not independent are `worth` fewer:
    the interval then has the place among them that the exact one has among that many, and where even all of them are
    not enough it is stretched by the square root of what is missing. Raises ValueError when `values` is empty.
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
    least = math.ceil(1 - math.log2(alpha))  # so many independent values reach the confidence with their whole range
    stretch = math.sqrt(least / worth)
    return Estimate(centre, centre - (centre - ordered[0]) * stretch, centre + (ordered[-1] - centre) * stretch)


def batch_medians(values: Sequence[float]) -> list[float]:
    """Medians of consecutive values, merged into batches of equal, odd length.

    Less than three times `MIN_BATCHES` values come back as they are. With more of them the batches grow, first in
    length, to `LONG` values each in at least `MIN_BATCHES`, then in number, to `MANY_BATCHES` or some more, then in
    length again. The remainder joins the last batch. The length is odd because the median of an even number of
    skewed values lies, more often than not, on the side of the long tail.
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
    """How much each value resembles the next: the rank correlation at lag one, 0 to `MOST_CORRELATED`.

    By ranks, because one outlier would hide every resemblance. Corrected for the bias of a short series, by which the
    plain figure is too small: Kendall, "Note on bias in the estimation of autocorrelation", Biometrika 41 (1954).
    """
    count, ordered = len(values), sorted(values)
    ranks = [bisect_left(ordered, value) + bisect_right(ordered, value) - count for value in values]
    spread = sum(rank * rank for rank in ranks)
    if not spread:
        return 0.0
    plain = sum(rank * following for rank, following in pairwise(ranks)) / spread
    return min(max(0.0, plain + (1 + 3 * plain) / count), MOST_CORRELATED)


def batched_interval(values: Sequence[float], alpha: float) -> Estimate:
    """The median of all `values`, with the `median_interval` of their batches for what the batches are worth.

    A series in which each value resembles the next by `r` is worth `(1 - r) / (1 + r)` of its length.
    """
    batches = batch_medians(values)
    alike = correlation_of_neighbours(batches)
    spread = median_interval(batches, alpha, len(batches) * (1 - alike) / (1 + alike))
    centre = median(values)
    return Estimate(centre, min(spread.low, centre), max(spread.high, centre))


def paces(values: Sequence[float]) -> list[float]:
    """For each value the median of the `NEAR` consecutive ones that it stands among."""
    parts = [values[start : start + NEAR] for start in range(0, len(values), NEAR)]
    return [median(part) for part in parts for _ in part]


def paces_of_others(values: Sequence[float]) -> list[float]:
    """For each value the median of the others that it stands among, itself where it is alone.

    To set a value against its moment: against a pace that it helped to make it would look too much like it.
    """
    found: list[float] = []
    for start in range(0, len(values), NEAR):
        part = values[start : start + NEAR]
        found += [median([*part[:place], *part[place + 1 :]] or part) for place in range(len(part))]
    return found


def quickest(values: Sequence[float]) -> float:
    """The pace that the quickest of the values kept: a quarter of a short series, `QUICKEST` of a long one.

    A neighbour on a shared core may leave it alone for a few hundredths of the time. Infinite for no values.
    """
    return _quickest(sorted(paces(values)))


def _quickest(ordered: Sequence[float]) -> float:
    place = min(len(ordered) / 4, max(QUICKEST, QUICKEST_SHARE * len(ordered)))
    return ordered[int(place)] if ordered else math.inf


def quiet(values: Sequence[float], factor: float, quick: float | None = None) -> list[bool]:
    """Which of the `values` were taken in quiet moments: at most `factor` times the pace `quick`.

    `quick` is that of the quickest quarter unless it is told. To be used with the times of something that has nothing
    to do with what is judged, so that the choice cannot lean towards a verdict.
    """
    pace = paces(values)
    limit = quiet_limit(pace, factor, quick)
    return [value <= limit for value in pace]


def quiet_limit(kept_paces: Sequence[float], factor: float, quick: float | None = None) -> float:
    """The slowest pace at which what kept these paces counts as quiet: `factor` times the pace `quick`.

    That is the one of the quickest quarter unless it is told; where too few would be kept, the pace of the `quickest`
    stands in. At least `FEWEST_QUIET` are kept, the quickest.
    """
    if not kept_paces:
        return math.inf
    ordered = sorted(kept_paces)
    if quick is None:
        quick = ordered[len(ordered) // 4]
    elif bisect_right(ordered, quick * factor) < min(len(ordered) / 8, FEWEST_QUICK):
        quick = _quickest(ordered)
    return max(quick * factor, ordered[min(len(ordered), FEWEST_QUIET) - 1])
