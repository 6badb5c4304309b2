"""Patterns of published applications, each in a small app that is measured end to end."""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route

from pytest_mwbudget.asgi.http_library import httpx
from pytest_mwbudget.config.budgets import Budgets
from pytest_mwbudget.errors import LifespanError, ResponseError
from pytest_mwbudget.model.results import Measurement

from . import apps
from .apps import (
    Answering,
    Cascade,
    InATask,
    MarksOnce,
    Noop,
    PerRequest,
    RateLimit,
    ReadsContext,
    SetsContext,
    Slots,
    Unhashable,
    echo,
    hello,
    not_found,
    outer,
    partial,
    respond,
    wrapping,
)
from .test_discovery import HOLDERS

BASE = Middleware(BaseHTTPMiddleware, dispatch=lambda request, call_next: call_next(request))


def measured(app: Any, method: str = "GET", url: str = "/", **options: Any) -> Measurement:
    """Measure with a short time limit and schedule, because no test here judges a figure."""
    schedule = apps.Schedule(**apps.FAST | {"precision_time_s": 0.02})
    return apps.measured(app, method, url, schedule=schedule, **options)


def counted(app: Any, method: str = "GET", url: str = "/") -> Measurement:
    """Count only, for tests that do not look at times."""
    return measured(app, method, url, settings={"timed": False})


async def page(request: Any) -> PlainTextResponse:
    return PlainTextResponse("ok")


def whole(measurement: Measurement) -> Measurement:
    """Check that every entered layer has a figure and that there is a total, and return the measurement."""
    for report in measurement.layers:
        assert (report.us is None) == (not report.layer.entered), report
        assert (report.occupation is None) == (report.us is None)
        assert (report.counts is None) == (not report.layer.entered), report
    assert measurement.ledger.requests > 0
    # A response has at least two messages: the start and a body.
    assert measurement.ledger.total.sent.count >= 2
    assert measurement.books.total.estimate > 0
    assert measurement.effort.requests > 0
    return measurement


def names(measurement: Measurement) -> list[str]:
    return [report.name for report in measurement.layers]


# ---- 14: the fake receive ---------------------------------------------------------------------------------------


def test_14_streaming_with_a_disconnect_listener() -> None:
    async def stream(request: Any) -> StreamingResponse:
        async def pieces() -> Any:
            for number in range(4):
                yield str(number)
                await asyncio.sleep(0)

        return StreamingResponse(pieces())

    app = Starlette(routes=[Route("/", stream)], middleware=[BASE, Middleware(Noop)])
    measurement = whole(measured(app))
    assert measurement.response.text == "0123"


def test_14_an_app_that_listens_for_the_disconnect_from_the_start() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        """Respond while a task reads all messages, as Quart and Django do."""
        assert scope["type"] == "http"
        seen: list[str] = []

        async def read() -> None:
            while not seen or seen[-1] != "http.disconnect":
                seen.append((await receive())["type"])

        reader = asyncio.create_task(read())
        await asyncio.sleep(0)
        assert seen == ["http.request"]
        await respond(send)
        await reader

    assert whole(measured(Noop(app))).response.text == "ok"


@pytest.mark.parametrize(
    ("options", "body"),
    [({"content": b"x" * 200_000}, b"x" * 200_000), ({"json": [1]}, b"[1]"), ({"content": [b"a", b"b"]}, b"ab")],
    ids=["large", "json", "pieces"],
)
def test_14_bodies_reach_every_call(options: dict[str, Any], body: bytes) -> None:
    assert whole(measured(Noop(InATask(echo)), "POST", **options)).response.content == body


# ---- 15: nested scope values ------------------------------------------------------------------------------------


def test_15_nested_scope_values_are_fresh() -> None:
    async def checks(scope: Any, receive: Any, send: Any) -> None:
        assert scope["state"] == {}
        scope["state"]["user"] = "u"
        scope["headers"].append((b"x-added", b"1"))
        assert len([name for name, _ in scope["headers"] if name == b"x-added"]) == 1
        await respond(send)

    whole(measured(MarksOnce(Noop(checks))))


# ---- 16: repetition ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 5, 101, 400])
def test_16_a_rate_limit_is_an_error_whenever_it_strikes(limit: int) -> None:
    # A busy machine makes fewer calls than the limit in the usual time.
    patient = apps.Schedule(**apps.FAST | {"warm_ns": 30_000_000_000})
    with pytest.raises(ResponseError, match=f"call {limit + 1} answered 429, the calls before it 200"):
        apps.measured(Noop(RateLimit(hello, limit)), schedule=patient)


