"""Does `load` state what load generators measure? Requests per second with and without a layer, and published cases.

    python bench/load.py [--quick] [--json PATH [--append]] [--part N] [--seconds N] [--processes N]

The settings are those of `server.py`: FastAPI's hello world without and with one more layer, at concurrency 1, 100 and
1,000, on asyncio and on uvloop, under wrk (keep-alive) and ab (a connection for each request). The truth is the drop in
requests per second that wrk and ab measure, as in `server.py`: pairs of bursts at two apps, one with the layer and one
without. For each of the settings, `load` states the share of the requests per second that the layer costs, in fresh
processes: one for each process of the truth, right after it, with connections that are kept alive beside wrk, and with
a connection for each request beside ab. The share is the mean of the processes, between the lowest and the highest end
of their intervals. The goal counts settings where the load generator knows the drop to 10 %.

The published cases are those of `published.py` that state requests per second. Their apps stand behind `load` with the
number of clients of the text. The fourth text's apps before and after are the story of a proxy, of which the text also
states the median of the latency. The published figures were taken on other machines and with other versions, so only
ratios compare: what share of its requests per second an app loses to its layers.

Parts: 1 the settings on asyncio, 2 those on uvloop, 3 the published cases; without --part all of them. With --append
the readings of PATH are kept, and the report is of all.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from statistics import fmean
from typing import Any

import published
import server
from harness import Goal, Reading, Report, Table, fresh_process, main

from pytest_mwbudget.asgi import loops
from pytest_mwbudget.asgi.request import build_request
from pytest_mwbudget.config.settings import Settings, Under
from pytest_mwbudget.engine import measure as measured
from pytest_mwbudget.model.estimate import Estimate
from pytest_mwbudget.model.results import LoopName, Measurement
from pytest_mwbudget.timing.looks import Environment

# The goal: this share of the settings within CLOSE_SHARE of the truth.
GOAL_SHARE = 0.9
SECONDS, PROCESSES = 10, 2
# The ordinary measurement before the load: no figure of the report comes from it.
ORDINARY_S = 0.5


@dataclass(frozen=True)
class Size:
    """The size of a run: the truth's plan, the seconds of each load, and the published cases."""

    plan: server.Plan
    seconds: float
    cases: Sequence[str]


def cases_under_load() -> list[str]:
    """Return the published cases that state requests per second."""
    return [name for name, case in published.CASES.items() if case.us is not None]


QUICK = Size(
    replace(server.QUICK, layers=("BaseHTTPMiddleware",), concurrencies=(10,), process_s=0.0),
    0.5,
    ("CORS, auth B", "CORS, auth A"),
)


# ---- fresh processes --------------------------------------------------------------------------------------------


def worker(role: str, loop: LoopName = "asyncio", **arguments: Any) -> Any:
    """Run one role of a fresh process: serve or measure as `server.py` does, or measure under load."""
    if role == "load":
        return loops.run(loop, lambda: of_layer(**arguments))
    if role == "case":
        return asyncio.run(of_case(**arguments))
    return server.worker(role, loop=loop, **arguments)


async def of_layer(layer: str, clients: int, closing: bool, seconds: float) -> Reading:
    """Measure a layer under load: its share of the requests per second."""
    headers = server.headers() | ({"Connection": "close"} if closing else {})
    found = await under_load(server.hello(layer), clients, seconds, headers)
    kind, _ = server.LAYERS[layer]
    own = found.layer(kind.__name__).load
    assert own is not None
    share = None if own.share is None else [own.share.estimate, own.share.low, own.share.high]
    return {"share": share, "method": own.method, **whole(found)}


async def of_case(case: str, seconds: float) -> Reading:
    """Measure a published case under load."""
    with tempfile.TemporaryDirectory() as folder:
        app = published.CASES[case].make(published.Place(Path(folder) / "written"))
        return whole(await under_load(app, published.CASES[case].clients, seconds, {}))


async def under_load(app: Any, clients: int, seconds: float, headers: dict[str, str]) -> Measurement:
    """Measure an app under load."""
    settings = Settings(load=Under(clients), load_time_s=seconds, max_time_s=ORDINARY_S)
    return await measured(app, build_request("GET", "/", {"headers": headers}), settings, Environment())


def whole(found: Measurement) -> Reading:
    """Return the figures of the whole app."""
    load = found.load
    assert load is not None
    return {
        "rps": load.rps.estimate,
        "p50_ms": load.p50_ms.estimate,
        "p99_ms": load.p99_ms.estimate,
        "rounds": load.rounds,
        "quiet": load.quiet,
        "busy": load.busy,
    }


