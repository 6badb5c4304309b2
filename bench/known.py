"""Layers and apps of known cost, written as a user would write them."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from time import perf_counter, perf_counter_ns
from types import FunctionType
from typing import Any
from unittest.mock import patch

from pytest_mwbudget.analysis.estimates import ALPHA
from pytest_mwbudget.analysis.intervals import batched_interval, quickest, quiet
from pytest_mwbudget.analysis.samples import QUIET_REFERENCE, Series
from pytest_mwbudget.analysis.slowdown import slowdown
from pytest_mwbudget.asgi import server
from pytest_mwbudget.asgi.request import build_request, template_of
from pytest_mwbudget.model.estimate import Estimate, independent_sum
from pytest_mwbudget.timing.host_speed import Machine, issue_width, reference_ns
from pytest_mwbudget.timing.sampler import Sampler

# CPython specialises call sites only after about a thousand calls; before that a no-op costs twice as much.
WARM_CALLS = 1500
# Consecutive requests that count, after one that does not count.
CALLS = 3
# Consecutive requests that count in a stack whose layer is measured in place, after some that do not count.
CALLS_IN_PLACE, SETTLE_IN_PLACE = 16, 8
# The fewest requests of a series for an interval.
FEWEST = 48
# A true cost is known well enough if the half width of its interval is at most KNOWN_US plus KNOWN_SHARE of the cost.
KNOWN_US, KNOWN_SHARE = 0.05, 0.005


class Noop:
    """Pass every call through."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.app(scope, receive, send)


def spin_ns(ns: int) -> int:
    """Spin for at least `ns` nanoseconds and return the actual duration."""
    begin = now = perf_counter_ns()
    while now - begin < ns:
        now = perf_counter_ns()
    return now - begin


class Spin(Noop):
    """Spin for `us` microseconds in each request, and record the actual durations."""

    def __init__(self, app: Any, us: float) -> None:
        super().__init__(app)
        self.us = us
        self.really_ns: list[int] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        # Not a shared function, which other layers would warm up.
        begin = now = perf_counter_ns()
        end = begin + self.us * 1000
        while now < end:
            now = perf_counter_ns()
        self.really_ns.append(now - begin)
        await self.app(scope, receive, send)


class SpinAtMessages(Spin):
    """Spin for a tenth of `us` at each of ten messages that the app sends."""

    messages = 10

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        part_ns = self.us * 1000 / self.messages
        spun = 0

        async def spinning(message: Any) -> None:
            nonlocal spun
            begin = now = perf_counter_ns()
            while now - begin < part_ns:
                now = perf_counter_ns()
            spun += now - begin
            await send(message)

        await self.app(scope, receive, spinning)
        self.really_ns.append(spun)


class SpinInTask(Spin):
    """Spin in a child task and wait for the task."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await asyncio.create_task(self._work())
        await self.app(scope, receive, send)

    async def _work(self) -> None:
        begin = now = perf_counter_ns()
        end = begin + self.us * 1000
        while now < end:
            now = perf_counter_ns()
        self.really_ns.append(now - begin)


class Sleep(Spin):
    """Sleep in each request, and record the actual durations."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        begin = perf_counter_ns()
        await asyncio.sleep(self.us / 1e6)
        self.really_ns.append(perf_counter_ns() - begin)
        await self.app(scope, receive, send)


