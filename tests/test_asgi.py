"""The app's loading, requests, calls and responses. See test_lifespan for startup and shutdown."""

from __future__ import annotations

import asyncio
import gzip
import sys
import time
import types
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from starlette.responses import StreamingResponse

from pytest_mwbudget.asgi import loops, server
from pytest_mwbudget.asgi.app import NamedApp, checked_app
from pytest_mwbudget.asgi.request import BODY_CHUNK_BYTES, build_request
from pytest_mwbudget.errors import AppError, MeasurementError, RepetitionError, ResponseError
from pytest_mwbudget.model.results import LoopName

from .apps import App, Endpoint, Noop, RateLimit, caller, echo, hello, measured, respond


def exchanged(app: App, method: str = "GET", url: str = "/", calls: int = 1, **options: Any) -> list[server.Exchange]:
    async def main() -> list[server.Exchange]:
        call = await caller(app, method, url, **options)
        return [await call() for _ in range(calls)]

    return asyncio.run(main())


def scopes(url: str = "/", calls: int = 1, **options: Any) -> list[dict[str, Any]]:
    seen: list[dict[str, Any]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope)
        await respond(send)

    exchanged(app, url=url, calls=calls, **options)
    return seen


# ---- scope ------------------------------------------------------------------------------------------------------


def test_scope_is_what_uvicorn_builds() -> None:
    [scope] = scopes("/caf%C3%A9/a%2Fb?q=1&q=%20", headers={"X-Token": "T"})
    headers = dict(scope.pop("headers"))
    assert scope == {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "server": ("testserver", 80),
        "client": ("127.0.0.1", 50000),
        "scheme": "http",
        "method": "GET",
        "root_path": "",
        "path": "/café/a/b",
        "raw_path": b"/caf%C3%A9/a%2Fb",
        "query_string": b"q=1&q=%20",
        "state": {},
    }
    assert headers[b"host"] == b"testserver"
    assert headers[b"x-token"] == b"T"
    assert {b"accept", b"accept-encoding", b"user-agent"} <= headers.keys()


def test_undecodable_path_is_replaced() -> None:
    [scope] = scopes("/%ff")
    assert scope["path"] == "/\ufffd"


def test_https_and_port() -> None:
    assert scopes("https://example.org/")[0]["server"] == ("example.org", 443)
    [scope] = scopes("https://example.org:8443/")
    assert (scope["scheme"], scope["server"]) == ("https", ("example.org", 8443))


def test_every_call_has_a_scope_of_its_own() -> None:
    pool: list[int] = []
    first, second = scopes(calls=2, state={"pool": pool})
    assert first is not second
    for key in ("asgi", "headers", "state"):
        assert first[key] == second[key]
        assert first[key] is not second[key]
    assert first["state"]["pool"] is second["state"]["pool"] is pool


def test_a_key_added_to_the_state_does_not_reach_the_next_call() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert "user" not in scope["state"]
        scope["state"]["user"] = "u"
        await respond(send)

    state: dict[str, Any] = {"pool": 1}
    exchanged(app, calls=3, state=state)
    assert state == {"pool": 1}


# ---- request ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "body"),
    [
        ({"json": [1]}, b"[1]"),
        ({"data": {"a": "1 2"}}, b"a=1+2"),
        ({"content": b"raw"}, b"raw"),
        ({"content": [b"one,", b"two"]}, b"one,two"),
        ({}, b""),
    ],
)
def test_bodies(options: dict[str, Any], body: bytes) -> None:
    for exchange in exchanged(echo, "POST", calls=2, **options):
        assert exchange.response().content == body


def test_an_upload() -> None:
    [exchange] = exchanged(echo, "POST", files={"f": ("name.txt", b"contents")})
    assert b'filename="name.txt"' in exchange.response().content
    assert b"contents" in exchange.response().content


def test_an_asynchronous_body() -> None:
    async def pieces() -> Any:
        yield b"one,"
        yield b"two"

    async def main() -> None:
        call = await caller(echo, "POST", content=pieces())
        assert (await call()).response().content == (await call()).response().content == b"one,two"

    asyncio.run(main())


