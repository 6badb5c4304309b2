"""Measure an app under load: serve it, let clients send requests in bursts, bypass its layers in turns."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from ..analysis import load as analysis
from ..analysis.load import Arm, Burst, Bursts, Conditions, Round
from ..analysis.paired import FEWEST_PAIRS
from ..asgi import server as in_process
from ..asgi.stack import Stack
from ..config.budgets import assign
from ..config.settings import Settings, Under
from ..errors import MeasurementError, MwBudgetError, ResponseError, described, tagged
from ..interpreter.clocks import Clock, process_time_ns
from ..model.estimate import Estimate, Microseconds, Nanoseconds
from ..model.load import LayerLoad, Load, Wait
from ..model.quantities import RPS_SHARE, Quantity
from ..model.remedies import MAX_TIME
from ..model.results import Result, ResultRow
from ..model.stack import EntryIndex, RowIndex, parts_of
from ..timing.host_speed import reference_ns, waited_ns
from ..timing.run import Environment
from .bypass import Trampolines, Way, Ways, ways_past
from .collecting import Collecting, collecting
from .process import Generator, generator
from .processor import Cores, cores, pinned
from .rounds import NS_PER_S, BypassError, Rounds, requests_of
from .server import Served, files_for, serving
from .turns import sampled_turns

# Warming up takes this share of the time at most, and observing how long requests are in each layer twice this one.
WARM_SHARE, OBSERVED_SHARE = 0.1, 0.08
# The requests of the first burst of one client, and the most that are observed of one client or few.
FIRST_REQUESTS, MOST_OBSERVED = 20, 400
# The times of the reference workload beside a burst, of which the median counts.
GAUGES = 9
# A layer of less than this share of a request is not bypassed: the bursts would take too long to see it.
NEGLIGIBLE_SHARE = 0.01


async def under_load(
    stack: Stack, caller: in_process.Caller, settings: Settings, environment: Environment, result: Result
) -> Result:
    """Add to the result of an ordinary measurement what the app does under load.

    Raises MeasurementError and ResponseError if the app does not answer all requests in time and with the same status.
    """
    assert settings.load is not None
    require_loop(caller.loop.name)
    chosen = cores()
    # Threads of the app inherit the core. They shall not take it from the event loop.
    on = replace(chosen, server=None) if stack.threads else chosen
    clock = environment.clock
    begin_ns = clock()
    past = ways_past(stack, caller.template.line.method)
    trampolines = Trampolines(stack, past.found, clock)
    with collecting(clock) as garbage, pinned(on.server), trampolines.installed():
        async with _driver(caller, settings, environment, garbage, trampolines, on) as driver:
            await driver.warm(begin_ns)
            waits = await driver.waits()
            ways, why_not = ways_worth(past, result, driver.working_ns / 1000)
            ways = [way for way in ways if not await _dishonest(way, caller, settings, trampolines, why_not)]
            outcome = await driver.rounds(ways, begin_ns)
    why_not |= outcome.refused
    seconds = (clock() - begin_ns) / NS_PER_S
    known = _Outcome(stack, settings, environment, result, on, driver, Bursts(outcome.rounds), waits, why_not)
    return known.result(seconds)


def require_loop(name: str) -> None:
    """Raise MeasurementError on a loop on which uvicorn does not run."""
    if name == "trio":
        raise MeasurementError(
            "uvicorn, which serves the app under load, runs on asyncio and uvloop, not on trio; choose one of these as"
            " the loop",
            message_id="wrong-loop",
        )


def ways_worth(ways: Ways, result: Result, working_us: Microseconds) -> tuple[list[Way], dict[RowIndex, str]]:
    """Return the ways past layers that a burst can see, and why there are no others.

    A round of bursts takes as long as it has layers, so layers that cost next to nothing would take time from others.
    The server works for `working_us` for each request, which a busy machine changes little.
    """
    reports = {report.layer.index: report for report in result.layers}
    kept, why_not = [], dict(ways.why_not)
    for way in ways.found:
        us = reports[way.layer].us
        if us is not None and us.high < NEGLIGIBLE_SHARE * working_us:
            why_not[way.layer] = f"it takes less than {NEGLIGIBLE_SHARE:.0%} of the time of a request"
        else:
            kept.append(way)
    return kept, why_not


async def _dishonest(
    way: Way,
    caller: in_process.Caller,
    settings: Settings,
    trampolines: Trampolines,
    why_not: dict[RowIndex, str],
) -> bool:
    """Return whether the app answers otherwise without a layer; then note why in `why_not`."""
    with trampolines.without(way.entry):
        why = await _why_dishonest(caller, settings)
    if why is not None:
        why_not[way.layer] = why
    return why is not None


async def _why_dishonest(caller: in_process.Caller, settings: Settings) -> str | None:
    """Make a request past a layer. Return what is different, None if the status is the same."""
    trial = in_process.Caller(caller.app, caller.template, caller.state, caller.status)
    limit_s = settings.startup_timeout_s
    try:
        async with trial.limited(limit_s, f"without it the app does not answer within {limit_s:g} s"):
            await trial()
    except MeasurementError as error:
        return str(error)
    except MwBudgetError:
        return f"without it the app does not answer {caller.status}"
    except Exception as error:
        return f"without it the app raises {type(error).__name__}"
    return None


# ---- bursts ------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _driver(
    caller: in_process.Caller,
    settings: Settings,
    environment: Environment,
    garbage: Collecting,
    trampolines: Trampolines,
    on: Cores,
) -> AsyncIterator[_Driver]:
    """Serve the app and run a load generator in the block."""
    assert settings.load is not None
    scheme = caller.template.scope(None)["scheme"]
    with files_for(settings.load.clients):
        async with serving(caller.app, caller.state, scheme) as served:
            with generator(served.port, caller.template, on.generator, settings.startup_timeout_s) as process:
                yield _Driver(caller, settings, settings.load, environment, garbage, trampolines, served, process)


@dataclass(slots=True)
class _Bursting:
    """The rounds of bursts, and the layers that could not be bypassed under load."""

    rounds: Sequence[Round]
    refused: Mapping[RowIndex, str]


@dataclass(slots=True)
class _Stay:
    """What an observed burst shows: how long a request is in each entry, its latency, and a turn of the loop.

    `request_us` is the time between two responses, `idle` the share of the time in which the process neither worked nor
    waited for a core. `steady` is whether turns tell everything that requests waited for but queues.
    """

    own_us: Mapping[EntryIndex, Microseconds]
    latency_us: Microseconds
    turn_us: Microseconds
    request_us: Microseconds
    idle: float
    steady: bool


@dataclass(slots=True)
class _Driver:
    """Makes bursts.

    `request_ns` is the time between two responses, by the latest burst of warming up, and `working_ns` the part of it
    in which the thread of the event loop worked. `requests` is the number of requests that were sent.
    """

    caller: in_process.Caller
    settings: Settings
    under: Under
    environment: Environment
    garbage: Collecting
    trampolines: Trampolines
    served: Served
    process: Generator
    request_ns: float = 0.0
    working_ns: float = 0.0
    requests: int = 0

    @property
    def clock(self) -> Clock:
        """The clock of the measurement."""
        return self.environment.clock

    @property
    def limit_ns(self) -> Nanoseconds:
        """The time for all bursts."""
        return round(self.settings.load_time_s * NS_PER_S)

    async def warm(self, begin_ns: Nanoseconds) -> None:
        """Send requests of all clients, each at least one, until the share of the time for it is over."""
        clients, requests = self.under.clients, self.under.clients
        while True:
            cpu = self._cpu_ns()
            figures = await self.sent(clients, requests)
            self.request_ns = figures["ns"] / requests
            self.working_ns = self.request_ns if cpu is None else ((self._cpu_ns() or 0) - cpu) / requests
            if self.clock() - begin_ns > WARM_SHARE * self.limit_ns:
                return
            requests = requests_of(self.request_ns, clients, WARM_SHARE * self.limit_ns)

    async def waits(self) -> tuple[_Stay, _Stay] | None:
        """Observe how long requests are in each layer, with one client and with all; None if that would take long."""
        share_ns, clients = OBSERVED_SHARE * self.limit_ns, self.under.clients
        queued = 3 * clients
        if queued * self.request_ns > 4 * share_ns:
            return None
        # The first request alone: of a slow app, more would use up the time.
        one_ns, requests = (await self.sent(1, 1))["ns"], FIRST_REQUESTS
        if requests * one_ns < share_ns:
            one_ns = (await self.sent(1, requests))["ns"] / requests
        single = await self._observed(1, min(MOST_OBSERVED, max(2, round(share_ns / one_ns))))
        requests = max(queued, min(max(20 * clients, MOST_OBSERVED), round(share_ns / self.request_ns)))
        return single, await self._observed(clients, requests)

    async def _observed(self, clients: int, requests: int) -> _Stay:
        # The first request of each client finds a shorter queue.
        counted, stack = requests - clients, self.trampolines.stack
        waited, worked = waited_ns() or 0, process_time_ns()
        with self.trampolines.observed(clients) as stays, sampled_turns(self.clock) as turns:
            figures = await self.sent(clients, requests)
        waited, worked = (waited_ns() or 0) - waited, process_time_ns() - worked
        ns = figures["ns"]
        return _Stay(
            own_us={index: total / counted / 1000 for index, total in stays.own_ns(stack).items()},
            latency_us=median(figures["latencies_ns"] or [0]) / 1000,
            turn_us=turns.mean_us,
            request_us=ns / requests / 1000,
            idle=1 - (worked + waited) / ns,
            steady=not stack.threads and waited <= analysis.WAITED_SHARE * ns,
        )

    async def rounds(self, ways: Sequence[Way], begin_ns: Nanoseconds) -> _Bursting:
        """Make rounds of bursts until the time is over."""
        by_layer = {way.layer: way for way in ways}
        end_ns = begin_ns + self.limit_ns
        requests = requests_of(self.request_ns, self.under.clients, end_ns - self.clock())

        async def burst(arm: Arm) -> Burst:
            with self.trampolines.without(None if arm is None else by_layer[arm].entry):
                return await self.burst(requests, bypassing=arm is not None)

        def progress() -> None:
            self.environment.progress(min(1.0, (self.clock() - begin_ns) / self.limit_ns))

        rounds = Rounds(burst, list(by_layer), self.clock, self.environment.rng, end_ns, progress)
        try:
            return _Bursting(await rounds.made(round(self.request_ns * requests)), rounds.refused)
        finally:
            self.environment.progress(None)

    async def burst(self, requests: int, *, bypassing: bool) -> Burst:
        """Make a burst of all clients with everything that tells how quiet it was."""
        gauge, waited, cpu = self._gauge(), waited_ns(), self._cpu_ns()
        collected = self.garbage.ns
        figures = await self.sent(self.under.clients, requests, bypassing=bypassing)
        collected = self.garbage.ns - collected
        worked = None if cpu is None else (self._cpu_ns() or 0) - cpu
        waits = [figures["waited_ns"]]
        if waited is not None and not self.trampolines.stack.threads:
            waits.append((waited_ns() or 0) - waited)
        return Burst(
            request_us=figures["ns"] / requests / 1000,
            latencies_us=sorted(latency_ns / 1000 for latency_ns in figures["latencies_ns"]),
            gauges=(max(gauge, self._gauge()), float(max(figures["gauges_ns"]))),
            waited=max(waits) / figures["ns"],
            busy=None if worked is None else min(1.0, worked / figures["ns"]),
            sending=figures["worked_ns"] / figures["ns"],
            collecting_us=collected / requests / 1000,
        )

    def _gauge(self) -> float:
        return median([reference_ns(self.clock) for _ in range(GAUGES)])

    def _cpu_ns(self) -> Nanoseconds | None:
        clock = self.environment.cpu_clock
        return None if clock is None else clock()

    async def sent(self, clients: int, requests: int, *, bypassing: bool = False) -> dict[str, Any]:
        """Send requests and check all responses. Raises BypassError instead of others if a layer is bypassed."""
        figures = await self.process.burst(clients, requests)
        self.requests += requests
        self.served.check()
        wrong = self._wrong(figures, clients)
        if wrong is None:
            return figures
        raised = self.served.raised[0] if self.served.raised else None
        if bypassing:
            self.served.raised.clear()
            with_what = "raises " + type(raised).__name__ if raised else f"does not always answer {self.caller.status}"
            raise BypassError(f"without it the app {with_what} under load")
        what = f"; the app raised {described(raised)}" if raised else ""
        raise ResponseError(
            f"{self.caller.template.line}: {wrong}{what}. Under load the same request is sent thousands of times, by"
            f" {clients} clients at a time. Turn off what counts or refuses requests (a rate limit, a pool that is too"
            " small, a one-time token), or give fewer clients: mw_budget.load(..., clients=10).",
            message_id="load-response",
        ) from raised

    def _wrong(self, figures: Mapping[str, Any], clients: int) -> str | None:
        """Say what is wrong with the responses of a burst, None if nothing is."""
        if "error" in figures:
            return f"with {clients} clients, {figures['error']}"
        others = {status: number for status, number in figures["statuses"].items() if int(status) != self.caller.status}
        if not others:
            return None
        listed = ", ".join(f"{number} answered {status}" for status, number in sorted(others.items()))
        return (
            f"of {sum(figures['statuses'].values())} requests of {clients} clients, {listed}, not {self.caller.status}"
        )


# ---- the result --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Outcome:
    """Everything that is known, from which the result is made."""

    stack: Stack
    settings: Settings
    environment: Environment
    before: Result
    on: Cores
    driver: _Driver
    bursts: Bursts
    waits: tuple[_Stay, _Stay] | None
    why_not: Mapping[RowIndex, str]

    def result(self, seconds: float) -> Result:
        """Return the result with the figures under load and their verdicts."""
        reports, whole = self.before.layers, self.bursts.whole
        bounds = assign(self.settings.load_budgets, [report.layer for report in reports])
        alpha = analysis.alpha_of(len(reports) + 3)
        p99_ms = analysis.quantile_ms(whole, 0.99, alpha)
        limit_ms = self.settings.p99_ms
        load = Load(
            clients=self.driver.under.clients,
            rps=analysis.rps_of(whole, alpha),
            p50_ms=analysis.quantile_ms(whole, 0.5, alpha),
            p99_ms=p99_ms,
            busy=self._busy(whole),
            rounds=len(self.bursts.rounds),
            quiet=self.bursts.quiet,
            requests=self.driver.requests,
            seconds=seconds,
            server=f"{self.driver.served.name} on {self.driver.caller.loop.name}",
            endpoint=self._endpoint_wait(),
            judged=None if limit_ms is None else analysis.judge_p99(p99_ms, limit_ms, self.conditions),
            slowdown=self.conditions.slowdown,
        )
        load = replace(load, notes=tuple(self._notes(load)))
        layers = tuple(self._layer(report, load, bounds.get(report.layer.index, {}), alpha) for report in reports)
        return replace(self.before, layers=layers, load=load).with_verdict()

    @property
    def conditions(self) -> Conditions:
        """What can explain an excess."""
        slowdown = self.bursts.slowdown(self.environment.machine.best_ns)
        more_time = self.settings.more_time
        time = "--mw-budget-load-time" if more_time == MAX_TIME else more_time.name
        crowded = self.environment.turn.crowded
        return Conditions(slowdown, self.bursts.noisy, self.on.alone, self.bursts.limited, crowded, time)

    def _layer(self, report: ResultRow, load: Load, bounds: Mapping[Quantity, float], alpha: float) -> ResultRow:
        index = report.layer.index
        pairs = self.bursts.pairs(index)
        share, added = analysis.share_of(pairs, alpha), analysis.added_us(pairs, alpha)
        collected = analysis.collecting_us(pairs, alpha)
        why = self.why_not.get(index) or self._other_way(report, added, collected)
        layer_load = LayerLoad(why=why, wait=self._wait_of(report))
        if share is not None and why is None:
            layer_load = replace(
                layer_load,
                share=share,
                method="bypass",
                added_us=added,
                collecting_us=collected,
                collects=analysis.collects(collected, report.us),
            )
        else:
            own = _working_us(report)
            if own is not None:
                # Other processes lengthen the bursts, and hardly the time that the server works.
                busy = load.busy if self.bursts.noisy and load.busy else 1.0
                share = analysis.split_share(own, busy * load.request_us)
                layer_load = replace(
                    layer_load, share=share, method="split", why=why or "there was too little time for it"
                )
        if RPS_SHARE in bounds:
            layer_load = replace(
                layer_load, judged=analysis.judge_share(layer_load, bounds[RPS_SHARE], self.conditions)
            )
        return replace(report, load=layer_load)

    def _other_way(self, report: ResultRow, added: Estimate | None, collected: Estimate | None) -> str | None:
        """Say that the app does something else without a layer, None if it does not or nobody can tell."""
        entry, turns = self._entry_of(report)
        if added is None or report.us is None or self.waits is None or entry is None:
            return None
        single, every = self.waits
        stays = (single.own_us.get(entry, 0.0), every.own_us.get(entry, 0.0))
        own, queues = report.us, analysis.queues(*stays, turns, every.turn_us)
        if queues or not analysis.does_something_else(added, collected, own):
            return None
        return f"the app takes another way without it: {added.estimate:.0f} µs less under load, not {own.estimate:.0f}"

    def _entry_of(self, report: ResultRow) -> tuple[EntryIndex | None, int]:
        """Return the entry of a layer, and how often a request is suspended in it."""
        entry = next((index for index, layer in self.stack.layers if layer.index == report.layer.index), None)
        return entry, _turns(report)

    def _wait_of(self, report: ResultRow) -> Wait | None:
        return self._wait(*self._entry_of(report))

    def _endpoint_wait(self) -> Wait | None:
        return self._wait(self.stack.endpoint, _turns(self.before.frame("endpoint")))

    def _wait(self, entry: EntryIndex | None, turns: int) -> Wait | None:
        """Return how long requests are in a row that begins with an entry; the endpoint's has all that is inside."""
        if self.waits is None or entry is None or entry not in self.waits[0].own_us:
            return None
        single, every = self.waits
        entries = parts_of(self.stack.entries, entry)
        one_us, all_us = (sum(stay.own_us.get(index, 0.0) for index in entries) for stay in (single, every))
        queues = (
            self.driver.under.clients > 1
            and analysis.serialises(one_us, all_us, turns, every.turn_us, every.latency_us)
            and analysis.holds_up(one_us, every.request_us, every.idle, steady=every.steady)
        )
        return Wait(one_us, all_us, queues)

    @staticmethod
    def _busy(whole: Sequence[Burst]) -> float | None:
        known = [burst.busy for burst in whole if burst.busy is not None]
        return median(known) if known else None

    def _notes(self, load: Load) -> list[str]:
        notes = []
        if self.on.alone:
            notes.append(
                tagged(
                    "The server and the load generator share the only core, so the app is slower here than on a"
                    " server that has its own core.",
                    "one-core",
                )
            )
        if self.bursts.limited:
            notes.append(
                tagged(
                    "The load generator worked nearly all the time: a server may answer more requests per second, and"
                    " layers may have larger shares.",
                    "generator-limit",
                )
            )
        if load.rounds < FEWEST_PAIRS:
            notes.append(
                tagged(
                    f"There was time for {load.rounds} of the {FEWEST_PAIRS} rounds that an interval takes; give"
                    f" it more time with {self.conditions.time}.",
                    "too-few-requests",
                )
            )
        if self.bursts.noisy:
            notes.append(
                tagged(
                    f"Only {self.bursts.quiet} of {load.rounds} rounds of bursts were in quiet moments, so all rounds"
                    " count.",
                    "slow-machine",
                )
            )
        return notes


def _turns(row: ResultRow) -> int:
    """Return how often a request is suspended in a row."""
    return row.counts.suspensions.count if row.counts else 0


def _working_us(report: ResultRow) -> Estimate | None:
    """Return the part of a layer's own time that holds the event loop: while it waits, other requests are served."""
    if report.us is None or not report.us.bounded:
        return None
    spent = report.occupation
    return spent.busy if spent is not None and spent.wait_us and spent.busy.bounded else report.us
