"""Counts are exact: layers with known objects, tasks and messages, at every place and on every loop."""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route

from pytest_mwbudget import engine
from pytest_mwbudget.asgi import server
from pytest_mwbudget.asgi.request import build_request, template_of
from pytest_mwbudget.config.budgets import Budgets
from pytest_mwbudget.config.settings import Settings
from pytest_mwbudget.counting import attribution
from pytest_mwbudget.errors import MeasurementError, of_the_app
from pytest_mwbudget.model.quantities import PROCESS_WIDE
from pytest_mwbudget.model.results import Count, LoopName, Measurement
from pytest_mwbudget.timing.looks import Environment
from pytest_mwbudget.timing.schedule import Schedule

from .apps import FAST_SCHEDULE, Noop, StarArguments, SyncCall, hello, unchanged_code
from .counted import (
    COROUTINE,
    COUNT_ONLY,
    LOOPS,
    OWN,
    Own,
    PassThrough,
    SpawnsInAGroup,
    basic,
    counted,
    counts,
    every_loop,
    everything_as_before,
    needs_allocations,
    needs_objects,
    number,
)

# ---- objects ----------------------------------------------------------------------------------------------------


class Creates(Noop):
    """A layer that creates known objects: some live until the end of the request, others are dropped at once."""

    kept, dropped, owned = 30, 70, 20

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        kept = [(place, self) for place in range(self.kept)]
        value = 0.5
        for _ in range(self.dropped):
            value += 1.0
        owned = [Own() for _ in range(self.owned)]
        await self.app(scope, receive, send)
        del kept, owned


class Heavy(Noop):
    """A layer that allocates before, after and while messages pass."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def heavy_send(message: Any) -> None:
            [{"place": place, "own": Own()} for place in range(100)]
            await send(message)

        [bytearray(1000) for _ in range(200)]
        await self.app(scope, receive, heavy_send)
        [object() for _ in range(300)]


ARRANGEMENTS = [*itertools.permutations(["creates", "heavy", "noop"]), ("creates",), ("noop", "creates", "noop")]
LAYERS: dict[str, Callable[[Any], Any]] = {"creates": Creates, "heavy": Heavy, "noop": Noop}


def stacked(*names: str, inside: Any = hello) -> Any:
    """Build a stack of the layers of these names, outermost first."""
    return functools.reduce(lambda inner, name: LAYERS[name](inner), reversed(names), inside)


@needs_objects
@pytest.mark.parametrize("names", ARRANGEMENTS, ids="-".join)
def test_known_objects_are_counted_exactly_at_every_place(names: tuple[str, ...]) -> None:
    objects = counts(counted(Noop(stacked(*names))), "Creates").objects
    assert objects.exact
    kinds = dict(objects.kinds)
    assert kinds.pop(OWN) == Creates.owned
    # Calling the next layer packs its arguments into a tuple if that layer is an instance.
    inner_is_instance = names[-1] != "creates"
    assert kinds.pop("builtins.tuple") == Creates.kept + inner_is_instance
    assert kinds.pop("builtins.float") == Creates.dropped
    # Two lists, the loops' ranges and iterators, and the layer's own coroutine.
    assert kinds == {
        "builtins.list": 2,
        "builtins.range": 3,
        "builtins.range_iterator": 3,
        "builtins.coroutine": 1,
    }
    assert objects.count == sum(objects.kinds.values())


@needs_objects
@pytest.mark.parametrize("names", ARRANGEMENTS, ids="-".join)
def test_a_no_op_creates_its_coroutine_and_the_arguments_of_its_call(names: tuple[str, ...]) -> None:
    measurement = counted(stacked("noop", "noop", *names))
    objects = counts(measurement, measurement.layers[0].name).objects
    assert (objects.count, objects.exact, dict(objects.kinds)) == (
        2,
        True,
        {"builtins.coroutine": 1, "builtins.tuple": 1},
    )


@needs_objects
@pytest.mark.parametrize("layer", [StarArguments, SyncCall])
def test_the_parameters_of_a_layer_do_not_change_what_its_neighbours_are_charged(layer: Any) -> None:
    plain = counts(counted(Noop(Heavy(Noop(hello)))), "Heavy").objects
    other = counts(counted(Noop(Heavy(layer(hello)))), "Heavy").objects
    assert plain == other


@needs_allocations
def test_known_bytes_are_counted() -> None:
    class Buffers(Noop):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            for _ in range(self.number):
                bytes(5000)
            await self.app(scope, receive, send)

        number = 0

    none, some = Buffers(hello), Buffers(hello)
    some.number = 10
    before, after = counts(counted(Noop(none)), "Buffers"), counts(counted(Noop(some)), "Buffers")
    assert number(after.allocations) - number(before.allocations) == 10
    assert 50_000 <= number(after.bytes) - number(before.bytes) <= 50_000 + 10 * 64


@needs_objects
def test_types_that_only_one_layer_creates_are_named() -> None:
    measurement = counted(Noop(Creates(Noop(hello))))
    assert OWN in counts(measurement, "Creates").own_types
    assert counts(measurement, "Noop#1").own_types == ()
    assert OWN not in counts(counted(Noop(Creates(Heavy(hello)))), "Creates").own_types


@needs_objects
def test_the_rows_add_up_to_what_the_tracer_saw() -> None:
    measurement = counted(Noop(Heavy(Creates(basic()))))
    ledger = measurement.ledger
    rows = [ledger.outside, ledger.endpoint, *(report.counts for report in measurement.layers)]
    for quantity in ("objects", "allocations", "bytes"):
        parts = sum(number(getattr(row, quantity)) for row in rows if row is not None)
        whole = getattr(ledger.total, quantity)
        # Medians of rows that vary need not add up to the median of their sum.
        assert whole.low - 50 <= parts <= whole.high + 50
        if quantity == "objects":
            assert parts == whole.count


class AwaitsCoroutinesOnly(Noop):
    """A layer that awaits only coroutines, as some decorators do."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        answer = self.app(scope, receive, send)
        if inspect.iscoroutine(answer):
            await answer


