"""The progress of a long measurement on a terminal, and of a long wait in a log, too."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import Any

import pytest

WAITING = "waiting for another process that measures"


def tell(config: pytest.Config, text: str) -> None:
    """Write a line on what takes long at the end of a run."""
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None:
        terminal.write_line("")
        terminal.write_line(f"mw-budget: {text}")


class Progress:
    """Shows on a terminal how far a long measurement is. A long wait has a line elsewhere too, once in a run."""

    # A measurement that takes less of the time limit shows nothing.
    FROM_SHARE = 0.1

    def __init__(self, config: pytest.Config) -> None:
        self.plugins = config.pluginmanager
        self.shown = 0
        self.logged = False

    def __call__(self, share: float | None) -> None:
        """Show the share of the time limit that is over; None removes it."""
        if share is None or share >= self.FROM_SHARE:
            self._show("" if share is None else f" measuring, {share:.0%} of the time limit")

    def waiting(self, waits: bool) -> None:
        """Show that a test waits for a measurement in another process, or remove this."""
        self._show(f" {WAITING}" if waits else "")
        reporter = self._reporter()
        if waits and reporter is not None and not reporter.isatty and not self.logged:
            self.logged = True
            reporter.ensure_newline()
            reporter.write_line(WAITING)

    def _show(self, text: str) -> None:
        """Show the text in place of the previous text, and return the cursor: the next output overwrites it."""
        reporter = self._reporter()
        padded = text.ljust(self.shown)
        if not padded or reporter is None or not reporter.isatty:
            return
        self.shown = len(text)
        # Not through the reporter, which counts the characters it writes to know where the line ends.
        capture = self.plugins.getplugin("capturemanager")
        with capture.global_and_fixture_disabled() if capture else nullcontext():
            sys.stdout.write(padded + "\b" * len(padded))
            sys.stdout.flush()

    def _reporter(self) -> Any:
        # Looked up at each call because pytest registers the reporter after it has configured the plugins.
        return self.plugins.getplugin("terminalreporter")
