"""Garbage collection under load: switched on, and timed."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..interpreter.clocks import Clock
from ..model.estimate import Nanoseconds


class Collecting:
    """A callback of `gc.callbacks` that adds up the time of garbage collection."""

    def __init__(self, clock: Clock) -> None:
        self.ns: Nanoseconds = 0
        self._clock = clock
        self._begin_ns = 0

    def __call__(self, phase: str, info: dict[str, Any]) -> None:
        """Note the begin of a collection, or add its time."""
        if phase == "start":
            self._begin_ns = self._clock()
        else:
            self.ns += self._clock() - self._begin_ns


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
