"""What is recorded of the requests of a test's own clients, without a measurement."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
import starlette.testclient
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from pytest_mwbudget.asgi.http_library import httpx
from pytest_mwbudget.asgi.request import Step
from pytest_mwbudget.errors import MeasurementError, ResponseError
from pytest_mwbudget.model.results import RequestLine
from pytest_mwbudget.recording import recorder as recorder_module
from pytest_mwbudget.recording.clients import CLIENTS, Instead, _recording, recorded
from pytest_mwbudget.recording.recorder import OVERLAPPED, Recorded, Recorder
from pytest_mwbudget.recording.request import Passage, copied, line_of, route_of
from pytest_mwbudget.recording.signals import noting_signals

from .apps import App, echo, hello, respond

PATCHED = (
    (httpx.ASGITransport, "handle_async_request"),
    (httpx.AsyncClient, "send"),
    (starlette.testclient._TestClientTransport, "handle_request"),
    (TestClient, "send"),
)


class InterruptedByTestError(Exception):
    """What the handler of a signal raises."""


class Seen:
    """A recorder that keeps what it is told. `then` runs when a request can be repeated."""

    def __init__(self, *repeat: str, then: Callable[[Recorded], Any] | None = None) -> None:
        self.requests: list[Recorded] = []
        self.left_out: list[tuple[str, str]] = []
        self.then = then
        self.recorder = Recorder(repeat, self._measure, lambda line, why: self.left_out.append((str(line), why)))

    async def _measure(self, request: Recorded) -> None:
        self.requests.append(request)
        if self.then is not None:
            await self.then(request)

    @property
    def lines(self) -> list[str]:
        return [str(request.caller.template.line) for request in self.requests]

    @property
    def reasons(self) -> list[str]:
        return [why for _, why in self.left_out]


async def asked(seen: Seen, app: App, method: str = "GET", path: str = "/", **options: Any) -> httpx.Response:
    """Make a request with httpx while its requests are recorded."""
    with recorded(seen.recorder):
        async with client_of(app) as client:
            return await client.request(method, path, **options)


def client_of(app: App) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop")


def scope(**values: Any) -> dict[str, Any]:
    return {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": []} | values


# ---- what can be repeated -------------------------------------------------------------------------------------------


def test_a_request_is_recorded_after_the_app_and_before_its_client_has_the_response() -> None:
    order: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await respond(send)
        order.append("app")

    async def then(request: Recorded) -> None:
        order.append("measured")

    seen = Seen(then=then)
    response = asyncio.run(asked(seen, app, path="/orders/1?page=2"))
    order.append("client")
    assert response.text == "ok"
    assert (order, seen.lines) == (["app", "measured", "client"], ["GET /orders/1?page=2"])
    caller = seen.requests[0].caller
    assert (caller.app, caller.status, caller.calls) == (app, 200, 1)
    assert seen.recorder.seen
    assert not seen.left_out


def test_a_repetition_gets_the_body_the_scope_and_the_context_of_the_first_request() -> None:
    user = ContextVar("user", default="nobody")
    arrived: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        message = await receive()
        arrived.append((message["body"], message["more_body"], dict(scope["headers"])[b"x-a"], user.get()))
        user.set("changed")
        scope["headers"].append((b"x-a", b"changed"))
        assert "path_params" not in scope
        scope["path_params"] = {}
        await respond(send)

    async def again(request: Recorded) -> None:
        user.set("of the measurement")
        for _ in range(2):
            assert (await request.caller()).body == [b"ok"]

    async def main() -> None:
        user.set("anna")
        await asked(Seen(then=again), app, content=b"tea", headers={"x-a": "1"})

    asyncio.run(main())
    assert arrived == [(b"tea", True, b"1", "anna")] * 3


def test_the_body_is_read_to_its_end_after_an_app_that_left_it_unread() -> None:
    async def pieces() -> Any:
        for piece in (b"a", b"b", b"c"):
            yield piece

    seen = Seen("POST")
    asyncio.run(asked(seen, hello, "POST", content=pieces()))
    assert b"".join(seen.requests[0].caller.template.body) == b"abc"


def test_a_body_that_does_not_end_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder_module, "BODY_S", 0.05)

    async def endless() -> Any:
        yield b"a"
        await asyncio.sleep(60)

    seen = Seen()
    asyncio.run(asked(seen, hello, content=endless()))
    assert seen.reasons == ["its client had not sent the whole body when the app answered"]


def test_what_the_client_raises_for_the_unread_body_does_not_reach_the_test() -> None:
    async def broken() -> Any:
        yield b"a"
        raise LookupError("its own")

    seen = Seen()
    assert asyncio.run(asked(seen, hello, content=broken())).text == "ok"
    assert seen.reasons == ["its client raised LookupError for the part of the body that was not read"]


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
def test_methods_that_change_nothing_are_repeated(method: str) -> None:
    seen = Seen()
    asyncio.run(asked(seen, hello, method))
    assert seen.lines == [f"{method} /"]


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "PURGE"])
def test_other_methods_are_repeated_when_asked_for(method: str) -> None:
    seen, wanted = Seen(), Seen(method)
    for recorder in (seen, wanted):
        assert asyncio.run(asked(recorder, echo, method, content=b"x")).content == b"x"
    assert wanted.lines == [f"{method} /"]
    assert not seen.requests
    assert seen.reasons[0].startswith(f"a {method} request is not repeated automatically")
    assert f"repeat=[{method!r}]" in seen.reasons[0]


def test_the_limit_of_a_repetition_follows_the_first_request(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ns = 0

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        nonlocal now_ns
        now_ns += 100_000_000
        await respond(send)

    monkeypatch.setattr(recorder_module, "perf_counter_ns", lambda: now_ns)
    limits: list[float | None] = []
    for app in (hello, slow):
        seen = Seen()
        asyncio.run(asked(seen, app))
        limits.append(seen.requests[0].caller.limit_s)
    assert limits == [recorder_module.LEAST_LIMIT_S, pytest.approx(0.1 * recorder_module.SLOWER)]


# ---- what cannot be repeated ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [LookupError, asyncio.CancelledError])
def test_what_the_app_raises_reaches_the_test(error: type[BaseException]) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise error

    seen = Seen()
    with pytest.raises(error):
        asyncio.run(asked(seen, app))
    how = "raised" if issubclass(error, Exception) else "was ended by"
    assert seen.reasons == [f"the app {how} {error.__name__}"]


def test_half_a_response_is_not_repeated() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x", "more_body": True})

    seen = Seen()
    with pytest.raises(AssertionError):  # httpx's own
        asyncio.run(asked(seen, app))
    assert seen.reasons == ["the app returned before its response was complete"]


def test_a_stream_is_not_repeated() -> None:
    async def main() -> None:
        async with client_of(hello) as client, client.stream("GET", "/") as response:
            assert await response.aread() == b"ok"

    seen = Seen()
    with recorded(seen.recorder):
        asyncio.run(main())
        with TestClient(hello).stream("GET", "/") as response:
            assert response.read() == b"ok"
    assert seen.reasons == ["its response is read as a stream"] * 2
    assert not seen.requests


def test_a_websocket_is_left_out_unless_it_may_be_repeated() -> None:
    async def greet(websocket: Any) -> None:
        await websocket.accept()
        await websocket.send_text("hi")
        await websocket.close()

    seen = Seen()
    app = Starlette(routes=[WebSocketRoute("/ws", greet)])
    with recorded(seen.recorder), TestClient(app) as client, client.websocket_connect("/ws") as websocket:
        assert websocket.receive_text() == "hi"
    assert [line for line, _ in seen.left_out] == ["WS /ws"]
    assert seen.reasons[0].startswith("a WS request is not repeated automatically; ")
    assert "repeat=['WS']" in seen.reasons[0]
    assert seen.recorder.seen


def test_a_websocket_is_repeated_with_its_messages_and_answers() -> None:
    greeted: list[str] = []

    async def greet(websocket: Any) -> None:
        await websocket.accept()
        await websocket.send_text("welcome")
        async for text in websocket.iter_text():
            greeted.append(text)
            for _ in range(len(text)):
                await websocket.send_text("hi")

    async def again(request: Recorded) -> None:
        for _ in range(50):
            await request.caller()
            await asyncio.sleep(0)  # the client has left, and cancels the task of its session meanwhile

    seen = Seen("WS", then=again)
    app = Starlette(routes=[WebSocketRoute("/ws/{room}", greet)])
    with recorded(seen.recorder), TestClient(app).websocket_connect("/ws/1") as websocket:
        assert websocket.receive_text() == "welcome"
        for text in ("a", "bb"):
            websocket.send_text(text)
            assert [websocket.receive_text() for _ in text] == ["hi"] * len(text)
    (request,) = seen.requests
    assert (request.route, request.caller.status, request.caller.calls) == ("/ws/{room}", 101, 51)
    assert request.caller.template.steps == (Step(None, 1), Step("a", 1), Step("bb", 2))
    assert (seen.left_out, greeted) == ([], ["a", "bb"] * 51)
    assert request.caller.outcome == "had 4 answers"


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_websocket_is_repeated_whose_app_the_client_cancels_when_it_leaves(backend: Any) -> None:
    cleaned: list[bool] = []

    async def clean_up(websocket: Any) -> None:
        await websocket.accept()
        async for text in websocket.iter_text():
            await websocket.send_text(text)
        try:
            await anyio.sleep(60 if seen.recorder.seen and not seen.requests else 0)
        finally:
            cleaned.append(True)

    async def again(request: Recorded) -> None:
        for _ in range(5):
            await request.caller()

    seen = Seen("WS", then=again)
    client = TestClient(Starlette(routes=[WebSocketRoute("/ws", clean_up)]), backend=backend)
    with recorded(seen.recorder), client.websocket_connect("/ws") as websocket:
        websocket.send_text("a")
        assert websocket.receive_text() == "a"
    assert (seen.left_out, len(cleaned)) == ([], 6)
    assert [repeated.caller.calls for repeated in seen.requests] == [6]


def test_a_websocket_is_repeated_whose_app_raises_when_the_client_leaves() -> None:
    async def echo(websocket: Any) -> None:
        await websocket.accept()
        while True:
            await websocket.send_text(await websocket.receive_text())

    def talk() -> None:
        with TestClient(app).websocket_connect("/ws") as websocket:
            websocket.send_text("a")
            assert websocket.receive_text() == "a"

    seen = Seen("WS")
    app = Starlette(routes=[WebSocketRoute("/ws", echo)])
    with recorded(seen.recorder), suppress(WebSocketDisconnect):  # TestClient passes it on to the test
        talk()
    assert (seen.left_out, seen.lines) == ([], ["WS /ws"])


def test_a_refused_websocket_has_a_status() -> None:
    async def refuse(websocket: Any) -> None:
        await websocket.close()

    seen = Seen("WS")
    app = Starlette(routes=[WebSocketRoute("/ws", refuse)])
    with recorded(seen.recorder), pytest.raises(WebSocketDisconnect), TestClient(app).websocket_connect("/ws"):
        raise AssertionError
    assert [request.caller.status for request in seen.requests] == [403]


def test_a_lifespan_is_no_request() -> None:
    seen = Seen()
    with recorded(seen.recorder), TestClient(Starlette()):
        pass
    assert (seen.recorder.seen, seen.left_out) == (False, [])


def test_requests_at_the_same_time_are_left_out() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(0.01)
        await respond(send)

    async def main(seen: Seen) -> None:
        with recorded(seen.recorder):
            async with client_of(app) as client:
                await asyncio.gather(client.get("/a"), client.get("/b"))
                await client.get("/c")

    seen = Seen()
    asyncio.run(main(seen))
    assert seen.left_out == [("GET /a", OVERLAPPED), ("GET /b", OVERLAPPED)]
    assert seen.lines == ["GET /c"]


def test_a_request_during_a_measurement_ends_it() -> None:
    begun, ended = asyncio.Event(), []

    async def until_ended(request: Recorded) -> None:
        begun.set()
        try:
            while True:
                await request.caller()
                await asyncio.sleep(0)
        except MeasurementError as error:
            ended.append(str(error))

    async def main(seen: Seen) -> None:
        with recorded(seen.recorder):
            async with client_of(hello) as client:
                first = asyncio.create_task(client.get("/a"))
                await begun.wait()
                await client.get("/b")
                await first

    seen = Seen(then=until_ended)
    asyncio.run(main(seen))
    assert ended == [OVERLAPPED]
    assert seen.left_out == [("GET /b", OVERLAPPED)]


def test_a_request_of_the_app_to_another_app_is_left_out_once() -> None:
    async def outer(scope: Any, receive: Any, send: Any) -> None:
        async with client_of(hello) as client:
            await respond(send, (await client.get("/inner")).content)

    async def again(request: Recorded) -> None:
        await request.caller()

    seen = Seen(then=again)
    assert asyncio.run(asked(seen, outer, path="/outer")).text == "ok"
    assert seen.lines == ["GET /outer"]
    assert seen.left_out == [("GET /inner", "it was made inside another request of the test")]


def test_requests_from_threads_pass_through() -> None:
    seen = Seen()
    answers: list[int] = []
    with recorded(seen.recorder):
        client = TestClient(hello)
        threads = [threading.Thread(target=lambda: answers.append(client.get("/").status_code)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert answers == [200] * 4
    assert len(seen.requests) + len(seen.left_out) == 4


# ---- messages of extensions, and those that the client ignores ------------------------------------------------------

START = {"type": "http.response.start", "status": 200, "headers": []}
BODY = {"type": "http.response.body", "body": b"ok"}
TRAILERS = {"type": "http.response.trailers", "headers": [(b"checksum", b"1")]}
HINT = {"type": "http.response.early_hint", "links": []}
PUSH = {"type": "http.response.push", "path": "/style.css", "headers": []}
DEBUG = {"type": "http.response.debug", "info": {}}


def sending(*messages: dict[str, Any] | None, ways: list[object]) -> App:
    """An app that sends messages, and notes the extensions in its scope and what `send` refused; None receives."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        refused = []
        for message in messages:
            if message is None:
                await receive()
                continue
            try:
                await send(message)
            except Exception:
                refused.append(message["type"])
        ways.append((scope.get("extensions"), refused))

    return app


