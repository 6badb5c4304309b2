"""BlackSheep: each entry of `app.middlewares` is a layer, nested as in a stack of ASGI middlewares.

At startup BlackSheep builds a chain for each route. `Route.handler` is the `middleware_wrapper` of the outermost
middleware, and its cells hold this middleware and the handler inside it. The wrappers are what a request enters, one
per route and middleware. The endpoint is the handler at the end of the chain, with the binding of its parameters.
Routing and handlers of exceptions are not layers.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import FunctionType

from .reading import callee_of, cell, defined, distinct, inner_codes, items, layers_of, mapped, read
from .route import Route, why_not
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


def routes(app: object) -> Iterator[Route]:
    """Yield the routes of the app's router and its sub-routers, also what is only registered before the start."""
    waiting = [read(app, "router")]
    for router in waiting:
        waiting.extend(items(read(router, "_sub_routers")))
        registered = [items(pair) for pair in items(read(router, "_registered_routes"))]
        for method, route in (*(pair for pair in registered if len(pair) == 2), *_by_method(router)):
            pattern = read(route, "pattern")
            path = pattern.decode() if isinstance(pattern, bytes) else f"{pattern}"
            has_parameters = ":" in path or "*" in path
            yield Route(path, method in ("GET", b"GET"), "path parameters" if has_parameters else why_not(path, ()))
    for route in items(read(app, "router", "controllers_routes", "routes")):
        yield Route(f"{read(route, 'pattern')}", why_not="of a controller, whose path is made at startup")


def _by_method(router: object) -> Iterator[tuple[object, object]]:
    for method, listed in mapped(read(router, "routes")).items():
        yield from ((method, route) for route in items(listed))


def _routes(app: object) -> Iterator[object]:
    """Yield the routes of all methods, and the fallback route."""
    router = read(app, "router")
    yield from (route for _, route in _by_method(router))
    fallback = read(router, "_fallback")
    if fallback is not None:
        yield fallback


def _written(middleware: object, app: object) -> object:
    """Return the middleware that the team wrote: BlackSheep wraps a middleware that has parameters to inject."""
    binders = inner_codes(defined("blacksheep.server.normalization", "_get_middleware_async_binder"))
    if type(middleware) is FunctionType and middleware.__code__ in binders:
        middleware = cell(middleware, "method")
    return callee_of(middleware, app)
