"""Repeat live tests: the machine can disturb one reading, and a wrong figure is wrong in each."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec

import pytest

from pytest_mwbudget.commands.doctor import noise
from pytest_mwbudget.interpreter.clocks import perf_counter_ns
from pytest_mwbudget.model.estimate import Estimate

P = ParamSpec("P")

# A test fails once READINGS of its readings on a quiet machine have failed; after MOST_READINGS in all it is skipped.
READINGS, MOST_READINGS = 3, 6
# How long the machine is watched after a reading that failed.
WATCHED_S = 0.5
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
    """Repeat a test that fails, until it failed READINGS times while the machine was quiet. The last failure counts.

    After MOST_READINGS, some of them on a busy machine, the test is skipped.
    """

    @functools.wraps(test)
    def read(*args: P.args, **kwargs: P.kwargs) -> None:
        quiet, busy, reason = 0, "", ""
        for _ in range(MOST_READINGS):
            try:
                return test(*args, **kwargs)
            except (AssertionError, pytest.fail.Exception) as failure:
                reason = str(failure).partition("\n")[0]
                if why := reason if isinstance(failure, BusyError) else busy_now():
                    busy = why
                elif (quiet := quiet + 1) == READINGS:
                    raise
            repeated.append(f"{test.__module__}.{test.__qualname__}: {reason}")
        pytest.skip(f"{reason}; the machine is too busy: {busy}")

    return read


def busy_now() -> str:
    """Return by what the machine is seen to be busy, empty if it is quiet."""
    finding = noise(WATCHED_S, perf_counter_ns)
    return "" if finding.state == "fine" else finding.text


def near(found: Estimate, truth: float, share: float = 0.1, most_us: float = 2.0) -> bool:
    """Tell whether an interval is within `share` and `most_us` of a known cost, and the estimate within thrice that.

    A noisy machine widens intervals, which an assertion on the estimate alone would take for a wrong figure.
    """
    room = share * abs(truth) + most_us
    return found.low - room <= truth <= found.high + room and abs(found.estimate - truth) <= 3 * room
