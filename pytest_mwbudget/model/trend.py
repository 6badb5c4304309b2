"""The record of what grows with the requests that a layer has served."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .estimate import Estimate


@dataclass(frozen=True, slots=True)
class Trend:
    """Whether a layer's self time or the objects that it keeps grow with the requests served.

    - `requests`: the timed requests, each through every layer
    - `us_per_1000`: the microseconds, by the split, that 1,000 more requests add to each request; None if unknown
    - `slower`: whether the self time certainly grew, in the first half of the requests and in the second
    - `counted`: the requests whose objects were followed; `later`: the requests that were made after these
    - `objects`: the objects of a request, on average, that were alive after the later requests; 0 if only some
      stretches of requests left any, None if unknown
    - `kinds`: these objects by type
    - `why`: the reason for each figure that is None
    """

    requests: int
    us_per_1000: Estimate | None
    slower: bool
    counted: int
    later: int
    objects: float | None
    kinds: Mapping[str, float] = field(default_factory=dict)
    why: Mapping[str, str] = field(default_factory=dict)

    @property
    def grows(self) -> bool:
        """Whether time or objects grow."""
        return self.slower or bool(self.objects)
