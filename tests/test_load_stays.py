"""How long requests are in each layer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from pytest_mwbudget.load.stays import Stays, observable, observed
from pytest_mwbudget.model.stack import EntryIndex
from pytest_mwbudget.timing.bypasses import Bypasses

from .apps import caller, discovered, unchanged_code


async def ok(request: Any) -> PlainTextResponse:
    return PlainTextResponse("ok")


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
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            async def slow_receive() -> Any:
                clock.ns += 20_000
                return await receive()

            await super().__call__(scope, slow_receive, send)

    class Inner(Moves):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await receive()
            await super().__call__(scope, receive, send)

    class Anything(Inner):
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
        calls = await caller(app, content=[b"two", b"pieces"])
        stack = await discovered(calls)
        bypasses = Bypasses(stack, dict.fromkeys(observable(stack)))
        with bypasses.installed(), observed(bypasses, 1, clock) as stays:
            for _ in range(4):
                await calls()
        own = stays.own_ns(stack)
        return {layer.name: own[entry] for entry, layer in stack.layers if entry is not None}

    with unchanged_code():
        found = asyncio.run(main())
    assert found["Outer"] == 3 * (100 + 2 * 10 + 2 * 20_000)
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
