"""What `mwbudget versus` finds: a layer of 100 µs that grows by a known amount, and a layer that does not grow.

    python bench/versus.py [--quick] [--runs N] [--processes N] [--seconds N] [--json PATH]

An app of Starlette has CORSMiddleware and a layer that works for about 100 µs. In the second version of the app this
layer does more: one attribute access, one call, one task, or its work is 1 %, 5 % or 20 % longer. Each run compares the
two versions as `mwbudget versus --app-a … --app-b … --fail us:1%` does, in fresh processes, for at most two minutes.
It ends earlier when every limit is decided. Runs are made on the machine as it is, and beside two processes that do
nothing but compute. A change is found if the whole interval of the layer is above zero, and fails if it is
above what `--fail` allows. The counts of the same runs are told too.

A false alarm is a limit that fails, of any row, although nothing changed. Real runs are too few to show a rare one. So
processes of the same app are stored, and 200 runs are drawn from them: a run begins at a random place, takes neighbours
as pairs, each side by chance, and goes on with further random places. The intervals, looks and ends are those of the
command; a run has as many pairs as fit into two minutes at the pace of the stored processes. 200 more runs are drawn in
which every time of the layer in the second version is 5 % longer.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from harness import Goal, Reading, Report, Table, main, neighbours

from pytest_mwbudget.comparison.allowed import parsed
from pytest_mwbudget.comparison.pairs import Change, Changes, Process
from pytest_mwbudget.model.estimate import Estimate
from pytest_mwbudget.model.request_keys import RequestKey
from pytest_mwbudget.model.results import Books, Count, Counts, LayerReport, Ledger, RequestLine, Result
from pytest_mwbudget.model.stack import Layer
from pytest_mwbudget.versus.comparing import TIME_S, Comparing
from pytest_mwbudget.versus.order import Told
from pytest_mwbudget.versus.processes import Ran, Side, run

RUNS, PROCESSES, SECONDS, DRAWN = 20, 400, 120, 200
WORK_US = 100.0
LIMIT = "us:1%"
NOTHING = "nothing"
# What the second version of the layer does besides its work, and how many times as long it works.
CHANGES: dict[str, tuple[str, float]] = {
    NOTHING: ("", 1.0),
    "one attribute access": ("self.app", 1.0),
    "one call": ("int()", 1.0),
    "one task": ("await asyncio.ensure_future(asyncio.sleep(0))", 1.0),
    "1 %": ("", 1.01),
    "5 %": ("", 1.05),
    "20 %": ("", 1.2),
}
CONDITIONS: dict[str, tuple[tuple[float, float], ...]] = {
    "as it is": (),
    "two busy neighbours": ((1.0, 0.0), (1.0, 0.0)),
}
GOAL_FOUND = 0.9
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

class Work{number}:
    def __init__(self, app, rounds):
        self.app = app
        self.rounds = rounds

    async def __call__(self, scope, receive, send):
        work(self.rounds)
        {more}
        await self.app(scope, receive, send)


Work{number}.__name__ = Work{number}.__qualname__ = "Work"
"""
FACTORY = """

def create_app(version, rounds):
    layers = [Middleware(CORSMiddleware, allow_origins=["*"]), Middleware(globals()[f"Work{version}"], rounds=rounds)]
    return Starlette(routes=[Route("/health", health)], middleware=layers)
"""
# Plugins of the environment that are not needed would only make each process start more slowly.
ARGUMENTS = ("-p", "pytest_mwbudget.plugin", "-p", "no:asyncio", "--mw-budget-request=/health")
KEY = RequestKey("mw-budget::GET /health", "GET /health")
LAYER = "Work"


# ---- real runs -------------------------------------------------------------------------------------------------------


def measure(quick: bool, runs: int = RUNS, processes: int = PROCESSES, seconds: int = SECONDS) -> list[Reading]:
    """Make the runs and the stored processes."""
    conditions, changes = dict(CONDITIONS), list(CHANGES)
    if quick:
        runs, processes, seconds = 1, 4, 15
        conditions, changes = {"as it is": ()}, [NOTHING, "20 %"]
    readings: list[Reading] = []
    with apps() as folder:
        rounds = rounds_of()
        for number in range(runs):
            for condition, rhythms in conditions.items():
                with neighbours(*rhythms):
                    readings += [one_run(folder, rounds, change, condition, seconds) for change in changes]
                    # Processes are stored between the runs, so that both see the machine at all times.
                    share = processes // len(conditions)
                    more = (number + 1) * share // runs - number * share // runs
                    readings += [stored_process(folder, rounds, condition) for _ in range(more)]
    return readings


