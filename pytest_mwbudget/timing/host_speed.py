"""How fast the machine is, by a fixed piece of work, and how fast it can be."""

from __future__ import annotations

import math
import platform
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

# The reference workload: so many calls of a function that does nothing. Calls are what an app is made of, and a
# neighbour on the same core slows them as much, a loop that only adds up less. They allocate nothing, because where new
# objects lie depends on what the app did before.
CALLS = 120


def reference_ns(clock: Callable[[], int]) -> float:
    """Nanoseconds for a fixed piece of work that has nothing to do with any app: the reference workload.

    Done twice, and the second time counts: after an idle wait the first one is slow without any neighbour.
    """
    for _ in range(2):
        begin = clock()
        for number in range(CALLS):
            _same(number)
        taken = clock() - begin
    return float(taken)


def _same(number: int) -> int:
    return number


class Machine:
    """The quickest time of the reference workload, in nanoseconds: in this process, and known from earlier ones.

    `watched_s` is for how many seconds it was timed before the measurement that is under way: by runs that made it
    known, and in this process.
    """

    def __init__(self, known_ns: float = math.inf, watched_s: float = math.inf) -> None:
        self.known_ns = known_ns
        self.seen_ns = math.inf
        self.watched_s = watched_s if math.isfinite(known_ns) else 0.0

    @property
    def best_ns(self) -> float:
        """The quickest time that is known."""
        return min(self.seen_ns, self.known_ns)

    def saw(self, quick_ns: float, seconds: float) -> None:
        """Remember the quickest time of a measurement that took this long."""
        self.seen_ns = min(self.seen_ns, quick_ns)
        self.watched_s += seconds


def kind() -> str:
    """Which speeds compare: of the same work by the same build of Python on the same kind of processor.

    The host's name says nothing: a container has another one every time.
    """
    python = (platform.python_implementation(), platform.python_version(), *platform.python_build())
    return ", ".join([f"{CALLS} calls", *python, platform.python_compiler(), platform.machine(), processor()])


def processor() -> str:
    """The processor's name, where the system tells."""
    # Line by line: where there are a hundred processors, the rest of the file is long, and takes long to make.
    with suppress(OSError), Path("/proc/cpuinfo").open(encoding="utf-8") as lines:
        for line in lines:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown processor"
