"""From samples to estimates: what each row costs, with intervals that hold together. Pure; no clock.

What a probe costs at a boundary is known from the null layer there: the time between two probes, less what the blank
layers between them take, is the inner part of the outer probe and the outer part of the inner one. A layer's own time
holds the inner part of its probe and the outer part of its child's, so half of each null is taken off.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from ..model.estimate import ZERO, Estimate, Microseconds, independent_sum
from ..model.stack import HARNESS, OUTERMOST, Boundary, EntryIndex, Owner, callers, owner_of
from .calibration import OWN_NULLS, US_PER_NS, ProbeCosts, handovers, interleaved, interval
from .intervals import paces, spend
from .samples import Samples, Series, Split
from .slowdown import STEADY, slowdown

# The chance that any interval of a measurement, over all rows and all looks, misses its median.
ALPHA = 0.01
# By so much and by such a share of the row the method itself may be wrong, however many requests there are: what
# bench/accuracy.py found (docs/decisions/0011). A row that suspends holds what the event loop and other
# tasks do meanwhile, which is known less well.
METHOD_US, METHOD_SHARE, SUSPENDING_SHARE = 0.1, 0.01, 0.04
# By the split alone, neighbouring task layers may have so much of one another's task switches (docs/decisions/0007).
SHARED_SHARE = 0.15
# An app that computes for long leaves its layers cold caches, and their probes as well: up to so much, by the share of
# the whole request.
COLD_US, COLD_SHARE = 0.3, 0.0003
# With fewer requests than this there may be no interval at all.
ENOUGH_REQUESTS = 40


@dataclass(frozen=True, slots=True)
class Slowdowns:
    """How much slower the machine ran than at its best in the requests that count for a figure; at least 1.

    By entry for the split and the bypass. A kind of request may have had none of the quick moments that others had.
    """

    whole: float
    outside: float
    split: dict[EntryIndex, float]
    bypass: dict[EntryIndex, float]


@dataclass(frozen=True, slots=True)
class Estimates:
    """Microseconds per request by entry of the stack, and for the whole.

    `split` has every probed entry but the app object, the endpoint included; `bypass` those that could be bypassed.
    `holding` is the split's time without suspensions, `suspended` the typical time in them; `cpu` and `suspended_cpu`
    are the processor's time for the same (None: it was not measured; a suspension holds the event loop's own work).
    `method_us` is what the method may be wrong by, which is in the intervals; `shared_us` is what the split of a task
    layer may be wrong by beyond that, which is not, because both clocks share it. `outside` is the app object with the
    server's receive and send; it has an interval where anything was `probed`. `least_us` is the part of the
    detection limit that no time lowers.
    """

    split: dict[EntryIndex, Estimate]
    bypass: dict[EntryIndex, Estimate]
    holding: dict[EntryIndex, Estimate]
    suspended: dict[EntryIndex, Microseconds]
    cpu: dict[EntryIndex, Estimate] | None
    suspended_cpu: dict[EntryIndex, Estimate]
    method_us: dict[EntryIndex, Microseconds]
    shared_us: dict[EntryIndex, Microseconds]
    outside: Estimate
    whole: Estimate
    detection_limit_us: Microseconds
    least_us: Microseconds
    slowdowns: Slowdowns
    probed: bool

    @property
    def bounded(self) -> bool:
        """Whether all that is shown has an interval."""
        shown = [self.whole, *self.split.values(), *(self.cpu or {}).values(), *([self.outside] if self.probed else [])]
        return all(math.isfinite(us.half_width) for us in shown)


def estimate(
    samples: Samples,
    entries: Sequence[Boundary],
    *,
    outside: bool,
    look: int,
    best_ns: float = math.inf,
    last: bool = False,
) -> Estimates:
    """Every row's estimate from all samples, at the given look (1, 2, …), `alpha` being spent over looks and rows.

    `outside` says that entry 0 is the app object, whose time is not a layer's; `last` that there will be no more looks.
    `best_ns` is the quickest time of the reference workload that is known from before.
    """
    probed = samples.probed
    # One share for each row: the split's, the bypasses', the outside, the whole.
    alpha = spend(ALPHA, look, last=last) / (len(probed) + len(samples.bypass) + 2)
    quick_ns = samples.quick_ns()
    best_ns = min(best_ns, quick_ns)
    whole_steady = samples.whole.steady(quick_ns)
    whole = interval(whole_steady.values, alpha)
    wall = _Legs(samples.splits, quick_ns, entries, probed, samples.sent, alpha, whole.estimate)
    # No verdict hangs on the processor's time: its rows share their chances with nobody, and no null layer of its
    # requests tells what handing messages over costs.
    cpu = _Legs(samples.cpu, quick_ns, entries, probed, {}, ALPHA, whole.estimate) if samples.cpu else None
    bypass = {index: pairs.saved(quick_ns) for index, pairs in samples.bypass.items()}
    step = _step(samples, wall, quick_ns, alpha)

    around, probes_around = [HARNESS], [ZERO]
    if probed and samples.messages:
        # The outside of the outermost probe: all but its share of entering and leaving, which nobody logged.
        share = samples.messages / (samples.messages + 1)
        probes_around.append(wall.probes.halves({i: n * share for i, n in wall.inside[HARNESS].items()}))
    if outside and OUTERMOST in probed:
        around.append(owner_of(OUTERMOST))
        probes_around.append(wall.probes_at(OUTERMOST))
    rows = [index for index in probed if not (outside and index == OUTERMOST)]
    split = {index: wall.row([owner_of(index)], wall.probes_at(index), step) for index in rows}
    suspended = {index: wall.suspended(owner_of(index)) for index in rows}
    saved = {index: interval(pairs.values, alpha) for index, pairs in bypass.items() if wall.kept_pace(pairs)}
    method = {
        index: method_us(us.estimate, whole.estimate, suspends=index in saved or wall.resumed([owner_of(index)]) > 0)
        for index, us in (split | saved).items()
    }
    slow: dict[int | None, float] = {None: 1.0}
    slow |= {level: slowdown(one.reference, best_ns) for level, one in enumerate(wall.splits)}
    tasks = {entry.parent for entry in entries if entry.own_task}
    shared = {i: (SHARED_SHARE - SUSPENDING_SHARE) * abs(us.estimate) for i, us in split.items() if i in tasks}
    least_us = method_us(0.0, whole.estimate)
    return Estimates(
        split=split,
        bypass={index: us.widened(method[index]) for index, us in saved.items()},
        holding=split
        | {i: wall.row([owner_of(i)], wall.probes_at(i), step, holding=True) for i in rows if suspended[i]},
        suspended=suspended,
        cpu={index: cpu.row([owner_of(index)], cpu.probes_at(index), step) for index in rows} if cpu else None,
        suspended_cpu={index: cpu.suspended_interval(owner_of(index)) if cpu else ZERO for index in rows},
        method_us=method,
        shared_us=shared,
        outside=wall.row(around, sum(probes_around, ZERO), step),
        whole=whole,
        detection_limit_us=_detection_limit(wall.probes.readings, alpha) + least_us,
        least_us=least_us,
        slowdowns=Slowdowns(
            whole=slowdown(whole_steady.reference, best_ns),
            outside=slow[wall.level(around)],
            split={index: slow[wall.level([owner_of(index)])] for index in rows},
            bypass={index: slowdown(bypass[index].reference, best_ns) for index in saved},
        ),
        probed=bool(probed),
    )


class _Legs:
    """Requests whose probes read one clock: what the probes cost, and what is left for the rows."""

    def __init__(
        self,
        splits: Mapping[int, Split],
        quick_ns: float,
        entries: Sequence[Boundary],
        probed: Sequence[EntryIndex],
        sent: Mapping[EntryIndex, int],
        alpha: float,
        whole_us: Microseconds,
    ) -> None:
        taken = [splits[level] for level in sorted(splits)]
        self.splits = [split.steady(quick_ns) for split in taken]
        self.alpha = alpha
        self.whole_us = whole_us
        self.probes = ProbeCosts(taken, self.splits, entries, probed, sent, alpha)
        self.handovers = handovers(entries, probed, sent)
        self.tempo = [paces(split.null_paces()) for split in self.splits]
        self.inside = _inside(entries, probed)
        self.entries = entries

    def probes_at(self, index: EntryIndex) -> Estimate:
        """What the probes cost that are charged to an entry: the inside of its own, the outside of its children's."""
        crossings: Counter[EntryIndex] = Counter({index: len(self.entries[index].parents)})
        return self.probes.halves(crossings + self.inside[owner_of(index)])

    def row(self, owners: Sequence[Owner], probes: Estimate, step: Estimate, *, holding: bool = False) -> Estimate:
        """What these owners spent together, less what the probes and the steppers cost them.

        `holding` leaves out suspensions. A busy machine slows the layer and its probes alike, so the probes are taken
        off at the tempo of the moment: paired, most of the noise that requests have in common goes.
        """
        level = self.level(owners)
        if level is None:
            return interval((), self.alpha)
        split = self.splits[level]
        probes = independent_sum(probes, self.probes.handing * sum(self.handovers[owner] for owner in owners))
        own_ns = self._less_probes(split, self.tempo[level], owners, probes, holding)
        resumed = self.resumed(owners)
        steppers = step * resumed if resumed else ZERO
        us = independent_sum(interval(own_ns, self.alpha), -probes.centred, -steppers)
        return us.widened(method_us(us.estimate, self.whole_us, suspends=resumed > 0 and not holding))

    def level(self, owners: Sequence[Owner]) -> int | None:
        """The split that has these owners and went past the most; of those with few requests, the one with the most."""
        levels = [level for level, split in enumerate(self.splits) if split.spent and split.owners.issuperset(owners)]
        sizes = {level: min(len(self.splits[level].reference), ENOUGH_REQUESTS) for level in levels}
        return max(levels, key=lambda level: (sizes[level], level), default=None)

    def _less_probes(
        self, split: Split, tempo: Sequence[float], owners: Sequence[Owner], probes: Estimate, holding: bool
    ) -> list[float]:
        own_ns = [-probes.estimate / US_PER_NS * pace for pace in tempo]
        for owner in owners:
            own_ns = [ns + used.ns[owner] for ns, used in zip(own_ns, split.spent, strict=True)]
            if holding:
                own_ns = [ns - used.suspended[owner] for ns, used in zip(own_ns, split.spent, strict=True)]
        return own_ns

    def suspended(self, owner: Owner) -> Microseconds:
        """How long the owner was typically suspended."""
        level = self.level([owner])
        return 0.0 if level is None else self.splits[level].suspended_ns(owner) * US_PER_NS

    def suspended_interval(self, owner: Owner) -> Estimate:
        """The same with an interval; zero where it was not suspended."""
        level = self.level([owner])
        if level is None or not self.suspended(owner):
            return ZERO
        us = interval([used.suspended[owner] for used in self.splits[level].spent], self.alpha)
        return us.widened(SUSPENDING_SHARE * us.estimate)

    def resumed(self, owners: Sequence[Owner]) -> float:
        """How often these owners were typically resumed after a suspension."""
        level = self.level(owners)
        return 0 if level is None else self.splits[level].resumptions(owners)

    def kept_pace(self, saved: Series) -> bool:
        """Whether a bypass's pairs were taken while the machine ran as fast as it did for the split.

        Where all pairs fall into one slow stretch they tell what the layer costs on a slower machine. Without enough of
        a split there is nothing to hold them against, nor anything better.
        """
        genuine = self.splits[0].reference if self.splits else []
        if len(genuine) < ENOUGH_REQUESTS:
            return bool(saved.reference)
        return bool(saved.reference) and median(saved.reference) <= STEADY * median(genuine)


