"""Rows against the exact costs of layers, with a clock that counts calls of Python functions."""

from __future__ import annotations

import asyncio
import functools
import gc
import itertools
import operator
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
import wrapt

from pytest_mwbudget.analysis.estimates import Estimates, estimate
from pytest_mwbudget.analysis.event_log import leaning_ns, passing_ns, spent
from pytest_mwbudget.analysis.samples import BlankLayers, Null, Samples
from pytest_mwbudget.asgi import server
from pytest_mwbudget.asgi.stack import Stack
from pytest_mwbudget.model.stack import probed_parent
from pytest_mwbudget.timing.null_layers import DIVIDING
from pytest_mwbudget.timing.probes import Probes

from .apps import App, Noop, SyncCall, caller, discovered, hello

CALL_NS = 1000
PER_NULL_LAYER = 24


class CallClock:
    """A clock that advances by a microsecond with each call or resumption of a Python function."""

    def __init__(self) -> None:
        self.now_ns = [0]
        # Not a Python function, because its calls would be counted.
        self.read = functools.partial(operator.getitem, self.now_ns, 0)

    def __enter__(self) -> CallClock:
        gc.disable()  # the finalizers and callbacks that it calls would be counted as well
        sys.setprofile(self._seen)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        gc.enable()

    def _seen(self, frame: FrameType, event: str, arg: object) -> None:
        self.now_ns[0] += CALL_NS * (event == "call")


def calls(
    app: App, url: str = "/", view: Callable[[Stack], Stack] = lambda stack: stack, **options: Any
) -> tuple[list[int], Estimates]:
    """Return how often each entry of a view of the stack is entered, and the estimates in calls."""

    async def main() -> tuple[list[int], Estimates]:
        clock = CallClock()
        call = await caller(app, options.pop("method", "GET"), url, **options)
        stack = view(await discovered(call))
        probes = Probes(stack, clock.read)
        with probes.installed(probes.probed):
            sent = await messages_by_entry(call, probes)
            samples = Samples(probes.probed, sent)
            split = samples.split
            nulls = [
                Null(index, BlankLayers(count, wrapping))
                for index, count, wrapping in itertools.product(probes.probed, (1, 4), (False, True))
                if index in probes.wrappable or not wrapping
            ]
            nulls += [Null(index, DIVIDING) for index in probes.probed if index in probes.dividable]
            for null in nulls * PER_NULL_LAYER:
                with probes.doubled(null.index, null.blanks), clock:
                    await call(probes.watch)
                log, null_owner = probes.read(), probes.null_owner
                used = spent(log, probes.owners)
                passing = passing_ns(log, null_owner)
                leaning = leaning_ns(log, null_owner, probes.unowned) if null.blanks.dividing else 0
                split.add(1000.0, null, used.ns[null_owner], used, passing_ns=passing, leaning_ns=leaning)
            samples.of_parts = probes.messages_of_parts(probes.read())
        times = [len(entry.parents) for entry in stack.entries]
        return times, estimate(samples, stack.entries, outside=False, look=1)

    return asyncio.run(main())


async def messages_by_entry(call: server.Caller, probes: Probes) -> dict[int, int]:
    """Return the number of messages that each entry sends, by index, as the ledger counts them."""
    counted = dict.fromkeys(probes.probed, 0)
    await call(probes.watch)
    log = probes.read()
    owners = log[::2]
    # Each message, and finally the return, changes from the entry's owner to the owner outside.
    for index in probes.probed:
        outer = probed_parent(probes.stack.entries, index, probes.probed)[0]
        pairs = itertools.pairwise(owners)
        counted[index] = max(0, sum(pair == (index + 1, outer) for pair in pairs) - 1)
    return counted


class Twice(Noop):
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def ignore(message: Any) -> None: ...

        await self.app(dict(scope), receive, ignore)
        await self.app(scope, receive, send)


class Alternates(Noop):
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        app = hello if scope.get("again") else self.app
        await app({**scope, "again": True}, receive, send)


def same_object_twice() -> App:
    shared = Alternates(hello)
    shared.app = Noop(shared)
    return Noop(shared)


async def by_name(scope: Any, receive: Any, send: Any, *, app: App) -> None:
    await app(scope, receive, send)


def named(app: App) -> App:
    return functools.partial(by_name, app=app)


async def by_options(scope: Any, receive: Any, send: Any, **options: Any) -> None:
    await options["app"](scope, receive, send)


def optional(app: App) -> App:
    return functools.partial(by_options, app=app)


