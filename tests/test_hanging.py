"""Where a request hangs, read from suspended tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from pytest_mwbudget.asgi.hanging import where

from .apps import App, Noop
from .toy import Passing, Toy, passing, toy

__all__ = ["toy"]


class Inner:
    """A layer that runs the rest of the app in a task, and waits for something else than the task."""

    def __init__(self, app: App) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        task = asyncio.create_task(self.app(scope, receive, send))
        try:
            await asyncio.Event().wait()
        finally:
            task.cancel()


def function_layer(app: App) -> App:
    async def layer(scope: Any, receive: Any, send: Any) -> None:
        await app(scope, receive, send)

    return layer


async def hangs(scope: Any, receive: Any, send: Any) -> None:
    await nested()


async def nested() -> None:
    await asyncio.sleep(60)


async def hangs_in_a_generator(scope: Any, receive: Any, send: Any) -> None:
    async for _ in pieces():
        pass


async def pieces() -> Any:
    await asyncio.sleep(60)
    yield


def scope_of(*headers: tuple[bytes, bytes]) -> dict[str, Any]:
    return {"type": "http", "path": "/", "headers": [*headers]}


async def found(app: App, *others: App, copied: Callable[[Any], Any] = dict) -> str | None:
    """Let an app hang beside others, which have requests of their own."""
    scope = scope_of()
    requests = [(app, copied(scope)), *((other, scope_of()) for other in others)]
    tasks = [asyncio.create_task(each_app(own, message, message)) for each_app, own in requests]
    for _ in range(5):
        await asyncio.sleep(0)
    try:
        return where(scope, [task.get_coro() for task in asyncio.all_tasks()])
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def message() -> None:
    pass


@pytest.mark.parametrize(
    ("app", "place", "path"),
    [
        (hangs, "nested", "hangs"),
        (Noop(hangs), "nested", "Noop > hangs"),
        (Noop(function_layer(Noop(hangs))), "nested", "Noop > function_layer > Noop > hangs"),
        (Noop(Inner(Noop(hangs))), "nested", "Noop > Inner > Noop > hangs"),
        (Inner(Inner(Noop(hangs))), "nested", "Inner > Noop > hangs"),
        (Noop(hangs_in_a_generator), "pieces", "Noop > hangs_in_a_generator"),
    ],
    ids=["endpoint", "layer", "function", "task", "tasks", "generator"],
)
def test_the_path_to_where_a_request_waits(app: App, place: str, path: str) -> None:
    sentence = asyncio.run(found(app, Noop(Noop(hangs)), Inner(hangs)))
    assert sentence is not None
    assert sentence.startswith(f"it waited at {place} (test_hanging.py:")
    assert sentence.endswith(f"), inside {path}")


@pytest.mark.usefixtures("toy")
def test_layers_of_a_framework_are_on_the_path() -> None:
    async def handler(request: Any) -> Any:
        await nested()

    sentence = asyncio.run(found(Noop(Toy(handler, [passing, Passing]))))
    assert sentence is not None
    assert sentence.endswith("inside Noop > Toy > function[tests.toy.passing] > Passing > (endpoint)")


def test_a_request_that_no_task_belongs_to() -> None:
    assert asyncio.run(found(hangs, copied=lambda scope: scope_of())) is None


def test_a_coroutine_that_has_not_begun_or_is_over() -> None:
    async def main() -> str | None:
        fresh, over = hangs(scope_of(), message, message), hangs(scope_of(), message, message)
        over.close()
        try:
            return where(scope_of(), [fresh, over, None])
        finally:
            fresh.close()

    assert asyncio.run(main()) is None
