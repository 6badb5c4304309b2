"""The app whose layers are asked for, and the request. Every way needs it, so its lines count for none."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import FastAPI
from known import Noop, Spin
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware

HEADERS = {"origin": "http://elsewhere", "accept-encoding": "gzip"}


class Spin50(Spin):
    """Works for 50 µs."""

    def __init__(self, app: Any) -> None:
        super().__init__(app, 50)


class Spin5(Spin):
    """Works for 5 µs."""

    def __init__(self, app: Any) -> None:
        super().__init__(app, 5)


class PassThrough(BaseHTTPMiddleware):
    """Does nothing, in a task of its own."""

    async def dispatch(self, request: Any, call_next: Any) -> Any:
        return await call_next(request)


LAYERS: tuple[tuple[Any, dict[str, Any]], ...] = (
    (Spin50, {}),
    (CORSMiddleware, {"allow_origins": ["*"]}),
    (GZipMiddleware, {}),
    (PassThrough, {}),
    (Spin5, {}),
    (Noop, {}),
)
NAMES = tuple(layer.__name__ for layer, _ in LAYERS)


def make_app(layers: tuple[tuple[Any, dict[str, Any]], ...] = LAYERS) -> FastAPI:
    """A FastAPI app with these layers, outermost first, above a handler that answers at once."""
    app = FastAPI(middleware=[Middleware(layer, **options) for layer, options in layers])

    @app.get("/")
    async def hello() -> dict[str, str]:
        return {"hello": "world"}

    return app


async def call(app: Any) -> None:
    """One request by hand, with no client and no server: as cheap as a request can be made."""
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": "/",
        "raw_path": b"/",
        "query_string": b"",
        "root_path": "",
        "headers": [(name.encode(), value.encode()) for name, value in HEADERS.items()],
        "client": ("127.0.0.1", 50000),
        "server": ("testserver", 80),
    }
    complete = asyncio.Event()
    messages = iter([{"type": "http.request", "body": b"", "more_body": False}])

    async def receive() -> Any:
        for message in messages:
            return message
        await complete.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body" and not message.get("more_body"):
            complete.set()

    await app(scope, receive, send)
