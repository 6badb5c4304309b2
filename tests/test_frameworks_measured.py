"""Layers of known cost in real frameworks: each row has the cost of its layer."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import Any, TypeAlias

import pytest

from .apps import measured
from .readings import near, readings

SPIN_US, URL = 300, "/hello"


def spin() -> None:
    end = perf_counter_ns() + SPIN_US * 1000
    while perf_counter_ns() < end:
        pass


# The app, the names of its layers that spins and that does nothing, and how often the first one spins in a request.
App: TypeAlias = tuple[Any, str, str, int]


def falcon_app() -> App:
    falcon = pytest.importorskip("falcon.asgi")

    class Spins:
        async def process_request(self, req: Any, resp: Any) -> None:
            spin()

        async def process_response(self, req: Any, resp: Any, resource: Any, succeeded: bool) -> None:
            spin()

    class Idle:
        async def process_resource(self, req: Any, resp: Any, resource: Any, params: Any) -> None: ...

    class Home:
        async def on_get(self, req: Any, resp: Any) -> None:
            resp.text = "ok"

    app = falcon.App(middleware=[Idle(), Spins()])
    app.add_route(URL, Home())
    return app, "Spins", "Idle", 2


def blacksheep_app() -> App:
    blacksheep = pytest.importorskip("blacksheep")
    app = blacksheep.Application(router=blacksheep.Router())

    class Spins:
        async def __call__(self, request: Any, handler: Any) -> Any:
            spin()
            return await handler(request)

    class Idle:
        async def __call__(self, request: Any, handler: Any) -> Any:
            return await handler(request)

    async def home() -> Any:
        return blacksheep.text("ok")

    app.router.add_get(URL, home)
    app.middlewares.extend([Idle(), Spins()])
    return app, "Spins", "Idle", 1


def sanic_app() -> App:
    sanic = pytest.importorskip("sanic")
    sanic.Sanic.test_mode = True
    app = sanic.Sanic("measured")

    async def home(request: Any) -> Any:
        return sanic.text("ok")

    def spins(request: Any) -> None:
        spin()

    async def idle(request: Any, response: Any) -> None: ...

    app.add_route(home, URL)
    app.register_middleware(spins, "request")
    app.register_middleware(idle, "response")
    return app, "spins", "idle", 1


def quart_app() -> App:
    quart = pytest.importorskip("quart")
    app = quart.Quart("measured")

    @app.get(URL)
    async def home() -> str:
        return "ok"

    @app.before_request
    async def spins() -> None:
        spin()

    @app.after_request
    async def idle(response: Any) -> Any:
        return response

    return app, "spins", "idle", 1


class SpinsMixin:
    """The base of Django's middleware that spins, async or sync as the others need it."""

    def process_request(self, request: Any) -> None:
        spin()


class SyncSpins:
    def __init__(self, get_response: Any) -> None:
        self.get_response = get_response

    def __call__(self, request: Any) -> Any:
        spin()
        return self.get_response(request)


class AsyncIdle:
    sync_capable, async_capable = False, True

    def __init__(self, get_response: Any) -> None:
        from asgiref.sync import markcoroutinefunction

        markcoroutinefunction(self)
        self.get_response = get_response

    async def __call__(self, request: Any) -> Any:
        return await self.get_response(request)


def django_app(name: str) -> App:
    pytest.importorskip("django")
    from django.core.handlers.asgi import ASGIHandler
    from django.test import override_settings

    from . import test_frameworks_django

    test_frameworks_django.configure()
    middleware = [f"{__name__}.AsyncIdle", f"{__name__}.{name}"]
    with override_settings(MIDDLEWARE=middleware):
        return ASGIHandler(), name, "AsyncIdle", 1


def mixed_in() -> App:
    pytest.importorskip("django")
    from django.utils.deprecation import MiddlewareMixin

    globals()["MixedIn"] = type("MixedIn", (SpinsMixin, MiddlewareMixin), {})
    return django_app("MixedIn")


def sync_only() -> App:
    return django_app("SyncSpins")


@pytest.mark.live
@readings
@pytest.mark.parametrize("make", [falcon_app, blacksheep_app, sanic_app, quart_app, mixed_in, sync_only])
def test_each_row_has_the_cost_of_its_layer(make: Callable[[], App]) -> None:
    app, busy, idle, times = make()
    found = measured(app, url=URL)
    rows = {report.name: report for report in found.layers}
    spins = next(report for name, report in rows.items() if busy in name)
    does_nothing = next(report for name, report in rows.items() if idle in name)
    assert found.status == 200
    # A thread's switches come on top.
    assert 0.95 * times * SPIN_US < spins.us.high
    assert 0.7 * times * SPIN_US < spins.us.estimate < times * SPIN_US + 10_000
    assert does_nothing.us is not None
    assert near(does_nothing.us, 0, most_us=100)
    assert not any("could not be read" in note for note in found.notes)
