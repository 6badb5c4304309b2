"""Count the tasks and threads that each owner spawns, and charge the work of a task or a thread to its spawner.

Calls of these are watched: on asyncio the loop's `create_task`, `call_soon` and the like; on uvloop, which is in C,
attributes of the loop in their place and a task factory; on trio the functions that spawn; everywhere the functions
that hand work to a thread. The owner charged at the time of the call is the spawner. What a thread pool does between
two pieces of work is nobody's.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from contextvars import Context
from dataclasses import dataclass, field
from functools import partial
from types import CoroutineType, FrameType, FunctionType
from typing import Any, TypeAlias

from ..asgi.callables import held_values, module_and_name
from ..asgi.loops import Library, replaced
from ..interpreter import internals
from ..interpreter.code_patching import Function, Parameters, detour, patched_code, twin
from ..interpreter.coroutine_proxy import unproxied
from ..interpreter.identity import class_name, from_c, is_a, is_awaitable
from ..model.stack import Owner
from .charger import NOBODY, Charger

Arguments: TypeAlias = tuple[Any, ...]
Named: TypeAlias = dict[str, Any]
# Is shown the caller of a function, the function, which is charged to the caller, and the arguments; makes the call.
Seen: TypeAlias = Callable[[Owner, Callable[..., Any], Arguments, Named], Any]

# Is shown the arguments of a call in a thread that works for nobody, and returns those to make the call with.
Strange: TypeAlias = Callable[[Arguments], Arguments]

# The modules of thread pools. Work that a pool hands on was counted when the pool got it. Functions that these packages
# export, such as `anyio.from_thread.run`, are work like any other.
POOLS = ("anyio._", "concurrent.futures.process.", "concurrent.futures.thread.", "trio._")
# The event loop's methods that take a callback, and the place of the callback among the arguments.
SCHEDULING = {"call_soon": 0, "call_soon_threadsafe": 0, "call_later": 1, "call_at": 1}


@dataclass(eq=False, slots=True)
class Spawning:
    """Count tasks and threads by owner and name."""

    core: Charger
    # Is charged for tasks that were there before, except the task that counts, which is charged to `aside`.
    background: Owner
    aside: Owner
    # Lists, because threads may append at the same time.
    tasks: list[tuple[Owner, str]] = field(default_factory=list)
    threads: list[tuple[Owner, str]] = field(default_factory=list)
    # The threads that are calling `run_in_executor`.
    executing: set[int] = field(default_factory=set)
    # The idents of pools' threads, and of threads that were seen to start.
    known_threads: set[int] = field(default_factory=set)
    # By the id of a `threading.Condition`: who notified it.
    notified: defaultdict[int, set[Owner]] = field(default_factory=lambda: defaultdict(set))
    # By the ident of a thread that works for nobody: who was charged when its callbacks ran in an event loop.
    answered: defaultdict[int, set[Owner]] = field(default_factory=lambda: defaultdict(set))
    # Why some tasks and threads were not seen.
    unseen: list[str] = field(default_factory=list)

    def take(self) -> tuple[dict[Owner, Counter[str]], dict[Owner, Counter[str]]]:
        """Return tasks and threads by owner since the last call."""
        tasks, self.tasks = self.tasks, []
        threads, self.threads = self.threads, []
        return _by_owner(tasks), _by_owner(threads)

    def strangers(self, events: Mapping[int, int]) -> dict[int, int]:
        """Return the events, by thread, of the threads that nobody was seen to hand work to."""
        return {ident: number for ident, number in events.items() if ident not in self.known_threads}

    @contextmanager
    def watched(self, library: Library) -> Iterator[None]:
        """Watch the running loop, which is of this library, and every way to a worker thread."""
        self.known_threads |= {thread.ident or 0 for thread in threading.enumerate() if _is_of_a_pool(thread)}
        if isinstance(threading.Thread.start, FunctionType) and (why := internals.why_no_bootstrap()) is not None:
            self.unseen.append(f"{why}.")
        with ExitStack() as stack:
            for function, seen in (*self._to_threads(), *(self._of_trio() if library == "trio" else ())):
                stack.enter_context(self._detoured(_function(function), seen))
            stack.enter_context(self._asyncio_loops(None if library == "trio" else asyncio.get_running_loop()))
            yield

    def _to_threads(self) -> Iterator[tuple[Any, Seen]]:
        """Yield the functions through which work comes to threads, and what watches them."""
        yield ThreadPoolExecutor.submit, self._handing(1)
        yield ThreadPoolExecutor.__init__, self._lending(3)  # the initializer, which each thread of the pool calls
        yield threading.Thread.start, self._starting
        yield threading.Condition.notify, self._notifying
        yield Future.add_done_callback, self._lending(1)
        if "anyio.to_thread" in sys.modules:
            yield sys.modules["anyio.to_thread"].run_sync, self._handing(0)
        yield asyncio.run_coroutine_threadsafe, self._sending

    # ---- detours --------------------------------------------------------------------------------------------------

    @contextmanager
    def _detoured(self, function: Function, seen: Seen, strange: Strange | None = None) -> Iterator[None]:
        """Show every call of `function` to `seen`. See `_shown`."""
        if type(function) is not FunctionType:
            self.unseen.append(f"Calls of {work_name(function)} are not counted: it is not written in Python.")
            yield
            return
        parameters = Parameters.of(function.__code__)
        shown = self._shown(twin(function, function.__code__), seen, strange)

        def called(caller: Owner, *flat: Any) -> Any:
            arguments, named, containers = parameters.gathered(flat)
            if caller != NOBODY:
                for container in containers:
                    self.core.discount(caller, container)
            return shown(caller, *arguments, **named)

        with patched_code(function, detour(function.__code__, self.core.aside(called))):
            yield

    def _shown(self, function: Callable[..., Any], seen: Seen, strange: Strange | None = None) -> Callable[..., Any]:
        """Return a function to run aside: it shows its call to `seen`, and calls `function` for the caller.

        `strange` changes the arguments of a caller that works for nobody.
        """

        def shown(caller: Owner, /, *arguments: Any, **named: Any) -> Any:
            if caller == NOBODY:
                return function(*(strange(arguments) if strange else arguments), **named)
            return seen(caller, partial(self.core.run, caller, function), arguments, named)

        return shown

    # ---- threads --------------------------------------------------------------------------------------------------

    def _handing(self, position: int) -> Seen:
        """Watch a function whose argument at `position` is to run in a worker thread."""
        lending = self._lending(position)

        def seen(caller: Owner, call: Callable[..., Any], arguments: Arguments, named: Named) -> Any:
            if len(arguments) > position:
                self._count_thread(caller, arguments[position])
            return lending(caller, call, arguments, named)

        return seen

    def _count_thread(self, caller: Owner, work: object) -> None:
        if not _of_a_pool(work) and threading.get_ident() not in self.executing:
            self.threads.append((caller, work_name(work)))

    def _lending(self, *positions: int) -> Seen:
        """Watch a function whose arguments at `positions` may be called in another thread."""

        def seen(caller: Owner, call: Callable[..., Any], arguments: Arguments, named: Named) -> Any:
            for position in positions:
                arguments = _wrapped(arguments, position, partial(self.core.lent, caller))
            return call(*arguments, **named)

        return seen

    def _starting(self, caller: Owner, call: Callable[..., Any], arguments: Arguments, named: Named) -> Any:
        thread: threading.Thread = arguments[0]
        with ExitStack() as stack:
            if not _is_of_a_pool(thread):
                self._count_thread(caller, internals.thread_target(thread))
                if internals.why_no_bootstrap() is None:
                    stack.enter_context(internals.bootstrap_replaced(thread, partial(self.core.lent, caller)))
            answer = call(*arguments, **named)
        self.known_threads.add(thread.ident or 0)
        return answer

    def _notifying(self, caller: Owner, call: Callable[..., Any], arguments: Arguments, named: Named) -> Any:
        self.notified[id(arguments[0])].add(caller)
        return call(*arguments, **named)

    def _answering(self, position: int) -> Strange:
        """Watch a function to which a thread that works for nobody passes a callback, its argument at `position`.

        When the callback runs, the owner is charged that was suspended last. The thread may have worked for it.
        """

        def answering(callback: Callable[..., Any]) -> Callable[..., Any]:
            thread = threading.get_ident()

            def answer(charged: Owner, /, *arguments: Any, **named: Any) -> Any:
                if charged == NOBODY:
                    return callback(*arguments, **named)
                self.answered[thread].add(charged)
                return self.core.run(charged, callback, *arguments, **named)

            return self.core.aside(answer)

        return lambda arguments: _wrapped(arguments, position, answering)

    def _executing(self, position: int) -> Seen:
        """Watch a loop's `run_in_executor`, whose executor is at `position`, before the work.

        A thread pool is watched itself. If another executor uses a pool, the pool counts nothing.
        """
        lending = self._lending(position + 1)

        def seen(caller: Owner, call: Callable[..., Any], arguments: Arguments, named: Named) -> Any:
            executor = arguments[position] if len(arguments) > position else None
            if executor is None or is_a(executor, ThreadPoolExecutor) or _of_a_pool(type(executor)):
                return call(*arguments, **named)
            if len(arguments) > position + 1:
                self._count_thread(caller, arguments[position + 1])
            self.executing.add(threading.get_ident())
            try:
                return lending(caller, call, arguments, named)
            finally:
                self.executing.discard(threading.get_ident())

        return seen

    # ---- asyncio --------------------------------------------------------------------------------------------------

    @contextmanager
    def _asyncio_loops(self, loop: asyncio.AbstractEventLoop | None) -> Iterator[None]:
        """Watch the methods that make tasks and take callbacks, also where the app has kept a bound method.

        They are those of `loop`, None on trio, and of asyncio's own loops, which may run in other threads; not the
        latter if the class of `loop` has Python methods of its own, which may call those of asyncio.
        """
        strangers = {} if loop is None else dict.fromkeys(asyncio.all_tasks(loop), self.background)
        watching = None if loop is None else asyncio.current_task(loop)
        if watching is not None:
            strangers[watching] = self.aside
        taking: dict[str, Callable[[int], Seen]] = {
            name: partial(self._scheduling, position, strangers) for name, position in SCHEDULING.items()
        }
        taking["run_in_executor"] = self._executing
        with ExitStack() as stack:
            for name, seen in taking.items():
                strange = self._answering if name == "call_soon_threadsafe" else lambda first: None
                stack.enter_context(self._detoured(_python_method(loop, name), seen(1), strange(1)))
                if loop is not None and not isinstance(_method(loop, name), FunctionType):
                    shown = self._shown(getattr(loop, name), seen(0), strange(0))
                    stack.enter_context(replaced(loop, name, self.core.aside(shown)))
            factory = None if loop is None else loop.get_task_factory()
            if factory is not None and (why := internals.why_no_eager_constructor()) is not None:
                self.unseen.append(f"{why}.")
            constructor = internals.eager_constructor(factory)
            if loop is not None and constructor is not None:
                stack.enter_context(self._eager_factory(loop, constructor))
            else:
                stack.enter_context(self._detoured(_python_method(loop, "create_task"), self._creating(1)))
                if loop is not None and not isinstance(_method(loop, "create_task"), FunctionType):
                    stack.enter_context(self._task_factory(loop))
            yield

    def _sending(self, caller: Owner, call: Callable[..., Any], arguments: Arguments, named: Named) -> Any:
        """Watch `run_coroutine_threadsafe`: the loop of another thread, which runs the coroutine, may be in C."""
        proxied = partial(self.core.coroutine_proxy, caller)
        return call(*_wrapped(arguments, 0, proxied, _is_coroutine), **named)

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
                replaced(loop, "create_task", self.core.aside(create_task)),
                replaced(loop, "get_task_factory", lambda: own),
                replaced(loop, "set_task_factory", set_own),
            ):
                yield
        finally:
            set_factory(own)

    def _creating(self, position: int) -> Seen:
        """Watch a function whose argument at `position`, or named `coro`, is the coroutine of the new task."""

        def seen(caller: Owner, call: Callable[..., Any], arguments: Arguments, named: Named) -> Any:
            if "coro" in named:
                arguments = (*arguments, named.pop("coro"))
            rooted = partial(self._rooted, caller)
            return call(*_wrapped(arguments, position, rooted, _is_coroutine), **named)

        return seen

    def _rooted(self, caller: Owner, coro: Any) -> Coroutine[Any, Any, Any]:
        """Return the coroutine of a new task, which is counted."""
        self.tasks.append((caller, coroutine_name(coro)))
        return self.core.coroutine_proxy(caller, coro, True)

    def _scheduling(self, place: int, strangers: dict[asyncio.Task[Any], Owner], first: int) -> Seen:
        """Watch a function whose argument at `place`, counted from the argument at `first`, is a callback."""
        position = first + place

        def seen(caller: Owner, call: Callable[..., Any], arguments: Arguments, named: Named) -> Any:
            def scheduled(callback: Callable[..., Any]) -> Callable[..., Any]:
                task = from_c(callback, "__self__")
                owner = strangers.get(task, caller) if is_a(task, asyncio.Task) else caller
                return self.core.callback(owner, callback)

            return call(*_wrapped(arguments, position, scheduled), **named)

        return seen

    # ---- trio -----------------------------------------------------------------------------------------------------

    def _of_trio(self) -> Iterator[tuple[Any, Seen]]:
        """Yield the functions of trio that spawn tasks, and through which work comes to threads and back."""
        import trio

        token: Any = type(trio.lowlevel.current_trio_token())
        yield trio.to_thread.run_sync, self._handing(0)
        yield trio.lowlevel.start_thread_soon, self._delivering
        yield trio.from_thread.run, self._returning
        yield trio.from_thread.run_sync, self._lending(0)
        yield token.run_sync_soon, self._calling_soon
        yield trio.Nursery.start_soon, self._spawning(1)
        yield trio.Nursery.start, self._spawning(1)
        yield trio.lowlevel.spawn_system_task, self._spawning(0)

    def _delivering(self, caller: Owner, call: Callable[..., Any], arguments: Arguments, named: Named) -> Any:
        """Watch trio's `start_thread_soon`: a thread calls the first argument, and the second with its result."""
        if arguments:
            self._count_thread(caller, arguments[0])
        return self._lending(0, 1)(caller, call, arguments, named)

    def _returning(self, caller: Owner, call: Callable[..., Any], arguments: Arguments, named: Named) -> Any:
        """Watch trio's `from_thread.run`, which lets trio await the coroutine that the first argument makes."""
        proxied = partial(self.core.coroutine_proxy, caller)
        return call(*_wrapped(arguments, 0, partial(self._making, caller, proxied)), **named)

    def _making(self, caller: Owner, wrap: Callable[[Any], Any], function: Callable[..., Any]) -> Callable[..., Any]:
        """Return what calls a function for the caller, and wraps the coroutine that the function makes."""

        def making(charged: Owner, /, *arguments: Any, **named: Any) -> Any:
            if charged == NOBODY:  # counting has ended
                return function(*arguments, **named)
            coro = self.core.run(caller, function, *arguments, **named)
            return wrap(coro) if is_awaitable(coro) else coro

        return self.core.aside(making)

    def _calling_soon(self, caller: Owner, call: Callable[..., Any], arguments: Arguments, named: Named) -> Any:
        """Watch the `run_sync_soon` of trio's token. Trio compares a call that is to be made once with others."""
        if not named.get("idempotent"):
            arguments = _wrapped(arguments, 1, partial(self.core.callback, caller))
        return call(*arguments, **named)

    def _spawning(self, position: int) -> Seen:
        """Watch a function of trio whose argument at `position` makes the coroutine of the new task."""

        def seen(caller: Owner, call: Callable[..., Any], arguments: Arguments, named: Named) -> Any:
            if len(arguments) > position and named.get("name") is None:
                named["name"] = arguments[position]
            rooted = partial(self._rooted, caller)
            return call(*_wrapped(arguments, position, partial(self._making, caller, rooted)), **named)

        return seen


