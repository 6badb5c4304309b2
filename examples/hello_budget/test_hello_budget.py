import pytest

from pytest_mwbudget import MwBudget


@pytest.mark.mw_budget(us=2000)  # every layer at most 2 ms per request: loose enough for any machine
def test_health(mw_budget: MwBudget) -> None:
    measurement = mw_budget.get("/health")
    assert measurement.response.json() == {"status": "ok"}
    assert measurement.response.headers["x-version"] == "1.0"


@pytest.mark.asyncio
@pytest.mark.mw_budget(us=2000)
async def test_health_on_the_tests_own_loop(mw_budget: MwBudget) -> None:
    measurement = await mw_budget.aget("/health")
    assert measurement.response.status_code == 200
