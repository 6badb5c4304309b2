"""A result as lines for a terminal: the table, the report of a failure, the single line of a very quiet run."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from ..errors import more_about, tagged
from ..model.estimate import Estimate
from ..model.quantities import Traits
from ..model.results import Advice, Profile, RequestLine, Result, Verdict, worst
from ..model.stack import ENDPOINT
from .change_text import cell
from .findings import ACCEPT, Finding, exceeded, missing
from .growing import slope
from .load import LoadRow, LoadView
from .table import COUNTS, MESSAGES, SAVES, SPENT, TAIL_COLUMNS, US, Figure, Row
from .tails import percentiles
from .text import bound, distinct, figure, formatted, has_id, printable, shortened, wrapped
from .view import View, view

# A name of pytest's terminal markup.
Style: TypeAlias = str
STYLES: dict[Verdict | None, Style] = {"pass": "green", "fail": "red", "undecided": "yellow", None: ""}

MAX_WIDTH = 120
# The least widths of the columns of times, so that successive tables are aligned.
ESTIMATE, INTERVAL, SAVED, CHANGE, BUDGET, VERDICT = 10, 19, 13, 8, 8, 11
# The least width of the interval beside one more column, which leaves more room for names.
NARROW = 16
# Names are not cut below this width; a narrower terminal wraps the line.
MIN_NAME = 12
# The share of the width for names, if the columns need several blocks.
NAME_SHARE = 0.3
# Stands for a space inside a command, so that wrapping keeps the command on one line, to be pasted.
TIE = "␣"
# The most tests that an advice names.
MOST_TESTS = 3
# Indents a part of the endpoint.
PART_INDENT = "  "
# Indents an item of a list. Items are not wrapped, so a name stays beside its number.
ITEM = "    "


@dataclass(frozen=True, slots=True)
class Line:
    """A line of text with one markup for the whole line."""

    text: str
    style: Style = ""


def run(
    measured: Sequence[tuple[str, Result]],
    python: str,
    width: int,
    verbosity: int = 0,
    *,
    told: Container[int] = (),
    repeated: Container[int] = (),
    in_matrix: Container[int] = (),
) -> Iterator[Line]:
    """Lay out all results of a run: a line for each, and the tables of requests that need a look.

    These broke a budget, are undecided, have no budget, changed, or were put under load. With a `verbosity` above 0 all
    requests have their table, below -1 none has. The owners of the layers and the advice follow once, for all requests.

    `measured` has the id of the test with each result, `python` names the interpreter. `told` and `repeated` are
    positions in `measured`: of results whose table was printed elsewhere, and of attempts that were repeated. Neither
    has a table here; the line of a repeated attempt says so. Those `in_matrix` need no table.
    """
    lines: list[Line] = []
    shown = _Together()
    for place, (nodeid, result) in enumerate(measured):
        line = one_line(result)
        again = " (attempt was repeated)" if place in repeated else ""
        lines.append(replace(line, text=f"{printable(nodeid)} {line.text}{again}"))
        if verbosity >= -1 and place not in told and place not in repeated:
            request_view = view(result)
            shown.add(nodeid, request_view)
            if verbosity > 0 or not _is_kept(request_view, in_matrix=place in in_matrix):
                room = min(width, MAX_WIDTH) - 1
                undecided = [Line(text, "yellow") for text in _findings(request_view.undecided, room)]
                lines += [*table(request_view, width, verbosity > 0, alone=False), *undecided, Line("")]
            elif request_view.profile is not None:
                lines.append(_flamegraph(request_view.profile))
    lines += map(Line, shown.lines(min(width, MAX_WIDTH) - 1, requests=len(measured)))
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

    def lines(self, width: int, requests: int) -> Iterator[str]:
        """Lay it out. The figures of an advice are of the first test that it holds for."""
        yield from _whose(self.origins, width)
        for advice, tests in self.advice.values():
            named, more = [*tests][:MOST_TESTS], len(tests) - MOST_TESTS
            where = f"; in {', '.join(named)}{f' and {more} more' if more > 0 else ''}" if requests > 1 else ""
            yield from _advised(advice, width, where)


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
    return Line(printable(f"{shown.request} {verdict}: {text}"), STYLES[result.verdict])


def _is_known(us: Estimate) -> bool:
    return us.bounded and not Figure(US, us.estimate, us.low, us.high).uninformative


def _with_interval(us: Estimate) -> str:
    if not _is_known(us):
        return "not known"
    return f"{figure(us.estimate)} ({figure(us.low)} … {figure(us.high)}) µs"


def failure(result: Result, width: int, *, undecided_fails: bool = False, verbose: bool = False) -> str:
    """Lay out the report of a failing test: the headline, the table, each exceeded budget, the next step."""
    shown = view(result)
    lines = [printable(f"{shown.request}: {shown.headline}"), ""]
    # Without the flamegraph, which a line near the end names.
    lines += [line.text for line in table(replace(shown, profile=None), width, verbose)]
    lines.append("")
    over = [row for row in shown.lines() if row.exceeded or row.over_limits]
    for row in over:
        lines += _findings(exceeded(row), width)
        lines += _hottest(row, shown, width)
        lines += wrapped(shown.next_step(row), width) if row.exceeded else []
    lines += _findings(shown.load.exceeded, width) if shown.load else []
    tells_undecided = undecided_fails or any(not row.is_frame for row in over)
    lines += _findings(
        (finding for finding in missing(result.recorded) if finding.verdict == "fail" or not tells_undecided), width
    )
    if tells_undecided or (shown.load and shown.load.exceeded):
        lines += _findings(shown.undecided, width)
    if undecided_fails:
        lines += wrapped(shown.next_step_uncountable, width)
    if shown.accept:
        lines += [*wrapped(ACCEPT, width), f"{ITEM}{printable(shown.accept)}"]
    if shown.profile is not None:
        lines.append(printable(f"Flamegraph: {shown.profile.flamegraph}"))
    has_ids = any(map(has_id, lines))
    more = _more(result, shown)
    lines.append(f"{more}, or an ID in [brackets]" if has_ids else more)
    return "\n".join(lines)


def _more(result: Result, shown: View) -> str:
    """Return the line that names the page on the failure."""
    if any(row.exceeded for row in shown.lines()):
        return more_about("over-budget")
    if shown.load is not None and shown.load.exceeded:
        return more_about("over-share")
    if result.recorded is not None and result.recorded.broken:
        return more_about("over-limit")
    return more_about("no-limit" if shown.accept else "undecided")


def _findings(findings: Iterable[Finding], width: int) -> Iterator[str]:
    for finding in findings:
        yield from wrapped(finding.sentence, width)
        yield from (f"{ITEM}{printable(item)}" for item in finding.items)


def _hottest(row: Row, shown: View, width: int) -> Iterator[str]:
    """List the functions with the largest self time in a layer."""
    functions = dict(shown.hottest).get(row.name, ())
    if functions:
        yield from wrapped(f"Hottest in {row.name}, µs per request (self time, with callees):", width)
    for hot in functions:
        times = f"{figure(hot.own_us):>7}{figure(hot.total_us):>8}"
        # The place is never shortened: editors and terminals open it.
        place = f" ({printable(hot.place)})" if hot.place else ""
        room = max(MIN_NAME, width - len(f"{ITEM}{times}  {place}"))
        yield f"{ITEM}{times}  {shortened(hot.function, room)}{place}"


# ---- the table ---------------------------------------------------------------------------------------------------


def table(shown: View, width: int, verbose: bool = False, *, alone: bool = True) -> Iterator[Line]:
    """Lay out times and counts of the rows within `width` columns.

    Detection limit, effort and notes follow below; if it stands `alone`, also whose code the layers are, and advice.
    `verbose` adds how each row was measured, and the columns that have only zeros.
    """
    width = min(width, MAX_WIDTH) - 1
    if shown.effort is not None:
        yield from _times(shown, width, verbose)
    known = (*MESSAGES, *COUNTS, *SPENT, *TAIL_COLUMNS)
    columns = [column for column in known if column.name != "suspensions" and _shows(column, shown, verbose)]
    if shown.counted is not None:
        yield from _counts(shown, columns, width, verbose)
    if shown.load is not None:
        yield from _load(shown.load, width, verbose)
    if alone:
        yield from map(Line, _whose(shown.origins, width))
    yield from map(Line, _foot(shown, columns, width))
    if alone:
        yield from (Line(text) for advice in shown.advice for text in _advised(advice, width))
    if shown.profile is not None:
        yield _flamegraph(shown.profile)


def _flamegraph(profile: Profile) -> Line:
    return Line(printable(f"flamegraph: {profile.flamegraph}"))


def _load(load: LoadView, width: int, verbose: bool) -> Iterator[Line]:
    """Lay out the app under load: the layers, what the whole app does, and effects of concurrency."""
    yield Line("")
    heads = ("share of req/s", "interval", "budget")
    cells = [_Cells(load.title, heads, "verdict", "bold")]
    for row in load.rows:
        mark = "~" if row.how == "split" else ""
        figures = (f"{mark}{row.share}", row.span, row.budget)
        below = [f"  {shortened(text, width - 2)}" for text in _load_details(row)] if verbose else []
        cells.append(_Cells(row.name, figures, row.verdict or "", STYLES[row.verdict], below))
    least = (len(heads[0]) + 2, INTERVAL, BUDGET)
    widths = [max(least_width, used) for least_width, used in zip(least, _widths(cells[1:]) or least, strict=True)]
    yield from _block(cells, range(len(widths)), widths, width, VERDICT)
    split = "; ~ its own time over the time of a request" if any(row.how == "split" for row in load.rows) else ""
    for text in (load.summary, *load.effects, *(f"note: {note}" for note in load.notes), f"{load.effort}{split}"):
        yield from map(Line, wrapped(text, width))


def _load_details(row: LoadRow) -> Iterator[str]:
    if row.added:
        yield f"adds {row.added} µs to a request"
    if row.waits:
        yield "a request is in it for {} with 1 client, for {} with all".format(*row.waits)
    if row.why:
        yield f"not bypassed: {row.why}"


@dataclass(frozen=True, slots=True)
class _Cells:
    """A row as text: its name, its figures, its verdict, and the lines below it."""

    name: str
    figures: Sequence[str]
    verdict: str = ""
    style: Style = ""
    below: Sequence[str] = ()

    def line(self, name: str, part: range, widths: Sequence[int], *, judged: bool) -> Line:
        """Lay out the figures of `part` behind a name, and the verdict if the block is `judged`."""
        figures = "".join(f"{self.figures[i]:>{widths[i]}}" for i in part)
        return Line(f"{name}{figures}  {self.verdict if judged else ''}".rstrip(), self.style)


def _times(shown: View, width: int, verbose: bool) -> Iterator[Line]:
    """Lay out the times in one block, whatever the width of the terminal."""
    since = any("us" in row.changes for row in shown.rows)
    saves = verbose and any(row.saves for row in shown.rows)
    heads = ("µs/request", "interval", *([SAVES.short] if saves else []), *(["change"] if since else []), "budget")
    cells = [_Cells("layer", heads, "verdict", "bold")]
    for row in shown.lines(every_part=verbose):
        us, judged = row.figures.get("us"), row.judged.get("us")
        change = [cell(row.changes["us"]) if "us" in row.changes else ""] if since else []
        saved = [_saved(row)] if saves else []
        most = bound(judged.bound) if judged else ""
        figures = (us.text if us else "-", us.span if us else "", *saved, *change, most)
        verdict = row.verdicts.get("us")
        detail = (*_detail(row, shown, width, timed=True), *_unsaved(row, width)) if verbose else ()
        cells.append(_Cells(_name(row), figures, verdict or "", STYLES[verdict], (*_remarks(row, width), *detail)))
    # The least widths have room for the headings.
    least = (ESTIMATE, NARROW if saves else INTERVAL, *([SAVED] if saves else []), *([CHANGE] if since else []), BUDGET)
    widths = [max(least_width, used) for least_width, used in zip(least, _widths(cells[1:]), strict=True)]
    yield from _block(cells, range(len(widths)), widths, width, VERDICT)


def _counts(shown: View, columns: Sequence[Traits], width: int, verbose: bool) -> Iterator[Line]:
    """Lay out counts and occupation of each row. Columns that do not fit follow in further blocks."""
    alone = shown.effort is None
    rows = shown.lines(every_part=verbose)
    texts = [_column(column, rows, shown) for column in columns]
    cells = [_Cells("per request", [column[0] for column in texts], "verdict", "bold")]
    for place, row in enumerate(rows, 1):
        verdict = worst(each_verdict for quantity, each_verdict in row.verdicts.items() if quantity != "us")
        # Remarks and origin stand below the times, if there are any.
        below = [*_remarks(row, width), *(_detail(row, shown, width, timed=False) if verbose else ())] if alone else []
        below += _ranges(row) if verbose else ()
        cells.append(_Cells(_name(row), [column[place] for column in texts], verdict or "", STYLES[verdict], below))
    room = VERDICT if any(row.verdicts.keys() - {"us"} for row in shown.lines()) else 0
    widths = _widths(cells)
    for part in _parts(widths, width, room):
        if part.start:
            cells, room = [replace(row, below=()) for row in cells], 0
        if part.start or not alone:
            yield Line("")
        yield from _block(cells, part, widths, width, room)


def _widths(cells: Sequence[_Cells]) -> list[int]:
    return [2 + max(map(len, column)) for column in zip(*(row.figures for row in cells), strict=True)]


def _block(cells: Sequence[_Cells], part: range, widths: Sequence[int], width: int, room: int) -> Iterator[Line]:
    """Lay out the figures of `part`, with `room` for the verdict; without room there is none."""
    wide = max(MIN_NAME, width - sum(widths[i] for i in part) - room)
    for name, row in zip(distinct([row.name for row in cells], wide - 1), cells, strict=True):
        yield row.line(name.ljust(wide), part, widths, judged=bool(room))
        yield from map(Line, row.below)


def _parts(widths: Sequence[int], width: int, room: int) -> Iterator[range]:
    """Yield all columns if they fit, else blocks of columns that leave room for the names."""
    if not widths or MIN_NAME + sum(widths) + room <= width:
        yield range(len(widths))
        return
    name, begin = max(MIN_NAME, round(NAME_SHARE * width)), 0
    for end in range(1, len(widths) + 1):
        if end == len(widths) or name + sum(widths[begin : end + 1]) + (0 if begin else room) > width:
            yield range(begin, end)
            begin = end


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
            verbose or "busy_us" in budgets or any(occupation.wait_us or occupation.blocking for occupation in spent)
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


def _name(row: Row) -> str:
    return f"{PART_INDENT}{row.name}" if row.is_part else row.name


def _detail(row: Row, shown: View, width: int, *, timed: bool) -> Iterator[str]:
    """Say more of a row: why the endpoint is not opened, what the handler is, or the origin of a layer."""
    if row.name == ENDPOINT and shown.closed is not None:
        yield from (f"  {line}" for line in wrapped(f"not opened: {shown.closed}", width - 2))
    elif not row.is_part:
        yield from _origin(row, width, timed=timed)
    elif row.qualname != row.name and row.kind == "part":
        yield f"{PART_INDENT}  {shortened(row.qualname, width - 4)}"


def _origin(row: Row, width: int, *, timed: bool) -> Iterator[str]:
    """Name the class or function of a layer, how its time was measured, and whose code it is."""
    if not row.is_frame:
        layer, method = row.layer, f", {row.method}" if row.method else ""
        how = f", {layer.kind}{method}" if timed else ""
        how += f", {printable(row.whose)}" if row.whose else ""
        yield f"  {shortened(layer.qualname, width - 2 - len(how))}{how}"


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


def _whose(origins: Mapping[str, Iterable[str]], width: int) -> Iterator[str]:
    """Say whose code the layers are."""
    room = width - len(ITEM)
    lists = {whose: ", ".join(shortened(name, room) for name in names) for whose, names in origins.items()}
    if lists:
        yield from wrapped("; ".join(f"{whose}: {names}" for whose, names in lists.items()), width)


def _advised(advice: Advice, width: int, where: str = "") -> Iterator[str]:
    command = advice.page.replace(" ", TIE)
    text = f"advice: {advice.text} ({command}){printable(where)}"
    yield from (line.replace(TIE, " ") for line in wrapped(text, width))


def _foot(shown: View, columns: Sequence[Traits], width: int) -> Iterator[str]:
    if shown.effort is not None:
        yield f"detection limit {shown.detection_limit}; unattributed {shown.unattributed}"
        yield f"{shown.effort.rounds} rounds, {shown.effort.requests} requests, {shown.effort.seconds:.1f} s"
    if shown.counted is not None:
        cells = {_cell(row, column)[:1] for row in shown.rows for column in columns}
        signs = {"~": "; ~ varies from request to request", "?": "; ? is not known"}
        legend = "".join(meaning for sign, meaning in signs.items() if sign in cells)
        yield from wrapped(f"{shown.counted} requests counted{legend}", width)
    for why, quantities in shown.uncounted.items():
        yield from wrapped(tagged(f"not counted: {', '.join(quantities)} ({why})", "uncountable"), width)
    for sentence in shown.changed:
        yield from wrapped(f"changed: {sentence}", width)
    for note in shown.notes:
        yield from wrapped(f"note: {note}", width)
