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
    combined = merged(
        StoredRun(name, run_of(each_document), measured(each_document)) for name, each_document in documents.items()
    )
    times = Counter(place.key for place in combined.requests)
    measurements = [
        to_json(request.result, _nodeid(place, several=times[place.key] > 1))
        for place, request in combined.requests.items()
    ]
    left_out = [request for other in documents.values() for request in other["left_out"]]
    whole = document(measurements, left_out, _survey(filter(None, map(surveyed, documents.values()))))
    commits = [other["commit"] for other in documents.values()]
    return {
        **whole,
        "created": max((each_document["created"] or "" for each_document in documents.values()), default=""),
        "environment": _environment([each_document["environment"] for each_document in documents.values()]),
        "commit": commits[0] if all(commit == commits[0] for commit in commits) else None,
    }, combined.repeated


def _nodeid(place: Place, *, several: bool) -> str:
    return f"{place.key.nodeid} ({place.surroundings})" if several else place.key.nodeid


def _environment(environments: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    packages = dict.fromkeys(name for environment in environments for name in environment["packages"])
    keys = [key for key in environments[0] if key != "packages"]
    return {
        **{key: _joined(environment[key] for environment in environments) for key in keys},
        "packages": {
            name: _joined(environment["packages"].get(name) for environment in environments) for name in packages
        },
    }


def _joined(values: Iterable[str | None]) -> str | None:
    return ", ".join(dict.fromkeys(value for value in values if value)) or None


def _survey(runs: Iterable[SurveyRun]) -> SurveyRun | None:
    """Add up surveys, None without any."""
    surveys = list(runs)
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
