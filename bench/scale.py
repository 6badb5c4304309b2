"""What a measurement costs: against depth, a slow or noisy handler, large responses, a long session.

    python bench/scale.py [--quick] [--json PATH]

Every reading is taken in a fresh process. The process measures a stack of cheap layers, each with a budget of 20 µs,
twice: until every verdict is known, and until the table is as precise as a user gets it. Seconds are those of the whole
measurement: warming up, counting and timing. The columns give the median of three processes, except for the slowest.

*Depth*: 1 to 100 no-ops above an endpoint that answers at once. *Handler*: a spin of 5 µs above an endpoint that
computes for 1, 5 and 20 ms; that waits for 1, 5 and 20 ms; that computes for 1, 5 and 20 ms in the median, with
log-normal noise (sigma 0.4). A verdict above a slow handler takes longer than above a fast one, because each request
does. So the table also gives the number of requests of a verdict, and their time. The time limit is raised to 30 s, so
that it hides nothing. *Size*: the same spin above a response of up to 10 MB, in one message and in pieces of 64 KiB.
*Session*: one process measures the same app 30 times and keeps every result, as the plugin does in a test run.

Memory is the growth of the process's peak resident size during the measurements, including the app's own responses.
"""

from __future__ import annotations

import asyncio
import resource
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter
from typing import Any

from harness import Goal, Reading, Report, Table, fresh_process, main
from known import Endpoint, Noop, Spin, own, start

from pytest_mwbudget.asgi.request import build_request
from pytest_mwbudget.config.budgets import Budgets
from pytest_mwbudget.config.settings import Settings
from pytest_mwbudget.engine import measure as measure_app
from pytest_mwbudget.model.results import Measurement
from pytest_mwbudget.timing.looks import Environment

BUDGET_US = 20.0
CHEAP_US = 5.0
# Long enough for every verdict, so that the table shows the time that a verdict needs.
MAX_TIME_S = 30.0
PIECE_BYTES = 65536
NOISE = 0.4

FAST = "fast"
DEPTHS = (1, 5, 20, 50, 100)
HANDLER_MS = (1, 5, 20)
HANDLERS = (FAST, *(f"{kind} {ms} ms" for kind in ("CPU", "waits", "noisy") for ms in HANDLER_MS))
SIZES = (FAST, *(f"{how} {size}" for how in ("whole", "streamed") for size in ("100 kB", "1 MB", "10 MB")))
SESSION_REQUESTS = 30
PROCESSES = 3
UNITS = {"kB": 1000, "MB": 1000**2}

# Limits of the goals: time relative to 5 layers, and requests relative to a fast handler.
DEPTH_GOAL, HANDLER_GOAL = 2.0, 2.0


# ---- the apps -------------------------------------------------------------------------------------------------------


def noops(depth: int) -> Any:
    """Make a stack of `depth` layers that do nothing, each with its own code object."""
    app: Any = Endpoint()
    for _ in range(depth):
        app = own(Noop)(app)
    return app


def handler(name: str) -> Any:
    """Make a cheap layer above the endpoint of that name."""
    kind, _, rest = name.partition(" ")
    ms = int(rest.removesuffix(" ms") or 0)
    if kind == "waits":
        return Spin(waiting(ms / 1000), CHEAP_US)
    return Spin(Endpoint(median_us=ms * 1000, noise=NOISE if kind == "noisy" else 0.0), CHEAP_US)


