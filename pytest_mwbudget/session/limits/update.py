"""The end of a run with a file of limits, in the process that reports: write the file, and say what is unused."""

from __future__ import annotations

import hashlib
import math
import os
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import gettempdir

import pytest

from ...errors import SettingError, tagged
from ...limits.file import LimitsFile, Place, text_of
from ...limits.sections import Surroundings, chosen
from ...limits.updating import LARGE_RAISE, Broken, Change, Measured, Rules, Update, unused_places, updated
from ...model.measured_run import LeftOut
from ...model.quantities import COUNTED, Quantity
from ...model.request_keys import RequestKey, keyed
from ...model.results import Result
from ...report.lines import Line
from ...report.text import amount, printable
from ...storage.file_lock import held
from ..artifacts import put
from ..configuration import LIMITS, verbosity
from ..progress import tell
from .evidence import DiffersAlone, Evidence
from .kept_objects import remember
from .of_tests import UPDATE, Collected, RunLimits, read, surroundings
from .recount import RecountError

# The most changes that are listed without -v.
MOST_LISTED = 10
# How long to wait for another run that writes the same file.
LOCK_S = 30.0
# Why requests have no limits of a quantity.
UNCOUNTED = "not counted; mwbudget doctor says what is counted here"
UNCERTAIN = "the machine was slow, or each time unknown or wide; update again when it is less busy"


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
    missing: Iterable[LeftOut] = (),
) -> Outcome:
    """Update the file of limits if the run does, else say which of its limits no test uses.

    `measured` has the results of all tests with their ids, in order. Of the `unfinished` tests, which failed or were
    skipped, nothing is written. The requests `missing` were left out: if one may be a request that has limits, no
    request of its test is removed.
    """
    outcome, run = Outcome(), config.stash[LIMITS]
    if run is None or run.recount:
        return outcome
    requests = [(key, result) for key, result in keyed(measured) if result.recorded is not None]
    _say_what_changed(run, requests, outcome)
    passed = [(key, result) for key, result in requests if key.nodeid not in unfinished]
    left_out = {key.nodeid for key, _ in requests} & set(unfinished)
    # Requests that keep their limits, or whose limits are being written.
    kept = [
        (surroundings(result.loop).section, key, result)
        for key, result in passed
        if result.recorded is not None and not result.recorded.broken
    ]
    remember(config, kept, {place.nodeid for place in run.file.limits} | {key.nodeid for key, _ in passed})
    recorded = {(place.nodeid, place.request.partition(" ")[0]) for place in run.file.limits}
    partly = {request.nodeid for request in missing if (request.nodeid, request.request.method) in recorded}
    ending = _Ending(config, run, passed, left_out, outcome, partly)
    if run.modes:
        if left_out:
            tests = "1 test that did not pass" if len(left_out) == 1 else f"{len(left_out)} tests that did not pass"
            outcome.say(f"{run.name}: nothing is written of {tests}", "yellow")
        ending.update()
    else:
        _say_which_times_were_not_judged(run, requests, outcome)
        ending.say_unused()
    return outcome


def _say_what_changed(run: RunLimits, requests: Sequence[tuple[RequestKey, Result]], outcome: Outcome) -> None:
    changed = dict.fromkeys(change for _, result in requests if result.recorded for change in result.recorded.changed)
    if changed:
        outcome.say(
            tagged(
                f"{run.name} was recorded with other versions, and is compared all the same: {'; '.join(changed)}",
                "limits-changed",
            ),
            "yellow",
        )


