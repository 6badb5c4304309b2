"""FastAPI: the parts of the endpoint of an API route, beside those of Starlette.

`solve_dependencies` calls itself for each dependency, with a `dependant` that holds the callable: the override if there
is one. `run_endpoint_function` calls the handler, also in a thread. `serialize_response` validates and serialises what
the handler returned: its `field` has the type of the response.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping, Sequence
from types import FunctionType

from ...interpreter.identity import is_a
from ...model.endpoint import HANDLER, SERIALIZE, VALIDATE
from ..callables import functions_called
from .gates import Gate, hooks_of_callable
from .reading import defined, items, mapped, read
from .seam import FrameworkLayer, Hook

# The attribute in which a model of Pydantic has its validators.
DECORATORS = "__pydantic_decorators__"

GATES = (
    Gate(VALIDATE, "fastapi.dependencies.utils", ("solve_dependencies",), needed=True, after=()),
    Gate(HANDLER, "fastapi.routing", ("run_endpoint_function",), needed=True),
    Gate(SERIALIZE, "fastapi.routing", ("serialize_response",), needed=True),
)


def is_route(route: object) -> bool:
    """Return whether a route is of FastAPI, with dependencies."""
    return read(route, "dependant") is not None


def has_own_handler(route: object) -> bool:
    """Return whether the class of a route has its own `get_route_handler`, which may call any of the parts, or none.

    Routes of WebSockets have no such method.
    """
    own = read(type(route), "get_route_handler")
    return own is not None and own is not defined("fastapi.routing", "APIRoute", "get_route_handler")


def stand_ins(arguments: Mapping[str, object]) -> Sequence[object]:
    """Return the values of the `dependency_overrides` with which `solve_dependencies` was called.

    With any, FastAPI reads the signature of each dependency again before it calls itself for it.
    """
    return tuple(mapped(read(arguments.get("dependency_overrides_provider"), "dependency_overrides")).values())


def dependency_hooks(arguments: Mapping[str, object]) -> Iterator[Hook]:
    """Yield the hooks of the dependency for which `solve_dependencies` was called with these arguments."""
    call = read(arguments.get("dependant"), "call")
    if call is not None:
        yield from hooks_of_callable(call, FrameworkLayer(call))


def returns_text(arguments: Mapping[str, object]) -> bool:
    """Return whether the handler returned a str or bytes, which most responses send as they are."""
    return is_a(arguments.get("response_content"), str, bytes)


def response_models(arguments: Mapping[str, object]) -> Iterator[type]:
    """Yield the models of Pydantic in the response type for which `serialize_response` was called."""
    annotations = [read(arguments.get("field"), "field_info", "annotation")]
    while annotations:
        annotation = annotations.pop()
        if is_a(annotation, type) and read(annotation, DECORATORS) is not None:
            yield annotation  # type: ignore[misc]
        else:
            annotations += typing.get_args(annotation)


def returns(arguments: Mapping[str, object], model: type) -> bool:
    """Return whether the handler returned an instance of a model, or a list, tuple or dict of only such instances."""
    content = arguments.get("response_content")
    inside = [*items(content), *mapped(content).values()]
    return is_a(content, model) or (bool(inside) and all(is_a(instance, model) for instance in inside))


def validators(model: type) -> Iterator[FunctionType]:
    """Yield the functions that validate a model as a whole. Pydantic calls some of them for its instances, too."""
    for decorator in mapped(read(model, DECORATORS, "model_validators")).values():
        if (function := next(functions_called(read(decorator, "func")), None)) is not None:
            yield function
