"""See who hands work to a task or to a thread, and keep charging what a task does to whoever spawned it.

asyncio (and uvloop): the loop's own `create_task`, `call_soon` and their like, for the time of a pass. trio: the
functions that spawn. Threads: the functions that hand work to one. Each sees the owner that is charged at that moment.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from contextvars import Context
from types import CoroutineType
from typing import Any, TypeAlias

from .counters import Charger, Owner
from .exchange import Function, Parameters, detour, exchanged, twin
from .loops import Library

Arguments: TypeAlias = tuple[Any, ...]
Named: TypeAlias = dict[str, Any]

# What these start and hand on is their own: the work is counted where it is handed to them.
POOLS = ("anyio.", "concurrent.futures.", "trio.")
# The event loop's methods that take a callback, and the place of the callback among the arguments.
SCHEDULING = {"call_soon": 0, "call_soon_threadsafe": 0, "call_later": 1, "call_at": 1}


class Spawning:
    """Counts tasks and threads by owner and name.

    `background` is charged for tasks that were there before, but for the one that watches, which works `aside`.
    """

    def __init__(self, core: Charger, background: Owner, aside: Owner) -> None:
        self.core = core
        self.background = background
        self.aside = aside
        self.tasks: defaultdict[Owner, Counter[str]] = defaultdict(Counter)
        self.threads: defaultdict[Owner, Counter[str]] = defaultdict(Counter)

    def take(self) -> tuple[dict[Owner, Counter[str]], dict[Owner, Counter[str]]]:
        """Tasks and threads by owner since the last time; begins anew."""
        taken = dict(self.tasks), dict(self.threads)
        self.tasks.clear()
        self.threads.clear()
        return taken

    @contextmanager
    def watched(self, library: Library) -> Iterator[None]:
        """Watch the running loop, which is one of `library`, and every way to a worker thread."""
        with ExitStack() as stack:
            stack.enter_context(self._detoured(_function(ThreadPoolExecutor.submit), self._handing(1)))
            stack.enter_context(self._detoured(_function(threading.Thread.start), self._starting))
            if "anyio.to_thread" in sys.modules:
                run_sync = _function(sys.modules["anyio.to_thread"].run_sync)
                stack.enter_context(self._detoured(run_sync, self._handing(0)))
            if library == "trio":
                self._watch_trio(stack)
            else:
                stack.enter_context(self._asyncio_loop(asyncio.get_running_loop()))
            yield

    # ---- detours --------------------------------------------------------------------------------------------------

    @contextmanager
    def _detoured(
        self, function: Function, seen: Callable[[Owner, Arguments, Named], tuple[Arguments, Named]]
    ) -> Iterator[None]:
        """Show every call of `function` to `seen`, which returns the arguments to call it with."""
        core, parameters, original = self.core, Parameters.of(function.__code__), twin(function, function.__code__)

        def called(caller: Owner, *flat: Any) -> Any:
            arguments, named, containers = parameters.gathered(flat)
            if caller < 0:
                return original(*arguments, **named)
            for container in containers:
                core.discount(caller, container)
            arguments, named = seen(caller, arguments, named)
            return core.run(caller, original, *arguments, **named)

        with exchanged(function, detour(function.__code__, core.aside(called))):
            yield

    # ---- threads --------------------------------------------------------------------------------------------------

    def _handing(self, position: int) -> Callable[[Owner, Arguments, Named], tuple[Arguments, Named]]:
        """For a function whose argument at `position` is to run in a worker thread."""

        def seen(caller: Owner, arguments: Arguments, named: Named) -> tuple[Arguments, Named]:
            if len(arguments) > position and not _of_a_pool(arguments[position]):
                self.threads[caller][work_name(arguments[position])] += 1
            return arguments, named

        return seen

    def _starting(self, caller: Owner, arguments: Arguments, named: Named) -> tuple[Arguments, Named]:
        thread = arguments[0]
        target = getattr(thread, "_target", None) or thread.run
        if not (_of_a_pool(target) or _of_a_pool(type(thread))):
            self.threads[caller][work_name(target)] += 1
        return arguments, named

    # ---- asyncio --------------------------------------------------------------------------------------------------

    @contextmanager
    def _asyncio_loop(self, loop: asyncio.AbstractEventLoop) -> Iterator[None]:
        """Attributes of the loop object stand before the methods of its class, also for asyncio's code in C."""
        strangers = dict.fromkeys(asyncio.all_tasks(loop), self.background)
        watching = asyncio.current_task(loop)
        if watching is not None:
            strangers[watching] = self.aside
        factory = loop.get_task_factory()
        constructor = _eager_constructor(factory)
        replaced: dict[str, Callable[..., Any]] = {}
        if constructor is None:
            replaced["create_task"] = self._create_task(loop.create_task)
        else:
            # anyio goes round `create_task` there, and calls what the factory calls.
            seen = self.core.aside(self._create_task(constructor))
            loop.set_task_factory(asyncio.create_eager_task_factory(seen))  # type: ignore[attr-defined, unused-ignore]
        for name, position in SCHEDULING.items():
            replaced[name] = self._schedule(getattr(loop, name), position, strangers)
        present = {name: vars(loop)[name] for name in replaced if name in vars(loop)}
        for name, function in replaced.items():
            setattr(loop, name, self.core.aside(function))
        try:
            yield
        finally:
            for name in replaced:
                delattr(loop, name)
            vars(loop).update(present)
            loop.set_task_factory(factory)

    def _create_task(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def create_task(caller: Owner, *arguments: Any, **named: Any) -> Any:
            if caller < 0:
                return original(*arguments, **named)
            coro, *rest = arguments or (named.pop("coro"),)
            if asyncio.iscoroutine(coro):
                self.tasks[caller][coroutine_name(coro)] += 1
                coro = self.core.passage(caller, coro, True)
            return self.core.run(caller, original, coro, *rest, **named)

        return create_task

    def _schedule(
        self, original: Callable[..., Any], position: int, strangers: dict[asyncio.Task[Any], Owner]
    ) -> Callable[..., Any]:
        def schedule(caller: Owner, *arguments: Any, **named: Any) -> Any:
            if caller < 0:
                return original(*arguments, **named)
            if len(arguments) > position and callable(arguments[position]):
                callback = arguments[position]
                task = getattr(callback, "__self__", None)
                owner = strangers.get(task, caller) if isinstance(task, asyncio.Task) else caller
                guarded = self.core.callback(owner, callback)
                arguments = (*arguments[:position], guarded, *arguments[position + 1 :])
            return self.core.run(caller, original, *arguments, **named)

        return schedule

    # ---- trio -----------------------------------------------------------------------------------------------------

    def _watch_trio(self, stack: ExitStack) -> None:
        import trio

        stack.enter_context(self._detoured(_function(trio.to_thread.run_sync), self._handing(0)))
        for function, position in (
            (trio.Nursery.start_soon, 1),
            (trio.Nursery.start, 1),
            (trio.lowlevel.spawn_system_task, 0),
        ):
            stack.enter_context(self._detoured(_function(function), self._spawning(position)))

    def _spawning(self, position: int) -> Callable[[Owner, Arguments, Named], tuple[Arguments, Named]]:
        """For a function of trio whose argument at `position` makes the coroutine of the new task."""

        def seen(caller: Owner, arguments: Arguments, named: Named) -> tuple[Arguments, Named]:
            if len(arguments) <= position:
                return arguments, named
            function = arguments[position]
            if named.get("name") is None:
                named["name"] = function

            def rooted(_: Owner, *arguments: Any, **named: Any) -> Any:
                coro = self.core.run(caller, function, *arguments, **named)
                if not inspect.isawaitable(coro):
                    return coro
                self.tasks[caller][coroutine_name(coro)] += 1
                return self.core.passage(caller, coro, True)

            return (*arguments[:position], self.core.aside(rooted), *arguments[position + 1 :]), named

        return seen


def _eager_constructor(factory: Any) -> Callable[..., Any] | None:
    """What asyncio's eager task factory makes tasks with, None for another factory."""
    eager = getattr(asyncio, "eager_task_factory", None)  # Python 3.12
    if eager is None or getattr(factory, "__code__", None) is not eager.__code__:
        return None
    constructor: Callable[..., Any] = factory.__closure__[0].cell_contents
    return constructor


def _of_a_pool(work: object) -> bool:
    return f"{getattr(work, '__module__', None) or ''}.".startswith(POOLS)


def _function(callee: Any) -> Function:
    """The Python function behind it: some decorators keep it."""
    found: Function = inspect.unwrap(callee)
    return found


# ---- names --------------------------------------------------------------------------------------------------------


def coroutine_name(coroutine: Any) -> str:
    """`module.qualname` of the coroutine that a new task is for.

    Libraries spawn a coroutine of theirs round the one they were given; then it is that one's name.
    """
    given = _given_coroutine(coroutine)
    named = coroutine if given is None else given
    frame = getattr(named, "cr_frame", None)
    module = frame.f_globals.get("__name__", "?") if frame is not None else type(named).__module__
    return f"{module}.{getattr(named, '__qualname__', type(named).__qualname__)}"


def _given_coroutine(coroutine: Any) -> Any:
    """The one coroutine, not yet begun, among the arguments of `coroutine` or what its `self` holds."""
    frame = getattr(coroutine, "cr_frame", None)
    if frame is None:
        return None
    arguments = dict(frame.f_locals)
    values = [*arguments.values(), *_attributes(arguments.get("self"))]
    found = [value for value in values if type(value) is CoroutineType and inspect.getcoroutinestate(value) == _NEW]
    return found[0] if len(set(map(id, found))) == 1 else None


_NEW = inspect.CORO_CREATED


def _attributes(instance: object) -> Iterator[object]:
    yield from getattr(instance, "__dict__", {}).values()
    for cls in type(instance).__mro__:
        slots = vars(cls).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            try:
                yield object.__getattribute__(instance, name)
            except AttributeError:
                continue


def work_name(work: Any) -> str:
    """`module.qualname` of a function that is handed to a thread, inside partials and `Context.run`."""
    while True:
        if isinstance(work, functools.partial):
            in_context = isinstance(getattr(work.func, "__self__", None), Context) and work.args
            work = work.args[0] if in_context else work.func
        else:
            break
    named = work if hasattr(work, "__qualname__") else type(work)
    return f"{getattr(named, '__module__', None) or '?'}.{named.__qualname__}"
