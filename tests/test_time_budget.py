"""A time limit that many requests share, and which of them are timed when there is not enough time for all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mwbudget.model.results import Result, Turn
from pytest_mwbudget.timing.looks import NS_PER_S
from pytest_mwbudget.timing.schedule import Schedule
from pytest_mwbudget.workload.time_budget import TimeBudget, fitting, most_useful_first, sampled_s, warming

from .test_report_terminal import NONE, counted, layer_row, same

SECONDS = st.floats(0, 100)


class World:
    """A clock, and another process that goes on measuring for `busy_s`."""

    def __init__(self, busy_s: float = 0.0) -> None:
        self.now_s, self.busy_s, self.waits = 5.0, busy_s, list[float]()

    def clock(self) -> float:
        return self.now_s

    @contextmanager
    def turns(self, wait_s: float) -> Iterator[Turn]:
        self.waits.append(wait_s)
        self.now_s += min(wait_s, self.busy_s)
        yield Turn()


@given(SECONDS, SECONDS, st.lists(st.tuples(SECONDS, SECONDS)))
def test_the_limit_is_of_all_time_but_waits_and_waits_have_the_same_limit(
    limit_s: float, busy_s: float, requests: list[tuple[float, float]]
) -> None:
    world = World(busy_s)
    budget = TimeBudget(limit_s, world.clock)
    left_s = [budget.left_s]
    for wait_s, taken_s in requests:
        with budget.turn(world.turns, wait_s):
            world.now_s += taken_s
        left_s.append(budget.left_s)
    assert budget.spent_s == pytest.approx(sum(taken_s for _, taken_s in requests))
    assert budget.left_s == pytest.approx(limit_s - budget.spent_s)
    assert all(later <= earlier + 1e-9 for earlier, later in pairwise(left_s))
    assert budget.waited_s <= limit_s + 1e-9
    assert all(0 <= waited_s <= wait_s for waited_s, (wait_s, _) in zip(world.waits, requests, strict=True))


def test_waiting_for_other_processes_ends_after_a_while_and_in_all() -> None:
    world = World(busy_s=60)
    budget = TimeBudget(25, world.clock)
    for wait_s in (10.0, 2.0, 10.0, 10.0, 10.0):
        with budget.turn(world.turns, wait_s):
            pass
    assert world.waits == [10.0, 2.0, 10.0, 3.0, 0.0]


@given(SECONDS)
def test_warming_and_sampling_take_the_time_of_a_request(seconds: float) -> None:
    warm_ns = warming(replace(Schedule(), warm_ns=10**12), seconds).warm_ns
    assert sampled_s(seconds) + warm_ns / NS_PER_S == pytest.approx(seconds, abs=1e-8)
    assert warming(Schedule(), 100).warm_ns == Schedule().warm_ns


def request(objects: int | None, *names: str) -> Result:
    rows = [layer_row(name, place) for place, name in enumerate(names)]
    return counted(*rows, total=replace(NONE, objects=None if objects is None else same(objects)))


def test_one_request_of_each_stack_comes_first_and_then_the_costliest() -> None:
    results = {0: request(10, "Auth"), 1: request(30, "Auth"), 2: request(5, "Auth", "GZip"), 3: request(20, "Auth")}
    assert most_useful_first(results) == [1, 2, 3, 0]
    # Where no objects are counted, requests keep their order.
    assert most_useful_first({0: request(None, "Auth"), 1: request(None, "Auth")}) == [0, 1]


def test_a_layer_that_is_not_entered_makes_no_other_stack() -> None:
    aside = layer_row("GZip", 1)
    aside = replace(aside, layer=replace(aside.layer, entered=False))
    other = counted(layer_row("Auth"), aside, total=replace(NONE, objects=same(9)))
    assert most_useful_first({0: request(10, "Auth"), 1: request(1, "Csrf"), 2: other}) == [0, 1, 2]


def test_a_request_that_does_not_fit_makes_room_for_later_ones() -> None:
    needed_s = {7: 1.0, 3: 5.0, 5: 0.5}
    assert fitting([7, 3, 5], needed_s, 6.6) == [7, 3, 5]
    assert fitting([7, 3, 5], needed_s, 2.0) == [7, 5]


@given(st.dictionaries(st.integers(0, 99), SECONDS), SECONDS)
def test_as_many_requests_fit_as_there_is_time_for(needed_s: dict[int, float], left_s: float) -> None:
    fit = fitting([*needed_s], needed_s, left_s)
    rest_s = left_s - sum(needed_s[place] for place in fit)
    rounding_s = 1e-9
    assert rest_s >= -rounding_s
    assert fit == [place for place in needed_s if place in fit]
    assert all(needed_s[place] > rest_s - rounding_s for place in needed_s if place not in fit)
