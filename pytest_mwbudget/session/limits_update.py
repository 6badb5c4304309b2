"""The end of a run with a file of limits, in the process that reports: write the file, and say what is unused."""

from __future__ import annotations

import hashlib
import math
import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import gettempdir

import pytest

from ..errors import SettingError, tagged
from ..limits.file import Limit, LimitsFile, Place, text_of
from ..limits.sections import Surroundings, chosen
from ..limits.updating import LARGE_RAISE, Change, Measured, Refused, Rules, Update, joined, unused_places, updated
from ..model.request_keys import RequestKey, keyed
from ..model.results import Result
from ..report.json import measured as measured_in
from ..report.terminal import Line
from ..report.text import amount, printable
from .artifacts import put
from .configuration import LIMITS, verbosity
from .file_lock import held
from .limits import UPDATE, Collected, RunLimits, read, surroundings
from .recount import SEEDS, RecountError, recounted

# FEWEST further processes stand behind a new count, MOST where counts differ between them.
FEWEST, MOST = 2, 7
# The most changes that are listed without -v.
MOST_LISTED = 10
# How long to wait for another run that writes the same file.
LOCK_S = 30.0


@dataclass
class Outcome:
    """What to print at the end of the run, and whether the run fails."""

    lines: list[Line] = field(default_factory=list)
    failed: bool = False

    def say(self, text: str, style: str = "") -> None:
        """Add a line."""
        self.lines.append(Line(printable(text), style))

    def refuse(self, text: str) -> None:
        """Add a line that fails the run."""
        self.say(tagged(text, "limit-refused"), "red")
        self.failed = True


def finish(
    config: pytest.Config,
    measured: Sequence[tuple[str, Result]],
    unfinished: Collection[str],
    partly: Collection[str] = (),
) -> Outcome:
    """Update the file of limits if the run does, else say which of its limits no test uses.

    `measured` has the results of all tests with their ids, in order. Of the `unfinished` tests, which failed or were
    skipped, nothing is written. Of tests that were measured `partly`, because a request was left out, no request is
    removed.
    """
    outcome, run = Outcome(), config.stash[LIMITS]
    if run is None or run.recounting:
        return outcome
    found = [(key, result) for key, result in keyed(measured) if result.recorded is not None]
    _say_what_changed(run, found, outcome)
    passed = [(key, result) for key, result in found if key.nodeid not in unfinished]
    left_out = {key.nodeid for key, _ in found} & set(unfinished)
    ending = _Ending(config, run, passed, left_out, outcome, partly)
    if run.modes:
        if left_out:
            tests = "1 test that did not pass" if len(left_out) == 1 else f"{len(left_out)} tests that did not pass"
            outcome.say(f"{run.name}: nothing is written of {tests}", "yellow")
        ending.update()
    else:
        ending.say_unused()
    return outcome


def _say_what_changed(run: RunLimits, found: Sequence[tuple[RequestKey, Result]], outcome: Outcome) -> None:
    changed = dict.fromkeys(one for _, result in found if result.recorded for one in result.recorded.changed)
    if changed:
        outcome.say(
            tagged(
                f"{run.name} was recorded with other versions, and is compared all the same: {'; '.join(changed)}",
                "limits-changed",
            ),
            "yellow",
        )


