"""Stand-ins that look and behave like the callable or awaitable they replace, so that the app sees no difference.

A layer may read `send.started` of another layer's callable object, set an attribute on a function, ask whether a
function is a coroutine function, or wait for a future.
"""

from __future__ import annotations

import operator
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from types import CoroutineType, FunctionType, GeneratorType, MethodType
from typing import Any
from weakref import finalize

from .identity import MISSING, bases, class_name, identity, is_a, is_awaitable, names_in, of_type


def stand_in_for_callable(original: Any, probe: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return the function that `probe` has to call in place of `original`, and a stand-in that calls `probe`.

    No Python code runs between a caller and the probe, because its time would be charged to the caller. So the stand-in
    for a bound method is a method bound to the same object, and the probe calls the function with the `self` it gets.
    """
    kind = type(original)
    if kind is FunctionType:
        probe.__dict__ = original.__dict__  # shared, so that an attribute set on one is read on the other
        return original, probe
    if kind is MethodType and type(function := original.__func__) is FunctionType:
        probe.__dict__ = function.__dict__
        return function, MethodType(probe, original.__self__)
    if kind is partial or kind is _PartialStandIn:
        stand_in = _PartialStandIn(probe)
        _set(stand_in, "_mwbudget_original", original)
        return original, stand_in
    object_stand_in: Any = _new(_types.get((_CallableStandIn, identity(kind))) or _type_for(_CallableStandIn, kind))
    _set(object_stand_in, "_mwbudget_original", original)
    if type(function := of_type(original, "__call__")) is not FunctionType:
        _set(object_stand_in, "__call__", probe)
        return original, object_stand_in
    probe.__dict__ = function.__dict__
    _set(object_stand_in, "__call__", MethodType(probe, original))
    return function, object_stand_in


def stand_in_for_awaitable(answer: Any, step: Callable[[Awaitable[Any]], Coroutine[Any, Any, Any]]) -> Any:
    """Return a stand-in for `answer` whose steps run inside the coroutine that `step` makes of it.

    Futures and objects that cannot be awaited have no steps and are returned as they are.
    """
    if type(answer) is CoroutineType or is_a(answer, Coroutine):
        return step(answer)
    if not is_awaitable(answer) or of_type(answer, "_asyncio_future_blocking") is not MISSING:
        return answer
    if type(answer) is GeneratorType:
        return step(answer)  # type: ignore[arg-type]
    stand_in = _new(
        _types.get((_AwaitableStandIn, identity(type(answer)))) or _type_for(_AwaitableStandIn, type(answer))
    )
    _set(stand_in, "_mwbudget_original", answer)
    _set(stand_in, "_mwbudget_step", step)
    return stand_in


# Called directly because they run in C; the time of a Python frame would be charged to some layer. `setattr` on a
# stand-in would set an attribute of its original.
_new, _set = object.__new__, object.__setattr__


def _comparing(compare: Callable[[Any, Any], Any]) -> Any:
    def method(self: Any, other: Any) -> Any:
        return compare(self._mwbudget_original, _original(other))

    return method


class _StandIn:
    """An object that behaves like its original. Subclasses leave some operations to a probe."""

    __slots__ = ()
    _mwbudget_original: Any

    @property
    def __class__(self) -> Any:
        return self._mwbudget_original.__class__

    @__class__.setter
    def __class__(self, kind: Any) -> None:
        self._mwbudget_original.__class__ = kind

    def __getattr__(self, name: str) -> Any:
        if name == "_mwbudget_original":  # it is being made
            raise AttributeError(name)
        return getattr(self._mwbudget_original, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._mwbudget_original, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._mwbudget_original, name)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._mwbudget_original.__reduce_ex__(protocol)

    def __hash__(self) -> int:
        return hash(self._mwbudget_original)

    def __repr__(self) -> str:
        return repr(self._mwbudget_original)

    __eq__ = _comparing(operator.eq)
    __ne__ = _comparing(operator.ne)
    __lt__ = _comparing(operator.lt)
    __le__ = _comparing(operator.le)
    __gt__ = _comparing(operator.gt)
    __ge__ = _comparing(operator.ge)


class _PartialStandIn(_StandIn, partial):  # type: ignore[type-arg]
    """A `functools.partial` that calls the probe. Its hidden dict keeps the original."""

    __slots__ = ()

    __dict__ = property(lambda self: self._mwbudget_original.__dict__)
    func = property(lambda self: self._mwbudget_original.func)
    args = property(lambda self: self._mwbudget_original.args)
    keywords = property(lambda self: self._mwbudget_original.keywords)


_PartialStandIn.__doc__ = partial.__doc__


class _CallableStandIn(_StandIn):
    """A callable object; calls go to the function in its slot `__call__`."""

    __slots__ = ("__call__", "__weakref__", "_mwbudget_original")


class _AwaitableStandIn(_StandIn):
    """An awaitable object whose steps run inside the coroutine that `step` makes."""

    __slots__ = ("__weakref__", "_mwbudget_original", "_mwbudget_step")

    def __await__(self) -> Any:
        return self._mwbudget_step(self._mwbudget_original).__await__()


def _original(operand: Any) -> Any:
    return operand._mwbudget_original if issubclass(type(operand), _StandIn) else operand


# Python looks these methods up on the type of an object, past `__getattr__`.
_OPERATORS = "add sub mul matmul truediv floordiv mod divmod pow lshift rshift and xor or"
_OTHERS = """
    str bytes format dir sizeof fspath copy deepcopy instancecheck subclasscheck call await
    len length_hint getitem setitem delitem missing contains iter next reversed aiter anext
    enter exit aenter aexit bool int float complex index round trunc floor ceil neg pos abs invert
"""
_SPECIAL = frozenset(
    f"__{name}__"
    for name in (*_OTHERS.split(), *(prefix + name for name in _OPERATORS.split() for prefix in ("", "r", "i")))
)
# By the base and the id of the original's type. The entries go when that type does.
_types: dict[tuple[type[_StandIn], int], type[_StandIn]] = {}


def _type_for(base: type[_StandIn], kind: type) -> type[_StandIn]:
    """Return a subclass of `base` with the special methods of `kind`."""
    body: dict[str, Any] = {"__slots__": (), "__doc__": names_in(kind).get("__doc__")}
    special = _SPECIAL.difference(vars(base))
    for owner in reversed(bases(kind)[:-1]):  # all have those of `object`
        for name in names_in(owner).keys() & special:
            # A class that assigns None switches off an operation of its base.
            body[name] = None if names_in(owner)[name] is None else _forwarding(name)
    stand_in_type = _types[base, identity(kind)] = type(class_name(kind)[1].rpartition(".")[2], (base,), body)
    finalize(kind, _types.pop, (base, identity(kind)), None).atexit = False
    return stand_in_type


def _forwarding(name: str) -> Callable[..., Any]:
    def forward(self: _StandIn, /, *arguments: Any, **named: Any) -> Any:
        original = self._mwbudget_original
        method = of_type(original, name)
        if of_type(method, "__get__") is not MISSING:
            method = method.__get__(original, type(original))
        return method(*arguments, **named)

    return forward
