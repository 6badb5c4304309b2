"""A request that a test's client has made, in the form in which it can be repeated."""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from ..asgi.app import Message, Receive, Scope, Send
from ..asgi.callables import module_and_name
from ..asgi.frameworks.reading import mapped, read
from ..asgi.request import RequestTemplate, Step
from ..asgi.server import BODIES, TRAILERS, Exchange
from ..asgi.websocket import ACCEPTED, REFUSED, Connection, is_disconnect
from ..interpreter.identity import class_name
from ..model.results import RequestLine

# Containers of a scope that an app may change. Other values are shared, as the test's client shares them.
CONTAINERS = (dict, list, set)
# The messages of a response and of a WebSocket connection.
START, BODY = "http.response.start", "http.response.body"
ACCEPT, SEND, CLOSE = "websocket.accept", "websocket.send", "websocket.close"
DENIAL_START, DENIAL_BODY = "websocket.http.response.start", "websocket.http.response.body"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRequest(RequestTemplate):
    """A request or a WebSocket connection of a test's client, with its scope and its context as they were."""

    recorded_scope: Scope
    # The types of messages that its client does not take where ASGI does not expect them.
    refused: frozenset[str]

    def takes(self, kind: str) -> bool:
        """Return whether the client takes a message of this type where ASGI does not expect it."""
        return kind not in self.refused

    def scope(self, state: Mapping[str, Any] | None) -> Scope:
        """Return a copy of the scope that the app got."""
        return copied(self.recorded_scope)


@dataclass(eq=False)
class Messages:
    """Passes the messages of an app on to its client, and notes which messages the client takes."""

    _receive: Receive
    _send: Send
    offered: frozenset[str] = frozenset()
    # None until the app has begun to answer.
    status: int | None = None
    # The types that a repetition refuses where ASGI does not expect them. Clients ignore what they do not know, so
    # these are the usual types but those that the client took there, and those for which it raised.
    refused: set[str] = field(default_factory=set)

    def ended_by(self, error: BaseException) -> bool:
        """Return whether an exception only ends an app that has answered."""
        return False

    async def _passed_on(self, message: Message, *, expected: bool) -> None:
        try:
            await self._send(message)
        except Exception:
            if not expected:
                self.refused.add(message["type"])
            raise
        if not expected:
            self.refused.discard(message["type"])


@dataclass(eq=False)
class Passage(Messages):
    """Passes the messages of a request on, and notes the request's body and whether the response is complete."""

    exchange = Exchange
    unanswered = "the app sent no response"
    steps = ()

    refused: set[str] = field(default_factory=lambda: {START, BODY})
    complete: bool = False
    _pieces: list[bytes] = field(default_factory=list)
    _ended: bool = False
    _body_over: bool = False
    _trailers: bool = False

    async def receive(self) -> Message:
        """Pass a message of the client on to the app."""
        message = await self._receive()
        if message["type"] == "http.request":
            self._pieces.append(bytes(message.get("body", b"")))
            self._ended = not message.get("more_body", False)
        else:
            self._ended = True
        return message

    async def send(self, message: Message) -> None:
        """Pass a message of the app on to the client."""
        kind = message["type"]
        starts = kind == START and self.status is None
        is_body = kind == BODY or (kind in BODIES and kind in self.offered)
        continues = is_body and self.status is not None and not self._body_over
        ends = kind == TRAILERS and self._body_over and not self.complete
        await self._passed_on(message, expected=starts or continues or ends)
        if starts:
            self.status = message["status"]
            self._trailers = TRAILERS in self.offered and bool(message.get("trailers", False))
        elif continues:
            self._body_over = not message.get("more_body", False)
            self.complete = self._body_over and not self._trailers
        elif ends:
            self.complete = not message.get("more_trailers", False)

    async def body(self) -> tuple[bytes, ...]:
        """Return the request's body in pieces, also what the app left unread."""
        while not self._ended:
            await self.receive()
        return tuple(self._pieces) or (b"",)


