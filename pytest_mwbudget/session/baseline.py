"""Comparing a run with an earlier one: `--mw-budget-compare` and `--mw-budget-compare-fail`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from ..comparison.allowed import Allowed, parsed
from ..comparison.merging import StoredRun, merged
from ..comparison.outcome import Comparison
from ..comparison.two_runs import compare
from ..errors import SettingError, tagged
from ..model.changes import Since
from ..model.request_keys import keyed
from ..report.comparison import grown_sentences, unjudged_sentences
from ..report.json import change_to_json, measured, run_of, since_to_json
from .configuration import enforced, plugin_folder
from .stored import located, stored_runs


@dataclass(frozen=True, slots=True)
class Baseline:
    """The runs to compare with, how to call them, and what may grow by how much."""

    name: str
    runs: Sequence[StoredRun]
    allowed: Allowed

    def compared(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """Return the document of a run with the changes of its figures, and what they broke."""
        own = StoredRun("this run", run_of(document), measured(document))
        comparison = compare(merged(self.runs), merged([own]), self.allowed)
        changes = {key: [*map(change_to_json, own_changes)] for key, own_changes in comparison.requests}
        measurements = [
            {**measurement, "changes": changes.get(key, [])}
            for (key, _), measurement in zip(keyed(own.measured), document["measurements"], strict=True)
        ]
        since = since_of(self.name, self.runs, comparison)
        return {**document, "measurements": measurements, "comparison": since_to_json(since)}


def since_of(name: str, runs: Sequence[StoredRun], comparison: Comparison) -> Since:
    """Say what a run was compared with, and which figures grew by more than is allowed.

    If growth is limited and no request is in both runs, this counts as a broken limit: a gate that judges nothing must
    not pass.
    """
    newest = max(runs, key=lambda stored: stored.run.created or "").run
    grown = [*grown_sentences(comparison)]
    if comparison.allowed and not comparison.requests:
        nothing = f"no request is in both runs, so nothing was judged; compare with a run of the same tests than {name}"
        grown.append(tagged(nothing, "grown"))
    return Since(
        name=name,
        created=newest.created,
        commit=newest.provenance.commit,
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
