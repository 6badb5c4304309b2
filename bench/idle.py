"""What the plugin costs where nobody uses it: pytest with it installed and nothing marked, against `-p no:mwbudget`.

    python bench/idle.py [--quick] [--pairs N] [--json PATH]

Whole processes of pytest run in pairs, one with the plugin and one without, one right after the other, in random order.
They start up and collect (`--collect-only`) a file with one empty test, and a file with four hundred. They also run the
four hundred tests; the goal does not cover that. All other installed plugins are blocked by name in both processes,
because modules that they import would cost this plugin nothing. The first pair does not count: it writes the bytecode
(into a directory of its own) and fills the system's caches. Then one process of each kind lists the modules it has
imported: the list shows the plugin's modules in one, and none in the other. The differences of the pairs in wall time
and in processor time (user and system, of the process) are given as medians with a sign-test interval of 95 %.

A shared machine is slow for seconds at a time. So a fixed piece of work is timed before, between and after the two runs
of a pair, and only the half of the pairs counts in which the slowest of the three times was shortest. The choice never
sees the runs. The goal is reached if the whole interval is within the goal.

The number of instructions that a process executes does not depend on neighbours. If valgrind is installed, its
cachegrind counts the instructions of the same runs, outside the kernel, in pairs with the same hash seed. The range of
the pairs is compared with the goal of one per cent. The milliseconds beside the range assume the pace of the whole run;
instructions that run once find cold caches and take somewhat longer.
"""

from __future__ import annotations

import json
import math
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from harness import Goal, Reading, Report, Table, inherited, main

from pytest_mwbudget.analysis.intervals import median_interval
from pytest_mwbudget.model.estimate import Estimate

PAIRS, QUICK_PAIRS = 60, 2
ALPHA = 0.05
REFERENCE_ADDITIONS = 1_000_000  # some tens of milliseconds
COLLECT = ("--collect-only",)
# The number of empty tests in the file, and further options of pytest.
SUITES: dict[str, tuple[int, tuple[str, ...]]] = {
    "collect 1 test": (1, COLLECT),
    "collect 400 tests": (400, COLLECT),
    "run 400 tests": (400, ()),
}
CLOCKS = {"wall_ms": "wall", "cpu_ms": "processor"}
# The number of pairs, each with its own hash seed. Under cachegrind a process takes fifty times as long.
SEEDS, QUICK_SEEDS = 4, 1
CACHEGRIND = ("valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null")
COUNTED = re.compile(r"I\s+refs:\s+([\d,]+)")
GOAL_MS, GOAL_SHARE = 2.0, 0.01
PLUGIN, PACKAGE = "mwbudget", "pytest_mwbudget"
BLOCKED = {"with": (), "without": (PLUGIN,)}
# Runs pytest with the arguments after the first, and writes the names of all modules into the file named first.
LIST_MODULES = """
import json, sys
import pytest
status = pytest.main(sys.argv[2:])
with open(sys.argv[1], "w") as file:
    json.dump(sorted(sys.modules), file)
sys.exit(status)
"""


# ---- the processes ---------------------------------------------------------------------------------------------------


def options(suite: str, kind: str) -> list[str]:
    """Return the options of pytest: those of the suite, without other plugins, and with or without this one."""
    others = sorted({entry.name for entry in entry_points(group="pytest11")} - {PLUGIN})
    return ["-q", *SUITES[suite][1], *(f"-pno:{name}" for name in (*others, "cacheprovider", *BLOCKED[kind]))]


def run(command: Sequence[str], directory: Path) -> Reading:
    """Run a process, and return its wall and processor time from start to end, in milliseconds."""
    begin = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, *command], cwd=directory, stdout=subprocess.DEVNULL, env=environment(directory)
    )
    _, status, used = os.wait4(process.pid, 0)
    wall_ms = 1000 * (time.perf_counter() - begin)
    process.returncode = os.waitstatus_to_exitcode(status)  # else Popen would wait for the process again
    if process.returncode:
        raise RuntimeError(f"pytest ended with status {process.returncode}: {' '.join(command)}")
    return {"wall_ms": wall_ms, "cpu_ms": 1000 * (used.ru_utime + used.ru_stime)}


def environment(directory: Path) -> dict[str, str]:
    """Return variables that cache bytecode in `directory`; else every start would compile the plugin."""
    writing = {name: value for name, value in inherited().items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**writing, "PYTHONPYCACHEPREFIX": str(directory / "bytecode")}


def pair(suite: str, directory: Path) -> Reading:
    """Run pytest with and without the plugin, in random order, and time fixed work before, between and after."""
    reading: Reading = {}
    references_ms = [reference_ms()]
    for kind in random.sample(list(BLOCKED), len(BLOCKED)):
        reading[kind] = run(["-m", "pytest", *options(suite, kind)], directory)
        references_ms.append(reference_ms())
    return {**reading, "reference_ms": max(references_ms)}


