"""The event loops that an app can be measured on, behind one interface: asyncio, uvloop, trio."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

from .model import LoopName, Seconds

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


# Gives the block that many seconds from now on.
Extend: TypeAlias = Callable[[Seconds], None]


class Loop(Protocol):
    """The running event loop. `name` is for people; `library` says whose tasks its are."""

    name: str
    library: Library

    def event(self) -> Event:
        """A new event."""

    def task(self) -> object:
        """The task that runs now, None outside tasks."""

    def debug(self) -> bool:
        """Whether it runs in a mode that makes everything slow."""

    async def in_task(self, function: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> None:
        """Run it in a task and a context of its own; what it raises is raised here."""

    async def settle(self) -> None:
        """Let what is ready run, once."""

    def limited(self, seconds: Seconds) -> AbstractAsyncContextManager[Extend]:
        """A block that may take so long; then it is cancelled and OutOfTimeError raised."""


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

    def debug(self) -> bool:
        """See `Loop`."""
        return self.loop.get_debug()

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
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                yield lambda seconds: limit.reschedule(self.loop.time() + seconds)
        except TimeoutError:
            if limit.expired():
                raise OutOfTimeError from None
            raise  # the app's own


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

    def debug(self) -> bool:
        """See `Loop`."""
        return False

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
        with self.trio.CancelScope(deadline=self.trio.current_time() + seconds) as scope:

            def extend(seconds: Seconds) -> None:
                scope.deadline = self.trio.current_time() + seconds

            yield extend
        if scope.cancelled_caught:
            raise OutOfTimeError


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


def run(name: LoopName, function: Callable[[], Awaitable[_T]]) -> _T:
    """Run it on a new loop of that name, which must be installed."""
    __tracebackhide__ = True

    async def main() -> _T:
        __tracebackhide__ = True
        return await function()

    if name == "trio":
        import trio

        result: _T = trio.run(main)
        return result
    factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    if name == "uvloop":
        import uvloop

        factory = uvloop.new_event_loop
    # A factory of its own keeps the runner from replacing the thread's current loop, which other plugins may own.
    coroutine = main()
    try:
        with asyncio.Runner(debug=False, loop_factory=factory) as runner:
            return runner.run(coroutine)
    finally:
        # An interrupt inside nested tasks can end the loop with this still suspended; it has things to put back.
        with suppress(RuntimeError):
            coroutine.close()
