"""Percentiles of a layer's time as figures and budgets, on a fake clock, by simulations, and live."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from functools import cache
from time import perf_counter_ns
from typing import Any

import pytest
from starlette.middleware import Middleware

from pytest_mwbudget.analysis.estimates import Estimates
from pytest_mwbudget.analysis.tails import slow_requests
from pytest_mwbudget.config.budgets import Budgets
from pytest_mwbudget.model.results import Measurement, Verdict
from pytest_mwbudget.model.stack import EntryIndex
from pytest_mwbudget.report.markdown import render
from pytest_mwbudget.report.terminal import failure, table
from pytest_mwbudget.report.view import view
from pytest_mwbudget.storage import codec
from pytest_mwbudget.timing.host_speed import Pieces, work_ns
from pytest_mwbudget.timing.schedule import Schedule

from .apps import hello, measured
from .canned import as_json, one_run
from .readings import BusyError, never, readings
from .test_engine import Costly, FakeClock, Server, reason
from .test_estimates import CHAIN, estimated, samples
from .test_report_schema import misfits


@dataclass
class SometimesSlow:
    """A layer that takes 20 µs, and 1 ms in 4 % of the requests."""

    app: Any
    clock: FakeClock
    chance: random.Random = field(default_factory=lambda: random.Random(3))

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.clock.let_pass(1000 if self.chance.random() < 0.04 else 20)
        await self.app(scope, receive, send)


# Percentiles need large looks.
LARGE = Schedule(warm_calls=100, brief_warm_calls=20, precision_time_s=0.5, failure_time_s=0.3, watched_time_s=1.5)


def judged(max_time_s: float = 8.0, *, server: Server | None = None, **bounds: Any) -> Measurement:
    server = server or Server()
    layers = [Middleware(SometimesSlow, clock=server.clock), Middleware(Costly, clock=server.clock, before=20)]
    return server.measure(layers, budgets=Budgets(bounds), max_time_s=max_time_s)


def verdicts(measurement: Measurement, quantity: str) -> dict[str, Verdict]:
    return {
        report.name: judged.verdict
        for report in measurement.layers
        for key, judged in report.judged.items()
        if key == quantity
    }


@pytest.fixture(scope="module")
def over() -> Measurement:
    return judged(server=Server(endpoint_us=3000, schedule=LARGE), p99_us=40, p95_us=30)


def test_a_layer_fails_for_its_slow_requests(over: Measurement) -> None:
    assert verdicts(over, "p99_us") == {
        "ServerErrorMiddleware": "pass",
        "SometimesSlow": "fail",
        "Costly": "pass",
        "ExceptionMiddleware": "pass",
    }
    assert set(verdicts(over, "p95_us").values()) == {"pass"}
    tails = over.layer("SometimesSlow").tails
    assert tails.p95_us.estimate == pytest.approx(20, abs=0.1)
    assert tails.p99_us.estimate == pytest.approx(1000, abs=0.1)


def test_reports_show_the_percentiles(over: Measurement) -> None:
    failed = failure(over, 120)
    assert "SometimesSlow takes, at the 99th percentile, 1000 µs per request, its budget is 40 µs" in failed
    assert "p99 1000, budget 40" in failed.splitlines()[0] or "p99 1000 µs, budget 40 µs" in failed.splitlines()[0]
    shown = "\n".join(line.text for line in table(view(over), 120, verbose=True))
    assert "p99 µs" in shown
    assert "p95 20.0 µs (19" in shown
    assert "SometimesSlow</code>: p95 20.0" in render(one_run(over))
    written = as_json(one_run(over))
    assert misfits(written) == []
    read = codec.result(written["measurements"][0])
    assert read.layer("SometimesSlow").tails == over.layer("SometimesSlow").tails


def test_too_few_requests_refuse_a_percentile() -> None:
    measurement = judged(0.5, p99_us=300)
    assert verdicts(measurement, "p99_us")["Costly"] == "undecided"
    why = reason(measurement.layer("Costly"), "p99_us")
    assert "p99 takes about" in why
    assert why.endswith("[too-few-requests]")
    tails = measurement.layer("Costly").tails
    assert tails.p99_us is None
    assert "requests from quiet moments" in tails.why["p99_us"]


def test_a_percentile_without_an_upper_end_does_not_fail() -> None:
    measurement = judged(0.5, p99_us=10)
    assert verdicts(measurement, "p99_us")["Costly"] == "undecided"
    assert reason(measurement.layer("Costly"), "p99_us").endswith("[too-few-requests]")


def test_a_budget_of_medians_has_no_pieces_of_work() -> None:
    server = Server(precise=False)
    server.measure([Middleware(Costly, clock=server.clock, before=20)], budgets=Budgets({"us": 100}))
    plain = server.clock.reads
    server = Server(precise=False)
    measurement = server.measure([Middleware(Costly, clock=server.clock, before=20)], budgets=Budgets({"us": 100}))
    assert server.clock.reads == plain
    assert measurement.layer("Costly").tails is None


def test_pieces_are_as_long_as_the_budgets() -> None:
    clock = FakeClock()
    assert Pieces.as_long_as([100.0], 1e9, clock).number == 1
    assert Pieces.as_long_as([100.0, 1000.0], 1e9, clock).number == 10
    # Neither is longer than a request.
    assert Pieces.as_long_as([100.0, 1000.0], 300_000, clock).number == 3
    assert work_ns(FakeClock(read_ns=7), 1000) == 7


# ---- the machine's slow requests ------------------------------------------------------------------------------------


PIECE_US, TYPICAL_US, BUDGET_US = 100.0, 90.0, 100.0


def interrupted(chance: random.Random, us: float, per_second: float, stolen_us: float) -> float:
    """Return what work of `us` takes on a machine that interrupts it now and then."""
    taken = us
    while chance.random() < us * per_second / 1e6:
        taken += chance.expovariate(1 / stolen_us)
        us /= 2
    return taken


@cache
def typical() -> Estimates:
    return estimated(samples({0: 1000.0}, {0: 1000.0 * TYPICAL_US}), CHAIN[:1])


def certain(own_us: list[float], machine_us: list[float]) -> bool:
    """Whether the layer's own slow requests are certainly more than 1 %."""
    ns = [us * 1000 for us in own_us]
    estimates = replace(typical(), own_ns={EntryIndex(0): ns}, machine_ns=[us * 1000 for us in machine_us])
    return slow_requests(estimates, EntryIndex(0), "p99_us", 1.08 * BUDGET_US, BUDGET_US).certain


