"""Small ASGI apps and middlewares, each with one property of real ones, and helpers to run them."""

from __future__ import annotations

import asyncio
import functools
import gc
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from importlib import import_module
from types import FunctionType
from typing import Any

import pytest

from pytest_mwbudget.asgi import loops, server
from pytest_mwbudget.asgi.discovery import discover
from pytest_mwbudget.asgi.request import build_request, template_of
from pytest_mwbudget.asgi.stack import Stack
from pytest_mwbudget.config.settings import Settings
from pytest_mwbudget.counting.backend import counting_backend
from pytest_mwbudget.engine import measure as _measure
from pytest_mwbudget.model.quantities import CountedQuantity
from pytest_mwbudget.model.results import Measurement
from pytest_mwbudget.session.gate import SCHEDULE
from pytest_mwbudget.timing.looks import Environment
from pytest_mwbudget.timing.schedule import Schedule

App = Callable[..., Any]

# Options of inner pytest runs. Unrelated plugins are off. So is assertion rewriting: its search through all files of
# all plugin packages takes most of a short run.
LEAN_WITH_COVERAGE = ["-p", "no:faker", "-p", "no:hypothesispytest", "-p", "no:randomly", "-p", "no:benchmark"]
LEAN_WITH_COVERAGE += ["--assert=plain", "-o", "asyncio_default_fixture_loop_scope=function"]
LEAN = ["-p", "no:cov", *LEAN_WITH_COVERAGE]

# Source for inner pytest runs: a layer that takes `us` microseconds.
SPIN = """
from time import perf_counter_ns


class Spin:
    def __init__(self, app, us=200):
        self.app = app
        self.us = us

    async def __call__(self, scope, receive, send):
        end = perf_counter_ns() + self.us * 1000
        while perf_counter_ns() < end:
            pass
        await self.app(scope, receive, send)
"""


# ---- running apps -----------------------------------------------------------------------------------------------


async def caller(app: Any, method: str = "GET", url: str = "/", *, state: Any = None, **options: Any) -> server.Caller:
    """Make a caller of `app`, as a measurement does."""
    expect_status = options.pop("expect_status", None)
    template = await template_of(build_request(method, url, options))
    return server.Caller(app, template, state, expect_status)


async def discovered(calls: server.Caller) -> Stack:
    """Discover the stack of the caller's request, as a measurement does."""
    return await discover(calls)


def stack_of(app: Any, url: str = "/", method: str = "GET", **options: Any) -> Stack:
    """Discover the stack of a request to `app` in a new event loop."""

    async def main() -> Stack:
        return await discovered(await caller(app, method, url, **options))

    return loops.run("asyncio", main)


def names_of(app: Any, url: str = "/", **options: Any) -> list[str]:
    """List the names of the layers that are entered, outermost first."""
    return [layer.name for _, layer in stack_of(app, url, **options).layers if layer.entered]


# Time limit in seconds: a busy machine may need this long for a figure that an idle machine finds at once.
MOST_S = 15.0
# A layer that spins until a time never executes the same twice, so counting goes on for this long.
EXECUTED_NS = 30_000_000


# A profile of so few samples that it shows only that there is one. A sample takes time proportional to the depth of the
# stack, and inner runs are deep in the stack.
SHORT_PROFILE = {"profile_least_s": 0.02, "profile_chunk_s": 0.02, "profile_samples": 5, "profile_events": 1}


class Scheduled:
    """A pytest plugin that changes the schedule of a run, and makes its profiles short."""

    def __init__(self, **changes: Any) -> None:
        self.schedule = Schedule(**SHORT_PROFILE | changes)

    def pytest_configure(self, config: pytest.Config) -> None:
        config.stash[SCHEDULE] = self.schedule


# A schedule for budgets far from the true cost: the app need not be warm, and the first figures are enough. A failure
# counts once two looks in a row agree. A saving has an interval from five rounds on, a wide one that contradicts less.
FAST = {
    "warm_ns": 5_000_000,
    "brief_warm_calls": 10,
    "brief_warm_ns": 5_000_000,
    "uncounted_requests": 2,
    "counted_requests": 5,
    # A busy machine counts as many requests.
    "counting_ns": 60 * 10**9,
    "settle_calls": 4,
    "settle_ns": 2_000_000,
    "first_look_ns": 10_000_000,
    "fewest_first": 32,
    "fewest_of_turn": 16,
    "fewest_of_leg": 16,
    "failure_time_s": 0.05,
    "watched_time_s": 0.05,
    "precision_time_s": 0.1,
    "parts_time_s": 0.1,
    "executed_ns": EXECUTED_NS,
    "witness_rounds": 6,
    "fewest_savings": 6,
    "savings_share": 0.002,
}


