"""What the tests of a run measured, in the process that reports: the table at its end, and JSON."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from .gate import enforced


def configure(config: pytest.Config) -> None:
    """Summarise a run that measures; a path for JSON must be one that can be written."""
    path = config.getoption("mw_budget_json")
    if path is not None:
        _check_json(config, path)
    if enforced(config):
        config.pluginmanager.register(Summary(config), "mw-budget-summary")


def _check_json(config: pytest.Config, path: str) -> None:
    if not enforced(config):
        raise pytest.UsageError(f"--mw-budget-json={path!r} has nothing to write without measuring; add --mw-budget")
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with Path(path).open("a"):
            pass
    except OSError as error:
        raise pytest.UsageError(
            f"--mw-budget-json={path!r} cannot be written: {error}; give the path of a file to write"
        ) from None


class Summary:
    """What the tests of this run measured."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.measurements: list[dict[str, Any]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take what a report brings, also from another process."""
        self.measurements += getattr(report, "mw_budget", ())

    def pytest_sessionfinish(self) -> None:
        """Write the JSON that was asked for."""
        path = self.config.getoption("mw_budget_json")
        if path is None or hasattr(self.config, "workerinput"):
            return
        from .report.json import document

        text = json.dumps(document(self.measurements), indent=1, ensure_ascii=False, allow_nan=False)
        Path(path).write_text(text + "\n", encoding="utf-8")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the table of each request, or a line in a quiet run."""
        verbosity = self.config.get_verbosity()
        if not self.measurements or verbosity < -1:
            return
        from .report.json import environment, from_json
        from .report.terminal import one_line, table

        terminalreporter.write_sep("=", "mw-budget")
        width = shutil.get_terminal_size().columns
        for data in self.measurements:
            result = from_json(data)
            if verbosity < 0:
                line = one_line(result)
                terminalreporter.write_line(f"{data['nodeid']} {line.text}", **_markup(line.style))
                continue
            terminalreporter.write_line(f"{data['nodeid']}: {result.request} {result.status}", bold=True)
            for line in table(result, width, verbose=verbosity > 0):
                terminalreporter.write_line(line.text, **_markup(line.style))
            terminalreporter.write_line("")
        loops = ", ".join(sorted({data["loop"] for data in self.measurements}))
        about = environment(loops)
        unit = ", µs per request" if any(data["total_us"] for data in self.measurements) else ""
        terminalreporter.write_line(f"{about['implementation']} {about['python']}, loop {loops}{unit}")


def _markup(style: str) -> dict[str, bool]:
    return {style: True} if style else {}
