"""Let one process of a user measure at a time on this machine, by locks of the operating system.

Two processes that measure on two cores of one processor slow each other down, and neither can tell this from the cost
of a layer. The operating system releases the locks of a process that ends in any way.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import gettempdir

import pytest

from ..errors import tagged
from ..interpreter.clocks import sleep
from ..model.estimate import Seconds
from ..model.results import Turn
from ..storage.file_lock import FileLock

# How long a test waits before its setup, where no time limit runs and many workers may be in line.
WAIT_S: Seconds = 600.0
# How long a request waits in the middle of a test, where the time limits of other plugins run.
WAIT_IN_TEST_S: Seconds = 30.0
# After a wait in vain, the next wait is this short: the other process may be in a debugger.
WAIT_AGAIN_S: Seconds = 1.0
POLL_S: Seconds = 0.05
# The terminal shows a wait that is longer than this.
SILENT_S: Seconds = 1.0


class Turns:
    """Waits for the turn of this process.

    `alone` is whether no other process belongs to this run. `on_wait` is called with True when a wait is long, and with
    False at its end. Time is counted in calls of `pause`, because a test may have stopped the clocks.
    """

    def __init__(
        self,
        *,
        alone: bool = True,
        on_wait: Callable[[bool], None] = lambda waits: None,
        pause: Callable[[float], None] = sleep,
        folder: Path | None = None,
    ) -> None:
        self.alone = alone
        self.on_wait = on_wait
        self.pause = pause
        self.folder = folder
        self.patience_s = WAIT_S
        self.turn: Turn | None = None
        self.lock: FileLock | None = None

    @contextmanager
    def taken(self, wait_s: Seconds = WAIT_S) -> Iterator[Turn]:
        """Wait for a turn, for at most `wait_s`, and end it after the block."""
        self.turn = turn = self._begun(wait_s)
        try:
            yield turn
        finally:
            self.end()

    @contextmanager
    def measuring(self, wait_s: Seconds = WAIT_IN_TEST_S) -> Iterator[Turn]:
        """Use the turn for which the test has waited; without one, wait for a turn for this measurement."""
        if self.turn is not None:
            yield self.turn
            return
        with self.taken(wait_s) as turn:
            yield turn

    def end(self) -> None:
        """End the turn, so that another process can measure."""
        self.turn = None
        if self.lock is not None:
            self.lock.release()
            self.lock = None

    def _begun(self, wait_s: Seconds) -> Turn:
        wait_s = min(wait_s, self.patience_s)
        try:
            self.lock = self._waited_for(wait_s)
        except OSError as error:
            return Turn(
                note=tagged(
                    f"Nothing keeps other processes from measuring at the same time: {error}.", "other-process"
                ),
                crowded=None
                if self.alone
                else tagged(
                    f"other workers of this run may have measured at the same time: {error};"
                    " set TMPDIR to a directory that can be written, or run without -n",
                    "other-process",
                ),
            )
        if self.lock is None:
            self.patience_s = WAIT_AGAIN_S
            return Turn(
                crowded=tagged(
                    f"another process went on measuring for the {wait_s:g} s that this one waited, and may explain"
                    " the excess; end other runs of pytest --mw-budget, or run fewer workers at a time",
                    "other-process",
                )
            )
        self.patience_s = WAIT_S
        return Turn()

    def _waited_for(self, wait_s: Seconds) -> FileLock | None:
        """Return the lock of the turn, None after `wait_s`.

        Waiting processes hold the lock of the line, or the process that has just ended would be first again.
        """
        folder = self.folder or Path(gettempdir())
        user = f"-{os.getuid()}" if hasattr(os, "getuid") else ""  # on Windows the directory is the user's own
        line, turn = (FileLock(folder / f"pytest-mwbudget{user}-{name}.lock") for name in ("line", "turn"))
        waits = 0
        try:
            for lock in (line, turn):
                while not lock.acquire():
                    if waits >= wait_s / POLL_S:
                        return None
                    waits += 1
                    if waits == round(SILENT_S / POLL_S):
                        self.on_wait(True)
                    self.pause(POLL_S)
            return turn
        finally:
            line.release()
            if waits >= round(SILENT_S / POLL_S):
                self.on_wait(False)


class TakesTurns:
    """Waits for a turn before each test for which `times` is true, before the time limits of other plugins begin."""

    NAME = "mw-budget-turns"

    def __init__(self, turns: Turns, times: Callable[[pytest.Item], bool]) -> None:
        self.turns = turns
        self.times = times

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Wait for a turn before the setup of a test, and end it after its teardown."""
        with self.turns.taken() if self.times(item) else nullcontext():
            return (yield)

    def pytest_enter_pdb(self) -> None:
        """End the turn while the user debugs."""
        self.turns.end()
