"""Nothing of the app's is looked at in a way that its code can see: no lazy object is evaluated, no exception leaks."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import wrapt
from starlette.applications import Starlette
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from pytest_mwbudget.__main__ import main
from pytest_mwbudget.asgi.app import checked_app
from pytest_mwbudget.asgi.routes import routes_of
from pytest_mwbudget.asgi.server import Caller
from pytest_mwbudget.commands import measure
from pytest_mwbudget.counting.spawning import work_name
from pytest_mwbudget.errors import AppError, RepetitionError
from pytest_mwbudget.recording.request import copied, endpoint_of, route_of

from .apps import FAST_SCHEDULE, App, Hostile, LookedAtError, Noop, caller, looks, measured, needs, respond

# One look has requests of every kind, and no test here reads a figure.
ONE_LOOK = replace(FAST_SCHEDULE, precision_time_s=0.0)


@pytest.fixture(autouse=True)
def _nobody_looks() -> Iterator[None]:
    looks.clear()
    yield
    assert looks == []


class HostileCallable(Hostile):  # type: ignore[misc]
    async def __call__(self, *arguments: Any) -> None: ...


class HostileWork(Hostile):  # type: ignore[misc]
    def __call__(self, *arguments: Any) -> None: ...


class HostileRun(Hostile):  # type: ignore[misc]
    """An awaitable that a plain layer returns."""

    def __init__(self, run: Any) -> None:
        object.__setattr__(self, "run", run)

    def __await__(self) -> Any:
        return object.__getattribute__(self, "run").__await__()


class Meta(type):
    """A metaclass that notices what is done with its classes."""

    def __eq__(cls, other: object) -> bool:
        looks.append("== of a class")
        return cls is other

    def __hash__(cls) -> int:
        looks.append("hash of a class")
        return type.__hash__(cls)

    def __getattr__(cls, name: str) -> Any:
        looks.append(f"{name} of a class")
        raise LookedAtError(name)


class Noticing(Noop, metaclass=Meta):
    """A layer whose class notices."""


def anything(*arguments: Any, **named: Any) -> None: ...


def three(first: Any, second: Any, third: Any) -> Any:
    return Hostile()


async def helper(scope: Any, receive: Any, send: Any) -> Any:
    return Hostile()


class InScope(Noop):
    """A layer that puts hostile objects into the scope and hands them to functions."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        one, call = Hostile(), HostileCallable()
        keys = ("session", "user", "state", "client", "route", "endpoint", "path_params", "path_template", "headers")
        inner = {**scope, **dict.fromkeys(keys, one)}
        for first in (one, scope, inner):
            three(first, receive, send)
            three(first, call, call)
            await helper(first, receive, send)
            anything(first, receive, send)
            anything((first, receive, send), scope=first, receive=call, send=call)
        await self.app(inner, receive, send)


