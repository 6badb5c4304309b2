"""False alarms: six real layers with budgets from 0.7 to 1.3 times their true cost, beside busy neighbours.

    python bench/verdicts.py [--quick] [--runs N] [--traced N] [--json PATH]

Six layers stand in one stack: outermost a `BaseHTTPMiddleware`, then in an order drawn for each process CORS, GZip that
compresses, a process-time header, a request id and a fixed piece of work of about 25 µs. A run is one measurement with
the default settings and a budget for every layer. Runs come in blocks of six. In four runs of a block the budgets are
0.7, 0.85, 1.15 and 1.3 times the true cost. In the other two they are 0.95 and 1.05 times the true cost: these are hard
to decide, and on their own they do not hold up the others. In a block every layer has every ratio once, so N runs give
N verdicts for each ratio in each condition. The conditions take turns within a process. Each run knows the machine's
speed as pytest's cache would tell it in a process of its own: from measurements of the same app before the first block.
In the condition "first run" it knows nothing.

The true cost is taken in the same process without any probe of ours, while no neighbour runs, before the first run and
between blocks of runs. It is the time that a layer itself takes in its place, which is what its row means: the layer
stands between two layers that read the clock when a call or a message passes them, and the time between the two with
the layer, less the time without it, is its cost. It is the median over pairs of blocks of requests, one with the layer
and one without it, in random order. Between two requests the bench does what a measurement does there, for as long:
after other work, caches are warmer or colder, and the layers cost up to 8 % less or more (docs/decisions/0018). A
request counts only if a fixed piece of work ran at full speed before and after it, and a pair only if enough of its
requests count. Each block begins with requests that do not count, until CPython has specialised the calls again.
Removing a layer saves more than it takes itself, because it leaves cold caches to others; a table shows how much.

A layer outside of a `BaseHTTPMiddleware` pays for the cold caches in its own row. There the true cost is too noisy to
judge by, so the `BaseHTTPMiddleware` stands outermost, and this bench says nothing about layers outside of one. A
budget is set from the true cost as known by then, and judged against the true cost as known in the end. If that does
not give the ratio to one part in twenty-five, the verdict is left out.

With `--traced N` the runs have coverage's tracer in their own thread and in N waiting threads of a pool: on CPython
3.12 and 3.13 each traced thread slows all code down. The true cost is taken without the tracer.

A false fail is a fail at 1.05 times the true cost or more: in the end, or at an earlier look at which a run with this
budget alone would have ended, even if a later look took it back. The time to a verdict is the time of the first look
from which the verdict stood; a run goes on until all six verdicts are known.
"""

from __future__ import annotations

import asyncio
import math
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import pairwise, product
from statistics import median
from typing import Any
from unittest.mock import patch
from uuid import uuid4

from harness import Goal, Reading, Report, Table, fresh_process, main, neighbours, per_cent
from known import WARM_CALLS, Clocked, Noop, samplers, take
from starlette.datastructures import MutableHeaders
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware

from pytest_mwbudget import engine as plugin_measure
from pytest_mwbudget.analysis import verdicts
from pytest_mwbudget.analysis.intervals import batched_interval, quickest
from pytest_mwbudget.analysis.samples import Series
from pytest_mwbudget.asgi import server
from pytest_mwbudget.asgi.request import build_request, template_of
from pytest_mwbudget.config.budgets import Budgets
from pytest_mwbudget.config.settings import Settings
from pytest_mwbudget.interpreter.foreign_tools import suspended
from pytest_mwbudget.model.estimate import Estimate
from pytest_mwbudget.model.quantities import BETWEEN_RUNS
from pytest_mwbudget.model.results import Measurement, Verdict
from pytest_mwbudget.timing.host_speed import Machine
from pytest_mwbudget.timing.looks import Environment, Timing
from pytest_mwbudget.timing.sampler import Sampler

