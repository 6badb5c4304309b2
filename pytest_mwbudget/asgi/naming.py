"""Name the layers of a stack."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from types import CodeType, FunctionType

from ..interpreter.identity import class_name
from .callables import held_values, is_function, looks_asgi, module_and_name, reached
from .origins import dispatch_of


def numbered(names: Sequence[str]) -> list[str]:
    """Return a unique name for each of these. Equal names get numbers, outermost first: `Noop#1`, `Noop#2`."""
    count, number = Counter(names), Counter[str]()
    unique: list[str] = []
    for name in names:
        number[name] += 1
        unique.append(f"{name}#{number[name]}" if count[name] > 1 else name)
    return unique


def aliases_of(callee: object, name: str) -> frozenset[str]:
    """Return the further names for budgets: without the number, and the class name alone."""
    bare = name.partition("#")[0]
    return frozenset({bare} if is_function(callee) else {bare, bare.partition("[")[0]})


def qualname_of(callee: object) -> str:
    """Return `module.Class` for an instance; for a function the module and its maker, or its own name."""
    if type(callee) is FunctionType:
        # The name in the code: functools.wraps may have given the function the name of the wrapped function.
        return f"{callee.__globals__.get('__name__', '?')}.{name_of_code(callee.__code__)}"
    if type(callee) is CodeType:
        return f"{callee.co_filename}.{name_of_code(callee)}"
    return type_name(type(callee))


def names_held(app: object) -> tuple[str, ...]:
    """Return the names of an app and of the ASGI callables that it holds, at any depth. Runs no code of theirs."""

    def inside(callee: object) -> Iterator[object]:
        return (value for value in held_values(callee) if callable(value) and looks_asgi(value))

    return tuple(f"{qualname_of(callee)} {display_name(callee)}" for callee in reached([app], inside))


def type_name(kind: type) -> str:
    """Return `module.qualname` of a class, as counts have it."""
    return ".".join(class_name(kind))


def display_name(callee: object) -> str:
    """Return the name of a callee in the table, without a number."""
    if is_function(callee):
        return f"function[{qualname_of(callee)}]"
    name: str = type.__dict__["__name__"].__get__(type(callee))
    dispatch = dispatch_of(callee)
    return name if dispatch is None else f"{name}[{module_and_name(dispatch)[1].rpartition('.')[2]}]"


def name_of_code(code: CodeType) -> str:
    """Return the name of the function that made this closure, or else the code's own name."""
    maker, dot, _ = code.co_qualname.rpartition(".<locals>.")
    return (maker if dot else code.co_qualname).replace(".<locals>", "")
