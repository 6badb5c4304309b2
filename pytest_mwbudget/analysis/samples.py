"""What was measured: requests in the order in which they were taken. Pure; no clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from statistics import median

from ..model.stack import EntryIndex, Owner
from .event_log import Spent
from .intervals import paces_of_others, quickest, quiet, quiet_limit

# So many requests of a block must be quick for its pair to count.
FEWEST_OF_BLOCK = 3
# How much slower the machine may be for a moment to count: by the reference workload, which is steady, than in the
# quickest moments of the run (for a request of a pair by the slower of two, which is above the typical one); by the
# null layers, which are nearer to what an app does, and noisier, than in the quickest quarter of these.
QUIET_REFERENCE, QUIET_PAIR, QUIET_NULL = 1.05, 1.07, 1.10


@dataclass(slots=True)
class Series:
    """Nanoseconds in the order in which they were taken, each with the reference workload's time next to it."""

    values: list[float] = field(default_factory=list)
    reference: list[float] = field(default_factory=list)

    def add(self, value: float, reference: float) -> None:
        """Append one value."""
        self.values.append(value)
        self.reference.append(reference)

    def steady(self, quick_ns: float) -> Series:
        """What was taken while the machine ran at its speed, the reference workload taking `quick_ns`."""
        return self.only(quiet(self.reference, QUIET_REFERENCE, quick_ns))

    def only(self, kept: Sequence[bool]) -> Series:
        """These of the values."""
        return Series(list(compress(self.values, kept)), list(compress(self.reference, kept)))


@dataclass(slots=True)
class Pairs:
    """Blocks of requests with a layer and without it, one of each in a pair."""

    blocks: list[tuple[Series, Series]] = field(default_factory=list)

    @property
    def reference(self) -> list[float]:
        """The reference workload's times next to all these requests."""
        return [ns for pair in self.blocks for block in pair for ns in block.reference]

    def saved(self, quick_ns: float) -> Series:
        """What a request took longer with the layer than without it, typically, pair by pair.

        Of each block only the requests count that ran while the machine was at its speed, and of the pairs only those
        that have such requests in both blocks: a neighbour comes and goes within one.
        """
        paces = [max(map(_pace, pair)) for pair in self.blocks]
        limit = quiet_limit(paces, QUIET_PAIR, quick_ns)
        found = Series()
        for pair, pace in zip(self.blocks, paces, strict=True):
            if pace <= limit:
                with_it, without = (block.only([ns <= limit for ns in block.reference]) for block in pair)
                found.add(
                    median(with_it.values) - median(without.values), median(with_it.reference + without.reference)
                )
        return found


def _pace(block: Series) -> float:
    """The slowest at which enough of the block's requests ran."""
    return sorted(block.reference)[FEWEST_OF_BLOCK - 1]


@dataclass(frozen=True, slots=True)
class BlankLayers:
    """What stands between the probes of a null layer: so many layers that do nothing, or nothing but wrap `send`."""

    count: int
    wrapping: bool = False


@dataclass(frozen=True, slots=True)
class Null:
    """Which null layer a request had: at the boundary of which entry, and what between its probes."""

    index: EntryIndex
    blanks: BlankLayers


@dataclass(slots=True)
class Split:
    """Requests with every probe in place, one after the other: what these owners spent, what the null layer read."""

    owners: frozenset[Owner]
    reference: list[float] = field(default_factory=list)
    null: list[Null] = field(default_factory=list)
    null_ns: list[float] = field(default_factory=list)
    spent: list[Spent] = field(default_factory=list)

    def add(self, reference: float, null: Null, null_ns: float, used: Spent) -> None:
        """Append one request."""
        self.reference.append(reference)
        self.null.append(null)
        self.null_ns.append(null_ns)
        self.spent.append(used)

    def suspended_ns(self, owner: Owner) -> float:
        """What an owner typically spent in suspensions."""
        return median(used.suspended[owner] for used in self.spent)

    def resumptions(self, owners: Iterable[Owner]) -> float:
        """How often these owners were typically resumed after one."""
        return sum(median(used.resumed[owner] for used in self.spent) for owner in owners)

    def steady(self, quick_ns: float) -> Split:
        """The requests that ran while the machine was at its speed, the reference workload taking `quick_ns`."""
        quick = self.only(quiet(self.reference, QUIET_REFERENCE, quick_ns))
        return quick.only(quiet(quick.null_paces(), QUIET_NULL))

    def typical_nulls(self) -> dict[Null, float]:
        """What each null layer typically read."""
        read: dict[Null, list[float]] = {}
        for null, ns in zip(self.null, self.null_ns, strict=True):
            read.setdefault(null, []).append(ns)
        return {null: median(values) for null, values in read.items()}

    def null_paces(self, typical: Mapping[Null, float] | None = None) -> list[float]:
        """What the null layer read in each request, against what it typically reads (here, unless said otherwise)."""
        typical = self.typical_nulls() if typical is None else typical
        return [ns / (typical[null] or 1.0) for null, ns in zip(self.null, self.null_ns, strict=True)]

    def nulls_at_typical_tempo(self, typical: Mapping[Null, float] | None = None) -> list[float]:
        """What the null layer would have read if the machine had always run at its typical tempo, in nanoseconds."""
        tempo = paces_of_others(self.null_paces(typical))
        return [ns / (pace or 1.0) for ns, pace in zip(self.null_ns, tempo, strict=True)]

    def only(self, kept: Sequence[bool]) -> Split:
        """These of the requests."""
        return Split(
            self.owners,
            list(compress(self.reference, kept)),
            list(compress(self.null, kept)),
            list(compress(self.null_ns, kept)),
            list(compress(self.spent, kept)),
        )


@dataclass(slots=True)
class Samples:
    """Everything measured so far.

    `splits` are by the number of task layers that requests went past, and so are those of `cpu`, whose probes read the
    processor's time; each has what is inside these task layers. `bypass` is by entry of the stack. `inside` is the
    whole time between the first and the last crossing, `inside_stepless` the same in requests without steppers,
    `whole` that of requests without any probe. `messages` is the number of calls of the server's receive and send in
    one request, `sent` that of the messages that each entry typically sends.
    """

    probed: tuple[EntryIndex, ...]
    sent: Mapping[EntryIndex, int] = field(default_factory=dict)
    splits: dict[int, Split] = field(default_factory=dict)
    cpu: dict[int, Split] = field(default_factory=dict)
    whole: Series = field(default_factory=Series)
    bypass: dict[EntryIndex, Pairs] = field(default_factory=dict)
    inside: Series = field(default_factory=Series)
    inside_stepless: Series = field(default_factory=Series)
    messages: int = 0
    rounds: int = 0
    requests: int = 0

    def quick_ns(self) -> float:
        """What the reference workload took in the quickest moments of the quickest part of the run."""
        references = [one.reference for one in (self.whole, self.inside)]
        references += [pairs.reference for pairs in self.bypass.values()]
        references += [split.reference for split in self.splits.values()]
        return min(map(quickest, references))