# ---- measure ----------------------------------------------------------------------------------------------------


def measure(quick: bool, part: int = 0, seconds: int = SECONDS, processes: int = PROCESSES) -> list[Reading]:
    """Take the truth and what `load` states of it, and the published cases."""
    size = QUICK if quick else Size(replace(server.FULL, processes=processes), float(seconds), cases_under_load())
    chosen: tuple[LoopName, ...] = size.plan.loops
    if part in (1, 2):
        chosen = (server.FULL.loops[part - 1],)
    readings: list[Reading] = []
    if part != 3:
        readings += of_settings(replace(size, plan=replace(size.plan, loops=chosen)))
    if part in (0, 3):
        readings += of_cases(size, 1 if quick else processes)
    return readings


def of_settings(size: Size) -> list[Reading]:
    """Take the truth of each setting, then what `load` states."""
    plan, calm = size.plan, server.Calm()
    generators = [name for name in server.PACKAGES if shutil.which(name) is not None]
    readings: list[Reading] = [
        {"kind": "skipped", "generator": name} for name in server.PACKAGES if name not in generators
    ]
    settings = [(layer, loop) for loop in plan.loops for layer in plan.layers]
    for _ in range(plan.processes):
        for layer, loop in random.sample(settings, len(settings)):
            brief = replace(plan, max_time_s=ORDINARY_S)
            readings += server.of_process(brief, generators, layer, loop, calm)
            with server.awake(server.cores()):
                for generator in generators:
                    for concurrency in plan.concurrencies:
                        about: dict[str, Any] = {"layer": layer, "loop": loop}
                        asked = {"clients": concurrency, "closing": generator == "ab", "seconds": size.seconds}
                        found = fresh_process(__file__, role="load", **about, **asked)
                        about |= {"generator": generator, "concurrency": concurrency}
                        readings.append({"kind": "load", **about, **found})
    return readings


def of_cases(size: Size, processes: int) -> list[Reading]:
    """Measure the published cases, each in fresh processes."""
    readings: list[Reading] = []
    with server.awake(server.cores()):
        for _ in range(processes):
            for case in random.sample(size.cases, len(size.cases)):
                found = fresh_process(__file__, role="case", case=case, seconds=size.seconds)
                readings.append({"kind": "case", "case": case, **found})
    return readings


# ---- report -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stated:
    """A setting: what the load generator measured, and the share that `load` states, None if it states none."""

    row: server.Row
    share: Estimate | None
    rps: float

    @property
    def off(self) -> float:
        """The error of the stated share, as a share of the measured drop."""
        assert self.share is not None
        return self.share.estimate / self.row.drop.estimate - 1

    @property
    def judged(self) -> bool:
        """Whether the load generator knows the drop well enough."""
        return self.row.tells and self.share is not None

    @property
    def close(self) -> bool:
        """Whether the stated share is within CLOSE_SHARE of the measured drop."""
        return abs(self.off) <= server.CLOSE_SHARE


def report(readings: list[Reading]) -> Report:
    """Report the settings for wrk and ab, the goal, and the published cases."""
    settings = list(stated(readings))
    tables = [
        table(name, own) for name in server.PACKAGES if (own := [one for one in settings if one.row.generator == name])
    ]
    notes = [server.skipped_note(one["generator"]) for one in readings if one["kind"] == "skipped"]
    goals = [goal(settings)] if settings else []
    cases = [one for one in readings if one["kind"] == "case"]
    if cases:
        tables += [table_of_cases(cases), story(cases)]
        notes.append(
            "The share of a text's layers is 1 less the ratio of its requests per second with and without the layers."
        )
    return Report(tables, goals, notes)


def stated(readings: list[Reading]) -> Iterator[Stated]:
    """Yield the settings that have quiet pairs."""
    for row in server.rows_of([*readings, *placeholders(readings)]):
        key = (row.layer, row.loop, row.generator, row.concurrency)
        own = [
            one
            for one in readings
            if one["kind"] == "load" and (one["layer"], one["loop"], one["generator"], one["concurrency"]) == key
        ]
        known = [one["share"] for one in own if one["share"] is not None]
        if own:
            yield Stated(row, mean_of(known) if known else None, fmean(one["rps"] for one in own))


