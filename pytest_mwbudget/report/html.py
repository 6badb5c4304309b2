"""A run as one self-contained HTML page: pictures of the stacks, sortable tables, created tasks and objects.

The page loads no resources. Its content security policy allows only the style and script of this package, by hash, so
no text of an app can become style or script.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib.resources import files
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

from ..comparison.history import HistoryRun, over_time
from ..errors import explain_command
from ..model.changes import BETTER, WORSE, Change, Since
from ..model.measured_run import MeasuredRun
from ..model.quantities import UNDER_LOAD, Quantity, Traits
from ..model.request_keys import keyed
from ..model.results import Verdict
from ..model.saves import UNREAD
from ..model.stack import ENDPOINT
from .changes import about, cell, span
from .charts import charts
from .findings import ACCEPT
from .load import LoadRow, LoadView
from .matrix import matrices
from .picture import picture
from .survey import survey
from .table import COUNTS, MESSAGES, SAVES, SPENT, TAIL_COLUMNS, TREND_COLUMNS, US, Figure, Row
from .text import amount, bound, figure, formatted
from .view import View, view

if TYPE_CHECKING:
    import jinja2
    from markupsafe import Markup

# Between a small letter or a number and a capital letter, before a slash, and behind another separator.
BETWEEN_WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[\w}])(?=/)|(?<=[._:-])(?=\w)")


def render(run: MeasuredRun, link: Callable[[str], str] = str, history: Sequence[HistoryRun] = ()) -> str:
    """Render the page of a run.

    `link` returns the path of a profile file relative to the page, unquoted. `history` has earlier runs and this one,
    oldest first; the page draws its rows over time. Raises ImportError if Jinja2 is not installed.
    """
    style, script = _asset("report.css"), _asset("report.js")
    views = [(nodeid, view(result)) for nodeid, result in run.measured]
    since, past = run.since, over_time(history)
    pasts = [past.get(key) for key, _ in keyed(run.measured)]
    return _template().render(
        policy=f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; base-uri 'none'",
        style=style,
        script=script,
        surroundings=run.run,
        commit=run.run.commit,
        created=run.run.created,
        sections=[
            _section(number, nodeid, shown, link, since) | {"past": past and charts(past)}
            for number, ((nodeid, shown), past) in enumerate(zip(views, pasts, strict=True), 1)
        ],
        since=since,
        about=[*about(since)] if since else [],
        survey=run.survey and survey(run.survey, run.results, run.left_out),
        matrices=matrices(run.results),
        headline=_headline([shown.verdict for _, shown in views]),
        left_out=run.left_out,
        ids_shown=any(shown.has_ids for _, shown in views),
        explain=explain_command("ID"),
        accept=ACCEPT,
        figure=figure,
    )


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
    environment.filters["breakable"] = _breakable
    return environment.get_template("report.html.j2")


def _breakable(name: str) -> Markup:
    """Let a name break between its words: those of a class, the parts of a path, of a test's id or of a package."""
    import markupsafe

    return markupsafe.Markup("<wbr>").join(map(markupsafe.escape, BETWEEN_WORDS.split(name)))


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
        "first": _first(shown.first) if shown.first else "",
        "picture": picture(shown.rows),
        "tables": [*_tables(shown, since.name if since else None)],
        "total": _cell(shown.total, US),
        "left": [*_left(shown.rows)],
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


def _left(rows: Sequence[Row]) -> Iterator[tuple[str, str, int, str]]:
    """List row, kind, number and name of each task, call in a thread and retained object."""
    for row in rows[:-1]:
        for key, what in (("tasks", "task"), ("threads", "call in a thread"), ("retained", "object retained")):
            for name, number in row.figures[key].kinds.items() if key in row.figures else ():
                yield row.name, what, number, name


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
    """Yield the detection limit, the unattributed time, the size of the measurement, why the endpoint is closed."""
    effort = shown.effort
    if effort is not None:
        yield "detection limit", shown.detection_limit or ""
        yield "unattributed", shown.unattributed or ""
        yield "timed", f"{effort.requests} requests in {effort.rounds} rounds, {effort.seconds:.1f} s"
    yield "counted", f"{shown.counted} requests"
    if shown.closed is not None:
        yield "endpoint", f"not opened: {shown.closed}"
    if shown.load is not None:
        yield shown.load.title, shown.load.summary
        yield "load", shown.load.effort


# ---- tables ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Cell:
    """A cell of a table: its text and sort key, and below the text the range, the budget and the change.

    `tone` is `worse` or `better` if the change is certain.
    """

    text: str = "–"
    value: float | str | None = None
    range: str = ""
    budget: str = ""
    verdict: Verdict | None = None
    why: str = ""
    change: str = ""
    tone: str = ""


def _cell(row: Row, column: Traits) -> _Cell:
    """Show the figure of a row, with its budget if it has one."""
    quantity = cast("Quantity", column.name)
    row_figure, judged, limit = row.figures.get(column.name), row.judged.get(quantity), row.limits.get(quantity)
    shown = partial(formatted, column.name) if column.counted else bound
    budgets = [f"of {shown(judged.bound)}"] if judged else []
    budgets += [f"recorded {shown(limit.limit)}"] if limit and limit.verdict != "pass" else []
    budget, verdict = ", ".join(budgets), row.verdicts.get(quantity)
    if row_figure is None:
        return _Cell("" if row.is_frame else "–", None, "", budget, verdict, row.why.get(column.name, ""))
    change = row.changes.get(column.name) if column != US else None
    certain = change is not None and change.changed
    return _Cell(
        row_figure.with_half_width if column == SAVES else row_figure.text,
        row_figure.value,
        row_figure.span if row_figure.varies else "",
        budget,
        verdict,
        change=cell(change) if change is not None and certain else "",
        tone=_tone(change),
    )


