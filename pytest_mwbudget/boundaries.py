"""Put a probe at the boundary of every layer, and take it away again.

A layer is entered through a Python function: its class's `__call__`, or the function itself. Whatever holds the
layer (an attribute, a list, a closure, a bound method, a route) in the end calls that function, so the probe goes
there: for the time of a measurement the function's *code* is exchanged for a trampoline to the probe, which
recognises the layer, reads the clock, and calls a twin of the function with the original code. No holder, no
instance and no class changes; putting the code back restores everything, however the layer is referred to.

A probe does nothing but append to a log: who owns the time from here on, and what the clock says. `timeline` reads
it. At one boundary of a request the probe stands twice, with nothing between: what that null layer reads is what a
probe costs at that place, in that request.

Where more than one task takes part in a request, a stepper rides on each: at every suspension and resumption it notes
whose time it is, so that tasks which take turns cannot charge one another.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter_ns
from types import CodeType, FunctionType
from typing import Any, TypeAlias

from .asgi import ASGIApp
from .discovery import Entry, Stack

Clock: TypeAlias = Callable[[], int]
# owner, nanoseconds, owner, nanoseconds, …: from that moment on the time is that owner's.
Log: TypeAlias = list[int]
# By the identity of the argument before the scope: whose time it is inside, and what to call.
Targets: TypeAlias = dict[int, tuple[int, Callable[..., Awaitable[Any]]]]

HARNESS = 0  # the server's end, outside everything
SUSPENDED = -1  # from a suspension to the next resumption, which tells whose time it was

_PROBE = "the probe stands here"


# ---- trampolines ------------------------------------------------------------------------------------------------
# These bodies run in place of a user's function and with the user's globals, so they must not use a global name: the
# probe is put among their constants.


async def _as_method(lead, scope, receive, send):  # type: ignore[no-untyped-def]
    probe = "the probe stands here"
    return await probe((lead,), scope, receive, send)  # type: ignore[operator]


async def _as_function(scope, receive, send):  # type: ignore[no-untyped-def]
    probe = "the probe stands here"
    return await probe((), scope, receive, send)  # type: ignore[operator]


async def _as_anything(*arguments, **named):  # type: ignore[no-untyped-def]
    probe = "the probe stands here"
    return await probe(arguments[:-3], *arguments[-3:], **named)  # type: ignore[operator]


def _trampoline(original: CodeType, probe: Callable[..., Awaitable[Any]]) -> CodeType:
    """Code that can stand in for `original` in its function and calls `probe` instead."""
    plain = not original.co_kwonlyargcount and not original.co_flags & (0x04 | 0x08)  # no *args, no **kwargs
    shape = {3: _as_function, 4: _as_method}.get(original.co_argcount if plain else 0, _as_anything)
    code = shape.__code__
    count = code.co_argcount
    return code.replace(
        co_consts=tuple(probe if constant == _PROBE else constant for constant in code.co_consts),
        # The same cells as before, although the trampoline uses none, or the function would not take the code; the
        # same parameter names, for callers that use them.
        co_freevars=original.co_freevars,
        co_varnames=original.co_varnames[:count] + code.co_varnames[count:],
        co_name=original.co_name,
        co_qualname=original.co_qualname,
    )


def _twin(function: FunctionType, code: CodeType) -> FunctionType:
    """A function like `function` in everything, the cells and globals shared, but with `code`."""
    twin = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
    twin.__kwdefaults__ = function.__kwdefaults__
    return twin


# ---- probes -----------------------------------------------------------------------------------------------------


def _probe(targets: Targets, original: FunctionType, timeline: Log, clock: Clock) -> Callable[..., Awaitable[Any]]:
    """A probe for the layers in `targets`; other objects that share the function pass untouched."""
    log, hit_for = timeline.append, targets.get

    async def probe(leads: tuple[object, ...], scope: Any, receive: Any, send: Any) -> Any:
        hit = hit_for(key_of(leads))
        if hit is None:
            return await original(*leads, scope, receive, send)
        owner, target = hit
        outer = timeline[-2]

        async def probed_receive() -> Any:
            log(outer)
            log(clock())
            try:
                return await receive()
            finally:
                log(owner)
                log(clock())

        async def probed_send(message: Any) -> Any:
            log(outer)
            log(clock())
            try:
                return await send(message)
            finally:
                log(owner)
                log(clock())

        log(owner)
        log(clock())
        try:
            return await target(*leads, scope, probed_receive, probed_send)
        finally:
            log(outer)
            log(clock())

    return probe


def key_of(leads: tuple[object, ...]) -> int:
    """What tells the layers that share a function from one another: the argument right before the scope."""
    return id(leads[-1]) if leads else 0


@types.coroutine
def stepped(awaitable: Awaitable[Any], timeline: Log, clock: Clock) -> Generator[Any, Any, Any]:
    """Run `awaitable`, and note in the log when its task is suspended and, at its resumption, whose time begins."""
    log = timeline.append
    steps: Any = awaitable if isinstance(awaitable, Coroutine) else awaitable.__await__()
    try:
        waiting_for = steps.send(None)
        while True:
            owner = timeline[-2]
            log(SUSPENDED)
            log(clock())
            try:
                value = yield waiting_for
            except BaseException as error:
                log(owner)
                log(clock())
                waiting_for = steps.throw(error)
            else:
                log(owner)
                log(clock())
                waiting_for = steps.send(value)
    except StopIteration as stop:
        return stop.value


# ---- placing ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Site:
    """One function that enters one or more layers."""

    function: FunctionType
    code: CodeType
    twin: FunctionType
    targets: Targets = field(default_factory=dict)
    inner_targets: Targets = field(default_factory=dict)
    outer_owners: dict[int, int] = field(default_factory=dict)
    doubled: FunctionType | None = None


@dataclass(frozen=True, slots=True)
class TaskLayer:
    """An entry that runs its only `child` in a task of its own, both by index."""

    index: int
    child: int


def task_layers(stack: Stack) -> list[TaskLayer]:
    """The layers that run what is inside them in a task of their own, outermost first."""
    found = []
    for child, entry in enumerate(stack.entries):
        if entry.own_task and entry.parent is not None and entry.function is not None:
            parent = stack.entries[entry.parent]
            alone = sum(other.parent == entry.parent for other in stack.entries) == 1
            if alone and parent.function is not None:
                found.append(TaskLayer(entry.parent, child))
    return found


class Probes:
    """The probes of one stack: one for each entry that has a function, down to the endpoint's.

    Entry `i` owns the time as owner `i + 1`, the null layer as `null_owner`. `log` holds the current request and is
    the same list for ever; begin it with `start`. The stack must be traced after the app has started, and its objects
    stay alive as long as this does.
    """

    def __init__(self, stack: Stack, clock: Clock = perf_counter_ns) -> None:
        self.stack = stack
        self.clock = clock
        self.log: Log = []
        self.null_owner = len(stack.entries) + 1
        self.stepping = stack.tasks
        last = len(stack.entries) if stack.endpoint is None else stack.endpoint + 1
        self.probed = tuple(i for i in range(last) if stack.entries[i].function is not None)
        self._sites: dict[int, _Site] = {}

    def owner_of_parent(self, index: int) -> int:
        """Whose time it is just outside entry `index`: its nearest probed ancestor's, or the harness's."""
        parent = self.stack.entries[index].parent
        while parent is not None and parent not in self.probed:
            parent = self.stack.entries[parent].parent
        return HARNESS if parent is None else parent + 1

    def start(self) -> None:
        """Begin the log of a request."""
        self.log[:] = [HARNESS, self.clock()]

    async def watch(self, app: ASGIApp, scope: Any, receive: Any, send: Any) -> None:
        """Call the app with a log of its own."""
        self.start()
        if self.stepping:
            await stepped(app(scope, receive, send), self.log, self.clock)
        else:
            await app(scope, receive, send)

    @contextmanager
    def installed(self, indexes: Iterable[int]) -> Iterator[None]:
        """Place the probes of these entries, and take them all away at the end, whatever happens."""
        try:
            for index in indexes:
                self._add(index)
            for site in self._sites.values():
                site.function.__code__ = _trampoline(site.code, self._outermost(site))
            yield
        finally:
            for site in self._sites.values():
                site.function.__code__ = site.code
            self._sites.clear()

    def _add(self, index: int) -> None:
        entry = self.stack.entries[index]
        assert entry.function is not None
        site = self._sites.get(id(entry.function))
        if site is None:
            code = entry.function.__code__
            site = self._sites[id(entry.function)] = _Site(entry.function, code, _twin(entry.function, code))
            inner = _probe(site.inner_targets, site.twin, self.log, self.clock)
            site.doubled = _twin(entry.function, _trampoline(code, inner))
        key = key_of(entry.leads)
        site.targets[key] = site.inner_targets[key] = (index + 1, site.twin)
        if entry.own_task:
            site.outer_owners[key] = self.owner_of_parent(index)

    def _outermost(self, site: _Site) -> Callable[..., Awaitable[Any]]:
        """The site's probe, with a stepper outside it for layers that begin a task of the request."""
        probe = _probe(site.targets, site.twin, self.log, self.clock)
        if not site.outer_owners:
            return probe

        async def first_of_its_task(leads: tuple[object, ...], scope: Any, receive: Any, send: Any) -> Any:
            outer = site.outer_owners.get(key_of(leads))
            if outer is None or not self.stepping:
                return await probe(leads, scope, receive, send)
            self.log += (outer, self.clock())
            return await stepped(probe(leads, scope, receive, send), self.log, self.clock)

        return first_of_its_task

    def _site_of(self, index: int) -> tuple[_Site, int]:
        entry = self.stack.entries[index]
        return self._sites[id(entry.function)], key_of(entry.leads)

    @contextmanager
    def doubled(self, index: int) -> Iterator[None]:
        """A second probe right inside the one of entry `index`: between the two is the null layer."""
        site, key = self._site_of(index)
        assert site.doubled is not None
        single = site.targets[key]
        site.targets[key] = (self.null_owner, site.doubled)
        try:
            yield
        finally:
            site.targets[key] = single

    @contextmanager
    def bypassed(self, layers: Sequence[TaskLayer]) -> Iterator[None]:
        """Requests pass from the boundary of each of `layers` straight to its child, as if the layer were not there."""
        present: list[tuple[_Site, int, tuple[int, Callable[..., Awaitable[Any]]]]] = []
        for layer in layers:
            site, key = self._site_of(layer.index)
            present.append((site, key, site.targets[key]))
            site.targets[key] = (layer.index + 1, _straight_to(self.stack.entries[layer.child]))
        try:
            yield
        finally:
            for site, key, target in present:
                site.targets[key] = target

    @contextmanager
    def stepping_set(self, *, on: bool) -> Iterator[None]:
        """Steppers on (where the stack has tasks at all) or off."""
        before, self.stepping = self.stepping, on and self.stack.tasks
        try:
            yield
        finally:
            self.stepping = before


def _straight_to(entry: Entry) -> Callable[..., Awaitable[Any]]:
    """What can be called in place of the layer outside `entry`, with its arguments, and goes on to `entry`."""
    assert entry.function is not None
    child = functools.partial(entry.function, *entry.leads)

    def straight(*arguments: Any) -> Awaitable[Any]:
        return child(*arguments[-3:])

    return straight
