"""Put a probe at the boundary of every layer, and take it away again.

A layer is entered through a Python function: its class's `__call__`, or the function itself. Whatever holds the
layer (an attribute, a list, a closure, a bound method, a route) in the end calls that function, so the probe goes
there: for the time of a measurement the function's *code* is exchanged for a trampoline to the probe, which
recognises the layer, reads the clock, and calls a twin of the function with the original code. No holder, no
instance and no class changes; putting the code back restores everything, however the layer is referred to.

A probe does nothing but append to a log: who owns the time from here on, and what the clock says. `timeline` reads
it. At one boundary of a request the probe stands twice, with nothing between but a layer or two that do nothing: what
this null layer reads is what a probe costs at that place, in that request.

Where more than one task takes part in a request, a stepper rides on each: at every suspension and resumption it notes
whose time it is, so that tasks which take turns cannot charge one another.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from time import perf_counter_ns
from types import CodeType
from typing import Any, TypeAlias

from .asgi import ASGIApp
from .discovery import Entry, Stack
from .exchange import Function, Parameters, exchanged, mentioned_cells, trampoline, twin
from .instruments import deeper

Clock: TypeAlias = Callable[[], int]
# owner, nanoseconds, owner, nanoseconds, …: from that moment on the time is that owner's.
# A deque, because a list that grows is moved now and then, in the time of whoever happens to own it.
Log: TypeAlias = deque[int]
Key: TypeAlias = int | tuple[int, ...]
# By the layer's key: whose time it is inside, and what to call.
Targets: TypeAlias = dict[Key, tuple[int, Callable[..., Awaitable[Any]]]]
# How a layer is called; see `shape_of`.
Shape: TypeAlias = int

# A null layer has so many blank layers (layers that do nothing) between its probes, one of these numbers at random.
# What a probe costs round a layer is not what it costs right round another probe; and what more blank layers add tells
# what each of them takes, in this app and in this process. Three more, because many are known better than one.
BLANKS = (1, 1, 4)
# In one null layer of so many they wrap `send`, which tells what it costs a probe to hand a message to a function and
# to be handed one, where a message would otherwise go from probe to probe.
WRAPPING_EVERY = 3

HARNESS = 0  # the server's end, outside everything
SUSPENDED = -1  # from a suspension to the next resumption, which tells whose time it was


# ---- trampolines ------------------------------------------------------------------------------------------------

# What a trampoline calls stands among its constants, in place of these: it runs with the user's globals and must not
# look up a name in them.
_PROBE = "the probe stands here"
_PASSING = "the function stands here"

# With a variable number of arguments, a call that has not three in their places is none of ASGI that was seen.
_SHAPES = {
    False: """
def make({cells}):
    {kind} shape({signature}):
        if False: ({cells})
        _probe_ = {probe!r}
        return {wait} _probe_(({leads}), {last}{named})
""",
    True: """
def make({cells}):
    {kind} shape({signature}):
        if False: ({cells})
        _probe_ = {probe!r}
        _all_ = ({positional}{starred},)
        if not _all_[2:]:
            _probe_ = {passing!r}
            return {wait} _probe_(*_all_{named})
        return {wait} _probe_(_all_[:-3], *_all_[-3:]{named})
