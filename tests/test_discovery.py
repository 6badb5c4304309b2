"""Discovery finds every ASGI callable of a stack, whatever holds it, and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import sys
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from time import perf_counter_ns
from typing import Any

import pytest
import wrapt
from fastapi import APIRouter, FastAPI
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route, Router

from pytest_mwbudget.asgi import loops, tracing
from pytest_mwbudget.asgi.http_library import httpx
from pytest_mwbudget.asgi.request import build_request
from pytest_mwbudget.asgi.stack import Stack
from pytest_mwbudget.config.budgets import Budgets
from pytest_mwbudget.config.settings import Settings
from pytest_mwbudget.engine import measure
from pytest_mwbudget.model.results import LoopName
from pytest_mwbudget.timing.looks import Environment

from . import apps
from .apps import (
    Answering,
    App,
    BoundMethod,
    CallsSuper,
    CallsSuperTwice,
    Cascade,
    Decorated,
    DecoratedPlainly,
    Defaults,
    Endpoint,
    Forwarding,
    Frozen,
    InACell,
    InADict,
    InAList,
    InAPartial,
    InATask,
    Inherited,
    Keywords,
    Noop,
    NotCalled,
    OddChild,
    OtherNames,
    Patched,
    PerRequest,
    SeveralAttributes,
    Slots,
    StarArguments,
    SyncCall,
    Underscore,
    Unhashable,
    caller,
    discovered,
    hello,
    indistinct,
    names_of,
    not_found,
    outer,
    partial,
    respond,
    stack_of,
    wrapping,
    wrapping_twice,
)

FUNCTION = "function[tests.apps.{}]"
# No test here reads a figure.
ONE_LOOK = replace(apps.FAST_SCHEDULE, precision_time_s=0.0)


class Updated(Noop):
    """A layer with all attributes of the app inside it, as `functools.update_wrapper` copies them."""

    def __init__(self, app: App) -> None:
        functools.update_wrapper(self, app)
        self.inner = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.inner(scope, receive, send)


def updated(app: App) -> App:
    @functools.wraps(app)
    async def layer(scope: Any, receive: Any, send: Any) -> None:
        await app(scope, receive, send)

    return layer


class AnswersUpdated(Updated):
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await respond(send)


class Table:
    """An app with a table of routes, by whatever name."""

    def __init__(self) -> None:
        self.routes = {"/": hello}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.routes[scope["path"]](scope, receive, send)


HOLDERS: list[tuple[Callable[[App], App], list[str]]] = [
    (Underscore, ["Underscore"]),
    (InAList, ["InAList"]),
    (InADict, ["InADict"]),
    (InAPartial, ["InAPartial"]),
    (InACell, ["InACell", FUNCTION.format("InACell.__init__")]),
    (Frozen, ["Frozen"]),
    (Slots, ["Slots"]),
    (Unhashable, ["Unhashable"]),
    (SeveralAttributes, ["SeveralAttributes"]),
    (BoundMethod, ["BoundMethod"]),
    (Forwarding, ["Forwarding"]),
    (Inherited, ["Inherited"]),
    (CallsSuper, ["CallsSuper"]),
    (CallsSuperTwice, ["CallsSuperTwice"]),
    (Decorated, ["Decorated"]),
    (DecoratedPlainly, ["DecoratedPlainly"]),
    (OddChild, ["OddChild"]),
    (Patched, ["Patched"]),
    (Keywords, ["Keywords"]),
    (SyncCall, ["SyncCall"]),
    (OtherNames, ["OtherNames"]),
    (StarArguments, ["StarArguments"]),
    (Defaults, ["Defaults"]),
    (PerRequest, ["PerRequest"]),
    (InATask, ["InATask"]),
    (lambda app: NotCalled(app).handle, ["NotCalled"]),
    (partial, [FUNCTION.format("_with_option")]),
    (outer, [FUNCTION.format("outer")]),
    (wrapping, [FUNCTION.format("wrapping")]),
    (wrapping_twice, [FUNCTION.format("wrapping_twice") + "#1", FUNCTION.format("wrapping_twice") + "#2"]),
]


@pytest.mark.parametrize(("layer", "names"), HOLDERS, ids=lambda value: getattr(value, "__name__", None))
def test_every_holder(layer: Callable[[App], App], names: list[str]) -> None:
    stack = stack_of(Noop(layer(Noop(Endpoint()))))
    assert [layer.name for _, layer in stack.layers] == ["Noop#1", *names, "Noop#2"]
    # A chain: each entry is entered by the previous entry, and each can have a probe.
    assert [entry.parent for entry in stack.entries] == [None, *range(len(names) + 2)]
    assert all(entry.function is not None for entry in stack.entries)
    assert stack.endpoint == len(names) + 2
    assert not stack.outside


@pytest.mark.parametrize(("layer", "names"), HOLDERS, ids=lambda value: getattr(value, "__name__", None))
def test_every_holder_twice(layer: Callable[[App], App], names: list[str]) -> None:
    once = [name.partition("#")[0] for name in names]
    all_names = names_of(layer(layer(hello)))
    assert [name.partition("#")[0] for name in all_names] == once * 2
    assert len(set(all_names)) == len(all_names)


def test_two_functions_that_cannot_be_told_apart_by_what_they_hold() -> None:
    other = outer(hello)
    stack = stack_of(Noop(outer(hello)))
    assert stack.entries[1].function is not other
    assert stack.layers[1][1].merged_with is None


def test_a_function_that_cannot_be_told_from_another_is_merged_with_the_layer_outside_it() -> None:
    stack = stack_of(Noop(indistinct(indistinct(Slots(hello)))))
    layers = [layer for _, layer in stack.layers]
    assert [layer.merged_with for layer in layers] == [None, "Noop", "Noop", None]
    assert layers[1].merged_because == "the function behind it cannot be told from others made of the same code"
    assert stack.probeable == (0, 3, 4)
    assert stack_of(indistinct(hello)).layers[0][1].merged_with == "the outside of the stack"


def test_a_probe_can_stand_at_every_boundary_down_to_the_endpoints() -> None:
    stack = stack_of(Noop(Slots(Noop(Endpoint()))))
    assert (stack.endpoint, stack.probeable) == (3, (0, 1, 2, 3))
    # No boundary is inside a layer that answers by itself.
    stack = stack_of(Noop(Answering(Noop(hello))), expect_status=401)
    assert (stack.endpoint, stack.probeable) == (None, (0, 1))


def test_wrapt_proxies() -> None:
    class Proxy(wrapt.CallableObjectProxy):  # type: ignore[misc]
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await self.__wrapped__(scope, receive, send)

    assert names_of(Noop(Proxy(Slots(Proxy(hello))))) == ["Noop", "Proxy#1", "Slots", "Proxy#2"]
    transparent = wrapt.CallableObjectProxy
    assert names_of(Noop(transparent(Slots(transparent(hello))))) == ["Noop", "Slots"]


def test_wrapt_decorated_call() -> None:
    @wrapt.decorator
    async def transparent(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        return await wrapped(*args, **kwargs)

    class Layer(Noop):
        @transparent
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await self.app(scope, receive, send)

    assert names_of(Noop(Layer(Slots(hello)))) == ["Noop", "Layer", "Slots"]


def test_a_patched_class_is_one_layer() -> None:
    class Layer(Noop):
        pass

    def patch(original: Any) -> Any:
        async def _patched(self: Any, scope: Any, receive: Any, send: Any) -> None:
            await original(self, scope, receive, send)

        return _patched

    Layer.__call__ = patch(patch(Noop.__call__))  # type: ignore[method-assign]
    assert names_of(Layer(Slots(hello))) == ["Layer", "Slots"]


async def allowed(scope: Any, receive: Any, send: Any) -> bool:
    return True


async def refusing(scope: Any, receive: Any, send: Any) -> None:
    raise ValueError


@pytest.mark.parametrize("asked", [allowed, refusing])
def test_what_runs_after_a_call_is_not_inside_it(asked: App) -> None:
    class AsksFirst(Noop):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            with contextlib.suppress(ValueError):
                await asked(scope, receive, send)
            await asyncio.create_task(self.app(scope, receive, send))

    stack = stack_of(AsksFirst(Slots(hello)))
    parents = {getattr(entry.callee, "__name__", type(entry.callee).__name__): entry.parent for entry in stack.entries}
    assert parents == {"AsksFirst": None, "Slots": 0, "hello": list(parents).index("Slots")} | (
        {"refusing": 0} if asked is refusing else {}
    )


async def _before(scope: Any, receive: Any, send: Any, app: App, option: str = "") -> None:
    await app(scope, receive, send)


async def _keyword_only(scope: Any, receive: Any, send: Any, *, app: App) -> None:
    await app(scope, receive, send)


class Transparent(wrapt.CallableObjectProxy):  # type: ignore[misc]
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.__wrapped__(scope, receive, send)


@pytest.mark.parametrize(
    ("layer", "name"),
    [
        (partial, FUNCTION.format("_with_option")),
        (lambda app: functools.partial(_before, app=app), f"function[{__name__}._before]"),
        (lambda app: functools.partial(_keyword_only, app=app), f"function[{__name__}._keyword_only]"),
        (lambda app: wrapt.CallableObjectProxy(Slots(app)), "Slots"),
        (Transparent, "Transparent"),
    ],
)
def test_layers_of_every_kind_inside_one_that_answers_are_there(layer: Any, name: str) -> None:
    stack = stack_of(Noop(Answering(layer(Noop(hello)))), expect_status=401)
    assert [(layer.name, layer.entered) for _, layer in stack.layers] == [
        ("Noop#1", True),
        ("Answering", True),
        (name, False),
        ("Noop#2", False),
    ]


def test_a_partial_inside_one_of_the_same_function_that_answers() -> None:
    async def layer(scope: Any, receive: Any, send: Any, *, app: App, answers: bool) -> None:
        await (respond(send, b"no", 401) if answers else app(scope, receive, send))

    inner = functools.partial(layer, app=hello, answers=False)
    stack = stack_of(functools.partial(layer, app=inner, answers=True), expect_status=401)
    name = FUNCTION.replace("tests.apps", __name__).format(
        "test_a_partial_inside_one_of_the_same_function_that_answers"
    )
    assert [(layer.name, layer.entered) for _, layer in stack.layers] == [(f"{name}#1", True), (f"{name}#2", False)]


def test_a_proxy_is_not_named_after_what_it_wraps() -> None:
    names = names_of(Transparent(BaseHTTPMiddleware(hello, dispatch=add_header)))
    assert names == ["Transparent", "BaseHTTPMiddleware[add_header]"]


def test_a_proxy_that_answers_is_a_layer() -> None:
    class Refusing(wrapt.CallableObjectProxy):  # type: ignore[misc]
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await respond(send, b"no", 401)

    assert names_of(Noop(Refusing(Slots(hello))), expect_status=401) == ["Noop", "Refusing"]


def test_attributes_that_refuse_to_be_read_are_not_read() -> None:
    class Unbound:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError("working outside of context")

        def __call__(self) -> None: ...

    class Layer(Noop):
        current = Unbound()

        @property
        def app_of_today(self) -> Any:
            raise AssertionError("nobody may run a property of a layer")

    assert names_of(Layer(Answering(Layer(hello))), expect_status=401) == ["Layer#1", "Answering"]


# ---- kinds, the endpoint, the outside ---------------------------------------------------------------------------


async def page(request: Any) -> PlainTextResponse:
    return PlainTextResponse("ok")


async def add_header(request: Any, call_next: Any) -> Any:
    return await call_next(request)


class Dispatch:
    async def __call__(self, request: Any, call_next: Any) -> Any:
        return await call_next(request)


SCAFFOLD = ["ServerErrorMiddleware", "ExceptionMiddleware"]


def rows(app: App, url: str, **options: Any) -> list[tuple[str, str]]:
    return [(layer.name, layer.kind) for _, layer in stack_of(app, url, **options).layers]


def starlette() -> Starlette:
    inner = Starlette(routes=[Route("/x", page)], middleware=[Middleware(Noop)])
    router = Router([Route("/x", page, middleware=[Middleware(Slots)])], middleware=[Middleware(Underscore)])
    routes = [
        Route("/", page),
        Route("/layered", page, middleware=[Middleware(Slots)]),
        Route("/shared", PlainTextResponse("always the same object")),
        Mount("/app", inner),
        Mount("/layered-mount", routes=[Route("/x", page)], middleware=[Middleware(Frozen)]),
        Mount("/router", app=router),
        Mount("/layer", Noop(hello)),
    ]
    return Starlette(routes=routes, middleware=[Middleware(Noop)])


@pytest.mark.parametrize("url", ["/", "/shared", "/nowhere"])
def test_the_router_belongs_to_the_endpoint(url: str) -> None:
    stack = stack_of(starlette(), url, expect_status=404 if url == "/nowhere" else None)
    assert stack.outside
    assert [layer.name for _, layer in stack.layers] == ["ServerErrorMiddleware", "Noop", "ExceptionMiddleware"]
    assert type(stack.entries[stack.endpoint or 0].callee) is Router


class TenantRouter:
    """Set a variable for the app inside."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.app(scope, receive, send)


