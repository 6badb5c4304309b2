"""Send requests past single layers, without any probe (docs/decisions/0032).

Every layer that can be left out is entered through a trampoline, in all requests. It calls the layer's own code, or in
the layer's place the one ASGI callable inside it. Both calls are made in the same way, so that the trampoline costs the
same in requests with the layer and in requests without it. The code of the functions stays the same in all of them, so
CPython keeps its specialised code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from types import CodeType, MethodType
from typing import Any, TypeAlias

from ..asgi.calls import Call, Key, Reader
from ..asgi.stack import Entry, Stack
from ..interpreter.code_patching import Function, detour, mentioned_cells, patched_code, trampoline, twin
from ..interpreter.foreign_tools import raised_recursion_limit
from ..interpreter.identity import identity
from ..model.stack import EntryIndex

# Called with scope, receive and send; in place of a layer with unusual arguments, with its call.
Target: TypeAlias = Callable[..., Any]


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
    """The two targets of a layer: its own code, and the ASGI callable inside it, None if it is never bypassed."""

    site: _Site
    key: Key
    own: Target
    inner: Target | None


class Bypasses:
    """The trampolines of layers, each with the only ASGI callable inside it, None if the layer is never bypassed."""

    def __init__(self, stack: Stack, inner_apps: Mapping[EntryIndex, EntryIndex | None]) -> None:
        self.stack = stack
        self._sites: dict[int, _Site] = {}  # by the identity of the function
        self._choices = {index: self._choice(index, inner) for index, inner in inner_apps.items()}

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Put the trampolines in place, and every function's own code back at the end."""
        with ExitStack() as patched:
            patched.enter_context(raised_recursion_limit(len(self.stack.entries)))
            for site in self._sites.values():
                patched.enter_context(patched_code(site.function, site.code))
            yield

    def without(self, *layers: EntryIndex) -> AbstractContextManager[None]:
        """Send requests past layers in a block."""
        inner_apps = {index: self._choices[index].inner for index in layers}
        return self.targeted({index: inner for index, inner in inner_apps.items() if inner is not None})

    @contextmanager
    def targeted(self, targets: Mapping[EntryIndex, Target]) -> Iterator[None]:
        """Call other targets in place of layers."""
        choices = {index: self._choices[index] for index in targets}
        for index, choice in choices.items():
            choice.site.targets[choice.key] = targets[index]
        try:
            yield
        finally:
            for choice in choices.values():
                choice.site.targets[choice.key] = choice.own

    def own(self, index: EntryIndex) -> Target:
        """Return the target with which a request passes through a layer."""
        return self._choices[index].own

    def _choice(self, index: EntryIndex, inside: EntryIndex | None) -> _Choice:
        layer = self.stack.entries[index]
        inner = None if inside is None else self.stack.entries[inside]
        site, call = self._site(layer), layer.call
        assert isinstance(call, Call)
        own, past = _bound(site.twin, call), _bound
        if not layer.ordinary:
            own, past = _remade(site.twin), _remade_from
        elif inner is not None and not inner.ordinary:
            own, past = _called(site.twin, call), _called
        site.targets[layer.key] = own
        if inner is None:
            return _Choice(site, layer.key, own, None)
        assert inner.function is not None
        assert isinstance(inner.call, Call)
        return _Choice(site, layer.key, own, past(inner.function, inner.call))

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
        key=identities[0] if len(identities) == 1 else f"({''.join(f'{expression}, ' for expression in identities)})",
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


def _remade_from(function: Function, call: Call) -> Target:
    """Return a function that makes its own call with the scope, receive and send of the call that it is given."""

    def target(given: Call) -> Any:
        positional, named = call.replaced(given.scope, given.receive, given.send)
        return function(*positional, **named)

    return target
