"""A proxy with a public health route, and a metrics route that needs a key.

A middleware checks the key, so every request pays for the check, whatever its path. In `create_app("before")` the
middleware is a `BaseHTTPMiddleware`, in `create_app("after")` a pure ASGI class. Both give the same responses.
"""

from typing import Literal

from fastapi import FastAPI
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send


def protected(path: str, *, require_auth: bool) -> bool:
    return require_auth and "/metrics" in path


def allowed(authorization: str | None) -> bool:
    return authorization == "Bearer sk-1234"


def refusal() -> Response:
    return JSONResponse({"error": "the metrics need a valid Authorization header"}, status_code=401)


class MetricsAuthBefore(BaseHTTPMiddleware):
    def __init__(self, app: ASGIApp, *, require_auth: bool) -> None:
        super().__init__(app)
        self.require_auth = require_auth

    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        if protected(request.url.path, require_auth=self.require_auth) and not allowed(
            request.headers.get("authorization")
        ):
            return refusal()
        return await call_next(request)


class MetricsAuthAfter:
    def __init__(self, app: ASGIApp, *, require_auth: bool) -> None:
        self.app = app
        self.require_auth = require_auth

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and protected(scope["path"], require_auth=self.require_auth):
            request = Request(scope)
            if not allowed(request.headers.get("authorization")):
                await refusal()(scope, receive, send)
                return
        await self.app(scope, receive, send)


def create_app(version: Literal["before", "after"], *, require_auth: bool = True) -> FastAPI:
    app = FastAPI()
    if version == "before":
        app.add_middleware(MetricsAuthBefore, require_auth=require_auth)
    else:
        app.add_middleware(MetricsAuthAfter, require_auth=require_auth)
    app.add_middleware(CORSMiddleware, allow_origins=["*"])

    @app.get("/health")
    async def health() -> PlainTextResponse:
        return PlainTextResponse("ok")

    @app.get("/metrics")
    async def metrics() -> PlainTextResponse:
        return PlainTextResponse("proxy_requests_total 1\n")

    return app
