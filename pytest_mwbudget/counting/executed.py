"""Count the code that requests execute: bytecode instructions, calls, Python functions entered. From Python 3.12 on.

Counted code runs instrumented until it runs again without counting, and has lost what CPython specialised in it. So
these requests are made apart from all others, before the app is warmed up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ..analysis.ways import why_mixed
from ..asgi.loops import Library
from ..asgi.stack import Stack
from ..interpreter.clocks import Clock
from ..interpreter.foreign_tools import garbage_collection_paused
from ..model.estimate import Nanoseconds
from ..model.quantities import EXECUTED
from ..model.stack import Owner
from .attribution import Call, Charging
from .backend import Backend, start
from .charged_requests import NS_PER_S
from .events import OWN_FILES, Undisturbed, counting_events
from .unseen import reasons, unseen_work

# What one owner executed in one request: the quantities in EXECUTED.
Numbers: TypeAlias = tuple[int, int, int]

# Fewer requests cannot agree. In a slow app so many are made until the last ones do.
FEWEST, MOST_OF_SLOW = 2, 5


@dataclass(frozen=True, slots=True)
class Executed:
    """What requests executed, by owner.

    `why_not` says by quantity why it is not counted, and then there may be no requests. `too_low` says by owner why
    code that it caused is missing.
    """

    requests: Sequence[Sequence[Numbers]] = ()
    why_not: Mapping[str, str] = field(default_factory=dict)
    too_low: Mapping[Owner, str] = field(default_factory=dict)

    @classmethod
    def unknown(cls, reason: str) -> Executed:
        """Return what is known if nothing can be counted."""
        return cls(why_not=dict.fromkeys(EXECUTED, reason))


@dataclass(frozen=True, slots=True)
class Pace:
    """How many requests are made: until `agreeing` in a row execute the same, at most `most`.

    After `limit_ns` two that agree are enough.
    """

    agreeing: int
    most: int
    limit_ns: Nanoseconds


class ExecutedRun:
    """Count the code that requests to one stack execute."""

    def __init__(self, stack: Stack, backend: Backend, library: Library, *, delayed: bool = False) -> None:
        self.core: Any = backend.core
        self.why_not = next((backend.why_not[quantity] for quantity in EXECUTED if quantity in backend.why_not), None)
        self.charging = Charging(stack, backend.core, library, delayed=delayed)

    async def count(self, call: Call, pace: Pace, clock: Clock) -> Executed:
        """Make requests until enough of them in a row executed the same, and return the last ones."""
        if self.why_not is not None:
            return Executed.unknown(self.why_not)
        start(self.core, self.charging.aside, OWN_FILES)
        try:
            with garbage_collection_paused(), self.charging.placed(), counting_events(self.core):
                return await self._counted(call, pace, clock)
        finally:
            self.core.stop()

    async def _counted(self, call: Call, pace: Pace, clock: Clock) -> Executed:
        core, spawning = self.core, self.charging.spawning
        requests: list[list[Numbers]] = []
        others: list[dict[int, int]] = []
        undisturbed = Undisturbed(core)
        stack = self.charging.stack
        ways = stack.ways()
        begin = clock()
        while not _enough(requests, len(others), pace, clock() - begin):
            self._take()
            await self.charging.request(call)
            numbers, events = self._take()
            if ways.add(self.charging.entries()):
                requests.append(numbers)
            others.append(events)
        seconds = (clock() - begin) / NS_PER_S
        if (why := undisturbed.why_not()) is not None:
            return Executed.unknown(why)
        if len(requests) < FEWEST:
            return Executed.unknown(why_mixed(ways))
        unseen = unseen_work(others, seconds, lambda: self._take()[1], spawning.notified, spawning.answered)
        # The first requests fill caches.
        last = min(pace.agreeing, max(FEWEST, len(requests) // 2))
        return Executed(requests[-last:], too_low=reasons(unseen, self.charging.owners))

    def _take(self) -> tuple[list[Numbers], dict[int, int]]:
        """Return what was executed since the last call: by row's owner, and events in threads of nobody."""
        spawning = self.charging.spawning
        spawning.take()
        self.charging.messages()
        rows = len(self.charging.stack.entries) + 1
        return self.core.take_executed()[:rows], spawning.strangers(self.core.other_threads())


def _enough(requests: Sequence[Sequence[Numbers]], made: int, pace: Pace, spent_ns: Nanoseconds) -> bool:
    """Whether the last requests of the traced way agree in every row, or as many were made as may be. Pure."""
    if spent_ns >= pace.limit_ns:
        return _agree(requests, FEWEST) or made >= MOST_OF_SLOW
    return _agree(requests, pace.agreeing) or made >= pace.most


def _agree(requests: Sequence[Sequence[Numbers]], number: int) -> bool:
    """Whether so many requests were made last that executed the same. Pure."""
    last = requests[-number:]
    return len(last) == number and all(request == last[0] for request in last)
