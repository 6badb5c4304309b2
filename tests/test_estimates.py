"""Estimates from samples whose true costs are known."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from statistics import fmean
from typing import Any

import pytest

from pytest_mwbudget.analysis import estimates
from pytest_mwbudget.analysis.calibration import FEWEST_DIVIDED, FEWEST_NULLS, OWN_NULLS, handovers
from pytest_mwbudget.analysis.estimates import (
    LONE_SHARE,
    MOST_OF_A_STEP,
    SHARED_SHARE,
    SUSPENDING_SHARE,
    Estimates,
    estimate,
    method_us,
)
from pytest_mwbudget.analysis.event_log import Spent
from pytest_mwbudget.analysis.intervals import NEAR
from pytest_mwbudget.analysis.samples import BlankLayers, Null, Samples, Series, Split
from pytest_mwbudget.analysis.slowdown import Hops
from pytest_mwbudget.model.estimate import ZERO, Estimate
from pytest_mwbudget.model.stack import HARNESS, Boundary
from pytest_mwbudget.timing.null_layers import BLANKS, DIVIDING

# Arithmetic is the same in every interpreter.
pytestmark = pytest.mark.once

STEADY_NS = 1000.0
# The time without a row in each request, which is part of no figure.
UNOWNED_NS = 5_000_000.0
# A null layer at the boundary of the outermost entry, without a blank layer.
PLAIN = Null(0, BlankLayers(0))


def entry(parent: int | None, *, same_send: bool = True) -> Boundary:
    return Boundary(
        parent=parent,
        parents=(parent,),
        own_task=False,
        same_send=same_send,
        same_receive=same_send,
        plain=False,
        part_of=None,
        elsewhere=False,
    )


def put(
    split: Split,
    null_ns: float,
    owned_ns: dict[int, float],
    *,
    reference: float = STEADY_NS,
    null: Null = PLAIN,
    suspended_ns: dict[int, float] | None = None,
    resumed: dict[int, int] | None = None,
    others: tuple[float, int] = (0.0, 0),
    passing_ns: float = 0.0,
    leaning_ns: float = 0.0,
) -> None:
    """Add a request: the reading of its null layer, and time, suspensions and resumptions by entry (-1: the server).

    `others` is the time and the number of steps of work that was not started in the request.
    """
    null_owner = max(owned_ns) + 2

    def column(by_entry: dict[int, float] | dict[int, int], *further: float) -> tuple[int, ...]:
        # Not rounded, so that the true values stay exact.
        return (*(by_entry.get(owner - 1, 0) for owner in range(null_owner)), *further)  # type: ignore[misc,return-value]

    others_ns, steps = others
    used = Spent(
        column(owned_ns, null_ns, UNOWNED_NS, others_ns),
        column(suspended_ns or {}, 0, 0, 0),
        column(resumed or {}, 0, 0, steps),
    )
    split.add(reference, null, null_ns, used, passing_ns=passing_ns, leaning_ns=leaning_ns)


CHAIN = [entry(None), entry(0), entry(1)]
# Entry 0 calls entries 1 and 2, one after the other.
FORK = [entry(None), entry(0), entry(0)]


def series(centre: float, count: int = 200, noise: float = 2.0, seed: int = 1) -> Series:
    """Make values around `centre`, taken on a steady machine."""
    rng = random.Random(seed)
    values = Series()
    for _ in range(count):
        values.add(centre + rng.uniform(-noise, noise), STEADY_NS)
    return values


def samples(
    owned_ns: dict[int, float],
    nulls_ns: dict[int, float],
    *,
    null_counts: dict[int, int] | None = None,
    passing: float = 0.75,
    resumed: dict[int, int] | None = None,
    suspended_ns: dict[int, float] | None = None,
    null_noise: float = 2.0,
    blank_ns: float = 0.0,
    blanks: tuple[int, ...] = (0,),
    wrap_ns: float = 0.0,
    handed_ns: float = 0.0,
    wrap_once_ns: float = 0.0,
    sent: dict[int, int] | None = None,
    own_noise: float = 2.0,
    others: tuple[float, int] = (0.0, 0),
    whole_ns: float | None = None,
    seed: int = 7,
) -> Samples:
    """Make samples of a stack: the time that each entry owns, probes included (-1: the server), and null layers.

    `suspended_ns` is the part of an entry's time in suspensions. `null_counts` is the number of requests with the null
    layer at an entry, by default 200. A null layer has one of the numbers `blanks` of blank layers, each of `blank_ns`.
    Where an entry has `sent` messages, every third null layer wraps `send`, which takes `wrap_ns` a message and
    `wrap_once_ns` a request; the probes then take `handed_ns` more for each message. `others` is as in `put`. A request
    without probes takes `whole_ns`; by default this is known so roughly that it says nothing about the probes.
    """
    rng = random.Random(seed)
    counts = dict.fromkeys(nulls_ns, 200) | (null_counts or {})
    doubled = [
        Null(index, BlankLayers(rng.choice(blanks), wrapping=bool(sent) and number % 3 == 0))
        for index in nulls_ns
        for number in range(counts[index])
    ]
    rng.shuffle(doubled)
    taken = Samples(tuple(nulls_ns), sent or {})
    for null in doubled:
        wrapped_ns = null.blanks.wrapping * (sent or {}).get(null.index, 0) * (null.blanks.count * wrap_ns + handed_ns)
        noise_ns = rng.uniform(-null_noise, null_noise)
        put(
            taken.split,
            nulls_ns[null.index]
            + null.blanks.count * blank_ns
            + null.blanks.wrapping * wrap_once_ns
            + wrapped_ns
            + noise_ns,
            {entry: centre + rng.uniform(-own_noise, own_noise) for entry, centre in owned_ns.items()},
            null=null,
            suspended_ns=suspended_ns,
            resumed=resumed,
            others=others,
            passing_ns=passing * (nulls_ns[null.index] + noise_ns) + wrapped_ns,
        )
    roughly_ns = sum(owned_ns.values()) - sum(nulls_ns.values())
    taken.whole = series(roughly_ns, noise=4 * roughly_ns, seed=40) if whole_ns is None else series(whole_ns, seed=40)
    return taken


def estimated(found: Samples, entries: list[Boundary], *, outside: bool = False, look: int = 1) -> Estimates:
    return estimate(found, entries, outside=outside, look=look)


def sampling_us(us: Estimate, found: Estimates) -> float:
    """Return the half width of the interval without the method's error, which no sample reduces."""
    return us.half_width - method_us(us.estimate, found.whole.estimate)


def near(us: float) -> object:
    """Approximate microseconds, within the noise of the samples."""
    return pytest.approx(us, abs=0.001)


