"""The event loops that an app can be measured on, behind one interface: asyncio, uvloop, trio."""

from __future__ import annotations

import asyncio
import math
import sys
from _thread import TIMEOUT_MAX, allocate_lock, start_new_thread
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    nullcontext,
    suppress,
)
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

from ..interpreter.clocks import perf_counter, runs
from ..model.estimate import Seconds
from ..model.results import LoopName

Library: TypeAlias = Literal["asyncio", "trio"]

_T = TypeVar("_T")


class OutOfTimeError(Exception):
    """The time limit came before the end."""


class Event(Protocol):
    """An event that tasks can wait for."""

    def set(self) -> None:
        """Let it happen."""

    def is_set(self) -> bool:
        """Whether it has happened."""

    async def wait(self) -> Any:
        """Wait until it has."""


# Gives the block that many seconds from now on; OutOfTimeError when its time is up already.
Extend: TypeAlias = Callable[[Seconds], None]


class Loop(Protocol):
    """The running event loop. `name` is for people; `library` says whose tasks its are."""

    name: str
    library: Library

    def event(self) -> Event:
        """A new event."""

    def task(self) -> object:
        """The task that runs now, None outside tasks."""

    def undebugged(self) -> AbstractContextManager[bool]:
        """A block without the mode that makes everything slow: for tasks created in it. Tells whether it was on."""

    async def in_task(self, function: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> None:
        """Run it in a task and a context of its own; what it raises is raised here."""

    async def settle(self) -> None:
        """Let what is ready run, once."""

    def limited(self, seconds: Seconds) -> AbstractAsyncContextManager[Extend]:
        """A block that may take so long; then it is cancelled and OutOfTimeError raised."""

    def cancelling(self) -> bool:
        """Whether the running task has been asked to end by an `asyncio.CancelledError`."""

    def cuttable(self) -> AbstractContextManager[Callable[[], None]]:
        """A block of a task that another task can end by calling what it gives: it is cancelled, and that is all."""


class _Deadline:
    """A moment of the real clock, `seconds` from now; it can be moved."""

    def __init__(self, seconds: Seconds) -> None:
        self.extend(seconds)

    def extend(self, seconds: Seconds) -> None:
        """Move it to so many seconds from now."""
        self._at_s = perf_counter() + seconds

    def left_s(self) -> Seconds:
        """How far away it is; negative when it is over."""
        return self._at_s - perf_counter()


class _Sleeper:
    """A thread that calls `wake` at the deadline. It sleeps on a lock, whose timeout no test can freeze.

    The interpreter starts it and not `threading`: it is not the app's, it is not traced, and nobody joins it.
    """

    def __init__(self, deadline: _Deadline, wake: Callable[[], object]) -> None:
        self._told, self._gone = allocate_lock(), allocate_lock()
        self._told.acquire()
        self._gone.acquire()
        start_new_thread(self._sleep, (deadline, wake))

    def _sleep(self, deadline: _Deadline, wake: Callable[[], object]) -> None:
        try:
            while (left_s := deadline.left_s()) > 0:
                if self._told.acquire(timeout=min(left_s, TIMEOUT_MAX)):
                    return
            with suppress(RuntimeError):  # the loop is closed
                wake()
        finally:
            self._gone.release()

    def end(self) -> None:
        """End the thread, unless it is over, and wait for that."""
        self._told.release()
        self._gone.acquire()


class _Alarm:
    """Calls `ring` on a loop of asyncio at the deadline, whatever the loop's clock says.

    The loop's own timer where its clock runs. A thread where it does not, and only there: an app that forks while
    there is a second thread is warned by Python.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, deadline: _Deadline, ring: Callable[[], object]) -> None:
        self._loop, self._deadline, self._ring = loop, deadline, ring
        self._timer: asyncio.TimerHandle | None = None
        self._sleeper: _Sleeper | None = None
        self._on = True
        self._set()

    def _set(self) -> None:
        # The timers of uvloop are in C, out of reach, and it looks at its clock only now and then.
        if not isinstance(self._loop, asyncio.BaseEventLoop) or runs(self._loop.time):
            self._timer = self._loop.call_later(self._deadline.left_s(), self._due)
        elif self._sleeper is None:
            self._sleeper = _Sleeper(self._deadline, lambda: self._loop.call_soon_threadsafe(self._due))

    def _due(self) -> None:
        if not self._on:
            return
        if self._deadline.left_s() > 0:  # it was moved, or the loop's clock has leapt
            if self._sleeper is not None:  # it has called this, and is over
                self._sleeper.end()
                self._sleeper = None
            self._set()
            return
        self._on = False
        self._ring()

    def off(self) -> None:
        """Never ring from here on."""
        self._on = False
        if self._timer is not None:
            self._timer.cancel()
        if self._sleeper is not None:
            self._sleeper.end()


class AsyncioLoop:
    """asyncio, or what stands in for its loop."""

    library: Library = "asyncio"

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.name = type(self.loop).__module__.partition(".")[0]

    def event(self) -> Event:
        """See `Loop`."""
        return asyncio.Event()

    def task(self) -> object:
        """See `Loop`."""
        return asyncio.current_task()

    @contextmanager
    def undebugged(self) -> Iterator[bool]:
        """See `Loop`."""
        was = self.loop.get_debug()
        if not was:  # every change wakes the loop
            yield False
            return
        self.loop.set_debug(False)
        try:
            yield True
        finally:
            self.loop.set_debug(True)

    async def in_task(self, function: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> None:
        """See `Loop`."""
        __tracebackhide__ = True
        await asyncio.create_task(function(*arguments))

    async def settle(self) -> None:
        """See `Loop`."""
        await asyncio.sleep(0)

    @asynccontextmanager
    async def limited(self, seconds: Seconds) -> AsyncIterator[Extend]:
        """See `Loop`."""
        __tracebackhide__ = True
        limit, deadline = asyncio.timeout(None), _Deadline(seconds)

        def extend(seconds: Seconds) -> None:
            if limit.expired():  # and the app has swallowed the cancellation
                raise OutOfTimeError
            deadline.extend(seconds)

        try:
            async with limit:
                alarm = _Alarm(self.loop, deadline, lambda: limit.reschedule(-math.inf))
                try:
                    yield extend
                finally:
                    alarm.off()
        except TimeoutError:
            if limit.expired():
                raise OutOfTimeError from None
            raise  # the app's own

    def cancelling(self) -> bool:
        """See `Loop`."""
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0

    @contextmanager
    def cuttable(self) -> Iterator[Callable[[], None]]:
        """See `Loop`."""
        task, cut = asyncio.current_task(), False
        assert task is not None

        def end() -> None:
            nonlocal cut
            cut = True
            task.cancel()

        try:
            yield end
        except asyncio.CancelledError:
            if not cut:
                raise


class TrioLoop:
    """trio."""

    name = "trio"
    library: Library = "trio"

    def __init__(self) -> None:
        import trio

        self.trio = trio

    def event(self) -> Event:
        """See `Loop`."""
        return self.trio.Event()

    def task(self) -> object:
        """See `Loop`."""
        return self.trio.lowlevel.current_task()

    def undebugged(self) -> AbstractContextManager[bool]:
        """See `Loop`."""
        return nullcontext(False)

    async def in_task(self, function: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> None:
        """See `Loop`."""
        __tracebackhide__ = True
        failed: list[BaseException] = []

        async def caught() -> None:
            __tracebackhide__ = True
            try:
                await function(*arguments)
            except self.trio.Cancelled:
                raise
            except BaseException as error:  # past the nursery, which would put it into a group
                failed.append(error)

        async with self.trio.open_nursery() as nursery:
            nursery.start_soon(caught)
        if failed:
            raise failed[0]

    async def settle(self) -> None:
        """See `Loop`."""
        await self.trio.lowlevel.checkpoint()

    @asynccontextmanager
    async def limited(self, seconds: Seconds) -> AsyncIterator[Extend]:
        """See `Loop`."""
        __tracebackhide__ = True
        deadline, token = _Deadline(seconds), self.trio.lowlevel.current_trio_token()
        with self.trio.CancelScope() as scope:
            # trio's clock can be frozen, and be another one from the start.
            sleeper = _Sleeper(deadline, lambda: token.run_sync_soon(scope.cancel))
            try:
                yield deadline.extend
            finally:
                sleeper.end()
        if scope.cancelled_caught:
            raise OutOfTimeError

    def cancelling(self) -> bool:
        """See `Loop`."""
        return False  # trio cancels by an exception of its own

    @contextmanager
    def cuttable(self) -> Iterator[Callable[[], None]]:
        """See `Loop`."""
        with self.trio.CancelScope() as scope:
            yield scope.cancel


def current() -> Loop:
    """The loop that runs in this thread; RuntimeError when none does, or one that is not known."""
    trio = sys.modules.get("trio")
    if trio is not None:
        with suppress(RuntimeError):
            trio.lowlevel.current_trio_token()
            return TrioLoop()
    return AsyncioLoop()


def running() -> bool:
    """Whether a loop runs in this thread."""
    try:
        current()
    except RuntimeError:
        return False
    return True


def run(name: LoopName | None, function: Callable[[], Awaitable[_T]]) -> _T:
    """Run it on a new loop of that name, which must be installed; without a name on the one that asyncio would take.

    That is another than its own where the app has set a policy, as `uvloop.install()` does.
    """
    __tracebackhide__ = True

    async def main() -> _T:
        __tracebackhide__ = True
        return await function()

    if name == "trio":
        import trio

        result: _T = trio.run(main)
        return result
    # A factory of its own keeps the runner from replacing the thread's current loop, which other plugins may own.
    coroutine = main()
    try:
        with asyncio.Runner(debug=False, loop_factory=_factory(name)) as runner:
            return runner.run(coroutine)
    finally:
        # An interrupt inside nested tasks can end the loop with this still suspended; it has things to put back.
        with suppress(RuntimeError):
            coroutine.close()


def _factory(name: LoopName | None) -> Callable[[], asyncio.AbstractEventLoop]:
    if name == "uvloop":
        import uvloop

        factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
        return factory
    if name is None:
        return asyncio.new_event_loop
    # asyncio's own, whatever the policy: what asyncio.EventLoop is from Python 3.13 on.
    if sys.platform == "win32":
        return asyncio.ProactorEventLoop
    else:  # noqa: RET505 - or mypy finds it unreachable on Windows
        return asyncio.SelectorEventLoop
