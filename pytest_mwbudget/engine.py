"""The one sequence of a measurement: start the app, call it, find its layers, count, time, judge."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from statistics import median, median_low
from types import CodeType
from typing import TYPE_CHECKING, Any, TypeAlias

import httpx

from .analysis import verdicts
from .analysis.rows import Bounded, Together
from .asgi import discovery, loops, server
from .config import budgets
from .config.settings import Settings
from .counting.backend import counters
from .counting.rows import row_counts, with_own_types
from .counting.run import Ledger, Page
from .errors import MeasurementError, MwBudgetError, of_the_app, tagged
from .interpreter.clocks import Clock
from .interpreter.foreign_tools import Instruments, suspended
from .interpreter.tracers import threads_untraced
from .model.results import (
    COUNTED,
    CountedQuantity,
    Counts,
    Judged,
    LayerReport,
    Measurement,
    Profile,
    Quantity,
    RequestLine,
    Result,
    worst,
)
from .model.results import Ledger as LedgerReport
from .model.stack import HARNESS, Layer
from .timing.run import Environment, Pace, Timed, Timing

if TYPE_CHECKING:
    from .profiling.sampling import Profiled

# Keeps what was sampled for a result where it can be read.
Publish: TypeAlias = "Callable[[Profiled, Result], Profile]"

# What is charged for the objects that a tracer or profiler creates at each event.
IN_MEMORY: tuple[CountedQuantity, ...] = ("objects", "allocations", "bytes", "retained")
# Held by whoever makes a request.
_busy = threading.Lock()


async def send_once(app: server.ASGIApp, request: httpx.Request, settings: Settings) -> Measurement:
    """Make the request once, within the app's lifespan; nothing is measured."""
    with _alone():
        async with _running(app, request, settings) as caller:
            exchange = await _first_call(caller, settings)
            return Measurement(
                request=_line(request), status=exchange.status, response=exchange.response(), loop=caller.loop.name
            )


async def measure(
    app: server.ASGIApp,
    request: httpx.Request,
    settings: Settings,
    environment: Environment,
    publish: Publish | None = None,
) -> Measurement:
    """Measure every layer that the request goes through, and judge it by the budgets.

    Where the settings ask for a profile of it, `publish` is given what was sampled, and says what became of it.

    Raises ResponseError, LifespanError, LayerNameError or MeasurementError, and whatever the app raises.
    """
    __tracebackhide__ = True
    turns = environment.turns() if settings.budgets.need_clock else nullcontext(environment.turn)
    with _alone(), threads_untraced() as hooks, turns as turn:
        environment = replace(environment, turn=turn)
        async with _running(app, request, settings) as caller:
            caller.clock = environment.clock
            response = (await _first_call(caller, settings)).response()
            with environment.apart(), suspended(hooks) as instruments, caller.loop.undebugged() as debugged:
                if debugged:
                    instruments.suspended.append("asyncio's debug mode")
                run = await _Run.prepared(caller, settings, environment, instruments)
                await run.count()
                if settings.budgets.need_clock and not instruments.active:
                    await run.time()
                measurement = run.measurement(_line(request), response)
                if publish is None or not _profile_wanted(settings, measurement):
                    return measurement
                return await run.profiled(measurement, publish)


def _profile_wanted(settings: Settings, measurement: Measurement) -> bool:
    return settings.flamegraph == "always" or (settings.flamegraph == "failing" and measurement.verdict == "fail")


@contextmanager
def _alone() -> Iterator[None]:
    """Refuse a second request at a time: each would be in the other's figures, and put back what the other changed."""
    if not _busy.acquire(blocking=False):
        raise MeasurementError(
            "mw_budget makes one request at a time, and another one is under way; await it before the next one is made,"
            " and make all of them in one thread",
            message_id="one-at-a-time",
        )
    try:
        yield
    finally:
        _busy.release()


@asynccontextmanager
async def _running(app: server.ASGIApp, request: httpx.Request, settings: Settings) -> AsyncIterator[server.Caller]:
    """A caller of the started app."""
    with server.exit_refused():
        template = await server.template(request)
        if not settings.lifespan:
            yield server.Caller(app, template, None, settings.expect_status)
            return
        async with server.lifespan(app, settings.startup_timeout_s) as state:
            yield server.Caller(app, template, state, settings.expect_status)


