"""The types of the objects of rows that kept their limits, in pytest's cache: a broken limit lists what is new.

The file of limits has only their number, so that its diff can be read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, TypeAlias

import pytest

from ...model.request_keys import RequestKey
from ...model.results import Result

KEY = "mw-budget/objects"
# A row is named by section, test, request and row.
PARTS = 4
# The number of objects by type.
Kinds: TypeAlias = Mapping[str, int]
# By section, test, request and row.
KeptObjects: TypeAlias = Mapping[str, Kinds]


def kept_objects(config: pytest.Config) -> KeptObjects:
    """Read what earlier runs remembered; nothing without a cache, or if another program wrote it."""
    stored: Any = config.cache.get(KEY, None) if getattr(config, "cache", None) else None
    if not isinstance(stored, dict):
        return {}
    return {place: kinds for place, kinds in stored.items() if place.count("\n") >= PARTS - 1 and _are_kinds(kinds)}


def _are_kinds(kinds: object) -> bool:
    return isinstance(kinds, dict) and all(isinstance(number, int) for number in kinds.values())


def remember(
    config: pytest.Config,
    kept: Iterable[tuple[str, RequestKey, Result]],
    tests: Collection[str],
) -> None:
    """Store the types of requests that kept their limits, each with its section; forget those of other `tests`."""
    if not getattr(config, "cache", None):
        return
    stored = {place: kinds for place, kinds in kept_objects(config).items() if place.split("\n")[1] in tests}
    for section, key, result in kept:
        for row in result.rows():
            if row.counts is not None and row.counts.objects is not None:
                stored[place_of(section, key, row.name)] = dict(row.counts.objects.kinds)
    config.cache.set(KEY, stored)


def place_of(section: str, key: RequestKey, row: str) -> str:
    """Return the key of a row in the cache."""
    return "\n".join((section, *key, row))


def new_objects(now: Kinds, before: Kinds | None) -> dict[str, int]:
    """Return how many more objects of each type a row creates than before; empty if `before` is not known."""
    if before is None:
        return {}
    more = {kind: number - before.get(kind, 0) for kind, number in now.items()}
    return {kind: number for kind, number in more.items() if number > 0}