class Maintenance(Noop):
    """A layer with methods that a route has too."""

    def matches(self, path: str) -> bool:
        return False

    async def handle(self, scope: Any, receive: Any, send: Any) -> None: ...


class ByHostRouter(TenantRouter):
    """A router without the attribute `routes`."""

    def __init__(self, app: Any) -> None:
        super().__init__(app)
        self.route_mapping = {"*": app}


class VersionRouter(TenantRouter):
    """A router that chooses among apps."""

    def __init__(self, app: Any) -> None:
        super().__init__(app)
        self.router_header = "version"
        self.versions = {"1": app, "2": app}


class HeaderRouter(TenantRouter):
    router_header = "tenant"


class Protected(TenantRouter):
    """A layer that lists routes."""

    routes = ("/admin", "/api")


class ProtectedBySlots:
    __slots__ = ("app", "routes")

    def __init__(self, app: Any) -> None:
        self.app, self.routes = app, ["/admin"]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.app(scope, receive, send)


class Forwarding(Noop):
    """A layer that has the routes of the app inside."""

    @property
    def routes(self) -> Any:
        return self.app.routes


def test_a_layer_is_not_routing_for_its_name_or_its_methods() -> None:
    app = Starlette(
        routes=[Route("/", page, middleware=[Middleware(TenantRouter)])],
        middleware=[Middleware(TenantRouter), Middleware(Maintenance)],
    )
    kinds = dict(rows(app, "/"))
    assert [kinds[name] for name in ("TenantRouter#1", "TenantRouter#2", "Maintenance")] == ["middleware"] * 3
    # As the outermost layer it has a row, like any other.
    assert rows(TenantRouter(app), "/")[0] == ("TenantRouter#1", "middleware")
    for guard in (Protected, ProtectedBySlots, Forwarding):
        assert rows(guard(app), "/")[0] == (guard.__name__, "middleware")
    kinds = dict(rows(Noop(ByHostRouter(VersionRouter(HeaderRouter(app)))), "/"))
    names = ("ByHostRouter", "VersionRouter", "HeaderRouter")
    assert [kinds[name] for name in names] == ["routing", "routing", "middleware"]


