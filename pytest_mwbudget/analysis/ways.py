"""Ways of requests: how often a request entered each callable of the stack, beside the way that was traced. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from ..errors import tagged
from ..model.stack import OUTSIDE, Boundary, Owner, outwards, owner_of

# How often a request entered each watched entry.
Way: TypeAlias = tuple[int, ...]

# Up to this share of requests on other ways moves no typical figure of a request that was not told apart.
FEW = 0.1
# The traced way is too rare to measure below this share.
LEAST_SHARE = 0.25
# Where the traced way has the least share, as many requests in a row take other ways once in a hundred million times.
MOST_ASTRAY = 64
# Notes describe this many other ways, the most common first.
MOST_DESCRIBED = 3


class StackChangedError(Exception):
    """No request in a row of many took the traced way; `ways` are those taken before and since."""

    def __init__(self, ways: Ways) -> None:
        super().__init__("the stack of layers changed")
        self.ways = ways


@dataclass(slots=True)
class Ways:
    """The numbers of requests by way. `traced` says how often the traced request entered each watched owner."""

    traced: Mapping[Owner, int]
    requests: Counter[Way] = field(default_factory=Counter)
    astray: int = 0  # since a request took the traced way

    @property
    def usual(self) -> Way:
        """The traced way."""
        return tuple(self.traced.values())

    def add(self, entered: Mapping[Owner, int]) -> bool:
        """Note a request by how often it entered each owner; return whether it took the traced way."""
        way = tuple(entered.get(owner, 0) for owner in self.traced)
        self.requests[way] += 1
        self.astray = 0 if way == self.usual else self.astray + 1
        return way == self.usual

    def follow(self, entered: Mapping[Owner, int]) -> bool:
        """Do the same; raise StackChangedError if so many requests in a row took other ways that the stack changed."""
        same = self.add(entered)
        if self.astray >= MOST_ASTRAY:
            raise StackChangedError(self)
        return same

    def __add__(self, other: Ways) -> Ways:
        return Ways(self.traced, self.requests + other.requests)

    @property
    def share(self) -> float:
        """The share of requests that took the traced way; 1 without requests."""
        return self.requests[self.usual] / max(1, self.requests.total()) if self.requests else 1.0

    @property
    def mixed(self) -> bool:
        """Whether a figure of requests that cannot be told apart is not one of the traced way."""
        return 1 - self.share > FEW

    def entered(self) -> dict[Owner, int]:
        """Return how often a request of the most common way enters each watched owner."""
        [(way, _)] = self.requests.most_common(1)
        return dict(zip(self.traced, way, strict=True))

    @property
    def most_common(self) -> bool:
        """Whether no other way was taken more often than the traced way."""
        return self.requests[self.usual] == max(self.requests.values(), default=0)

    def others(self, names: Mapping[Owner, str], entries: Sequence[Boundary]) -> list[tuple[float, str]]:
        """Return the share of each other way and how it differs, the most common first."""
        shares: Counter[str] = Counter()
        for way, number in self.requests.items():
            if way != self.usual:
                shares[self._difference(way, names, entries)] += number
        return [(number / self.requests.total(), how) for how, number in shares.most_common()]

    def _difference(self, way: Way, names: Mapping[Owner, str], entries: Sequence[Boundary]) -> str:
        """Say what differs at the outermost entry of the traced way, and what else is entered."""
        differences: dict[bool, str] = {}
        for (owner, usual), times in zip(self.traced.items(), way, strict=True):
            outer = map(owner_of, outwards(entries, entries[owner - 1].parent))
            around = next((names[outer_owner] for outer_owner in outer if outer_owner in names), OUTSIDE)
            if usual and times:
                how = f"{names[owner]} is entered {times} times, not {usual}"
            else:
                how = f"{around} {'enters' if times else 'does not enter'} {names[owner]}"
            if times != usual:
                differences.setdefault(usual > 0, how)
        return ", ".join(differences.values())


def note_on(ways: Ways, names: Mapping[Owner, str], entries: Sequence[Boundary], *, timed: bool) -> Iterator[str]:
    """Say which share of requests the rows are of, and how the other requests differ."""
    others = ways.others(names, entries)
    if others:
        rare = "; ".join(f"in {share:.1%} {how}" for share, how in others[:MOST_DESCRIBED])
        total = " The time of (total) is of all requests." if timed and ways.mixed else ""
        yield tagged(
            f"Requests take different ways: the rows are of the {ways.share:.1%} of requests that enter the layers as"
            f" shown; {rare}.{total}",
            "other-way",
        )


def why_mixed(ways: Ways) -> str:
    """Say why a figure of requests that cannot be told apart is not one of the traced way."""
    return f"{1 - ways.share:.0%} of the requests enter other layers than shown, and cannot be told from the others"


def new_layers(names: str) -> str:
    """Say that requests have come to enter other layers."""
    return tagged(
        f"the stack of layers changes while it is measured: in the end requests enter {names}, which they did not at"
        " first; build the layers once",
        "changing-stack",
    )


def why_changing(ways: Ways, names: Mapping[Owner, str], entries: Sequence[Boundary]) -> str:
    """Say what changes in a stack that changes however often it is traced."""
    [(_, how), *_] = ways.others(names, entries)
    return tagged(
        f"the stack of layers changes while it is measured: of {ways.requests.total()} requests,"
        f" {ways.requests[ways.usual]} entered the layers as traced; in the others {how}; build the layers once, and"
        " make the app answer each request in the same way",
        "changing-stack",
    )
