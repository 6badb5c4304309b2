"""The order of a test's `mw_budget` markers: which one is closest to it, as docs/reference/marker.md has it.

What a hook adds to the item while tests are collected comes after the decorators of the function, or before them with
`append=False`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

NAME = "mw_budget"

_at_start: pytest.StashKey[tuple[pytest.Mark, ...]] = pytest.StashKey()


def note_start(item: pytest.Item) -> None:
    """Note the markers of a test before it runs: markers added later are closer."""
    # A test that is run again still has the markers that were added in its first run.
    item.stash.setdefault(_at_start, tuple(item.own_markers))


def closest_first(item: pytest.Item) -> Iterator[pytest.Mark]:
    """Yield all `mw_budget` markers of a test, the closest first."""
    for node in reversed(item.listchain()):
        markers = _of_item(item) if node is item else _of_collector(node)
        yield from (marker for marker in markers if marker.name == NAME)


def _of_item(item: pytest.Item) -> list[pytest.Mark]:
    before = item.stash.get(_at_start, tuple(item.own_markers))
    added = [marker for marker in reversed(item.own_markers) if not _among(marker, before)]
    # pytest lists the markers of the parameter set after those of the function.
    callspec = getattr(item, "callspec", None)
    parameters = callspec.marks if callspec is not None else ()
    return added + sorted(before, key=lambda marker: not _among(marker, parameters))


def _of_collector(node: Any) -> list[pytest.Mark]:
    """Return the markers of a collector; those of a class in the order of the MRO, which pytest lists in reverse."""
    own: list[pytest.Mark] = node.own_markers
    if not isinstance(node, pytest.Class):
        return own
    owned = [_listed(vars(base).get("pytestmark", ())) for base in node.obj.__mro__]
    return sorted(
        own,
        key=lambda marker: next((depth for depth, markers in enumerate(owned) if _among(marker, markers)), len(owned)),
    )


def _listed(pytestmark: object) -> Sequence[object]:
    """List the markers of a `pytestmark`, which is a marker or a list of them; class decorators are in it too."""
    several = pytestmark if isinstance(pytestmark, (list, tuple)) else (pytestmark,)
    return [getattr(marker, "mark", marker) for marker in several]


def _among(marker: pytest.Mark, markers: Sequence[object]) -> bool:
    """Whether the marker is in `markers` by identity."""
    return any(marker is member for member in markers)
