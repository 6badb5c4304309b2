"""The speed of this machine as earlier runs saw it, kept in pytest's cache.

A shared machine can be slow for longer than a whole measurement, so a measurement alone cannot tell a slow machine from
an expensive layer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import pytest

from ..timing.host_speed import Machine, kind

KEY, HOPS_KEY = "mw-budget/speeds", "mw-budget/hops"
# Older runs are forgotten, so that a machine that became slower, such as a laptop on battery, is accepted as it is.
KEPT_RUNS = 20
# A speed is believed when at least this share of the kept runs saw it: a single run may have been lucky.
BELIEVED_SHARE = 1 / 4


class Seen(NamedTuple):
    """What one run saw: the fastest time of the reference workload or of the hop, and for how long the run measured."""

    best_ns: float
    watched_s: float


def machine(config: pytest.Config) -> Machine:
    """Return the machine as the last runs saw it; its speed is unknown if pytest's cache is off or empty."""
    runs = _kept(config, KEY).get(kind(), [])
    hop_ns = _believed(_kept(config, HOPS_KEY).get(kind(), []))
    return Machine(_believed(runs), math.fsum(run.watched_s for run in runs), hop_ns)


def _believed(runs: Sequence[Seen]) -> float:
    """Return the fastest time that enough runs saw, infinite without runs."""
    return sorted(runs)[math.ceil(BELIEVED_SHARE * len(runs)) - 1].best_ns if runs else math.inf


class Recall:
    """Collects the best speed from the reports of all processes, and stores it at the end of the run."""

    NAME = "mw-budget-recall"

    def __init__(self) -> None:
        self.seen = Seen(math.inf, 0.0)
        self.hop_ns = math.inf

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take the speeds and the seconds of a report."""
        timed_s = (measurement["seconds"] for measurement in getattr(report, "mw_budget", ()))
        self.seen = Seen(
            min(self.seen.best_ns, getattr(report, "mw_budget_seen_ns", math.inf)),
            self.seen.watched_s + math.fsum(seconds for seconds in timed_s if seconds is not None),
        )
        self.hop_ns = min(self.hop_ns, getattr(report, "mw_budget_seen_hop_ns", math.inf))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Store the best speeds once a run, in the process that reports."""
        if hasattr(session.config, "workerinput"):
            return
        for key, seen in ((KEY, self.seen), (HOPS_KEY, Seen(self.hop_ns, self.seen.watched_s))):
            if math.isfinite(seen.best_ns):
                _keep(session.config, key, seen)


def _keep(config: pytest.Config, key: str, seen: Seen) -> None:
    kept = _kept(config, key)
    kept[kind()] = [*kept.get(kind(), []), seen][-KEPT_RUNS:]
    if cache := _cache(config):
        cache.set(key, kept)


def _kept(config: pytest.Config, key: str) -> dict[str, list[Seen]]:
    """Read the last runs by kind of machine, the newest last; entries that no run can have written are left out."""
    cache = _cache(config)
    stored = cache.get(key, None) if cache else None
    if not isinstance(stored, dict):
        return {}
    return {
        name: [Seen(*run) for run in runs if _is_seen(run)] for name, runs in stored.items() if isinstance(runs, list)
    }


def _is_seen(run: object) -> bool:
    """Whether the entry is a pair of numbers as a run writes it."""
    if not isinstance(run, list) or len(run) != 2 or not all(isinstance(number, (int, float)) for number in run):
        return False
    best_ns, watched_s = run
    return bool(0 < best_ns < math.inf and 0 <= watched_s < math.inf)


def _cache(config: pytest.Config) -> pytest.Cache | None:
    """Return pytest's cache, None with `-p no:cacheprovider`."""
    return getattr(config, "cache", None)