def test_16_a_one_time_token() -> None:
    used: set[bytes] = set()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        token = dict(scope["headers"])[b"authorization"]
        await respond(send, status=403 if token in used else 200)
        used.add(token)

    with pytest.raises(ResponseError, match="call 2 answered 403"):
        measured(Noop(app), headers={"authorization": "once"})


# ---- 17: where a layer keeps the inner app ----------------------------------------------------------------------


def test_17_every_holder_at_once() -> None:
    app: Any = hello
    for layer, _ in reversed(HOLDERS):
        app = layer(app)
    expected = [name.partition("#")[0] for _, found in HOLDERS for name in found]
    measurement = whole(measured(app))
    assert [name.partition("#")[0] for name in names(measurement)] == expected
    assert all(report.layer.merged_with is None for report in measurement.layers)


def test_17_per_request_objects_belong_to_their_maker() -> None:
    assert names(whole(measured(PerRequest(wrapping(Unhashable(partial(hello))))))) == [
        "PerRequest",
        "function[tests.apps.wrapping]",
        "Unhashable",
        "function[tests.apps._with_option]",
    ]


# ---- 18 and 19: below a mount; several layers of one class ------------------------------------------------------


def test_18_below_a_mount_and_inside_a_route() -> None:
    inner = Starlette(routes=[Route("/x", page, middleware=[Middleware(Noop)])], middleware=[Middleware(Slots)])
    measurement = whole(measured(Starlette(routes=[Mount("/sub", inner)], middleware=[Middleware(Noop)]), url="/sub/x"))
    assert names(measurement) == [
        "ServerErrorMiddleware#1",
        "Noop#1",
        "ExceptionMiddleware#1",
        "Router#1",
        "Starlette",
        "ServerErrorMiddleware#2",
        "Slots",
        "ExceptionMiddleware#2",
        "Router#2",
        "Noop#2",
    ]
    assert [report.layer.kind for report in measurement.layers].count("routing") == 3


def test_19_the_same_class_six_times() -> None:
    def dispatch(number: int) -> Any:
        async def add(request: Any, call_next: Any) -> Response:
            response: Response = await call_next(request)
            response.headers.append("x-order", str(number))
            return response

        add.__name__ = add.__qualname__ = f"add_{number}"
        return add

    layers = [Middleware(BaseHTTPMiddleware, dispatch=dispatch(number)) for number in range(6)]
    measurement = whole(measured(Starlette(routes=[Route("/", page)], middleware=layers)))
    assert names(measurement)[1:-1] == [f"BaseHTTPMiddleware[add_{number}]" for number in range(6)]
    assert measurement.response.headers.get_list("x-order") == ["5", "4", "3", "2", "1", "0"]


# ---- 20: layers that answer by themselves -----------------------------------------------------------------------


@pytest.mark.parametrize("status", [200, 307, 401, 503])
def test_20_a_layer_that_answers_by_itself(status: int) -> None:
    app = Noop(Answering(Slots(Noop(hello)), status))
    measurement = whole(measured(app, settings={"expect_status": status, "budgets": Budgets(default={"us": 1e9})}))
    assert [(report.name, report.layer.entered, report.verdict) for report in measurement.layers] == [
        ("Noop#1", True, "pass"),
        ("Answering", True, "pass"),
        ("Slots", False, None),
        ("Noop#2", False, None),
    ]
    assert measurement.books.endpoint is None


def test_20_a_preflight_is_answered_by_cors() -> None:
    app = Starlette(
        routes=[Route("/", page)], middleware=[Middleware(CORSMiddleware, allow_origins=["*"]), Middleware(Noop)]
    )
    headers = {"origin": "http://a", "access-control-request-method": "GET"}
    measurement = whole(measured(app, "OPTIONS", headers=headers))
    assert [(report.name, report.layer.entered) for report in measurement.layers] == [
        ("ServerErrorMiddleware", True),
        ("CORSMiddleware", True),
        ("Noop", False),
        ("ExceptionMiddleware", False),
    ]


# ---- 21: context ------------------------------------------------------------------------------------------------


def test_21_inner_layers_run_in_the_context_of_their_boundary() -> None:
    whole(measured(SetsContext(ReadsContext(InATask(ReadsContext(outer(hello)))))))


def test_21_a_variable_that_is_reset_by_its_token() -> None:
    variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable", default=0)

    class Sets(Noop):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            assert variable.get() == 0
            token = variable.set(1)
            await self.app(scope, receive, send)
            variable.reset(token)  # Raises ValueError in another context.

    whole(measured(Sets(Noop(Slots(hello)))))


def test_21_the_body_is_read_through_base_http() -> None:
    async def reads(request: Any, call_next: Any) -> Response:
        assert await request.body() == b"payload"
        response: Response = await call_next(request)
        return response

    async def handler(request: Any) -> PlainTextResponse:
        return PlainTextResponse(await request.body())

    app = Starlette(
        routes=[Route("/", handler, methods=["POST"])],
        middleware=[Middleware(BaseHTTPMiddleware, dispatch=reads), BASE],
    )
    assert whole(measured(app, "POST", content=b"payload")).response.content == b"payload"


