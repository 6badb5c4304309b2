"""One run compared with another: each request with what its figures changed by."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

from ..analysis.paired import FEWEST_PAIRS
from ..analysis.slowdown import APPS_SLOWED, STEADY
from ..analysis.verdicts import BETWEEN_RUNS
from ..model.changes import Change, word_for
from ..model.estimate import WIDE_SHARE, WIDE_US, Estimate, independent_sum
from ..model.quantities import COMPARED, RECORDABLE, TRAITS, UNDER_LOAD, Traits
from .allowed import Allowed, judged
from .figures import RequestFigures, RowFigures, figures_of, is_part
from .merging import Merged
from .outcome import Comparison, RequestChanges
from .surroundings import Comparable, comparable, differences

# Two processes read the same row by up to BETWEEN_RUNS differently, beyond their intervals. A request that hands work
# to threads differs more, and also in counts: with the moment at which a thread answers (docs/decisions/0029).
BETWEEN_THREADED, BETWEEN_THREADED_COUNTS = 3.0, 0.02


def compare(before: Merged, after: Merged, allowed: Allowed | None = None) -> Comparison:
    """Compare each request of the later runs with the same request of the earlier runs, in the order of the later."""
    requests, new, runs = [], [], []
    for place, later in after.requests.items():
        earlier = before.like(place)
        if earlier is None:
            new.append(place.key)
            continue
        runs.append((earlier.run, later.run))
        limits = comparable(earlier.run, later.run, earlier.result.loop, later.result.loop)
        found = changes(figures_of(earlier.result), figures_of(later.result), limits)
        requests.append(RequestChanges(place.key, [judged(change, allowed or {}) for change in found]))
    return Comparison(
        requests,
        new,
        [place.key for place in before.requests if after.like(place) is None],
        allowed or {},
        tuple(dict.fromkeys(difference for earlier, later in runs for difference in differences(earlier, later))),
        (*before.repeated, *after.repeated),
    )


def changes(before: RequestFigures, after: RequestFigures, limits: Comparable) -> tuple[Change, ...]:
    """Return what each quantity of each row changed by: the rows of the later run in order, then those that are gone.

    A quantity that neither run knows is left out, and so are the parts of an endpoint that only one run opened.
    """
    rows = (*after.rows, *(name for name in before.rows if name not in after.rows))
    rows = tuple(row for row in rows if not is_part(row) or (before.opened and after.opened))
    candidates = (change_of(row, quantity, before, after, limits) for row in rows for quantity in COMPARED)
    return tuple(change for change in candidates if change is not None)


def change_of(
    row: str, quantity: str, before: RequestFigures, after: RequestFigures, limits: Comparable
) -> Change | None:
    """Return what a quantity of a row changed by between two runs, None if there is nothing to say of it."""
    return _Pair(
        row,
        quantity,
        before.rows.get(row),
        after.rows.get(row),
        limits.reason(quantity) or other_load(quantity, before, after),
        (_slowed(quantity, before, after), _slowed(quantity, after, before)),
        before.in_threads or after.in_threads,
    ).change()


def other_load(quantity: str, before: RequestFigures, after: RequestFigures) -> str | None:
    """Return why a figure under load cannot be compared, None if it can and for any other figure."""
    if quantity not in UNDER_LOAD or before.load is None or after.load is None:
        return None
    if str(before.load) != str(after.load):
        return f"measured with {before.load}, then with {after.load}"
    quiet = min(before.load.quiet, after.load.quiet)
    return None if quiet >= FEWEST_PAIRS else "there were too few rounds of bursts in quiet moments"


def _slowed(quantity: str, figures: RequestFigures, other: RequestFigures) -> float:
    """Return how many times slower than at the best speed that either run knows the machine ran, at least 1."""
    ratio = (figures.load.slowdown if figures.load and quantity in UNDER_LOAD else figures.slowdown) or 1.0
    if figures.reference_ns and other.reference_ns:
        ratio *= figures.reference_ns / min(figures.reference_ns, other.reference_ns)
    return ratio if ratio > STEADY else 1.0


@dataclass(frozen=True, slots=True)
class _Pair:
    """A quantity of a row in both runs. `why_not` says why it cannot be compared, `slowed` is that of both runs.

    `threaded` says whether the request hands work to threads, in any row.
    """

    row: str
    quantity: str
    earlier: RowFigures | None
    later: RowFigures | None
    why_not: str | None
    slowed: tuple[float, float]
    threaded: bool

    def change(self) -> Change | None:
        """Return the change, None if neither run knows the figure, or only one does and it is measured on request."""
        before, after = (row.figures.get(self.quantity) if row else None for row in (self.earlier, self.later))
        if before is None and after is None:
            return None
        if self.quantity not in RECORDABLE and not all(figure and figure.bounded for figure in (before, after)):
            return None
        change = partial(Change, self.row, self.quantity, before=before, after=after)
        if self.earlier is None:
            return change("new")
        if self.later is None:
            return change("gone")
        if before is None or after is None:
            reason = f"in the earlier run {self.earlier.missing}" if before is None else self.later.missing
            return change("not measured", reason=reason)
        if not (before.bounded and after.bounded):
            return change("not measured", reason="there were too few requests for an interval")
        why_not = self.why_not or (None if self._traits.counted else self._incomparable_time(self.earlier, self.later))
        if why_not is not None:
            return change("not comparable", reason=why_not)
        if self._traits.counted:
            difference, tolerance = self._difference_of_counts(before, after), math.inf
        else:
            least = WIDE_US if self._traits.format == "time" else 0.0
            difference, tolerance = self._difference(before, after), max(least, WIDE_SHARE * before.estimate)
        return change(word_for(self.quantity, difference, tolerance), change=difference)

    @property
    def _traits(self) -> Traits:
        return TRAITS[self.quantity]

    def _incomparable_time(self, earlier: RowFigures, later: RowFigures) -> str | None:
        """Say why the times of a row cannot be compared, although both runs measured it on the same machine."""
        if earlier.in_threads or later.in_threads:
            return "it waits for threads, for longer or shorter with the load of the machine"
        # A layer that became another kind of layer is timed by another method rightly.
        if earlier.runs_task != later.runs_task or earlier.method == later.method:
            return None
        return f"it was timed by {earlier.method}, then by {later.method}"

    def _difference_of_counts(self, before: Estimate, after: Estimate) -> Estimate:
        largest = max(before.high, after.high)
        return (after - before).widened(BETWEEN_THREADED_COUNTS * largest if self.threaded else 0.0)

    def _difference(self, before: Estimate, after: Estimate) -> Estimate:
        """Return the difference, with an interval that holds for any speed that the machine had in either run."""
        at_best = [self._at_best(us, slowed) for us, slowed in zip((before, after), self.slowed, strict=True)]
        largest = max(0.0, before.estimate, after.estimate)
        between = max(self._traits.between, BETWEEN_THREADED if self.threaded else 1.0)
        return independent_sum(at_best[1], -at_best[0]).widened(BETWEEN_RUNS * between * largest)

    def _at_best(self, figure: Estimate, slowed: float) -> Estimate:
        """Return a figure with the interval that it may have where the machine is at its best."""
        factor = slowed**APPS_SLOWED
        if self._traits.format == "share":  # bursts with the layer and past it are slowed down alike
            return figure
        if self._traits.format == "rate":
            return Estimate(figure.estimate, figure.low, max(figure.high, figure.high * factor))
        return Estimate(figure.estimate, min(figure.low, figure.low / factor), figure.high)
