"""Logs and output: pytest keeps those of the first request, not those of repeated requests."""

from __future__ import annotations

import re
from typing import Any

import pytest

import pytest_mwbudget.session.captured_output

from .apps import Scheduled, needs, run_inside

APP = """
import logging
import sys
import warnings

import pytest

log = logging.getLogger("access")
calls = []


class Talks:
    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        calls.append(1)
        log.warning("log %d", len(calls))
        warnings.warn("old", DeprecationWarning)
        print("out", len(calls))
        print("err", len(calls), file=sys.stderr)
        await self.app(scope, receive, send)


async def hello(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"ok"})


@pytest.fixture
def mw_budget_app():
    calls.clear()
    return Talks(hello)
"""
# The first lines of a file with tests that have budgets of counts only.
HEAD = """
import contextlib
import io
import logging
import unittest
import warnings

import pytest
import pytest_mwbudget
from conftest import log
from pytest_mwbudget.session import captured_output

pytestmark = pytest.mark.mw_budget(tasks=0, lifespan=False)

"""
ONE_REQUEST = """
def test_it(mw_budget):
    mw_budget.get("/")
"""


@pytest.fixture
def talking(pytester: pytest.Pytester) -> pytest.Pytester:
    """A directory with an app that logs and prints."""
    pytester.makeconftest(APP)
    return pytester


def run(pytester: pytest.Pytester, tests: str, *options: str) -> pytest.RunResult:
    """Run tests, each with about 130 requests, on a busy machine too."""
    pytester.makepyfile(HEAD + tests)
    schedule = Scheduled(brief_warm_ns=60 * 10**9, counting_ns=60 * 10**9)
    return run_inside(pytester, "--mw-budget", *options, plugins=[schedule])


OF_ITS_REQUEST = r"""
def test_only_the_first_request_is_in_caplog(mw_budget, caplog):
    log.warning("before")
    mw_budget.get("/")
    log.warning("after")
    assert [record.getMessage() for record in caplog.records] == ["before", "log 1", "after"]


def test_a_logger_that_does_not_propagate_has_a_handler_of_pytest_too(mw_budget, caplog, monkeypatch):
    handlers = [one for one in logging.root.handlers if type(one).__module__ == "_pytest.logging"]
    monkeypatch.setattr(log, "propagate", False)
    monkeypatch.setattr(log, "handlers", handlers)
    levels = [one.level for one in handlers]
    mw_budget.get("/")
    assert [one.level for one in handlers] == levels
    assert [record.getMessage() for record in caplog.records] == ["log 1"]


def test_records_that_a_test_asserts_are_those_of_its_request(mw_budget):
    with unittest.TestCase().assertLogs("access") as logs:
        mw_budget.get("/")
    assert [record.getMessage() for record in logs.records] == ["log 1"]


def test_the_handlers_of_the_app_get_every_record(mw_budget, monkeypatch):
    got = []

    class Keeps(logging.Handler):
        def emit(self, record):
            got.append(record)

    monkeypatch.setattr(log, "handlers", [Keeps()])
    mw_budget.get("/")
    assert len(got) > 30


def test_only_the_first_warning_is_caught(mw_budget):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        mw_budget.get("/")
        assert warnings.filters[0][0] == "always"
    assert len(caught) == 1


@pytest.mark.parametrize("fixture", ["capsys", "capfd"])
def test_what_a_test_captures_itself_is_that_of_its_request(mw_budget, request, fixture):
    capture = request.getfixturevalue(fixture)
    print("before")
    mw_budget.get("/")
    print("after")
    captured = capture.readouterr()
    assert captured.out == "before\nout 1\nafter\n"
    assert captured.err == "err 1\n"
"""


def test_a_test_sees_the_logs_warnings_and_output_of_its_own_request(talking: pytest.Pytester) -> None:
    run(talking, OF_ITS_REQUEST).assert_outcomes(passed=7)


