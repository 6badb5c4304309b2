"""How long a turn of the event loop takes while other requests are under way."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ..interpreter.clocks import Clock
from ..model.estimate import Nanoseconds, Seconds

# The pause between two samples.
EVERY_S: Seconds = 0.002


@dataclass(slots=True)
class Turns:
    """The total time and number of sampled turns."""

    total_ns: Nanoseconds = 0
    count: int = 0

    @property
    def mean_us(self) -> float:
        """The mean, infinite without a sample: then no wait is too long for the turns."""
        return self.total_ns / self.count / 1000 if self.count else math.inf


@contextmanager
def sampled_turns(clock: Clock) -> Iterator[Turns]:
    """Sample in the block how long a callback waits that is ready to run."""
    figures, loop = Turns(), asyncio.get_running_loop()
    timer: asyncio.TimerHandle

    def begin() -> None:
        loop.call_soon(end, clock())

    def end(begin_ns: Nanoseconds) -> None:
        nonlocal timer
        figures.total_ns += clock() - begin_ns
        figures.count += 1
        if not over:
            timer = loop.call_later(EVERY_S, begin)

    over = False
    timer = loop.call_later(EVERY_S, begin)
    try:
        yield figures
    finally:
        over = True
        timer.cancel()
