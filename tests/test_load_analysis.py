"""Shares, latencies and verdicts under load, by simulated bursts."""

from __future__ import annotations

import heapq
import math
import random
from dataclasses import replace
from statistics import fmean

import pytest

from pytest_mwbudget.analysis.shares import (
    SPLIT_ROOM,
    Burst,
    Bursts,
    Conditions,
    Observation,
    Round,
    behind_server,
    bypassed,
    divided,
    grows,
    is_negligible,
    judge_p99,
    judge_share,
    lacking,
    negligible_us,
    quantile_ms,
    rps_of,
    starts,
    too_wide,
    wait_in,
    with_full_collections_spread,
    without_garbage,
)
from pytest_mwbudget.load.turns import Turns
from pytest_mwbudget.model.estimate import Estimate
from pytest_mwbudget.model.judged import Judged
from pytest_mwbudget.model.load import LayerLoad, Wait
from pytest_mwbudget.model.results import Count, Counts, Occupation, ResultRow
from pytest_mwbudget.model.stack import EntryIndex, Layer, RowIndex

pytestmark = pytest.mark.once

LAYER = EntryIndex(0)
ALPHA = 0.1


def burst(us: float, gauge: float = 100.0, waited: float = 0.0, collecting: float = 0.0) -> Burst:
    return Burst(
        request_us=us,
        latencies_us=sorted([us * 90, us * 100, us * 110]),
        gauges=(gauge, 50.0),
        queued=waited,
        collecting_us=collecting,
    )


def rounds(rng: random.Random, count: int, whole_us: float = 250.0, layer_us: float = 50.0) -> list[Round]:
    """Simulate rounds on a machine whose speed drifts, with a pair in eight far off."""
    all_rounds: list[Round] = []
    for number in range(count):
        speed = 1 + 0.3 * math.sin(number / 7)
        noise = [rng.gauss(1, 0.03) * (3 if rng.random() < 0.06 else 1) for _ in range(2)]
        all_rounds.append(
            {
                None: burst(whole_us * speed * noise[0]),
                LAYER: burst((whole_us - layer_us) * speed * noise[1]),
            }
        )
    return all_rounds


def share_of(bursts: Bursts, alpha: float = ALPHA) -> Estimate:
    share = bypassed(bursts, LAYER, None, alpha).share
    assert share is not None
    return share


def test_the_interval_of_a_share_holds_as_often_as_it_says() -> None:
    rng, runs, held = random.Random(1), 300, 0
    for _ in range(runs):
        share = share_of(Bursts(rounds(rng, 20)))
        held += share.low <= 0.2 <= share.high
    assert held >= 0.85 * runs


def test_a_layer_that_costs_nothing_has_a_share_of_nothing() -> None:
    rng = random.Random(2)
    share = share_of(Bursts(rounds(rng, 40, layer_us=0.0)))
    assert share.low < 0 < share.high
    assert share.half_width < 0.05


def test_requests_per_second_and_added_time() -> None:
    bursts = Bursts([{None: burst(250.0), LAYER: burst(200.0)}] * 10)
    rps, added = rps_of(bursts.whole, ALPHA), bypassed(bursts, LAYER, None, ALPHA).added_us
    assert rps == Estimate(4000.0, 4000.0, 4000.0)
    assert added == Estimate(50.0, 50.0, 50.0)


def test_too_few_rounds_have_no_interval() -> None:
    bursts = Bursts([{None: burst(250.0), LAYER: burst(200.0)}] * 4)
    share, rps = share_of(bursts), rps_of(bursts.whole, ALPHA)
    assert share.estimate == pytest.approx(0.2)
    assert not share.bounded
    assert rps.low == 0.0
    assert not quantile_ms(bursts.whole, 0.99, ALPHA).bounded


