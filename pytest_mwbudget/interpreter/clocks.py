"""The clocks of the package: real ones, whatever a test does to the module `time`.

freezegun replaces the functions of `time`, and every attribute of every loaded module that is one of them. So these
are the functions of a private copy of that module, which nothing that replaces attributes can know. time-machine
changes the functions of every copy, but only those that tell the date.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from ..model.estimate import Seconds
from .internals import private_time

Clock: TypeAlias = Callable[[], int]

# For so long another clock is watched.
WATCHED_S: Seconds = 0.0001


_time = private_time()
perf_counter: Callable[[], float] = _time.perf_counter
perf_counter_ns: Clock = _time.perf_counter_ns
thread_time_ns: Clock = _time.thread_time_ns
sleep: Callable[[Seconds], None] = _time.sleep
get_clock_info: Callable[[str], Any] = _time.get_clock_info


def runs(clock: Callable[[], Seconds]) -> bool:
    """Whether a clock that tells seconds goes as fast as the real one; it is watched for a tenth of a millisecond."""
    earliest = perf_counter()
    first = clock()
    begin = perf_counter()
    while perf_counter() - begin < WATCHED_S:
        pass
    moved_s = clock() - first
    return WATCHED_S / 2 <= moved_s <= 2 * (perf_counter() - earliest)
