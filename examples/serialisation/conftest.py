from typing import Any

import pytest

from .gateway import create_app


@pytest.fixture
def mw_budget_app(request: pytest.FixtureRequest) -> Any:
    return create_app(request.param)
