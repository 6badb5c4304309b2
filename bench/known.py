"""Layers and apps of known cost, written as a user would write them."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter, perf_counter_ns
from types import FunctionType
from typing import Any

from pytest_mwbudget.analysis.estimates import ALPHA
from pytest_mwbudget.analysis.intervals import batched_interval, quickest, quiet
from pytest_mwbudget.analysis.samples import QUIET_REFERENCE, Series
from pytest_mwbudget.analysis.slowdown import slowdown
from pytest_mwbudget.asgi import server
from pytest_mwbudget.asgi.request import build_request, template_of
from pytest_mwbudget.model.estimate import Estimate, independent_sum
from pytest_mwbudget.timing.host_speed import Machine, reference_ns

# CPython specialises the call sites only after some thousand calls; before that a no-op costs twice as much.
WARM_CALLS = 1500
# So many requests at a time; one more before them does not count.
CALLS = 3
# The least that makes an interval.
FEWEST = 48
# As near as this a truth is known well enough.
KNOWN_US, KNOWN_SHARE = 0.05, 0.005


class Noop:
    """Passes through."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.app(scope, receive, send)


def spin_ns(ns: int) -> int:
    """Work for so many nanoseconds; returns how many they were."""
    begin = now = perf_counter_ns()
    while now - begin < ns:
        now = perf_counter_ns()
    return now - begin


class Spin(Noop):
    """Works for so long on each request, and notes how long it was."""

    def __init__(self, app: Any, us: float) -> None:
        super().__init__(app)
        self.us = us
        self.really_ns: list[int] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        # Written out, so that none of it is warm from another layer.
        begin = now = perf_counter_ns()
        end = begin + self.us * 1000
        while now < end:
            now = perf_counter_ns()
        self.really_ns.append(now - begin)
        await self.app(scope, receive, send)


class SpinAtMessages(Spin):
    """Works a tenth at each message that the app sends."""

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
    """Works in a task of its own, and waits for it."""

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
    """Waits, and notes how long it was."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        begin = perf_counter_ns()
        await asyncio.sleep(self.us / 1e6)
        self.really_ns.append(perf_counter_ns() - begin)
        await self.app(scope, receive, send)


class Glance(Noop):
    """Looks at the clock and passes through: what looks at it inside then finds the clock's code in the cache."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        perf_counter_ns()
        await self.app(scope, receive, send)


def own(kind: type[Noop]) -> type[Noop]:
    """A class like `kind` with code of its own, as each middleware has: CPython specialises it for its one place."""
    call: Any = kind.__call__
    copied = FunctionType(call.__code__.replace(), call.__globals__, call.__name__, call.__defaults__, call.__closure__)
    return type(kind.__name__, (kind,), {"__call__": copied})


def glances(app: Any, count: int) -> Any:
    """The app below so many layers that glance at the clock."""
    for _ in range(count):
        app = own(Glance)(app)
    return app


def start() -> dict[str, Any]:
    """The first message of a response; layers change its headers in place."""
    return {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]}


class Endpoint:
    """Works for a while, then answers in so many messages; notes how long the work took."""

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
    """Answers at once; answers in ten messages; computes for 1.2 ms in the median, with log-normal noise."""
    return {
        "fast": Endpoint(),
        "ten messages": Endpoint(messages=SpinAtMessages.messages),
        "slow and noisy": Endpoint(median_us=1200, noise=0.4),
    }


def at_best_speed(references: Sequence[float]) -> list[bool]:
    """Which of these times of the reference workload are as quick as it gets."""
    return quiet(references, QUIET_REFERENCE, quickest(references))


async def caller(app: Any, warm_calls: int) -> server.Caller:
    """Calls the app as a server would, after it was called often."""
    request = build_request("GET", "/", {"headers": {"origin": "http://elsewhere"}})
    found = server.Caller(app, await template_of(request), None)
    for _ in range(warm_calls):
        await found()
    return found


async def take(series: Series, count: int, request: Callable[[], Awaitable[float]]) -> None:
    """Add so many requests, in nanoseconds, each with the slower of the reference workloads before and after it.

    That is timed once a request, as a measurement does it: right after itself it would be quicker.
    """
    before = reference_ns(perf_counter_ns)
    for _ in range(count):
        elapsed_ns = await request()
        after = reference_ns(perf_counter_ns)
        series.add(elapsed_ns, max(before, after))
        before = after


@dataclass(frozen=True)
class Cost:
    """What a layer costs, the layer, and how much slower than at its best the machine ran while that was read."""

    us: Estimate
    layer: Any
    slowdown: float


async def cost(
    kind: Callable[[Any], Any],
    endpoint: Endpoint,
    seconds: float,
    machine: Machine,
    outside: int = 1,
    inside: int = 1,
) -> Cost:
    """What a layer from `kind` costs without any probe.

    It stands between layers that glance at the clock, so many `outside` and `inside` of it. Whole requests with it and
    without it, in turns; the endpoint's own work is left out, and so are requests next to which a reference that has
    nothing to do with either was slower than at the best speed that the host is known for. For so many seconds, and up
    to three times as long as that while it is not known to `KNOWN_US` and `KNOWN_SHARE`.
    """
    layer = kind(glances(endpoint, inside))
    warm_calls = WARM_CALLS // 10 if endpoint.median_us else WARM_CALLS
    callers = [await caller(glances(app, outside), warm_calls) for app in (layer, glances(endpoint, inside))]
    taken = [Series(), Series()]

    async def request(call: server.Caller) -> float:
        return (await call()).elapsed_ns - endpoint.worked_ns

    found = Cost(Estimate(0.0, -math.inf, math.inf), layer, 1.0)
    begin = perf_counter()
    for limit_s in (seconds, 2 * seconds, 3 * seconds):
        while min(len(one.values) for one in taken) < FEWEST or perf_counter() - begin < limit_s:
            for call, series in zip(callers, taken, strict=True):
                await call()
                await take(series, CALLS, partial(request, call))
        found = _difference(taken, layer, machine)
        if found.slowdown == 1 and found.us.half_width <= KNOWN_US + KNOWN_SHARE * found.us.estimate:
            break
    return found


def _difference(taken: Sequence[Series], layer: Any, machine: Machine) -> Cost:
    """Typical request with the layer less a typical one without it, at the best speed."""
    quick_ns = min(quickest([ns for one in taken for ns in one.reference]), machine.seen_ns)
    kept = [one.steady(quick_ns) for one in taken]
    with_it, without = (batched_interval(one.values, ALPHA) * 0.001 for one in kept)
    slowed = max(slowdown(one.reference, min(quick_ns, machine.best_ns)) for one in kept)
    return Cost(independent_sum(with_it, -without), layer, slowed)
