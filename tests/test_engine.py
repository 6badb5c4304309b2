"""The whole sequence on a fake clock with seeded randomness: every figure is known exactly."""

from __future__ import annotations

import asyncio
import math
import os
import random
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import pairwise
from statistics import median
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route

import pytest_mwbudget.engine
import pytest_mwbudget.timing.looks
import pytest_mwbudget.timing.sampler
from pytest_mwbudget.analysis.estimates import Estimates, estimate, method_us
from pytest_mwbudget.analysis.event_log import Spent, spent
from pytest_mwbudget.analysis.judge import Conditions, Judge, judge
from pytest_mwbudget.analysis.samples import Samples
from pytest_mwbudget.asgi.calling import Hosting
from pytest_mwbudget.asgi.request import build_request
from pytest_mwbudget.config.budgets import Bounds, Budgets
from pytest_mwbudget.config.settings import Settings
from pytest_mwbudget.counting.backend import Backend, PythonCore
from pytest_mwbudget.engine import measure, measure_again, send_once
from pytest_mwbudget.errors import EndlessError, MeasurementError, RepetitionError, ResponseError
from pytest_mwbudget.model.estimate import Estimate
from pytest_mwbudget.model.quantities import COUNTED, PROCESS_WIDE, CountedQuantity
from pytest_mwbudget.model.results import Judged, LayerReport, Measurement, Occupation, Result, Verdict
from pytest_mwbudget.timing.host_speed import Machine
from pytest_mwbudget.timing.looks import Environment, cpu_clock
from pytest_mwbudget.timing.sampler import Sampler
from pytest_mwbudget.timing.schedule import Schedule

from .apps import Answering, Noop, RateLimit, caller, hello, indistinct, needs, respond

pytestmark = pytest.mark.once


@dataclass
class FakeClock:
    """A clock that advances by `read_ns` at each reading, and by the time that the app lets pass."""

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
class Clocks:
    """A wall clock and a processor clock, for apps that work, block and wait."""

    wall: FakeClock = field(default_factory=FakeClock)
    cpu: FakeClock = field(default_factory=FakeClock)

    def work(self, us: float) -> None:
        self.wall.let_pass(us)
        self.cpu.let_pass(us)

    def block(self, us: float) -> None:
        """Hold the event loop without using the processor."""
        self.wall.let_pass(us)

    async def wait(self, us: float, loops_us: float = 0.0) -> None:
        """Suspend for `us`; the event loop works for `loops_us` of this time."""
        # Whatever a callback did would be work of who scheduled it, so the time passes where the loop waits.
        selector: Any = asyncio.get_running_loop()._selector  # type: ignore[attr-defined]

        def select(timeout: float | None) -> Any:
            del selector.select
            self.block(us - loops_us)
            self.work(loops_us)
            return selector.select(timeout)

        selector.select = select
        await asyncio.sleep(0)


@dataclass
class Costly:
    """A layer that takes `before` µs before the inner app, `after` after it, and `each` for every message sent."""

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


# All shorter than the default: on a fake clock the first request of an app is as quick as the last.
SCHEDULE = Schedule(
    warm_calls=20,
    brief_warm_calls=10,
    counted_requests=5,
    uncounted_requests=2,
    settle_calls=4,
    most_first=64,
    precision_time_s=0.5,
    failure_time_s=0.3,
    watched_time_s=1.5,
    witness_rounds=24,
)
# As precise as the default, for tests of precision.
PRECISE = replace(SCHEDULE, precision_time_s=2.0, failure_time_s=1.0)
# For tests that need every kind of request, but not many of a kind.
FEW_OF_EACH: dict[str, Any] = {"warm_calls": 5, "brief_warm_calls": 5, "fewest_first": 8, "most_first": 8}
FEW_OF_EACH |= {"fewest_of_turn": 8, "most_of_turn": 8, "fewest_of_leg": 8, "settle_calls": 4}
FEW_OF_EACH |= {"counted_requests": 3, "uncounted_requests": 1, "executed_requests": 4, "agreeing_requests": 2}


@dataclass
class Server:
    """A Starlette app to measure on a fake clock; `requests` counts the calls of its endpoint."""

    clock: FakeClock = field(default_factory=FakeClock)
    # Each request costs real time. With a slower endpoint, fewer requests use up the time limits of the fake clock.
    endpoint_us: float = 4000.0
    cpu_clock: FakeClock | None = None
    # A well-known machine, whose known speed is slower than any reading.
    machine: Machine = field(default_factory=lambda: Machine(known_ns=1e9))
    # Whether the figures are read although all budgets are kept.
    precise: bool = True
    schedule: Schedule = SCHEDULE
    estimate: Callable[..., Estimates] = estimate
    judge: Judge = judge
    # Whether this request shares the time of a run with others.
    divided: bool = False
    requests: int = 0

    def measure(self, layers: list[Middleware], method: str = "GET", **settings: Any) -> Measurement:
        async def endpoint(request: Any) -> PlainTextResponse:
            self.requests += 1
            self.clock.let_pass(self.endpoint_us)
            return PlainTextResponse("ok")

        app = Starlette(routes=[Route("/", endpoint, methods=["GET", "POST"])], middleware=layers)
        environment = Environment(
            self.clock,
            self.cpu_clock,
            random.Random(7),
            self.machine,
            precise=self.precise,
            schedule=self.schedule,
            estimate=self.estimate,
            judge=self.judge,
            divided=self.divided,
        )
        request = build_request(method, "/", {})
        return asyncio.run(measure(app, request, Settings(**settings), environment))


def us(measurement: Measurement, name: str) -> float:
    estimate = measurement.layer(name).us
    return estimate.estimate


def reason(report: LayerReport, quantity: str = "us") -> str:
    """Return why a budget of a layer is undecided."""
    judged = {str(key): judged for key, judged in report.judged.items()}[quantity]
    assert judged.verdict == "undecided"
    assert judged.reason is not None
    return judged.reason


def occupation(measurement: Measurement, name: str) -> Occupation:
    occupied = measurement.layer(name).occupation
    assert occupied is not None
    return occupied


@pytest.mark.parametrize("read_ns", [0, 70])
def test_every_row_is_exact_whatever_a_reading_of_the_clock_costs(read_ns: int) -> None:
    server = Server(FakeClock(read_ns), endpoint_us=40)
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
    assert books.endpoint.estimate == pytest.approx(40, abs=0.2)
    assert books.total.estimate == pytest.approx(71, abs=0.2)
    assert books.residue_us == pytest.approx(0, abs=0.5)


def test_task_layers_and_what_is_inside_them_are_exact() -> None:
    server = Server()
    clock = server.clock
    measurement = server.measure(
        [
            Middleware(Silent, clock=clock, us=100),
            Middleware(Costly, clock=clock, before=20),
            Middleware(Silent, clock=clock, us=30),
        ]
    )
    assert us(measurement, "Silent#1") == pytest.approx(100, abs=0.01)
    assert us(measurement, "Costly") == pytest.approx(20, abs=0.01)
    assert us(measurement, "Silent#2") == pytest.approx(30, abs=0.01)
    assert measurement.books.residue_us == pytest.approx(0, abs=0.1)


