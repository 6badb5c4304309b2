"""What pairs of processes, one of the base and one of HEAD, show of every row: times and counts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import NamedTuple

from ..analysis.intervals import spend
from ..analysis.paired import paired
from ..model.changes import Change, ChangeWord, word_for
from ..model.estimate import Estimate, Microseconds, independent_sum
from ..model.quantities import COUNTED, RECORDABLE, TRAITS, CountedQuantity
from ..model.request_keys import RequestKey
from ..model.results import Count, Counts, Method, Result
from ..model.stack import TOTAL
from .allowed import LEAST_US, Allowed, judged
from .outcome import Comparison, RequestChanges

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


class _Evaluated(NamedTuple):
    """A change, and whether more pairs would tell more of it."""

    change: Change
    is_open: bool = False


def compare_pairs(pairs: Sequence[Pair], look: int, allowed: Allowed, *, last: bool = False) -> Comparison:
    """Evaluate all pairs so far. `look` counts the evaluations from 1 on; `last` must not depend on what they show.

    With limits, only changes that are limited are `open`.
    """
    base, head = (dict.fromkeys(key for side in sides for key in side.results) for sides in zip(*pairs, strict=True))
    # A request may be missing in a process in which its test failed.
    both = {key: [pair for pair in pairs if all(key in side.results for side in pair)] for key in base}
    series = {key: [*_series(key, of_both, allowed)] for key, of_both in both.items() if of_both}
    alpha = spend(ALPHA, look, last=last) / max(1, sum(map(len, series.values())))
    evaluated = {
        key: [*(times.evaluated(alpha, allowed) for times in of_key), *_counted(key, both[key], allowed)]
        for key, of_key in series.items()
    }
    every = [change for of_key in evaluated.values() for change in of_key]
    limited = [evaluation for evaluation in every if evaluation.change.verdict is not None]
    return Comparison(
        [RequestChanges(key, [change for change, _ in of_key]) for key, of_key in evaluated.items()],
        new=[key for key in head if key not in base],
        gone=[key for key in base if key not in head],
        allowed=allowed,
        open=[change for change, is_open in limited or every if is_open],
    )


# ---- times ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Series:
    """The values of one quantity of a row in each pair, at one speed of the machine."""

    row: str
    quantity: str
    before: Sequence[Microseconds]
    after: Sequence[Microseconds]

    def evaluated(self, alpha: float, allowed: Allowed) -> _Evaluated:
        """Compare the two sides. Within a limit, LEAST_US or NARROW_SHARE a time is the same, and known well enough."""
        before_us, after_us = (median(side) if side else None for side in (self.before, self.after))
        if before_us is None or after_us is None:
            word: ChangeWord = "new" if before_us is None else "gone"
            return _Evaluated(Change(self.row, self.quantity, word, _exactly(before_us), _exactly(after_us)))
        by = paired([after - before for before, after in zip(self.before, self.after, strict=True)], alpha)
        ends = _exactly(before_us), _exactly(before_us + by.estimate)
        change = judged(Change(self.row, self.quantity, "unclear", *ends, by), allowed)
        tolerance = max(LEAST_US, NARROW_SHARE * before_us, change.most or 0.0)
        is_open = by.half_width > tolerance if change.verdict is None else change.verdict == "undecided"
        return _Evaluated(replace(change, word=word_for(self.quantity, by, tolerance)), is_open)


def _exactly(us: Microseconds | None) -> Estimate | None:
    return None if us is None else Estimate(us, us, us)


def _series(key: RequestKey, pairs: Sequence[Pair], allowed: Allowed) -> Iterator[_Series]:
    """Yield the rows of a request that both sides have in most pairs, and those that only one side has."""
    best_ns = min(side.reference_ns.get(key, math.inf) for pair in pairs for side in pair)
    by_pair = [(_times(pair.base, key, best_ns, allowed), _times(pair.head, key, best_ns, allowed)) for pair in pairs]
    names = dict.fromkeys(name for sides in zip(*by_pair, strict=True) for side in sides for name in side)
    for name in names:
        row, quantity = name
        base, head = ([of_pair[place].get(name) for of_pair in by_pair] for place in (0, 1))
        both = [(a, b) for a, b in zip(base, head, strict=True) if a and b]
        # A bypass and a split are compared with their like, unless the layer itself became one of the other kind.
        both = [(a, b) for a, b in both if a.method == b.method] or both
        if both:
            yield _Series(row, quantity, [a.us for a, _ in both], [b.us for _, b in both])
        elif not any(base) or not any(head):
            yield _Series(row, quantity, [time.us for time in base if time], [time.us for time in head if time])


class _Time(NamedTuple):
    us: Microseconds
    method: Method | None


def _times(process: Process, key: RequestKey, best_ns: float, allowed: Allowed) -> dict[tuple[str, str], _Time]:
    """Return the times of the rows as they would be at the best speed of the machine that any process saw."""
    result = process.results[key]
    seen_ns = process.reference_ns.get(key)
    scale = best_ns / seen_ns if seen_ns and math.isfinite(best_ns) else 1.0
    return {
        (name, quantity): _Time(us.estimate * scale, method)
        for name, quantity, us, method in _rows_of_times(result, allowed)
    }


def _rows_of_times(result: Result, allowed: Allowed) -> Iterator[tuple[str, str, Estimate, Method | None]]:
    """Yield the rows. The total is their sum, which varies far less from process to process than whole requests do."""
    if not result.timed:
        return
    rows = [(row, row.us) for row in result.rows() if row.name != TOTAL and row.us is not None]
    known = [(row, us) for row, us in rows if _is_known(us)]
    for row, us in known:
        yield row.name, "us", us, row.method
    if len(known) == len(rows):
        yield TOTAL, "us", independent_sum(*(us for _, us in rows)), None
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


def _counted(key: RequestKey, pairs: Sequence[Pair], allowed: Allowed) -> Iterator[_Evaluated]:
    """Yield the changes of the counts of a request. Both processes of a pair have the same seed of hashes.

    A count that no pair has on both sides is left out unless it is limited.
    """
    base, head = ([_rows_of_counts(side.results[key]) for side in sides] for sides in zip(*pairs, strict=True))
    for name in dict.fromkeys(name for rows in (*base, *head) for name in rows):
        before, after = ([rows.get(name) for rows in side] for side in (base, head))
        for quantity in COUNTED:
            if not any(before) or not any(after):
                if known := [count for counts in (*before, *after) if (count := _of(counts, quantity))]:
                    ends = ("new", None, _typical(known)) if any(after) else ("gone", _typical(known), None)
                    yield _Evaluated(Change(name, quantity, *ends))
                continue
            numbers = ((_of(a, quantity), _of(b, quantity)) for a, b in zip(before, after, strict=True))
            if known_pairs := [(a, b) for a, b in numbers if a and b]:
                yield _evaluated_count(name, quantity, known_pairs, allowed)
                continue
            unknown = judged(Change(name, quantity, "not measured"), allowed)
            if unknown.verdict is not None:
                yield _Evaluated(replace(unknown, reason=_why_not_counted(key, pairs, name, quantity)))


def _evaluated_count(
    row: str, quantity: CountedQuantity, numbers: Sequence[tuple[Count, Count]], allowed: Allowed
) -> _Evaluated:
    """Compare a count of a row in each pair. If the pairs differ, the count may vary by itself until ENOUGH_PAIRS."""
    before, after = (_typical(side) for side in zip(*numbers, strict=True))
    low, high = min(b.low - a.high for a, b in numbers), max(b.high - a.low for a, b in numbers)
    same_in_each = len({b.count - a.count for a, b in numbers}) == 1
    settled = same_in_each or low <= 0 <= high or len(numbers) >= ENOUGH_PAIRS
    by = Estimate(after.estimate - before.estimate, low if settled else min(low, 0), high if settled else max(high, 0))
    change = Change(row, quantity, word_for(quantity, by, 0.0), before, after, by)
    return _Evaluated(judged(change, allowed), not settled)


def _typical(counts: Sequence[Count]) -> Estimate:
    """Return the median of a count with its range over all processes."""
    low, high = min(count.low for count in counts), max(count.high for count in counts)
    return Estimate(median(count.count for count in counts), low, high)


def _of(counts: Counts | None, quantity: CountedQuantity) -> Count | None:
    return counts.of(quantity) if counts else None


def _why_not_counted(key: RequestKey, pairs: Sequence[Pair], name: str, quantity: CountedQuantity) -> str:
    for result in (side.results[key] for pair in pairs for side in pair):
        counts = _rows_of_counts(result).get(name)
        if _of(counts, quantity) is None:
            why = (counts.why if counts else {}).get(quantity) or result.uncounted.get(quantity)
            if why is not None:
                return why
    return "no process of a pair could count them"


def _rows_of_counts(result: Result) -> dict[str, Counts]:
    return {row.name: row.counts for row in result.rows() if row.counts is not None}
