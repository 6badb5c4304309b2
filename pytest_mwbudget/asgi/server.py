"""The server's end of ASGI, in-process: builds scopes, drives one request, runs the lifespan.

Behaves as uvicorn does: `spec_version` 2.3, a task and a context of its own for every request, a body in pieces of
at most 64 KiB, a `receive` that blocks after the body until the response is complete and then reports a
disconnect, errors for messages out of order. httpx builds the request; nothing of httpx runs while a call is timed.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import itertools
import os
import re
import sys
import threading
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, MutableMapping
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import unquote

import httpx
from asgi_lifespan import LifespanManager, LifespanNotSupported

from ..errors import (
    AppError,
    LifespanError,
    MeasurementError,
    MwBudgetError,
    RepetitionError,
    ResponseError,
    SettingError,
    near_miss,
)
from ..interpreter.clocks import Clock, perf_counter_ns
from ..model.estimate import Nanoseconds, Seconds
from . import loops

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
ASGIApp: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]
# Calls the app in place of the server: to run the call under observation.
Observer: TypeAlias = Callable[[ASGIApp, Scope, Receive, Send], Awaitable[None]]

BASE_URL = "http://testserver"
REQUEST_OPTIONS = ("params", "headers", "cookies", "json", "data", "files", "content", "extensions")
# What RFC 9110 calls a token.
METHOD = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
BODY_CHUNK_BYTES = 65536
BODY_EXCERPT_CHARS = 500
# After so many messages the event loop gets a turn in the first call.
MESSAGES_PER_TURN = 100
# Said where a later call is not like the first one.
REPEATS = (
    "A measurement repeats the request many times, and only like can be compared with like. For this test, turn off"
    " what counts requests (a rate limit, a one-time token, a unique key), and use stand-ins that answer any number of"
    " calls."
)


# ---- the app ----------------------------------------------------------------------------------------------------


def import_app(reference: str) -> object:
    """The object at `package.module:attribute`; AppError when it cannot be imported."""
    module_name, colon, path = reference.partition(":")
    if not (module_name and colon and path):
        raise AppError(f"mw_budget_app is {reference!r}; write 'package.module:app'")
    try:
        found: object = importlib.import_module(module_name)
    except Exception as error:
        raise AppError(
            f"mw_budget_app is {reference!r}, but importing {module_name!r} failed with"
            f" {type(error).__name__}: {error}; correct the module's name, or make it importable from the directory in"
            f" which pytest runs (the setting `pythonpath` helps)"
        ) from error
    place = module_name
    for name in path.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            names = [known for known in dir(found) if not known.startswith("_")]
            raise AppError(
                f"mw_budget_app is {reference!r}, but {place!r} has no {name!r}.{near_miss(name, names)} The names that"
                f" it has are: {', '.join(names) or 'none'}"
            ) from None
        except Exception as error:
            raise AppError(
                f"mw_budget_app is {reference!r}, but getting {name!r} of {place!r} failed with"
                f" {type(error).__name__}: {error}"
            ) from error
        place = f"{place}.{name}"
    return found


@dataclass(frozen=True, slots=True)
class NamedApp:
    """The app that the configuration names, to be imported when a test wants it, so that what fails is that test."""

    reference: str
    root: Path

    def load(self) -> object:
        """The app, with `root` importable; AppError when there is no name or no such app."""
        if not self.reference:
            raise AppError(
                "mw_budget has no app to measure: define a fixture mw_budget_app that returns it, or set"
                " mw_budget_app = package.module:app in the pytest configuration"
            )
        if str(self.root) not in sys.path:
            sys.path.insert(0, str(self.root))
        return import_app(self.reference)


def checked_app(app: object) -> ASGIApp:
    """`app` itself, or the one it names; AppError when it cannot be an ASGI 3 app."""
    if isinstance(app, NamedApp):
        app = app.load()
    remedy = "return the ASGI app itself from the fixture mw_budget_app, or name it in the setting mw_budget_app"
    if not callable(app) or inspect.isclass(app):
        raise AppError(f"the app under test is {app!r}, which is not an ASGI app; {remedy}")
    try:
        signature = inspect.signature(app)
    except (TypeError, ValueError):
        return app
    try:
        signature.bind({}, None, None)
    except TypeError:
        factory = ", it looks like a factory; call it in the fixture" if not signature.parameters else ""
        raise AppError(
            f"the app under test is {app!r}, which does not take (scope, receive, send){factory}; {remedy}"
        ) from None
    return app


# ---- requests ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RequestTemplate:
    """A request, ready to be sent any number of times: its httpx form, its ASGI headers, its body in pieces."""

    request: httpx.Request
    headers: tuple[tuple[bytes, bytes], ...]
    body: tuple[bytes, ...]

    def scope(self, state: Mapping[str, Any] | None) -> Scope:
        """A fresh scope, nothing in it shared with another call but what the app put into the lifespan's `state`."""
        url = self.request.url
        raw_path = url.raw_path.partition(b"?")[0]
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "server": (url.host, url.port or (443 if url.scheme == "https" else 80)),
            "client": ("127.0.0.1", 50000),
            "scheme": url.scheme,
            "method": self.request.method,
            "root_path": "",
            "path": unquote(raw_path.decode("ascii")),
            "raw_path": raw_path,
            "query_string": url.query,
            "headers": list(self.headers),
            # Shallow, as uvicorn does: what the lifespan put there is shared, keys that a request adds are not.
            "state": dict(state or {}),
        }


