"""The typical difference of pairs: known quantiles, coverage by seeded simulation, outliers."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from pytest_mwbudget.analysis.paired import FEWEST_PAIRS, paired, student

pytestmark = pytest.mark.once


@pytest.mark.parametrize(
    ("freedom", "alpha", "quantile"),
    [(1, 0.05, 12.706), (2, 0.05, 4.303), (3, 0.01, 5.841), (4, 0.05, 2.776), (7, 1e-4, 7.885), (9, 0.01, 3.250)],
)
def test_quantiles_are_those_of_the_tables(freedom: int, alpha: float, quantile: float) -> None:
    assert student(freedom, alpha) == pytest.approx(quantile, abs=6e-4)


def test_with_many_pairs_student_is_normal() -> None:
    assert student(4000, 0.05) == pytest.approx(1.96, abs=2e-3)


def test_too_few_pairs_have_no_interval() -> None:
    mean = paired([1.0] * (FEWEST_PAIRS - 1), 0.01)
    assert mean.estimate == 1.0
    assert not mean.bounded
    assert paired([1.0] * FEWEST_PAIRS, 0.01).bounded


def test_no_pair_is_an_error() -> None:
    with pytest.raises(ValueError, match="nothing"):
        paired([], 0.01)


def test_one_pair_that_is_far_off_moves_little() -> None:
    values = [0.9, 1.1, 1.0, 0.95, 1.05, 1.02, 0.98, 1.0]
    plain, hit = paired(values, 0.01), paired([*values[:-1], 300.0], 0.01)
    assert hit.estimate == pytest.approx(1.0, abs=0.05)
    assert hit.half_width < 3 * plain.half_width


def test_the_mean_of_all_has_students_interval() -> None:
    mean = paired([1.0, 2.0, 3.0, 4.0, 5.0, 4.0, 3.0, 20.0], 0.05, trimmed=False)
    assert mean.estimate == 5.25
    assert mean.half_width == pytest.approx(2.3646 * 6.0886 / math.sqrt(8), rel=1e-3)
    assert not paired([1.0, 2.0], 0.05, trimmed=False).bounded


def test_the_sign_of_the_differences_is_that_of_the_interval() -> None:
    values = [3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0]
    mean, mirrored = paired(values, 0.05), paired([-value for value in values], 0.05)
    assert (mirrored.low, mirrored.high) == pytest.approx((-mean.high, -mean.low))


DRAWS: dict[str, Callable[[random.Random], float]] = {
    "normal": lambda rng: rng.gauss(0, 1),
    "heavy tails": lambda rng: rng.gauss(0, 1) / math.sqrt(rng.gammavariate(1, 1)),
    "outliers": lambda rng: rng.gauss(0, 10 if rng.random() < 0.1 else 1),
    "two speeds": lambda rng: rng.gauss(0, 1) + rng.choice([0, 0, 12, -12]),
}


@pytest.mark.parametrize("kind", DRAWS)
@pytest.mark.parametrize("count", [5, 8, 12, 20])
def test_intervals_hold_the_truth(kind: str, count: int) -> None:
    rng, alpha, runs = random.Random(count), 0.02, 2000
    intervals = (paired([DRAWS[kind](rng) for _ in range(count)], alpha) for _ in range(runs))
    missed = sum(not interval.low <= 0 <= interval.high for interval in intervals)
    # Three standard errors above 1.3 times alpha: trimming a few of eight is a little too bold.
    assert missed <= 1.3 * alpha * runs + 3 * math.sqrt(alpha * runs)
