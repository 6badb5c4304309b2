"""All event loops behave alike, and a measurement runs on each of them."""

from __future__ import annotations

import asyncio
import contextvars
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from importlib import import_module
from importlib.util import find_spec
from typing import Any, get_args

import anyio
import pytest

from pytest_mwbudget import engine
from pytest_mwbudget.asgi import loops
from pytest_mwbudget.asgi.deadlines import MOST_DELAYS, AsyncioAlarm, Deadline, Times, queued_ns
from pytest_mwbudget.asgi.request import build_request
from pytest_mwbudget.config.settings import Settings
from pytest_mwbudget.errors import LifespanError, MeasurementError
from pytest_mwbudget.model.results import LoopName
from pytest_mwbudget.timing.looks import Environment
from pytest_mwbudget.timing.schedule import Schedule

from .apps import ANYIO, FAST_SCHEDULE, MOST_S, Noop, hello, respond, run_inside
from .readings import near, readings

NAMES: tuple[LoopName, ...] = ("asyncio", "uvloop", "trio")
variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable", default=0)


@pytest.fixture(params=NAMES)
def run(request: pytest.FixtureRequest) -> Callable[[Callable[[], Awaitable[Any]]], Any]:
    """A function that runs an async function on a new loop, of each kind in turn."""
    pytest.importorskip(request.param)
    return lambda function: loops.run(request.param, function)


Run = Callable[[Callable[[], Awaitable[Any]]], Any]


@pytest.mark.parametrize("name", NAMES)
def test_the_running_loop_is_recognised(name: LoopName) -> None:
    pytest.importorskip(name)

    async def main() -> tuple[str, str]:
        assert loops.running()
        return loops.current().name, loops.current().library

    assert loops.run(name, main) == (name, "trio" if name == "trio" else "asyncio")
    assert not loops.running()


def test_without_a_loop_there_is_none_to_be_had() -> None:
    with pytest.raises(RuntimeError):
        loops.current()


def test_the_current_loop_of_the_thread_stays_as_it_was() -> None:
    mine = asyncio.new_event_loop()
    asyncio.set_event_loop(mine)
    try:
        for name in NAMES:
            pytest.importorskip(name)
            loops.run(name, lambda: anyio.sleep(0))
        assert asyncio.get_event_loop() is mine
    finally:
        asyncio.set_event_loop(None)
        mine.close()


def test_a_task_has_a_context_of_its_own_and_is_another_task(run: Run) -> None:
    async def inside(outer: object, seen: list[object]) -> None:
        seen.append(variable.get())
        seen.append(loops.current().task() is outer)
        variable.set(2)

    async def main() -> list[object]:
        loop, seen = loops.current(), []
        variable.set(1)
        await loop.in_task(None, inside, loop.task(), seen)
        return [*seen, variable.get()]

    assert run(main) == [1, False, 1]


@pytest.mark.parametrize("error", [ValueError, SystemError, KeyboardInterrupt])
def test_what_a_task_raises_is_raised_to_the_caller(run: Run, error: type[BaseException]) -> None:
    async def inside() -> None:
        raise error("from inside")

    async def main() -> None:
        await loops.current().in_task(None, inside)

    with pytest.raises(error, match="from inside"):
        run(main)


def test_an_event_wakes_who_waits_for_it(run: Run) -> None:
    async def main() -> list[str]:
        loop, seen = loops.current(), []
        event = loop.event()

        async def waits() -> None:
            await event.wait()
            seen.append("woken")

        async def sets() -> None:
            await loop.settle()
            seen.append("set")
            event.set()

        async with anyio.create_task_group() as group:
            group.start_soon(waits)
            group.start_soon(sets)
        assert event.is_set()
        return seen

    assert run(main) == ["set", "woken"]


