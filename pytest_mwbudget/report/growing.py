"""Sentences on what grows with the requests that a layer has served. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..errors import tagged
from ..model.results import ResultRow
from ..model.trend import Trend
from .text import figure

# The most types in a sentence.
MOST_KINDS = 5


def growing(reports: Sequence[ResultRow]) -> Iterator[str]:
    """Name each layer whose time or objects grow; say so if none does. Yields nothing if growth was not looked for."""
    known = [(report.name, report.trend) for report in reports if report.trend is not None]
    for name, trend in known:
        if trend.slower and trend.us_per_1000 is not None:
            us = trend.us_per_1000
            slower = (
                f"{name} gets slower with the requests served: 1,000 more add {figure(us.estimate)} µs to each request"
                f" ({figure(us.low)} … {figure(us.high)}), seen over {trend.requests} requests. Bound what it"
                " collects, or find it without a search."
            )
            yield tagged(slower, "growing")
        if trend.objects:
            kept = (
                f"{name} keeps {_objects(trend.objects)} of each request alive ({_kinds(trend)}), at least"
                f" {trend.later} requests later. Bound what it collects; a cache that holds more than {trend.later}"
                " requests looks the same until it is full."
            )
            yield tagged(kept, "growing")
    if known and not any(trend.grows for _, trend in known):
        requests = max(trend.requests for _, trend in known)
        unknown = dict.fromkeys(f"{key} is not known: {why}" for _, trend in known for key, why in trend.why.items())
        seen = f"No layer was seen to grow with the requests served, over {requests} requests"
        yield "; ".join([seen, *unknown]) + "."


def slope(trend: Trend) -> str:
    """Return both figures of a layer, with the interval and the number of requests."""
    us = trend.us_per_1000
    time = f"{figure(us.estimate)} µs ({figure(us.low)} … {figure(us.high)})" if us else "? µs"
    objects = "?" if trend.objects is None else _number(trend.objects)
    return f"per 1,000 requests {time}, of {trend.requests}; {objects} objects of each request kept, of {trend.counted}"


def _kinds(trend: Trend) -> str:
    return ", ".join(f"{_number(number)} {kind}" for kind, number in [*trend.kinds.items()][:MOST_KINDS])


def _objects(number: float) -> str:
    return "1 object" if number == 1 else f"{_number(number)} objects"


def _number(value: float) -> str:
    return f"{value:.3g}"
