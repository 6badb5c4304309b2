"""What other people published about middlewares, beside ours: in-process, by message, under load

    python bench/claims.py [--quick] [--json PATH]

The packages: `pip install -e . --group bench` (pip 25.1 or newer).

Six texts state figures that pytest-mwbudget measures too. Each of their apps is written anew for the current releases.
Whole requests, layers and messages are measured by `measure()`, in three fresh processes for each app, each of which
may measure for 4 s, or in two of 10 s if bodies are large. Requests per second and latencies are those that `load`
states with the number of clients of the text, in one process for each app, for 10 s, or 25 s if a request takes 23 ms.
A measurement during which the machine ran at least a seventh slower than before is repeated once. A figure is the mean
of its processes; its interval holds their estimates too.

A figure agrees if its whole interval is within the allowed factor of the published figure, or of the published range.
It differs if its whole interval is outside, and is undecided otherwise. The factor is 1.25 for ratios, 1.5 for savings,
2 for times, 1.1 where the text says that nothing changes, and 1 for counts and "tens of". A time that depends on the
machine and has a base in its own text has no verdict: the ratio to the base has. The intervals of ratios and
differences are those of independent figures, or hold if both intervals hold where the two share a process.

Not repeated: mcp-context-forge pull request 6166, which states shares of a profiler's frames in the whole of an app.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import inf
from typing import Any

import claimed
from claim_cases import CASES, CHUNKS, HOPS, MANY, WORK_S, Case, Figures
from claimed import Chunks, Work, five, instrumented, zipped
from harness import Reading, Report, Table, fresh_process, main
from load import under_load
from published import ENDLESS_US, FASTAPI_OWN, SLOW, A, B, hello, summed_us

from pytest_mwbudget.asgi import loops
from pytest_mwbudget.asgi.request import build_request
from pytest_mwbudget.config.budgets import Budgets
from pytest_mwbudget.config.settings import Settings
from pytest_mwbudget.engine import measure as measured
from pytest_mwbudget.model.estimate import Estimate, independent_sum
from pytest_mwbudget.model.results import LoopName, Measurement
from pytest_mwbudget.timing.host_speed import Machine
from pytest_mwbudget.timing.looks import Environment

# The processes of an app that is measured alone, of one with large bodies, and the tries of a process.
PROCESSES, FEWER, TRIES = 3, 2, 2
ALONE_S, LONG_S, LOAD_S, LONG_LOAD_S, QUICK_S = 4.0, 10.0, 10.0, 25.0, 0.3
# Bytes: a size that no body has, and a MiB.
NEVER, MEBIBYTE = 2**40, 2**20

# ---- apps -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """An app, and how to measure it: one request at a time, or under load if it has `clients`."""

    make: Callable[[], Any]
    seconds: float = ALONE_S
    clients: int = 0
    loop: LoopName = "asyncio"
    by_message: bool = False

    @property
    def processes(self) -> int:
        """The number of processes that measure the app."""
        return 1 if self.clients else FEWER if self.seconds > ALONE_S else PROCESSES


def collapsing(headers: bool, chunks: int) -> dict[str, Run]:
    """Return the runs of five layers and of one."""
    name = f"{'headers' if headers else 'plain'}, {chunks}"
    return {
        f"five, {name}": Run(partial(five, chunks, headers)),
        f"one, {name}": Run(partial(claimed.collapsed, chunks, headers)),
    }


OPENTELEMETRY = claimed.with_opentelemetry
INSTRUMENTS = {
    "logging": claimed.with_logging,
    "Prometheus": claimed.with_prometheus,
    "Sentry": claimed.with_sentry,
    "OpenTelemetry": OPENTELEMETRY,
}
EXCLUDING = partial(OPENTELEMETRY, exclude=("receive", "send"))
EVERY = tuple(INSTRUMENTS.values())

RUNS: dict[str, Run] = {
    **collapsing(False, 1),
    **collapsing(True, 1),
    **collapsing(True, CHUNKS),
    **collapsing(True, MANY),
    "bare": Run(instrumented),
    **{name: Run(partial(instrumented, instrument)) for name, instrument in INSTRUMENTS.items()},
    "excluding": Run(partial(instrumented, EXCLUDING)),
    "all": Run(partial(instrumented, *EVERY)),
    "bare, load": Run(instrumented, LOAD_S, clients=16),
    "all, load": Run(partial(instrumented, *EVERY), LOAD_S, clients=16),
    "two B, load": Run(lambda: hello(B, B), LOAD_S, clients=32),
    "two A, load": Run(lambda: hello(A, A), LOAD_S, clients=32),
    "neither, load": Run(hello, LOAD_S, clients=32),
    "two B, work, load": Run(lambda: B(B(Work(WORK_S))), LONG_LOAD_S, clients=16),
    "two A, work, load": Run(lambda: A(A(Work(WORK_S))), LONG_LOAD_S, clients=16),
    "B": Run(lambda: B(Chunks(1))),
    "B, asyncio": Run(lambda: B(Chunks(CHUNKS)), by_message=True),
    "B, uvloop": Run(lambda: B(Chunks(CHUNKS)), loop="uvloop", by_message=True),
    "GZip, inline": Run(lambda: zipped(claimed.Text(MEBIBYTE), NEVER), LONG_S),
    "GZip, thread": Run(lambda: zipped(claimed.Text(MEBIBYTE), 128 * 1024), LONG_S),
    "chunks, inline": Run(lambda: zipped(Chunks(HOPS, 1024), NEVER)),
    "chunks, thread": Run(lambda: zipped(Chunks(HOPS, 1024), 1)),
    "Django": Run(claimed.django_app),
    "five Mixed": Run(lambda: claimed.django_app(*["Mixed"] * 5)),
    "five SyncMixed": Run(lambda: claimed.django_app(*["SyncMixed"] * 5)),
}
QUICK_RUNS = ("five, plain, 1", "one, plain, 1", "bare", "Prometheus", "B", "five Mixed", "bare, load")

# ---- measure --------------------------------------------------------------------------------------------------------


def measure(quick: bool) -> list[Reading]:
    """Take a reading for each process."""
    readings: list[Reading] = []
    known_ns = inf
    for process, name in product(range(1 if quick else PROCESSES), random.sample(list(RUNS), len(RUNS))):
        run = RUNS[name]
        if (quick and name not in QUICK_RUNS) or process >= run.processes:
            continue
        asked = {"name": name, "seconds": QUICK_S if quick else run.seconds, "known_ns": known_ns}
        readings.append(fresh_process(__file__, **asked))
        known_ns = min(known_ns, readings[-1].get("seen_ns", inf))
    return readings


def worker(name: str, seconds: float, known_ns: float = inf) -> Reading:
    """Measure an app in a fresh process; once more if the machine ran slower than before."""
    run = RUNS[name]
    app, headers = run.make(), {"accept-encoding": "gzip"}
    if run.clients:
        load = loops.run(run.loop, lambda: under_load(app, run.clients, seconds, headers)).load
        assert load is not None
        return {"name": name, "rps": ends(load.rps), "p99_ms": ends(load.p99_ms), "quiet": load.quiet}
    budgets = Budgets({"us_per_message": ENDLESS_US} if run.by_message else {}, total_us=ENDLESS_US)
    settings, request = Settings(budgets, max_time_s=seconds), build_request("GET", "/", {"headers": headers})
    for _ in range(TRIES):
        machine = Machine(known_ns)
        environment = Environment(machine=machine)
        result = loops.run(run.loop, lambda: measured(app, request, settings, environment))  # noqa: B023
        if result.slowdown < SLOW:
            break
    return {"name": name, "seen_ns": machine.seen_ns, "slowdown": result.slowdown, **figures_of(result)}


def figures_of(result: Measurement) -> Reading:
    """Return the figures of the whole request, of its layers together, and of a message in the costliest layer.

    Each is [estimate, low, high] in µs, None without an interval; `threads` is how often work goes to a thread.
    """
    assert result.books is not None
    assert result.ledger is not None
    layers = [report for report in result.layers if report.name.partition("#")[0] not in FASTAPI_OWN]
    us = summed_us(layers)
    held = [report.occupation.busy for report in layers if report.occupation is not None]
    by_message = [report.messages.us_per_message for report in layers if report.messages is not None]
    return {
        "total_us": ends(result.books.total),
        "layers_us": ends(Estimate(*us)) if us else None,
        "held_us": ends(max(held, key=lambda busy: busy.estimate)) if held else None,
        "message_us": ends(max((each for each in by_message if each), key=lambda us: us.estimate, default=None)),
        "threads": result.ledger.total.threads.count,
    }


def ends(figure: Estimate | None) -> list[float] | None:
    """Return [estimate, low, high]; None without an interval."""
    return [figure.estimate, figure.low, figure.high] if figure is not None and figure.bounded else None


def merged(readings: Sequence[Reading]) -> Figures:
    """Merge the processes of each app to their mean. Its interval also holds the estimate of each process."""
    known: dict[tuple[str, str], list[Estimate]] = {}
    for reading in readings:
        for key, value in reading.items():
            if key == "threads" or isinstance(value, list):
                figure = Estimate(*(value if isinstance(value, list) else [value] * 3))
                known.setdefault((reading["name"], key), []).append(figure)
    return {key: mean_of(figures) for key, figures in known.items()}


def mean_of(figures: Sequence[Estimate]) -> Estimate:
    """Return the mean of processes."""
    mean, estimates = independent_sum(*figures) / len(figures), [figure.estimate for figure in figures]
    return Estimate(mean.estimate, min(mean.low, *estimates), max(mean.high, *estimates))


# ---- report ---------------------------------------------------------------------------------------------------------

HEAD = ["figure", "published", "ours", "interval", "factor", "verdict"]
WORDS = ("agrees", "differs", "undecided")
INTRODUCTION = """# Claims of others, reproduced

