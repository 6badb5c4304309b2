"""Look into ASGI callables without running their code: a layer that forwards attributes must not deceive us.

A proxy claims to be an instance of the wrapped class, and a lazy object makes what it stands for when it is asked.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from types import (
    BuiltinFunctionType,
    CellType,
    ClassMethodDescriptorType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodType,
    MethodWrapperType,
    WrapperDescriptorType,
)
from typing import Any

from ..interpreter.code_patching import Parameters, twin
from ..interpreter.identity import MISSING, bases, class_name, from_c, identity, is_a, is_class, names_in, of_type
from ..model.stack import Kind
from .calls import ROLES

# Static methods, bound methods and decorators that may stand between an attribute and its innermost function.
MOST_WRAPPERS = 8
# The most objects to look at for what is held at any depth.
MOST_REACHED = 200
# Types of functions in C.
BUILTIN = (
    BuiltinFunctionType,
    ClassMethodDescriptorType,
    MethodDescriptorType,
    MethodWrapperType,
    WrapperDescriptorType,
)
# What lazy proxies in C define, of wrapt and of lazy-object-proxy: reading what they wrap would make it.
FACTORIES = ("__wrapped_factory__", "__factory__")


def static(owner: object, name: str) -> object:
    """Return `owner.name` without running code of the owner, MISSING without such an attribute."""
    if is_class(owner):
        return next((names[name] for kind in bases(owner) if name in (names := names_in(kind))), MISSING)
    return static_dict(owner).get(name, of_type(owner, name))


def static_dict(owner: object) -> dict[str, object]:
    """Return the `__dict__` of an object itself, not of an object that it wraps."""
    if type(of_type(owner, "__wrapped__")) is GetSetDescriptorType:
        return {}
    attributes = from_c(owner, "__dict__")
    if type(attributes) is dict:
        return attributes
    return dict(dict.items(attributes)) if is_a(attributes, dict) else {}


def is_function(callee: object) -> bool:
    """Return whether this is a function, or the code that stands for an unknown function."""
    return is_a(callee, FunctionType, CodeType)


def kind_of(callee: object) -> Kind:
    """Return "routing" for a route, an object with routes, and an object of a class named Router.

    Without apps to choose from, and without anything else that is called a route, such an object is a layer: it finds
    out the tenant, or guards the routes that it lists.
    """
    if all(of_type(callee, name) is not MISSING for name in ("matches", "handle", "url_path_for")):
        return "routing"  # a route
    routed = class_name(type(callee))[1].endswith("Router") or _has(callee, "routes")
    return "routing" if routed and (_names_routes(callee) or _chooses(callee)) else "middleware"


def _names_routes(callee: object) -> bool:
    """Return whether the name of any attribute but `routes` has the word "route" or "routes"."""
    names = (name for own in (static_dict(callee), *map(names_in, bases(type(callee)))) for name in own)
    return any(not {"route", "routes"}.isdisjoint(name.lower().split("_")) for name in names if name != "routes")


def _chooses(callee: object) -> bool:
    """Return whether an object holds several ASGI apps, or a list or dict of them."""
    held: list[Any] = [*held_values(callee)]
    lists = [value for value in held if is_a(value, list)] + [[*value.values()] for value in held if is_a(value, dict)]
    return sum(map(looks_asgi, held)) > 1 or any(looks_asgi(value) for values in lists for value in values)


def is_response(callee: object) -> bool:
    """Return whether this is a response of Starlette's kind, which is an ASGI app."""
    return _has(callee, "status_code", "raw_headers")


def _has(callee: object, *names: str) -> bool:
    """Return whether an object has attributes that it did not copy from an app that it holds.

    `functools.wraps` gives a function, and `functools.update_wrapper` an object, all attributes of the app inside it.
    What a class defines is no copy.
    """
    if is_function(callee):
        return False
    copied = [name for name in names if of_type(callee, name) is MISSING]
    attributes = static_dict(callee) if copied else {}
    return all(name in attributes for name in copied) and not (copied and any(map(looks_asgi, held_values(callee))))


# ---- functions ------------------------------------------------------------------------------------------------------


def functions_behind(attribute: object) -> Iterator[FunctionType]:
    """Yield the functions of an attribute, from the outermost decorator that sets `__wrapped__` inwards."""
    for _ in range(MOST_WRAPPERS):
        if type(attribute) is FunctionType:
            yield attribute
        if is_a(attribute, staticmethod, classmethod, MethodType):
            attribute = attribute.__func__  # type: ignore[attr-defined]
        else:
            attribute = wrapped_by(attribute)
        if attribute is MISSING:
            return


def functions_called(value: object) -> Iterator[FunctionType]:
    """Yield the functions that a call of `value` runs, outermost first."""
    if type(value) is functools.partial:
        value = value.func
    return functions_behind(value if is_a(value, FunctionType, MethodType) else of_type(value, "__call__"))