def _say_which_times_were_not_judged(
    run: RunLimits, requests: Sequence[tuple[RequestKey, Result]], outcome: Outcome
) -> None:
    """Count the requests whose recorded times are all those of other processors."""
    processors: dict[tuple[str, ...], set[str]] = {}
    for place in filter(lambda place: place.processor, run.file.limits):
        processors.setdefault(place[:3], set()).add(place.processor)
    of_requests = [processors.get((result.recorded.section or "", *key)) for key, result in requests if result.recorded]
    others = [known for known in of_requests if known and run.processor not in known]
    if others:
        number = "1 request" if len(others) == 1 else f"{len(others)} requests"
        theirs = " and ".join(sorted(set[str]().union(*others)))
        text = f"{run.name}: no recorded time of {number} was judged: it has times of {theirs}; this is {run.processor}"
        if not set(run.quantities).issubset(COUNTED):
            text += f"; to record times of it: {run.command(raises=False)}"
        outcome.say(tagged(text, "no-limit"), "yellow")


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
        """Name the limits that no test uses.

        A request that a test did not make this time may be one that it makes when it runs first, such as a login.
        """
        names: dict[str, None] = {}
        for here, measured in self.measured.items():
            section = chosen(self.run.file.sections, here)
            if section is not None:
                unused = self._unused(self.run.file, section)
                for place in unused_places(self.run.file, section, measured, unused, partly=self.partly):
                    if place.nodeid in unused or RequestKey(place.nodeid, place.request) in measured:
                        names[place.nodeid if place.nodeid in unused else _where(place)] = None
        if names:
            listed = self._listed([*names])
            text = f"{self.run.name} has limits that no test uses: {'; '.join(listed)}; {UPDATE} removes them"
            self.outcome.say(tagged(text, "unused-limit"), "yellow")

    def _unused(self, file: LimitsFile, section: str) -> set[str]:
        collected: Collected | None = self.config.pluginmanager.get_plugin(Collected.NAME)
        recorded = {place.nodeid for place in file.limits if place.section == section}
        # A test may be marked only when it runs.
        measured = {key.nodeid for key, _ in self.passed} | {*self.left_out}
        return collected.unused(recorded) - measured if collected is not None else set()

    def _listed(self, texts: list[str]) -> list[str]:
        most = len(texts) if verbosity(self.config) > 0 else MOST_LISTED
        more = [f"and {len(texts) - most} more (-v lists them)"] if len(texts) > most else []
        return [*texts[:most], *more]

    # ---- an update ------------------------------------------------------------------------------------------------

    def update(self) -> None:
        """Update the file: counts again in other processes, then write."""
        lacking = self._lacking()  # before counts are taken out that another process does not confirm
        try:
            rules = Rules(self.run.modes, self.run.quantities, self.run.processor, self.run.reason)
            self._confirm(rules)
            with held(_lock_of(self.run.path), LOCK_S):
                file = read(self.run.path, repr(self.run.name))
                updates = self._updated(file, rules, self.measured)
                after = updates[-1].file if updates else file
                if after != file:
                    put(self.run.path, text_of(after))
        except (OSError, SettingError) as error:
            self.outcome.say(f"{self.run.name} cannot be updated: {error}", "red")
            self.outcome.failed = True
            return
        self._report(updates, lacking, written=after != file)

    def _updated(
        self, file: LimitsFile, rules: Rules, by_surroundings: Mapping[Surroundings, Mapping[RequestKey, Measured]]
    ) -> list[Update]:
        """Return the updates for each of the run's loops, one after the other."""
        updates: list[Update] = []
        for here, measured in by_surroundings.items():
            section = chosen(file.sections, here)
            unused = self._unused(file, section) if section else set()
            packages = self.packages.get(here, {})
            updates.append(updated(file, here, measured, unused, packages, rules, self.partly))
            file = updates[-1].file
        return updates

    def _confirm(self, rules: Rules) -> None:
        """Take the counts of other processes, too. Counts that cannot be confirmed are not written."""
        name = self.run.name
        first = {key: [costs] for measured in self.measured.values() for key, costs in measured.items()}
        evidence = self.evidence = Evidence(self.config, self.run.quantities, first)
        try:
            written = evidence.collect(lambda joined: self._written_of(joined, rules), partial(tell, self.config))
        except RecountError as error:
            self.outcome.refuse(f"{name}: no count is written, because counting in another process failed: {error}")
            self.measured = {
                here: {key: costs.without_counts() for key, costs in measured.items()}
                for here, measured in self.measured.items()
            }
            return
        for key, here in evidence.surroundings.items():
            if key.nodeid in written:
                self.measured.setdefault(here, {}).setdefault(key, evidence.joined(key))
        unconfirmed = evidence.unconfirmed(written)
        for measured in self.measured.values():
            measured.update({key: evidence.joined(key) for key in measured})
            measured.update({key: measured[key].without_counts() for key in unconfirmed if key in measured})
        for key in unconfirmed:
            self.outcome.refuse(f"{name}: no count is written of {', '.join(key)}: another process did not count it")
        for test, why in evidence.not_alone.items():
            self.outcome.say(f"{name}: {test} could not be counted alone: {why}", "yellow")

    def _written_of(self, joined: Mapping[RequestKey, Measured], rules: Rules) -> set[str]:
        """Return the tests of which an update by these costs would write a count."""
        measured = {here: {key: joined[key] for key in by_key} for here, by_key in self.measured.items()}
        return set().union(*(update.of_counts for update in self._updated(self.run.file, rules, measured)))

    # ---- what is said ---------------------------------------------------------------------------------------------

    def _report(self, updates: Sequence[Update], lacking: Sequence[str], *, written: bool) -> None:
        name = self.run.name
        changes = [change for update in updates for change in update.changes]
        refused = [refusal for update in updates for refusal in update.refused]
        broken = (
            [] if "fix" in self.run.modes else [broken_limit for update in updates for broken_limit in update.broken]
        )
        numbers = Counter(change.kind for change in changes)
        if numbers:
            self.outcome.say(f"{name}: {', '.join(f'{number} {kind}' for kind, number in numbers.items())}", "green")
        elif written:
            self.outcome.say(f"{name}: recorded with the versions of this run now", "green")
        elif not refused and not broken and not self.outcome.failed and not self.left_out:
            self.outcome.say(f"{name} is up to date", "green")
        listed = sorted(
            (change for change in changes if change.kind != "created"), key=lambda change: change.share, reverse=True
        )
        for line in self._listed([_line(change) for change in listed]):
            self.outcome.say(f"  {line}")
        if any(change.is_large for change in listed):
            self.outcome.say(f"  !: raised by more than {LARGE_RAISE:.0%}", "yellow")
        self._report_alone({change.place for change in changes})
        for text in lacking:
            self.outcome.say(text, "yellow")
        if broken:
            command = self.run.command(raises=True)
            self.outcome.say(f"{name}: other processes exceed limits that this run keeps; to raise them: {command}")
            for line in self._listed([_broken_line(broken_limit) for broken_limit in broken]):
                self.outcome.say(f"  {line}")
        for refusal in refused:
            value, limit = (amount(refusal.place.quantity, figure) for figure in (refusal.cost, refusal.limit))
            self.outcome.refuse(
                f"{name}: not raised: {_where(refusal.place)}: {value}, limit {limit}: its budget is"
                f" {refusal.ceiling:g}, and no limit is raised above a budget; lower the cost, or raise the budget"
            )

    def _lacking(self) -> list[str]:
        """Say of which quantities requests have no limit, because no row has a figure that can be recorded."""
        requests = [
            {quantity for of_row in costs.costs.values() for quantity in of_row}
            for by_key in self.measured.values()
            for costs in by_key.values()
        ]
        lacking = Counter(quantity for known in requests for quantity in self.run.quantities if quantity not in known)
        alike: dict[tuple[bool, int], list[Quantity]] = {}
        for quantity, number in lacking.items():
            alike.setdefault((quantity in COUNTED, number), []).append(quantity)
        return [
            f"{self.run.name}: no limits of {' and '.join(names)} in {number} of {len(requests)} requests:"
            f" {UNCOUNTED if counted else UNCERTAIN}"
            for (counted, number), names in alike.items()
        ]

    def _report_alone(self, written: Collection[Place]) -> None:
        """Say which limits are of a test alone, or of a test after other tests, because the counts differ."""
        places = {place[1:5] for place in written}
        differ = [count for count in self.evidence.differ_alone() if (*count.key, count.row, count.quantity) in places]
        if differ:
            self.outcome.say(f"{self.run.name}: some counts differ if the test runs alone; the higher one is the limit")
        for line in self._listed([_alone_line(count) for count in differ]):
            self.outcome.say(f"  {line}")


