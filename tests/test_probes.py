"""An app behaves the same with and without probes, and is unchanged after the probes are removed."""

from __future__ import annotations

import asyncio
import functools
import gc
import gzip
import inspect
import itertools
import statistics
import subprocess
import sys
import types
import weakref
from collections.abc import Awaitable, Callable, Generator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from time import perf_counter_ns, thread_time_ns
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.authentication import AuthCredentials, AuthenticationBackend, SimpleUser, requires
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.middleware.sessions import SessionMiddleware
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

from pytest_mwbudget.analysis.event_log import spent
from pytest_mwbudget.analysis.samples import BlankLayers
from pytest_mwbudget.asgi import server
from pytest_mwbudget.model.stack import HARNESS, SUSPENDED
from pytest_mwbudget.timing.probe_code import framework_probe_for
from pytest_mwbudget.timing.probes import Probes

from . import apps
from .apps import (
    App,
    Endpoint,
    InATask,
    Noop,
    ReadsContext,
    Resource,
    SetsContext,
    Slots,
    caller,
    discovered,
    hello,
    outer,
    partial,
    request_id,
    respond,
    stack_of,
    unchanged_code,
)
from .readings import readings
from .test_discovery import HOLDERS, fastapi


class Ticks:
    """A clock that advances by one at each reading."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        self.now += 1
        return self.now


def everything_on(probes: Probes, doubled: int = -1, blanks: BlankLayers = BlankLayers(1)) -> ExitStack:  # noqa: B008
    """Install every probe, and null layers at the probe with index `doubled`, by default the innermost."""
    index = probes.probed[doubled]
    stack = ExitStack()
    stack.enter_context(probes.installed(probes.probed))
    stack.enter_context(probes.doubled(index, blanks if index in probes.wrappable else BlankLayers(blanks.count)))
    return stack


def observed(app: App, url: str = "/", **options: Any) -> tuple[server.Exchange, server.Exchange, list[int]]:
    """Return a call without probes, the last call with every probe and null layers, and the owners in its log."""

    async def main() -> tuple[server.Exchange, server.Exchange, list[int]]:
        call = await caller(app, options.pop("method", "GET"), url, **options)
        plain = await call()
        stack = await discovered(call)
        probes = Probes(stack)
        assert len(probes.probed) == (len(stack.entries) if stack.endpoint is None else stack.endpoint + 1)
        kinds = BlankLayers(2, wrapping=True), BlankLayers(1)
        for place, blanks in itertools.product(range(len(probes.probed)), kinds):
            with everything_on(probes, place, blanks):
                probed = await call(probes.watch)
                probed = await call(probes.watch)
            owners = probes.read()[::2]
            assert (plain.status, probes.null_owner in owners) == (probed.status, True)
        return plain, probed, owners

    with unchanged_code():
        return asyncio.run(main())


def same(app: App, url: str = "/", **options: Any) -> server.Exchange:
    """Check that the response is the same with and without probes, and return the call with probes."""
    return alike(*observed(app, url, **options))


def alike(plain: server.Exchange, probed: server.Exchange, owners: list[int]) -> server.Exchange:
    """Check that a call without probes and one with probes, whose log has `owners`, have the same response."""
    assert (plain.status, plain.headers, plain.body) == (probed.status, probed.headers, probed.body)
    assert owners[0] == owners[-1] == HARNESS
    return probed


# ---- audit hooks ------------------------------------------------------------------------------------------------

# An audit hook cannot be removed, so a process of its own has one, which imports little.
WITH_AN_AUDIT_HOOK = """
import asyncio, sys
from tests.apps import Defaults, Endpoint, Noop, caller, discovered, partial
from pytest_mwbudget.analysis.samples import BlankLayers
from pytest_mwbudget.timing.probe_code import framework_probe_for
from pytest_mwbudget.timing.probes import Probes

raised, watching = [], False
sys.addaudithook(lambda event, arguments: raised.append(event) if watching else None)

