"""Intervals against naive oracles, and against noise like that of a busy machine."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from itertools import islice
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_mwbudget.analysis.estimates import ALPHA
from pytest_mwbudget.analysis.intervals import (
    FEWEST_QUIET,
    LONG,
    MANY_BATCHES,
    MIN_BATCHES,
    MOST_CORRELATED,
    NEAR,
    batch_medians,
    batched_interval,
    correlation_of_neighbours,
    median_interval,
    paces,
    quickest,
    quiet,
    sign_rank,
    spend,
)
from pytest_mwbudget.analysis.judge import Conditions, judge
from pytest_mwbudget.analysis.samples import Series
from pytest_mwbudget.analysis.slowdown import slowdown
from pytest_mwbudget.model.estimate import Estimate, independent_sum
from pytest_mwbudget.model.quantities import BETWEEN_RUNS
from pytest_mwbudget.model.results import Verdict
from pytest_mwbudget.timing.schedule import Schedule

pytestmark = pytest.mark.once

# A busy machine must not fail these tests.
relaxed = settings(deadline=None)

finite = st.floats(-1e6, 1e6)
series = st.lists(finite, min_size=1, max_size=400)
alphas = st.floats(1e-7, 0.2)


# ---- the exact interval -----------------------------------------------------------------------------------------


def coverage(n: int, rank: int) -> float:
    """Compute the probability that the median is between n sorted values without `rank` at each end."""
    return sum(math.comb(n, k) for k in range(rank + 1, n - rank)) / 2**n


@relaxed
@given(n=st.integers(1, 300), alpha=alphas)
def test_sign_rank_leaves_out_as_many_as_the_binomial_allows(n: int, alpha: float) -> None:
    rank = sign_rank(n, alpha)
    if rank >= 0:
        assert coverage(n, rank) >= 1 - alpha - 1e-12
    if 2 * (rank + 1) < n - 1:
        assert coverage(n, rank + 1) < 1 - alpha + 1e-12


def test_sign_rank_of_thousands_agrees_with_the_normal_approximation() -> None:
    expected = 5000 / 2 - 1.96 * math.sqrt(5000) / 2
    assert sign_rank(5000, 0.05) == pytest.approx(expected, abs=2)


@relaxed
@given(values=series, alpha=alphas)
def test_median_interval_is_made_of_order_statistics_round_the_median(values: list[float], alpha: float) -> None:
    interval = median_interval(values, alpha)
    assert interval.estimate == median(values)
    assert interval.low <= interval.estimate <= interval.high
    rank = sign_rank(len(values), alpha)
    expected = (-math.inf, math.inf) if rank < 0 else (sorted(values)[rank], sorted(values)[len(values) - 1 - rank])
    assert (interval.low, interval.high) == expected


def test_the_median_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="the median of nothing"):
        median_interval([], 0.01)


@relaxed
@given(values=st.lists(finite, min_size=30, max_size=90), worth=st.floats(0.01, 0.5))
def test_values_that_are_worth_less_have_an_interval_that_holds_the_exact_one(
    values: list[float], worth: float
) -> None:
    exact, wider = median_interval(values, 1e-4), median_interval(values, 1e-4, worth * len(values))
    assert wider.low <= exact.low
    assert wider.high >= exact.high


def test_values_worth_too_few_have_an_interval_wider_than_their_range() -> None:
    values = [float(number) for number in range(40)]
    interval = median_interval(values, 1e-4, worth=2.0)
    assert interval.low < values[0]
    assert interval.high > values[-1]
    # The range of 15 independent values has this confidence, so that of 2 is stretched by the root of 15 / 2.
    assert interval.estimate - interval.low == pytest.approx(19.5 * math.sqrt(15 / 2))
    assert interval.high - interval.estimate == pytest.approx(19.5 * math.sqrt(15 / 2))


# ---- batches ----------------------------------------------------------------------------------------------------


@relaxed
@given(values=series)
def test_batch_medians_are_the_medians_of_a_partition_into_equal_odd_parts(values: list[float]) -> None:
    medians = batch_medians(values)
    # Naive oracle: the longest odd length with MIN_BATCHES batches, or a shorter one, at least LONG, with MANY_BATCHES.
    lengths = [odd for odd in range(len(values), 0, -1) if odd % 2]
    few, many = (next((odd for odd in lengths if len(values) // odd >= n), 1) for n in (MIN_BATCHES, MANY_BATCHES))
    length = min(few, max(LONG, many))
    rest = list(values)
    for value in medians[:-1]:
        part, rest = rest[:length], rest[length:]
        assert value == median(part)
    assert medians[-1] == median(rest)
    assert length <= len(rest) < 2 * length


@relaxed
@given(count=st.integers(0, 5000))
def test_the_number_of_batches_stays_within_its_bounds(count: int) -> None:
    batches = len(batch_medians([0.0] * count))
    assert min(count, MIN_BATCHES) <= batches <= 3 * MIN_BATCHES - 1
    if count >= LONG * MANY_BATCHES:
        assert MANY_BATCHES <= batches < 1.3 * MANY_BATCHES


def test_batches_of_skewed_values_are_not_drawn_to_the_long_tail() -> None:
    rng = random.Random(1)
    medians = [batch_medians([rng.lognormvariate(0, 2) for _ in range(6 * MIN_BATCHES)]) for _ in range(200)]
    above = sum(value > 1.0 for batch in medians for value in batch) / sum(map(len, medians))
    assert above == pytest.approx(0.5, abs=0.02)


@relaxed
@given(values=series, alpha=alphas)
def test_batched_interval_holds_the_median_of_all_values(values: list[float], alpha: float) -> None:
    interval = batched_interval(values, alpha)
    assert interval.estimate == median(values)
    assert interval.low <= interval.estimate <= interval.high


@relaxed
@given(values=series, shift=st.sampled_from([-64.0, 0.0, 1024.0]), factor=st.sampled_from([0.5, 2.0]))
def test_batched_interval_moves_and_scales_with_the_values(values: list[float], shift: float, factor: float) -> None:
    plain = batched_interval(values, 0.01)
    moved = batched_interval([value * factor + shift for value in values], 0.01)
    assert moved.estimate == pytest.approx(plain.estimate * factor + shift, abs=1e-6)
    if math.isfinite(plain.half_width) and len(set(values)) == len({v * factor + shift for v in values}):
        assert moved.low == pytest.approx(plain.low * factor + shift, abs=1e-6, rel=1e-6)
        assert moved.high == pytest.approx(plain.high * factor + shift, abs=1e-6, rel=1e-6)


# ---- correlation of neighbours ----------------------------------------------------------------------------------


@relaxed
@given(values=series)
def test_correlation_of_neighbours_is_a_share(values: list[float]) -> None:
    assert 0 <= correlation_of_neighbours(values) <= MOST_CORRELATED


def test_values_that_alternate_or_never_change_do_not_resemble_their_neighbours() -> None:
    assert correlation_of_neighbours([1.0, 2.0] * 30) == 0
    assert correlation_of_neighbours([5.0] * 60) == 0


def test_a_series_that_only_rises_is_as_correlated_as_can_be() -> None:
    assert correlation_of_neighbours([float(number) for number in range(60)]) == MOST_CORRELATED


def test_one_outlier_does_not_hide_the_resemblance() -> None:
    values = [math.sin(number / 8) for number in range(60)]
    assert correlation_of_neighbours([*values[:30], 1e9, *values[30:]]) > 0.8


# ---- arithmetic -------------------------------------------------------------------------------------------------

estimates = st.tuples(finite, finite, finite).map(sorted).map(lambda ends: Estimate(ends[1], ends[0], ends[2]))


@relaxed
@given(left=estimates, right=estimates, share=st.floats(0, 1))
def test_sums_and_differences_hold_whatever_their_parts_hold(left: Estimate, right: Estimate, share: float) -> None:
    a = left.low + share * (left.high - left.low)
    b = right.high - share * (right.high - right.low)
    difference, total = left - right, left + right
    assert difference.low - 1e-6 <= a - b <= difference.high + 1e-6
    assert total.low - 1e-6 <= a + b <= total.high + 1e-6
    assert left * 2.0 == Estimate(2 * left.estimate, 2 * left.low, 2 * left.high)


@relaxed
@given(left=estimates, right=estimates)
def test_independent_parts_are_known_better_together_than_if_they_all_erred_to_one_side(
    left: Estimate, right: Estimate
) -> None:
    whole, most = independent_sum(left, right), left + right
    assert whole.estimate == most.estimate
    assert most.low - 1e-6 <= whole.low <= whole.estimate <= whole.high <= most.high + 1e-6
    for side in ("low", "high"):
        distances = [abs(getattr(part, side) - part.estimate) for part in (left, right)]
        assert abs(getattr(whole, side) - whole.estimate) >= max(distances) * (1 - 1e-9) - 1e-6


def test_one_part_alone_is_known_as_well_as_it_is_and_an_unknown_part_leaves_the_sum_unknown() -> None:
    part, unknown = Estimate(2.0, 1.5, 3.0), Estimate(0.0, -math.inf, math.inf)
    assert independent_sum(part) == part
    assert independent_sum(part, -part) == Estimate(0.0, -math.hypot(0.5, 1.0), math.hypot(0.5, 1.0))
    assert (independent_sum(part, unknown).low, independent_sum(part, unknown).high) == (-math.inf, math.inf)


@pytest.mark.parametrize("skew", [0.0, 0.5, 1.5])
def test_the_interval_of_a_sum_misses_no_more_often_than_those_of_its_parts(skew: float) -> None:
    """A row: its own time, two null layers and the handing, of unequal size, noise and number, skewed like requests."""
    chance, missed, runs = random.Random(29), {0.05: 0, 0.01: 0}, 300
    for _ in range(runs):
        values = []
        for scale, count in ((3.0, 400), (-1.0, 100), (-1.5, 60), (-4.0, 200)):
            noise = (chance.lognormvariate(0.0, skew) - 1 if skew else chance.gauss(0.0, 1.0) for _ in range(count))
            values.append([scale * value for value in noise])
        for alpha in missed:
            whole = independent_sum(*(batched_interval(part, alpha) for part in values))
            missed[alpha] += not whole.low <= 0 <= whole.high
    for alpha, misses in missed.items():
        # Three standard deviations of the number of misses.
        assert misses <= runs * alpha + 3 * math.sqrt(runs * alpha)


def test_all_looks_together_spend_no_more_than_alpha() -> None:
    shares = [spend(0.01, look) for look in range(1, 2000)]
    assert shares == sorted(shares, reverse=True)
    assert 0.0099 < math.fsum(shares) < 0.01


def test_the_last_look_has_what_the_others_left() -> None:
    for last in (1, 2, 7, 30):
        spent = math.fsum(spend(0.01, look) for look in range(1, last))
        assert spent + spend(0.01, last, last=True) == pytest.approx(0.01)


# ---- quiet moments ----------------------------------------------------------------------------------------------


@relaxed
@given(times=st.lists(st.floats(1, 1e6), min_size=1, max_size=200), factor=st.floats(1, 2))
def test_quiet_keeps_at_least_a_quarter_and_prefers_the_quick(times: list[float], factor: float) -> None:
    kept = quiet(times, factor)
    assert len(kept) == len(times)
    assert sum(kept) >= len(times) / 4
    pace = paces(times)
    slowest_kept = max(value for value, keep in zip(pace, kept, strict=True) if keep)
    assert all(value > slowest_kept for value, keep in zip(pace, kept, strict=True) if not keep)


def test_quiet_leaves_out_moments_slower_than_the_quickest_quarter_by_more_than_the_factor() -> None:
    moments = [100.0] * 3 + [114.0, 116.0, 200.0]
    kept = quiet([value for value in moments for _ in range(NEAR)], 1.15)
    assert kept == [moment <= 115 for moment in moments for _ in range(NEAR)]


def test_one_odd_value_does_not_make_a_moment_busy() -> None:
    assert all(quiet([100.0] * (NEAR - 1) + [900.0] + [100.0] * NEAR, 1.05))


def test_quiet_goes_by_the_pace_that_it_is_told() -> None:
    moments = [150.0, 100.0, 100.0, 100.0]
    values = [moment for moment in moments for _ in range(NEAR)]
    assert quiet(values, 1.05, 100.0) == [value == 100 for value in values]
    assert all(quiet(values, 1.05, 150.0))


def test_quiet_does_not_leave_out_nearly_everything() -> None:
    assert all(quiet([150.0] * 10 * NEAR, 1.05, 100.0))


def test_quiet_keeps_enough_for_an_interval() -> None:
    moments = [100.0, 150.0, 170.0, 200.0]
    values = [moment for moment in moments for _ in range(NEAR)]
    assert quiet(values, 1.05) == [value <= 170 for value in values]
    assert all(quiet(values[:FEWEST_QUIET], 1.05))


def test_quiet_of_nothing_is_nothing() -> None:
    assert quiet([], 1.15) == []


def test_the_quickest_of_a_short_series_are_a_quarter_and_of_a_long_one_fewer() -> None:
    for count, place in ((8, 2), (100, 25), (256, 64), (2048, 64), (6400, 200)):
        moments = [float(number) for number in range(count)]
        assert quickest(moments) == sorted(paces(moments))[place]


def test_the_quickest_of_nothing_are_infinitely_slow() -> None:
    assert quickest([]) == math.inf


def test_the_quick_moments_are_found_where_there_are_few() -> None:
    moments = [150.0] * 270 + [100.0] * 30
    values = [moment for moment in moments for _ in range(NEAR)]
    assert quickest(values) == 100.0
    assert quiet(values, 1.05, quickest(values)) == [value == 100 for value in values]


# ---- error rates ------------------------------------------------------------------------------------------------
# A layer exactly on its budget fails with a probability below `ALPHA`, whatever the number of looks; a layer a fifth
# over its budget fails. The noise has a median of 0 and, apart from its tails, a size of about 1.

BUDGET_US = 50.0
# Without the margin for differences between runs, which is not meant for the noise of requests.
BOUND_US = BUDGET_US / (1 + BETWEEN_RUNS)
LOOKS = (128, 256, 512)
RUNS = 600
# Most requests of a run that gives its time to open verdicts.
MOST_SEEN = 2048

Noise = Callable[[random.Random], Iterator[float]]


def uncorrelated(rng: random.Random) -> Iterator[float]:
    while True:
        yield rng.gauss(0, 1)


def heavy_tailed(rng: random.Random) -> Iterator[float]:
    while True:
        yield rng.lognormvariate(0, 1) - 1


def cauchy(rng: random.Random) -> Iterator[float]:
    """Yield noise without a mean."""
    while True:
        yield math.tan(math.pi * (rng.random() - 0.5))


def autocorrelated(rng: random.Random, memory: float = 0.9) -> Iterator[float]:
    """Yield AR(1) noise: a value is worth `(1 - memory) / (1 + memory)`, a nineteenth, of an independent value."""
    level = rng.gauss(0, 1)
    while True:
        yield level
        level = memory * level + math.sqrt(1 - memory**2) * rng.gauss(0, 1)


def skewed_and_autocorrelated(rng: random.Random) -> Iterator[float]:
    for level in autocorrelated(rng):
        yield math.exp(level) - 1


def drifting(rng: random.Random) -> Iterator[float]:
    """Yield a slow oscillation with independent noise on top."""
    phase, period = rng.random(), rng.uniform(40, 60)
    number = 0
    while True:
        yield math.sin(2 * math.pi * (phase + number / period)) + rng.gauss(0, 0.5)
        number += 1


def bursts(rng: random.Random) -> Iterator[float]:
    """Yield slow and fast stretches of about five requests."""
    side = rng.choice([-1, 1])
    while True:
        yield side + rng.gauss(0, 0.3)
        side = -side if rng.random() < 0.2 else side


NOISES = [uncorrelated, heavy_tailed, cauchy, autocorrelated, skewed_and_autocorrelated, drifting, bursts]


def verdict_after(looks: tuple[int, ...], values: Iterator[float]) -> Verdict:
    """Return the verdict of a run that ends at the first look with a verdict."""
    seen: list[float] = []
    verdict: Verdict = "undecided"
    for look, size in enumerate(looks, start=1):
        seen += [next(values) for _ in range(size - len(seen))]
        us = batched_interval(seen, spend(ALPHA, look, last=look == len(looks)))
        verdict = judge("us", us, BOUND_US).verdict
        if verdict != "undecided":
            return verdict
    return verdict


def costs(noise: Noise, rng: random.Random, true_us: float) -> Iterator[float]:
    """Yield a layer's cost in each request, with noise of a twentieth of its budget."""
    return (true_us + 0.05 * BUDGET_US * value for value in noise(rng))