@contextmanager
def apps() -> Iterator[Path]:
    """Write the module with all versions to a directory, which is the working directory in the block."""
    versions = (VERSION.format(number=number, more=more) for number, (more, _) in enumerate(CHANGES.values()))
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


def side(name: str, folder: Path, change: str, rounds: int) -> Side:
    """Return a side whose layer has changed."""
    version, factor = list(CHANGES).index(change), CHANGES[change][1]
    app = f"--mw-budget-app=grown:create_app({version}, {round(rounds * factor)})"
    return Side(name, folder, folder, folder, [*ARGUMENTS, app])


def one_run(folder: Path, rounds: int, change: str, condition: str, seconds: int) -> Reading:
    """Compare the layer as it is with the changed layer."""
    sides = (side("A", folder, NOTHING, rounds), side("B", folder, change, rounds))
    comparing = Comparing(*sides, parsed(LIMIT, "LIMIT"), time.perf_counter() + seconds, ignored, ignored, ignored)
    found = comparing.changes()
    work = of_layer(found)
    counts = {
        one.quantity: [one.by.low, one.by.high] for one in found.counts if one.row.name == LAYER and one.word != "same"
    }
    return {
        "kind": "run",
        "condition": condition,
        "change": change,
        "pairs": len(comparing.pairs),
        "seconds": round(comparing.seconds, 1),
        "before_us": round(work.before or 0.0, 3),
        "by_us": [round(end, 3) for end in (work.by.estimate, work.by.low, work.by.high)],
        "slower": [one.row.name for one in found.times if one.word == "more"],
        "failed": [one.row.name for one in found.times if one.verdict == "fail"],
        "undecided": [one.row.name for one in found.times if one.verdict == "undecided"],
        "counts": counts,
    }


def ignored(*arguments: object) -> None:
    """Do nothing with what a comparison tells."""


def of_layer(found: Changes) -> Change:
    """Return the change of the time of the layer."""
    return next(one for one in found.times if one.row.name == LAYER)


def stored_process(folder: Path, rounds: int, condition: str) -> Reading:
    """Measure the unchanged app in a process, as one side of a run does."""
    begin = time.monotonic()
    ran = run(side("A", folder, NOTHING, rounds), TIME_S, random.randrange(2**32), SECONDS)
    ((_, result),) = ran.process.results.items()
    assert result.books is not None
    rows = {report.name: report.us for report in result.layers} | {"(endpoint)": result.books.endpoint}
    return {
        "kind": "process",
        "condition": condition,
        "seconds": round(time.monotonic() - begin, 2),
        "reference_ns": next(iter(ran.process.reference_ns.values())),
        "outside_us": round(result.books.outside.estimate, 4),
        "rows": {name: round(us.estimate, 4) for name, us in rows.items() if us is not None},
    }


# ---- runs that are drawn -------------------------------------------------------------------------------------------


ZERO = Count(0, 0, 0)
NO_COUNTS = Counts(ZERO, ZERO, ZERO, ZERO, ZERO, ZERO, ZERO, ZERO, ZERO)


def as_measured(reading: Reading, factor: float) -> Process:
    """Return a stored process as if its layer took `factor` times as long."""
    rows = {name: us * factor if name == LAYER else us for name, us in reading["rows"].items()}
    endpoint = exactly(rows.pop("(endpoint)"))
    layers = tuple(
        LayerReport(Layer(index, name, name, "class"), exactly(us), "split")
        for index, (name, us) in enumerate(rows.items())
    )
    books = Books(ZERO_US, exactly(reading["outside_us"]), endpoint, 0.0)
    ledger = Ledger(NO_COUNTS, NO_COUNTS, NO_COUNTS, 1)
    result = Result(request=RequestLine("GET", "/health"), status=200, layers=layers, books=books, ledger=ledger)
    return Process({KEY: result}, {KEY: reading["reference_ns"]})


ZERO_US = Estimate(0.0, 0.0, 0.0)


def exactly(us: float) -> Estimate:
    """Return a time without an interval, which pairs do not use."""
    return Estimate(us, us, us)


@dataclass
class Drawn:
    """Draws runs from stored processes of one condition."""

    processes: Sequence[Reading]
    rng: random.Random

    def run(self, factor: float) -> Changes:
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
            return Ran(as_measured(reading, factor if which is b else 1.0), Told(), "")

        comparing = Comparing(
            a, b, parsed(LIMIT, "LIMIT"), SECONDS, ignored, ignored, ignored, take, lambda: self.now_s
        )
        return comparing.changes()


