"""What a layer hands to a thread is charged to the layer, in every way to a thread and back."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import queue
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anyio
import anyio.from_thread
import anyio.to_thread
import pytest
from starlette.concurrency import run_in_threadpool

from pytest_mwbudget import engine
from pytest_mwbudget.asgi import loops
from pytest_mwbudget.asgi.request import build_request
from pytest_mwbudget.config.budgets import Budgets
from pytest_mwbudget.config.settings import Settings
from pytest_mwbudget.counting import unseen
from pytest_mwbudget.counting.charger import NOBODY
from pytest_mwbudget.counting.spawning import Spawning
from pytest_mwbudget.counting.unseen import busier, unseen_work
from pytest_mwbudget.interpreter import internals
from pytest_mwbudget.interpreter.clocks import perf_counter, sleep
from pytest_mwbudget.model.quantities import PROCESS_WIDE
from pytest_mwbudget.model.results import LoopName
from pytest_mwbudget.model.stack import Owner
from pytest_mwbudget.timing.looks import Environment

from .apps import FAST_SCHEDULE, Noop, hello
from .counted import COUNTS_OBJECTS, OWN, Own, counted, counts, every_loop, needs_allocations, needs_objects, number
from .readings import readings
from .test_cores import closed  # noqa: F401 - a fixture

Work = Callable[[], Any]

# ---- ways to a thread, each of which returns when the work is done ------------------------------------------------


async def by_to_thread(work: Work) -> None:
    await asyncio.to_thread(work)


async def by_the_default_executor(work: Work) -> None:
    await asyncio.get_running_loop().run_in_executor(None, work)


async def by_a_pool_of_its_own(work: Work) -> None:
    with ThreadPoolExecutor(1) as pool:
        await asyncio.get_running_loop().run_in_executor(pool, work)


async def by_submit(work: Work) -> None:
    with ThreadPoolExecutor(2) as pool:
        await asyncio.wrap_future(pool.submit(work))


async def by_an_initializer(work: Work) -> None:
    with ThreadPoolExecutor(1, initializer=work) as pool:
        await asyncio.wrap_future(pool.submit(int))


class OwnExecutor(concurrent.futures.Executor):
    """An executor that the standard library does not know."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Any:
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        pool.submit(lambda: future.set_result(function(*arguments, **named)))
        return future


async def by_an_own_executor(work: Work) -> None:
    await asyncio.get_running_loop().run_in_executor(OwnExecutor(), work)


async def by_a_thread(work: Work) -> None:
    await joined(threading.Thread(target=work))


async def by_a_class_of_thread(work: Work) -> None:
    class Own(threading.Thread):
        def run(self) -> None:
            work()

    await joined(Own(daemon=True))


async def by_a_timer(work: Work) -> None:
    await joined(threading.Timer(0.0001, work))


async def joined(thread: threading.Thread) -> None:
    thread.start()
    while thread.is_alive():
        await anyio.sleep(0.0002)


async def by_anyio(work: Work) -> None:
    await anyio.to_thread.run_sync(work)


async def by_starlette(work: Work) -> None:
    await run_in_threadpool(work)


async def by_asgiref(work: Work) -> None:
    sync = pytest.importorskip("asgiref.sync")
    await sync.sync_to_async(work)()


async def by_asgiref_for_each_request(work: Work) -> None:
    sync = pytest.importorskip("asgiref.sync")
    async with sync.ThreadSensitiveContext():
        await sync.sync_to_async(work)()


async def by_a_callback_of_a_future(work: Work) -> None:
    release, done = threading.Event(), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(release.wait, 10)
        future.add_done_callback(lambda _: (work(), done.set()))
        release.set()
        while not done.is_set():
            await asyncio.sleep(0.0002)


async def by_a_loop_in_a_thread(work: Work) -> None:
    await asyncio.to_thread(asyncio.run, steps(work))


async def by_the_loop_of_another_thread(work: Work) -> None:
    await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(steps(work), other_loop))


async def steps(work: Work) -> None:
    await asyncio.sleep(0)
    await asyncio.sleep(0.0001)
    await asyncio.create_task(later(work))


async def later(work: Work) -> None:
    await asyncio.sleep(0)
    work()


async def by_trio(work: Work) -> None:
    import trio

    await trio.to_thread.run_sync(work)


async def by_trios_lowest_level(work: Work) -> None:
    import trio

    token, done = trio.lowlevel.current_trio_token(), trio.Event()
    trio.lowlevel.start_thread_soon(lambda: None, lambda _: (work(), token.run_sync_soon(done.set)))
    await done.wait()


