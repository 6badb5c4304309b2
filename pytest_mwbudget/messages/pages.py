"""Read the pages, and show them in a terminal.

A page is Markdown: a heading with its id, a summary, and the rest. Links are relative to the folder `docs`, or lead to
another id (`#near-budget`).
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from importlib.resources import files

from ..errors import MwBudgetError, near_miss

LINK = re.compile(r"\[([^\]]+)\]\(([^)\s]+)\)")
RULER = re.compile(r"\|[-|: ]+\|")
# A blank line, or the end of a block of code.
BLOCKS = re.compile(r"(^```\w*\n.*?^```$)|\n{2,}", re.MULTILINE | re.DOTALL)
ITEM = re.compile(r"^(?=- )", re.MULTILINE)


def ids() -> list[str]:
    """List the ids that have a page, sorted."""
    folder = files(__package__)
    return sorted(file.name.removesuffix(".md") for file in folder.iterdir() if file.name.endswith(".md"))


def page(message_id: str) -> str:
    """Read the Markdown of a page; MwBudgetError if no page has the id."""
    known = ids()
    if message_id not in known:
        raise MwBudgetError(
            f"no message has the id {message_id!r}.{near_miss(message_id, known)} `mwbudget explain` lists all ids."
        )
    return (files(__package__) / f"{message_id}.md").read_text(encoding="utf-8")


def summary(message_id: str) -> str:
    """Return the meaning of a message, in one line."""
    return page(message_id).split("\n\n")[1]


def listed() -> Iterator[str]:
    """Yield a line for each id, with its meaning."""
    known = ids()
    width = max(map(len, known))
    for message_id in known:
        yield f"{message_id:{width}}  {summary(message_id)}"


def shown(message_id: str, width: int) -> str:
    """Format a page for a terminal of `width` columns: no links, tables as lists, lines wrapped."""
    blocks = (block for block in BLOCKS.split(page(message_id)) if block and block.strip())
    return "\n\n".join(_shown(block.strip("\n"), width) for block in blocks) + "\n"


def _shown(block: str, width: int) -> str:
    if block.startswith("```"):
        return "\n".join(f"    {line}".rstrip() for line in block.splitlines()[1:-1])
    text = LINK.sub(r"\1", block)
    if text.startswith("|"):
        heads, *rows = map(": ".join, _cells(text))
        return "\n".join([_filled(heads, width), *(_filled(f"- {row}", width, "  ") for row in rows)])
    if text.startswith(">"):
        return textwrap.indent(_filled(re.sub(r"^> ?", "", text, flags=re.MULTILINE), width - 4), "    ")
    # A list may follow a sentence without a blank line.
    parts = [part for part in ITEM.split(text) if part]
    return "\n".join(_filled(part, width, "  " if part.startswith("- ") else "") for part in parts)


def _cells(table: str) -> Iterator[list[str]]:
    for row in table.splitlines():
        if not RULER.fullmatch(row):
            yield [cell.strip() for cell in row.strip("|").split("|")]


def _filled(text: str, width: int, indent: str = "") -> str:
    words = " ".join(text.split())
    return textwrap.fill(words, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
