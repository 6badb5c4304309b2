"""Hops to a thread and back: the fixed hop, the rows that hop, and what follows for their budgets."""

from __future__ import annotations

import _thread
import asyncio
import random
import threading
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import anyio.to_thread
import pytest

from pytest_mwbudget.analysis.event_log import Spent
from pytest_mwbudget.analysis.intervals import FEWEST_QUICK, batched_interval, spend
from pytest_mwbudget.analysis.judge import Conditions, judge
from pytest_mwbudget.analysis.samples import QUICK_HOPS, QUIET_HOP, BlankLayers, Null, Samples, Series, Split
from pytest_mwbudget.analysis.slowdown import STEADY, Hops, waited_ns
from pytest_mwbudget.asgi.request import build_request
from pytest_mwbudget.asgi.stack import Stack
from pytest_mwbudget.config.budgets import Budgets
from pytest_mwbudget.config.settings import Settings
from pytest_mwbudget.counting.counted import Counted, hops
from pytest_mwbudget.engine import measure
from pytest_mwbudget.model.results import Measurement
from pytest_mwbudget.timing.host_speed import Machine, hop_ns
from pytest_mwbudget.timing.looks import Environment
from pytest_mwbudget.timing.schedule import Schedule

from .apps import hello

# ---- the hop ----------------------------------------------------------------------------------------------------


def test_a_hop_takes_what_the_clock_says() -> None:
    readings = iter([1000, 41_000])
    assert hop_ns(lambda: next(readings)) == 40_000.0


def test_the_thread_of_a_hop_ends_with_it_and_no_thread_check_sees_it() -> None:
    before, seen = _thread._count(), threading.enumerate()
    for _ in range(20):
        hop_ns(time.perf_counter_ns)
        assert threading.enumerate() == seen
    deadline = time.monotonic() + 10
    while _thread._count() > before and time.monotonic() < deadline:
        time.sleep(0.001)
    assert _thread._count() <= before


