"""What a user would use instead: six other ways to ask what each layer of an app costs, against ours.

    python bench/peers.py [--quick] [--json PATH]

The packages: `pip install -e . --group bench` (pip 25.1 or newer).

The app is a FastAPI hello-world with six layers: spins of 50 and 5 µs, a no-op, Starlette's CORS and GZip, and a
`BaseHTTPMiddleware` that passes through. Every way is a file in `bench/ways`, as a user would write it. Its lines of
code are counted without docstrings, comments, empty lines and the app itself.

Each run of each way has a fresh process with its own hash seed, and the ways take turns. First the process takes the
true costs, in interleaved whole requests without any tool: for the three real layers through the app with the layer and
without it, for the spins and the no-op through a small stack with one more of them and without. Leaving a real layer
out saves more than it takes itself, because other code then finds warmer caches; so our rows, which are what a layer
takes itself, are below this truth. Then the way has as much time as ours took in a run at the beginning: the seconds of
the measurement itself, without the start of pytest. Cuts and stubs share that time equally. The calibration of
pytest-benchmark comes on top, and so does the start of pytest, for pytest-benchmark and for ours; the third table has
the whole time of both. Spread is half the range of ten runs, in brackets the interquartile range. The goal applies to
both, because a single bad run determines the first and hides in the second. Error is the distance from the true cost of
the same process: the median, in brackets the worst. The time that a way adds to a request is the difference between
whole requests with and without the tool, in the same process.

The cuts under pytest-benchmark are made the cheapest way: requests by hand, without a client. They have a quarter of
the time, the time, and four times the time. The question is a gate for the whole app, in which every layer has a budget
of 1.3 times its cost. The verdict of the cuts counts as known from the least time at which their spread is no more than
the distance to the budget, whatever their bias. Ours is known when the measurement says so, in a run with these budgets
and the default limit of five seconds; warming up and counting are part of its time. A layer without our verdict in half
of the runs counts as not sooner at all. A gate for one layer alone would need two of the seven cuts, two sevenths of
their time.
"""

from __future__ import annotations

import ast
import asyncio
import importlib
import itertools
import json
import os
import random
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter, perf_counter_ns
from typing import Any
from unittest.mock import patch

import httpx
import pytest
from harness import Goal, Reading, Report, Table, fresh_process, main
from known import Endpoint, Noop, at_best_speed, caller, cost, own
from ways.app import HEADERS, LAYERS, NAMES, Spin5, Spin50, make_app

from pytest_mwbudget.analysis.samples import BlankLayers
from pytest_mwbudget.analysis.verdicts import Look
from pytest_mwbudget.analysis.witness import in_doubt
from pytest_mwbudget.asgi import server
from pytest_mwbudget.asgi.discovery import discover
from pytest_mwbudget.asgi.request import build_request
from pytest_mwbudget.config.budgets import Budgets
from pytest_mwbudget.config.settings import Settings
from pytest_mwbudget.engine import measure as measure_app
from pytest_mwbudget.model.results import Measurement
from pytest_mwbudget.timing import looks as timing
from pytest_mwbudget.timing.host_speed import Machine, reference_ns
from pytest_mwbudget.timing.looks import Environment
from pytest_mwbudget.timing.probes import Probes
from pytest_mwbudget.timing.schedule import Schedule

WAYS_DIRECTORY = Path(__file__).parent / "ways"
OURS, BENCHMARK = "budgets_mwbudget", "cuts_pytest_benchmark"

RUNS = 10
TRUTH_ROUNDS, TRUTH_CALLS, TRUTH_WARM_CALLS, TRUTH_S = 150, 5, 500, 0.5
ADDED_CALLS = 150
# The budget of each layer, as a multiple of its true cost. The spread must be below the difference.
BUDGET = 1.3
# A budget that every layer keeps, so that the run lasts until the table is precise.
GENEROUS_US = 1000.0
VERDICT_TIME_S = 5.0
# The share of the full effort for the truth in a quick run.
QUICK_EFFORT = 0.1
# Time of the cuts, as multiples of the time that ours takes. Every other way gets 1.
LADDER = (0.25, 1.0, 4.0)
SPREAD_GOAL, SOONER_GOAL = 30.0, 10.0


