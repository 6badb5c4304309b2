"""Percentiles and shares with intervals, by simulations with known answers."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from pytest_mwbudget.analysis.quantiles import (
    independent,
    least_share,
    most_share,
    quantile_interval,
    requests_needed,
)

pytestmark = pytest.mark.once

ALPHA = 0.02


def test_the_percentile_is_exceeded_by_its_share() -> None:
    assert quantile_interval([float(value) for value in range(1000)], 0.05, ALPHA).estimate == 949
    assert quantile_interval([7.0], 0.01, ALPHA).estimate == 7
    with pytest.raises(ValueError, match="nothing"):
        quantile_interval([], 0.05, ALPHA)


def test_too_few_values_have_no_upper_end() -> None:
    needed = requests_needed(0.01, ALPHA)
    values = [number * 7919 % 10_007 for number in range(needed)]
    assert math.isfinite(quantile_interval(values, 0.01, ALPHA).high)
    assert not math.isfinite(quantile_interval(values[1:], 0.01, ALPHA).high)
    assert math.isfinite(quantile_interval(values[1:], 0.05, ALPHA).high)


def exponential(chance: random.Random, count: int) -> list[float]:
    return [chance.expovariate(1.0) for _ in range(count)]


def in_bursts(chance: random.Random, count: int) -> list[float]:
    """Make values of which one in ten is slow, five at a time."""
    values: list[float] = []
    while len(values) < count:
        slow = chance.random() < 0.1
        values += [chance.expovariate(1.0) + (10 if slow else 0) for _ in range(5)]
    return values[:count]


@pytest.mark.parametrize("make", [exponential, in_bursts])
@pytest.mark.parametrize("above", [0.05, 0.01])
def test_intervals_hold(make: Callable[[random.Random, int], list[float]], above: float) -> None:
    chance = random.Random(3)
    many = sorted(make(chance, 400_000), reverse=True)
    truth = many[int(above * len(many))]
    missed = 0
    for _ in range(150):
        interval = quantile_interval(make(chance, 1500), above, ALPHA)
        missed += not interval.low <= truth <= interval.high
    assert missed <= 150 * 3 * ALPHA


def test_crowded_flags_are_worth_fewer() -> None:
    chance = random.Random(5)
    alone = [chance.random() < 0.05 for _ in range(2000)]
    assert independent(alone) > 1000
    assert independent([True] * 100 + [False] * 1900) < 200
    assert independent([False] * 2000) == 2000


def test_shares_are_bounded_from_both_sides() -> None:
    flags = [number % 50 == 0 for number in range(2000)]
    assert 0.01 < least_share(flags, ALPHA) < 0.02 < most_share(flags, ALPHA) < 0.03
    assert least_share([False] * 100, ALPHA) == 0
    # The rule of three: nothing seen in n allows about -log(alpha) / n.
    assert most_share([False] * 100, ALPHA) == pytest.approx(-math.log(ALPHA) / 100, rel=0.05)
    assert most_share([], ALPHA) == 1
