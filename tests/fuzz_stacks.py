"""Measure random stacks and report every broken promise, with the smallest description that still breaks it.

python -m tests.fuzz_stacks --seconds 600 --seed 1
python -m tests.fuzz_stacks --replay "Stack(layers=(Layer(form='closure'),))"
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import math
import os
import random
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

import anyio
from hypothesis import HealthCheck, Phase, given, seed, settings

from pytest_mwbudget.asgi import discovery, loops, server
from pytest_mwbudget.asgi.http_library import httpx
from pytest_mwbudget.asgi.request import build_request
from pytest_mwbudget.config.settings import Settings
from pytest_mwbudget.engine import measure
from pytest_mwbudget.model.estimate import Estimate
from pytest_mwbudget.model.results import LayerReport, Measurement
from pytest_mwbudget.timing.looks import Environment
from pytest_mwbudget.timing.schedule import Schedule

from . import stacks
from .apps import unchanged_code
from .readings import busy_now
from .stacks import BODY, FORMS, HABITS, NOW_AND_THEN, Built, Layer, Part, Row, Stack, is_telling, rows_of, smaller

# Seconds of a measurement: without times, with times, and at most.
QUICK_S, PRECISE_S, MOST_S = 0.1, 0.3, 6.0
# As many requests are counted and traced on a busy machine as on another: of fewer, most may take another way.
BUSY_NS = 60 * 10**9
SCHEDULE = Schedule(warm_ns=50_000_000, precision_time_s=PRECISE_S, counting_ns=BUSY_NS)
# A wrong time is reported if this number of measurements in a row show it, and the machine is not busy then. If it
# stays busy, no more than MOST_SEEN are made, and nothing is reported, because they may show the load of the machine.
SEEN, MOST_SEEN = 3, 6
# Largest allowed unattributed time: the larger of a share of the total and a number of microseconds, and an allowance
# for each row, because a null layer beside a probe has warmer caches than the probe (docs/decisions/0018).
RESIDUE_SHARE, RESIDUE_US, RESIDUE_OF_ROW_US = 0.06, 2.0, 0.4
# The row of a layer that spins is between these shares of the spin, plus an allowance for the layer's other work, which
# is larger with tasks and threads.
LEAST_SHARE, MOST_SHARE = 0.7, 1.5
LIGHT_US, HEAVY_US = 100.0, 3000.0
# Time for threads to end after the loop has ended.
THREADS_END_S = 10.0


@dataclass(frozen=True)
class Violation:
    """A promise that a measurement broke; `timed` says that noise may be the cause."""

    invariant: str
    text: str
    timed: bool = False

    def __str__(self) -> str:
        return f"{self.invariant}: {self.text}"


# ---- responses of the app ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """The outcome of one request: a response, or the exceptions that were raised."""

    status: int = 0
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    raised: tuple[str, ...] = ()

    def __str__(self) -> str:
        return ", ".join(self.raised) or f"{self.status} {dict(self.headers)} {self.body!r}"


def _leaves(error: BaseException) -> tuple[str, ...]:
    if isinstance(error, BaseExceptionGroup):
        return tuple(leaf for inner in error.exceptions for leaf in _leaves(inner))
    return (repr(error),)


def _request(stack: Stack) -> httpx.Request:
    url = "/sub/x" if stack.base != "bare" else "/"
    return build_request(stack.method, url, {"content": BODY} if stack.method == "POST" else {})


def unmeasured(built: Built) -> Outcome:
    """Send one request to the app without this package."""
    request, messages = _request(built.stack), []
    url = request.url
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "server": (url.host, 80),
        "client": ("127.0.0.1", 50000),
        "scheme": "http",
        "method": request.method,
        "root_path": "",
        "path": url.path,
        "raw_path": url.raw_path,
        "query_string": b"",
        "headers": [(name.lower(), value) for name, value in request.headers.raw],
        "state": {},
    }

    async def main() -> None:
        body, complete = iter([request.read()]), anyio.Event()

        async def receive() -> Any:
            for piece in body:
                return {"type": "http.request", "body": piece, "more_body": False}
            await complete.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            messages.append(message)
            if message["type"] == "http.response.body" and not message.get("more_body"):
                complete.set()

        await built.app(scope, receive, send)

    try:
        loops.run(built.stack.loop, main)
    except Exception as error:
        return Outcome(raised=_leaves(error))
    start, *rest = messages
    return Outcome(start["status"], _text(start["headers"]), b"".join(part["body"] for part in rest))


def _text(headers: Any) -> tuple[tuple[str, str], ...]:
    return tuple((name.decode(), value.decode()) for name, value in headers)


# ---- state outside the app --------------------------------------------------------------------------------------

_PACKAGES = ("tests", "starlette", "anyio", "asyncio", "trio", "threading", "concurrent", "wrapt", "contextvars")


@contextmanager
def nothing_left(found: list[Violation]) -> Iterator[None]:
    """Record what a measurement left changed."""
    before, threads = _surroundings(), _threads()
    try:
        with unchanged_code():
            yield
    except AssertionError as error:
        if "left with other code" not in str(error):
            raise
        found.append(Violation("nothing left behind", str(error)))
    end = time.monotonic() + THREADS_END_S
    while _threads() - threads and time.monotonic() < end:
        time.sleep(0.01)
    found += [Violation("nothing left behind", f"a thread is left: {thread}") for thread in _threads() - threads]
    after = _surroundings()
    changed = [what for what in before.keys() | after.keys() if before.get(what) != after.get(what)]
    found += [
        Violation("nothing left behind", f"{what} was {before.get(what)!r}, is {after.get(what)!r}") for what in changed
    ]


def _surroundings() -> dict[str, object]:
    monitoring: Any = getattr(sys, "monitoring", None)
    around: dict[str, object] = {
        "tracer": sys.gettrace(),
        "profiler": sys.getprofile(),
        "tracer of threads": threading.gettrace(),
        "profiler of threads": threading.getprofile(),
        "garbage collection": (gc.isenabled(), gc.get_threshold(), len(gc.callbacks)),
        "os._exit": os._exit,
        "recursion limit": sys.getrecursionlimit(),
        "switch interval": sys.getswitchinterval(),
        "monitoring tools": monitoring and [(monitoring.get_tool(tool), tool) for tool in range(6)],
    }
    for cls in _classes():
        around[f"class {cls.__module__}.{cls.__qualname__}"] = {name: id(value) for name, value in vars(cls).items()}
    return around


def _threads() -> set[threading.Thread]:
    # trio keeps idle threads for a while.
    return {thread for thread in threading.enumerate() if not thread.name.startswith("Trio")}


def _classes() -> list[type]:
    classes = []
    pending: list[type] = [object]
    seen: set[int] = set()  # a class of typing warns of its end where it is hashed
    while pending:
        cls = pending.pop()
        if id(cls) in seen:
            continue
        seen.add(id(cls))
        pending += type.__subclasses__(cls)
        if str(cls.__module__).partition(".")[0] in _PACKAGES and "<locals>" not in cls.__qualname__:
            classes.append(cls)
    return classes


@contextmanager
def warnings_kept(found: set[str]) -> Iterator[None]:
    """Collect the warnings of the app, including those of its garbage."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            yield
        finally:
            gc.collect()
            found |= {f"{warning.category.__name__}: {warning.message}" for warning in caught}