# Budgets as ratios to the true cost. A run uses the ratios of one group.
FAR, NEAR = (0.7, 0.85, 1.15, 1.3), (0.95, 1.05)
RATIOS = tuple(sorted(FAR + NEAR))
# The condition without any earlier knowledge of the machine.
FIRST = "first run"
# For each neighbour, the seconds that it repeatedly spins and sleeps.
CONDITIONS: dict[str, tuple[tuple[float, float], ...]] = {
    FIRST: (),
    "idle": (),
    "one busy neighbour": ((1.0, 0.0),),
    "two busy neighbours": ((1.0, 0.0), (1.0, 0.0)),
    "bursts": ((0.2, 0.5),),
    "comes and goes": ((4.0, 3.0),),
}
VERDICTS = ("pass", "fail", "undecided")
# More runs than GOAL_VERDICTS needs, because some verdicts are left out.
PROCESSES, RUNS, RUNS_IN_BLOCK = 3, 108, len(RATIOS)
# A pair is a block of requests with the layer and one without it.
SETTLE_CALLS, BLOCK_CALLS = 32, 32
# A block counts if at least QUICK_CALLS requests ran at the machine's best speed, within the factor QUIET. The speed of
# a request is that of the slower of two references, which is slower than a typical one.
QUICK_CALLS, QUIET = 8, 1.07
# A verdict counts if the ratio of its budget to the truth is known to this share.
KNOWN_SHARE = 0.04
ALPHA = 0.01  # of the truth's interval
# Before the first block, at most RUNS_BEFORE measurements look for the machine's best speed. The factor AT_ITS_BEST
# allows for other work, which slows the reference workload by up to 10 %; a noisy neighbour slows it by about 60 %.
RUNS_BEFORE, AT_ITS_BEST = 10, 1.15
FEWEST_PAIRS = 16
GOAL_VERDICTS, GOAL_DECIDED = 1500, 0.95
# The end of the reason if the row of a layer and what leaving the layer out saves disagree.
CONTRADICTED = "[contradicted]"
# Parts of the reasons for undecided verdicts, with short descriptions for the report.
REASONS = {
    "from run to run": "above the budget by no more than runs differ",
    "the interval": "the interval holds the budget",
    "slower than at its best": "the machine ran slower than at its best",
    CONTRADICTED: "the row and what leaving the layer out saves disagree",
    "too few requests": "too few requests",
    "detection limit": "the budget is below the detection limit",
}


@dataclass(frozen=True)
class Size:
    """The size of a process: its blocks, and seconds of truth before the first block and before each block."""

    blocks: int
    conditions: tuple[str, ...] = tuple(CONDITIONS)
    warm_calls: int = WARM_CALLS
    first_truth_s: float = 60.0
    truth_s: float = 5.0
    max_time_s: float = Settings().max_time_s


QUICK = Size(1, ("idle", "bursts"), first_truth_s=3.0, truth_s=1.0, max_time_s=0.5)


# ---- the layers ------------------------------------------------------------------------------------------------------


class PassThrough(BaseHTTPMiddleware):
    """A layer that only runs the app in a task."""

    async def dispatch(self, request: Any, call_next: Any) -> Any:
        return await call_next(request)


class ProcessTime(Noop):
    """Add the time of the response as a header."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        begin = time.perf_counter()

        async def timed(message: Any) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["x-process-time"] = f"{time.perf_counter() - begin:.6f}"
            await send(message)

        await self.app(scope, receive, timed)


class Work(Noop):
    """Compute for about 25 µs: a fixed amount of work, not a fixed time, so that a slower machine takes longer."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        total = 0
        for number in range(700):
            total += number
        await self.app(scope, receive, send)