@wrapt.decorator
async def counted(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    return await wrapped(*args, **kwargs)


class Decorated(Noop):
    @counted
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.app(scope, receive, send)


class Sends(Noop):
    """A layer that passes on the `send` that `made` makes."""

    made: Callable[[Any], Any]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.app(scope, receive, self.made(send))


class Sender:
    def __init__(self, send: Any) -> None:
        self.send = send

    async def pass_on(self, message: Any) -> None:
        await self.send(message)

    __call__ = pass_on


class SendsObject(Sends):
    made = Sender


class SendsBound(Sends):
    def made(self, send: Any) -> Any:
        return Sender(send).pass_on


class SendsPartial(Sends):
    async def pass_on(self, message: Any, send: Any) -> None:
        await send(message)

    def made(self, send: Any) -> Any:
        return functools.partial(self.pass_on, send=send)


class SendsClosure(Sends):
    def made(self, send: Any) -> Any:
        async def pass_on(message: Any) -> None:
            await send(message)

        return pass_on


# The calls of each entry: its own frames and those of the functions that it passes on.
STACKS: dict[str, tuple[Callable[[], App], list[int]]] = {
    "coroutine functions": (lambda: Noop(Noop(Noop(hello))), [1, 1, 1, 1]),
    "a plain function": (lambda: Noop(SyncCall(Noop(hello))), [1, 1, 1, 1]),
    "plain functions": (lambda: SyncCall(SyncCall(Noop(SyncCall(hello)))), [1, 1, 1, 1, 1]),
    "entered twice": (lambda: Noop(Twice(Noop(hello))), [1, 3, 2, 2]),
    "the same object twice": (same_object_twice, [1, 2, 1, 1]),
    "one function by name": (lambda: named(Noop(named(named(hello)))), [1, 1, 1, 1, 1]),
    # Two messages add two calls of the `send`. Calling a Python `made` adds a call, initialising a Sender another.
    "a send that is a function": (lambda: Noop(SendsClosure(Noop(hello))), [1, 4, 1, 1]),
    "a send that is a bound method": (lambda: Noop(SendsBound(Noop(hello))), [1, 5, 1, 1]),
    "a send that is a partial": (lambda: Noop(SendsPartial(Noop(hello))), [1, 4, 1, 1]),
    "a send that is an object": (lambda: Noop(SendsObject(Noop(hello))), [1, 4, 1, 1]),
    "sends in sends": (lambda: SendsPartial(SendsObject(SendsBound(SendsPartial(hello)))), [4, 4, 5, 4, 1]),
    "behind a decorator in C": (lambda: Noop(Decorated(Noop(hello))), [1, 2, 1, 1]),
}


@pytest.mark.parametrize(("make", "expected"), STACKS.values(), ids=STACKS)
def test_every_row_has_its_calls_and_no_others(make: Callable[[], App], expected: list[int]) -> None:
    times, estimates = calls(make())
    # The estimate assumes that a probe costs the same inside and outside, but inside it makes one more call. Only the
    # endpoint keeps this call, because it has no probe inside.
    *layers, endpoint = [us.estimate for us in estimates.split.values()]
    assert layers == pytest.approx(expected[:-1], abs=0.5)
    assert endpoint - times[-1] == pytest.approx(expected[-1], abs=0.5)
    assert all(us.high > 0 for us in estimates.split.values())


# By where the arguments of the outermost boundary are: the search for some of them costs calls on entering it.
AT_THE_OUTSIDE: dict[str, Callable[[App], App]] = {
    "a class": Noop,
    "a plain function": SyncCall,
    "a function by name": named,
    "a partial with options": optional,
    "two of them": lambda app: optional(named(app)),
}


@pytest.mark.parametrize("layer", AT_THE_OUTSIDE.values(), ids=AT_THE_OUTSIDE)
@pytest.mark.parametrize("messages", [2, 7])
def test_the_outside_pays_for_messages_and_not_for_entering_the_outermost_boundary(
    layer: Callable[[App], App], messages: int
) -> None:
    async def stream(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for more in reversed(range(messages - 1)):
            await send({"type": "http.response.body", "body": b"x", "more_body": bool(more)})

    _, estimates = calls(layer(stream))
    # The server makes a call for each message and one at the end. The one call of a probe for a message is inside,
    # and the estimate assumes that half of it is outside.
    assert estimates.outside.estimate == pytest.approx(messages + 1 - messages / 2, abs=0.1)
