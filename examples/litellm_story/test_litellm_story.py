"""The demonstration ends as described; the rewrite changed only the cost of the check, not the responses."""

from pathlib import Path

import pytest

from pytest_mwbudget import MwBudget
from tests.readings import readings

STORY = Path(__file__).with_name("budget_story.py")
both = pytest.mark.parametrize("mw_budget_app", ["before", "after"], indirect=True)


@readings  # on a busy machine a verdict may be undecided, which fails a test too
def test_only_before_breaks_the_budget(pytester: pytest.Pytester) -> None:
    brief = ("--mw-budget-max-time=3", "--mw-budget-flamegraph=never", "-p", "no:cacheprovider")
    result = pytester.runpytest_subprocess("--mw-budget", *brief, STORY)
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(
        ["FAILED *test_health[[]before[]]*", "*1 failed, 1 passed*"],
    )
    result.stdout.fnmatch_lines(["*MetricsAuthBefore takes * µs per request, its budget is 50 µs:*"])


@both
def test_health_is_open(mw_budget: MwBudget) -> None:
    assert mw_budget.get("/health").response.text == "ok"


@both
@pytest.mark.mw_budget(expect_status=401)
def test_metrics_without_a_key_are_refused(mw_budget: MwBudget) -> None:
    response = mw_budget.get("/metrics").response
    assert response.json() == {"error": "the metrics need a valid Authorization header"}


@both
def test_metrics_with_a_key_are_there(mw_budget: MwBudget) -> None:
    response = mw_budget.get("/metrics", headers={"authorization": "Bearer sk-1234"}).response
    assert response.text.startswith("proxy_requests_total")
