"""uvicorn in this process: its own protocol on the running loop, at a free port of the loopback interface.

uvicorn's `Server` would take over the signals of the process and run the lifespan, which runs already.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from collections.abc import AsyncIterator, Iterator, MutableMapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..asgi.app import ASGIApp
from ..errors import MeasurementError, chain
from ..model.estimate import Seconds

INSTALL = "pip install 'pytest-mwbudget[load]'"
LOGGERS = ("uvicorn", "uvicorn.error", "uvicorn.access", "uvicorn.asgi")
# How long requests that are under way at the end may go on, and how long they may take to be cancelled.
GRACE_S: Seconds = 1.0


def require_server() -> None:
    """Raise MeasurementError if uvicorn is not installed."""
    if find_spec("uvicorn") is None:
        raise MeasurementError(
            f"a measurement under load needs uvicorn, which is not installed here; install the extra load ({INSTALL})",
            message_id="load-extra",
        )


@dataclass(slots=True)
class Served:
    """The server: its port, its name with the version, and the exceptions of the app that it logged."""

    port: int
    name: str
    raised: list[BaseException] = field(default_factory=list)

    def check(self) -> None:
        """Raise what a handler of a signal has raised in a request: Ctrl-C, or the time limit of a test."""
        ending = _ending(self.raised[0]) if self.raised else None
        if ending is not None:
            raise ending


@asynccontextmanager
async def serving(app: ASGIApp, state: MutableMapping[str, Any] | None, scheme: str = "http") -> AsyncIterator[Served]:
    """Serve the app in the block. `state` is that of its lifespan, None without one; `scheme` what requests say.

    After the block nothing listens, all connections are closed, and the tasks of requests have ended.
    """
    import uvicorn

    parser = "httptools" if find_spec("httptools") else "h11"
    with _listening() as at, _logged() as raised:
        config = uvicorn.Config(
            app,
            http=parser,  # type: ignore[arg-type,unused-ignore]
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
        )
        config.load()
        server = uvicorn.Server(config)
        await server.on_tick(0)  # makes the headers of all responses
        base: Any = config.http_protocol_class
        shared = server.server_state

        class Protocol(base):  # type: ignore[misc,unused-ignore]
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                super().connection_made(transport)
                self.scheme = scheme  # without TLS, as behind a proxy
                self.access_log = False  # in the configuration it would take the handlers of the test's loggers

        def connected() -> asyncio.Protocol:
            made: asyncio.Protocol = Protocol(config=config, server_state=shared, app_state=dict(state or {}))
            return made

        listener = await asyncio.get_running_loop().create_server(connected, sock=at, backlog=config.backlog)
        try:
            name = f"uvicorn {version('uvicorn')} with {parser}"
            yield Served(at.getsockname()[1], name, raised)
        finally:
            listener.close()
            await _ended(shared)


async def _ended(shared: Any) -> None:
    """Close all connections, and end the tasks of requests."""
    for connection in list(shared.connections):
        connection.transport.abort()
    await asyncio.sleep(0)
    for cancel in (False, True):
        tasks = [task for task in shared.tasks if not task.done()]
        if tasks and cancel:
            for task in tasks:
                task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=GRACE_S)
    await asyncio.sleep(0)  # transports close their sockets in a callback


@contextmanager
def files_for(clients: int) -> Iterator[None]:
    """Let this process, and those it starts, open one more file for each client, as far as the system lets."""
    if sys.platform == "win32":
        yield
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = soft + clients if hard == resource.RLIM_INFINITY else min(soft + clients, hard)
    if soft == resource.RLIM_INFINITY or wanted <= soft:
        yield
        return
    with suppress(OSError, ValueError):  # a sandbox may forbid it
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def _listening() -> Iterator[socket.socket]:
    """Yield a socket that listens at a free port of 127.0.0.1, and close it at the end."""
    # With the protocol's number: without it asyncio does not set TCP_NODELAY.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as at:
        at.bind(("127.0.0.1", 0))
        at.listen(2048)
        at.setblocking(False)
        yield at


def _ending(error: BaseException | None) -> BaseException | None:
    """Return the exception by which a handler of a signal ends the test, None without one.

    It may be in a group, or the reason of another exception.
    """
    of_the_app = (Exception, SystemExit, GeneratorExit, asyncio.CancelledError, BaseExceptionGroup)
    linked = () if error is None else chain(error)
    return next((exception for exception in linked if not isinstance(exception, of_the_app)), None)


@dataclass(frozen=True, slots=True)
class _Raised:
    """Keeps the exceptions of the app that uvicorn logs: the first, and in front of it one that ends the test.

    A filter of uvicorn's loggers, which it does not let log what uvicorn says. Apps log to them too.
    """

    folder: str
    raised: list[BaseException] = field(default_factory=list)

    def filter(self, record: logging.LogRecord) -> bool:
        """Keep the exception of a record of uvicorn's. Returns whether it is another's."""
        if not record.pathname.startswith(self.folder):
            return True
        logged = record.exc_info[1] if record.exc_info else None
        # If its parser fails, uvicorn logs that a request was invalid, without the exception.
        ending = _ending(logged or sys.exception())
        if ending is not None:
            self.raised.insert(0, ending)
        elif logged is not None and not self.raised:
            self.raised.append(logged)
        return False


@contextmanager
def _logged() -> Iterator[list[BaseException]]:
    """Keep uvicorn's records from the loggers of the test: it logs a traceback for each failed request."""
    import uvicorn

    raised = _Raised(str(Path(uvicorn.__file__).parent))
    loggers = [logging.getLogger(name) for name in LOGGERS]
    for logger in loggers:
        logger.addFilter(raised)
    try:
        yield raised.raised
    finally:
        for logger in loggers:
            logger.removeFilter(raised)
