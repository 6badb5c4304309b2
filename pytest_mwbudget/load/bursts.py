"""Measure an app under load: serve it, let clients send requests in bursts, bypass its layers in turns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from ..analysis import shares
from ..analysis.estimates import ALPHA
from ..analysis.paired import FEWEST_PAIRS, paired
from ..analysis.savings import TOGETHER, Arm
from ..analysis.shares import NEGLIGIBLE_SHARE, Burst, Bursts, Conditions, Observation, is_negligible, negligible_us
from ..asgi import loops
from ..asgi import server as in_process
from ..asgi.stack import Stack
from ..config.budgets import assign
from ..config.settings import Settings, Under
from ..errors import MeasurementError, ResponseError, described, tagged
from ..interpreter.clocks import Clock, process_time_ns
from ..model.estimate import ZERO, Estimate, Microseconds, Nanoseconds, Seconds
from ..model.load import PROCESSOR, LayerLoad, Load, Wait
from ..model.quantities import RPS_SHARE
from ..model.remedies import MAX_TIME
from ..model.results import Result, ResultRow
from ..model.stack import EntryIndex, RowIndex, parts_of
from ..timing.arms import Arms, other_way
from ..timing.host_speed import reference_ns, waited_ns
from ..timing.looks import NS_PER_S, Environment
from ..timing.sampler import Deadline
from .collecting import Collecting, collecting
from .process import Generator, generator
from .processor import cores, pinned
from .server import Served, files_for, serving
from .stays import observable, observed
from .turns import sampled_turns

# Warming up takes this share of the time at most, and observing how long requests are in each layer twice this one.
WARM_SHARE, OBSERVED_SHARE = 0.1, 0.08
# The requests of the first burst of one client, and the most that are observed of one client or few.
FIRST_REQUESTS, MOST_OBSERVED = 20, 400
# Pairs of bursts of one client, through layers and past them, and the most requests of each.
IN_APP_PAIRS, MOST_IN_APP = 10, 10
# The times of the reference workload beside a burst, of which the median counts.
GAUGES = 9
# A burst takes about this long: shorter ones cost more pauses, and in longer ones the machine changes its speed.
BURST_S: Seconds = 0.08
# A burst has at least this many requests.
FEWEST = 40
# The responses whose bodies are compared with those without a layer.
BODIES = 3
CHANGES = (
    "without it the app answers with a body of another length, so it may do less; set a budget of us for the layer's"
    " self time instead"
)


async def under_load(
    stack: Stack, caller: in_process.Caller, settings: Settings, environment: Environment, result: Result
) -> Result:
    """Add to the result of an ordinary measurement what the app does under load.

    Raises MeasurementError and ResponseError if the app does not answer all requests in time and with the same status.
    """
    under = settings.load
    assert under is not None
    require_loop(caller.loop.name)
    chosen = cores()
    # Threads of the app inherit the core. They shall not take it from the event loop.
    on = replace(chosen, server=None) if stack.threads else chosen
    clock = environment.clock
    begin_ns = clock()
    entries = {layer.index: entry for entry, layer in stack.layers if entry is not None}
    more_time = settings.more_time
    of_machine = Conditions(
        shared_core=on.alone,
        crowded=environment.turn.crowded,
        time="--mw-budget-load-time" if more_time == MAX_TIME else more_time.name,
    )
    arms = Arms(stack, caller, environment.rng, entries.values(), further=observable(stack))
    scheme = caller.template.scope(None)["scheme"]
    with (
        collecting(environment.cpu_clock or clock) as garbage,
        pinned(on.server),
        arms.bypasses.installed(),
        files_for(under.clients),
    ):
        async with serving(caller.app, caller.state, scheme) as served:
            with generator(served.port, caller.template, on.generator, settings.startup_timeout_s) as process:
                driver = _Driver(caller, settings, under, environment, garbage, arms, served, process)
                await driver.warm(begin_ns)
                observations = await driver.observations()
                lengths = await _lengths(caller, settings.startup_timeout_s)
                await arms.try_each(settings.startup_timeout_s, lengths=lengths)
                waited_us = under.clients * driver.request_ns / 1000
                most_us = negligible_us(driver.working_ns / 1000, waited_us, driver.occupied)
                negligible = [
                    entry
                    for row in result.layers
                    if (entry := entries.get(row.layer.index)) in arms.layers
                    and is_negligible(row, most_us, _wait(stack, observations, entry, row))
                ]
                least = f"less than {NEGLIGIBLE_SHARE:.0%} of the time of a request"
                arms.join(negligible, f"it takes {least}, and starts no task or thread")
                if arms.together and driver.rounds_in_time(begin_ns) < 2 * FEWEST_PAIRS:  # half fit on a busy machine
                    arms.refuse(TOGETHER, "there was too little time")
                if arms.together:
                    await arms.try_each(settings.startup_timeout_s, [TOGETHER])
                bursts = await driver.rounds(begin_ns)
                outcome = _Outcome(result, driver, bursts, observations, entries, of_machine)
                for arm in outcome.unexplained():
                    with suppress(ResponseError, MeasurementError):  # the bursts count without it
                        outcome.shorter_us[arm] = await driver.shorter_us(arm)
    return outcome.result((clock() - begin_ns) / NS_PER_S)


async def _lengths(caller: in_process.Caller, limit_s: Seconds) -> set[int | None]:
    """Return the length that the body of the response has with every layer; empty if it varies."""
    with suppress(loops.OutOfTimeError):
        async with caller.loop.limited(limit_s):
            lengths = {(await caller()).body_bytes for _ in range(BODIES)}
            return lengths if len(lengths) == 1 else set()
    return set()


def require_loop(name: str) -> None:
    """Raise MeasurementError on a loop on which uvicorn does not run."""
    if name == "trio":
        raise MeasurementError(
            "uvicorn, which serves the app under load, runs on asyncio and uvloop, not on trio; choose one of these as"
            " the loop",
            message_id="wrong-loop",
        )


# ---- bursts ------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Driver:
    """Makes bursts.

    By the latest burst of warming up, `request_ns` is the time between two responses, `working_ns` the part of it in
    which the thread of the event loop worked, and `occupied` the share of the time that the thread could have a core in
    which it worked, None if the system does not say. `requests` is the number of requests that were sent.
    """

    caller: in_process.Caller
    settings: Settings
    under: Under
    environment: Environment
    garbage: Collecting
    arms: Arms
    served: Served
    process: Generator
    request_ns: float = 0.0
    working_ns: float = 0.0
    occupied: float | None = None
    requests: int = 0

    @property
    def clock(self) -> Clock:
        """The clock of the measurement."""
        return self.environment.clock

    @property
    def bound(self) -> bool:
        """Whether the server's thread is the bottleneck, as far as warming up tells."""
        return self.occupied is not None and self.occupied >= shares.BOTTLENECK_SHARE

    @property
    def skipped(self) -> int:
        """The number of the first requests of each client that do not count.

        The first finds a shorter queue. If the app waits, clients that began at once meet again at their second.
        """
        return 1 if self.under.clients == 1 or self.bound else 2

    @property
    def limit_ns(self) -> Nanoseconds:
        """The time for all bursts."""
        return round(self.settings.load_time_s * NS_PER_S)

    async def warm(self, begin_ns: Nanoseconds) -> None:
        """Send requests of all clients, each at least one, until the share of the time for it is over."""
        requests, skipped = self.under.clients, 0
        while True:
            cpu, queued = self._cpu_ns(), self._queued_ns()
            figures = await self.sent(self.under.clients, requests, skipped)
            timed = self._timed(figures, _since(cpu, self._cpu_ns()), _since(queued, self._queued_ns()))
            self.request_ns, self.occupied = timed.request_ns, timed.occupied
            self.working_ns = timed.request_ns if timed.working_ns is None else timed.working_ns
            if self.clock() - begin_ns > WARM_SHARE * self.limit_ns:
                return
            requests, skipped = self._requests(WARM_SHARE * self.limit_ns)

    def _timed(self, figures: dict[str, Any], worked: Nanoseconds | None, queued: Nanoseconds | None) -> _Times:
        """Return the times of a burst, by how long the server's thread worked and was ready to run without a core."""
        all_ns, answered, request_ns = figures["all_ns"], figures["answered"], figures["request_ns"]
        if worked is None:
            return _Times(request_ns)
        could = 1 - (queued or 0) / all_ns
        if self.under.clients > 1 and worked >= shares.BOTTLENECK_SHARE * could * all_ns:
            request_ns = all_ns / answered  # it works from end to end
        working_ns = worked / answered
        return _Times(request_ns, working_ns, shares.occupied(working_ns / request_ns, could, known=queued is not None))

    async def observations(self) -> tuple[Observation, Observation] | None:
        """Observe how long requests are in each layer, with one client and with all; None if that would take long."""
        share_ns, clients, skipped = OBSERVED_SHARE * self.limit_ns, self.under.clients, self.skipped
        queued = (skipped + 1) * clients
        if queued * self.request_ns > 4 * share_ns:
            return None
        # The first request alone: of a slow app, more would use up the time.
        one_ns, requests = (await self.sent(1, 1, 0))["request_ns"], FIRST_REQUESTS
        if requests * one_ns < share_ns:
            one_ns = (await self.sent(1, requests, 1))["request_ns"]
        single = await self._observed(1, min(MOST_OBSERVED, max(2, round(share_ns / one_ns))), 1)
        requests = max(queued, min(max(20 * clients, MOST_OBSERVED), round(share_ns / self.request_ns)))
        return single, await self._observed(clients, requests, skipped)

    async def _observed(self, clients: int, requests: int, skipped: int) -> Observation:
        stack = self.arms.stack
        waited, worked = _waited_ns() or 0, process_time_ns()
        with observed(self.arms.bypasses, skipped * clients, self.clock) as stays, sampled_turns(self.clock) as turns:
            figures = await self.sent(clients, requests, skipped)
        waited, worked = (_waited_ns() or 0) - waited, process_time_ns() - worked
        counted, all_ns = figures["answered"] - skipped * clients, figures["all_ns"]
        return Observation(
            clients,
            own_us={index: total / counted / 1000 for index, total in stays.own_ns(stack).items()},
            latency_us=median(figures["latencies_ns"] or [0]) / 1000,
            turn_us=turns.mean_us,
            request_us=figures["request_ns"] / 1000,
            idle=1 - (worked + waited) / all_ns,
            steady=not stack.threads and waited <= shares.WAITED_SHARE * all_ns,
        )

    async def shorter_us(self, arm: EntryIndex) -> Estimate | None:
        """Return by how much shorter one client's requests are in the app without an arm's layers; None if it is slow.

        What layers leave to others is not in this time if requests are never suspended.
        """
        one_ns = (await self.sent(1, 1, 0))["request_ns"]
        requests = min(MOST_IN_APP, int(OBSERVED_SHARE * self.limit_ns / one_ns / IN_APP_PAIRS / 2))
        if not requests:
            return None
        pairs = []
        for _ in range(IN_APP_PAIRS):
            order: list[Arm] = self.environment.rng.sample([None, arm], 2)
            pairs.append({left_out: await self._in_app_us(arm, left_out, requests) for left_out in order})
        return paired([pair[None] - pair[arm] for pair in pairs], ALPHA)

    async def _in_app_us(self, arm: EntryIndex, left_out: Arm, requests: int) -> Microseconds:
        with observed(self.arms.bypasses, 0, self.clock) as stays, self.arms.without(left_out):
            await self.sent(1, requests, 0)
        others = [total_ns for index, total_ns in stays.total_ns.items() if index not in self.arms.left_out(arm)]
        return max(others, default=0) / requests / 1000

    def _requests(self, left_ns: float) -> tuple[int, int]:
        """Return the number of requests of a burst, and how many of each client are skipped."""
        return requests_of(self.request_ns, self.under.clients, left_ns, self.skipped, bound=self.bound)

    def rounds_in_time(self, begin_ns: Nanoseconds) -> float:
        """Return about how many rounds of bursts there is time for."""
        left_ns = begin_ns + self.limit_ns - self.clock()
        return left_ns / self._burst_ns(*self._requests(left_ns)) / (len(self.arms.arms) + 1)

    def _burst_ns(self, requests: int, skipped: int) -> float:
        """Return about how long a burst takes, with the requests that do not count at its end."""
        return self.request_ns * (requests + (2 * self.under.clients if skipped else 0))

    async def rounds(self, begin_ns: Nanoseconds) -> Bursts:
        """Make rounds of bursts until the time is over."""

        def progress() -> None:
            self.environment.progress(min(1.0, (self.clock() - begin_ns) / self.limit_ns))

        deadline = Deadline(begin_ns + self.limit_ns, self.clock, progress)
        requests, skipped = self._requests(deadline.at_ns - self.clock())
        try:
            rounds = await self.arms.rounds(
                lambda arm: self.burst(requests, skipped),
                deadline,
                self._burst_ns(requests, skipped),
                failures=ResponseError,  # the end of the load generator is not the layer's
                when=" under load",
            )
        finally:
            self.environment.progress(None)
        return Bursts(shares.with_full_collections_spread([dict(blocks) for blocks in rounds]))

    async def burst(self, requests: int, skipped: int) -> Burst:
        """Make a burst of all clients with everything that tells how quiet it was."""
        gauge, queued, cpu = self._gauge(), self._queued_ns(), self._cpu_ns()
        garbage = copy(self.garbage)
        figures = await self.sent(self.under.clients, requests, skipped)
        worked, queued = _since(cpu, self._cpu_ns()), _since(queued, self._queued_ns())
        timed = self._timed(figures, worked, queued)
        answered, all_ns = figures["answered"], figures["all_ns"]
        return Burst(
            request_us=timed.request_ns / 1000,
            latencies_us=sorted(latency_ns / 1000 for latency_ns in figures["latencies_ns"]),
            gauges=(max(gauge, self._gauge()), float(max(figures["gauges_ns"]))),
            queued=(queued or 0) / all_ns,
            queues=queued is not None,
            starved=figures["waited_ns"] / all_ns,
            working_us=None if timed.working_ns is None else timed.working_ns / 1000,
            sending=figures["worked_ns"] / all_ns,
            collecting_us=(self.garbage.ns - garbage.ns) / answered / 1000,
            full_us=(self.garbage.full_ns - garbage.full_ns) / answered / 1000,
            collections=(self.garbage.collections - garbage.collections) / answered,
        )

    def _gauge(self) -> float:
        return median([reference_ns(self.clock) for _ in range(GAUGES)])

    def _cpu_ns(self) -> Nanoseconds | None:
        clock = self.environment.cpu_clock
        return None if clock is None else clock()

    def _queued_ns(self) -> Nanoseconds | None:
        """Return how long this thread was ready to run and had no core, None if unknown.

        With threads of the app it also waits for the interpreter, and nothing tells for how long.
        """
        return None if self.arms.stack.threads else _waited_ns()

    async def sent(self, clients: int, requests: int, skipped: int) -> dict[str, Any]:
        """Send requests, check all responses, and return the figures with the number `answered`.

        Raises ResponseError, whose cause is what the app raised, if known.
        """
        figures = await self.process.burst(clients, requests, skipped)
        statuses: dict[str, int] = figures.get("statuses", {})
        answered = sum(statuses.values())
        self.requests += max(requests, answered)
        self.served.check()
        status = self.caller.status
        others = {int(other): number for other, number in statuses.items() if int(other) != status}
        if "error" in figures:
            wrong = f"with {clients} clients, {figures['error']}"
        elif others:
            listed = ", ".join(f"{number} answered {other}" for other, number in sorted(others.items()))
            wrong = f"of {answered} requests of {clients} clients, {listed}, not {status}"
        elif self.served.raised:
            wrong = f"all {answered} requests of {clients} clients answered {status}"
        else:
            return figures | {"answered": answered}
        raised = next(iter(self.served.raised), None)
        self.served.raised.clear()
        what = f"; the app raised {described(raised)}" if raised else ""
        error = ResponseError(
            f"{self.caller.template.line}: {wrong}{what}. Under load the same request is sent thousands of times, by"
            f" {clients} clients at a time. Turn off what counts or refuses requests (a rate limit, a pool that is too"
            " small, a one-time token), or give fewer clients (clients=10, --clients 10).",
            message_id="load-response",
        )
        error.status = min(others, default=None)
        raise error from raised


