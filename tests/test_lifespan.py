"""The app's startup and shutdown around a measurement."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from _thread import start_new_thread
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from importlib.util import find_spec
from typing import Any, get_args

import anyio
import anyio.to_thread
import pytest
from asgi_lifespan import LifespanManager
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from pytest_mwbudget.asgi import loops
from pytest_mwbudget.asgi.lifespan import _Manager, lifespan
from pytest_mwbudget.asgi.os_exit import exit_refused
from pytest_mwbudget.errors import LifespanError, MeasurementError
from pytest_mwbudget.model.results import LoopName

from .apps import FAST_SCHEDULE, App, Noop, hello, measured, respond


def lived(
    app: App, inside: Callable[[], None] = lambda: None, timeout_s: float = 5.0, loop: LoopName = "asyncio"
) -> Any:
    """Run the app's lifespan around `inside` and return its state."""
    pytest.importorskip(loop)

    async def main() -> Any:
        async with lifespan(app, timeout_s) as state:
            inside()
            return state

    return loops.run(loop, main)


every_loop = pytest.mark.parametrize("loop", ["asyncio", "uvloop", "trio"])


@pytest.fixture
def unlimited_startup(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit the shutdown only: on a busy machine the startup may take longer than a short limit."""
    monkeypatch.setattr(_Manager, "startup", LifespanManager.startup)


async def _http(scope: Any, receive: Any, send: Any) -> None:
    await respond(send)


def scripted(*steps: str, then: Callable[[], Any] = lambda: None) -> App:
    """Return an app whose lifespan performs these steps.

    A step is "wait", "raise", "hang", "call" (call `then`) or the end of a message type, such as "startup.complete".
    """

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "lifespan":
            await _http(scope, receive, send)
            return
        for step in steps:
            if step == "wait":
                await receive()
            elif step == "raise":
                raise ValueError("no database")
            elif step == "hang":
                await anyio.sleep_forever()
            elif step == "call":
                then()
            else:
                await send({"type": f"lifespan.{step}", "message": "it was refused"})

    return app


FULL = ("wait", "startup.complete", "wait", "shutdown.complete")
# No test here reads a figure.
ONE_LOOK = replace(FAST_SCHEDULE, precision_time_s=0.0)


# ---- apps without a lifespan ------------------------------------------------------------------------------------


async def asserts(scope: Any, receive: Any, send: Any) -> None:
    assert scope["type"] == "http"
    await respond(send)


@every_loop
@pytest.mark.parametrize(
    "app",
    [asserts, scripted(), scripted("wait"), scripted("raise"), hello],
    ids=["asserts", "returns", "returns after receive", "raises", "sends http"],
)
def test_an_app_without_lifespan_is_left_alone(app: App, loop: LoopName) -> None:
    assert lived(app, loop=loop) is None


def answers_http(then: Callable[[], None] = lambda: None, swallow: bool = False) -> App:
    """Return an app without lifespan that reads its request. `then` is its error handler."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        try:
            await respond(send)
            with anyio.move_on_after(2):  # A failing test must not hang.
                await receive()
        except Exception:
            then()
            if not swallow:
                raise

    return app


def fail_again() -> None:
    raise RuntimeError("no response was sent")


@every_loop
@pytest.mark.parametrize(
    "app",
    [answers_http(), answers_http(fail_again), answers_http(swallow=True)],
    ids=["plain", "error handler", "swallows errors"],
)
def test_an_app_that_reads_the_request_and_answers_http_has_no_lifespan(app: App, loop: LoopName) -> None:
    assert lived(app, timeout_s=1.0, loop=loop) is None


def test_a_failure_that_a_layer_makes_a_response_of_is_one() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        try:
            await scripted("wait", "startup.failed")(scope, receive, send)
        except Exception:
            await respond(send)

    with pytest.raises(LifespanError, match="it was refused"):
        lived(app, timeout_s=1.0)


def test_only_an_answer_to_the_startup_is_one() -> None:
    assert lived(scripted("wait", "shutdown.complete"), timeout_s=1.0) is None


def test_an_error_in_the_body_has_nothing_to_do_with_the_missing_lifespan() -> None:
    def fail() -> None:
        raise LookupError("mine")

    with pytest.raises(LookupError) as caught:
        lived(asserts, fail)
    assert caught.value.__context__ is None


# ---- startup ----------------------------------------------------------------------------------------------------


def test_state_of_the_startup() -> None:
    @asynccontextmanager
    async def lifespan(app: Any) -> Any:
        yield {"pool": [1]}

    assert lived(Starlette(lifespan=lifespan)) == {"pool": [1]}


def test_startup_and_shutdown_run_once_around_a_measurement() -> None:
    events: list[str] = []

    @asynccontextmanager
    async def lifespan(app: Any) -> Any:
        events.append("up")
        yield {"pool": events}
        events.append("down")

    async def page(request: Any) -> PlainTextResponse:
        assert request.state.pool is events
        assert not hasattr(request.state, "user")
        request.state.user = "u"
        assert events == ["up"]
        return PlainTextResponse("ok")

    measurement = measured(Starlette(routes=[Route("/", page)], lifespan=lifespan), schedule=ONE_LOOK)
    assert events == ["up", "down"]
    assert measurement.status == 200


def test_lifespan_can_be_left_alone() -> None:
    touched: list[str] = []
    app = scripted("call", *FULL, then=lambda: touched.append("x"))
    measured(app, schedule=ONE_LOOK, settings={"lifespan": False})
    assert not touched


def test_startup_failed_says_why() -> None:
    with pytest.raises(LifespanError, match=r"startup failed: the app reported 'it was refused'; .*lifespan=False"):
        lived(scripted("wait", "startup.failed"))


def test_a_failure_without_a_reason() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "lifespan.startup.failed"})

    with pytest.raises(LifespanError, match="startup failed: the app reported so, without a reason; "):
        lived(app)


