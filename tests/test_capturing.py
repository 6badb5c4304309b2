"""Logs and output: pytest keeps those of the first request, not those of repeated requests."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator

import pytest

import pytest_mwbudget.session.captured_output

from .apps import LEAN, needs

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
    return Talks(hello)
"""


@pytest.fixture
def talking(pytester: pytest.Pytester) -> Iterator[pytest.Pytester]:
    """A directory with an app that logs and prints."""
    pytester.makeconftest(APP)
    logger = logging.getLogger("access")
    handlers, propagate = logger.handlers[:], logger.propagate
    yield pytester
    logger.handlers[:], logger.propagate = handlers, propagate


def run(pytester: pytest.Pytester, body: str, *options: str, fixtures: str = "mw_budget") -> pytest.RunResult:
    """Run one test with budgets of counts only: about 130 requests, on a busy machine at least 31."""
    lines = "\n    ".join(body.splitlines())
    pytester.makepyfile(
        "import contextlib\nimport io\nimport logging\nimport sys\nimport warnings\n\n"
        "import pytest\nimport pytest_mwbudget\nfrom conftest import log\n\n\n"
        f"@pytest.mark.mw_budget(tasks=0, lifespan=False)\ndef test_it({fixtures}):\n    {lines}\n"
    )
    quiet = ("-p", "no:cacheprovider", "-p", "no:xdist", *LEAN)
    return pytester.runpytest_inprocess(*quiet, "--mw-budget", *options)


def test_only_the_first_request_is_in_caplog(talking: pytest.Pytester) -> None:
    body = """\
log.warning("before")
mw_budget.get("/")
log.warning("after")
assert [record.getMessage() for record in caplog.records] == ["before", "log 1", "after"]"""
    run(talking, body, fixtures="mw_budget, caplog").assert_outcomes(passed=1)


def test_a_failing_report_shows_the_logs_of_the_first_request_only(talking: pytest.Pytester) -> None:
    result = run(talking, "mw_budget.get('/')\nassert False")
    shown = result.stdout.str().partition("Captured log call")[2]
    assert "log 1" in shown
    assert "log 2" not in shown


def test_a_logger_that_does_not_propagate_has_a_handler_of_pytest_too(talking: pytest.Pytester) -> None:
    body = """\
handlers = [one for one in logging.root.handlers if type(one).__module__ == "_pytest.logging"]
log.propagate = False
log.handlers[:] = handlers
levels = [one.level for one in handlers]
mw_budget.get("/")
assert [one.level for one in handlers] == levels
assert [record.getMessage() for record in caplog.records] == ["log 1"]"""
    run(talking, body, fixtures="mw_budget, caplog").assert_outcomes(passed=1)


