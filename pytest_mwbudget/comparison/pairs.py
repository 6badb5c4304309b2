"""What pairs of processes, one of the base and one of HEAD, show of every row: times and counts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import NamedTuple, TypeAlias

from ..analysis.intervals import spend
from ..analysis.paired import paired
from ..model.changes import Change, ChangeWord, word_for
from ..model.estimate import Estimate, Microseconds
from ..model.quantities import COUNTED, RECORDABLE
from ..model.request_keys import RequestKey
from ..model.stack import TOTAL
from .allowed import LEAST_US, Allowed, judged
from .figures import RequestFigures, RowFigures, is_part
from .outcome import Comparison, RequestChanges

# The intervals of all rows hold jointly, over all looks, with this probability of an error.
ALPHA = 0.01
# Without a limit a row is known well enough when its interval reaches no farther than this share, or LEAST_US.
NARROW_SHARE = 0.05
# If a count varies by itself from process to process, this many pairs all go up, or all go down, in 1 of 128 cases. A
# change that is the same in each pair needs fewer.
ENOUGH_PAIRS = 8
# The times of a row. All but the first are compared only if they are limited.
TIMES = tuple(quantity for quantity in RECORDABLE if quantity not in COUNTED)

# What a process measured.
Process: TypeAlias = Mapping[RequestKey, RequestFigures]


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
    base, head = (dict.fromkeys(key for process in side for key in process) for side in zip(*pairs, strict=True))
    # A request may be missing in a process in which its test failed.
    both = {key: [(a[key], b[key]) for a, b in pairs if key in a and key in b] for key in base}
    series = {key: [*_series(of_both, allowed)] for key, of_both in both.items() if of_both}
    alpha = spend(ALPHA, look, last=last) / max(1, sum(map(len, series.values())))
    evaluated = {
        key: [*(times.evaluated(alpha, allowed) for times in of_key), *_counted(both[key], allowed)]
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


def _series(pairs: Sequence[tuple[RequestFigures, RequestFigures]], allowed: Allowed) -> Iterator[_Series]:
    """Yield the rows of a request that both sides have in most pairs, and those that only one side has."""
    best_ns = min(figures.reference_ns or math.inf for pair in pairs for figures in pair)
    base, head = ([_times(figures, best_ns, allowed) for figures in side] for side in zip(*pairs, strict=True))
    for row, quantity in dict.fromkeys(key for times in (*base, *head) for key in times):
        before, after = ([times.get((row, quantity)) for times in side] for side in (base, head))
        both = [(a, b) for a, b in zip(before, after, strict=True) if a is not None and b is not None]
        known = [[us for us in side if us is not None] for side in (before, after)]
        if both:
            yield _Series(row, quantity, [a for a, _ in both], [b for _, b in both])
        elif not all(known):
            yield _Series(row, quantity, *known)


def _times(figures: RequestFigures, best_ns: float, allowed: Allowed) -> dict[tuple[str, str], Microseconds]:
    """Return the times of the rows as they would be at the best speed of the machine that any process saw.

    The total is the sum of the rows, which varies far less from process to process than whole requests do.
    """
    scale = best_ns / figures.reference_ns if figures.reference_ns else 1.0
    wanted: list[str] = ["us", *(quantity for quantity in TIMES[1:] if quantity in allowed)]
    rows = [(name, row) for name, row in _rows(figures).items() if name != TOTAL and "us" in row.figures]
    times = {
        (name, quantity): row.figures[quantity].estimate * scale
        for name, row in rows
        for quantity in wanted
        if quantity in row.figures and _is_known(row.figures[quantity])
    }
    parts_us = [us for (_, quantity), us in times.items() if quantity == "us"]
    if parts_us and len(parts_us) == len(rows):
        times[TOTAL, "us"] = math.fsum(parts_us)
    return times


def _rows(figures: RequestFigures) -> dict[str, RowFigures]:
    return {name: row for name, row in figures.rows.items() if not is_part(name)}


def _is_known(us: Estimate) -> bool:
    """Whether a time is one: in too little time a stored row has no figure, which is read as 0 without an interval."""
    return us.bounded or us.estimate != 0.0


# ---- counts ---------------------------------------------------------------------------------------------------------


def _counted(pairs: Sequence[tuple[RequestFigures, RequestFigures]], allowed: Allowed) -> Iterator[_Evaluated]:
    """Yield the changes of the counts of a request. Both processes of a pair have the same seed of hashes.

    A count that no pair has on both sides is left out unless it is limited.
    """
    base, head = ([_rows(figures) for figures in side] for side in zip(*pairs, strict=True))
    for name in dict.fromkeys(name for rows in (*base, *head) for name in rows):
        before, after = ([rows.get(name, RowFigures()) for rows in side] for side in (base, head))
        new, gone = (not any(row.figures.keys() & COUNTED for row in side) for side in (before, after))
        for quantity in COUNTED:
            numbers = [(a.figures.get(quantity), b.figures.get(quantity)) for a, b in zip(before, after, strict=True)]
            both = [(a, b) for a, b in numbers if a and b]
            known = [number for pair in numbers for number in pair if number]
            if both:
                yield _evaluated_count(name, quantity, both, allowed)
            elif known and new:
                yield _Evaluated(Change(name, quantity, "new", None, _typical(known)))
            elif known and gone:
                yield _Evaluated(Change(name, quantity, "gone", _typical(known), None))
            elif not new and not gone:
                unknown = judged(Change(name, quantity, "not measured"), allowed)
                reasons = (row.why[quantity] for row in (*before, *after) if quantity in row.why)
                if unknown.verdict is not None:
                    reason = next(reasons, "no process of a pair could count them")
                    yield _Evaluated(replace(unknown, reason=reason))


def _evaluated_count(
    row: str, quantity: str, numbers: Sequence[tuple[Estimate, Estimate]], allowed: Allowed
) -> _Evaluated:
    """Compare a count of a row in each pair. If the pairs differ, the count may vary by itself until ENOUGH_PAIRS."""
    before, after = (_typical(side) for side in zip(*numbers, strict=True))
    low, high = min(b.low - a.high for a, b in numbers), max(b.high - a.low for a, b in numbers)
    same_in_each = len({b.estimate - a.estimate for a, b in numbers}) == 1
    settled = same_in_each or low <= 0 <= high or len(numbers) >= ENOUGH_PAIRS
    by = Estimate(after.estimate - before.estimate, low if settled else min(low, 0), high if settled else max(high, 0))
    change = Change(row, quantity, word_for(quantity, by, 0.0), before, after, by)
    return _Evaluated(judged(change, allowed), not settled)


def _typical(counts: Sequence[Estimate]) -> Estimate:
    """Return the median of a count with its range over all processes."""
    low, high = min(count.low for count in counts), max(count.high for count in counts)
    return Estimate(median(count.estimate for count in counts), low, high)