@every_loop
@pytest.mark.parametrize("steps", [("call",), ("wait", "call"), ("wait", "startup.complete", "wait", "call")])
@pytest.mark.parametrize("error", [SystemExit, asyncio.CancelledError])
def test_what_would_end_more_than_the_lifespan_is_a_failure_of_it(
    error: type[BaseException], steps: tuple[str, ...], loop: LoopName
) -> None:
    def end() -> None:
        raise error(*([3] if error is SystemExit else []))

    phase = "shutdown" if "startup.complete" in steps else "startup"
    said = "SystemExit: 3" if error is SystemExit else "CancelledError"
    with pytest.raises(LifespanError, match=f"{phase} failed with {said}; ") as caught:
        lived(scripted(*steps, then=end), loop=loop)
    assert type(caught.value.__cause__) is error


def test_an_interrupt_in_the_lifespan_is_one() -> None:
    names = [name for name in get_args(LoopName) if find_spec(name)]
    cases = [(reads, name) for reads in (False, True) for name in names]
    # In a separate process, because an interrupt leaves unfinished tasks on its loop.
    program = f"""
from pytest_mwbudget.asgi import loops
from pytest_mwbudget.asgi.lifespan import lifespan
async def lived(reads):
    async def app(scope, receive, send):
        if reads:
            await receive()
        raise KeyboardInterrupt
    async with lifespan(app, 5):
        pass
for reads, loop in {cases!r}:
    try:
        loops.run(loop, lambda: lived(reads))
    except KeyboardInterrupt:
        print(reads, loop)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"{reads} {name}" for reads, name in cases]


def in_a_task_group(after: str, error: BaseException) -> App:
    """Return an app with a lifespan in which a child task raises `error` after the step `after`."""

    async def fails() -> None:
        raise error

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        if after == "shutdown":
            await send({"type": "lifespan.startup.complete"})
            await receive()
        async with anyio.create_task_group() as group:
            group.start_soon(fails)

    return app


@every_loop
@pytest.mark.parametrize("phase", ["startup", "shutdown"])
def test_the_only_failure_in_a_task_group_is_named(phase: str, loop: LoopName) -> None:
    refused = ConnectionRefusedError("redis refused")
    with pytest.raises(LifespanError, match=f"{phase} failed with ConnectionRefusedError: redis refused; ") as caught:
        lived(in_a_task_group(phase, refused), loop=loop)
    assert caught.value.__cause__ is refused


@every_loop
@pytest.mark.parametrize("phase", ["startup", "shutdown"])
def test_a_refused_exit_in_a_task_group_keeps_its_remedy(phase: str, loop: LoopName) -> None:
    refused = LifespanError("the app's lifespan called os._exit(0)")
    with pytest.raises(LifespanError) as caught:
        lived(in_a_task_group(phase, refused), loop=loop)
    assert caught.value is refused


@every_loop
@pytest.mark.parametrize("steps", [("wait", "call"), ("wait", "startup.complete", "wait", "call")])
def test_an_outcome_in_the_lifespan_is_that_of_the_test(steps: tuple[str, ...], loop: LoopName) -> None:
    class OutcomeError(BaseException):
        """As pytest.skip raises, which would skip this test too."""

    def end() -> None:
        raise OutcomeError

    with pytest.raises(OutcomeError):
        lived(scripted(*steps, then=end), loop=loop)


def test_an_interrupt_on_trio_while_the_app_shuts_down_is_one() -> None:
    trio = pytest.importorskip("trio")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        # No task runs then, and trio raises KeyboardInterrupt in its main task.
        threading.Timer(0.03, os.kill, (os.getpid(), signal.SIGINT)).start()
        await trio.sleep(60)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            lived(app, loop="trio")
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("unlimited_startup")
def test_a_test_that_is_cancelled_cancels_the_lifespan() -> None:
    async def main() -> None:
        started = asyncio.Event()

        async def inside() -> None:
            async with lifespan(scripted("wait", "startup.complete", "hang"), 0.2):
                started.set()
                await asyncio.sleep(60)

        task = asyncio.create_task(inside())
        task.add_done_callback(lambda _: started.set())
        await started.wait()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        assert task.cancelled()

    asyncio.run(main())


def test_a_test_on_trio_that_is_cancelled_cancels_the_startup() -> None:
    trio = pytest.importorskip("trio")

    async def main() -> None:
        with trio.move_on_after(0.02) as scope:
            async with lifespan(scripted("wait", "hang"), 5):
                raise AssertionError
        assert scope.cancelled_caught

    trio.run(main)


def test_startup_exception_is_the_cause() -> None:
    with pytest.raises(LifespanError, match="startup failed with ValueError: no database; ") as caught:
        lived(scripted("wait", "raise"))
    assert isinstance(caught.value.__cause__, ValueError)


def test_starlettes_startup_exception_is_told_without_its_traceback() -> None:
    @asynccontextmanager
    async def lifespan(app: Any) -> Any:
        raise ValueError("no database")
        yield

    with pytest.raises(LifespanError, match="startup failed with ValueError: no database; ") as caught:
        lived(Starlette(lifespan=lifespan))
    assert isinstance(caught.value.__cause__, ValueError)


def stubborn(phase: str) -> App:
    """Return an app that blocks in a phase until cancelled, and suppresses the cancellation."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        for step in ("startup", "shutdown"):
            await receive()
            if step == phase:
                with suppress(BaseException):
                    await anyio.sleep_forever()
            await send({"type": f"lifespan.{step}.complete"})

    return app


