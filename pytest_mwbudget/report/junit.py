"""The results of a test as properties of its testcase in JUnit XML.

`mw_budget.verdict` is the worst of the test's requests; `mw_budget.request` is the request that has it, of several
the one that takes the most time. Of this request there are `mw_budget.total_us`, `mw_budget.worst_layer`,
`mw_budget.worst_layer_us` and its counts: `mw_budget.worst_layer_objects`, `…_allocations`, `…_bytes`, `…_tasks`,
`…_threads`, `…_retained`. The worst layer is one with the worst verdict: of several that fail the one that exceeds its
budget most, of others the one that takes the most time.

A test with several requests has the same for each of them, numbered in the order in which they were made:
`mw_budget.1.request`, `mw_budget.1.verdict`, …. What is not known has no property.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from ..model.estimate import Estimate, Microseconds
from ..model.results import COUNTED, LayerReport, Result, Verdict
from .terminal import excess, printable

Property: TypeAlias = tuple[str, str | int | float]

# How the name of each begins.
PREFIX = "mw_budget."
GRAVITY: dict[Verdict | None, int] = {"fail": 2, "undecided": 1, "pass": 0, None: 0}


def properties(results: Sequence[Result]) -> Iterator[Property]:
    """The properties of a test that made these requests."""
    if not results:
        return
    yield from _of_request(max(results, key=_badness), PREFIX)
    if len(results) > 1:
        for number, result in enumerate(results, start=1):
            yield from _of_request(result, f"{PREFIX}{number}.")


def _badness(result: Result) -> tuple[int, Microseconds]:
    return GRAVITY[result.verdict], _us(result.books.total if result.books else None) or 0.0


def _of_request(result: Result, prefix: str) -> Iterator[Property]:
    yield f"{prefix}request", printable(str(result.request))
    if result.verdict is not None:
        yield f"{prefix}verdict", result.verdict
    total_us = _us(result.books.total if result.books else None)
    if total_us is not None:
        yield f"{prefix}total_us", total_us
    report = worst_layer(result)
    if report is not None:
        yield from _of_layer(report, f"{prefix}worst_layer")


def _of_layer(report: LayerReport, prefix: str) -> Iterator[Property]:
    yield prefix, printable(report.name)
    us = _us(report.us)
    if us is not None:
        yield f"{prefix}_us", us
    for quantity in COUNTED:
        count = report.counts.of(quantity) if report.counts else None
        if count is not None:
            yield f"{prefix}_{quantity}", count.count


def worst_layer(result: Result) -> LayerReport | None:
    """The layer to look at first; None when no layer was timed and none has an open or failed budget."""
    known = [report for report in result.layers if GRAVITY[report.verdict] or _us(report.us) is not None]
    return max(known, key=lambda report: (GRAVITY[report.verdict], excess(report), _us(report.us) or 0.0), default=None)


def _us(us: Estimate | None) -> Microseconds | None:
    """The estimate to the nanosecond, None where there is none."""
    return round(us.estimate, 3) if us is not None and math.isfinite(us.half_width) else None
