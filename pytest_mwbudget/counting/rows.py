"""Find the typical charge of each row from the charges of requests. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median_low
from typing import Any, TypeAlias

from ..model.results import EXECUTED, PROCESS_WIDE, Count, CountedQuantity, Counts
from ..model.stack import Owner
from .executed import Executed
from .run import RequestCharges

Kinds: TypeAlias = Mapping[str, int]
ALLOCATIONS, BYTES, SUSPENSIONS = 1, 2, 3
# One request in this many may execute something else than the others, as one in which a cache was renewed.
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
    """Return the typical charges of a row, which is one owner or several. `charges` is not empty.

    `why_not` says by quantity why it cannot be counted at all, `too_low` by owner why it was charged too little.
    """
    own = list(owners)
    reason = next((too_low[owner] for owner in own if owner in too_low), None)
    why: dict[str, str] = {}
    if reason is not None:
        why = {quantity: reason for quantity in PROCESS_WIDE if quantity not in why_not}
    why_not = {**why_not, **why}
    ran: dict[str, Any] = {}
    for quantity, values in _executed(executed, own).items():
        if quantity not in why_not:
            ran[quantity] = same_number(values)
            if ran[quantity] is None:
                why[quantity] = f"{DIFFERS}: {min(values)} to {max(values)}"

    def number(of: Callable[[RequestCharges, Owner], int]) -> Count:
        return _count([sum(of(one, owner) for owner in own) for one in charges])

    def kinds(of: Callable[[RequestCharges], Mapping[Owner, Kinds]]) -> Count:
        return _count_by_kind([_merged(of(one), own) for one in charges])

    return Counts(
        objects=None if "objects" in why_not else kinds(lambda one: one.types),
        allocations=None if "allocations" in why_not else number(lambda one, owner: one.tallies[owner][ALLOCATIONS]),
        bytes=None if "bytes" in why_not else number(lambda one, owner: one.tallies[owner][BYTES]),
        tasks=kinds(lambda one: one.tasks),
        threads=kinds(lambda one: one.threads),
        retained=None if "retained" in why_not else kinds(lambda one: one.retained),
        received=number(lambda one, owner: one.received[owner]),
        sent=number(lambda one, owner: one.sent[owner]),
        suspensions=number(lambda one, owner: one.tallies[owner][SUSPENSIONS]),
        why=why,
        **ran,
    )


def _executed(executed: Executed, owners: Sequence[Owner]) -> dict[CountedQuantity, list[int]]:
    """Return by quantity what a row executed in each request; nothing without requests."""
    return {
        quantity: [sum(request[owner][place] for owner in owners) for request in executed.requests]
        for place, quantity in enumerate(EXECUTED)
        if executed.requests
    }


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
    if all(kinds == values[0] for kinds in values):  # usual, and much faster than a median for each kind
        return values[0]
    return {kind: median_low([kinds.get(kind, 0) for kinds in values]) for kind in set().union(*values)}


def _count_by_kind(values: Sequence[Kinds]) -> Count:
    if not any(values):
        return Count(0, 0, 0)
    total = _count([sum(kinds.values()) for kinds in values])
    typical = _typical(values)
    ordered = sorted(
        ((kind, number) for kind, number in typical.items() if number), key=lambda pair: (-pair[1], pair[0])
    )
    return replace(total, kinds=dict(ordered))
