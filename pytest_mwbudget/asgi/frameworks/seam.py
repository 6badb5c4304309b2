"""What a framework calls round its handler, and how to ask the framework's module for it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from inspect import CO_VARARGS
from types import FrameType, MethodType, ModuleType
from typing import Any

from ...interpreter.code_patching import Function
from ...interpreter.identity import MISSING, bases, class_name
from ..callables import cell_value, functions_called, is_function, static
from .route import Route

# By the top-level package of the app's type.
FRAMEWORKS = ("blacksheep", "django", "falcon", "quart", "sanic")


@dataclass(frozen=True, slots=True, eq=False)
class FrameworkLayer:
    """A middleware or a hook of a framework."""

    # The object or function that the team or a package wrote: it names the row and tells whose it is.
    callee: object
    # What the framework enters it through: functions, bound methods, or objects with a `__call__` written in Python.
    # The same objects in every request.
    calls: tuple[object, ...] = ()
    # Why the framework moves the request to a thread or back because of this layer, None if it does not.
    adapts: str | None = None
    # The name of the row, None for the usual name of the callee. An inner function is named after the function that
    # made it. For most hooks this is the app's factory, so hooks need names of their own.
    name: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Seam:
    """Where an app can be cut."""

    # Outermost first.
    layers: tuple[FrameworkLayer, ...]
    # The callables that enter the endpoint. Without these, it is what the app does outside its layers.
    endpoint: tuple[object, ...] = ()
    # The layer with which the endpoint begins, because it is not known where the layer's inside begins.
    unread: str | None = None

    def hooks(self) -> Iterator[Hook]:
        """Yield the functions that enter the layers and the endpoint; none for what is not written in Python."""
        for layer in self.layers:
            for call in layer.calls:
                yield from hooks_into(call, layer, self)
        for call in self.endpoint:
            yield from hooks_into(call, None, self)


@dataclass(frozen=True, slots=True, eq=False)
class Hook:
    """A function whose call enters a layer, or the endpoint if `layer` is None."""

    function: Function
    # The first argument of these calls, or what `lead_of` returns for it; None for a function of the layer's own.
    instance: object
    layer: FrameworkLayer | None
    seam: Seam
    lead_of: Callable[[Any], object] | None = None
    # Of a part of the endpoint: only calls inside the endpoint enter it.
    part: bool = False

    def is_entered_by(self, frame: FrameType) -> bool:
        """Return whether a frame is such a call: by its code, and its first argument or the function's cells."""
        return frame.f_code is self.function.__code__ and self.key in keys_of(frame, self.lead_of)

    @property
    def key(self) -> tuple[object, ...]:
        """Equal to that of a frame that enters the hook, if their codes are equal."""
        if self.instance is not None:
            return "instance", id(self.instance)
        return "cells", *map(id, map(cell_value, self.function.__closure__ or ()))


def hooks_into(call: object, layer: FrameworkLayer | None, seam: Seam, *, part: bool = False) -> Iterator[Hook]:
    """Yield the hook of the function that a call runs, none if the function is not written in Python."""
    function = next(functions_called(call), None)
    if function is not None:
        instance = call.__self__ if type(call) is MethodType else call
        yield Hook(function, None if is_function(call) else instance, layer, seam, part=part)


def keys_of(frame: FrameType, lead_of: Callable[[Any], object] | None = None) -> Iterator[tuple[object, ...]]:
    """Yield the keys of the hooks that a frame may enter: by its first argument, and by the function's cells.

    With `lead_of`, what that returns for the first argument takes its place.
    """
    code, values = frame.f_code, frame.f_locals
    if code.co_argcount:
        first = values.get(code.co_varnames[0])
        yield "instance", id(first if lead_of is None else lead_of(first))
    elif code.co_flags & CO_VARARGS and (arguments := values.get(code.co_varnames[code.co_kwonlyargcount])):
        yield "instance", id(arguments[0])  # a method in a decorator that takes any arguments
    yield "cells", *(id(values.get(name, MISSING)) for name in code.co_freevars)


# The attribute of an ASGI callable that stands for an app: the app.
STANDS_FOR = "framework_app"


def stands_for_app(callee: object) -> bool:
    """Return whether an ASGI callable stands for an app that its client calls without ASGI."""
    return static(callee, STANDS_FOR) is not MISSING


def framework_app(callee: object) -> object:
    """Return the app that an ASGI callable stands for, or the callable itself."""
    return static(callee, STANDS_FOR) if stands_for_app(callee) else callee


def seam_of(app: object) -> Seam | None:
    """Return where an app that has started can be cut, None for an app without layers of a framework known here."""
    app = framework_app(app)
    seam: Callable[[object], Seam | None] | None = getattr(_framework_of(app), "seam", None)
    return None if seam is None else seam(app)


def routes_of_framework(app: object) -> Iterator[Route] | None:
    """Return the routes of an app, which need not have started, None if no module here knows its table.

    Raises AppError if the table cannot be made.
    """
    routes: Callable[[object], Iterator[Route] | None] | None = getattr(_framework_of(app), "routes", None)
    return None if routes is None else routes(app)


def _framework_of(app: object) -> ModuleType | None:
    """Return the module here for the framework that an app's type comes from."""
    for cls in bases(type(app)):
        package = class_name(cls)[0].partition(".")[0]
        if package in FRAMEWORKS:
            return importlib.import_module(f".{package}", __package__)
    return None
