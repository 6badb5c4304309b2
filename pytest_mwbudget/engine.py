"""The sequence of a measurement: start the app, call it, find its layers, count, time, judge, profile."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from types import CodeType
from typing import TYPE_CHECKING, Any, TypeAlias

from .analysis.budgeted import Bounded, bounded_layers, bounded_parts
from .analysis.ways import LEAST_SHARE, StackChangedError, Ways, why_mixed
from .asgi import loops, server
from .asgi.app import ASGIApp, Observer
from .asgi.calling import (
    Hosting,
    Opening,
    alone,
    answering,
    answers_of,
    called_again,
    first_call,
    http_of,
    running,
    warm_up,
)
from .asgi.discovery import Identity, discover
from .asgi.os_exit import exit_refused
from .asgi.stack import Stack
from .assembly import Findings, trends
from .config.budgets import Budgets
from .config.settings import Settings
from .counting.backend import counting_backend
from .counting.charged_requests import CountingRun, RequestCharges
from .counting.counted import Counted, counted, counted_inside, hops
from .counting.executed import Executed, ExecutedRun
from .counting.executed import Pace as ExecutedPace
from .errors import MeasurementError, ResponseError
from .interpreter.foreign_tools import ForeignTools, suspended
from .interpreter.tracers import Hooks, threads_untraced
from .limits.judging import with_undecided
from .model.estimate import Nanoseconds
from .model.quantities import COUNTED, PROCESS_WIDE
from .model.results import Measurement, Profile, Result
from .model.stack import EntryIndex
from .profiling.adding import with_profile
from .timing.looks import Environment, Pace, Timed, Timing
from .timing.many_requests import served
from .timing.probes import Probes
from .timing.sampler import Deadline
from .timing.savings import compared

if TYPE_CHECKING:
    from .profiling.sampling import Profiled

# Writes the files of a profile.
Publish: TypeAlias = "Callable[[Profiled, Result], Profile]"
# Returns the settings for the layers of a request, None if the request is not to be measured.
Choose: TypeAlias = Callable[[Stack, Settings], Settings | None]

# A stack that has changed is traced again this often.
MOST_RETRACINGS = 2


async def send_once(app: ASGIApp, request: Opening, settings: Settings) -> Measurement:
    """Make the request once, within the app's lifespan, without a measurement."""
    with alone():
        async with running(app, request, settings) as caller:
            exchange = await first_call(caller, settings)
            return Measurement(
                request=caller.template.line,
                status=exchange.status,
                response=exchange.response(http_of(request)),
                answers=answers_of(exchange),
                loop=caller.loop.name,
            )


async def measure(
    app: ASGIApp,
    request: Opening,
    settings: Settings,
    environment: Environment,
    publish: Publish | None = None,
    hosting: Hosting | None = None,
    choose: Callable[[Stack, Settings], Settings] = lambda stack, settings: settings,
) -> Measurement:
    """Measure every layer that the request enters, and judge it by its budgets.

    If the settings ask for a profile, `publish` writes it. With `hosting` the app runs already. `choose` returns the
    settings for the layers. Raises ResponseError, LifespanError, LayerNameError or MeasurementError, and the app's
    exceptions.
    """
    __tracebackhide__ = True
    with alone(), threads_untraced() as hooks:
        async with running(app, request, settings, hosting) as caller:
            exchange = await first_call(caller, settings, hosting)
            response, answers = exchange.response(http_of(request)), answers_of(exchange)
            del exchange  # a large body is not held twice
            with _undisturbed(caller, environment, hooks) as foreign_tools:
                result = await _measured(caller, settings, environment, foreign_tools, publish, choose)
            assert result is not None  # `choose` never says so here
            return Measurement.of(result, response, answers)


async def measure_again(
    caller: server.Caller,
    settings: Settings,
    environment: Environment,
    publish: Publish | None,
    choose: Choose,
) -> Result | None:
    """Measure a request that somebody else has made once, on the loop and in the lifespan in which it was made.

    Returns None if `choose` does, after two requests that show the layers. Otherwise as `measure`.
    """
    __tracebackhide__ = True
    with (
        alone(),
        exit_refused(),
        threads_untraced() as hooks,
        _undisturbed(caller, environment, hooks) as foreign_tools,
    ):
        return await _measured(caller, settings, environment, foreign_tools, publish, choose)


