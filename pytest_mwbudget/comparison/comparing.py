"""Two runs, or two sets of runs: each request with its changes, and what grew by more than is allowed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from ..model.changes import Change
from ..model.results import Result
from ..model.stack import ENDPOINT, OUTSIDE, TOTAL
from .allowed import Allowed, Compared, Growth, judge_growth
from .changes import changes, comparable, differences
from .figures import figures_of, is_part
from .merging import Merged, Place


@dataclass(frozen=True, slots=True)
class Pair:
    """A request that both runs measured. `surroundings` names interpreter and loop of the later run."""

    nodeid: str
    request: str
    surroundings: str
    before: Result
    after: Result
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs of requests, or two sets of runs.

    `new` and `gone` are requests that only the later or only the earlier run measured, with the ids of their tests.
    `differences` names what the surroundings differ by, `repeated` which requests several files of one side have.
    """

    pairs: tuple[Pair, ...]
    new: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    differences: tuple[str, ...] = ()
    repeated: tuple[str, ...] = ()

    @property
    def changes(self) -> Iterator[tuple[Pair, Change]]:
        """All changes of all requests."""
        return ((pair, change) for pair in self.pairs for change in pair.changes)


def compare(before: Merged, after: Merged) -> Comparison:
    """Compare each request of the later runs with the same request of the earlier runs, in the order of the later."""
    pairs, new, runs = [], [], []
    for place, later in after.requests.items():
        earlier = before.like(place)
        if earlier is None:
            new.append(_name(place))
            continue
        runs.append((earlier.run, later.run))
        limits = comparable(earlier.run, later.run, earlier.result.loop, later.result.loop)
        changed = changes(figures_of(earlier.result), figures_of(later.result), limits)
        pairs.append(Pair(*place.key, place.surroundings, earlier.result, later.result, changed))
    return Comparison(
        tuple(pairs),
        tuple(new),
        tuple(_name(place) for place in before.requests if after.like(place) is None),
        tuple(dict.fromkeys(difference for earlier, later in runs for difference in differences(earlier, later))),
        (*before.repeated, *after.repeated),
    )


def _name(place: Place) -> str:
    return f"{place.key.nodeid} {place.key.request}"


@dataclass(frozen=True, slots=True)
class Offence:
    """A figure that certainly grew by more than is allowed: by more than `most`, which `growth` says."""

    pair: Pair
    change: Change
    quantity: Compared
    growth: Growth
    most: float


def offences(comparison: Comparison, allowed: Allowed) -> Iterator[Offence]:
    """Yield the figures whose whole interval of change is above what is allowed.

    A quantity of a layer is judged for every layer, `total_us` for the whole request. A layer that is new has not
    grown; it counts in `total_us`.
    """
    for pair, change in comparison.changes:
        quantity = _compared(change)
        growth = allowed.get(quantity) if quantity else None
        if quantity is None or growth is None or change.change is None or change.before is None:
            continue
        most = growth.most(change.before.high)
        if judge_growth(change.change, most) == "fail":
            yield Offence(pair, change, quantity, growth, most)


def _compared(change: Change) -> Compared | None:
    """Return the quantity as users allow growth for it, None for the rows that nobody budgets."""
    if change.row == TOTAL:
        return "total_us" if change.quantity == "us" else None
    no_layer = change.row in (OUTSIDE, ENDPOINT) or is_part(change.row)
    return None if no_layer else cast("Compared", change.quantity)


def unjudged(comparison: Comparison, allowed: Allowed) -> Iterator[tuple[Compared, str, int]]:
    """Yield a quantity that is allowed to grow only so far, why figures of it were not judged, and how many.

    The number is 0 if no run measured the quantity.
    """
    numbers: dict[tuple[Compared, str], int] = {}
    measured: set[Compared | None] = set()
    for _, change in comparison.changes:
        quantity = _compared(change)
        measured.add(quantity)
        if quantity in allowed and change.change is None and change.reason is not None:
            assert quantity is not None
            numbers[quantity, change.reason] = numbers.get((quantity, change.reason), 0) + 1
    yield from ((quantity, reason, number) for (quantity, reason), number in numbers.items())
    yield from ((quantity, "neither run measured it", 0) for quantity in allowed if quantity not in measured)
