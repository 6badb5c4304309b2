"""A document as JSON of pytest-benchmark, for trackers that chart it: a benchmark for each layer and whole request.

What they read: github-action-benchmark (tool `pytest`) charts `ops` and shows `stddev`, `mean` and `rounds`; Bencher
(adapter `python_pytest`) charts `mean` and `mean ± stddev`, or `median` and `median ± iqr`. Times are in seconds.

pytest-benchmark has every duration; here there are a median and the interval in which it lies. So the numbers speak of
the median, and not of single requests:

- `mean` and `median` are the estimate. What is below the floor cannot be told from nothing and stands as the floor: a
  layer that costs nothing is a flat line in a chart, and not one that leaps to infinite operations in a second.
- `stddev` is how far the interval reaches from the estimate, so `mean ± stddev` covers it. `min`, `q1` and `ld15iqr`
  are its lower end, `max`, `q3` and `hd15iqr` its upper one, `iqr` its width. No outliers are counted.
- `rounds` is the number of requests that were timed, `total` is `rounds × mean`, `ops` is `1 / mean`.

`extra_info` has the estimate and the interval as they are, in microseconds. Rows without an interval are left out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from ..model.estimate import Estimate, Microseconds
from ..model.results import Effort, Result
from .json import measured
from .terminal import shortened

# The version of pytest-benchmark whose shape this is.
VERSION = "5.0.0"
# Bencher takes names of 1,024 characters.
MAX_NAME = 1000


def render(document: Mapping[str, Any]) -> str:
    """The text of the file."""
    environment = document["environment"]
    results = measured(document)
    numbered = _numbered([f"{nodeid} {result.request}" for nodeid, result in results])
    data = {
        "machine_info": {
            "python_implementation": environment["implementation"],
            "python_version": environment["python"],
            "system": environment["platform"],
        },
        # As pytest-benchmark says it outside a repository: a stored result does not know its commit.
        "commit_info": {"id": "unversioned", "time": None, "dirty": False, "branch": "(unknown)"},
        "benchmarks": [
            one for group, (_, result) in zip(numbered, results, strict=True) for one in _benchmarks(group, result)
        ],
        "datetime": document.get("created"),
        "version": VERSION,
    }
    return json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _numbered(groups: list[str]) -> list[str]:
    """The names, with a number at each that was there before: they stay the same from run to run."""
    return [
        name if not (before := groups[:place].count(name)) else f"{name} #{before + 1}"
        for place, name in enumerate(groups)
    ]


def _benchmarks(group: str, result: Result) -> Iterator[dict[str, Any]]:
    if result.books is None or result.effort is None:
        return
    rows = [(report.name, report.us) for report in result.layers]
    for name, us in [*rows, ("(total)", result.books.total)]:
        if us is not None and math.isfinite(us.half_width):
            yield {
                "group": shortened(group, MAX_NAME),
                "name": name,
                "fullname": shortened(f"{group} {name}", MAX_NAME),
                "params": None,
                "param": None,
                "extra_info": {"estimate_us": us.estimate, "interval_us": [us.low, us.high]},
                "options": {},
                "stats": _stats(us, _known(result.floor_us), result.effort),
            }


def _known(floor_us: Microseconds | None) -> Microseconds:
    """The floor; a nanosecond where there is none, so that nothing is divided by zero."""
    return floor_us if floor_us and math.isfinite(floor_us) else 0.001


def _stats(us: Estimate, floor_us: Microseconds, effort: Effort) -> dict[str, Any]:
    """The numbers of `us` in seconds, under the names of pytest-benchmark."""
    middle = max(us.estimate, floor_us)
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
