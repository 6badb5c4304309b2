"""Documents as GitHub's Markdown, for job summaries and comments on merge requests."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate

from .document import Block, Bullets, Cell, Code, Paragraph, Section, Strong, Table, Text, parts
from .text import escaped

# Special characters in Markdown, and those that GitHub and GitLab turn into links and mentions. An underscore inside a
# word is not special.
SPECIAL = re.compile(r"[\\`*\[\]<>&|~$@#]|(?<![^\W_])_|_(?![^\W_])|(?<=[Ww]{3})\.|:(?=//)")
# A number or a dash begins a list at the start of a line.
AT_START = re.compile(r"^[-+]|^\d(?=\d*[.)](?:\s|$))")
SPACES = re.compile(r"\s+")
# A comment on a pull request of GitHub has at most 65,536 characters.
MAX_COMMENT = 65_000
INDENT = "&emsp;"
ALIGNED = {"left": "---|", "right": "--:|"}
EMPHASISED = ("fail", "worse", "most")


def render(
    document: Section, limit: int | None = None, left_out: Callable[[int, int], Text] = lambda number, of: ""
) -> str:
    """Render a document in at most `limit` bytes, without its last sections if not all fit.

    `left_out` says how many of how many sections are left out. Without sections the text may still be longer.
    """
    blocks = [*document.blocks]
    places = [place for place, block in enumerate(blocks) if isinstance(block, Section)] or [len(blocks)]
    begin, end = places[0], places[-1] + 1
    head = [_title(document), *map(_laid_out, blocks[:begin])]
    sections, foot = [*map(_laid_out, blocks[begin:end])], [*map(_laid_out, blocks[end:])]
    whole = _joined([*head, *sections, *foot])
    if limit is None or _size(whole) <= limit:
        return whole
    number = len(sections)
    room = limit - _size(_joined([*head, marked(left_out(number, number)), *foot]))
    ends = accumulate(_size(section) + 2 for section in sections)  # plus the blank line that separates two parts
    kept = sections[: sum(end <= room for end in ends)]
    return _joined([*head, *kept, marked(left_out(number - len(kept), number)), *foot])


def _joined(texts: Iterable[str]) -> str:
    return "\n\n".join(texts) + "\n"


def _size(text: str) -> int:
    return len(text.encode())


def _laid_out(block: Block) -> str:
    match block:
        case Paragraph():
            return marked(block.text)
        case Bullets():
            return "\n".join(line for item in block.items for line in _bullet(item))
        case Table():
            return "\n".join(_table(block))
        case Section():
            return "\n\n".join([_title(block), *map(_laid_out, block.blocks), *["</details>"] * block.folded])


def _title(section: Section) -> str:
    title = marked(section.title)
    if section.folded:
        return f"<details><summary>{title}</summary>"
    return f"**{title}** {code(section.test)}" if section.test else f"{'#' * section.level} {title}"


def _bullet(item: Paragraph) -> Iterator[str]:
    yield f"- {marked(item.text)}"
    yield from (f"  - {marked(below)}" for below in item.below)


# ---- tables ----------------------------------------------------------------------------------------------------------


def _table(table: Table) -> Iterator[str]:
    columns = [column for column in table.columns if not column.joins]
    yield _line(marked(column.title) for column in columns)
    yield f"|---|{''.join(ALIGNED[column.align] for column in columns[1:])}"
    for row in table.rows:
        texts: list[str] = []
        for column, cell in zip(table.columns, row.cells, strict=True):
            if column.joins:
                texts[-1] = f"{texts[-1]} {_cell(cell)}".strip()
            else:
                texts.append(_cell(cell))
        yield _line([f"{INDENT * row.level}{texts[0]}", *texts[1:]])


def _line(texts: Iterable[str]) -> str:
    return f"| {' | '.join(texts)} |"


def _cell(cell: Cell) -> str:
    text = ", ".join(marked(each, starts=False) for each in (cell.text, *cell.details) if each)
    return f"**{text}**" if text and cell.tone in EMPHASISED else text


# ---- text ------------------------------------------------------------------------------------------------------------


def marked(text: Text, *, starts: bool = True) -> str:
    """Return a text with its markup. `starts` says whether it stands where a line could begin a list."""
    first, *others = parts(text)
    return "".join([_part(first, starts=starts), *(_part(part, starts=False) for part in others)])


def _part(text: str, *, starts: bool) -> str:
    if isinstance(text, Code):
        return code(text)
    if isinstance(text, Strong):
        return f"**{plain(text)}**"
    return AT_START.sub(_entity, _inline(text)) if starts else _inline(text)


def code(text: str) -> str:
    """Mark up a text of the app as code, so that no name becomes a mention or a link.

    The HTML element can contain any text; in a table, a span between backquotes cannot contain a bar.
    """
    return f"<code>{plain(text)}</code>"


def plain(text: str) -> str:
    """Put `text` in one line without markup: special characters become numeric character references."""
    return AT_START.sub(_entity, _inline(text.strip()))


def _inline(text: str) -> str:
    return SPECIAL.sub(_entity, escaped(SPACES.sub(" ", text)))


def _entity(match: re.Match[str]) -> str:
    return f"&#{ord(match[0])};"
