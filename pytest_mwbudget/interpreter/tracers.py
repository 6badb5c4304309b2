"""Suspend and restore the tracers and profilers of `sys.settrace` and `sys.setprofile` in every thread.

From CPython 3.12 on, one traced thread slows every thread down, even if it is idle in a pool. With the extension
`_tracing`, tools of all threads are suspended, also those written in C. Without the extension, only tools of the
current thread are suspended, and only those that Python can install again.
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
# The most threads that a message names. For further threads it gives only their number.
MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class ThreadTool:
    """A tool of a thread. `kind` is "tracer" or "profiler", `thread` a name, None for the current thread."""

    kind: str
    tool: object
    thread: str | None = None


# The tools of new threads by kind, as set by `threading.settrace` and `threading.setprofile`.
Hooks: TypeAlias = Mapping[str, object]


def hooks() -> Hooks:
    """Return the tools that a new thread would start with now."""
    return {"tracer": threading.gettrace(), "profiler": threading.getprofile()}


@contextmanager
def threads_untraced() -> Iterator[Hooks]:
    """Start new threads in the block without tracer and profiler, because they may outlive the block.

    Yields the hooks that new threads had before.
    """
    before = hooks()
    # `threading` accepts None too, although its type hints do not.
    install: dict[str, Callable[[Any], None]] = {"tracer": threading.settrace, "profiler": threading.setprofile}
    for install_tool in install.values():
        install_tool(None)
    try:
        yield before
    finally:
        for kind, install_tool in install.items():
            install_tool(before[kind])


@contextmanager
def profiled(profiler: Callable[[FrameType, str, Any], None]) -> Iterator[bool]:
    """Run the block with a profiler in this thread and, if the extension can remove it again, in all others.

    Yields whether all threads have the profiler. The previous profiler of this thread is restored if Python can install
    it.
    """
    previous, tracing = sys.getprofile(), internals.thread_tools()
    sys.setprofile(profiler)
    every = tracing is not None and tracing.spread()
    for_new_threads: Any = threading.getprofile()
    if every:
        threading.setprofile(profiler)
    try:
        yield every
    finally:
        if every:
            threading.setprofile(for_new_threads)
        if tracing is not None:
            tracing.gather(profiler)
        sys.setprofile(previous if callable(previous) else None)


@contextmanager
def suspended(new_threads: Hooks | None = None) -> Iterator[list[ThreadTool]]:
    """Suspend tracers and profilers in the block; yields the suspended tools.

    `new_threads` are the tools that threads start with outside the block, by default the current ones.
    """
    beginning = new_threads or hooks()
    profiler, before, threads = sys.getprofile(), _stack(sys._getframe()), _stacks()
    tracing = internals.thread_tools()
    # The profiler sees this call begin but not end. Make the call in this frame, which `_catch_up` knows.
    if tracing is not None:
        taken = tracing.suspend()
    else:
        # Those that Python can install again: a tool in C may show no callable object.
        taken = [thread_tool for thread_tool in at_work() if callable(thread_tool.tool)]
        sys.settrace(None)
        if any(thread_tool.kind == "profiler" for thread_tool in taken):
            sys.setprofile(None)
    try:
        yield taken if tracing is None else [_named(kind, tool, ident) for kind, ident, _, tool, _ in taken]
    finally:
        if _keeps_a_stack(profiler):
            gc.collect()  # `_keeps_a_stack` says why
            _catch_up(profiler, before, _stack(sys._getframe()))
        if tracing is not None:
            unmoved = _begun_anew(tracing, taken, threads, beginning)
            tracing.resume(unmoved)  # in this frame, which `_catch_up` knows
        else:
            for thread_tool in taken:
                _INSTALL[thread_tool.kind](thread_tool.tool)


def _begun_anew(
    tracing: Any, taken: Sequence[Any], before: Mapping[int, Sequence[FrameType]], beginning: Hooks
) -> list[Any]:
    """Start tools anew in threads that are in other calls than before; return the tools to resume.

    A tool may keep a stack of its thread's calls, as coverage does, and would confuse functions if resumed in other
    calls. It therefore starts as in a new thread.
    """
    now, unmoved = _stacks(), []
    for taken_tool in taken:
        kind, ident, number, tool, _ = taken_tool
        if ident == threading.get_ident() or before.get(ident) == now.get(ident):
            unmoved.append(taken_tool)
        elif beginning[kind] is not None and _package(beginning[kind]) == _package(tool):
            for frame in now.get(ident, ()):
                if frame.f_trace is tool:  # else the new tool would pass its events to the old one
                    frame.f_trace = None
            _INSTALL[kind](beginning[kind])
            tracing.hand_over(kind, number)
        elif not _keeps_a_stack(tool):
            unmoved.append(taken_tool)
    return unmoved


def at_work() -> list[ThreadTool]:
    """Return the tools that slow the current thread down; without the extension, only those of this thread."""
    tracing = internals.thread_tools()
    if tracing is not None:
        return [_named(kind, tool, ident) for kind, ident, tool in tracing.at_work()]
    own = [("tracer", sys.gettrace()), ("profiler", sys.getprofile())]
    return [ThreadTool(kind, tool) for kind, tool in own if tool is not None]


def other_threads() -> list[str]:
    """Return the names of all threads except the current one."""
    return [thread.name for thread in threading.enumerate() if thread is not threading.current_thread()]


def _named(kind: str, tool: object, ident: int) -> ThreadTool:
    if ident == threading.get_ident():
        return ThreadTool(kind, tool)
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return ThreadTool(kind, tool, names.get(ident, f"thread {ident}"))


def described(tools: Sequence[ThreadTool]) -> list[str]:
    """Describe each tool with its type and other threads: `a tracer (package.Tracer) of the thread worker`."""
    threads: dict[str, list[str | None]] = {}
    for thread_tool in tools:
        threads.setdefault(f"a {thread_tool.kind} ({type_name(thread_tool.tool)})", []).append(thread_tool.thread)
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
    """Return `module.qualname` of a class or function, or else of the object's class."""
    kind = tool if isinstance(tool, type) or hasattr(tool, "__qualname__") else type(tool)
    return f"{kind.__module__}.{getattr(kind, '__qualname__', kind)}"


def _package(tool: object) -> str:
    return type_name(tool).partition(".")[0]


def _stacks() -> dict[int, list[FrameType]]:
    """Return the stack of each thread by its ident."""
    return {ident: _stack(frame) for ident, frame in sys._current_frames().items()}


def _stack(frame: FrameType | None) -> list[FrameType]:
    """Return the frame and its callers, outermost first."""
    return [*internals.with_callers(frame)][::-1]


# ---- the profiler that keeps a stack of its own -----------------------------------------------------------------


def _catch_up(profiler: Any, before: Sequence[FrameType], now: Sequence[FrameType]) -> None:
    """Tell the standard library's `profile` which calls ended and began while it was suspended.

    `profile` keeps a stack, whose top is `cur[-2]`, and fails with an AssertionError at an event that does not fit.
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
    fails in `profile`, and CPython removes the profiler. `suspended` therefore collects the garbage of a measurement
    before it restores the profiler.
    """
    # Not isinstance: with `python -m profile` the class belongs to the module __main__.
    keeper = getattr(profiler, "__self__", None)
    return hasattr(keeper, "trace_dispatch_return") and hasattr(keeper, "cur")
