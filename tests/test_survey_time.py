"""How long a survey measures each request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from pytest_mwbudget.config.budgets import Budgets
from pytest_mwbudget.config.settings import Settings
from pytest_mwbudget.session.claims import Sums
from pytest_mwbudget.session.survey_time import (
    COUNTING_S,
    FIRST_S,
    IN_A_TEST,
    MOST_S,
    TIMING_SHARE,
    Plan,
    plan_of,
)
from pytest_mwbudget.timing.looks import Environment
from pytest_mwbudget.workload.time_budget import LEAST_S, sampled_s


def surveyed(limit_s: float, requests: Sequence[int], *, counting_s: float = COUNTING_S) -> list[float | None]:
    """Survey a suite that makes so many new requests in each test. Return how long each was timed, None if not at all.

    Requests for which no time is left are missing.
    """
    sums = Sums()
    timed: list[float | None] = []
    for number in requests:
        for _ in range(number):
            if sums.seconds >= limit_s:
                continue
            plan = plan_of(limit_s, sums, len(requests)).of_stack(new=not timed)
            timed.append(plan.seconds if plan.timed else None)
            seconds = plan.seconds if plan.timed else 0.0
            sums += Sums(seconds + counting_s, seconds, 1)
        sums += Sums(tests=1)
    return timed


def total(timed: Sequence[float | None]) -> float:
    return sum(seconds or 0.0 for seconds in timed)


@given(st.floats(1, 300), st.lists(st.integers(0, 20), max_size=300), st.floats(0.01, 2))
def test_no_suite_takes_longer_than_the_limit_but_for_its_last_request(
    limit_s: float, requests: list[int], counting_s: float
) -> None:
    timed = surveyed(limit_s, requests, counting_s=counting_s)
    assert total(timed) + len(timed) * counting_s <= limit_s + MOST_S + counting_s
    assert all(seconds is None or LEAST_S <= seconds <= MOST_S for seconds in timed)


def test_in_a_small_suite_each_request_gets_all_that_is_useful() -> None:
    assert surveyed(120, [1] * 5) == [MOST_S] * 5


def test_an_app_with_few_routes_and_many_tests_has_all_of_them_timed() -> None:
    early = surveyed(120, [1] * 20 + [0] * 2980)
    late = surveyed(120, [0] * 2980 + [1] * 20)
    assert len(early) == len(late) == 20
    assert min(seconds or 0.0 for seconds in early) > 0.4
    assert min(seconds or 0.0 for seconds in late) == MOST_S


def test_many_small_apps_are_all_counted_and_some_are_timed() -> None:
    timed = surveyed(120, ([1, 0, 0, 0] * 871)[: 871 * 4])
    assert len(timed) == 871
    assert total(timed) > 0.9 * (120 - 871 * COUNTING_S)
    assert total(timed) + 871 * COUNTING_S <= 120 + MOST_S


def test_if_not_even_counts_fit_times_take_no_more_than_their_share() -> None:
    timed = surveyed(120, [1] * 2000)
    assert TIMING_SHARE * 120 * 0.7 < total(timed) <= TIMING_SHARE * 120
    assert len(timed) >= (1 - TIMING_SHARE) * 120 / COUNTING_S


def test_counting_that_is_slower_than_expected_leaves_less_for_times() -> None:
    quick, slow = (surveyed(120, [1, 0, 0, 0] * 200, counting_s=counting_s) for counting_s in (0.1, 0.4))
    assert len(quick) == len(slow) == 200
    assert total(slow) < total(quick)
    assert total(slow) + 200 * 0.4 <= 120 + MOST_S


def test_the_first_request_of_a_stack_is_timed_as_long_as_there_is_time() -> None:
    crowded = plan_of(120, Sums(60, 29, 400, 1000), 9000)
    assert not crowded.timed
    assert not crowded.of_stack(new=False).timed
    assert crowded.of_stack(new=True).seconds == FIRST_S
    assert not plan_of(120, Sums(60, 30, 400, 1000), 9000).of_stack(new=True).timed


def test_where_time_is_too_short_to_count_all_fewer_requests_are_counted() -> None:
    usual, hurried = (plan_of(limit_s, Sums(), 1000).environment(Environment()).schedule for limit_s in (120, 20))
    assert (usual.counted_requests, usual.uncounted_requests, usual.brief_warm_calls) == (21, 8, 100)
    assert (hurried.counted_requests, hurried.uncounted_requests, hurried.brief_warm_calls) == (7, 4, 40)


def test_a_test_with_a_time_limit_gives_less() -> None:
    plan = Plan(2.0, 0.5, left_s=60).within(0.3)
    assert (plan.seconds, plan.first_s, plan.left_s) == (0.3, 0.3, 60)


def test_a_budget_of_time_gets_the_patience_that_a_failure_needs_or_is_not_judged() -> None:
    settings = Settings(Budgets({"us": 50, "tasks": 0}), max_time_s=5)
    assert Plan(0.5, 0.5, left_s=60).settings(settings) == settings
    assert Plan(0.5, 0.5, left_s=60).unjudged(settings) is None
    late = Plan(0.5, 0.5, left_s=3)
    briefly = replace(settings, max_time_s=0.4, timed=True, more_time=IN_A_TEST)
    assert late.settings(settings) == replace(briefly, budgets=Budgets({"tasks": 0}))
    sentence = late.unjudged(settings)
    assert sentence is not None
    assert sentence.endswith("[survey-time]")
    assert late.unjudged(Settings(Budgets({"tasks": 0}))) is None


def test_a_request_with_little_time_is_only_counted_and_keeps_its_budgets_of_counts() -> None:
    settings = Settings(Budgets({"us": 50, "tasks": 0}, {"A": {"us": 9}, "B": {"us": 9, "objects": None}}))
    little, more = Plan(LEAST_S / 2, 0.0, 60), Plan(LEAST_S * 2, 0.0, 60)
    assert not little.timed
    assert little.settings(settings).budgets == Budgets({"tasks": 0}, {"B": {"objects": None}})
    assert more.timed
    assert more.settings(Settings()).max_time_s == sampled_s(more.seconds)
    assert more.environment(Environment()).schedule.precision_time_s == more.seconds
