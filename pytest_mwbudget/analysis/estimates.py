"""Estimate what each row takes, with intervals that hold jointly. Pure; no clock.

A probe costs what the null layer at its boundary takes, less the blank layers. A row contains the inside of its own
probe and the outside of its children's probes, so half of each null layer is subtracted (docs/decisions/0005).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TypeAlias

from ..model.estimate import ZERO, Estimate, Microseconds, independent_sum
from ..model.messages import Messages
from ..model.results import Frame
from ..model.stack import (
    HARNESS,
    NULL,
    OTHERS,
    OUTERMOST,
    UNOWNED,
    Boundary,
    EntryIndex,
    Owner,
    callers,
    first_part,
    owner_of,
    parts_of,
)
from .calibration import OWN_NULLS, US_PER_NS, ProbeCosts, handovers, interleaved, interval
from .core_sharing import slowed_by_caches, used_by_others
from .growth import course, grow
from .intervals import difference_interval, paces, spend
from .samples import Samples, Split
from .slowdown import NONE, Hops, Interruptions, slowdown, waited_ns

# The chance that any interval of a measurement misses its median, over all rows and all looks.
ALPHA = 0.01
# The known error of the method, and its share of the row; the share of a row that suspends, which contains work of the
# event loop and of other tasks (docs/decisions/0011).
METHOD_US, METHOD_SHARE, SUSPENDING_SHARE = 0.1, 0.01, 0.04
# The share of a task-spawning layer's row that may be task switches of other rows that suspend: if it is the only such
# layer of the stack, and if there are others (docs/decisions/0038).
LONE_SHARE, SHARED_SHARE = 0.08, 0.15
# From this share of the steps on, a row counts as having all of them.
ALL_STEPS = 0.98
# The part of the known error that grows with the whole request, which leaves caches cold: its maximum and its share.
COLD_US, COLD_SHARE = 0.3, 0.0003
# Fewer requests may give no interval.
ENOUGH_REQUESTS = 40
# By what share of their cost null layers may misjudge all probes of a stack: one standard deviation.
SCALE_SHARE = 0.05
# How much longer the server and the endpoint may take for a message because probes leave caches cold.
COLD_MESSAGE_US = 0.1
# An interval that misses with this chance reaches two standard errors to each side.
TWO_ERRORS_ALPHA = 0.05
# To log a step costs at most this many times what a probe does in a whole request.
MOST_OF_A_STEP = 2
# The figures by message of a row: a message sent, a message received, the first part of the body.
FIGURES_BY_MESSAGE = 3


# What a time is known by: the entry of a layer or of the endpoint, or the name of another row that is no layer.
Key: TypeAlias = EntryIndex | Frame


@dataclass(frozen=True, slots=True)
class Estimates:
    """Microseconds per request, most of them by entry of the stack.

    - `split`: every probed entry but the app object
    - `holding`: the split without suspensions; `suspended`: the typical time in suspensions
    - `cpu`: the split by the processor's clock, None if it was not measured; `suspended_cpu`: the processor's time
      during suspensions, which is the event loop's work
    - `method_us`: the known error of the method, which the intervals include
    - `shared_us`: the further error of a task-spawning layer's split, which `split` does not include, because `cpu` has
      the same error
    - `outside`: the app object with the server's receive and send; it has an interval if anything was `probed`
    - `whole`: the app without probes
    - `others`: what ran beside the request and was not started in it; it is in `whole` and in no row
    - `least_us`: the part of `detection_limit_us` that more time does not lower
    - `slowdowns`: how many times slower than at its best the machine ran in the requests behind each time, at least 1
    - `cpu_slowdown`: the same factor for the requests behind `cpu` and `suspended_cpu`
    - `waits`: how much longer than at the machine's best a time may have waited for threads, without zeros
    - `best_ns`: the quickest known time of the reference workload, which the slowdowns are relative to
    - `in_threads`: whether a probed layer ran in another thread; then nothing tells how layers spend their time
    - `own_ns`: what `split` is the median of, in nanoseconds and with the cost of steppers
    - `alpha`: the chance that the interval of one row misses
    - `hopping`: the entries that hand work to threads
    - `machine_ns`: pieces of fixed work from quiet moments, in their order; empty if none were timed
    - `growing`: the times that grow with the requests served; their intervals are their course
    - `by_whole`: the times that depend on `whole`, because it tells what logging their steps costs
    - `step`: the cost of a stepper at one suspension; `handing`: that of handing a message to or from a probe
    - `messages`: by entry, for layers that many messages pass; `message_limit_us`: the detection limit of a message
    """

    split: dict[EntryIndex, Estimate]
    holding: dict[EntryIndex, Estimate]
    suspended: Mapping[Key, Microseconds]
    cpu: dict[EntryIndex, Estimate] | None
    suspended_cpu: dict[EntryIndex, Estimate]
    method_us: Mapping[Key, Microseconds]
    shared_us: Mapping[Key, Microseconds]
    outside: Estimate
    whole: Estimate
    others: Estimate
    detection_limit_us: Microseconds
    least_us: Microseconds
    slowdowns: Mapping[Key, float]
    best_ns: float
    probed: bool
    in_threads: bool
    cpu_slowdown: float = 1.0
    waits: Mapping[Key, Microseconds] = field(default_factory=dict)
    own_ns: Mapping[EntryIndex, Sequence[float]] = field(default_factory=dict)
    alpha: float = ALPHA
    hopping: Collection[EntryIndex] = ()
    machine_ns: Sequence[float] = ()
    growing: Collection[Key] = ()
    by_whole: Collection[Key] = ()
    step: Estimate = ZERO
    handing: Estimate = ZERO
    messages: Mapping[EntryIndex, Messages] = field(default_factory=dict)
    message_limit_us: Microseconds = math.inf

    def us_of(self, key: Key) -> Estimate | None:
        """Return a time, None if it is not known."""
        return self.split.get(key) if isinstance(key, int) else {"outside": self.outside, "total": self.whole}.get(key)

    def error_us(self, key: Key) -> Microseconds:
        """Return the part of the half width of a layer's time that more requests do not narrow."""
        return self.method_us.get(key, 0.0) + self.shared_us.get(key, 0.0)

    @property
    def bounded(self) -> bool:
        """Whether all figures that are shown have intervals."""
        shown = [self.whole, *self.split.values(), *(self.cpu or {}).values(), *([self.outside] if self.probed else [])]
        return all(us.bounded for us in shown)


