"""The published experiments on ASGI middleware, each as a small app and a row.

    python bench/published.py [--quick] [--json PATH]

Five public texts measured middleware by requests per second under a load generator. Each of their apps is rewritten
here for the current releases and measured by `measure()` in fresh processes: in two, or in one if a request waits for
half a second. Our figure is the sum of the rows of the layers that the experiment adds, or the whole request if the
experiment adds none. It is the mean of the processes' estimates, between the lowest and the highest end of their
intervals; objects and tasks are counted. A measurement ends when these figures are known, and at the latest after 5 s:
after 10 to 30 s if a request takes tens of milliseconds, after a minute if a request waits for half a second. A
measurement during which the machine ran at least a seventh slower than in the processes before is repeated, at most
three times in all.

Published µs per request are 1,000,000 / RPS; what a layer adds is the difference from the same text's app without it.
The published figures were taken on other machines, with other versions, with many requests at a time, and include the
server. Ours are taken in-process, one request at a time, without a server. So the µs do not compare, but ratios between
layers do: the second table has them, where the published layers added anything. Reasons for differences follow the
tables.

Not everything in the texts is repeated. Latencies under load (ab's P50, wrk's mean) are left out, because our requests
come one at a time; Hypercorn in place of uvicorn is left out, because our measurement has no server. Flask on uWSGI,
the aiohttp server, Sanic, actix and Gin have no stack of ASGI layers. The aiohttp client has no part in a stack either,
and its times were those of the shared client. Of the fifth text's two payloads, the smaller one stands beside ours. The
gain of the fourth text's whole round of changes is left out, because more than a layer changed.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from itertools import product
from math import inf, isfinite
from pathlib import Path
from statistics import fmean
from typing import Any, TypeAlias

import httpx
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from harness import Reading, Report, Table, fresh_process, main
from server import estimate_to_json, serve, served
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route

from pytest_mwbudget.asgi.request import build_request
from pytest_mwbudget.config.budgets import Budgets
from pytest_mwbudget.config.settings import Settings
from pytest_mwbudget.engine import measure as measured
from pytest_mwbudget.model.estimate import ZERO, Estimate
from pytest_mwbudget.model.results import Counts, LayerReport
from pytest_mwbudget.timing.host_speed import Machine
from pytest_mwbudget.timing.looks import Environment

PROCESSES = 2
# A measurement is repeated if the machine ran slower than before by this factor, up to TRIES times in all.
SLOW, TRIES = 1.15, 3
MAX_TIME_S, LONG_TIME_S, LONGEST_TIME_S, QUICK_TIME_S = 5.0, 10.0, 60.0, 0.5
# A budget that no request exceeds, so that a measurement lasts until the time of the whole request is known.
ENDLESS_US = 1e9
QUICK_CASES = ("hello", "1 B", "5 B", "1 A", "5 A", "5 A, file", "fetch, shared client")
FASTAPI_OWN = ("ServerErrorMiddleware", "ExceptionMiddleware", "AsyncExitStackMiddleware")
WRITTEN, MOST_WRITTEN = b"x" * 15_000, 16_000_000
RECORDS = [{"id": number, "name": f"record {number}", "price": number / 4, "tags": ["a"]} for number in range(2000)]

# ---- layers -----------------------------------------------------------------------------------------------------


async def nothing() -> None:
    """Do nothing, as the work of a layer."""


async def write(path: Path) -> None:
    """Append 15 kB to a file, blocking; truncate a file above `MOST_WRITTEN`."""
    with path.open("ab") as file:
        file.write(WRITTEN)
        if file.tell() > MOST_WRITTEN:
            file.truncate(0)


class A:
    """A pure ASGI class that does `work`, then calls the app."""

    def __init__(self, app: Any, work: Callable[[], Awaitable[None]] | None = None) -> None:
        self.app = app
        self.work = work

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if self.work is not None and scope["type"] == "http":
            await self.work()
        await self.app(scope, receive, send)


class B(BaseHTTPMiddleware):
    """The layer `A` as a BaseHTTPMiddleware."""

    def __init__(self, app: Any, work: Callable[[], Awaitable[None]] = nothing) -> None:
        super().__init__(app)
        self.work = work

    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        await self.work()
        return await call_next(request)


async def add_process_time(request: Request, call_next: RequestResponseEndpoint) -> Response:
    """Add a process-time header, as a decorated function."""
    begin = time.perf_counter()
    response = await call_next(request)
    response.headers["X-Process-Time"] = str(time.perf_counter() - begin)
    return response


class AddHeader(BaseHTTPMiddleware):
    """A subclass that adds a header."""

    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        response = await call_next(request)
        response.headers["X-Version"] = "1"
        return response


class ProcessTime:
    """A pure ASGI class that adds a process-time header."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begin = time.perf_counter()

        async def send_with_header(message: Any) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["X-Process-Time"] = str(time.perf_counter() - begin)
            await send(message)

        await self.app(scope, receive, send_with_header)


