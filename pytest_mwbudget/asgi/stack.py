"""The stack of a request: its ASGI callables in the order of entry, and the layers to show."""

from __future__ import annotations

from dataclasses import dataclass

from ..interpreter.code_patching import Function
from ..model.stack import Boundary, EntryIndex, Kind, Layer
from .calls import Call, Key, Reader, Spot


@dataclass(frozen=True, slots=True, eq=False)
class Entry(Boundary):
    """One ASGI callable of the stack.

    `function` is the Python function whose call enters it, None when other functions share its code and it cannot be
    told from them. `call` is one of its calls; the arguments at the spots in `telling` are the same in every request
    and tell layers of one function apart: the instance of a class, the bound arguments of a partial. `elsewhere` means
    that it was entered in another thread, where no probe can stand: `function` is None then.
    """

    callee: object
    function: Function | None
    call: Call
    telling: frozenset[Spot]
    kind: Kind
    elsewhere: bool

    @property
    def key(self) -> Key:
        """The identity that tells this entry from others of the same function."""
        return self.call.key_of(self.telling)

    @property
    def ordinary(self) -> bool:
        """Whether its function takes ASGI's arguments last, as most do."""
        return self.function is not None and Reader.of(self.function, self.telling).ordinary

    @property
    def enterable(self) -> bool:
        """Whether its call can be made again for another request: all arguments but ASGI's are the same."""
        return self.function is not None and {spot for spot, _ in self.call.others()} <= self.telling


@dataclass(frozen=True, slots=True)
class HandedOn:
    """Everything inside the layer `to_layer` is measured with that layer, the endpoint too.

    `complete` means that all layers inside it were seen.
    """

    to_layer: str
    because: str
    complete: bool


@dataclass(frozen=True, slots=True)
class Stack:
    """The ASGI callables that the traced request went through.

    `entries` are in order of entry. `endpoint` is the entry with which the endpoint begins: everything from there on is
    inside the innermost layer. `endpoint` is None when a layer answered by itself, and when the endpoint ran in another
    thread: then `handed_on` names the layer with which it is measured. `outside` means that entry 0 is the app object,
    not a layer. `layers` are the rows to show, with their entry, or None for a layer further in that was not entered.
    `tasks` means that more than one task took part, `threads` that more than one thread did. `displaced` means that a
    profiler of the app hid some calls.
    """

    entries: tuple[Entry, ...]
    endpoint: EntryIndex | None
    outside: bool
    layers: tuple[tuple[EntryIndex | None, Layer], ...]
    tasks: bool
    displaced: bool
    threads: bool
    handed_on: HandedOn | None

    @property
    def probeable(self) -> tuple[EntryIndex, ...]:
        """The entries at whose boundary a probe can stand, down to the endpoint's."""
        last = len(self.entries) if self.endpoint is None else self.endpoint + 1
        return tuple(i for i in map(EntryIndex, range(last)) if self.entries[i].function is not None)
