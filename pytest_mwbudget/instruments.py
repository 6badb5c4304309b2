"""Make room for a measurement in the interpreter, and put everything back as it was.

Tracers, profilers, coverage and the garbage collector sleep for a while; the stack may be deeper.
"""

from __future__ import annotations

import cProfile
import gc
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

# So many frames at most are on the stack for the probes of a boundary, where they are in Python: for the call of the
# layer, and for a message that it sends.
FRAMES_OF_PROBES = 20
# What `sys.setrecursionlimit` takes at most: a C int.
MOST_FRAMES = 2**31 - 1


@dataclass(slots=True)
class Instruments:
    """What was found at work: `suspended` by name, and `active`, which could not be suspended and distorts times."""

    suspended: list[str] = field(default_factory=list)
    active: list[str] = field(default_factory=list)


@contextmanager
def threads_untraced() -> Iterator[None]:
    """Threads that start inside start without tracer and profiler: they outlive what could suspend those in them."""
    tracer, profiler = threading.gettrace(), threading.getprofile()
    _for_new_threads(threading.settrace, None)
    _for_new_threads(threading.setprofile, None)
    try:
        yield
    finally:
        _for_new_threads(threading.settrace, tracer)
        _for_new_threads(threading.setprofile, profiler)


@contextmanager
def uncollected() -> Iterator[None]:
    """Hold off garbage collection: it is charged to whoever happens to run, and runs callbacks that are nobody's."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def deeper(boundaries: int) -> Iterator[None]:
    """Let the stack be deeper by what probes in Python at so many boundaries put there: the app must have its room."""
    before = sys.getrecursionlimit()
    raised = min(before + FRAMES_OF_PROBES * boundaries, MOST_FRAMES)
    sys.setrecursionlimit(raised)
    try:
        yield
    finally:
        if sys.getrecursionlimit() == raised:  # else the app has set its own
            sys.setrecursionlimit(before)


@contextmanager
def suspended() -> Iterator[Instruments]:
    """Suspend `sys.settrace`, `sys.setprofile` and every `sys.monitoring` tool of this thread, and restore them."""
    found = Instruments()
    with ExitStack() as stack:
        for suspend in (_trace, _profile, _monitoring):
            stack.enter_context(suspend(found))
        yield found


@contextmanager
def _trace(found: Instruments) -> Iterator[None]:
    tracer, thread_tracer = sys.gettrace(), threading.gettrace()
    if tracer is None and thread_tracer is None:
        yield
        return
    found.suspended.append(f"a tracer ({_name(tracer or thread_tracer)})")
    sys.settrace(None)
    _for_new_threads(threading.settrace, None)
    try:
        yield
    finally:
        _for_new_threads(threading.settrace, thread_tracer)
        sys.settrace(tracer)


@contextmanager
def _profile(found: Instruments) -> Iterator[None]:
    # Not always a function: a profiler written in C shows an object of its own here.
    profiler: Any = sys.getprofile()
    thread_profiler = threading.getprofile()
    if profiler is None and thread_profiler is None:
        yield
        return
    if profiler is not None and not callable(profiler) and not isinstance(profiler, cProfile.Profile):
        # Installed from C with an object that Python cannot install again.
        found.active.append(f"a profiler ({_name(profiler)})")
        yield
        return
    found.suspended.append(f"a profiler ({_name(profiler or thread_profiler)})")
    restore = _stopped(profiler)
    _for_new_threads(threading.setprofile, None)
    try:
        yield
    finally:
        _for_new_threads(threading.setprofile, thread_profiler)
        restore()


def _stopped(profiler: Any) -> Callable[[], object]:
    """Take the profiler off this thread; what is returned puts it back."""
    if isinstance(profiler, cProfile.Profile):
        profiler.disable()
        return profiler.enable
    sys.setprofile(None)
    return lambda: sys.setprofile(profiler)


def _for_new_threads(install: Callable[[Any], None], function: object) -> None:
    """Install a function for new threads, or none: `threading` takes None, though the types do not say so."""
    install(function)


@contextmanager
def _monitoring(found: Instruments) -> Iterator[None]:
    monitoring = getattr(sys, "monitoring", None)  # Python 3.12
    if monitoring is None:
        yield
        return
    asleep: list[tuple[int, int, dict[int, Any]]] = []
    for tool in range(6):
        name = monitoring.get_tool(tool)
        if name is None:
            continue
        # A tool's callbacks go too: some of its events may be set on single code objects, which nobody can list.
        callbacks = {event: monitoring.register_callback(tool, event, None) for event in _events(monitoring)}
        asleep.append((tool, monitoring.get_events(tool), callbacks))
        monitoring.set_events(tool, 0)
        found.suspended.append(f"a sys.monitoring tool ({name})")
    try:
        yield
    finally:
        for tool, tool_events, callbacks in asleep:
            for event, callback in callbacks.items():
                monitoring.register_callback(tool, event, callback)
            monitoring.set_events(tool, tool_events)


def _events(monitoring: Any) -> list[int]:
    """The events that can have a callback: one bit each, the others are combinations."""
    found = {name: value for name, value in vars(monitoring.events).items() if name.isupper() and value}
    if "BRANCH_LEFT" in found:
        found.pop("BRANCH", None)  # Python 3.14: another name for the two
    return [event for event in found.values() if event & (event - 1) == 0]


def _name(tool: object) -> str:
    kind = tool if isinstance(tool, type) or hasattr(tool, "__qualname__") else type(tool)
    return f"{kind.__module__}.{getattr(kind, '__qualname__', kind)}"
