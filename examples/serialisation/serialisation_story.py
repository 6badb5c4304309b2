"""The demonstration. Its first test is meant to fail, so pytest runs it only by name."""

import pytest

from pytest_mwbudget import MwBudget


@pytest.mark.parametrize("mw_budget_app", ["before", "after"], indirect=True)
@pytest.mark.mw_budget(endpoint={"serialize": 100})
def test_the_report_is_cheap_to_serialise(mw_budget: MwBudget) -> None:
    assert len(mw_budget.get("/report").response.json()) == 100
