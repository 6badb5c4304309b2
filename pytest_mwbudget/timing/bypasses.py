"""Send requests past single layers, without any probe (docs/decisions/0032).

Every layer that can be left out is entered through a trampoline, in all requests. It calls the layer's own code, or in
the layer's place the one ASGI callable inside it. Both calls are made in the same way, so that the trampoline costs the
same in requests with the layer and in requests without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from types import CodeType, MethodType
from typing import Any, TypeAlias

from ..asgi.calls import Call, Key, Reader
from ..asgi.stack import Entry, Stack
from ..interpreter.code_patching import Function, detour, mentioned_cells, patched_code, trampoline, twin
from ..interpreter.foreign_tools import raised_recursion_limit
from ..interpreter.identity import identity
from ..model.stack import EntryIndex, parts_of

# Called with scope, receive and send; in place of a layer with unusual arguments, with its call.
Target: TypeAlias = Callable[..., Any]


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


@dataclass(frozen=True, slots=True)
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
        entries = stack.entries
        self._choices = {index: self._choice(entries[index], entries[inner]) for index, inner in inner_apps.items()}

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

    def _choice(self, layer: Entry, inner: Entry) -> _Choice:
        site, function, call, inner_call = self._site(layer), inner.function, layer.call, inner.call
        assert function is not None
        assert isinstance(call, Call)
        assert isinstance(inner_call, Call)
        if not layer.ordinary:
            return _Choice(site, layer.key, _remade(site.twin), _remade_from(function, inner_call))
        if not inner.ordinary:
            return _Choice(site, layer.key, _called(site.twin, call), _called(function, inner_call))
        return _Choice(site, layer.key, _bound(site.twin, call), _bound(function, inner_call))

    def _site(self, layer: Entry) -> _Site:
        function, reader = layer.function, layer.reader
        assert function is not None
        assert isinstance(reader, Reader)
        if id(function) not in self._sites:
            targets: dict[Key, Target] = {}
            original = twin(function, function.__code__)
            code = _trampoline(reader, targets, original) if layer.ordinary else _search(reader, targets, original)
            self._sites[id(function)] = _Site(function, original, code, targets)
        return self._sites[id(function)]


# ---- trampolines ------------------------------------------------------------------------------------------------

# Constants of the trampoline's source, in whose places objects stand in the code.
_FIND = "the function that finds a target by its key"
_IDENTITY = "the function identity"
_UNPATCHED = "the function with its original code"

_SHAPE = """
def make({cells}):
    def shape({signature}):
        if False: ({cells})
        _identity_ = {identity!r}
        _find_ = {find!r}
        _target_ = _find_({key})
        if _target_ is None:
            _unpatched_ = {unpatched!r}
            return _unpatched_({passed})
        return _target_({asgi})
"""


def _trampoline(reader: Reader, targets: Mapping[Key, Target], unpatched: Function) -> CodeType:
    """Return code that calls a target in place of a function that takes scope, receive and send last."""
    *leads, scope, receive, send = reader.parameters.positional
    identities = [f"_identity_({name})" for name in leads]
    source = _SHAPE.format(
        cells=mentioned_cells(unpatched.__code__),
        signature=reader.parameters.signature,
        passed=reader.parameters.passed,
        key=identities[0] if len(identities) == 1 else f"({''.join(f'{one}, ' for one in identities)})",
        asgi=f"{scope}, {receive}, {send}",
        identity=_IDENTITY,
        find=_FIND,
        unpatched=_UNPATCHED,
    )
    stand_ins: dict[object, object] = {_IDENTITY: identity, _FIND: targets.get, _UNPATCHED: unpatched}
    return trampoline(unpatched.__code__, source, stand_ins)


def _search(reader: Reader, targets: Mapping[Key, Target], unpatched: Function) -> CodeType:
    """Return the same for a function with other arguments, in which scope, receive and send are searched."""
    gathered, read = reader.parameters.gathered, reader.read

    def search(*flat: Any) -> Any:
        positional, named, _ = gathered(flat)
        call = read(positional, named)
        target = None if call is None else targets.get(call.key)
        return unpatched(*positional, **named) if target is None else target(call)

    return detour(unpatched.__code__, search)


# ---- targets, in pairs of equal cost ----------------------------------------------------------------------------


def _bound(function: Function, call: Call) -> Target:
    """Return a function that takes scope, receive and send, with its arguments before these."""
    leads = call.positional[: call.lead_count]
    if not leads:
        return function
    return MethodType(function, leads[0]) if len(leads) == 1 else partial(function, *leads)


def _called(function: Function, call: Call) -> Target:
    """Return a function that makes a call again with other scope, receive and send."""

    def target(scope: Any, receive: Any, send: Any) -> Any:
        positional, named = call.replaced(scope, receive, send)
        return function(*positional, **named)

    return target


def _remade(function: Function) -> Target:
    """Return a function that makes the call that it is given."""

    def target(call: Call) -> Any:
        positional, named = call.replaced(call.scope, call.receive, call.send)
        return function(*positional, **named)

    return target


def _remade_from(function: Function, own: Call) -> Target:
    """Return a function that makes its own call with the scope, receive and send of the call that it is given."""

    def target(call: Call) -> Any:
        positional, named = own.replaced(call.scope, call.receive, call.send)
        return function(*positional, **named)

    return target
