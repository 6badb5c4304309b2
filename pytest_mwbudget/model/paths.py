"""Paths of values in records, as `occupation.busy.low`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any


@cache
def steps(path: str) -> Sequence[str]:
    """Return the names of fields, properties or keys on a path."""
    return path.split(".")


def at(record: Any, path: str) -> Any:
    """Return the value at a path, None if a record on the way is."""
    for step in steps(path):
        record = record.get(step) if isinstance(record, Mapping) else getattr(record, step)
        if record is None:
            return None
    return record
