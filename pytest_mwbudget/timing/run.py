"""Time the layers of a stack, look after look, until every verdict on time is known or the time is over."""

from __future__ import annotations

import math
import random
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from ..analysis import verdicts
from ..analysis.estimates import ENOUGH_REQUESTS, SHARED_SHARE, Estimates, estimate
from ..analysis.verdicts import Judgement
from ..asgi import loops, server
from ..asgi.discovery import Stack
from ..config.settings import Settings
from ..interpreter.clocks import Clock, get_clock_info, perf_counter_ns, thread_time_ns
from ..model.estimate import ZERO, Estimate, Microseconds, Nanoseconds, Seconds, independent_sum
from ..model.results import Books, Effort, Judged, Method, Occupation, Quantity, Turn
from ..model.stack import Layer
from .host_speed import Machine
from .probes import Probes, task_layers
from .sampler import Deadline, Sampler, Wanted
from .schedule import Schedule

# Told the share of the time limit that is over, and None at the end.
Progress: TypeAlias = Callable[[float | None], None]

# A budget of time: of a layer, by its index, on a quantity; None is that of the whole request.
BudgetKey: TypeAlias = tuple[int, Quantity] | None

NS_PER_S = 1_000_000_000
# An interval this narrow, beside what the method may be wrong by, needs no more requests for its own sake.
PRECISE_US, PRECISE_SHARE = 0.15, 0.03
# A bypass that differs from the split by more than this share and this much has changed more than the layer: what is
# inside it does something else without it.
BYPASS_SHARE, BYPASS_US = 0.25, 10.0
# Methods that RFC 9110 calls safe: only such a request may be sent past one of its layers.
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
# The event loop's own way from one step of a task to the next is no wait: what is less than this is not told from it.
WAIT_SHARE, WAIT_US = 0.25, 5.0
# Holding the event loop without working, for so long and so much of the time, is blocking.
BLOCKING_SHARE, BLOCKING_US = 0.25, 50.0
# Outside of all layers an app object takes a few microseconds. So much, and so much of the request, is done by what was
# put round it.
OUTSIDE_SHARE, OUTSIDE_US = 0.25, 50.0
# Rows that do not add up to the total are worth a note from this share and this much on, where their intervals do not
# explain it: on the apps that the method was tried on they add up within 1 to 6 per cent.
UNEXPLAINED_SHARE, UNEXPLAINED_US = 0.06, 2.0
# An interval this wide says little: a budget of 1.3 times the figure, as the docs advise, lies within it. Of a few
# microseconds nobody decides on so much less.
WIDE_SHARE, WIDE_US = 0.3, 5.0
# Nobody waits longer than this for one request: then the advice is something else than more time.
LONGEST_ADVISED_S: Seconds = 60.0
# Above an endpoint that waits as long as this, layers cost more than above one that answers at once. A thread that it
# waits for takes some 60 µs, and doubles the rows.
COLD_WAIT_US = 40.0
# So many figures are named in a note; of more it says how many.
MOST_NAMED = 3
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
class Together:
    """What is measured with a layer, because no probe can stand between: `why` names it.

    `bounds` are the sums of the budgets of all of them, where all have one.
    """

    why: str
    bounds: Mapping[Quantity, float]

    def may_explain(self, quantity: Quantity, judge: Callable[[float], Judgement]) -> bool:
        """Whether a failure of the layer may be the others', as `judge` says of what all may take together."""
        bound = self.bounds.get(quantity)
        return bound is None or judge(bound).verdict != "fail"


@dataclass(slots=True)
class Row:
    """A layer on its way to a report. `bounds` are its budgets, `method_us` is what no more requests would narrow."""

    entry: int | None
    layer: Layer
    bounds: Mapping[Quantity, float]
    together: Together | None = None
    us: Estimate | None = None
    method: Method | None = None
    method_us: Microseconds = 0.0
    occupation: Occupation | None = None
    judgements: dict[Quantity, Judgement] = field(default_factory=dict)

    @property
    def precise(self) -> bool:
        """Whether its interval is as narrow as it will be shown."""
        if self.us is None:
            return True
        return _narrow(self.us, self.us.half_width - self.method_us)

    def estimate_of(self, quantity: Quantity) -> Estimate | None:
        """The estimate that a budget of time is held against."""
        if quantity == "us":
            return self.us
        return self.occupation.busy if self.occupation else None


