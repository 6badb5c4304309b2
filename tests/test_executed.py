"""Executed code: every row has what its code executes, and the probes change nothing of it."""

from __future__ import annotations

import asyncio
import dis
import sys
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
import pytest
from fastapi import Depends, FastAPI
from starlette.concurrency import run_in_threadpool
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.responses import StreamingResponse

from pytest_mwbudget.asgi import loops
from pytest_mwbudget.config.budgets import Budgets
from pytest_mwbudget.counting import events, executed
from pytest_mwbudget.counting.attribution import Charging
from pytest_mwbudget.counting.backend import counting_backend
from pytest_mwbudget.counting.executed import Executed, ExecutedRun, Pace
from pytest_mwbudget.counting.rows import DIFFERS, same_number
from pytest_mwbudget.interpreter.clocks import perf_counter_ns
from pytest_mwbudget.interpreter.code_patching import PROBE_FILE
from pytest_mwbudget.interpreter.monitoring import free_tool, tool_at_work
from pytest_mwbudget.model.quantities import EXECUTED
from pytest_mwbudget.model.results import Counts, LoopName, Verdict
from pytest_mwbudget.model.stack import HARNESS, Owner
from pytest_mwbudget.report.terminal import failure
from pytest_mwbudget.storage import codec

from .apps import FAST_SCHEDULE, App, Noop, caller, discovered, hello, needs, respond
from .counted import COUNT_ONLY, LOOPS, PassThrough, SpawnsInAGroup, basic, counted, counts, every_loop, number

needs_executed = needs(*EXECUTED)
PACE = Pace(agreeing=5, most=40, limit_ns=5_000_000_000)


class Unprobed(Charging):
    """Charge the whole request to one owner, without any probe."""

    @contextmanager
    def placed(self) -> Iterator[None]:
        yield

    def entries(self) -> Counter[Owner]:
        return Counter(self.stack.ways().traced)

    async def _watch(self, app: Any, scope: Any, receive: Any, send: Any) -> None:
        """Call the app; the owner stays charged while the app is suspended, for what the loop and its tasks do."""
        await self.core.coroutine_proxy(HARNESS, self.core.run(HARNESS, app, scope, receive, send), True)
        self.core.callback(self.aside, int)()

    # Not a part of the request.
    _watch.__code__ = _watch.__code__.replace(co_filename=PROBE_FILE)


def executed_by(app: App, loop: LoopName = "asyncio", *, probed: bool = True) -> Executed:
    async def main() -> Executed:
        calls = await caller(app)
        await calls()
        stack = await discovered(calls)
        run = ExecutedRun(stack, counting_backend(), loops.current().library)
        if not probed:
            run.charging = Unprobed(stack, run.core, loops.current().library)
        return await run.count(calls.settled, PACE, perf_counter_ns)

    if loop != "asyncio":
        pytest.importorskip(loop)
    return loops.run(loop, main)


def totals(found: Executed) -> set[tuple[int, ...]]:
    """Return the sums of all rows, of each request that agreed."""
    assert not found.why_not
    assert not found.too_low
    return {tuple(map(sum, zip(*request, strict=True))) for request in found.requests}


# ---- stacks whose rows must add up --------------------------------------------------------------------------------


class Streams(BaseHTTPMiddleware):
    async def dispatch(self, request: Any, call_next: Any) -> Any:
        response = await call_next(request)

        async def upper() -> AsyncIterator[bytes]:
            async for piece in response.body_iterator:
                yield piece.upper()

        return StreamingResponse(upper())


class WrapsBoth(Noop):
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def own_send(message: Any) -> None:
            await send(message)

        async def own_receive() -> Any:
            return await receive()

        await self.app(scope, own_receive, own_send)


