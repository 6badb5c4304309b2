"""What pytest loads in every run: options, marker, fixtures.

pytest imports this module in every run and inspects each of its names, so the module is small and has few. The rest is
in `session`: an option, an ini key or a test that takes the fixture imports it. Importing the table of settings would
take each run 4 ms, so `docs/tables.py` writes what pytest has to know of it into a file.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

    from .session.requests.client import MwBudget


def pytest_addoption(parser: pytest.Parser) -> None:
    switch = "measure the requests of marked tests and of the fixture mw_budget, and enforce their budgets"
    group = parser.getgroup("mw-budget", "per-request overhead of ASGI middleware layers")
    group.addoption("--mw-budget", action="store_true", default=None, help=switch)
    parser.addini("mw_budget", switch, type="bool")
    survey = "measure each distinct request that tests make with their own clients, marked or not, and print a summary"
    group.addoption("--mw-budget-survey", action="store_true", default=None, help=survey)
    update = "write the figures of this run to the file of limits, as --mw-budget-update-mode says"
    group.addoption("--mw-budget-update", action="store_true", default=None, help=update)
    for flag, about in _settings()["options"].items():
        group.addoption(flag, default=None, **about)
    for key, about in _settings()["keys"].items():
        parser.addini(key, **about)


@cache
def _settings() -> dict[str, Any]:
    """Return what the table of settings has for pytest: options and keys, each with its arguments, and keywords."""
    settings: dict[str, Any] = json.loads(Path(__file__).with_name("settings.json").read_text(encoding="utf-8"))
    return settings


def pytest_configure(config: pytest.Config) -> None:
    keywords = ", ".join(f"{name}=..." for name in _settings()["keywords"])
    config.addinivalue_line(
        "markers",
        f"mw_budget({keywords}): with --mw-budget, measure every middleware layer of the app on the requests that the"
        " test makes, with the fixture mw_budget or with its own client, and fail the test if a layer exceeds a budget;"
        " the marker closest to the test wins, and None removes an inherited value",
    )
    if _addressed(config):
        from .session.gate import configure as configure_gate
        from .session.summary import configure as configure_summary

        configure_gate(config)
        if config.getoption("mw_budget_survey"):
            from .session.survey import configure as configure_survey

            configure_survey(config)
        configure_summary(config)
    options = vars(config.option)
    if options.get("mw_budget_app") is not None or options.get("mw_budget_request") is not None:
        from .session.requests.collection import configure as configure_requests

        configure_requests(config)


def _addressed(config: pytest.Config) -> bool:
    """Whether the command line or the configuration sets anything of this plugin."""
    options = [value for name, value in vars(config.option).items() if name.startswith("mw_budget")]
    try:
        switch = config.getini("mw_budget")
    except (ValueError, pytest.UsageError) as error:  # neither names the key
        raise pytest.UsageError(f"mw_budget in the configuration: {error}; give true or false") from None
    return switch or any(value is not None for value in options) or any(map(config.getini, _settings()["keys"]))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # First, so that `pytest --mw-budget -m mw_budget` selects every test that takes the fixture. All tests of all runs
    # pass here: the check of each has to be cheap.
    for item in items:
        if "mw_budget" in getattr(item, "fixturenames", ()) and not item.get_closest_marker("mw_budget"):
            item.add_marker("mw_budget")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> Generator[None, None, None]:
    # Hooks round each test are registered only if a test needs them: otherwise every test would pay for them.
    if _used(session.items) or session.config.getoption("mw_budget_survey"):
        from .session.gate import prepare, take_part

        take_part(session.config)
        prepare(session.config, session.items)
    return (yield)


def _used(items: list[pytest.Item]) -> bool:
    """Whether a test is marked; tests that take the fixture are by now."""
    parents = {item.parent for item in items if item.parent}
    return any(marker.name == "mw_budget" for item in items for marker in item.own_markers) or any(
        parent.get_closest_marker("mw_budget") for parent in parents
    )


@pytest.fixture(scope="session")
def mw_budget_app(pytestconfig: pytest.Config) -> Any:
    """The ASGI app under test: override this fixture, or name the app by `mw_budget_app` or `--mw-budget-app`."""
    from .session.configuration import named_app

    return named_app(pytestconfig)


@pytest.fixture
def mw_budget(request: pytest.FixtureRequest, mw_budget_app: Any) -> MwBudget:
    """An HTTP client of the app under test: each request is measured when `--mw-budget` is on."""
    from .session.gate import client_for

    return client_for(request, mw_budget_app)
