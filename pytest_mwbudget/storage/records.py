"""Records as plain data for JSON, and back, by the types of their fields."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache, partial
from itertools import chain
from reprlib import repr as brief
from types import NoneType, UnionType
from typing import Any, Literal, TypeAlias, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from ..model.endpoint import EndpointReport
from ..model.paths import at, steps

Record = TypeVar("Record")
# The path of a value in a record, as `occupation.busy.low`; several paths for a list; an object. None for a value that
# comes from more than the record. A path may end with a property, which is only written.
Shape: TypeAlias = "str | tuple[str, ...] | Mapping[str, Shape] | None"
# Adds the fields of a record that are not written to those that are.
Completion: TypeAlias = Callable[[Mapping[str, Any]], Mapping[str, Any]]

# The types that JSON gives for a field of this type.
PLAIN: Mapping[Any, tuple[type, ...]] = {int: (int,), float: (int, float), bool: (bool,), str: (str,)}
# The largest number: an integer of JSON can be larger than any float.
MOST = sys.float_info.max
LIST: tuple[type, ...] = (list,)
OBJECT: tuple[type, ...] = (dict,)


class Values(dict[str, Any]):
    """The values of a record by field: plain ones, records, or the values of a record inside."""


class Records:
    """Converts records, which have the keys of their fields; those of `shapes` have others, each with its shape."""

    def __init__(self, shapes: Mapping[type, Mapping[str, Shape]], completed: Mapping[type, Completion]) -> None:
        self._shapes = shapes
        self._completed = completed
        self._readers: dict[type, Mapping[str, tuple[Callable[[Any], Any], bool]]] = {}

    def shape(self, kind: type) -> Mapping[str, Shape]:
        """Return the shape of a record by key; that of a subclass is that of its base."""
        shape = next((self._shapes[base] for base in kind.__mro__ if base in self._shapes), None)
        return {name: name for name in fields_of(kind)} if shape is None else shape

    # ---- write ---------------------------------------------------------------------------------------------------

    def plain(self, value: Any) -> Any:
        """Return records, and what contains them, in a form that JSON and UTF-8 can represent.

        A number that is not finite becomes null. Numbers of other classes, such as a budget that is a member of an
        enumeration, become plain ones. Keys become strings.
        """
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int):
            return int(value)
        if isinstance(value, float):
            return float(value) if math.isfinite(value) else None
        if isinstance(value, str):
            return writable(value)
        if is_record(type(value)):
            return {key: self._written(value, shape) for key, shape in self.shape(type(value)).items()}
        if isinstance(value, Mapping):
            return {self.plain(str(key)): self.plain(part) for key, part in value.items()}
        return [*map(self.plain, value)]

    def _written(self, record: Any, shape: Shape) -> Any:
        """Return the value of a key. A list or an object without any value is null."""
        if isinstance(shape, str):
            return self.plain(at(record, shape))
        if isinstance(shape, tuple):
            values = [at(record, path) for path in shape]
            return None if all(value is None for value in values) else self.plain(values)
        data = {key: self._written(record, part) for key, part in shape.items()} if shape else {}
        return None if all(value is None for value in data.values()) else data

    # ---- read ----------------------------------------------------------------------------------------------------

    def record(self, kind: type[Record], data: Mapping[str, Any]) -> Record:
        """Return a record. Raises KeyError, TypeError or ValueError if the data are of something else."""
        checked(OBJECT, data)
        shaped = any(base in self._shapes for base in kind.__mro__)
        # Most records have the keys of their fields, and are made without looking at paths.
        return self.made(kind, self.values(kind, data) if shaped else {key: data[key] for key in self.shape(kind)})

    def values(self, kind: type, data: Mapping[str, Any]) -> Values:
        """Return the plain values of a record, without those that are null."""
        values = Values()
        for path, value in _placed(self.shape(kind), data):
            *outer, name = steps(path)
            inside = values
            for step in outer:
                inside = inside.setdefault(step, Values())
            inside[name] = value
        return values

    def made(self, kind: type[Record], values: Mapping[str, Any]) -> Record:
        """Make a record of its values; a field without one is None, or has its default."""
        if kind not in self._readers:
            self._readers[kind] = {
                name: (self._reader(hint), none) for name, (hint, none) in fields_of(cast("Any", kind)).items()
            }
        known = {
            name: None if values.get(name) is None else read(values[name])
            for name, (read, nullable) in self._readers[kind].items()
            if nullable or values.get(name) is not None
        }
        return kind(**(self._completed[kind](known) if kind in self._completed else known))

    def _reader(self, hint: Any) -> Callable[[Any], Any]:
        """Return what reads a value of this type. JSON has lists for tuples, and text for keys that are numbers."""
        origin, arguments = get_origin(hint), get_args(hint)
        if hint in PLAIN:
            return partial(checked, PLAIN[hint])
        if origin is Literal:
            return partial(_word, arguments)
        if origin is tuple:
            return partial(_tuple, self._reader(arguments[0]), None if ... in arguments else len(arguments))
        if origin is Mapping:
            key, value = map(bare, arguments)
            return partial(_mapping, int if key is int else self._reader(key), self._reader(value))
        return partial(self._read, hint)

    def _read(self, kind: Any, data: Any) -> Any:
        if is_record(type(data)):
            return data
        return self.made(kind, data) if isinstance(data, Values) else self.record(kind, data)


def writable(text: str) -> str:
    """Return a text that UTF-8 can represent: lone surrogates, as in names of the app and paths, become escapes."""
    return text.encode(errors="backslashreplace").decode()


def is_record(kind: Any) -> bool:
    """Whether a type is that of records: a dataclass or a named tuple."""
    return is_dataclass(kind) or hasattr(kind, "_fields")


@cache
def fields_of(kind: Any) -> Mapping[str, tuple[Any, bool]]:
    """Return the fields of a record by name: the type of the value without None, and whether None is a value too."""
    hints = get_type_hints(kind, localns={"EndpointReport": EndpointReport})
    names = [field.name for field in fields(kind)] if is_dataclass(kind) else kind._fields
    return {name: (bare(hints[name]), NoneType in get_args(hints[name])) for name in names}


def bare(hint: Any) -> Any:
    """Return a type without None, and without the name that NewType gives it; several literals as one."""
    if get_origin(hint) in (Union, UnionType):
        first, *others = (kind for kind in get_args(hint) if kind is not NoneType)
        return Literal[*chain(*map(get_args, (first, *others)))] if others else bare(first)
    return getattr(hint, "__supertype__", hint)


def _placed(shape: Mapping[str, Shape], data: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the values that are not null, with their paths."""
    for key, part in shape.items():
        value = checked(OBJECT, data)[key]
        if isinstance(part, str):
            yield from [(part, value)] if value is not None else []
        elif isinstance(part, tuple):
            yield from zip(part, checked(LIST, value), strict=True) if value is not None else []
        elif part is not None and value is not None:
            yield from _placed(part, value)


def checked(types: tuple[type, ...], data: Any) -> Any:
    """Return a value that has one of the types, a text so that it can be written. Raises TypeError and ValueError."""
    if type(data) not in types:
        raise TypeError(f"{brief(data)} is not of type {types[-1].__name__}")
    if type(data) in PLAIN[float] and not -MOST <= data <= MOST:
        raise ValueError(f"{brief(data)} is not a finite number")
    return writable(data) if isinstance(data, str) else data


def _tuple(read: Callable[[Any], Any], length: int | None, data: Any) -> tuple[Any, ...]:
    """Read a list of this length, of any length if it is None. Parts that are records already are in a tuple."""
    parts = data if isinstance(data, tuple) else checked(LIST, data)
    if length is not None and len(parts) != length:
        raise ValueError(f"{brief(data)} has not {length} values")
    return tuple(map(read, parts))


def _mapping(read_key: Callable[[Any], Any], read: Callable[[Any], Any], data: Any) -> dict[Any, Any]:
    values = data if isinstance(data, Values) else checked(OBJECT, data)
    return {read_key(key): read(part) for key, part in values.items()}


def _word(words: tuple[str, ...], data: Any) -> Any:
    if data not in words:
        raise ValueError(f"{brief(data)} is none of {words}")
    return data
