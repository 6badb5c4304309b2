"""Nothing here measures: each test file brings what it needs."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

pytest_plugins = ["pytester", "tests.browser"]


@pytest.fixture(autouse=True, scope="module")
def a_small_heap() -> Iterator[None]:
    """Whoever looks at every object, as a measurement does, need not look at those of the whole test run."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
