"""The server's end of a call: hand a request to the app, take its response, and check both.

Behaves as uvicorn does: a task and a context of its own for every request, a body in pieces of at most 64 KiB, a
`receive` that blocks after the body until the response is complete and then reports a disconnect, errors for messages
out of order. Nothing of httpx runs while a call is timed.
"""

from __future__ import annotations

import asyncio
import sys
import traceback
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, MutableMapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from ..errors import (
    AppError,
    EndlessError,
    MeasurementError,
    MwBudgetError,
    RepetitionError,
    ResponseError,
    StatusError,
    text_of,
)
from ..interpreter.clocks import Clock, perf_counter_ns
from ..interpreter.identity import is_a, is_awaitable, shown
from ..model.estimate import Nanoseconds, Seconds
from . import loops
from .app import ASGIApp, Message, Observer, Scope
from .hanging import where
from .http_library import httpx
from .request import RequestTemplate

BODY_EXCERPT_CHARS = 500
# The bytes that are kept of the body of a repeated request's response, for messages.
KEPT_BYTES = 65536
# In the first call the event loop gets a turn after this number of messages.
MESSAGES_PER_TURN = 100
# The messages of extensions that take the place of a body, and those that come after it.
BODIES = ("http.response.pathsend", "http.response.zerocopysend")
TRAILERS = "http.response.trailers"
# What frameworks answer to a host that they do not allow.
BAD_REQUEST = 400
# A response that has more than this many pieces, and PIECES_FACTOR times as many as those before it, does not end.
MOST_PIECES, PIECES_FACTOR = 10_000, 10
# The calls that are checked for tasks that they leave behind. Any single call may start a task that stays.
LOOKED_AT = range(1, 9)
# The remedy when a later call is not like the first.
REPEATS = (
    "A measurement repeats the request many times, and only like can be compared with like. For this test, turn off"
    " what counts requests (a rate limit, a one-time token, a unique key), and use stand-ins that answer any number of"
    " calls."
)


@dataclass(slots=True)
class Exchange:
    """One call: the app receives the request's body from here and sends its response to here."""

    template: RequestTemplate
    complete: loops.Event
    # The most pieces of a response: a stream that never suspends would let no time limit end it.
    most: int
    # At least this many bytes of the body are kept, and no piece after these; None for all.
    keep: int | None = None
    status: int = 0
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: list[bytes] = field(default_factory=list)
    # All pieces, and the bytes that were kept of them.
    pieces: int = 0
    kept: int = 0
    body_over: bool = False
    # The app has announced trailers to a client that offers the extension.
    trailers: bool = False
    received: int = 0
    elapsed_ns: Nanoseconds = 0

    async def receive(self) -> Message:
        """Return the next piece of the request's body, and after the response a disconnect."""
        pieces = self.template.body
        if self.received < len(pieces):
            piece = pieces[self.received]
            self.received += 1
            return {"type": "http.request", "body": piece, "more_body": self.received < len(pieces)}
        await self.complete.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """Take one message of the response. Raises RuntimeError, as uvicorn does, when the message is out of order."""
        kind = message["type"]
        if kind == "http.response.start" and not self.status:
            self.status = int(message["status"])
            self.headers = list(message.get("headers", ()))
            self.trailers = TRAILERS in self.template.offered and bool(message.get("trailers", False))
        elif (
            (kind == "http.response.body" or (kind in BODIES and kind in self.template.offered))
            and self.status
            and not self.body_over
        ):
            self.pieces += 1
            if self.keep is None or self.kept < self.keep:
                piece = message.get("body", b"")
                self.kept += len(piece)
                self.body.append(piece)
            if not message.get("more_body", False):
                self.body_over = True
                if not self.trailers:
                    self.complete.set()
            elif self.pieces > self.most:
                raise RepetitionError(
                    f"{self.template.line}: the app went on with its response after {self.most} pieces, and the"
                    f" responses before it had fewer. {REPEATS}"
                )
        elif kind == TRAILERS and self.body_over and not self.complete.is_set():
            if not message.get("more_trailers", False):
                self.complete.set()
        elif self.complete.is_set():
            self._refuse(kind, f"Unexpected ASGI message {kind!r} sent, after response already completed.")
        else:
            expected = TRAILERS if self.body_over else "http.response.body" if self.status else "http.response.start"
            self._refuse(kind, f"Expected ASGI message {expected!r}, but got {kind!r}.")

    def _refuse(self, kind: str, why: str) -> None:
        """Raise RuntimeError for a message that is not expected, unless the client of the request takes it."""
        if not self.template.takes(kind):
            raise RuntimeError(why)

    def ended_by(self, error: BaseException) -> bool:
        """Return whether an exception of the app is only how the app ends the exchange."""
        return False

    def incomplete(self) -> str | None:
        """Say what is missing when the app has returned; None if nothing is."""
        if self.complete.is_set():
            return None
        begun = f"began a response with status {self.status}" if self.status else "sent no response"
        return (
            f"the app {begun} and returned before the response was complete; an ASGI app must send http.response.start"
            f" and a last http.response.body{', and the trailers that it announced' if self.trailers else ''}"
        )

    @property
    def outcome(self) -> str:
        """What must be the same in each repetition."""
        return f"answered {self.status}"

    def response(self, request: httpx.Request | None = None) -> httpx.Response:
        """Return the response to `request` as httpx has it. Raises ResponseError when its body cannot be decoded."""
        line = self.template.line
        response = httpx.Response(
            self.status,
            headers=[(bytes(name), bytes(value)) for name, value in self.headers],
            stream=httpx.ByteStream(b"" if line.method == "HEAD" else b"".join(self.body)),
            request=request,
        )
        try:
            response.read()
        except httpx.DecodingError as error:
            encoding = response.headers.get("content-encoding")
            raise ResponseError(
                f"{line}: the body cannot be decoded as its content-encoding"
                f" {encoding!r} says: {error}; nothing was measured"
            ) from error
        return response

    @property
    def body_bytes(self) -> int | None:
        """The length of the body without its content-encoding, None if it is not known."""
        if self.pieces > len(self.body):
            return None
        try:
            return len(self.response().content)
        except ResponseError:
            return None

    def excerpt(self) -> str:
        """Return a sentence with the first BODY_EXCERPT_CHARS of the response's body."""
        try:
            text = self.response().text
        except ResponseError:  # compressed, and only its beginning was kept
            return f"The body has {self.pieces} pieces, of which the first {len(self.body)} are no whole response."
        more = " …" if len(text) > BODY_EXCERPT_CHARS else ""
        return f"The body begins: {text[:BODY_EXCERPT_CHARS]}{more}" if text else "The body is empty."


