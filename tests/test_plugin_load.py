"""`mw_budget.load` in whole pytest runs: figures, budgets, errors, and what is left afterwards: nothing."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from fnmatch import fnmatch
from importlib import import_module
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import pytest_mwbudget.load.bursts
import pytest_mwbudget.load.process
import pytest_mwbudget.load.server
from pytest_mwbudget.analysis.savings import TOGETHER
from pytest_mwbudget.analysis.shares import Burst, Bursts, Conditions, Observation
from pytest_mwbudget.config.budgets import Budgets
from pytest_mwbudget.config.settings import Settings, Under
from pytest_mwbudget.errors import MeasurementError, ResponseError
from pytest_mwbudget.load.bursts import _Driver, _Outcome, requests_of
from pytest_mwbudget.load.processor import Cores
from pytest_mwbudget.load.server import Served
from pytest_mwbudget.model.estimate import Estimate
from pytest_mwbudget.model.load import LayerLoad
from pytest_mwbudget.model.quantities import RPS_SHARE
from pytest_mwbudget.model.results import Count, Counts, RequestLine, Result, ResultRow
from pytest_mwbudget.model.stack import Layer, RowIndex
from pytest_mwbudget.storage.codec import measured_run

from .apps import LEAN, QUICKLY, SPIN, Noop, Scheduled, hello, run_inside
from .conftest import needs
from .projects import heeds_interrupts
from .readings import readings
from .test_arms import FIRST, arms_of
from .test_load_generator import ended
from .test_plugin import BRIEFLY
from .test_report_schema import misfits

needs("uvicorn", "the server of a measurement under load", "load")
# Imported once: pytester forgets the modules that an inner run imports.
PROTOCOL = import_module("uvicorn.protocols.http.auto")

APP = (
    SPIN
    + """
import asyncio
import os

import anyio
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route

under_way = 0


async def health(request):
    return PlainTextResponse("ok")


async def secure(request):
    return PlainTextResponse("ok", 200 if request.url.scheme == "https" else 307)


async def late(request):
    if request.client.port != 50000:  # not the request alone
        async with anyio.create_task_group():
            pytest.fail("the time is up")
    return PlainTextResponse("ok")


async def narrow(request):
    global under_way
    under_way += 1
    try:
        await asyncio.sleep(0)
        if under_way > 1:
            raise LookupError("no connection is left")
        return PlainTextResponse("ok")
    finally:
        under_way -= 1


class NoOp:
    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        await self.app(scope, receive, send)


class Sets:
    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        scope["state"]["set"] = True
        await self.app(scope, receive, send)


class Needs:
    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        scope["state"]["set"]
        await self.app(scope, receive, send)


class Login:
    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        if scope["path"] == "/page":
            spin(50)
            scope["state"]["user"] = "me"
        await self.app(scope, receive, send)


def spin(us):
    end = perf_counter_ns() + us * 1000
    while perf_counter_ns() < end:
        pass


async def page(request):
    if hasattr(request.state, "user"):
        spin(1000)
    return PlainTextResponse("ok")


layers = [Middleware(Login), Middleware(Spin, us=400), Middleware(NoOp), Middleware(Sets), Middleware(Needs)]
routes = [Route(f"/{one.__name__}", one) for one in (health, narrow, page, secure, late)]
app = Starlette(routes=routes, middleware=layers)
"""
)

FIXTURES = """
import os
import pathlib
import threading
import pytest
import shop


@pytest.fixture
def mw_budget_app():
    return shop.app


def listening():
    inodes = set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            inodes.add(os.readlink(f"/proc/self/fd/{fd}"))
        except OSError:
            pass
    found = []
    for name in ("tcp", "tcp6"):
        for line in pathlib.Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                found.append(fields[1])
    return found


def children():
    found = pathlib.Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return [int(one) for one in found]


@pytest.fixture(autouse=True)
def nothing_is_left():
    before = os.sched_getaffinity(0), listening(), children(), len(os.listdir("/proc/self/fd"))
    yield
    assert (os.sched_getaffinity(0), listening(), children(), len(os.listdir("/proc/self/fd"))) == before
    for thread in threading.enumerate():
        if thread.name == "mw-budget-load":
            thread.join(10)  # it has answered, and ends
            assert not thread.is_alive()
"""
TEST = """

@pytest.mark.mw_budget({marker})
def test_{name}(mw_budget):
    {body}
