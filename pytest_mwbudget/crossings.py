"""The probes in C where they can be had, else those in Python: the same log at half the cost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from time import perf_counter_ns, thread_time_ns
from types import CodeType
from typing import Any

from .asgi import ASGIApp
from .boundaries import BlankLayers, Clock, Probes, Shape, TaskLayer, layer_of, shape_of, straight_to, with_blanks
from .discovery import Stack
from .exchange import Function, exchanged, relay, twin


def native() -> Any:
    """The module in C, None where it was not built or cannot be used."""
    try:
        from . import _crossings
    except ImportError:
        return None
    return _crossings


def best_probes(stack: Stack, clock: Clock, cpu_clock: Clock | None, *, suspending: bool) -> Probes:
    """Probes for the stack. Those in C have clocks of their own, which these must be."""
    real = clock is perf_counter_ns and cpu_clock in (None, thread_time_ns)
    return (NativeProbes if real and native() else Probes)(stack, clock, suspending=suspending)


@dataclass(slots=True)
class _Site:
    """One function that enters one or more layers: its probe, and the code that calls it, kept from leg to leg."""

    function: Function
    original: Function
    probe: Any
    code: CodeType
    used: bool = False


@dataclass(slots=True)
class _Inside:
    """What is inside the outer probe of a null layer; see `boundaries`."""

    doubled: Mapping[BlankLayers, Function]
    probe: Any


class NativeProbes(Probes):
    """Probes in C. Suspensions are marked by every task's outermost probe, so steppers are no objects of their own."""

    def __init__(self, stack: Stack, clock: Clock = perf_counter_ns, *, suspending: bool = False) -> None:
        super().__init__(stack, clock, suspending=suspending)
        self._native = native()
        self._cpu = False
        self._sites: dict[int, _Site] = {}
        self._insides: dict[Shape, _Inside] = {}

    def start(self) -> None:
        """See `Probes`."""
        self._native.start(self._cpu, self.stepping)

    def read(self) -> list[int]:
        """See `Probes`."""
        found: list[int] = self._native.read()
        return found

    async def watch(self, app: ASGIApp, scope: Any, receive: Any, send: Any) -> None:
        """See `Probes`."""
        self.start()
        await self._native.watch(app, scope, receive, send)

    @contextmanager
    def installed(self, indexes: Iterable[int], clock: Clock | None = None) -> Iterator[None]:
        """See `Probes`."""
        assert clock in (None, perf_counter_ns, thread_time_ns), "there are no others in C"
        try:
            self._cpu = clock is thread_time_ns
            for index in indexes:
                self._place(index)
            with ExitStack() as stack:
                for site in self._sites.values():
                    if site.used:
                        stack.enter_context(exchanged(site.function, site.code))
                yield
        finally:
            for site in self._sites.values():
                site.probe.clear()
                site.used = False
            self._cpu = False

    def _place(self, index: int) -> None:
        function = self.stack.entries[index].function
        assert function is not None
        if id(function) not in self._sites:
            original = twin(function, function.__code__)
            probe = self._native.probe(original)
            self._sites[id(function)] = _Site(function, original, probe, relay(function.__code__, probe))
        site = self._site_at(index)
        site.used = True
        self._set(index, index + 1, site.original)

    def _site_at(self, index: int) -> _Site:
        return self._sites[id(self.stack.entries[index].function)]

    def _inside_of(self, shape: Shape) -> _Inside:
        if shape not in self._insides:
            layer = layer_of(shape)
            probe = self._native.probe(layer)
            self._insides[shape] = _Inside(with_blanks(twin(layer, relay(layer.__code__, probe)), shape), probe)
        return self._insides[shape]

    def _set(self, index: int, owner: int, target: Any) -> None:
        entry = self.stack.entries[index]
        parent = (self.owner_of_parent(index),) if entry.own_task else ()
        self._site_at(index).probe.set(entry.leads, owner, target, *parent)

    @contextmanager
    def doubled(self, index: int, blanks: BlankLayers) -> Iterator[None]:
        """See `Probes`."""
        site = self._site_at(index)
        inside = self._inside_of(shape_of(site.original.__code__))
        inside.probe.set(self.stack.entries[index].leads, index + 1, site.original)
        self._set(index, self.null_owner, inside.doubled[blanks])
        try:
            yield
        finally:
            self._set(index, index + 1, site.original)
            inside.probe.clear()

    @contextmanager
    def bypassed(self, layers: Sequence[TaskLayer]) -> Iterator[None]:
        """See `Probes`."""
        for layer in layers:
            self._set(layer.index, layer.index + 1, straight_to(self.stack.entries[layer.child]))
        try:
            yield
        finally:
            for layer in layers:
                self._set(layer.index, layer.index + 1, self._site_at(layer.index).original)