@dataclass(slots=True)
class Caller:
    """Calls one app with one request, any number of times. Every response must have the status of the first."""

    app: ASGIApp
    template: RequestTemplate
    state: MutableMapping[str, Any] | None
    expect_status: int | None = None
    clock: Clock = perf_counter_ns
    loop: loops.Loop = field(default_factory=loops.current)
    # The longest time of a request after the first, None for that of the settings.
    limit_s: Seconds | None = None
    # Runs before each request, and raises an exception to end the measurement.
    check: Callable[[], None] = lambda: None
    # Runs when the first response begins, and whether it has.
    began: Callable[[], None] = lambda: None
    begun: bool = False
    # The calls so far and the status of their responses: somebody else may have made the first call.
    calls: int = 0
    status: int = 0
    # Makes what the app receives from and sends to.
    exchange: type[Exchange] = Exchange
    # What came of the calls so far.
    outcome: str = ""
    # The most pieces of a response so far.
    pieces: int = 0
    # The scope of the latest call.
    scope: Scope = field(default_factory=dict)
    # Whether most calls leave tasks behind, whose first steps then count as time inside the app. How many checked calls
    # did, and how many calls were checked.
    leaves: bool = False
    left: int = 0
    looked_at: int = 0

    async def __call__(self, observer: Observer | None = None) -> Exchange:
        """Make one request in a task and a context of its own; `elapsed_ns` is the time inside the app.

        Raises ResponseError when the response is incomplete or not the expected one. Raises the app's exception in the
        first call, and RepetitionError for an exception, or SystemExit, in a later call.
        """
        __tracebackhide__ = True
        self.check()
        most = max(MOST_PIECES, PIECES_FACTOR * self.pieces) if self.pieces else sys.maxsize
        keep = KEPT_BYTES if self.calls else None
        exchange = self.exchange(self.template, self.loop.event(), most, keep)
        try:
            self.scope = self.template.scope(self.state)
            await self.loop.in_task(self.template.context, self._run, exchange, self.scope, observer)
        except MwBudgetError:
            raise
        except Exception as error:
            if not self.calls:
                raise
            raise self._repetition_error(error, exchange, observed=observer is not None) from error
        self.calls += 1
        self.pieces = max(self.pieces, exchange.pieces)
        self._check(exchange)
        return exchange

    @asynccontextmanager
    async def limited(self, limit_s: Seconds, message: str, endless: str = "") -> AsyncIterator[loops.Extend]:
        """Raise MeasurementError with the message when the block takes longer than the limit.

        In the first call, EndlessError with the message `endless` if a response has begun. Both say where the request
        hangs.
        """
        __tracebackhide__ = True
        over: list[str | None] = []

        def note_place() -> None:
            over.append(where(self.scope, self.loop.coroutines()))

        try:
            async with self.loop.limited(limit_s, note_place) as extend:
                yield extend
        except (loops.OutOfTimeError, ResponseError):
            if not over:
                raise
            # An app that swallows the cancellation returns without a response.
            place = f"; {over[0]}" if over[0] is not None else ""
            if endless and self.begun:
                raise EndlessError(f"{endless}{place}") from None
            raise MeasurementError(f"{message}{place}", message_id="stopped-answering") from None

    async def settled(self, observer: Observer | None = None) -> None:
        """Make one request, and let the event loop do what the request left to do."""
        await self(observer)
        await self.loop.settle()

    async def _run(self, exchange: Exchange, scope: Scope, observer: Observer | None) -> None:
        __tracebackhide__ = True
        task = self.loop.task()
        before = loops.coroutines_by_id(self.loop) if self.calls in LOOKED_AT else None
        try:
            if observer is not None:
                await observer(self.app, scope, exchange.receive, exchange.send)
                self._note_left(before)
                return
            begin = self.clock()
            try:
                if not self.calls:
                    await self._first(scope, exchange)
                else:
                    await self.app(scope, exchange.receive, exchange.send)
                self._note_left(before)
                if self.leaves:
                    await self.loop.settle()
            finally:
                exchange.elapsed_ns = self.clock() - begin
        except (SystemExit, GeneratorExit, Exception, BaseExceptionGroup) as error:
            ended = _exit_in(error)
            if ended is None:
                if exchange.ended_by(error):
                    return
                raise
            if isinstance(ended, GeneratorExit) and loops.running_task() is not task:
                raise  # the coroutine is being closed
            # It would end the event loop, or a generator of pytest, without a message.
            raise MeasurementError(f"{self.template.line}: the app {_how(ended)}", message_id="app") from None
        except asyncio.CancelledError as error:
            if not self.calls or self.loop.cancelling():
                raise
            # It would cancel who awaits this task.
            raise self._repetition_error(error, exchange, observed=observer is not None) from error

    def _note_left(self, before: Collection[int] | None) -> None:
        """Note whether a call left tasks behind.

        `before` has the coroutines that existed before the call, or is None if the call is not checked.
        """
        if before is None:
            return
        self.looked_at += 1
        self.left += any(id(coroutine) not in before for coroutine in self.loop.coroutines())
        self.leaves = 2 * self.left > self.looked_at

    async def _first(self, scope: Scope, exchange: Exchange) -> None:
        """Make the first call, and check the app's answer and messages. In later calls checks would be measured."""
        __tracebackhide__ = True
        sent = 0
        malformed: list[ResponseError] = []

        async def checked_send(message: Message) -> None:
            nonlocal sent
            sent += 1
            if sent % MESSAGES_PER_TURN == 0:  # a stream that never suspends must meet the time limit
                await self.loop.settle()
            wrong = _wrong_with(message)
            if wrong is not None:
                malformed.append(ResponseError(f"{self.template.line}: {wrong}; nothing was measured"))
                raise malformed[0]
            await exchange.send(message)
            if message["type"] in ("http.response.start", "websocket.accept"):
                self.begun = True
                self.began()

        try:
            answer = self.app(scope, exchange.receive, checked_send)
            if not is_awaitable(answer):
                raise AppError(
                    f"the app under test is {shown(self.app)}, which returned {shown(answer)} where an ASGI app"
                    " returns an awaitable; make it `async def`, or return the ASGI app itself from the fixture"
                    " mw_budget_app"
                )
            await answer
        except Exception:
            if not malformed:
                raise
        if malformed:  # the app may have handled the exception, or replaced it
            raise malformed[0]

    def _repetition_error(self, error: BaseException, exchange: Exchange, *, observed: bool) -> MwBudgetError:
        """Return the error for an exception of the app in a later call than the first."""
        if isinstance(error, RecursionError) and observed:
            return MeasurementError(
                f"{self.template.line}: the request alone has room on the stack, but not with probes at the"
                f" boundaries of its layers: Python {sys.version_info[0]}.{sys.version_info[1]} stops recursion through"
                f" C code at a depth that nobody can raise. Measure the stack in parts, or on another version of"
                f" Python.",
                message_id="too-deep",
            )
        when = " after its response was complete" if exchange.complete.is_set() else ""
        return RepetitionError(
            f"{self.template.line}: call {self.calls + 1} raised {type(error).__name__}{when}:"
            f" {text_of(error)}{_place(error)}; the calls before it answered {self.status}. {REPEATS}"
        )

    def _check(self, exchange: Exchange) -> None:
        line, status = str(self.template.line), exchange.status
        incomplete = exchange.incomplete()
        if incomplete is not None:
            raise ResponseError(f"{line}: {incomplete}")
        if not self.status:
            self._check_first(line, exchange)
            self.status = status
        elif status != self.status:
            differs = ResponseError(
                f"{line}: call {self.calls} answered {status}, the calls before it {self.status}. {REPEATS}"
                f"\n{exchange.excerpt()}",
                message_id="repetition",
            )
            differs.status = status
            raise differs
        elif exchange.outcome != (self.outcome or exchange.outcome):
            raise ResponseError(
                f"{line}: call {self.calls} {exchange.outcome}, the calls before it {self.outcome}. {REPEATS}",
                message_id="repetition",
            )
        self.outcome = exchange.outcome

    def _check_first(self, line: str, exchange: Exchange) -> None:
        status = exchange.status
        for header in exchange.headers:
            if not _is_pair_of_bytes(header):
                raise ResponseError(
                    f"{line}: the app sent the header {shown(header)}, where ASGI wants a name and a value in bytes, as"
                    f" in (b'content-type', b'text/plain'); nothing was measured"
                )
        if self.expect_status is not None and status != self.expect_status:
            raise StatusError(
                f"{line} answered {status}, expected {self.expect_status}; nothing was measured. Correct the request,"
                f" or expect_status.\n{exchange.excerpt()}"
            )
        if self.expect_status is None and status >= 400:
            host = _host(self.template.scope(self.state)) if status == BAD_REQUEST else None
            to_host = f" to the host {host}" if host else ""
            correct = (
                "If the app refuses this host, name another in the header host. Otherwise correct"
                if host
                else "Correct"
            )
            raise StatusError(
                f"{line} answered {status}{to_host}; nothing was measured. {correct} the request, or say"
                f" expect_status={status} if this is the response whose cost you want.\n{exchange.excerpt()}"
            )


