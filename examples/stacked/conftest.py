from typing import Any

import pytest

from .layers import create_app


@pytest.fixture
def mw_budget_app(request: pytest.FixtureRequest) -> Any:
    kind, count = request.param
    return create_app(kind, count)
