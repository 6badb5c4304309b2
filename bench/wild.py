"""Verdicts on layers that do more than wrap a request: side tasks, insides that need an outer layer, waits in `send`.

    python bench/wild.py [--quick] [--runs N] [--json PATH]

Each run is a fresh process with one stack on asyncio, uvloop or trio, on the machine as it is or beside two busy
neighbours. Most layers spin for a known time. The cost of a `BaseHTTPMiddleware` is what leaving it out saves, in
interleaved whole requests of an app in which nothing depends on it. Two measurements with the default
settings judge each layer: with budgets below its cost and with budgets above it, by the factor FACTOR.

A verdict is wrong if a budget below the cost passes, or one above it fails.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import anyio
from harness import Goal, Reading, Report, Table, fresh_process, main, neighbours
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route

from pytest_mwbudget.asgi import loops
from pytest_mwbudget.asgi.request import build_request
from pytest_mwbudget.config.budgets import Budgets
from pytest_mwbudget.config.settings import Settings
from pytest_mwbudget.engine import measure as measured
from pytest_mwbudget.model.results import Measurement
from pytest_mwbudget.model.stack import ENDPOINT
from pytest_mwbudget.timing.host_speed import Machine
from pytest_mwbudget.timing.run import Environment

RUNS, FACTOR = 20, 1.6
CONDITIONS: dict[str, tuple[tuple[float, float], ...]] = {
    "as it is": (),
    "two busy neighbours": ((1.0, 0.0), (1.0, 0.0)),
}
LOOPS = ("asyncio", "uvloop", "trio")
# The cost of a layer that does nothing. Its budget is FREE_US, and must not fail.
FREE, FREE_US = 0.0, 20.0
# The cost is what leaving the layer out of `plain` saves.
SAVED = -1.0


def spin(us: float) -> None:
    """Hold the event loop."""
    end = time.perf_counter_ns() + round(us * 1000)
    while time.perf_counter_ns() < end:
        pass


async def record() -> None:
    """Do the work of a side task."""
    spin(150)


class Layer:
    """A pure ASGI layer that passes on everything but a lifespan's scope to `around`."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await (self.app if scope["type"] == "lifespan" else self.around)(scope, receive, send)

    async def around(self, scope: Any, receive: Any, send: Any) -> None:
        await self.app(scope, receive, send)


class Awaits(Layer):
    async def around(self, scope: Any, receive: Any, send: Any) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(record)
            await self.app(scope, receive, send)


class Gathers(Layer):
    async def around(self, scope: Any, receive: Any, send: Any) -> None:
        await asyncio.gather(self.app(scope, receive, send), record())


class Forgets(Layer):
    async def around(self, scope: Any, receive: Any, send: Any) -> None:
        self.task = asyncio.create_task(record())
        await self.app(scope, receive, send)


class Yields(Layer):
    async def around(self, scope: Any, receive: Any, send: Any) -> None:
        await anyio.lowlevel.checkpoint()
        await self.app(scope, receive, send)


class Known(Layer):
    """Works for a known user only."""

    async def around(self, scope: Any, receive: Any, send: Any) -> None:
        spin(60 if "known" in scope else 0)
        await self.app(scope, receive, send)


class Unknown(Layer):
    """Works for unknown users only."""

    async def around(self, scope: Any, receive: Any, send: Any) -> None:
        spin(0 if "known" in scope else 60)
        await self.app(scope, receive, send)


class SlowSend(Layer):
    async def around(self, scope: Any, receive: Any, send: Any) -> None:
        async def slow(message: Any) -> None:
            await anyio.sleep(0.001)
            await send(message)

        await self.app(scope, receive, slow)


class Rebuilds(Layer):
    """Replaces the stack in the fifth request by one with a layer of 140 µs."""

    requests = 0

    async def around(self, scope: Any, receive: Any, send: Any) -> None:
        self.requests += 1
        if self.requests == 5:
            app = scope["app"]
            app.middleware_stack = Rebuilt(app.middleware_stack)
        await self.app(scope, receive, send)


class Rebuilt(Layer):
    async def around(self, scope: Any, receive: Any, send: Any) -> None:
        spin(140)
        await self.app(scope, receive, send)