This page shows figures that others have published about middlewares, each beside the one that pytest-mwbudget measures
for an app like theirs: read it to know how far such figures carry to another machine and another app.

"""


def remark(case: Case, figures: Figures) -> str:
    """Write what the figures of a case show; empty if some of them are missing."""
    with suppress(KeyError):
        return case.remark(figures)
    return ""


def report(readings: list[Reading]) -> Report:
    """Report each case as a table and a remark."""
    figures = merged(readings)
    tables = [Table(case.title, HEAD, [claim.cells(figures) for claim in case.claims]) for case in CASES]
    return Report(tables, notes=[f"{case.title}: {text}" for case in CASES if (text := remark(case, figures))])


def rows(lines: Sequence[Sequence[str]]) -> str:
    """Write a table of Markdown; the first line is the head."""
    head, *body = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([head, f"|{'---|' * len(lines[0])}", *body])


def page(readings: list[Reading], method: str, taken: str) -> str:
    """Write the page of the docs: the method, the verdicts of all cases, and each case."""
    figures = merged(readings)
    verdicts = {case.title: [claim.verdict(figures) for claim in case.claims] for case in CASES}
    summary = [["claim", *WORDS]]
    summary += [[title, *(f"{words.count(word)}" for word in WORDS)] for title, words in verdicts.items()]
    parts = [INTRODUCTION + rows(summary), f"## Method\n\n{method}", taken]
    for case in CASES:
        setting = f"- Source: {case.source}\n- Their setting: {case.setting}\n- Ours: {case.ours}"
        table = rows([HEAD, *(claim.cells(figures) for claim in case.claims)])
        parts += [f"## {case.title}", setting, table, remark(case, figures)]
    return "\n\n".join(filter(None, parts)) + "\n"


if __name__ == "__main__":
    main(__file__, __doc__, measure, report, worker)
