"""Does the figure predict production? The drop in requests per second that removing a layer undoes, behind a server.

    python bench/server.py [--quick] [--json PATH]

The app is FastAPI's hello world, without and with one more layer: a do-nothing BaseHTTPMiddleware, CORS with an Origin
header, GZip that compresses, or a spin of 200 µs. Both apps stand behind uvicorn (httptools, no access log) in one
process and on one event loop, each at a port of its own: so the two share hash seed, memory and processor, and the idle
one takes no time. The server has one core and the load generator another, where the system lets processes be pinned.
There a process of the lowest priority keeps each core awake. Otherwise a core would fall asleep between two requests
and take time to wake, more after a longer sleep, and a layer that lets the generator wait would be charged for that.

wrk (keep-alive; bursts of 0.15 s, of 1 s with 1,000 clients) and ab (a connection for each request, as uvicorn answers
its HTTP/1.0; bursts of about 0.1 s, with a number of requests found by a first burst, at least two for each client)
send requests at concurrency 1, 100 and 1,000, on asyncio and on uvloop. Bursts are short, because shared machines
change their speed from one second to the next. A pair is one burst at each of the two ports, one right after the other,
in random order; the settings take turns until the time of a process is over. A burst begins when the server has
finished with the requests of the last one.

Before, between and after the bursts of a pair a fixed piece of work is timed on both cores. A pair begins when that
takes at most 15 % longer than in the quickest tenth of the run, or after waiting for a second. A pair is left out if
the piece of work was slower at any of the three moments, or if the server was ready to run but had no core for more
than 5 % of a burst (as Linux reports). Neither rule looks at requests, and the number of pairs does not depend on their
results.

µs per request are 1,000,000 / RPS. wrk leaves one request for each client unfinished; half of these are counted,
because the server has done half of their work, and with many clients they are a good part of a burst. The drop is the
share of the requests per second that the layer costs, pair by pair: whatever slows both bursts of a pair, and the time
to connect, cancel out. Drop and added µs are the medians over the quiet pairs of two fresh processes with the sign
test's interval at 90 %, which needs five pairs.

Our figure is the layer's row of `measure()`, in fresh processes on the server's core, on the same kind of loop: one for
each process of the server, the mean of their estimates between the lowest and the highest end of their intervals. With
the µs per request without the layer it predicts the drop. The goal counts settings where the load generator knows the
drop to 10 %, or where the prediction is off by more than 10 % for every drop in the interval. The spin checks the
method: it costs the same behind any server. The processor time of the server in a burst (as Linux reports) says how
busy the server was. The server also reports how much of that was garbage collection, which our measurement holds off.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import itertools
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
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf, isfinite
from pathlib import Path
from statistics import fmean, median
from typing import Any

from fastapi import FastAPI
from harness import Goal, Reading, Report, Table, background, fresh_process, main
from known import Spin
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response

from pytest_mwbudget.analysis.intervals import median_interval
from pytest_mwbudget.asgi import loops
from pytest_mwbudget.asgi.request import build_request
from pytest_mwbudget.config.settings import Settings
from pytest_mwbudget.engine import measure as measured
from pytest_mwbudget.model.estimate import Estimate
from pytest_mwbudget.model.results import LoopName
from pytest_mwbudget.timing.looks import Environment

CLOSE_SHARE = 0.10
ALPHA = 0.1
# A moment is quiet if the gauge is at most QUIET times its quickest tenth. A burst is quiet if the server waits for its
# core for at most WAITED_SHARE of the time.
QUIET, WAITED_SHARE = 1.15, 0.05
PATIENCE_S, LOOK_S = 1.0, 0.05
# The server has finished if it works for less than IDLE_SHARE of LOOK_S; wait for REST_S if the system cannot tell.
IDLE_SHARE, REST_S = 0.05, 0.3
WARM_REQUESTS, WARM_CONCURRENCY = 1500, 10
WRK_S, CROWDED_WRK_S, CROWD, AB_S = 0.15, 1.0, 1000, 0.1
TURNS = 2000
GAUGED = {"numbers": list(range(50)), "names": [f"name {number}" for number in range(50)]}
PACKAGES = {"wrk": "wrk", "ab": "apache2-utils"}
# Garbage collection is mentioned above this share of the added time.
TOLD_SHARE = 0.05

# Spins on a core whenever no other process runs there, until its parent ends.
AWAKE = """
import os, sys
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
os.sched_setaffinity(0, {int(sys.argv[1])})
parent = os.getppid()
while os.getppid() == parent:
    sum(range(10_000))