@pytest.mark.parametrize("per_second", [0, 100, 400, 2000])
@pytest.mark.parametrize("stolen_us", [20, 4000])
def test_interruptions_by_the_machine_are_never_blamed_on_a_layer(per_second: float, stolen_us: float) -> None:
    chance = random.Random(11)
    for _ in range(10):
        own = [interrupted(chance, TYPICAL_US, per_second, stolen_us) for _ in range(2000)]
        pieces = [interrupted(chance, PIECE_US, per_second, stolen_us) for _ in range(2000)]
        assert not certain(own, pieces)


def test_slow_requests_of_a_layer_are_its_own_on_a_quiet_machine_and_beside_some_interruptions() -> None:
    chance = random.Random(12)
    for per_second in (0, 50):
        own = [
            interrupted(chance, 1000 if chance.random() < 0.05 else TYPICAL_US, per_second, 100) for _ in range(3000)
        ]
        pieces = [interrupted(chance, PIECE_US, per_second, 100) for _ in range(3000)]
        assert certain(own, pieces)


def test_without_pieces_of_work_nothing_is_certain() -> None:
    assert not certain([1000.0] * 500 + [TYPICAL_US] * 1500, [])


# ---- live -----------------------------------------------------------------------------------------------------------


@pytest.mark.live
@readings
def test_a_layer_that_is_slow_in_three_of_a_hundred_requests() -> None:
    @dataclass
    class Spins:
        app: Any
        chance: random.Random = field(default_factory=lambda: random.Random(3))

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            if self.chance.random() < 0.03:
                end = perf_counter_ns() + 1_000_000
                while perf_counter_ns() < end:
                    pass
            await self.app(scope, receive, send)

    bounds = Budgets(layers={"Spins": {"p99_us": 5000, "p95_us": 500}})
    measurement = measured(Spins(hello), settings={"budgets": bounds})
    never(measurement.verdict == "fail", "a budget is exceeded that is far above these requests")
    tails = measurement.layer("Spins").tails
    if tails.p99_us is None:
        raise BusyError(tails.why["p99_us"])
    assert tails.p95_us.low < 500
    assert tails.p99_us.high > 1000
    if tails.p99_us.half_width > 500:
        raise BusyError("the interval of a percentile is wide")
    assert tails.p99_us.low > 800
