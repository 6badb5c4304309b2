"""Send requests past a layer in place, and time how long requests are in each layer.

While the block of `installed` runs, every function that enters a layer has a trampoline in place of its code. The
trampoline passes a request on, to the layer's child, or to an observer. It stays the same in all bursts, so CPython
keeps specialised code, and its fraction of a microsecond is in both bursts of a pair.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ..asgi.calls import Call, FrameworkReader, Reader
from ..asgi.stack import Entry, Stack
from ..interpreter.clocks import Clock
from ..interpreter.code_patching import Function, patched_code, twin
from ..interpreter.foreign_tools import raised_recursion_limit
from ..model.stack import HARNESS, EntryIndex, Layer, RowIndex, nearest_probed, owner_of
from ..timing.bypasses import inner_app
from ..timing.probe_code import ArgumentSearch, Target, Targets, probe_trampoline
from ..timing.run import SAFE_METHODS


@dataclass(frozen=True, slots=True)
class Way:
    """How a layer can be bypassed: its entry calls `child`, and nothing else."""

    layer: RowIndex
    entry: EntryIndex
    child: EntryIndex


@dataclass(frozen=True, slots=True)
class Ways:
    """The layers that can be bypassed, outermost first, and why the others cannot."""

    found: tuple[Way, ...]
    why_not: dict[RowIndex, str] = field(default_factory=dict)


def ways_past(stack: Stack, method: str) -> Ways:
    """Find the ways past the layers of a stack, as far as its structure tells."""
    found: list[Way] = []
    why_not: dict[RowIndex, str] = {}
    for index, layer in stack.layers:
        way = _way_past(stack, index, layer, method)
        if isinstance(way, Way):
            found.append(way)
        else:
            why_not[layer.index] = way
    return Ways(tuple(found), why_not)


def _way_past(stack: Stack, index: EntryIndex | None, layer: Layer, method: str) -> Way | str:
    """Return the way past a layer, or why there is none."""
    if index is None:
        return "the request did not come to it"
    if method not in SAFE_METHODS:
        return f"a {method} request is sent past no layer"
    if index not in stack.probeable:
        return "it cannot be told from a neighbour, or it runs in another thread"
    inner = inner_app(stack, index)
    return inner if isinstance(inner, str) else Way(layer.index, index, inner)


@dataclass(slots=True)
class _Site:
    """A function that enters entries, with its twin, and what happens to requests by the key of the entry."""

    function: Function
    twin: Function
    reader: Reader | FrameworkReader
    targets: Targets


def _pass_on(hit: Target, leads: tuple[Any, ...], scope: Any, receive: Any, send: Any) -> Any:
    return hit[1](leads, scope, receive, send)


class Trampolines:
    """The trampolines of a stack. At first they only pass requests on."""

    def __init__(self, stack: Stack, clock: Clock) -> None:
        self.stack = stack
        self.clock = clock
        # The search logs nothing in a log of this length.
        self._search = ArgumentSearch(HARNESS, deque((HARNESS, 0)), clock)
        self._sites: dict[int, _Site] = {}
        for index in self.observable:
            function = stack.entries[index].function
            assert function is not None
            if id(function) not in self._sites:
                reader = stack.entries[index].reader
                self._sites[id(function)] = _Site(function, twin(function, function.__code__), reader, {})

    @property
    def observable(self) -> list[EntryIndex]:
        """The entries that requests enter with ASGI's arguments, in the thread of the event loop."""
        return [
            index
            for index in self.stack.probeable
            if self.stack.entries[index].hook is None and not self.stack.entries[index].elsewhere
        ]

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Give all functions their trampolines for the block."""
        with ExitStack() as stack:
            stack.enter_context(raised_recursion_limit(len(self.stack.entries)))
            for site in self._sites.values():
                code = probe_trampoline(site.reader, _pass_on, site.targets, site.twin, self._search)
                stack.enter_context(patched_code(site.function, code))
            yield

    @contextmanager
    def bypassed(self, way: Way | None) -> Iterator[None]:
        """Send requests past a layer in the block; past none without a way."""
        if way is None:
            yield
            return
        straight = _straight_to(self.stack.entries[way.child])
        with self._targeted({way.entry: lambda leads, scope, receive, send: straight(scope, receive, send)}):
            yield

    @contextmanager
    def observed(self, skipped: int) -> Iterator[Stays]:
        """Time in the block how long requests are in each entry, after the first `skipped` requests."""
        entries = self.stack.entries
        stays = Stays(
            dict.fromkeys(self.observable, 0),
            {index: skipped * len(entries[index].parents) for index in self.observable},
            self.clock,
        )
        functions = {}
        for index in self.observable:
            site = self._site_of(index)
            functions[index] = stays.timed(index, self._search.as_target(site.reader, site.twin))
        with self._targeted(functions):
            yield stays

    @contextmanager
    def _targeted(self, functions: dict[EntryIndex, Callable[..., Any]]) -> Iterator[None]:
        placed = [(self._site_of(index).targets, self.stack.entries[index].key) for index in functions]
        for (targets, key), (index, function) in zip(placed, functions.items(), strict=True):
            targets[key] = (owner_of(index), function)
        try:
            yield
        finally:
            for targets, key in placed:
                targets.pop(key, None)

    def _site_of(self, index: EntryIndex) -> _Site:
        return self._sites[id(self.stack.entries[index].function)]


def _straight_to(entry: Entry) -> Callable[..., Awaitable[Any]]:
    """Return a function of scope, receive and send that calls `entry`."""
    function, call = entry.function, entry.call
    assert function is not None
    assert isinstance(call, Call)
    count = call.lead_count
    if call.within is None and not call.named and call.spots == (count, count + 1, count + 2) == _last(call):
        return partial(function, *call.positional[:count])

    def straight(scope: Any, receive: Any, send: Any) -> Any:
        positional, named = call.replaced(scope, receive, send)
        return function(*positional, **named)

    return straight


def _last(call: Call) -> tuple[int, int, int]:
    end = len(call.positional)
    return end - 3, end - 2, end - 1


@dataclass(frozen=True, slots=True)
class Stays:
    """How long requests were in each entry, all together: further in included, but not what is outside of it.

    An inner app is outside of itself while it sends: the layers outside of it may queue messages. `to_skip` is the
    number of calls that do not count yet.
    """

    total_ns: dict[EntryIndex, int]
    to_skip: dict[EntryIndex, int]
    clock: Clock

    def timed(self, index: EntryIndex, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a coroutine function that calls `function` and adds the time until it returns."""
        total_ns, to_skip, clock = self.total_ns, self.to_skip, self.clock

        async def observed(leads: tuple[Any, ...], scope: Any, receive: Any, send: Any) -> Any:
            outside_ns = 0

            async def sending(message: Any) -> None:
                nonlocal outside_ns
                begin = clock()
                try:
                    await send(message)
                finally:
                    outside_ns += clock() - begin

            begin = clock()
            try:
                return await function(*leads, scope, receive, sending)
            finally:
                if to_skip[index]:
                    to_skip[index] -= 1
                else:
                    total_ns[index] += clock() - begin - outside_ns

        return observed

    def own_ns(self, stack: Stack) -> dict[EntryIndex, int]:
        """Return the time in each entry and in none further in."""
        own = dict(self.total_ns)
        for index, total in self.total_ns.items():
            outer = nearest_probed(stack.entries, stack.entries[index].parent, own)
            if outer is not None:
                own[outer] -= total
        return own
