"""How far the figures are from the truth: layers of known cost at three places, in fresh processes.

    python bench/accuracy.py [--quick] [--processes N] [--json PATH]

Each process has its own hash seed and measures the same six layers (a no-op and spins of 1, 2, 5, 10 and 50 µs)
outermost, in the middle and innermost of a stack with CORS and GZip, above a fast endpoint and above one that takes
1.2 ms with log-normal noise. It does so twice: with the probes in C, where they were built, and with those in Python.

The truth is taken in the same process without any of our probes. A spin notes how long it really spun. What a layer
costs beyond that is the cost of one more such callable: 50 no-ops (or 50 spins of 0 µs) against none, whole requests,
in turns, the difference divided by 50. The goal is an error of at most 0.1 µs + 1 %.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from time import perf_counter_ns
from typing import Any
from unittest.mock import patch

from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware

from pytest_mwbudget import asgi, discovery, timing
from pytest_mwbudget.boundaries import BLANKS, Probes
from pytest_mwbudget.crossings import NativeProbes, native
from pytest_mwbudget.measure import measure
from pytest_mwbudget.settings import Settings
from pytest_mwbudget.timeline import spent
from pytest_mwbudget.timing import Bench

SPINS_US = (1, 2, 5, 10, 50)
PLACES = ("outermost", "middle", "innermost")
ENDPOINTS = ("fast", "slow")
PROBES: dict[str, type[Probes]] = {"C": NativeProbes, "Python": Probes} if native() else {"Python": Probes}
NOOPS = 50
WARM_CALLS = 3000


class Noop:
    """Passes through."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.app(scope, receive, send)


class Spin:
    """Spins, and notes how long it did."""

    def __init__(self, app: Any, us: int) -> None:
        self.app = app
        self.ns = us * 1000
        self.really_ns: list[int] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        begin = now = perf_counter_ns()
        while now - begin < self.ns:
            now = perf_counter_ns()
        self.really_ns.append(now - begin)
        await self.app(scope, receive, send)


