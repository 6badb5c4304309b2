"""A coroutine round an awaitable that runs code before and after each step."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any

from .identity import MISSING, from_c, is_a, of_type


class CoroutineProxy(Coroutine[Any, Any, Any]):
    """A coroutine that steps an awaitable, with methods for subclasses that run before and after each step.

    `counting/c_core/proxy.c` has the same in C, where a step must not create an object.
    """

    __slots__ = ("_awaitable", "_steps")

    def __init__(self, awaitable: Awaitable[Any]) -> None:
        self._awaitable = awaitable
        self._steps: Any = None

    def _entered(self) -> Any:
        """Run before a step. The result is passed to the method that runs after the step."""

    def _suspended(self, before: Any) -> None:
        """Run after a step that ended in a suspension."""

    def _ended(self, before: Any, *, returned: bool) -> None:
        """Run after the last step, in which the awaitable `returned`, or raised or was closed."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """That of the awaitable, because some code awaits nothing but coroutines."""
        return type(self._awaitable)

    def __getattr__(self, name: str) -> Any:
        # anyio reads from a task's coroutine whether it has begun, and cancels only tasks that have.
        return getattr(self._awaitable, name)

    def __await__(self) -> Generator[Any, Any, Any]:
        sent: Any = None
        thrown: BaseException | None = None
        while True:
            try:
                waiting_for = self.send(sent) if thrown is None else self.throw(thrown)
            except StopIteration as stop:
                return stop.value
            sent = thrown = None
            try:
                sent = yield waiting_for
            except BaseException as error:
                thrown = error

    # A generator-based coroutine says `yield from` where others say `await`.
    __iter__ = __await__

    def send(self, value: Any) -> Any:
        """Run one step."""
        return self._step(lambda steps: steps.send(value))

    def throw(self, *arguments: Any) -> Any:
        """Run one step that begins with an exception."""
        return self._step(lambda steps: steps.throw(*arguments))

    def close(self) -> None:
        """End the coroutine where it stands."""
        # Before the first step only a coroutine, which has `throw`, has anything to close.
        if self._steps is None and of_type(self._awaitable, "throw") is MISSING:
            return
        before = self._entered()
        try:
            self._begun().close()
        finally:
            self._ended(before, returned=False)

    def _begun(self) -> Any:
        if self._steps is None:
            awaitable = self._awaitable
            self._steps = awaitable if is_a(awaitable, Coroutine) else awaiting(awaitable)
        return self._steps

    def _step(self, step: Callable[[Any], Any]) -> Any:
        before = self._entered()
        try:
            waiting_for = step(self._begun())
        except BaseException as end:
            self._ended(before, returned=isinstance(end, StopIteration))
            raise
        self._suspended(before)
        return waiting_for


def unproxied(awaitable: object) -> object:
    """Return what is inside coroutine proxies, in Python and C, however many there are."""
    while (inner := from_c(awaitable, "_awaitable")) is not MISSING:
        awaitable = inner
    return awaitable


async def awaiting(awaitable: Awaitable[Any]) -> Any:
    """Await an awaitable, which need not have `send` and `throw`, in a coroutine."""
    return await awaitable