def estimate(
    samples: Samples,
    entries: Sequence[Boundary],
    *,
    outside: bool,
    look: int,
    best_ns: float = math.inf,
    last: bool = False,
    hops: Hops | None = None,
    best_hop_ns: float = math.inf,
    interruptions: Interruptions = NONE,
    mixed: bool = False,
) -> Estimates:
    """Estimate every row from all samples, at the given look (1, 2, …), with ALPHA spent over looks and rows.

    `outside` says that entry 0 is the app object, which is no layer; `last` that this is the last look. `best_ns` is
    the quickest known time of the reference workload. `hops` says which rows hand work to threads, None if no row does;
    `best_hop_ns` is the best known time of the fixed hop. `interruptions` are those of the requests so far. `mixed`
    says that the whole is of other requests than the rows.
    """
    probed = samples.probed
    # One share for each row of the split, the outside, the whole, and the figures by message.
    figures = len(probed) + 2
    if samples.by_message:
        figures += FIGURES_BY_MESSAGE * len(probed)
    alpha = spend(ALPHA, look, last=last) / figures
    quick_ns = samples.quick_ns()
    best_ns = min(best_ns, quick_ns)
    quick_hop_ns = samples.quick_hop_ns()
    whole_steady = samples.whole.steady(quick_ns, quick_hop_ns)
    whole = interval(whole_steady.values, alpha)
    whole_grows = grow(whole_steady.values, whole_steady.reference, alpha, whole_steady.served)
    wall = Legs(
        samples.split,
        quick_ns,
        quick_hop_ns,
        entries,
        probed,
        samples.sent,
        alpha,
        whole.estimate,
        samples.received,
        samples.of_parts,
    )
    # Only the busy time of a layer that waits depends on the processor's time, taken in fewer requests: each row gets
    # all of ALPHA. Its null layers do not wrap `send`, so handing over messages is not calibrated.
    cpu = (
        Legs(samples.cpu, quick_ns, quick_hop_ns, entries, probed, {}, ALPHA, whole.estimate)
        if samples.cpu.spent
        else None
    )
    around, probes_around = [HARNESS], [ZERO]
    if probed:
        # The outside of the outermost probe, less the part for entering and leaving, which is not in the log.
        passed = {i: n * wall.probes.share_of_messages(i) for i, n in wall.inside[HARNESS].items()}
        probes_around.append(wall.probes.halves(passed))
    if outside and OUTERMOST in probed:
        around.append(owner_of(OUTERMOST))
        probes_around.append(wall.probes_at(OUTERMOST))
    rows = [i for i in probed if entries[i].part_of is None and not (outside and i == OUTERMOST)]
    owners = {index: [owner_of(part) for part in wall.parts_of(index)] for index in rows}
    probes = {index: wall.probes_of(index) for index in rows}
    step, every_probe = ZERO, independent_sum(*probes.values(), *probes_around)
    if mixed or whole_steady.values:
        step = wall.step(None if mixed else whole, every_probe)
    if whole_steady.values and not mixed and not any(entries[index].elsewhere for index in probed):
        wall.scale = wall.scaled(interval(whole_steady.values, TWO_ERRORS_ALPHA), every_probe)
        if cpu is not None:
            cpu.scale = wall.scale
    own_ns = {index: wall.own_ns(owners[index], probes[index]) for index in rows}
    timed: list[tuple[Key, list[Owner]]] = [("outside", around), *owners.items()]
    suspending = {key for key, own in timed if wall.resumed(own)}
    growing: set[Key] = {index for index in rows if wall.grow(own_ns[index])}
    if whole_grows:
        growing.add("total")
    split = {i: wall.estimated(own_ns[i], owners[i], probes[i], step, grows=i in growing) for i in rows}
    suspended: dict[Key, Microseconds] = {index: sum(map(wall.suspended, owners[index])) for index in rows}
    method: dict[Key, Microseconds] = {
        index: method_us(us.estimate, whole.estimate, suspends=index in suspending) for index, us in split.items()
    }
    slow = slowdown(wall.split.reference, best_ns) if wall.split.spent else 1.0
    tasks = {first_part(entries, entry.parent) for entry in entries if entry.own_task and entry.parent is not None}
    shared: dict[Key, Microseconds] = {
        i: 0.0 if wall.has_all_steps(owners[i]) else shared_share(len(tasks)) * abs(us.estimate)
        for i, us in split.items()
        if i in tasks
    }
    least_us = method_us(0.0, whole.estimate)
    outer_probes = sum(probes_around, ZERO)
    if wall.grow(wall.own_ns(around, outer_probes)):
        growing.add("outside")
    outer = wall.row(around, outer_probes, step, grows="outside" in growing)
    method["outside"] = method_us(outer.estimate, whole.estimate, suspends="outside" in suspending)
    used = used_by_others(samples.whole.reference, samples.split.reference, interruptions=interruptions)
    # The quickest requests of an app that grows are its first ones, whatever the caches hold.
    by_caches = 1.0 if whole_grows else slowed_by_caches(whole_steady.values, used)

    def slowed(factor: float, us: Estimate) -> float:
        return max(by_caches, factor * interruptions.slowdown(us.estimate))

    return Estimates(
        split=split,
        holding=split
        | {i: wall.row(owners[i], probes[i], step, holding=True, grows=i in growing) for i in rows if suspended[i]},
        suspended=suspended,
        cpu={i: cpu.row(owners[i], cpu.probes_of(i), step, grows=i in growing) for i in rows} if cpu else None,
        suspended_cpu={i: independent_sum(*map(cpu.suspended_interval, owners[i])) if cpu else ZERO for i in rows},
        method_us=method,
        shared_us=shared,
        outside=outer,
        whole=course(whole_steady.values) * US_PER_NS if whole_grows else whole,
        others=wall.others(step),
        detection_limit_us=detection_limit_of_nulls(wall.probes.readings, alpha) + least_us,
        least_us=least_us,
        slowdowns={
            "total": slowed(slowdown(whole_steady.reference, best_ns), whole),
            "outside": slowed(slow, outer),
            **{index: slowed(slow, us) for index, us in split.items()},
        },
        cpu_slowdown=max(by_caches, slowdown(cpu.split.reference, best_ns)) if cpu and cpu.split.spent else 1.0,
        best_ns=best_ns,
        probed=bool(probed),
        in_threads=any(entries[index].elsewhere for index in probed),
        waits={} if hops is None else _waits(samples, hops, min(best_hop_ns, quick_hop_ns), owners),
        own_ns=own_ns,
        alpha=alpha,
        hopping=frozenset(hops.rows) if hops else (),
        machine_ns=samples.machine.steady(quick_ns).values,
        growing=growing,
        by_whole=() if mixed else suspending,
        step=step,
        handing=wall.probes.handing,
    )