"""

linux = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="reads /proc")


def case(body: str, marker: str = "load_time=0.1", name: str = "it") -> str:
    """Return the source of a test, by default with time for a burst or two."""
    return TEST.format(body=body, marker=marker, name=name)


def written(pytester: pytest.Pytester, *cases: str) -> None:
    pytester.makepyfile(shop=APP, test_load="".join([FIXTURES, *cases]))


def run(
    pytester: pytest.Pytester, cases: Sequence[str], *arguments: str, schedule: Scheduled = BRIEFLY
) -> pytest.RunResult:
    written(pytester, *cases)
    options = ("--mw-budget", "--mw-budget-flamegraph=never")
    warnings = ("-W", "always::pytest_mwbudget.errors.BudgetWarning")
    return run_inside(pytester, *options, *warnings, *arguments, plugins=[schedule])


@linux
@readings  # on a busy machine a layer that does nothing can seem to take time
def test_the_measurement_and_every_report_have_the_figures(pytester: pytest.Pytester) -> None:
    body = """m = mw_budget.load("/health", clients=3, rps_share="90%", p99_ms=5000)
    assert m.response.text == "ok" and m.load.clients == 3 and m.load.rps.estimate > 0
    assert m.load.p50_ms.estimate <= m.load.p99_ms.estimate
    assert m.layer("Spin").load.clock is not None or "bursts past it say no more" in m.layer("Spin").load.why
    no_op = m.layer("NoOp")  # bypassed only with an interval beyond 1 % of a request of more than 400 µs
    assert no_op.load.method == "split" or no_op.us.high > 4
    assert m.layer("Sets").load.why is not None
    assert m.layer("Spin").load.wait.one_us > 399"""
    files = ("--mw-budget-json=r.json", "--mw-budget-markdown=r.md", "--mw-budget-html=r.html", "-v")
    result = run(pytester, [case(body, "load_time=1")], *files, schedule=QUICKLY)
    result.assert_outcomes(passed=1, warnings=result.parseoutcomes().get("warnings", 0))
    result.stdout.fnmatch_lines(
        ["under load, 3 clients * share of req/s *", "*requests/s (*", "*rounds of bursts*shares of*time*", "*uvicorn*"]
    )
    below = ["adds * µs to a request", "a request is in it for * with 1 client, for * with all", "its own time: *"]
    for line in below:
        result.stdout.fnmatch_lines([f"  {line}"])
    document = json.loads((pytester.path / "r.json").read_text(encoding="utf-8"))
    assert misfits(document) == []
    (measurement,) = measured_run(document).results
    assert measurement.load is not None
    assert measurement.load.judged is not None
    assert measurement.layer("Spin").load is not None
    for name in ("r.md", "r.html"):
        text = (pytester.path / name).read_text(encoding="utf-8")
        assert "nder load, 3 clients" in text
        assert "requests/s" in text


ERRORS = {
    "status": ('mw_budget.load("/narrow", clients=8)', "*answered 500*not 200*LookupError: no connection is left*"),
    "clients": ('mw_budget.load("/health", clients=0)', "*clients is 0; give a whole number of clients from 1*"),
    "share": ('mw_budget.load("/health", rps_share="500%")', "*rps_share is '500%'; give a share*"),
    "route": ('mw_budget.load("/nowhere")', "*answered 404*nothing was measured*"),
}
UNUSABLE_MARKERS = {
    "trio": ('mw_budget.load("/health")', 'loop="trio"', "*uvicorn*asyncio and uvloop, not on trio*"),
    "no_load": ('mw_budget.get("/health")', 'rps_share="5%"', "*rps_share*no request under load*mw_budget.load*"),
    "no_load_of_a_layer": (
        'mw_budget.get("/health")',
        'layers={"Spin": {"rps_share": "5%"}, "NoOp": 5000}',
        "*rps_share*no request under load*mw_budget.load*",
    ),
    "no_layer": (
        'mw_budget.load("/health")',
        'layers={"Spinn": {"rps_share": "5%"}}, load_time=0.1',
        "*'Spinn'*Did you mean 'Spin'*",
    ),
}


@linux
def test_errors_fail_the_test_with_a_remedy_and_leave_nothing(pytester: pytest.Pytester) -> None:
    result = run(pytester, [case(body, name=name) for name, (body, _) in ERRORS.items()])
    result.assert_outcomes(failed=len(ERRORS))
    for name, (_, expected) in ERRORS.items():
        result.stdout.fnmatch_lines([f"*_ test_{name} _*", expected])
    result.stdout.no_fnmatch_line("*Traceback*")


def test_markers_that_do_not_fit_the_requests_fail_the_test(pytester: pytest.Pytester) -> None:
    result = run(pytester, [case(body, marker, name) for name, (body, marker, _) in UNUSABLE_MARKERS.items()])
    result.assert_outcomes(failed=len(UNUSABLE_MARKERS))
    result.stdout.fnmatch_lines(
        [line for name, (_, _, expected) in UNUSABLE_MARKERS.items() for line in (f"*_ test_{name} _*", expected)]
    )


def test_none_removes_a_budget_under_load(pytester: pytest.Pytester) -> None:
    removed = 'rps_share=None, p99_ms=None, layers={"NoOp": {"rps_share": None}}'
    run(pytester, [case('mw_budget.get("/health")', removed)]).assert_outcomes(passed=1)


def test_what_counts_or_compares_for_another_process_loads_nothing(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        from dataclasses import replace
        from pytest_mwbudget.session.configuration import CHANGED

        def pytest_configure(config):
            config.stash[CHANGED] = lambda settings: replace(settings, loads=False)
        """
    )
    body = 'assert mw_budget.load("/health", rps_share=0.0001, p99_ms=0.0001).load is None'
    run(pytester, [case(body, "p99_ms=0.0001")]).assert_outcomes(passed=1)


