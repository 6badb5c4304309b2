"""The history file: one line a run, appended by any number of processes, read for the HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..comparison.history import HistoryRun
from ..errors import described, tagged
from ..model.estimate import Seconds
from ..report.history import read as read_line
from .file_lock import held

# Appending takes milliseconds. After this long, the lock is another program's, or cannot be had.
PATIENCE_S: Seconds = 10.0


def append(path: Path, line: str) -> None:
    """Append a line in one write, after a line break if a killed run left a part of a line. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file, held(path, PATIENCE_S):
        broken = file.seek(0, 2) > 0 and _last_byte(path) != b"\n"
        file.write(b"\n" * broken + line.encode())
        file.flush()


def _last_byte(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read()


def read(path: Path) -> tuple[Sequence[HistoryRun], Sequence[str]]:
    """Read the runs in the order of the file, and say which lines are broken. Raises OSError."""
    runs: list[HistoryRun] = []
    remarks: list[str] = []
    with path.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                runs.append(read_line(line))
            except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
                why = described(error)
                remarks.append(tagged(f"line {number} of {str(path)!r} is left out: {why}", "history"))
    return runs, remarks