def test_a_probed_layer_still_passes_for_a_coroutine(monkeypatch: pytest.MonkeyPatch) -> None:
    from pytest_mwbudget.counting.backend import Backend, PythonCore

    app = Noop(AwaitsCoroutinesOnly(Noop(AwaitsCoroutinesOnly(hello))))
    assert counts(counted(app), "Noop#2").sent.count == 2
    monkeypatch.setattr(
        engine, "counting_backend", lambda: Backend(PythonCore(), dict.fromkeys(PROCESS_WIDE, "not built"))
    )
    assert counts(counted(app), "Noop#2").sent.count == 2


# ---- compared with the tracer alone -------------------------------------------------------------------------------


def objects_of_whole_requests(app: Any, requests: int = 9) -> int:
    """Count the objects of a typical request with the tracer alone, without probes."""
    from pytest_mwbudget.counting import _core  # type: ignore[attr-defined]

    async def main() -> list[int]:
        template = await template_of(build_request("GET", "/", {}))
        call = server.Caller(app, template, None)
        for _ in range(60):
            await call()
        _core.start(1)
        try:
            _core.callback(0, int)()
            numbers = []
            for _ in range(requests):
                _core.take()
                await call()
                numbers.append(_core.take()[0][0][0])
            return numbers
        finally:
            _core.stop()

    gc.disable()
    try:
        numbers = asyncio.run(main())
    finally:
        gc.enable()
    return sorted(numbers)[requests // 2]


@needs_objects
@pytest.mark.parametrize("layer", [Noop, Creates, PassThrough])
def test_a_layers_objects_are_what_the_app_creates_more_with_it_than_without(layer: Any) -> None:
    charged = number(counts(counted(basic(Noop, layer, Noop)), layer.__name__ + "#2" * (layer is Noop)).objects)
    differential = objects_of_whole_requests(basic(Noop, layer, Noop)) - objects_of_whole_requests(basic(Noop, Noop))
    assert charged == pytest.approx(differential, rel=0.01)


@needs_objects
def test_nested_task_layers_add_up_to_what_the_app_creates_more_with_them() -> None:
    measurement = counted(basic(PassThrough, Noop, PassThrough, PassThrough))
    charged = [number(counts(measurement, f"PassThrough#{place}").objects) for place in (1, 2, 3)]
    differential = objects_of_whole_requests(
        basic(PassThrough, Noop, PassThrough, PassThrough)
    ) - objects_of_whole_requests(basic(Noop))
    assert sum(charged) == pytest.approx(differential, rel=0.01)
    assert max(charged) < 2 * min(charged)


@needs_objects
def test_an_exception_that_is_thrown_through_layers_leaves_no_trace_in_them() -> None:
    async def page(request: Any) -> Any:
        return PlainTextResponse(await request.body())

    # Reading the body through a task layer takes a task that is cancelled while it waits.
    app = PassThrough(Noop(Noop(Starlette(routes=[Route("/", page, methods=["POST"])]))))
    measurement = counted(Noop(app), method="POST", content=b"abc")
    for place in (1, 2, 3):
        objects = counts(measurement, f"Noop#{place}").objects
        assert dict(objects.kinds) == {"builtins.coroutine": 1, "builtins.tuple": 1}


# ---- messages, suspensions -----------------------------------------------------------------------------------------


@every_loop
def test_messages_are_counted_at_each_boundary(loop: LoopName) -> None:
    async def page(request: Any) -> Any:
        body = await request.body()
        return StreamingResponse(bytes(1) for _ in range(len(body)))

    app = Noop(Starlette(routes=[Route("/", page, methods=["POST"])]))
    noop = counts(counted(app, method="POST", content=b"abc", loop=loop), "Noop")
    # Received: the body, and the disconnect that a streaming response listens for. Sent: a start, three pieces, an end.
    assert (noop.received.count, noop.sent.count) == (2, 5)


def test_suspensions_are_the_layers_that_stands_still() -> None:
    class Naps(Noop):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await asyncio.sleep(0)
            await self.app(scope, receive, send)
            await asyncio.sleep(0)

    measurement = counted(Noop(Naps(Noop(hello))))
    suspensions = {report.name: report.counts.suspensions.count for report in measurement.layers if report.counts}
    assert suspensions == {"Noop#1": 0, "Naps": 2, "Noop#2": 0}


# ---- delayed requests ----------------------------------------------------------------------------------------------


class ByTime(Noop):
    """A layer that spawns a task for each 5 ms that the app inside it took, by a clock of the test."""

    def __init__(self, app: Any) -> None:
        super().__init__(app)
        self.now_s = 0.0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        begin_s = self.now_s
        await self.app(scope, receive, send)
        for _ in range(int((self.now_s - begin_s) / 0.005)):
            await asyncio.gather(asyncio.sleep(0))


@pytest.mark.parametrize(("delayed", "most"), [(True, 6), (False, 0)])
def test_delayed_requests_show_counts_that_depend_on_a_measured_time(
    monkeypatch: pytest.MonkeyPatch, delayed: bool, most: int
) -> None:
    app = ByTime(Noop(hello))

    def sleep(seconds: float) -> None:
        app.now_s += seconds

    monkeypatch.setattr(attribution, "sleep", sleep)
    schedule = Schedule(counting_ns=60 * 10**9)  # a busy machine counts as many requests
    measurement = counted(app, schedule=schedule, settings=replace(COUNT_ONLY, delayed=delayed))
    tasks = counts(measurement, "ByTime").tasks
    assert (tasks.count, tasks.low, tasks.high) == (0, 0, most)
    assert counts(measurement, "Noop").tasks.exact


# ---- retained objects ---------------------------------------------------------------------------------------------


class Leaks(Noop):
    """A layer that keeps three objects of every request and a list of the latest request, but no cyclic garbage."""

    def __init__(self, app: Any) -> None:
        super().__init__(app)
        self.kept: list[Any] = []
        self.latest: Any = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.kept.append((Own(), Own()))
        self.latest = [Own() for _ in range(40)]
        cycle: list[Any] = [Own()]
        cycle.append(cycle)
        await self.app(scope, receive, send)


@needs_objects
@pytest.mark.parametrize("around", [(), (PassThrough,), (Noop, Heavy)], ids=len)
def test_what_a_layer_leaves_behind_is_counted(around: Any) -> None:
    measurement = counted(basic(*around, Leaks, Noop))
    retained = counts(measurement, "Leaks").retained
    assert dict(retained.kinds) == {OWN: 2, "builtins.tuple": 1}
    for report in measurement.layers:
        if report.name != "Leaks":
            assert report.counts.retained.count == 0


@needs_objects
def test_what_hangs_on_older_garbage_is_not_left_alive() -> None:
    """Objects that older garbage refers to are not retained either: here a new class for each request."""

    class Node:
        def __init__(self) -> None:
            self.itself = self

    class Evicts(Noop):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            class Row: ...

            pool.pop().row = Row()  # type: ignore[attr-defined]
            await self.app(scope, receive, send)

    pool = [Node() for _ in range(3000)]
    gc.collect()
    assert counts(counted(Evicts(hello)), "Evicts").retained == Count(0, 0, 0)
    assert pool


# ---- deep stacks ---------------------------------------------------------------------------------------------------


class Wraps(Noop):
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def own_send(message: Any) -> None:
            await send(message)

        await self.app(scope, receive, own_send)


DEEP = 450  # without a measurement, the app has room for twice this number
RECURSION_IN_C_IS_BOUNDED_LOW = sys.version_info[:2] == (3, 12)


@pytest.mark.parametrize("layer", [Noop, Wraps])
def test_a_stack_for_which_the_app_has_room_is_measured_or_the_reason_is_said(layer: Any) -> None:
    app = functools.reduce(lambda inner, _: layer(inner), range(DEEP), hello)
    request = build_request("GET", "/", {})
    settings = Settings(budgets=Budgets({"tasks": 0, "us": 1e6}), lifespan=False, max_time_s=0.1)
    limit = sys.getrecursionlimit()
    try:
        measurement = asyncio.run(engine.measure(app, request, settings, Environment(schedule=FAST_SCHEDULE)))
    except MeasurementError as error:
        explained = "Measure the stack in parts, or on another version of Python" in str(error)
        assert explained and RECURSION_IN_C_IS_BOUNDED_LOW  # noqa: PT018
    else:
        assert len(measurement.layers) == DEEP
        assert measurement.verdict != "fail"
    assert sys.getrecursionlimit() == limit


# ---- restoration ---------------------------------------------------------------------------------------------------


def ran_by_asyncio(app: Any) -> Measurement:
    async def main() -> Measurement:
        request = build_request("GET", "/", {})
        with everything_as_before(asyncio.get_running_loop()):
            return await engine.measure(app, request, COUNT_ONLY, Environment(schedule=FAST_SCHEDULE))

    return asyncio.run(main())


def test_nothing_of_a_counting_run_stays_behind() -> None:
    ran_by_asyncio(basic(PassThrough, SpawnsInAGroup))


class FailsLater(Noop):
    """A layer that raises after a number of requests."""

    def __init__(self, app: Any, error: type[BaseException], after: int) -> None:
        super().__init__(app)
        self.error = error
        self.left = after

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.left -= 1
        if self.left < 0:
            raise self.error("as the test wants it")
        await self.app(scope, receive, send)


# Few warm calls, and all requests on a busy machine too.
BRIEF = Schedule(brief_warm_calls=10, brief_warm_ns=60 * 10**9, counting_ns=60 * 10**9)
# Before the ledger opens: the first request, the warm calls, two traces.
UNTIL_THE_COUNTING = 1 + BRIEF.brief_warm_calls + 2


@every_loop
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, asyncio.CancelledError])
@pytest.mark.parametrize("into", [1, 12])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_exception_in_a_counted_request_leaves_nothing_behind(
    error: type[BaseException], into: int, loop: LoopName
) -> None:
    # A task layer replaces exceptions that it does not expect.
    around = Noop if error is asyncio.CancelledError or loop == "trio" else PassThrough
    app = basic(around, Noop, functools.partial(FailsLater, error=error, after=UNTIL_THE_COUNTING + into))
    with unchanged_code(), pytest.raises(BaseException, match="as the test wants it") as raised:
        counted(app, loop=loop, schedule=BRIEF)
    assert isinstance(of_the_app(raised.value), error)
    # The next measurement can count again.
    assert number(counts(counted(basic(PassThrough), loop=loop), "PassThrough").tasks) == 1


