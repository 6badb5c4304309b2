"""Rows and verdicts of layers that do more than wrap a request.

    python bench/wild.py [--quick] [--runs N] [--json PATH]

Ten stacks have side tasks, insides that need an outer layer, waits in `send`, a layer that replaces the stack, a cache
that answers some requests. Each run is one fresh process on each of asyncio, uvloop and trio, on the machine as it is
and beside two busy neighbours. Most layers spin for a known time. The cost of a `BaseHTTPMiddleware`, and of CORS and
GZip inside it, is what leaving it out saves, in interleaved whole requests of an app in which nothing depends on it.
Two measurements with the default settings judge each layer: with budgets below its cost and with budgets above it, by
the factor FACTOR.

A verdict is wrong if a budget below the cost passes, or one above it fails.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
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
from pytest_mwbudget.timing.looks import Environment

RUNS, FACTOR = 2, 1.6
# Characters of a reason for an undecided verdict in the report.
REASON_CHARS = 90
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
    if quick:
        return fresh_process(__file__, loop="asyncio", quick=True)  # type: ignore[no-any-return]
    readings: list[Reading] = []
    for run in range(runs):
        for condition, rhythms in CONDITIONS.items():
            with neighbours(*rhythms):
                for loop in LOOPS:
                    known = {"run": run, "loop": loop, "condition": condition}
                    readings += [known | reading for reading in fresh_process(__file__, loop=loop, quick=False)]
    return readings


def worker(loop: Any, quick: bool) -> list[Reading]:
    """Judge the layers of each stack by budgets on both sides of their costs, the stacks in random order."""
    names = [name for name, stack in STACKS.items() if loop in stack.loops]
    random.shuffle(names)
    truth = Truth(loop, Machine())
    return [reading for name in names[: 1 if quick else None] for reading in judged(name, truth, quick)]


class Truth:
    """The costs of layers in this process."""

    def __init__(self, loop: Any, machine: Machine) -> None:
        self.loop = loop
        self.machine = machine
        self._saved: dict[tuple[Any, ...], dict[str, float]] = {}

    def of(self, stack: Stack) -> dict[str, float]:
        """Return the known costs of the judged rows of a stack, in microseconds."""
        costs = {name: cost for name, cost in stack.costs.items() if cost != SAVED}
        if SAVED in stack.costs.values():
            saved = self._saved_in(tuple(stack.plain or stack.layers), stack.endpoint)
            costs |= {name: saved[name] for name, cost in stack.costs.items() if cost == SAVED and name in saved}
        return costs

    def _saved_in(self, layers: Sequence[Any], endpoint: Any) -> dict[str, float]:
        """Return what leaving out each layer saves, where that is known to a fifth of itself."""
        key = (*layers, endpoint)
        if key not in self._saved:
            result = one_measurement(layers, endpoint, self.loop, self.machine, Budgets(), saves=True)
            known = {report.name: report.saves.us for report in result.layers if report.saves is not None}
            self._saved[key] = {n: us.estimate for n, us in known.items() if us and us.half_width < us.estimate / 5}
        return self._saved[key]


def judged(name: str, truth: Truth, quick: bool) -> list[Reading]:
    """Judge the layers of one stack."""
    stack = STACKS[name]
    costs = truth.of(stack)
    readings: list[Reading] = []
    for factor in (1 / FACTOR, FACTOR):
        bounds = {row: FREE_US if cost == FREE else cost * factor for row, cost in costs.items()}
        if stack.quantity == "busy_us":
            bounds = dict.fromkeys(bounds, 500.0)
        outer = {row: {stack.quantity: bound} for row, bound in bounds.items() if row != ENDPOINT}
        budgets = Budgets(layers=outer, endpoint_us=bounds.get(ENDPOINT))
        if not stack.named:
            bounds = dict.fromkeys(bounds, max(costs.values()) * factor)
            budgets = Budgets({stack.quantity: max(bounds.values())})  # type: ignore[dict-item]
        limit_s = 1.0 if quick else Settings().max_time_s
        result = one_measurement(stack.layers, stack.endpoint, truth.loop, truth.machine, budgets, max_time_s=limit_s)
        for row, bound in bounds.items():
            known = {"stack": name, "row": row, "cost_us": costs[row], "bound_us": bound}
            readings.append(known | verdict(result, row, stack.quantity))
    return readings


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
    row = next((each for each in result.rows() if each.name == name), None)
    judged = row.judged.get(quantity) if row else None  # type: ignore[call-overload]
    us = row.estimates.get(quantity) if row else None
    if judged is None:
        return {"verdict": "none", "reason": "no such row", "us": None}
    return {"verdict": judged.verdict, "reason": judged.reason, "us": us and us.estimate}


def wrong(reading: Reading) -> bool:
    """Return whether a verdict is wrong."""
    return bool(reading["verdict"] == ("fail" if reading["bound_us"] > reading["cost_us"] else "pass"))


def undecided(reading: Reading) -> bool:
    """Return whether there is no verdict."""
    return reading["verdict"] in ("undecided", "none")


def report(readings: Sequence[Reading]) -> Report:
    """Count right, wrong and undecided verdicts by stack and by condition, and show the rows beside their costs."""
    wrongs = sum(map(wrong, readings))
    return Report(
        tables=[
            Table(
                "Verdicts",
                ("", "verdicts", "right", "undecided", "wrong"),
                [*verdicts_by(readings, "stack", "condition")],
            ),
            Table("Rows, µs: medians, and the middle nine tenths of row less cost", ROWS_HEAD, [*rows_of(readings)]),
        ],
        goals=[Goal("no verdict is wrong", f"{wrongs} of {len(readings)}", not wrongs)],
        notes=[f"Undecided: {count} times {reason}." for reason, count in reasons(readings).most_common()],
    )


def verdicts_by(readings: Sequence[Reading], *keys: str) -> Iterator[tuple[str, ...]]:
    """Yield a row of counts for each value of each key."""
    for key in keys:
        for value in dict.fromkeys(reading.get(key, "quick") for reading in readings):
            each = [reading for reading in readings if reading.get(key, "quick") == value]
            nothing, wrongs = sum(map(undecided, each)), sum(map(wrong, each))
            yield value, *map(str, (len(each), len(each) - nothing - wrongs, nothing, wrongs))


ROWS_HEAD = ("stack", "row", "cost", "row's figure", "less cost", "5 %", "95 %")


def rows_of(readings: Sequence[Reading]) -> Iterator[tuple[str, ...]]:
    """Yield the figures of each judged row beside its cost."""
    for stack, row in dict.fromkeys((reading["stack"], reading["row"]) for reading in readings):
        same = [reading for reading in readings if (reading["stack"], reading["row"]) == (stack, row)]
        each = [reading for reading in same if reading["us"] is not None]
        if each:
            off = sorted(reading["us"] - reading["cost_us"] for reading in each)
            tail = len(off) // 20
            cost, us = (median(reading[key] for reading in each) for key in ("cost_us", "us"))
            yield stack, row, *(f"{value:.1f}" for value in (cost, us, median(off), off[tail], off[-1 - tail]))


def reasons(readings: Sequence[Reading]) -> Counter[str]:
    """Count the stacks, rows and beginnings of reasons of undecided verdicts."""
    return Counter(
        f"{reading['row']} in {reading['stack']}: {(reading['reason'] or 'no reason')[:REASON_CHARS]}"
        for reading in readings
        if undecided(reading)
    )


if __name__ == "__main__":
    main(__file__, __doc__, measure, report, worker, runs=RUNS)
