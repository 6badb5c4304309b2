"""Which layers can be bypassed in place, and what a request past them is."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from pytest_mwbudget.asgi.stack import Stack
from pytest_mwbudget.interpreter.clocks import perf_counter_ns
from pytest_mwbudget.load.bypass import Stays, Trampolines, Way, Ways, ways_past
from pytest_mwbudget.load.run import ways_worth
from pytest_mwbudget.model.estimate import Estimate
from pytest_mwbudget.model.results import LayerReport
from pytest_mwbudget.model.stack import EntryIndex, Layer, RowIndex

from .apps import caller, discovered, unchanged_code
from .test_comparison import result


class Adds:
    """Adds a header."""

    def __init__(self, app: Any, name: str = "adds") -> None:
        self.app = app
        self.name = name

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def named(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-by", self.name.encode())]
            await send(message)

        await self.app(scope, receive, named)


class Twice:
    """Calls its app once more, and throws the first response away."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def nowhere(message: Any) -> None:
            pass

        await self.app(dict(scope), receive, nowhere)
        await self.app(scope, receive, send)


class Answers:
    """Answers by itself."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await PlainTextResponse("no")(scope, receive, send)


class Passing(BaseHTTPMiddleware):
    async def dispatch(self, request: Any, call_next: Any) -> Any:
        return await call_next(request)


def plain(app: Any) -> Any:
    """Wrap an app in a closure with other arguments."""

    async def layer(scope: Any, receive: Any, send: Any) -> None:
        await app(scope, receive, send)

    return layer


async def ok(request: Any) -> PlainTextResponse:
    return PlainTextResponse("ok")


def app_of(*layers: Any) -> Starlette:
    return Starlette(routes=[Route("/", ok, methods=["GET", "POST"])], middleware=[Middleware(one) for one in layers])


def ways_of(app: Any, method: str = "GET") -> tuple[Ways, dict[str, int]]:
    async def main() -> Stack:
        return await discovered(await caller(app, method))

    stack = asyncio.run(main())
    return ways_past(stack, method), {layer.name: layer.index for _, layer in stack.layers}


def why_not(app: Any, name: str, method: str = "GET") -> str:
    ways, index = ways_of(app, method)
    return ways.why_not[index[name]]  # type: ignore[index]


def test_layers_that_call_one_app_once_can_be_bypassed() -> None:
    ways, index = ways_of(app_of(Adds, Passing, plain))
    found = {way.layer for way in ways.found}
    assert {index[name] for name in ("Adds", "Passing", "plain.<locals>.layer") if name in index} <= found
    assert {"Adds", "Passing"} <= index.keys()


def test_why_layers_cannot_be_bypassed() -> None:
    assert why_not(app_of(Adds), "Adds", "POST") == "a POST request is sent past no layer"
    assert why_not(app_of(Twice), "Twice") == "its inner app is called more than once in a request"
    assert why_not(app_of(Answers, Adds), "Answers") == "it answers without calling an inner app"


def test_layers_that_take_next_to_nothing_are_not_bypassed() -> None:
    ends_us = {RowIndex(0): 4.9, RowIndex(1): 5.1, RowIndex(2): None}
    every = tuple(Way(row, EntryIndex(row), EntryIndex(row + 1)) for row in ends_us)
    reports = [
        LayerReport(Layer(row, str(row), str(row), "layer"), None if end is None else Estimate(1.0, 0.0, end))
        for row, end in ends_us.items()
    ]
    found, why_not = ways_worth(Ways(every), result(*reports), 500.0)
    assert found == list(every[1:])
    assert why_not == {RowIndex(0): "it takes less than 1% of the time of a request"}


def headers_past(app: Any, name: str | None) -> list[bytes]:
    """Return what Adds added in a request past a layer."""

    async def main() -> list[bytes]:
        calls = await caller(app)
        stack = await discovered(calls)
        ways = ways_past(stack, "GET")
        names = {layer.index: layer.name for _, layer in stack.layers}
        way = next((way for way in ways.found if names[way.layer] == name), None)
        assert (way is None) == (name is None)
        trampolines = Trampolines(stack, ways.found, perf_counter_ns)
        with trampolines.installed(), trampolines.without(None if way is None else way.entry):
            exchange = await calls()
        return [value for key, value in exchange.headers if key == b"x-by"]

    with unchanged_code():
        return asyncio.run(main())


class Other(Adds):
    """Another layer of the same function."""

    def __init__(self, app: Any) -> None:
        super().__init__(app, "other")


def test_a_request_goes_past_one_layer_only_and_all_code_is_put_back() -> None:
    app = app_of(Adds, Passing, Other)
    assert headers_past(app, None) == [b"other", b"adds"]
    assert headers_past(app, "Adds") == [b"other"]
    assert headers_past(app, "Other") == [b"adds"]
    assert headers_past(app, "Passing") == [b"other", b"adds"]


class Clock:
    """A clock that layers move by hand."""

    def __init__(self) -> None:
        self.ns = 0

    def __call__(self) -> int:
        return self.ns


def test_the_time_in_each_layer_is_without_what_is_further_in_and_further_out() -> None:
    clock = Clock()

    class Moves:
        def __init__(self, app: Any, before: int, sending: int) -> None:
            self.app, self.before, self.sending = app, before, sending

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            async def slow_send(message: Any) -> None:
                clock.ns += self.sending
                await send(message)

            clock.ns += self.before
            await self.app(scope, receive, slow_send)

    class Outer(Moves):
        pass

    class Inner(Moves):
        pass

    class Anything(Moves):
        async def __call__(self, *arguments: Any, **named: Any) -> None:
            await super().__call__(*arguments, **named)

    app = Starlette(
        routes=[Route("/", ok)],
        middleware=[
            Middleware(Outer, before=100, sending=10),
            Middleware(Anything, before=500, sending=7),
            Middleware(Inner, before=7000, sending=3),
        ],
    )

    async def main() -> dict[str, int]:
        calls = await caller(app)
        stack = await discovered(calls)
        trampolines = Trampolines(stack, (), clock)
        with trampolines.installed(), trampolines.observed(skipped=1) as stays:
            for _ in range(4):
                await calls()
        own = stays.own_ns(stack)
        return {layer.name: own[entry] for entry, layer in stack.layers if entry is not None}

    found = asyncio.run(main())
    assert found["Outer"] == 3 * (100 + 2 * 10)
    assert found["Anything"] == 3 * (500 + 2 * 7)
    assert found["Inner"] == 3 * (7000 + 2 * 3)


@pytest.mark.parametrize(("kind", "inside"), [("http.request", 7), ("http.disconnect", 1007)])
def test_a_layer_is_not_charged_with_the_time_in_which_the_client_sends_the_body(kind: str, inside: int) -> None:
    now_ns, entry = 0, EntryIndex(0)

    async def receive() -> Any:
        nonlocal now_ns
        now_ns += 1000
        return {"type": kind}

    async def layer(scope: Any, receive: Any, send: Any) -> None:
        nonlocal now_ns
        now_ns += 7
        await receive()

    stays = Stays({entry: 0}, {entry: 0}, lambda: now_ns)
    asyncio.run(stays.timed(entry, layer)({}, receive, None))
    assert stays.total_ns == {entry: inside}
