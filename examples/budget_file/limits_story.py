"""Judged by mw-budgets.json. pytest runs it only by name: the README shows it with another version of the app."""

import pytest

from pytest_mwbudget import MwBudget


@pytest.mark.mw_budget
def test_an_order(mw_budget: MwBudget) -> None:
    assert mw_budget.get("/orders/1").response.json() == {"number": 1}
