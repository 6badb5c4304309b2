"""The probes in C where they can be had, else those in Python: the same log at half the cost."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from statistics import median
from time import perf_counter_ns, thread_time_ns
from typing import Any

from .asgi import ASGIApp
from .boundaries import Clock, Probes, TaskLayer, straight_to
from .discovery import Stack
from .exchange import Function, Parameters, exchanged, relay, twin


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


# So many layers that do nothing, one inside the other, are timed so often, after so often, to learn what one takes.
CHAIN, CHAIN_RUNS, CHAIN_WARM_RUNS = 4, 300, 200


def _doing_nothing(inner: Any, leads: int) -> Any:
    """A layer that does nothing round `inner`, with so many arguments before the scope, written as a layer is."""

    async def function(scope: Any, receive: Any, send: Any) -> None:
        await inner(scope, receive, send)

    async def method(lead: Any, scope: Any, receive: Any, send: Any) -> None:
        await inner(lead, scope, receive, send)

    async def partial(*arguments: Any, **named: Any) -> None:
        await inner(*arguments, **named)

    layer: Any = {0: function, 1: method}.get(leads, partial)
    # Code of its own, which CPython specialises for this one call.
    layer.__code__ = layer.__code__.replace()
    return layer


@functools.cache
def doing_nothing_ns() -> float:
    """What such a layer takes without any probe: a chain of them against none, after other work, as in a request."""

    async def end(lead: Any, scope: Any, receive: Any, send: Any) -> None:
        pass

    def taken_ns(function: Any) -> int:
        json.loads(json.dumps(OTHER_WORK))
        coroutine = function(None, None, None, None)
        begin = perf_counter_ns()
        try:  # noqa: SIM105 - a context manager would be timed as well
            coroutine.send(None)
        except StopIteration:
            pass
        return perf_counter_ns() - begin

    chain: Any = end
    for _ in range(CHAIN):
        chain = _doing_nothing(chain, 1)
    differences = [taken_ns(chain) - taken_ns(end) for _ in range(CHAIN_WARM_RUNS + CHAIN_RUNS)]
    return median(differences[CHAIN_WARM_RUNS:]) / CHAIN


OTHER_WORK = [{"number": number, "texts": [str(number)] * 3} for number in range(30)]


@dataclass(slots=True)
class _Site:
    """One function that enters one or more layers: its probe, and a second one inside it, with a layer between."""

    function: Function
    original: Function
    probe: Any
    inner: Any
    doubled: Any


class NativeProbes(Probes):
    """Probes in C. Suspensions are marked by every task's outermost probe, so steppers are no objects of their own.

    Between the two probes of a null layer stands one that does nothing: what a probe costs round a coroutine, which it
    steps from C, is more than what it costs round another probe. What that layer takes by itself is known.
    """

    def __init__(self, stack: Stack, clock: Clock = perf_counter_ns, *, suspending: bool = False) -> None:
        super().__init__(stack, clock, suspending=suspending)
        self._native = native()
        self._cpu = False
        self._native_sites: dict[int, _Site] = {}

    @property
    def null_layer_ns(self) -> float:
        """See `Probes`."""
        return doing_nothing_ns()

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
                for site in self._native_sites.values():
                    stack.enter_context(exchanged(site.function, relay(site.function.__code__, site.probe)))
                yield
        finally:
            self._native_sites.clear()
            self._cpu = False

    def _place(self, index: int) -> None:
        function = self.stack.entries[index].function
        assert function is not None
        if id(function) not in self._native_sites:
            original = twin(function, function.__code__)
            inner = self._native.probe(original)
            parameters = Parameters.of(function.__code__)
            positional = not (parameters.keywords or parameters.starred or parameters.double_starred)
            leads = len(parameters.positional) - 3 if positional else -1  # any number, or options
            doubled = _doing_nothing(twin(function, relay(function.__code__, inner)), leads)
            probe = self._native.probe(original)
            self._native_sites[id(function)] = _Site(function, original, probe, inner, doubled)
        site = self._site_at(index)
        self._set(index, index + 1, site.original)
        site.inner.set(self.stack.entries[index].leads, index + 1, site.original)

    def _site_at(self, index: int) -> _Site:
        return self._native_sites[id(self.stack.entries[index].function)]

    def _set(self, index: int, owner: int, target: Any) -> None:
        entry = self.stack.entries[index]
        parent = (self.owner_of_parent(index),) if entry.own_task else ()
        self._site_at(index).probe.set(entry.leads, owner, target, *parent)

    @contextmanager
    def doubled(self, index: int) -> Iterator[None]:
        """See `Probes`."""
        site = self._site_at(index)
        self._set(index, self.null_owner, site.doubled)
        try:
            yield
        finally:
            self._set(index, index + 1, site.original)

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
