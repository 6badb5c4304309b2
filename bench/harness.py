"""Share what all bench scripts need: arguments, fresh processes, neighbours, tables, goals, JSON.

Each script has `measure(quick) -> readings`, which takes the time, and `report(readings) -> Report`, which is pure.
`evidence.py` runs every script and writes the reports to `docs/evidence.md`.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias

import stored

from pytest_mwbudget.timing.host_speed import processor

Reading: TypeAlias = dict[str, Any]

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = (
    "pytest-mwbudget",
    "pytest",
    "starlette",
    "fastapi",
    "litestar",
    "httpx",
    "uvicorn",
    "uvloop",
    "httptools",
    "pytest-benchmark",
    "sentry-sdk",
    "opentelemetry-sdk",
    "opentelemetry-instrumentation-asgi",
    "opentelemetry-instrumentation-fastapi",
    "prometheus-fastapi-instrumentator",
    "django",
    "pyinstrument",
)
# What figures depend on: the package, and the scripts without their results.
PACKAGE, CODE = "pytest_mwbudget", ("pytest_mwbudget", "bench", ":!bench/results")


@dataclass(frozen=True)
class Table:
    """Rows of text under a title. The first column is aligned left, the others right."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]

    def __str__(self) -> str:
        lines = [self.head, *self.rows]
        widths = [max(len(line[column]) for line in lines) for column in range(len(self.head))]
        text = [
            "  ".join(
                cell.ljust(width) if column == 0 else cell.rjust(width)
                for column, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in lines
        ]
        return "\n".join([self.title, "", *text] if self.title else text)


@dataclass(frozen=True)
class Goal:
    """A goal of a script, the finding, whether the goal was reached, and why not if it was not."""

    goal: str
    found: str
    met: bool
    why_not: str = ""

    def __str__(self) -> str:
        text = f"{'reached' if self.met else 'NOT reached'}: {self.goal}. Found: {self.found}."
        return text if self.met or not self.why_not else f"{text} {self.why_not}"


@dataclass(frozen=True)
class Report:
    """Tables, goals and notes derived from readings."""

    tables: Sequence[Table]
    goals: Sequence[Goal] = ()
    notes: Sequence[str] = ()

    def __str__(self) -> str:
        return "\n\n".join([*map(str, self.tables), *map(str, self.goals), *self.notes])


@dataclass
class Result:
    """A run of a script, as stored."""

    script: str
    quick: bool
    seconds: float
    machine: dict[str, str]
    created: str
    revision: str
    readings: list[Reading] = field(default_factory=list)


def machine() -> dict[str, str]:
    """Return the versions of Python and packages, and the system."""
    versions = {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, {processor()}",
    }
    for name in PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions


def revision(folder: Path = ROOT) -> str:
    """Return the git revision at which the package was last changed; empty without git.

    With `+changes` if the package or the scripts have uncommitted changes. What else is committed, such as the results
    of another script, changes no figure.
    """
    git = ["git", "--no-optional-locks", "-C", str(folder)]
    asked = (("log", "-1", "--format=%h", "--", PACKAGE), ("status", "--porcelain", "--", *CODE))
    try:
        head, changes = (
            subprocess.run([*git, *command], check=True, capture_output=True, text=True).stdout.strip()
            for command in asked
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return f"{head}+changes" if changes else head


Measure: TypeAlias = Callable[..., list[Reading]]
Reporter: TypeAlias = Callable[[list[Reading]], Report]


def main(
    file: str,
    about: str,
    measure: Measure,
    report: Reporter,
    worker: Callable[..., Any] | None = None,
    **sizes: int,
) -> None:
    """Run a script from its command line: measure, write the readings, print the report.

    `worker` runs in a fresh process, with the arguments given to `fresh_process`, and returns JSON data. Each of
    `sizes` is the default of an option `--NAME N`, which `measure` gets by name.
    """
    arguments, given = parsed(about, sizes)
    if arguments.worker is not None:
        assert worker is not None
        print(json.dumps(worker(**json.loads(arguments.worker))))
        return
    result = taken(Path(file).stem, measure, arguments.quick, sizes | given)
    if arguments.append and arguments.json and arguments.json.exists():
        before = stored.loads(arguments.json.read_text(encoding="utf-8"))
        result.readings[:0] = before["readings"]
        result.seconds += before["seconds"]
    # Before the report, so that the readings are kept if the report fails.
    if arguments.json:
        arguments.json.write_text(stored.dumps(asdict(result)), encoding="utf-8")
    print(report(result.readings))
    print(f"\n{', '.join(f'{name} {version}' for name, version in result.machine.items())}; {result.seconds:.0f} s")


def parsed(about: str, sizes: dict[str, int]) -> tuple[argparse.Namespace, dict[str, int]]:
    """Parse the arguments of a script. Returns them, and the sizes that were given."""
    parser = argparse.ArgumentParser(description=about.partition("\n")[0])
    parser.add_argument(
        "--quick", action="store_true", help="as little as shows that it works; the figures mean nothing"
    )
    parser.add_argument("--json", metavar="PATH", type=file_to_write, help="write all readings there")
    parser.add_argument("--append", action="store_true", help="keep the readings that PATH has, and report all")
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", metavar="N", type=size, help=f"default: {default}")
    parser.add_argument("--worker", metavar="ARGUMENTS", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    given = {name: getattr(arguments, name) for name in sizes if getattr(arguments, name) is not None}
    if arguments.quick and given:
        parser.error(f"--quick has sizes of its own: leave out --quick or {', '.join(f'--{name}' for name in given)}")
    return arguments, given


def file_to_write(text: str) -> Path:
    """Check a file name before the measurements, which may take half an hour."""
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{str(path)!r} is a folder: name a file in it")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {str(path.parent)!r}: make it, or name another")
    return path


def size(text: str) -> int:
    """Parse a number of at least 1."""
    with suppress(ValueError):
        if int(text) >= 1:
            return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is no size: give a whole number, 1 or more")


def taken(script: str, measure: Measure, quick: bool, sizes: dict[str, int]) -> Result:
    """Call `measure`. The revision is taken before, because the code may change meanwhile."""
    created, code, begin = datetime.now(UTC).isoformat(timespec="seconds"), revision(), time.monotonic()
    readings = measure(quick, **sizes)
    return Result(script, quick, round(time.monotonic() - begin, 1), machine(), created, code, readings)


def inherited() -> dict[str, str]:
    """Copy the environment without pytest's variables, because the script may run under pytest."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}


def fresh_process(file: str, *, seed: int | None = None, **arguments: Any) -> Any:
    """Call the script's `worker` in a new interpreter with a different hash seed."""
    seed = random.randrange(2**32) if seed is None else seed
    command = [sys.executable, file, "--worker", json.dumps(arguments)]
    done = subprocess.run(
        command, env={**inherited(), "PYTHONHASHSEED": str(seed)}, check=True, stdout=subprocess.PIPE, text=True
    )
    return json.loads(done.stdout.splitlines()[-1])


# Spins for `on` seconds and sleeps for `off` seconds, repeatedly, until its parent ends.
NEIGHBOUR = """
import os, sys, time
on, off = float(sys.argv[1]), float(sys.argv[2])
parent = os.getppid()
while os.getppid() == parent:
    end = time.monotonic() + on
    while time.monotonic() < end:
        pass
    time.sleep(off)
"""


@contextmanager
def neighbours(*rhythms: tuple[float, float]) -> Iterator[None]:
    """Run a noisy process for each pair of seconds to spin and seconds to sleep."""
    with background(NEIGHBOUR, *((str(on), str(off)) for on, off in rhythms)):
        yield


@contextmanager
def background(script: str, *arguments: tuple[str, ...]) -> Iterator[None]:
    """Run a process of this script for each tuple of arguments until the end of the block."""
    running = [subprocess.Popen([sys.executable, "-c", script, *own]) for own in arguments]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def per_cent(part: float, whole: float) -> str:
    """Format a share as a percentage."""
    return f"{100 * part / whole:.1f} %" if whole else "-"
