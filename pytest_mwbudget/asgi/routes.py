"""Read the routes of an app from its route table or OpenAPI schema, without calling the app.

No framework is imported. If the app's framework has a module in `frameworks`, this module reads the table. For other
apps an attribute tells the kind of table: `routes` (Starlette, FastAPI, Litestar), `url_map` (Quart, Flask), `openapi`
(a schema).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MethodType
from typing import Any

from ..errors import AppError, text_of
from ..interpreter.identity import MISSING, class_name, is_a, is_class
from .callables import held_values, reached, static
from .frameworks.route import Route, parametrised, why_not
from .frameworks.seam import routes_of_framework


@dataclass(frozen=True, slots=True)
class Routes:
    """The paths that GET can request as they are, each once, and why the other routes are left out."""

    paths: tuple[str, ...]
    left_out: Mapping[str, str]


def routes_of(app: object) -> Routes:
    """Return the routes of an app, in the order of its table. Raises AppError if its OpenAPI schema cannot be made."""
    routes = list(_table(app) or ())
    paths = dict.fromkeys(route.path for route in routes if route.get and route.why_not is None)
    left_out: dict[str, str] = {}
    for route in routes:
        if route.path not in paths:
            left_out.setdefault(route.path, route.why_not or "no GET")
    return Routes(tuple(paths), left_out)


def _table(app: object) -> Iterator[Route] | None:
    """Return the routes of the outermost object that has any: middlewares may stand round the app."""
    readers = (routes_of_framework, _of_routes, _of_url_map, _of_openapi)
    tables = (read(candidate) for candidate in reached([app], _inner) for read in readers)
    return next((routes for routes in tables if routes is not None), None)


def _inner(app: object) -> Iterator[object]:
    """Yield what an app may pass requests on to: the callables that it holds."""
    held = [app.__self__] if type(app) is MethodType else [*held_values(app)]
    # Channels keeps an app for each protocol.
    held += [value["http"] for value in held if type(value) is dict and "http" in value]
    yield from (callee for callee in held if callable(callee) and not is_class(callee))


def _attribute(owner: object, name: str) -> Any:
    """Return an attribute, None unless an object or its class has it: what `__getattr__` makes up is none."""
    if static(owner, name) is MISSING:
        return None
    try:
        return getattr(owner, name, None)
    except Exception:  # of a property
        return None


# ---- Starlette, FastAPI, Litestar --------------------------------------------------------------------------------


def _of_routes(app: object) -> Iterator[Route] | None:
    routes = _attribute(app, "routes")
    return _flat(routes, "") if is_a(routes, list, tuple) and routes else None


def _flat(routes: Iterable[object], prefix: str) -> Iterator[Route]:
    """Yield the routes of a table with those of its mounts and included routers."""
    for route in routes:
        effective = _attribute(route, "effective_route_contexts")  # an included router of FastAPI
        if callable(effective):
            yield from _flat([_attribute(context, "starlette_route") or context for context in effective()], prefix)
            continue
        path = _attribute(route, "path")
        if is_a(path, str):
            yield from (
                _route(route, prefix + path)
                if static(route, "methods") is not MISSING
                else _mounted(route, prefix + path)
            )
        elif is_a(host := _attribute(route, "host"), str):
            yield Route(f"{prefix}/", why_not=f"only for the host {host}")


def _route(route: object, path: str) -> Iterator[Route]:
    methods, endpoint = _attribute(route, "methods"), _attribute(route, "endpoint")
    # Starlette has no methods for a class, whose methods are those of HTTP, and for an ASGI app, which answers all.
    unknown = not is_class(endpoint) or static(endpoint, "get") is not MISSING
    answers = unknown if methods is None else "GET" in methods
    of_litestar = _attribute(route, "route_handlers") or ()
    handlers = [
        _attribute(handler, "fn") for handler in of_litestar if "GET" in (_attribute(handler, "http_methods") or ())
    ]
    yield Route(path, answers, why_not(path, handlers or [endpoint]))


def _mounted(route: object, path: str) -> Iterator[Route]:
    """Yield the routes of the app at a mount; a WebSocket route has neither routes nor an app of its own."""
    prefix, app = path.rstrip("/"), _attribute(route, "app")
    if _attribute(route, "routes") is None:
        return
    if parametrised(prefix):
        yield Route(prefix, why_not="path parameters")
        return
    nested = _of_routes(route) or _table(app)
    if nested is None:
        yield Route(f"{prefix}/", why_not=f"mounts {class_name(type(app))[1]}, whose routes are not known")
        return
    for inner in nested:
        yield Route(prefix + inner.path, inner.get, inner.why_not)


# ---- others ------------------------------------------------------------------------------------------------------


def _of_url_map(app: object) -> Iterator[Route] | None:
    """Yield the rules of Quart and of what else keeps them in a map of Werkzeug."""
    rules: Callable[[], Iterable[Any]] | None = _attribute(_attribute(app, "url_map"), "iter_rules")
    if not callable(rules):
        return None
    functions = _attribute(app, "view_functions") or {}
    return (
        Route(rule.rule, "GET" in (rule.methods or ()), why_not(rule.rule, [functions.get(rule.endpoint)]))
        for rule in rules()
        if not _attribute(rule, "websocket")
    )


def _of_openapi(app: object) -> Iterator[Route] | None:
    make = _attribute(app, "openapi")
    if not callable(make):
        return None
    try:
        paths = make()["paths"]
    except Exception as error:
        raise AppError(
            f"the app has no route table, and making its OpenAPI schema failed with {type(error).__name__}:"
            f" {text_of(error)}; name the requests to measure"
        ) from error
    return (
        Route(path, "get" in operations, "path parameters" if parametrised(path) else None)
        for path, operations in paths.items()
    )
