"""Tests of Hypothesis, whose examples make the same requests again and again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

# The requests of all examples of a test that are measured, at most.
MOST_REQUESTS = 3
NOT_MEASURED = f"of the examples of a test, the first {MOST_REQUESTS} distinct requests are measured"
# Where Hypothesis keeps the settings of a test.
SETTINGS = "_hypothesis_internal_use_settings"


def has_examples(item: pytest.Item) -> bool:
    """Return whether Hypothesis runs the test with many examples."""
    return getattr(getattr(item, "obj", None), "is_hypothesis_test", False) is True


@contextmanager
def without_deadline(item: pytest.Item) -> Iterator[None]:
    """Lift the deadline of Hypothesis in the block: it takes an example that is measured for a slow one."""
    test: Any = getattr(item, "obj", None)
    function = getattr(test, "__func__", test)
    settings = getattr(function, SETTINGS, None) if has_examples(item) else None
    if settings is None:
        yield
        return
    setattr(function, SETTINGS, type(settings)(settings, deadline=None))
    try:
        yield
    finally:
        setattr(function, SETTINGS, settings)