@contextmanager
def _turn(settings: Settings, environment: Environment) -> Iterator[Environment]:
    """Wait for the turn of this process if times are measured. Yields the environment with the turn."""
    turns = environment.turns() if settings.need_clock else nullcontext(environment.turn)
    with loops.unwatched_ends(turns) as turn:
        yield replace(environment, turn=turn)


@contextmanager
def _undisturbed(caller: server.Caller, environment: Environment, hooks: Hooks) -> Iterator[ForeignTools]:
    """Keep foreign tools, debug mode and pytest's records away from the requests in the block."""
    with (
        loops.unwatched_ends(environment.apart()),
        _random_kept(),
        suspended(hooks) as foreign_tools,
        caller.loop.undebugged() as debugged,
    ):
        if debugged:
            foreign_tools.suspended.append("asyncio's debug mode")
        yield foreign_tools


@contextmanager
def _random_kept() -> Iterator[None]:
    """Give the global random generators, those of Python and NumPy, other states in the block, and their own after it.

    With the same states, the app would draw the same numbers again after the block: ids that it has given already.
    """
    numpy: Any = sys.modules.get("numpy.random")
    of_python, of_numpy = random.getstate(), numpy and numpy.get_state(legacy=False)
    random.seed(random.getrandbits(64))
    if numpy:
        with suppress(TypeError):  # the app has set another bit generator
            numpy.seed(random.getrandbits(32))
    try:
        yield
    finally:
        random.setstate(of_python)
        if numpy:
            numpy.set_state(of_numpy)


async def _measured(
    caller: server.Caller,
    settings: Settings,
    environment: Environment,
    foreign_tools: ForeignTools,
    publish: Publish | None,
    choose: Choose,
) -> Result | None:
    """Count, time, judge and profile a request that was made once; return None if `choose` does.

    A stack that turns out to have changed since it was traced is traced again, and all of it measured again.
    """
    __tracebackhide__ = True
    caller.clock = environment.clock
    stack = await _traced(caller, settings, foreign_tools)
    chosen = choose(stack, settings)
    if chosen is None:
        return None
    if chosen.limits is not None and chosen.limits.timed:
        environment = replace(environment, precise=True, saves=True)
    with _turn(chosen, environment) as environment:
        run = await _prepared(caller, stack, chosen, environment, foreign_tools)
        findings = await run.findings()
        for _ in range(MOST_RETRACINGS):
            if findings.stack.changing is None:
                break
            before, stack = stack, await _traced(caller, settings, foreign_tools, thorough=True)
            stack = stack.as_entered(before, findings.counted.ways)
            again = chosen if _shows(stack) == _shows(before) else choose(stack, settings)
            if again is None:
                return None
            chosen = again
            run = await _prepared(caller, stack, chosen, environment, foreign_tools)
            findings = await run.findings(LEAST_SHARE)
        result = run.result(findings)
        if chosen.limits is not None:
            result = chosen.limits.judged(result, environment.turn.crowded)
            if (why := findings.stack.changing) is not None:
                result = with_undecided(result, why)
        if publish is not None and findings.stack.changing is None and _profile_wanted(chosen, result):
            timed = partial(run.roughly_timed, findings)
            result = await with_profile(result, publish, stack, caller, chosen, environment, foreign_tools, timed)
        if chosen.load is not None:
            from .load.bursts import under_load

            result = await under_load(stack, caller, chosen, environment, result)
        return result


async def _traced(
    caller: server.Caller, settings: Settings, foreign_tools: ForeignTools, *, thorough: bool = False
) -> Stack:
    """Find the layers, which a profiler of the app may hide."""
    __tracebackhide__ = True
    async with called_again(caller, settings) as call:
        stack = await discover(call, thorough=thorough)
    hiding = "a profiler of the app"
    if stack.displaced and hiding not in foreign_tools.active:
        foreign_tools.active.append(hiding)
    return stack


