"""The event loops on which an app can be measured: asyncio, uvloop and trio.

AsyncioLoop and TrioLoop have the same methods.
"""

from __future__ import annotations

import asyncio
import gc
import math
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager, nullcontext, suppress
from contextvars import Context, copy_context
from functools import partial
from selectors import BaseSelector
from types import CoroutineType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from ..errors import MeasurementError
from ..interpreter.data_stack import with_room
from ..model.estimate import Nanoseconds, Seconds
from ..model.results import LoopName
from .deadlines import AsyncioAlarm, Deadline, Times, TrioAlarm, queued_ns

if TYPE_CHECKING:
    import trio

Library: TypeAlias = Literal["asyncio", "trio"]
Event: TypeAlias = "asyncio.Event | trio.Event"
# Moves the limit of a block to a number of seconds from now. Raises OutOfTimeError when the time is over already.
Extend: TypeAlias = Callable[[Seconds], None]

_T = TypeVar("_T")
# A test may patch these, and count their calls.
_sleep, _create_task = asyncio.sleep, asyncio.create_task
_wait_for = asyncio.wait_for.__code__


class OutOfTimeError(Exception):
    """The time limit came before the end."""


class AsyncioLoop:
    """The running event loop of asyncio, or uvloop in its place. `name` is for people; `library` owns the tasks."""

    library: Library = "asyncio"

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.name = type(self.loop).__module__.partition(".")[0]

    def event(self) -> Event:
        """Return a new event."""
        return asyncio.Event()

    def task(self) -> object:
        """Return the running task, None outside tasks."""
        return asyncio.current_task()

    @contextmanager
    def undebugged(self) -> Iterator[bool]:
        """Turn debug mode off for tasks created in the block. Yields whether it was on."""
        was = self.loop.get_debug()
        if not was:  # every change wakes the loop
            yield False
            return
        self.loop.set_debug(False)
        try:
            yield True
        finally:
            self.loop.set_debug(True)

    async def in_task(
        self, context: Context | None, function: Callable[..., Coroutine[Any, Any, None]], *arguments: Any
    ) -> None:
        """Run a function in a task of its own and a copy of `context`, by default of the current context.

        Raises what the function raises.
        """
        __tracebackhide__ = True
        await _create_task(function(*arguments), context=None if context is None else context.copy())

    async def settle(self) -> None:
        """Let everything run once that is ready to run."""
        await _sleep(0)

    def coroutines(self) -> Iterator[object]:
        """Yield the coroutines of all tasks."""
        yield from (task.get_coro() for task in asyncio.all_tasks(self.loop))

    @asynccontextmanager
    async def limited(self, seconds: Seconds, due: Callable[[], None] = lambda: None) -> AsyncIterator[Extend]:
        """Call `due` and cancel the block after `seconds`. Raises OutOfTimeError then."""
        __tracebackhide__ = True
        limit, deadline = asyncio.timeout(None), Deadline(seconds, times())

        def ring() -> None:
            due()
            limit.reschedule(-math.inf)

        def extend(seconds: Seconds) -> None:
            if limit.expired():  # and the app has swallowed the cancellation
                raise OutOfTimeError
            if deadline.move(seconds):
                alarm.reset()

        try:
            async with limit:
                alarm = AsyncioAlarm(self.loop, deadline, ring)
                try:
                    yield extend
                finally:
                    alarm.off()
        except TimeoutError:
            if limit.expired():
                raise OutOfTimeError from None
            raise  # the app's own

    def time_limited(self) -> bool:
        """Return whether a deadline of anyio ends the running task at some time, or a limit of asyncio a task."""
        anyio, tasks = sys.modules.get("anyio"), asyncio.all_tasks(self.loop)
        if anyio is not None and anyio.current_effective_deadline() < math.inf:
            return True
        if any(map(_in_wait_for, self.coroutines())):  # which has no `asyncio.timeout` before Python 3.12
            return True
        # A task does not know its limits, and the timers of uvloop cannot be listed.
        limits = [limit for limit in gc.get_objects() if type(limit) is asyncio.Timeout and limit.when() is not None]
        return any(getattr(limit, "_task", None) in tasks and "[active]" in repr(limit) for limit in limits)

    def cancelling(self) -> bool:
        """Return whether the running task was asked to end with `asyncio.CancelledError`."""
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0

    @contextmanager
    def cuttable(self) -> Iterator[Callable[[], None]]:
        """Yield a function with which another task can end the block quietly."""
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


