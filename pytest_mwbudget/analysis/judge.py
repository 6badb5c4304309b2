"""The one judge: a figure, the bound of its quantity, and the conditions under which the figure was taken. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from ..errors import tagged
from ..model.estimate import Estimate
from ..model.judged import Judged
from ..model.quantities import BETWEEN_RUNS, TRAITS, Format, Traits
from ..model.remedies import MAX_TIME
from .slowdown import APPS_SLOWED

# How messages write both ends of an interval, and a bound.
WRITTEN: dict[Format, tuple[str, str, str]] = {
    "time": ("{:.2f}", "{:.2f} µs", "{:g} µs"),
    "latency": ("{:.3g} ms",) * 3,
    "share": ("{:.1%}",) * 3,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What a verdict depends on beside the figure and its bound.

    - `slowdown`: how many times slower than at its best the machine ran, at least 1
    - `waited`: how much longer than at the machine's best the figure may have waited for threads
    - `limit`: the detection limit; `least_limit`: what more time lowers it to at best
    - `room`: a figure fails only if it is above its bound by more than this share; None stands for the quantity's room
    - `no_pass`, `no_fail`: why a figure within its bound does not pass, and why one above its bound does not fail
    - `too_few`: the reason for a figure without an interval
    - `unsure`: the reason for a figure near its bound, None for one with the numbers; `holds` and `near` then advise
      where the interval holds the bound, and where it begins above it
    - `time`: the option that gives the measurement more time
    """

    slowdown: float = 1.0
    waited: float = 0.0
    limit: float = 0.0
    least_limit: float = 0.0
    room: float | None = None
    no_pass: str | None = None
    no_fail: str | None = None
    too_few: str | None = None
    unsure: str | None = None
    holds: str = ""
    near: str = "figures differ by from run to run"
    time: str = MAX_TIME.name


# Judges a figure of a quantity by a bound.
Judge: TypeAlias = Callable[[str, Estimate, float, Conditions], Judged]

# On a quiet machine, of figures that need no detection limit.
QUIET = Conditions()


def judge(quantity: str, figure: Estimate, bound: float, conditions: Conditions = QUIET) -> Judged:
    """Judge a figure by a bound of its quantity.

    `pass` if the whole interval is within the bound; `fail` if all of it is above what runs and machines differ by. A
    bound below the detection limit can only fail, by a figure that would be above that limit as well.
    """
    within = figure.high <= bound
    if not within and not figure.bounded and conditions.too_few is not None:
        return Judged(bound, "undecided", conditions.too_few)
    why = undetectable(figure, bound, conditions)
    if why is None:
        why = conditions.no_pass if within else _why_not_failed(TRAITS[quantity], figure, bound, conditions)
    if why is not None:
        return Judged(bound, "undecided", why)
    return Judged(bound, "pass" if within else "fail")


def undetectable(figure: Estimate, bound: float, conditions: Conditions) -> str | None:
    """Return why a bound below the detection limit cannot be judged, None for another bound.

    A figure that would fail a bound of that limit fails this one as well.
    """
    limit = conditions.limit
    if not math.isfinite(limit):
        return tagged(
            "there were too few requests to tell this run's detection limit; give the run more time with"
            f" {conditions.time}",
            "too-few-requests",
        )
    if bound >= limit or figure.low > fails_above(limit, conditions.slowdown, conditions.waited):
        return None
    more_time = f", or give the run more time with {conditions.time}" if bound > conditions.least_limit else ""
    return tagged(
        f"a budget of {bound:g} µs is below this run's detection limit of {limit:.2f} µs, the least overhead that it"
        f" could tell from zero; raise the budget above that limit{more_time}",
        "below-detection-limit",
    )


def fails_above(bound: float, slowdown: float, waited: float = 0.0, room: float = BETWEEN_RUNS) -> float:
    """Return what all of an interval must be above for a figure to fail."""
    return (1 + room) * slowdown**APPS_SLOWED * bound + waited


def _why_not_failed(traits: Traits, figure: Estimate, bound: float, conditions: Conditions) -> str | None:
    """Return why a figure that is not within its bound does not fail, None if it fails."""
    slowdown, waited = conditions.slowdown, conditions.waited
    room = traits.room if conditions.room is None else conditions.room
    if figure.low <= bound:
        return conditions.unsure or _holds(traits, figure, bound, conditions)
    if conditions.no_fail is not None or room is None or figure.low > fails_above(bound, slowdown, waited, room):
        return conditions.no_fail
    if figure.low > fails_above(bound, slowdown, room=room):
        return tagged(
            f"hops to threads took longer than at the machine's best, by up to {waited:.0f} µs here, which may explain"
            " the excess; run it again when the machine is less busy",
            "slow-machine",
        )
    if slowdown > 1:
        layers = "" if traits.source == "load" else f", and a layer up to {slowdown**APPS_SLOWED:.2f} times"
        return tagged(
            f"the machine ran {slowdown:.2f} times slower than at its best{layers}, which may explain the excess; run"
            " it again when the machine is less busy",
            "slow-machine",
        )
    interval, written = _written(traits, figure, bound)
    return conditions.unsure or tagged(
        f"{interval} begins above the budget of {written} by no more than the {room:.0%} that {conditions.near}",
        "near-budget",
    )


def _holds(traits: Traits, figure: Estimate, bound: float, conditions: Conditions) -> str:
    """Say that the bound is within the interval of a figure, or in the range of a count."""
    if traits.counted:
        return tagged(
            f"most requests have {figure.low} to {figure.high}, and the budget of {bound:g} is in this range",
            "varying-count",
        )
    interval, written = _written(traits, figure, bound)
    advice = f"; {conditions.holds}" if conditions.holds else ""
    return tagged(f"{interval} holds the budget of {written}{advice}", "near-budget")


def _written(traits: Traits, figure: Estimate, bound: float) -> tuple[str, str]:
    low, high, most = WRITTEN[traits.format]
    return f"the interval {low.format(figure.low)} to {high.format(figure.high)}", most.format(bound)
