"""The server's end of a WebSocket connection: what the client sends, and the answers that it awaits.

Behaves as uvicorn does: the scope, `websocket.connect` first, no message before the app has accepted, and
`websocket.disconnect` at the end.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import RepetitionError, SettingError
from ..model.results import RequestLine
from . import loops
from .app import Message, Scope
from .request import BuiltRequest, Step, build_request, url_of
from .server import REPEATS, Exchange

# The status of a connection that was accepted, and of a connection that was refused.
ACCEPTED, REFUSED = 101, 403
# What the client closes with, and what the app closes with by default.
NORMAL_CLOSE = 1000
# Headers that httpx adds for requests, and those of a handshake. The key is any 16 bytes.
OF_REQUESTS = (b"accept", b"accept-encoding", b"connection")
HANDSHAKE = (
    (b"connection", b"Upgrade"),
    (b"upgrade", b"websocket"),
    (b"sec-websocket-key", b"bXdidWRnZXQtbWVhc3VyZQ=="),
    (b"sec-websocket-version", b"13"),
)
EXAMPLE = "exchange=['hello', ('subscribe', 3), ({'op': 'stop'}, 0)]"


def steps_of(exchange: object) -> tuple[Step, ...]:
    """Check the exchange of a connection.

    Each item is a message, which awaits one answer, or a pair of a message and the number of answers. A `str` is sent
    as text, `bytes` as bytes, a `dict` or `list` as JSON in text, and None sends nothing. Raises SettingError.
    """
    if not isinstance(exchange, (list, tuple)):
        raise SettingError(f"exchange is {exchange!r}; give a list of what the client sends, for example {EXAMPLE}")
    return tuple(map(_step, exchange))


def _step(item: object) -> Step:
    message, answers = item if isinstance(item, tuple) and len(item) == 2 else (item, 1)
    if not isinstance(answers, int) or isinstance(answers, bool) or answers < 0:
        raise SettingError(
            f"exchange awaits {answers!r} answers to {message!r}; give a whole number from 0 on, for example {EXAMPLE}"
        )
    if isinstance(message, (dict, list)):
        try:
            message = json.dumps(message)
        except (TypeError, ValueError) as error:
            raise SettingError(f"exchange has {message!r}, which cannot be sent as JSON: {error}") from error
    if message is not None and not isinstance(message, (str, bytes)):
        raise SettingError(
            f"exchange has {item!r}; give a str, bytes, a dict or a list, or a pair of one of these and the number of"
            f" answers, for example {EXAMPLE}"
        )
    return Step(message, answers)


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltConnection(BuiltRequest):
    """A connection that can be opened any number of times. `request` is what httpx built for its handshake."""

    subprotocols: tuple[str, ...]

    def scope(self, state: Mapping[str, Any] | None) -> Scope:
        """Return a new scope."""
        http_scope = BuiltRequest.scope(self, state)
        del http_scope["method"]
        secure = http_scope["scheme"] in ("https", "wss")
        return {
            **http_scope,
            "type": "websocket",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "scheme": "wss" if secure else "ws",
            "subprotocols": list(self.subprotocols),
            "extensions": {"websocket.http.response": {}},
        }


def build_connection(
    url: object, exchange: object, subprotocols: Iterable[str], options: Mapping[str, Any]
) -> BuiltConnection:
    """Build a connection from `params`, `headers` and `cookies` as httpx takes them. Raises SettingError."""
    steps, names = steps_of(exchange), tuple(subprotocols)
    if isinstance(subprotocols, str) or not all(isinstance(name, str) for name in names):
        raise SettingError(f"subprotocols is {subprotocols!r}; give a list of names, for example ['graphql-ws']")
    request = build_request("GET", url, options)
    headers = [(name.lower(), value) for name, value in request.headers.raw]
    offered = [(b"sec-websocket-protocol", ", ".join(names).encode())] if names else []
    kept = [pair for pair in headers if pair[0] not in OF_REQUESTS]
    return BuiltConnection(
        line=RequestLine("WS", url_of(request)),
        request=request,
        headers=(*kept, *HANDSHAKE, *offered),
        steps=steps,
        subprotocols=names,
    )


class ClientLeftError(OSError):
    """The client has left, and the app goes on sending. Servers raise an OSError too, and expect it from the app."""


def is_disconnect(error: BaseException) -> bool:
    """Return whether an exception is what tells an app that the client has left, or a group of it.

    That is the server's, and what Starlette and Litestar raise.
    """
    if isinstance(error, BaseExceptionGroup):
        return all(map(is_disconnect, error.exceptions))
    return isinstance(error, ClientLeftError) or any(
        cls.__name__ == "WebSocketDisconnect" for cls in type(error).__mro__
    )


@dataclass(slots=True)
class Connection(Exchange):
    """One connection: the app receives the client's messages from here and sends its answers to here.

    `status` is ACCEPTED, or that of the response with which the app refused. `body` has the answers as far as they are
    kept. `closed` is the code with which the app closed, None if it did not.
    """

    closed: int | None = None
    answers: list[str | bytes] = field(default_factory=list)
    left: bool = False
    _due: int = 0
    _asked: int = 0
    _waiting: loops.Event | None = None

    async def receive(self) -> Message:
        """Return the connect, then each message of the client once its time has come, and at last the disconnect."""
        if not self.received:
            self.received = 1
            return {"type": "websocket.connect"}
        while True:
            while not self.complete.is_set() and (not self.status or self.pieces < self._due):
                self._waiting = self._waiting or type(self.complete)()  # an app may receive in several tasks
                await self._waiting.wait()
            if self.complete.is_set() or self._asked == len(self.template.steps):
                self._leave()
                return {"type": "websocket.disconnect", "code": self.closed or NORMAL_CLOSE, "reason": ""}
            step = self.template.steps[self._asked]
            self._asked += 1
            self._due += step.answers
            if step.message is not None:
                self.received += 1
                key = "text" if isinstance(step.message, str) else "bytes"
                return {"type": "websocket.receive", key: step.message}

    def _leave(self) -> None:
        self.left = True
        self.complete.set()

    def _wait_for_the_app(self) -> None:
        """Go on to the next steps that send nothing, for an app that only sends; leave after the last step."""
        while (
            self._asked < len(self.template.steps)
            and self.pieces >= self._due
            and self.template.steps[self._asked].message is None
        ):
            self._due += self.template.steps[self._asked].answers
            self._asked += 1
        spoke = bool(self.template.steps) and self.template.steps[-1].message is None
        if spoke and self._asked == len(self.template.steps) and self.pieces >= self._due:
            self._leave()

    def ended_by(self, error: BaseException) -> bool:
        """Return whether an exception only says that the client has left, which few handlers catch."""
        return self.left and is_disconnect(error)

    async def send(self, message: Message) -> None:
        """Take a message of the app. Raises RuntimeError for a message out of order, and ClientLeftError."""
        kind = message["type"]
        if self.left:
            if kind == "websocket.send":
                raise ClientLeftError("the client has closed the connection")
            return
        if self.complete.is_set():
            self._refuse(kind, f"Unexpected ASGI message {kind!r} sent, after sending 'websocket.close'.")
        elif not self.status or kind.startswith("websocket.http.response."):
            self._begin(kind, message)
        elif kind == "websocket.send":
            self._take(message)
            self._wait_for_the_app()
        elif kind == "websocket.close":
            self.closed = int(message.get("code") or NORMAL_CLOSE)
            self.complete.set()
        else:
            self._refuse(kind, f"Expected ASGI message 'websocket.send' or 'websocket.close', but got {kind!r}.")
        if self._waiting is not None and (self.complete.is_set() or self.pieces >= self._due):
            self._waiting.set()
            self._waiting = None

    def _begin(self, kind: str, message: Message) -> None:
        if kind == "websocket.accept" and not self.status:
            self.status = ACCEPTED
            self.headers = list(message.get("headers") or ())
            if message.get("subprotocol"):
                self.headers.append((b"sec-websocket-protocol", message["subprotocol"].encode()))
        elif kind == "websocket.close":
            self.status = REFUSED
            self.complete.set()
        elif kind == "websocket.http.response.start" and not self.status:
            self.status = int(message["status"])
            self.headers = list(message.get("headers") or ())
        elif kind == "websocket.http.response.body" and self.status not in (0, ACCEPTED):
            self.body.append(message.get("body", b""))
            if not message.get("more_body", False):
                self.complete.set()
        else:
            self._refuse(kind, f"Expected ASGI message 'websocket.accept' or 'websocket.close', but got {kind!r}.")

    def _take(self, message: Message) -> None:
        self.pieces += 1
        if self.pieces > self.most:
            raise RepetitionError(
                f"{self.template.line}: the app went on with its answers after {self.most} of them, and the connections"
                f" before it had fewer. {REPEATS}"
            )
        if self.keep is None:
            text = message.get("text")
            self.answers.append(message.get("bytes") or b"" if text is None else text)

    def incomplete(self) -> str | None:
        """Say what is missing when the app has returned; None if nothing is."""
        awaited = sum(step.answers for step in self.template.steps)
        if not self.status:
            return "the app returned and neither accepted nor closed the connection"
        if self.status != ACCEPTED:
            return None
        how = "returned" if self.closed is None else f"closed the connection with code {self.closed}"
        messages = sum(step.message is not None for step in self.template.steps)
        asked = max(0, self.received - 1)
        if asked < messages:
            return (
                f"the app {how} after {asked} of the {messages} messages of the exchange; leave out the others, or"
                " correct the app"
            )
        if self.pieces != awaited:
            more = "await them: ('message', 2) awaits two answers" if self.pieces > awaited else "await fewer answers"
            return f"the app {how} after {self.pieces} answers, where the exchange awaits {awaited}; {more}"
        return None

    @property
    def outcome(self) -> str:
        """What must be the same in each repetition."""
        if self.status != ACCEPTED:
            return f"was refused with status {self.status}"
        closed = "" if self.closed is None else f" and was closed with code {self.closed}"
        return f"had {self.pieces} answers{closed}"
