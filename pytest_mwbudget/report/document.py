"""A report as data: sections of paragraphs, lists and tables. A content makes it, a format lays it out. Pure.

`lines` lays documents out for a terminal, `gfm` as Markdown, `html` in a page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from ..model.changes import BETTER, WORSE
from ..model.judged import Verdict

# What a format may show by colour or weight: a verdict, a certain change, the costliest layer of a request.
Tone: TypeAlias = Verdict | Literal["worse", "better", "most"] | None

# The least widths of these columns, so that tables which follow each other are aligned.
INTERVAL, BUDGET, VERDICT = 19, 8, 11


class Code(str):
    """A text of the app, such as a name: a format sets it apart, and reads no markup in it."""

    __slots__ = ()


class Strong(str):
    """A text with emphasis, where the format has any."""

    __slots__ = ()


# A text or its parts, which follow each other.
Text: TypeAlias = str | tuple[str, ...]


def parts(text: Text) -> tuple[str, ...]:
    """Return the parts of a text."""
    return (text,) if isinstance(text, str) else text


def plain(text: Text) -> str:
    """Return a text without its markup."""
    return "".join(parts(text))


def tone_of(word: str) -> Tone:
    """Return the tone of a change with this word, None unless it is certain."""
    return "worse" if word in WORSE else "better" if word in BETTER else None


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a table.

    `value` is the number behind the text, to sort by. `details` follow the text, and `budget` is what it is held
    against. `why` says why there is no figure. `brief` is the text with its details where there is little room, None if
    it is the text.
    """

    text: Text = ""
    tone: Tone = None
    value: float | str | None = None
    details: tuple[Text, ...] = ()
    budget: str = ""
    why: str = ""
    brief: str | None = None


def cells(*texts: Text | Cell) -> list[Cell]:
    """Return a cell for each text."""
    return [text if isinstance(text, Cell) else Cell(text) for text in texts]


@dataclass(frozen=True, slots=True)
class Column:
    """The title of a column, what it means, and how it is laid out.

    `short` is the title where there is little room. `least` and `most` are widths in characters, `least` with the gap
    before the column: successive tables are aligned by it. A column that `joins` has details of the column before: it
    may share its cell, and is left out where there is little room.
    """

    title: Text
    align: Literal["left", "right"] = "right"
    short: str | None = None
    least: int = 0
    most: int | None = None
    joins: bool = False
    meaning: str = ""


@dataclass(frozen=True, slots=True)
class TableRow:
    """A row of cells, the first one its name, which is indented by its `level`.

    Only a terminal shows the lines `below` it. A page has its `kind`, and a link to the section with the id `link`.
    """

    cells: Sequence[Cell]
    tone: Tone = None
    below: Sequence[str] = ()
    level: int = 0
    kind: str = ""
    link: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A table, whose first column has names. The last row may be the `total` of the others.

    If the table `fills` the width, names take all the room that is left, so that successive tables are aligned. Where
    columns do not fit, they follow in further `blocks`; else names are shortened.
    """

    columns: Sequence[Column]
    rows: Sequence[TableRow]
    fills: bool = False
    blocks: bool = False
    total: bool = False

    @property
    def body(self) -> Sequence[TableRow]:
        """The rows without the total."""
        return self.rows[:-1] if self.total else self.rows

    def arranged(self, *titles: str | tuple[str, ...]) -> Table:
        """Return the table with these columns. Of several in a tuple, the others are details of the first."""
        known = [plain(column.title) for column in self.columns]
        places: list[list[int]] = []
        for group in titles:
            first, *others = parts(group)
            place = known.index(first)
            places.append([place, *(known.index(title, place) for title in others)])
        rows = [replace(row, cells=[_together(row.cells, group) for group in places]) for row in self.rows]
        return replace(self, columns=[self.columns[place] for place, *_ in places], rows=rows)


def _together(row: Sequence[Cell], places: Sequence[int]) -> Cell:
    first, *others = (row[place] for place in places)
    return replace(first, details=(*first.details, *(other.text for other in others if other.text)))


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A paragraph or an item of a list, with a list below it. A terminal does not wrap what is `whole`."""

    text: Text
    tone: Tone = None
    below: Sequence[Text] = ()
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Bullets:
    """A list."""

    items: Sequence[Paragraph]


@dataclass(frozen=True, slots=True)
class Section:
    """A whole document, or a part of one.

    `test` is the test that it is about, if the title does not name it. A page shows what is `folded` on demand. `level`
    is that of the heading.
    """

    title: Text
    blocks: Sequence[Block]
    test: str = ""
    folded: bool = False
    level: int = 3


Block: TypeAlias = Paragraph | Bullets | Table | Section
