"""Nothing here measures: each test file brings what it needs."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

# pytester forgets what a run inside of a run imported. filelock adds an audit hook with each import, and an audit hook
# stays for good: after a hundred such runs two thirds of the time went into these hooks.
import filelock  # noqa: F401
import pytest

pytest_plugins = ["pytester", "tests.browser"]


def required(group: str) -> bool:
    """Whether all tests of this dependency group must run."""
    return os.environ.get(f"MWBUDGET_REQUIRE_{group.upper()}", "") not in ("", "0")


def needs(package: str, reason: str, group: str = "bench") -> None:
    """Skip without a package of this dependency group; fail where MWBUDGET_REQUIRE_ and its name is set."""
    try:
        pytest.importorskip(package, reason=reason)
    except pytest.skip.Exception:
        if not required(group):
            raise
        pytest.fail(f"there is no {package}: {reason} (pip install -e . --group {group})", pytrace=False)


@pytest.fixture(autouse=True, scope="module")
def a_small_heap() -> Iterator[None]:
    """Whoever looks at every object, as a measurement does, need not look at those of the whole test run."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def _not_on_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    """pytest shows more where these are set; a test that means that sets them itself."""
    for name in ("CI", "BUILD_NUMBER"):
        monkeypatch.delenv(name, raising=False)
