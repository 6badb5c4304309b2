"""Judge times and counts by their budgets, also those of layers that are measured together. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ..errors import tagged
from ..model.estimate import Estimate, Microseconds, Seconds
from ..model.messages import FEWEST_MESSAGES
from ..model.quantities import TRAITS, Quantity
from ..model.remedies import MAX_TIME, TimeOption
from ..model.results import Effort, Frame, Judged, Range, ResultRow, Verdict
from ..model.stack import EntryIndex, Layer, RowIndex
from .estimates import ENOUGH_REQUESTS, Estimates
from .rows import Bounded, Row, Together, is_narrow, row_with_time, rows_of
from .slowdown import APPS_SLOWED
from .tails import needed, percentile, slow_requests, too_few

# The same layer differs by up to this share from process to process, and no interval of one process contains that
# (docs/decisions/0012).
BETWEEN_RUNS = 0.08
# A time that grows keeps a budget if it does after growing this many times as much again.
GROWS_ON = 4
# For a longer run than this the advice is something else than more time.
LONGEST_ADVISED_S: Seconds = 60.0

# A budget of time: the row of the layer and the quantity, or a row that is no layer.
BudgetKey: TypeAlias = tuple[RowIndex, Quantity] | Frame


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict, and the reason if it is undecided.

    `time_tells` says that more time could bring a verdict; the reason then lacks the advice and a message id.
    """

    verdict: Verdict
    reason: str | None = None
    time_tells: bool = False


NOT_ENTERED = tagged("the request did not come to it: a layer outside answered", "not-entered")


# ---- one figure -------------------------------------------------------------------------------------------------


def judge(
    us: Estimate,
    bound: Microseconds,
    *,
    limit_us: Microseconds,
    slowdown: float,
    waited_us: Microseconds = 0.0,
    least_us: Microseconds = 0.0,
    time: TimeOption = MAX_TIME,
) -> Judgement:
    """Judge a time by its budget.

    `pass` if the whole interval is within the budget; `fail` if all of it is above `fails_above`. A budget below the
    detection limit `limit_us` can only fail, by a figure that would exceed a budget of that limit too. More time, which
    `time` gives, lowers that limit to `least_us` at best. `slowdown` is at least 1. The figure may have waited for
    threads `waited_us` longer than at the machine's best.
    """
    undetectable = _undetectable(us, bound, limit_us, least_us, time, fails_above(limit_us, slowdown, waited_us))
    if undetectable is not None:
        return undetectable
    if us.high <= bound:
        return Judgement("pass")
    interval = f"the interval {us.low:.2f} to {us.high:.2f} µs"
    if us.low <= bound:
        return Judgement("undecided", f"{interval} holds the budget of {bound:g} µs", time_tells=True)
    if us.low > fails_above(bound, slowdown, waited_us):
        return Judgement("fail")
    if us.low > fails_above(bound, slowdown):
        return Judgement(
            "undecided",
            tagged(
                f"hops to threads took longer than at the machine's best, by up to {waited_us:.0f} µs here, which may"
                " explain the excess; run it again when the machine is less busy",
                "slow-machine",
            ),
        )
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


def _undetectable(
    us: Estimate,
    bound: Microseconds,
    limit_us: Microseconds,
    least_us: Microseconds,
    time: TimeOption,
    above_us: Microseconds,
) -> Judgement | None:
    """Return the judgement of a budget below the detection limit, None for another budget.

    A figure above `above_us` fails a budget of that limit, so it fails this budget as well.
    """
    if not math.isfinite(limit_us):
        return Judgement(
            "undecided",
            tagged(
                "there were too few requests to tell this run's detection limit; give the run more time with"
                f" {time.name}",
                "too-few-requests",
            ),
        )
    if bound < limit_us and not us.low > above_us:
        more_time = f", or give the run more time with {time.name}" if bound > least_us else ""
        return Judgement(
            "undecided",
            tagged(
                f"a budget of {bound:g} µs is below this run's detection limit of {limit_us:.2f} µs, the least"
                f" overhead that it could tell from zero; raise the budget above that limit{more_time}",
                "below-detection-limit",
            ),
        )
    return None


