"""The stack of a request: its ASGI callables in the order of entry, and the layers to show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..analysis.ways import Ways
from ..interpreter.code_patching import Function, Parameters
from ..model.endpoint import Observed
from ..model.stack import Boundary, EntryIndex, Kind, Layer, Owner, owner_of
from .calls import Call, FrameworkCall, FrameworkReader, Key, Reader, Spot
from .frameworks.seam import Hook, Seam, stands_for_app


@dataclass(frozen=True, slots=True, eq=False)
class Entry(Boundary):
    """An ASGI callable of the stack, or a callable through which a framework enters a layer, which has a `hook`."""

    callee: object
    # The Python function whose call enters it. None if no probe can stand there: other functions share its code and it
    # cannot be told from them, it is an ASGI callable in another thread, or it `outlives` the request.
    function: Function | None
    # A call of it. The arguments at the spots in `telling` are the same in every request and tell layers of one
    # function apart: the instance of a class, the bound arguments of a partial.
    call: Call | FrameworkCall
    telling: frozenset[Spot]
    kind: Kind
    hook: Hook | None
    # That of an app whose framework is known.
    seam: Seam | None
    outlives: bool = False

    @property
    def key(self) -> Key:
        """The identity that tells this entry from others of the same function."""
        return self.call.key_of(self.telling)

    @property
    def identity(self) -> tuple[int, Key]:
        """Equal for the entries of one callable in two stacks."""
        return id(self.function), self.key

    @property
    def reader(self) -> Reader | FrameworkReader:
        """The reader of its function's calls. The function must have its own code."""
        assert self.function is not None
        if self.hook is None:
            return Reader.of(self.function, self.telling)
        return FrameworkReader(
            Parameters.of(self.function.__code__), self.hook.instance is not None, lead_of=self.hook.lead_of
        )

    @property
    def is_part(self) -> bool:
        """Whether it is entered inside the endpoint, as a part of it."""
        return self.hook is not None and self.hook.part

    @property
    def is_layer(self) -> bool:
        """Whether a framework enters a layer through it."""
        return self.hook is not None and self.hook.layer is not None and not self.hook.part

    @property
    def ordinary(self) -> bool:
        """Whether its function takes ASGI's arguments last, as most do."""
        return self.function is not None and self.reader.ordinary

    @property
    def enterable(self) -> bool:
        """Whether its call can be made again for another request: all arguments but ASGI's are the same."""
        asgi = self.function is not None and self.hook is None
        return asgi and {spot for spot, _ in self.call.others()} <= self.telling


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
    """The ASGI callables that the traced request went through."""

    # In order of entry.
    entries: tuple[Entry, ...]
    # Those at whose boundary a probe can stand.
    probeable: tuple[EntryIndex, ...]
    # The entry with which the endpoint begins: everything inside it that is not a layer of a framework. None if a layer
    # answered by itself, and if the endpoint is `handed_on`.
    endpoint: EntryIndex | None
    # Entry 0 is the app object, not a layer.
    outside: bool
    # The rows to show, with their entry, or None for a layer further in that was not entered.
    layers: tuple[tuple[EntryIndex | None, Layer], ...]
    # More than one task took part, or more than one thread.
    tasks: bool
    threads: bool
    # A profiler of the app hid some calls.
    displaced: bool
    # The layer with which an endpoint is measured that ran in another thread or outlived the request.
    handed_on: HandedOn | None
    # The app whose framework's layers could not be read, with the error.
    uncut: str | None = None
    # The rows of the opened endpoint with their entries, the first of which is the endpoint's; the others follow all
    # entries of the stack.
    parts: tuple[tuple[EntryIndex, Layer], ...] = ()
    # Why there are no parts, None if the request came to no endpoint.
    closed: str | None = None
    # What the request showed of an opened endpoint.
    observed: Observed | None = None
    # Layers were made for the traced request.
    anew: bool = False
    # Entries that only other ways than the traced one enter. They follow all others.
    strays: tuple[EntryIndex, ...] = ()
    # How often a request enters each owner if that is not as often as the traced request did.
    entered: Mapping[Owner, int] | None = None
    # Why nothing is judged if the stack goes on changing.
    changing: str | None = None

    @property
    def watched(self) -> tuple[EntryIndex, ...]:
        """The entries by which the ways of requests are told apart, without those of parts."""
        return tuple(index for index in (*self.probeable, *self.strays) if not self.entries[index].is_part)

    def ways(self) -> Ways:
        """Return the ways of its requests, none yet."""
        owners = {owner_of(index): len(self.entries[index].parents) for index in self.watched}
        return Ways(owners if self.entered is None else {owner: self.entered[owner] for owner in owners})

    def as_entered(self, before: Stack, ways: Ways) -> Stack:
        """Return this stack with how often it is entered, if requests to the same stack `before` took these `ways`.

        Requests that the app makes to itself enter the stack and are not traced. So a stack that is traced again and
        shows the same may be entered more often than was traced.
        """
        same = [self.entries[index].identity for index in self.watched] == [
            before.entries[index].identity for index in before.watched
        ]
        entered = ways.entered()
        traced = self.ways().traced
        more = entered.keys() == traced.keys() and all(entered[owner] >= times for owner, times in traced.items())
        return replace(self, entered=entered) if same and more else self

    @property
    def settled(self) -> bool:
        """Whether two requests show the stack: the endpoint was entered, and no layer was made anew."""
        answered = self.endpoint is None and self.handed_on is None
        return not self.entries or not (answered or self.anew)

    @property
    def part_entries(self) -> tuple[EntryIndex, ...]:
        """The entries of the parts, without that of the endpoint."""
        return tuple(EntryIndex(index) for index, entry in enumerate(self.entries) if entry.is_part)

    @property
    def opened(self) -> Stack:
        """The same stack with probes at the parts too."""
        return replace(self, entries=self._told_apart, probeable=(*self.probeable, *self.part_entries))

    @property
    def inside(self) -> Stack:
        """The endpoint as a stack of its own, whose layers are the parts. What is outside has no probe.

        A method of a middleware that is called inside the endpoint has a probe and no row: its time is in no part.
        """
        assert self.endpoint is not None
        entries = self._told_apart
        methods = (i for i in self.probeable if self.entries[i].is_layer and self.entries[i].parent == self.endpoint)
        parts = [self.entries[index] for index in self.part_entries]
        return replace(
            self,
            entries=entries,
            probeable=(self.endpoint, *self.part_entries, *methods),
            endpoint=None,
            outside=False,
            layers=self.parts,
            tasks=self.tasks or any(entry.own_task for entry in parts),
            threads=self.threads or any(entry.elsewhere for entry in parts),
        )

    @property
    def _told_apart(self) -> tuple[Entry, ...]:
        """The entries, where a layer that shares its function with a part is told from others as the part is."""
        lead_of = {id(entry.function): entry.hook.lead_of for entry in self.entries if entry.hook and entry.is_part}
        return tuple(
            replace(entry, hook=replace(entry.hook, lead_of=lead_of[id(entry.function)]))
            if entry.hook and entry.is_layer and id(entry.function) in lead_of
            else entry
            for entry in self.entries
        )

    @property
    def without_asgi(self) -> bool:
        """Whether the app object stands for a handler that the test's client calls without ASGI."""
        return self.outside and stands_for_app(self.entries[0].callee)

    @property
    def probed_elsewhere(self) -> bool:
        """Whether a layer that has a probe runs in another thread."""
        return any(self.entries[index].elsewhere for index in self.probeable)