def test_the_same_is_done_between_all_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work between requests leaves the caches cold: with less work there, the total was less than its rows."""
    crossings = []

    def counted(log: Sequence[int], owners: int) -> Spent:
        crossings.append(len(log))
        return spent(log, owners)

    monkeypatch.setattr(pytest_mwbudget.timing.sampler, "spent", counted)
    server = Server(cpu_clock=FakeClock())
    measurement = server.measure([Middleware(Silent, clock=server.clock, us=100)])
    assert len(crossings) == measurement.effort.requests > 0
    assert min(crossings) > 4


def test_a_null_layer_with_which_a_task_begins_is_charged_with_no_suspension() -> None:
    nulls_ns: list[float] = []

    class Waits:
        def __init__(self, app: Any) -> None:
            self.app = app

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            # The event loop works before it starts the task.
            asyncio.get_running_loop().call_soon(server.clock.let_pass, 30)
            await asyncio.create_task(self.app(scope, receive, send))

    def noted(samples: Samples, *args: Any, **named: Any) -> Estimates:
        nulls_ns.extend(samples.split.null_ns)
        return estimate(samples, *args, **named)

    server = Server(estimate=noted)
    server.measure([Middleware(Waits), Middleware(Costly, clock=server.clock)], method="POST")
    assert set(nulls_ns) == {0}


def test_an_unsafe_request_is_never_sent_past_a_layer() -> None:
    server = Server()
    measurement = server.measure([Middleware(Silent, clock=server.clock, us=100)], method="POST")
    assert us(measurement, "Silent") == pytest.approx(100, abs=0.01)


@pytest.mark.parametrize(
    ("most", "sharing", "verdict"),
    [
        (80, True, "fail"),
        (95, True, "undecided"),
        (105, True, "undecided"),
        (110, True, "pass"),
        (98, False, "undecided"),
        (106, False, "pass"),
    ],
)
def test_a_task_layer_may_share_its_switches_with_others_that_suspend(
    most: float, sharing: bool, verdict: Verdict
) -> None:
    class Yields(Costly):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await asyncio.sleep(0)
            await super().__call__(scope, receive, send)

    server = Server()
    layers = [Middleware(Silent, clock=server.clock, us=100), *[Middleware(Yields, clock=server.clock)] * sharing]
    measurement = server.measure(
        layers, method="POST", budgets=Budgets(layers={"Silent": {"us": most}}), max_time_s=0.6
    )
    report = measurement.layer("Silent")
    half_us = 8 if sharing else 4
    assert (report.us.low, report.us.high) == (pytest.approx(100 - half_us, abs=1), pytest.approx(100 + half_us, abs=1))
    assert report.verdict == verdict
    if verdict == "undecided":
        assert "no run would decide" in reason(report)


@pytest.mark.parametrize("before", [20, 8])
def test_budgets_are_judged_and_the_run_stops_when_all_is_known(before: float) -> None:
    server = Server(endpoint_us=1000)
    layers = [Middleware(Costly, clock=server.clock, before=before), Middleware(Costly, clock=server.clock, before=5)]
    measurement = server.measure(layers, budgets=Budgets({"us": 10}, total_us=2000))
    verdicts = {report.name: report.verdict for report in measurement.layers}
    assert verdicts == {
        "ServerErrorMiddleware": "pass",
        "Costly#1": "fail" if before > 10 else "pass",
        "Costly#2": "pass",
        "ExceptionMiddleware": "pass",
    }
    assert measurement.total.verdict == "pass"
    assert measurement.verdict == verdicts["Costly#1"]
    assert measurement.effort.seconds >= SCHEDULE.failure_time_s if before > 10 else measurement.effort.requests < 300
    assert measurement.effort.seconds < 2


@dataclass
class Wavering:
    """A layer that takes 5 to 15 µs: a run knows that it keeps 20 µs long before it knows the cost precisely."""

    app: Any
    clock: FakeClock
    chance: random.Random = field(default_factory=lambda: random.Random(3))
    spread: float = 5

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.clock.let_pass(self.chance.uniform(10 - self.spread, 10 + self.spread))
        await self.app(scope, receive, send)


WITHOUT = dict.fromkeys(PROCESS_WIDE, "no extension")
STOPPED_NOTE = "Sampling stopped as soon as every budget was known to be kept."


def noting_looks(looks: list[tuple[int, int]]) -> Callable[..., Estimates]:
    """Return an estimator that adds the number of each look, and the number of requests at this look."""

    def noted(samples: Samples, *args: Any, look: int, **named: Any) -> Estimates:
        looks.append((look, samples.requests))
        return estimate(samples, *args, look=look, **named)

    return noted


@pytest.mark.parametrize("budgets", [Budgets({"us": 20}), Budgets({}, total_us=800), Budgets({"us": 20, "tasks": 0})])
def test_where_nobody_reads_the_figures_a_run_stops_when_all_budgets_are_known_to_be_kept(budgets: Budgets) -> None:
    requests, schedule = {}, replace(SCHEDULE, precision_time_s=0.3)
    for precise in (False, True):
        server = Server(precise=precise, endpoint_us=400, schedule=schedule)
        measurement = server.measure([Middleware(Wavering, clock=server.clock)], budgets=budgets)
        assert measurement.verdict == "pass"
        assert any(STOPPED_NOTE in note for note in measurement.notes) == (not precise)
        interval = measurement.layer("Wavering").us
        assert interval.low < 10 < interval.high
        requests[precise] = server.requests
    assert requests[False] < 500
    assert requests[True] > 3 * requests[False]


@pytest.mark.parametrize(
    "budgets",
    [
        Budgets(),  # without budgets, the table is the result
        Budgets({"allocations": 0, "us": 20}),  # fails, and its report has a table
        Budgets(layers={"Wavering": {"us": 2}, "ServerErrorMiddleware": {"us": 20}}),
    ],
)
def test_figures_that_are_read_are_precise_also_where_nobody_asked_for_them(budgets: Budgets) -> None:
    # A run that stops as soon as its verdict is known has a half-width of about 0.9 µs.
    schedule = replace(SCHEDULE, precision_time_s=0.25, failure_time_s=0.1)
    server = Server(precise=False, endpoint_us=200, schedule=schedule)
    measurement = server.measure([Middleware(Wavering, clock=server.clock, spread=1.2)], budgets=budgets)
    assert measurement.verdict == ("fail" if budgets.quantities else None)
    assert not any(STOPPED_NOTE in note for note in measurement.notes)
    interval = measurement.layer("Wavering").us
    assert interval.half_width < 0.6


def test_samples_of_an_app_that_is_not_warm_bring_no_other_verdict_than_that_all_is_kept() -> None:
    """Such samples are thrown away, and the look at them has spent its share of alpha."""
    looks: list[tuple[int, int]] = []
    server = Server(precise=False, estimate=noting_looks(looks))
    measurement = server.measure(
        [Middleware(Wavering, clock=server.clock)], budgets=Budgets(layers={"Wavering": {"us": 4}})
    )
    assert measurement.verdict == "fail"
    assert [look for look, _ in looks] == list(range(1, len(looks) + 1))
    assert looks[0][1] >= looks[1][1]  # the first look shows a failure, so these samples get no second look
    assert all(before < after for (_, before), (_, after) in pairwise(looks[1:]))
    assert server.requests > looks[0][1] + looks[-1][1] + SCHEDULE.warm_calls


def test_above_a_slow_app_no_samples_are_thrown_away() -> None:
    looks: list[tuple[int, int]] = []
    server = Server(endpoint_us=5000, precise=False, estimate=noting_looks(looks))
    layers = [Middleware(Wavering, clock=server.clock)]
    measurement = server.measure(layers, budgets=Budgets(layers={"Wavering": {"us": 11.5}}))
    assert measurement.verdict == "pass"
    assert looks[0][1] < looks[1][1]


def test_a_machine_that_nobody_knows_is_watched_for_longer_before_a_failure_is_believed() -> None:
    schedule = replace(SCHEDULE, witness_ns=0)
    server = Server(machine=Machine(), endpoint_us=5000, schedule=schedule)
    layers = [Middleware(Costly, clock=server.clock, before=20)]
    seconds = []
    for _ in range(3):
        measurement = server.measure(layers, budgets=Budgets(layers={"Costly": {"us": 10}}))
        assert measurement.verdict == "fail"
        seconds.append(measurement.effort.seconds)
    assert seconds[0] >= SCHEDULE.watched_time_s
    assert all(SCHEDULE.failure_time_s <= run_s < SCHEDULE.watched_time_s for run_s in seconds[1:])


def test_a_machine_that_earlier_runs_saw_for_a_moment_is_watched_for_the_rest_of_the_time() -> None:
    """Runs whose budgets are kept watch the machine for only some tenths of a second."""
    server = Server(machine=Machine(known_ns=1e9, watched_s=0.5), endpoint_us=2000)
    layers = [Middleware(Costly, clock=server.clock, before=20)]
    measurement = server.measure(layers, budgets=Budgets(layers={"Costly": {"us": 10}}))
    assert measurement.verdict == "fail"
    assert measurement.effort.seconds >= SCHEDULE.watched_time_s - 0.5


@pytest.mark.parametrize(
    ("said", "verdict"), [(["fail", "pass"], "pass"), (["fail", "undecided", "pass"], "pass"), (["fail"] * 2, "fail")]
)
def test_a_failure_is_believed_when_two_looks_in_a_row_say_so(said: list[Verdict], verdict: Verdict) -> None:
    # The first look takes longer than the time after which a failure counts.
    later = iter(["undecided", *said])

    def judge(quantity: str, us: Estimate, bound: float, conditions: Conditions) -> Judged:
        return Judged(bound, next(later), "as the test says")

    server = Server(endpoint_us=10_000, judge=judge)
    layers = [Middleware(Costly, clock=server.clock, before=20)]
    measurement = server.measure(layers, budgets=Budgets(layers={"Costly": {"us": 10}}), max_time_s=60)
    assert measurement.verdict == verdict
    assert next(later, None) is None


def test_only_the_look_at_which_the_time_is_over_has_the_chances_that_are_left() -> None:
    lasts = []

    def noted(*args: Any, last: bool, **named: Any) -> Estimates:
        lasts.append(last)
        return estimate(*args, last=last, **named)

    server = Server(endpoint_us=5000, estimate=noted)
    layers = [Middleware(Costly, clock=server.clock, before=20)]
    server.measure(layers, budgets=Budgets(layers={"Costly": {"us": 20}}), max_time_s=3)
    assert lasts[-1]
    assert not any(lasts[:-1])
    assert len(lasts) > 2


def test_at_the_end_of_the_time_one_look_is_enough_for_a_failure() -> None:
    def judge(quantity: str, us: Estimate, bound: float, conditions: Conditions) -> Judged:
        return Judged(bound, "fail" if server.clock.now_ns >= 2e9 else "undecided")

    server = Server(endpoint_us=5000, judge=judge)
    layers = [Middleware(Costly, clock=server.clock, before=20)]
    measurement = server.measure(layers, budgets=Budgets(layers={"Costly": {"us": 10}}), max_time_s=2)
    assert measurement.verdict == "fail"


def test_a_cost_that_wavers_about_its_budget_is_undecided_when_the_time_is_over() -> None:
    server = Server()
    chance = random.Random(3)

    class Wavering:
        def __init__(self, app: Any) -> None:
            self.app = app

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            server.clock.let_pass(chance.choice([8, 12]))
            await self.app(scope, receive, send)

    measurement = server.measure([Middleware(Wavering)], budgets=Budgets({"us": 10}), max_time_s=0.1)
    report = measurement.layer("Wavering")
    assert report.verdict == "undecided"
    assert "the interval" in reason(report)
    assert measurement.effort.seconds == pytest.approx(0.1, rel=0.1)


@pytest.mark.parametrize(("us", "watched_s", "verdict"), [(50, 0.0, "undecided"), (50, 9.0, "fail"), (99, 0.0, "pass")])
def test_no_failure_counts_in_the_little_time_that_a_run_leaves_one_request(
    us: float, watched_s: float, verdict: Verdict
) -> None:
    server = Server(machine=Machine(known_ns=1e9, watched_s=watched_s), divided=True)
    layers = [Middleware(Costly, clock=server.clock, before=90)]
    report = server.measure(layers, budgets=Budgets({"us": us}), max_time_s=0.4).layer("Costly")
    assert report.verdict == verdict
    if verdict == "undecided":
        assert reason(report).startswith("a failure in 0.4 s may be the machine's: --mw-budget-max-time=")


class TimesLater:
    """Recorded limits of times, which judge the result."""

    timed = True

    def following(self, results: Any, route: str | None = None) -> Any:
        return self

    def judged(self, result: Any, crowded: str | None) -> Any:
        return result


def test_recorded_times_are_sampled_as_long_as_a_failure_needs() -> None:
    for watched_s, least_s in ((0.0, SCHEDULE.watched_time_s), (9.0, SCHEDULE.failure_time_s)):
        server = Server(machine=Machine(known_ns=1e9, watched_s=watched_s), precise=False)
        layers = [Middleware(Costly, clock=server.clock, before=90)]
        measurement = server.measure(layers, budgets=Budgets(), limits=TimesLater())
        assert measurement.effort is not None
        assert measurement.effort.seconds >= least_s


def test_a_slow_machine_is_no_reason_to_fail() -> None:
    """The layer exceeds its budget only by the slowdown of the machine."""
    machine = Machine(known_ns=100.0)
    clock = FakeClock(read_ns=200)  # the reference workload takes one reading: 200 ns, twice its best

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await respond(send)

    layer = Costly(app, clock, before=75)
    request = build_request("GET", "/", {})
    settings = Settings(budgets=Budgets({"us": 50}), max_time_s=0.02)
    environment = Environment(clock, None, random.Random(7), machine, schedule=SCHEDULE)
    measurement = asyncio.run(measure(layer, request, settings, environment))
    report = measurement.layer("Costly")
    assert measurement.slowdown == pytest.approx(2.0)
    assert report.verdict == "undecided"
    assert "The machine ran 2.00 times slower than at its best. [slow-machine]" in measurement.notes
    assert "2.00 times slower" in reason(report)


def test_a_note_names_what_was_read_while_the_machine_was_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock(read_ns=100)
    whole_leg = Sampler.whole_leg

    async def slow(*arguments: Any) -> None:
        clock.read_ns = 160
        await whole_leg(*arguments)
        clock.read_ns = 100

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await respond(send)

    monkeypatch.setattr(Sampler, "whole_leg", slow)
    request = build_request("GET", "/", {})
    settings = Settings(budgets=Budgets({"us": 100}), max_time_s=0.05)
    layer = Costly(app, clock, before=15)
    environment = Environment(clock, None, random.Random(7), Machine(), schedule=SCHEDULE)
    measurement = asyncio.run(measure(layer, request, settings, environment))
    note = "The machine ran 1.60 times slower than at its best while it read (total), and not for the rest."
    assert f"{note} [slow-machine]" in measurement.notes
    assert measurement.verdict == "pass"


def test_requests_without_probes_are_as_far_apart_as_those_with_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The longer other processes run between two requests, the colder the caches."""
    clock, begun = FakeClock(read_ns=1000), {"split": [], "whole": []}  # type: dict[str, list[list[int]]]

    def in_leg(name: str) -> Callable[..., Awaitable[None]]:
        leg = getattr(Sampler, f"{name}_leg")

        async def in_this_leg(sampler: Sampler, *arguments: Any) -> None:
            begun[name].append([])
            legs.append(name)
            await leg(sampler, *arguments)
            legs.pop()

        return in_this_leg

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if legs:
            begun[legs[-1]][-1].append(clock.now_ns)
        await respond(send)

    evaluate = Sampler._evaluate_a_log

    def evaluated(*arguments: Any) -> None:
        evaluate(*arguments)
        clock.let_pass(5)

    legs: list[str] = []
    for name in begun:
        monkeypatch.setattr(Sampler, f"{name}_leg", in_leg(name))
    monkeypatch.setattr(Sampler, "_evaluate_a_log", evaluated)
    layers = Costly(Costly(app, clock, before=15), clock, before=15)
    environment = Environment(clock, None, random.Random(7), Machine(), schedule=SCHEDULE)
    asyncio.run(measure(layers, build_request("GET", "/", {}), Settings(max_time_s=0.05), environment))
    split_ns, whole_ns = (
        median(later - ns for leg in begun[name] for ns, later in pairwise(leg[SCHEDULE.settle_calls :]))
        for name in ("split", "whole")
    )
    assert split_ns > 50_000
    assert split_ns <= whole_ns <= split_ns + 10_000


