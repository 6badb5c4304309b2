"""One run compared with another: each request with what its figures changed by."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from ..analysis.paired import FEWEST_PAIRS
from ..analysis.slowdown import APPS_SLOWED, STEADY
from ..model.changes import Change, word_for
from ..model.estimate import WIDE_SHARE, WIDE_US, Estimate, independent_sum
from ..model.load import CLOCK_NAMES, PROCESSOR
from ..model.quantities import BETWEEN_RUNS, COMPARED, RECORDABLE, RPS_SHARE, TRAITS, UNDER_LOAD
from ..model.request_keys import RequestKey
from .allowed import Allowed, judged
from .figures import TOO_FEW, RequestFigures, RowFigures, figures_of, is_part
from .outcome import Comparison, RequestChanges
from .run_sets import Merged
from .surroundings import Comparable, comparable, differences

# Where counts of one run differ from process to process, those of the other run may differ by this many times as much.
BETWEEN_PROCESSES = 2
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
        surroundings = comparable(earlier.run, later.run, earlier.result.loop, later.result.loop)
        of_request = changes(figures_of(earlier.result), figures_of(later.result), surroundings)
        requests.append(RequestChanges(place.key, [judged(change, allowed or {}) for change in of_request]))
    return Comparison(
        requests,
        new,
        [place.key for place in before.requests if after.like(place) is None],
        allowed or {},
        tuple(dict.fromkeys(difference for earlier, later in runs for difference in differences(earlier, later))),
        (*before.repeated, *after.repeated),
    )


def counted_again(comparison: Comparison, processes: Sequence[Mapping[RequestKey, RequestFigures]]) -> Comparison:
    """Judge the counts that grew by too much again, with those of other processes of the later run.

    A count that is not the same in all of them varies by itself, and did so in the earlier run (docs/decisions/0029).
    """
    requests = []
    for key, of_request in comparison.requests:
        again = [process[key].rows for process in processes if key in process]
        requests.append(
            RequestChanges(key, [_judged_again(change, again, comparison.allowed) for change in of_request])
        )
    return replace(comparison, requests=requests)


def grown_counts(comparison: Comparison) -> list[Change]:
    """Return the counts that grew by too much."""
    return [change for _, change in comparison.changes if _is_grown_count(change)]


def _is_grown_count(change: Change) -> bool:
    return change.verdict == "fail" and change.traits.counted


def _judged_again(change: Change, processes: Sequence[Mapping[str, RowFigures]], allowed: Allowed) -> Change:
    """Judge a count that grew by too much with the interval that its differences between processes give it."""
    if not _is_grown_count(change) or change.change is None or change.after is None:
        return change
    rows = [rows[change.row].figures for rows in processes if change.row in rows]
    counts = [change.after, *(figures[change.quantity] for figures in rows if change.quantity in figures)]
    numbers = [count.estimate for count in counts]
    if min(numbers) == max(numbers):
        return change
    room = BETWEEN_PROCESSES * (max(numbers) - min(numbers))
    low = change.change.low + min(count.low for count in counts) - change.after.low
    high = change.change.high + max(count.high for count in counts) - change.after.high
    again = judged(replace(change, change=Estimate(change.change.estimate, low - room, high + room)), allowed)
    if again.verdict == "fail":
        return again
    reason = f"it differs between processes of this run, from {min(numbers):g} to {max(numbers):g}"
    return replace(change, word="not comparable", change=None, verdict="undecided", reason=reason)


def changes(before: RequestFigures, after: RequestFigures, surroundings: Comparable) -> tuple[Change, ...]:
    """Return what each quantity of each row changed by: the rows of the later run in order, then those that are gone.

    A quantity that neither run knows is left out, and so are the parts of an endpoint that only one run opened.
    """
    rows = (*after.rows, *(name for name in before.rows if name not in after.rows))
    rows = tuple(row for row in rows if not is_part(row) or (before.opened and after.opened))
    candidates = (change_of(row, quantity, before, after, surroundings) for row in rows for quantity in COMPARED)
    return tuple(change for change in candidates if change is not None)


def change_of(
    row: str, quantity: str, before: RequestFigures, after: RequestFigures, surroundings: Comparable
) -> Change | None:
    """Return what a quantity of a row changed by between two runs.

    None if neither run knows the figure, or only one does and it is measured on request.
    """
    rows = before.rows.get(row), after.rows.get(row)
    old, new = (figures.figures.get(quantity) if figures else None for figures in rows)
    on_request = quantity not in RECORDABLE
    if (old is None and new is None) or (on_request and not all(figure and figure.bounded for figure in (old, new))):
        return None
    change = partial(Change, row, quantity, before=old, after=new)
    earlier, later = rows
    if earlier is None or later is None:
        return change("new" if earlier is None else "gone")
    if old is None or new is None:
        return change("not measured", reason=later.missing if old else f"in the earlier run {earlier.missing}")
    if not (old.bounded and new.bounded):
        return change("not measured", reason=TOO_FEW)
    why_not = (
        surroundings.reason(quantity)
        or other_load(row, quantity, before, after)
        or _other_timing(quantity, earlier, later)
    )
    if why_not is not None:
        return change("not comparable", reason=why_not)
    difference = _difference(quantity, old, new, before, after)
    return change(word_for(quantity, difference, _tolerance(quantity, old)), change=difference)


def other_load(row: str, quantity: str, before: RequestFigures, after: RequestFigures) -> str | None:
    """Return why a figure under load cannot be compared, None if it can and for any other figure."""
    if quantity not in UNDER_LOAD or before.load is None or after.load is None:
        return None
    if str(before.load) != str(after.load):
        return f"measured with {before.load}, then with {after.load}"
    earlier, later = (run.rows[row].clock if row in run.rows else None for run in (before, after))
    if quantity == RPS_SHARE and None not in (earlier, later) and earlier != later:
        return f"it is a share of {CLOCK_NAMES[earlier]}, then of {CLOCK_NAMES[later]}"
    if quantity == RPS_SHARE and later == PROCESSOR:  # which needs no quiet moments
        return None
    quiet = min(before.load.quiet, after.load.quiet)
    return None if quiet >= FEWEST_PAIRS else "there were too few rounds of bursts in quiet moments"


def _other_timing(quantity: str, earlier: RowFigures, later: RowFigures) -> str | None:
    """Say why the times of a row cannot be compared, although both runs measured it on the same machine."""
    if TRAITS[quantity].counted or not (earlier.in_threads or later.in_threads):
        return None
    return "it waits for threads, for longer or shorter with the load of the machine"


def _difference(quantity: str, old: Estimate, new: Estimate, before: RequestFigures, after: RequestFigures) -> Estimate:
    """Return the difference of a figure, with an interval that holds for any speed of the machine in either run."""
    threaded = before.in_threads or after.in_threads
    if TRAITS[quantity].counted:
        return (new - old).widened(BETWEEN_THREADED_COUNTS * max(old.high, new.high) if threaded else 0)
    between = BETWEEN_RUNS * max(TRAITS[quantity].between, BETWEEN_THREADED if threaded else 1.0)
    at_best = independent_sum(_at_best(quantity, new, after, before), -_at_best(quantity, old, before, after))
    return at_best.widened(between * max(0.0, old.estimate, new.estimate))


def _at_best(quantity: str, figure: Estimate, run: RequestFigures, other: RequestFigures) -> Estimate:
    """Return a figure with the interval that it may have at the best speed of the machine that either run knows."""
    slowed = (run.load.slowdown if run.load and quantity in UNDER_LOAD else run.slowdown) or 1.0
    if run.reference_ns and other.reference_ns:
        slowed *= run.reference_ns / min(run.reference_ns, other.reference_ns)
    # Bursts with the layer and past it are slowed down alike, so a share stays as it is.
    if slowed <= STEADY or TRAITS[quantity].format == "share":
        return figure
    factor = slowed**APPS_SLOWED
    if TRAITS[quantity].format == "rate":
        return Estimate(figure.estimate, figure.low, max(figure.high, figure.high * factor))
    return Estimate(figure.estimate, min(figure.low, figure.low / factor), figure.high)


def _tolerance(quantity: str, before: Estimate) -> float:
    """Return the change within which a figure is the same: of counts any that is not certain."""
    if TRAITS[quantity].counted:
        return math.inf
    return max(WIDE_US if TRAITS[quantity].format == "time" else 0.0, WIDE_SHARE * before.estimate)
