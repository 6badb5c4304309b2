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
    """One ASGI callable of the stack, or a callable through which a framework enters a layer, which has a `hook`.

    `function` is the Python function whose call enters it, None when other functions share its code and it cannot be
    told from them. `call` is one of its calls; the arguments at the spots in `telling` are the same in every request
    and tell layers of one function apart: the instance of a class, the bound arguments of a partial. No probe can
    stand at an ASGI callable in another thread, nor at one that `outlives` the request: `function` is None then. `seam`
    is that of an app whose framework is known.
    """

    callee: object
    function: Function | None
    call: Call | FrameworkCall
    telling: frozenset[Spot]
    kind: Kind
    hook: Hook | None
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
            Parameters.of(self.function.__code__), self.hook.instance is not None, told=self.hook.told
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
    """The ASGI callables that the traced request went through.

    `entries` are in order of entry, `probeable` those at whose boundary a probe can stand. `endpoint` is the entry with
    which the endpoint begins: everything inside it that is not a layer of a framework. `endpoint` is None when a layer
    answered by itself, and when the endpoint ran in another thread or outlived the request: then `handed_on` names the
    layer with which it is measured. `outside` means that entry 0 is the app object, not a layer. `layers` are the rows
    to show, with their entry, or None for a layer further in that was not entered. `tasks` means that more than one
    task took part, `threads` that more than one thread did. `displaced` means that a profiler of the app hid some
    calls. `uncut` names the app whose framework's layers could not be read, with the error. `parts` are the rows of the
    opened endpoint with their entries, the first of which is the endpoint's; the other ones follow all entries of the
    stack. If there are none, `closed` says why; it is None where the request came to no endpoint. `observed` is what
    the request showed of an opened endpoint. `anew` says that layers were made for the traced request. `strays` are
    entries that only other ways than the traced one enter; they follow all others. `entered` says how often a request
    enters each owner if that is not as often as the traced request did. `changing` says why nothing is judged if the
    stack goes on changing.
    """

    entries: tuple[Entry, ...]
    probeable: tuple[EntryIndex, ...]
    endpoint: EntryIndex | None
    outside: bool
    layers: tuple[tuple[EntryIndex | None, Layer], ...]
    tasks: bool
    displaced: bool
    threads: bool
    handed_on: HandedOn | None
    uncut: str | None = None
    parts: tuple[tuple[EntryIndex, Layer], ...] = ()
    closed: str | None = None
    observed: Observed | None = None
    anew: bool = False
    strays: tuple[EntryIndex, ...] = ()
    entered: Mapping[Owner, int] | None = None
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
        told_of = {id(entry.function): entry.hook.told for entry in self.entries if entry.hook and entry.is_part}
        return tuple(
            replace(entry, hook=replace(entry.hook, told=told_of[id(entry.function)]))
            if entry.hook and entry.is_layer and id(entry.function) in told_of
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
