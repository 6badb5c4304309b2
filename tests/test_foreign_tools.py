"""Tracers, profilers and monitoring tools are suspended during a measurement, and restored exactly."""

from __future__ import annotations

import asyncio
import cProfile
import gc
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from profile import Profile
from time import perf_counter_ns
from typing import Any

import pytest

from pytest_mwbudget.config.budgets import Budgets
from pytest_mwbudget.interpreter import internals, tracers
from pytest_mwbudget.interpreter.foreign_tools import FRAMES_OF_PROBES, ForeignTools, raised_recursion_limit, suspended
from pytest_mwbudget.interpreter.monitoring import instrumented
from pytest_mwbudget.interpreter.tracers import ThreadTool, described, profiled, threads_untraced

from .apps import FAST_SCHEDULE, Noop, hello, measured, measured_async

monitoring: Any = getattr(sys, "monitoring", None)
needs_monitoring = pytest.mark.skipif(monitoring is None, reason="sys.monitoring came with Python 3.12")


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    """Remove tracers and profilers for these tests, and restore the ones that watch the test run."""
    trace, profile = sys.gettrace(), sys.getprofile()
    thread_trace, thread_profile = threading.gettrace(), threading.getprofile()
    sys.settrace(None)
    sys.setprofile(None)
    yield
    sys.settrace(trace)
    sys.setprofile(profile)
    threading.settrace(thread_trace)  # type: ignore[arg-type]
    threading.setprofile(thread_profile)  # type: ignore[arg-type]


def other_tools() -> list[str]:
    """List the monitoring tools that watch the test run itself, as a measurement reports them."""
    names = [] if monitoring is None else [monitoring.get_tool(tool) for tool in range(6)]
    return [f"a sys.monitoring tool ({name})" for name in names if name is not None]


class Tool:
    """A tracer or profiler that counts its events."""

    def __init__(self) -> None:
        self.events = 0

    def __call__(self, frame: Any, event: str, arg: object) -> Tool:
        self.events += 1
        return self


def work() -> None:
    sum(number for number in range(3))


def test_nothing_at_work() -> None:
    watching = other_tools()
    with suspended() as foreign_tools:
        assert foreign_tools.suspended == watching
        assert foreign_tools.active == []


@pytest.mark.parametrize("kind", ["trace", "profile"])
def test_a_tracer_or_profiler_sleeps_and_wakes(kind: str) -> None:
    install, installed = getattr(sys, f"set{kind}"), getattr(sys, f"get{kind}")
    tool = Tool()
    install(tool)
    try:
        with suspended() as foreign_tools:
            assert installed() is None
            before = tool.events
            work()
            assert tool.events == before
        assert installed() is tool
        work()
        assert tool.events > before
    finally:
        install(None)
    assert [name for name in foreign_tools.suspended if "Tool" in name] == [
        f"a {kind}r (tests.test_foreign_tools.Tool)"
    ]


@pytest.mark.parametrize("kind", ["trace", "profile"])
def test_new_threads_are_left_alone_too(kind: str) -> None:
    install, installed = getattr(threading, f"set{kind}"), getattr(threading, f"get{kind}")
    tool = Tool()
    install(tool)
    with threads_untraced():
        assert installed() is None
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert tool.events == 0
    assert installed() is tool


@pytest.mark.parametrize("kind", ["trace", "profile"])
def test_they_are_back_after_an_exception(kind: str) -> None:
    install, installed = getattr(sys, f"set{kind}"), getattr(sys, f"get{kind}")
    tool = Tool()
    install(tool)
    try:
        with pytest.raises(KeyboardInterrupt), suspended():
            raise KeyboardInterrupt
        assert installed() is tool
    finally:
        install(None)


@pytest.fixture
def thawed() -> Iterator[None]:
    """Unfreeze all objects: through frozen ones of a long run of tests, the search for watched code takes seconds."""
    gc.unfreeze()
    yield
    gc.freeze()


