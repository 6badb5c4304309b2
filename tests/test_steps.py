"""Work beside a request is charged to who started it, on every loop, with a clock that counts calls."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anyio
import pytest
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.responses import StreamingResponse

from pytest_mwbudget.analysis.event_log import Spent, spent
from pytest_mwbudget.asgi import loops
from pytest_mwbudget.asgi.server import LOOKED_AT
from pytest_mwbudget.model.stack import OTHERS
from pytest_mwbudget.timing import steps
from pytest_mwbudget.timing.probes import Probes
from pytest_mwbudget.timing.steps import Steps

from .apps import App, Noop, caller, discovered, hello, respond, stack_of
from .readings import readings
from .test_truth_exact import CALL_NS, CallClock

LOOPS = ["asyncio", "uvloop", "trio"]
ASYNCIO = ["asyncio", "uvloop"]
# What a side task calls, and the most that probes, steps and the event loop call in a request.
WORK, REST = 2000, 900


def no_op() -> None: ...


def work(calls: int = WORK) -> None:
    for _ in range(calls):
        no_op()


async def by_row(app: App, before: Callable[[], Awaitable[None]] | None = None) -> Spent:
    """Return the calls of the third of three requests by owner, with what `before` starts before all of them."""
    clock = CallClock()
    if before is not None:
        await before()
    call = await caller(app)
    stack = await discovered(call)
    for _ in range(2):
        await call()
    probes = Probes(stack, clock.read, suspending=not call.leaves, leaving=call.leaves)
    with probes.installed(probes.probed):
        for _ in range(3):
            with clock:
                await call(probes.watch)
    return spent(probes.read(), probes.owners)


def calls(app: App, loop: Any, before: Callable[[], Awaitable[None]] | None = None) -> list[float]:
    """Return the calls by owner: the harness, the layers from the outermost, …."""
    if loop != "asyncio":
        pytest.importorskip(loop)
    used = loops.run(loop, lambda: by_row(app, before))
    return [ns / CALL_NS for ns in used.ns]


def assert_charged(found: list[float], row: int, times: int = 1) -> None:
    """Check that the work is in one row and nowhere else."""
    assert times * WORK <= found[row] < times * WORK + REST
    assert all(calls < REST for place, calls in enumerate(found) if place != row % len(found))


class Yields(Noop):
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await anyio.lowlevel.checkpoint()
        await self.app(scope, receive, send)


class Sleeps(Noop):
    """Gives the loop as many turns as it needs, also if the process waits for a core longer than a sleep takes."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        for _ in range(3):
            await anyio.sleep(0.003)
        await self.app(scope, receive, send)


class PassesOn(BaseHTTPMiddleware):
    async def dispatch(self, request: Any, call_next: Any) -> Any:
        return await call_next(request)


async def record() -> None:
    work()


class InAGroup(Noop):
    """Work in a task of a task group beside the app."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(record)
            await self.app(scope, receive, send)


class Awaited(Noop):
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        task = asyncio.create_task(record())
        await self.app(scope, receive, send)
        await task


class Gathered(Noop):
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await asyncio.gather(self.app(scope, receive, send), record())


class Forgotten(Noop):
    """Work in a task that nobody awaits."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.task = asyncio.create_task(record())
        await self.app(scope, receive, send)


class Calls(Noop):
    """Work in callbacks of the event loop."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        asyncio.get_running_loop().call_soon(work)
        await self.app(scope, receive, send)


class CallsThreadsafe(Noop):
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        asyncio.get_running_loop().call_soon_threadsafe(work)
        await self.app(scope, receive, send)


class Reads(Noop):
    """Work in the callback of a file."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        loop, read = asyncio.get_running_loop(), asyncio.Event()
        ours, theirs = socket.socketpair()

        def reading() -> None:
            work()
            loop.remove_reader(ours)
            read.set()

        with ours, theirs:
            loop.add_reader(ours, reading)
            theirs.send(b"1")
            await self.app(scope, receive, send)
            await read.wait()


