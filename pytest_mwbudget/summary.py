"""What the tests of a run measured, in the process that reports: the tables at its end, files, GitHub's own places."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from .errors import SettingError
from .gate import enforced
from .outputs import JSON, RENDERED, Output, check_distinct


def configure(config: pytest.Config) -> None:
    """Summarise a run that measures; each file that is asked for must be one that can be made."""
    if hasattr(config, "workerinput"):
        return  # a worker's results are reported by the process that started it
    try:
        files = dict(_files(config))
    except SettingError as error:
        raise pytest.UsageError(str(error)) from None
    if enforced(config):
        config.pluginmanager.register(Summary(config, files), "mw-budget-summary")


def _files(config: pytest.Config) -> Iterator[tuple[Output, Path]]:
    files: dict[str, Path] = {}
    for output in (JSON, *RENDERED):
        said = config.getoption(f"--mw-budget-{output.name}")
        if said is None:
            continue
        option = f"--mw-budget-{output.name}={said!r}"
        if not enforced(config):
            raise SettingError(f"{option} has nothing to write without measuring; add --mw-budget")
        files[option] = config.invocation_params.dir / said
        check_distinct(files)
        output.check(files[option], option)
        yield output, files[option]


class Summary:
    """What the tests of this run measured. `files` are to be written at its end."""

    def __init__(self, config: pytest.Config, files: Mapping[Output, Path]) -> None:
        self.config = config
        self.files = files
        self.measurements: list[dict[str, Any]] = []
        # The report that brought each measurement, and the tests that failed.
        self.reports: list[pytest.TestReport] = []
        self.failed: set[str] = set()
        self.remarks: list[str] = []

    @cached_property
    def document(self) -> dict[str, Any]:
        """All of it, once the tests are over."""
        from .report.json import document

        return document(self.measurements)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take what a report brings, also from another process."""
        for measurement in getattr(report, "mw_budget", ()):
            self.measurements.append(measurement)
            self.reports.append(report)
        # With subtests another report than that of the measurement tells; an expected failure is none.
        if report.when != "setup" and report.failed and not hasattr(report, "wasxfail"):
            self.failed.add(report.nodeid)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the files that were asked for, and the summary of GitHub's job.

        A file that cannot be written fails the run, and takes nothing else from it.
        """
        for output, path in self.files.items():
            try:
                output.write(path, self.document)
            except (OSError, ValueError) as error:
                self.remarks.append(f"--mw-budget-{output.name}={str(path)!r} cannot be written: {error}")
                if session.exitstatus == pytest.ExitCode.OK:
                    session.exitstatus = pytest.ExitCode.TESTS_FAILED
        step_summary = os.environ.get("GITHUB_STEP_SUMMARY")
        if step_summary and self.measurements:
            self._add_to(Path(step_summary))

    def _add_to(self, step_summary: Path) -> None:
        """Append to the file in which GitHub collects a step's summary, as far as it takes it."""
        from .report.github import MAX_SUMMARY
        from .report.markdown import render

        try:
            there = step_summary.stat().st_size if step_summary.exists() else 0
            with step_summary.open("a", encoding="utf-8") as file:
                # What stands there may have been left in the middle of a line.
                file.write("\n" + render(self.document, limit=MAX_SUMMARY - there - 1))
        except OSError as error:
            # Nobody asked for it, and in a container the file of that name is often not there.
            self.remarks.append(f"GITHUB_STEP_SUMMARY cannot be written: {error}")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the table of each request, or a line in a quiet run; below them GitHub's annotations."""
        verbosity = self.config.get_verbosity()
        if self.measurements and verbosity >= -1:
            self._print_tables(terminalreporter, verbosity)
        for remark in self.remarks:
            terminalreporter.write_line(remark, yellow=True)
        if self.measurements and os.environ.get("GITHUB_ACTIONS") == "true":
            for line in self._annotations():
                terminalreporter.write_line(line)

    def _print_tables(self, terminalreporter: pytest.TerminalReporter, verbosity: int) -> None:
        from .report.json import measured
        from .report.terminal import run

        environment = self.document["environment"]
        python = f"{environment['implementation']} {environment['python']}"
        width = self.config.get_terminal_writer().fullwidth
        terminalreporter.write_sep("=", "mw-budget")
        for line in run(measured(self.document), python, width, verbosity):
            terminalreporter.write_line(line.text, **({line.style: True} if line.style else {}))

    def _annotations(self) -> Iterator[str]:
        from .report.github import annotation, level
        from .report.json import measured

        for (_, result), report in zip(measured(self.document), self.reports, strict=True):
            severity = level(result.verdict, report.mw_budget_undecided)
            if severity == "warning" or (severity == "error" and self._failed(report)):
                file, line, _ = report.location
                yield annotation(result, severity, self._in_workspace(file), None if line is None else line + 1)

    def _failed(self, report: pytest.TestReport) -> bool:
        """Whether the test failed in the end. pytest-rerunfailures marks an attempt that it repeats by its outcome."""
        return report.nodeid in self.failed and str(report.outcome) != "rerun"

    def _in_workspace(self, file: str) -> str:
        """A path below pytest's root as GitHub knows it, from the root of the repository."""
        path = Path(os.path.abspath(self.config.rootpath / file))
        workspace = os.environ.get("GITHUB_WORKSPACE")
        if workspace and path.is_relative_to(workspace):
            return path.relative_to(workspace).as_posix()
        return Path(file).as_posix()
