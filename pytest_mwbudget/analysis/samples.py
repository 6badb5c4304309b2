"""Samples: requests in the order in which they were made. Pure; no clock."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from statistics import median

from ..model.stack import EntryIndex, Owner
from .core_sharing import is_shared
from .event_log import Spent
from .intervals import paces_of_others, quickest, quiet, quiet_limit
from .message_log import MessageTimes
from .slowdown import QUIET_REFERENCE

# Slowdowns up to which a moment counts as quiet, beside QUIET_REFERENCE (docs/decisions/0010): for a request of a pair,
# which takes the slower of two references; by the null layers, which vary more, against the quickest quarter of them.
QUIET_PAIR, QUIET_NULL = 1.07, 1.10
# The same for the fixed hop before a request that is handed to threads, against the quick hops of the run: its quickest
# tenth (docs/decisions/0026).
QUIET_HOP, QUICK_HOPS = 1.5, 1 / 10


@dataclass(slots=True)
class Series:
    """Nanoseconds, each with the reference workload's time beside it, and with the hop's if hops are measured.

    `served` is empty, or has for each value the number of requests before it.
    """

    values: list[float] = field(default_factory=list)
    reference: list[float] = field(default_factory=list)
    hops: list[float] = field(default_factory=list)
    served: list[int] = field(default_factory=list)

    def add(self, value: float, reference: float, hop: float | None = None, served: int | None = None) -> None:
        """Append one value."""
        self.values.append(value)
        self.reference.append(reference)
        if hop is not None:
            self.hops.append(hop)
        if served is not None:
            self.served.append(served)

    def steady(self, quick_ns: float, quick_hop_ns: float = math.inf) -> Series:
        """Return the values of quiet moments.

        At full speed the reference workload takes `quick_ns`, and the hop `quick_hop_ns`.
        """
        quick = self.only(quiet(self.reference, QUIET_REFERENCE, quick_ns))
        return quick.only(_quick_hops(quick.hops, quick_hop_ns)) if quick.hops else quick

    def only(self, kept: Sequence[bool]) -> Series:
        """Return the values that are kept."""
        return Series(
            list(compress(self.values, kept)),
            list(compress(self.reference, kept)),
            list(compress(self.hops, kept)),
            list(compress(self.served, kept)),
        )


def _quick_hops(hops: Sequence[float], quick_hop_ns: float) -> list[bool]:
    """Return before which requests the hop was quick. Each counts for itself: a wait does not last."""
    limit = quiet_limit(hops, QUIET_HOP, quick_hop_ns)
    return [ns <= limit for ns in hops]


@dataclass(frozen=True, slots=True)
class BlankLayers:
    """The blank layers of a null layer, which do nothing, or only wrap `send`.

    One that is `dividing` wraps `receive` too, and logs where the time of the outer probe ends and that of the inner
    one begins.
    """

    count: int
    wrapping: bool = False
    dividing: bool = False


@dataclass(frozen=True, slots=True)
class Null:
    """The null layer of a request: the entry at whose boundary it stands, and its blank layers."""

    index: EntryIndex
    blanks: BlankLayers


@dataclass(slots=True)
class Split:
    """Requests with every probe in place: the time of every owner and of the null layer in each.

    `passing_ns` is the part of `null_ns` in which messages pass the null layer. `leaning_ns` is by how much longer the
    inside of the null layer's outer probe took than the outside of its inner one, where its blank layer divides them.
    `messages` divides the requests by message. It is empty if no budget and no report needs this. `served` is empty, or
    has for each request the number of those before it.
    """

    reference: list[float] = field(default_factory=list)
    null: list[Null] = field(default_factory=list)
    null_ns: list[float] = field(default_factory=list)
    spent: list[Spent] = field(default_factory=list)
    hops: list[float] = field(default_factory=list)
    messages: list[MessageTimes] = field(default_factory=list)
    passing_ns: list[float] = field(default_factory=list)
    leaning_ns: list[float] = field(default_factory=list)
    served: list[int] = field(default_factory=list)

    def add(
        self,
        reference: float,
        null: Null,
        null_ns: float,
        used: Spent,
        hop: float | None = None,
        messages: MessageTimes | None = None,
        passing_ns: float = 0.0,
        leaning_ns: float = 0.0,
        served: int | None = None,
    ) -> None:
        """Append one request, with the time of the hop before it if hops are measured."""
        self.reference.append(reference)
        self.null.append(null)
        self.null_ns.append(null_ns)
        self.spent.append(used)
        self.passing_ns.append(passing_ns)
        self.leaning_ns.append(leaning_ns)
        if hop is not None:
            self.hops.append(hop)
        if messages is not None:
            self.messages.append(messages)
        if served is not None:
            self.served.append(served)

    def suspended_ns(self, owner: Owner) -> float:
        """Return the typical time of an owner in suspensions."""
        return median(used.suspended[owner] for used in self.spent)

    def resumptions(self, owners: Iterable[Owner]) -> float:
        """Return how often these owners were typically resumed."""
        return sum(median(used.resumed[owner] for used in self.spent) for owner in owners)

    def excess_ns(self, owners: Iterable[Owner]) -> float:
        """Return by how much the typical sum of these owners' times exceeds the sum of their typical times."""
        times: list[list[float]] = [[used.ns[owner] for used in self.spent] for owner in owners]
        sums: list[float] = [sum(together) for together in zip(*times, strict=True)]
        return max(0.0, median(sums) - sum(median(own) for own in times))

    def steady(self, quick_ns: float, quick_hop_ns: float = math.inf) -> Split:
        """Return the requests of quiet moments.

        At full speed the reference workload takes `quick_ns`, and the hop `quick_hop_ns`.
        """
        quick = self.only(quiet(self.reference, QUIET_REFERENCE, quick_ns))
        if quick.hops:
            quick = quick.only(_quick_hops(quick.hops, quick_hop_ns))
        return quick.only(quiet(quick.null_paces(), QUIET_NULL))

    def typical_nulls(self) -> dict[Null, float]:
        """Return the typical nanoseconds of each null layer."""
        read: dict[Null, list[float]] = {}
        for null, ns in zip(self.null, self.null_ns, strict=True):
            read.setdefault(null, []).append(ns)
        return {null: median(values) for null, values in read.items()}

    def null_paces(self, typical: Mapping[Null, float] | None = None) -> list[float]:
        """Return for each request the null layer's time divided by its typical time, here by default."""
        typical = self.typical_nulls() if typical is None else typical
        return [ns / (typical[null] or 1.0) for null, ns in zip(self.null, self.null_ns, strict=True)]

    def nulls_at_typical_tempo(self, typical: Mapping[Null, float] | None = None) -> list[float]:
        """Return the null layer's nanoseconds in each request, scaled to the machine's typical pace."""
        tempo = paces_of_others(self.null_paces(typical))
        return [ns / (pace or 1.0) for ns, pace in zip(self.null_ns, tempo, strict=True)]

    def only(self, kept: Sequence[bool]) -> Split:
        """Return the requests that are kept."""
        return Split(
            list(compress(self.reference, kept)),
            list(compress(self.null, kept)),
            list(compress(self.null_ns, kept)),
            list(compress(self.spent, kept)),
            list(compress(self.hops, kept)),
            list(compress(self.messages, kept)),
            list(compress(self.passing_ns, kept)),
            list(compress(self.leaning_ns, kept)),
            list(compress(self.served, kept)),
        )