@dataclass
class _Ending:
    """The requests of tests that passed, with the file of limits."""

    config: pytest.Config
    run: RunLimits
    passed: Sequence[tuple[RequestKey, Result]]
    # Tests whose requests were measured and that did not pass.
    left_out: Collection[str]
    outcome: Outcome
    partly: Collection[str]

    def __post_init__(self) -> None:
        self.packages: dict[Surroundings, dict[str, str]] = {}
        self.measured: dict[Surroundings, dict[RequestKey, Measured]] = {}
        for key, result in self.passed:
            here = surroundings(result.loop)
            assert result.recorded is not None
            self.packages.setdefault(here, {}).update(result.recorded.packages)
            self.measured.setdefault(here, {})[key] = Measured.of(result, self.run.quantities)

    # ---- without an update ----------------------------------------------------------------------------------------

    def say_unused(self) -> None:
        """Name the limits that no test uses."""
        names: dict[str, None] = {}
        for here, measured in self.measured.items():
            section = chosen(self.run.file.sections, here)
            if section is not None:
                unused = self._unused(self.run.file, section)
                for place in unused_places(self.run.file, section, measured, unused, partly=self.partly):
                    names[place.nodeid if place.nodeid in unused else ", ".join(place[1:4])] = None
        if names:
            listed = self._listed([*names])
            text = f"{self.run.name} has limits that no test uses: {'; '.join(listed)}; {UPDATE} removes them"
            self.outcome.say(tagged(text, "unused-limit"), "yellow")

    def _unused(self, file: LimitsFile, section: str) -> set[str]:
        collected: Collected | None = self.config.pluginmanager.get_plugin(Collected.NAME)
        recorded = {place.nodeid for place in file.limits if place.section == section}
        return collected.unused(recorded) if collected is not None else set()

    def _listed(self, texts: list[str]) -> list[str]:
        most = len(texts) if verbosity(self.config) > 0 else MOST_LISTED
        more = [f"and {len(texts) - most} more (-v lists them)"] if len(texts) > most else []
        return [*texts[:most], *more]

    # ---- an update ------------------------------------------------------------------------------------------------

    def update(self) -> None:
        """Update the file: counts again in other processes, then write."""
        try:
            rules = self._rules()
            planned = self._updated(self.run.file, rules)
            self._confirm(set().union(*(one.of_counts for one in planned)))
            with held(_lock_of(self.run.path), LOCK_S):
                file = read(self.run.path, repr(self.run.name))
                updates = self._updated(file, rules)
                after = updates[-1].file if updates else file
                self._write(file, after)
        except (OSError, SettingError) as error:
            self.outcome.say(f"{self.run.name} cannot be updated: {error}", "red")
            self.outcome.failed = True
            return
        changes, refused = ([c for one in updates for c in one.changes], [r for one in updates for r in one.refused])
        self._report(changes, refused, written=after != file)

    def _rules(self) -> Rules:
        run = self.run
        return Rules(run.modes, run.quantities, run.processor, run.reason)

    def _updated(self, file: LimitsFile, rules: Rules) -> list[Update]:
        """Return the updates for each of the run's loops, one after the other."""
        updates: list[Update] = []
        for here, measured in self.measured.items():
            section = chosen(file.sections, here)
            unused = self._unused(file, section) if section else set()
            updates.append(updated(file, here, measured, unused, self.packages[here], rules, self.partly))
            file = updates[-1].file
        return updates

    def _write(self, before: LimitsFile, after: LimitsFile) -> None:
        if after != before:
            put(self.run.path, text_of(after))

    def _confirm(self, tests: set[str]) -> None:
        """Take the counts of these tests in other processes, too. Counts that cannot be confirmed are not written."""
        if not tests:
            return
        self._progress(tests)
        own = os.environ.get("PYTHONHASHSEED")
        seeds = [seed for seed in SEEDS if str(seed) != own]
        processes = {key: [one] for found in self.measured.values() for key, one in found.items()}
        try:
            for seed in seeds[:FEWEST]:
                self._recount(tests, seed, processes)
            differing = self._differing(tests, processes)
            for seed in seeds[FEWEST:MOST] if differing else ():
                self._recount(differing, seed, processes)
        except RecountError as error:
            self.outcome.refuse(
                f"{self.run.name}: no count is written, because counting in another process failed: {error}"
            )
            processes = {}
        for found in self.measured.values():
            for key in [key for key in found if key.nodeid in tests]:
                counted = processes.get(key, [])
                whole = joined(counted) if len(counted) > FEWEST else None
                if whole is None and processes:
                    self.outcome.refuse(
                        f"{self.run.name}: no count is written of {', '.join(key)}: another process did not count it"
                    )
                found[key] = whole or found[key].without_counts()

    def _recount(self, tests: set[str], seed: int, processes: Mapping[RequestKey, list[Measured]]) -> None:
        results = measured_in(recounted(self.config, tests, seed))
        for key, result in keyed(results):
            if key in processes and key.nodeid in tests:
                processes[key].append(Measured.of(result, self.run.quantities))

    @staticmethod
    def _differing(tests: set[str], processes: Mapping[RequestKey, Sequence[Measured]]) -> set[str]:
        """Return the tests whose typical counts differ between processes."""
        wholes = {key: joined(found) for key, found in processes.items() if key.nodeid in tests}
        return {key.nodeid for key, whole in wholes.items() if whole.differs}

    def _progress(self, tests: Collection[str]) -> None:
        terminal = self.config.pluginmanager.get_plugin("terminalreporter")
        if terminal is not None:
            number = "1 test" if len(tests) == 1 else f"{len(tests)} tests"
            terminal.write_line("")
            terminal.write_line(f"mw-budget: counting {number} again in processes with other hash seeds")

    # ---- what is said ---------------------------------------------------------------------------------------------

    def _report(self, changes: Sequence[Change], refused: Sequence[Refused], *, written: bool) -> None:
        name = self.run.name
        numbers = Counter(change.kind for change in changes)
        if numbers:
            self.outcome.say(f"{name}: {', '.join(f'{number} {kind}' for kind, number in numbers.items())}", "green")
        elif written:
            self.outcome.say(f"{name}: recorded with the versions of this run now", "green")
        elif not refused and not self.outcome.failed and not self.left_out:
            self.outcome.say(f"{name} is up to date", "green")
        listed = sorted(
            (change for change in changes if change.kind != "created"), key=lambda change: change.share, reverse=True
        )
        for line in self._listed([_line(change) for change in listed]):
            self.outcome.say(f"  {line}")
        if any(change.is_large for change in listed):
            self.outcome.say(f"  !: raised by more than {LARGE_RAISE:.0%}", "yellow")
        for one in refused:
            value, limit = (amount(one.place.quantity, figure) for figure in (one.cost, one.limit))
            self.outcome.refuse(
                f"{name}: not raised: {_where(one.place)}: {value}, limit {limit}: its budget is {one.ceiling:g}, and"
                " no limit is raised above a budget; lower the cost, or raise the budget"
            )


def _where(place: Place) -> str:
    return ", ".join(place[1:4])


def _line(change: Change) -> str:
    quantity = change.place.quantity
    before, after = (_shown(quantity, limit) for limit in (change.before, change.after))
    moved = f"{before} to {after}" if change.after is not None else before
    share = f" (+{change.share:.0%})" if 0 < change.share < math.inf else ""
    return f"{'! ' if change.is_large else ''}{change.kind}: {_where(change.place)}: {moved}{share}"


def _shown(quantity: str, limit: Limit | None) -> str:
    return "" if limit is None else amount(quantity, limit.most)  # type: ignore[arg-type]


# ---- other runs ---------------------------------------------------------------------------------------------------


def _lock_of(path: Path) -> Path:
    """Return the file that stands for the lock of a file of limits, for runs such as those of `tox -p`."""
    name = hashlib.sha256(os.path.realpath(path).encode()).hexdigest()[:16]
    return Path(gettempdir()) / f"mw-budget-limits-{getattr(os, 'getuid', int)()}-{name}.lock"
