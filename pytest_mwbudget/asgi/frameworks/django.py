"""Django: each entry of `MIDDLEWARE` is a layer, nested as in a stack of ASGI middlewares.

`ASGIHandler` holds a chain of links, each of which is held by the middleware outside it. A link is an `inner` function,
which `convert_exception_to_response` makes round each middleware, or an adapter of asgiref: `SyncToAsync` runs a sync
link in a thread, `AsyncToSync` an async link on the event loop. A layer is entered through its link, and through its
`process_view`, `process_template_response` and `process_exception`, which Django calls inside the endpoint. The
endpoint is the innermost link: finding the view, calling it and rendering its response. The objects of the request and
the response, signals and sending are not layers.

A middleware that can only be sync makes Django run the middlewares outside it in sync mode too. So the adapter in front
of them belongs to that middleware.

The parts of the endpoint are entered through functions of Django. What `resolve_request` returns holds the view. Django
calls an async view itself. For a sync view, and to render a response, it makes an adapter for each request.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import FunctionType, MethodType, ModuleType
from typing import Any

from ...errors import AppError, described
from ...interpreter.identity import is_a
from ...model.endpoint import FRAMEWORK, HANDLER, READ, RESPOND, ROUTING, SERIALIZE
from ..callables import held_values, module_and_name, reached
from .gates import Gate, hooks_of_call
from .reading import callee_of, cell, defined, entered, inner_codes, items, layers_of, mapped, read
from .route import Route, parametrised, why_not
from .seam import FrameworkLayer, Hook, Seam, framework_app

# The lists of the handler with the methods that Django calls inside the endpoint.
_LISTS = {
    "process_view": "_view_middleware",
    "process_template_response": "_template_response_middleware",
    "process_exception": "_exception_middleware",
}
# The only one of these methods that Django calls in each request.
_ALWAYS_CALLED = "process_view"
# What MiddlewareMixin runs in a thread where the middleware is async.
_MIXED_IN = ("process_request", "process_response")
# What makes a regular expression of a path.
_SPECIAL = re.compile(r"[()\[\]*+?|\\^$]")

IN_THREAD = "it is not async, so Django calls it in a thread"
_ADAPTER = Gate(HANDLER, "asgiref.sync", ("SyncToAsync", "__call__"), needed=True, of_each=True)
_RENDER = Gate(SERIALIZE, "django.template.response", ("SimpleTemplateResponse", "render"))
GATES = (
    _ADAPTER,
    _RENDER,
    # Without middlewares, and where the app is mounted in another app.
    Gate(FRAMEWORK, "django.core.handlers.asgi", ("ASGIHandler", "__call__")),
    Gate(READ, "django.core.handlers.asgi", ("ASGIHandler", "read_body")),
    Gate(READ, "django.http.request", ("HttpRequest", "body", "fget")),
    Gate(READ, "django.http.request", ("HttpRequest", "_load_post_and_files")),
    Gate(ROUTING, "django.core.handlers.base", ("BaseHandler", "resolve_request"), needed=True, after=()),
    Gate(SERIALIZE, "django.shortcuts", ("render",)),
    Gate(SERIALIZE, "django.http.response", ("HttpResponse", "__init__")),
    Gate(SERIALIZE, "django.http.response", ("JsonResponse", "__init__")),
    Gate(SERIALIZE, "django.http.response", ("StreamingHttpResponse", "__init__")),
    Gate(SERIALIZE, "django.http.response", ("FileResponse", "__init__")),
    Gate(SERIALIZE, "django.template.response", ("SimpleTemplateResponse", "__init__")),
    Gate(SERIALIZE, "django.template.response", ("TemplateResponse", "__init__")),
    Gate(RESPOND, "django.core.handlers.asgi", ("ASGIHandler", "send_response")),
)


@dataclass(frozen=True, slots=True)
class _Step:
    """A middleware of the chain: `link` is its `inner` function, `adapters` stand between it and what is outside it."""

    callee: object
    link: FunctionType
    adapters: Sequence[object]

    @property
    def is_async(self) -> bool:
        return bool(self.link.__code__.co_flags & inspect.CO_COROUTINE)

    @property
    def name(self) -> str:
        """The name that stands in `MIDDLEWARE`: that of a class, or of the function that made this function."""
        if type(self.callee) is FunctionType:
            return self.callee.__code__.co_qualname.partition(".<locals>")[0].rpartition(".")[2]
        return type(self.callee).__name__


def seam(app: object) -> Seam | None:
    """Return the middlewares of an ASGIHandler, outermost first; None for a handler that only serves static files."""
    steps, endpoint = _walk(app)
    unread = None
    if steps and endpoint is None:
        # The chain breaks off: what the last middleware does cannot be told from what is inside it.
        endpoint = steps.pop()
        unread = endpoint.name
    calls: list[tuple[object, object]] = []
    adapts: dict[int, str] = {}
    for place, step in enumerate(steps):
        methods = list(_methods(app, step.callee))
        calls += ((step.callee, call) for call in _adapters_of(steps, place, endpoint))
        calls += ((step.callee, call) for call in (step.link, *(method for _, method in methods)))
        reasons = [*_why_in_thread(steps, place), *_why_methods_in_threads(step, methods)]
        if reasons:
            adapts[id(step.callee)] = "; ".join(reasons)
    layers = layers_of(calls, adapts, by_maker=True)
    return Seam(layers, () if endpoint is None else (endpoint.link,), unread) if layers or unread else None


def routes(app: object) -> Iterator[Route] | None:
    """Yield the patterns of the project's URLconf; None for a handler that only serves static files.

    This imports the URLconf, as the first request does. Raises AppError if that fails.
    """
    get_resolver = defined("django.urls", "get_resolver")
    if not callable(get_resolver) or read(app, "_middleware_chain") is None:
        return None
    try:
        return iter(list(_patterns(get_resolver().url_patterns, "/")))
    except Exception as error:
        raise AppError(
            f"the URLconf of the project cannot be read: {described(error)}; correct it, or name the requests to"
            " measure"
        ) from error


def _patterns(patterns: Iterable[Any], prefix: str) -> Iterator[Route]:
    for url_pattern in patterns:
        route = getattr(url_pattern.pattern, "_route", None)
        path = prefix + (route if isinstance(route, str) else _of_regex(str(url_pattern.pattern)))
        if hasattr(url_pattern, "url_patterns"):
            yield from _patterns(url_pattern.url_patterns, path)
        else:
            view = getattr(url_pattern.callback, "view_class", None)
            answers = view is None or hasattr(view, "get")
            yield Route(path, answers, _why_not(path, url_pattern.callback))


def _of_regex(pattern: str) -> str:
    """Return the text of a regular expression without its anchors."""
    return pattern.removeprefix("^").removesuffix("$").replace(r"\Z", "")


def _why_not(path: str, view: object) -> str | None:
    if not parametrised(path) and _SPECIAL.search(path):
        return "a regular expression"
    if module_and_name(view)[0].startswith("django.contrib."):
        return "of django itself"
    return why_not(path, ())


# ---- the parts of the endpoint --------------------------------------------------------------------------------------


def is_handler(app: object) -> bool:
    """Return whether this is the handler of a project, or stands for it."""
    app = framework_app(app)
    kind = defined("django.core.handlers.base", "BaseHandler")
    return isinstance(kind, type) and is_a(app, kind)


def view_hooks(match: object) -> Iterator[Hook]:
    """Yield the hooks of the view that `resolve_request` has found, and of what Django adapts for each request."""
    view, render = read(match, "func"), _RENDER.function
    layer = FrameworkLayer(read(view, "view_class") or view, name=HANDLER)
    lead_of = _by_view(view, render)
    yield from hooks_of_call(view, layer)
    yield from _ADAPTER.hooks(replace(layer, adapts=IN_THREAD), view, lead_of)
    if render is not None:
        yield from _ADAPTER.hooks(FrameworkLayer(None, name=SERIALIZE), render, lead_of)


def _by_view(view: object, render: object) -> Callable[[Any], object]:
    """Return the key of the adapters that Django makes for each request: the view, or `render`.

    Any other adapter is of a middleware, and its own key. This runs in timed requests.
    """

    def lead_of(adapter: Any) -> object:
        adapted = adapter.func
        if type(adapted) is MethodType and adapted.__func__ is render:
            return render
        # With ATOMIC_REQUESTS, a function for each database is round the view.
        while adapted is not view and type(adapted) is FunctionType:
            adapted = adapted.__dict__.get("__wrapped__")
        return view if adapted is view else adapter

    return lead_of


# ---- the chain ------------------------------------------------------------------------------------------------------


def _walk(handler: object) -> tuple[list[_Step], _Step | None]:
    """Return the middlewares of a handler's chain, outermost first, and the endpoint; None if the chain breaks off."""
    steps: list[_Step] = []
    adapters: list[object] = []
    seen: set[int] = set()
    link = read(handler, "_middleware_chain")
    while _is_link(link) and id(link) not in seen:
        seen.add(id(link))
        if type(link) is not FunctionType:
            adapters.append(link)
            link = _adapted(link)
            continue
        given = cell(link, "get_response")
        wrapped = entered(given)
        step = _Step(callee_of(wrapped, handler), link, tuple(adapters))
        if type(wrapped) is MethodType and wrapped.__self__ is handler:
            return steps, step
        if _is_link(wrapped):  # the entry of MIDDLEWARE returned what it was given
            link = wrapped
            continue
        steps.append(step)
        adapters = []
        link = _next_link(given)
    return steps, None