def test_bursts_of_busy_moments_do_not_count() -> None:
    quiet: Round = {None: burst(250.0), LAYER: burst(200.0)}
    slow: Round = {None: burst(500.0, gauge=130.0), LAYER: burst(200.0)}
    starved: Round = {None: burst(250.0), LAYER: burst(400.0, waited=0.2)}
    bursts = Bursts([quiet, slow, starved] * 5)
    assert not bursts.noisy
    assert bursts.quiet == 5
    assert {whole.request_us for whole in bursts.whole} == {250.0}
    assert len(bursts.pairs(LAYER)) == 5


def test_too_few_quiet_bursts_make_all_count() -> None:
    slow: Round = {None: burst(500.0, waited=0.5), LAYER: burst(200.0)}
    bursts = Bursts([slow] * 6)
    assert bursts.noisy
    assert len(bursts.pairs(LAYER)) == 6


def test_few_rounds_are_not_noisy_for_being_few() -> None:
    quiet: Round = {None: burst(250.0), LAYER: burst(200.0)}
    starved: Round = {None: burst(250.0), LAYER: burst(400.0, waited=0.2)}
    assert not Bursts([quiet] * 3).noisy
    assert not Bursts([{None: burst(250.0)}]).noisy
    assert Bursts([quiet, quiet, starved]).noisy


def test_a_layer_that_was_left_out_has_fewer_pairs() -> None:
    bursts = Bursts([{None: burst(250.0), LAYER: burst(200.0)}, *[{None: burst(250.0)}] * 6])
    assert len(bursts.pairs(LAYER)) == 1
    assert bursts.pairs(EntryIndex(3)) == []


def test_the_slowdown_is_that_of_the_servers_core() -> None:
    bursts = Bursts([{None: burst(250.0, gauge=130.0)}] * 6)
    assert bursts.slowdown(100.0) == pytest.approx(1.3)
    assert bursts.slowdown(125.0) == 1.0
    assert bursts.slowdown(math.inf) == 1.0


def test_a_load_generator_that_is_always_busy_limits_the_figures() -> None:
    busy = replace(burst(250.0), sending=0.95)
    assert Bursts([{None: busy}] * 5).limited
    assert not Bursts([{None: burst(250.0)}] * 5).limited
    assert not Bursts([]).limited


# ---- processor time ----------------------------------------------------------------------------------------------


def beside_others(rng: random.Random, count: int, layer_us: float) -> list[Round]:
    """Simulate rounds beside processes that keep the thread waiting for half of the time, now longer, now shorter."""

    def waiting(working_us: float) -> Burst:
        queued = rng.uniform(0.2, 0.8)
        worked = rng.gauss(1, 0.02) * working_us
        return replace(burst(working_us / (1 - queued), waited=queued), working_us=worked)

    return [{None: waiting(250.0), LAYER: waiting(250.0 - layer_us)} for _ in range(count)]


def test_a_share_of_processor_time_does_not_see_other_processes() -> None:
    rng = random.Random(5)
    bursts = Bursts(beside_others(rng, 20, 50.0))
    worked = bursts.of_processor()
    assert bursts.noisy
    assert bursts.is_bound(LAYER)
    assert worked is not None
    assert not worked.noisy
    assert worked.request_us == pytest.approx(250.0, rel=0.05)
    share = share_of(worked)
    assert share.low <= 0.2 <= share.high
    assert share.half_width < 0.05
    layer_load = bypassed(worked, LAYER, None, ALPHA)
    assert (layer_load.clock, bypassed(bursts, LAYER, None, ALPHA).clock) == ("processor", "wall")
    assert layer_load.added_us is not None
    assert layer_load.added_us.estimate == pytest.approx(50.0, rel=0.2)


def test_a_kept_share_of_processor_time_seldom_fails_and_a_broken_one_does() -> None:
    rng, verdicts = random.Random(6), []
    for _ in range(200):
        worked = Bursts(beside_others(rng, 20, 50.0)).of_processor()
        assert worked is not None
        layer_load = bypassed(worked, LAYER, None, 0.01)
        verdicts.append([judge_share(layer_load, bound, Conditions()).verdict for bound in (0.14, 0.2, 0.26)])
    broken, near, kept = zip(*verdicts, strict=True)
    assert {"fail"} == set(broken)
    assert "fail" not in near
    assert {"pass"} == set(kept)