def _host(scope: Scope) -> str | None:
    """Return the host that a request names, None if it names none."""
    return next((value.decode("latin-1") for name, value in scope["headers"] if name.lower() == b"host"), None)


def _wrong_with(message: Any) -> str | None:
    """Describe a message whose values have wrong types. Returns None for any other message, also out of order."""
    if not is_a(message, Mapping) or not is_a(message.get("type"), str):
        return f"the app sent {shown(message)}, where ASGI wants a dict with a 'type' that is a str"
    status, headers, body = message.get("status"), message.get("headers", ()), message.get("body", b"")
    if message["type"] == "http.response.start":
        if not is_a(status, int):
            return f"the app sent the status {shown(status)} in http.response.start, where ASGI wants an int"
        if not is_a(headers, Iterable):
            return f"the app sent the headers {shown(headers)} in http.response.start, where ASGI wants pairs of bytes"
    if message["type"] == "http.response.body" and not is_a(body, bytes, bytearray, memoryview):
        excerpt = f"{body!r:.{BODY_EXCERPT_CHARS}}" if is_a(body, str) else shown(body)
        return f"the app sent the body {excerpt} in http.response.body, where ASGI wants bytes: encode it"
    return None


def _is_pair_of_bytes(header: object) -> bool:
    pair: Any = header if is_a(header, tuple, list) else ()
    return len(pair) == 2 and all(is_a(part, bytes, bytearray, memoryview) for part in pair)


def _exit_in(error: BaseException) -> SystemExit | GeneratorExit | None:
    """Return what `sys.exit` raised in an exception or group, or a GeneratorExit; None if there is neither."""
    if isinstance(error, BaseExceptionGroup):
        return next((ended for inner in error.exceptions if (ended := _exit_in(inner))), None)
    return error if isinstance(error, (SystemExit, GeneratorExit)) else None


def _how(ended: SystemExit | GeneratorExit) -> str:
    """Say how and where the app raised one of these, and what to do."""
    if isinstance(ended, GeneratorExit):
        return f"raised GeneratorExit{_place(ended)}, with which Python closes generators; raise another exception"
    code = "" if ended.code is None else shown(ended.code)
    return f"called sys.exit({code}){_place(ended)}; keep the call out of the test environment"


def _place(error: BaseException) -> str:
    """Return file and line of the raise in brackets, or an empty string without a traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    return f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
