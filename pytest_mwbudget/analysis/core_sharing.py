"""Tell whether another thread works on the same core, by the no-ops per cycle that it issues to this one. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import quantiles

from .intervals import quickest
from .slowdown import QUIET_REFERENCE

# Another thread on the same core slows the reference workload down by about this.
SIBLING_SLOWS = 1.7
# A thread that has a core to itself is always issued equally many no-ops per cycle: the quartiles differ by less than
# the first share. If they differ by less than the second, fewer than NARROW are all that the core can issue.
LONE_SPREAD, CONSTANT_SPREAD, NARROW = 0.05, 0.01, 3.5
# Fewer readings tell nothing.
FEWEST_WIDTHS = 8


def is_shared(widths: Sequence[float], reference: Sequence[float]) -> bool | None:
    """Return whether another thread works on the same core even in the quickest moments, None if too few tell.

    `widths` are the no-ops per cycle that were issued to this thread, `reference` the times of the reference workload
    just before each reading.
    """
    limit_ns = QUIET_REFERENCE * quickest(reference)
    quiet = [width for width, ns in zip(widths, reference, strict=True) if ns <= limit_ns]
    if len(quiet) < FEWEST_WIDTHS:
        return None
    low, typical, high = quantiles(quiet, n=4)
    spread = (high - low) / typical
    return spread > LONE_SPREAD or (typical < NARROW and spread > CONSTANT_SPREAD)
