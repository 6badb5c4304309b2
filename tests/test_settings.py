"""Markers, command line, configuration and defaults: precedence and error messages."""

from __future__ import annotations

import math
from typing import Any

import pytest

import pytest_mwbudget.config.checks
from pytest_mwbudget.config.budgets import Bounds, Budgets
from pytest_mwbudget.config.settings import MARKER_KEYS, Settings, merge
from pytest_mwbudget.errors import SettingError
from pytest_mwbudget.model.quantities import COUNTED, RPS_SHARE, budgeted

BUDGETED = tuple(quantity for quantity in budgeted("layer") if quantity != RPS_SHARE)


@pytest.fixture(autouse=True)
def every_loop_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment in which every event loop is installed."""
    monkeypatch.setattr(pytest_mwbudget.config.checks, "find_spec", lambda name: object())


def field_of(settings: Settings, key: str) -> object:
    """Return the value of the field that a keyword sets."""
    budgets = settings.budgets
    if key in BUDGETED:
        return dict(budgets.default).get(key)
    return {
        "total_us": budgets.total_us,
        "outside_us": budgets.outside_us,
        "endpoint_us": budgets.endpoint_us,
        "rps_share": dict(settings.load_budgets.default).get(RPS_SHARE),
        "p99_ms": settings.p99_ms,
        "load_time": settings.load_time_s,
        "expect_status": settings.expect_status,
        "repeat": settings.repeat,
        "lifespan": settings.lifespan,
        "loop": settings.loop,
        "trend": settings.trend,
        "max_time": settings.max_time_s,
        "undecided": settings.when_undecided,
        "startup_timeout": settings.startup_timeout_s,
    }[key]


# For each keyword: the value of the closest marker, of a wider marker, of the configuration, and the default.
LADDER: list[tuple[str, object, object, object, object]] = [
    *((quantity, 10, 20, 30, None) for quantity in BUDGETED if quantity not in COUNTED),
    *((quantity, 0, 2, 3, None) for quantity in COUNTED),
    ("total_us", 100, 200, 300, None),
    ("outside_us", 100, 200, 300, None),
    ("endpoint_us", 100, 200, 300, None),
    ("rps_share", 0.05, 0.1, 0.2, None),
    ("p99_ms", 10.0, 20.0, 30.0, None),
    ("load_time", 1.0, 2.0, 3.0, 10.0),
    ("expect_status", 401, 404, 500, None),
    ("repeat", ("POST",), ("PUT",), ("PATCH", "PUT"), ()),
    ("lifespan", False, True, True, True),
    ("loop", "trio", "uvloop", "asyncio", None),
    ("trend", True, False, True, False),
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


def test_every_keyword_of_the_marker_is_in_the_ladder() -> None:
    assert {key for key, *_ in LADDER} == set(MARKER_KEYS) - {"layers", "endpoint"}


def test_keys_are_merged_one_by_one() -> None:
    merged = merge([{"us": 10}, {"us": 20, "max_time": 2}], {"max_time": "3", "undecided": "fail"})
    assert merged == Settings(Budgets({"us": 10}), max_time_s=2.0, when_undecided="fail", when_uncountable="fail")


def test_quantities_are_merged_one_by_one() -> None:
    merged = merge([{"tasks": 0}, {"tasks": 5, "objects": 20}], {"objects": "30", "bytes": "16 KiB", "us": "9"})
    assert merged.budgets == Budgets({"tasks": 0, "objects": 20, "bytes": 16 * 1024, "us": 9.0})


def test_nothing_said_means_the_defaults() -> None:
    assert merge([], {}) == Settings()


@pytest.mark.parametrize(("key", "closest", "wider", "configured", "default"), LADDER)
def test_none_in_a_marker_takes_away_what_wider_places_say(
    key: str, closest: object, wider: object, configured: object, default: object
) -> None:
    assert field_of(merge([{key: None}, {key: wider}], {key: configured}), key) == default
    assert field_of(merge([{key: None}], {key: configured}), key) == default
    assert field_of(merge([{key: closest}, {key: None}, {key: wider}], {}), key) == closest


def test_without_its_inherited_budgets_of_time_a_test_needs_no_clock() -> None:
    wider = {"us": 30, "total_us": 90, "layers": {"A": 80, "B": {"us": 80, "tasks": 1}}}
    for closer in ({"layers": None}, {"layers": {"A": None, "B": {"us": None}}}):
        budgets = merge([{"tasks": 0, "us": None, "total_us": None, **closer}, wider], {"busy_us": None}).budgets
        assert not budgets.need_clock
        assert budgets.default == {"tasks": 0}


def test_none_for_all_layers_takes_away_every_inherited_budget_by_name() -> None:
    configured = {"layers": ["C = 3"]}
    assert merge([{"layers": None}, {"layers": {"A": 2}}], configured).budgets.layers == {}
    assert merge([{"layers": {"A": 1}}, {"layers": None}, {"layers": {"B": 2}}], configured).budgets.layers == {
        "A": {"us": 1.0}
    }


def test_none_for_a_layer_takes_its_inherited_budgets_away() -> None:
    wider = {"layers": {"A": {"us": 80, "tasks": 1}, "B": 2}}
    none: dict[str, float | None] = dict.fromkeys(BUDGETED)
    assert merge([{"layers": {"A": None}}, wider], {}).budgets.layers == {"A": none, "B": {"us": 2.0}}
    assert merge([{"layers": {"A": {"us": None}}}, wider], {}).budgets.layers == {
        "A": {"us": None, "tasks": 1},
        "B": {"us": 2.0},
    }
    assert merge([{"layers": {"A": 5}}, {"layers": {"A": None}}, wider], {}).budgets.layers["A"] == none | {"us": 5.0}


def test_none_for_a_layer_takes_the_default_away_from_it() -> None:
    merged = merge([{"layers": {"A": None, "B": {"us": None, "tasks": 2}}}], {"us": 30, "objects": 100})
    assert merged.budgets.layers == {"A": dict.fromkeys(BUDGETED), "B": {"us": None, "tasks": 2}}
    assert merged.budgets.quantities == {"us", "objects", "tasks"}


def test_zero_in_a_marker_says_something() -> None:
    assert merge([{"tasks": 0}], {"tasks": 1}).budgets.default == {"tasks": 0}


def test_layers_are_merged_name_by_name() -> None:
    merged = merge([{"layers": {"A": 1}}, {"layers": {"A": 2, "B": 2}}], {"layers": ["B = 3", "C = 3"]})
    assert merged.budgets.layers == {"A": {"us": 1.0}, "B": {"us": 2.0}, "C": {"us": 3.0}}


def test_layers_are_merged_quantity_by_quantity() -> None:
    merged = merge(
        [{"layers": {"A": {"tasks": 0}}}, {"layers": {"A": {"tasks": 2, "objects": 20}, "B": 2}}],
        {"layers": ["A = us: 3, objects: 30, bytes: 1 KiB", "B = tasks: 3"]},
    )
    assert merged.budgets.layers == {
        "A": {"tasks": 0, "objects": 20, "us": 3.0, "bytes": 1024},
        "B": {"us": 2.0, "tasks": 3},
    }


def test_a_layer_may_have_microseconds_or_bounds_by_quantity() -> None:
    merged = merge([{"layers": {"A": 80, "B": {"us": 80, "tasks": 0, "bytes": "2 KiB"}, "C": {}}}], {})
    assert merged.budgets.layers == {"A": {"us": 80.0}, "B": {"us": 80.0, "tasks": 0, "bytes": 2048}, "C": {}}


@pytest.mark.parametrize("quantity", BUDGETED)
def test_every_quantity_can_stand_by_the_name_of_a_layer(quantity: str) -> None:
    expected = {"A": {quantity: 7}}
    assert merge([{"layers": {"A": {quantity: 7}}}], {}).budgets.layers == expected
    assert merge([], {"layers": [f"A = {quantity}: 7"]}).budgets.layers == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("A = 80", {"A": {"us": 80.0}}),
        ("A=80", {"A": {"us": 80.0}}),
        ("B = us: 80, tasks: 0", {"B": {"us": 80.0, "tasks": 0}}),
        ("B=us:80,tasks:0", {"B": {"us": 80.0, "tasks": 0}}),
        ("shop.asgi:Auth = bytes : 1.5 KiB", {"shop.asgi:Auth": {"bytes": 1536}}),
        ("BaseHTTPMiddleware[shop.f] = tasks: 3", {"BaseHTTPMiddleware[shop.f]": {"tasks": 3}}),
        ("Odd=Name = retained: 4", {"Odd=Name": {"retained": 4}}),
    ],
)
def test_a_line_says_the_same_as_a_mapping(line: str, expected: object) -> None:
    assert merge([], {"layers": [line]}).budgets.layers == expected


def test_configured_values_may_be_text() -> None:
    merged = merge(
        [],
        {
            "us": "50",
            "busy_us": "40",
            "objects": "300",
            "allocations": "400",
            "bytes": "16 KiB",
            "tasks": "0",
            "threads": "1",
            "retained": "2",
            "total_us": "400.5",
            "expect_status": "404",
            "lifespan": "off",
            "loop": "uvloop",
            "max_time": "2.5",
            "startup_timeout": "7",
            "layers": ["shop.asgi:Auth = 200", "Odd=Name = 4"],
        },
    )
    default = {"us": 50.0, "busy_us": 40.0, "objects": 300, "allocations": 400, "bytes": 16384}
    assert merged == Settings(
        Budgets(
            {**default, "tasks": 0, "threads": 1, "retained": 2},
            {"shop.asgi:Auth": {"us": 200.0}, "Odd=Name": {"us": 4.0}},
            400.5,
        ),
        expect_status=404,
        lifespan=False,
        loop="uvloop",
        max_time_s=2.5,
        startup_timeout_s=7.0,
    )


def complaint(markers: list[dict[str, Any]], configured: dict[str, Any] | None = None) -> str:
    with pytest.raises(SettingError) as caught:
        merge(markers, configured or {})
    return str(caught.value)


EXAMPLE = "layers={'GZipMiddleware': 80, 'AuthMiddleware': {'us': 50, 'tasks': 0}}"


@pytest.mark.parametrize(
    ("key", "value", "remedy"),
    [
        ("us", -1, "above 0, for example 50"),
        ("us", math.nan, "above 0, for example 50"),
        ("us", "fifty", "above 0, for example 50"),
        ("busy_us", 0, "above 0, for example 50"),
        *((quantity, -1, "a whole number per request from 0 on") for quantity in COUNTED),
        ("tasks", 0.5, "a whole number per request from 0 on"),
        pytest.param("tasks", 10**400, "a whole number per request from 0 on", id="huge count"),
        pytest.param("bytes", f"1{'0' * 400} B", "KiB, MiB, GiB", id="huge size"),
        ("objects", "few", "a whole number per request from 0 on"),
        ("bytes", "16 KiBs", "KiB, MiB, GiB"),
        ("total_us", 0, "above 0, for example 50"),
        ("layers", 80, EXAMPLE),
        ("layers", "GZipMiddleware", EXAMPLE),
        ("layers", ["GZipMiddleware 80"], "NAME = MICROSECONDS"),
        ("layers", ["= 80"], "NAME = MICROSECONDS"),
        ("layers", ["GZipMiddleware: 80"], "NAME = QUANTITY: NUMBER"),
        ("layers", ["GZipMiddleware"], "NAME = QUANTITY: NUMBER"),
        ("layers", {42: 80}, "in quotes, for example 'GZipMiddleware'"),
        ("expect_status", 99, "from 100 to 599, for example 404"),
        ("expect_status", "ok", "from 100 to 599, for example 404"),
        ("expect_status", "²", "from 100 to 599, for example 404"),
        ("expect_status", True, "from 100 to 599, for example 404"),
        ("lifespan", "maybe", "True or False"),
        ("lifespan", 2, "True or False"),
        ("loop", "curio", "asyncio, uvloop, trio"),
        ("loop", 5, "asyncio, uvloop, trio"),
        ("loop", ["trio"], "asyncio, uvloop, trio"),
        ("max_time", 0, "above 0, for example 5"),
        ("max_time", "soon", "above 0, for example 5"),
        ("max_time", True, "above 0, for example 5"),
        ("max_time", math.inf, "above 0, for example 5"),
        ("max_time", 1e300, "at most 86400, which is a day"),
        ("max_time", 86401, "at most 86400, which is a day"),
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


@pytest.mark.parametrize(
    ("bounds", "place"),
    [
        ({"bytes": "16 KiBs"}, "['GZip']['bytes'] is '16 KiBs'"),
        ({"us": 0}, "['GZip']['us'] is 0"),
        ({"us": 5, "tasks": 1.5}, "['GZip']['tasks'] is 1.5"),
    ],
)
def test_an_unusable_bound_of_a_layer_is_named_with_its_quantity(bounds: object, place: str) -> None:
    assert complaint([{"layers": {"GZip": bounds}}]).startswith(f"mw_budget marker: layers{place}")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "GZip = taks: 0",
            "mw_budget_layers: GZip has a budget of 'taks'. Did you mean 'tasks'? The quantities are: us,",
        ),
        ("GZip = tasks: few", "mw_budget_layers: GZip['tasks'] is 'few'; give a whole number"),
        ("GZip = tasks:", "mw_budget_layers: GZip['tasks'] is ''; give a whole number"),
        ("GZip = us: 5,", "mw_budget_layers: GZip has a budget of ''."),
        ("GZip = us: 5, 6", "mw_budget_layers: GZip has a budget of '6'."),
        ("GZip = 5, tasks: 6", "mw_budget_layers: GZip has a budget of '5'."),
        ("GZip = 16 KiB", "mw_budget_layers: GZip is '16 KiB', which is not a number"),
        ("GZip =", "mw_budget_layers: GZip is '', which is not a number"),
        ("Noop = tasks: 0", "mw_budget_layers has two lines for 'Noop'; write one line with all budgets"),
        ("GZip = us: 5, us: 6", "mw_budget_layers: GZip is 'us: 5, us: 6', with two budgets of one quantity"),
    ],
)
def test_a_line_that_cannot_be_read_is_named_with_what_is_wrong(line: str, message: str) -> None:
    assert complaint([], {"layers": ["Noop = 5", line]}).startswith(message)


def test_a_quantity_that_does_not_exist_has_its_near_miss_and_the_quantities() -> None:
    message = complaint([{"layers": {"GZip": {"object": 5}}}])
    assert "layers['GZip'] has a budget of 'object'. Did you mean 'objects'?" in message
    assert all(quantity in message for quantity in BUDGETED)


@pytest.mark.parametrize("said", [{"serialize": {"rps_share": "5%"}}, ["serialize = rps_share: 5%"]])
def test_a_part_of_the_endpoint_has_no_share_of_the_requests_per_second(said: object) -> None:
    message = complaint([{"endpoint": said}])
    assert "serialize" in message
    assert "has a budget of 'rps_share'. The quantities are: us," in message


@pytest.mark.parametrize("bounds", [[5], "much", True])
def test_bounds_that_are_no_mapping_must_be_microseconds(bounds: object) -> None:
    message = complaint([{"layers": {"GZip": bounds}}])
    assert message.startswith(f"mw_budget marker: layers['GZip'] is {bounds!r}, which is not a number")


def test_a_misspelt_choice_has_its_near_miss() -> None:
    assert "Did you mean 'warn'?" in complaint([{"undecided": "wran"}])
    assert "Did you mean 'uvloop'?" in complaint([{"loop": "uvlop"}])


@pytest.mark.parametrize("loop", ["asyncio", "uvloop", "trio"])
def test_an_installed_loop_can_be_chosen(loop: str) -> None:
    assert merge([{"loop": loop}], {}).loop == loop


@pytest.mark.parametrize("loop", ["uvloop", "trio"])
def test_a_loop_that_is_not_installed_is_an_error_with_the_remedy(loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = {"asyncio": object()}
    monkeypatch.setattr(pytest_mwbudget.config.checks, "find_spec", installed.get)
    for place, message in [
        ("mw_budget marker: loop", complaint([{"loop": loop}])),
        ("mw_budget_loop", complaint([], {"loop": loop})),
    ]:
        assert message.startswith(f"{place} is {loop!r}, but {loop} is not installed here")
        assert f"pip install {loop}" in message
        assert "asyncio, uvloop, trio" in message
    assert merge([{"loop": "asyncio"}], {"loop": loop}).loop == "asyncio"


def test_an_unknown_keyword_is_named_with_its_near_miss_and_the_keywords() -> None:
    message = complaint([{"totl_us": 50}])
    assert "'totl_us'" in message
    assert "Did you mean 'total_us'?" in message
    assert all(key in message for key in MARKER_KEYS)


def test_the_startup_timeout_is_bounded_as_the_time_for_a_request_is() -> None:
    assert "at most 86400" in complaint([], {"startup_timeout": "1e300"})
    assert merge([], {"startup_timeout": "86400"}).startup_timeout_s == 86400


def test_what_cannot_be_counted_fails_unless_somebody_said_what_to_do_about_undecided_budgets() -> None:
    assert merge([], {}).when_uncountable == "fail"
    assert merge([{"undecided": "warn"}], {}).when_uncountable == "warn"
    assert merge([], {"undecided": "warn"}).when_uncountable == "warn"
    assert merge([{"undecided": None}], {"undecided": "pass"}).when_uncountable == "fail"


def test_the_startup_timeout_is_for_the_configuration_only() -> None:
    assert merge([], {"startup_timeout": 3}).startup_timeout_s == 3
    assert "unknown keyword 'startup_timeout'" in complaint([{"startup_timeout": 3}])


def test_a_wrong_value_that_is_overridden_does_not_matter() -> None:
    assert merge([{"us": 10}], {"us": "fifty"}).budgets.default == {"us": 10}


@pytest.mark.parametrize("timed", [None, True, False])
@pytest.mark.parametrize("default", [{}, {"us": 50}, {"tasks": 0}])
def test_what_is_not_timed_for_all_budgets_is_not_timed_for_some(timed: bool | None, default: Bounds) -> None:
    settings = Settings(Budgets(default), timed=timed)
    for budgets in (Budgets(), Budgets({"objects": 1}), Budgets({"us": 1})):
        narrowed = settings.narrowed(budgets)
        assert narrowed.budgets == budgets
        assert not narrowed.need_clock or settings.need_clock
        assert narrowed.need_clock == (settings.need_clock and Settings(budgets, timed=timed).need_clock)