# ---- ways to a thread and back ------------------------------------------------------------------------------------


async def back_by_anyio(work: Work) -> None:
    await anyio.to_thread.run_sync(anyio.from_thread.run, asynchronous(work))


async def back_by_anyio_sync(work: Work) -> None:
    await anyio.to_thread.run_sync(anyio.from_thread.run_sync, work)


async def back_by_asyncio(work: Work) -> None:
    loop = asyncio.get_running_loop()
    await asyncio.to_thread(lambda: asyncio.run_coroutine_threadsafe(asynchronous(work)(), loop).result(10))


async def back_by_asgiref(work: Work) -> None:
    sync = pytest.importorskip("asgiref.sync")
    await sync.sync_to_async(lambda: sync.async_to_sync(asynchronous(work))())()


async def back_and_forth_by_asgiref(work: Work) -> None:
    sync = pytest.importorskip("asgiref.sync")

    async def inner() -> None:
        await sync.sync_to_async(work)()  # in the first thread again, which waits

    async with sync.ThreadSensitiveContext():
        await sync.sync_to_async(lambda: sync.async_to_sync(inner)())()


async def back_and_forth_by_anyio(work: Work) -> None:
    async def inner() -> None:
        await anyio.to_thread.run_sync(work)

    await anyio.to_thread.run_sync(anyio.from_thread.run, inner)


async def back_by_trio(work: Work) -> None:
    import trio

    await trio.to_thread.run_sync(trio.from_thread.run, asynchronous(work))
    await trio.to_thread.run_sync(trio.from_thread.run_sync, lambda: None)


async def back_by_trios_token(work: Work) -> None:
    import trio

    token = trio.lowlevel.current_trio_token()
    await trio.to_thread.run_sync(lambda: trio.from_thread.run(asynchronous(work), trio_token=token))


def asynchronous(work: Work) -> Callable[[], Awaitable[None]]:
    async def run() -> None:
        await anyio.sleep(0)
        work()

    return run


# By the functions that a way hands to threads, as `threads` counts them.
ANY_LOOP: dict[Callable[[Work], Awaitable[None]], int] = {
    by_a_thread: 1,
    by_a_class_of_thread: 1,
    by_a_timer: 1,
    by_anyio: 1,
    by_starlette: 1,
    back_by_anyio: 1,
    back_by_anyio_sync: 1,
    back_and_forth_by_anyio: 2,
}
ASYNCIO = {
    by_to_thread: 1,
    by_the_default_executor: 1,
    by_a_pool_of_its_own: 1,
    by_submit: 1,
    by_an_initializer: 1,
    by_an_own_executor: 1,
    by_asgiref: 1,
    by_asgiref_for_each_request: None,  # the executor ends in a thread too
    by_a_callback_of_a_future: 1,
    by_a_loop_in_a_thread: 1,
    by_the_loop_of_another_thread: 0,
    back_by_asyncio: 1,
    back_by_asgiref: 1,
    back_and_forth_by_asgiref: None,
}
TRIO = {by_trio: 1, by_trios_lowest_level: 1, back_by_trio: 2, back_by_trios_token: 1}
WAYS: list[Any] = [
    pytest.param(loop, way, handed, id=f"{way.__name__}-{loop}")
    for loop, ways in (
        ("asyncio", {**ANY_LOOP, **ASYNCIO}),
        ("uvloop", {**ANY_LOOP, **ASYNCIO}),
        ("trio", {**ANY_LOOP, **TRIO}),
    )
    for way, handed in ways.items()
]
every_way = pytest.mark.parametrize(("loop", "way", "handed"), WAYS)

pool: ThreadPoolExecutor
other_loop: asyncio.AbstractEventLoop


@pytest.fixture(scope="module", autouse=True)
def other_threads() -> Iterator[None]:
    """A pool and a loop of another thread, as an app has them since its start."""
    global pool, other_loop
    pool, other_loop = ThreadPoolExecutor(1), asyncio.SelectorEventLoop()
    pool.submit(int).result()
    thread = threading.Thread(target=other_loop.run_forever)
    thread.start()
    yield
    other_loop.call_soon_threadsafe(other_loop.stop)
    thread.join()
    other_loop.close()
    pool.shutdown()


# ---- who is charged, by both cores --------------------------------------------------------------------------------


