"""Act at a moment of the real clock, also when a test has frozen the clock of the event loop.

Decision 0017 explains the choice between a timer and a thread, and the time that does not count.
"""

from __future__ import annotations

import asyncio
import os
from _thread import TIMEOUT_MAX, allocate_lock, start_new_thread
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..interpreter.clocks import Clock, perf_counter_ns, process_time_ns, runs
from ..model.estimate import Nanoseconds, Seconds

if TYPE_CHECKING:
    import trio

THREADS = "/proc/self/task"
NS_PER_S = 1_000_000_000
# A deadline is put off by the time without a processor if this is at least this share of the limit, and at most so many
# times in a row.
STARVED_SHARE, MOST_DELAYS = 0.1, 10


def queued_ns() -> dict[str, Nanoseconds]:
    """Return by thread of this process how long it was ready to run and had no processor; empty if nothing says."""
    waited_ns: dict[str, Nanoseconds] = {}
    with suppress(OSError):
        for thread in os.listdir(THREADS):
            with suppress(OSError, IndexError, ValueError), open(f"{THREADS}/{thread}/schedstat", "rb") as file:
                waited_ns[thread] = int(file.read().split()[1])
    return waited_ns


@dataclass(frozen=True, slots=True)
class Times:
    """What tells whether the process had a processor: the real clock, its processor time, and its threads' waits."""

    real: Clock = perf_counter_ns
    cpu: Clock = process_time_ns
    queued: Callable[[], Mapping[str, Nanoseconds]] = queued_ns


class Deadline:
    """A moment of the real clock that can be moved. Time in which the process had no processor does not count."""

    def __init__(self, seconds: Seconds, times: Times | None = None) -> None:
        self._times = Times() if times is None else times
        self._queued = self._times.queued()
        self._at_ns = self._limit_ns = self._delays = self._cpu_ns = 0
        self.move(seconds)

    def move(self, seconds: Seconds) -> bool:
        """Move the deadline to `seconds` from now. Returns whether it is sooner than before: what waits must know."""
        before_ns, self._limit_ns = self._at_ns, round(min(seconds, TIMEOUT_MAX) * NS_PER_S)
        self._at_ns, self._cpu_ns, self._delays = self._times.real() + self._limit_ns, self._times.cpu(), 0
        return self._at_ns < before_ns

    def left_s(self) -> Seconds:
        """Return the seconds until the deadline; negative after it."""
        return (self._at_ns - self._times.real()) / NS_PER_S

    def over(self) -> bool:
        """Return whether the time is over. Puts the deadline off if the process had no processor for part of it."""
        now_ns = self._times.real()
        if now_ns < self._at_ns:
            return False
        if self._delays == MOST_DELAYS:
            return True
        starved_ns = self._starved_ns(now_ns - self._at_ns)
        if starved_ns < STARVED_SHARE * self._limit_ns:
            return True
        self._delays += 1
        self._at_ns = now_ns + min(starved_ns, self._limit_ns)
        return False

    def _starved_ns(self, late_ns: Nanoseconds) -> Nanoseconds:
        """Return how long the process had no processor since this was last asked, which is `late_ns` too late.

        The thread that waited the longest counts. A process that was stopped with its machine waited for
        nothing: it asks late without having used the processor. So does a block that only blocks, so this counts once.
        """
        before, self._queued = self._queued, self._times.queued()
        waited_ns = max((ns - before.get(thread, 0) for thread, ns in self._queued.items()), default=0)
        stopped_ns = 0 if self._delays else late_ns - (self._times.cpu() - self._cpu_ns)
        return max(waited_ns, stopped_ns)