def messages_of(calls_receive: int, **options: Any) -> list[dict[str, Any]]:
    got: list[dict[str, Any]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        got.extend([await receive() for _ in range(calls_receive)])
        await respond(send)

    exchanged(app, "POST", **options)
    return got


def test_a_large_body_comes_in_pieces() -> None:
    size = 2 * BODY_CHUNK_BYTES + 1
    got = messages_of(3, content=b"x" * size)
    assert [len(message["body"]) for message in got] == [BODY_CHUNK_BYTES, BODY_CHUNK_BYTES, 1]
    assert [message["more_body"] for message in got] == [True, True, False]


def test_an_empty_body_is_one_message() -> None:
    assert messages_of(1) == [{"type": "http.request", "body": b"", "more_body": False}]


def test_cookies_and_params() -> None:
    [scope] = scopes("/", cookies={"c": "1"}, params={"p": "2"})
    assert dict(scope["headers"])[b"cookie"] == b"c=1"
    assert scope["query_string"] == b"p=2"


def test_building_a_request_looks_at_no_proxy_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "nonsense://nowhere")
    assert build_request("GET", "/", {}).url == "http://testserver/"


# ---- receive and send -------------------------------------------------------------------------------------------


def test_receive_blocks_until_the_response_is_complete_and_then_disconnects() -> None:
    order: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        async def listen() -> None:
            order.append((await receive())["type"])

        await receive()
        listener = asyncio.create_task(listen())
        await asyncio.sleep(0)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for number in range(3):
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
            await asyncio.sleep(0)
            order.append(f"sent {number}")
        await send({"type": "http.response.body", "body": b""})
        await listener
        order.append((await receive())["type"])

    exchanged(app)
    assert order == ["sent 0", "sent 1", "sent 2", "http.disconnect", "http.disconnect"]


@pytest.mark.parametrize(
    ("kinds", "message"),
    [
        (["body"], "Expected ASGI message 'http.response.start', but got 'http.response.body'"),
        (["start", "start"], "Expected ASGI message 'http.response.body', but got 'http.response.start'"),
        (["start", "body", "body"], "'http.response.body' sent, after response already completed"),
        (["start", "body", "start"], "'http.response.start' sent, after response already completed"),
        (["other"], "Expected ASGI message 'http.response.start', but got 'http.response.other'"),
    ],
)
def test_messages_out_of_order_are_refused(kinds: list[str], message: str) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        for kind in kinds:
            await send({"type": f"http.response.{kind}", "status": 200})

    with pytest.raises(RuntimeError, match=message):
        exchanged(app)


def test_streamed_response() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"x-a", b"1"), (b"x-a", b"2")]})
        for piece in (b"a", b"b", b"c"):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body"})

    [exchange] = exchanged(app)
    assert exchange.response().content == b"abc"
    assert exchange.response().headers.get_list("x-a") == ["1", "2"]


def test_compressed_response_is_decoded() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await respond(send, gzip.compress(b"plain"), headers=[(b"content-encoding", b"gzip")])

    assert exchanged(app)[0].response().text == "plain"


def test_a_body_that_is_not_what_its_encoding_says_is_explained() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await respond(send, b"plain", headers=[(b"content-encoding", b"gzip")])

    [exchange] = exchanged(app)
    with pytest.raises(ResponseError, match="the body cannot be decoded as its content-encoding 'gzip' says"):
        exchange.response()
    assert exchange.excerpt() == "The body has 1 pieces, of which the first 1 are no whole response."


def test_an_app_that_returns_no_awaitable_is_explained() -> None:
    with pytest.raises(AppError, match="which returned 5 where an ASGI app returns an awaitable; make it `async def`"):
        exchanged(lambda scope, receive, send: 5)


def test_head_has_no_body() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await respond(send, b"dropped", headers=[(b"content-length", b"7")])

    [exchange] = exchanged(app, "HEAD")
    assert exchange.response().content == b""
    assert exchange.response().headers["content-length"] == "7"


def test_redirects_are_not_followed() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await respond(send, b"", 307, [(b"location", b"/there")])

    [exchange] = exchanged(app)
    assert exchange.response().status_code == 307
    assert exchange.response().is_redirect


def test_what_runs_after_the_response_runs_before_the_call_ends() -> None:
    ran: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await respond(send)
        await asyncio.sleep(0)
        ran.append(1)

    exchanged(app, calls=3)
    assert ran == [1, 1, 1]


