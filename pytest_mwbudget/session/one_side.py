"""The plugin that each process of `mwbudget versus` loads with `-p`.

The project's modules come from one worktree, every request is measured in the same way, and no budget fails a test.
pytest loads this before conftest files and before installed plugins; workers of pytest-xdist load it too.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

import pytest

from ..config.budgets import Budgets
from ..config.settings import Settings
from ..timing.host_speed import Machine
from ..timing.schedule import Schedule
from ..versus.imports import Worktree
from ..versus.order import ORDER, Order, Statement
from .configuration import CHANGED
from .gate import MACHINE, SCHEDULE

# How much of the cause of a failure is told.
CAUSE = 300


class EachSpeed(Machine):
    """Keeps the speed of the machine in each measurement. Nothing is known from earlier processes."""

    def __init__(self) -> None:
        super().__init__()
        self.fresh_ns: list[float] = []

    def saw(
        self, quick_ns: float, seconds: float, quick_hop_ns: float = float("inf"), *, shared: bool | None = False
    ) -> None:
        """Remember the speed of a measurement."""
        super().saw(quick_ns, seconds, quick_hop_ns, shared=shared)
        self.fresh_ns.append(quick_ns)


class OneSide:
    """Measures one side, and tells where its modules came from and which tests failed."""

    NAME = "mw-budget-one-side"

    def __init__(self, order: Order, worktree: Worktree) -> None:
        self.order = order
        self.worktree = worktree
        self.machine = EachSpeed()
        self.failed: dict[str, str] = {}
        self.tests: dict[str, None] = {}

    def pytest_configure(self, config: pytest.Config) -> None:
        """Change the settings of every test before any is read."""
        config.stash[CHANGED] = self._changed
        config.stash[MACHINE] = self.machine
        # Two versions are compared by their rows.
        config.stash[SCHEDULE] = replace(config.stash.get(SCHEDULE, Schedule()), savings_share=0.0)

    def _changed(self, settings: Settings) -> Settings:
        timed = self.order.time_s > 0
        return replace(
            settings,
            budgets=Budgets(),
            limits=None,
            timed=timed,
            loads=False,
            trend=False,
            max_time_s=self.order.time_s if timed else settings.max_time_s,
            when_undecided="pass",
            when_uncountable="pass",
            flamegraph="never",
        )

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Note with each result how fast the machine was meanwhile."""
        report = yield
        timed = [measurement for measurement in getattr(report, "mw_budget", ()) if measurement["seconds"] is not None]
        # What was interrupted has a speed and no result; the latest speeds are those of the results.
        for measurement, reference_ns in zip(reversed(timed), reversed(self.machine.fresh_ns), strict=False):
            measurement["reference_ns"] = reference_ns
        if timed:
            self.machine.fresh_ns.clear()
        return report

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Take what could not be collected."""
        if report.failed:
            self.failed.setdefault(report.nodeid, _cause(report))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take the outcome of a test, also of one in a worker."""
        self.tests[report.nodeid] = None
        if report.failed:
            self.failed.setdefault(report.nodeid, _cause(report))

    def pytest_unconfigure(self, config: pytest.Config) -> None:
        """Write what this process tells."""
        proof = self.worktree.proof()
        paths = [self._in_worktree(config.rootpath / path) for path in config.getini("testpaths")]
        account = Statement(
            proof.own,
            proof.elsewhere,
            self.failed,
            list(self.tests),
            list(config.getini("python_files")),
            [path for path in paths if path is not None],
        )
        account.write(Path(self.order.out) / f"told-{os.getpid()}.json")

    def _in_worktree(self, path: Path) -> str | None:
        """Return the path relative to the worktree; None for the worktree itself, which holds the app too."""
        real = Path(os.path.realpath(path))
        return real.relative_to(self.worktree.root).as_posix() if self.worktree.root in real.parents else None


def _cause(report: pytest.TestReport | pytest.CollectReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = str(crash.message if crash is not None else report.longreprtext).strip()
    # pytest marks the lines of an error, which stand behind the traceback of an import.
    errors = [line[1:] for line in text.splitlines() if line.startswith("E  ")]
    return (errors[-1] if errors else text).strip().partition("\n")[0][:CAUSE]


def pytest_addoption(pluginmanager: pytest.PytestPluginManager) -> None:
    """Enter the worktree: pytest calls this hook as soon as it has loaded this module."""
    order = Order.read(os.environ[ORDER])
    worktree = Worktree(Path(order.root), Path(order.checkout))
    worktree.enter()
    pluginmanager.register(OneSide(order, worktree), OneSide.NAME)
