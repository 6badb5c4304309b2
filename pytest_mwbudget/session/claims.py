"""What all processes of a run share: which requests they have taken, and what they have spent.

Without locks: a claim is a file that only one process can create, and each process has a file of its own for its sums.
"""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

from ..model.estimate import Seconds

SUMS = "sums-"


@dataclass(frozen=True, slots=True)
class Sums:
    """Seconds spent on requests, those of them planned for timing, requests that were measured, tests that ended.

    `unexamined` are requests whose layers were not looked for.
    """

    seconds: Seconds = 0.0
    timing: Seconds = 0.0
    requests: int = 0
    tests: int = 0
    unexamined: int = 0

    def __add__(self, other: Sums) -> Sums:
        return Sums(
            self.seconds + other.seconds,
            self.timing + other.timing,
            self.requests + other.requests,
            self.tests + other.tests,
            self.unexamined + other.unexamined,
        )


class Claims:
    """The claims of one process. `folder` is where all processes of the run keep theirs, None for a single process.

    Where the folder cannot be used, as under a fake file system, a request may be measured once in each process.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self._own: set[str] = set()
        self._sums = Sums()

    def claim(self, key: str) -> bool:
        """Claim a key; return whether no process of the run has claimed it before."""
        if key in self._own:
            return False
        self._own.add(key)
        if self.folder is None:
            return True
        file = self.folder / hashlib.sha256(key.encode(errors="backslashreplace")).hexdigest()
        try:
            os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            return False
        except OSError:
            pass
        return True

    def add(self, sums: Sums) -> None:
        """Add to the sums of this process."""
        self._sums += sums
        if self.folder is not None:
            own = self._own_file(self.folder)
            with suppress(OSError):
                fresh = own.with_name(f"fresh-{own.name}")
                fresh.write_text(json.dumps(asdict(self._sums)), encoding="utf-8")
                fresh.replace(own)

    def sums(self) -> Sums:
        """Return the sums of all processes."""
        total = self._sums
        if self.folder is not None:
            with suppress(OSError, ValueError):
                for file in self.folder.glob(f"{SUMS}*"):
                    if file != self._own_file(self.folder):
                        total += Sums(**json.loads(file.read_text(encoding="utf-8")))
        return total

    def _own_file(self, folder: Path) -> Path:
        return folder / f"{SUMS}{os.getpid()}"


# The claims of the run, if it is a survey.
CLAIMS: pytest.StashKey[Claims] = pytest.StashKey()
