"""A run as one self-contained HTML page: pictures of the stacks, sortable tables, created tasks and objects.

The page loads no resources. Its content security policy allows only the style and script of this package, by hash, so
no text of an app can become style or script.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from importlib.resources import files
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

from ..comparison.history import HistoryRun, over_time
from ..errors import explain_command
from ..model.changes import Since
from ..model.measured_run import MeasuredRun
from ..model.quantities import UNDER_LOAD, Quantity, Traits
from ..model.request_keys import keyed
from ..model.results import HotFunction, Verdict
from ..model.saves import UNREAD
from ..model.stack import ENDPOINT
from .change_text import about, cell, span
from .charts import charts
from .document import Cell, Code, Column, Table, TableRow, Text, cells, parts, plain, tone_of
from .findings import ACCEPT
from .matrix import Matrix, matrices
from .picture import picture
from .survey import Survey
from .survey import survey as survey_of
from .table import COUNTS, MESSAGES, SAVES, SPENT, TAIL_COLUMNS, TREND_COLUMNS, US, Figure, Row
from .text import amount, bound, figure, formatted
from .under_load import LoadView
from .view import View, view

if TYPE_CHECKING:
    import jinja2
    from markupsafe import Markup

# Between a small letter or a number and a capital letter, before a slash, and behind another separator.
BETWEEN_WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[\w}])(?=/)|(?<=[._:-])(?=\w)")

NO_BUDGET = "no budget"
# Columns of a survey's layers.
TIMES = (("µs", "interval"), ("worst µs", "interval"))


def render(run: MeasuredRun, link: Callable[[str], str] = str, history: Sequence[HistoryRun] = ()) -> str:
    """Render the page of a run.

    `link` returns the path of a profile file relative to the page, unquoted. `history` has earlier runs and this one,
    oldest first; the page draws its rows over time. Raises ImportError if Jinja2 is not installed.
    """
    style, script = _asset("report.css"), _asset("report.js")
    views = [(nodeid, view(result)) for nodeid, result in run.measured]
    since, past = run.since, over_time(history)
    pasts = [past.get(key) for key, _ in keyed(run.measured)]
    survey = survey_of(run.survey, run.results, run.left_out) if run.survey else None
    tests = [nodeid for nodeid, _ in run.measured]
    page = _template().render(
        policy=f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; base-uri 'none'",
        style=style,
        script=script,
        surroundings=run.run,
        commit=run.run.commit,
        created=run.run.created,
        overview=_overview(views),
        sections=[
            _section(number, nodeid, shown, link, since) | {"past": past and charts(past)}
            for number, ((nodeid, shown), past) in enumerate(zip(views, pasts, strict=True), 1)
        ],
        since=since,
        about=[*about(since)] if since else [],
        survey=survey,
        layers=_layers(survey) if survey else None,
        matrices=[(matrix, _matrix(matrix, tests)) for matrix in matrices(run.results)],
        headline=_headline([shown.verdict for _, shown in views]),
        left_out=run.left_out,
        ids_shown=any(shown.has_ids for _, shown in views),
        explain=explain_command("ID"),
        accept=ACCEPT,
        figure=figure,
    )
    # A lone surrogate, which names of the app and paths can contain, becomes an escape.
    return page.encode(errors="backslashreplace").decode()


@cache
def _template() -> jinja2.Template:
    """Load the template of the page."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("pytest_mwbudget", "report/templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"breakable": _breakable, "marked": _marked}
    return environment.get_template("report.html.j2")


def _breakable(name: str) -> Markup:
    """Let a name break between its words: those of a class, the parts of a path, of a test's id or of a package."""
    import markupsafe

    return markupsafe.Markup("<wbr>").join(map(markupsafe.escape, BETWEEN_WORDS.split(name)))


def _marked(text: Text) -> Markup:
    """Set the names of the app apart."""
    import markupsafe

    name = markupsafe.Markup('<span class="name">{}</span>')
    texts = (name.format(_breakable(part)) if isinstance(part, Code) else part for part in parts(text))
    return markupsafe.Markup("").join(texts)


