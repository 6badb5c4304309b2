"""Ground truth under load: layers of known cost, a lock held for a known time. Wide margins."""

from __future__ import annotations

import asyncio
import time
from statistics import fmean
from typing import Any

import pytest

from pytest_mwbudget.analysis.paired import FEWEST_PAIRS
from pytest_mwbudget.asgi import loops
from pytest_mwbudget.asgi.request import build_request
from pytest_mwbudget.config.budgets import Budgets
from pytest_mwbudget.config.settings import Settings, Under
from pytest_mwbudget.engine import measure
from pytest_mwbudget.load import bursts
from pytest_mwbudget.model.quantities import RPS_SHARE
from pytest_mwbudget.model.results import LoopName, Measurement
from pytest_mwbudget.report.under_load import load_view
from pytest_mwbudget.timing.looks import Environment

from .apps import unchanged_code
from .conftest import needs
from .readings import BusyError, near, never, readings

needs("uvicorn", "the server of a measurement under load", "load")
pytestmark = [pytest.mark.live, pytest.mark.once]


async def ok(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


class Layer:
    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.app(scope, receive, send)


class NoOp(Layer):
    pass


def spin(us: int) -> None:
    end = time.perf_counter_ns() + us * 1000
    while time.perf_counter_ns() < end:
        pass


class Spin(Layer):
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        spin(200)
        await self.app(scope, receive, send)


class SpinsLater(Layer):
    """Starts a task when the app has answered, and does not wait for it."""

    def __init__(self, app: Any) -> None:
        super().__init__(app)
        self.tasks = set[asyncio.Task[None]]()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def later() -> None:
            spin(300)

        await self.app(scope, receive, send)
        task = asyncio.create_task(later())
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)


class Queues(Layer):
    """Puts work into a queue, which a task of the app's takes out."""

    def __init__(self, app: Any) -> None:
        super().__init__(app)
        self.queue: asyncio.Queue[int] = asyncio.Queue()
        self.worker: asyncio.Task[None] | None = None

    async def work(self) -> None:
        while True:
            spin(await self.queue.get())

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if self.worker is None:
            self.worker = asyncio.create_task(self.work())
        await self.app(scope, receive, send)
        self.queue.put_nowait(300)


class CallsLater(Layer):
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.app(scope, receive, send)
        asyncio.get_running_loop().call_later(0.001, spin, 300)


class Login(Layer):
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.app({**scope, "user": "me"}, receive, send)


async def of_users(scope: Any, receive: Any, send: Any) -> None:
    if "user" in scope:
        spin(300)
    await ok(scope, receive, send)


class Lock(Layer):
    """Holds a lock for a millisecond, and notes how long each request waited for it and held it."""

    def __init__(self, app: Any) -> None:
        super().__init__(app)
        self.lock = asyncio.Lock()
        self.us: list[float] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        begin = time.perf_counter_ns()
        async with self.lock:
            await asyncio.sleep(0.001)
        self.us.append((time.perf_counter_ns() - begin) / 1000)
        await self.app(scope, receive, send)


class Sleep(Layer):
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(0.002)
        await self.app(scope, receive, send)


def under_load(
    app: Any, clients: int, seconds: float = 3.0, loop: LoopName = "asyncio", share: float | None = None
) -> Measurement:
    budgets = Budgets({} if share is None else {RPS_SHARE: share})
    settings = Settings(load=Under(clients), load_time_s=seconds, max_time_s=0.5, lifespan=False, load_budgets=budgets)
    request = build_request("GET", "/", {})
    with unchanged_code():
        return loops.run(loop, lambda: measure(app, request, settings, Environment()))


@readings
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("clients", [1, 50])
def test_a_spin_has_its_share(loop: LoopName, clients: int) -> None:
    measurement = under_load(NoOp(Spin(ok)), clients, loop=loop)
    assert measurement.load is not None
    spin, nothing = measurement.layer("Spin").load, measurement.layer("NoOp").load
    assert spin is not None
    assert nothing is not None
    assert spin.method == "bypass"
    assert spin.share is not None
    assert spin.added_us is not None
    assert spin.share.high > 0.3
    assert spin.share.estimate > 0.15
    assert spin.added_us.high > 150  # a busy machine interrupts, and adds to it
    assert nothing.share is not None
    assert near(nothing.share, 0, most_us=0.02)
    effects = load_view(measurement).effects  # type: ignore[union-attr]
    never(any("serialises" in effect for effect in effects), f"{effects} of layers that do not wait")
    assert not effects