def build_request(method: str, url: str, options: Mapping[str, Any]) -> httpx.Request:
    """The request that httpx builds from `options`: params, headers, cookies, json, data, files, content.

    Raises SettingError for another option, and for values that httpx cannot make a request of.
    """
    for name in options:
        if name not in REQUEST_OPTIONS:
            raise SettingError(
                f"a request has no option {name!r}.{near_miss(name, REQUEST_OPTIONS)} The options are:"
                f" {', '.join(REQUEST_OPTIONS)}, expect_status; a redirect is measured as it is, not followed"
            )
    if not isinstance(method, str) or not METHOD.fullmatch(method):
        raise SettingError(f"the method of the request is {method!r}; give the name of one, for example 'GET'")
    if not isinstance(url, (str, httpx.URL)):
        raise SettingError(f"the URL of the request is {url!r}; give a path, for example '/health', or a whole URL")
    try:
        # A client that never sends needs no certificates, and no proxies from the environment.
        with httpx.Client(base_url=BASE_URL, transport=httpx.BaseTransport(), trust_env=False) as client:
            named = dict(options)
            client.cookies = named.pop("cookies", None)
            return client.build_request(method, url, **named)
    except Exception as error:  # httpx looks at little, and fails where it meets a value of the wrong kind
        raise SettingError(
            f"httpx cannot build {method} {url!r} from {dict(options)!r}: {error}; each option takes what httpx takes"
        ) from error


async def template(request: httpx.Request) -> RequestTemplate:
    """Read the body of `request` once, so that it can be sent again and again; SettingError when it is none."""
    pieces: list[bytes] = []
    try:
        if isinstance(request.stream, httpx.AsyncByteStream) and not isinstance(request.stream, httpx.SyncByteStream):
            pieces.extend([piece async for piece in request.stream])
        else:
            assert isinstance(request.stream, httpx.SyncByteStream)
            pieces.extend(request.stream)
    except (AttributeError, TypeError) as error:  # only now does httpx look into what `files` and `content` hold
        raise SettingError(
            f"the body of {request.method} {request.url} cannot be read: {error}; give bytes, a str or a file for each"
            " of `files`, and for `content` bytes, a str or what yields bytes"
        ) from error
    for piece in pieces:
        if not isinstance(piece, bytes):
            raise SettingError(
                f"the content of {request.method} {request.url} has a piece {piece!r}; give bytes, a str, or what"
                " yields bytes"
            )
    cut = [
        piece[start : start + BODY_CHUNK_BYTES] for piece in pieces for start in range(0, len(piece), BODY_CHUNK_BYTES)
    ]
    headers = tuple((name.lower(), value) for name, value in request.headers.raw)
    return RequestTemplate(request, headers, tuple(cut) or (b"",))


