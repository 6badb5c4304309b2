"""Documents as lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import TypeAlias

from .document import Block, Bullets, Cell, Code, Column, Paragraph, Section, Table, Tone, parts, plain
from .text import distinct, printable, shortened, wrapped

# A name of pytest's terminal markup.
Style: TypeAlias = str
STYLES: Mapping[Tone, Style] = {
    "pass": "green",
    "fail": "red",
    "undecided": "yellow",
    "worse": "red",
    "better": "green",
    "most": "",
    None: "",
}
MAX_WIDTH = 120
# Names are not cut below this width; a narrower terminal wraps the line.
MIN_NAME = 12
# The share of the width for names, if the columns need several blocks.
NAME_SHARE = 0.3
# Before each column but the first.
GAP = "  "
# Indents an item below another. It is not wrapped, so a name stays beside its number.
INDENT = "    "
# Stands for a space of a name or a command, so that wrapping keeps it on one line, to be pasted.
TIE = "␣"


@dataclass(frozen=True, slots=True)
class Line:
    """A line of text with one markup for the whole line."""

    text: str
    style: Style = ""


def line_width(width: int) -> int:
    """Return the width of the lines in a terminal of `width` columns."""
    return min(width, MAX_WIDTH) - 1


def render(document: Section, width: int) -> Iterator[Line]:
    """Render a document, without its title, for a terminal of `width` columns."""
    return laid_out(document.blocks, line_width(width))


def laid_out(blocks: Sequence[Block], width: int) -> Iterator[Line]:
    """Lay blocks out in lines of at most `width` characters, with empty lines between some."""
    for before, block in pairwise([None, *blocks]):
        if before is not None and _are_apart(before, block):
            yield Line("")
        match block:
            case Section():
                title = printable(plain(block.title))
                yield Line(shortened(f"{title}, {block.test}", width) if block.test else title, "bold")
                yield from laid_out(block.blocks, width)
            case Table():
                yield from table(block, width)
            case Bullets():
                yield from laid_out(block.items, width)
            case Paragraph():
                yield from paragraph(block, width)


def _are_apart(before: Block, block: Block | None) -> bool:
    """Whether an empty line stands between two blocks: round a section, and before a table that no list leads to."""
    if isinstance(before, Section) or isinstance(block, Section):
        return True
    return isinstance(block, Table) and not isinstance(before, Bullets)


def paragraph(item: Paragraph, width: int) -> Iterator[Line]:
    """Lay out a paragraph with the list below it."""
    text = "".join(part.replace(" ", TIE) if isinstance(part, Code) else part for part in parts(item.text))
    for line in [printable(text)] if item.whole else wrapped(text, width):
        yield Line(line.replace(TIE, " "), STYLES[item.tone])
    yield from (Line(f"{INDENT}{printable(plain(below))}") for below in item.below)


# ---- tables ----------------------------------------------------------------------------------------------------------


def table(whole: Table, width: int) -> Iterator[Line]:
    """Lay out a table within `width` characters."""
    names, *others = _sized(whole)
    if names.width + sum(column.width for column in others) > width:
        others = [column for column in others if not column.column.joins]
    for number, block in enumerate(_blocks(others, width) if whole.blocks else [others]):
        if number:
            yield Line("")
        room = max(names.column.least or MIN_NAME, width - sum(column.width for column in block))
        name_width, cut = (room, room - 1) if whole.fills else (min(names.width, room),) * 2
        columns = [replace(names, width=name_width, texts=distinct(names.texts, cut)), *block]
        for place, texts in enumerate(zip(*(column.texts for column in columns), strict=True)):
            row = whole.rows[place - 1] if place else None
            text = row_of(texts, [-column.width if column.is_left else column.width for column in columns])
            yield Line(text, STYLES[row.tone] if row else "bold")
            if row and not number:
                yield from map(Line, row.below)


def row_of(texts: Iterable[str], widths: Iterable[int]) -> str:
    """Lay out a row in columns of these widths; those below 0 are left-aligned."""
    cells = (text.ljust(-width) if width < 0 else text.rjust(width) for text, width in zip(texts, widths, strict=True))
    return "".join(cells).rstrip()


@dataclass(frozen=True, slots=True)
class _Sized:
    """A column with its title and texts, and the width that they need with the gap before them."""

    column: Column
    texts: Sequence[str]
    width: int
    is_left: bool = True


def _sized(whole: Table) -> Iterator[_Sized]:
    for place, column in enumerate(whole.columns):
        head = printable(plain(column.title)) if column.short is None else column.short
        texts = [_brief(row.cells[place]) for row in whole.rows]
        if not place:
            texts = [f"{GAP * row.level}{text}" for row, text in zip(whole.rows, texts, strict=True)]
            longest = max(map(len, [head, *texts]))
            yield _Sized(column, [head, *texts], min(longest, column.most or longest))
            continue
        if column.most is not None:
            texts = [shortened(text, column.most) for text in texts]
        is_left, gap = column.align == "left", len(GAP)
        width = max([column.least or gap + len(head), *(gap + len(text) for text in texts)])
        yield _Sized(column, [f"{GAP * is_left}{text}" for text in (head, *texts)], width, is_left)


def _brief(cell: Cell) -> str:
    return printable(plain(cell.text)) if cell.brief is None else cell.brief


def fitting(whole: Table, width: int) -> int:
    """Return how many of the right-aligned columns fit beside brief names; the first one always does."""
    names, *others = _sized(whole)
    left = width - min(names.width, names.column.least) - sum(column.width for column in others if column.is_left)
    ends = accumulate(column.width for column in others if not column.is_left)
    return max(1, sum(end <= left for end in ends))


def _blocks(columns: Sequence[_Sized], width: int) -> Iterator[list[_Sized]]:
    """Yield all columns if they fit, else blocks that leave room for the names; the first has what is left-aligned."""
    if MIN_NAME + sum(column.width for column in columns) <= width:
        yield [*columns]
        return
    last = [column for column in columns if column.is_left]
    names, block = max(MIN_NAME, round(NAME_SHARE * width)), list[_Sized]()
    for column in columns:
        if column.is_left:
            continue
        if block and names + sum(each.width for each in (*block, column, *last)) > width:
            yield [*block, *last]
            block, last = [], []
        block.append(column)
    yield [*block, *last]
