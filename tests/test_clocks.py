"""Tests may freeze or patch Python's clocks: the package has clocks of its own, and its time limits hold."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from textwrap import dedent
from typing import Any
from unittest.mock import patch

import anyio
import freezegun
import pytest
from asgi_lifespan import LifespanManager

from pytest_mwbudget.asgi import loops
from pytest_mwbudget.asgi.lifespan import _Manager, lifespan
from pytest_mwbudget.asgi.request import build_request
from pytest_mwbudget.config.budgets import Budgets
from pytest_mwbudget.config.settings import Settings
from pytest_mwbudget.engine import measure, send_once
from pytest_mwbudget.errors import LifespanError, MeasurementError
from pytest_mwbudget.interpreter import clocks
from pytest_mwbudget.model.results import LoopName
from pytest_mwbudget.timing.looks import Environment

from .apps import LEAN, Noop, hello, respond
from .projects import QUICK
from .readings import readings

every_loop = pytest.mark.parametrize("name", ["asyncio", "uvloop", "trio"])


def frozen(**how: Any) -> AbstractContextManager[Any]:
    """Freeze the time, or change it as `how` says."""
    freezing: AbstractContextManager[Any] = freezegun.freeze_time("2020-01-01", **how)
    return freezing


def on(name: LoopName, function: Callable[[], Awaitable[Any]]) -> Any:
    pytest.importorskip(name)
    return loops.run(name, function)


# ---- the clocks -------------------------------------------------------------------------------------------------


def moved(clock: Callable[[], float], calls: int = 100_000) -> bool:
    before = clock()
    return any(clock() != before for _ in range(calls))


@pytest.mark.parametrize("clock", ["perf_counter", "perf_counter_ns", "thread_time_ns"])
def test_they_run_while_those_of_python_stand_still(clock: str) -> None:
    with frozen():
        assert not moved(time.perf_counter, 1000)
        assert moved(getattr(clocks, clock))
    with patch.object(time, clock, lambda: 7):
        assert moved(getattr(clocks, clock))


def test_no_module_of_the_package_has_a_clock_of_python() -> None:
    """freezegun and `patch` replace attributes of modules, so no module may have a clock among its attributes."""
    kinds = (time.time, time.monotonic, time.perf_counter, time.perf_counter_ns, time.thread_time_ns, time.sleep)
    for name, module in list(sys.modules.items()):
        # The load generator runs in a process of its own.
        if name.startswith("pytest_mwbudget") and name != "pytest_mwbudget.load.generator":
            values = [value for value in vars(module).values() if value is time or value in kinds]
            assert not values, name


def test_they_are_real_in_a_package_that_is_imported_while_time_stands_still() -> None:
    program = """
import time
from freezegun import freeze_time
frozen = freeze_time("2020-01-01")
frozen.start()
from pytest_mwbudget.asgi import loops
from pytest_mwbudget.interpreter import clocks
from pytest_mwbudget.timing import looks, probes
begin = clocks.perf_counter()
assert clocks.perf_counter is not time.perf_counter
while clocks.perf_counter() - begin < 0.01:
    pass
frozen.stop()
assert looks.Environment().clock is clocks.perf_counter_ns
assert abs(clocks.perf_counter() - time.perf_counter()) < 60
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_what_runs_and_what_does_not() -> None:
    assert clocks.runs(time.monotonic)
    with frozen():
        assert not clocks.runs(time.monotonic)
    with frozen(auto_tick_seconds=500):
        assert not clocks.runs(time.monotonic)
    with frozen(tick=True):
        assert clocks.runs(time.monotonic)


def test_a_clock_that_stands_still_is_refused() -> None:
    request = build_request("GET", "/", {})
    with pytest.raises(MeasurementError, match=r"most requests took 0 ns: .*; run this test without it"):
        asyncio.run(
            measure(Noop(hello), request, Settings(Budgets({"us": 50}), lifespan=False), Environment(clock=lambda: 7))
        )


# ---- whole measurements -----------------------------------------------------------------------------------------

FREEZING = {
    "freezegun": """
        from freezegun import freeze_time
        freeze_time("2020-01-01").start()
    """,
    "patched": """
        import time
        time.perf_counter_ns = time.monotonic_ns = time.thread_time_ns = lambda: 5
        time.perf_counter = time.monotonic = lambda: 5.0
    """,
}


