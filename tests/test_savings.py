"""What leaving a layer out saves: trampolines of equal cost, the rounds on a fake clock, the intervals."""

from __future__ import annotations

import asyncio
import functools
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median
from types import FrameType
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from pytest_mwbudget.analysis.estimates import method_us
from pytest_mwbudget.analysis.samples import Series
from pytest_mwbudget.analysis.savings import FEW, Arm, Round, savings
from pytest_mwbudget.asgi import loops, server
from pytest_mwbudget.asgi.request import build_request
from pytest_mwbudget.config.budgets import Budgets
from pytest_mwbudget.config.settings import Settings
from pytest_mwbudget.engine import measure
from pytest_mwbudget.interpreter.foreign_tools import garbage_collection_deferred
from pytest_mwbudget.model.results import LoopName, Measurement
from pytest_mwbudget.model.stack import EntryIndex
from pytest_mwbudget.timing.arms import inner_app
from pytest_mwbudget.timing.bypasses import Bypasses
from pytest_mwbudget.timing.host_speed import Machine
from pytest_mwbudget.timing.looks import Environment

from .apps import (
    Keywords,
    Noop,
    StarArguments,
    SyncCall,
    caller,
    discovered,
    hello,
    outer,
    partial,
    respond,
    unchanged_code,
)
from .test_engine import SCHEDULE, Costly, FakeClock, reason

pytestmark = pytest.mark.once

App = Callable[..., Any]


# ---- a request without a layer executes what the app without that layer executes ----------------------------------


class WrapsSend(Noop):
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def wrapped(message: Any) -> None:
            await send(message)

        await self.app(scope, receive, wrapped)


class PassThrough(BaseHTTPMiddleware):
    async def dispatch(self, request: Any, call_next: Any) -> Any:
        return await call_next(request)