@dataclass(frozen=True)
class Way:
    """A way to measure layers. `answers` describes the result for a layer."""

    title: str
    answers: str


WAYS = {
    OURS: Way("pytest-mwbudget", "each layer, with interval and verdict"),
    BENCHMARK: Way("pytest-benchmark, cuts", "each layer, as a difference"),
    "cuts_httpx": Way("httpx and means, cuts", "each layer, as a difference"),
    "isolated": Way("a layer round a stub", "each layer, in another place"),
    "spans_sentry": Way("Sentry's spans", "each layer's span less those inside"),
    "spans_opentelemetry": Way("OpenTelemetry's spans", "no layer: the request, and each message"),
    "samples_pyinstrument": Way("pyinstrument", "each layer, as a share of samples"),
}
# The ways that add work to a request. The others only call the app.
ADDING = (OURS, "cuts_httpx", "spans_sentry", "spans_opentelemetry", "samples_pyinstrument")


def lines_of(way: str) -> int:
    """Count the lines of code of the way's file, without docstrings, comments and empty lines."""
    source = (WAYS_DIRECTORY / f"{way}.py").read_text(encoding="utf-8")
    tree = ast.parse(source)
    docstrings: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            docstrings.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = enumerate(source.splitlines(), 1)
    return sum(bool(line.strip()) and not line.lstrip().startswith("#") and n not in docstrings for n, line in lines)


# ---- the truth ------------------------------------------------------------------------------------------------------


async def truth_us(effort: float) -> dict[str, float]:
    """Measure the true cost of each layer in this process, without any tool, in microseconds."""
    seconds = TRUTH_S * effort
    machine = Machine()
    costs = {kind.__name__: await cost(own(kind), Endpoint(), seconds, machine) for kind in (Noop, Spin5, Spin50)}
    added = {name: layer_cost.us.estimate for name, layer_cost in costs.items()}
    return {**added, **await removed_us([name for name in NAMES if name not in added], effort)}


async def removed_us(real: list[str], effort: float) -> dict[str, float]:
    """Measure the saving of removing each of these layers, with interleaved whole requests."""
    rounds, warm_calls = round(TRUTH_ROUNDS * effort), round(TRUTH_WARM_CALLS * effort)
    without = {name: tuple(layer for layer in LAYERS if layer[0].__name__ != name) for name in NAMES}
    calls = {name: await caller(make_app(without[name]), warm_calls) for name in real}
    calls[""] = await caller(make_app(), warm_calls)
    saved: dict[str, list[float]] = {name: [] for name in real}
    references = []
    for _ in range(rounds):
        reference = reference_ns(perf_counter_ns)
        taken_us = {name: await typical_us(calls[name]) for name in random.sample([*calls], len(calls))}
        for name in real:
            saved[name].append(taken_us[""] - taken_us[name])
        references.append(max(reference, reference_ns(perf_counter_ns)))
    kept = at_best_speed(references)
    return {name: median(itertools.compress(values, kept)) for name, values in saved.items()}


async def typical_us(call: server.Caller) -> float:
    """Return the median time of `TRUTH_CALLS` requests after a first one."""
    return median([(await call()).elapsed_ns for _ in range(1 + TRUTH_CALLS)][1:]) / 1000


# ---- the ways -------------------------------------------------------------------------------------------------------


def run_pytest(way: str, *options: str) -> None:
    """Run the way's tests without this project's configuration, as a user would."""
    file = str(WAYS_DIRECTORY / f"{way}.py")
    isolated = ["-c", os.devnull, f"--rootdir={WAYS_DIRECTORY}", "-p", "no:cacheprovider", "-p", "no:asyncio"]
    status = pytest.main([file, "-q", *isolated, *options])
    if status != pytest.ExitCode.OK:
        raise RuntimeError(f"{way}: pytest ended with status {status}")


