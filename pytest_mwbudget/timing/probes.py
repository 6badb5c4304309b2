"""Put a probe at the boundary of every layer, and take it away again.

A layer is entered through a Python function: its class's `__call__`, or the function itself. Whatever holds the
layer (an attribute, a list, a closure, a bound method, a route) in the end calls that function, so the probe goes
there: for the time of a measurement the function's *code* is patched: a trampoline leads to the probe, which
recognises the layer, reads the clock, and calls a twin of the function with the original code. No holder, no
instance and no class changes; putting the code back restores everything, however the layer is referred to.

A probe does nothing but append to a log: who owns the time from here on, and what the clock says. `analysis.event_log`
reads it. At one boundary of a request the probe stands twice, with nothing between but a layer or two that do nothing:
what this null layer reads is what a probe costs at that place, in that request.

Where more than one task takes part in a request, a stepper rides on each: at every suspension and resumption it notes
whose time it is, so that tasks which take turns cannot charge one another.
"""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import CodeType, FunctionType
from typing import Any, TypeAlias

from ..analysis.samples import BlankLayers
from ..asgi.app import ASGIApp
from ..asgi.calls import Call, Key, Reader
from ..asgi.stack import Entry, Stack
from ..interpreter.clocks import Clock, perf_counter_ns
from ..interpreter.code_patching import (
    Function,
    compiled,
    detour,
    is_plain,
    mentioned_cells,
    patched_code,
    trampoline,
    twin,
)
from ..interpreter.coroutine_proxy import awaiting
from ..interpreter.foreign_tools import raised_recursion_limit
from ..interpreter.stand_ins import alike, awaited_alike
from ..model.stack import HARNESS, SUSPENDED, EntryIndex, Owner, owner_of, probed_parent

# owner, nanoseconds, owner, nanoseconds, …: from that moment on the time is that owner's.
# A deque, because a list that grows is moved now and then, in the time of whoever happens to own it.
Log: TypeAlias = deque[int]
# Whose time it is inside, and what to call.
Target: TypeAlias = tuple[Owner, Callable[..., Any]]
# By the layer's key.
Targets: TypeAlias = dict[Key, Target]
# What is called for a layer: with its target, the arguments before the scope, and ASGI's.
Entering: TypeAlias = Callable[[Target, tuple[Any, ...], Any, Any, Any], Any]

# A null layer has so many blank layers (layers that do nothing) between its probes, one of these numbers at random.
# What a probe costs round a layer is not what it costs right round another probe; and what more blank layers add tells
# what each of them takes, in this app and in this process. Three more, because many are known better than one.
BLANKS = (1, 1, 4)
# In one null layer of so many they wrap `send`, which tells what it costs a probe to hand a message to a function and
# to be handed one, where a message would otherwise go from probe to probe.
WRAPPING_EVERY = 3


# ---- trampolines ------------------------------------------------------------------------------------------------

# What a trampoline calls stands among its constants, in place of these: it runs with the user's globals and must not
# look up a name in them.
_ENTER = "what enters the probe stands here"
_UNTOUCHED = "the function stands here"
_HIT = "what finds the layer stands here"
_ID = "id() stands here"

# A plain function also where the original is a coroutine function: what it returns is to be awaited, and a coroutine of
# its own would be one more to step through.
_SHAPE = """
def make({cells}):
    def shape({signature}):
        if False: ({cells})
        _id_ = {identity!r}
        _hit_ = {hit!r}
        _hit_ = _hit_({key})
        if _hit_ is None:
            _pass_ = {passing!r}
            return _pass_({passed})
        _enter_ = {enter!r}
        return _enter_(_hit_, ({leads}), {last})
"""


def _trampoline(
    original: CodeType, reader: Reader, enter: Entering, targets: Targets, passing: Function, aside: _Aside
) -> CodeType:
    """Code that can stand in for `original` in its function and comes to the probe, if it is called for a layer.

    Where ASGI's arguments are the last ones, the code finds the layer itself; elsewhere the arguments must be searched.
    """
    if not reader.ordinary:
        return detour(original, aside.search(reader, enter, targets, passing))
    names = reader.parameters.positional
    identities = [f"_id_({name})" for name in names[:-3]]
    source = _SHAPE.format(
        cells=mentioned_cells(original),
        signature=reader.parameters.signature,
        passed=reader.parameters.passed,
        key=identities[0] if len(identities) == 1 else f"({''.join(one + ', ' for one in identities)})",
        leads="".join(f"{name}, " for name in names[:-3]),
        last=", ".join(names[-3:]),
        identity=_ID,
        hit=_HIT,
        passing=_UNTOUCHED,
        enter=_ENTER,
    )
    return trampoline(original, source, {_ID: id, _HIT: targets.get, _UNTOUCHED: passing, _ENTER: enter})