class LeavesAGenerator(Noop):
    """Work at the end of an async generator that the loop closes."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def lines() -> AsyncIterator[int]:
            try:
                yield 1
                yield 2
            finally:
                work()

        async for _ in lines():
            break
        await self.app(scope, receive, send)


class AsksTrio(Noop):
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        import trio

        trio.lowlevel.current_trio_token().run_sync_soon(work)
        await self.app(scope, receive, send)


class CallsLater(Noop):
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(delay=0, callback=work)
        loop.call_at(loop.time(), no_op)
        await self.app(scope, receive, send)
        await asyncio.sleep(0.001)


SIDE_WORK: dict[str, type[Noop]] = {
    "awaited": Awaited,
    "gathered": Gathered,
    "forgotten": Forgotten,
    "callback": Calls,
    "later": CallsLater,
    "threadsafe": CallsThreadsafe,
    "file": Reads,
}


@pytest.mark.parametrize("inside", [Yields, PassesOn])
@pytest.mark.parametrize("loop", LOOPS)
def test_a_task_in_a_group_is_its_layers(loop: str, inside: Any) -> None:
    assert_charged(calls(InAGroup(inside(Noop(hello))), loop), row=1)


@pytest.mark.parametrize("inside", [Yields, PassesOn])
@pytest.mark.parametrize("name", SIDE_WORK)
@pytest.mark.parametrize("loop", ASYNCIO)
def test_side_work_is_its_layers(loop: str, name: str, inside: Any) -> None:
    assert_charged(calls(Noop(SIDE_WORK[name](inside(Noop(hello)))), loop), row=2)


@pytest.mark.parametrize("loop", ASYNCIO)
def test_a_task_that_first_runs_after_the_request_is_its_layers(loop: str) -> None:
    """Nothing inside the layer suspends, so the request is over before the event loop comes to the task."""
    assert_charged(calls(Noop(Forgotten(Noop(hello))), loop), row=2)


def test_tasks_that_a_request_leaves_are_noticed_and_take_a_part_of_its_time() -> None:
    async def left(app: App) -> tuple[bool, float]:
        clock = CallClock()
        call = await caller(app)
        call.clock = clock.read
        for _ in range(LOOKED_AT.stop + 1):  # to look takes calls for each task of the process, so not in the last one
            with clock:
                exchange = await call()
        return call.leaves, exchange.elapsed_ns / CALL_NS

    class Starts(Noop):
        """Starts a worker with the third request, which stays."""

        requests = 0

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            self.requests += 1
            if self.requests == 3:
                self.task = asyncio.create_task(asyncio.sleep(60))
            await self.app(scope, receive, send)

    leaves, spent_calls = asyncio.run(left(Forgotten(hello)))
    assert leaves
    assert WORK <= spent_calls < WORK + REST
    for app in (Awaited(hello), Starts(hello), hello):
        assert not asyncio.run(left(app))[0]


class Keeps(Noop):
    """Keeps its `receive` and its `send` where code further inside finds them, as `get_current_request()` does."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        scope["kept"] = receive, send
        await self.app(scope, receive, send)


async def reads_by_what_was_kept(scope: Any, receive: Any, send: Any) -> None:
    await scope["kept"][0]()
    work(2 * WORK)
    await respond(send)
    work()


async def sends_by_what_was_kept(scope: Any, receive: Any, send: Any) -> None:
    receive, send = scope["kept"]
    await receive()
    work()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    work()
    await send({"type": "http.response.body", "body": b""})
    work()


@pytest.mark.parametrize(
    ("inside", "endpoint"),
    [
        (Noop, reads_by_what_was_kept),
        (Yields, reads_by_what_was_kept),
        (PassesOn, reads_by_what_was_kept),
        (Noop, sends_by_what_was_kept),
        (Yields, sends_by_what_was_kept),
    ],
)
def test_what_uses_the_receive_of_an_outer_layer_keeps_its_own_time(inside: Any, endpoint: App) -> None:
    assert_charged(calls(Keeps(inside(Noop(endpoint))), "asyncio"), row=4, times=3)


