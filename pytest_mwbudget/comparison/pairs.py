"""What pairs of processes, one of the base and one of HEAD, show of every row: times and counts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import NamedTuple, TypeAlias

from ..analysis.intervals import median_interval, spend
from ..analysis.paired import paired
from ..model.changes import Change, ChangeWord, word_for
from ..model.estimate import Estimate, Microseconds
from ..model.quantities import COUNTED, RECORDABLE
from ..model.request_keys import RequestKey
from ..model.stack import ENDPOINT, OUTSIDE, TOTAL
from .allowed import LEAST_US, Allowed, judged
from .figures import NOT_ENTERED, NOT_MEASURED, TOO_FEW, RequestFigures, RowFigures, is_part
from .outcome import Comparison, RequestChanges

# The intervals of all rows hold jointly, over all looks, with this probability of an error.
ALPHA = 0.01
# Without a limit a row is known well enough when its interval reaches no farther than this share, or LEAST_US.
NARROW_SHARE = 0.05
# A count that has one of two values by chance changes alike in this many pairs in 1 of 512 cases.
EQUAL_PAIRS = 5
# Of a count that varies by itself from process to process: the chance that its typical change is outside the interval
# that a pass needs, and the fewest pairs for such an interval.
VARYING_ALPHA, ENOUGH_PAIRS = 0.01, 8
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
    counted = {key: [*_counted(of_both)] for key, of_both in both.items() if of_both}
    error = spend(ALPHA, look, last=last)
    alpha = error / max(1, sum(map(len, series.values())))
    # Only the counts that vary can change by chance.
    varying = error / max(1, sum(counts.varies for of_key in counted.values() for counts in of_key))
    evaluated = {
        key: [
            *(times.evaluated(alpha, allowed) for times in series[key]),
            *filter(None, (counts.evaluated(varying, allowed) for counts in of_key)),
        ]
        for key, of_key in counted.items()
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
    """The values of one quantity of a row in each pair, at one speed of the machine.

    `why` is the reason why a side without values does not know them, None if the row is missing there.
    """

    row: str
    quantity: str
    before: Sequence[Microseconds]
    after: Sequence[Microseconds]
    why: str | None = None

    def evaluated(self, alpha: float, allowed: Allowed) -> _Evaluated:
        """Compare the two sides. Within a limit, LEAST_US or NARROW_SHARE a time is the same, and known well enough."""
        before_us, after_us = (median(side) if side else None for side in (self.before, self.after))
        if self.why is not None:
            ends = _exactly(before_us), _exactly(after_us)
            unknown = judged(Change(self.row, self.quantity, "not measured", *ends), allowed)
            return _Evaluated(replace(unknown, reason=self.why), unknown.verdict is not None and TOO_FEW in self.why)
        if before_us is None or after_us is None:
            word: ChangeWord = "new" if before_us is None else "gone"
            return _Evaluated(Change(self.row, self.quantity, word, _exactly(before_us), _exactly(after_us)))
        by = paired([after - before for before, after in zip(self.before, self.after, strict=True)], alpha)
        change = judged(
            Change(self.row, self.quantity, "unclear", _exactly(before_us), _exactly(before_us + by.estimate), by),
            allowed,
        )
        tolerance = max(LEAST_US, NARROW_SHARE * before_us, change.most or 0.0)
        is_open = by.half_width > tolerance if change.verdict is None else change.verdict == "undecided"
        return _Evaluated(replace(change, word=word_for(self.quantity, by, tolerance)), is_open)


def _exactly(us: Microseconds | None) -> Estimate | None:
    return None if us is None else Estimate(us, us, us)


def _series(pairs: Sequence[tuple[RequestFigures, RequestFigures]], allowed: Allowed) -> Iterator[_Series]:
    """Yield the times of a request that both sides know in a pair, and those that a side does not know."""
    best_ns = min(figures.reference_ns or math.inf for pair in pairs for figures in pair)
    base, head = ([_times(figures, best_ns, allowed) for figures in side] for side in zip(*pairs, strict=True))
    present = _present(pairs)
    keys = dict.fromkeys(key for times in (*base, *head) for key in times)
    if "us" in allowed:  # a layer that is so slow on both sides that neither knows its time
        untimed = dict.fromkeys(name for pair in pairs for figures in pair for name in _untimed(figures))
        keys |= {(name, "us"): None for name in untimed if name in present[0] & present[1]}
    for row, quantity in keys:
        before, after = ([times.get((row, quantity)) for times in side] for side in (base, head))
        both = [(a, b) for a, b in zip(before, after, strict=True) if a is not None and b is not None]
        known = tuple([us for us in side if us is not None] for side in (before, after))
        if both:
            yield _Series(row, quantity, [a for a, _ in both], [b for _, b in both])
        else:
            everywhere = all(row in of_side for of_side in present)
            yield _Series(row, quantity, known[0], known[1], _why_unknown(row, pairs, known) if everywhere else None)


def _why_unknown(
    row: str, pairs: Sequence[tuple[RequestFigures, RequestFigures]], known: Sequence[Sequence[Microseconds]]
) -> str:
    """Return why a side does not know a time of a row that it has."""
    side, name = (1, "HEAD") if known[0] else (0, "the base")
    missing = dict.fromkeys(pair[side].rows[row].missing for pair in pairs if row in pair[side].rows)
    reasons = [reason for reason in missing if reason not in (NOT_ENTERED, NOT_MEASURED)]
    return f"in {name} {next(iter(reasons), TOO_FEW)}"


def _times(figures: RequestFigures, best_ns: float, allowed: Allowed) -> dict[tuple[str, str], Microseconds]:
    """Return the times of the rows as they would be at the best speed of the machine that any process saw.

    The total is the sum of the rows, which varies far less from process to process than whole requests do.
    """
    scale = best_ns / figures.reference_ns if figures.reference_ns else 1.0
    wanted: list[str] = ["us", *(quantity for quantity in TIMES[1:] if quantity in allowed)]
    rows = [(name, row) for name, row in _rows(figures).items() if name != TOTAL and "us" in row.figures]
    whole = not any(_untimed(figures))
    times = {
        (name, quantity): row.figures[quantity].estimate * scale
        for name, row in rows
        for quantity in wanted
        if quantity in row.figures and _is_known(row.figures[quantity])
    }
    parts_us = [us for (_, quantity), us in times.items() if quantity == "us"]
    if parts_us and whole and len(parts_us) == len(rows):
        times[TOTAL, "us"] = math.fsum(parts_us)
    return times


def _rows(figures: RequestFigures) -> dict[str, RowFigures]:
    return {name: row for name, row in figures.rows.items() if not is_part(name)}


def _present(pairs: Sequence[tuple[RequestFigures, RequestFigures]]) -> list[set[str]]:
    """Return the rows that a request has on each of the two sides, in any of its processes."""
    return [
        {name for figures in side for name, row in _rows(figures).items() if row.missing != NOT_ENTERED}
        for side in zip(*pairs, strict=True)
    ]


def _untimed(figures: RequestFigures) -> Iterator[str]:
    """Yield the layers that have a row of their own without a time."""
    for name, row in _rows(figures).items():
        if name not in (OUTSIDE, ENDPOINT, TOTAL) and row.missing == NOT_MEASURED and "us" not in row.figures:
            yield name


def _is_known(us: Estimate) -> bool:
    """Whether a time is one: in too little time a stored row has no figure, which is read as 0 without an interval."""
    return us.bounded or us.estimate != 0.0


# ---- counts ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Counts:
    """A count of a row in each pair, None where it is not known. Both processes of a pair have the same hash seed.

    `new` and `gone` say that only one side has the row. `why` is the reason why no pair has the count.
    """

    row: str
    quantity: str
    pairs: Sequence[tuple[Estimate | None, Estimate | None]]
    new: bool
    gone: bool
    why: str

    @property
    def both(self) -> list[tuple[Estimate, Estimate]]:
        """The pairs that have the count on both sides."""
        return [(before, after) for before, after in self.pairs if before and after]

    @property
    def differences(self) -> list[float]:
        """The difference between the typical counts of the two processes, for each pair."""
        return [after.estimate - before.estimate for before, after in self.both]

    @property
    def varies(self) -> bool:
        """Whether the pairs differ, so that the count varies by itself."""
        return len(set(self.differences)) > 1

    def evaluated(self, alpha: float, allowed: Allowed) -> _Evaluated | None:
        """Compare the two sides; None for a count that no pair has on both sides, unless it is limited."""
        if self.both:
            return self._compared(alpha, allowed)
        known = [number for pair in self.pairs for number in pair if number]
        if known and self.new:
            return _Evaluated(Change(self.row, self.quantity, "new", None, _typical(known)))
        if known and self.gone:
            return _Evaluated(Change(self.row, self.quantity, "gone", _typical(known), None))
        unknown = judged(Change(self.row, self.quantity, "not measured"), allowed)
        is_told = unknown.verdict is not None and not self.new and not self.gone
        return _Evaluated(replace(unknown, reason=self.why)) if is_told else None

    def _compared(self, alpha: float, allowed: Allowed) -> _Evaluated:
        """Compare the two sides. A change that is certain in neither direction may be what the count varies by."""
        before, after = (_typical(side) for side in zip(*self.both, strict=True))
        by, room = (self._typical_change(alpha), self._room()) if self.varies else (self._same_change(), 0.0)
        word = word_for(self.quantity, by, room)
        change = judged(Change(self.row, self.quantity, word, before, after, by), allowed, room)
        one_way = min(self.differences) > 0 or max(self.differences) < 0
        is_open = one_way and by.low <= 0 <= by.high and len(self.both) < ENOUGH_PAIRS
        return _Evaluated(change, is_open if change.verdict is None else change.verdict == "undecided")

    def _same_change(self) -> Estimate:
        """Return the change that is the same in each pair, from zero on while it may be by chance."""
        by = self.differences[0]
        return Estimate(by, by, by) if len(self.both) >= EQUAL_PAIRS else Estimate(by, min(by, 0.0), max(by, 0.0))

    def _typical_change(self, alpha: float) -> Estimate:
        """Return the typical change. Its interval excludes zero only where that is certain at `alpha`."""
        certain = median_interval(self.differences, alpha)
        if certain.bounded and not certain.low <= 0 <= certain.high:
            return certain
        by = median_interval(self.differences, VARYING_ALPHA)
        ends = (by.low, by.high) if by.bounded else (min(self.differences), max(self.differences))
        return Estimate(by.estimate, min(0.0, ends[0]), max(0.0, ends[1]))

    def _room(self) -> float:
        """Return what the processes of the base differ by, but for the ends; 0 if a change is likely."""
        likely = median_interval(self.differences, VARYING_ALPHA)
        counts = sorted(before.estimate for before, _ in self.both)
        return counts[-2] - counts[1] if likely.bounded and likely.low <= 0 <= likely.high else 0.0


def _counted(pairs: Sequence[tuple[RequestFigures, RequestFigures]]) -> Iterator[_Counts]:
    """Yield the counts of a request."""
    base, head = ([_rows(figures) for figures in side] for side in zip(*pairs, strict=True))
    present = _present(pairs)
    for name in dict.fromkeys(name for rows in (*base, *head) for name in rows):
        before, after = ([rows.get(name, RowFigures()) for rows in side] for side in (base, head))
        new, gone = (name not in of_side for of_side in present)
        for quantity in COUNTED:
            of_pairs = [(a.figures.get(quantity), b.figures.get(quantity)) for a, b in zip(before, after, strict=True)]
            reasons = (row.why[quantity] for row in (*before, *after) if quantity in row.why)
            why = next(reasons, "no process of a pair could count them")
            yield _Counts(name, quantity, of_pairs, new, gone, why)


def _typical(counts: Sequence[Estimate]) -> Estimate:
    """Return the median of a count with its range over all processes."""
    low, high = min(count.low for count in counts), max(count.high for count in counts)
    return Estimate(median(count.estimate for count in counts), low, high)