def test_half_of_its_own_null_and_half_of_its_childs_are_taken_off_a_layer() -> None:
    estimates = estimated(samples({-1: 5000, 0: 20_000, 1: 30_000, 2: 40_000}, {0: 1000, 1: 2000, 2: 4000}), CHAIN)
    assert estimates.split[0].estimate == near(20 - (1 + 2) / 2)
    assert estimates.split[1].estimate == near(30 - (2 + 4) / 2)
    assert estimates.split[2].estimate == near(40 - 4 / 2)


def test_a_side_of_a_probe_that_costs_more_is_taken_off_the_row_that_it_is_in() -> None:
    """Code that runs first after other code than a probe's: inside the outermost probe, outside of the innermost."""
    taken = samples({-1: 5000, 0: 20_000, 1: 30_000, 2: 40_000}, {0: 2000, 1: 1000, 2: 1000})
    for index, leaning_ns in ((0, 700), (1, 100), (2, -300)):
        for _ in range(FEWEST_DIVIDED):
            owned = {-1: 5000.0, 0: 20_000.0, 1: 30_000.0, 2: 40_000.0}
            put(taken.split, 500, owned, null=Null(index, DIVIDING), leaning_ns=leaning_ns)
    rows = estimated(taken, CHAIN).split
    # Of the null layers, half; of what they lean beyond the typical one, half more inside and half less outside.
    assert rows[0].estimate == near(20 - (2 + 1) / 2 - 0.6 / 2)
    assert rows[1].estimate == near(30 - (1 + 1) / 2 - 0.4 / 2)
    assert rows[2].estimate == near(40 - 1 / 2 + 0.4 / 2)


def test_a_layer_with_two_children_pays_for_the_probes_of_both() -> None:
    estimates = estimated(samples({-1: 5000, 0: 20_000, 1: 30_000, 2: 40_000}, {0: 1000, 1: 2000, 2: 4000}), FORK)
    assert estimates.split[0].estimate == near(20 - (1 + 2 + 4) / 2)
    assert estimates.split[1].estimate == near(30 - 2 / 2)


def test_the_child_of_an_entry_without_a_probe_is_its_parents_child() -> None:
    estimates = estimated(samples({-1: 5000, 0: 20_000, 1: 0, 2: 40_000}, {0: 1000, 2: 4000}), CHAIN)
    assert estimates.split[0].estimate == near(20 - (1 + 4) / 2)
    assert 1 not in estimates.split


def test_a_part_of_a_layer_without_a_probe_is_read_with_what_is_outside_of_it() -> None:
    """A layer may be entered through a method in which no probe can stand."""
    chain = [*CHAIN, replace(entry(1), part_of=0)]
    taken = samples({-1: 5000, 0: 20_000, 1: 3000, 2: 40_000, 3: 0}, {0: 1000, 1: 1000, 2: 4000})
    assert estimated(taken, chain).split.keys() == {0, 1, 2}
    assert estimated(taken, chain).split[0].estimate == near(20 - (1 + 1) / 2)


@pytest.mark.parametrize("passing", [0.0, 0.4, 0.75])
def test_the_server_pays_for_the_outer_half_of_the_outermost_probe_at_each_message(passing: float) -> None:
    taken = samples({-1: 5000, 0: 20_000, 1: 0, 2: 0}, {0: 1000}, passing=passing, blanks=(1, 4), blank_ns=300.0)
    assert estimated(taken, CHAIN).outside.estimate == pytest.approx(5 - 0.5 * passing, abs=0.05)


def test_the_app_object_is_outside_and_not_a_layer() -> None:
    taken = samples({-1: 5000, 0: 20_000, 1: 30_000, 2: 40_000}, {0: 1000, 1: 2000, 2: 4000})
    estimates = estimated(taken, CHAIN, outside=True)
    assert set(estimates.split) == {1, 2}
    assert estimates.outside.estimate == near(5 - 0.5 * 3 / 4 + 20 - (1 + 2) / 2)


def test_a_boundary_that_differs_from_the_others_is_read_right_from_few_nulls() -> None:
    owned, nulls = {-1: 5000.0, 0: 20_000.0, 1: 30_000.0, 2: 40_000.0}, {0: 1000.0, 1: 1000.0, 2: 4000.0}
    for count in (FEWEST_NULLS, OWN_NULLS - 1, OWN_NULLS):
        estimates = estimated(samples(owned, nulls, null_counts={0: 31, 1: 31, 2: count}), CHAIN)
        assert estimates.split[2].estimate == near(40 - 4 / 2)
        # With few null layers of its own, the boundary may be like the others.
        assert (estimates.split[2].high > 40 - 1 / 2) == (count < OWN_NULLS)
    estimates = estimated(samples(owned, nulls, null_counts={0: 31, 1: 31, 2: FEWEST_NULLS - 1}), CHAIN)
    assert estimates.split[2].estimate == near(40 - 1 / 2)


def test_what_the_blank_layers_take_is_no_cost_of_a_probe() -> None:
    owned, nulls = {-1: 5000.0, 0: 20_000.0, 1: 30_000.0, 2: 40_000.0}, {0: 1000.0, 1: 2000.0, 2: 4000.0}
    estimates = estimated(samples(owned, nulls, blank_ns=180, blanks=(1, 1, 2)), CHAIN)
    assert estimates.split[0].estimate == near(20 - (1 + 2) / 2)
    assert estimates.split[1].estimate == near(30 - (2 + 4) / 2)
    assert estimates.split[2].estimate == near(40 - 4 / 2)
    least = method_us(0, estimates.whole.estimate)
    assert least < estimates.detection_limit_us < least + 0.01


def test_as_long_as_a_blank_layer_is_not_known_it_takes_something_from_nothing_to_all_of_the_null_layer() -> None:
    estimates = estimated(samples({-1: 5000, 0: 20_000}, {0: 1000}, blank_ns=180, blanks=(1,)), CHAIN)
    row = estimates.split[0]
    method = method_us(row.estimate, estimates.whole.estimate)
    assert row.low == pytest.approx(20 - 1.18 / 2 - method, abs=0.005)
    assert row.high == pytest.approx(20 + method, abs=0.005)


def test_where_null_layers_have_several_blank_layers_each_takes_its_share_at_most() -> None:
    """About seven null layers have one blank layer and seven have four: too few to know the cost of a blank layer."""
    taken = samples({-1: 5000, 0: 20_000}, {0: 1000}, blank_ns=180, blanks=(1, 4), null_counts={0: 14})
    estimates = estimated(taken, CHAIN)
    row = estimates.split[0]
    most = (1 + 4 * 0.18) / 4
    assert row.high == pytest.approx(
        20 - (1.18 - most) / 2 + method_us(row.estimate, estimates.whole.estimate), abs=0.02
    )