def ever_fails(values: Iterator[float], share: int) -> bool:
    """Tell whether any look fails; an undecided row gets `share` times its requests again, any other a quarter."""
    seen: list[float] = []
    more = LOOKS[0]
    looks = 5 if share == 1 else 3
    for look in range(1, looks + 1):
        seen += [next(values) for _ in range(more)]
        us = batched_interval(seen, spend(ALPHA, look, last=look == looks))
        verdict = judge("us", us, BOUND_US).verdict
        if verdict == "fail":
            return True
        more = share * len(seen) // (1 if verdict == "undecided" else Schedule().unwanted_every)
    return False


@pytest.mark.parametrize("noise", NOISES)
def test_a_layer_on_its_budget_fails_less_often_than_alpha(noise: Noise) -> None:
    """Also where the time goes into open verdicts. Each long series is also some short ones, because noise is slow."""
    rng = random.Random(25)
    # With other seeds at most 0.5 % of the long series fail. If 5 % did, this would pass with a probability of 0.004.
    short, long, failed, failed_of_share = LOOKS[-1], RUNS * LOOKS[-1] // MOST_SEEN, 0, {1: 0, 3: 0}
    for _ in range(long):
        values = list(islice(costs(noise, rng, BUDGET_US), MOST_SEEN))
        for start in range(0, MOST_SEEN, short):
            failed += verdict_after(LOOKS, iter(values[start : start + short])) == "fail"
        for share in failed_of_share:
            failed_of_share[share] += ever_fails(iter(values), share)
    assert failed / RUNS < ALPHA
    assert max(failed_of_share.values()) / long < ALPHA


