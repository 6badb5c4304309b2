"""Nothing here measures: each test file brings what it needs."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest

pytest_plugins = ["pytester", "tests.browser"]


def needs(package: str, reason: str) -> None:
    """Skip without a package of the dependency group `bench`; fail where MWBUDGET_REQUIRE_BENCH is set."""
    try:
        pytest.importorskip(package, reason=reason)
    except pytest.skip.Exception:
        if os.environ.get("MWBUDGET_REQUIRE_BENCH", "") in ("", "0"):
            raise
        pytest.fail(f"there is no {package}: {reason} (pip install -e . --group bench)", pytrace=False)


@pytest.fixture(autouse=True, scope="module")
def a_small_heap() -> Iterator[None]:
    """Whoever looks at every object, as a measurement does, need not look at those of the whole test run."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
