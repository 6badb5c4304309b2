"""Random ASGI stacks: what a layer can be, what it can do, and which rows a measurement of the stack must have.

A `Stack` describes an app with plain records. Evaluating its repr replays a finding.
`Built` is an app made from a description. `rows_of` returns the rows that a measurement of the app must show.

Each layer is a *form* (what kind of callable it is and what holds the app inside it), a sequence of *habits* (what it
does around the app inside it, outermost first) and a spin (a busy loop of known length). Every layer adds a line to a
journal in the scope. The endpoint's body is the journal, so a measurement that changes what the layers see changes the
response.
"""

from __future__ import annotations

import asyncio
import functools
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median
from time import perf_counter_ns
from typing import Any, Literal, TypeAlias

import anyio
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread
import wrapt
from hypothesis import assume
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route, Router

from pytest_mwbudget.model.results import LoopName

from .apps import App, Hostile, respond
from .test_discovery import HOLDERS

Base: TypeAlias = Literal["bare", "router", "starlette", "mount", "route"]
EndpointKind: TypeAlias = Literal["plain", "streaming", "reads", "raises"]

# The keys that a layer passes on when it makes a new scope: ASGI's keys and Starlette's.
CONNECTION_KEYS = {"type", "asgi", "http_version", "server", "client", "scheme", "method", "root_path", "path"}
SCOPE_KEYS = CONNECTION_KEYS | {"raw_path", "query_string", "headers", "state", "extensions"}
STARLETTE_KEYS = {"app", "router", "endpoint", "path_params", "starlette.exception_handlers"}
BODY = b"payload"
# Forms whose parameters do not have the names `scope`, `receive` and `send`.
NAMELESS = ("no-op DecoratedPlainly", "no-op OtherNames", "no-op StarArguments")
# A layer with this habit calls another app when its own `send` has had the last message of a response.
MIRRORS = "mirrors after the answer"
# Forms that call the app inside with these names.
NAMING = ("no-op Keywords", "class that passes keywords")
# Habits that use objects bound to the event loop of the request.
OF_ONE_LOOP = {
    "calls its inside from a thread",
    "listens for the disconnect",
    "sends from a task",
    "sends from a thread",
}
SPIN_US = 300
# Layers inside a layer with this habit run in another thread, where probes cannot be installed.
IN_A_THREAD = "runs its inside on the loop of a thread"
# A layer with this habit answers this share of the requests, but none of the first calls.
NOW_AND_THEN, ANSWERED, SOME_CALLS = "answers now and then", 0.2, 8


class BoomError(Exception):
    """The exception of the endpoint "raises"."""


# ---- descriptions -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layer:
    """One layer: the names of its form and its habits, and the length of its spin in microseconds."""

    form: str = "class"
    habits: tuple[str, ...] = ()
    spin_us: int = 0


@dataclass(frozen=True)
class Stack:
    """An app: its layers, outermost first. The last `below` layers are below the router of a `mount` or `route`."""

    layers: tuple[Layer, ...] = ()
    base: Base = "bare"
    below: int = 0
    endpoint: EndpointKind = "plain"
    method: str = "GET"
    loop: LoopName = "asyncio"


@dataclass(frozen=True)
class Row:
    """The expected row of one layer in the table.

    `entered` is false if a layer outside this layer answers. `part` is the described layer, None for a layer of the
    framework and for the second row of one layer. `tasks` and `threads` are per request, None if unknown. `hidden`
    means that the layer runs in another thread, where probes cannot be installed, and so is merged with the layer that
    starts the thread.
    """

    name: str
    entered: bool
    part: Part | None = None
    tasks: int | None = 0
    threads: int | None = 0
    hidden: bool = False


# ---- running layers ---------------------------------------------------------------------------------------------


@dataclass
class Call:
    """One call of a layer, on its way through the habits to the app inside."""

    scope: Any
    receive: Any
    send: Any
    app: Any
    part: Part


Go: TypeAlias = Callable[[], Awaitable[Any]]


@dataclass(eq=False)
class Part:
    """A running layer with its readings."""

    number: int
    layer: Layer
    spun_ns: list[int] = field(default_factory=list)
    answers: set[str] = field(default_factory=set)
    # Over all calls so far.
    performed: Counter[str] = field(default_factory=Counter)
    chance: random.Random = field(default_factory=partial(random.Random, 7))
    # Builds the layers inside it again, None if a framework builds them.
    build_inside: Callable[[], App] | None = None
    rebuilt: App | None = None

    async def act(self, call: Call) -> Any:
        """Spin, then perform the habits around the app inside."""
        note(call.scope, f"{self.number}:{variable.get()}")
        self.spin()
        answer = await performed(call, self.layer.habits)
        self.answers.add(answer if isinstance(answer, str) else type(answer).__name__)
        return answer

    async def spin_later(self) -> None:
        """Spin in another task."""
        self.spin()

    def spin(self) -> None:
        """Spin for the described time, and record the actual time."""
        if self.layer.spin_us:
            begin = now = perf_counter_ns()
            while now - begin < self.layer.spin_us * 1000:
                now = perf_counter_ns()
            self.spun_ns.append(now - begin)

    @property
    def spun_us(self) -> float:
        """Return the median spin in microseconds, 0.0 if the layer never spun."""
        return median(self.spun_ns) / 1000 if self.spun_ns else 0.0