def _of_the_loop() -> dict[str, object]:
    """List the attributes set on asyncio's running loop, without the loop's own state."""
    if loops.current().library == "trio":
        return {}
    loop = asyncio.get_running_loop()
    names = [name for name in vars(loop) if not name.startswith("_")] if hasattr(loop, "__dict__") else []
    return {"names": names, "task factory": loop.get_task_factory(), "debug": loop.get_debug()}


# ---- one measurement --------------------------------------------------------------------------------------------


@dataclass
class Seen:
    """A measurement of a stack: its record, every exchange, and the violations."""

    built: Built
    measurement: Measurement | None = None
    raised: tuple[str, ...] = ()
    outcomes: set[Outcome] = field(default_factory=set)
    warned: set[str] = field(default_factory=set)
    found: list[Violation] = field(default_factory=list)


def measured(stack: Stack, status: int, *, timed: bool) -> Seen:
    """Measure a new app of the stack."""
    seen = Seen(Built(stack))
    check = server.Caller._check

    def noting(caller: server.Caller, exchange: server.Exchange) -> None:
        check(caller, exchange)
        seen.outcomes.add(Outcome(exchange.status, _text(exchange.headers), b"".join(exchange.body)))

    async def main() -> None:
        before = _of_the_loop()
        try:
            seen.measurement = await measure(
                seen.built.app,
                _request(stack),
                _settings(status, timed=timed),
                Environment(rng=random.Random(7), schedule=SCHEDULE),
            )
        finally:
            if _of_the_loop() != before:
                seen.found.append(Violation("nothing left behind", f"the loop had {before}, has {_of_the_loop()}"))

    with (
        warnings_kept(seen.warned),
        nothing_left(seen.found),
        patch.object(server.Caller, "_check", noting),
        patch.object(discovery, "TRACING_NS", BUSY_NS),
    ):
        try:
            loops.run(stack.loop, main)
        except Exception as error:
            seen.raised = _leaves(error)
    return seen


