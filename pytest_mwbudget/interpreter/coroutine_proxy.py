"""A coroutine round an awaitable, for code that has to run round each of its steps."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any


class CoroutineProxy(Coroutine[Any, Any, Any]):
    """A coroutine that steps an awaitable; a subclass says what to do before a step begins and after it has ended.

    `counting/c_core/proxy.c` has the same in C, where a step must not create an object.
    """

    def __init__(self, awaitable: Awaitable[Any]) -> None:
        self._awaitable = awaitable
        self._steps: Any = None

    def _entered(self) -> Any:
        """Called before a step; what it returns is given to the method that is called after the step."""

    def _suspended(self, before: Any) -> None:
        """Called after a step that ended in a suspension."""

    def _ended(self, before: Any, *, returned: bool) -> None:
        """Called after the last step: the awaitable has `returned`, or has raised, or was closed."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """Some ask whether it is a coroutine, and await nothing else."""
        return type(self._awaitable)

    def __getattr__(self, name: str) -> Any:
        # anyio asks the coroutine of a task whether it has begun, and cancels only a task whose coroutine has.
        return getattr(self._awaitable, name)

    def __await__(self) -> Generator[Any, Any, Any]:
        value = yield from self._delegated()
        return value

    # A generator-based coroutine says `yield from` where another one says `await`.
    __iter__ = __await__

    def _delegated(self) -> Generator[Any, Any, Any]:
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

    def send(self, value: Any) -> Any:
        """Run one step."""
        return self._step(lambda steps: steps.send(value))

    def throw(self, *arguments: Any) -> Any:
        """Run one step that begins with an exception."""
        return self._step(lambda steps: steps.throw(*arguments))

    def close(self) -> None:
        """End the coroutine where it stands."""
        # What takes exceptions is a coroutine. Other awaitables have nothing to close before the first step.
        if self._steps is None and not hasattr(self._awaitable, "throw"):
            return
        before = self._entered()
        try:
            self._begun().close()
        finally:
            self._ended(before, returned=False)

    def _begun(self) -> Any:
        if self._steps is None:
            awaitable = self._awaitable
            self._steps = awaitable if isinstance(awaitable, Coroutine) else awaiting(awaitable)
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


async def awaiting(awaitable: Awaitable[Any]) -> Any:
    """A coroutine for an awaitable that need not have `send` and `throw`."""
    return await awaitable
