"""Make requests, and charge their objects, tasks and messages to the layers that cause them."""

from __future__ import annotations

import gc
import tracemalloc
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from ..asgi.loops import Library
from ..asgi.naming import type_name
from ..asgi.stack import Stack
from ..errors import tagged
from ..interpreter.clocks import Clock
from ..interpreter.foreign_tools import garbage_collection_paused
from ..model.stack import Owner
from .attribution import Call, Charging
from .backend import Backend, start
from .python_core import Tally
from .retained import retained
from .unseen import reasons, unseen_work

# With fewer requests there is no typical request.
FEWEST = 3
# The garbage of this many further requests is collected at a time.
COLLECTED_EVERY = 250
NS_PER_S = 1e9


@dataclass(frozen=True, slots=True)
class RequestCharges:
    """Hold what one request was charged, by owner: those of `model.stack`, then those outside the request.

    `types` are the objects by the name of their type, `retained` those of them that stayed alive. `received` and `sent`
    are messages through an owner's outer boundary. `others` are events in threads that nobody was seen to hand work to,
    by the thread's ident. `entered` says how often each owner was entered.
    """

    tallies: list[Tally]
    types: dict[Owner, Counter[str]]
    tasks: dict[Owner, Counter[str]]
    threads: dict[Owner, Counter[str]]
    received: Counter[Owner]
    sent: Counter[Owner]
    others: Mapping[int, int] = field(default_factory=dict)
    retained: dict[Owner, Counter[str]] = field(default_factory=dict)
    entered: Counter[Owner] = field(default_factory=Counter)


class CountingRun:
    """Count requests to one stack."""

    def __init__(self, stack: Stack, backend: Backend, library: Library, *, delayed: bool = False) -> None:
        self.core = backend.core
        # Why a quantity cannot be counted. Grows when another tool takes the events away.
        self.why_not = dict(backend.why_not)
        self.charging = Charging(stack, backend.core, library, delayed=delayed)
        # By owner, why it was charged too little memory.
        self.too_low: dict[Owner, str] = {}
        self.other_tracer = False
        self.made_classes = False
        # The requests that were made after those counted.
        self.further = 0

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Count in the block, and restore everything at its end."""
        self.other_tracer = start(self.core, self.charging.aside)
        try:
            with self.charging.placed():
                yield
        finally:
            self._note_lost(*self.core.stop())

    def _note_lost(self, objects: bool, allocations: bool) -> None:
        reason = "another tool put its own hook in place of this one during the count"
        if objects:
            self.why_not |= dict.fromkeys(("objects", "retained"), reason)
        if allocations:
            self.why_not |= dict.fromkeys(("allocations", "bytes"), reason)

    def notes(self) -> Iterator[str]:
        """Tell which other tools hook into the interpreter, and which tasks and threads were not seen."""
        if tracemalloc.is_tracing():
            tracing = "tracemalloc is tracing: it keeps what it traces, and slows everything down."
            yield tagged(tracing, "active-tool")
        elif self.other_tracer:
            other = "Another reference tracer was active while objects were counted; it got its events as before."
            yield tagged(other, "active-tool")
        yield from dict.fromkeys(self.charging.spawning.unseen)

    async def count(
        self, call: Call, requests: int, settle: int, limit_ns: int, clock: Clock, further: int = 1
    ) -> list[RequestCharges]:
        """Return the charges of `requests` requests, made after `settle` others; of fewer at the time limit.

        What they retain is alive after `further` requests, of which fewer are made at the time limit too.
        """
        with garbage_collection_paused(), self.opened():
            begin = clock()
            for _ in range(settle):
                await self.charging.request(call)
                if clock() - begin > limit_ns:
                    break
            charges: list[RequestCharges] = []
            begin = clock()
            spent_ns = 0
            while len(charges) < requests and (len(charges) < FEWEST or clock() - begin < limit_ns):
                self.core.period(len(charges))
                self._take()
                begin_request = clock()
                await self.charging.request(call)
                charges.append(self._take())
                spent_ns += clock() - begin_request
            # An object that stays alive only until the next request is no leak.
            self.core.period(-1)
            begin = clock()
            while self.further < further and (not self.further or clock() - begin < limit_ns):
                await self.charging.request(call)
                self._take()
                self.further += 1
                if self.further % COLLECTED_EVERY == 0:
                    gc.collect(0)
            others, spawning = [request.others for request in charges], self.charging.spawning
            unseen = unseen_work(others, spent_ns / NS_PER_S, self._others, spawning.notified, spawning.answered)
            self.too_low = reasons(unseen, self.charging.owners)
            if "objects" not in self.why_not:
                left = retained(self.core, len(charges), self.charging.aside, classes=self.made_classes)
                for request, alive in zip(charges, left, strict=True):
                    request.retained.update(alive)
            return charges

    def _others(self) -> dict[int, int]:
        """Return the events since the last call in threads that nobody was seen to hand work to."""
        return self.charging.spawning.strangers(self.core.other_threads())

    def _take(self) -> RequestCharges:
        """Return what was charged since the last call."""
        tallies, made = self.core.take()
        types: defaultdict[Owner, Counter[str]] = defaultdict(Counter)
        # By identity: a metaclass may define equality. Not kept longer than this call, which would keep classes alive.
        kinds = {id(kind): kind for _, kind, _ in made}
        names = {key: type_name(kind) for key, kind in kinds.items()}
        self.made_classes |= any(issubclass(kind, type) for kind in kinds.values())
        for owner, kind, number in made:
            types[owner][names[id(kind)]] += number
        spawned, messages = self.charging.spawning.take(), self.charging.messages()
        entered = self.charging.entries()
        return RequestCharges(tallies, dict(types), *spawned, *messages, self._others(), entered=entered)
