"""What `mwbudget versus` finds: layers of 100 µs that grow by a known amount, and layers that do not grow.

    python bench/versus.py [--quick] [--runs N] [--processes N] [--seconds N] [--json PATH]

An app of Starlette has CORSMiddleware and layers that work for about 100 µs each. In its second version one of them is
as before, one does one attribute access more, one makes one call more, and the work of three is 1 %, 5 % and 20 %
longer. Another app has CORSMiddleware and one such layer, which makes one task more; it has an app of its own because
each row inside a layer that waits finds colder caches. Each run compares the two versions of an app as `mwbudget
versus --app-a … --app-b … --fail us:1%` does, in fresh processes, and ends after N seconds (`--seconds`), or earlier
when every limit is decided. Runs are made on the machine as it is, and beside two processes that do nothing but
compute. A change is found if the whole interval of its layer is above zero, and fails if it is above what `--fail`
allows. The counts of the same runs are told too.

A false alarm is a limit that fails, of a row that did not change. Real runs are too few to show a rare one. So
processes of an app with one such layer are stored, and 200 runs are drawn from them: a run begins at a random place,
takes neighbours as pairs, each side by chance, and goes on with further random places. The intervals, looks and ends
are those of the command; a run has as many pairs as fit into two minutes at the pace of the stored processes. 200 more
runs are drawn in which every time of the layer in the second version is 5 % longer.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from harness import Goal, Reading, Report, Table, main, neighbours

from pytest_mwbudget.comparison.allowed import parsed
from pytest_mwbudget.comparison.figures import RequestFigures, RowFigures
from pytest_mwbudget.comparison.outcome import Comparison
from pytest_mwbudget.comparison.pairs import Process
from pytest_mwbudget.model.estimate import Estimate
from pytest_mwbudget.model.request_keys import RequestKey
from pytest_mwbudget.model.stack import OUTSIDE, TOTAL
from pytest_mwbudget.versus.comparing import TIME_S, Comparing
from pytest_mwbudget.versus.order import Statement
from pytest_mwbudget.versus.sides import Ran, Side, run

RUNS, PROCESSES, SECONDS, DRAWN = 6, 400, 120, 200
WORK_US = 100.0
LIMIT = "us:1%"


@dataclass(frozen=True)
class Grown:
    """What the second version of a layer does besides its work, and how many times as long it works."""

    name: str
    change: str
    more: str = "pass"
    factor: float = 1.0


SAME = Grown("Work", "nothing")
APPS: dict[str, tuple[Grown, ...]] = {
    "work": (
        SAME,
        Grown("WithAttribute", "one attribute access", "self.app"),
        Grown("WithCall", "one call", "int()"),
        Grown("Longer1", "1 %", factor=1.01),
        Grown("Longer5", "5 %", factor=1.05),
        Grown("Longer20", "20 %", factor=1.2),
    ),
    "task": (Grown("WithTask", "one task", "await asyncio.ensure_future(asyncio.sleep(0))"),),
    "alone": (SAME,),
}
LAYERS = [layer for app in ("work", "task") for layer in APPS[app]]
CONDITIONS: dict[str, tuple[tuple[float, float], ...]] = {
    "as it is": (),
    "two busy neighbours": ((1.0, 0.0), (1.0, 0.0)),
}
GOAL_FOUND = 0.9
FEW_PAIRS = "A layer differs by some per cent from process to process, and few pairs of processes fit into the time."
HEAD = """
import asyncio
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route


def work(rounds):
    table = {}
    for number in range(rounds):
        table[number & 31] = number * number


async def health(request):
    return PlainTextResponse("ok")
"""
VERSION = """

class {name}{version}:
    def __init__(self, app, rounds):
        self.app = app
        self.rounds = rounds

    async def __call__(self, scope, receive, send):
        work(self.rounds)
        {more}
        await self.app(scope, receive, send)


{name}{version}.__name__ = {name}{version}.__qualname__ = "{name}"
"""
FACTORY = """

def create_app(version, layers):
    own = [Middleware(globals()[f"{name}{version}"], rounds=rounds) for name, rounds in layers.items()]
    layers = [Middleware(CORSMiddleware, allow_origins=["*"]), *own]
    return Starlette(routes=[Route("/health", health)], middleware=layers)
