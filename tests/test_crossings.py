"""The probes in C leave the log that those in Python leave, and nothing else."""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect
import itertools
import subprocess
import sys
import threading
import time
import types
import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from statistics import median
from time import perf_counter_ns, thread_time_ns
from typing import Any

import anyio
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route

from pytest_mwbudget import crossings, loops
from pytest_mwbudget.boundaries import HARNESS, SUSPENDED, BlankLayers, Probes, task_layers
from pytest_mwbudget.crossings import NativeProbes, best_probes
from pytest_mwbudget.model import LoopName
from pytest_mwbudget.timeline import Spent, spent

from . import apps
from .apps import (
    App,
    Endpoint,
    InATask,
    Noop,
    Slots,
    caller,
    discovered,
    echo,
    hello,
    outer,
    partial,
    respond,
    stack_of,
    unchanged_code,
)
from .test_discovery import HOLDERS, fastapi

native = crossings.native()
pytestmark = pytest.mark.skipif(native is None, reason="the probes in C were not built")

BOTH = pytest.mark.parametrize("kind", [Probes, NativeProbes])


# ---- the same log -----------------------------------------------------------------------------------------------


def owners_of(log: Sequence[int], *, stepped: bool = True) -> list[int]:
    """Whose time it was, one after another.

    Twice the same in succession reads as once, in `timeline` as well: where a task layer is bypassed, its child is
    stepped by Python's probes inside another stepper, and both mark each suspension.

    Unless `stepped`, suspensions are left out. In C every task that comes to a probe is stepped, also one that a layer
    begins for nothing but its receive; in Python only those that begin with a layer.
    """
    assert list(log[1::2]) == sorted(log[1::2])
    owners = [owner for owner in log[::2] if stepped or owner != SUSPENDED]
    return [owner for owner, _ in itertools.groupby(owners)]


@contextmanager
def mode(probes: Probes, name: str) -> Iterator[None]:
    """One of the states in which `bisect` makes requests."""
    if name == "plain":
        yield
    elif name == "without steppers":
        with probes.stepping_set(on=False):
            yield
    elif name == "bypassed":
        with probes.bypassed(task_layers(probes.stack)):
            yield
    else:
        count, _, wrapping = name.partition(" ")
        with probes.doubled(int(count), BlankLayers(1, wrapping=bool(wrapping))):
            yield


def read(probes: Probes) -> tuple[list[int], Spent]:
    log = probes.read()
    return log, spent(log, probes.null_owner + 1)


def same(
    app: App,
    method: str = "GET",
    url: str = "/",
    *,
    loop: LoopName = "asyncio",
    stepped: bool = True,
    bypass: bool = True,
    **options: Any,
) -> list[int]:
    """The owners in the log of a plain request, which are the same by both kinds of probes, in every mode."""

    async def main() -> list[int]:
        call = await caller(app, method, url, **options)
        stack = await discovered(call)
        pair = Probes(stack, suspending=True), NativeProbes(stack, suspending=True)
        doubled = [f"{index}{wrapping}" for index in stack.probeable for wrapping in ("", " wrapping")]
        modes = [*doubled, "without steppers", *(["bypassed"] if bypass else []), "plain"]
        logs: dict[tuple[str, type], tuple[list[int], Spent]] = {}
        for probes in pair:
            with probes.installed(probes.probed):
                for name in modes:
                    with mode(probes, name):
                        await call(probes.watch)
                    logs[name, type(probes)] = read(probes)
        for name in modes:
            (log, read_off), (native_log, native_read_off) = logs[name, Probes], logs[name, NativeProbes]
            assert owners_of(native_log, stepped=stepped) == owners_of(log, stepped=stepped), name
            assert native_read_off.messages == read_off.messages, name
            if stepped:
                assert native_read_off.resumed == read_off.resumed, name
        return owners_of(logs["plain", NativeProbes][0])

    with unchanged_code():
        return loops.run(loop, main)


@pytest.mark.parametrize("layer", [layer for layer, _ in HOLDERS], ids=lambda layer: layer.__name__)
def test_every_holder(layer: Callable[[App], App]) -> None:
    owners = same(Noop(layer(Noop(layer(Noop(Endpoint()))))))
    assert owners[:3] == [HARNESS, 1, 2]
    assert owners[-1] == HARNESS


@pytest.mark.parametrize("url", ["/", "/r/x"])
def test_fastapi(url: str) -> None:
    same(fastapi(), url=url)