""",
}


def _trampoline(original: CodeType, probe: Callable[..., Awaitable[Any]], passing: Function) -> CodeType:
    """Code that can stand in for `original` in its function and calls `probe` instead."""
    return trampoline(original, _source(original), {_PROBE: probe, _PASSING: passing})


def _source(original: CodeType) -> str:
    parameters = Parameters.of(original)
    named = "".join(f", {name}={name}" for name in parameters.keywords)
    if parameters.double_starred:
        named += f", **{parameters.double_starred}"
    coroutine = bool(original.co_flags & inspect.CO_COROUTINE)
    return _SHAPES[bool(parameters.starred)].format(
        cells=mentioned_cells(original),
        kind="async def" if coroutine else "def",
        wait="await" if coroutine else "",
        signature=parameters.signature,
        positional="".join(f"{name}, " for name in parameters.positional),
        starred=f"*{parameters.starred}",
        leads="".join(f"{name}, " for name in parameters.positional[:-3]),
        last=", ".join(parameters.positional[-3:]),
        named=named,
        probe=_PROBE,
        passing=_PASSING,
    )


# ---- probes -----------------------------------------------------------------------------------------------------


def _probe(targets: Targets, original: Function, timeline: Log, clock: Clock) -> Callable[..., Awaitable[Any]]:
    """A probe for the layers in `targets`; other objects that share the function pass untouched."""
    log, hit_for = timeline.append, targets.get

    async def probe(leads: tuple[object, ...], scope: Any, receive: Any, send: Any, **named: Any) -> Any:
        hit = hit_for(key_of(leads))
        if hit is None:
            return await original(*leads, scope, receive, send, **named)
        owner, target = hit
        outer = timeline[-2]
        body_over = False

        async def probed_receive() -> Any:
            nonlocal body_over
            if body_over:
                # From here on it waits for the disconnect, most often in a task of its own: nobody works meanwhile.
                return await receive()
            if timeline[-2] == SUSPENDED:  # a task that the layer made for itself: what it did before is the layer's
                log(owner)
                log(clock())
            log(outer)
            log(clock())
            try:
                message = await receive()
                body_over = not message.get("more_body", False)
                return message
            finally:
                log(owner)
                log(clock())

        async def probed_send(message: Any) -> Any:
            if timeline[-2] == SUSPENDED:
                log(owner)
                log(clock())
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
            return await target(*leads, scope, probed_receive, probed_send, **named)
        finally:
            log(outer)
            log(clock())

    return probe


def key_of(leads: tuple[object, ...]) -> Key:
    """What tells the layers that share a function from one another: the arguments before the scope, by identity."""
    return id(leads[0]) if len(leads) == 1 else tuple(map(id, leads))


@types.coroutine
def stepped(awaitable: Awaitable[Any], timeline: Log, clock: Clock) -> Generator[Any, Any, Any]:
    """Run `awaitable`, and note in the log when its task is suspended and, at its resumption, whose time begins."""
    log = timeline.append
    steps: Any = awaitable if isinstance(awaitable, Coroutine) else _coroutine(awaitable)
    try:
        waiting_for = steps.send(None)
        while True:
            owner = timeline[-2]
            log(SUSPENDED)
            log(clock())
            value = thrown = None
            try:
                value = yield waiting_for
            except BaseException as error:
                thrown = error  # it must not be "being handled" while the app goes on
            log(owner)
            log(clock())
            waiting_for = steps.send(value) if thrown is None else steps.throw(thrown)
    except StopIteration as stop:
        return stop.value


async def _coroutine(awaitable: Awaitable[Any]) -> Any:
    """A coroutine for an awaitable that need not have `send` and `throw`."""
    return await awaitable


# ---- placing ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Site:
    """One function that enters one or more layers, and the code that stands in for its own while probes are installed.

    It is kept from leg to leg, because CPython specialises code by running it.
    """

    function: Function
    twin: Function
    targets: Targets = field(default_factory=dict)
    outer_owners: dict[Key, int] = field(default_factory=dict)
    code: CodeType | None = None


@dataclass(frozen=True, slots=True)
class BlankLayers:
    """What stands between the probes of a null layer: so many layers that do nothing, or nothing but wrap `send`."""

    count: int
    wrapping: bool = False


@dataclass(slots=True)
class _Inside:
    """What is inside the outer probe of a null layer: a probe, and by their number blank layers round it.

    One for all functions whose parameters have the same shape, so that it runs in as many requests as the probes that
    it stands for; what runs once in thirty requests costs more.
    """

    doubled: Mapping[BlankLayers, Function]
    targets: Targets


@dataclass(slots=True)
class _Steppers:
    """Whether steppers ride on the tasks of a request."""

    on: bool


@dataclass(slots=True)
class _Kit:
    """All that reads one clock."""

    clock: Clock
    sites: dict[int, _Site] = field(default_factory=dict)
    insides: dict[Shape, _Inside] = field(default_factory=dict)


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


def probed_parent(entries: Sequence[Entry], index: int, probed: Sequence[int]) -> tuple[int, bool]:
    """The owner right outside an entry, entries without a probe left out, and whether both have the same `send`."""
    parent, same_send = entries[index].parent, entries[index].same_send
    while parent is not None and parent not in probed:
        same_send = same_send and entries[parent].same_send
        parent = entries[parent].parent
    return (HARNESS, False) if parent is None else (parent + 1, same_send)


class Probes:
    """The probes of one stack: one for each entry that has a function, down to the endpoint's.

    Entry `i` owns the time as owner `i + 1`, the null layer as `null_owner`, the last of all. `log` holds the current
    request and is the same object for ever; begin it with `start`. The stack must be traced after the app has started,
    and its objects stay alive as long as this does.
    """

    def __init__(self, stack: Stack, clock: Clock = perf_counter_ns, *, suspending: bool = False) -> None:
        self.stack = stack
        self.clock = clock
        # Whether there is anything for steppers to note: tasks that take turns, or one that waits.
        self.steppable = stack.tasks or suspending
        self.log: Log = deque((HARNESS, clock()))
        self.null_owner = len(stack.entries) + 1
        self._steppers = _Steppers(on=self.steppable)
        self.probed = stack.probeable
        self._kits: dict[int, _Kit] = {}  # by the identity of the clock

    @property
    def stepping(self) -> bool:
        """Whether steppers ride."""
        return self._steppers.on

    def owner_of_parent(self, index: int) -> int:
        """Whose time it is just outside entry `index`: its nearest probed ancestor's, or the harness's."""
        return probed_parent(self.stack.entries, index, self.probed)[0]

    def start(self) -> None:
        """Begin the log of a request."""
        self.log.clear()
        self.log += (HARNESS, self.clock())

    def read(self) -> list[int]:
        """The log of the latest request: owners and nanoseconds in turn."""
        return list(self.log)

    async def watch(self, app: ASGIApp, scope: Any, receive: Any, send: Any) -> None:
        """Call the app with a log of its own."""
        self.start()
        if self.stepping:
            await stepped(app(scope, receive, send), self.log, self.clock)
        else:
            await app(scope, receive, send)

    @contextmanager
    def installed(self, indexes: Iterable[int], clock: Clock | None = None) -> Iterator[None]:
        """Place the probes of these entries, and take them all away at the end, whatever happens.

        They read `clock`, if one is given, in place of their own.
        """
        own_clock, self.clock = self.clock, clock or self.clock
        sites = self._kit.sites
        try:
            for index in indexes:
                self._add(index)
            with ExitStack() as stack:
                stack.enter_context(deeper(len(self.stack.entries)))
                for site in sites.values():
                    if site.targets:
                        assert site.code is not None
                        stack.enter_context(exchanged(site.function, site.code))
                yield
        finally:
            for site in sites.values():
                site.targets.clear()
                site.outer_owners.clear()
            self.clock = own_clock

    @property
    def _kit(self) -> _Kit:
        return self._kits.setdefault(id(self.clock), _Kit(self.clock))

    def _add(self, index: int) -> None:
        entry = self.stack.entries[index]
        assert entry.function is not None
        site = self._kit.sites.get(id(entry.function))
        if site is None:
            code = entry.function.__code__
            site = self._kit.sites[id(entry.function)] = _Site(entry.function, twin(entry.function, code))
            site.code = _trampoline(code, self._outermost(site), site.twin)
        key = key_of(entry.leads)
        site.targets[key] = (index + 1, site.twin)
        if entry.own_task:
            site.outer_owners[key] = self.owner_of_parent(index)

    def _outermost(self, site: _Site) -> Callable[..., Awaitable[Any]]:
        """The site's probe, with a stepper outside it for layers that begin a task of the request."""
        probe = _probe(site.targets, site.twin, self.log, self.clock)
        if not any(entry.own_task for entry in self.stack.entries if entry.function is site.function):
            return probe
        # Neither the site nor this object itself: both hold the code that holds what is made here, and the garbage
        # collector does not look into code.
        log, clock, steppers, outer_owners = self.log, self.clock, self._steppers, site.outer_owners

        async def first_of_its_task(
            leads: tuple[object, ...], scope: Any, receive: Any, send: Any, **named: Any
        ) -> Any:
            outer = outer_owners.get(key_of(leads))
            if outer is None or not steppers.on:
                return await probe(leads, scope, receive, send, **named)
            log.extend((outer, clock()))
            return await stepped(probe(leads, scope, receive, send, **named), log, clock)

        return first_of_its_task

    def _site_of(self, index: int) -> tuple[_Site, Key]:
        entry = self.stack.entries[index]
        return self._kit.sites[id(entry.function)], key_of(entry.leads)

    @contextmanager
    def doubled(self, index: int, blanks: BlankLayers) -> Iterator[None]:
        """A second probe inside the one of entry `index`, and blank layers between: the null layer.

        One boundary at a time.
        """
        site, key = self._site_of(index)
        inside = self._inside(shape_of(site.twin.__code__))
        own = site.targets[key]
        inside.targets[key] = own
        site.targets[key] = (self.null_owner, inside.doubled[blanks])
        try:
            yield
        finally:
            site.targets[key] = own
            inside.targets.clear()

    def _inside(self, shape: Shape) -> _Inside:
        if shape not in self._kit.insides:
            targets: Targets = {}
            layer = layer_of(shape)
            inner = _probe(targets, layer, self.log, self.clock)
            doubled = with_blanks(twin(layer, _trampoline(layer.__code__, inner, layer)), shape)
            self._kit.insides[shape] = _Inside(doubled, targets)
        return self._kit.insides[shape]

    @contextmanager
    def bypassed(self, layers: Sequence[TaskLayer]) -> Iterator[None]:
        """Requests pass from the boundary of each of `layers` straight to its child, as if the layer were not there."""
        present: list[tuple[_Site, Key, tuple[int, Callable[..., Awaitable[Any]]]]] = []
        for layer in layers:
            site, key = self._site_of(layer.index)
            present.append((site, key, site.targets[key]))
            site.targets[key] = (layer.index + 1, straight_to(self.stack.entries[layer.child]))
        try:
            yield
        finally:
            for site, key, target in present:
                site.targets[key] = target

    @contextmanager
    def stepping_set(self, *, on: bool) -> Iterator[None]:
        """Steppers on (where there is anything for them to note) or off."""
        before, self._steppers.on = self._steppers.on, on and self.steppable
        try:
            yield
        finally:
            self._steppers.on = before