def instructions(suite: str, kind: str, directory: Path, seed: int) -> int:
    """Count the instructions that a run of pytest executes outside the kernel."""
    command = [*CACHEGRIND, sys.executable, "-m", "pytest", *options(suite, kind)]
    seeded = {**environment(directory), "PYTHONHASHSEED": str(seed)}
    done = subprocess.run(command, cwd=directory, env=seeded, capture_output=True, text=True, check=True)
    return counted(done.stderr)


def counted(told: str) -> int:
    """Parse the number of instructions in the output of cachegrind."""
    match = COUNTED.search(told)
    if match is None:
        raise RuntimeError(f"cachegrind told no number of instructions: {told!r}")
    return int(match[1].replace(",", ""))


def reference_ms() -> float:
    """Time a fixed piece of work, in milliseconds."""
    begin = time.perf_counter()
    sum(range(REFERENCE_ADDITIONS))
    return 1000 * (time.perf_counter() - begin)


def modules(suite: str, kind: str, directory: Path) -> set[str]:
    """Return the names of all modules that a run of pytest imports."""
    path = directory / "modules.json"
    run(["-c", LIST_MODULES, str(path), *options(suite, kind)], directory)
    return set(json.loads(path.read_text(encoding="utf-8")))


def modules_added(suite: str, directory: Path) -> list[str]:
    """Return the modules that the plugin adds. RuntimeError if the runs do not differ by the plugin."""
    imported = {kind: modules(suite, kind, directory) for kind in BLOCKED}
    if f"{PACKAGE}.plugin" not in imported["with"]:
        raise RuntimeError(
            f"pytest with the plugin did not import {PACKAGE}.plugin: install it here ({sys.executable} -m pip install"
            " -e .)"
        )
    if f"{PACKAGE}.plugin" in imported["without"]:
        raise RuntimeError(
            f"pytest with -pno:{PLUGIN} imported {PACKAGE}.plugin: see which other plugin or .pth file imports it"
        )
    return sorted(imported["with"] - imported["without"])


