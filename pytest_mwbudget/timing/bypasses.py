"""Send requests past single layers, without any probe (docs/decisions/0032).

Every layer that can be left out is entered through a trampoline, in all requests. It calls the layer's own code, or in
the layer's place the one ASGI callable inside it. Both calls are made in the same way, so that the trampoline costs the
same in requests with the layer and in requests without it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from operator import call as enter
from types import CodeType
from typing import Any, TypeAlias

from ..asgi.calls import Call, Key, Reader
from ..asgi.stack import Entry, Stack
from ..interpreter.clocks import perf_counter_ns
from ..interpreter.code_patching import Function, patched_code, twin
from ..interpreter.foreign_tools import raised_recursion_limit
from ..model.stack import HARNESS, SUSPENDED, EntryIndex, parts_of
from .probe_code import ArgumentSearch, probe_trampoline

# Called with what the trampoline found before the scope, and scope, receive and send.
Target: TypeAlias = Callable[[tuple[Any, ...], Any, Any, Any], Any]


def inner_app(stack: Stack, index: EntryIndex) -> EntryIndex | str:
    """Return the only ASGI callable that a layer calls, or why that cannot be called in the layer's place."""
    entries = stack.entries
    layer = entries[index]
    if layer.hook is not None or len(parts_of(entries, index)) > 1:
        return "its framework calls it, and what is inside it, by itself"
    inside = [EntryIndex(inner) for inner, entry in enumerate(entries) if index in entry.parents]
    if not inside:
        return "it answers by itself" if stack.handed_on is None else stack.handed_on.because
    if len(inside) > 1:
        return "it calls several inner apps"
    inner = entries[inside[0]]
    if inner.hook is not None:
        return "its framework calls what is inside it by itself"
    if inner.elsewhere or layer.elsewhere:
        return "its inner app runs in another thread"
    if len(inner.parents) > 1:
        return "its inner app is called more than once in a request"
    if layer.function is None or not inner.enterable:
        return "its inner app is made for each request"
    return inside[0]


@dataclass(slots=True)
class _Site:
    """A function that enters layers, its twin with its own code, and the trampoline that replaces this code.

    `targets` has what the trampoline calls, by the key of the layer.
    """

    function: Function
    twin: Function
    code: CodeType
    targets: dict[Key, Target]


@dataclass(frozen=True, slots=True)
class _Choice:
    """The two targets of a layer: its own code, and the ASGI callable inside it."""

    site: _Site
    key: Key
    own: Target
    inner: Target


class Bypasses:
    """The trampolines of layers, each with the only ASGI callable inside it: `inner_apps`."""

    def __init__(self, stack: Stack, inner_apps: Mapping[EntryIndex, EntryIndex]) -> None:
        self.stack = stack
        self._sites: dict[int, _Site] = {}  # by the identity of the function
        self._choices = {index: self._choice(index, inner) for index, inner in inner_apps.items()}

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Put the trampolines in place, and every function's own code back at the end."""
        for choice in self._choices.values():
            choice.site.targets[choice.key] = choice.own
        with ExitStack() as patched:
            patched.enter_context(raised_recursion_limit(len(self.stack.entries)))
            for site in self._sites.values():
                patched.enter_context(patched_code(site.function, site.code))
            yield

    @contextmanager
    def without(self, index: EntryIndex | None) -> Iterator[None]:
        """Send requests past a layer; None sends them through every layer."""
        if index is None:
            yield
            return
        choice = self._choices[index]
        choice.site.targets[choice.key] = choice.inner
        try:
            yield
        finally:
            choice.site.targets[choice.key] = choice.own

    def _choice(self, index: EntryIndex, inner_index: EntryIndex) -> _Choice:
        layer, inner = self.stack.entries[index], self.stack.entries[inner_index]
        assert layer.function is not None
        assert inner.function is not None
        site = self._site(layer.function, layer)
        call, inner_call = layer.call, inner.call
        assert isinstance(call, Call)
        assert isinstance(inner_call, Call)
        if layer.ordinary and inner.ordinary:
            return _Choice(site, layer.key, _with_leads(site.twin, call), _with_leads(inner.function, inner_call))
        # The arguments of an unusual call differ from request to request; those of an ordinary one tell the layer.
        given = call if layer.ordinary else None
        return _Choice(site, layer.key, _with_call(site.twin, given), _with_call(inner.function, inner_call))

    def _site(self, function: Function, layer: Entry) -> _Site:
        if id(function) not in self._sites:
            reader = layer.reader
            assert isinstance(reader, Reader)
            # Logs nothing: nothing came before.
            search = ArgumentSearch(HARNESS, deque((SUSPENDED, 0)), perf_counter_ns)
            targets: dict[Key, Target] = {}
            original = twin(function, function.__code__)
            code = probe_trampoline(reader, enter, targets, original, search)
            self._sites[id(function)] = _Site(function, original, code, targets)
        return self._sites[id(function)]


def _with_leads(function: Function, call: Call) -> Target:
    """Return a target that calls a function which takes scope, receive and send last."""
    own = call.positional[: call.lead_count]

    def target(leads: tuple[Any, ...], scope: Any, receive: Any, send: Any) -> Any:
        return function(*own, scope, receive, send)

    return target


def _with_call(function: Function, call: Call | None) -> Target:
    """Return a target that makes `call` again; None for the call that the trampoline was entered with."""

    def target(leads: tuple[Any, ...], scope: Any, receive: Any, send: Any) -> Any:
        made = leads[0] if call is None else call
        positional, named = made.replaced(scope, receive, send)
        return function(*positional, **named)

    return target