async def audit(scope: Any, receive: Any, send: Any) -> None:
    """Note a request."""


class Mirror(Noop):
    """Have each request audited after the response."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.app(scope, receive, send)
        await audit(dict(scope), receive, send)


def test_what_is_called_after_the_answer_is_not_the_endpoint() -> None:
    app = Starlette(routes=[Route("/", page)], middleware=[Middleware(Mirror), Middleware(Noop)])
    assert [name for name, _ in rows(app, "/")] == ["ServerErrorMiddleware", "Mirror", "Noop", "ExceptionMiddleware"]


class Shadow(Noop):
    """Send a copy of each request to another version of the app, and drop what it answers."""

    candidate: Any = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def drop(message: Any) -> None:
            pass

        await self.app(scope, receive, send)
        await self.candidate(dict(scope), receive, drop)


@pytest.mark.parametrize("around", [lambda app: app, Slots, lambda app: BaseHTTPMiddleware(app, dispatch=passing)])
def test_an_app_that_gets_a_copy_of_the_request_is_not_the_endpoint(around: Callable[[Any], Any]) -> None:
    """Its answer goes nowhere, because the response is complete."""
    app = Shadow(Noop(hello))
    app.candidate = Noop(Endpoint())
    stack = stack_of(around(app))
    assert [layer.name for _, layer in stack.layers][-2:] == ["Shadow", "Noop"]
    assert stack.entries[stack.endpoint].callee is hello


class Fallback(Noop):
    """Try an app, and another one if it answers 404."""

    def __init__(self, app: App, other: App) -> None:
        self.app, self.other = app, other

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        kept: list[Any] = []

        async def buffering(message: Any) -> None:
            kept.append(message)

        await self.app(scope, receive, buffering)
        if kept[0]["status"] == 404:
            await self.other(scope, receive, send)
            return
        for message in kept:
            await send(message)


async def nothing_here(scope: Any, receive: Any, send: Any) -> None:
    await respond(send, status=404)


async def nowhere(scope: Any, receive: Any, send: Any) -> None:
    await respond(send, status=404)


class Acknowledges(Noop):
    """Answer at once, and let the app inside do the work."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def drop(message: Any) -> None:
            pass

        await PlainTextResponse("accepted", 202)(scope, receive, send)
        await self.app(scope, receive, drop)


def test_an_app_that_is_called_in_place_of_another_one_is_the_endpoint() -> None:
    """Messages that go into a buffer are not an answer, nor is a response of the calling layer itself."""
    stack = stack_of(Noop(Fallback(Fallback(nothing_here, Noop(hello)), nowhere)))
    assert [layer.name for _, layer in stack.layers][-1] == "Noop#2"
    assert stack.endpoint is not None
    assert stack.entries[stack.endpoint].callee is hello
    stack = stack_of(Noop(Acknowledges(Noop(hello))))
    assert [layer.name for _, layer in stack.layers] == ["Noop#1", "Acknowledges", "Noop#2"]
    assert stack.endpoint is not None
    assert stack.entries[stack.endpoint].callee is hello


async def passing(request: Any, call_next: Any) -> Any:
    return await call_next(request)


def test_layers_of_a_route() -> None:
    assert rows(starlette(), "/layered")[2:] == [
        ("ExceptionMiddleware", "middleware"),
        ("Router", "routing"),
        ("Slots", "middleware"),
    ]


def test_layers_of_a_mounted_app() -> None:
    assert rows(starlette(), "/app/x")[2:] == [
        ("ExceptionMiddleware#1", "middleware"),
        ("Router", "routing"),
        ("Starlette", "routing"),
        ("ServerErrorMiddleware#2", "middleware"),
        ("Noop#2", "middleware"),
        ("ExceptionMiddleware#2", "middleware"),
    ]


def test_layers_of_a_mount_a_router_and_a_mounted_layer() -> None:
    assert rows(starlette(), "/layered-mount/x")[3:] == [("Router", "routing"), ("Frozen", "middleware")]
    # The router is entered again below its own layers, which do not pay for matching its routes.
    assert rows(starlette(), "/router/x")[3:] == [
        ("Router#1", "routing"),
        ("Router#2", "routing"),
        ("Underscore", "middleware"),
        ("Router#3", "routing"),
        ("Slots", "middleware"),
    ]
    assert rows(starlette(), "/layer/")[3:] == [("Router", "routing"), ("Noop#2", "middleware")]


