"""Several requests of one app in one table: layers down, requests across, the costliest request first. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from ..model.quantities import Traits
from ..model.results import Result
from ..model.stack import ENDPOINT, TOTAL
from .document import Cell, Code, Column, Table, TableRow, Tone
from .table import US, Figure, Row, created
from .view import View, view

# A row of the table: its name and its qualified name. Numbered names differ where a stack has a class twice.
Key: TypeAlias = tuple[str, str]
NOT_ENTERED, MERGED, ABSENT, UNKNOWN = "not entered", "measured with another layer", "not in this stack", "unknown"
# What stands for the reason why a cell has no figure, where there is little room.
SIGNS: Mapping[str, str] = {NOT_ENTERED: "-", MERGED: "+", ABSENT: "", UNKNOWN: "?"}
# The widths of names: where there is little room, and at most. The most characters of whose code a layer is.
BRIEF_NAME, MOST_NAME, MOST_WHOSE = 20, 35, 13


def approximate(figure: Figure) -> str:
    """Return the text of a figure without its interval: `~` says that the interval is wide."""
    return f"~{figure.text}" if figure.rough and not figure.uninformative else figure.text


@dataclass(frozen=True, slots=True)
class Matrix:
    """Requests whose stacks share a layer, with the place of each in the list that the matrix is made of.

    The table has the names of the rows, whose code they are, and a column for each request. A cell has the time or,
    where nothing was timed, the objects, then the tasks; or the reason why there is no figure.
    """

    quantity: Traits
    places: tuple[int, ...]
    table: Table

    def first(self, number: int) -> Matrix:
        """Return the matrix of the costliest routes, without the layers that none of them has."""
        rows = (replace(row, cells=row.cells[: 2 + number]) for row in self.table.rows)
        kept = [row for row in rows if any(cell.why != ABSENT for cell in row.cells[2:])]
        table = replace(self.table, columns=self.table.columns[: 2 + number], rows=kept)
        return replace(self, places=self.places[:number], table=table)


def matrices(results: Sequence[Result], numbers: Mapping[int, int] | None = None) -> list[Matrix]:
    """Return a matrix for each group of at least two results whose stacks share a layer, the largest group first.

    Results do not know their app. An app that each test makes anew has the same layers each time. `numbers` has the
    numbers of routes by the places of their results, if they are listed elsewhere.
    """
    views = [view(result) for result in results]
    groups = [group for group in _groups([_keys(shown) for shown in views]) if len(group) > 1]
    groups.sort(key=len, reverse=True)
    return [_matrix([(place, results[place].label, views[place]) for place in group], numbers) for group in groups]


def _keys(shown: View) -> list[Key]:
    return [(row.name, row.qualname) for row in shown.layers]


def _groups(stacks: Iterable[Sequence[Key]]) -> list[list[int]]:
    """Group the places of stacks that are connected by layers that they share."""
    groups: list[tuple[set[Key], list[int]]] = []
    for place, stack in enumerate(stacks):
        keys, places, others = set(stack), [place], []
        for known, members in groups:
            if keys & known:
                keys, places = keys | known, [*members, *places]
            else:
                others.append((known, members))
        groups = [*others, (keys, places)]
    return [sorted(places) for _, places in groups]


def _matrix(requests: Sequence[tuple[int, str, View]], numbers: Mapping[int, int] | None) -> Matrix:
    timed = any("us" in shown.total.figures for _, _, shown in requests)
    quantity = US if timed else created(shown.total for _, _, shown in requests)
    ordered = sorted(requests, key=lambda request: -_value(request[2].total, quantity))
    titles = _titles([label for _, label, _ in ordered])
    routes = [
        Column(Code(title), short=f"{numbers[place] if numbers else number} ")
        for number, (title, (place, _, _)) in enumerate(zip(titles, ordered, strict=True), 1)
    ]
    columns = [Column("layer", least=BRIEF_NAME, most=MOST_NAME), Column("from", align="left", most=MOST_WHOSE)]
    rows = [_rows(shown) for _, _, shown in ordered]
    costliest = [_costliest(shown, quantity) for _, _, shown in ordered]
    lines = [_line(key, rows, costliest, quantity) for key in _merged(rows)]
    return Matrix(quantity, tuple(place for place, _, _ in ordered), Table([*columns, *routes], lines, total=True))


def _value(row: Row, quantity: Traits) -> float:
    return row.figures[quantity.name].value if quantity.name in row.figures else 0.0


def _titles(labels: Sequence[str]) -> Iterator[str]:
    """Yield a unique title for each label: equal labels get numbers."""
    count, number = Counter(labels), Counter[str]()
    for label in labels:
        number[label] += 1
        yield f"{label} ({number[label]})" if count[label] > 1 else label


def _rows(shown: View) -> Mapping[Key, Row]:
    return {(row.name, row.qualname): row for row in shown.rows}


def _costliest(shown: View, quantity: Traits) -> Key | None:
    known = [row for row in shown.layers if (us := row.figures.get(quantity.name)) and not us.uninformative]
    most = max(known, key=lambda row: _value(row, quantity), default=None)
    return None if most is None else (most.name, most.qualname)


def _merged(stacks: Sequence[Mapping[Key, Row]]) -> list[Key]:
    """Merge the rows of all stacks: a row that is not in the merged list yet stands behind the row before it."""
    merged: list[Key] = []
    for stack in stacks:
        place = 0
        for key in stack:
            if key in merged:
                place = merged.index(key) + 1
            else:
                merged.insert(place, key)
                place += 1
    frame = [key for key in ((ENDPOINT, ENDPOINT), (TOTAL, TOTAL)) if key in merged]
    return [*(key for key in merged if key not in frame), *frame]


def _line(key: Key, stacks: Sequence[Mapping[Key, Row]], costliest: Sequence[Key | None], quantity: Traits) -> TableRow:
    some = next(stack[key] for stack in stacks if key in stack)
    figures = (_cell(stack.get(key), quantity, key == most) for stack, most in zip(stacks, costliest, strict=True))
    origin = next((row.origin for stack in stacks if (row := stack.get(key)) and row.origin), None)
    name = Cell(some.name if some.is_frame else Code(some.name), why=some.qualname)
    whose = "" if origin is None else origin.distribution or "own"
    return TableRow([name, Cell(whose), *figures], kind=some.kind)


def _cell(row: Row | None, quantity: Traits, costliest: bool) -> Cell:
    """Make a cell with time or objects, and tasks. Its brief text ends with a mark or a space."""
    if row is None:
        return Cell(why=ABSENT, brief=" ")
    figure, tasks = row.figures.get(quantity.name), row.figures.get("tasks")
    why = NOT_ENTERED if not row.entered else MERGED if row.merged_with is not None else "" if figure else UNKNOWN
    details = [why] if why else []
    text = approximate(figure) if figure and not why else ""
    brief = text or SIGNS[why]
    if tasks and tasks.value and why in ("", UNKNOWN):
        details.append(f"{tasks.text} {'task' if tasks.value == 1 else 'tasks'}")
        brief = f"{brief} {tasks.text}t"
    value = figure.value if figure and not why else None
    tone: Tone = "most" if costliest else None
    return Cell(text, tone, value, tuple(details), why=why, brief=f"{brief}{'*' if costliest else ' '}")
