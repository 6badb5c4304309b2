"""A document in the JSON format of pytest-benchmark, for charts: a benchmark for each layer and each whole request.

pytest-benchmark stores every duration. A result has only a median and its interval, so the statistics describe the
median and not single requests; docs/how-to/ci-reports.md defines each. Rows without an interval are omitted.

github-action-benchmark (tool `pytest`) charts `ops` and shows `stddev`, `mean` and `rounds`. Bencher (adapter
`python_pytest`) charts `mean` and `mean ± stddev`, or `median` and `median ± iqr`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from ..model.estimate import Microseconds
from ..model.measured_run import MeasuredRun
from ..model.results import Effort, Result
from .table import Figure
from .text import shortened
from .view import view

# The version of pytest-benchmark whose format is written.
VERSION = "5.0.0"
# Bencher accepts names of up to 1,024 characters.
MAX_NAME = 1000


def document(run: MeasuredRun) -> dict[str, Any]:
    """Return the document as plain data."""
    numbered = _numbered([f"{nodeid} {result.request}" for nodeid, result in run.measured])
    return {
        "machine_info": {
            "python_implementation": run.run.implementation,
            "python_version": run.run.python,
            "system": run.run.platform,
        },
        # What pytest-benchmark writes outside a repository: a stored result has no commit.
        "commit_info": {"id": "unversioned", "time": None, "dirty": False, "branch": "(unknown)"},
        "benchmarks": [
            benchmark
            for group, result in zip(numbered, run.results, strict=True)
            for benchmark in _benchmarks(group, result)
        ],
        "datetime": run.run.created,
        "version": VERSION,
    }


def _numbered(groups: list[str]) -> list[str]:
    """Number repeated names, so that each benchmark keeps its name from run to run."""
    return [
        name if not (before := groups[:place].count(name)) else f"{name} #{before + 1}"
        for place, name in enumerate(groups)
    ]


def _benchmarks(group: str, result: Result) -> Iterator[dict[str, Any]]:
    if result.effort is None:
        return
    shown = view(result)
    for row, us in ((row, row.figures.get("us")) for row in (*shown.layers, shown.total)):
        if us is not None:
            yield {
                "group": shortened(group, MAX_NAME),
                "name": row.name,
                "fullname": shortened(f"{group} {row.name}", MAX_NAME),
                "params": None,
                "param": None,
                "extra_info": {"estimate_us": us.value, "interval_us": [us.low, us.high]},
                "options": {},
                "stats": _stats(us, _least_us(result.floor_us), result.effort),
            }


def _least_us(limit_us: Microseconds | None) -> Microseconds:
    """Return the detection limit, or a nanosecond if it is unknown or 0, to avoid a division by zero."""
    return limit_us if limit_us and math.isfinite(limit_us) else 0.001


def _stats(us: Figure, least_us: Microseconds, effort: Effort) -> dict[str, Any]:
    """Convert `us` to seconds, under the names of pytest-benchmark.

    An estimate below the detection limit is replaced by the limit: a layer without a measurable cost is then a flat
    line in a chart of operations per second.
    """
    assert us.low is not None
    assert us.high is not None
    middle = max(us.value, least_us)
    low, high = max(us.low, 0.0), max(us.high, middle)
    seconds = 1e-6
    return {
        "min": low * seconds,
        "max": high * seconds,
        "mean": middle * seconds,
        "stddev": max(middle - low, high - middle) * seconds,
        "rounds": effort.requests,
        "median": middle * seconds,
        "iqr": (high - low) * seconds,
        "q1": low * seconds,
        "q3": high * seconds,
        "iqr_outliers": 0,
        "stddev_outliers": 0,
        "outliers": "0;0",
        "ld15iqr": low * seconds,
        "hd15iqr": high * seconds,
        "ops": 1 / (middle * seconds),
        "total": effort.requests * middle * seconds,
        "iterations": 1,
    }