variable: ContextVar[str] = ContextVar("variable", default="-")


def note(scope: Any, line: str) -> None:
    """Add a line to the journal of the request."""
    scope.setdefault("state", {}).setdefault("journal", []).append(line)


def journal(scope: Any) -> bytes:
    """Return the journal so far, which is the body of every response."""
    return "\n".join(scope.get("state", {}).get("journal", [])).encode()


async def performed(call: Call, habits: Sequence[str]) -> Any:
    """Perform the habits around the app inside, and return its return value."""
    if not habits:
        return await call.app(call.scope, call.receive, call.send)
    call.part.performed[habits[0]] += 1
    return await HABITS[habits[0]].perform(call, partial(performed, call, habits[1:]))


# ---- habits -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Habit:
    """Something that a layer does, and the tasks and threads that it spawns each time, None if unknown.

    `bare`: the habit needs the scope, `receive` or `send`, which the `dispatch` of a BaseHTTPMiddleware does not have.
    """

    perform: Callable[[Call, Go], Awaitable[Any]]
    tasks: int | None = 0
    threads: int | None = 0
    bare: bool = False
    asyncio_only: bool = False


HABITS: dict[str, Habit] = {}


def habit(**what: Any) -> Callable[[Any], Any]:
    """Register a function as a habit under its name, with spaces for underscores.

    The function takes the call and `go`, which performs the remaining habits and calls the app inside.
    """

    def register(perform: Any) -> Any:
        HABITS[perform.__name__.replace("_", " ")] = Habit(perform, **what)
        return perform

    return register


@habit(bare=True)
async def copies_the_scope(call: Call, go: Go) -> Any:
    call.scope = dict(call.scope, copied=call.part.number)
    return await go()


@habit(bare=True)
async def makes_a_new_scope(call: Call, go: Go) -> Any:
    call.scope = {
        key: value for key, value in call.scope.items() if key in SCOPE_KEYS | STARLETTE_KEYS or key.startswith("twice")
    }
    return await go()


@habit(bare=True)
async def wraps_receive(call: Call, go: Go) -> Any:
    receive = call.receive

    async def own_receive() -> Any:
        message = await receive()
        note(call.scope, f"{call.part.number} received {message['type']}")
        return message

    call.receive = own_receive
    return await go()


@habit(bare=True)
async def wraps_send(call: Call, go: Go) -> Any:
    send, header = call.send, f"x-layer-{call.part.number}".encode()

    async def own_send(message: Any) -> None:
        if message["type"] == "http.response.start":
            message = dict(message, headers=[*message.get("headers", ()), (header, b"1")])
        await send(message)

    call.send = own_send
    return await go()


class Sender:
    """A `send` that is an object: layers inside read `tag`, and `messages` counts the calls."""

    def __init__(self, part: Part, send: Any) -> None:
        self.tag = f"sender {part.number}"
        self.messages = 0
        self.send = send

    async def __call__(self, message: Any) -> None:
        self.messages += 1
        await self.send(message)


@habit(bare=True)
async def sends_by_an_object(call: Call, go: Go) -> Any:
    sender = call.send = Sender(call.part, call.send)
    answer = await go()
    assert sender.messages
    return answer


@habit(bare=True)
async def reads_an_attribute_of_send(call: Call, go: Go) -> Any:
    note(call.scope, f"{call.part.number} sees {getattr(call.send, 'tag', None)}")
    return await go()


@habit(bare=True)
async def holds_messages_back(call: Call, go: Go) -> Any:
    send, held = call.send, []

    async def holding(message: Any) -> None:
        held.append(message)

    call.send = holding
    answer = await go()
    for message in held:
        await send(message)
    return answer


@habit(bare=True, tasks=None, threads=None)
async def sends_from_a_thread(call: Call, go: Go) -> Any:
    send = call.send

    async def own_send(message: Any) -> None:
        await anyio.to_thread.run_sync(anyio.from_thread.run, send, message)

    call.send = own_send
    return await go()


@habit(bare=True)
async def asks_a_helper(call: Call, go: Go) -> Any:
    if not await allowed(call.scope, call.receive, call.send):
        await respond(call.send, b"not allowed", 403)
        return None
    return await go()


async def allowed(scope: Any, receive: Any, send: Any) -> bool:
    """Return whether the request is HTTP: a function with the signature of an ASGI app that is not an app."""
    return bool(scope["type"] == "http")


@habit(bare=True)
async def audits_after_the_answer(call: Call, go: Go) -> Any:
    answer = await go()
    await audit(call.scope, call.receive, call.send)
    return answer


@habit(bare=True)
async def mirrors_after_the_answer(call: Call, go: Go) -> Any:
    """Send a copy of the request to another app, whose answer goes nowhere."""

    async def drop(message: Any) -> None: ...

    answer = await go()
    await candidate(dict(call.scope), call.receive, drop)
    return answer


