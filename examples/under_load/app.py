"""An API with a `BaseHTTPMiddleware`, compression, and a layer that lets one request in at a time."""

import asyncio

from fastapi import FastAPI
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send


class VersionHeader(BaseHTTPMiddleware):
    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        response = await call_next(request)
        response.headers["x-version"] = "1.0"
        return response


class Quota:
    """Counts requests in a store that answers after a millisecond. The lock is held for all of it."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.used = 0
        self.lock = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            async with self.lock:
                used = self.used
                await asyncio.sleep(0.001)
                self.used = used + 1
        await self.app(scope, receive, send)


def create_app(*, quota: bool = False) -> FastAPI:
    app = FastAPI()
    if quota:
        app.add_middleware(Quota)
    app.add_middleware(GZipMiddleware, minimum_size=1)
    app.add_middleware(VersionHeader)

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    return app