@dataclass(slots=True)
class Samples:
    """Everything measured so far.

    - `split`; `cpu`: the same with probes that read the processor's clock
    - `whole`: the time of requests without probes
    - `machine`: pieces of fixed work beside the requests
    - `widths`: no-ops per cycle that the core issued to this thread; empty where this cannot be read
    - `requests`: those that count; `settling`: those that do not, after code was patched
    - `sent` and `received`: messages that each entry typically sends and receives; few messages received are left out
    - `of_parts`: in an opened endpoint, the messages that each part sends and receives, past the probes of the others
    """

    probed: tuple[EntryIndex, ...]
    sent: Mapping[EntryIndex, int] = field(default_factory=dict)
    split: Split = field(default_factory=Split)
    cpu: Split = field(default_factory=Split)
    whole: Series = field(default_factory=Series)
    machine: Series = field(default_factory=Series)
    widths: Series = field(default_factory=Series)
    rounds: int = 0
    requests: int = 0
    settling: int = 0
    received: Mapping[EntryIndex, int] = field(default_factory=dict)
    of_parts: Mapping[Owner, int] = field(default_factory=dict)

    @property
    def served(self) -> int:
        """The number of requests so far."""
        return self.requests + self.settling

    @property
    def by_message(self) -> bool:
        """Whether requests are divided by message."""
        return bool(self.split.messages)

    def quick_ns(self) -> float:
        """Return the reference workload's time in the quickest moments of the quickest kind of requests."""
        return min(quickest(self.whole.reference), quickest(self.split.reference))

    def shared_throughout(self) -> bool | None:
        """Return whether another thread worked on the same core even in the quickest moments, None if too few tell."""
        return is_shared(self.widths.values, self.widths.reference) if self.widths.values else False

    def quick_hop_ns(self) -> float:
        """Return the time of the run's quick hops, infinite if none was measured."""
        hops = sorted([*self.whole.hops, *self.split.hops])
        return hops[int(QUICK_HOPS * len(hops))] if hops else math.inf
