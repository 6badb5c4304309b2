"""A time limit that many requests share, and which of them to time when there is not enough time for all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

from ..interpreter.clocks import perf_counter
from ..model.estimate import Seconds
from ..model.results import Result, Turn
from ..timing.looks import NS_PER_S
from ..timing.schedule import Schedule

# A request is timed for at least this long, warming up included, or not at all.
LEAST_S: Seconds = 0.15
# The share of a request's time for warming up.
WARM_SHARE = 0.2


class TimeBudget:
    """A time limit of `limit_s`, which does not include waits for the turns of measurements.

    All waits together are as long as the limit at most: a run beside another one that measures would wait at each
    request.
    """

    def __init__(self, limit_s: Seconds, clock: Callable[[], Seconds] = perf_counter) -> None:
        self.limit_s = limit_s
        self.waited_s: Seconds = 0.0
        self._clock = clock
        self._begin_s = clock()

    @property
    def spent_s(self) -> Seconds:
        """The time since this object was made, without waits."""
        return self._clock() - self._begin_s - self.waited_s

    @property
    def left_s(self) -> Seconds:
        """The time that is left, below 0 when it is over."""
        return self.limit_s - self.spent_s

    @contextmanager
    def turn(
        self, turns: Callable[[Seconds], AbstractContextManager[Turn]], wait_s: Seconds = float("inf")
    ) -> Iterator[Turn]:
        """Wait for a turn, for at most `wait_s`, and end it after the block."""
        begin_s = self._clock()
        with turns(max(0.0, min(wait_s, self.limit_s - self.waited_s))) as turn:
            self.waited_s += self._clock() - begin_s
            yield turn


def sampled_s(seconds: Seconds) -> Seconds:
    """Return how long a request is sampled in its time, of which warming up takes a part."""
    return seconds * (1 - WARM_SHARE)


def warming(schedule: Schedule, seconds: Seconds) -> Schedule:
    """Return the schedule for a request that is timed for `seconds`."""
    return replace(schedule, warm_ns=min(schedule.warm_ns, round(WARM_SHARE * seconds * NS_PER_S)))


def most_useful_first(results: Mapping[int, Result]) -> list[int]:
    """Return the places of the results: first one of each stack, then those with most objects.

    One request of a stack shows most of what all of them would.
    """
    seen: set[tuple[str, ...]] = set()
    first: list[int] = []
    others: list[int] = []
    for place in sorted(results, key=lambda place: -_objects(results[place])):
        layers = tuple(report.layer.qualname for report in results[place].layers if report.layer.entered)
        (others if layers in seen else first).append(place)
        seen.add(layers)
    return [*first, *others]


def fitting(places: Sequence[int], needed_s: Mapping[int, Seconds], left_s: Seconds) -> Sequence[int]:
    """Return as many of the first places as fit into the time, each with the time that it needs at least.

    A place that needs more than the time left is skipped; later places may still fit.
    """

    def chosen() -> Iterator[int]:
        rest_s = left_s
        for place in places:
            if needed_s[place] <= rest_s:
                rest_s -= needed_s[place]
                yield place

    return list(chosen())


def _objects(result: Result) -> int:
    """Return the objects of the whole request; 0 where they are not counted."""
    counts = result.total.counts
    return counts.objects.count if counts and counts.objects else 0
