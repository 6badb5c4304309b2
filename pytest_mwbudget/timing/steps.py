"""Log whose work the event loop runs, at the begin and at the end of each of its steps.

A step is what the loop runs without a break: a task up to its next suspension, or a callback. A task or a callback
belongs to the owner that started it, until the task enters a layer. Work that was there before the request belongs to
`others`. So a row is charged with what it starts, in time as in counts.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import Context
from dataclasses import dataclass, field
from threading import get_ident
from types import BuiltinMethodType, MethodType
from typing import Any

from ..asgi import loops
from ..interpreter import internals
from ..interpreter.clocks import Clock
from ..interpreter.identity import class_name, is_a
from ..model.stack import ASIDE, LISTENING, SUSPENDED, Owner
from .probe_code import Log

# The types of asyncio's own callbacks, which hold their task: a step in C, a wakeup in C, both in Python.
STEP, HOLDERS = "TaskStepMethWrapper", frozenset((BuiltinMethodType, MethodType))
# The task of trio that runs what threads ask for. Its time belongs to the row that goes on then, as on asyncio.
ANSWERS = "<TrioToken.run_sync_soon task>"
# From Python 3.14 on a keyword of `create_task` makes a task eager.
EAGER_START = sys.version_info >= (3, 14)
# Tasks in C and in Python.
TASKS = (asyncio.Task, asyncio.tasks._PyTask)  # type: ignore[attr-defined]


@dataclass(slots=True)
class _Task:
    """The owner that started a task, and the owner that goes on in its next step.

    As long as both are the same, the task has entered no layer: it runs beside the request, which does not wait for
    each of its steps.
    """

    born: Owner
    resumes: Owner


@dataclass(slots=True)
class Steps:
    """The steps of the running loop, logged to `timeline`.

    `on` says whether they are: an app may keep a function that logs, and call it after the end.
    """

    timeline: Log
    clock: Clock
    others: Owner
    tasks: dict[Any, _Task] = field(default_factory=dict)
    # The owner that started the task of the current step, None while steps are not logged.
    starter: list[Owner | None] = field(default_factory=lambda: [None])
    # Returns the running task.
    running: Callable[[], Any] = asyncio.current_task
    on: bool = False

    @contextmanager
    def logged(self) -> Iterator[None]:
        """Log the steps of the running loop in the block."""
        loop, self.on = loops.current(), True
        try:
            with self._of_trio(loop) if isinstance(loop, loops.TrioLoop) else self._of_asyncio(loop.loop):
                yield
        finally:
            self.on, self.starter[0] = False, None
            self.tasks.clear()

    def forget_ended(self) -> None:
        """Forget the tasks of asyncio that are over."""
        for task in [task for task in self.tasks if isinstance(task, TASKS) and task.done()]:
            del self.tasks[task]

    def begins(self) -> None:
        """Note that the running task makes a request, which nobody in a request started."""
        state = self.tasks.get(self.running()) if self.tasks else None
        if state is not None:  # an eager task is known after its first step
            state.born = self.others
        if self.on:
            self.starter[0] = self.others

    def _started(self, task: Any) -> _Task:
        """Note that the current owner has started a task."""
        owner = _current(self.timeline)
        state = self.tasks[task] = _Task(owner, owner)
        return state

    def _resume(self, state: _Task) -> None:
        now = self.clock()
        self.starter[0] = state.born
        if state.resumes == state.born or state.resumes >= LISTENING:
            self.timeline.extend((ASIDE, now, state.born, now))
        else:
            self.timeline.extend((state.resumes, now))

    def _suspend(self, state: _Task) -> None:
        state.resumes = Owner(self.timeline[-2])
        self.timeline.extend((SUSPENDED, self.clock()))

    # ---- asyncio --------------------------------------------------------------------------------------------------

    @contextmanager
    def _of_asyncio(self, loop: asyncio.AbstractEventLoop) -> Iterator[None]:
        """Replace the methods that take callbacks by attributes of the loop, which asyncio's code in C finds."""
        for task in asyncio.all_tasks(loop):
            self.tasks[task] = _Task(self.others, self.others)
        with ExitStack() as stack:
            for name, scheduling in self._scheduling(loop).items():
                stack.enter_context(loops.replaced(loop, name, scheduling))
            stack.enter_context(self._of_files(loop))
            own = loop.get_task_factory()
            constructor = internals.eager_constructor(own)
            if constructor is not None:
                eager: Any = asyncio.create_eager_task_factory  # type: ignore[attr-defined, unused-ignore]
                loop.set_task_factory(eager(self._constructing(constructor)))
            elif own is not None:  # its tasks may be eager
                loop.set_task_factory(self._constructing(own))
            if own is not None:
                stack.callback(loop.set_task_factory, own)
            if EAGER_START:
                stack.enter_context(loops.replaced(loop, "create_task", self._creating(loop.create_task)))
            yield

    @contextmanager
    def _of_files(self, loop: asyncio.AbstractEventLoop) -> Iterator[None]:
        """Log the callbacks of files that were watched before, which nobody in the request started."""
        _, called = _logging(self)
        before = [(handle, handle._callback, handle._args) for handle in loops.watching(loop)]  # type: ignore[attr-defined]
        for handle, callback, arguments in before:
            handle._callback, handle._args = called, (self.others, callback, *arguments)  # type: ignore[attr-defined]
        try:
            yield
        finally:
            for handle, callback, arguments in before:
                if not handle.cancelled():
                    handle._callback, handle._args = callback, arguments  # type: ignore[attr-defined]

    def _scheduling(self, loop: asyncio.AbstractEventLoop) -> dict[str, Callable[..., Any]]:
        """Return functions that schedule callbacks as the loop's methods do, and log when these run.

        Closures with as few calls as possible, because they run in timed requests.
        """
        known, timeline, thread = self.tasks.get, self.timeline, get_ident()
        stepped, called = _logging(self)
        call_soon, call_soon_threadsafe = loop.call_soon, loop.call_soon_threadsafe

        def logged(callback: Callable[..., Any], *arguments: Any) -> tuple[Any, ...]:
            """Return what is to be called, and its arguments."""
            if callback is stepped or callback is called or not self.on:
                return (callback, *arguments)  # a method of the loop has called another method, or it is the end
            task = _stepped_by(callback)
            if task is None:
                return (called, _current(timeline), callback, *arguments)
            return (stepped, known(task) or self._started(task), callback, *arguments)

        def soon(callback: Callable[..., Any], *arguments: Any, context: Context | None = None) -> Any:
            if type(callback) is BuiltinMethodType and type(callback.__self__) is asyncio.Task:
                state = known(callback.__self__)
                if state is not None:  # the most frequent callback
                    return call_soon(stepped, state, callback, *arguments, context=context)
            return call_soon(*logged(callback, *arguments), context=context)

        def threadsafe(callback: Callable[..., Any], *arguments: Any, context: Context | None = None) -> Any:
            # What a thread asks for belongs to the row that goes on then.
            what = logged(callback, *arguments) if get_ident() == thread else (callback, *arguments)
            return call_soon_threadsafe(*what, context=context)

        return {"call_soon": soon, "call_soon_threadsafe": threadsafe, **_later(loop, logged)}

    def _constructing(self, constructor: Callable[..., Any]) -> Callable[..., Any]:
        """Return what makes tasks whose first step may run inside it, as a part of what the caller does."""

        def constructed(*arguments: Any, **named: Any) -> Any:
            if not self.on:
                return constructor(*arguments, **named)
            starter, started_by = Owner(self.timeline[-2]), self.starter[0]
            self.starter[0] = starter
            try:
                task = constructor(*arguments, **named)
            finally:
                self.starter[0] = started_by
            state, current = self.tasks.get(task), Owner(self.timeline[-2])
            if state is None and not task.done():
                self.tasks[task] = _Task(starter, current)
            elif state is not None and current != starter:  # its next step may hold this state
                state.born, state.resumes = starter, current
            if current != starter:
                self.timeline.extend((starter, self.clock()))
            return task

        return constructed

    def _creating(self, create_task: Callable[..., Any]) -> Callable[..., Any]:
        """Return the method of the loop that creates tasks, for those that are eager by its keyword."""
        constructed = self._constructing(create_task)

        def created(coroutine: Any, **named: Any) -> Any:
            return (constructed if named.get("eager_start") else create_task)(coroutine, **named)

        return created

    # ---- trio -----------------------------------------------------------------------------------------------------

    @contextmanager
    def _of_trio(self, loop: loops.TrioLoop) -> Iterator[None]:
        instrument, self.running = _Instrument(self), loop.task
        loop.trio.lowlevel.add_instrument(instrument)
        try:
            with loop.asked_by(self._asking):
                yield
        finally:
            loop.trio.lowlevel.remove_instrument(instrument)

    def _asking(self, run_sync_soon: Callable[..., None]) -> Callable[..., None]:
        """Return a function that asks trio's loop to call a function, and logs when the loop calls it."""
        thread = get_ident()
        _, called = _logging(self)

        def asking(function: Callable[..., Any], *arguments: Any, idempotent: bool = False) -> None:
            # The queue compares what is idempotent. What a thread asks for belongs to the row that goes on then.
            if self.on and not idempotent and get_ident() == thread:
                function, arguments = called, (_current(self.timeline), function, *arguments)
            run_sync_soon(function, *arguments, idempotent=idempotent)

        return asking


