"""Many results together as lines for a terminal: the matrix of layers and routes, the survey of a suite."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ..errors import more_about, tagged
from ..model.results import RequestLine, Result, SurveyRun
from .document import Paragraph, Table
from .lines import Line, fitting, laid_out, line_width
from .matrix import SIGNS, Matrix, approximate, matrices
from .survey import RouteCost, Survey, layer_table
from .survey import survey as survey_of
from .text import has_id, printable, shortened, wrapped

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
        yield from survey(run, results, left_out, width, verbosity)
        return
    for each_matrix in matrices(results):
        yield from matrix(each_matrix, width)


def matrix(whole: Matrix, width: int, numbers: Mapping[int, int] | None = None) -> Iterator[Line]:
    """Lay out as many of the costliest routes as fit into `width` columns, and say how many there are.

    `numbers` has the number of each route by its place, if the routes are listed elsewhere; else they are listed here.
    """
    width = line_width(width)
    number = fitting(whole.table(), width)
    shown = whole.first(number)
    of = f"the costliest {number} of {len(whole.routes)} routes" if number < len(whole.routes) else "all routes"
    yield Line(f"layers and routes: {whole.quantity.title} per request, {of}", "bold")
    for place, route in enumerate(shown.routes, 1) if numbers is None else ():
        yield Line(f"{place:>4}  {shortened(route.title, width - 6)}")
    yield from laid_out([shown.table(numbers), Paragraph(_legend(shown))], width)


def _legend(shown: Matrix) -> str:
    cells = [cell for line in shown.lines for cell in line.cells]
    legend = ["*: costliest layer of its route"]
    if any(cell.spawned for cell in cells):
        legend.append("1t: spawns 1 task")
    if any(cell.text.startswith("~") for cell in cells):
        legend.append(VARIES if shown.quantity.counted else WIDE)
    missing = {"unknown" if cell.text == "?" else cell.missing for cell in cells}
    legend += [f"{sign}: {why}" for why, sign in SIGNS.items() if why in missing and sign]
    if "not in this stack" in missing:
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
    shown, many, width = survey_of(run, results, left_out), verbosity > 0, line_width(width)
    yield from _survey_head(shown, width)
    if shown.routes:
        yield from _routes(shown.routes, width, len(shown.routes) if many else MOST_ROUTES)
        yield Line("")
    if shown.layers:
        yield from _layers(shown, width)
        yield Line("")
    numbers = {route.place: route.number for route in shown.routes}
    for each_matrix in matrices(results):
        yield from matrix(each_matrix, width + 1, numbers)
        yield Line("")
    yield from _survey_foot(shown, width, many)


def _survey_head(shown: Survey, width: int) -> Iterator[Line]:
    number, tests = len(shown.routes), shown.run.tests
    text = f"{number} {'request' if number == 1 else 'requests'} of {tests} {'test' if tests == 1 else 'tests'}"
    text += f" measured in {shown.run.seconds:.1f} s of at most {shown.run.limit_s:g}"
    if number == 0:
        text = (
            f"no request to an ASGI app in this process was measured in {tests} {'test' if tests == 1 else 'tests'};"
            " clients such as starlette's TestClient, httpx's ASGITransport or Django's AsyncClient are recorded"
        )
    yield from (Line(line) for line in wrapped(text, width))
    if shown.counted_only:
        short = f"{shown.counted_only} of them were only counted, because there was little time for each"
        yield from (Line(line) for line in wrapped(tagged(short, "survey-time"), width))
    if shown.unexamined:
        yield from (Line(line) for line in wrapped(shown.unexamined, width))
    yield Line("")


def _routes(routes: Sequence[RouteCost], width: int, most: int) -> Iterator[Line]:
    columns = ("     route", "total µs", "interval", "endpoint µs", "layers")
    rows = [
        (
            f"{route.number:>3}  {route.title}",
            route.total.text if route.total else "-",
            route.total.span if route.total else "",
            approximate(route.endpoint) if route.endpoint else "-",
            "-" if route.share is None else f"{route.share:.0%}",
        )
        for route in routes[:most]
    ]
    notes = []
    if len({route.title for route in routes}) < len(routes):
        notes.append("a route that is listed again has another app, another endpoint, or enters other layers")
    if len(routes) > most:
        notes.append(f"{len(routes) - most} more routes; -v lists them")
    yield from laid_out([Table.of(columns, rows), *map(Paragraph, notes)], width)


def _layers(shown: Survey, width: int) -> Iterator[Line]:
    roomy = width >= ROOMY
    layers = layer_table(shown, intervals=roomy)
    legend = "µs: median over its routes; worst: most, on the route of that number; objects, tasks: median"
    if any((cell.brief or "").startswith("~") for row in layers.rows for cell in row.cells):
        legend += f"; {WIDE}, which a terminal of {ROOMY + 1} columns shows"
    yield from laid_out([layers, Paragraph(legend)], width)


def _survey_foot(shown: Survey, width: int, many: bool) -> Iterator[Line]:
    for title, findings in shown.broken:
        for finding in findings:
            yield from (Line(text, "red") for text in wrapped(f"{title}: {finding.sentence}", width))
    texts = []
    if shown.broken:
        texts.append(tagged("Budgets of the configuration are broken: the run fails", "survey-budget"))
    if shown.undecided:
        were = "request was" if shown.undecided == 1 else "requests were"
        texts.append(tagged(f"{shown.undecided} {were} undecided", "undecided"))
    texts += _left_out(shown, many)
    for test in shown.run.repeated if many else shown.run.repeated[:MOST_NAMES]:
        cause = test.cause if many else shortened(test.cause, width)
        outcomes = "failed while the survey recorded it, and passed in a second run without recording"
        texts.append(tagged(f"{test.nodeid} {outcomes}: {cause}", "survey-repeated"))
    if len(shown.run.repeated) > MOST_NAMES and not many:
        texts.append(f"{len(shown.run.repeated) - MOST_NAMES} more tests ran twice; -v lists them")
    if shown.run.unknown_clients:
        texts.append(f"not known here: the clients of this version of {', '.join(shown.run.unknown_clients)}")
    for text in texts:
        yield from (Line(line) for line in wrapped(text, width))
    if any(map(has_id, texts)) or shown.counted_only:
        yield Line(f"{more_about('ID')}, for an ID in [brackets]")


def _left_out(shown: Survey, many: bool) -> Iterator[str]:
    """Yield for each reason how many requests were not measured, and the first of them.

    Reasons without their remedies and first requests, unless all is asked for.
    """
    grouped: dict[str, list[str]] = {}
    for reason, requests in shown.left_out.items():
        grouped.setdefault(reason if many else reason.partition("; ")[0], []).extend(requests)
    for reason, requests in grouped.items():
        named = requests if many else requests[:MOST_NAMES]
        more = f" and {len(requests) - len(named)} more" if len(named) < len(requests) else ""
        yield f"not measured: {printable(', '.join(named))}{more}: {reason}"
    if grouped and not many:
        yield "-v says what to do about requests that were not measured"