class RequestId(Noop):
    """Give each request an id, in its state and in a header."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        scope["state"]["request_id"] = request_id = str(uuid4())

        async def named(message: Any) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        await self.app(scope, receive, named)


BODY = b",".join(b'{"id": %d, "name": "user %d"}' % (number, number * 7919 % 1000) for number in range(40))
HEADERS = [(b"content-type", b"application/json"), (b"content-length", str(len(BODY)).encode())]
REQUEST = {"headers": {"origin": "http://elsewhere", "accept-encoding": "gzip"}}


async def endpoint(scope: Any, receive: Any, send: Any) -> None:
    """Answer at once, with about a kilobyte."""
    await send({"type": "http.response.start", "status": 200, "headers": list(HEADERS)})
    await send({"type": "http.response.body", "body": BODY})


TASK_LAYER = "PassThrough"
LAYERS: dict[str, Callable[[Any], Any]] = {
    "CORSMiddleware": lambda app: CORSMiddleware(app, allow_origins=["http://elsewhere"], allow_credentials=True),
    "GZipMiddleware": lambda app: GZipMiddleware(app, minimum_size=500),
    TASK_LAYER: PassThrough,
    "ProcessTime": ProcessTime,
    "RequestId": RequestId,
    "Work": Work,
}


class Stack:
    """The layers under a no-op: the task layer outermost, the others in random order.

    `link` can place a layer between two of `Clocked`, and leave it out there. The task layer has only the inner one,
    because nothing but the server is outside.
    """

    def __init__(self, chance: random.Random) -> None:
        others = [name for name in LAYERS if name != TASK_LAYER]
        names = [TASK_LAYER, *chance.sample(others, len(others))]
        self.layers = {name: LAYERS[name](endpoint) for name in names}
        self.root = Noop(endpoint)
        self.outer = {name: Clocked(endpoint) for name in others}
        self.inner = {name: Clocked(endpoint) for name in names}
        self.link()

    def link(self, clocked: str | None = None, *, without: bool = False) -> None:
        """Make each layer call the next one. The `clocked` layer stands between its clocks, or is left out there."""
        chain: list[Any] = [self.root]
        for name, layer in self.layers.items():
            if name == clocked:
                chain += filter(None, (self.outer.get(name), None if without else layer, self.inner[name]))
            else:
                chain.append(layer)
        for outer, inner in pairwise([*chain, endpoint]):
            outer.app = inner

    def own_ns(self, name: str, whole_ns: float) -> float:
        """Return the time between the clocks of a layer in the latest request, which took `whole_ns`."""
        outer = self.outer.get(name)
        return (outer.inside_ns if outer else whole_ns) - self.inner[name].inside_ns


# ---- the truth -------------------------------------------------------------------------------------------------------


@dataclass
class Truth:
    """The true cost of each layer, from pairs of blocks of requests with and without the layer.

    `pairs` have what a layer takes itself, `whole` have whole requests.
    """

    stack: Stack
    call: server.Caller
    chance: random.Random
    sampler: Sampler
    pairs: dict[str, list[tuple[Series, Series]]] = field(default_factory=lambda: {name: [] for name in LAYERS})
    whole: dict[str, list[tuple[Series, Series]]] = field(default_factory=lambda: {name: [] for name in LAYERS})

    async def take(self, seconds: float) -> None:
        """Add pairs for this number of seconds, at least one for each layer. Every second pair is of the task layer."""
        end = time.monotonic() + seconds
        with suspended():
            while True:
                for name in LAYERS:
                    await self._pair(name)
                    if name != TASK_LAYER:
                        await self._pair(TASK_LAYER)
                if time.monotonic() >= end:
                    return

    async def _pair(self, name: str) -> None:
        blocks = {}
        for without in self.chance.sample([False, True], 2):
            self.stack.link(name, without=without)
            blocks[without] = await self._block(name)
        self.stack.link()
        (own, whole), (own_without, whole_without) = blocks[False], blocks[True]
        self.pairs[name].append((own, own_without))
        self.whole[name].append((whole, whole_without))

    async def _block(self, name: str) -> tuple[Series, Series]:
        """Time a block of requests between the clocks of a layer and as a whole.

        Each request has the slower of the reference workloads before and after.
        """
        for _ in range(SETTLE_CALLS):
            await self.call()
        own, whole = Series(), Series()

        async def request() -> float:
            elapsed_ns = (await self.call()).elapsed_ns
            own_ns.append(self.stack.own_ns(name, elapsed_ns))
            return elapsed_ns

        own_ns: list[float] = []
        await take(whole, BLOCK_CALLS, request, self.sampler)
        for ns, pace in zip(own_ns, whole.reference, strict=True):
            own.add(ns, pace)
        return own, whole

    def us(self, name: str) -> Estimate:
        """Return the layer's true cost."""
        return self._median(name, self.pairs[name])

    def saved_us(self, name: str) -> float:
        """Return what removing the layer saves."""
        return self._median(name, self.whole[name]).estimate

    def _median(self, name: str, pairs: Sequence[tuple[Series, Series]]) -> Estimate:
        """Use the pairs at the best speed of the machine, or all if these are too few."""
        saved = list(differences(pairs, QUIET * self.quickest_ns(name)))
        if len(saved) < FEWEST_PAIRS:
            saved = list(differences(pairs, math.inf))
        saving_ns = batched_interval(saved, ALPHA)
        return Estimate(saving_ns.estimate / 1000, saving_ns.low / 1000, saving_ns.high / 1000)

    def quickest_ns(self, *names: str) -> float:
        """Return the fastest reference time during the pairs of these layers; of all layers if none is named."""
        every = [block for name in names or LAYERS for pair in self.pairs[name] for block in pair]
        return quickest([ns for block in every for ns in block.reference])


