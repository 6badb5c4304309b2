"""Load the app under test, and check that it can be an ASGI 3 app."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from ..errors import AppError, near_miss

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
ASGIApp: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]
# Calls the app in place of the server, and observes the call.
Observer: TypeAlias = Callable[[ASGIApp, Scope, Receive, Send], Awaitable[None]]


def import_app(reference: str) -> object:
    """Import the object at `package.module:attribute`. Raises AppError when that fails."""
    place, colon, path = reference.partition(":")
    if not (place and colon and path):
        raise AppError(f"mw_budget_app is {reference!r}; write 'package.module:app'")
    try:
        found: object = importlib.import_module(place)
    except Exception as error:
        raise AppError(
            f"mw_budget_app is {reference!r}, but importing {place!r} failed with"
            f" {type(error).__name__}: {error}; correct the module's name, or make it importable from the directory in"
            f" which pytest runs (the setting `pythonpath` helps)"
        ) from error
    for name in path.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            names = [known for known in dir(found) if not known.startswith("_")]
            raise AppError(
                f"mw_budget_app is {reference!r}, but {place!r} has no {name!r}.{near_miss(name, names)} The names that"
                f" it has are: {', '.join(names) or 'none'}"
            ) from None
        except Exception as error:
            raise AppError(
                f"mw_budget_app is {reference!r}, but getting {name!r} of {place!r} failed with"
                f" {type(error).__name__}: {error}"
            ) from error
        place = f"{place}.{name}"
    return found


@dataclass(frozen=True, slots=True)
class NamedApp:
    """The app that the configuration names. A test imports it, so a failed import fails that test only."""

    reference: str
    root: Path

    def load(self) -> object:
        """Import the app, with `root` importable. Raises AppError when there is no name or no such app."""
        if not self.reference:
            raise AppError(
                "mw_budget has no app to measure: define a fixture mw_budget_app that returns it, or set"
                " mw_budget_app = package.module:app in the pytest configuration"
            )
        if str(self.root) not in sys.path:
            sys.path.insert(0, str(self.root))
        return import_app(self.reference)


def checked_app(app: object) -> ASGIApp:
    """Return `app`, or the app that it names. Raises AppError when this cannot be an ASGI 3 app."""
    if isinstance(app, NamedApp):
        app = app.load()
    remedy = "return the ASGI app itself from the fixture mw_budget_app, or name it in the setting mw_budget_app"
    if not callable(app) or inspect.isclass(app):
        raise AppError(f"the app under test is {app!r}, which is not an ASGI app; {remedy}")
    try:
        signature = inspect.signature(app)
    except (TypeError, ValueError):
        return app
    try:
        signature.bind({}, None, None)
    except TypeError:
        factory = ", it looks like a factory; call it in the fixture" if not signature.parameters else ""
        raise AppError(
            f"the app under test is {app!r}, which does not take (scope, receive, send){factory}; {remedy}"
        ) from None
    return app
