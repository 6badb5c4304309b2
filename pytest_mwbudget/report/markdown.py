"""A document as GitHub's Markdown, for job summaries and comments on merge requests."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate

from ..errors import explain_command
from ..model.measured_run import MeasuredRun
from ..model.quantities import COUNTED, TAILS, Quantity, Traits
from ..model.results import Profile, RequestLine, Verdict
from ..model.runs import Run
from .changes import about, cell, span
from .findings import ACCEPT
from .load import LoadView
from .matrix import Cell, Matrix, matrices
from .survey import Survey, survey
from .table import MESSAGES, SAVES, Row
from .tails import percentiles
from .text import amount, escaped, figure
from .view import View, view

# The columns of a request's table, and how they are aligned.
COLUMNS = ("layer", "µs/request", "interval", "budget", "verdict", "objects", "tasks")
ALIGNED = "lrrrlrr"
CHANGE = "change"
UNKNOWN = "–"
# Indents a part of the endpoint.
INDENT = "&emsp;"
ORDER: tuple[Verdict | None, ...] = ("fail", "undecided", "pass", None)
# The most requests that are listed with the reason why they were not measured.
UNMEASURED = 10
# The most routes of a matrix: a wider table cannot be read.
MOST_ROUTES = 8
IDS = f"More: `{explain_command('ID')}`, for an ID in &#91;brackets&#93;"

# Special characters in Markdown, and those that GitHub and GitLab turn into links and mentions. An underscore inside a
# word is not special; a number or a dash begins a list only at the start of a line.
SPECIAL = re.compile(r"[\\`*\[\]<>&|~$@#]|(?<![^\W_])_|_(?![^\W_])|(?<=[Ww]{3})\.|:(?=//)|^[-+]|^\d(?=\d*[.)](?:\s|$))")


def render(run: MeasuredRun, limit: int | None = None) -> str:
    """Render a section for each measured request, failing requests first.

    The text has at most `limit` bytes: if not all sections fit, the last ones are omitted and a sentence says so. It is
    empty if even this sentence does not fit.
    """
    ordered = sorted(run.measured, key=lambda pair: ORDER.index(pair[1].verdict))
    shown = [(nodeid, view(result)) for nodeid, result in ordered]
    verdicts = _head([request_view.verdict for _, request_view in shown])
    results, since = [result for _, result in ordered], run.since
    tables = ["\n".join(_matrix(matrix)) for matrix in matrices(results)]
    if since is not None:
        sentences = (*since.grown, *since.unjudged, *about(since))
        tables.insert(0, "\n".join(f"- {plain(sentence)}" for sentence in sentences))
    if run.survey is not None:
        tables.insert(0, "\n".join(_survey(survey(run.survey, results, run.left_out))))
    head = _joined([verdicts, *tables]).rstrip("\n")
    sections = ["\n".join(_section(nodeid, request_view)) for nodeid, request_view in shown]
    unmeasured = _unmeasured(run.left_out)
    foot = _foot(run.run, has_ids=any(request_view.has_ids for _, request_view in shown))
    foot = f"{unmeasured}\n\n{foot}" if unmeasured else foot
    text = _joined([head, *sections, foot])
    if limit is None or _size(text) <= limit:
        return text
    none_kept = _left_out(len(sections), len(sections))
    if _size(_joined([head, none_kept, foot])) > limit:
        head = verdicts
    room = limit - _size(_joined([head, none_kept, foot]))
    ends = accumulate(_size(section) + 2 for section in sections)  # plus the blank line that separates two parts
    kept = sections[: sum(end <= room for end in ends)]
    if room < 0:
        return ""
    return _joined([head, *kept, _left_out(len(sections) - len(kept), len(sections)), foot])


def _joined(parts: Sequence[str]) -> str:
    return "\n\n".join(parts) + "\n"


def _size(text: str) -> int:
    return len(text.encode())


def _left_out(number: int, of: int) -> str:
    return f"{number} of {of} requests are left out: there is no room here for more. The JSON has them all."


def _unmeasured(requests: Sequence[tuple[str, RequestLine, str]]) -> str:
    """Say how many requests were not measured, with the reason of the first ones."""
    lines = [
        f"- {code(nodeid)} {code(str(request))} was not measured: {plain(reason)}"
        for nodeid, request, reason in requests[:UNMEASURED]
    ]
    if len(requests) > UNMEASURED:
        lines.append(f"- {len(requests) - UNMEASURED} more requests were not measured. The JSON has them all.")
    return "\n".join(lines)


def _head(verdicts: Sequence[Verdict | None]) -> str:
    numbers = [f"{verdicts.count(verdict)} {verdict or 'without a budget'}" for verdict in ORDER if verdict in verdicts]
    return f"## mw-budget: {', '.join(numbers) or 'nothing was measured'}"


def _foot(run: Run, *, has_ids: bool) -> str:
    words = (run.implementation, run.python, "on", run.platform)
    machine = f"{plain(' '.join(words))}, loop {plain(run.loop)}"
    return f"{machine}\n\n{IDS}" if has_ids else machine


# ---- all requests ------------------------------------------------------------------------------------------------


def _survey(shown: Survey) -> Iterator[str]:
    """Yield what the survey did, and the table of layers over all routes."""
    run = shown.run
    tests = "1 test" if run.tests == 1 else f"{run.tests} tests"
    yield f"A survey of {tests}, which measured for {run.seconds:.1f} s of at most {run.limit_s:g}."
    if shown.counted_only:
        yield f"There was little time: {shown.counted_only} requests were only counted."
    if shown.unexamined:
        yield f"{shown.unexamined}."
    if shown.layers:
        yield ""
        times = ("µs", "interval", "worst µs", "interval")
        yield from heads("llrrrrrlrr", "layer", "from", "routes", *times, "worst on", "objects", "tasks")
        for layer in shown.layers:
            worst = "" if layer.worst_route is None else code(shown.routes[layer.worst_route - 1].title)
            figures = [(us.text, us.span) if us else (UNKNOWN, UNKNOWN) for us in (layer.typical, layer.worst)]
            counts = [UNKNOWN if count is None else f"{count:.0f}" for count in (layer.objects, layer.tasks)]
            names = (code(layer.name), plain(layer.whose), str(layer.routes))
            yield row_of(*names, *figures[0], *figures[1], worst, *counts)
    if run.repeated:
        yield ""
        yield "Tests that failed while the survey recorded them, and passed without:"
        yield ""
        yield from (f"- {code(test.nodeid)}: {plain(test.cause)}" for test in run.repeated)


def _matrix(whole: Matrix) -> Iterator[str]:
    """Yield the table of layers and routes. The costliest layer of each route is bold."""
    shown = whole.first(MOST_ROUTES)
    yield f"**Layers and routes, {whole.quantity.title} per request**"
    yield ""
    yield from heads("ll" + "r" * len(shown.routes), "layer", "from", *(code(route.title) for route in shown.routes))
    for line in shown.lines:
        name = line.name if line.kind == "frame" else code(line.name)
        yield row_of(name, plain(line.whose), *map(_matrix_cell, line.cells))
    if len(shown.routes) < len(whole.routes):
        yield ""
        yield f"These are the costliest {len(shown.routes)} of {len(whole.routes)} routes. The JSON has them all."


def _matrix_cell(cell: Cell) -> str:
    if cell.figure is None:
        return "" if cell.missing == "not in this stack" else cell.missing
    text = f"{cell.text}, {cell.spawned}" if cell.spawned else cell.text
    return f"**{plain(text)}**" if cell.costliest else plain(text)


# ---- one request -------------------------------------------------------------------------------------------------


def _section(nodeid: str, shown: View) -> Iterator[str]:
    verdict = "" if shown.verdict is None else f": {shown.verdict}"
    yield f"### {code(nodeid)} {code(shown.request)}{verdict}"
    yield ""
    further: list[tuple[str, str, Callable[[Row], str]]] = [
        ("r", column.title, partial(_with_interval, column=column))
        for column in (SAVES, *MESSAGES)
        if any(column.name in row.figures for row in shown.lines())
    ]
    if any(row.changes for row in shown.rows):
        further.append(("l", CHANGE, _change))
    aligned = "".join(align for align, _, _ in further)
    yield from heads(ALIGNED + aligned, *COLUMNS, *(title for _, title, _ in further))
    for row in shown.lines():
        yield row_of(*_cells(row), *(show(row) for _, _, show in further))
    yield ""
    if shown.load is not None:
        yield from _load(shown.load)
    yield from _findings(shown)
    yield from (f"- changed: {plain(sentence)}" for sentence in shown.changed)
    if shown.accept:
        yield f"- {ACCEPT} {code(shown.accept)}"
    yield from (f"- note: {plain(note)}" for note in shown.notes)
    yield from (f"- advice: {plain(advice.text)} ({code(advice.page)})" for advice in shown.advice)
    if shown.profile is not None:
        yield from _hot(shown, shown.profile)
    yield f"- {_effort(shown)}"


def _load(load: LoadView) -> Iterator[str]:
    """Yield the table of layers under load, and what the whole app does."""
    yield from heads("lrrrrll", load.title, "share of requests/s", "interval", "adds µs", "budget", "verdict", "method")
    for row in load.rows:
        verdict = "**fail**" if row.verdict == "fail" else row.verdict or ""
        yield row_of(code(row.name), row.share, row.span, row.added, row.budget, verdict, row.how)
    yield ""
    sentences = (load.summary, *load.effects, *(f"note: {note}" for note in load.notes), load.effort)
    yield from (f"- {plain(sentence)}" for sentence in sentences)


def _cells(row: Row) -> Sequence[str]:
    us, objects, tasks = (row.figures.get(key) for key in ("us", "objects", "tasks"))
    budgets = ", ".join(_budget(quantity, judged.bound) for quantity, judged in row.judged.items())
    verdict = "**fail**" if row.verdict == "fail" else row.verdict or ""
    time, span = (us.text, us.span) if us else (UNKNOWN, "")
    counts = [count.text if count else UNKNOWN for count in (objects, tasks)]
    name = row.name if row.is_frame else code(row.name)
    name = f"{INDENT}{name}" if row.is_part else name
    return (f"{name} {plain(row.whose)}".rstrip(), time, span, budgets, verdict, *counts)


def _budget(quantity: Quantity, value: float) -> str:
    """Write a budget, with its keyword if it limits another time than the one in the table."""
    text = amount(quantity, value)
    return text if quantity == "us" or quantity in COUNTED else f"{text} ({quantity})"


def _with_interval(row: Row, column: Traits) -> str:
    """Return a time of a layer with its interval."""
    row_figure = row.figures.get(column.name)
    if row_figure is None:
        return "" if row.is_frame or row.is_part else UNKNOWN
    return f"{row_figure.text} ({row_figure.span})"


def _change(row: Row) -> str:
    """Return what the time of a row changed by, with the interval of a certain change."""
    change = row.changes.get("us")
    if change is None:
        return ""
    return plain(f"{cell(change)} ({span(change)})" if change.changed and change.change else cell(change))


def _findings(shown: View) -> Iterator[str]:
    for finding in shown.findings:
        yield f"- {plain(finding.sentence)}"
        yield from (f"  - {plain(item)}" for item in finding.items)
    for row in shown.rows:
        if row.tails is not None and set(TAILS).intersection(row.judged):
            yield f"- {code(row.name)}: {percentiles(row.tails)}"
        if not row.entered:
            yield f"- {code(row.name)} was not entered: a layer outside it answered"
        if row.merged_with is not None:
            yield f"- {code(row.name)} is measured with {code(row.merged_with)}"


def _hot(shown: View, profile: Profile) -> Iterator[str]:
    yield f"- flamegraph: {code(profile.flamegraph)}"
    for name, functions in shown.hottest:
        for hot in functions:
            place = f" at {code(hot.place)}" if hot.place else ""
            yield (
                f"  - {code(name)}: {code(hot.function)}{place},"
                f" {figure(hot.own_us)} µs per request, {figure(hot.total_us)} with its callees"
            )


def _effort(shown: View) -> str:
    parts = []
    if shown.effort is not None:
        timed = f"{shown.effort.requests} requests timed in {shown.effort.seconds:.1f} s"
        parts.append(f"{timed}, detection limit {shown.detection_limit}")
    if shown.counted is not None:
        parts.append(f"{shown.counted} requests counted")
    return "; ".join(parts)


# ---- tables and text ---------------------------------------------------------------------------------------------


def heads(aligned: str, *titles: str) -> Iterator[str]:
    """Yield the first two lines of a table. `aligned` has an `l` or an `r` for each column."""
    yield row_of(*titles)
    yield f"|{''.join({'l': '---|', 'r': '--:|'}[align] for align in aligned)}"


def row_of(*cells: str) -> str:
    """Return a line of a table."""
    return f"| {' | '.join(cells)} |"


def code(text: str) -> str:
    """Mark up a text of the app as code, so that no name becomes a mention or a link.

    The HTML element can contain any text; in a table, a span between backquotes cannot contain a bar.
    """
    return f"<code>{plain(text)}</code>"


def plain(text: str) -> str:
    """Put `text` in one line without markup: special characters become numeric character references."""
    line = escaped(" ".join(text.split()))
    return SPECIAL.sub(lambda match: f"&#{ord(match[0])};", line)
