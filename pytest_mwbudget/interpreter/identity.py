"""Tell what an object is by its identity and its type, so that none of its code runs.

`isinstance` reads `__class__`, which a lazy object answers by making what it stands for, and which may raise.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from types import FunctionType, GeneratorType, GetSetDescriptorType, MemberDescriptorType
from typing import Any, TypeGuard

# Made of the address alone, whatever the class of the object defines: different for objects that exist together.
# `id` raises an audit event. A package of the app may have added an audit hook, as filelock does on CPython from 3.12
# on. Each call of `id` then runs the hook, which takes 0.2 µs of the layer that has control.
identity: Callable[[object], int] = object.__hash__

MISSING = object()
# Types whose repr runs no code of the app.
PLAIN = (str, bytes, bytearray, int, float, bool, type(None))
# The attributes of a class, read past its metaclass, which may have any of its own.
bases: Callable[[type], tuple[type, ...]] = type.__dict__["__mro__"].__get__
names_in: Callable[[type], Mapping[str, Any]] = type.__dict__["__dict__"].__get__


def is_a(value: object, *types: type) -> bool:
    """Return whether the type of a value is one of these or a subclass."""
    return issubclass(type(value), types)


def is_class(value: object) -> TypeGuard[type]:
    """Return whether a value is a class."""
    return is_a(value, type)


def of_type(value: object, name: str) -> Any:
    """Return what the type of a value defines under a name, as Python looks up special methods; MISSING without."""
    for kind in bases(type(value)):
        names = names_in(kind)
        if name in names:
            return names[name]
    return MISSING


def from_c(value: object, name: str) -> Any:
    """Return the value of a slot, or of an attribute that the type defines in C; MISSING without."""
    for kind in bases(type(value)):
        descriptor: Any = names_in(kind).get(name)
        if type(descriptor) in (GetSetDescriptorType, MemberDescriptorType):
            try:
                return descriptor.__get__(value, type(value))
            except AttributeError:
                return MISSING
    return MISSING


def is_awaitable(value: object) -> bool:
    """Return whether `await` takes a value."""
    if type(value) is GeneratorType:
        return bool(value.gi_code.co_flags & inspect.CO_ITERABLE_COROUTINE)
    return is_a(value, Awaitable)


def class_name(kind: type) -> tuple[str, str]:
    """Return the module and the qualified name of a class."""
    module = type.__dict__["__module__"].__get__(kind)
    return module if type(module) is str else "?", type.__dict__["__qualname__"].__get__(kind)


def shown(value: object) -> str:
    """Return the repr of plain data; of any other object its type."""
    kind = type(value)
    if kind is dict:
        return f"{{{', '.join(f'{shown(key)}: {shown(held)}' for key, held in value.items())}}}"  # type: ignore[attr-defined]
    if kind is list or kind is tuple:
        held = ", ".join(map(shown, value))  # type: ignore[call-overload]
        return f"[{held}]" if kind is list else f"({held},)" if len(value) == 1 else f"({held})"  # type: ignore[arg-type]
    if kind in PLAIN:
        return repr(value)
    if is_class(value):
        return f"<class '{'.'.join(class_name(value))}'>"
    if kind is FunctionType:
        return f"<function {value.__module__}.{value.__qualname__}>"  # type: ignore[attr-defined]
    return f"<{'.'.join(class_name(kind))} object>"