def shape_of(code: CodeType) -> Shape:
    """How many parameters a function has that is a layer with none or one before the scope; 0 for any other."""
    parameters = Parameters.of(code)
    plain = not (parameters.keywords or parameters.starred or parameters.double_starred)
    return len(parameters.positional) if plain and len(parameters.positional) in (3, 4) else 0


def with_blanks(inner: Function, shape: Shape) -> dict[BlankLayers, Function]:
    """`inner` with all the blank layers round it that a null layer may have."""
    found = {}
    for wrapping in (False, True):
        function = inner
        for count in range(1, max(BLANKS) + 1):
            function = found[BlankLayers(count, wrapping)] = layer_of(shape, function, wrapping=wrapping)
    return found


async def _nowhere(*arguments: object, **named: object) -> None:
    """What is inside a layer that is never entered as it is."""


def layer_of(shape: Shape, inner: Callable[..., Awaitable[Any]] = _nowhere, *, wrapping: bool = False) -> Function:
    """A blank layer, with parameters of this shape: it does nothing but call `inner`, and wrap `send` if it should."""

    async def function(scope: Any, receive: Any, send: Any) -> None:
        await inner(scope, receive, send)

    async def method(lead: Any, scope: Any, receive: Any, send: Any) -> None:
        await inner(lead, scope, receive, send)

    async def any_other(*arguments: Any, **named: Any) -> None:
        await inner(*arguments, **named)

    async def wrapping_function(scope: Any, receive: Any, send: Any) -> None:
        async def wrapped(message: Any) -> None:
            await send(message)

        await inner(scope, receive, wrapped)

    async def wrapping_method(lead: Any, scope: Any, receive: Any, send: Any) -> None:
        async def wrapped(message: Any) -> None:
            await send(message)

        await inner(lead, scope, receive, wrapped)

    async def any_other_wrapping(*arguments: Any, **named: Any) -> None:
        async def wrapped(message: Any) -> None:
            await arguments[-1](message)

        await inner(*arguments[:-1], wrapped, **named)

    shapes: dict[tuple[Shape, bool], Any] = {
        (0, False): any_other,
        (3, False): function,
        (4, False): method,
        (0, True): any_other_wrapping,
        (3, True): wrapping_function,
        (4, True): wrapping_method,
    }
    blank: Function = shapes[shape, wrapping]
    blank.__code__ = _own(blank.__code__)
    return blank


def _own(code: CodeType) -> CodeType:
    """The same code, which CPython specialises apart; so is that of the functions in it."""
    constants = (_own(constant) if isinstance(constant, CodeType) else constant for constant in code.co_consts)
    return code.replace(co_consts=tuple(constants))


def straight_to(entry: Entry) -> Callable[..., Awaitable[Any]]:
    """What can be called in place of the layer outside `entry`, with its arguments, and goes on to `entry`."""
    assert entry.function is not None
    child = functools.partial(entry.function, *entry.leads)

    async def straight(*arguments: Any, **_: Any) -> Any:
        return await child(*arguments[-3:])

    return straight
