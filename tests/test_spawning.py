"""Tasks and threads are charged to the layer that spawns them, in every way of spawning and on every loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import queue
import sys
import threading
import types
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import anyio
import anyio.from_thread
import anyio.to_thread
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from pytest_mwbudget import engine
from pytest_mwbudget.asgi import loops
from pytest_mwbudget.asgi.request import build_request
from pytest_mwbudget.counting.spawning import Spawning
from pytest_mwbudget.interpreter.foreign_tools import garbage_collection_paused
from pytest_mwbudget.model.results import LoopName, Measurement
from pytest_mwbudget.timing.looks import Environment

from .apps import FAST_SCHEDULE, Noop, hello
from .counted import (
    COROUTINE,
    COUNT_ONLY,
    COUNTS_OBJECTS,
    OWN,
    Own,
    PassThrough,
    SpawnsInAGroup,
    basic,
    counts,
    every_loop,
    everything_as_before,
    needs_objects,
    number,
)
from .counted import counted as counted_in_full
from .readings import readings

# Tasks and threads are the same in every request, so the app need not be warm.
counted = functools.partial(counted_in_full, schedule=FAST_SCHEDULE)

# ---- calls that are watched ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("keyword", ["caller", "function", "owner", "arguments", "named", "self", "seen"])
def test_a_watched_function_takes_any_keyword(keyword: str) -> None:
    given: list[str] = []

    def note(**named: str) -> None:
        given.extend(named)

    class InAPool(Noop):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await asyncio.wrap_future(pool.submit(note, **{keyword: "the app's"}))
            await self.app(scope, receive, send)

    with ThreadPoolExecutor(1) as pool:
        measurement = counted(basic(InAPool))
    assert set(given) == {keyword}
    assert counts(measurement, "InAPool").threads.count == 1


# ---- tasks --------------------------------------------------------------------------------------------------------


@every_loop
@pytest.mark.parametrize("depth", [1, 3])
def test_each_nested_task_layer_spawns_its_one_task(loop: LoopName, depth: int) -> None:
    measurement = counted(basic(Noop, *[PassThrough] * depth, Noop), loop=loop)
    assert measurement.loop == loop
    layers = [report for report in measurement.layers if report.name.startswith("PassThrough")]
    assert len(layers) == depth
    for report in measurement.layers:
        expected = {COROUTINE: 1} if report in layers else {}
        assert dict(report.counts.tasks.kinds) == expected
        assert report.counts.tasks.exact


@every_loop
@pytest.mark.parametrize("around", [(), (PassThrough, PassThrough)], ids=len)
@pytest.mark.parametrize("inside", [(), (PassThrough,)], ids=len)
def test_what_child_tasks_spawn_and_create_is_their_layers(loop: LoopName, around: Any, inside: Any) -> None:
    measurement = counted(basic(*around, SpawnsInAGroup, *inside), loop=loop)
    own = counts(measurement, "SpawnsInAGroup")
    place = f"{SpawnsInAGroup.__module__}.SpawnsInAGroup"
    assert dict(own.tasks.kinds) == {f"{place}.child": 1, f"{place}.grandchild": 2}
    assert own.tasks.exact
    for report in measurement.layers:
        if report.name != "SpawnsInAGroup":
            assert number(report.counts.tasks) == report.name.startswith("PassThrough")
    if COUNTS_OBJECTS:
        assert own.objects.kinds[OWN] == 14
        assert OWN in own.own_types


class Ways(Noop):
    """A layer that uses every way in which asyncio makes a task."""

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
    tasks = counts(counted(Noop(Ways(hello)), loop=loop), "Ways").tasks
    names = {"direct": 1, "ensured": 1, "by_the_loop": 1, "gathered": 2, "shielded": 1, "grouped": 1}
    assert dict(tasks.kinds) == {f"{__name__}.Ways.{name}": number for name, number in names.items()}


class Keeps(Noop):
    """A layer that makes tasks with functions kept since the first request, before counting starts."""

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
    """Make a task, as the app's own task factory."""
    return asyncio.Task(coro, loop=loop, **named)