FAST_SCHEDULE = Schedule(**FAST)


QUICKLY = Scheduled(**FAST)
# Plugins of pytest that no inner run needs.
UNUSED = ("cacheprovider", "doctest", "faulthandler", "legacypath", "pastebin", "setuponly", "setupplan", "stepwise")
ASYNCIO, ANYIO = "pytest_asyncio.plugin", "anyio.pytest_plugin"


def run_inside(
    pytester: pytest.Pytester, *arguments: str, plugins: Sequence[object] = (QUICKLY,), using: Sequence[str] = ()
) -> pytest.RunResult:
    """Run pytest in this process, with the package, these plugins, and the installed plugins in the modules `using`."""
    options = ["--assert=plain", *(word for name in UNUSED for word in ("-p", f"no:{name}"))]
    if ASYNCIO in using:
        options += ["-o", "asyncio_default_fixture_loop_scope=function"]
    installed = [import_module(name) for name in ("pytest_mwbudget.plugin", *using)]
    with pytest.MonkeyPatch.context() as monkeypatch:
        # The search for plugins reads the metadata of every installed package.
        monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        return pytester.runpytest_inprocess(*options, *arguments, plugins=[*installed, *plugins])


def alone(monkeypatch: pytest.MonkeyPatch, *plugins: str) -> list[str]:
    """Return options of an inner run with the package and these plugins, and none else of this environment.

    A run in another process starts sooner so, because it imports less.
    """
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    return [*(word for name in (*plugins, "pytest_mwbudget.plugin") for word in ("-p", name)), "--assert=plain"]


async def measured_async(
    app: Any, method: str = "GET", url: str = "/", schedule: Schedule | None = None, **options: Any
) -> Measurement:
    """Measure briefly on the running loop; `settings` go to Settings, other options but `inside` to httpx.

    `inside` opens the endpoint.

    `max_time_s` limits only the time for precision: a busy machine may take longer until all figures are known.
    """
    settings = {"max_time_s": 0.1, "startup_timeout_s": 10.0} | options.pop("settings", {})
    inside = options.pop("inside", False)
    request = build_request(method, url, options)
    schedule = schedule or replace(FAST_SCHEDULE, precision_time_s=settings["max_time_s"])
    chosen = Settings(**settings | {"max_time_s": MOST_S})
    return await _measure(app, request, chosen, Environment(rng=random.Random(7), schedule=schedule, inside=inside))


def measured(app: Any, method: str = "GET", url: str = "/", **options: Any) -> Measurement:
    """Measure in a new event loop, and fail if a function is left with other code."""
    with unchanged_code():
        return loops.run("asyncio", lambda: measured_async(app, method, url, **options))


def needs(*quantities: CountedQuantity) -> pytest.MarkDecorator:
    """Skip a test where these quantities cannot be counted."""
    why_not = counting_backend().why_not
    reasons = [f"{quantity}: {why_not[quantity]}" for quantity in quantities if quantity in why_not]
    return pytest.mark.skipif(bool(reasons), reason="; ".join(reasons))


def _functions() -> list[FunctionType]:
    """Return the functions that are not frozen."""
    return [function for function in gc.get_objects() if type(function) is FunctionType]


@functools.cache
def frozen_functions() -> list[FunctionType]:
    """Return the frozen functions, which `get_objects` leaves out. The cache is cleared when others are frozen."""
    gc.unfreeze()
    functions = _functions()
    gc.freeze()
    return functions


@contextmanager
def unchanged_code() -> Iterator[None]:
    """Fail if a function that exists now has another code object at the end of the block."""
    functions = [*frozen_functions(), *_functions()]
    codes = [function.__code__ for function in functions]
    try:
        yield
    finally:
        both = zip(functions, codes, strict=True)
        changed = [function.__qualname__ for function, code in both if function.__code__ is not code]
        assert not changed, f"left with other code: {changed}"


# ---- endpoints --------------------------------------------------------------------------------------------------


async def respond(send: Any, body: bytes = b"ok", status: int = 200, headers: Any = ()) -> None:
    """Send a whole response."""
    await send({"type": "http.response.start", "status": status, "headers": list(headers)})
    await send({"type": "http.response.body", "body": body})


async def hello(scope: Any, receive: Any, send: Any) -> None:
    await respond(send)


class Endpoint:
    """An app object that answers and has no inner app."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await respond(send)


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Answer with the request's body."""
    assert scope["type"] == "http"
    body, more = b"", True
    while more:
        message = await receive()
        body += message["body"]
        more = message["more_body"]
    await respond(send, body)


# ---- layers, by how they hold the inner app ---------------------------------------------------------------------


