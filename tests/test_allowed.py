"""How much a comparison allows quantities to grow, as users write it."""

from __future__ import annotations

import pytest

from pytest_mwbudget.comparison.allowed import EXAMPLE, LEAST_US, LIMITABLE, judged, parsed
from pytest_mwbudget.errors import SettingError
from pytest_mwbudget.model.changes import Change
from pytest_mwbudget.model.estimate import Estimate
from pytest_mwbudget.model.quantities import RECORDABLE


def test_percentages_are_of_what_the_figure_was():
    allowed = parsed("us:10%, objects : 2.5 %", "--fail")
    assert allowed["us"].most(80.0) == pytest.approx(8.0)
    assert allowed["objects"].most(200) == pytest.approx(5.0)


def test_a_time_may_always_grow_by_what_times_cannot_show():
    assert {parsed(text, "--fail")["us"].most(-0.3) for text in ("us:10%", "us:0", "us:0.1us")} == {LEAST_US}
    assert parsed("tasks:50%", "--fail")["tasks"].most(0) == 0


def change(low: float, high: float, row: str = "Work", quantity: str = "us") -> Change:
    """Return the change of a figure that was 100, and in some requests or with some chance 120."""
    return Change(row, quantity, "unclear", Estimate(100, 90, 120), Estimate(100, 90, 120), Estimate(low, low, high))


@pytest.mark.parametrize(
    ("limits", "low", "high", "verdict"),
    [
        ("us:5%", 6.1, 8, "fail"),
        ("us:5%", 5.9, 8, "undecided"),
        ("us:5%", -9, 6, "pass"),
        ("us:20us", 6, 20, "pass"),
        ("us:0", 0.3, 0.5, "pass"),
        ("us:0", 0.51, 0.6, "fail"),
        ("objects:0", 1, 1, "fail"),
        ("objects:0", 0, 1, "undecided"),
        ("objects:1%", 1, 1, "pass"),
        ("objects:0", -1, -1, "pass"),
    ],
)
def test_a_limit_fails_only_what_is_certainly_above_it(limits: str, low: float, high: float, verdict: str):
    quantity = limits.partition(":")[0]
    assert judged(change(low, high, quantity=quantity), parsed(limits, "--fail")).verdict == verdict


@pytest.mark.parametrize(
    ("limits", "row", "quantity", "verdict"),
    [
        ("us:1%", "(endpoint)", "us", None),
        ("us:1%", "(outside)", "us", None),
        ("us:1%", "(endpoint) serialize", "us", None),
        ("us:1%", "(total)", "us", None),
        ("objects:1%", "(total)", "objects", None),
        ("total_us:1%", "Work", "us", None),
        ("total_us:1%", "(total)", "us", "fail"),
        ("us:1%", "Work", "busy_us", None),
    ],
)
def test_only_layers_and_the_total_time_are_judged(limits: str, row: str, quantity: str, verdict: str | None):
    assert judged(change(50, 60, row, quantity), parsed(limits, "--fail")).verdict == verdict


def test_what_is_new_or_gone_has_not_grown():
    for word in ("new", "gone"):
        one_sided = Change("Work", "objects", word, after=Estimate(9, 9, 9))
        assert judged(one_sided, parsed("objects:0", "--fail")) == one_sided


def test_what_was_not_compared_is_undecided():
    unknown = judged(Change("Work", "us", "not comparable", reason="another processor"), parsed("us:5%", "--fail"))
    assert (unknown.verdict, unknown.most) == ("undecided", None)


def test_nothing_is_limited_without_a_text():
    assert parsed(None, "--fail") == {}


@pytest.mark.parametrize(
    ("text", "quantity", "amount"),
    [
        ("us:5", "us", 5.0),
        ("us:5us", "us", 5.0),
        ("busy_us:.5 µs", "busy_us", 0.5),
        ("total_us:1.5ms", "total_us", 1500.0),
        ("tasks:0", "tasks", 0),
        ("bytes:2 KiB", "bytes", 2048),
        ("bytes:100", "bytes", 100),
    ],
)
def test_amounts_are_in_the_unit_of_the_quantity(text, quantity, amount):
    assert parsed(text, "--fail")[quantity].most(1e9) == amount


def test_what_the_user_wrote_is_kept():
    assert parsed("us:10 %,tasks:0", "--fail")["us"].written == "10 %"


@pytest.mark.parametrize("quantity", [*RECORDABLE, "total_us"])
def test_every_quantity_that_can_have_a_budget_can_be_allowed_to_grow(quantity):
    assert list(parsed(f"{quantity}:0", "--fail")) == list(parsed(f"{quantity}:3%", "--fail")) == [quantity]


def test_the_example_of_the_messages_is_valid():
    assert parsed(EXAMPLE, "--fail")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "has the part ''; write QUANTITY:GROWTH"),
        ("us", "has the part 'us'; write QUANTITY:GROWTH"),
        ("us:10%,", "has the part ''"),
        ("us:", "has the part 'us:'"),
        ("object:3", "has the quantity 'object'. Did you mean 'objects'?"),
        ("us:10%,us:5", "has us twice"),
        ("us:ten", "us is 'ten'; give a percentage or microseconds"),
        ("us:-5", "us is '-5'"),
        ("us:nan", "us is 'nan'"),
        ("tasks:1.5", "tasks is '1.5'; give a percentage or a whole number, 0 or more, for example 10% or 0"),
        ("tasks:-1%", "tasks is '-1%'"),
        ("bytes:1 KX", "bytes is '1 KX'; give a percentage or a whole number, 0 or more, for example 10% or 1 KiB"),
        (f"us:{'9' * 400}", "which is too large"),
    ],
)
def test_errors_name_the_value_and_the_remedy(text, says):
    with pytest.raises(SettingError) as caught:
        parsed(text, "--fail")
    assert str(caught.value).startswith(f"--fail={text!r}")
    assert says in str(caught.value)


def test_an_unknown_quantity_names_all_of_them():
    with pytest.raises(SettingError) as caught:
        parsed("cost:3", "--fail")
    assert all(quantity in str(caught.value) for quantity in LIMITABLE)