def waiting(seconds: float) -> Any:
    """Make an endpoint that waits."""

    async def endpoint(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(seconds)
        await send(start())
        await send({"type": "http.response.body", "body": b"ok"})

    return endpoint


def sized(name: str) -> Any:
    """Make a cheap layer above a response of that size, whole or streamed."""
    if name == FAST:
        return Spin(Endpoint(), CHEAP_US)
    how, number, unit = name.split()
    body = bytes(int(number) * UNITS[unit])
    step = PIECE_BYTES if how == "streamed" else len(body)
    pieces = [body[at : at + step] for at in range(0, len(body), step)]

    async def endpoint(scope: Any, receive: Any, send: Any) -> None:
        await send(start())
        for piece in pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    return Spin(endpoint, CHEAP_US)


@dataclass(frozen=True)
class Part:
    """A part of the bench: `app` makes an app for each of `values`, or of the values `quick` in a quick run."""

    title: str
    column: str
    app: Callable[[Any], Any]
    values: tuple[Any, ...]
    quick: tuple[Any, ...]


def parts() -> dict[str, Part]:
    """Return the parts by their name in the readings."""
    return {
        "depth": Part("Depth: no-ops above a fast endpoint", "layers", noops, DEPTHS, (5, 100)),
        "handler": Part(f"Handler: a spin of {CHEAP_US:g} µs above it", "handler", handler, HANDLERS, HANDLERS[:2]),
        "size": Part(
            f"Size of the response: a spin of {CHEAP_US:g} µs above it", "response", sized, SIZES, (FAST, SIZES[-1])
        ),
    }


# ---- taking the time --------------------------------------------------------------------------------------------


def measured(app: Any, environment: Environment, *, precise: bool) -> tuple[float, Measurement]:
    """Return seconds and result of a measurement. Unless `precise`, it ends once every verdict is known."""
    request = build_request("GET", "/", {})
    settings = Settings(budgets=Budgets({"us": BUDGET_US}), max_time_s=MAX_TIME_S)
    schedule = environment.schedule if precise else replace(environment.schedule, precision_time_s=0.0)
    begin = perf_counter()
    measurement = asyncio.run(measure_app(app, request, settings, replace(environment, schedule=schedule)))
    return perf_counter() - begin, measurement


def peak_mib() -> float:
    """Return the peak resident size of this process in MiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1024**2 if sys.platform == "darwin" else peak / 1024


def worker(part: str, value: Any) -> Reading:
    """Take the reading of one process."""
    return session(value) if part == "session" else both(parts()[part], value)


def both(part: Part, value: Any) -> Reading:
    """Measure an app until the verdicts are known, then until the table is precise: seconds, requests, memory."""
    app = part.app(value)
    before_mib = peak_mib()
    verdict_s, verdict = measured(app, Environment(), precise=False)
    table_s, table = measured(app, Environment(), precise=True)
    assert verdict.effort is not None
    assert verdict.books is not None
    assert table.effort is not None
    return {
        "verdict_s": verdict_s,
        "timing_s": verdict.effort.seconds,
        "requests": verdict.effort.requests,
        "request_us": verdict.books.total.estimate,
        "verdict": str(verdict.verdict),
        "table_s": table_s,
        "table_requests": table.effort.requests,
        "grown_mib": peak_mib() - before_mib,
    }


def session(requests: int) -> Reading:
    """Measure an app repeatedly in one process: seconds and peak memory of each measurement."""
    app, bench, kept, seconds, peaks = handler(FAST), Environment(), [], [], []
    for _ in range(requests):
        taken_s, measurement = measured(app, bench, precise=False)
        kept.append(measurement)
        seconds.append(taken_s)
        peaks.append(peak_mib())
    return {"verdicts": [str(measurement.verdict) for measurement in kept], "seconds": seconds, "peak_mib": peaks}


def measure(quick: bool) -> list[Reading]:
    """Take all readings. The values of a part take turns, so that a slow stretch does not hit a single value."""
    readings = []
    for name, part in parts().items():
        values = part.quick if quick else part.values
        for _ in range(1 if quick else PROCESSES):
            readings += [
                {"part": name, "value": value, **fresh_process(__file__, part=name, value=value)} for value in values
            ]
    requests = 3 if quick else SESSION_REQUESTS
    readings.append({"part": "session", "value": requests, **fresh_process(__file__, part="session", value=requests)})
    return readings


# ---- what it means --------------------------------------------------------------------------------------------------


def report(readings: list[Reading]) -> Report:
    """Report a table for each part, and the two goals."""
    tables = [table(part, taken) for name, part in parts().items() if (taken := rows_of(readings, name))]
    tables += [session_table(reading) for reading in readings if reading["part"] == "session"]
    goals = [
        *depth_goals(rows_of(readings, "depth")),
        *handler_goals(rows_of(readings, "handler")),
    ]
    notes = [
        "Least that a verdict can take: warming up (1000 requests or 0.3 s), counting (29 requests or a second), and a"
        " first look of 64 to 128 requests with their companions. `timing / request` is the time of the timing alone,"
        " in requests of this app.",
        *depth_notes(rows_of(readings, "depth")),
    ]
    return Report(tables, goals, notes)


def rows_of(readings: list[Reading], part: str) -> dict[Any, list[Reading]]:
    """Return the readings of a part by value."""
    by_value: dict[Any, list[Reading]] = {}
    for reading in readings:
        if reading["part"] == part:
            by_value.setdefault(reading["value"], []).append(reading)
    return by_value


def typical(taken: list[Reading], key: str) -> float:
    """Return the median over processes."""
    return float(median(reading[key] for reading in taken))


def table(part: Part, rows: dict[Any, list[Reading]]) -> Table:
    """Write a line for each value: medians over its processes, and the slowest verdict."""
    head = (
        part.column, "request µs", "s to verdict", "slowest", "requests", "timing / request", "s to table", "grown MiB",
        "verdicts",
    )  # fmt: skip
    lines = [
        (
            str(value),
            f"{typical(taken, 'request_us'):.1f}",
            f"{typical(taken, 'verdict_s'):.2f}",
            f"{max(reading['verdict_s'] for reading in taken):.2f}",
            f"{typical(taken, 'requests'):.0f}",
            f"{median(in_requests(reading) for reading in taken):.0f}",
            f"{typical(taken, 'table_s'):.2f}",
            f"{typical(taken, 'grown_mib'):.1f}",
            verdicts([reading["verdict"] for reading in taken]),
        )
        for value, taken in rows.items()
    ]
    return Table(part.title, head, lines)


def in_requests(reading: Reading) -> float:
    """Return the duration of the timing, in requests of the app without probes."""
    return float(reading["timing_s"] * 1e6 / reading["request_us"])


def verdicts(found: list[str]) -> str:
    """Write the number of each verdict."""
    return ", ".join(f"{found.count(verdict)} {verdict}" for verdict in dict.fromkeys(found))


def session_table(reading: Reading) -> Table:
    """Write the table of seconds and memory in a session."""
    seconds, peaks = reading["seconds"], reading["peak_mib"]
    third = max(1, len(seconds) // 3)
    later = len(peaks) - third
    rows = [
        ("s to verdict, first third", f"{median(seconds[:third]):.2f}"),
        ("s to verdict, last third", f"{median(seconds[-third:]):.2f}"),
        ("s in all", f"{sum(seconds):.1f}"),
        ("peak MiB after the first", f"{peaks[0]:.1f}"),
        ("peak MiB after the last", f"{peaks[-1]:.1f}"),
        (
            "MiB a measurement, after the first third",
            f"{(peaks[-1] - peaks[third - 1]) / later:.3f}" if later else "-",
        ),
        ("verdicts", verdicts(reading["verdicts"])),
    ]
    return Table(f"Session: {len(seconds)} measured requests in one process", ("", "found"), rows)


def depth_goals(rows: dict[Any, list[Reading]]) -> list[Goal]:
    """Compare 100 layers with 5, for verdicts and for tables; no goal if either was not measured."""
    if not {5, 100} <= set(rows):
        return []
    ratios = {key: typical(rows[100], key) / typical(rows[5], key) for key in ("verdict_s", "table_s")}
    return [
        Goal(
            f"100 cheap layers within {DEPTH_GOAL:g} times the time of 5",
            f"{ratios['verdict_s']:.1f} times until the verdicts are known, {ratios['table_s']:.1f} until the table is"
            f" precise",
            max(ratios.values()) <= DEPTH_GOAL,
            "A request through 100 layers and their probes takes many times as long, and every row needs its readings.",
        )
    ]


def depth_notes(rows: dict[Any, list[Reading]]) -> list[str]:
    """Explain why 100 layers take longer; no note if either depth was not measured."""
    if not {5, 100} <= set(rows):
        return []
    ratio = typical(rows[100], "request_us") / typical(rows[5], "request_us")
    return [
        f"A request through 100 no-ops takes {ratio:.0f} times as long as one through 5, before anything is measured;"
        " warming up, counting and timing are made of requests. And there are twenty times as many rows, of which the"
        " last has to be as precise as the others before the table is."
    ]


def handler_goals(rows: dict[Any, list[Reading]]) -> list[Goal]:
    """Compare verdicts above slow handlers with those above a fast one; no goal if either is missing."""
    slow = {value: taken for value, taken in rows.items() if value != FAST}
    if not slow or FAST not in rows:
        return []
    fast = typical(rows[FAST], "requests")
    requests, worst = max((typical(taken, "requests") / fast, value) for value, taken in slow.items())
    seconds, slowest = max((typical(taken, "verdict_s"), value) for value, taken in slow.items())
    undecided = [value for value, taken in rows.items() if any(reading["verdict"] != "pass" for reading in taken)]
    processes = [reading for taken in slow.values() for reading in taken]
    limit_s = Settings().max_time_s
    in_time = sum(reading["timing_s"] <= limit_s for reading in processes)
    return [
        Goal(
            "a slow or noisy handler does not make a cheap layer's verdict slow: right in every process, within the"
            f" default limit of {limit_s:g} s, and for at most {HANDLER_GOAL:g} times the requests that it takes above"
            " a fast handler",
            f"at most {requests:.2f} times the requests (above {worst}); at most {seconds:.1f} s (above {slowest}),"
            f" {typical(rows[FAST], 'verdict_s'):.1f} s above a fast one; within the default limit in {in_time} of"
            f" {len(processes)} processes; not decided everywhere: {', '.join(undecided) or 'none'}",
            requests <= HANDLER_GOAL and not undecided and in_time == len(processes),
            "A request takes at least as long as its handler, so few requests fit into the limit above one of 20 ms.",
        )
    ]


if __name__ == "__main__":
    main(__file__, __doc__, measure, report, worker)
