"""A recorder round the app of a test's client: passes every request through, and has it repeated afterwards.

A request is repeated after the app has returned and before its client gets control back, on the loop and in the
lifespan in which it was made. So the database, the overrides and the login are as the test made them.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext, suppress
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, TypeVar

from ..asgi import loops
from ..asgi.app import ASGIApp, Receive, Scope, Send
from ..asgi.server import Caller
from ..errors import MeasurementError
from ..interpreter.clocks import perf_counter_ns
from ..model.estimate import Seconds
from ..model.results import RequestLine
from .request import Conversation, Passage, RecordedRequest, copied, endpoint_of, line_of, route_of
from .signals import IN_A_TASK, noting_signals

# Methods that change nothing, so that a repetition is like the first request.
REPEATABLE = ("GET", "HEAD", "OPTIONS")
# The longest time of a repetition: this many times that of the test's own request, and at least this long.
SLOWER, LEAST_LIMIT_S = 20, 1.0
# The time for which the rest of a body is awaited that the app did not read.
BODY_S: Seconds = 1.0
NS_PER_S = 1e9


@dataclass(frozen=True, slots=True)
class Recorded:
    """A request that a client has made, with all that repeats it.

    `route` is the template of its route, or its path; `endpoint` names what answers it, if the router has noted that.
    `caller` repeats it; its `status` is that of the response.
    """

    route: str
    endpoint: str
    caller: Caller


Measure: TypeAlias = Callable[[Recorded], Awaitable[None]]
# Is told the request and why it was not measured.
LeaveOut: TypeAlias = Callable[[RequestLine, str], None]

# Set while a request that is recorded ("first") or repeated ("again") runs, also in the tasks and threads it starts.
_inside: ContextVar[Literal["first", "again"] | None] = ContextVar("pytest_mwbudget_inside", default=None)
# Set while a client streams a response.
streaming: ContextVar[bool] = ContextVar("pytest_mwbudget_streaming", default=False)

T = TypeVar("T")


@contextmanager
def during(variable: ContextVar[T], value: T) -> Iterator[None]:
    """Give a context variable a value in the block. A coroutine may be collected in another context than its own."""
    token = variable.set(value)
    try:
        yield
    finally:
        with suppress(ValueError):
            variable.reset(token)


@dataclass(eq=False, slots=True)
class _Open:
    """A request that has not returned to its client. `overlapped` is whether another came meanwhile."""

    overlapped: bool = False


@dataclass(eq=False, slots=True)
class Recorder:
    """Records the requests of all clients while it is in use."""

    # The methods to repeat besides REPEATABLE.
    repeat: Collection[str]
    # Is awaited for each request that can be repeated.
    measure: Measure
    left_out: LeaveOut
    # Requests only pass when the recorder is `over`, or not `active`.
    active: Callable[[], bool] = lambda: True
    over: bool = False
    # Whether any client has made a request.
    seen: bool = False
    # The modules of clients whose requests cannot be recorded.
    unknown: list[str] = field(default_factory=list)
    # The name of the signal that came during a request.
    interrupted: str | None = None
    _open: set[_Open] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def interrupt(self, signal: str) -> None:
        """End the measurement that is under way, because this signal came."""
        self.interrupted = signal

    def note_unknown(self, module: str) -> None:
        """Note that requests of the clients of a module cannot be recorded."""
        if module not in self.unknown:
            self.unknown.append(module)

    def around(self, app: Any, finished: Callable[[], None] = lambda: None) -> RecordedApp:
        """Return an app that records what `app` is asked. `finished` is called after each request."""
        return RecordedApp(app, self, finished)

    async def called(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a call of a client on to the app, and have it measured if it can be repeated."""
        if self.over or scope["type"] not in ("http", "websocket") or not self.active():
            await app(scope, receive, send)
            return
        inside = _inside.get()
        if inside is not None:
            if inside == "first":
                self.left_out(line_of(scope), "it was made inside another request of the test")
            await app(scope, receive, send)
            return
        self.seen = True
        with self._opened() as this:
            await self._passed(this, app, scope, receive, send)

    @contextmanager
    def _opened(self) -> Iterator[_Open]:
        this = _Open()
        with self._lock:
            for other in self._open:
                other.overlapped = this.overlapped = True
            self._open.add(this)
        try:
            yield this
        finally:
            with self._lock:
                self._open.discard(this)

    async def _passed(self, this: _Open, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        recorded_scope, context = copied(scope), copy_context()
        kind = Conversation if scope["type"] == "websocket" else Passage
        passage = kind(receive, send, frozenset(scope.get("extensions") or ()))
        context.run(_inside.set, "again")
        begin = perf_counter_ns()
        ended = await self._first(app, scope, passage)
        taken_s = (perf_counter_ns() - begin) / NS_PER_S
        await self._repeated(this, app, scope, passage, recorded_scope, context, taken_s)
        if ended is not None:
            raise ended

    async def _first(self, app: ASGIApp, scope: Scope, passage: Passage | Conversation) -> BaseException | None:
        """Pass a request on to the app. Returns the exception that only ends an app whose client has left."""
        line = line_of(scope)
        try:
            with during(_inside, "first"):
                await app(scope, passage.receive, passage.send)
        except BaseException as error:
            if passage.ended_by(error):
                return error
            how = "raised" if isinstance(error, Exception) else "was ended by"
            self.left_out(line, f"the app {how} {type(error).__name__}")
            raise
        return None

    async def _repeated(
        self,
        this: _Open,
        app: ASGIApp,
        scope: Scope,
        passage: Passage | Conversation,
        recorded_scope: Scope,
        context: Context,
        taken_s: Seconds,
    ) -> None:
        """Have a request measured that has passed, if it can be repeated. The app may have changed its `scope`."""
        line, connects = line_of(recorded_scope), isinstance(passage, Conversation)
        why_not = self._why_not(this, line, passage)
        if why_not is not None or passage.status is None:
            self.left_out(line, why_not or passage.unanswered)
            return
        body = await self._body(line, passage)
        if body is None:
            return
        template = RecordedRequest(
            line=line,
            body=body,
            context=context,
            offered=passage.offered,
            recorded_scope=recorded_scope,
            refused=frozenset(passage.refused),
            steps=tuple(passage.steps),
        )
        caller = Caller(
            app,
            template,
            None,
            limit_s=max(LEAST_LIMIT_S, SLOWER * taken_s),
            check=lambda: self._check(this),
            calls=1,
            status=passage.status,
            exchange=passage.exchange,
        )
        with noting_signals(self.interrupt, IN_A_TASK), _shielded() if connects else nullcontext():
            await self.measure(Recorded(route_of(scope), endpoint_of(scope), caller))

    async def _body(self, line: RequestLine, passage: Passage | Conversation) -> tuple[bytes, ...] | None:
        """Return the request's body; None if the rest of it did not come, which is noted."""
        try:
            async with loops.current().limited(BODY_S):
                return await passage.body()
        except loops.OutOfTimeError:
            self.left_out(line, "its client had not sent the whole body when the app answered")
        except Exception as error:  # of the client: the app did not ask for this part
            self.left_out(line, f"its client raised {type(error).__name__} for the part of the body that was not read")
        return None

    def _why_not(self, this: _Open, line: RequestLine, passage: Passage | Conversation) -> str | None:
        if line.method not in (*REPEATABLE, *self.repeat):
            return (
                f"a {line.method} request is not repeated automatically; if the app can take thousands of them, set"
                f" repeat=[{line.method!r}] in the mw_budget marker, or mw_budget_repeat = {line.method} in the"
                " configuration"
            )
        if isinstance(passage, Passage) and streaming.get():
            return "its response is read as a stream"
        if not passage.complete:
            return "the app returned before its response was complete"
        if this.overlapped:
            return OVERLAPPED
        return None

    def _check(self, this: _Open) -> None:
        """Raise MeasurementError if the measurement has to end."""
        if this.overlapped:
            raise MeasurementError(OVERLAPPED, message_id="left-out")
        if self.interrupted:
            raise MeasurementError(f"{self.interrupted} interrupted it", message_id="left-out")


@contextmanager
def _shielded() -> Iterator[None]:
    """Let the block end although a client of a WebSocket that has left cancels the app's task, as TestClient does."""
    anyio = sys.modules.get("anyio")
    with nullcontext() if anyio is None else anyio.CancelScope(shield=True):
        yield


OVERLAPPED = "another request of the test ran at the same time"


class RecordedApp:
    """An app whose requests are recorded. Has the attributes of the app itself."""

    def __init__(self, app: Any, recorder: Recorder, finished: Callable[[], None]) -> None:
        self._recorded = (app, recorder, finished)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a call on to the app, and have it measured."""
        app, recorder, finished = self._recorded
        try:
            await recorder.called(app, scope, receive, send)
        finally:
            finished()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._recorded[0], name)
