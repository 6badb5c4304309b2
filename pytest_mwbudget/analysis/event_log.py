"""Evaluate the log that the probes of one request wrote. Pure; no clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ..model.estimate import Nanoseconds
from ..model.stack import ASIDE, HARNESS, NULL, OTHERS, OWNER_BITS, SUSPENDED, Owner


@dataclass(frozen=True, slots=True)
class Spent:
    """One request by owner: nanoseconds, nanoseconds in suspensions, and the number of resumptions."""

    ns: tuple[Nanoseconds, ...]
    suspended: tuple[Nanoseconds, ...]
    resumed: tuple[float, ...]


def spent(log: Sequence[int], owners: int) -> Spent:
    """Divide the time between the first and the last probe of a log among owners 0 to `owners` - 1.

    The log has owners and nanoseconds in turn. The time of a suspension belongs to the owner that is resumed next, but
    for steps aside: the request waits on during these. A worker that takes requests from a queue was not started in the
    request; if it carries the request into a layer, its time belongs to the owner that waits for it.
    """
    ns, suspended, resumed = [0] * owners, [0] * owners, [0] * owners
    if len(log) < 4:
        return Spent(tuple(ns), tuple(suspended), tuple(resumed))  # the request reached no probe
    log = carrying_on(log, owners)
    owner, since, waited = int(HARNESS), log[3], 0
    for following, now in zip(log[2::2], log[3::2], strict=True):
        if following > OWNER_BITS:
            following &= OWNER_BITS
        if owner >= HARNESS:
            ns[owner] += now - since
        else:
            waited += now - since
            if following >= HARNESS:
                resumed[following] += 1
                if owner == SUSPENDED:
                    ns[following] += waited
                    suspended[following] += waited
                    waited = 0
        owner, since = following, now
    others = Owner(owners + OTHERS)
    carried_for = _carried_for(log, others, layers=range(HARNESS + 1, owners + NULL + 1)) if ns[others] else others
    if carried_for != others:
        for of in (ns, suspended, resumed):
            of[others], of[carried_for] = 0, of[carried_for] + of[others]
    return Spent(tuple(ns), tuple(suspended), tuple(resumed))


def _owners(log: Sequence[int]) -> list[int]:
    """Return the owners of a log, without the bits that say how they were entered."""
    return [owner & OWNER_BITS if owner > OWNER_BITS else owner for owner in log[::2]]


def carrying_on(log: Sequence[int], owners: int) -> Sequence[int]:
    """Return a log in which steps that carry the request on are not aside: its owner waits, and they enter a layer.

    While the owner waits in an inner layer, a step that enters a layer makes another request beside this one.
    """
    if ASIDE not in log[::2]:
        return log
    kept: list[int] = []
    waiting: Counter[int] = Counter()
    before, is_aside = int(HARNESS), False
    for place, owner in zip(range(0, len(log), 2), _owners(log), strict=True):
        if owner == ASIDE:
            step, entered = (*log[place + 2 : place + 6 : 2], SUSPENDED, SUSPENDED)[:2]
            is_aside = not (waiting[step] > 0 and HARNESS < entered <= owners + NULL)
            if not is_aside:
                before = owner
                continue
        elif owner == SUSPENDED:
            if before >= HARNESS and not is_aside:
                waiting[before] += 1
            is_aside = False
        elif before == SUSPENDED:
            waiting[owner] -= 1
        before = owner
        kept += log[place : place + 2]
    return kept


def _carried_for(log: Sequence[int], others: Owner, layers: Collection[int]) -> Owner:
    """Return the owner that waits when `others` carries the request into a layer; `others` if it does not."""
    waiting, is_aside = others, False
    for before, following in pairwise(_owners(log)):
        if before == others and following in layers:
            return waiting
        if before == SUSPENDED:
            is_aside = following == ASIDE
        elif following == SUSPENDED and not is_aside:
            waiting = Owner(before)
    return others


def passing_ns(log: Sequence[int], null: Owner) -> Nanoseconds:
    """Return the time of the null layer in which messages pass it: without those of entering and of leaving it.

    Owners after `null` are no rows: time of theirs does not divide a passage.
    """
    passages: list[Nanoseconds] = []
    is_outside = True
    for (owner, since), (_, now) in pairwise(zip(log[::2], log[1::2], strict=True)):
        owner &= OWNER_BITS
        if owner == null:
            if is_outside:
                passages.append(0)
            passages[-1] += now - since
        if HARNESS <= owner <= null:
            is_outside = owner != null
    return sum(passages[1:-1])


def leaning_ns(log: Sequence[int], null: Owner, unowned: Owner) -> Nanoseconds:
    """Return by how much longer the inside of a null layer's outer probe took than the outside of its inner one.

    The blank layer between them logs the latter as `unowned`, next to time of `null`. Other unowned time is elsewhere.
    """
    leaning = 0
    owners = _owners(log)
    for place, (since, now) in enumerate(pairwise(log[1::2])):
        if owners[place] == null:
            leaning += now - since
        elif owners[place] == unowned and null in (owners[place - 1], owners[place + 1]):
            leaning -= now - since
    return leaning


def messages_of(log: Sequence[int], parts: Collection[Owner]) -> Counter[Owner]:
    """Count the messages that each part of an opened endpoint sends and receives.

    `parts` are the owners of the parts, that of the endpoint first. Each message goes from a part to the outside.
    """
    owners = [Owner(owner) for owner in log[2::2] if owner >= HARNESS]
    left = Counter(before for before, after in pairwise(owners) if before in parts and after not in parts)
    left[next(iter(parts))] -= 1  # the end of the request
    return +left