async def _first_call(caller: server.Caller, settings: Settings) -> server.Exchange:
    """The reference response, from a request that coverage and debuggers may watch."""
    __tracebackhide__ = True
    limit_s = settings.startup_timeout_s
    message = (
        f"{_line(caller.template.request)}: the app did not finish its response within {limit_s:g} s; an endless stream"
        " cannot be measured, and a slow start needs a higher mw_budget_startup_timeout"
    )
    async with caller.limited(limit_s, message):
        return await caller()


def _line(request: httpx.Request) -> RequestLine:
    return RequestLine(request.method, request.url.raw_path.decode("ascii", "replace"))


@dataclass(slots=True)
class _Counted:
    """What the ledger found: counts by layer index, and of what is no layer's; `sent` are messages by entry."""

    layers: Mapping[int, Counts]
    report: LedgerReport
    notes: list[str]
    sent: Mapping[int, int]


@dataclass(slots=True)
class _Run:
    """One measurement under way."""

    stack: discovery.Stack
    caller: server.Caller
    settings: Settings
    environment: Environment
    instruments: Instruments
    bounds: Mapping[int, Mapping[Quantity, float]]
    request_ns: float
    warm: bool
    counted: _Counted | None = None
    timed: Timed | None = None

    @classmethod
    async def prepared(
        cls, caller: server.Caller, settings: Settings, environment: Environment, instruments: Instruments
    ) -> _Run:
        """Warm the app, find its layers and their budgets."""
        __tracebackhide__ = True
        schedule = environment.schedule
        thorough = settings.budgets.need_clock and (environment.precise or not settings.budgets.bound_time)
        async with _called_again(caller, settings) as call:
            warm, request_ns = False, 0.0
            if not thorough:
                request_ns = await _warm(call, environment.clock, schedule.brief_warm_calls, schedule.brief_warm_ns)
                # Above a slow app a look takes as long as warming up does: one that may be thrown away is dear.
                thorough = (
                    settings.budgets.need_clock and request_ns * schedule.brief_warm_calls > schedule.brief_warm_ns
                )
            if thorough:
                warm, request_ns = True, await _warm(call, environment.clock, schedule.warm_calls, schedule.warm_ns)
            stack = await discovery.discover(call)
        if stack.displaced:
            instruments.active.append("a profiler of the app")
        instruments.check()
        bounds = budgets.assign(settings.budgets, [layer for _, layer in stack.layers])
        return cls(stack, caller, settings, environment, instruments, bounds, request_ns, warm)

    # ---- counting -------------------------------------------------------------------------------------------------

    async def count(self) -> None:
        """Charge some requests to the layers."""
        __tracebackhide__ = True
        schedule = self.environment.schedule
        ledger = Ledger(self.stack, counters(), self.caller.loop.library)
        limit_s = self.settings.startup_timeout_s
        message = (
            f"the app stopped answering while it was counted: {schedule.uncounted_requests} to"
            f" {schedule.counted_requests + schedule.uncounted_requests} requests did not end within {limit_s:g} s;"
            " raise mw_budget_startup_timeout if they need longer"
        )
        async with self.caller.limited(limit_s, message):
            pages = await ledger.count(
                self.caller.settled,
                schedule.counted_requests,
                schedule.uncounted_requests,
                schedule.counting_ns,
                self.environment.clock,
            )
        self.instruments.check(self._codes())
        why_not = self._why_no_figures() | dict(ledger.why_not)
        self.counted = self._counted(pages, why_not, list(ledger.notes()))

    def _codes(self) -> list[CodeType]:
        """The code that enters the layers."""
        return [entry.function.__code__ for entry in self.stack.entries if entry.function is not None]

    def _why_no_figures(self) -> dict[str, str]:
        """Why there is no figure of memory, by quantity: a tool that is at work creates objects."""
        return dict.fromkeys(IN_MEMORY, self.instruments.why_no_figures) if self.instruments.active else {}

    def _counted(self, pages: list[Page], why_not: Mapping[str, str], notes: list[str]) -> _Counted:
        stack = self.stack
        owners = {layer.index: [entry + 1] for entry, layer in stack.layers if entry in stack.probeable}
        found: dict[Any, Counts] = {index: row_counts(pages, own, why_not) for index, own in owners.items()}
        found["outside"] = row_counts(pages, [HARNESS, 1] if stack.outside else [HARNESS], why_not)
        if stack.endpoint is not None:
            found["endpoint"] = row_counts(pages, [stack.endpoint + 1], why_not)
        outermost = row_counts(pages, [1], why_not)
        total = replace(
            row_counts(pages, range(len(stack.entries) + 1), why_not), received=outermost.received, sent=outermost.sent
        )
        found = with_own_types(found)
        outside, endpoint = found.pop("outside"), found.pop("endpoint", None)
        sent = {entry: median_low([page.sent[entry + 1] for page in pages]) for entry in stack.probeable}
        return _Counted(found, LedgerReport(outside, endpoint, total, len(pages), why_not), notes, sent)

    def _judge_count(self, layer: Layer, quantity: CountedQuantity, bound: float) -> Judged:
        assert self.counted is not None
        if self.stack.displaced:  # so that layers may be missing
            return Judged(bound, "undecided", self._why_disturbed())
        why = self.counted.report.why.get(quantity)
        if why is not None:
            if self.instruments.active:
                return Judged(bound, "undecided", self._why_disturbed())
            return Judged(bound, "undecided", tagged(f"{quantity} cannot be counted here: {why}", "uncountable"))
        names = {layer.name: layer.index for _, layer in self.stack.layers}
        own = self.counted.layers.get(layer.index)
        neighbour = self.counted.layers.get(names.get(layer.merged_with or "", -1))
        judgement = verdicts.judge_counted(
            Bounded(None, layer, {quantity: bound}, self._together(layer)),
            quantity,
            own.of(quantity) if own else None,
            neighbour.of(quantity) if neighbour else None,
        )
        return Judged(bound, judgement.verdict, judgement.reason)

    # ---- timing ---------------------------------------------------------------------------------------------------

    async def time(self) -> None:
        """Time the layers, unless a tool turns out to be at work meanwhile: then there is no figure."""
        __tracebackhide__ = True
        if not self.request_ns:
            raise MeasurementError(
                "by the clock that times them, most requests took 0 ns: something stops the clocks of the whole"
                " process, as libfaketime does; run this test without it",
                message_id="frozen-clock",
            )
        timed = await self._until_known()
        self.instruments.check(self._codes())
        if not self.instruments.active:
            self.timed = timed

    async def _until_known(self) -> Timed:
        """Time the layers until the verdicts are known, and the figures where somebody reads them."""
        __tracebackhide__ = True
        if self._breaks_count():
            self.environment = replace(self.environment, precise=True)  # the test fails, and its report has a table
        looks, schedule = 0, self.environment.schedule
        if not self.warm:
            if not self.environment.precise:
                timing = self._new_timing()
                kept = await timing.kept_at_first_sight()
                if kept is not None:
                    return kept
                looks = timing.looks
            async with _called_again(self.caller, self.settings) as call:
                self.request_ns = await _warm(call, self.environment.clock, schedule.warm_calls, schedule.warm_ns)
        return await self._new_timing(looks).until_known()

    def _breaks_count(self) -> bool:
        """Whether a budget of a count is not kept for certain."""
        return any(
            self._judge_count(layer, quantity, bound).verdict != "pass"
            for _, layer in self.stack.layers
            if layer.entered
            for quantity, bound in self._bounds(layer).items()
            if quantity in COUNTED
        )

    def _new_timing(self, looks_before: int = 0) -> Timing:
        """A timing of all rows without any sample."""
        assert self.counted is not None
        report = self.counted.report
        parts = [*self.counted.layers.values(), report.outside, *([report.endpoint] if report.endpoint else [])]
        pace = Pace(self.request_ns, any(counts.suspensions.count for counts in parts), self.counted.sent)
        layers = [
            Bounded(
                entry,
                layer,
                {q: most for q, most in self._bounds(layer).items() if q not in COUNTED},
                self._together(layer),
            )
            for entry, layer in self.stack.layers
            if layer.entered
        ]
        return Timing(self.stack, self.caller, layers, self.settings, self.environment, pace, looks_before)

    # ---- profiling ------------------------------------------------------------------------------------------------

    async def profiled(self, measurement: Measurement, publish: Publish) -> Measurement:
        """The same, with where its time goes; with a note where that cannot be told. The measurement stands."""
        if self.instruments.active:
            return _without_profile(measurement, self.instruments.why_no_figures)
        try:
            found = await self._profile(measurement)
        except loops.OutOfTimeError:
            why = f"under the profiler a request did not end within {self.settings.startup_timeout_s:g} s"
            return _without_profile(measurement, why)
        except Exception as raised:  # whatever it is, the app's or the profiler's
            error = of_the_app(raised)
            return _without_profile(measurement, f"under the profiler: {type(error).__name__}: {error}")
        try:
            return replace(measurement, profile=publish(found, measurement))
        except (MwBudgetError, OSError, RecursionError) as error:
            return _without_profile(measurement, str(error))

    async def _profile(self, measurement: Measurement) -> Profiled:
        from .profiling.sampling import profile

        plain_us = measurement.books.total.estimate if measurement.books else self.request_ns / 1000
        limit_s = self.settings.startup_timeout_s
        async with self.caller.loop.limited(limit_s) as extend:
            return await profile(
                self.stack,
                self.caller,
                measurement,
                plain_us,
                self.environment.clock,
                lambda: extend(limit_s),
                self.environment.schedule,
            )

    # ---- reporting ------------------------------------------------------------------------------------------------

    def measurement(self, line: RequestLine, response: httpx.Response) -> Measurement:
        """The finished record."""
        assert self.counted is not None
        reports = tuple(self._report(layer) for _, layer in self.stack.layers)
        timed = self.timed
        total = timed.total if timed else self._untimed_total()
        said = [report.verdict for report in reports] + [total.verdict if total else None]
        return Measurement(
            request=line,
            status=response.status_code,
            response=response,
            loop=self.caller.loop.name,
            layers=reports,
            ledger=self.counted.report,
            books=timed.books if timed else None,
            floor_us=timed.floor_us if timed else None,
            slowdown=timed.slowdown if timed else None,
            effort=timed.effort if timed else None,
            total_budget_us=self.settings.budgets.total_us,
            total_verdict=total.verdict if total else None,
            total_reason=total.reason if total else None,
            verdict=worst(verdict for verdict in said if verdict is not None),
            notes=tuple(self._notes()),
            disturbed=self.instruments.why_no_figures if self.instruments.active else None,
        )

    def _bounds(self, layer: Layer) -> dict[Quantity, float]:
        """The budgets that apply to a layer: the default is for what a request meets, a name means its layer."""
        bounds = self.bounds.get(layer.index, {})
        if layer.entered:
            return dict(bounds)
        return {q: most for q, most in bounds.items() if budgets.named(self.settings.budgets, layer, q)}

    def _together(self, layer: Layer) -> Together | None:
        """What is measured with a layer, None where nothing is."""
        others = [other for _, other in self.stack.layers if other.merged_with == layer.name]
        handed_on = self.stack.handed_on
        if handed_on is not None and handed_on.to_layer == layer.name:
            # The endpoint has no budget, so nothing bounds what all of it may take.
            why = tagged(f"what is inside it is measured together with it: {handed_on.because}", "merged")
            return Together(why, {})
        if not others:
            return None
        bounds = [self._bounds(one) for one in (layer, *others)]
        shared = set.intersection(*map(set, bounds))
        names = " and ".join(other.name for other in others)
        return Together(
            tagged(f"{names} is measured together with it: {others[0].merged_because}", "merged"),
            {quantity: sum(each[quantity] for each in bounds) for quantity in shared},
        )

    def _report(self, layer: Layer) -> LayerReport:
        assert self.counted is not None
        bounds = self._bounds(layer)
        if not layer.entered:
            reason = tagged("the request did not come to it: a layer outside answered", "not-entered")
            return LayerReport(layer, judged={q: Judged(most, "undecided", reason) for q, most in bounds.items()})
        time = self.timed.layers.get(layer.index) if self.timed else None
        judged = dict(time.judged) if time else self._untimed(bounds)
        judged |= {q: self._judge_count(layer, q, bounds[q]) for q in COUNTED if q in bounds}
        return LayerReport(
            layer,
            time.us if time else None,
            time.method if time else None,
            time.occupation if time else None,
            self.counted.layers.get(layer.index),
            judged,
        )

    def _untimed(self, bounds: Mapping[Quantity, float]) -> dict[Quantity, Judged]:
        """The verdicts on budgets of time, where nothing was timed for the sake of a tool that is at work."""
        why = self._why_disturbed() if self.instruments.active else None
        return {q: Judged(most, "undecided", why) for q, most in bounds.items() if q not in COUNTED}

    def _untimed_total(self) -> Judged | None:
        bound = self.settings.budgets.total_us
        return None if bound is None else Judged(bound, "undecided", self._why_disturbed())

    def _why_disturbed(self) -> str:
        """Why a budget is undecided where a tool is at work."""
        return tagged(self.instruments.why_no_figures, "active-tool")

    def _notes(self) -> Iterator[str]:
        assert self.counted is not None
        if self.instruments.suspended:
            names = ", ".join(self.instruments.suspended)
            missed = "; it saw nothing of what other threads did meanwhile" if self.instruments.missed else ""
            yield tagged(f"{names} was suspended during the measurement{missed}.", "suspended-tool")
        if self.stack.displaced:
            hidden = "The app runs a profiler of its own, which hides the layers inside of it."
            yield tagged(hidden, "missing-layers")
        if not self.stack.entries:
            yield tagged("No layer was found: the app is not entered through a Python function.", "missing-layers")
        for _, layer in self.stack.layers:
            if layer.merged_with is not None:
                yield tagged(f"{layer.name} is measured with {layer.merged_with}: {layer.merged_because}.", "merged")
        if (handed_on := self.stack.handed_on) is not None:
            missing = "" if handed_on.complete else " Layers inside it may have no row."
            together = f"The endpoint is measured with {handed_on.to_layer}: {handed_on.because}.{missing}"
            yield tagged(together, "merged")
        for active in self.instruments.active:
            at_work = f"{active} was at work: there are no figures of time and memory, and no verdicts on them."
            yield tagged(at_work, "active-tool")
        yield from self.counted.notes
        if self.timed is not None:
            yield from self.timed.notes