async def opcodes(call: server.Caller) -> int:
    """Count the bytecode instructions of a request, once the code is warm."""
    count = 0

    def local(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        count += event == "opcode"
        return local

    def entered(frame: FrameType, event: str, argument: object) -> Any:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return local

    before = sys.gettrace()
    try:
        with garbage_collection_deferred():  # other code listens to collections
            for _ in range(3):
                count = 0
                sys.settrace(entered)
                await call()
                sys.settrace(before)
    finally:
        sys.settrace(before)
    return count


async def warmed(call: server.Caller) -> None:
    """Make the calls after which a caller looks for tasks that they have left."""
    for _ in range(server.LOOKED_AT.stop):
        await call()


async def saved_opcodes(make: Callable[[App], App], inner: App) -> tuple[int, int]:
    """Return what a layer takes in instructions: by a bypass, and by building the app without it."""
    app = Noop(make(inner))
    call = await caller(app, headers={"origin": "http://elsewhere", "accept-encoding": "gzip"})
    await warmed(call)
    stack = await discovered(call)
    index = EntryIndex(1)
    inside = inner_app(stack, index)
    assert not isinstance(inside, str)
    bypasses = Bypasses(stack, {index: inside})
    with bypasses.installed():
        present = await opcodes(call)
        with bypasses.without(index):
            absent = await opcodes(call)
    without = await caller(Noop(inner), headers={"origin": "http://elsewhere", "accept-encoding": "gzip"})
    await warmed(without)
    return present - absent, await opcodes(call) - await opcodes(without)


LAYERS: dict[str, Callable[[App], App]] = {
    "no-op": Noop,
    "wraps send": WrapsSend,
    "CORS": functools.partial(CORSMiddleware, allow_origins=["*"]),
    "GZip": GZipMiddleware,
    "plain function": SyncCall,
    "closure": outer,
    "functools.partial": partial,
    "keywords": Keywords,
}
INSIDE: dict[str, Callable[[], App]] = {
    "closure": lambda: outer(hello),
    "instance": lambda: Noop(hello),
    "same class": lambda: WrapsSend(Noop(hello)),
    "functools.partial": lambda: partial(hello),
}


@pytest.mark.parametrize("layer", LAYERS)
def test_a_bypass_saves_exactly_the_instructions_of_the_layer(layer: str) -> None:
    with unchanged_code():  # looks at every object of the process, so it is entered once
        instructions = {name: asyncio.run(saved_opcodes(LAYERS[layer], inside())) for name, inside in INSIDE.items()}
    for name, (bypassed, rebuilt) in instructions.items():
        assert bypassed == rebuilt > 0, name


def test_unusual_arguments_are_passed_to_what_is_inside() -> None:
    bypassed, rebuilt = asyncio.run(saved_opcodes(StarArguments, Noop(hello)))
    # The arguments are searched in every request, in place of the trampoline's own call.
    assert bypassed == pytest.approx(rebuilt, abs=40)


def test_a_layer_of_the_same_class_is_not_left_out() -> None:
    entered: list[str] = []

    class Noting(Noop):
        def __init__(self, app: App, name: str) -> None:
            super().__init__(app)
            self.name = name

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            entered.append(self.name)
            await self.app(scope, receive, send)

    async def main() -> None:
        call = await caller(Noting(Noting(Noting(hello, "inner"), "middle"), "outer"))
        stack = await discovered(call)
        bypasses = Bypasses(stack, {EntryIndex(i): EntryIndex(i + 1) for i in range(3)})
        with bypasses.installed():
            for index, others in enumerate((["middle", "inner"], ["outer", "inner"], ["outer", "middle"])):
                entered.clear()
                with bypasses.without(EntryIndex(index)):
                    await call()
                assert entered == others
            entered.clear()
            await call()
            assert entered == ["outer", "middle", "inner"]

    with unchanged_code():
        asyncio.run(main())


# ---- the whole measurement on a fake clock ------------------------------------------------------------------------


@dataclass
class Slow:
    """An endpoint that takes 100 µs on the fake clock; `requests` counts its calls."""

    clock: FakeClock
    requests: int = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.requests += 1
        self.clock.let_pass(100)
        await respond(send)


# The rows of a fake clock need few requests. What is saved has its own share of the time limit.
BRIEF = {"precision_time_s": 0.05, "failure_time_s": 0.05, "watched_time_s": 0.05, "savings_share": 0.1}


def measured(
    app: App,
    clock: FakeClock,
    method: str = "GET",
    *,
    saves: bool = True,
    loop: LoopName = "asyncio",
    budgets: Budgets | None = None,
    **schedule: Any,
) -> Measurement:
    environment = Environment(
        clock,
        None,
        random.Random(7),
        Machine(known_ns=1e9),
        schedule=replace(SCHEDULE, **BRIEF | schedule),
        saves=saves,
    )
    settings = Settings(budgets or Budgets(), lifespan=False, max_time_s=1.0)
    request = build_request(method, "/", {})
    with unchanged_code():
        return loops.run(loop, lambda: measure(app, request, settings, environment))


def saved(measurement: Measurement, name: str) -> float:
    saves = measurement.layer(name).saves
    assert saves is not None
    assert saves.us is not None
    assert saves.why is None
    assert saves.us.low <= saves.us.estimate <= saves.us.high
    return saves.us.estimate


def why(measurement: Measurement, name: str) -> str:
    saves = measurement.layer(name).saves
    assert saves is not None
    assert saves.us is None
    assert saves.why is not None
    return saves.why


@pytest.mark.parametrize("read_ns", [0, 70])
def test_what_is_saved_is_exact_whatever_a_reading_of_the_clock_costs(read_ns: int) -> None:
    clock = FakeClock(read_ns)
    endpoint = Slow(clock)
    measurement = measured(Noop(Costly(Costly(endpoint, clock, each=3), clock, before=20, after=5)), clock)
    assert saved(measurement, "Noop") == pytest.approx(0, abs=0.01)
    assert saved(measurement, "Costly#1") == pytest.approx(25, abs=0.01)
    assert saved(measurement, "Costly#2") == pytest.approx(6, abs=0.01)


@dataclass
class Disturbing:
    """A layer that makes what is inside it take 7 µs more, as cold caches do."""

    app: App
    clock: FakeClock

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.clock.let_pass(10)
        scope["disturbed"] = True
        await self.app(scope, receive, send)


@dataclass
class Disturbed:
    app: App
    clock: FakeClock

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.clock.let_pass(27 if scope.get("disturbed") else 20)
        await self.app(scope, receive, send)


def test_what_a_layer_costs_others_is_saved_with_it() -> None:
    clock = FakeClock()
    measurement = measured(Disturbing(Disturbed(Slow(clock), clock), clock), clock)
    us = measurement.layer("Disturbing").us
    assert us is not None
    assert us.estimate == pytest.approx(10, abs=0.01)
    assert saved(measurement, "Disturbing") == pytest.approx(17, abs=0.01)
    assert saved(measurement, "Disturbed") == pytest.approx(27, abs=0.01)


class Login(Disturbing):
    """A layer without which the app does less."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.clock.let_pass(10)
        scope["user"] = "me"
        await self.app(scope, receive, send)


@dataclass
class ForUsers:
    """An endpoint that takes `us` for a user, else 100 µs."""

    clock: FakeClock
    us: float
    sent_past: int = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.sent_past += "user" not in scope
        self.clock.let_pass(self.us if "user" in scope else 100)
        await respond(send)


def test_what_the_app_does_for_a_user_is_not_what_the_login_saves() -> None:
    clock = FakeClock()
    app = Costly(Login(ForUsers(clock, us=600), clock), clock, before=20)
    measurement = measured(app, clock, savings_share=0.2)
    assert why(measurement, "Login") == "the app takes another way without it: 510 µs less, not 10"
    assert saved(measurement, "Costly") == pytest.approx(20, abs=0.01)


def test_rows_and_requests_are_the_same_where_nobody_reads_what_is_saved() -> None:
    runs = {}
    for saves in (False, True):
        clock = FakeClock()
        endpoint = Slow(clock)
        measurement = measured(Costly(Noop(endpoint), clock, before=20), clock, saves=saves)
        runs[saves] = (measurement, endpoint.requests)
    (plain, requests), (read, more) = runs[False], runs[True]
    assert all(report.saves is None for report in plain.layers)
    assert [report.us for report in plain.layers] == [report.us for report in read.layers]
    assert plain.books == read.books
    assert plain.effort is not None
    assert read.effort is not None
    assert more - requests == read.effort.requests - plain.effort.requests > 0
    # A tenth of the time limit of one second, and one block that was under way.
    assert 0.05 <= read.effort.seconds - plain.effort.seconds <= 0.11


class Session(Noop):
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        scope["session"] = {}
        await self.app(scope, receive, send)


class NeedsSession(Noop):
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        scope["session"]["seen"] = True
        await self.app(scope, receive, send)


def test_a_layer_that_the_app_cannot_do_without_has_the_reason() -> None:
    clock = FakeClock()
    measurement = measured(Session(NeedsSession(Slow(clock))), clock)
    assert why(measurement, "Session") == "the app raises KeyError without it"
    assert saved(measurement, "NeedsSession") == pytest.approx(0, abs=0.01)
    assert measurement.layer("Session").us is not None


class Leaking(Noop):
    """A layer that returns what the endpoint takes from a pool."""

    def __init__(self, app: App, pool: list[int]) -> None:
        super().__init__(app)
        self.pool = pool

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.app(scope, receive, send)
        self.pool.append(1)


@dataclass
class Pooled:
    """An endpoint that takes from a pool, and raises if the pool is empty."""

    pool: list[int]
    clock: FakeClock

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.clock.let_pass(100)
        self.pool.pop()
        await respond(send)


def test_an_app_that_breaks_after_some_requests_without_a_layer() -> None:
    clock, pool = FakeClock(), [1] * 12
    measurement = measured(Noop(Leaking(Pooled(pool, clock), pool)), clock)
    # Whichever request meets the empty pool: one without the layer, or one with all layers.
    assert "IndexError" in why(measurement, "Leaking")
    noop = measurement.layer("Noop")
    assert noop.us is not None
    assert noop.saves is not None


def test_a_slow_app_is_not_asked() -> None:
    clock = FakeClock()
    measurement = measured(Noop(Slow(clock)), clock, savings_share=0.01)
    assert why(measurement, "Noop").startswith("the app is so slow that there is too little time: ")
    assert all(report.saves is None for report in measured(Noop(Slow(clock)), clock, savings_share=0.0).layers)


def test_a_task_spawning_layer_in_an_app_of_a_framework() -> None:
    clock = FakeClock()

    async def endpoint(request: Any) -> PlainTextResponse:
        clock.let_pass(100)
        return PlainTextResponse("ok")

    app = Starlette(routes=[Route("/", endpoint)])
    app.add_middleware(Costly, clock=clock, before=9)
    app.add_middleware(PassThrough)
    measurement = measured(app, clock, savings_share=0.05)
    assert saved(measurement, "PassThrough") == pytest.approx(0, abs=0.01)
    assert saved(measurement, "Costly") == pytest.approx(9, abs=0.01)
    assert saved(measurement, "ExceptionMiddleware") == pytest.approx(0, abs=0.01)


# ---- the second witness of a verdict ------------------------------------------------------------------------------


def requests_of(measurement: Measurement) -> int:
    assert measurement.effort is not None
    return measurement.effort.requests


def row_us(measurement: Measurement, name: str) -> float:
    us = measurement.layer(name).us
    assert us is not None
    return us.estimate


class Prefetching(Disturbing):
    """A layer that takes 90 µs, and makes what is inside it quicker by 80 µs."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.clock.let_pass(90)
        scope["user"] = "me"
        await self.app(scope, receive, send)


class TaskLogin(BaseHTTPMiddleware):
    """The same layer in a form that spawns a task."""

    def __init__(self, app: App, clock: FakeClock) -> None:
        super().__init__(app)
        self.clock = clock

    async def dispatch(self, request: Any, call_next: Any) -> Any:
        self.clock.let_pass(10)
        request.scope["user"] = "me"
        return await call_next(request)


@pytest.mark.parametrize("saves", [False, True])
def test_a_failure_that_a_whole_request_contradicts_is_undecided(saves: bool) -> None:
    clock = FakeClock()
    app = Costly(Prefetching(ForUsers(clock, us=20), clock), clock, before=20)
    measurement = measured(app, clock, saves=saves, budgets=Budgets({"us": 50}))
    assert row_us(measurement, "Prefetching") == pytest.approx(90, abs=0.01)
    sentence = reason(measurement.layer("Prefetching"))
    assert sentence.startswith("by its row the layer takes 90.0 µs (")
    assert "a whole request without it is 10.0 µs shorter (" in sentence
    assert sentence.endswith("[contradicted]")
    assert measurement.layer("Costly").verdict == "pass"
    assert measurement.verdict == "undecided"
    assert (measurement.layer("Prefetching").saves is not None) is saves


def test_a_reader_of_what_is_saved_takes_no_witness_away() -> None:
    """There is time to leave out the layer in doubt, and none to leave out each."""
    clock = FakeClock()
    app = Costly(Prefetching(ForUsers(clock, us=20), clock), clock, before=20)
    measurement = measured(app, clock, budgets=Budgets({"us": 50}), savings_share=0.001)
    assert reason(measurement.layer("Prefetching")).endswith("[contradicted]")
    assert saved(measurement, "Prefetching") == pytest.approx(10, abs=0.01)
    saves = measurement.layer("Costly").saves
    assert saves is not None
    assert str(saves.why).startswith("the app is so slow that there is too little time: ")


@pytest.mark.parametrize("saves", [False, True])
def test_a_failure_that_a_whole_request_confirms_stands(saves: bool) -> None:
    clock = FakeClock()
    app = Costly(Noop(Slow(clock)), clock, before=90)
    measurement = measured(app, clock, saves=saves, budgets=Budgets({"us": 50}))
    assert measurement.layer("Costly").verdict == "fail"
    assert measurement.layer("Costly").judged["us"].reason is None
    assert measurement.layer("Noop").verdict == "pass"


def test_a_failure_stands_if_the_layer_takes_and_saves_more_than_its_budget() -> None:
    """Without the login the app does less, and the login alone is over its budget."""
    clock = FakeClock()
    endpoint = ForUsers(clock, us=600)
    measurement = measured(Login(endpoint, clock), clock, saves=False, budgets=Budgets({"us": 5}))
    assert measurement.layer("Login").verdict == "fail"
    assert endpoint.sent_past > 0


def test_counts_are_not_judged_by_a_whole_request() -> None:
    clock = FakeClock()
    app = TaskLogin(ForUsers(clock, us=600), clock)
    measurement = measured(app, clock, saves=False, budgets=Budgets({"us": 50, "tasks": 0}))
    judged = measurement.layer("TaskLogin").judged
    assert (judged["us"].verdict, judged["tasks"].verdict) == ("undecided", "fail")


def test_a_pass_of_a_layer_that_spawns_tasks_is_compared_with_a_whole_request() -> None:
    clock = FakeClock()
    endpoint = ForUsers(clock, us=600)
    measurement = measured(TaskLogin(endpoint, clock), clock, saves=False, budgets=Budgets({"us": 50}))
    assert row_us(measurement, "TaskLogin") == pytest.approx(10, abs=0.01)
    sentence = reason(measurement.layer("TaskLogin"))
    assert sentence.startswith("by its row the layer takes 10.0 µs (")
    assert "a whole request without it is 510.0 µs shorter (" in sentence
    assert endpoint.sent_past > 0


def test_a_pass_of_a_layer_that_spawns_tasks_stands_if_both_agree() -> None:
    clock = FakeClock()
    endpoint = ForUsers(clock, us=100)
    measurement = measured(TaskLogin(endpoint, clock), clock, saves=False, budgets=Budgets({"us": 50}))
    assert measurement.layer("TaskLogin").verdict == "pass"
    assert endpoint.sent_past > 0


def test_without_a_doubt_no_request_is_sent_past_a_layer() -> None:
    clock = FakeClock()
    for budgets in (Budgets({"us": 50}), Budgets({"tasks": 0}), Budgets()):
        endpoint = ForUsers(clock, us=600)
        measurement = measured(Login(endpoint, clock), clock, saves=False, budgets=budgets)
        assert measurement.verdict in ("pass", None)
        assert endpoint.sent_past == 0


def test_only_the_layers_in_doubt_are_left_out() -> None:
    clock = FakeClock()
    endpoint = ForUsers(clock, us=100)
    app = Costly(Login(endpoint, clock), clock, before=90)
    measurement = measured(app, clock, saves=False, budgets=Budgets({"us": 50}))
    assert [report.verdict for report in measurement.layers] == ["fail", "pass"]
    assert endpoint.sent_past == 0
    assert all(report.saves is None for report in measurement.layers)


def test_the_second_witness_takes_little_time_and_changes_no_row() -> None:
    runs = {}
    for witness_ns in (0, SCHEDULE.witness_ns):
        clock = FakeClock()
        endpoint = Slow(clock)
        app = Costly(Noop(endpoint), clock, before=90)
        measurement = measured(app, clock, saves=False, budgets=Budgets({"us": 50}), witness_ns=witness_ns)
        runs[witness_ns > 0] = measurement, endpoint.requests
    (plain, requests), (witnessed, more) = runs[False], runs[True]
    assert [replace(report, judged={}) for report in plain.layers] == [
        replace(report, judged={}) for report in witnessed.layers
    ]
    assert plain.layer("Costly").verdict == witnessed.layer("Costly").verdict == "fail"
    assert plain.books == witnessed.books
    assert more - requests == requests_of(witnessed) - requests_of(plain)
    # Blocks with the layer and without it, the requests until the code is warm, and one to try.
    block = SCHEDULE.block_settle_calls + SCHEDULE.block_calls
    assert more - requests == 2 * SCHEDULE.witness_rounds * block + SCHEDULE.settle_calls + 1


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_failure_stands_where_no_request_can_be_made_without_the_layer(method: str) -> None:
    clock = FakeClock()

    class Needed(Session):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            clock.let_pass(90)
            await super().__call__(scope, receive, send)

    app = Needed(NeedsSession(Slow(clock)))
    measurement = measured(app, clock, method, saves=False, budgets=Budgets({"us": 50}))
    assert [report.verdict for report in measurement.layers] == ["fail", "pass"]


# ---- intervals ----------------------------------------------------------------------------------------------------


LAYERS_US = {EntryIndex(index): us for index, us in enumerate([0.2, 8.0, 26.0, 110.0])}


def simulated(chance: random.Random, rounds: int, *, memory: float = 0.98, step_us: float = 0.3) -> list[Round]:
    """Simulate requests of 150 µs with heavy tails, and drift: noise with a memory that all requests share."""
    drift_us, blocks_by_round = 0.0, []
    for _ in range(rounds):
        blocks: list[tuple[Arm, Series]] = [(arm, Series()) for arm in (None, *LAYERS_US)]
        for arm, series in chance.sample(blocks, len(blocks)):
            for _ in range(4):
                drift_us = memory * drift_us + chance.gauss(0, step_us)
                tail_us = chance.expovariate(1 / 40) if chance.random() < 0.1 else 0.0
                us = 150 - (0.0 if arm is None else LAYERS_US[arm]) + drift_us + tail_us + abs(chance.gauss(0, 2))
                series.add(1000 * us, 2400 * chance.lognormvariate(0, 0.01))
        blocks_by_round.append(blocks)
    return blocks_by_round


@pytest.mark.parametrize("rounds", [16, 40])
@pytest.mark.parametrize(("memory", "step_us", "widest_us"), [(0.98, 0.3, 3), (0.9, 1.5, 8)])
def test_the_intervals_of_all_layers_hold_jointly(rounds: int, memory: float, step_us: float, widest_us: float) -> None:
    chance, runs, held, widths = random.Random(3), 100, 0, []
    for _ in range(runs):
        made = simulated(chance, rounds, memory=memory, step_us=step_us)
        saves_of = savings(made, dict.fromkeys(LAYERS_US, False), whole_us=0.0, quick_ns=2400.0)
        # The known error of the method would hide intervals that are too narrow.
        ends = {
            index: saves.us.widened(-method_us(saves.us.estimate, 0.0))
            for index, saves in saves_of.items()
            if saves.us is not None
        }
        assert ends.keys() == LAYERS_US.keys()
        widths += [us.half_width for us in ends.values()]
        held += all(us.low <= LAYERS_US[index] <= us.high for index, us in ends.items())
    # 99 % of the runs, less what chance allows.
    assert held >= 0.96 * runs
    assert median(widths) < widest_us


def test_too_few_requests_and_a_slow_machine_are_reasons() -> None:
    chance, layers = random.Random(3), dict.fromkeys(LAYERS_US, False)
    assert {saves.why for saves in savings(simulated(chance, 2), layers, 150.0, quick_ns=2400.0).values()} == {FEW}
    assert {saves.why for saves in savings([], layers, 150.0, quick_ns=2400.0).values()} == {FEW}
    slow = savings(simulated(chance, 60), layers, 150.0, quick_ns=1500.0)[EntryIndex(0)]
    assert slow.us is None
    assert slow.why is not None
    assert slow.why.startswith("the machine ran 1.6")
