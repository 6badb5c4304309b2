"""The progress of a long measurement, on a terminal."""

from __future__ import annotations

import sys
from contextlib import nullcontext

import pytest


class Progress:
    """Shows the progress of a long measurement on a terminal; elsewhere it prints nothing."""

    # A measurement that takes less of the time limit shows nothing.
    FROM_SHARE = 0.1

    def __init__(self, config: pytest.Config) -> None:
        self.plugins = config.pluginmanager
        self.shown = 0

    def __call__(self, share: float | None) -> None:
        """Show the share of the time limit that is over; None removes it."""
        if share is None or share >= self.FROM_SHARE:
            self._show("" if share is None else f" measuring, {share:.0%} of the time limit")

    def waiting(self, waits: bool) -> None:
        """Show that a test waits for a measurement in another process, or remove this."""
        self._show(" waiting for another process that measures" if waits else "")

    def _show(self, text: str) -> None:
        """Show the text in place of the previous one, and return the cursor: the next output overwrites it."""
        # Looked up here because pytest registers the reporter after it has configured the plugins.
        reporter = self.plugins.getplugin("terminalreporter")
        padded = text.ljust(self.shown)
        if not padded or reporter is None or not reporter.isatty:
            return
        self.shown = len(text)
        # Not through the reporter, which counts the characters it writes to know where the line ends.
        capture = self.plugins.getplugin("capturemanager")
        with capture.global_and_fixture_disabled() if capture else nullcontext():
            sys.stdout.write(padded + "\b" * len(padded))
            sys.stdout.flush()