def differences(pairs: Sequence[tuple[Series, Series]], limit_ns: float) -> Iterator[float]:
    """Yield the median request with the layer less that without, for pairs with enough requests within `limit_ns`."""
    for pair in pairs:
        kept = [
            [ns for ns, pace in zip(series.values, series.reference, strict=True) if pace <= limit_ns]
            for series in pair
        ]
        if min(map(len, kept)) >= QUICK_CALLS:
            yield median(kept[0]) - median(kept[1])


# ---- the verdicts ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Look:
    """The verdicts by layer at one look of a run, `seconds` after the timing began.

    `last` says that the run would have ended here if no verdict were open, also with a failure.
    """

    seconds: float
    last: bool
    verdicts: dict[str, Verdict]


def watching(looks: list[Look]) -> type[Timing]:
    """Return a subclass of `Timing` that records every look."""

    class Watched(Timing):
        def _judge(self) -> verdicts.Look:
            look = super()._judge()
            layer_verdicts = {row.name: judged.verdict for row, _, judged in look.budgets}
            enough = look.precise or self.seconds >= self.schedule.precision_time_s
            looks.append(Look(self.seconds, enough and self.seconds >= self.patience_s, layer_verdicts))
            return look

    return Watched


def block(chance: random.Random) -> list[dict[str, float]]:
    """Draw ratios by layer for six runs, in random order: every layer has every ratio once."""
    runs = []
    for group in (FAR, NEAR):
        names = chance.sample(list(LAYERS), len(LAYERS))
        runs += [
            {name: group[(place + turn) % len(group)] for place, name in enumerate(names)} for turn in range(len(group))
        ]
    return chance.sample(runs, len(runs))


async def run(app: Any, bench: Environment, settings: Settings) -> list[Reading]:
    """Measure the app once. Returns a reading for the budget of each layer."""
    looks: list[Look] = []
    with patch.object(plugin_measure, "Timing", watching(looks)):
        measurement = await plugin_measure.measure(app, build_request("GET", "/", REQUEST), settings, bench)
    return [verdict_of(name, measurement, looks) for name in settings.budgets.layers]


def verdict_of(name: str, measurement: Measurement, looks: Sequence[Look]) -> Reading:
    """Return the verdict on a layer, when it became final, and whether it failed where the run could have ended.

    It did not fail if the run is undecided because leaving the layer out contradicts its row. A run that ends earlier
    leaves the layer out as well.
    """
    layer = measurement.layer(name)
    judged = layer.judged["us"]
    contradicted = CONTRADICTED in (judged.reason or "")
    stood_s = looks[-1].seconds
    for look in reversed(looks):
        if look.verdicts[name] != judged.verdict:
            break
        stood_s = look.seconds
    return {
        "layer": name,
        "budget_us": judged.bound,
        "verdict": judged.verdict,
        "reason": reason(judged.reason) if judged.verdict == "undecided" else None,
        "failed_once": not contradicted and any(look.verdicts[name] == "fail" for look in ends(name, looks)),
        "stood_s": stood_s,
        "estimate_us": layer.us and layer.us.estimate,
    }


def ends(name: str, looks: Sequence[Look]) -> Iterator[Look]:
    """Yield the looks where a failure of this layer alone would have ended the run, and the last look."""
    for before, look in pairwise(looks):
        if look.last and before.verdicts[name] == "fail":
            yield look
    yield looks[-1]


def worker(traced: int, **size: Any) -> list[Reading]:
    """Take all verdicts of one process."""
    with coverage_in(traced):
        return asyncio.run(process(Size(**size)))


