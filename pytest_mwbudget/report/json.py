"""Conversion of results to plain data and back, for `--mw-budget-json` and for pytest-xdist workers."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from importlib import metadata
from typing import Any, cast

from ..model.changes import Change, Since
from ..model.endpoint import EndpointReport, Observed
from ..model.load import LayerLoad, Load
from ..model.messages import Messages
from ..model.quantities import PROCESS_WIDE, TRAITS
from ..model.results import (
    FRAMES,
    Count,
    Counts,
    Effort,
    Frame,
    Judged,
    Occupation,
    Profile,
    Recorded,
    RequestLine,
    Result,
    ResultRow,
    SurveyRun,
)
from ..model.runs import Provenance, Run
from ..model.saves import Saves
from ..model.stack import Layer
from ..model.tails import Tails
from ..model.trend import Trend
from .records import estimate, record
from .table import UNREAD, Row
from .view import view

SCHEMA = "pytest-mwbudget/1"
# Packages whose versions can explain a difference between two runs.
PACKAGES = (
    *("pytest-mwbudget", "pytest", "starlette", "fastapi", "httpx", "httpx2", "anyio", "asgi-lifespan", "trio"),
    *("uvloop", "pydantic"),
)
# The counts of a row that have a key of their own, each with the key of its kinds.
KINDS = {name: traits.kinds for name, traits in TRAITS.items() if traits.counted and name not in ("received", "sent")}
# The fields of a result and of a layer that have the same name in the JSON.
OF_RESULT = ("status", "route", "surveyed", "loop", "slowdown", "reference_ns", "verdict", "disturbed")
OF_LAYER = ("index", "name", "qualname", "kind", "entered", "runs_task", "merged_with", "merged_because")


def document(
    measurements: Sequence[Mapping[str, Any]],
    left_out: Sequence[Mapping[str, Any]] = (),
    survey: SurveyRun | None = None,
    provenance: Provenance | None = None,
    since: Since | None = None,
) -> dict[str, Any]:
    """Build the whole file, which `schema.json` beside this module describes.

    `measurements` come from `to_json`, requests that were `left_out` from `left_out_to_json`. `survey` is
    what the run's survey did, None without one. `since` says which run it was compared with.
    """
    made = provenance or Provenance()
    loops = sorted({str(measurement["loop"]) for measurement in measurements})
    return {
        "schema": SCHEMA,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "environment": environment(", ".join(loops) or "asyncio", made),
        "commit": made.commit and asdict(made.commit),
        "measurements": [*measurements],
        "left_out": [*left_out],
        "survey": survey and encodable(asdict(survey)),
        "comparison": since and since_to_json(since),
    }


def render(document: Mapping[str, Any]) -> str:
    """Return the text of the file."""
    return json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def environment(loop: str, made: Provenance) -> dict[str, Any]:
    """Return interpreter, platform, event loop, processor, seed of hashes and the versions of `PACKAGES`."""
    return {
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "platform": platform.platform(),
        "loop": loop,
        "processor": made.processor,
        "hash_seed": made.hash_seed,
        "packages": {name: version for name in PACKAGES if (version := _version(name)) is not None},
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def encodable(data: Any) -> Any:
    """Copy plain data in a form that JSON and UTF-8 can represent.

    A number that is not finite becomes null. A lone surrogate, which names of the app and paths can contain, becomes an
    escape, also in a key. Keys become strings.
    """
    if isinstance(data, str):
        return data.encode(errors="backslashreplace").decode()
    if isinstance(data, Mapping):
        return {encodable(str(key)): encodable(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [encodable(part) for part in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


# ---- write -------------------------------------------------------------------------------------------------------


def left_out_to_json(nodeid: str, request: RequestLine, reason: str) -> dict[str, Any]:
    """Convert a request that was not measured to plain data."""
    return cast("dict[str, Any]", encodable({"nodeid": nodeid, "request": asdict(request), "reason": reason}))


def change_to_json(change: Change) -> dict[str, Any]:
    """Convert the change of a figure to plain data, without the verdict on it."""
    data = {key: value for key, value in asdict(change).items() if key not in ("most", "verdict")}
    return cast("dict[str, Any]", encodable(data))


def since_to_json(since: Since) -> dict[str, Any]:
    """Convert what a run was compared with to plain data."""
    return cast("dict[str, Any]", encodable(asdict(since)))


def to_json(result: Result, nodeid: str) -> dict[str, Any]:
    """Convert a measured result to plain data."""
    effort, shown = result.effort, view(result)
    outside, endpoint, total = map(result.frame, FRAMES)
    assert outside.counts is not None
    assert total.counts is not None
    of_total, of_endpoint = total.judged.get("us"), endpoint.judged.get("us")
    data = {
        "nodeid": nodeid,
        "request": asdict(result.request),
        "route": result.route,
        "surveyed": result.surveyed,
        "budget_place": result.place,
        "status": result.status,
        "loop": result.loop,
        "verdict": result.verdict,
        "rounds": effort and effort.rounds,
        "requests": effort and effort.requests,
        "seconds": effort and effort.seconds,
        "floor_us": result.floor_us,
        "slowdown": result.slowdown,
        "reference_ns": result.reference_ns,
        "total_us": total.us and asdict(total.us),
        "total_budget_us": total.budget_us,
        "total_verdict": of_total and of_total.verdict,
        "total_reason": of_total and of_total.reason,
        "outside_us": outside.us and asdict(outside.us),
        "endpoint_us": endpoint.us and asdict(endpoint.us),
        "residue_us": result.residue_us,
        "outside": outside.judged.get("us") and asdict(outside.judged["us"]),
        "endpoint": result.endpoint and _endpoint(result.endpoint, shown.parts, of_endpoint),
        "layers": [
            _layer(report, row.why) | {"mostly_c": row.mostly_c(result.slowdown or 1.0)}
            for report, row in zip(result.layers, shown.layers, strict=True)
        ],
        "ledger": {
            "requests": result.counted,
            "outside": _counts(outside.counts),
            "endpoint": endpoint.counts and _counts(endpoint.counts),
            "total": _counts(total.counts),
            "why": result.uncounted,
        },
        "recorded": result.recorded and asdict(result.recorded),
        "notes": result.notes,
        "disturbed": result.disturbed,
        "profile": result.profile and asdict(result.profile),
        "advice": [asdict(advice) for advice in shown.advice],
        "changes": [*map(change_to_json, result.changes)],
        "load": result.load and asdict(result.load),
    }
    return cast("dict[str, Any]", encodable(data))


def _endpoint(endpoint: EndpointReport, rows: Sequence[Row], judged: Judged | None) -> dict[str, Any]:
    return {
        "parts": [_layer(part, row.why) | {"mostly_c": None} for part, row in zip(endpoint.parts, rows, strict=True)],
        "closed": endpoint.closed,
        "judged": judged and asdict(judged),
        "notes": endpoint.notes,
        "observed": endpoint.observed and asdict(endpoint.observed),
    }


def _layer(report: ResultRow, why: Mapping[str, str]) -> dict[str, Any]:
    occupation = report.occupation
    return {
        **{key: getattr(report.layer, key) for key in OF_LAYER},
        "us": report.us and asdict(report.us),
        "method": report.method,
        "saves_us": report.saves and report.saves.us and asdict(report.saves.us),
        "busy_us": occupation and occupation.busy.estimate,
        "busy_interval_us": occupation and [occupation.busy.low, occupation.busy.high],
        "wait_us": occupation and occupation.wait_us,
        "cpu_us": occupation and occupation.cpu_us,
        "blocking": occupation and occupation.blocking,
        "tails": report.tails and asdict(report.tails),
        "trend": report.trend and asdict(report.trend) | {"grows": report.trend.grows},
        **(_counts(report.counts) if report.counts else dict.fromkeys((*KINDS, "messages", "own_types", "ranges"))),
        "per_message": report.messages and asdict(report.messages),
        "budget_us": report.budget_us,
        "budgets": {quantity: asdict(judged) for quantity, judged in report.judged.items()},
        "verdict": report.verdict,
        "reason": next((judged.reason for judged in report.judged.values() if judged.reason), None),
        "why": why,
        "origin": report.layer.origin and asdict(report.layer.origin),
        "adapts": report.layer.adapts,
        "load": report.load and asdict(report.load),
    }


def _counts(counts: Counts) -> dict[str, Any]:
    return {
        **{key: _count(getattr(counts, key), kinds) for key, kinds in KINDS.items()},
        "messages": {"receive": counts.received.count, "send": counts.sent.count},
        "own_types": counts.own_types if counts.objects else None,
        "ranges": counts.ranges,
        "why": counts.why,
    }


def _count(count: Count | None, kinds: str | None) -> dict[str, Any] | None:
    if count is None:
        return None
    data = {"count": count.count, "exact": count.exact, "low": count.low, "high": count.high}
    return {**data, kinds: count.kinds} if kinds else data


# ---- read --------------------------------------------------------------------------------------------------------


def measured(document: Mapping[str, Any]) -> list[tuple[str, Result]]:
    """Read the results of a document with the ids of their tests, in order."""
    return [(data["nodeid"], from_json(data)) for data in document["measurements"]]


def run_of(document: Mapping[str, Any]) -> Run:
    """Read what the run was made of and where."""
    made = {**document["environment"], "commit": document["commit"]}
    return record(Run, {**made, "created": document["created"], "provenance": made})


def compared(document: Mapping[str, Any]) -> Since | None:
    """Read which run a run was compared with, None if it was compared with none."""
    data = document["comparison"]
    return data and record(Since, data)


def left_out(document: Mapping[str, Any]) -> list[tuple[str, RequestLine, str]]:
    """Read the requests that were not measured: the id of the test, the request, the reason."""
    return [
        (request["nodeid"], RequestLine(**request["request"]), request["reason"]) for request in document["left_out"]
    ]


def surveyed(document: Mapping[str, Any]) -> SurveyRun | None:
    """Read what the survey of the run did, None if it was none."""
    data = document["survey"]
    return data and record(SurveyRun, data)


def from_json(data: Mapping[str, Any]) -> Result:
    """Read the result that `to_json` wrote. Advice is not read but derived from the result again."""
    why, timed = data["ledger"]["why"], data["total_us"] is not None
    return Result(
        request=record(RequestLine, data["request"]),
        **{key: data[key] for key in OF_RESULT},
        place=data["budget_place"],
        layers=tuple(_read_layer(layer, why) for layer in data["layers"]),
        frames=_read_frames(data),
        counted=data["ledger"]["requests"],
        uncounted=why,
        residue_us=_read(data["residue_us"], math.nan) if timed else None,
        floor_us=_read(data["floor_us"], math.inf) if timed else None,
        effort=record(Effort, data) if timed else None,
        endpoint=data["endpoint"] and _read_endpoint(data["endpoint"], why),
        recorded=data["recorded"] and record(Recorded, data["recorded"]),
        notes=tuple(data["notes"]),
        profile=data["profile"] and record(Profile, data["profile"]),
        changes=tuple(record(Change, change) for change in data["changes"]),
        load=data["load"] and record(Load, data["load"]),
    )


def _read_frames(data: Mapping[str, Any]) -> dict[Frame, ResultRow]:
    total = {"bound": data["total_budget_us"], "verdict": data["total_verdict"], "reason": data["total_reason"]}
    judged = {
        "outside": data["outside"],
        "endpoint": data["endpoint"] and data["endpoint"]["judged"],
        "total": total if data["total_verdict"] is not None else None,
    }
    rows: dict[Frame, ResultRow] = {}
    for frame in FRAMES:
        us, counts, budget = data[f"{frame}_us"], data["ledger"][frame], judged[frame]
        if us or counts or budget:
            row = ResultRow.of_frame(frame, us and estimate(us), budget and record(Judged, budget))
            rows[frame] = replace(row, counts=counts and _read_counts(counts))
    return rows


def _read_endpoint(data: Mapping[str, Any], why: Mapping[str, str]) -> EndpointReport:
    parts = tuple(_read_layer(part, why) for part in data["parts"])
    observed = data["observed"] and record(Observed, data["observed"])
    return EndpointReport(parts, data["closed"], tuple(data["notes"]), observed)


def _read_layer(data: Mapping[str, Any], everywhere: Mapping[str, str]) -> ResultRow:
    """Read a layer. `everywhere` says by quantity why it could not be counted for any row."""
    occupation = None
    if data["busy_interval_us"] is not None:
        busy = dict(zip(("estimate", "low", "high"), (data["busy_us"], *data["busy_interval_us"]), strict=True))
        occupation = Occupation(estimate(busy), data["wait_us"], data["cpu_us"], data["blocking"])
    own = {key: why for key, why in data["why"].items() if key in PROCESS_WIDE and key not in everywhere}
    return ResultRow(
        record(Layer, data),
        data["us"] and estimate(data["us"]),
        data["method"],
        occupation,
        _read_counts({**data, "why": own}) if data["messages"] is not None else None,
        {quantity: record(Judged, judged) for quantity, judged in data["budgets"].items()},
        data["per_message"] and record(Messages, data["per_message"]),
        _read_saves(data),
        data["load"] and record(LayerLoad, data["load"]),
        data["tails"] and record(Tails, data["tails"]),
        data["trend"] and record(Trend, data["trend"]),
    )


def _read_saves(data: Mapping[str, Any]) -> Saves | None:
    """Read what leaving a layer out saves; None where nobody measured it."""
    us, why = data["saves_us"], data["why"].get("saves_us")
    if us is None and (data["us"] is None or why == UNREAD):
        return None
    return Saves(us and estimate(us), why)


def _read_counts(data: Mapping[str, Any]) -> Counts:
    counts: dict[str, Any] = {key: _read_count(data[key], kinds) for key, kinds in KINDS.items()}
    received, sent = (Count(*[data["messages"][key]] * 3) for key in ("receive", "send"))
    own_types = tuple(data["own_types"] or ())
    ranges = {quantity: (low, high) for quantity, (low, high) in data["ranges"].items()}
    return Counts(**counts, received=received, sent=sent, own_types=own_types, why=data["why"], ranges=ranges)


def _read_count(data: Mapping[str, Any] | None, kinds: str | None) -> Count | None:
    if data is None:
        return None
    return Count(data["count"], data["low"], data["high"], data[kinds] if kinds else {})


def _read(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else value
