"""WebSocket connections: what the client sends, what the app answers, and what each layer takes per message."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest
from fastapi import Depends, FastAPI, WebSocket
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocketDisconnect

from pytest_mwbudget.asgi.request import Step
from pytest_mwbudget.asgi.server import Caller
from pytest_mwbudget.asgi.websocket import Connection, build_connection, steps_of
from pytest_mwbudget.config.budgets import Budgets
from pytest_mwbudget.config.settings import Settings
from pytest_mwbudget.engine import measure, send_once
from pytest_mwbudget.errors import MwBudgetError, ResponseError, SettingError, StatusError
from pytest_mwbudget.model.results import Measurement
from pytest_mwbudget.timing.host_speed import Machine
from pytest_mwbudget.timing.looks import Environment

from .apps import Noop
from .test_engine import FakeClock, reason
from .test_plugin import run
from .test_streams import SCHEDULE, Works, exactly, messages

Handler = Callable[[Any], Awaitable[None]]


def app_of(handler: Handler, *layers: Middleware) -> Starlette:
    return Starlette(routes=[WebSocketRoute("/ws", handler)], middleware=layers)


async def echo(websocket: Any) -> None:
    await websocket.accept()
    async for text in websocket.iter_text():
        await websocket.send_text(f"got {text}")


def sent_once(handler: Handler, exchange: Any, **options: Any) -> Measurement:
    settings = Settings(expect_status=options.pop("expect_status", None), startup_timeout_s=5.0)
    connection = build_connection("/ws", exchange, options.pop("subprotocols", ()), options)
    return asyncio.run(send_once(app_of(handler), connection, settings))


# ---- the exchange ----------------------------------------------------------------------------------------------------


def test_each_item_is_a_message_with_the_answers_that_it_awaits() -> None:
    steps = steps_of(["hello", b"\0", ("subscribe", 3), {"op": 1}, ([1], 0), (None, 2)])
    assert steps == (
        Step("hello", 1),
        Step(b"\0", 1),
        Step("subscribe", 3),
        Step('{"op": 1}', 1),
        Step("[1]", 0),
        Step(None, 2),
    )


@pytest.mark.parametrize(
    ("exchange", "message"),
    [
        ("hello", "exchange is 'hello'; give a list"),
        ([5], "exchange has 5; give a str"),
        ([("a", -1)], "awaits -1 answers to 'a'; give a whole number"),
        ([("a", True)], "awaits True answers"),
        ([{"at": object()}], "cannot be sent as JSON"),
        ([("a", 1, 2)], "give a str, bytes, a dict or a list, or a pair"),
    ],
)
def test_another_exchange_is_refused_with_an_example(exchange: object, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        steps_of(exchange)


def test_subprotocols_are_a_list() -> None:
    with pytest.raises(SettingError, match=r"subprotocols is 'graphql-ws'; give a list"):
        build_connection("/ws", [], "graphql-ws", {})


# ---- one connection --------------------------------------------------------------------------------------------------


def test_the_test_gets_the_answers() -> None:
    measurement = sent_once(echo, ["a", "b"])
    assert (measurement.answers, measurement.status, measurement.label) == (("got a", "got b"), 101, "WS /ws")


def test_the_scope_is_that_of_a_server() -> None:
    seen: list[Any] = []

    async def choose(websocket: Any) -> None:
        seen.append(websocket.scope)
        await websocket.accept(subprotocol="b")
        await websocket.send_bytes(b"\1")

    measurement = sent_once(choose, [(None, 1)], subprotocols=["a", "b"], headers={"x-key": "1"}, params={"q": "2"})
    scope = seen[0]
    assert (scope["type"], scope["scheme"], scope["path"], scope["query_string"]) == ("websocket", "ws", "/ws", b"q=2")
    assert (scope["subprotocols"], "method" in scope) == (["a", "b"], False)
    headers = dict(scope["headers"])
    assert (headers[b"upgrade"], headers[b"connection"], headers[b"x-key"]) == (b"websocket", b"Upgrade", b"1")
    assert (measurement.answers, measurement.response.headers["sec-websocket-protocol"]) == ((b"\1",), "b")


def test_the_app_may_speak_first_take_messages_without_answer_and_close() -> None:
    async def handler(websocket: Any) -> None:
        await websocket.accept()
        await websocket.send_text("welcome")
        assert [await websocket.receive_text(), await websocket.receive_json()] == ["quiet", {"n": 1}]
        await websocket.send_text("one")
        await websocket.send_text("two")
        await websocket.close()

    assert sent_once(handler, [(None, 1), ("quiet", 0), ({"n": 1}, 2)]).answers == ("welcome", "one", "two")


def test_a_client_waits_for_answers_that_another_task_sends() -> None:
    async def handler(websocket: Any) -> None:
        await websocket.accept()

        async def later() -> None:
            await asyncio.sleep(0)
            await websocket.send_text("late")

        while await websocket.receive_text() != "end":
            task = asyncio.create_task(later())
        await task

    assert sent_once(handler, ["a", "b", ("end", 0)]).answers == ("late", "late")


async def never_looks_for_the_end(websocket: Any) -> None:
    await websocket.accept()
    while True:
        await websocket.send_text(await websocket.receive_text())


async def speaks_in_a_group(websocket: Any) -> None:
    await websocket.accept()
    async with asyncio.TaskGroup() as group:
        group.create_task(never_looks_for_the_end(Accepted(websocket)))


@dataclass(frozen=True)
class Accepted:
    """A WebSocket that its handler need not accept."""

    websocket: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.websocket, name)

    async def accept(self) -> None: ...


async def pushes(websocket: Any) -> None:
    await websocket.accept()
    while True:
        await websocket.send_text("tick")
        await asyncio.sleep(0)


async def pushes_on_request(websocket: Any) -> None:
    await websocket.accept()
    await websocket.receive_text()
    with suppress(WebSocketDisconnect):
        while True:
            await websocket.send_text("tick")


@pytest.mark.parametrize(
    ("handler", "exchange", "answers"),
    [
        (never_looks_for_the_end, ["a", "b"], ("a", "b")),
        (speaks_in_a_group, ["a"], ("a",)),
        (pushes, [(None, 3)], ("tick",) * 3),
        (pushes_on_request, [("begin", 1), (None, 2)], ("tick",) * 3),
    ],
)
def test_a_handler_that_goes_on_ends_when_the_client_leaves(
    handler: Handler, exchange: Any, answers: tuple[str, ...]
) -> None:
    assert sent_once(handler, exchange).answers == answers


def test_an_app_without_a_framework_may_go_on_sending_after_the_client_has_left() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        while True:
            await send({"type": "websocket.send", "text": "tick"})

    connection = build_connection("/ws", [(None, 3)], (), {})
    assert asyncio.run(send_once(app, connection, Settings(lifespan=False))).answers == ("tick",) * 3


def test_a_handler_that_is_ended_by_the_leaving_client_is_measured() -> None:
    connection = build_connection("/ws", ["a"], (), {})
    settings = Settings(Budgets({"tasks": 0}), expect_status=101, lifespan=False)
    measurement = asyncio.run(measure(app_of(never_looks_for_the_end), connection, settings, Environment()))
    assert (measurement.status, measurement.verdict) == (101, "pass")


def test_an_error_of_the_app_after_the_client_has_left_is_not_hidden() -> None:
    async def handler(websocket: Any) -> None:
        await websocket.accept()
        with suppress(WebSocketDisconnect):
            await websocket.receive_text()
        raise LookupError("of the app")

    with pytest.raises(LookupError, match="of the app"):
        sent_once(handler, [])


def test_several_tasks_of_the_app_may_receive() -> None:
    async def handler(websocket: Any) -> None:
        await websocket.accept()

        async def answer() -> None:
            await websocket.send_text(await websocket.receive_text())

        first, second = asyncio.create_task(answer()), asyncio.create_task(answer())
        await asyncio.sleep(0)
        await websocket.send_text("welcome")
        await first
        await second

    assert sent_once(handler, [(None, 1), "a", "b"]).answers == ("welcome", "a", "b")


async def refuses(websocket: Any) -> None:
    await websocket.close(code=1008)


def test_a_refusal_is_measured_only_if_it_is_expected() -> None:
    assert sent_once(refuses, ["a"], expect_status=403).status == 403
    with pytest.raises(StatusError, match=r"WS /ws answered 403; nothing was measured.*expect_status=403"):
        sent_once(refuses, ["a"])


async def closes_early(websocket: Any) -> None:
    await websocket.accept()
    await websocket.close(code=1011)


async def one_answer(websocket: Any) -> None:
    await websocket.accept()
    await websocket.receive_text()
    await websocket.send_text("only")


async def says_nothing(websocket: Any) -> None:
    pass


@pytest.mark.parametrize(
    ("handler", "exchange", "message"),
    [
        (says_nothing, [], "neither accepted nor closed the connection"),
        (closes_early, ["a"], "closed the connection with code 1011 after 0 of the 1 messages of the exchange"),
        (one_answer, [("a", 2)], "returned after 1 answers, where the exchange awaits 2; await fewer answers"),
        (one_answer, [("a", 0)], "returned after 1 answers, where the exchange awaits 0; await them"),
        (one_answer, ["a", "b"], "returned after 1 of the 2 messages of the exchange"),
    ],
)
def test_an_exchange_that_is_not_kept_says_what_is_missing(handler: Handler, exchange: Any, message: str) -> None:
    with pytest.raises(ResponseError, match=message):
        sent_once(handler, exchange)


def test_an_answer_that_never_comes_ends_with_a_message() -> None:
    connection = build_connection("/ws", [("a", 2)], (), {})
    with pytest.raises(MwBudgetError, match=r"the exchange did not end within 0.05 s; the client waits until each"):
        asyncio.run(send_once(app_of(echo), connection, Settings(startup_timeout_s=0.05)))


def test_each_repetition_must_have_the_same_answers() -> None:
    codes = iter([1000, 1000, 1008])

    async def handler(websocket: Any) -> None:
        await websocket.accept()
        await websocket.close(code=next(codes))

    async def main() -> None:
        connection = build_connection("/ws", [], (), {})
        call = Caller(app_of(handler), connection, None, exchange=Connection)
        for _ in range(3):
            await call()

    with pytest.raises(ResponseError, match="call 3 had 0 answers and was closed with code 1008, the calls before it"):
        asyncio.run(main())


# ---- the cost of messages --------------------------------------------------------------------------------------------


class PassesOn(BaseHTTPMiddleware):
    async def dispatch(self, request: Any, call_next: Any) -> Any:
        raise AssertionError


@dataclass
class HttpOnly:
    """A layer that works for HTTP, and passes everything else on."""

    app: Any
    clock: FakeClock

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        raise AssertionError


def connected(
    *layers: Middleware,
    clock: FakeClock,
    number: int,
    us_per_message: float | None = None,
    handler: Handler | None = None,
) -> Measurement:
    """Measure a connection with so many messages each way, on a fake clock."""

    async def in_turns(websocket: Any) -> None:
        await websocket.accept()
        async for text in websocket.iter_text():
            clock.let_pass(10.0)
            await websocket.send_text(text)

    budgets = Budgets({} if us_per_message is None else {"us_per_message": us_per_message})
    environment = Environment(clock, None, random.Random(7), Machine(known_ns=1e9), schedule=SCHEDULE)
    connection = build_connection("/ws", [f"m{index}" for index in range(number)], (), {})
    return asyncio.run(
        measure(app_of(handler or in_turns, *layers), connection, Settings(budgets, max_time_s=2.0), environment)
    )


@pytest.mark.parametrize("read_ns", [0, 70])
def test_each_way_of_a_connection_is_exact(read_ns: int) -> None:
    clock = FakeClock(read_ns)
    measurement = connected(
        Middleware(HttpOnly, clock=clock),
        Middleware(PassesOn),
        Middleware(Noop),
        Middleware(Works, clock=clock, up=20, down=50, once=100),
        clock=clock,
        number=12,
        us_per_message=40,
    )
    for name, up, down in (("HttpOnly", 0, 0), ("PassesOn", 0, 0), ("Noop", 0, 0), ("Works", 20, 50)):
        layer_messages = messages(measurement, name)
        assert exactly(layer_messages.sent.us, up), name
        assert exactly(layer_messages.received.us, down), name
        assert (layer_messages.sent.count, layer_messages.received.count) == (13, 14), name
    works = measurement.layer("Works")
    assert works.us.estimate == pytest.approx(100 + 13 * 20 + 14 * 50, abs=2)
    assert (works.verdict, measurement.layer("PassesOn").verdict) == ("fail", "pass")
    counts = measurement.layer("PassesOn").counts
    assert counts.tasks.count == 0


@pytest.mark.parametrize("read_ns", [0, 70])
def test_a_handler_that_receives_in_one_task_and_sends_in_another(read_ns: int) -> None:
    """As Quart, Falcon and python-socketio do."""
    clock = FakeClock(read_ns)

    async def handler(websocket: Any) -> None:
        await websocket.accept()
        queue: asyncio.Queue[str | None] = asyncio.Queue()

        async def receive() -> None:
            async for text in websocket.iter_text():
                await queue.put(text)
            await queue.put(None)

        async def answer() -> None:
            while (text := await queue.get()) is not None:
                clock.let_pass(10.0)
                await websocket.send_text(text)

        await asyncio.gather(receive(), answer())

    layer = Middleware(Works, clock=clock, up=20, down=50)
    measurement = connected(layer, clock=clock, number=12, handler=handler)
    layer_messages = messages(measurement, "Works")
    assert exactly(layer_messages.sent.us, 20)
    assert exactly(layer_messages.received.us, 50)
    assert measurement.books.endpoint.estimate == pytest.approx(120, abs=5)


def test_the_handler_is_a_part_of_the_endpoint() -> None:
    app = FastAPI()
    app.websocket("/ws", dependencies=[Depends(dependency)])(fastapi_echo)
    budgets = Budgets(endpoint={"handler": {"tasks": 0}, "dependency": {"tasks": 0}})
    connection, settings = build_connection("/ws", ["a"], (), {}), Settings(budgets, lifespan=False)
    endpoint = asyncio.run(measure(app, connection, settings, Environment())).endpoint
    assert [part.name.rpartition(":")[2] for part in endpoint.parts if part.judged] == ["dependency", "handler"]
    assert endpoint.part("handler").layer.qualname.endswith("test_websocket.fastapi_echo")


async def dependency() -> None: ...


async def fastapi_echo(websocket: WebSocket) -> None:
    await never_looks_for_the_end(websocket)


def test_a_short_connection_has_a_time_and_no_figure_per_message() -> None:
    clock = FakeClock()
    measurement = connected(Middleware(Works, clock=clock, once=30), clock=clock, number=1, us_per_message=5)
    assert exactly(measurement.layer("Works").us, 30)
    assert "fewer than 10 messages" in reason(measurement.layer("Works"), "us_per_message")


# ---- in a test -------------------------------------------------------------------------------------------------------

SITE = """
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocketDisconnect

async def echo(websocket):
    await websocket.accept()
    async for text in websocket.iter_text():
        await websocket.send_text("got " + text)

class Tasks:
    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        import asyncio
        await asyncio.create_task(self.app(scope, receive, send))

app = Tasks(Starlette(routes=[WebSocketRoute("/ws", echo)]))
"""


@pytest.fixture
def site(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makepyfile(site_app=SITE)
    pytester.makeini("[pytest]\nmw_budget_app = site_app:app\nmw_budget_lifespan = false\n")
    return pytester


OPENED = """
import asyncio
import pytest

@pytest.mark.mw_budget(tasks=0)
def test_ws(mw_budget):
    found = mw_budget.websocket("/ws", exchange=EXCHANGE)
    assert found.answers == ("got a", "got b")

@pytest.mark.mw_budget(tasks=1)
def test_async(mw_budget):
    async def opened():
        return await mw_budget.awebsocket("/ws", exchange=EXCHANGE)

    assert asyncio.run(opened()).status == 101
"""


def test_the_fixture_opens_a_connection_and_judges_its_layers(site: pytest.Pytester) -> None:
    site.makepyfile(OPENED.replace("EXCHANGE", '["a", "b"]'))
    result = run(site, "--mw-budget", "--mw-budget-flamegraph=never")
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(["WS /ws: Tasks 1 task, budget 0 tasks (1 of * layers over budget)"])


def test_without_the_option_a_connection_is_opened_once(site: pytest.Pytester) -> None:
    site.makepyfile(OPENED.replace("EXCHANGE", '["a", "b"]'))
    run(site).assert_outcomes(passed=2)


def test_a_wrong_exchange_fails_the_test_with_its_message(site: pytest.Pytester) -> None:
    site.makepyfile(OPENED.replace("EXCHANGE", '"a"'))
    result = run(site, "--mw-budget", "-k", "test_ws")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*exchange is 'a'; give a list of what the client sends, *"])
