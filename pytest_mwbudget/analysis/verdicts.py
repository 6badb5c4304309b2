"""The one place that judges: figures of time and counts, also of layers that are measured together. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from ..errors import tagged
from ..model.estimate import Estimate, Microseconds, Seconds
from ..model.results import Count, Effort, Judged, Quantity, Verdict
from ..model.stack import EntryIndex, Layer, RowIndex
from .estimates import ENOUGH_REQUESTS, Estimates
from .rows import Bounded, Row, Together, by_split, is_narrow, rows_of, told_by

# The same layer reads higher in one process than in another, by where its code and data lie and by which caches its
# neighbours leave cold: by 4 per cent as a rule, by twice that at worst. And a layer that wraps `send` reads up to
# 5 per cent higher than removing it saves (docs/decisions/0001). No interval of one process holds either.
BETWEEN_RUNS = 0.08
# A neighbour slows apps by more than the reference workload: by up to this power of it (docs/decisions/0010).
APPS_SLOWED = 2
# Nobody waits longer than this for one request: then the advice is something else than more time.
LONGEST_ADVISED_S: Seconds = 60.0

# A budget of time: of a layer, by its row, on a quantity; None is the budget of the whole request.
BudgetKey: TypeAlias = tuple[RowIndex, Quantity] | None


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict, and for an undecided one the reason and whether more time could bring one.

    Where it could, `_reason` adds how much time, and the id of the message.
    """

    verdict: Verdict
    reason: str | None = None
    time_tells: bool = False


# ---- one figure -------------------------------------------------------------------------------------------------


