"""Markers, command line, configuration and defaults: who wins, and what the errors say."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pytest_mwbudget.budgets import Budgets
from pytest_mwbudget.errors import SettingError
from pytest_mwbudget.settings import MARKER_KEYS, Settings, merge


def field_of(settings: Settings, key: str) -> object:
    """The field that a keyword sets."""
    budgets = settings.budgets
    return {
        "us": budgets.us,
        "total_us": budgets.total_us,
        "expect_status": settings.expect_status,
        "lifespan": settings.lifespan,
        "max_time": settings.max_time_s,
        "undecided": settings.when_undecided,
        "startup_timeout": settings.startup_timeout_s,
    }[key]


# For each keyword: the closest value, a wider one, the configured one, the default.
LADDER: list[tuple[str, object, object, object, object]] = [
    ("us", 10, 20, 30, None),
    ("total_us", 100, 200, 300, None),
    ("expect_status", 401, 404, 500, None),
    ("lifespan", False, True, True, True),
    ("max_time", 1.0, 2.0, 3.0, 5.0),
    ("undecided", "fail", "pass", "pass", "warn"),
]


@pytest.mark.parametrize(("key", "closest", "wider", "configured", "default"), LADDER)
def test_the_closest_word_wins_for_each_key(
    key: str, closest: object, wider: object, configured: object, default: object
) -> None:
    assert field_of(merge([{key: closest}, {key: wider}], {key: configured}), key) == closest
    assert field_of(merge([{}, {key: wider}], {key: configured}), key) == wider
    assert field_of(merge([{}, {}], {key: configured}), key) == configured
    assert field_of(merge([{}], {key: None}), key) == default


def test_keys_are_merged_one_by_one() -> None:
    merged = merge([{"us": 10}, {"us": 20, "max_time": 2}], {"max_time": "3", "undecided": "fail"})
    assert merged == Settings(Budgets(us=10), max_time_s=2.0, when_undecided="fail")


def test_nothing_said_means_the_defaults() -> None:
    assert merge([], {}) == Settings()


def test_none_in_a_marker_says_nothing() -> None:
    assert merge([{"us": None}], {"us": 30}).budgets.us == 30


def test_layers_are_merged_name_by_name() -> None:
    merged = merge([{"layers": {"A": 1}}, {"layers": {"A": 2, "B": 2}}], {"layers": ["B = 3", "C = 3"]})
    assert merged.budgets.layers == {"A": 1.0, "B": 2.0, "C": 3.0}


def test_configured_values_may_be_text() -> None:
    merged = merge(
        [],
        {
            "us": "50",
            "total_us": "400.5",
            "expect_status": "404",
            "lifespan": "off",
            "max_time": "2.5",
            "startup_timeout": "7",
            "layers": ["shop.asgi:Auth = 200", "Odd=Name = 4"],
        },
    )
    assert merged == Settings(
        Budgets(50.0, {"shop.asgi:Auth": 200.0, "Odd=Name": 4.0}, 400.5),
        expect_status=404,
        lifespan=False,
        max_time_s=2.5,
        startup_timeout_s=7.0,
    )


def complaint(markers: list[dict[str, Any]], configured: dict[str, Any] | None = None) -> str:
    with pytest.raises(SettingError) as caught:
        merge(markers, configured or {})
    return str(caught.value)


@pytest.mark.parametrize(
    ("key", "value", "remedy"),
    [
        ("us", -1, "above 0, for example 50"),
        ("us", math.nan, "above 0, for example 50"),
        ("us", "fifty", "above 0, for example 50"),
        ("total_us", 0, "above 0, for example 50"),
        ("layers", 80, "layers={'GZipMiddleware': 80}"),
        ("layers", "GZipMiddleware", "layers={'GZipMiddleware': 80}"),
        ("layers", ["GZipMiddleware 80"], "NAME = MICROSECONDS"),
        ("layers", ["= 80"], "NAME = MICROSECONDS"),
        ("layers", {42: 80}, "in quotes, for example 'GZipMiddleware'"),
        ("expect_status", 99, "from 100 to 599, for example 404"),
        ("expect_status", "ok", "from 100 to 599, for example 404"),
        ("expect_status", "²", "from 100 to 599, for example 404"),
        ("expect_status", True, "from 100 to 599, for example 404"),
        ("lifespan", "maybe", "True or False"),
        ("lifespan", 2, "True or False"),
        ("max_time", 0, "above 0, for example 5"),
        ("max_time", "soon", "above 0, for example 5"),
        ("max_time", True, "above 0, for example 5"),
        ("max_time", math.inf, "above 0, for example 5"),
        pytest.param("max_time", 10**400, "above 0, for example 5", id="huge"),
        ("undecided", "wran", "warn, fail, pass"),
        ("undecided", ["warn"], "warn, fail, pass"),
    ],
)
def test_an_unusable_value_is_named_with_its_place_and_the_remedy(key: str, value: object, remedy: str) -> None:
    inner = value[0] if key == "layers" and isinstance(value, list) else value
    shown = repr(next(iter(inner))) if isinstance(inner, dict) else repr(inner)
    for place, message in [
        (f"mw_budget marker: {key}", complaint([{key: value}])),
        (f"mw_budget_{key}", complaint([], {key: value})),
    ]:
        assert message.startswith(place)
        assert shown in message
        assert remedy in message


def test_a_layer_with_an_unusable_budget_is_named() -> None:
    assert complaint([{"layers": {"GZip": -1}}]).startswith("mw_budget marker: layers['GZip'] is -1")
    assert complaint([], {"layers": ["GZip = x"]}).startswith("mw_budget_layers: GZip is 'x'")


def test_a_misspelt_choice_has_its_near_miss() -> None:
    assert "Did you mean 'warn'?" in complaint([{"undecided": "wran"}])


def test_an_unknown_keyword_is_named_with_its_near_miss_and_the_keywords() -> None:
    message = complaint([{"totl_us": 50}])
    assert "'totl_us'" in message
    assert "Did you mean 'total_us'?" in message
    assert all(key in message for key in MARKER_KEYS)


def test_the_startup_timeout_is_for_the_configuration_only() -> None:
    assert merge([], {"startup_timeout": 3}).startup_timeout_s == 3
    assert "unknown keyword 'startup_timeout'" in complaint([{"startup_timeout": 3}])


def test_a_wrong_value_that_is_overridden_does_not_matter() -> None:
    assert merge([{"us": 10}], {"us": "fifty"}).budgets.us == 10