"""
# Plugins of the environment that are not needed would only make each process start more slowly.
ARGUMENTS = ("-p", "pytest_mwbudget.plugin", "-p", "no:asyncio", "--mw-budget-request=/health")
KEY = RequestKey("mw-budget::GET /health", "GET /health")


# ---- real runs -------------------------------------------------------------------------------------------------------


def measure(quick: bool, runs: int = RUNS, processes: int = PROCESSES, seconds: int = SECONDS) -> list[Reading]:
    """Make the runs and the stored processes."""
    conditions = dict(CONDITIONS)
    if quick:
        runs, processes, seconds, conditions = 1, 4, 15, {"as it is": ()}
    readings: list[Reading] = []
    with apps() as folder:
        rounds = rounds_of()
        for number in range(runs):
            for condition, rhythms in conditions.items():
                with neighbours(*rhythms):
                    readings += [one_run(folder, rounds, app, condition, seconds) for app in ("work", "task")]
                    # Processes are stored between the runs, so that both see the machine at all times.
                    share = processes // len(conditions)
                    more = (number + 1) * share // runs - number * share // runs
                    readings += [stored_process(folder, rounds, condition) for _ in range(more)]
    return readings


@contextmanager
def apps() -> Iterator[Path]:
    """Write the module with all versions to a directory, which is the working directory in the block."""
    versions = (
        VERSION.format(name=layer.name, version=version, more=more)
        for layer in LAYERS
        for version, more in enumerate(("pass", layer.more))
    )
    before, plugins = Path.cwd(), os.environ.get("PYTEST_DISABLE_PLUGIN_AUTOLOAD")
    with TemporaryDirectory(prefix="mwbudget-bench-") as folder:
        Path(folder, "grown.py").write_text("".join([HEAD, *versions, FACTORY]), encoding="utf-8")
        os.chdir(folder)
        os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        try:
            yield Path(folder)
        finally:
            os.chdir(before)
            if plugins is None:
                del os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"]


def rounds_of() -> int:
    """Return how many rounds of work take WORK_US on this machine at its best."""
    space: dict[str, Any] = {}
    exec(compile(HEAD, "work", "exec"), space)

    def taken_ns(rounds: int) -> int:
        begin = time.perf_counter_ns()
        space["work"](rounds)
        return time.perf_counter_ns() - begin

    return round(1000 * WORK_US * 1000 / min(taken_ns(1000) for _ in range(2000)))


def side(name: str, folder: Path, app: str, version: int, rounds: int) -> Side:
    """Return a side with a version of an app."""
    return Side(name, folder, folder, folder, [*ARGUMENTS, f"--mw-budget-app={factory(app, version, rounds)}"])


def factory(app: str, version: int, rounds: int) -> str:
    """Return the call that makes a version of an app."""
    layers = {layer.name: round(rounds * layer.factor) if version else rounds for layer in APPS[app]}
    return f"grown:create_app({version}, {layers})"


def one_run(folder: Path, rounds: int, app: str, condition: str, seconds: int) -> Reading:
    """Compare the two versions of an app."""
    sides = (side("A", folder, app, 0, rounds), side("B", folder, app, 1, rounds))
    end_s = time.perf_counter() + seconds
    comparing = Comparing(*sides, parsed(LIMIT, "LIMIT"), end_s, ignored, ignored, ignored, run=patient)
    changes = [change for _, change in comparing.comparison().changes]
    times = [change for change in changes if not change.traits.counted]
    return {
        "kind": "run",
        "condition": condition,
        "app": app,
        "pairs": len(comparing.pairs),
        "seconds": round(comparing.seconds, 1),
        "before_us": {change.row: round(change.before.estimate, 3) for change in times if change.before},
        "by_us": {
            change.row: [round(end, 3) for end in (change.change.estimate, change.change.low, change.change.high)]
            for change in times
            if change.change
        },
        "slower": [change.row for change in times if change.word == "slower"],
        "failed": [change.row for change in times if change.verdict == "fail"],
        "undecided": [change.row for change in times if change.verdict == "undecided"],
        "counts": {
            layer.name: {
                change.quantity: change.change.low
                for change in changes
                if change.row == layer.name and change.traits.counted and change.change
            }
            for layer in APPS[app]
        },
    }


def patient(side: Side, time_s: float, seed: int, limit_s: float) -> Ran:
    """Run a process of a pair. On a busy machine the first pair may take longer than a whole run with --quick."""
    return run(side, time_s, seed, max(limit_s, SECONDS))


def ignored(*arguments: object) -> None:
    """Do nothing with what a comparison tells."""


def stored_process(folder: Path, rounds: int, condition: str) -> Reading:
    """Measure the unchanged app in a process, as one side of a run does."""
    begin = time.monotonic()
    ran = run(side("A", folder, "alone", 0, rounds), TIME_S, random.randrange(2**32), SECONDS)
    (figures,) = ran.process.values()
    rows = {name: row.figures["us"].estimate for name, row in figures.rows.items() if "us" in row.figures}
    rows.pop(TOTAL)
    return {
        "kind": "process",
        "condition": condition,
        "seconds": round(time.monotonic() - begin, 2),
        "reference_ns": figures.reference_ns,
        "outside_us": round(rows.pop(OUTSIDE), 4),
        "rows": {name: round(us, 4) for name, us in rows.items()},
    }


# ---- runs that are drawn -------------------------------------------------------------------------------------------


def as_measured(reading: Reading, factor: float) -> Process:
    """Return a stored process as if its layer took `factor` times as long. Pairs use no intervals of single times."""
    times = {OUTSIDE: reading["outside_us"], **reading["rows"]}
    times[SAME.name] *= factor
    rows = {name: RowFigures({"us": Estimate(us, us, us)}) for name, us in times.items()}
    return {KEY: RequestFigures("asyncio", rows, reference_ns=reading["reference_ns"])}


@dataclass
class Drawn:
    """Draws runs from stored processes of one condition."""

    processes: Sequence[Reading]
    rng: random.Random

    def run(self, factor: float) -> Comparison:
        """Return what a run of SECONDS says if the layer of one side takes `factor` times as long."""
        self.now_s, self.waiting = 0.0, {}
        a, b = (Side(name, Path(), Path(), Path(), []) for name in ("A", "B"))

        def take(which: Side, time_s: float, seed: int, limit_s: float) -> Ran:
            if seed not in self.waiting:
                place = self.rng.randrange(len(self.processes) - 1)
                pair = [self.processes[place], self.processes[place + 1]]
                self.rng.shuffle(pair)
                self.waiting[seed] = pair
            reading = self.waiting[seed].pop()
            self.now_s += reading["seconds"]
            return Ran(as_measured(reading, factor if which is b else 1.0), Statement(), "")

        comparing = Comparing(
            a, b, parsed(LIMIT, "LIMIT"), SECONDS, ignored, ignored, ignored, take, lambda: self.now_s
        )
        return comparing.comparison()


def drawn(readings: Sequence[Reading], factor: float, runs: int) -> dict[str, int]:
    """Draw runs, as many from each condition, and count what they say."""
    counted: Counter[str] = Counter()
    conditions = sorted({reading["condition"] for reading in readings})
    for number in range(runs):
        condition = conditions[number % len(conditions)]
        own = [reading for reading in readings if reading["condition"] == condition]
        comparison = Drawn(own, random.Random(number)).run(factor)
        slower = [change.row for _, change in comparison.changes if change.word == "slower"]
        failed = [change.row for _, change in comparison.judged("fail")]
        counted["fail"] += bool(failed)
        counted["slower"] += bool(slower)
        counted["layer slower"] += SAME.name in slower
        counted["layer fails"] += SAME.name in failed
    return dict(counted)


# ---- the report ------------------------------------------------------------------------------------------------------


def report(readings: list[Reading]) -> Report:
    """Say how often each change was found, by times and by counts, and how often there was a false alarm."""
    runs = [reading for reading in readings if reading["kind"] == "run"]
    processes = [reading for reading in readings if reading["kind"] == "process"]
    tables = [times_table(runs), counts_table(runs)]
    same = [(row, reading) for reading in runs for row in unchanged(reading["app"], reading["by_us"])]
    alarms = sum(row in reading["failed"] for row, reading in same)
    # Stored runs may have been made in further conditions, which the tables show.
    grown = [reading for reading in runs if "Longer5" in reading["by_us"] and reading["condition"] in CONDITIONS]
    hits = sum("Longer5" in reading["slower"] for reading in grown)
    goals = [
        Goal("no false alarm in real runs", f"{alarms} of {len(same)} rows", bool(same) and not alarms),
        Goal(
            f"5 % of a layer of 100 µs found in nine of ten runs of at most {SECONDS} s",
            f"{hits} of {len(grown)}",
            bool(grown) and hits >= GOAL_FOUND * len(grown),
            FEW_PAIRS,
        ),
    ]
    if len(processes) > 2 * len(CONDITIONS):
        alike, longer = (drawn(processes, factor, DRAWN) for factor in (1.0, 1.05))
        goals += [
            Goal(
                f"no false alarm in {DRAWN} runs drawn from {len(processes)} processes",
                str(alike["fail"]),
                not alike["fail"],
            ),
            Goal(
                f"5 % found in nine of ten of {DRAWN} drawn runs",
                f"{longer['layer slower']} of {DRAWN}",
                longer["layer slower"] >= GOAL_FOUND * DRAWN,
                FEW_PAIRS,
            ),
        ]
        rows = [
            [name, str(counts["slower"]), str(counts["fail"]), str(counts["layer slower"]), str(counts["layer fails"])]
            for name, counts in ((SAME.change, alike), ("5 %", longer))
        ]
        head = ["the layer grows by", "a row is slower", "a limit fails", "the layer is slower", "the layer fails"]
        tables.append(Table(f"{DRAWN} runs each, drawn from {len(processes)} stored processes", head, rows))
    return Report(tables, goals)


def unchanged(app: str, rows: Collection[str]) -> list[str]:
    """Return the rows that do not change. Whatever is outside a layer that waits is resumed once more."""
    if app == "task":
        return ["ExceptionMiddleware", "(endpoint)"]
    changed = {"(total)", *(layer.name for layer in APPS[app] if layer is not SAME)}
    return [row for row in rows if row not in changed]


def groups(runs: Sequence[Reading]) -> Iterator[tuple[str, Grown, list[Reading]]]:
    """Yield the runs of each change and condition."""
    for condition in dict.fromkeys(reading["condition"] for reading in runs):
        for layer in LAYERS:
            own = [reading for reading in runs if reading["condition"] == condition and layer.name in reading["by_us"]]
            if own:
                yield f"{layer.change} ({condition})", layer, own


def times_table(runs: Sequence[Reading]) -> Table:
    """Return what times say."""
    rows = []
    for name, layer, own in groups(runs):
        by_us = [reading["by_us"][layer.name] for reading in own]
        true_us = [reading["before_us"][layer.name] * (layer.factor - 1) for reading in own]
        known = layer.more == "pass"
        held = sum(low <= true <= high for (_, low, high), true in zip(by_us, true_us, strict=True))
        rows.append(
            [
                name,
                str(len(own)),
                *(
                    str(sum(layer.name in reading[word] for reading in own))
                    for word in ("slower", "failed", "undecided")
                ),
                f"{median(true_us):.2f}" if known else "-",
                f"{median(estimate for estimate, _, _ in by_us):.2f}",
                f"{median((high - low) / 2 for _, low, high in by_us):.2f}",
                str(held) if known else "-",
                f"{median(reading['pairs'] for reading in own):.0f}",
                f"{median(reading['seconds'] for reading in own):.0f}",
            ]
        )
    head = ["the layer grows by", "runs", "slower", "fails", "undecided", "true µs", "µs", "± µs", "held", "pairs", "s"]
    return Table(f"Times, with --fail {LIMIT}", head, rows)


def counts_table(runs: Sequence[Reading]) -> Table:
    """Return what counts say: in how many runs each has certainly grown."""
    asked = ("objects", "tasks", "bytecodes", "calls", "py_calls")
    rows = [
        [name, *(str(sum(reading["counts"][layer.name].get(quantity, 0) > 0 for reading in own)) for quantity in asked)]
        for name, layer, own in groups(runs)
    ]
    return Table("Counts of the layer: runs in which they have grown", ["the layer grows by", *asked], rows)


if __name__ == "__main__":
    main(__file__, __doc__ or "", measure, report, runs=RUNS, processes=PROCESSES, seconds=SECONDS)
