"""What `mwbudget compare` found as a document, and the sentences on it for all reports. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from ..comparison.allowed import Compared
from ..comparison.comparing import Comparison, Offence, Pair
from ..errors import tagged
from ..model.changes import CHANGE_WORDS, Change, Since
from ..model.results import Result
from .changes import about, named, of_rows, sentence, share, signed, span, told
from .document import Block, Bullets, Cell, Code, Column, Paragraph, Section, Table, TableRow, Text, cells, tone_of
from .text import figure

COLUMNS = (
    Column("layer"),
    Column("before µs"),
    Column("after µs"),
    Column("change"),
    Column("%", joins=True),
    Column("interval"),
    Column("", align="left"),
)


def grown_sentence(offence: Offence) -> str:
    """Say which figure grew by more than is allowed."""
    request = f"{offence.pair.nodeid} {offence.pair.request}"
    allowed = f"allowed: {offence.quantity}:{offence.growth.said}"
    return tagged(f"{request}: {sentence(offence.change)}; {allowed}", "grown")


def unjudged_sentence(quantity: Compared, reason: str, number: int) -> str:
    """Say how many figures of a quantity could not be judged, and why."""
    rows = "1 figure of " if number == 1 else f"{number} figures of " if number else ""
    return tagged(f"{rows}{quantity} could not be judged by what is allowed: {reason}", "not-comparable")


def summed(changes: Iterable[Change]) -> str:
    """Return how many figures changed in which way: `1 slower, 2 more, 60 same`."""
    counted = Counter(change.word for change in changes)
    return ", ".join(f"{counted[word]} {word}" for word in CHANGE_WORDS if counted[word]) or "nothing to compare"


def reasons(changes: Iterable[Change]) -> Iterator[str]:
    """Yield each reason why figures have no change, with the first rows that it holds for."""
    by_reason: dict[str, dict[str, list[str]]] = {}
    for change in changes:
        if change.reason is not None:
            rows = by_reason.setdefault(f"{change.word}: {change.reason}", {})
            rows.setdefault(change.quantity, []).append(change.row)
    for reason, quantities in by_reason.items():
        parts = [f"{quantity} of {named(rows)}" for quantity, rows in quantities.items()]
        yield f"{', '.join(parts)}: {reason}"


# ---- documents ------------------------------------------------------------------------------------------------------


def for_terminal(comparison: Comparison, since: Since) -> Section:
    """Make a document with what was compared, every request, and at the end, where it is seen, what grew too much."""
    sections = [_section(pair, told(pair.changes)) for pair in comparison.pairs]
    blocks: list[Block] = [Bullets([*map(Paragraph, about(since))]), *sections]
    return Section("", [*blocks, Bullets(judged)] if (judged := _judged(since)) else blocks)


def for_page(comparison: Comparison, since: Since) -> Section:
    """Make a document with what grew by too much, the requests that changed, and the names of the others."""
    pairs = [(pair, told(pair.changes)) for pair in comparison.pairs]
    changed = [_section(pair, changes) for pair, changes in pairs if any(change.changed for change in changes)]
    same = [pair for pair, changes in pairs if not any(change.changed for change in changes)]
    title = f"mw-budget: {summed(change for _, changes in pairs for change in changes)}"
    blocks: list[Block] = [Bullets([*_judged(since), *map(Paragraph, about(since))]), *changed]
    if same:
        names = Bullets([Paragraph((Code(pair.nodeid), " ", Code(pair.request))) for pair in same])
        were = "1 request" if len(same) == 1 else f"{len(same)} requests"
        blocks.append(Section(f"{were} without a certain change", [names], folded=True))
    return Section(title, blocks, level=2)


def left_out(number: int, of: int) -> Text:
    """Say how many sections of a page were left out."""
    reason = f"{number} more sections are left out: there is no room here. "
    return reason, Code("mwbudget compare"), " prints them all."


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


def _section(pair: Pair, changes: Sequence[Change]) -> Section:
    title = (Code(pair.nodeid), " ", Code(pair.request), f": {summed(changes)}")
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
