"""The order of bursts, with bursts and a clock that are made up."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

from pytest_mwbudget.analysis.load import Arm, Burst, Bursts
from pytest_mwbudget.load.rounds import NS_PER_S, BypassError, Rounds, requests_of
from pytest_mwbudget.model.stack import RowIndex

FIRST, SECOND = RowIndex(0), RowIndex(2)


class Made:
    """Makes bursts of a tenth of a second by a clock of its own."""

    def __init__(self, *layers: RowIndex, end_s: float, refusing: RowIndex | None = None, after: int = 0) -> None:
        self.now_ns = 0
        self.order: list[Arm] = []
        self.refusing = refusing
        self.after = after
        self.seen = 0
        self.rounds = Rounds(
            self.burst, layers, lambda: self.now_ns, random.Random(1), round(end_s * NS_PER_S), self.progress
        )
        self.found = asyncio.run(self.rounds.made(NS_PER_S // 10))

    async def burst(self, arm: Arm) -> Burst:
        self.order.append(arm)
        self.now_ns += NS_PER_S // 10
        if arm is not None and arm == self.refusing and self.order.count(arm) > self.after:
            raise BypassError("without it the app answers 500")
        return Burst(100.0, [1000.0], (100.0,))

    def progress(self) -> None:
        self.seen += 1


def test_each_round_has_every_arm_once_in_random_order() -> None:
    made = Made(FIRST, SECOND, end_s=6.0)
    assert len(made.found) == made.seen == 20
    assert all(set(one) == {None, FIRST, SECOND} for one in made.found)
    firsts = Counter(made.order[::3])
    assert min(firsts[arm] for arm in (None, FIRST, SECOND)) >= 2


def test_the_time_is_kept() -> None:
    made = Made(FIRST, SECOND, end_s=1.0)
    assert len(made.found) == 3
    assert made.now_ns <= NS_PER_S


def test_too_little_time_for_a_round_is_for_the_app_alone() -> None:
    made = Made(FIRST, SECOND, end_s=0.2)
    assert made.found == [{None: Burst(100.0, [1000.0], (100.0,))}]


def test_a_refused_layer_is_left_out_from_then_on() -> None:
    made = Made(FIRST, SECOND, end_s=3.0, refusing=SECOND)
    assert made.rounds.refused == {SECOND: "without it the app answers 500"}
    assert made.order.count(SECOND) == 1
    assert all(set(one) == {None, FIRST} for one in made.found)


def test_a_layer_that_is_refused_later_has_no_pairs() -> None:
    made = Made(FIRST, SECOND, end_s=6.0, refusing=SECOND, after=3)
    assert made.order.count(SECOND) == 4
    assert len(made.found) > 20
    assert all(set(one) == {None, FIRST} for one in made.found)
    assert not Bursts(made.found).noisy


def test_the_number_of_requests() -> None:
    assert requests_of(100_000.0, 1, 10e9) == 800
    assert requests_of(100_000.0, 1000, 10e9) == 2000
    assert requests_of(1_000_000.0, 1000, 10e9) == 1000  # a tenth of the time
    assert requests_of(50e6, 1, 10e9) == 20
    assert requests_of(1e9, 50, 10e9) == 50
