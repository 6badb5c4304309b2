"""The one sequence of a measurement: start the app, call it, find its layers, sample, judge, stop."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter_ns
from typing import Any, TypeAlias

import httpx

from . import asgi, budgets, discovery
from .bisect import Bisection, Deadline
from .boundaries import Clock, Probes, task_layers
from .budgets import Judgement
from .errors import MeasurementError
from .estimates import ZERO, Estimates, Machine, estimate
from .instruments import Instruments, suspended, threads_untraced
from .model import (
    Books,
    Effort,
    Estimate,
    Layer,
    LayerReport,
    Measurement,
    Method,
    Microseconds,
    Nanoseconds,
    RequestLine,
    Seconds,
    Verdict,
)
from .settings import Settings

# Told the share of the time limit that is over, and None at the end.
Progress: TypeAlias = Callable[[float | None], None]

NS_PER_S = 1_000_000_000
WARM_CALLS, WARM_NS = 1000, 300_000_000
FIRST_LOOK_REQUESTS = 128
FIRST_LOOK_PAIRS = 16
# With fewer requests than this there may be no interval at all.
ENOUGH_REQUESTS = 40
# The shown precision: an interval this narrow needs no more requests for its own sake.
PRECISE_US, PRECISE_SHARE = 0.15, 0.03
# Precision alone is worth no more than this; an open verdict is worth all the time there is.
PRECISION_TIME_S: Seconds = 2.0
# Looks are taken in turns of about so long, of so many requests at least and at most.
TURN_NS, SHORTEST_TURN, LONGEST_TURN = 250_000_000, 8, 512
# A task layer is bypassed only where there is time for so many calls; above a slow endpoint the split is left alone.
BYPASS_CALLS = 1000
# A bypass that differs from the split by more than this share and this much has changed more than the layer: what is
# inside it does something else without it.
BYPASS_SHARE, BYPASS_US = 0.25, 10.0
# Methods that RFC 9110 calls safe: only such a request may be sent past one of its layers.
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")


@dataclass(frozen=True, slots=True)
class Bench:
    """What a measurement needs from its surroundings; tests replace the clock and the chance."""

    clock: Clock = perf_counter_ns
    rng: random.Random = field(default_factory=random.Random)
    machine: Machine = field(default_factory=Machine)
    progress: Progress = lambda share: None


async def send_once(app: asgi.ASGIApp, request: httpx.Request, settings: Settings) -> Measurement:
    """Make the request once, within the app's lifespan; nothing is timed."""
    async with _running(app, request, settings) as caller:
        exchange = await _first_call(caller, settings)
        return Measurement(
            request=_line(request), status=exchange.status, response=exchange.response(), loop=_loop_name()
        )


async def measure(app: asgi.ASGIApp, request: httpx.Request, settings: Settings, bench: Bench) -> Measurement:
    """Measure every layer that the request goes through, and judge it by the budgets.

    Raises ResponseError, LifespanError, LayerNameError or MeasurementError, and whatever the app raises.
    """
    __tracebackhide__ = True
    with threads_untraced():
        async with _running(app, request, settings) as caller:
            caller.clock = bench.clock
            response = (await _first_call(caller, settings)).response()
            with suspended() as instruments:
                run = await _Run.prepared(caller, settings, bench, instruments)
                await run.until_known()
            return run.measurement(_line(request), response)


@asynccontextmanager
async def _running(app: asgi.ASGIApp, request: httpx.Request, settings: Settings) -> AsyncIterator[asgi.Caller]:
    """A caller of the started app."""
    with asgi.exit_refused():
        template = await asgi.template(request)
        if not settings.lifespan:
            yield asgi.Caller(app, template, None, settings.expect_status)
            return
        async with asgi.lifespan(app, settings.startup_timeout_s) as state:
            yield asgi.Caller(app, template, state, settings.expect_status)


async def _first_call(caller: asgi.Caller, settings: Settings) -> asgi.Exchange:
    """The reference response, from a request that coverage and debuggers may watch."""
    __tracebackhide__ = True
    limit = asyncio.timeout(settings.startup_timeout_s)
    try:
        async with limit:
            return await caller()
    except TimeoutError:
        if not limit.expired():
            raise  # the app's own
        raise MeasurementError(
            f"{_line(caller.template.request)}: the app did not finish its response within"
            f" {settings.startup_timeout_s:g} s; an endless stream cannot be measured, and a slow start needs a higher"
            f" mw_budget_startup_timeout"
        ) from None


