"""Put a probe at the boundary of every layer, and take it away again.

A layer is entered through a Python function, whose code is patched during a measurement (docs/decisions/0002). The new
code is a trampoline to the probe, which calls a twin of the function with the original code.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

from ..analysis.event_log import messages_of
from ..analysis.samples import BlankLayers
from ..asgi.app import ASGIApp
from ..asgi.calls import Call, FrameworkReader, Key, Reader
from ..asgi.stack import Entry, Stack
from ..interpreter.clocks import Clock, perf_counter_ns
from ..interpreter.code_patching import Function, is_plain, patched_code, twin
from ..interpreter.foreign_tools import raised_recursion_limit
from ..model.stack import HARNESS, EntryIndex, Owner, owner_of, probed_parent
from .null_layers import NullLayer, null_layer
from .probe_code import (
    ArgumentSearch,
    Log,
    Probe,
    Steppers,
    Targets,
    framework_probe_for,
    probe_for,
    probe_trampoline,
    stepped,
    stepping_probe,
)


@dataclass(slots=True)
class _Site:
    """A function that enters one or more layers, with the code that replaces its own while probes are installed.

    Sites are kept for the whole measurement, because CPython specialises code by running it.
    """

    function: Function
    twin: Function
    reader: Reader | FrameworkReader
    is_part: bool = False
    targets: Targets = field(default_factory=dict)
    outer_owners: dict[Owner, Owner] = field(default_factory=dict)  # of layers that begin a task, by the layer's owner
    code: CodeType | None = None


@dataclass(frozen=True, slots=True)
class TaskLayer:
    """A layer that runs its only child in a task of its own."""

    index: EntryIndex
    child: EntryIndex


def task_layers(stack: Stack) -> list[TaskLayer]:
    """Return the layers that run their inside in a task of their own and can be bypassed, outermost first."""
    found = []
    for child, entry in enumerate(stack.entries):
        if entry.own_task and entry.parent is not None and entry.function is not None:
            parent = stack.entries[entry.parent]
            alone = sum(entry.parent in other.parents for other in stack.entries) == 1 and len(entry.parents) == 1
            if alone and parent.function is not None and entry.enterable:
                found.append(TaskLayer(entry.parent, EntryIndex(child)))
    return found


class Probes:
    """The probes of one stack that read one clock: one for each entry with a function, down to the endpoint's.

    `null_owner` owns the time of the null layer, and the owner after it time without a row. `log` holds the current
    request; `watch` begins it. The stack must be traced after the app has started, and its objects stay alive as long
    as this object does.
    """

    def __init__(self, stack: Stack, clock: Clock = perf_counter_ns, *, suspending: bool = False) -> None:
        self.stack = stack
        self.clock = clock
        # Steppers log something only if tasks take turns or a task waits.
        # Steps and probes of different threads would log in no certain order.
        self.steppable = (stack.tasks or suspending) and not stack.probed_elsewhere
        self.log: Log = deque((HARNESS, clock()))
        self.null_owner = Owner(len(stack.entries) + 1)
        self.owners = self.null_owner + 2
        self.probed = stack.probeable
        # The entries whose blank layers can wrap `send`.
        self.wrappable = frozenset(i for i in self.probed if stack.entries[i].ordinary)
        # The owners inside which the boundaries of parts are.
        around = (owner_of(index) for index in self.probed if not stack.entries[index].is_layer)
        self._inside = frozenset((*around, self.null_owner))
        self._steppers = Steppers(on=self.steppable)
        self._search = ArgumentSearch(Owner(self.null_owner + 1), self.log, clock)
        self._sites: dict[int, _Site] = {}  # by the identity of the function
        self._null_layers: dict[tuple[object, ...], NullLayer] = {}

    @property
    def stepping(self) -> bool:
        """Whether tasks are stepped."""
        return self._steppers.on

    def owner_of_parent(self, index: EntryIndex) -> Owner:
        """Return the owner just outside an entry: its nearest probed ancestor, or the harness."""
        return probed_parent(self.stack.entries, index, self.probed)[0]

    def read(self) -> list[int]:
        """Return the log of the latest request."""
        return list(self.log)

    def messages_of_parts(self, log: Sequence[int]) -> Mapping[Owner, int]:
        """Return how many messages each part of an opened endpoint sends and receives; none for another stack."""
        opened = any(self.stack.entries[index].is_part for index in self.probed)
        return messages_of(log, [*map(owner_of, self.probed)]) if opened else {}

    async def watch(self, app: ASGIApp, scope: Any, receive: Any, send: Any) -> Any:
        """Call the app with a log of its own."""
        self.log.clear()
        self.log += (HARNESS, self.clock())
        if self.steppable and scope["type"] == "websocket":
            receive = self._stepped_where_it_waits(receive)
        if self.stepping:
            return await stepped(app(scope, receive, send), self.log, self.clock)
        return await app(scope, receive, send)

    def _stepped_where_it_waits(self, receive: Callable[[], Awaitable[Any]]) -> Callable[[], Awaitable[Any]]:
        """Return a `receive` of a WebSocket that logs its suspensions: an app may wait in one task and send in another.

        Nothing else steps the tasks of an endpoint, whose time would be the harness's meanwhile.
        """

        async def stepped_receive() -> Any:
            return await (stepped(receive(), self.log, self.clock) if self.stepping else receive())

        return stepped_receive

    @contextmanager
    def installed(self, indexes: Iterable[EntryIndex]) -> Iterator[None]:
        """Place the probes of these entries, and remove all of them at the end, also after an exception."""
        try:
            for index in indexes:
                self._add(index)
            with ExitStack() as stack:
                stack.enter_context(raised_recursion_limit(len(self.stack.entries)))
                for site in self._sites.values():
                    if site.targets:
                        assert site.code is not None
                        stack.enter_context(patched_code(site.function, site.code))
                yield
        finally:
            for site in self._sites.values():
                site.targets.clear()
                site.outer_owners.clear()

    def _add(self, index: EntryIndex) -> None:
        entry = self.stack.entries[index]
        function = entry.function
        assert function is not None
        site = self._sites.get(id(function))
        if site is None:
            probed = map(self.stack.entries.__getitem__, self.probed)
            is_part = any(one.is_part for one in probed if one.function is function)
            site = self._sites[id(function)] = _Site(function, twin(function, function.__code__), entry.reader, is_part)
            probe = self._outer_probe(site)
            site.code = probe_trampoline(
                site.reader, probe, site.targets, site.twin, self._search, self._inside_of(site)
            )
        site.targets[entry.key] = (owner_of(index), self._search.as_target(site.reader, site.twin))
        if entry.own_task:
            site.outer_owners[owner_of(index)] = self.owner_of_parent(index)

    def _outer_probe(self, site: _Site) -> Probe:
        """The site's probe, which also steps the tasks that its layers begin."""
        probe = self._probe(site)
        if any(entry.own_task for entry in self.stack.entries if entry.function is site.function):
            return stepping_probe(probe, self.log, self.clock, self._steppers, site.outer_owners, beside=site.is_part)
        return probe

    def _inside_of(self, site: _Site) -> Collection[Owner] | None:
        """Return the owners inside which calls enter the site's layers, None for all."""
        return self._inside if site.is_part else None

    def _probe(self, site: _Site) -> Probe:
        plain = is_plain(site.function)
        if isinstance(site.reader, FrameworkReader):
            return framework_probe_for(self.log, self.clock, plain=plain)
        opened = any(self.stack.entries[index].is_part for index in self.probed)
        return probe_for(self.log, self.clock, plain=plain, inside=self._inside if opened else None)

    def _site_of(self, index: EntryIndex) -> tuple[_Site, Key]:
        entry = self.stack.entries[index]
        return self._sites[id(entry.function)], entry.key

    @contextmanager
    def doubled(self, index: EntryIndex, blanks: BlankLayers) -> Iterator[None]:
        """Put the null layer at the boundary of an entry. Only one boundary can have it at a time."""
        site, key = self._site_of(index)
        null = self._null_layer(site)
        own = site.targets[key]
        null.targets[key] = own
        site.targets[key] = (self.null_owner, null.outermost[blanks])
        outer = site.outer_owners.get(owner_of(index))
        if outer is not None:  # the task begins with the null layer
            site.outer_owners[self.null_owner] = outer
        try:
            yield
        finally:
            site.outer_owners.pop(self.null_owner, None)
            site.targets[key] = own
            null.targets.clear()

    def _null_layer(self, site: _Site) -> NullLayer:
        reader, plain = site.reader, is_plain(site.function)
        shape: tuple[object, ...] = (len(reader.parameters.positional), plain)
        if isinstance(reader, FrameworkReader):
            shape = (reader, plain, site.is_part)
        elif not reader.ordinary:
            shape = (id(site.function), plain)
        if shape not in self._null_layers:
            self._null_layers[shape] = null_layer(
                reader, self._probe(site), self._search, self._inside_of(site), plain=plain
            )
        return self._null_layers[shape]

    @contextmanager
    def bypassed(self, layers: Sequence[TaskLayer]) -> Iterator[None]:
        """Send requests from the boundary of each of `layers` straight to its child."""
        present = []
        for layer in layers:
            site, key = self._site_of(layer.index)
            present.append((site, key, site.targets[key]))
            site.targets[key] = (owner_of(layer.index), _straight_to(self.stack.entries[layer.child]))
        try:
            yield
        finally:
            for site, key, target in present:
                site.targets[key] = target

    @contextmanager
    def stepping_set(self, *, on: bool) -> Iterator[None]:
        """Switch steppers on, if there is anything for them to log, or off."""
        before, self._steppers.on = self._steppers.on, on and self.steppable
        try:
            yield
        finally:
            self._steppers.on = before


def _straight_to(entry: Entry) -> Callable[..., Awaitable[Any]]:
    """Return a function that a probe can call in place of the layer outside `entry`, and that calls `entry`."""
    function, call = entry.function, entry.call
    assert function is not None
    assert isinstance(call, Call)

    before, after, named = call.positional[: call.lead_count], call.positional[call.lead_count + 3 :], call.named

    # What these take is missing from what the layer is found to take.
    def straight(*arguments: Any) -> Any:
        return function(*before, *arguments[-3:], *after, **named)

    def replacing(*arguments: Any) -> Any:
        positional, others = call.replaced(*arguments[-3:])
        return function(*positional, **others)

    side_by_side = call.within is None and call.spots == tuple(range(call.lead_count, call.lead_count + 3))
    return straight if side_by_side else replacing