def _settings(status: int, *, timed: bool) -> Settings:
    return Settings(
        max_time_s=MOST_S if timed else QUICK_S, startup_timeout_s=20.0, lifespan=False, expect_status=status or None
    )


# ---- invariants -------------------------------------------------------------------------------------------------


def violations(stack: Stack, *, timed: bool) -> list[Violation]:
    """Measure the stack and list the violations; `timed` includes those of the times."""
    reference, warned = Built(stack), set[str]()
    with warnings_kept(warned):
        expected = unmeasured(reference)
    seen = measured(stack, expected.status, timed=timed)
    broken = [*seen.found, *_other_outcomes(seen, expected)]
    broken += [Violation("the app as without us", f"warned of {warning}") for warning in seen.warned - warned]
    if seen.measurement is None:
        return broken
    rows = rows_of(reference)
    broken += _other_answers(seen.built, reference)
    broken += _other_layers(seen.measurement, rows)
    if broken:
        return broken
    broken += [*_other_counts(seen.measurement, rows), *_other_sum(seen.measurement)]
    return broken + (_wrong_times(stack, seen, expected.status, reference) if timed else [])


def _other_outcomes(seen: Seen, expected: Outcome) -> Iterator[Violation]:
    if seen.measurement is None:
        if set(seen.raised) != set(expected.raised) or not expected.raised:
            yield Violation("the app as without us", f"raised {', '.join(seen.raised)}; without us {expected}")
        return
    if expected.raised:
        yield Violation("the app as without us", f"answered; without us it raised {expected}")
    for outcome in seen.outcomes:
        if outcome != expected and not _cut_short(outcome, expected, seen.built):
            yield Violation("the app as without us", f"answered {outcome}; without us {expected}")


def _cut_short(outcome: Outcome, expected: Outcome, built: Built) -> bool:
    """Tell whether a layer that answers now and then answered: lines are then missing in the body."""
    shorter = outcome.status == expected.status and len(outcome.body) <= len(expected.body)
    return shorter and _answers_now_and_then(built)


def _answers_now_and_then(built: Built) -> bool:
    return any(NOW_AND_THEN in layer.habits for layer in built.stack.layers)


def _other_answers(built: Built, reference: Built) -> Iterator[Violation]:
    for part, without in zip(built.parts, reference.parts, strict=True):
        if part.answers != without.answers and not _answers_now_and_then(built):
            text = f"layer {part.number} got {part.answers} from its inside; without us {without.answers}"
            yield Violation("the app as without us", text)


def _bare(name: str) -> str:
    return name.partition("#")[0]


def _other_layers(measurement: Measurement, rows: list[Row]) -> Iterator[Violation]:
    reports = measurement.layers
    entered = [_bare(report.name) for report in reports if report.layer.entered and not report.layer.merged_with]
    described = [row.name for row in rows if row.entered and not row.hidden]
    if entered != described:
        yield Violation("no layer missing or invented", f"entered are {entered}, described {described}")
    merged = [_bare(report.name) for report in reports if report.layer.merged_with]
    hidden = [row.name for row in rows if row.entered and row.hidden]
    if merged != hidden:
        yield Violation("no layer missing or invented", f"merged are {merged}, in another thread {hidden}")
    left_out = [_bare(report.name) for report in reports if not report.layer.entered]
    possible = iter(row.name for row in rows if not row.entered)
    if not all(name in possible for name in left_out):
        yield Violation("no layer missing or invented", f"not entered are {left_out}")
    for report in reports:
        routing = report.layer.kind == "routing"
        if routing != (_bare(report.name) == "Router"):
            yield Violation("general budgets apply to each layer", f"{report.name} is {report.layer.kind}")
        if (report.layer.merged_with is None) != (report.layer.merged_because is None):
            yield Violation("no layer missing or invented", f"{report.name} is merged without a reason")


