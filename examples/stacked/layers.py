"""A layer that only passes requests on, in two implementations, and an app with a number of such layers."""

from typing import Literal

from fastapi import FastAPI
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send


class BaseHTTPNoop(BaseHTTPMiddleware):
    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        return await call_next(request)


class PureNoop:
    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)


def create_app(kind: Literal["basehttp", "pure"], count: int) -> FastAPI:
    app = FastAPI()
    for _ in range(count):
        if kind == "basehttp":
            app.add_middleware(BaseHTTPNoop)
        else:
            app.add_middleware(PureNoop)

    @app.get("/")
    async def hello() -> dict[str, str]:
        return {"hello": "world"}

    return app
