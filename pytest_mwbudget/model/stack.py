"""The layers of a stack, and the owners of time and objects in it.

An *entry* is an ASGI callable that requests pass, numbered from the outermost, 0. A *row* is a line of the table,
`Layer.index`. An *owner* is charged with time and objects: entry `i` is owner `i + 1`, the server side is `HARNESS`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Literal, NewType, TypeAlias

# A frame is a row that is no layer.
Kind: TypeAlias = Literal["middleware", "routing", "part", "dependency", "frame"]

# Three numberings, each with a type of its own so that mypy finds mix-ups.
EntryIndex = NewType("EntryIndex", int)
RowIndex = NewType("RowIndex", int)
Owner = NewType("Owner", int)

OUTERMOST = EntryIndex(0)

# The names of the rows that are no layers.
OUTSIDE, ENDPOINT, TOTAL = "(outside)", "(endpoint)", "(total)"

HARNESS = Owner(0)  # the server side, outside the app
SUSPENDED = Owner(-1)  # between two steps of the event loop
# Before the owner of a step that the request does not wait for: of work beside it, which entered no layer.
ASIDE = Owner(-2)
# The owners after those of the entries, from the last: the null layer, time without a row, work that was not started in
# the request.
NULL, UNOWNED, OTHERS = -3, -2, -1
FURTHER_OWNERS = 3

# Added to an owner in an event log: the owner was entered by a call of its `send`, or of its `receive`.
SENDING, RECEIVING = 1 << 20, 1 << 21
# Added to an owner that receives after the body, for a task that the request does not wait for: the wait for the
# disconnect is no wait of the request.
LISTENING = 1 << 22
# The bits of an owner without these.
OWNER_BITS = SENDING - 1


def owner_of(entry: EntryIndex) -> Owner:
    """Return the owner that is charged for an entry."""
    return Owner(entry + 1)


@dataclass(frozen=True, slots=True)
class Origin:
    """Whose code a layer is.

    `distribution` is the installed distribution that it comes from, None for the project's own code. For a layer made
    of a function, as by `@app.middleware("http")`: `function` is `module.QualName`, `file` and `line` are its place.
    """

    distribution: str | None = None
    function: str | None = None
    file: str | None = None
    line: int | None = None

    @property
    def own(self) -> bool:
        """Whether the layer is the project's own."""
        return self.distribution is None

    @property
    def place(self) -> str:
        """`file:line` of the function, empty for a layer that is not made of one."""
        return f"{self.file}:{self.line}" if self.file else ""


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer of a discovered stack.

    `index` counts from the outermost layer, 0. `name` is unique in its stack; `qualname` is `module.QualName`;
    `aliases` are further names that a budget can use for the layer. `runs_task` says that the layer runs its inner app
    in a separate task. `merged_with` names the neighbour whose figures include this layer's, if its boundary cannot
    have a probe; `merged_because` says why. `origin` says whose code it is, None if that was not stored.
    `adapts` says why the framework moves each request to a thread or back because of the layer, None if it does not.
    """

    index: RowIndex
    name: str
    qualname: str
    kind: Kind
    aliases: frozenset[str] = frozenset()
    entered: bool = True
    runs_task: bool = False
    merged_with: str | None = None
    merged_because: str | None = None
    origin: Origin | None = None
    adapts: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Boundary:
    """How requests enter an ASGI callable of the stack.

    `parent` is the entry that calls the callable first; `parents` has the caller of each call in a request. `own_task`
    says that the callable runs in another task than its parent, which therefore waits; `same_send` and `same_receive`
    that it gets the same `send` or `receive` as its parent; `plain` that a call runs its code at once and returns an
    awaitable. `part_of` is the first entry of its layer if the layer is entered through several callables. `elsewhere`
    says that it was entered in another thread.
    """

    parent: EntryIndex | None
    parents: tuple[EntryIndex | None, ...]
    own_task: bool
    same_send: bool
    same_receive: bool
    plain: bool
    part_of: EntryIndex | None
    elsewhere: bool


def first_part(entries: Sequence[Boundary], index: EntryIndex) -> EntryIndex:
    """Return the first entry of the layer that an entry belongs to."""
    first = entries[index].part_of
    return index if first is None else first


def parts_of(entries: Sequence[Boundary], index: EntryIndex) -> tuple[EntryIndex, ...]:
    """Return the entries of the layer that this entry is the first of: itself and further ones."""
    return (index, *(EntryIndex(i) for i, entry in enumerate(entries) if entry.part_of == index))


def nearest_probed(
    entries: Sequence[Boundary], index: EntryIndex | None, probed: Collection[EntryIndex]
) -> EntryIndex | None:
    """Return the entry if it has a probe, else the nearest one outside of it that has one; None for the server side."""
    return next((entry for entry in outwards(entries, index) if entry in probed), None)


def callers(entries: Sequence[Boundary], index: EntryIndex, probed: Collection[EntryIndex]) -> Counter[Owner]:
    """Count the calls of an entry in a request by owner. A caller without a probe is replaced by its parent."""
    return Counter(_owner(nearest_probed(entries, parent, probed)) for parent in entries[index].parents)


def probed_parent(
    entries: Sequence[Boundary], index: EntryIndex, probed: Collection[EntryIndex]
) -> tuple[Owner, bool, bool]:
    """Return the next probed owner outside an entry, and whether both have the same `send` and the same `receive`."""
    outer = nearest_probed(entries, entries[index].parent, probed)
    inside = [entries[inner] for inner in takewhile(lambda entry: entry != outer, outwards(entries, index))]
    same_send, same_receive = (
        all(getattr(boundary, same) for boundary in inside) for same in ("same_send", "same_receive")
    )
    return _owner(outer), outer is not None and same_send, outer is not None and same_receive


def outwards(entries: Sequence[Boundary], index: EntryIndex | None) -> Iterator[EntryIndex]:
    """Yield the entry, the one that calls it, and so on."""
    while index is not None:
        yield index
        index = entries[index].parent


def _owner(entry: EntryIndex | None) -> Owner:
    return HARNESS if entry is None else owner_of(entry)