async def three_more(request: Recorded) -> None:
    for _ in range(3):
        await request.caller()


def asked_by(client: str, app: App) -> httpx.Response:
    """Make a request with one of the clients: httpx, or Starlette's on a loop."""
    if client == "httpx":
        return asyncio.run(asked_alone(app))
    backend: Any = client
    return TestClient(app, backend=backend).get("/")  # type: ignore[no-any-return]


async def asked_alone(app: App) -> httpx.Response:
    async with client_of(app) as client:
        return await client.get("/")


@pytest.mark.parametrize("client", ["httpx", "asyncio", "trio"])
@pytest.mark.parametrize(
    "messages",
    [
        (HINT, PUSH, START, BODY),
        (DEBUG, START, HINT, BODY),
        (START, BODY, DEBUG, HINT),
        ({**START, "trailers": False}, BODY),
    ],
)
def test_a_repetition_takes_what_the_client_took(client: str, messages: Any) -> None:
    ways: list[object] = []
    seen = Seen(then=three_more)
    with recorded(seen.recorder):
        assert asked_by(client, sending(*messages, ways=ways)).text == "ok"
    assert (seen.left_out, len(ways), ways.count(ways[0])) == ([], 4, 4)


def test_messages_that_only_a_repetition_sends_are_taken_as_the_client_would() -> None:
    seen, calls = Seen(then=three_more), []

    async def now_and_then(scope: Any, receive: Any, send: Any) -> None:
        calls.append(1)
        if len(calls) > 1:
            await send(HINT)
        await respond(send)

    with recorded(seen.recorder):
        assert TestClient(now_and_then).get("/").text == "ok"
    assert (seen.left_out, len(calls)) == ([], 4)


