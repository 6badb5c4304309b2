"""How fast the machine is, by a fixed piece of work, and how fast it can be."""

from __future__ import annotations

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
