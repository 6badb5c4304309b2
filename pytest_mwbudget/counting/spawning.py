"""Count the tasks and threads that each owner spawns, and charge the work of a task to its spawner.

Calls of these are watched: on asyncio the loop's `create_task`, `call_soon` and the like; on uvloop, which is in C,
attributes of the loop in their place and a task factory; on trio the functions that spawn; everywhere the functions
that hand work to a thread. The owner charged at the time of the call is the spawner.
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
from types import CoroutineType, FunctionType
from typing import Any, TypeAlias

from ..asgi.loops import Library
from ..errors import MeasurementError
from ..interpreter import internals
from ..interpreter.code_patching import Function, Parameters, detour, patched_code, twin
from ..model.stack import Owner
from .charger import NOBODY, Charger

Arguments: TypeAlias = tuple[Any, ...]
Named: TypeAlias = dict[str, Any]
# Is shown the caller and the arguments of a call, and returns the arguments to make the call with.
Seen: TypeAlias = Callable[[Owner, Arguments, Named], tuple[Arguments, Named]]

# The modules of thread pools. Work that a pool hands on was counted when the pool got it. Functions that these packages
# export, such as `anyio.from_thread.run`, are work like any other.
POOLS = ("anyio._", "concurrent.futures.process.", "concurrent.futures.thread.", "trio._")
# The event loop's methods that take a callback, and the place of the callback among the arguments.
SCHEDULING = {"call_soon": 0, "call_soon_threadsafe": 0, "call_later": 1, "call_at": 1}


class Spawning:
    """Count tasks and threads by owner and name.

    `background` is charged for tasks that were there before, except the task that counts, which is charged to `aside`.
    """

    def __init__(self, core: Charger, background: Owner, aside: Owner) -> None:
        self.core = core
        self.background = background
        self.aside = aside
        self.tasks: defaultdict[Owner, Counter[str]] = defaultdict(Counter)
        self.threads: defaultdict[Owner, Counter[str]] = defaultdict(Counter)
        # Why some tasks and threads were not seen.
        self.unseen: list[str] = []

    def take(self) -> tuple[dict[Owner, Counter[str]], dict[Owner, Counter[str]]]:
        """Return tasks and threads by owner since the last call."""
        taken = dict(self.tasks), dict(self.threads)
        self.tasks.clear()
        self.threads.clear()
        return taken

    @contextmanager
    def watched(self, library: Library) -> Iterator[None]:
        """Watch the running loop, which is of this library, and every way to a worker thread."""
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
    def _detoured(self, function: Function, seen: Seen) -> Iterator[None]:
        """Show every call of `function` to `seen`."""
        if type(function) is not FunctionType:
            self.unseen.append(f"Calls of {work_name(function)} are not counted: it is not written in Python.")
            yield
            return
        parameters = Parameters.of(function.__code__)
        shown = self._shown(twin(function, function.__code__), seen)

        def called(caller: Owner, *flat: Any) -> Any:
            arguments, named, containers = parameters.gathered(flat)
            if caller != NOBODY:
                for container in containers:
                    self.core.discount(caller, container)
            return shown(caller, *arguments, **named)

        with patched_code(function, detour(function.__code__, self.core.aside(called))):
            yield

    def _shown(self, function: Callable[..., Any], seen: Seen) -> Callable[..., Any]:
        """Return a function to run aside: it shows its call to `seen`, and calls `function` for the caller."""

        def shown(caller: Owner, /, *arguments: Any, **named: Any) -> Any:
            if caller == NOBODY:
                return function(*arguments, **named)
            arguments, named = seen(caller, arguments, named)
            return self.core.run(caller, function, *arguments, **named)

        return shown

    # ---- threads --------------------------------------------------------------------------------------------------

    def _handing(self, position: int) -> Seen:
        """Watch a function whose argument at `position` is to run in a worker thread."""

        def seen(caller: Owner, arguments: Arguments, named: Named) -> tuple[Arguments, Named]:
            if len(arguments) > position and not _of_a_pool(arguments[position]):
                self.threads[caller][work_name(arguments[position])] += 1
            return arguments, named

        return seen

    def _starting(self, caller: Owner, arguments: Arguments, named: Named) -> tuple[Arguments, Named]:
        thread = arguments[0]
        target = internals.thread_target(thread)
        if not (_of_a_pool(target) or _of_a_pool(type(thread))):
            self.threads[caller][work_name(target)] += 1
        return arguments, named

    # ---- asyncio --------------------------------------------------------------------------------------------------

    @contextmanager
    def _asyncio_loop(self, loop: asyncio.AbstractEventLoop) -> Iterator[None]:
        """Watch the methods that make tasks and take callbacks, also where the app has kept a bound method."""
        strangers = dict.fromkeys(asyncio.all_tasks(loop), self.background)
        watching = asyncio.current_task(loop)
        if watching is not None:
            strangers[watching] = self.aside
        with ExitStack() as stack:
            for name, position in SCHEDULING.items():
                if isinstance(method := _method(loop, name), FunctionType):
                    stack.enter_context(self._detoured(method, self._scheduling(position + 1, strangers)))
                else:
                    shown = self._shown(getattr(loop, name), self._scheduling(position, strangers))
                    stack.enter_context(_replaced(loop, name, self.core.aside(shown)))
            constructor = internals.eager_constructor(loop.get_task_factory())
            if loop.get_task_factory() is not None and (why := internals.why_no_eager_constructor()) is not None:
                self.unseen.append(f"{why}.")
            if constructor is not None:
                stack.enter_context(self._eager_factory(loop, constructor))
            elif isinstance(method := _method(loop, "create_task"), FunctionType):
                stack.enter_context(self._detoured(method, self._creating(1)))
            else:
                stack.enter_context(self._task_factory(loop))
            yield

    @contextmanager
    def _eager_factory(self, loop: asyncio.AbstractEventLoop, constructor: Callable[..., Any]) -> Iterator[None]:
        """Replace the loop's eager factory: anyio bypasses `create_task` and calls the constructor in the factory."""
        own = loop.get_task_factory()
        watching = self.core.aside(self._shown(constructor, self._creating(0)))
        loop.set_task_factory(asyncio.create_eager_task_factory(watching))  # type: ignore[attr-defined, unused-ignore]
        try:
            yield
        finally:
            loop.set_task_factory(own)

    @contextmanager
    def _task_factory(self, loop: asyncio.AbstractEventLoop) -> Iterator[None]:
        """Watch a `create_task` in C: by an attribute of the loop, and by a factory where the app has kept the method.

        While the attribute is called, the factory is removed: the arguments of a factory would be counted. The app sees
        the factory that it has set itself.
        """
        own, set_factory = loop.get_task_factory(), loop.set_task_factory
        shown = self._shown(loop.create_task, self._creating(0))

        def set_own(factory: Any) -> None:
            nonlocal own
            set_factory(factory)  # it may refuse it
            set_factory(watching)
            own = factory

        def make(caller: Owner, /, *arguments: Any, **named: Any) -> Any:
            return self._shown(own or _plain_task, self._creating(1))(caller, *arguments, **named)

        def create_task(caller: Owner, /, *arguments: Any, **named: Any) -> Any:
            set_factory(own)
            try:
                return shown(caller, *arguments, **named)
            finally:
                set_factory(watching)

        watching = self.core.aside(make)
        set_factory(watching)
        try:
            with (
                _replaced(loop, "create_task", self.core.aside(create_task)),
                _replaced(loop, "get_task_factory", lambda: own),
                _replaced(loop, "set_task_factory", set_own),
            ):
                yield
        finally:
            set_factory(own)

    def _creating(self, position: int) -> Seen:
        """Watch a function whose argument at `position`, or named `coro`, is the coroutine of the new task."""

        def seen(caller: Owner, arguments: Arguments, named: Named) -> tuple[Arguments, Named]:
            if "coro" in named:
                arguments = (*arguments, named.pop("coro"))
            if len(arguments) > position and asyncio.iscoroutine(coro := arguments[position]):
                self.tasks[caller][coroutine_name(coro)] += 1
                arguments = _with(arguments, position, self.core.coroutine_proxy(caller, coro, True))
            return arguments, named

        return seen

    def _scheduling(self, position: int, strangers: dict[asyncio.Task[Any], Owner]) -> Seen:
        """Watch a function whose argument at `position` is a callback."""

        def seen(caller: Owner, arguments: Arguments, named: Named) -> tuple[Arguments, Named]:
            if len(arguments) > position and callable(callback := arguments[position]):
                task = getattr(callback, "__self__", None)
                owner = strangers.get(task, caller) if isinstance(task, asyncio.Task) else caller
                arguments = _with(arguments, position, self.core.callback(owner, callback))
            return arguments, named

        return seen

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

    def _spawning(self, position: int) -> Seen:
        """Watch a function of trio whose argument at `position` makes the coroutine of the new task."""

        def seen(caller: Owner, arguments: Arguments, named: Named) -> tuple[Arguments, Named]:
            if len(arguments) <= position:
                return arguments, named
            function = arguments[position]
            if named.get("name") is None:
                named["name"] = function

            def rooted(_: Owner, /, *arguments: Any, **named: Any) -> Any:
                coro = self.core.run(caller, function, *arguments, **named)
                if not inspect.isawaitable(coro):
                    return coro
                self.tasks[caller][coroutine_name(coro)] += 1
                return self.core.coroutine_proxy(caller, coro, True)

            return _with(arguments, position, self.core.aside(rooted)), named

        return seen


