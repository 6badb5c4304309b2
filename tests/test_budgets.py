"""Which budget applies to which layer, and whether an estimate or a count keeps it."""

from __future__ import annotations

import math

import pytest

from pytest_mwbudget.config.budgets import Bounds, Budgets, assign, named
from pytest_mwbudget.config.checks import check, count, microseconds, size
from pytest_mwbudget.errors import LayerNameError, SettingError
from pytest_mwbudget.model.quantities import COUNTED, RECORDABLE, Quantity
from pytest_mwbudget.model.stack import Kind, Layer


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
    assert microseconds(value, "us") == expected


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
        microseconds(value, "mw_budget marker: us")


def test_the_message_shows_the_value_as_it_was_written() -> None:
    with pytest.raises(SettingError, match="us is 'much', which is not a number"):
        microseconds("much", "us")


@pytest.mark.parametrize(("value", "expected"), [(0, 0), (7, 7), ("0", 0), (" 12 ", 12)])
def test_a_whole_number_from_zero_on_is_a_count(value: object, expected: int) -> None:
    assert count(value, "tasks") == expected


@pytest.mark.parametrize("value", [-1, 1.5, 2.0, "2.5", "-3", "many", "", True, False, None, [1], math.nan, 10**400])
def test_anything_else_is_no_count(value: object) -> None:
    with pytest.raises(SettingError) as caught:
        count(value, "mw_budget marker: tasks")
    message = str(caught.value)
    assert message.startswith(f"mw_budget marker: tasks is {value!r}; ")
    assert "a whole number per request from 0 on, for example 100" in message


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, 0),
        (4096, 4096),
        ("0", 0),
        ("4096", 4096),
        ("512 B", 512),
        ("16 KiB", 16 * 1024),
        ("16KiB", 16 * 1024),
        (" 16 kib ", 16 * 1024),
        ("16 kB", 16_000),
        ("16 KB", 16_000),
        ("1.5 MiB", 3 * 512 * 1024),
        ("2 MB", 2_000_000),
        ("1 GiB", 1024**3),
        ("1 GB", 10**9),
        ("0.3 B", 0),
        ("1.0009 kB", 1000),
        ("9007199254740993", 9007199254740993),
    ],
)
def test_a_size_has_a_unit_or_is_in_bytes(value: object, expected: int) -> None:
    number = size(value, "bytes")
    assert (number, type(number)) == (expected, int)


@pytest.mark.parametrize("value", ["16 KiBs", "KiB", "-1 KiB", "1,5 KiB", "1e3", "1 2 KiB", "much", "", "16 Kibit"])
def test_a_text_that_is_no_size_has_the_units_in_its_message(value: str) -> None:
    with pytest.raises(SettingError) as caught:
        size(value, "mw_budget_bytes")
    message = str(caught.value)
    assert message.startswith(f"mw_budget_bytes is {value!r}; ")
    assert "'16 KiB'" in message
    assert "B, kB, MB, GB, KiB, MiB, GiB" in message


@pytest.mark.parametrize("value", [-1, 1.5, True, None, [16]])
def test_a_value_that_is_no_text_and_no_count_is_no_size(value: object) -> None:
    with pytest.raises(SettingError, match=r"bytes is .*; give a whole number"):
        size(value, "bytes")


@pytest.mark.parametrize(
    ("quantity", "value", "expected"),
    [("us", "1.5", 1.5), ("busy_us", 3, 3.0), ("bytes", "2 KiB", 2048), *((q, "0", 0) for q in COUNTED)],
)
def test_each_quantity_has_its_own_kind_of_bound(quantity: Quantity, value: object, expected: float) -> None:
    assert check(quantity, value, quantity) == expected


@pytest.mark.parametrize(
    ("quantity", "value"),
    [("us", 0), ("busy_us", 0), ("us", "2 KiB"), *((q, 0.5) for q in COUNTED), ("objects", "2 KiB")],
)
def test_a_bound_that_its_quantity_cannot_have_is_refused(quantity: Quantity, value: object) -> None:
    with pytest.raises(SettingError, match=rf"^here is {value!r}"):
        check(quantity, value, "here")


# ---- what has to be measured ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("budgets", "clock"),
    [
        (Budgets(), True),
        (Budgets(default={"us": 5}), True),
        (Budgets(default={"busy_us": 5}), True),
        (Budgets(layers={"A": {"us": 5}}), True),
        (Budgets(total_us=5), True),
        (Budgets(default={"tasks": 0}, total_us=5), True),
        (Budgets(default={"tasks": 0}, layers={"A": {"objects": 5, "busy_us": 5}}), True),
        (Budgets(layers={"A": {}}), True),
        *((Budgets(default={quantity: 0}), False) for quantity in COUNTED),
        (Budgets(layers={"A": {"tasks": 0}}), False),
        (Budgets(default={"tasks": 0, "bytes": 4096}, layers={"A": {"objects": 5}, "B": {}}), False),
    ],
)
def test_a_clock_is_needed_unless_every_budget_is_a_count(budgets: Budgets, clock: bool) -> None:
    assert budgets.need_clock is clock


def test_the_quantities_are_those_of_the_default_and_of_every_layer() -> None:
    budgets = Budgets(default={"us": 5}, layers={"A": {"tasks": 0}, "B": {"us": 5, "bytes": 1}})
    assert budgets.quantities == {"us", "tasks", "bytes"}
    assert Budgets(total_us=5).quantities == set()


# ---- names ------------------------------------------------------------------------------------------------------