@dataclass
class ThrottledAtFirst(FakeClock):
    """A clock on which everything takes twice as long for the first `slow_ns`."""

    slow_ns: int = 300_000_000

    def __call__(self) -> int:
        self.now_ns += self.read_ns * (1 + (self.now_ns < self.slow_ns))
        return self.now_ns

    def let_pass(self, us: float) -> None:
        super().let_pass(us * (1 + (self.now_ns < self.slow_ns)))


def test_a_slow_stretch_at_the_beginning_is_no_reason_to_fail() -> None:
    """No other run has shown how fast the machine can be."""
    server = Server(ThrottledAtFirst(read_ns=200))
    measurement = server.measure(
        [Middleware(Costly, clock=server.clock, before=50)], budgets=Budgets(layers={"Costly": {"us": 70}})
    )
    assert measurement.layer("Costly").verdict == "pass"
    assert us(measurement, "Costly") == pytest.approx(50, abs=0.5)


class Giver(Silent):
    """A task layer that the inner app may need."""

    async def dispatch(self, request: Any, call_next: Callable[[Any], Awaitable[Any]]) -> Any:
        request.scope["gift"] = True
        return await super().dispatch(request, call_next)


def test_a_layer_that_the_inside_needs_is_measured_in_place() -> None:
    server = Server()

    class Taker(Costly):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            assert scope["gift"]
            await super().__call__(scope, receive, send)

    measurement = server.measure(
        [Middleware(Giver, clock=server.clock, us=50), Middleware(Taker, clock=server.clock, before=20)]
    )
    assert us(measurement, "Giver") == pytest.approx(50, abs=0.01)
    assert us(measurement, "Taker") == pytest.approx(20, abs=0.01)


class Tenant(Silent):
    """A task layer that sets the tenant for the layers inside."""

    async def dispatch(self, request: Any, call_next: Callable[[Any], Awaitable[Any]]) -> Any:
        request.scope["tenant"] = "t"
        return await super().dispatch(request, call_next)


