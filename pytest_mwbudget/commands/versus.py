"""The command `mwbudget versus`: compare HEAD with its base, or two apps, in fresh processes that take turns."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ..comparison.allowed import Allowed, parsed
from ..config.checks import seconds
from ..errors import SettingError
from ..interpreter.clocks import perf_counter
from ..processes import endings_interrupt
from ..report import gfm, lines
from ..report.comparison import left_out
from ..report.versus import Versus, document
from ..session.artifacts import MARKDOWN, put
from ..versus.comparing import Comparing
from ..versus.origin import Origin
from ..versus.repository import SHORT, Repository
from ..versus.sides import Side
from ..versus.worktrees import worktrees
from .app import FAILED, INTERRUPTED, PASSED
from .files import files_of


def main(command_line: Mapping[str, Any]) -> int:
    """Compare, and print what was found. Returns the exit status.

    Raises SettingError for unusable arguments, and VersusError if the two sides cannot be compared.
    """
    allowed = parsed(command_line["fail"], "--fail")
    end_s = perf_counter() + seconds(command_line["max_time"], "--max-time")
    files = files_of(command_line, (MARKDOWN,))
    apps = (command_line["app_a"], command_line["app_b"])
    with endings_interrupt():
        if any(apps):
            comparison, interrupted = _apps(command_line, allowed, end_s)
        else:
            comparison, interrupted = _commits(command_line, allowed, end_s)
    report = document(comparison)
    for path in files.values():
        put(path, gfm.render(report, gfm.MAX_COMMENT, partial(left_out, "mwbudget versus")))
    for line in lines.render(report, shutil.get_terminal_size().columns):
        print(_coloured(line))
    if interrupted:
        return INTERRUPTED
    broken = comparison.failures or (command_line["undecided"] == "fail" and not comparison.certain)
    return FAILED if broken else PASSED


# ---- two apps -----------------------------------------------------------------------------------------------------


def _apps(command_line: Mapping[str, Any], allowed: Allowed, end_s: float) -> tuple[Versus, bool]:
    """Compare two apps of the working directory."""
    for name in ("app_a", "app_b"):
        if not command_line[name]:
            other = "--app-b" if name == "app_a" else "--app-a"
            raise SettingError(f"{other} is compared with nothing; give --{name.replace('_', '-')} too")
    for name in ("base", "prepare"):
        if command_line[name]:
            raise SettingError(
                f"--{name}={command_line[name]!r} is for comparing commits, --app-a for comparing apps; leave out"
                " one of them"
            )
    here = Path.cwd()
    requests = [f"--mw-budget-request={line}" for line in command_line["request"]]
    first, second = (
        Side(name, here, here, here, [*command_line["pytest"], f"--mw-budget-app={command_line[key]}", *requests])
        for name, key in (("A", "app_a"), ("B", "app_b"))
    )
    comparing = Comparing(first, second, allowed, end_s, lambda side, ran: None, lambda statement: None, _progress)
    outcome = comparing.comparison()
    heading = [f"A: {command_line['app_a']}", f"B: {command_line['app_b']}", _effort(comparing)]
    return Versus(heading, outcome, comparing.remarks(), names=("A", "B")), comparing.interrupted


# ---- two commits --------------------------------------------------------------------------------------------------


def _commits(command_line: Mapping[str, Any], allowed: Allowed, end_s: float) -> tuple[Versus, bool]:
    """Compare HEAD, with the changes that are not committed, with its base."""
    if command_line["request"]:
        raise SettingError(
            f"REQUEST {command_line['request'][0]!r} is for --app-a and --app-b; without them give arguments for"
            " pytest after --, such as -- tests/test_app.py"
        )
    repository = Repository(Path.cwd())
    arguments = [_from_here(argument, repository.root) for argument in command_line["pytest"]]
    base = repository.base(command_line["base"], os.environ)
    heading = [f"base: {base}", f"HEAD: {_head(repository)}"]
    _progress(f"comparing with {base}")
    with worktrees(repository, base) as both:
        if command_line["prepare"]:
            both.prepare(command_line["prepare"])
        origin = Origin(both, arguments)
        old, new = (
            Side(name, place, both.place(place), repository.root, arguments)
            for name, place in (("base", both.base), ("HEAD", both.head))
        )
        comparing = Comparing(old, new, allowed, end_s, origin.check, origin.lay_over, _progress)
        outcome = comparing.comparison()
        statements = {name: ran.statement for name, ran in comparing.ran.items()}
        remarks = [*comparing.remarks(), *origin.remarks(statements), *repository.remarks(base)]
    return Versus([*heading, _effort(comparing)], outcome, remarks), comparing.interrupted


def _from_here(argument: str, root: Path) -> str:
    """Return an argument that names a file of the clone by its whole path as one that both checkouts have."""
    file, separator, test = argument.partition("::")
    path, clone = Path(os.path.realpath(file)), Path(os.path.realpath(root))
    if not os.path.isabs(file) or clone not in (path, *path.parents):
        return argument
    return os.path.relpath(path, os.path.realpath(Path.cwd())) + separator + test


def _head(repository: Repository) -> str:
    commit, changed = repository.git("rev-parse", "HEAD")[:SHORT], len(repository.changed())
    return f"{commit}, and {changed} {'file' if changed == 1 else 'files'} not committed" if changed else commit


# ---- the terminal -------------------------------------------------------------------------------------------------


def _effort(comparing: Comparing) -> str:
    pairs = len(comparing.pairs)
    unit = "; µs per request, at the machine's best speed" if comparing.timed else ""
    stopped = "; interrupted" if comparing.interrupted else ""
    return f"{pairs} {'pair' if pairs == 1 else 'pairs'} of processes in {comparing.seconds:.0f} s{unit}{stopped}"


def _progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _coloured(line: lines.Line) -> str:
    codes = {"red": 31, "yellow": 33, "green": 32}
    if line.style not in codes or not sys.stdout.isatty() or "NO_COLOR" in os.environ:
        return line.text
    return f"\x1b[{codes[line.style]}m{line.text}\x1b[0m"
