"""Does the figure predict production? The drop in requests per second that removing a layer undoes, behind a server.

    python bench/server.py [--quick] [--json PATH]

The app is FastAPI's hello world, with one layer more or without it: a do-nothing BaseHTTPMiddleware, CORS with
an Origin header, GZip that compresses, a signed session cookie, and a spin of 200 µs. Both apps stand behind uvicorn
(httptools, no access log) in one process and on one event loop, each at a port of its own: so the two share hash seed,
memory and processor, and the one that is not asked takes no time. The server has one core and the load generator the
other one, where the system lets processes be pinned.

wrk (keep-alive; bursts of 0.4 s, of 2 s with 1,000 clients) and ab (a connection for each request, as uvicorn answers
its HTTP/1.0; bursts of about 0.2 s, of as many requests as a first burst says, and never less than two for each
client) ask at concurrency 1, 100 and 1,000, on asyncio and on uvloop. Short bursts, because shared machines change
their speed from one second to the next. A pair is one burst at each of the two ports, one right after the other, in
random order; the settings take turns, so that a slow minute of the machine meets all of them. Before, between and
after the bursts of a pair a fixed piece of work is timed on the server's core. Pairs in moments when it was a fifth
slower than in the quickest quarter of the run are left out; the choice never looks at requests. The full run takes
five pairs of each setting, three with 1,000 clients, in each of two fresh processes. µs per request are 1,000,000 /
RPS; of the requests that wrk leaves unfinished, one for each client, half are counted, because the server has done
half of the work for them, and with many clients they are a good part of a burst. The layer's cost is the median over
pairs of the difference, with the sign test's interval at 90 %, which needs five pairs.

Ours is the layer's row of `measure()`, in fresh processes on the server's core, on the same kind of loop: one for each
process of the server, the mean of their estimates between the lowest and the highest end of their intervals. It
predicts the RPS with the layer from the RPS without it. The goal counts where the load generator knows the drop to
10 % itself. What the processor did for the server in a burst (Linux tells) says how much of it the server was busy.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from math import isfinite
from pathlib import Path
from statistics import fmean, median
from typing import Any

import uvicorn
from fastapi import FastAPI
from harness import Goal, Reading, Report, Table, fresh_process, main
from itsdangerous import TimestampSigner
from known import Spin
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.middleware.sessions import SessionMiddleware
from starlette.requests import Request
from starlette.responses import Response

from pytest_mwbudget import asgi, loops
from pytest_mwbudget.measure import measure as measured
from pytest_mwbudget.model import Estimate, LoopName
from pytest_mwbudget.settings import Settings
from pytest_mwbudget.stats import median_interval
from pytest_mwbudget.timing import Bench

CLOSE_SHARE = 0.10
QUIET, ALPHA = 1.2, 0.1
WARM_REQUESTS, WARM_CONCURRENCY = 1500, 10
WRK_S, CROWDED_WRK_S, CROWD, AB_S = 0.4, 2.0, 1000, 0.2
TURNS = 2000
SECRET = "not a secret"
GAUGED = {"numbers": list(range(50)), "names": [f"name {number}" for number in range(50)]}
PACKAGES = {"wrk": "wrk", "ab": "apache2-utils"}


class PassThrough(BaseHTTPMiddleware):
    """Does nothing."""

    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        return await call_next(request)


LAYERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "BaseHTTPMiddleware": (PassThrough, {}),
    "CORS": (CORSMiddleware, {"allow_origins": ["*"], "allow_methods": ["*"]}),
    "GZip": (GZipMiddleware, {"minimum_size": 1}),
    "session": (SessionMiddleware, {"secret_key": SECRET}),
    "spin of 200 µs": (Spin, {"us": 200.0}),
}


@dataclass(frozen=True)
class Plan:
    """How much is done: `pairs` of each setting in each of the `processes`, every other one in a crowd."""

    layers: Sequence[str] = tuple(LAYERS)
    loops: Sequence[LoopName] = ("asyncio", "uvloop")
    concurrencies: Sequence[int] = (1, 100, 1000)
    processes: int = 2
    pairs: int = 5
    max_time_s: float = 5.0


FULL = Plan()
QUICK = Plan(layers=("BaseHTTPMiddleware", "CORS"), loops=("asyncio",), concurrencies=(1, 100), processes=1, pairs=1)


def hello(layer: str | None) -> FastAPI:
    """Hello world, in one layer or in none."""
    app = FastAPI()
    if layer is not None:
        kind, options = LAYERS[layer]
        app.add_middleware(kind, **options)

    @app.get("/")
    async def root() -> dict[str, str]:
        return {"message": "Hello World"}

    return app


def headers() -> dict[str, str]:
    """What every request says, to whichever app."""
    session = TimestampSigner(SECRET).sign(b64encode(json.dumps({"user": 42}).encode())).decode()
    return {"Origin": "http://elsewhere", "Accept-Encoding": "gzip", "Cookie": f"session={session}"}


# ---- fresh processes --------------------------------------------------------------------------------------------


def worker(role: str, layer: str, loop: LoopName, core: int | None, max_time_s: float = 5.0) -> Reading:
    """What a fresh process does: serve until its standard input ends, or measure."""
    pin(core)
    if role == "serve":
        serve([hello(None), hello(layer)], loop)
        return {}
    return loops.run(loop, lambda: ours(layer, max_time_s))


async def ours(layer: str, max_time_s: float) -> Reading:
    """The layer's row, and what it tells of the event loop.

    `turn_us` is what the event loop takes for a turn in which one task does nothing.
    """
    kind, _ = LAYERS[layer]
    request = asgi.build_request("GET", "/", {"headers": headers()})
    measurement = await measured(hello(layer), request, Settings(max_time_s=max_time_s), Bench())
    row = measurement.layer(kind.__name__)
    assert row.counts is not None
    begin = time.perf_counter_ns()
    for _ in range(TURNS):
        await asyncio.sleep(0)
    return {
        "us": estimate_to_json(row.us),
        "suspensions": row.counts.suspensions.count,
        "turn_us": (time.perf_counter_ns() - begin) / TURNS / 1000,
    }


def estimate_to_json(us: Estimate | None) -> list[float] | None:
    """Estimate and interval in microseconds, None where there were too few requests for them."""
    return [us.estimate, us.low, us.high] if us is not None else None


def serve(apps: Iterable[Any], loop: LoopName) -> None:
    """Serve each app at a port of its own, all on one loop; says the ports, and ends with the standard input."""
    sockets = [listening() for _ in apps]
    servers = [
        uvicorn.Server(uvicorn.Config(app, http="httptools", access_log=False, log_level="warning")) for app in apps
    ]

    async def run() -> None:
        ended = asyncio.Event()
        running = asyncio.get_running_loop()

        def wait_for_end() -> None:
            sys.stdin.read()
            running.call_soon_threadsafe(ended.set)

        tasks = [asyncio.create_task(server.serve([at])) for server, at in zip(servers, sockets, strict=True)]
        threading.Thread(target=wait_for_end, daemon=True).start()
        print(json.dumps([at.getsockname()[1] for at in sockets]), flush=True)
        await ended.wait()
        for server in servers:
            server.should_exit = True
        await asyncio.gather(*tasks)

    loops.run(loop, run)


def listening() -> socket.socket:
    """A socket as uvicorn's own: only where the protocol is named does asyncio send without delay."""
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    made.bind(("127.0.0.1", 0))
    made.listen()  # who comes before the server has started waits
    return made