class Work(Costly):
    """A layer that works only if there is a tenant."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if "tenant" in scope:
            self.clock.let_pass(400)
        await self.app(scope, receive, send)


@pytest.mark.parametrize(("budget_us", "verdict"), [(25, "fail"), (300, "undecided"), (600, "pass")])
def test_a_layer_without_which_the_inside_does_something_else_is_measured_in_place(
    budget_us: float, verdict: Verdict
) -> None:
    """`Work` works only for a tenant, so a request without `Tenant` is shorter by the cost of both."""
    server = Server(endpoint_us=2000)
    measurement = server.measure(
        [Middleware(Tenant, clock=server.clock, us=50), Middleware(Work, clock=server.clock)],
        budgets=Budgets(layers={"Tenant": {"us": budget_us}, "Work": {"us": 300}}),
    )
    assert us(measurement, "Tenant") == pytest.approx(50, abs=0.01)
    assert us(measurement, "Work") == pytest.approx(400, abs=0.01)
    assert measurement.layer("Tenant").verdict == verdict
    assert measurement.layer("Work").verdict == "fail"
    if verdict == "undecided":
        assert "is 450.0 µs shorter" in reason(measurement.layer("Tenant"))


@pytest.mark.parametrize("endpoint_us", [5_000, 20_000, 30_000])
def test_a_slow_endpoint_takes_no_more_requests_and_the_total_is_known_as_well(endpoint_us: float) -> None:
    server = Server(endpoint_us=endpoint_us)
    measurement = server.measure([Middleware(Costly, clock=server.clock, before=20)])
    assert measurement.books.total.low == measurement.books.total.high == endpoint_us + 20
    assert us(measurement, "Costly") == pytest.approx(20, abs=0.01)
    assert measurement.effort.requests < 130


UNKNOWN = Estimate(60.0, -math.inf, math.inf)


@pytest.mark.parametrize("what", ["whole", "outside", "split", "cpu"])
def test_a_run_goes_on_until_everything_is_known_and_its_looks_grow(what: str) -> None:
    """Every look spends a share of alpha; a look without time left for it would widen the intervals."""
    looks = 0

    def without(*arguments: Any, **named: Any) -> Estimates:
        nonlocal looks
        looks += 1
        estimates = estimate(*arguments, **named)
        rows = {"split": estimates.split, "cpu": estimates.cpu}.get(what)
        return replace(estimates, **{what: UNKNOWN if rows is None else dict.fromkeys(rows, UNKNOWN)})  # type: ignore[arg-type]

    clock, schedule = FakeClock(), replace(SCHEDULE, most_first=32)
    server = Server(clock, cpu_clock=clock, endpoint_us=10_000, schedule=schedule, estimate=without)
    measurement = server.measure([Middleware(Costly, clock=server.clock, before=20)])
    assert measurement.effort.seconds == pytest.approx(5, rel=0.1)
    # The looks have 32, 64, 128, 256 and more requests; looks of one size would be 10.
    assert looks < 7


def test_a_deep_stack_takes_no_more_requests_than_a_shallow_one() -> None:
    def requests(depth: int) -> int:
        server = Server(cpu_clock=FakeClock())
        layers = [Middleware(Costly, clock=server.clock, before=5) for _ in range(depth)]
        measurement = server.measure(layers, budgets=Budgets({"us": 10}))
        assert measurement.verdict == "pass"
        return measurement.effort.requests

    assert requests(100) <= requests(3) + 8


def test_a_deep_stack_has_room_for_what_stands_between_its_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with the core in Python. Without a measurement, this app is far from the recursion limit."""
    monkeypatch.setattr(pytest_mwbudget.engine, "counting_backend", lambda: Backend(PythonCore(), WITHOUT))
    limit = sys.getrecursionlimit()
    server = Server(cpu_clock=FakeClock(), schedule=replace(SCHEDULE, **FEW_OF_EACH))
    layers = [Middleware(Costly, clock=server.clock, before=5) for _ in range(150)]
    assert server.measure(layers, budgets=Budgets({"us": 10}), max_time_s=0.1).status == 200
    assert sys.getrecursionlimit() == limit


def test_above_a_slow_endpoint_task_layers_are_exact() -> None:
    server = Server(endpoint_us=50_000)
    measurement = server.measure([Middleware(Silent, clock=server.clock, us=100)], max_time_s=5)
    assert us(measurement, "Silent") == pytest.approx(100, abs=0.01)
    assert measurement.effort.seconds < 6
    assert measurement.layer("ServerErrorMiddleware").us is not None


def test_progress_is_reported_as_a_share_of_the_time() -> None:
    server = Server()
    shares: list[float | None] = []
    environment = Environment(server.clock, None, random.Random(7), Machine(), shares.append, schedule=SCHEDULE)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        server.clock.let_pass(random.choice([50, 150]))
        await respond(send)

    request = build_request("GET", "/", {})
    settings = Settings(budgets=Budgets(total_us=100), max_time_s=0.02)
    asyncio.run(measure(Costly(app, server.clock), request, settings, environment))
    assert shares.pop() is None
    assert shares
    assert all(share is not None and 0 <= share <= 1 for share in shares)


def test_a_response_that_never_ends_is_an_error() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.Event().wait()

    request = build_request("GET", "/", {})
    with pytest.raises(MeasurementError, match=r"did not begin a response within 0\.01 s"):
        asyncio.run(send_once(app, request, Settings(startup_timeout_s=0.01, lifespan=False)))


@pytest.mark.parametrize("hosted", [False, True])
def test_a_response_that_begins_and_never_ends_says_where_it_hangs(*, hosted: bool) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await asyncio.Event().wait()

    request, settings = build_request("GET", "/", {}), Settings(startup_timeout_s=0.2, lifespan=False)
    hosting = Hosting(None, 0.3) if hosted else None
    message = (
        rf"the response did not end within {'0.3' if hosted else '0.2'} s;.*; it waited at .*app .*, inside Noop > "
    )
    with pytest.raises(EndlessError, match=message):
        asyncio.run(measure(Noop(app), request, settings, Environment(), hosting=hosting))


def test_the_layers_are_looked_for_once() -> None:
    """Somebody else has made the first call; two are traced, and the settings that say no end it there."""
    calls = 0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal calls
        calls += 1
        await hello(scope, receive, send)

    async def main() -> Result | None:
        again = await caller(Noop(app))
        await again()
        return await measure_again(again, Settings(), Environment(), None, lambda stack, settings: None)

    assert asyncio.run(main()) is None
    assert calls == 3


def test_the_app_is_as_it_was_after_a_request_that_fails_midway() -> None:
    calls = 0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal calls
        calls += 1
        if calls > 250:
            raise LookupError("worn out")
        await respond(send)

    clock = FakeClock(read_ns=10)
    layer = Costly(app, clock)
    codes = Costly.__call__.__code__, app.__code__
    request = build_request("GET", "/", {})
    with pytest.raises(RepetitionError, match="call 251 raised LookupError: worn out"):
        asyncio.run(
            measure(layer, request, Settings(lifespan=False), Environment(clock, None, random.Random(7), Machine()))
        )
    assert (Costly.__call__.__code__, app.__code__) == codes


@pytest.mark.parametrize("calls_answered", [1, 2, 3, 50], ids=["traced", "traced again", "warm", "51st"])
def test_an_app_that_stops_answering_when_it_is_called_again_is_an_error(calls_answered: int) -> None:
    pool = asyncio.Semaphore(calls_answered)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await pool.acquire()
        await hello(scope, receive, send)

    with pytest.raises(MeasurementError, match=r"stopped answering when it was called again: .* within 0\.6 s"):
        counted(Noop(app), {"tasks": 0}, schedule=Schedule(), startup_timeout_s=0.6)


@pytest.mark.parametrize("measuring", [True, False])
def test_one_request_at_a_time(measuring: bool) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(0)
        await hello(scope, receive, send)

    async def make() -> Measurement:
        request, settings = build_request("GET", "/", {}), Settings(Budgets({"tasks": 0}), lifespan=False)
        return await (
            measure(app, request, settings, Environment()) if measuring else send_once(app, request, settings)
        )

    async def main() -> list[Any]:
        return [*await asyncio.gather(make(), make(), return_exceptions=True), await make()]

    exit_before = os._exit
    one, other, after = asyncio.run(main())
    assert (one.status, after.status) == (200, 200)
    assert isinstance(other, MeasurementError)
    assert "one request at a time" in str(other)
    assert os._exit is exit_before


def test_an_app_that_stops_answering_while_it_is_timed_is_an_error() -> None:
    """The progress callback runs only while requests are timed."""
    clock, begun = FakeClock(read_ns=1000), asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if begun.is_set():
            await asyncio.sleep(60)
        await hello(scope, receive, send)

    environment = Environment(clock, None, random.Random(7), Machine(), lambda share: begun.set())
    request = build_request("GET", "/", {})
    settings = Settings(startup_timeout_s=0.6, lifespan=False)
    with pytest.raises(MeasurementError, match=r"stopped answering while it was measured: .* within 0\.6 s"):
        asyncio.run(measure(Costly(app, clock), request, settings, environment))


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_task_layer_is_the_same_for_every_method(method: str) -> None:
    server = Server()
    measurement = server.measure(
        [Middleware(Silent, clock=server.clock, us=400)], method=method, budgets=Budgets(layers={"Silent": {"us": 200}})
    )
    assert us(measurement, "Silent") == pytest.approx(400, abs=0.01)
    assert measurement.verdict == "fail"


