"""A FastAPI app with a layer of Starlette and a layer of its own."""

from collections.abc import Awaitable, Callable

from fastapi import FastAPI, Request, Response
from starlette.middleware.gzip import GZipMiddleware

app = FastAPI()
app.add_middleware(GZipMiddleware)


@app.middleware("http")
async def add_version_header(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
    response = await call_next(request)
    response.headers["x-version"] = "1.0"
    return response


@app.get("/health")
async def health() -> dict[str, str]:
    return {"status": "ok"}
