"""The record of a layer's slow requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .estimate import Estimate


@dataclass(frozen=True, slots=True)
class Tails:
    """The 95th and the 99th percentile of a layer's self time, in microseconds, by the split.

    `requests` is the number of requests from quiet moments that they come from. A percentile is None if these are too
    few for an interval; `why` has the reason by the name of the field. Garbage collection is held off in these
    requests. What interrupts the process is part of the figures.
    """

    requests: int
    p95_us: Estimate | None = None
    p99_us: Estimate | None = None
    why: Mapping[str, str] = field(default_factory=dict)