def _current(timeline: Log) -> Owner:
    """Return the owner of what runs now: where the loop does it for a thread, the owner that was suspended last."""
    return Owner(timeline[-4] if timeline[-2] == SUSPENDED and len(timeline) > 2 else timeline[-2])


def _stepped_by(callback: Callable[..., Any]) -> object | None:
    """Return the task of asyncio that a callback steps, None for another callback."""
    kind = type(callback)
    if kind not in HOLDERS and class_name(kind)[1] != STEP:
        return None
    task: object = callback.__self__  # type: ignore[attr-defined]
    return task if is_a(task, *TASKS) else None


def _logging(steps: Steps) -> tuple[Callable[..., None], Callable[..., None]]:
    """Return functions that run a step of a task, and another callback, and log it."""
    timeline, clock, starter = steps.timeline, steps.clock, steps.starter
    log = timeline.append

    def stepped(state: _Task, step: Callable[..., Any], /, *arguments: Any) -> None:
        owner, now = state.resumes, clock()
        starter[0] = state.born
        if owner == state.born or owner >= LISTENING:
            log(ASIDE)
            log(now)
        log(owner)
        log(now)
        try:
            step(*arguments)
        finally:
            state.resumes = Owner(timeline[-2])
            log(SUSPENDED)
            log(clock())

    def called(owner: Owner, callback: Callable[..., Any], /, *arguments: Any) -> None:
        if not steps.on:  # a timer, or a file that is still watched
            callback(*arguments)
            return
        now = clock()
        timeline.extend((ASIDE, now, owner, now))
        try:
            callback(*arguments)
        finally:
            timeline.extend((SUSPENDED, clock()))

    return stepped, called