@pytest.mark.parametrize("factory", [None, own_factory])
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_tasks_are_seen_where_what_makes_them_was_kept(loop: LoopName, factory: Any) -> None:
    pytest.importorskip(loop)

    async def main() -> Measurement:
        running = asyncio.get_running_loop()
        running.set_task_factory(factory)
        request = build_request("GET", "/", {})
        with everything_as_before(running):
            return await engine.measure(
                Noop(Keeps(Noop(hello))), request, COUNT_ONLY, Environment(schedule=FAST_SCHEDULE)
            )

    measurement = loops.run(loop, main)
    layer_counts = counts(measurement, "Keeps")
    assert dict(layer_counts.tasks.kinds) == {f"{__name__}.Keeps.child": 6}
    assert layer_counts.tasks.exact
    if COUNTS_OBJECTS:
        assert layer_counts.objects.kinds[OWN] == 30
        assert layer_counts.objects.kinds["_asyncio.Task"] == 6


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
            # The endpoint suspends last: if the callback had no owner, the endpoint would be charged its task.
            await self.app(scope, receive, send)
            await done

        def later(self, done: asyncio.Future[None]) -> None:
            task = asyncio.ensure_future(self.child())
            task.add_done_callback(lambda _: done.set_result(None))

        async def child(self) -> None: ...

    async def waits(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(0.001)
        await hello(scope, receive, send)

    tasks = counts(counted(Noop(Soon(Noop(waits)))), "Soon").tasks
    assert (tasks.count, tasks.low, tasks.high) == (1, 1, 1)


async def made_unwatched_and_watched(function: Callable[[], None]) -> list[dict[type, int]]:
    """Return the objects that a function makes in this thread without and with the watch on tasks and threads."""
    from pytest_mwbudget.counting import _core as core

    objects = []
    for watched in (False, True):
        with garbage_collection_paused():
            core.start(4)
            try:
                with Spawning(core, 2, 3).watched("asyncio") if watched else nullcontext():
                    for _ in range(50):  # Repeat until the interpreter has specialised the bytecode.
                        core.take()
                        core.run(0, function)
                        _, made = core.take()
            finally:
                core.stop()
        objects.append({kind: number for owner, kind, number in made if owner == 0})
        await asyncio.sleep(0)
    return objects


@needs_objects
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_watching_tasks_creates_nothing_that_is_counted(loop: LoopName) -> None:
    pytest.importorskip(loop)

    async def child() -> None: ...

    def spawns() -> None:
        asyncio.create_task(child())  # noqa: RUF006

    def schedules() -> None:
        running = asyncio.get_running_loop()
        running.call_soon(bool)
        running.call_later(100, bool).cancel()
        running.call_at(running.time() + 100, bool).cancel()
        running.call_soon_threadsafe(bool)

    async def main() -> None:
        # uvloop's own methods are compiled, so their internal calls are unknown.
        for function in (spawns, schedules) if loop == "asyncio" else (spawns,):
            unwatched, watched = await made_unwatched_and_watched(function)
            if loop == "uvloop" and sys.version_info >= (3, 14):
                # asyncio.create_task binds the method of the loop. The function that replaces it is not bound.
                assert unwatched.pop(types.MethodType) == 1
            assert unwatched == watched

    loops.run(loop, main)


@needs_objects
def test_watching_threads_creates_nothing_that_is_counted() -> None:
    release = threading.Event()

    def hands_over() -> None:
        pool.submit(int)
        pool.submit(work, number=1)

    def signals() -> None:
        threading.Event().set()
        queue.Queue[int]().put(1)
        concurrent.futures.Future[int]().add_done_callback(id)

    async def main() -> None:
        for function in (hands_over, signals):
            unwatched, watched = await made_unwatched_and_watched(function)
            assert unwatched == watched

    with ThreadPoolExecutor(1) as pool:
        pool.submit(release.wait, 60)  # the pool has no idle thread, else what it makes varies
        asyncio.run(main())
        release.set()


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with Python 3.12")
def test_eager_tasks_are_charged_to_their_layer() -> None:
    async def main() -> Measurement:
        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
        request = build_request("GET", "/", {})
        measurement = await engine.measure(
            basic(SpawnsInAGroup, PassThrough), request, COUNT_ONLY, Environment(schedule=FAST_SCHEDULE)
        )
        assert asyncio.get_running_loop().get_task_factory() is asyncio.eager_task_factory
        return measurement

    measurement = asyncio.run(main())
    assert number(counts(measurement, "SpawnsInAGroup").tasks) == 3
    assert number(counts(measurement, "PassThrough").tasks) == 1


class SpawnsForTrio(Noop):
    """A layer that uses every way in which trio makes a task."""

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
    tasks = counts(counted(Noop(SpawnsForTrio(hello)), loop="trio"), "SpawnsForTrio").tasks
    place = f"{__name__}.SpawnsForTrio"
    assert dict(tasks.kinds) == {f"{place}.soon": 2, f"{place}.started": 1, f"{place}.system": 1}


@needs_objects
def test_what_the_measurement_does_after_a_layer_spawned_a_system_task_is_nobodys() -> None:
    pytest.importorskip("trio")

    class Spawns(Noop):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            import trio

            trio.lowlevel.spawn_system_task(trio.lowlevel.checkpoint)
            await self.app(scope, receive, send)

    measurement = counted(Noop(Spawns(Noop(hello))), loop="trio")
    layer_counts = counts(measurement, "Spawns")
    assert layer_counts.tasks.high == 1
    assert layer_counts.objects.high < 120
    assert not any(kind.startswith("pytest_mwbudget") for kind in layer_counts.objects.kinds)


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
        request = build_request("GET", "/", {})
        measurement = await engine.measure(Noop(Waits(hello)), request, COUNT_ONLY, Environment(schedule=FAST_SCHEDULE))
        other.cancel()
        return measurement

    measurement = asyncio.run(main())
    assert measurement.ledger is not None
    for row in (*(report.counts for report in measurement.layers), measurement.ledger.endpoint):
        assert row.tasks.high == 0
        if COUNTS_OBJECTS:
            assert OWN not in row.objects.kinds


# ---- threads -------------------------------------------------------------------------------------------------------


def work(number: int = 0) -> int:
    return number


class HandsOver(Noop):
    """A layer that uses every way to run a function in a thread under asyncio."""

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
        """A layer whose worker thread calls back into the event loop, as in WSGI adapters."""

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await anyio.to_thread.run_sync(anyio.from_thread.run, anyio.sleep, 0)
            await self.app(scope, receive, send)

    threads = counts(counted(ComesBack(hello), loop=loop), "ComesBack").threads
    assert dict(threads.kinds) == {"anyio.from_thread.run": 1}


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_work_for_threads_is_seen_however_it_gets_there(loop: LoopName) -> None:
    measurement = counted(Noop(HandsOver(Noop(hello))), loop=loop)
    threads = counts(measurement, "HandsOver").threads
    assert dict(threads.kinds) == {f"{__name__}.work": 4, f"{__name__}.HandsOver.own": 1}
    assert threads.exact
    assert counts(measurement, "Noop#1").threads.high == 0


@every_loop
def test_a_sync_endpoint_is_one_thread_of_the_endpoints(loop: LoopName) -> None:
    def page(request: Any) -> Any:
        return PlainTextResponse("ok")

    measurement = counted(Noop(PassThrough(Starlette(routes=[Route("/", page)]))), loop=loop)
    ledger = measurement.ledger
    name = f"{__name__}.{test_a_sync_endpoint_is_one_thread_of_the_endpoints.__name__}.<locals>.page"
    assert dict(ledger.endpoint.threads.kinds) == {name: 1}
    assert counts(measurement, "PassThrough").threads.high == 0


@needs_objects
@readings  # a pause of the machine can put off what the thread does to the requests
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
    assert OWN not in ledger.total.objects.kinds


def test_asyncios_debug_mode_is_suspended() -> None:
    async def main(*, debug: bool) -> Measurement:
        asyncio.get_running_loop().set_debug(debug)
        request = build_request("GET", "/", {})
        measurement = await engine.measure(basic(PassThrough), request, COUNT_ONLY, Environment(schedule=FAST_SCHEDULE))
        assert asyncio.get_running_loop().get_debug() == debug
        return measurement

    measurement = asyncio.run(main(debug=True))
    assert measurement.verdict == "pass"
    assert "asyncio's debug mode was suspended" in " ".join(measurement.notes)
    plain = asyncio.run(main(debug=False))
    assert [report.counts and report.counts.objects for report in measurement.layers] == [
        report.counts and report.counts.objects for report in plain.layers
    ]
