"""A small shop, with a tracing library that can be switched on."""

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from . import tracing


def create_app(traced: bool = False) -> FastAPI:
    """Return the app. A library that patches classes cannot be switched off again in the same process."""
    if traced:
        tracing.instrument()
    app = FastAPI()
    app.add_middleware(CORSMiddleware, allow_origins=["*"])

    @app.get("/products")
    async def products() -> dict[str, str]:
        return {"1": "tea"}

    return app
