"""The apps of `claims.py`, written anew. Each function makes one app, whose only route is `/`."""

from __future__ import annotations

import logging
import random
import time
from typing import Any

from fastapi import FastAPI
from published import hello
from starlette.datastructures import MutableHeaders
from starlette.middleware.gzip import GZipMiddleware

# The security headers of an app that sets them.
HEADERS = {"X-Frame-Options": "DENY", "X-Content-Type-Options": "nosniff", "Strict-Transport-Security": "max-age=1"}

# ---- five layers, and one that does the same ------------------------------------------------------------------------


class Chunks:
    """An endpoint that answers in `count` messages of `size` bytes."""

    def __init__(self, count: int, size: int = 16) -> None:
        self.count, self.body = count, b"x" * size

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
        for number in range(1, self.count + 1):
            await send({"type": "http.response.body", "body": self.body, "more_body": number < self.count})


def redirected(scope: Any) -> bool:
    """Tell whether the address of a request is an old one."""
    return bool(scope["path"] == "/watch" and scope["query_string"])


def refused(scope: Any) -> bool:
    """Tell whether a request asks for a WebSocket without an upgrade."""
    return "/ws" in scope["path"] and b"transport=websocket" in scope["query_string"]


def token(scope: Any) -> bytes | None:
    """Return the token of a request."""
    return next((value for name, value in scope["headers"] if name == b"authorization"), None)


def commit() -> None:
    """Stand in for the commit of a session."""


async def answer(send: Any, status: int) -> None:
    """Send an empty response."""
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": b""})


class Layer:
    """What the five layers share."""

    def __init__(self, app: Any, headers: dict[str, str] | None = None) -> None:
        self.app, self.headers = app, headers or {}


class Redirect(Layer):
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and redirected(scope):
            await answer(send, 302)
            return
        await self.app(scope, receive, send)


class SecurityHeaders(Layer):
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or not self.headers:
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(self.headers)
            await send(message)

        await self.app(scope, receive, send_with_headers)


class Commit(Layer):
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await self.app(scope, receive, send)
        finally:
            if scope["type"] == "http":
                commit()


