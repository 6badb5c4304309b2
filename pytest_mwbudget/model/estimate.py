"""Units of time, and a figure with its confidence interval."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

Microseconds: TypeAlias = float
Nanoseconds: TypeAlias = int
Seconds: TypeAlias = float

# An interval is wide if it reaches farther to one side than this share of the figure and this much: it would hold a
# budget of 1.3 times the figure, as the docs advise.
WIDE_SHARE: float = 0.3
WIDE_US: Microseconds = 5.0
# An interval is uninformative if it contains 0 and reaches farther than UNINFORMATIVE_TIMES the figure and than this.
UNINFORMATIVE_TIMES: float = 3.0
UNINFORMATIVE_US: Microseconds = 25.0


@dataclass(frozen=True, slots=True)
class Estimate:
    """A median in microseconds per request, with the ends of its confidence interval.

    The interval of a sum or a difference holds whenever the intervals of both operands hold, also if the operands are
    correlated. `independent_sum` returns a narrower interval.
    """

    estimate: Microseconds
    low: Microseconds
    high: Microseconds

    @property
    def half_width(self) -> Microseconds:
        """The larger distance from the estimate to an end of the interval."""
        return max(self.estimate - self.low, self.high - self.estimate)

    @property
    def bounded(self) -> bool:
        """Whether both ends of the interval are finite."""
        return math.isfinite(self.half_width)

    @property
    def centred(self) -> Estimate:
        """Zero, with the distances of the interval's ends from the estimate."""
        return Estimate(0.0, self.low - self.estimate, self.high - self.estimate)

    def __add__(self, other: Estimate) -> Estimate:
        return Estimate(self.estimate + other.estimate, self.low + other.low, self.high + other.high)

    def __neg__(self) -> Estimate:
        return Estimate(-self.estimate, -self.high, -self.low)

    def __sub__(self, other: Estimate) -> Estimate:
        return self + -other

    def __mul__(self, factor: float) -> Estimate:
        """Scale by a positive factor."""
        return Estimate(self.estimate * factor, self.low * factor, self.high * factor)

    def __truediv__(self, divisor: float) -> Estimate:
        """Divide by a positive number."""
        return Estimate(self.estimate / divisor, self.low / divisor, self.high / divisor)

    def widened(self, by_us: Microseconds) -> Estimate:
        """Move both ends of the interval outwards."""
        return Estimate(self.estimate, self.low - by_us, self.high + by_us)

    def clipped(self, least: Microseconds, most: Microseconds) -> Estimate:
        """Clip the estimate and both ends of the interval to `least` and `most`."""
        return Estimate(*(min(max(least, figure), most) for figure in (self.estimate, self.low, self.high)))


ZERO = Estimate(0.0, 0.0, 0.0)


def independent_sum(*parts: Estimate) -> Estimate:
    """Add independent estimates; the interval of the sum has their confidence level.

    On each side, the distances from estimate to end of the interval are added in quadrature. Source: Zou and Donner,
    "Construction of confidence limits about effect measures", Statistics in Medicine 27 (2008), MOVER.
    """
    estimate = math.fsum(part.estimate for part in parts)
    below, above = (part.estimate - part.low for part in parts), (part.high - part.estimate for part in parts)
    return Estimate(estimate, estimate - math.hypot(*below), estimate + math.hypot(*above))