def drawn(readings: Sequence[Reading], factor: float, runs: int) -> dict[str, int]:
    """Draw runs, as many from each condition, and count what they say."""
    counted: Counter[str] = Counter()
    conditions = sorted({one["condition"] for one in readings})
    for number in range(runs):
        condition = conditions[number % len(conditions)]
        own = [one for one in readings if one["condition"] == condition]
        found = Drawn(own, random.Random(number)).run(factor)
        failed = [one.row.name for one in found.times if one.verdict == "fail"]
        counted["fail"] += bool(failed)
        counted["slower"] += any(one.word == "more" for one in found.times)
        counted["layer slower"] += of_layer(found).word == "more"
        counted["layer fails"] += LAYER in failed
    return dict(counted)


# ---- the report ------------------------------------------------------------------------------------------------------


def report(readings: list[Reading]) -> Report:
    """Say how often each change was found, by times and by counts, and how often there was a false alarm."""
    runs = [one for one in readings if one["kind"] == "run"]
    processes = [one for one in readings if one["kind"] == "process"]
    tables = [times_table(runs), counts_table(runs)]
    unchanged, grown = ([one for one in runs if one["change"] == change] for change in (NOTHING, "5 %"))
    alarms = sum(bool(one["failed"]) for one in unchanged)
    hits = sum(LAYER in one["slower"] for one in grown)
    goals = [
        Goal("no false alarm in real runs", f"{alarms} in {len(unchanged)}", bool(unchanged) and not alarms),
        Goal(
            f"5 % of a layer of 100 µs found in nine of ten runs of at most {SECONDS} s",
            f"{hits} of {len(grown)}",
            bool(grown) and hits >= GOAL_FOUND * len(grown),
        ),
    ]
    if len(processes) > 2 * len(CONDITIONS):
        same, longer = (drawn(processes, factor, DRAWN) for factor in (1.0, 1.05))
        goals += [
            Goal(
                f"no false alarm in {DRAWN} runs drawn from {len(processes)} processes",
                str(same["fail"]),
                not same["fail"],
            ),
            Goal(
                f"5 % found in nine of ten of {DRAWN} drawn runs",
                f"{longer['layer slower']} of {DRAWN}",
                longer["layer slower"] >= GOAL_FOUND * DRAWN,
            ),
        ]
        rows = [
            [name, str(one["slower"]), str(one["fail"]), str(one["layer slower"]), str(one["layer fails"])]
            for name, one in ((NOTHING, same), ("5 %", longer))
        ]
        head = ["the layer grows by", "a row is slower", "a limit fails", "the layer is slower", "the layer fails"]
        tables.append(Table(f"{DRAWN} runs each, drawn from {len(processes)} stored processes", head, rows))
    return Report(tables, goals)


def groups(runs: Sequence[Reading]) -> Iterator[tuple[str, list[Reading]]]:
    """Yield the runs of each change and condition."""
    for condition in CONDITIONS:
        for change in CHANGES:
            own = [one for one in runs if (one["condition"], one["change"]) == (condition, change)]
            if own:
                yield f"{change} ({condition})", own


def times_table(runs: Sequence[Reading]) -> Table:
    """Return what times say."""
    rows = []
    for name, own in groups(runs):
        estimates = sorted(one["by_us"][0] for one in own)
        widths = [(one["by_us"][2] - one["by_us"][1]) / 2 for one in own]
        rows.append(
            [
                name,
                str(len(own)),
                str(sum(LAYER in one["slower"] for one in own)),
                str(sum(LAYER in one["failed"] for one in own)),
                str(sum(LAYER in one["undecided"] for one in own)),
                str(sum(any(row != LAYER for row in one["failed"]) for one in own)),
                f"{median(estimates):.2f}",
                f"{median(widths):.2f}",
                f"{median(one['pairs'] for one in own):.0f}",
                f"{median(one['seconds'] for one in own):.0f}",
            ]
        )
    head = ["the layer grows by", "runs", "slower", "fails", "undecided", "others fail", "µs", "± µs", "pairs", "s"]
    return Table(f"Times, with --fail {LIMIT}", head, rows)


def counts_table(runs: Sequence[Reading]) -> Table:
    """Return what counts say: in how many runs each has certainly grown."""
    quantities = list(dict.fromkeys(quantity for one in runs for quantity in one["counts"]))
    rows = [
        [name, *(str(sum(one["counts"].get(quantity, [0])[0] > 0 for one in own)) for quantity in quantities)]
        for name, own in groups(runs)
    ]
    return Table("Counts of the layer: runs in which they have grown", ["the layer grows by", *quantities], rows)


if __name__ == "__main__":
    main(__file__, __doc__ or "", measure, report, runs=RUNS, processes=PROCESSES, seconds=SECONDS)
