"""Attribution of profiles to layers, in live apps that spin in known places."""

from __future__ import annotations

import asyncio
import gc
import inspect
import sys
import time
import traceback
import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import anyio
import freezegun
import pytest
from pyinstrument.frame import Frame
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from pytest_mwbudget import engine as measure_module
from pytest_mwbudget.analysis.profile_stacks import MARKER, MOST_DEPTH
from pytest_mwbudget.asgi import loops
from pytest_mwbudget.asgi.request import build_request
from pytest_mwbudget.config.budgets import Budgets
from pytest_mwbudget.config.settings import Settings
from pytest_mwbudget.engine import measure
from pytest_mwbudget.interpreter.foreign_tools import ForeignTools
from pytest_mwbudget.model.results import Measurement, Profile, Result
from pytest_mwbudget.profiling.attribution import OwnerMarkers
from pytest_mwbudget.profiling.sampling import Profiled
from pytest_mwbudget.report.flamegraph import FlamegraphRenderer, hottest, short_path
from pytest_mwbudget.timing.looks import Environment
from pytest_mwbudget.timing.schedule import Schedule

from .apps import FAST, MOST_S, SHORT_PROFILE, Noop, hello
from .readings import readings

SPUN_US = 500.0
Node = dict[str, Any]


def spin(us: float) -> None:
    end = time.perf_counter() + us / 1e6
    while time.perf_counter() < end:
        pass


def burn() -> None:
    spin(SPUN_US)


class Hot:
    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        burn()
        await self.app(scope, receive, send)


class Calls:
    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        for _ in range(100):
            uuid.uuid4()
        await self.app(scope, receive, send)


class Waits:
    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(0.002)
        await self.app(scope, receive, send)


class PassOn(BaseHTTPMiddleware):
    async def dispatch(self, request: Any, call_next: Callable[[Any], Any]) -> Any:
        return await call_next(request)


def cold(request: Any) -> None:
    """Do no work."""


async def home(request: Any) -> PlainTextResponse:
    request.app.state.work(request)
    return PlainTextResponse("hello")


def hot(request: Any) -> None:
    burn()


def stack(*layers: Any, work: Callable[[Any], None] = cold) -> Starlette:
    app = Starlette(routes=[Route("/", home)], middleware=[Middleware(layer) for layer in layers])
    app.state.work = work
    return app


# These tests check profiles, not times, so a failure counts without watching the machine first.
BRIEF = Schedule(**FAST | {"watched_time_s": 0})
# For tests that look at no figure.
FEW_SAMPLES = replace(BRIEF, precision_time_s=0.0, **SHORT_PROFILE)


async def profiled(app: Any, schedule: Schedule = BRIEF, **settings: Any) -> tuple[Profiled | None, Measurement]:
    published: list[Profiled] = []

    def publish(one: Profiled, result: Result) -> Profile:
        published.append(one)
        return Profile(one.requests, one.samples, one.request_us, "a", "b", "c")

    request = build_request("GET", "/", {})
    chosen = Settings(**{"max_time_s": MOST_S, "flamegraph": "always"} | settings)
    measurement = await measure(app, request, chosen, Environment(schedule=schedule), publish)
    return (published[0] if published else None), measurement


def data(app: Any, loop: str = "asyncio", **options: Any) -> tuple[Node, Profiled, Measurement]:
    """Return the flamegraph's data of an app, the profile and the measurement."""
    profile, measurement = loops.run(loop, lambda: profiled(app, **options))
    page = FlamegraphRenderer(measurement, "test", profile.requests, profile.request_us)
    return page.data(profile.session), profile, measurement


def nodes(node: Node) -> Iterator[Node]:
    yield node
    for child in node["children"]:
        yield from nodes(child)


def block(root: Node, name: str) -> Node:
    (block_node,) = (node for node in nodes(root) if node["kind"] != "function" and node["name"] == name)
    return block_node


def own(node: Node) -> list[Node]:
    """Return the functions directly below a block."""
    return [child for child in node["children"] if child["kind"] == "function"]


def own_us(node: Node) -> float:
    return sum(child["us"] for child in own(node))


def within(node: Node, name: str) -> float:
    """Return the microseconds of a function in a block's own frames, including its callees."""
    return sum(frame["us"] for child in own(node) for frame in nodes(child) if frame["name"] == name)


def own_times(node: Node) -> dict[str, float]:
    """Return the self time of a block's functions in microseconds, by name."""
    times: dict[str, float] = {}
    for child in own(node):
        for frame in nodes(child):
            times[frame["name"]] = times.get(frame["name"], 0.0) + frame["own_us"]
    return times


