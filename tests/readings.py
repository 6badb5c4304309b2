"""Repeat live tests: the machine can disturb one reading, and a wrong figure is wrong in each."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec

import pytest

from pytest_mwbudget.model.estimate import Estimate

P = ParamSpec("P")

READINGS = 3
# The tests that were repeated, with the reason. The summary of the run lists them.
repeated: list[str] = []


class NeverError(Exception):
    """Something that no disturbance may cause, such as a wrong verdict."""


class BusyError(AssertionError):
    """The machine is too busy for the figures that a test is about."""


def never(happened: bool, what: str) -> None:
    """Fail the test without repeating it if `what` happened, which must not happen in any reading."""
    if happened:
        raise NeverError(f"this must never happen, however busy the machine is: {what}")


def readings(test: Callable[P, None]) -> Callable[P, None]:
    """Repeat a test that fails, up to READINGS times in all. The last failure counts.

    If even then the machine is too busy, which `BusyError` says, the test is skipped.
    """

    @functools.wraps(test)
    def read(*args: P.args, **kwargs: P.kwargs) -> None:
        for _ in range(READINGS - 1):
            try:
                return test(*args, **kwargs)
            except (AssertionError, pytest.fail.Exception) as failure:
                reason = str(failure).partition("\n")[0]
                repeated.append(f"{test.__module__}.{test.__qualname__}: {reason}")
        try:
            return test(*args, **kwargs)
        except BusyError as busy:
            pytest.skip(f"the machine is too busy: {busy}")

    return read


def near(found: Estimate, truth: float, share: float = 0.1, most_us: float = 2.0) -> bool:
    """Tell whether an interval is within `share` and `most_us` of a known cost, and the estimate within thrice that.

    A noisy machine widens intervals, which an assertion on the estimate alone would take for a wrong figure.
    """
    room = share * abs(truth) + most_us
    return found.low - room <= truth <= found.high + room and abs(found.estimate - truth) <= 3 * room