@linux
def test_a_post_request_is_sent_past_no_layer_and_the_server_says_the_scheme(pytester: pytest.Pytester) -> None:
    post = """m = mw_budget.load("/health", clients=2, method="POST", json={"a": 1}, expect_status=405)
    assert {layer.load.method for layer in m.layers} == {"split"}
    assert m.layer("Spin").load.why == "a POST request is sent past no layer\""""
    scheme = 'mw_budget.load("https://testserver/secure", clients=2)'
    run(pytester, [case(post, name="post"), case(scheme, name="scheme")]).assert_outcomes(passed=2)


@linux
def test_what_ends_the_test_ends_the_load(pytester: pytest.Pytester) -> None:
    result = run(pytester, [case('mw_budget.load("/late", clients=2)')])
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*Failed: the time is up"])
    result.stdout.no_fnmatch_line("*Under load the same request is sent*")


@linux
@pytest.mark.live
@readings
def test_a_layer_without_which_the_app_does_less_is_not_blamed_for_that(pytester: pytest.Pytester) -> None:
    body = """found = mw_budget.load("/page", clients=2).layer("Login").load
    assert found.method == "split", found
    assert "takes another way without it" in found.why
    assert found.share.high < 0.3"""
    run(pytester, [case(body, "load_time=6")], schedule=QUICKLY).assert_outcomes(passed=1)


@linux
def test_an_async_test_uses_its_own_loop(pytester: pytest.Pytester) -> None:
    written(pytester)
    pytester.makepyfile(
        test_async="""
        import asyncio
        import pytest
        import shop
        from pytest_mwbudget.asgi import loops
        from test_load import nothing_is_left

        LOOPS = ("asyncio", "uvloop")

        # The first loop of uvloop opens files that it keeps.
        for name in LOOPS:
            loops.run(name, lambda: asyncio.sleep(0))


        @pytest.fixture
        def mw_budget_app():
            return shop.app


        async def loaded(mw_budget):
            m = await mw_budget.aload("/health", clients=2)
            assert m.load.server.endswith(f" on {m.loop}")
            return m.loop


        @pytest.mark.parametrize("loop", LOOPS)
        @pytest.mark.mw_budget(load_time=0.1)
        def test_it(mw_budget, loop):
            assert loops.run(loop, lambda: loaded(mw_budget)) == loop
        """
    )
    run_inside(pytester, "--mw-budget", "test_async.py", plugins=[BRIEFLY]).assert_outcomes(passed=2)


@linux
def test_where_there_is_one_core_a_note_tells(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pytest_mwbudget.load.bursts, "cores", lambda: Cores(alone=True))
    body = 'mw_budget.load("/health", clients=2, rps_share="99%", p99_ms=5000)'
    result = run(pytester, [case(body, 'load_time=0.5, undecided="warn"')], schedule=QUICKLY)
    result.assert_outcomes(passed=1, warnings=result.parseoutcomes().get("warnings", 0))
    result.stdout.fnmatch_lines(["note: The server and the load generator share the only core*"])


def test_without_the_server_it_names_the_extra(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pytest_mwbudget.load.server, "find_spec", lambda name: None)
    result = run(pytester, [case('mw_budget.load("/health")')])
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*needs uvicorn*pip install 'pytest-mwbudget?load?'*"])


def test_without_the_option_it_is_one_request(pytester: pytest.Pytester) -> None:
    body = 'm = mw_budget.load("/health")\n    assert m.load is None and m.status == 200 and m.layers == ()'
    written(pytester, case(body, ""))
    run_inside(pytester).assert_outcomes(passed=1)


# ---- ends --------------------------------------------------------------------------------------------------------

HANGING = """
import pytest
import shop
import pytest_mwbudget.load.process as process

made = process.Generator.burst


@pytest.fixture
def mw_budget_app():
    return shop.app


async def burst(self, clients, requests, skipped):
    found = await made(self, clients, requests, skipped)
    with open("pids", "w") as file:
        file.write(f"{self.process.pid}")
    return found


process.Generator.burst = burst


@pytest.mark.mw_budget(load_time=60)
def test_it(mw_budget):
    mw_budget.load("/health", clients=2)
"""