class WorksInReceive(Noop):
    """Works for each message that it receives, as `BaseHTTPMiddleware` does."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def working() -> Any:
            work()
            return await receive()

        await self.app(scope, working, send)


async def streams(scope: Any, receive: Any, send: Any) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"1"
        await anyio.sleep(0)
        yield b"2"

    await StreamingResponse(pieces())(scope, receive, send)


@pytest.mark.parametrize("inside", [Noop, Yields])
@pytest.mark.parametrize("loop", LOOPS)
def test_work_in_receive_after_the_body_is_of_the_layer_whose_receive_it_is(loop: str, inside: Any) -> None:
    """A streaming response listens for the disconnect in a task of its own."""
    found = calls(Noop(WorksInReceive(inside(Noop(streams)))), loop)
    assert_charged(found, row=2, times=2)


def test_what_trio_is_asked_to_call_is_of_the_layer_that_asks() -> None:
    assert_charged(calls(Noop(AsksTrio(Sleeps(Noop(hello)))), "trio"), row=2)


@pytest.mark.filterwarnings("ignore:Async generator:ResourceWarning")  # of trio
@pytest.mark.parametrize("loop", LOOPS)
def test_the_end_of_a_generator_is_of_the_layer_that_leaves_it(loop: str) -> None:
    assert_charged(calls(Noop(LeavesAGenerator(Sleeps(Noop(hello)))), loop), row=2)


@pytest.mark.parametrize("loop", ASYNCIO)
def test_tasks_of_side_tasks_are_their_layers(loop: str) -> None:
    class Nested(Noop):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            async def parent() -> None:
                await asyncio.gather(record(), record())

            task = asyncio.create_task(parent())
            await self.app(scope, receive, send)
            await task

    assert_charged(calls(Noop(Nested(Yields(hello))), loop), row=2, times=2)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python 3.12 has eager tasks")
def test_eager_tasks_are_their_layers() -> None:
    class Late(Noop):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            async def late() -> None:
                await asyncio.sleep(0)
                work()

            task = asyncio.create_task(late())
            await self.app(scope, receive, send)
            await task

    async def eager() -> None:
        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined, unused-ignore]

    assert_charged(calls(Noop(Late(PassesOn(Noop(hello)))), "asyncio", eager), row=2)


def test_a_task_of_a_custom_factory_goes_on_as_the_layer_that_it_has_entered() -> None:
    class WorksLate(Noop):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await asyncio.sleep(0.001)
            work()
            await self.app(scope, receive, send)

    async def before() -> None:
        asyncio.get_running_loop().set_task_factory(
            lambda loop, coroutine, **named: asyncio.Task(coroutine, loop=loop, **named)
        )

    assert_charged(calls(Noop(PassesOn(WorksLate(Noop(hello)))), "asyncio", before), row=3)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="no eager tasks")
def test_a_listener_that_is_started_eagerly_takes_no_wait() -> None:
    """It is charged for its work in `receive`, not for its wait until the disconnect."""

    async def endpoint(scope: Any, receive: Any, send: Any) -> None:
        async def listen() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass

        await receive()
        listener = asyncio.create_task(listen())
        await asyncio.sleep(0)
        work()
        await respond(send)
        await listener

    async def eager() -> None:
        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined, unused-ignore]

    assert_charged(calls(Noop(Yields(Noop(endpoint))), "asyncio", eager), row=4)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="no eager tasks")
@pytest.mark.parametrize("way", ["factory", "keyword", "both"])
def test_what_runs_beside_an_eager_task_is_its_layers(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first step of the app runs inside the construction of the task, up to a suspension further inside."""
    monkeypatch.setattr(steps, "EAGER_START", way != "factory")

    class Beside(Noop):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            loop: Any = asyncio.get_running_loop()
            eager = {"eager_start": True} if way != "factory" else {}
            task = loop.create_task(self.app(scope, receive, send), **eager)
            work()
            await task

    async def before() -> None:
        loop: Any = asyncio.get_running_loop()
        task: Any = asyncio.Task

        def made(loop: Any, coroutine: Any, **named: Any) -> Any:
            return task(coroutine, loop=loop, **{"eager_start": True, **named})

        if way != "keyword":
            loop.set_task_factory(made)
        if way != "factory":  # as from Python 3.14 on
            factory = loop.get_task_factory() or made
            loop.create_task = lambda coroutine, **named: factory(loop, coroutine, **named)

    assert_charged(calls(Noop(Beside(Yields(Noop(hello)))), "asyncio", before), row=2)


