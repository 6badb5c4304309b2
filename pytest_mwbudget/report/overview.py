"""Many results together as lines for a terminal: the matrix of layers and routes, the survey of a suite."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ..errors import more_about, tagged
from ..model.quantities import Traits
from ..model.results import RequestLine, Result, SurveyRun
from .document import Block, Bullets, Paragraph, Section, Table, plain
from .lines import Line, fitting, laid_out, line_width
from .matrix import ABSENT, SIGNS, UNKNOWN, Matrix, matrices
from .survey import Survey
from .survey import survey as survey_of
from .text import has_id, listed, printable, shortened

WIDE, VARIES = "~: wide interval", "~: varies from request to request"
# From this width on, the table of a survey's layers shows intervals.
ROOMY = 110


def together(
    run: SurveyRun | None,
    results: Sequence[Result],
    left_out: Sequence[tuple[str, RequestLine, str]],
    width: int,
    verbosity: int = 0,
) -> Iterator[Line]:
    """Lay out the survey of the run or, without one, its matrices."""
    if run is not None:
        return survey(run, results, left_out, width, verbosity)
    return laid_out([matrix(each, line_width(width)) for each in matrices(results)], line_width(width))


def matrix(whole: Matrix, width: int, *, with_routes: bool = True) -> Section:
    """Make a section of as many of the costliest routes as fit into `width` characters. It says how many there are.

    They are listed by their numbers, unless they are listed elsewhere.
    """
    number = fitting(whole.table, width)
    table, routes = whole.first(number).table, len(whole.places)
    of = f"the costliest {number} of {routes} routes" if number < routes else "all routes"
    titles = [
        Paragraph(f"{place:>4}  {shortened(plain(column.title), width - 6)}", whole=True)
        for place, column in enumerate(table.columns[2:], 1)
    ]
    blocks: list[Block] = [Bullets(titles)] if with_routes else []
    blocks += [table, Paragraph(_legend(table, whole.quantity))]
    return Section(f"layers and routes: {whole.quantity.title} per request, {of}", blocks)


def _legend(table: Table, quantity: Traits) -> str:
    cells = [cell for row in table.rows for cell in row.cells[2:]]
    legend = ["*: costliest layer of its route"]
    if any(plain(detail).endswith(("task", "tasks")) for cell in cells for detail in cell.details):
        legend.append("1t: spawns 1 task")
    if any(plain(cell.text).startswith("~") for cell in cells):
        legend.append(VARIES if quantity.counted else WIDE)
    missing = {UNKNOWN if cell.text == "?" else cell.why for cell in cells}
    legend += [f"{sign}: {why}" for why, sign in SIGNS.items() if why in missing and sign]
    if ABSENT in missing:
        legend.append("empty: not in the stack of the route")
    return "; ".join(legend)


# ---- a survey -------------------------------------------------------------------------------------------------------

# The most routes, requests of a reason and tests that are listed without -v.
MOST_ROUTES, MOST_NAMES = 30, 3


def survey(
    run: SurveyRun,
    results: Sequence[Result],
    left_out: Sequence[tuple[str, RequestLine, str]],
    width: int,
    verbosity: int = 0,
) -> Iterator[Line]:
    """Lay out the survey of a run: layers over all routes, routes, the matrix, what was left out and why.

    `verbosity` above 0 lists everything.
    """
    many, width = verbosity > 0, line_width(width)
    shown = survey_of(run, results, left_out, intervals=width >= ROOMY)
    blocks: list[Block] = [*map(Paragraph, _head(shown))]
    if shown.routes.rows:
        blocks += _routes(shown.routes, len(shown.routes.rows) if many else MOST_ROUTES)
    if shown.layers.rows:
        blocks += _layers(shown)
    blocks += [matrix(each, width, with_routes=False) for each in matrices(results, shown.numbers)]
    blocks += [
        Paragraph(f"{title}: {finding.sentence}", "fail") for title, findings in shown.broken for finding in findings
    ]
    remarks = [*_remarks(shown, width, many)]
    if any(map(has_id, remarks)) or shown.counted_only:
        remarks.append(f"{more_about('ID')}, for an ID in [brackets]")
    return laid_out([*blocks, *map(Paragraph, remarks)], width)


def _head(shown: Survey) -> Iterator[str]:
    number = len(shown.routes.rows)
    tests = f"{shown.run.tests} {'test' if shown.run.tests == 1 else 'tests'}"
    if number:
        took = f"measured in {shown.run.seconds:.1f} s of at most {shown.run.limit_s:g}"
        yield f"{number} {'request' if number == 1 else 'requests'} of {tests} {took}"
    else:
        clients = "starlette's TestClient, httpx's ASGITransport or Django's AsyncClient"
        nothing = f"no request to an ASGI app in this process was measured in {tests}"
        yield f"{nothing}; clients such as {clients} are recorded"
    if shown.counted_only:
        short = f"{shown.counted_only} of them were only counted, because there was little time for each"
        yield tagged(short, "survey-time")
    if shown.unexamined:
        yield shown.unexamined


def _routes(routes: Table, most: int) -> Iterator[Block]:
    yield replace(routes, rows=routes.rows[:most])
    # Without their numbers.
    if len({plain(row.cells[0].text).split(maxsplit=1)[1] for row in routes.rows}) < len(routes.rows):
        yield Paragraph("a route that is listed again has another app, another endpoint, or enters other layers")
    if len(routes.rows) > most:
        yield Paragraph(f"{len(routes.rows) - most} more routes; -v lists them")


def _layers(shown: Survey) -> Iterator[Block]:
    yield shown.layers
    counts = ", ".join(shown.counts)
    legend = f"µs: median over its routes; worst: most, on the route of that number; {counts}: median"
    if any((cell.brief or "").startswith("~") for row in shown.layers.rows for cell in row.cells):
        legend += f"; {WIDE}, which a terminal of {ROOMY + 1} columns shows"
    yield Paragraph(legend)


def _remarks(shown: Survey, width: int, many: bool) -> Iterator[str]:
    """Say what was broken, undecided, left out or repeated."""
    if shown.broken:
        yield tagged("Budgets of the configuration are broken: the run fails", "survey-budget")
    if shown.undecided:
        were = "request was" if shown.undecided == 1 else "requests were"
        yield tagged(f"{shown.undecided} {were} undecided", "undecided")
    yield from _left_out(shown, many)
    for test in shown.run.repeated if many else shown.run.repeated[:MOST_NAMES]:
        cause = test.cause if many else shortened(test.cause, width)
        outcomes = "failed while the survey recorded it, and passed in a second run without recording"
        yield tagged(f"{test.nodeid} {outcomes}: {cause}", "survey-repeated")
    if len(shown.run.repeated) > MOST_NAMES and not many:
        yield f"{len(shown.run.repeated) - MOST_NAMES} more tests ran twice; -v lists them"
    if shown.run.unknown_clients:
        yield f"not known here: the clients of this version of {', '.join(shown.run.unknown_clients)}"


def _left_out(shown: Survey, many: bool) -> Iterator[str]:
    """Yield for each reason how many requests were not measured, and the first of them.

    Reasons without their remedies and first requests, unless all is asked for.
    """
    grouped: dict[str, list[str]] = {}
    for reason, requests in shown.left_out.items():
        grouped.setdefault(reason if many else reason.partition("; ")[0], []).extend(requests)
    for reason, requests in grouped.items():
        yield f"not measured: {printable(listed(requests, len(requests) if many else MOST_NAMES))}: {reason}"
    if grouped and not many:
        yield "-v says what to do about requests that were not measured"