async def main():
    global watching
    call = await caller(Noop(partial(Defaults(Endpoint()))))
    await call()
    probes = Probes(await discovered(call))
    async def watch(app, scope, receive, send):
        global watching
        watching = True
        try:
            await probes.watch(app, scope, receive, send)
        finally:
            watching = False
    with probes.installed(probes.probed), probes.doubled(probes.probed[-1], BlankLayers(1)):
        for _ in range(3):
            raised.clear()
            await call(watch)
        print(len(probes.probed), raised)

asyncio.run(main())
"""


def test_probes_raise_no_audit_event() -> None:
    command = [sys.executable, "-c", WITH_AN_AUDIT_HOOK]
    completed = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[1], check=False)
    assert (completed.stdout, completed.stderr) == ("4 []\n", "")


# ---- the same app -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layer", [layer for layer, _ in HOLDERS], ids=lambda layer: layer.__name__)
def test_every_holder_is_crossed_in_order(layer: Callable[[App], App]) -> None:
    app = Noop(layer(Noop(layer(Noop(Endpoint())))))
    stack = stack_of(app)
    seen = observed(app)
    alike(*seen)
    owners = [owner for owner in seen[2] if owner != SUSPENDED]
    # On the way in, time passes from each entry to the next one inside, with null layers between them.
    first_seen = list(dict.fromkeys(owners))
    entries = [owner for owner in first_seen if HARNESS < owner <= len(stack.entries)]
    assert entries == list(range(1, len(stack.entries) + 1))


@pytest.mark.parametrize("url", ["/", "/r/x"])
def test_fastapi(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gzip.time, "time", lambda: 1e9)  # the header of gzip has the second in which it was written
    assert same(fastapi(), url).response().json() == {"a": 1}


def test_layers_below_partials_that_share_their_last_argument() -> None:
    async def layer(app: App, option: str, scope: Any, receive: Any, send: Any) -> None:
        await app(scope, receive, send)

    inner = functools.partial(layer, hello, "option")
    app = functools.partial(layer, inner, "option")
    owners = observed(app)[2]
    assert {1, 2, 3} <= set(owners)
    same(partial(partial(hello)))


def test_a_function_that_is_no_layer_passes_untouched() -> None:
    """Call another instance of a layer's class while a probe is installed in the class's function."""
    other = Noop(hello)

    async def endpoint(scope: Any, receive: Any, send: Any) -> None:
        got: list[Any] = []

        async def keep(message: Any) -> None:
            got.append(message)

        await other(scope, receive, keep)
        await respond(send, got[-1]["body"])

    assert same(Noop(endpoint)).body == [b"ok"]


def test_two_stacks_that_share_a_class() -> None:
    async def main() -> None:
        first, second = await caller(Noop(Slots(hello))), await caller(Noop(Noop(Endpoint())))
        probes, others = Probes(await discovered(first)), Probes(await discovered(second))
        with everything_on(probes):
            await second()
            await first(probes.watch)
            seen = list(probes.log)
            await second()
            assert list(probes.log) == seen
        with everything_on(others):
            await second(others.watch)
        assert {1, 2, 3} <= set(list(others.log)[::2])

    with unchanged_code():
        asyncio.run(main())


def test_calls_by_name_and_with_defaults() -> None:
    class Optional(Noop):
        async def __call__(self, scope: Any, receive: Any = None, send: Any = None, *more: Any, depth: int = 2) -> None:
            assert (more, depth) == ((), 2)
            await self.app(scope, receive, send)

    class ByName(Noop):
        async def __call__(self, *args: Any, **kwargs: Any) -> None:
            scope, receive, send = args
            await self.app(scope=scope, receive=receive, send=send, **kwargs)

    class WithOption(Noop):
        async def __call__(self, scope: Any, receive: Any, send: Any, *, depth: int = 1) -> None:
            await self.app(scope, receive, send, depth=depth + 1)

    class TakesOption(Noop):
        async def __call__(self, scope: Any, receive: Any, send: Any, **options: Any) -> None:
            assert options == {"depth": 2}
            await self.app(scope, receive, send)

    same(ByName(Noop(ByName(Noop(hello)))))
    same(Optional(Noop(hello)))
    same(WithOption(TakesOption(hello)))


def test_a_decorated_layer_that_is_called_by_name_now_and_then() -> None:
    class Sometimes(Noop):
        @apps.decorated
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await self.app(scope, receive, send)

    inner = Sometimes(hello)

    async def endpoint(scope: Any, receive: Any, send: Any) -> None:
        await inner(scope=scope, receive=receive, send=send)

    assert same(Sometimes(endpoint)).body == [b"ok"]


def test_what_a_caller_can_ask_of_a_function_is_as_before() -> None:
    async def main() -> None:
        def plain(app: App) -> App:
            def layer(scope: Any, /, receive: Any, send: Any) -> Any:
                return app(scope, receive, send)

            return layer

        layers = [plain(outer(hello)), outer(plain(hello))]
        for app in layers:
            call = await caller(app)
            probes = Probes(await discovered(call))
            before = (inspect.iscoroutinefunction(app), inspect.signature(app), app.__code__.co_freevars)
            with everything_on(probes):
                during = (inspect.iscoroutinefunction(app), inspect.signature(app), app.__code__.co_freevars)
                assert app.__code__.co_name == "layer" or app.__code__.co_name == "inner"
                await call(probes.watch)
            assert before == during

    asyncio.run(main())


def test_locals_of_every_frame_can_be_read() -> None:
    """Read locals like error reporters: replaced code with cells that are not set up would crash the process."""

    async def endpoint(scope: Any, receive: Any, send: Any) -> None:
        frame, seen = inspect.currentframe(), 0
        while frame is not None:
            seen += len(dict(frame.f_locals))
            frame = frame.f_back
        assert seen
        await respond(send)

    same(outer(Noop(apps.Defaults(outer(endpoint)))))


def test_exceptions_come_out_as_they_are() -> None:
    contexts: list[Any] = []

    class Translates(Noop):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            try:
                await self.app(scope, receive, send)
            except LookupError as error:
                contexts.append((error.__context__, error.__cause__, sys.exception() is error))
                await respond(send, str(error).encode())

    async def raises(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(0)
        raise LookupError("lost")

    assert same(Translates(InATask(Noop(outer(raises))))).body == [b"lost"]
    assert set(contexts) == {(None, None, True)}


@pytest.mark.parametrize("error", [LookupError("x"), KeyboardInterrupt(), SystemExit(3), asyncio.CancelledError()])
def test_everything_is_off_after_an_exception(error: BaseException) -> None:
    failing = False

    async def endpoint(scope: Any, receive: Any, send: Any) -> None:
        if failing:
            raise error
        await respond(send)

    async def main() -> None:
        nonlocal failing
        call = await caller(Noop(outer(Slots(endpoint))))
        probes = Probes(await discovered(call))
        scope = call.template.scope(None)
        exchange = server.Exchange(call.template, call.loop.event(), 9)
        failing = True
        with everything_on(probes):
            await probes.watch(call.app, scope, exchange.receive, exchange.send)

    with unchanged_code(), pytest.raises(type(error)) as caught:
        asyncio.run(main())
    assert caught.value is error


def test_everything_is_off_when_a_probe_cannot_be_placed(monkeypatch: pytest.MonkeyPatch) -> None:
    stack = stack_of(Noop(outer(Slots(hello))))
    probes = Probes(stack)
    real = probes._probe
    placed = 0

    def fails_at_the_second(site: Any) -> Any:
        nonlocal placed
        placed += 1
        if placed == 2:
            raise KeyboardInterrupt
        return real(site)

    monkeypatch.setattr(probes, "_probe", fails_at_the_second)
    with unchanged_code(), pytest.raises(KeyboardInterrupt), probes.installed(probes.probed):
        pytest.fail("not reached")
    assert placed == 2


@pytest.mark.parametrize("what", ["exception", "cancelled", "interrupted", "status"])
def test_everything_is_off_after_a_measurement_that_failed(what: str) -> None:
    calls = 0

    async def endpoint(scope: Any, receive: Any, send: Any) -> None:
        nonlocal calls
        assert scope["type"] == "http"
        calls += 1
        # Probes are installed only after the warm-up and the trace, so this call is a sample.
        code = Noop.__call__.__code__
        if code.co_filename.startswith("<probe"):
            if what == "exception":
                raise LookupError
            if what == "cancelled":
                task.cancel()
            if what == "interrupted":
                raise KeyboardInterrupt
            await respond(send, status=503)
            return
        await respond(send)

    task: asyncio.Task[Any]

    async def main() -> None:
        nonlocal task
        schedule = apps.FAST_SCHEDULE
        task = asyncio.ensure_future(apps.measured_async(Noop(outer(endpoint)), schedule=schedule))
        await task

    errors = (LookupError, asyncio.CancelledError, KeyboardInterrupt, server.ResponseError)
    with unchanged_code(), pytest.raises(errors):
        asyncio.run(main())
    assert calls > 2


def test_nothing_of_the_probes_stays_alive() -> None:
    async def main() -> Any:
        call = await caller(Noop(outer(InATask(hello))))
        probes = Probes(await discovered(call))
        with everything_on(probes):
            await call(probes.watch)
        return weakref.ref(probes)

    reference = asyncio.run(main())
    gc.collect()
    assert reference() is None


# ---- layers that change what the app inside sees ----------------------------------------------------------------


def test_session_and_user() -> None:
    class Backend(AuthenticationBackend):
        async def authenticate(self, conn: Any) -> Any:
            return AuthCredentials(["authenticated"]), SimpleUser("ada")

    @requires("authenticated")
    async def page(request: Any) -> JSONResponse:
        request.session["visits"] = request.session.get("visits", 0) + 1
        return JSONResponse({"user": request.user.display_name, "visits": request.session["visits"]})

    app = Starlette(
        routes=[Route("/", page)],
        middleware=[
            Middleware(SessionMiddleware, secret_key="s"),
            Middleware(AuthenticationMiddleware, backend=Backend()),
        ],
    )
    assert observed(app)[1].response().json() == {"user": "ada", "visits": 1}
    measurement = apps.measured(app, schedule=replace(apps.FAST_SCHEDULE, precision_time_s=0.0))
    assert measurement.response.json() == {"user": "ada", "visits": 1}
    assert measurement.layer("AuthenticationMiddleware").us is not None


def test_context_variables() -> None:
    async def endpoint(scope: Any, receive: Any, send: Any) -> None:
        await respond(send, request_id.get().encode())

    assert same(SetsContext(InATask(ReadsContext(outer(endpoint))))).body == [b"r-1"]


def test_a_resource_is_open_during_the_request_and_closed_after_it() -> None:
    async def endpoint(scope: Any, receive: Any, send: Any) -> None:
        assert scope["database"] == {"open": True}
        await respond(send)
        assert scope["database"] == {"open": True}

    layer = Resource(Noop(endpoint))
    same(Noop(layer))
    assert len(layer.opened) > 3
    assert not any(session["open"] for session in layer.opened)


def test_nested_base_http_with_a_stream_and_a_disconnect_listener() -> None:
    async def first(request: Any, call_next: Any) -> Any:
        response = await call_next(request)
        response.headers["x-first"] = "1"
        return response

    async def second(request: Any, call_next: Any) -> Any:
        await request.body()
        return await call_next(request)

    async def page(request: Any) -> StreamingResponse:
        async def pieces() -> Any:
            for _ in range(5):
                assert not await request.is_disconnected()
                yield b"x" * 10
                await asyncio.sleep(0)

        return StreamingResponse(pieces())

    app = Starlette(
        routes=[Route("/", page, methods=["POST"])],
        middleware=[Middleware(BaseHTTPMiddleware, dispatch=first), Middleware(BaseHTTPMiddleware, dispatch=second)],
    )
    response = same(app, method="POST", content=b"body").response()
    assert response.content == b"x" * 50
    assert response.headers["x-first"] == "1"


def test_a_listener_in_a_task_of_its_own_does_not_take_the_time() -> None:
    """Charge the endpoint for its work while its listener waits for the disconnect."""
    ticks = Ticks()

    async def endpoint(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        listener = asyncio.create_task(receive())
        await asyncio.sleep(0)
        ticks.now += 1000
        await respond(send)
        await listener

    async def main() -> Probes:
        call = await caller(Noop(endpoint))
        probes = Probes(await discovered(call), ticks)
        with probes.installed(probes.probed):
            await call(probes.watch)
        return probes

    probes = asyncio.run(main())
    owners, times = probes.read()[::2], list(probes.log)[1::2]
    [jump] = [place for place in range(1, len(times)) if times[place] - times[place - 1] > 999]
    assert owners[jump - 1] == 2  # the endpoint, not the harness


def test_a_background_call_before_the_first_request_is_harmless() -> None:
    app = Noop(outer(hello))

    async def main() -> None:
        call = await caller(app)
        probes = Probes(await discovered(call))
        with everything_on(probes):
            await call()

    asyncio.run(main())


# ---- arguments and return values ------------------------------------------------------------------------------


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
    """An awaitable whose iterator has neither `send` nor `throw`."""

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
    """A layer with a plain `__call__` that returns what `made_of` makes of the inner coroutine."""

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

    same(Noop(Sync(Noop(apps.echo))), method="POST", content=b"body")


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
    same(app, method="POST", content=[b"one", b"two", b"three"])
    same(Noop(InATask(apps.echo)), method="POST", content=[b"a", b"b", b"c"])


def test_a_decorator_that_awaits_coroutines_only() -> None:
    """Check that a layer's return value is a coroutine, and that receive and send are coroutine functions."""

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
            assert functools.wraps(send)(lambda: None).__name__ == send.__name__
            await either(self.app)(scope, receive, send)

    same(AsksFirst(Noop(AsksFirst(hello))))