def fastapi() -> FastAPI:
    app = FastAPI()
    router = APIRouter(prefix="/r")

    @app.get("/")
    async def root() -> dict[str, int]:
        return {"a": 1}

    @router.get("/x")
    def x() -> dict[str, int]:
        return {"a": 1}

    @app.middleware("http")
    async def timing(request: Any, call_next: Any) -> Any:
        return await call_next(request)

    app.include_router(router)
    app.add_middleware(GZipMiddleware)
    return app


@pytest.mark.parametrize("url", ["/", "/r/x"])
def test_fastapi(url: str) -> None:
    layers = rows(fastapi(), url)
    assert {kind for _, kind in layers} == {"middleware"}
    names = [name for name, _ in layers]
    assert names[0] == "ServerErrorMiddleware"
    assert names[names.index("GZipMiddleware") + 1] == "BaseHTTPMiddleware[timing]"
    assert "ExceptionMiddleware" in names


def test_an_app_that_is_entered_again_inside_its_layers_is_no_layer() -> None:
    class Framework:
        """An app with layers around one of its methods, like Quart."""

        def __init__(self) -> None:
            self.asgi_app: App = self.serve

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await self.asgi_app(scope, receive, send)

        async def serve(self, scope: Any, receive: Any, send: Any) -> None:
            await respond(send)

    app = Framework()
    assert names_of(Slots(Noop(app.serve))) == ["Slots", "Noop"]
    app.asgi_app = Noop(app.asgi_app)
    stack = stack_of(app)
    assert stack.outside
    assert [layer.name for _, layer in stack.layers] == ["Noop"]
    assert stack.endpoint == 2


def test_a_task_without_the_context_of_the_request_is_inside_the_layer_that_starts_it() -> None:
    class Apart(Noop):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            inside = self.app(scope, receive, send)
            await asyncio.create_task(inside, context=contextvars.Context())

    stack = stack_of(Noop(Apart(Slots(hello))))
    assert [(layer.name, layer.runs_task) for _, layer in stack.layers] == [
        ("Noop", False),
        ("Apart", True),
        ("Slots", False),
    ]
    assert [entry.parent for entry in stack.entries] == [None, 0, 1, 2]


def test_an_object_that_wraps_two_apps_is_two_layers() -> None:
    class Auth:
        def wrap(self, app: App) -> App:
            async def wrapped(scope: Any, receive: Any, send: Any) -> None:
                await self.handle(scope, receive, send, app)

            return wrapped

        async def handle(self, scope: Any, receive: Any, send: Any, app: App) -> None:
            await app(scope, receive, send)

    auth = Auth()
    stack = stack_of(auth.wrap(Noop(auth.wrap(hello))))
    assert [(layer.name, layer.kind) for _, layer in stack.layers] == [
        ("Auth#1", "middleware"),
        ("Noop", "middleware"),
        ("Auth#2", "middleware"),
    ]
    assert not stack.outside


@pytest.mark.parametrize("app", [hello, Endpoint(), functools.partial(hello), Endpoint().__call__])
def test_an_app_without_layers(app: App) -> None:
    stack = stack_of(app)
    assert (stack.layers, stack.endpoint, stack.outside) == ((), 0, False)


def test_an_endpoint_that_calls_another_app_in_process() -> None:
    other = Noop(Noop(hello))

    async def endpoint(scope: Any, receive: Any, send: Any) -> None:
        # All transports share the default of their argument: so may the request of a test and this one.
        transport = httpx.ASGITransport(other, client=scope["client"])
        async with httpx.AsyncClient(transport=transport, base_url="http://other") as client:
            assert (await client.get("/")).text == "ok"
        await hello(scope, receive, send)

    async def plain(request: Any) -> PlainTextResponse:
        transport = httpx.ASGITransport(other, client=request.scope["client"])
        async with httpx.AsyncClient(transport=transport, base_url="http://other") as client:
            return PlainTextResponse((await client.get("/")).text)

    assert "Noop" not in names_of(Starlette(routes=[Route("/", plain)]))
    assert not any(name.startswith("Noop") for name in names_of(Slots(endpoint)))


def test_a_layer_that_answers_by_itself() -> None:
    stack = stack_of(Noop(Answering(Noop(Slots(BoundMethod(Endpoint()))))), expect_status=401)
    assert stack.endpoint is None
    assert [(index, layer.name, layer.entered) for index, layer in stack.layers] == [
        (0, "Noop#1", True),
        (1, "Answering", True),
        (None, "Noop#2", False),
        (None, "Slots", False),
        (None, "BoundMethod", False),
    ]


class Made:
    """A layer whose call makes a function that enters a method, as Litestar's `ASGIMiddleware` does."""

    def __call__(self, app: App) -> App:
        handle = self.handle

        async def middleware(scope: Any, receive: Any, send: Any) -> None:
            await handle(scope=scope, receive=receive, send=send, next_app=app)

        return middleware

    async def handle(self, scope: Any, receive: Any, send: Any, next_app: App) -> None:
        await next_app(scope, receive, send)


class MadeAnswering(Made):
    async def handle(self, scope: Any, receive: Any, send: Any, next_app: App) -> None:
        await Response(status_code=401)(scope, receive, send)


def test_an_object_and_the_function_that_it_made_are_one_layer() -> None:
    assert names_of(Made()(Noop(Made()(Slots(Endpoint()))))) == ["Made#1", "Noop", "Made#2", "Slots"]


def test_a_layer_that_gets_the_inner_app_as_an_argument_answers_by_itself() -> None:
    stack = stack_of(Noop(MadeAnswering()(Made()(Noop(Slots(Endpoint()))))), expect_status=401)
    assert stack.endpoint is None
    assert [(layer.name, layer.entered) for _, layer in stack.layers] == [
        ("Noop#1", True),
        ("MadeAnswering", True),
        ("Made", False),
        ("Noop#2", False),
        ("Slots", False),
    ]


class Aliased(Noop):
    async def dispatch(self, scope: Any, receive: Any, send: Any) -> None:
        await self.app(scope, receive, send)

    __call__ = dispatch


def test_a_layer_below_a_route_may_be_called_by_an_alias() -> None:
    assert "Aliased" in names_of(Starlette(routes=[Mount("/", app=Aliased(hello))]))


@asynccontextmanager
async def span(scope: Any, receive: Any, send: Any) -> AsyncIterator[None]:
    yield


class Spanning(Noop):
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async with span(scope, receive, send):
            await self.app(scope, receive, send)


def test_a_context_manager_that_takes_the_request_is_no_layer() -> None:
    assert names_of(Spanning(Noop(hello))) == ["Spanning", "Noop"]


