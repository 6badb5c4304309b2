"""The parts of an endpoint of Django: which there are, their counts and times."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pytest_mwbudget.asgi.frameworks.gates import Gate
from pytest_mwbudget.asgi.opening import GATES
from pytest_mwbudget.model.endpoint import ROUTING
from pytest_mwbudget.model.quantities import EXECUTED, CountedQuantity
from pytest_mwbudget.model.results import Measurement

from .apps import measured, needs, stack_of
from .conftest import needs as needs_package
from .endpoints import cost, costs, spin, work
from .test_endpoint import number, rows
from .test_truth_exact import calls

needs_package("django", "its endpoints are opened", group="frameworks")

from asgiref.sync import markcoroutinefunction  # noqa: E402
from django.core.handlers.asgi import ASGIHandler  # noqa: E402
from django.http import HttpResponse, JsonResponse, StreamingHttpResponse  # noqa: E402
from django.shortcuts import render  # noqa: E402
from django.template.response import SimpleTemplateResponse  # noqa: E402
from django.test import override_settings  # noqa: E402
from django.urls import path, register_converter  # noqa: E402
from django.views import View  # noqa: E402

from .readings import readings  # noqa: E402
from .test_frameworks_django import configure  # noqa: E402

MORE = {"routing": 3, "handler": 5, "serialize": 7, "process_view": 11}
TEMPLATES = {
    "BACKEND": "django.template.backends.django.DjangoTemplates",
    "OPTIONS": {"loaders": [("django.template.loaders.locmem.Loader", {"page.html": "{{ item }}"})]},
}


class Number:
    """A converter of a path, which Django calls to find the route."""

    regex = "[0-9]+"

    def to_python(self, value: str) -> int:
        cost("routing")
        return int(value)

    def to_url(self, value: int) -> str:
        return str(value)


class Rendered(SimpleTemplateResponse):
    @property
    def rendered_content(self) -> str:
        cost("serialize")
        return "rendered"


class Item:
    def __str__(self) -> str:
        cost("serialize")
        return "item"


async def numbered(request: Any, number: int) -> Any:
    def pieces() -> Iterator[bytes]:
        cost("serialize")
        yield b"piece"

    cost("handler")
    return HttpResponse(pieces())


async def rendered(request: Any) -> Any:
    cost("handler")
    return Rendered("unused")


def in_thread(request: Any) -> Any:
    cost("handler")
    return JsonResponse({"a": 1})


def page(request: Any) -> Any:
    cost("handler")
    return render(request, "page.html", {"item": Item()})


async def body(request: Any) -> Any:
    return HttpResponse(request.body)


async def stream(request: Any) -> Any:
    async def pieces() -> Any:
        for _ in range(3):
            cost("respond")
            yield b"piece"

    return StreamingHttpResponse(pieces())


class Shown(View):
    async def get(self, request: Any) -> Any:
        cost("handler")
        return HttpResponse("shown")


register_converter(Number, "counted")
urlpatterns = [
    path("numbered/<counted:number>", numbered),
    path("rendered", rendered),
    path("thread", in_thread),
    path("page", page),
    path("body", body),
    path("stream", stream),
    path("shown", Shown.as_view()),
]


class Layer:
    """An async middleware with a sync `process_view`, which Django runs in a thread inside the endpoint."""

    sync_capable, async_capable = False, True

    def __init__(self, get_response: Any) -> None:
        self.get_response = get_response
        markcoroutinefunction(self)

    async def __call__(self, request: Any) -> Any:
        return await self.get_response(request)

    def process_view(self, request: Any, view: Any, arguments: Any, named: Any) -> None:
        cost("process_view")
        HttpResponse("made for nothing")


class AsyncLayer(Layer):
    async def process_view(self, request: Any, view: Any, arguments: Any, named: Any) -> None:  # type: ignore[override]
        cost("process_view")
        HttpResponse("made for nothing")


class SyncLayer:
    def __init__(self, get_response: Any) -> None:
        self.get_response = get_response

    def __call__(self, request: Any) -> Any:
        return self.get_response(request)


STACKS: dict[str, list[type]] = {"none": [], "async": [AsyncLayer], "mixed": [Layer], "sync": [Layer, SyncLayer]}


@pytest.fixture(autouse=True, scope="module")
def configured() -> Iterator[None]:
    configure()
    with override_settings(ROOT_URLCONF=__name__, TEMPLATES=[TEMPLATES]):
        yield


def app(stack: str = "async") -> Any:
    with override_settings(MIDDLEWARE=[f"{__name__}.{layer.__name__}" for layer in STACKS[stack]]):
        return ASGIHandler()


# ---- which parts there are --------------------------------------------------------------------------------------


@pytest.mark.parametrize("stack", ["async", "mixed", "sync"])
@pytest.mark.parametrize("url", ["/numbered/1", "/rendered", "/thread", "/page", "/shown"])
def test_the_parts_inside_middlewares(stack: str, url: str) -> None:
    discovered = stack_of(app(stack), url)
    assert (discovered.closed, rows(discovered)) == (None, ["routing", "framework", "handler", "serialize"])
    assert [layer.name for _, layer in discovered.layers] == [layer.__name__ for layer in STACKS[stack]]


def test_without_middlewares_reading_and_sending_are_parts_too() -> None:
    parts = ["routing", "framework", "read", "handler", "serialize", "respond"]
    assert rows(stack_of(app("none"), "/shown")) == parts
    assert rows(stack_of(app("none"), "/stream")) == parts


def test_a_view_that_reads_the_body_has_a_part_for_it() -> None:
    assert rows(stack_of(app(), "/body")) == ["routing", "framework", "read", "handler", "serialize"]


def test_a_request_without_a_route_has_no_handler() -> None:
    stack = stack_of(app(), "/nowhere", expect_status=404)
    assert stack.closed is None
    assert "handler" not in rows(stack)


def test_a_mounted_project_is_opened() -> None:
    starlette = pytest.importorskip("starlette.applications")
    routing = pytest.importorskip("starlette.routing")
    for stack in ("none", "async"):
        mounted = starlette.Starlette(routes=[routing.Mount("/mounted", app=app(stack))])
        discovered = stack_of(mounted, "/mounted/shown")
        assert discovered.closed is None
        assert {"routing", "framework", "handler", "serialize"} <= {*rows(discovered)}


def test_a_sync_view_says_why_it_goes_to_a_thread() -> None:
    def adapts(url: str) -> str | None:
        return {layer.name: layer.adapts for _, layer in stack_of(app(), url).parts}["handler"]

    assert adapts("/thread") == "it is not async, so Django calls it in a thread"
    assert adapts("/shown") is None


def test_a_view_says_whose_it_is() -> None:
    layers = {layer.name: layer for _, layer in stack_of(app(), "/shown").parts}
    assert layers["handler"].qualname == f"{__name__}.Shown"
    assert layers["handler"].origin


@pytest.mark.parametrize(
    ("gate", "why"),
    [
        (Gate(ROUTING, "django.core", ("moved",), needed=True), "has no function django.core.moved"),
        (Gate(ROUTING, "django.urls", ("reverse",), needed=True, after=()), "did not call django.urls.reverse"),
    ],
)
def test_a_release_whose_functions_have_moved_closes_the_endpoint(
    gate: Gate, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(GATES, "django", (*GATES["django"], gate))
    measurement = measured(app(), inside=True, url="/shown", settings={"timed": False})
    assert measurement.endpoint.closed is not None
    assert why in measurement.endpoint.closed


# ---- counts -----------------------------------------------------------------------------------------------------


def counted(url: str, stack: str) -> Measurement:
    return measured(app(stack), inside=True, url=url, settings={"timed": False})


def of_rows(found: Measurement, quantity: CountedQuantity) -> dict[str, int]:
    """Return the counts of the parts and of the layers."""
    every = [*found.endpoint.parts, *found.layers]
    return {row.name: number(row.counts, quantity) for row in every}


@pytest.fixture(scope="module")
def with_no_work(configured: None) -> Measurement:
    with costs(work, {}):
        return counted("/numbered/1", "async")


def add_up(found: Measurement, quantity: CountedQuantity) -> None:
    parts = [number(part.counts, quantity) for part in found.endpoint.parts]
    assert sum(parts) == number(found.ledger.endpoint, quantity)


@pytest.mark.parametrize(
    "quantity",
    ["tasks", "threads", *(pytest.param(quantity, marks=needs(quantity)) for quantity in ("objects", *EXECUTED))],
)
def test_the_parts_add_up_to_the_endpoint(quantity: CountedQuantity, with_no_work: Measurement) -> None:
    add_up(with_no_work, quantity)


# Objects and calls differ from request to request where threads take part.
@pytest.mark.parametrize(("stack", "url"), [("none", "/numbered/1"), ("mixed", "/thread"), ("sync", "/rendered")])
def test_the_tasks_and_threads_of_parts_add_up(stack: str, url: str) -> None:
    measurement = counted(url, stack)
    add_up(measurement, "tasks")
    add_up(measurement, "threads")


@needs("py_calls")
def test_each_row_has_its_own_calls(with_no_work: Measurement) -> None:
    before = of_rows(with_no_work, "py_calls")
    with costs(work, MORE):
        after = of_rows(counted("/numbered/1", "async"), "py_calls")
    added = {name: after[name] - before[name] for name in after if after[name] != before[name]}
    assert added == {"routing": 3, "handler": 5, "serialize": 7, "AsyncLayer": 11}


@pytest.mark.parametrize(
    ("stack", "url", "threads"),
    [
        ("async", "/shown", {}),
        ("async", "/rendered", {"serialize": 1}),
        ("async", "/thread", {"handler": 1}),
        ("mixed", "/page", {"handler": 1, "Layer": 1}),
        ("mixed", "/rendered", {"serialize": 1, "Layer": 1}),
        ("sync", "/thread", {"handler": 1, "Layer": 1, "SyncLayer": 1}),
    ],
)
def test_threads_belong_to_their_row(stack: str, url: str, threads: dict[str, int]) -> None:
    counts = of_rows(counted(url, stack), "threads")
    assert {name: count for name, count in counts.items() if count} == threads


@pytest.mark.parametrize("stack", ["mixed", "sync"])
def test_layers_have_the_same_threads_with_and_without_parts(stack: str) -> None:
    def threads(*, inside: bool) -> dict[str, int]:
        measurement = measured(app(stack), inside=inside, url="/thread", settings={"timed": False})
        return {layer.name: number(layer.counts, "threads") for layer in measurement.layers}

    assert threads(inside=True) == threads(inside=False)


# ---- times ------------------------------------------------------------------------------------------------------


def test_every_part_has_its_own_calls_by_the_clock() -> None:
    def ticks(numbers: dict[str, int]) -> dict[str, float]:
        with costs(work, numbers):
            _, estimates = calls(handler, "/numbered/1", lambda stack: stack.inside)
        return {layer.name: estimates.split[entry].estimate for entry, layer in stack_of(handler, "/numbered/1").parts}

    handler = app()
    before, after = ticks({}), ticks(MORE)
    assert {name: after[name] - before[name] for name in after} == pytest.approx(
        {"routing": 3, "framework": 0, "handler": 5, "serialize": 7}, abs=0.2
    )


@pytest.mark.live
@readings
@pytest.mark.parametrize("stack", ["async", "sync"])
def test_every_part_takes_what_it_spins(stack: str) -> None:
    spins = {"routing": 300, "handler": 500, "serialize": 400, "process_view": 600}
    with costs(spin, {}):
        without = us_of("/numbered/1", stack)
    with costs(spin, spins):
        us = us_of("/numbered/1", stack)
    added = {name: us[name] - without[name] for name in us}
    for name in ("routing", "handler"):
        assert spins[name] * 0.9 < added[name] < spins[name] * 1.1 + 40, name
    # A response is rendered in a thread, which may wait for a processor.
    assert added["serialize"] > spins["serialize"] * 0.8
    # `process_view` belongs to the middleware.
    assert added["framework"] < 300


@pytest.mark.live
@readings
def test_a_view_in_a_thread_takes_what_it_spins_and_its_hop() -> None:
    with costs(spin, {"handler": 3000}):
        us = us_of("/thread", "async")
    assert us["handler"] > 3000
    assert us["routing"] < 500


def us_of(url: str, stack: str) -> dict[str, float]:
    measurement: Any = measured(app(stack), inside=True, url=url, settings={"max_time_s": 1.0})
    return {part.name: part.us.estimate for part in measurement.endpoint.parts if part.us}