def _without_profile(measurement: Measurement, why: str) -> Measurement:
    note = tagged(f"There is no flamegraph: {why}", "no-flamegraph")
    return replace(measurement, notes=(*measurement.notes, note))


@asynccontextmanager
async def _called_again(
    caller: server.Caller, settings: Settings
) -> AsyncIterator[Callable[..., Awaitable[server.Exchange]]]:
    """What calls the app, each time within the limit for one request."""
    __tracebackhide__ = True
    limit_s = settings.startup_timeout_s
    message = (
        f"the app stopped answering when it was called again: a request did not end within {limit_s:g} s although"
        " the first one did; a limit of requests at a time or in a while, a pool or a queue may be used up: lift it"
        " for this test, or raise mw_budget_startup_timeout if a request may need longer"
    )
    async with caller.limited(limit_s, message) as extend:

        async def call(*arguments: Any) -> server.Exchange:
            exchange = await caller(*arguments)
            extend(limit_s)
            return exchange

        yield call


async def _warm(call: Callable[[], Awaitable[object]], clock: Clock, calls: int, limit_ns: int) -> float:
    """Call until caches are filled and the bytecode is specialised; returns the typical nanoseconds of a call."""
    __tracebackhide__ = True
    begin = last = clock()
    taken: list[int] = []
    while len(taken) < calls and last - begin < limit_ns:
        await call()
        now = clock()
        taken.append(now - last)
        last = now
    return median(taken)
