"""Which of the objects that a counting run saw created are still alive: what is reachable after a garbage collection.

Not what has not been reported as destroyed: CPython does not report every destruction (3.13 before 3.13.3, and 3.14).
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from typing import Any

from ..model.stack import Owner
from .python_core import Birth, PythonCore

SOMETIMES_TRACKED = {tuple, dict}


def retained(core: PythonCore, periods: int, aside: Owner, *, classes: bool) -> list[dict[Owner, Counter[type]]]:
    """Return what was created in each of the periods 0 to `periods` - 1 and is alive now, by owner and type.

    Nothing of the owner `aside`, whose objects are those of the counting itself. `classes` says that there are classes
    among what was created. An address that is used again counts for its new object, so what is created until the
    snapshot gets a period of its own.
    """
    core.period(periods)
    # The collector slept while requests were counted, so what was created is young. Only what is still there may hang
    # on older garbage, and is worth the time that a collection of the whole heap takes.
    gc.collect(0)
    if not any(_alive(core, periods, aside)):  # not kept: it holds classes
        return [{} for _ in range(periods)]
    core.period(periods)
    gc.collect()
    if classes:
        core.take()  # it holds the class of what it remembers; now that the instances are gone, it lets go of it
        gc.collect()
    return _alive(core, periods, aside)


def _alive(core: PythonCore, periods: int, aside: Owner) -> list[dict[Owner, Counter[type]]]:
    # What the collector does not track (numbers, texts) is held by something that it does track.
    holders = gc.get_objects()
    core.period(-1)
    births: dict[int, Birth] = {}
    for objects in reachable(holders):
        births |= core.born(objects)
    found: list[dict[Owner, Counter[type]]] = [{} for _ in range(periods)]
    for period, owner, kind in births.values():
        if period < periods and owner != aside:
            found[period].setdefault(owner, Counter())[kind] += 1
    return found


def reachable(holders: list[Any]) -> Iterator[list[Any]]:
    """Yield the objects, with repetitions, what they refer to, and what is inside containers among that.

    The collector stops tracking tuples and dicts in which nothing could be part of a cycle. Each of these is looked
    into once: nested containers that share their parts have more paths than memory has room for.
    """
    containers: dict[int, Any] = {}
    objects = inside = holders
    while inside:
        yield objects
        objects = gc.get_referents(*inside)
        untracked = {id(one): one for one in objects if type(one) in SOMETIMES_TRACKED and not gc.is_tracked(one)}
        inside = [one for key, one in untracked.items() if key not in containers]
        containers |= untracked
    yield objects