def _waits(samples: Samples, hops: Hops, best_ns: float, rows: Collection[EntryIndex]) -> dict[Key, Microseconds]:
    """Return how much longer than at the machine's best the times may have waited for threads, without zeros.

    All hops count, also those before requests that are left out: while most hops wait, requests after a quick one may
    wait too. Slow hops are rare beside a row of few hops that is read after quick ones, so each waits like the typical
    hop. The whole request has many hops: there one of them may wait.
    """
    each_us = waited_ns(samples.split.hops, best_ns, 1) * US_PER_NS
    waits: dict[Key, Microseconds] = {index: count * each_us for index, count in hops.rows.items() if index in rows}
    waits["outside"] = hops.outside * each_us
    waits["total"] = waited_ns(samples.whole.hops, best_ns, hops.whole) * US_PER_NS
    return {key: us for key, us in waits.items() if us}


@dataclass(frozen=True, slots=True)
class Totals:
    """The total of requests with and without probes, which differ by the cost of logging the steps.

    - `whole`: the request without probes
    - `total_ns`: each request with probes, less their cost
    - `probes`: the cost of all probes of a request
    - `resumed`: the number of steps of a request; `most_us`: the most that logging a step can cost
    """

    whole: Estimate
    total_ns: Sequence[float]
    probes: Estimate
    resumed: float
    most_us: Microseconds


