"""Units of time, and a figure with its confidence interval."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

Microseconds: TypeAlias = float
Nanoseconds: TypeAlias = int
Seconds: TypeAlias = float


@dataclass(frozen=True, slots=True)
class Estimate:
    """A median in microseconds per request, with the ends of its confidence interval."""

    estimate: Microseconds
    low: Microseconds
    high: Microseconds

    @property
    def half_width(self) -> Microseconds:
        """The larger distance from the estimate to an end of the interval."""
        return max(self.estimate - self.low, self.high - self.estimate)