def _is_new(stack: Stack, index: EntryIndex | None, known: Collection[Identity]) -> bool:
    return index is not None and stack.entries[index].identity not in known


def _shows(stack: Stack) -> list[tuple[str, bool]]:
    """Return what settings may depend on."""
    return [(layer.name, layer.entered) for _, layer in stack.layers]


def _profile_wanted(settings: Settings, result: Result) -> bool:
    return settings.flamegraph == "always" or (settings.flamegraph == "failing" and result.over)


async def _executed(
    caller: server.Caller,
    stack: Stack,
    settings: Settings,
    environment: Environment,
    foreign_tools: ForeignTools,
) -> Executed:
    """Count the code that requests execute, before the app is warm: counted code loses its specialisation."""
    __tracebackhide__ = True
    if foreign_tools.distorting:
        return Executed.unknown(foreign_tools.why_no_figures)
    schedule = environment.schedule
    run = ExecutedRun(stack, counting_backend(), caller.loop.library, delayed=settings.delayed)
    pace = ExecutedPace(schedule.agreeing_requests, schedule.executed_requests, schedule.executed_ns)
    async with called_again(caller, settings) as again:

        async def call(observer: Observer) -> None:
            await again(observer)
            await caller.loop.settle()

        return await run.count(call, pace, environment.clock)


async def _prepared(
    caller: server.Caller,
    stack: Stack,
    settings: Settings,
    environment: Environment,
    foreign_tools: ForeignTools,
) -> _Run:
    """Count executed code, warm up the app, and find the budgets of its layers."""
    __tracebackhide__ = True
    opened = bool(stack.parts) and (environment.inside or bool(settings.budgets.endpoint))
    executed = await _executed(caller, stack.opened if opened else stack, settings, environment, foreign_tools)
    schedule, timed = environment.schedule, settings.need_clock
    thorough = timed and (environment.precise or not settings.budgets.bound_time)
    warm, request_ns = False, 0.0
    async with called_again(caller, settings) as call:
        if not thorough:
            request_ns = await warm_up(call, environment.clock, schedule.brief_warm_calls, schedule.brief_warm_ns)
            # On a slow app a look takes as long as warming up, too long for a look that may be discarded.
            slow = request_ns * schedule.brief_warm_calls > schedule.brief_warm_ns
            thorough = timed and slow
        if thorough:
            warm, request_ns = True, await warm_up(call, environment.clock, schedule.warm_calls, schedule.warm_ns)
    foreign_tools.check()
    handed_on = stack.handed_on
    endpoint = None if handed_on is None else (handed_on.to_layer, handed_on.because)
    layers = bounded_layers(stack.layers, settings.budgets, endpoint)
    parts = bounded_parts(stack.parts, settings.budgets)
    return _Run(stack, layers, parts, caller, settings, environment, foreign_tools, executed, request_ns, warm, opened)


