"""The demonstration ends as described; both versions of the app answer alike."""

import json
from pathlib import Path

import pytest

from pytest_mwbudget import MwBudget
from tests.readings import readings

STORY = Path(__file__).with_name("serialisation_story.py")


@pytest.mark.live
@readings
def test_only_plain_data_takes_long_to_serialise(pytester: pytest.Pytester) -> None:
    report = pytester.path / "budgets.json"
    result = pytester.runpytest_subprocess(
        "--mw-budget", f"--mw-budget-json={report}", "--mw-budget-undecided=pass", "-p", "no:cacheprovider", STORY
    )
    result.stdout.fnmatch_lines(["serialize takes * µs per request, its budget is 100 µs*"])
    before, after = json.loads(report.read_text(encoding="utf-8"))["measurements"]
    parts = [{part["name"]: part for part in one["endpoint"]["parts"]} for one in (before, after)]
    assert [one["serialize"]["verdict"] for one in parts] == ["fail", "pass"]
    dear, cheap = (one["serialize"]["us"]["estimate"] for one in parts)
    assert dear > 10 * cheap
    assert [[advice["rule"] for advice in one["advice"]] for one in (before, after)] == [["serialization"], []]


@pytest.mark.parametrize("mw_budget_app", ["before", "after"], indirect=True)
def test_both_answer_alike(mw_budget: MwBudget) -> None:
    response = mw_budget.get("/report").response
    assert response.headers["content-type"] == "application/json"
    assert [one["id"] for one in response.json()] == list(range(100))
