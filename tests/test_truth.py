"""Live apps against ground truth, with margins that hold on two busy cores. Finer figures: bench/accuracy.py."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from functools import partial
from time import perf_counter_ns
from typing import Any

import pytest
import wrapt
from fastapi import FastAPI
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware

from pytest_mwbudget.analysis.savings import FEW
from pytest_mwbudget.asgi.request import build_request
from pytest_mwbudget.asgi.websocket import build_connection
from pytest_mwbudget.config.budgets import Bounds, Budgets
from pytest_mwbudget.config.settings import Settings
from pytest_mwbudget.engine import measure
from pytest_mwbudget.model.estimate import Estimate
from pytest_mwbudget.model.results import Measurement
from pytest_mwbudget.timing.host_speed import Machine
from pytest_mwbudget.timing.looks import Environment
from pytest_mwbudget.timing.schedule import Schedule

from .apps import respond
from .readings import BusyError, near, never, readings

pytestmark = pytest.mark.live

# The time limit of a run on a busy machine, and the time that it samples for precision alone.
MOST_S, PRECISE_S = 15.0, 0.7


def environment(**surroundings: Any) -> Environment:
    """Return an environment with less sampling for precision, because the margins here are wider than intervals."""
    return Environment(schedule=Schedule(precision_time_s=PRECISE_S), **surroundings)


class Spin:
    def __init__(self, app: Any, us: int) -> None:
        self.app = app
        self.us = us

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        end = perf_counter_ns() + self.us * 1000
        while perf_counter_ns() < end:
            pass
        await self.app(scope, receive, send)


class Noop:
    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.app(scope, receive, send)


class PassThrough(BaseHTTPMiddleware):
    async def dispatch(self, request: Any, call_next: Any) -> Any:
        return await call_next(request)


def measured(layers: list[Middleware], *, saves: bool = False) -> Measurement:
    app = FastAPI(middleware=layers)

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    request = build_request("GET", "/health", {"headers": {"origin": "http://elsewhere"}})
    return asyncio.run(measure(app, request, Settings(max_time_s=MOST_S), environment(saves=saves)))


def us(measurement: Measurement, name: str) -> Estimate:
    estimate = measurement.layer(name).us
    assert estimate is not None
    return estimate


@readings
@pytest.mark.parametrize("place", ["outermost", "middle", "innermost"])
def test_known_costs_are_read_at_every_place(place: str) -> None:
    neighbours = [Middleware(CORSMiddleware, allow_origins=["*"]), Middleware(GZipMiddleware)]
    known = [Middleware(Spin, us=20), Middleware(Noop), Middleware(Spin, us=200)]
    cut = {"outermost": 0, "middle": 1, "innermost": 2}[place]
    measurement = measured([*neighbours[:cut], *known, *neighbours[cut:]])
    assert near(us(measurement, "Spin#2") - us(measurement, "Spin#1"), 180)
    assert near(us(measurement, "Noop"), 0)


@readings
def test_nested_base_http_middlewares_cost_the_same() -> None:
    measurement = measured([Middleware(PassThrough), Middleware(Noop), Middleware(PassThrough)])
    outer, inner = measurement.layer("PassThrough#1").us, measurement.layer("PassThrough#2").us
    # A margin of 15 % beyond the intervals.
    assert outer.low <= inner.high * 1.15
    assert inner.low <= outer.high * 1.15
    assert 50 < outer.estimate < 2000
    assert near(us(measurement, "Noop"), 0)


@readings
def test_what_leaving_a_layer_out_saves() -> None:
    layers = [Middleware(Spin, us=200), Middleware(PassThrough), Middleware(Noop), Middleware(Spin, us=20)]
    measurement = measured(layers, saves=True)
    known = {report.name: report.saves for report in measurement.layers if report.saves is not None}
    if "AsyncExitStackMiddleware" in known:  # of newer releases of FastAPI
        assert known["AsyncExitStackMiddleware"].why == "the app raises AssertionError without it"
    saved = {name: saves.us for name, saves in known.items() if saves.us is not None}
    for name in ("Spin#1", "PassThrough", "Noop", "Spin#2"):
        why = str(known[name].why)
        if why == FEW or "times slower than for the rows" in why:
            raise BusyError(why)
    assert near(saved["Spin#1"] - saved["Spin#2"], 180)
    assert saved["Noop"].low < 2
    assert 50 < saved["PassThrough"].estimate < 2000


@readings
def test_the_books_balance() -> None:
    measurement = measured([Middleware(PassThrough), Middleware(Spin, us=50), Middleware(GZipMiddleware)])
    books = measurement.books
    assert books.endpoint is not None
    rows = [report.us for report in measurement.layers if report.us is not None] + [books.outside, books.endpoint]
    unsure = sum(row.half_width for row in rows) + books.total.half_width
    assert abs(books.residue_us) <= 0.05 * books.total.estimate + unsure


@readings
def test_who_waits_who_blocks_and_who_works_is_told_apart() -> None:
    class Waits(Noop):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await asyncio.sleep(0.0005)
            await self.app(scope, receive, send)

    class Blocks(Noop):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            time.sleep(0.0005)
            await self.app(scope, receive, send)

    async def endpoint(scope: Any, receive: Any, send: Any) -> None:
        await respond(send)

    # Deciding these budgets, even on a machine at half speed, takes times precise enough for the checks below.
    limits: dict[str, Bounds] = {"Waits": {"busy_us": 300}, "Blocks": {"busy_us": 200}, "Spin": {"busy_us": 80}}
    settings = Settings(budgets=Budgets(layers=limits), max_time_s=MOST_S)
    request = build_request("GET", "/", {})
    # The machine's speed is declared known, so that a failure counts at once: these costs exceed twice their budgets.
    known = environment(machine=Machine(known_ns=1e9))
    measurement = asyncio.run(measure(Waits(Blocks(Spin(endpoint, 200))), request, settings, known))
    verdicts = [report.verdict for report in measurement.layers]
    never(verdicts[0] == "fail" or "pass" in verdicts[1:], f"verdicts {verdicts}")
    assert verdicts == ["pass", "fail", "fail"]
    spent = {report.name: report.occupation for report in measurement.layers}
    waits, blocks, works = spent["Waits"], spent["Blocks"], spent["Spin"]
    assert us(measurement, "Waits").high > 450
    assert waits.wait_us > 300
    assert us(measurement, "Blocks").high > 450
    assert blocks.wait_us == 0
    assert (works.busy == measurement.layer("Spin").us, works.wait_us) == (True, 0)
    if Environment().cpu_clock is not None:
        assert (waits.blocking, blocks.blocking, works.blocking) == (False, True, False)
        assert blocks.cpu_us is not None
        assert blocks.cpu_us < 300
        assert works.cpu_us is not None
        assert works.cpu_us > 100


@readings
def test_a_slow_noisy_endpoint_does_not_blur_the_layers_above_it() -> None:
    async def endpoint(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(0.002)
        await respond(send)

    request = build_request("GET", "/", {})
    measurement = asyncio.run(measure(Spin(Noop(endpoint), 200), request, Settings(max_time_s=MOST_S), environment()))
    assert near(us(measurement, "Spin"), 200, most_us=30)
    assert near(us(measurement, "Noop"), 0, most_us=20)
    assert measurement.books.endpoint.estimate > 1900


# ---- the ways in which layers are entered ---------------------------------------------------------------------------


class Plain(Noop):
    """A layer with a plain `__call__` that returns the coroutine of the app inside it."""

    def __call__(self, scope: Any, receive: Any, send: Any) -> Any:
        return self.app(scope, receive, send)


class Twice(Noop):
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def ignore(message: Any) -> None: ...

        await self.app(dict(scope), receive, ignore)
        await self.app(scope, receive, send)


async def endpoint(scope: Any, receive: Any, send: Any) -> None:
    await respond(send)


async def spin_by_name(scope: Any, receive: Any, send: Any, *, app: Any) -> None:
    end = perf_counter_ns() + 200_000
    while perf_counter_ns() < end:
        pass
    await app(scope, receive, send)


async def noop_by_name(scope: Any, receive: Any, send: Any, *, app: Any) -> None:
    await app(scope, receive, send)


@wrapt.decorator
def spins(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    end = perf_counter_ns() + 200_000
    while perf_counter_ns() < end:
        pass
    return wrapped(*args, **kwargs)


class Decorated(Noop):
    @spins
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.app(scope, receive, send)


class Chosen(Noop):
    """A layer that passes on a new scope with only some keys."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.app({key: scope[key] for key in ("type", "path", "headers")}, receive, send)