async def candidate(scope: Any, receive: Any, send: Any) -> None:
    """Answer as another version of an app."""
    await respond(send)


async def audit(scope: Any, receive: Any, send: Any) -> None:
    """Look at a request that was answered: a function with the signature of an ASGI app that is not an app."""


class Lookup:
    """An object with the signature of an ASGI app that returns a dict."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> dict[str, str]:
        await anyio.lowlevel.checkpoint()
        return {"user": "u"}


lookup = Lookup()


@habit(bare=True)
async def asks_an_object_of_its_shape(call: Call, go: Go) -> Any:
    note(call.scope, f"{call.part.number} is {(await lookup(call.scope, call.receive, call.send))['user']}")
    return await go()


class Lazy:
    """An object that becomes a str when it is looked at, as a lazy translation does."""

    def __init__(self, evaluate: Callable[[], None]) -> None:
        self.evaluate = evaluate

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        self.evaluate()
        return str

    def __getattr__(self, name: str) -> Any:
        self.evaluate()
        return getattr("", name)


def _takes_three(first: Any, second: Any, third: Any) -> None: ...


@habit(bare=True)
async def puts_a_hostile_object_into_the_scope(call: Call, go: Go) -> Any:
    call.scope["session"] = hostile = Hostile()
    _takes_three(hostile, call.receive, call.send)
    return await go()


@habit(bare=True)
async def puts_a_lazy_object_into_the_scope(call: Call, go: Go) -> Any:
    call.scope["user"] = lazy = Lazy(partial(note, call.scope, "evaluated"))
    _takes_three(lazy, call.receive, call.send)
    return await go()


@habit()
async def sets_a_context_variable(call: Call, go: Go) -> Any:
    token = variable.set(str(call.part.number))
    try:
        return await go()
    finally:
        variable.reset(token)


@habit()
async def suspends(call: Call, go: Go) -> Any:
    await anyio.lowlevel.checkpoint()
    answer = await go()
    await anyio.lowlevel.checkpoint()
    return answer


@habit()
async def sets_a_time_limit(call: Call, go: Go) -> Any:
    with anyio.fail_after(60):
        return await go()


@asynccontextmanager
async def _opened() -> Any:
    await anyio.lowlevel.checkpoint()
    yield
    await anyio.lowlevel.checkpoint()


@habit()
async def stands_in_a_context_manager(call: Call, go: Go) -> Any:
    async with _opened():
        return await go()


@habit()
async def goes_on_in_an_async_generator(call: Call, go: Go) -> Any:
    async def generator() -> Any:
        yield await go()

    answer = None
    async with aclosing(generator()) as answers:
        async for yielded in answers:
            answer = yielded
    return answer


@habit(tasks=2)
async def spawns_two_tasks(call: Call, go: Go) -> Any:
    async with anyio.create_task_group() as group:
        group.start_soon(anyio.sleep, 0)
        group.start_soon(anyio.sleep, 0)
    return await go()


@habit(tasks=1, asyncio_only=True)
async def spawns_a_task_that_runs_beside_its_inside(call: Call, go: Go) -> Any:
    task = asyncio.get_running_loop().create_task(asyncio.sleep(0))
    answer = await go()
    await task
    return answer


@habit(tasks=1)
async def spins_in_a_task_beside_its_inside(call: Call, go: Go) -> Any:
    async with anyio.create_task_group() as group:
        group.start_soon(call.part.spin_later)
        return await go()


@habit(tasks=1, asyncio_only=True)
async def spins_in_a_task_that_nobody_awaits(call: Call, go: Go) -> Any:
    call.part.left_behind = asyncio.create_task(call.part.spin_later())
    answer = await go()
    await anyio.lowlevel.checkpoint()
    return answer


@habit(tasks=1, asyncio_only=True)
async def spins_in_a_task_that_it_leaves(call: Call, go: Go) -> Any:
    call.part.left_behind = asyncio.create_task(call.part.spin_later())
    return await go()


@habit(asyncio_only=True)
async def spins_in_a_callback(call: Call, go: Go) -> Any:
    asyncio.get_running_loop().call_soon(call.part.spin)
    answer = await go()
    await anyio.lowlevel.checkpoint()
    return answer


@habit(asyncio_only=True)
async def spins_in_a_threadsafe_callback(call: Call, go: Go) -> Any:
    asyncio.get_running_loop().call_soon_threadsafe(call.part.spin)
    answer = await go()
    await anyio.lowlevel.checkpoint()
    return answer


@habit(tasks=1, asyncio_only=True)
async def spins_at_the_end_of_a_generator(call: Call, go: Go) -> Any:
    """Leave a generator early, which the event loop closes in a task."""

    async def generator() -> Any:
        try:
            yield 1
            yield 2
        finally:
            call.part.spin()

    async for _ in generator():
        break
    answer = await go()
    for _ in range(3):
        await anyio.lowlevel.checkpoint()
    return answer


@habit(bare=True, tasks=1)
async def sends_from_a_task(call: Call, go: Go) -> Any:
    """Hand each message to a task that sends it, as a streaming response does."""
    send = call.send
    async with anyio.create_task_group() as group:
        give, take = anyio.create_memory_object_stream[Any](1)

        async def sending() -> None:
            async with take:
                async for message in take:
                    await send(message)

        group.start_soon(sending)
        call.send = give.send
        async with give:
            return await go()


@habit(bare=True)
async def tells_its_inside(call: Call, go: Go) -> Any:
    call.scope["told"] = True
    return await go()


@habit(bare=True)
async def spins_if_it_was_told(call: Call, go: Go) -> Any:
    if call.scope.get("told"):
        call.part.spin()
    return await go()


@habit(tasks=1)
async def runs_its_inside_in_a_task(call: Call, go: Go) -> Any:
    answers: list[Any] = []

    async def run() -> None:
        answers.append(await go())

    async with anyio.create_task_group() as group:
        group.start_soon(run)
    return answers[0]


@habit(tasks=1, asyncio_only=True)
async def awaits_a_task_of_its_inside(call: Call, go: Go) -> Any:
    return await asyncio.create_task(go())  # type: ignore[arg-type]


@habit(tasks=1, asyncio_only=True)
async def shields_its_inside(call: Call, go: Go) -> Any:
    return await asyncio.shield(go())


@habit(threads=1)
async def hands_work_to_a_thread(call: Call, go: Go) -> Any:
    await anyio.to_thread.run_sync(sum, range(10))
    return await go()


@habit(threads=1, asyncio_only=True)
async def hands_work_to_asyncios_pool(call: Call, go: Go) -> Any:
    await asyncio.to_thread(sum, range(10))
    return await go()


@habit(tasks=None, threads=1)
async def calls_its_inside_from_a_thread(call: Call, go: Go) -> Any:
    return await anyio.to_thread.run_sync(anyio.from_thread.run, go)


# Everything inside is charged to the layer, and the loop of the thread spawns for itself.
@habit(tasks=None, threads=None, asyncio_only=True, bare=True)
async def runs_its_inside_on_the_loop_of_a_thread(call: Call, go: Go) -> Any:
    return await asyncio.to_thread(asyncio.run, go())


async def _body(receive: Any) -> list[Any]:
    messages = [await receive()]
    while messages[-1].get("more_body"):
        messages.append(await receive())
    return messages


def _replaying(messages: list[Any], receive: Any) -> Callable[[], Awaitable[Any]]:
    """Return a `receive` that repeats these messages before the next ones from `receive`."""
    left = iter(messages)

    async def replaying() -> Any:
        for message in left:
            return message
        return await receive()

    return replaying


@habit(bare=True, tasks=1)
async def listens_for_the_disconnect(call: Call, go: Go) -> Any:
    receive = call.receive
    call.receive = _replaying(await _body(receive), receive)

    async def listen() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    async with anyio.create_task_group() as group:
        group.start_soon(listen)
        answer = await go()
        group.cancel_scope.cancel()
    return answer


@habit(bare=True)
async def enters_its_inside_twice(call: Call, go: Go) -> Any:
    """Retry like a retrying layer: messages and exceptions of the first attempt are discarded."""
    first = replace(call)
    body = await _body(call.receive)

    async def nowhere(message: Any) -> None:
        pass

    call.scope, call.receive, call.send = dict(first.scope), _replaying(body, first.receive), nowhere
    try:
        await go()
    except Exception:
        note(first.scope, f"{call.part.number} tries again")
    call.scope, call.receive, call.send = first.scope, _replaying(body, first.receive), first.send
    return await go()


@habit(bare=True)
async def catches_exceptions(call: Call, go: Go) -> Any:
    try:
        return await go()
    except Exception:
        await respond(call.send, journal(call.scope), 500)
        return None


@habit(bare=True)
async def returns_a_value_of_its_own(call: Call, go: Go) -> Any:
    """Return a value as a helper does: a layer that sends the response is a layer whatever it returns."""
    await go()
    return f"the answer of {call.part.number}"


@habit(bare=True)
async def answers_by_itself(call: Call, go: Go) -> Any:
    await respond(call.send, journal(call.scope), 401)


@habit(bare=True)
async def answers_now_and_then(call: Call, go: Go) -> Any:
    """Answer some requests as a cache does, but none of the first."""
    if call.part.performed[NOW_AND_THEN] > SOME_CALLS and call.part.chance.random() < ANSWERED:
        await respond(call.send, journal(call.scope))
        return None
    return await go()


@habit(bare=True)
async def builds_its_inside_again(call: Call, go: Go) -> Any:
    """Replace the layers inside, once, after some requests."""
    part = call.part
    if part.build_inside is not None and part.performed["builds its inside again"] > SOME_CALLS:
        part.rebuilt = call.app = part.rebuilt or part.build_inside()
    return await go()


@habit(bare=True)
async def spins_at_every_message(call: Call, go: Go) -> Any:
    send = call.send

    async def spinning(message: Any) -> None:
        if message["type"] == "http.response.start":
            call.part.spin()
        await send(message)

    call.send = spinning
    return await go()


# ---- forms ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Form:
    """A kind of callable: how to make it, the names of its rows, which habits it can have and whether it can spin."""

    make: Callable[[Part, App], App]
    rows: tuple[str, ...]
    habits: Literal["any", "request", "none"] = "any"
    spins: bool = True
    tasks: int | None = 0


FORMS: dict[str, Form] = {}


def _function(name: str) -> str:
    return f"function[{__name__}.{name}]"


class Plain:
    def __init__(self, part: Part, app: App) -> None:
        self.app = app
        self.part = part

    async def __call__(self, scope: Any, receive: Any, send: Any) -> Any:
        return await self.part.act(Call(scope, receive, send, self.app, self.part))


class Inherits(Plain):
    async def __call__(self, scope: Any, receive: Any, send: Any) -> Any:
        return await super().__call__(scope, receive, send)


@dataclass(frozen=True)
class Frozen:
    part: Part
    app: App

    async def __call__(self, scope: Any, receive: Any, send: Any) -> Any:
        return await self.part.act(Call(scope, receive, send, self.app, self.part))


@dataclass(slots=True)
class Slotted:
    """A layer that is unhashable and has neither `__dict__` nor `__weakref__`."""

    part: Part
    app: App

    async def __call__(self, scope: Any, receive: Any, send: Any) -> Any:
        return await self.part.act(Call(scope, receive, send, self.app, self.part))


class Updated(Plain):
    """A layer that has copied all attributes of the app inside it."""

    def __init__(self, part: Part, app: App) -> None:
        functools.update_wrapper(self, app)
        super().__init__(part, app)


class TenantRouter(Plain):
    """A layer with the name of a router."""


class Guard(Plain):
    """A layer that lists routes, and has methods that a route has too."""

    routes = ("/sub/x",)

    def matches(self, scope: Any) -> bool:
        return scope["path"] in self.routes

    def handle(self) -> None: ...


class Forwarding(Plain):
    """A layer that has the routes of the app inside it."""

    @property
    def routes(self) -> Any:
        return getattr(self.app, "routes", [])


class Method:
    """A layer entered through a method other than `__call__`."""

    def __init__(self, part: Part, app: App) -> None:
        self.app = app
        self.part = part

    async def handle(self, scope: Any, receive: Any, send: Any) -> Any:
        return await self.part.act(Call(scope, receive, send, self.app, self.part))


class Made:
    """A layer that makes a function, which enters a method with the app as an argument."""

    def __init__(self, part: Part) -> None:
        self.part = part

    def __call__(self, app: App) -> App:
        handle = self.handle

        async def entering(scope: Any, receive: Any, send: Any) -> Any:
            return await handle(scope=scope, receive=receive, send=send, next_app=app)

        return entering

    async def handle(self, scope: Any, receive: Any, send: Any, next_app: App) -> Any:
        return await self.part.act(Call(scope, receive, send, next_app, self.part))


def _wrapped(function: Any) -> Any:
    @functools.wraps(function)
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        return await function(*args, **kwargs)

    return wrapper


class Decorated(Plain):
    @_wrapped
    async def __call__(self, scope: Any, receive: Any, send: Any) -> Any:
        return await self.part.act(Call(scope, receive, send, self.app, self.part))


@wrapt.decorator  # type: ignore[misc]
async def _spinning_first(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """Spin in the decorator, before the wrapped `__call__`."""
    instance.part.spin()
    return await wrapped(*args, **kwargs)


class WraptCall(Plain):
    @_spinning_first
    async def __call__(self, scope: Any, receive: Any, send: Any) -> Any:
        note(scope, f"{self.part.number}:{variable.get()}")
        return await performed(Call(scope, receive, send, self.app, self.part), self.part.layer.habits)


class Proxy(wrapt.CallableObjectProxy):  # type: ignore[misc]
    """A layer whose `__class__` is that of the app inside it."""

    def __init__(self, part: Part, app: App) -> None:
        super().__init__(app)
        self._self_part = part

    async def __call__(self, scope: Any, receive: Any, send: Any) -> Any:
        return await self._self_part.act(Call(scope, receive, send, self.__wrapped__, self._self_part))


class Keywords(Plain):
    """A layer that passes its arguments on by keyword."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> Any:
        async def by_keyword(*arguments: Any) -> Any:
            return await self.app(**dict(zip(("scope", "receive", "send"), arguments, strict=True)))

        return await self.part.act(Call(scope, receive, send, by_keyword, self.part))


