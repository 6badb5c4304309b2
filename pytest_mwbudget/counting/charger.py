"""The interface for charging owners: both counting cores have it, and the owner markers of the profiling."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol

from ..asgi.callables import module_and_name
from ..model.stack import Owner

NOBODY = Owner(-1)


class Charger(Protocol):
    """Who is charged: owners are numbers from 0 on. Work done *aside* is charged to nobody's owner."""

    def run(self, owner: Owner, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Any:
        """Call the function for this owner."""

    def coroutine_proxy(
        self, owner: Owner, awaitable: Awaitable[Any], root: bool = False, returned: Callable[[], Any] | None = None, /
    ) -> Coroutine[Any, Any, Any]:
        """Return a coroutine that charges each of its steps to the owner, and calls `returned` aside at its return.

        The `root` of a task leaves the charge with the owner that suspended, for what the event loop does to park the
        task. Other proxies give the charge back after each step.
        """

    def aside(self, function: Callable[..., Any], /) -> Callable[..., Any]:
        """Return a callable that calls `function(caller, ...)` aside. A caller that is not counted is NOBODY."""

    def callback(self, owner: Owner, function: Callable[..., Any], /) -> Callable[..., Any]:
        """Return a callable for an event loop: it runs for the owner, and leaves the charge there."""

    def lent(self, owner: Owner, function: Callable[..., Any], /) -> Callable[..., Any]:
        """Return a callable for another thread: it runs for the owner there. Its attributes are the function's."""

    def discount(self, owner: Owner, made: object, /) -> None:
        """Take the creation of the object, just now, off the owner's tally."""


class Lent:
    """Work for another thread, called by `run(function, arguments, named)`. It has the attributes of the function."""

    def __init__(self, run: Callable[..., Any], function: Callable[..., Any]) -> None:
        self._run = run
        self._function = function
        self.__module__ = module_and_name(function)[0]  # not that of the class

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call the function by `run`."""
        return self._run(self._function, arguments, named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._function, name)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the function alone: an executor may send it to another process, where nothing is charged."""
        return functools.partial, (self._function,)
