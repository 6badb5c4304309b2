"""The reasons why figures of a layer are not known."""

from __future__ import annotations

import math
from collections.abc import Iterator

from .estimate import Estimate
from .paths import at
from .quantities import COUNTED, from_sources
from .results import Result, ResultRow
from .saves import UNREAD

# The times of a layer that have a reason if they are not known, and all such figures.
TIMES = from_sources("split", "savings", "occupation")
MEASURED = (*(traits.name for traits in TIMES), *COUNTED, "suspensions", "messages", "own_types")


def reasons(row: ResultRow, result: Result) -> dict[str, str]:
    """Return the reason for each of MEASURED that a row of the result does not have."""
    general = None
    if not row.layer.entered:
        general = "the request did not come to this layer"
    elif row.layer.merged_with is not None:
        general = f"it is measured together with {row.layer.merged_with}"
    few = "there were too few requests"
    of_time = any(quantity not in COUNTED for own in result.rows() for quantity in own.judged)
    why_counted = "nothing was timed" if of_time else "every budget is a count, so nothing was timed"
    untimed = result.disturbed or (few if result.timed else why_counted)
    uncounted = {**result.uncounted, **(row.counts.why if row.counts else {})}
    by_figure = {
        **{traits.name: untimed for traits in TIMES},
        "cpu_us": f"the clock of the processor's time is too coarse here, or {few}" if row.us else untimed,
        "saves_us": row.saves.why or "" if row.saves else untimed if not row.us else UNREAD,
        "own_types": uncounted.get("objects", ""),
        **uncounted,
    }
    known = {*_known(row)}
    return {key: general or by_figure.get(key, "") for key in MEASURED if key not in known}


def _known(row: ResultRow) -> Iterator[str]:
    """Yield the figures that the row has. A time that has no interval is one too."""
    for traits in TIMES:
        figure = at(row, traits.path)
        if isinstance(figure, Estimate) and traits.source != "split":
            figure = figure.estimate if math.isfinite(figure.estimate) else None
        yield from [traits.name] if figure is not None else []
    if row.counts is not None:
        yield from (*row.counted, "suspensions", "messages")
        yield from ["own_types"] if row.counts.objects else []