@contextmanager
def coverage_in(threads: int) -> Iterator[None]:
    """Run under coverage's tracer in this thread and in this number of pool threads; 0 runs without coverage."""
    if not threads:
        yield
        return
    from coverage import Coverage

    coverage = Coverage(data_file=None)
    coverage.start()
    try:
        with ThreadPoolExecutor(threads) as pool:
            together = threading.Barrier(threads)  # forces one call into each thread of the pool
            list(pool.map(lambda _: together.wait(), range(threads)))
            yield
    finally:
        coverage.stop()


async def process(size: Size) -> list[Reading]:
    """Take the truth, then blocks with the conditions in random order, and more of the truth before each block."""
    chance = random.Random()
    stack = Stack(chance)
    call = server.Caller(stack.root, await template_of(build_request("GET", "/", REQUEST)), None)
    for _ in range(size.warm_calls):
        await call()
    with samplers() as noted:
        await run(stack.root, Environment(machine=Machine()), Settings(max_time_s=size.max_time_s))
    truth = Truth(stack, call, chance, noted[-1])
    await truth.take(size.first_truth_s)
    known_ns = await speed_ns(truth, size.max_time_s)
    readings: list[Reading] = []
    for _ in range(size.blocks):
        for condition in chance.sample(size.conditions, len(size.conditions)):
            await truth.take(size.truth_s)
            readings += await block_of(condition, truth, math.inf if condition == FIRST else known_ns, size.max_time_s)
    await truth.take(size.truth_s)
    known = {name: {**truth_of(truth.us(name)), "saved_us": truth.saved_us(name)} for name in LAYERS}
    return [{**reading, **known[reading["layer"]]} for reading in readings]


async def speed_ns(truth: Truth, max_time_s: float) -> float:
    """Measure the app until the machine has run at its best speed. Returns the best reference time seen."""
    machine = Machine()
    for _ in range(RUNS_BEFORE):
        await run(truth.stack.root, Environment(machine=machine), Settings(max_time_s=max_time_s))
        if machine.seen_ns <= AT_ITS_BEST * truth.quickest_ns():
            break
    return machine.best_ns


async def block_of(condition: str, truth: Truth, known_ns: float, max_time_s: float) -> list[Reading]:
    """Take the verdicts of one block of runs beside the condition's neighbours."""
    costs_us = {name: truth.us(name).estimate for name in LAYERS}
    readings = []
    with neighbours(*CONDITIONS[condition]):
        for ratios in block(truth.chance):
            budgets = Budgets(layers={name: {"us": ratio * costs_us[name]} for name, ratio in ratios.items()})
            bench = Environment(machine=Machine(known_ns))
            run_readings = await run(truth.stack.root, bench, Settings(budgets, max_time_s=max_time_s))
            readings += [
                {"condition": condition, "ratio": ratios[reading["layer"]], **reading} for reading in run_readings
            ]
    return readings


def truth_of(us: Estimate) -> Reading:
    """Convert a true cost to fields of a reading."""
    return {"truth_us": us.estimate, "truth_low_us": us.low, "truth_high_us": us.high}


def measure(quick: bool, runs: int = RUNS, traced: int = 0) -> list[Reading]:
    """Take the verdicts of all processes: at least `runs` for each condition, in whole blocks for each process."""
    processes = 1 if quick else PROCESSES
    size = QUICK if quick else Size(blocks=math.ceil(runs / processes / RUNS_IN_BLOCK))
    return [
        {"process": number, **reading}
        for number in range(processes)
        for reading in fresh_process(__file__, traced=traced, **asdict(size))
    ]


# ---- the report ------------------------------------------------------------------------------------------------------


def told(reading: Reading) -> bool:
    """Whether the truth gives the ratio of this budget to `KNOWN_SHARE`."""
    least, most = (reading["budget_us"] / reading[f"truth_{end}_us"] for end in ("high", "low"))
    return bool(reading["ratio"] * (1 - KNOWN_SHARE) <= least and most <= reading["ratio"] * (1 + KNOWN_SHARE))


def false_fail(reading: Reading) -> bool:
    """Whether a budget above the true cost failed at a look at which the run could have ended."""
    return bool(reading["ratio"] > 1 and reading["failed_once"])


def undecided(reading: Reading) -> bool:
    """Whether the verdict is undecided."""
    return bool(reading["verdict"] == "undecided")


