"""The ledger: requests whose every creation, task and message is charged to the layer that caused it."""

from __future__ import annotations

import tracemalloc
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from ..asgi.discovery import Stack
from ..asgi.loops import Library
from ..errors import MeasurementError, tagged
from ..interpreter.clocks import Clock
from ..interpreter.foreign_tools import uncollected
from .attribution import Call, Charging
from .backend import Counters, Owner, Tally
from .retained import retained

# Below this nothing is typical.
FEWEST = 3


@dataclass(frozen=True, slots=True)
class Page:
    """What one request was charged with, by owner; owners as in `model.stack`, then what is not the request's.

    `tallies` are objects, allocations, bytes and suspensions. `types` are the objects by the name of their type,
    `retained` those of them that stayed alive. `received` and `sent` are messages through an owner's outer boundary.
    """

    tallies: list[Tally]
    types: dict[Owner, Counter[str]]
    tasks: dict[Owner, Counter[str]]
    threads: dict[Owner, Counter[str]]
    received: Counter[Owner]
    sent: Counter[Owner]
    retained: dict[Owner, Counter[str]] = field(default_factory=dict)


class Ledger:
    """The ledger of one stack. `count` makes the requests and returns a page for each."""

    def __init__(self, stack: Stack, counters: Counters, library: Library) -> None:
        self.core = counters.core
        # What cannot be counted, by quantity; more when another tool takes the events away.
        self.why_not = dict(counters.why_not)
        self.charging = Charging(stack, counters.core, library)
        self.other_tracer = False
        self.made_classes = False

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Count from here on; everything is as it was at the end, whatever happens."""
        try:
            self.other_tracer = self.core.start(self.charging.aside)
        except RuntimeError as error:
            raise MeasurementError(
                f"nothing can be counted: {error}; measure one request at a time", message_id="one-at-a-time"
            ) from error
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
        """What else hooks into the interpreter."""
        if tracemalloc.is_tracing():
            tracing = "tracemalloc is tracing: it keeps what it traces, and slows everything down."
            yield tagged(tracing, "active-tool")
        elif self.other_tracer:
            other = "Another reference tracer was at work while objects were counted; it got its events as before."
            yield tagged(other, "active-tool")

    async def count(self, call: Call, requests: int, settle: int, limit_ns: int, clock: Clock) -> list[Page]:
        """A page for each of `requests` requests, after `settle` others; for fewest when the time is over."""
        with uncollected(), self.opened():
            begin = clock()
            for _ in range(settle):
                await self.charging.request(call)
                if clock() - begin > limit_ns:
                    break
            pages: list[Page] = []
            begin = clock()
            while len(pages) < requests and (len(pages) < FEWEST or clock() - begin < limit_ns):
                self.core.period(len(pages))
                self.page()
                await self.charging.request(call)
                pages.append(self.page())
            # What stays alive only until the next request comes is no leak.
            self.core.period(-1)
            await self.charging.request(call)
            return self._with_retained(pages)

    def _with_retained(self, pages: list[Page]) -> list[Page]:
        if "objects" not in self.why_not:
            left = retained(self.core, len(pages), self.charging.aside, classes=self.made_classes)
            for page, alive in zip(pages, left, strict=True):
                for owner, kinds in alive.items():
                    page.retained[owner] = Counter()
                    for kind, number in kinds.items():
                        page.retained[owner][type_name(kind)] += number
        return pages

    def page(self) -> Page:
        """What was charged since the last time."""
        tallies, made = self.core.take()
        types: defaultdict[Owner, Counter[str]] = defaultdict(Counter)
        # All owners create much the same types. The names are not kept longer: that would keep the types alive.
        # By identity: a metaclass may have its own idea of equality.
        kinds = {id(kind): kind for _, kind, _ in made}
        names = {key: type_name(kind) for key, kind in kinds.items()}
        self.made_classes |= any(issubclass(kind, type) for kind in kinds.values())
        for owner, kind, number in made:
            types[owner][names[id(kind)]] += number
        return Page(tallies, dict(types), *self.charging.spawning.take(), *self.charging.messages())


def type_name(kind: type) -> str:
    """`module.qualname` of a class."""
    return f"{kind.__module__}.{kind.__qualname__}"
