"""Time many requests with every layer in place, to see what grows with the requests served."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..analysis.event_log import Spent, spent
from ..interpreter.foreign_tools import garbage_collection_deferred
from .host_speed import reference_ns
from .probes import Probes
from .sampler import Deadline, TimedCall
from .schedule import Schedule


@dataclass(frozen=True, slots=True)
class Served:
    """Requests in their order: what each owner spent, and the time of the reference workload before each."""

    spent: list[Spent] = field(default_factory=list)
    reference: list[float] = field(default_factory=list)


async def served(probes: Probes, call: TimedCall, schedule: Schedule, deadline: Deadline) -> Served:
    """Make `Schedule.trend_requests` requests of the traced way, fewer at the deadline.

    No request skips a layer, and probes stay as they are: their cost is in every request and does not grow.
    """
    requests, ways = Served(), probes.stack.ways()
    with probes.installed([*probes.probed, *probes.stack.strays]):
        for _ in range(schedule.settle_calls):
            await call(probes.watch)
        while len(requests.spent) < schedule.trend_requests and not deadline.over():
            with garbage_collection_deferred():
                for _ in range(min(schedule.trend_leg, schedule.trend_requests - len(requests.spent))):
                    reference = reference_ns(probes.clock)
                    await call(probes.watch)
                    if ways.follow(probes.entered()):
                        requests.spent.append(spent(probes.read(), probes.owners))
                        requests.reference.append(reference)
                    if deadline.over():
                        break
    return requests
