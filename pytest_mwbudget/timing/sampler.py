"""Take the samples: rounds of genuine requests through the stack. The clock is injected.

*Split*: every boundary has its probe, so every request measures every layer; in each round, in a fresh random order,
each boundary once holds the null layer. A layer's overhead is the time it owned, less what its probes cost there.

*Bypass*: a layer that runs what is inside it in a task of its own (a task layer) shares the event loop's work with its
neighbours, and who is seen to pay depends on who comes first. Such a layer is measured in pairs of blocks, with it and
with requests passing straight to its child, in random order: the time inside its boundary differs by what removing it
saves. What is inside a task layer is then measured past it, so that nothing is counted twice: T(k) - T(k+1) at every
boundary k, with T(k) the time inside boundary k.

*Whole*: the app with no probe at all, for the books and for the budget of the whole request.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ..analysis.event_log import spent
from ..analysis.samples import BlankLayers, Null, Pairs, Samples, Series, Split
from ..asgi.app import Observer
from ..errors import of_the_app
from ..interpreter.clocks import Clock
from ..interpreter.foreign_tools import uncollected
from ..model.estimate import Nanoseconds
from ..model.stack import HARNESS, EntryIndex, Owner, owner_of
from .host_speed import reference_ns
from .probes import BLANKS, WRAPPING_EVERY, Probes, TaskLayer
from .schedule import Schedule

# How often a deadline tells that the app still answers.
TICK_NS = 100_000_000

# One request through the app, observed or not; returns the nanoseconds inside the app when it was not.
TimedCall: TypeAlias = Callable[[Observer | None], Awaitable[Nanoseconds]]


@dataclass(slots=True)
class Deadline:
    """The end of the time for sampling; whoever asks for it makes `tick` run now and then."""

    at_ns: int
    clock: Clock
    tick: Callable[[], None] = lambda: None
    next_tick_ns: int = 0

    def over(self) -> bool:
        """Whether the time is over."""
        now = self.clock()
        if now >= self.next_tick_ns:
            self.next_tick_ns = now + TICK_NS
            self.tick()
        return now >= self.at_ns


@dataclass(frozen=True, slots=True)
class Wanted:
    """What undecided verdicts hang on: the bypasses of these entries, the split, the processor's time in it, the whole.

    All of the split, because what probes and steppers cost is known from all of it.
    """

    bypass: frozenset[EntryIndex] = frozenset()
    split: bool = False
    cpu: bool = False
    whole: bool = False

    def __or__(self, other: Wanted) -> Wanted:
        return Wanted(
            self.bypass | other.bypass,
            split=self.split or other.split,
            cpu=self.cpu or other.cpu,
            whole=self.whole or other.whole,
        )


class Sampler:
    """Collects the samples of one stack, leg by leg."""

    def __init__(
        self,
        probes: Probes,
        task_layers: Sequence[TaskLayer],
        call: TimedCall,
        clock: Clock,
        rng: random.Random,
        sent: Mapping[EntryIndex, int],
        schedule: Schedule,
        turn_requests: int,
        cpu_clock: Clock | None = None,
    ) -> None:
        self.probes = probes
        self.schedule = schedule
        self.turn_requests = turn_requests
        self.task_layers = task_layers
        self.call = call
        self.clock = clock
        self.cpu_clock = cpu_clock
        self.rng = rng
        self.samples = Samples(probes.probed, sent)
        self.refused: dict[EntryIndex, str] = {}
        self.turns = 0
        # What the latest request of the split left that went past no layer.
        self.full_log: Sequence[int] = ()

    @property
    def bypassable(self) -> list[TaskLayer]:
        """The task layers that requests can do without, as far as is known; outermost first."""
        return [layer for layer in self.task_layers if layer.index not in self.refused]

    async def look(self, requests: int, pairs: int, deadline: Deadline, wanted: Wanted | None = None) -> None:
        """Make about as many requests as it takes to add `requests` to the split and `pairs` to each bypass.

        In turns, so that no kind of sample depends on one stretch of time. Where only some of it is `wanted`, that has
        the time of what is not, too, but for one turn in `Schedule.unwanted_every`.
        """
        everything = Wanted(frozenset(layer.index for layer in self.bypassable), split=True, cpu=True, whole=True)
        wanted = wanted or everything
        turns = max(1, requests // self.turn_requests)
        requests, pairs = requests // turns, max(1, pairs // turns)
        full, part = self._cost(everything, requests, pairs), self._cost(wanted, requests, pairs)
        for _ in range(round(turns * full / (part + (full - part) / self.schedule.unwanted_every))):
            self.turns += 1
            await self._turn(
                requests, pairs, everything if self.turns % self.schedule.unwanted_every == 0 else wanted, deadline
            )
            if deadline.over():
                return

    def _cost(self, wanted: Wanted, requests: int, pairs: int) -> float:
        """How many requests a turn makes, about."""
        levels = len(self.bypassable) + 1
        pair = 2 * (self.schedule.block_settle_calls + self.schedule.block_calls)
        cost = len(wanted.bypass) * (pair * pairs + self.schedule.settle_calls)
        if wanted.split:
            cost += requests + levels * self.schedule.settle_calls
        if wanted.split and wanted.cpu and self.cpu_clock is not None:
            cost += requests // self.schedule.cpu_every + levels * self.schedule.settle_calls
        if wanted.whole:
            cost += requests // self.schedule.whole_every + self.schedule.settle_calls
        return cost

    async def _turn(self, requests: int, pairs: int, wanted: Wanted, deadline: Deadline) -> None:
        passed: list[TaskLayer] = []
        for layer in self.bypassable:
            if layer.index in wanted.bypass:
                await self._leg(self.bypass_leg(layer, passed, pairs, deadline))
            passed = [one for one in (*passed, layer) if one.index not in self.refused]
        if wanted.split:
            await self._split_legs(requests, passed, deadline, cpu=wanted.cpu)
        if wanted.whole:
            await self._leg(self.whole_leg(max(2, requests // self.schedule.whole_every), deadline))

    async def _split_legs(self, requests: int, passed: Sequence[TaskLayer], deadline: Deadline, *, cpu: bool) -> None:
        for level in range(len(passed) + 1):
            try:
                await self._leg(self.split_leg(requests, passed[:level], deadline))
                if cpu and self.cpu_clock is not None:
                    share = max(1, requests // self.schedule.cpu_every)
                    await self._leg(self.split_leg(share, passed[:level], deadline, self.cpu_clock))
            except Exception as error:
                self._cannot_do_without(passed[:level], error)
                return

    def refuse(self, index: EntryIndex, reason: str) -> None:
        """Leave a task layer to the split, and forget what was measured past it: that was another app."""
        outer = [layer.index for layer in self.bypassable].index(index)
        genuine = [layer.index for layer in self.bypassable[:outer]]
        samples = self.samples
        samples.splits = {level: split for level, split in samples.splits.items() if level <= outer}
        samples.cpu = {level: split for level, split in samples.cpu.items() if level <= outer}
        samples.bypass = {i: pairs for i, pairs in samples.bypass.items() if i in genuine}
        self.refused[index] = reason

    def _cannot_do_without(self, left_out: Sequence[TaskLayer], error: Exception) -> None:
        """Refuse the last of the layers that a request went past when it failed; it failed for itself without one."""
        if not left_out:
            raise error
        self.refuse(left_out[-1].index, f"{type(of_the_app(error)).__name__} without it")

    async def _leg(self, leg: Awaitable[None]) -> None:
        """Run a leg without garbage collection, and collect what piled up at its end."""
        try:
            with uncollected():
                await leg
        finally:
            gc.collect(0)

    async def whole_leg(self, count: int, deadline: Deadline) -> None:
        """Up to `count` requests through the app as it is.

        After each, a log of the split is added up, as after each of the split: it leaves the caches cold, and the rows
        have what that costs.
        """
        await self._settle(None, deadline)
        aside = Split(frozenset())
        for _ in range(count):
            reference = reference_ns(self.clock)
            self.samples.whole.add(await self.call(None), reference)
            self.samples.requests += 1
            if self.full_log:
                self._as_in_split(aside, reference)
            if deadline.over():
                return

    def _as_in_split(self, aside: Split, reference: float) -> None:
        index = self.rng.choice(self.probes.probed)
        null = Null(index, self._blanks(index, wrapping=True))
        with self.probes.stepping_set(on=True):
            used = spent(list(self.full_log), self.probes.owners)
        aside.add(reference, null, used.ns[self.probes.null_owner], used)

    async def split_leg(
        self, count: int, passed: Sequence[TaskLayer], deadline: Deadline, cpu_clock: Clock | None = None
    ) -> None:
        """Rounds with every probe in place and requests going past the layers in `passed`.

        With a `cpu_clock`, the probes read that one, and the samples are kept apart.

        Measures the entries that have just these bypassable layers outside them; their share of about `count`
        requests is theirs.
        """
        level = len(passed)
        segment = [index for index in self.probes.probed if len(self._outside(index)) == level]
        if not segment:
            return  # nothing is inside of all these: some of them stand beside each other
        # What is further inside has its own leg, and this one only while that has little to show.
        owners = [owner_of(index) for index in self.probes.probed if len(self._outside(index)) >= level]
        with self.probes.installed(self.probes.probed, cpu_clock), self.probes.bypassed(passed):
            await self._settle(self.probes.watch, deadline)
            fewest = (
                self.schedule.fewest_of_leg
                if cpu_clock is None
                else self.schedule.fewest_of_leg // self.schedule.cpu_every
            )
            share = max(count * len(segment) // len(self.probes.probed), fewest)
            for number, index in enumerate(self._in_turns(segment, share), 1):
                null = Null(index, self._blanks(index, wrapping=cpu_clock is None))
                with self.probes.doubled(null.index, null.blanks):
                    if cpu_clock is None:
                        await self._split_request(null, owners, level)
                    else:
                        await self._cpu_request(null, owners, level)
                if deadline.over():
                    return
                self.samples.rounds += cpu_clock is None and number % len(segment) == 0

    def _blanks(self, index: EntryIndex, *, wrapping: bool) -> BlankLayers:
        wrapping = wrapping and index in self.probes.wrappable
        return BlankLayers(self.rng.choice(BLANKS), wrapping and self.rng.randrange(WRAPPING_EVERY) == 0)

    def _in_turns(self, segment: Sequence[EntryIndex], count: int) -> Iterator[EntryIndex]:
        """`count` of these, each as often as any other, in random order."""
        for start in range(0, count, len(segment)):
            yield from self.rng.sample(segment, min(len(segment), count - start))

    def _outside(self, index: EntryIndex) -> list[TaskLayer]:
        """The bypassable layers outside entry `index`."""
        if not self.bypassable:
            return []
        ancestors, parent = set(), self.probes.stack.entries[index].parent
        while parent is not None:
            ancestors.add(parent)
            parent = self.probes.stack.entries[parent].parent
        return [layer for layer in self.bypassable if layer.index in ancestors]

    async def _split_request(self, null: Null, owners: Sequence[Owner], level: int) -> None:
        samples, probes = self.samples, self.probes
        stepless = not level and probes.steppable and self.rng.randrange(self.schedule.stepless_every) == 0
        reference = reference_ns(self.clock)
        with probes.stepping_set(on=not stepless):
            await self.call(probes.watch)
        samples.requests += 1
        log = probes.read()
        used = spent(log, probes.owners)
        if not level:
            self.full_log = log
            (samples.inside_stepless if stepless else samples.inside).add(sum(used.ns), reference)
            samples.messages = used.messages
            owners = [HARNESS, *owners]
        if not stepless:
            self._split(samples.splits, level, owners).add(reference, null, used.ns[probes.null_owner], used)

    async def _cpu_request(self, null: Null, owners: Sequence[Owner], level: int) -> None:
        probes = self.probes
        reference = reference_ns(self.clock)
        await self.call(probes.watch)
        self.samples.requests += 1
        used = spent(probes.read(), probes.owners)
        self._split(self.samples.cpu, level, owners).add(reference, null, used.ns[probes.null_owner], used)

    @staticmethod
    def _split(splits: dict[int, Split], level: int, owners: Sequence[Owner]) -> Split:
        if level not in splits:
            splits[level] = Split(frozenset(owners))
        return splits[level]

    async def bypass_leg(self, layer: TaskLayer, passed: Sequence[TaskLayer], count: int, deadline: Deadline) -> None:
        """So many pairs of blocks with and without `layer`, requests going past the layers in `passed` in both.

        A layer that does what the inside needs (a user, a session, a transaction) shows by another status or an
        exception: it is noted in `refused` and left to the split.
        """
        pairs = self.samples.bypass.setdefault(layer.index, Pairs())
        left_out = passed
        try:
            with (
                self.probes.stepping_set(on=False),
                self.probes.installed([*(outer.index for outer in passed), layer.index]),
                self.probes.bypassed(passed),
            ):
                await self._settle(self.probes.watch, deadline)
                for _ in range(count):
                    blocks = {}
                    for without in self.rng.sample([False, True], 2):
                        left_out = [*passed, layer] if without else passed
                        blocks[without] = await self._block(layer, without, deadline)
                    if deadline.over():
                        return
                    pairs.blocks.append((blocks[False], blocks[True]))
        except Exception as error:
            self._cannot_do_without(left_out, error)

    async def _block(self, layer: TaskLayer, without: bool, deadline: Deadline) -> Series:
        """Nanoseconds inside the layer's boundary, each with the slower of the references before and after it.

        Fewer of them when the time ran out.
        """
        taken = Series()
        with self.probes.bypassed([layer] if without else []):
            before = reference_ns(self.clock)
            for number in range(self.schedule.block_settle_calls + self.schedule.block_calls):
                await self.call(self.probes.watch)
                self.samples.requests += 1
                inside_ns = spent(self.probes.read(), self.probes.owners).ns[owner_of(layer.index)]
                # Once a request: right after itself it would be quicker.
                after = reference_ns(self.clock)
                if number >= self.schedule.block_settle_calls:
                    taken.add(inside_ns, max(before, after))
                before = after
                if deadline.over():
                    break
        return taken

    async def _settle(self, observer: Observer | None, deadline: Deadline) -> None:
        begin = self.clock()
        for number in range(self.schedule.settle_calls):
            await self.call(observer)
            if deadline.over() or (number and self.clock() - begin >= self.schedule.settle_ns):
                return