@pytest.mark.usefixtures("thawed")
def test_cprofile_sleeps_and_wakes() -> None:
    def seen() -> None: ...
    def unseen() -> None: ...

    with cProfile.Profile() as profiler:
        seen()
        with suspended() as foreign_tools:
            unseen()
        seen()
    counts = {entry.code.co_name: entry.callcount for entry in profiler.getstats() if not isinstance(entry.code, str)}
    assert counts["seen"] == 2
    assert "unseen" not in counts
    assert any("cProfile" in name for name in foreign_tools.suspended)
    assert foreign_tools.active == []


def test_profile_is_back_only_after_the_garbage_of_the_measurement_is_gone() -> None:
    class Node:
        pass

    references, profilers = [], []

    def measured() -> None:
        with suspended():
            node = Node()
            node.itself = node  # type: ignore[attr-defined]
            references.append(weakref.ref(node, lambda _: profilers.append(sys.getprofile())))
            del node

    gc.disable()
    try:
        Profile().runcall(measured)
    finally:
        gc.enable()
    assert profilers == [None]


# ---- other threads ----------------------------------------------------------------------------------------------


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1, "waiting") as executor:
        yield executor


def in_thread(pool: ThreadPoolExecutor, function: Callable[..., Any], *arguments: Any) -> Any:
    return pool.submit(function, *arguments).result()


@needs_monitoring  # on Python 3.11 a thread's tracer slows only that thread
@pytest.mark.parametrize("kind", ["trace", "profile"])
def test_a_tool_of_a_waiting_thread_sleeps_and_wakes(kind: str, pool: ThreadPoolExecutor) -> None:
    install, installed = getattr(sys, f"set{kind}"), getattr(sys, f"get{kind}")
    tool = Tool()
    with suspended():  # tools of the test run itself
        in_thread(pool, work)
        in_thread(pool, install, tool)
        assert instrumented(())
        with suspended() as foreign_tools:
            assert not instrumented(())
            events = tool.events
            in_thread(pool, work)
            assert tool.events == events
        assert foreign_tools.active == []
        assert foreign_tools.suspended == [f"a {kind}r (tests.test_foreign_tools.Tool) of the thread waiting_0"]
        assert foreign_tools.missed == ["waiting_0"]
        assert installed() is None
        assert in_thread(pool, installed) is tool
        in_thread(pool, work)
        assert tool.events > events
        in_thread(pool, install, None)
        assert not instrumented(())


@needs_monitoring
def test_a_thread_that_ends_meanwhile_leaves_nothing() -> None:
    tool = Tool()
    references = sys.getrefcount(tool)
    with suspended():
        pool = ThreadPoolExecutor(1)
        in_thread(pool, sys.settrace, tool)
        with suspended():
            pool.shutdown()
        assert not instrumented(())
        gc.collect()
        assert sys.getrefcount(tool) == references


@needs_monitoring
def test_a_tool_that_a_thread_installs_meanwhile_stays(pool: ThreadPoolExecutor) -> None:
    first, second = Tool(), Tool()
    with suspended():
        in_thread(pool, sys.settrace, first)
        with suspended() as foreign_tools:
            in_thread(pool, sys.settrace, second)
            foreign_tools.check()
            assert foreign_tools.active == ["a tracer (tests.test_foreign_tools.Tool) of the thread waiting_0"]
        assert in_thread(pool, sys.gettrace) is second
        in_thread(pool, sys.settrace, None)
        assert not instrumented(())