class Cache(Layer):
    """Answers three of ten requests, the first two among them."""

    def __init__(self, app: Any) -> None:
        super().__init__(app)
        self.random, self.requests = random.Random(7), 0

    async def around(self, scope: Any, receive: Any, send: Any) -> None:
        self.requests += 1
        hit = self.requests <= 2 or self.random.random() < 0.3
        await (PlainTextResponse("cached") if hit else self.app)(scope, receive, send)


class Spins(Layer):
    async def around(self, scope: Any, receive: Any, send: Any) -> None:
        spin(200)
        await self.app(scope, receive, send)


class PassesOn(BaseHTTPMiddleware):
    async def dispatch(self, request: Any, call_next: Any) -> Any:
        return await call_next(request)


class Auth(BaseHTTPMiddleware):
    async def dispatch(self, request: Any, call_next: Any) -> Any:
        request.scope["known"] = True
        return await call_next(request)


async def answers(request: Any) -> Any:
    """Answer with a text that GZip compresses."""
    return PlainTextResponse("ok" * 600)


async def works(request: Any) -> Any:
    """Work for a known user."""
    spin(200 if "known" in request.scope else 0)
    return PlainTextResponse("ok")


async def streams(request: Any) -> Any:
    """Stream two parts."""

    async def parts() -> Any:
        yield "a"
        yield "b"

    return StreamingResponse(parts())


CORS = Middleware(CORSMiddleware, allow_origins=["*"])


@dataclass(frozen=True)
class Stack:
    """Layers from the outermost, the cost of judged rows in place, and the loops that have what the layers use.

    `plain` are the layers of an app in which leaving out a layer changes nothing else. `named` says that budgets name
    the rows, which they cannot where a layer is not there at first.
    """

    layers: Sequence[Any]
    costs: dict[str, float]
    loops: Sequence[str] = LOOPS
    endpoint: Callable[[Any], Any] = answers
    plain: Sequence[Any] = ()
    quantity: str = "us"
    named: bool = True


STACKS = {
    "inside for the known": Stack([Auth, Known], {"Auth": SAVED, "Known": 60}, plain=[Auth]),
    "inside for the unknown": Stack([Auth, Unknown], {"Auth": SAVED, "Unknown": FREE}, plain=[Auth]),
    "endpoint for the known": Stack([Auth], {ENDPOINT: 200}, endpoint=works),
    "awaited task": Stack([Awaits, PassesOn], {"Awaits": 150, "PassesOn": SAVED}, plain=[PassesOn]),
    "gathered task": Stack([Gathers, Yields], {"Gathers": 150, "Yields": FREE}, LOOPS[:2]),
    "forgotten task": Stack([Forgets, PassesOn], {"Forgets": 150, "PassesOn": SAVED}, LOOPS[:2], plain=[PassesOn]),
    "waits in send": Stack([SlowSend], {"SlowSend": FREE}, endpoint=streams, quantity="busy_us"),
    "rebuilt stack": Stack([Rebuilds], {"Rebuilt": 140, "Rebuilds": FREE}, named=False),
    "cache": Stack([Cache, Spins], {"Cache": FREE, "Spins": 200}),
    "inside a task": Stack(
        [PassesOn, CORS, GZipMiddleware], {"PassesOn": SAVED, "CORSMiddleware": SAVED, "GZipMiddleware": SAVED}
    ),
}


def measure(quick: bool, runs: int = RUNS) -> list[Reading]:
    """Make the runs."""
    conditions, names = dict(CONDITIONS), list(STACKS)
    if quick:
        runs, conditions, names = 1, {"as it is": ()}, ["inside for the known"]
    readings: list[Reading] = []
    for _ in range(runs):
        for condition, rhythms in conditions.items():
            with neighbours(*rhythms):
                for name in names:
                    for loop in STACKS[name].loops[: 1 if quick else None]:
                        verdicts = fresh_process(__file__, stack=name, loop=loop, quick=quick)
                        readings.append({"stack": name, "loop": loop, "condition": condition, "verdicts": verdicts})
    return readings


