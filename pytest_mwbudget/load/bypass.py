"""Send requests past a layer in place, and time how long requests are in each layer.

While the block of `installed` runs, every function that enters a layer has a trampoline in place of its code. The
trampoline passes a request on to the layer, to the layer's child, or to an observer. Its fraction of a microsecond is
in both bursts of a pair.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ..asgi.calls import Call
from ..asgi.stack import Stack
from ..interpreter.clocks import Clock
from ..model.stack import EntryIndex, Layer, RowIndex, nearest_probed
from ..timing.bypasses import Bypasses, Target, inner_app
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
    ways: list[Way] = []
    why_not: dict[RowIndex, str] = {}
    for index, layer in stack.layers:
        way = _way_past(stack, index, layer, method)
        if isinstance(way, Way):
            ways.append(way)
        else:
            why_not[layer.index] = way
    return Ways(tuple(ways), why_not)


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


class Trampolines(Bypasses):
    """The trampolines of a stack, by which requests can go these ways past layers."""

    def __init__(self, stack: Stack, ways: Iterable[Way], clock: Clock) -> None:
        self.clock = clock
        # The entries that requests enter with ASGI's arguments, in the thread of the event loop.
        self.observable = [
            index
            for index in stack.probeable
            if stack.entries[index].hook is None and not stack.entries[index].elsewhere
        ]
        super().__init__(stack, {way.entry: way.child for way in ways}, self.observable)

    @contextmanager
    def observed(self, skipped: int) -> Iterator[Stays]:
        """Time in the block how long requests are in each entry, after the first `skipped` requests."""
        entries = self.stack.entries
        stays = Stays(
            dict.fromkeys(self.observable, 0),
            {index: skipped * len(entries[index].parents) for index in self.observable},
            self.clock,
        )
        with self.targeted({index: self._timed(index, stays) for index in self.observable}):
            yield stays

    def _timed(self, index: EntryIndex, stays: Stays) -> Target:
        own = self.own(index)
        if self.stack.entries[index].ordinary:
            return stays.timed(index, own)

        def timed(call: Call) -> Any:
            def entered(scope: Any, receive: Any, send: Any) -> Any:
                call.send = send
                return own(call)

            return stays.timed(index, entered)(call.scope, call.receive, call.send)

        return timed


@dataclass(frozen=True, slots=True)
class Stays:
    """How long requests were in each entry, all together: further in included, but not what is outside of it.

    An inner app is outside of itself while it sends, because the layers outside of it may queue messages, and while it
    waits for a piece of the body, which the client may be slow to send. `to_skip` is the number of calls that do not
    count yet.
    """

    total_ns: dict[EntryIndex, int]
    to_skip: dict[EntryIndex, int]
    clock: Clock

    def timed(self, index: EntryIndex, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a coroutine function that enters the layer by `function` and adds the time until it returns."""
        total_ns, to_skip, clock = self.total_ns, self.to_skip, self.clock

        async def observed(scope: Any, receive: Any, send: Any) -> Any:
            outside_ns = 0

            async def sending(message: Any) -> None:
                nonlocal outside_ns
                begin = clock()
                try:
                    await send(message)
                finally:
                    outside_ns += clock() - begin

            async def receiving() -> Any:
                nonlocal outside_ns
                begin = clock()
                message = await receive()
                if message["type"] == "http.request":  # others tell that the client has left, beside the app's work
                    outside_ns += clock() - begin
                return message

            begin = clock()
            try:
                return await function(scope, receiving, sending)
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
