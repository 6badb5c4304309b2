"""A small API for orders. Every response has the request's id and security headers.

The client sends the id, else the layer generates one; handlers read the id from `request_id`. In `create_app("before")`
the layer is a `BaseHTTPMiddleware`, in `create_app("after")` a pure ASGI class. Both give the same responses.
"""

import uuid
from contextvars import ContextVar
from typing import Literal

from fastapi import FastAPI, HTTPException
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER = "x-request-id"

request_id: ContextVar[str] = ContextVar("request_id")


class RequestIdBefore(BaseHTTPMiddleware):
    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        known = request.headers.get(HEADER) or uuid.uuid4().hex
        token = request_id.set(known)
        try:
            response = await call_next(request)
        finally:
            request_id.reset(token)
        response.headers[HEADER] = known
        return response


class RequestIdAfter:
    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        known = Headers(scope=scope).get(HEADER) or uuid.uuid4().hex

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[HEADER] = known
            await send(message)

        token = request_id.set(known)
        try:
            await self.app(scope, receive, send_with_id)
        finally:
            request_id.reset(token)


class SecurityHeaders:
    """Middleware that is a pure ASGI class in both versions of the app."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["x-content-type-options"] = "nosniff"
                headers["referrer-policy"] = "no-referrer"
            await send(message)

        await self.app(scope, receive, send_with_headers)


def create_app(version: Literal["before", "after"]) -> FastAPI:
    app = FastAPI()
    app.add_middleware(SecurityHeaders)
    if version == "before":
        app.add_middleware(RequestIdBefore)
    else:
        app.add_middleware(RequestIdAfter)
    app.add_middleware(CORSMiddleware, allow_origins=["https://shop.example"])
    orders = {1: "tea", 2: "coffee"}

    @app.get("/orders/{number}")
    async def order(number: int) -> dict[str, str]:
        if number not in orders:
            raise HTTPException(404, f"no order {number} (request {request_id.get()})")
        return {"item": orders[number]}

    return app
