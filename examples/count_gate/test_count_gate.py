"""The demonstration ends as described; the rewrite changed only the counts of the layer, not its responses."""

import re
import sys
from pathlib import Path

import pytest

from pytest_mwbudget import MwBudget

GATE = Path(__file__).with_name("task_gate.py")
COROUTINE = "starlette.middleware.base.BaseHTTPMiddleware.__call__.<locals>.call_next.<locals>.coro"
both = pytest.mark.parametrize("mw_budget_app", ["before", "after"], indirect=True)


def test_only_before_spawns_a_task(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_subprocess("--mw-budget", "-p", "no:cacheprovider", GATE)
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(["FAILED *test_no_layer_spawns_a_task[[]before[]]*", "*1 failed, 1 passed*"])
    result.stdout.fnmatch_lines(["RequestIdBefore spawns * per request, its budget is 0 tasks.", f"*{COROUTINE}"])
    if sys.version_info >= (3, 13):
        result.stdout.fnmatch_lines(["RequestIdBefore creates * objects per request*"])
        result.stdout.fnmatch_lines(["Most objects are * builtins.tuple*"])
        result.stdout.fnmatch_lines(["Types that only it creates: *"])


@both
def test_the_id_of_whoever_asks_is_kept(mw_budget: MwBudget) -> None:
    response = mw_budget.get("/orders/2", headers={"x-request-id": "abc"}).response
    assert response.json() == {"item": "coffee"}
    assert response.headers["x-request-id"] == "abc"


@both
def test_without_one_an_id_is_made(mw_budget: MwBudget) -> None:
    assert re.fullmatch(r"[0-9a-f]{32}", mw_budget.get("/orders/1").response.headers["x-request-id"])


@both
@pytest.mark.mw_budget(expect_status=404)
def test_handlers_know_the_id(mw_budget: MwBudget) -> None:
    response = mw_budget.get("/orders/3", headers={"x-request-id": "abc"}).response
    assert response.json() == {"detail": "no order 3 (request abc)"}


@both
def test_browsers_are_told_to_be_careful(mw_budget: MwBudget) -> None:
    headers = mw_budget.get("/orders/1").response.headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