INTERRUPTED = """
import asyncio, os, signal
from pytest_mwbudget.counting import _core
from pytest_mwbudget.timing.schedule import Schedule
from tests.apps import Noop
from tests.counted import basic, counted

class Interrupts(Noop):
    calls = 0

    async def __call__(self, scope, receive, send):
        self.calls += 1
        if self.calls == Schedule().brief_warm_calls + 3 + 10:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(10)
        await self.app(scope, receive, send)

signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests may have it ignored
try:
    counted(basic(Interrupts), schedule=Schedule(brief_warm_ns=60 * 10**9, counting_ns=60 * 10**9))
except KeyboardInterrupt:
    _core.start(1)  # refused if the run that was interrupted were still under way
    print("interrupted, and closed")
"""


@needs_allocations
def test_ctrl_c_ends_the_counting_run() -> None:
    command = [sys.executable, "-c", INTERRUPTED]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parent.parent, timeout=60)
    assert done.stdout == "interrupted, and closed\n", done.stderr


def test_a_measurement_inside_a_measurement_is_refused() -> None:
    class Measures(Noop):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            request = build_request("GET", "/", {})
            await engine.measure(Noop(hello), request, COUNT_ONLY, Environment())
            await self.app(scope, receive, send)

    with pytest.raises(MeasurementError, match="one request at a time"):
        counted(Measures(hello))


