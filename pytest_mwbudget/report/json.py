"""A result as plain data and back: the content of `--mw-budget-json`, and what test processes send home."""

from __future__ import annotations

import math
import platform
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

from ..model import Books, Effort, Estimate, Layer, LayerReport, RequestLine, Result

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
    "uvloop",
    "pydantic",
)


def document(measurements: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The whole file. `measurements` come from `to_json`."""
    loops = sorted({str(measurement["loop"]) for measurement in measurements})
    return {
        "schema": SCHEMA,
        "environment": environment(", ".join(loops) or "asyncio"),
        "measurements": [*measurements],
    }


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
    """One measured result as plain data; numbers that are not finite become null."""
    assert result.books is not None
    assert result.effort is not None
    return {
        "nodeid": nodeid,
        "request": {"method": result.request.method, "url": result.request.url},
        "status": result.status,
        "loop": result.loop,
        "verdict": result.verdict,
        "rounds": result.effort.rounds,
        "requests": result.effort.requests,
        "seconds": result.effort.seconds,
        "floor_us": _number(result.floor_us),
        "total_us": _estimate(result.books.total),
        "total_budget_us": result.total_budget_us,
        "total_verdict": result.total_verdict,
        "total_reason": result.total_reason,
        "outside_us": _estimate(result.books.outside),
        "endpoint_us": _estimate(result.books.endpoint),
        "residue_us": _number(result.books.residue_us),
        "layers": [_layer(report) for report in result.layers],
        "notes": list(result.notes),
    }


def _layer(report: LayerReport) -> dict[str, Any]:
    return {
        "index": report.layer.index,
        "name": report.layer.name,
        "qualname": report.layer.qualname,
        "kind": report.layer.kind,
        "entered": report.layer.entered,
        "runs_task": report.layer.runs_task,
        "us": _estimate(report.us),
        "method": report.method,
        "budget_us": report.budget_us,
        "verdict": report.verdict,
        "reason": report.reason,
        "merged_with": report.layer.merged_with,
        "merged_because": report.layer.merged_because,
    }


def _estimate(us: Estimate | None) -> dict[str, float | None] | None:
    if us is None:
        return None
    return {"estimate": _number(us.estimate), "low": _number(us.low), "high": _number(us.high)}


def _number(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def from_json(data: Mapping[str, Any]) -> Result:
    """The result that `to_json` wrote."""
    total, outside = _read_estimate(data["total_us"]), _read_estimate(data["outside_us"])
    assert total is not None
    assert outside is not None
    residue = math.nan if data["residue_us"] is None else data["residue_us"]
    return Result(
        request=RequestLine(**data["request"]),
        status=data["status"],
        loop=data["loop"],
        layers=tuple(_read_layer(layer) for layer in data["layers"]),
        books=Books(total, outside, _read_estimate(data["endpoint_us"]), residue),
        floor_us=math.inf if data["floor_us"] is None else data["floor_us"],
        effort=Effort(data["requests"], data["rounds"], data["seconds"]),
        total_budget_us=data["total_budget_us"],
        total_verdict=data["total_verdict"],
        total_reason=data["total_reason"],
        verdict=data["verdict"],
        notes=tuple(data["notes"]),
    )


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
    us = _read_estimate(data["us"])
    return LayerReport(layer, us, data["method"], data["budget_us"], data["verdict"], data["reason"])


def _read_estimate(data: Mapping[str, float | None] | None) -> Estimate | None:
    if data is None:
        return None
    estimate, low, high = data["estimate"], data["low"], data["high"]
    return Estimate(estimate or 0.0, -math.inf if low is None else low, math.inf if high is None else high)