@pytest.mark.parametrize(
    ("working_us", "queued", "expected"),
    [(91.0, 0.0, True), (46.0, 0.5, True), (89.0, 0.0, False), (44.0, 0.5, False), (None, 0.9, False)],
)
def test_the_loop_is_the_bottleneck_if_it_works_whenever_it_has_a_core(
    working_us: float | None, queued: float, expected: bool
) -> None:
    bound = replace(burst(100.0, waited=queued), working_us=working_us)
    other = replace(burst(100.0), working_us=100.0)
    assert bound.is_bound is expected
    for arms in ({None: bound, LAYER: other}, {None: other, LAYER: bound}):
        # Most pairs decide, and each needs both bursts.
        mixed = [arms, arms, {None: other, LAYER: other}]
        assert Bursts(mixed).is_bound(LAYER) is expected
        assert not Bursts(mixed).is_bound(EntryIndex(3))
    assert (Bursts([{None: bound}]).of_processor() is None) == (working_us is None)


def test_moments_in_which_the_servers_core_is_slow_do_not_count_by_processor_time_either() -> None:
    quick, slow = (replace(burst(100.0, gauge, waited=0.5), working_us=50.0) for gauge in (100.0, 130.0))
    for kind, quiet in ((quick, True), (slow, False), (replace(quick, gauges=(100.0, 99.0)), True)):
        worked = Bursts([{None: quick}, {None: kind}]).of_processor()
        assert worked is not None
        assert (worked.quiet == 2) is quiet


def test_the_time_in_which_a_layer_makes_the_loop_idle_may_be_its_share_too() -> None:
    without, whole = (replace(burst(us), working_us=200.0) for us in (200.5, 220.0))
    for with_layer, past_it, low, high in ((whole, without, 0.0, 0.0886), (without, whole, -0.0973, 0.0)):
        worked = Bursts([{None: with_layer, LAYER: past_it}] * 10).of_processor()
        assert worked is not None
        share = share_of(worked)
        assert (share.estimate, share.low, share.high) == pytest.approx((0.0, low, high), abs=0.0001)
    queued = Bursts([{None: replace(burst(400.0, waited=0.5), working_us=200.0), LAYER: without}] * 10).of_processor()
    assert queued is not None
    assert (share_of(queued).low, share_of(queued).high) == pytest.approx((-0.0025, 0.0), abs=0.0001)


@pytest.mark.parametrize(
    ("share", "known"),
    [
        (Estimate(0.05, -0.19, 0.29), True),
        (Estimate(0.05, -0.21, 0.31), False),
        (Estimate(0.6, 0.2, 1.0), True),
        (Estimate(-0.006, -0.7, 0.69), False),
        (Estimate(0.05, -math.inf, math.inf), True),  # too few rounds, which a note says
        (None, True),
    ],
)
def test_an_interval_that_says_nothing_is_no_share(share: Estimate | None, known: bool) -> None:
    assert (too_wide(share) is None) is known