class Returning(Plain):
    """A layer with a plain `__call__` that returns the coroutine of its own method."""

    def __call__(self, scope: Any, receive: Any, send: Any) -> Any:
        return self.run(scope, receive, send)

    async def run(self, scope: Any, receive: Any, send: Any) -> Any:
        return await self.part.act(Call(scope, receive, send, self.app, self.part))


class PassingOn(Plain):
    """A layer with a plain `__call__` that returns the coroutine of the app inside it."""

    def __call__(self, scope: Any, receive: Any, send: Any) -> Any:
        note(scope, f"{self.part.number}:{variable.get()}")
        self.part.spin()
        return self.app(scope, receive, send)


class Twice(Plain):
    """A layer that occurs a second time in the stack, directly outside the endpoint."""

    endpoint: App

    async def __call__(self, scope: Any, receive: Any, send: Any) -> Any:
        key = f"twice {self.part.number}"
        app = self.endpoint if key in scope else self.app
        return await self.part.act(Call(dict(scope, **{key: True}), receive, send, app, self.part))


class Dispatching(BaseHTTPMiddleware):
    def __init__(self, part: Part, app: App) -> None:
        super().__init__(app)
        self.part = part

    async def dispatch(self, request: Any, call_next: Any) -> Response:
        return await _dispatched(self.part, request, call_next)