# ---- one call ---------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Exchange:
    """The server's end of one call: what it hands out through `receive` and what it got through `send`."""

    template: RequestTemplate
    status: int = 0
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: list[bytes] = field(default_factory=list)
    complete: loops.Event = field(default_factory=lambda: loops.current().event())
    received: int = 0
    elapsed_ns: Nanoseconds = 0

    async def receive(self) -> Message:
        """The next piece of the request's body, and after the response a disconnect."""
        pieces = self.template.body
        if self.received < len(pieces):
            piece = pieces[self.received]
            self.received += 1
            return {"type": "http.request", "body": piece, "more_body": self.received < len(pieces)}
        await self.complete.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """Take one message of the response; RuntimeError when it is out of order, as uvicorn raises."""
        kind = message["type"]
        if self.complete.is_set():
            raise RuntimeError(f"Unexpected ASGI message {kind!r} sent, after response already completed.")
        if kind == "http.response.start" and not self.status:
            self.status = int(message["status"])
            self.headers = list(message.get("headers", ()))
        elif kind == "http.response.body" and self.status:
            self.body.append(message.get("body", b""))
            if not message.get("more_body", False):
                self.complete.set()
        else:
            expected = "http.response.body" if self.status else "http.response.start"
            raise RuntimeError(f"Expected ASGI message {expected!r}, but got {kind!r}.")

    def response(self) -> httpx.Response:
        """The response as httpx has it."""
        response = httpx.Response(
            self.status,
            headers=[(bytes(name), bytes(value)) for name, value in self.headers],
            stream=httpx.ByteStream(b"" if self.template.request.method == "HEAD" else b"".join(self.body)),
            request=self.template.request,
        )
        try:
            response.read()
        except httpx.DecodingError as error:
            encoding = response.headers.get("content-encoding")
            raise ResponseError(
                f"{self.template.request.method} {self.template.request.url.path}: the body cannot be decoded as its"
                f" content-encoding {encoding!r} says: {error}; nothing was measured"
            ) from error
        return response