def test_several_instances_of_one_class_and_of_one_partial() -> None:
    assert same(Noop(Noop(Noop(hello))))[:5] == [0, 1, 2, 3, 4]
    same(partial(partial(outer(outer(hello)))))


def test_parameters_of_every_kind() -> None:
    class ByName(Noop):
        async def __call__(self, *args: Any, **kwargs: Any) -> None:
            scope, receive, send = args
            await self.app(scope=scope, receive=receive, send=send, **kwargs)

    class WithOption(Noop):
        async def __call__(self, scope: Any, receive: Any, send: Any, *, depth: int = 1) -> None:
            await self.app(scope, receive, send, depth=depth + 1)

    class TakesOptions(Noop):
        async def __call__(self, scope: Any, receive: Any, send: Any, **options: Any) -> None:
            assert options == {"depth": 2}
            await self.app(scope, receive, send)

    class Optional(Noop):
        async def __call__(self, scope: Any, receive: Any = None, send: Any = None, *more: Any, depth: int = 2) -> None:
            assert (more, depth) == ((), 2)
            await self.app(scope, receive, send)

    same(ByName(Noop(ByName(Noop(Optional(hello))))))
    same(WithOption(TakesOptions(Optional(hello))))


def test_receive_and_send_by_name() -> None:
    class Named(Noop):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            async def sending(message: Any) -> None:
                await send(message=message)

            await self.app(scope, lambda: receive(), sending)

    async def endpoint(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send(message={"type": "http.response.start", "status": 200})
        await send(message={"type": "http.response.body", "body": b"ok"})

    same(Named(Noop(Named(endpoint))))


@types.coroutine
def by_generator(app: App, scope: Any, receive: Any, send: Any) -> Generator[Any, Any, None]:
    yield from app(scope, receive, send)


class Custom:
    """An awaitable that has neither send nor throw."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __await__(self) -> Any:
        class Steps:
            def __init__(self, inner: Any) -> None:
                self.inner = inner

            def __iter__(self) -> Any:
                return self

            def __next__(self) -> Any:
                return self.inner.send(None)

        return Steps(self.inner)


class Returns(Noop):
    """Not a coroutine function; what it returns is not a coroutine."""

    def __init__(self, app: App, made_of: Callable[[Any], Any]) -> None:
        super().__init__(app)
        self.made_of = made_of

    def __call__(self, scope: Any, receive: Any, send: Any) -> Any:
        return self.made_of(self.app(scope, receive, send))


async def suspends(scope: Any, receive: Any, send: Any) -> None:
    await asyncio.sleep(0)
    await respond(send)
    await asyncio.sleep(0)


def test_awaitables_that_are_no_coroutines() -> None:
    generated = functools.partial(by_generator, Noop(suspends))
    same(Returns(Noop(generated), Custom))
    same(Returns(Noop(suspends), asyncio.ensure_future))


def test_a_sync_receive_and_send_that_return_awaitables() -> None:
    class Sync(Noop):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await self.app(scope, lambda: Custom(receive()), lambda message: asyncio.ensure_future(send(message)))

    # The task of a send begins with no layer: Python's probes do not step it.
    same(Noop(Sync(Noop(echo))), "POST", content=b"body", stepped=False)


def test_a_body_in_pieces_and_a_streaming_response() -> None:
    async def stream(request: Any) -> StreamingResponse:
        size = len(await request.body())

        async def pieces() -> Any:
            for _ in range(size):
                yield b"x"
                await asyncio.sleep(0)

        return StreamingResponse(pieces())

    app = Starlette(
        routes=[Route("/", stream, methods=["POST"])], middleware=[Middleware(Noop), Middleware(GZipMiddleware)]
    )
    same(app, "POST", content=[b"one", b"two", b"three"], stepped=False)
    same(Noop(InATask(echo)), "POST", content=[b"a", b"b", b"c"])


def passing_on(number: int) -> Any:
    async def dispatch(request: Any, call_next: Any) -> Any:
        response = await call_next(request)
        response.headers.append("x-number", str(number))
        return response

    return dispatch


@pytest.mark.parametrize("name", ["asyncio", "uvloop"])
def test_nested_task_layers(name: LoopName) -> None:
    pytest.importorskip(name)

    async def page(request: Any) -> PlainTextResponse:
        return PlainTextResponse(await request.body())

    base = [Middleware(BaseHTTPMiddleware, dispatch=passing_on(number)) for number in range(3)]
    app = Starlette(routes=[Route("/", page, methods=["POST"])], middleware=[base[0], Middleware(Noop), *base[1:]])
    # Base HTTP layers wait for the disconnect and for messages in tasks of their own.
    same(app, "POST", loop=name, content=b"body", stepped=False)
    assert same(InATask(InATask(Noop(InATask(suspends)))), loop=name).count(SUSPENDED) > 2


class InAGroup(Noop):
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(self.app, scope, receive, send)


@pytest.mark.parametrize("name", ["asyncio", "uvloop", "trio"])
def test_task_groups(name: LoopName) -> None:
    pytest.importorskip(name)

    async def sleeps(scope: Any, receive: Any, send: Any) -> None:
        await anyio.sleep(0)
        await respond(send)

    same(Noop(InAGroup(Noop(InAGroup(sleeps)))), loop=name)


def test_nurseries_of_trio() -> None:
    trio = pytest.importorskip("trio")

    class InANursery(Noop):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.app, scope, receive, send)

    async def sleeps(scope: Any, receive: Any, send: Any) -> None:
        with trio.move_on_after(0.001):
            await trio.sleep_forever()
        await respond(send)

    same(Noop(InANursery(InANursery(Noop(sleeps)))), loop="trio")


def test_a_listener_for_the_disconnect() -> None:
    async def listens(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        listener = asyncio.create_task(receive())
        await asyncio.sleep(0)
        await respond(send)
        assert (await listener)["type"] == "http.disconnect"

    same(Noop(Noop(listens)))


def test_exceptions() -> None:
    class Translates(Noop):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            with suppress(LookupError):
                await self.app(scope, receive, send)
            await respond(send)

    class RaisesAtOnce(Noop):
        def __call__(self, scope: Any, receive: Any, send: Any) -> Any:
            raise LookupError

    async def raises(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(0)
        raise LookupError("lost")

    same(Translates(InATask(Noop(outer(raises)))))
    same(Translates(Noop(RaisesAtOnce(hello))))


def test_cancellation_and_timeouts() -> None:
    async def hangs(scope: Any, receive: Any, send: Any) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)

    class GivesUp(Noop):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            task = asyncio.create_task(self.app(scope, receive, send))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            await respond(send)

    class TimesOut(Noop):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            with suppress(TimeoutError):
                async with asyncio.timeout(0.001):
                    await self.app(scope, receive, send)
            await respond(send)

    same(Noop(GivesUp(Noop(hangs))), bypass=False)
    same(Noop(TimesOut(Noop(hangs))))
    same(Noop(TimesOut(Returns(Endpoint(), lambda made: (made.close(), Custom(Forever()))[1]))))


class Forever:
    """Waits for what never comes, and cannot take exceptions."""

    def send(self, value: Any) -> Any:
        future = asyncio.get_running_loop().create_future()
        future._asyncio_future_blocking = True
        return future


def test_an_app_that_calls_itself() -> None:
    import httpx

    async def front(request: Any) -> PlainTextResponse:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://me") as client:
            return PlainTextResponse((await client.get("/back")).text)

    async def back(request: Any) -> PlainTextResponse:
        return PlainTextResponse("ok")

    app = Starlette(routes=[Route("/", front), Route("/back", back)], middleware=[Middleware(Noop), Middleware(Slots)])
    same(app)


def test_a_decorator_that_awaits_coroutines_only() -> None:
    """What a layer returns, and its receive and send, must pass for a coroutine and for coroutine functions."""

    def either(function: Any) -> Any:
        async def wrapper(*arguments: Any) -> None:
            result = function(*arguments)
            assert inspect.getcoroutinestate(result) != inspect.CORO_SUSPENDED
            if inspect.iscoroutine(result):
                await result

        return wrapper

    class AsksFirst(Noop):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            assert inspect.iscoroutinefunction(receive)
            assert inspect.iscoroutinefunction(send)
            assert functools.wraps(send)(lambda: None).__name__ in ("send", "probed_send", "wrapped")
            await either(self.app)(scope, receive, send)

    same(AsksFirst(Noop(AsksFirst(hello))))


# ---- a log of its own -------------------------------------------------------------------------------------------


def native_logs(app: App, count: int, between: Callable[[], Any] = lambda: None) -> list[list[int]]:
    """The owners in the logs of so many requests, one after another."""

    async def main() -> list[list[int]]:
        call = await caller(app)
        probes = NativeProbes(await discovered(call), suspending=True)
        logs = []
        with probes.installed(probes.probed):
            for _ in range(count):
                await call(probes.watch)
                logs.append(owners_of(probes.read(), stepped=False))
                between()
        return logs

    with unchanged_code():
        return asyncio.run(main())


def test_a_background_task_does_not_write_into_the_log_of_a_later_request() -> None:
    running: list[asyncio.Task[None]] = []
    late: list[str] = []

    async def endpoint(scope: Any, receive: Any, send: Any) -> None:
        async def lingers() -> None:
            for _ in range(20):
                await asyncio.sleep(0)
                with suppress(RuntimeError):  # the response is complete
                    await send({"type": "http.response.body"})
                late.append((await receive())["type"])

        await receive()
        await respond(send)
        for _ in range(3):
            await asyncio.sleep(0)  # in later requests while what the first left goes on
        if not running:
            running.append(asyncio.create_task(lingers()))

    first, second, third = native_logs(Noop(Noop(endpoint)), 3)
    assert second == third == first
    assert len(late) > 5


def test_other_threads_do_not_write_into_the_log() -> None:
    inner = Noop(Noop(hello))
    answers: list[Any] = []

    def elsewhere() -> None:
        async def keep(message: Any) -> None:
            answers.append(message)

        asyncio.run(inner({"type": "http"}, None, keep))

    async def endpoint(scope: Any, receive: Any, send: Any) -> None:
        if threads:
            thread = threading.Thread(target=elsewhere)
            thread.start()
            thread.join()
        await inner(scope, receive, send)

    threads = False
    [alone] = native_logs(Noop(endpoint), 1)
    threads = True
    assert native_logs(Noop(endpoint), 1) == [alone]
    assert len(answers) >= 2


def test_a_log_that_is_begun_anew_in_the_middle() -> None:
    anew = False

    async def endpoint(scope: Any, receive: Any, send: Any) -> None:
        if anew:
            native.start()
            await Noop(hello)(scope, receive, send)
        else:
            await respond(send)

    def next_time() -> None:
        nonlocal anew
        anew = not anew

    first, second, third = native_logs(Noop(outer(endpoint)), 3, next_time)
    # The passages of the first log pass on, and what comes after it is as ever.
    assert second == [HARNESS]
    assert third == first


def test_a_probe_without_a_log() -> None:
    """As in the first calls after the probes were placed, when nobody has begun one."""
    code = """
import asyncio
from pytest_mwbudget import _crossings
assert _crossings.read() == []
async def layer(scope, receive, send): return await send(await receive())
async def receive(): return {}
async def send(message): return message, message
probe = _crossings.probe(None)
probe.set((), 1, layer)
assert asyncio.run(_crossings.watch(probe, {}, receive, send)) == ({}, {})
assert _crossings.read() == []
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_response_of_very_many_messages() -> None:
    count = 100_000

    probed = False

    async def endpoint(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200})
        for _ in range(count if probed else 0):
            await send({"type": "http.response.body", "body": b"", "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def main() -> None:
        nonlocal probed
        call = await caller(Noop(endpoint))
        probes = NativeProbes(await discovered(call))
        probed = True
        with probes.installed(probes.probed[1:]):
            await call(probes.watch)
        log = probes.read()
        assert len(log) == 2 * (1 + 2 + 2 * (count + 2))
        owners_of(log)
        assert spent(log, 4).messages == count + 2

    asyncio.run(main())


# ---- passages ---------------------------------------------------------------------------------------------------


@types.coroutine
def suspend(value: object = None) -> Generator[object, object, object]:
    return (yield value)


def passage(function: Any, *arguments: Any) -> Any:
    """The passage of a layer, in a new log."""
    native.start()
    probe = native.probe(None)
    probe.set((), 1, function)
    return probe(*(arguments or (None, None, None)))


def marks() -> list[int]:
    return list(native.read()[::2])


def test_a_passage_passes_values_both_ways() -> None:
    async def work(*_: Any) -> Any:
        return [await suspend("a"), await suspend("b")]

    steps = passage(work)
    assert not steps.cr_running
    assert steps.send(None) == "a"
    assert steps.cr_suspended
    assert inspect.getcoroutinestate(steps) == inspect.CORO_SUSPENDED
    assert steps.send(1) == "b"
    with pytest.raises(StopIteration) as stop:
        steps.send(2)
    assert stop.value.value == [1, 2]
    assert inspect.getcoroutinestate(steps) == inspect.CORO_CLOSED
    assert marks() == [HARNESS, 1, SUSPENDED, 1, SUSPENDED, 1, HARNESS]


@pytest.mark.parametrize("value", [None, (), (1, 2), ValueError("value"), StopIteration(3), StopIteration])
def test_every_value_can_be_returned(value: object) -> None:
    async def work(*_: Any) -> Any:
        return value

    async def main() -> Any:
        return await passage(work)

    assert asyncio.run(main()) is value
    with pytest.raises(StopIteration) as stop:
        passage(work).send(None)
    assert stop.value.value is value


def test_a_passage_throws_what_is_thrown() -> None:
    caught: list[Any] = []

    async def work(*_: Any) -> str:
        try:
            await suspend()
        except LookupError as error:
            caught.append(error)
        caught.append(sys.exception())
        await suspend()
        return "not reached"

    error = LookupError()
    steps = passage(work)
    steps.send(None)
    steps.throw(error)
    assert caught == [error, None]
    with pytest.raises(KeyError) as raised:
        steps.throw(KeyError("b"))
    assert raised.value.__context__ is None
    assert marks() == [HARNESS, 1, SUSPENDED, 1, SUSPENDED, 1, HARNESS]


def test_a_passage_closes_what_it_steps() -> None:
    closed: list[str] = []

    async def work(*_: Any) -> None:
        try:
            await suspend()
        finally:
            closed.append("closed")

    steps = passage(work)
    steps.send(None)
    steps.close()
    assert closed == ["closed"]
    steps.close()

    async def stubborn(*_: Any) -> None:
        try:
            await suspend()
        except GeneratorExit:
            await suspend()

    steps = passage(stubborn)
    steps.send(None)
    with pytest.raises(RuntimeError, match="ignored GeneratorExit"):
        steps.close()


def test_whoever_closes_a_passage_goes_on() -> None:
    """It may be anybody who drops the last reference to what awaits it."""

    async def layer(*_: Any) -> None:
        await suspend()

    async def holder(dropped: Any) -> None:
        await dropped

    async def drops(*_: Any) -> None:
        held.clear()
        await suspend()

    native.start()
    probe = native.probe(None)
    one, two = object(), object()
    probe.set((one,), 1, layer)
    probe.set((two,), 2, drops)
    held = [holder(probe(one, None, None, None))]
    held[0].send(None)
    steps = probe(two, None, None, None)
    steps.send(None)
    assert marks() == [HARNESS, 1, SUSPENDED, 2, 2, SUSPENDED]
    steps.close()
    assert marks()[-2:] == [2, SUSPENDED]


def test_a_passage_that_never_began() -> None:
    async def work(*_: Any) -> None:
        raise AssertionError("not reached")

    def plain(*_: Any) -> Any:
        raise AssertionError("not reached")

    for function in (work, plain):
        steps = passage(function)
        with pytest.raises(KeyError):
            steps.throw(KeyError("early"))
        closed = passage(function)
        closed.close()
        for ended in (steps, closed):
            with pytest.raises(RuntimeError, match="cannot reuse"):
                ended.send(None)
            with pytest.raises(RuntimeError, match="cannot reuse"):
                ended.throw(KeyError)
        passage(function)  # never awaited
        assert marks() == [HARNESS]


def test_a_passage_cannot_be_stepped_while_it_runs() -> None:
    async def work(*_: Any) -> None:
        for step in (lambda: steps.send(None), lambda: steps.throw(KeyError), steps.close):
            with pytest.raises(ValueError, match="already executing"):
                step()
        assert steps.cr_running

    def plain(*arguments: Any) -> Any:
        with pytest.raises(ValueError, match="already executing"):
            steps.send(None)
        return work(*arguments)

    for function in (work, plain):
        steps = passage(function)
        with pytest.raises(StopIteration):
            steps.send(None)
        with pytest.raises(RuntimeError, match="cannot reuse"):
            steps.send(None)
        assert marks() == [HARNESS, 1, HARNESS]


@pytest.mark.parametrize("returned", [None, 3, iter([None]), (None for _ in "a")], ids=lambda it: type(it).__name__)
def test_what_cannot_be_awaited(returned: object) -> None:
    with pytest.raises(TypeError, match="can't be used in 'await' expression"):
        passage(lambda *_: returned).send(None)
    assert marks() == [HARNESS, 1, HARNESS]


def test_an_await_method_that_is_wrong() -> None:
    class Wrong:
        def __init__(self, steps: Any) -> None:
            self.steps = steps

        def __await__(self) -> Any:
            return self.steps

    coroutine = hello(None, None, None)
    for steps, message in ((coroutine, "returned a coroutine"), (3, "non-iterator")):
        with pytest.raises(TypeError, match=message):
            passage(lambda *_, steps=steps: Wrong(steps)).send(None)
    coroutine.close()


def test_what_takes_no_exceptions_ends_where_it_stands() -> None:
    class Simple:
        def __await__(self) -> Any:
            return iter([None, None])

    for thrown in ((KeyError("a"),), (KeyError, "a"), (KeyError, KeyError("a"), None)):
        steps = passage(lambda *_: Simple())
        steps.send(None)
        with pytest.raises(KeyError, match="a"):
            steps.throw(*thrown)
    steps = passage(lambda *_: Simple())
    steps.send(None)
    with pytest.raises(TypeError, match="must be classes or instances"):
        steps.throw(3)
    steps = passage(lambda *_: Simple())
    steps.send(None)
    steps.close()
    assert marks() == [HARNESS, 1, SUSPENDED, 1, SUSPENDED]


def test_messages_of_every_kind() -> None:
    """After the last piece of the body nobody works in receive; what cannot tell is the last."""

    def crossed(message: Any) -> list[int]:
        async def receive() -> Any:
            return message

        async def layer(scope: Any, receive: Any, send: Any) -> None:
            await receive()
            await receive()

        with pytest.raises(StopIteration):
            passage(layer, {}, receive, None).send(None)
        return marks()

    class Odd:
        def __bool__(self) -> bool:
            raise ValueError

    once, twice = [0, 1, 0, 1, 0], [0, 1, 0, 1, 0, 1, 0]
    assert crossed({}) == crossed({"more_body": False}) == crossed(None) == crossed("text") == once
    assert crossed({"more_body": True}) == crossed(types.MappingProxyType({"more_body": 1})) == twice
    assert crossed({"more_body": Odd()}) == twice


def test_targets_change_while_they_are_called() -> None:
    probe = native.probe(None)

    class Changes:
        def __call__(self, *_: Any) -> Any:
            for number in range(100):
                probe.set((number,), number, hello)
            probe.set((), 7, hello)
            gc.collect()
            return suspend()

    native.start()
    probe.set((), 5, Changes())
    steps = probe(None, None, None)
    steps.send(None)
    assert marks() == [HARNESS, 5, SUSPENDED]
    steps.close()


def test_calls_that_are_no_layers_pass() -> None:
    calls: list[Any] = []

    def passing(*arguments: Any, **named: Any) -> int:
        calls.append((arguments, named))
        return 4

    probe = native.probe(passing)
    probe.set((1,), 1, hello)
    assert probe(1, 2, scope=3) == probe() == probe(2, 3, 4, 5) == probe(3, 4, 5, a=6) == 4
    assert calls == [((1, 2), {"scope": 3}), ((), {}), ((2, 3, 4, 5), {}), ((3, 4, 5), {"a": 6})]
    with pytest.raises(TypeError):
        probe.set([1], 1, hello)
    with pytest.raises(TypeError):
        native.watch()


def test_what_was_set_is_forgotten_and_can_be_set_again() -> None:
    class Target:
        def __call__(self, *arguments: Any) -> None:
            pass

    probe, target = native.probe(lambda *arguments: "passed"), Target()
    for _ in range(3):
        probe.set(("lead",), 1, target)
        probe.set(("another",), 2, target)
        probe("lead", {}, None, None).close()
        probe.clear()
        assert probe("lead", {}, None, None) == probe("another", {}, None, None) == "passed"
    reference = weakref.ref(target)
    del target
    gc.collect()
    assert reference() is None


# ---- whose time it is -------------------------------------------------------------------------------------------


def spin(us: int) -> None:
    end = perf_counter_ns() + us * 1000
    while perf_counter_ns() < end:
        pass


class Spins(Noop):
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        spin(200)
        await self.app(scope, receive, send)


def typical_us(app: App, kind: type[Probes], clock: Any = None, field: str = "ns", **options: Any) -> list[float]:
    """Microseconds by owner, the least of some requests, or what `of` makes of them."""

    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        loop.set_task_factory(options.get("task_factory"))
        call = await caller(app)
        probes = kind(await discovered(call), suspending=True)
        found = []
        with probes.installed(probes.probed, clock):
            for _ in range(25):
                await call(probes.watch)
                found.append(getattr(read(probes)[1], field))
        of = options.get("of", min)
        return [of(own) / 1000 for own in zip(*found, strict=True)]

    return asyncio.run(main())


@BOTH
@pytest.mark.parametrize("receiver_first", [False, True])
def test_what_tasks_of_the_endpoints_own_do_is_the_endpoints(kind: type[Probes], receiver_first: bool) -> None:
    """Quart receives in one task and handles in another: what these do before they come to a probe is no layer's."""

    async def receiving(receive: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    async def handling(send: Any) -> None:
        spin(300)
        await respond(send)

    async def endpoint(scope: Any, receive: Any, send: Any) -> None:
        made = [lambda: handling(send), lambda: receiving(receive)]
        tasks = [asyncio.ensure_future(make()) for make in (reversed(made) if receiver_first else made)]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()

    harness, outer, inner, own, *_ = typical_us(Noop(Noop(endpoint)), kind)
    assert own > 300
    assert max(harness, outer, inner) < 150


@BOTH
def test_a_layer_that_spins_among_others(kind: type[Probes]) -> None:
    _, first, second, spins, third, endpoint, _ = typical_us(Noop(Noop(Spins(Noop(hello)))), kind)
    assert 195 < spins < 600
    assert max(first, second, third, endpoint) < 100


@BOTH
def test_a_layer_that_sleeps_is_charged_its_suspension(kind: type[Probes]) -> None:
    class Sleeps(Noop):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await asyncio.sleep(0.003)
            await self.app(scope, receive, send)

    app = Noop(Sleeps(Noop(hello)))
    assert typical_us(app, kind)[2] > 2900
    # Not the least: who loses the processor before he suspends sleeps the shorter for it.
    assert typical_us(app, kind, field="suspended", of=median)[2] > 2000
    assert typical_us(app, kind, thread_time_ns)[2] < 1000


@BOTH
def test_tasks_that_take_turns_do_not_charge_one_another(kind: type[Probes]) -> None:
    async def endpoint(scope: Any, receive: Any, send: Any) -> None:
        for _ in range(3):
            spin(100)
            await asyncio.sleep(0)
        await respond(send)

    class Concurrent(Noop):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            task = asyncio.create_task(self.app(scope, receive, send))
            for _ in range(3):
                spin(50)
                await asyncio.sleep(0)
            await task

    _, concurrent, inside, _ = typical_us(Concurrent(endpoint), kind)
    assert 145 < concurrent < 290
    assert 295 < inside < 900


@pytest.mark.skipif(sys.version_info < (3, 12), reason="there are no eager tasks")
def test_eager_tasks() -> None:
    """They begin inside a step of the task that makes them, which goes on when they are suspended.

    Python's probes take what it does then for a suspension. Those in C tell such a task by its context.
    """

    async def endpoint(scope: Any, receive: Any, send: Any) -> None:
        spin(100)
        await asyncio.sleep(0)
        spin(200)
        await respond(send)

    class Begins(Noop):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            task = asyncio.create_task(self.app(scope, receive, send))
            spin(500)
            await task
            spin(50)

    factory = asyncio.eager_task_factory  # type: ignore[attr-defined]
    app = Noop(Begins(Noop(endpoint)))
    _, noop, begins, inner, inside, _ = typical_us(app, NativeProbes, task_factory=factory)
    assert 545 < begins < 1500
    assert 295 < inside < 540
    assert noop + inner < 200
    # One that is never suspended is no different from a call.
    _, begins, inside, _ = typical_us(Begins(hello), NativeProbes, task_factory=factory)
    assert 545 < begins < 1500
    assert inside < 200


def test_a_probe_costs_much_less_than_one_in_python() -> None:
    costs = []
    for kind in (Probes, NativeProbes):

        async def main(kind: type[Probes] = kind) -> float:
            call = await caller(Noop(Noop(hello)))
            probes = kind(await discovered(call))
            found = []
            with probes.installed(probes.probed), probes.doubled(1, BlankLayers(1)):
                for _ in range(500):
                    await call(probes.watch)
                    found.append(read(probes)[1].ns[-1])
            return sorted(found)[len(found) // 4]

        costs.append(asyncio.run(main()))
    assert costs[1] < costs[0] * 0.6


# ---- memory -----------------------------------------------------------------------------------------------------


def test_nothing_of_the_probes_stays_alive() -> None:
    async def main() -> list[weakref.ref[Any]]:
        app = Noop(InATask(Noop(hello)))
        call = await caller(app)
        probes = NativeProbes(await discovered(call))
        with probes.installed(probes.probed):
            for index in probes.probed:
                with probes.doubled(index, BlankLayers(2)):
                    await call(probes.watch)
            with probes.bypassed(task_layers(probes.stack)):
                await call(probes.watch)
        return [weakref.ref(probes), weakref.ref(app)]

    references = asyncio.run(main())
    gc.collect()
    assert [reference() for reference in references] == [None, None]


def test_a_passage_that_ended_holds_nothing() -> None:
    class Value:
        pass

    async def work(scope: Any, receive: Any, send: Any) -> None:
        pass

    scope = Value()
    reference = weakref.ref(scope)
    steps = passage(work, scope, None, None)
    del scope
    assert reference() is not None
    with pytest.raises(StopIteration):
        steps.send(None)
    assert reference() is None


def test_a_cycle_through_a_passage_is_collected() -> None:
    class Holder:
        pass

    async def work(holder: Any, receive: Any, send: Any) -> None:
        holder.send = send
        await suspend()

    holder = Holder()
    holder.passage = passage(work, holder, holder, holder)  # type: ignore[attr-defined]
    holder.passage.send(None)  # type: ignore[attr-defined]
    probe = native.probe(holder)
    probe.set((holder,), 1, holder)
    holder.probe = probe  # type: ignore[attr-defined]
    reference = weakref.ref(holder)
    del holder, probe
    gc.collect()
    assert reference() is None


def test_requests_leave_no_memory_behind() -> None:
    class Fails(Noop):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            with suppress(LookupError):
                await self.app(scope, receive, send)
            never_begun.append(self.app(scope, receive, send))
            await respond(send)

    async def raises(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await asyncio.sleep(0)
        raise LookupError

    never_begun: list[Any] = []

    async def main() -> int:
        call = await caller(Noop(InATask(Fails(Slots(raises)))))
        probes = NativeProbes(await discovered(call))
        while never_begun:
            never_begun.pop().close()  # without a probe it is a coroutine, which would warn

        async def blocks(count: int) -> int:
            for _ in range(count):
                await call(probes.watch)
                never_begun.clear()
            gc.collect()
            return sys.getallocatedblocks()

        with probes.installed(probes.probed):
            before = await blocks(200)
            return await blocks(1500) - before

    assert asyncio.run(main()) < 750


# ---- which probes -----------------------------------------------------------------------------------------------


def test_the_probes_in_c_are_taken_where_their_clocks_are_meant() -> None:
    stack = stack_of(Noop(hello))
    assert type(best_probes(stack, perf_counter_ns, thread_time_ns, suspending=False)) is NativeProbes
    assert type(best_probes(stack, perf_counter_ns, None, suspending=True)) is NativeProbes
    assert type(best_probes(stack, lambda: 0, thread_time_ns, suspending=False)) is Probes
    assert type(best_probes(stack, perf_counter_ns, lambda: 0, suspending=False)) is Probes


def test_without_the_module_python_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pytest_mwbudget._crossings", None)
    monkeypatch.delattr("pytest_mwbudget._crossings")
    assert crossings.native() is None
    assert type(best_probes(stack_of(Noop(hello)), perf_counter_ns, None, suspending=False)) is Probes


@pytest.mark.parametrize("available", [True, False])
def test_a_whole_measurement_runs_with_both(monkeypatch: pytest.MonkeyPatch, available: bool) -> None:
    used: list[type] = []

    for kind in (Probes, NativeProbes):

        async def noted(self: Any, *arguments: Any, watch: Any = kind.watch) -> None:
            used.append(type(self))
            await watch(self, *arguments)

        monkeypatch.setattr(kind, "watch", noted)
    if not available:
        monkeypatch.setattr(crossings, "native", lambda: None)
    monkeypatch.setattr("pytest_mwbudget.measure.WARM_NS", 30_000_000)
    measurement = apps.measured(Noop(InATask(Spins(hello))), settings={"max_time_s": 1.0})
    assert set(used) == {NativeProbes if available else Probes}
    us = measurement.layer("Spins").us
    assert us is not None
    assert 190 < us.estimate < 1000


def test_a_clock_that_the_probes_in_c_do_not_have_is_refused() -> None:
    probes = NativeProbes(stack_of(Noop(hello)))
    with unchanged_code(), pytest.raises(AssertionError), probes.installed(probes.probed, time.monotonic_ns):
        pytest.fail("not reached")


def test_the_module_is_of_the_main_interpreter_alone() -> None:
    code = """
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
import pytest_mwbudget._crossings, sys
script = 'try:\\n import pytest_mwbudget._crossings\\nexcept ImportError: pass\\nelse: raise SystemError("imported")'
found = interpreters.run_string(interpreters.create(), "import sys; sys.path[:] = " + repr(sys.path) + "\\n" + script)
assert found is None, found
before = pytest_mwbudget._crossings
del sys.modules["pytest_mwbudget._crossings"]
from pytest_mwbudget import _crossings
import importlib
again = importlib.import_module("pytest_mwbudget._crossings")
assert type(again.probe(None)) is type(before.probe(None))
"""
    subprocess.run([sys.executable, "-c", code], check=True)