@needs_objects
def test_tracemalloc_is_named_and_keeps_what_it_traces() -> None:
    import tracemalloc

    tracemalloc.start()
    try:
        kept = [bytes(1000) for _ in range(10)]
        measurement = counted(Noop(Creates(hello)))
        after = [bytes(1000) for _ in range(10)]
        assert all(tracemalloc.get_object_traceback(block) for block in (*kept, *after))
    finally:
        tracemalloc.stop()
    assert any("tracemalloc" in note for note in measurement.notes)
    objects = counts(measurement, "Creates").objects
    assert objects.kinds[OWN] == Creates.owned


@needs_objects
def test_a_tracer_that_takes_the_place_of_this_one_makes_the_count_unknown() -> None:
    import tracemalloc

    class Traces(Noop):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            tracemalloc.stop()  # if tracemalloc traces already, a start changes nothing (CPython 3.14)
            tracemalloc.start()
            await self.app(scope, receive, send)

    try:
        measurement = counted(Noop(Traces(hello)))
        assert tracemalloc.is_tracing()
    finally:
        tracemalloc.stop()
    assert "another tool" in measurement.ledger.why["objects"]
    assert counts(measurement, "Noop").objects is None


def test_without_the_extension_tasks_threads_and_messages_are_counted_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from pytest_mwbudget.counting.backend import Backend, PythonCore

    why = dict.fromkeys(PROCESS_WIDE, "it was not built")
    monkeypatch.setattr(engine, "counting_backend", lambda: Backend(PythonCore(), why))
    for loop in LOOPS:
        measurement = counted(basic(PassThrough, SpawnsInAGroup, PassThrough), loop=loop)
        own = counts(measurement, "SpawnsInAGroup")
        assert [own.of(quantity) for quantity in PROCESS_WIDE] == [None] * len(PROCESS_WIDE)
        assert own.tasks.count == 3
        assert dict(counts(measurement, "PassThrough#2").tasks.kinds) == {COROUTINE: 1}
        assert counts(measurement, "PassThrough#1").sent.count == 3
        assert measurement.ledger.why == why


# ---- the same on every machine --------------------------------------------------------------------------------------

IN_A_FRESH_PROCESS = """
import json, sys
from tests.counted import PassThrough, SpawnsInAGroup, basic, counted
from tests.test_counting import Creates
measurement = counted(basic(PassThrough, Creates, SpawnsInAGroup, PassThrough))
print(json.dumps({
    report.name: [report.counts.objects.count, dict(report.counts.objects.kinds), dict(report.counts.tasks.kinds)]
    for report in measurement.layers
}))
"""


@needs_objects
@pytest.mark.live
def test_ten_fresh_processes_with_other_hash_seeds_count_the_same() -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", IN_A_FRESH_PROCESS],
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            cwd=Path(__file__).parent.parent,
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in range(10)
    ]
    outputs = [process.communicate()[0] for process in processes]
    documents = [json.loads(output) for output in outputs]
    assert all(document == documents[0] for document in documents[1:])