class CallsSoon(Noop):
    """A layer with a callback that the event loop runs while the inner app is suspended."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        loop.call_soon(lambda: done.set_result(sum(range(10))))
        loop.call_later(0, int)
        await done
        await self.app(scope, receive, send)


class SpawnsATask(Noop):
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        task = asyncio.get_running_loop().create_task(self.app(scope, receive, send))
        await asyncio.wait_for(task, 10)


class Sender:
    """A `send` that is an object, with an attribute."""

    def __init__(self, send: Any) -> None:
        self.send = send
        self.started = False

    async def __call__(self, message: Any) -> None:
        self.started = True
        await self.send(message)


class SendsThroughAnObject(Noop):
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        sender = Sender(send)
        await self.app(scope, receive, sender)
        assert sender.started


class ReadsTheObject(Noop):
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        assert not send.started
        await self.app(scope, partial(receive), partial(send))


class Swallows(Noop):
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await self.app(scope, receive, send)
            raise LookupError
        except LookupError:
            pass


class AwaitsAnObject(Noop):
    class Answer:
        def __init__(self, coroutine: Any) -> None:
            self.coroutine = coroutine

        def __await__(self) -> Any:
            return self.coroutine.__await__()

    class Gives(Noop):
        def __call__(self, scope: Any, receive: Any, send: Any) -> Any:
            return AwaitsAnObject.Answer(self.app(scope, receive, send))

    def __init__(self, app: Any) -> None:
        super().__init__(self.Gives(app))


def pieces(number: int) -> App:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(number):
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
            await anyio.sleep(0)
        await send({"type": "http.response.body", "body": b""})

    return app


def with_dependency() -> App:
    app: Any = FastAPI()

    async def session() -> AsyncIterator[int]:
        yield 1

    @app.get("/")
    async def root(number: int = Depends(session)) -> dict[str, int]:
        return {"number": number}

    return app


OF_ONE_TASK: dict[str, Callable[[], App]] = {
    "pure": lambda: Noop(WrapsBoth(Noop(Swallows(hello)))),
    "starlette": lambda: basic(Noop, WrapsBoth),
    "dependency": lambda: Noop(with_dependency()),
    "objects": lambda: SendsThroughAnObject(ReadsTheObject(AwaitsAnObject(hello))),
}
# Trio takes tasks in random order, so two requests to these do not execute the same there.
OF_TASKS: dict[str, Callable[[], App]] = {
    "base": lambda: basic(PassThrough, Noop, PassThrough),
    "streaming": lambda: Streams(Noop(WrapsBoth(pieces(5)))),
    "group": lambda: basic(SpawnsInAGroup, Noop),
    "callbacks": lambda: Noop(CallsSoon(Noop(pieces(2)))),
    "tasks": lambda: SpawnsATask(Noop(SpawnsATask(pieces(2)))),
}


@needs_executed
@pytest.mark.parametrize(
    ("name", "loop"),
    [
        *((name, loop) for name in OF_ONE_TASK for loop in LOOPS),
        *((name, loop) for name in OF_TASKS for loop in LOOPS[:2]),
    ],
)
def test_the_rows_add_up_to_what_a_request_without_probes_executes(name: str, loop: LoopName) -> None:
    app = (OF_ONE_TASK | OF_TASKS)[name]()
    bare, probed = executed_by(app, loop, probed=False), executed_by(app, loop)
    assert totals(bare) == totals(probed)


# ---- known numbers ------------------------------------------------------------------------------------------------


def instructions(function: Any) -> int:
    """Return the number of a function's instructions that can be seen. It must have no jumps."""
    names = [instruction.opname for instruction in dis.get_instructions(function)]
    assert not any("JUMP" in name for name in names)
    return len(names) - 1 - names.index("RESUME")


class Plain(Noop):
    def __init__(self, app: Any, work: Callable[[], Any]) -> None:
        super().__init__(app)
        self.work = work

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.work()
        await self.app(scope, receive, send)


class Holder:
    attribute = 1


def nothing() -> None:
    pass


def one_attribute() -> None:
    Holder.attribute  # noqa: B018


def one_call() -> None:
    len("")


def one_python_call() -> None:
    nothing()


def of(row: Counts) -> tuple[int, ...]:
    return tuple(number(row.of(quantity)) for quantity in EXECUTED)


@needs_executed
@every_loop
def test_a_layer_that_grows_by_one_instruction_or_call_shows_exactly(loop: LoopName) -> None:
    base = of(counts(counted(Plain(hello, nothing), loop=loop), "Plain"))
    for work, calls, entered in ((one_attribute, 0, 0), (one_call, 1, 0), (one_python_call, 1, 1)):
        more = instructions(work) - instructions(nothing) + entered * instructions(nothing)
        numbers = of(counts(counted(Plain(hello, work), loop=loop), "Plain"))
        assert numbers == (base[0] + more, base[1] + calls, base[2] + entered)


def many_calls(times: int) -> Callable[[], None]:
    """Return a function that makes so many calls more than one without."""

    def work() -> None:
        for _ in range(times):
            len("")

    return work


async def in_a_pool(work: Callable[[], Any]) -> None:
    await run_in_threadpool(work)


async def by_the_executor(work: Callable[[], Any]) -> None:
    await asyncio.get_running_loop().run_in_executor(None, work)