def _by_owner(pairs: list[tuple[Owner, str]]) -> dict[Owner, Counter[str]]:
    by_owner: defaultdict[Owner, Counter[str]] = defaultdict(Counter)
    for owner, name in pairs:
        by_owner[owner][name] += 1
    return dict(by_owner)


def _wrapped(
    arguments: Arguments, position: int, wrap: Callable[[Any], Any], fits: Callable[[Any], bool] = callable
) -> Arguments:
    """Return the arguments with that at a position wrapped, if there is such an argument and it fits."""
    if len(arguments) <= position or not fits(arguments[position]):
        return arguments
    return (*arguments[:position], wrap(arguments[position]), *arguments[position + 1 :])


def _is_coroutine(value: object) -> bool:
    return is_a(value, Coroutine)


def _plain_task(loop: asyncio.AbstractEventLoop, coro: Any, **named: Any) -> asyncio.Task[Any]:
    """Make the task that a loop without a task factory makes."""
    return asyncio.Task(coro, loop=loop, **named)


def _python_method(loop: asyncio.AbstractEventLoop | None, name: str) -> Function:
    """Return the function behind a method of the loop's class, that of asyncio's own loops if it is not in Python."""
    method = None if loop is None else _method(loop, name)
    return method if isinstance(method, FunctionType) else _function(getattr(asyncio.BaseEventLoop, name))


