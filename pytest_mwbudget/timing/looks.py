"""Time the layers of a stack, look after look, until every verdict on time is known or the time is over.

A look is an evaluation of all samples so far.
"""

from __future__ import annotations

import math
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from ..analysis.budgeted import Bounded, bounded_rows
from ..analysis.estimates import Estimates, estimate
from ..analysis.judge import Judge, judge
from ..analysis.messages import with_messages
from ..analysis.remarks import remarks, slowest
from ..analysis.rows import row_with_time, shown
from ..analysis.samples import Samples
from ..analysis.slowdown import NONE, Hops, Interruptions
from ..analysis.tails import tails_of
from ..analysis.verdicts import NOT_ENTERED, Look, judge_all, more_time
from ..analysis.ways import Ways, why_mixed
from ..asgi import loops, server
from ..asgi.app import Observer
from ..asgi.stack import Stack
from ..config.settings import Settings
from ..errors import tagged
from ..interpreter.clocks import Clock, get_clock_info, perf_counter_ns, thread_time_ns
from ..model.estimate import Estimate, Microseconds, Nanoseconds, Seconds
from ..model.quantities import TAILS, TRAITS, Quantity
from ..model.results import FRAMES, Effort, Frame, Judged, ResultRow, Turn
from ..model.stack import TOTAL, EntryIndex, RowIndex
from .host_speed import Interrupted, Machine, Pieces, hop_ns
from .probes import Probes
from .sampler import Deadline, Part, Sampler
from .schedule import Schedule

# Takes the share of the time limit that is over, and None at the end.
Progress: TypeAlias = Callable[[float | None], None]

NS_PER_S = 1_000_000_000
# A processor's clock that ticks more slowly than this tells nothing about a request.
CPU_CLOCK_RESOLUTION_S = 1e-6


def cpu_clock() -> Clock | None:
    """Return the clock of the processor's time in this thread, None where it is too coarse."""
    about = get_clock_info("thread_time")
    posix = about.implementation.startswith("clock_gettime")  # elsewhere it ticks more slowly than it says
    return thread_time_ns if posix and about.resolution <= CPU_CLOCK_RESOLUTION_S else None


@dataclass(frozen=True, slots=True)
class Environment:
    """What a measurement needs from its surroundings.

    Tests replace the clocks, the hop, the source of chance, the estimator and the judge.
    """

    clock: Clock = perf_counter_ns
    cpu_clock: Clock | None = field(default_factory=cpu_clock)
    rng: random.Random = field(default_factory=random.Random)
    machine: Machine = field(default_factory=Machine)
    progress: Progress = lambda share: None
    # Round all requests but the first, which the test sees.
    apart: Callable[[], AbstractContextManager[None]] = nullcontext
    # Reports show the figures even if every budget is kept, the parts of endpoints, and what leaving out a layer saves.
    precise: bool = True
    inside: bool = False
    saves: bool = False
    # Whether requests divide the time of a run, so that one may get too little of it for a failure.
    divided: bool = False
    # The quantities that are not counted here, each with the reason.
    uncounted: Mapping[str, str] = field(default_factory=dict)
    # Round a measurement by the clock: waits until no other process measures. `turn` is what the context returned.
    turns: Callable[[], AbstractContextManager[Turn]] = lambda: nullcontext(Turn())
    turn: Turn = field(default_factory=Turn)
    schedule: Schedule = field(default_factory=Schedule)
    hop: Callable[[Clock], float] = hop_ns
    # Makes estimates of samples.
    estimate: Callable[..., Estimates] = estimate
    judge: Judge = judge

    @property
    def reads(self) -> bool:
        """Whether a reader needs more than the verdicts."""
        return self.precise or self.inside or self.saves


@dataclass(frozen=True, slots=True)
class Pace:
    """A typical request."""

    request_ns: float
    # A task is suspended in it.
    suspending: bool
    # The messages that entries send.
    sent: Mapping[EntryIndex, int]
    # How often it is handed to threads.
    hops: Hops = field(default_factory=Hops)
    # Many messages pass a layer.
    streamed: bool = False
    # The messages that entries receive, without entries that receive few.
    received: Mapping[EntryIndex, int] = field(default_factory=dict)
    # Says that requests take different ways, None if nearly all take the traced one.
    mixed: str | None = None


@dataclass(frozen=True, slots=True)
class Timed:
    """The result of timing a stack. Its rows have no counts yet."""

    layers: Mapping[RowIndex, ResultRow]
    frames: Mapping[Frame, ResultRow]
    # The sum of the rows less the whole request.
    residue_us: Microseconds
    floor_us: Microseconds
    slowdown: float
    # None if it is a guess.
    reference_ns: float | None
    effort: Effort
    # How far the figures can be trusted.
    notes: tuple[str, ...]
    # Those of the requests whose ways are known.
    ways: Ways

    @property
    def whole(self) -> Estimate:
        """The time of the whole request."""
        us = self.frames["total"].us
        assert us is not None
        return us