@pytest.mark.parametrize("noise", NOISES)
def test_a_layer_a_fifth_over_its_budget_fails(noise: Noise) -> None:
    rng = random.Random(21)
    verdicts = [verdict_after((*LOOKS, 1024, 2048), costs(noise, rng, 1.2 * BUDGET_US)) for _ in range(100)]
    assert verdicts.count("fail") / len(verdicts) >= 0.99


def test_a_drift_that_never_turns_still_comes_to_a_verdict_when_it_is_small() -> None:
    rng = random.Random(22)
    rising = (60 + number / 1000 + rng.gauss(0, 0.1) for number in range(2048))
    assert verdict_after(LOOKS, rising) == "fail"


def with_a_busy_neighbour(rng: random.Random) -> Iterator[tuple[float, float]]:
    """Yield times of a layer on its budget and of the reference workload; a neighbour slows both for long stretches."""
    busy = rng.random() < 0.4
    while True:
        slow = 1.4 if busy else 1.0
        yield slow * BUDGET_US * rng.gauss(1, 0.02), slow * rng.gauss(1, 0.02)
        busy = not busy if rng.random() < (0.015 if busy else 0.01) else busy


def with_a_neighbour_that_rests(rng: random.Random) -> Iterator[tuple[float, float]]:
    """Yield the same with a neighbour that rests for an eighth of the time, about a hundred requests on end."""
    busy = True
    while True:
        slow = 1.6 if busy else 1.0
        yield slow * BOUND_US * rng.gauss(1, 0.02), slow * rng.gauss(1, 0.02)
        busy = not busy if rng.random() < (1 / 700 if busy else 1 / 100) else busy


