"""Fresh processes of pytest, one at a time, each in one of the two worktrees."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from ..comparison.figures import figures_of
from ..comparison.pairs import Process
from ..errors import VersusError
from ..model.estimate import Seconds
from ..model.request_keys import keyed
from ..processes import environment_of_pytest
from ..processes import run as run_command
from ..storage.codec import measured_run
from .order import ORDER, Order, Statement

PLUGIN = "pytest_mwbudget.session.one_side"
# Exit statuses of pytest: no failure, some failures. With any other status nothing was measured, or not all.
ENDED = (0, 1)
NO_TESTS = 5
# Set by GitHub, for which pytest then prints annotations: errors show its output in the log of the job.
ACTIONS = "GITHUB_ACTIONS"
# How much of the output of pytest an error shows.
SHOWN_CHARACTERS = 4000


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two sides: its name in messages, its directory, and the arguments for pytest.

    `root` is its worktree, `place` the directory in it to run in, and `checkout` the user's clone.
    """

    name: str
    root: Path
    place: Path
    checkout: Path
    arguments: Sequence[str]


@dataclass(frozen=True, slots=True)
class Ran:
    """What a process measured and told."""

    process: Process
    statement: Statement
    output: str
    left_out: Sequence[str] = field(default_factory=tuple)


def run(side: Side, time_s: Seconds, seed: int, limit_s: Seconds) -> Ran:
    """Measure a side in a fresh process.

    Each request is timed for `time_s`, and only counted if that is 0. `seed` is that of the hashes of strings. Raises
    TimeOverError if the process does not end within `limit_s`, and VersusError if pytest did not run the tests.
    """
    with TemporaryDirectory(prefix="mwbudget-side-") as folder:
        order = Order(str(side.root), str(side.checkout), folder, time_s)
        written = Path(folder, "results.json")
        command = [
            *(sys.executable, "-m", "pytest", "-p", PLUGIN, "--mw-budget"),
            # The user may name other markers. Tests of what the base does not have must not end its run.
            *("-m", "mw_budget", "--continue-on-collection-errors", "--maxfail=0", *side.arguments),
            f"--mw-budget-json={written}",
        ]
        changed = {ORDER: order.text(), "PYTHONHASHSEED": str(seed), "PY_COLORS": "0"}
        environment = environment_of_pytest(**changed)
        environment.pop(ACTIONS, None)
        ended = run_command(command, side.place, environment, limit_s)
        output, statement = ended.end(SHOWN_CHARACTERS), Statement.read(Path(folder))
        if ended.status not in ENDED or statement is None:
            raise VersusError(_why_not(side, ended.status, output), message_id="versus-side")
        try:
            measured = measured_run(json.loads(written.read_text(encoding="utf-8")))
        except (OSError, ValueError):
            raise VersusError(f"pytest wrote no results for {side.name}:\n{output}", message_id="versus-side") from None
    process = {key: figures_of(result) for key, result in keyed(measured.measured)}
    left_out = [f"{nodeid} {request}: {reason}" for nodeid, request, reason in measured.left_out]
    return Ran(process, statement, output, left_out)


def _why_not(side: Side, status: int, output: str) -> str:
    reason = "found no test" if status == NO_TESTS else f"ended with exit status {status}"
    whose = " (both sides run the tests and conftest files of HEAD)" if side.name == "base" else ""
    return f"pytest {reason} for {side.name}{whose}; correct this, or the arguments for pytest after --:\n{output}"
