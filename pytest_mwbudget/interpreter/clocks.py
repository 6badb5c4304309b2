"""Real clocks, whatever a test does to the module `time`.

freezegun replaces the functions of `time` in every loaded module, so these are functions of a private copy of `time`.
time-machine changes every copy, but only the functions that tell the date.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from ..model.estimate import Seconds
from .internals import private_time

Clock: TypeAlias = Callable[[], int]

# The time for which another clock is watched.
WATCHED_S: Seconds = 0.0001

_time = private_time()
perf_counter: Callable[[], float] = _time.perf_counter
perf_counter_ns: Clock = _time.perf_counter_ns
thread_time_ns: Clock = _time.thread_time_ns
process_time_ns: Clock = _time.process_time_ns
sleep: Callable[[Seconds], None] = _time.sleep
get_clock_info: Callable[[str], Any] = _time.get_clock_info


def runs(clock: Callable[[], Seconds]) -> bool:
    """Return whether a clock of seconds runs as fast as the real one. Takes WATCHED_S."""
    earliest = perf_counter()
    first = clock()
    begin = perf_counter()
    while perf_counter() - begin < WATCHED_S:
        pass
    moved_s = clock() - first
    return WATCHED_S / 2 <= moved_s <= 2 * (perf_counter() - earliest)
