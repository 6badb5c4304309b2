"""Run the lifespan of the app: its startup before the first request, its shutdown after the last.

asgi-lifespan runs the app. This module adds time limits by the real clock, the messages of failures, and the apps that
asgi-lifespan does not recognise as apps without a lifespan.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, MutableMapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from asgi_lifespan import LifespanManager, LifespanNotSupported

from ..errors import LifespanError
from ..model.estimate import Seconds
from . import loops
from .app import ASGIApp, Message, Receive, Scope, Send
from .os_exit import in_lifespan


class _NoLifespanError(Exception):
    """The app ignored the lifespan scope or took it for a request: it has no lifespan."""


class _ReportedError(Exception):
    """The app reported that a phase failed. The context is the exception that the app was handling."""


class _EndedError(Exception):
    """The app raised SystemExit, or a CancelledError that nobody asked for: the cause.

    Left as it is, it would end the event loop or the test without a message.
    """


@asynccontextmanager
async def lifespan(app: ASGIApp, timeout_s: Seconds) -> AsyncIterator[MutableMapping[str, Any] | None]:
    """Run the app's startup, yield its state, run its shutdown. Yields None for an app without lifespan.

    Raises LifespanError when startup or shutdown fails or takes longer than `timeout_s`.
    """
    manager = _Manager(app, timeout_s)
    with _lifespan_errors(manager, "startup"):
        supported = await _started(manager)
    if not supported:
        yield None
        return
    try:
        yield manager.state
    except BaseException as error:
        # The app shuts down after a failure, too; but the user must see the failure.
        try:
            await _shut_down(manager)
        except LifespanError as shutdown_error:
            error.add_note(f"And {shutdown_error}.")
        raise
    await _shut_down(manager)


async def _started(manager: _Manager) -> bool:
    """Start the app. Returns False when it has no lifespan."""
    try:
        await manager.__aenter__()
    except Exception as raised:
        error = _alone(raised)
        # asgi-lifespan takes any exception before the first `receive` for a missing lifespan.
        if isinstance(error, LifespanNotSupported) and isinstance(error.__cause__, (_EndedError, KeyboardInterrupt)):
            raise error.__cause__ from error.__cause__.__cause__
        if not manager.late and isinstance(error, (LifespanNotSupported, _NoLifespanError)):
            return False
        raise
    return True


async def _shut_down(manager: _Manager) -> None:
    with _lifespan_errors(manager, "shutdown"):
        await manager.__aexit__(None, None, None)


def _alone(error: BaseException) -> BaseException:
    """Return the exception in a group of one: trio groups the exceptions of tasks."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


@contextmanager
def _lifespan_errors(manager: _Manager, phase: str) -> Iterator[None]:
    """Raise LifespanError for an exception in the block."""
    try:
        yield
    except Exception as raised:
        error = _alone(raised)
        if isinstance(error, LifespanError):
            raise error from error.__cause__
        if manager.late:
            raise LifespanError(
                f"the app's lifespan {phase} did not end within {manager.timeout_s:g} s; make what it waits for"
                f" available, raise mw_budget_startup_timeout, or leave the lifespan alone with lifespan=False"
            ) from manager.error
        if isinstance(error, (_ReportedError, _EndedError)):
            error = error.__cause__ or error.__context__ or error
        raise LifespanError(_failed(phase, error)) from error
    except BaseException as raised:
        if _alone(raised) is raised:
            raise
        raise _alone(raised) from None


def _failed(phase: str, error: BaseException) -> str:
    text = str(error)
    if isinstance(error, _ReportedError):
        said = f": the app reported {text!r}" if text else ": the app reported so, without a reason"
    else:
        said = f" with {type(error).__name__}" + (f": {text}" if text else "")
    return (
        f"the app's lifespan {phase} failed{said}; correct it, or leave the lifespan alone with lifespan=False in the"
        f" marker or mw_budget_lifespan = false in the configuration"
    )


class _Manager(LifespanManager):
    """Starts and shuts down one app. `late` means that a phase took too long; `error` is the app's exception."""

    def __init__(self, app: ASGIApp, timeout_s: Seconds) -> None:
        # asgi-lifespan's own limits go by the clock of the event loop, which a test may have frozen.
        super().__init__(self._serve, startup_timeout=None, shutdown_timeout=None)
        self.served = app
        self.timeout_s = timeout_s
        self.state: MutableMapping[str, Any] = {}
        self.late = False
        self.error: Exception | None = None
        self._answered = self._mistaken = False
        self._failed: _ReportedError | None = None
        self._cut: Callable[[], None] = lambda: None

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

    async def send(self, message: Message) -> None:
        """Take a message of the app. Raises the exception of this module that the message stands for."""
        kind = message["type"]
        if not self._answered and not kind.startswith("lifespan."):
            self._mistaken = True
            raise _NoLifespanError
        self._answered = self._answered or kind.startswith("lifespan.startup.")
        if kind.endswith(".failed"):
            self._failed = _ReportedError(message.get("message") or "")
            raise self._failed
        await super().send(message)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the app in the task that asgi-lifespan makes for it."""
        in_lifespan.set(True)
        self.state = scope["state"]
        scope["asgi"] = {"version": "3.0", "spec_version": "2.0"}
        with loops.current().cuttable() as self._cut:
            await self._run(scope, receive, send)
            if self._failed is not None:  # the app handled the exception that `send` raised
                raise self._failed
            if not self._answered:
                raise _NoLifespanError
            # The app may return before it is asked to shut down.
            await send({"type": "lifespan.shutdown.complete"})

    async def _run(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self.served(scope, receive, send)
        except SystemExit as error:
            raise _EndedError from error
        except asyncio.CancelledError as error:
            if loops.current().cancelling():
                raise
            raise _EndedError from error
        except Exception as error:
            if self._mistaken and not self._answered:  # the app's error handler may have replaced _NoLifespanError
                raise _NoLifespanError from error
            self.error = error
            raise