def _in_wait_for(coroutine: object) -> bool:
    """Return whether a coroutine is suspended in `asyncio.wait_for`."""
    while type(coroutine) is CoroutineType:
        if coroutine.cr_code is _wait_for:
            return True
        coroutine = coroutine.cr_await
    return False


class TrioLoop:
    """The running event loop of trio."""

    name = "trio"
    library: Library = "trio"

    def __init__(self) -> None:
        import trio

        self.trio = trio

    def event(self) -> Event:
        """Return a new event."""
        return self.trio.Event()

    def task(self) -> object:
        """Return the running task."""
        return self.trio.lowlevel.current_task()

    def undebugged(self) -> AbstractContextManager[bool]:
        """Do nothing: trio has no debug mode."""
        return nullcontext(False)

    async def in_task(
        self, context: Context | None, function: Callable[..., Coroutine[Any, Any, None]], *arguments: Any
    ) -> None:
        """Run a function in a task of its own and a copy of `context`, by default of the current context.

        Raises what the function raises.
        """
        __tracebackhide__ = True
        failed: list[BaseException] = []

        async def caught() -> None:
            __tracebackhide__ = True
            try:
                await function(*arguments)
            except self.trio.Cancelled:
                raise
            except BaseException as error:  # the nursery would put it into a group
                failed.append(error)

        async with self.trio.open_nursery() as nursery:
            # trio copies the context in which it is asked to start a task.
            (context.copy() if context is not None else copy_context()).run(nursery.start_soon, caught)
        if failed:
            raise failed[0]

    async def settle(self) -> None:
        """Let everything run once that is ready to run."""
        await self.trio.lowlevel.checkpoint()

    @contextmanager
    def asked_by(self, asking: Callable[[Callable[..., None]], Callable[..., None]]) -> Iterator[None]:
        """Let what `asking` returns take what the loop is asked to call soon, given the function that took it."""
        queue = getattr(self.trio.lowlevel.current_trio_token(), "_reentry_queue", None)
        kind: Any = type(queue)  # its instances have no attributes
        method = getattr(kind, "run_sync_soon", None)
        if method is None:  # a trio that has it elsewhere
            yield
            return
        taking = asking(method.__get__(queue))

        def run_sync_soon(of: Any, *arguments: Any, **named: Any) -> None:
            if of is queue:
                taking(*arguments, **named)
            else:
                method(of, *arguments, **named)

        kind.run_sync_soon = run_sync_soon
        try:
            yield
        finally:
            kind.run_sync_soon = method

    def coroutines(self) -> Iterator[object]:
        """Yield the coroutines of all tasks."""
        root = self.trio.lowlevel.current_root_task()
        tasks = [root] if root is not None else []
        while tasks:
            task = tasks.pop()
            yield task.coro
            tasks += [child for nursery in task.child_nurseries for child in nursery.child_tasks]

    @asynccontextmanager
    async def limited(self, seconds: Seconds, due: Callable[[], None] = lambda: None) -> AsyncIterator[Extend]:
        """Call `due` and cancel the block after `seconds`. Raises OutOfTimeError then."""
        __tracebackhide__ = True
        deadline = Deadline(seconds, times())
        with self.trio.CancelScope() as scope:

            def ring() -> None:
                due()
                scope.cancel()

            def extend(seconds: Seconds) -> None:
                if deadline.move(seconds):
                    alarm.reset()

            alarm = TrioAlarm(deadline, ring)
            try:
                yield extend
            finally:
                alarm.off()
        if scope.cancelled_caught:
            raise OutOfTimeError

    def time_limited(self) -> bool:
        """Return whether a deadline ends the running task at some time."""
        return bool(self.trio.current_effective_deadline() < math.inf)

    def cancelling(self) -> bool:
        """Return False: trio cancels with an exception of its own."""
        return False

    @contextmanager
    def cuttable(self) -> Iterator[Callable[[], None]]:
        """Yield a function with which another task can end the block quietly."""
        with self.trio.CancelScope() as scope:
            yield scope.cancel


Loop: TypeAlias = AsyncioLoop | TrioLoop


@contextmanager
def replaced(loop: asyncio.AbstractEventLoop, name: str, value: object) -> Iterator[None]:
    """Set an attribute of the loop, which asyncio's code in C finds before the method of its class."""
    if not hasattr(loop, "__dict__"):
        raise MeasurementError(
            f"nothing can be measured on a loop of {type(loop).__module__}.{type(loop).__qualname__}: its {name} is not"
            " written in Python, and an attribute cannot take its place; run this test on asyncio's own loop",
            message_id="interpreter",
        )
    present = {name: vars(loop)[name]} if name in vars(loop) else {}
    setattr(loop, name, value)
    try:
        yield
    finally:
        delattr(loop, name)
        vars(loop).update(present)


