"""How much slower than at its best the machine ran. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

# Below this the machine's speed is as steady as it gets, and nothing is made of it.
STEADY = 1.10


def slowdown(kept: Sequence[float], best_ns: float) -> float:
    """Return how many times slower than at its best the machine ran in the moments of a series that count; at least 1.

    `kept` are the times of the reference workload next to what counts, `best_ns` is its quickest time that is known.
    Where a series has too few of the quickest moments, slower ones count.
    """
    ratio = median(kept) / best_ns if kept and best_ns > 0 else 1.0
    return ratio if ratio > STEADY else 1.0
