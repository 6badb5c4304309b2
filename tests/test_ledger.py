"""The ledger is exact: layers that create, spawn and pass on what is known, at every place and on every loop."""

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
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread
import anyio.to_thread
import pytest
from starlette.applications import Starlette
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route

from pytest_mwbudget import engine
from pytest_mwbudget.asgi import loops, server
from pytest_mwbudget.config.budgets import Budgets
from pytest_mwbudget.config.settings import Settings
from pytest_mwbudget.counting.backend import counting_backend
from pytest_mwbudget.counting.spawning import Spawning
from pytest_mwbudget.errors import MeasurementError, of_the_app
from pytest_mwbudget.interpreter.foreign_tools import garbage_collection_paused
from pytest_mwbudget.model.results import Count, Counts, LoopName, Measurement
from pytest_mwbudget.timing.run import Environment
from pytest_mwbudget.timing.schedule import Schedule

from .apps import Noop, StarArguments, SyncCall, hello, unchanged_code

COUNTS_OBJECTS = "objects" not in counting_backend().why_not
COUNTS_ALLOCATIONS = "allocations" not in counting_backend().why_not
needs_objects = pytest.mark.skipif(not COUNTS_OBJECTS, reason="object creations can be seen from Python 3.13 on")
needs_allocations = pytest.mark.skipif(not COUNTS_ALLOCATIONS, reason="the C extension was not built")

LOOPS: tuple[LoopName, ...] = ("asyncio", "uvloop", "trio")
every_loop = pytest.mark.parametrize("loop", LOOPS)

COUNT_ONLY = Settings(budgets=Budgets(default={"tasks": 1000}), lifespan=False)


def counted(
    app: Any,
    url: str = "/",
    loop: LoopName = "asyncio",
    method: str = "GET",
    schedule: Schedule | None = None,
    **options: Any,
) -> Measurement:
    """The counts of a request, nothing timed."""
    if loop != "asyncio":
        pytest.importorskip(loop)
    request = server.build_request(method, url, options)
    environment = Environment(schedule=schedule or Schedule())
    return loops.run(loop, lambda: engine.measure(app, request, COUNT_ONLY, environment))


def counts(measurement: Measurement, name: str) -> Counts:
    found = measurement.layer(name).counts
    assert found is not None
    return found


def number(count: Count | None) -> int:
    assert count is not None
    return count.count


# ---- objects ----------------------------------------------------------------------------------------------------


class Own:
    """Instances of a class that only the tests create."""


class Creates(Noop):
    """Creates a known number of objects of known types: some it keeps until its end, some it drops at once."""

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
    """A neighbour that allocates before, after and while messages pass."""

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
    """The layers of these names, the first outermost."""
    return functools.reduce(lambda inner, name: LAYERS[name](inner), reversed(names), inside)


@needs_objects
@pytest.mark.parametrize("names", ARRANGEMENTS, ids="-".join)
def test_known_objects_are_counted_exactly_at_every_place(names: tuple[str, ...]) -> None:
    found = counts(counted(Noop(stacked(*names))), "Creates").objects
    assert found is not None
    assert found.exact
    kinds = dict(found.kinds)
    assert kinds.pop(f"{__name__}.Own") == Creates.owned
    # One tuple is what the call of the next layer makes of its arguments, where that layer is an instance.
    inner_is_instance = names[-1] != "creates"
    assert kinds.pop("builtins.tuple") == Creates.kept + inner_is_instance
    assert kinds.pop("builtins.float") == Creates.dropped
    # Two lists, the ranges and iterators of the loops, its own coroutine.
    assert kinds == {
        "builtins.list": 2,
        "builtins.range": 3,
        "builtins.range_iterator": 3,
        "builtins.coroutine": 1,
    }
    assert found.count == sum(found.kinds.values())


@needs_objects
@pytest.mark.parametrize("names", ARRANGEMENTS, ids="-".join)
def test_a_no_op_creates_its_coroutine_and_the_arguments_of_its_call(names: tuple[str, ...]) -> None:
    measurement = counted(stacked("noop", "noop", *names))
    found = counts(measurement, measurement.layers[0].name).objects
    assert found is not None
    assert (found.count, found.exact, dict(found.kinds)) == (2, True, {"builtins.coroutine": 1, "builtins.tuple": 1})


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
    assert f"{__name__}.Own" in counts(measurement, "Creates").own_types
    assert counts(measurement, "Noop#1").own_types == ()
    assert f"{__name__}.Own" not in counts(counted(Noop(Creates(Heavy(hello)))), "Creates").own_types


