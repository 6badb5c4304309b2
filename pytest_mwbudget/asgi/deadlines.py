"""Act at a moment of the real clock, also when a test has frozen the clock of the event loop.

Decision 0017 explains the choice between a timer and a thread.
"""

from __future__ import annotations

import asyncio
from _thread import TIMEOUT_MAX, allocate_lock, start_new_thread
from collections.abc import Callable
from contextlib import suppress

from ..interpreter.clocks import perf_counter, runs
from ..model.estimate import Seconds


class Deadline:
    """A moment of the real clock that can be moved."""

    def __init__(self, seconds: Seconds) -> None:
        self._at_s = perf_counter() + seconds

    def move(self, seconds: Seconds) -> bool:
        """Move the deadline to `seconds` from now. Returns whether it is sooner than before: what waits must know."""
        before_s, self._at_s = self._at_s, perf_counter() + seconds
        return self._at_s < before_s

    def left_s(self) -> Seconds:
        """Return the seconds until the deadline; negative after it."""
        return self._at_s - perf_counter()


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


class AsyncioAlarm:
    """Calls `ring` on a loop of asyncio at the deadline.

    A timer of the loop is enough where the loop's clock runs. Only where it does not, a thread sleeps: Python warns an
    app that forks while there is a second thread.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, deadline: Deadline, ring: Callable[[], object]) -> None:
        self._loop, self._deadline, self._ring = loop, deadline, ring
        self._timer: asyncio.TimerHandle | None = None
        self._sleeper: Sleeper | None = None
        self._on = True
        self._set()

    def _set(self) -> None:
        # No test can freeze the timers of uvloop, which are in C; uvloop updates its clock only now and then.
        if not isinstance(self._loop, asyncio.BaseEventLoop) or runs(self._loop.time):
            self._timer = self._loop.call_later(self._deadline.left_s(), self._due)
        elif self._sleeper is None:
            self._sleeper = Sleeper(self._deadline, lambda: self._loop.call_soon_threadsafe(self._due))

    def _due(self) -> None:
        if not self._on:
            return
        if self._deadline.left_s() > 0:  # the deadline was moved, or the loop's clock has leapt
            if self._sleeper is not None:
                self._sleeper.end()
                self._sleeper = None
            self._set()
            return
        self._on = False
        self._ring()

    def reset(self) -> None:
        """Take account of a deadline that was moved to a sooner moment."""
        if not self._on:
            return
        if self._timer is not None:
            self._timer.cancel()
        if self._sleeper is not None:
            self._sleeper.end()
            self._sleeper = None
        self._set()

    def off(self) -> None:
        """Turn the alarm off for good."""
        self._on = False
        if self._timer is not None:
            self._timer.cancel()
        if self._sleeper is not None:
            self._sleeper.end()
