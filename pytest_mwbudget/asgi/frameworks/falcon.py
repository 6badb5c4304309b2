"""Falcon: each middleware object is a layer, entered through its methods, which run beside the responder.

`App._middleware` holds the bound methods that every request calls: `process_request`, `process_resource` and
`process_response`, or their variants that end in `_async`. The endpoint is the responder, a sink or a static route.
Routing, the request and response objects, hooks of a responder and error handlers are no layers.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import FunctionType, MethodType

from ..callables import held_values
from .reading import distinct, items, layers_of, mapped, read
from .seam import Seam

# What Falcon calls where no route matches, and where the route has no such method.
_DEFAULT_RESPONDERS = ("_default_responder_path_not_found", "_default_responder_bad_request")


def seam(app: object) -> Seam | None:
    """Return the middleware objects of a `falcon.asgi.App` in the order in which the team added them."""
    methods = list(_prepared(app))
    layers = layers_of(
        (component, method)
        for component in items(read(app, "_unprepared_middleware"))
        for method in methods
        if _object_of(method) is component
    )
    return Seam(layers, distinct(_responders(app))) if layers else None


def _prepared(app: object) -> Iterator[object]:
    """Yield the methods of middlewares. Dependent middlewares have pairs of methods, either of which may be missing."""
    for stage in items(read(app, "_middleware")):
        for one in items(stage):
            yield from (method for method in items(one) or (one,) if method is not None)


def _object_of(method: object) -> object:
    """Return the object that a method is bound to, also if Falcon has wrapped a sync method in a coroutine function."""
    if type(method) is FunctionType:
        method = next((held for held in held_values(method) if type(held) is MethodType), None)
    return method.__self__ if type(method) is MethodType else None


def _responders(app: object) -> Iterator[object]:
    """Yield what answers requests; nothing if the app has a router of its own, whose routes are unknown."""
    nodes = list(items(read(app, "_router", "_roots")))
    if not nodes:
        return
    for node in nodes:
        nodes.extend(items(read(node, "children")))
        yield from mapped(read(node, "method_map")).values()
    for route in items(read(app, "_sink_and_static_routes")):
        yield items(route)[1]
    yield from filter(None, (read(app, name) for name in _DEFAULT_RESPONDERS))