def test_without_an_interval_no_more_time_is_advised_than_somebody_waits() -> None:
    for endpoint_us, advice in (
        (500_000, "--mw-budget-max-time=51 may be enough"),
        (50_000_000, "use a budget of counts (tasks, objects)"),
    ):
        server = Server(endpoint_us=endpoint_us)
        layers = [Middleware(Costly, clock=server.clock, before=10)]
        measurement = server.measure(layers, budgets=Budgets({}, total_us=20), max_time_s=1, startup_timeout_s=60)
        reason = str(measurement.total.judged["us"].reason)
        assert "there were too few requests for an interval" in reason
        assert advice in reason


def figures_noted(**changed: Estimate) -> str:
    """Return the notes of a measurement with some estimates changed."""

    def change(*args: Any, **named: Any) -> Estimates:
        return replace(estimate(*args, **named), **changed)

    server = Server(endpoint_us=200, estimate=change)
    measurement = server.measure([Middleware(Costly, clock=server.clock, before=30)])
    return "\n".join(measurement.notes)


@pytest.mark.parametrize(
    ("total", "note"),
    [
        (Estimate(230, 229, 231), None),
        (Estimate(240, 239, 241), None),  # within 6 per cent
        (Estimate(270, 268, 272), "The rows add up to 15% less than the total"),
        (Estimate(200, 198, 202), "The rows add up to 15% more than the total"),
        (Estimate(270, 228, 312), None),  # within the interval
        (Estimate(298, 172, 514), "The intervals of (total) are too wide to set a budget by"),
    ],
)
def test_a_table_that_is_bad_says_so(total: Estimate, note: str | None) -> None:
    noted = figures_noted(whole=total)
    for bad in ("The rows add up", "too wide"):
        assert (bad in noted) == (note is not None and bad in note)
    assert note is None or note in noted


def test_wide_intervals_of_little_are_none() -> None:
    assert "too wide" not in figures_noted(outside=Estimate(1, -3, 5))
    assert "The intervals of (outside) are too wide" in figures_noted(outside=Estimate(9, 1, 17))


def test_a_run_that_stops_at_the_verdict_does_not_complain_of_its_figures() -> None:
    server = Server(precise=False)
    measurement = server.measure([Middleware(Wavering, clock=server.clock)], budgets=Budgets({"us": 500}))
    assert not any("too wide" in note for note in measurement.notes)


@pytest.mark.parametrize(("waits_us", "said"), [(0, None), (10, None), (65, "65 µs"), (20_000, "20 ms")])
def test_above_an_endpoint_that_waits_the_table_says_what_that_does_to_rows(waits_us: float, said: str | None) -> None:
    clocks = Clocks()

    async def endpoint(request: Any) -> PlainTextResponse:
        clocks.work(20)
        if waits_us:
            await clocks.wait(waits_us)
        return PlainTextResponse("ok")

    app = Starlette(routes=[Route("/", endpoint)], middleware=[Middleware(Costly, clock=clocks.wall, before=20)])
    environment = Environment(clocks.wall, clocks.cpu, random.Random(7), Machine(), schedule=SCHEDULE)
    measurement = asyncio.run(measure(app, build_request("GET", "/", {}), Settings(), environment))
    notes = [note for note in measurement.notes if "Caches are cold when it goes on" in note]
    assert [f"The endpoint waits, for {said}. " in note for note in notes] == ([True] if said else [])


@pytest.mark.parametrize(("around_us", "noted"), [(20, False), (100, False), (400, True)])
def test_what_stands_round_the_app_object_is_noted_where_it_takes_much(around_us: float, noted: bool) -> None:
    clock = FakeClock()

    class Patched(Starlette):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            clock.let_pass(around_us)
            await super().__call__(scope, receive, send)

    async def endpoint(request: Any) -> PlainTextResponse:
        clock.let_pass(500)
        return PlainTextResponse("ok")

    app = Patched(routes=[Route("/", endpoint)])
    measurement = counted(app, None, clock, max_time_s=1)
    assert any(note.startswith("(outside) is code around the app object") for note in measurement.notes) == noted


def test_without_a_row_the_whole_is_to_be_precise() -> None:
    clock = FakeClock()
    noise = random.Random(7)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        clock.let_pass(noise.uniform(1000, 3000))
        await hello(scope, receive, send)

    measurement = counted(app, None, clock, PRECISE, max_time_s=5)
    assert (
        measurement.books.total.half_width <= 0.03 * measurement.books.total.estimate
        or measurement.effort.seconds >= PRECISE.precision_time_s
    )
    assert measurement.effort.requests > 192


def test_a_total_is_judged_where_no_probe_can_stand() -> None:
    clock = FakeClock()
    app = indistinct(Costly(hello, clock, before=600))
    brief = replace(SCHEDULE, precision_time_s=0.1, failure_time_s=0.1, watched_time_s=0.1)
    for total_us, verdict in ((1000, "pass"), (300, "fail")):
        measurement = counted(app, None, clock, brief, budgets=Budgets(total_us=total_us), max_time_s=2)
        assert measurement.total.verdict == verdict


# ---- waiting, blocking, working ---------------------------------------------------------------------------------


@dataclass
class Spends:
    """A layer that works, blocks and waits, in microseconds; the event loop works for `loops` of the wait."""

    app: Any
    clocks: Clocks
    work: float = 0.0
    block: float = 0.0
    wait: float = 0.0
    loops: float = 0.0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.clocks.work(self.work)
        self.clocks.block(self.block)
        if self.wait:
            await self.clocks.wait(self.wait, self.loops)
        await self.app(scope, receive, send)


class SpendsInATask(BaseHTTPMiddleware):
    """A task layer that works and waits."""

    def __init__(self, app: Any, clocks: Clocks, work: float = 0.0, wait: float = 0.0) -> None:
        super().__init__(app)
        self.clocks, self.work, self.wait = clocks, work, wait

    async def dispatch(self, request: Any, call_next: Callable[[Any], Awaitable[Any]]) -> Any:
        self.clocks.work(self.work)
        await self.clocks.wait(self.wait)
        return await call_next(request)