@every_way
def test_work_in_a_thread_is_charged_to_whoever_handed_it_over(
    closed: Any,  # noqa: F811
    loop: LoopName,
    way: Any,
    handed: int | None,
) -> None:
    pytest.importorskip(loop)
    core, seen = closed, []

    async def main() -> None:
        core.start(4)
        spawning = Spawning(core, Owner(3), Owner(4))
        charged = core.aside(lambda owner: owner)

        async def layer(owner: int) -> None:
            await way(lambda: seen.append(charged()))
            assert charged() == owner

        with spawning.watched("trio" if loop == "trio" else "asyncio"):
            for owner in (1, 2):
                await core.coroutine_proxy(owner, layer(owner), True)
            _, threads = spawning.take()
        core.stop()
        assert handed in (None, sum(threads[1].values()) if 1 in threads else 0)
        assert threads.get(Owner(1)) == threads.get(Owner(2))

    loops.run(loop, main)
    assert seen == [1, 2]


@every_loop
def test_two_layers_at_the_same_time_are_each_charged_their_own_thread(
    closed: Any,  # noqa: F811
    loop: LoopName,
) -> None:
    pytest.importorskip(loop)
    core, meet = closed, threading.Barrier(2, timeout=10)
    seen: dict[int, set[int]] = {1: set(), 2: set()}

    async def main() -> None:
        core.start(4)
        charged = core.aside(lambda owner: owner)

        def work(owner: int) -> None:
            for _ in range(20):
                meet.wait()
                seen[owner].add(charged())

        async def layer(owner: int) -> None:
            await anyio.to_thread.run_sync(work, owner)
            seen[owner].add(charged())

        with Spawning(core, Owner(3), Owner(4)).watched("trio" if loop == "trio" else "asyncio"):
            async with anyio.create_task_group() as group:
                for owner in seen:
                    core.run(owner, group.start_soon, layer, owner)
        core.stop()

    loops.run(loop, main)
    assert seen == {1: {1}, 2: {2}}


def test_an_exception_in_the_thread_reaches_the_layer_and_ends_the_charge(closed: Any) -> None:  # noqa: F811
    core = closed

    async def main() -> None:
        core.start(4)
        charged = core.aside(lambda owner: owner)

        async def layer() -> None:
            with ThreadPoolExecutor(1) as pool:
                with pytest.raises(ZeroDivisionError):
                    await asyncio.get_running_loop().run_in_executor(pool, lambda: 1 / 0)
                assert await asyncio.get_running_loop().run_in_executor(pool, charged) == 1

        with Spawning(core, Owner(3), Owner(4)).watched("asyncio"):
            await core.coroutine_proxy(1, layer(), True)
        core.stop()

    asyncio.run(main())


def test_a_thread_of_the_app_that_nobody_handed_work_to_is_charged_to_nobody(closed: Any) -> None:  # noqa: F811
    core, go, seen = closed, threading.Event(), []
    charged: Any = None

    def work() -> None:
        go.wait(10)
        seen.append(charged())
        other_loop.call_soon_threadsafe(lambda: seen.append(charged()))
        thread = threading.Thread(target=lambda: seen.append(charged()))
        thread.start()
        thread.join()

    async def main() -> None:
        nonlocal charged
        thread = threading.Thread(target=work)
        thread.start()
        core.start(4)
        charged = core.aside(lambda owner: owner)
        spawning = Spawning(core, Owner(3), Owner(4))
        with spawning.watched("asyncio"):
            core.callback(1, go.set)()
            thread.join()
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(asyncio.sleep(0), other_loop))
            assert spawning.take()[1] == {}
        core.stop()

    asyncio.run(main())
    assert seen == [NOBODY] * 3


def test_a_thread_is_left_as_it_was(closed: Any) -> None:  # noqa: F811
    core = closed

    async def main() -> None:
        core.start(4)
        with Spawning(core, Owner(3), Owner(4)).watched("asyncio"):
            thread = threading.Thread(target=int)
            before = set(vars(thread))
            core.run(1, thread.start)
            assert set(vars(thread)) <= before
            thread.join()
            with pytest.raises(RuntimeError, match="once"):
                core.run(1, thread.start)
            assert set(vars(thread)) <= before
        core.stop()

    asyncio.run(main())


