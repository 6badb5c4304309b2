"""A route of an app, and why it cannot be requested."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..callables import module_and_name

# The pages of the API's documentation, of an admin and the like are routes of these packages.
PACKAGES = ("blacksheep", "fastapi", "falcon", "litestar", "quart", "sanic", "starlette")


@dataclass(frozen=True, slots=True)
class Route:
    """A route: its path, whether it answers GET, and why it cannot be requested as it is; None if it can."""

    path: str
    get: bool = True
    why_not: str | None = None


def why_not(path: str, endpoints: Iterable[object]) -> str | None:
    """Say why a route cannot be requested, or need not be."""
    if parametrised(path):
        return "path parameters"
    packages = {module_and_name(endpoint)[0].partition(".")[0] for endpoint in endpoints}
    if own := packages.intersection(PACKAGES):
        return f"of {min(own)} itself"
    return None


def parametrised(path: str) -> bool:
    """Return whether a path has parameters."""
    return "{" in path or "<" in path
