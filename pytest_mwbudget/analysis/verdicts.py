"""Whether a figure keeps its budget. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..model.estimate import Estimate, Microseconds
from ..model.results import Count, Verdict

# The same layer reads higher in one process than in another, by where its code and data lie and by which caches its
# neighbours leave cold: by 4 per cent as a rule, by twice that at worst. And a layer that wraps `send` reads up to
# 5 per cent higher than removing it saves (docs/decisions/0001). No interval of one process holds either.
BETWEEN_RUNS = 0.08
# A neighbour slows apps by more than the reference workload: by up to this power of it (docs/design.md, "Slowdown").
APPS_SLOWED = 2


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict, and for an undecided one the reason and whether more time could bring one."""

    verdict: Verdict
    reason: str | None = None
    time_tells: bool = False


def judge(
    us: Estimate, bound: Microseconds, *, floor: Microseconds, slowdown: float, least_us: Microseconds = 0.0
) -> Judgement:
    """Whether `us` keeps `bound`.

    `pass` when the whole interval is within the budget, `fail` when all of it is above, by more than `BETWEEN_RUNS`:
    also after the slowdown of the machine (its reference workload against the quickest time it has shown, at least 1)
    is taken out twice, because a busy neighbour must not fail anybody's test. A budget below the floor of the run is
    refused; no more time would bring that floor below `least_us`.
    """
    if not math.isfinite(floor):
        return Judgement(
            "undecided",
            "there were too few requests to tell this run's floor; give the run more time with --mw-budget-max-time",
        )
    if bound < floor:
        more_time = ", or give the run more time with --mw-budget-max-time" if bound > least_us else ""
        return Judgement(
            "undecided",
            f"a budget of {bound:g} µs is below this run's floor of {floor:.2f} µs, the least it could tell from"
            f" nothing; raise the budget above the floor{more_time}",
        )
    if us.high <= bound:
        return Judgement("pass")
    interval = f"the interval {us.low:.2f} to {us.high:.2f} µs"
    if us.low <= bound:
        return Judgement("undecided", f"{interval} holds the budget of {bound:g} µs", time_tells=True)
    if us.low > fails_above(bound, slowdown):
        return Judgement("fail")
    if slowdown > 1:
        return Judgement(
            "undecided",
            f"the machine ran {slowdown:.2f} times slower than at its best, and a layer up to"
            f" {slowdown**APPS_SLOWED:.2f} times, which may explain the excess; run it again when the machine is less"
            " busy",
        )
    return Judgement(
        "undecided",
        f"{interval} begins above the budget of {bound:g} µs by no more than the {BETWEEN_RUNS:.0%} that figures differ"
        " by from run to run",
        time_tells=True,
    )


def fails_above(bound: Microseconds, slowdown: float) -> Microseconds:
    """What all of an interval must be above for the budget to fail."""
    return (1 + BETWEEN_RUNS) * slowdown**APPS_SLOWED * bound


def judge_count(count: Count, most: float) -> Judgement:
    """Whether the typical request keeps `most`. There is nothing to be undecided about."""
    return Judgement("pass" if count.count <= most else "fail")


def seconds_needed(
    us: Estimate, bound: Microseconds, spent_s: float, *, slowdown: float = 1.0, method_us: Microseconds = 0.0
) -> float | None:
    """How long the run would have to be for a verdict, as the interval narrows with the square root of the time.

    All but `method_us` of its half width does. None when the estimate stands so near the budget that no time is enough.
    """
    gap = max(bound - us.estimate, us.estimate - fails_above(bound, slowdown)) - method_us
    if not math.isfinite(us.half_width) or gap <= 0:
        return None
    return spent_s * ((us.half_width - method_us) / gap) ** 2
