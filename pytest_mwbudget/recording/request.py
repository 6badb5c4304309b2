"""A request that a test's client has made, in the form in which it can be repeated."""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Iterable, Mapping
from contextvars import Context
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from ..asgi.app import Message, Receive, Scope, Send
from ..asgi.callables import module_and_name
from ..asgi.frameworks.reading import mapped, read
from ..asgi.websocket import ACCEPTED, REFUSED, Step, is_disconnect
from ..interpreter.identity import class_name
from ..model.results import RequestLine

# Containers of a scope that an app may change. Other values are shared, as the test's client shares them.
CONTAINERS = (dict, list, set)
# What the test's client can take besides start and body of a response. Servers such as uvicorn offer none of it.
OF_THE_CLIENT = "http.response."


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """A request of a test's client: its method and URL, its body in pieces, its scope and its context as they were."""

    line: RequestLine
    body: tuple[bytes, ...]
    context: Context
    recorded_scope: Scope

    def scope(self, state: Mapping[str, Any] | None) -> Scope:
        """Return a copy of the scope that the app got."""
        return copied(self.recorded_scope)


class Passage:
    """Passes the messages of one request on, and notes the request's body and what came of the response.

    `status` is None until the response begins; `complete` is whether it ended.
    """

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive, self._send = receive, send
        self._pieces: list[bytes] = []
        self._ended = False
        self.status: int | None = None
        self.complete = False

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
        await self._send(message)
        if message["type"] == "http.response.start":
            self.status = message["status"]
        elif message["type"] == "http.response.body":
            self.complete = not message.get("more_body", False)

    def ended_by(self, error: BaseException) -> bool:
        """Return whether an exception only ends an app that has answered."""
        return False

    async def body(self) -> tuple[bytes, ...]:
        """Return the request's body in pieces, also what the app left unread."""
        while not self._ended:
            await self.receive()
        return tuple(self._pieces) or (b"",)


@dataclass(frozen=True, slots=True)
class RecordedConnection:
    """A WebSocket connection of a test's client: what it sent and awaited, its scope and its context as they were."""

    line: RequestLine
    steps: tuple[Step, ...]
    context: Context
    recorded_scope: Scope
    body: tuple[bytes, ...] = (b"",)

    def scope(self, state: Mapping[str, Any] | None) -> Scope:
        """Return a copy of the scope that the app got."""
        return copied(self.recorded_scope)


class Conversation:
    """Passes the messages of one WebSocket connection on, and notes which answers came after which message.

    `status` is None until the app has accepted or refused.
    """

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive, self._send = receive, send
        self._said: list[tuple[str | bytes | None, int]] = []
        self._over = False
        self.status: int | None = None

    def ended_by(self, error: BaseException) -> bool:
        """Return whether an exception only ends an app whose client has left: TestClient then cancels the app."""
        anyio = sys.modules.get("anyio")
        cancelled = anyio is not None and isinstance(error, anyio.get_cancelled_exc_class())
        return self._over and (cancelled or is_disconnect(error))

    @property
    def steps(self) -> tuple[Step, ...]:
        """The messages of the client, each with the number of answers before the next one."""
        return tuple(Step(message, answers) for message, answers in self._said)

    async def receive(self) -> Message:
        """Pass a message of the client on to the app."""
        message = await self._receive()
        if message["type"] == "websocket.receive":
            text = message.get("text")
            self._said.append((bytes(message.get("bytes") or b"") if text is None else text, 0))
        elif message["type"] == "websocket.disconnect":
            self._over = True
        return message

    async def send(self, message: Message) -> None:
        """Pass a message of the app on to the client."""
        await self._send(message)
        kind = message["type"]
        if kind == "websocket.send" and not self._over:
            said, answers = self._said.pop() if self._said else (None, 0)
            self._said.append((said, answers + 1))
        elif self.status is None:
            statuses = {"websocket.accept": ACCEPTED, "websocket.close": REFUSED}
            self.status = statuses.get(kind, message.get("status"))


def copied(scope: Scope) -> Scope:
    """Copy a scope and the containers in it. Leaves out the extensions that only the test's client can serve."""
    found: dict[str, Any] = {
        key: copy.copy(value) if type(value) in CONTAINERS else value for key, value in scope.items()
    }
    if "extensions" in found:
        found["extensions"] = {
            name: value for name, value in (found["extensions"] or {}).items() if not name.startswith(OF_THE_CLIENT)
        }
    return found


def line_of(scope: Scope) -> RequestLine:
    """Return method and URL of a scope: the path with the query."""
    raw_path: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
    path = raw_path.partition(b"?")[0].decode("ascii", "replace")
    query = scope.get("query_string", b"")
    if isinstance(query, bytes):
        query = query.decode("ascii", "replace")
    return RequestLine(scope.get("method", "WS"), f"{path}?{query}" if query else path)


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
    template = next((one for one in templates if type(one) is str and one), None)
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
    chosen = (one for one in (scope.get("endpoint"), scope.get("route_handler")) if one is not None)
    return next((".".join(module_and_name(one)) for one in chosen), "")