def test_full_collections_are_divided_among_bursts_by_their_collections() -> None:
    """One burst in four meets a full collection, which takes 100 µs of each of its requests."""
    rng, all_rounds = random.Random(8), []
    for _ in range(40):
        full = {arm: 100.0 * (rng.random() < 0.25 * collections / 2) for arm, collections in ((None, 2), (LAYER, 1))}
        all_rounds.append(
            {
                arm: replace(
                    burst(us + full[arm], collecting=10.0 * collections + full[arm]),
                    working_us=us + full[arm],
                    full_us=full[arm],
                    collections=float(collections),
                )
                for arm, us, collections in ((None, 250.0, 2), (LAYER, 200.0, 1))
            }
        )
    spread = with_full_collections_spread(all_rounds)
    assert sum(every.full_us for arms in spread for every in arms.values()) == pytest.approx(
        sum(every.full_us for arms in all_rounds for every in arms.values())
    )
    for arms in spread:
        assert arms[None].full_us == pytest.approx(2 * arms[LAYER].full_us)
        assert arms[None].request_us == arms[None].working_us == pytest.approx(250 + arms[None].full_us)
        assert arms[LAYER].collecting_us == pytest.approx(10 + arms[LAYER].full_us)
    share, before = (bypassed(Bursts(rounds), LAYER, None, ALPHA).share for rounds in (spread, all_rounds))
    assert share is not None
    assert before is not None
    assert share.half_width < 0.001 < 0.02 < before.half_width
    assert share.estimate == pytest.approx(1 - (200 + 12.5) / (250 + 25), abs=0.01)


def test_without_garbage_nothing_is_divided() -> None:
    plain = rounds(random.Random(9), 3)
    assert with_full_collections_spread(plain) == plain


# ---- latencies ---------------------------------------------------------------------------------------------------


def simulated(rng: random.Random, bursts: int, each: int = 200) -> list[Burst]:
    """Simulate latencies that are the same throughout a burst, but for a factor of each."""
    all_bursts = []
    for _ in range(bursts):
        factor = rng.lognormvariate(0, 0.2)
        latencies = sorted(factor * rng.expovariate(1 / 1000) for _ in range(each))
        all_bursts.append(Burst(request_us=100.0, latencies_us=latencies, gauges=(100.0,)))
    return all_bursts


@pytest.mark.parametrize("share", [0.5, 0.99])
def test_the_interval_of_a_percentile_holds_as_often_as_it_says(share: float) -> None:
    rng = random.Random(3)
    everything = sorted(latency for burst in simulated(rng, 3000) for latency in burst.latencies_us)
    true_ms = everything[int(share * len(everything))] / 1000
    runs, held, widths = 80, 0, []
    for _ in range(runs):
        quantile = quantile_ms(simulated(rng, 30), share, ALPHA)
        held += quantile.low <= true_ms <= quantile.high
        widths.append((min(quantile.high, 100.0) - quantile.low) / true_ms)
    assert held >= 0.83 * runs
    assert fmean(widths) < 0.5


# ---- effects of concurrency --------------------------------------------------------------------------------------


ENTRY = EntryIndex(3)


def observed(
    one_us: float,
    all_us: float,
    turn_us: float,
    latency_us: float,
    request_us: float = 1000.0,
    idle: float = 0.9,
    clients: int = 100,
    *,
    steady: bool = True,
) -> tuple[Observation, Observation]:
    return (
        Observation(1, {ENTRY: one_us}, 2 * one_us, 0.0, one_us, 0.0, steady),
        Observation(clients, {ENTRY: all_us}, latency_us, turn_us, request_us, idle, steady),
    )


@pytest.mark.parametrize(
    ("one_us", "all_us", "turns", "turn_us", "latency_us", "expected"),
    [
        (1_100.0, 110_000.0, 2, 300.0, 112_000.0, True),  # a lock that is held 1 ms
        (1_100.0, 1_200.0, 1, 300.0, 112_000.0, False),  # a sleep
        (150.0, 60_000.0, 5, 12_000.0, 70_000.0, False),  # suspended five times on a busy loop
        (1_100.0, 11_000.0, 2, 300.0, 112_000.0, False),  # most of the latency is elsewhere
        (1_100.0, 1_100.0, 0, 0.0, 1_200.0, False),
    ],
)
def test_requests_queue_if_turns_of_the_loop_do_not_explain_their_wait(
    one_us: float, all_us: float, turns: int, turn_us: float, latency_us: float, expected: bool
) -> None:
    bursts = observed(one_us, all_us, turn_us, latency_us)
    assert wait_in([ENTRY], turns, *bursts) == Wait(one_us, all_us, expected)
    assert wait_in([EntryIndex(7)], turns, *bursts) == Wait(0.0, 0.0)
    assert not wait_in([ENTRY], turns, *observed(one_us, all_us, turn_us, latency_us, clients=1)).serialises


