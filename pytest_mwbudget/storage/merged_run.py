"""Several runs as one, such as those of the shards of a CI matrix."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..comparison.run_sets import Place, merged
from ..model.measured_run import MeasuredRun
from ..model.results import SurveyRun
from ..model.runs import Run


def merged_run(runs: Mapping[str, MeasuredRun]) -> tuple[MeasuredRun, Sequence[str]]:
    """Merge runs, which have their files as keys; and say which requests several files have.

    What the surroundings differ by is separated by commas. A request that was measured on several interpreters or loops
    has these behind the id of its test. The commit is None if the runs have several.
    """
    if len(runs) == 1:
        return next(iter(runs.values())), ()
    combined = merged(runs)
    times = Counter(place.key for place in combined.requests)
    measured = (
        (_nodeid(place, several=times[place.key] > 1), request.result) for place, request in combined.requests.items()
    )
    whole = MeasuredRun(
        _surroundings([each_run.run for each_run in runs.values()]),
        tuple(measured),
        tuple(request for each_run in runs.values() for request in each_run.left_out),
        _survey([each_run.survey for each_run in runs.values() if each_run.survey is not None]),
    )
    return whole, combined.repeated


def _nodeid(place: Place, *, several: bool) -> str:
    return f"{place.key.nodeid} ({place.surroundings})" if several else place.key.nodeid


def _surroundings(runs: Sequence[Run]) -> Run:
    commits = {run.commit for run in runs}
    packages = dict.fromkeys(name for run in runs for name in run.packages)
    same: dict[str, Any] = {
        key: _joined(getattr(run, key) for run in runs)
        for key in ("python", "implementation", "platform", "loop", "processor", "hash_seed")
    }
    return Run(
        created=max(run.created for run in runs),
        **same,
        packages={name: _joined(run.packages.get(name) for run in runs) or "" for name in packages},
        commit=commits.pop() if len(commits) == 1 else None,
    )


def _joined(values: Iterable[str | None]) -> str | None:
    return ", ".join(dict.fromkeys(value for value in values if value)) or None


def _survey(surveys: Sequence[SurveyRun]) -> SurveyRun | None:
    """Add up surveys, None without any."""
    if not surveys:
        return None
    return SurveyRun(
        seconds=sum(run.seconds for run in surveys),
        limit_s=sum(run.limit_s for run in surveys),
        tests=sum(run.tests for run in surveys),
        repeated=tuple(test for run in surveys for test in run.repeated),
        unknown_clients=tuple(dict.fromkeys(client for run in surveys for client in run.unknown_clients)),
        unexamined=sum(run.unexamined for run in surveys),
    )