def write_suite(directory: Path, tests: int) -> None:
    """Write a file of empty tests, and a configuration, so that pytest searches none in parent folders."""
    (directory / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    body = "".join(f"def test_{number}():\n    pass\n\n\n" for number in range(tests))
    (directory / "test_idle.py").write_text(body, encoding="utf-8")


def measure(quick: bool, pairs: int = PAIRS) -> list[Reading]:
    """Measure all pairs of all suites, and list the modules that the plugin adds."""
    readings: list[Reading] = []
    for suite, (tests, _) in SUITES.items():
        with TemporaryDirectory() as name:
            directory = Path(name)
            write_suite(directory, tests)
            pair(suite, directory)
            readings.append({"suite": suite, "modules": modules_added(suite, directory)})
            readings += [{"suite": suite, **pair(suite, directory)} for _ in range(QUICK_PAIRS if quick else pairs)]
            if SUITES[suite][1] == COLLECT:
                seeds = range(QUICK_SEEDS if quick else SEEDS)
                readings += [{"suite": suite, "instructions": by_kind} for by_kind in counts(suite, directory, seeds)]
    return readings


def counts(suite: str, directory: Path, seeds: Sequence[int]) -> list[dict[str, int] | None]:
    """Count the instructions of a pair for each hash seed; a single None without valgrind."""
    if shutil.which(CACHEGRIND[0]) is None:
        return [None]
    return [{kind: instructions(suite, kind, directory, seed) for kind in BLOCKED} for seed in seeds]


# ---- the report ------------------------------------------------------------------------------------------------------


def report(readings: list[Reading]) -> Report:
    """Report the cost of the plugin for each suite and clock, the goals, and the modules."""
    pairs = {
        suite: [reading for reading in readings if reading["suite"] == suite and "with" in reading] for suite in SUITES
    }
    timed = {suite: own for suite, own in pairs.items() if own}
    head = ["suite", "clock", "pairs", "without, ms", "with, ms", "added, ms", "interval", "added, %"]
    rows = [row(suite, clock, own) for suite, own in timed.items() for clock in CLOCKS]
    collected = {suite: own for suite, own in timed.items() if SUITES[suite][1] == COLLECT}
    tables = [Table("pytest with the plugin installed and nothing marked, against pytest without it", head, rows)]
    goals = [goal(suite, clock, own) for suite, own in collected.items() for clock in CLOCKS]
    executed = {suite: numbers for suite in SUITES if (numbers := instructions_of(readings, suite))}
    if executed:
        tables.append(instructions_table(executed, timed))
        goals += [instructions_goal(suite, numbers) for suite, numbers in executed.items()]
    return Report(
        tables,
        goals,
        [*per_test(timed), *notes(readings)],
    )


def quicker_half(pairs: Sequence[Reading]) -> list[Reading]:
    """Return the half of the pairs during which the machine was faster."""
    ordered = sorted(pairs, key=lambda reading: float(reading["reference_ms"]))
    return ordered[: math.ceil(len(ordered) / 2)]


def added(clock: str, pairs: Sequence[Reading]) -> Estimate:
    """Estimate the added milliseconds: the median difference of the pairs of the quicker half, with its interval."""
    return median_interval(
        [reading["with"][clock] - reading["without"][clock] for reading in quicker_half(pairs)], ALPHA
    )


def typical(kind: str, clock: str, pairs: Sequence[Reading]) -> float:
    """Return the median milliseconds of the runs of a kind, over the quicker half."""
    return float(median(reading[kind][clock] for reading in quicker_half(pairs)))


def row(suite: str, clock: str, pairs: Sequence[Reading]) -> list[str]:
    """Write a row: the cost of the plugin for a suite by one clock."""
    more, without = added(clock, pairs), typical("without", clock, pairs)
    return [
        suite,
        CLOCKS[clock],
        str(len(pairs)),
        f"{without:.1f}",
        f"{typical('with', clock, pairs):.1f}",
        f"{more.estimate:+.2f}",
        f"{more.low:+.2f} to {more.high:+.2f}",
        f"{100 * more.estimate / without:+.2f}",
    ]


def goal(suite: str, clock: str, pairs: Sequence[Reading]) -> Goal:
    """Judge whether the whole interval of the added time by one clock is within both limits."""
    more, without = added(clock, pairs), typical("without", clock, pairs)
    return Goal(
        f"{suite}, {CLOCKS[clock]} time: at most {GOAL_MS:g} ms and {100 * GOAL_SHARE:g} % more",
        f"{more.estimate:+.2f} ms ({more.low:+.2f} to {more.high:+.2f}), {100 * more.estimate / without:+.2f} %",
        more.high <= min(GOAL_MS, GOAL_SHARE * without),
        "Times of whole processes vary by more than the goal; their instructions do not.",
    )


def instructions_of(readings: Sequence[Reading], suite: str) -> list[dict[str, int]]:
    """Return the instructions of a suite's pairs, by kind of run."""
    return [
        reading["instructions"] for reading in readings if reading["suite"] == suite and reading.get("instructions")
    ]


def shares(numbers: Sequence[Mapping[str, int]]) -> list[float]:
    """Return the share of added instructions of each pair, in ascending order."""
    return sorted(by_kind["with"] / by_kind["without"] - 1 for by_kind in numbers)


def instructions_table(
    executed: Mapping[str, Sequence[Mapping[str, int]]], timed: Mapping[str, Sequence[Reading]]
) -> Table:
    """Write the table of instructions."""
    head = ("suite", "pairs", "without, millions", "added, millions", "added, %", "range, %", "at this pace, ms")
    rows = []
    for suite, numbers in executed.items():
        more, without = shares(numbers), median(by_kind["without"] for by_kind in numbers) / 1e6
        rows.append(
            [
                suite,
                str(len(numbers)),
                f"{without:.0f}",
                f"{median(more) * without:+.2f}",
                f"{100 * median(more):+.2f}",
                f"{100 * more[0]:+.2f} to {100 * more[-1]:+.2f}",
                f"{median(more) * typical('without', 'wall_ms', timed[suite]):+.2f}",
            ]
        )
    return Table("Instructions of the same processes", head, rows)


def instructions_goal(suite: str, numbers: Sequence[Mapping[str, int]]) -> Goal:
    """Judge whether every pair is within `GOAL_SHARE`."""
    more = shares(numbers)
    return Goal(
        f"{suite}, instructions: at most {100 * GOAL_SHARE:g} % more",
        f"{100 * median(more):+.2f} % ({100 * more[0]:+.2f} to {100 * more[-1]:+.2f})",
        more[-1] <= GOAL_SHARE,
    )


def per_test(timed: Mapping[str, Sequence[Reading]]) -> Iterator[str]:
    """Yield a note on the processor time that the plugin adds to each test that runs."""
    for suite, pairs in timed.items():
        tests, how = SUITES[suite]
        if how != COLLECT:
            more = added("cpu_ms", pairs) * (1000 / tests)
            yield (
                f"{suite}: {more.estimate:.0f} µs of processor time a test that has nothing to do with the plugin"
                f" ({more.low:.0f} to {more.high:.0f}), start-up shared out among them; no part of the goal."
            )


def notes(readings: Sequence[Reading]) -> Iterator[str]:
    """Yield notes on the modules that the plugin imports, and on missing counts of instructions."""
    for reading in readings:
        if "modules" in reading:
            own = [name for name in reading["modules"] if name.partition(".")[0] == PACKAGE]
            others = [name for name in reading["modules"] if name not in own]
            yield (
                f"{reading['suite']}: {len(reading['modules'])} more modules with the plugin, {len(own)} of them its"
                f" own ({', '.join(own) or 'none'}), and of others: {', '.join(others) or 'none'}."
            )
    if any(reading.get("instructions", ...) is None for reading in readings):
        yield "Instructions were not counted: valgrind is not installed (the package of that name has it)."


if __name__ == "__main__":
    main(__file__, __doc__, measure, report, pairs=PAIRS)