@dataclass(frozen=True)
class Served:
    """A process that serves, and its ports."""

    pid: int
    ports: Sequence[int]

    def cpu_ns(self) -> int | None:
        """What the processor has done for it so far, None where the system does not tell so finely."""
        with contextlib.suppress(OSError):
            return int(Path(f"/proc/{self.pid}/schedstat").read_text().split()[0])
        return None


@contextmanager
def served(file: str, **arguments: Any) -> Iterator[Served]:
    """A new interpreter whose `worker` serves until the end of the block."""
    command = [sys.executable, file, "--worker", json.dumps(arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield Served(process.pid, json.loads(process.stdout.readline()))
        finally:
            process.stdin.close()
            process.wait()


def cores() -> tuple[int | None, int | None]:
    """One core for the server and one for the load generator; None where processes cannot be pinned apart."""
    allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    return (allowed[0], allowed[-1]) if len(allowed) > 1 else (None, None)


def pin(core: int | None) -> None:
    """Keep this process and those that it starts on one core."""
    if core is not None:
        os.sched_setaffinity(0, {core})


# ---- load generators --------------------------------------------------------------------------------------------


class BurstError(Exception):
    """A burst in which not every request was answered as it should be."""


@dataclass(frozen=True)
class Burst:
    """What a load generator reported."""

    rps: float
    requests: int


def burst(generator: str, url: str, concurrency: int, requests: int, core: int | None) -> Burst:
    """Ask as fast as the server answers: `wrk` for so long, `ab` so often."""
    options = [f"-H{name}: {value}" for name, value in headers().items()]
    if generator == "wrk":
        command = ["wrk", "-t1", f"-c{concurrency}", "-d60s", *options, url]
    else:
        command = ["ab", "-q", "-l", f"-c{concurrency}", f"-n{max(requests, 2 * concurrency)}", *options, url]
    pinned = functools.partial(pin, core)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, preexec_fn=pinned, **pipes) as process:  # type: ignore[call-overload]
        if generator == "wrk":  # it knows whole seconds only, and reports when it is interrupted
            time.sleep(wrk_s(concurrency))
            process.send_signal(signal.SIGINT)
        return parsed(*process.communicate())


def wrk_s(concurrency: int) -> float:
    """How long a burst of wrk is, in seconds: many clients take their time to connect."""
    return CROWDED_WRK_S if concurrency >= CROWD else WRK_S


def parsed(text: str, complaint: str = "") -> Burst:
    """The figures in what wrk or ab wrote; BurstError when a request failed."""
    rate = re.search(r"Requests(?:/sec| per second):\s+([\d.]+)", text)
    count = re.search(r"(\d+) requests in|Complete requests:\s+(\d+)", text)
    wrong = re.search(r"Socket errors:.*|Non-2xx.*|Failed requests:\s+[1-9]\d*", text)
    if rate is None or count is None or wrong is not None:
        raise BurstError(wrong.group() if wrong else (complaint.strip() or "no figures"))
    return Burst(float(rate.group(1)), int(count.group(1) or count.group(2)))


def gauge(core: int | None) -> float:
    """How long a fixed piece of work takes on the core now, in nanoseconds."""
    before = os.sched_getaffinity(0) if core is not None else set()
    pin(core)
    taken = []
    for _ in range(5):
        begin = time.perf_counter_ns()
        for _ in range(50):
            json.loads(json.dumps(GAUGED))
        taken.append(time.perf_counter_ns() - begin)
    if core is not None:
        os.sched_setaffinity(0, before)
    return median(taken)


def observed(
    server: Served, which: int, generator: str, concurrency: int, requests: int, core: int | None
) -> dict[str, float | None]:
    """One burst at one of the two ports: µs a request, and what of that the processor did for the server.

    ab ends with its last request. wrk ends in the middle of one for each client, and they are half done on average.
    """
    before = server.cpu_ns()
    found = burst(generator, f"http://127.0.0.1:{server.ports[which]}/", concurrency, requests, core)
    after = server.cpu_ns()
    unfinished = concurrency / 2 if generator == "wrk" else 0.0
    done = found.requests + unfinished
    cpu_us = None if before is None or after is None else (after - before) / done / 1000
    return {"us": 1e6 / found.rps * found.requests / done, "cpu_us": cpu_us}


# ---- measure ----------------------------------------------------------------------------------------------------


def measure(quick: bool) -> list[Reading]:
    """Ours and pairs of bursts, for each layer on each loop."""
    plan = QUICK if quick else FULL
    missing = [name for name in PACKAGES if shutil.which(name) is None]
    readings: list[Reading] = [{"kind": "skipped", "generator": name} for name in missing]
    generators = [name for name in PACKAGES if name not in missing]
    settings = [(layer, loop) for loop in plan.loops for layer in plan.layers]
    for _ in range(plan.processes):
        for layer, loop in random.sample(settings, len(settings)):
            readings += of_process(plan, generators, layer, loop)
    return readings


def of_process(plan: Plan, generators: Sequence[str], layer: str, loop: LoopName) -> list[Reading]:
    """What one process of each kind tells of a layer: ours, and pairs behind the server."""
    server_core, load_core = cores()
    about: dict[str, Any] = {"layer": layer, "loop": loop}
    found = fresh_process(__file__, role="ours", core=server_core, max_time_s=plan.max_time_s, **about)
    readings: list[Reading] = [{"kind": "ours", **about, **found}]
    if not generators:
        return readings
    with served(__file__, role="serve", core=server_core, **about) as server:
        requests = [warm(server, generators[-1], which, load_core) for which in range(2)]
        settings = [(generator, concurrency) for generator in generators for concurrency in plan.concurrencies]
        for turn, (generator, concurrency) in product(range(plan.pairs), settings):
            if concurrency >= CROWD and turn % 2:
                continue
            about_pair = {**about, "generator": generator, "concurrency": concurrency}
            readings.append({**about_pair, **pair(server, generator, concurrency, requests, (server_core, load_core))})
    return readings


def warm(server: Served, generator: str, which: int, core: int | None) -> int:
    """Ask until code is specialised and caches are full; how many requests a burst of ab should have."""
    found = burst(generator, f"http://127.0.0.1:{server.ports[which]}/", WARM_CONCURRENCY, WARM_REQUESTS, core)
    return round(found.rps * AB_S)


def pair(
    server: Served, generator: str, concurrency: int, requests: Sequence[int], on: tuple[int | None, int | None]
) -> Reading:
    """A burst without the layer and one with it, in random order.

    `on` are the cores of the server and the load generator. `gauge_ns` is the slowest gauge of the pair.
    """
    server_core, load_core = on
    found = {}
    gauges = [gauge(server_core)]
    try:
        for which in random.sample(range(2), 2):
            found[which] = observed(server, which, generator, concurrency, requests[which], load_core)
            gauges.append(gauge(server_core))
    except BurstError as error:
        return {"kind": "failed", "why": str(error)}
    return {"kind": "pair", "without": found[0], "with": found[1], "gauge_ns": max(gauges)}


# ---- report -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """A layer, a loop, a load generator and a concurrency: the pairs, and ours, in microseconds per request.

    `measured` is what the layer adds behind the server. `busy` is the share of a burst without the layer in which the
    server worked, None where the system does not tell.
    """

    layer: str
    loop: str
    generator: str
    concurrency: int
    without_us: float
    measured: Estimate
    ours: Estimate
    busy: float | None

    @property
    def measured_drop(self) -> float:
        """The drop in requests per second."""
        return self._drop(self.measured.estimate)

    @property
    def predicted_drop(self) -> float:
        """The same, from ours."""
        return self._drop(self.ours.estimate)

    def _drop(self, added_us: float) -> float:
        return 1e6 / self.without_us - 1e6 / (self.without_us + added_us)

    @property
    def tells(self) -> bool:
        """Whether the load generator knows the drop well enough to judge a prediction."""
        return 0 < self.measured.half_width <= CLOSE_SHARE * self.measured.estimate

    @property
    def off(self) -> float:
        """By what share of it the drop is predicted too high."""
        return self.predicted_drop / self.measured_drop - 1

    @property
    def close(self) -> bool:
        """Whether the prediction is as good as it should be."""
        return abs(self.off) <= CLOSE_SHARE


def report(readings: list[Reading]) -> Report:
    """Tables for wrk and for ab, the goal, and why some rows differ."""
    rows = list(rows_of(readings))
    tables = [table(name, own) for name in PACKAGES if (own := [row for row in rows if row.generator == name])]
    notes = [skipped_note(reading["generator"]) for reading in readings if reading["kind"] == "skipped"]
    failed = [reading for reading in readings if reading["kind"] == "failed"]
    if failed:
        notes.append(f"{len(failed)} pairs were left out because a request failed, the first with: {failed[0]['why']}.")
    if not rows:
        return Report(tables, [], [*notes, "There is no pair to compare ours with."])
    pairs = sum(reading["kind"] == "pair" for reading in readings)
    notes.append(f"{len(quiet_pairs(readings))} of {pairs} pairs were taken in quiet moments; the others are left out.")
    notes += [*sharing_notes(rows, readings), *busy_notes(rows), *connection_notes(rows), blind_note(rows)]
    return Report([*tables, summary(rows)], [goal(rows)], notes)


def rows_of(readings: list[Reading]) -> Iterator[Row]:
    """A row for each setting that has pairs from quiet moments, and ours."""
    pairs: dict[tuple[str, str, str, int], list[Reading]] = {}
    for reading in quiet_pairs(readings):
        key = (reading["layer"], reading["loop"], reading["generator"], reading["concurrency"])
        pairs.setdefault(key, []).append(reading)
    for (layer, loop, generator, concurrency), own in sorted(pairs.items(), key=order):
        us = ours_of(readings, layer, loop)
        if us is None:
            continue
        added = [reading["with"]["us"] - reading["without"]["us"] for reading in own]
        measured_us = median_interval(added, ALPHA)
        shares = [r["without"]["cpu_us"] / r["without"]["us"] for r in own if r["without"]["cpu_us"] is not None]
        busy = median(shares) if shares else None
        without_us = median(reading["without"]["us"] for reading in own)
        yield Row(layer, loop, generator, concurrency, without_us, measured_us, us, busy)


def quiet_pairs(readings: list[Reading]) -> list[Reading]:
    """The pairs from moments when the machine was nearly as fast as in the quickest quarter of the run."""
    pairs = [reading for reading in readings if reading["kind"] == "pair"]
    gauges = sorted(reading["gauge_ns"] for reading in pairs)
    return [reading for reading in pairs if reading["gauge_ns"] <= QUIET * gauges[len(gauges) // 4]]


def order(item: tuple[tuple[str, str, str, int], list[Reading]]) -> tuple[Any, ...]:
    """Layers as they stand in `LAYERS`, then by loop, generator and concurrency."""
    (layer, *rest), _ = item
    return list(LAYERS).index(layer), *rest


def ours_of(readings: list[Reading], layer: str, loop: str) -> Estimate | None:
    """The mean of the processes' estimates, between the lowest and the highest end of their intervals."""
    found = [r["us"] for r in readings if r["kind"] == "ours" and (r["layer"], r["loop"]) == (layer, loop) and r["us"]]
    if not found:
        return None
    estimates, lows, highs = zip(*found, strict=True)
    return Estimate(fmean(estimates), min(lows), max(highs))


def table(generator: str, rows: Sequence[Row]) -> Table:
    """Measured against predicted under one load generator."""
    title = f"{generator}: requests per second without and with the layer, and what it adds, µs per request"
    head = ["layer", "loop", "clients", "RPS", "with", "drop", "added", "interval", "ours", "predicted", "off"]
    return Table(title, head, [cells(row) for row in rows])


def cells(row: Row) -> list[str]:
    """A row as text."""
    rps, us = 1e6 / row.without_us, row.measured
    return [
        row.layer,
        row.loop,
        f"{row.concurrency}",
        f"{rps:.0f}",
        f"{rps - row.measured_drop:.0f}",
        f"{row.measured_drop / rps:.1%}",
        f"{us.estimate:.1f}",
        f"{us.low:.1f} … {us.high:.1f}" if isfinite(us.half_width) else "too few pairs",
        f"{row.ours.estimate:.1f}",
        f"{row.predicted_drop / rps:.1%}",
        f"{row.off:+.0%}" if row.tells else "?",
    ]


def summary(rows: Sequence[Row]) -> Table:
    """Ours over measured, for each layer and concurrency."""
    concurrencies = sorted({row.concurrency for row in rows})
    body = []
    for layer, loop in dict.fromkeys((row.layer, row.loop) for row in rows):
        own = [row for row in rows if (row.layer, row.loop) == (layer, loop)]
        ratios = [ratio([row for row in own if row.concurrency == concurrency]) for concurrency in concurrencies]
        spread = f"{own[0].ours.low:.1f} … {own[0].ours.high:.1f}"
        body.append([layer, loop, f"{own[0].ours.estimate:.1f}", spread, *ratios])
    head = ["layer", "loop", "ours µs", "interval", *(f"{concurrency} clients" for concurrency in concurrencies)]
    return Table("Ours over what the layer adds behind the server, median of the load generators", head, body)


def ratio(rows: Sequence[Row]) -> str:
    """Ours over measured as text; a question mark when no load generator can tell."""
    found = [row.ours.estimate / row.measured.estimate for row in rows if row.tells]
    return f"{median(found):.2f}" if found else "?"


def goal(rows: Sequence[Row]) -> Goal:
    """How many drops are predicted as well as they should be."""
    judged = [row for row in rows if row.tells]
    near = [row for row in judged if row.close]
    found = f"{len(near)} of {len(judged)} settings"
    if judged:
        worst = max(judged, key=lambda row: abs(row.off))
        found += (
            f", {median(row.off for row in judged):+.0%} in the median, {worst.off:+.0%} at worst ({worst.layer},"
            f" {worst.loop}, {worst.generator} with {worst.concurrency} clients)"
        )
    about = "the predicted drop in requests per second within 10 % of the measured one, where that is known to 10 %"
    return Goal(about, found, bool(judged) and len(near) == len(judged))


def skipped_note(generator: str) -> str:
    """Why there is no table of a load generator."""
    return f"{generator} is skipped: it is not installed (Debian: {PACKAGES[generator]})."


def sharing_notes(rows: Sequence[Row], readings: list[Reading]) -> Iterator[str]:
    """What the event loop's own work has to do with layers that suspend."""
    for layer, loop in dict.fromkeys((row.layer, row.loop) for row in rows):
        own = [r for r in readings if r["kind"] == "ours" and (r["layer"], r["loop"]) == (layer, loop)]
        suspensions, turn_us = own[0]["suspensions"], median(reading["turn_us"] for reading in own)
        crowd = [r for r in rows if (r.layer, r.loop) == (layer, loop) and r.concurrency > 1 and r.tells]
        if not suspensions or not crowd:
            continue
        excess = median(row.ours.estimate - row.measured.estimate for row in crowd)
        yield (
            f"{layer} on {loop} gives way {suspensions} times a request. In ours a request is alone, so each time costs"
            f" it a turn of the event loop, {turn_us:.1f} µs or {suspensions * turn_us:.0f} µs in all; with many"
            f" clients the requests share turns. There ours is {excess:+.1f} µs off in the median."
        )


def busy_notes(rows: Sequence[Row]) -> Iterator[str]:
    """How busy the server was: requests per second are its speed only when it was never idle."""
    known = [row for row in rows if row.busy is not None]
    if not known:
        return
    shares = []
    for generator, concurrency in sorted({(row.generator, row.concurrency) for row in known}):
        own = [row.busy for row in known if (row.generator, row.concurrency) == (generator, concurrency)]
        shares.append(f"{median(share for share in own if share is not None):.0%} ({generator}, {concurrency})")
    yield (
        f"The server was busy for this share of a burst without the layer: {', '.join(shares)}. The rest is the load"
        " generator's and the way to it, which a layer does not change as long as it is the same with it."
    )


def connection_notes(rows: Sequence[Row]) -> Iterator[str]:
    """How much of a drop under wrk is the clients' connecting, which fewer requests have to pay for."""
    most = max(row.concurrency for row in rows)
    for row in rows:
        if (row.generator, row.concurrency) != ("wrk", most) or most < CROWD or not row.tells:
            continue
        each = connecting_us(rows, row)
        if each is None or row.layer != rows[0].layer:
            continue
        share_us = most * each * row.measured.estimate / (wrk_s(most) * 1e6)
        yield (
            f"A burst of wrk with {most} clients begins with {most} connections. On {row.loop} ab, which opens one for"
            f" each request, takes {each:.0f} µs a request more. Shared by fewer requests where the layer stands, they"
            f" make {row.layer} seem {share_us:.1f} µs of its {row.measured.estimate:.0f} dearer."
        )


def connecting_us(rows: Sequence[Row], like: Row) -> float | None:
    """What ab takes per request beyond wrk, at the same loop and concurrency; None without both."""
    found = {
        generator: [row.without_us for row in rows if (row.loop, row.generator) == (like.loop, generator)]
        for generator in PACKAGES
    }
    if not all(found.values()):
        return None
    return median(found["ab"]) - median(found["wrk"])


def blind_note(rows: Sequence[Row]) -> str:
    """How many settings the load generators cannot judge."""
    blind = [row for row in rows if not row.tells]
    if not blind:
        return "The load generators know every drop to 10 %."
    bounded = [row for row in blind if isfinite(row.measured.half_width)]
    text = (
        f"In {len(blind)} of {len(rows)} settings the load generator itself does not know the drop to 10 %; they are"
        f" marked with ? and not judged. {len(blind) - len(bounded)} of them have too few pairs for an interval."
    )
    if not bounded:
        return text
    half_width = median(row.measured.half_width for row in bounded)
    inside = sum(row.measured.low <= row.ours.estimate <= row.measured.high for row in bounded)
    return (
        f"{text} In the others it is ± {half_width:.0f} µs in the median, and holds ours in {inside} of {len(bounded)}."
    )


if __name__ == "__main__":
    main(__file__, __doc__, measure, report, worker)
