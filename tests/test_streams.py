"""Requests and responses in many messages, on a fake clock: the cost of a message is known exactly."""

from __future__ import annotations

import asyncio
import gc
import random
import tracemalloc
from dataclasses import dataclass, replace
from typing import Any

import pytest
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware

from pytest_mwbudget.asgi.request import build_request
from pytest_mwbudget.config.budgets import Bounds, Budgets
from pytest_mwbudget.config.settings import Settings
from pytest_mwbudget.engine import measure
from pytest_mwbudget.errors import ResponseError
from pytest_mwbudget.model.estimate import Estimate
from pytest_mwbudget.model.messages import Messages
from pytest_mwbudget.model.results import Measurement
from pytest_mwbudget.report.advice import advise
from pytest_mwbudget.report.terminal import failure, table
from pytest_mwbudget.report.view import view
from pytest_mwbudget.storage import codec
from pytest_mwbudget.timing.host_speed import Machine
from pytest_mwbudget.timing.looks import Environment

from .apps import Noop, caller
from .test_engine import SCHEDULE as THOROUGH
from .test_engine import FakeClock, reason

PIECE = 65536
# The costs on a fake clock never vary, so few requests show them exactly.
SCHEDULE = replace(THOROUGH, precision_time_s=0.1, failure_time_s=0.1)


@dataclass
class Streaming:
    """An app that answers with so many pieces, and takes `us` before each; it reads the body first."""

    clock: FakeClock
    pieces: int
    us: float = 10.0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        more = True
        while more:
            more = (await receive()).get("more_body", False)
            self.clock.let_pass(self.us)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for number in range(self.pieces):
            self.clock.let_pass(self.us)
            await send({"type": "http.response.body", "body": b"piece", "more_body": number < self.pieces - 1})


@dataclass
class Works:
    """A layer that takes `up` µs for each message sent, `down` for each received, and `once` at the beginning."""

    app: Any
    clock: FakeClock
    up: float = 0.0
    down: float = 0.0
    once: float = 0.0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def sending(message: Any) -> None:
            self.clock.let_pass(self.up)
            await send(message)

        async def receiving() -> Any:
            message = await receive()
            self.clock.let_pass(self.down)
            return message

        self.clock.let_pass(self.once)
        await self.app(scope, receiving, sending)


@dataclass
class Buffer:
    """A layer that sends a response as one piece."""

    app: Any

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        held: list[Any] = []

        async def holding(message: Any) -> None:
            held.append(message)
            if len(held) > 1 and not message.get("more_body", False):
                await send(held[0])
                await send({"type": "http.response.body", "body": b"".join(piece["body"] for piece in held[1:])})

        await self.app(scope, receive, holding)


def measured(
    layers: list[Middleware],
    clock: FakeClock,
    *,
    pieces: int = 1,
    body: int = 0,
    budgets: Bounds | None = None,
    layers_by_name: Any = None,
    precise: bool = True,
    **settings: Any,
) -> Measurement:
    """Measure layers round an app that sends `pieces` and is sent `body` pieces."""
    app: Any = Streaming(clock, pieces)
    for layer in reversed(layers):
        app = layer.cls(app, **layer.kwargs)
    environment = Environment(clock, None, random.Random(7), Machine(known_ns=1e9), precise=precise, schedule=SCHEDULE)
    request = build_request("POST", "/", {"content": bytes(PIECE * body)})
    options = Settings(budgets=Budgets(budgets or {}, layers_by_name or {}), lifespan=False, max_time_s=2.0, **settings)
    return asyncio.run(measure(app, request, options, environment))


def messages(measurement: Measurement, name: str) -> Messages:
    figures = measurement.layer(name).messages
    assert figures is not None
    return figures


def exactly(us: Estimate | None, truth: float) -> bool:
    near = us is not None and us.estimate == pytest.approx(truth, abs=0.02)
    return us is not None and near and us.bounded and us.low <= truth <= us.high


@pytest.mark.parametrize("read_ns", [0, 70])
def test_a_message_sent_is_exact_whatever_a_reading_of_the_clock_costs(read_ns: int) -> None:
    clock = FakeClock(read_ns)
    layers = [
        Middleware(Noop),
        Middleware(Works, clock=clock, up=50, once=30),
        Middleware(Works, clock=clock),
    ]
    measurement = measured(layers, clock, pieces=15)
    for name, truth in (("Noop", 0.0), ("Works#1", 50.0), ("Works#2", 0.0)):
        sent = messages(measurement, name).sent
        assert (sent.count, exactly(sent.us, truth)) == (16, True), name
        assert messages(measurement, name).received is None
    # The start and the first part.
    assert exactly(messages(measurement, "Works#1").first_byte, 130.0)
    assert exactly(messages(measurement, "Noop").first_byte, 0.0)