@dataclass(eq=False)
class Timing:
    """A stack being timed."""

    stack: Stack
    caller: server.Caller
    layers: Sequence[Bounded]
    settings: Settings
    environment: Environment
    pace: Pace
    # The looks at samples that were discarded. They have spent their share of ALPHA.
    looks_before: int = 0
    looks: int = 0
    over: bool = False
    latest: Look | None = None
    failed_before: frozenset[tuple[str, Quantity]] = frozenset()

    def __post_init__(self) -> None:
        environment, pace = self.environment, self.pace
        self.schedule = environment.schedule
        frames = self.settings.budgets.frames
        if pace.mixed is not None:
            frames.pop("total", None)  # its requests have no probes and cannot be told apart
        self.rows = bounded_rows(self.layers, frames, self.stack.endpoint)
        self.first_look = self.schedule.first_look(pace.request_ns)
        self.hops = pace.hops if pace.hops.whole and self._can_hop() else None
        self.begun_ns = environment.clock()
        # Real interruptions mean nothing on another clock.
        self.interrupted = _interrupted() if environment.clock is perf_counter_ns else None
        self.sampler = self._sampler()

    def _sampler(self) -> Sampler:
        caller, pace = self.caller, self.pace

        async def timed(observer: Observer | None) -> Nanoseconds:
            return (await caller(observer)).elapsed_ns

        def probes(clock: Clock) -> Probes:
            return Probes(self.stack, clock, suspending=pace.suspending, leaving=caller.leaves)

        # Each thread has a processor's clock of its own, and these cannot be compared.
        cpu_clock = None if self.stack.threads else self.environment.cpu_clock
        clock = self.environment.clock
        percentiles_us = [us for layer in self.layers for quantity, us in layer.bounds.items() if quantity in TAILS]
        return Sampler(
            probes(clock),
            probes(cpu_clock) if cpu_clock else None,
            timed,
            self.environment.rng,
            Samples(self.stack.probeable, pace.sent, received=pace.received),
            self.schedule,
            self.schedule.turn(pace.request_ns),
            hop=self._hop if self.hops else None,
            by_message=pace.streamed and self._reads_messages,
            pieces=Pieces.as_long_as(percentiles_us, pace.request_ns, clock) if percentiles_us else None,
        )

    @property
    def _reads_messages(self) -> bool:
        """Whether a report or a budget reads what a message costs."""
        bounded = (quantity for layer in self.layers for quantity in layer.bounds)
        return self.environment.precise or any(TRAITS[quantity].source == "messages" for quantity in bounded)

    def _can_hop(self) -> bool:
        """Return whether threads can be started here, by a first hop, which also warms it up."""
        try:
            self._hop(self.environment.clock)
        except RuntimeError:  # a limit on the number of threads
            return False
        return True

    def _hop(self, clock: Clock) -> float:
        with loops.unwatched():
            return self.environment.hop(clock)

    # ---- sampling -----------------------------------------------------------------------------------------------

    async def until_known(self) -> Timed:
        """Sample for look after look, each with twice as many requests, until all is known or the time is over."""
        __tracebackhide__ = True
        async with self._sampling() as extend:
            while True:
                await self._sample(extend)
                # Asked once a look, before judging, which takes time: the last look has to know that it is the last.
                self.over = self.seconds >= self.settings.max_time_s
                look = self._judge()
                if self.over or self._known(look):
                    return self._timed(look)

    async def kept_at_first_sight(self) -> Timed | None:
        """Time an app that need not be warm. Returns None unless every budget of time is certainly kept.

        A cold app is slower, so a budget that it keeps is kept. Any other verdict needs a warm app and a new `Timing`.
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
        try:
            async with self._limited() as extend:
                yield extend
                await self.sampler.confirm()
        finally:
            self.environment.progress(None)
            samples = self.sampler.samples
            shared = samples.shared_throughout()
            self.environment.machine.saw(samples.quick_ns(), self.seconds, samples.quick_hop_ns(), shared=shared)

    async def confirm(self) -> None:
        """Raise StackChangedError if the stack has changed since it was traced."""
        async with self._limited():
            await self.sampler.confirm()

    def _limited(self) -> AbstractAsyncContextManager[loops.Extend]:
        limit_s = self.request_limit_s
        message = (
            "the app stopped answering while it was measured: a request did not end within"
            f" {limit_s:g} s although requests before it did"
        )
        return self.caller.limited(limit_s, message)

    @property
    def request_limit_s(self) -> Seconds:
        """The longest time of a request."""
        return self.caller.limit_s or self.settings.startup_timeout_s

    @property
    def patience_s(self) -> Seconds:
        """The time to sample before a failure counts (docs/decisions/0012)."""
        return max(self.schedule.failure_time_s, self.schedule.watched_time_s - self.environment.machine.watched_s)

    @property
    def savings_ns(self) -> float:
        """The time for measuring what leaving out each layer saves."""
        return self.schedule.savings_share * self.settings.max_time_s * NS_PER_S

    @property
    def seconds(self) -> Seconds:
        """The time since sampling began."""
        return (self.environment.clock() - self.begun_ns) / NS_PER_S

    async def _sample(self, extend: loops.Extend, share: float = 1.0) -> None:
        """Make the requests of the next look, within this share of the time limit."""

        def tick() -> None:
            # The app answers, so its time to answer begins anew.
            extend(self.request_limit_s)
            self.environment.progress(min(1.0, self.seconds / self.settings.max_time_s))

        self.looks += 1
        wanted, limit_s = None, self.settings.max_time_s
        if self.latest is not None:
            wanted = self._wanted(self.latest)
            if not self._open(self.latest):
                limit_s = min(self.schedule.precision_time_s, limit_s)
        factor = 2 ** max(0, self.looks - 2)
        deadline = Deadline(self.begun_ns + round(share * limit_s * NS_PER_S), self.environment.clock, tick)
        await self.sampler.look(self.first_look * factor, deadline, wanted)

    def _wanted(self, look: Look) -> set[Part] | None:
        """Return the parts that undecided verdicts depend on.

        None for all parts: if no verdict is undecided, or a row has no interval yet. A failure that needs another look
        does not count, because the table of a failing test shows all rows.
        """
        if not look.estimates.bounded:
            return None
        wanted: set[Part] = set()
        for row, quantity, judged in look.budgets:
            if judged.verdict == "undecided":
                wanted |= _depends_on(row, look, quantity, judged.bound)
        return wanted or None

    # ---- judging ------------------------------------------------------------------------------------------------

    def _judge(self) -> Look:
        """Judge every budget of time by all samples so far."""
        if self.latest is not None:
            self.failed_before = self.latest.failed
        self.latest = judge_all(
            self.rows,
            self._estimated(),
            self._effort(),
            crowded=self.environment.turn.crowded or self._why_hasty(),
            time=self.settings.more_time,
            judge=self.environment.judge,
        )
        return self.latest

    def _why_hasty(self) -> str | None:
        """Return why a failure does not count where requests divide the time and this one got too little of it."""
        if not (self.over and self.environment.divided and self.seconds < self.patience_s):
            return None
        needed = more_time(self.patience_s, time=self.settings.more_time)
        return tagged(f"a failure in {self.seconds:.1f} s may be the machine's: {needed}", "too-few-requests")

    @property
    def mixed(self) -> str | None:
        """Why figures of requests that cannot be told apart are not those of the traced way, None if they are."""
        return why_mixed(self.sampler.ways) if self.sampler.ways.mixed else self.pace.mixed

    def _estimated(self) -> Estimates:
        if self.sampler.full_log:
            self.sampler.samples.of_parts = self.sampler.probes.messages_of_parts(self.sampler.full_log)
        estimates = self.environment.estimate(
            self.sampler.samples,
            self.stack.entries,
            outside=self.stack.outside,
            look=self.looks_before + self.looks,
            best_ns=self._best_ns(),
            last=self.over,
            hops=self.hops,
            best_hop_ns=self.environment.machine.best_hop_ns,
            interruptions=self._interruptions(),
            mixed=self.mixed is not None,
        )
        return with_messages(estimates, self.sampler.samples, self.stack.entries)

    def _best_ns(self) -> float:
        samples = self.sampler.samples
        return self.environment.machine.best_with(samples.quick_ns(), shared=samples.shared_throughout())

    def _interruptions(self) -> Interruptions:
        """Return the interruptions since sampling began."""
        now = None if self.interrupted is None else _interrupted()
        return NONE if self.interrupted is None or now is None else self.interrupted.until(now)

    def _known(self, look: Look) -> bool:
        """Return whether more requests would change no verdict and no figure that is shown."""
        limits = self.settings.limits
        # Recorded times are judged by the result alone, and must not fail sooner than a budget does.
        if self._open(look) or (limits is not None and limits.timed and self.seconds < self.patience_s):
            return False
        precise_enough = look.precise or self.seconds >= self.schedule.precision_time_s
        return precise_enough or (not self.environment.precise and look.kept)

    def _open(self, look: Look) -> bool:
        """Return whether a verdict is undecided, a failure does not count yet, or a row has no interval."""
        telling = (judged for row, quantity, judged in look.budgets if not _is_mute(row, quantity, look))
        if not look.estimates.bounded or any(judged.verdict == "undecided" for judged in telling):
            return True
        return bool(look.failed) and (self.seconds < self.patience_s or not look.failed <= self.failed_before)

    # ---- the result ---------------------------------------------------------------------------------------------

    def _timed(self, look: Look) -> Timed:
        stopped = not self.environment.precise and look.kept and not look.precise
        framework = self.stack.outside and self.stack.entries[0].seam is not None
        without_asgi = self.stack.without_asgi
        mixed = self.mixed is not None
        known = self.environment.machine.is_known
        guessed = not known and look.estimates.best_ns < self.sampler.samples.quick_ns()
        notes = remarks(
            look, stopped=stopped, framework=framework, outside_told=without_asgi, mixed=mixed, guessed=guessed
        )
        turn = self.environment.turn.note
        return Timed(
            layers={row.layer.index: self._report(row, look) for row in look.rows if not row.is_frame},
            frames=self._frames(look),
            residue_us=self._residue_us(look),
            floor_us=look.estimates.detection_limit_us,
            slowdown=slowest(look),
            reference_ns=None if guessed else look.estimates.best_ns,
            effort=self._effort(),
            notes=(*([turn] if turn else []), *notes),
            ways=self.sampler.ways,
        )

    def _frames(self, look: Look) -> dict[Frame, ResultRow]:
        """Return the rows that are no layers, as far as they have a time or a budget."""
        rows = {row.name: row for row in look.rows if row.us is not None or row.judged}
        frames: dict[Frame, ResultRow] = {frame: rows[name] for frame, name in FRAMES.items() if name in rows}
        for frame, bound in self.settings.budgets.frames.items():
            why = self._why_unjudged(frame)
            if why is not None:
                row = frames.get(frame) or ResultRow.of_frame(frame)
                frames[frame] = replace(row, judged={"us": Judged(bound, "undecided", why)})
        if self.mixed is not None and "total" in frames:
            frames["total"] = replace(frames["total"], unsure=self._why_unjudged("total"))
        return frames

    def _why_unjudged(self, frame: Frame) -> str | None:
        """Return why no request judges a row that is no layer, None if requests do."""
        handed_on = self.stack.handed_on
        if frame == "total" and self.mixed is not None:
            return tagged(self.mixed, "other-way")
        if frame != "endpoint" or self.stack.endpoint is not None:
            return None
        if handed_on is not None:
            return tagged(f"it is measured together with {handed_on.to_layer}: {handed_on.because}", "merged")
        return NOT_ENTERED

    def _report(self, row: ResultRow, look: Look) -> ResultRow:
        """Return a layer as users see it, with the percentiles of its time if a report or a budget needs them."""
        row, entry = shown(row), look.keys.get(row.name)
        needed = self.environment.precise or any(quantity in TAILS for quantity in row.judged)
        if not needed or row.us is None or not isinstance(entry, int):
            return row
        return replace(row, tails=tails_of(look.estimates, entry))

    def _effort(self) -> Effort:
        return Effort(self.sampler.samples.requests, self.sampler.samples.rounds, self.seconds)

    def _residue_us(self, look: Look) -> Microseconds:
        """Return the sum of the rows less the whole request, NaN if any of them has no interval."""
        times = [row.us for row in look.rows if row.us is not None]
        *parts, total = times
        bounded = all(us.bounded for us in times)
        return math.fsum(part.estimate for part in parts) - total.estimate if bounded else math.nan


def _depends_on(row: ResultRow, look: Look, quantity: Quantity, bound: float) -> set[Part]:
    """Return the parts that the verdict on a budget depends on; none if no time would bring a verdict."""
    if row.is_frame:
        return {"whole"} if row.name == TOTAL else _parts(row, look)
    teller, estimates = row_with_time(row, look.rows), look.estimates
    if (
        teller is None
        or teller.name not in look.keys
        or bound <= estimates.least_us
        or _is_mute(teller, quantity, look)
    ):
        return set()
    us = teller.estimates.get(quantity)
    if teller is not row and us is not None and us.low > bound:
        return set()  # a merged layer, whose neighbour alone is over the budget
    return _parts(teller, look) | ({"cpu"} if TRAITS[quantity].source == "occupation" else set())


def _parts(row: ResultRow, look: Look) -> set[Part]:
    """Return the parts that tell the time of a row that is not the total."""
    return {"split", "whole"} if look.keys.get(row.name) in look.estimates.by_whole else {"split"}


def _is_mute(row: ResultRow, quantity: Quantity, look: Look) -> bool:
    """Return whether no request tells a figure: layers in threads, or too few messages."""
    source = TRAITS[quantity].source
    return (source == "occupation" and look.estimates.in_threads) or (source == "messages" and row.messages is None)


def _interrupted() -> Interrupted | None:
    with loops.unwatched():
        return Interrupted.now()
