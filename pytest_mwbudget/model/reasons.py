"""The reasons why figures of a layer are not known."""

from __future__ import annotations

import math
from collections.abc import Iterator

from .quantities import COUNTED
from .results import Result, ResultRow
from .saves import UNREAD

# The figures of a layer that have a reason if they are not known.
MEASURED = ("us", "saves_us", "busy_us", "wait_us", "cpu_us", *COUNTED, "suspensions", "messages", "own_types")


def reasons(row: ResultRow, result: Result) -> dict[str, str]:
    """Return the reason for each of MEASURED that a row of the result does not have."""
    general = None
    if not row.layer.entered:
        general = "the request did not come to this layer"
    elif row.layer.merged_with is not None:
        general = f"it is measured together with {row.layer.merged_with}"
    few = "there were too few requests"
    untimed = result.disturbed or (few if result.timed else "every budget is a count, so nothing was timed")
    uncounted = {**result.uncounted, **(row.counts.why if row.counts else {})}
    by_figure = {
        **dict.fromkeys(("us", "busy_us", "wait_us"), untimed),
        "cpu_us": f"the clock of the processor's time is too coarse here, or {few}" if row.us else untimed,
        "saves_us": row.saves.why or "" if row.saves else untimed if not row.us else UNREAD,
        "own_types": uncounted.get("objects", ""),
        **uncounted,
    }
    known = {*_known(row)}
    return {key: general or by_figure.get(key, "") for key in MEASURED if key not in known}


def _known(row: ResultRow) -> Iterator[str]:
    """Yield the figures that the row has. A time that has no interval is one too."""
    yield from (name for name, figure in row.estimates.items() if name == "us" or math.isfinite(figure.estimate))
    if row.occupation is not None:
        yield "wait_us"
        yield from ["cpu_us"] if row.occupation.cpu_us is not None else []
    if row.counts is not None:
        yield from (*row.counted, "suspensions", "messages")
        yield from ["own_types"] if row.counts.objects else []
