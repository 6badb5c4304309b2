"""The typical difference between the two values of a pair, with an interval that holds over repeated looks. No I/O.

Neighbouring processes are pairs, so what changes slowly is in both values. One pair in a few can be far off all the
same; such pairs are trimmed (docs/decisions/0030).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

from ..model.estimate import Estimate

# With fewer pairs an interval of Student's t at a small alpha is too wide to decide anything.
FEWEST_PAIRS = 5
# One pair in this many is trimmed at each end.
TRIMMED_OF = 8


def paired(differences: Sequence[float], alpha: float, *, trimmed: bool = True) -> Estimate:
    """Return the mean of the differences with its two-sided `1 - alpha` interval; unbounded for too few.

    The mean is trimmed, unless what is rare and far off belongs to it.

    Source: Yuen, "The two-sample trimmed t for unequal population variances", Biometrika 61 (1974), for one sample.
    Raises ValueError if there is no difference.
    """
    if not differences:
        raise ValueError("the mean of nothing")
    ordered, count = sorted(differences), len(differences)
    cut = count // TRIMMED_OF if trimmed else 0
    kept = ordered[cut : count - cut]
    centre = math.fsum(kept) / len(kept)
    if count < FEWEST_PAIRS:
        return Estimate(centre, -math.inf, math.inf)
    winsorized = [*[kept[0]] * cut, *kept, *[kept[-1]] * cut]
    mean = math.fsum(winsorized) / count
    squares = math.fsum((value - mean) ** 2 for value in winsorized)
    error = math.sqrt(squares / (len(kept) * (len(kept) - 1)))
    half = student(len(kept) - 1, alpha) * error
    return Estimate(centre, centre - half, centre + half)


@lru_cache(maxsize=1024)
def student(freedom: int, alpha: float) -> float:
    """Return what Student's t exceeds, to either side, with probability `alpha`, for so many degrees of freedom."""
    low, high = 0.0, 1.0
    while _beyond(high, freedom) > alpha:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _beyond(middle, freedom) > alpha else (low, middle)
    return high


def _beyond(t: float, freedom: int) -> float:
    """Return the probability that Student's t is farther from zero than `t`.

    Source: the finite sums of Abramowitz and Stegun, 26.7.3 and 26.7.4.
    """
    angle = math.atan(t / math.sqrt(freedom))
    sine, square = math.sin(angle), math.cos(angle) ** 2
    odd = freedom % 2
    term = math.cos(angle) if odd else 1.0
    total = term if freedom > 1 else 0.0
    for step in range(2 + odd, freedom - 1, 2):
        term *= square * (step - 1) / step
        total += term
    inside = 2 / math.pi * (angle + sine * total) if odd else sine * total
    return max(0.0, 1.0 - inside)