@pytest.mark.parametrize(
    ("one_us", "request_us", "idle", "steady", "expected"),
    [
        (1_200.0, 1_200.0, 0.7, True, True),  # a lock that is held while its holder sleeps
        (1_200.0, 1_200.0, 0.4, False, True),
        (1_200.0, 1_300.0, 0.0, True, True),  # while its holder works
        (4.0, 120.0, 0.0, True, False),  # a lock in which requests queue for their turn of the loop
        (320.0, 400.0, 0.0, False, False),  # threads that share the interpreter
        (1_100.0, 1_600.0, 0.1, False, False),  # a busy machine
    ],
)
def test_a_row_holds_requests_up_only_if_the_processor_does_not(
    one_us: float, request_us: float, idle: float, steady: bool, expected: bool
) -> None:
    bursts = observed(one_us, 100 * one_us, 0.0, 100 * one_us, request_us, idle, steady=steady)
    assert wait_in([ENTRY], 1, *bursts).serialises is expected


def test_where_no_turn_was_sampled_nothing_is_said_to_queue() -> None:
    for turns, expected in (Turns(), False), (Turns(2000, 2), True):
        bursts = observed(100.0, 1e6, turns.mean_us, 1e6)
        assert grows(Wait(100.0, 1e6), 0, bursts[1]) is expected
        assert wait_in([ENTRY], 0, *bursts).serialises is expected


def test_garbage_that_costs_more_than_the_layer() -> None:
    all_rounds: list[Round] = [
        {LAYER: burst(200.0, collecting=5.0), None: burst(250.0, collecting=25.0 + number % 2)} for number in range(20)
    ]
    bursts = Bursts(all_rounds)
    few = bypassed(Bursts(all_rounds[:3]), LAYER, Estimate(1.0, 0.9, 1.1), ALPHA)
    known = bypassed(bursts, LAYER, Estimate(10.0, 9.0, 11.0), ALPHA)
    assert known.collecting_us is not None
    assert known.collecting_us.estimate == pytest.approx(20.5)
    assert known.collects
    assert not bypassed(bursts, LAYER, Estimate(20.0, 15.0, 25.0), ALPHA).collects
    assert not bypassed(bursts, LAYER, None, ALPHA).collects
    assert not few.collects
    # What is left of 50 µs if the garbage of the layer takes as much as it may.
    added, least = known.added_us, without_garbage(known)
    assert added is not None
    assert least == replace(added, low=added.low - known.collecting_us.high)
    assert without_garbage(few) == few.added_us
    assert without_garbage(LayerLoad()) is None


# ---- layers that were not bypassed --------------------------------------------------------------------------------


def counts(tasks: int = 0, threads: int = 0) -> Counts:
    none, started = Count(0, 0, 0), [Count(number, number, number) for number in (tasks, threads)]
    return Counts(none, none, none, *started, none, none, none, none)


def row(us: Estimate | None, busy: Estimate | None = None, wait_us: float = 0.0) -> ResultRow:
    occupation = None if busy is None else Occupation(busy, wait_us, None)
    layer = Layer(RowIndex(0), "Auth", "shop.Auth", "middleware")
    return ResultRow(layer, us, occupation=occupation, counts=counts())


def split(row: ResultRow, why: str | None, working_us: float | None = 1000.0, clients: int = 100) -> LayerLoad:
    """Return the share of a row in an app that answers a request each 1000 µs."""
    return divided(row, Bursts([{None: replace(burst(1000.0), working_us=working_us)}] * 6), clients, why)