def test_every_call_has_a_task_and_a_context_of_its_own() -> None:
    variable: ContextVar[int] = ContextVar("variable", default=0)
    tasks: set[Any] = set()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert variable.get() == 0
        variable.set(1)
        tasks.add(asyncio.current_task())
        await respond(send)

    exchanged(app, calls=3)
    assert len(tasks) == 3


@pytest.fixture(params=["asyncio", "uvloop", "trio"])
def loop(request: pytest.FixtureRequest) -> LoopName:
    """Each loop that is installed."""
    pytest.importorskip(request.param)
    name: LoopName = request.param
    return name


def called(app: App, loop: LoopName, calls: int = 1) -> list[server.Exchange]:
    """Call the app on this loop."""

    async def main() -> list[server.Exchange]:
        call = await caller(app)
        assert call.loop.name == loop
        return [await call() for _ in range(calls)]

    return loops.run(loop, main)


def test_a_call_is_the_same_on_every_loop(loop: LoopName) -> None:
    variable: ContextVar[int] = ContextVar("variable", default=0)
    tasks: list[object] = []
    received: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert variable.get() == 0
        variable.set(1)
        tasks.append(loops.current().task())
        received.append((await receive())["type"])
        await respond(send)
        received.append((await receive())["type"])

    exchanges = called(app, loop, calls=3)
    assert [exchange.response().text for exchange in exchanges] == ["ok"] * 3
    assert len(set(map(id, tasks))) == 3
    assert received == ["http.request", "http.disconnect"] * 3


def test_an_exception_of_the_app_comes_out_as_it_is_on_every_loop(loop: LoopName) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise LookupError("no such shelf")

    with pytest.raises(LookupError, match="no such shelf") as caught:
        called(app, loop)
    assert caught.value.__cause__ is None


def test_an_app_that_does_not_end_is_cancelled_on_every_loop(loop: LoopName) -> None:
    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        try:
            await receive()
        finally:
            seen.append("cancelled")

    async def main() -> None:
        call = await caller(app)
        async with call.loop.limited(0.05):
            await call()

    with pytest.raises(loops.OutOfTimeError):
        loops.run(loop, main)
    assert seen == ["cancelled"]