def test_a_repetition_refuses_what_the_client_refused() -> None:
    ways: list[Any] = []

    async def refusing(scope: Any, receive: Any, send: Any) -> None:
        async def of_a_client(message: Any) -> None:
            if message["type"] == HINT["type"]:
                raise AssertionError
            await send(message)

        await recorder.called(sending(HINT, START, BODY, ways=ways), scope, receive, of_a_client)

    seen = Seen(then=three_more)
    recorder = seen.recorder
    assert TestClient(refusing).get("/").text == "ok"
    assert (seen.left_out, [refused for _, refused in ways]) == ([], [[HINT["type"]]] * 4)


@pytest.mark.parametrize("client", ["asyncio", "trio"])
def test_a_repetition_offers_what_the_first_request_offered(client: str) -> None:
    ways: list[Any] = []
    app = sending({**START, "trailers": True}, BODY, TRAILERS, ways=ways)
    after: list[str] = []

    async def with_trailers(scope: Any, receive: Any, send: Any) -> None:
        scope["extensions"].setdefault("http.response.trailers", {})  # an older client offers none
        await recorder.called(waiting_for_the_end, scope, receive, send)

    async def waiting_for_the_end(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await app(scope, receive, send)
        after.append((await receive())["type"])

    seen = Seen(then=three_more)
    recorder = seen.recorder
    assert asked_by(client, with_trailers).text == "ok"
    assert "http.response.trailers" in ways[0][0]
    assert (seen.left_out, ways, after) == ([], [ways[0]] * 4, ["http.disconnect"] * 4)


def test_a_repetition_whose_trailers_do_not_come_is_incomplete() -> None:
    calls: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        calls.append(1)
        await sending({**START, "trailers": True}, BODY, *[TRAILERS][len(calls) - 1 :], ways=[])(scope, receive, send)

    async def with_trailers(scope: Any, receive: Any, send: Any) -> None:
        scope["extensions"].setdefault("http.response.trailers", {})
        await recorder.called(app, scope, receive, send)

    async def again(request: Recorded) -> None:
        with pytest.raises(ResponseError, match="trailers"):
            await request.caller()

    seen = Seen(then=again)
    recorder = seen.recorder
    assert TestClient(with_trailers).get("/").text == "ok"
    assert (seen.left_out, len(calls)) == ([], 2)


def test_a_file_that_the_client_sends_itself_is_the_body() -> None:
    ways: list[object] = []
    path = {"type": "http.response.pathsend", "path": "/etc/hostname"}

    async def offering(scope: Any, receive: Any, send: Any) -> None:
        async def of_a_client(message: Any) -> None:
            await send(BODY if message is path else message)

        scope["extensions"] = {"http.response.pathsend": {}}
        await recorder.called(sending(START, path, ways=ways), scope, receive, of_a_client)

    seen = Seen(then=three_more)
    recorder = seen.recorder
    assert TestClient(offering).get("/").text == "ok"
    assert (seen.left_out, ways) == ([], [({"http.response.pathsend": {}}, [])] * 4)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize(
    ("messages", "status"),
    [
        ([{"type": "websocket.accept"}, {"type": "websocket.debug"}, {"type": "websocket.send", "text": "a"}], 101),
        (
            [
                None,
                {"type": "websocket.accept"},
                None,
                {"type": "websocket.send", "text": "a"},
                {"type": "websocket.close"},
                {"type": "websocket.close"},
                {"type": "websocket.send", "text": "late"},
            ],
            101,
        ),
        (
            [
                {"type": "websocket.http.response.start", "status": 418, "headers": []},
                {"type": "websocket.http.response.body", "body": b"a", "more_body": True},
                {"type": "websocket.http.response.body", "body": b"b"},
                {"type": "websocket.http.response.debug"},
            ],
            418,
        ),
    ],
)
def test_a_repeated_connection_takes_what_the_client_took(backend: Any, messages: Any, status: int) -> None:
    ways: list[object] = []
    seen = Seen("WS", then=three_more)
    client = TestClient(sending(*messages, ways=ways), backend=backend)
    with recorded(seen.recorder), suppress(WebSocketDisconnect), client.websocket_connect("/ws") as websocket:
        websocket.send_text("hi")
        while websocket.receive().get("text") != "a":
            pass
    assert (seen.left_out, [request.caller.status for request in seen.requests]) == ([], [status])
    assert ways == [({"websocket.http.response": {}}, [])] * 4


# ---- clients --------------------------------------------------------------------------------------------------------


def methods() -> list[object]:
    return [vars(owner).get(name) for owner, name in PATCHED]


def test_clients_are_patched_in_the_block_only() -> None:
    before = methods()
    with recorded(Seen().recorder):
        assert all(now is not then for now, then in zip(methods(), before, strict=True))
        finders = len(sys.meta_path)
    assert methods() == before
    assert len(sys.meta_path) == finders - 1


def test_clients_are_restored_after_an_exception() -> None:
    before = methods()
    with pytest.raises(LookupError), recorded(Seen().recorder):
        raise LookupError
    assert methods() == before


def test_what_the_test_patches_itself_stays_and_records_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Seen()
    transport = httpx.ASGITransport
    monkeypatch.setattr(transport, "handle_async_request", transport.handle_async_request)  # restores it afterwards
    with recorded(seen.recorder):
        kept = transport.handle_async_request

        async def of_the_test(self: Any, request: Any) -> Any:
            return await kept(self, request)

        transport.handle_async_request = of_the_test
    assert transport.handle_async_request is of_the_test

    async def main() -> None:
        async with client_of(hello) as client:
            assert (await client.get("/")).text == "ok"

    asyncio.run(main())
    assert not seen.requests
    assert not seen.recorder.seen


def test_clients_are_restored_in_whatever_order_recorders_end() -> None:
    before, blocks, seen = methods(), [], Seen()
    for recorder in (Seen().recorder, Seen().recorder, seen.recorder):
        blocks.append(recorded(recorder))
        blocks[-1].__enter__()
    for number in (1, 0):
        blocks[number].__exit__(None, None, None)
    assert TestClient(hello).get("/").text == "ok"
    assert seen.lines == ["GET /"]
    blocks[2].__exit__(None, None, None)
    assert methods() == before


def test_what_a_test_puts_back_late_is_not_recorded_twice() -> None:
    before, late, seen = methods(), pytest.MonkeyPatch(), Seen()
    with recorded(Seen().recorder):
        late.setattr(TestClient, "send", TestClient.send)
    late.undo()
    assert methods() != before
    with recorded(seen.recorder):
        assert TestClient(hello).get("/").text == "ok"
    assert (seen.lines, methods()) == (["GET /"], before)


def test_a_client_of_another_build_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def without(module: Any, recorder: Any) -> Any:
        yield module.NoSuchTransport, "handle", None

    monkeypatch.setitem(CLIENTS, httpx.__name__, without)
    seen = Seen()
    assert asyncio.run(asked(seen, hello)).text == "ok"
    assert seen.recorder.unknown == [httpx.__name__]
    assert not seen.requests


def test_a_client_whose_transport_has_another_name_and_methods_that_call_each_other_records_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handle = starlette.testclient._TestClientTransport.handle_request

    class OfAnotherVersion(starlette.testclient._TestClientTransport):
        def handle_request(self, request: Any) -> Any:
            return asyncio.run(self.handle_async_request(request))

        async def handle_async_request(self, request: Any) -> Any:
            return await asyncio.to_thread(handle, self, request)

    OfAnotherVersion.__module__ = starlette.testclient.__name__
    monkeypatch.setattr(starlette.testclient, "_TestClientTransport", OfAnotherVersion)
    seen = Seen()
    with recorded(seen.recorder):
        assert TestClient(hello).get("/").text == "ok"
    assert (seen.lines, seen.left_out, seen.recorder.unknown) == (["GET /"], [], [])


def test_a_client_that_has_its_app_elsewhere_is_named_and_works(monkeypatch: pytest.MonkeyPatch) -> None:
    def elsewhere(module: Any, recorder: Recorder) -> Any:
        yield module.ASGITransport, "handle_async_request", _recording("wrapped.app", module, recorder)

    monkeypatch.setitem(CLIENTS, httpx.__name__, elsewhere)
    seen = Seen()
    for _ in range(2):
        assert asyncio.run(asked(seen, hello)).text == "ok"
    assert (seen.recorder.unknown, seen.lines) == ([httpx.__name__], [])


def test_a_client_whose_module_has_two_names_records_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("httpx", "httpx2"):
        monkeypatch.setitem(sys.modules, name, httpx)
    seen = Seen()
    assert asyncio.run(asked(seen, hello)).text == "ok"
    assert seen.lines == ["GET /"]
    assert not seen.left_out


def test_a_client_whose_import_the_test_has_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "django.test.client", None)
    seen = Seen()
    assert asyncio.run(asked(seen, hello)).text == "ok"
    assert seen.lines == ["GET /"]
    assert not seen.recorder.unknown


