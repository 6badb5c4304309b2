"""A small shop whose every request is audited. The audit grew by one header from version 1 to version 2."""

from __future__ import annotations

from typing import Any, Literal

from fastapi import FastAPI


class Audit:
    """Notes which headers a request has. Version 2 notes them with their sizes."""

    def __init__(self, app: Any, version: Literal[1, 2] = 1) -> None:
        self.app, self.version = app, version
        self.seen: list[Any] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            names = [name.decode("latin-1") for name, _ in scope["headers"]]
            steps = [(name, name.title(), [name]) for name in names]
            if self.version == 2:
                steps.append((len(steps), [*names]))
            self.seen = steps
        await self.app(scope, receive, send)


def create_app(version: Literal[1, 2] = 1) -> FastAPI:
    app = FastAPI()
    app.add_middleware(Audit, version=version)

    @app.get("/orders/{number}")
    async def order(number: int) -> dict[str, int]:
        return {"number": number}

    return app
