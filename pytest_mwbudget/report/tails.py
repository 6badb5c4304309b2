"""The sentence on the percentiles of a layer's time. Pure."""

from __future__ import annotations

from ..model.quantities import TAILS
from ..model.tails import Tails
from .text import figure


def percentiles(tails: Tails) -> str:
    """Return the known percentiles with their intervals, and the number of requests that they come from."""
    parts = []
    for quantity in TAILS:
        us, name = getattr(tails, quantity), quantity.removesuffix("_us")
        parts.append(f"{name} {figure(us.estimate)} µs ({figure(us.low)} … {figure(us.high)})" if us else f"{name} ?")
    return f"{', '.join(parts)}, of {tails.requests} requests"
