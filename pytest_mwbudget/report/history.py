"""A run as a line of the history file, and back."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ..comparison.figures import RequestFigures, RowFigures, UnderLoad
from ..comparison.history import HistoryRequest, HistoryRun, history_run
from ..model.estimate import Estimate
from ..model.quantities import TRAITS
from ..model.request_keys import RequestKey
from .json import encodable, measured, run_of

SCHEMA = "pytest-mwbudget-history/1"


def line(document: Mapping[str, Any]) -> str:
    """Return the line for a document: what the run was made of, and each figure with both ends of its interval."""
    run = history_run(run_of(document), measured(document))
    about = {key: document[key] for key in ("created", "commit", "environment")}
    data = {"schema": SCHEMA, **about, "requests": [_request(request) for request in run.requests]}
    return json.dumps(encodable(data), ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n"


def _request(request: HistoryRequest) -> dict[str, Any]:
    rows = {
        name: {
            "method": row.method,
            "runs_task": row.runs_task,
            **{key: _rounded(key, us) for key, us in row.figures.items()},
        }
        for name, row in request.figures.rows.items()
    }
    speed = {"slowdown": request.figures.slowdown, "reference_ns": request.figures.reference_ns}
    load = request.figures.load and asdict(request.figures.load)
    return {
        "nodeid": request.key.nodeid,
        "request": request.key.request,
        "loop": request.loop,
        **speed,
        "load": load,
        "rows": rows,
    }


def _rounded(key: str, figure: Estimate) -> list[float]:
    digits = 5 if TRAITS[key].format == "share" else 3
    return [round(end, digits) for end in (figure.estimate, figure.low, figure.high)]


def read(text: str) -> HistoryRun:
    """Read a line. Raises ValueError, LookupError, TypeError or AttributeError if it is none."""
    data = json.loads(text)
    if data["schema"] != SCHEMA:
        raise ValueError(f"it has the schema {data['schema']!r}, and this version reads {SCHEMA!r}")
    return HistoryRun(run_of(data), tuple(_read_request(request) for request in data["requests"]))


def _read_request(data: Mapping[str, Any]) -> HistoryRequest:
    rows = {name: _read_row(row) for name, row in data["rows"].items()}
    load = UnderLoad(**data["load"]) if data.get("load") else None
    figures = RequestFigures(rows, data["slowdown"], data["reference_ns"], load)
    return HistoryRequest(RequestKey(data["nodeid"], data["request"]), data["loop"], figures)


def _read_row(data: Mapping[str, Any]) -> RowFigures:
    figures = {key: _estimate(*value) for key, value in data.items() if isinstance(value, list)}
    return RowFigures(figures, data["method"], data["runs_task"])


def _estimate(estimate: float | None, low: float | None, high: float | None) -> Estimate:
    return Estimate(
        0.0 if estimate is None else estimate, -math.inf if low is None else low, math.inf if high is None else high
    )