def fails_above(bound: Microseconds, slowdown: float, waited_us: Microseconds = 0.0) -> Microseconds:
    """Return the time that all of an interval must exceed for the budget to fail."""
    return (1 + BETWEEN_RUNS) * slowdown**APPS_SLOWED * bound + waited_us


def _growth(us: Estimate, bound: Microseconds) -> str:
    """Return why a time that grows with the requests served is not judged by a budget within its course."""
    return tagged(
        f"its time grows with the requests served, here from {us.low:.2f} to {us.high:.2f} µs, so a verdict on the"
        f" budget of {bound:g} µs would depend on their number; bound what is collected, or find it without a search",
        "growing",
    )


def _growth_us(row: Row) -> Microseconds:
    """Return by how much a time that grows must stay below a budget that it keeps, 0 for other times."""
    return GROWS_ON * (row.us.high - row.us.low) if row.grows and row.us is not None else 0.0


def _merged(layer: Layer) -> Judgement:
    return Judgement(
        "undecided", tagged(f"it is measured together with {layer.merged_with}: {layer.merged_because}", "merged")
    )


def _unless_explained(judgement: Judgement, together: Together | None, of_all: Judgement | None) -> Judgement:
    """Return the judgement of a layer, undecided if a layer measured together with it may be over instead.

    `of_all` is the judgement of all of them by the sum of their budgets, None if one has no budget.
    """
    if judgement.verdict == "fail" and together and (of_all is None or of_all.verdict != "fail"):
        return Judgement("undecided", together.why)
    return judgement


# ---- counts -----------------------------------------------------------------------------------------------------


def judge_count(count: Range, most: float) -> Judgement:
    """Judge a count by the range of most requests: undecided if the budget is in it."""
    low, high = count
    if low <= most < high:
        return Judgement(
            "undecided",
            tagged(f"most requests have {low} to {high}, and the budget of {most:g} is in this range", "varying-count"),
        )
    return Judgement("pass" if high <= most else "fail")


def judge_counted(bounded: Bounded, quantity: Quantity, own: Range | None, neighbour: Range | None) -> Judgement:
    """Judge a layer's budget of a count by its range.

    `own` is None for a layer that is merged with a neighbour: it passes if both together keep its budget.
    """
    bound = bounded.bounds[quantity]
    if own is not None:
        shared = bounded.together.bounds.get(quantity) if bounded.together else None
        of_all = None if shared is None else judge_count(own, shared)
        return _unless_explained(judge_count(own, bound), bounded.together, of_all)
    if neighbour is not None and judge_count(neighbour, bound).verdict == "pass":
        return Judgement("pass")
    return _merged(bounded.layer)


# ---- a look at everything ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Look:
    """An evaluation of all samples: the rows, and the verdict on every budget of time."""

    estimates: Estimates
    rows: tuple[Row, ...]
    judgements: Mapping[BudgetKey, Judged]

    def judged(self, row: Row) -> dict[Quantity, Judged]:
        """Return the verdicts on a row's budgets of time."""
        return {quantity: self.judgements[row.layer.index, quantity] for quantity in row.bounded.bounds}

    @property
    def failed(self) -> frozenset[BudgetKey]:
        """The budgets that fail."""
        return frozenset(key for key, judgement in self.judgements.items() if judgement.verdict == "fail")

    @property
    def precise(self) -> bool:
        """Whether all rows need no narrower interval; the total if there are no rows."""
        if all(row.us is None for row in self.rows):
            return is_narrow(self.estimates.whole)
        return all(row.us is None or is_narrow(row.us, row.method_us) for row in self.rows)

    @property
    def kept(self) -> bool:
        """Whether there are budgets of time and all of them are certainly kept."""
        verdicts = {judgement.verdict for judgement in self.judgements.values()}
        return verdicts == {"pass"} and self.estimates.bounded


