"""Repeat live tests: the machine can disturb one reading, and a wrong figure is wrong in each."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec

import pytest

P = ParamSpec("P")

READINGS = 3
# The tests that were repeated, with the reason. The summary of the run lists them.
repeated: list[str] = []


class NeverError(Exception):
    """Something that no disturbance may cause, such as a wrong verdict."""


def never(happened: bool, what: str) -> None:
    """Fail the test without repeating it if `what` happened, which must not happen in any reading."""
    if happened:
        raise NeverError(f"this must never happen, however busy the machine is: {what}")


def readings(test: Callable[P, None]) -> Callable[P, None]:
    """Repeat a test that fails, up to READINGS times in all. The last failure counts."""

    @functools.wraps(test)
    def read(*args: P.args, **kwargs: P.kwargs) -> None:
        for _ in range(READINGS - 1):
            try:
                return test(*args, **kwargs)
            except (AssertionError, pytest.fail.Exception) as failure:
                reason = str(failure).partition("\n")[0]
                repeated.append(f"{test.__module__}.{test.__qualname__}: {reason}")
        return test(*args, **kwargs)

    return read
