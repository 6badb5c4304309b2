"""What pairs of processes, one of the base and one of HEAD, show of every row: times and counts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Literal, NamedTuple, TypeAlias

from ..analysis.intervals import spend
from ..analysis.paired import paired
from ..model.estimate import Estimate, Microseconds, independent_sum
from ..model.quantities import COUNTED, RECORDABLE, TRAITS, CountedQuantity
from ..model.request_keys import RequestKey
from ..model.results import Count, Counts, Method, Result, Verdict
from ..model.stack import ENDPOINT, OUTSIDE, TOTAL
from .allowed import LEAST_US, Allowed, Compared, judge_growth

Word: TypeAlias = Literal["more", "less", "same", "undecided", "new", "gone"]

# The intervals of all rows hold jointly, over all looks, with this probability of an error.
ALPHA = 0.01
# Without a limit a row is known well enough when its interval reaches no farther than this share, or LEAST_US.
NARROW_SHARE = 0.05
# If a count varies by itself from process to process, this many pairs all go up, or all go down, in 1 of 128 cases. A
# change that is the same in each pair needs fewer.
ENOUGH_PAIRS = 8
# The times of a layer that are compared on request.
FURTHER_TIMES = tuple(quantity for quantity in RECORDABLE if quantity not in ("us", *COUNTED))


@dataclass(frozen=True, slots=True)
class Process:
    """What one process measured: the results by request, and for each the time of the reference workload meanwhile."""

    results: Mapping[RequestKey, Result]
    reference_ns: Mapping[RequestKey, float] = field(default_factory=dict)


class Pair(NamedTuple):
    """A process of the base and its neighbour of HEAD."""

    base: Process
    head: Process


class RowKey(NamedTuple):
    """A row of a request."""

    request: RequestKey
    name: str

    @property
    def is_layer(self) -> bool:
        """Whether the row is a middleware layer, for which limits of layers hold."""
        return self.name not in (OUTSIDE, ENDPOINT, TOTAL)


@dataclass(frozen=True, slots=True)
class Change:
    """The change of one quantity of a row from the base to HEAD.

    `before` and `after` are typical values; None on the side that has no such row. `by` is the change with its
    interval for times, with its range for counts. `most` is the largest growth that is allowed, None without a limit,
    and `verdict` is None then. `settled` is false for a count that may vary by itself until there are more pairs.
    """

    row: RowKey
    quantity: Compared
    before: float | None
    after: float | None
    by: Estimate
    most: float | None = None
    verdict: Verdict | None = None
    settled: bool = True

    @property
    def timed(self) -> bool:
        """Whether the quantity is a time."""
        return self.quantity not in COUNTED

    @property
    def tolerance(self) -> float:
        """The change below which the two sides are the same."""
        if not self.timed:
            return 0.0
        return max(LEAST_US, NARROW_SHARE * max(0.0, self.before or 0.0), self.most or 0.0)

    @property
    def word(self) -> Word:
        """What the interval says of the change."""
        if self.before is None or self.after is None:
            return "new" if self.before is None else "gone"
        if self.by.low > 0 or self.by.high < 0:
            return "more" if self.by.low > 0 else "less"
        return "same" if self.within <= self.tolerance else "undecided"

    @property
    def within(self) -> float:
        """The largest change, in either direction, that the interval holds."""
        return max(-self.by.low, self.by.high)

    @property
    def known(self) -> bool:
        """Whether more pairs would change nothing that matters: the verdict, or without one the word."""
        if not self.timed or self.word in ("new", "gone"):
            return self.settled
        if self.verdict is not None:
            return self.verdict != "undecided"
        return self.by.half_width <= self.tolerance


class Unknown(NamedTuple):
    """A quantity that is limited, of a layer that both sides have, and why it is not known on both."""

    row: RowKey
    quantity: Compared
    why: str


@dataclass(frozen=True, slots=True)
class Changes:
    """All changes, with what was on one side only: requests, and rows of requests that both sides have.

    `unknown` is what has a limit that cannot be judged, because one side or both have no figure.
    """

    times: Sequence[Change] = ()
    counts: Sequence[Change] = ()
    only_base: Sequence[RequestKey] = ()
    only_head: Sequence[RequestKey] = ()
    unknown: Sequence[Unknown] = ()

    @property
    def all(self) -> Iterator[Change]:
        """The times, then the counts."""
        yield from self.times
        yield from self.counts

    @property
    def open(self) -> list[Change]:
        """What more pairs would tell: limits that are undecided; without any limit, changes that are not precise."""
        limited = [change for change in self.all if change.verdict is not None]
        return [change for change in limited or self.all if not change.known]


def changes(pairs: Sequence[Pair], look: int, allowed: Allowed, *, last: bool = False) -> Changes:
    """Evaluate all pairs so far. `look` counts the evaluations from 1 on; `last` must not depend on what they show."""
    base, head = (dict.fromkeys(key for side in sides for key in side.results) for sides in zip(*pairs, strict=True))
    # A request may be missing in a process in which its test failed.
    both = {key: [pair for pair in pairs if all(key in side.results for side in pair)] for key in base}
    measured = {key: of_both for key, of_both in both.items() if of_both}
    series = [row_series for key, of_both in measured.items() for row_series in _series(key, of_both, allowed)]
    alpha = spend(ALPHA, look, last=last) / max(1, len(series))
    return Changes(
        [_judged(row_series.change(alpha), allowed) for row_series in series],
        [_judged(change, allowed) for key, of_both in measured.items() for change in _counted(key, of_both)],
        [key for key in base if key not in head],
        [key for key in head if key not in base],
        [unknown for key, of_both in measured.items() for unknown in _unknown(key, of_both, allowed)],
    )


def _judged(change: Change, allowed: Allowed) -> Change:
    growth = allowed.get(change.quantity)
    if growth is None or (change.quantity != "total_us" and not change.row.is_layer):
        return change
    if change.word in ("new", "gone"):
        return change  # what is new has not grown; the total contains it
    most = growth.most(change.before or 0.0)
    return replace(change, most=most, verdict=judge_growth(change.by, most))


# ---- times ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Series:
    """The values of one quantity of a row in each pair, at one speed of the machine."""

    row: RowKey
    quantity: Compared
    before: Sequence[Microseconds]
    after: Sequence[Microseconds]

    def change(self, alpha: float) -> Change:
        if not self.before or not self.after:
            known = self.after or self.before
            by = paired(known, alpha)
            if self.after:
                return Change(self.row, self.quantity, None, median(known), by)
            return Change(self.row, self.quantity, median(known), None, -by)
        by = paired([after - before for before, after in zip(self.before, self.after, strict=True)], alpha)
        before = median(self.before)
        return Change(self.row, self.quantity, before, before + by.estimate, by)


def _series(key: RequestKey, pairs: Sequence[Pair], allowed: Allowed) -> Iterator[_Series]:
    """Yield the rows of a request that both sides have in most pairs, and those that only one side has."""
    best_ns = min(side.reference_ns.get(key, math.inf) for pair in pairs for side in pair)
    by_pair = [(_times(pair.base, key, best_ns, allowed), _times(pair.head, key, best_ns, allowed)) for pair in pairs]
    names = dict.fromkeys(name for sides in zip(*by_pair, strict=True) for side in sides for name in side)
    for name in names:
        base, head = ([of_pair[place].get(name) for of_pair in by_pair] for place in (0, 1))
        both = [(a, b) for a, b in zip(base, head, strict=True) if a and b]
        # A bypass and a split are compared with their like, unless the layer itself became one of the other kind.
        both = [(a, b) for a, b in both if a.method == b.method] or both
        row, quantity = RowKey(key, name[0]), name[1]
        if both:
            yield _Series(row, quantity, [a.us for a, _ in both], [b.us for _, b in both])
        elif not any(base):
            yield _Series(row, quantity, [], [time.us for time in head if time])
        elif not any(head):
            yield _Series(row, quantity, [time.us for time in base if time], [])


class _Time(NamedTuple):
    us: Microseconds
    method: Method | None


def _times(process: Process, key: RequestKey, best_ns: float, allowed: Allowed) -> dict[tuple[str, Compared], _Time]:
    """Return the times of the rows as they would be at the best speed of the machine that any process saw."""
    result = process.results[key]
    seen_ns = process.reference_ns.get(key)
    scale = best_ns / seen_ns if seen_ns and math.isfinite(best_ns) else 1.0
    return {
        (name, quantity): _Time(us.estimate * scale, method)
        for name, quantity, us, method in _rows_of_times(result, allowed)
    }


def _rows_of_times(result: Result, allowed: Allowed) -> Iterator[tuple[str, Compared, Estimate, Method | None]]:
    """Yield the rows. The total is their sum, which varies far less from process to process than whole requests do."""
    if not result.timed:
        return
    rows = [(row, row.us) for row in result.rows() if row.name != TOTAL and row.us is not None]
    known = [(row, us) for row, us in rows if _is_known(us)]
    for row, us in known:
        yield row.name, "us", us, row.method
    if len(known) == len(rows):
        yield TOTAL, "total_us", independent_sum(*(us for _, us in rows)), None
    for row, _ in rows:
        for quantity in FURTHER_TIMES:
            further = row.estimates.get(quantity) if quantity in allowed else None
            if further is not None and _is_known(further):
                method = row.method if TRAITS[quantity].source == "occupation" else "split"
                yield row.name, quantity, further, method


def _is_known(us: Estimate) -> bool:
    """Whether a time is one: in too little time a stored row has no figure, which is read as 0 without an interval."""
    return us.bounded or us.estimate != 0.0


# ---- counts ---------------------------------------------------------------------------------------------------------


def _counted(key: RequestKey, pairs: Sequence[Pair]) -> Iterator[Change]:
    """Yield the changes of the counts of a request. Both processes of a pair have the same seed of hashes."""
    base, head = ([_rows_of_counts(side.results[key]) for side in sides] for sides in zip(*pairs, strict=True))
    for name in dict.fromkeys(name for rows in (*base, *head) for name in rows):
        for quantity in COUNTED:
            change = _count_change(
                RowKey(key, name), quantity, [rows.get(name) for rows in base], [rows.get(name) for rows in head]
            )
            if change is not None:
                yield change


def _count_change(
    row: RowKey, quantity: CountedQuantity, base: Sequence[Counts | None], head: Sequence[Counts | None]
) -> Change | None:
    """Return the change of one count of a row, None if it is not known. A row that a side does not have counts 0."""
    absent = [not any(side) for side in (base, head)]
    both = [(_of(a, quantity, absent[0]), _of(b, quantity, absent[1])) for a, b in zip(base, head, strict=True)]
    known = [(a, b) for a, b in both if a is not None and b is not None]
    if not known:
        return None
    before, after = (median(count.count for count in side) for side in zip(*known, strict=True))
    low, high = min(b.low - a.high for a, b in known), max(b.high - a.low for a, b in known)
    same_in_each = len({b.count - a.count for a, b in known}) == 1
    settled = same_in_each or low <= 0 <= high or len(known) >= ENOUGH_PAIRS
    by = Estimate(after - before, low if settled else min(low, 0), high if settled else max(high, 0))
    before_after = (None if absent[0] else before, None if absent[1] else after)
    return Change(row, quantity, *before_after, by, settled=settled or any(absent))


def _unknown(key: RequestKey, pairs: Sequence[Pair], allowed: Allowed) -> Iterator[Unknown]:
    """Yield the limited counts of layers that both sides have and that no pair knows on both sides."""
    base, head = ([_rows_of_counts(side.results[key]) for side in sides] for sides in zip(*pairs, strict=True))
    for name in dict.fromkeys(name for rows in base for name in rows):
        row = RowKey(key, name)
        if not row.is_layer or not any(name in rows for rows in head):
            continue
        of_base, of_head = [rows.get(name) for rows in base], [rows.get(name) for rows in head]
        for quantity in COUNTED:
            if quantity in allowed and _count_change(row, quantity, of_base, of_head) is None:
                yield Unknown(row, quantity, _why_unknown(key, pairs, name, quantity))


def _why_unknown(key: RequestKey, pairs: Sequence[Pair], name: str, quantity: CountedQuantity) -> str:
    for result in (side.results[key] for pair in pairs for side in pair):
        counts = _rows_of_counts(result).get(name)
        if counts is None or counts.of(quantity) is None:
            why = (counts.why if counts else {}).get(quantity) or result.uncounted.get(quantity)
            if why is not None:
                return why
    return "no process of a pair could count them"


def _of(counts: Counts | None, quantity: CountedQuantity, absent: bool) -> Count | None:
    if absent:
        return Count(0, 0, 0)
    return counts.of(quantity) if counts else None


def _rows_of_counts(result: Result) -> dict[str, Counts]:
    return {row.name: row.counts for row in result.rows() if row.counts is not None}