class StartsATask(Spends):
    """A layer that works and waits, and starts a task for the inner app. Quicker than a framework's task layer."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.clocks.work(self.work)
        await self.clocks.wait(self.wait)
        await asyncio.create_task(self.app(scope, receive, send))


def spending(*layers: dict[str, float], cpu: bool = True, **settings: Any) -> Measurement:
    """Measure an app with a layer `Spends` for each of these, on both clocks or on the wall clock only."""
    clocks = Clocks()
    server = Server(clocks.wall, cpu_clock=clocks.cpu if cpu else None)
    return server.measure([Middleware(Spends, clocks=clocks, **spent) for spent in layers], **settings)


def exactly(us: float) -> object:
    return pytest.approx(us, abs=0.01)


def test_a_layer_that_works_is_busy_all_the_time() -> None:
    measurement = spending({"work": 200})
    occupied = occupation(measurement, "Spends")
    assert us(measurement, "Spends") == exactly(200)
    assert occupied.busy == measurement.layer("Spends").us
    assert (occupied.wait_us, occupied.cpu_us, occupied.blocking) == (0, exactly(200), False)


def test_a_layer_that_waits_is_not_busy_meanwhile() -> None:
    measurement = spending({"work": 20, "wait": 300})
    occupied = occupation(measurement, "Spends")
    assert us(measurement, "Spends") == exactly(320)
    assert occupied.busy.estimate == exactly(20)
    assert occupied.busy.half_width == exactly(method_us(20, measurement.books.total.estimate))
    assert (occupied.wait_us, occupied.cpu_us, occupied.blocking) == (exactly(300), exactly(20), False)


def test_a_layer_that_blocks_is_busy_without_the_processor() -> None:
    measurement = spending({"work": 20, "block": 200})
    occupied = occupation(measurement, "Spends")
    assert us(measurement, "Spends") == exactly(220)
    assert occupied.busy == measurement.layer("Spends").us
    assert (occupied.wait_us, occupied.cpu_us, occupied.blocking) == (0, exactly(20), True)


def test_a_layer_may_work_block_and_wait() -> None:
    measurement = spending({"work": 100, "block": 200, "wait": 400})
    occupied = occupation(measurement, "Spends")
    assert us(measurement, "Spends") == exactly(700)
    assert (occupied.busy.estimate, occupied.wait_us, occupied.cpu_us) == (exactly(300), exactly(400), exactly(100))
    assert occupied.blocking


def test_each_layer_has_its_own_share_of_the_time() -> None:
    measurement = spending({"work": 30}, {"wait": 300}, {"block": 200}, {"work": 40})
    rows = [occupation(measurement, f"Spends#{number}") for number in (1, 2, 3, 4)]
    assert [row.busy.estimate for row in rows] == [exactly(30), exactly(0), exactly(200), exactly(40)]
    assert [row.wait_us for row in rows] == [0, exactly(300), 0, 0]
    assert [row.cpu_us for row in rows] == [exactly(30), exactly(0), exactly(0), exactly(40)]
    assert [row.blocking for row in rows] == [False, False, True, False]


def test_without_a_clock_of_the_processor_nobody_is_said_to_block() -> None:
    measurement = spending({"work": 20, "block": 200}, {"wait": 300}, cpu=False)
    blocks, waits = occupation(measurement, "Spends#1"), occupation(measurement, "Spends#2")
    assert (blocks.busy.estimate, blocks.cpu_us, blocks.blocking) == (exactly(220), None, False)
    assert (waits.busy.estimate, waits.wait_us, waits.cpu_us) == (exactly(0), exactly(300), None)


def test_with_few_requests_on_the_clock_of_the_processor_nothing_is_said_of_it() -> None:
    measurement = spending({"work": 4000, "block": 4000}, max_time_s=0.3)
    occupied = occupation(measurement, "Spends")
    assert occupied.busy.estimate == exactly(8000)
    assert (occupied.cpu_us, occupied.blocking) == (None, False)
    measurement = spending({"work": 4000, "block": 4000}, max_time_s=0.8)
    occupied = occupation(measurement, "Spends")
    assert (occupied.cpu_us, occupied.blocking) == (exactly(4000), True)


@pytest.mark.parametrize(
    ("wait", "loops", "wait_us"),
    [
        (4, 0, 0),  # the event loop's overhead between two steps
        (300, 300, 0),
        (300, 230, 0),
        (300, 200, 100),
        (300, 100, 200),
    ],
)
def test_what_the_event_loop_works_during_a_suspension_is_no_wait(wait: float, loops: float, wait_us: float) -> None:
    measurement = spending({"work": 20, "wait": wait, "loops": loops})
    occupied = occupation(measurement, "Spends")
    assert us(measurement, "Spends") == exactly(20 + wait)
    assert occupied.wait_us == exactly(wait_us)
    assert occupied.busy.estimate == exactly(20 + wait - wait_us)
    assert not occupied.blocking


@pytest.mark.parametrize(
    ("work", "block", "blocking"), [(0, 45, False), (0, 55, True), (600, 150, False), (600, 250, True)]
)
def test_a_little_time_without_the_processor_is_no_blocking(work: float, block: float, blocking: bool) -> None:
    assert occupation(spending({"work": work, "block": block}), "Spends").blocking is blocking


def test_a_task_layer_that_waits() -> None:
    clocks = Clocks()
    server = Server(clocks.wall, cpu_clock=clocks.cpu)
    measurement = server.measure([Middleware(SpendsInATask, clocks=clocks, work=50, wait=300)])
    assert us(measurement, "SpendsInATask") == exactly(350)
    occupied = occupation(measurement, "SpendsInATask")
    assert (occupied.busy.estimate, occupied.wait_us, occupied.cpu_us) == (exactly(50), exactly(300), exactly(50))
    assert not occupied.blocking


@pytest.mark.parametrize(
    ("bounds", "verdicts"),
    [
        ({"busy_us": 50}, {"busy_us": "pass"}),
        ({"busy_us": 10}, {"busy_us": "fail"}),
        ({"busy_us": 50, "us": 50}, {"busy_us": "pass", "us": "fail"}),
        ({"busy_us": 10, "us": 500}, {"busy_us": "fail", "us": "pass"}),
    ],
)
def test_a_budget_for_holding_the_event_loop_is_held_against_what_is_busy(
    bounds: Bounds, verdicts: dict[str, Verdict]
) -> None:
    measurement = spending({"work": 20, "wait": 300}, budgets=Budgets(layers={"Spends": bounds}))
    report = measurement.layer("Spends")
    assert {quantity: judged.verdict for quantity, judged in report.judged.items()} == verdicts
    assert {quantity: judged.bound for quantity, judged in report.judged.items()} == bounds
    assert report.verdict == measurement.verdict == ("fail" if "fail" in verdicts.values() else "pass")


def test_blocking_is_busy() -> None:
    measurement = spending({"block": 200}, budgets=Budgets({"busy_us": 100}))
    assert measurement.layer("Spends").verdict == "fail"
    assert measurement.layer("ExceptionMiddleware").verdict == "pass"


def test_a_busy_time_of_too_few_requests_is_undecided_for_that() -> None:
    measurement = spending({"work": 20, "wait": 30_000}, budgets=Budgets({"busy_us": 100}), max_time_s=0.05)
    why = reason(measurement.layer("Spends"), "busy_us")
    assert why.startswith("there were too few requests to tell how long it holds the event loop; ")


def test_a_busy_time_that_wavers_about_its_budget_is_undecided() -> None:
    clocks, chance = Clocks(), random.Random(3)

    class Wavering(Spends):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            self.work = chance.choice([8, 12])
            await super().__call__(scope, receive, send)

    measurement = Server(clocks.wall, cpu_clock=clocks.cpu).measure(
        [Middleware(Wavering, clocks=clocks, wait=300)], budgets=Budgets({"busy_us": 10}), max_time_s=0.5
    )
    assert "the interval" in reason(measurement.layer("Wavering"), "busy_us")


OPEN_US, CLOSED_US = 100.0, 999.0
# Budgets with open verdicts, and the kinds of requests that can decide these verdicts.
OPEN: dict[str, tuple[Budgets, set[str]]] = {
    "layer": (Budgets(layers={"Spends": {"us": OPEN_US}}), {"split"}),
    "busy layer": (Budgets(layers={"Spends": {"busy_us": OPEN_US}}), {"split", "cpu"}),
    "layer only": (Budgets(layers={"Spends": {"us": OPEN_US}, "StartsATask": {"us": CLOSED_US}}), {"split"}),
    "layer that suspends": (Budgets(layers={"StartsATask": {"us": OPEN_US}}), {"split", "whole"}),
    "endpoint": (Budgets(endpoint_us=OPEN_US), {"split"}),
    "total": (Budgets(total_us=OPEN_US), {"whole"}),
    "layer and total": (Budgets(layers={"Spends": {"us": OPEN_US}}, total_us=OPEN_US), {"split", "whole"}),
    "all": (Budgets({"us": OPEN_US, "busy_us": OPEN_US}, total_us=OPEN_US), set()),
}


def judged_as_told(quantity: str, us: Estimate, bound: float, conditions: Conditions) -> Judged:
    return Judged(bound, "undecided", "as the test says") if bound == OPEN_US else Judged(bound, "pass")


def requests_by_look(
    budgets: Budgets,
    judge: Judge,
    change: Callable[[Estimates], Estimates] = lambda estimates: estimates,
    schedule: Schedule = SCHEDULE,
    endpoint_us: float = 400,
) -> list[dict[str, int]]:
    """List the number of requests of each kind at each look, with `change` applied to the estimates."""
    # A quarter of all sizes, so that less time has as many looks. Short turns, because the last may end early.
    sizes = {"fewest_first": 16, "most_first": 32, "fewest_of_turn": 8, "fewest_of_leg": 8, "settle_calls": 8}
    schedule = replace(schedule, **sizes, turn_ns=10_000_000)
    looks: list[dict[str, int]] = []

    def noted(samples: Samples, *arguments: Any, **named: Any) -> Estimates:
        kinds = {"split": samples.split.spent, "cpu": samples.cpu.spent, "whole": samples.whole.values}
        looks.append({"all": samples.requests, **{kind: len(taken) for kind, taken in kinds.items()}})
        return change(estimate(samples, *arguments, **named))

    clocks = Clocks()

    async def endpoint(scope: Any, receive: Any, send: Any) -> None:
        clocks.block(endpoint_us)
        await respond(send)

    app = StartsATask(Spends(endpoint, clocks, work=20), clocks, work=50, wait=300)
    machine = Machine(known_ns=1e9)
    environment = Environment(
        clocks.wall, clocks.cpu, random.Random(7), machine, schedule=schedule, estimate=noted, judge=judge
    )
    settings = Settings(budgets, lifespan=False, max_time_s=1.5)
    asyncio.run(measure(app, build_request("GET", "/", {}), settings, environment))
    return looks


def most_grown(looks: list[dict[str, int]]) -> set[str]:
    """Return the kinds of requests that grew most after the first look."""
    first, last = looks[0], looks[-1]
    grown = {kind: (last[kind] - first[kind]) / first[kind] for kind in first.keys() - {"all"}}
    assert min(grown.values()) > max(grown.values()) / 10
    return {kind for kind in grown if grown[kind] > 2 * min(grown.values())}


@cache
def looks_while_open(name: str) -> list[dict[str, int]]:
    """Return the looks of one run, shared by the tests: with a fixed seed another run would be the same."""
    return requests_by_look(OPEN[name][0], judged_as_told)


@pytest.mark.parametrize("name", OPEN)
def test_the_time_goes_into_what_an_open_verdict_hangs_on(name: str) -> None:
    assert most_grown(looks_while_open(name)) == OPEN[name][1]


@pytest.mark.parametrize(("endpoint_us", "probed_for_each"), [(400, 1), (4000, 4)])
def test_whole_requests_are_as_many_as_probed_ones_but_in_a_slow_app(endpoint_us: float, probed_for_each: int) -> None:
    looks = requests_by_look(OPEN["all"][0], judged_as_told, endpoint_us=endpoint_us)
    assert looks[0]["split"] == probed_for_each * looks[0]["whole"]


def test_while_a_failure_is_fresh_all_rows_get_the_time() -> None:
    budgets = Budgets(layers={"StartsATask": {"us": OPEN_US}})
    looks = requests_by_look(budgets, lambda *args: Judged(OPEN_US, "fail"), schedule=PRECISE)
    assert len(looks) > 2
    assert most_grown(looks) == set()


@pytest.mark.parametrize("name", ["layer", "total"])
def test_a_look_makes_about_as_many_requests_whatever_is_wanted(name: str) -> None:
    everything, some = looks_while_open("all"), looks_while_open(name)
    assert len(some) > 4  # there was time left
    assert some[3]["all"] == pytest.approx(everything[3]["all"], rel=0.3)


def test_a_budget_below_the_detection_limit_waits_for_the_null_layers() -> None:
    budgets = Budgets(layers={"Spends": {"us": OPEN_US}})
    looks = requests_by_look(
        budgets, judged_as_told, lambda estimates: replace(estimates, detection_limit_us=2 * OPEN_US)
    )
    assert most_grown(looks) == {"split"}


@pytest.mark.parametrize(("resolution", "usable"), [(1e-9, True), (1e-6, True), (0.0156, False)])
def test_a_clock_of_the_processor_that_ticks_too_slowly_is_not_used(
    resolution: float, usable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = time.get_clock_info("thread_time")
    info.resolution = resolution
    monkeypatch.setattr(pytest_mwbudget.timing.looks, "get_clock_info", lambda name: info)
    assert (cpu_clock() is not None) == (Environment().cpu_clock is not None) == usable


# ---- counting ---------------------------------------------------------------------------------------------------


@dataclass
class Spawner:
    """A layer that spawns tasks."""

    app: Any
    tasks: int = 1

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await asyncio.gather(*(self.rest() for _ in range(self.tasks)))
        await self.app(scope, receive, send)

    async def rest(self) -> None:
        pass


@dataclass
class Keeper:
    """A layer that retains an object of every request."""

    app: Any
    kept: list[bytearray] = field(default_factory=list)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.kept.append(bytearray(10_000))
        await self.app(scope, receive, send)


def counted(
    app: Any, bounds: Bounds | None = None, clock: Any = None, schedule: Schedule | None = None, **settings: Any
) -> Measurement:
    """Measure an app without a framework; `bounds` are the default budget."""
    budgets = {"budgets": Budgets(bounds)} if bounds else {}
    environment = Environment(clock or FakeClock(), None, random.Random(7), Machine(), schedule=schedule or SCHEDULE)
    request = build_request("GET", "/", {})
    return asyncio.run(measure(app, request, Settings(**{"lifespan": False} | budgets | settings), environment))


def count(measurement: Measurement, name: str, quantity: CountedQuantity) -> int:
    counts = measurement.layer(name).counts
    quantity_count = counts.of(quantity)
    return quantity_count.count


def test_when_every_budget_is_a_count_nothing_is_timed() -> None:
    server = Server()
    layers = [Middleware(Costly, clock=server.clock, before=20), Middleware(Spawner, tasks=3)]
    measurement = server.measure(layers, budgets=Budgets({"tasks": 2}))
    assert (measurement.books, measurement.floor_us, measurement.effort) == (None, None, None)
    assert (measurement.total.verdict, measurement.verdict) == (None, "fail")
    verdicts = {report.name: report.verdict for report in measurement.layers}
    assert verdicts == {
        "ServerErrorMiddleware": "pass",
        "Costly": "pass",
        "Spawner": "fail",
        "ExceptionMiddleware": "pass",
    }
    for report in measurement.layers:
        assert (report.us, report.occupation) == (None, None)
        assert report.counts is not None
        assert set(report.judged) == {"tasks"}
    assert count(measurement, "Spawner", "tasks") == 3
    assert measurement.ledger.requests == SCHEDULE.counted_requests
    # Nearly all requests are warm-up.
    assert server.requests < 150


def test_when_a_budget_is_a_time_counts_are_reported_as_well() -> None:
    server = Server()
    measurement = server.measure([Middleware(Spawner, tasks=3)], budgets=Budgets({"us": 10}))
    assert count(measurement, "Spawner", "tasks") == 3
    assert measurement.layer("Spawner").verdict == "pass"
    assert measurement.books is not None


def test_without_a_budget_everything_is_reported_and_nothing_judged() -> None:
    measurement = counted(Spawner(hello, 2), clock=FakeClock(read_ns=10))
    report = measurement.layer("Spawner")
    assert (report.judged, report.verdict, measurement.verdict) == ({}, None, None)
    assert count(measurement, "Spawner", "tasks") == 2
    assert report.us is not None
    assert report.occupation is not None


@pytest.mark.parametrize(
    ("us_bound", "tasks", "verdicts"),
    [
        (10, 5, {"us": "fail", "tasks": "pass"}),
        (50, 2, {"us": "pass", "tasks": "fail"}),
        (50, 3, {"us": "pass", "tasks": "pass"}),
    ],
)
def test_a_layer_may_have_a_budget_of_time_and_one_of_a_count(
    us_bound: float, tasks: int, verdicts: dict[str, Verdict]
) -> None:
    server = Server()

    class SlowSpawner(Spawner):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            server.clock.let_pass(20)
            await super().__call__(scope, receive, send)

    budgets = Budgets(layers={"SlowSpawner": {"us": us_bound, "tasks": tasks}})
    measurement = server.measure([Middleware(SlowSpawner, tasks=3)], budgets=budgets)
    report = measurement.layer("SlowSpawner")
    assert {quantity: judged.verdict for quantity, judged in report.judged.items()} == verdicts
    assert us(measurement, "SlowSpawner") == exactly(20)
    assert report.verdict == measurement.verdict == ("fail" if "fail" in verdicts.values() else "pass")


def test_a_budget_on_the_whole_request_needs_the_clock_beside_counts() -> None:
    server = Server()
    measurement = server.measure([Middleware(Spawner)], budgets=Budgets({"tasks": 1}, total_us=20))
    assert measurement.total.verdict == "fail"
    assert measurement.layer("Spawner").verdict == "pass"
    assert measurement.verdict == "fail"


@pytest.mark.parametrize(("tasks", "verdict"), [(2, "fail"), (3, "pass"), (4, "pass")])
def test_no_clock_however_wild_changes_the_verdict_on_a_count(tasks: int, verdict: Verdict) -> None:
    wild = random.Random(5)
    for clock in (FakeClock(), FakeClock(read_ns=2_000_000_000), lambda: wild.randrange(10**12)):
        measurement = counted(Spawner(Noop(hello), 3), {"tasks": tasks}, clock)
        assert measurement.layer("Spawner").verdict == measurement.verdict == verdict
        assert measurement.layer("Noop").verdict == "pass"


def test_of_a_slow_app_fewer_requests_are_counted() -> None:
    measurement = counted(Spawner(hello, 3), {"tasks": 3}, FakeClock(read_ns=2_000_000_000))
    assert 1 <= measurement.ledger.requests < 21
    assert count(measurement, "Spawner", "tasks") == 3


@dataclass
class Spender(Keeper):
    """A layer whose count of every quantity is above zero."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await asyncio.to_thread(len, "")
        await asyncio.create_task(Spawner(hello).rest())
        await super().__call__(scope, receive, send)


