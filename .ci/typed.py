"""A user's test, for type checkers to read beside an installed wheel."""

from typing import assert_type

import pytest

from pytest_mwbudget import BudgetWarning, Count, Estimate, Measurement, MwBudget, __version__


@pytest.mark.mw_budget(us=50)
def test_health(mw_budget: MwBudget) -> None:
    measurement = mw_budget.get("/health")
    assert_type(measurement, Measurement)
    assert_type(measurement.total_us, Estimate | None)
    assert measurement.response.status_code == 200
    layer = measurement.layer("GZipMiddleware")
    assert_type(layer.us, Estimate | None)
    if layer.counts is not None:
        assert_type(layer.counts.tasks, Count)
    warning: type[Warning] = BudgetWarning
    assert warning.__name__ in __version__ or layer.verdict in (None, "pass", "fail", "undecided")
