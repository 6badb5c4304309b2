"""An unmarked run imports nothing heavy. import-linter checks the imports between folders, see pyproject.toml."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import pytest_mwbudget

pytestmark = pytest.mark.once

PACKAGE = Path(pytest_mwbudget.__file__).parent
PUBLIC = [getattr(pytest_mwbudget, name) for name in pytest_mwbudget.__all__]
RESULTS = [kind for kind in PUBLIC if kind.__module__.startswith("pytest_mwbudget.model.")]
HEAVY = ("httpx", "httpx2", "anyio", "asgi_lifespan", "starlette", "fastapi", "pyinstrument", "hypothesis", "filelock")


def in_a_fresh_interpreter(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=PACKAGE.parent
    ).stdout


def loaded_after(statement: str) -> set[str]:
    return set(in_a_fresh_interpreter(f"{statement}\nimport sys\nprint('\\n'.join(sys.modules))").split())


def test_the_plugin_imports_nothing_but_itself_and_what_pytest_imports() -> None:
    loaded = loaded_after("import pytest, pytest_mwbudget.plugin") - loaded_after("import pytest")
    assert loaded == {"pytest_mwbudget", "pytest_mwbudget.plugin"}


def test_every_folder_is_in_the_wheel() -> None:
    project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text(encoding="utf-8"))
    folders = {path.parent.relative_to(PACKAGE.parent) for path in PACKAGE.rglob("*.py")}
    assert {".".join(folder.parts) for folder in folders} <= set(project["tool"]["setuptools"]["packages"])


@pytest.mark.parametrize(
    "name",
    [
        "errors",
        "model.results",
        "analysis.estimates",
        "analysis.verdicts",
        "config.settings",
        "session.artifacts",
        "storage.codec",
        "__main__",
        *(f"report.{name}" for name in ("benchmark", "github", "junit", "markdown", "terminal", "view")),
    ],
)
def test_what_needs_no_app_imports_nothing_heavy(name: str) -> None:
    assert loaded_after(f"import pytest_mwbudget.{name}").isdisjoint({*HEAVY, "pytest", "asyncio"})


def test_every_public_name_can_be_imported_from_the_package_root() -> None:
    for name in {*pytest_mwbudget.__all__} - {"LayerReport"}:
        assert getattr(pytest_mwbudget, name).__name__ == name
    assert pytest_mwbudget.LayerReport is pytest_mwbudget.ResultRow


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Layerr'"):
        pytest_mwbudget.Layerr  # noqa: B018


@pytest.mark.parametrize("kind", RESULTS, ids=lambda kind: kind.__name__)
def test_a_test_cannot_change_a_result(kind: type[Any]) -> None:
    found = object.__new__(kind)
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(found, dataclasses.fields(kind)[0].name, None)
