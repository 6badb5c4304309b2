"""Which budget applies to which layer, and whether an estimate keeps it."""

from __future__ import annotations

import math

import pytest

from pytest_mwbudget.budgets import Budgets, assign, budget_us, judge, overall, seconds_needed
from pytest_mwbudget.errors import LayerNameError, SettingError
from pytest_mwbudget.model import Estimate, Kind, Layer, Verdict


def layer(index: int, name: str, qualname: str, kind: Kind = "middleware") -> Layer:
    return Layer(index, name, qualname, kind, aliases=frozenset({qualname.rpartition(".")[2]}))


STACK = [
    layer(0, "Noop#1", "shop.asgi.Noop"),
    layer(1, "GZipMiddleware", "starlette.middleware.gzip.GZipMiddleware"),
    layer(2, "Mount", "starlette.routing.Mount", "routing"),
    layer(3, "Noop#2", "shop.asgi.Noop"),
    layer(4, "function[shop.asgi.outer]", "shop.asgi.outer"),
]


# ---- parsing ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("value", "expected"), [(50, 50.0), (0.5, 0.5), ("50", 50.0), (" 1e2 ", 100.0)])
def test_a_number_above_zero_is_a_budget(value: object, expected: float) -> None:
    assert budget_us(value, "us") == expected


@pytest.mark.parametrize(
    "value",
    [
        0,
        -1,
        math.nan,
        math.inf,
        -math.inf,
        "nan",
        "inf",
        "-3",
        "much",
        "",
        True,
        None,
        [50],
        pytest.param(10**400, id="huge"),
    ],
)
def test_anything_else_is_refused_with_place_value_and_remedy(value: object) -> None:
    with pytest.raises(SettingError, match=r"mw_budget marker: us is .*; give a number of microseconds .* above 0"):
        budget_us(value, "mw_budget marker: us")


def test_the_message_shows_the_value_as_it_was_written() -> None:
    with pytest.raises(SettingError, match="us is 'much', which is not a number"):
        budget_us("much", "us")


# ---- names ------------------------------------------------------------------------------------------------------


def test_the_default_applies_to_middleware_and_not_to_routing() -> None:
    assert assign(Budgets(us=50), STACK) == {0: 50, 1: 50, 3: 50, 4: 50}


def test_without_a_default_only_named_layers_have_a_budget() -> None:
    assert assign(Budgets(layers={"GZipMiddleware": 80}), STACK) == {1: 80}


@pytest.mark.parametrize(
    ("name", "indexes"),
    [
        ("Noop#2", {3}),
        ("Noop", {0, 3}),
        ("shop.asgi:Noop", {0, 3}),
        ("shop.asgi.Noop", {0, 3}),
        ("Mount", {2}),
        ("function[shop.asgi.outer]", {4}),
        ("shop.asgi:outer", {4}),
    ],
)
def test_a_name_applies_to_every_layer_it_matches(name: str, indexes: set[int]) -> None:
    assert assign(Budgets(layers={name: 7}), STACK) == dict.fromkeys(indexes, 7)


@pytest.mark.parametrize("reverse", [False, True])
def test_the_more_exact_name_wins_in_any_order(reverse: bool) -> None:
    names = {"Noop": 1.0, "shop.asgi:Noop": 2.0, "Noop#2": 3.0}
    ordered = dict(sorted(names.items(), reverse=reverse))
    assert assign(Budgets(us=50, layers=ordered), STACK) == {0: 2, 1: 50, 3: 3, 4: 50}


def test_a_name_that_matches_nothing_is_an_error_with_the_near_miss_and_the_names() -> None:
    with pytest.raises(LayerNameError) as caught:
        assign(Budgets(layers={"GzipMidleware": 80}), STACK)
    message = str(caught.value)
    assert "'GzipMidleware'" in message
    assert "Did you mean 'GZipMiddleware'?" in message
    assert "Noop#1, GZipMiddleware, Mount, Noop#2, function[shop.asgi.outer]" in message


