"""Fixtures for all tests; measuring helpers are in `tests/apps.py`."""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pkgutil import walk_packages
from tempfile import TemporaryDirectory

import pytest

import pytest_mwbudget
from pytest_mwbudget.timing import host_speed

from .apps import frozen_functions
from .readings import repeated

pytest_plugins = ["pytester", "tests.browser"]

# pytester forgets the modules that an inner run imports. Those imported here are not imported again in each run.
USED = ["jinja2", "pyinstrument.renderers", "starlette.middleware.base", "starlette.testclient"]
USED += [module.name for module in walk_packages(pytest_mwbudget.__path__, "pytest_mwbudget.")]
for _name in USED:
    if not _name.endswith("__main__"):
        import_module(_name)


def required(group: str) -> bool:
    """Tell whether all tests of this dependency group must run."""
    return os.environ.get(f"MWBUDGET_REQUIRE_{group.upper()}", "") not in ("", "0")


def needs(package: str, reason: str, group: str = "bench") -> None:
    """Skip without a package of this dependency group; fail if MWBUDGET_REQUIRE_<group> is set."""
    # Not imported: pytester forgets modules that a test imports, and some packages bear no second import.
    with suppress(ModuleNotFoundError):
        if find_spec(package) is not None:
            return
    if not required(group):
        pytest.skip(reason, allow_module_level=True)
    pytest.fail(f"there is no {package}: {reason} (pip install -e . --group {group})", pytrace=False)


@pytest.fixture(autouse=True, scope="module")
def a_small_heap() -> Iterator[None]:
    """Freeze the objects of the test run: a measurement looks at every object that is not frozen.

    They stay frozen for the next module, because collecting all objects of a run takes a quarter of a second.
    """
    gc.collect()
    gc.freeze()
    yield
    frozen_functions.cache_clear()


@pytest.fixture(autouse=True, scope="session")
def _turns_of_its_own() -> Iterator[None]:
    """Give this worker locks of its own: tests must not wait for the measurements of other workers or runs."""
    with TemporaryDirectory(prefix="mwbudget-") as folder, pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield


@pytest.fixture(autouse=True, scope="session")
def _alone_on_its_core() -> Iterator[None]:
    """Keep measurements from seeing that their core is shared. Tests of the machine's speed set what they see."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(host_speed, "_pipeline", None)
        yield


@pytest.fixture(autouse=True)
def _not_on_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unset the variables that make pytest print more; tests of these variables set them."""
    for name in ("CI", "BUILD_NUMBER"):
        monkeypatch.delenv(name, raising=False)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in repeated:
        terminalreporter.write_line(f"repeated: {line}")
