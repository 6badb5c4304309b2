"""Start an app and call it: one measurement at a time, its first request, and later ones, each in its time."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, MutableMapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any, TypeAlias

from ..config.settings import Settings
from ..errors import MeasurementError
from ..interpreter.clocks import Clock
from ..model.estimate import Seconds
from .app import ASGIApp
from .http_library import httpx
from .lifespan import lifespan
from .os_exit import exit_refused
from .request import RequestTemplate, template_of
from .server import Caller, Exchange
from .websocket import BuiltConnection, Connection

# What opens a measurement: a request, or a WebSocket connection.
Opening: TypeAlias = httpx.Request | BuiltConnection

# Held during a request.
_busy = threading.Lock()


@dataclass(frozen=True, slots=True)
class Hosting:
    """How an app that runs already is called.

    `state` is that of its lifespan, None without one. A response that has begun must end within `response_s`.
    """

    state: MutableMapping[str, Any] | None
    response_s: Seconds


@contextmanager
def alone() -> Iterator[None]:
    """Refuse a second request at a time. Each would distort the other's figures and undo the other's patches."""
    if not _busy.acquire(blocking=False):
        raise MeasurementError(
            "mw_budget makes one request at a time, and another one is under way; await it before the next one is made,"
            " and make all of them in one thread",
            message_id="one-at-a-time",
        )
    try:
        yield
    finally:
        _busy.release()


@asynccontextmanager
async def running(
    app: ASGIApp, request: Opening, settings: Settings, hosting: Hosting | None = None
) -> AsyncIterator[Caller]:
    """Start the app unless it runs already, and yield a caller of it."""
    with exit_refused():
        template: RequestTemplate
        kind: type[Exchange]
        if isinstance(request, BuiltConnection):
            template, kind = request, Connection
        else:
            template, kind = await template_of(request), Exchange

        def caller(state: MutableMapping[str, Any] | None) -> Caller:
            return Caller(app, template, state, settings.expect_status, exchange=kind)

        if hosting is not None:
            yield caller(hosting.state)
            return
        if not settings.lifespan:
            yield caller(None)
            return
        async with lifespan(app, settings.startup_timeout_s) as state:
            yield caller(state)


def http_of(request: Opening) -> httpx.Request:
    """Return the request, of a connection the one that opens it."""
    return request.request if isinstance(request, BuiltConnection) else request


def answers_of(exchange: Exchange) -> tuple[str | bytes, ...]:
    """Return what the app sent over a WebSocket, nothing for another exchange."""
    return tuple(exchange.answers) if isinstance(exchange, Connection) else ()


async def first_call(caller: Caller, settings: Settings, hosting: Hosting | None = None) -> Exchange:
    """Make the first request, which coverage and debuggers may watch.

    Raises EndlessError for a response that has begun and does not end: early, if the app has more requests to answer.
    """
    __tracebackhide__ = True
    line, limit_s = caller.template.line, settings.startup_timeout_s
    response_s = hosting.response_s if hosting else limit_s
    silent = (
        f"{line}: the app did not begin a response within {limit_s:g} s; make what it waits for available, or"
        f" {settings.slow_answer}"
    )
    endless = f"{line}: the response did not end within {response_s:g} s; an endless stream cannot be measured"
    if caller.exchange is Connection:
        silent = (
            f"{line}: the app neither accepted nor closed the connection within {limit_s:g} s; make what it waits for"
            f" available, or {settings.slow_answer}"
        )
        endless = (
            f"{line}: the exchange did not end within {response_s:g} s; the client waits until each message has the"
            f" answers that the exchange names, and the app must end when the client leaves; for an app that goes on"
            f" sending, end the exchange with (None, 3): then the client leaves after three answers"
        )
    if not hosting:
        endless += f"; if it is only slow, {settings.slow_answer}"
    async with caller.limited(limit_s, silent, endless) as extend:
        if hosting:
            caller.began = lambda: extend(response_s)
        return await caller()


@asynccontextmanager
async def answering(
    caller: Caller, settings: Settings, when: str, why: str = "", longer: str = ""
) -> AsyncIterator[Callable[[], None]]:
    """Raise MeasurementError if a request takes longer than one may; yield a function that begins the time of another.

    The message says `when` the app stopped answering and `why`. It ends with `longer` where users set the limit.
    """
    __tracebackhide__ = True
    limit_s = caller.limit_s or settings.startup_timeout_s
    message = f"the app stopped answering {when}: a request did not end within {limit_s:g} s{why}"
    async with caller.limited(limit_s, message if caller.limit_s else f"{message}{longer}") as extend:
        yield lambda: extend(limit_s)


@asynccontextmanager
async def called_again(caller: Caller, settings: Settings) -> AsyncIterator[Callable[..., Awaitable[Exchange]]]:
    """Yield a function that makes a request, each within the time limit of one."""
    __tracebackhide__ = True
    why = (
        " although the first one did; a limit of requests at a time or in a while, a pool or a queue may be used up:"
        " lift it for this test"
    )
    longer = f", or {settings.slow_answer} if a request may need longer"
    async with answering(caller, settings, "when it was called again", why, longer) as begin_time:

        async def call(*arguments: Any) -> Exchange:
            exchange = await caller(*arguments)
            begin_time()
            return exchange

        yield call


async def warm_up(call: Callable[[], Awaitable[object]], clock: Clock, calls: int, limit_ns: int) -> float:
    """Call until caches are full and bytecode is specialised. Returns the typical nanoseconds of a call."""
    __tracebackhide__ = True
    begin = last = clock()
    taken: list[int] = []
    while len(taken) < calls and last - begin < limit_ns:
        await call()
        now = clock()
        taken.append(now - last)
        last = now
    return median(taken)
