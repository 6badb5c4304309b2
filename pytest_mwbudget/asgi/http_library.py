"""The library that builds our own requests and responses: httpx2 where it can be imported, else httpx.

The package depends on httpx only. With httpx2 installed, Starlette's TestClient returns responses of httpx2, so that
choice belongs to the user. Every other module takes `httpx` from here. Types are checked against httpx.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import httpx
else:
    try:
        import httpx2 as httpx
        from httpx2 import Request  # noqa: F401 - a folder of this name can be imported too
    except ImportError:
        import httpx

__all__ = ["LIBRARIES", "httpx", "translated"]

LIBRARIES = ("httpx", "httpx2")
# For each class, the form that both libraries accept in place of an object.
COMMON_FORMS: dict[str, Callable[[Any], object]] = {
    "URL": str,
    "Headers": lambda headers: headers.raw,
    "QueryParams": lambda params: params.multi_items(),
    "Cookies": lambda cookies: cookies.jar,
}


def translated(value: Any) -> Any:
    """Return an object of the other library in a form that both accept, and any other value as it is.

    The libraries accept each other's objects without an error, but lose headers, parameters and cookies.
    """
    for kind in type(value).__mro__:
        if kind.__module__ in LIBRARIES and kind.__module__ != httpx.__name__ and kind.__name__ in COMMON_FORMS:
            return COMMON_FORMS[kind.__name__](value)
    return value
