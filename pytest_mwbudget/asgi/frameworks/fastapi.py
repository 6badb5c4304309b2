"""FastAPI: the parts of the endpoint of an API route, beside those of Starlette.

`solve_dependencies` calls itself for each dependency, with a `dependant` that holds the callable: the override if there
is one. `run_endpoint_function` calls the handler, also in a thread. `serialize_response` validates and serialises what
the handler returned.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ...model.endpoint import HANDLER, SERIALIZE, VALIDATE
from .gates import Gate, hooks_of_callable
from .reading import is_a, read
from .seam import FrameworkLayer, Hook

GATES = (
    Gate(VALIDATE, "fastapi.dependencies.utils", ("solve_dependencies",), needed=True, after=()),
    Gate(HANDLER, "fastapi.routing", ("run_endpoint_function",), needed=True),
    Gate(SERIALIZE, "fastapi.routing", ("serialize_response",), needed=True),
)


def is_route(route: object) -> bool:
    """Return whether a route is one of FastAPI's, with dependencies."""
    return read(route, "dependant") is not None


def overrides(arguments: Mapping[str, object]) -> int:
    """Count the entries of `dependency_overrides` with which `solve_dependencies` was called.

    With one or more, FastAPI reads the signature of each dependency again before it calls itself for it.
    """
    found = read(arguments.get("dependency_overrides_provider"), "dependency_overrides")
    return dict.__len__(found) if is_a(found, dict) else 0  # type: ignore[arg-type]


def dependency_hooks(arguments: Mapping[str, object]) -> Iterator[Hook]:
    """Yield the hooks of the dependency for which `solve_dependencies` was called with these arguments."""
    call = read(arguments.get("dependant"), "call")
    if call is not None:
        yield from hooks_of_callable(call, FrameworkLayer(call, ()))
