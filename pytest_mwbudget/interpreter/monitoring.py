"""Suspend the tools of `sys.monitoring`, and find out whether code still runs instrumented. From Python 3.12 on."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import (
    AsyncGeneratorType,
    CodeType,
    CoroutineType,
    FrameType,
    FunctionType,
    GeneratorType,
    ModuleType,
    TracebackType,
)
from typing import Any

from .identity import is_a
from .internals import is_instrumented, with_callers

TOOLS = range(6)
# The order in which a free tool is chosen: CPython has given no meaning to the first two.
_BY_CHOICE = (3, 4, 5, 2, 1, 0)
_NOT_FOLLOWED = (FrameType, TracebackType, CoroutineType, GeneratorType, AsyncGeneratorType, ModuleType)


def api() -> Any:
    """Return `sys.monitoring`, None before Python 3.12."""
    return getattr(sys, "monitoring", None)


@dataclass(frozen=True, slots=True)
class _Suspended:
    """A suspended tool: its events, its callbacks, and its events on single code objects."""

    tool: int
    events: int
    callbacks: dict[int, Any]
    local: list[tuple[CodeType, int]]


@contextmanager
def suspended() -> Iterator[list[str]]:
    """Suspend every tool, and restore it; yields their names."""
    monitoring = api()
    names = {} if monitoring is None else {tool: monitoring.get_tool(tool) for tool in TOOLS}
    tools = [tool for tool, name in names.items() if name is not None]
    # Events on single code objects keep code instrumented without callbacks, and double the time of a small function.
    codes = list(_all_code()) if tools else []
    suspended = [_suspend(monitoring, tool, codes) for tool in tools]
    try:
        yield [names[tool] for tool in tools]
    finally:
        for suspended_tool in suspended:
            _resume(monitoring, suspended_tool)


def _suspend(monitoring: Any, tool: int, codes: Iterable[CodeType]) -> _Suspended:
    callbacks = {event: monitoring.register_callback(tool, event, None) for event in _events(monitoring)}
    events = monitoring.get_events(tool)
    monitoring.set_events(tool, 0)
    local = [(code, local_events) for code in codes if (local_events := monitoring.get_local_events(tool, code))]
    for code, _ in local:
        monitoring.set_local_events(tool, code, 0)
    return _Suspended(tool, events, callbacks, local)


def _resume(monitoring: Any, suspended: _Suspended) -> None:
    for event, callback in suspended.callbacks.items():
        monitoring.register_callback(suspended.tool, event, callback)
    for code, events in suspended.local:
        monitoring.set_local_events(suspended.tool, code, events)
    monitoring.set_events(suspended.tool, suspended.events)


def _events(monitoring: Any) -> list[int]:
    """Return the events that can have a callback: those of one bit. Others are combinations."""
    events = {name: value for name, value in vars(monitoring.events).items() if name.isupper() and value}
    if "BRANCH_LEFT" in events:
        events.pop("BRANCH", None)  # Python 3.14: a name for both
    return [event for event in events.values() if event & (event - 1) == 0]


def _all_code() -> Iterator[CodeType]:
    """Yield the code of every function, and of every call that runs or is suspended. CPython keeps no list of code."""
    seen: set[int] = set()
    waiting = [code for holder in _all_objects() if (code := _code_of(holder)) is not None]
    for frame in sys._current_frames().values():
        waiting += (caller.f_code for caller in with_callers(frame))
    while waiting:
        code = waiting.pop()
        if id(code) not in seen:
            seen.add(id(code))
            yield code
            waiting += [constant for constant in code.co_consts if type(constant) is CodeType]


def _all_objects() -> list[object]:
    objects: list[object] = gc.get_objects()
    if not gc.get_freeze_count():
        return objects
    # Frozen objects are in no list: follow references from the names in modules. Not through frames, which hold objects
    # that this search creates, nor through modules, because the references of _asyncio never end in CPython 3.12.1.
    seen = set(map(id, objects))
    frontier: list[object] = [vars(module) for module in sys.modules.values() if type(module) is ModuleType]
    while frontier:
        new = {id(held): held for held in frontier if id(held) not in seen and gc.is_tracked(held)}
        seen.update(new)
        objects += new.values()
        frontier = gc.get_referents(*(held for held in new.values() if not is_a(held, *_NOT_FOLLOWED)))
    return objects


def _code_of(holder: object) -> CodeType | None:
    # By type, because isinstance runs the user's code if the object is a proxy.
    kind = type(holder)
    if kind is FunctionType:
        return holder.__code__  # type: ignore[attr-defined, no-any-return]
    if kind is CoroutineType:
        return holder.cr_code  # type: ignore[attr-defined, no-any-return]
    if kind is GeneratorType:
        return holder.gi_code  # type: ignore[attr-defined, no-any-return]
    if kind is AsyncGeneratorType:
        return holder.ag_code  # type: ignore[attr-defined, no-any-return]
    return None


# ---- a tool of our own ----------------------------------------------------------------------------------------------


def free_tool() -> int | None:
    """Return the id of a tool that nobody uses, None if there is none. A suspended tool keeps its id."""
    monitoring = api()
    return next((tool for tool in _BY_CHOICE if monitoring.get_tool(tool) is None), None)


@contextmanager
def tool_at_work(tool: int, callbacks: Mapping[int, Any]) -> Iterator[None]:
    """Call the callbacks, by event, for all code that runs in the block. The tool must be free."""
    monitoring = api()
    monitoring.use_tool_id(tool, "pytest-mwbudget")
    try:
        for event, callback in callbacks.items():
            monitoring.register_callback(tool, event, callback)
        monitoring.set_events(tool, sum(callbacks))
        yield
    finally:
        monitoring.set_events(tool, 0)
        for event in callbacks:
            monitoring.register_callback(tool, event, None)
        monitoring.free_tool_id(tool)


# ---- proof ------------------------------------------------------------------------------------------------------


def at_work() -> list[str]:
    """Return the names of the tools that have events for all code."""
    monitoring = api()
    if monitoring is None:
        return []
    return [monitoring.get_tool(tool) for tool in TOOLS if monitoring.get_tool(tool) and monitoring.get_events(tool)]


def local_at_work(codes: Iterable[CodeType]) -> list[str]:
    """Return the names of the tools that have events for some of this code."""
    monitoring = api()
    tools = {tool: name for tool in TOOLS if (name := monitoring.get_tool(tool)) is not None}
    watching = {tool for code in codes for tool in tools if monitoring.get_local_events(tool, code)} if tools else set()
    return [tools[tool] for tool in sorted(watching)]


def instrumented(codes: Iterable[CodeType]) -> bool:
    """Return whether any of `codes` was instrumented when it last ran, or code that runs now is."""
    _canary()
    return any(map(is_instrumented, (_canary.__code__, *codes)))


def _canary() -> None:
    """Do nothing. The code of this function shows whether code runs instrumented now."""