@needs_objects
def test_the_rows_add_up_to_what_the_tracer_saw() -> None:
    measurement = counted(Noop(Heavy(Creates(basic()))))
    ledger = measurement.ledger
    assert ledger is not None
    rows = [ledger.outside, ledger.endpoint, *(report.counts for report in measurement.layers)]
    for quantity in ("objects", "allocations", "bytes"):
        parts = sum(number(getattr(row, quantity)) for row in rows if row is not None)
        whole = getattr(ledger.total, quantity)
        # Medians of rows that vary need not add up to the median of their sum.
        assert whole.low - 50 <= parts <= whole.high + 50
        if quantity == "objects":
            assert parts == whole.count


class AwaitsCoroutinesOnly(Noop):
    """As some decorators do: what is no coroutine is a finished answer."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        answer = self.app(scope, receive, send)
        if inspect.iscoroutine(answer):
            await answer


def test_a_probed_layer_still_passes_for_a_coroutine(monkeypatch: pytest.MonkeyPatch) -> None:
    from pytest_mwbudget.counting.backend import Backend, PythonCore

    app = Noop(AwaitsCoroutinesOnly(Noop(AwaitsCoroutinesOnly(hello))))
    assert counts(counted(app), "Noop#2").sent.count == 2
    monkeypatch.setattr(engine, "counting_backend", lambda: Backend(PythonCore(), {}))
    assert counts(counted(app), "Noop#2").sent.count == 2


# ---- a second opinion ---------------------------------------------------------------------------------------------


def objects_of_whole_requests(app: Any, requests: int = 9) -> int:
    """What the tracer alone sees in a typical request of the app, with no probe anywhere."""
    from pytest_mwbudget.counting import _core  # type: ignore[attr-defined]

    async def main() -> list[int]:
        template = await server.template(server.build_request("GET", "/", {}))
        call = server.Caller(app, template, None)
        for _ in range(60):
            await call()
        _core.start(1)
        try:
            _core.charge(0)
            found = []
            for _ in range(requests):
                _core.take()
                await call()
                found.append(_core.take()[0][0][0])
            return found
        finally:
            _core.stop()

    gc.disable()
    try:
        found = asyncio.run(main())
    finally:
        gc.enable()
    return sorted(found)[requests // 2]


class PassThrough(BaseHTTPMiddleware):
    async def dispatch(self, request: Any, call_next: Any) -> Any:
        return await call_next(request)


def basic(*middleware: Any) -> Any:
    """A small Starlette app under these layers."""

    async def page(request: Any) -> Any:
        return PlainTextResponse("ok")

    app: Any = Starlette(routes=[Route("/", page)])
    return functools.reduce(lambda inner, layer: layer(inner), reversed(middleware), app)


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

    # To read the body through a task layer takes a task that is cancelled while it waits.
    app = PassThrough(Noop(Noop(Starlette(routes=[Route("/", page, methods=["POST"])]))))
    measurement = counted(Noop(app), method="POST", content=b"abc")
    for place in (1, 2, 3):
        found = counts(measurement, f"Noop#{place}").objects
        assert found is not None
        assert dict(found.kinds) == {"builtins.coroutine": 1, "builtins.tuple": 1}


# ---- tasks --------------------------------------------------------------------------------------------------------

COROUTINE = "starlette.middleware.base.BaseHTTPMiddleware.__call__.<locals>.call_next.<locals>.coro"


@every_loop
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_each_nested_task_layer_spawns_its_one_task(loop: LoopName, depth: int) -> None:
    measurement = counted(basic(Noop, *[PassThrough] * depth, Noop), loop=loop)
    assert measurement.loop == loop
    layers = [report for report in measurement.layers if report.name.startswith("PassThrough")]
    assert len(layers) == depth
    for report in measurement.layers:
        assert report.counts is not None
        expected = {COROUTINE: 1} if report in layers else {}
        assert dict(report.counts.tasks.kinds) == expected
        assert report.counts.tasks.exact


class SpawnsInAGroup(Noop):
    """One task in a task group, whose task spawns two more in a group of its own and creates what only it creates."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(self.child)
        await self.app(scope, receive, send)

    async def child(self) -> None:
        await anyio.sleep(0)
        async with anyio.create_task_group() as group:
            group.start_soon(self.grandchild)
            group.start_soon(self.grandchild)

    async def grandchild(self) -> None:
        await anyio.sleep(0)
        [Own() for _ in range(7)]