async def _dispatched(part: Part, request: Any, call_next: Any) -> Response:
    async def inside(*_: Any) -> Any:
        return await call_next(request)

    response: Response = await part.act(Call(request.scope, None, None, inside, part))
    response.headers[f"x-layer-{part.number}"] = "1"
    return response


class _Dispatch:
    def __init__(self, part: Part) -> None:
        self.part = part

    async def dispatch(self, request: Any, call_next: Any) -> Response:
        return await _dispatched(self.part, request, call_next)


def closure(part: Part, app: App) -> App:
    async def layer(scope: Any, receive: Any, send: Any) -> Any:
        return await part.act(Call(scope, receive, send, app, part))

    return layer


def wrapping(part: Part, app: App) -> App:
    @functools.wraps(app)
    async def layer(scope: Any, receive: Any, send: Any) -> Any:
        return await part.act(Call(scope, receive, send, app, part))

    return layer


def passing_on(part: Part, app: App) -> App:
    def layer(scope: Any, receive: Any, send: Any) -> Any:
        note(scope, f"{part.number}:{variable.get()}")
        part.spin()
        return app(scope, receive, send)

    return layer


async def _leading(part: Part, app: App, scope: Any, receive: Any, send: Any) -> Any:
    return await part.act(Call(scope, receive, send, app, part))