@pytest.mark.parametrize("loop", LOOPS)
def test_work_that_was_there_before_is_in_no_row(loop: str) -> None:
    async def main() -> Spent:
        async def worker() -> None:
            while True:
                work(WORK // 10)
                await anyio.lowlevel.checkpoint()

        async with anyio.create_task_group() as group:
            group.start_soon(worker)
            try:
                return await by_row(Noop(Yields(PassesOn(Noop(hello)))))
            finally:
                group.cancel_scope.cancel()

    if loop != "asyncio":
        pytest.importorskip(loop)
    used = loops.run(loop, main)  # type: ignore[arg-type]
    *rows, others = [ns / CALL_NS for ns in used.ns]
    assert used.ns[OTHERS] / CALL_NS == others >= 3 * WORK // 10
    assert max(rows) < REST


@pytest.mark.parametrize("loop", LOOPS)
def test_a_worker_that_carries_the_request_is_of_the_layer_that_waits_for_it(loop: str) -> None:
    class Lane(Noop):
        """Hands requests to a worker that was there before."""

        async def work(self) -> None:
            async for scope, receive, send, over in self.requests:
                work()
                await self.app(scope, receive, send)
                over.set()

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            over = anyio.Event()
            await self.give.send((scope, receive, send, over))
            await over.wait()

    async def main() -> Spent:
        lane: Any = Lane(Yields(hello))
        lane.give, lane.requests = anyio.create_memory_object_stream[Any](1)
        async with anyio.create_task_group() as group:
            group.start_soon(lane.work)
            try:
                return await by_row(Noop(lane))
            finally:
                group.cancel_scope.cancel()
                lane.give.close()
                lane.requests.close()

    if loop != "asyncio":
        pytest.importorskip(loop)
    used = loops.run(loop, main)  # type: ignore[arg-type]
    assert_charged([ns / CALL_NS for ns in used.ns], row=2)
    assert not used.ns[OTHERS]


def test_a_file_that_was_watched_before_is_in_no_row() -> None:
    async def main() -> Spent:
        ours, theirs = socket.socketpair()

        class Writes(Noop):
            async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
                theirs.send(b"1")
                await self.app(scope, receive, send)

        def reading() -> None:
            work()
            ours.recv(9)

        with ours, theirs:
            asyncio.get_running_loop().add_reader(ours, reading)
            try:
                return await by_row(Noop(Writes(PassesOn(Noop(hello)))))
            finally:
                asyncio.get_running_loop().remove_reader(ours)

    *rows, others = [ns / CALL_NS for ns in asyncio.run(main()).ns]
    assert others >= WORK
    assert max(rows) < REST


def test_what_a_loop_of_the_app_watches_for_itself_is_not_logged() -> None:
    class Own(asyncio.SelectorEventLoop):
        """A loop whose class is the app's, and whose methods are asyncio's."""

    async def main() -> Spent:
        return await by_row(Noop(Hops(Noop(hello))))

    with asyncio.Runner(loop_factory=Own) as runner:
        assert runner.run(main()).ns[OTHERS] == 0


class Hops(Noop):
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await anyio.to_thread.run_sync(no_op)
        await self.app(scope, receive, send)


@pytest.mark.parametrize("loop", LOOPS)
def test_the_answer_of_a_thread_is_of_the_row_that_waits_for_it(loop: str) -> None:
    assert calls(Noop(Hops(Noop(hello))), loop)[OTHERS] == 0


@pytest.mark.parametrize("loop", LOOPS)
@readings  # a pause of the machine in a task of another row is suspended time of that row
def test_a_wait_in_send_is_a_wait_where_a_task_sends(loop: str) -> None:
    class SlowSend(Noop):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            async def slow(message: Any) -> None:
                await anyio.sleep(0.005)
                await send(message)

            await self.app(scope, receive, slow)

    async def streams(scope: Any, receive: Any, send: Any) -> None:
        async def body() -> AsyncIterator[bytes]:
            yield b"1"
            yield b"2"

        await StreamingResponse(body())(scope, receive, send)

    async def main() -> Spent:
        call = await caller(Noop(SlowSend(Noop(streams))))
        probes = Probes(await discovered(call), suspending=True)
        with probes.installed(probes.probed):
            for _ in range(3):
                await call(probes.watch)
        return spent(probes.read(), probes.owners)

    if loop != "asyncio":
        pytest.importorskip(loop)
    used = loops.run(loop, main)  # type: ignore[arg-type]
    # Four messages, each after a wait of 5 ms, and no other row waits. A timer of uvloop starts from the time at which
    # the loop woke up, so a wait may be shorter.
    assert used.suspended[2] > 2.5 * 5e6
    assert max(used.suspended[:2] + used.suspended[3:]) < 2e6


@pytest.mark.parametrize("loop", LOOPS)
@readings  # a pause of the machine while the side task wakes up is no wait
def test_a_wait_beside_the_request_is_nobodys(loop: str) -> None:
    """A side task sleeps and the request waits longer: the whole wait is of the row that the request waits in."""

    class SleepsBeside(Noop):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            async with anyio.create_task_group() as group:
                group.start_soon(anyio.sleep, 0.002)
                await self.app(scope, receive, send)

    class Waits(Noop):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await anyio.sleep(0.006)
            await self.app(scope, receive, send)

    async def main() -> Spent:
        call = await caller(SleepsBeside(Waits(hello)))
        probes = Probes(await discovered(call), suspending=True)
        with probes.installed(probes.probed):
            await call(probes.watch)
        return spent(probes.read(), probes.owners)

    if loop != "asyncio":
        pytest.importorskip(loop)
    used = loops.run(loop, main)  # type: ignore[arg-type]
    assert used.suspended[1] < 1.5e6
    assert used.suspended[2] > 3e6  # timers of uvloop start from the time at which the loop woke up


@pytest.mark.parametrize("loop", ASYNCIO)
def test_the_loop_is_as_before_afterwards(loop: str) -> None:
    async def main() -> None:
        running = asyncio.get_running_loop()
        before, factory = dict(vars(running)), running.get_task_factory()
        probes = Probes(stack_of_two, suspending=True)
        with probes.installed(probes.probed):
            assert dict(vars(running)) != before
        assert dict(vars(running)) == before
        assert running.get_task_factory() is factory

    if loop != "asyncio":
        pytest.importorskip(loop)
    stack_of_two = stack_of(Yields(Noop(hello)))
    loops.run(loop, main)  # type: ignore[arg-type]


def test_a_handle_can_be_cancelled_and_keeps_its_context() -> None:
    import contextvars

    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="outside")
    seen: list[str] = []

    async def endpoint(scope: Any, receive: Any, send: Any) -> None:
        loop = asyncio.get_running_loop()
        context = contextvars.copy_context()
        context.run(variable.set, "inside")
        loop.call_soon(lambda: seen.append("never")).cancel()
        loop.call_soon(lambda text: seen.append(text + variable.get()), "given ", context=context)
        loop.call_later(delay=0, callback=lambda: seen.append(variable.get())).when()
        await asyncio.sleep(0.001)
        await respond(send)

    calls(Yields(endpoint), "asyncio")
    assert set(seen) == {"given inside", "outside"}
    assert len(seen) % 2 == 0


