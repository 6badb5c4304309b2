"""Sanic: each function that is registered as a middleware is a layer, which runs beside the handler.

Sanic keeps a `Middleware` object for each registration, and calls this object before the handler or after it. A
function that is registered for both is one layer, and so is an object whose methods are registered. The endpoint is the
handler of the route. Routing, signals and handlers of exceptions are not layers.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...interpreter.identity import is_a
from .reading import callee_of, distinct, items, layers_of, mapped, read
from .route import Route, why_not
from .seam import Seam

_TABLES = ("static_routes", "dynamic_routes", "regex_routes")
_STAGES = ("request_middleware", "response_middleware")


def seam(app: object) -> Seam | None:
    """Return the middlewares of the app, its blueprints and routes, in the order in which they see a request."""
    routes = list(_routes(app))
    middlewares = sorted(_middlewares(app, routes), key=_order, reverse=True)
    layers = layers_of((callee_of(read(middleware, "func"), app), middleware) for middleware in middlewares)
    return Seam(layers, distinct(read(route, "handler") for route in routes)) if layers else None


def routes(app: object) -> Iterator[Route]:
    """Yield the routes of the app's router, with those of its blueprints."""
    for route in _routes(app):
        path = f"/{read(route, 'path')}"
        methods = read(route, "methods")
        answers = is_a(methods, frozenset) and "GET" in methods  # type: ignore[operator]
        yield Route(path, answers, why_not(path, [read(route, "handler")]))


def _routes(app: object) -> Iterator[object]:
    for table in _TABLES:
        for group in mapped(read(app, "router", table)).values():
            yield from items(read(group, "_routes"))


def _middlewares(app: object, routes: list[object]) -> Iterator[object]:
    """Yield the middleware objects: those of each route, the app's among them, and those where no route matches."""
    for holder in (*(read(route, "extra") for route in routes), app):
        for stage in _STAGES:
            yield from items(read(holder, stage))


def _order(middleware: object) -> tuple[int, int]:
    """Return what Sanic sorts by: the priority, and the number of the definition from the last to the first."""
    priority, definition = read(middleware, "priority"), read(middleware, "definition")
    return (priority, -definition) if isinstance(priority, int) and isinstance(definition, int) else (0, 0)