class Sending(Noop):
    """A layer whose `send` and `receive` are hostile objects."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        class Receive(Hostile):  # type: ignore[misc]
            async def __call__(self) -> Any:
                return await receive()

        class Send(Hostile):  # type: ignore[misc]
            async def __call__(self, message: Any) -> None:
                await send(message)

        await self.app(scope, Receive(), Send())


def returning(app: App) -> App:
    def layer(scope: Any, receive: Any, send: Any) -> Any:
        return HostileRun(app(scope, receive, send))

    return layer


class Working(Noop):
    """A layer that hands hostile objects to the event loop, to tasks and to threads, and keeps some."""

    def __init__(self, app: App) -> None:
        super().__init__(app)
        self.kept: list[Any] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        loop, work = asyncio.get_running_loop(), HostileWork()
        loop.call_soon(work)
        await loop.run_in_executor(None, work)
        await asyncio.to_thread(functools.partial(work, Hostile()))
        thread = threading.Thread(target=work, name="hostile")
        thread.start()
        thread.join()
        await asyncio.create_task(self.run(Hostile()))
        self.kept = [*self.kept[-2000:], Hostile(), Noticing(self)]
        await self.app(scope, receive, send)

    async def run(self, one: Any) -> None:
        await asyncio.sleep(0)


class HostileLayer(Hostile):  # type: ignore[misc]
    """A layer that raises at every attribute; a server only calls it."""

    def __init__(self, app: App) -> None:
        object.__setattr__(self, "app", app)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await object.__getattribute__(self, "app")(scope, receive, send)


class HostileDispatch(Hostile):  # type: ignore[misc]
    async def __call__(self, request: Any, call_next: Any) -> Any:
        return await call_next(request)


class Forwarding(Noop):
    """A layer that makes attributes up, and cannot yet."""

    def __getattr__(self, name: str) -> Any:
        looks.append(name)
        raise LookedAtError(name)


def evaluated() -> Any:
    looks.append("evaluated")
    return Noop(answer)


class Lazy(Noop):
    """A layer that holds a lazy app, and puts it into the scope."""

    def __init__(self, app: App) -> None:
        super().__init__(app)
        if not hasattr(wrapt, "LazyObjectProxy"):
            pytest.skip("wrapt has lazy proxies from release 2 on")
        self.lazy = wrapt.LazyObjectProxy(evaluated)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        three(self.lazy, receive, send)
        await self.app({**scope, "lazy": self.lazy}, receive, send)


class Answering(Lazy):
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await respond(send)


async def answer(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    await respond(send)


def app_of_starlette() -> App:
    async def page(request: Any) -> PlainTextResponse:
        return PlainTextResponse("ok")

    return Starlette(routes=[Route("/", page)])


LAYERS: list[Any] = [InScope, Sending, returning, Working, HostileLayer, Forwarding, Noticing, Lazy, Answering]


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.__name__)
def test_an_app_does_not_notice_that_it_is_measured(layer: Any) -> None:
    names = [report.name for report in measured(layer(Noop(answer)), schedule=ONE_LOOK).layers]
    assert {*names} >= {"Noop"}
    assert any(layer.__name__ in name for name in names)


@pytest.mark.parametrize("layer", [HostileLayer, Forwarding, InScope])
def test_the_routes_of_an_app_are_found_behind_such_a_layer(layer: Any) -> None:
    app = layer(app_of_starlette())
    assert checked_app(app) is app
    assert [*routes_of(app).paths] == ["/"]


def test_a_hostile_dispatch_has_the_name_of_its_class() -> None:
    app = BaseHTTPMiddleware(app_of_starlette(), dispatch=HostileDispatch())
    assert measured(app, schedule=ONE_LOOK).layers[0].name == "BaseHTTPMiddleware[HostileDispatch]"


@needs("retained")
def test_objects_that_stay_alive_are_named_unseen() -> None:
    kept = measured(Working(answer), settings={"timed": False}).layers[0].counts
    assert kept.retained.kinds[f"{__name__}.Noticing"] == 1
    assert "tests.apps.Hostile" in kept.retained.kinds


def test_what_a_router_noted_is_read_unseen() -> None:
    scope = dict.fromkeys(("route", "endpoint", "route_handler", "path_template", "state", "user"), Hostile())
    scope |= {"path": "/a/1", "path_params": {"one": Hostile(), "number": 1}}
    assert route_of(scope) == "/a/{number}"
    assert endpoint_of(scope) == "tests.apps.Hostile"
    assert copied(scope).keys() == scope.keys()
    assert work_name(Hostile()) == "tests.apps.Hostile"


def test_an_app_that_cannot_be_one_is_shown_by_its_type() -> None:
    with pytest.raises(AppError, match=r"is <tests\.apps\.Hostile object>, which is not an ASGI app"):
        checked_app(Hostile())


def test_an_exception_without_a_text_is_named_by_its_type() -> None:
    class WordlessError(Exception):
        def __str__(self) -> str:
            raise KeyError

    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise WordlessError

    async def called() -> None:
        calls: Caller = await caller(app)
        calls.calls, calls.status = 1, 200
        await calls()

    with pytest.raises(RepetitionError, match=r"raised WordlessError: \(its text could not be made: KeyError\)"):
        asyncio.run(called())


def test_the_command_measures_an_app_that_forwards_to_nothing_yet(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "Schedule", lambda: ONE_LOOK)
    assert main(["measure", f"{__name__}:forwarding", "--time", "20"]) == 0
    assert "Forwarding" in capsys.readouterr().out


forwarding = Forwarding(app_of_starlette())