@asynccontextmanager
async def _hanging(app: Any) -> AsyncIterator[None]:
    await anyio.sleep_forever()
    yield


@every_loop
@pytest.mark.parametrize(
    "app",
    [scripted("wait", "hang"), scripted("hang"), Starlette(lifespan=_hanging), stubborn("startup")],
    ids=["plain", "before it receives", "reports that it was cut off", "goes on when it is cut off"],
)
def test_startup_that_hangs(app: App, loop: LoopName) -> None:
    with pytest.raises(LifespanError, match=r"startup did not end within 0.01 s; .*mw_budget_startup_timeout"):
        lived(app, timeout_s=0.01, loop=loop)


@every_loop
def test_what_comes_between_startup_and_shutdown_has_no_limit(loop: LoopName) -> None:
    async def main() -> Any:
        async with lifespan(scripted(*FULL), 0.3) as state:
            await anyio.sleep(0.35)
            return state

    pytest.importorskip(loop)
    assert loops.run(loop, main) == {}


def test_a_timeout_of_the_app_is_not_ours() -> None:
    def give_up() -> None:
        raise TimeoutError("the database")

    with pytest.raises(LifespanError, match="startup failed with TimeoutError: the database"):
        lived(scripted("wait", "call", then=give_up))


# ---- shutdown ---------------------------------------------------------------------------------------------------


def test_shutdown_exception() -> None:
    with pytest.raises(LifespanError, match="shutdown failed with ValueError: no database") as caught:
        lived(scripted("wait", "startup.complete", "wait", "raise"))
    assert isinstance(caught.value.__cause__, ValueError)


def test_shutdown_failed() -> None:
    with pytest.raises(LifespanError, match=r"shutdown failed: the app reported 'it was refused'; "):
        lived(scripted("wait", "startup.complete", "wait", "shutdown.failed"))


@every_loop
@pytest.mark.usefixtures("unlimited_startup")
@pytest.mark.parametrize(
    "app",
    [
        scripted("wait", "startup.complete", "wait", "hang"),
        scripted("wait", "startup.complete", "hang"),
        stubborn("shutdown"),
    ],
    ids=["plain", "before it receives", "goes on when it is cut off"],
)
def test_shutdown_that_hangs(app: App, loop: LoopName) -> None:
    with pytest.raises(LifespanError, match=r"shutdown did not end within 0.05 s"):
        lived(app, timeout_s=0.05, loop=loop)


def test_what_an_app_raises_when_it_is_cut_off_is_the_cause() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        try:
            await receive()
            await anyio.sleep_forever()
        finally:
            raise ConnectionRefusedError("db:5432")

    with pytest.raises(LifespanError, match=r"startup did not end within 0.01 s") as caught:
        lived(app, timeout_s=0.01)
    assert isinstance(caught.value.__cause__, ConnectionRefusedError)


