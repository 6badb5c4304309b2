"""An app of FastAPI whose endpoints have every kind of part, each with a cost that a test sets."""

# Without `from __future__ import annotations`: FastAPI would have to evaluate the annotations.

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from time import perf_counter_ns
from typing import Annotated

from fastapi import BackgroundTasks, Depends, FastAPI, Response
from fastapi.responses import HTMLResponse, PlainTextResponse, StreamingResponse
from pydantic import BaseModel, field_serializer

# By part, what `_do` gets.
_numbers: dict[str, int] = {}
_do: Callable[[int], None] = bool


@contextmanager
def costs(do: Callable[[int], None], numbers: dict[str, int]) -> Iterator[None]:
    """Let the parts in the block do this, each with its number."""
    global _do
    before, _do = _do, do
    _numbers.update(numbers)
    try:
        yield
    finally:
        _do = before
        _numbers.clear()


def cost(part: str) -> None:
    _do(_numbers.get(part, 0))


def nothing() -> None: ...


def work(number: int) -> None:
    """Call a Python function this many times."""
    for _ in range(number):
        nothing()


def spin(us: int) -> None:
    """Take this many microseconds."""
    end = perf_counter_ns() + us * 1000
    while perf_counter_ns() < end:
        pass


class Item(BaseModel):
    name: str

    @field_serializer("name")
    def serialized(self, name: str) -> str:
        cost("serialize")
        return name


async def base() -> int:
    cost("base")
    return 1


async def coroutine(base: Annotated[int, Depends(base)]) -> int:
    cost("coroutine")
    return base


def sync() -> int:
    cost("sync")
    return 1


async def generator() -> AsyncIterator[int]:
    cost("generator")
    yield 1
    cost("generator")


def sync_generator() -> Iterator[int]:
    cost("sync_generator")
    yield 1
    cost("sync_generator")


class Pager:
    def __init__(self, page: int = 1) -> None:
        cost("Pager")


class Check:
    async def __call__(self) -> None:
        cost("Check")


async def background() -> None:
    cost("background")


app = FastAPI()


@app.get("/async", dependencies=[Depends(Check())])
async def handler(
    tasks: BackgroundTasks,
    first: Annotated[int, Depends(coroutine)],
    again: Annotated[int, Depends(base)],
    session: Annotated[int, Depends(generator)],
) -> Item:
    cost("handler")
    tasks.add_task(background)
    return Item(name="a")


@app.get("/threads")
def in_thread(
    first: Annotated[int, Depends(sync)],
    session: Annotated[int, Depends(sync_generator)],
    pager: Annotated[Pager, Depends(Pager)],
) -> dict[str, str]:
    cost("handler")
    return {}


@app.post("/items")
async def create(item: Item) -> Item:
    return item


@app.get("/stream")
async def stream() -> Response:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(3):
            cost("respond")
            yield b"piece"

    return StreamingResponse(pieces())


@app.get("/ready")
async def ready() -> Response:
    return PlainTextResponse("ok")


@app.get("/page", response_class=HTMLResponse)
async def page() -> str:
    return "<p>ok</p>"
