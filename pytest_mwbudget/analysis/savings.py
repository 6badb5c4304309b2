"""Estimate what leaving a layer out saves, from whole requests with every layer and without one. Pure; no clock."""

from __future__ import annotations

from collections.abc import Mapping

from ..model.estimate import Microseconds
from ..model.saves import Saves
from ..model.stack import EntryIndex
from .calibration import interval
from .estimates import ALPHA, method_us
from .intervals import quickest
from .samples import Pairs
from .slowdown import slowdown

FEW = "there were too few requests in quiet moments"


def savings(pairs: Mapping[EntryIndex, Pairs], whole_us: Microseconds, quick_ns: float) -> dict[EntryIndex, Saves]:
    """Return what leaving out each layer saves in a request of `whole_us`.

    The reference workload took `quick_ns` in the quickest moments in which the rows were read. The intervals of all
    layers hold jointly at `1 - ALPHA`. There is one look.
    """
    return {index: _saves(one, whole_us, quick_ns, ALPHA / len(pairs)) for index, one in pairs.items()}


def _saves(pairs: Pairs, whole_us: Microseconds, quick_ns: float, alpha: float) -> Saves:
    saved = pairs.saved(min(quick_ns, quickest(pairs.reference)))
    us = interval(saved.values, alpha)
    if not us.bounded:
        return Saves(None, FEW)
    slow = slowdown(saved.reference, quick_ns)
    if slow > 1:
        return Saves(None, f"the machine ran {slow:.2f} times slower than for the rows")
    return Saves(us.widened(method_us(us.estimate, whole_us)))
