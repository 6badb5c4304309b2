"""What docs/reference/public-names.md promises is there, and nothing public is missing on it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import pytest_mwbudget
from pytest_mwbudget import __main__, plugin
from pytest_mwbudget.config import table

pytestmark = pytest.mark.once

PAGE = (Path(__file__).parent.parent / "docs" / "reference" / "public-names.md").read_text(encoding="utf-8")


def listed(title: str) -> set[str]:
    """Return the names of the block below a title of the page."""
    found = re.search(rf"^## {re.escape(title)}\n(?:(?!^## ).*\n)*?```text\n((?:.*\n)*?)```", PAGE, re.MULTILINE)
    assert found is not None, f"{title} lists nothing"
    return set(found[1].split())


def of_settings(place: str) -> Iterator[str]:
    """Yield the names that settings have at a place."""
    for name, setting in table.SETTINGS.items():
        if place in setting.places:
            yield {table.MARKER: name, table.OPTION: setting.flag, table.INI: setting.key}[place]


def test_names_to_import() -> None:
    assert listed("To import") == set(pytest_mwbudget.__all__)
    for name in listed("To import"):
        assert getattr(pytest_mwbudget, name).__name__ in (name, "ResultRow")  # LayerReport is another name for it


def test_fixtures() -> None:
    fixtures = {name for name, value in vars(plugin).items() if type(value).__name__ == "FixtureFunctionDefinition"}
    # pytest 8.2 and 8.3 make functions of fixtures.
    assert fixtures == listed("Fixtures") or not fixtures
    assert all(hasattr(plugin, name) for name in listed("Fixtures"))


def test_keywords_of_the_marker() -> None:
    assert listed("Keywords of the marker") == set(of_settings(table.MARKER))


def test_options(pytestconfig: pytest.Config) -> None:
    own = {"--mw-budget", "--mw-budget-survey", "--mw-budget-update"}
    assert listed("Options of pytest") == {*own, *of_settings(table.OPTION)}
    for option in listed("Options of pytest"):
        pytestconfig.getoption(option)


def test_keys_of_the_configuration(pytestconfig: pytest.Config) -> None:
    assert listed("Keys of pytest's configuration") == {"mw_budget", *of_settings(table.INI)}
    for key in listed("Keys of pytest's configuration"):
        pytestconfig.getini(key)


@pytest.mark.parametrize("command", sorted(listed("Commands")))
def test_commands(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        __main__.main([command, "--help"])
    assert f"mwbudget {command}" in capsys.readouterr().out


def test_every_command_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        __main__.main(["--help"])
    assert set(re.findall(r"^    (\w+) ", capsys.readouterr().out, re.MULTILINE)) == listed("Commands")


def test_the_schema() -> None:
    from pytest_mwbudget.storage import codec

    assert f'"schema": "{codec.SCHEMA}"' in PAGE
