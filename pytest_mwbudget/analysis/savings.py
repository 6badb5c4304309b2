"""Estimate what leaving a layer out saves, from whole requests with every layer and without one. Pure; no clock."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import TypeAlias

from ..model.estimate import Microseconds
from ..model.saves import Saves
from ..model.stack import EntryIndex
from .calibration import US_PER_NS
from .estimates import ALPHA, method_us
from .intervals import quickest, quiet_limit
from .paired import FEWEST_PAIRS, paired
from .samples import QUIET_PAIR, Series
from .slowdown import slowdown

# The rounds are divided into about this many groups. The typical requests of a group are compared.
GROUPS = 24
# A group counts if at least this many of its requests with the layer, and as many without it, are quick.
FEWEST_OF_GROUP = 3

FEW = "there were too few requests in quiet moments"

# The layer that is left out of a block of requests, or TOGETHER; None for a block with every layer.
Arm: TypeAlias = EntryIndex | None
# The arm without all layers that are left out only together.
TOGETHER = EntryIndex(-1)
# The nanoseconds of each block of requests.
Round: TypeAlias = Sequence[tuple[Arm, Series]]


def savings(
    rounds: Sequence[Round], layers: Mapping[EntryIndex, bool], whole_us: Microseconds, quick_ns: float
) -> dict[EntryIndex, Saves]:
    """Return what leaving out each of these layers saves in a request of `whole_us`.

    `layers` says of each whether it runs what is inside it in a task of its own. The reference workload took `quick_ns`
    in the quickest moments in which the rows were read. The intervals of all layers hold jointly at `1 - ALPHA`. There
    is one look.
    """
    references = [ns for blocks in rounds for _, series in blocks for ns in series.reference]
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


def _quiet(group: Iterable[Round], arm: Arm, limit: float) -> Series:
    kept = Series()
    for series in (series for blocks in group for left_out, series in blocks if left_out == arm):
        for ns, reference in zip(series.values, series.reference, strict=True):
            if reference <= limit:
                kept.add(ns, reference)
    return kept


def _saves(differences: Series, quick_ns: float, alpha: float) -> Saves:
    if len(differences.values) < FEWEST_PAIRS:
        return Saves(None, FEW)
    us = paired(differences.values, alpha) * US_PER_NS
    slow = slowdown(differences.reference, quick_ns)
    if slow > 1:
        return Saves(None, f"the machine ran {slow:.2f} times slower than for the rows")
    return Saves(us)