"""


class PassThrough(BaseHTTPMiddleware):
    """A layer that does nothing."""

    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        return await call_next(request)


LAYERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "BaseHTTPMiddleware": (PassThrough, {}),
    "CORS": (CORSMiddleware, {"allow_origins": ["*"], "allow_methods": ["*"]}),
    "GZip": (GZipMiddleware, {"minimum_size": 1}),
    "spin of 200 µs": (Spin, {"us": 200.0}),
}


@dataclass(frozen=True)
class Plan:
    """The size of a run: each of the `processes` takes pairs for `process_s`, at least one of each setting."""

    layers: Sequence[str] = tuple(LAYERS)
    loops: Sequence[LoopName] = ("asyncio", "uvloop")
    concurrencies: Sequence[int] = (1, 100, 1000)
    processes: int = 2
    process_s: float = 44.0
    max_time_s: float = 5.0


FULL = Plan()
QUICK = Plan(
    layers=("BaseHTTPMiddleware", "CORS"), loops=("asyncio",), concurrencies=(1, 100), processes=1, process_s=0.0
)


def hello(layer: str | None, wait_ms: float = 0.0) -> FastAPI:
    """Make a hello-world app in one layer, or without a layer. Its endpoint waits first, if asked for."""
    app = FastAPI()
    if layer is not None:
        kind, options = LAYERS[layer]
        app.add_middleware(kind, **options)

    @app.get("/")
    async def root() -> dict[str, str]:
        if wait_ms:
            await asyncio.sleep(wait_ms / 1000)
        return {"message": "Hello World"}

    return app


def headers() -> dict[str, str]:
    """Return the headers of every request."""
    return {"Origin": "http://elsewhere", "Accept-Encoding": "gzip"}


# ---- fresh processes --------------------------------------------------------------------------------------------


def worker(
    role: str, layer: str, loop: LoopName, core: int | None, max_time_s: float = 5.0, wait_ms: float = 0.0
) -> Reading:
    """Run one role of a fresh process: serve until its standard input ends, or measure."""
    pin(core)
    if role == "serve":
        serve([hello(None, wait_ms), hello(layer, wait_ms)], loop)
        return {}
    return loops.run(loop, lambda: ours(layer, max_time_s))


async def ours(layer: str, max_time_s: float) -> Reading:
    """Measure the layer's row, its number of suspensions, and the time of a turn of the event loop.

    `turn_us` is the time of a turn with one task that does nothing.
    """
    kind, _ = LAYERS[layer]
    request = build_request("GET", "/", {"headers": headers()})
    measurement = await measured(hello(layer), request, Settings(max_time_s=max_time_s), Environment())
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
    """Return [estimate, low, high] in microseconds; None if there were too few requests."""
    return [us.estimate, us.low, us.high] if us is not None else None


def serve(apps: Iterable[Any], loop: LoopName) -> None:
    """Serve each app at a separate port, all on one loop, until the standard input ends.

    Prints the ports and, for each line of input, the total time of garbage collection so far, in nanoseconds.
    """
    import uvicorn  # the report needs no server

    collecting = Collecting()
    gc.callbacks.append(collecting)
    sockets = [listening() for _ in apps]
    servers = [
        uvicorn.Server(uvicorn.Config(app, http="httptools", access_log=False, log_level="warning")) for app in apps
    ]

    async def run() -> None:
        ended = asyncio.Event()
        running = asyncio.get_running_loop()

        def answer() -> None:
            for _ in sys.stdin:
                print(collecting.ns, flush=True)
            running.call_soon_threadsafe(ended.set)

        tasks = [asyncio.create_task(server.serve([at])) for server, at in zip(servers, sockets, strict=True)]
        threading.Thread(target=answer, daemon=True).start()
        print(json.dumps([at.getsockname()[1] for at in sockets]), flush=True)
        await ended.wait()
        for server in servers:
            server.should_exit = True
        await asyncio.gather(*tasks)

    loops.run(loop, run)


class Collecting:
    """A callback of `gc.callbacks` that adds up the time of garbage collection."""

    def __init__(self) -> None:
        self.ns = 0
        self.begin_ns = 0

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self.begin_ns = time.perf_counter_ns()
        else:
            self.ns += time.perf_counter_ns() - self.begin_ns


def listening() -> socket.socket:
    """Make a listening socket as uvicorn does: asyncio sets TCP_NODELAY only if the protocol is given."""
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    made.bind(("127.0.0.1", 0))
    made.listen()  # connections before the server has started wait
    return made


@dataclass(frozen=True)
class Spent:
    """Total times of a server so far: working, ready without a core, collecting garbage; None if unknown."""

    cpu_ns: int | None
    waited_ns: int | None
    collecting_ns: int | None


@dataclass(frozen=True)
class Served:
    """A server process, its ports, and a function that asks for its garbage collection time."""

    pid: int
    ports: Sequence[int]
    ask: Callable[[], str | None] = lambda: None

    def spent(self) -> Spent:
        """Return the total times of the server so far."""
        answer = self.ask()
        return Spent(*self.scheduled(), None if answer is None else int(answer))

    def scheduled(self) -> tuple[int | None, int | None]:
        """Return the time the server worked, and was ready without a core, in ns; None without Linux's schedstat."""
        with contextlib.suppress(OSError):
            cpu_ns, waited_ns, _ = Path(f"/proc/{self.pid}/schedstat").read_text().split()
            return int(cpu_ns), int(waited_ns)
        return None, None

    def rest(self) -> None:
        """Wait until the server has finished the requests and connections that a burst left."""
        before, _ = self.scheduled()
        if before is None:
            time.sleep(REST_S)
            return
        while True:
            time.sleep(LOOK_S)
            now, _ = self.scheduled()
            if now is None or now - before < IDLE_SHARE * LOOK_S * 1e9:
                return
            before = now