@dataclass(frozen=True, slots=True)
class _Times:
    """The time between two responses, the time of it in which the server's thread worked, and `shares.occupied`."""

    request_ns: float
    working_ns: float | None = None
    occupied: float | None = None


def _since(before: Nanoseconds | None, now: Nanoseconds | None) -> Nanoseconds | None:
    return None if before is None or now is None else now - before


def _waited_ns() -> Nanoseconds | None:
    """Return how long this thread was ready to run and had no core, None where the system does not say."""
    with loops.unwatched():
        return waited_ns()


def requests_of(request_ns: float, clients: int, left_ns: float, skipped: int, *, bound: bool) -> tuple[int, int]:
    """Return the number of requests of a burst, and how many of each client are skipped.

    A request takes `request_ns` of the server's time. If a burst that skips some takes more than a tenth of the time
    that is left, and the server is the bottleneck (`bound`), a burst has one request of each client. Otherwise such a
    burst says nothing, because clients that begin at once wait for each other: so it is made only if there is no time
    for another, and then there are too few rounds for a verdict.
    """
    most = max(1, round(left_ns / 10 / max(request_ns, 1.0)))
    requests = min(max(FEWEST, round(BURST_S * NS_PER_S / max(request_ns, 1.0))), most)
    if clients == 1:
        return requests, skipped
    # Those that are under way when the last one that counts is sent, and others until these are answered.
    least_ns = (skipped + 2) * clients * request_ns
    if least_ns > (left_ns / 10 if bound else left_ns):
        return clients, 0
    return max(requests, skipped * clients), skipped