def _broken_line(broken: Broken) -> str:
    low, high, most = (
        amount(broken.place.quantity, end) for end in (broken.cost.low, broken.cost.high, broken.limit.most)
    )
    value = high if low == high else f"{broken.cost.low:g} to {high}"
    return f"{_where(broken.place)}: {value}, limit {most}"


def _alone_line(count: DiffersAlone) -> str:
    alone, after_others = (amount(count.quantity, figure) for figure in (count.alone, count.after_others))
    return f"{', '.join((*count.key, count.row))}: {alone} alone, {after_others} after other tests"


def _where(place: Place) -> str:
    return ", ".join(place[1:4])


def _line(change: Change) -> str:
    before, after = (
        "" if limit is None else amount(change.place.quantity, limit.most) for limit in (change.before, change.after)
    )
    moved = f"{before} to {after}" if change.after is not None else before
    share = f" (+{change.share:.0%})" if 0 < change.share < math.inf else ""
    return f"{'! ' if change.is_large else ''}{change.kind}: {_where(change.place)}: {moved}{share}"


# ---- other runs ---------------------------------------------------------------------------------------------------


def _lock_of(path: Path) -> Path:
    """Return the file that stands for the lock of a file of limits, for runs such as those of `tox -p`."""
    name = hashlib.sha256(os.path.realpath(path).encode()).hexdigest()[:16]
    return Path(gettempdir()) / f"mw-budget-limits-{getattr(os, 'getuid', int)()}-{name}.lock"