async def _trailing(scope: Any, receive: Any, send: Any, app: Any = None, part: Any = None) -> Any:
    return await part.act(Call(scope, receive, send, app, part))


async def _keyword_only(scope: Any, receive: Any, send: Any, *, app: App, part: Part) -> Any:
    return await part.act(Call(scope, receive, send, app, part))


async def _options(scope: Any, receive: Any, send: Any, **options: Any) -> Any:
    return await options["part"].act(Call(scope, receive, send, options["app"], options["part"]))


def _partial(function: Any) -> Callable[[Part, App], App]:
    return lambda part, app: partial(function, app=app, part=part)


FORMS |= {
    "class": Form(Plain, ("Plain",)),
    "class that calls super": Form(Inherits, ("Inherits",)),
    "frozen dataclass": Form(Frozen, ("Frozen",)),
    "slotted dataclass": Form(Slotted, ("Slotted",)),
    "class named like a router": Form(TenantRouter, ("TenantRouter",)),
    "class that lists routes": Form(Guard, ("Guard",)),
    "class that forwards routes": Form(Forwarding, ("Forwarding",)),
    "bound method": Form(lambda part, app: Method(part, app).handle, ("Method",)),
    "function made by an object": Form(lambda part, app: Made(part)(app), ("Made",)),
    "decorated call": Form(Decorated, ("Decorated",)),
    "wrapt decorator on the call": Form(WraptCall, ("WraptCall",)),
    "wrapt proxy round the inside": Form(Proxy, ("Proxy",)),
    "wrapt proxy round the layer": Form(lambda part, app: wrapt.CallableObjectProxy(Plain(part, app)), ("Plain",)),
    "class that passes keywords": Form(Keywords, ("Keywords",)),
    "plain call that returns its own coroutine": Form(Returning, ("Returning",)),
    "plain call that returns the inner coroutine": Form(PassingOn, ("PassingOn",), "none"),
    "plain function that returns the inner coroutine": Form(passing_on, (_function("passing_on"),), "none"),
    "closure": Form(closure, (_function("closure"),)),
    "class with the attributes of the app": Form(Updated, ("Updated",)),
    "wraps the app": Form(wrapping, (_function("wrapping"),)),
    "partial with arguments": Form(lambda part, app: partial(_leading, part, app), (_function("_leading"),)),
    "partial with keywords": Form(_partial(_trailing), (_function("_trailing"),)),
    "partial with keyword-only arguments": Form(_partial(_keyword_only), (_function("_keyword_only"),)),
    "partial with options": Form(_partial(_options), (_function("_options"),)),
    "BaseHTTPMiddleware": Form(Dispatching, ("Dispatching",), "request", tasks=None),
    "BaseHTTPMiddleware of a function": Form(
        lambda part, app: BaseHTTPMiddleware(app, dispatch=partial(_dispatched, part)),
        ("BaseHTTPMiddleware[_dispatched]",),
        "request",
        tasks=None,
    ),
    "BaseHTTPMiddleware of a method": Form(
        lambda part, app: BaseHTTPMiddleware(app, dispatch=_Dispatch(part).dispatch),
        ("BaseHTTPMiddleware[dispatch]",),
        "request",
        tasks=None,
    ),
    "the same object twice": Form(Twice, ("Twice",)),
}
for _make, _rows in HOLDERS:
    _names = tuple(_name.partition("#")[0] for _name in _rows)
    # These forms only test where the inner app is stored, so they have no habits.
    _tasks = None if "InATask" in _names else 0
    FORMS[f"no-op {_names[0]}"] = Form(
        lambda part, app, make=_make: make(app), _names, "none", spins=False, tasks=_tasks
    )