@pytest.mark.parametrize("quantity", [pytest.param(quantity, marks=needs(quantity)) for quantity in COUNTED])
def test_every_count_can_have_a_budget(quantity: CountedQuantity) -> None:
    measurement = counted(Spender(Noop(hello)), {quantity: 10**9})
    assert {report.name: set(report.judged) for report in measurement.layers} == {
        "Spender": {quantity},
        "Noop": {quantity},
    }
    assert measurement.verdict == "pass"
    spent = count(measurement, "Spender", quantity)
    assert spent > count(measurement, "Noop", quantity)
    # Threads race, so some of these counts vary.
    most = spent // 2
    assert counted(Spender(Noop(hello)), {quantity: most}).layer("Spender").verdict == "fail"


def merged_layer(measurement: Measurement) -> LayerReport:
    return next(report for report in measurement.layers if report.layer.merged_with is not None)


def test_a_layer_that_is_merged_is_within_a_count_when_both_together_are() -> None:
    app = Spawner(indistinct(Noop(hello)), 3)
    within = counted(app, {"tasks": 3})
    merged = merged_layer(within)
    assert (merged.counts, merged.layer.merged_with) == (None, "Spawner")
    assert [report.verdict for report in within.layers] == ["pass", "pass", "pass"]
    above = counted(app, {"tasks": 1})
    assert [report.verdict for report in above.layers] == ["fail", "undecided", "pass"]
    assert "it is measured together with Spawner" in reason(merged_layer(above), "tasks")
    assert any(f"{merged.name} is measured with Spawner" in note for note in above.notes)


