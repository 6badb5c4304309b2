"""Take the samples, as rounds of genuine requests through the stack. The clock is injected.

*Split*: every boundary has its probe, and in each round each boundary has the null layer once, in random order.

*Bypass*: pairs of blocks of requests with and without a task-spawning layer, in random order. The time inside its
boundary is compared. What is inside such a layer is measured in requests that skip it, so nothing is counted twice.

*Whole*: the app without any probe.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ..analysis.event_log import passing_ns, spent
from ..analysis.message_log import MessageTimes, message_times
from ..analysis.samples import Null, Pairs, Samples, Series, Split
from ..asgi.app import Observer
from ..errors import of_the_app
from ..interpreter.clocks import Clock
from ..interpreter.foreign_tools import garbage_collection_paused
from ..model.estimate import Nanoseconds
from ..model.stack import HARNESS, EntryIndex, outwards, owner_of
from .host_speed import Pieces, reference_ns, work_ns
from .null_layers import random_blanks
from .probes import Probes, TaskLayer
from .schedule import Schedule

# A deadline calls its `tick` this often.
TICK_NS = 100_000_000

# Make one request through the app; return the nanoseconds inside the app if it was not observed.
TimedCall: TypeAlias = Callable[[Observer | None], Awaitable[Nanoseconds]]
# What to sample: the bypasses of entries, the split, its requests by the processor's clock, the whole.
Part: TypeAlias = EntryIndex | Literal["split", "cpu", "whole"]


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


class Sampler:
    """Collect the samples of one stack.

    `cpu_probes` read the processor's clock; None if no such clock can be used. `hop` measures a hop to a thread before
    each request; None for a stack that hands no work to threads. `by_message` divides the requests by message. `pieces`
    of fixed work are timed after each request of the split, if a budget needs them. `refused` says by entry why a
    task-spawning layer is not bypassed. Requests of the split skip the layers in `left_out`, none of which is probed.
    """

    def __init__(
        self,
        probes: Probes,
        cpu_probes: Probes | None,
        task_layers: Sequence[TaskLayer],
        call: TimedCall,
        rng: random.Random,
        sent: Mapping[EntryIndex, int],
        schedule: Schedule,
        turn_requests: int,
        hop: Callable[[Clock], float] | None = None,
        left_out: Sequence[TaskLayer] = (),
        *,
        by_message: bool = False,
    ) -> None:
        self.probes = probes
        self.left_out = left_out
        self.cpu_probes = cpu_probes
        self.schedule = schedule
        self.turn_requests = turn_requests
        self.hop = hop
        self.by_message = by_message
        self.task_layers = task_layers
        self.call = call
        self.clock = probes.clock
        self.rng = rng
        self.samples = Samples(probes.probed, sent)
        self.refused: dict[EntryIndex, str] = {}
        self.pieces: Pieces | None = None
        self.turns = 0
        # The log of the latest split request that skipped no layer.
        self.full_log: Sequence[int] = ()

    @property
    def bypassable(self) -> list[TaskLayer]:
        """The task-spawning layers that requests can skip, as far as is known; outermost first."""
        return [layer for layer in self.task_layers if layer.index not in self.refused]

    async def look(self, requests: int, pairs: int, deadline: Deadline, wanted: Collection[Part] | None = None) -> None:
        """Make about as many requests as it takes to add `requests` to the split and `pairs` to each bypass.

        They are made in turns, so that no kind of sample depends on one stretch of time. The `wanted` parts (None: all)
        also get the time of the other parts, but for one turn in `Schedule.unwanted_every`.
        """
        everything: list[Part] = [*(layer.index for layer in self.bypassable), "split", "cpu", "whole"]
        wanted = everything if wanted is None else wanted
        turns = max(1, requests // self.turn_requests)
        requests, pairs = requests // turns, max(1, pairs // turns)
        full, part = self._cost(everything, requests, pairs), self._cost(wanted, requests, pairs)
        for _ in range(round(turns * full / (part + (full - part) / self.schedule.unwanted_every))):
            self.turns += 1
            all_parts = self.turns % self.schedule.unwanted_every == 0
            await self._turn(requests, pairs, everything if all_parts else wanted, deadline)
            if deadline.over():
                return

    def _cost(self, wanted: Collection[Part], requests: int, pairs: int) -> float:
        """Return about how many requests a turn makes."""
        schedule, levels = self.schedule, len(self.bypassable) + 1
        pair = 2 * (schedule.block_settle_calls + schedule.block_calls)
        bypassed = sum(layer.index in wanted for layer in self.bypassable)
        cost = bypassed * (pair * pairs + schedule.settle_calls)
        if "split" in wanted:
            cost += requests + levels * schedule.settle_calls
            if "cpu" in wanted and self.cpu_probes is not None:
                cost += requests // schedule.cpu_every + levels * schedule.settle_calls
        if "whole" in wanted:
            cost += requests // schedule.whole_every + schedule.settle_calls
        return cost

    async def _turn(self, requests: int, pairs: int, wanted: Collection[Part], deadline: Deadline) -> None:
        skipped: list[TaskLayer] = []
        for layer in self.bypassable:
            if layer.index in wanted:
                await self._leg(self.bypass_leg(layer, skipped, pairs, deadline))
            skipped = [one for one in (*skipped, layer) if one.index not in self.refused]
        if "split" in wanted:
            await self._split_legs(requests, skipped, deadline, cpu="cpu" in wanted)
        if "whole" in wanted:
            await self._leg(self.whole_leg(max(2, requests // self.schedule.whole_every), deadline))

    async def _split_legs(self, requests: int, skipped: Sequence[TaskLayer], deadline: Deadline, *, cpu: bool) -> None:
        for level in range(len(skipped) + 1):
            try:
                await self._leg(self.split_leg(self.probes, requests, skipped[:level], deadline))
                if cpu and self.cpu_probes is not None:
                    share = max(1, requests // self.schedule.cpu_every)
                    await self._leg(self.split_leg(self.cpu_probes, share, skipped[:level], deadline))
            except Exception as error:
                self._cannot_do_without(skipped[:level], error)
                return

    def refuse(self, index: EntryIndex, reason: str) -> None:
        """Stop bypassing a layer, and drop all samples of requests that skipped it: those were of another app."""
        bypassable = [layer.index for layer in self.bypassable]
        outer = bypassable.index(index)
        samples = self.samples
        samples.splits = {level: split for level, split in samples.splits.items() if level <= outer}
        samples.cpu = {level: split for level, split in samples.cpu.items() if level <= outer}
        samples.bypass = {i: pairs for i, pairs in samples.bypass.items() if i in bypassable[:outer]}
        self.refused[index] = reason

    def _cannot_do_without(self, skipped: Sequence[TaskLayer], error: Exception) -> None:
        """Refuse the last of the layers that a failed request skipped. The error is the app's own if none was."""
        if not skipped:
            raise error
        self.refuse(skipped[-1].index, f"{type(of_the_app(error)).__name__} without it")

    async def _leg(self, leg: Awaitable[None]) -> None:
        """Run a leg without garbage collection, and collect the youngest generation at its end."""
        try:
            with garbage_collection_paused():
                await leg
        finally:
            gc.collect(0)

    async def _settle(self, observer: Observer | None, deadline: Deadline) -> None:
        begin = self.clock()
        for number in range(self.schedule.settle_calls):
            await self.call(observer)
            if deadline.over() or (number and self.clock() - begin >= self.schedule.settle_ns):
                return

    def _hop_ns(self) -> float | None:
        """Measure a hop if hops are measured. It comes before the reference workload, which makes caches warm again."""
        return None if self.hop is None else self.hop(self.clock)

    # ---- whole ------------------------------------------------------------------------------------------------------

    async def whole_leg(self, count: int, deadline: Deadline) -> None:
        """Make up to `count` requests through the app without probes.

        After each, a log of the split is evaluated, as after each request of the split. That work leaves caches cold,
        and the rows include what cold caches cost (docs/decisions/0018).
        """
        await self._settle(None, deadline)
        discarded = Split(frozenset())
        for _ in range(count):
            hop = self._hop_ns()
            reference = reference_ns(self.clock)
            self.samples.whole.add(await self.call(None), reference, hop)
            self.samples.requests += 1
            self.evaluate_a_log(reference, discarded)
            if deadline.over():
                return

    def evaluate_a_log(self, reference: float, discarded: Split) -> None:
        """Do what is done after each request of the split, and add the result to what is discarded."""
        if self.full_log:
            null = self._null(self.probes, self.rng.choice(self.probes.probed))
            with self.probes.stepping_set(on=True):
                used = spent(list(self.full_log), self.probes.owners)
                messages = self._messages(self.full_log)
                passing = passing_ns(self.full_log, self.probes.null_owner)
            discarded.add(reference, null, used.ns[self.probes.null_owner], used, None, messages, passing)

    # ---- split ------------------------------------------------------------------------------------------------------

    async def split_leg(self, probes: Probes, count: int, skipped: Sequence[TaskLayer], deadline: Deadline) -> None:
        """Make rounds of requests with every probe in place that skip the layers in `skipped`.

        They measure the entries that have exactly these bypassable layers outside them, with the share of about `count`
        requests that falls to these entries.
        """
        level, wall = len(skipped), probes is self.probes
        outside = {index: self._bypassable_outside(index) for index in probes.probed}
        segment = [index for index in probes.probed if outside[index] == level]
        if not segment:
            return  # nothing is inside all of these: some stand beside each other
        fewest = self.schedule.fewest_of_leg // (1 if wall else self.schedule.cpu_every)
        share = max(count * len(segment) // len(probes.probed), fewest)
        # What is further inside has a leg of its own, and uses this one as long as that has few requests.
        owners = [owner_of(index) for index in probes.probed if outside[index] >= level]
        if wall and not level:
            owners.append(HARNESS)
        installed = [*probes.probed, *(layer.index for layer in self.left_out)]
        with probes.installed(installed), probes.bypassed([*self.left_out, *skipped]):
            await self._settle(probes.watch, deadline)
            split = (self.samples.splits if wall else self.samples.cpu).setdefault(level, Split(frozenset(owners)))
            for number, index in enumerate(self._in_turns(segment, share), 1):
                null = self._null(probes, index)
                with probes.doubled(null.index, null.blanks):
                    await self._split_request(probes, null, split, all_layers=wall and not level)
                if deadline.over():
                    return
                self.samples.rounds += wall and number % len(segment) == 0

    def _null(self, probes: Probes, index: EntryIndex) -> Null:
        wrapping = probes is self.probes and index in probes.wrappable
        return Null(index, random_blanks(self.rng, wrapping=wrapping))

    def _in_turns(self, segment: Sequence[EntryIndex], count: int) -> Iterator[EntryIndex]:
        """Yield `count` entries in random order, each equally often."""
        for start in range(0, count, len(segment)):
            yield from self.rng.sample(segment, min(len(segment), count - start))

    def _bypassable_outside(self, index: EntryIndex) -> int:
        """Return the number of bypassable layers outside an entry."""
        bypassable, entries = {layer.index for layer in self.bypassable}, self.probes.stack.entries
        return sum(outer in bypassable for outer in outwards(entries, entries[index].parent))

    async def _split_request(self, probes: Probes, null: Null, split: Split, *, all_layers: bool) -> None:
        samples = self.samples
        stepless = all_layers and probes.steppable and self.rng.randrange(self.schedule.stepless_every) == 0
        hop = self._hop_ns()
        reference = reference_ns(self.clock)
        with probes.stepping_set(on=not stepless):
            await self.call(probes.watch)
        samples.requests += 1
        log = probes.read()
        used = spent(log, probes.owners)
        if all_layers:
            self.full_log = log
            (samples.inside_stepless if stepless else samples.inside).add(sum(used.ns), reference, hop)
        if not stepless:
            messages = self._messages(log) if probes is self.probes else None
            passing = passing_ns(log, probes.null_owner)
            split.add(reference, null, used.ns[probes.null_owner], used, hop, messages, passing)
        if self.pieces is not None and probes is self.probes:
            for _ in range(self.pieces.number):
                samples.machine.add(work_ns(self.clock, self.pieces.calls), reference)

    def _messages(self, log: Sequence[int]) -> MessageTimes | None:
        """Divide a request by message, if a budget or a report needs this."""
        return message_times(log, self.probes.owners) if self.by_message else None

    # ---- bypass -----------------------------------------------------------------------------------------------------

    async def bypass_leg(self, layer: TaskLayer, skipped: Sequence[TaskLayer], count: int, deadline: Deadline) -> None:
        """Make `count` pairs of blocks with and without `layer`. Requests of both skip the layers in `skipped`.

        The inside may need what the layer does, such as a user, a session or a transaction. Then the app raises or
        answers with another status, and the layer is refused.
        """
        pairs = self.samples.bypass.setdefault(layer.index, Pairs())
        left_out = skipped
        try:
            with (
                self.probes.stepping_set(on=False),
                self.probes.installed([*(outer.index for outer in skipped), layer.index]),
                self.probes.bypassed(skipped),
            ):
                await self._settle(self.probes.watch, deadline)
                for _ in range(count):
                    blocks = {}
                    for without in self.rng.sample([False, True], 2):
                        left_out = [*skipped, layer] if without else skipped
                        blocks[without] = await self._block(layer, without, deadline)
                    if deadline.over():
                        return
                    pairs.blocks.append((blocks[False], blocks[True]))
        except Exception as error:
            self._cannot_do_without(left_out, error)

    async def _block(self, layer: TaskLayer, without: bool, deadline: Deadline) -> Series:
        """Return the nanoseconds inside the layer's boundary, each with the slower reference of before and after it.

        The block is shorter if the time ran out.
        """
        taken = Series()
        with self.probes.bypassed([layer] if without else []):
            before = reference_ns(self.clock)
            for number in range(self.schedule.block_settle_calls + self.schedule.block_calls):
                hop = self._hop_ns()
                await self.call(self.probes.watch)
                self.samples.requests += 1
                inside_ns = spent(self.probes.read(), self.probes.owners).ns[owner_of(layer.index)]
                # One reference a request: a second one right after the first would be quicker.
                after = reference_ns(self.clock)
                if number >= self.schedule.block_settle_calls:
                    taken.add(inside_ns, max(before, after), hop)
                before = after
                if deadline.over():
                    break
        return taken