class Buffer:
    """A pure ASGI class that buffers all messages of the response and sends them at the end."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        kept: list[Any] = []

        async def keep(message: Any) -> None:
            kept.append(message)

        await self.app(scope, receive, keep)
        for message in kept:
            await send(message)


def refusal(path: str, authorization: str | None) -> Response | None:
    """Return the response to a request for metrics without a key; None for all other requests."""
    if "/metrics" in path and authorization != "Bearer key":
        return JSONResponse({"error": "unauthorized"}, status_code=401)
    return None


class AuthBefore(BaseHTTPMiddleware):
    """A BaseHTTPMiddleware that protects the metrics and passes other requests through."""

    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        return refusal(request.url.path, request.headers.get("authorization")) or await call_next(request)


class AuthAfter:
    """The layer `AuthBefore` as a pure ASGI class."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        answer = None
        if scope["type"] == "http" and "/metrics" in scope["path"]:
            answer = refusal(scope["path"], Request(scope).headers.get("authorization"))
        await (answer or self.app)(scope, receive, send)


# ---- apps -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """The file that an app may write, and the URL that it may fetch. Both exist as long as the process."""

    file: Path
    upstream: str = ""


def hello(*layers: Any, **options: Any) -> FastAPI:
    """Make a hello-world app in these layers, outermost last, each with the same options."""
    app = FastAPI()
    for layer in layers:
        app.add_middleware(layer, **options)

    @app.get("/")
    async def root() -> dict[str, str]:
        return {"message": "Hello World"}

    return app


def decorated(*layers: Any) -> FastAPI:
    """Make a hello-world app in a decorated function, with these layers outside."""
    app = hello()
    app.middleware("http")(add_process_time)
    for layer in layers:
        app.add_middleware(layer)
    return app


def health(auth: Any) -> FastAPI:
    """Make a proxy's health route in an auth layer and CORS."""
    app = FastAPI()
    app.add_middleware(auth)
    app.add_middleware(CORSMiddleware, allow_origins=["*"])

    @app.get("/")
    async def answer() -> PlainTextResponse:
        return PlainTextResponse("ok")

    return app


def ready() -> bytes:
    """Return the records as JSON."""
    return json.dumps(RECORDS).encode()


def fastapi_records(plain: bool) -> FastAPI:
    """Make an app whose handler returns the records, or a response with ready JSON."""
    app = FastAPI()

    @app.get("/", response_model=None)
    async def records() -> Any:
        return RECORDS if plain else Response(ready(), media_type="application/json")

    return app


def starlette_records(plain: bool) -> Starlette:
    """Make the same app for Starlette, where plain data needs a JSONResponse."""

    async def records(request: Request) -> Response:
        return JSONResponse(RECORDS) if plain else Response(ready(), media_type="application/json")

    return Starlette(routes=[Route("/", records)])


def litestar_records(plain: bool) -> Any:
    """Make the same app for Litestar."""
    import litestar

    @litestar.get("/")
    async def plain_records() -> list[dict[str, Any]]:
        return RECORDS

    @litestar.get("/", media_type="application/json")
    async def ready_records() -> Any:
        return litestar.Response(ready(), media_type="application/json")

    return litestar.Litestar([plain_records if plain else ready_records])


async def upstream(scope: Any, receive: Any, send: Any) -> None:
    """Answer JSON at once. The apps fetch from this app, which runs in another process."""
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"13")]})
        await send({"type": "http.response.body", "body": b'{"answer":42}'})