class Noop:
    """A layer that only passes the request on."""

    def __init__(self, app: App) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.app(scope, receive, send)


class Underscore:
    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._app(scope, receive, send)


class InAList:
    def __init__(self, app: App) -> None:
        self.chain = [app]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.chain[0](scope, receive, send)


class InADict:
    def __init__(self, app: App) -> None:
        self.by_type = {"http": app}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.by_type[scope["type"]](scope, receive, send)


class InAPartial:
    def __init__(self, app: App) -> None:
        self.go = functools.partial(app)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.go(scope, receive, send)


class InACell:
    """A layer that holds the inner app only in a closure made by its constructor."""

    def __init__(self, app: App) -> None:
        async def go(scope: Any, receive: Any, send: Any) -> None:
            await app(scope, receive, send)

        self.go = go

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.go(scope, receive, send)


@dataclass(frozen=True)
class Frozen:
    app: App

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.app(scope, receive, send)


class Slots:
    """A layer without `__dict__`, which cannot be weakly referenced."""

    __slots__ = ("inner",)

    def __init__(self, app: App) -> None:
        self.inner = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.inner(scope, receive, send)


class Unhashable:
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, app: App) -> None:
        self.application = app

    def __eq__(self, other: object) -> bool:
        raise AssertionError("nobody may compare layers")

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.application(scope, receive, send)


class SeveralAttributes:
    def __init__(self, app: App) -> None:
        self.app = self.application = self.wrapped = app
        self.entered = [app.__call__]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.wrapped(scope, receive, send)


class BoundMethod:
    """A layer that holds the inner app's bound `__call__`, captured at construction."""

    def __init__(self, app: App) -> None:
        self.go = app.__call__

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.go(scope, receive, send)


class Forwarding:
    """A layer that forwards unknown attributes to the inner app."""

    def __init__(self, app: App) -> None:
        self.app = app

    def __getattr__(self, name: str) -> Any:
        return getattr(self.app, name)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.app(scope, receive, send)


class Inherited(Noop):
    """A layer that inherits `__call__`."""


class CallsSuper(Noop):
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await super().__call__(scope, receive, send)


class CallsSuperTwice(CallsSuper):
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await super().__call__(scope, receive, send)


def decorated(function: Any) -> Any:
    @functools.wraps(function)
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        return await function(*args, **kwargs)

    return wrapper


def decorated_without_wraps(function: Any) -> Any:
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        return await function(*args, **kwargs)

    return wrapper


class Decorated(Noop):
    @decorated
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.app(scope, receive, send)


class DecoratedPlainly(Noop):
    @decorated_without_wraps
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.app(scope, receive, send)


class OddMeta(type):
    """A metaclass with a `__call__` of its own."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        made = super().__call__(*args, **kwargs)
        made.made_by = "OddMeta"
        return made


class Odd(Noop, metaclass=OddMeta):
    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.registered = True  # type: ignore[attr-defined]


class OddChild(Odd):
    pass


class Patched(Noop):
    """A layer whose `__call__` is a function of another name, assigned to the class."""


async def _patched_call(self: Any, scope: Any, receive: Any, send: Any) -> None:
    await self.app(scope, receive, send)


Patched.__call__ = _patched_call  # type: ignore[method-assign]


class SyncCall(Noop):
    """A layer whose `__call__` is not a coroutine function but returns an awaitable."""

    def __call__(self, scope: Any, receive: Any, send: Any) -> Any:
        return self.app(scope, receive, send)


class Keywords(Noop):
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.app(scope=scope, receive=receive, send=send)


class OtherNames(Noop):
    """A layer whose parameters have other names."""

    async def __call__(self, environment: Any, /, incoming: Any, outgoing: Any) -> None:
        await self.app(environment, incoming, outgoing)


class StarArguments(Noop):
    async def __call__(self, *args: Any) -> None:
        await self.app(*args)


class Defaults(Noop):
    """A layer with an extra keyword that has a default, and a reference to `__class__`."""

    async def __call__(self, scope: Any, receive: Any, send: Any, *, depth: int = 1) -> None:
        assert __class__ is Defaults  # type: ignore[name-defined]
        assert depth == 1
        await self.app(scope, receive, send)


class PerRequest(Noop):
    """A layer that makes an ASGI object for each request, which calls the inner app and belongs to this layer."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await _Responder(self.app)(scope, receive, send)


class _Responder(Noop):
    pass


class Hidden(Noop):
    """A layer with a property that must not be read."""

    reads = 0

    @property
    def routes(self) -> Any:
        raise AssertionError("nobody may run a property of a layer")