def test_the_default_applies_to_middleware_and_not_to_routing() -> None:
    assert assign(Budgets(default={"us": 50}), STACK) == {index: {"us": 50} for index in (0, 1, 3, 4)}


def test_without_a_default_only_named_layers_have_a_budget() -> None:
    assert assign(Budgets(layers={"GZipMiddleware": {"us": 80}}), STACK) == {1: {"us": 80}}


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
    assert assign(Budgets(layers={name: {"us": 7}}), STACK) == {index: {"us": 7} for index in indexes}


@pytest.mark.parametrize("quantity", RECORDABLE)
@pytest.mark.parametrize("reverse", [False, True])
def test_the_more_exact_name_wins_in_any_order(reverse: bool, quantity: Quantity) -> None:
    names: dict[str, Bounds] = {"Noop": {quantity: 1}, "shop.asgi:Noop": {quantity: 2}, "Noop#2": {quantity: 3}}
    ordered = {name: names[name] for name in sorted(names, reverse=reverse)}
    bounds = assign(Budgets(default={quantity: 50}, layers=ordered), STACK)
    assert bounds == {0: {quantity: 2}, 1: {quantity: 50}, 3: {quantity: 3}, 4: {quantity: 50}}


@pytest.mark.parametrize("reverse", [False, True])
def test_the_more_exact_name_wins_for_its_quantities_only(reverse: bool) -> None:
    names: dict[str, Bounds] = {"Noop": {"us": 1, "tasks": 1, "bytes": 1}, "Noop#2": {"tasks": 3}}
    ordered = {name: names[name] for name in sorted(names, reverse=reverse)}
    bounds = assign(Budgets(layers=ordered), STACK)
    assert bounds == {0: {"us": 1, "tasks": 1, "bytes": 1}, 3: {"us": 1, "tasks": 3, "bytes": 1}}


def test_a_named_layer_keeps_the_defaults_of_the_quantities_that_its_name_does_not_mention() -> None:
    bounds = assign(Budgets(default={"us": 50, "tasks": 0}, layers={"GZipMiddleware": {"tasks": 2, "bytes": 9}}), STACK)
    assert bounds[1] == {"us": 50, "tasks": 2, "bytes": 9}
    assert bounds[0] == {"us": 50, "tasks": 0}
    assert 2 not in bounds


def test_no_layer_shares_its_bounds_with_another() -> None:
    default: dict[Quantity, float] = {"us": 50}
    bounds = assign(Budgets(default=default, layers={"Noop#1": {"tasks": 0}}), STACK)
    assert bounds[3] == default == {"us": 50}


@pytest.mark.parametrize(
    ("layers", "us", "tasks"),
    [
        ({}, False, False),
        ({"Noop": {"us": 5}}, True, False),
        ({"shop.asgi:Noop": {"tasks": 0}}, False, True),
        ({"Noop": {"us": 5}, "Noop#1": {"tasks": 0}}, True, True),
        ({"GZipMiddleware": {"us": 5, "tasks": 0}}, False, False),
    ],
)
def test_a_layer_is_named_for_the_quantities_that_stand_by_a_name_of_its(
    layers: dict[str, Bounds], us: bool, tasks: bool
) -> None:
    budgets = Budgets(default={"us": 50, "tasks": 9}, layers=layers)
    assert named(budgets, STACK[0], "us") is us
    assert named(budgets, STACK[0], "tasks") is tasks


def test_none_takes_the_default_of_a_quantity_away_from_a_named_layer() -> None:
    budgets = Budgets({"us": 50, "tasks": 0}, {"GZipMiddleware": {"us": None}, "Noop": {"us": None, "tasks": None}})
    bounds = assign(budgets, STACK)
    assert bounds[1] == {"tasks": 0}
    assert not {layer.index for layer in STACK if "Noop" in layer.aliases}.intersection(bounds)
    assert not named(budgets, STACK[1], "us")


def test_the_more_exact_name_takes_away_what_the_less_exact_one_gives() -> None:
    bounds = assign(Budgets(layers={"Noop#1": {"us": None}, "Noop": {"us": 80}}), STACK)
    assert list(bounds.values()) == [{"us": 80}]


def test_a_name_that_only_takes_away_need_not_match() -> None:
    default = {"us": 50}
    everywhere = assign(Budgets(default), STACK)
    assert assign(Budgets(default, {"Elsewhere": {"us": None}}), STACK) == everywhere
    with pytest.raises(LayerNameError):
        assign(Budgets(default, {"Elsewhere": {"us": None, "tasks": 1}}), STACK)


def test_what_is_taken_away_needs_no_clock() -> None:
    assert not Budgets({"tasks": 0}, {"GZipMiddleware": {"us": None}}).need_clock


def test_a_name_that_matches_nothing_is_an_error_with_the_near_miss_and_the_names() -> None:
    with pytest.raises(LayerNameError) as caught:
        assign(Budgets(layers={"GzipMidleware": {"us": 80}}), STACK)
    message = str(caught.value)
    assert "'GzipMidleware'" in message
    assert "Did you mean 'GZipMiddleware'?" in message
    assert "Noop#1, GZipMiddleware, Mount, Noop#2, function[shop.asgi.outer]" in message


def test_a_name_unlike_any_other_has_no_near_miss() -> None:
    with pytest.raises(LayerNameError, match=r"'Zzz' that is not in the stack\. The layers are: Noop#1"):
        assign(Budgets(layers={"Zzz": {"us": 80}}), STACK)


def test_a_named_layer_in_an_empty_stack_is_an_error() -> None:
    with pytest.raises(LayerNameError, match="The stack has no layers"):
        assign(Budgets(layers={"Noop": {"us": 80}}), [])
