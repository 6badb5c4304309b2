"""Growth with the requests served: by simulations, on a fake clock, and live."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from time import perf_counter_ns
from typing import Any

import pytest
from starlette.middleware import Middleware

import pytest_mwbudget.engine
from pytest_mwbudget.analysis import estimates
from pytest_mwbudget.analysis.growth import FEWEST_REQUESTS, Slope, course, grow, lasting, slope
from pytest_mwbudget.config.budgets import Budgets
from pytest_mwbudget.model.results import LayerReport, Measurement
from pytest_mwbudget.model.stack import Layer
from pytest_mwbudget.model.trend import Trend
from pytest_mwbudget.report.growing import growing
from pytest_mwbudget.report.terminal import table
from pytest_mwbudget.report.view import view
from pytest_mwbudget.storage import codec
from pytest_mwbudget.timing.many_requests import Served, served
from pytest_mwbudget.timing.schedule import Schedule

from .apps import FAST, Noop, hello, measured, needs, run_inside
from .canned import as_json, one_run
from .readings import never, readings
from .test_engine import SCHEDULE, Costly, FakeClock, Server
from .test_report_schema import misfits

pytestmark = pytest.mark.once

ALPHA = 0.01 / 5
REQUESTS = 3000


# ---- simulations ----------------------------------------------------------------------------------------------------


def found_in(values: list[float], reference: list[float] | None = None) -> Slope:
    growth = slope(values, reference or [3000.0] * len(values), ALPHA)
    assert growth is not None
    return growth


def correlated(chance: random.Random, centre: float = 20_000, memory: float = 0.9, noise: float = 300) -> list[float]:
    values, state = [], 0.0
    for _ in range(REQUESTS):
        state = memory * state + chance.gauss(0, noise)
        values.append(centre + state + (chance.expovariate(1 / 5000) if chance.random() < 0.05 else 0))
    return values


def constant(chance: random.Random) -> tuple[list[float], list[float]]:
    return correlated(chance), [3000 + chance.gauss(0, 20) for _ in range(REQUESTS)]


def paced(
    values: list[float], reference: list[float], paces: list[float], power: float
) -> tuple[list[float], list[float]]:
    """Slow a machine down by a factor for each request, and a layer by a power of it."""
    return (
        [ns * pace**power for ns, pace in zip(values, paces, strict=True)],
        [ns * pace for ns, pace in zip(reference, paces, strict=True)],
    )


def stepping_unseen(chance: random.Random) -> tuple[list[float], list[float]]:
    """Make a layer a fifth slower from some request on, which the reference workload does not show."""
    values, reference = constant(chance)
    step = chance.randrange(REQUESTS)
    return [ns * (1.2 if number > step else 1) for number, ns in enumerate(values)], reference


def slowing(chance: random.Random) -> tuple[list[float], list[float]]:
    """Make a machine that slows down by 4 % all the time, and a layer that suffers more."""
    values, reference = constant(chance)
    paces = [1 + 0.04 * number / REQUESTS for number in range(REQUESTS)]
    return paced(values, reference, paces, 1.9)


def half_speed_for_a_while(chance: random.Random) -> tuple[list[float], list[float]]:
    values, reference = constant(chance)
    slow, number = False, 0
    while number < REQUESTS:
        length = chance.randrange(50, 1000)
        if slow:
            for place in range(number, min(REQUESTS, number + length)):
                values[place] *= 2
                reference[place] *= 1.7
        slow, number = not slow, number + length
    return values, reference


def warming_up(chance: random.Random) -> tuple[list[float], list[float]]:
    values, reference = constant(chance)
    return [ns * (1 + 0.5 * math.exp(-number / 400)) for number, ns in enumerate(values)], reference


def filling_a_cache(chance: random.Random) -> tuple[list[float], list[float]]:
    """Make a layer whose cost grows until its cache is full, after a third of the requests."""
    values, reference = constant(chance)
    return [ns + 10 * min(number, REQUESTS // 3) for number, ns in enumerate(values)], reference


def clock_rate_varies(chance: random.Random) -> tuple[list[float], list[float]]:
    """Make a machine whose pace wanders by 1.5 %, and a layer that follows it more or less."""
    values, reference = constant(chance)
    power, drift, paces = chance.uniform(0, 2), 0.0, []
    for _ in range(REQUESTS):
        drift = 0.997 * drift + chance.gauss(0, 0.0012)
        paces.append(1 + drift)
    return paced(values, reference, paces, power)


@pytest.mark.parametrize(
    "make",
    [constant, stepping_unseen, slowing, clock_rate_varies, half_speed_for_a_while, warming_up, filling_a_cache],
)
def test_what_does_not_grow_is_never_named(make: Callable[[random.Random], tuple[list[float], list[float]]]) -> None:
    chance = random.Random(1)
    for _ in range(20):
        values, reference = make(chance)
        assert not found_in(values, reference).grows


def test_what_a_slowing_machine_may_add_is_in_the_interval() -> None:
    chance = random.Random(1)
    growth = [found_in(*slowing(chance)).ns_per_request for _ in range(20)]
    assert all(ns.low < 0 < ns.estimate < ns.high for ns in growth)


@pytest.mark.parametrize(
    ("make", "grown"),
    [(constant, 6.0), (constant, 20.0), (clock_rate_varies, 10.0), (half_speed_for_a_while, 20.0)],
)
def test_growth_is_named_with_its_slope(
    make: Callable[[random.Random], tuple[list[float], list[float]]], grown: float
) -> None:
    chance = random.Random(2)
    for _ in range(10):
        values, reference = make(chance)
        growth = found_in([ns + grown * number for number, ns in enumerate(values)], reference)
        assert growth.grows
        assert growth.ns_per_request.low <= grown <= growth.ns_per_request.high
        assert growth.ns_per_request.estimate == pytest.approx(grown, rel=0.15, abs=0.5)


def test_too_few_requests_tell_nothing() -> None:
    assert slope([1.0] * (FEWEST_REQUESTS - 1), [1.0] * (FEWEST_REQUESTS - 1), ALPHA) is None
    late = [*range(FEWEST_REQUESTS), 100 * FEWEST_REQUESTS]  # one in the second half
    assert slope([1.0] * len(late), [1.0] * len(late), ALPHA, late) is None


def in_turns(chance: random.Random) -> list[int]:
    """Return the numbers of requests before each, when other requests are made between legs of very unlike length."""
    served, number = [], 0
    for place in range(REQUESTS):
        number += 1 if place % 60 else chance.choice([40, 300, 3000])
        served.append(number)
    return served


@pytest.mark.parametrize("memory", [0.0, 0.9])
def test_growth_shows_whatever_is_served_between_the_requests(memory: float) -> None:
    chance = random.Random(4)
    for _ in range(10):
        served = in_turns(chance)
        grown = [ns + 1.0 * n for ns, n in zip(correlated(chance, memory=memory), served, strict=True)]
        assert grow(grown, [3000.0] * REQUESTS, ALPHA, served)
        assert not grow(correlated(chance, memory=memory), [3000.0] * REQUESTS, ALPHA, served)


def test_the_course_of_growth_holds_nothing_beyond_the_values() -> None:
    values = [5000.0 + 10 * number for number in range(REQUESTS)]
    estimate = course(values)
    assert min(values) <= estimate.low < 5600
    assert estimate.estimate == pytest.approx(20_000, abs=10)
    assert 34_400 < estimate.high <= max(values)


def test_a_handful_of_values_does_not_grow() -> None:
    assert not grow([], [], ALPHA)
    assert not grow([1.0, 2.0, 3.0], [3000.0] * 3, ALPHA)


def test_objects_grow_if_all_stretches_leave_some() -> None:
    assert lasting([{"dict": 2, "str": 1}] * 100) == {"dict": 2, "str": 1}
    assert lasting([{"dict": 1} if number % 2 else {} for number in range(100)]) == {"dict": 0.5}
    # A full cache that holds a few requests more than were made later, and a cache that fills once.
    assert lasting([{}] * 60 + [{"dict": 1}] * 40) == {}
    assert lasting([{"dict": 1}] * 20 + [{}] * 80) == {}
    assert lasting([]) == {}


# ---- on a fake clock ------------------------------------------------------------------------------------------------

SHORT = replace(SCHEDULE, trend_requests=600, trend_counted=64, trend_followed=320)


@dataclass
class Growing:
    """A layer that takes `more_ns` more with each request, and keeps a list of each."""

    app: Any
    clock: FakeClock
    more_ns: float = 10
    kept: list[list[int]] = field(default_factory=list)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.kept.append([1])
        self.clock.let_pass(10 + self.more_ns / 1000 * len(self.kept))
        await self.app(scope, receive, send)


class Recent:
    """A layer that remembers the latest requests."""

    def __init__(self, app: Any, most: int) -> None:
        self.app = app
        self.latest: deque[list[int]] = deque(maxlen=most)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.latest.append([1])
        await self.app(scope, receive, send)


def trend_of(found: Measurement, name: str) -> Trend:
    trend = found.layer(name).trend
    assert trend is not None
    return trend


@pytest.fixture(scope="module")
def grown() -> Measurement:
    server = Server(schedule=SHORT)
    layers = [Middleware(Growing, clock=server.clock), Middleware(Costly, clock=server.clock, before=20)]
    return server.measure(layers, trend=True)


def test_the_slope_is_exact(grown: Measurement) -> None:
    trend = trend_of(grown, "Growing")
    assert trend.us_per_1000.estimate == pytest.approx(10, abs=0.01)
    assert trend.slower
    assert trend.requests == 600
    other = trend_of(grown, "Costly")
    assert other.us_per_1000.estimate == pytest.approx(0, abs=0.01)
    assert not other.grows


def of_growing(
    budgets: Budgets, endpoint_us: float = 2000, more_ns: float = 60, schedule: Schedule = SCHEDULE
) -> Measurement:
    server = Server(endpoint_us=endpoint_us, schedule=schedule)
    growing = Middleware(Growing, clock=server.clock, more_ns=more_ns)
    layers = [growing, Middleware(Costly, clock=server.clock, before=20)]
    return server.measure(layers, budgets=budgets, max_time_s=1.5)


@pytest.fixture(scope="module")
def undecided() -> Measurement:
    return of_growing(Budgets({"us": 24, "busy_us": 24}))


def test_an_undecided_verdict_names_growth(undecided: Measurement) -> None:
    """Neither more time nor a larger budget would tell."""
    judged = undecided.layer("Growing").judged
    # Growth of the total shows only after some hundred requests without probes, of which there are usually few.
    often_whole = replace(SCHEDULE, whole_every=1)
    total = of_growing(Budgets(total_us=455), endpoint_us=400, more_ns=40, schedule=often_whole)
    assert [judged["us"].verdict, judged["busy_us"].verdict, total.total.verdict] == ["undecided"] * 3
    for reason in (judged["us"].reason, judged["busy_us"].reason, total.total.judged["us"].reason):
        assert reason.endswith("[growing]")
        assert "may be enough" not in reason
        assert "1.3 times" not in reason
    assert undecided.layer("Costly").judged["us"].verdict == "pass"
    note = next(note for note in undecided.notes if note.endswith("[growing]"))
    assert "Growing from " in note
    assert "Costly" not in note
    assert not any("wide-interval" in note for note in undecided.notes)


def test_growth_is_not_taken_for_caches_that_others_left_cold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimates, "used_by_others", lambda *series, interruptions: 1.0)
    often_whole = replace(SCHEDULE, whole_every=1)
    grown = of_growing(Budgets(total_us=455), endpoint_us=100, more_ns=40, schedule=often_whole)
    assert grown.slowdown == 1.0


def test_the_interval_of_a_row_that_grows_is_its_course(undecided: Measurement) -> None:
    us = undecided.layer("Growing").us
    assert 10 < us.low < 15
    assert us.low < us.estimate < us.high < 100


@pytest.mark.parametrize(("most", "verdict"), [(5, "fail"), (40, "undecided"), (1000, "pass")])
def test_growth_keeps_only_a_budget_that_leaves_room_for_more(most: float, verdict: str) -> None:
    assert of_growing(Budgets(layers={"Growing": {"us": most}})).layer("Growing").judged["us"].verdict == verdict


def test_a_percentile_of_growth_is_not_promised_by_more_time() -> None:
    judged = of_growing(Budgets(layers={"Growing": {"p95_us": 30}})).layer("Growing").judged["p95_us"]
    assert judged.verdict == "undecided"
    assert judged.reason.endswith("[growing]")


@needs("retained")
def test_kept_objects_are_exact(grown: Measurement) -> None:
    trend = trend_of(grown, "Growing")
    assert (trend.objects, trend.kinds, trend.counted, trend.later) == (1, {"builtins.list": 1}, 64, 320)
    assert trend_of(grown, "Costly").objects == 0


@needs("retained")
def test_a_deque_that_is_full_does_not_grow() -> None:
    server = Server(schedule=SHORT)
    layers = [Middleware(Recent, most=300), Middleware(Recent, most=600)]
    measurement = server.measure(layers, trend=True)
    assert trend_of(measurement, "Recent#1").objects == 0
    assert trend_of(measurement, "Recent#2").objects == 1  # holds more requests than are made later


@needs("retained")
def test_reports_name_what_grows(grown: Measurement) -> None:
    text = " ".join(" ".join(line.text.split()) for line in table(view(grown), 120, verbose=True))
    assert "note: Growing gets slower with the requests served: 1,000 more add 10.0" in text
    assert "Growing keeps 1 object of each request alive (1 builtins.list), at least 320 requests later" in text
    assert "[growing]" in text
    assert "Costly gets" not in text
    assert "per 1,000 requests 10.0" in text
    written = as_json(one_run(grown))
    assert misfits(written) == []
    assert codec.result(written["measurements"][0]).layer("Growing").trend == grown.layer("Growing").trend


def test_what_cannot_be_told_is_said_with_its_reason() -> None:
    trend = Trend(600, None, slower=False, counted=0, later=0, objects=None, why={"objects": "no extension"})
    report = LayerReport(Layer(0, "A", "a:A", "middleware", entered=True), trend=trend)
    assert list(growing([report])) == [
        "No layer was seen to grow with the requests served, over 600 requests; objects is not known: no extension."
    ]


def test_nothing_is_looked_for_unless_somebody_asks() -> None:
    server = Server(schedule=SHORT)
    measurement = server.measure([Middleware(Costly, clock=server.clock, before=20)])
    assert all(report.trend is None for report in measurement.layers)


def test_no_growth_is_said_once() -> None:
    server = Server(schedule=SHORT)
    measurement = server.measure([Middleware(Costly, clock=server.clock, before=20)], trend=True)
    text = " ".join(" ".join(line.text.split()) for line in table(view(measurement), 120))
    assert "note: No layer was seen to grow with the requests served, over 600 requests" in text


def test_the_option_is_a_switch(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_nothing(): pass")
    assert run_inside(pytester, "--mw-budget-trend").ret == 0


# ---- live -----------------------------------------------------------------------------------------------------------


@dataclass
class Searching:
    """A layer that waits 300 ns for each request since its growth began."""

    app: Any
    grown: int = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.grown += 1
        end = perf_counter_ns() + 300 * self.grown
        while perf_counter_ns() < end:
            pass
        await self.app(scope, receive, send)


@pytest.mark.live
@readings
def test_a_layer_whose_cost_grows_by_a_known_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The growth begins at zero where it is looked for: beside a large constant cost, a small growth is undecided."""
    layer = Searching(Noop(hello))

    async def from_zero(*arguments: Any) -> Served:
        layer.grown = 0
        return await served(*arguments)

    monkeypatch.setattr(pytest_mwbudget.engine, "served", from_zero)
    schedule = Schedule(trend_requests=2000, trend_counted=64, **FAST)
    measurement = measured(layer, schedule=schedule, settings={"trend": True})
    never(trend_of(measurement, "Noop").slower, "a layer grows that does nothing")
    trend = trend_of(measurement, "Searching")
    assert trend.us_per_1000.low < 300 < trend.us_per_1000.high
    assert trend.us_per_1000.estimate == pytest.approx(300, rel=0.2)
    assert trend.slower