def judge_all(
    layers: Sequence[Bounded],
    estimates: Estimates,
    frames: Mapping[Frame, Microseconds],
    effort: Effort,
    *,
    endpoint: EntryIndex | None = None,
    crowded: str | None = None,
    time: TimeOption = MAX_TIME,
) -> Look:
    """Judge every budget of time by the estimates, which took `effort`.

    `frames` are the budgets of rows that are no layers, and `endpoint` is the entry of the endpoint, None if no budget
    is of it. `crowded` is the reason why no failure counts, None if failures count. `time` gives the measurement more
    time.
    """
    rows = rows_of(layers, estimates)
    judging = _Judging(estimates, rows, effort, crowded, time)
    judgements: dict[BudgetKey, Judged] = {
        (row.layer.index, quantity): judging.row(row, quantity) for row in rows for quantity in row.bounded.bounds
    }
    for frame, bound in frames.items():
        judgements[frame] = judging.frame(frame, bound, endpoint)
    return Look(estimates, rows, judgements)


@dataclass(frozen=True, slots=True)
class _Judging:
    """The knowledge of a look that verdicts depend on."""

    estimates: Estimates
    rows: Sequence[Row]
    effort: Effort
    crowded: str | None
    time: TimeOption

    def frame(self, frame: Frame, bound: Microseconds, endpoint: EntryIndex | None) -> Judged:
        """Judge a row that is no layer."""
        row = _row_of_frame(self.estimates, frame, bound, endpoint)
        assert row.us is not None
        # The whole request has no probes and needs no detection limit.
        limit_us = 0.0 if frame == "total" else self.estimates.detection_limit_us
        return self._advised(self._figure(row, row.us, bound, limit_us), row, row.us, bound)

    def row(self, row: Row, quantity: Quantity) -> Judged:
        """Judge a budget of a layer."""
        us, bound = row.estimate_of(quantity), row.bounded.bounds[quantity]
        if TRAITS[quantity].source == "tails" and row.us is not None:
            return self._percentile(row, quantity, bound)
        if us is None:
            judgement = self._without_time(row, quantity, bound)
            return Judged(bound, judgement.verdict, judgement.reason)
        return self._advised(self._row(row, quantity, us, bound), row, us, bound)

    def _row(self, row: Row, quantity: Quantity, us: Estimate, bound: Microseconds) -> Judgement:
        together, by_message = row.bounded.together, TRAITS[quantity].source == "messages"
        limit_us = self.estimates.message_limit_us if by_message else self.estimates.detection_limit_us
        shared = together.bounds.get(quantity) if together else None
        of_all = None if shared is None else self._figure(row, us, shared, limit_us)
        return _unless_explained(self._figure(row, us, bound, limit_us), together, of_all)

    def _without_time(self, row: Row, quantity: Quantity, bound: Microseconds) -> Judgement:
        """Judge a layer without a time of its own. A merged one passes if it passes together with its neighbour."""
        source = TRAITS[quantity].source
        if source == "occupation" and self.estimates.in_threads:
            unknown = "layers of this app run in threads, so how long it holds the event loop is not known"
            return Judgement("undecided", tagged(f"{unknown}; use a budget of us", "uncountable"))
        if row.layer.merged_with is None and source == "messages":
            few = (
                f"fewer than {FEWEST_MESSAGES} messages pass it in each direction; measure a request with a longer"
                f" stream or body, or remove this budget with layers={{{row.layer.name!r}: {{{quantity!r}: None}}}}"
            )
            return Judgement("undecided", tagged(few, "few-messages"))
        if row.layer.merged_with is None:
            figure = "how long it holds the event loop" if source == "occupation" else "its time"
            return Judgement(
                "undecided",
                tagged(
                    f"there were too few requests to tell {figure}; give the run more time with {self.time.name}",
                    "too-few-requests",
                ),
            )
        together = row_with_time(row, self.rows)
        us = together.estimate_of(quantity) if together else None
        if source == "tails" and together is not None and together.entry is not None:
            us = percentile(self.estimates, together.entry, quantity)
        kept = us is not None and together is not None and us.high + _growth_us(together) <= bound
        return Judgement("pass") if kept else _merged(row.layer)

    def _percentile(self, row: Row, quantity: Quantity, bound: Microseconds) -> Judged:
        """Judge a percentile of a layer's self time. Only requests that the machine does not explain let it fail."""
        us = percentile(self.estimates, row.entry, quantity) if row.entry is not None else None
        if row.entry is None or us is None:
            judgement = self._without_time(row, quantity, bound)
            return Judged(bound, judgement.verdict, judgement.reason)
        limit_us = self.estimates.detection_limit_us
        above_us = fails_above(limit_us, row.slowdown)
        undetectable = _undetectable(us, bound, limit_us, self.estimates.least_us, self.time, above_us)
        if undetectable is not None:
            return Judged(bound, undetectable.verdict, undetectable.reason)
        if row.grows and row.us is not None and us.low <= bound < us.high + _growth_us(row):
            return Judged(bound, "undecided", _growth(row.us, bound))
        if us.high > bound and not us.bounded:
            requests = len(self.estimates.own_ns[row.entry])
            rate = requests / max(self.effort.seconds, 1e-9)
            remedy = more_time(needed(self.estimates, quantity) / rate, time=self.time)
            few = f"{too_few(self.estimates, quantity, requests)}: {remedy}"
            return Judged(bound, "undecided", tagged(few, "too-few-requests"))
        judgement = self._of_percentile(row, row.entry, quantity, us, bound)
        shared = row.bounded.together.bounds.get(quantity) if row.bounded.together else None
        of_all = None if shared is None else self._of_percentile(row, row.entry, quantity, us, shared)
        judgement = _unless_explained(judgement, row.bounded.together, of_all)
        return Judged(bound, judgement.verdict, judgement.reason)

    def _of_percentile(
        self, row: Row, entry: EntryIndex, quantity: Quantity, us: Estimate, bound: Microseconds
    ) -> Judgement:
        if us.high + _growth_us(row) <= bound:
            return Judgement("pass")
        if us.low <= bound:
            why = (
                f"the interval {us.low:.2f} to {us.high:.2f} µs holds the budget of {bound:g} µs; give the run more"
                f" time with {self.time.name}, or run it again when the machine is less busy"
            )
            return Judgement("undecided", tagged(why, "near-budget"))
        above_us = fails_above(bound, row.slowdown)
        counts = slow_requests(self.estimates, entry, quantity, above_us, above_us / (1 + BETWEEN_RUNS))
        waits = row.occupation is not None and row.occupation.wait_us > 0
        if waits or entry in self.estimates.hopping or self.estimates.in_threads:
            why = "it waits for threads or for something else, and the machine decides how long a wait takes"
        elif counts.certain:
            return Judgement("undecided", self.crowded) if self.crowded else Judgement("fail")
        else:
            why = (
                f"{counts.slow} of {counts.requests} requests took more than {above_us:.4g} µs, and so did"
                f" {counts.slowed} of {counts.pieces} pieces of fixed work that should take a little less: the machine"
                " may have caused the slow requests; give the run more time with"
                f" {self.time.name}, or run it again when the machine is less busy"
            )
        return Judgement("undecided", tagged(why, "machine-tail"))

    def _figure(self, row: Row, us: Estimate, bound: Microseconds, limit_us: Microseconds) -> Judgement:
        judgement = judge(
            us,
            bound,
            limit_us=limit_us,
            slowdown=row.slowdown,
            waited_us=row.waited_us,
            least_us=self.estimates.least_us,
            time=self.time,
        )
        if judgement.verdict == "pass" and row.grows and us.high + GROWS_ON * (us.high - us.low) > bound:
            return Judgement("undecided", _growth(us, bound), time_tells=True)
        return Judgement("undecided", self.crowded) if judgement.verdict == "fail" and self.crowded else judgement

    def _advised(self, judgement: Judgement, row: Row, us: Estimate, bound: Microseconds) -> Judged:
        """Add to the reason how much time a verdict would take.

        The reason names growth where the time grows with the requests served: no amount of time is enough then.
        """
        reason = judgement.reason
        if reason is not None and not us.bounded:
            rate = self.effort.requests / max(self.effort.seconds, 1e-9)
            remedy = more_time(ENOUGH_REQUESTS / max(rate, 1e-9), time=self.time)
            reason = tagged(f"there were too few requests for an interval: {remedy}", "too-few-requests")
        elif judgement.time_tells and row.grows:
            reason = _growth(us, bound)
        elif judgement.time_tells:
            seconds = seconds_needed(
                us,
                bound,
                self.effort.seconds,
                slowdown=row.slowdown,
                waited_us=row.waited_us,
                method_us=row.method_us,
            )
            remedy = "it is so near its budget that no run would decide: a budget of 1.3 times the figure leaves room"
            if seconds is not None:
                remedy = more_time(seconds, us, self.time)
            reason = tagged(f"{reason}; {remedy}", "near-budget")
        return Judged(bound, judgement.verdict, reason)


