"""Put the current owner on the stack, where a profiler sees it.

The work of an owner runs inside a call of the owner's marker, a function whose code has the owner's number as its first
line. So sampled stacks show the owner, also in a child task, and in the event loop while a task is suspended.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any, TypeAlias

from ..analysis import profile_stacks
from ..asgi.loops import Library
from ..counting.charger import NOBODY, Lent
from ..interpreter import internals
from ..interpreter.code_patching import Function, twin
from ..interpreter.coroutine_proxy import CoroutineProxy, awaiting, unproxied
from ..interpreter.identity import MISSING, from_c
from ..model.stack import Owner

Marker: TypeAlias = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
AwaitingMarker: TypeAlias = Callable[[Awaitable[Any]], Coroutine[Any, Any, Any]]


class OwnerMarkers:
    """A `Charger` that counts nothing. The current owner is that of the innermost marker on the stack."""

    def __init__(self, owners: int) -> None:
        self.markers: list[Marker] = [_marked(_called, owner) for owner in map(Owner, range(owners))]
        self.awaiting: list[AwaitingMarker] = [_marked(awaiting, owner) for owner in map(Owner, range(owners))]
        self.suspended = NOBODY

    def run(self, owner: Owner, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Any:
        """See `Charger`."""
        return self.markers[owner](function, arguments, named)

    def coroutine_proxy(
        self, owner: Owner, awaitable: Awaitable[Any], root: bool = False, returned: object = None, /
    ) -> Coroutine[Any, Any, Any]:
        """See `Charger`."""
        marked = self.awaiting[owner](awaitable)
        return _Root(self, marked) if root else marked

    def aside(self, function: Callable[..., Any], /) -> Callable[..., Any]:
        """See `Charger`."""
        return lambda *arguments, **named: function(_at_work(), *arguments, **named)

    def callback(self, owner: Owner, function: Callable[..., Any], /) -> Callable[..., Any]:
        """See `Charger`."""
        marker = self.markers[owner]
        return lambda *arguments, **named: marker(function, arguments, named)

    def lent(self, owner: Owner, function: Callable[..., Any], /) -> Callable[..., Any]:
        """See `Charger`."""
        return Lent(self.markers[owner], function)

    def discount(self, owner: Owner, made: object, /) -> None:
        """See `Charger`."""

    @contextmanager
    def iterations(self, library: Library) -> Iterator[bool]:
        """Attribute the work of the running loop between steps to the owner that was suspended last.

        Yields whether that is possible: only asyncio's loop in Python has a method to mark. The work and the waits of
        other loops belong to nobody.
        """
        loop: Any = asyncio.get_running_loop() if library == "asyncio" else None
        original = internals.loop_iteration(loop)
        if original is None:
            yield False
            return

        def run_once() -> None:
            if self.suspended == NOBODY:
                original()
            else:
                self.markers[self.suspended](original, (), {})

        present = {name: own for name, own in vars(loop).items() if name == "_run_once"}
        vars(loop)["_run_once"] = run_once
        try:
            yield True
        finally:
            del vars(loop)["_run_once"]
            vars(loop).update(present)


class _Root(CoroutineProxy):
    """The coroutine of a task; it notes the owner at each suspension."""

    def __init__(self, markers: OwnerMarkers, coroutine: Coroutine[Any, Any, Any]) -> None:
        super().__init__(coroutine)
        self._markers = markers

    def _suspended(self, before: None) -> None:
        self._markers.suspended = _owner_within(self._awaitable)


def _called(function: Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    return function(*arguments, **named)


def _marked(function: Function, owner: Owner) -> Any:
    """Return a copy of the function whose code marks the owner."""
    return twin(function, function.__code__.replace(co_filename=profile_stacks.MARKER, co_firstlineno=owner))


def _at_work() -> Owner:
    """Return the owner of the innermost marker on the stack, NOBODY if there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename == profile_stacks.MARKER:
            return Owner(frame.f_code.co_firstlineno)
        frame = frame.f_back
    return NOBODY


def _owner_within(awaited: Any) -> Owner:
    """Return the owner of the innermost marker in a chain of coroutines that await each other."""
    owner = NOBODY
    while awaited is not None:
        awaited = unproxied(awaited)
        code = from_c(awaited, "cr_code")
        if type(code) is CodeType and code.co_filename == profile_stacks.MARKER:
            owner = Owner(code.co_firstlineno)
        following = (from_c(awaited, name) for name in ("cr_await", "gi_yieldfrom"))
        awaited = next((inner for inner in following if inner is not MISSING), None)
    return owner