def _asset(name: str) -> str:
    """Read a file of this package that is inlined in the page unchanged."""
    return files(__package__).joinpath("templates", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """Return the hash of an inline style or script as a content security policy writes it."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _headline(verdicts: Sequence[Verdict | None]) -> str:
    """Sum up the run: how many requests, by verdict."""
    words: Mapping[Verdict | None, str] = {
        "fail": "over budget",
        "undecided": "undecided",
        "pass": "within budget",
        None: "without a budget",
    }
    counted = [f"{verdicts.count(verdict)} {word}" for verdict, word in words.items() if verdict in verdicts]
    requests = "1 request" if len(verdicts) == 1 else f"{len(verdicts) or 'No'} requests"
    return f"{requests} measured" + (f": {', '.join(counted)}" if counted else "")


# ---- one request -------------------------------------------------------------------------------------------------


def _section(number: int, nodeid: str, shown: View, link: Callable[[str], str], since: Since | None) -> dict[str, Any]:
    """Collect the template's variables for a request; `links` has title and address of each profile file."""
    titles = {"flamegraph": "flamegraph", "pyinstrument": "pyinstrument's own page", "speedscope": "for speedscope"}
    return {
        "id": f"m{number}",
        "nodeid": nodeid,
        "view": shown,
        "picture": picture(shown.rows),
        "tables": [*_tables(shown, since.name if since else None)],
        "hottest": [
            (("The hottest functions of ", Code(name), ", µs per request"), _hottest(functions))
            for name, functions in shown.hottest
        ],
        "left": _left(shown.rows),
        "sentences": [*_sentences(shown), *(shown.load.effects + shown.load.notes if shown.load else ())],
        "missing": _missing(shown),
        "links": [(title, quote(link(getattr(shown.profile, key)))) for key, title in titles.items() if shown.profile],
        "facts": [*_facts(shown)],
    }


def _first(row: Row) -> str:
    """Describe the layer to look at first: its greatest excess, or its time and whether it is undecided."""
    if row.exceeded:
        quantity = max(row.exceeded, key=row.times_its_budget)
        return f"{row.amount_of(quantity)}, over budget"
    if row.over_limits:
        worst = max(row.over_limits, key=lambda limit: (limit.value or 0) / max(limit.limit, 0.5))
        return f"{amount(worst.quantity, worst.value or 0)}, over its recorded limit"
    us = f"{row.figures['us'].text} µs" if "us" in row.figures else ""
    return ", ".join(filter(None, [us, "undecided" if row.verdict == "undecided" else ""]))


def _sentences(shown: View) -> Iterator[str]:
    """Yield a sentence for each layer that waits or blocks, or one for all layers; none if nothing was timed."""
    known = [(row.name, row.occupation) for row in shown.layers if row.occupation]
    for name, spent in known:
        busy = figure(spent.busy.estimate)
        if spent.blocking:
            yield (
                f"{name} blocks the event loop: busy {busy} µs, of which the processor worked"
                f" {figure(spent.cpu_us)} µs; it waits for a file, a socket or a lock without giving way."
            )
        if spent.wait_us:
            yield f"{name} is suspended for {figure(spent.wait_us)} µs and holds the event loop for {busy} µs."
    if known and not any(spent.wait_us or spent.blocking for _, spent in known):
        yield "No layer waits, and none blocks the event loop: all their time is work."


def _missing(shown: View) -> dict[str, list[str]]:
    """Group missing figures by reason: first those missing for the whole request, then those of single layers."""
    missing = {why: [*quantities] for why, quantities in shown.uncounted.items()}
    for row in shown.layers:
        reasons: dict[str, list[str]] = {}
        for key, why in row.why.items():
            if key not in shown.uncounted.get(why, ()) and why != UNREAD:
                reasons.setdefault(why, []).append(key)
        for why, keys in reasons.items():
            nothing = not row.counts and "us" not in row.figures
            missing.setdefault(why, []).append(f"{'all' if nothing else ', '.join(keys)} of {row.name}")
    return missing


def _facts(shown: View) -> Iterator[tuple[str, str]]:
    """Yield the detection limit, the rows less the total, the size of the measurement, why the endpoint is closed."""
    effort = shown.effort
    if effort is not None:
        yield "detection limit", shown.detection_limit or ""
        yield "rows less total", shown.residue or ""
        yield "timed", f"{effort.requests} requests in {effort.rounds} rounds, {effort.seconds:.1f} s"
    yield "counted", f"{shown.counted} requests"
    if shown.closed is not None:
        yield "endpoint", f"not opened: {shown.closed}"
    if shown.load is not None:
        yield shown.load.title, shown.load.summary
        yield "load", shown.load.effort


# ---- tables ------------------------------------------------------------------------------------------------------


def _cell(row: Row, column: Traits) -> Cell:
    """Show the figure of a row, with its budget if it has one."""
    quantity = cast("Quantity", column.name)
    row_figure, judged, limit = row.figures.get(column.name), row.judged.get(quantity), row.limits.get(quantity)
    shown = partial(formatted, column.name) if column.counted else bound
    budgets = [f"of {shown(judged.bound)}"] if judged else []
    budgets += [f"recorded {shown(limit.limit)}"] if limit and limit.verdict != "pass" else []
    budget, verdict = ", ".join(budgets), row.verdicts.get(quantity)
    if row_figure is None:
        return Cell("" if row.is_frame else "–", verdict, budget=budget, why=row.why.get(column.name, ""))
    change = row.changes.get(column.name) if column != US else None
    details = [row_figure.span] if row_figure.text.startswith("~") else []
    details += [cell(change)] if change is not None and change.changed else []
    text = row_figure.with_half_width if column == SAVES else row_figure.text
    return Cell(text, verdict or (tone_of(change.word) if change else None), row_figure.value, tuple(details), budget)


def _change(row: Row) -> Cell:
    """Show what the time of a row changed by, with the interval of the change."""
    change = row.changes.get("us")
    if change is None:
        return Cell()
    value = change.change.estimate if change.change else None
    details = tuple(filter(None, [span(change)]))
    return Cell(cell(change), tone_of(change.word), value, details, why=change.reason or "")


def _row(row: Row, figures: Iterable[Cell]) -> TableRow:
    """Make a row of a table: its name with remarks and whose code it is, and its figures."""
    remark = f"measured with {row.merged_with}" if row.merged_with else "" if row.entered else "not entered"
    name = Cell(Code(row.name), details=(*filter(None, [remark, Code(row.whose)]),), why=row.qualname)
    return TableRow([name, *figures], kind=row.kind)


def _tables(shown: View, since: str | None) -> Iterator[tuple[str, str, Table]]:
    """Yield id, title and table of times and counts: of the layers, and of the parts of an opened endpoint.

    `since` names the run that this one was compared with.
    """
    yield from _tables_of(shown, shown.rows, since)
    if shown.load is not None:
        yield "load", shown.load.title.capitalize(), _load_table(shown, shown.load)
    whole = [row for row in shown.rows if row.name == ENDPOINT]
    if shown.parts:
        compared = since if any(row.changes for row in shown.parts) else None
        for name, title, table in _tables_of(shown, (*shown.parts, *(whole or [shown.total])), compared):
            yield f"endpoint-{name}", f"{title} inside the endpoint", table


def _tables_of(shown: View, rows: Sequence[Row], since: str | None) -> Iterator[tuple[str, str, Table]]:
    """Yield the table of times and the table of counts of these rows. The last row is the total."""
    if shown.effort is not None:
        further = (SAVES, *SPENT, *MESSAGES, *TAIL_COLUMNS, *TREND_COLUMNS)
        spent, total = _known(further, rows), shown.total.figures.get("us")
        columns = [
            Column("layer"),
            Column("µs", meaning="microseconds per request, the median"),
            Column("interval", meaning="the confidence interval of the median"),
            *([] if since is None else [Column("change", meaning=f"since {since}, with its interval")]),
            Column("share", meaning="of the whole request"),
            Column("budget µs", meaning="the most microseconds per request that are allowed"),
            Column("verdict", align="left", meaning="on the budget of time"),
            *(Column(column.title, meaning=column.meaning) for column in spent),
        ]
        lines = [_row(row, _times(row, total, spent, since=since is not None)) for row in rows]
        yield "time", "Time", Table(columns, lines, total=True)
    counted = _known(COUNTS, rows)
    if counted:
        columns = [Column("layer"), *(Column(column.title, meaning=column.meaning) for column in counted)]
        lines = [_row(row, (_cell(row, column) for column in counted)) for row in rows]
        yield "counts", "Counts", Table(columns, lines, total=True)


def _times(row: Row, total: Figure | None, spent: Sequence[Traits], *, since: bool) -> Iterator[Cell]:
    time, judged, us = row.figures.get("us"), row.judged.get("us"), _cell(row, US)
    yield Cell(us.text, us.tone, us.value, why=us.why)
    yield Cell(time.span if time and time.varies else "–", value=time.low if time else None)
    if since:
        yield _change(row)
    share = time.value / total.value if time and total and total.value > 0 else None
    yield Cell("–") if share is None else Cell(f"{share:.1%}", value=share)
    yield Cell(bound(judged.bound), value=judged.bound) if judged else Cell()
    yield Cell(judged.verdict, judged.verdict) if judged else Cell()
    yield from (_cell(row, column) for column in spent)


def _load_table(shown: View, load: LoadView) -> Table:
    """Complete the table of layers under load: what they are, what changed, and the whole app."""
    rows, (title, *columns) = {row.name: row for row in shown.layers}, load.table.columns
    lines = []
    for line in load.table.rows:
        name, share, *others = line.cells
        row = rows[plain(name.text)]
        lines.append(_row(row, [_with_changes(share, row), *others]))
    whole = _with_changes(Cell(load.brief), shown.total)
    lines.append(_row(shown.total, [whole, *[Cell()] * (len(columns) - 1)]))
    return Table([replace(title, title="layer"), *columns], lines, total=True)


def _with_changes(share: Cell, row: Row) -> Cell:
    """Add which figures under load certainly changed, in the tone of the first change."""
    changes = [change for key, change in row.changes.items() if key in UNDER_LOAD and change.changed]
    texts = ", ".join(f"{change.quantity} {cell(change)}" for change in changes)
    return replace(share, details=(texts,), tone=share.tone or tone_of(changes[0].word)) if changes else share


def _known(columns: Sequence[Traits], rows: Sequence[Row]) -> list[Traits]:
    """Keep the columns that have a figure or a budget in any row."""
    return [column for column in columns if any(column.name in {*row.figures, *row.judged} for row in rows)]


def _layers(survey: Survey) -> Table:
    """Return the table of a survey's layers with the route last."""
    return survey.layers.arranged(("layer", "from"), "routes", *TIMES, *survey.counts, "worst on")


def _overview(sections: Sequence[tuple[str, View]]) -> Table:
    """Make the table of all requests, which links to their sections."""
    columns = [Column("request"), Column("verdict", align="left"), Column("total µs")]
    rows = []
    for number, (nodeid, shown) in enumerate(sections, 1):
        request = Cell(Code(shown.request), details=(Code(nodeid),))
        verdict = Cell(shown.verdict or NO_BUDGET, shown.verdict, shown.verdict or "")
        first = shown.first
        look = Cell(Code(first.name), value=first.name, details=(_first(first),)) if first else Cell("–", value="")
        rows.append(TableRow([request, verdict, _cell(shown.total, US), look], link=f"m{number}"))
    return Table([*columns, Column("look first at", align="left")], rows)


def _matrix(whole: Matrix, tests: Sequence[str]) -> Table:
    """Make the table of layers and routes. The title of a route shows its test."""
    names, routes = whole.table.columns[:2], zip(whole.table.columns[2:], whole.places, strict=True)
    columns = [*names, *(replace(column, meaning=tests[place]) for column, place in routes)]
    titles = (plain(column.title) for column in columns[2:])
    return replace(whole.table, columns=columns).arranged(("layer", "from"), *titles)


def _hottest(functions: Sequence[HotFunction]) -> Table:
    """Make the table of the hottest functions of a layer."""
    rows = []
    for hot in functions:
        name = Cell(Code(hot.function), details=(Code(f"{'own, ' if hot.own else ''}{hot.place}"),) if hot.line else ())
        rows.append(TableRow([name, *cells(figure(hot.own_us), figure(hot.total_us))]))
    return Table([Column("function"), Column("self time µs"), Column("with callees µs")], rows)


def _left(rows: Sequence[Row]) -> Table:
    """Make the table of each task, call in a thread and retained object."""
    lines = []
    for row in rows[:-1]:
        for key, what in (("tasks", "task"), ("threads", "call in a thread"), ("retained", "object retained")):
            for name, number in row.figures[key].kinds.items() if key in row.figures else ():
                lines.append(TableRow(cells(Code(row.name), Cell(str(number), value=number), what, Code(name))))
    columns = [Column("layer"), Column("number"), Column("what", align="left"), Column("name", align="left")]
    return Table(columns, lines)