def test_the_share_of_a_layer_is_of_the_time_in_which_it_holds_the_event_loop() -> None:
    us, busy = Estimate(100.0, 90.0, 110.0), Estimate(20.0, 10.0, 30.0)
    assert split(row(us), "it answers") == LayerLoad(us / 1000, "split", "it answers", "wall")
    assert split(row(us, busy), None) == LayerLoad(us / 1000, "split", "there was too little time for it", "wall")
    assert split(row(us, busy, wait_us=80.0), None).share == busy / 1000
    for unknown in (None, Estimate(1.0, -math.inf, math.inf)):
        assert split(row(unknown), "it answers") == LayerLoad(why="it answers")


@pytest.mark.parametrize(
    ("clients", "working_us", "queues", "expected"),
    [
        (1, 300.0, True, (0.1, 0.09, 0.11)),
        # Alone, each of 50 clients would wait 100 of 50,000 µs. The thread works for 0, 50, 80, 90, 100 % of the time.
        (50, 0.001, True, (0.002, 0.0018, 0.0022)),
        (50, 500.0, True, (0.004, 0.0018, 0.0088)),
        (50, 800.0, True, (0.01, 0.0018, 30 / 800)),  # at most as at the bottleneck
        (50, 900.0, True, (0.02, 0.0018, 30 / 900)),
        (50, 1000.0, True, (0.02, 0.01, 0.03)),
        # It is not known whether the thread had a core.
        (50, 800.0, False, (20 / 800, 0.0018, 30 / 800)),
        (50, None, True, (0.02, 0.0018, 0.03)),
    ],
)
def test_where_the_app_waits_a_share_is_between_its_wait_alone_and_that_at_the_bottleneck(
    clients: int, working_us: float | None, queues: bool, expected: tuple[float, float, float]
) -> None:
    us, busy = Estimate(100.0, 90.0, 110.0), Estimate(20.0, 10.0, 30.0)
    bursts = Bursts([{None: replace(burst(1000.0), working_us=working_us, queues=queues)}] * 6)
    share = divided(row(us, busy, wait_us=80.0), bursts, clients, None).share
    assert share is not None
    assert (share.estimate, share.low, share.high) == pytest.approx(expected, rel=1e-3)


def test_no_share_is_above_the_whole() -> None:
    assert split(row(Estimate(1010.0, 990.0, 1030.0)), None).share == Estimate(1.0, 0.99, 1.0)
    assert split(row(Estimate(1020.0, 1010.0, 1030.0)), None).share == Estimate(1.0, 1.0, 1.0)
    longer = "its self time is longer than a request under load, so the two cannot be compared"
    us = Estimate(1520.0, 1510.0, 1530.0)
    assert split(row(us), "it answers") == LayerLoad(why=f"it answers; {longer}")
    assert split(row(us), None) == LayerLoad(why=longer)


def test_the_share_by_self_time_holds_in_a_simulated_server() -> None:
    """Clients wait at random, and compete for one processor: the share is what a layer's 40 µs of 400 cost them."""
    for wait_us in (30_000.0, 36_000.0, 40_000.0, 45_000.0, 60_000.0, 120_000.0):
        with_us, without_us = (simulated_request_us(100, wait_us, work_us) for work_us in (400.0, 360.0))
        bursts = Bursts([{None: replace(burst(with_us), working_us=400.0)}] * 6)
        share = divided(row(Estimate(40.0, 40.0, 40.0)), bursts, 100, None).share
        assert share is not None
        true = 1 - without_us / with_us
        assert share.low / (1 + SPLIT_ROOM) - 0.005 < true < share.high + 0.005


def simulated_request_us(clients: int, wait_us: float, work_us: float) -> float:
    """Return the time between two responses. Clients wait at random, `wait_us` on average, then for a processor."""
    rng = random.Random(7)
    ready = [(rng.expovariate(1 / wait_us), client) for client in range(clients)]
    heapq.heapify(ready)
    free_us, served, begin_us = 0.0, 40_000, 0.0
    for number in range(2 * served):
        at_us, client = heapq.heappop(ready)
        free_us = max(free_us, at_us) + work_us
        heapq.heappush(ready, (free_us + rng.expovariate(1 / wait_us), client))
        if number == served:
            begin_us = free_us
    return (free_us - begin_us) / served