@pytest.mark.parametrize("read_ns", [0, 70])
def test_a_message_received_is_exact(read_ns: int) -> None:
    clock = FakeClock(read_ns)
    measurement = measured([Middleware(Noop), Middleware(Works, clock=clock, down=50)], clock, body=12)
    for name, truth in (("Noop", 0.0), ("Works", 50.0)):
        received = messages(measurement, name).received
        assert (received.count, exactly(received.us, truth)) == (12, True), name
        assert messages(measurement, name).sent is messages(measurement, name).first_byte is None


def test_both_ways_of_one_request_are_told_apart() -> None:
    clock = FakeClock()
    both_ways = messages(measured([Middleware(Works, clock=clock, up=20, down=50)], clock, pieces=12, body=12), "Works")
    assert exactly(both_ways.sent.us, 20.0)
    assert exactly(both_ways.received.us, 50.0)
    assert both_ways.us_per_message == both_ways.received.us


@pytest.mark.parametrize("read_ns", [0, 70])
def test_a_buffer_adds_what_it_holds_the_first_byte_back(read_ns: int) -> None:
    clock = FakeClock(read_ns)
    layers = [Middleware(Noop), Middleware(Buffer), Middleware(Works, clock=clock, up=20)]
    measurement = measured(layers, clock, pieces=20)
    # After the first of 20 pieces come 19, each of 10 µs in the app and 20 µs in the layer.
    held = messages(measurement, "Buffer").first_byte
    assert held.estimate == pytest.approx(19 * 30, abs=0.5)
    assert exactly(messages(measurement, "Works").first_byte, 40.0)
    assert measurement.layer("Noop").messages is None


@dataclass
class Queue:
    """A layer that sends from a task of its own, and takes `us` for each message there."""

    app: Any
    clock: FakeClock
    us: float

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        queue: asyncio.Queue[Any] = asyncio.Queue()

        async def sending() -> None:
            while (message := await queue.get()) is not None:
                self.clock.let_pass(self.us)
                await send(message)

        task = asyncio.create_task(sending())
        await self.app(scope, receive, queue.put)
        await queue.put(None)
        await task


def test_a_layer_that_sends_from_a_task_of_its_own_takes_as_much_per_message() -> None:
    clock = FakeClock()
    sent = messages(measured([Middleware(Noop), Middleware(Queue, clock=clock, us=50)], clock, pieces=15), "Queue").sent
    assert sent.us.estimate == pytest.approx(50, abs=1)


@pytest.mark.parametrize(("budget", "verdict"), [(60.0, "pass"), (40.0, "fail")])
def test_a_budget_per_message_is_judged_by_the_larger_way(budget: float, verdict: str) -> None:
    clock = FakeClock()
    layers = [Middleware(Works, clock=clock, up=5, down=50)]
    measurement = measured(layers, clock, pieces=12, body=12, budgets={"us_per_message": budget}, precise=False)
    assert measurement.verdict == measurement.layer("Works").judged["us_per_message"].verdict == verdict
    text = failure(measurement, 100)
    assert ("Works takes 50.0 µs per message, its budget is 40 µs" in text) == (verdict == "fail")
    assert ("Works 50 µs per message, budget 40 µs" in text) == (verdict == "fail")


def test_few_messages_leave_a_budget_per_message_undecided_at_once() -> None:
    clock = FakeClock()
    measurement = measured([Middleware(Works, clock=clock)], clock, pieces=3, budgets={"us_per_message": 5.0})
    few = reason(measurement.layer("Works"), "us_per_message")
    assert few.startswith("fewer than 10 messages pass it in each direction")
    assert measurement.effort.seconds < 1.5


@dataclass
class Collects:
    """A layer that hands a request body on as one piece."""

    app: Any

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message["body"], message["more_body"]

        async def whole() -> Any:
            return {"type": "http.request", "body": body, "more_body": False}

        await self.app(scope, whole, send)


@pytest.mark.parametrize(("layer", "pieces", "body"), [(Collects, 1, 12), (Buffer, 12, 1)])
def test_a_layer_that_buffers_either_way_is_named(layer: type, pieces: int, body: int) -> None:
    clock = FakeClock()
    measurement = measured([Middleware(Noop), Middleware(layer)], clock, pieces=pieces, body=body)
    (advice,) = [advice for advice in advise(measurement) if advice.rule == "buffering"]
    assert advice.layer == layer.__name__
    assert ("receives 12 messages of the request and hands on 1" in advice.text) == (layer is Collects)


def test_outside_a_buffer_only_a_budget_that_names_the_layer_is_judged() -> None:
    clock = FakeClock()
    layers = [Middleware(Noop), Middleware(Buffer), Middleware(Works, clock=clock, up=20)]
    measurement = measured(layers, clock, pieces=20, budgets={"us_per_message": 60.0})
    judged = {report.name: [budget.verdict for budget in report.judged.values()] for report in measurement.layers}
    assert judged == {"Noop": [], "Buffer": ["pass"], "Works": ["pass"]}
    named = {"Noop": {"us_per_message": 60.0}}
    measurement = measured(layers, clock, pieces=20, layers_by_name=named)
    assert reason(measurement.layer("Noop"), "us_per_message").startswith("fewer than 10 messages")


