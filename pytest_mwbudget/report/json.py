"""A result as plain data and back: the content of `--mw-budget-json`, and what test processes send home."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import metadata
from typing import Any, cast

from ..model.estimate import Estimate
from ..model.results import (
    Books,
    Count,
    Counts,
    Effort,
    HotFunction,
    Judged,
    LayerReport,
    Ledger,
    Occupation,
    Profile,
    RequestLine,
    Result,
)
from ..model.stack import Layer
from .advice import advise

SCHEMA = "pytest-mwbudget/1"
# The packages whose versions explain a difference between two runs.
PACKAGES = (
    "pytest-mwbudget",
    "pytest",
    "starlette",
    "fastapi",
    "httpx",
    "anyio",
    "asgi-lifespan",
    "trio",
    "uvloop",
    "pydantic",
)


def document(measurements: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The whole file, as `schema.json` beside this module describes it. `measurements` come from `to_json`."""
    loops = sorted({str(measurement["loop"]) for measurement in measurements})
    return {
        "schema": SCHEMA,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "environment": environment(", ".join(loops) or "asyncio"),
        "measurements": [*measurements],
    }


def render(document: Mapping[str, Any]) -> str:
    """The text of the file."""
    return json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def environment(loop: str) -> dict[str, Any]:
    """Interpreter, machine, event loop and the versions of the packages that matter."""
    return {
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "platform": platform.platform(),
        "loop": loop,
        "packages": {name: version for name in PACKAGES if (version := _version(name)) is not None},
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def to_json(result: Result, nodeid: str) -> dict[str, Any]:
    """One measured result as plain data; numbers that are not finite become null.

    Every text can be encoded: a lone surrogate, which the app's names and a path can hold, becomes an escape.
    """
    assert result.ledger is not None
    books, effort = result.books, result.effort
    data = {
        "nodeid": nodeid,
        "request": {"method": result.request.method, "url": result.request.url},
        "status": result.status,
        "loop": result.loop,
        "verdict": result.verdict,
        "rounds": effort.rounds if effort else None,
        "requests": effort.requests if effort else None,
        "seconds": effort.seconds if effort else None,
        "floor_us": _number(result.floor_us),
        "slowdown": result.slowdown,
        "total_us": _estimate(books.total if books else None),
        "total_budget_us": result.total_budget_us,
        "total_verdict": result.total_verdict,
        "total_reason": result.total_reason,
        "outside_us": _estimate(books.outside if books else None),
        "endpoint_us": _estimate(books.endpoint if books else None),
        "residue_us": _number(books.residue_us if books else None),
        "layers": [_layer(report, result) for report in result.layers],
        "ledger": {
            "requests": result.ledger.requests,
            "outside": _counts(result.ledger.outside),
            "endpoint": _counts(result.ledger.endpoint),
            "total": _counts(result.ledger.total),
            "why": dict(result.ledger.why),
        },
        "notes": list(result.notes),
        "profile": _profile(result.profile),
        "advice": [asdict(one) for one in advise(result)],
    }
    return cast("dict[str, Any]", encodable(data))


def encodable(data: Any) -> Any:
    """Plain data in which every text, also a key, can be written as UTF-8."""
    if isinstance(data, str):
        return data.encode(errors="backslashreplace").decode()
    if isinstance(data, Mapping):
        return {encodable(key): encodable(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [encodable(one) for one in data]
    return data


def _profile(profile: Profile | None) -> dict[str, Any] | None:
    if profile is None:
        return None
    # Object keys are texts in JSON.
    hottest = {str(index): [asdict(one) for one in functions] for index, functions in profile.hottest.items()}
    return {**asdict(profile), "hottest": hottest}


def _layer(report: LayerReport, result: Result) -> dict[str, Any]:
    occupation = report.occupation
    data: dict[str, Any] = {
        "index": report.layer.index,
        "name": report.layer.name,
        "qualname": report.layer.qualname,
        "kind": report.layer.kind,
        "entered": report.layer.entered,
        "runs_task": report.layer.runs_task,
        "us": _estimate(report.us),
        "method": report.method,
        "busy_us": _number(occupation.busy.estimate if occupation else None),
        "busy_interval_us": _interval(occupation.busy if occupation else None),
        "wait_us": _number(occupation.wait_us if occupation else None),
        "cpu_us": _number(occupation.cpu_us if occupation else None),
        "blocking": occupation.blocking if occupation else None,
        **(_counts(report.counts) or dict.fromkeys(COUNT_KEYS)),
        "budget_us": report.budget_us,
        "budgets": {quantity: asdict(judged) for quantity, judged in report.judged.items()},
        "verdict": report.verdict,
        "reason": next((judged.reason for judged in report.judged.values() if judged.reason), None),
        "merged_with": report.layer.merged_with,
        "merged_because": report.layer.merged_because,
    }
    data["why"] = _why(data, report, result)
    return data


COUNT_KEYS = ("objects", "allocations", "bytes", "tasks", "threads", "retained", "suspensions", "messages", "own_types")
MEASURED_KEYS = ("us", "busy_us", "wait_us", "cpu_us", *COUNT_KEYS)


def _why(data: Mapping[str, Any], report: LayerReport, result: Result) -> dict[str, str]:
    """The reason for each figure that is null."""
    assert result.ledger is not None
    general = None
    if not report.layer.entered:
        general = "the request did not come to this layer"
    elif report.layer.merged_with is not None:
        general = f"it is measured together with {report.layer.merged_with}"
    untimed = "every budget is a count, so nothing was timed" if result.books is None else "there were too few requests"
    untimed = result.disturbed or untimed
    unclocked = "the clock of the processor's time is too coarse here, or there were too few requests"
    reasons = {
        "us": untimed,
        "busy_us": untimed,
        "wait_us": untimed,
        "cpu_us": untimed if report.us is None else unclocked,
        "own_types": result.ledger.why.get("objects", ""),
        **result.ledger.why,
    }
    return {key: general or reasons.get(key, "") for key in MEASURED_KEYS if data[key] is None}


def _counts(counts: Counts | None) -> dict[str, Any] | None:
    if counts is None:
        return None
    return {
        "objects": _count(counts.objects, "types"),
        "allocations": _count(counts.allocations),
        "bytes": _count(counts.bytes),
        "tasks": _count(counts.tasks, "names"),
        "threads": _count(counts.threads, "names"),
        "retained": _count(counts.retained, "types"),
        "suspensions": _count(counts.suspensions),
        "messages": {"receive": counts.received.count, "send": counts.sent.count},
        "own_types": list(counts.own_types) if counts.objects else None,
    }


def _count(count: Count | None, kinds: str | None = None) -> dict[str, Any] | None:
    if count is None:
        return None
    data: dict[str, Any] = {"count": count.count, "exact": count.exact, "low": count.low, "high": count.high}
    if kinds is not None:
        data[kinds] = dict(count.kinds)
    return data


def _estimate(us: Estimate | None) -> dict[str, float | None] | None:
    if us is None:
        return None
    return {"estimate": _number(us.estimate), "low": _number(us.low), "high": _number(us.high)}


def _interval(us: Estimate | None) -> list[float | None] | None:
    return None if us is None else [_number(us.low), _number(us.high)]


def _number(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


# ---- back --------------------------------------------------------------------------------------------------------


def measured(document: Mapping[str, Any]) -> list[tuple[str, Result]]:
    """The results in a document with the ids of their tests, in order."""
    return [(data["nodeid"], from_json(data)) for data in document["measurements"]]


def from_json(data: Mapping[str, Any]) -> Result:
    """The result that `to_json` wrote. Advice is not read: it can be had again from the result."""
    ledger = data["ledger"]
    outside, total = _read_counts(ledger["outside"]), _read_counts(ledger["total"])
    assert outside is not None
    assert total is not None
    timed = data["total_us"] is not None
    return Result(
        request=RequestLine(**data["request"]),
        status=data["status"],
        loop=data["loop"],
        layers=tuple(_read_layer(layer) for layer in data["layers"]),
        ledger=Ledger(outside, _read_counts(ledger["endpoint"]), total, ledger["requests"], ledger["why"]),
        books=_read_books(data) if timed else None,
        floor_us=(math.inf if data["floor_us"] is None else data["floor_us"]) if timed else None,
        slowdown=data.get("slowdown"),  # results from before it was told are read as well
        effort=Effort(data["requests"], data["rounds"], data["seconds"]) if timed else None,
        total_budget_us=data["total_budget_us"],
        total_verdict=data["total_verdict"],
        total_reason=data["total_reason"],
        verdict=data["verdict"],
        notes=tuple(data["notes"]),
        profile=_read_profile(data.get("profile")),  # results from before there were profiles are read as well
    )


def _read_profile(data: Mapping[str, Any] | None) -> Profile | None:
    if data is None:
        return None
    hottest = {int(index): tuple(HotFunction(**one) for one in found) for index, found in data["hottest"].items()}
    return Profile(**{**data, "hottest": hottest})


def _read_books(data: Mapping[str, Any]) -> Books:
    total, outside = _read_estimate(data["total_us"]), _read_estimate(data["outside_us"])
    assert total is not None
    assert outside is not None
    residue = math.nan if data["residue_us"] is None else data["residue_us"]
    return Books(total, outside, _read_estimate(data["endpoint_us"]), residue)


def _read_layer(data: Mapping[str, Any]) -> LayerReport:
    layer = Layer(
        data["index"],
        data["name"],
        data["qualname"],
        data["kind"],
        entered=data["entered"],
        runs_task=data["runs_task"],
        merged_with=data["merged_with"],
        merged_because=data["merged_because"],
    )
    judged = {quantity: Judged(**found) for quantity, found in data["budgets"].items()}
    counts = _read_counts(data) if data["messages"] is not None else None
    return LayerReport(layer, _read_estimate(data["us"]), data["method"], _read_occupation(data), counts, judged)


def _read_occupation(data: Mapping[str, Any]) -> Occupation | None:
    if data["busy_interval_us"] is None:
        return None
    low, high = data["busy_interval_us"]
    busy = _read_estimate({"estimate": data["busy_us"], "low": low, "high": high})
    assert busy is not None
    return Occupation(busy, data["wait_us"], data["cpu_us"], data["blocking"])


def _read_counts(data: Mapping[str, Any] | None) -> Counts | None:
    if data is None:
        return None
    received, sent = data["messages"]["receive"], data["messages"]["send"]
    tasks, threads, suspensions = (_read_count(data[key]) for key in ("tasks", "threads", "suspensions"))
    assert tasks is not None
    assert threads is not None
    assert suspensions is not None
    return Counts(
        objects=_read_count(data["objects"]),
        allocations=_read_count(data["allocations"]),
        bytes=_read_count(data["bytes"]),
        tasks=tasks,
        threads=threads,
        retained=_read_count(data["retained"]),
        received=Count(received, received, received),
        sent=Count(sent, sent, sent),
        suspensions=suspensions,
        own_types=tuple(data["own_types"] or ()),
    )


def _read_count(data: Mapping[str, Any] | None) -> Count | None:
    if data is None:
        return None
    return Count(data["count"], data["low"], data["high"], data.get("types") or data.get("names") or {})


def _read_estimate(data: Mapping[str, float | None] | None) -> Estimate | None:
    if data is None:
        return None
    estimate, low, high = data["estimate"], data["low"], data["high"]
    return Estimate(estimate or 0.0, -math.inf if low is None else low, math.inf if high is None else high)
