"""Estimate what leaving a layer out saves, from whole requests with every layer and without one. Pure; no clock."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import TypeAlias

from ..model.estimate import Estimate, Microseconds
from ..model.saves import Saves
from ..model.stack import EntryIndex
from .calibration import US_PER_NS
from .estimates import ALPHA, method_us
from .intervals import quickest, quiet_limit
from .paired import paired
from .samples import QUIET_PAIR, Series
from .slowdown import slowdown

# The rounds are divided into about this many groups. The typical requests of a group are compared.
GROUPS = 24
# A group counts if at least this many of its requests with the layer, and as many without it, are quick.
FEWEST_OF_GROUP = 3

# Leaving a layer out may save up to this many times its own time, and this much more: the layer leaves cold caches and
# takes turns of the event loop. Above that, the app does something else without the layer.
MOST_TIMES, MOST_US = 5.0, 20.0

FEW = "there were too few requests in quiet moments"

# The nanoseconds of a block of requests without each layer, by its entry, and of one with every layer, by None.
Round: TypeAlias = Mapping[EntryIndex | None, Series]


def savings(
    rounds: Sequence[Round], layers: Mapping[EntryIndex, bool], whole_us: Microseconds, quick_ns: float
) -> dict[EntryIndex, Saves]:
    """Return what leaving out each of these layers saves in a request of `whole_us`.

    `layers` says of each whether it runs what is inside it in a task of its own. The reference workload took `quick_ns`
    in the quickest moments in which the rows were read. The intervals of all layers hold jointly at `1 - ALPHA`. There
    is one look.
    """
    references = [ns for blocks in rounds for series in blocks.values() for ns in series.reference]
    limit = quiet_limit(references, QUIET_PAIR, min(quick_ns, quickest(references)))
    groups = [*_groups(rounds)]
    saves_of = {}
    for index, runs_task in layers.items():
        saves = _saves(_differences(groups, index, limit), quick_ns, ALPHA / len(layers))
        if saves.us is not None:
            saves = Saves(saves.us.widened(method_us(saves.us.estimate, whole_us, suspends=runs_task)))
        saves_of[index] = saves
    return saves_of


def _groups(rounds: Sequence[Round]) -> Iterator[Sequence[Round]]:
    """Yield groups of consecutive rounds, so long that neighbouring groups are independent."""
    size = max(1, len(rounds) // GROUPS)
    for start in range(0, len(rounds) - size + 1, size):
        yield rounds[start : start + size]


def _differences(groups: Iterable[Sequence[Round]], index: EntryIndex, limit: float) -> Series:
    """Return for each group how much longer the typical request takes with the layer, in quiet moments."""
    differences = Series()
    for group in groups:
        present, absent = _quiet(group, None, limit), _quiet(group, index, limit)
        if min(len(present.values), len(absent.values)) >= FEWEST_OF_GROUP:
            saved_ns = median(present.values) - median(absent.values)
            differences.add(saved_ns, median([*present.reference, *absent.reference]))
    return differences


def _quiet(group: Iterable[Round], arm: EntryIndex | None, limit: float) -> Series:
    kept = Series()
    for blocks in group:
        for ns, reference in zip(blocks[arm].values, blocks[arm].reference, strict=True) if arm in blocks else ():
            if reference <= limit:
                kept.add(ns, reference)
    return kept


def _saves(differences: Series, quick_ns: float, alpha: float) -> Saves:
    if not differences.values:
        return Saves(None, FEW)
    us = paired(differences.values, alpha) * US_PER_NS
    if not us.bounded:
        return Saves(None, FEW)
    slow = slowdown(differences.reference, quick_ns)
    if slow > 1:
        return Saves(None, f"the machine ran {slow:.2f} times slower than for the rows")
    return Saves(us)


def takes_another_way(saved: Estimate, own: Estimate | None) -> bool:
    """Return whether an app does something else without a layer, such as less for a client that is not logged in.

    Leaving the layer out then saves far more than the layer's own time explains.
    """
    if own is None or not (saved.bounded and own.bounded):
        return False
    return saved.low > MOST_TIMES * max(0.0, own.high) + MOST_US


def other_way(saved: Estimate, own: Estimate | None) -> Saves | None:
    """Return the reason why the saving of a layer is unknown, None if the app does the same without the layer."""
    if own is None or not takes_another_way(saved, own):
        return None
    return Saves(None, f"the app takes another way without it: {saved.estimate:.0f} µs less, not {own.estimate:.0f}")