def _of_parts(measurement: Measurement, rows: list[Row]) -> Iterator[tuple[LayerReport, Row]]:
    entered = [report for report in measurement.layers if report.layer.entered and not report.layer.merged_with]
    return zip(entered, [row for row in rows if row.entered and not row.hidden], strict=True)


def _other_counts(measurement: Measurement, rows: list[Row]) -> Iterator[Violation]:
    for report, row in _of_parts(measurement, rows):
        if report.counts is None:
            continue
        for what, described, count in (
            ("tasks", row.tasks, report.counts.tasks),
            ("threads", row.threads, report.counts.threads),
        ):
            if described is not None and count.count != described:
                text = f"{report.name} has {count.count} {what} {dict(count.kinds)}, described are {described}"
                yield Violation("counts", text)


def _other_sum(measurement: Measurement) -> Iterator[Violation]:
    books = measurement.books
    assert books is not None
    rows = [report.us for report in measurement.layers] + [books.outside, books.endpoint]
    total = sum(us.estimate for us in rows if us is not None)
    if abs(total - books.total.estimate - books.residue_us) > 1e-6 * max(1.0, total):
        yield Violation("rows add up", f"{total} µs are not {books.total.estimate} and {books.residue_us} µs")


def _wrong_times(stack: Stack, seen: Seen, status: int, reference: Built) -> list[Violation]:
    """List the wrong times that SEEN measurements in a row show, the last one on a machine that is not busy."""
    wrong, measurements = _times_of(seen, reference), 1
    while wrong and (measurements < SEEN or busy_now()):
        if measurements == MOST_SEEN:
            return []
        again = {violation.invariant for violation in _times_of(measured(stack, status, timed=True), reference)}
        wrong = [violation for violation in wrong if violation.invariant in again]
        measurements += 1
    return wrong


def _times_of(seen: Seen, reference: Built) -> list[Violation]:
    if seen.measurement is None:
        return [Violation("the app as without us", f"raised {', '.join(seen.raised)}", timed=True)]
    rows = rows_of(reference)
    return [
        replace(violation, timed=True)
        for violation in (
            *_below_zero(seen.measurement),
            *(() if _answers_now_and_then(seen.built) else _apart(seen.measurement)),
            *_misplaced(seen, rows, reference),
        )
    ]


def _figures(measurement: Measurement) -> Iterator[tuple[str, Estimate]]:
    assert measurement.books is not None
    yield "(outside)", measurement.books.outside
    for report in measurement.layers:
        if report.us is not None:
            yield report.name, report.us
    if measurement.books.endpoint is not None:
        yield "(endpoint)", measurement.books.endpoint


def _below_zero(measurement: Measurement) -> Iterator[Violation]:
    for name, us in _figures(measurement):
        if us.high < 0:
            yield Violation(f"interval of {name}", f"{us.low:.2f} … {us.high:.2f} µs is wholly below zero")


def _apart(measurement: Measurement) -> Iterator[Violation]:
    books = measurement.books
    assert books is not None
    # The uncertainty of the figures, as independent errors.
    widths = [us.half_width for _, us in _figures(measurement)]
    unsure_us = math.hypot(books.total.half_width, *widths)
    room_us = max(RESIDUE_SHARE * books.total.estimate, RESIDUE_US) + RESIDUE_OF_ROW_US * len(widths) + unsure_us
    if abs(books.residue_us) > room_us:
        text = f"they miss the total of {books.total.estimate:.1f} µs by {books.residue_us:.1f} µs (± {unsure_us:.1f})"
        yield Violation("rows near the total", text)


def _misplaced(seen: Seen, rows: list[Row], reference: Built) -> Iterator[Violation]:
    assert seen.measurement is not None
    for report, row in _of_parts(seen.measurement, rows):
        if report.us is None:
            continue
        spun_us = _spun_us(row.part, seen.built, reference)
        in_row = [row, *_hidden_in(row, rows)]
        most = sum(
            MOST_SHARE * _spun_us(each.part, seen.built, reference) + _allowance_us(each, reference) for each in in_row
        )
        if report.us.high < LEAST_SHARE * spun_us or report.us.low > most:
            text = f"reads {report.us.low:.1f} … {report.us.high:.1f} µs, it spins for {spun_us:.1f} µs"
            yield Violation(f"spin of {report.name}", text)


