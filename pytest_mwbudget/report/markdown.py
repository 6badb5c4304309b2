"""The results of a run as a document for a page of Markdown: a job summary, a comment on a merge request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..errors import explain_command
from ..model.measured_run import MeasuredRun
from ..model.quantities import COUNTED, TAILS, Quantity
from ..model.results import Profile, RequestLine, Verdict
from ..model.runs import Run
from . import gfm
from .change_text import about, cell, span
from .document import Block, Bullets, Cell, Code, Column, Paragraph, Section, Strong, Table, TableRow, Text, cells
from .findings import ACCEPT
from .matrix import Matrix, matrices
from .survey import Survey, survey
from .table import MESSAGES, SAVES, Row, created
from .text import amount, figure, percentiles
from .view import View, view

UNKNOWN = "–"
ORDER: tuple[Verdict | None, ...] = ("fail", "undecided", "pass", None)
# The most requests that are listed with the reason why they were not measured.
UNMEASURED = 10
# The most routes of a matrix: a wider table cannot be read.
MOST_ROUTES = 8


def render(run: MeasuredRun, limit: int | None = None) -> str:
    """Render a section for each measured request, failing requests first.

    The text has at most `limit` bytes: if not all fits, first the last sections are left out, with a sentence that says
    so, then the tables of many requests. The text is empty if even this does not fit.
    """
    ordered = sorted(run.measured, key=lambda pair: ORDER.index(pair[1].verdict))
    shown = [(nodeid, view(result)) for nodeid, result in ordered]
    results, since = [result for _, result in ordered], run.since
    tables: list[Block] = []
    if run.survey is not None:
        tables += _survey(survey(run.survey, results, run.left_out))
    if since is not None:
        tables.append(Bullets([*map(Paragraph, (*since.grown, *since.unjudged, *about(since)))]))
    for matrix in matrices(results):
        tables += _matrix(matrix)
    sections: list[Block] = [_section(nodeid, request_view) for nodeid, request_view in shown]
    has_ids = any(request_view.has_ids for _, request_view in shown)
    blocks = [*sections, *_unmeasured(run.left_out), *_foot(run.run, has_ids=has_ids)]
    title = _title([request_view.verdict for _, request_view in shown])
    for head in (tables, ()):
        text = gfm.render(Section(title, [*head, *blocks], level=2), limit, _left_out)
        if limit is None or len(text.encode()) <= limit:
            return text
    return ""


def _left_out(number: int, of: int) -> str:
    return f"{number} of {of} requests are left out: there is no room here for more. The JSON has them all."


def _unmeasured(requests: Sequence[tuple[str, RequestLine, str]]) -> Iterator[Bullets]:
    """Say how many requests were not measured, with the reason of the first ones."""
    items = [
        Paragraph((Code(nodeid), " ", Code(str(request)), f" was not measured: {reason}"))
        for nodeid, request, reason in requests[:UNMEASURED]
    ]
    if len(requests) > UNMEASURED:
        more = f"{len(requests) - UNMEASURED} more requests were not measured. The JSON has them all."
        items.append(Paragraph(more))
    if items:
        yield Bullets(items)


def _title(verdicts: Sequence[Verdict | None]) -> str:
    numbers = [f"{verdicts.count(verdict)} {verdict or 'without a budget'}" for verdict in ORDER if verdict in verdicts]
    return f"mw-budget: {', '.join(numbers) or 'nothing was measured'}"


def _foot(run: Run, *, has_ids: bool) -> Iterator[Paragraph]:
    words = (run.implementation, run.python, "on", run.platform)
    yield Paragraph(f"{' '.join(words)}, loop {run.loop}")
    if has_ids:
        yield Paragraph(("More: ", Code(explain_command("ID")), ", for an ID in [brackets]"))


# ---- all requests ------------------------------------------------------------------------------------------------


def _survey(shown: Survey) -> Iterator[Block]:
    """Yield what the survey did, and the table of layers over all routes."""
    yield Paragraph(shown.summary)
    if shown.layers.rows:
        yield shown.layers
    if shown.run.repeated:
        yield Paragraph("Tests that failed while the survey recorded them, and passed without:")
        yield Bullets([Paragraph((Code(test.nodeid), f": {test.cause}")) for test in shown.run.repeated])


def _matrix(whole: Matrix) -> Iterator[Block]:
    """Yield the table of layers and routes. The costliest layer of each route is bold."""
    shown = whole.first(MOST_ROUTES)
    yield Paragraph(Strong(f"Layers and routes, {whole.quantity.title} per request"))
    yield shown.table
    if len(shown.places) < len(whole.places):
        costliest = f"These are the costliest {len(shown.places)} of {len(whole.places)} routes."
        yield Paragraph(f"{costliest} The JSON has them all.")


# ---- one request -------------------------------------------------------------------------------------------------


def _section(nodeid: str, shown: View) -> Section:
    verdict = "" if shown.verdict is None else f": {shown.verdict}"
    tables = [_table(shown)]
    if (load := shown.load) is not None:
        titles = ("share of requests/s", "interval", "adds µs", "budget", "verdict", "method")
        tables.append(load.table.arranged(load.title, *titles))
    return Section((Code(nodeid), " ", Code(shown.request), verdict), [*tables, Bullets([*_items(shown)])])


def _items(shown: View) -> Iterator[Paragraph]:
    """Say what there is to say of a request and of the app under load."""
    if (load := shown.load) is not None:
        notes = (f"note: {note}" for note in load.notes)
        yield from map(Paragraph, (load.summary, *load.effects, *notes, load.effort))
    yield from (finding.paragraph for finding in shown.findings)
    yield from _remarks(shown)
    yield from (Paragraph(f"changed: {sentence}") for sentence in shown.changed)
    if shown.accept:
        yield Paragraph((f"{ACCEPT} ", Code(shown.accept)))
    yield from (Paragraph(f"note: {note}") for note in shown.notes)
    yield from (Paragraph((f"advice: {advice.text} (", Code(advice.page), ")")) for advice in shown.advice)
    if shown.profile is not None:
        yield _hot(shown, shown.profile)
    yield Paragraph(_effort(shown))


def _table(shown: View) -> Table:
    """Make the table of the rows, with the columns for which any row has a figure."""
    further = [column for column in (SAVES, *MESSAGES) if any(column.name in row.figures for row in shown.lines())]
    changes, what = any(row.changes for row in shown.rows), created(shown.lines())
    columns = [
        Column("layer"),
        *map(Column, ("µs/request", "interval", "budget")),
        Column("verdict", align="left"),
        *map(Column, (what.title, "tasks", *(column.title for column in further))),
        *([Column("change", align="left")] if changes else []),
    ]
    rows = []
    for row in shown.lines():
        us, *counted = (row.figures.get(key) for key in ("us", what.name, "tasks"))
        budgets = ", ".join(_budget(quantity, judged.bound) for quantity, judged in row.judged.items())
        counts = [count.text if count else UNKNOWN for count in counted]
        name: Text = (row.name if row.is_frame else Code(row.name), f" {row.whose}" if row.whose else "")
        texts = (
            *counts,
            *(_with_interval(row, column.name) for column in further),
            *([_change(row)] if changes else []),
        )
        times = (name, us.text if us else UNKNOWN, us.span if us else "", budgets)
        verdict = Cell(row.verdict or "", row.verdict)
        rows.append(TableRow(cells(*times, verdict, *texts), level=int(row.is_part)))
    return Table(columns, rows)


def _budget(quantity: Quantity, value: float) -> str:
    """Write a budget, with its keyword if it limits another time than the one in the table."""
    text = amount(quantity, value)
    return text if quantity == "us" or quantity in COUNTED else f"{text} ({quantity})"


def _with_interval(row: Row, quantity: str) -> str:
    """Return a time of a layer with its interval."""
    row_figure = row.figures.get(quantity)
    if row_figure is None:
        return "" if row.is_frame or row.is_part else UNKNOWN
    return f"{row_figure.text} ({row_figure.span})"


def _change(row: Row) -> str:
    """Return what the time of a row changed by, with the interval of a certain change."""
    change = row.changes.get("us")
    if change is None:
        return ""
    return f"{cell(change)} ({span(change)})" if change.changed and change.change else cell(change)


def _remarks(shown: View) -> Iterator[Paragraph]:
    for row in shown.rows:
        if row.tails is not None and set(TAILS).intersection(row.judged):
            yield Paragraph((Code(row.name), f": {percentiles(row.tails)}"))
        if not row.entered:
            yield Paragraph((Code(row.name), " was not entered: a layer outside it answered"))
        if row.merged_with is not None:
            yield Paragraph((Code(row.name), " is measured with ", Code(row.merged_with)))


def _hot(shown: View, profile: Profile) -> Paragraph:
    """Name the flamegraph and the hottest functions."""
    functions: list[Text] = []
    for name, hottest in shown.hottest:
        for hot in hottest:
            place = (" at ", Code(hot.place)) if hot.place else ()
            times = f", {figure(hot.own_us)} µs per request, {figure(hot.total_us)} with its callees"
            functions.append((Code(name), ": ", Code(hot.function), *place, times))
    return Paragraph(("flamegraph: ", Code(profile.flamegraph)), below=functions)


def _effort(shown: View) -> str:
    known = []
    if shown.effort is not None:
        timed = f"{shown.effort.requests} requests timed in {shown.effort.seconds:.1f} s"
        known.append(f"{timed}, detection limit {shown.detection_limit}")
    if shown.counted is not None:
        known.append(f"{shown.counted} requests counted")
    return "; ".join(known)