def test_async_methods_stay_async() -> None:
    with recorded(Seen().recorder):
        assert [inspect.iscoroutinefunction(method) for method in methods()] == [True, True, False, False]


def test_a_client_that_is_imported_in_the_test_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "late_client.py").write_text("class Client:\n    def call(self): return 'called'\n")

    def late(module: Any, recorder: Recorder) -> Any:
        yield module.Client, "call", lambda original: lambda self: f"recorded {original(self)}"

    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(CLIENTS, "late_client", late)
    with recorded(Seen().recorder):
        import late_client  # type: ignore[import-not-found]

        assert late_client.Client().call() == "recorded called"
        assert late_client.__loader__.exec_module.__self__ is late_client.__loader__  # its own method again
    assert late_client.Client().call() == "called"
    del sys.modules["late_client"]


def test_an_import_that_fails_in_the_test_fails_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "late_client.py").write_text("raise LookupError('its own')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(CLIENTS, "late_client", lambda *_: iter(()))
    monkeypatch.setitem(CLIENTS, "no_such_client", lambda *_: iter(()))
    with recorded(Seen().recorder):
        with pytest.raises(LookupError, match="its own"):
            import late_client  # noqa: F401
        with pytest.raises(ModuleNotFoundError):
            import no_such_client  # type: ignore[import-not-found]  # noqa: F401


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_starlettes_client(backend: Any) -> None:
    seen = Seen()
    app = Starlette(routes=[Route("/x", lambda request: PlainTextResponse("ok"))])
    with recorded(seen.recorder):
        assert TestClient(app, backend=backend).get("/x").text == "ok"
        with TestClient(app, backend=backend) as client:
            assert client.get("/x", params={"a": "b"}).text == "ok"
    assert seen.lines == ["GET /x", "GET /x?a=b"]
    assert [request.caller.loop.name for request in seen.requests] == [backend] * 2


def test_a_stand_in_has_other_values_and_the_rest_of_its_object() -> None:
    real = SimpleNamespace(app="app", other="other")
    instead: Any = Instead(real, app="recorded")
    assert (instead.app, instead.other) == ("recorded", "other")
    instead.new = 1
    assert (real.new, real.app) == (1, "app")


# ---- signals --------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform == "win32", reason="no signal can be sent to this process alone")
@pytest.mark.parametrize("name", ["SIGINT", "SIGALRM"])
def test_a_signal_during_a_request_ends_its_measurement(name: str) -> None:
    number = getattr(signal, name)
    ended: list[str] = []

    async def until_ended(request: Recorded) -> None:
        await asyncio.sleep(0.05)  # by then the main thread waits for the response
        os.kill(os.getpid(), number)
        try:
            while True:
                await request.caller()
                await asyncio.sleep(0)
        except (MeasurementError, asyncio.CancelledError) as error:  # old versions of the client cancel the app
            ended.append(str(error))

    def raising(*_: object) -> None:
        raise InterruptedByTestError

    seen = Seen(then=until_ended)
    before = signal.signal(number, raising)
    try:
        with recorded(seen.recorder), pytest.raises(InterruptedByTestError):
            TestClient(hello).get("/")
        assert signal.getsignal(number) is raising
    finally:
        signal.signal(number, before)
    assert seen.recorder.interrupted == name
    assert len(ended) == 1


@pytest.mark.parametrize("library", ["asyncio", "uvloop"])
@pytest.mark.parametrize("name", ["SIGINT", "SIGALRM"])
def test_a_request_that_outlives_its_loop_leaves_no_handler_behind(name: str, library: str) -> None:
    def own(*_: object) -> None:
        pass

    new_event_loop = pytest.importorskip(library).new_event_loop
    number, begun = getattr(signal, name), asyncio.Event()

    async def until_cancelled(request: Recorded) -> None:
        begun.set()
        while True:
            await request.caller()
            await asyncio.sleep(0)

    async def main() -> None:
        client = client_of(hello)
        requests.append(asyncio.create_task(client.get("/")))
        await begun.wait()

    seen, requests = Seen(then=until_cancelled), []
    usual = signal.default_int_handler if name == "SIGINT" else own
    before = signal.signal(number, usual)
    try:
        with recorded(seen.recorder), asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(main())
        assert signal.getsignal(number) is usual
    finally:
        signal.signal(number, before)
    assert requests[0].cancelled()


def test_handlers_are_given_back_in_any_order() -> None:
    notes: list[list[str]] = [[] for _ in range(4)]
    passed_on: list[str] = []

    def own(*_: object) -> None:
        passed_on.append("own")

    before = signal.signal(signal.SIGALRM, own)
    blocks = [noting_signals(noted.append, ("SIGALRM",)) for noted in notes]
    try:
        for block in blocks:
            block.__enter__()
        for number in (1, 3, 0):
            blocks[number].__exit__(None, None, None)
        signal.raise_signal(signal.SIGALRM)
        assert (notes, passed_on) == ([[], [], ["SIGALRM"], []], ["own"])
        blocks[2].__exit__(None, None, None)
        assert signal.getsignal(signal.SIGALRM) is own
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_handler_that_the_test_sets_stays() -> None:
    def own(*_: object) -> None:
        pass

    before = signal.getsignal(signal.SIGINT)
    try:
        with noting_signals(lambda name: None):
            signal.signal(signal.SIGINT, own)
        assert signal.getsignal(signal.SIGINT) is own
    finally:
        signal.signal(signal.SIGINT, before)


def test_no_handler_is_set_in_another_thread() -> None:
    before = signal.getsignal(signal.SIGINT)
    handlers: list[object] = []

    def look() -> None:
        with noting_signals(lambda name: None):
            handlers.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert handlers == [before]


# ---- messages and scope ---------------------------------------------------------------------------------------------


async def _sent(message: Any) -> None:
    pass


def received(*messages: dict[str, Any]) -> Callable[[], Any]:
    rest = list(messages)

    async def receive() -> dict[str, Any]:
        return rest.pop(0)

    return receive


@pytest.mark.parametrize(
    ("messages", "body"),
    [
        ([{"type": "http.request"}], (b"",)),
        ([{"type": "http.request", "body": bytearray(b"ab")}], (b"ab",)),
        (
            [{"type": "http.request", "body": b"a", "more_body": True}, {"type": "http.request", "body": b"b"}],
            (b"a", b"b"),
        ),
        ([{"type": "http.disconnect"}], (b"",)),
        ([{"type": "http.request", "body": b"a", "more_body": True}, {"type": "http.disconnect"}], (b"a",)),
    ],
)
def test_a_passage_notes_the_body(messages: list[dict[str, Any]], body: tuple[bytes, ...]) -> None:
    assert asyncio.run(Passage(received(*messages), _sent).body()) == body


def test_a_passage_notes_what_came_of_the_response() -> None:
    passage = Passage(received(), _sent)

    async def main() -> list[tuple[int | None, bool]]:
        states = [(passage.status, passage.complete)]
        for message in (
            {"type": "http.response.debug", "info": {}},
            {"type": "http.response.start", "status": 418},
            {"type": "http.response.body", "more_body": True},
            {"type": "http.response.body"},
        ):
            await passage.send(message)
            states.append((passage.status, passage.complete))
        return states

    assert asyncio.run(main()) == [(None, False), (None, False), (418, False), (418, False), (418, True)]


def test_a_message_that_the_client_refuses_is_not_part_of_the_response() -> None:
    async def refuse(message: Any) -> None:
        raise AssertionError

    passage = Passage(received(), refuse)
    with pytest.raises(AssertionError):
        asyncio.run(passage.send({"type": "http.response.start", "status": 200}))
    assert passage.status is None


def test_a_scope_is_copied_with_its_containers() -> None:
    app, state = object(), {"db": object()}
    original = scope(app=app, state=state, server=("shop", 80), extensions={"tls": {}, "http.response.debug": {}})
    copy = copied(original)
    assert copy["app"] is app
    assert copy["state"] == state
    assert copy["state"]["db"] is state["db"]
    for key in ("state", "headers"):
        assert copy[key] is not original[key]
    assert copy["extensions"] == original["extensions"]
    copy["extensions"]["of the app"] = {}
    assert original["extensions"] == {"tls": {}, "http.response.debug": {}}


@pytest.mark.parametrize(
    ("values", "url"),
    [
        ({"path": "/a b"}, "/a%20b"),
        ({"path": "/é", "raw_path": None}, "/%C3%A9"),
        ({"path": "/a", "raw_path": b"/%61?x=1", "query_string": b"x=1"}, "/%61?x=1"),
        ({"path": "/a", "query_string": b"x=%20"}, "/a?x=%20"),
        ({"path": "/a", "query_string": "x=1"}, "/a?x=1"),  # Django's AsyncClient
    ],
)
def test_the_line_of_a_request(values: dict[str, Any], url: str) -> None:
    assert line_of(scope(**values)) == RequestLine("GET", url)
    assert line_of(scope(**values, type="websocket")) == RequestLine("WS", url)  # Quart's client names a method too


@pytest.mark.parametrize(
    ("values", "route"),
    [
        ({"path": "/items/1"}, "/items/1"),
        ({"path": "/items/1", "path_template": "/items/{n:int}"}, "/items/{n:int}"),
        ({"path": "/items/1", "route": SimpleNamespace(path_format="/items/{n}")}, "/items/{n}"),
        ({"path": "/api/1", "root_path": "/api", "route": SimpleNamespace(path="/{n}")}, "/api/{n}"),
        ({"path": "/items/1", "route": SimpleNamespace(path=None)}, "/items/1"),
        ({"path": "/items/1", "path_params": {"n": 1}}, "/items/{n}"),  # Starlette before it noted its route
        ({"path": "/1/1", "path_params": {"n": "1"}}, "/1/1"),
        ({"path": "/files/a/b", "path_params": {"name": "a/b"}}, "/files/{name}"),
    ],
)
def test_the_route_of_a_request(values: dict[str, Any], route: str) -> None:
    assert route_of(scope(**values)) == route


def test_routes_of_starlette_behind_a_mount() -> None:
    app = Starlette(
        routes=[Mount("/api", routes=[Route("/items/{n}", lambda request: PlainTextResponse("ok"))])],
    )
    seen = Seen()
    with recorded(seen.recorder):
        for number in (1, 2):
            assert TestClient(app).get(f"/api/items/{number}").text == "ok"
    assert len(seen.requests) == 2
