"""A gateway: it gets JSON from another service, and returns it.

In `create_app("before")` the route returns the data, as most tutorials do. In `create_app("after")` it returns a ready
response with the same bytes.
"""

import json
from typing import Annotated, Any, Literal

from fastapi import Depends, FastAPI, Response

REPORT = json.dumps([{"id": number, "item": f"item {number}", "prices": [1.5, 2.5]} for number in range(100)]).encode()


async def upstream() -> bytes:
    """Stand in for a request to the other service."""
    return REPORT


def create_app(version: Literal["before", "after"]) -> FastAPI:
    app = FastAPI()

    if version == "before":

        @app.get("/report")
        async def report(body: Annotated[bytes, Depends(upstream)]):  # type: ignore[no-untyped-def]
            return json.loads(body)

    else:

        @app.get("/report")
        async def ready_report(body: Annotated[bytes, Depends(upstream)]) -> Any:
            return Response(body, media_type="application/json")

    return app