def assert_hot(node: Node, share: float) -> None:
    """Check that `burn`, with its callees, is the hottest function in a block and has `share` of the time ± 10 %."""
    times = own_times(node)
    hot = sum(times.pop(name, 0.0) for name in ("burn", "spin", "perf_counter"))
    assert hot > max(times.values(), default=0.0)
    assert within(node, "burn") / own_us(node) == pytest.approx(share, rel=0.1)


@pytest.mark.live
@readings
def test_a_spin_in_a_helper_of_one_layer_among_six() -> None:
    app = stack(Named("A"), PassOn, GZipMiddleware, Hot, PassOn, Named("B"))
    flamegraph, _, measurement = data(app)
    row = measurement.layer("Hot").us
    assert_hot(block(flamegraph["root"], "Hot"), SPUN_US / row.estimate)
    everywhere = sum(node["us"] for node in nodes(flamegraph["root"]) if node["name"] == "burn")
    assert within(block(flamegraph["root"], "Hot"), "burn") == pytest.approx(everywhere)


@pytest.mark.live
@readings
def test_a_spin_in_the_endpoint_below_a_task_layer() -> None:
    flamegraph, _, measurement = data(stack(CORS, PassOn, GZipMiddleware, work=hot))
    endpoint = block(flamegraph["root"], "(endpoint)")
    assert_hot(endpoint, SPUN_US / measurement.books.endpoint.estimate)
    assert endpoint in list(nodes(block(flamegraph["root"], "PassOn")))


@pytest.mark.live
@readings
def test_blocks_are_nested_as_the_layers_are_and_take_what_the_rows_say() -> None:
    flamegraph, profile, measurement = data(stack(Hot, PassOn, work=hot))
    outer = [node["name"] for node in nodes(flamegraph["root"]) if node["kind"] == "layer"]
    assert outer == ["ServerErrorMiddleware", "Hot", "PassOn", "ExceptionMiddleware", "(endpoint)"]
    for name in ("Hot", "PassOn"):
        row = measurement.layer(name).us
        assert own_us(block(flamegraph["root"], name)) == pytest.approx(row.estimate, rel=0.02)
    assert flamegraph["requests"] == profile.requests
    assert flamegraph["samples"] == profile.samples > 100


@pytest.mark.live
@readings
def test_a_layers_wait_is_the_event_loops_time_below_it() -> None:
    flamegraph, _, _ = data(stack(Waits, Hot))
    loop = within(block(flamegraph["root"], "Waits"), "BaseEventLoop._run_once") or within(
        block(flamegraph["root"], "Waits"), "_UnixSelectorEventLoop._run_once"
    )
    assert loop > 1000
    assert within(block(flamegraph["root"], "Hot"), "select") == 0


@pytest.mark.parametrize("loop", ["uvloop", "trio"])
@pytest.mark.live
@readings
def test_on_loops_that_cannot_be_looked_into_a_row_has_the_time_that_it_was_busy(loop: str) -> None:
    pytest.importorskip(loop)
    flamegraph, _, _ = data(stack(Hot, PassOn), loop)
    assert_hot(block(flamegraph["root"], "Hot"), 1.0)


@pytest.mark.live
@readings
def test_without_times_in_the_result_a_profile_is_corrected_by_times_of_its_own() -> None:
    budgets = Budgets({"tasks": 0}, {}, None)
    flamegraph, _, measurement = data(stack(Calls, Hot, PassOn), budgets=budgets, flamegraph="failing")
    assert measurement.books is None
    assert flamegraph["plain_us"] is None
    assert [layer["name"] for layer in flamegraph["layers"] if layer["suspect"]] == ["PassOn"]
    assert 0.5 * SPUN_US < within(block(flamegraph["root"], "Hot"), "burn") < 3 * SPUN_US
    # Subtracted is the profiler's work at the calls of this layer, not also that at the calls of other layers.
    calls = block(flamegraph["root"], "Calls")
    assert within(calls, "uuid4") > 0.5 * own_us(calls)
    _, timed = asyncio.run(profiled(stack(Calls, Hot, PassOn), BRIEF, flamegraph="never"))
    assert 0.3 < own_us(calls) / timed.layer("Calls").us.estimate < 3