def test_a_block_that_takes_too_long_is_ended_without_a_thread(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop that is always busy would not let a thread take the interpreter's lock."""
    monkeypatch.setattr("pytest_mwbudget.asgi.deadlines.Sleeper._sleep", lambda sleeper, *_: sleeper._gone.release())

    async def main() -> None:
        async with loops.current().limited(0.01):
            await anyio.sleep(10)

    with pytest.raises(loops.OutOfTimeError):
        run(main)


def test_a_timeout_of_the_app_is_the_apps_own(run: Run) -> None:
    async def main() -> None:
        async with loops.current().limited(10):
            raise TimeoutError("the app's")

    with pytest.raises(TimeoutError, match="the app's"):
        run(main)


def test_time_can_be_extended(run: Run) -> None:
    async def main() -> str:
        async with loops.current().limited(0.01) as extend:
            extend(10)
            await anyio.sleep(0.03)
            return "in time"
        raise AssertionError

    assert run(main) == "in time"


def test_no_time_is_added_to_what_has_gone_on_past_its_end(run: Run) -> None:
    async def swallows() -> None:
        try:
            await anyio.sleep(10)
        except BaseException:
            return

    async def main() -> None:
        loop = loops.current()
        async with loop.limited(0.01) as extend:
            await loop.in_task(None, swallows)
            extend(10)
            await anyio.sleep(0)

    with pytest.raises(loops.OutOfTimeError):
        run(main)


# ---- which asyncio loop -------------------------------------------------------------------------------------------


class NotAsyncios(asyncio.SelectorEventLoop):
    """A loop that a policy may make."""


def named_under_a_policy(name: LoopName | None, monkeypatch: pytest.MonkeyPatch) -> type:
    """Return the type of the loop that `run` makes under a policy of NotAsyncios."""
    monkeypatch.setattr(asyncio, "new_event_loop", NotAsyncios)

    async def main() -> type:
        return type(asyncio.get_running_loop())

    return loops.run(name, main)


def test_asyncio_said_is_asyncios_own_loop_whatever_the_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    own = asyncio.ProactorEventLoop if sys.platform == "win32" else asyncio.SelectorEventLoop
    assert named_under_a_policy("asyncio", monkeypatch) is own


def test_nothing_said_is_the_loop_of_the_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    assert named_under_a_policy(None, monkeypatch) is NotAsyncios


def test_an_app_that_installs_uvloop_runs_on_it_unless_asyncio_is_said() -> None:
    pytest.importorskip("uvloop")
    program = """
import warnings
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import uvloop
    uvloop.install()
from pytest_mwbudget.asgi import loops
async def main():
    return loops.current().name
print(loops.run(None, main), loops.run("asyncio", main), loops.run("uvloop", main))
"""
    command = [sys.executable, "-W", "error", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["uvloop", "asyncio", "uvloop"]


# ---- debug mode ---------------------------------------------------------------------------------------------------


async def debugged() -> tuple[bool, int]:
    """Return whether the loop's debug mode is on, and the depth of coroutine origin tracking."""
    return asyncio.get_running_loop().get_debug(), sys.get_coroutine_origin_tracking_depth()


@pytest.mark.parametrize("name", ["asyncio", "uvloop"])
@pytest.mark.parametrize("error", [None, LookupError])
def test_debug_mode_is_off_in_the_block_and_on_again_afterwards(name: LoopName, error: type[Exception] | None) -> None:
    pytest.importorskip(name)

    async def main() -> None:
        loop = loops.current()
        asyncio.get_running_loop().set_debug(True)
        assert (await asyncio.create_task(debugged())) == (True, 10)
        try:
            with loop.undebugged() as was:
                assert was
                assert (await asyncio.create_task(debugged())) == (False, 0)
                if error is not None:
                    raise error
        except LookupError:
            assert error is LookupError
        assert (await asyncio.create_task(debugged())) == (True, 10)

    loops.run(name, main)


def test_where_debug_mode_is_off_it_stays_off(run: Run) -> None:
    async def main() -> bool:
        with loops.current().undebugged() as was:
            return was

    assert run(main) is False


# ---- a whole measurement on each loop ----------------------------------------------------------------------------


def settings(**more: Any) -> Settings:
    return Settings(max_time_s=MOST_S, **more)


class Spins(Noop):
    """A layer that spins for 200 µs."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        import time

        end = time.perf_counter_ns() + 200_000
        while time.perf_counter_ns() < end:
            pass
        await self.app(scope, receive, send)


@readings
def test_layers_are_timed(run: Run) -> None:
    request = build_request("GET", "/", {})
    app = Noop(Spins(Noop(hello)))
    environment = Environment(schedule=Schedule(warm_ns=30_000_000, precision_time_s=0.1))
    measurement = run(lambda: engine.measure(app, request, settings(lifespan=False), environment))
    spins, noop = measurement.layer("Spins").us, measurement.layer("Noop#2").us
    assert spins is not None
    assert noop is not None
    assert near(spins - noop, 200, most_us=20)


def test_the_lifespan_runs_and_its_state_is_in_the_scope(run: Run) -> None:
    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await receive()
            scope["state"]["answer"] = 42
            seen.append("started")
            await send({"type": "lifespan.startup.complete"})
            await receive()
            seen.append("stopped")
            await send({"type": "lifespan.shutdown.complete"})
            return
        seen.append(str(scope["state"]["answer"]))
        await respond(send)

    request = build_request("GET", "/", {})
    measurement = run(lambda: engine.send_once(app, request, settings()))
    assert measurement.status == 200
    assert seen == ["started", "42", "stopped"]


def test_a_startup_that_fails_is_a_lifespan_error(run: Run) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        raise ValueError("no database")

    request = build_request("GET", "/", {})
    with pytest.raises(LifespanError, match="startup failed with ValueError: no database"):
        run(lambda: engine.send_once(app, request, settings()))


def test_an_app_without_lifespan_is_served(run: Run) -> None:
    request = build_request("GET", "/", {})
    assert run(lambda: engine.send_once(Noop(hello), request, settings())).status == 200


def test_an_app_that_never_answers_is_given_up(run: Run) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await anyio.sleep(60)

    request = build_request("GET", "/", {})
    with pytest.raises(MeasurementError, match=r"did not begin a response within 0\.01 s"):
        run(lambda: engine.send_once(app, request, settings(lifespan=False, startup_timeout_s=0.01)))


def test_an_exception_of_the_app_arrives_as_it_is(run: Run) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise LookupError("the app's")

    request = build_request("GET", "/", {})
    with pytest.raises(LookupError, match="the app's"):
        run(lambda: engine.send_once(app, request, settings(lifespan=False)))


def installed(*names: LoopName) -> list[LoopName]:
    """Import and return those that are installed: pytester forgets the modules that an inner run imports."""
    present = [name for name in names if find_spec(name) is not None]
    for name in present:
        import_module(name)
    return present


def test_sync_tests_choose_their_loop(pytester: pytest.Pytester) -> None:
    names = installed(*NAMES)
    pytester.makepyfile(
        f"""
        import pytest, sniffio

        LOOPS = {names}

        async def app(scope, receive, send):
            body = sniffio.current_async_library().encode()
            await send({{"type": "http.response.start", "status": 200, "headers": []}})
            await send({{"type": "http.response.body", "body": body}})

        @pytest.fixture
        def mw_budget_app():
            return app

        @pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.mw_budget(loop=name)) for name in LOOPS])
        @pytest.mark.mw_budget(lifespan=False)
        def test_marked(mw_budget, name):
            found = mw_budget.get("/")
            assert (found.loop, found.response.text) == (name, "trio" if name == "trio" else "asyncio")

        @pytest.mark.mw_budget(lifespan=False)
        def test_configured(mw_budget):
            print("configured:", mw_budget.get("/").loop)
        """
    )
    for options, configured in (((), "asyncio"), ((f"--mw-budget-loop={names[-1]}",), names[-1])):
        result = run_inside(pytester, "-rP", *options)
        result.assert_outcomes(passed=len(names) + 1)
        result.stdout.fnmatch_lines([f"configured: {configured}"])


def test_async_tests_are_measured_on_their_own_loop(pytester: pytest.Pytester) -> None:
    backends = installed("asyncio", "trio")
    pytester.makepyfile(
        f"""
        import pytest

        @pytest.fixture(params={backends})
        def anyio_backend(request):
            return request.param

        @pytest.fixture
        def mw_budget_app():
            async def app(scope, receive, send):
                await send({{"type": "http.response.start", "status": 200, "headers": []}})
                await send({{"type": "http.response.body", "body": b""}})
            return app

        @pytest.mark.anyio
        @pytest.mark.mw_budget(tasks=0, lifespan=False, undecided="pass")
        async def test_it(mw_budget, anyio_backend):
            found = await mw_budget.aget("/")
            assert (found.loop, found.verdict) == (anyio_backend, None)

        @pytest.mark.anyio
        @pytest.mark.mw_budget(loop="uvloop", lifespan=False)
        async def test_another(mw_budget):
            await mw_budget.aget("/")
        """
    )
    result = run_inside(pytester, "--mw-budget", using=[ANYIO])
    result.assert_outcomes(passed=len(backends), failed=len(backends))
    for backend in backends:
        result.stdout.fnmatch_lines([f"loop='uvloop' was requested, but this test runs on {backend}; *"])


def test_what_a_library_of_tasks_calls_is_no_layer_of_its_own() -> None:
    pytest.importorskip("trio")

    class InATaskOfItsOwn(Noop):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            import trio

            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.app, scope, receive, send)

    schedule = replace(FAST_SCHEDULE, precision_time_s=0.0)
    request, environment = build_request("GET", "/", {}), Environment(schedule=schedule)
    app = Noop(InATaskOfItsOwn(Noop(hello)))
    measurement = loops.run("trio", lambda: engine.measure(app, request, settings(lifespan=False), environment))
    assert [report.name for report in measurement.layers] == ["Noop#1", "InATaskOfItsOwn", "Noop#2"]


@pytest.mark.parametrize("name", get_args(LoopName))
def test_a_limit_can_be_moved_to_a_sooner_moment(name: LoopName) -> None:
    pytest.importorskip(name)

    async def main() -> None:
        async with loops.current().limited(3600) as extend:
            extend(0.01)
            await loops.current().event().wait()

    with pytest.raises(loops.OutOfTimeError):
        loops.run(name, main)


def test_a_limit_that_was_moved_holds_where_the_clock_of_the_loop_stands_still() -> None:
    class Frozen(asyncio.SelectorEventLoop):
        def time(self) -> float:
            return 0.0

    async def main() -> bool:
        loop, over, rang = asyncio.get_running_loop(), asyncio.Event(), []
        deadline = Deadline(0.01)
        alarm = AsyncioAlarm(loop, deadline, lambda: (rang.append(True), over.set()))
        time.sleep(0.03)  # A request that blocks for longer than its limit, but ends.
        assert not deadline.move(1)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not rang
        rescue = threading.Timer(10, loop.call_soon_threadsafe, [over.set])
        rescue.start()
        await over.wait()
        rescue.cancel()
        alarm.off()
        return bool(rang)

    with asyncio.Runner(loop_factory=Frozen) as runner:
        assert runner.run(main())


def test_a_limit_holds_where_the_clock_of_trio_stands_still() -> None:
    trio, testing = pytest.importorskip("trio"), pytest.importorskip("trio.testing")

    async def main() -> None:
        async with loops.current().limited(0.01):
            await loops.current().event().wait()

    with pytest.raises(loops.OutOfTimeError):
        trio.run(main, clock=testing.MockClock())


def test_a_limit_holds_where_a_test_freezes_the_clock_of_trio_later(monkeypatch: pytest.MonkeyPatch) -> None:
    trio = pytest.importorskip("trio")

    async def main() -> None:
        async with loops.current().limited(0.01):
            now = time.perf_counter()
            monkeypatch.setattr("trio._core._run.perf_counter", lambda: now)
            await trio.sleep_forever()

    with pytest.raises(loops.OutOfTimeError):
        trio.run(main)


# ---- a machine without a free processor -----------------------------------------------------------------------------


@dataclass
class Machine:
    """The times of a process: all pass by hand, in seconds."""

    real_s: float = 100.0
    cpu_s: float = 0.0
    queued_s: dict[str, float] = field(default_factory=lambda: {"1": 50.0, "2": 7.0})

    @property
    def times(self) -> Times:
        return Times(
            lambda: round(self.real_s * 1e9),
            lambda: round(self.cpu_s * 1e9),
            lambda: {thread: round(seconds * 1e9) for thread, seconds in self.queued_s.items()},
        )

    def works(self, seconds: float) -> None:
        self.real_s += seconds
        self.cpu_s += seconds

    def waits(self, seconds: float) -> None:
        self.real_s += seconds

    def starves(self, seconds: float, thread: str = "1") -> None:
        self.real_s += seconds
        self.queued_s[thread] = self.queued_s.get(thread, 0.0) + seconds


def test_a_limit_counts_the_time_in_which_an_app_works_or_waits() -> None:
    machine = Machine()
    deadline = Deadline(1, machine.times)
    machine.works(0.5)
    assert not deadline.over()
    machine.waits(0.5)
    assert deadline.over()


def test_an_app_that_works_for_longer_than_its_limit_without_a_pause_is_over_it() -> None:
    machine = Machine()
    deadline = Deadline(1, machine.times)
    machine.works(5)
    assert deadline.over()


@pytest.mark.parametrize("thread", ["1", "2", "new"])
def test_the_time_in_which_a_thread_waited_for_a_processor_does_not_count(thread: str) -> None:
    machine = Machine()
    deadline = Deadline(1, machine.times)
    machine.works(0.25)
    machine.starves(0.75, thread)
    assert not deadline.over()
    assert deadline.left_s() == pytest.approx(0.75)
    machine.waits(0.75)
    assert deadline.over()


def test_a_process_that_was_stopped_has_its_limit_once_more() -> None:
    machine = Machine()
    deadline = Deadline(1, machine.times)
    machine.waits(60)
    assert not deadline.over()
    assert deadline.left_s() == pytest.approx(1)
    machine.waits(60)  # it blocks the loop, again and again
    assert deadline.over()


def test_a_limit_that_is_moved_can_be_put_off_again() -> None:
    machine = Machine()
    deadline = Deadline(1, machine.times)
    for _ in range(3):
        machine.waits(60)
        assert not deadline.over()
        deadline.move(1)


def test_a_thread_that_never_gets_a_processor_puts_no_limit_off_for_ever() -> None:
    machine = Machine()
    deadline = Deadline(1, machine.times)
    delays = 0
    while not deadline.over():
        delays += 1
        machine.starves(1)
    assert delays == MOST_DELAYS + 1


@pytest.mark.parametrize("name", get_args(LoopName))
def test_an_app_that_got_no_processor_is_not_blamed(name: LoopName, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(name)
    waited = iter([0, 10**9])  # a second at the first time out, then nothing
    monkeypatch.setattr(loops, "queued_ns", lambda: {"1": next(waited, 10**9)})

    async def main() -> float:
        begin = time.perf_counter()
        try:
            async with loops.current().limited(0.01):
                await loops.current().event().wait()
        except loops.OutOfTimeError:
            return time.perf_counter() - begin
        raise AssertionError

    assert loops.run(name, main) > 0.015  # two limits of 10 ms; timers of uvloop may be shorter


@pytest.mark.skipif(sys.platform != "linux", reason="the system does not say how long threads waited")
def test_the_system_says_how_long_each_thread_waited() -> None:
    assert str(threading.get_native_id()) in queued_ns()


def test_a_system_that_does_not_say_it_has_no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_mwbudget.asgi.deadlines.THREADS", "/nowhere")
    assert queued_ns() == {}