async def by_anyio(work: Callable[[], Any]) -> None:
    await anyio.to_thread.run_sync(work)


async def by_a_callback(work: Callable[[], Any]) -> None:
    done = asyncio.Event()
    asyncio.get_running_loop().call_soon(lambda: (work(), done.set()))
    await done.wait()


async def by_a_task(work: Callable[[], Any]) -> None:
    async def task() -> None:
        work()

    await asyncio.create_task(task())


class Hands(Noop):
    """A layer that hands work on."""

    def __init__(self, app: Any, how: Callable[[Callable[[], Any]], Any], work: Callable[[], Any]) -> None:
        super().__init__(app)
        self.how, self.work = how, work

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.how(self.work)
        await self.app(scope, receive, send)


@needs_executed
@pytest.mark.parametrize("how", [in_a_pool, by_the_executor, by_anyio, by_a_callback, by_a_task])
def test_work_that_is_handed_on_is_its_layers_or_unknown_and_never_zero(how: Callable[..., Any]) -> None:
    """Threads race, so the event loop may have more or less to do; the calls of the work are never missing."""
    times = 10_000
    for _ in range(3):
        measurement = counted(Noop(Hands(hello, how, many_calls(times))))
        row, others = (
            counts(measurement, "Hands"),
            (counts(measurement, "Noop"), measurement.ledger and measurement.ledger.endpoint),
        )
        if row.calls is None:
            assert row.why["calls"].startswith(DIFFERS)
            continue
        assert times < row.calls.count < 1.1 * times
        assert all(other is None or other.calls is None or other.calls.count < 100 for other in others)
        return
    assert how in (in_a_pool, by_the_executor, by_anyio), "only threads race"


# ---- requests that differ -----------------------------------------------------------------------------------------


def alternating(*times: int) -> Callable[[], None]:
    turns = iter(range(sys.maxsize))

    def work() -> None:
        sum(number for number in range(times[next(turns) % len(times)]))

    return work


@needs_executed
def test_a_row_whose_requests_differ_is_unknown_and_the_others_are_not() -> None:
    measurement = counted(Noop(Plain(hello, alternating(1, 4))))
    row = counts(measurement, "Plain")
    assert row.bytecodes is None
    assert row.calls is not None  # the same in every request
    assert row.why["bytecodes"].startswith(f"{DIFFERS}: ")
    low, high = map(int, row.why["bytecodes"].removeprefix(f"{DIFFERS}: ").split(" to "))
    assert low < high
    assert counts(measurement, "Noop").bytecodes is not None
    assert measurement.ledger.total.bytecodes is None
    assert not any("bytecodes" in note for note in measurement.notes)


@needs_executed
@pytest.mark.parametrize(("most", "verdict"), [(0, "fail"), (1_000_000, "pass"), (None, "undecided")])
def test_a_row_whose_requests_differ_is_judged_by_their_range(most: int | None, verdict: Verdict) -> None:
    app, noop = Noop(Plain(hello, alternating(1, 40))), {"Noop": {"bytecodes": None}}
    if most is None:
        most = sum(counts(counted(app), "Plain").ranges["bytecodes"]) // 2
    measurement = counted(app, settings=replace(COUNT_ONLY, budgets=Budgets({"bytecodes": most}, noop)))
    judged = measurement.layer("Plain").judged["bytecodes"]
    assert judged.verdict == measurement.verdict == verdict
    assert ("varying-count" in (judged.reason or "")) == (verdict == "undecided")
    read = codec.result(codec.measurement("test", measurement)).layer("Plain")
    low, high = read.counts.ranges["bytecodes"]
    text = f"Plain {low} to {high} bytecode instructions, budget 0" if verdict == "fail" else ""
    assert failure(measurement, 79).startswith(f"GET /: {text}")


@needs_executed
def test_a_request_now_and_then_that_does_more_leaves_the_usual_number() -> None:
    # On a busy machine the default limit ends after a few requests, which need not agree.
    patient = replace(FAST_SCHEDULE, executed_ns=60_000_000_000)
    usual = of(counts(counted(Plain(hello, alternating(1)), schedule=patient), "Plain"))
    row = counts(counted(Plain(hello, alternating(*[1] * 12, 40)), schedule=patient), "Plain")
    assert of(row) == usual


