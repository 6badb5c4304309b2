"""The view of a survey: each layer class over all routes, each route, what was left out. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median, median_low

from ..model.results import RequestLine, Result, SurveyRun
from ..model.stack import ENDPOINT
from .document import Cell, Code, Column, Table, TableRow
from .findings import Finding
from .matrix import MOST_WHOSE, approximate
from .table import US, Figure, Row
from .view import View, view

UNKNOWN = Cell("–", brief="-")


@dataclass(frozen=True, slots=True)
class LayerClass:
    """A class of layers, or a function, over all routes. Times are None if unknown.

    `routes` is the number of requests that entered it. `typical` is the median over them, from the median of the lower
    ends to that of the upper ends: if the interval of each route holds its time, this one holds their median. `worst`
    is the most, on the route with the number `worst_route`. `objects` and `tasks` are the typical counts.
    """

    name: str
    whose: str
    routes: int
    typical: Figure | None
    worst: Figure | None
    worst_route: int | None
    objects: float | None
    tasks: float | None


@dataclass(frozen=True, slots=True)
class RouteCost:
    """A request: its total and its endpoint in microseconds, and the share of the total that its layers take.

    Routes are numbered from 1 on, the costliest first. `place` is the place of its result in the list of results.
    """

    number: int
    place: int
    title: str
    total: Figure | None
    endpoint: Figure | None
    share: float | None


@dataclass(frozen=True, slots=True)
class Survey:
    """A survey, the costliest first. `left_out` has the requests that were not measured by reason.

    `broken` are the findings of each request over a budget of the configuration, `undecided` is the number of requests
    without a verdict. `counted_only` is the number of requests for which there was no time to time them.
    """

    run: SurveyRun
    layers: tuple[LayerClass, ...]
    routes: tuple[RouteCost, ...]
    left_out: dict[str, list[str]]
    broken: tuple[tuple[str, tuple[Finding, ...]], ...]
    undecided: int
    counted_only: int

    @property
    def unexamined(self) -> str | None:
        """Say how many requests nobody looked at, None if there are none."""
        number = self.run.unexamined
        more = "1 more request is" if number == 1 else f"{number} more requests are"
        known = "three in a row entered layers that were known"
        return f"{more} like these: {known}" if number else None

    @property
    def summary(self) -> str:
        """What the survey did, in sentences."""
        tests = "1 test" if self.run.tests == 1 else f"{self.run.tests} tests"
        sentences = [
            f"A survey of {tests}, which measured for {self.run.seconds:.1f} s of at most {self.run.limit_s:g}."
        ]
        if self.counted_only:
            sentences.append(f"There was little time: {self.counted_only} requests were only counted.")
        if self.unexamined:
            sentences.append(f"{self.unexamined}.")
        return " ".join(sentences)


def survey(run: SurveyRun, results: Sequence[Result], left_out: Sequence[tuple[str, RequestLine, str]]) -> Survey:
    """Derive the view of a survey from the results of its run, those of marked tests too."""
    views = [view(result) for result in results]
    order = sorted(range(len(results)), key=lambda place: -_total(views[place]))
    numbered = [(number, views[place]) for number, place in enumerate(order, 1)]
    judged = [(result.label, shown) for result, shown in zip(results, views, strict=True) if result.surveyed]
    reasons: dict[str, list[str]] = {}
    for _, request, reason in left_out:
        names = reasons.setdefault(reason, [])
        if str(request) not in names:
            names.append(str(request))
    return Survey(
        run=run,
        layers=tuple(_layer_classes(numbered)),
        routes=tuple(
            _route(number, place, results[place].label, views[place]) for number, place in enumerate(order, 1)
        ),
        left_out=reasons,
        broken=tuple((title, _failing(shown)) for title, shown in judged if shown.verdict == "fail"),
        undecided=sum(shown.verdict == "undecided" for _, shown in judged),
        counted_only=sum(shown.effort is None for _, shown in judged),
    )


def _failing(shown: View) -> tuple[Finding, ...]:
    return tuple(finding for finding in shown.findings if finding.verdict == "fail")


def _total(shown: View) -> float:
    return shown.total.figures["us"].value if "us" in shown.total.figures else 0.0


def _route(number: int, place: int, title: str, shown: View) -> RouteCost:
    endpoint = next((row.figures.get("us") for row in shown.rows if row.name == ENDPOINT), None)
    total = shown.total.figures.get("us")
    known = [row.figures["us"].value for row in shown.layers if "us" in row.figures]
    share = sum(known) / total.value if total and total.value > 0 and known else None
    return RouteCost(number, place, title, total, endpoint, share)


def _layer_classes(numbered: Sequence[tuple[int, View]]) -> list[LayerClass]:
    by_class: dict[tuple[str, str], list[tuple[int, Row]]] = {}
    for number, shown in numbered:
        for row in shown.layers:
            if row.entered and row.merged_with is None:
                # The number of a class that stands twice in its stack.
                by_class.setdefault((row.name.partition("#")[0], row.qualname), []).append((number, row))
    classes = [_layer_class(name, rows) for (name, _), rows in by_class.items()]
    return sorted(
        classes, key=lambda layer: layer.routes * (layer.typical.value if layer.typical else 0.0), reverse=True
    )


def _layer_class(name: str, rows: Sequence[tuple[int, Row]]) -> LayerClass:
    times = [(row.figures["us"], number) for number, row in rows if "us" in row.figures]
    worst, worst_route = max(times, key=lambda pair: pair[0].value, default=(None, None))
    origin = next((row.origin for _, row in rows if row.origin), None)
    return LayerClass(
        name=name,
        whose="" if origin is None else origin.distribution or "own",
        routes=len({number for number, _ in rows}),
        typical=_median([us for us, _ in times]),
        worst=worst,
        worst_route=worst_route,
        objects=_typical("objects", rows),
        tasks=_typical("tasks", rows),
    )


def _median(times: Sequence[Figure]) -> Figure | None:
    """Return the median of times with an interval, whose ends are None if unknown."""
    if not times:
        return None
    ends = (
        median(-math.inf if us.low is None else us.low for us in times),
        median(math.inf if us.high is None else us.high for us in times),
    )
    low, high = (end if math.isfinite(end) else None for end in ends)
    return Figure(US, median(us.value for us in times), low, high)


def _typical(key: str, rows: Sequence[tuple[int, Row]]) -> float | None:
    known = [row.figures[key].value for _, row in rows if key in row.figures]
    return median_low(known) if known else None


# ---- tables -------------------------------------------------------------------------------------------------------


def layer_table(shown: Survey, *, intervals: bool) -> Table:
    """Make the table of layers over all routes. Without `intervals`, `~` may mark times with wide ones."""
    interval = [Column("interval")] if intervals else []
    columns = [
        Column("layer"),
        Column("from", align="left", most=MOST_WHOSE),
        Column("routes"),
        Column("µs"),
        *interval,
        Column("worst µs", short="worst"),
        *interval,
        Column("worst on", align="left", short="on"),
        *map(Column, ("objects", "tasks")),
    ]
    rows = []
    for layer in shown.layers:
        times = [cell for us in (layer.typical, layer.worst) for cell in _time(us, intervals=intervals)]
        number = layer.worst_route
        on = Cell() if number is None else Cell(Code(shown.routes[number - 1].title), brief=str(number))
        counts = [
            UNKNOWN if count is None else Cell(f"{count:.0f}", value=count) for count in (layer.objects, layer.tasks)
        ]
        names = (Cell(Code(layer.name)), Cell(layer.whose), Cell(str(layer.routes), value=layer.routes))
        rows.append(TableRow([*names, *times, on, *counts]))
    return Table(columns, rows)


def _time(us: Figure | None, *, intervals: bool) -> list[Cell]:
    if us is None:
        return [UNKNOWN, replace(UNKNOWN, brief="")] if intervals else [UNKNOWN]
    text = Cell(us.text, value=us.value, brief=None if intervals else approximate(us))
    return [text, Cell(us.span)] if intervals else [text]
