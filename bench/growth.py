"""What single runs say of a layer that grows: their counts, `mwbudget compare`, and `--mw-budget-trend`.

    python bench/growth.py [--quick] [--runs N] [--json PATH]

The app and its changes are those of `bench/versus.py`: a layer that works for about 100 µs does one attribute access,
one call or one task more, or its work is 1 %, 5 % or 20 % longer. A run of `pytest --mw-budget` measures the layer as
it is, and a second run, in a fresh process with another hash seed, the changed layer. The two results are compared as
`mwbudget compare` does. Each pair of runs is made on the machine as it is, and beside two processes that do nothing but
compute.

A change is found by a count if the count of the layer is larger, and by its time if the whole interval of the change is
above zero. A false alarm is any row but the layer and the total with a certain change, or any row at all where nothing
changed. A layer that waits for its task suspends, so every row outside of it is resumed once more: the instructions of
these rows really grow, and this is no false alarm.

A layer can also grow within a run, with the requests served. In each condition fresh processes measure a stack of two
layers with `trend=True`: one that searches for longer in each request, by 1 µs in a hundred requests, and one with a
cache of 500 entries, which is full soon.
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from harness import Goal, Reading, Report, Table, fresh_process, inherited, main, neighbours
from known import Endpoint, Noop, own, spin_ns
from versus import APPS, ARGUMENTS, CONDITIONS, LAYERS, apps, factory, rounds_of, unchanged

from pytest_mwbudget.asgi.request import build_request
from pytest_mwbudget.comparison.run_sets import merged
from pytest_mwbudget.comparison.two_runs import compare
from pytest_mwbudget.config.settings import Settings
from pytest_mwbudget.engine import measure as measure_app
from pytest_mwbudget.model.changes import CERTAIN
from pytest_mwbudget.model.measured_run import MeasuredRun
from pytest_mwbudget.model.quantities import COUNTED
from pytest_mwbudget.storage.codec import measured_run
from pytest_mwbudget.timing.looks import Environment

RUNS = 10
# Runs that look for growth, for each pair of runs.
TRENDS = 2
# The change with which the layer suspends.
SUSPENDING = "one task"
# Work of another length executes other code, so counts of it have to differ.
COUNTS = ("bytecodes", "calls", "objects", "tasks")
# By how many nanoseconds a layer grows with each request; how many of the runs have to name it.
GROWS_NS, NAMED_SHARE = 10, 0.9


class Growing(Noop):
    """Spin longer with every request."""

    served = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.served += 1
        spin_ns(self.served * GROWS_NS)
        await self.app(scope, receive, send)


class Bounded(Noop):
    """Keep a string of each of the last 500 requests."""

    served = 0

    def __init__(self, app: Any) -> None:
        super().__init__(app)
        self.kept: dict[int, str] = {}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.served += 1
        self.kept[self.served % 500] = str(self.served)
        await self.app(scope, receive, send)


def measure(quick: bool, runs: int = RUNS) -> list[Reading]:
    """Make the pairs of runs."""
    conditions, names = dict(CONDITIONS), ("work", "task")
    if quick:
        runs, conditions, names = 1, {"as it is": ()}, ("work",)
    readings: list[Reading] = []
    with apps():
        rounds = rounds_of()
        for _ in range(runs):
            for condition, rhythms in conditions.items():
                with neighbours(*rhythms):
                    for app in names:
                        pair = [one_run(app, version, rounds) for version in (0, 1)]
                        readings += compared(*pair, app, condition)
                    readings += [{"condition": condition, "trends": fresh_process(__file__)} for _ in range(TRENDS)]
    return readings


def worker() -> dict[str, bool]:
    """Measure a layer that grows with the requests served, and one that does not. Returns which of them is named."""
    app = own(Growing)(own(Bounded)(Endpoint()))
    measured = asyncio.run(measure_app(app, build_request("GET", "/", {}), Settings(trend=True), Environment()))
    return {layer.name: layer.trend is not None and layer.trend.grows for layer in measured.layers}


def one_run(app: str, version: int, rounds: int) -> MeasuredRun:
    """Measure a version of an app in a fresh process."""
    with TemporaryDirectory() as folder:
        written = Path(folder, "result.json")
        option = f"--mw-budget-app={factory(app, version, rounds)}"
        command = [sys.executable, "-m", "pytest", "-q", "--mw-budget", *ARGUMENTS, option]
        environment = {**inherited(), "PYTHONHASHSEED": str(random.randrange(2**32))}
        environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        command.append(f"--mw-budget-json={written}")
        subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE)
        return measured_run(json.loads(written.read_text(encoding="utf-8")))


def compared(before: MeasuredRun, after: MeasuredRun, app: str, condition: str) -> list[Reading]:
    """Say for each layer what two runs differ by. The first reading has every certain change of unchanged rows."""
    changes = [change for _, change in compare(merged({"before": before}), merged({"after": after})).changes]
    same = unchanged(app, {change.row for change in changes})
    others = [
        [change.row, change.quantity, change.word]
        for change in changes
        if change.word in CERTAIN and change.row in same
    ]
    readings = []
    for layer in APPS[app]:
        own = {change.quantity: change for change in changes if change.row == layer.name}
        time = own.get("us")  # a busy machine may not know the time of a layer
        readings.append(
            {
                "condition": condition,
                "change": layer.change,
                "word": time.word if time else "not measured",
                "by_us": time and time.change and [time.change.estimate, time.change.low, time.change.high],
                "more": [quantity for quantity in COUNTED if quantity in own and own[quantity].word == "more"],
                "others": others if layer is APPS[app][0] else [],
            }
        )
    return readings


# ---- the report --------------------------------------------------------------------------------------------------


def report(readings: Sequence[Reading]) -> Report:
    """Say how often each change was found, by which figure, and how often there was a false alarm."""
    trends = [reading for reading in readings if "trends" in reading]
    readings = [reading for reading in readings if "trends" not in reading]
    small = [reading for reading in readings if reading["change"] in ("one attribute access", "one call", "one task")]
    unseen = sum("bytecodes" not in reading["more"] for reading in small)
    counted, timed = (alarms(readings, times=times) for times in (False, True))
    return Report(
        tables=[table(readings), trend_table(trends)],
        goals=[
            Goal("no count is called changed that has not", f"{counted} in {len(readings)} pairs of runs", not counted),
            Goal("bytecodes show each attribute access, call and task", f"{unseen} of {len(small)} missed", not unseen),
            Goal("no time is called changed that has not", f"{timed} in {len(readings)} pairs of runs", not timed),
            trend_goal(trends),
        ],
    )


def alarms(readings: Sequence[Reading], *, times: bool) -> int:
    """Return how many pairs of runs have a false alarm of a time, or of a count."""
    return sum(
        any((quantity in ("us", "busy_us")) is times for quantity in false_alarms(reading)) for reading in readings
    )


def false_alarms(reading: Reading) -> list[str]:
    """Return the quantity of each false alarm."""
    resumed = ("bytecodes", "more") if reading["change"] == SUSPENDING else None
    return [quantity for _, quantity, word in reading["others"] if (quantity, word) != resumed]


def table(readings: Sequence[Reading]) -> Table:
    """Lay out the changes in the order of `LAYERS`, for each condition."""
    head = ("the layer grows by", "pairs", *COUNTS, "slower", "false alarms")
    lines = []
    for condition in dict.fromkeys(reading["condition"] for reading in readings):
        for change in (layer.change for layer in LAYERS):
            own = [reading for reading in readings if (reading["condition"], reading["change"]) == (condition, change)]
            if own:
                grown = [sum(quantity in reading["more"] for reading in own) for quantity in COUNTS]
                slower = sum(reading["word"] == "slower" for reading in own)
                numbers = (len(own), *grown, slower, sum(bool(false_alarms(reading)) for reading in own))
                lines.append((f"{change} ({condition})", *map(str, numbers)))
    return Table("Pairs of runs in which a figure of the layer has certainly grown", head, lines)


def trend_table(readings: Sequence[Reading]) -> Table:
    """Count for each condition in how many runs a layer is said to grow with the requests served."""
    lines = []
    for condition in dict.fromkeys(reading["condition"] for reading in readings):
        own_trends = [reading["trends"] for reading in readings if reading["condition"] == condition]
        lines.append((condition, str(len(own_trends)), *(str(named(own_trends, kind)) for kind in (Growing, Bounded))))
    head = ("", "runs", "1 µs in a hundred requests", "a bounded cache")
    return Table("Runs with --mw-budget-trend that name a layer as growing", head, lines)


def named(trends: Sequence[dict[str, bool]], kind: type[Noop]) -> int:
    """Count the runs that name a layer of this kind."""
    return sum(trend[kind.__name__] for trend in trends)


def trend_goal(readings: Sequence[Reading]) -> Goal:
    """Judge whether what grows is named and nothing else."""
    trends = [reading["trends"] for reading in readings]
    growing, bounded = named(trends, Growing), named(trends, Bounded)
    return Goal(
        f"growth by 1 µs in a hundred requests is named in {100 * NAMED_SHARE:g} % of runs, a bounded cache in none",
        f"{growing} and {bounded} of {len(trends)}",
        bool(trends) and growing >= NAMED_SHARE * len(trends) and not bounded,
        "Growth has to be certain in each half of the requests.",
    )


if __name__ == "__main__":
    main(__file__, __doc__ or "", measure, report, worker, runs=RUNS)