def test_an_interrupted_hop_leaves_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test is interrupted while it waits for the thread to come up."""
    before, allocate = _thread._count(), _thread.allocate_lock
    interrupts = iter([None, KeyboardInterrupt])

    class Interrupted:
        """A lock whose second acquisition is interrupted: it is acquired once when it is made."""

        def __init__(self) -> None:
            self.lock = allocate()
            self.release = self.lock.release

        def acquire(self) -> None:
            interrupt = next(interrupts)
            self.lock.acquire()
            if interrupt is not None:
                raise interrupt

    locks = iter([allocate, Interrupted])
    monkeypatch.setattr("pytest_mwbudget.timing.host_speed._thread.allocate_lock", lambda: next(locks)())
    with pytest.raises(KeyboardInterrupt):
        hop_ns(lambda: 0)
    deadline = time.monotonic() + 10
    while _thread._count() > before and time.monotonic() < deadline:
        time.sleep(0.001)
    assert _thread._count() <= before


# ---- which rows hop ---------------------------------------------------------------------------------------------


def hops_of(
    entries: Sequence[tuple[int | None, bool]],
    threads: dict[int, int],
    *,
    probeable: Sequence[int] | None = None,
    total: int | None = None,
    outside: bool = False,
) -> Hops:
    """Find the hops of entries, each with its parent and whether it is in another thread.

    `threads` is what the counting pass counted, by entry; the last entry is the endpoint.
    """

    def counts(number: int) -> Any:
        return SimpleNamespace(threads=SimpleNamespace(count=number))

    last = len(entries) - 1
    stack = SimpleNamespace(
        entries=[
            SimpleNamespace(parent=parent, parents=(parent,), elsewhere=elsewhere, part_of=None)
            for parent, elsewhere in entries
        ],
        probeable=range(len(entries)) if probeable is None else probeable,
        layers=[(index, SimpleNamespace(index=index)) for index in range(last)],
        endpoint=last,
        outside=outside,
    )
    total = sum(threads.values()) if total is None else total
    counted = SimpleNamespace(
        layers={index: counts(threads.get(index, 0)) for index in range(last)},
        frames={"endpoint": counts(threads.get(last, 0)), "total": counts(total)},
    )
    return hops(cast("Stack", stack), cast("Counted", counted))


def test_a_stack_that_hands_nothing_to_threads_has_no_hops() -> None:
    assert hops_of([(None, False), (0, False), (1, False)], {}) == Hops()


def test_a_row_hops_as_often_as_it_hands_something_to_a_thread() -> None:
    assert hops_of([(None, False), (0, False), (1, False)], {0: 2, 2: 1}) == Hops({0: 2, 2: 1}, 3)


def test_a_row_whose_child_runs_in_another_thread_hops_there_and_further_in_back() -> None:
    chain = [(None, False), (0, True), (1, True), (2, False)]
    assert hops_of(chain, {}) == Hops({0: 1, 2: 1}, 2)
    # What was counted is the same hop.
    assert hops_of(chain, {0: 1, 2: 1}) == Hops({0: 1, 2: 1}, 2)


def test_the_hop_of_an_entry_without_a_probe_is_in_the_row_outside_it() -> None:
    assert hops_of([(None, False), (0, False), (1, True)], {}, probeable=[0, 2]) == Hops({0: 1}, 1)


def test_a_hop_to_the_outermost_entry_is_outside_of_all_rows() -> None:
    assert hops_of([(None, True), (0, True)], {}) == Hops({}, 1, 1)
    # So is one of the app object, where that is no layer.
    assert hops_of([(None, False), (0, True), (1, True)], {}, outside=True) == Hops({0: 1}, 1, 1)


# ---- how much longer hops take ----------------------------------------------------------------------------------


def test_a_machine_whose_hops_are_as_quick_as_known_waits_for_nothing() -> None:
    assert waited_ns([40_000.0] * 50, 40_000.0, 3) == 0
    assert waited_ns([0.99 * STEADY * 40_000.0] * 50, 40_000.0, 3) == 0


def test_each_hop_of_a_row_waits() -> None:
    assert waited_ns([70_000.0] * 50, 40_000.0, 1) == 30_000
    assert waited_ns([70_000.0] * 50, 40_000.0, 3) == 90_000


def test_a_row_without_hops_and_a_series_without_readings_wait_for_nothing() -> None:
    assert waited_ns([70_000.0] * 50, 40_000.0, 0) == 0
    assert waited_ns([], 40_000.0, 3) == 0


def test_of_many_hops_one_waits_typically_although_a_single_hop_rarely_does() -> None:
    rng = random.Random(5)
    readings = [40_000.0 + 3_000_000.0 * (rng.random() < 0.1) for _ in range(400)]
    assert waited_ns(readings, 40_000.0, 1) == 0
    assert waited_ns(readings, 40_000.0, 13) == pytest.approx(3_000_000, rel=0.01)


def test_more_hops_than_readings_wait_like_the_readings() -> None:
    assert waited_ns([70_000.0] * 4, 40_000.0, 8) == 8 * 30_000


# ---- quick hops -------------------------------------------------------------------------------------------------


def hopping(readings: Sequence[float], values: Sequence[float]) -> Series:
    """Make a series on a processor of steady speed."""
    series = Series()
    for value, reading in zip(values, readings, strict=True):
        series.add(value, 1000.0, reading)
    return series


def test_only_requests_after_a_quick_hop_count() -> None:
    readings = [40.0, QUIET_HOP * 40.0, QUIET_HOP * 40.0 + 1, 4000.0] * 30
    kept = hopping(readings, range(120)).steady(1000.0, 40.0)
    assert [value % 4 for value in kept.values] == [0.0, 1.0] * 30
    assert kept.hops == [40.0, 60.0] * 30
    split = Split()
    for number, reading in enumerate(readings):
        split.add(1000.0, Null(0, BlankLayers(0)), 100.0, Spent((number,), (0,), (0,)), reading)  # type: ignore[arg-type]
    assert [used.ns[0] % 4 for used in split.steady(1000.0, 40.0).spent] == [0, 1] * 30


def test_the_choice_of_requests_does_not_see_their_values() -> None:
    rng = random.Random(3)
    readings = [rng.choice([40.0, 45.0, 4000.0]) for _ in range(200)]
    values = [float(number) for number in range(200)]
    kept = set(hopping(readings, values).steady(1000.0, 40.0).values)
    costs = {value: rng.expovariate(1) for value in values}
    others = hopping(readings, [costs[value] for value in values]).steady(1000.0, 40.0)
    assert others.values == [costs[value] for value in values if value in kept]


def test_without_hops_every_request_counts_as_before() -> None:
    series = Series()
    for number in range(100):
        series.add(float(number), 1000.0)
    assert series.hops == []
    assert series.steady(1000.0).values == series.values


def test_a_run_without_quick_hops_keeps_its_quickest_quarter() -> None:
    readings = [4000.0 + 100 * number for number in range(4 * FEWEST_QUICK)]
    kept = hopping(readings, readings).steady(1000.0, 40.0)
    assert len(kept.values) >= FEWEST_QUICK


def test_the_quick_hops_of_a_run_are_the_quickest_share_of_all_its_hops() -> None:
    taken = Samples((0,))
    assert taken.quick_hop_ns() == float("inf")
    taken.whole = hopping(range(75, 150), [0.0] * 75)
    taken.split = Split(hops=[float(ns) for ns in range(75)])
    assert taken.quick_hop_ns() == QUICK_HOPS * 150


# ---- verdicts ---------------------------------------------------------------------------------------------------


# At its best the machine takes this long for the fixed hop, and a layer with two hops this long.
BEST_NS, LAYER_NS, LOOKS, RUNS = 35_000.0, 160_000.0, (1, 2, 3), 80


def busy_cores(rng: random.Random) -> Callable[[], tuple[float, float]]:
    """Return a function that yields a layer's and a hop's time on a machine with more work than processors.

    The fixed hop waits more or less often, and mostly the layer's hops then wait too.
    """
    share = rng.uniform(0.3, 0.95)

    def taken() -> tuple[float, float]:
        waits = rng.random() < share
        wait_ns = rng.uniform(1, 4) * 1_000_000 if waits else 0.0
        pace = 2.0 if waits and rng.random() < 0.9 else 1.0
        return LAYER_NS * pace * rng.gauss(1, 0.03), BEST_NS * rng.gauss(1.1, 0.05) + wait_ns

    return taken


def verdicts(rng: random.Random, taken: Callable[[], tuple[float, float]], bound_us: float) -> set[str]:
    """Judge the layer of two hops at some looks."""
    series, all_verdicts = Series(), set()
    for look in LOOKS:
        for _ in range(96):
            value, hop = taken()
            series.add(value, 1000.0, hop)
        quick = sorted(series.hops)[int(QUICK_HOPS * len(series.hops))]
        kept = series.steady(1000.0, quick)
        us = batched_interval(kept.values, spend(0.01, look)) * 0.001
        waited_us = 2 * waited_ns(series.hops, min(BEST_NS, quick), 1) / 1000
        all_verdicts.add(judge("us", us, bound_us, Conditions(limit=0.1, waited=waited_us)).verdict)
    return all_verdicts


def test_busy_cores_fail_no_layer_that_keeps_its_budget_on_a_quiet_machine() -> None:
    rng = random.Random(11)
    runs = [verdicts(rng, busy_cores(rng), 1.3 * LAYER_NS / 1000) for _ in range(RUNS)]
    assert not any("fail" in run for run in runs)
    # Most runs have enough requests after quick hops to say so.
    assert sum("pass" in run for run in runs) > RUNS / 2


def test_by_all_requests_busy_cores_would_have_failed_such_layers() -> None:
    """The simulation shows the problem: without the hop these runs fail."""
    rng, failed = random.Random(11), 0
    for _ in range(RUNS):
        taken = busy_cores(rng)
        us = batched_interval([taken()[0] for _ in range(288)], spend(0.01, 3)) * 0.001
        failed += judge("us", us, 1.3 * LAYER_NS / 1000).verdict == "fail"
    assert failed > RUNS / 5


def test_a_layer_over_its_budget_fails_on_a_quiet_machine() -> None:
    rng = random.Random(12)

    def quiet() -> tuple[float, float]:
        return LAYER_NS * rng.gauss(1, 0.03), BEST_NS * rng.gauss(1.1, 0.05)

    assert all("fail" in verdicts(rng, quiet, LAYER_NS / 3000) for _ in range(RUNS))


# ---- the whole sequence -----------------------------------------------------------------------------------------


class Clock:
    """A clock that shows what the app let pass."""

    def __init__(self) -> None:
        self.now_ns = 1_000_000

    def __call__(self) -> int:
        return self.now_ns


class Handing:
    """A layer that lets `us` pass, and hands work to a thread if it `hops`."""

    def __init__(self, app: Any, clock: Clock, us: float, *, hops: bool = True) -> None:
        self.app = app
        self.clock = clock
        self.us = us
        self.hops = hops

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.clock.now_ns += round(self.us * 1000)
        if self.hops:
            await anyio.to_thread.run_sync(int)
        await self.app(scope, receive, send)


SCHEDULE = Schedule(
    warm_calls=20,
    brief_warm_calls=20,
    counted_requests=3,
    precision_time_s=0.2,
    failure_time_s=0.1,
    watched_time_s=0.1,
    first_look_ns=50_000_000,
    # Requests of the second witness have no hop beside them.
    witness_ns=0,
)


def measured(
    layer: Callable[[Clock], Any], us: float, hop: float, machine: Machine | None = None
) -> tuple[Measurement, int]:
    """Measure a layer with a budget of `us` where each hop takes `hop` ns; also return the number of hops."""
    clock, taken = Clock(), 0

    def hopped(given: Callable[[], int]) -> float:
        nonlocal taken
        assert given is clock
        taken += 1
        return hop

    environment = Environment(
        clock, None, random.Random(7), machine or Machine(known_ns=1e9), schedule=SCHEDULE, hop=hopped
    )
    settings = Settings(budgets=Budgets({"us": us}), max_time_s=0.5)
    measurement = asyncio.run(measure(layer(clock), build_request("GET", "/", {}), settings, environment))
    return measurement, taken


def test_a_stack_that_hands_nothing_to_threads_measures_no_hop() -> None:
    measurement, taken = measured(lambda clock: Handing(hello, clock, 3000, hops=False), 1000, 40_000)
    assert measurement.verdict == "fail"
    assert taken == 0


def test_a_hop_is_measured_beside_each_request_and_remembered() -> None:
    machine = Machine(known_ns=1e9)
    measurement, taken = measured(lambda clock: Handing(hello, clock, 3000), 1000, 40_000, machine)
    assert measurement.verdict == "fail"
    assert taken > measurement.effort.requests / 2
    assert machine.seen_hop_ns == machine.best_hop_ns == 40_000


def test_a_layer_that_better_hops_would_keep_in_its_budget_does_not_fail() -> None:
    """The machine is known to hop in 40 µs, and now takes 2.5 ms."""
    machine = Machine(known_ns=1e9, known_hop_ns=40_000)
    measurement, _ = measured(lambda clock: Handing(hello, clock, 3000), 1000, 2_500_000, machine)
    (report,) = measurement.layers
    assert report.verdict == "undecided"
    reason = report.judged["us"].reason
    assert reason is not None
    assert "hops to threads took longer than at the machine's best, by up to 2460 µs" in reason
    (note,) = (note for note in measurement.notes if "[slow-machine]" in note)
    assert "up to 2.46 ms of Handing, (total) may be waiting" in note


def test_a_row_without_hops_gets_no_room_from_the_hops_of_another() -> None:
    machine = Machine(known_ns=1e9, known_hop_ns=40_000)
    measurement, _ = measured(
        lambda clock: Handing(Handing(hello, clock, 20, hops=True), clock, 3000, hops=False), 1000, 2_500_000, machine
    )
    assert [report.verdict for report in measurement.layers] == ["fail", "pass"]


def test_where_no_thread_can_be_started_rows_are_judged_without_hops() -> None:
    clock = Clock()

    def no_thread(given: Callable[[], int]) -> float:
        raise RuntimeError("can't start new thread")

    environment = Environment(clock, None, random.Random(7), Machine(known_ns=1e9), schedule=SCHEDULE, hop=no_thread)
    settings = Settings(budgets=Budgets({"us": 1000}), max_time_s=0.5)
    app = Handing(hello, clock, 3000)
    measurement = asyncio.run(measure(app, build_request("GET", "/", {}), settings, environment))
    assert measurement.verdict == "fail"