class Entering(Noop):
    """A layer that enters `app` first, and `other` where it is entered again."""

    other: App

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        app = self.other if "again" in scope else self.app
        await app({**scope, "again": True}, receive, send)


def test_a_layer_that_answers_may_hold_an_object_that_stands_outside_of_it() -> None:
    outer = Entering(hello)
    for inner, names in ((outer, ["Slots", "Noop#2"]), (Frozen(outer), [])):
        outer.app, outer.other = Noop(Answering(inner)), Slots(Noop(hello))
        stack = stack_of(outer, expect_status=401)
        assert stack.endpoint is None
        assert [layer.name.partition("#")[0] for _, layer in stack.layers if layer.entered] == [
            "Entering",
            "Noop",
            "Answering",
        ]
        assert [layer.name for _, layer in stack.layers if not layer.entered] == names


class HasOuter:
    """An endpoint that holds what stands outside of it."""

    outer: App

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await respond(send, b"hello")


def test_an_endpoint_may_hold_what_stands_outside_of_it() -> None:
    entered, unentered, app = HasOuter(), HasOuter(), HasOuter()
    entered.outer = Noop(entered)
    # A route is such an object: routers call a method of it, which takes other arguments.
    unentered.outer = Noop(Slots(unentered))
    app.outer = FastAPI(routes=[Mount("/", app=app)])
    for outermost, endpoint in ((entered.outer, entered), (Noop(unentered), unentered), (app.outer, app)):
        stack = stack_of(outermost)
        assert stack.endpoint is not None
        assert stack.entries[-1].callee is endpoint
        assert all(layer.entered and layer.name != "HasOuter" for _, layer in stack.layers)


def test_a_layer_of_a_framework_that_answers_by_itself() -> None:
    async def refuse(request: Any, call_next: Any) -> PlainTextResponse:
        return PlainTextResponse("no", 401)

    app = Starlette(
        routes=[Route("/", page)],
        middleware=[Middleware(BaseHTTPMiddleware, dispatch=refuse), Middleware(Noop)],
    )
    layers = [(layer.name, layer.entered) for _, layer in stack_of(app, expect_status=401).layers]
    assert layers == [
        ("ServerErrorMiddleware", True),
        ("BaseHTTPMiddleware[refuse]", True),
        ("Noop", False),
        ("ExceptionMiddleware", False),
    ]


def test_a_dispatcher_that_tries_one_app_after_another() -> None:
    stack = stack_of(Noop(Cascade(Underscore(not_found), Slots(hello))))
    assert [(entry.parent, layer.name) for (_, layer), entry in zip(stack.layers, stack.entries, strict=False)] == [
        (None, "Noop"),
        (0, "Cascade"),
        (1, "Underscore"),
        (2, FUNCTION.format("not_found")),
        (1, "Slots"),
    ]
    assert stack.entries[stack.endpoint or 0].callee is hello


def test_tasks() -> None:
    assert not stack_of(Noop(hello)).tasks
    stack = stack_of(Noop(InATask(Slots(hello))))
    assert stack.tasks
    assert [entry.own_task for entry in stack.entries] == [False, False, True, False]


class Wrapping(Noop):
    """A layer that wraps `send`."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def wrapped(message: Any) -> None:
            await send(message)

        await self.app(scope, receive, wrapped)


def test_who_wraps_send() -> None:
    stack = stack_of(Noop(Noop(Wrapping(Noop(InATask(hello))))))
    assert [entry.same_send for entry in stack.entries] == [False, True, True, False, True, True]
    stack = stack_of(Starlette(routes=[Mount("/", hello)], middleware=[Middleware(Wrapping), Middleware(Noop)]))
    assert [entry.same_send for entry in stack.entries][:4] == [False, True, False, False]


# ---- names ------------------------------------------------------------------------------------------------------


def test_names() -> None:
    app = Starlette(
        routes=[Route("/", page)],
        middleware=[
            Middleware(Noop),
            Middleware(BaseHTTPMiddleware, dispatch=add_header),
            Middleware(BaseHTTPMiddleware, dispatch=Dispatch()),
            Middleware(BaseHTTPMiddleware, dispatch=functools.partial(add_header)),
            Middleware(outer),
            Middleware(Noop),
        ],
    )
    layers = [layer for _, layer in stack_of(app).layers]
    assert [layer.name for layer in layers[1:-1]] == [
        "Noop#1",
        "BaseHTTPMiddleware[add_header]#1",
        "BaseHTTPMiddleware[Dispatch]",
        "BaseHTTPMiddleware[add_header]#2",
        "function[tests.apps.outer]",
        "Noop#2",
    ]
    assert [layer.index for layer in layers] == list(range(len(layers)))
    assert layers[1].qualname == "tests.apps.Noop"
    assert layers[1].aliases == {"Noop"}
    assert layers[2].qualname == "starlette.middleware.base.BaseHTTPMiddleware"
    assert layers[2].aliases == {"BaseHTTPMiddleware[add_header]", "BaseHTTPMiddleware"}
    assert layers[5].qualname == "tests.apps.outer"


def test_wrapped_functions_keep_their_own_name() -> None:
    assert names_of(wrapping(Noop(hello))) == ["function[tests.apps.wrapping]", "Noop"]


# ---- restoration ------------------------------------------------------------------------------------------------


def test_another_profiler_is_back_after_tracing() -> None:
    def profiler(frame: Any, event: str, arg: object) -> None: ...

    previous = sys.getprofile()
    sys.setprofile(profiler)
    try:
        stack_of(Noop(hello))
        assert sys.getprofile() is profiler
    finally:
        sys.setprofile(previous)


def test_no_profiler_is_left_after_an_exception() -> None:
    async def fails(scope: Any, receive: Any, send: Any) -> None:
        raise LookupError

    with pytest.raises(LookupError):
        stack_of(Noop(fails))
    assert sys.getprofile() is None


def test_tracing_changes_nothing() -> None:
    with apps.unchanged_code():
        stack_of(fastapi())


# ---- what only looks like a layer -----------------------------------------------------------------------------------


def helper(scope: Any, receive: Any, send: Any) -> dict[str, Any]:
    """Take the parameters of an ASGI app, and return a value at once."""
    return dict(scope["headers"])


class WithAHelper(Noop):
    """A layer that calls helpers with the parameters of an ASGI app."""

    @staticmethod
    def of_the_class(scope: Any, receive: Any, send: Any) -> dict[str, Any]:
        return helper(scope, receive, send)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        assert helper(scope, receive, send) == self.of_the_class(scope, receive, send) == dict(scope["headers"])
        await self.app(scope, receive, send)


def test_a_function_that_answers_at_once_is_no_layer() -> None:
    assert names_of(WithAHelper(Noop(hello))) == ["WithAHelper", "Noop"]
    measurement = apps.measured(WithAHelper(Noop(hello)), schedule=ONE_LOOK)
    assert [report.name for report in measurement.layers] == ["WithAHelper", "Noop"]


class Profiling(Noop):
    """A layer that profiles the inner app with a profiler in Python."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        sys.setprofile(lambda frame, event, arg: None)
        try:
            await self.app(scope, receive, send)
        finally:
            sys.setprofile(None)