@every_loop
@pytest.mark.parametrize("around", [(), (PassThrough,), (PassThrough, PassThrough)], ids=len)
@pytest.mark.parametrize("inside", [(), (PassThrough,)], ids=len)
def test_what_child_tasks_spawn_and_create_is_their_layers(loop: LoopName, around: Any, inside: Any) -> None:
    measurement = counted(basic(*around, SpawnsInAGroup, *inside), loop=loop)
    own = counts(measurement, "SpawnsInAGroup")
    place = f"{__name__}.SpawnsInAGroup"
    assert dict(own.tasks.kinds) == {f"{place}.child": 1, f"{place}.grandchild": 2}
    assert own.tasks.exact
    for report in measurement.layers:
        if report.name != "SpawnsInAGroup":
            assert report.counts is not None
            assert number(report.counts.tasks) == report.name.startswith("PassThrough")
    if COUNTS_OBJECTS:
        assert own.objects is not None
        assert own.objects.kinds[f"{__name__}.Own"] == 14
        assert f"{__name__}.Own" in own.own_types


class Ways(Noop):
    """Every way in which asyncio makes a task."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await asyncio.create_task(self.direct())
        await asyncio.ensure_future(self.ensured())
        await asyncio.get_running_loop().create_task(self.by_the_loop(), name="named")
        await asyncio.gather(self.gathered(), self.gathered())
        await asyncio.wait_for(asyncio.shield(self.shielded()), 5)
        async with asyncio.TaskGroup() as group:
            group.create_task(self.grouped())
        await self.app(scope, receive, send)

    async def direct(self) -> None: ...
    async def ensured(self) -> None: ...
    async def by_the_loop(self) -> None: ...
    async def gathered(self) -> None: ...
    async def shielded(self) -> None: ...
    async def grouped(self) -> None: ...


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_tasks_are_seen_however_they_are_made(loop: LoopName) -> None:
    found = counts(counted(Noop(Ways(hello)), loop=loop), "Ways").tasks
    names = {"direct": 1, "ensured": 1, "by_the_loop": 1, "gathered": 2, "shielded": 1, "grouped": 1}
    assert dict(found.kinds) == {f"{__name__}.Ways.{name}": number for name, number in names.items()}


class Keeps(Noop):
    """What makes a task was kept by the app, long before anything is counted."""

    kept: tuple[Callable[..., Any], ...] = ()
    factories: tuple[Any, ...] = ()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        loop = asyncio.get_running_loop()
        if not self.kept:
            self.kept = (
                loop.create_task,
                functools.partial(loop.create_task),
                lambda coro: type(loop).create_task(loop, coro, name="named"),
                asyncio.tasks.create_task,
                asyncio.tasks.ensure_future,
                asyncio.create_task,
            )
        for keep in self.kept:
            await keep(self.child())
        await self.app(scope, receive, send)

    async def child(self) -> None:
        [Own() for _ in range(5)]


def own_factory(loop: Any, coro: Any, **named: Any) -> Any:
    """A task factory of the app's."""
    return asyncio.Task(coro, loop=loop, **named)