FAILING = r"""
def test_little_output(mw_budget, monkeypatch):
    monkeypatch.setattr(captured_output, "SHOWN_CHARACTERS", 1_000_000)
    mw_budget.get("/")
    assert False, "shown"


def test_a_line_that_is_longer_than_what_is_shown(mw_budget, monkeypatch):
    monkeypatch.setattr(captured_output, "SHOWN_CHARACTERS", 3)
    mw_budget.get("/")
    assert False, "shown"


def test_output_that_is_sent_elsewhere(mw_budget):
    print("before")
    with contextlib.redirect_stdout(io.StringIO()) as elsewhere:
        mw_budget.get("/")
    assert elsewhere.getvalue() == "out 1\n"
    assert False, "shown"


def test_a_repeated_request_that_fails(mw_budget, monkeypatch):
    handlers = [one for one in logging.root.handlers if type(one).__module__ == "_pytest.logging"]
    levels = [one.level for one in handlers]

    class Breaks(logging.Handler):
        def emit(self, record):
            if "25" in record.getMessage():
                raise LookupError("no such shelf")

    monkeypatch.setattr(log, "handlers", [Breaks()])
    with pytest.raises(pytest_mwbudget.MwBudgetError, match="call 25 raised LookupError"):
        mw_budget.get("/")
    assert [one.level for one in handlers] == levels
    assert False, "shown"
"""


def test_failing_reports_have_the_logs_of_the_first_request_and_the_output_of_all(talking: pytest.Pytester) -> None:
    result = run(talking, FAILING)
    result.assert_outcomes(failed=4)
    recorder: Any = result.reprec  # type: ignore[attr-defined]
    failed = recorder.getfailures("pytest_runtest_logreport")
    assert all("AssertionError: shown" in report.longreprtext for report in failed)
    little, long, elsewhere, broken = failed
    assert "log 1" in little.caplog
    # A record that no handler takes would go to stderr, Python's last resort.
    assert "log 2" not in result.stdout.str()
    assert "left out" not in little.capstdout + little.capstderr
    assert "out 1\nout 2\n" in little.capstdout
    assert re.search(r"left out here\]\n\d\d\n", long.capstdout)
    assert "before\n" in elsewhere.capstdout
    assert "out 24\n" in broken.capstdout


@needs("retained")
def test_a_layer_that_logs_leaves_nothing_behind(talking: pytest.Pytester) -> None:
    test = """
def test_it(mw_budget):
    talks = mw_budget.get("/").layer("Talks")
    assert talks.counts.retained.count == 0
"""
    run(talking, test).assert_outcomes(passed=1)


@pytest.mark.parametrize("capture", ["fd", "sys"])
def test_a_failing_report_has_the_first_output_and_the_end_of_the_rest(
    talking: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, capture: str
) -> None:
    monkeypatch.setattr(pytest_mwbudget.session.captured_output, "SHOWN_CHARACTERS", 100)
    test = """
def test_it(mw_budget):
    print("before")
    mw_budget.get("/")
    print("after")
    assert False
"""
    shown = run(talking, test, f"--capture={capture}").stdout.str()
    out = shown.partition("Captured stdout call")[2].partition("Captured stderr call")[0]
    err = shown.partition("Captured stderr call")[2]
    left_out = r"\[mw-budget: \d+ characters of repeated requests are left out here\]"
    assert re.search(rf"before\nout 1\n{left_out}\nout \d+\n(out \d+\n)+after\n", out)
    assert re.search(rf"err 1\n{left_out}\nerr \d+\n(err \d+\n)+", err)
    assert len(out) < 300


@pytest.mark.parametrize("options", [["-s"], ["--capture=tee-sys"], ["-p", "no:capture"]], ids=" ".join)
def test_what_is_shown_at_once_is_not_held_back(talking: pytest.Pytester, options: list[str]) -> None:
    result = run(talking, ONE_REQUEST, *options)
    assert result.ret == 0
    if options != ["-p", "no:capture"]:  # without capture, the output bypasses the inner run
        assert "out 30\n" in result.stdout.str()


def test_without_the_plugin_that_captures_logs(talking: pytest.Pytester) -> None:
    run(talking, ONE_REQUEST, "-p", "no:logging").assert_outcomes(passed=1)
