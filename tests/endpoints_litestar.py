"""An app of Litestar whose endpoints have every kind of part, each with a cost that a test sets."""

# Without `from __future__ import annotations`: Litestar would have to evaluate the annotations.

import asyncio
from collections.abc import AsyncGenerator, Generator
from dataclasses import dataclass
from typing import Any

from litestar import Controller, Litestar, Request, Response, asgi, get, post
from litestar.background_tasks import BackgroundTask
from litestar.di import NamedDependency, Provide
from litestar.params import JSONBody
from litestar.response import Stream

from .endpoints import cost

Number = NamedDependency[int]


class Marked:
    """What only `encoded` can serialise."""


def encoded(marked: Marked) -> str:
    cost("serialize")
    return "a"


async def base() -> int:
    cost("base")
    return 1


async def coroutine(base: Number) -> int:
    cost("coroutine")
    return base


def inline(coroutine: Number) -> int:
    cost("inline")
    return coroutine


async def generator(inline: Number) -> AsyncGenerator[int, None]:
    cost("generator")
    yield inline
    cost("generator")


def sync() -> int:
    cost("sync")
    return 1


def sync_generator() -> Generator[int, None, None]:
    cost("sync_generator")
    yield 1
    cost("sync_generator")


class Pager:
    def __init__(self) -> None:
        cost("Pager")


async def guard(request: Any, handler: Any) -> None:
    cost("guard")


async def before(request: Request[Any, Any, Any]) -> None:
    cost("before")


async def after(response: Response[Any]) -> Response[Any]:
    cost("after")
    return response


async def last(request: Request[Any, Any, Any]) -> None:
    cost("last")


async def background() -> None:
    cost("background")


CHAIN = {
    "base": Provide(base),
    "coroutine": Provide(coroutine),
    "inline": Provide(inline, sync_to_thread=False),
    "generator": Provide(generator),
}


@get(
    "/async",
    dependencies=CHAIN,
    guards=[guard],
    before_request=before,
    after_request=after,
    after_response=last,
    type_encoders={Marked: encoded},
    background=BackgroundTask(background),
)
async def handler(generator: Number) -> dict[str, Marked]:
    cost("handler")
    return {"name": Marked()}


@get(
    "/threads",
    dependencies={
        "sync": Provide(sync, sync_to_thread=True),
        "sync_generator": Provide(sync_generator),
        "pager": Provide(Pager, sync_to_thread=False),
    },
    sync_to_thread=True,
)
def in_thread(sync: Number, sync_generator: Number, pager: NamedDependency[Pager]) -> dict[str, int]:
    cost("handler")
    return {}


@get("/beside", dependencies={"base": Provide(base), "sync": Provide(sync, sync_to_thread=False)})
async def beside(base: Number, sync: Number) -> None:
    cost("handler")


async def waits() -> int:
    loop = asyncio.get_running_loop()
    answer = loop.create_future()

    def over() -> None:
        cost("waits")
        answer.set_result(1)

    loop.call_soon(loop.call_soon, over)
    return await answer


@get(
    "/waiting",
    dependencies={"base": Provide(base), "sync": Provide(sync, sync_to_thread=False), "waits": Provide(waits)},
)
async def waiting(base: Number, sync: Number, waits: Number) -> None: ...


async def first() -> AsyncGenerator[int, None]:
    # No sync generator: when its thread answers decides how often the event loop turns, and so what is executed.
    cost("first")
    yield 1
    cost("first")


@get("/twice", dependencies={"first": Provide(first), "inline": Provide(base), "generator": Provide(generator)})
async def twice(first: Number, generator: Number) -> None:
    cost("handler")


@dataclass
class Item:
    name: str


@post("/items")
async def create(data: JSONBody[Item]) -> Item:
    return data


@get("/stream")
async def stream() -> Stream:
    async def pieces() -> AsyncGenerator[bytes, None]:
        for _ in range(3):
            cost("respond")
            yield b"piece"

    return Stream(pieces())


class Views(Controller):
    path = "/view"

    @get()
    async def show(self) -> str:
        cost("handler")
        return "shown"


@asgi("/mounted", is_mount=True, copy_scope=True)
async def mounted(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body"})


HANDLERS = [handler, in_thread, beside, waiting, twice, create, stream, Views, mounted]
# Its logging would put a handler on the root logger, for all tests of this process.
app = Litestar(HANDLERS, openapi_config=None, logging_config=None)
