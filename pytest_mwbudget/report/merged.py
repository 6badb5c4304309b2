"""Several documents as one, such as those of the shards of a CI matrix."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..comparison.merging import Place, StoredRun, merged
from ..model.results import SurveyRun
from .json import document, measured, run_of, surveyed, to_json


def merged_documents(documents: Mapping[str, Mapping[str, Any]]) -> tuple[dict[str, Any], Sequence[str]]:
    """Merge documents, which have their files as keys; and say which requests several files have.

    What the surroundings differ by stands in `environment` separated by commas. A request that was measured on several
    interpreters or loops has these behind the id of its test. The commit is None if the documents have several.
    """
    found = merged(StoredRun(name, run_of(one), measured(one)) for name, one in documents.items())
    times = Counter(place.key for place in found.requests)
    measurements = [
        to_json(one.result, _nodeid(place, several=times[place.key] > 1)) for place, one in found.requests.items()
    ]
    left_out = [one for other in documents.values() for one in other["left_out"]]
    whole = document(measurements, left_out, _survey(filter(None, map(surveyed, documents.values()))))
    commits = [other["commit"] for other in documents.values()]
    return {
        **whole,
        "created": max((one["created"] or "" for one in documents.values()), default=""),
        "environment": _environment([one["environment"] for one in documents.values()]),
        "commit": commits[0] if all(commit == commits[0] for commit in commits) else None,
    }, found.repeated


def _nodeid(place: Place, *, several: bool) -> str:
    return f"{place.key.nodeid} ({place.surroundings})" if several else place.key.nodeid


def _environment(environments: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    packages = dict.fromkeys(name for one in environments for name in one["packages"])
    keys = [key for key in environments[0] if key != "packages"]
    return {
        **{key: _joined(one[key] for one in environments) for key in keys},
        "packages": {name: _joined(one["packages"].get(name) for one in environments) for name in packages},
    }


def _joined(values: Iterable[str | None]) -> str | None:
    return ", ".join(dict.fromkeys(value for value in values if value)) or None


def _survey(runs: Iterable[SurveyRun]) -> SurveyRun | None:
    """Add up surveys, None without any."""
    found = list(runs)
    if not found:
        return None
    return SurveyRun(
        seconds=sum(run.seconds for run in found),
        limit_s=sum(run.limit_s for run in found),
        tests=sum(run.tests for run in found),
        repeated=tuple(one for run in found for one in run.repeated),
        unknown_clients=tuple(dict.fromkeys(one for run in found for one in run.unknown_clients)),
        unexamined=sum(run.unexamined for run in found),
    )