def pieces(ends: list[str]) -> Iterator[bytes]:
    """Yield a body for a minute, much longer than the time limits of these tests, also on a busy machine."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        yield b"x"
    ends.append("of the body")


def plain_stream(ends: list[str]) -> App:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200})
        for piece in pieces(ends):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body"})

    return app


def streaming_response(ends: list[str]) -> App:
    async def body() -> AsyncIterator[bytes]:
        for piece in pieces(ends):
            yield piece

    return StreamingResponse(body())


@pytest.mark.parametrize("stream", [plain_stream, streaming_response])
def test_a_stream_that_never_suspends_meets_the_limit_on_every_loop(
    stream: Callable[[list[str]], App], loop: LoopName
) -> None:
    ends: list[str] = []

    async def main() -> None:
        call = await caller(stream(ends))
        async with call.loop.limited(0.05):
            await call()

    with pytest.raises(loops.OutOfTimeError):
        loops.run(loop, main)
    assert not ends


def test_only_the_first_call_gives_the_loop_a_turn() -> None:
    turns: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        turned: list[int] = []
        asyncio.get_running_loop().call_soon(turned.append, 1)
        await send({"type": "http.response.start", "status": 200})
        for _ in range(2 * server.MESSAGES_PER_TURN):
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
        await send({"type": "http.response.body"})
        turns.append(len(turned))

    exchanges = exchanged(app, calls=3)
    assert turns == [1, 0, 0]
    assert {exchange.response().text for exchange in exchanges} == {"x" * 2 * server.MESSAGES_PER_TURN}


def test_time_inside_the_app() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await respond(send)
        await asyncio.sleep(0.01)

    assert exchanged(app)[0].elapsed_ns >= 9_000_000


# ---- what is refused --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        ([], "sent no response"),
        ([{"type": "http.response.start", "status": 202}], "began a response with status 202"),
        (
            [
                {"type": "http.response.start", "status": 202},
                {"type": "http.response.body", "body": b"x", "more_body": True},
            ],
            "before the response was complete",
        ),
    ],
)
def test_an_incomplete_response(sent: list[dict[str, Any]], said: str) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        for message in sent:
            await send(message)

    with pytest.raises(ResponseError, match=said):
        exchanged(app)


def start(**values: Any) -> dict[str, Any]:
    return {"type": "http.response.start", "status": 200, "headers": []} | values


@pytest.mark.parametrize("swallowed", [False, True])
@pytest.mark.parametrize(
    ("sent", "said"),
    [
        ([start(headers=[("a", "b")])], r"the header \('a', 'b'\), where ASGI wants a name and a value in bytes"),
        ([start(headers=[(b"a", "b")])], r"the header \(b'a', 'b'\), where"),
        ([start(headers=[[b"a", b"b"], (b"a",)])], r"the header \(b'a',\), where"),
        ([start(headers={"a": "b"})], "the header 'a', where"),
        ([start(headers=None)], "the headers None in http.response.start, where ASGI wants pairs of bytes"),
        ([start(status="200")], "the status '200' in http.response.start, where ASGI wants an int"),
        ([start(), {"type": "http.response.body", "body": "text"}], "the body 'text' in .*, where ASGI wants bytes"),
        ([start(), {"type": "http.response.body", "body": None}], "the body None in .*, where ASGI wants bytes"),
        ([{"status": 200}], "sent {'status': 200}, where ASGI wants a dict with a 'type'"),
        (["text"], "sent 'text', where ASGI wants a dict"),
    ],
)
def test_messages_of_other_kinds_than_asgi_wants(sent: list[Any], said: str, swallowed: bool) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        try:
            for message in [*sent, {"type": "http.response.body"}]:
                await send(message)
        except Exception:
            if not swallowed:
                raise

    with pytest.raises(ResponseError, match=f"^GET /: the app .*{said}.*; nothing was measured"):
        exchanged(app)


async def teapot(scope: Any, receive: Any, send: Any) -> None:
    await respond(send, b"short and stout" + b"." * 1000, 418)


def test_an_error_status_is_refused_with_the_start_of_the_body() -> None:
    with pytest.raises(ResponseError, match=r"GET /pot.* answered 418.*expect_status=418") as caught:
        exchanged(teapot, url="/pot?a=b")
    assert "short and stout" in str(caught.value)
    assert str(caught.value).endswith(". …")
    assert len(str(caught.value)) < 800


def test_an_expected_error_status_is_accepted() -> None:
    assert exchanged(teapot, expect_status=418)[0].status == 418


def test_another_status_than_the_expected_one_is_refused() -> None:
    with pytest.raises(ResponseError, match="answered 200, expected 201"):
        exchanged(hello, expect_status=201)


def test_a_status_that_changes_is_refused_at_the_call_that_changes_it() -> None:
    with pytest.raises(ResponseError, match=r"call 4 answered 429, the calls before it 200.*rate limit") as caught:
        exchanged(RateLimit(hello, 3), calls=10)
    assert "slow down" in str(caught.value)


def test_a_rate_limit_ends_a_measurement() -> None:
    with pytest.raises(ResponseError, match="answered 429, the calls before it 200"):
        measured(Noop(RateLimit(hello, 150)))


def test_an_exception_of_the_app_comes_out_as_it_is() -> None:
    error = LookupError("no such shelf")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise error

    with pytest.raises(LookupError) as caught:
        exchanged(app)
    assert caught.value is error
    assert caught.value.__cause__ is caught.value.__context__ is None


class Raises:
    """An app that answers a number of calls, then raises before or after its response."""

    def __init__(self, answered: int, after: bool = False, error: type[BaseException] = LookupError) -> None:
        self.answered, self.after, self.error = answered, after, error

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.answered -= 1
        if self.answered < 0 and not self.after:
            raise self.error("the token was used")
        await respond(send, status=201)
        if self.answered < 0:
            raise self.error("the token was used")


@pytest.mark.parametrize("after", [False, True])
def test_an_exception_of_a_repeated_call_says_that_it_was_repeated(loop: LoopName, after: bool) -> None:
    with pytest.raises(RepetitionError) as caught:
        called(Raises(3, after), loop, calls=10)
    when = " after its response was complete" if after else ""
    place = f"{__file__}:{Raises.__call__.__code__.co_firstlineno + (3, 6)[after]}"
    assert str(caught.value) == (
        f"GET /: call 4 raised LookupError{when}: the token was used ({place}); the calls before it answered 201."
        " A measurement repeats the request many times, and only like can be compared with like. For this test, turn"
        " off what counts requests (a rate limit, a one-time token, a unique key), and use stand-ins that answer any"
        " number of calls."
    )
    assert isinstance(caught.value, ResponseError)
    assert isinstance(caught.value.__cause__, LookupError)


@pytest.mark.parametrize("after", [False, True])
def test_an_exception_of_the_first_call_is_the_apps_own(loop: LoopName, after: bool) -> None:
    with pytest.raises(LookupError) as caught:
        called(Raises(0, after), loop)
    assert caught.value.__cause__ is None


def test_ctrl_c_in_a_repeated_call_ends_the_run() -> None:
    with pytest.raises(KeyboardInterrupt):
        called(Raises(3, error=KeyboardInterrupt), "asyncio", calls=10)


def test_an_app_cannot_cancel_the_test_in_a_repeated_call(loop: LoopName) -> None:
    with pytest.raises(RepetitionError, match="call 4 raised CancelledError"):
        called(Raises(3, error=asyncio.CancelledError), loop, calls=10)


@pytest.mark.parametrize("good", [0, 3])
def test_an_app_cannot_end_the_run_with_sys_exit(loop: LoopName, good: int) -> None:
    with pytest.raises(
        MeasurementError, match=r"the app called sys.exit\('the token was used'\) \(.*test_asgi.py:\d+\); keep the call"
    ):
        called(Raises(good, error=SystemExit), loop, calls=10)


class Grouped(Noop):
    """A layer whose inside raises in a task group."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(self.app, scope, receive, send)


