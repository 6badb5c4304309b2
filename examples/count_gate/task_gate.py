"""The demonstration: in `before` a layer spawns a task, in `after` none does.

pytest runs this file only if it is named on the command line, because one of its tests is meant to fail.
`test_count_gate.py` checks that it fails.
"""

import pytest

from pytest_mwbudget import MwBudget


# No layer may spawn a task or create more than 100 objects. Objects can be counted from Python 3.13 on.
@pytest.mark.mw_budget(tasks=0, objects=100, undecided="pass")
@pytest.mark.parametrize("mw_budget_app", ["before", "after"], indirect=True)
def test_no_layer_spawns_a_task(mw_budget: MwBudget) -> None:
    assert mw_budget.get("/orders/1").response.json() == {"item": "tea"}