def test_an_executor_of_processes_gets_the_work_itself(closed: Any) -> None:  # noqa: F811
    core, sent = closed, []

    class Process(concurrent.futures.Executor):
        def submit(self, function: Any, /, *arguments: Any, **named: Any) -> Any:
            import pickle

            sent.append(pickle.loads(pickle.dumps(function))(*arguments))
            future: concurrent.futures.Future[Any] = concurrent.futures.Future()
            future.set_result(sent[-1])
            return future

    async def main() -> None:
        core.start(4)
        with Spawning(core, Owner(3), Owner(4)).watched("asyncio"):
            call = asyncio.get_running_loop().run_in_executor(Process(), len, "four")
            assert await core.coroutine_proxy(1, call, True) == 4
        core.stop()

    asyncio.run(main())
    assert sent == [4]


@every_loop
def test_a_wrong_call_fails_as_it_does_unwatched(closed: Any, loop: LoopName) -> None:  # noqa: F811
    pytest.importorskip(loop)
    core = closed

    def error_of(call: Callable[..., Any], *arguments: Any) -> str:
        with pytest.raises(TypeError) as caught:
            core.run(1, call, *arguments)
        return str(caught.value)

    def of_asyncio() -> list[str]:
        running = asyncio.get_running_loop()
        with ThreadPoolExecutor(1) as pool:
            calls = [running.call_soon, running.call_soon_threadsafe, running.call_later, running.create_task]
            errors = list(map(error_of, [*calls, running.run_in_executor, pool.submit]))
        errors += [error_of(running.create_task, None), error_of(running.call_later, 1)]
        return [*errors, error_of(asyncio.run_coroutine_threadsafe, None, running)]

    async def of_trio() -> list[str]:
        import trio

        token = trio.lowlevel.current_trio_token()
        async with trio.open_nursery() as nursery:
            calls = [trio.lowlevel.start_thread_soon, token.run_sync_soon, trio.lowlevel.spawn_system_task]
            # trio explains the error if it is given a coroutine in place of a function, and closes the coroutine.
            errors = [
                error_of(nursery.start_soon, wrong()).partition(" object")[0] for wrong in (lambda: None, errors_of)
            ]
            return [*map(error_of, [*calls, nursery.start_soon]), *errors]

    async def errors_of() -> list[str]:
        return await of_trio() if loop == "trio" else of_asyncio()

    async def main() -> None:
        core.start(4)
        unwatched = await errors_of()
        with Spawning(core, Owner(3), Owner(4)).watched("trio" if loop == "trio" else "asyncio"):
            assert await errors_of() == unwatched
        core.stop()

    loops.run(loop, main)


# ---- what is counted ----------------------------------------------------------------------------------------------

KNOWN, LARGE = 40, 4_000_000


def layer_of(way: Callable[[Work], Awaitable[None]], made: int) -> Any:
    class Hands(Noop):
        """A layer that makes `made` objects, and a large one, in a thread."""

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await way(self.work)
            await self.app(scope, receive, send)

        def work(self) -> None:
            [Own() for _ in range(made)]
            bytearray(LARGE if made else 0)

    return Hands


@needs_allocations
@every_way
def test_what_is_made_in_a_thread_is_the_layers(loop: LoopName, way: Any, handed: int | None) -> None:
    app = Noop(layer_of(way, KNOWN)(Noop(layer_of(way, 0)(hello))))
    measurement = counted(app, loop=loop)
    more, less = counts(measurement, "Hands#1"), counts(measurement, "Hands#2")
    assert handed in (None, number(more.threads))
    assert LARGE < more.bytes.low <= more.bytes.high < 2 * LARGE
    assert measurement.ledger.endpoint is not None
    for other in (measurement.ledger.endpoint, counts(measurement, "Noop#1"), counts(measurement, "Noop#2")):
        assert number(other.bytes) < LARGE
    if COUNTS_OBJECTS:
        assert more.objects.kinds[OWN] == KNOWN
        assert OWN in more.own_types
    assert number(less.bytes) < LARGE
    assert less.objects is None or OWN not in less.objects.kinds


@needs_objects
def test_a_thread_costs_the_layer_exactly_what_its_work_makes() -> None:
    """Nothing of the counting itself appears where the work runs, nor in what is round it."""
    more, less = (
        counts(counted(Noop(layer_of(by_to_thread, made)(Noop(hello)))), "Hands").objects for made in (KNOWN, 1)
    )
    assert more.count - less.count == KNOWN - 1


# ---- threads that nobody is seen to hand work to ------------------------------------------------------------------


