"""Tracers and profilers of `sys.settrace` and `sys.setprofile`: take them off every thread, and put them back.

From CPython 3.12 to the newest, one traced thread slows every thread down, also when it only waits in a pool. Where the
extension `_tracing` can be used, tools are taken off all threads, whatever language they are written in. Elsewhere only
the current thread's tools are, and only those that Python can install again.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from types import FrameType
from typing import Any, TypeAlias

from . import internals

_INSTALL: dict[str, Callable[[Any], None]] = {"tracer": sys.settrace, "profiler": sys.setprofile}
# The most threads that a message names; it gives the number of the others.
MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class ThreadTool:
    """A `kind` of tool ("tracer" or "profiler") of one thread; `thread` is its name, None for the current thread."""

    kind: str
    tool: object
    thread: str | None = None


# What new threads begin with, by kind of tool: `threading.settrace` and `threading.setprofile` say it.
Hooks: TypeAlias = Mapping[str, object]


def hooks() -> Hooks:
    """Return the tools that a new thread begins with now."""
    return {"tracer": threading.gettrace(), "profiler": threading.getprofile()}


@contextmanager
def threads_untraced() -> Iterator[Hooks]:
    """Let threads start without a tracer and a profiler in the block, because they may outlive it.

    Yields the hooks that new threads had before.
    """
    before = hooks()
    _for_new_threads(threading.settrace, None)
    _for_new_threads(threading.setprofile, None)
    try:
        yield before
    finally:
        _for_new_threads(threading.settrace, before["tracer"])
        _for_new_threads(threading.setprofile, before["profiler"])


@contextmanager
def profiled(profiler: Callable[[FrameType, str, Any], None]) -> Iterator[bool]:
    """Run with a profiler in this thread and, where it can be taken off again, in all others.

    Yields whether all threads have it. The profiler that this thread had is put back, if Python can install it.
    """
    previous, tracing = sys.getprofile(), internals.thread_tools()
    sys.setprofile(profiler)
    every = tracing is not None and tracing.spread()
    for_new_threads = threading.getprofile()
    if every:
        threading.setprofile(profiler)
    try:
        yield every
    finally:
        if every:
            _for_new_threads(threading.setprofile, for_new_threads)
        if tracing is not None:
            tracing.gather(profiler)
        sys.setprofile(previous if callable(previous) else None)


def _for_new_threads(install: Callable[[Any], None], function: object) -> None:
    """Install a function for new threads, or none: `threading` takes None, though the types do not say so."""
    install(function)


@contextmanager
def suspended(new_threads: Hooks | None = None) -> Iterator[list[ThreadTool]]:
    """Suspend tracers and profilers, and restore them; yields what was suspended.

    `new_threads` are the tools that threads begin with outside the block, those of now if nothing is said.
    """
    beginning = new_threads or hooks()
    profiler, before, threads = sys.getprofile(), _stack(sys._getframe()), _stacks()
    tracing = internals.thread_tools()
    # The profiler sees this call begin and not end, so it is made here, where `_catch_up` knows the frame.
    if tracing is not None:
        taken = tracing.suspend()
    else:
        taken = _own_tools()
        sys.settrace(None)
        if any(one.kind == "profiler" for one in taken):
            sys.setprofile(None)
    try:
        yield taken if tracing is None else [_named(kind, tool, ident) for kind, ident, _, tool, _ in taken]
    finally:
        if _keeps_a_stack(profiler):
            gc.collect()  # `_keeps_a_stack` says why
            _catch_up(profiler, before, _stack(sys._getframe()))
        if tracing is not None:
            unmoved = _begun_anew(tracing, taken, threads, beginning)
            tracing.resume(unmoved)  # here, where `_catch_up` knows the frame
        else:
            for one in taken:
                _INSTALL[one.kind](one.tool)


def _begun_anew(
    tracing: Any, taken: Sequence[Any], before: Mapping[int, Sequence[FrameType]], beginning: Hooks
) -> list[Any]:
    """Let the tools that `tracing` took begin anew where their thread has left a call since; returns the others.

    A tool may keep the stack of its thread, as coverage does, and would take one function for another there. It begins
    as in a new thread.
    """
    now, unmoved = _stacks(), []
    for one in taken:
        kind, ident, number, tool, _ = one
        if ident == threading.get_ident() or before.get(ident) == now.get(ident):
            unmoved.append(one)
        elif beginning[kind] is not None and _package(beginning[kind]) == _package(tool):
            for frame in now.get(ident, ()):
                if frame.f_trace is tool:  # or what begins anew would hand its events to the old one
                    frame.f_trace = None
            _INSTALL[kind](beginning[kind])
            tracing.hand_over(kind, number)
        elif not _keeps_a_stack(tool):
            unmoved.append(one)
    return unmoved


def at_work() -> list[ThreadTool]:
    """Return the tools that slow the current thread down, as far as they can be seen."""
    tracing = internals.thread_tools()
    if tracing is not None:
        return [_named(kind, tool, ident) for kind, ident, tool in tracing.at_work()]
    found = [("tracer", sys.gettrace()), ("profiler", sys.getprofile())]
    return [ThreadTool(kind, tool) for kind, tool in found if tool is not None]


def other_threads() -> list[str]:
    """The names of all threads but the current one."""
    return [thread.name for thread in threading.enumerate() if thread is not threading.current_thread()]


def _own_tools() -> list[ThreadTool]:
    """The current thread's tools that Python can install again: those in C show an object that is no function."""
    return [one for one in at_work() if callable(one.tool)]


