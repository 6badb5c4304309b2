"""The names of measured requests that stay the same from run to run. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from .results import Result


class RequestKey(NamedTuple):
    """The id of a test, and the name of one of its requests."""

    nodeid: str
    request: str


def keyed(measured: Iterable[tuple[str, Result]]) -> Iterator[tuple[RequestKey, Result]]:
    """Yield the results, each with its key, in order.

    `measured` has the results with the ids of their tests. The name of a request is its `label`; the second request of
    a test with the same label gets ` (2)` behind it, and so on.
    """
    seen: Counter[RequestKey] = Counter()
    for nodeid, result in measured:
        key = RequestKey(nodeid, result.label)
        seen[key] += 1
        number = seen[key]
        yield key if number == 1 else RequestKey(nodeid, f"{result.label} ({number})"), result
