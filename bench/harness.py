"""What the bench scripts share: arguments, fresh processes, neighbours, tables, goals, JSON.

A script has `measure(quick) -> readings`, which takes the time, and `report(readings) -> Report`, which is pure and
says what they mean. `evidence.py` runs every script and writes their reports into `docs/evidence.md`.
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
from pathlib import Path
from typing import Any, TypeAlias

Reading: TypeAlias = dict[str, Any]

PACKAGES = ("pytest-mwbudget", "pytest", "starlette", "fastapi", "httpx", "uvicorn", "uvloop")


@dataclass(frozen=True)
class Table:
    """Rows of text under a heading; the columns of numbers are ranged right."""

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
    """What a script set out to show, and what it found."""

    goal: str
    found: str
    met: bool

    def __str__(self) -> str:
        return f"{'reached' if self.met else 'NOT reached'}: {self.goal}. Found: {self.found}."


@dataclass(frozen=True)
class Report:
    """What readings mean: for people."""

    tables: Sequence[Table]
    goals: Sequence[Goal] = ()
    notes: Sequence[str] = ()

    def __str__(self) -> str:
        return "\n\n".join([*map(str, self.tables), *map(str, self.goals), *self.notes])


@dataclass
class Result:
    """One run of one script, as it is stored."""

    script: str
    quick: bool
    seconds: float
    machine: dict[str, str]
    readings: list[Reading] = field(default_factory=list)


def machine() -> dict[str, str]:
    """What the readings were taken on."""
    found = {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, {processor()}",
    }
    for name in PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def processor() -> str:
    """The processor's name, where the system tells."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown processor"


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
    """The command line of a script: measure, print the report, write the readings.

    `worker` does the work of a fresh process, with the arguments that `fresh_process` was given, and returns what can
    be written as JSON. Each of `sizes`, a default number, is an option `--NAME N` that `measure` gets by name.
    """
    parser = argparse.ArgumentParser(description=about.partition("\n")[0])
    parser.add_argument(
        "--quick", action="store_true", help="as little as shows that it works; the figures mean nothing"
    )
    parser.add_argument("--json", metavar="PATH", type=Path, help="write all readings there")
    for name, size in sizes.items():
        parser.add_argument(f"--{name}", metavar="N", type=int, default=size, help=f"default: {size}")
    parser.add_argument("--worker", metavar="ARGUMENTS", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker is not None:
        assert worker is not None
        print(json.dumps(worker(**json.loads(arguments.worker))))
        return
    begin = time.monotonic()
    readings = measure(arguments.quick, **{name: getattr(arguments, name) for name in sizes})
    result = Result(Path(file).stem, arguments.quick, round(time.monotonic() - begin, 1), machine(), readings)
    print(report(readings))
    print(f"\n{', '.join(f'{name} {version}' for name, version in result.machine.items())}; {result.seconds:.0f} s")
    if arguments.json:
        arguments.json.write_text(json.dumps(asdict(result), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def fresh_process(file: str, *, seed: int | None = None, **arguments: Any) -> Any:
    """What the script's `worker` returns in a new interpreter, with a hash seed of its own."""
    seed = random.randrange(2**32) if seed is None else seed
    command = [sys.executable, file, "--worker", json.dumps(arguments)]
    # A pytest round this process, and its workers, are not the business of one that begins inside it.
    outer = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment = {**outer, "PYTHONHASHSEED": str(seed)}
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


# Spins for `on` seconds and sleeps for `off`, for ever: at most so long as whoever began it lives.
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
    """Processes that keep a core busy for so many seconds, then idle for so many, again and again."""
    with background(NEIGHBOUR, *((str(on), str(off)) for on, off in rhythms)):
        yield


@contextmanager
def background(script: str, *arguments: tuple[str, ...]) -> Iterator[None]:
    """A process of this script for each of these arguments, until the end."""
    running = [subprocess.Popen([sys.executable, "-c", script, *own]) for own in arguments]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def per_cent(part: float, whole: float) -> str:
    """A share as text."""
    return f"{100 * part / whole:.1f} %" if whole else "-"
