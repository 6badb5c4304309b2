"""Litestar: the parts of the endpoint of an HTTP route.

`HTTPRoute.handle` is the endpoint. The route's handler holds the function, which Litestar has wrapped if it runs in a
thread, and so do guards and hooks. `resolve_dependencies` calls `resolve_dependency` for each dependency, in tasks of
their own if several need nothing of one another. After the response was made, `DependencyCleanupGroup.close` goes on
with the dependencies that have a `yield`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ...interpreter.identity import is_a
from ...model.endpoint import BACKGROUND, FRAMEWORK, HANDLER, READ, RESPOND, SERIALIZE, VALIDATE
from .gates import Gate, generator_of, hooks_of_call
from .reading import defined, items, read
from .seam import FrameworkLayer, Hook

IN_THREAD = "it has sync_to_thread=True, so Litestar calls it in a thread"

RESOLVE = Gate(VALIDATE, "litestar._kwargs.dependencies", ("resolve_dependency",), needed=True, of_each=True)
CLOSE = Gate(VALIDATE, "litestar._kwargs.cleanup", ("DependencyCleanupGroup", "close"), needed=True, of_each=True)
GATES = (
    RESOLVE,
    CLOSE,
    Gate(FRAMEWORK, "litestar.routes.http", ("HTTPRoute", "handle"), needed=True),
    Gate(READ, "litestar.connection.request", ("Request", "body")),
    Gate(READ, "litestar.connection.request", ("Request", "json")),
    Gate(READ, "litestar.connection.request", ("Request", "msgpack")),
    Gate(READ, "litestar.connection.request", ("Request", "form")),
    Gate(VALIDATE, "litestar._kwargs.kwargs_model", ("KwargsModel", "to_kwargs"), needed=True),
    Gate(VALIDATE, "litestar._kwargs.kwargs_model", ("KwargsModel", "resolve_dependencies"), needed=True),
    Gate(
        VALIDATE,
        "litestar._signature.model",
        ("SignatureModel", "parse_values_from_connection_kwargs"),
        needed=True,
    ),
    Gate(
        SERIALIZE,
        "litestar.handlers.http_handlers.base",
        ("HTTPRouteHandler", "to_response"),
        needed=True,
        after=(HANDLER, RESPOND),
    ),
    Gate(SERIALIZE, "litestar.response.base", ("Response", "__init__")),
    Gate(RESPOND, "litestar.response.base", ("ASGIResponse", "__call__"), needed=True),
    Gate(BACKGROUND, "litestar.background_tasks", ("BackgroundTask", "__call__")),
    Gate(BACKGROUND, "litestar.background_tasks", ("BackgroundTasks", "__call__")),
)
# Stands for all dependencies of a request with a `yield`.
_SEVERAL = object()


def is_route(route_handler: object) -> bool:
    """Return whether this is the handler of an HTTP route."""
    kind = defined("litestar.handlers.http_handlers.base", "HTTPRouteHandler")
    return isinstance(kind, type) and is_a(route_handler, kind)


def handler_hooks(route_handler: object) -> Iterator[Hook]:
    """Yield the hooks of the function that answers a request."""
    call = read(route_handler, "_fn")
    yield from hooks_of_call(call, _layer(call, HANDLER))


def hooks_beside(route_handler: object) -> Iterator[Hook]:
    """Yield the hooks of guards, and of the functions before and after the handler. They have rows as dependencies."""
    hooks = (_innermost(route_handler, name) for name in ("before_request", "after_request", "after_response"))
    for call in (*items(read(route_handler, "_resolved_guards")), *hooks):
        yield from hooks_of_call(call, _layer(call))


def _innermost(route_handler: object, name: str) -> object:
    """Return the hook of the handler, or else of its controller, its routers or the app; None without."""
    owner: object = route_handler
    while owner is not None:
        if (hook := read(owner, name)) is not None:
            return hook
        owner = read(owner, "owner")
    return None


def dependency_hooks(arguments: Mapping[str, object]) -> Iterator[Hook]:
    """Yield the hooks of the dependencies of a `KwargsModel`, one of whose methods was called with these arguments."""
    for batch in items(read(arguments.get("self"), "dependency_batches")):
        for dependency in batch if is_a(batch, set) else ():  # type: ignore[attr-defined]
            call = read(dependency, "provide", "dependency")
            layer = _layer(call)
            yield from RESOLVE.hooks(layer, dependency)
            if (code := generator_of(call)) is not None:
                yield from CLOSE.hooks(layer, code, _closed)
    yield from CLOSE.hooks(FrameworkLayer(None, name=VALIDATE), _SEVERAL, _closed)


def _closed(group: Any) -> object:
    """Return the code of the dependency that a `DependencyCleanupGroup` goes on with, or what stands for several.

    Litestar goes on with several in tasks side by side. This runs in timed requests.
    """
    generators = group._generators
    if len(generators) != 1:
        return _SEVERAL if generators else None
    return getattr(generators[0], "ag_code", None) or getattr(generators[0], "gi_code", None)


def _layer(call: object, name: str | None = None) -> FrameworkLayer:
    """Return the layer of a callable of the app, which Litestar wraps to run it in a thread."""
    in_thread = type(call) is defined("litestar.utils.sync", "AsyncCallable")
    callee = read(call, "func") if in_thread else call
    return FrameworkLayer(callee, adapts=IN_THREAD if in_thread else None, name=name)