@pytest.mark.parametrize(
    ("sums", "spent_ns", "enough"),
    [
        ([], 0, False),
        ([1], 9, False),
        ([1, 1, 1, 1], 0, False),
        ([1, 1, 1, 1, 1], 0, True),
        ([2, 1, 1, 1, 1], 0, False),
        ([2, 1, 1, 1, 1, 1], 0, True),
        ([1, 2] * 4, 0, True),  # as many as there may be
        ([1, 1], 9, True),
        ([1, 2], 9, False),
        ([1, 2, 2], 9, True),
        ([1, 2, 1, 2, 1], 9, True),
    ],
)
def test_requests_are_made_until_they_agree(sums: Sequence[int], spent_ns: int, enough: bool) -> None:
    pace = Pace(agreeing=5, most=8, limit_ns=9)
    assert executed._enough([[(number, 0, 0)] for number in sums], len(sums), pace, spent_ns) is enough


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([5] * 10, (5, 5, 5)),
        ([5] * 9 + [7], (5, 5, 7)),
        ([5] * 8 + [7] * 2, None),
        ([5, 7] * 5, None),
        ([5, 5], (5, 5, 5)),
        ([5, 7], None),
    ],
)
def test_one_request_of_ten_may_differ(values: Sequence[int], expected: tuple[int, ...] | None) -> None:
    count = same_number(values)
    assert (count and (count.count, count.low, count.high)) == expected


# ---- tools that are switched on meanwhile --------------------------------------------------------------------------


def switches(on: Callable[[], Any], off: Callable[[], Any]) -> App:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        on()
        await respond(send)
        off()

    return app


def ignore(*arguments: Any) -> None: ...


@contextmanager
def monitoring_tool() -> Iterator[tuple[Any, int]]:
    monitoring: Any = sys.monitoring  # type: ignore[attr-defined, unused-ignore]
    tool = 1
    monitoring.use_tool_id(tool, "a tool of the test")
    try:
        yield monitoring, tool
    finally:
        monitoring.set_events(tool, 0)
        monitoring.free_tool_id(tool)


@needs_executed
def test_a_tracer_that_the_app_switches_on_and_off_leaves_no_number() -> None:
    executed = executed_by(switches(lambda: sys.settrace(ignore), lambda: sys.settrace(None)))
    assert dict(executed.why_not) == dict.fromkeys(EXECUTED, events.MEANWHILE)
    assert executed.requests == ()


@needs_executed
def test_a_monitoring_tool_that_the_app_switches_on_and_off_leaves_no_number() -> None:
    with monitoring_tool() as (monitoring, tool):
        on = partial(monitoring.set_events, tool, monitoring.events.PY_START)
        executed = executed_by(switches(on, partial(monitoring.set_events, tool, 0)))
    assert dict(executed.why_not) == dict.fromkeys(EXECUTED, events.MEANWHILE)


@needs_executed
def test_a_tool_that_watches_some_code_only_leaves_no_number() -> None:
    with monitoring_tool() as (monitoring, tool):
        watch = partial(monitoring.set_local_events, tool, respond.__code__)
        executed = executed_by(switches(partial(watch, monitoring.events.LINE), int))
        watch(0)
    why = "a sys.monitoring tool (a tool of the test) watched code while it was counted"
    assert dict(executed.why_not) == dict.fromkeys(EXECUTED, why)


@needs_executed
def test_a_tool_at_work_is_no_reason_to_distrust_the_interpreter() -> None:
    check: Any = events.why_no_events
    check.cache_clear()
    with monitoring_tool() as (monitoring, tool):
        monitoring.set_events(tool, monitoring.events.INSTRUCTION)
        assert check() is None
    check.cache_clear()
    assert check() is None


@needs_executed
def test_events_that_an_earlier_tool_of_the_same_id_switched_off_are_counted() -> None:
    monitoring: Any = sys.monitoring  # type: ignore[attr-defined, unused-ignore]
    before, tool = executed_by(hello), free_tool()
    assert tool is not None
    for event in (monitoring.events.INSTRUCTION, monitoring.events.CALL, monitoring.events.PY_START):
        with tool_at_work(tool, {event: lambda *arguments: monitoring.DISABLE}):
            events._known(events._inside)
            asyncio.run(hello({}, None, ignore_message))
    assert executed_by(hello) == before


async def ignore_message(message: Any) -> None: ...


