"""Quart: each function of `before_request`, `after_request` and `teardown_request` is a layer, beside the view.

So are those of `url_value_preprocessor` and `teardown_appcontext`, and those that blueprints and extensions register.
The endpoint is the view. Routing, sessions, signals and error handlers are not layers. What wraps `asgi_app` is an ASGI
middleware.

Quart runs a sync function in a thread, through a coroutine function that it makes for each call (`ensure_async`). This
wrapper is another object in each request, so it cannot be a boundary. The layer is charged what the function does in
the thread. The way to the thread and back is charged to what is outside the layers.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import FunctionType, MethodType

from .reading import callee_of, defined, distinct, entered, items, layers_of, mapped, read
from .seam import Seam

# In the order of their calls. The view is called between the second and the third.
_STAGES = ("url_value_preprocessors", "before_request_funcs", "after_request_funcs", "teardown_request_funcs")
_FOR_THE_APP_ONLY = "teardown_appcontext_funcs"
# Quart never runs these in a thread.
_DIRECT = "url_value_preprocessors"
_HOP = "it is sync, so Quart runs it in a thread for each request; the way there and back comes on top, as Quart's time"


def seam(app: object) -> Seam | None:
    """Return the functions round the views: the app's, then those of each blueprint, in the order of their stages."""
    calls: list[tuple[object, object]] = []
    adapts: dict[int, str] = {}
    threads = _runs_sync_functions_in_threads(app)
    for stage, function in _functions(app):
        callee = callee_of(function, app)
        calls.append((callee, function))
        if threads and stage != _DIRECT and not _is_async(function):
            adapts[id(callee)] = _HOP
    layers = layers_of(calls, adapts)
    return Seam(layers, distinct(mapped(read(app, "view_functions")).values())) if layers else None


def _functions(app: object) -> Iterator[tuple[str, object]]:
    """Yield the functions with the name of their stage, those of an outer blueprint before inner ones."""
    tables = {stage: mapped(read(app, stage)) for stage in _STAGES}
    tables[_FOR_THE_APP_ONLY] = {None: read(app, _FOR_THE_APP_ONLY)}
    scopes = {scope: None for table in tables.values() for scope in table}
    # None is the app. The name of a blueprint in a blueprint is "outer.inner".
    for scope in sorted(scopes, key=lambda name: -1 if name is None else str(name).count(".")):
        for stage, table in tables.items():
            for function in items(table.get(scope)):
                yield stage, function


def _is_async(function: object) -> bool:
    function = entered(function)
    return type(function) in (FunctionType, MethodType) and inspect.iscoroutinefunction(function)


def _runs_sync_functions_in_threads(app: object) -> bool:
    """Return whether the app has Quart's own methods, which a team can override to run sync functions in the loop."""
    own = defined("quart.app", "Quart")
    return all(read(app, name) is read(own, name) is not None for name in ("ensure_async", "sync_to_async"))
