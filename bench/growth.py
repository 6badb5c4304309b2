"""What single runs say of a layer that grows: their counts, and `mwbudget compare`.

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
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from harness import Goal, Reading, Report, Table, inherited, main, neighbours
from versus import ARGUMENTS, CHANGES, CONDITIONS, LAYER, NOTHING, apps, rounds_of

from pytest_mwbudget.comparison.comparing import compare
from pytest_mwbudget.comparison.merging import StoredRun, merged
from pytest_mwbudget.model.results import COUNTED
from pytest_mwbudget.report.json import measured, run_of

RUNS = 20
TOTAL = "(total)"
CERTAIN = ("slower", "faster", "more", "fewer")
# The change with which the layer suspends.
SUSPENDING = "one task"
# Work of another length executes other code, so counts of it have to differ.
COUNTS = ("bytecodes", "calls", "objects", "tasks")


def measure(quick: bool, runs: int = RUNS) -> list[Reading]:
    """Make the pairs of runs. All changes of a round are compared with one run of the layer as it is."""
    conditions, changes = dict(CONDITIONS), list(CHANGES)
    if quick:
        runs, conditions, changes = 1, {"as it is": ()}, [NOTHING, "one attribute access"]
    readings: list[Reading] = []
    with apps():
        rounds = rounds_of()
        for _ in range(runs):
            for condition, rhythms in conditions.items():
                with neighbours(*rhythms):
                    before = one_run(NOTHING, rounds)
                    after = ((change, one_run(change, rounds)) for change in changes)
                    readings += [compared(before, run, change, condition) for change, run in after]
    return readings


def one_run(change: str, rounds: int) -> StoredRun:
    """Measure the layer with a change in a fresh process."""
    version, factor = list(CHANGES).index(change), CHANGES[change][1]
    with TemporaryDirectory() as folder:
        written = Path(folder, "result.json")
        app = f"--mw-budget-app=grown:create_app({version}, {round(rounds * factor)})"
        command = [sys.executable, "-m", "pytest", "-q", "--mw-budget", *ARGUMENTS, app, f"--mw-budget-json={written}"]
        environment = {**inherited(), "PYTHONHASHSEED": str(random.randrange(2**32))}
        environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE)
        document: dict[str, Any] = json.loads(written.read_text(encoding="utf-8"))
    return StoredRun(change, run_of(document), measured(document))


def compared(before: StoredRun, after: StoredRun, change: str, condition: str) -> Reading:
    """Say what two runs differ by: the counts and the time of the layer, and every certain change of other rows."""
    (pair,) = compare(merged([before]), merged([after])).pairs
    own = {one.quantity: one for one in pair.changes if one.row == LAYER}
    time = own["us"]
    others = [
        [one.row, one.quantity, one.word]
        for one in pair.changes
        if one.word in CERTAIN and (change == NOTHING or one.row not in (LAYER, TOTAL))
    ]
    return {
        "condition": condition,
        "change": change,
        "word": time.word,
        "by_us": time.change and [time.change.estimate, time.change.low, time.change.high],
        "more": [quantity for quantity in COUNTED if quantity in own and own[quantity].word == "more"],
        "others": others,
    }


# ---- the report --------------------------------------------------------------------------------------------------


def report(readings: Sequence[Reading]) -> Report:
    """Say how often each change was found, by which figure, and how often there was a false alarm."""
    small = [one for one in readings if one["change"] in ("one attribute access", "one call", "one task")]
    unseen = sum("bytecodes" not in one["more"] for one in small)
    counted, timed = (alarms(readings, times=times) for times in (False, True))
    return Report(
        tables=[table(readings)],
        goals=[
            Goal("no count is called changed that has not", f"{counted} in {len(readings)} pairs of runs", not counted),
            Goal("bytecodes show each attribute access, call and task", f"{unseen} of {len(small)} missed", not unseen),
            Goal("no time is called changed that has not", f"{timed} in {len(readings)} pairs of runs", not timed),
        ],
    )


def alarms(readings: Sequence[Reading], *, times: bool) -> int:
    """Return how many pairs of runs have a false alarm of a time, or of a count."""
    return sum(any((quantity in ("us", "busy_us")) is times for quantity in false_alarms(one)) for one in readings)


def false_alarms(reading: Reading) -> list[str]:
    """Return the quantity of each false alarm."""
    resumed = ("bytecodes", "more") if reading["change"] == SUSPENDING else None
    return [quantity for _, quantity, word in reading["others"] if (quantity, word) != resumed]


def table(readings: Sequence[Reading]) -> Table:
    """Lay out the changes in the order of `CHANGES`, for each condition."""
    head = ("the layer grows by", "pairs", *COUNTS, "slower", "false alarms")
    lines = []
    for condition in dict.fromkeys(one["condition"] for one in readings):
        for change in CHANGES:
            own = [one for one in readings if (one["condition"], one["change"]) == (condition, change)]
            if own:
                found = [sum(quantity in one["more"] for one in own) for quantity in COUNTS]
                slower = sum(one["word"] == "slower" for one in own)
                numbers = (len(own), *found, slower, sum(bool(false_alarms(one)) for one in own))
                lines.append((f"{change} ({condition})", *map(str, numbers)))
    return Table("Pairs of runs in which a figure of the layer has certainly grown", head, lines)


if __name__ == "__main__":
    main(__file__, __doc__ or "", measure, report)
