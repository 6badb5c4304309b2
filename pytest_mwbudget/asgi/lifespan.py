"""Run the lifespan of the app: its startup before the first request, its shutdown after the last.

asgi-lifespan runs the app. This module adds time limits by the real clock, the messages of failures, and the apps that
asgi-lifespan does not recognise as apps without a lifespan.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

from asgi_lifespan import LifespanManager

from ..errors import LifespanError, text_of
from ..model.estimate import Seconds
from . import loops
from .app import ASGIApp, Message, Receive, Scope, Send
from .os_exit import in_lifespan


@asynccontextmanager
async def lifespan(app: ASGIApp, timeout_s: Seconds) -> AsyncIterator[MutableMapping[str, Any] | None]:
    """Run the app's startup, yield its state, run its shutdown. Yields None for an app without lifespan.

    Raises LifespanError when startup or shutdown fails or takes longer than `timeout_s`.
    """
    manager = _Manager(app, timeout_s)
    async with manager.failures("startup"):
        await manager.__aenter__()
    if manager.absent:
        yield None
        return
    try:
        yield manager.state
    except BaseException as error:
        # The app shuts down after a failure, too; but the user must see the failure.
        try:
            async with manager.failures("shutdown"):
                await manager.__aexit__(None, None, None)
        except LifespanError as shutdown_error:
            error.add_note(f"And {shutdown_error}.")
        raise
    async with manager.failures("shutdown"):
        await manager.__aexit__(None, None, None)


class _LeftError(Exception):
    """Tells asgi-lifespan that the app has left its lifespan. The manager knows why."""


class _Manager(LifespanManager):
    """Starts and shuts down one app, and notes how the app behaves.

    asgi-lifespan raises other exceptions than the app, and trio puts them into groups. So the attributes say what came
    of a phase, whatever is raised: `error` is the exception with which the app ended, `late` means that a phase took
    too long.
    """

    def __init__(self, app: ASGIApp, timeout_s: Seconds) -> None:
        # asgi-lifespan's own limits go by the clock of the event loop, which a test may have frozen.
        super().__init__(self._serve, startup_timeout=None, shutdown_timeout=None)
        self.served = app
        self.timeout_s = timeout_s
        self.state: MutableMapping[str, Any] = {}
        self.error: BaseException | None = None
        self.late = False
        self._asked = self._answered = self._mistaken = False
        self._reported: _LeftError | None = None
        self._cut: Callable[[], None] = lambda: None

    @property
    def absent(self) -> bool:
        """Whether the app ignored the lifespan scope, or took it for a request: it has no lifespan."""
        if self.late or self._answered:
            return False
        return self._mistaken or self.error is None or (not self._asked and isinstance(self.error, Exception))

    @asynccontextmanager
    async def failures(self, phase: str) -> AsyncIterator[None]:
        """Raise LifespanError when a phase fails in the block."""
        try:
            yield
        except (Exception, BaseExceptionGroup) as caught:
            error, raised = self.error and _alone(self.error), _alone(caught)
            if isinstance(error, KeyboardInterrupt):
                raise error from None
            if not isinstance(raised, Exception):  # on trio Ctrl-C, a skipped and a cancelled test come in groups
                raise raised from None
            if self.late:
                raise LifespanError(
                    f"the app's lifespan {phase} did not end within {self.timeout_s:g} s; make what it waits for"
                    f" available, raise mw_budget_startup_timeout, or leave the lifespan alone with lifespan=False"
                ) from error
            if isinstance(error, LifespanError):
                raise error from error.__cause__
            if self.absent:
                return
            if self._reported is not None:
                # Starlette reports the text of a traceback while it handles the exception.
                error = _alone(self._reported.__context__ or self._reported)
            raise LifespanError(_failed(phase, error or raised)) from (error or raised)

    # ---- what asgi-lifespan calls -----------------------------------------------------------------------------------

    async def startup(self) -> None:
        """Wait until the app has started. Raises OutOfTimeError after `timeout_s`."""
        async with self._limited():
            await super().startup()

    async def shutdown(self) -> None:
        """Wait until the app has shut down. Raises OutOfTimeError after `timeout_s`."""
        async with self._limited():
            await super().shutdown()

    @asynccontextmanager
    async def _limited(self) -> AsyncIterator[None]:
        try:
            async with loops.current().limited(self.timeout_s):
                yield
        except loops.OutOfTimeError:
            self.late = True
            self._cut()  # asgi-lifespan would wait for the app
            raise

    async def receive(self) -> Message:
        """Return the next message for the app."""
        self._asked = True
        return await super().receive()

    async def send(self, message: Message) -> None:
        """Take a message of the app. Raises an exception in the app when the message ends its lifespan."""
        kind = message["type"]
        if not (self._answered or self._reported or kind.startswith("lifespan.")):
            self._mistaken = True
            raise _LeftError
        if kind.endswith(".failed"):
            self._reported = _LeftError(message.get("message") or "")
            raise self._reported
        await super().send(message)
        self._answered = self._answered or kind == "lifespan.startup.complete"

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the app in the task that asgi-lifespan makes for it."""
        in_lifespan.set(True)
        self.state = scope["state"]
        scope["asgi"] = {"version": "3.0", "spec_version": "2.0"}
        with loops.current().cuttable() as self._cut:
            try:
                await self.served(scope, receive, send)
            except KeyboardInterrupt as error:
                self.error = error
                raise
            except (Exception, SystemExit, asyncio.CancelledError) as error:
                if isinstance(error, asyncio.CancelledError) and loops.current().cancelling():
                    raise
                self.error = error
                # SystemExit would end the event loop without a message; asgi-lifespan ignores CancelledError.
                raise _LeftError from error
            if self._reported is not None:  # the app handled the exception that `send` raised
                self.error = self._reported
            if self.error is not None or not self._answered:
                raise _LeftError
            # The app may return before it is asked to shut down.
            await send({"type": "lifespan.shutdown.complete"})


def _alone(error: BaseException) -> BaseException:
    """Return the exception in a group of one: task groups and trio put what a task raises into a group."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def _failed(phase: str, error: BaseException) -> str:
    text = text_of(error)
    if isinstance(error, _LeftError):
        how = f": the app reported {text!r}" if text else ": the app reported so, without a reason"
    else:
        how = f" with {type(error).__name__}" + (f": {text}" if text else "")
    return (
        f"the app's lifespan {phase} failed{how}; correct it, or leave the lifespan alone with lifespan=False in the"
        f" marker or mw_budget_lifespan = false in the configuration"
    )