async def late(scope: Any, receive: Any, send: Any) -> None:
    await asyncio.sleep(0.05)
    await ok(scope, receive, send)


@readings
def test_where_the_app_waits_a_share_is_of_what_clients_wait_for() -> None:
    """Clients that all begin at once wait for each other: 50 spins would be 9 % of two requests, not of all."""
    measurement = under_load(NoOp(Spin(late)), 50, seconds=6.0)
    assert measurement.load is not None
    assert measurement.load.rps.estimate > 0.9 * 50 / 0.051
    spins = measurement.layer("Spin").load
    assert spins is not None
    assert (spins.method, spins.clock) == ("bypass", "wall")
    assert spins.share is not None
    assert spins.share.estimate < 0.03


@readings
def test_what_a_layer_does_after_the_request_costs_requests_too() -> None:
    spins = under_load(NoOp(SpinsLater(ok)), 20).layer("SpinsLater").load
    assert spins is not None
    assert spins.method == "bypass"
    assert spins.share is not None
    assert spins.share.high > 0.4
    assert spins.share.estimate > 0.2


@readings
@pytest.mark.parametrize("layer", [Queues, CallsLater])
def test_a_layer_that_leaves_work_to_others_does_not_pass(layer: type[Layer]) -> None:
    measurement = under_load(NoOp(layer(Spin(ok))), 20, seconds=6.0, share=0.2)
    leaves = measurement.layer(layer.__name__).load
    assert leaves is not None
    assert leaves.judged is not None
    if measurement.load is not None and measurement.load.rounds < FEWEST_PAIRS:
        raise BusyError("there were too few rounds of bursts")
    never(leaves.judged.verdict == "fail", "it is not known whose work it is")
    assert leaves.judged.verdict == "undecided"


@readings
def test_a_layer_without_which_the_app_does_less_passes_by_its_own_time() -> None:
    login = under_load(NoOp(Login(of_users)), 20, seconds=6.0, share=0.2).layer("Login").load
    assert login is not None
    assert login.judged is not None
    never(login.judged.verdict == "fail", "the app's own work is taken for the layer's")
    assert login.judged.verdict == "pass"


@readings
@pytest.mark.parametrize("clients", [1, 10, 100])
def test_a_lock_is_named_with_its_wait(clients: int, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, spans, made = Lock(ok), [], bursts._Driver._observed

    async def noted(self: Any, clients: int, *arguments: Any) -> Any:
        begin = len(layer.us)
        observation = await made(self, clients, *arguments)
        spans.append(fmean(layer.us[begin + clients :]))
        return observation

    with monkeypatch.context() as patch:  # the test may be repeated
        patch.setattr(bursts._Driver, "_observed", noted)
        measurement = under_load(NoOp(layer), clients, seconds=6.0)
    own = measurement.layer("Lock").load
    assert own is not None
    assert own.wait is not None
    never(own.wait.serialises and clients == 1, "one client queues")
    assert own.wait.serialises == (clients > 1)
    assert [own.wait.one_us, own.wait.all_us] == pytest.approx(spans, rel=0.1)
    assert own.wait.all_us > 900 * clients
    effects = " ".join(load_view(measurement).effects)  # type: ignore[union-attr]
    assert ("Lock serialises requests" in effects) == (clients > 1)


@readings
def test_a_sleep_is_no_queue() -> None:
    measurement = under_load(Sleep(ok), 20)
    own = measurement.layer("Sleep").load
    assert own is not None
    assert own.wait is not None
    assert own.wait.one_us > 2000
    assert not own.wait.serialises
    assert measurement.load is not None
    assert measurement.load.endpoint is not None
    assert not measurement.load.endpoint.serialises


@readings
def test_a_budget_far_from_the_share_has_its_verdict() -> None:
    settings = Settings(load=Under(20), load_time_s=6.0, max_time_s=0.5, lifespan=False, p99_ms=10_000.0)
    measurement = asyncio.run(measure(Spin(ok), build_request("GET", "/", {}), settings, Environment()))
    assert measurement.load is not None
    assert measurement.load.judged is not None
    never(measurement.load.judged.verdict == "fail", "a budget far above the latency is exceeded")
    assert measurement.load.judged.verdict == "pass"
    assert measurement.verdict == "pass"