@pytest.mark.parametrize("freezing", FREEZING)
@pytest.mark.live
@readings
def test_budgets_hold_where_time_stood_still_before_the_package_was_imported(
    freezing: str, pytester: pytest.Pytester
) -> None:
    pytester.makeconftest(dedent(FREEZING[freezing]) + QUICK)
    pytester.makepyfile(
        """
        import pytest

        class Works:
            def __init__(self, app):
                self.app = app
            async def __call__(self, scope, receive, send):
                for number in range(5000):
                    str(number)
                await self.app(scope, receive, send)

        async def hello(scope, receive, send):
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b""})

        @pytest.fixture
        def mw_budget_app():
            return Works(hello)

        pytestmark = pytest.mark.mw_budget(lifespan=False)

        @pytest.mark.mw_budget(total_us=50)
        def test_total(mw_budget):
            mw_budget.get("/")

        @pytest.mark.mw_budget(us=50)
        def test_layer(mw_budget):
            mw_budget.get("/")

        @pytest.mark.mw_budget(us=1_000_000)
        def test_kept(mw_budget):
            mw_budget.get("/")
        """
    )
    options = ["--mw-budget", "--mw-budget-flamegraph=never", "-p", "no:cacheprovider", "-p", "no:timeout", *LEAN]
    result = pytester.runpytest_subprocess(*options, timeout=300)
    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines_random(["GET /: total * µs, budget 50 µs", "GET /: Works * µs, budget 50 µs*"])


# ---- time limits ------------------------------------------------------------------------------------------------


@every_loop
@pytest.mark.parametrize("seconds", [0.01, 3600.0])
def test_a_limit_holds_while_time_stands_still(name: LoopName, seconds: float) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await anyio.sleep(seconds)
        await anyio.sleep_forever()

    request = build_request("GET", "/", {})
    with frozen(), pytest.raises(MeasurementError, match=r"did not begin a response within 0\.02 s"):
        on(name, lambda: send_once(app, request, Settings(lifespan=False, startup_timeout_s=0.02)))


@every_loop
@pytest.mark.parametrize("phase", ["startup", "shutdown"])
def test_the_limit_of_a_lifespan_holds_while_time_stands_still(
    name: LoopName, phase: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if phase == "shutdown":  # on a busy machine the startup may take longer
        monkeypatch.setattr(_Manager, "startup", LifespanManager.startup)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        for step in ("startup", "shutdown"):
            await receive()
            if step == phase:
                await anyio.sleep_forever()
            await send({"type": f"lifespan.{step}.complete"})

    async def main() -> None:
        async with lifespan(app, 0.1):
            pass

    with frozen(), pytest.raises(LifespanError, match=rf"{phase} did not end within 0\.1 s"):
        on(name, main)


@every_loop
def test_a_clock_that_leaps_ends_nothing_before_its_time(name: LoopName) -> None:
    async def main() -> str:
        async with loops.current().limited(30):
            with frozen() as freezer:
                await anyio.sleep(0)
                freezer.tick(3600)
                for _ in range(20):
                    await anyio.sleep(0)
            for _ in range(20):
                await anyio.sleep(0)
        return "in time"

    assert on(name, main) == "in time"


@every_loop
def test_after_a_leap_the_limit_still_holds(name: LoopName) -> None:
    async def main() -> None:
        async with loops.current().limited(0.02):
            with frozen():
                await anyio.sleep_forever()

    with pytest.raises(loops.OutOfTimeError):
        on(name, main)


@every_loop
def test_time_can_be_added_while_the_clock_stands_still(name: LoopName) -> None:
    async def main() -> str:
        async with loops.current().limited(0.01) as extend:
            extend(30)
            begin = clocks.perf_counter()
            while clocks.perf_counter() - begin < 0.03:
                await anyio.sleep(0)
        return "in time"

    with frozen():
        assert on(name, main) == "in time"


@every_loop
def test_nothing_of_a_limit_is_left_after_its_block(name: LoopName) -> None:
    before = set(sys._current_frames())

    async def main() -> int:
        turns = 0
        with frozen():
            for _ in range(20):
                async with loops.current().limited(0.002):
                    pass
        begin = clocks.perf_counter()
        while not turns or clocks.perf_counter() - begin < 0.02:
            await anyio.sleep(0)
            turns += 1
        return turns

    assert on(name, main)
    begin = clocks.perf_counter()
    while set(sys._current_frames()) - before:
        assert clocks.perf_counter() - begin < 5


def test_the_thread_of_a_limit_is_not_one_of_threading() -> None:
    async def main() -> None:
        before = threading.enumerate()
        async with loops.current().limited(30):
            begin = clocks.perf_counter()
            while len(sys._current_frames()) == len(before):  # until the thread has started
                assert clocks.perf_counter() - begin < 5
            assert threading.enumerate() == before

    with frozen():
        asyncio.run(main())


def test_where_time_runs_a_limit_starts_no_thread() -> None:
    """Python warns if an app forks while another thread runs."""

    async def main() -> set[int]:
        before = set(sys._current_frames())
        async with loops.current().limited(30):
            return set(sys._current_frames()) - before

    assert asyncio.run(main()) == set()


async def answers(scope: Any, receive: Any, send: Any) -> None:
    await respond(send)


@every_loop
def test_an_app_that_answers_is_served_while_time_stands_still(name: LoopName) -> None:
    request = build_request("GET", "/", {})
    with frozen():
        assert on(name, lambda: send_once(answers, request, Settings(lifespan=False))).status == 200
