import pytest

from pytest_mwbudget import MwBudget


def stacks(kind: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("mw_budget_app", [(kind, 1), (kind, 5)], indirect=True, ids=["one", "five"])


@stacks("basehttp")
@pytest.mark.mw_budget(layers={"BaseHTTPNoop": 5000})
def test_basehttp(mw_budget: MwBudget) -> None:
    assert mw_budget.get("/").response.json() == {"hello": "world"}


@stacks("pure")
@pytest.mark.mw_budget(layers={"PureNoop": 20})
def test_pure(mw_budget: MwBudget) -> None:
    assert mw_budget.get("/").response.json() == {"hello": "world"}