def test_layers_that_take_next_to_nothing_are_not_bypassed() -> None:
    assert is_negligible(row(Estimate(1.0, 0.0, 4.9)), 5.0, None)
    assert not is_negligible(row(Estimate(1.0, 0.0, 5.1)), 5.0, None)
    assert not is_negligible(row(None), 5.0, None)
    assert is_negligible(row(Estimate(1.0, 0.0, 4.9)), 5.0, Wait(1.0, 2.0))
    assert not is_negligible(row(Estimate(1.0, 0.0, 4.9)), 5.0, Wait(1.0, 1e6, serialises=True))


@pytest.mark.parametrize(
    ("waited_us", "occupied", "expected"),
    [
        (0.0, 0.5, 5.0),
        (1_000.0, 0.5, 5.0),
        (50_000.0, 0.5, 125.0),
        (50_000.0, 0.8, 20.0),
        (50_000.0, 0.9, 5.0),
        (50_000.0, None, 5.0),
    ],
)
def test_next_to_nothing_is_a_share_of_the_work_or_of_the_wait(
    waited_us: float, occupied: float | None, expected: float
) -> None:
    assert negligible_us(500.0, waited_us, occupied) == pytest.approx(expected)


@pytest.mark.parametrize("starting", [counts(tasks=1), counts(threads=1), None])
def test_layers_that_start_what_may_go_on_after_the_request_are_bypassed(starting: Counts | None) -> None:
    layer = replace(row(Estimate(1.0, 0.0, 4.9)), counts=starting)
    assert starts(layer)
    assert not is_negligible(layer, 5.0, None)


def test_the_task_of_the_inner_app_ends_with_the_request() -> None:
    layer = replace(row(None), layer=Layer(RowIndex(0), "Auth", "shop.Auth", "middleware", runs_task=True))
    assert not starts(replace(layer, counts=counts(tasks=1)))
    assert starts(replace(layer, counts=counts(tasks=2)))


# ---- verdicts ----------------------------------------------------------------------------------------------------

KEPT, WITHIN, NEAR, OVER = (
    Estimate(0.04, 0.03, 0.049),
    Estimate(0.05, 0.04, 0.06),
    Estimate(0.053, 0.051, 0.055),
    Estimate(0.08, 0.07, 0.09),
)


@pytest.mark.parametrize(
    ("share", "conditions", "verdict", "message_id"),
    [
        (KEPT, Conditions(), "pass", None),
        (WITHIN, Conditions(), "undecided", "near-budget"),
        (NEAR, Conditions(), "undecided", "near-budget"),
        (OVER, Conditions(), "fail", None),
        (OVER, Conditions(slowdown=1.12), "fail", None),
        (OVER, Conditions(slowdown=1.3), "undecided", "slow-machine"),
        (OVER, Conditions(noisy=True), "undecided", "slow-machine"),
        (KEPT, Conditions(noisy=True), "pass", None),
        (OVER, Conditions(crowded="another process [other-process]"), "undecided", "other-process"),
        (OVER, Conditions(shared_core=True), "fail", None),
        (KEPT, Conditions(shared_core=True), "undecided", "one-core"),
        (OVER, Conditions(limited=True), "fail", None),
        (KEPT, Conditions(limited=True), "undecided", "generator-limit"),
        (Estimate(0.08, -math.inf, math.inf), Conditions(), "undecided", "too-few-requests"),
    ],
)
def test_verdicts_on_shares(share: Estimate, conditions: Conditions, verdict: str, message_id: str | None) -> None:
    judged = judge_share(LayerLoad(share, "bypass"), 0.05, conditions)
    assert judged.verdict == verdict
    assert (judged.reason or "").endswith(f"[{message_id}]" if message_id else "")