def ask(way: str, seconds: float) -> dict[str, float]:
    """Measure each layer in one way within the given time; ours takes the time it needs. Returns µs by name."""
    with tempfile.TemporaryDirectory() as directory:
        result_path = Path(directory) / "found.json"
        if way == OURS:
            run_pytest(way, "--mw-budget", f"--mw-budget-json={result_path}")
            layers = json.loads(result_path.read_text(encoding="utf-8"))["measurements"][0]["layers"]
            return {layer["name"]: layer["us"]["estimate"] for layer in layers if layer["us"]}
        module = importlib.import_module(f"ways.{way}")
        if way == BENCHMARK:
            share = seconds / (len(LAYERS) + 1)
            options = ("--benchmark-disable-gc", "--benchmark-quiet", f"--benchmark-max-time={share}")
            run_pytest(way, f"--benchmark-json={result_path}", *options)
            return dict(module.layers_us(result_path))
        return dict(asyncio.run(module.layers_us(seconds)))


Request = Callable[[], Awaitable[Any]]


@asynccontextmanager
async def with_tool(way: str) -> AsyncIterator[Request]:
    """Yield a function that makes a request while the way's tool is active."""
    if way == "cuts_httpx":
        transport = httpx.ASGITransport(make_app())
        async with httpx.AsyncClient(transport=transport, base_url="http://testserver", headers=HEADERS) as client:
            yield lambda: client.get("/")
        return
    if way == OURS:
        async with probed(await caller(make_app(), ADDED_CALLS)) as request:
            yield request
        return
    module = importlib.import_module(f"ways.{way}")
    if way == "samples_pyinstrument":
        with module.Profiler(async_mode="disabled"):
            yield await caller(make_app(), ADDED_CALLS)
    elif way == "spans_sentry":
        module.begin()
        yield await caller(make_app(), ADDED_CALLS)
    else:
        yield await caller(module.traced()[0], ADDED_CALLS)


@asynccontextmanager
async def probed(call: server.Caller) -> AsyncIterator[Request]:
    """Yield a function that makes a request as in our timing: with every probe and a null layer."""
    stack = await discover(call)
    probes = Probes(stack, call.clock, suspending=True)

    async def request() -> None:
        await call(probes.watch)
        probes.read()

    with probes.installed(probes.probed), probes.doubled(probes.probed[0], BlankLayers(1)):
        yield request


async def request_us(request: Request) -> float:
    """Return the median time of a whole request, timed from outside."""
    taken_us = []
    for _ in range(2 * ADDED_CALLS):
        begin = perf_counter()
        await request()
        taken_us.append((perf_counter() - begin) * 1e6)
    return median(taken_us[ADDED_CALLS:])


async def bare_us() -> float:
    """Time a whole request without any tool."""
    return await request_us(await caller(make_app(), ADDED_CALLS))


async def tooled_us(way: str) -> float:
    """Time a whole request with the way's tool active."""
    async with with_tool(way) as request:
        return await request_us(request)


# ---- readings -------------------------------------------------------------------------------------------------------


def worker(kind: str, way: str = OURS, seconds: float = 0.0, effort: float = 1.0) -> Reading:
    """Take one reading: 'run' (a way, and the truth), 'ladder' (the cuts), 'verdicts' or 'time' (ours)."""
    if kind == "time":
        return {"seconds": measured_s(Budgets({"us": GENEROUS_US}))}
    if kind == "verdicts":
        return verdicts(effort)
    # The truth first, because a tool may leave the classes of the app changed.
    truth = asyncio.run(truth_us(effort)) if kind == "run" else {}
    before_us = asyncio.run(bare_us()) if kind == "run" and way in ADDING else None
    begin = perf_counter()
    layers_us = ask(way, seconds)
    taken_s = perf_counter() - begin
    added_us = None if before_us is None else asyncio.run(tooled_us(way)) - before_us
    return {"us": layers_us, "truth_us": truth, "seconds": taken_s, "given_s": seconds, "added_us": added_us}