@pytest.mark.live
@readings
def test_the_hottest_functions_are_the_layers_own() -> None:
    _, profile, measurement = data(stack(Hot, PassOn, work=hot), budgets=Budgets({"us": 300.0}, {}, None))
    first, *_ = hottest(profile.session, measurement.layer("Hot").layer, profile.requests)
    assert first.function in {"spin", "perf_counter"}
    assert all(
        hot_function.function != "burn"
        for hot_function in hottest(profile.session, measurement.layer("PassOn").layer, 1, 99)
    )
    byname = {
        hot_function.function: hot_function
        for hot_function in hottest(profile.session, measurement.layer("Hot").layer, profile.requests, 99)
    }
    assert byname["burn"].total_us == pytest.approx(SPUN_US, rel=0.1)
    assert byname["burn"].own_us < 0.1 * SPUN_US
    assert byname["burn"].file.endswith("test_profiling.py")
    assert byname["burn"].line == burn.__code__.co_firstlineno


@pytest.mark.parametrize(
    ("prefix", "path", "shown"),
    [
        (".venv", "tests/apps.py", "tests/apps.py"),
        (".venv", ".venv/lib/site-packages/starlette/routing.py", "starlette/routing.py"),
        (".venv", ".venvs/apps.py", ".venvs/apps.py"),
        ("", "tests/apps.py", "tests/apps.py"),
        ("/", "tests/apps.py", "tests/apps.py"),
        ("/", "/elsewhere/lib.py", "lib.py"),
    ],
)
def test_a_path_is_that_below_the_working_directory_or_where_it_was_imported_from(
    prefix: str, path: str, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shorten paths whether the virtual environment is below the working directory or is that directory."""

    class Context:
        sys_prefixes = (str(tmp_path / prefix),)

        def shorten_path(self, path: str) -> str:
            starts = (tmp_path / ".venv/lib/site-packages", tmp_path / "tests", "/elsewhere")
            return min((path.removeprefix(f"{start}/") for start in starts), key=len)

    monkeypatch.chdir(tmp_path)
    assert short_path(Frame(f"function\x00{tmp_path / path}\x001", context=Context())) == shown


@pytest.mark.parametrize(
    ("mode", "us", "there"), [("never", 1.0, False), ("failing", 1e6, False), ("failing", 100.0, True)]
)
def test_what_is_profiled(mode: str, us: float, there: bool) -> None:
    budgets = Budgets({}, {"Hot": {"us": us}}, None)
    _, measurement = asyncio.run(profiled(stack(Hot), FEW_SAMPLES, flamegraph=mode, budgets=budgets))
    assert (measurement.profile is not None) == there


def test_an_app_that_stops_answering_has_a_note_and_no_flamegraph() -> None:
    def fail_in_a_profile(request: Any) -> None:
        frame: FrameType | None = sys._getframe()
        while frame is not None:
            if frame.f_code.co_filename == MARKER:
                raise ValueError("not here")
            frame = frame.f_back

    _, measurement = asyncio.run(profiled(stack(Hot, work=fail_in_a_profile), FEW_SAMPLES))
    assert measurement.profile is None
    assert measurement.layer("Hot").us is not None
    assert (
        measurement.notes[-1]
        == "There is no flamegraph: under the profiler the app raised ValueError: not here [no-flamegraph]"
    )


def test_an_app_that_fails_while_it_is_timed_for_a_profile_has_a_note_and_no_flamegraph(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    timing = False

    def fail_while_timed(request: Any) -> None:
        if timing:
            raise ValueError("not again")

    async def roughly_timed(run: Any, findings: Any) -> Result:
        nonlocal timing
        timing = True
        return await untouched(run, findings)

    untouched = measure_module._Run.roughly_timed
    monkeypatch.setattr(measure_module._Run, "roughly_timed", roughly_timed)
    budgets = Budgets({"tasks": 0}, {}, None)
    _, measurement = asyncio.run(profiled(stack(PassOn, work=fail_while_timed), budgets=budgets, flamegraph="failing"))
    assert measurement.profile is None
    assert measurement.verdict == "fail"
    assert measurement.notes[-1].startswith("There is no flamegraph: GET /: ")


@pytest.mark.live
@readings
def test_a_request_of_very_many_calls_is_drawn_without_counting_them() -> None:
    flamegraph, _, _ = data(stack(Hot, PassOn), schedule=replace(BRIEF, profile_events=200))
    assert own_times(block(flamegraph["root"], "Hot"))
    assert sys.getprofile() is None


@pytest.mark.live
@readings
def test_deep_recursion_can_be_drawn() -> None:
    def deep(request: Any, depth: int = 300) -> None:
        if depth:
            deep(request, depth - 1)
        else:
            burn()

    flamegraph, profile, measurement = data(stack(Hot, work=deep))
    assert max(len(frames) for frames, _ in profile.session.frame_records) <= MOST_DEPTH
    FlamegraphRenderer(measurement, "test", 1, 1.0).render(profile.session)
    assert block(flamegraph["root"], "(endpoint)")["us"] > SPUN_US / 2


@pytest.mark.live
def test_frozen_time_does_not_stop_the_profiler() -> None:
    with freezegun.freeze_time("2020-01-01"):
        profile, measurement = asyncio.run(profiled(Noop(hello), lifespan=False))
    assert profile is not None, measurement.notes
    assert profile.samples > 0
    assert profile.session.duration > 0


@pytest.mark.live
@readings  # a request may take 2 s on a busy machine; with a longer limit the profile would have to be longer too
def test_a_time_limit_is_for_a_request_and_not_for_the_profile() -> None:
    schedule = replace(BRIEF, profile_least_s=2.5)
    profile, measurement = asyncio.run(profiled(stack(Hot), schedule, startup_timeout_s=2.0))
    assert profile is not None, measurement.notes


def test_where_another_profiler_stays_at_work_there_is_no_flamegraph(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def at_work(new_threads: object) -> Iterator[ForeignTools]:
        yield ForeignTools(active=["a profiler"])

    monkeypatch.setattr(measure_module, "suspended", at_work)
    profile, measurement = asyncio.run(profiled(stack(Hot)))
    assert profile is None
    assert measurement.notes[-1] == (
        "There is no flamegraph: a profiler was active during the measurement; measure without it, in a separate job"
        " [no-flamegraph]"
    )


@pytest.mark.parametrize("fails", [False, True])
def test_everything_is_as_it_was_afterwards(fails: bool) -> None:
    def work(request: Any) -> None:
        if fails and any(frame.filename == MARKER for frame in traceback.extract_stack()):
            raise ValueError("not here")

    schedule = replace(FEW_SAMPLES, profile_events=BRIEF.profile_events)  # recording calls must leave nothing either

    async def looked() -> None:
        loop: Any = asyncio.get_running_loop()
        own_run_once = loop._run_once
        loop._run_once = lambda: own_run_once()
        before = dict(vars(loop))
        codes = [layer.__call__.__code__ for layer in (Noop, GZipMiddleware, BaseHTTPMiddleware)]
        with warnings.catch_warnings(record=True) as seen:
            await profiled(stack(Noop, GZipMiddleware, PassOn, work=work), schedule)
        changing = {"_ready", "_scheduled", "_timer_cancelled_count"}
        assert {name: own for name, own in vars(loop).items() if before.get(name) is not own}.keys() <= changing
        assert vars(loop).keys() == before.keys()
        for layer, code in zip((Noop, GZipMiddleware, BaseHTTPMiddleware), codes, strict=True):
            assert layer.__call__.__code__ is code
        assert sys.getprofile() is None
        assert gc.isenabled()
        assert not seen
        loop._run_once = own_run_once

    asyncio.run(looked())


class CORS(CORSMiddleware):
    def __init__(self, app: Any) -> None:
        super().__init__(app, allow_origins=["*"])


def Named(name: str) -> type:
    async def call(self: Any, scope: Any, receive: Any, send: Any) -> None:
        await self.app(scope, receive, send)

    return type(name, (), {"__init__": lambda self, app: setattr(self, "app", app), "__call__": call})


def test_the_coroutine_of_a_task_tells_its_state() -> None:
    """Report the state of the coroutine: anyio only cancels tasks whose coroutines have started."""

    async def waits() -> None:
        await asyncio.sleep(0)

    root = OwnerMarkers(1).coroutine_proxy(0, waits(), True)
    assert inspect.getcoroutinestate(root) == inspect.CORO_CREATED
    root.send(None)
    assert inspect.getcoroutinestate(root) == inspect.CORO_SUSPENDED
    root.close()
    assert inspect.getcoroutinestate(root) == inspect.CORO_CLOSED


@pytest.mark.live
def test_a_group_that_is_cancelled_in_a_request_ends_under_the_profiler() -> None:
    class Cancels(PassOn):
        async def dispatch(self, request: Any, call_next: Callable[[Any], Any]) -> Any:
            async with anyio.create_task_group() as group:
                group.start_soon(anyio.sleep, 30)
                await asyncio.sleep(0)
                group.cancel_scope.cancel()
            return await call_next(request)

    _, profile, _ = data(stack(Cancels))
    assert profile.requests > 0
