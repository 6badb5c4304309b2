"""A result as lines for a terminal: the table, the report of a failure, the single line of a very quiet run."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from ..errors import more_about, tagged
from ..model.estimate import Estimate
from ..model.quantities import Traits
from ..model.results import Advice, Profile, RequestLine, Result, worst
from ..model.stack import ENDPOINT
from .change_text import cell
from .document import BUDGET, INTERVAL, VERDICT, Block, Code, Column, Paragraph, Table, TableRow, cells
from .findings import ACCEPT, exceeded, missing
from .growing import slope
from .lines import INDENT, MIN_NAME, STYLES, Line, laid_out, line_width
from .table import COUNTS, MESSAGES, SAVES, SPENT, TAIL_COLUMNS, US, Figure, Row
from .text import bound, figure, formatted, has_id, listed, percentiles, printable, shortened, wrapped
from .under_load import LoadView
from .view import View, view

# The least widths of further columns of times.
ESTIMATE, SAVED, CHANGE = 10, 13, 8
# The least width of the interval beside one more column, which leaves more room for names.
NARROW = 16
# The most tests that an advice names.
MOST_TESTS = 3


def run(
    measured: Sequence[tuple[str, Result]],
    python: str,
    width: int,
    verbosity: int = 0,
    *,
    in_failures: Container[int] = (),
    repeated: Container[int] = (),
    in_matrix: Container[int] = (),
) -> Iterator[Line]:
    """Lay out all results of a run: a line for each, and the tables of requests that need a look.

    These broke a budget, are undecided, have no budget, changed, or were put under load. With a `verbosity` above 0 all
    requests have their table, below -1 none has. The owners of the layers and the advice follow once, for all requests.

    `measured` has the id of the test with each result, `python` names the interpreter. `in_failures` and `repeated` are
    positions in `measured`: of results whose table was printed elsewhere, and of attempts that were repeated. Neither
    has a table here; the line of a repeated attempt says so. Those `in_matrix` need no table.
    """
    lines: list[Line] = []
    shown = _Together()
    for place, (nodeid, result) in enumerate(measured):
        line = one_line(result)
        again = " (attempt was repeated)" if place in repeated else ""
        lines.append(replace(line, text=f"{printable(nodeid)} {line.text}{again}"))
        if verbosity >= -1 and place not in in_failures and place not in repeated:
            request_view = view(result)
            shown.add(nodeid, request_view)
            if verbosity > 0 or not _is_kept(request_view, in_matrix=place in in_matrix):
                undecided = [replace(finding.paragraph, tone="undecided") for finding in request_view.undecided]
                lines += table(request_view, width, verbosity > 0, alone=False)
                lines += [*laid_out(undecided, line_width(width)), Line("")]
            elif request_view.profile is not None:
                lines += laid_out([_flamegraph(request_view.profile)], width)
    lines += laid_out([*shown.paragraphs(line_width(width), requests=len(measured))], line_width(width))
    loops = ", ".join(sorted({result.loop for _, result in measured}))
    unit = ", µs per request" if any(result.timed for _, result in measured) else ""
    yield from lines
    yield Line(printable(f"{python}, loop {loops}{unit}"))
    if any(has_id(line.text) for line in lines):
        yield Line(f"{more_about('ID')}, for an ID in [brackets]")


def _is_kept(shown: View, *, in_matrix: bool) -> bool:
    """Return whether a request keeps its budgets, did not change since another run, and was not put under load.

    A request without a budget needs its table, unless a matrix shows its costs.
    """
    verdicts = ("pass", None) if in_matrix else ("pass",)
    return shown.verdict in verdicts and not shown.changed and shown.load is None


class _Together:
    """What is the same in many requests: whose code the layers are, and the advice with the tests that it holds for."""

    def __init__(self) -> None:
        self.origins: dict[str, dict[str, None]] = {}
        self.advice: dict[tuple[str, str], tuple[Advice, dict[str, None]]] = {}

    def add(self, nodeid: str, shown: View) -> None:
        """Take a request."""
        for whose, names in shown.origins.items():
            self.origins.setdefault(whose, {}).update(dict.fromkeys(names))
        for advice in shown.advice:
            _, tests = self.advice.setdefault((advice.layer, advice.rule), (advice, {}))
            # The results of an app that is measured without tests have its name as their id.
            tests[nodeid.partition("::")[2] or shown.request] = None

    def paragraphs(self, width: int, requests: int) -> Iterator[Paragraph]:
        """Say it. The figures of an advice are of the first test that it holds for."""
        yield from _whose(self.origins, width)
        for advice, tests in self.advice.values():
            yield _advised(advice, f"; in {listed([*tests], MOST_TESTS)}" if requests > 1 else "")


def left_out(requests: Sequence[tuple[str, RequestLine, str]], verbosity: int = 0) -> Iterator[Line]:
    """Say which requests were not measured and why; only how many unless `verbosity` is above 0."""
    if not requests or verbosity < -1:
        return
    if verbosity > 0:
        for nodeid, request, reason in requests:
            yield Line(printable(f"{nodeid} {request} not measured: {reason}"))
    else:
        were = "request was" if len(requests) == 1 else "requests were"
        yield Line(f"{len(requests)} {were} not measured; -v says which and why")


def one_line(result: Result) -> Line:
    """Lay out the request, its verdict, its time and its costliest layer with their intervals."""
    shown, verdict = view(result), result.verdict or "no budget"
    if result.total_us is None:
        text = f"{shown.counted} requests counted" if shown.counted is not None else "nothing measured"
    else:
        text = _with_interval(result.total_us)
        most = shown.costliest
        if most is not None and most.us is not None and _is_known(most.us):
            text += f", costliest layer {most.name}: {_with_interval(most.us)}"
    if shown.load is not None:
        text += f"; {shown.load.title}: {shown.load.brief}"
    # What is behind a redirect was not measured.
    request = f"{shown.request} answered {result.status}," if 300 <= result.status < 400 else shown.request
    return Line(printable(f"{request} {verdict}: {text}"), STYLES[result.verdict])


def _is_known(us: Estimate) -> bool:
    return us.bounded and not Figure(US, us.estimate, us.low, us.high).uninformative


def _with_interval(us: Estimate) -> str:
    if not _is_known(us):
        return "not known"
    return f"{figure(us.estimate)} ({figure(us.low)} … {figure(us.high)}) µs"


def failure(result: Result, width: int, *, undecided_fails: bool = False, verbose: bool = False) -> str:
    """Lay out the report of a failing test: the headline, the table, each exceeded budget, the next step."""
    shown = view(result)
    over = [row for row in shown.lines() if row.exceeded or row.over_limits]
    tells_undecided = undecided_fails or any(not row.is_frame for row in over)
    findings: list[Paragraph] = []
    for row in over:
        findings += [finding.paragraph for finding in exceeded(row)]
        findings += _hottest(row, shown, width)
        findings += [Paragraph(shown.next_step(row))] if row.exceeded else []
    under_load = shown.load.exceeded if shown.load else []
    unrecorded = [finding for finding in missing(result.recorded) if finding.verdict == "fail" or not tells_undecided]
    undecided = shown.undecided if tells_undecided or under_load else []
    findings += [finding.paragraph for finding in (*under_load, *unrecorded, *undecided)]
    if undecided_fails:
        findings.append(Paragraph(shown.next_step_uncountable))
    if shown.accept:
        findings.append(Paragraph(ACCEPT, below=[shown.accept]))
    if shown.profile is not None:
        findings.append(_flamegraph(shown.profile, "Flamegraph"))
    lines = [
        Line(printable(f"{shown.request}: {shown.headline}")),
        Line(""),
        # Without the flamegraph, which a line near the end names.
        *table(replace(shown, profile=None), width, verbose),
        Line(""),
        *laid_out(findings, width),
    ]
    more = _more(result, shown)
    lines.append(Line(f"{more}, or an ID in [brackets]" if any(has_id(line.text) for line in lines) else more))
    return "\n".join(line.text for line in lines)


def _more(result: Result, shown: View) -> str:
    """Return the line that names the page on the failure."""
    if any(row.exceeded for row in shown.lines()):
        return more_about("over-budget")
    if shown.load is not None and shown.load.exceeded:
        return more_about("over-share")
    if result.recorded is not None and result.recorded.broken:
        return more_about("over-limit")
    return more_about("no-limit" if shown.accept else "undecided")


def _hottest(row: Row, shown: View, width: int) -> Iterator[Paragraph]:
    """List the functions with the largest self time in a layer."""
    functions = []
    for hot in dict(shown.hottest).get(row.name, ()):
        times = f"{figure(hot.own_us):>7}{figure(hot.total_us):>8}"
        # The place is never shortened: editors and terminals open it.
        place = f" ({printable(hot.place)})" if hot.place else ""
        room = max(MIN_NAME, width - len(f"{INDENT}{times}  {place}"))
        functions.append(f"{times}  {shortened(hot.function, room)}{place}")
    if functions:
        yield Paragraph(f"Hottest in {row.name}, µs per request (self time, with callees):", below=functions)


# ---- the table ---------------------------------------------------------------------------------------------------


def table(shown: View, width: int, verbose: bool = False, *, alone: bool = True) -> Iterator[Line]:
    """Lay out times and counts of the rows within `width` columns.

    Detection limit, effort and notes follow below; if it stands `alone`, also whose code the layers are, and advice.
    `verbose` adds how each row was measured, and the columns that have only zeros.
    """
    return laid_out([*_blocks(shown, line_width(width), verbose, alone=alone)], line_width(width))


def _blocks(shown: View, width: int, verbose: bool, *, alone: bool) -> Iterator[Block]:
    if shown.effort is not None:
        yield _times(shown, width, verbose)
    known = (*MESSAGES, *COUNTS, *SPENT, *TAIL_COLUMNS)
    columns = [column for column in known if column.name != "suspensions" and _shows(column, shown, verbose)]
    if shown.counted is not None:
        yield _counts(shown, columns, width, verbose)
    if shown.load is not None:
        yield from _load(shown.load, width, verbose)
    if alone:
        yield from _whose(shown.origins, width)
    yield from map(Paragraph, _foot(shown, columns))
    if alone:
        yield from map(_advised, shown.advice)
    if shown.profile is not None:
        yield _flamegraph(shown.profile)


def _flamegraph(profile: Profile, name: str = "flamegraph") -> Paragraph:
    return Paragraph(f"{name}: {profile.flamegraph}", whole=True)


def _load(load: LoadView, width: int, verbose: bool) -> Iterator[Block]:
    """Yield what is known of the app under load: the layers, the whole app, effects of concurrency."""
    whole = load.table.arranged(load.title, "share of requests/s", "interval", "budget", "verdict")
    below = [[f"  {shortened(text, width - 2)}" for text in row.below] if verbose else () for row in whole.rows]
    yield replace(whole, rows=[replace(row, below=lines) for row, lines in zip(whole.rows, below, strict=True)])
    split = "; ~ its own time over the time of a request" if load.is_split else ""
    notes = (f"note: {note}" for note in load.notes)
    yield from map(Paragraph, (load.summary, *load.effects, *notes, f"{load.effort}{split}"))


def _times(shown: View, width: int, verbose: bool) -> Table:
    """Make the table of times: one block, whatever the width of the terminal."""
    since = any("us" in row.changes for row in shown.rows)
    saves = verbose and any(row.saves for row in shown.rows)
    columns = [
        Column("layer"),
        Column("µs/request", least=ESTIMATE),
        Column("interval", least=NARROW if saves else INTERVAL),
        *([Column(SAVES.short, least=SAVED)] if saves else []),
        *([Column("change", least=CHANGE)] if since else []),
        Column("budget", least=BUDGET),
        Column("verdict", align="left", least=VERDICT),
    ]
    rows = []
    for row in shown.lines(every_part=verbose):
        us, judged, verdict = row.figures.get("us"), row.judged.get("us"), row.verdicts.get("us")
        change = [cell(row.changes["us"]) if "us" in row.changes else ""] if since else []
        saved = [_saved(row)] if saves else []
        most = bound(judged.bound) if judged else ""
        texts = (row.name, us.text if us else "-", us.span if us else "", *saved, *change, most, verdict or "")
        detail = (*_detail(row, shown, width, timed=True), *_unsaved(row, width)) if verbose else ()
        rows.append(TableRow(cells(*texts), verdict, (*_remarks(row, width), *detail), level=int(row.is_part)))
    return Table(columns, rows, fills=True)


def _counts(shown: View, columns: Sequence[Traits], width: int, verbose: bool) -> Table:
    """Make the table of counts and occupation of each row."""
    alone = shown.effort is None
    lines = shown.lines(every_part=verbose)
    judged = any(row.verdicts.keys() - {"us"} for row in shown.lines())
    texts = [_column(column, lines, shown) for column in columns]
    rows = []
    for place, row in enumerate(lines, 1):
        verdict = worst(each_verdict for quantity, each_verdict in row.verdicts.items() if quantity != "us")
        # Remarks and origin stand below the times, if there are any.
        below = [*_remarks(row, width), *(_detail(row, shown, width, timed=False) if verbose else ())] if alone else []
        below += _ranges(row) if verbose else ()
        figures = [*(column[place] for column in texts), *([verdict or ""] if judged else [])]
        rows.append(TableRow(cells(row.name, *figures), verdict, below, level=int(row.is_part)))
    last = [Column("verdict", align="left", least=VERDICT)] if judged else []
    titles = [Column("per request"), *(Column(column[0]) for column in texts), *last]
    return Table(titles, rows, fills=True, blocks=True)


def _cell(row: Row, column: Traits) -> str:
    """Return the text of a figure; a dash for a count in a row without counts, `?` for one that is not known."""
    known = row.figures.get(column.name)
    if known is not None:
        change = row.changes.get(column.name)
        return f"{known.text} ({cell(change)})" if change is not None and change.changed else known.text
    return ("?" if row.counts else "-") if column.counted else ""


def _column(column: Traits, rows: Sequence[Row], shown: View) -> list[str]:
    """Return the heading and the figures of a column, beside budgets or limits if a row is over its own."""
    figures = [column.short, *(_cell(row, column) for row in rows)]
    if not any(row.verdicts.get(column.name) == "fail" for row in shown.lines()):  # type: ignore[call-overload]
        return figures
    bounds = [_bounded_by(column, shown), *(_most(row, column) for row in rows)]
    widths = [max(map(len, texts)) for texts in (figures, bounds)]
    return [f"{text:>{widths[0]}}  {most:>{widths[1]}}" for text, most in zip(figures, bounds, strict=True)]


def _bounded_by(column: Traits, shown: View) -> str:
    """Return what the rows are held against: recorded limits, budgets, or both."""
    limits = any(column.name in row.limits for row in shown.lines())
    budgets = any(column.name in row.judged for row in shown.lines())
    return "bound" if limits and budgets else "limit" if limits else "budget"


def _most(row: Row, column: Traits) -> str:
    """Return the lower one of the budget and the recorded limit of a row."""
    bounds = [judged.bound for key, judged in row.judged.items() if key == column.name]
    bounds += [limit.limit for key, limit in row.limits.items() if key == column.name]
    return formatted(column.name, min(bounds)) if bounds else ""


def _shows(column: Traits, shown: View, verbose: bool) -> bool:
    """Whether to show a column: it has a budget or, in any row, a figure that is not zero."""
    figures = [row.figures[column.name] for row in shown.rows if column.name in row.figures]
    budgets = {quantity for row in shown.lines() for quantity in row.judged}
    budgets |= {limit.quantity for row in shown.rows for limit in row.over_limits}
    if column in MESSAGES:
        return bool(figures)
    if column in SPENT:
        spent = [row.occupation for row in shown.layers if row.occupation]
        wanted = (
            verbose
            or any(each.name in budgets for each in SPENT)
            or any(occupation.wait_us or occupation.blocking for occupation in spent)
        )
        return bool(spent) and wanted
    # Objects retained after some requests may be a growing cache; a median above 0 is a leak.
    some = not column.detail and any(
        each_figure.value if column.name == "retained" else each_figure.high for each_figure in figures
    )
    return bool(figures) and (verbose or column.name in budgets or some)


def _remarks(row: Row, width: int) -> Iterator[str]:
    if not row.entered:
        yield "    not entered" if row.is_part else "  not entered: a layer outside it answered"
    if row.merged_with is not None:
        yield shortened(f"  measured with {row.merged_with}", width)


def _detail(row: Row, shown: View, width: int, *, timed: bool) -> Iterator[str]:
    """Say more of a row: why the endpoint is not opened, what the handler is, or the origin of a layer."""
    if row.name == ENDPOINT and shown.closed is not None:
        yield from (f"  {line}" for line in wrapped(f"not opened: {shown.closed}", width - 2))
    elif not row.is_part:
        yield from _origin(row, width, timed=timed)
    elif row.qualname != row.name and row.kind == "part":
        yield f"{INDENT}{shortened(row.qualname, width - 4)}"


def _origin(row: Row, width: int, *, timed: bool) -> Iterator[str]:
    """Name the class or function of a layer, what kind of layer it is, and whose code it is."""
    if not row.is_frame:
        what = f", {row.layer.kind}" if timed else ""
        what += f", {printable(row.whose)}" if row.whose else ""
        yield f"  {shortened(row.layer.qualname, width - 2 - len(what))}{what}"


def _saved(row: Row) -> str:
    """Return what leaving a layer out saves; a dash if that is not known."""
    saving = row.figures.get(SAVES.name)
    return saving.with_half_width if saving else "" if row.is_frame or row.is_part else "-"


def _unsaved(row: Row, width: int) -> Iterator[str]:
    """Say why it is not known what leaving a layer out saves, where that was to be measured."""
    if row.saves is not None and row.saves.why is not None:
        yield shortened(f"  saves: {row.saves.why}", width)


def _ranges(row: Row) -> Iterator[str]:
    for column in COUNTS:
        count = None if row.is_frame or column.name == "suspensions" else row.figures.get(column.name)
        if count is not None and count.varies:
            yield f"  {column.short} {count.span}"
    if row.tails is not None:
        yield f"  {percentiles(row.tails)}"
    if row.trend is not None:
        yield f"  {slope(row.trend)}"


def _whose(origins: Mapping[str, Iterable[str]], width: int) -> Iterator[Paragraph]:
    """Say whose code the layers are."""
    room = width - len(INDENT)
    lists = [f"{whose}: {', '.join(shortened(name, room) for name in names)}" for whose, names in origins.items()]
    if lists:
        yield Paragraph("; ".join(lists))


def _advised(advice: Advice, where: str = "") -> Paragraph:
    return Paragraph((f"advice: {advice.text} (", Code(advice.page), f"){where}"))


def _foot(shown: View, columns: Sequence[Traits]) -> Iterator[str]:
    if shown.effort is not None:
        yield f"detection limit {shown.detection_limit}; rows less total {shown.residue}"
        yield f"{shown.effort.rounds} rounds, {shown.effort.requests} requests, {shown.effort.seconds:.1f} s"
    if shown.counted is not None:
        cells = {_cell(row, column)[:1] for row in shown.rows for column in columns}
        signs = {"~": "; ~ varies from request to request", "?": "; ? is not known"}
        yield f"{shown.counted} requests counted{''.join(meaning for sign, meaning in signs.items() if sign in cells)}"
    for why, quantities in shown.uncounted.items():
        yield tagged(f"not counted: {', '.join(quantities)} ({why})", "uncountable")
    yield from (f"changed: {sentence}" for sentence in shown.changed)
    yield from (f"note: {note}" for note in shown.notes)