def outer(app: App) -> App:
    async def inner(scope: Any, receive: Any, send: Any) -> None:
        await app(scope, receive, send)

    return inner


def wrapping(app: App) -> App:
    """Wrap the app in two nested closures that look like the app; each request makes the inner closure."""

    @functools.wraps(app)
    async def outermost(scope: Any, receive: Any, send: Any) -> None:
        @functools.wraps(app)
        async def innermost(scope: Any, receive: Any, send: Any) -> None:
            await app(scope, receive, send)

        await innermost(scope, receive, send)

    return outermost


def wrapping_twice(app: App) -> App:
    """Wrap the app like `wrapping`, with both closures made once."""

    @functools.wraps(app)
    async def innermost(scope: Any, receive: Any, send: Any) -> None:
        await app(scope, receive, send)

    @functools.wraps(app)
    async def outermost(scope: Any, receive: Any, send: Any) -> None:
        await innermost(scope, receive, send)

    return outermost


async def _with_option(option: str, app: App, scope: Any, receive: Any, send: Any) -> None:
    await app(scope, receive, send)


def partial(app: App) -> App:
    return functools.partial(_with_option, "option", app)


def indistinct(app: App) -> App:
    """Make a layer that is called with another function of the same code: the two cannot be told apart."""

    def make() -> App:
        async def layer(other: App, app: App, scope: Any, receive: Any, send: Any) -> None:
            await app(scope, receive, send)

        return layer

    return functools.partial(make(), make(), app)


class NotCalled:
    """A layer that is entered by a bound method other than `__call__`."""

    def __init__(self, app: App) -> None:
        self.app = app

    async def handle(self, scope: Any, receive: Any, send: Any) -> None:
        await self.app(scope, receive, send)


# ---- objects that notice when they are looked at -----------------------------------------------------------------


class LookedAtError(Exception):
    """Somebody looked at an object of the app."""


def _noticing(name: str) -> Callable[..., Any]:
    def method(self: Any, *arguments: Any) -> Any:
        looks.append(name)
        raise LookedAtError(name)

    return method


# The methods of a Hostile that ran.
looks: list[str] = []
_NOTICED = "getattribute eq ne hash bool repr str format len iter contains getitem reduce reduce_ex dir copy int"
# An object that raises whatever is done with it, as a lazy object may that cannot be evaluated yet. A call is no look.
Hostile: Any = type("Hostile", (), {f"__{name}__": _noticing(name) for name in _NOTICED.split()})


# ---- layers, by what they do ------------------------------------------------------------------------------------


class Answering(Noop):
    """A layer that answers by itself."""

    def __init__(self, app: App, status: int = 401) -> None:
        super().__init__(app)
        self.status = status

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await respond(send, b"no", self.status)
        else:
            await self.app(scope, receive, send)


class Cascade:
    """An app that tries its apps in order until the status is not 404."""

    def __init__(self, *apps: App) -> None:
        self.apps = list(apps)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        for app in self.apps:
            held: list[Any] = []

            async def holding(message: Any, held: list[Any] = held) -> None:
                held.append(message)

            await app(scope, receive, holding)
            if held[0].get("status") != 404 or app is self.apps[-1]:
                for message in held:
                    await send(message)
                return


async def not_found(scope: Any, receive: Any, send: Any) -> None:
    await respond(send, b"not here", 404)


request_id: ContextVar[str] = ContextVar("request_id")


class SetsContext(Noop):
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        token = request_id.set("r-1")
        try:
            await self.app(scope, receive, send)
        finally:
            request_id.reset(token)


class ReadsContext(Noop):
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        assert request_id.get() == "r-1"
        await self.app(scope, receive, send)


class Resource(Noop):
    """A layer that opens a resource, puts it into the scope, and closes it after the response."""

    def __init__(self, app: App) -> None:
        super().__init__(app)
        self.opened: list[dict[str, bool]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        session = {"open": True}
        self.opened.append(session)
        scope["database"] = session
        try:
            await self.app(scope, receive, send)
        finally:
            session["open"] = False


class InATask(Noop):
    """A layer that runs the inner app in a new task."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await asyncio.create_task(self.app(scope, receive, send))


class MarksOnce(Noop):
    """A layer that refuses a scope with its own mark, as some real layers do."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        marks = scope.setdefault("extensions", {})
        assert "marked" not in marks
        marks["marked"] = True
        await self.app(scope, receive, send)


class RateLimit(Noop):
    """A layer that answers 429 after `limit` requests."""

    def __init__(self, app: App, limit: int) -> None:
        super().__init__(app)
        self.left = limit

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            self.left -= 1
            if self.left < 0:
                await respond(send, b"slow down", 429)
                return
        await self.app(scope, receive, send)
