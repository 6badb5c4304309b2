"""A stand-in for a tracing library: it patches classes of Starlette when it is switched on."""

from collections import deque
from time import perf_counter_ns
from typing import Any
from uuid import uuid4

from starlette.middleware.cors import CORSMiddleware
from starlette.types import Receive, Scope, Send

# The latest spans; a real library exports them.
spans: deque[dict[str, Any]] = deque(maxlen=100)


def instrument() -> None:
    """Record a span for each request that goes through CORSMiddleware."""
    plain = CORSMiddleware.__call__

    async def traced(self: CORSMiddleware, scope: Scope, receive: Receive, send: Send) -> None:
        span = {"id": uuid4().hex, "name": type(self).__qualname__, "path": scope.get("path")}
        span["headers"] = {name.decode(): value.decode() for name, value in scope.get("headers", ())}
        begin = perf_counter_ns()
        try:
            await plain(self, scope, receive, send)
        finally:
            spans.append(span | {"ns": perf_counter_ns() - begin})

    CORSMiddleware.__call__ = traced  # type: ignore[method-assign]