def test_what_no_handler_takes_is_not_printed_instead(
    talking: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A record without a handler goes to stderr, Python's last resort.
    monkeypatch.setattr(pytest_mwbudget.session.captured_output, "SHOWN_CHARACTERS", 1_000_000)
    result = run(talking, "mw_budget.get('/')\nassert False")
    assert "log 2" not in result.stdout.str()


def test_the_handlers_of_the_app_get_every_record(talking: pytest.Pytester) -> None:
    body = """\
got = []
class Keeps(logging.Handler):
    def emit(self, record):
        got.append(record)
log.addHandler(Keeps())
mw_budget.get("/")
assert len(got) > 30"""
    run(talking, body).assert_outcomes(passed=1)


def test_only_the_first_warning_is_in_the_summary(talking: pytest.Pytester) -> None:
    body = """\
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    mw_budget.get("/")
    assert warnings.filters[0][0] == "always"
assert len(caught) == 1"""
    run(talking, body, fixtures="mw_budget").assert_outcomes(passed=1)


@needs("retained")
def test_a_layer_that_logs_leaves_nothing_behind(talking: pytest.Pytester) -> None:
    body = 'talks = mw_budget.get("/").layer("Talks")\nassert talks.counts.retained.count == 0'
    run(talking, body).assert_outcomes(passed=1)


@pytest.mark.parametrize("capture", ["fd", "sys"])
def test_a_failing_report_has_the_first_output_and_the_end_of_the_rest(
    talking: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, capture: str
) -> None:
    monkeypatch.setattr(pytest_mwbudget.session.captured_output, "SHOWN_CHARACTERS", 100)
    body = "print('before')\nmw_budget.get('/')\nprint('after')\nassert False"
    shown = run(talking, body, f"--capture={capture}").stdout.str()
    out = shown.partition("Captured stdout call")[2].partition("Captured stderr call")[0]
    err = shown.partition("Captured stderr call")[2]
    left_out = r"\[mw-budget: \d+ characters of repeated requests are left out here\]"
    assert re.search(rf"before\nout 1\n{left_out}\nout \d+\n(out \d+\n)+after\n", out)
    assert re.search(rf"err 1\n{left_out}\nerr \d+\n(err \d+\n)+", err)
    assert len(out) < 300


def test_little_output_is_shown_as_it_is(talking: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pytest_mwbudget.session.captured_output, "SHOWN_CHARACTERS", 1_000_000)
    shown = run(talking, "mw_budget.get('/')\nassert False").stdout.str()
    assert "left out" not in shown
    assert "out 1\nout 2\n" in shown


@pytest.mark.parametrize("fixture", ["capsys", "capfd"])
def test_what_a_test_captures_itself_is_that_of_its_request(talking: pytest.Pytester, fixture: str) -> None:
    body = f"""\
print("before")
mw_budget.get("/")
print("after")
captured = {fixture}.readouterr()
assert captured.out == "before\\nout 1\\nafter\\n"
assert captured.err == 'err 1\\n'"""
    run(talking, body, fixtures=f"mw_budget, {fixture}").assert_outcomes(passed=1)


def test_what_a_test_sends_elsewhere_is_that_of_its_request(talking: pytest.Pytester) -> None:
    body = """\
print("before")
with contextlib.redirect_stdout(io.StringIO()) as elsewhere:
    mw_budget.get("/")
assert elsewhere.getvalue() == "out 1\\n"
assert False"""
    shown = run(talking, body).stdout.str()
    assert "Captured stdout call" in shown
    assert "before\n" in shown.partition("Captured stdout call")[2]


def test_records_that_a_test_asserts_are_those_of_its_request(talking: pytest.Pytester) -> None:
    body = """\
import unittest
with unittest.TestCase().assertLogs("access") as logs:
    mw_budget.get("/")
assert [record.getMessage() for record in logs.records] == ["log 1"]"""
    run(talking, body).assert_outcomes(passed=1)


def test_a_line_that_is_longer_than_what_is_shown_is_cut(
    talking: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pytest_mwbudget.session.captured_output, "SHOWN_CHARACTERS", 3)
    shown = run(talking, "mw_budget.get('/')\nassert False").stdout.str()
    assert re.search(r"left out here\]\n\d\d\n", shown)


@pytest.mark.parametrize("options", [["-s"], ["--capture=tee-sys"], ["-p", "no:capture"]], ids=" ".join)
def test_what_is_shown_at_once_is_not_held_back(talking: pytest.Pytester, options: list[str]) -> None:
    result = run(talking, "mw_budget.get('/')", *options)
    assert result.ret == 0
    if options != ["-p", "no:capture"]:  # without capture, the output bypasses the inner run
        assert "out 30\n" in result.stdout.str()


def test_without_the_plugin_that_captures_logs(talking: pytest.Pytester) -> None:
    run(talking, "mw_budget.get('/')", "-p", "no:logging").assert_outcomes(passed=1)


def test_when_a_repeated_request_fails_everything_is_as_it_was(talking: pytest.Pytester) -> None:
    body = """\
handlers = [one for one in logging.root.handlers if type(one).__module__ == "_pytest.logging"]
levels = [one.level for one in handlers]
class Breaks(logging.Handler):
    def emit(self, record):
        if "25" in record.getMessage():
            raise LookupError("no such shelf")
log.addHandler(Breaks())
with pytest.raises(pytest_mwbudget.MwBudgetError, match="call 25 raised LookupError"):
    mw_budget.get("/")
assert [one.level for one in handlers] == levels
assert False, "shown"
"""
    result = run(talking, body)
    result.stdout.fnmatch_lines(["*AssertionError: shown"])
    assert "out 24\n" in result.stdout.str()
