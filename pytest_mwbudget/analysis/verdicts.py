"""Judge the rows of a measurement by their budgets, also rows that are measured together. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ..errors import tagged
from ..model.estimate import Estimate, Microseconds, Seconds
from ..model.judged import Judged
from ..model.messages import FEWEST_MESSAGES
from ..model.quantities import BETWEEN_RUNS, TRAITS, Quantity
from ..model.remedies import MAX_TIME, TimeOption
from ..model.results import Effort, ResultRow
from ..model.stack import EntryIndex
from .budgeted import Bounded
from .estimates import ENOUGH_REQUESTS, Estimates, Key
from .judge import Conditions, Judge, fails_above, judge, undetectable
from .rows import is_narrow, rows_of
from .tails import needed, percentile, slow_requests, too_few

# A time that grows keeps a budget if it does after growing this many times as much again.
GROWS_ON = 4
# For a longer run than this the advice is something else than more time.
LONGEST_ADVISED_S: Seconds = 60.0

NOT_ENTERED = tagged("the request did not come to it: a layer outside answered", "not-entered")


@dataclass(frozen=True, slots=True)
class Look:
    """An evaluation of all samples: the rows that can have a time, outermost first, with verdicts on budgets of time.

    `keys` has by the name of a row what its time is known by.
    """

    estimates: Estimates
    rows: tuple[ResultRow, ...]
    keys: Mapping[str, Key]

    @property
    def budgets(self) -> Iterator[tuple[ResultRow, Quantity, Judged]]:
        """The budgets of time with their verdicts."""
        for row in self.rows:
            yield from ((row, quantity, judged) for quantity, judged in row.judged.items())

    @property
    def failed(self) -> frozenset[tuple[str, Quantity]]:
        """The budgets that fail: the name of the row, and the quantity."""
        return frozenset((row.name, quantity) for row, quantity, judged in self.budgets if judged.verdict == "fail")

    @property
    def precise(self) -> bool:
        """Whether all layers need no narrower interval; the total if there are no layers."""
        layers = {row.name: row.us for row in self.rows if not row.is_frame and row.us is not None}
        if not layers:
            return is_narrow(self.estimates.whole)
        return all(is_narrow(us, self.estimates.error_us(self.keys[name])) for name, us in layers.items())

    @property
    def kept(self) -> bool:
        """Whether there are budgets of time and all of them are certainly kept."""
        return {judged.verdict for _, _, judged in self.budgets} == {"pass"} and self.estimates.bounded


def judge_all(
    bounded: Sequence[Bounded],
    estimates: Estimates,
    effort: Effort,
    *,
    crowded: str | None = None,
    time: TimeOption = MAX_TIME,
    judge: Judge = judge,
) -> Look:
    """Judge every budget of time by the estimates, which took `effort`.

    `crowded` is the reason why no failure counts, None if failures count. `time` gives the measurement more time.
    """
    rows = [*rows_of(bounded, estimates)]
    judging = _Judging(estimates, rows, effort, crowded, time, judge)
    judged_rows = (
        replace(row, judged={quantity: judging.budget(each_bounded, row, quantity) for quantity in each_bounded.bounds})
        for each_bounded, row in rows
    )
    keys = {each_bounded.layer.name: each_bounded.key for each_bounded in bounded}
    return Look(estimates, tuple(judged_rows), {name: key for name, key in keys.items() if key is not None})


@dataclass(frozen=True, slots=True)
class _Judging:
    """The knowledge of a look that verdicts depend on."""

    estimates: Estimates
    rows: Sequence[tuple[Bounded, ResultRow]]
    effort: Effort
    crowded: str | None
    time: TimeOption
    judge: Judge

    def budget(self, bounded: Bounded, row: ResultRow, quantity: Quantity) -> Judged:
        """Judge a budget of time."""
        us, key = self._figure(bounded, row, quantity), bounded.key
        if us is None or key is None:
            return self._without_time(bounded, row, quantity)

        def judged(bound: float) -> Judged:
            if TRAITS[quantity].source == "tails" and isinstance(key, int):
                conditions = self._of_percentile(key, row, quantity, us, bound)
            else:
                conditions = self._of_time(bounded, key, quantity, us, bound)
            return self.judge(quantity, us, bound, conditions).unless(self.crowded)

        return _together(bounded, quantity, judged)

    def _figure(self, bounded: Bounded, row: ResultRow, quantity: Quantity) -> Estimate | None:
        """Return the time that a budget is held against, None if it is not known."""
        if TRAITS[quantity].source == "tails" and row.us is not None and bounded.entry is not None:
            return percentile(self.estimates, bounded.entry, quantity)
        return row.estimates.get(quantity)

    def _of_time(self, bounded: Bounded, key: Key, quantity: Quantity, us: Estimate, bound: float) -> Conditions:
        """Return the conditions of a typical time.

        If it grows with the requests served, no amount of time brings a verdict within its course.
        """
        estimates, seconds = self.estimates, self.effort.seconds
        slowdown, waited_us = estimates.slowdowns[key], estimates.waits.get(key, 0.0)
        if TRAITS[quantity].source == "occupation":
            slowdown = max(slowdown, estimates.cpu_slowdown)  # requests of other moments tell a part of it
        limit_us = estimates.message_limit_us if TRAITS[quantity].source == "messages" else estimates.detection_limit_us
        course = _growth(us, bound) if key in estimates.growing else None
        rate = self.effort.requests / max(seconds, 1e-9)
        enough_s = ENOUGH_REQUESTS / max(rate, 1e-9)
        # The interval of an endpoint does not hold the error of a layer that spawns tasks.
        error_us = estimates.error_us(key) if bounded.frame is None else estimates.method_us.get(key, 0.0)
        needed_s = seconds_needed(us, bound, seconds, slowdown=slowdown, waited_us=waited_us, method_us=error_us)
        advice = "it is so near its budget that no run would decide: a budget of 1.3 times the figure leaves room"
        if needed_s is not None:
            advice = more_time(needed_s, us, self.time)
        return Conditions(
            slowdown=slowdown,
            waited=waited_us,
            limit=0.0 if key == "total" else limit_us,  # the whole request has no probes
            least_limit=estimates.least_us,
            no_pass=course if us.high + GROWS_ON * (us.high - us.low) > bound else None,
            too_few=tagged(
                f"there were too few requests for an interval: {more_time(enough_s, time=self.time)}",
                "too-few-requests",
            ),
            unsure=course,
            holds=advice,
            near=f"figures differ by from run to run; {advice}",
            time=self.time.name,
        )

    def _of_percentile(
        self, entry: EntryIndex, row: ResultRow, quantity: Quantity, us: Estimate, bound: float
    ) -> Conditions:
        """Return the conditions of a percentile. Only requests that the machine does not explain let it fail."""
        estimates, requests = self.estimates, len(self.estimates.own_ns[entry])
        course = _growth(row.us, bound) if entry in estimates.growing and row.us and us.low <= bound else None
        remedy = more_time(needed(estimates, quantity) * max(self.effort.seconds, 1e-9) / requests, time=self.time)
        few = tagged(f"{too_few(estimates, quantity, requests)}: {remedy}", "too-few-requests")
        conditions = Conditions(
            slowdown=estimates.slowdowns[entry],
            limit=estimates.detection_limit_us,
            least_limit=estimates.least_us,
            no_pass=course if us.high + self._growth_us(entry, row) > bound else None,
            no_fail=self._why_machine(entry, row, quantity, bound) if us.low > bound else None,
            unsure=course,
            holds=f"give the run more time with {self.time.name}, or run it again when the machine is less busy",
            time=self.time.name,
        )
        return replace(conditions, too_few=undetectable(us, bound, conditions) or course or few)

    def _why_machine(self, entry: EntryIndex, row: ResultRow, quantity: Quantity, bound: float) -> str | None:
        """Return why the machine may have caused the slow requests of a row, None if it cannot have."""
        estimates = self.estimates
        waits = row.occupation is not None and row.occupation.wait_us > 0
        if waits or entry in estimates.hopping or estimates.in_threads:
            why = "it waits for threads or for something else, and the machine decides how long a wait takes"
            return tagged(why, "machine-tail")
        above_us = fails_above(bound, estimates.slowdowns[entry])
        counts = slow_requests(estimates, entry, quantity, above_us, above_us / (1 + BETWEEN_RUNS))
        if counts.certain:
            return None
        return tagged(
            f"{counts.slow} of {counts.requests} requests took more than {above_us:.4g} µs, and so did"
            f" {counts.slowed} of {counts.pieces} pieces of fixed work that should take a little less: the machine may"
            f" have caused the slow requests; give the run more time with {self.time.name}, or run it again when the"
            " machine is less busy",
            "machine-tail",
        )

    def _growth_us(self, key: Key | None, row: ResultRow) -> Microseconds:
        """Return by how much a time that grows must stay below a budget that it keeps, 0 for other times."""
        return GROWS_ON * (row.us.high - row.us.low) if row.us is not None and key in self.estimates.growing else 0.0

    def _without_time(self, bounded: Bounded, row: ResultRow, quantity: Quantity) -> Judged:
        """Judge a row without a time of its own. A merged one passes if it passes together with its neighbour."""
        source, bound = TRAITS[quantity].source, bounded.bounds[quantity]
        if source == "occupation" and self.estimates.in_threads:
            unknown = "layers of this app run in threads, so how long it holds the event loop is not known"
            return Judged(bound, "undecided", tagged(f"{unknown}; use a budget of us", "uncountable"))
        if row.layer.merged_with is None and source == "messages":
            few = (
                f"fewer than {FEWEST_MESSAGES} messages pass it in each direction; measure a request with a longer"
                f" stream or body, or remove this budget with layers={{{row.name!r}: {{{quantity!r}: None}}}}"
            )
            return Judged(bound, "undecided", tagged(few, "few-messages"))
        if row.layer.merged_with is None:
            figure = "how long it holds the event loop" if source == "occupation" else "its time"
            few = f"there were too few requests to tell {figure}; give the run more time with {self.time.name}"
            return Judged(bound, "undecided", tagged(few, "too-few-requests"))
        for neighbour, other in self.rows:
            us = self._figure(neighbour, other, quantity)
            if us is not None and other.name == row.layer.merged_with and not other.is_frame:
                return _merged(row, bound, us.high + self._growth_us(neighbour.key, other))
        return _merged(row, bound, None)


def judge_count(
    bounded: Bounded,
    row: ResultRow,
    quantity: Quantity,
    neighbour: ResultRow | None,
    uncounted: Mapping[str, str],
    disturbed: str | None = None,
) -> Judged:
    """Judge a budget of a count by the range of most requests.

    `neighbour` is the row with which this one is merged. `uncounted` has the reason for each quantity that no row has,
    `disturbed` the reason that explains all of them, if there is one.
    """
    bound, count = bounded.bounds[quantity], row.figure(quantity)
    if count is not None:
        return _together(bounded, quantity, lambda bound: judge(quantity, count, bound))
    why = uncounted.get(quantity) or (row.counts.why.get(quantity) if row.counts else None)
    if why is not None and disturbed is not None:
        return Judged(bound, "undecided", disturbed)
    if why is not None:
        return Judged(bound, "undecided", tagged(f"{quantity} cannot be counted here: {why}", "uncountable"))
    both = neighbour.figure(quantity) if neighbour else None
    return _merged(row, bound, both.high if both else None)


def _together(bounded: Bounded, quantity: Quantity, judged_by: Callable[[float], Judged]) -> Judged:
    """Judge a budget of a row.

    A failure of rows that are measured together counts if they fail the sum of their budgets too.
    """
    judged, together = judged_by(bounded.bounds[quantity]), bounded.together
    if judged.verdict != "fail" or together is None:
        return judged
    shared = together.bounds.get(quantity)
    return judged if shared is not None and judged_by(shared).verdict == "fail" else judged.unless(together.why)


def _merged(row: ResultRow, bound: float, high: float | None) -> Judged:
    """Judge a row by the high end of a figure of the row that it is merged with, None if that is not known."""
    if high is not None and high <= bound:
        return Judged(bound, "pass")
    layer = row.layer
    why = tagged(f"it is measured together with {layer.merged_with}: {layer.merged_because}", "merged")
    return Judged(bound, "undecided", why)


# ---- advice -----------------------------------------------------------------------------------------------------


def _growth(us: Estimate, bound: Microseconds) -> str:
    """Return why a time that grows with the requests served is not judged by a budget within its course."""
    return tagged(
        f"its time grows with the requests served, here from {us.low:.2f} to {us.high:.2f} µs, so a verdict on the"
        f" budget of {bound:g} µs would depend on their number; bound what is collected, or find it without a search",
        "growing",
    )


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