def watching(loop: asyncio.AbstractEventLoop) -> list[asyncio.Handle]:
    """Return the handles of files that the app has asked the loop to watch; none on loops that are not asyncio's."""
    selector = getattr(loop, "_selector", None)
    keys = selector.get_map().values() if isinstance(selector, BaseSelector) else ()
    handles = [
        handle for key in keys if type(key.data) is tuple for handle in key.data if type(handle) is asyncio.Handle
    ]
    return [handle for handle in handles if not _is_asyncios(handle._callback)]  # type: ignore[attr-defined]


def _is_asyncios(callback: object) -> bool:
    """Return whether a callback is a method that asyncio defines, of a loop or of a transport."""
    function = callback.__func__ if type(callback) is MethodType else None
    return type(function) is FunctionType and str(function.__globals__.get("__name__")).startswith("asyncio.")


def coroutines_by_id(loop: Loop) -> dict[int, object]:
    """Return the coroutines of all tasks by identity, because a coroutine of the app may have a hash of its own."""
    return {id(coroutine): coroutine for coroutine in loop.coroutines()}


def current() -> Loop:
    """Return the loop that runs in this thread. Raises RuntimeError when no known loop runs."""
    trio = sys.modules.get("trio")
    if trio is not None:
        with suppress(RuntimeError):
            trio.lowlevel.current_trio_token()
            return TrioLoop()
    return AsyncioLoop()


@contextmanager
def unwatched() -> Iterator[None]:
    """Hide the running loop of asyncio during a block without `await` that makes blocking calls of this package.

    Tools such as blockbuster refuse blocking calls while a loop runs in the thread. They are meant for the app.
    """
    loop = asyncio._get_running_loop()
    asyncio._set_running_loop(None)
    try:
        yield
    finally:
        asyncio._set_running_loop(loop)


@contextmanager
def unwatched_ends(block: AbstractContextManager[_T]) -> Iterator[_T]:
    """Enter and leave a context manager as `unwatched` does; what is inside it runs as usual."""
    with ExitStack() as ends:
        with unwatched():
            entered = ends.enter_context(block)
        try:
            yield entered
        finally:
            with unwatched():
                ends.close()


def times() -> Times:
    """Return what tells whether this process had a processor."""

    def queued() -> dict[str, Nanoseconds]:
        with unwatched():
            return queued_ns()

    return Times(queued=queued)


def running() -> bool:
    """Return whether a loop runs in this thread."""
    with suppress(RuntimeError):
        return bool(current())
    return False


def running_task() -> object:
    """Return the task that runs in this thread, None outside tasks."""
    with suppress(RuntimeError):
        return current().task()
    return None


def run(name: LoopName | None, function: Callable[[], Awaitable[_T]]) -> _T:
    """Run a function on a new loop of this name, which must be installed.

    Without a name, the asyncio policy chooses the loop: `uvloop.install()` sets a policy.
    """
    __tracebackhide__ = True

    # Not the result of the task: Python 3.11 formats that twice when a runner ends, which takes milliseconds.
    results: list[_T] = []

    async def main() -> None:
        __tracebackhide__ = True
        results.append(await function())

    if name == "trio":
        import trio

        with_room(partial(trio.run, main))
        return results[0]
    coroutine = main()
    try:
        with runner(name) as asyncio_runner:
            with_room(partial(asyncio_runner.run, coroutine))
    finally:
        # An interrupt inside nested tasks can end the loop while the coroutine is suspended and has to clean up.
        with suppress(RuntimeError):
            coroutine.close()
    return results[0]


def runner(name: LoopName | None) -> asyncio.Runner:
    """Return a runner of a new loop of this name, which must be installed and not be trio."""
    # A factory keeps the runner from replacing the thread's current loop, which other plugins may own.
    factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    if name == "uvloop":
        import uvloop

        factory = uvloop.new_event_loop
    elif name is not None:
        # asyncio.EventLoop of Python 3.13: asyncio's own loop, whatever the policy. Windows has both.
        factory = getattr(asyncio, "ProactorEventLoop", asyncio.SelectorEventLoop)
    return asyncio.Runner(debug=False, loop_factory=factory)