# ---- the result --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Outcome:
    """Everything that is known, from which the result is made.

    `entries` are those of the rows that the request came to. `observed` are bursts with one client and with all.
    `of_machine` are the conditions but for what the bursts show. `shorter_us` is by how much shorter a request is in
    the app without the layers of unexplained arms, None if unknown.
    """

    before: Result
    driver: _Driver
    bursts: Bursts
    observed: tuple[Observation, Observation] | None
    entries: Mapping[RowIndex, EntryIndex]
    of_machine: Conditions
    shorter_us: dict[EntryIndex, Estimate | None] = field(default_factory=dict)

    def unexplained(self) -> Iterator[EntryIndex]:
        """Yield the arms that save far more than their layers' own times and tasks explain.

        Time in the app does not tell why if requests are suspended, because others work meanwhile.
        """
        if any(_turns(row) for row in self.before.rows()):
            return
        for row in self.before.layers:
            entry = self.entries.get(row.layer.index)
            if entry is not None and entry in self.driver.arms.layers and not shares.starts(row):
                layer_load = self._bypassed(row, entry, ALPHA)[1]
                if self._other_way(entry, layer_load, row, self._wait(entry, row)) is not None:
                    yield entry
        if self._left() is not None:
            yield TOGETHER

    def result(self, seconds: float) -> Result:
        """Return the result with the figures under load and their verdicts."""
        rows, whole, settings = self.before.layers, self.bursts.whole, self.driver.settings
        bounds = assign(settings.load_budgets, [row.layer for row in rows])
        alpha = ALPHA / (len(rows) + 3)  # all intervals hold jointly
        p99_ms = shares.quantile_ms(whole, 0.99, alpha)
        limit_ms, conditions = settings.p99_ms, self._conditions(self.bursts)
        rows = tuple(self._layer(row, bounds.get(row.layer.index, {}).get(RPS_SHARE), alpha) for row in rows)
        load = Load(
            clients=self.driver.under.clients,
            rps=shares.rps_of(whole, alpha),
            p50_ms=shares.quantile_ms(whole, 0.5, alpha),
            p99_ms=p99_ms,
            busy=self.bursts.busy,
            rounds=len(self.bursts.rounds),
            quiet=self.bursts.quiet,
            requests=self.driver.requests,
            seconds=seconds,
            server=f"{self.driver.served.name} on {self.driver.caller.loop.name}",
            endpoint=self._wait(self.driver.arms.stack.endpoint, self.before.frame("endpoint")),
            judged=None if limit_ms is None else shares.judge_p99(p99_ms, limit_ms, conditions),
            notes=tuple(self._notes(rows, conditions)),
            slowdown=conditions.slowdown,
        )
        return replace(self.before, layers=rows, load=load).with_verdict()

    def _conditions(self, bursts: Bursts) -> Conditions:
        """Return the conditions of figures from bursts by one of the clocks."""
        best_ns = self.driver.environment.machine.best_ns
        conditions = replace(self.of_machine, slowdown=bursts.slowdown(best_ns), noisy=bursts.noisy)
        if bursts.clock == PROCESSOR:
            return replace(conditions, shared_core=False)
        return replace(conditions, limited=bursts.limited)

    def _layer(self, row: ResultRow, bound: float | None, alpha: float) -> ResultRow:
        """Return the row with its figures under load."""
        entry = self.entries.get(row.layer.index)
        wait = self._wait(entry, row)
        bursts, layer_load = self._bypassed(row, entry, alpha)
        why: str | None = "the request did not come to it"
        doubt = unsure = None
        if entry is not None:
            why = self.driver.arms.why_not.get(entry)
            unsure = None if why is not None else shares.too_wide(layer_load.share)
            why = why or unsure
            other = None if why is not None else self._other_way(entry, layer_load, row, wait)
            does_less = None if other is None else self._does_less(entry, layer_load)
            if other is not None and (does_less is False or shares.starts(row)):
                doubt = tagged(_of_others(row, other), "not-bypassed")
            elif other is not None:
                why, unsure = other, None if does_less else f"{other}, or {shares.LEFT}"
            elif entry in self.driver.arms.changing and not self._exceeds(row, bound):
                doubt = tagged(CHANGES, "not-bypassed")
        lacks: str | None = None
        if layer_load.share is None or why is not None:
            allowed = layer_load.share is None or bound is None or layer_load.share.high <= bound
            bursts, layer_load = self._divided(row, why)
            beyond = None if allowed else unsure
            if bound is not None and beyond is None:
                beyond = self._beyond(entry, layer_load, bound)
            lacks = shares.lacking(row, layer_load, wait, beyond)
        conditions = self._conditions(bursts)
        judged = None if bound is None else shares.judge_share(layer_load, bound, conditions, doubt, lacks)
        return replace(row, load=replace(layer_load, wait=wait, judged=judged))

    def _divided(self, row: ResultRow, why: str | None) -> tuple[Bursts, LayerLoad]:
        """Return the share by self time, and the bursts by the clock that it is of."""
        bursts = self._by_clock(processor=self._is_bound(None))
        return bursts, shares.divided(row, self.bursts, self.driver.under.clients, why, bursts.clock)

    def _exceeds(self, row: ResultRow, bound: float | None) -> bool:
        """Return whether already the self time of a layer is above its budget."""
        share = self._divided(row, None)[1].share
        return bound is not None and share is not None and share.low > bound * (1 + shares.SPLIT_ROOM)

    def _of_request(self, arm: Arm) -> float:
        """Return the factor from what bursts past an arm save, between two responses, to a layer's self time.

        It is 1 if the processor limits the requests per second, or if it is not known whether it does.
        """
        clients, occupied = self.driver.under.clients, self.bursts.occupied
        if clients == 1 or occupied is None or self._is_bound(arm):
            return 1.0
        return clients * shares.alone(occupied)

    def _bypassed(self, row: ResultRow, entry: EntryIndex | None, alpha: float) -> tuple[Bursts, LayerLoad]:
        """Return what bursts past a layer say, if there are any, and the bursts by the clock that says it."""
        # The processor time of the event loop's thread does not contain work of other threads.
        in_loop = row.counts is not None and not row.counts.threads.high
        bursts = self._by_clock(processor=in_loop and self._is_bound(entry))
        if entry is None or not bursts.pairs(entry):
            return bursts, LayerLoad()
        return bursts, shares.bypassed(bursts, entry, row.us, alpha)

    def _by_clock(self, *, processor: bool) -> Bursts:
        """Return the bursts by the processor time of the server's thread, if it is known, or by wall clock."""
        return (self.bursts.of_processor() or self.bursts) if processor else self.bursts

    def _does_less(self, entry: EntryIndex, layer_load: LayerLoad) -> bool | None:
        """Return whether it is the app that does less without a layer, None if that is not certain."""
        shorter_us, added_us = self.shorter_us.get(entry), layer_load.added_us
        if shorter_us is None or added_us is None:
            return None
        half_us = self._of_request(entry) * added_us.estimate / 2
        return None if shorter_us.low <= half_us <= shorter_us.high else shorter_us.low > half_us

    @property
    def _more_time(self) -> str:
        fewer = ", or fewer clients" if self.driver.under.clients > 1 else ""
        return f"give it more time with {self.of_machine.time}{fewer}"

    def _left(self) -> Estimate | None:
        """Return what share the negligible layers certainly cost together beyond their own times, None if nothing.

        What the app itself does less without them is not theirs.
        """
        together = self.driver.arms.together
        bursts = self._by_clock(processor=self._is_bound(TOGETHER))
        if not together or not bursts.pairs(TOGETHER):
            return None
        added_us = shares.without_garbage(shares.bypassed(bursts, TOGETHER, None, ALPHA))
        if added_us is None or not added_us.bounded:
            return None
        own_us = [row.us for row in self.before.layers if self.entries.get(row.layer.index) in together]
        times = self._of_request(TOGETHER)
        left_us = added_us * times - sum((us for us in own_us if us is not None), self.shorter_us.get(TOGETHER) or ZERO)
        return left_us / (bursts.request_us * times) if left_us.low > 0 else None

    @property
    def _told_apart(self) -> bool:
        """Whether it is known what the app itself does less without the negligible layers."""
        return self.shorter_us.get(TOGETHER) is not None

    def _beyond(self, entry: EntryIndex | None, layer_load: LayerLoad, bound: float) -> str | None:
        """Say why the self time of a layer that was not bypassed does not show that it keeps its budget."""
        if self.observed is None and self.driver.under.clients > 1 and not self._is_bound(None):
            return f"there was too little time to see whether requests queue in it; {self._more_time}"
        if entry not in self.driver.arms.together:
            most = shares.behind_server(layer_load.share, bound)
            return None if most is None else f"{most}; {layer_load.why}"
        own, left = layer_load.share, self._left()
        if left is None or own is None or own.estimate + left.estimate <= bound:
            return None
        others = len(self.driver.arms.together) - 1
        past = f"it and {others} more such layers" if others else "it"
        return f"it takes next to nothing, but {shares.left_by(past, left, certain=self._told_apart)}"

    def _is_bound(self, arm: Arm) -> bool:
        """Return whether the event loop's thread is the bottleneck. It waits for a lone client after each response."""
        return self.driver.under.clients > 1 and self.bursts.is_bound(arm)

    def _other_way(self, entry: EntryIndex, layer_load: LayerLoad, row: ResultRow, wait: Wait | None) -> str | None:
        """Say that the app does something else without a layer. If requests queue in it, nobody can tell."""
        added = shares.without_garbage(layer_load)
        if added is None or wait is None or self.observed is None:
            return None
        queues = shares.grows(wait, _turns(row), self.observed[1])
        return None if queues else other_way(added * self._of_request(entry), row.us, " under load")

    def _wait(self, entry: EntryIndex | None, row: ResultRow) -> Wait | None:
        return _wait(self.driver.arms.stack, self.observed, entry, row)

    def _notes(self, rows: Iterable[ResultRow], conditions: Conditions) -> Iterator[str]:
        rounds = len(self.bursts.rounds)
        if conditions.shared_core:
            one_core = (
                "The server and the load generator share the only core, so the app is slower here than on a server that"
                " has its own core."
            )
            yield tagged(one_core, "one-core")
        if conditions.limited:
            limited = (
                "The load generator worked nearly all the time: a server may answer more requests per second, and"
                " layers may have larger shares of wall-clock time."
            )
            yield tagged(limited, "generator-limit")
        left, together = self._left(), self.driver.arms.together
        if left is not None and left.low > NEGLIGIBLE_SHARE:
            past = (
                f"the {len(together)} layers that take next to nothing"
                if len(together) > 1
                else "the layer that takes next to nothing"
            )
            text = shares.left_by(past, left, certain=self._told_apart)
            yield tagged(f"{text[0].upper()}{text[1:]}.", "not-bypassed")
        if (why := self.driver.arms.why_not.get(TOGETHER)) and any(row.load and row.load.judged for row in rows):
            unseen = "No request was sent past all layers that take next to nothing, so work that they leave to others"
            yield tagged(f"{unseen} is not seen: {why}.", "not-bypassed")
        if rounds < FEWEST_PAIRS:
            few = f"There was time for {rounds} of the {FEWEST_PAIRS} rounds that an interval takes"
            yield tagged(f"{few}; {self._more_time}.", "too-few-requests")
        if conditions.noisy:
            noisy = f"Only {self.bursts.quiet} of {rounds} rounds of bursts were in quiet moments, so all rounds count."
            if any(row.load is not None and row.load.clock == PROCESSOR for row in rows):
                noisy += " Shares of processor time hardly see other processes."
            yield tagged(noisy, "slow-machine")


def _of_others(row: ResultRow, other: str) -> str:
    """Say that a layer may cause the work of others that bursts past it do without, or `other`."""
    if shares.starts(row):
        started = "it starts tasks or threads that may work after the response"
        return f"{started}, or {other}; set a budget of us or of tasks instead"
    return f"{shares.LEFT}, or {other}; set a budget of p99_ms instead, which covers such work"


def _wait(
    stack: Stack, observed: tuple[Observation, Observation] | None, entry: EntryIndex | None, row: ResultRow
) -> Wait | None:
    """Return how long requests are in a row that begins with an entry; the endpoint's has all that is inside."""
    if observed is None or entry is None or entry not in observed[0].own_us:
        return None
    return shares.wait_in(parts_of(stack.entries, entry), _turns(row), *observed)


def _turns(row: ResultRow) -> int:
    """Return how often a request is suspended in a row."""
    return row.counts.suspensions.count if row.counts else 0
