"""Charge the work of a request to the layer that does it.

A probe at every boundary switches the owner that is charged. Objects made before the callee's function has control are
the caller's. The callee's coroutine and the work in it are the callee's, up to the next boundary. A task is charged to
its spawner until it enters a boundary. The event loop's work on a suspended task is charged to the owner that
suspended.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle
from types import CodeType
from typing import Any, TypeAlias

from ..asgi.app import Observer
from ..asgi.calls import Call as ASGICall
from ..asgi.calls import FrameworkReader, Key, Reader
from ..asgi.loops import Library
from ..asgi.stack import Stack
from ..interpreter.clocks import sleep
from ..interpreter.code_patching import Function, detour, patched_code, twin
from ..interpreter.foreign_tools import raised_recursion_limit
from ..interpreter.stand_ins import stand_in_for_awaitable, stand_in_for_callable
from ..model.stack import HARNESS, Owner, owner_of
from .charger import NOBODY, Charger
from .spawning import Spawning

# What delayed requests wait at the endpoint, in turn. Every eight requests in a row have all of them.
DELAYS_S = (*[0.0] * 5, 0.003, 0.01, 0.03)
# Makes one request under an observer.
Call: TypeAlias = Callable[[Observer], Awaitable[Any]]


@dataclass(slots=True)
class _Site:
    """A function that enters layers."""

    function: Function
    reader: Reader | FrameworkReader
    owners: dict[Key, Owner] = field(default_factory=dict)


def owner_count(stack: Stack) -> int:
    """Return the number of owners of a stack: the harness, the entries, tasks that were there before, and nobody."""
    return len(stack.entries) + 3


class Charging:
    """Charge the owners of one stack: entry `i` is owner `i + 1`."""

    def __init__(self, stack: Stack, core: Charger, library: Library, *, delayed: bool = False) -> None:
        self.stack = stack
        self.core = core
        self.library = library
        # For work that is nobody's.
        self.aside = Owner(owner_count(stack) - 1)
        self.spawning = Spawning(core, Owner(owner_count(stack) - 2), self.aside)
        self.parts = frozenset(map(owner_of, stack.part_entries))
        # The owners inside which the boundaries of parts are.
        self.inside = self.parts if stack.endpoint is None else self.parts | {owner_of(stack.endpoint)}
        # Delayed requests wait at the endpoint: some layers do more after a longer time, as layers with histograms do.
        self.slow = owner_of(stack.endpoint) if delayed and stack.endpoint is not None else None
        self.delays_s = cycle(DELAYS_S)
        # The owner of each message through an outer boundary, and an owner each time that it is entered. Lists, because
        # threads may append at the same time.
        self.received: list[Owner] = []
        self.sent: list[Owner] = []
        self.entered: list[Owner] = []

    @property
    def owners(self) -> list[Owner]:
        """Every owner of the stack, those outside of the request among them."""
        return list(map(Owner, range(owner_count(self.stack))))

    @contextmanager
    def placed(self) -> Iterator[None]:
        """Place the probes in the block, and remove them at its end. The core must have been started."""
        with ExitStack() as stack:
            stack.enter_context(raised_recursion_limit(len(self.stack.entries)))
            stack.enter_context(self.spawning.watched(self.library))
            for site in self._sites():
                entered = self.core.aside(self._entered(site))
                stack.enter_context(patched_code(site.function, detour(site.function.__code__, entered)))
            yield

    async def request(self, call: Call) -> None:
        """Make a request. The work round it is charged to nobody, whoever was charged before a suspension."""
        await self.core.coroutine_proxy(self.aside, call(self._watch), True)

    async def _watch(self, app: Any, scope: Any, receive: Any, send: Any) -> Any:
        """Call the app, and charge its owners."""
        return await self.core.coroutine_proxy(HARNESS, self.core.run(HARNESS, app, scope, receive, send))

    def messages(self) -> tuple[Counter[Owner], Counter[Owner]]:
        """Return the numbers received and sent by owner since the last call."""
        received, self.received = self.received, []
        sent, self.sent = self.sent, []
        return Counter(received), Counter(sent)

    def entries(self) -> Counter[Owner]:
        """Return how often each owner was entered since the last call."""
        entered, self.entered = self.entered, []
        return Counter(entered)

    def _sites(self) -> list[_Site]:
        sites: dict[int, _Site] = {}
        for index in (*self.stack.probeable, *self.stack.strays):
            entry = self.stack.entries[index]
            assert entry.function is not None
            site = sites.setdefault(id(entry.function), _Site(entry.function, entry.reader))
            site.owners[entry.key] = owner_of(index)
        return list(sites.values())

    # ---- probes -----------------------------------------------------------------------------------------------------

    def _entered(self, site: _Site) -> Callable[..., Any]:
        """Return the probe that is called, aside, in place of the site's function."""
        core, reader = self.core, site.reader
        original = twin(site.function, site.function.__code__)

        def entered(caller: Owner, *flat: Any) -> Any:
            positional, named, containers = reader.parameters.gathered(flat)
            if caller == NOBODY:
                return original(*positional, **named)
            for container in containers:
                core.discount(caller, container)
            call = reader.read(positional, named)
            owner = None if call is None else site.owners.get(call.key)
            if call is None or owner is None or (owner in self.parts and caller not in self.inside):
                return core.run(caller, original, *positional, **named)
            self.entered.append(owner)
            if owner == self.slow:
                sleep(next(self.delays_s))
            if isinstance(call, ASGICall):
                receive = self._stand_in(caller, call.receive, _receiving, lambda: self.received.append(owner))
                send = self._stand_in(caller, call.send, _sending, lambda: self.sent.append(owner))
                positional, named = call.replaced(call.scope, receive, send)
            answer = core.run(owner, original, *positional, **named)
            return stand_in_for_awaitable(answer, partial(core.coroutine_proxy, owner))

        return entered

    def _stand_in(
        self, outer: Owner, passed: Callable[..., Awaitable[Any]], maker: Callable[..., Any], count: Callable[[], None]
    ) -> Callable[..., Any]:
        """Return the layer's `receive` or `send`, whose work is the outer owner's; its return calls `count`."""
        core = self.core

        def called(caller: Owner, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
            if caller == NOBODY:
                return passed(*arguments, **named)
            core.discount(caller, named)
            if arguments:
                core.discount(caller, arguments)
            return core.coroutine_proxy(outer, core.run(outer, passed, *arguments, **named), False, count)

        passed, stand_in = stand_in_for_callable(passed, maker(core.aside(called)))
        return stand_in


def _coroutine_functions(maker: Callable[[Any], Any]) -> Callable[[Any], Callable[..., Any]]:
    """Return the maker of a function that passes for a coroutine function, because its callers await its results."""
    code = maker.__code__
    constants = (
        constant.replace(co_flags=constant.co_flags | inspect.CO_COROUTINE)
        if isinstance(constant, CodeType)
        else constant
        for constant in code.co_consts
    )
    return twin(maker, code.replace(co_consts=tuple(constants)))


@_coroutine_functions
def _receiving(guard: Callable[..., Any]) -> Any:
    def receive(*arguments: Any, **named: Any) -> Any:
        return guard(arguments, named)

    return receive


@_coroutine_functions
def _sending(guard: Callable[..., Any]) -> Any:
    def send(*arguments: Any, **named: Any) -> Any:
        return guard(arguments, named)

    return send
