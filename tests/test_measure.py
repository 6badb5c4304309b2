"""The whole sequence with a clock of our own: every figure is known exactly, and chance is seeded."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from pytest_mwbudget import asgi
from pytest_mwbudget.budgets import Budgets
from pytest_mwbudget.errors import MeasurementError
from pytest_mwbudget.estimates import Machine
from pytest_mwbudget.measure import Bench, measure, send_once
from pytest_mwbudget.model import Measurement
from pytest_mwbudget.settings import Settings


@dataclass
class FakeClock:
    """Stands still, but for `read_ns` at every reading, and for what the app lets pass."""

    read_ns: int = 0
    now_ns: int = 1_000_000
    reads: int = 0

    def __call__(self) -> int:
        self.reads += 1
        self.now_ns += self.read_ns
        return self.now_ns

    def let_pass(self, us: float) -> None:
        self.now_ns += round(us * 1000)


@dataclass
class Costly:
    """A layer that takes `before` µs before its inside, `after` after it, and `each` for every message sent."""

    app: Any
    clock: FakeClock
    before: float = 0.0
    after: float = 0.0
    each: float = 0.0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def counted_send(message: Any) -> None:
            self.clock.let_pass(self.each)
            await send(message)

        self.clock.let_pass(self.before)
        await self.app(scope, receive, counted_send)
        self.clock.let_pass(self.after)


class Silent(BaseHTTPMiddleware):
    """A task layer whose own code takes no time on the fake clock."""

    def __init__(self, app: Any, clock: FakeClock, us: float = 0.0) -> None:
        super().__init__(app)
        self.clock = clock
        self.us = us

    async def dispatch(self, request: Any, call_next: Callable[[Any], Awaitable[Any]]) -> Any:
        self.clock.let_pass(self.us)
        return await call_next(request)


@dataclass
class Server:
    """Measures a Starlette app on a fake clock."""

    clock: FakeClock = field(default_factory=FakeClock)
    endpoint_us: float = 40.0

    def measure(self, layers: list[Middleware], method: str = "GET", **settings: Any) -> Measurement:
        async def endpoint(request: Any) -> PlainTextResponse:
            self.clock.let_pass(self.endpoint_us)
            return PlainTextResponse("ok")

        app = Starlette(routes=[Route("/", endpoint, methods=["GET", "POST"])], middleware=layers)
        bench = Bench(self.clock, random.Random(7), Machine())
        request = asgi.build_request(method, "/", {})
        return asyncio.run(measure(app, request, Settings(**settings), bench))


def us(measurement: Measurement, name: str) -> float:
    estimate = measurement.layer(name).us
    assert estimate is not None
    return estimate.estimate


@pytest.mark.parametrize("read_ns", [0, 70])
def test_every_row_is_exact_whatever_a_reading_of_the_clock_costs(read_ns: int) -> None:
    server = Server(FakeClock(read_ns))
    clock = server.clock
    measurement = server.measure(
        [
            Middleware(Costly, clock=clock, before=20, after=5),
            Middleware(Costly, clock=clock),
            Middleware(Costly, clock=clock, each=3),
        ]
    )
    assert us(measurement, "Costly#1") == pytest.approx(25, abs=0.01)
    assert us(measurement, "Costly#2") == pytest.approx(0, abs=0.01)
    assert us(measurement, "Costly#3") == pytest.approx(6, abs=0.01)
    books = measurement.books
    assert books is not None
    assert books.endpoint is not None
    assert books.endpoint.estimate == pytest.approx(40, abs=0.2)
    assert books.total.estimate == pytest.approx(71, abs=0.2)
    assert books.residue_us == pytest.approx(0, abs=0.5)


def test_a_task_layer_is_measured_by_going_past_it() -> None:
    server = Server()
    clock = server.clock
    measurement = server.measure(
        [
            Middleware(Silent, clock=clock, us=100),
            Middleware(Costly, clock=clock, before=20),
            Middleware(Silent, clock=clock, us=30),
        ]
    )
    assert [report.method for report in measurement.layers] == ["split", "bypass", "split", "bypass", "split"]
    assert us(measurement, "Silent#1") == pytest.approx(100, abs=0.01)
    assert us(measurement, "Costly") == pytest.approx(20, abs=0.01)
    assert us(measurement, "Silent#2") == pytest.approx(30, abs=0.01)
    assert measurement.books is not None
    assert measurement.books.residue_us == pytest.approx(0, abs=0.1)


def test_an_unsafe_request_is_never_sent_past_a_layer() -> None:
    server = Server()
    measurement = server.measure([Middleware(Silent, clock=server.clock, us=100)], method="POST")
    assert measurement.layer("Silent").method == "split"
    assert us(measurement, "Silent") == pytest.approx(100, abs=0.01)


def test_budgets_are_judged_and_the_run_stops_when_all_is_known() -> None:
    server = Server()
    layers = [Middleware(Costly, clock=server.clock, before=20), Middleware(Costly, clock=server.clock, before=5)]
    measurement = server.measure(layers, budgets=Budgets(us=10, total_us=100))
    verdicts = {report.name: report.verdict for report in measurement.layers}
    assert verdicts == {
        "ServerErrorMiddleware": "pass",
        "Costly#1": "fail",
        "Costly#2": "pass",
        "ExceptionMiddleware": "pass",
    }
    assert measurement.total_verdict == "pass"
    assert measurement.verdict == "fail"
    assert measurement.effort is not None
    assert measurement.effort.requests < 300


def test_a_cost_that_wavers_about_its_budget_is_undecided_when_the_time_is_over() -> None:
    server = Server()
    chance = random.Random(3)

    class Wavering:
        def __init__(self, app: Any) -> None:
            self.app = app

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            server.clock.let_pass(chance.choice([8, 12]))
            await self.app(scope, receive, send)

    measurement = server.measure([Middleware(Wavering)], budgets=Budgets(us=10), max_time_s=0.1)
    report = measurement.layer("Wavering")
    assert report.verdict == "undecided"
    assert report.reason is not None
    assert "the interval" in report.reason
    assert measurement.effort is not None
    assert measurement.effort.seconds == pytest.approx(0.1, rel=0.1)


def test_a_slow_machine_is_no_reason_to_fail() -> None:
    """The layer is over its budget only as far as the whole machine is slower than it was before."""
    machine = Machine()
    machine.quickest_ns = 100.0
    clock = FakeClock(read_ns=200)  # the reference workload takes one reading: 200 ns, twice its best

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    layer = Costly(app, clock, before=15)
    request = asgi.build_request("GET", "/", {})
    settings = Settings(budgets=Budgets(us=10), max_time_s=0.05)
    measurement = asyncio.run(measure(layer, request, settings, Bench(clock, random.Random(7), machine)))
    report = measurement.layer("Costly")
    assert report.verdict == "undecided"
    assert report.reason is not None
    assert "2.00 times slower" in report.reason


def test_a_layer_that_the_inside_needs_is_left_to_the_split() -> None:
    server = Server()

    class Giver(Silent):
        async def dispatch(self, request: Any, call_next: Callable[[Any], Awaitable[Any]]) -> Any:
            request.scope["gift"] = True
            return await super().dispatch(request, call_next)

    class Taker(Costly):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            assert scope["gift"]
            await super().__call__(scope, receive, send)

    measurement = server.measure(
        [Middleware(Giver, clock=server.clock, us=50), Middleware(Taker, clock=server.clock, before=20)]
    )
    assert measurement.layer("Giver").method == "split"
    assert us(measurement, "Giver") == pytest.approx(50, abs=0.01)
    assert us(measurement, "Taker") == pytest.approx(20, abs=0.01)
    assert any("Giver could not be bypassed (KeyError without it)" in note for note in measurement.notes)


def test_a_layer_without_which_the_inside_does_something_else_is_left_to_the_split() -> None:
    """The endpoint works for a tenant only; the status is the same for nobody."""
    server = Server()

    class Tenant(Silent):
        async def dispatch(self, request: Any, call_next: Callable[[Any], Awaitable[Any]]) -> Any:
            request.scope["tenant"] = "t"
            return await super().dispatch(request, call_next)

    class Work(Costly):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            if "tenant" in scope:
                self.clock.let_pass(400)
            await self.app(scope, receive, send)

    measurement = server.measure(
        [Middleware(Tenant, clock=server.clock, us=50), Middleware(Work, clock=server.clock)],
        budgets=Budgets(layers={"Tenant": 300}),
    )
    assert measurement.layer("Tenant").method == "split"
    assert us(measurement, "Tenant") == pytest.approx(50, abs=0.01)
    assert us(measurement, "Work") == pytest.approx(400, abs=0.01)
    assert measurement.layer("Tenant").verdict == "pass"
    assert any("Tenant could not be bypassed" in note for note in measurement.notes)


def test_above_a_slow_endpoint_task_layers_are_left_to_the_split() -> None:
    server = Server(endpoint_us=50_000)
    measurement = server.measure([Middleware(Silent, clock=server.clock, us=100)], max_time_s=5)
    assert measurement.layer("Silent").method == "split"
    assert us(measurement, "Silent") == pytest.approx(100, abs=0.01)
    assert measurement.effort is not None
    assert measurement.effort.seconds < 6
    assert measurement.layer("ServerErrorMiddleware").us is not None


def test_progress_is_reported_as_a_share_of_the_time() -> None:
    server = Server()
    shares: list[float | None] = []
    bench = Bench(server.clock, random.Random(7), Machine(), shares.append)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        server.clock.let_pass(random.choice([5, 15]))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    request = asgi.build_request("GET", "/", {})
    settings = Settings(budgets=Budgets(total_us=10), max_time_s=0.05)
    asyncio.run(measure(Costly(app, server.clock), request, settings, bench))
    assert shares.pop() is None
    assert shares
    assert all(share is not None and 0 <= share <= 1 for share in shares)


def test_a_response_that_never_ends_is_an_error() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.Event().wait()

    request = asgi.build_request("GET", "/", {})
    with pytest.raises(MeasurementError, match=r"did not finish its response within 0\.01 s"):
        asyncio.run(send_once(app, request, Settings(startup_timeout_s=0.01, lifespan=False)))


def test_the_app_is_as_it_was_after_a_request_that_fails_midway() -> None:
    calls = 0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal calls
        calls += 1
        if calls > 250:
            raise LookupError("worn out")
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    clock = FakeClock(read_ns=10)
    layer = Costly(app, clock)
    codes = Costly.__call__.__code__, app.__code__
    request = asgi.build_request("GET", "/", {})
    with pytest.raises(LookupError, match="worn out"):
        asyncio.run(measure(layer, request, Settings(lifespan=False), Bench(clock, random.Random(7), Machine())))
    assert (Costly.__call__.__code__, app.__code__) == codes