def test_where_the_app_runs_a_profiler_nothing_is_judged() -> None:
    request = build_request("GET", "/", {})
    settings = Settings(Budgets({"tasks": 9}), lifespan=False)
    measurement = asyncio.run(measure(Profiling(Noop(hello)), request, settings, Environment()))
    assert "The app runs its own profiler, which hides the layers inside it. [missing-layers]" in measurement.notes
    reasons = {judged.reason for report in measurement.layers for judged in report.judged.values()}
    assert reasons == {
        "a profiler of the app was active during the measurement; measure without it, in a separate job [active-tool]"
    }


# ---- positions of arguments -------------------------------------------------------------------------------------


async def app_last(scope: Any, receive: Any, send: Any, app: App) -> None:
    await app(scope, receive, send)


async def app_by_name(scope: Any, receive: Any, send: Any, *, app: App) -> None:
    await app(scope=scope, receive=receive, send=send)


async def app_first(app: App, scope: Any, receive: Any, send: Any) -> None:
    await app(scope, receive, send)


async def app_among_options(scope: Any, receive: Any, send: Any, **options: Any) -> None:
    await options["app"](scope, receive, send)


async def options_last(app: App, scope: Any, receive: Any, send: Any, depth: int = 1) -> None:
    await app(scope, receive, send)


async def all_by_name(*, app: App, scope: Any, receive: Any, send: Any) -> None:
    await app(scope=scope, receive=receive, send=send)


async def in_other_order(send: Any, receive: Any, scope: Any, app: App) -> None:
    await app(scope, receive, send)


def in_positions(app: App) -> App:
    return functools.partial(app_first, app)


def by_name(function: App) -> Callable[[App], App]:
    return lambda app: functools.partial(function, app=app)


def only_by_name(function: App) -> Callable[[App], App]:
    """Make a layer whose function gets its arguments by name only."""

    def layer(app: App) -> App:
        inner = functools.partial(function, app=app)

        async def passing_names(scope: Any, receive: Any, send: Any) -> None:
            await inner(scope=scope, receive=receive, send=send)

        return passing_names

    return layer


PARTIALS = {
    "app last": by_name(app_last),
    "by name": by_name(app_by_name),
    "first": in_positions,
    "among options": by_name(app_among_options),
    "options last": lambda app: functools.partial(options_last, app, depth=2),
}
ONLY_BY_NAME = {"all by name": only_by_name(all_by_name), "in another order": only_by_name(in_other_order)}


@pytest.mark.parametrize("layer", PARTIALS.values(), ids=PARTIALS)
def test_one_function_is_as_many_layers_as_its_arguments_say(layer: Callable[[App], App]) -> None:
    stack = stack_of(Noop(layer(layer(Noop(layer(hello))))))
    names = [row.name.partition("#")[0] for _, row in stack.layers]
    assert [name.startswith("function[") for name in names] == [False, True, True, False, True]
    assert [entry.parents for entry in stack.entries] == [(None,), (0,), (1,), (2,), (3,), (4,)]
    assert len({entry.function for entry in stack.entries}) == 3
    assert len({(entry.function, entry.key) for entry in stack.entries}) == 6


@pytest.mark.parametrize("layer", ONLY_BY_NAME.values(), ids=ONLY_BY_NAME)
def test_the_three_may_come_by_name_and_in_any_order(layer: Callable[[App], App]) -> None:
    assert len(names_of(Noop(layer(layer(hello))))) == 5


def test_what_is_made_for_each_call_tells_no_layers_apart() -> None:
    async def with_options(scope: Any, receive: Any, send: Any, *, app: App, options: Any, log: Any) -> None:
        await app(scope, receive, send)

    class Makes(Noop):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await with_options(scope, receive, send, app=self.app, options={}, log=lambda: None)

    names = [name.partition("[")[0].partition("#")[0] for name in names_of(Makes(Makes(hello)))]
    assert names == ["Makes", "function", "Makes", "function"]


def test_a_layer_that_is_made_for_each_request_belongs_to_its_maker() -> None:
    class Makes(Noop):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            inner = functools.partial(app_by_name, app=functools.partial(app_by_name, app=self.app))
            await inner(scope, receive, send)

    # Of the two partials made for the request, only the inner one has a lasting argument: `Slots`.
    names = [name.partition("[")[0] for name in names_of(Noop(Makes(Slots(hello))))]
    assert names == ["Noop", "Makes", "function", "Slots"]


def test_layers_of_one_function_inside_one_another_that_are_made_for_each_request_belong_to_their_maker() -> None:
    class Makes(Noop):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            async def endpoint(scope: Any, receive: Any, send: Any) -> None:
                await self.app(scope, receive, send)

            inner = functools.partial(app_by_name, app=endpoint)
            await functools.partial(app_by_name, app=inner)(scope, receive, send)

    # Only arguments that are made for the request tell the two calls of the function apart.
    names = [name.partition("[")[0] for name in names_of(Noop(Makes(hello)))]
    assert names == ["Noop", "Makes"]


def test_an_object_is_one_layer_whatever_else_it_is_called_with() -> None:
    class Depth(Noop):
        async def __call__(self, scope: Any, receive: Any, send: Any, depth: int = 0) -> None:
            await self.app(scope, receive, send)

    class Twice(Noop):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            async def ignore(message: Any) -> None: ...

            await self.app(scope, receive, ignore, depth=1)
            await self.app(scope, receive, send, depth=2)

    stack = stack_of(Twice(Depth(Slots(hello))))
    assert [layer.name for _, layer in stack.layers] == ["Twice", "Depth", "Slots"]
    assert [entry.parents for entry in stack.entries] == [(None,), (0, 0), (1, 1), (2, 2)]