def measured_s(budgets: Budgets) -> float:
    """Return the seconds of our measurement: warming up, counting, timing."""
    begin = perf_counter()
    measured(budgets)
    return perf_counter() - begin


def measured(budgets: Budgets, schedule: Schedule = Schedule()) -> Measurement:  # noqa: B008
    """Measure the app with ours and these budgets."""
    request = build_request("GET", "/", {"headers": HEADERS})
    settings = Settings(budgets=budgets, max_time_s=VERDICT_TIME_S)
    return asyncio.run(measure_app(make_app(), request, settings, Environment(schedule=schedule)))


def verdicts(effort: float) -> Reading:
    """Return each layer's verdict, and the seconds until the verdict was known."""
    truth = asyncio.run(truth_us(effort))
    known: dict[str, float] = {}

    class Watched(timing.Timing):
        """A `Timing` that records when the verdict on each layer is known."""

        def _judge(self) -> Look:
            look = super()._judge()
            for row in look.rows:
                if any(judged.verdict == "undecided" for judged in row.judged.values()):
                    known.pop(row.name, None)
                else:
                    known.setdefault(row.name, perf_counter() - begin)
            return look

    budgets = Budgets(layers={name: {"us": BUDGET * us} for name, us in truth.items()})
    with patch("pytest_mwbudget.engine.Timing", Watched):
        begin = perf_counter()
        measurement = measured(budgets, Schedule(precision_time_s=0.0))
        end_s = perf_counter() - begin
    layers = {name: measurement.layer(name) for name in NAMES}
    # A verdict in doubt is known once requests without the layer are compared with its row.
    known |= {name: end_s for name in known if name in layers and in_doubt(layers[name], layers[name].counts)}
    layer_verdicts = {name: str(layer.verdict) for name, layer in layers.items()}
    return {
        "truth_us": truth,
        "verdicts": layer_verdicts,
        "seconds": {n: s for n, s in known.items() if n in layer_verdicts},
    }


def measure(quick: bool) -> list[Reading]:
    """Take all readings. A first run of ours sets the time of all ways, which then take turns."""
    effort = QUICK_EFFORT if quick else 1.0
    seconds = 0.5 if quick else fresh_process(__file__, kind="time")["seconds"]
    tasks: list[tuple[float, dict[str, Any]]] = [(1.0, {"kind": "run", "way": way}) for way in WAYS]
    if not quick:
        tasks += [(share, {"kind": "ladder", "way": BENCHMARK}) for share in LADDER if share != 1.0]
    tasks.append((1.0, {"kind": "verdicts"}))
    readings = []
    for run in range(1 if quick else RUNS):
        for share, task in random.sample(tasks, len(tasks)):
            reading = fresh_process(__file__, **task, seconds=share * seconds, effort=effort)
            readings.append({**task, "run": run, "share": share, **reading})
    lines = [{"kind": "lines", "way": way, "lines": lines_of(way)} for way in WAYS]
    return readings + lines


# ---- what it means --------------------------------------------------------------------------------------------------


def report(readings: list[Reading]) -> Report:
    """Report spread, error, cost and answers of each way, the verdicts, and the goals."""
    by_way = {way: [r for r in readings if r["kind"] == "run" and r["way"] == way] for way in WAYS}
    present = {way: taken for way, taken in by_way.items() if taken}
    runs = min((len(taken) for taken in present.values()), default=0)
    spread = [
        (WAYS[way].title, *(spread_cell(values(taken, name)) for name in NAMES)) for way, taken in present.items()
    ]
    error = [(WAYS[way].title, *(error_cell(errors(taken, name)) for name in NAMES)) for way, taken in present.items()]
    tables = [
        Table(f"Spread over {runs} runs, µs: half the range (interquartile range)", ("way", *NAMES), spread),
        Table("Error, µs: median (worst)", ("way", *NAMES), [truth_row(present), *error]),
        cost_table(present, {r["way"]: r["lines"] for r in readings if r["kind"] == "lines"}),
    ]
    ours = [reading for reading in readings if reading["kind"] == "verdicts"]
    gates = gate_rows(ours, [r for r in readings if r.get("way") == BENCHMARK and r["kind"] in ("run", "ladder")])
    if gates:
        tables.append(gate_table(gates, ours))
    goals = [*spread_goals(present), *sooner_goals(gates)]
    return Report(tables, goals, [*nameless(present)])