class Legs:
    """The split requests of one clock: what the probes cost, and what the rows take.

    `handovers` has by owner how often a message is handed to or from a probe.
    """

    def __init__(
        self,
        taken: Split,
        quick_ns: float,
        quick_hop_ns: float,
        entries: Sequence[Boundary],
        probed: Sequence[EntryIndex],
        sent: Mapping[EntryIndex, int],
        alpha: float,
        whole_us: Microseconds,
        received: Mapping[EntryIndex, int] | None = None,
        of_parts: Mapping[Owner, int] | None = None,
    ) -> None:
        self.split = taken.steady(quick_ns, quick_hop_ns)
        self.alpha = alpha
        self.whole_us = whole_us
        self.probes = ProbeCosts(taken, self.split, entries, probed, sent, alpha)
        self.handovers = handovers(entries, probed, sent)
        for owner, times in handovers(entries, probed, received or {}, received=True).items():
            self.handovers[owner] += times
        self.tempo = paces(self.split.null_paces())
        self.inside = _inside(entries, probed)
        self.entries = entries
        self.outermost = probed[0] if probed else None
        self.of_parts = of_parts or {}
        # What probes cost in the app, relative to what their null layers take.
        self.scale = 1.0
        # None if they do not show what logging the steps costs.
        self.totals: Totals | None = None

    def probes_at(self, index: EntryIndex) -> Estimate:
        """Return the cost of the probes in an entry's time: the inside of its own, the outside of its children's."""
        crossings: dict[EntryIndex, float] = {index: len(self.entries[index].parents)}
        inside = crossings | {inner: -times for inner, times in self.inside[owner_of(index)].items()}
        if self.of_parts and self.outermost is not None:
            # The messages of an opened endpoint pass its probe in the time of the parts that send or receive them.
            share = self.probes.share_of_messages(self.outermost)
            own = crossings.get(self.outermost, 0) * (1 - share)
            passed = self.of_parts.get(owner_of(index), 0) / sum(self.of_parts.values())
            crossings[self.outermost] = own + passed * share
        for inner, times in self.inside[owner_of(index)].items():
            crossings[inner] = crossings.get(inner, 0) + times
        return self.probes.halves(crossings, inside)

    def probes_of(self, row: EntryIndex) -> Estimate:
        """Return the same for all entries of a row."""
        return independent_sum(*map(self.probes_at, self.parts_of(row)))

    def parts_of(self, row: EntryIndex) -> list[EntryIndex]:
        """Return the probed entries of a row. The entry outside of an entry without a probe owns its time."""
        return [part for part in parts_of(self.entries, row) if owner_of(part) in self.inside]

    def row(
        self,
        owners: Sequence[Owner],
        probes: Estimate,
        step: Estimate,
        *,
        holding: bool = False,
        grows: bool = False,
    ) -> Estimate:
        """Return the time of these owners together, less the cost of probes and steppers; `holding` as in `own_ns`."""
        own_ns = self.own_ns(owners, probes, holding=holding)
        return self.estimated(own_ns, owners, probes, step, holding=holding, grows=grows)

    def grow(self, own_ns: Sequence[float]) -> bool:
        """Return whether times of the requests grow with the requests served."""
        return grow(own_ns, self.split.reference, self.alpha, self.split.served)

    def own_ns(self, owners: Sequence[Owner], probes: Estimate, *, holding: bool = False) -> list[float]:
        """Return the nanoseconds of these owners together in each request, less the cost of probes.

        `holding` leaves out suspensions. The probes are subtracted at the pace of the moment, because a busy machine
        slows them and the layer alike.
        """
        probes_ns = self._probes(owners, probes).estimate / US_PER_NS
        own_ns = []
        for used, pace in zip(self.split.spent, self.tempo, strict=True):
            suspended_ns = sum(used.suspended[owner] for owner in owners) if holding else 0
            own_ns.append(sum(used.ns[owner] for owner in owners) - suspended_ns - probes_ns * pace)
        return own_ns

    def estimated(
        self,
        own_ns: Sequence[float],
        owners: Sequence[Owner],
        probes: Estimate,
        step: Estimate,
        *,
        holding: bool = False,
        grows: bool = False,
    ) -> Estimate:
        """Return the time that the requests of `own_ns` show, less the cost of steppers; unbounded without requests.

        The interval of a time that `grows` is its course.
        """
        if not own_ns:
            return interval((), self.alpha)
        resumed = self.resumed(owners)
        steppers = step * resumed if resumed else ZERO
        typical = course(own_ns) * US_PER_NS if grows else interval(own_ns, self.alpha)
        shown = independent_sum(typical, -self._probes(owners, probes).centred)
        us = independent_sum(shown, -steppers)
        if resumed and self.totals is not None and not grows:
            narrowed = self._by_totals(own_ns, owners, probes, self.totals)
            # No less than if logging cost the most that it can, and no more than if it cost nothing.
            least_us = shown.low - resumed * self.totals.most_us
            us = Estimate(us.estimate, max(narrowed.low, least_us), min(narrowed.high, shown.high))
        return us.widened(method_us(us.estimate, self.whole_us, suspends=resumed > 0 and not holding))

    def _by_totals(
        self, own_ns: Sequence[float], owners: Sequence[Owner], probes: Estimate, totals: Totals
    ) -> Estimate:
        """Return the time of a row that suspends, less its share of the cost of logging steps.

        Noise of the row is in the total too, so the row and the cost of logging are not independent. A row that has
        all steps is the whole request less the other rows, and has their errors.
        """
        share = self.resumed(owners) / totals.resumed
        own_less_total = difference_interval(own_ns, [share * ns for ns in totals.total_ns], self.alpha) * US_PER_NS
        own_error = self._probes(owners, probes).centred
        every_error = totals.probes.centred.widened(2 * SCALE_SHARE * abs(totals.probes.estimate))
        return independent_sum(own_less_total, totals.whole * share, own_error * (1 - share), every_error * share)

    def _probes(self, owners: Sequence[Owner], probes: Estimate) -> Estimate:
        """Return the cost of the probes, and of handing messages over, in the time of these owners."""
        handing = self.probes.handing * sum(self.handovers.get(owner, 0.0) for owner in owners)
        return independent_sum(probes, handing) * self.scale

    def suspended(self, owner: Owner) -> Microseconds:
        """Return how long the owner was typically suspended."""
        return self.split.suspended_ns(owner) * US_PER_NS if self.split.spent else 0.0

    def suspended_interval(self, owner: Owner) -> Estimate:
        """Return the same with an interval, ZERO for an owner that was not suspended."""
        if not self.suspended(owner):
            return ZERO
        us = interval([used.suspended[owner] for used in self.split.spent], self.alpha)
        return us.widened(SUSPENDING_SHARE * us.estimate)

    def has_all_steps(self, owners: Sequence[Owner]) -> bool:
        """Return whether hardly any step was of another owner, or of other work."""
        own = sum(used.resumed[owner] for used in self.split.spent for owner in owners)
        return own > ALL_STEPS * sum(sum(used.resumed) for used in self.split.spent)

    def resumed(self, owners: Sequence[Owner]) -> float:
        """Return how often these owners were typically resumed after a suspension."""
        return self.split.resumptions(owners) if self.split.spent else 0

    def step(self, whole: Estimate | None, probes: Estimate) -> Estimate:
        """Return the cost of logging a step of the event loop, which makes probed requests longer than `whole`.

        `probes` is the cost of all probes. Probes after a step find colder caches than their null layers, so this cost
        includes theirs. Without `whole` it is known only roughly.
        """
        resumed = self.resumed(self.owners)
        if not resumed:
            return ZERO
        most_us = MOST_OF_A_STEP * self.probes.typical_us
        if whole is None:
            return Estimate(most_us / 2, 0.0, most_us)
        total_ns = self.own_ns(self.logged, probes)
        step = independent_sum(interval(total_ns, self.alpha), -whole) / resumed
        if 0 < step.estimate < most_us and not self.grow(total_ns):
            self.totals = Totals(whole, total_ns, self._probes(self.logged, probes), resumed, most_us)
        return step.clipped(0.0, most_us)

    def scaled(self, whole: Estimate, probes: Estimate) -> float:
        """Return what all probes cost in the app, relative to what their null layers take.

        A request with probes, less these, must take as long as `whole`, which gives a second estimate of the cost of
        all probes (docs/decisions/0005). The two are weighted by the inverse of their variances. `whole` reaches two
        standard errors to each side. If the request suspends, logging the steps costs time too, and the two costs
        cannot be told apart.
        """
        every_us = self._probes(self.logged, probes).estimate if self.logged else 0.0
        if every_us <= 0 or self.resumed(self.owners):
            return 1.0
        added = independent_sum(interval(self.own_ns(self.logged, probes), TWO_ERRORS_ALPHA), -whole)
        number = sum(len(self.entries[index].parents) for index in self.probes.readings)
        shown_us = self.split.excess_ns(self.logged) * US_PER_NS
        least, most = (min(bound, shown_us) for bound in self.probes.together(number))
        # As little as is certain: what probes take together is known between two bounds, neither of them more than the
        # requests show, and the server and the endpoint hand messages over with colder caches.
        most += COLD_MESSAGE_US * self.handovers.get(HARNESS, 0.0)
        amiss_us = max(added.estimate - most, min(0.0, added.estimate - least))
        null_error_us = SCALE_SHARE * every_us
        sum_error_us = method_us(whole.estimate, whole.estimate) + added.half_width / 2
        weight = null_error_us**2 / (null_error_us**2 + sum_error_us**2)
        limit = 3 * SCALE_SHARE
        return 1 + weight * max(-limit, min(amiss_us / every_us, limit))

    @property
    def owners(self) -> list[Owner]:
        """All owners of time; none without requests."""
        return [Owner(owner) for owner in range(len(self.split.spent[0].ns))] if self.split.spent else []

    @property
    def logged(self) -> list[Owner]:
        """The owners whose time is the request's."""
        owners = self.owners
        return [owner for owner in owners if owner not in (owners[NULL], owners[UNOWNED])]

    def others(self, step: Estimate) -> Estimate:
        """Return the time of what was not started in the request, less the cost of logging its steps."""
        if not self.split.spent:
            return ZERO
        owner = Owner(len(self.split.spent[0].ns) + OTHERS)
        return independent_sum(
            interval([used.ns[owner] for used in self.split.spent], self.alpha), -(step * self.resumed([owner]))
        )


