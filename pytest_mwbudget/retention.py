"""Which of the objects that a ledger saw created are still alive: what is reachable after a garbage collection.

Not what has not been reported as destroyed: CPython does not report every destruction (3.13 before 3.13.3, and 3.14).
"""

from __future__ import annotations

import gc
from collections import Counter

from .counters import Core, Owner

# Containers that the collector stops tracking when nothing in them could be part of a cycle.
UNTRACKED = (tuple, dict)


def retained(core: Core, periods: int) -> list[dict[Owner, Counter[type]]]:
    """What was created in each of the periods 0 to `periods` - 1 of the ledger and is alive now, by owner and type.

    An address that is used again counts for its new object, so what is created until the snapshot gets a period of
    its own.
    """
    core.period(periods)
    gc.collect()
    core.take()  # it lets go of classes that were made for one request
    gc.collect()
    holders = gc.get_objects()
    core.period(-1)
    alive = set(map(id, holders))
    while holders:
        # What the collector does not track (numbers, texts, tuples of such) is held by something that it does track.
        held = gc.get_referents(*holders)
        alive.update(map(id, held))
        holders = list({id(one): one for one in held if type(one) in UNTRACKED and not gc.is_tracked(one)}.values())
    found: list[dict[Owner, Counter[type]]] = [{} for _ in range(periods)]
    for period, owner, kind in core.born(alive):
        if period < periods:
            found[period].setdefault(owner, Counter())[kind] += 1
    return found
