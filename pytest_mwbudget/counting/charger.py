"""The interface for charging owners: both counting cores have it, and the owner markers of the profiling."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol

from ..model.stack import Owner

NOBODY = Owner(-1)


class Charger(Protocol):
    """Who is charged: owners are numbers from 0 on. Work done *aside* is charged to nobody's owner."""

    def run(self, owner: Owner, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Any:
        """Call the function for this owner; in a thread that is not counted, only call it."""

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

    def discount(self, owner: Owner, made: object, /) -> None:
        """Take the creation of the object, just now, off the owner's tally."""
