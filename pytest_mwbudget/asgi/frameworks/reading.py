"""What the modules of all frameworks need: reading an app without running its code, and making layers of callables."""

from __future__ import annotations

import functools
import sys
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from types import CodeType, FunctionType, GetSetDescriptorType, MemberDescriptorType, MethodType

from ...interpreter.identity import MISSING, is_a
from ..callables import functions_called, static, without_transparent_proxies
from .seam import FrameworkLayer


def read(owner: object, *names: str) -> object:
    """Return the attribute at the end of a path of attributes, None if there is none.

    Slots and the attributes of classes written in C are read too, properties are not.
    """
    for name in names:
        attribute = static(owner, name)
        if is_a(attribute, MemberDescriptorType, GetSetDescriptorType):
            try:
                attribute = attribute.__get__(owner, type(owner))  # type: ignore[attr-defined]
            except AttributeError:
                return None
        if attribute is MISSING:
            return None
        owner = attribute
    return owner


def items(value: object) -> Sequence[object]:
    """Return the items of a sequence; none for anything else."""
    return tuple(value) if is_a(value, list, tuple, deque) else ()  # type: ignore[arg-type]


def mapped(value: object) -> Mapping[object, object]:
    """Return a dict as it is, an empty dict for anything else. Look keys up with `get`: it may be a defaultdict."""
    return value if is_a(value, dict) else {}  # type: ignore[return-value]


def defined(module: str, *names: str) -> object:
    """Return what an imported module defines, None if it is not imported or does not."""
    return read(sys.modules.get(module), *names)


def inner_codes(maker: object) -> tuple[CodeType, ...]:
    """Return the code of the functions that a function of a framework makes; none for anything else."""
    if type(maker) is not FunctionType:
        return ()
    return tuple(constant for constant in maker.__code__.co_consts if type(constant) is CodeType)


def cell(function: FunctionType, name: str) -> object:
    """Return what a function's cell holds, None for an empty or missing cell."""
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    try:
        return cells[name].cell_contents
    except (KeyError, ValueError):
        return None


def entered(call: object) -> object:
    """Return the callable that a call reaches through partials and transparent proxies."""
    call = without_transparent_proxies(call)
    while type(call) is functools.partial:
        call = without_transparent_proxies(call.func)
    return call


def runs_python(call: object) -> bool:
    """Return whether a call runs a function written in Python."""
    return any(functions_called(call))


def callee_of(call: object, app: object) -> object:
    """Return the object or function that names a layer.

    For a method, its object: all its methods are one layer. For a method of a class or of the app, its function.
    """
    call = entered(call)
    if type(call) is not MethodType:
        return call
    return call.__func__ if is_a(call.__self__, type) or call.__self__ is app else call.__self__


def layers_of(
    calls: Iterable[tuple[object, object]], adapts: Mapping[int, str] | None = None, *, by_maker: bool = False
) -> tuple[FrameworkLayer, ...]:
    """Return a layer for each callee, in the order of their first calls, from pairs of a callee and a call.

    A call that runs no function written in Python is left out. The keys of `adapts` are the ids of callees. `by_maker`
    means that an inner function has the name of the function that made it.
    """
    callees: dict[int, object] = {}
    calls_of: dict[int, list[object]] = {}
    for callee, call in calls:
        if callee is not None and runs_python(call):
            callees[id(callee)] = callee
            calls_of.setdefault(id(callee), []).append(call)
    why = adapts or {}
    return tuple(
        FrameworkLayer(callees[key], distinct(own), why.get(key), None if by_maker else _own_name(callees[key]))
        for key, own in calls_of.items()
    )


def _own_name(callee: object) -> str | None:
    """Return a name for a function that another function has made, None for any other callee."""
    if type(callee) is not FunctionType or ".<locals>" not in callee.__code__.co_qualname:
        return None
    name = callee.__code__.co_qualname.replace(".<locals>", "")
    return f"function[{callee.__globals__.get('__name__', '?')}.{name}]"


def distinct(calls: Iterable[object]) -> tuple[object, ...]:
    """Return what these calls enter, each once: two bound methods of one object and function are the same.

    A call that runs no function written in Python is left out.
    """
    unique: dict[tuple[int, ...], object] = {}
    for call in filter(runs_python, map(entered, calls)):
        bound = type(call) is MethodType
        unique.setdefault((id(call.__self__), id(call.__func__)) if bound else (id(call),), call)  # type: ignore[attr-defined]
    return tuple(unique.values())