class Sleeper:
    """A thread that calls `wake` at the deadline. It sleeps on a lock, whose timeout no test can freeze.

    `_thread` starts it, not `threading`: nothing counts it as the app's, traces it or joins it.
    """

    def __init__(self, deadline: Deadline, wake: Callable[[], object]) -> None:
        self._told, self._gone = allocate_lock(), allocate_lock()
        self._told.acquire()
        self._gone.acquire()
        start_new_thread(self._sleep, (deadline, wake))

    def _sleep(self, deadline: Deadline, wake: Callable[[], object]) -> None:
        try:
            while (left_s := deadline.left_s()) > 0:
                if self._told.acquire(timeout=min(left_s, TIMEOUT_MAX)):
                    return
            with suppress(RuntimeError):  # the loop is closed
                wake()
        finally:
            self._gone.release()

    def end(self) -> None:
        """End the thread and wait for its end."""
        self._told.release()
        self._gone.acquire()


class Alarm:
    """Calls `ring` in an event loop at the deadline, from a thread that asks for the call by `soon`."""

    def __init__(
        self, deadline: Deadline, ring: Callable[[], object], soon: Callable[[Callable[[], None]], object]
    ) -> None:
        self._deadline, self._ring, self._soon = deadline, ring, soon
        self._sleeper: Sleeper | None = None
        self._on = True
        self._set()

    def _set(self) -> None:
        self._sleeper = Sleeper(self._deadline, lambda: self._soon(self._due))

    def _unset(self) -> None:
        if self._sleeper is not None:
            self._sleeper.end()
            self._sleeper = None

    def _due(self) -> None:
        if self._on and self._deadline.over():
            self._on = False
            self._ring()
        else:  # the deadline was moved or put off, or the loop's clock has leapt
            self.reset()

    def reset(self) -> None:
        """Take account of a deadline that was moved to a sooner moment."""
        if self._on:
            self._unset()
            self._set()

    def off(self) -> None:
        """Turn the alarm off for good."""
        self._on = False
        self._unset()


# Python warns an app that forks while there is a second thread. And a loop that is always busy gives the interpreter's
# lock away only for the moment in which it asks the system for events: a thread that wakes up then comes too late each
# time, for half a minute in a measured case.


class AsyncioAlarm(Alarm):
    """An alarm that uses a timer of the loop where the loop's clock runs."""

    def __init__(self, loop: asyncio.AbstractEventLoop, deadline: Deadline, ring: Callable[[], object]) -> None:
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        super().__init__(deadline, ring, loop.call_soon_threadsafe)

    def _set(self) -> None:
        # No test can freeze the timers of uvloop, which are in C; uvloop updates its clock only now and then.
        if not isinstance(self._loop, asyncio.BaseEventLoop) or runs(self._loop.time):
            self._timer = self._loop.call_later(self._deadline.left_s(), self._due)
        else:
            super()._set()

    def _unset(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super()._unset()


class TrioAlarm(Alarm):
    """An alarm that also uses a task of trio's own nursery where the loop's clock runs. trio has no timer that calls.

    The thread sleeps in any case: a test may freeze the clock later.
    """

    def __init__(self, deadline: Deadline, ring: Callable[[], object]) -> None:
        import trio

        self._trio = trio
        self._spawn = trio.lowlevel.spawn_system_task  # before anyone counts its calls
        self._scope: trio.CancelScope | None = None
        # A test can freeze trio's clock, or run trio with another clock.
        super().__init__(deadline, ring, trio.lowlevel.current_trio_token().run_sync_soon)

    def _set(self) -> None:
        if runs(self._trio.current_time):
            # From now, not from the task's first step: the clock may be frozen by then.
            self._scope = self._trio.CancelScope(deadline=self._trio.current_time() + self._deadline.left_s())
            self._spawn(self._wait, self._scope)
        super()._set()

    async def _wait(self, scope: trio.CancelScope) -> None:
        with scope:
            await self._trio.sleep_forever()
        if scope is self._scope:
            self._due()

    def _unset(self) -> None:
        if self._scope is not None:
            self._scope.cancel()
            self._scope = None
        super()._unset()
