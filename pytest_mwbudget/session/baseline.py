"""Comparing a run with an earlier one: `--mw-budget-compare` and `--mw-budget-compare-fail`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

import pytest

from ..comparison.allowed import Allowed, parsed
from ..comparison.figures import figures_of
from ..comparison.outcome import Comparison
from ..comparison.run_sets import merged
from ..comparison.two_runs import compare, counted_again, grown_counts
from ..errors import SettingError, tagged
from ..model.changes import Since
from ..model.measured_run import MeasuredRun
from ..model.request_keys import keyed
from ..report.comparison import grown_sentences, unjudged_sentences
from ..storage.saved_runs import located, stored_runs
from .configuration import enforced, plugin_folder

# Counts these tests again in other processes, as many as can be had, with this hash seed; None: with several.
CountAgain: TypeAlias = Callable[[tuple[str, ...], int | None], Iterable[MeasuredRun]]


@dataclass(frozen=True, slots=True)
class Baseline:
    """The runs to compare with, how to call them, and what may grow by how much."""

    name: str
    runs: Mapping[str, MeasuredRun]
    allowed: Allowed

    def compared(self, run: MeasuredRun, again: CountAgain) -> MeasuredRun:
        """Return the run with the change of each figure, and the limits that these changes exceed.

        If a count grew by too much, the tests are counted `again` in other processes.
        """
        comparison = compare(merged(self.runs), merged({"this run": run}), self.allowed)
        if grown_counts(comparison):
            # All tests, because a count may depend on the tests before.
            tests = tuple(dict.fromkeys(nodeid for nodeid, _ in run.measured))
            others = again(tests, self._seed(run))
            processes = [{key: figures_of(result) for key, result in keyed(other.measured)} for other in others]
            comparison = counted_again(comparison, processes)
        changes = dict(comparison.requests)
        measured = tuple(
            (key.nodeid, replace(result, changes=tuple(changes.get(key, ())))) for key, result in keyed(run.measured)
        )
        return replace(run, measured=measured, since=since_of(self.name, self.runs, comparison))

    def _seed(self, run: MeasuredRun) -> int | None:
        """Return the hash seed of all runs, None if they differ or are random."""
        (seed, *others) = {run.run.hash_seed, *(stored.run.hash_seed for stored in self.runs.values())}
        return int(seed) if seed is not None and seed.isdigit() and not others else None


def since_of(name: str, runs: Mapping[str, MeasuredRun], comparison: Comparison) -> Since:
    """Say what a run was compared with, and which figures grew by more than is allowed.

    If growth is limited and no request is in both runs, this counts as a broken limit: a gate that judges nothing must
    not pass.
    """
    newest = max((stored.run for stored in runs.values()), key=lambda run: run.created)
    grown = [*grown_sentences(comparison)]
    if comparison.allowed and not comparison.requests:
        nothing = f"no request is in both runs, so nothing was judged; compare with a run of the same tests than {name}"
        grown.append(tagged(nothing, "grown"))
    return Since(
        name=name,
        created=newest.created,
        commit=newest.commit,
        new=tuple(map(" ".join, comparison.new)),
        gone=tuple(map(" ".join, comparison.gone)),
        differences=comparison.differences,
        repeated=comparison.repeated,
        grown=tuple(grown),
        unjudged=tuple(unjudged_sentences(comparison)),
    )


def configured_baseline(config: pytest.Config) -> Baseline | None:
    """Read the run that the options name before the tests, None without one.

    Raises SettingError for an unusable option and MwBudgetError for a file that is no result.
    """
    name_or_path, limits = (config.getoption(f"mw_budget_{name}") for name in ("compare", "compare_fail"))
    option = f"--mw-budget-compare={name_or_path!r}"
    if name_or_path is None:
        if limits is not None:
            raise SettingError(
                f"--mw-budget-compare-fail={limits!r} has no run to compare with; add --mw-budget-compare=NAME|PATH"
            )
        return None
    if not enforced(config):
        raise SettingError(f"{option} has nothing to compare without measuring; add --mw-budget", message_id="file")
    allowed = parsed(limits, "--mw-budget-compare-fail")
    path, name = located(name_or_path, plugin_folder(config), config.invocation_params.dir, option)
    runs = stored_runs(path, name if path.is_file() else None)
    return Baseline(name, runs, allowed)