def method_us(us: Microseconds, whole_us: Microseconds, *, suspends: bool = False) -> Microseconds:
    """Return the known error of the method for a row of `us` in a request of `whole_us`."""
    share = SUSPENDING_SHARE if suspends else METHOD_SHARE
    return METHOD_US + min(COLD_US, COLD_SHARE * whole_us) + share * abs(us)


def shared_share(task_layers: int) -> float:
    """Return the known error of a task-spawning layer, as a share of its row, beyond that of any row that suspends.

    `task_layers` is the number of such layers in the stack.
    """
    return (SHARED_SHARE if task_layers > 1 else LONE_SHARE) - SUSPENDING_SHARE


def detection_limit_of_nulls(nulls: Mapping[EntryIndex, list[float]], alpha: float) -> Microseconds:
    """Return the least overhead that can be told from that of a null layer at the typical boundary.

    This is an A/A test of a null layer against another one with as many readings.
    """
    enough = [own for own in nulls.values() if len(own) >= 2 * OWN_NULLS]
    if not enough:
        enough = [interleaved(nulls.values())]
    return median(2 * interval(own, alpha).half_width for own in enough)


def _inside(entries: Sequence[Boundary], probed: Sequence[EntryIndex]) -> dict[Owner, Counter[EntryIndex]]:
    """Return by owner how often it enters each probed entry in a request, past entries without a probe."""
    inside: dict[Owner, Counter[EntryIndex]] = {
        owner: Counter() for owner in (HARNESS, *(owner_of(index) for index in probed))
    }
    for index in probed:
        for owner, times in callers(entries, index, probed).items():
            inside[owner][index] += times
    return inside