def test_a_name_unlike_any_other_has_no_near_miss() -> None:
    with pytest.raises(LayerNameError, match=r"'Zzz' that is not in the stack\. The layers are: Noop#1"):
        assign(Budgets(layers={"Zzz": 80}), STACK)


def test_a_named_layer_in_an_empty_stack_is_an_error() -> None:
    with pytest.raises(LayerNameError, match="The stack has no layers"):
        assign(Budgets(layers={"Noop": 80}), [])


# ---- verdicts ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(40, 49, "pass"), (40, 50, "pass"), (40, 51, "undecided"), (50, 60, "undecided"), (51, 60, "fail")],
)
def test_the_whole_interval_decides(low: float, high: float, verdict: Verdict) -> None:
    assert judge(Estimate((low + high) / 2, low, high), 50, floor=0.1, slowdown=1).verdict == verdict


def test_an_interval_round_the_budget_is_undecided_with_its_numbers() -> None:
    reason = judge(Estimate(50, 45.5, 55.25), 50, floor=0.1, slowdown=1).reason
    assert reason == "the interval 45.50 to 55.25 µs holds the budget of 50 µs"


@pytest.mark.parametrize("us", [Estimate(0.01, 0, 0.02), Estimate(9, 8, 10)])
def test_a_budget_below_the_floor_is_refused_whatever_the_estimate(us: Estimate) -> None:
    judgement = judge(us, 0.05, floor=0.12, slowdown=1)
    assert judgement.verdict == "undecided"
    assert judgement.reason is not None
    for part in ("budget of 0.05 µs", "floor of 0.12 µs", "raise the budget", "--mw-budget-max-time"):
        assert part in judgement.reason


def test_a_run_too_short_for_a_floor_decides_nothing_and_shows_no_infinite_number() -> None:
    judgement = judge(Estimate(1, 0.9, 1.1), 50, floor=math.inf, slowdown=1)
    assert judgement.verdict == "undecided"
    assert judgement.reason is not None
    assert "too few requests" in judgement.reason
    assert "inf " not in judgement.reason


def test_an_excess_that_the_slowdown_of_the_machine_explains_is_not_a_failure() -> None:
    judgement = judge(Estimate(60, 55, 65), 50, floor=0.1, slowdown=1.2)
    assert judgement.verdict == "undecided"
    assert judgement.reason is not None
    assert "1.20 times slower" in judgement.reason


def test_an_excess_beyond_the_slowdown_is_a_failure() -> None:
    assert judge(Estimate(70, 65, 75), 50, floor=0.1, slowdown=1.2).verdict == "fail"


def test_a_slow_machine_does_not_turn_an_excess_into_a_pass() -> None:
    assert judge(Estimate(60, 49, 65), 50, floor=0.1, slowdown=2).verdict == "undecided"


@pytest.mark.parametrize(
    ("verdicts", "worst"),
    [
        ([], None),
        (["pass", "pass"], "pass"),
        (["pass", "undecided"], "undecided"),
        (["undecided", "fail", "pass"], "fail"),
    ],
)
def test_the_worst_verdict_is_the_overall_one(verdicts: list[Verdict], worst: Verdict) -> None:
    assert overall(verdicts) == worst


# ---- time -------------------------------------------------------------------------------------------------------


def test_half_the_distance_to_the_budget_takes_four_times_as_long() -> None:
    near, far = Estimate(51, 47, 55), Estimate(52, 48, 56)
    assert seconds_needed(far, 50, 1.0) == pytest.approx(4.0)
    assert seconds_needed(near, 50, 1.0) == pytest.approx(16.0)


def test_the_wider_side_of_the_interval_counts() -> None:
    assert seconds_needed(Estimate(52, 44, 53), 50, 1.0) == pytest.approx(16.0)


@pytest.mark.parametrize("us", [Estimate(50, 45, 55), Estimate(40, -math.inf, math.inf)])
def test_nobody_knows_how_long_when_the_estimate_is_on_the_budget_or_unbounded(us: Estimate) -> None:
    assert seconds_needed(us, 50, 1.0) is None
