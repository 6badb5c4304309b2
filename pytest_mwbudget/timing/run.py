"""Time the layers of a stack, look after look, until every verdict on time is known or the time is over."""

from __future__ import annotations

import math
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TypeAlias

from ..analysis.estimates import Estimates, estimate
from ..analysis.remarks import remarks, slowest
from ..analysis.rows import Bounded, Row, told_by
from ..analysis.verdicts import BudgetKey, Look, contested, judge_all, more_time
from ..asgi import loops, server
from ..asgi.discovery import Stack
from ..config.settings import Settings
from ..interpreter.clocks import Clock, get_clock_info, perf_counter_ns, thread_time_ns
from ..model.estimate import ZERO, Estimate, Microseconds, Nanoseconds, Seconds
from ..model.results import Books, Effort, Judged, Method, Occupation, Quantity, Turn
from ..model.stack import EntryIndex, RowIndex
from .host_speed import Machine
from .probes import Probes, task_layers
from .sampler import Deadline, Part, Sampler
from .schedule import Schedule

# Told the share of the time limit that is over, and None at the end.
Progress: TypeAlias = Callable[[float | None], None]

NS_PER_S = 1_000_000_000
# A bypass that differs from the split by more than this share and this much has changed more than the layer: what is
# inside it does something else without it.
BYPASS_SHARE, BYPASS_US = 0.25, 10.0
# Methods that RFC 9110 calls safe: only such a request may be sent past one of its layers.
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
# A clock of the processor's time that ticks more slowly than this tells nothing about a request.
CPU_CLOCK_RESOLUTION_S = 1e-6


def cpu_clock() -> Clock | None:
    """Nanoseconds that the processor worked for this thread, None where the platform counts too coarsely."""
    about = get_clock_info("thread_time")
    posix = about.implementation.startswith("clock_gettime")  # elsewhere it ticks more slowly than it says
    return thread_time_ns if posix and about.resolution <= CPU_CLOCK_RESOLUTION_S else None


@dataclass(frozen=True, slots=True)
class Environment:
    """What a measurement needs from its surroundings; tests replace the clocks and the chance."""

    clock: Clock = perf_counter_ns
    cpu_clock: Clock | None = field(default_factory=cpu_clock)
    rng: random.Random = field(default_factory=random.Random)
    machine: Machine = field(default_factory=Machine)
    progress: Progress = lambda share: None
    # Round all requests but the first, which the test sees.
    apart: Callable[[], AbstractContextManager[None]] = nullcontext
    # Whether somebody reads the figures of a request whose budgets are kept, and not only the verdict.
    precise: bool = True
    # Round a measurement that needs a clock: waits until no other process measures.
    turns: Callable[[], AbstractContextManager[Turn]] = lambda: nullcontext(Turn())
    turn: Turn = field(default_factory=Turn)
    schedule: Schedule = field(default_factory=Schedule)


@dataclass(frozen=True, slots=True)
class Pace:
    """What the app is like to call.

    One request after warming up takes `request_ns`; `suspending` says whether any task waits in it; an entry sends
    `sent` messages.
    """

    request_ns: float
    suspending: bool
    sent: Mapping[EntryIndex, int]


@dataclass(frozen=True, slots=True)
class LayerTime:
    """The time of a layer and what became of its budgets; `us` is None where it has no figure of its own."""

    us: Estimate | None
    method: Method | None
    occupation: Occupation | None
    judged: Mapping[Quantity, Judged]


@dataclass(frozen=True, slots=True)
class Timed:
    """What timing a stack has found out. `layers` are by row, `notes` say how far the figures can be trusted."""

    layers: Mapping[RowIndex, LayerTime]
    total: Judged | None
    books: Books
    floor_us: Microseconds
    slowdown: float
    effort: Effort
    notes: tuple[str, ...]