# ---- the app of a description -----------------------------------------------------------------------------------


@dataclass
class Built:
    """An app made from a description; `parts` are its layers, outermost first."""

    stack: Stack
    app: App = field(init=False)
    parts: list[Part] = field(init=False)

    def __post_init__(self) -> None:
        self.parts = [Part(number, layer) for number, layer in enumerate(self.stack.layers)]
        cut = len(self.parts) - self.stack.below
        outer, inner = self.parts[:cut], self.parts[cut:]
        if self.stack.base == "bare":
            self.app = _chain(self.parts, _BARE[self.stack.endpoint])
            return
        if self.stack.base == "router":
            page = Route("/sub/x", _PAGES[self.stack.endpoint], methods=["GET", "POST"])
            self.app = _chain(self.parts, Router([page]))
            return
        middleware = [Middleware(_made, part) for part in outer]
        route: Any
        if self.stack.base == "mount":
            route = Mount("/sub", app=_chain(inner, _BARE[self.stack.endpoint]))
        else:
            below = [Middleware(_made, part) for part in inner] or None
            route = Route("/sub/x", _PAGES[self.stack.endpoint], methods=["GET", "POST"], middleware=below)
        self.app = Starlette(routes=[route], middleware=middleware)


def _made(app: App, part: Part) -> App:
    return FORMS[part.layer.form].make(part, app)


def _chain(parts: Sequence[Part], endpoint: App) -> App:
    app, twice = endpoint, {}
    for part in parts:
        if part.layer.form == "the same object twice":
            app = twice[part] = Twice(part, app)
            twice[part].endpoint = twice[part].app
    for part in reversed(parts):
        if part in twice:
            twice[part].app = app
            app = twice[part]
        else:
            if not twice:
                part.build_inside = partial(_chain, parts[parts.index(part) + 1 :], endpoint)
            app = _made(app, part)
    return app


async def _plain(scope: Any, receive: Any, send: Any) -> None:
    await respond(send, journal(scope))


