"""Time how long requests are in each layer while other requests are under way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ..asgi.calls import Call
from ..asgi.stack import Stack
from ..interpreter.clocks import Clock
from ..model.stack import EntryIndex, nearest_probed
from ..timing.bypasses import Bypasses, Target


def observable(stack: Stack) -> list[EntryIndex]:
    """Return the entries that requests enter with ASGI's arguments, in the thread of the event loop."""
    entries = stack.entries
    return [index for index in stack.probeable if entries[index].hook is None and not entries[index].elsewhere]


@contextmanager
def observed(bypasses: Bypasses, skipped: int, clock: Clock) -> Iterator[Stays]:
    """Time in the block how long requests are in each observable entry, after the first `skipped` requests.

    The trampolines of `bypasses` must be in place, also those of entries that cannot be bypassed.
    """
    stack, indexes = bypasses.stack, observable(bypasses.stack)
    stays = Stays(
        dict.fromkeys(indexes, 0), {index: skipped * len(stack.entries[index].parents) for index in indexes}, clock
    )
    with bypasses.targeted({index: _timed(bypasses, index, stays) for index in indexes}):
        yield stays


def _timed(bypasses: Bypasses, index: EntryIndex, stays: Stays) -> Target:
    own = bypasses.own(index)
    if bypasses.stack.entries[index].ordinary:
        return stays.timed(index, own)

    def timed(call: Call) -> Any:
        def entered(scope: Any, receive: Any, send: Any) -> Any:
            call.receive, call.send = receive, send
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