@dataclass(slots=True)
class Caller:
    """Calls one app with one request, over and over, and accepts no other status than the first call's."""

    app: ASGIApp
    template: RequestTemplate
    state: MutableMapping[str, Any] | None
    expect_status: int | None = None
    clock: Clock = perf_counter_ns
    loop: loops.Loop = field(default_factory=loops.current)
    calls: int = 0
    status: int = 0

    async def __call__(
        self, observer: Observer | None = None, extra: MutableMapping[str, Any] | None = None
    ) -> Exchange:
        """One whole request in a task and a context of its own; `elapsed_ns` is the time inside the app.

        `extra` goes into the scope. Raises whatever the app raises in the first call, and RepetitionError for it in a
        later one; ResponseError when the response is incomplete or not the expected one.
        """
        __tracebackhide__ = True
        exchange = Exchange(self.template, complete=self.loop.event())
        scope = self.template.scope(self.state)
        if extra:
            scope.update(extra)
        try:
            await self.loop.in_task(self._run, exchange, scope, observer)
        except MwBudgetError:
            raise
        except Exception as error:
            if not self.calls:
                raise
            if isinstance(error, RecursionError) and observer is not None:
                raise MeasurementError(self._too_deep(), message_id="too-deep") from error
            raise RepetitionError(self._repeated(exchange, error)) from error
        self.calls += 1
        self._check(exchange)
        return exchange

    @asynccontextmanager
    async def limited(self, limit_s: Seconds, message: str) -> AsyncIterator[loops.Extend]:
        """Raise MeasurementError with the message where what is done inside takes longer than the limit."""
        __tracebackhide__ = True
        try:
            async with self.loop.limited(limit_s) as extend:
                yield extend
        except loops.OutOfTimeError:
            raise MeasurementError(message, message_id="stopped-answering") from None

    async def settled(self, observer: Observer | None = None) -> None:
        """One request with what it left for the event loop to do, which is still its own."""
        await self(observer)
        await self.loop.settle()

    async def _run(self, exchange: Exchange, scope: Scope, observer: Observer | None) -> None:
        __tracebackhide__ = True
        if observer is not None:
            await observer(self.app, scope, exchange.receive, exchange.send)
            return
        begin = self.clock()
        if not self.calls:
            await self._first(scope, exchange)
        else:
            await self.app(scope, exchange.receive, exchange.send)
        exchange.elapsed_ns = self.clock() - begin

    async def _first(self, scope: Scope, exchange: Exchange) -> None:
        """The first call, whose messages are looked at: later that would be part of what is measured."""
        __tracebackhide__ = True
        malformed: list[ResponseError] = []

        async def checked_send(message: Message) -> None:
            wrong = _wrong_with(message)
            if wrong is not None:
                malformed.append(ResponseError(f"{self._line}: {wrong}; nothing was measured"))
                raise malformed[0]
            await exchange.send(message)

        try:
            await self._awaitable(self.app(scope, exchange.receive, self._yielding(checked_send)))
        except Exception:
            if not malformed:
                raise
        if malformed:  # whatever the app has made of it
            raise malformed[0]

    def _awaitable(self, answer: object) -> Awaitable[None]:
        # Not by its type: a coroutine of @types.coroutine is a generator.
        if not inspect.isawaitable(answer):
            raise AppError(
                f"the app under test is {self.app!r}, which returned {answer!r} where an ASGI app returns an awaitable;"
                f" make it `async def`, or return the ASGI app itself from the fixture mw_budget_app"
            )
        return answer

    def _yielding(self, send: Send) -> Send:
        """`send`, with a turn for the event loop now and then: a stream that never suspends must meet the time limit.

        In the first call only, for the turns would be part of what is measured.
        """
        number = itertools.count(1)

        async def yielding_send(message: Message) -> None:
            if next(number) % MESSAGES_PER_TURN == 0:
                await self.loop.settle()
            await send(message)

        return yielding_send

    @property
    def _line(self) -> str:
        return f"{self.template.request.method} {self.template.request.url.raw_path.decode('ascii', 'replace')}"

    def _too_deep(self) -> str:
        return (
            f"{self._line}: the request has room on the stack by itself, but not with probes at the boundaries of its"
            f" layers: Python {sys.version_info[0]}.{sys.version_info[1]} stops recursion through C code at a depth"
            f" that nobody can raise. Measure the stack in parts, or on another version of Python."
        )

    def _repeated(self, exchange: Exchange, error: Exception) -> str:
        """What to say of an exception in a call that is not the first one."""
        when = " after its response was complete" if exchange.complete.is_set() else ""
        return (
            f"{self._line}: call {self.calls + 1} raised {type(error).__name__}{when}: {error}{_place(error)}; the"
            f" calls before it answered {self.status}. {REPEATS}"
        )

    def _check(self, exchange: Exchange) -> None:
        line = self._line
        if not exchange.complete.is_set():
            begun = f"began a response with status {exchange.status}" if exchange.status else "sent no response"
            raise ResponseError(
                f"{line}: the app {begun} and returned before the response was complete; an ASGI app must send"
                f" http.response.start and a last http.response.body"
            )
        if not self.status:
            self._check_first(line, exchange)
            self.status = exchange.status
        elif exchange.status != self.status:
            raise ResponseError(
                f"{line}: call {self.calls} answered {exchange.status}, the calls before it {self.status}. {REPEATS}"
                f"\n{_excerpt(exchange)}",
                message_id="repetition",
            )

    def _check_first(self, line: str, exchange: Exchange) -> None:
        status = exchange.status
        for header in exchange.headers:
            if not _is_pair_of_bytes(header):
                raise ResponseError(
                    f"{line}: the app sent the header {header!r}, where ASGI wants a name and a value in bytes, as in"
                    f" (b'content-type', b'text/plain'); nothing was measured"
                )
        if self.expect_status is not None and status != self.expect_status:
            raise ResponseError(
                f"{line} answered {status}, expected {self.expect_status}; nothing was measured. Correct the request,"
                f" or expect_status.\n{_excerpt(exchange)}"
            )
        if self.expect_status is None and status >= 400:
            raise ResponseError(
                f"{line} answered {status}; nothing was measured. Correct the request, or say expect_status={status} if"
                f" this is the response whose cost you want.\n{_excerpt(exchange)}"
            )


def _wrong_with(message: Any) -> str | None:
    """What is wrong with the kinds of values in a message of the app, None where nothing is; not with its order."""
    if not isinstance(message, Mapping) or not isinstance(message.get("type"), str):
        return f"the app sent {message!r}, where ASGI wants a dict with a 'type' that is a str"
    status, headers, body = message.get("status"), message.get("headers", ()), message.get("body", b"")
    if message["type"] == "http.response.start":
        if not isinstance(status, int):
            return f"the app sent the status {status!r} in http.response.start, where ASGI wants an int"
        if not isinstance(headers, Iterable):
            return f"the app sent the headers {headers!r} in http.response.start, where ASGI wants pairs of bytes"
    if message["type"] == "http.response.body" and not isinstance(body, (bytes, bytearray, memoryview)):
        excerpt = f"{body!r:.{BODY_EXCERPT_CHARS}}" if isinstance(body, str) else repr(body)
        return f"the app sent the body {excerpt} in http.response.body, where ASGI wants bytes: encode it"
    return None


