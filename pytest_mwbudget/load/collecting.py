"""Garbage collection under load: switched on, and timed."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any

from ..interpreter.clocks import Clock
from ..model.estimate import Nanoseconds

# The generation of a full collection.
FULL = 2


class Collecting:
    """A callback of `gc.callbacks` that adds up the time of garbage collection in the thread that made it.

    `full_ns` is the part of `ns` of full collections, `collections` is the number of all.
    """

    def __init__(self, clock: Clock) -> None:
        self.ns: Nanoseconds = 0
        self.full_ns: Nanoseconds = 0
        self.collections = 0
        self._clock = clock
        self._begin_ns = 0
        self._thread = get_ident()

    def __call__(self, phase: str, info: dict[str, Any]) -> None:
        """Note the begin of a collection, or add its time."""
        if get_ident() != self._thread:
            return
        if phase == "start":
            self._begin_ns = self._clock()
            return
        taken_ns = self._clock() - self._begin_ns
        self.ns += taken_ns
        self.full_ns += taken_ns * (info["generation"] == FULL)
        self.collections += 1


@contextmanager
def collecting(clock: Clock) -> Iterator[Collecting]:
    """Collect garbage in the block, as a server does, and time it."""
    timed, before = Collecting(clock), gc.isenabled()
    gc.callbacks.append(timed)
    gc.enable()
    try:
        yield timed
    finally:
        gc.callbacks.remove(timed)
        if not before:
            gc.disable()