async def fast(scope: Any, receive: Any, send: Any) -> None:
    """Answers at once."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": b"ok"})


async def slow(scope: Any, receive: Any, send: Any) -> None:
    """Computes for 1.2 ms in the median, with log-normal noise."""
    end = perf_counter_ns() + 1_200_000 * random.lognormvariate(0.0, 0.4)
    while perf_counter_ns() < end:
        pass
    await fast(scope, receive, send)


def known_layers(app: Any, chance: random.Random) -> tuple[Any, list[Any]]:
    """The known layers round `app` in random order; the outermost and all of them."""
    layers = []
    for us in chance.sample((0, *SPINS_US), 1 + len(SPINS_US)):
        app = Spin(app, us) if us else Noop(app)
        layers.append(app)
    return app, layers


def stack(place: str, endpoint: Any, chance: random.Random) -> tuple[Any, list[Any]]:
    """An app with the known layers at `place` among CORS and GZip."""
    around = [lambda app: CORSMiddleware(app, allow_origins=["*"]), GZipMiddleware]
    inside = {"outermost": 2, "middle": 1, "innermost": 0}[place]
    app = endpoint
    for wrap in reversed(around[2 - inside :]):
        app = wrap(app)
    app, known = known_layers(app, chance)
    for wrap in reversed(around[: 2 - inside]):
        app = wrap(app)
    return app, known


async def callable_us(make: Callable[[Any], Any], requests: int) -> float:
    """What one more layer from `make` costs, in whole requests without any probe."""
    deep: Any = fast
    for _ in range(NOOPS):
        deep = make(deep)
    template = await asgi.template(asgi.build_request("GET", "/", {}))
    callers = [asgi.Caller(app, template, None) for app in (deep, fast)]
    # CPython specialises the call sites only after some thousand calls; before that a no-op costs twice as much.
    for app in (deep, fast):
        await call_often(app)
    differences = []
    for _ in range(requests // 10):
        times = []
        for caller in callers:
            for _ in range(3):
                await caller()
            times.append(median([(await caller()).elapsed_ns for _ in range(10)]))
        differences.append((times[0] - times[1]) / NOOPS / 1000)
    return median(differences)


async def call_often(app: Any) -> None:
    """Some thousand requests, so that the code is specialised as it is in a server."""
    caller = asgi.Caller(app, await asgi.template(asgi.build_request("GET", "/", {})), None)
    for _ in range(WARM_CALLS):
        await caller()


async def null_us(app: Any, kind: type[Probes], requests: int = 600) -> float:
    """What the null layer reads, over all boundaries of the app."""
    template = await asgi.template(asgi.build_request("GET", "/", {}))
    caller = asgi.Caller(app, template, None)
    await call_often(app)

    def traced(trace: discovery.Trace) -> Awaitable[object]:
        async def observer(app: Any, scope: Any, receive: Any, send: Any) -> None:
            with trace.watching():
                await app(scope, receive, send)

        return caller(observer, {discovery.TRACE_KEY: True})

    probes = kind(await discovery.discover(traced))
    nulls = []
    with probes.installed(probes.probed):
        for number in range(requests):
            with probes.doubled(probes.probed[number % len(probes.probed)], BLANKS[0]):
                await caller(probes.watch)
            nulls.append(spent(probes.read(), probes.null_owner + 1).ns[probes.null_owner])
    return median(nulls[requests // 2 :]) / 1000


def worker(max_time_s: float) -> list[dict[str, Any]]:
    """All readings of one process."""
    return [reading for kind in PROBES for reading in readings_with(kind, max_time_s)]


def readings_with(kind: str, max_time_s: float) -> list[dict[str, Any]]:
    """All readings of one process with one kind of probes."""
    probes = PROBES[kind]
    with patch.object(timing, "best_probes", lambda stack, clock, _, suspending: probes(stack, suspending=suspending)):
        return [{"probes": kind, **reading} for reading in all_places(max_time_s, probes)]


def all_places(max_time_s: float, probes: type[Probes]) -> list[dict[str, Any]]:
    """A reading for each known layer at each place above each endpoint."""
    chance = random.Random()
    noop_us = asyncio.run(callable_us(Noop, 400))
    probe_spin = Spin(fast, 0)
    spin_us = asyncio.run(callable_us(lambda app: Spin(app, 0), 400))
    asyncio.run(call_often(probe_spin))
    spin_us -= median(probe_spin.really_ns) / 1000
    request = asgi.build_request("GET", "/", {"headers": {"origin": "http://elsewhere"}})
    readings = []
    for endpoint in (fast, slow):
        for place in PLACES:
            app, known = stack(place, endpoint, chance)
            null = asyncio.run(null_us(app, probes)) if endpoint is fast else None
            measurement = asyncio.run(measure(app, request, Settings(max_time_s=max_time_s), Bench()))
            reports = [r for r in measurement.layers if r.name.partition("#")[0] in ("Noop", "Spin")]
            for layer, report in zip(reversed(known), reports, strict=True):
                if report.us is None:
                    continue  # the machine was too busy for an interval in the time
                truth = spin_us + median(layer.really_ns) / 1000 if isinstance(layer, Spin) else noop_us
                readings.append(
                    {
                        "endpoint": endpoint.__name__,
                        "place": place,
                        "spin_us": layer.ns // 1000 if isinstance(layer, Spin) else 0,
                        "truth_us": truth,
                        "error_us": report.us.estimate - truth,
                        "covered": report.us.low <= truth <= report.us.high,
                        "half_width_us": report.us.half_width,
                        "seconds": measurement.effort.seconds if measurement.effort else None,
                        "null_us": null,
                    }
                )
    return readings


def fresh_process(seed: int, max_time_s: float) -> list[dict[str, Any]]:
    """The readings of a new interpreter with its own hash seed."""
    command = [sys.executable, __file__, "--worker", str(max_time_s)]
    environment = {**os.environ, "PYTHONHASHSEED": str(seed)}
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return list(json.loads(done.stdout))


def table(readings: list[dict[str, Any]]) -> str:
    """A table for each kind of probes, and what they ran on."""
    parts = []
    for kind in dict.fromkeys(reading["probes"] for reading in readings):
        own = [reading for reading in readings if reading["probes"] == kind]
        nulls = [reading["null_us"] for reading in own if reading["null_us"] is not None]
        null = f", null layer {median(nulls):.2f} µs" if nulls else ""
        parts.append(f"probes in {kind}{null}\n{table_of(own)}")
    about = f"{platform.python_implementation()} {platform.python_version()}, µs per request"
    return "\n\n".join([*parts, about])


def table_of(readings: list[dict[str, Any]]) -> str:
    """Median error and range per layer, place and endpoint, and how often the goal was met."""
    lines = [
        f"{'endpoint':9}{'layer':>10}{'place':>11}{'truth':>9}{'error':>8}{'from':>8}{'to':>8}{'±':>7}  goal  covered"
    ]
    for endpoint in ENDPOINTS:
        for spin_us in (0, *SPINS_US):
            for place in PLACES:
                rows = [r for r in readings if (r["endpoint"], r["spin_us"], r["place"]) == (endpoint, spin_us, place)]
                if not rows:
                    continue
                errors = [row["error_us"] for row in rows]
                truth = median(row["truth_us"] for row in rows)
                met = sum(abs(row["error_us"]) <= 0.1 + 0.01 * row["truth_us"] for row in rows)
                lines.append(
                    f"{endpoint:9}{f'spin {spin_us}' if spin_us else 'no-op':>10}{place:>11}{truth:9.2f}"
                    f"{median(errors):+8.2f}{min(errors):+8.2f}{max(errors):+8.2f}"
                    f"{median(row['half_width_us'] for row in rows):7.2f}"
                    f"{met:4}/{len(rows)}{sum(row['covered'] for row in rows):6}/{len(rows)}"
                )
    met = sum(abs(row["error_us"]) <= 0.1 + 0.01 * row["truth_us"] for row in readings)
    lines.append(f"|error| <= 0.1 µs + 1 % in {met} of {len(readings)} readings")
    return "\n".join(lines)


def main() -> None:
    """Run the processes, print the table, write the readings."""
    parser = argparse.ArgumentParser(description="error of the figures against known costs")
    parser.add_argument("--quick", action="store_true", help="two processes, half a second a request")
    parser.add_argument("--processes", type=int, default=10)
    parser.add_argument("--json", metavar="PATH", help="write all readings there")
    parser.add_argument("--worker", type=float, metavar="SECONDS", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker is not None:
        print(json.dumps(worker(arguments.worker)))
        return
    processes, max_time_s = (2, 0.5) if arguments.quick else (arguments.processes, 5.0)
    readings = [reading for seed in range(processes) for reading in fresh_process(seed, max_time_s)]
    print(table(readings))
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(readings, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
