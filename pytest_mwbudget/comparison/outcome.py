"""The outcome of a comparison: each request that both sides measured with its changes, and what was not judged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ..model.changes import Change
from ..model.judged import Verdict
from ..model.request_keys import RequestKey
from .allowed import Allowed, limited_as


class RequestChanges(NamedTuple):
    """A request that both sides measured."""

    key: RequestKey
    changes: Sequence[Change]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs, two sets of runs, or the two sides of pairs of processes.

    `new` and `gone` are requests that only the later or only the earlier side measured. `allowed` is what the changes
    were judged by. `differences` names what the surroundings differ by, `repeated` which requests several files of one
    side have. `open` are the changes that more pairs of processes would tell more of.
    """

    requests: Sequence[RequestChanges] = ()
    new: Sequence[RequestKey] = ()
    gone: Sequence[RequestKey] = ()
    allowed: Allowed = field(default_factory=dict)
    differences: tuple[str, ...] = ()
    repeated: tuple[str, ...] = ()
    open: Sequence[Change] = ()

    @property
    def changes(self) -> Iterator[tuple[RequestKey, Change]]:
        """All changes of all requests."""
        return ((key, change) for key, changes in self.requests for change in changes)

    def judged(self, verdict: Verdict) -> list[tuple[RequestKey, Change]]:
        """Return the changes with this verdict."""
        return [(key, change) for key, change in self.changes if change.verdict == verdict]

    def unjudged(self) -> Mapping[tuple[str, str], int]:
        """Return how many figures that are limited were not compared, by quantity and reason.

        The number is 0 if neither side measured the quantity.
        """
        without = ((limited_as(change), change.reason) for _, change in self.judged("undecided"))
        numbers = Counter((quantity, reason) for quantity, reason in without if quantity and reason)
        measured = {limited_as(change) for _, change in self.changes}
        unknown = {(quantity, "neither run measured it"): 0 for quantity in self.allowed if quantity not in measured}
        return {**numbers, **unknown}