class Fed:
    """A thread of the app that makes objects for each item it gets by `get`."""

    def __init__(self, name: str, get: Callable[[], Any]) -> None:
        self.get = get
        self.thread = threading.Thread(target=self.run, name=name, daemon=True)
        self.thread.start()

    def run(self) -> None:
        while (done := self.get()) is not None:
            [Own() for _ in range(KNOWN)]
            done.set()


@contextlib.contextmanager
def fed(name: str, source: Any) -> Iterator[None]:
    worker = Fed(name, source.get)

    def waits() -> bool:
        """Whether the thread waits for work, as far as that can be seen."""
        frame = sys._current_frames()[worker.thread.ident or 0]
        return isinstance(source, queue.SimpleQueue) or internals.awaited_condition(frame) != 0

    def pause(seconds: float) -> None:
        """Pause until the thread waits, too: on a busy machine it may not have finished its last work."""
        sleep(seconds)
        end = perf_counter() + 10
        while not waits() and perf_counter() < end:
            sleep(0.001)

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(unseen, "sleep", pause)
        yield
    source.put(None)
    worker.thread.join()


def puts_into(source: Any, wait: bool = True) -> Any:
    class Puts(Noop):
        """A layer that hands work to a thread through a queue."""

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            done = threading.Event()
            source.put(done)
            if wait:
                done.wait(10)
            await self.app(scope, receive, send)

    return Puts


def in_memory(row: Any) -> list[Any]:
    return [row.of(quantity) for quantity in PROCESS_WIDE]


@needs_allocations
@every_loop
def test_a_layer_that_wakes_a_thread_which_works_for_requests_has_no_figures_of_memory(loop: LoopName) -> None:
    source: Any = queue.Queue()
    with fed("writer", source):
        measurement = counted(Noop(puts_into(source)(Noop(hello))), loop=loop)
    row, ledger = counts(measurement, "Puts"), measurement.ledger
    assert in_memory(row) == in_memory(ledger.total) == [None] * len(PROCESS_WIDE)
    why = "thread writer is woken here, and what it does is in no row"
    assert set(row.why.values()) == set(ledger.total.why.values()) == {why}
    assert not set(row.why) - set(PROCESS_WIDE)
    for other in (counts(measurement, "Noop#1"), counts(measurement, "Noop#2"), ledger.endpoint, ledger.outside):
        assert other.allocations is not None
        assert other.why == {}
    assert (number(row.tasks), number(row.threads)) == (0, 0)
    assert f" of Puts and (total) are not counted: {why}." in " ".join(measurement.notes)


@needs_allocations
def test_nothing_has_figures_of_memory_if_it_is_unknown_who_wakes_the_thread() -> None:
    source: Any = queue.SimpleQueue()  # in C: nobody sees who puts
    with fed("writer", source):
        measurement = counted(Noop(puts_into(source)(hello)))
    ledger = measurement.ledger
    assert in_memory(counts(measurement, "Puts")) == in_memory(ledger.total) == [None] * len(PROCESS_WIDE)
    why = "thread writer works for the request, and it was not seen which layer gave it the work"
    assert ledger.total.why["bytes"] == ledger.total.why["allocations"] == why
    assert number(counts(measurement, "Puts").threads) == 0


@needs_allocations
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_row_that_a_thread_reports_back_to_has_no_figures_of_memory(loop: LoopName) -> None:
    source: Any = queue.SimpleQueue()

    class Reports:
        """What a thread sets when it is done, as aiosqlite does."""

        def __init__(self) -> None:
            self.future = asyncio.get_running_loop().create_future()

        def set(self) -> None:
            self.future.get_loop().call_soon_threadsafe(self.future.set_result, None)

    class Asks(Noop):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            done = Reports()
            source.put(done)
            await done.future
            await self.app(scope, receive, send)

    with fed("database", source):
        measurement = counted(Noop(Asks(Noop(hello))), loop=loop)
    row, ledger = counts(measurement, "Asks"), measurement.ledger
    assert in_memory(row) == in_memory(ledger.total) == [None] * len(PROCESS_WIDE)
    assert set(row.why.values()) == {"thread database reports back here, and what it does is in no row"}
    assert counts(measurement, "Noop#1").allocations is not None
    assert ledger.endpoint.allocations is not None