def _is_link(value: object) -> bool:
    if type(value) is FunctionType:
        return value.__code__ in inner_codes(defined("django.core.handlers.exception", "convert_exception_to_response"))
    return (_is_to_thread(value) or _is_to_loop(value)) and _is_link(_adapted(value))


def _is_to_thread(value: object) -> bool:
    return type(value) is defined("asgiref.sync", "SyncToAsync")


def _is_to_loop(value: object) -> bool:
    return type(value) is defined("asgiref.sync", "AsyncToSync")


def _adapted(adapter: object) -> object:
    """Return what an adapter calls."""
    return read(adapter, "func" if _is_to_thread(adapter) else "awaitable")


def _next_link(middleware: object) -> object:
    """Return the link that a middleware passes requests on to, wherever it keeps it; None if that is too far in."""
    return next(filter(_is_link, reached([middleware], _held)), None)


def _held(holder: object) -> Iterator[object]:
    """Yield what an object holds, but what is of the whole program, or a handler that has a chain of its own."""
    for value in (*held_values(holder), *items(holder), *mapped(holder).values()):
        if not is_a(value, type, ModuleType) and read(value, "_middleware_chain") is None:
            yield value


# ---- what else belongs to a middleware ------------------------------------------------------------------------------


def _end_of_run(steps: Sequence[_Step], place: int) -> int:
    """Return the innermost of the sync middlewares that begin at a place: what is inside it is async."""
    while place + 1 < len(steps) and not steps[place + 1].is_async:
        place += 1
    return place


