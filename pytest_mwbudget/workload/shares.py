"""Which requests to time when there is not enough time for all. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ..model.estimate import Seconds
from ..model.results import Result


def most_useful_first(results: Mapping[int, Result]) -> list[int]:
    """Return the places of the results: first one of each stack, then those with most objects.

    One request of a stack shows most of what all of them would.
    """
    seen: set[tuple[str, ...]] = set()
    first: list[int] = []
    others: list[int] = []
    for place in sorted(results, key=lambda place: -_objects(results[place])):
        layers = tuple(report.layer.qualname for report in results[place].layers if report.layer.entered)
        (others if layers in seen else first).append(place)
        seen.add(layers)
    return [*first, *others]


def fitting(places: Sequence[int], needed_s: Mapping[int, Seconds], left_s: Seconds) -> Sequence[int]:
    """Return as many of the first places as fit into the time, each with the time that it needs at least.

    A place that needs more than the time left is skipped; later places may still fit.
    """

    def chosen() -> Iterator[int]:
        rest_s = left_s
        for place in places:
            if needed_s[place] <= rest_s:
                rest_s -= needed_s[place]
                yield place

    return list(chosen())


def _objects(result: Result) -> int:
    """Return the objects of the whole request; 0 where they are not counted."""
    counts = result.total.counts
    return counts.objects.count if counts and counts.objects else 0