@dataclass(frozen=True, slots=True)
class _Aside:
    """Searches the arguments of functions that have them in other places, which takes longer than all of a probe.

    That is nobody's time: it is logged as `owner`, which is no row's. Half of a null layer is what the inside and the
    outside of a probe each take off; this would all be outside.
    """

    owner: Owner
    timeline: Log
    clock: Clock

    def begin(self) -> Owner:
        """Note that the time is nobody's; returns whose it was, SUSPENDED where nothing was noted."""
        before = Owner(self.timeline[-2])
        # After a suspension nobody has said yet whose time it is, and who does so first would get the suspension. What
        # is done before the outermost probe is in no log.
        if before == SUSPENDED or len(self.timeline) == 2:
            return SUSPENDED
        self.timeline.extend((self.owner, self.clock()))
        return before

    def end(self, before: Owner) -> None:
        """Note that the time is that owner's again."""
        if before != SUSPENDED:
            self.timeline.extend((before, self.clock()))

    def search(self, reader: Reader, enter: Entering, targets: Targets, passing: Function) -> Callable[..., Any]:
        """What takes the arguments of any function; targets get the call in place of the leading ones."""
        gathered, read, begin, end = reader.parameters.gathered, reader.read, self.begin, self.end

        def search(*flat: Any) -> Any:
            before = begin()
            positional, named, _ = gathered(flat)
            call = read(positional, named)
            hit = None if call is None else targets.get(call.key)
            end(before)
            if call is None or hit is None:
                return passing(*positional, **named)
            return enter(hit, (call,), call.scope, call.receive, call.send)

        return search

    def as_target(self, reader: Reader, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, called as a target is: with the call in place of what leads, if the arguments were searched."""
        if reader.ordinary:
            return function
        begin, end = self.begin, self.end

        def target(call: Call, scope: Any, receive: Any, send: Any) -> Any:
            before = begin()
            positional, named = call.replaced(scope, receive, send)
            end(before)
            return function(*positional, **named)

        return target


# ---- probes -----------------------------------------------------------------------------------------------------


def _messages(timeline: Log, clock: Clock) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """What makes the probes for messages: of an owner, with the one outside it, round a `receive` or a `send`."""
    log = timeline.append

    def receiving(owner: Owner, outer: Owner, receive: Any) -> Any:
        body_over = False

        async def probed_receive(*arguments: Any, **named: Any) -> Any:
            nonlocal body_over
            if body_over:
                # From here on it waits for the disconnect, most often in a task of its own: nobody works meanwhile.
                return await ask(*arguments, **named)
            if timeline[-2] == SUSPENDED:  # a task that the layer made for itself: what it did before is the layer's
                log(owner)
                log(clock())
            log(outer)
            log(clock())
            try:
                message = await ask(*arguments, **named)
                body_over = isinstance(message, dict) and not message.get("more_body", False)
                return message
            finally:
                log(owner)
                log(clock())

        ask, stand_in = alike(receive, probed_receive)
        return stand_in

    def sending(owner: Owner, outer: Owner, send: Any) -> Any:
        async def probed_send(*arguments: Any, **named: Any) -> Any:
            if timeline[-2] == SUSPENDED:
                log(owner)
                log(clock())
            log(outer)
            log(clock())
            try:
                return await give(*arguments, **named)
            finally:
                log(owner)
                log(clock())

        give, stand_in = alike(send, probed_send)
        return stand_in

    return receiving, sending


def _probe(timeline: Log, clock: Clock, *, plain: bool) -> Entering:
    """A probe for coroutine functions, or for `plain` functions, whose code runs as soon as they are called."""
    log = timeline.append
    # One of the two is called inside the layer and one outside, because half of a probe is taken to be each.
    receiving, sending = _messages(timeline, clock)

    async def awaited(owner: Owner, awaitable: Awaitable[Any]) -> Any:
        outer = timeline[-2]
        log(owner)
        log(clock())
        try:
            return await awaitable
        finally:
            log(outer)
            log(clock())

    async def probe(hit: Target, leads: tuple[Any, ...], scope: Any, receive: Any, send: Any) -> Any:
        owner, target = hit
        outer = timeline[-2]
        probed_receive = receiving(owner, outer, receive)
        log(owner)
        log(clock())
        try:
            probed_send = sending(owner, outer, send)
            return await target(*leads, scope, probed_receive, probed_send)
        finally:
            log(outer)
            log(clock())

    def plain_probe(hit: Target, leads: tuple[Any, ...], scope: Any, receive: Any, send: Any) -> Any:
        owner, target = hit
        outer = timeline[-2]
        probed_receive = receiving(owner, outer, receive)
        log(owner)
        log(clock())
        try:
            probed_send = sending(owner, outer, send)
            answer = target(*leads, scope, probed_receive, probed_send)
            return awaited_alike(answer, partial(awaited, owner))
        finally:
            log(outer)
            log(clock())

    return plain_probe if plain else probe


@types.coroutine
def stepped(awaitable: Awaitable[Any], timeline: Log, clock: Clock) -> Generator[Any, Any, Any]:
    """Run `awaitable`, and note in the log when its task is suspended and, at its resumption, whose time begins."""
    # No `CoroutineProxy`: its methods written in Python would take part of the time that they are to measure.
    log = timeline.append
    steps: Any = awaitable if isinstance(awaitable, Coroutine) else awaiting(awaitable)
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


# ---- placing ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Site:
    """One function that enters one or more layers, and the code that stands in for its own while probes are installed.

    It is kept from leg to leg, because CPython specialises code by running it.
    """

    function: Function
    twin: Function
    reader: Reader
    targets: Targets = field(default_factory=dict)
    outer_owners: dict[Owner, Owner] = field(default_factory=dict)  # by the layer's own
    code: CodeType | None = None


@dataclass(slots=True)
class _Inside:
    """What is inside the outer probe of a null layer: a probe, and by their number blank layers round it.

    One for all functions that are called in the same way, so that it runs in as many requests as the probes that it
    stands for; what runs once in thirty requests costs more. A function whose arguments must be searched has its own.
    """

    doubled: Mapping[BlankLayers, Callable[..., Any]]
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
    insides: dict[tuple[object, ...], _Inside] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TaskLayer:
    """An entry that runs its only `child` in a task of its own, both by index."""

    index: EntryIndex
    child: EntryIndex


def task_layers(stack: Stack) -> list[TaskLayer]:
    """The layers that run what is inside them in a task of their own, outermost first."""
    found = []
    for child, entry in enumerate(stack.entries):
        if entry.own_task and entry.parent is not None and entry.function is not None:
            parent = stack.entries[entry.parent]
            alone = sum(entry.parent in other.parents for other in stack.entries) == 1 and len(entry.parents) == 1
            if alone and parent.function is not None and entry.enterable:
                found.append(TaskLayer(entry.parent, EntryIndex(child)))
    return found


class Probes:
    """The probes of one stack: one for each entry that has a function, down to the endpoint's.

    Entry `i` owns the time as owner `i + 1`, the null layer as `null_owner`; the last owner is nobody. `log` holds the
    current request and is the same object for ever; begin it with `start`. The stack must be traced after the app has
    started, and its objects stay alive as long as this does.
    """

    def __init__(self, stack: Stack, clock: Clock = perf_counter_ns, *, suspending: bool = False) -> None:
        self.stack = stack
        self.clock = clock
        # Whether there is anything for steppers to note: tasks that take turns, or one that waits.
        self.steppable = stack.tasks or suspending
        self.log: Log = deque((HARNESS, clock()))
        self.null_owner = Owner(len(stack.entries) + 1)
        self._steppers = _Steppers(on=self.steppable)
        self.probed = stack.probeable
        # The entries whose blank layers can wrap `send`.
        self.wrappable = frozenset(i for i in self.probed if stack.entries[i].ordinary)
        self._kits: dict[int, _Kit] = {}  # by the identity of the clock

    @property
    def owners(self) -> int:
        """How many owners a log has."""
        return self.null_owner + 2

    @property
    def stepping(self) -> bool:
        """Whether steppers ride."""
        return self._steppers.on

    def owner_of_parent(self, index: EntryIndex) -> Owner:
        """Whose time it is just outside entry `index`: its nearest probed ancestor's, or the harness's."""
        return probed_parent(self.stack.entries, index, self.probed)[0]

    def start(self) -> None:
        """Begin the log of a request."""
        self.log.clear()
        self.log += (HARNESS, self.clock())

    def read(self) -> list[int]:
        """The log of the latest request: owners and nanoseconds in turn."""
        return list(self.log)

    async def watch(self, app: ASGIApp, scope: Any, receive: Any, send: Any) -> Any:
        """Call the app with a log of its own."""
        self.start()
        if self.stepping:
            return await stepped(app(scope, receive, send), self.log, self.clock)
        return await app(scope, receive, send)

    @contextmanager
    def installed(self, indexes: Iterable[EntryIndex], clock: Clock | None = None) -> Iterator[None]:
        """Place the probes of these entries, and take them all away at the end, whatever happens.

        They read `clock`, if one is given, in place of their own.
        """
        own_clock, self.clock = self.clock, clock or self.clock
        sites = self._kit.sites
        try:
            for index in indexes:
                self._add(index)
            with ExitStack() as stack:
                stack.enter_context(raised_recursion_limit(len(self.stack.entries)))
                for site in sites.values():
                    if site.targets:
                        assert site.code is not None
                        stack.enter_context(patched_code(site.function, site.code))
                yield
        finally:
            for site in sites.values():
                site.targets.clear()
                site.outer_owners.clear()
            self.clock = own_clock

    @property
    def _aside(self) -> _Aside:
        return _Aside(Owner(self.null_owner + 1), self.log, self.clock)

    @property
    def _kit(self) -> _Kit:
        return self._kits.setdefault(id(self.clock), _Kit(self.clock))

    def _add(self, index: EntryIndex) -> None:
        entry = self.stack.entries[index]
        assert entry.function is not None
        site = self._kit.sites.get(id(entry.function))
        if site is None:
            code = entry.function.__code__
            reader = Reader.of(entry.function, entry.telling)
            site = self._kit.sites[id(entry.function)] = _Site(entry.function, twin(entry.function, code), reader)
            site.code = _trampoline(code, reader, self._outermost(site), site.targets, site.twin, self._aside)
        site.targets[entry.key] = (owner_of(index), self._aside.as_target(site.reader, site.twin))
        if entry.own_task:
            site.outer_owners[owner_of(index)] = self.owner_of_parent(index)

    def _outermost(self, site: _Site) -> Entering:
        """The site's probe, with a stepper outside it for layers that begin a task of the request."""
        probe = _probe(self.log, self.clock, plain=is_plain(site.function))
        if not any(entry.own_task for entry in self.stack.entries if entry.function is site.function):
            return probe
        # Neither the site nor this object itself: both hold the code that holds what is made here, and the garbage
        # collector does not look into code.
        log, clock, steppers, outer_owners = self.log, self.clock, self._steppers, site.outer_owners

        async def first_of_its_task(outer: Owner, awaitable: Awaitable[Any]) -> Any:
            log.extend((outer, clock()))
            return await stepped(awaitable, log, clock)

        def enter(hit: Target, leads: tuple[Any, ...], scope: Any, receive: Any, send: Any) -> Any:
            answer = probe(hit, leads, scope, receive, send)
            outer = outer_owners.get(hit[0])
            if outer is None or not steppers.on:
                return answer
            return awaited_alike(answer, partial(first_of_its_task, outer))

        return enter

    def _site_of(self, index: EntryIndex) -> tuple[_Site, Key]:
        entry = self.stack.entries[index]
        return self._kit.sites[id(entry.function)], entry.key

    @contextmanager
    def doubled(self, index: EntryIndex, blanks: BlankLayers) -> Iterator[None]:
        """A second probe inside the one of entry `index`, and blank layers between: the null layer.

        One boundary at a time.
        """
        site, key = self._site_of(index)
        inside = self._inside(site)
        own = site.targets[key]
        inside.targets[key] = own
        site.targets[key] = (self.null_owner, inside.doubled[blanks])
        outer = site.outer_owners.get(owner_of(index))
        if outer is not None:  # the task begins with the null layer
            site.outer_owners[self.null_owner] = outer
        try:
            yield
        finally:
            site.outer_owners.pop(self.null_owner, None)
            site.targets[key] = own
            inside.targets.clear()

    def _inside(self, site: _Site) -> _Inside:
        reader, plain = site.reader, is_plain(site.function)
        way = (len(reader.parameters.positional), plain) if reader.ordinary else (id(site.function), plain)
        if way not in self._kit.insides:
            targets: Targets = {}
            layer = blank_layer(reader, _nowhere, plain=plain)
            probe = _probe(self.log, self.clock, plain=plain)
            code = _trampoline(layer.__code__, reader, probe, targets, layer, self._aside)
            blanks = with_blanks(twin(layer, code), reader, plain=plain)
            doubled = {count: self._aside.as_target(reader, function) for count, function in blanks.items()}
            self._kit.insides[way] = _Inside(doubled, targets)
        return self._kit.insides[way]

    @contextmanager
    def bypassed(self, layers: Sequence[TaskLayer]) -> Iterator[None]:
        """Requests pass from the boundary of each of `layers` straight to its child, as if the layer were not there."""
        present: list[tuple[_Site, Key, tuple[Owner, Callable[..., Awaitable[Any]]]]] = []
        for layer in layers:
            site, key = self._site_of(layer.index)
            present.append((site, key, site.targets[key]))
            site.targets[key] = (owner_of(layer.index), straight_to(self.stack.entries[layer.child]))
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


def with_blanks(inner: Callable[..., Any], reader: Reader, *, plain: bool) -> dict[BlankLayers, Callable[..., Any]]:
    """`inner` with all the blank layers round it that a null layer may have."""
    found = {}
    for wrapping in (False, True) if reader.ordinary else (False,):
        function = inner
        for count in range(1, max(BLANKS) + 1):
            function = blank_layer(reader, function, plain=plain, wrapping=wrapping)
            found[BlankLayers(count, wrapping)] = function
    return found


async def _nowhere(*arguments: object, **named: object) -> None:
    """What is inside a layer that is never entered as it is."""


_INNER = "what is inside stands here"
_ALIKE = "what makes a stand-in stands here"
_BLANK = """
def make():
    {kind} shape({signature}):
        _inner_ = {inner!r}
        return {wait} _inner_({passed})
"""
_WRAPPING_BLANK = """
def make():
    {kind} shape({signature}):
        _inner_ = {inner!r}
        async def _wrapping_(*arguments, **named):
            return await _given_(*arguments, **named)
        _alike_ = {alike!r}
        _given_, _wrapped_ = _alike_({send}, _wrapping_)
        return {wait} _inner_({passed})
"""


def blank_layer(
    reader: Reader, inner: Callable[..., Any], *, plain: bool = False, wrapping: bool = False
) -> Callable[..., Any]:
    """A layer that does nothing but call `inner`, and wrap `send` if it should; called as the reader's function is.

    `send` can be wrapped where ASGI's arguments are the last ones.

    Its code is its own: CPython specialises code by running it.
    """
    parameters = reader.parameters
    shown = {
        "kind": "def" if plain else "async def",
        "wait": "" if plain else "await",
        "signature": parameters.signature,
        "passed": parameters.passed,
        "inner": _INNER,
        "alike": _ALIKE,
    }
    source = _BLANK.format(**shown)
    if wrapping:
        *others, send = parameters.positional
        source = _WRAPPING_BLANK.format(**shown | {"passed": ", ".join([*others, "_wrapped_"]), "send": send})
    made = compiled(source, {_INNER: inner, _ALIKE: alike})
    return FunctionType(_own(made), {})


def _own(code: CodeType) -> CodeType:
    """The same code, which CPython specialises apart; so is that of the functions in it."""
    constants = (_own(constant) if isinstance(constant, CodeType) else constant for constant in code.co_consts)
    return code.replace(co_consts=tuple(constants))


def straight_to(entry: Entry) -> Callable[..., Awaitable[Any]]:
    """What can be called in place of the layer outside `entry`, as a target is, and goes on to `entry`."""
    function, call = entry.function, entry.call
    assert function is not None

    async def straight(*arguments: Any) -> Any:
        positional, named = call.replaced(*arguments[-3:])
        return await function(*positional, **named)

    return straight