# ---- steps of the event loop ------------------------------------------------------------------------------------


def test_cancellation_goes_through_steps() -> None:
    seen: list[str] = []

    async def endpoint(scope: Any, receive: Any, send: Any) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    class GivesUp(Noop):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            task = asyncio.create_task(self.app(scope, receive, send))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            await respond(send, b"gave up")

    assert same(Noop(GivesUp(Noop(endpoint)))).body == [b"gave up"]
    assert set(seen) == {"cancelled"}


def test_a_stack_in_which_a_task_waits_is_stepped_as_well() -> None:
    """Log the steps of a stack without tasks too: only they show the suspension of its single task."""

    class Waits(Noop):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await asyncio.sleep(0)
            await self.app(scope, receive, send)

    async def suspensions(suspending: bool) -> int:
        call = await caller(Waits(hello))
        stack = await discovered(call)
        assert not stack.tasks
        probes = Probes(stack, suspending=suspending)
        assert probes.steppable == suspending
        with probes.installed(probes.probed):
            await call(probes.watch)
        return probes.read()[::2].count(SUSPENDED)

    assert asyncio.run(suspensions(True)) == 1
    assert asyncio.run(suspensions(False)) == 0


def test_probes_of_two_clocks_take_turns_at_one_stack() -> None:
    async def main() -> None:
        call = await caller(Noop(Slots(hello)))
        own, other = Ticks(), Ticks()
        stack = await discovered(call)
        probes, others = Probes(stack, own), Probes(stack, other)

        async def reads(probes: Probes) -> tuple[int, int]:
            before = own.now, other.now
            with probes.installed(probes.probed):
                await call(probes.watch)
            return own.now - before[0], other.now - before[1]

        plain = (await reads(probes))[0]
        assert plain > 6
        assert await reads(others) == (0, plain)
        assert await reads(probes) == (plain, 0)
        with suppress(LookupError), others.installed(probes.probed):
            raise LookupError
        assert await reads(probes) == (plain, 0)

    with unchanged_code():
        asyncio.run(main())


