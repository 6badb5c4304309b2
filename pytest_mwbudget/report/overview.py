"""Many results together as lines for a terminal: the matrix of layers and routes, the survey of a suite."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ..errors import more_about, tagged
from ..model.results import RequestLine, Result, SurveyRun
from .matrix import Cell, Matrix, approximate, matrices
from .survey import LayerClass, RouteCost, Survey
from .survey import survey as survey_of
from .table import Figure
from .terminal import MAX_WIDTH, MIN_NAME, Line
from .text import distinct, has_id, printable, shortened, wrapped

# The most columns of characters for the names of layers, and for whose code they are.
MOST_NAME, MOST_WHOSE = 36, 14
# The width of names in a table with many routes.
BRIEF_NAME = 21
WIDE, VARIES = "~: wide interval", "~: varies from request to request"
# From this width on, the table of a survey's layers shows intervals.
ROOMY = 110
SIGNS = {"not entered": "-", "measured with another layer": "+", "not in this stack": "", "unknown": "?", "": ""}


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
    width = min(width, MAX_WIDTH) - 1
    longest = min(MOST_NAME, max(MIN_NAME, *(len(line.name) + 1 for line in whole.lines)))
    whose = min(MOST_WHOSE, max(len(line.whose) for line in whole.lines) + 1)
    widths = [2 + max(len(_text(line.cells[i])) for line in whole.lines) for i in range(len(whole.routes))]
    # Names are shortened to make room for more routes.
    names = max(min(longest, BRIEF_NAME), min(longest, width - whose - sum(widths)))
    number = _fitting(widths, width - names - whose)
    shown = whole.first(number)
    of = f"the costliest {number} of {len(whole.routes)} routes" if number < len(whole.routes) else "all routes"
    yield Line(f"layers and routes: {whole.quantity.title} per request, {of}", "bold")
    heads = ""
    for i, route in enumerate(shown.routes):
        if numbers is None:
            yield Line(f"{i + 1:>4}  {shortened(route.title, width - 6)}")
        heads += f"{numbers[route.place] if numbers else i + 1:>{widths[i] - 1}} "
    yield Line(f"{'layer'.ljust(names)}{'from'.ljust(whose)}{heads}".rstrip(), "bold")
    for name, line in zip(distinct([line.name for line in shown.lines], names - 1), shown.lines, strict=True):
        cells = "".join(f"{_text(cell):>{widths[i]}}" for i, cell in enumerate(line.cells))
        yield Line(f"{name.ljust(names)}{shortened(line.whose, whose - 1).ljust(whose)}{cells}".rstrip())
    yield from (Line(text) for text in wrapped(_legend(shown), width))


def _fitting(widths: Sequence[int], room: int) -> int:
    """Return how many of the first columns fit; the first one always does."""
    return max(1, sum(sum(widths[: end + 1]) <= room for end in range(len(widths))))


def _text(cell: Cell) -> str:
    """Return figure and tasks; the last character is that of the mark."""
    text = cell.text or SIGNS[cell.missing]
    tasks = f" {cell.tasks.text}t" if cell.spawned and cell.tasks else ""
    return f"{text}{tasks}{'*' if cell.costliest else ' '}"


def _legend(shown: Matrix) -> str:
    cells = [cell for line in shown.lines for cell in line.cells]
    parts = ["*: costliest layer of its route"]
    if any(cell.spawned for cell in cells):
        parts.append("1t: spawns 1 task")
    if any(cell.text.startswith("~") for cell in cells):
        parts.append(VARIES if shown.quantity.counted else WIDE)
    missing = {"unknown" if cell.text == "?" else cell.missing for cell in cells}
    parts += [f"{sign}: {why}" for why, sign in SIGNS.items() if why in missing and sign]
    if "not in this stack" in missing:
        parts.append("empty: not in the stack of the route")
    return "; ".join(parts)


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
    shown, many, width = survey_of(run, results, left_out), verbosity > 0, min(width, MAX_WIDTH) - 1
    yield from _survey_head(shown, width)
    if shown.routes:
        yield from _routes(shown.routes, width, len(shown.routes) if many else MOST_ROUTES)
        yield Line("")
    if shown.layers:
        yield from _layer_classes(shown.layers, width)
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


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> Iterator[Line]:
    """Lay out a table. The names in the first column are shortened to fit."""
    widths = [2 + max(len(row[i]) for row in (heads, *rows)) for i in range(1, len(heads))]
    longest = max(len(row[0]) for row in (heads, *rows))
    names = min(longest, max(MIN_NAME, width - sum(widths)))
    brief = distinct([row[0] for row in (heads, *rows)], names)
    for place, (name, (_, *figures)) in enumerate(zip(brief, (heads, *rows), strict=True)):
        cells = "".join(f"{text:>{room}}" for text, room in zip(figures, widths, strict=True))
        yield Line(f"{name.ljust(names)}{cells}", "" if place else "bold")


def _routes(routes: Sequence[RouteCost], width: int, most: int) -> Iterator[Line]:
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
    yield from _table(("     route", "total µs", "interval", "endpoint µs", "layers"), rows, width)
    if len({route.title for route in routes}) < len(routes):
        again = "a route that is listed again has another app, another endpoint, or enters other layers"
        yield from (Line(line) for line in wrapped(again, width))
    if len(routes) > most:
        yield Line(f"{len(routes) - most} more routes; -v lists them")


def _layer_classes(layers: Sequence[LayerClass], width: int) -> Iterator[Line]:
    roomy = width >= ROOMY
    rows = [
        (
            layer.name,
            shortened(layer.whose, MOST_WHOSE),
            str(layer.routes),
            *_time(layer.typical, roomy=roomy),
            *_time(layer.worst, roomy=roomy),
            "" if layer.worst_route is None else str(layer.worst_route),
            _count(layer.objects),
            _count(layer.tasks),
        )
        for layer in layers
    ]
    times = ("µs", "interval", "worst", "interval") if roomy else ("µs", "worst")
    yield from _table(("layer", "from", "routes", *times, "on", "objects", "tasks"), rows, width)
    legend = "µs: median over its routes; worst: most, on the route of that number; objects, tasks: median"
    if any(cell.startswith("~") for row in rows for cell in row):
        legend += f"; {WIDE}, which a terminal of {ROOMY + 1} columns shows"
    yield from (Line(line) for line in wrapped(legend, width))


def _time(figure: Figure | None, *, roomy: bool) -> tuple[str, ...]:
    """Return a time with its interval where there is room; else `~` marks a wide one."""
    if figure is None:
        return ("-", "") if roomy else ("-",)
    return (figure.text, figure.span) if roomy else (approximate(figure),)


def _count(number: float | None) -> str:
    return "-" if number is None else f"{number:.0f}"


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
