"""Find the objects created during a counting run that are still alive: reachable after a garbage collection.

Reports of destruction do not tell: CPython leaves some out (3.13 before 3.13.3, and 3.14).
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from typing import Any

from ..asgi.naming import type_name
from ..model.stack import Owner
from .python_core import Birth, PythonCore


def retained(core: PythonCore, periods: int, aside: Owner, *, classes: bool) -> list[dict[Owner, Counter[str]]]:
    """Return the living objects that were created in each of the periods 0 to `periods` - 1, by owner and type name.

    The objects of the owner `aside` are those of the counting itself, and left out. `classes` says that classes were
    created too. Objects made from here to the snapshot get a period of their own, because they may take the address of
    an earlier object.
    """
    core.period(periods)
    # The collector was off while requests were counted, so their objects are young. A collection of the whole heap
    # takes long, and is only needed for objects that older garbage may refer to.
    gc.collect(0)
    if not any(_alive(core, periods, aside)):  # not kept: it holds classes
        return [{} for _ in range(periods)]
    core.period(periods)
    gc.collect()
    if classes:
        core.take()  # releases the classes whose instances are gone
        gc.collect()
    return _alive(core, periods, aside)


def _alive(core: PythonCore, periods: int, aside: Owner) -> list[dict[Owner, Counter[str]]]:
    # Objects that the collector does not track, such as numbers and strings, are referred to by objects that it tracks.
    holders = gc.get_objects()
    core.period(-1)
    births: dict[int, Birth] = {}
    for objects in reachable(core, holders):
        births |= core.born(objects)
    alive: list[dict[Owner, Counter[str]]] = [{} for _ in range(periods)]
    for period, owner, kind in births.values():
        if period < periods and owner != aside:
            alive[period].setdefault(owner, Counter())[type_name(kind)] += 1
    return alive


def reachable(core: PythonCore, holders: list[Any]) -> Iterator[list[Any]]:
    """Yield the holders, the objects they refer to, and the contents of `untracked` containers, with repetitions.

    The collector stops tracking tuples and dicts in which nothing could be part of a cycle. Each of these is looked
    into once: nested containers that share their parts have more paths than memory has room for.
    """
    containers: dict[int, Any] = {}
    objects = inside = holders
    while inside:
        yield objects
        objects = gc.get_referents(*inside)
        untracked = {id(container): container for container in core.untracked(objects)}
        inside = [container for key, container in untracked.items() if key not in containers]
        containers |= untracked
    yield objects