def _tone(change: Change | None) -> str:
    return "" if change is None else "worse" if change.word in WORSE else "better" if change.word in BETTER else ""


def _change(row: Row) -> _Cell:
    """Show what the time of a row changed by, with the interval of the change."""
    change = row.changes.get("us")
    if change is None:
        return _Cell("")
    value = change.change.estimate if change.change else None
    return _Cell(cell(change), value, why=change.reason or "", change=span(change), tone=_tone(change))


def _tables(shown: View, since: str | None) -> Iterator[dict[str, Any]]:
    """Yield the tables of times and of counts: of the layers, and of the parts of an opened endpoint.

    `since` names the run that this one was compared with.
    """
    yield from _tables_of(shown, shown.rows, since)
    whole = [row for row in shown.rows if row.name == ENDPOINT]
    if shown.parts:
        compared = since if any(row.changes for row in shown.parts) else None
        for table in _tables_of(shown, (*shown.parts, *(whole or [shown.total])), compared):
            yield table | {"id": f"endpoint-{table['id']}", "title": f"{table['title']} inside the endpoint"}


def _tables_of(shown: View, rows: Sequence[Row], since: str | None) -> Iterator[dict[str, Any]]:
    """Yield the table of times and the table of counts of these rows. The last row is the total.

    `columns` has the title of each column, its meaning, and the order that the first click sorts in.
    """
    if shown.effort is not None:
        further = (SAVES, *SPENT, *MESSAGES, *TAIL_COLUMNS, *TREND_COLUMNS)
        spent, total = _known(further, rows), shown.total.figures.get("us")
        columns = [
            ("µs", "microseconds per request, the median", "descending"),
            ("interval", "the confidence interval of the median", "descending"),
            *([("change", f"since {since}, with its interval", "descending")] if since else []),
            ("share", "of the whole request", "descending"),
            ("budget µs", "the most microseconds per request that are allowed", "descending"),
            ("verdict", "on the budget of time", "ascending"),
            *((column.title, column.meaning, "descending") for column in spent),
            ("method", "how it was measured", "ascending"),
        ]
        lines = [(row, [*_time_cells(row, total, spent, since=since is not None)]) for row in rows]
        yield {"id": "time", "title": "Time", "columns": columns, "lines": lines}
    counted = _known(COUNTS, rows)
    if counted:
        columns = [(column.title, column.meaning, "descending") for column in counted]
        lines = [(row, [_cell(row, column) for column in counted]) for row in rows]
        yield {"id": "counts", "title": "Counts", "columns": columns, "lines": lines}
    if shown.load is not None:
        yield _load_table(shown, shown.load)


def _load_table(shown: View, load: LoadView) -> dict[str, Any]:
    """Return the table of layers under load."""
    columns = [
        ("share of requests/s", "what the layer costs", "descending"),
        ("interval", "the confidence interval of the share", "descending"),
        ("budget", "the largest share that is allowed", "descending"),
        ("verdict", "on the budget of the share", "ascending"),
        ("adds µs", "what the layer adds to the time between two responses", "descending"),
        ("in it", "how long a request is in the layer, with one client and with all", "descending"),
        ("method", "how it was measured", "ascending"),
    ]
    load_rows = {row.name: row for row in load.rows}
    lines = [(row, _load_cells(load_rows[row.name], row)) for row in shown.layers if row.name in load_rows]
    change, tone = _certain_changes(shown.total)
    lines.append((shown.total, [_Cell(load.brief, change=change, tone=tone), *[_Cell("")] * 6]))
    return {"id": "load", "title": load.title.capitalize(), "columns": columns, "lines": lines}


def _certain_changes(row: Row) -> tuple[str, str]:
    """Return which figures under load certainly changed, and the tone of the first change."""
    changes = [change for key, change in row.changes.items() if key in UNDER_LOAD and change.changed]
    return ", ".join(f"{change.quantity} {cell(change)}" for change in changes), _tone(changes[0] if changes else None)


def _load_cells(row: LoadRow, whole: Row) -> list[_Cell]:
    change, tone = _certain_changes(whole)
    return [
        _Cell(row.share, row.value, verdict=row.verdict, why=row.why, change=change, tone=tone),
        _Cell(row.span or "–", row.value),
        _Cell(row.budget, row.budget),
        _Cell(row.verdict or "", row.verdict, verdict=row.verdict),
        _Cell(row.added or "–", row.added_us),
        _Cell(", ".join(row.waits) or "–", row.all_us),
        _Cell(row.how, row.how),
    ]


def _time_cells(row: Row, total: Figure | None, spent: Sequence[Traits], *, since: bool) -> Iterator[_Cell]:
    time, judged, us = row.figures.get("us"), row.judged.get("us"), _cell(row, US)
    yield _Cell(us.text, us.value, verdict=us.verdict, why=us.why)
    yield _Cell(us.range or "–", time.low if time else None)
    if since:
        yield _change(row)
    share = time.value / total.value if time and total and total.value > 0 else None
    yield _Cell() if share is None else _Cell(f"{share:.1%}", share)
    yield _Cell(bound(judged.bound), judged.bound) if judged else _Cell("")
    yield _Cell(judged.verdict, judged.verdict, verdict=judged.verdict) if judged else _Cell("")
    yield from (_cell(row, column) for column in spent)
    method = row.method
    yield _Cell(method or "", method)


def _known(columns: Sequence[Traits], rows: Sequence[Row]) -> list[Traits]:
    """Keep the columns that have a figure or a budget in any row."""
    return [column for column in columns if any(column.name in {*row.figures, *row.judged} for row in rows)]