# ---- which owner is charged -------------------------------------------------------------------------------------


def spin(us: int) -> None:
    end = perf_counter_ns() + us * 1000
    while perf_counter_ns() < end:
        pass


class Spins(Noop):
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        spin(200)
        await self.app(scope, receive, send)


def typical_us(app: App, clock: Any = perf_counter_ns, field: str = "ns", **options: Any) -> list[float]:
    """Return microseconds by owner: the minimum over 25 requests or `requests`, or the statistic `of`."""

    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        loop.set_task_factory(options.get("task_factory"))
        call = await caller(app)
        probes = Probes(await discovered(call), clock, suspending=True)
        samples = []
        with probes.installed(probes.probed):
            for _ in range(options.get("requests", 25)):
                await call(probes.watch)
                samples.append(getattr(spent(probes.read(), probes.owners), field))
        of = options.get("of", min)
        return [of(own) / 1000 for own in zip(*samples, strict=True)]

    return asyncio.run(main())


@pytest.mark.parametrize("receiver_first", [False, True])
@readings  # on a busy machine every request may be disturbed
def test_what_tasks_of_the_endpoints_own_do_is_the_endpoints(receiver_first: bool) -> None:
    """Charge the endpoint's tasks to the endpoint: Quart receives in one task and handles in another."""

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

    harness, outer, inner, own, *_ = typical_us(Noop(Noop(endpoint)))
    assert own > 300
    assert max(harness, outer, inner) < 150