def test_what_it_costs_to_hand_messages_over_is_taken_off_whoever_hands_them_over() -> None:
    """Entry 1 wraps `send`, so messages go to its function and on from there; entry 2, the endpoint, makes its own."""
    owned, nulls = {-1: 5000.0, 0: 20_000.0, 1: 30_000.0, 2: 40_000.0}, {0: 1000.0, 1: 2000.0, 2: 4000.0}
    entries = [entry(None), entry(0), entry(1, same_send=False)]
    taken = samples(
        owned, nulls, blank_ns=180, blanks=(1, 1, 2), wrap_ns=110, handed_ns=160, sent={0: 10, 1: 10, 2: 10}
    )
    estimates = estimated(taken, entries)
    assert estimates.split[0].estimate == near(20 - (1 + 2) / 2)
    assert estimates.split[1].estimate == near(30 - (2 + 4) / 2 - 10 * 0.16)
    assert estimates.split[2].estimate == near(40 - 4 / 2 - 10 * 0.08)
    assert estimates.outside.estimate == near(5 - 0.5 * 3 / 4 - 10 * 0.08)
    assert sampling_us(estimates.split[1], estimates) < 0.1


def test_the_interval_of_a_row_misses_no_more_often_than_its_share_of_alpha(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every part of a row has noise: its own time, both null layers, the blank layers, the handing."""
    monkeypatch.setattr(estimates, "ALPHA", 0.6)
    monkeypatch.setattr(estimates, "method_us", lambda us, whole_us, suspends=False: 0.0)
    entries = [entry(None), entry(0), entry(1, same_send=False)]
    truth_us = {0: 20 - (1 + 2) / 2, 1: 30 - (2 + 4) / 2 - 2 * 0.16, 2: 40 - 4 / 2 - 2 * 0.08}
    runs, missed = 100, dict.fromkeys(truth_us, 0)
    for seed in range(runs):
        figures = estimated(
            samples(
                {-1: 5000.0, 0: 20_000.0, 1: 30_000.0, 2: 40_000.0},
                {0: 1000.0, 1: 2000.0, 2: 4000.0},
                null_counts=dict.fromkeys(truth_us, 100),
                null_noise=30,
                own_noise=100,
                blank_ns=180,
                blanks=BLANKS,
                wrap_ns=110,
                handed_ns=160,
                sent={0: 2, 1: 2, 2: 2},
                seed=seed,
            ),
            entries,
        )
        for index, us in truth_us.items():
            missed[index] += not figures.split[index].low <= us <= figures.split[index].high
    # Half of alpha at the first look, shared by five intervals: three rows, the outside and the total.
    share = 0.6 / 2 / 5
    assert max(missed.values()) <= runs * share + 3 * math.sqrt(runs * share)


def test_as_long_as_the_handing_is_not_known_it_may_take_all_that_a_null_layer_does_for_a_message() -> None:
    entries = [entry(None), entry(0, same_send=False)]
    taken = samples({-1: 5000, 0: 20_000, 1: 30_000}, {0: 1000, 1: 1000}, blanks=(1,), handed_ns=160, sent={0: 2, 1: 2})
    row = estimated(taken, entries).split[0]
    unknown = replace(taken, sent={})
    plain = estimated(unknown, entries).split[0]
    assert row.estimate == plain.estimate == near(20 - 1)
    # Half of the handing at each of four handovers; the null layers read up to 1.32 µs, for entering and two messages.
    assert plain.low - row.low == pytest.approx(4 * 1.32 / 3 / 2, abs=0.01)
    assert row.high == pytest.approx(plain.high, abs=0.01)


@pytest.mark.parametrize(
    ("same_send", "probed", "expected"),
    [
        ((False, True, True), (0, 1, 2), {HARNESS: 3, 1: 1, 2: 0, 3: 2}),
        ((False, True, False), (0, 1, 2), {HARNESS: 3, 1: 1, 2: 2 + 2, 3: 2}),
        ((False, False, True), (0, 1, 2), {HARNESS: 3, 1: 3 + 2, 2: 0, 3: 2}),
        ((False, True, True), (0, 2), {HARNESS: 3, 1: 1, 3: 2}),
        ((False, False, True), (0, 2), {HARNESS: 3, 1: 3 + 2, 3: 2}),
    ],
)
def test_a_function_hands_over_what_it_sends_itself_and_what_it_wraps(
    same_send: tuple[bool, ...], probed: tuple[int, ...], expected: dict[int, int]
) -> None:
    """Of the three messages of the outermost entry, the first is its own."""
    entries = [entry(None if place == 0 else place - 1, same_send=same) for place, same in enumerate(same_send)]
    assert handovers(entries, probed, {0: 3, 1: 2, 2: 2}) == expected


def test_a_layer_is_paired_with_the_nulls_of_its_moment() -> None:
    """A slowdown too small to leave out slows the layer and the probes inside it alike."""
    split = Split()
    for number in range(1400):
        slow = 1.04 if number % 140 < 70 else 1.0
        put(split, 1000 * slow, {-1: 0, 0: 500 * slow})
    taken = Samples((0,), split=split)
    estimates = estimated(taken, CHAIN)
    assert estimates.split[0].estimate == pytest.approx(0, abs=1e-9)
    assert sampling_us(estimates.split[0], estimates) < 0.03


def test_however_many_samples_there_are_the_method_may_be_wrong() -> None:
    taken = samples({-1: 5000, 0: 20_000}, {0: 1000}, null_noise=0, whole_ns=24_125)
    row = taken.split
    taken.split = replace(row, spent=[row.spent[0]] * len(row.spent))
    estimates = estimated(taken, CHAIN)
    for us in (estimates.split[0], estimates.outside):
        assert us.half_width == pytest.approx(method_us(us.estimate, estimates.whole.estimate))
    half_widths = {0: estimates.split[0].half_width, "outside": estimates.outside.half_width}
    assert estimates.method_us == {key: pytest.approx(us) for key, us in half_widths.items()}
    assert estimates.detection_limit_us == pytest.approx(method_us(0, estimates.whole.estimate))
    assert estimates.whole.half_width < 0.01


def test_the_method_may_be_wrong_by_more_where_a_layer_suspends_and_where_caches_get_cold() -> None:
    assert method_us(50, 0) == pytest.approx(0.1 + 0.5)
    assert method_us(50, 0, suspends=True) == pytest.approx(0.1 + 2)
    assert method_us(0, 500) == pytest.approx(0.1 + 0.15)
    assert method_us(0, 1000) == method_us(0, 100_000) == pytest.approx(0.4)


def test_the_split_of_a_task_layer_says_what_it_shares_with_its_neighbours() -> None:
    entries = [*CHAIN[:1], replace(CHAIN[1], own_task=True), *CHAIN[2:]]
    estimates = estimated(samples(OWNED, NULLS), entries)
    task_us = estimates.split[0].estimate
    assert estimates.shared_us == {0: pytest.approx((LONE_SHARE - SUSPENDING_SHARE) * task_us)}


def test_a_task_layer_that_has_all_steps_shares_none() -> None:
    entries = [*CHAIN[:1], replace(CHAIN[1], own_task=True), *CHAIN[2:]]
    assert estimated(stepping(700, resumed={0: 4}), entries).shared_us == {0: 0.0}
    for shared in (stepping(700, resumed={0: 4, 2: 1}), stepping(700, resumed={0: 4}, others=(0.0, 2))):
        assert estimated(shared, entries).shared_us == {0: pytest.approx(4 / 100 * 20, rel=0.2)}


def test_task_layers_one_in_another_share_more() -> None:
    entries = [CHAIN[0], *(replace(inner, own_task=True) for inner in CHAIN[1:])]
    estimates = estimated(samples(OWNED, NULLS), entries)
    share = SHARED_SHARE - SUSPENDING_SHARE
    assert estimates.shared_us == {i: pytest.approx(share * estimates.split[i].estimate) for i in (0, 1)}


@pytest.mark.parametrize(
    ("in_place_us", "endpoint_us", "whole_us", "row_us"),
    [
        (3.8, 0.0, 2.0, 0.2),
        (4.2, 0.0, 2.0, 0.2),
        (3.0, 0.0, 2.0, 0.2 + 3.0 - 0.85 * 4),  # null layers can be wrong by so much and no more
        (5.0, 0.0, 2.0, 0.2 + 5.0 - 1.15 * 4),
        (3.8, 400.0, 402.0, 0.035),  # one half per cent of a long request says little
    ],
)
def test_probes_cost_so_much_that_the_rows_add_up_to_the_whole(
    in_place_us: float, endpoint_us: float, whole_us: float, row_us: float
) -> None:
    """Nine layers of 0.2 µs and an endpoint, whose null layers read 4 µs each."""
    owned = {-1: 500 * in_place_us, **dict.fromkeys(range(10), 200.0 + 1000 * in_place_us)}
    owned[9] += 1000 * (endpoint_us - in_place_us / 2)
    entries = [entry(None), *map(entry, range(9))]
    taken = samples(owned, dict.fromkeys(range(10), 4000.0), passing=1.0, whole_ns=1000 * whole_us)
    *layers, _ = estimated(taken, entries).split.values()
    assert [us.estimate for us in layers] == pytest.approx([row_us] * 9, abs=0.02)


@pytest.mark.parametrize("slow", ["probes", "app", "null layers", "neither"])
@pytest.mark.parametrize("null_error", [0.96, 1.0, 1.04])
@pytest.mark.parametrize("requests", [120, 1200])
def test_in_a_deep_stack_some_layers_or_probes_are_slow_each_time_others(
    slow: str, null_error: float, requests: int
) -> None:
    """Forty layers of 0.2 µs. Probes or layers take 0 to 0.5 µs longer, typically 0.06 µs and 0.125 on average.

    Null layers may also vary more than the probes of the app.
    """
    rng = random.Random(5)
    layers, probe_ns = 40, 2000.0

    def longer_ns(what: str) -> float:
        return 500.0 * rng.random() ** 3 if slow == what else 0.0

    def vary_ns() -> float:
        return 600.0 * (rng.expovariate(1.0) - math.log(2)) if slow == "null layers" else 0.0

    taken = Samples(tuple(range(layers)), {})
    for number in range(requests):
        owned = {index: 200 + probe_ns + longer_ns("probes") + longer_ns("app") for index in range(layers - 1)}
        owned |= {-1: probe_ns / 2, layers - 1: probe_ns / 2 + 1000}
        null_ns = null_error * probe_ns + longer_ns("probes") + vary_ns()
        put(taken.split, null_ns, owned, null=Null(number % layers, BlankLayers(0)), passing_ns=null_error * probe_ns)
        whole_ns = sum(200 + longer_ns("app") for _ in range(layers - 1)) + 1000 + rng.uniform(-20, 20)
        taken.whole.add(whole_ns, STEADY_NS)
    rows = estimated(taken, [entry(None), *map(entry, range(layers - 1))]).split
    typical_us = 0.2625 if slow == "app" else 0.2
    wrong_us = 0.03 if requests == 1200 else 0.1
    assert fmean(rows[index].estimate for index in range(layers - 1)) == pytest.approx(typical_us, abs=wrong_us)
    assert all(rows[index].low <= typical_us <= rows[index].high for index in range(layers - 1))


def test_where_a_request_suspends_its_probes_cost_what_null_layers_do() -> None:
    """Logging the steps costs as well, and nothing tells these costs apart."""
    taken = samples({-1: 500, 0: 20_000}, {0: 1000}, resumed={0: 1}, whole_ns=30_000)
    assert estimated(taken, CHAIN).split[0].estimate == near(20 - 1 / 2)


def test_a_row_that_suspends_is_known_to_a_few_per_cent_but_what_it_holds_as_any_other() -> None:
    owned_ns = {-1: 5000.0, 0: 20_000.0}
    taken = samples(owned_ns, {0: 1000}, null_noise=0, suspended_ns={0: 9000}, resumed={0: 1}, whole_ns=25_000)
    row = taken.split
    taken.split = replace(row, spent=[row.spent[0]] * len(row.spent))
    estimates = estimated(taken, CHAIN)
    whole_us = estimates.whole.estimate
    split, holding = estimates.split[0], estimates.holding[0]
    assert (
        split.half_width == pytest.approx(method_us(split.estimate, whole_us, suspends=True)) == estimates.method_us[0]
    )
    assert holding.half_width == pytest.approx(method_us(holding.estimate, whole_us))


def test_intervals_hold_the_truth_and_widen_with_every_look() -> None:
    taken = samples({-1: 5000, 0: 20_000, 1: 30_000, 2: 40_000}, {0: 1000, 1: 2000, 2: 4000})
    first, tenth = estimated(taken, CHAIN).split[1], estimated(taken, CHAIN, look=10).split[1]
    assert first.low < 27 < first.high
    assert tenth.low <= first.low
    assert tenth.high >= first.high
    assert tenth.high - tenth.low > first.high - first.low


def test_rows_without_samples_are_unbounded() -> None:
    estimates = estimated(Samples((0, 1)), CHAIN)
    for us in (estimates.split[0], estimates.split[1], estimates.outside, estimates.whole):
        assert (us.low, us.high) == (-math.inf, math.inf)
    assert estimates.detection_limit_us == math.inf
    assert (estimates.step, estimates.others) == (ZERO, ZERO)


def test_an_app_without_a_probe_has_a_whole_and_nothing_else() -> None:
    estimates = estimated(samples({-1: 5000}, {}, whole_ns=5000), [])
    assert estimates.split == {}
    assert estimates.whole.estimate == near(5)


def test_the_last_look_has_the_chances_that_were_not_spent() -> None:
    taken = samples({-1: 5000, 0: 20_000}, {0: 1000}, own_noise=2000)
    usual, last = (estimate(taken, CHAIN, outside=False, look=6, last=last).split[0] for last in (False, True))
    assert usual.low < last.low < last.estimate < last.high < usual.high


def test_requests_from_busy_moments_are_left_out() -> None:
    taken = samples({-1: 5000, 0: 20_000, 1: 0, 2: 0}, {0: 1000})
    for _ in range(300):
        put(taken.split, 1000, {-1: 5000, 0: 90_000, 1: 0, 2: 0}, reference=1.5 * STEADY_NS)
    assert estimated(taken, CHAIN).split[0].estimate == near(20 - 0.5)


def test_a_moment_is_busy_also_by_its_null_layers() -> None:
    taken = samples({-1: 5000, 0: 20_000, 1: 0, 2: 0}, {0: 1000})
    for _ in range(150):
        put(taken.split, 1400, {-1: 5000, 0: 90_000, 1: 0, 2: 0})
    assert estimated(taken, CHAIN).split[0].estimate == near(20 - 0.5)


def test_a_part_that_was_busy_from_end_to_end_is_known_by_the_quickest_part() -> None:
    taken = samples({-1: 5000, 0: 20_000, 1: 0, 2: 0}, {0: 1000})
    taken.whole = Series()
    for number in range(400):
        busy = number % 4 > 0
        for _ in range(NEAR):
            taken.whole.add(50_000 if busy else 25_000, STEADY_NS * (1.5 if busy else 1))
    assert estimated(taken, CHAIN).whole.estimate == near(25)


# ---- the steps of the event loop ------------------------------------------------------------------------------------

OWNED, NULLS = {-1: 5000.0, 0: 20_000.0, 1: 30_000.0, 2: 40_000.0}, {0: 1000.0, 1: 2000.0, 2: 4000.0}
# The halves of the probes in the time of each entry, and in that of the server, which three of four messages pass.
PROBES = {-1: 375.0, 0: 1500.0, 1: 3000.0, 2: 2000.0}
# A row of each kind: the server waits, the outermost layer does not, the others wait once and three times.
RESUMED = {-1: 2, 1: 1, 2: 3}


def stepping(step_ns: float, *, resumed: dict[int, int] = RESUMED, **said: Any) -> Samples:
    """Make samples whose rows take OWNED, longer by the probes and by what logging their steps costs."""
    logged = {index: ns + PROBES[index] + step_ns * resumed.get(index, 0) for index, ns in OWNED.items()}
    others_ns, _ = said.get("others", (0.0, 0))
    said = {"whole_ns": sum(OWNED.values()) + others_ns, **said}
    return samples(logged, NULLS, resumed=resumed, **said)


def added_up(found: Estimates) -> float:
    """Add up the rows, the outside, and the time of others."""
    return math.fsum(us.estimate for us in (*found.split.values(), found.outside, found.others))


@pytest.mark.parametrize("step_ns", [0.0, 700.0, 2500.0])
@pytest.mark.parametrize("others_ns", [0.0, 15_000.0])
def test_what_logging_the_steps_costs_is_taken_off_where_they_are(step_ns: float, others_ns: float) -> None:
    estimates = estimated(stepping(step_ns, others=(others_ns, 0)), CHAIN)
    assert estimates.step.estimate == near(step_ns / 1000)
    assert estimates.step.low <= step_ns / 1000 <= estimates.step.high
    assert [estimates.split[index].estimate for index in range(3)] == [near(OWNED[index] / 1000) for index in range(3)]
    assert estimates.outside.estimate == near(OWNED[-1] / 1000)
    assert added_up(estimates) == near(estimates.whole.estimate)


@pytest.mark.parametrize("outside", [False, True])
def test_rows_add_up_to_the_total_also_beside_an_app_object_and_messages(outside: bool) -> None:
    """Entry 1 wraps `send`: what it costs to hand messages over is no cost of the steps."""
    entries = [entry(None), entry(0), entry(1, same_send=False)]
    sent, handed_ns = {0: 10, 1: 10, 2: 10}, 160.0
    handed = {-1: 10 * handed_ns / 2, 1: 10 * handed_ns, 2: 10 * handed_ns / 2}
    owned = {i: ns + PROBES[i] + handed.get(i, 0) + 900 * RESUMED.get(i, 0) for i, ns in OWNED.items()}
    taken = samples(
        owned,
        NULLS,
        resumed=RESUMED,
        blank_ns=180,
        blanks=(1, 1, 2),
        wrap_ns=110,
        handed_ns=handed_ns,
        sent=sent,
        others=(15_000.0, 0),
        whole_ns=sum(OWNED.values()) + 15_000,
    )
    estimates = estimated(taken, entries, outside=outside)
    assert estimates.step.estimate == pytest.approx(0.9, abs=0.005)
    assert set(estimates.split) == ({1, 2} if outside else {0, 1, 2})
    assert added_up(estimates) == pytest.approx(estimates.whole.estimate, abs=0.005)


def test_the_steps_of_others_are_logged_at_the_same_cost() -> None:
    step_ns, others_ns, steps = 700.0, 15_000.0, 4
    taken = stepping(step_ns, others=(others_ns + steps * step_ns, steps), whole_ns=sum(OWNED.values()) + others_ns)
    estimates = estimated(taken, CHAIN)
    assert estimates.step.estimate == near(step_ns / 1000)
    assert estimates.others.estimate == near(others_ns / 1000)
    assert added_up(estimates) == near(estimates.whole.estimate)


def test_to_log_a_step_costs_nothing_at_least_and_two_typical_probes_at_most() -> None:
    plain = estimated(stepping(0, resumed={}), CHAIN)
    quicker = estimated(stepping(-700), CHAIN)
    assert quicker.step == ZERO
    assert quicker.split[2].estimate == near(plain.split[2].estimate - 3 * 0.7)
    most_us = MOST_OF_A_STEP * 2.0
    slower = estimated(stepping(9000), CHAIN)
    assert slower.step == Estimate(near(most_us), near(most_us), near(most_us))  # type: ignore[arg-type]
    assert slower.split[2].estimate == near(plain.split[2].estimate + 3 * (9 - most_us))


def test_layers_of_the_app_that_are_slow_now_and_then_say_nothing_about_steps() -> None:
    rng = random.Random(6)
    layers, probe_ns, step_ns = 9, 2000.0, 500.0
    taken = Samples(tuple(range(layers)), {})

    def longer_ns() -> float:
        return 5000.0 * (rng.random() < 1 / 4)

    for number in range(600):
        owned = {index: 200 + probe_ns + step_ns + longer_ns() * (index < 3) for index in range(layers - 1)}
        owned |= {-1: probe_ns / 2, layers - 1: 1000 + probe_ns / 2 + step_ns}
        null, resumed = Null(number % layers, BlankLayers(0)), dict.fromkeys(range(layers), 1)
        put(taken.split, probe_ns, owned, null=null, passing_ns=probe_ns, resumed=resumed)
        taken.whole.add(200 * (layers - 1) + 1000 + sum(longer_ns() for _ in range(3)), STEADY_NS)
    estimates = estimated(taken, [entry(None), *map(entry, range(layers - 1))])
    assert estimates.step.low <= step_ns / 1000 <= estimates.step.high
    assert estimates.step.estimate == pytest.approx(step_ns / 1000, abs=0.1)


def test_where_no_step_follows_another_there_is_none_to_log() -> None:
    estimates = estimated(stepping(0, resumed={}), CHAIN)
    assert estimates.step == ZERO
    assert [us.estimate for us in estimates.split.values()] == [near(20), near(30), near(40)]


def test_without_whole_requests_the_steps_are_taken_to_cost_nothing() -> None:
    taken = stepping(700)
    taken.whole = Series()
    estimates = estimated(taken, CHAIN)
    assert estimates.step == ZERO
    assert estimates.split[2].estimate == near(40 + 3 * 0.7)
    assert not estimates.whole.bounded


def test_where_the_whole_is_of_other_requests_the_cost_of_a_step_is_known_roughly() -> None:
    most_us = MOST_OF_A_STEP * 2.0
    estimates = estimate(stepping(700, whole_ns=10_000), CHAIN, outside=False, look=1, mixed=True)
    assert estimates.step == Estimate(near(most_us / 2), 0.0, near(most_us))  # type: ignore[arg-type]
    assert estimates.split[2].low < 40 < estimates.split[2].high
    assert estimates.split[2].half_width > 3 * most_us / 2
    assert estimates.split[0].estimate == near(20)
    assert estimate(stepping(0, resumed={}), CHAIN, outside=False, look=1, mixed=True).step == ZERO


def test_the_cost_of_a_step_is_as_unsure_as_both_totals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimates, "method_us", lambda us, whole_us, suspends=False: 0.0)
    monkeypatch.setattr(estimates, "SCALE_SHARE", 0.0)
    sure = estimated(stepping(700), CHAIN)
    assert sure.step.half_width < 0.001
    taken = stepping(700)
    taken.whole = series(95_000, noise=3000)
    by_whole = estimated(taken, CHAIN)
    by_split = estimated(stepping(700, own_noise=2000), CHAIN)
    for unsure in (by_whole, by_split):
        assert unsure.step.low <= 0.7 <= unsure.step.high
        assert unsure.step.half_width > 20 * sure.step.half_width
    # A row that is resumed three times shares three times in it, one that is never resumed does not.
    assert by_whole.split[2].half_width == pytest.approx(3 * by_whole.step.half_width, rel=0.01)
    assert by_whole.split[0] == sure.split[0]


# By how much the rows may differ from OWNED. In WAITING, the first two have half of the steps each.
WAVERING, WAITING = {-1: 100.0, 0: 4000.0, 1: 4000.0, 2: 100.0}, {0: 2, 1: 2}


def wavering(resumed: dict[int, int], step_ns: float, seed: int, null_noise: float = 30) -> Samples:
    """Make samples in which the rows vary by up to WAVERING, with and without probes."""
    rng, taken = random.Random(seed), Samples(tuple(NULLS))

    def varied() -> dict[int, float]:
        return {index: ns + rng.uniform(-WAVERING[index], WAVERING[index]) for index, ns in OWNED.items()}

    for number in range(300):
        null = Null(number % 3, BlankLayers(0))
        owned = {index: ns + PROBES[index] + step_ns * resumed.get(index, 0) for index, ns in varied().items()}
        null_ns = NULLS[null.index] + rng.uniform(-null_noise, null_noise)
        put(taken.split, null_ns, owned, null=null, passing_ns=0.75 * null_ns, resumed=resumed)
        taken.whole.add(sum(varied().values()), STEADY_NS)
    return taken


def test_the_only_row_that_suspends_is_as_sure_as_the_whole_and_the_other_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The noise of this row in requests with probes cancels out, because it is in their total too."""
    monkeypatch.setattr(estimates, "method_us", lambda us, whole_us, suspends=False: 0.0)
    monkeypatch.setattr(estimates, "SCALE_SHARE", 0.0)
    monkeypatch.setitem(WAVERING, 0, 100.0)
    alone, both = (estimated(wavering(resumed, 700, 3), CHAIN) for resumed in ({1: 4}, {1: 4, 2: 4}))
    assert alone.split[1].low <= 30 <= alone.split[1].high
    assert alone.split[1].half_width < 1.1 * alone.whole.half_width
    assert both.split[1].half_width > 1.05 * alone.split[1].half_width
    assert alone.by_whole == {1}
    assert both.by_whole == {1, 2}


@pytest.mark.parametrize("step_ns", [2, 700])
def test_a_row_that_suspends_is_no_surer_than_the_probes(step_ns: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where logging costs nearly nothing, which is a bound of the interval."""
    monkeypatch.setattr(estimates, "method_us", lambda us, whole_us, suspends=False: 0.0)
    for index in (0, 1):
        monkeypatch.setitem(WAVERING, index, 10.0)
    for seed in range(10):
        plain, row = (
            estimated(wavering(resumed, step_ns, seed, null_noise=150), CHAIN).split[1] for resumed in ({}, {1: 4})
        )
        assert row.high - row.estimate > 0.9 * (plain.high - plain.estimate)


def test_a_row_that_suspends_is_as_typical_as_others_where_some_requests_miss_a_cache() -> None:
    """The median of the differences, request by request, would give 300 µs."""
    rng, taken = random.Random(4), Samples(tuple(NULLS))

    def owned() -> dict[int, float]:
        misses, others_miss = rng.random() < 0.4, rng.random() < 0.4
        return {-1: 5000.0, 0: 20_000.0, 1: 300_000.0 if misses else 100_000.0, 2: 500_000.0 if others_miss else 1e5}

    for number in range(2000):
        logged = {index: ns + PROBES[index] + 700 * 4 * (index == 1) for index, ns in owned().items()}
        null = Null(number % 3, BlankLayers(0))
        put(taken.split, NULLS[null.index], logged, null=null, passing_ns=0.75 * NULLS[null.index], resumed={1: 4})
        taken.whole.add(sum(owned().values()), STEADY_NS)
    row = estimated(taken, CHAIN).split[1]
    assert row.estimate == pytest.approx(100, abs=5)
    assert row.low < 100 < row.high


@pytest.mark.parametrize(
    ("resumed", "step_ns", "row_noise", "null_noise"),
    [
        pytest.param({1: 4}, 700, 4000, 30, id="one"),
        pytest.param(WAITING, 700, 4000, 30, id="two"),
        pytest.param({1: 4}, 700, 30, 150, id="probes known roughly"),
    ],
)
def test_rows_that_suspend_miss_no_more_often_than_others(
    resumed: dict[int, int], step_ns: float, row_noise: float, null_noise: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(estimates, "ALPHA", 0.6)
    monkeypatch.setattr(estimates, "SCALE_SHARE", 0.0)
    monkeypatch.setattr(estimates, "method_us", lambda us, whole_us, suspends=False: 0.0)
    for index in resumed:
        monkeypatch.setitem(WAVERING, index, row_noise)
    runs, missed = 200, dict.fromkeys(NULLS, 0)
    for seed in range(runs):
        figures = estimated(wavering(resumed, step_ns, seed, null_noise), CHAIN)
        for index, us in figures.split.items():
            missed[index] += not us.low <= OWNED[index] / 1000 <= us.high
    share = 0.6 / 2 / 5
    assert max(missed.values()) <= runs * share + 3 * math.sqrt(runs * share)


def test_steps_on_the_processors_clock_cost_as_much() -> None:
    taken = stepping(700)
    taken.cpu = stepping(700, whole_ns=0).split
    estimates = estimated(taken, CHAIN)
    assert [estimates.cpu[index].estimate for index in range(3)] == [near(20), near(30), near(40)]


def test_the_time_of_others_is_in_no_row() -> None:
    plain = estimated(samples(OWNED, NULLS), CHAIN)
    estimates = estimated(samples(OWNED, NULLS, others=(15_000.0, 0)), CHAIN)
    assert plain.others.estimate == 0
    assert estimates.others.estimate == near(15)
    assert estimates.others.low <= 15 <= estimates.others.high
    assert replace(estimates, others=plain.others) == plain


def test_the_time_of_others_is_that_of_quiet_moments_and_has_an_interval() -> None:
    taken, rng = Samples((0,)), random.Random(5)
    for number in range(500):
        slow = 1.5 if number >= 300 else 1.0
        others_ns = 90_000.0 if number >= 300 else rng.uniform(10_000, 20_000)
        put(taken.split, 1000 * slow, {-1: 5000, 0: 20_000}, reference=slow * STEADY_NS, others=(others_ns, 0))
    estimates = estimated(taken, CHAIN)
    assert estimates.others.estimate == pytest.approx(15, abs=1)
    assert estimates.others.low < estimates.others.estimate < estimates.others.high
    assert 0.5 < estimates.others.half_width < 3


# ---- how time is spent ------------------------------------------------------------------------------------------


def test_holding_leaves_out_the_suspensions_of_each_row_and_takes_off_the_same_probes() -> None:
    plain = estimated(samples(OWNED, NULLS), CHAIN)
    waits: dict[str, Any] = {"suspended_ns": {0: 12_000, 2: 3000}, "resumed": {0: 1, 2: 1}}
    estimates = estimated(samples(OWNED, NULLS, **waits, whole_ns=sum(OWNED.values())), CHAIN)
    assert [us.estimate for us in estimates.split.values()] == [near(us.estimate) for us in plain.split.values()]
    assert estimates.holding[0].estimate == near(estimates.split[0].estimate - 12)
    assert estimates.holding[1].estimate == near(estimates.split[1].estimate)
    assert estimates.holding[2].estimate == near(estimates.split[2].estimate - 3)
    assert estimates.suspended == {0: near(12), 1: 0, 2: near(3)}


def test_without_suspensions_holding_is_the_whole_of_a_row() -> None:
    estimates = estimated(samples(OWNED, NULLS), CHAIN)
    assert estimates.holding == estimates.split
    assert estimates.suspended == {0: 0, 1: 0, 2: 0}


def test_a_wait_that_wavers_does_not_blur_what_is_held() -> None:
    """A longer wait adds the same time to what a request owns and to its suspension."""
    rng, split = random.Random(11), Split()
    for _ in range(400):
        waited = rng.uniform(10_000, 90_000)
        put(split, 1000, {-1: 0, 0: 500 + 7000 + waited}, suspended_ns={0: waited}, resumed={0: 1})
    estimates = estimated(Samples((0,), split=split), CHAIN)
    assert estimates.holding[0].estimate == pytest.approx(7, abs=1e-9)
    assert sampling_us(estimates.holding[0], estimates) < 0.1
    assert estimates.split[0].half_width > 1
    assert estimates.suspended[0] == pytest.approx(50, abs=5)


def test_without_requests_on_the_processors_clock_there_is_no_such_row() -> None:
    estimates = estimated(samples(OWNED, NULLS), CHAIN)
    assert estimates.cpu is None
    assert estimates.suspended_cpu == {0: ZERO, 1: ZERO, 2: ZERO}


def test_the_processors_time_comes_from_its_own_requests_and_its_own_null_layers() -> None:
    taken = samples(OWNED, NULLS)
    plain = estimated(taken, CHAIN)
    cpu = samples(
        {-1: 900, 0: 8000, 1: 9000, 2: 10_000},
        {0: 100, 1: 200, 2: 400},
        suspended_ns={1: 600},
        resumed={1: 1},
    )
    taken.cpu = cpu.split
    estimates = estimated(taken, CHAIN)
    assert estimates.cpu[0].estimate == near(8 - (0.1 + 0.2) / 2)
    assert estimates.cpu[1].estimate == near(9 - (0.2 + 0.4) / 2)
    assert estimates.cpu[2].estimate == near(10 - 0.4 / 2)
    assert (estimates.suspended_cpu[0], estimates.suspended_cpu[2]) == (ZERO, ZERO)
    assert estimates.suspended_cpu[1].estimate == near(0.6)
    assert estimates.suspended_cpu[1].half_width >= SUSPENDING_SHARE * estimates.suspended_cpu[1].estimate
    assert (estimates.split, estimates.holding, estimates.suspended) == (plain.split, plain.holding, plain.suspended)
    assert (estimates.outside, estimates.detection_limit_us) == (plain.outside, plain.detection_limit_us)


def test_the_app_object_has_no_row_of_any_kind() -> None:
    taken = samples(OWNED, NULLS)
    taken.cpu = samples(OWNED, NULLS).split
    estimates = estimated(taken, CHAIN, outside=True)
    assert estimates.cpu is not None
    for rows in (estimates.split, estimates.holding, estimates.suspended, estimates.cpu, estimates.suspended_cpu):
        assert set(rows) == {1, 2}


def test_requests_on_the_processors_clock_from_busy_moments_are_left_out() -> None:
    taken = samples({-1: 5000, 0: 20_000, 1: 0, 2: 0}, {0: 1000})
    taken.cpu = samples({-1: 900, 0: 8000, 1: 0, 2: 0}, {0: 100}).split
    for _ in range(300):
        put(taken.cpu, 100, {-1: 900, 0: 90_000, 1: 0, 2: 0}, reference=1.5 * STEADY_NS)
    estimates = estimated(taken, CHAIN)
    assert estimates.cpu[0].estimate == near(8 - 0.05)


# ---- the detection limit --------------------------------------------------------------------------------------------


def test_the_detection_limit_shrinks_with_more_readings_and_grows_with_their_noise() -> None:
    def limit(count: int, noise: float) -> float:
        taken = samples({-1: 5000, 0: 20_000, 1: 0, 2: 0}, {0: 1000}, null_counts={0: count}, null_noise=noise)
        return estimated(taken, CHAIN).detection_limit_us

    assert 0 < limit(4000, 50) < limit(400, 50) < limit(400, 500)


def test_so_many_readings_as_make_an_interval_make_a_detection_limit() -> None:
    nulls = dict.fromkeys(NULLS, 1000.0)
    taken = samples(OWNED, nulls, null_counts=dict.fromkeys(NULLS, 8), null_noise=500)
    estimates = estimated(taken, CHAIN)
    assert estimates.detection_limit_us < method_us(0, estimates.whole.estimate) + 2 * 0.5


def test_the_detection_limit_is_above_what_any_two_halves_differ_by() -> None:
    taken = samples({-1: 5000, 0: 20_000, 1: 0, 2: 0}, {0: 1000})
    values = taken.split.null_ns
    halves = [sorted(values[part::2])[len(values) // 4] for part in (0, 1)]
    assert estimated(taken, CHAIN).detection_limit_us >= abs(halves[0] - halves[1]) / 1000


# ---- the machine ------------------------------------------------------------------------------------------------


def test_each_figure_has_the_slowdown_of_its_own_requests() -> None:
    """Only the requests with probes had no quick moment, so only rows have a slowdown."""
    taken = samples({-1: 5000, 0: 20_000, 1: 30_000, 2: 0}, {0: 1000, 1: 1000})
    taken.split.reference[:] = [1.6 * STEADY_NS] * len(taken.split.reference)
    slowdowns = estimated(taken, CHAIN).slowdowns
    assert slowdowns == {"total": 1.0, "outside": pytest.approx(1.6), 0: pytest.approx(1.6), 1: pytest.approx(1.6)}
    taken.split.reference[:] = [STEADY_NS] * len(taken.split.reference)
    taken.whole.reference[:] = [1.4 * STEADY_NS] * len(taken.whole.reference)
    slowdowns = estimated(taken, CHAIN).slowdowns
    assert slowdowns == {"total": pytest.approx(1.4), "outside": 1.0, 0: 1.0, 1: 1.0}


def test_others_who_used_the_core_slow_the_figures_of_quiet_moments() -> None:
    taken = samples({-1: 5000, 0: 20_000, 1: 30_000, 2: 0}, {0: 1000, 1: 1000}, whole_ns=53_000)
    assert set(estimated(taken, CHAIN).slowdowns.values()) == {1.0}
    taken.whole.values[::4] = [ns / 1.25 for ns in taken.whole.values[::4]]
    assert set(estimated(taken, CHAIN).slowdowns.values()) == {1.0}
    taken.split.reference[:100] = [2 * STEADY_NS] * 100
    slowdowns = estimated(taken, CHAIN).slowdowns
    assert slowdowns.keys() == {"total", "outside", 0, 1}
    assert list(slowdowns.values()) == pytest.approx([1.25] * 4, abs=0.01)


def test_the_slowdown_is_read_from_the_samples() -> None:
    taken = samples({-1: 5000, 0: 20_000, 1: 0, 2: 0}, {0: 1000})
    estimates = estimate(taken, CHAIN, outside=False, look=1, best_ns=STEADY_NS / 2)
    assert estimates.slowdowns == {"total": 2.0, "outside": 2.0, 0: 2.0}
    assert estimates.best_ns == STEADY_NS / 2
    other = estimated(taken, CHAIN)
    assert replace(estimates, slowdowns=other.slowdowns, best_ns=other.best_ns) == other


# ---- hops to threads --------------------------------------------------------------------------------------------


def hopping(slow_share: float, count: int = 200, seed: int = 9) -> list[float]:
    """Make hops of 40 µs, of which a share takes 2 ms longer."""
    rng = random.Random(seed)
    return [40_000.0 + 2_000_000.0 * (rng.random() < slow_share) for _ in range(count)]


def test_only_rows_with_hops_may_have_waited_and_each_as_often_as_it_hops() -> None:
    taken = samples({-1: 5000, 0: 20_000, 1: 30_000, 2: 0}, {0: 1000, 1: 1000})
    taken.split.hops = [50_000.0] * 400
    taken.whole.hops = [60_000.0] * 200
    estimates = estimate(taken, CHAIN, outside=False, look=1, hops=Hops({1: 2}, 3, 1), best_hop_ns=40_000.0)
    assert estimates.waits == {"total": near(60.0), 1: near(20.0), "outside": near(10.0)}
    assert estimated(taken, CHAIN).waits == {}


@pytest.mark.parametrize(("slow_share", "split"), [(0.3, {}), (0.7, {1: 4000})])
def test_a_row_waits_while_most_hops_do_and_the_whole_if_any_of_its_hops_does(
    slow_share: float, split: dict[int, float]
) -> None:
    taken = samples({-1: 5000, 0: 20_000, 1: 30_000, 2: 0}, {0: 1000, 1: 1000})
    taken.split.hops = hopping(slow_share, 400)
    taken.whole.hops = hopping(slow_share)
    estimates = estimate(taken, CHAIN, outside=False, look=1, hops=Hops({1: 2}, 5), best_hop_ns=40_000.0)
    waits = dict(estimates.waits)
    assert waits.pop("total") >= 2000
    assert waits == split


def test_the_requests_after_slow_hops_do_not_count() -> None:
    taken = samples({-1: 5000, 0: 20_000, 1: 30_000, 2: 0}, {0: 1000, 1: 1000})
    rng, taken.split.hops = random.Random(4), hopping(0.7, 400)
    quick = taken.split.hops
    for place, (used, hop) in enumerate(zip(taken.split.spent, quick, strict=True)):
        slower = 1 if hop < 1_000_000 or rng.random() < 0.1 else 3
        taken.split.spent[place] = replace(used, ns=(*used.ns[:2], slower * used.ns[2], *used.ns[3:]))
    estimates = estimate(taken, CHAIN, outside=False, look=1, hops=Hops({1: 2}, 2), best_hop_ns=40_000.0)
    assert estimates.split[1].estimate == near(30 - 1 / 2)
