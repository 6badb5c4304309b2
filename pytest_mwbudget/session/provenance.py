"""What a run was made of: the interpreter, the packages, the commit of the project, the processor, the seed of hashes.

Without host name, user and paths: results are published as artifacts.
"""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path

from ..model.results import Result
from ..model.runs import Commit, Run
from ..processes import TimeOverError, run
from ..timing.host_speed import processor

# Where CI systems say the commit, for a checkout without git or .git: GitLab, GitHub.
VARIABLES = ("CI_COMMIT_SHA", "GITHUB_SHA")
# Packages whose versions can explain a difference between two runs.
PACKAGES = (
    *("pytest-mwbudget", "pytest", "starlette", "fastapi", "httpx", "httpx2", "anyio", "asgi-lifespan", "trio"),
    *("uvloop", "pydantic"),
)
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
# Reading the status of a large working tree can take seconds.
GIT_TIMEOUT_S = 10


def this_run(results: Iterable[Result], folder: Path | None = None) -> Run:
    """Return the run of this process, which has these results; of the project in `folder` with its commit."""
    loops = sorted({result.loop for result in results})
    return Run(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        python=platform.python_version(),
        implementation=platform.python_implementation(),
        platform=platform.platform(),
        loop=", ".join(loops) or "asyncio",
        packages={name: version for name in PACKAGES if (version := version_of(name)) is not None},
        commit=commit_of(folder) if folder else None,
        processor=processor(),
        hash_seed=_hash_seed(),
    )


@cache
def version_of(package: str) -> str | None:
    """Return the installed version of a package, None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def commit_of(folder: Path) -> Commit | None:
    """Return the commit that is checked out, else the one that the CI system names, None without either.

    Files that git does not track are no uncommitted changes: a run writes caches and results.
    """
    head = _git(folder, "rev-parse", "--verify", "HEAD") or ""
    if _COMMIT.fullmatch(head):
        status = _git(folder, "status", "--porcelain", "--untracked-files=no")
        return Commit(head, None if status is None else bool(status))
    named = next((value for name in VARIABLES if _COMMIT.fullmatch(value := os.environ.get(name, ""))), None)
    return None if named is None else Commit(named, None)


def _git(folder: Path, *arguments: str) -> str | None:
    """Return the output of git, None if git is missing, fails or takes too long. Takes no lock in the repository."""
    command = ["git", "--no-optional-locks", *arguments]
    try:
        ended = run(command, folder, limit_s=GIT_TIMEOUT_S, errors_apart=True)
    except (OSError, TimeOverError):
        return None
    return None if ended.status else ended.output.decode(errors="replace").strip()


def _hash_seed() -> str:
    """Return the seed of the hashes of strings: a number, or `random` for another one in each process."""
    if not sys.flags.hash_randomization:
        return "0"
    seed = "" if sys.flags.ignore_environment else os.environ.get("PYTHONHASHSEED", "")
    return seed if seed.isdecimal() else "random"