def test_a_layer_fails_for_a_count_only_if_it_is_too_much_for_all_that_is_measured_with_it() -> None:
    app = Spawner(indistinct(Noop(hello)), 3)
    between = counted(app, {"tasks": 2})
    assert [report.verdict for report in between.layers] == ["undecided", "undecided", "pass"]
    merged = merged_layer(between)
    assert f"{merged.name} is measured together with it" in reason(between.layer("Spawner"), "tasks")
    alone = counted(app, budgets=Budgets(layers={"Spawner": {"tasks": 2}}))
    assert [report.verdict for report in alone.layers] == ["undecided", None, None]


def test_a_layer_that_is_merged_is_within_a_time_when_both_together_are() -> None:
    clock = FakeClock()
    app = Costly(indistinct(Costly(hello, clock, before=30)), clock, before=20)
    within = counted(app, {"us": 25, "busy_us": 25}, clock, max_time_s=0.02)
    assert merged_layer(within).us is None
    assert [report.verdict for report in within.layers] == ["pass", "pass", "fail"]
    above = counted(app, {"us": 9}, clock, max_time_s=0.02)
    assert [report.verdict for report in above.layers] == ["fail", "undecided", "fail"]
    assert "it is measured together with Costly#1" in reason(merged_layer(above))


def test_a_layer_fails_for_a_time_only_if_it_is_too_much_for_all_that_is_measured_with_it() -> None:
    clock = FakeClock()
    app = Costly(indistinct(Costly(hello, clock, before=30)), clock, before=20)
    between = counted(app, {"us": 15}, clock, max_time_s=0.02)
    assert [report.verdict for report in between.layers] == ["undecided", "undecided", "fail"]
    assert f"{merged_layer(between).name} is measured together with it" in reason(between.layer("Costly#1"))
    alone = counted(app, None, clock, budgets=Budgets(layers={"Costly#1": {"us": 9}}), max_time_s=0.02)
    assert [report.verdict for report in alone.layers] == ["undecided", None, None]


def test_what_is_merged_with_the_outside_alone_is_undecided() -> None:
    measurement = counted(indistinct(Noop(hello)), {"tasks": 3})
    assert [report.verdict for report in measurement.layers] == ["undecided", "pass"]
    assert "it is measured together with the outside of the stack" in reason(merged_layer(measurement), "tasks")


def test_a_count_of_a_layer_that_was_not_entered_is_undecided_where_it_is_named() -> None:
    budgets = Budgets({"tasks": 0, "threads": 0}, {"Spawner": {"tasks": 9}})
    measurement = counted(Noop(Answering(Spawner(hello), 200)), budgets=budgets)
    absent = measurement.layer("Spawner")
    assert (absent.counts, absent.us, set(absent.judged)) == (None, None, {"tasks"})
    assert reason(absent, "tasks") == "the request did not come to it: a layer outside answered [not-entered]"
    assert measurement.layer("Noop").verdict == "pass"
    assert measurement.verdict == "undecided"


def test_what_cannot_be_counted_is_undecided_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    why = {**WITHOUT, "retained": "no such thing"}
    monkeypatch.setattr(pytest_mwbudget.engine, "counting_backend", lambda: Backend(PythonCore(), why))
    measurement = counted(Spawner(hello, 3), {"objects": 10**6, "retained": 10**6, "bytes": 10**6, "tasks": 2})
    report = measurement.layer("Spawner")
    assert reason(report, "objects") == "objects cannot be counted here: no extension [uncountable]"
    assert reason(report, "bytes") == "bytes cannot be counted here: no extension [uncountable]"
    assert reason(report, "retained") == "retained cannot be counted here: no such thing [uncountable]"
    assert report.judged["tasks"].verdict == report.verdict == measurement.verdict == "fail"
    assert (report.counts.objects, report.counts.allocations, report.counts.bytes) == (None, None, None)
    assert (report.counts.tasks.count, report.counts.sent.count) == (3, 2)
    assert measurement.ledger.why == why
    assert measurement.books is None


@needs("allocations", "bytes")
def test_the_rows_of_the_ledger_add_up_to_its_total() -> None:
    measurement = counted(Spawner(Keeper(Noop(hello)), 2), {"tasks": 9})
    ledger = measurement.ledger
    assert ledger.endpoint is not None
    rows = [ledger.outside, ledger.endpoint, *(report.counts for report in measurement.layers)]
    assert len(rows) == 5
    for quantity in COUNTED:
        total = ledger.total.of(quantity)
        parts = [row.of(quantity) for row in rows if row is not None]
        assert (total is None) == all(part is None for part in parts)
        if total is not None and total.exact:
            assert total.count == sum(part.count for part in parts if part is not None)
    assert ledger.total.tasks.count == 2
    assert (ledger.total.sent.count, ledger.total.received.count) == (2, 0)


@needs("bytes")
def test_what_a_layer_requests_of_the_allocators_is_its_own() -> None:
    measurement = counted(Keeper(Noop(hello)), {"bytes": 5000})
    assert 10_000 < count(measurement, "Keeper", "bytes") < 12_000
    assert [report.verdict for report in measurement.layers] == ["fail", "pass"]


@needs("objects", "retained")
def test_what_stays_alive_is_charged_to_who_made_it() -> None:
    measurement = counted(Keeper(Noop(hello)), {"retained": 0})
    counts = measurement.layer("Keeper").counts
    assert counts.retained.kinds == {"builtins.bytearray": 1}
    assert counts.retained.exact  # the objects of the request after those counted are not among them
    assert [report.verdict for report in measurement.layers] == ["fail", "pass"]


@needs("objects")
def test_types_that_no_other_row_creates_are_a_layers_own() -> None:
    measurement = counted(Keeper(Noop(hello)), {"objects": 10**6})
    own = {report.name: report.counts.own_types for report in measurement.layers if report.counts}
    # Since CPython 3.15 a bytearray holds its bytes in a bytes object.
    inside = {"builtins.bytes"} if sys.version_info >= (3, 15) else set()
    assert set(own["Keeper"]) == {"builtins.bytearray", *inside}
    assert own["Noop"] == ()


def test_an_app_that_stops_answering_while_it_is_counted_is_an_error() -> None:
    calls = 0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal calls
        calls += 1
        if calls > 120:  # warm and discovered by then
            await asyncio.sleep(60)
        await hello(scope, receive, send)

    with pytest.raises(
        MeasurementError,
        match=r"while it was counted: a request .* within 0\.6 s; .* it waited at .*app \(.*inside Noop",
    ):
        counted(Noop(app), {"tasks": 0}, schedule=Schedule(), startup_timeout_s=0.6)
    assert calls < 135


def test_the_app_is_as_it_was_after_a_request_that_fails_while_it_is_counted() -> None:
    codes = Noop.__call__.__code__, hello.__code__, RateLimit.__call__.__code__
    with pytest.raises(ResponseError, match="call 116 answered 429"):
        counted(Noop(RateLimit(hello, 115)), {"tasks": 0}, schedule=Schedule())
    assert (Noop.__call__.__code__, hello.__code__, RateLimit.__call__.__code__) == codes
    assert counted(Noop(hello), {"tasks": 0}).verdict == "pass"


def test_the_measurement_names_the_loop_that_it_ran_on() -> None:
    assert counted(Noop(hello), {"tasks": 0}).loop == "asyncio"