@needs_monitoring
def test_the_own_tracer_and_those_of_threads_are_put_back_each_where_it_was(pool: ThreadPoolExecutor) -> None:
    own, other = Tool(), Tool()
    with suspended():
        in_thread(pool, sys.settrace, other)
        sys.settrace(own)
        with suspended() as foreign_tools:
            assert sys.gettrace() is None
            assert in_thread(pool, sys.gettrace) is None
        assert sys.gettrace() is own
        sys.settrace(None)
        assert in_thread(pool, sys.gettrace) is other
        in_thread(pool, sys.settrace, None)
        assert not instrumented(())
    assert foreign_tools.suspended == ["a tracer (tests.test_foreign_tools.Tool), also of the thread waiting_0"]


class Beginning:
    """A tracer for new threads, like coverage's: at its first call it installs a tool of its own for the thread."""

    def __init__(self) -> None:
        self.tools: list[Tool] = []

    def __call__(self, frame: Any, event: str, arg: object) -> Tool:
        self.tools.append(Tool())
        sys.settrace(self.tools[-1])
        return self.tools[-1]


def waiting(leave: threading.Event, left: threading.Event, end: threading.Event) -> int:
    wait_in_a_call(leave)
    left.set()
    end.wait()
    return call_once()


def wait_in_a_call(leave: threading.Event) -> None:
    leave.wait()


def call_once() -> int:
    return 1


@needs_monitoring
@pytest.mark.parametrize("moves", [True, False])
def test_a_thread_that_has_left_a_call_meanwhile_begins_anew(moves: bool) -> None:
    """A tool that keeps a stack would attribute the thread's later functions to the finished call."""
    leave, left, end = (threading.Event() for _ in range(3))
    beginning = Beginning()
    with suspended():
        threading.settrace(beginning)
        thread = threading.Thread(target=waiting, args=(leave, left, end))
        thread.start()
        threading.settrace(None)  # type: ignore[arg-type]
        deadline = perf_counter_ns() + 120 * 10**9
        while "wait_in_a_call" not in (names := [frame.f_code.co_name for frame in stack_of(thread)]):
            assert perf_counter_ns() < deadline, names
        with suspended({"tracer": beginning, "profiler": None}):
            if moves:
                leave.set()
                left.wait()
        assert len(beginning.tools) == 1
        first = beginning.tools[0]
        events = first.events
        leave.set()
        end.set()
        thread.join()
        assert len(beginning.tools) == 1 + moves
        assert (first.events == events) is moves
        assert beginning.tools[-1].events > 0


def stack_of(thread: threading.Thread) -> list[Any]:
    frame, frames = sys._current_frames().get(thread.ident or 0), []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return frames


def test_many_threads_are_counted_in_a_message() -> None:
    tools = [ThreadTool("tracer", None, f"T{number}") for number in range(5)]
    assert described(tools) == ["a tracer (builtins.NoneType) of the threads T0, T1, T2 and 2 more"]


# ---- without the extension --------------------------------------------------------------------------------------


class NotCallable:
    """A stand-in for the object that `sys.getprofile` returns for a profiler written in C."""