@pytest.mark.parametrize(("share", "verdict"), [(KEPT, "pass"), (OVER, "undecided")])
def test_a_share_that_may_be_too_large_fails_no_budget(share: Estimate, verdict: str) -> None:
    judged = judge_share(LayerLoad(share, "bypass"), 0.05, Conditions(), "the app may take another way")
    assert (judged.verdict, judged.reason) == (verdict, None if verdict == "pass" else "the app may take another way")


def test_the_share_of_the_split_needs_more_room_to_fail() -> None:
    assert judge_share(LayerLoad(OVER, "split"), 0.05, Conditions()).verdict == "undecided"
    assert judge_share(LayerLoad(OVER * 2, "split"), 0.05, Conditions()).verdict == "fail"


def test_the_share_of_the_split_passes_no_layer_that_may_work_after_the_response() -> None:
    late = LayerLoad(KEPT, "split", "it is late")
    assert judge_share(late, 0.05, Conditions()).verdict == "pass"
    started = replace(row(None), counts=counts(tasks=1))
    lacks = lacking(started, late, None, None)
    assert lacks is not None
    assert lacks.endswith("and this is in no own time; it is late [not-bypassed]")
    assert judge_share(late, 0.05, Conditions(), lacks=lacks) == Judged(0.05, "undecided", lacks)
    assert lacking(row(None), late, Wait(1.0, 9.0), None) is None
    assert lacking(row(None), late, None, "it is wide") == "it is wide [not-bypassed]"


def test_the_share_of_the_split_passes_no_layer_in_which_requests_queue() -> None:
    lacks = lacking(row(None), LayerLoad(KEPT, "split", "it is late"), Wait(1.0, 9.0, serialises=True), None)
    assert lacks == "requests queue in it, and this is in no own time; it is late [not-bypassed]"


def test_the_share_of_the_split_needs_room_for_the_cold_caches_of_a_server() -> None:
    assert behind_server(None, 0.05) is None
    assert behind_server(Estimate(0.01, 0.0, 0.0178), 0.05) is None
    said = behind_server(Estimate(0.01, 0.0, 0.0179), 0.05)
    assert said == "behind a server a layer takes up to 2.8 times its self time, which is 5.0% here"


def test_a_layer_without_a_share_is_undecided() -> None:
    judged = judge_share(LayerLoad(why="it answers"), 0.05, Conditions())
    assert judged == Judged(0.05, "undecided", "there is no share for it: it answers [not-bypassed]")


@pytest.mark.parametrize(
    ("p99_ms", "conditions", "verdict"),
    [
        (Estimate(15.0, 14.0, 19.0), Conditions(), "pass"),
        (Estimate(25.0, 23.0, 27.0), Conditions(), "fail"),
        (Estimate(25.0, 23.0, math.inf), Conditions(), "undecided"),
        (Estimate(25.0, 23.0, 27.0), Conditions(shared_core=True), "undecided"),
        (Estimate(15.0, 14.0, 19.0), Conditions(shared_core=True), "pass"),
        (Estimate(25.0, 23.0, 27.0), Conditions(limited=True), "undecided"),
        (Estimate(15.0, 14.0, 19.0), Conditions(limited=True), "pass"),
        (Estimate(21.0, 20.5, 22.0), Conditions(), "undecided"),
    ],
)
def test_verdicts_on_latencies(p99_ms: Estimate, conditions: Conditions, verdict: str) -> None:
    assert judge_p99(p99_ms, 20.0, conditions).verdict == verdict


def test_a_kept_share_seldom_fails_whatever_the_noise() -> None:
    rng, failed = random.Random(4), 0
    for _ in range(300):
        layer_load = bypassed(Bursts(rounds(rng, 12)), LAYER, None, 0.01)
        failed += judge_share(layer_load, 0.2, Conditions()).verdict == "fail"
    assert failed == 0