def values(taken: list[Reading], name: str) -> list[float]:
    """Return the figures of a way for a layer, run by run."""
    return [reading["us"][name] for reading in taken if name in reading["us"]]


def errors(taken: list[Reading], name: str) -> list[float]:
    """Return the errors of these figures against the truth of their process."""
    return [reading["us"][name] - reading["truth_us"][name] for reading in taken if name in reading["us"]]


def half_range(found: list[float]) -> float:
    """Return half the range."""
    return (max(found) - min(found)) / 2


def interquartile_range(found: list[float]) -> float:
    """Return the interquartile range."""
    low, _, high = quantiles(found, n=4, method="inclusive")
    return high - low


def spread_cell(found: list[float]) -> str:
    """Write half the range and the interquartile range; a dash for a single run."""
    return f"± {half_range(found):.2f} ({interquartile_range(found):.2f})" if len(found) > 1 else "-"


def error_cell(found: list[float]) -> str:
    """Write the median error and the worst."""
    return f"{median(found):+.2f} ({max(found, key=abs):+.2f})" if found else "-"


def truth_row(present: dict[str, list[Reading]]) -> tuple[str, ...]:
    """Write the median true cost of each layer over all processes."""
    truths = [reading["truth_us"] for taken in present.values() for reading in taken]
    return ("(truth)", *(f"{median(truth[name] for truth in truths):.2f}" if truths else "-" for name in NAMES))


def cost_table(present: dict[str, list[Reading]], lines: dict[str, int]) -> Table:
    """Write the table of cost and answers of each way."""
    rows = []
    for way, taken in present.items():
        added = [reading["added_us"] for reading in taken if reading["added_us"] is not None]
        rows.append(
            (
                WAYS[way].title,
                f"{median(reading['seconds'] for reading in taken):.2f}",
                f"{median(added):+.0f}" if added else "-",
                str(lines.get(way, "-")),
                WAYS[way].answers,
            )
        )
    return Table("What it takes, and what it answers", ("way", "seconds", "µs a request", "lines", "answers"), rows)


def nameless(present: dict[str, list[Reading]]) -> list[str]:
    """Write a note for each way whose figures name no layer."""
    notes = []
    for way, taken in present.items():
        spans = dict.fromkeys(name for reading in taken for name in reading["us"] if name not in NAMES)
        if spans and not any(values(taken, name) for name in NAMES):
            figures = ", ".join(f"`{span}` {median(values(taken, span)):.1f} µs" for span in spans)
            notes.append(f"{WAYS[way].title} name no layer. They show: {figures}.")
    return notes


def spread_goals(present: dict[str, list[Reading]]) -> list[Goal]:
    """Compare our spread with that of the cuts; no goals without two runs of both."""
    ours, cuts = present.get(OURS, []), present.get(BENCHMARK, [])
    both = [name for name in NAMES if min(len(values(ours, name)), len(values(cuts, name))) > 1]
    if not both:
        return []
    goals = []
    for measure_of, words in ((half_range, "half the range"), (interquartile_range, "interquartile range")):
        times = {name: ratio(measure_of(values(cuts, name)), measure_of(values(ours, name))) for name in both}
        typical = median(times.values())
        goals.append(
            Goal(
                f"in the same time at least {SPREAD_GOAL:g} times less spread ({words}) than cuts under"
                f" pytest-benchmark, at the typical layer",
                f"{typical:.0f} times; by layer {listed(times)}",
                typical >= SPREAD_GOAL,
                "Between processes our rows of 5 µs and more differ by up to 3 %; the row of PassThrough, which"
                " suspends, differs at least as much as by the cuts.",
            )
        )
    return goals