@pytest.fixture
def without_extension(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(internals, "thread_tools", lambda: None)


@pytest.mark.usefixtures("without_extension")
@pytest.mark.parametrize("kind", ["trace", "profile"])
def test_without_the_extension_the_own_tool_sleeps_and_wakes(kind: str) -> None:
    test_a_tracer_or_profiler_sleeps_and_wakes(kind)


@pytest.mark.usefixtures("without_extension")
def test_a_profiler_that_cannot_be_put_back_stays_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    state = NotCallable()
    monkeypatch.setattr(sys, "getprofile", lambda: state)
    installed: list[object] = []
    monkeypatch.setattr(sys, "setprofile", installed.append)
    with suspended() as foreign_tools:
        assert foreign_tools.active == ["a profiler (tests.test_foreign_tools.NotCallable)"]
    assert installed == []


@needs_monitoring
@pytest.mark.usefixtures("without_extension")
def test_without_the_extension_a_tool_of_another_thread_is_told_and_nothing_measured(pool: ThreadPoolExecutor) -> None:
    in_thread(pool, sys.settrace, Tool())
    try:
        measurement = measured(
            Noop(hello), settings={"budgets": Budgets({"us": 1000.0, "objects": 1000, "tasks": 0}, {}, 1000.0)}
        )
    finally:
        in_thread(pool, sys.settrace, None)
    assert (measurement.books, measurement.effort, measurement.floor_us) == (None, None, None)
    assert measurement.ledger.total.objects is None
    judged = measurement.layer("Noop").judged
    assert {quantity: each_judged.verdict for quantity, each_judged in judged.items()} == {
        "us": "undecided", "objects": "undecided", "tasks": "pass"
    }  # fmt: skip
    assert measurement.total.verdict == "undecided"
    for reason in (judged["us"].reason, measurement.total.judged["us"].reason):
        assert reason is not None
        assert "waiting_0" in reason
        assert "measure without it, in a separate job" in reason


# ---- sys.monitoring -----------------------------------------------------------------------------------------------


@pytest.fixture
def tool() -> Iterator[int]:
    free = next(number for number in (4, 3, 0, 1, 2, 5) if monitoring.get_tool(number) is None)
    monitoring.use_tool_id(free, "counter")
    yield free
    monitoring.set_events(free, 0)
    for name, event in vars(monitoring.events).items():
        if name in ("PY_START", "LINE"):
            monitoring.register_callback(free, event, None)
    monitoring.free_tool_id(free)


@needs_monitoring
@pytest.mark.usefixtures("thawed")
def test_a_monitoring_tool_sleeps_and_wakes(tool: int) -> None:
    calls: list[str] = []

    def started(code: Any, offset: int) -> None:
        calls.append(code.co_name)

    event = monitoring.events.PY_START
    monitoring.register_callback(tool, event, started)
    monitoring.set_events(tool, event)
    with suspended() as foreign_tools:
        assert monitoring.get_events(tool) == 0
        assert monitoring.get_tool(tool) == "counter"
        work()
        assert "work" not in calls
    assert monitoring.get_events(tool) == event
    work()
    assert "work" in calls
    assert monitoring.register_callback(tool, event, None) is started
    assert "a sys.monitoring tool (counter)" in foreign_tools.suspended


@needs_monitoring
def test_events_of_a_single_code_object_sleep_and_wake(tool: int) -> None:
    lines: list[int] = []

    def line(code: Any, number: int) -> None:
        lines.append(number)

    event = monitoring.events.LINE
    monitoring.register_callback(tool, event, line)
    monitoring.set_local_events(tool, work.__code__, event)
    try:
        with suspended():
            work()
            assert lines == []
            assert not instrumented([work.__code__])
        work()
        assert lines
        assert instrumented([work.__code__])
        assert monitoring.get_local_events(tool, work.__code__) == event
    finally:
        monitoring.set_local_events(tool, work.__code__, 0)


def test_the_stack_may_be_deeper_and_its_limit_is_as_it_was() -> None:
    limit = sys.getrecursionlimit()
    with raised_recursion_limit(10):
        assert sys.getrecursionlimit() == limit + 10 * FRAMES_OF_PROBES
    assert sys.getrecursionlimit() == limit


def test_a_limit_of_the_stack_that_the_app_sets_stays() -> None:
    limit = sys.getrecursionlimit()
    try:
        with raised_recursion_limit(10):
            sys.setrecursionlimit(limit + 1000)
        assert sys.getrecursionlimit() == limit + 1000
    finally:
        sys.setrecursionlimit(limit)


def test_an_app_that_wants_no_limit_of_the_stack_keeps_it() -> None:
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(2**31 - 1)
    try:
        with raised_recursion_limit(10):
            assert sys.getrecursionlimit() == 2**31 - 1
        assert sys.getrecursionlimit() == 2**31 - 1
    finally:
        sys.setrecursionlimit(limit)


def test_a_measurement_suspends_what_it_finds_and_says_so() -> None:
    tool = Tool()

    async def main() -> Any:
        sys.settrace(tool)
        try:
            return await measured_async(Noop(hello))
        finally:
            assert sys.gettrace() is tool
            sys.settrace(None)

    measurement = asyncio.run(main())
    assert any("tests.test_foreign_tools.Tool" in note and "suspended" in note for note in measurement.notes)


class SwitchesOn(Noop):
    """A layer that installs a tracer in request number `at` and leaves it there, like an attaching debugger."""

    def __init__(self, app: Any, at: int) -> None:
        super().__init__(app)
        self.left = at

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.left -= 1
        if not self.left:
            sys.settrace(Tool())
        await self.app(scope, receive, send)


# At most 70 requests come before those that are timed, which are 128 at least.
COUNTS_BRIEFLY = replace(FAST_SCHEDULE, warm_calls=10, warm_ns=10**9, fewest_first=128)


@pytest.mark.parametrize("at", [5, 100])
def test_a_tracer_that_a_layer_installs_meanwhile_is_told_and_there_is_no_figure(at: int) -> None:
    """The tracer appears before or while requests are counted, or while they are timed."""
    settings = {"budgets": Budgets({"us": 1000.0})}
    measurement = measured(SwitchesOn(Noop(hello), at), schedule=COUNTS_BRIEFLY, settings=settings)
    sys.settrace(None)
    assert measurement.books is None
    assert measurement.layer("Noop").us is None
    assert measurement.verdict == "undecided"
    assert measurement.layer("Noop").judged["us"].reason == (
        "a tracer (tests.test_foreign_tools.Tool) was active during the measurement; measure without it, in a"
        " separate job [active-tool]"
    )


def test_what_to_do_about_coverage_is_told() -> None:
    why = ForeignTools(active=["a tracer (coverage.tracer.CTracer) of the thread worker"]).why_no_figures
    assert "of the thread worker was active" in why
    assert "--no-cov" in why
    assert "COVERAGE_CORE=sysmon" in why


def test_a_measurement_leaves_no_tool() -> None:
    measured(Noop(hello))
    assert sys.getprofile() is None
    assert sys.gettrace() is None


# ---- profiling all threads --------------------------------------------------------------------------------------


needs_native = pytest.mark.skipif(internals.thread_tools() is None, reason="needs the extension in C")


@needs_native
def test_every_thread_is_profiled_for_a_while() -> None:
    threads: set[int] = set()

    def profiler(frame: Any, event: str, arg: object) -> None:
        threads.add(threading.get_ident())

    references = sys.getrefcount(profiler)
    with ThreadPoolExecutor(1) as before, ThreadPoolExecutor(1) as meanwhile:
        idents = {threading.get_ident(), before.submit(threading.get_ident).result()}
        with profiled(profiler) as every:
            assert every
            before.submit(work).result()
            idents.add(meanwhile.submit(threading.get_ident).result())
        assert threads == idents
        assert tracers.at_work() == []
        assert [pool.submit(sys.getprofile).result() for pool in (before, meanwhile)] == [None, None]
        threads.clear()
        for pool in (before, meanwhile):
            pool.submit(work).result()
        assert threads == set()
        assert (sys.getprofile(), threading.getprofile()) == (None, None)
    assert sys.getrefcount(profiler) == references


@needs_native
def test_a_thread_keeps_its_own_profiler() -> None:
    tool = Tool()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(sys.setprofile, tool).result()
        with profiled(Tool()) as every:
            assert not every
        assert pool.submit(sys.getprofile).result() is tool
        pool.submit(sys.setprofile, None).result()


def test_without_the_extension_only_this_thread_is_profiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(internals, "thread_tools", lambda: None)
    own = Tool()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result()
        with profiled(own) as every:
            assert not every
            assert sys.getprofile() is own
            assert pool.submit(sys.getprofile).result() is None
            assert threading.getprofile() is None
