"""The parts of an endpoint of Litestar: which there are, their counts and times."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pytest_mwbudget.analysis.event_log import spent
from pytest_mwbudget.asgi.frameworks.gates import Gate
from pytest_mwbudget.asgi.opening import GATES
from pytest_mwbudget.asgi.stack import Stack
from pytest_mwbudget.model.endpoint import HANDLER, RESPOND, SERIALIZE
from pytest_mwbudget.model.quantities import EXECUTED, CountedQuantity
from pytest_mwbudget.model.results import Measurement
from pytest_mwbudget.model.stack import owner_of, parts_of
from pytest_mwbudget.timing.probes import Probes

from .apps import Noop, caller, discovered, measured, names_of, needs, stack_of
from .conftest import needs as needs_package
from .endpoints import costs, spin, work
from .test_endpoint import number, rows
from .test_truth_exact import calls

needs_package("litestar", "its endpoints are opened", group="frameworks")

from litestar import Litestar  # noqa: E402
from litestar.middleware import DefineMiddleware  # noqa: E402

try:
    from litestar.middleware import ASGIMiddleware
except ImportError:
    ASGIMiddleware = None  # type: ignore[assignment, misc]

from .endpoints_litestar import HANDLERS, app  # noqa: E402
from .readings import readings  # noqa: E402

MORE = {"guard": 2, "before": 3, "base": 5, "coroutine": 7, "inline": 11, "generator": 13, "handler": 17}
MORE |= {"serialize": 19, "after": 23, "background": 29, "last": 31}
TWICE = {"generator"}
SPINS = {"guard": 80, "base": 100, "coroutine": 150, "inline": 120, "generator": 110, "handler": 300}
SPINS |= {"serialize": 250, "after": 90, "background": 170, "last": 130}


# ---- which parts there are --------------------------------------------------------------------------------------


def test_the_parts_of_a_route_with_dependencies_guards_and_hooks() -> None:
    assert rows(stack_of(app, "/async")) == [
        *("routing", "framework", "validate", "guard", "before", "base", "coroutine", "inline", "generator"),
        *("after", "last", "handler", "serialize", "respond", "background"),
    ]


@pytest.mark.skipif(ASGIMiddleware is None, reason="it came with litestar 2.15")
def test_a_middleware_of_litestar_is_one_layer_also_if_it_answers() -> None:
    class Passing(ASGIMiddleware):  # type: ignore[misc, unused-ignore]
        async def handle(self, scope: Any, receive: Any, send: Any, next_app: Any) -> None:
            await next_app(scope, receive, send)

    class Refusing(ASGIMiddleware):  # type: ignore[misc, unused-ignore]
        async def handle(self, scope: Any, receive: Any, send: Any, next_app: Any) -> None:
            await send({"type": "http.response.start", "status": 401, "headers": []})
            await send({"type": "http.response.body", "body": b""})

    through = Litestar(HANDLERS, openapi_config=None, logging_config=None, middleware=[Passing(), Passing()])
    assert [name for name in names_of(through, "/view") if "Passing" in name] == ["Passing#1", "Passing#2"]
    assert not any(name.startswith("function") for name in names_of(through, "/view"))
    refusing = Litestar(HANDLERS, openapi_config=None, logging_config=None, middleware=[Refusing(), Passing()])
    stack = stack_of(refusing, "/view", expect_status=401)
    assert stack.endpoint is None
    entered = {layer.name: layer.entered for _, layer in stack.layers}
    assert (entered["Refusing"], entered["Passing"]) == (True, False)


def test_routing_outside_a_middleware_is_no_part() -> None:
    inside = Litestar(HANDLERS, openapi_config=None, logging_config=None, middleware=[DefineMiddleware(Noop)])
    assert rows(stack_of(inside, "/view")) == ["framework", "handler", "serialize", "respond"]


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("/beside", {"routing", "framework", "validate", "base", "sync", "handler", "serialize", "respond"}),
        ("/stream", {"routing", "framework", "handler", "serialize", "respond"}),
        ("/view", {"routing", "framework", "handler", "serialize", "respond"}),
    ],
)
def test_the_parts_of_other_routes(url: str, parts: set[str]) -> None:
    stack = stack_of(app, url)
    assert (stack.closed, {*rows(stack)}) == (None, parts)


def test_the_body_is_read() -> None:
    parts = rows(stack_of(app, "/items", "POST", json={"name": "a"}))
    assert parts == ["routing", "framework", "read", "validate", "handler", "serialize", "respond"]


def test_the_answer_to_an_exception_has_parts_too() -> None:
    stack = stack_of(app, "/items", "POST", json={}, expect_status=400)
    assert (stack.closed, rows(stack)) == (None, ["framework", "serialize", "respond"])


def test_what_runs_in_threads_says_so() -> None:
    def why(url: str) -> dict[str, str | None]:
        return {layer.name.rpartition(":")[2]: layer.adapts for _, layer in stack_of(app, url).parts}

    in_thread = "it has sync_to_thread=True, so Litestar calls it in a thread"
    assert {name for name, adapts in why("/threads").items() if adapts == in_thread} == {"sync", "handler"}
    assert not any(why("/async").values())


def test_a_handler_says_whose_it_is() -> None:
    layers = {layer.name: layer for _, layer in stack_of(app, "/view").parts}
    assert layers["handler"].qualname == "tests.endpoints_litestar.Views.show"
    assert layers["handler"].origin


# ---- closed endpoints -------------------------------------------------------------------------------------------


def test_a_mounted_app_stays_closed() -> None:
    closed = stack_of(app, "/mounted").closed
    assert closed is not None
    assert "came to no route of Django, FastAPI, Litestar or Starlette" in closed


@pytest.mark.parametrize(
    ("gate", "why"),
    [
        (
            Gate(SERIALIZE, "litestar.routes.http", ("moved",), needed=True),
            "has no function litestar.routes.http.moved",
        ),
        (
            Gate(SERIALIZE, "litestar.utils", ("join_paths",), needed=True, after=(HANDLER, RESPOND)),
            "did not call litestar.utils.join_paths",
        ),
    ],
)
def test_a_release_whose_functions_have_moved_closes_the_endpoint(
    gate: Gate, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(GATES, "litestar", (*GATES["litestar"], gate))
    measurement = measured(app, inside=True, url="/view", settings={"timed": False})
    assert measurement.endpoint.closed is not None
    assert why in measurement.endpoint.closed
    assert not measurement.endpoint.parts


# ---- counts -----------------------------------------------------------------------------------------------------


def counted(url: str) -> Measurement:
    return measured(app, inside=True, url=url, settings={"timed": False})


def of_parts(found: Measurement, quantity: CountedQuantity) -> dict[str, int]:
    return {part.name.rpartition(":")[2]: number(part.counts, quantity) for part in found.endpoint.parts}


@pytest.fixture(scope="module", params=["/async", "/beside"])
def with_no_work(request: pytest.FixtureRequest) -> Measurement:
    with costs(work, {}):
        return counted(request.param)


@pytest.mark.parametrize(
    "quantity",
    ["tasks", "threads", *(pytest.param(quantity, marks=needs(quantity)) for quantity in ("objects", *EXECUTED))],
)
def test_the_parts_add_up_to_the_endpoint(quantity: CountedQuantity, with_no_work: Measurement) -> None:
    assert sum(of_parts(with_no_work, quantity).values()) == number(with_no_work.ledger.endpoint, quantity)


def more_calls(url: str) -> dict[str, int]:
    """Return the calls that each part makes more if it is told to."""
    with costs(work, {}):
        before = of_parts(counted(url), "py_calls")
    with costs(work, MORE):
        after = of_parts(counted(url), "py_calls")
    return {name: after[name] - before[name] for name in after if after[name] != before[name]}


@needs("py_calls")
def test_each_part_has_its_own_calls() -> None:
    # A generator works before and after its `yield`.
    assert more_calls("/async") == {**MORE, "generator": 26}


@needs("py_calls")
def test_dependencies_side_by_side_have_their_own_calls() -> None:
    assert more_calls("/beside") == {"base": 5, "handler": 17}


@needs("py_calls")
def test_what_follows_the_yields_of_several_dependencies_is_validation() -> None:
    assert more_calls("/twice") == {"base": 5, "generator": 13, "validate": 13, "handler": 17}


def test_dependencies_side_by_side_are_tasks_of_validation() -> None:
    assert {name: count for name, count in of_parts(counted("/beside"), "tasks").items() if count} == {"validate": 2}


def test_threads_belong_to_their_part() -> None:
    threads = of_parts(counted("/threads"), "threads")
    # What follows the `yield` of a sync generator runs in a thread, what precedes it does not.
    assert {name: count for name, count in threads.items() if count} == {"sync": 1, "sync_generator": 1, "handler": 1}


# ---- times ------------------------------------------------------------------------------------------------------


def more_ticks(url: str) -> dict[str, float]:
    """Return by how many calls each part takes longer, by a clock that counts calls."""
    with costs(work, {}):
        _, before = calls(app, url, lambda stack: stack.inside)
    with costs(work, MORE):
        _, after = calls(app, url, lambda stack: stack.inside)
    names = {entry: layer.name.rpartition(":")[2] for entry, layer in stack_of(app, url).parts}
    return {name: after.split[entry].estimate - before.split[entry].estimate for entry, name in names.items()}


def test_every_part_has_its_own_calls_by_the_clock() -> None:
    added = more_ticks("/async")
    assert added == pytest.approx({**dict.fromkeys(added, 0), **MORE, "generator": 26}, abs=0.2)


def test_a_wait_beside_other_dependencies_is_that_of_the_one_that_waits() -> None:
    now_ns = [0]

    def advance(ns: int) -> None:
        now_ns[0] += ns

    async def main() -> dict[str, int]:
        call = await caller(app, url="/waiting")
        stack = (await discovered(call)).inside
        probes = Probes(stack, lambda: now_ns[0], suspending=True)
        with probes.installed(probes.probed), costs(advance, {"waits": 1000}):
            await call(probes.watch)
        used = spent(probes.read(), probes.owners)
        rows = {layer.name.rpartition(":")[2]: entry for entry, layer in stack.layers if entry is not None}
        return {name: sum(used.ns[owner_of(i)] for i in parts_of(stack.entries, row)) for name, row in rows.items()}

    assert {name: ns for name, ns in asyncio.run(main()).items() if ns} == {"waits": 1000}


@pytest.mark.live
@readings
def test_every_part_takes_what_it_spins() -> None:
    with costs(spin, {}):
        without = us_of("/async")
    with costs(spin, SPINS):
        us = us_of("/async")
    for name, most in SPINS.items():
        truth = 2 * most if name in TWICE else most
        assert truth * 0.95 < us[name] - without[name] < truth * 1.1 + 25, name


@pytest.mark.live
@readings
def test_dependencies_side_by_side_take_what_they_spin() -> None:
    with costs(spin, {"base": 400, "sync": 300}):
        us = us_of("/beside")
    assert 400 * 0.95 < us["base"] < 400 * 1.1 + 40
    assert 300 * 0.95 < us["sync"] < 300 * 1.1 + 40
    assert all(part_us < 250 for name, part_us in us.items() if name not in ("base", "sync")), us


@pytest.mark.live
@readings
def test_what_a_stream_takes_is_in_respond() -> None:
    with costs(spin, {"respond": 200}):
        us = us_of("/stream")
    assert us["respond"] > 3 * 200
    assert all(part_us < 200 for name, part_us in us.items() if name != "respond"), us


def us_of(url: str) -> dict[str, float]:
    measurement: Any = measured(app, inside=True, url=url, settings={"max_time_s": 1.0})
    return {part.name.rpartition(":")[2]: part.us.estimate for part in measurement.endpoint.parts if part.us}


def test_the_stack_of_the_app_is_not_changed() -> None:
    stack: Stack = stack_of(app, "/view")
    assert [layer.name for _, layer in stack.layers] == ["ExceptionHandlerMiddleware"]
