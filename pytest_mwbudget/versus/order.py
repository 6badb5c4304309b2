"""What a process of a comparison is told, and what it tells. Plain data in JSON; standard library only."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

# The environment variable with the order of a process.
ORDER = "PYTEST_MWBUDGET_SIDE"


@dataclass(frozen=True, slots=True)
class Order:
    """What to do: import the project from `root`, not from `checkout`, and write reports to the directory `out`.

    Each request is timed for `time_s` seconds, and only counted if that is 0.
    """

    root: str
    checkout: str
    out: str
    time_s: float

    def text(self) -> str:
        """Return the order as the value of an environment variable."""
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: str) -> Order:
        """Read what `text` wrote."""
        return cls(**json.loads(text))


@dataclass(frozen=True, slots=True)
class Statement:
    """What a process tells: the process of pytest, and each worker of pytest-xdist.

    `own` are the files of the imported modules of the worktree, relative to it, and `elsewhere` the files of modules
    that should have come from it, by name. `failed` has the causes of failures by test, `tests` the tests that ran.
    `patterns` and `paths` are pytest's settings python_files and testpaths, `paths` relative to the worktree.
    """

    own: Sequence[str] = ()
    elsewhere: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    tests: Sequence[str] = ()
    patterns: Sequence[str] = ()
    paths: Sequence[str] = ()

    def write(self, path: Path) -> None:
        """Write it for `read`."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> Statement | None:
        """Join what the processes of one run of pytest wrote to a directory; None if there is nothing."""
        parts = [cls(**json.loads(path.read_text(encoding="utf-8"))) for path in sorted(folder.glob("told-*.json"))]
        if not parts:
            return None
        return cls(
            own=sorted({name for part in parts for name in part.own}),
            elsewhere={name: file for part in parts for name, file in part.elsewhere.items()},
            failed={test: cause for part in parts for test, cause in part.failed.items()},
            tests=list(dict.fromkeys(test for part in parts for test in part.tests)),
            patterns=parts[0].patterns,
            paths=parts[0].paths,
        )
