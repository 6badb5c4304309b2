"""The results of a test as properties of its testcase in JUnit XML, listed in docs/how-to/ci-reports.md.

The worst request is the slowest of those with the worst verdict. The worst layer is `View.first`, under load the one
with the largest share of the requests per second of those with the worst verdict.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from ..model.quantities import COUNTED
from ..model.results import RecordedLimit, Result
from .table import MESSAGES, SAVES, TAIL_COLUMNS, TREND_COLUMNS, Row
from .text import amount, printable
from .under_load import LoadView
from .view import GRAVITY, View, view

Property: TypeAlias = tuple[str, str | int | float]

# Begins the name of each property.
PREFIX = "mw_budget."


def properties(results: Sequence[Result]) -> Iterator[Property]:
    """Yield the properties of a test: of its worst request and, if there are several, of each request."""
    shown = [view(result) for result in results]
    if shown:
        yield from _of_request(max(shown, key=_badness), PREFIX)
    if len(shown) > 1:
        for number, request_view in enumerate(shown, start=1):
            yield from _of_request(request_view, f"{PREFIX}{number}.")


def _badness(shown: View) -> tuple[int, float]:
    return GRAVITY[shown.verdict], _us(shown.total) or 0.0


def _of_request(shown: View, prefix: str) -> Iterator[Property]:
    yield f"{prefix}request", printable(shown.request)
    if shown.verdict is not None:
        yield f"{prefix}verdict", shown.verdict
    over = [limit for row in shown.rows for limit in row.over_limits]
    if over:
        yield f"{prefix}over_recorded_limits", printable("; ".join(map(_over, over)))
    total_us = _us(shown.total)
    if total_us is not None:
        yield f"{prefix}total_us", total_us
    for row, name in ((shown.first, "worst_layer"), (shown.first_part, "worst_part")):
        if row is not None:
            yield from _of_row(row, f"{prefix}{name}")
    if shown.load is not None:
        yield from _of_load(shown.load, shown.layers, f"{prefix}load_")


def _over(limit: RecordedLimit) -> str:
    value, most = (amount(limit.quantity, number) for number in (limit.value or 0, limit.limit))
    return f"{limit.row}: {value}, limit {most}"


def _of_row(row: Row, prefix: str) -> Iterator[Property]:
    yield prefix, printable(row.name)
    us = _us(row)
    if us is not None:
        yield f"{prefix}_us", us
    for quantity in COUNTED:
        if quantity in row.figures:
            yield f"{prefix}_{quantity}", row.figures[quantity].value
    for column in (SAVES, *MESSAGES, *TAIL_COLUMNS, *TREND_COLUMNS):
        if column.name in row.figures:
            yield f"{prefix}_{column.name}", round(row.figures[column.name].value, 3)


def _of_load(load: LoadView, layers: Sequence[Row], prefix: str) -> Iterator[Property]:
    for key, value in load.figures.items():
        yield f"{prefix}{key}", round(value, 3)
    known = [
        (GRAVITY[row.load.judged.verdict if row.load.judged else None], row.load.share.estimate, row.name)
        for row in layers
        if row.load is not None and row.load.share is not None
    ]
    if known:
        _, share, name = max(known)
        yield f"{prefix}worst_layer", printable(name)
        yield f"{prefix}worst_layer_rps_share", round(share, 4)


def _us(row: Row) -> float | None:
    """Return the time in µs, rounded to the nanosecond; None if it is unknown."""
    return round(row.figures["us"].value, 3) if "us" in row.figures else None
