"""pytest-mwbudget: one test, whose table has every layer."""

from __future__ import annotations

from typing import Any

import pytest

from ways.app import HEADERS, make_app


@pytest.fixture
def mw_budget_app() -> Any:
    return make_app()


@pytest.mark.mw_budget(us=1000)
def test_hello(mw_budget: Any) -> None:
    mw_budget.get("/", headers=HEADERS)