def report(readings: list[Reading]) -> Report:
    """Report shares by condition and ratio, and by layer, the two goals, and notes on the amount of evidence."""
    known = [reading for reading in readings if told(reading)]
    kept = [reading for reading in known if reading["ratio"] > 1]
    far = [reading for reading in known if reading["ratio"] in FAR]
    return Report(
        [by_condition(readings, known), by_layer(readings, known)],
        [no_false_fail(kept), nearly_always_decided(far)],
        list(notes(readings, known, kept, far)),
    )


def by_condition(readings: Sequence[Reading], known: Sequence[Reading]) -> Table:
    """Count the verdicts for each condition and ratio."""
    rows = []
    for condition, ratio in product(CONDITIONS, RATIOS):
        own = [reading for reading in known if (reading["condition"], reading["ratio"]) == (condition, ratio)]
        taken = sum((reading["condition"], reading["ratio"]) == (condition, ratio) for reading in readings)
        if taken:
            shares = [per_cent(sum(reading["verdict"] == verdict for reading in own), len(own)) for verdict in VERDICTS]
            rows.append([condition, f"{ratio:g}", str(len(own)), *shares, *times(own), str(taken - len(own))])
    head = ["condition", "budget/truth", "verdicts", *VERDICTS, "median s", "95 % s", "apart"]
    return Table("Verdicts by condition and by the ratio of the budget to the true cost", head, rows)


def times(readings: Sequence[Reading]) -> list[str]:
    """Write the median and the 95 % quantile of the seconds to a verdict, without undecided verdicts."""
    seconds = sorted(reading["stood_s"] for reading in readings if not undecided(reading))
    if not seconds:
        return ["-", "-"]
    return [f"{median(seconds):.1f}", f"{seconds[math.ceil(0.95 * len(seconds)) - 1]:.1f}"]


def by_layer(readings: Sequence[Reading], known: Sequence[Reading]) -> Table:
    """Write the table by layer: true costs, errors of the rows on an idle and a busy machine, wrong verdicts."""
    rows = []
    for name in LAYERS:
        taken = [reading for reading in readings if reading["layer"] == name]
        own = [reading for reading in known if reading["layer"] == name]
        truths = [reading["truth_us"] for reading in taken]
        if truths:
            kept = [reading for reading in own if reading["ratio"] > 1]
            far = [reading for reading in own if reading["ratio"] in FAR]
            rows.append(
                [
                    name,
                    between(truths),
                    between([reading["saved_us"] for reading in taken]),
                    spread(
                        [
                            100 * (verdict["truth_high_us"] - verdict["truth_low_us"]) / 2 / verdict["truth_us"]
                            for verdict in taken
                        ]
                    ),
                    error([verdict for verdict in taken if not CONDITIONS[verdict["condition"]]]),
                    error([verdict for verdict in taken if CONDITIONS[verdict["condition"]]]),
                    f"{sum(map(false_fail, kept))} of {len(kept)}",
                    f"{sum(map(undecided, far))} of {len(far)}",
                ]
            )
    head = ["layer", "true µs", "removing saves", "known to ± %", "row off by %, idle", "busy", "false fails"]
    head.append("undecided beyond ±15 %")
    return Table("By layer: the median of how far its row was from the truth, and the middle nine tenths", head, rows)


def between(values_us: Sequence[float]) -> str:
    """Write the least and the most."""
    return f"{min(values_us):.2f} to {max(values_us):.2f}"


def error(readings: Sequence[Reading]) -> str:
    """Write the errors of the rows, in per cent of the truth."""
    rows = [reading for reading in readings if reading["estimate_us"] is not None]
    return spread([100 * (reading["estimate_us"] / reading["truth_us"] - 1) for reading in rows], sign="+")


def spread(values: Sequence[float], sign: str = "") -> str:
    """Write the median, and the range of the middle 90 % of the values."""
    ordered = sorted(values)
    if not ordered:
        return "-"
    tail = len(ordered) // 20
    return f"{median(ordered):{sign}.1f} ({ordered[tail]:{sign}.1f} to {ordered[-1 - tail]:{sign}.1f})"


