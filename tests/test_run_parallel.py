"""Under pytest-run-parallel a test whose requests are measured runs in one thread. `test_suites.py` runs the plugin."""

from __future__ import annotations

import pytest

# What pytest-run-parallel has: its option, its marker, and its hook, which wraps tests once they are collected.
PLUGIN = """
import pytest


def pytest_addoption(parser):
    parser.addoption("--parallel-threads", dest="parallel_threads")


def pytest_configure(config):
    config.addinivalue_line("markers", "thread_unsafe: runs in one thread")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session):
    unsafe = [item.name for item in session.items if item.get_closest_marker("thread_unsafe")]
    print("in one thread:", *unsafe, ".")
"""

TESTS = """
import pytest


def test_fixture(mw_budget): ...


@pytest.mark.mw_budget(us=50)
def test_marked(): ...


def test_other(): ...
"""


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), "test_fixture"),
        (("--mw-budget",), "test_fixture test_marked"),
        (("--mw-budget-survey",), "test_fixture test_marked test_other"),
    ],
)
def test_tests_that_are_measured_run_in_one_thread(
    pytester: pytest.Pytester, options: tuple[str, ...], expected: str
) -> None:
    pytester.makeconftest(PLUGIN)
    pytester.makepyfile(TESTS)
    result = pytester.runpytest("-p", "no:run-parallel", "--strict-markers", "--collect-only", *options)
    result.stdout.fnmatch_lines([f"*in one thread: {expected} ."])


def test_nothing_is_marked_without_the_plugin(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TESTS)
    result = pytester.runpytest("-p", "no:run-parallel", "--strict-markers", "--collect-only", "--mw-budget")
    assert result.ret == 0
