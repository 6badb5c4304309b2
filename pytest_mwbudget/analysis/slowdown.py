"""How much slower than at its best the machine ran. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

# Below this the machine's speed is as steady as it gets, and nothing is made of it.
STEADY = 1.10


class Machine:
    """The quickest time of the reference workload, in nanoseconds: in this process, and known from earlier ones.

    `watched_s` is for how many seconds it was timed before the measurement that is under way: by runs that made it
    known, and in this process.
    """

    def __init__(self, known_ns: float = math.inf, watched_s: float = math.inf) -> None:
        self.known_ns = known_ns
        self.seen_ns = math.inf
        self.watched_s = watched_s if math.isfinite(known_ns) else 0.0

    def slowdown(self, quick_ns: float, kept: Sequence[float]) -> float:
        """How much slower than at its best it ran in the moments of a series that count; at least 1.

        `quick_ns` is the reference workload's time in the quickest moments of a measurement, `kept` its times next to
        what counts. Where a series has too few of the quickest moments, slower ones count.
        """
        self.seen_ns = min(self.seen_ns, quick_ns)
        quickest_ns = min(self.seen_ns, self.known_ns)
        ratio = median(kept) / quickest_ns if kept and quickest_ns > 0 else 1.0
        return ratio if ratio > STEADY else 1.0
