"""Tracers, profilers and monitoring tools sleep while the clock runs, and are back exactly as they were."""

from __future__ import annotations

import asyncio
import cProfile
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from pytest_mwbudget.instruments import FRAMES_OF_PROBES, deeper, suspended

from .apps import Noop, hello, measured, measured_async

monitoring: Any = getattr(sys, "monitoring", None)
needs_monitoring = pytest.mark.skipif(monitoring is None, reason="sys.monitoring came with Python 3.12")


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    """These tests need the instruments for themselves, and give them back to whoever watches the test run."""
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
    """The monitoring tools that watch the test run itself, as they are reported."""
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
    with suspended() as found:
        assert found.suspended == watching
        assert found.active == []


@pytest.mark.parametrize("kind", ["trace", "profile"])
def test_a_tracer_or_profiler_sleeps_and_wakes(kind: str) -> None:
    install, installed = getattr(sys, f"set{kind}"), getattr(sys, f"get{kind}")
    tool = Tool()
    install(tool)
    try:
        with suspended() as found:
            assert installed() is None
            before = tool.events
            work()
            assert tool.events == before
        assert installed() is tool
        work()
        assert tool.events > before
    finally:
        install(None)
    assert [name for name in found.suspended if "Tool" in name] == [f"a {kind}r (tests.test_instruments.Tool)"]


@pytest.mark.parametrize("kind", ["trace", "profile"])
def test_new_threads_are_left_alone_too(kind: str) -> None:
    install, installed = getattr(threading, f"set{kind}"), getattr(threading, f"get{kind}")
    tool = Tool()
    install(tool)
    with suspended() as found:
        assert installed() is None
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert tool.events == 0
    assert installed() is tool
    assert any("Tool" in name for name in found.suspended)


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


def test_cprofile_sleeps_and_wakes() -> None:
    def seen() -> None: ...
    def unseen() -> None: ...

    with cProfile.Profile() as profiler:
        seen()
        with suspended() as found:
            unseen()
        seen()
    counts = {entry.code.co_name: entry.callcount for entry in profiler.getstats() if not isinstance(entry.code, str)}
    assert counts["seen"] == 2
    assert "unseen" not in counts
    assert any("cProfile" in name for name in found.suspended)
    assert found.active == []


class NotCallable:
    """As the profiler's state that a profiler written in C leaves to be seen."""


def test_a_profiler_that_cannot_be_put_back_stays_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    state = NotCallable()
    monkeypatch.setattr(sys, "getprofile", lambda: state)
    installed: list[object] = []
    monkeypatch.setattr(sys, "setprofile", installed.append)
    with suspended() as found:
        assert found.active == ["a profiler (tests.test_instruments.NotCallable)"]
    assert installed == []


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
def test_a_monitoring_tool_sleeps_and_wakes(tool: int) -> None:
    calls: list[str] = []

    def started(code: Any, offset: int) -> None:
        calls.append(code.co_name)

    event = monitoring.events.PY_START
    monitoring.register_callback(tool, event, started)
    monitoring.set_events(tool, event)
    with suspended() as found:
        assert monitoring.get_events(tool) == 0
        assert monitoring.get_tool(tool) == "counter"
        work()
        assert "work" not in calls
    assert monitoring.get_events(tool) == event
    work()
    assert "work" in calls
    assert monitoring.register_callback(tool, event, None) is started
    assert "a sys.monitoring tool (counter)" in found.suspended


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
        work()
        assert lines
        assert monitoring.get_local_events(tool, work.__code__) == event
    finally:
        monitoring.set_local_events(tool, work.__code__, 0)


def test_the_stack_may_be_deeper_and_its_limit_is_as_it_was() -> None:
    limit = sys.getrecursionlimit()
    with deeper(10):
        assert sys.getrecursionlimit() == limit + 10 * FRAMES_OF_PROBES
    assert sys.getrecursionlimit() == limit


def test_a_limit_of_the_stack_that_the_app_sets_stays() -> None:
    limit = sys.getrecursionlimit()
    try:
        with deeper(10):
            sys.setrecursionlimit(limit + 1000)
        assert sys.getrecursionlimit() == limit + 1000
    finally:
        sys.setrecursionlimit(limit)


def test_an_app_that_wants_no_limit_of_the_stack_keeps_it() -> None:
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(2**31 - 1)
    try:
        with deeper(10):
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
    assert any("tests.test_instruments.Tool" in note and "suspended" in note for note in measurement.notes)


def test_a_measurement_leaves_no_instrument() -> None:
    measured(Noop(hello))
    assert sys.getprofile() is None
    assert sys.gettrace() is None