def accepts(callee: object, *arguments: object) -> bool:
    """Return whether a call takes these arguments, as far as the functions say that it runs."""
    bound: tuple[object, ...] = ()
    named: dict[str, object] = {}
    if type(callee) is functools.partial:
        bound, named, callee = callee.args, callee.keywords, callee.func
    functions = [*functions_called(callee)]
    if type(callee) is MethodType:
        bound = (callee.__self__, *bound)
    elif functions and type(callee) is not FunctionType and type(of_type(callee, "__call__")) is not staticmethod:
        bound = (callee, *bound)
    for function in functions or functions_behind(callee):
        try:
            # Of a copy: the function may have been given the signature of another function.
            inspect.signature(twin(function, function.__code__)).bind(*bound, *arguments, **named)
        except TypeError:
            return False
    return True


def method_name(owner: object, code: CodeType) -> str | None:
    """Return the name under which `code` is a method of `owner`, None when it is no method of it."""
    if owner is None:
        return None
    named = ((name, attribute) for cls in bases(type(owner)) for name, attribute in names_in(cls).items())
    # An alias may stand before `__call__`.
    for name, attribute in (("__call__", of_type(owner, "__call__")), *named):
        if any(function.__code__ is code for function in functions_behind(attribute)):
            return name
    return "__call__" if code.co_name == "__call__" else None


def maker_of(function: object) -> object | None:
    """Return the object in whose method a function was made, None without one.

    The function's closure has the object as `self`, or a bound method of it under the method's own name. A value under
    another name, such as `app`, may be another object of the same class.
    """
    if type(function) is not FunctionType:
        return None
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        value = cell_value(cell)
        if type(value) is MethodType and type(value.__func__) is FunctionType and value.__func__.__name__ == name:
            owner = value.__self__
        elif name == "self":
            owner = value
        else:
            continue
        methods = (attribute for cls in bases(type(owner)) for attribute in names_in(cls).values())
        codes = (made.__code__ for attribute in methods for made in functions_behind(attribute))
        if any(constant is function.__code__ for code in codes for constant in code.co_consts):
            return owner
    return None


def module_and_name(value: object) -> tuple[str, str]:
    """Return the module and the qualified name of a function or class; of another object those of its class.

    An object that a decorator made has the names of the function in it.
    """
    if is_class(value):
        return class_name(value)
    named: Any = value if is_a(value, *BUILTIN) else next(functions_behind(value), None)
    if named is None:
        return class_name(type(value))
    module = getattr(named, "__module__", None)
    return module if type(module) is str else "?", named.__qualname__


def looks_asgi(value: object) -> bool:
    """Return whether a call of `value` takes (scope, receive, send), by the names of its parameters."""
    if is_class(value):
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
    descriptor = of_type(value, "__wrapped__")
    if type(descriptor) is not GetSetDescriptorType or any(of_type(value, name) is not MISSING for name in FACTORIES):
        return MISSING
    try:
        return descriptor.__get__(value, type(value))
    except ValueError:  # the proxy was never initialised
        return MISSING


def wrapped_by(value: object) -> object:
    """Return what a decorator has noted as `__wrapped__`, MISSING for any other object."""
    inner = wrapped_in_c(value)
    if inner is MISSING:
        inner = from_c(value, "__wrapped__")  # a slot
    return static_dict(value).get("__wrapped__", MISSING) if inner is MISSING else inner


def without_transparent_proxies(value: object) -> object:
    """Return the object to which transparent proxies in C pass calls on: no Python function enters such a proxy."""
    while (inner := wrapped_in_c(value)) is not MISSING and not any(functions_called(value)):
        value = inner
    return value


def cell_value(cell: CellType) -> object:
    """Return what a cell holds, MISSING for an empty cell."""
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


def held_values(callee: object) -> Iterator[object]:
    """Yield the values in bound arguments, cells, attributes and slots."""
    if type(callee) is functools.partial:
        yield from (*callee.args, *callee.keywords.values(), callee.func)
    if type(callee) is FunctionType:
        yield from (value for value in map(cell_value, callee.__closure__ or ()) if value is not MISSING)
        return
    wrapped = wrapped_in_c(callee)
    if wrapped is not MISSING:
        yield wrapped
    attributes = static_dict(callee)
    if "__wrapped__" in attributes:  # before the copies of its attributes
        yield attributes["__wrapped__"]
    yield from attributes.values()
    for cls in bases(type(callee)):
        for slot in names_in(cls).values():
            if type(slot) is MemberDescriptorType:
                try:
                    yield slot.__get__(callee, type(callee))
                except AttributeError:
                    continue


def reached(roots: Iterable[object], inside: Callable[[object], Iterable[object]]) -> Iterator[object]:
    """Yield these objects and those that `inside` finds in them at any depth, nearest first: MOST_REACHED at most.

    Each object is yielded once, and looked into only when the next object is asked for.
    """
    waiting: list[object] = []
    seen: set[int] = set()

    def add(values: Iterable[object]) -> None:
        for value in values:
            if len(waiting) < MOST_REACHED and identity(value) not in seen:
                seen.add(identity(value))
                waiting.append(value)

    add(roots)
    for value in waiting:
        yield value
        add(inside(value))