# ---- 22: building and shutting down -----------------------------------------------------------------------------


def test_22_a_stack_is_built_once() -> None:
    built: list[str] = []

    class Builds(Noop):
        def __init__(self, app: Any) -> None:
            super().__init__(app)
            built.append("built")

    whole(measured(Starlette(routes=[Route("/", page)], middleware=[Middleware(Builds)])))
    assert built == ["built"]


def test_22_an_app_that_ends_the_process_does_not() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await respond(send)
            return
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        os._exit(0)

    with pytest.raises(LifespanError, match=r"os\._exit\(0\)"):
        measured(Noop(app))


# ---- 23: outside every layer ------------------------------------------------------------------------------------


def test_23_what_the_app_object_spends_is_outside() -> None:
    class Heavy(Starlette):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            sum(range(20_000))
            await super().__call__(scope, receive, send)

    measurement = whole(measured(Heavy(routes=[Route("/", page)], middleware=[Middleware(Noop)])))
    assert measurement.books.outside.estimate > 50
    assert all(report.us is not None and report.us.estimate < 50 for report in measurement.layers)


# ---- 24 and 25: tasks, threads, changed bodies ------------------------------------------------------------------


def test_24_tasks_and_threads() -> None:
    class InAThread(Noop):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            loop, done = asyncio.get_running_loop(), asyncio.Event()
            threading.Thread(target=lambda: loop.call_soon_threadsafe(done.set)).start()
            await done.wait()
            await self.app(scope, receive, send)

    class CancelsOnDisconnect(Noop):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            assert scope["type"] == "http"

            async def listen() -> None:
                while (await receive())["type"] != "http.disconnect":
                    pass

            handler = asyncio.ensure_future(self.app(scope, receive, send))
            listener = asyncio.ensure_future(listen())
            await asyncio.wait([handler, listener], return_when=asyncio.FIRST_COMPLETED)
            await handler
            listener.cancel()

    async def many_tasks(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.gather(*(asyncio.sleep(0) for _ in range(10)))
        await respond(send)

    measurement = whole(measured(CancelsOnDisconnect(Noop(InAThread(Slots(many_tasks))))))
    assert names(measurement) == ["CancelsOnDisconnect", "Noop", "InAThread", "Slots"]


def test_25_compression_between_base_http_layers() -> None:
    async def long(request: Any) -> PlainTextResponse:
        return PlainTextResponse("x" * 5000)

    app = Starlette(routes=[Route("/", long)], middleware=[BASE, Middleware(GZipMiddleware), BASE])
    measurement = whole(measured(app))
    assert measurement.response.headers["content-encoding"] == "gzip"
    assert measurement.response.text == "x" * 5000


# ---- responses of every kind ------------------------------------------------------------------------------------


def test_head_redirect_empty_and_background() -> None:
    ran: list[int] = []

    async def background(request: Any) -> PlainTextResponse:
        return PlainTextResponse("ok", background=BackgroundTask(ran.append, 1))

    async def redirect(request: Any) -> RedirectResponse:
        return RedirectResponse("/there")

    async def empty(request: Any) -> Response:
        return Response(status_code=204)

    routes = [Route("/", background), Route("/redirect", redirect), Route("/empty", empty)]
    app = Starlette(routes=routes, middleware=[Middleware(Noop)])
    assert whole(measured(app)).response.text == "ok"
    assert len(ran) > 40  # a look has at least 32 requests
    head = counted(app, "HEAD")
    assert (head.response.content, head.response.headers["content-length"]) == (b"", "2")
    assert counted(app, url="/redirect").status == 307
    assert counted(app, url="/empty").status == 204


def test_a_dispatcher_that_tries_one_app_after_another() -> None:
    measurement = whole(measured(Noop(Cascade(Slots(not_found), hello))))
    assert names(measurement) == ["Noop", "Cascade", "Slots", "function[tests.apps.not_found]"]


def test_an_app_that_calls_itself_in_process() -> None:
    async def front(request: Any) -> PlainTextResponse:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://me") as client:
            return PlainTextResponse((await client.get("/back")).text)

    app = Starlette(routes=[Route("/", front), Route("/back", page)], middleware=[Middleware(Noop)])
    assert names(whole(measured(app))) == ["ServerErrorMiddleware", "Noop", "ExceptionMiddleware"]


def test_an_app_without_any_layer() -> None:
    measurement = whole(measured(hello))
    assert measurement.layers == ()
    assert measurement.books.endpoint is not None