def method_us(us: Microseconds, whole_us: Microseconds, *, suspends: bool = False) -> Microseconds:
    """By how much the method may be wrong about a row of so many microseconds in a request of `whole_us`."""
    share = SUSPENDING_SHARE if suspends else METHOD_SHARE
    return METHOD_US + min(COLD_US, COLD_SHARE * whole_us) + share * abs(us)


def _step(samples: Samples, legs: _Legs, quick_ns: float, alpha: float) -> Estimate:
    """What a stepper costs at one suspension: requests with steppers against requests without."""
    if not legs.splits or not samples.inside_stepless.values or not samples.inside.values:
        return ZERO
    resumptions = legs.splits[0].resumptions(legs.splits[0].owners) if legs.splits[0].spent else 0
    if not resumptions:
        return ZERO
    with_steppers = interval(samples.inside.steady(quick_ns).values, alpha)
    added = independent_sum(with_steppers, -interval(samples.inside_stepless.steady(quick_ns).values, alpha))
    cost = added / resumptions
    # A stepper does less at one suspension than a probe does in a whole request.
    return cost.clipped(0.0, legs.probes.typical_us)


def _detection_limit(nulls: Mapping[EntryIndex, list[float]], alpha: float) -> Microseconds:
    """The least overhead that the samples can tell from a null layer's, at the typical boundary.

    An A/A test: a null layer against another one that is known as well. (One half of the readings against the other
    would be a test of half as many; where a slow endpoint leaves few, it refused budgets that the rows could tell.)
    """
    enough = [own for own in nulls.values() if len(own) >= 2 * OWN_NULLS]
    if not enough:
        enough = [interleaved(nulls.values())]
    return median(2 * interval(own, alpha).half_width for own in enough)


def _inside(entries: Sequence[Boundary], probed: Sequence[EntryIndex]) -> dict[Owner, Counter[EntryIndex]]:
    """By owner, which probed entries it enters, how often in one request; entries between without a probe left out."""
    found: dict[Owner, Counter[EntryIndex]] = {
        owner: Counter() for owner in (HARNESS, *(owner_of(index) for index in probed))
    }
    for index in probed:
        for owner, times in callers(entries, index, probed).items():
            found[owner][index] += times
    return found