@pytest.mark.live
@pytest.mark.once
@pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGKILL, signal.SIGTERM])
def test_the_load_generator_ends_with_the_run(pytester: pytest.Pytester, ending: int) -> None:
    pytester.makepyfile(shop=APP, test_load=HANGING)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--mw-budget", *LEAN, "test_load.py"]
    output_of = {"stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=pytester.path, **output_of, preexec_fn=heeds_interrupts) as process:
        child = eventually(pytester.path / "pids")
        os.kill(child, 0)
        process.send_signal(ending)
        output, _ = process.communicate(timeout=120)
    assert process.returncode != 0
    assert ended(child)
    if ending == signal.SIGINT:
        assert "KeyboardInterrupt" in output
        assert not re.search("Task was destroyed|never retrieved|INTERNALERROR", output)


def eventually(path: Path) -> int:
    """Return the number that another process writes to a file."""
    for _ in range(12_000):
        if path.exists() and (text := path.read_text()):
            return int(text)
        time.sleep(0.01)
    raise AssertionError(path)


def test_a_crash_of_the_generator_fails_the_test(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    made = pytest_mwbudget.load.process.Generator.burst

    async def burst(self: Any, clients: int, requests: int, skipped: int) -> Any:
        self.tell({})
        return await made(self, clients, requests, skipped)

    monkeypatch.setattr(pytest_mwbudget.load.process.Generator, "burst", burst)
    result = run(pytester, [case('mw_budget.load("/health")')])
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*the load generator ended with status 1*", "*It printed:", "*TypeError: *'clients'*"])


@pytest.mark.parametrize("where", ["reason", "context", "group", "unlogged"])
def test_an_interrupt_ends_the_test_wherever_the_server_meets_it(where: str) -> None:
    interrupt = KeyboardInterrupt()
    with pytest_mwbudget.load.server._logged() as raised:
        try:
            try:
                raise interrupt
            except KeyboardInterrupt:
                if where == "group":
                    raise BaseExceptionGroup("of tasks", [ValueError(), interrupt]) from None
                raise ValueError("a callback failed") from (interrupt if where == "reason" else None)
        except BaseException as error:
            uvicorn_logs(None if where == "unlogged" else error)
        uvicorn_logs(LookupError())
    with pytest.raises(KeyboardInterrupt):
        Served(1, "uvicorn", raised).check()


@pytest.mark.parametrize("link", ["__cause__", "__context__"])
@pytest.mark.parametrize("to", ["itself", "its group"])  # as a BaseHTTPMiddleware leaves it
def test_an_exception_of_the_app_does_not_end_the_test(link: str, to: str) -> None:
    error = LookupError()
    setattr(error, link, error if to == "itself" else ExceptionGroup("of tasks", [error]))
    with pytest_mwbudget.load.server._logged() as raised:
        uvicorn_logs(error)
        uvicorn_logs(None)
    Served(1, "uvicorn", raised).check()
    assert raised == [error]


def test_what_an_app_logs_to_the_loggers_of_uvicorn_is_its_own(caplog: pytest.LogCaptureFixture) -> None:
    with pytest_mwbudget.load.server._logged() as raised:
        uvicorn_logs(LookupError())
        logging.getLogger("uvicorn.error").error("no cache", exc_info=LookupError())
    logging.getLogger("uvicorn.error").error("afterwards")
    assert caplog.messages == ["no cache", "afterwards"]
    assert len(raised) == 1


def uvicorn_logs(error: BaseException | None) -> None:
    logger = logging.getLogger("uvicorn.error")
    exc_info = None if error is None else (type(error), error, error.__traceback__)
    logger.handle(logger.makeRecord(logger.name, logging.ERROR, PROTOCOL.__file__ or "", 1, "it failed", (), exc_info))


def test_an_app_is_warmed_up_until_the_share_of_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ns, bursts = [5_000_000_000], []

    async def sent(self: Any, clients: int, requests: int, skipped: int) -> dict[str, int]:
        bursts.append((clients, requests, skipped))
        now_ns[0] += 100_000 * requests
        return {"request_ns": 100_000, "all_ns": 100_000 * requests, "answered": requests}

    monkeypatch.setattr(_Driver, "sent", sent)
    monkeypatch.setattr(pytest_mwbudget.load.bursts, "waited_ns", lambda: 0)
    nothing: Any = None
    environment: Any = SimpleNamespace(clock=lambda: now_ns[0], cpu_clock=lambda: now_ns[0] // 2)
    arms: Any = SimpleNamespace(stack=SimpleNamespace(threads=()))
    driver = _Driver(nothing, Settings(load_time_s=1.0), Under(9), environment, nothing, arms, nothing, nothing)
    asyncio.run(driver.warm(now_ns[0]))
    assert len(bursts) > 2
    assert bursts[:2] == [(9, 9, 0), (9, 100, 2)]
    assert now_ns[0] - 5_000_000_000 > 0.1 * 10**9
    assert (driver.request_ns, driver.working_ns, driver.occupied) == (100_000, 50_000, 0.5)


WORKED, QUEUED = 900_000, 50_000


@pytest.mark.parametrize(
    ("clients", "worked", "queued", "request_ns", "working_ns", "occupied"),
    [
        (9, WORKED, QUEUED, 1e6 / 50, WORKED / 50, 0.9 / 0.95),  # the bottleneck: it works from end to end
        (9, WORKED // 2, QUEUED, 30_000, WORKED / 100, 0.3 / 0.95),
        (1, WORKED, QUEUED, 30_000, WORKED / 50, 0.6 / 0.95),
        (9, WORKED // 2, None, 30_000, WORKED / 100, None),
        (9, WORKED, None, 1e6 / 50, WORKED / 50, 0.9),
        (9, None, QUEUED, 30_000, None, None),
    ],
)
def test_the_time_of_a_request_in_a_burst(
    clients: int, worked: int | None, queued: int | None, request_ns: float, working_ns: float | None, occupied: Any
) -> None:
    nothing: Any = None
    driver = _Driver(nothing, Settings(), Under(clients), *[nothing] * 5)
    figures = {"request_ns": 30_000, "all_ns": 1_000_000, "answered": 50}
    timed = driver._timed(figures, worked, queued)
    assert (timed.request_ns, timed.working_ns) == (request_ns, working_ns)
    assert timed.occupied == (occupied if occupied is None else pytest.approx(occupied))


@pytest.mark.parametrize(
    ("request_ns", "clients", "bound", "expected"),
    [
        (100_000.0, 1, False, (800, 1)),
        (100_000.0, 1000, True, (1000, 1)),
        (100_000.0, 1000, False, (2000, 2)),
        (1_000_000.0, 1000, True, (1000, 0)),  # more would take more than a tenth of the time
        (1_000_000.0, 1000, False, (2000, 2)),
        (3_000_000.0, 1000, False, (1000, 0)),  # more would take more than all the time
        (50e6, 1, False, (20, 1)),
        (1e9, 50, True, (50, 0)),
        (20e9, 1, False, (1, 1)),
    ],
)
def test_the_number_of_requests_of_a_burst(
    request_ns: float, clients: int, bound: bool, expected: tuple[int, int]
) -> None:
    skipped = 1 if bound or clients == 1 else 2
    assert requests_of(request_ns, clients, 10e9, skipped, bound=bound) == expected


def test_a_slow_app_is_observed_in_few_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = []

    async def noted(self: Any, clients: int, requests: int, skipped: int) -> Any:
        sent.append((clients, requests))
        return {"request_ns": 1e9 / clients}

    monkeypatch.setattr(_Driver, "sent", noted)
    monkeypatch.setattr(_Driver, "_observed", noted)
    nothing: Any = None
    parts = [nothing] * 5
    driver = _Driver(nothing, Settings(load_time_s=10.0), Under(100), *parts, request_ns=1e7)
    assert asyncio.run(driver.observations()) is not None
    assert sent == [(1, 1), (1, 2), (100, 300)]


@pytest.mark.parametrize(
    ("figures", "raised", "said", "status"),
    [
        (
            {"statuses": {"200": 7, "500": 2, "404": 1}},
            None,
            "of 10 requests *, 1 answered 404, 2 answered 500, not",
            404,
        ),
        ({"statuses": {"200": 9, "500": 1}}, LookupError("no row"), "*, 1 answered 500, *LookupError: no row*", 500),
        (
            {"statuses": {"200": 9}},
            LookupError("late"),
            "all 9 requests of 3 clients answered 200; the app raised LookupError: late",
            None,
        ),
        ({"error": "the server was silent"}, None, "with 3 clients, the server was silent. Under load *", None),
    ],
)
def test_what_is_wrong_with_a_burst(figures: Any, raised: Exception | None, said: str, status: int | None) -> None:
    async def burst(clients: int, requests: int, skipped: int) -> Any:
        return figures

    nothing: Any = None
    caller: Any = SimpleNamespace(status=200, template=SimpleNamespace(line="GET /"))
    process: Any = SimpleNamespace(burst=burst)
    served = Served(1, "uvicorn", [raised] if raised else [])
    driver = _Driver(caller, Settings(), Under(3), nothing, nothing, nothing, served, process)
    with pytest.raises(ResponseError) as failed:
        asyncio.run(driver.sent(3, 10, 1))
    assert fnmatch(str(failed.value), f"GET /: {said}*")
    assert (failed.value.status, failed.value.__cause__, served.raised) == (status, raised, [])


def observation(clients: int, us: float) -> Observation:
    """Return what a burst shows in which requests are in the first layer for this long."""
    return Observation(clients, {FIRST: us}, latency_us=1e6, turn_us=1.0, request_us=1000.0, idle=0.0, steady=False)


SLOW = Burst(request_us=1000.0, latencies_us=[1000.0], gauges=(100.0,))
OTHER_WAY = "the app takes another way without it: 600 µs less under load, not 5"


@pytest.mark.parametrize(
    ("whole", "longest_us", "why_not", "method", "share", "why"),
    [
        (SLOW, 1e4, {}, "bypass", 0.6, None),
        # If requests queue in the layer, nobody can tell whether the app does something else without it.
        (SLOW, 10.0, {}, "split", 0.005, OTHER_WAY),
        (SLOW, 1e4, {FIRST: "it is late"}, "split", 0.005, "it is late"),
        # Each of nine clients waits for its own requests, while the thread works for half of the time.
        (replace(SLOW, working_us=500.0), 1e4, {FIRST: "it is late"}, "split", 0.01 / 9, "it is late"),
        # Other processes lengthen the bursts, in half of which the thread works.
        (replace(SLOW, queued=0.5, working_us=500.0), 1e4, {FIRST: "it is late"}, "split", 0.01, "it is late"),
    ],
)
def test_the_figures_of_a_layer_are_those_of_bursts_past_it_if_these_tell(
    whole: Burst, longest_us: float, why_not: Any, method: str, share: float, why: str | None
) -> None:
    load = under_load_past(whole, longest_us, why_not).load
    assert load is not None
    assert load.share is not None
    assert (load.method, load.why, load.share.estimate) == (method, why, pytest.approx(share))
    assert load.judged is not None
    assert (load.judged.verdict == "fail") == (method == "bypass")


@pytest.mark.parametrize(
    ("working_us", "clients", "threads", "clock"),
    [
        (950.0, 9, 0, "processor"),
        (950.0, 1, 0, "wall"),
        (950.0, 9, 1, "wall"),
        (500.0, 9, 0, "wall"),
        (None, 9, 0, "wall"),
    ],
)
def test_a_share_is_of_processor_time_where_the_loop_is_the_bottleneck(
    working_us: float | None, clients: int, threads: int, clock: str
) -> None:
    load = under_load_past(replace(SLOW, working_us=working_us), 1e4, {}, clients=clients, threads=threads).load
    assert load is not None
    assert load.share is not None
    assert load.added_us is not None
    assert (load.method, load.clock, load.share.estimate) == ("bypass", clock, pytest.approx(0.6))
    assert load.added_us.estimate == pytest.approx(570.0 if clock == "processor" else 600.0)


@pytest.mark.parametrize(
    ("bound", "why_not", "verdict"), [(0.4, {}, "undecided"), (0.6, {}, "pass"), (0.4, {FIRST: "it is late"}, "pass")]
)
def test_where_bursts_say_next_to_nothing_they_must_not_contradict_the_split(
    bound: float, why_not: Any, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = LayerLoad(Estimate(0.2, -0.1, 0.5), "bypass")
    monkeypatch.setattr("pytest_mwbudget.analysis.shares.bypassed", lambda *_: wide)
    load = under_load_past(SLOW, 1e4, why_not, bound=bound).load
    assert load is not None
    assert load.judged is not None
    assert (load.method, load.judged.verdict) == ("split", verdict)
    if verdict == "undecided":
        assert load.judged.reason == f"{load.why} [not-bypassed]"


@pytest.mark.parametrize(
    ("working_us", "clients", "other"),
    [
        (950.0, 100, None),
        (100.0, 1, None),
        (None, 100, None),
        (100.0, 100, "the app takes another way without it: 810 µs less under load, not 5"),
        (800.0, 100, None),  # 40 µs: while the thread works, others wait for the layer too
    ],
)
def test_what_each_client_waits_for_tells_that_an_app_that_waits_does_less(
    working_us: float | None, clients: int, other: str | None
) -> None:
    waits = replace(SLOW, working_us=working_us)
    load = under_load_past(waits, 10.0, {}, clients=clients, without_us=990.0, bound=0.005, suspensions=1).load
    assert load is not None
    assert load.judged is not None
    assert (load.method, load.why) == (("bypass", None) if other is None else ("split", other))
    assert (load.judged.verdict == "fail") == (other is None)


def test_what_quick_layers_leave_to_others_is_of_what_each_client_waits_for() -> None:
    waits = replace(SLOW, working_us=100.0)
    row, _ = outcome_of(waits, 1e4, {}, joined=True, clients=100, without_us=990.0, bound=0.005, suspensions=1)
    assert row.load is not None
    assert row.load.judged is not None
    assert row.load.judged.verdict == "undecided"
    assert row.load.judged.reason is not None
    assert row.load.judged.reason.startswith("it takes next to nothing, but bursts past it save 1% (1% to 1%)")


def test_a_layer_that_is_over_its_budget_by_its_self_time_fails_whatever_the_body() -> None:
    load = under_load_past(replace(SLOW, working_us=1000.0), 1e4, {}, changing=True, bound=0.002).load
    assert load is not None
    assert load.judged is not None
    assert load.judged.verdict == "fail"


@pytest.mark.parametrize(("bound", "verdict"), [(0.4, "undecided"), (0.7, "pass")])
def test_a_layer_without_which_the_body_has_another_length_does_not_fail(bound: float, verdict: str) -> None:
    load = under_load_past(SLOW, 1e4, {}, changing=True, bound=bound).load
    assert load is not None
    assert load.judged is not None
    assert (load.method, load.judged.verdict) == ("bypass", verdict)
    assert ("a body of another length" in (load.judged.reason or "")) == (verdict == "undecided")


@pytest.mark.parametrize(("bound", "verdict"), [(0.0165, "undecided"), (0.017, "pass")])
def test_the_self_time_of_a_layer_passes_only_with_room_for_the_caches_of_a_server(bound: float, verdict: str) -> None:
    load = under_load_past(SLOW, 1e4, {FIRST: "a POST request is sent past no layer"}, bound=bound).load
    assert load is not None
    assert load.judged is not None
    assert (load.method, load.judged.verdict) == ("split", verdict)
    if verdict == "undecided":
        assert load.judged.reason is not None
        assert load.judged.reason.startswith("behind a server a layer takes up to 2.8 times its self time")


def test_where_nobody_saw_whether_requests_queue_the_self_time_of_a_layer_does_not_pass() -> None:
    load = under_load_past(SLOW, 1e4, {FIRST: "it is late"}, is_observed=False).load
    assert load is not None
    assert load.judged is not None
    assert load.judged.verdict == "undecided"
    assert load.judged.reason is not None
    assert load.judged.reason.startswith("there was too little time to see whether requests queue in it; give it more")
    bound = under_load_past(replace(SLOW, working_us=950.0), 1e4, {FIRST: "it is late"}, is_observed=False).load
    assert bound is not None
    assert bound.judged is not None
    assert bound.judged.verdict == "pass"


def test_a_layer_that_starts_a_task_is_not_blamed_if_it_may_be_another_way() -> None:
    load = under_load_past(SLOW, 10.0, {}, tasks=1).load
    assert load is not None
    assert load.share is not None
    assert load.judged is not None
    assert (load.method, load.why, load.share.estimate) == ("bypass", None, pytest.approx(0.6))
    assert load.judged.verdict == "undecided"
    beside = "it starts tasks or threads that may work after the response"
    assert load.judged.reason == f"{beside}, or {OTHER_WAY}; set a budget of us or of tasks instead [not-bypassed]"


LEAVES = "a layer may leave work to the worker of a queue or to a callback, which is in no own time"
AS_LONG = Estimate(3.0, -8.0, 9.0)  # by how much shorter requests are in the app without layers: not at all
SHORTER = Estimate(590.0, 580.0, 600.0)


@pytest.mark.parametrize(
    ("shorter_us", "bound", "verdict"),
    [
        (None, 0.1, "undecided"),
        (AS_LONG, 0.1, "undecided"),
        (AS_LONG, 0.61, "pass"),
        (SHORTER, 0.1, "pass"),  # the app does less, such as for a client that is not logged in
        (Estimate(300.0, 290.0, 310.0), 0.1, "undecided"),  # both
        (Estimate(300.0, 290.0, 310.0), 0.32, "pass"),
    ],
)
def test_a_quick_layer_passes_unless_requests_past_all_quick_layers_save_more(
    shorter_us: Estimate | None, bound: float, verdict: str
) -> None:
    row, notes = outcome_of(SLOW, 1e4, {}, joined=True, shorter_us={TOGETHER: shorter_us}, bound=bound)
    assert row.load is not None
    assert row.load.judged is not None
    assert (row.load.method, row.load.why, row.load.judged.verdict) == ("split", "it is quick", verdict)
    if verdict == "undecided":
        assert row.load.judged.reason is not None
        assert row.load.judged.reason.startswith("it takes next to nothing, but bursts past it save ")
        less = "" if shorter_us else ", or the app may do less without them"
        assert row.load.judged.reason.endswith(f"{LEAVES}{less} [not-bypassed]")
    assert any(LEAVES in note for note in notes) == (shorter_us != SHORTER)


def test_a_pass_says_that_no_request_was_sent_past_all_quick_layers() -> None:
    why_not = {FIRST: "it is quick", TOGETHER: "the app answers 500 without them"}
    row, notes = outcome_of(SLOW, 1e4, why_not)
    assert row.load is not None
    assert row.load.judged is not None
    assert row.load.judged.verdict == "pass"
    assert [note for note in notes if "is not seen: the app answers 500 without them. [not-bypassed]" in note]


@pytest.mark.parametrize(
    ("shorter_us", "bound", "method", "verdict", "reason"),
    [
        (AS_LONG, 0.1, "bypass", "undecided", f"{LEAVES}, or {OTHER_WAY}; set a budget of p99_ms instead"),
        (AS_LONG, 0.7, "bypass", "pass", ""),
        (SHORTER, 0.1, "split", "pass", ""),
        (None, 0.1, "split", "undecided", f"{OTHER_WAY}, or {LEAVES}"),
        (None, 0.7, "split", "pass", ""),
        (Estimate(300.0, 290.0, 310.0), 0.1, "split", "undecided", f"{OTHER_WAY}, or {LEAVES}"),
    ],
)
def test_a_layer_past_which_requests_save_far_more_leaves_work_to_others_or_the_app_does_less(
    shorter_us: Estimate | None, bound: float, method: str, verdict: str, reason: str
) -> None:
    load = under_load_past(SLOW, 10.0, {}, shorter_us={FIRST: shorter_us}, bound=bound).load
    assert load is not None
    assert load.judged is not None
    assert (load.method, load.judged.verdict) == (method, verdict)
    assert (load.judged.reason or "").startswith(reason)


@pytest.mark.parametrize("suspensions", [0, 1])
def test_time_in_the_app_tells_why_only_if_requests_are_never_suspended(suspensions: int) -> None:
    for longest_us, joined, arm in ((10.0, False, FIRST), (1e4, True, TOGETHER)):
        outcome = made_outcome(SLOW, longest_us, {}, joined=joined, suspensions=suspensions)
        assert [*outcome.unexplained()] == ([] if suspensions else [arm])


def under_load_past(whole: Burst, longest_us: float, why_not: Any, **options: Any) -> ResultRow:
    """Return the row of a layer of 5 µs and a budget of a tenth, past which requests take 400 µs."""
    return outcome_of(whole, longest_us, why_not, **options)[0]


def outcome_of(whole: Burst, longest_us: float, why_not: Any, **options: Any) -> tuple[ResultRow, Sequence[str]]:
    """Return the same row, and the notes."""
    result = made_outcome(whole, longest_us, why_not, **options).result(1.0)
    assert result.load is not None
    return result.layers[0], result.load.notes


def made_outcome(
    whole: Burst,
    longest_us: float,
    why_not: Any,
    tasks: int = 0,
    clients: int = 9,
    threads: int = 0,
    suspensions: int = 0,
    bound: float = 0.1,
    joined: bool = False,
    shorter_us: Any = None,
    changing: bool = False,
    is_observed: bool = True,
    without_us: float = 400.0,
) -> _Outcome:
    """Return what is known of the layer, which is left out only together with others if it is `joined`."""
    arms = asyncio.run(arms_of(Noop(hello)))
    arms.why_not.update(why_not)
    arms.changing.update([FIRST] if changing else [])
    without_working_us = whole.working_us and whole.working_us * without_us / 1000
    without = replace(whole, request_us=without_us, working_us=without_working_us)
    arms.join([FIRST] if joined else [], "it is quick")
    bursts = Bursts([{None: whole, TOGETHER if joined else FIRST: without}] * 6)
    driver: Any = SimpleNamespace(
        arms=arms,
        settings=Settings(load_budgets=Budgets({RPS_SHARE: bound})),
        under=Under(clients),
        requests=1,
        served=Served(1, "uvicorn"),
        caller=SimpleNamespace(loop=SimpleNamespace(name="asyncio")),
        environment=SimpleNamespace(machine=SimpleNamespace(best_ns=math.inf)),
    )
    numbers = (0, tasks, threads, suspensions)
    none, of_tasks, of_threads, suspended = (Count(number, number, number) for number in numbers)
    counts = Counts(none, none, none, of_tasks, of_threads, none, none, none, suspended)
    layer = Layer(RowIndex(0), "Noop", "tests.apps.Noop", "middleware")
    row = ResultRow(layer, Estimate(5.0, 4.0, 6.0), counts=counts)
    before = Result(request=RequestLine("GET", "/"), status=200, layers=(row,))
    observed = (observation(1, 10.0), observation(9, longest_us)) if is_observed else None
    return _Outcome(before, driver, bursts, observed, {RowIndex(0): FIRST}, Conditions(), shorter_us or {})


def test_the_end_of_the_load_generator_is_not_blamed_on_a_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    left_out: list[Any] = []

    async def burst(self: Any, requests: int, skipped: int) -> Burst:
        if left_out[-1]:
            raise MeasurementError("the load generator ended with status 1")
        return replace(SLOW, request_us=100.0)

    async def main() -> None:
        arms: Any = await arms_of(Noop(hello))
        arms.bypasses = SimpleNamespace(without=lambda *layers: nullcontext(left_out.append(layers)))
        environment: Any = SimpleNamespace(clock=count(0, 100_000).__next__, progress=lambda share: None)
        nothing: Any = None
        driver = _Driver(
            nothing, Settings(load_time_s=0.1), Under(1), environment, nothing, arms, nothing, nothing, request_ns=1e5
        )
        await driver.rounds(0)

    monkeypatch.setattr(_Driver, "burst", burst)
    with pytest.raises(MeasurementError, match="the load generator ended"):
        asyncio.run(main())


@pytest.mark.skipif(sys.platform == "win32", reason="there is no limit of open files")
def test_a_file_for_each_client_can_be_opened() -> None:
    import resource

    kind = resource.RLIMIT_NOFILE
    before = resource.getrlimit(kind)
    try:
        resource.setrlimit(kind, (512, before[1]))
        with pytest_mwbudget.load.server.files_for(100):
            assert resource.getrlimit(kind)[0] == 612
        assert resource.getrlimit(kind)[0] == 512
    finally:
        resource.setrlimit(kind, before)
