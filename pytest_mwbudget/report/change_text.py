"""Changes of figures as cells and sentences. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from ..comparison.figures import is_part
from ..model.changes import CERTAIN, CHANGE_WORDS, Change, Since
from ..model.quantities import COMPARED, COUNTED, RECORDABLE, UNDER_LOAD, from_sources
from ..model.stack import ENDPOINT, TOTAL
from .text import formatted, listed

# The most names that a sentence has.
MOST_NAMES = 3
# Parts of the time of a layer, and times of it that are told only where they changed.
SPENT = tuple(traits.name for traits in from_sources("occupation"))
FURTHER = tuple(quantity for quantity in COMPARED if quantity not in (*RECORDABLE, *UNDER_LOAD))


def signed(change: Change, value: float) -> str:
    """Format a number of a change with its sign."""
    return f"{'-' if value < 0 else '+'}{formatted(change.quantity, abs(value))}"


def _unit(change: Change) -> str:
    """Return the unit of a time, empty for what else can change."""
    return {"time": " µs", "latency": " ms"}.get(change.traits.format, "")


def cell(change: Change) -> str:
    """Format a change for a narrow column: `+3.10 slower`, `same`; of a count `+6`."""
    if change.word in CERTAIN and change.change is not None:
        by = signed(change, change.change.estimate)
        return by if change.traits.counted else f"{by} {change.word}"
    return change.word


def span(change: Change) -> str:
    """Format the interval of a change, empty without one."""
    if change.change is None:
        return ""
    low, high = (signed(change, end) for end in (change.change.low, change.change.high))
    return low if low == high else f"{low} … {high}"


def share(change: Change) -> str:
    """Format a change as a percentage of what the figure was, empty if that is hardly known."""
    if change.share is None:
        return ""
    return f"{change.share:+.1%}" if abs(change.share) < 1 else f"{change.share:+.0%}"


def sentence(change: Change) -> str:
    """Say a change in words: row, quantity, both figures, the change with its share and its interval."""
    before, after = (
        formatted(change.quantity, end.estimate) if end else "nothing" for end in (change.before, change.after)
    )
    text = f"{change.row} {change.quantity} {before} → {after}{_unit(change)}"
    if change.change is None:
        return f"{text}, {change.word}"
    interval = span(change) if change.change.low != change.change.high else ""
    details = ", ".join(filter(None, [share(change), interval]))
    return f"{text}, {signed(change, change.change.estimate)}{f' ({details})' if details else ''}"


def summed(changes: Iterable[Change]) -> str:
    """Return how many figures changed in which way: `1 slower, 2 more, 60 same`."""
    counted = Counter(change.word for change in changes)
    return ", ".join(f"{counted[word]} {word}" for word in CHANGE_WORDS if counted[word]) or "nothing to compare"


def of_rows(changes: Sequence[Change], *, timed: bool) -> Iterator[str]:
    """Yield a sentence for each row that changed. `timed` says whether a time with a change is said too."""
    rows: dict[str, list[Change]] = {}
    for change in without_implied(changes):
        if change.changed and (timed or change.quantity != "us" or change.change is None):
            rows.setdefault(change.row, []).append(change)
    for row, row_changes in rows.items():
        whole = next((change.word for change in row_changes if change.word in ("new", "gone")), None)
        parts = [_part(change) for change in row_changes if not (whole and _nothing(change))]
        yield f"{row}{f' is {whole}' if whole else ''}: {', '.join(parts)}" if parts else f"{row} is {whole}"


def _part(change: Change) -> str:
    """Say a change without its row: `objects 31 → 515 (+484)`; of a row that is new or gone `objects 31`."""
    ends = [formatted(change.quantity, end.estimate) for end in (change.before, change.after) if end]
    difference = "" if change.change is None else f" ({signed(change, change.change.estimate)})"
    return f"{change.quantity} {' → '.join(ends)}{_unit(change)}{difference}"


def _nothing(change: Change) -> bool:
    """Whether a row that is new or gone has a count of 0."""
    return all(not end.estimate for end in (change.before, change.after) if end)


def without_implied(changes: Sequence[Change]) -> list[Change]:
    """Leave out changes that another change implies: of parts of a time, of counts of the whole request and endpoint.

    Percentiles and further times of a layer are kept only if they changed and the typical time did not.
    """
    words = {change.row: change.word for change in changes if change.quantity == "us"}
    changed = [change for change in changes if change.changed]
    implied = {
        TOTAL: {change.quantity for change in changed if change.row != TOTAL},
        ENDPOINT: {change.quantity for change in changed if is_part(change.row)},
    }
    return [
        change
        for change in changes
        if not (change.quantity in (*SPENT, *FURTHER) and change.word == words.get(change.row))
        and not (change.quantity in FURTHER and not change.changed)
        and not (change.quantity in COUNTED and change.quantity in implied.get(change.row, ()))
    ]


def about(since: Since) -> Iterator[str]:
    """Yield the run that was compared with, and what both runs do not share."""
    parts = [since.name, f"commit {since.commit}" if since.commit else "", since.created or ""]
    yield f"compared with {', '.join(filter(None, parts))}"
    if since.differences:
        yield f"the runs differ: {'; '.join(since.differences)}"
    for word, requests in (("new", since.new), ("gone", since.gone)):
        if requests:
            yield f"{word}: {listed(requests, MOST_NAMES)}"
    yield from (f"measured several times: {request}" for request in since.repeated)