def _named(kind: str, tool: object, ident: int) -> ThreadTool:
    if ident == threading.get_ident():
        return ThreadTool(kind, tool)
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return ThreadTool(kind, tool, names.get(ident, f"thread {ident}"))


def described(tools: Sequence[ThreadTool]) -> list[str]:
    """Each tool with its type and the other threads that it is in: `a tracer (package.Tracer) of the thread worker`."""
    threads: dict[str, list[str | None]] = {}
    for one in tools:
        threads.setdefault(f"a {one.kind} ({type_name(one.tool)})", []).append(one.thread)
    return [f"{name}{_of_threads(where)}" for name, where in threads.items()]


def _of_threads(threads: Sequence[str | None]) -> str:
    others = [name for name in threads if name is not None]
    if not others:
        return ""
    more = f" and {len(others) - MOST_NAMED} more" if len(others) > MOST_NAMED else ""
    plural = "thread" if len(others) == 1 else "threads"
    also = ", also" if None in threads else ""
    return f"{also} of the {plural} {', '.join(others[:MOST_NAMED])}{more}"


def type_name(tool: object) -> str:
    """`module.qualname` of a class or function, or else of the object's class."""
    kind = tool if isinstance(tool, type) or hasattr(tool, "__qualname__") else type(tool)
    return f"{kind.__module__}.{getattr(kind, '__qualname__', kind)}"


def _package(tool: object) -> str:
    return type_name(tool).partition(".")[0]


def _stacks() -> dict[int, list[FrameType]]:
    """The stack of each thread, by its ident."""
    return {ident: _stack(frame) for ident, frame in sys._current_frames().items()}


def _stack(frame: FrameType | None) -> list[FrameType]:
    """The frame and its callers, outermost first."""
    found = []
    while frame is not None:
        found.append(frame)
        frame = frame.f_back
    return found[::-1]


# ---- the profiler that keeps a stack of its own -----------------------------------------------------------------


def _catch_up(profiler: Any, before: Sequence[FrameType], now: Sequence[FrameType]) -> None:
    """Tell the standard library's `profile` which calls ended and began while it was suspended.

    It keeps a stack, whose top is `cur[-2]`, and fails with an AssertionError at an event that does not fit.
    """
    common = sum(1 for _ in takewhile(lambda pair: pair[0] is pair[1], zip(before, now, strict=False)))
    for frame in reversed(before[common:]):
        while profiler.__self__.cur[-2] is frame:  # once for the frame, once for a function in C that it called
            profiler(frame, "return", None)
    for frame in now[common:]:
        profiler(frame, "call", None)


def _keeps_a_stack(profiler: object) -> bool:
    """Whether this is the standard library's `profile`, which fails at an event that does not fit its own stack.

    On CPython 3.11 garbage collection can begin between a call and its event. The callback of a weak reference then
    fails in `profile`, and CPython removes the profiler. That is why the garbage of a measurement is collected before
    the profiler is restored.
    """
    # Not by its class: with `python -m profile` that is one of the module __main__.
    keeper = getattr(profiler, "__self__", None)
    return hasattr(keeper, "trace_dispatch_return") and hasattr(keeper, "cur")
