"""The demonstration: `before` breaks the budget, `after` keeps it.

pytest runs this file only if it is named on the command line, because one of its tests is meant to fail.
`test_litellm_story.py` checks that it fails.
"""

import pytest

from pytest_mwbudget import MwBudget


@pytest.mark.mw_budget(us=50)  # every layer at most 50 µs per request
@pytest.mark.parametrize("mw_budget_app", ["before", "after"], indirect=True)
def test_health(mw_budget: MwBudget) -> None:
    assert mw_budget.get("/health").response.text == "ok"
