"""BlackSheep: each entry of `app.middlewares` is a layer, nested as in a stack of ASGI middlewares.

At startup BlackSheep builds a chain for each route. `Route.handler` is the `middleware_wrapper` of the outermost
middleware, and its cells hold this middleware and the handler inside it. The wrappers are what a request enters, one
per route and middleware. The endpoint is the handler at the end of the chain, with the binding of its parameters.
Routing and handlers of exceptions are no layers.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import FunctionType

from .reading import callee_of, cell, defined, distinct, inner_codes, items, layers_of, mapped, read
from .seam import Seam


def seam(app: object) -> Seam | None:
    """Return the middlewares of an `Application`, outermost first."""
    wrappers = inner_codes(defined("blacksheep.middlewares", "middleware_partial"))
    calls: list[tuple[object, object]] = []
    handlers: list[object] = []
    for route in _routes(app):
        handler = read(route, "handler")
        while type(handler) is FunctionType and handler.__code__ in wrappers:
            calls.append((_written(cell(handler, "handler"), app), handler))
            handler = cell(handler, "next_handler")
        handlers.append(handler)
    layers = layers_of(calls)
    return Seam(layers, distinct(handlers)) if layers else None


def _routes(app: object) -> Iterator[object]:
    """Yield the routes of all methods, and the one for requests that match no other."""
    router = read(app, "router")
    for routes in mapped(read(router, "routes")).values():
        yield from items(routes)
    fallback = read(router, "_fallback")
    if fallback is not None:
        yield fallback


def _written(middleware: object, app: object) -> object:
    """Return the middleware that the team wrote: BlackSheep wraps one that has parameters to inject."""
    binders = inner_codes(defined("blacksheep.server.normalization", "_get_middleware_async_binder"))
    if type(middleware) is FunctionType and middleware.__code__ in binders:
        middleware = cell(middleware, "method")
    return callee_of(middleware, app)
