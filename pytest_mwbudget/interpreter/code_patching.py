"""Patch the code of a function for a while, so that every call of the function runs other code first.

Attributes, closures, bound methods and importing modules all run the function's current code, so no reference to the
function has to be found, and putting the code back restores everything.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from types import CellType, CodeType, FunctionType
from typing import Any, Protocol

from ..errors import MeasurementError
from . import internals

# The file name of patched code.
PROBE_FILE = "<probe of pytest-mwbudget>"
# Flags that announce what calls of a function return. The actual result depends on the instructions only.
KIND = inspect.CO_COROUTINE | inspect.CO_ITERABLE_COROUTINE | inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR


class Function(Protocol):
    """A function written in Python. As the type of an attribute, FunctionType would be taken for a method."""

    __code__: CodeType
    __name__: str
    __defaults__: tuple[Any, ...] | None
    __kwdefaults__: dict[str, Any] | None

    @property
    def __globals__(self) -> dict[str, Any]:
        """The names of its module."""

    @property
    def __closure__(self) -> tuple[CellType, ...] | None:
        """Its cells."""

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call it."""


def is_plain(function: Function) -> bool:
    """Return whether a call runs the function's code at once, as a call of a coroutine function does not."""
    return not function.__code__.co_flags & inspect.CO_COROUTINE


@contextmanager
def patched_code(function: Function, code: CodeType) -> Iterator[None]:
    """Give `function` other code, and put its own back at the end. Raises MeasurementError if that is impossible."""
    _require_code_patching()
    original = function.__code__
    internals.set_code(function, code)
    try:
        yield
    finally:
        internals.set_code(function, original)


def _require_code_patching() -> None:
    if (why := internals.why_no_code_patching()) is not None:
        raise MeasurementError(why, message_id="interpreter")


def twin(function: Function, code: CodeType) -> Function:
    """Return a copy of `function` with other code; both share cells, globals and defaults."""
    made = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


@dataclass(frozen=True, slots=True)
class Parameters:
    """The parameters of a function, by kind."""

    positional: tuple[str, ...]
    keywords: tuple[str, ...]
    starred: str | None
    double_starred: str | None

    @classmethod
    def of(cls, code: CodeType) -> Parameters:
        """Read the parameters from a code object."""
        names, starred, double_starred = inspect.getargs(code)
        count = code.co_argcount
        return cls(tuple(names[:count]), tuple(names[count:]), starred, double_starred)

    @property
    def signature(self) -> str:
        """The source between the parentheses of a definition, without defaults."""
        parts = list(self.positional)
        if self.starred or self.keywords:
            parts.append(f"*{self.starred or ''}")
        parts += self.keywords
        if self.double_starred:
            parts.append(f"**{self.double_starred}")
        return ", ".join(parts)

    @property
    def flat(self) -> str:
        """The source of a call that passes every parameter by position, including `*` and `**`; see `gathered`."""
        names = [*self.positional, *self.keywords]
        return ", ".join([*names, *(name for name in (self.starred, self.double_starred) if name)])

    @property
    def passed(self) -> str:
        """The source of a call that passes every parameter on."""
        parts = list(self.positional)
        if self.starred:
            parts.append(f"*{self.starred}")
        parts += [f"{name}={name}" for name in self.keywords]
        if self.double_starred:
            parts.append(f"**{self.double_starred}")
        return ", ".join(parts)

    def gathered(self, flat: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any], tuple[object, ...]]:
        """Return positional and keyword arguments from `flat` ones, and the containers that the call created."""
        values = list(flat)
        named: dict[str, Any] = {}
        containers: list[object] = []
        if self.double_starred:
            containers.append(values[-1])
            named |= values.pop()
        extra: tuple[Any, ...] = values.pop() if self.starred else ()
        if extra:
            containers.append(extra)
        count = len(self.positional)
        named |= zip(self.keywords, values[count:], strict=True)
        return (*values[:count], *extra), named, tuple(containers)


def trampoline(original: CodeType, source: str, stand_ins: Mapping[object, object]) -> CodeType:
    """Compile `source` to code that can replace `original` in its function.

    `source` defines a function inside a function. `stand_ins` maps constants of the source to objects, because the code
    runs with the user's globals and must not look up a name there. The code gets the cells, names and kind of the
    original: a function refuses code with other cells, and apps ask whether a function is a coroutine function.
    """
    _require_code_patching()
    code = compiled(source, stand_ins)
    return code.replace(
        co_flags=code.co_flags | original.co_flags & KIND,
        co_freevars=original.co_freevars,
        co_posonlyargcount=original.co_posonlyargcount,
        co_name=original.co_name,
        co_qualname=original.co_qualname,
    )


def mentioned_cells(original: CodeType) -> str:
    """Return names that a trampoline mentions in code that never runs, so that the compiler makes cells of them."""
    return "".join(f"_cell_{number}_, " for number in range(len(original.co_freevars)))


def compiled(source: str, stand_ins: Mapping[object, object]) -> CodeType:
    """Compile the inner function in `source`, with `stand_ins` in place of constants."""
    code = _compiled(source)
    return code.replace(co_consts=tuple(stand_ins.get(constant, constant) for constant in code.co_consts))


@lru_cache(maxsize=256)
def _compiled(source: str) -> CodeType:
    """Compile the inner function in `source`. Cached: the layers of a stack have few signatures."""
    code = compile(source, PROBE_FILE, "exec")
    for _ in range(2):
        code = next(constant for constant in code.co_consts if isinstance(constant, CodeType))
    return code


_TARGET = "the target stands here"
# A plain function even in place of a coroutine function: its result is awaited, and a coroutine of its own would be one
# more object, created before its owner is known.
_DETOUR = """
def make({cells}):
    def shape({signature}):
        if False: ({cells})
        _target_ = {target!r}
        return _target_({flat})
"""


def detour(original: CodeType, target: Callable[..., Any]) -> CodeType:
    """Return code that calls `target` with the arguments of `Parameters.flat`, and returns its result."""
    parameters = Parameters.of(original)
    source = _DETOUR.format(
        cells=mentioned_cells(original), signature=parameters.signature, target=_TARGET, flat=parameters.flat
    )
    return trampoline(original, source, {_TARGET: target})