def _line(request: httpx.Request) -> RequestLine:
    return RequestLine(request.method, request.url.raw_path.decode("ascii", "replace"))


def _loop_name() -> str:
    return type(asyncio.get_running_loop()).__module__.partition(".")[0]


@dataclass(slots=True)
class _Row:
    """A layer on its way to a report."""

    entry: int | None
    layer: Layer
    budget_us: Microseconds | None
    us: Estimate | None = None
    method: Method | None = None
    judgement: Judgement | None = None

    @property
    def open(self) -> bool:
        """Whether more requests could settle its verdict."""
        return self.layer.entered and self.judgement is not None and self.judgement.verdict == "undecided"

    @property
    def precise(self) -> bool:
        """Whether its interval is as narrow as it will be shown."""
        return self.us is None or _precise(self.us)


_ANEW = "a bypass was dropped when the time was nearly over"


def _precise(us: Estimate) -> bool:
    return us.half_width <= max(PRECISE_US, PRECISE_SHARE * us.estimate)


class _Run:
    """One measurement under way."""

    def __init__(
        self,
        stack: discovery.Stack,
        bisection: Bisection,
        settings: Settings,
        bench: Bench,
        instruments: Instruments,
        rows: list[_Row],
    ) -> None:
        self.stack = stack
        self.bisection = bisection
        self.settings = settings
        self.bench = bench
        self.instruments = instruments
        self.rows = rows
        self.look = 0
        self.total: Judgement | None = None
        self.estimates: Estimates | None = None
        self.begun_ns = bench.clock()
        self.limit = asyncio.timeout(None)

    @classmethod
    async def prepared(cls, caller: asgi.Caller, settings: Settings, bench: Bench, instruments: Instruments) -> _Run:
        """Warm the app, find its layers and their budgets."""
        request_ns = await _warm(caller, bench.clock)

        async def traced(trace: discovery.Trace) -> None:
            async def observer(app: Any, scope: Any, receive: Any, send: Any) -> None:
                with trace.watching():
                    await app(scope, receive, send)

            await caller(observer, {discovery.TRACE_KEY: True})

        async def timed(observer: asgi.Observer | None) -> Nanoseconds:
            return (await caller(observer)).elapsed_ns

        stack = await discovery.discover(traced)
        if asyncio.get_running_loop().get_debug():
            instruments.active.append("asyncio's debug mode")
        bounds = budgets.assign(settings.budgets, [layer for _, layer in stack.layers])
        safe = caller.template.request.method in SAFE_METHODS
        rows = [_Row(entry, layer, bounds.get(layer.index)) for entry, layer in stack.layers]
        shown = [entry for entry, layer in stack.layers if layer.entered]
        passable = [layer for layer in task_layers(stack) if layer.index in shown] if safe else []
        affordable = settings.max_time_s * NS_PER_S >= len(passable) * BYPASS_CALLS * request_ns
        turn = round(min(max(TURN_NS / max(request_ns, 1.0), SHORTEST_TURN), LONGEST_TURN))
        bisection = Bisection(
            Probes(stack, bench.clock), passable if affordable else [], timed, bench.clock, bench.rng, turn
        )
        return cls(stack, bisection, settings, bench, instruments, rows)

    # ---- sampling -----------------------------------------------------------------------------------------------

    async def until_known(self) -> None:
        """Look again and again, at twice as many requests each time, until all is known or the time is over."""
        __tracebackhide__ = True
        self.limit = asyncio.timeout(self.settings.startup_timeout_s)
        try:
            async with self.limit:
                while self.look == 0 or not (self._known() or self.seconds >= self.settings.max_time_s):
                    await self._sample()
                    self._judge()
        except TimeoutError:
            if not self.limit.expired():
                raise  # the app's own
            raise MeasurementError(
                "the app stopped answering while it was measured: a request did not end within"
                f" {self.settings.startup_timeout_s:g} s although requests before it did"
            ) from None
        finally:
            self.bench.progress(None)

    @property
    def seconds(self) -> Seconds:
        """How long it has been sampling."""
        return (self.bench.clock() - self.begun_ns) / NS_PER_S

    async def _sample(self) -> None:
        self.look += 1
        precise_enough = self.look > 1 and not self._open()
        limit_s = min(PRECISION_TIME_S, self.settings.max_time_s) if precise_enough else self.settings.max_time_s
        factor = 2 ** max(0, self.look - 2)
        deadline = Deadline(self.begun_ns + round(limit_s * NS_PER_S), self.bench.clock, self._tick)
        await self.bisection.look(FIRST_LOOK_REQUESTS * factor, FIRST_LOOK_PAIRS * factor, deadline)

    def _tick(self) -> None:
        # It answers: from here on it has the whole time again.
        self.limit.reschedule(asyncio.get_running_loop().time() + self.settings.startup_timeout_s)
        self.bench.progress(min(1.0, self.seconds / self.settings.max_time_s))

    # ---- judging ------------------------------------------------------------------------------------------------

    def _judge(self) -> None:
        """Estimates for every row from all samples so far, and a verdict for every budget."""
        found = estimate(
            self.bisection.samples,
            self.stack.entries,
            outside=self.stack.outside,
            look=self.look,
            machine=self.bench.machine,
        )
        self.estimates = found
        if self._refused_bypasses(found):
            return
        for row in self.rows:
            if row.entry in found.bypass and math.isfinite(found.bypass[row.entry].half_width):
                row.us, row.method = found.bypass[row.entry], "bypass"
            elif row.entry in found.split:
                row.us, row.method = found.split[row.entry], "split"
            row.judgement = self._judgement(row, found)
        bound = self.settings.budgets.total_us
        if bound is not None:
            self.total = self._judged(found.whole, bound)

    def _refused_bypasses(self, found: Estimates) -> bool:
        """Whether a bypass turned out to change more than its layer; sampling then begins anew without it."""
        refused = False
        for layer in self.bisection.bypassable:
            bypass, split = found.bypass.get(layer.index), found.split[layer.index]
            if bypass is None or not math.isfinite(bypass.half_width) or not math.isfinite(split.half_width):
                continue
            slack = BYPASS_SHARE * abs(split.estimate) + BYPASS_US
            if bypass.low > split.high + slack or bypass.high < split.low - slack:
                reason = (
                    f"the app takes another way without it: {bypass.estimate:.0f} µs less, not {split.estimate:.0f}"
                )
                self.bisection.refuse(layer.index, reason)
                refused = True
        if refused:
            for row in self.rows:
                row.us, row.method = None, None
                row.judgement = Judgement("undecided", _ANEW) if row.budget_us is not None else None
        return refused

    def _judgement(self, row: _Row, found: Estimates) -> Judgement | None:
        if row.budget_us is None:
            return None
        if not row.layer.entered:
            # The default is for what a request meets; who names a layer means it to be met.
            if not budgets.named(self.settings.budgets, row.layer):
                return None
            return Judgement("undecided", "the request did not come to it: a layer outside answered")
        if row.layer.merged_with is not None:
            return self._merged_judgement(row, row.budget_us)
        assert row.us is not None
        pending = row.method == "split" and row.entry in [layer.index for layer in self.bisection.bypassable]
        if pending and self.seconds < self.settings.max_time_s:
            return Judgement("undecided", "the layer runs its inside in a task, and there are few pairs without it yet")
        judgement = self._judged(row.us, row.budget_us)
        if row.method == "bypass" and judgement.verdict == "fail":
            assert row.entry is not None
            # Two methods must agree before a test fails.
            if found.split[row.entry].estimate <= row.budget_us:
                return Judgement("undecided", "the bypass says it is over its budget, the split does not")
        return judgement

    def _merged_judgement(self, row: _Row, bound: Microseconds) -> Judgement:
        """A merged layer is within its budget when it and its neighbour together are."""
        together = next((r for r in self.rows if r.layer.name == row.layer.merged_with), None)
        if together is not None and together.us is not None and together.us.high <= bound:
            return Judgement("pass")
        return Judgement(
            "undecided", f"it is measured together with {row.layer.merged_with}: {row.layer.merged_because}"
        )

    def _judged(self, us: Estimate, bound: Microseconds) -> Judgement:
        assert self.estimates is not None
        if self.instruments.active:
            return Judgement(
                "undecided",
                f"{' and '.join(self.instruments.active)} was at work while the clock ran; run without it",
            )
        return budgets.judge(us, bound, floor=self.estimates.floor_us, slowdown=self.estimates.slowdown)

    def _known(self) -> bool:
        """Whether more requests would change nothing that is shown."""
        if any(row.us is None and row.entry in self.bisection.probes.probed for row in self.rows):
            return False
        return not self._open() and (all(row.precise for row in self.rows) or self.seconds >= PRECISION_TIME_S)

    def _open(self) -> bool:
        """Whether a verdict is still undecided."""
        return any(row.open for row in self.rows) or (self.total is not None and self.total.verdict == "undecided")

    # ---- reporting ----------------------------------------------------------------------------------------------

    def measurement(self, line: RequestLine, response: httpx.Response) -> Measurement:
        """The finished record."""
        assert self.estimates is not None
        reports = tuple(self._report(row) for row in self.rows)
        verdicts = [r.verdict for r in reports if r.verdict is not None]
        if self.total is not None:
            verdicts.append(self.total.verdict)
        samples = self.bisection.samples
        return Measurement(
            request=line,
            status=response.status_code,
            response=response,
            loop=_loop_name(),
            layers=reports,
            books=self._books(self.estimates),
            floor_us=self.estimates.floor_us,
            effort=Effort(samples.requests, samples.rounds, self.seconds),
            total_budget_us=self.settings.budgets.total_us,
            total_verdict=self.total.verdict if self.total else None,
            total_reason=self._reason(self.total, self.estimates.whole, self.settings.budgets.total_us),
            verdict=budgets.overall(verdicts),
            notes=tuple(self._notes()),
        )

    def _report(self, row: _Row) -> LayerReport:
        verdict: Verdict | None = row.judgement.verdict if row.judgement else None
        reason = self._reason(row.judgement, row.us, row.budget_us)
        if row.us is not None and not math.isfinite(row.us.half_width):
            return LayerReport(row.layer, None, None, row.budget_us, verdict, reason)
        return LayerReport(row.layer, row.us, row.method, row.budget_us, verdict, reason)

    def _reason(self, judgement: Judgement | None, us: Estimate | None, bound: Microseconds | None) -> str | None:
        """Why it is undecided, and how long a verdict would take."""
        if judgement is None or judgement.reason is None or us is None or bound is None:
            return judgement.reason if judgement else None
        if not math.isfinite(us.half_width):
            rate = self.bisection.samples.requests / max(self.seconds, 1e-9)
            enough = math.ceil(ENOUGH_REQUESTS / max(rate, 1e-9))
            return f"there were too few requests for an interval; try --mw-budget-max-time={enough}"
        if not us.low <= bound <= us.high:
            return judgement.reason
        needed = budgets.seconds_needed(us, bound, self.seconds)
        if needed is None or needed > 3600:
            return f"{judgement.reason}; it stands so near its budget that no run would tell"
        return f"{judgement.reason}; --mw-budget-max-time={math.ceil(needed)} may be enough for a verdict"

    def _books(self, found: Estimates) -> Books:
        """The rows beside the whole."""
        endpoint = None if self.stack.endpoint is None else found.split.get(self.stack.endpoint)
        parts = [row.us for row in self.rows if row.us is not None] + [endpoint or ZERO, found.outside]
        bounded = all(math.isfinite(part.half_width) for part in [*parts, found.whole])
        return Books(
            total=found.whole,
            outside=found.outside,
            endpoint=endpoint,
            residue_us=math.fsum(p.estimate for p in parts) - found.whole.estimate if bounded else math.nan,
        )

    def _notes(self) -> Iterator[str]:
        assert self.estimates is not None
        if self.instruments.suspended:
            yield f"{', '.join(self.instruments.suspended)} was suspended while the clock ran."
        for active in self.instruments.active:
            yield f"{active} was at work while the clock ran: the times are too high, and no budget was enforced."
        if self.estimates.slowdown > 1:
            yield f"The machine ran {self.estimates.slowdown:.2f} times slower than at its best."
        if not self.stack.entries:
            yield "No layer was found: the app is not entered through a Python function."
        for row in self.rows:
            if row.layer.merged_with is not None:
                yield f"{row.layer.name} is measured with {row.layer.merged_with}: {row.layer.merged_because}."
            if row.entry in self.bisection.refused:
                because = self.bisection.refused[row.entry]
                yield f"{row.layer.name} could not be bypassed ({because}); its row may be some per cent too high."


async def _warm(caller: asgi.Caller, clock: Clock) -> float:
    """Call until caches are filled and the bytecode is specialised; returns the typical nanoseconds of a call."""
    __tracebackhide__ = True
    begin = last = clock()
    taken: list[int] = []
    while len(taken) < WARM_CALLS and last - begin < WARM_NS:
        await caller()
        now = clock()
        taken.append(now - last)
        last = now
    return median(taken)