@dataclass(frozen=True, slots=True)
class _Run:
    """A measurement of a running app with known layers, which executed what `executed` says.

    A request takes `request_ns`; `warm` means warm for timing. `opened` means that the parts of the endpoint are
    measured too.
    """

    stack: Stack
    layers: tuple[Bounded, ...]
    parts: tuple[Bounded, ...]
    caller: server.Caller
    settings: Settings
    environment: Environment
    foreign_tools: ForeignTools
    executed: Executed
    request_ns: float
    warm: bool
    opened: bool

    async def findings(self, least_share: float | None = None) -> Findings:
        """Count and time; return findings that judge nothing if the stack has changed since it was traced.

        It has if the traced way is not the most common one; with `least_share`, if it is also rarer than this.
        """
        __tracebackhide__ = True
        findings = await self.counted()
        ways = findings.counted.ways
        if ways.most_common or (least_share is not None and ways.share >= least_share):
            try:
                findings = await self.timed(findings)
            except StackChangedError as error:
                ways = error.ways
            else:
                entered = await self._new_layers(ways)
                return findings.changing(None, entered) if entered else findings
        return findings.changing(ways)

    async def _new_layers(self, ways: Ways) -> str:
        """Return the names of layers that requests enter now and did not when they were traced."""
        if ways.mixed or self.stack.anew:
            return ""
        known = {entry.identity for entry in self.stack.entries}
        try:
            now = await _traced(self.caller, self.settings, self.foreign_tools)
        except (MeasurementError, ResponseError):  # requests without a layer may have changed the app
            return ""
        entered = [] if now.anew else [layer.name for i, layer in now.layers if _is_new(now, i, known)]
        return ", ".join(entered)

    # ---- counting -------------------------------------------------------------------------------------------------

    async def counted(self) -> Findings:
        """Count in some requests what each layer causes."""
        __tracebackhide__ = True
        executed, schedule = self.executed, self.environment.schedule
        stack = self.stack.opened if self.opened else self.stack
        run = CountingRun(stack, counting_backend(), self.caller.loop.library, delayed=self.settings.delayed)
        longer = f"; {self.settings.slow_answer} if a request needs longer"
        async with answering(self.caller, self.settings, "while it was counted", longer=longer) as begin_time:

            async def call(observer: Observer | None = None) -> None:
                await self.caller.settled(observer)
                begin_time()

            charges = await run.count(
                call,
                schedule.counted_requests,
                schedule.uncounted_requests,
                schedule.counting_ns,
                self.environment.clock,
            )
        self.foreign_tools.check(self._codes())
        # An active tool creates objects.
        distorted: dict[str, str] = {}
        if self.foreign_tools.distorting:
            distorted = dict.fromkeys(PROCESS_WIDE, self.foreign_tools.why_no_figures)
        why_not = {**self.environment.uncounted, **distorted, **run.why_not, **executed.why_not}
        too_low = {**executed.too_low, **run.too_low}
        counts = counted(self.stack, charges, why_not, too_low, executed, list(run.notes()), opened=self.opened)
        parts = self.parts if self.opened or not self.stack.parts else ()
        return Findings(self.stack, self.layers, self.settings.budgets, self.foreign_tools, counts, parts)

    def _codes(self) -> list[CodeType]:
        """Return the code of the functions that enter layers."""
        return [entry.function.__code__ for entry in self.stack.entries if entry.function is not None]

    # ---- timing ---------------------------------------------------------------------------------------------------

    async def timed(self, findings: Findings) -> Findings:
        """Add times to the findings if they are wanted, unless a foreign tool is active."""
        __tracebackhide__ = True
        disturbed = self.foreign_tools.distorting
        if disturbed or not self.settings.need_clock:
            return findings
        # A failing test shows its table, so its figures are read.
        environment = replace(self.environment, precise=True) if findings.breaks_count else self.environment
        timed = await self._until_known(findings, environment)
        parts = None
        if self.opened:
            parts = await self._timing_inside(findings.counted, environment).until_known()
        self.foreign_tools.check(self._codes())
        if self.foreign_tools.distorting:
            return findings
        findings = replace(findings, timed=timed, timed_parts=parts)
        return await self._trended(findings) if self.settings.trend else findings

    async def _until_known(self, findings: Findings, environment: Environment) -> Timed:
        """Time the layers; on an app that is not warm, look before warming up if only the verdicts are wanted."""
        __tracebackhide__ = True
        looks, request_ns, schedule = 0, self.request_ns, environment.schedule
        if not self.warm:
            if not environment.precise:
                timing = self._timing(findings.counted, environment, request_ns)
                kept = await timing.kept_at_first_sight()
                if kept is not None:
                    return await compared(timing, kept, findings.counted.layers)
                looks = timing.looks
            async with called_again(self.caller, self.settings) as call:
                request_ns = await warm_up(call, environment.clock, schedule.warm_calls, schedule.warm_ns)
        timing = self._timing(findings.counted, environment, request_ns, looks)
        return await compared(timing, await timing.until_known(), findings.counted.layers)

    async def roughly_timed(self, findings: Findings) -> Result:
        """Time what was only counted, for its profile. The intervals may be wide, and nothing is judged."""
        __tracebackhide__ = True
        settings = replace(self.settings, budgets=Budgets(), max_time_s=self.environment.schedule.profile_timing_s)
        unbounded = tuple(replace(layer, bounds={}) for layer in self.layers)
        run = replace(self, layers=unbounded, settings=settings)
        timing = run._timing(findings.counted, self.environment, self.request_ns)
        return self.result(replace(findings, timed=await timing.until_known()))

    def result(self, findings: Findings) -> Result:
        """Return the findings as the result of this request."""
        return findings.result(
            self.caller.template.line, self.caller.status, self.caller.loop.name, self.settings.place
        )

    def _timing(self, counts: Counted, environment: Environment, request_ns: float, looks_before: int = 0) -> Timing:
        """Return a timing of all rows, without samples."""
        if not self.request_ns:
            raise MeasurementError(
                "by the clock that times them, most requests took 0 ns: something stops the clocks of the whole"
                " process, as libfaketime does; run this test without it",
                message_id="frozen-clock",
            )
        layers = _timed_bounds(self.layers)
        mixed = why_mixed(counts.ways) if counts.ways.mixed else None
        pace = Pace(
            request_ns,
            counts.suspending,
            counts.sent,
            hops(self.stack, counts),
            counts.streamed,
            counts.received,
            mixed,
        )
        return Timing(self.stack, self.caller, layers, self.settings, environment, pace, looks_before)

    def _timing_inside(self, counts: Counted, environment: Environment) -> Timing:
        """Return a timing of the parts of the endpoint, in requests of their own without probes outside it."""
        stack, settings = self.stack.inside, replace(self.settings, budgets=Budgets())
        counts = counted_inside(self.stack, counts)
        schedule = replace(environment.schedule, precision_time_s=environment.schedule.parts_time_s)
        pace = Pace(self.request_ns, counts.suspending, counts.sent, hops(stack, counts))
        environment = replace(environment, schedule=schedule)
        return Timing(stack, self.caller, _timed_bounds(self.parts), settings, environment, pace)

    # ---- growth ---------------------------------------------------------------------------------------------------

    async def _trended(self, findings: Findings) -> Findings:
        """Add what grows with the requests served: time in some thousand requests, objects in some hundred others."""
        __tracebackhide__ = True
        schedule, clock = self.environment.schedule, self.environment.clock
        counting = CountingRun(self.stack, counting_backend(), self.caller.loop.library)
        why_not = self.environment.uncounted.get("retained") or counting.why_not.get("retained")
        charges: list[RequestCharges] = []
        async with answering(self.caller, self.settings, "after many requests") as begin_time:

            async def timed(observer: Observer | None) -> Nanoseconds:
                return (await self.caller(observer)).elapsed_ns

            async def call(observer: Observer | None = None) -> None:
                await self.caller.settled(observer)
                begin_time()

            deadline = Deadline(clock() + schedule.trend_ns, clock, begin_time)
            leaving = self.caller.leaves
            probes = Probes(self.stack, clock, suspending=findings.counted.suspending, leaving=leaving)
            requests = await served(probes, timed, schedule, deadline)
            if why_not is None:
                charges = await counting.count(
                    call, schedule.trend_counted, 0, schedule.trend_counting_ns, clock, schedule.trend_followed
                )
                why_not = counting.why_not.get("retained")
        self.foreign_tools.check(self._codes())
        if self.foreign_tools.distorting:
            return findings
        growth = trends(self.stack, self.layers, requests, charges, counting.further, why_not, counting.too_low)
        return replace(findings, trends=growth)


def _timed_bounds(rows: Iterable[Bounded]) -> list[Bounded]:
    """Return the rows that the request entered, with their budgets of time."""
    return [
        replace(bounded, bounds={q: most for q, most in bounded.bounds.items() if q not in COUNTED})
        for bounded in rows
        if bounded.layer.entered
    ]
