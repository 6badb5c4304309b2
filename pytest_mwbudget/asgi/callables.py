"""Look into ASGI callables without running their code: a layer that forwards attributes must not deceive us.

Types are compared by identity, not with `isinstance`, because a proxy claims to be an instance of the wrapped class.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from types import CellType, CodeType, FunctionType, GetSetDescriptorType, MemberDescriptorType, MethodType

from ..interpreter.code_patching import Parameters
from ..model.stack import Kind
from .calls import ROLES

MISSING = object()
# Static methods, bound methods and decorators that may stand between an attribute and its innermost function.
MOST_WRAPPERS = 8


def static(owner: object, name: str) -> object:
    """Return `owner.name` without running code of the owner, MISSING without such an attribute."""
    try:
        return inspect.getattr_static(owner, name)
    except AttributeError:
        return MISSING


def static_dict(owner: object) -> dict[str, object]:
    """Return the `__dict__` of an object itself, not of an object that it wraps."""
    if wrapped_in_c(owner) is not MISSING:
        return {}
    try:
        found = object.__getattribute__(owner, "__dict__")
    except AttributeError:
        return {}
    return found if isinstance(found, dict) else {}


def is_function(callee: object) -> bool:
    """Return whether this is a function, or the code that stands for an unknown function."""
    return type(callee) in (FunctionType, CodeType)


def kind_of(callee: object) -> Kind:
    """Return "routing" for an object with routes, a class named Router, and a route."""
    is_route = static(callee, "matches") is not MISSING and static(callee, "handle") is not MISSING
    is_router = static(callee, "routes") is not MISSING or type(callee).__name__.endswith("Router")
    return "routing" if is_router or is_route else "middleware"


def is_response(callee: object) -> bool:
    """Return whether this is a response of Starlette's kind, which is an ASGI app."""
    return static(callee, "status_code") is not MISSING and static(callee, "raw_headers") is not MISSING


# ---- functions ------------------------------------------------------------------------------------------------------


def functions_behind(attribute: object) -> Iterator[FunctionType]:
    """Yield the functions of an attribute, from the outermost decorator that sets `__wrapped__` inwards."""
    for _ in range(MOST_WRAPPERS):
        if type(attribute) is FunctionType:
            yield attribute
        bound = type(attribute) in (staticmethod, classmethod, MethodType)
        try:
            attribute = getattr(attribute, "__func__" if bound else "__wrapped__", None)
        except Exception:
            return  # it forwards to an object that does not exist yet
        if attribute is None:
            return


def functions_called(value: object) -> Iterator[FunctionType]:
    """Yield the functions that a call of `value` runs, outermost first."""
    if type(value) is functools.partial:
        value = value.func
    return functions_behind(value if type(value) in (FunctionType, MethodType) else static(type(value), "__call__"))


def method_name(owner: object, code: CodeType) -> str | None:
    """Return the name under which `code` is a method of `owner`, None when it is no method of it."""
    if owner is None:
        return None
    for cls in type(owner).__mro__:
        for name, attribute in vars(cls).items():
            if any(function.__code__ is code for function in functions_behind(attribute)):
                return name
    return "__call__" if code.co_name == "__call__" else None


def looks_asgi(value: object) -> bool:
    """Return whether a call of `value` takes (scope, receive, send), by the names of its parameters."""
    if isinstance(value, type):
        return False
    if type(value) is functools.partial:
        if type(value.func) is not FunctionType:
            return False
        positional = Parameters.of(value.func.__code__).positional
        unbound = [name for name in positional[len(value.args) :] if name not in value.keywords]
        return tuple(unbound[:3]) == ROLES
    codes = (function.__code__ for function in functions_called(value))
    return any(code.co_varnames[: code.co_argcount][-3:] == ROLES for code in codes)


# ---- what a callable holds ------------------------------------------------------------------------------------------


def wrapped_in_c(value: object) -> object:
    """Return the object that a proxy wraps and keeps in C, as wrapt's proxies do, MISSING for any other object."""
    descriptor = static(type(value), "__wrapped__")
    if type(descriptor) is not GetSetDescriptorType:
        return MISSING
    try:
        return descriptor.__get__(value, type(value))
    except ValueError:  # the proxy was never initialised
        return MISSING


def without_transparent_proxies(value: object) -> object:
    """Return the object to which transparent proxies in C pass calls on: no Python function enters such a proxy."""
    while (inner := wrapped_in_c(value)) is not MISSING and not any(functions_called(value)):
        value = inner
    return value


def cell_value(cell: CellType) -> object:
    """Return what a cell holds, MISSING for an empty one."""
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


def held_values(callee: object) -> Iterator[object]:
    """Yield the values in bound arguments, cells, attributes and slots."""
    if isinstance(callee, functools.partial):
        yield from (*callee.args, *callee.keywords.values(), callee.func)
    if type(callee) is FunctionType:
        yield from (value for value in map(cell_value, callee.__closure__ or ()) if value is not MISSING)
        return
    wrapped = wrapped_in_c(callee)
    if wrapped is not MISSING:
        yield wrapped
    yield from static_dict(callee).values()
    for cls in type(callee).__mro__:
        for slot in vars(cls).values():
            if type(slot) is MemberDescriptorType:
                try:
                    yield slot.__get__(callee, type(callee))
                except AttributeError:
                    continue
