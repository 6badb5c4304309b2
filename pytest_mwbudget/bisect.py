"""Take the samples: rounds of genuine requests through the stack. The clock is injected.

*Split*: every boundary has its probe, so every request measures every layer; in each round, in a fresh random order,
each boundary once holds the null layer. A layer's overhead is the time it owned, less what its probes cost there.

*Bypass*: a layer that runs what is inside it in a task of its own shares the event loop's work with its neighbours,
and who pays for it depends on who comes first. For such a layer the time inside its boundary is measured in pairs of
blocks, with the layer and with requests passing straight to its child, in random order: the difference is what
removing it saves.

*Whole*: the app with no probe at all, for the books.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable
from statistics import median
from typing import Protocol

from .asgi import Observer
from .boundaries import HARNESS, Clock, Probes
from .estimates import Samples, Series
from .model import Nanoseconds
from .timeline import Spent, spent

# Calls that are thrown away after the code of the app was switched, until CPython has specialised it again.
SETTLE_CALLS = 64
SETTLE_NS = 40_000_000
BLOCK_CALLS = 4
BLOCK_SETTLE_CALLS = 1
# One request in so many runs without steppers, to learn what they cost.
STEPLESS_EVERY = 8


class TimedCall(Protocol):
    """One request through the app, observed or not; returns the nanoseconds inside the app when it was not."""

    def __call__(self, observer: Observer | None) -> Awaitable[Nanoseconds]: ...


class Bisection:
    """Collects the samples of one stack, leg by leg."""

    def __init__(self, probes: Probes, call: TimedCall, clock: Clock, rng: random.Random) -> None:
        self.probes = probes
        self.call = call
        self.clock = clock
        self.rng = rng
        self.samples = Samples.of(probes.null_owner + 1, probes.probed)
        self.refused: dict[int, str] = {}

    async def whole_leg(self, count: int, deadline_ns: int) -> None:
        """Up to `count` requests through the app as it is, until the deadline."""
        await self._settle(None, deadline_ns)
        for _ in range(count):
            reference = self._reference()
            self.samples.whole.add(await self.call(None), reference)
            self.samples.requests += 1
            if self.clock() >= deadline_ns:
                return

    async def split_leg(self, count: int, deadline_ns: int) -> None:
        """Rounds of about `count` requests in all with every probe in place, until the deadline."""
        probed = self.probes.probed
        if not probed:
            return
        with self.probes.installed(probed):
            await self._settle(self.probes.watch, deadline_ns)
            for _ in range(max(1, round(count / len(probed)))):
                for index in self.rng.sample(probed, len(probed)):
                    with self.probes.doubled(index):
                        await self._split_request(index)
                    if self.clock() >= deadline_ns:
                        return
                self.samples.rounds += 1

    async def _split_request(self, doubled: int) -> None:
        samples, probes = self.samples, self.probes
        stepless = probes.stack.tasks and self.rng.randrange(STEPLESS_EVERY) == 0
        reference = self._reference()
        probes.stepping = probes.stack.tasks and not stepless
        await self.call(probes.watch)
        samples.requests += 1
        used = spent(probes.log, probes.null_owner + 1)
        inside = sum(used.ns) - used.ns[HARNESS]
        if stepless:
            samples.inside_stepless.add(inside, reference)
            return
        samples.inside.add(inside, reference)
        samples.messages = used.messages
        samples.null[doubled].add(used.ns[probes.null_owner], reference)
        self._record(used, reference)

    def _record(self, used: Spent, reference: float) -> None:
        for series, ns in zip(self.samples.owned, used.ns, strict=True):
            series.add(ns, reference)
        for series, times in zip(self.samples.resumed, used.resumed, strict=True):
            series.add(times, reference)

    async def bypass_leg(self, index: int, child: int, rounds: int, deadline_ns: int) -> None:
        """Pairs of blocks with and without layer `index`, until the deadline; noted in `refused` if it cannot be.

        A layer that does what the inside needs (a user, a session, a transaction) shows by another status or an
        exception; it is then left to the split.
        """
        if index in self.refused:
            return
        series = self.samples.bypass.setdefault(index, Series())
        stepping, self.probes.stepping = self.probes.stepping, False
        try:
            with self.probes.installed([index]):
                await self._settle(self.probes.watch, deadline_ns)
                for _ in range(rounds):
                    reference = self._reference()
                    series.add(await self._pair(index, child), reference)
                    if self.clock() >= deadline_ns:
                        return
        except Exception as error:
            # The app with all its layers was checked before every leg: what fails here fails without the layer.
            self.refused[index] = f"{type(error).__name__} without it"
            del self.samples.bypass[index]
        finally:
            self.probes.stepping = stepping

    async def _pair(self, index: int, child: int) -> float:
        inside: dict[bool, float] = {}
        for without in self.rng.sample([False, True], 2):
            if without:
                with self.probes.bypassed(index, child):
                    inside[without] = await self._block(index)
            else:
                inside[without] = await self._block(index)
        return inside[False] - inside[True]

    async def _block(self, index: int) -> float:
        values = []
        for number in range(BLOCK_SETTLE_CALLS + BLOCK_CALLS):
            await self.call(self.probes.watch)
            self.samples.requests += 1
            if number >= BLOCK_SETTLE_CALLS:
                values.append(spent(self.probes.log, self.probes.null_owner + 1).ns[index + 1])
        return median(values)

    def _reference(self) -> float:
        """Nanoseconds for a fixed piece of work that has nothing to do with the app."""
        begin = self.clock()
        total = 0
        for number in range(150):
            total += number
        return float(self.clock() - begin)

    async def _settle(self, observer: Observer | None, deadline_ns: int) -> None:
        begin = self.clock()
        for number in range(SETTLE_CALLS):
            await self.call(observer)
            now = self.clock()
            if now >= deadline_ns or (number and now - begin >= SETTLE_NS):
                return
