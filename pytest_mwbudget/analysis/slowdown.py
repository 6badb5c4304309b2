"""Compare the machine's speed, and its hops between threads, with the best that is known of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from statistics import median

from ..model.estimate import Microseconds, Nanoseconds
from ..model.stack import EntryIndex

# A smaller slowdown counts as none.
STEADY = 1.10
# A moment counts as quiet up to this slowdown of the reference workload, against the quickest moments of the run.
QUIET_REFERENCE = 1.05
# A noisy neighbour slows apps down by up to this power of the reference workload's slowdown (docs/decisions/0010).
APPS_SLOWED = 2
# A figure may be longer by interruptions if at least this many fall into it in each request, and take at least this
# share of the time. A median does not show what happens in few requests.
OFTEN, LONG = 0.3, 0.05


@dataclass(frozen=True, slots=True)
class Hops:
    """How often a request is handed to another thread: in the row of each entry, altogether, and outside of all."""

    rows: Mapping[EntryIndex, int] = field(default_factory=dict)
    whole: int = 0
    outside: int = 0


@dataclass(frozen=True, slots=True)
class Interruptions:
    """How often other processes took the core from this one in a microsecond, and for which share of the time."""

    per_us: float = 0.0
    share: float = 0.0

    def slowdown(self, us: Microseconds) -> float:
        """Return how many times as long as without interruptions a figure of `us` may have taken, at least 1.

        The reference workload is too short to show interruptions, and what is as short as it has none.
        """
        met = self.per_us * us >= OFTEN and self.share >= LONG
        return 1 / (1 - self.share) if met else 1.0


NONE = Interruptions()


def slowdown(kept: Sequence[float], best_ns: float) -> float:
    """Return how many times slower than at its best the machine ran during a series, at least 1.

    `kept` are the times of the reference workload beside the values of the series, `best_ns` its quickest known time.
    """
    ratio = median(kept) / best_ns if kept and best_ns > 0 else 1.0
    return ratio if ratio > STEADY else 1.0


def waited_ns(readings: Sequence[float], best_ns: float, hops: int) -> Nanoseconds:
    """Return how much longer the machine takes for this number of hops than it does at its best; at least 0.

    `readings` are the times of the fixed hop beside the values of a series, `best_ns` its best known time. Long waits
    are rare, so one hop seldom meets one, and a series of hops often does. The median is that of sums of `hops`
    readings.
    """
    if not readings or not hops:
        return 0
    length = min(hops, len(readings))
    sums = list(accumulate(readings, initial=0.0))
    typical = median(end - begin for begin, end in zip(sums, sums[length:], strict=False)) / length
    return max(0, round(hops * (typical - best_ns))) if typical > STEADY * best_ns else 0
