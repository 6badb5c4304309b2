"""Load the app under test, and check that it can be an ASGI 3 app."""

from __future__ import annotations

import ast
import importlib
import sys
import traceback
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import CoroutineType
from typing import Any, TypeAlias

from ..errors import AppError, described, near_miss
from ..interpreter.identity import is_class, shown
from .callables import accepts

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
ASGIApp: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]
# Calls the app in place of the server, and observes the call.
Observer: TypeAlias = Callable[[ASGIApp, Scope, Receive, Send], Awaitable[None]]


@dataclass(eq=False)
class NamedApp:
    """The app at `package.module:attribute`, imported when it is first asked for.

    The reference may name a factory without parameters, or be a call with literal arguments, as in
    `package.module:create_app("test", debug=True)`.
    """

    reference: str
    root: Path
    # Names the source of the reference in messages.
    where: str = "mw_budget_app"
    # How a factory made the app, after `load`.
    note: str | None = None
    _app: ASGIApp | None = None

    def load(self) -> ASGIApp:
        """Import the app, or have its factory make it, once. Raises AppError when there is no name or no such app."""
        if self._app is None:
            self._app = self._loaded()
        return self._app

    def _loaded(self) -> ASGIApp:
        if not self.reference:
            raise AppError(
                "mw_budget has no app to measure: define a fixture mw_budget_app that returns it, or set"
                " mw_budget_app = package.module:app in the pytest configuration"
            )
        if str(self.root) not in sys.path:
            sys.path.insert(0, str(self.root))
        place, call = self._parsed()
        self._find_in_src(place)
        target = import_app(place, self.beginning)
        if call is not None:
            return self._made(target, place, *call)
        if not is_class(target) and callable(target) and accepts(target) and not accepts(target, {}, None, None):
            return self._made(target, place, [], {})
        return checked_app(target, f"{self.beginning}, and that is {shown(target)}", self.remedy)

    remedy = (
        "name the ASGI app itself, a factory without parameters, or a call such as 'package.module:create_app(\"a\")'"
    )

    @property
    def beginning(self) -> str:
        """The reference with its source, as messages begin."""
        return f"{self.where} is {self.reference!r}"

    def _find_in_src(self, place: str) -> None:
        """Make a package importable that the project keeps in `src`, unless it is importable already."""
        top, source = place.partition(":")[0].partition(".")[0], self.root / "src"
        there = (source / top).is_dir() or (source / f"{top}.py").is_file()
        if top and there and top not in sys.modules and find_spec(top) is None:
            sys.path.insert(0, str(source))

    def _parsed(self) -> tuple[str, tuple[list[Any], dict[str, Any]] | None]:
        """Return the place of the object, and the arguments of its call; None if the reference is no call."""
        if "(" not in self.reference:
            return self.reference, None
        place, _, rest = self.reference.partition("(")
        try:
            call = ast.parse(f"call({rest}", mode="eval").body
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
                raise ValueError("there is something behind the call")
            if any(keyword.arg is None for keyword in call.keywords):
                raise ValueError("** is not a literal")
            arguments = [_literal(argument) for argument in call.args]
            keywords = {str(keyword.arg): _literal(keyword.value) for keyword in call.keywords}
        except (SyntaxError, TypeError, ValueError) as error:
            raise AppError(
                f'{self.beginning}, whose call cannot be read: {error}; write \'package.module:create_app("test",'
                f" debug=True)', where each argument is a literal: a str, a number, True, False, None, or a list,"
                f" tuple, dict or set of them"
            ) from None
        return place, (arguments, keywords)

    def _made(self, factory: object, place: str, arguments: list[Any], keywords: dict[str, Any]) -> ASGIApp:
        """Call the factory and return the app that it makes."""
        if not callable(factory):
            raise AppError(
                f"{self.beginning}, but {place!r} is {shown(factory)}, which cannot be called; leave out the brackets"
            )
        try:
            made = factory(*arguments, **keywords)
        except (Exception, SystemExit) as error:
            raise AppError(f"{self.beginning}, but the factory {_how_ended(error)}; correct the call") from error
        if type(made) is CoroutineType:
            made.close()
            raise AppError(
                f"{self.beginning}, but the factory is `async def`; define a fixture mw_budget_app that awaits it, or a"
                f" factory that is not"
            )
        call = self.reference if "(" in self.reference else f"{self.reference}()"
        self.note = f"The app is what {call} returned."
        return checked_app(made, f"{self.beginning}, and that returned {shown(made)}", self.remedy)


def _literal(node: ast.expr) -> Any:
    """Return the value of a literal. Raises ValueError, which shows the source, for anything else."""
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise ValueError(f"{ast.unparse(node)} is no literal") from None


def import_app(reference: str, beginning: str) -> object:
    """Import the object at `package.module:attribute`.

    Raises AppError, which begins with `beginning`, when that fails.
    """
    place, colon, path = reference.partition(":")
    if not (place and colon and path):
        raise AppError(f"{beginning}; write 'package.module:app'")
    try:
        target: object = importlib.import_module(place)
    except (Exception, SystemExit) as error:
        missing = isinstance(error, ModuleNotFoundError) and f"{place}.".startswith(f"{error.name}.")
        remedy = (
            "correct the module's name, or make it importable from the directory in which this runs: install the"
            " project, or set PYTHONPATH; under pytest its setting `pythonpath` helps too"
            if missing
            else "correct the module, or what it needs to be imported"
        )
        raise AppError(f"{beginning}, but importing {place!r} {_how_ended(error)}; {remedy}") from error
    for name in path.split("."):
        try:
            target = getattr(target, name)
        except AttributeError:
            names = [known for known in dir(target) if not known.startswith("_")]
            raise AppError(
                f"{beginning}, but {place!r} has no {name!r}.{near_miss(name, names)} The names that it has are:"
                f" {', '.join(names) or 'none'}"
            ) from None
        except Exception as error:
            raise AppError(f"{beginning}, but getting {name!r} of {place!r} {_how_ended(error)}") from error
        place = f"{place}.{name}"
    return target


def _how_ended(error: BaseException) -> str:
    """Say with which exception the user's code ended, and where."""
    # Without the frame of this module, and without the import system.
    frames = traceback.extract_tb(error.__traceback__)[1:]
    frames = [frame for frame in frames if not frame.filename.startswith(("<", str(importlib.__file__)))]
    where = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    if isinstance(error, SystemExit):
        return f"called sys.exit({'' if error.code is None else repr(error.code)}){where}"
    return f"failed with {described(error)}{where}"


def checked_app(
    app: object,
    beginning: str = "",
    remedy: str = "return the ASGI app itself from the fixture mw_budget_app, or name it in the setting mw_budget_app",
) -> ASGIApp:
    """Return `app`, or the app that it names. Raises AppError when this cannot be an ASGI 3 app.

    The message begins with `beginning`, by default with what the app is, and ends with `remedy`.
    """
    if type(app) is NamedApp:
        return app.load()
    beginning = beginning or f"the app under test is {shown(app)}"
    if not callable(app) or is_class(app):
        raise AppError(f"{beginning}, which is not an ASGI app; {remedy}")
    if not accepts(app, {}, None, None):
        factory = ", it looks like a factory; call it in the fixture" if accepts(app) else ""
        raise AppError(f"{beginning}, which does not take (scope, receive, send){factory}; {remedy}")
    return app