def _method(loop: asyncio.AbstractEventLoop, name: str) -> Any:
    """Return the function behind a method of the loop's class."""
    return inspect.unwrap(getattr(type(loop), name))


def _is_of_a_pool(thread: threading.Thread) -> bool:
    return _of_a_pool(internals.thread_target(thread)) or _of_a_pool(type(thread))


def _of_a_pool(work: object) -> bool:
    return f"{module_and_name(work)[0]}.".startswith(POOLS)


def _function(callee: Any) -> Function:
    """Return the Python function behind decorators that keep it."""
    function: Function = inspect.unwrap(callee)
    return function


# ---- names --------------------------------------------------------------------------------------------------------


def coroutine_name(coroutine: Any) -> str:
    """Return `module.qualname` of the coroutine that a new task is for.

    If a library spawns its own coroutine round the app's, this is the name of the app's.
    """
    coroutine = unproxied(coroutine)
    given = _given_coroutine(coroutine)
    named = coroutine if given is None else given
    frame, own_name = from_c(named, "cr_frame"), from_c(named, "__qualname__")
    module, name = class_name(type(named))
    if type(frame) is FrameType:
        module = frame.f_globals.get("__name__", "?")
    return f"{module}.{own_name if type(own_name) is str else name}"


def _given_coroutine(coroutine: Any) -> Any:
    """Return the only coroutine not yet begun among the arguments of `coroutine` and the attributes of its `self`."""
    frame = from_c(coroutine, "cr_frame")
    if type(frame) is not FrameType:
        return None
    arguments = dict(frame.f_locals)
    values = [*arguments.values(), *held_values(arguments.get("self"))]
    created = [
        value
        for value in values
        if type(value) is CoroutineType and inspect.getcoroutinestate(value) == inspect.CORO_CREATED
    ]
    return created[0] if len(set(map(id, created))) == 1 else None


def work_name(work: Any) -> str:
    """Return `module.qualname` of a function that is handed to a thread, inside partials and `Context.run`."""
    while type(work) is functools.partial:
        in_context = type(from_c(work.func, "__self__")) is Context and work.args
        work = work.args[0] if in_context else work.func
    return ".".join(module_and_name(work))
