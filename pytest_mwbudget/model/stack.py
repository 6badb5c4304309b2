"""The layers of a stack, and the owners of time and objects in it.

An *entry* is an ASGI callable that requests go through, numbered from the outermost, 0. A *row* is a line of the table,
`Layer.index`. An *owner* is charged with time and objects: entry `i` is owner `i + 1`, the server's end is `HARNESS`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NewType, TypeAlias

Kind: TypeAlias = Literal["middleware", "routing"]

# An entry of the stack, a line of the table, and who is charged with time and objects: three numbers, never mixed up.
EntryIndex = NewType("EntryIndex", int)
RowIndex = NewType("RowIndex", int)
Owner = NewType("Owner", int)

OUTERMOST = EntryIndex(0)

HARNESS = Owner(0)  # the server's end, outside everything
SUSPENDED = Owner(-1)  # from a suspension to the next resumption, which tells whose time it was


def owner_of(entry: EntryIndex) -> Owner:
    """Return the owner that is charged for an entry."""
    return Owner(entry + 1)


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer of a discovered stack.

    `index` counts from the outermost layer, 0. `name` is unique in its stack; `qualname` is `module.QualName`;
    `aliases` are the further names by which a budget may call it. `runs_task` says that it runs what is inside it in a
    task of its own. `merged_with` names the neighbour whose figures
    include this layer's, where no probe can stand at its boundary; `merged_because` says why.
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


@dataclass(frozen=True, slots=True, eq=False)
class Boundary:
    """How requests enter an ASGI callable of the stack.

    `parent` is the index of the entry that calls it first; `parents` has one for each time it is entered in a request.
    `own_task` says that it runs in another task than its parent, which therefore waits for it; `same_send` that it got
    the `send` that its parent got; `plain` that calling it runs its code at once, and returns what is to be awaited.
    """

    parent: EntryIndex | None
    parents: tuple[EntryIndex | None, ...]
    own_task: bool
    same_send: bool
    plain: bool


def callers(entries: Sequence[Boundary], index: EntryIndex, probed: Sequence[EntryIndex]) -> Counter[Owner]:
    """How often each owner enters an entry in one request; entries without a probe stand for their parents."""
    found: Counter[Owner] = Counter()
    for parent in entries[index].parents:
        while parent is not None and parent not in probed:
            parent = entries[parent].parent
        found[HARNESS if parent is None else owner_of(parent)] += 1
    return found


def probed_parent(entries: Sequence[Boundary], index: EntryIndex, probed: Sequence[EntryIndex]) -> tuple[Owner, bool]:
    """The owner right outside an entry, entries without a probe left out, and whether both have the same `send`."""
    parent, same_send = entries[index].parent, entries[index].same_send
    while parent is not None and parent not in probed:
        same_send = same_send and entries[parent].same_send
        parent = entries[parent].parent
    return (HARNESS, False) if parent is None else (owner_of(parent), same_send)