def _runs_ended(steps: Sequence[_Step], place: int) -> Iterator[int]:
    """Yield where the run of sync middlewares begins that the middleware at `place` makes necessary."""
    for begin in range(place + 1):
        to_thread = any(map(_is_to_thread, steps[begin].adapters))
        if to_thread and _end_of_run(steps, begin) == place:
            yield begin


def _adapters_of(steps: Sequence[_Step], place: int, endpoint: _Step | None) -> Iterator[object]:
    """Yield the adapters that the middleware at `place` makes necessary, outside its run and inside it."""
    for begin in _runs_ended(steps, place):
        yield from filter(_is_to_thread, steps[begin].adapters)
    inside = steps[place + 1] if place + 1 < len(steps) else endpoint
    yield from filter(_is_to_loop, () if inside is None else inside.adapters)


def _methods(handler: object, middleware: object) -> Iterator[tuple[str, object]]:
    """Yield the methods of a middleware that Django calls inside the endpoint, with their names, as adapted."""
    for name, listed in _LISTS.items():
        for method in items(read(handler, listed)):
            own = entered(_adapted(method) if _is_to_thread(method) or _is_to_loop(method) else method)
            if _is_method(own, middleware, name):
                yield name, method


def _is_method(method: object, middleware: object, name: str) -> bool:
    """Return whether this is the method of a middleware, or its static method or class method."""
    if type(method) is MethodType:
        return method.__self__ is middleware or method.__self__ is type(middleware)
    attribute = read(middleware, name)
    return method is (attribute.__func__ if type(attribute) is staticmethod else attribute)


def _why_in_thread(steps: Sequence[_Step], place: int) -> Iterator[str]:
    for begin in _runs_ended(steps, place):
        outermost = "it" if begin == place else steps[begin].name
        yield (
            f"it is sync only, so Django hands each request to a thread before {outermost}"
            " and back to the event loop inside it"
        )


def _why_methods_in_threads(step: _Step, methods: Sequence[tuple[str, object]]) -> Iterator[str]:
    names = list(_mixed_in(step.callee)) if step.is_async else []
    names += (name for name, method in methods if name == _ALWAYS_CALLED and _is_to_thread(method))
    if len(names) == 1:
        yield f"its {names[0]} is sync, so Django runs it in a thread for each request"
    elif names:
        listed = f"{', '.join(names[:-1])} and {names[-1]}"
        yield f"its {listed} are sync, so Django runs each of them in a thread for each request"


def _mixed_in(middleware: object) -> Iterator[str]:
    """Yield the sync methods that MiddlewareMixin calls; none if the middleware has its own way to answer requests."""
    mixin = defined("django.utils.deprecation", "MiddlewareMixin")
    if all(read(type(middleware), name) is read(mixin, name) is not None for name in ("__call__", "__acall__")):
        yield from (name for name in _MIXED_IN if read(middleware, name) is not None)
