"""What `mwbudget compare` found as a document, and the sentences on it for all reports. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ..comparison.allowed import limited_as
from ..comparison.outcome import Comparison, RequestChanges
from ..errors import tagged
from ..model.changes import Change, Since
from ..model.results import Result
from .change_text import MOST_NAMES, about, of_rows, sentence, share, signed, span, summed, without_implied
from .document import Block, Bullets, Cell, Code, Column, Paragraph, Section, Table, TableRow, Text, cells, tone_of
from .text import figure, listed

COLUMNS = (
    Column("layer"),
    Column("before µs"),
    Column("after µs"),
    Column("change"),
    Column("%", joins=True),
    Column("interval"),
    Column("", align="left"),
)


def grown_sentences(comparison: Comparison) -> Iterator[str]:
    """Say which figures grew by more than is allowed."""
    for key, change in comparison.judged("fail"):
        quantity = limited_as(change) or change.quantity
        allowed = f"allowed: {quantity}:{comparison.allowed[quantity].written}"
        yield tagged(f"{' '.join(key)}: {sentence(change)}; {allowed}", "grown")


def unjudged_sentences(comparison: Comparison) -> Iterator[str]:
    """Say how many figures of a quantity could not be judged, and why."""
    for (quantity, reason), number in comparison.unjudged().items():
        rows = "1 figure of " if number == 1 else f"{number} figures of " if number else ""
        yield tagged(f"{rows}{quantity} could not be judged by what is allowed: {reason}", "not-comparable")


def reasons(changes: Iterable[Change]) -> Iterator[str]:
    """Yield each reason why figures have no change, with the first rows that it holds for."""
    by_reason: dict[str, dict[str, list[str]]] = {}
    for change in changes:
        if change.reason is not None:
            rows = by_reason.setdefault(f"{change.word}: {change.reason}", {})
            rows.setdefault(change.quantity, []).append(change.row)
    for reason, quantities in by_reason.items():
        parts = [f"{quantity} of {listed(rows, MOST_NAMES)}" for quantity, rows in quantities.items()]
        yield f"{', '.join(parts)}: {reason}"


# ---- documents ------------------------------------------------------------------------------------------------------


def for_terminal(comparison: Comparison, since: Since) -> Section:
    """Make a document with what was compared, every request, and at the end, where it is seen, what grew too much."""
    sections = [_section(request) for request in _without_implied(comparison)]
    blocks: list[Block] = [Bullets([*map(Paragraph, about(since))]), *sections]
    return Section("", [*blocks, Bullets(judged)] if (judged := _judged(since)) else blocks)


def for_page(comparison: Comparison, since: Since) -> Section:
    """Make a document with what grew by too much, the requests that changed, and the names of the others."""
    requests = _without_implied(comparison)
    changed = [_section(request) for request in requests if any(change.changed for change in request.changes)]
    same = [key for key, changes in requests if not any(change.changed for change in changes)]
    title = f"mw-budget: {summed(change for _, changes in requests for change in changes)}"
    blocks: list[Block] = [Bullets([*_judged(since), *map(Paragraph, about(since))]), *changed]
    if same:
        names = Bullets([Paragraph((Code(key.nodeid), " ", Code(key.request))) for key in same])
        were = "1 request" if len(same) == 1 else f"{len(same)} requests"
        blocks.append(Section(f"{were} without a certain change", [names], folded=True))
    return Section(title, blocks, level=2)


def left_out(command: str, number: int, of: int) -> Text:
    """Say how many sections of a page were left out; the command prints them."""
    reason = f"{number} more sections are left out: there is no room here. "
    return reason, Code(command), " prints them all."


def of_run(since: Since, failing: Sequence[tuple[str, Result]]) -> Section:
    """Make a document with what a run was compared with, and what grew by too much.

    The tables of the run have the changes, but not those of `failing` tests, which are given with their ids.
    """
    changes = (
        Paragraph(f"{nodeid} {result.label}: {change}")
        for nodeid, result in failing
        for change in of_rows(result.changes, timed=True)
    )
    return Section("", [Bullets([*map(Paragraph, about(since)), *changes, *_judged(since)])])


def _judged(since: Since) -> list[Paragraph]:
    """Say which figures grew by more than is allowed, and which could not be judged."""
    grown = [Paragraph(message, "fail") for message in since.grown]
    return [*grown, *(Paragraph(message, "undecided") for message in since.unjudged)]


def _without_implied(comparison: Comparison) -> list[RequestChanges]:
    return [RequestChanges(key, without_implied(changes)) for key, changes in comparison.requests]


def _section(request: RequestChanges) -> Section:
    key, changes = request
    title = (Code(key.nodeid), " ", Code(key.request), f": {summed(changes)}")
    times = [change for change in changes if change.quantity == "us" and change.reason is None]
    blocks: list[Block] = [Table(COLUMNS, [*map(_row, times)])] if times else []
    sentences = [*map(Paragraph, (*of_rows(changes, timed=False), *reasons(changes)))]
    return Section(title, [*blocks, Bullets(sentences)] if sentences else blocks)


def _row(change: Change) -> TableRow:
    ends = (figure(end.estimate) if end else "" for end in (change.before, change.after))
    difference = signed(change, change.change.estimate) if change.change else ""
    tone = tone_of(change.word)
    figures = (*ends, difference, share(change), span(change))
    return TableRow(cells(Code(change.row), *figures, Cell(change.word, tone)), tone)
