"""Is what leaving a layer out saves, in place, what the app without that layer saves?

    python bench/savings.py [--quick] [--processes N] [--json PATH]

Each of N processes builds a stack of nine layers in random order: a no-op, spins of 5 and 200 µs, a layer that wraps
`send`, a closure, a `functools.partial`, CORS, GZip and a `BaseHTTPMiddleware` that passes everything through. It
measures the stack once, as a user would with -v, and so reads for each layer its row and what leaving it out saves.

The truth is taken in the same process after that, without any probe and without any trampoline: nine more apps are
built, each without one of the layers. Whole requests to the whole app and to each of the nine take turns, in the same
rounds of blocks and with the same work between two requests, for longer.

A layer costs others what its cold caches cost them. That is in what leaving it out saves, and not in its row.
"""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from statistics import median
from typing import Any
from unittest import mock

from accuracy import grouped
from harness import Goal, Reading, Report, Table, fresh_process, main, per_cent
from known import Endpoint, Noop, Spin, own
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware

from pytest_mwbudget import engine
from pytest_mwbudget.asgi.request import build_request
from pytest_mwbudget.config.settings import Settings
from pytest_mwbudget.model.results import Counts
from pytest_mwbudget.model.saves import Saves
from pytest_mwbudget.model.stack import EntryIndex, RowIndex
from pytest_mwbudget.timing import arms, savings
from pytest_mwbudget.timing.bypasses import Bypasses
from pytest_mwbudget.timing.host_speed import Machine
from pytest_mwbudget.timing.looks import Environment, Timed, Timing

PROCESSES = 20
MAX_TIME_S = 5.0
# Of the time limit, for the truth.
TRUTH_SHARE = 2.0


