"""The parts of an endpoint of FastAPI and Starlette: which there are, their counts, times, budgets and reports."""

from __future__ import annotations

import asyncio
import functools
import gc
import operator
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any

import pytest
import wrapt
from fastapi import Depends, FastAPI, Response
from fastapi.dependencies import utils as dependencies
from fastapi.responses import PlainTextResponse, StreamingResponse
from fastapi.routing import APIRoute, run_endpoint_function
from fastapi.testclient import TestClient
from jinja2 import DictLoader, Environment
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.endpoints import HTTPEndpoint
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route
from starlette.templating import Jinja2Templates

import tests.test_truth_exact
from pytest_mwbudget.asgi.frameworks import fastapi as fastapi_seams
from pytest_mwbudget.asgi.frameworks.gates import Gate
from pytest_mwbudget.asgi.opening import GATES
from pytest_mwbudget.asgi.stack import Stack
from pytest_mwbudget.config.budgets import Budgets
from pytest_mwbudget.errors import LayerNameError
from pytest_mwbudget.model.endpoint import VALIDATE
from pytest_mwbudget.model.estimate import Estimate
from pytest_mwbudget.model.quantities import EXECUTED, CountedQuantity
from pytest_mwbudget.model.results import Counts, Measurement
from pytest_mwbudget.report.html import render as html_page
from pytest_mwbudget.report.markdown import render as markdown
from pytest_mwbudget.report.terminal import failure, table
from pytest_mwbudget.report.view import view
from pytest_mwbudget.storage import codec
from pytest_mwbudget.timing.schedule import Schedule

from .apps import FAST, Noop, Scheduled, hello, measured, needs, respond, run_inside, stack_of
from .canned import one_run
from .endpoints import app, cost, costs, nothing, spin, work
from .readings import near, readings
from .test_truth_exact import calls

MORE = {"base": 3, "coroutine": 5, "generator": 7, "Check": 11, "handler": 13, "serialize": 17, "background": 19}
SPINS = {"base": 100, "coroutine": 150, "generator": 120, "Check": 200, "handler": 300, "serialize": 250}
SPINS |= {"background": 170}