def test_an_app_that_leaves_before_its_shutdown_is_not_waited_for() -> None:
    assert lived(scripted("wait", "startup.complete")) == {}


def test_shutdown_runs_after_a_failure_and_does_not_hide_it() -> None:
    ended: list[str] = []

    def fail() -> None:
        raise LookupError("mine")

    app = scripted(*FULL, "call", then=lambda: ended.append("down"))
    with pytest.raises(LookupError, match="mine"):
        lived(app, fail)
    assert ended == ["down"]
    with pytest.raises(LookupError, match="mine") as caught:
        lived(scripted("wait", "startup.complete", "wait", "raise"), fail)
    (note,) = caught.value.__notes__
    assert note.startswith("And the app's lifespan shutdown failed with ValueError: no database; ")


# ---- os._exit ---------------------------------------------------------------------------------------------------


def test_exit_in_the_shutdown_is_refused() -> None:
    real = os._exit
    app = scripted("wait", "startup.complete", "wait", "call", then=lambda: os._exit(0))
    with pytest.raises(LifespanError, match=r"the app's lifespan called os\._exit\(0\), .*lifespan=False"):
        measured(Noop(app), schedule=ONE_LOOK)
    assert os._exit is real


def test_exit_in_a_lifespan_that_is_not_read_is_refused() -> None:
    with exit_refused(), pytest.raises(LifespanError, match=r"the app's lifespan called os\._exit\(0\)"):
        lived(scripted("call", then=lambda: os._exit(0)))


def test_exit_in_an_endpoint_says_nothing_of_the_lifespan() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await anyio.to_thread.run_sync(os._exit, 4)

    with pytest.raises(MeasurementError, match=r"the app called os\._exit\(4\), .*; keep the call out") as caught:
        measured(Noop(app), settings={"lifespan": False})
    assert "lifespan" not in str(caught.value)


def test_exit_in_a_forked_child_is_real() -> None:
    # In a separate process, because a fork of this process would copy the state of the test run.
    program = """
import os
from pytest_mwbudget.asgi.os_exit import exit_refused
with exit_refused():
    child = os.fork()
    if not child:
        os._exit(7)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    if not hasattr(os, "fork"):
        pytest.skip("no fork")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "7"


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The statuses passed to the original `os._exit`, which only records them here."""
    statuses: list[int] = []
    monkeypatch.setattr(os, "_exit", statuses.append)
    return statuses


class Exits:
    """A thread's function that waits for `go`, then calls `os._exit`."""

    def __init__(self) -> None:
        self.here, self.go, self.gone = threading.Event(), threading.Event(), threading.Event()
        self.refused: list[MeasurementError] = []

    def __call__(self) -> None:
        self.here.set()
        self.go.wait(5)
        try:
            os._exit(3)
        except MeasurementError as error:
            self.refused.append(error)
        self.gone.set()

    def now(self) -> bool:
        """Let the thread call `os._exit`, and return whether the call was refused."""
        self.go.set()
        assert self.gone.wait(5)
        return bool(self.refused)


def by_threading(exits: Exits) -> None:
    threading.Thread(target=exits, daemon=True).start()


def by_thread(exits: Exits) -> None:
    start_new_thread(exits, ())


@pytest.mark.parametrize("start", [by_threading, by_thread])
def test_a_thread_that_was_there_before_can_end_the_process(start: Callable[[Exits], None], ended: list[int]) -> None:
    exits = Exits()
    start(exits)
    assert exits.here.wait(5)
    with exit_refused():
        assert not exits.now()
    assert ended == [3]


@pytest.mark.parametrize("start", [by_threading, by_thread])
def test_a_thread_of_the_app_cannot_end_the_process(start: Callable[[Exits], None], ended: list[int]) -> None:
    exits = Exits()
    with exit_refused():
        start(exits)
        assert exits.now()
    assert not ended


@pytest.mark.parametrize("start", [by_threading, by_thread])
def test_a_thread_of_the_app_is_not_taken_for_an_older_one_whose_ident_it_has(
    start: Callable[[Exits], None], ended: list[int]
) -> None:
    before, older = set(sys._current_frames()), Exits()
    start(older)
    assert older.here.wait(5)
    with exit_refused():
        assert not older.now()
        while not before.issuperset(sys._current_frames()):  # `threading` joins only threads that it knows
            time.sleep(0.001)
        for _ in range(20):  # Platforms differ in how soon they reuse an ident.
            exits = Exits()
            start(exits)
            assert exits.now()
    assert ended == [3]