@pytest.mark.parametrize("layer", [Noop, Grouped])
@pytest.mark.parametrize("good", [0, 3])
def test_an_app_that_raises_generator_exit_is_named_with_the_place(loop: LoopName, good: int, layer: Any) -> None:
    with pytest.raises(
        MeasurementError, match=r"the app raised GeneratorExit \(.*test_asgi.py:\d+\), with which Python"
    ):
        called(layer(Raises(good, error=GeneratorExit)), loop, calls=10)


def test_a_request_that_is_closed_is_not_said_to_raise() -> None:
    async def begun() -> Any:
        async def app(scope: Any, receive: Any, send: Any) -> None:
            await asyncio.sleep(0)

        calls = await caller(app)
        running = calls._run(server.Exchange(calls.template, calls.loop.event(), 1), {}, None)
        running.send(None)
        return running

    asyncio.run(begun()).close()


def test_a_measurement_says_that_its_request_was_repeated() -> None:
    with pytest.raises(RepetitionError, match="call 151 raised LookupError"):
        measured(Noop(Raises(150)), settings={"lifespan": False})


# ---- the app object ---------------------------------------------------------------------------------------------


def test_what_is_an_app() -> None:
    for app in (hello, Endpoint(), Noop(hello), lambda scope, receive, send: None, lambda *a: None):
        assert checked_app(app) is app


def test_an_app_may_be_a_coroutine_made_of_a_generator() -> None:
    @types.coroutine
    def app(scope: Any, receive: Any, send: Any) -> Any:
        yield from respond(send).__await__()

    assert [exchange.response().text for exchange in exchanged(app, calls=2)] == ["ok", "ok"]


@pytest.mark.parametrize("thing", [None, "app", 3, Endpoint])
def test_what_is_no_app(thing: object) -> None:
    with pytest.raises(AppError, match="is not an ASGI app; return the ASGI app itself"):
        checked_app(thing)


def test_a_factory_is_recognised() -> None:
    with pytest.raises(AppError, match="looks like a factory"):
        checked_app(lambda: hello)
    with pytest.raises(AppError, match=r"does not take \(scope, receive, send\)"):
        checked_app(lambda scope: hello)


class Holder:
    async def app(self, scope: Any, receive: Any, send: Any) -> None: ...

    async def with_option(self, option: int, scope: Any, receive: Any, send: Any) -> None: ...


