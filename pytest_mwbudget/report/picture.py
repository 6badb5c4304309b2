"""The stack as a picture for the HTML page: the box of each layer contains the boxes of the layers inside.

Positions and widths are percentages of the picture's width, as strings for SVG such as `12.50%`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

from ..model.quantities import Quantity, Traits
from ..model.results import Judged
from .table import COUNTS, US, Figure, Row
from .text import amount, bound, formatted

# The longest scale, in lengths of the whole stack. Marks farther out are drawn at its end.
FARTHEST = 2.0
MOST_TICKS = 6
BINARY = (1024**2, 1024)


def picture(rows: Sequence[Row]) -> dict[str, Any] | None:
    """Draw the stack by time or, if nothing was timed, by a count; None if there is nothing to show.

    `bars` has a bar for each row except the total, `total` the bar of the total, `ticks` the numbers on the scale. Tops
    and heights are percentages: the box of a row reaches down to the innermost row.
    """
    column = _pictured(rows)
    if column is None:
        return None
    starts = [0.0]
    for row in rows[:-1]:
        figure = row.figures.get(column.name)
        starts.append(starts[-1] + max(0.0, figure.value if figure else 0.0))
    whole = starts.pop()
    scale = _Scale(column, whole, _end(column, rows, [*starts, 0.0], whole))
    bars = [scale.bar(row, start) for row, start in zip(rows[:-1], starts, strict=True)]
    for number, bar in enumerate(bars):
        share = number / len(bars)
        bar |= {"top": _percent(share), "height": _percent(1 - share)}
    return {
        "quantity": f"{column.title} per request",
        "bars": bars,
        "total": scale.bar(rows[-1], 0.0),
        "ticks": [*scale.ticks()],
    }


def _pictured(rows: Sequence[Row]) -> Traits | None:
    """Choose the quantity of the picture: time, else a count with a budget, else any known count."""
    counts = [column for column in COUNTS if column.name in ("objects", "allocations", "bytes", "tasks")]
    budgeted = [column for column in counts if any(column.name in row.judged for row in rows)]
    for column in (US, *budgeted, *counts):
        figures = [row.figures[column.name] for row in rows[:-1] if column.name in row.figures]
        if column.name in rows[-1].figures and any(figure.value > 0 for figure in figures):
            return column
    return None


def _end(column: Traits, rows: Sequence[Row], starts: Sequence[float], whole: float) -> float:
    """Find the end of the scale: just past every interval and budget that `FARTHEST` allows."""
    marks = [whole]
    for row, start in zip(rows, starts, strict=True):
        figure, judged = row.figures.get(column.name), row.judged.get(cast("Quantity", column.name))
        marks += [start + end for end in (figure.value, figure.high) if end is not None] if figure else []
        marks += [start + judged.bound] if judged else []
    return 1.02 * max(mark for mark in marks if mark <= FARTHEST * whole)


@dataclass(frozen=True, slots=True)
class _Scale:
    """A scale from 0 at the left to `end` at the right, in the unit of `column`. The stack ends at `whole`."""

    column: Traits
    whole: float
    end: float

    def at(self, value: float) -> str:
        """Return the position of a value."""
        return _percent(min(max(value / self.end, 0.0), 1.0))

    def ticks(self) -> Iterator[dict[str, str]]:
        """Yield round numbers along the scale; `anchor` is SVG's text-anchor."""
        unit = next((unit for unit in BINARY if self.column.name == "bytes" and unit <= self.end), 1)
        rough = self.end / unit / MOST_TICKS
        power = 10.0 ** math.floor(math.log10(rough))
        step = unit * next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
        if self.column.counted:
            step = max(1.0, step)
        for number in range(int(self.end / step) + 1):
            value = number * step
            anchor = "start" if not number else "end" if value > 0.95 * self.end else "middle"
            text = formatted(self.column.name, value) if self.column.counted else bound(value)
            yield {"at": self.at(value), "text": text, "anchor": anchor}

    def bar(self, row: Row, start: float) -> dict[str, Any]:
        """Draw the bar of a row from `start` on.

        `enclosed` is the width of the box, `over` the width of the part above the budget. `beyond` says that the budget
        is off the scale.
        """
        quantity = cast("Quantity", self.column.name)
        figure, judged = row.figures.get(quantity), row.judged.get(quantity)
        value = max(0.0, figure.value) if figure else 0.0
        most = judged.bound if judged else math.inf
        kept = min(value, most) if judged and judged.verdict != "pass" else value
        return {
            "row": row,
            "text": self._text(figure.value) if figure else "",
            "remark": self._remark(row, value, judged),
            "verdict": judged.verdict if judged else None,
            "start": self.at(start),
            "own": self.at(kept),
            "enclosed": self.at(self.whole - start),
            "over_start": self.at(start + kept) if value > kept else None,
            "over": self.at(value - kept),
            "interval": self._interval(figure, start) if figure else None,
            "budget": self.at(start + most) if judged else None,
            "budget_text": amount(quantity, most) if judged else "",
            "beyond": start + most > self.end,
        }

    def _interval(self, figure: Figure, start: float) -> tuple[str, str] | None:
        """Return the positions of both ends of the interval; None if it is a point."""
        if figure.low is None or figure.high is None or not figure.varies:
            return None
        return self.at(start + max(0.0, figure.low)), self.at(start + max(0.0, figure.high))

    def _text(self, value: float) -> str:
        return f"{formatted(self.column.name, value)}{'' if self.column.counted else ' µs'}"

    def _remark(self, row: Row, value: float, judged: Judged | None) -> str:
        """Return the remark beside the bar: not entered, merged, over budget or undecided."""
        if not row.entered:
            return "not entered"
        if row.merged_with:
            return f"measured with {row.merged_with}"
        if judged and judged.verdict == "fail":
            return f"{self._text(value - judged.bound)} over"
        return "undecided" if judged and judged.verdict == "undecided" else ""


def _percent(share: float) -> str:
    return f"{100 * share:.2f}%"