def judge(
    us: Estimate,
    bound: Microseconds,
    *,
    limit_us: Microseconds,
    slowdown: float,
    least_us: Microseconds = 0.0,
) -> Judgement:
    """Whether `us` keeps `bound`.

    `pass` when the whole interval is within the budget, `fail` when all of it is above, by more than `BETWEEN_RUNS`:
    also after the slowdown of the machine (its reference workload against the quickest time it has shown, at least 1)
    is taken out twice, because a busy neighbour must not fail anybody's test. A budget below the detection limit
    of the run is refused; no more time would bring that limit below `least_us`.
    """
    if not math.isfinite(limit_us):
        return Judgement(
            "undecided",
            tagged(
                "there were too few requests to tell this run's detection limit; give the run more time with"
                " --mw-budget-max-time",
                "too-few-requests",
            ),
        )
    if bound < limit_us:
        more_time = ", or give the run more time with --mw-budget-max-time" if bound > least_us else ""
        return Judgement(
            "undecided",
            tagged(
                f"a budget of {bound:g} µs is below this run's detection limit of {limit_us:.2f} µs, the least"
                f" overhead that it could tell from zero; raise the budget above that limit{more_time}",
                "below-detection-limit",
            ),
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
            tagged(
                f"the machine ran {slowdown:.2f} times slower than at its best, and a layer up to"
                f" {slowdown**APPS_SLOWED:.2f} times, which may explain the excess; run it again when the machine is"
                " less busy",
                "slow-machine",
            ),
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


def merged(layer: Layer) -> str:
    """Why nothing can be said of a layer alone."""
    return tagged(f"it is measured together with {layer.merged_with}: {layer.merged_because}", "merged")


def _unless_explained(judgement: Judgement, together: Together | None, of_all: Judgement | None) -> Judgement:
    """The judgement of a layer, unless its failure may be that of what is measured together with it.

    `of_all` says whether all of them together keep what all may take; None where not all have a budget.
    """
    if judgement.verdict == "fail" and together and (of_all is None or of_all.verdict != "fail"):
        return Judgement("undecided", together.why)
    return judgement


# ---- counts -----------------------------------------------------------------------------------------------------


def judge_count(count: Count, most: float) -> Judgement:
    """Whether the typical request keeps `most`. There is nothing to be undecided about."""
    return Judgement("pass" if count.count <= most else "fail")


def judge_counted(bounded: Bounded, quantity: Quantity, own: Count | None, neighbour: Count | None) -> Judgement:
    """Whether a layer keeps its budget of a count.

    `own` is None for a layer that is merged with a neighbour: it keeps its budget when both of them together do.
    """
    bound = bounded.bounds[quantity]
    if own is not None:
        shared = bounded.together.bounds.get(quantity) if bounded.together else None
        of_all = None if shared is None else judge_count(own, shared)
        return _unless_explained(judge_count(own, bound), bounded.together, of_all)
    if neighbour is not None and neighbour.count <= bound:
        return Judgement("pass")
    return Judgement("undecided", merged(bounded.layer))


# ---- a look at everything ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Look:
    """What is known after a look at all samples: the rows, and a judgement of every budget of time."""

    estimates: Estimates
    rows: tuple[Row, ...]
    judgements: Mapping[BudgetKey, Judgement]
    total_us: Microseconds | None = None

    def judged(self, row: Row, effort: Effort) -> dict[Quantity, Judged]:
        """Return the verdicts on a row's budgets of time, with their reasons."""
        found = {}
        for quantity, bound in row.bounded.bounds.items():
            judgement = self.judgements[row.layer.index, quantity]
            why = _reason(judgement, row.estimate_of(quantity), bound, effort, row.slowdown, row.method_us)
            found[quantity] = Judged(bound, judgement.verdict, why)
        return found

    def judged_total(self, effort: Effort) -> Judged | None:
        """Return the verdict on the whole request; None when it has no budget."""
        if self.total_us is None:
            return None
        judgement, found = self.judgements[None], self.estimates
        why = _reason(judgement, found.whole, self.total_us, effort, found.slowdowns.whole)
        return Judged(self.total_us, judgement.verdict, why)

    @property
    def failed(self) -> frozenset[BudgetKey]:
        """The budgets that are not kept."""
        return frozenset(key for key, judgement in self.judgements.items() if judgement.verdict == "fail")

    @property
    def precise(self) -> bool:
        """Whether the rows are as narrow as they will be shown; where there are none, whether the whole is."""
        if all(row.us is None for row in self.rows):
            return is_narrow(self.estimates.whole, self.estimates.whole.half_width)
        return all(row.precise for row in self.rows)

    @property
    def kept(self) -> bool:
        """Whether there are budgets of time, and all of them are kept for certain."""
        said = {judgement.verdict for judgement in self.judgements.values()}
        return said == {"pass"} and self.estimates.bounded and not any(map(self._bypass_decides, self.rows))

    def _bypass_decides(self, row: Row) -> bool:
        """Whether a budget is kept by the bypass alone.

        With few requests a bypass that has changed more than its layer is not told from one that has not. The split
        has every layer in place: what it shows to be kept is kept, whatever becomes of the bypass.
        """
        entry = row.entry
        if row.method != "bypass" or entry is None:
            return False
        shared_us = self.estimates.shared_us.get(entry, 0.0)
        split = {quantity: by_split(entry, quantity, self.estimates) for quantity in row.bounded.bounds}
        return any(us.widened(shared_us).high > row.bounded.bounds[quantity] for quantity, us in split.items())


def judge_all(
    layers: Sequence[Bounded],
    found: Estimates,
    total_us: Microseconds | None,
    *,
    pending: Collection[EntryIndex] = (),
    crowded: str | None = None,
) -> Look:
    """Judge every budget of time by the estimates.

    `pending` are the entries of layers that are still to be bypassed; `crowded` is why no failure is to be believed.
    """
    rows = rows_of(layers, found)
    judgements: dict[BudgetKey, Judgement] = {
        (row.layer.index, quantity): _judge_row(row, rows, quantity, found, pending, crowded)
        for row in rows
        for quantity in row.bounded.bounds
    }
    if total_us is not None:
        # It has no probes, so it needs no detection limit.
        judgements[None] = _judge_figure(found.whole, total_us, found, found.slowdowns.whole, crowded, probed=False)
    return Look(found, rows, judgements, total_us)


def contested(row: Row, quantity: Quantity, bound: Microseconds, found: Estimates) -> bool:
    """Whether the bypass says that it is over the budget, and the split does not: a test fails when both say so."""
    us = row.estimate_of(quantity)
    if row.method != "bypass" or row.entry is None or us is None or us.low <= bound:
        return False
    return by_split(row.entry, quantity, found).estimate <= bound


def _judge_row(
    row: Row,
    rows: Sequence[Row],
    quantity: Quantity,
    found: Estimates,
    pending: Collection[EntryIndex],
    crowded: str | None,
) -> Judgement:
    us, bound = row.estimate_of(quantity), row.bounded.bounds[quantity]
    if us is None:
        return _judge_merged(row, rows, quantity, bound)
    if row.method == "split" and row.entry in pending:
        few = "the layer runs its inside in a task, and there are few pairs without it yet"
        return Judgement("undecided", tagged(few, "too-few-requests"))
    judged = partial(_judge_figure, us, found=found, slowdown=row.slowdown, crowded=crowded)
    judgement = judged(bound)
    if judgement.verdict == "fail" and contested(row, quantity, bound, found):
        return Judgement("undecided", tagged("the bypass says it is over its budget, the split does not", "bypass"))
    together = row.bounded.together
    shared = together.bounds.get(quantity) if together else None
    return _unless_explained(judgement, together, None if shared is None else judged(shared))


def _judge_merged(row: Row, rows: Sequence[Row], quantity: Quantity, bound: Microseconds) -> Judgement:
    """A merged layer is within its budget when it and its neighbour together are."""
    if row.layer.merged_with is None:
        told = "its time" if quantity == "us" else "how long it holds the event loop"
        few = f"there were too few requests to tell {told}; give it more max_time"
        return Judgement("undecided", tagged(few, "too-few-requests"))
    together = told_by(row, rows)
    us = together.estimate_of(quantity) if together else None
    if us is not None and us.high <= bound:
        return Judgement("pass")
    return Judgement("undecided", merged(row.layer))


def _judge_figure(
    us: Estimate,
    bound: Microseconds,
    found: Estimates,
    slowdown: float,
    crowded: str | None,
    *,
    probed: bool = True,
) -> Judgement:
    limit_us = found.detection_limit_us if probed else 0.0
    judgement = judge(us, bound, limit_us=limit_us, slowdown=slowdown, least_us=found.least_us)
    return Judgement("undecided", crowded) if judgement.verdict == "fail" and crowded else judgement


# ---- why it is undecided ----------------------------------------------------------------------------------------


def _reason(
    judgement: Judgement,
    us: Estimate | None,
    bound: Microseconds,
    effort: Effort,
    slowdown: float,
    method_us: Microseconds = 0.0,
) -> str | None:
    """Why a budget is undecided, and how much more effort than this a verdict would take.

    No time would narrow `method_us` of the interval.
    """
    if judgement.reason is None or us is None:
        return judgement.reason
    if not math.isfinite(us.half_width):
        rate = effort.requests / max(effort.seconds, 1e-9)
        few = f"there were too few requests for an interval: {more_time(ENOUGH_REQUESTS / max(rate, 1e-9))}"
        return tagged(few, "too-few-requests")
    if not judgement.time_tells:
        return judgement.reason
    needed = seconds_needed(us, bound, effort.seconds, slowdown=slowdown, method_us=method_us)
    if needed is None:
        remedy = "it stands so near its budget that no run would tell: a budget of 1.3 times the figure leaves room"
    else:
        remedy = more_time(needed, us)
    return tagged(f"{judgement.reason}; {remedy}", "near-budget")


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


def more_time(seconds: Seconds, us: Estimate | None = None) -> str:
    """How to get what takes this long: by waiting, or where nobody waits so long, by something else.

    `us` is the figure that a budget is held against, where there is one.
    """
    if seconds <= LONGEST_ADVISED_S:
        return f"--mw-budget-max-time={math.ceil(seconds)} may be enough"
    roomy = (
        "" if us is None or us.estimate <= 0 else f", or a budget of 1.3 times the figure ({1.3 * us.estimate:.3g} µs)"
    )
    return (
        f"that would take more than {LONGEST_ADVISED_S:.0f} s; give the app an async stand-in for what it waits for, or"
        f" use a budget of counts (tasks, objects){roomy}"
    )
