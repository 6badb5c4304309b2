"""Many results together as lines for a terminal: the matrix of layers and routes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .matrix import Cell, Matrix
from .terminal import MAX_WIDTH, MIN_NAME, Line
from .text import shortened, wrapped

# The most columns of characters for the names of layers, and for whose code they are.
MOST_NAME, MOST_WHOSE = 36, 14
SIGNS = {"not entered": "-", "measured with another layer": "+", "not in this stack": "", "unknown": "?", "": ""}


def matrix(whole: Matrix, width: int) -> Iterator[Line]:
    """Lay out as many of the costliest routes as fit into `width` columns, and say how many there are."""
    width = min(width, MAX_WIDTH) - 1
    names = min(MOST_NAME, max(MIN_NAME, *(len(line.name) + 1 for line in whole.lines)))
    whose = min(MOST_WHOSE, max(len(line.whose) for line in whole.lines) + 1)
    widths = [2 + max(len(_text(line.cells[i])) for line in whole.lines) for i in range(len(whole.routes))]
    number = _fitting(widths, width - names - whose)
    shown = whole.first(number)
    of = f"the costliest {number} of {len(whole.routes)} routes" if number < len(whole.routes) else "all routes"
    yield Line(f"layers and routes: {whole.quantity.title} per request, {of}", "bold")
    for place, route in enumerate(shown.routes, 1):
        yield Line(f"{place:>4}  {shortened(route.title, width - 6)}")
    heads = "".join(f"{place:>{widths[place - 1] - 1}} " for place in range(1, number + 1))
    yield Line(f"{'layer'.ljust(names)}{'from'.ljust(whose)}{heads}".rstrip(), "bold")
    for line in shown.lines:
        cells = "".join(f"{_text(cell):>{widths[i]}}" for i, cell in enumerate(line.cells))
        name = shortened(line.name, names - 1).ljust(names)
        yield Line(f"{name}{shortened(line.whose, whose - 1).ljust(whose)}{cells}".rstrip())
    yield from (Line(text) for text in wrapped(_legend(shown), width))


def _fitting(widths: Sequence[int], room: int) -> int:
    """Return how many of the first columns fit; the first one always does."""
    return max(1, sum(sum(widths[: end + 1]) <= room for end in range(len(widths))))


def _text(cell: Cell) -> str:
    """Return figure and tasks; the last character is that of the mark."""
    found = cell.figure.text if cell.figure else SIGNS[cell.missing]
    tasks = f" {cell.tasks.text}t" if cell.spawned and cell.tasks else ""
    return f"{found}{tasks}{'*' if cell.costliest else ' '}"


def _legend(shown: Matrix) -> str:
    cells = [cell for line in shown.lines for cell in line.cells]
    parts = ["*: costliest layer of its route"]
    if any(cell.spawned for cell in cells):
        parts.append("1t: spawns 1 task")
    missing = {cell.missing for cell in cells}
    parts += [f"{sign}: {why}" for why, sign in SIGNS.items() if why in missing and sign]
    if "not in this stack" in missing:
        parts.append("empty: not in the stack of the route")
    return "; ".join(parts)
