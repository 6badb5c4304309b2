from typing import Any

import pytest

from .app import app


@pytest.fixture
def mw_budget_app() -> Any:
    return app
