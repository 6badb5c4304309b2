import pytest
from fastapi import FastAPI

from pytest_mwbudget import MwBudget

from .app import create_app


@pytest.fixture(params=["plain", "quota"])
def mw_budget_app(request: pytest.FixtureRequest) -> FastAPI:
    return create_app(quota=request.param == "quota")


# Loose enough for any machine. Quota has no budget: it waits, so nearly all requests per second go with it.
@pytest.mark.mw_budget(rps_share="90%", layers={"Quota": None}, p99_ms=2000)
def test_health(mw_budget: MwBudget) -> None:
    measurement = mw_budget.load("/health", clients=50)
    assert measurement.response.json() == {"status": "ok"}