@pytest.mark.parametrize(("layer", "name"), [(Noop, "Noop"), (partial, FUNCTION.format("_with_option"))])
def test_the_same_object_twice_in_a_stack(layer: Callable[[App], App], name: str) -> None:
    class Alternates(Noop):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            app = hello if scope.get("again") else self.app
            await app({**scope, "again": True}, receive, send)

    shared = Alternates(None)  # type: ignore[arg-type]
    shared.app = layer(shared)
    stack = stack_of(Slots(shared))
    assert [layer.name for _, layer in stack.layers] == ["Slots", "Alternates", name]
    assert [entry.parents for entry in stack.entries] == [(None,), (0, 2), (1,), (1,)]


@pytest.mark.parametrize("kind", ["def", "async def", "both"])
def test_a_decorator_in_c_is_the_boundary(kind: str) -> None:
    @wrapt.decorator
    async def awaiting(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        return await wrapped(*args, **kwargs)

    @wrapt.decorator
    def returning(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        return wrapped(*args, **kwargs)

    decorators = {"def": [returning], "async def": [awaiting], "both": [returning, awaiting, returning]}[kind]

    async def call(self: Any, scope: Any, receive: Any, send: Any) -> None:
        await self.app(scope=scope, receive=receive, send=send)

    for decorator in reversed(decorators):
        call = decorator(call)

    class Layer(Noop):
        __call__ = call

    async def function(scope: Any, receive: Any, send: Any) -> None:
        await inner(scope, receive, send)

    inner = Slots(hello)
    decorated = decorators[0](function)
    stack = stack_of(Noop(Layer(Layer(decorated))))
    names = [layer.name for _, layer in stack.layers]
    assert [*names[:3], names[3].partition(".")[0], names[4]] == [
        "Noop",
        "Layer#1",
        "Layer#2",
        "function[tests",
        "Slots",
    ]
    boundary = "returning" if kind in ("def", "both") else "awaiting"
    assert [entry.function.__name__ for entry in stack.entries[1:4] if entry.function] == [boundary] * 3


# ---- the same request -------------------------------------------------------------------------------------------


def chosen(**wrapped: bool) -> type[Noop]:
    class Chosen(Noop):
        """A layer that passes on a new scope with only some of the keys."""

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            async def receiving() -> Any:
                return await receive()

            async def sending(message: Any) -> None:
                await send(message)

            own = {"type": scope["type"], "path": scope["path"], "headers": list(scope["headers"])}
            await self.app(
                own, receiving if wrapped.get("receive") else receive, sending if wrapped.get("send") else send
            )

    return Chosen


@pytest.mark.parametrize("wrapped", [{}, {"send": True}, {"receive": True}, {"receive": True, "send": True}], ids=str)
def test_a_new_scope_is_still_of_the_same_request(wrapped: dict[str, bool]) -> None:
    layer = chosen(**wrapped)
    assert names_of(Noop(layer(Noop(layer(Slots(hello)))))) == ["Noop#1", "Chosen#1", "Noop#2", "Chosen#2", "Slots"]


def test_a_request_that_the_app_makes_with_the_same_headers_is_another_one() -> None:
    routes = [Route("/", lambda request: PlainTextResponse("ok"))]
    others = [Starlette(routes=routes, middleware=[Middleware(Slots)])]

    async def endpoint(scope: Any, receive: Any, send: Any) -> None:
        transport = httpx.ASGITransport(app=others[0])
        async with httpx.AsyncClient(transport=transport, base_url="http://other") as client:
            response = await client.get("/", headers=[(name.decode(), "x") for name, _ in scope["headers"]])
        await respond(send, response.content)

    assert names_of(Noop(chosen()(endpoint))) == ["Noop", "Chosen"]


class OtherThread(Noop):
    """A layer that runs the inner app on the event loop of another thread."""

    def __init__(self, app: App) -> None:
        super().__init__(app)
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self.app(scope, receive, send), self.loop))


def test_what_runs_in_another_thread_is_measured_with_the_layer_that_runs_it_there() -> None:
    stack = stack_of(Noop(OtherThread(Slots(Noop(hello)))))
    layers = [layer for _, layer in stack.layers]
    assert [layer.name for layer in layers] == ["Noop#1", "OtherThread", "Slots", "Noop#2"]
    assert all(layer.entered for layer in layers)
    assert [layer.merged_with for layer in layers] == [None, None, "OtherThread", "OtherThread"]
    assert layers[2].merged_because == "OtherThread runs what is inside it in another thread"
    assert stack.threads


def test_a_measurement_says_what_is_measured_together_across_threads() -> None:
    settings = {"budgets": Budgets({"us": 1e6, "tasks": 100}, {}, None)}
    measurement = apps.measured(Noop(OtherThread(Slots(hello))), schedule=ONE_LOOK, settings=settings)
    assert measurement.verdict == "pass"
    assert measurement.layer("Slots").us is None
    note = "Slots is measured with OtherThread: OtherThread runs what is inside it in another thread. [merged]"
    assert note in measurement.notes
    reasons = [judged.reason or "" for judged in measurement.layer("Slots").judged.values()]
    assert not any("did not come to it" in reason for reason in reasons)


