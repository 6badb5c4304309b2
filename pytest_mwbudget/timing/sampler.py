"""Take the samples, as rounds of genuine requests through the stack. The clock is injected.

*Split*: every boundary has its probe, and in each round each boundary has the null layer once, in random order.

*Whole*: the app without any probe.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Literal, TypeAlias

from ..analysis.event_log import leaning_ns, passing_ns, spent
from ..analysis.message_log import MessageTimes, message_times
from ..analysis.samples import Null, Samples, Split
from ..analysis.ways import Ways
from ..asgi.app import Observer
from ..interpreter.clocks import Clock
from ..interpreter.foreign_tools import garbage_collection_deferred
from ..model.estimate import Nanoseconds
from ..model.stack import EntryIndex
from .host_speed import Pieces, issue_width, reference_ns, work_ns
from .null_layers import random_blanks
from .probes import Probes
from .schedule import Schedule

# After a request without probes, logs are evaluated at most this often and for this time.
MOST_EVALUATIONS, MOST_REST_NS = 16, 2_000_000
# A deadline calls its `tick` this often.
TICK_NS = 100_000_000

# Make one request through the app; return the nanoseconds inside the app if it was not observed.
TimedCall: TypeAlias = Callable[[Observer | None], Awaitable[Nanoseconds]]
# What to sample: the split, its requests by the processor's clock, the whole.
Part: TypeAlias = Literal["split", "cpu", "whole"]
EVERYTHING: tuple[Part, ...] = ("split", "cpu", "whole")


@dataclass(slots=True)
class Deadline:
    """The end of the time for sampling. Asking whether it is over calls `tick` now and then."""

    at_ns: int
    clock: Clock
    tick: Callable[[], None] = lambda: None
    next_tick_ns: int = 0

    def over(self) -> bool:
        """Return whether the time is over."""
        now = self.clock()
        if now >= self.next_tick_ns:
            self.next_tick_ns = now + TICK_NS
            self.tick()
        return now >= self.at_ns


@dataclass(eq=False)
class Sampler:
    """Collect the samples of one stack."""

    probes: Probes
    # They read the processor's clock; None if no such clock can be used.
    cpu_probes: Probes | None
    call: TimedCall
    rng: random.Random
    samples: Samples
    schedule: Schedule
    turn_requests: int
    # Measures a hop to a thread before each request; None for a stack that hands no work to threads.
    hop: Callable[[Clock], float] | None
    # Divide the requests by message.
    by_message: bool
    # Fixed work that is timed after each request of the split, if a budget needs it.
    pieces: Pieces | None
    turns: int = 0
    # The log of the latest request of the split, and the typical time from one such request to the next.
    full_log: Sequence[int] = ()
    interval_ns: float = 0.0

    def __post_init__(self) -> None:
        self.clock = self.probes.clock
        # Those that the requests of the split took.
        self.ways: Ways = self.probes.stack.ways()

    async def look(self, requests: int, deadline: Deadline, wanted: Collection[Part] | None = None) -> None:
        """Make about as many requests as it takes to add `requests` to the split.

        They are made in turns, so that no kind of sample depends on one stretch of time. The `wanted` parts (None: all)
        also get the time of the other parts, but for one turn in `Schedule.unwanted_every`.
        """
        wanted = EVERYTHING if wanted is None else wanted
        turns = max(1, requests // self.turn_requests)
        requests = requests // turns
        full, part = self._cost(EVERYTHING, requests), self._cost(wanted, requests)
        for _ in range(round(turns * full / (part + (full - part) / self.schedule.unwanted_every))):
            self.turns += 1
            all_parts = self.turns % self.schedule.unwanted_every == 0
            await self._turn(requests, EVERYTHING if all_parts else wanted, deadline)
            if deadline.over():
                return

    def _cost(self, wanted: Collection[Part], requests: int) -> float:
        """Return about how many requests a turn makes."""
        schedule, cost = self.schedule, 0.0
        if "split" in wanted:
            cost += requests + schedule.settle_calls
            if "cpu" in wanted and self.cpu_probes is not None:
                cost += requests // schedule.cpu_every + schedule.settle_calls
        if "whole" in wanted:
            cost += self._whole_requests(requests) + schedule.settle_calls
        return cost

    def _whole_requests(self, requests: int) -> int:
        """Return how many requests without probes to make for a number of requests of the split.

        Both show together what logging the steps costs, so their numbers are then equal. In a slow app this cost is
        less than the noise of its waits.
        """
        slow = self.turn_requests <= self.schedule.fewest_of_turn
        equal = self.probes.steppable and not self.ways.mixed and not slow
        return max(2, requests if equal else requests // self.schedule.whole_every)

    async def _turn(self, requests: int, wanted: Collection[Part], deadline: Deadline) -> None:
        if "split" in wanted:
            with garbage_collection_deferred():
                await self.split_leg(self.probes, requests, deadline)
            if "cpu" in wanted and self.cpu_probes is not None:
                share = max(1, requests // self.schedule.cpu_every)
                with garbage_collection_deferred():
                    await self.split_leg(self.cpu_probes, share, deadline)
        if "whole" in wanted:
            with garbage_collection_deferred():
                await self.whole_leg(self._whole_requests(requests), deadline)

    async def _settle(self, observer: Observer | None, deadline: Deadline) -> None:
        begin = self.clock()
        for number in range(self.schedule.settle_calls):
            await self.call(observer)
            self.samples.settling += 1
            if deadline.over() or (number and self.clock() - begin >= self.schedule.settle_ns):
                return

    async def confirm(self) -> None:
        """Make a request of the traced way; raise StackChangedError if no request takes it any more."""
        with self.probes.installed([*self.probes.probed, *self.probes.stack.strays]):
            await self.call(self.probes.watch)
            while not self.ways.follow(self.probes.entered()):
                await self.call(self.probes.watch)

    def _hop_ns(self) -> float | None:
        """Measure a hop if hops are measured. It comes before the reference workload, which makes caches warm again."""
        return None if self.hop is None else self.hop(self.clock)

    def _reference_ns(self) -> float:
        """Time the reference workload, and read how much of the core this thread has."""
        reference = reference_ns(self.clock)
        width = issue_width()
        if width is not None:
            self.samples.widths.add(width, reference)
        return reference

    # ---- whole ------------------------------------------------------------------------------------------------------

    async def whole_leg(self, count: int, deadline: Deadline) -> None:
        """Make up to `count` requests through the app without probes.

        Rows and total must be of equally cold caches (docs/decisions/0018).
        """
        await self._settle(None, deadline)
        for _ in range(count):
            begin = self.clock()
            hop = self._hop_ns()
            reference = self._reference_ns()
            self.samples.whole.add(await self.call(None), reference, hop, self.samples.served)
            self.samples.requests += 1
            self.rest(begin, reference)
            if deadline.over():
                return

    def rest(self, begin_ns: Nanoseconds, reference: float) -> None:
        """Do what is done after each request of the split, until as long after its begin.

        That work leaves caches cold, as do other processes on the same physical core meanwhile.
        """
        end_ns = begin_ns + self.interval_after(self.clock() - begin_ns)
        for _ in range(MOST_EVALUATIONS):
            self._evaluate_a_log(reference)
            if self.clock() >= end_ns:
                return

    def interval_after(self, request_ns: float) -> float:
        """Return the time from one request without probes to the next, where one takes `request_ns`."""
        return max(request_ns, min(self.interval_ns, request_ns + MOST_REST_NS))

    def _evaluate_a_log(self, reference: float) -> None:
        """Do what is done after a request of the split."""
        if self.full_log:
            null = self._null(self.probes, self.rng.choice(self.probes.probed))
            used = spent(list(self.full_log), self.probes.owners)
            messages = self._messages(self.full_log)
            passing = passing_ns(self.full_log, self.probes.null_owner)
            leaning = self._leaning(null, self.full_log)
            Split().add(reference, null, used.ns[self.probes.null_owner], used, None, messages, passing, leaning)

    # ---- split ------------------------------------------------------------------------------------------------------

    async def split_leg(self, probes: Probes, count: int, deadline: Deadline) -> None:
        """Make rounds of requests, about `count` in all, with every probe in place."""
        if not probes.probed:
            return
        with probes.installed([*probes.probed, *probes.stack.strays]):
            await self._settle(probes.watch, deadline)
            begun = await self._split_requests(probes, count, deadline)
        if probes is self.probes and len(begun) > 1:
            self.interval_ns = median(later - ns for ns, later in pairwise(begun))

    async def _split_requests(self, probes: Probes, count: int, deadline: Deadline) -> Sequence[Nanoseconds]:
        """Sample about `count` requests; return when each request began."""
        wall = probes is self.probes
        split = self.samples.split if wall else self.samples.cpu
        fewest = self.schedule.fewest_of_leg // (1 if wall else self.schedule.cpu_every)
        begun: list[Nanoseconds] = []
        for number, index in enumerate(self._in_turns(probes.probed, max(count, fewest)), 1):
            null = self._null(probes, index)
            with probes.doubled(null.index, null.blanks):
                is_sample = False
                while not is_sample:
                    begun.append(self.clock())
                    is_sample = await self._split_request(probes, null, split)
            if deadline.over():
                break
            self.samples.rounds += wall and number % len(probes.probed) == 0
        return begun

    def _null(self, probes: Probes, index: EntryIndex) -> Null:
        wall = probes is self.probes
        wrapping, dividing = wall and index in probes.wrappable, wall and index in probes.dividable
        return Null(index, random_blanks(self.rng, wrapping=wrapping, dividing=dividing))

    def _in_turns(self, entries: Sequence[EntryIndex], count: int) -> Iterator[EntryIndex]:
        """Yield `count` entries in random order, each equally often."""
        for start in range(0, count, len(entries)):
            yield from self.rng.sample(entries, min(len(entries), count - start))

    async def _split_request(self, probes: Probes, null: Null, split: Split) -> bool:
        """Sample a request; return whether it took the traced way. A request of another way is no sample."""
        samples, wall = self.samples, probes is self.probes
        hop = self._hop_ns()
        reference = self._reference_ns()
        await self.call(probes.watch)
        samples.requests += 1
        if not self.ways.follow(probes.entered()):
            return False
        log = probes.read()
        used = spent(log, probes.owners)
        if wall:
            self.full_log = log
        messages = self._messages(log) if wall else None
        passing = passing_ns(log, probes.null_owner)
        leaning = self._leaning(null, log)
        split.add(reference, null, used.ns[probes.null_owner], used, hop, messages, passing, leaning, samples.served)
        if self.pieces is not None and wall:
            for _ in range(self.pieces.number):
                samples.machine.add(work_ns(self.clock, self.pieces.calls), reference)
        return True

    def _leaning(self, null: Null, log: Sequence[int]) -> float:
        return leaning_ns(log, self.probes.null_owner, self.probes.unowned) if null.blanks.dividing else 0.0

    def _messages(self, log: Sequence[int]) -> MessageTimes | None:
        """Divide a request by message, if a budget or a report needs this."""
        return message_times(log, self.probes.owners) if self.by_message else None