class SameTwice(Noop):
    """A layer that occurs twice in the stack: outside, and again inside the layer that it holds."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await (endpoint if scope.get("again") else self.app)({**scope, "again": True}, receive, send)


def same_twice() -> Any:
    shared = SameTwice(endpoint)
    shared.app = Noop(shared)
    return Noop(shared)


# A stack, and the microseconds that each layer spins.
ENTERED: dict[str, tuple[Any, list[int]]] = {
    "plain functions": (Plain(Noop(Plain(Spin(Plain(endpoint), 200)))), [0, 0, 0, 200, 0]),
    "entered twice": (Noop(Twice(Spin(Noop(endpoint), 100))), [0, 0, 200, 0]),
    "the same object twice": (same_twice(), [0, 0, 0]),
    "one function by name": (
        partial(noop_by_name, app=partial(spin_by_name, app=partial(noop_by_name, app=endpoint))),
        [0, 200, 0],
    ),
    "behind a decorator in C": (Noop(Decorated(Noop(endpoint))), [0, 200, 0]),
    "a new scope": (Noop(Chosen(Spin(Noop(endpoint), 200))), [0, 0, 200, 0]),
}


@readings
@pytest.mark.parametrize(("app", "spun_us"), ENTERED.values(), ids=ENTERED)
def test_every_way_to_enter_a_layer_is_read_right(app: Any, spun_us: list[int]) -> None:
    request = build_request("GET", "/", {})
    measurement = asyncio.run(measure(app, request, Settings(max_time_s=MOST_S), environment()))
    books = measurement.books
    assert books.endpoint is not None
    rows = [report.us for report in measurement.layers]
    assert len(rows) == len(spun_us)
    # The interval of a row that does nothing lies round zero, and by chance may end just below it.
    room_us = 0.5
    for row, spun in zip(rows, spun_us, strict=True):
        assert spun <= row.high + room_us
        assert near(row, spun, most_us=10)
    assert all(row.high > -room_us for row in (books.outside, books.endpoint))
    unsure = sum(row.half_width for row in rows if row) + books.total.half_width
    assert abs(books.residue_us) < 0.06 * books.total.estimate + 5 + unsure


# ---- per message -----------------------------------------------------------------------------------------------------


# Short requests: in a long one a busy machine interrupts every spin by the clock.
PARTS, EACH_US = 12, 50


@dataclass
class SpinsPerMessage:
    """A layer that spins for each message sent, or for each received."""

    app: Any
    up_us: int = 0
    down_us: int = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def sending(message: Any) -> None:
            spin(self.up_us)
            await send(message)

        async def receiving() -> Any:
            message = await receive()
            spin(self.down_us)
            return message

        await self.app(scope, receiving, sending)


def spin(us: int) -> None:
    end = perf_counter_ns() + us * 1000
    while perf_counter_ns() < end:
        pass


class Gathers:
    """A layer that sends a response as a whole."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        held: list[Any] = []

        async def holding(message: Any) -> None:
            held.append(message)
            if len(held) > 1 and not message.get("more_body"):
                await send(held[0])
                await send({"type": "http.response.body", "body": b"".join(part["body"] for part in held[1:])})

        await self.app(scope, receive, holding)


