"""Every ASGI callable of a stack is found, whatever holds it; nothing else is."""

from __future__ import annotations

import asyncio
import functools
import sys
from collections.abc import Callable
from typing import Any

import httpx
import pytest
import wrapt
from fastapi import APIRouter, FastAPI
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route, Router

from pytest_mwbudget import asgi
from pytest_mwbudget.budgets import Budgets
from pytest_mwbudget.measure import measure
from pytest_mwbudget.settings import Settings
from pytest_mwbudget.timing import Bench

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
    # A chain: each is entered by the one outside it, and a probe can stand at each.
    assert [entry.parent for entry in stack.entries] == [None, *range(len(names) + 2)]
    assert all(entry.function is not None for entry in stack.entries)
    assert stack.endpoint == len(names) + 2
    assert not stack.outside


@pytest.mark.parametrize(("layer", "names"), HOLDERS, ids=lambda value: getattr(value, "__name__", None))
def test_every_holder_twice(layer: Callable[[App], App], names: list[str]) -> None:
    once = [name.partition("#")[0] for name in names]
    found = names_of(layer(layer(hello)))
    assert [name.partition("#")[0] for name in found] == once * 2
    assert len(set(found)) == len(found)


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
    # What answers by itself has none inside it.
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
    # The router is entered a second time below its own layers: matching its routes is not what they cost.
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
    found = rows(fastapi(), url)
    assert {kind for _, kind in found} == {"middleware"}
    names = [name for name, _ in found]
    assert names[0] == "ServerErrorMiddleware"
    assert names[names.index("GZipMiddleware") + 1] == "BaseHTTPMiddleware[timing]"
    assert "ExceptionMiddleware" in names


def test_an_app_that_is_entered_again_inside_its_layers_is_no_layer() -> None:
    class Framework:
        """As Quart: layers are put round one of its methods."""

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


@pytest.mark.parametrize("app", [hello, Endpoint(), functools.partial(hello), Endpoint().__call__])
def test_an_app_without_layers(app: App) -> None:
    stack = stack_of(app)
    assert (stack.layers, stack.endpoint, stack.outside) == ((), 0, False)


def test_an_endpoint_that_calls_another_app_in_process() -> None:
    other = Noop(Noop(hello))

    async def endpoint(scope: Any, receive: Any, send: Any) -> None:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(other), base_url="http://other") as client:
            assert (await client.get("/")).text == "ok"
        await hello(scope, receive, send)

    async def plain(request: Any) -> PlainTextResponse:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(other), base_url="http://other") as client:
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
    """Wraps `send`."""

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
    """Takes what an ASGI app takes, and gives an answer at once."""
    return dict(scope["headers"])


class WithAHelper(Noop):
    """Asks helpers with the parameters of an ASGI app."""

    @staticmethod
    def of_the_class(scope: Any, receive: Any, send: Any) -> dict[str, Any]:
        return helper(scope, receive, send)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        assert helper(scope, receive, send) == self.of_the_class(scope, receive, send) == dict(scope["headers"])
        await self.app(scope, receive, send)


def test_a_function_that_answers_at_once_is_no_layer() -> None:
    assert names_of(WithAHelper(Noop(hello))) == ["WithAHelper", "Noop"]
    measurement = apps.measured(WithAHelper(Noop(hello)))
    assert [report.name for report in measurement.layers] == ["WithAHelper", "Noop"]


class Profiling(Noop):
    """Profiles what is inside it, with a profiler in Python."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        sys.setprofile(lambda frame, event, arg: None)
        try:
            await self.app(scope, receive, send)
        finally:
            sys.setprofile(None)


def test_where_the_app_runs_a_profiler_nothing_is_judged() -> None:
    request = asgi.build_request("GET", "/", {})
    settings = Settings(Budgets({"tasks": 9}), lifespan=False)
    measurement = asyncio.run(measure(Profiling(Noop(hello)), request, settings, Bench()))
    assert "The app runs a profiler of its own, which hides the layers inside of it." in measurement.notes
    reasons = {judged.reason for report in measurement.layers for judged in report.judged.values()}
    assert reasons == {"a profiler of the app was at work during the measurement; run without it"}
