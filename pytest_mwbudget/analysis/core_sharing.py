"""Tell whether others use the same core, and what that costs in the caches. Pure.

Another hardware thread shows in the no-ops per cycle that the core issues to this one.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median, quantiles

from .intervals import quickest
from .slowdown import LONG, NONE, QUIET_REFERENCE, STEADY, Interruptions

# Another thread on the same core slows the reference workload down by about this. It shows in readings that are slower
# than the quickest by half of it; some processors vary by a quarter on their own.
SIBLING_SLOWS, SIBLING_SHOWS = 1.7, 1.35
# A thread that has a core to itself is issued about the same number of no-ops per cycle at any time. The share by which
# the highest twentieth of the readings exceeds the lower quartile is then at most LONE_SPREAD; beside another thread it
# is more, because the other thread pauses. A median below NARROW is suspicious: there the limit is CONSTANT_SPREAD.
LONE_SPREAD, CONSTANT_SPREAD, NARROW = 0.05, 0.02, 3.5
# Fewer readings tell nothing.
FEWEST_WIDTHS = 8
# Others who use the core for the share LONG or more leave cold caches, which the reference workload does not show. Then
# requests count as slowed down by the ratio of a typical time to that of the quickest, which are this share of them: at
# most by this factor, because an app may have quick requests of its own.
QUICK_REQUESTS, MOST_BY_CACHES = 1 / 50, 1.3


def is_shared(widths: Sequence[float], reference: Sequence[float]) -> bool | None:
    """Return whether another thread works on the same core even in the quickest moments, None if too few tell.

    `widths` are the no-ops per cycle that were issued to this thread, `reference` the times of the reference workload
    just before each reading.
    """
    limit_ns = QUIET_REFERENCE * quickest(reference)
    quiet = [width for width, ns in zip(widths, reference, strict=True) if ns <= limit_ns]
    if len(quiet) < FEWEST_WIDTHS:
        return None
    # The upper end is not the greatest: an interrupted chain of additions reads up to twice the width.
    twentieths = quantiles(quiet, n=20, method="inclusive")
    low, typical, high = twentieths[4], twentieths[9], twentieths[18]
    spread = (high - low) / typical
    return spread > LONE_SPREAD or (typical < NARROW and spread > CONSTANT_SPREAD)


def used_by_others(*series: Sequence[float], interruptions: Interruptions = NONE) -> float:
    """Return for which share of the time others used the core, as the system says or as the reference workload shows.

    A series has all times of the workload beside requests of one kind, which its speed depends on a little.
    """
    slow = 0
    for readings in series:
        limit_ns = SIBLING_SHOWS * quickest(readings)
        slow += sum(ns > limit_ns for ns in readings)
    return max(interruptions.share, slow / max(1, sum(map(len, series))))


def slowed_by_caches(values: Sequence[float], used: float) -> float:
    """Return how many times slower requests in quiet moments ran because of cold caches, at least 1.

    `used` is for which share of the time others used the core.
    """
    if used < LONG or not values:
        return 1.0
    quick = sorted(values)[int(QUICK_REQUESTS * len(values))]
    slower = median(values) / quick if quick > 0 else 1.0
    return min(MOST_BY_CACHES, slower) if slower >= STEADY else 1.0