def test_methods_and_partials_are_apps_if_they_take_what_an_app_takes() -> None:
    holder = Holder()
    for app in (holder.app, partial(holder.with_option, 5)):
        assert checked_app(app) is app
    with pytest.raises(AppError, match=r"does not take \(scope, receive, send\)"):
        checked_app(partial(holder.with_option, option=5))  # the scope would be a second option


def named(reference: str) -> Any:
    """Load the app of this name."""
    return NamedApp(reference, Path.cwd()).load()


def make_app(word: str = "made", **options: Any) -> Any:
    async def app(scope: Any, receive: Any, send: Any) -> None: ...

    app.made_of = (word, options)  # type: ignore[attr-defined]
    return app


def make_nothing() -> None: ...


async def make_later() -> Any: ...


def test_an_app_is_imported_by_its_name() -> None:
    assert named(f"{hello.__module__}:hello") is hello
    # Not called, although without arguments it could be: it takes what an app takes.
    assert named(f"{__name__}:takes_anything") is takes_anything


def test_an_app_is_found_in_src(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    package = tmp_path / "src" / "mwbudget_shop_in_src"
    package.mkdir(parents=True)
    (package / "main.py").write_text("async def app(scope, receive, send): ...")
    assert callable(NamedApp("mwbudget_shop_in_src.main:app", tmp_path).load())
    with pytest.raises(AppError, match="install the project, or set PYTHONPATH"):
        NamedApp("mwbudget_shop_nowhere.main:app", tmp_path).load()
    # What is importable already has nothing to do with `src`.
    (tmp_path / "src" / "json").mkdir()
    before = [*sys.path]
    with pytest.raises(AppError):
        NamedApp("json:nothing", tmp_path).load()
    assert sys.path == before


async def takes_anything(*arguments: Any) -> None: ...


@pytest.mark.parametrize(
    ("call", "made_of"),
    [
        ("make_app", ("made", {})),
        ("make_app()", ("made", {})),
        ("make_app('a(b)', debug=True, limits=(1, -2.5))", ("a(b)", {"debug": True, "limits": (1, -2.5)})),
    ],
)
def test_a_factory_makes_the_app_once(call: str, made_of: Any) -> None:
    app = NamedApp(f"{__name__}:{call}", Path.cwd())
    assert app.load().made_of == made_of  # type: ignore[attr-defined]
    assert app.load() is app.load()
    assert app.note == f"The app is what {__name__}:{call}{'' if '(' in call else '()'} returned."


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("nocolon", "write 'package.module:app'"),
        (":app", "write 'package.module:app'"),
        ("no_such_module_anywhere:app", "importing 'no_such_module_anywhere' failed with ModuleNotFoundError"),
        ("pytest_mwbudget.errors:app", "has no 'app'. .*The names that it has are: .*AppError"),
        (f"{__name__}:make_nothing", "that returned None, which is not an ASGI app; name the ASGI app itself"),
        (f"{__name__}:make_later", "the factory is `async def`"),
        (f"{__name__}:make_app(1, 2)", r"the factory failed with TypeError: make_app\(\) takes"),
        (f"{__name__}:__name__()", "is 'tests.test_asgi', which cannot be called; leave out the brackets"),
        ("os:system('true').x()", "whose call cannot be read: there is something behind the call"),
        ("os:system(open('x'))", r"whose call cannot be read: open\('x'\) is no literal"),
        ("os:system(**{'a': 1})", r"whose call cannot be read: \*\* is not a literal"),
        ("os:system('a'", "whose call cannot be read: '\\(' was never closed"),
        ("os:system(f'{1}')", r"whose call cannot be read: f'\{1\}' is no literal"),
    ],
)
def test_an_app_that_cannot_be_had(reference: str, said: str) -> None:
    with pytest.raises(AppError, match=said):
        named(reference)


def test_a_repetition_that_goes_on_for_ever_without_a_pause_is_ended() -> None:
    """No time limit can: the event loop gets no turn."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal calls
        calls += 1
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while calls == 3:
            await send({"type": "http.response.body", "body": b"tick", "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def main() -> None:
        call = await caller(app)
        await call()
        await call()
        with pytest.raises(RepetitionError, match=r"went on with its response after 10000 pieces"):
            await call()

    calls = 0
    asyncio.run(main())