@pytest.mark.parametrize("factory", [None, own_factory])
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_tasks_are_seen_where_what_makes_them_was_kept(loop: LoopName, factory: Any) -> None:
    pytest.importorskip(loop)

    async def main() -> Measurement:
        running = asyncio.get_running_loop()
        running.set_task_factory(factory)
        request = server.build_request("GET", "/", {})
        with everything_as_before(running):
            return await engine.measure(Noop(Keeps(Noop(hello))), request, COUNT_ONLY, Environment())

    measurement = loops.run(loop, main)
    found = counts(measurement, "Keeps")
    assert dict(found.tasks.kinds) == {f"{__name__}.Keeps.child": 6}
    assert found.tasks.exact
    if COUNTS_OBJECTS:
        assert found.objects is not None
        assert found.objects.kinds[f"{__name__}.Own"] == 30
        assert found.objects.kinds["_asyncio.Task"] == 6


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_the_app_sees_and_sets_its_own_task_factory_while_it_is_counted(loop: LoopName) -> None:
    pytest.importorskip(loop)
    seen: list[Any] = []

    class Sets(Noop):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            running = asyncio.get_running_loop()
            seen.append(running.get_task_factory())
            with pytest.raises(TypeError):
                running.set_task_factory(5)  # type: ignore[arg-type]
            running.set_task_factory(own_factory)
            seen.append(running.get_task_factory())
            await running.create_task(self.child())
            running.set_task_factory(None)
            await running.create_task(self.child())
            await self.app(scope, receive, send)

        async def child(self) -> None: ...

    measurement = counted(Noop(Sets(hello)), loop=loop)
    assert seen == [None, own_factory] * (len(seen) // 2)
    assert number(counts(measurement, "Sets").tasks) == 2


def test_a_callback_is_its_layers_where_call_soon_was_kept() -> None:
    class Soon(Noop):
        soon: Callable[..., Any] | None = None

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            loop = asyncio.get_running_loop()
            self.soon = self.soon or loop.call_soon
            done = loop.create_future()
            self.soon(self.later, done)
            # The endpoint is suspended last: without the callback's own owner, this is its task.
            await self.app(scope, receive, send)
            await done

        def later(self, done: asyncio.Future[None]) -> None:
            task = asyncio.ensure_future(self.child())
            task.add_done_callback(lambda _: done.set_result(None))

        async def child(self) -> None: ...

    async def waits(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(0.001)
        await hello(scope, receive, send)

    found = counts(counted(Noop(Soon(Noop(waits)))), "Soon").tasks
    assert (found.count, found.low, found.high) == (1, 1, 1)


@needs_objects
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_watching_creates_nothing_that_is_counted(loop: LoopName) -> None:
    pytest.importorskip(loop)
    from pytest_mwbudget.counting import _core as core

    async def child() -> None: ...

    def spawns() -> None:
        asyncio.create_task(child())  # noqa: RUF006

    def schedules() -> None:
        running = asyncio.get_running_loop()
        running.call_soon(bool)
        running.call_later(100, bool).cancel()
        running.call_at(running.time() + 100, bool).cancel()
        running.call_soon_threadsafe(bool)

    def made_by(function: Callable[[], None]) -> dict[type, int]:
        for _ in range(50):  # until the bytecode is specialised
            core.take()
            core.run(0, function)
            _, made = core.take()
        return {kind: number for owner, kind, number in made if owner == 0}

    async def main() -> None:
        # How uvloop reaches its own methods is known to nobody outside.
        for function in (spawns, schedules) if loop == "asyncio" else (spawns,):
            found = []
            for watched in (False, True):
                with garbage_collection_paused():
                    core.start(4)
                    try:
                        with Spawning(core, 2, 3).watched("asyncio") if watched else nullcontext():
                            found.append(made_by(function))
                    finally:
                        core.stop()
                await asyncio.sleep(0)
            assert found[0] == found[1]

    loops.run(loop, main)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with Python 3.12")
def test_eager_tasks_are_charged_to_their_layer() -> None:
    async def main() -> Measurement:
        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
        request = server.build_request("GET", "/", {})
        found = await engine.measure(basic(SpawnsInAGroup, PassThrough), request, COUNT_ONLY, Environment())
        assert asyncio.get_running_loop().get_task_factory() is asyncio.eager_task_factory
        return found

    measurement = asyncio.run(main())
    assert number(counts(measurement, "SpawnsInAGroup").tasks) == 3
    assert number(counts(measurement, "PassThrough").tasks) == 1


class SpawnsForTrio(Noop):
    """Every way in which trio makes a task."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        import trio

        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.soon)
            await nursery.start(self.started)
            nursery.start_soon(functools.partial(self.soon), name="named")
        done = trio.Event()
        trio.lowlevel.spawn_system_task(self.system, done)
        await done.wait()
        await self.app(scope, receive, send)

    async def soon(self) -> None: ...

    async def started(self, task_status: Any) -> None:
        task_status.started()

    async def system(self, done: Any) -> None:
        done.set()


def test_trios_tasks_are_seen_however_they_are_made() -> None:
    pytest.importorskip("trio")
    found = counts(counted(Noop(SpawnsForTrio(hello)), loop="trio"), "SpawnsForTrio").tasks
    place = f"{__name__}.SpawnsForTrio"
    assert dict(found.kinds) == {f"{place}.soon": 2, f"{place}.started": 1, f"{place}.system": 1}


@needs_objects
def test_what_the_measurement_does_after_a_layer_spawned_a_system_task_is_nobodys() -> None:
    pytest.importorskip("trio")

    class Spawns(Noop):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            import trio

            trio.lowlevel.spawn_system_task(trio.lowlevel.checkpoint)
            await self.app(scope, receive, send)

    measurement = counted(Noop(Spawns(Noop(hello))), loop="trio")
    found = counts(measurement, "Spawns")
    assert found.tasks.high == 1
    assert found.objects is not None
    assert found.objects.high < 120
    assert not any(kind.startswith("pytest_mwbudget") for kind in found.objects.kinds)


def test_a_task_that_was_there_before_is_nobodys() -> None:
    async def busy_elsewhere() -> None:
        while True:
            [Own() for _ in range(50)]
            await asyncio.gather(asyncio.sleep(0), asyncio.sleep(0))

    class Waits(Noop):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await asyncio.sleep(0.002)
            await self.app(scope, receive, send)

    async def main() -> Measurement:
        other = asyncio.create_task(busy_elsewhere())
        request = server.build_request("GET", "/", {})
        found = await engine.measure(Noop(Waits(hello)), request, COUNT_ONLY, Environment())
        other.cancel()
        return found

    measurement = asyncio.run(main())
    assert measurement.ledger is not None
    for row in (*(report.counts for report in measurement.layers), measurement.ledger.endpoint):
        assert row is not None
        assert row.tasks.high == 0
        if COUNTS_OBJECTS:
            assert row.objects is not None
            assert f"{__name__}.Own" not in row.objects.kinds


# ---- threads -------------------------------------------------------------------------------------------------------


def work(number: int = 0) -> int:
    return number


class HandsOver(Noop):
    """Every way to have something done by a worker thread under asyncio."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await anyio.to_thread.run_sync(work, 1)
        await anyio.to_thread.run_sync(functools.partial(work, 1))
        await asyncio.to_thread(work, 1)
        await asyncio.get_running_loop().run_in_executor(None, work, 1)
        thread = threading.Thread(target=self.own)
        thread.start()
        thread.join()
        await self.app(scope, receive, send)

    def own(self) -> None: ...


@pytest.mark.parametrize("loop", ["asyncio", "uvloop", "trio"])
def test_what_a_library_of_threads_exports_is_work_like_any_other(loop: LoopName) -> None:
    class ComesBack(Noop):
        """As adapters of WSGI do: a worker thread calls back into the event loop."""

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await anyio.to_thread.run_sync(anyio.from_thread.run, anyio.sleep, 0)
            await self.app(scope, receive, send)

    found = counts(counted(ComesBack(hello), loop=loop), "ComesBack").threads
    assert dict(found.kinds) == {"anyio.from_thread.run": 1}


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_work_for_threads_is_seen_however_it_gets_there(loop: LoopName) -> None:
    measurement = counted(Noop(HandsOver(Noop(hello))), loop=loop)
    found = counts(measurement, "HandsOver").threads
    assert dict(found.kinds) == {f"{__name__}.work": 4, f"{__name__}.HandsOver.own": 1}
    assert found.exact
    assert counts(measurement, "Noop#1").threads.high == 0


@every_loop
def test_a_sync_endpoint_is_one_thread_of_the_endpoints(loop: LoopName) -> None:
    def page(request: Any) -> Any:
        return PlainTextResponse("ok")

    measurement = counted(Noop(PassThrough(Starlette(routes=[Route("/", page)]))), loop=loop)
    ledger = measurement.ledger
    assert ledger is not None
    assert ledger.endpoint is not None
    name = f"{__name__}.{test_a_sync_endpoint_is_one_thread_of_the_endpoints.__name__}.<locals>.page"
    assert dict(ledger.endpoint.threads.kinds) == {name: 1}
    assert counts(measurement, "PassThrough").threads.high == 0


@needs_objects
def test_what_other_threads_create_is_nobodys() -> None:
    stop = threading.Event()

    def elsewhere() -> None:
        while not stop.wait(0.0005):
            [Own() for _ in range(100)]

    class Waits(Noop):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await asyncio.sleep(0.005)
            await self.app(scope, receive, send)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    try:
        measurement = counted(Noop(Waits(hello)))
    finally:
        stop.set()
        thread.join()
    ledger = measurement.ledger
    assert ledger is not None
    assert ledger.total.objects is not None
    assert f"{__name__}.Own" not in ledger.total.objects.kinds


def test_asyncios_debug_mode_is_suspended() -> None:
    async def main(*, debug: bool) -> Measurement:
        asyncio.get_running_loop().set_debug(debug)
        request = server.build_request("GET", "/", {})
        measurement = await engine.measure(basic(PassThrough), request, COUNT_ONLY, Environment())
        assert asyncio.get_running_loop().get_debug() == debug
        return measurement

    measurement = asyncio.run(main(debug=True))
    assert measurement.verdict == "pass"
    assert "asyncio's debug mode was suspended" in " ".join(measurement.notes)
    plain = asyncio.run(main(debug=False))
    assert [report.counts and report.counts.objects for report in measurement.layers] == [
        report.counts and report.counts.objects for report in plain.layers
    ]


# ---- messages, suspensions -----------------------------------------------------------------------------------------


@every_loop
def test_messages_are_counted_at_each_boundary(loop: LoopName) -> None:
    async def page(request: Any) -> Any:
        body = await request.body()
        return StreamingResponse(bytes(1) for _ in range(len(body)))

    app = Noop(Starlette(routes=[Route("/", page, methods=["POST"])]))
    found = counts(counted(app, method="POST", content=b"abc", loop=loop), "Noop")
    # The body, and the disconnect that a streaming response listens for; a start, three pieces, an end.
    assert (found.received.count, found.sent.count) == (2, 5)


def test_suspensions_are_the_layers_that_stands_still() -> None:
    class Naps(Noop):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await asyncio.sleep(0)
            await self.app(scope, receive, send)
            await asyncio.sleep(0)

    measurement = counted(Noop(Naps(Noop(hello))))
    found = {report.name: report.counts.suspensions.count for report in measurement.layers if report.counts}
    assert found == {"Noop#1": 0, "Naps": 2, "Noop#2": 0}


# ---- what stays alive ---------------------------------------------------------------------------------------------


class Leaks(Noop):
    """Keeps three objects of every request, the latest request, and nothing of what is garbage."""

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
    found = counts(measurement, "Leaks").retained
    assert found is not None
    assert dict(found.kinds) == {f"{__name__}.Own": 2, "builtins.tuple": 1}
    for report in measurement.layers:
        if report.name != "Leaks":
            assert report.counts is not None
            assert report.counts.retained is not None
            assert report.counts.retained.count == 0


@needs_objects
def test_what_hangs_on_older_garbage_is_not_left_alive() -> None:
    """Nor is what the older garbage holds: here a class of its own for each request."""

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


DEEP = 450  # of which an app by itself has room for twice as many
RECURSION_IN_C_IS_BOUNDED_LOW = sys.version_info[:2] == (3, 12)


@pytest.mark.parametrize("layer", [Noop, Wraps])
@pytest.mark.parametrize("bounds", [{"tasks": 0}, {"us": 1e6}], ids=["counted", "timed"])
def test_a_stack_for_which_the_app_has_room_is_measured_or_the_reason_is_said(layer: Any, bounds: Any) -> None:
    app = functools.reduce(lambda inner, _: layer(inner), range(DEEP), hello)
    request = server.build_request("GET", "/", {})
    settings = Settings(budgets=Budgets(bounds), lifespan=False, max_time_s=0.1)
    limit = sys.getrecursionlimit()
    try:
        measurement = asyncio.run(engine.measure(app, request, settings, Environment()))
    except MeasurementError as error:
        said = "Measure the stack in parts, or on another version of Python" in str(error)
        assert said and RECURSION_IN_C_IS_BOUNDED_LOW  # noqa: PT018
    else:
        assert len(measurement.layers) == DEEP
        assert measurement.verdict != "fail"
    assert sys.getrecursionlimit() == limit


# ---- in somebody else's process ------------------------------------------------------------------------------------


@contextmanager
def everything_as_before(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """The loop's attributes and the code of every function are the same at the end."""
    names, factory = set(vars(loop)), loop.get_task_factory()
    with unchanged_code():
        yield
    assert set(vars(loop)) == names
    assert loop.get_task_factory() is factory


def ran_by_asyncio(app: Any) -> Measurement:
    async def main() -> Measurement:
        request = server.build_request("GET", "/", {})
        with everything_as_before(asyncio.get_running_loop()):
            return await engine.measure(app, request, COUNT_ONLY, Environment())

    return asyncio.run(main())


def test_nothing_of_the_ledger_stays_behind() -> None:
    ran_by_asyncio(basic(PassThrough, SpawnsInAGroup))


class FailsLater(Noop):
    """Raises after a number of requests."""

    def __init__(self, app: Any, error: type[BaseException], after: int) -> None:
        super().__init__(app)
        self.error = error
        self.left = after

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.left -= 1
        if self.left < 0:
            raise self.error("as the test wants it")
        await self.app(scope, receive, send)


def requests_until_the_ledger() -> int:
    """So many requests come before the ledger opens: warm calls, two traces, the first."""
    return 1 + Schedule().brief_warm_calls + 2


@every_loop
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, asyncio.CancelledError])
@pytest.mark.parametrize("into", [1, 12])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_exception_in_a_counted_request_leaves_nothing_behind(
    error: type[BaseException], into: int, loop: LoopName
) -> None:
    # A task layer turns what it does not expect into something else.
    around = Noop if error is asyncio.CancelledError or loop == "trio" else PassThrough
    app = basic(around, Noop, functools.partial(FailsLater, error=error, after=requests_until_the_ledger() + into))
    with unchanged_code(), pytest.raises(BaseException, match="as the test wants it") as raised:
        counted(app, loop=loop, schedule=Schedule(brief_warm_ns=60 * 10**9))
    assert isinstance(of_the_app(raised.value), error)
    # The next one can count again.
    assert number(counts(counted(basic(PassThrough), loop=loop), "PassThrough").tasks) == 1


INTERRUPTED = """
import asyncio, os, signal
from pytest_mwbudget.counting import _core
from pytest_mwbudget.timing.schedule import Schedule
from tests.test_ledger import Noop, basic, counted

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
    counted(basic(Interrupts), schedule=Schedule(brief_warm_ns=60 * 10**9))
except KeyboardInterrupt:
    _core.start(1)  # which the ledger that was interrupted would refuse if it were still open
    print("interrupted, and closed")
"""


@needs_allocations
def test_ctrl_c_closes_the_ledger() -> None:
    command = [sys.executable, "-c", INTERRUPTED]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parent.parent, timeout=60)
    assert done.stdout == "interrupted, and closed\n", done.stderr