@contextmanager
def served(file: str, **arguments: Any) -> Iterator[Served]:
    """Start a new interpreter whose `worker` serves until the end of the block."""
    command = [sys.executable, file, "--worker", json.dumps(arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        questions, answers = process.stdin, process.stdout

        def ask() -> str:
            print(file=questions, flush=True)
            return answers.readline()

        try:
            yield Served(process.pid, json.loads(answers.readline()), ask)
        finally:
            questions.close()
            process.wait()


def cores() -> tuple[int | None, int | None]:
    """Return a core for the server and one for the load generator; None if processes cannot be pinned apart."""
    allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    return (allowed[0], allowed[-1]) if len(allowed) > 1 else (None, None)


def pin(core: int | None) -> None:
    """Pin this process and its future children to one core."""
    if core is not None:
        os.sched_setaffinity(0, {core})


@contextmanager
def awake(on: Iterable[int | None]) -> Iterator[None]:
    """Keep these cores out of power-saving states, with work of the lowest priority."""
    with background(AWAKE, *((str(core),) for core in on if core is not None)):
        yield


# ---- load generators --------------------------------------------------------------------------------------------


class BurstError(Exception):
    """A burst with a failed request or without figures."""


@dataclass(frozen=True)
class Burst:
    """The figures that a load generator reported."""

    rps: float
    requests: int


def burst(
    generator: str, url: str, concurrency: int, requests: int, core: int | None, seconds: float | None = None
) -> Burst:
    """Send requests as fast as the server answers: `wrk` for `seconds` or `wrk_s`, `ab` a number of requests."""
    options = [f"-H{name}: {value}" for name, value in headers().items()]
    if generator == "wrk":
        command = ["wrk", "-t1", f"-c{concurrency}", "-d60s", "--timeout=10s", *options, url]
    else:
        command = ["ab", "-q", "-l", f"-c{concurrency}", f"-n{max(requests, 2 * concurrency)}", *options, url]
    pinned = functools.partial(pin, core)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, preexec_fn=pinned, **pipes) as process:  # type: ignore[call-overload]
        if generator == "wrk":  # wrk accepts whole seconds only, but reports when interrupted
            time.sleep(wrk_s(concurrency) if seconds is None else seconds)
            process.send_signal(signal.SIGINT)
        return parsed(*process.communicate())


def wrk_s(concurrency: int) -> float:
    """Return the duration of a burst of wrk in seconds: longer with many clients, which take time to connect."""
    return CROWDED_WRK_S if concurrency >= CROWD else WRK_S


def parsed(text: str, complaint: str = "") -> Burst:
    """Parse the output of wrk or ab. Raises BurstError if a request failed."""
    rate = re.search(r"Requests(?:/sec| per second):\s+([\d.]+)", text)
    count = re.search(r"(\d+) requests in|Complete requests:\s+(\d+)", text)
    wrong = re.search(r"Socket errors:.*|Non-2xx.*|Failed requests:\s+[1-9]\d*", text)
    if rate is None or count is None or wrong is not None:
        raise BurstError(wrong.group() if wrong else (complaint.strip() or "no figures"))
    return Burst(float(rate.group(1)), int(count.group(1) or count.group(2)))


def gauge(on: Iterable[int | None]) -> float:
    """Time a fixed piece of work, in nanoseconds, on the slowest of these cores."""
    return max(gauge_of(core) for core in on)


def gauge_of(core: int | None) -> float:
    """Time the fixed piece of work on one core, in nanoseconds."""
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


def quiet_ns(gauges: Sequence[float]) -> float:
    """Return the largest gauge of a quiet moment, derived from all gauges."""
    return QUIET * sorted(gauges)[len(gauges) // 10]


@dataclass
class Calm:
    """Waits for quiet moments for at most `patience_s`, judged by the gauges of the whole run so far."""

    patience_s: float = PATIENCE_S
    gauges: list[float] = field(default_factory=list)

    def gauge(self, on: Iterable[int | None]) -> float:
        """Take a gauge, and remember it."""
        self.gauges.append(gauge(on))
        return self.gauges[-1]

    def wait(self, on: Sequence[int | None]) -> float:
        """Wait for a quiet moment. Returns the last gauge."""
        end = time.monotonic() + self.patience_s
        while self.gauge(on) > quiet_ns(self.gauges) and time.monotonic() < end:
            time.sleep(LOOK_S)
        return self.gauges[-1]


def observed(
    server: Served, which: int, generator: str, concurrency: int, requests: int, core: int | None
) -> dict[str, float | None]:
    """Send a burst to one of the two ports: µs per request, with the server's processor and garbage collection time.

    `waited` is the share of the burst in which the server was ready but had no core. ab ends with its last request. wrk
    leaves one request for each client unfinished; these are half done on average.
    """
    before = server.spent()
    figures = burst(generator, f"http://127.0.0.1:{server.ports[which]}/", concurrency, requests, core)
    after = server.spent()
    if not figures.requests:
        raise BurstError("no request was answered in time")
    unfinished = concurrency / 2 if generator == "wrk" else 0.0
    done = figures.requests + unfinished
    us = 1e6 / figures.rps * figures.requests / done
    return {
        "us": us,
        "cpu_us": grown_us(before.cpu_ns, after.cpu_ns, done),
        "collecting_us": grown_us(before.collecting_ns, after.collecting_ns, done),
        "waited": grown_us(before.waited_ns, after.waited_ns, done * us),
    }


def grown_us(before_ns: int | None, after_ns: int | None, by: float) -> float | None:
    """Return the growth of a count of nanoseconds, in microseconds, divided by `by`; None if unknown."""
    return None if before_ns is None or after_ns is None else (after_ns - before_ns) / by / 1000


# ---- measure ----------------------------------------------------------------------------------------------------


def measure(quick: bool) -> list[Reading]:
    """Take our figure and pairs of bursts, for each layer on each loop."""
    plan = QUICK if quick else FULL
    missing = [name for name in PACKAGES if shutil.which(name) is None]
    readings: list[Reading] = [{"kind": "skipped", "generator": name} for name in missing]
    generators = [name for name in PACKAGES if name not in missing]
    settings = [(layer, loop) for loop in plan.loops for layer in plan.layers]
    calm = Calm()
    for _ in range(plan.processes):
        for layer, loop in random.sample(settings, len(settings)):
            readings += of_process(plan, generators, layer, loop, calm)
    return readings


def of_process(plan: Plan, generators: Sequence[str], layer: str, loop: LoopName, calm: Calm) -> list[Reading]:
    """Take our figure for a layer in one process, and pairs of bursts at another one that serves."""
    server_core, load_core = cores()
    about: dict[str, Any] = {"layer": layer, "loop": loop}
    reading = fresh_process(__file__, role="ours", core=server_core, max_time_s=plan.max_time_s, **about)
    readings: list[Reading] = [{"kind": "ours", **about, **reading}]
    if not generators:
        return readings
    with (
        awake((server_core, load_core)),
        served(__file__, role="serve", core=server_core, **about) as server,
    ):
        requests = [warm(server, generators[-1], which, load_core) for which in range(2)]
        for generator, concurrency in turns(plan, generators):
            about_pair = {**about, "generator": generator, "concurrency": concurrency}
            reading = pair(server, generator, concurrency, requests, (server_core, load_core), calm)
            readings.append({**about_pair, **reading})
    return readings


def turns(plan: Plan, generators: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Yield each load generator at each concurrency once, then repeatedly until `process_s` is over."""
    end = time.monotonic() + plan.process_s
    settings = list(itertools.product(generators, plan.concurrencies))
    yield from settings
    for setting in itertools.cycle(settings):
        if time.monotonic() >= end:
            return
        yield setting


def warm(server: Served, generator: str, which: int, core: int | None) -> int:
    """Warm the server up: specialised code, full caches. Returns the number of requests of a burst of ab."""
    asked = (generator, f"http://127.0.0.1:{server.ports[which]}/", WARM_CONCURRENCY, WARM_REQUESTS, core)
    try:
        figures = burst(*asked)
    except BurstError:  # on a busy machine wrk may be interrupted before it has begun
        figures = burst(*asked, CROWDED_WRK_S)
    return round(figures.rps * AB_S)


def pair(
    server: Served,
    generator: str,
    concurrency: int,
    requests: Sequence[int],
    on: tuple[int | None, int | None],
    calm: Calm,
) -> Reading:
    """Send a burst without the layer and one with the layer, in random order.

    `on` are the cores of the server and the load generator. `gauge_ns` is the slowest gauge of the pair.
    """
    _, load_core = on
    bursts = {}
    server.rest()
    gauges = [calm.wait(on)]
    try:
        for which in random.sample(range(2), 2):
            bursts[which] = observed(server, which, generator, concurrency, requests[which], load_core)
            server.rest()
            gauges.append(calm.gauge(on))
    except BurstError as error:
        return {"kind": "failed", "why": str(error)}
    return {"kind": "pair", "without": bursts[0], "with": bursts[1], "gauge_ns": max(gauges)}


# ---- report -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """The result of the pairs for a layer, a loop, a load generator and a concurrency, with our figure.

    `added` is the cost of the layer behind the server and `ours` our figure, both in microseconds per request; `drop`
    is the share of the requests per second that the layer costs. `busy` are the shares of a burst in which the server
    worked, without and with the layer. `collecting_us` is the part of `added` that garbage collection takes. Both are
    None if unknown.
    """

    layer: str
    loop: str
    generator: str
    concurrency: int
    pairs: int
    without_us: float
    added: Estimate
    drop: Estimate
    ours: Estimate
    busy: tuple[float | None, float | None]
    collecting_us: float | None

    @property
    def predicted_drop(self) -> float:
        """The drop that our figure predicts."""
        return self.ours.estimate / (self.without_us + self.ours.estimate)

    @property
    def tells(self) -> bool:
        """Whether the load generator knows the drop well enough to judge a prediction."""
        return self.drop.estimate > 0 and self.drop.half_width <= CLOSE_SHARE * self.drop.estimate

    @property
    def misses(self) -> bool:
        """Whether the prediction is off by more than CLOSE_SHARE for every drop in the interval."""
        return self.predicted_drop < (1 - CLOSE_SHARE) * self.drop.low or self.predicted_drop > (1 + CLOSE_SHARE) * max(
            self.drop.high, 0.0
        )

    @property
    def judged(self) -> bool:
        """Whether the prediction can be judged."""
        return self.tells or self.misses

    @property
    def off(self) -> float:
        """The error of the predicted drop as a share of the measured drop; positive if too high."""
        return self.predicted_drop / self.drop.estimate - 1 if self.drop.estimate > 0 else inf

    @property
    def close(self) -> bool:
        """Whether the prediction is within CLOSE_SHARE of the measured drop."""
        return not self.misses and abs(self.off) <= CLOSE_SHARE


def report(readings: list[Reading]) -> Report:
    """Report tables for wrk and for ab, the goal, and why some rows differ."""
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
    notes += [*sharing_notes(rows, readings), *collecting_notes(rows), *busy_notes(rows)]
    notes.append(blind_note([(row.drop, row.predicted_drop) for row in rows if not row.judged], len(rows)))
    return Report([*tables, summary(rows)], [goal(rows)], notes)


def quiet_pairs(readings: list[Reading]) -> list[Reading]:
    """Return the pairs from quiet moments: fast gauges, and no other process on the server's core."""
    limit_ns = quiet_ns([reading["gauge_ns"] for reading in readings if reading["kind"] == "pair"] or [0.0])
    return [reading for reading in undisturbed_pairs(readings) if reading["gauge_ns"] <= limit_ns]


def undisturbed_pairs(readings: list[Reading]) -> list[Reading]:
    """Return the pairs with no other process on the server's core, whatever the speed of the machine."""
    return [
        reading
        for reading in readings
        if reading["kind"] == "pair"
        and all((reading[which]["waited"] or 0.0) <= WAITED_SHARE for which in ("without", "with"))
    ]


def rows_of(readings: list[Reading], counted: Callable[[list[Reading]], list[Reading]] = quiet_pairs) -> Iterator[Row]:
    """Yield a row for each setting that has counted pairs, by default quiet ones, and our figure."""
    pairs: dict[tuple[str, str, str, int], list[Reading]] = {}
    for reading in counted(readings):
        key = (reading["layer"], reading["loop"], reading["generator"], reading["concurrency"])
        pairs.setdefault(key, []).append(reading)
    for (layer, loop, generator, concurrency), own in sorted(pairs.items(), key=order):
        us = ours_of(readings, layer, loop)
        if us is None:
            continue
        yield Row(
            layer,
            loop,
            generator,
            concurrency,
            len(own),
            median(reading["without"]["us"] for reading in own),
            median_interval([reading["with"]["us"] - reading["without"]["us"] for reading in own], ALPHA),
            median_interval([1 - reading["without"]["us"] / reading["with"]["us"] for reading in own], ALPHA),
            us,
            (busy_share(own, "without"), busy_share(own, "with")),
            median_of_known(difference(reading, "collecting_us") for reading in own),
        )


def busy_share(pairs: Sequence[Reading], which: str) -> float | None:
    """Return the share of a burst in which the server worked."""
    bursts = [reading[which] for reading in pairs]
    return median_of_known(
        None if figures["cpu_us"] is None else figures["cpu_us"] / figures["us"] for figures in bursts
    )


def difference(reading: Reading, key: str) -> float | None:
    """Return the difference of a value with and without the layer; None if unknown."""
    more, less = reading["with"][key], reading["without"][key]
    return None if more is None or less is None else more - less


def median_of_known(values: Iterable[float | None]) -> float | None:
    """Return the median of the known values, None if there are none."""
    known = [value for value in values if value is not None]
    return median(known) if known else None


def order(item: tuple[tuple[str, str, str, int], list[Reading]]) -> tuple[Any, ...]:
    """Return the sort key: the position in `LAYERS`, then loop, generator and concurrency."""
    (layer, *rest), _ = item
    return list(LAYERS).index(layer), *rest


def ours_of(readings: list[Reading], layer: str, loop: str) -> Estimate | None:
    """Return our figure: the mean of the processes, between the lowest and the highest end of their intervals."""
    intervals = [
        r["us"] for r in readings if r["kind"] == "ours" and (r["layer"], r["loop"]) == (layer, loop) and r["us"]
    ]
    if not intervals:
        return None
    estimates, lows, highs = zip(*intervals, strict=True)
    return Estimate(fmean(estimates), min(lows), max(highs))


def table(generator: str, rows: Sequence[Row]) -> Table:
    """Write the table of measured and predicted drops under one load generator."""
    title = (
        f"{generator}: requests per second without the layer and what share of them goes with it; what it adds, µs per"
        " request"
    )
    head = [
        "layer",
        "loop",
        "clients",
        "pairs",
        "RPS",
        "drop",
        "interval",
        "predicted",
        "off",
        "added µs",
        "interval",
        "ours µs",
    ]
    return Table(title, head, [cells(row) for row in rows])


def measured_cells(row: Row) -> list[str]:
    """Write the cells of what a load generator measured."""
    drop = f"{row.drop.low:.1%} … {row.drop.high:.1%}" if isfinite(row.drop.half_width) else "too few pairs"
    numbers = (f"{row.concurrency}", f"{row.pairs}", f"{1e6 / row.without_us:.0f}", f"{row.drop.estimate:.1%}", drop)
    return [row.layer, row.loop, *numbers]


def cells(row: Row) -> list[str]:
    """Write the cells of a row."""
    return [
        *measured_cells(row),
        f"{row.predicted_drop:.1%}",
        f"{row.off:+.0%}" if row.judged else "not known well enough",
        f"{row.added.estimate:.1f}",
        f"{row.added.low:.1f} … {row.added.high:.1f}" if isfinite(row.drop.half_width) else "too few pairs",
        f"{row.ours.estimate:.1f}",
    ]


def summary(rows: Sequence[Row]) -> Table:
    """Write the table of our figures divided by the measured ones, for each layer and concurrency."""
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
    """Write our figure divided by the measured one; a question mark if no load generator knows the drop."""
    ratios = [row.ours.estimate / row.added.estimate for row in rows if row.tells]
    return f"{median(ratios):.2f}" if ratios else "?"


def spread(offs: Sequence[tuple[float, Row]]) -> str:
    """Write by how much figures are off in the median, and by how much and where at worst."""
    worst, row = max(offs, key=lambda item: abs(item[0]))
    where = f"{row.layer}, {row.loop}, {row.generator} with {row.concurrency} clients"
    return f", {median(off for off, _ in offs):+.0%} in the median, {worst:+.0%} at worst ({where})"


def goal(rows: Sequence[Row]) -> Goal:
    """Judge how many predictions are close to the measured drop."""
    judged = [row for row in rows if row.judged]
    near = [row for row in judged if row.close]
    finding = f"{len(near)} of {len(judged)} settings"
    if judged:
        layers = dict.fromkeys(row.layer for row in rows)
        scores = [
            f"{layer} {sum(row.layer == layer for row in near)} of {sum(row.layer == layer for row in judged)}"
            for layer in layers
        ]
        finding += f" ({'; '.join(scores)}){spread([(row.off, row) for row in judged])}"
    about = (
        "the predicted drop in requests per second within 10 % of the measured one, where that is known to 10 % or all"
        " of its interval is further away"
    )
    why_not = (
        "A row is of one request at a time in a process with warm caches; `mwbudget load` measures behind a server."
    )
    return Goal(about, finding, bool(judged) and len(near) == len(judged), why_not)


def skipped_note(generator: str) -> str:
    """Explain why there is no table of a load generator."""
    return f"{generator} is skipped: it is not installed (Debian: {PACKAGES[generator]})."


def sharing_notes(rows: Sequence[Row], readings: list[Reading]) -> Iterator[str]:
    """Explain where ours may be too high: a single request pays for each turn of the event loop."""
    for layer, loop in dict.fromkeys((row.layer, row.loop) for row in rows):
        own = [r for r in readings if r["kind"] == "ours" and (r["layer"], r["loop"]) == (layer, loop)]
        suspensions, turn_us = own[0]["suspensions"], median(reading["turn_us"] for reading in own)
        many = [r for r in rows if (r.layer, r.loop) == (layer, loop) and r.concurrency > 1 and r.tells]
        excess_us = median(row.ours.estimate - row.added.estimate for row in many) if many else 0.0
        if not suspensions or excess_us <= 0:
            continue
        yield (
            f"{layer} on {loop} gives way {suspensions} times a request. In ours a request is alone, so each time costs"
            f" it a turn of the event loop, {turn_us:.1f} µs or {suspensions * turn_us:.0f} µs in all; requests of many"
            f" clients can share turns. With more than one client ours is {excess_us:+.1f} µs off in the median."
        )


def collecting_notes(rows: Sequence[Row]) -> Iterator[str]:
    """Explain where ours may be too low: our measurement holds garbage collection off."""
    for layer, loop in dict.fromkeys((row.layer, row.loop) for row in rows):
        parts = [
            f"{row.collecting_us:.1f} of {row.added.estimate:.1f} ({row.generator}, {row.concurrency})"
            for row in rows
            if (row.layer, row.loop) == (layer, loop) and isfinite(row.added.half_width)
            if row.collecting_us is not None and row.collecting_us > TOLD_SHARE * row.added.estimate > 0
        ]
        if parts:
            yield (
                f"Of the µs that {layer} adds on {loop}, garbage collection, which ours holds off, takes"
                f" {', '.join(parts)}."
            )


def busy_notes(rows: Sequence[Row]) -> Iterator[str]:
    """Write how busy the server was: requests per second show its speed only if it was never idle."""
    parts = []
    for generator, concurrency in sorted({(row.generator, row.concurrency) for row in rows}):
        own = [row.busy for row in rows if (row.generator, row.concurrency) == (generator, concurrency)]
        shares = [median_of_known(busy) for busy in zip(*own, strict=True)]
        if None not in shares:
            parts.append(f"{shares[0]:.0%} and {shares[1]:.0%} ({generator}, {concurrency})")
    if parts:
        yield f"The server worked for this share of a burst without and with the layer: {', '.join(parts)}."


def blind_note(drops: Sequence[tuple[Estimate, float]], settings: int, stated: str = "prediction") -> str:
    """Write in how many settings the load generators cannot judge. `drops`: each drop with the stated one."""
    if not drops:
        return f"The load generators know every drop well enough to judge the {stated}."
    bounded = [(drop, share) for drop, share in drops if isfinite(drop.half_width)]
    text = (
        f"In {len(drops)} of {settings} settings the load generator itself does not know the drop to 10 %; they are"
        f" not judged. {len(drops) - len(bounded)} of them have too few pairs for an interval."
    )
    if not bounded:
        return text
    half_width = median(drop.half_width for drop, _ in bounded)
    inside = sum(drop.low <= share <= drop.high for drop, share in bounded)
    return (
        f"{text} In the others it is ± {100 * half_width:.1f} % of the requests per second in the median, and holds the"
        f" {stated} in {inside} of {len(bounded)}."
    )


if __name__ == "__main__":
    main(__file__, __doc__, measure, report, worker)