@needs_executed
def test_without_a_free_tool_id_the_reason_is_given() -> None:
    monitoring: Any = sys.monitoring  # type: ignore[attr-defined, unused-ignore]
    taken = [tool for tool in range(6) if monitoring.get_tool(tool) is None]
    for tool in taken:
        monitoring.use_tool_id(tool, "a tool of the test")
    try:
        executed = executed_by(hello)
        whole = counted(hello)
    finally:
        for tool in taken:
            monitoring.free_tool_id(tool)
    assert set(executed.why_not) == set(EXECUTED)
    assert "all tool ids of sys.monitoring are taken" in executed.why_not["bytecodes"]
    assert whole.ledger.why["bytecodes"] == executed.why_not["bytecodes"]


@needs_executed
def test_everything_is_as_before_afterwards() -> None:
    monitoring: Any = sys.monitoring  # type: ignore[attr-defined, unused-ignore]
    tools = [monitoring.get_tool(tool) for tool in range(6)]
    executed_by(hello)
    assert [monitoring.get_tool(tool) for tool in range(6)] == tools

    async def fails(scope: Any, receive: Any, send: Any) -> None:
        if len(requests) > 4:
            raise LookupError
        requests.append(1)
        await respond(send)

    requests: list[int] = []
    with pytest.raises(Exception, match="LookupError"):
        executed_by(fails)
    assert [monitoring.get_tool(tool) for tool in range(6)] == tools


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="sys.monitoring is there")
def test_python_3_11_says_why_nothing_is_counted() -> None:
    measurement = counted(hello)
    assert measurement.ledger.why["bytecodes"] == "executed code can be seen from Python 3.12 on, this is 3.11"


# ---- the core in C ------------------------------------------------------------------------------------------------


@pytest.fixture
def core() -> Iterator[Any]:
    """The core in C without a counting run; a run that the test opens is stopped at the end."""
    core: Any = counting_backend().core
    yield core
    with suppress(RuntimeError):
        core.stop()


@needs_executed
def test_callbacks_count_for_the_charged_owner_and_only_code(core: Any) -> None:
    core.start(3, ())
    code = nothing.__code__
    for owner in (0, 2):
        core.run(owner, core.on_instruction, code, 0)
        core.run(owner, core.on_call, code, 0, nothing, None)
    core.run(2, core.on_start, code, 0)
    for arguments in ((), (nothing, 0), (None,)):
        assert core.run(1, core.on_instruction, *arguments) is None
    core.on_instruction(code, 0)  # aside
    assert core.take_executed() == [(1, 1, 0), (0, 0, 0), (1, 1, 1), (0, 0, 0), (0, 0, 0)]
    assert core.take_executed() == [(0, 0, 0)] * 5
    assert core.known_codes() == [code]


@needs_executed
def test_code_of_skipped_files_is_not_counted(core: Any) -> None:
    core.start(1, ("/nowhere/", __file__[:-5]))
    core.run(0, core.on_instruction, nothing.__code__, 0)
    core.run(0, core.on_instruction, respond.__code__, 0)
    assert core.take_executed()[0] == (1, 0, 0)
    assert core.known_codes() == [respond.__code__]


@needs_executed
def test_many_codes_are_kept_apart_and_alive_until_the_end(core: Any) -> None:
    core.start(1, ("skipped",))
    for index in range(5000):
        code = nothing.__code__.replace(co_filename="skipped" if index % 2 else "counted")
        core.run(0, core.on_instruction, code, 0)
    assert core.take_executed()[0] == (2500, 0, 0)
    assert len(core.known_codes()) == 2500
    gone = weakref.ref(core.known_codes()[0])
    assert gone() is not None
    core.stop()
    assert gone() is None


@needs_executed
def test_a_run_counts_memory_or_executed_code(core: Any) -> None:
    for function in (core.take_executed, core.known_codes):
        with pytest.raises(RuntimeError, match="no counting run is under way"):
            function()
    core.start(1)
    core.run(0, core.on_instruction, nothing.__code__, 0)
    for function in (core.take_executed, core.known_codes):
        with pytest.raises(RuntimeError, match="counts memory"):
            function()
    core.stop()
    core.start(1, ())
    core.run(0, lambda: [object() for _ in range(100)])
    core.discount(0, {})
    assert core.take() == ([(0, 0, 0, 0)] * 3, [])
    assert core.stop() == (False, False)
    assert core.on_instruction(nothing.__code__, 0) is None


@needs_executed
def test_the_core_refuses_other_arguments(core: Any) -> None:
    with pytest.raises(TypeError):
        core.start(1, ["a list"])
    with pytest.raises(TypeError, match="takes code"):
        core.instrumentation(nothing)
    core.start(1, (3,))
    core.run(0, core.on_instruction, nothing.__code__, 0)
    assert core.take_executed()[0][0] == 0
