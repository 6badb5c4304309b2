"""Find threads that work for a request and get their work in a way that is not followed.

An app may feed a thread through a queue of its own. What such a thread creates is in no row, so the rows that may have
caused the work are too low. A thread that works as much without a request, such as a heartbeat, does not count.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import TypeAlias

from ..interpreter import internals
from ..interpreter.clocks import perf_counter, sleep
from ..model.estimate import Seconds
from ..model.stack import Owner

# The number of events in each thread, by its ident.
Events: TypeAlias = Mapping[int, int]

# A thread that does this many times as much for requests as in a pause of the same length works for them.
MUCH_MORE = 2
LONGEST_PAUSE_S: Seconds = 1.0
# A thread may work in this many requests by chance.
BY_CHANCE = 2


@dataclass(frozen=True, slots=True)
class UnseenWork:
    """A thread that works for requests.

    `owners` wake the thread if `wakes` is set; otherwise it reports back to them. They are empty if none are known.
    """

    thread: str
    owners: frozenset[Owner]
    wakes: bool

    @property
    def why(self) -> str:
        """The reason why something cannot be counted."""
        if self.owners:
            tie = "is woken here" if self.wakes else "reports back here"
            return f"thread {self.thread} {tie}, and what it does is in no row"
        return f"thread {self.thread} works for the request, and it was not seen which layer gave it the work"


def unseen_work(
    requests: Sequence[Events],
    seconds: Seconds,
    others: Callable[[], Events],
    notified: Mapping[int, Collection[Owner]],
    answered: Mapping[int, Collection[Owner]],
) -> list[UnseenWork]:
    """Return the threads that worked for these requests, which took so many seconds together.

    `others` returns the events since its last call. `notified` has the owners that notified a `threading.Condition`, by
    its id, and `answered` those that a thread reports back to, by its ident. If a thread worked in the typical request,
    this function waits as long as the requests took.
    """
    if not _typical(requests, set().union(*requests)):
        return []
    others()
    begin = perf_counter()
    sleep(min(seconds, LONGEST_PAUSE_S))
    idle = others()
    threads = busier(requests, seconds, idle, perf_counter() - begin)
    if not _typical(requests, threads):
        return []
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = sys._current_frames()
    unseen = []
    for ident in sorted(threads):
        wakers = notified.get(internals.awaited_condition(frames.get(ident)), ())
        owners = frozenset(wakers or answered.get(ident, ()))
        unseen.append(UnseenWork(names.get(ident, f"number {ident}"), owners, bool(wakers)))
    return unseen


def reasons(all_unseen: Sequence[UnseenWork], every_owner: Sequence[Owner]) -> dict[Owner, str]:
    """Return by owner why something is not counted for it. Pure. A thread that any owner may cause is told last."""
    by_owner: dict[Owner, str] = {}
    for unseen in sorted(all_unseen, key=lambda thread: not thread.owners):
        by_owner = {**dict.fromkeys(unseen.owners or every_owner, unseen.why), **by_owner}
    return by_owner


def busier(requests: Sequence[Events], seconds: Seconds, idle: Events, idle_seconds: Seconds) -> set[int]:
    """Return the threads that do much more per second during the requests than in the pause. Pure.

    A thread that worked in a few requests only, such as a thread that ends, does not work for requests.
    """
    during: Counter[int] = Counter()
    for request in requests:
        during.update(request)
    return {
        ident
        for ident, events in during.items()
        if events * idle_seconds > MUCH_MORE * idle.get(ident, 0) * seconds
        and sum(request.get(ident, 0) > 0 for request in requests) > min(BY_CHANCE, len(requests) // 2)
    }


def _typical(requests: Sequence[Events], threads: Collection[int]) -> bool:
    """Whether any of the threads work in the typical request."""
    return median_low([sum(request.get(ident, 0) for ident in threads) for request in requests]) > 0