@pytest.mark.parametrize("plain", [False, True])
def test_a_probe_of_a_frameworks_layer_logs_both_crossings_of_each_side(plain: bool) -> None:
    now_ns, timeline = [100], [0, 100]

    def clock() -> int:
        now_ns[0] += 1
        return now_ns[0]

    async def answer() -> int:
        return 7

    def layer(*arguments: int, **named: int) -> Awaitable[int]:
        assert (arguments, named) == ((1,), {"key": 2})
        return answer()

    async def main() -> int:
        return await framework_probe_for(timeline, clock, plain=plain)((5, layer), 1, key=2)

    assert asyncio.run(main()) == 7
    # A plain layer is entered when it is called, and again when its answer is awaited.
    entered = [0, 100, 5, 101, 0, 102, 5, 103, 0, 104]
    assert timeline == (entered if plain else entered[:6])


@readings  # on a busy machine every request may be disturbed
def test_a_layer_that_spins_among_others() -> None:
    _, first, second, spins, third, endpoint, *_ = typical_us(Noop(Noop(Spins(Noop(hello)))))
    assert 195 < spins < 600
    assert max(first, second, third, endpoint) < 100


def test_a_layer_that_sleeps_is_charged_its_suspension() -> None:
    class Sleeps(Noop):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await asyncio.sleep(0.003)
            await self.app(scope, receive, send)

    app = Noop(Sleeps(Noop(hello)))
    assert typical_us(app, requests=9)[2] > 2900
    # The median, not the minimum: preemption between setting the timer and suspending shortens the suspension.
    assert typical_us(app, field="suspended", of=statistics.median, requests=9)[2] > 2000
    assert typical_us(app, thread_time_ns, requests=9)[2] < 1000


@readings  # on a busy machine every request may be disturbed
def test_tasks_that_take_turns_do_not_charge_one_another() -> None:
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

    _, concurrent, inside, *_ = typical_us(Concurrent(endpoint))
    assert 145 < concurrent < 290
    assert 295 < inside < 900
