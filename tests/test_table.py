"""The table of settings: each entry works in every place that it names, and is rejected elsewhere."""

from __future__ import annotations

from typing import Any, get_args, get_type_hints

import pytest

from pytest_mwbudget.config.checks import check
from pytest_mwbudget.config.settings import Settings, merge
from pytest_mwbudget.config.table import INI, LISTS, MARKER, OPTION, SETTINGS, SWITCH, Setting
from pytest_mwbudget.errors import SettingError
from pytest_mwbudget.model.quantities import RECORDABLE

from .apps import Scheduled, run_inside

# A value that is no default, for each kind without choices.
UNUSUAL: dict[str, object] = {
    "MICROSECONDS": "7",
    "COUNT": "7",
    "SIZE": "7 KiB",
    "STATUS": "404",
    "SECONDS": "7",
    "LINES": ["A = 7"],
}
# Settings of the run, which no test has (tests/test_survey.py, tests/test_plugin_compare.py).
OF_THE_RUN = ("survey_time", "compare")
IN_SETTINGS = [
    name
    for name, setting in SETTINGS.items()
    if (setting.kind in UNUSUAL or "|" in setting.kind) and name not in OF_THE_RUN
]

SHOP = """
async def app(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hello"})
"""
SKIPS = """
import pytest

@pytest.mark.mw_budget({keywords})
def test_it(mw_budget):
    pytest.skip("its settings are known")
"""
REQUESTS = """
import pytest

@pytest.mark.mw_budget(tasks=0, lifespan=False, undecided='pass')
def test_it(mw_budget):
    assert mw_budget.get("/").response.text == "hello"
"""


class Seen:
    """A plugin that records the settings of each test."""

    def __init__(self) -> None:
        self.settings: list[Settings] = []

    def pytest_runtest_teardown(self, item: Any) -> None:
        self.settings.append(item.funcargs["mw_budget"].settings)


def run(pytester: pytest.Pytester, test: str, *arguments: str, ini: str = "", seen: Seen) -> pytest.RunResult:
    pytester.makepyfile(test, shop=SHOP)
    pytester.makeini(f"[pytest]\n{ini}\n")
    return run_inside(
        pytester, "--mw-budget", "--strict-config", *arguments, plugins=[seen, Scheduled(profile_samples=10)]
    )


def unusual(setting: Setting) -> Any:
    """Return a value that is not the default, as text."""
    choices = (choice for choice in setting.kind.split("|") if choice != str(setting.default).lower())
    return UNUSUAL.get(setting.kind) or next(choices)


@pytest.mark.parametrize("name", IN_SETTINGS)
def test_a_setting_changes_what_a_test_runs_with(name: str) -> None:
    assert merge([], {name: unusual(SETTINGS[name])}) != Settings()


@pytest.mark.parametrize("place", [MARKER, OPTION, INI])
def test_every_setting_works_in_each_place_that_it_names(pytester: pytest.Pytester, place: str) -> None:
    values = {name: unusual(SETTINGS[name]) for name in IN_SETTINGS if place in SETTINGS[name].places}
    keywords = ", ".join(f"{name}={value!r}" for name, value in values.items()) if place == MARKER else ""
    flags = {name: SETTINGS[name].flag for name in values}
    options = [flags[name] if SETTINGS[name].kind == SWITCH else f"{flags[name]}={values[name]}" for name in values]
    options = options if place == OPTION else []
    lines = {name: "\n    ".join(["", *value]) if isinstance(value, list) else value for name, value in values.items()}
    ini = "\n".join(f"{SETTINGS[name].key} = {value}" for name, value in lines.items()) if place == INI else ""
    seen = Seen()
    run(pytester, SKIPS.format(keywords=keywords), *options, ini=ini, seen=seen).assert_outcomes(skipped=1)
    assert seen.settings == [merge([], values)]


@pytest.mark.parametrize("place", [OPTION, INI])
def test_every_path_of_the_table_is_written_to(pytester: pytest.Pytester, place: str) -> None:
    settings = [setting for setting in SETTINGS.values() if setting.kind == "PATH" and place in setting.places]
    options = [f"{setting.flag}=there-{setting.name}" for setting in settings] if place == OPTION else []
    lines = [f"{setting.key} = there-{setting.name}" for setting in settings] if place == INI else []
    ini = "\n".join(["mw_budget_app = shop:app", *lines])
    run(pytester, REQUESTS, "--mw-budget-flamegraph=always", *options, ini=ini, seen=Seen()).assert_outcomes(passed=1)
    there = {path.name for path in pytester.path.glob("there-*")}
    assert there == {f"there-{setting.name}" for setting in settings}


def test_every_setting_is_refused_in_the_places_that_it_does_not_name(pytester: pytest.Pytester) -> None:
    options = [f"{setting.flag}=x" for setting in SETTINGS.values() if OPTION not in setting.places]
    with pytest.raises(pytest.UsageError, match=f"unrecognized arguments: {' '.join(options)}"):
        pytester.parseconfig(*options)
    config = pytester.parseconfig()
    for name, setting in SETTINGS.items():
        if MARKER not in setting.places:
            with pytest.raises(SettingError, match=f"unknown keyword '{name}'"):
                merge([{name: "x"}], {})
        if INI not in setting.places:
            with pytest.raises(ValueError, match=f"unknown configuration value: '{setting.key}'"):
                config.getini(setting.key)


def test_every_quantity_is_in_the_table() -> None:
    assert tuple(name for name in SETTINGS if name in RECORDABLE) == RECORDABLE


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
def test_a_default_passes_its_own_check(setting: Setting) -> None:
    if setting.name in (*IN_SETTINGS, *OF_THE_RUN) and setting.default is not None:
        assert check(setting.name, setting.default, "the table") == setting.default


def test_the_choices_in_the_table_are_those_of_the_types() -> None:
    types = get_type_hints(Settings)
    for name, field in (("undecided", "when_undecided"), ("flamegraph", "flamegraph")):
        assert set(SETTINGS[name].kind.split("|")) == set(get_args(types[field]))
    loop, _ = get_args(types["loop"])
    assert set(SETTINGS["loop"].kind.split("|")) == set(get_args(loop))


def test_help_shows_every_setting(pytester: pytest.Pytester) -> None:
    help_text = " ".join(run_inside(pytester, "--help").stdout.str().split())
    for setting in SETTINGS.values():
        if OPTION in setting.places:
            assert (setting.flag if setting.kind == SWITCH else f"{setting.flag}={setting.kind}") in help_text
        if INI in setting.places:
            assert f"{setting.key} ({'linelist' if setting.kind in LISTS else 'string'})" in help_text
