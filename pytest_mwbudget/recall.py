"""How fast earlier runs have seen this machine, kept in pytest's cache.

A slow stretch of a shared machine can last longer than a measurement, and nothing in that measurement tells.
"""

from __future__ import annotations

import math

import pytest

from .machine import Machine, kind

# Where the cache has the speeds, and of how many runs: a machine that was made slower, such as a laptop without its
# charger, must not be held against what it was for ever.
KEY, KEPT_RUNS = "mw-budget/reference_ns", 20
# So many of these runs at least have seen a speed that is believed: one alone may have been lucky.
BELIEVED_SHARE = 1 / 4


def machine(config: pytest.Config) -> Machine:
    """The machine as the last runs saw it; unknown where pytest's cache is off or has nothing of it."""
    speeds = sorted(_kept(config).get(kind(), []))
    return Machine(speeds[math.ceil(BELIEVED_SHARE * len(speeds)) - 1]) if speeds else Machine()


class Recall:
    """Takes from the reports, also those of other processes, how fast the machine was seen, and keeps the best."""

    NAME = "mw-budget-recall"

    def __init__(self) -> None:
        self.seen_ns = math.inf

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take what a report brings."""
        self.seen_ns = min(self.seen_ns, getattr(report, "mw_budget_seen_ns", math.inf))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Keep it: once a run, in the process that reports."""
        if math.isfinite(self.seen_ns) and not hasattr(session.config, "workerinput"):
            _keep(session.config, self.seen_ns)


def _keep(config: pytest.Config, seen_ns: float) -> None:
    kept = _kept(config)
    kept[kind()] = [*kept.get(kind(), []), seen_ns][-KEPT_RUNS:]
    if cache := _cache(config):
        cache.set(KEY, kept)


def _kept(config: pytest.Config) -> dict[str, list[float]]:
    """The best speeds of the last runs by kind of machine, the newest last, but for what no such run has written."""
    cache = _cache(config)
    found = cache.get(KEY, None) if cache else None
    if not isinstance(found, dict):
        return {}
    return {
        name: [ns for ns in speeds if isinstance(ns, (int, float)) and 0 < ns < math.inf]
        for name, speeds in found.items()
        if isinstance(speeds, list)
    }


def _cache(config: pytest.Config) -> pytest.Cache | None:
    """None with `-p no:cacheprovider`."""
    return getattr(config, "cache", None)