@dataclass(frozen=True, slots=True)
class Pace:
    """What the app is like to call.

    One request after warming up takes `request_ns`; `suspending` says whether any task waits in it; an entry sends
    `sent` messages.
    """

    request_ns: float
    suspending: bool
    sent: Mapping[int, int]


class Timing:
    """One stack being timed.

    `looks_before` is the number of looks at samples that were thrown away: they have spent their share of the chance
    to err.
    """

    def __init__(
        self,
        stack: Stack,
        caller: server.Caller,
        rows: list[Row],
        settings: Settings,
        environment: Environment,
        pace: Pace,
        looks_before: int = 0,
    ) -> None:
        self.stack = stack
        self.rows = rows
        self.settings = settings
        self.environment = environment
        self.schedule = environment.schedule
        self.caller = caller
        self.look = 0
        self.looks_before = looks_before
        self.over = False
        self.total: Judgement | None = None
        self.failed_before: set[BudgetKey] = set()
        self.estimates: Estimates | None = None
        self.first_look = self.schedule.first_look(pace.request_ns)
        self.begun_ns = environment.clock()
        self.sampler = self._bisection(caller, pace)

    def _bisection(self, caller: server.Caller, pace: Pace) -> Sampler:
        async def timed(observer: server.Observer | None) -> Nanoseconds:
            return (await caller(observer)).elapsed_ns

        shown = [row.entry for row in self.rows]
        passable = [layer for layer in task_layers(self.stack) if layer.index in shown]
        sampler = Sampler(
            Probes(self.stack, self.environment.clock, suspending=pace.suspending),
            passable,
            timed,
            self.environment.clock,
            self.environment.rng,
            pace.sent,
            self.schedule,
            self.schedule.turn(pace.request_ns),
            # Each thread has a clock of its own, and these cannot be compared.
            None if self.stack.threads else self.environment.cpu_clock,
        )
        why_not = self._no_bypass(
            caller.template.request.method, len(passable) * self.schedule.bypass_calls * pace.request_ns
        )
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

    async def until_known(self) -> None:
        """Look again and again, at twice as many requests each time, until all is known or the time is over."""
        __tracebackhide__ = True
        async with self._sampling() as extend:
            while self.look == 0 or not (self._known() or self.over):
                await self._sample(extend)
                # Asked once a look, because judging takes time: the last look is one that knows that it is.
                self.over = self.seconds >= self.settings.max_time_s
                self._judge()

    async def kept_at_first_sight(self) -> bool:
        """Look at an app that need not be warm, and say whether every budget of time is kept for certain.

        What is not warm is slower, so a budget that is kept then is kept. Any other verdict needs samples of a warm
        app, and another `Timing`.
        """
        __tracebackhide__ = True
        async with self._sampling() as extend:
            while self.look < self.schedule.first_sight_looks and not (self._kept() or self._seems_broken()):
                await self._sample(extend, self.schedule.first_sight_share)
                self._judge()
        return self._kept()

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

        self.look += 1
        wanted = self._wanted() if self.look > 1 else None
        precise_enough = self.look > 1 and not self._open()
        limit_s = (
            min(self.schedule.precision_time_s, self.settings.max_time_s)
            if precise_enough
            else self.settings.max_time_s
        )
        factor = 2 ** max(0, self.look - 2)
        deadline = Deadline(self.begun_ns + round(share * limit_s * NS_PER_S), self.environment.clock, tick)
        await self.sampler.look(self.first_look * factor, self.schedule.first_look_pairs * factor, deadline, wanted)

    def _wanted(self) -> Wanted | None:
        """What undecided verdicts hang on; None for everything, where there are none or something has no interval yet.

        A failure that is only fresh wants nothing by itself: the rows that it stands among are shown as well.
        """
        if not self._bounded():
            return None
        wanted = Wanted()
        for row in self.rows:
            for quantity, judgement in row.judgements.items():
                if judgement.verdict == "undecided":
                    wanted |= self._hangs_on(row, quantity, row.bounds[quantity])
        if self.total and self.total.verdict == "undecided":
            wanted |= Wanted(whole=True)
        return None if wanted == Wanted() else wanted

    def _hangs_on(self, row: Row, quantity: Quantity, bound: Microseconds) -> Wanted:
        """What the verdict on a budget of a layer hangs on; nothing where no time would bring one."""
        teller, found = self._told_by(row), self.estimates
        assert found is not None
        if teller is None or teller.entry is None or bound <= found.least_us:
            return Wanted()
        us = teller.estimate_of(quantity)
        if teller is not row and us is not None and us.low > bound:
            return Wanted()  # merged, and its neighbour alone takes more
        busy = quantity == "busy_us"
        if teller.entry not in [layer.index for layer in self.sampler.bypassable]:
            return Wanted(split=True, cpu=busy)
        # What is busy is the bypass less the wait, which the split and the processor's time tell.
        split = busy or self._floor_may_fall_to(bound) or _contested(teller, quantity, bound, found)
        return Wanted(frozenset([teller.entry]), split=split, cpu=busy)

    def _floor_may_fall_to(self, bound: Microseconds) -> bool:
        """Whether a budget below the floor, which the null layers of the split tell, may not be so with more time."""
        return self.estimates is not None and self.estimates.least_us < bound < self.estimates.floor_us

    # ---- judging ------------------------------------------------------------------------------------------------

    def _judge(self) -> None:
        """Estimates for every row from all samples so far, and a verdict for every budget."""
        self.failed_before = {key for key, judgement in self._judgements().items() if judgement.verdict == "fail"}
        found = self._estimated()
        while self._refused_bypass(found):
            found = self._estimated()
        self.estimates = found
        for row in self.rows:
            if row.entry in found.bypass and math.isfinite(found.bypass[row.entry].half_width):
                row.us, row.method = found.bypass[row.entry], "bypass"
            elif row.entry in found.split:
                shared_us = found.shared_us.get(row.entry, 0.0)
                row.us, row.method = found.split[row.entry].widened(shared_us), "split"
            if row.entry in found.method_us:
                row.method_us = found.method_us[row.entry]
                row.method_us += found.shared_us.get(row.entry, 0.0) if row.method == "split" else 0.0
            row.occupation = _occupation(row, found)
            for quantity, bound in row.bounds.items():
                row.judgements[quantity] = self._judgement(row, quantity, bound, found)
        total_us = self.settings.budgets.total_us
        if total_us is not None:
            # It has no probes, so it needs no floor.
            self.total = self._judged(found.whole, total_us, found.slowdowns.whole, probed=False)

    def _estimated(self) -> Estimates:
        return estimate(
            self.sampler.samples,
            self.stack.entries,
            outside=self.stack.outside,
            look=self.looks_before + self.look,
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

    def _judgement(self, row: Row, quantity: Quantity, bound: Microseconds, found: Estimates) -> Judgement:
        us = row.estimate_of(quantity)
        if us is None:
            return self._merged_judgement(row, quantity, bound)
        pending = row.method == "split" and row.entry in [layer.index for layer in self.sampler.bypassable]
        if pending and not self.over:
            return Judgement("undecided", "the layer runs its inside in a task, and there are few pairs without it yet")
        judge = partial(self._judged, us, slowdown=_slowdown(row, found))
        judgement = judge(bound)
        if judgement.verdict == "fail" and _contested(row, quantity, bound, found):
            return Judgement("undecided", "the bypass says it is over its budget, the split does not")
        if judgement.verdict == "fail" and row.together and row.together.may_explain(quantity, judge):
            return Judgement("undecided", row.together.why)
        return judgement

    def _merged_judgement(self, row: Row, quantity: Quantity, bound: Microseconds) -> Judgement:
        """A merged layer is within its budget when it and its neighbour together are."""
        if row.layer.merged_with is None:
            told = "its time" if quantity == "us" else "how long it holds the event loop"
            return Judgement("undecided", f"there were too few requests to tell {told}; give it more max_time")
        together = self._told_by(row)
        us = together.estimate_of(quantity) if together else None
        if us is not None and us.high <= bound:
            return Judgement("pass")
        return Judgement("undecided", merged(row.layer))

    def _told_by(self, row: Row) -> Row | None:
        """The row that tells of this one: itself, or the neighbour with which it is merged, if that is a layer."""
        if row.layer.merged_with is None:
            return row
        return next((other for other in self.rows if other.layer.name == row.layer.merged_with), None)

    def _judged(self, us: Estimate, bound: Microseconds, slowdown: float, *, probed: bool = True) -> Judgement:
        assert self.estimates is not None
        found = self.estimates
        floor_us = found.floor_us if probed else 0.0
        judgement = verdicts.judge(us, bound, floor=floor_us, slowdown=slowdown, least_us=found.least_us)
        if judgement.verdict == "fail" and self.environment.turn.crowded:
            return Judgement("undecided", self.environment.turn.crowded)
        return judgement

    def _known(self) -> bool:
        """Whether more requests would change no verdict, and no figure that somebody reads."""
        if self._open():
            return False
        precise_enough = self._precise() or self.seconds >= self.schedule.precision_time_s
        return precise_enough or (not self.environment.precise and self._kept())

    def _kept(self) -> bool:
        """Whether there are budgets of time, and all of them are kept for certain."""
        verdicts = {judgement.verdict for judgement in self._judgements().values()}
        return verdicts == {"pass"} and self._bounded() and not any(map(self._bypass_decides, self.rows))

    def _seems_broken(self) -> bool:
        """Whether the last look said that a budget of time is not kept."""
        return any(judgement.verdict == "fail" for judgement in self._judgements().values())

    def _bypass_decides(self, row: Row) -> bool:
        """Whether a budget is kept by the bypass alone.

        With few requests a bypass that has changed more than its layer is not told from one that has not. The split
        has every layer in place: what it shows to be kept is kept, whatever becomes of the bypass.
        """
        if row.method != "bypass" or row.entry is None or self.estimates is None:
            return False
        shared_us = self.estimates.shared_us.get(row.entry, 0.0)
        clocks = {"us": self.estimates.split[row.entry], "busy_us": _busy(row.entry, self.estimates)}
        return any((clocks[quantity].widened(shared_us)).high > bound for quantity, bound in row.bounds.items())

    def _precise(self) -> bool:
        """Whether the rows are as narrow as they will be shown; where there are none, whether the whole is."""
        assert self.estimates is not None
        if all(row.us is None for row in self.rows):
            return _narrow(self.estimates.whole, self.estimates.whole.half_width)
        return all(row.precise for row in self.rows)

    def _open(self) -> bool:
        """Whether a verdict is still undecided, a failure too fresh to be believed, or something not known at all."""
        if not self._bounded():
            return True
        fresh = self.seconds < self.patience_s
        return any(
            judgement.verdict == "undecided"
            or (judgement.verdict == "fail" and (fresh or key not in self.failed_before))
            for key, judgement in self._judgements().items()
        )

    def _judgements(self) -> dict[BudgetKey, Judgement]:
        """What the last look said of every budget of time."""
        found: dict[BudgetKey, Judgement] = {
            (row.layer.index, quantity): judgement
            for row in self.rows
            for quantity, judgement in row.judgements.items()
        }
        return found if self.total is None else found | {None: self.total}

    def _bounded(self) -> bool:
        """Whether all that is shown has an interval."""
        found = self.estimates
        assert found is not None
        shown = [found.whole, *found.split.values(), *(found.cpu or {}).values()]
        if self.sampler.probes.probed:
            shown.append(found.outside)
        return all(math.isfinite(us.half_width) for us in shown)

    # ---- reporting ----------------------------------------------------------------------------------------------

    @property
    def effort(self) -> Effort:
        """What it took."""
        samples = self.sampler.samples
        return Effort(samples.requests, samples.rounds, self.seconds)

    @property
    def floor_us(self) -> Microseconds:
        """The least overhead that this run could tell from nothing."""
        assert self.estimates is not None
        return self.estimates.floor_us

    @property
    def slowdown(self) -> float:
        """How many times slower than at its best the machine ran, at the slowest of the figures that are shown."""
        return max(self._slowdowns().values())

    def judged(self, row: Row) -> dict[Quantity, Judged]:
        """The verdicts on a row's budgets of time, with their reasons."""
        assert self.estimates is not None
        slowdown = _slowdown(row, self.estimates)
        return {
            quantity: Judged(
                row.bounds[quantity],
                judgement.verdict,
                self._reason(judgement, row.estimate_of(quantity), row.bounds[quantity], slowdown, row.method_us),
            )
            for quantity, judgement in row.judgements.items()
        }

    def judged_total(self) -> Judged | None:
        """The verdict on the whole request, None when it has no budget."""
        bound = self.settings.budgets.total_us
        if self.total is None or bound is None or self.estimates is None:
            return None
        reason = self._reason(self.total, self.estimates.whole, bound, self.estimates.slowdowns.whole)
        return Judged(bound, self.total.verdict, reason)

    def _reason(
        self,
        judgement: Judgement,
        us: Estimate | None,
        bound: Microseconds,
        slowdown: float,
        method_us: Microseconds = 0.0,
    ) -> str | None:
        """Why it is undecided, and how long a verdict would take; `method_us` of the interval no time would narrow."""
        if judgement.reason is None or us is None:
            return judgement.reason
        if not math.isfinite(us.half_width):
            rate = self.sampler.samples.requests / max(self.seconds, 1e-9)
            advice = more_time(ENOUGH_REQUESTS / max(rate, 1e-9))
            return f"there were too few requests for an interval: {advice}"
        if not judgement.time_tells:
            return judgement.reason
        needed = verdicts.seconds_needed(us, bound, self.seconds, slowdown=slowdown, method_us=method_us)
        if needed is None:
            return (
                f"{judgement.reason}; it stands so near its budget that no run would tell: a budget of 1.3 times the"
                " figure leaves room"
            )
        return f"{judgement.reason}; {more_time(needed, us)}"

    def books(self) -> Books:
        """The rows beside the whole."""
        found = self.estimates
        assert found is not None
        endpoint = None if self.stack.endpoint is None else found.split.get(self.stack.endpoint)
        parts = [row.us for row in self.rows if row.us is not None] + [endpoint or ZERO, found.outside]
        bounded = all(math.isfinite(part.half_width) for part in [*parts, found.whole])
        return Books(
            total=found.whole,
            outside=found.outside,
            endpoint=endpoint,
            residue_us=math.fsum(p.estimate for p in parts) - found.whole.estimate if bounded else math.nan,
        )

    def notes(self) -> Iterator[str]:
        """How far the times can be trusted, one sentence each."""
        if self.environment.turn.note:
            yield self.environment.turn.note
        if self.slowdown > 1:
            yield f"The machine ran {self.slowdown:.2f} times slower than at its best{self._while_read()}."
        if not self.environment.precise and self._kept() and not self._precise():
            yield (
                "Sampling stopped as soon as every budget was known to be kept. For precise figures run with -v, or"
                " write a report."
            )
        else:
            yield from self._wide()
        yield from self._unexplained()
        yield from self._cold()
        if self._much_outside():
            yield (
                "(outside) is what stands round the app object itself, as Sentry and OpenTelemetry may: no layer, and"
                " in no budget but total_us."
            )
        for row in self.rows:
            if row.entry in self.sampler.refused:
                because = self.sampler.refused[row.entry]
                yield f"{row.layer.name} could not be bypassed ({because}); its row may be {SHARED_SHARE:.0%} off."

    def _figures(self) -> dict[str, Estimate]:
        """The figures that are shown, by the name of the row."""
        books = self.books()
        figures = {"(outside)": books.outside} if self.sampler.probes.probed else {}
        figures |= {row.layer.name: row.us for row in self.rows if row.us is not None}
        if books.endpoint is not None:
            figures["(endpoint)"] = books.endpoint
        return figures | {"(total)": books.total}

    def _wide(self) -> Iterator[str]:
        """Which figures are known so badly that they say little."""
        wide = [
            name
            for name, us in self._figures().items()
            if math.isfinite(us.half_width) and us.half_width > max(WIDE_US, WIDE_SHARE * abs(us.estimate))
        ]
        if wide:
            named = ", ".join(wide) if len(wide) <= MOST_NAMED else f"{len(wide)} figures"
            yield (
                f"The intervals of {named} are too wide to set a budget by, {WIDE_SHARE:.0%} and more to one side."
                " Measure again when the machine is less busy; if the app waits for a database or a network, with an"
                " async stand-in for it."
            )

    def _unexplained(self) -> Iterator[str]:
        """By how much rows and total do not fit together, where that is more than their intervals explain."""
        figures = self._figures()
        total = figures.pop("(total)")
        residue = independent_sum(*figures.values(), -total)
        if not math.isfinite(residue.half_width) or residue.low <= 0 <= residue.high:
            return
        if abs(residue.estimate) > max(UNEXPLAINED_US, UNEXPLAINED_SHARE * total.estimate):
            more = "more" if residue.estimate > 0 else "less"
            yield (
                f"The rows add up to {abs(residue.estimate) / total.estimate:.0%} {more} than the total, which their"
                " intervals do not explain: some row, or the total, is wrong by up to"
                f" {abs(residue.estimate):.0f} µs. Measure again when the machine is less busy."
            )

    def _cold(self) -> Iterator[str]:
        """That rows above an endpoint that waits are not those above another one."""
        found, endpoint = self.estimates, self.stack.endpoint
        assert found is not None
        waited_us = 0.0 if endpoint is None else found.suspended.get(endpoint, 0.0)
        if waited_us > COLD_WAIT_US and any(row.us is not None for row in self.rows):
            yield (
                f"The endpoint waits, for {_duration(waited_us)}. Caches are cold when it goes on, so the same layer"
                " costs two to four times what it costs above an endpoint that answers at once. The rows are right for"
                " this request; compare them, and set budgets, for one request only."
            )

    def _while_read(self) -> str:
        """Which figures were read at a slow time, where only some of them were: they do not add up with the others."""
        slowdowns = self._slowdowns()
        slow = [name for name, slowdown in slowdowns.items() if slowdown > 1]
        if len(slow) == len(slowdowns):
            return ""
        named = ", ".join(slow) if len(slow) <= MOST_NAMED else f"{len(slow)} of {len(slowdowns)} figures"
        return f" while it read {named}, and not for the rest"

    def _slowdowns(self) -> dict[str, float]:
        """How much slower than at its best the machine ran for each figure that is shown; at least 1."""
        found = self.estimates
        assert found is not None
        slowdowns = {"(outside)": found.slowdowns.outside} if self.sampler.probes.probed else {}
        slowdowns |= {row.layer.name: _slowdown(row, found) for row in self.rows if row.us is not None}
        endpoint = self.stack.endpoint
        if endpoint is not None and endpoint in found.slowdowns.split:
            slowdowns["(endpoint)"] = found.slowdowns.split[endpoint]
        return slowdowns | {"(total)": found.slowdowns.whole}

    def _much_outside(self) -> bool:
        found = self.estimates
        if found is None or any(self._told_by(row) is None for row in self.rows):
            return False  # a layer is measured with it
        return found.outside.low > max(OUTSIDE_US, OUTSIDE_SHARE * found.whole.estimate)


def more_time(seconds: Seconds, us: Estimate | None = None) -> str:
    """How to get what takes this long: by waiting, or where nobody waits so long, by something else.

    `us` is the figure that a budget is held against, where there is one.
    """
    if seconds <= LONGEST_ADVISED_S:
        return f"--mw-budget-max-time={math.ceil(seconds)} may be enough"
    roomy = (
        "" if us is None or us.estimate <= 0 else f", or a budget of 1.3 times the figure ({1.3 * us.estimate:.3g} µs)"
    )
    return (
        f"that would take more than {LONGEST_ADVISED_S:.0f} s; give the app an async stand-in for what it waits for, or"
        f" use a budget of counts (tasks, objects){roomy}"
    )


def _duration(us: Microseconds) -> str:
    return f"{us / 1000:.3g} ms" if us >= 1000 else f"{us:.0f} µs"


def _narrow(us: Estimate, half_width_us: Microseconds) -> bool:
    return half_width_us <= max(PRECISE_US, PRECISE_SHARE * us.estimate)


def _slowdown(row: Row, found: Estimates) -> float:
    """How much slower than at its best the machine ran in the requests that a row was read from; at least 1."""
    slowdowns = found.slowdowns.bypass if row.method == "bypass" else found.slowdowns.split
    return 1.0 if row.entry is None else slowdowns.get(row.entry, 1.0)


def _contested(row: Row, quantity: Quantity, bound: Microseconds, found: Estimates) -> bool:
    """Whether the bypass says that it is over its budget, and the split does not: a test fails when both say so."""
    us = row.estimate_of(quantity)
    if row.method != "bypass" or row.entry is None or us is None or us.low <= bound:
        return False
    split = found.split[row.entry] if quantity == "us" else _busy(row.entry, found)
    return split.estimate <= bound


def merged(layer: Layer) -> str:
    """Why nothing can be said of a layer alone."""
    return f"it is measured together with {layer.merged_with}: {layer.merged_because}"


def _waits(entry: int, found: Estimates) -> bool:
    """Whether it stands idle while it is suspended."""
    suspended_us = found.suspended[entry]
    return suspended_us - found.suspended_cpu[entry].estimate > max(WAIT_US, WAIT_SHARE * suspended_us)


def _busy(entry: int, found: Estimates) -> Estimate:
    """By the split, how long it holds the event loop: what the loop works for it while it is suspended included."""
    return found.holding[entry] + found.suspended_cpu[entry] if _waits(entry, found) else found.split[entry]


def _occupation(row: Row, found: Estimates) -> Occupation | None:
    """How the layer spends its time; None where that time is not known well enough."""
    if row.us is None or row.entry is None or not math.isfinite(row.us.half_width):
        return None
    split, waits = _busy(row.entry, found), _waits(row.entry, found)
    busy = split.widened(found.shared_us.get(row.entry, 0.0)) if row.method == "split" else row.us
    if waits and row.method == "bypass":
        suspended_us = found.suspended[row.entry]
        idle = Estimate(suspended_us, suspended_us, suspended_us) - found.suspended_cpu[row.entry]
        busy = row.us - idle
    if not math.isfinite(busy.half_width):
        return None
    wait_us = max(0.0, row.us.estimate - busy.estimate) if waits else 0.0
    if found.cpu is None or not math.isfinite(found.cpu[row.entry].half_width):
        return Occupation(busy, wait_us, None)
    # Busy without working; where the intervals do not tell it from nothing, there is none.
    idle_us = split - found.cpu[row.entry]
    cpu_us = busy.estimate - idle_us.estimate if idle_us.low > 0 else busy.estimate
    blocking = idle_us.low > max(BLOCKING_US, BLOCKING_SHARE * busy.estimate)
    return Occupation(busy, wait_us, max(0.0, cpu_us), blocking)
