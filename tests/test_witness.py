"""Two witnesses of a verdict: the row of a layer, and what leaving the layer out saves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_mwbudget.analysis.witness import (
    OBJECT_US,
    OBJECTS_US,
    WITNESS_SHARE,
    WITNESS_US,
    contradicts,
    in_doubt,
    judged_by_both,
)
from pytest_mwbudget.model.estimate import Estimate
from pytest_mwbudget.model.judged import Judged, Verdict
from pytest_mwbudget.model.quantities import BETWEEN_RUNS, COUNTED, RPS_SHARE, TAILS, Quantity, budgeted
from pytest_mwbudget.model.results import Count, Counts, LayerReport
from pytest_mwbudget.model.stack import Layer, RowIndex

# Arithmetic is the same in every interpreter.
pytestmark = pytest.mark.once

# A busy machine must not fail these tests.
relaxed = settings(deadline=None)

BUDGETED = tuple(quantity for quantity in budgeted("layer") if quantity != RPS_SHARE)
TIMES: tuple[Quantity, ...] = tuple(quantity for quantity in BUDGETED if quantity not in COUNTED)
OF_REQUESTS: tuple[Quantity, ...] = ("us_per_message", *TAILS)
NONE = Count(0, 0, 0)


def us(estimate: float, half_width: float = 1.0) -> Estimate:
    return Estimate(estimate, estimate - half_width, estimate + half_width)


def counts(*, objects: int | None = None, tasks: int = 0) -> Counts:
    created = None if objects is None else Count(objects, objects, objects)
    return Counts(created, NONE, NONE, Count(tasks, tasks, tasks), NONE, None, NONE, NONE, NONE)


def report(
    own: Estimate | None, judged: Mapping[Quantity, Judged] | None = None, *, runs_task: bool = False
) -> LayerReport:
    layer = Layer(RowIndex(0), "Auth", "shop.Auth", "middleware", runs_task=runs_task)
    return LayerReport(layer, own, judged=judged or {})


def judged(verdict: Verdict, bound: float = 50.0) -> Judged:
    return Judged(bound, verdict, "the interval holds the budget" if verdict == "undecided" else None)


KEPT: Mapping[Quantity, Judged] = {"us": judged("pass")}


# ---- whether a saving and a row disagree --------------------------------------------------------------------------


def test_figures_that_the_known_errors_explain_do_not_contradict() -> None:
    for saved in (100, 100 + WITNESS_US, 100 * (1 + WITNESS_SHARE), 100 * (1 - WITNESS_SHARE) - WITNESS_US):
        assert not contradicts(us(saved, 0), us(100, 0))
    assert WITNESS_US < 5
    assert WITNESS_SHARE < 0.2


@pytest.mark.parametrize(("saved", "own"), [(130, 100), (70, 100), (6, 0), (-6, 0), (-100, 100), (1000, 10)])
def test_figures_beyond_both_intervals_and_the_known_errors_contradict(saved: float, own: float) -> None:
    assert contradicts(us(saved, 1), us(own, 1))


def test_the_slack_begins_at_the_ends_of_both_intervals() -> None:
    slack = WITNESS_US + WITNESS_SHARE * 200
    assert not contradicts(Estimate(200, 180, 210), Estimate(150, 140, 180 - slack + 0.01))
    assert contradicts(Estimate(200, 180, 210), Estimate(150, 140, 180 - slack - 0.01))
    slack = WITNESS_US + WITNESS_SHARE * 150
    assert not contradicts(Estimate(100, 90, 110), Estimate(150, 110 + slack - 0.01, 180))
    assert contradicts(Estimate(100, 90, 110), Estimate(150, 110 + slack + 0.01, 180))


@st.composite
def estimates(draw: st.DrawFn) -> Estimate:
    estimate, width = draw(st.floats(-100, 1000)), st.floats(0, 200) | st.just(math.inf)
    below, above = draw(width), draw(width)
    return Estimate(estimate, estimate - below, estimate + above)


@relaxed
@given(one=estimates(), other=estimates(), by_us=st.floats(0, 100))
def test_neither_witness_is_trusted_more_and_a_wider_interval_contradicts_less(
    one: Estimate, other: Estimate, by_us: float
) -> None:
    assert contradicts(one, other) == contradicts(other, one)
    assert not contradicts(one, one)
    if contradicts(one.widened(by_us), other):
        assert contradicts(one, other)
    if one.low <= other.high and other.low <= one.high:
        assert not contradicts(one, other)


# ---- whether a verdict needs a second witness ---------------------------------------------------------------------


@pytest.mark.parametrize("quantity", TIMES)
def test_a_failure_by_any_time_is_in_doubt(quantity: Quantity) -> None:
    assert in_doubt(report(us(60), {quantity: judged("fail")}), counts())
    assert in_doubt(report(us(60), {quantity: judged("fail")}), None)


@pytest.mark.parametrize("quantity", COUNTED)
def test_a_failure_by_a_count_is_not(quantity: Quantity) -> None:
    assert not in_doubt(report(us(60), {quantity: judged("fail")}), counts())
    assert not in_doubt(report(us(60), {quantity: judged("fail"), "us": judged("pass")}), counts(objects=1))


def test_a_pass_stands_on_its_row_alone_but_for_who_spawns_tasks() -> None:
    assert not in_doubt(report(us(10), KEPT), counts(objects=100))
    assert in_doubt(report(us(10), KEPT, runs_task=True), counts())
    assert in_doubt(report(us(10), KEPT), counts(tasks=1))


def test_a_pass_of_who_creates_more_objects_than_its_row_has_time_for_is_in_doubt() -> None:
    for high_us in (5.0, 40.0):
        row = Estimate(high_us - 1, high_us - 2, high_us)
        assert not in_doubt(report(row, KEPT), counts(objects=round(high_us / OBJECT_US)))
        assert in_doubt(report(row, KEPT), counts(objects=round(high_us / OBJECT_US) + 1))


def test_a_few_objects_tell_nothing_of_a_quick_layer() -> None:
    for row in (us(0, 0.1), us(-1, 0.1)):
        assert not in_doubt(report(row, KEPT), counts(objects=round(OBJECTS_US / OBJECT_US)))
        assert in_doubt(report(row, KEPT), counts(objects=round(OBJECTS_US / OBJECT_US) + 1))


def test_a_pass_without_counts_is_not_in_doubt_and_without_objects_only_by_tasks() -> None:
    assert not in_doubt(report(us(10), KEPT, runs_task=True), None)
    assert not in_doubt(report(us(0), KEPT), counts(objects=None))
    assert in_doubt(report(us(0), KEPT), counts(objects=None, tasks=1))


def test_only_a_budget_of_the_whole_time_is_doubted_for_tasks() -> None:
    for quantity in OF_REQUESTS:
        assert not in_doubt(report(us(10), {quantity: judged("pass")}, runs_task=True), counts(tasks=1))


# ---- the verdict by both ------------------------------------------------------------------------------------------


def verdict(own: Estimate, saved: Estimate, quantity: Quantity, one: Judged, *, runs_task: bool = False) -> Judged:
    """Return what becomes of a budget; everything else of the report must stay."""
    before = report(own, {quantity: one}, runs_task=runs_task)
    after = judged_by_both(before, saved)
    assert replace(after, judged=before.judged) == before
    assert before.judged == {quantity: one}
    (by_both,) = after.judged.values()
    assert by_both.bound == one.bound
    return by_both


@pytest.mark.parametrize("quantity", ["us", "busy_us"])
def test_a_failure_that_the_saving_contradicts_is_undecided_with_both_figures(quantity: Quantity) -> None:
    by_both = verdict(us(80, 2), us(20, 3), quantity, judged("fail"))
    assert by_both.verdict == "undecided"
    assert by_both.reason == (
        "by its row the layer takes 80.0 µs (78.0 to 82.0), but a whole request without it is 20.0 µs shorter"
        " (17.0 to 23.0): the app does something else without the layer, or a row is charged with the work of another"
        " layer; use a budget of counts for this layer [contradicted]"
    )


@pytest.mark.parametrize("quantity", ["us", "busy_us"])
@pytest.mark.parametrize("saved", [us(500, 5), us(75, 5), Estimate(70, 50.01, 75)])
def test_a_failure_stands_if_both_are_over_the_budget(quantity: Quantity, saved: Estimate) -> None:
    own = us(120, 2)
    assert contradicts(saved, own)
    assert verdict(own, saved, quantity, judged("fail")) == judged("fail")


@pytest.mark.parametrize("saved", [Estimate(70, 50, 75), Estimate(70, 49, 75), us(50), us(0), us(-30)])
def test_a_failure_does_not_stand_if_the_saving_may_be_within_the_budget(saved: Estimate) -> None:
    assert verdict(us(120, 2), saved, "us", judged("fail")).verdict == "undecided"


@pytest.mark.parametrize("saved", [us(60, 1), us(48, 1), us(58, 60), Estimate(40, 30, 70)])
@pytest.mark.parametrize("quantity", TIMES)
def test_a_failure_stands_if_both_agree(quantity: Quantity, saved: Estimate) -> None:
    """The saving may be within the budget: within the errors of both it is the same figure."""
    assert not contradicts(saved, us(58, 2))
    assert verdict(us(58, 2), saved, quantity, judged("fail")) == judged("fail")


@pytest.mark.parametrize("quantity", OF_REQUESTS)
@pytest.mark.parametrize("saved", [us(0), us(500)])
def test_a_failure_by_percentile_or_message_falls_with_the_row(quantity: Quantity, saved: Estimate) -> None:
    """A saving says nothing of a percentile or a message: that the row is wrong is enough, in either direction."""
    by_both = verdict(us(80, 2), saved, quantity, judged("fail", 5.0))
    assert by_both.verdict == "undecided"
    assert by_both.reason is not None
    assert "80.0 µs (78.0 to 82.0)" in by_both.reason
    assert f"{saved.estimate:.1f} µs shorter" in by_both.reason


@pytest.mark.parametrize("runs_task", [True, False])
def test_a_pass_whose_saving_is_far_over_the_budget_is_undecided(runs_task: bool) -> None:
    by_both = verdict(us(20, 2), us(300, 5), "us", judged("pass"), runs_task=runs_task)
    assert by_both.verdict == "undecided"
    assert "20.0 µs (18.0 to 22.0)" in by_both.reason
    assert "300.0 µs shorter (295.0 to 305.0)" in by_both.reason
    assert by_both.reason.endswith(" [contradicted]")


def test_a_pass_stands_unless_all_of_the_saving_would_fail() -> None:
    above = (1 + BETWEEN_RUNS) * 50
    assert verdict(us(20, 2), Estimate(80, above + 0.01, 90), "us", judged("pass")).verdict == "undecided"
    assert verdict(us(20, 2), Estimate(80, above, 90), "us", judged("pass")) == judged("pass")
    assert verdict(us(20, 2), Estimate(80, 40, 90), "us", judged("pass")) == judged("pass")


def test_a_pass_stands_if_the_saving_is_smaller_or_agrees() -> None:
    assert verdict(us(40, 2), us(-200), "us", judged("pass")) == judged("pass")
    assert verdict(us(49.9, 0.05), us(56, 1), "us", judged("pass")) == judged("pass")


@pytest.mark.parametrize("quantity", [quantity for quantity in TIMES if quantity != "us"])
def test_a_saving_takes_back_no_pass_but_that_of_the_whole_time(quantity: Quantity) -> None:
    assert verdict(us(20, 2), us(300, 5), quantity, judged("pass")) == judged("pass")


@relaxed
@given(
    own=st.none() | estimates(),
    saved=estimates(),
    budgets=st.dictionaries(
        st.sampled_from(BUDGETED),
        st.builds(judged, st.sampled_from(["pass", "fail", "undecided"]), st.floats(0, 1000)),
    ),
    runs_task=st.booleans(),
)
def test_the_second_witness_only_takes_verdicts_on_times_back(
    own: Estimate | None, saved: Estimate, budgets: dict[Quantity, Judged], runs_task: bool
) -> None:
    before = report(own, budgets, runs_task=runs_task)
    after = judged_by_both(before, saved)
    assert replace(after, judged=budgets) == before
    assert [*after.judged] == [*budgets]
    assert judged_by_both(after, saved) == after
    disagree = own is not None and contradicts(saved, own)
    for quantity, by_both in after.judged.items():
        if by_both == budgets[quantity]:
            # A failure that is left stands on both, or on a count.
            if by_both.verdict == "fail" and disagree:
                assert quantity in COUNTED or (quantity in ("us", "busy_us") and saved.low > by_both.bound)
            continue
        assert disagree
        assert quantity not in COUNTED
        assert (by_both.bound, by_both.verdict) == (budgets[quantity].bound, "undecided")
        assert budgets[quantity].verdict != "undecided"
        assert own is not None
        assert by_both.reason is not None
        for figure in (own, saved):
            assert f"{figure.estimate:.1f} µs" in by_both.reason
            assert f"({figure.low:.1f} to {figure.high:.1f})" in by_both.reason
        if budgets[quantity].verdict == "pass":
            assert quantity == "us"
            assert saved.low > by_both.bound


@relaxed
@given(
    own=st.none() | estimates(),
    budgets=st.dictionaries(
        st.sampled_from(BUDGETED), st.builds(judged, st.sampled_from(["pass", "fail", "undecided"]))
    ),
    runs_task=st.booleans(),
    objects=st.none() | st.integers(0, 10**6),
    more=st.integers(0, 10**6),
    tasks=st.integers(0, 3),
)
def test_doubt_comes_from_verdicts_on_times_and_grows_with_the_counts(
    own: Estimate | None,
    budgets: dict[Quantity, Judged],
    runs_task: bool,
    objects: int | None,
    more: int,
    tasks: int,
) -> None:
    layer = report(own, budgets, runs_task=runs_task)
    doubted = in_doubt(layer, counts(objects=objects, tasks=tasks))
    timed = {budget.verdict for quantity, budget in budgets.items() if quantity not in COUNTED}
    if own is not None and "fail" in timed:
        assert doubted
    if own is None or timed <= {"undecided"}:
        assert not doubted
    without_counts = {quantity: budget for quantity, budget in budgets.items() if quantity not in COUNTED}
    assert in_doubt(replace(layer, judged=without_counts), counts(objects=objects, tasks=tasks)) == doubted
    if doubted:
        assert in_doubt(layer, counts(objects=(objects or 0) + more, tasks=tasks + 1))
        assert in_doubt(layer, counts(objects=objects, tasks=tasks))
