"""Falcon: each middleware object is a layer, entered through its methods, which run beside the responder.

`App._middleware` holds the bound methods that every request calls: `process_request`, `process_resource` and
`process_response`, or their variants that end in `_async`. The endpoint is the responder, a sink or a static route.
Routing, the request and response objects, hooks of a responder and error handlers are not layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import FunctionType, MethodType

from ..callables import held_values
from .reading import distinct, items, layers_of, mapped, read
from .route import Route, why_not
from .seam import Seam

# What Falcon calls where no route matches, and where the route has no such method.
_DEFAULT_RESPONDERS = ("_default_responder_path_not_found", "_default_responder_bad_request")
# What answers every path that begins in some way: its list, the attribute with the beginning, what it is.
_BY_PREFIX = (("_sinks", "pattern", "a sink"), ("_static_routes", "_prefix", "a directory of files"))


def seam(app: object) -> Seam | None:
    """Return the middleware objects of a `falcon.asgi.App` in the order in which the team added them."""
    methods = list(_prepared(app))
    layers = layers_of(
        (component, method)
        for component in items(read(app, "_unprepared_middleware"))
        for method in methods
        if _is_method(method, component)
    )
    return Seam(layers, distinct(_responders(app))) if layers else None


def routes(app: object) -> Iterator[Route]:
    """Yield the routes of the app's table."""
    for node in _nodes(app):
        template, responders = read(node, "uri_template"), mapped(read(node, "method_map"))
        if isinstance(template, str):
            # For a method that the resource does not have, the table has a function of Falcon's.
            default = type(responders.get("GET")) is FunctionType
            yield Route(template, "GET" in responders and not default, why_not(template, ()))
    for listed, attribute, what in _BY_PREFIX:
        prefixes = [
            read(matcher, attribute) for registered in items(read(app, listed)) for matcher in items(registered)[:1]
        ]
        yield from (Route(prefix, why_not=what) for prefix in prefixes if isinstance(prefix, str))


def _nodes(app: object) -> Sequence[object]:
    """Return the nodes of Falcon's own router; none if the app has another router, whose table is unknown."""
    nodes = list(items(read(app, "_router", "_roots")))
    for node in nodes:
        nodes.extend(items(read(node, "children")))
    return nodes


def _prepared(app: object) -> Iterator[object]:
    """Yield the methods of middlewares. Dependent middlewares have pairs of methods, either of which may be missing."""
    for stage in items(read(app, "_middleware")):
        for prepared in items(stage):
            yield from (method for method in items(prepared) or (prepared,) if method is not None)


def _is_method(method: object, component: object) -> bool:
    """Return whether this is a method of an object or of its class.

    Falcon may have wrapped a sync method in a coroutine function.
    """
    if type(method) is FunctionType:
        method = next((held for held in held_values(method) if type(held) is MethodType), None)
    if type(method) is not MethodType:
        return False
    return method.__self__ is component or method.__self__ is type(component)


def _responders(app: object) -> Iterator[object]:
    """Yield what answers requests; nothing if the app has a router of its own, whose routes are unknown."""
    nodes = _nodes(app)
    if not nodes:
        return
    for node in nodes:
        yield from mapped(read(node, "method_map")).values()
    for route in items(read(app, "_sink_and_static_routes")):
        yield from items(route)[1:2]
    yield from (read(app, name) for name in _DEFAULT_RESPONDERS)
