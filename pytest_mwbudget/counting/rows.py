"""Find the typical charge of each row from the charges of requests. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median_low
from typing import Any, TypeAlias

from ..model.quantities import COUNTED, EXECUTED, PROCESS_WIDE, CountedQuantity
from ..model.results import Count, Counts, Range
from ..model.stack import Owner
from .charged_requests import RequestCharges
from .executed import Executed

Kinds: TypeAlias = Mapping[str, int]

# Where `RequestCharges` has each number: its field of kinds, its place in a tally, its field of messages.
KINDS = {"objects": "types", "tasks": "tasks", "threads": "threads", "retained": "retained"}
TALLIES = {"allocations": 1, "bytes": 2, "suspensions": 3}
MESSAGES = ("received", "sent")
# One request in this many may execute something else than the others, because a cache is renewed.
STRAY_ONE_IN = 10
NOTHING = Executed()
DIFFERS = "the number differs from request to request"


def row_counts(
    charges: Sequence[RequestCharges],
    owners: Iterable[Owner],
    why_not: Mapping[str, str],
    too_low: Mapping[Owner, str] = {},
    executed: Executed = NOTHING,
) -> Counts:
    """Return the typical charges of a row, which has one owner or several. `charges` is not empty.

    `why_not` says by quantity why it cannot be counted at all, `too_low` by owner why it was charged too little.
    """
    own = list(owners)
    reason = next((too_low[owner] for owner in own if owner in too_low), None)
    why: dict[str, str] = {}
    if reason is not None:
        why = {quantity: reason for quantity in PROCESS_WIDE if quantity not in why_not}
    why_not = {**why_not, **why}
    kinds = {name: [_merged(getattr(request, field), own) for request in charges] for name, field in KINDS.items()}
    numbers = {name: [sum(by_kind.values()) for by_kind in values] for name, values in kinds.items()}
    numbers |= {
        name: [sum(request.tallies[owner][place] for owner in own) for request in charges]
        for name, place in TALLIES.items()
    }
    numbers |= {name: [sum(getattr(request, name)[owner] for owner in own) for request in charges] for name in MESSAGES}
    counts: dict[str, Any] = {name: _count(values) for name, values in numbers.items()}
    counts |= {name: replace(counts[name], kinds=_typical(values)) for name, values in kinds.items()}
    for quantity, values in _executed(executed, own).items():
        numbers[quantity], counts[quantity] = values, same_number(values)
        if counts[quantity] is None and quantity not in why_not:
            why[quantity] = f"{DIFFERS}: {min(values)} to {max(values)}"
    counts |= {quantity: None for quantity in PROCESS_WIDE if quantity in why_not}
    known: list[str] = [quantity for quantity in COUNTED if quantity in numbers and quantity not in why_not]
    ranges = {name: without_strays(numbers[name]) for name in known if min(numbers[name]) != max(numbers[name])}
    return Counts(**counts, why=why, ranges=ranges)


def _executed(executed: Executed, owners: Sequence[Owner]) -> dict[CountedQuantity, list[int]]:
    """Return by quantity what a row executed in each request; nothing without requests."""
    return {
        quantity: [sum(request[owner][place] for owner in owners) for request in executed.requests]
        for place, quantity in enumerate(EXECUTED)
        if executed.requests
    }


def without_strays(values: Sequence[int]) -> Range:
    """Return the ends of what is left without the lowest and the highest tenth."""
    strays, ordered = len(values) // STRAY_ONE_IN, sorted(values)
    return ordered[strays], ordered[-1 - strays]


def same_number(values: Sequence[int]) -> Count | None:
    """Return the number that requests have in common; None if too many differ from it."""
    usual, times = Counter(values).most_common(1)[0]
    strays = len(values) - times
    return Count(usual, min(values), max(values)) if strays * STRAY_ONE_IN <= len(values) else None


def with_own_types(rows: Mapping[Any, Counts]) -> dict[Any, Counts]:
    """Return the same rows, each with the types that no other row created."""
    created = Counter(kind for counts in rows.values() if counts.objects for kind in counts.objects.kinds)
    return {
        name: replace(counts, own_types=tuple(kind for kind in counts.objects.kinds if created[kind] == 1))
        if counts.objects
        else counts
        for name, counts in rows.items()
    }


def _merged(by_owner: Mapping[Owner, Kinds], owners: Sequence[Owner]) -> Kinds:
    if len(owners) == 1:
        return by_owner.get(owners[0], {})
    merged: Counter[str] = Counter()
    for owner in filter(by_owner.__contains__, owners):
        merged.update(by_owner[owner])
    return merged


def _count(values: Sequence[int]) -> Count:
    """Return the lower median, which a request really had, with the least and the greatest."""
    return Count(median_low(values), min(values), max(values))


def _typical(values: Sequence[Kinds]) -> Kinds:
    """Return the kinds of the typical request with their numbers, the most frequent first."""
    typical = values[0]
    if not all(kinds == typical for kinds in values):  # rare, and much slower
        typical = {kind: median_low([kinds.get(kind, 0) for kinds in values]) for kind in set().union(*values)}
    return dict(
        sorted(((kind, number) for kind, number in typical.items() if number), key=lambda pair: (-pair[1], pair[0]))
    )
