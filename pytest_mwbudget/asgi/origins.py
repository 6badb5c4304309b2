"""Say whose code a layer is: the project's own, or that of an installed distribution."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from email import message_from_string
from pathlib import PurePath
from types import CodeType, MethodType

from ..interpreter.files import REAL
from ..interpreter.identity import class_name
from ..model.places import is_own, site_of
from ..model.stack import Origin
from .callables import functions_behind, held_values, is_function, static_dict


def origin_of(callee: object) -> Origin:
    """Return the origin of a layer. A layer made of a function comes from where the function does."""
    made_of = callee if is_function(callee) else dispatch_of(callee)
    if made_of is None:
        return origin_of_class(type(callee))
    function = next(functions_behind(made_of), None)
    code = made_of if function is None else function.__code__
    if type(code) is not CodeType:  # an object that is called
        return origin_of_class(type(made_of))
    name = code.co_qualname
    if function is not None:
        name = f"{function.__globals__.get('__name__', '?')}.{name}"
    return Origin(_distribution(code.co_filename), name, _short(code.co_filename), code.co_firstlineno)


def origin_of_class(cls: type) -> Origin:
    """Return the origin of a class."""
    file = static_dict(sys.modules.get(class_name(cls)[0])).get("__file__")
    return Origin(_distribution(file if type(file) is str else ""))


def dispatch_of(callee: object) -> object | None:
    """Return what was given to a BaseHTTPMiddleware to dispatch, None when a method of its own dispatches."""
    dispatch = static_dict(callee).get("dispatch_func")
    own = type(dispatch) is MethodType and dispatch.__self__ is callee
    copied = dispatch is not None and any(
        static_dict(inner).get("dispatch_func") is dispatch for inner in held_values(callee)
    )
    if own or copied:
        return None
    return dispatch.func if type(dispatch) is functools.partial else dispatch


def _short(file: str) -> str:
    """Return a file below the working directory relative to it, any other file as it is."""
    try:
        return file.removeprefix(f"{REAL.os.getcwd()}{os.sep}")
    except OSError:  # the test has removed it
        return file


# ---- distributions --------------------------------------------------------------------------------------------------


@functools.cache
def _distribution(file: str) -> str | None:
    """Return the name of the distribution that installed a file, None for a file of the project.

    Code that was typed or generated belongs to the project. Without a record of installed files, the name is that of
    the package that is imported.
    """
    if not file.endswith(".py") or is_own(file):
        return None
    site = site_of(file)
    if site is None:
        return "Python"
    inside = PurePath(file).relative_to(site)
    return next(_installers(str(site), inside.as_posix()), inside.parts[0].removesuffix(".py"))


def _installers(site: str, path: str) -> Iterator[str]:
    """Yield the names of the distributions whose record has the path. Several share a namespace package."""
    # Not by `importlib.metadata`, which reads the files of a fake file system.
    for name in REAL.os.listdir(site) if REAL.os.path.isdir(site) else ():
        record = _text(f"{site}/{name}/RECORD") if name.endswith(".dist-info") else ""
        if f"\n{path}," in f"\n{record}":
            yield message_from_string(_text(f"{site}/{name}/METADATA"))["Name"]


def _text(file: str) -> str:
    """Return the text of a file, empty if it cannot be read."""
    with suppress(OSError), REAL.open(file, encoding="utf-8") as lines:
        text: str = lines.read()
        return text
    return ""
