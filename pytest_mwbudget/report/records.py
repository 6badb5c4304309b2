"""Records from plain data: what `dataclasses.asdict` and JSON made of them, by the types of their fields."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from ..model.estimate import Estimate

Record = TypeVar("Record")


def record(kind: type[Record], data: Mapping[str, Any]) -> Record:
    """Return a record of this kind. Other keys of `data` are derived from it; fields without a key have their default.

    Raises KeyError, TypeError or ValueError if the data are of something else.
    """
    if kind is Estimate:
        return cast("Record", estimate(data))
    known = _hints(cast("Any", kind))
    return kind(**{name: _value(hint, data[name]) for name, hint, required in known if required or name in data})


def estimate(data: Mapping[str, float | None]) -> Estimate:
    """Return a figure with its interval; JSON has null for an end that is infinite."""
    unknown = {"estimate": 0.0, "low": -math.inf, "high": math.inf}
    return Estimate(**{name: none if data[name] is None else data[name] for name, none in unknown.items()})  # type: ignore[arg-type]


@cache
def _hints(kind: Any) -> list[tuple[str, Any, bool]]:
    """Return the fields of a record, with the types of their values and whether they have no default."""
    hints = get_type_hints(kind)
    return [
        (field.name, hints[field.name], field.default is MISSING and field.default_factory is MISSING)
        for field in fields(kind)
    ]


def _value(hint: Any, data: Any) -> Any:
    """Return the value of a field. JSON has lists for tuples, and text for keys that are numbers."""
    origin, arguments = get_origin(hint), get_args(hint)
    if data is None:
        return None
    if origin in (Union, UnionType):
        return _value(next(kind for kind in arguments if kind is not NoneType), data)
    if origin is tuple:
        return tuple(_value(arguments[0], plain) for plain in data)
    if origin is Mapping:
        key, value = arguments
        return {int(name) if key is int else name: _value(value, plain) for name, plain in data.items()}
    return record(hint, data) if isinstance(hint, type) and is_dataclass(hint) else data