async def _streaming(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for number in range(3):
        await send({"type": "http.response.body", "body": str(number).encode(), "more_body": True})
        await anyio.lowlevel.checkpoint()
    await send({"type": "http.response.body", "body": journal(scope)})


async def _reads(scope: Any, receive: Any, send: Any) -> None:
    body, more = b"", True
    while more:
        message = await receive()
        body += message["body"]
        more = message.get("more_body", False)
    await respond(send, body + journal(scope))


async def _raises(scope: Any, receive: Any, send: Any) -> None:
    raise BoomError("boom")


async def _page(request: Any) -> Response:
    return PlainTextResponse(journal(request.scope))


async def _streaming_page(request: Any) -> Response:
    async def pieces() -> Any:
        for number in range(3):
            yield str(number)
            await anyio.lowlevel.checkpoint()
        yield journal(request.scope)

    return StreamingResponse(pieces())


async def _reading_page(request: Any) -> Response:
    return PlainTextResponse(await request.body() + journal(request.scope))


async def _raising_page(request: Any) -> Response:
    raise BoomError("boom")


_BARE: dict[EndpointKind, App] = {"plain": _plain, "streaming": _streaming, "reads": _reads, "raises": _raises}
_PAGES: dict[EndpointKind, App] = {
    "plain": _page,
    "streaming": _streaming_page,
    "reads": _reading_page,
    "raises": _raising_page,
}


# ---- the expected rows --------------------------------------------------------------------------------------------


def rows_of(built: Built) -> list[Row]:
    """Return the expected rows, outermost first. `built` must have answered exactly one request."""
    cut = len(built.parts) - built.stack.below
    places: list[Part | str] = list(built.parts[:cut])
    if built.stack.base not in ("bare", "router"):
        places = ["ServerErrorMiddleware", *places, "ExceptionMiddleware"]
    if built.parts[cut:]:
        places += ["Router", *built.parts[cut:]]
    rows: list[Row] = []
    entered, hidden = True, False
    for place in places:
        rows_of_place = [Row(place, entered)] if isinstance(place, str) else _rows_of(place, entered)
        rows += [replace(row, hidden=hidden) for row in rows_of_place]
        habits = () if isinstance(place, str) else place.layer.habits
        entered = entered and "answers by itself" not in habits
        hidden = hidden or IN_A_THREAD in habits
    if hidden:  # The second call of Twice may be in the thread, so its counts are unknown.
        rows = [replace(row, tasks=None, threads=None) if row.name == Twice.__name__ else row for row in rows]
    return rows


def _rows_of(part: Part, entered: bool) -> list[Row]:
    form = FORMS[part.layer.form]
    own, *further = form.rows
    habits = part.layer.habits
    tasks = _sum([form.tasks, *(_times(HABITS[name].tasks, part.performed[name]) for name in habits)])
    threads = _sum([_times(HABITS[name].threads, part.performed[name]) for name in habits])
    return [Row(own, entered, part, tasks, threads), *(Row(name, entered) for name in further)]


def _times(each: int | None, times: int) -> int | None:
    return None if each is None else each * times


def _sum(counts: Sequence[int | None]) -> int | None:
    return None if None in counts else sum(count for count in counts if count is not None)


# ---- random descriptions ----------------------------------------------------------------------------------------


def allowed_habits(form: str, loop: LoopName) -> list[str]:
    """Return the habits that a layer of this form can have on this loop."""
    kind = FORMS[form].habits
    return [
        name
        for name, habit in HABITS.items()
        if kind != "none" and not (kind == "request" and habit.bare) and not (loop == "trio" and habit.asyncio_only)
    ]


@st.composite
def layers(draw: Any, loop: LoopName, without: frozenset[str], *, twice: bool) -> Layer:
    """Draw a layer that works on this loop."""
    forms = [name for name in FORMS if name not in without and (twice or name != "the same object twice")]
    form = draw(st.sampled_from(forms))
    possible = [name for name in allowed_habits(form, loop) if name not in without]
    habits = draw(st.lists(st.sampled_from(possible), max_size=3, unique=True)) if possible else []
    # No habit can come after one that does not call the app inside.
    habits.sort(key="answers by itself".__eq__)
    return Layer(form, tuple(habits), draw(st.sampled_from((0, 0, SPIN_US))) if FORMS[form].spins else 0)


def is_telling(stack: Stack) -> bool:
    """Return whether a measurement can recognise all layers of the stack.

    An app inside a layer that answers by itself is recognised by the names of its parameters only. An app with other
    names raises a TypeError if it is called by these, which a layer outside may catch. Objects bound to one
    loop (anyio's streams and threads, asyncio's events) may fail on the loop of another thread: such apps can hang
    without a measurement as well.
    """
    pairs = zip(stack.layers, stack.layers[1:], strict=False)
    answering = sum(NOW_AND_THEN in layer.habits for layer in stack.layers)
    # Such a layer answers 200, as the usual request must.
    if answering > 1 or (answering and (stack.endpoint == "raises" or "answers by itself" in _habits(stack))):
        return False
    # With other habits of its layer, and in the first of two entries, the last message may come later.
    mirroring = [layer.habits for layer in stack.layers if MIRRORS in layer.habits]
    if mirroring and (max(map(len, mirroring)) > 1 or "enters its inside twice" in _habits(stack)):
        return False
    nameless = any(
        ("answers by itself" in outer.habits or outer.form in NAMING) and inner.form in NAMELESS
        for outer, inner in pairs
    )
    habits = _habits(stack)
    # A StreamingResponse listens for the disconnect.
    streams = any(FORMS[layer.form].habits == "request" for layer in stack.layers) or (
        stack.base in ("starlette", "route") and stack.endpoint == "streaming"
    )
    return not nameless and not (IN_A_THREAD in habits and (streams or habits & OF_ONE_LOOP))


def _habits(stack: Stack) -> set[str]:
    return {name for layer in stack.layers for name in layer.habits}


@st.composite
def stacks(draw: Any, without: frozenset[str] = frozenset()) -> Stack:
    """Draw a stack without the forms and habits named in `without`."""
    loop: LoopName = draw(st.sampled_from(("asyncio", "asyncio", "uvloop", "trio")))
    base: Base = draw(st.sampled_from(("bare", "bare", "router", "starlette", "mount", "route")))
    chosen = draw(st.lists(layers(loop, without, twice=base == "bare"), min_size=1, max_size=5))
    below = draw(st.integers(0, len(chosen))) if base in ("mount", "route") else 0
    endpoint: EndpointKind = draw(st.sampled_from(("plain", "plain", "streaming", "reads", "raises")))
    stack = Stack(tuple(chosen), base, below, endpoint, draw(st.sampled_from(("GET", "GET", "POST"))), loop)
    assume(is_telling(stack))
    return stack


def smaller(stack: Stack) -> Iterator[Stack]:
    """Yield slightly simpler descriptions, the largest simplification first."""
    for number in range(len(stack.layers)):
        left = (*stack.layers[:number], *stack.layers[number + 1 :])
        yield replace(stack, layers=left, below=min(stack.below, len(left)))
    if stack.base != "bare":
        yield replace(stack, base="bare", below=0)
    for change in ({"endpoint": "plain"}, {"method": "GET"}, {"loop": "asyncio"}, {"below": 0}):
        if any(getattr(stack, name) != value for name, value in change.items()):
            yield replace(stack, **change)  # type: ignore[arg-type]
    for number, layer in enumerate(stack.layers):
        for less in _smaller_layers(layer):
            yield replace(stack, layers=(*stack.layers[:number], less, *stack.layers[number + 1 :]))


def _smaller_layers(layer: Layer) -> Iterator[Layer]:
    for name in layer.habits:
        yield replace(layer, habits=tuple(other for other in layer.habits if other != name))
    if layer.spin_us:
        yield replace(layer, spin_us=0)
    if layer.form != "class":
        yield replace(layer, form="class")
