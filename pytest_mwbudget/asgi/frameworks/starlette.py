"""Starlette: the parts of an endpoint.

A route holds a function, which Starlette awaits or runs in a thread, or a class whose object has a method for each HTTP
method. Starlette notes the callable in the scope of the request.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ...interpreter.identity import is_a
from ...model.endpoint import BACKGROUND, FRAMEWORK, HANDLER, READ, SERIALIZE
from ..callables import static
from .gates import Gate, hooks_of_callable, hooks_of_method
from .seam import FrameworkLayer, Hook

GATES = (
    Gate(READ, "starlette.requests", ("Request", "body")),
    Gate(READ, "starlette.requests", ("Request", "json")),
    Gate(READ, "starlette.requests", ("Request", "_get_form")),
    Gate(FRAMEWORK, "starlette.endpoints", ("HTTPEndpoint", "dispatch")),
    Gate(SERIALIZE, "starlette.responses", ("Response", "__init__")),
    Gate(SERIALIZE, "starlette.responses", ("StreamingResponse", "__init__")),
    Gate(SERIALIZE, "starlette.responses", ("FileResponse", "__init__")),
    Gate(SERIALIZE, "starlette.templating", ("_TemplateResponse", "__init__")),
    Gate(BACKGROUND, "starlette.background", ("BackgroundTask", "__call__")),
    Gate(BACKGROUND, "starlette.background", ("BackgroundTasks", "__call__")),
)


def handler_hooks(scope: Mapping[str, object]) -> Iterator[Hook]:
    """Yield the hooks of the callable that answers a request, by the scope that Starlette's router has completed."""
    endpoint = scope["endpoint"]
    if not is_a(endpoint, type):
        yield from hooks_of_callable(endpoint, FrameworkLayer(endpoint, name=HANDLER))
        return
    method = str(scope.get("method")).lower()
    names = (method, *(("get",) if method == "head" else ()), "method_not_allowed")
    for name in names:
        function = static(endpoint, name)
        layer = FrameworkLayer(function, name=HANDLER)
        if hooks := list(hooks_of_method(function, layer)):
            yield from hooks
            return