def worker(stack: str, loop: Any, quick: bool) -> list[Reading]:
    """Judge the layers of one stack by budgets on both sides of their costs."""
    wild, machine = STACKS[stack], Machine()
    costs = {name: cost for name, cost in wild.costs.items() if cost != SAVED}
    saved = [name for name, cost in wild.costs.items() if cost == SAVED]
    if saved:
        layers = one_measurement(wild.plain or wild.layers, wild.endpoint, loop, machine, Budgets(), saves=True).layers
        known = {report.name: report.saves.us for report in layers if report.saves is not None}
        # A cost that is not known to a fifth of itself tells nothing at the factor.
        costs |= {n: us.estimate for n in saved if (us := known.get(n)) and us.half_width < us.estimate / 5}
    found: list[Reading] = []
    for factor in (1 / FACTOR, FACTOR):
        bounds = {name: FREE_US if cost == FREE else cost * factor for name, cost in costs.items()}
        if wild.quantity == "busy_us":
            bounds = dict.fromkeys(bounds, 500.0)
        outer = {name: {wild.quantity: bound} for name, bound in bounds.items() if name != ENDPOINT}
        budgets = Budgets(layers=outer, endpoint_us=bounds.get(ENDPOINT))
        if not wild.named:
            bounds = dict.fromkeys(bounds, max(costs.values()) * factor)
            budgets = Budgets({wild.quantity: max(bounds.values())})  # type: ignore[dict-item]
        result = one_measurement(wild.layers, wild.endpoint, loop, machine, budgets, max_time_s=1 if quick else 10)
        for name, bound in bounds.items():
            found.append({"row": name, "cost": costs[name], "bound": bound, **verdict(result, name, wild.quantity)})
    return found


def one_measurement(
    layers: Sequence[Any],
    endpoint: Any,
    loop: Any,
    machine: Machine,
    budgets: Budgets,
    *,
    saves: bool = False,
    max_time_s: float = 10,
) -> Measurement:
    """Measure one request of a new app."""
    middleware = [layer if isinstance(layer, Middleware) else Middleware(layer) for layer in layers]
    app = Starlette(routes=[Route("/", endpoint)], middleware=middleware)
    request = build_request("GET", "/", {"headers": {"origin": "http://example.org", "accept-encoding": "gzip"}})
    settings = Settings(budgets=budgets, max_time_s=max_time_s)
    return loops.run(
        loop, lambda: measured(app, request, settings, Environment(machine=machine, precise=saves, saves=saves))
    )


def verdict(result: Measurement, name: str, quantity: str) -> Reading:
    """Return the verdict on a row, with its reason and its figure."""
    report = next((one for one in result.layers if one.name == name), None)
    judged = report.judged.get(quantity) if report else None  # type: ignore[call-overload]
    us = report.us if report else None
    if name == ENDPOINT:
        judged = result.endpoint.judged if result.endpoint else None
        us = result.books.endpoint if result.books else None
    if judged is None:
        return {"verdict": "none", "reason": "no such row", "us": None}
    return {"verdict": judged.verdict, "reason": judged.reason, "us": us and us.estimate}


def wrong(reading: Reading) -> bool:
    """Return whether a verdict is wrong."""
    return reading["verdict"] == ("fail" if reading["bound"] > reading["cost"] else "pass")


def report(readings: Sequence[Reading]) -> Report:
    """Count right, wrong and undecided verdicts by stack and condition."""
    kinds = sorted({(one["stack"], one["condition"]) for one in readings})
    rows = []
    for stack, condition in kinds:
        each = [
            v for one in readings if (one["stack"], one["condition"]) == (stack, condition) for v in one["verdicts"]
        ]
        open_ = sum(v["verdict"] in ("undecided", "none") for v in each)
        wrongs = sum(map(wrong, each))
        rows.append((stack, condition, str(len(each)), str(len(each) - open_ - wrongs), str(open_), str(wrongs)))
    every = [v for one in readings for v in one["verdicts"]]
    wrongs = sum(map(wrong, every))
    return Report(
        tables=[Table("", ("stack", "machine", "verdicts", "right", "undecided", "wrong"), rows)],
        goals=[Goal("no verdict is wrong", f"{wrongs} of {len(every)}", not wrongs)],
    )


if __name__ == "__main__":
    main(__file__, __doc__, measure, report, worker, runs=RUNS)