def test_many_layers_outside_a_buffer_do_not_hide_that_many_messages_pass_a_layer_inside() -> None:
    """Few of the first requests have their null layer inside the buffer."""
    clock = FakeClock()
    layers = [*[Middleware(Noop)] * 12, Middleware(Buffer), Middleware(Works, clock=clock, up=50)]
    measurement = measured(layers, clock, pieces=20, layers_by_name={"Works": {"us_per_message": 40}}, precise=False)
    assert measurement.layer("Works").judged["us_per_message"].verdict == "fail"


def test_nobody_reads_what_a_message_costs_so_nothing_is_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*arguments: Any) -> None:
        raise AssertionError

    monkeypatch.setattr("pytest_mwbudget.timing.sampler.message_times", refused)
    clock = FakeClock()
    measurement = measured([Middleware(Works, clock=clock)], clock, pieces=20, budgets={"us": 500.0}, precise=False)
    assert (measurement.verdict, measurement.layer("Works").messages) == ("pass", None)


def test_reports_have_the_figures_of_messages() -> None:
    clock = FakeClock()
    measurement = measured([Middleware(Works, clock=clock, up=50)], clock, pieces=20)
    lines = "\n".join(line.text for line in table(view(measurement), 110))
    assert "µs/message" in lines
    assert "1st byte µs" in lines
    read = codec.result(codec.measurement("test", measurement))
    assert read.layer("Works").messages == messages(measurement, "Works")


# ---- memory ----------------------------------------------------------------------------------------------------------


@dataclass
class Downloads:
    """An app that reads the body, and answers with so many pieces of 64 KiB, each made anew."""

    pieces: int

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body", False):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for number in range(self.pieces):
            await send({"type": "http.response.body", "body": bytes(PIECE), "more_body": number < self.pieces - 1})


def peak_of_repetitions(pieces: int, requests: int) -> int:
    """Return by how many bytes memory grows at most in repeated requests, each with so many pieces either way."""

    async def main() -> int:
        call = await caller(Downloads(pieces), "POST", "/", content=bytes(PIECE * pieces))
        first = await call()
        assert (len(first.body), first.pieces, first.received) == (pieces, pieces, pieces)
        del first
        gc.collect()
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            exchanges = [await call() for _ in range(requests)]
            assert {(exchange.pieces, exchange.received) for exchange in exchanges} == {(pieces, pieces)}
            return tracemalloc.get_traced_memory()[1] - before
        finally:
            tracemalloc.stop()

    return asyncio.run(main())


def test_repeated_requests_of_ten_megabytes_each_way_keep_no_more_than_small_ones() -> None:
    small, large = peak_of_repetitions(pieces=16, requests=4), peak_of_repetitions(pieces=160, requests=4)
    # The exchanges are held here, each with the first piece.
    assert 4 * PIECE <= large < small + PIECE < 8 * PIECE


def test_memory_of_a_measurement_does_not_grow_with_its_requests() -> None:
    def peak(counted: int) -> int:
        clock = FakeClock()
        schedule = replace(SCHEDULE, counted_requests=counted)
        environment = Environment(clock, None, random.Random(7), Machine(known_ns=1e9), schedule=schedule)
        request = build_request("POST", "/", {"content": bytes(PIECE * 40)})
        options = Settings(budgets=Budgets({"tasks": 0}), lifespan=False)
        tracemalloc.start()
        try:
            assert asyncio.run(measure(Noop(Downloads(40)), request, options, environment)).verdict == "pass"
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(2)  # imports and caches
    assert peak(42) < peak(2) + 4 * PIECE


def test_a_message_on_a_large_compressed_response_does_not_need_all_of_it() -> None:
    app = Changes([200, 503])

    async def main() -> None:
        call = await caller(GZipMiddleware(app), "GET", "/", headers={"accept-encoding": "gzip"})
        await call()
        await call()

    with pytest.raises(ResponseError, match="call 2 answered 503, the calls before it 200") as raised:
        asyncio.run(main())
    assert "The body begins: 0123" in str(raised.value)


@dataclass
class Changes:
    """An app with a large response of another status in each call."""

    statuses: list[int]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        status = self.statuses.pop(0)
        await send({"type": "http.response.start", "status": status, "headers": []})
        text = random.Random(7).randbytes(4 * PIECE).hex().encode()
        for start in range(0, len(text), PIECE):
            await send({"type": "http.response.body", "body": b"0123" + text[start : start + PIECE], "more_body": True})
        await send({"type": "http.response.body", "body": b""})
