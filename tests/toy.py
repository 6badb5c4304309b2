"""A framework whose middlewares are not ASGI callables, and its module for `asgi.frameworks`."""

from __future__ import annotations

import asyncio
import functools
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from time import perf_counter_ns
from types import ModuleType
from typing import Any

import pytest

from pytest_mwbudget.asgi.frameworks import seam as seams
from pytest_mwbudget.asgi.frameworks.seam import FrameworkLayer, Seam

from .apps import respond

Handler = Callable[[Any], Awaitable[Any]]


class Toy:
    """An app that calls `before`, then the chain of middlewares round its handler, then `after`.

    `cut` means that the endpoint can be told from the app.
    """

    def __init__(
        self,
        handler: Handler,
        middlewares: Sequence[Callable[[Handler], Handler]] = (),
        before: Sequence[Callable[..., Any]] = (),
        after: Sequence[Callable[..., Any]] = (),
        *,
        cut: bool = True,
    ) -> None:
        self.handler = self.chain = handler
        self.before, self.after, self.cut = before, after, cut
        self.wrapped: list[Handler] = []
        for middleware in reversed(middlewares):
            self.chain = middleware(self.chain)
            self.wrapped.insert(0, self.chain)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        for hook in self.before:
            await hook(scope)
        body = await self.chain(scope)
        for hook in self.after:
            await hook(scope, body=body)
        await respond(send, body)


# The name of the framework's package.
Toy.__module__ = "toy"


def seam(app: Any) -> Seam:
    """Return the layers of a toy app: the middlewares, and the objects whose methods are hooks."""
    calls = {id(layer): (layer, [layer, *getattr(layer, "others", ())]) for layer in app.wrapped}
    for hook in (*app.before, *app.after):
        owner = getattr(hook, "__self__", hook)
        calls.setdefault(id(owner), (owner, []))[1].append(hook)
    layers = tuple(FrameworkLayer(layer, tuple(own), getattr(layer, "adapts", None)) for layer, own in calls.values())
    return Seam(layers, (app.handler,) if app.cut else ())


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Make the toy framework known."""
    module = ModuleType("toy")
    module.seam = seam  # type: ignore[attr-defined]
    monkeypatch.setattr(seams, "FRAMEWORKS", (*seams.FRAMEWORKS, "toy"))
    monkeypatch.setitem(sys.modules, f"{seams.__package__}.toy", module)
    return module


# ---- handlers and middlewares ---------------------------------------------------------------------------------------


async def ok(request: Any) -> bytes:
    return b"ok"


def passing(handler: Handler) -> Handler:
    async def middleware(request: Any) -> Any:
        return await handler(request)

    return middleware


def returning(handler: Handler) -> Handler:
    """Make a plain function that returns a coroutine."""

    def middleware(request: Any) -> Any:
        return handler(request)

    return middleware


def answering(handler: Handler) -> Handler:
    """Make a middleware that answers by itself."""

    async def middleware(request: Any) -> Any:
        return b"ok"

    return middleware


class Passing:
    """A middleware that is an object, with any arguments."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler

    async def __call__(self, *arguments: Any, extra: int = 1, **named: Any) -> Any:
        assert extra == 1
        return await self.handler(*arguments, **named)


class Either:
    """A middleware whose plain `__call__` returns the coroutine of another method, as Django's do."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler

    def __call__(self, request: Any) -> Any:
        return self.later(request)

    async def later(self, request: Any) -> Any:
        return await self.handler(request)


class Hooks:
    """An object with a hook before and one after the handler."""

    async def before(self, request: Any) -> None:
        self.work()

    async def after(self, request: Any, **named: Any) -> None:
        self.work()

    def work(self) -> None: ...


def decorated(function: Any) -> Any:
    @functools.wraps(function)
    async def wrapper(*arguments: Any, **named: Any) -> Any:
        return await function(*arguments, **named)

    return wrapper


class DecoratedHook:
    """An object whose method is decorated: its function has no parameter for the object."""

    @decorated
    async def before(self, request: Any) -> None: ...


class InThread:
    """A sync middleware that spins: the app's request goes to a thread for it, and inside it back to the loop."""

    adapts = "it is sync"

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.others = [self.sync]

    async def __call__(self, request: Any) -> Any:
        self.loop = asyncio.get_running_loop()
        return await self.loop.run_in_executor(None, functools.partial(self.sync, request))

    def sync(self, request: Any) -> Any:
        end = perf_counter_ns() + 300_000
        while perf_counter_ns() < end:
            pass
        return asyncio.run_coroutine_threadsafe(self.handler(request), self.loop).result()