class WrapsSend(Noop):
    """Add a header to the response."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def wrapped(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"].append((b"x-request-id", b"1"))
            await send(message)

        await self.app(scope, receive, wrapped)


class PassThrough(BaseHTTPMiddleware):
    """Pass every request on."""

    async def dispatch(self, request: Any, call_next: Any) -> Any:
        return await call_next(request)


def closure(app: Any) -> Any:
    """Make a layer of a function that closes over the app."""

    async def layer(scope: Any, receive: Any, send: Any) -> None:
        await app(scope, receive, send)

    return layer


async def _bound(app: Any, scope: Any, receive: Any, send: Any) -> None:
    await app(scope, receive, send)


KINDS: dict[str, Any] = {
    "no-op": own(Noop),
    "spin 5 µs": functools.partial(own(Spin), us=5),
    "spin 200 µs": functools.partial(own(Spin), us=200),
    "wraps send": WrapsSend,
    "closure": closure,
    "functools.partial": lambda app: functools.partial(_bound, app),
    "CORS": functools.partial(CORSMiddleware, allow_origins=["*"]),
    "GZip": GZipMiddleware,
    "BaseHTTPMiddleware": PassThrough,
}


# ---- one process ------------------------------------------------------------------------------------------------


def built(kinds: list[str]) -> Any:
    """Build a stack of these kinds of layers, the first outermost."""
    app: Any = Endpoint()
    for kind in reversed(kinds):
        app = KINDS[kind](app)
    return app


async def rebuilt(timing: Timing, timed: Timed, kinds: list[str], share: float) -> list[Saves]:
    """Return what building the app without each of its layers saves. Takes this share of the time limit."""
    caller = timing.caller
    layers = [bounded.entry for bounded in timing.layers]
    whole, without = caller.app, {}
    for number, index in enumerate(layers):
        without[index] = built([*kinds[:number], *kinds[number + 1 :]])

    class Rebuilt(Bypasses):
        """Sends requests to another app in place of past a layer."""

        def __init__(self, stack: Any, inner_apps: Any) -> None:
            pass

        @contextmanager
        def installed(self) -> Iterator[None]:
            yield

        @contextmanager
        def without(self, *layers: EntryIndex) -> Iterator[None]:
            for index in layers:  # one, or none for requests with every layer
                caller.app = without[index]
            try:
                yield
            finally:
                caller.app = whole

    usual, timing.schedule = timing.schedule, replace(timing.schedule, savings_share=share)
    try:
        with mock.patch.object(arms, "Bypasses", Rebuilt):
            request_ns = timed.whole.estimate * 1000
            saves = await savings.Savings(timing, request_ns, timing.savings_ns, most_rounds=10**6).measured(layers)
    finally:
        timing.schedule = usual
    return [saves[index] for index in layers]


def worker(number: int, max_time_s: float, share: float) -> list[Reading]:
    """Take all readings of one process."""
    kinds = random.Random(number).sample(list(KINDS), len(KINDS))
    truths: list[Saves] = []

    async def with_truths(timing: Timing, timed: Timed, counts: Mapping[RowIndex, Counts]) -> Timed:
        compared = await savings.compared(timing, timed, counts)
        truths.extend(await rebuilt(timing, timed, kinds, share))
        return compared

    request = build_request("GET", "/", {"headers": {"origin": "http://elsewhere", "accept-encoding": "gzip"}})
    settings = Settings(max_time_s=max_time_s, lifespan=False)
    with mock.patch.object(engine, "compared", with_truths):
        environment = Environment(machine=Machine(), saves=True)
        measured = asyncio.run(engine.measure(built(kinds), request, settings, environment))
    readings = []
    for kind, row, truth in zip(kinds, measured.layers, truths, strict=True):
        known = row.saves
        if known is None or known.us is None or truth.us is None or row.us is None:
            readings.append({"kind": kind, "why": (known and known.why) or truth.why or "no row"})
        else:
            figures = {"low": known.us.low, "us": known.us.estimate, "high": known.us.high, "row_us": row.us.estimate}
            real = {"truth_low": truth.us.low, "truth_us": truth.us.estimate, "truth_high": truth.us.high}
            readings.append({"kind": kind, "why": None} | figures | real)
    return readings


# ---- all processes ----------------------------------------------------------------------------------------------


def measure(quick: bool, processes: int) -> list[Reading]:
    """Take the readings of all processes; quick: of one process, with little time."""
    sizes = [(0, 3.0, 0.3)] if quick else [(number, MAX_TIME_S, TRUTH_SHARE) for number in range(processes)]
    return [
        {"process": number, **reading}
        for number, max_time_s, share in sizes
        for reading in fresh_process(__file__, seed=number, number=number, max_time_s=max_time_s, share=share)
    ]


def error_us(reading: Reading) -> float:
    """Subtract the truth from the estimate."""
    return float(reading["us"] - reading["truth_us"])


def near(readings: list[Reading]) -> bool:
    """Whether the median error of readings of one kind is within 0.2 µs and 2 % of the truth."""
    return abs(median(map(error_us, readings))) <= 0.2 + 0.02 * median(reading["truth_us"] for reading in readings)


def holds(reading: Reading) -> bool:
    """Whether the interval holds the truth."""
    return bool(reading["low"] <= reading["truth_us"] <= reading["high"])


HEAD = ("", "readings", "row", "rebuilt saves", "bypass saves", "error", "± interval", "± truth", "holds truth")


def summary(kind: str, readings: list[Reading]) -> list[str]:
    """Write a row: medians in microseconds per request."""

    def typical(key: str) -> str:
        return f"{median(reading[key] for reading in readings):.2f}"

    return [
        kind,
        str(len(readings)),
        typical("row_us"),
        typical("truth_us"),
        typical("us"),
        f"{median(map(error_us, readings)):+.2f}",
        f"{median((reading['high'] - reading['low']) / 2 for reading in readings):.2f}",
        f"{median((reading['truth_high'] - reading['truth_low']) / 2 for reading in readings):.2f}",
        per_cent(sum(map(holds, readings)), len(readings)),
    ]


def report(every: list[Reading]) -> Report:
    """Report errors and coverage by kind of layer."""
    readings = [reading for reading in every if reading["why"] is None]
    kinds = sorted(grouped(readings, "kind").items(), key=lambda item: list(KINDS).index(item[0]))
    close = [kind for kind, own in kinds if near(own)]
    held = sum(map(holds, readings))
    goals = [
        Goal(
            "|median error| <= 0.2 µs + 2 % for every kind of layer",
            f"{len(close)} of {len(KINDS)} kinds",
            len(close) == len(KINDS),
            "Savings are differences of whole requests, which vary by more than the goal from process to process.",
        ),
        Goal(
            "at least 99 % of the intervals hold the truth, as they state",
            f"{per_cent(held, len(readings))} of {len(readings)} intervals",
            bool(readings) and held >= 0.99 * len(readings),
        ),
    ]
    reasons = sorted({reading["why"] for reading in every if reading["why"] is not None})
    missing = f"{len(every) - len(readings)} of {len(every)} readings have no figure"
    return Report(
        [Table("By layer, µs per request", HEAD, [summary(*item) for item in kinds])],
        goals,
        [f"{missing}{': ' if reasons else ''}{'; '.join(reasons)}."],
    )


if __name__ == "__main__":
    main(__file__, __doc__ or "", measure, report, worker, processes=PROCESSES)
