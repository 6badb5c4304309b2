"""Repeat live tests: the machine can disturb one reading, and a wrong figure is wrong in each."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec

import pytest

from pytest_mwbudget.commands.doctor import noise
from pytest_mwbudget.interpreter.clocks import perf_counter_ns
from pytest_mwbudget.model.estimate import Estimate
from pytest_mwbudget.timing import host_speed
from pytest_mwbudget.timing.host_speed import Interrupted

P = ParamSpec("P")

# A test fails once READINGS of its readings on a quiet machine have failed; after MOST_READINGS in all it is skipped.
READINGS, MOST_READINGS = 3, 6
# A test that itself finds the machine too busy has waited for long each time, so it is skipped after fewer readings.
MOST_TOO_BUSY = 3
# How long the machine is watched after a reading that failed.
WATCHED_S = 0.5
# The machine was busy during a reading if the thread of the test waited for a core for more than this share of it.
WAITED_SHARE = 0.05
# What sees another thread on the same core; None if it is not built. `conftest.py` hides it from measurements only.
PIPELINE = host_speed._pipeline
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

    After MOST_READINGS, some of them on a busy machine, or MOST_TOO_BUSY that ended in a BusyError, it is skipped.
    """

    @functools.wraps(test)
    def read(*args: P.args, **kwargs: P.kwargs) -> None:
        quiet, too_busy, busy, reason = 0, 0, "", ""
        for _ in range(MOST_READINGS):
            begin = Interrupted.now()
            try:
                return test(*args, **kwargs)
            except NeverError:
                raise
            # A figure that is missing raises anything. What `pytest.fail` raises is no Exception; nor is a skip.
            except (Exception, pytest.fail.Exception) as failure:
                reason = str(failure).partition("\n")[0] or type(failure).__name__
                if isinstance(failure, BusyError):
                    too_busy, busy = too_busy + 1, reason
                elif why := waited_since(begin) or busy_now():
                    busy = why
                elif (quiet := quiet + 1) == READINGS:
                    raise
            repeated.append(f"{test.__module__}.{test.__qualname__}: {reason}")
            if too_busy == MOST_TOO_BUSY:
                break
        pytest.skip(f"{reason}; the machine is too busy: {busy}")

    return read


def waited_since(begin: Interrupted | None) -> str:
    """Return for how much of the time since then this thread waited for a core, empty if for at most WAITED_SHARE."""
    end = Interrupted.now()
    share = 0.0 if begin is None or end is None else begin.until(end).share
    return f"the test waited for a core for {share:.0%} of its time" if share > WAITED_SHARE else ""


def busy_now() -> str:
    """Return by what the machine is seen to be busy, empty if it is quiet."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(host_speed, "_pipeline", PIPELINE)
        finding = noise(WATCHED_S, perf_counter_ns)
    return "" if finding.state == "fine" else finding.text


def near(found: Estimate, truth: float, share: float = 0.1, most_us: float = 2.0) -> bool:
    """Tell whether an interval is within `share` and `most_us` of a known cost, and the estimate within thrice that.

    A noisy machine widens intervals, which an assertion on the estimate alone would take for a wrong figure.
    """
    room = share * abs(truth) + most_us
    return found.low - room <= truth <= found.high + room and abs(found.estimate - truth) <= 3 * room
