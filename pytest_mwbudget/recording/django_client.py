"""Django's AsyncClient, which calls Django's handler without ASGI between them: an ASGI app stands for the handler."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from ..asgi.app import Message, Receive, Scope, Send
from .recorder import Recorder, during, streaming

# The key under which Django's client puts the body into the scope.
BODY = "_body_file"


@dataclass(eq=False)
class HandlerApp:
    """The handler of an AsyncClient as an ASGI app."""

    # The handler, where `asgi.frameworks` looks for layers.
    framework_app: Callable[[Scope], Awaitable[Any]]
    # Django's class for the body of a request.
    payload: Callable[[bytes], Any]
    # What makes the client's own request, by the identity of its scope.
    _firsts: dict[int, Callable[[Scope, Send], Awaitable[None]]] = field(default_factory=dict)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Have the client make its own request, or hand a repetition to the handler."""
        first = self._firsts.get(id(scope))
        if first is not None:
            await first(scope, send)
            return
        body, more = bytearray(), True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        await _pass_on(await self.framework_app({**scope, BODY: self.payload(bytes(body))}), send)

    async def asked(
        self, client: Any, request: dict[str, Any], ask: Callable[..., Awaitable[Any]], recorder: Recorder
    ) -> Any:
        """Make the client's request by `ask`, have it recorded, and return Django's response.

        It is recorded after the client has its response: during its request the client notes templates and exceptions.
        """
        body = request[BODY].read() if BODY in request else b""
        if BODY in request:
            request = {**request, BODY: self.payload(body)}
        # Django appends the cookies to the list of headers.
        scope = client._base_scope(**{**request, "headers": [*request.get("headers", ())]})
        scope.pop(BODY, None)
        response: Any = None

        async def first(scope: Scope, send: Send) -> None:
            nonlocal response
            response = await ask(client, **request)
            match = getattr(response.asgi_request, "resolver_match", None)
            if match is not None:
                scope["path_template"] = f"/{match.route}"
            streaming.set(response.streaming)
            await _pass_on(response, send)

        async def receive() -> Message:
            return {"type": "http.request", "body": body}

        async def send(message: Message) -> None:
            pass

        self._firsts[id(scope)] = first
        try:
            with during(streaming, False):
                await recorder.called(self, scope, receive, send)
        finally:
            del self._firsts[id(scope)]
        return response


async def _pass_on(response: Any, send: Send) -> None:
    """Send a response of Django's as ASGI messages; of a stream only the start."""
    headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in response.items()]
    await send({"type": "http.response.start", "status": response.status_code, "headers": headers})
    if not response.streaming:
        await send({"type": "http.response.body", "body": response.content})