class Glance(Noop):
    """Read the clock and pass through, so that the clock's code is in the cache for a layer inside."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        perf_counter_ns()
        await self.app(scope, receive, send)


class Clocked(Noop):
    """Read the clock at each call and message that passes. `inside_ns` is the time of the latest request inside.

    What the app inside sends is not inside. Nothing inside may receive.
    """

    inside_ns = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        sending_ns = 0

        async def clocked(message: Any) -> None:
            nonlocal sending_ns
            begin = perf_counter_ns()
            await send(message)
            sending_ns += perf_counter_ns() - begin

        begin = perf_counter_ns()
        await self.app(scope, receive, clocked)
        self.inside_ns = perf_counter_ns() - begin - sending_ns


def own(kind: type[Noop]) -> type[Noop]:
    """Make a subclass of `kind` with its own code object, as real layers have: CPython specialises code in place."""
    call: Any = kind.__call__
    copied = FunctionType(call.__code__.replace(), call.__globals__, call.__name__, call.__defaults__, call.__closure__)
    return type(kind.__name__, (kind,), {"__call__": copied})


def start() -> dict[str, Any]:
    """Make the first message of a response: a new one each time, because layers change its headers in place."""
    return {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]}


class Endpoint:
    """Spin, then answer in `messages` messages; `worked_ns` is the duration of the last spin.

    The duration is log-normal with the median `median_us` and the sigma `noise`.
    """

    def __init__(self, messages: int = 2, median_us: float = 0.0, noise: float = 0.0) -> None:
        self.messages = messages
        self.median_us = median_us
        self.noise = noise
        self.worked_ns = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if self.median_us:
            self.worked_ns = spin_ns(round(self.median_us * 1000 * random.lognormvariate(0.0, self.noise)))
        await send(start())
        for left in range(self.messages - 2, -1, -1):
            await send({"type": "http.response.body", "body": b"ok", "more_body": left > 0})


def endpoints() -> dict[str, Endpoint]:
    """Return the endpoints by name. The slow one computes for 1.2 ms in the median, with log-normal noise."""
    return {
        "fast": Endpoint(),
        "ten messages": Endpoint(messages=SpinAtMessages.messages),
        "slow and noisy": Endpoint(median_us=1200, noise=0.4),
    }


def at_best_speed(references: Sequence[float]) -> list[bool]:
    """Return for each time of the reference workload whether the machine ran at its best speed."""
    return quiet(references, QUIET_REFERENCE, quickest(references))


async def caller(app: Any, warm_calls: int) -> server.Caller:
    """Make a caller of the app, and warm the app up with `warm_calls` requests."""
    request = build_request("GET", "/", {"headers": {"origin": "http://elsewhere"}})
    call = server.Caller(app, await template_of(request), None)
    for _ in range(warm_calls):
        await call()
    return call


@contextmanager
def samplers() -> Iterator[list[Sampler]]:
    """Note the sampler of each measurement in the block."""
    noted: list[Sampler] = []
    whole_leg = Sampler.whole_leg

    async def noting(sampler: Sampler, *arguments: Any) -> None:
        if sampler not in noted:
            noted.append(sampler)
        await whole_leg(sampler, *arguments)

    with patch.object(Sampler, "whole_leg", noting):
        yield noted


async def take(
    series: Series, count: int, request: Callable[[], Awaitable[float]], sampler: Sampler | None = None
) -> None:
    """Add the nanoseconds of `count` requests, each with the slower of the reference workloads before and after.

    Between two requests it does what the measurement of `sampler` does there. So the reference workload runs once
    there: run twice in a row, it would be faster.
    """
    before = reference_ns(perf_counter_ns)
    for _ in range(count):
        begin = perf_counter_ns()
        elapsed_ns = await request()
        if sampler is not None:
            sampler.rest(begin, before)
        after = reference_ns(perf_counter_ns)
        if sampler is not None:
            issue_width()  # a measurement reads it just before each request
        series.add(elapsed_ns, max(before, after))
        before = after


@dataclass(frozen=True)
class Cost:
    """The cost of a layer, the layer, and the slowdown of the machine during the measurement."""

    us: Estimate
    layer: Any
    slowdown: float


async def cost(
    kind: Callable[[Any], Any],
    endpoint: Endpoint,
    seconds: float,
    machine: Machine,
) -> Cost:
    """Measure the cost of a layer made by `kind`, without any probe.

    The layer is between two layers of `Glance`. Whole requests with the layer and without it take turns. The endpoint's
    own spin is subtracted. A request counts only if the reference workload next to the request ran at the best known
    speed of the machine. The measurement takes `seconds`, or up to three times as long if the cost is not yet known to
    `KNOWN_US` and `KNOWN_SHARE`.
    """
    layer = kind(own(Glance)(endpoint))
    warm_calls = WARM_CALLS // 10 if endpoint.median_us else WARM_CALLS
    callers = [await caller(own(Glance)(app), warm_calls) for app in (layer, own(Glance)(endpoint))]
    taken = [Series(), Series()]

    async def request(call: server.Caller) -> float:
        return (await call()).elapsed_ns - endpoint.worked_ns

    difference = Cost(Estimate(0.0, -math.inf, math.inf), layer, 1.0)
    begin = perf_counter()
    for limit_s in (seconds, 2 * seconds, 3 * seconds):
        while min(len(series.values) for series in taken) < FEWEST or perf_counter() - begin < limit_s:
            for call, series in zip(callers, taken, strict=True):
                await call()
                await take(series, CALLS, partial(request, call))
        difference = _difference(taken, layer, machine)
        if difference.slowdown == 1 and difference.us.half_width <= KNOWN_US + KNOWN_SHARE * difference.us.estimate:
            break
    return difference


async def cost_in_place(
    layers: Sequence[Any], index: int, endpoint: Endpoint, seconds: float, machine: Machine, sampler: Sampler
) -> Cost:
    """Measure what a layer of a stack takes itself in its place, without any probe of ours.

    The layer stands between two of `Clocked`. The time between these two with the layer, less the time without it, is
    its cost. Requests with the layer and without it take turns, with the work of `sampler` between them. `layers` are
    in order from the outside in, each with the attribute `app`. The rest is as for `cost`.
    """
    layer, chain = layers[index], [*layers, endpoint]
    inner = own(Clocked)(chain[index + 1])
    outer = own(Clocked)(layer)
    layer.app = inner
    if index:
        chain[index - 1].app = outer
    taken = [Series(), Series()]

    async def request() -> float:
        await call()
        return outer.inside_ns - inner.inside_ns

    difference = Cost(Estimate(0.0, -math.inf, math.inf), layer, 1.0)
    call = await caller(chain[0] if index else outer, SETTLE_IN_PLACE)
    begin = perf_counter()
    for limit_s in (seconds, 2 * seconds, 3 * seconds):
        while min(len(series.values) for series in taken) < FEWEST or perf_counter() - begin < limit_s:
            for app, series in zip((layer, inner), taken, strict=True):
                outer.app = app
                for _ in range(SETTLE_IN_PLACE):
                    await call()
                await take(series, CALLS_IN_PLACE, request, sampler)
        difference = _difference(taken, layer, machine)
        if difference.slowdown == 1 and difference.us.half_width <= KNOWN_US + KNOWN_SHARE * difference.us.estimate:
            break
    layer.app = chain[index + 1]
    if index:
        chain[index - 1].app = layer
    return difference


def _difference(taken: Sequence[Series], layer: Any, machine: Machine) -> Cost:
    """Subtract the median request without the layer from that with the layer, at the best speed of the machine."""
    quick_ns = min(quickest([ns for series in taken for ns in series.reference]), machine.seen_ns)
    kept = [series.steady(quick_ns) for series in taken]
    with_it, without = (batched_interval(series.values, ALPHA) * 0.001 for series in kept)
    slowed = max(slowdown(series.reference, min(quick_ns, machine.best_ns)) for series in kept)
    return Cost(independent_sum(with_it, -without), layer, slowed)
