"""One event loop and one lifespan of an app for all of its requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, MutableMapping
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from ..asgi import loops
from ..asgi.app import ASGIApp
from ..asgi.calling import Hosting
from ..asgi.lifespan import lifespan
from ..asgi.os_exit import exit_refused
from ..config.settings import Settings
from ..errors import EndlessError, StatusError
from ..interpreter.data_stack import with_room
from ..model.estimate import Seconds

# A response that has begun must end within this time; else it is taken for an endless stream.
RESPONSE_S: Seconds = 3.0

_T = TypeVar("_T")


class Host:
    """Runs an app on an event loop of its own, from its first request to `close`.

    Between two calls of `run` the loop stands still. On trio, whose loop cannot be stopped and continued, each call has
    a loop and a lifespan of its own.
    """

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self.app = app
        self.settings = settings
        self.state: MutableMapping[str, Any] | None = None
        self._runner: asyncio.Runner | None = None
        self._stop: asyncio.Event | None = None
        self._serving: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the app, unless it runs. Raises LifespanError."""
        if self.settings.loop == "trio" or self._runner is not None:
            return
        self._runner = loops.runner(self.settings.loop)
        if not self.settings.lifespan:
            return
        try:
            with exit_refused():
                self._runner.run(self._started())
        except BaseException:
            self._abandon()
            raise

    def run(self, function: Callable[[Hosting], Coroutine[Any, Any, _T]]) -> _T:
        """Run a function with the state of the app, which it starts if need be. Raises LifespanError."""
        __tracebackhide__ = True
        if self.settings.loop == "trio":
            return loops.run("trio", lambda: self._alone(function))
        self.start()
        assert self._runner is not None
        task = self._runner.get_loop().create_task(function(Hosting(self.state, RESPONSE_S)))
        try:
            self._until_done(task)
        except BaseException:
            task.cancel()
            self._until_done(task)
            raise
        return task.result()

    def close(self) -> None:
        """Shut the app down and end the loop. Raises LifespanError."""
        if self._runner is None:
            return
        try:
            if self._serving is not None:
                with exit_refused():
                    self._runner.run(self._stopped())
        finally:
            self._abandon()

    def _until_done(self, task: asyncio.Task[Any]) -> None:
        """Run the loop until the task has ended."""
        assert self._runner is not None
        while not task.done():
            # sys.exit in a task of the app ends the loop in the middle of everything. The request's own task turns the
            # exception into an error when the loop goes on.
            with suppress(SystemExit):
                with_room(partial(self._runner.run, _waited(task)))

    async def _alone(self, function: Callable[[Hosting], Coroutine[Any, Any, _T]]) -> _T:
        if not self.settings.lifespan:
            return await function(Hosting(None, RESPONSE_S))
        with exit_refused():
            async with lifespan(self.app, self.settings.startup_timeout_s) as state:
                return await function(Hosting(state, RESPONSE_S))

    async def _started(self) -> None:
        ready = asyncio.get_running_loop().create_future()
        self._stop = asyncio.Event()
        # One task for startup and shutdown: what the app opens in the one it may have to close in the same.
        self._serving = asyncio.create_task(self._serve(ready, self._stop))
        await asyncio.wait({self._serving, ready}, return_when=asyncio.FIRST_COMPLETED)
        if self._serving.done():
            ready.cancel()
            await self._serving

    async def _serve(self, ready: asyncio.Future[None], stop: asyncio.Event) -> None:
        async with lifespan(self.app, self.settings.startup_timeout_s) as self.state:
            ready.set_result(None)
            await stop.wait()

    async def _stopped(self) -> None:
        assert self._stop is not None
        assert self._serving is not None
        self._stop.set()
        await self._serving

    def _abandon(self) -> None:
        """End the loop with all of its tasks."""
        runner, self._runner, self._serving, self.state = self._runner, None, None, None
        if runner is not None:
            with suppress(SystemExit), exit_refused():
                runner.close()


def why_left_out(error: Exception, settings: Settings) -> str | None:
    """Return why a request without a test is left out, None if this error of it is a failure."""
    expected = isinstance(error, StatusError) and settings.expect_status is not None
    return str(error).partition("\n")[0] if isinstance(error, (EndlessError, StatusError)) and not expected else None


async def _waited(task: asyncio.Task[Any]) -> None:
    await asyncio.wait({task})