@needs_allocations
@readings  # a thread that a pause of the machine holds up does its work after the requests
def test_a_thread_that_threading_did_not_start_is_told_too() -> None:
    import _thread

    class Starts(Noop):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            done = threading.Event()
            _thread.start_new_thread(lambda: ([Own() for _ in range(KNOWN)], done.set()), ())
            done.wait(10)
            await self.app(scope, receive, send)

    measurement = counted(Noop(Starts(hello)))
    assert measurement.ledger.total.bytes is None
    assert "works for the request, and it was not seen which layer" in measurement.ledger.total.why["bytes"]


@needs_allocations
def test_a_budget_of_memory_is_undecided_for_the_layer_that_wakes_the_thread() -> None:
    source: Any = queue.Queue()
    budgets = Budgets(default={"bytes": 10**9, "tasks": 0})
    with fed("writer", source):
        app = Noop(puts_into(source)(Noop(hello)))
        settings = Settings(budgets=budgets, lifespan=False)
        request = build_request("GET", "/", {})
        environment = Environment(schedule=FAST_SCHEDULE)
        measurement = loops.run("asyncio", lambda: engine.measure(app, request, settings, environment))
    assert {report.name: report.verdict for report in measurement.layers} == {
        "Noop#1": "pass",
        "Puts": "undecided",
        "Noop#2": "pass",
    }
    judged = measurement.layer("Puts").judged
    assert judged["tasks"].verdict == "pass"
    assert "bytes cannot be counted here: thread writer is woken here" in (judged["bytes"].reason or "")
    # What cannot be counted here fails a test. A thread that works unseen does not.
    assert measurement.uncountable == ()


@needs_allocations
@pytest.mark.parametrize("interval", [0.0002, 0.001, 0.05])
@readings  # a pause of the machine can put off what the thread does to the requests
def test_a_thread_that_works_without_requests_too_changes_nothing(interval: float) -> None:
    stop = threading.Event()

    def heartbeat() -> None:
        while not stop.wait(interval):
            [Own() for _ in range(100)]

    class Waits(Noop):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await asyncio.sleep(0.005)
            await self.app(scope, receive, send)

    thread = threading.Thread(target=heartbeat)
    thread.start()
    try:
        measurement = counted(Noop(Waits(layer_of(by_to_thread, KNOWN)(hello))))
    finally:
        stop.set()
        thread.join()
    row = counts(measurement, "Hands")
    assert row.bytes.low > LARGE
    assert measurement.ledger.total.objects is None or measurement.ledger.total.objects.kinds[OWN] == KNOWN


@needs_objects
def test_a_thread_that_outlives_its_request_is_its_layers() -> None:
    class Starts(Noop):
        """A layer whose thread works in the middle of the next request."""

        thread: threading.Thread | None = None
        go = threading.Event()

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            if self.thread is not None:
                self.go.set()
                self.thread.join()
                self.go.clear()
            self.thread = threading.Thread(target=self.work, daemon=True)
            self.thread.start()
            await self.app(scope, receive, send)

        def work(self) -> None:
            self.go.wait(60)
            [Own() for _ in range(KNOWN)]

    measurement = counted(Noop(Starts(Noop(hello))))
    Starts.go.set()
    objects = counts(measurement, "Starts").objects
    assert objects.kinds[OWN] == KNOWN
    for name in ("Noop#1", "Noop#2"):
        other = counts(measurement, name).objects
        assert OWN not in other.kinds


def test_a_thread_that_ends_in_a_request_does_not_work_for_requests() -> None:
    works, ends = {1: 5}, {1: 5, 2: 40}
    assert busier([works, ends, ends, *[works] * 18], 1.0, {}, 1.0) == {1}
    # Threads that take turns work in some requests each.
    turns = [{ident: 5} for ident in (1, 2, 3, 4) * 5]
    assert busier(turns, 1.0, {}, 1.0) == {1, 2, 3, 4}


def test_the_threads_that_are_busier_for_requests() -> None:
    requests: list[dict[int, int]] = [{1: 10, 2: 10, 3: 10}, {1: 10, 2: 10, 4: 1}, {1: 10, 2: 10, 4: 1}]
    idle = {1: 20, 2: 5, 3: 10}
    assert busier(requests, 1.0, idle, 1.0) == {2, 4}
    assert busier(requests, 3.0, idle, 1.0) == {4}  # three times as long as the pause


def test_no_time_is_spent_where_no_thread_works_in_the_typical_request() -> None:
    def others() -> Any:
        raise AssertionError("looked")

    assert unseen_work([{}, {}, {1: 5}], 1000.0, others, {}, {}) == []
    assert unseen_work([{1: 5}, {}, {}, {1: 5}], 1000.0, others, {}, {}) == []