class Token(Layer):
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begin = time.perf_counter()
        scope.setdefault("state", {})["token"] = token(scope)

        async def send_with_time(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"].append((b"x-process-time", b"%d" % (time.perf_counter() - begin)))
            await send(message)

        await self.app(scope, receive, send_with_time)


class UpgradeGuard(Layer):
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and refused(scope):
            await answer(send, 400)
            return
        await self.app(scope, receive, send)


class Collapsed(Layer):
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if redirected(scope) or refused(scope):
            await answer(send, 302 if redirected(scope) else 400)
            return
        begin, headers = time.perf_counter(), self.headers
        scope.setdefault("state", {})["token"] = token(scope)

        async def send_with_both(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"].append((b"x-process-time", b"%d" % (time.perf_counter() - begin)))
                if headers:
                    MutableHeaders(scope=message).update(headers)
            await send(message)

        try:
            await self.app(scope, receive, send_with_both)
        finally:
            commit()


def five(chunks: int = 1, headers: bool = False) -> Any:
    """Make an app in five layers."""
    inner = Commit(Token(UpgradeGuard(Chunks(chunks))))
    return Redirect(SecurityHeaders(inner, HEADERS if headers else None))


def collapsed(chunks: int = 1, headers: bool = False) -> Any:
    """Make the same app in one layer."""
    return Collapsed(Chunks(chunks), HEADERS if headers else None)


# ---- instruments ----------------------------------------------------------------------------------------------------


def with_logging(app: FastAPI) -> None:
    """Configure logging; the app logs nothing."""
    logging.basicConfig(level=logging.INFO, force=True)


def with_prometheus(app: FastAPI) -> None:
    """Add the metrics of prometheus-fastapi-instrumentator."""
    from prometheus_client import CollectorRegistry
    from prometheus_fastapi_instrumentator import Instrumentator

    Instrumentator(registry=CollectorRegistry()).instrument(app)


def with_sentry() -> None:
    """Initialise Sentry without tracing. Nothing is sent."""
    import sentry_sdk
    from sentry_sdk.transport import Transport

    class Dropping(Transport):
        def capture_envelope(self, envelope: Any) -> None:
            """Send nothing."""

    sentry_sdk.init(dsn="https://key@sentry.invalid/1", transport=Dropping)


def with_opentelemetry(app: FastAPI, exclude: tuple[str, ...] = ()) -> None:
    """Trace every request; the spans are exported in batches to nowhere."""
    from opentelemetry.instrumentation.fastapi import FastAPIInstrumentor
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

    class Dropping(SpanExporter):
        def export(self, spans: Any) -> SpanExportResult:
            """Send nothing."""
            return SpanExportResult.SUCCESS

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(Dropping()))
    FastAPIInstrumentor.instrument_app(app, tracer_provider=provider, exclude_spans=list(exclude))  # type: ignore[arg-type]


def instrumented(*instruments: Any) -> FastAPI:
    """Make an app with these instruments. Sentry comes first: it patches what the app is made of."""
    if with_sentry in instruments:
        with_sentry()
    app = hello()
    for instrument in instruments:
        if instrument is not with_sentry:
            instrument(app)
    return app


# ---- BaseHTTPMiddleware, GZip ---------------------------------------------------------------------------------------


class Work:
    """An endpoint that spends `seconds` of processor time, then answers."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.chunks = seconds, Chunks(1)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        end = time.thread_time() + self.seconds
        while time.thread_time() < end:
            pass
        await self.chunks(scope, receive, send)


class Text:
    """An endpoint that answers with `size` bytes of words in one message."""

    def __init__(self, size: int) -> None:
        chance = random.Random(0)
        words = [bytes(chance.choices(b"abcdefghijklmnopqrstuvwxyz", k=chance.randint(2, 9))) for _ in range(5000)]
        self.body = b" ".join(chance.choices(words, k=size // 3))[:size]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        length = b"%d" % len(self.body)
        headers = [(b"content-type", b"text/plain"), (b"content-length", length)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": self.body})


def zipped(endpoint: Any, from_size: int) -> Any:
    """Compress at level 9; chunks of this size and more in a thread."""
    return GZipMiddleware(endpoint, minimum_size=1, compresslevel=9, thread_minimum_size=from_size)


# ---- Django ---------------------------------------------------------------------------------------------------------


def django_app(*middlewares: str) -> Any:
    """Make a Django project of one asynchronous view and these middlewares, by the names of classes in this module."""
    import django
    from django.conf import settings
    from django.core.handlers.asgi import ASGIHandler

    if not settings.configured:
        settings.configure(ALLOWED_HOSTS=["*"], DATABASES={}, ROOT_URLCONF=__name__, SECRET_KEY="secret")
        django.setup()
    settings.MIDDLEWARE = [f"{__name__}.{name}" for name in middlewares]
    return ASGIHandler()


def __getattr__(name: str) -> Any:
    """Define Django's part when Django asks for it, because Django may be missing."""
    if name not in ("urlpatterns", "Mixed", "SyncMixed"):
        raise AttributeError(name)
    from django.http import HttpResponse
    from django.urls import path
    from django.utils.deprecation import MiddlewareMixin

    class Mixed(MiddlewareMixin):
        def process_request(self, request: Any) -> None:
            """Do nothing."""

        def process_response(self, request: Any, response: Any) -> Any:
            return response

    class SyncMixed(Mixed):
        async_capable = False

    async def view(request: Any) -> Any:
        return HttpResponse("ok")

    globals().update(urlpatterns=[path("", view)], Mixed=Mixed, SyncMixed=SyncMixed)
    return globals()[name]