def test_a_measurement_inside_a_measurement_is_refused() -> None:
    class Measures(Noop):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            request = server.build_request("GET", "/", {})
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
        assert all(tracemalloc.get_object_traceback(one) for one in (*kept, *after))
    finally:
        tracemalloc.stop()
    assert any("tracemalloc" in note for note in measurement.notes)
    found = counts(measurement, "Creates").objects
    assert found is not None
    assert found.kinds[f"{__name__}.Own"] == Creates.owned


@needs_objects
def test_a_tracer_that_takes_the_place_of_this_one_makes_the_count_unknown() -> None:
    import tracemalloc

    class Traces(Noop):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            tracemalloc.stop()  # where it is at work already, a start changes nothing (CPython 3.14)
            tracemalloc.start()
            await self.app(scope, receive, send)

    try:
        measurement = counted(Noop(Traces(hello)))
        assert tracemalloc.is_tracing()
    finally:
        tracemalloc.stop()
    assert measurement.ledger is not None
    assert "another tool" in measurement.ledger.why["objects"]
    assert counts(measurement, "Noop").objects is None


def test_without_the_extension_tasks_threads_and_messages_are_counted_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from pytest_mwbudget.counting.backend import Backend, PythonCore

    why = dict.fromkeys(("objects", "retained", "allocations", "bytes"), "it was not built")
    monkeypatch.setattr(engine, "counting_backend", lambda: Backend(PythonCore(), why))
    for loop in LOOPS:
        measurement = counted(basic(PassThrough, SpawnsInAGroup, PassThrough), loop=loop)
        own = counts(measurement, "SpawnsInAGroup")
        assert (own.objects, own.allocations, own.bytes, own.retained) == (None, None, None, None)
        assert own.tasks.count == 3
        assert dict(counts(measurement, "PassThrough#2").tasks.kinds) == {COROUTINE: 1}
        assert counts(measurement, "PassThrough#1").sent.count == 3
        assert measurement.ledger is not None
        assert measurement.ledger.why == why


# ---- the same on every machine --------------------------------------------------------------------------------------

IN_A_FRESH_PROCESS = """
import json, sys
from tests.test_ledger import PassThrough, SpawnsInAGroup, Creates, basic, counted
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
    found = [json.loads(output) for output in outputs]
    assert all(one == found[0] for one in found[1:])