def placeholders(readings: list[Reading]) -> Iterator[Reading]:
    """Yield figures of the ordinary measurement, which is brief here, where it has none."""
    for layer, loop in {(one["layer"], one["loop"]) for one in readings if one["kind"] == "ours"}:
        yield {"kind": "ours", "layer": layer, "loop": loop, "us": [0.0, 0.0, 0.0], "suspensions": 0, "turn_us": 0.0}


def mean_of(shares: Sequence[Sequence[float]]) -> Estimate:
    """Return the mean of the processes, between the lowest and the highest end of their intervals."""
    estimates, lows, highs = zip(*shares, strict=True)
    return Estimate(fmean(estimates), min(lows), max(highs))


def table(generator: str, settings: Sequence[Stated]) -> Table:
    """Write the table of one load generator."""
    title = f"{generator}: the drop in requests per second, and the share that load states"
    head = ["layer", "loop", "clients", "pairs", "RPS", "drop", "interval", "load", "interval", "off"]
    return Table(title, head, [cells(one) for one in settings])


def cells(one: Stated) -> list[str]:
    """Write the cells of a setting."""
    share = one.share
    return [
        *server.measured_cells(one.row),
        "-" if share is None else f"{share.estimate:.1%}",
        "-" if share is None else interval(share),
        f"{one.off:+.0%}" if one.judged else "not known well enough",
    ]


def interval(found: Estimate) -> str:
    """Write an interval of shares."""
    return f"{found.low:.1%} … {found.high:.1%}" if isfinite(found.half_width) else "too few"


def goal(settings: Sequence[Stated]) -> Goal:
    """Judge how many shares are close to the measured drop."""
    judged = [one for one in settings if one.judged]
    near = [one for one in judged if one.close]
    found = f"{len(near)} of {len(judged)} settings"
    if judged:
        found += server.spread([(one.off, one.row) for one in judged])
    return Goal(
        "the share that load states within 10 % of the drop that wrk and ab measure in nine of ten settings that they"
        " know to 10 %",
        found,
        bool(judged) and len(near) >= GOAL_SHARE * len(judged),
    )


def table_of_cases(cases: Sequence[Reading]) -> Table:
    """Write the published cases beside load's requests per second."""
    body = []
    for name in published.CASES:
        own = [one for one in cases if one["case"] == name]
        if not own:
            continue
        case = published.CASES[name]
        rps = fmean(one["rps"] for one in own)
        based = [one for one in cases if one["case"] == case.base]
        shares = ["", ""]
        if based and case.base is not None:
            theirs = 1 - (published.CASES[case.base].us or 0.0) / (case.us or 1.0)
            shares = [f"{theirs:.0%}", f"{1 - rps / fmean(one['rps'] for one in based):.0%}"]
        assert case.us is not None
        spread = f"{min(one['rps'] for one in own):.0f} … {max(one['rps'] for one in own):.0f}"
        body.append([name, f"{case.text}", f"{case.clients}", f"{1e6 / case.us:.0f}", f"{rps:.0f}", spread, *shares])
    head = ["case", "text", "clients", "RPS published", "RPS", "of the processes", "share published", "share"]
    return Table("Published cases in requests per second, and the share that goes with their layers", head, body)


# The fourth text's medians of latency, in milliseconds.
PUBLISHED_P50_MS = {"CORS, auth B": 21, "CORS, auth A": 13}


def story(cases: Sequence[Reading]) -> Table:
    """Write the story of the proxy before and after, beside what its text states."""
    body = []
    for name, said_ms in PUBLISHED_P50_MS.items():
        own = [one for one in cases if one["case"] == name]
        if own:
            rps, p50_ms = (fmean(one[key] for one in own) for key in ("rps", "p50_ms"))
            us = published.CASES[name].us or 0.0
            body.append([name, f"{1e6 / us:.0f}", f"{rps:.0f}", f"{said_ms} ms", f"{p50_ms:.0f} ms"])
    if len(body) == len(PUBLISHED_P50_MS):
        ratios = [float(body[1][column]) / float(body[0][column]) for column in (1, 2)]
        body.append(["after over before", *(f"{one:.2f}" for one in ratios), "", ""])
    head = ["case", "RPS published", "RPS", "P50 published", "P50"]
    return Table("The proxy's story: before and after, 1,000 clients", head, body)


if __name__ == "__main__":
    main(__file__, __doc__ or "", measure, report, worker, part=0, seconds=SECONDS, processes=PROCESSES)