def _row_of_frame(estimates: Estimates, frame: Frame, bound: Microseconds, endpoint: EntryIndex | None) -> Row:
    """Return the time of a row that is no layer."""
    bounded = Bounded(None, ResultRow.of_frame(frame).layer, {"us": bound})
    slowdowns, waits = estimates.slowdowns, estimates.waits
    if frame == "total":
        grows = frame in estimates.growing
        return Row(bounded, estimates.whole, slowdown=slowdowns.whole, waited_us=waits.whole, grows=grows)
    if frame == "outside":
        return Row(bounded, estimates.outside, slowdown=slowdowns.outside, grows=frame in estimates.growing)
    assert endpoint is not None
    waited_us, grows = waits.split.get(endpoint, 0.0), endpoint in estimates.growing
    us, slowdown = estimates.split[endpoint], slowdowns.split[endpoint]
    return Row(bounded, us, slowdown=slowdown, waited_us=waited_us, grows=grows)


# ---- advice -----------------------------------------------------------------------------------------------------


def seconds_needed(
    us: Estimate,
    bound: Microseconds,
    spent_s: float,
    *,
    slowdown: float = 1.0,
    waited_us: Microseconds = 0.0,
    method_us: Microseconds = 0.0,
) -> float | None:
    """Return how long a run would have to be for a verdict, None if no time is enough.

    The half width of the interval, less `method_us`, shrinks with the square root of the time.
    """
    gap = max(bound - us.estimate, us.estimate - fails_above(bound, slowdown, waited_us)) - method_us
    if not us.bounded or gap <= 0:
        return None
    return spent_s * ((us.half_width - method_us) / gap) ** 2


def more_time(seconds: Seconds, us: Estimate | None = None, time: TimeOption = MAX_TIME) -> str:
    """Return how to get a result that takes this long: with more time, or otherwise if it takes too long.

    `us` is the time that is judged, if there is any. `time` gives more time.
    """
    if seconds <= LONGEST_ADVISED_S:
        return f"{time.of(seconds)} may be enough"
    roomy = (
        "" if us is None or us.estimate <= 0 else f", or a budget of 1.3 times the figure ({1.3 * us.estimate:.3g} µs)"
    )
    return (
        f"that would take more than {LONGEST_ADVISED_S:.0f} s; use a budget of counts (tasks, objects){roomy}; if the"
        " app waits for a database or a network, give it an async stand-in"
    )