class Collecting(OtherThread):
    """A layer that sends and returns a value itself, after the inner app has run in another thread."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> Any:
        messages: list[Any] = []

        async def collect(message: Any) -> None:
            messages.append(message)

        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self.app(scope, receive, collect), self.loop))
        for message in messages:
            await send(message)
        return "collected"


def rows_of(stack: Any) -> list[tuple[str, bool, str | None]]:
    return [(layer.name, layer.entered, layer.merged_with) for _, layer in stack.layers]


def test_what_a_layer_collects_from_another_thread_was_not_answered_by_it() -> None:
    router = Router([Mount("/", Slots(hello))])
    assert rows_of(stack_of(Noop(Collecting(router)))) == [
        ("Noop", True, None),
        ("Collecting", True, None),
        ("Router", True, "Collecting"),
        ("Slots", True, "Collecting"),
    ]


def test_what_answers_in_another_thread_leaves_out_what_is_inside_it() -> None:
    stack = stack_of(OtherThread(Answering(Slots(hello), 200)))
    assert rows_of(stack) == [
        ("OtherThread", True, None),
        ("Answering", True, "OtherThread"),
        ("Slots", False, None),
    ]
    assert stack.handed_on is None


def test_a_thread_without_the_context_of_the_request_is_watched_as_well() -> None:
    class InAPool(Noop):
        """A layer that runs the inner app in a thread older than the request and without its context."""

        pool = ThreadPoolExecutor(1)

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self.pool, lambda: asyncio.run(self.app(scope, receive, send)))

    with InAPool.pool as pool:
        pool.submit(int).result()
        stack = stack_of(Noop(InAPool(Slots(hello))))
        assert rows_of(stack)[1:] == [("InAPool", True, None), ("Slots", True, "InAPool")]
        assert (pool.submit(sys.getprofile).result(), sys.getprofile(), threading.getprofile()) == (None, None, None)


def test_an_endpoint_in_another_thread_makes_no_layer_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    async def spinning(scope: Any, receive: Any, send: Any) -> None:
        end_ns = perf_counter_ns() + 500_000
        while perf_counter_ns() < end_ns:
            pass
        await respond(send)

    monkeypatch.setattr(apps, "MOST_S", 0.2)
    settings = {"budgets": Budgets({"us": 250}, {}, None)}
    measurement = apps.measured(OtherThread(spinning), schedule=apps.FAST_SCHEDULE, settings=settings)
    assert measurement.books.endpoint is None
    why = "OtherThread runs what is inside it in another thread"
    assert f"The endpoint is measured with OtherThread: {why}. [merged]" in measurement.notes
    assert measurement.verdict == "undecided"


def unwatched(profiler: Any) -> Any:
    """Stand in for `profiled` on an installation without the C extension."""

    @contextlib.contextmanager
    def own_thread_only() -> Any:
        sys.setprofile(profiler)
        try:
            yield False
        finally:
            sys.setprofile(None)

    return own_thread_only()


def test_what_cannot_be_watched_is_not_said_to_be_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "profiled", unwatched)
    inside = Slots(Noop(hello))
    for other in (Answering(inside, 200), Collecting(inside)):
        stack = stack_of(Noop(other))
        name = type(other).__name__
        assert rows_of(stack)[2:] == [("Slots", True, name), ("Noop#2", True, name)]
        assert stack.handed_on.because == (
            f"{name} answered without the app inside it, or ran that app in another thread, which could not be watched"
        )
        assert not stack.handed_on.complete
        notes = apps.measured(Noop(other), schedule=ONE_LOOK).notes
        assert any(note.endswith(" Layers inside it may have no row. [merged]") for note in notes)


def test_an_unwatched_layer_that_returns_a_value_is_no_helper(monkeypatch: pytest.MonkeyPatch) -> None:
    class Returning(OtherThread):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> Any:
            await super().__call__(scope, receive, send)
            return "a value"

    monkeypatch.setattr(tracing, "profiled", unwatched)
    assert names_of(Noop(Returning(Slots(hello)))) == ["Noop", "Returning", "Slots"]


def test_a_layer_that_answers_from_a_task_of_its_own_answers_by_itself() -> None:
    class AnswersInATask(Noop):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await asyncio.create_task(respond(send))

    stack = stack_of(Noop(AnswersInATask(Slots(hello))))
    entered = [(layer.name, layer.entered) for _, layer in stack.layers]
    assert entered == [("Noop", True), ("AnswersInATask", True), ("Slots", False)]


# ---- copied attributes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layer", [updated, Updated], ids=["function", "object"])
@pytest.mark.parametrize(
    ("make", "inside"),
    [
        (lambda: Router([Route("/", page)]), []),
        (lambda: Mount("/", hello), []),
        (Table, []),
        (lambda: PlainTextResponse("ok"), []),
        (lambda: BaseHTTPMiddleware(hello, dispatch=dispatch), ["BaseHTTPMiddleware[dispatch]"]),
        (lambda: Noop(hello), ["Noop"]),
    ],
    ids=["router", "mount", "table", "response", "BaseHTTPMiddleware", "layer"],
)
def test_a_layer_with_the_attributes_of_what_is_inside_it_is_a_layer(layer: Any, make: Any, inside: list[str]) -> None:
    own = f"function[{__name__}.updated]" if layer is updated else "Updated"
    stack = stack_of(layer(make()))
    assert [(row.name, row.kind) for _, row in stack.layers] == [(name, "middleware") for name in (own, *inside)]
    assert not stack.outside


def test_what_a_layer_wraps_comes_before_the_attributes_that_it_has_copied() -> None:
    stack = stack_of(AnswersUpdated(Noop(Underscore(hello))))
    assert [layer.name for _, layer in stack.layers] == ["AnswersUpdated", "Noop", "Underscore"]


async def dispatch(request: Any, call_next: Any) -> Any:
    return await call_next(request)


# ---- an app that outlives its request ---------------------------------------------------------------------------


class Hasty(Noop):
    """A layer that answers by itself after a time limit, while the app inside it goes on."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def nowhere(message: Any) -> None: ...

        try:
            await asyncio.wait_for(asyncio.shield(self.app(scope, receive, nowhere)), 0.001)
        except TimeoutError:
            await respond(send)


# What waits inside it. The event loop cancels it when it closes.
LONGER_S = 5


class Waiting(Noop):
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(LONGER_S)
        await self.app(scope, receive, send)


async def slow(scope: Any, receive: Any, send: Any) -> None:
    await asyncio.sleep(LONGER_S)
    await respond(send)


async def slow_page(request: Any) -> PlainTextResponse:
    await asyncio.sleep(LONGER_S)
    return PlainTextResponse("ok")


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize(
    ("inside", "names", "complete"),
    [
        (slow, [], True),
        (wrapping(slow), [FUNCTION.format("wrapping")], True),
        (Noop(Waiting(hello)), ["Noop", "Waiting"], False),
        (
            Starlette(routes=[Route("/", slow_page)]),
            ["Starlette", "ServerErrorMiddleware", "ExceptionMiddleware"],
            True,
        ),
    ],
    ids=["endpoint", "function", "layer that waits", "Starlette"],
)
def test_what_outlives_the_request_is_measured_with_the_layer_that_answers(
    inside: App, names: list[str], complete: bool, loop: LoopName
) -> None:
    async def main() -> Stack:
        return await discovered(await caller(Noop(Hasty(inside))))

    stack = loops.run(loop, main)
    assert [layer.name.partition("#")[0] for _, layer in stack.layers] == ["Noop", "Hasty", *names]
    why = "Hasty answers before what is inside it has ended"
    assert {layer.merged_because for _, layer in stack.layers[2:]} == ({why} if names else set())
    assert (stack.handed_on.to_layer, stack.handed_on.because, stack.handed_on.complete) == ("Hasty", why, complete)
    assert not stack.threads


def test_a_layer_that_raises_runs_nothing_in_a_thread() -> None:
    class Catches(Noop):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            try:
                await self.app(scope, receive, send)
            except KeyError:
                await respond(send)

    class Raises(Noop):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            raise KeyError

    stack = stack_of(Catches(Raises(Noop(hello))))
    assert [layer.merged_with for _, layer in stack.layers] == [None, None, None]
    assert [layer.entered for _, layer in stack.layers] == [True, True, False]
