"""Compute percentiles, and shares of requests, with intervals that assume no distribution. No clock, no I/O.

Slow requests come in bursts. So a series counts for fewer independent values, as far as its exceedances crowd.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

from ..model.estimate import Estimate

# Exceedances are counted in these numbers of consecutive blocks, to see how much they crowd.
BLOCKS = (64, 32, 16)


def quantile_interval(values: Sequence[float], above: float, alpha: float) -> Estimate:
    """Return the value that a share `above` of the values exceeds, with its `1 - alpha` interval.

    The ends are order statistics with binomial coverage. An end is infinite if there are too few values for it. Source:
    Conover, "Practical Nonparametric Statistics", 3.2. Raises ValueError if `values` is empty.
    """
    if not values:
        raise ValueError("the percentile of nothing")
    ordered, count = sorted(values, reverse=True), len(values)
    centre = ordered[min(count - 1, math.floor(above * count))]
    worth = independent([value > centre for value in values])
    scale = count / worth
    most, least = _most_beyond(worth, above, alpha / 2), _least_beyond(worth, above, alpha / 2)
    high_place, low_place = math.floor((most + 1) * scale) - 1, math.ceil(least * scale) - 1
    high = ordered[high_place] if most >= 0 else math.inf
    low = ordered[low_place] if low_place < count else -math.inf
    return Estimate(centre, min(low, centre), max(high, centre))


def requests_needed(above: float, alpha: float) -> int:
    """Return the fewest independent values that give `quantile_interval` an upper end."""
    return math.ceil(math.log(alpha / 2) / math.log1p(-above))


def least_share(flags: Sequence[bool], alpha: float) -> float:
    """Return the lower `1 - alpha` bound of the share of flags that are set. Source: Clopper and Pearson (1934)."""
    worth = independent(flags)
    hits = math.floor(sum(flags) * worth / max(len(flags), 1))
    if not hits:
        return 0.0
    low, high = 0.0, hits / worth
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if 1 - _at_most(hits - 1, worth, middle) > alpha else (middle, high)
    return low


def most_share(flags: Sequence[bool], alpha: float) -> float:
    """Return the upper `1 - alpha` bound of the share of flags that are set; 1 without flags."""
    if not flags:
        return 1.0
    worth = independent(flags)
    hits = math.ceil(sum(flags) * worth / len(flags))
    low, high = hits / worth, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if _at_most(hits, worth, middle) > alpha else (low, middle)
    return high


def independent(flags: Sequence[bool]) -> int:
    """Return how many independent flags the series is worth; at least 1.

    If the flags that are set crowd, their numbers in consecutive blocks vary more than those of independent flags.
    """
    count, share = len(flags), sum(flags) / max(len(flags), 1)
    if not 0 < share < 1:
        return max(count, 1)
    crowding = 1.0
    for blocks in BLOCKS:
        length = count // blocks
        if length > 1:
            sums = [sum(flags[start : start + length]) for start in range(0, blocks * length, length)]
            mean = sum(sums) / blocks
            variance = sum((number - mean) ** 2 for number in sums) / (blocks - 1)
            crowding = max(crowding, variance / (length * share * (1 - share)))
    return max(1, int(count / crowding))


@lru_cache(maxsize=1024)
def _most_beyond(count: int, above: float, alpha: float) -> int:
    """Return the greatest number of values that exceed the true percentile with a chance of at most `alpha` or fewer.

    -1 if even none of them exceeding it is more likely.
    """
    chance, greatest = 0.0, -1
    for number in range(count + 1):
        chance += _chance(number, count, above)
        if chance > alpha:
            return greatest
        greatest = number
    return greatest


@lru_cache(maxsize=1024)
def _least_beyond(count: int, above: float, alpha: float) -> int:
    """Return the least number that is exceeding the true percentile, or more, with a chance of at most `alpha`."""
    left = 1.0
    for number in range(count + 1):
        if left <= alpha:
            return number
        left -= _chance(number, count, above)
    return count + 1


def _at_most(hits: int, count: int, share: float) -> float:
    if not 0 < share < 1:
        return float(hits >= (count if share >= 1 else 0))
    hit, miss = math.log(share), math.log1p(-share)
    ways = _log_ways(hits, count)
    return min(1.0, math.fsum(math.exp(ways[n] + n * hit + (count - n) * miss) for n in range(hits + 1)))


@lru_cache(maxsize=16)
def _log_ways(hits: int, count: int) -> list[float]:
    """Return the logarithms of the binomial coefficients of 0 to `hits` hits. A search asks for the same again."""
    whole = math.lgamma(count + 1)
    return [whole - math.lgamma(number + 1) - math.lgamma(count - number + 1) for number in range(hits + 1)]


def _chance(hits: int, count: int, share: float) -> float:
    """Return the probability of so many hits, by the binomial distribution."""
    ways = math.lgamma(count + 1) - math.lgamma(hits + 1) - math.lgamma(count - hits + 1)
    return math.exp(ways + hits * math.log(share) + (count - hits) * math.log1p(-share))