def _with(arguments: Arguments, position: int, value: object) -> Arguments:
    return (*arguments[:position], value, *arguments[position + 1 :])


@contextmanager
def _replaced(loop: asyncio.AbstractEventLoop, name: str, value: object) -> Iterator[None]:
    """Set an attribute of the loop, which asyncio's code in C finds before the method of its class."""
    if not hasattr(loop, "__dict__"):
        raise MeasurementError(
            f"nothing can be counted on a loop of {type(loop).__module__}.{type(loop).__qualname__}: its {name} is not"
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


def _plain_task(loop: asyncio.AbstractEventLoop, coro: Any, **named: Any) -> asyncio.Task[Any]:
    """Make the task that a loop without a task factory makes."""
    return asyncio.Task(coro, loop=loop, **named)


def _method(loop: asyncio.AbstractEventLoop, name: str) -> Any:
    """Return the function behind a method of the loop's class."""
    return inspect.unwrap(getattr(type(loop), name))


def _of_a_pool(work: object) -> bool:
    return f"{getattr(work, '__module__', None) or ''}.".startswith(POOLS)


def _function(callee: Any) -> Function:
    """Return the Python function behind decorators that keep it."""
    found: Function = inspect.unwrap(callee)
    return found


# ---- names --------------------------------------------------------------------------------------------------------


def coroutine_name(coroutine: Any) -> str:
    """Return `module.qualname` of the coroutine that a new task is for.

    If a library spawns its own coroutine round the app's, this is the name of the app's.
    """
    given = _given_coroutine(coroutine)
    named = coroutine if given is None else given
    frame = getattr(named, "cr_frame", None)
    module = frame.f_globals.get("__name__", "?") if frame is not None else type(named).__module__
    return f"{module}.{getattr(named, '__qualname__', type(named).__qualname__)}"


def _given_coroutine(coroutine: Any) -> Any:
    """Return the only coroutine not yet begun among the arguments of `coroutine` and the attributes of its `self`."""
    frame = getattr(coroutine, "cr_frame", None)
    if frame is None:
        return None
    arguments = dict(frame.f_locals)
    values = [*arguments.values(), *_attributes(arguments.get("self"))]
    found = [
        value
        for value in values
        if type(value) is CoroutineType and inspect.getcoroutinestate(value) == inspect.CORO_CREATED
    ]
    return found[0] if len(set(map(id, found))) == 1 else None


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
    """Return `module.qualname` of a function that is handed to a thread, inside partials and `Context.run`."""
    while isinstance(work, functools.partial):
        in_context = isinstance(getattr(work.func, "__self__", None), Context) and work.args
        work = work.args[0] if in_context else work.func
    named = work if hasattr(work, "__qualname__") else type(work)
    return f"{getattr(named, '__module__', None) or '?'}.{named.__qualname__}"
