"""Apps and layers whose counts are known, and the counts of one request to them."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import pytest
from starlette.applications import Starlette
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from pytest_mwbudget import engine
from pytest_mwbudget.asgi import loops
from pytest_mwbudget.asgi.request import build_request
from pytest_mwbudget.config.budgets import Budgets
from pytest_mwbudget.config.settings import Settings
from pytest_mwbudget.counting.backend import counting_backend
from pytest_mwbudget.model.results import Count, Counts, LoopName, Measurement
from pytest_mwbudget.timing.looks import Environment
from pytest_mwbudget.timing.schedule import Schedule

from .apps import FAST_SCHEDULE, Noop, unchanged_code

COUNTS_OBJECTS = "objects" not in counting_backend().why_not
COUNTS_ALLOCATIONS = "allocations" not in counting_backend().why_not
needs_objects = pytest.mark.skipif(not COUNTS_OBJECTS, reason="object creations can be seen from Python 3.13 on")
needs_allocations = pytest.mark.skipif(not COUNTS_ALLOCATIONS, reason="the C extension was not built")

LOOPS: tuple[LoopName, ...] = ("asyncio", "uvloop", "trio")
every_loop = pytest.mark.parametrize("loop", LOOPS)

COUNT_ONLY = Settings(budgets=Budgets(default={"tasks": 1000}), lifespan=False)


def counted(
    app: Any,
    url: str = "/",
    loop: LoopName = "asyncio",
    method: str = "GET",
    schedule: Schedule | None = None,
    settings: Settings = COUNT_ONLY,
    **options: Any,
) -> Measurement:
    """Count a request without timing."""
    if loop != "asyncio":
        pytest.importorskip(loop)
    request = build_request(method, url, options)
    environment = Environment(schedule=schedule or FAST_SCHEDULE)
    return loops.run(loop, lambda: engine.measure(app, request, settings, environment))


def counts(measurement: Measurement, name: str) -> Counts:
    found = measurement.layer(name).counts
    assert found is not None
    return found


def number(count: Count | None) -> int:
    return count.count


COROUTINE = "starlette.middleware.base.BaseHTTPMiddleware.__call__.<locals>.call_next.<locals>.coro"


class Own:
    """A class of which only tests create instances."""


OWN = f"{__name__}.Own"


class PassThrough(BaseHTTPMiddleware):
    async def dispatch(self, request: Any, call_next: Any) -> Any:
        return await call_next(request)


def basic(*middleware: Any) -> Any:
    """Build a small Starlette app under these layers."""

    async def page(request: Any) -> Any:
        return PlainTextResponse("ok")

    app: Any = Starlette(routes=[Route("/", page)])
    return functools.reduce(lambda inner, layer: layer(inner), reversed(middleware), app)


class SpawnsInAGroup(Noop):
    """A layer with a task that spawns two more in a group of its own; each of the two creates seven `Own`."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(self.child)
        await self.app(scope, receive, send)

    async def child(self) -> None:
        await anyio.sleep(0)
        async with anyio.create_task_group() as group:
            group.start_soon(self.grandchild)
            group.start_soon(self.grandchild)

    async def grandchild(self) -> None:
        await anyio.sleep(0)
        [Own() for _ in range(7)]


@contextmanager
def everything_as_before(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Check that the loop's attributes and the code of every function are the same at the end."""
    names, factory = set(vars(loop)), loop.get_task_factory()
    with unchanged_code():
        yield
    assert set(vars(loop)) == names
    assert loop.get_task_factory() is factory