def ratio(more: float, less: float) -> float:
    """Divide; infinity if `less` is 0, when runs agree to the last digit."""
    return more / less if less else float("inf")


def listed(times: dict[str, float]) -> str:
    """Write the ratio of each layer."""
    return ", ".join(f"{name} {value:.1f}" for name, value in times.items())


@dataclass(frozen=True)
class Gate:
    """The seconds until the verdict on a layer's budget is known. `cuts_s` None: not within `longest_s`."""

    layer: str
    ours_s: float | None
    cuts_s: float | None
    longest_s: float

    @property
    def sooner(self) -> float | None:
        """The least factor by which ours is sooner; None if ours lacks a verdict in half of the runs."""
        return None if self.ours_s is None else (self.cuts_s or self.longest_s) / self.ours_s


def gate_rows(ours: list[Reading], cuts: list[Reading]) -> list[Gate]:
    """Compare the time to each layer's verdict; empty without readings of both."""
    rungs = [[r for r in cuts if r["share"] == share] for share in sorted({r["share"] for r in cuts})]
    rungs = [rung for rung in rungs if len(rung) > 1]
    if not ours or not rungs:
        return []
    longest_s = rungs[-1][0]["given_s"]
    rows = []
    for name in NAMES:
        margin_us = (BUDGET - 1) * median(reading["truth_us"][name] for reading in ours)
        known = [reading["seconds"][name] for reading in ours if reading["verdicts"][name] == "pass"]
        rows.append(
            Gate(
                name,
                median(known) if 2 * len(known) > len(ours) else None,
                told_s(rungs, name, margin_us),
                longest_s,
            )
        )
    return rows


def told_s(rungs: list[list[Reading]], name: str, margin_us: float) -> float | None:
    """Return the least time from which on the cuts vary by at most the margin; None if no time is enough."""
    least_s: float | None = None
    for rung in reversed(rungs):
        if half_range(values(rung, name)) > margin_us:
            break
        least_s = rung[0]["given_s"]
    return least_s


def gate_table(gates: list[Gate], ours: list[Reading]) -> Table:
    """Write the table of seconds to the verdict, and of our verdicts."""
    rows = []
    for gate in gates:
        truth_us = median(reading["truth_us"][gate.layer] for reading in ours)
        our_verdicts = [reading["verdicts"][gate.layer] for reading in ours]
        rows.append(
            (
                gate.layer,
                f"{BUDGET * truth_us:.2f}",
                "-" if gate.ours_s is None else f"{gate.ours_s:.2f}",
                ", ".join(f"{our_verdicts.count(verdict)} {verdict}" for verdict in dict.fromkeys(our_verdicts)),
                f"{gate.cuts_s:.2f}" if gate.cuts_s else f"> {gate.longest_s:.1f}",
                "-" if gate.sooner is None else f"{'' if gate.cuts_s else '> '}{gate.sooner:.1f}",
            )
        )
    head = ("layer", "budget µs", "ours, s", "our verdicts", "cuts, s", "times sooner")
    return Table(f"A verdict on budgets at {BUDGET:g} times the cost", head, rows)


def sooner_goals(gates: list[Gate]) -> list[Goal]:
    """Judge how much sooner the typical verdict is known. A layer without our verdict counts as 0 times."""
    if not gates:
        return []
    times = {gate.layer: gate.sooner or 0.0 for gate in gates}
    typical = median(times.values())
    mute = [gate.layer for gate in gates if gate.ours_s is None]
    without = f"; ours had no verdict on {', '.join(mute)}" if mute else ""
    return [
        Goal(
            f"a verdict at least {SOONER_GOAL:g} times sooner than by cuts under pytest-benchmark, at the typical"
            f" layer",
            f"at least {typical:.1f} times; by layer {listed(times)}{without}",
            typical >= SOONER_GOAL,
            "Warming up, counting and the first look take about a second, and the cuts need only three for some layers."
            " A layer that suspends takes ours longer, and a Noop is too cheap for a verdict.",
        )
    ]


if __name__ == "__main__":
    main(__file__, __doc__, measure, report, worker)
