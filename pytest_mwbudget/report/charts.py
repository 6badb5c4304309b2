"""The past of a request as small charts for the HTML page. Positions are percentages, as strings for SVG."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..comparison.figures import is_part
from ..comparison.history import Past, Series
from ..model.estimate import Estimate
from ..model.quantities import TRAITS, UNDER_LOAD, Traits
from ..model.runs import Run
from .change_text import cell
from .document import tone_of
from .text import formatted

# A chart covers at least this share of the largest figure, so that noise does not fill it.
LEAST_SPAN = 0.2
# The share of the height that stays free above and below.
MARGIN = 0.12


def charts(past: Past) -> dict[str, Any] | None:
    """Draw the times of all layers and all that is known under load, else what changed; None for a single run."""
    if len(past.runs) < 2:
        return None
    drawn = [series for series in past.series if series.steps or _is_always_drawn(series)]
    first, last = past.runs[0], past.runs[-1]
    return {
        "about": f"{len(past.runs)} runs, from {name(first)} to {name(last)}.",
        "charts": [_chart(series, past.runs) for series in drawn],
    }


def _is_always_drawn(series: Series) -> bool:
    return series.quantity in UNDER_LOAD or (series.quantity == "us" and not is_part(series.row))


def name(run: Run) -> str:
    """Return the commit of a run with the day, as far as they are known."""
    commit = run.commit
    parts = [f"commit {commit}" if commit else "", (run.created or "").partition("T")[0]]
    return " of ".join(filter(None, parts)) or "a run"


def _chart(series: Series, runs: Sequence[Run]) -> dict[str, Any]:
    column = TRAITS[series.quantity]
    known = [point for point in series.points if point is not None]
    low, high = _span([point.estimate for point in known])
    tones = {step.place: tone_of(step.change.word) or "step" for step in series.steps}
    return {
        "row": series.row,
        "quantity": column.title,
        "latest": formatted(column.name, series.points[-1].estimate) if series.points[-1] else "–",
        "scale": " … ".join(formatted(column.name, end(point.estimate for point in known)) for end in (min, max)),
        "marks": [*_marks(series, runs, column, low, high, tones)],
        "steps": [(tones[step.place], f"{name(runs[step.place])}: {cell(step.change)}") for step in series.steps],
    }


def _span(values: Sequence[float]) -> tuple[float, float]:
    """Return the ends of the scale."""
    low, high = min(values), max(values)
    missing = max(LEAST_SPAN * abs(high), 1e-9) - (high - low)
    return (low - missing / 2, high + missing / 2) if missing > 0 else (low, high)


def _marks(
    series: Series, runs: Sequence[Run], column: Traits, low: float, high: float, tones: Mapping[int, str]
) -> Iterator[dict[str, Any]]:
    def across(place: int) -> str:
        return f"{100 * (place + 0.5) / len(runs):.2f}%"

    def down(value: float) -> str:
        share = min(max((value - low) / (high - low), -MARGIN), 1 + MARGIN)
        return f"{100 * (1 - (share + MARGIN) / (1 + 2 * MARGIN)):.2f}%"

    known: list[tuple[int, Estimate]] = [(i, figure) for i, figure in enumerate(series.points) if figure is not None]
    for (place, point), following in zip(known, [*known[1:], None], strict=True):
        yield {
            "x": across(place),
            "y": down(point.estimate),
            "low": down(point.low),
            "high": down(point.high),
            "to": following and (across(following[0]), down(following[1].estimate)),
            "tone": tones.get(place, ""),
            "title": f"{name(runs[place])}: {formatted(column.name, point.estimate)}",
        }
