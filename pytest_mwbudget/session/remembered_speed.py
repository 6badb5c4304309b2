"""How fast earlier runs have seen this machine, and for how long they looked, kept in pytest's cache.

A slow stretch of a shared machine can last longer than a measurement, and nothing in that measurement tells. A run
whose budgets are all kept may have looked for some tenths of a second only.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import pytest

from ..timing.host_speed import Machine, kind

# Where the cache has the speeds, and of how many runs: a machine that was made slower, such as a laptop without its
# charger, must not be held against what it was for ever.
KEY, KEPT_RUNS = "mw-budget/speeds", 20
# So many of these runs at least have seen a speed that is believed: one alone may have been lucky.
BELIEVED_SHARE = 1 / 4


class Seen(NamedTuple):
    """What one run has seen: nanoseconds for the reference workload at best, and seconds for which it was timed."""

    best_ns: float
    watched_s: float


def machine(config: pytest.Config) -> Machine:
    """The machine as the last runs saw it; unknown where pytest's cache is off or has nothing of it."""
    runs = sorted(_kept(config).get(kind(), []))
    if not runs:
        return Machine()
    believed = runs[math.ceil(BELIEVED_SHARE * len(runs)) - 1]
    return Machine(believed.best_ns, math.fsum(run.watched_s for run in runs))


class Recall:
    """Takes from the reports, also those of other processes, how fast the machine was seen, and keeps the best."""

    NAME = "mw-budget-recall"

    def __init__(self) -> None:
        self.seen = Seen(math.inf, 0.0)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take what a report brings."""
        timed_s = (measurement["seconds"] for measurement in getattr(report, "mw_budget", ()))
        self.seen = Seen(
            min(self.seen.best_ns, getattr(report, "mw_budget_seen_ns", math.inf)),
            self.seen.watched_s + math.fsum(seconds for seconds in timed_s if seconds is not None),
        )

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Keep it: once a run, in the process that reports."""
        if math.isfinite(self.seen.best_ns) and not hasattr(session.config, "workerinput"):
            _keep(session.config, self.seen)


def _keep(config: pytest.Config, seen: Seen) -> None:
    kept = _kept(config)
    kept[kind()] = [*kept.get(kind(), []), seen][-KEPT_RUNS:]
    if cache := _cache(config):
        cache.set(KEY, kept)


def _kept(config: pytest.Config) -> dict[str, list[Seen]]:
    """What the last runs have seen by kind of machine, the newest last, but for what no such run has written."""
    cache = _cache(config)
    found = cache.get(KEY, None) if cache else None
    if not isinstance(found, dict):
        return {}
    return {
        name: [Seen(*run) for run in runs if _is_seen(run)] for name, runs in found.items() if isinstance(runs, list)
    }


def _is_seen(run: object) -> bool:
    """Whether it is two numbers as a run writes them."""
    if not isinstance(run, list) or len(run) != 2 or not all(isinstance(one, (int, float)) for one in run):
        return False
    best_ns, watched_s = run
    return bool(0 < best_ns < math.inf and 0 <= watched_s < math.inf)


def _cache(config: pytest.Config) -> pytest.Cache | None:
    """None with `-p no:cacheprovider`."""
    return getattr(config, "cache", None)