def _is_pair_of_bytes(header: object) -> bool:
    pair = header if isinstance(header, (tuple, list)) else ()
    return len(pair) == 2 and all(isinstance(part, (bytes, bytearray, memoryview)) for part in pair)


def _place(error: Exception) -> str:
    """Where it was raised, in brackets; nothing where it has no traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    return f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""


def _excerpt(exchange: Exchange) -> str:
    text = exchange.response().text
    more = " …" if len(text) > BODY_EXCERPT_CHARS else ""
    return f"The body begins: {text[:BODY_EXCERPT_CHARS]}{more}" if text else "The body is empty."


# ---- lifespan ---------------------------------------------------------------------------------------------------


class _NoLifespanError(Exception):
    """The app left the lifespan scope without a word, or took it for another one: it has no lifespan."""


class _ReportedError(Exception):
    """The app said that its startup or shutdown failed; while it handled an exception, that one is the context."""


class _EndedError(Exception):
    """The app raised what ends more than its lifespan: SystemExit, or a CancelledError that nobody asked for.

    That is the cause. As it is, it would end the event loop or the test without a word.
    """


@asynccontextmanager
async def lifespan(app: ASGIApp, timeout_s: Seconds) -> AsyncIterator[MutableMapping[str, Any] | None]:
    """Run the app's startup, yield its state, run its shutdown. An app without lifespan yields None.

    Raises LifespanError when startup or shutdown fails or takes longer than `timeout_s`.
    """
    watched = _WatchedLifespan(app)
    manager = _Manager(watched, timeout_s)
    with _lifespan_errors(manager, "startup", timeout_s):
        supported = await _started(manager)
    if not supported:
        yield None
        return
    try:
        yield watched.state
    except BaseException as error:
        # The shutdown is the app's right, also after a failure; but the failure is what the user must see.
        try:
            with _lifespan_errors(manager, "shutdown", timeout_s):
                await manager.__aexit__(None, None, None)
        except LifespanError as shutdown_error:
            error.add_note(f"And {shutdown_error}.")
        raise
    with _lifespan_errors(manager, "shutdown", timeout_s):
        await manager.__aexit__(None, None, None)


async def _started(manager: _Manager) -> bool:
    """Whether the app has a lifespan, which then has started."""
    try:
        await manager.__aenter__()
    except Exception as raised:
        error = _alone(raised)
        # What it raises before it receives is none of asgi-lifespan's business; this is.
        if isinstance(error, LifespanNotSupported) and isinstance(error.__cause__, (_EndedError, KeyboardInterrupt)):
            raise error.__cause__ from error.__cause__.__cause__
        if not manager.late and isinstance(error, (LifespanNotSupported, _NoLifespanError)):
            return False
        raise
    return True


def _alone(error: BaseException) -> BaseException:
    """The error in a group of one: trio puts what a task raises into a group."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


@contextmanager
def _lifespan_errors(manager: _Manager, phase: str, timeout_s: Seconds) -> Iterator[None]:
    try:
        yield
    except Exception as raised:
        error = _alone(raised)
        if isinstance(error, LifespanError):
            raise error from error.__cause__
        if manager.late:
            raise LifespanError(_timed_out(phase, timeout_s)) from manager.watched.error
        if isinstance(error, _ReportedError):
            error = error.__context__ or error
        elif isinstance(error, _EndedError) and error.__cause__ is not None:
            error = error.__cause__
        raise LifespanError(_failed(phase, error)) from error
    except BaseException as raised:
        if _alone(raised) is raised:
            raise
        raise _alone(raised) from None