def no_false_fail(kept: Sequence[Reading]) -> Goal:
    """Judge whether no budget above the true cost failed."""
    fails = sum(map(false_fail, kept))
    why_false = "Removing a layer saves more than it takes itself, and its row may lie between the two."
    return Goal(
        f"no false fail in {GOAL_VERDICTS:,} verdicts at 1.05 times the true cost and more",
        f"{fails} in {len(kept):,}",
        fails == 0 and len(kept) >= GOAL_VERDICTS,
        why_false if fails else f"{GOAL_VERDICTS:,} verdicts take {RUNS} runs in each condition.",
    )


def nearly_always_decided(far: Sequence[Reading]) -> Goal:
    """Judge whether nearly all budgets far from the truth got the right verdict, so that passing all is no success."""
    decided = sum(not undecided(reading) for reading in far)
    rightly = sum(right(reading) for reading in far)
    return Goal(
        f"the right verdict on more than {100 * GOAL_DECIDED:g} % of the budgets 15 % off the true cost or more",
        f"{per_cent(rightly, len(far))} of {len(far):,}, a verdict on {per_cent(decided, len(far))}",
        bool(far) and rightly > GOAL_DECIDED * len(far),
        f"A budget fails only if the whole interval is more than {100 * BETWEEN_RUNS:g} % above it, because a layer"
        " differs by some per cent from process to process (docs/decisions/0012).",
    )


def right(reading: Reading) -> bool:
    """Whether the verdict agrees with the truth."""
    return bool(reading["verdict"] == ("pass" if reading["ratio"] > 1 else "fail"))


def notes(
    readings: Sequence[Reading], known: Sequence[Reading], kept: Sequence[Reading], far: Sequence[Reading]
) -> Iterator[str]:
    """Yield notes: the number of verdicts, the wrong ones, and reasons for undecided ones."""
    conditions = len({reading["condition"] for reading in readings})
    processes = len({reading["process"] for reading in readings})
    yield (
        f"{len(readings):,} verdicts: {len(readings) // len(LAYERS) // (conditions or 1)} runs in each of {conditions}"
        f" conditions, of {len(LAYERS)} layers each, in {processes} fresh processes. {len(readings) - len(known):,} of"
        f" them stand apart, because the truth does not tell their ratio to {100 * KNOWN_SHARE:g} %."
    )
    apart = [verdict for verdict in readings if not told(verdict) and false_fail(verdict)]
    yield f"Among those apart, fails at 1.05 times what the truth seemed to be and more: {tally(apart)}."
    if kept and not any(map(false_fail, kept)):
        # The chance of a false fail that 95 % of such benches would have detected.
        chance = 1 - 0.05 ** (1 / len(kept))
        yield (
            f"No false fail in {len(kept):,} means, were they independent: the chance is below {100 * chance:.2g} %."
            " They are not: the six of a run share it, and what the method is wrong by is of one sign within a process."
        )
    for title, wrong in (
        ("False fails", [verdict for verdict in kept if false_fail(verdict)]),
        (
            "Passes at 0.85 times the true cost and less",
            [verdict for verdict in far if verdict["ratio"] < 1 and passed(verdict)],
        ),
        ("No verdict beyond ±15 %", [verdict for verdict in far if undecided(verdict)]),
    ):
        yield f"{title}: {tally(wrong)}."
    within = sum(reading["budget_us"] < reading["saved_us"] for reading in kept if false_fail(reading))
    if within:
        yield f"In {within} of the false fails, the budget is below what removing the layer saves."
    why = Counter(verdict["reason"] for verdict in far if undecided(verdict))
    if why:
        counted = ", ".join(f"{text} {count} times" for text, count in why.most_common())
        yield f"Reasons for no verdict beyond ±15 %: {counted}."


def passed(reading: Reading) -> bool:
    """Whether the verdict is a pass."""
    return bool(reading["verdict"] == "pass")


def tally(readings: Sequence[Reading]) -> str:
    """Write the number of readings by layer, ratio and condition."""
    counts = Counter(f"{reading['layer']} {reading['ratio']:g} ({reading['condition']})" for reading in readings)
    return ", ".join(f"{name} {count} times" for name, count in counts.most_common()) or "none"


def reason(said: str | None) -> str:
    """Return the short description of a reason for an undecided verdict."""
    return next((text for sign, text in REASONS.items() if said and sign in said), said or "no reason")


if __name__ == "__main__":
    main(__file__, __doc__, measure, report, worker, runs=RUNS, traced=0)