# Older releases of FastAPI do not await a decorated dependency.
never_awaited = pytest.mark.filterwarnings("ignore:.*never awaited", "ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture
def collected() -> Iterator[None]:
    """Collect what a test leaves before the next test, which is not marked `never_awaited`."""
    yield
    gc.collect()


def rows(stack: Stack) -> list[str]:
    """Return the names of the parts, those of dependencies without the module."""
    return [layer.name.rpartition(":")[2] for _, layer in stack.parts]


# ---- which parts there are --------------------------------------------------------------------------------------


def test_the_parts_of_a_route_with_dependencies() -> None:
    assert rows(stack_of(app, "/async")) == [
        *("routing", "framework", "validate", "Check", "base", "coroutine", "generator"),
        *("handler", "serialize", "respond", "background"),
    ]


def test_dependencies_in_threads_and_classes_are_parts() -> None:
    assert rows(stack_of(app, "/threads")) == [
        *("routing", "framework", "validate", "sync", "sync_generator", "Pager", "handler", "serialize", "respond"),
    ]


def test_the_body_is_read() -> None:
    parts = rows(stack_of(app, "/items", "POST", json={"name": "a"}))
    assert parts == ["routing", "framework", "read", "validate", "handler", "serialize", "respond"]


def test_a_handler_may_be_refused_its_call() -> None:
    stack = stack_of(app, "/items", "POST", json={}, expect_status=422)
    assert "handler" not in rows(stack)
    assert "validate" in rows(stack)


def test_an_override_has_the_row_by_its_own_name() -> None:
    app = FastAPI()

    async def database() -> None: ...

    async def stand_in() -> None: ...

    @app.get("/", dependencies=[Depends(database)])
    async def home() -> None: ...

    app.dependency_overrides[database] = stand_in
    names = [layer.name for _, layer in stack_of(app).parts]
    assert [name for name in names if ":" in name] == [
        "tests.test_endpoint:test_an_override_has_the_row_by_its_own_name.stand_in"
    ]


def test_dependencies_of_one_name_have_numbers() -> None:
    def dependency() -> Any:
        async def made() -> None: ...

        return made

    app = FastAPI()

    @app.get("/", dependencies=[Depends(dependency()), Depends(dependency())])
    async def home() -> None: ...

    assert [name.partition("#")[2] for name in rows(stack_of(app)) if "made" in name] == ["1", "2"]


def test_handler_and_dependency_say_whose_they_are() -> None:
    layers = {layer.name: layer for _, layer in stack_of(app, "/async").parts}
    assert layers["handler"].qualname == "tests.endpoints.handler"
    assert all(layers[name].origin for name in ("handler", "tests.endpoints:base"))
    assert layers["serialize"].origin is None


def through(function: Any) -> Any:
    """Decorate a function with one that is not async."""

    @functools.wraps(function)
    def wrapper(*arguments: Any, **named: Any) -> Any:
        return function(*arguments, **named)

    return wrapper


def plain_one() -> int:
    return 1


async def async_one() -> int:
    return 1


class Settings:
    @functools.cache  # noqa: B019
    def read(self) -> int:
        return 1


class StandsFor:
    """A decorator that is an object, which says for which function it stands."""

    def __init__(self, function: Any) -> None:
        functools.update_wrapper(self, function)

    async def __call__(self) -> int:
        return 1


@never_awaited
@pytest.mark.usefixtures("collected")
@pytest.mark.parametrize(
    ("dependency", "name", "sync"),
    [
        (functools.cache(plain_one), "plain_one", True),
        (functools.partial(functools.cache(plain_one)), "plain_one", True),
        (Settings().read, "Settings.read", True),
        (StandsFor(plain_one), "plain_one", False),
        (wrapt.FunctionWrapper(plain_one, lambda wrapped, *given: wrapped()), "plain_one", True),
        (through(plain_one), "plain_one", True),
        (through(async_one), "async_one", False),
    ],
)
def test_a_decorated_dependency_has_the_name_of_its_function(dependency: Any, name: str, sync: bool) -> None:
    app = FastAPI()

    @app.get("/", dependencies=[Depends(dependency)])
    async def home() -> None: ...

    (layer,) = [layer for _, layer in stack_of(app).parts if layer.kind == "dependency"]
    assert (layer.name, layer.adapts is not None) == (f"{__name__}:{name}", sync)
    assert layer.origin.own


# ---- Starlette --------------------------------------------------------------------------------------------------


async def coroutine(request: Request) -> Response:
    return JSONResponse({}, background=BackgroundTask(nothing))


def plain(request: Request) -> Response:
    return JSONResponse({})


async def reading(request: Request) -> Response:
    return JSONResponse(await request.json())


class View(HTTPEndpoint):
    async def get(self, request: Request) -> Response:
        return JSONResponse({})

    def post(self, request: Request) -> Response:
        return JSONResponse({})


class Answers:
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await JSONResponse({})(scope, receive, send)


STARLETTE = Starlette(
    routes=[
        Route("/coroutine", coroutine),
        Route("/plain", plain),
        Route("/reading", reading, methods=["POST"]),
        Route("/view", View),
        Route("/partial", functools.partial(coroutine)),
        Mount("/mounted", routes=[Route("/inside", coroutine)]),
        Mount("/app", app=hello),
        Route("/object", Noop(Answers())),
    ]
)
PLAIN = "starlette.responses.PlainTextResponse"
USUAL = ["routing", "framework", "handler", "serialize", "respond"]


@pytest.mark.parametrize(
    ("url", "method", "parts"),
    [
        ("/coroutine", "GET", [*USUAL, "background"]),
        ("/plain", "GET", USUAL),
        ("/reading", "POST", ["routing", "framework", "read", *USUAL[2:]]),
        ("/view", "GET", USUAL),
        ("/view", "POST", USUAL),
        ("/partial", "GET", [*USUAL, "background"]),
        ("/mounted/inside", "GET", [*USUAL, "background"]),
        ("/app/", "GET", ["routing", "handler"]),
        ("/object", "GET", ["handler", "serialize", "respond"]),
    ],
)
def test_the_parts_of_routes_of_starlette(url: str, method: str, parts: list[str]) -> None:
    stack = stack_of(STARLETTE, url, method, json={}) if method == "POST" else stack_of(STARLETTE, url)
    assert (stack.closed, rows(stack)) == (None, parts)


@pytest.mark.parametrize(
    ("app", "url", "method", "status", "content", "parts"),
    [
        (app, "/items", "GET", 405, b"", ["routing"]),
        (app, "/items", "POST", 422, b"{", ["routing", "framework", "read", "serialize", "respond"]),
        (STARLETTE, "/coroutine", "POST", 405, b"", ["routing"]),
        (STARLETTE, "/view", "DELETE", 405, b"", ["routing", "framework", "handler"]),
    ],
)
def test_a_request_that_is_refused_before_its_handler_is_opened(
    app: Any, url: str, method: str, status: int, content: bytes, parts: list[str]
) -> None:
    headers = {"content-type": "application/json"}
    stack = stack_of(app, url, method, content=content, headers=headers, expect_status=status)
    assert (stack.closed, rows(stack)) == (None, parts)


# ---- closed endpoints -------------------------------------------------------------------------------------------

MOVED = "[endpoint-closed]"


def test_an_endpoint_of_no_known_framework_stays_closed() -> None:
    stack = stack_of(Noop(hello))
    assert (stack.parts, stack.closed) == (
        (),
        f"the request came to no route of Django, FastAPI, Litestar or Starlette {MOVED}",
    )


def test_a_router_that_finds_no_route_stays_closed() -> None:
    stack = stack_of(STARLETTE, "/nowhere", expect_status=404)
    assert (stack.parts, stack.closed) == (
        (),
        f"the request came to no route of Django, FastAPI, Litestar or Starlette {MOVED}",
    )


@pytest.mark.parametrize(
    ("gate", "why"),
    [
        (Gate(VALIDATE, "fastapi.routing", ("moved",), needed=True), "has no function fastapi.routing.moved"),
        (
            Gate(VALIDATE, "fastapi.encoders", ("jsonable_encoder",), needed=True, after=()),
            "did not call fastapi.encoders.jsonable_encoder",
        ),
    ],
)
def test_a_release_whose_functions_have_moved_closes_the_endpoint(
    gate: Gate, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(GATES, "fastapi", (gate,))
    measurement = measured(app, inside=True, url="/ready", settings={"timed": False})
    assert measurement.endpoint.closed is not None
    assert why in measurement.endpoint.closed
    assert not measurement.endpoint.parts


class CachedRoute(APIRoute):
    """A route that answers by itself, unless it is asked for a fresh answer."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        original, known = super().get_route_handler(), Response("1", media_type="application/json")

        async def handler(request: Request) -> Response:
            if "known" in request.query_params:
                return known
            if "made" in request.query_params:
                return Response("1", media_type="application/json")
            if "called" in request.query_params:
                await run_endpoint_function(dependant=self.dependant, values={}, is_coroutine=True)
            return known if "called" in request.query_params else await original(request)

        return handler


@pytest.mark.parametrize(
    ("query", "parts"),
    [
        ("", ["validate", "handler", "serialize"]),
        ("called", ["handler"]),
        ("made", ["serialize"]),
        ("known", []),
    ],
)
def test_a_route_with_a_handler_of_its_own_has_the_parts_that_it_calls(query: str, parts: list[str]) -> None:
    custom = FastAPI()
    custom.router.route_class = CachedRoute

    @custom.get("/")
    async def handler() -> int:
        return 1

    stack = stack_of(custom, f"/?{query}")
    assert (stack.closed, rows(stack)) == (None, ["routing", "framework", *parts, "respond"])


def test_an_app_that_cannot_be_read_closes_the_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(arguments: Any) -> Iterator[Any]:
        yield from arguments["dependant"].calls

    monkeypatch.setattr(fastapi_seams, "dependency_hooks", broken)
    closed = stack_of(app, "/async").closed
    assert closed is not None
    assert "its parts could not be read (AttributeError: 'Dependant' object has no" in closed


# ---- what a request shows beside figures ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("app", "url", "converts"),
    [(app, "/async", True), (app, "/ready", False), (app, "/page", False), (STARLETTE, "/coroutine", False)],
)
def test_what_the_handler_returns_is_converted_or_sent(app: Any, url: str, converts: bool) -> None:
    measurement = measured(app, inside=True, url=url, settings={"timed": False})
    assert measurement.endpoint.observed.converts == converts


def test_sync_dependencies_and_handlers_say_why_they_go_to_a_thread() -> None:
    def names(url: str) -> set[str]:
        return {layer.name.rpartition(":")[2] for _, layer in stack_of(app, url).parts if layer.adapts}

    assert names("/threads") == {"sync", "sync_generator", "Pager", "handler"}
    assert names("/async") == set()


@pytest.mark.parametrize(("url", "sync"), [("/plain", True), ("/coroutine", False), ("/partial", False)])
def test_a_sync_handler_of_starlette_says_so(url: str, sync: bool) -> None:
    adapts = {layer.name: layer.adapts for _, layer in stack_of(STARLETTE, url).parts}
    assert (adapts["handler"] is not None) == sync


@pytest.mark.parametrize(("method", "sync"), [("GET", False), ("POST", True)])
def test_a_sync_method_of_a_view_says_so(method: str, sync: bool) -> None:
    adapts = {layer.name: layer.adapts for _, layer in stack_of(STARLETTE, "/view", method).parts}
    assert (adapts["handler"] is not None) == sync


def of_kind(kind: str) -> Any:
    """Make a dependency."""

    async def coroutine() -> None: ...

    async def generator() -> AsyncIterator[None]:
        yield

    def sync() -> None: ...

    def sync_generator() -> Iterator[None]:
        yield

    class Sync: ...

    class Check:
        async def __call__(self) -> None: ...

    made = {dependency.__name__: dependency for dependency in (coroutine, generator, sync, sync_generator, Sync)}
    return Check() if kind == "Check" else made[kind]


KINDS = ["coroutine", "generator", "sync", "sync_generator", "Sync", "Check"]


def calls_of(first: Any, second: Any) -> list[int]:
    """Return how often FastAPI called those dependencies that it called several times."""
    app = FastAPI()

    @app.get("/")
    async def home(first: object = first, second: object = second) -> None: ...

    observed = stack_of(app).observed
    return [*observed.calls.values()]


@pytest.mark.parametrize("kind", KINDS)
def test_calls_of_a_dependency_that_is_not_shared_are_counted(kind: str) -> None:
    made = of_kind(kind)
    assert calls_of(Depends(made), Depends(made)) == []
    assert calls_of(Depends(made), Depends(made, use_cache=False)) == [2]


@pytest.mark.parametrize("kind", KINDS)
def test_dependencies_of_the_same_code_are_not_taken_for_one(kind: str) -> None:
    assert calls_of(Depends(of_kind(kind)), Depends(of_kind(kind))) == []


@never_awaited
@pytest.mark.usefixtures("collected")
def test_partials_of_one_function_are_not_taken_for_one_dependency() -> None:
    made = of_kind("coroutine")
    assert calls_of(Depends(functools.partial(made)), Depends(functools.partial(made))) == []


def test_calls_by_the_app_itself_are_not_those_of_fastapi() -> None:
    made = of_kind("coroutine")

    async def calling() -> None:
        await made()

    assert calls_of(Depends(made), Depends(calling)) == []


def test_a_route_that_is_entered_twice_solves_its_dependencies_twice() -> None:
    class Twice(Noop):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            async def dropped(message: Any) -> None: ...

            await self.app(dict(scope), receive, dropped)
            await self.app(scope, receive, send)

    made, app = of_kind("coroutine"), FastAPI()

    @app.get("/", dependencies=[Depends(made)])
    async def home() -> None: ...

    observed = stack_of(Twice(app)).observed
    assert observed.calls == {}


def rebuilt(app: FastAPI) -> tuple[int, int, int]:
    """Return the number of overrides, how often a dependency is said to be rebuilt, and how often one was."""
    again: list[object] = []
    real = dependencies.get_dependant

    def counting(**given: Any) -> Any:
        again.append(given["call"])
        patch.setattr(dependencies, "get_dependant", real)  # which calls itself for the dependencies inside
        try:
            return real(**given)
        finally:
            patch.setattr(dependencies, "get_dependant", counting)

    with pytest.MonkeyPatch.context() as patch:
        stack = stack_of(app)
        patch.setattr(dependencies, "get_dependant", counting)
        TestClient(app).get("/")
    return stack.observed.overrides, stack.observed.rebuilt, len(again)


def test_dependencies_that_overrides_rebuild_are_counted() -> None:
    app = FastAPI()

    async def base() -> None: ...

    async def upper(base: object = Depends(base)) -> None: ...

    @app.get("/")
    async def home(upper: object = Depends(upper), base: object = Depends(base)) -> None: ...

    assert rebuilt(app) == (0, 0, 0)
    app.dependency_overrides[nothing] = nothing
    assert rebuilt(app) == (1, 3, 3)


# ---- counts -----------------------------------------------------------------------------------------------------


def number(counts: Counts | None, quantity: CountedQuantity) -> int:
    count = counts.of(quantity)
    assert count is not None, counts.why
    assert count.exact
    return count.count


@pytest.fixture(scope="module")
def counted() -> Measurement:
    with costs(work, {}):
        return measured(app, inside=True, url="/async", settings={"timed": False})


@pytest.mark.parametrize(
    "quantity",
    ["tasks", "threads", *(pytest.param(quantity, marks=needs(quantity)) for quantity in ("objects", *EXECUTED))],
)
def test_the_parts_add_up_to_the_endpoint(quantity: CountedQuantity, counted: Measurement) -> None:
    parts = [number(part.counts, quantity) for part in counted.endpoint.parts]
    assert sum(parts) == number(counted.ledger.endpoint, quantity)


@needs("py_calls")
def test_each_part_has_its_own_calls(counted: Measurement) -> None:
    with costs(work, MORE):
        measurement = measured(app, inside=True, url="/async", settings={"timed": False})
    added = {
        part.name.rpartition(":")[2]: number(part.counts, "py_calls") - number(before.counts, "py_calls")
        for before, part in zip(counted.endpoint.parts, measurement.endpoint.parts, strict=True)
    }
    # A generator works before and after its `yield`.
    assert added == {**dict.fromkeys(added, 0), **MORE, "generator": 14}


def test_calls_in_threads_belong_to_their_part() -> None:
    measurement = measured(app, inside=True, url="/threads", settings={"timed": False})
    threads = {part.name.rpartition(":")[2]: number(part.counts, "threads") for part in measurement.endpoint.parts}
    assert {name: count for name, count in threads.items() if count} == {
        "sync": 1,
        "sync_generator": 2,
        "Pager": 1,
        "handler": 1,
        # What a handler in a thread returns is validated in a thread.
        "serialize": 1,
    }


@needs("py_calls")
def test_a_template_is_rendered_in_the_part_that_serialises() -> None:
    templates = Jinja2Templates(env=Environment(loader=DictLoader({"page": "{{ work(40) }}"}), autoescape=True))

    async def page(request: Request) -> Response:
        return templates.TemplateResponse(request, "page", {"work": work})

    measurement = measured(Starlette(routes=[Route("/", page)]), inside=True, settings={"timed": False})
    assert number(measurement.endpoint.part("handler").counts, "py_calls") < 40
    assert number(measurement.endpoint.part("serialize").counts, "py_calls") > 40


@needs("py_calls")
@pytest.mark.parametrize("kind", ["generator", "sync_generator"])
def test_both_sides_of_a_decorated_generator_are_in_its_row(kind: str) -> None:
    async def generator() -> AsyncIterator[None]:
        work(40)
        yield
        work(40)

    def sync_generator() -> Iterator[None]:
        work(40)
        yield
        work(40)

    app = FastAPI()

    given: list[object] = []
    decorated = Depends(through(generator if kind == "generator" else sync_generator))

    @app.get("/")
    async def home(one: object = decorated) -> None:
        given.append(one)

    measurement = measured(app, inside=True, settings={"timed": False})
    (part,) = [part for part in measurement.endpoint.parts if part.layer.kind == "dependency"]
    assert part.name.endswith(kind)
    if given[0] is None:  # old releases of FastAPI do not look inside the decorator, and give the generator itself
        assert number(part.counts, "py_calls") > 80


@needs("objects")
def test_a_layer_that_makes_a_response_keeps_its_objects() -> None:
    class Makes(Noop):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            PlainTextResponse("made for nothing")
            await self.app(scope, receive, send)

    inside = Starlette(routes=[Route("/coroutine", coroutine)], middleware=[Middleware(Makes)])
    measurement = measured(inside, inside=True, url="/coroutine", settings={"timed": False})
    rows = {"Makes": measurement.layer("Makes").counts} | {
        part.name: part.counts for part in measurement.endpoint.parts
    }
    made = {name: counts.objects.kinds.get(PLAIN, 0) for name, counts in rows.items() if counts and counts.objects}
    assert made == {**dict.fromkeys(made, 0), "Makes": 1}


# ---- times ------------------------------------------------------------------------------------------------------


@pytest.fixture
def few_nulls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sample each null layer twice: a clock that counts calls has no outliers."""
    monkeypatch.setattr(tests.test_truth_exact, "PER_NULL_LAYER", 2)


def calls_of_parts(app: Any, url: str = "/", **options: Any) -> dict[str, float]:
    """Return what each part takes by a clock that counts calls."""
    names: dict[Any, str] = {}

    def inside(stack: Stack) -> Stack:
        names.update({entry: layer.name.rpartition(":")[2] for entry, layer in stack.parts})
        return stack.inside

    _, estimates = calls(app, url, inside, **options)
    return {name: estimates.split[entry].estimate for entry, name in names.items()}


@pytest.mark.usefixtures("few_nulls")
def test_every_part_has_its_own_calls_by_the_clock() -> None:
    with costs(work, {}):
        before = calls_of_parts(app, "/async")
    with costs(work, MORE):
        after = calls_of_parts(app, "/async")
    added = {name: after[name] - before[name] for name in before}
    assert added == pytest.approx({**dict.fromkeys(added, 0), **MORE, "generator": 14}, abs=0.2)


class Passing(BaseHTTPMiddleware):
    """A layer that runs what is inside it in a task of its own."""

    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        return await call_next(request)


async def waits(request: Request) -> Response:
    for _ in range(3):
        cost("handler")
        await asyncio.sleep(0)
    return Response()


async def streams(request: Request) -> Response:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(3):
            cost("respond")
            await asyncio.sleep(0)
            yield b"piece"

    return StreamingResponse(pieces())


@pytest.mark.usefixtures("few_nulls")
@pytest.mark.parametrize(("handler", "part"), [(waits, "handler"), (streams, "respond")])
def test_parts_that_wait_in_a_task_of_a_layer_outside_have_their_own_calls_by_the_clock(
    handler: Any, part: str
) -> None:
    def parts_of(more: dict[str, int]) -> dict[str, float]:
        with costs(work, more):
            return calls_of_parts(app)

    app = Starlette(routes=[Route("/", handler)], middleware=[Middleware(Passing)])
    before, after = parts_of({}), parts_of({part: 40})
    added = {name: after[name] - before[name] for name in before}
    # Tasks of a stream take turns in one order or another, which takes some calls more or less.
    assert added.pop(part) == pytest.approx(120, abs=9)
    assert added == pytest.approx(dict.fromkeys(added, 0), abs=0.2)


@pytest.mark.usefixtures("few_nulls")
def test_the_messages_of_a_stream_cost_only_the_part_that_sends_or_receives_them() -> None:
    def sending(pieces: int) -> dict[str, float]:
        return calls_of_parts(many, "/body", method="POST", content=bytes(65536 * pieces))

    # A message costs a part at least half a call, so ten of them would be seen in a part that none passes.
    few, sent = calls_of_parts(many, "/stream/2"), calls_of_parts(many, "/stream/12")
    assert few["routing"] == pytest.approx(sent["routing"], abs=2)
    assert 10 < sent["respond"] - few["respond"] < 10 * 4
    single, received = sending(1), sending(11)
    assert single["routing"] == pytest.approx(received["routing"], abs=2)
    assert 10 < received["handler"] - single["handler"] < 10 * 4


many = FastAPI()


@many.get("/stream/{number}")
async def streamed(number: int) -> Response:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(number):
            yield b"piece"

    return StreamingResponse(pieces())


@many.post("/body")
async def counted_body(request: Request) -> int:
    return sum([len(piece) async for piece in request.stream()])


@pytest.mark.live
@readings
def test_every_part_takes_what_it_spins() -> None:
    def taken(us: dict[str, int]) -> Measurement:
        with costs(spin, us):
            return measured(app, inside=True, url="/async", settings={"max_time_s": 1.0})

    def by_name(measurement: Measurement) -> dict[str, Estimate]:
        return {part.name.rpartition(":")[2]: part.us for part in measurement.endpoint.parts if part.us}

    own, measurement = by_name(taken({})), taken(SPINS)
    assert measurement.books is not None
    us = by_name(measurement)
    for name, most in SPINS.items():
        truth = 2 * most if name == "generator" else most
        assert near(us[name] - own[name], truth, most_us=25), name
        assert us[name].high > truth * 0.98
    assert near(us["respond"] - own["respond"], 0, most_us=25)
    assert measurement.books.endpoint is not None
    whole = measurement.books.endpoint
    assert near(functools.reduce(operator.add, us.values()) - whole, 0, most_us=0.1 * whole.estimate)


@pytest.mark.live
@readings
def test_what_a_stream_takes_is_in_respond() -> None:
    with costs(spin, {"respond": 200}):
        measurement = measured(app, inside=True, url="/stream", settings={"max_time_s": 1.0})
    us = {part.name: part.us for part in measurement.endpoint.parts if part.us}
    assert us["respond"].high > 3 * 200
    assert us["respond"].estimate > 2.5 * 200
    assert all(near(part_us, 0, most_us=150) for name, part_us in us.items() if name != "respond"), us


@pytest.mark.live
@readings
def test_parts_in_threads_take_what_they_spin_and_their_hops() -> None:
    with costs(spin, {"sync": 2000, "sync_generator": 1000, "handler": 3000}):
        measurement = measured(app, inside=True, url="/threads", settings={"max_time_s": 1.0})
    us = {part.name.rpartition(":")[2]: part.us for part in measurement.endpoint.parts if part.us}
    # No upper bounds: a hop to a thread may wait for a processor.
    for name, truth in {"sync": 2000, "sync_generator": 2000, "handler": 3000}.items():
        assert us[name].high > truth
        assert us[name].estimate > 0.9 * truth
    assert near(us["routing"], 0, most_us=500)
    assert near(us["framework"], 0, most_us=1000)


# ---- budgets ----------------------------------------------------------------------------------------------------


# Verdicts far from their budgets need no precise figures.
ONE_LOOK = FAST | {"precision_time_s": 0.0, "parts_time_s": 0.0}


def judged(app: Any, url: str, **budgets: Any) -> Measurement:
    schedule = Schedule(**ONE_LOOK)
    return measured(app, inside=True, url=url, schedule=schedule, settings={"budgets": Budgets(**budgets)})


def test_parts_the_whole_endpoint_and_what_is_outside_are_judged_by_their_budgets() -> None:
    parts = {"handler": {"us": 20.0, "tasks": 0}, "background": {"us": 50_000.0}}
    with costs(spin, {"handler": 400}):
        measurement = judged(Noop(app), "/async", endpoint=parts, endpoint_us=20.0, outside_us=50_000.0)
    verdicts = {part.name: part.verdict for part in measurement.endpoint.parts if part.judged}
    assert verdicts == {"handler": "fail", "background": "pass"}
    assert [measurement.frames[frame].verdict for frame in ("outside", "endpoint")] == ["pass", "fail"]
    assert measurement.verdict == "fail"
    assert measurement.over
    text = " ".join(failure(measurement, 100).split())
    assert "handler takes" in text
    assert "endpoint={'handler': " in text
    assert "(endpoint) takes" in text
    assert "set endpoint_us=" in text


def test_a_part_that_the_request_does_not_have_costs_nothing() -> None:
    measurement = judged(app, "/ready", endpoint={"background": {"us": 5.0, "tasks": 0}})
    assert [part.verdict for part in measurement.endpoint.parts if part.judged] == ["pass"]
    assert measurement.verdict == "pass"


def test_a_budget_of_an_unknown_part_names_the_parts() -> None:
    with pytest.raises(LayerNameError, match="handler") as raised:
        judged(app, "/ready", endpoint={"handle": {"us": 5.0}})
    assert "names a part 'handle' that the endpoint does not have" in str(raised.value)
    assert "background" in str(raised.value)


def test_a_dependency_is_named_with_and_without_its_module() -> None:
    bounds = {name: {"tasks": 0} for name in ("tests.endpoints:base", "tests.endpoints.coroutine", "generator")}
    measurement = measured(
        app, inside=True, url="/async", settings={"budgets": Budgets(endpoint=bounds), "timed": False}
    )
    names = [part.layer.aliases for part in measurement.endpoint.parts if part.judged]
    assert len(names) == 3


def test_a_dependency_named_like_a_part_does_not_get_the_budget_of_the_part() -> None:
    async def validate() -> int:
        return 1

    own = FastAPI()

    @own.get("/", dependencies=[Depends(validate)])
    async def handler() -> int:
        return 1

    bounds = {"validate": {"tasks": 0}, "handler": {"tasks": 0}}
    measurement = measured(own, inside=True, url="/", settings={"budgets": Budgets(endpoint=bounds), "timed": False})
    assert [part.name for part in measurement.endpoint.parts if part.judged] == ["validate", "handler"]


def test_a_budget_of_a_part_of_a_closed_endpoint_is_undecided() -> None:
    measurement = judged(Noop(hello), "/", endpoint={"serialize": {"us": 50.0}})
    assert measurement.verdict == "undecided"
    (part,) = measurement.endpoint.parts
    assert part.judged["us"].reason == measurement.endpoint.closed


def test_a_budget_of_an_endpoint_that_was_not_entered_is_undecided() -> None:
    class Answers(Noop):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await respond(send)

    measurement = judged(Answers(app), "/", endpoint_us=50.0)
    assert measurement.endpoint is not None
    assert "a layer outside answered" in str(measurement.frames["endpoint"].judged["us"].reason)


# ---- reports ----------------------------------------------------------------------------------------------------


def test_parts_stand_below_the_endpoint_in_a_verbose_table(counted: Measurement) -> None:
    names = [line.text.partition("   ")[0].strip() for line in table(view(counted), 120, verbose=True)]
    first = names.index("(endpoint)")
    assert names[first + 1 : first + 3] == ["routing", "framework"]
    assert "routing" not in [line.text.strip().partition(" ")[0] for line in table(view(counted), 120)]


def test_a_part_is_found_by_its_name(counted: Measurement) -> None:
    assert counted.endpoint.part("serialize").counts is not None
    with pytest.raises(KeyError, match=r"no part 'serialise'\. Did you mean 'serialize'"):
        counted.endpoint.part("serialise")


def test_parts_survive_the_file(counted: Measurement) -> None:
    again = codec.result(codec.measurement("test", counted))
    assert [part.name for part in again.endpoint.parts] == [part.name for part in counted.endpoint.parts]
    assert codec.measurement("test", again)["endpoint"] == codec.measurement("test", counted)["endpoint"]


SHOP = """
import pytest
from fastapi import Depends, FastAPI
from time import perf_counter_ns

app = FastAPI()


async def get_db():
    end = perf_counter_ns() + 300_000
    while perf_counter_ns() < end:
        pass


@app.get("/orders", dependencies=[Depends(get_db)])
async def orders() -> dict[str, int]:
    return {"a": 1}


@pytest.fixture
def mw_budget_app():
    return app
"""


@pytest.mark.parametrize(
    ("marker", "said"),
    [
        ('endpoint={"test_shop:get_db": 20}', "*test_shop:get_db takes*its budget is 20 µs*"),
        ('endpoint={"get_dbs": 20}', "*names a part 'get_dbs' that the endpoint does not have. Did you mean*"),
        (
            'endpoint={"handler": {"rps_share": "5%"}}',
            "*endpoint?'handler'? has a budget of 'rps_share'. The quantities are: us, busy_us, p95_us, *",
        ),
        ('endpoint={"handler": {"us_per_message": 5}}', "*has a budget of 'us_per_message'.*The quantities are: us, *"),
        ("endpoint=5", "*give a mapping of parts of the endpoint to microseconds or to budgets*"),
    ],
)
def test_a_marker_can_bound_the_parts(pytester: pytest.Pytester, marker: str, said: str) -> None:
    pytester.makepyfile(
        test_shop=f"{SHOP}\n\n@pytest.mark.mw_budget({marker})\ndef test_it(mw_budget):\n    mw_budget.get('/orders')\n"
    )
    result = run_inside(pytester, "--mw-budget", "--mw-budget-flamegraph=never", plugins=[Scheduled(**ONE_LOOK)])
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([said])


def test_lines_of_the_configuration_can_bound_the_parts(pytester: pytest.Pytester) -> None:
    pytester.makeini(
        "[pytest]\nmw_budget_endpoint =\n    test_shop:get_db = us: 20_000, tasks: 0\n    serialize = 9000\n"
    )
    pytester.makepyfile(test_shop=f"{SHOP}\n\ndef test_it(mw_budget):\n    mw_budget.get('/orders')\n")
    result = run_inside(pytester, "--mw-budget")
    result.assert_outcomes(passed=1)


def test_parts_are_measured_only_if_somebody_reads_them(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_shop=f"""{SHOP}

@pytest.mark.mw_budget(tasks=5)
def test_it(mw_budget, pytestconfig):
    endpoint = mw_budget.get("/orders").endpoint
    assert bool(endpoint) == bool(pytestconfig.getoption("verbose"))
"""
    )
    for verbose in ((), ("-v",)):
        result = run_inside(pytester, "--mw-budget", *verbose)
        result.assert_outcomes(passed=1)


def test_a_budget_may_be_of_another_request_of_the_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_shop=f"""{SHOP}

@app.get("/bare")
async def bare() -> int:
    return 1


@pytest.mark.mw_budget(endpoint={{"test_shop:get_db": {{"tasks": 0}}}})
def test_it():
    from starlette.testclient import TestClient

    client = TestClient(app)
    client.get("/bare")
    client.get("/orders")


@pytest.mark.mw_budget(endpoint={{"test_shop:get_db": {{"tasks": 0}}}})
def test_none():
    from starlette.testclient import TestClient

    TestClient(app).get("/bare")
"""
    )
    result = run_inside(pytester, "--mw-budget")
    result.assert_outcomes(passed=1, failed=1)


def test_the_page_and_markdown_have_the_parts(counted: Measurement) -> None:
    run = one_run(counted, nodeid="test")
    page, text = html_page(run), markdown(run)
    assert "Counts inside the endpoint" in page
    assert "tests.endpoints:generator" in page.replace("<wbr>", "")
    assert text.index("(endpoint)") < text.index("&emsp;<code>routing</code>") < text.index("(total)")