def test_a_neighbour_that_rests_now_and_then_fails_nobody_and_takes_no_verdict() -> None:
    """The machine is unknown, and at its best the layer takes 4 % less than its budget."""
    rng = random.Random(24)
    verdicts = []
    # If 5 % of the runs failed, this would pass with a probability of 0.005.
    for _ in range(150):
        values, reference = zip(*islice(with_a_neighbour_that_rests(rng), 8192), strict=True)
        taken = Series(list(values), list(reference))
        quick_ns = quickest(taken.reference)
        steady = taken.steady(quick_ns)
        us = batched_interval(steady.values, spend(ALPHA, 6))
        slowed = slowdown(steady.reference, quick_ns)
        verdicts.append(judge("us", us, BUDGET_US, Conditions(slowdown=slowed)).verdict)
    assert verdicts.count("fail") / len(verdicts) < ALPHA
    assert verdicts.count("pass") / len(verdicts) > 0.95


def test_long_bursts_of_a_busy_neighbour_fail_nobody() -> None:
    rng = random.Random(23)
    failed = 0
    for _ in range(RUNS // 2):
        taken, neighbour = Series(), with_a_busy_neighbour(rng)
        verdicts = []
        for look in (1, 2):
            for _ in range(128):
                taken.add(*next(neighbour))
            quick_ns = quickest(taken.reference)
            steady = taken.steady(quick_ns)
            us = batched_interval(steady.values, spend(ALPHA, look))
            slowed = slowdown(steady.reference, 1.0)  # 1.0 is the best speed
            verdicts.append(judge("us", us, BOUND_US, Conditions(slowdown=slowed)).verdict)
        failed += "fail" in verdicts
    assert failed / (RUNS // 2) < ALPHA
