"""Put a probe at the boundary of every layer, and take it away again.

A layer is entered through a Python function, whose code is patched during a measurement (docs/decisions/0002). The new
code is a trampoline to the probe, which calls a twin of the function with the original code.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

from ..analysis.event_log import messages_of
from ..analysis.samples import BlankLayers
from ..asgi import loops
from ..asgi.app import ASGIApp
from ..asgi.calls import FrameworkReader, Reader
from ..asgi.stack import Stack
from ..interpreter.clocks import Clock, perf_counter_ns
from ..interpreter.code_patching import Function, is_plain, patched_code, twin
from ..interpreter.foreign_tools import raised_recursion_limit
from ..model.stack import FURTHER_OWNERS, HARNESS, NULL, OTHERS, UNOWNED, EntryIndex, Owner, owner_of
from .null_layers import NullLayer, null_layer
from .probe_code import (
    ArgumentSearch,
    Log,
    Probe,
    Targets,
    framework_probe_for,
    probe_for,
    probe_trampoline,
)
from .steps import Steps


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
    code: CodeType | None = None


class Probes:
    """The probes of a stack, which read the same clock: a probe for each entry with a function, down to the endpoint's.

    `suspending` is whether tasks of a request wait, `leaving` whether a request leaves tasks that it has started: their
    first steps are part of it. `null_owner` owns the time of the null layer. `log` holds the current request; `watch`
    begins it. The stack must be traced after the app has started. Its objects stay alive as long as this object does.
    """

    def __init__(
        self, stack: Stack, clock: Clock = perf_counter_ns, *, suspending: bool = False, leaving: bool = False
    ) -> None:
        self.stack = stack
        self.clock = clock
        # There is more than one step only if tasks take turns or a task waits.
        # Steps and probes of different threads would log in no certain order.
        self.steppable = (stack.tasks or suspending or leaving) and not stack.probed_elsewhere
        self.leaving = leaving
        self.log: Log = deque((HARNESS, clock()))
        self.owners = len(stack.entries) + 1 + FURTHER_OWNERS
        self.null_owner = Owner(self.owners + NULL)
        self.probed = stack.probeable
        # Whether parts of an endpoint have probes.
        self.opened = any(stack.entries[index].is_part for index in self.probed)
        # The entries whose blank layers can wrap `send`.
        self.wrappable = frozenset(i for i in self.probed if stack.entries[i].ordinary)
        # Those whose blank layers can divide their two probes. After a wait the next owner in the log must be a row's.
        undivided = self.opened or self.steppable
        self.dividable = frozenset(i for i in self.wrappable if not (undivided or stack.entries[i].plain))
        self.unowned = Owner(self.owners + UNOWNED)
        # The owners inside which the boundaries of parts are.
        around = (owner_of(index) for index in self.probed if not stack.entries[index].is_layer)
        self._inside = frozenset((*around, self.null_owner))
        self._steps = Steps(self.log, clock, Owner(self.owners + OTHERS))
        self._search = ArgumentSearch(self.unowned, self.log, clock)
        self._sites: dict[int, _Site] = {}  # by the identity of the function
        self._null_layers: dict[tuple[object, ...], NullLayer] = {}
        self._end = 0  # of the latest request in the log

    def read(self) -> list[int]:
        """Return the log of the latest request."""
        return list(self.log)[: self._end]

    def entered(self) -> Counter[Owner]:
        """Return how often the latest request entered each owner."""
        return Counter(owner for owner, _ in self._search.entered)

    def messages_of_parts(self, log: Sequence[int]) -> Mapping[Owner, int]:
        """Return how many messages each part of an opened endpoint sends and receives; none for another stack."""
        return messages_of(log, [*map(owner_of, self.probed)]) if self.opened else {}

    async def watch(self, app: ASGIApp, scope: Any, receive: Any, send: Any) -> Any:
        """Call the app with a log of its own."""
        self._steps.begins()
        self._search.entered.clear()
        self.log.clear()
        self.log += (HARNESS, self.clock())
        try:
            await app(scope, receive, send)
            if self.leaving:
                await loops.current().settle()
        finally:
            self._end = len(self.log)
            self._steps.forget_ended()

    @contextmanager
    def installed(self, indexes: Iterable[EntryIndex]) -> Iterator[None]:
        """Place the probes of these entries, and remove all of them at the end, also after an exception.

        The steps of the event loop are logged as well, if there can be more than one in a request.
        """
        try:
            for index in indexes:
                self._add(index)
            with ExitStack() as stack:
                stack.enter_context(raised_recursion_limit(len(self.stack.entries)))
                for site in self._sites.values():
                    if site.targets:
                        assert site.code is not None
                        stack.enter_context(patched_code(site.function, site.code))
                if self.steppable:
                    stack.enter_context(self._steps.logged())
                yield
        finally:
            for site in self._sites.values():
                site.targets.clear()

    def _add(self, index: EntryIndex) -> None:
        entry = self.stack.entries[index]
        function = entry.function
        assert function is not None
        site = self._sites.get(id(function))
        if site is None:
            probed = map(self.stack.entries.__getitem__, self.probed)
            is_part = any(probed_entry.is_part for probed_entry in probed if probed_entry.function is function)
            site = self._sites[id(function)] = _Site(function, twin(function, function.__code__), entry.reader, is_part)
            site.code = probe_trampoline(
                site.reader, self._probe(site), site.targets, site.twin, self._search, self._inside_of(site)
            )
        site.targets[entry.key] = (owner_of(index), self._search.as_target(site.reader, site.twin))

    def _inside_of(self, site: _Site) -> Collection[Owner] | None:
        """Return the owners inside which calls enter the site's layers, None for all."""
        return self._inside if site.is_part else None

    def _probe(self, site: _Site) -> Probe:
        plain = is_plain(site.function)
        if isinstance(site.reader, FrameworkReader):
            return framework_probe_for(self.log, self.clock, plain=plain)
        inside = self._inside if self.opened else None
        return probe_for(self.log, self.clock, self._steps.starter, plain=plain, inside=inside)

    @contextmanager
    def doubled(self, index: EntryIndex, blanks: BlankLayers) -> Iterator[None]:
        """Put the null layer at the boundary of an entry. Only one boundary can have it at a time."""
        entry = self.stack.entries[index]
        site, key = self._sites[id(entry.function)], entry.key
        null = self._null_layer(site)
        own = site.targets[key]
        null.targets[key] = own
        site.targets[key] = (self.null_owner, null.outermost[blanks])
        try:
            yield
        finally:
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
                reader, self._probe(site), self._search, self._inside_of(site), self.null_owner, plain=plain
            )
        return self._null_layers[shape]