class _Manager(LifespanManager):
    """asgi-lifespan's, which knows that a phase was `late` and ends the app then: on trio it would wait for it."""

    def __init__(self, watched: _WatchedLifespan, timeout_s: Seconds) -> None:
        # Its own limits are those of the event loop, whose clock a test may have frozen.
        super().__init__(watched, startup_timeout=None, shutdown_timeout=None)
        self.timeout_s = timeout_s
        self.watched = watched
        self.late = False

    async def startup(self) -> None:
        """Wait until the app has started; OutOfTimeError when it takes too long."""
        async with self._limited():
            await super().startup()

    async def shutdown(self) -> None:
        """Wait until the app has shut down; OutOfTimeError when it takes too long."""
        async with self._limited():
            await super().shutdown()

    @asynccontextmanager
    async def _limited(self) -> AsyncIterator[None]:
        try:
            async with loops.current().limited(self.timeout_s):
                yield
        except loops.OutOfTimeError:
            self.late = True
            self.watched.end()
            raise


class _WatchedLifespan:
    """The app, seen by asgi-lifespan: adds what asgi-lifespan leaves to the server."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.state: MutableMapping[str, Any] = {}
        self.error: Exception | None = None
        self.end: Callable[[], None] = lambda: None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with loops.current().cuttable() as self.end:
            await self._run(scope, receive, send)

    async def _call(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self.app(scope, receive, send)
        except (SystemExit, asyncio.CancelledError) as error:
            if not isinstance(error, SystemExit) and loops.current().cancelling():
                raise
            raise _EndedError from error

    async def _run(self, scope: Scope, receive: Receive, send: Send) -> None:
        _in_lifespan.set(True)
        self.state = scope["state"]
        scope["asgi"] = {"version": "3.0", "spec_version": "2.0"}
        asked = answered = mistaken = False
        failed: _ReportedError | None = None

        async def watched_receive() -> Message:
            nonlocal asked
            asked = True
            return await receive()

        async def watched_send(message: Message) -> None:
            nonlocal answered, mistaken, failed
            kind = message["type"]
            if not answered and not kind.startswith("lifespan."):
                mistaken = True
                raise _NoLifespanError
            answered = answered or kind.startswith("lifespan.startup.")
            if kind.endswith(".failed"):
                failed = _ReportedError(message.get("message") or "")
                raise failed
            await send(message)

        try:
            await self._call(scope, watched_receive, watched_send)
        except Exception as error:
            if mistaken and not answered:  # an error handler of the app may have made another error of ours
                raise _NoLifespanError from error
            self.error = error
            raise
        if failed is not None:  # and a layer has made something else of it
            raise failed
        if answered:
            # It may leave before its shutdown is asked for; then there is nothing to wait for.
            await send({"type": "lifespan.shutdown.complete"})
            return
        if not asked:
            await receive()
        raise _NoLifespanError


def _timed_out(phase: str, timeout_s: Seconds) -> str:
    return (
        f"the app's lifespan {phase} did not end within {timeout_s:g} s; make what it waits for available, raise"
        f" mw_budget_startup_timeout, or leave the lifespan alone with lifespan=False"
    )


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


# ---- os._exit ---------------------------------------------------------------------------------------------------

# Whether what runs was started by the app's lifespan.
_in_lifespan: ContextVar[bool] = ContextVar("pytest_mwbudget_lifespan", default=False)


@contextmanager
def exit_refused() -> Iterator[None]:
    """While the app runs in the test process, turn its `os._exit` into an error.

    Some apps end their shutdown with `os._exit(0)`; in a merge gate that would turn any failure into success. Forked
    children keep the real one, and so do other threads that were there before: pytest-timeout and execnet end a test
    run from theirs.
    """
    real, process = os._exit, os.getpid()
    # `threading` does not know all threads; and the ident of one that has ended may be given to another one.
    before: dict[int | None, object] = dict.fromkeys(sys._current_frames())
    before |= {thread.ident: thread for thread in threading.enumerate()}
    del before[threading.get_ident()]

    def refuse(status: int) -> None:
        was_there = before.get(threading.get_ident(), refuse) in (None, threading.current_thread())
        if os.getpid() == process and not was_there:
            called = f"called os._exit({status}), which would have ended the test run with that status and no report"
            if _in_lifespan.get():
                raise LifespanError(
                    f"the app's lifespan {called}; leave it alone with lifespan=False, or keep the call out of the test"
                    f" environment"
                )
            raise MeasurementError(f"the app {called}; keep the call out of the test environment", message_id="app")
        real(status)

    os._exit = refuse  # type: ignore[assignment]
    try:
        yield
    finally:
        os._exit = real