class _Instrument:
    """What trio calls at each step. Not a subclass of `trio.abc.Instrument`, because trio may not be installed."""

    def __init__(self, steps: Steps) -> None:
        self.steps = steps
        self.task_spawned = steps._started
        self.over: Any = None

    def before_task_step(self, task: Any) -> None:
        steps = self.steps
        if task.name == ANSWERS:
            return
        steps._resume(steps.tasks.get(task) or steps.tasks.setdefault(task, _Task(steps.others, steps.others)))

    def task_exited(self, task: Any) -> None:
        self.over = task  # before the end of its last step

    def after_task_step(self, task: Any) -> None:
        state = self.steps.tasks.get(task)
        if state is not None:
            self.steps._suspend(state)
        if task is self.over:
            self.over = None
            self.steps.tasks.pop(task, None)


def _later(loop: asyncio.AbstractEventLoop, logged: Callable[..., tuple[Any, ...]]) -> dict[str, Callable[..., Any]]:
    """Return functions that schedule as the loop's methods do whose first argument is a delay, a time or a file.

    They have the names of the methods' parameters.
    """
    call_later, call_at, add_reader, add_writer = loop.call_later, loop.call_at, loop.add_reader, loop.add_writer

    def later(delay: Any, callback: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        return call_later(delay, *logged(callback, *arguments), **named)

    def at(when: Any, callback: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        return call_at(when, *logged(callback, *arguments), **named)

    def reader(fd: Any, callback: Callable[..., Any], *arguments: Any) -> Any:
        return add_reader(fd, *logged(callback, *arguments))

    def writer(fd: Any, callback: Callable[..., Any], *arguments: Any) -> Any:
        return add_writer(fd, *logged(callback, *arguments))

    return {"call_later": later, "call_at": at, "add_reader": reader, "add_writer": writer}
