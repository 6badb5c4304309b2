"""Tell the percentiles of a layer's self time, and whether slow requests are the layer's or the machine's. Pure.

The machine makes slow requests too, because it interrupts the process. So pieces of fixed work are timed beside the
requests, and requests count as the layer's own only as far as they are more than such pieces (docs/decisions/0035).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from ..model.estimate import Estimate, Microseconds
from ..model.quantities import TAILS, Quantity
from ..model.stack import EntryIndex
from ..model.tails import Tails
from .calibration import US_PER_NS
from .estimates import METHOD_SHARE, Estimates
from .quantiles import least_share, most_share, quantile_interval, requests_needed

# Requests count as slow above these multiples of what lets a budget fail.
MULTIPLES = (1, 2, 4)


def tails_of(estimates: Estimates, entry: EntryIndex) -> Tails | None:
    """Return the percentiles of a layer's self time, None if no request tells them."""
    requests = len(estimates.own_ns.get(entry, ()))
    if not requests:
        return None
    percentiles = {quantity: percentile(estimates, entry, quantity) for quantity in TAILS}
    known = {quantity: us if us is not None and us.bounded else None for quantity, us in percentiles.items()}
    why: dict[str, str] = {
        quantity: too_few(estimates, quantity, requests) for quantity, us in known.items() if us is None
    }
    return Tails(requests, known["p95_us"], known["p99_us"], why)


def percentile(estimates: Estimates, entry: EntryIndex, quantity: Quantity) -> Estimate | None:
    """Return a percentile of a layer's self time; None without requests, an infinite end with too few of them."""
    own_us = _own_us(estimates, entry)
    if not own_us:
        return None
    us = quantile_interval(own_us, TAILS[quantity], _alpha(estimates))
    return us.widened(_error_us(estimates, entry, us.estimate))


def too_few(estimates: Estimates, quantity: Quantity, requests: int) -> str:
    """Say that so few requests do not tell a percentile."""
    return (
        f"{quantity.removesuffix('_us')} takes about {needed(estimates, quantity)} requests from quiet moments, and"
        f" there were {requests}"
    )


def needed(estimates: Estimates, quantity: Quantity) -> int:
    """Return about how many requests give a percentile an interval."""
    return requests_needed(TAILS[quantity], _alpha(estimates))


@dataclass(frozen=True, slots=True)
class SlowRequests:
    """How many requests of `requests` were `slow`, and how many pieces of work of `pieces` were `slowed` as much.

    `certain` says that more requests than a percentile allows are slow by the layer's own doing.
    """

    slow: int
    requests: int
    slowed: int
    pieces: int
    certain: bool


def slow_requests(
    estimates: Estimates, entry: EntryIndex, quantity: Quantity, above_us: Microseconds, kept_us: Microseconds
) -> SlowRequests:
    """Count the requests in which a layer took more than `above_us`, and the pieces of work that the machine slowed.

    A layer that keeps its budget takes up to `kept_us`. It is above only if the machine takes the difference from it
    within this time. Pieces of work that are together as long show how often that happens. Long interruptions are
    rarer than short ones, so multiples of `above_us` may tell what `above_us` itself does not.
    """
    above_us += _error_us(estimates, entry, above_us)
    own_us, alpha = _own_us(estimates, entry), _alpha(estimates) / (2 * len(MULTIPLES))
    counts = []
    for multiple in MULTIPLES:
        slow = [us > multiple * above_us for us in own_us]
        slowed = _slowed(estimates.machine_ns, kept_us / US_PER_NS, (multiple * above_us - kept_us) / US_PER_NS)
        certain = least_share(slow, alpha) - most_share(slowed, alpha) > TAILS[quantity]
        counts.append(SlowRequests(sum(slow), len(slow), sum(slowed), len(slowed), certain))
    return next((count for count in counts if count.certain), counts[0])


def _slowed(pieces_ns: Sequence[float], length_ns: float, more_ns: float) -> list[bool]:
    """Return for each stretch of pieces, together at least `length_ns` long, whether it took `more_ns` too long."""
    typical_ns = median(pieces_ns) if pieces_ns else 0.0
    if not typical_ns:
        return [False for _ in pieces_ns]  # on a clock that stands still the machine takes nothing
    number = max(1, math.ceil(length_ns / typical_ns))
    whole = len(pieces_ns) // number * number
    stretches = (sum(pieces_ns[start : start + number]) for start in range(0, whole, number))
    return [taken_ns - number * typical_ns > more_ns for taken_ns in stretches]


def _own_us(estimates: Estimates, entry: EntryIndex) -> list[Microseconds]:
    """Return the layer's self time in each request from a quiet moment, at the median that its row shows."""
    own_ns = estimates.own_ns.get(entry, ())
    if not own_ns:
        return []
    moved_us = estimates.split[entry].estimate - median(own_ns) * US_PER_NS
    return [ns * US_PER_NS + moved_us for ns in own_ns]


def _error_us(estimates: Estimates, entry: EntryIndex, us: Microseconds) -> Microseconds:
    """Return how wrong the time of a request may be in which the layer took `us`.

    Every request is moved by the distance of the row's median, so each may be as wrong as the row.
    """
    row = estimates.split[entry]
    return row.half_width + estimates.shared_us.get(entry, 0.0) + METHOD_SHARE * max(0.0, us - row.estimate)


def _alpha(estimates: Estimates) -> float:
    return estimates.alpha / len(TAILS)
