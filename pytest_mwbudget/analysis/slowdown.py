"""Compare the machine's speed with its best known speed. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

# A smaller slowdown counts as none.
STEADY = 1.10


def slowdown(kept: Sequence[float], best_ns: float) -> float:
    """Return how many times slower than at its best the machine ran during a series, at least 1.

    `kept` are the times of the reference workload beside the values of the series, `best_ns` its quickest known time.
    """
    ratio = median(kept) / best_ns if kept and best_ns > 0 else 1.0
    return ratio if ratio > STEADY else 1.0
