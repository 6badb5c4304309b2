"""Evaluate the log of one request by message: what each owner spent between its messages. Pure; no clock.

An owner is charged for sending from the time that a message is sent through it, or by it, until it next receives one,
and the other way round. A call of `receive` that waits beside the task that sends counts from its return on. So the two
ways are told apart, also where they take turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ..model.stack import HARNESS, LISTENING, OWNER_BITS, SENDING, SUSPENDED
from .event_log import Spent, carrying_on

# The messages that only begin: the start of a response and the first part of its body, with which layers do what they
# do once. Both are left out of the cost per message.
BEGINNING = 2

Way: TypeAlias = Literal["sent", "received"]


@dataclass(frozen=True, slots=True)
class Flow:
    """One way, by owner: the messages through the inner and through the outer boundary, and what one of them took."""

    inner: tuple[int, ...]
    outer: tuple[int, ...]
    spent: Spent

    def count(self, owner: int) -> int:
        """Return the messages of an owner: those of the side that has more."""
        return max(self.inner[owner], self.outer[owner])


@dataclass(frozen=True, slots=True)
class FirstPart:
    """Until the first part of the response's body leaves each owner.

    `spent` is the owner's own time until then. `held_ns` is the time of everything else between the moment at which
    this part came to the owner and the moment at which it left; `crossings` are the events in the log meanwhile, and
    `arrived` the further messages that came.
    """

    spent: Spent
    held_ns: tuple[int, ...]
    crossings: tuple[int, ...]
    arrived: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MessageTimes:
    """One request by message."""

    sent: Flow
    received: Flow
    first: FirstPart

    def flow(self, way: Way) -> Flow:
        """Return one way."""
        return self.sent if way == "sent" else self.received


class _Boundary:
    """The messages that cross one side of an owner one way, and what the owner had spent at two of them."""

    __slots__ = ("begun", "count", "latest")

    def __init__(self) -> None:
        self.count = 0
        self.begun = self.latest = (0, 0)

    def cross(self, ns: int, resumed: int) -> None:
        if self.count == BEGINNING:
            self.begun = (ns, resumed)
        self.latest = (ns, resumed)
        self.count += 1

    def spent(self) -> tuple[int, int]:
        """Return the nanoseconds and the resumptions between the beginning and the last message."""
        return self.latest[0] - self.begun[0], self.latest[1] - self.begun[1]


def message_times(log: Sequence[int], owners: int) -> MessageTimes:
    """Divide a request among owners 0 to `owners` - 1 and their messages."""
    everyone = range(owners)
    ways = (0, 1)  # sent, received
    ns = [[0] * owners for _ in ways]
    resumed = [[0] * owners for _ in ways]
    inner, outer = ([[_Boundary() for _ in everyone] for _ in ways] for _ in range(2))
    way_of = [0] * owners
    called: list[list[int]] = [[] for _ in everyone]  # the ways of the calls that have not returned from each owner
    came: dict[int, tuple[int, int, int]] = {}
    first_ns, first_resumed, held, crossings, arrived = ([0] * owners for _ in range(5))
    log = carrying_on(log, owners)
    owner, since, waited = int(HARNESS), log[3] if len(log) > 3 else 0, 0
    for number, (raw, now) in enumerate(zip(log[2::2], log[3::2], strict=True)):
        # With LISTENING no message passes.
        following, flag = (raw & OWNER_BITS, raw % LISTENING // SENDING) if raw > OWNER_BITS else (raw, 0)
        if owner < HARNESS:  # no message passes
            waited += now - since
            if following >= HARNESS:
                way = way_of[following]
                resumed[way][following] += 1
                ns[way][following] += waited if owner == SUSPENDED else 0
                waited = 0 if owner == SUSPENDED else waited
        else:
            ns[way_of[owner]][owner] += now - since
            if flag:
                way = way_of[owner] = way_of[following] = flag - 1
                called[following].append(way)
                leaving, coming = outer[way][owner], inner[way][following]
                leaving.cross(ns[way][owner], resumed[way][owner])
                coming.cross(ns[way][following], resumed[way][following])
                if way == 0 and coming.count == BEGINNING:
                    came[following] = now, ns[0][following] + ns[1][following], number
                if way == 0 and leaving.count == BEGINNING:
                    own = ns[0][owner] + ns[1][owner]
                    first_ns[owner], first_resumed[owner] = own, resumed[0][owner] + resumed[1][owner]
                    if owner in came:
                        then, own_then, event = came[owner]
                        held[owner] = now - then - (own - own_then)
                        crossings[owner] = number - event
                        arrived[owner] = inner[0][owner].count - BEGINNING
            elif following >= HARNESS and called[owner]:
                way_of[following] = called[owner].pop()
        owner, since = following, now
    spent = Spent(tuple(first_ns), (0,) * owners, tuple(first_resumed))
    sent, received = (_flow(inside, outside) for inside, outside in zip(inner, outer, strict=True))
    return MessageTimes(sent, received, FirstPart(spent, tuple(held), tuple(crossings), tuple(arrived)))


def _flow(inside: Sequence[_Boundary], outside: Sequence[_Boundary]) -> Flow:
    each = [_each(*sides) for sides in zip(inside, outside, strict=True)]
    return Flow(
        tuple(boundary.count for boundary in inside),
        tuple(boundary.count for boundary in outside),
        Spent(tuple(ns for ns, _ in each), (0,) * len(each), tuple(resumed for _, resumed in each)),
    )


def _each(inside: _Boundary, outside: _Boundary) -> tuple[int, float]:
    """Return nanoseconds and resumptions for each message after the beginning, by the side with more messages.

    A layer with a queue may get all messages before it hands on the third. Then it works at both sides, one by one.
    """
    more, other = sorted((inside, outside), key=lambda side: side.count, reverse=True)
    between = more.count - 1 - BEGINNING
    if between < 1:
        return 0, 0.0
    ns, resumed = more.spent()
    if other.count > BEGINNING and (more.latest[0] < other.begun[0] or other.latest[0] < more.begun[0]):
        ns, resumed = (amount + also for amount, also in zip((ns, resumed), other.spent(), strict=True))
    return round(ns / between), resumed / between