def fetching(url: str, shared: bool) -> FastAPI:
    """Make an app whose handler fetches from upstream, with a new client for each request or a shared client."""
    clients: list[httpx.AsyncClient] = []

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with httpx.AsyncClient(trust_env=False) as client:
            clients.append(client)
            yield

    app = FastAPI(lifespan=lifespan)

    @app.get("/", response_model=None)
    async def fetch() -> Response:
        if shared:
            return JSONResponse((await clients[-1].get(url)).json())
        async with httpx.AsyncClient(trust_env=False) as client:
            return JSONResponse((await client.get(url)).json())

    return app


# ---- cases ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A row: the text, how to make its app, and the published figures.

    `us` is the published time per request, `base` the case of the same text without the layers. `clients` is the number
    of concurrent clients. `seconds` is the published time if the text states the time of some fixed work instead.
    `whole` says that the whole request is compared, not layers. `slept_s` is the sleep of all layers in a request.
    """

    text: int
    make: Callable[[Place], Any]
    us: float | None = None
    base: str | None = None
    clients: int = 1
    seconds: float | None = None
    max_time_s: float = MAX_TIME_S
    whole: bool = False
    slept_s: float = 0.0

    @property
    def published(self) -> float | None:
        """The published figure to compare with: µs added, µs per request, or seconds; None if there is none."""
        if self.us is None:
            return self.seconds
        return self.us - (CASES[self.base].us or 0.0) if self.base else self.us


def rps(*requests_per_second: float) -> float:
    """Convert the mean requests per second of some runs to microseconds per request."""
    return 1e6 / fmean(requests_per_second)


def stacked(layer: Any, count: int, work: Callable[[Place], Callable[[], Awaitable[None]]]) -> Callable[[Place], Any]:
    """Make a hello-world app in `count` equal layers, each of which does `work`."""
    return lambda place: hello(*[layer] * count, work=work(place))


def idle(place: Place) -> Callable[[], Awaitable[None]]:
    return nothing


def writing(place: Place) -> Callable[[], Awaitable[None]]:
    return partial(write, place.file)


def sleeping(seconds: float) -> Callable[[Place], Callable[[], Awaitable[None]]]:
    return lambda place: partial(asyncio.sleep, seconds)


work = partial(Case, 5, whole=True)
article = partial(Case, 1, base="hello", clients=100)


def asleep(layer: Any, seconds: float, us: float, max_time_s: float) -> Case:
    """Make the case of five layers that sleep one after another."""
    make = stacked(layer, 5, sleeping(seconds))
    return article(make, us, max_time_s=max_time_s, slept_s=5 * seconds)


CASES: dict[str, Case] = {
    "hello": Case(1, lambda place: hello(), rps(5995), clients=100, whole=True),
    "1 B": article(stacked(B, 1, idle), rps(3387)),
    "5 B": article(stacked(B, 5, idle), rps(667)),
    "1 A": article(lambda place: hello(A), rps(4113)),
    "5 A": article(lambda place: hello(*[A] * 5), rps(4059)),
    "5 B, file": article(stacked(B, 5, writing), rps(534)),
    "5 A, file": article(stacked(A, 5, writing), rps(1576)),
    "5 B, sleep 10 ms": asleep(B, 0.01, rps(617), LONG_TIME_S),
    "5 A, sleep 10 ms": asleep(A, 0.01, rps(1298), LONG_TIME_S),
    "5 B, sleep 100 ms": asleep(B, 0.1, rps(184), LONGEST_TIME_S),
    "5 A, sleep 100 ms": asleep(A, 0.1, rps(183), LONGEST_TIME_S),
    "guide": Case(2, lambda place: hello(), rps(1036), whole=True),
    "1 decorator, process time": Case(2, lambda place: decorated(), rps(684), "guide"),
    "decorator and subclass": Case(2, lambda place: decorated(AddHeader), rps(487), "guide"),
    "1 pure, process time": Case(2, lambda place: hello(ProcessTime), rps(1040), "guide"),
    "2 pure, process time": Case(2, lambda place: hello(ProcessTime, ProcessTime), rps(932), "guide"),
    "blog": Case(3, lambda place: hello(), rps(10849), clients=400, whole=True),
    "1 decorator, nothing": Case(3, lambda place: hello(B), rps(5019), "blog", 400),
    "1 pure, buffering": Case(3, lambda place: hello(Buffer), rps(10220), "blog", 400),
    "CORS, auth B": Case(4, lambda place: health(AuthBefore), rps(3596, 3599, 4161), clients=1000),
    "CORS, auth A": Case(4, lambda place: health(AuthAfter), rps(6504, 6631, 6595), clients=1000),
    "records, FastAPI, plain": work(lambda place: fastapi_records(True), seconds=1.68, max_time_s=LONG_TIME_S),
    "records, FastAPI, ready": work(lambda place: fastapi_records(False), seconds=0.25),
    "records, Starlette, plain": work(lambda place: starlette_records(True)),
    "records, Starlette, ready": work(lambda place: starlette_records(False), seconds=0.26),
    "records, Litestar, plain": work(lambda place: litestar_records(True)),
    "records, Litestar, ready": work(lambda place: litestar_records(False)),
    "fetch, client per request": work(
        lambda place: fetching(place.upstream, False), seconds=0.88, max_time_s=3 * LONG_TIME_S
    ),
    "fetch, shared client": work(lambda place: fetching(place.upstream, True), seconds=0.26),
}

# The range of the RPS of the first text's app without layers.
BARE_RPS = (5200, 6400)
# The number of objects and tasks that the fourth text states for a pass through its layer.
INTERMEDIATE = 7

# The added time of the first case divided by that of the second, or whole requests for cases that add no layers.
RATIOS = (
    ("1 B", "1 A"),
    ("5 B", "5 A"),
    ("5 B", "1 B"),
    ("5 A", "1 A"),
    ("5 B, file", "5 A, file"),
    ("5 B, sleep 10 ms", "5 A, sleep 10 ms"),
    ("5 B, sleep 100 ms", "5 A, sleep 100 ms"),
    ("decorator and subclass", "1 decorator, process time"),
    ("1 decorator, process time", "1 pure, process time"),
    ("decorator and subclass", "2 pure, process time"),
    ("1 decorator, nothing", "1 pure, buffering"),
    ("CORS, auth B", "CORS, auth A"),
    ("records, FastAPI, plain", "records, FastAPI, ready"),
    ("records, FastAPI, ready", "records, Starlette, ready"),
    ("records, Starlette, plain", "records, Starlette, ready"),
    ("records, Litestar, plain", "records, Litestar, ready"),
    ("fetch, client per request", "fetch, shared client"),
)


# ---- measure ----------------------------------------------------------------------------------------------------


def measure(quick: bool) -> list[Reading]:
    """Take a reading for each case and process."""
    readings = []
    with served(__file__, role="upstream") as server:
        url = f"http://127.0.0.1:{server.ports[0]}/"
        for process, name in product(range(1 if quick else PROCESSES), QUICK_CASES if quick else installed_cases()):
            if process == 0 or CASES[name].max_time_s < LONGEST_TIME_S:
                max_time_s = QUICK_TIME_S if quick else CASES[name].max_time_s
                known_ns = min((reading["seen_ns"] for reading in readings), default=inf)
                readings.append(
                    fresh_process(
                        __file__, role="measure", name=name, url=url, max_time_s=max_time_s, known_ns=known_ns
                    )
                )
    return readings


def installed_cases() -> list[str]:
    """Return the cases whose framework is installed here."""
    return [name for name in CASES if "Litestar" not in name or find_spec("litestar") is not None]


def worker(role: str, name: str = "", url: str = "", max_time_s: float = MAX_TIME_S, known_ns: float = inf) -> Reading:
    """Run one role of a fresh process: serve as upstream, or measure a case."""
    if role == "upstream":
        serve([upstream], "asyncio")
        return {}
    with tempfile.TemporaryDirectory() as directory:
        app = CASES[name].make(Place(Path(directory) / "written", url))
        for _ in range(TRIES):
            machine = Machine(known_ns)
            reading = asyncio.run(measured_case(app, CASES[name].whole, max_time_s, machine))
            if reading["slowdown"] < SLOW:
                break
        return {"case": name, "seen_ns": machine.seen_ns, **reading}


async def measured_case(app: Any, whole: bool, max_time_s: float, machine: Machine) -> Reading:
    """Measure the whole request, or the sum of the layers that are not the framework's own.

    `us` and `total_us` are [estimate, low, high] in µs per request, None if there were too few requests.
    """
    settings = Settings(Budgets(total_us=ENDLESS_US if whole else None), max_time_s=max_time_s)
    measurement = await measured(app, build_request("GET", "/", {}), settings, Environment(machine=machine))
    assert measurement.books is not None
    total_us = estimate_to_json(measurement.books.total) if isfinite(measurement.books.total.half_width) else None
    known = {"total_us": total_us, "slowdown": measurement.slowdown}
    if whole:
        assert measurement.ledger is not None
        return {"us": total_us, **known, **occupied([]), **counted([measurement.ledger.total])}
    layers = [report for report in measurement.layers if report.name.partition("#")[0] not in FASTAPI_OWN]
    counts = [report.counts for report in layers if report.counts is not None]
    return {"us": summed_us(layers), **known, **occupied(layers), **counted(counts)}


def summed_us(layers: Sequence[LayerReport]) -> list[float] | None:
    """Add the rows of the layers. The interval of the sum holds if all intervals of the rows hold."""
    parts = [report.us for report in layers if report.us is not None]
    return estimate_to_json(sum(parts, ZERO)) if len(parts) == len(layers) else None


def occupied(layers: Sequence[LayerReport]) -> Reading:
    """Add busy, waiting and processor time of the layers, in µs per request; None unless known for each layer."""
    occupations = [report.occupation for report in layers if report.occupation is not None]
    if not layers or len(occupations) < len(layers):
        return {"busy_us": None, "wait_us": None, "cpu_us": None, "blocking": None}
    cpu_us = [occupation.cpu_us for occupation in occupations if occupation.cpu_us is not None]
    return {
        "busy_us": sum(occupation.busy.estimate for occupation in occupations),
        "wait_us": sum(occupation.wait_us for occupation in occupations),
        "cpu_us": sum(cpu_us) if len(cpu_us) == len(occupations) else None,
        "blocking": sum(occupation.blocking for occupation in occupations),
    }


def counted(parts: Sequence[Counts]) -> Reading:
    """Add the objects and tasks per request; objects are None if they cannot be counted."""
    objects = [counts.objects.count for counts in parts if counts.objects is not None]
    return {
        "objects": sum(objects) if len(objects) == len(parts) else None,
        "tasks": sum(counts.tasks.count for counts in parts),
    }


# ---- report -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """A case with the mean results of its processes, times in µs per request; None if unknown."""

    case: Case
    us: Estimate | None
    total_us: float | None
    busy_us: float | None
    wait_us: float | None
    cpu_us: float | None
    blocking: float | None
    objects: float | None
    tasks: float | None

    @property
    def compared_us(self) -> float | None:
        """Our figure to compare with the published one: the added time, or the whole request."""
        if self.case.base is None:
            return self.total_us
        return self.us.estimate if self.us else None


Rows: TypeAlias = Mapping[str, Row]


def report(readings: list[Reading]) -> Report:
    """Report published figures beside ours, ratios, and reasons for differences."""
    rows = {name: row_of(name, own) for name in CASES if (own := [r for r in readings if r["case"] == name])}
    if not rows:
        return Report([], notes=["Nothing was measured."])
    notes = [note for reason in REASONS if (note := reason(rows)) is not None]
    missing = [name for name in CASES if name not in rows]
    if missing:
        notes.append(f"Not measured in this run: {'; '.join(missing)}.")
    return Report([beside(rows), ratios(rows)], notes=notes)


def row_of(name: str, readings: Sequence[Reading]) -> Row:
    """Merge the readings of a case: the mean, between the lowest and the highest end of the intervals."""
    intervals = [reading["us"] for reading in readings if reading["us"] is not None]
    us = None
    if intervals:
        estimates, lows, highs = zip(*intervals, strict=True)
        us = Estimate(fmean(estimates), min(lows), max(highs))
    means = {
        key: mean_of([reading[key] for reading in readings])
        for key in ("busy_us", "wait_us", "cpu_us", "blocking", "objects", "tasks")
    }
    return Row(CASES[name], us, mean_of([r["total_us"] and r["total_us"][0] for r in readings]), **means)


def mean_of(values: Iterable[float | None]) -> float | None:
    """Return the mean of the known values, None if there are none."""
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def text_of(value: float | None, form: str = ".0f") -> str:
    """Format a number; a dash for None."""
    return "-" if value is None else f"{value:{form}}"


def figure(us: float) -> str:
    """Format microseconds: two decimals below 10, none above."""
    return f"{us:.2f}" if abs(us) < 10 else f"{us:.0f}"


def beside(rows: Rows) -> Table:
    """Write the table of published figures beside ours, case by case."""
    head = ["case", "text", "published", "added", "ours", "interval", "busy", "wait", "objects", "tasks"]
    body = []
    for name, row in rows.items():
        case, us = row.case, row.us
        published = f"{case.seconds:g} s" if case.seconds is not None else text_of(case.us)
        body.append(
            [
                name,
                f"{case.text}",
                published,
                text_of(case.published) if case.base else "-",
                figure(us.estimate) + (" in all" if case.whole else "") if us else "too few requests",
                f"{figure(us.low)} … {figure(us.high)}" if us else "-",
                text_of(row.busy_us, ".1f"),
                text_of(row.wait_us),
                text_of(row.objects),
                text_of(row.tasks),
            ]
        )
    return Table("µs per request; ours is what the added layers take, or the request in all", head, body)


def ratios(rows: Rows) -> Table:
    """Write the table of published ratios beside ours."""
    body = []
    for over, under in RATIOS:
        if over in rows and under in rows:
            what = "added" if CASES[over].base else "whole request"
            published = quotient(CASES[over].published, CASES[under].published)
            own = quotient(rows[over].compared_us, rows[under].compared_us)
            body.append([f"{over} / {under}", what, text_of(published, ".2f"), text_of(own, ".2f")])
    return Table("Ratios", ["one over the other", "of", "published", "ours"], body)


def quotient(over: float | None, under: float | None) -> float | None:
    """Divide; None if a value is unknown or the divisor is not above 0."""
    return None if over is None or under is None or under <= 0 else over / under


# ---- reasons ----------------------------------------------------------------------------------------------------


def pure_reason(rows: Rows) -> str | None:
    """Explain the figures of one and five pure ASGI layers."""
    one, five = (rows[name].us if name in rows else None for name in ("1 A", "5 A"))
    if one is None or five is None:
        return None
    slow, quick = BARE_RPS
    return (
        f"The text gives {CASES['1 A'].published:.0f} µs for one pure layer that does nothing and"
        f" {CASES['5 A'].published:.0f} µs for five, so four more add about {published_us('5 A', '1 A'):.0f} µs."
        f" We measure {between(one)} µs for one and {between(five)} µs for five. The text's own app without layers"
        f" moved between {slow:,} and {quick:,} RPS, by {rps(slow) - rps(quick):.0f} µs: what it calls the first"
        " layer's cost is mostly the difference of two runs."
    )


def task_reason(rows: Rows) -> str | None:
    """Explain the figures of one and five layers of BaseHTTPMiddleware."""
    one, five = added(rows, "1 B"), added(rows, "5 B")
    if one is None or five is None:
        return None
    published = [CASES["1 B"].published or 0.0, (CASES["5 B"].published or 0.0) / 5]
    return (
        f"One BaseHTTPMiddleware was published with {published[0]:.0f} µs and each of five with {published[1]:.0f}."
        f" Ours are {one:.0f} and {five / 5:.0f}, with {text_of(rows['1 B'].tasks)} and {text_of(rows['5 B'].tasks)}"
        f" tasks a request: in-process, each of five costs {five / 5 / one:.2f} times what one does. That each should"
        f" cost {published[1] / published[0]:.1f} times as much is not in the layers alone; our readings have one"
        f" request at a time and cannot say whether the {CASES['5 B'].clients} clients, the older releases or the"
        " machine made it."
    )


def file_reason(rows: Rows) -> str | None:
    """Explain the cost of writing to a file."""
    under_b, under_a = (extra_us(rows, f"5 {kind}, file", f"5 {kind}") for kind in "BA")
    if under_b is None or under_a is None:
        return None
    row, published = rows["5 A, file"], [published_us(f"5 {kind}, file", f"5 {kind}") for kind in "BA"]
    cpu = f", {text_of(row.cpu_us)} of them on the processor" if row.cpu_us is not None else ""
    return (
        f"Five writes of {len(WRITTEN) / 1000:g} kB were published with {published[0]:.0f} µs (B) and"
        f" {published[1]:.0f} (A), ours take {between(under_b)} and {between(under_a)}; each is the difference of two"
        f" cases. Under A {text_of(row.busy_us)} µs hold the event loop{cpu}, {text_of(row.wait_us)} are a wait, and"
        f" {text_of(row.blocking)} of five layers are told to block without working. Time on the processor is no wait"
        f" for a disk: ours go to a file of at most {MOST_WRITTEN / 1e6:g} MB, just written, which the system can keep"
        f" in memory. Theirs, for {row.case.clients} clients at a time, may have waited for a disk, or had another file"
        " system or a slower machine: requests per second cannot tell which."
    )


def sleep_reason(rows: Rows) -> str | None:
    """Explain how concurrent clients hide sleeps."""
    parts = [f"{name}: {slept(row)}, published {row.case.us:.0f}" for name, row in rows.items() if row.case.slept_s]
    if not parts:
        return None
    return (
        "A layer that sleeps does not hold the event loop. A request lasts as long as its sleeps, but with many clients"
        " at a time these overlap: the time per request falls to this length divided by the number of clients, unless"
        f" the busy time and the server need more. {'. '.join(parts)}."
    )


def slept(row: Row) -> str:
    """Describe the result of a case whose layers sleep."""
    clients = row.case.clients
    if row.us is None:
        slept_us = 1e6 * row.case.slept_s
        return (
            f"too slow for an interval in {row.case.max_time_s:g} s, and only its {text_of(row.objects)} objects and"
            f" {text_of(row.tasks)} tasks are counted; the sleeps alone take {slept_us:.0f} µs,"
            f" {slept_us / clients:.0f} at least with {clients} clients"
        )
    busy = f", {row.busy_us:.0f} of them busy" if row.busy_us is not None else ""
    return f"{row.us.estimate:.0f} µs{busy}; {row.us.estimate / clients:.0f} at least with {clients} clients"


def header_reason(rows: Rows) -> str | None:
    """Explain the figures of decorators and pure layers that add a header."""
    names = ("1 decorator, process time", "decorator and subclass", "1 pure, process time", "2 pure, process time")
    added_us = [added(rows, name) for name in names]
    if None in added_us:
        return None
    published = ", ".join(f"{CASES[name].published:.0f}" for name in names)
    return (
        f"Headers in one and two task layers, and in one and two pure ones, were published with {published} µs; ours"
        f" take {', '.join(figure(us) for us in added_us if us is not None)}. That a pure layer costs less than nothing"
        " shows what the published runs can tell."
    )


def buffer_reason(rows: Rows) -> str | None:
    """Explain the figures of a decorator and of buffering."""
    decorator, buffering = added(rows, "1 decorator, nothing"), added(rows, "1 pure, buffering")
    if decorator is None or buffering is None:
        return None
    return (
        f"Buffering was published with {CASES['1 pure, buffering'].published:.0f} µs, ours takes {buffering:.2f}: the"
        f" published one is the difference of two runs of {CASES['blog'].us:.0f} and"
        f" {CASES['1 pure, buffering'].us:.0f} µs. The decorator's {CASES['1 decorator, nothing'].published:.0f}"
        f" compare with our {decorator:.0f}."
    )


def auth_reason(rows: Rows) -> str | None:
    """Explain the saving by rewriting the auth layer."""
    before, after = added(rows, "CORS, auth B"), added(rows, "CORS, auth A")
    if before is None or after is None:
        return None
    old, new = rows["CORS, auth B"], rows["CORS, auth A"]
    published = published_us("CORS, auth B", "CORS, auth A")
    return (
        f"Rewriting the auth layer saved {published:.0f} µs per request as published and {before - after:.0f} in ours:"
        f" {before:.0f} µs for both layers before and {figure(after)} after,"
        f" {text_of(old.objects)} and {text_of(new.objects)} objects. One whole request over the other is"
        f" {text_of(quotient(old.case.us, new.case.us), '.2f')} as published, with a server's share in both, and"
        f" {text_of(quotient(old.total_us, new.total_us), '.2f')} in ours, without one."
    )


def intermediate_reason(rows: Rows) -> str | None:
    """Explain the objects and tasks that a pass through the auth layer creates."""
    old, new = rows.get("CORS, auth B"), rows.get("CORS, auth A")
    if old is None or new is None or old.objects is None or new.objects is None:
        return None
    tasks = (old.tasks or 0.0) - (new.tasks or 0.0)
    return (
        f"The text counts {INTERMEDIATE} intermediate objects and tasks for a pass through the auth layer that it"
        f" rewrote; in ours the rewriting saves {old.objects - new.objects:.0f} objects, of every type and however"
        f" soon they are gone, and {tasks:.0f} task{'s' * (tasks != 1)}."
    )


def record_reason(rows: Rows) -> str | None:
    """Explain the cost of serialisation."""
    parts = []
    for name in ("FastAPI", "Starlette", "Litestar"):
        own_rows = [rows.get(f"records, {name}, {how}") for how in ("plain", "ready")]
        us = [row.total_us for row in own_rows if row is not None and row.total_us is not None]
        if len(us) == 2:
            parts.append(f"{name} {us[0] / 1000:.1f} ms plain and {us[1] / 1000:.1f} ready")
    if not parts:
        return None
    return (
        f"{len(RECORDS)} records: {'; '.join(parts)}. What a framework adds to the plain data is its conversion before"
        " it is written as JSON; the layers have no part in it, and it stands in the row (endpoint). The published work"
        " also fetched from a server, and its payload was another; both make its ratio another one."
    )


def fetch_reason(rows: Rows) -> str | None:
    """Explain the cost of a client per request."""
    names = ("fetch, client per request", "fetch, shared client")
    us = [rows[name].total_us for name in names if name in rows and rows[name].total_us is not None]
    if len(us) < 2:
        return None
    return (
        f"A request with a client of its own takes {us[0] / 1000:.2f} ms and one with a shared client"
        f" {us[1] / 1000:.2f}, {us[0] / us[1]:.1f} times as much; the published work, which fetched more than once a"
        f" request and from another server, {text_of(quotient(*(CASES[name].seconds for name in names)), '.1f')} times."
        " A new httpx client builds an SSL context with the certificates that it trusts, though ours fetches over plain"
        " http, and it has no open connection yet; a shared one has both. What either takes is not timed apart. The"
        " same cost is a smaller part of a longer request; how long the published requests were, and what their release"
        " of httpx did for a client, the text's seconds do not tell."
    )


REASONS: Sequence[Callable[[Rows], str | None]] = (
    pure_reason,
    task_reason,
    file_reason,
    sleep_reason,
    header_reason,
    buffer_reason,
    auth_reason,
    intermediate_reason,
    record_reason,
    fetch_reason,
)


def added(rows: Rows, name: str) -> float | None:
    """Return our figure for the layers of a case, None if unknown."""
    row = rows.get(name)
    return row.us.estimate if row is not None and row.us is not None else None


def extra_us(rows: Rows, name: str, base: str) -> Estimate | None:
    """Subtract the layers of two cases. The interval of the difference holds if both intervals hold."""
    more, less = (rows[key].us if key in rows else None for key in (name, base))
    return None if more is None or less is None else more + Estimate(-less.estimate, -less.high, -less.low)


def between(us: Estimate) -> str:
    """Format an estimate and its interval."""
    return f"{figure(us.estimate)} ({figure(us.low)} … {figure(us.high)})"


def published_us(name: str, base: str) -> float:
    """Subtract the published µs per request of two cases."""
    return (CASES[name].us or 0.0) - (CASES[base].us or 0.0)


if __name__ == "__main__":
    main(__file__, __doc__, measure, report, worker)