class Timing:
    """One stack being timed.

    `looks_before` is the number of looks at samples that were thrown away: they have spent their share of the chance
    to err.
    """

    def __init__(
        self,
        stack: Stack,
        caller: server.Caller,
        layers: Sequence[Bounded],
        settings: Settings,
        environment: Environment,
        pace: Pace,
        looks_before: int = 0,
    ) -> None:
        self.stack = stack
        self.layers = layers
        self.settings = settings
        self.environment = environment
        self.schedule = environment.schedule
        self.caller = caller
        self.looks = 0
        self.looks_before = looks_before
        self.over = False
        self.latest: Look | None = None
        self.failed_before: frozenset[BudgetKey] = frozenset()
        self.first_look = self.schedule.first_look(pace.request_ns)
        self.begun_ns = environment.clock()
        self.sampler = self._sampler(caller, pace)

    def _sampler(self, caller: server.Caller, pace: Pace) -> Sampler:
        async def timed(observer: server.Observer | None) -> Nanoseconds:
            return (await caller(observer)).elapsed_ns

        def probes(clock: Clock) -> Probes:
            return Probes(self.stack, clock, suspending=pace.suspending)

        # Each thread has a processor's clock of its own, and these cannot be compared.
        cpu_clock = None if self.stack.threads else self.environment.cpu_clock
        shown = [bounded.entry for bounded in self.layers]
        passable = [layer for layer in task_layers(self.stack) if layer.index in shown]
        sampler = Sampler(
            probes(self.environment.clock),
            probes(cpu_clock) if cpu_clock else None,
            passable,
            timed,
            self.environment.rng,
            pace.sent,
            self.schedule,
            self.schedule.turn(pace.request_ns),
        )
        needed_ns = len(passable) * self.schedule.bypass_calls * pace.request_ns
        why_not = self._no_bypass(caller.template.request.method, needed_ns)
        if why_not is not None:
            sampler.refused = {layer.index: why_not for layer in passable}
        return sampler

    def _no_bypass(self, method: str, needed_ns: float) -> str | None:
        """Why no request is sent past any layer; None where some are. It would take `needed_ns`."""
        if method not in SAFE_METHODS:
            return f"a {method} request is sent past no layer"
        if needed_ns > self.settings.max_time_s * NS_PER_S:
            return f"above so slow an app that takes longer than max_time: {more_time(needed_ns / NS_PER_S)}"
        return None

    # ---- sampling -----------------------------------------------------------------------------------------------

    async def until_known(self) -> Timed:
        """Look again and again, at twice as many requests each time, until all is known or the time is over."""
        __tracebackhide__ = True
        async with self._sampling() as extend:
            while True:
                await self._sample(extend)
                # Asked once a look, because judging takes time: the last look is one that knows that it is.
                self.over = self.seconds >= self.settings.max_time_s
                look = self._judge()
                if self.over or self._known(look):
                    return self._timed(look)

    async def kept_at_first_sight(self) -> Timed | None:
        """Look at an app that need not be warm; None unless every budget of time is kept for certain.

        What is not warm is slower, so a budget that is kept then is kept. Any other verdict needs samples of a warm
        app, and another `Timing`.
        """
        __tracebackhide__ = True
        async with self._sampling() as extend:
            while self.looks < self.schedule.first_sight_looks:
                await self._sample(extend, self.schedule.first_sight_share)
                look = self._judge()
                if look.kept:
                    return self._timed(look)
                if look.failed:
                    break
        return None

    @asynccontextmanager
    async def _sampling(self) -> AsyncIterator[loops.Extend]:
        __tracebackhide__ = True
        limit_s = self.settings.startup_timeout_s
        message = (
            "the app stopped answering while it was measured: a request did not end within"
            f" {limit_s:g} s although requests before it did"
        )
        try:
            async with self.caller.limited(limit_s, message) as extend:
                yield extend
        finally:
            self.environment.progress(None)
            self.environment.machine.saw(self.sampler.samples.quick_ns(), self.seconds)

    @property
    def patience_s(self) -> Seconds:
        """How long it samples before a failure is believed."""
        return max(self.schedule.failure_time_s, self.schedule.watched_time_s - self.environment.machine.watched_s)

    @property
    def seconds(self) -> Seconds:
        """How long it has been sampling."""
        return (self.environment.clock() - self.begun_ns) / NS_PER_S

    async def _sample(self, extend: loops.Extend, share: float = 1.0) -> None:
        """Make the requests of the next look, in this share of the time limit at most."""

        def tick() -> None:
            # It answers: from here on it has the whole time again.
            extend(self.settings.startup_timeout_s)
            self.environment.progress(min(1.0, self.seconds / self.settings.max_time_s))

        self.looks += 1
        wanted, limit_s = None, self.settings.max_time_s
        if self.latest is not None:
            wanted = self._wanted(self.latest)
            if not self._open(self.latest):
                limit_s = min(self.schedule.precision_time_s, limit_s)
        factor = 2 ** max(0, self.looks - 2)
        deadline = Deadline(self.begun_ns + round(share * limit_s * NS_PER_S), self.environment.clock, tick)
        await self.sampler.look(self.first_look * factor, self.schedule.first_look_pairs * factor, deadline, wanted)

    def _wanted(self, look: Look) -> set[Part] | None:
        """What undecided verdicts hang on; None for everything, where there are none or something has no interval yet.

        A failure that is only fresh wants nothing by itself: the rows that it stands among are shown as well.
        """
        if not look.estimates.bounded:
            return None
        wanted: set[Part] = set()
        for row in look.rows:
            for quantity, bound in row.bounded.bounds.items():
                if look.judgements[row.layer.index, quantity].verdict == "undecided":
                    wanted |= self._hangs_on(row, look, quantity, bound)
        if None in look.judgements and look.judgements[None].verdict == "undecided":
            wanted.add("whole")
        return wanted or None

    def _hangs_on(self, row: Row, look: Look, quantity: Quantity, bound: Microseconds) -> set[Part]:
        """What the verdict on a budget of a layer hangs on; nothing where no time would bring one.

        It is never a part of the split, because the cost of probes and steppers is known from all of it.
        """
        teller, found = told_by(row, look.rows), look.estimates
        if teller is None or teller.entry is None or bound <= found.least_us:
            return set()
        us = teller.estimate_of(quantity)
        if teller is not row and us is not None and us.low > bound:
            return set()  # merged, and its neighbour alone takes more
        busy = quantity == "busy_us"
        wanted: set[Part] = {"cpu"} if busy else set()
        if teller.entry not in self._pending():
            return wanted | {"split"}
        # More time may lower the detection limit, which the null layers of the split tell, below the budget.
        below_limit = found.least_us < bound < found.detection_limit_us
        # What is busy is the bypass less the wait, which the split and the processor's time tell.
        if busy or below_limit or contested(teller, quantity, bound, found):
            wanted.add("split")
        return wanted | {teller.entry}

    # ---- judging ------------------------------------------------------------------------------------------------

    def _judge(self) -> Look:
        """Judge every budget of time by all samples so far."""
        if self.latest is not None:
            self.failed_before = self.latest.failed
        found = self._estimated()
        while self._refused_bypass(found):
            found = self._estimated()
        self.latest = judge_all(
            self.layers,
            found,
            self.settings.budgets.total_us,
            pending=() if self.over else self._pending(),
            crowded=self.environment.turn.crowded,
        )
        return self.latest

    def _pending(self) -> list[EntryIndex]:
        """The entries of the layers that requests can do without, as far as is known."""
        return [layer.index for layer in self.sampler.bypassable]

    def _estimated(self) -> Estimates:
        return estimate(
            self.sampler.samples,
            self.stack.entries,
            outside=self.stack.outside,
            look=self.looks_before + self.looks,
            best_ns=self.environment.machine.best_ns,
            last=self.over,
        )

    def _refused_bypass(self, found: Estimates) -> bool:
        """Whether a bypass turned out to change more than its layer; the outermost such one is then left alone."""
        for layer in self.sampler.bypassable:
            bypass, split = found.bypass.get(layer.index), found.split[layer.index]
            if bypass is None or not math.isfinite(bypass.half_width) or not math.isfinite(split.half_width):
                continue
            slack = BYPASS_SHARE * abs(split.estimate) + BYPASS_US
            if bypass.low > split.high + slack or bypass.high < split.low - slack:
                reason = (
                    f"the app takes another way without it: {bypass.estimate:.0f} µs less, not {split.estimate:.0f}"
                )
                self.sampler.refuse(layer.index, reason)
                return True
        return False

    def _known(self, look: Look) -> bool:
        """Whether more requests would change no verdict, and no figure that somebody reads."""
        if self._open(look):
            return False
        precise_enough = look.precise or self.seconds >= self.schedule.precision_time_s
        return precise_enough or (not self.environment.precise and look.kept)

    def _open(self, look: Look) -> bool:
        """Whether a verdict is still undecided, a failure too fresh to be believed, or something not known at all."""
        if not look.estimates.bounded or any(one.verdict == "undecided" for one in look.judgements.values()):
            return True
        return bool(look.failed) and (self.seconds < self.patience_s or not look.failed <= self.failed_before)

    # ---- the result ---------------------------------------------------------------------------------------------

    def _timed(self, look: Look) -> Timed:
        samples, found, endpoint = self.sampler.samples, look.estimates, self.stack.endpoint
        effort = Effort(samples.requests, samples.rounds, self.seconds)
        stopped = not self.environment.precise and look.kept and not look.precise
        notes = remarks(look, endpoint, self.sampler.refused, stopped=stopped)
        turn = self.environment.turn.note
        return Timed(
            layers={row.layer.index: self._layer_time(row, look, effort) for row in look.rows},
            total=look.judged_total(effort),
            books=self._books(look),
            floor_us=found.detection_limit_us,
            slowdown=slowest(look, endpoint),
            effort=effort,
            notes=(*([turn] if turn else []), *notes),
        )

    def _layer_time(self, row: Row, look: Look, effort: Effort) -> LayerTime:
        judged = look.judged(row, effort)
        if row.us is None or not math.isfinite(row.us.half_width):
            return LayerTime(None, None, None, judged)
        return LayerTime(row.us, row.method, row.occupation, judged)

    def _books(self, look: Look) -> Books:
        """The rows beside the whole."""
        found = look.estimates
        endpoint = None if self.stack.endpoint is None else found.split.get(self.stack.endpoint)
        parts = [row.us for row in look.rows if row.us is not None] + [endpoint or ZERO, found.outside]
        bounded = all(math.isfinite(part.half_width) for part in [*parts, found.whole])
        return Books(
            total=found.whole,
            outside=found.outside,
            endpoint=endpoint,
            residue_us=math.fsum(part.estimate for part in parts) - found.whole.estimate if bounded else math.nan,
        )