def _hidden_in(row: Row, rows: list[Row]) -> list[Row]:
    """Return the rows inside a layer that are merged with it."""
    place = next(number for number, each in enumerate(rows) if each is row)
    return list(itertools.takewhile(lambda inner: inner.hidden, rows[place + 1 :]))


def _spun_us(part: Part | None, built: Built, reference: Built) -> float:
    """Compute how long a layer spins in a request: its spins in an unmeasured request times their recorded length."""
    return 0.0 if part is None else built.parts[part.number].spun_us * len(reference.parts[part.number].spun_ns)


def _allowance_us(row: Row, reference: Built) -> float:
    """Return the allowance for a layer's work besides spinning, for each time it works: little without tasks."""
    performed = () if row.part is None else reference.parts[row.part.number].performed.values()
    return max(performed, default=1) * (LIGHT_US if row.tasks == 0 and row.threads == 0 else HEAVY_US)


# ---- hunting ----------------------------------------------------------------------------------------------------


@dataclass
class Finding:
    """The smallest stack found that breaks a promise, and its violations."""

    stack: Stack
    violations: list[Violation]

    def __str__(self) -> str:
        lines = "\n".join(f"  {violation}" for violation in self.violations)
        return f'{lines}\n  replay: python -m tests.fuzz_stacks --replay "{self.stack!r}"'


def found_in(stack: Stack, *, timed: bool, shrink_s: float = 60.0) -> Finding | None:
    """Find violations of the stack and shrink it to the smallest that still shows one; None without violations."""
    broken = violations(stack, timed=timed)
    if not broken:
        return None
    end = time.monotonic() + shrink_s
    timed = all(violation.timed for violation in broken)
    kinds = {_kind(violation) for violation in broken}
    finding = Finding(stack, broken)
    pending = smaller(stack)
    while time.monotonic() < end:
        less = next(pending, None)
        if less is None:
            break
        if not is_telling(less):
            continue
        broken = [violation for violation in violations(less, timed=timed) if _kind(violation) in kinds]
        if broken:
            finding, pending = Finding(less, broken), smaller(less)
    return finding


def _kind(violation: Violation) -> str:
    return violation.invariant.partition(" of ")[0]


def hunt(
    number: int,
    examples: int,
    *,
    timed: bool,
    report: Callable[[Stack, Finding | None], None],
    without: frozenset[str] = frozenset(),
) -> None:
    """Check a number of random stacks of the seed `number`."""

    @seed(number)
    @settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(stacks.stacks(without))
    def look(stack: Stack) -> None:
        report(stack, found_in(stack, timed=timed))

    look()


def main(arguments: list[str] | None = None) -> int:
    """Hunt for some seconds, or replay one description; return 1 if a violation was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to hunt (default 60)")
    parser.add_argument("--seed", type=int, default=1, help="the first seed; each hundred stacks have one (default 1)")
    parser.add_argument("--untimed", action="store_true", help="leave the times alone: five times as many stacks")
    parser.add_argument(
        "--without", action="append", default=[], metavar="NAME", help="leave out a form or a habit; may be repeated"
    )
    parser.add_argument("--replay", metavar="STACK", help="look at this description only")
    chosen = parser.parse_args(arguments)
    unknown = [name for name in chosen.without if name not in FORMS and name not in HABITS]
    if unknown:
        parser.error(f"no form or habit is called {unknown[0]!r}; there are {', '.join([*FORMS, *HABITS])}")
    if chosen.replay:
        stack = eval(chosen.replay, {"Stack": Stack, "Layer": Layer})
        broken = violations(stack, timed=not chosen.untimed)
        print(*broken or ["nothing is wrong with it"], sep="\n")
        return 1 if broken else 0
    return _hunt_for(chosen)


class _OverError(Exception):
    """Error that ends the hunt when its time is over."""


def _hunt_for(chosen: argparse.Namespace) -> int:
    end = time.monotonic() + chosen.seconds
    looked, findings = 0, 0

    def report(stack: Stack, finding: Finding | None) -> None:
        nonlocal looked, findings
        looked += 1
        if finding is not None:
            findings += 1
            print(finding, flush=True)
        if time.monotonic() >= end:
            raise _OverError

    number = chosen.seed
    try:
        while True:
            hunt(number, 100, timed=not chosen.untimed, without=frozenset(chosen.without), report=report)
            number += 1
    except _OverError:
        print(f"{looked} stacks, {findings} with something wrong, seeds {chosen.seed} to {number}")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