@pytest.mark.parametrize("loop", ASYNCIO)
def test_a_function_that_an_app_keeps_logs_nothing_after_the_measurement(loop: Any) -> None:
    if loop != "asyncio":
        pytest.importorskip(loop)

    async def nothing() -> None: ...

    async def main() -> None:
        running, log = asyncio.get_running_loop(), [0, 0]
        steps = Steps(log, lambda: 0, OTHERS)  # type: ignore[arg-type]
        with steps.logged():
            soon, later, at = running.call_soon, running.call_later, running.call_at
        length, ran = len(log), asyncio.Event()
        soon(no_op)
        at(running.time(), no_op)
        later(0, ran.set)
        await ran.wait()
        running.call_soon = soon  # type: ignore[method-assign]
        task = asyncio.create_task(nothing())
        del running.call_soon
        await task
        assert len(log) == length
        assert not steps.tasks

    loops.run(loop, main)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="there is no eager task factory")
def test_a_task_factory_that_an_app_keeps_notes_no_task_after_the_measurement() -> None:
    async def main() -> None:
        running, log = asyncio.get_running_loop(), [0, 0]
        steps = Steps(log, lambda: 0, OTHERS)  # type: ignore[arg-type]
        running.set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined, unused-ignore]
        with steps.logged():
            kept = running.get_task_factory()
        length = len(log)
        running.set_task_factory(kept)
        await asyncio.create_task(asyncio.sleep(0))
        assert len(log) == length
        assert not steps.tasks

    asyncio.run(main())
