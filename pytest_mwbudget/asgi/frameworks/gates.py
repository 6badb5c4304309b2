"""How a request enters the parts of an endpoint: the hooks of a callable, and those of a framework's own functions."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import AsyncGeneratorType, CodeType, FunctionType, MethodType
from typing import Any

from ..callables import functions_called
from .reading import defined, entered
from .seam import FrameworkLayer, Hook, Seam, hooks_into

# The seam of all parts of endpoints.
INSIDE = Seam(())
GENERATORS = inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR


@dataclass(frozen=True, slots=True)
class Gate:
    """A function or method of a framework whose call enters a part.

    `needed` means that no release here lacks it. Each request that enters all of the parts `after` calls it, None if
    such a request need not. `of_each` means that its calls enter parts of the app's own; its hooks are made when these
    are known.
    """

    part: str
    module: str
    path: tuple[str, ...]
    needed: bool = False
    after: tuple[str, ...] | None = None
    of_each: bool = False

    @property
    def name(self) -> str:
        """The full name of the function."""
        return ".".join((self.module, *self.path))

    @property
    def function(self) -> FunctionType | None:
        """The function, None if the framework does not have it."""
        function = defined(self.module, *self.path)
        if type(function) is classmethod:
            function = function.__func__
        return function if type(function) is FunctionType else None

    def hooks(
        self, layer: FrameworkLayer, instance: object = None, lead_of: Callable[[Any], object] | None = None
    ) -> Iterator[Hook]:
        """Yield the hook of the function, none if the framework does not have it."""
        if (function := self.function) is not None:
            yield hook(function, instance, layer, lead_of)


def hook(
    function: Any, instance: object, layer: FrameworkLayer, lead_of: Callable[[Any], object] | None = None
) -> Hook:
    """Return the hook of a part."""
    return Hook(function, instance, layer, INSIDE, lead_of=lead_of, part=True)


def hooks_of_callable(call: object, layer: FrameworkLayer) -> Iterator[Hook]:
    """Yield the hooks of a callable of the app that a framework awaits, or runs in a thread.

    The way to the thread and back belongs to the callable that needs it. A generator function is entered at its first
    and at its second step, through the context manager that the framework makes of it. A decorator round it is entered
    when the framework asks it for the generator.
    """
    code = generator_of(call)
    if code is not None:
        for name in ("__aenter__", "__aexit__"):
            if type(step := defined(contextlib.__name__, "_AsyncGeneratorContextManager", name)) is FunctionType:
                yield hook(step, code, layer, generator_code)
    function = next(functions_called(entered(call)), None)
    if function is not None and function.__code__ is code:
        return
    yield from hooks_of_call(call, layer)
    yield from in_thread(call, layer)


def generator_of(call: object) -> CodeType | None:
    """Return the code of a generator function, also if it is in a decorator, None for any other callable."""
    codes = (function.__code__ for function in functions_called(entered(call)))
    return next((code for code in codes if code.co_flags & GENERATORS), None)


def hooks_of_call(call: object, layer: FrameworkLayer) -> Iterator[Hook]:
    """Yield the hook of a callable that a framework calls itself."""
    yield from hooks_into(entered(call), layer, INSIDE, part=True)


def in_thread(call: object, layer: FrameworkLayer) -> Iterator[Hook]:
    """Yield the hook of a callable that runs in a thread: Starlette's function for that, with the callable first."""
    if type(runs := defined("starlette.concurrency", "run_in_threadpool")) is FunctionType:
        yield hook(runs, call, layer, _lasting(defined("starlette.endpoints", "HTTPEndpoint")))


@functools.cache
def _lasting(view: Any) -> Callable[[Any], object]:
    """Return what tells callables apart: themselves; of a `view`, which is made for each request, the function."""

    def lead_of(call: Any) -> object:
        return call.__func__ if type(call) is MethodType and view in type(call.__self__).__mro__ else call

    return lead_of


def hooks_of_method(method: object, layer: FrameworkLayer) -> Iterator[Hook]:
    """Yield the hooks of a method of an object that is made for each request."""
    function = next(functions_called(method), None)
    if function is not None:
        yield hook(function, None, layer)
        yield from in_thread(method, layer)


def generator_code(manager: Any) -> object:
    """Return the code of the generator function that an async context manager was made of.

    FastAPI puts the context manager of a sync generator into an async generator, which steps it in a thread. This runs
    in timed requests.
    """
    generator = getattr(manager, "gen", None)
    if type(generator) is not AsyncGeneratorType:
        return None
    code, frame = generator.ag_code, generator.ag_frame
    if frame is None or code.co_name != "contextmanager_in_threadpool":
        return code
    return getattr(getattr(frame.f_locals.get("cm"), "gen", None), "gi_code", code)
