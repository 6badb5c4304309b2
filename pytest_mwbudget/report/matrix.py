"""Several requests of one app in one table: layers down, requests across, the costliest request first. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from ..model.quantities import TRAITS, Traits
from ..model.results import Result
from ..model.stack import ENDPOINT, TOTAL
from .document import Cell as TableCell
from .document import Code, Column, Table, TableRow
from .table import US, Figure, Row
from .view import View, view

# A row of the table: its name and its qualified name. Numbered names differ where a stack has a class twice.
Key: TypeAlias = tuple[str, str]
# Why a cell has no figure.
Missing: TypeAlias = Literal["", "not entered", "measured with another layer", "not in this stack", "unknown"]
# What stands for these reasons where there is little room.
SIGNS: Mapping[Missing, str] = {
    "not entered": "-",
    "measured with another layer": "+",
    "not in this stack": "",
    "unknown": "?",
    "": "",
}
# The widths of names: where there is little room, and at most. The most characters of whose code a layer is.
BRIEF_NAME, MOST_NAME, MOST_WHOSE = 20, 35, 13


def approximate(figure: Figure) -> str:
    """Return the text of a figure without its interval: `~` says that the interval is wide."""
    return f"~{figure.text}" if figure.rough and not figure.uninformative else figure.text


@dataclass(frozen=True, slots=True)
class Cell:
    """What a row costs in one request: time, or objects where nothing was timed, and tasks.

    `missing` says why there is no figure. `costliest` marks the layer that takes the most in its request.
    """

    figure: Figure | None = None
    tasks: Figure | None = None
    missing: Missing = ""
    costliest: bool = False

    @property
    def text(self) -> str:
        """The formatted figure; `~` marks a rough time and a count that varies. Empty without a figure."""
        return "" if self.figure is None else approximate(self.figure)

    @property
    def spawned(self) -> str:
        """The number of tasks with its unit, empty if there are none."""
        if self.tasks is None or not self.tasks.value:
            return ""
        return f"{self.tasks.text} {'task' if self.tasks.value == 1 else 'tasks'}"

    def shown(self) -> TableCell:
        """Make a cell of a table."""
        tasks = f" {self.tasks.text}t" if self.spawned and self.tasks else ""
        brief = f"{self.text or SIGNS[self.missing]}{tasks}{'*' if self.costliest else ' '}"
        missing = "" if self.missing == "not in this stack" else self.missing
        return TableCell(
            self.text,
            "most" if self.costliest else None,
            self.figure.value if self.figure else None,
            tuple(filter(None, [missing, self.spawned])),
            why=self.missing,
            brief=brief,
        )


@dataclass(frozen=True, slots=True)
class Line:
    """A row of the matrix with a cell for each route. `whose` names whose code the layer is, in a word."""

    name: str
    qualname: str
    kind: str
    whose: str
    cells: tuple[Cell, ...]

    def row(self) -> TableRow:
        """Make a row of a table."""
        name = self.name if self.kind == "frame" else Code(self.name)
        names = (TableCell(name, why=self.qualname), TableCell(self.whose))
        return TableRow([*names, *(cell.shown() for cell in self.cells)], kind=self.kind)


@dataclass(frozen=True, slots=True)
class Route:
    """A column: its title, and the place of its result in the list that the matrix is made of."""

    title: str
    place: int


@dataclass(frozen=True, slots=True)
class Matrix:
    """Requests whose stacks share a layer. The last line is the total."""

    quantity: Traits
    routes: tuple[Route, ...]
    lines: tuple[Line, ...]

    def first(self, number: int) -> Matrix:
        """Return the matrix of the costliest routes, without the layers that none of them has."""
        lines = (replace(line, cells=line.cells[:number]) for line in self.lines)
        kept = tuple(line for line in lines if any(cell.missing != "not in this stack" for cell in line.cells))
        return replace(self, routes=self.routes[:number], lines=kept)

    def table(self, numbers: Mapping[int, int] | None = None) -> Table:
        """Make a table with a column for each route. `numbers` has the numbers of routes by their places."""
        routes = [
            Column(Code(route.title), short=f"{numbers[route.place] if numbers else number} ")
            for number, route in enumerate(self.routes, 1)
        ]
        columns = [Column("layer", least=BRIEF_NAME, most=MOST_NAME), Column("from", align="left", most=MOST_WHOSE)]
        return Table([*columns, *routes], [line.row() for line in self.lines])


def matrices(results: Sequence[Result]) -> list[Matrix]:
    """Return a matrix for each group of at least two results whose stacks share a layer, the largest group first.

    Results do not know their app. An app that each test makes anew has the same layers each time.
    """
    views = [view(result) for result in results]
    groups = [group for group in _groups([_keys(shown) for shown in views]) if len(group) > 1]
    groups.sort(key=len, reverse=True)
    return [_matrix([(place, results[place].label, views[place]) for place in group]) for group in groups]


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


def _matrix(requests: Sequence[tuple[int, str, View]]) -> Matrix:
    timed = any("us" in shown.total.figures for _, _, shown in requests)
    quantity = US if timed else TRAITS["objects"]
    ordered = sorted(requests, key=lambda request: -_value(request[2].total, quantity))
    titles = _titles([label for _, label, _ in ordered])
    rows = [_rows(shown) for _, _, shown in ordered]
    costliest = [_costliest(shown, quantity) for _, _, shown in ordered]
    return Matrix(
        quantity=quantity,
        routes=tuple(Route(title, place) for title, (place, _, _) in zip(titles, ordered, strict=True)),
        lines=tuple(_line(key, rows, costliest, quantity) for key in _merged(rows)),
    )


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


def _line(key: Key, stacks: Sequence[Mapping[Key, Row]], costliest: Sequence[Key | None], quantity: Traits) -> Line:
    some = next(stack[key] for stack in stacks if key in stack)
    cells = (_cell(stack.get(key), quantity, key == most) for stack, most in zip(stacks, costliest, strict=True))
    origin = next((row.origin for stack in stacks if (row := stack.get(key)) and row.origin), None)
    whose = "" if origin is None else origin.distribution or "own"
    return Line(some.name, some.qualname, some.kind, whose, tuple(cells))


def _cell(row: Row | None, quantity: Traits, costliest: bool) -> Cell:
    if row is None:
        return Cell(missing="not in this stack")
    if not row.entered:
        return Cell(missing="not entered")
    if row.merged_with is not None:
        return Cell(missing="measured with another layer")
    figure, tasks = row.figures.get(quantity.name), row.figures.get("tasks")
    return Cell(figure, tasks, "" if figure is not None else "unknown", costliest)
