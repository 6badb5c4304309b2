"""The view of a survey: each layer class over all routes, each route, what was left out. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median, median_low

from ..model.results import RequestLine, Result, SurveyRun
from ..model.stack import ENDPOINT, TOTAL
from .document import Cell, Code, Column, Table, TableRow, plain
from .findings import Finding
from .matrix import MOST_WHOSE, approximate
from .table import US, Figure, Row, created
from .view import View, view

UNKNOWN = Cell("–", brief="-")


@dataclass(frozen=True, slots=True)
class Survey:
    """A survey, the costliest first. `left_out` has the requests that were not measured by reason.

    `layers` has each class of layers, or function, over all routes: the median over the requests that entered it, from
    the median of the lower ends to that of the upper ends, and the most with its route. If the interval of each route
    holds its time, that of the median holds their median. `routes` has the total of each request in µs, its endpoint,
    and the share that its layers take. Routes are numbered from 1 on; `numbers` has the number by the place of the
    result. `broken` are the findings of each request over a budget of the configuration, `undecided` is the number of
    requests without a verdict, `counted_only` of those for which there was no time to time them.
    """

    run: SurveyRun
    layers: Table
    routes: Table
    numbers: Mapping[int, int]
    left_out: dict[str, list[str]]
    broken: tuple[tuple[str, tuple[Finding, ...]], ...]
    undecided: int
    counted_only: int

    @property
    def counts(self) -> list[str]:
        """The titles of the counts in `layers`, its last columns."""
        return [plain(column.title) for column in self.layers.columns[-2:]]

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


def survey(
    run: SurveyRun,
    results: Sequence[Result],
    left_out: Sequence[tuple[str, RequestLine, str]],
    *,
    intervals: bool = True,
) -> Survey:
    """Derive the view of a survey from the results of its run, those of marked tests too.

    The table of layers has `intervals`, or `~` at times with wide ones.
    """
    views = [view(result) for result in results]
    order = sorted(range(len(results)), key=lambda place: -_total(views[place]))
    titled = [(results[place].label, views[place]) for place in order]
    judged = [(result.label, shown) for result, shown in zip(results, views, strict=True) if result.surveyed]
    reasons: dict[str, list[str]] = {}
    for _, request, reason in left_out:
        names = reasons.setdefault(reason, [])
        if str(request) not in names:
            names.append(str(request))
    return Survey(
        run=run,
        layers=_layers(titled, intervals=intervals),
        routes=_routes(titled),
        numbers={place: number for number, place in enumerate(order, 1)},
        left_out=reasons,
        broken=tuple((title, _failing(shown)) for title, shown in judged if shown.verdict == "fail"),
        undecided=sum(shown.verdict == "undecided" for _, shown in judged),
        counted_only=sum(shown.effort is None for _, shown in judged),
    )


def _failing(shown: View) -> tuple[Finding, ...]:
    return tuple(finding for finding in shown.findings if finding.verdict == "fail")


def _total(shown: View) -> float:
    return shown.total.figures["us"].value if "us" in shown.total.figures else 0.0


def _routes(titled: Sequence[tuple[str, View]]) -> Table:
    rows = []
    for number, (title, shown) in enumerate(titled, 1):
        total, endpoint = (
            next((row.figures.get("us") for row in shown.rows if row.name == name), None) for name in (TOTAL, ENDPOINT)
        )
        known = [row.figures["us"].value for row in shown.layers if "us" in row.figures]
        share = sum(known) / total.value if total and total.value > 0 and known else None
        rows.append(
            [
                Cell(f"{number:>3}  {title}"),
                *_time(total, intervals=True),
                *_time(endpoint, intervals=False),
                UNKNOWN if share is None else Cell(f"{share:.0%}", value=share),
            ]
        )
    titles = ("     route", "total µs", "interval", "endpoint µs", "layers")
    return Table([*map(Column, titles)], [*map(TableRow, rows)])


def _layers(titled: Sequence[tuple[str, View]], *, intervals: bool) -> Table:
    what = created(row for _, shown in titled for row in shown.layers)
    by_class: dict[tuple[str, str], list[tuple[int, Row]]] = {}
    for number, (_, shown) in enumerate(titled, 1):
        for row in shown.layers:
            if row.entered and row.merged_with is None:
                # The number of a class that stands twice in its stack.
                by_class.setdefault((row.name.partition("#")[0], row.qualname), []).append((number, row))
    rows: list[tuple[float, TableRow]] = []
    for (name, _), own in by_class.items():
        times = [(row.figures["us"], number) for number, row in own if "us" in row.figures]
        routes, typical = len({number for number, _ in own}), _median([us for us, _ in times])
        worst, number = max(times, key=lambda pair: pair[0].value, default=(None, 0))
        origin = next((row.origin for _, row in own if row.origin), None)
        line = [
            Cell(Code(name)),
            Cell("" if origin is None else origin.distribution or "own"),
            Cell(str(routes), value=routes),
            *_time(typical, intervals=intervals),
            *_time(worst, intervals=intervals),
            Cell(Code(titled[number - 1][0]), brief=str(number)) if number else Cell(),
            _typical(what.name, own),
            _typical("tasks", own),
        ]
        rows.append((routes * (typical.value if typical else 0.0), TableRow(line)))
    interval = [Column("interval")] if intervals else []
    names = (Column("layer"), Column("from", align="left", most=MOST_WHOSE), Column("routes"))
    times_of = (Column("µs"), *interval, Column("worst µs", short="worst"), *interval)
    columns = [*names, *times_of, Column("worst on", align="left", short="on")]
    columns += [Column(what.title, short=what.short), Column("tasks")]
    return Table(columns, [row for _, row in sorted(rows, key=lambda pair: -pair[0])])


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


def _typical(key: str, rows: Sequence[tuple[int, Row]]) -> Cell:
    known = [row.figures[key].value for _, row in rows if key in row.figures]
    return Cell(f"{median_low(known):.0f}", value=median_low(known)) if known else UNKNOWN


def _time(us: Figure | None, *, intervals: bool) -> list[Cell]:
    """Return the cell of a time, and that of its interval; without it, `~` marks a wide one where there is no room."""
    if us is None:
        return [UNKNOWN, replace(UNKNOWN, brief="")] if intervals else [UNKNOWN]
    text = Cell(us.text, value=us.value, brief=None if intervals else approximate(us))
    return [text, Cell(us.span)] if intervals else [text]
