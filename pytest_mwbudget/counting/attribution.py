"""Charge whatever a request does to the layer that does it.

A probe stands at every boundary, as for timing, but this one switches the owner that is charged. What a call makes
before the callee's function has control is the caller's; the coroutine of the callee, and everything done in it, is
the callee's; what is inside a deeper boundary is that layer's. A task is its spawner's until it enters a boundary. The
event loop's work on a suspended task is the owner's who suspended.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import CodeType
from typing import Any, TypeAlias

from ..asgi.calls import Key, Reader
from ..asgi.discovery import Stack
from ..asgi.loops import Library
from ..asgi.server import Observer
from ..interpreter.code_patching import Function, detour, patched_code, twin
from ..interpreter.foreign_tools import raised_recursion_limit
from ..interpreter.stand_ins import stand_in_for_awaitable, stand_in_for_callable
from ..model.stack import HARNESS, Owner, owner_of
from .backend import Charger
from .spawning import Spawning

# Makes one request under an observer.
Call: TypeAlias = Callable[[Observer], Awaitable[Any]]


@dataclass(slots=True)
class _Site:
    """One function that enters one or more layers."""

    function: Function
    reader: Reader
    owners: dict[Key, Owner] = field(default_factory=dict)


def owner_count(stack: Stack) -> int:
    """How many owners a stack has: the harness, the entries, tasks that were there before, and nobody."""
    return len(stack.entries) + 3


class Charging:
    """The owners of one stack. Entry `i` is owner `i + 1`; `background` is charged for tasks that were there before.

    `aside` is charged for what is nobody's. `received` and `sent` are messages through an owner's outer boundary.
    """

    def __init__(self, stack: Stack, core: Charger, library: Library) -> None:
        self.stack = stack
        self.core = core
        self.library = library
        self.background = Owner(owner_count(stack) - 2)
        self.aside = Owner(owner_count(stack) - 1)
        self.spawning = Spawning(core, self.background, self.aside)
        self.received: Counter[Owner] = Counter()
        self.sent: Counter[Owner] = Counter()

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
        """Make a request. What is done here round it is charged to nobody, whoever was charged before a suspension."""
        await self.core.coroutine_proxy(self.aside, call(self._watch), True)

    async def _watch(self, app: Any, scope: Any, receive: Any, send: Any) -> Any:
        """Call the app, and charge whom it concerns."""
        return await self.core.coroutine_proxy(HARNESS, self.core.run(HARNESS, app, scope, receive, send))

    def messages(self) -> tuple[Counter[Owner], Counter[Owner]]:
        """Received and sent by owner since the last time; begins anew."""
        taken = self.received, self.sent
        self.received, self.sent = Counter(), Counter()
        return taken

    def _sites(self) -> list[_Site]:
        sites: dict[int, _Site] = {}
        for index in self.stack.probeable:
            entry = self.stack.entries[index]
            assert entry.function is not None
            reader = Reader.of(entry.function, entry.telling)
            site = sites.setdefault(id(entry.function), _Site(entry.function, reader))
            site.owners[entry.key] = owner_of(index)
        return list(sites.values())

    # ---- probes -----------------------------------------------------------------------------------------------------

    def _entered(self, site: _Site) -> Callable[..., Any]:
        """Return the probe that is called, aside, in place of the site's function."""
        core, reader = self.core, site.reader
        original = twin(site.function, site.function.__code__)

        def entered(caller: Owner, *flat: Any) -> Any:
            positional, named, containers = reader.parameters.gathered(flat)
            if caller < 0:
                return original(*positional, **named)
            for container in containers:
                core.discount(caller, container)
            call = reader.read(positional, named)
            owner = None if call is None else site.owners.get(call.key)
            if call is None or owner is None:
                return core.run(caller, original, *positional, **named)
            receive = self._receive(caller, owner, call.receive)
            send = self._send(caller, owner, call.send)
            positional, named = call.replaced(call.scope, receive, send)
            answer = core.run(owner, original, *positional, **named)
            return stand_in_for_awaitable(answer, partial(core.coroutine_proxy, owner))

        return entered

    def _receive(self, outer: Owner, owner: Owner, receive: Callable[[], Awaitable[Any]]) -> Callable[..., Any]:
        """The layer's `receive`: what is done in it is the outer one's."""
        core = self.core

        def came() -> None:
            self.received[owner] += 1

        def asked(caller: Owner, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
            if caller < 0:
                return ask(*arguments, **named)
            self._discount(caller, arguments, named)
            return core.coroutine_proxy(outer, core.run(outer, ask, *arguments, **named), False, came)

        ask, stand_in = stand_in_for_callable(receive, _receiving(core.aside(asked)))
        return stand_in

    def _send(self, outer: Owner, owner: Owner, send: Callable[[Any], Awaitable[Any]]) -> Callable[..., Any]:
        """The layer's `send`: what is done in it is the outer one's."""
        core = self.core

        def went() -> None:
            self.sent[owner] += 1

        def given(caller: Owner, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
            if caller < 0:
                return give(*arguments, **named)
            self._discount(caller, arguments, named)
            return core.coroutine_proxy(outer, core.run(outer, give, *arguments, **named), False, went)

        give, stand_in = stand_in_for_callable(send, _sending(core.aside(given)))
        return stand_in

    def _discount(self, caller: Owner, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Take off the caller what a probe in its place made for its own arguments."""
        self.core.discount(caller, named)
        if arguments:
            self.core.discount(caller, arguments)


def _coroutine_functions(maker: Callable[[Any], Any]) -> Callable[[Any], Callable[..., Any]]:
    """The maker of a function that, asked whether it is a coroutine function, says yes: it is awaited as one."""
    code = maker.__code__
    constants = (
        one.replace(co_flags=one.co_flags | inspect.CO_COROUTINE) if isinstance(one, CodeType) else one
        for one in code.co_consts
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