@dataclass(eq=False)
class Conversation(Messages):
    """Passes the messages of a WebSocket connection on, and notes which answers came after which message."""

    exchange = Connection
    unanswered = "the app did not accept it"
    complete = True  # it may end at any time

    refused: set[str] = field(default_factory=lambda: {ACCEPT, SEND, CLOSE, DENIAL_START, DENIAL_BODY})
    # The messages of the client, each with the number of answers before the next message.
    steps: list[Step] = field(default_factory=list)
    _over: bool = False
    _closed: bool = False

    def ended_by(self, error: BaseException) -> bool:
        """Return whether an exception only ends an app whose client has left: TestClient then cancels the app."""
        anyio = sys.modules.get("anyio")
        cancelled = anyio is not None and isinstance(error, anyio.get_cancelled_exc_class())
        return self._over and (cancelled or is_disconnect(error))

    async def receive(self) -> Message:
        """Pass a message of the client on to the app."""
        message = await self._receive()
        if message["type"] == "websocket.receive":
            text = message.get("text")
            self.steps.append(Step(bytes(message.get("bytes") or b"") if text is None else text, 0))
        elif message["type"] == "websocket.disconnect":
            self._over = True
        return message

    async def send(self, message: Message) -> None:
        """Pass a message of the app on to the client."""
        kind = message["type"]
        expected = kind in self._expected()
        await self._passed_on(message, expected=expected)
        if not expected:
            return
        if kind == SEND and not self._over:
            step = self.steps.pop() if self.steps else Step(None, 0)
            self.steps.append(Step(step.message, step.answers + 1))
        elif self.status is None:
            statuses = {ACCEPT: ACCEPTED, CLOSE: REFUSED}
            self.status = statuses.get(kind, message.get("status"))
        self._closed = kind == CLOSE or (kind == DENIAL_BODY and not message.get("more_body", False))

    async def body(self) -> tuple[bytes, ...]:
        """Return an empty body: a connection has none."""
        return (b"",)

    def _expected(self) -> Sequence[str]:
        """Return the types of messages that the app may send now."""
        if self._closed:
            return ()
        if self.status is None:
            return (ACCEPT, CLOSE, DENIAL_START)
        return (SEND, CLOSE) if self.status == ACCEPTED else (DENIAL_BODY,)


def copied(scope: Scope) -> Scope:
    """Copy a scope and the containers in it."""
    return {key: copy.copy(value) if type(value) in CONTAINERS else value for key, value in scope.items()}


def line_of(scope: Scope) -> RequestLine:
    """Return method and URL of a scope: the path with the query."""
    raw_path: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
    path = raw_path.partition(b"?")[0].decode("ascii", "replace")
    query = scope.get("query_string", b"")
    if isinstance(query, bytes):
        query = query.decode("ascii", "replace")
    method = "WS" if scope["type"] == "websocket" else scope["method"]  # some clients give a connection a method too
    return RequestLine(method, f"{path}?{query}" if query else path)


def route_of(scope: Scope) -> str:
    """Return the route's template if the router has noted it in the scope, else the path.

    Where only the parameters are noted, their names take the place of their values in the path.
    """
    route = scope.get("route")
    templates: Iterable[object] = (
        read(route, "path_format"),  # Starlette and FastAPI
        read(route, "path"),
        scope.get("path_template"),  # Litestar
    )
    template = next((noted for noted in templates if type(noted) is str and noted), None)
    if template is not None:
        return f"{scope.get('root_path', '')}{template}"
    path: str = scope["path"]
    for name, value in mapped(scope.get("path_params")).items():
        if class_name(type(value))[0].partition(".")[0] not in sys.stdlib_module_names:
            continue  # an object of the app
        # A value between two slashes or at the end; a path parameter may contain slashes.
        there = re.compile(rf"(?<=/){re.escape(str(value))}(?=/|$)")
        if len(there.findall(path)) == 1:
            path = there.sub(f"{{{name}}}", path)
    return path


def endpoint_of(scope: Scope) -> str:
    """Return the qualified name of the function or class that the router has chosen, empty if it has not noted it."""
    chosen = (handler for handler in (scope.get("endpoint"), scope.get("route_handler")) if handler is not None)
    return next((".".join(module_and_name(handler)) for handler in chosen), "")
