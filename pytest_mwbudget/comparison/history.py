"""The figures of a request over many runs, and the runs at which they certainly changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..model.changes import Change
from ..model.estimate import Estimate
from ..model.quantities import COMPARED
from ..model.request_keys import RequestKey, keyed
from ..model.results import Result
from ..model.runs import Run
from .figures import RequestFigures, figures_of
from .surroundings import Comparable, comparable
from .two_runs import change_of, other_load

# The most runs that are looked at, the newest ones.
MOST_RUNS = 100


@dataclass(frozen=True, slots=True)
class HistoryRun:
    """A run of the history: the figures of its requests."""

    run: Run
    requests: Mapping[RequestKey, RequestFigures]


@dataclass(frozen=True, slots=True)
class Step:
    """A certain change at a run, since the runs before it. `place` is that of the run."""

    place: int
    change: Change


@dataclass(frozen=True, slots=True)
class Series:
    """A quantity of a row over the runs; None where a run did not measure it in the same surroundings."""

    row: str
    quantity: str
    points: tuple[Estimate | None, ...]
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Past:
    """The past of a request: the runs that measured it, oldest first, and its series."""

    runs: tuple[Run, ...]
    series: tuple[Series, ...]


def history_run(run: Run, measured: Sequence[tuple[str, Result]]) -> HistoryRun:
    """Return a run as the history stores it."""
    return HistoryRun(run, {key: figures_of(result) for key, result in keyed(measured)})


def over_time(history: Sequence[HistoryRun]) -> Mapping[RequestKey, Past]:
    """Return the past of each request of the newest run.

    A figure is drawn where it is comparable with that of the newest run, so a series has no jumps from another
    processor or interpreter. Runs at which nothing is comparable are left out.
    """
    if not history:
        return {}
    return {key: _past(key, history[-MOST_RUNS:]) for key in history[-1].requests}


def _past(key: RequestKey, history: Sequence[HistoryRun]) -> Past:
    now, latest = history[-1].run, history[-1].requests[key]
    moments: list[tuple[Run, RequestFigures, Comparable]] = []
    for run, figures in [(stored.run, stored.requests[key]) for stored in history if key in stored.requests]:
        limits = comparable(run, now, figures.loop, latest.loop)
        if limits.counts is None:
            moments.append((run, figures, limits))
    series = (_series(row, quantity, moments) for row in latest.rows for quantity in COMPARED)
    return Past(
        tuple(run for run, _, _ in moments),
        tuple(row_series for row_series in series if any(point is not None for point in row_series.points)),
    )


def _series(row: str, quantity: str, moments: Sequence[tuple[Run, RequestFigures, Comparable]]) -> Series:
    """Follow a figure. Each run is compared with the narrowest interval since the last change.

    So a slow drift is seen once it is certain, and a run on a busy machine hides no later change.
    """
    points: list[Estimate | None] = []
    steps: list[Step] = []
    level: tuple[RequestFigures, Estimate] | None = None
    for place, (_, figures, limits) in enumerate(moments):
        figure = figures.rows[row].figures.get(quantity) if row in figures.rows else None
        why_not = limits.reason(quantity) or other_load(row, quantity, figures, moments[-1][1])
        if figure is None or not figure.bounded or why_not is not None:
            points.append(None)
            continue
        points.append(figure)
        change = change_of(row, quantity, level[0], figures, Comparable()) if level else None
        if change is not None and change.changed:
            steps.append(Step(place, change))
        if level is None or (change is not None and change.changed) or figure.half_width < level[1].half_width:
            level = (figures, figure)
    return Series(row, quantity, tuple(points), tuple(steps))