async def parts(scope: Any, receive: Any, send: Any) -> None:
    """Read the body, and answer with PARTS parts; or echo what a WebSocket sends."""
    if scope["type"] == "websocket":
        while (message := await receive())["type"] != "websocket.disconnect":
            kind = "accept" if message["type"] == "websocket.connect" else "send"
            await send({"type": f"websocket.{kind}", **({"text": "answer"} if kind == "send" else {})})
        return
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for number in range(PARTS):
        await send({"type": "http.response.body", "body": b"part", "more_body": number < PARTS - 1})


@readings
@pytest.mark.parametrize("kind", ["stream", "body", "websocket up", "websocket down"])
def test_a_layer_that_spins_per_message_reads_its_spin(kind: str) -> None:
    up = kind in ("stream", "websocket up")
    layer = SpinsPerMessage(Noop(parts), up_us=EACH_US * up, down_us=EACH_US * (not up))
    opening: Any = build_request("POST", "/", {"content": bytes(65536 * PARTS) if kind == "body" else b""})
    if kind.startswith("websocket"):
        opening = build_connection("/", ["message"] * PARTS, (), {})
    settings = Settings(budgets=Budgets({"us_per_message": 1000}), max_time_s=MOST_S, lifespan=False)
    measurement = asyncio.run(measure(layer, opening, settings, environment()))
    spinning, passed = measurement.layers[0].messages, measurement.layers[1].messages
    spun, free = (spinning.sent, passed.sent) if up else (spinning.received, passed.received)
    assert near(spun.us, EACH_US)
    assert near(free.us, 0, most_us=5)


@readings
def test_a_buffer_holds_the_first_byte_while_the_inside_spins() -> None:
    layer = Gathers(SpinsPerMessage(Noop(parts), up_us=EACH_US))
    settings = Settings(budgets=Budgets({"us_per_message": 1000}), max_time_s=MOST_S, lifespan=False)
    measurement = asyncio.run(measure(layer, build_request("GET", "/", {}), settings, environment()))
    held, spun, free = (report.messages and report.messages.first_byte for report in measurement.layers)
    assert held is not None
    assert spun is not None
    assert free is not None
    assert near(held, (PARTS - 1) * EACH_US)
    assert near(spun, 2 * EACH_US)
    assert near(free, 0, most_us=20)
