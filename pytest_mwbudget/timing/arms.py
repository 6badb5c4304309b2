"""Alternate requests with every layer and requests without single ones.

A layer may be left out of a request if the method is safe, if the one app inside the layer can be called in its place,
if the app then answers as it does with the layer, and if it then does nothing else. This module gives the reason for
every layer that may not be left out.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TypeAlias, TypeVar

from ..analysis.savings import TOGETHER, Arm
from ..asgi import loops, server
from ..asgi.stack import Stack
from ..errors import ResponseError
from ..model.estimate import Estimate, Seconds
from ..model.stack import EntryIndex, parts_of
from .bypasses import Bypasses
from .sampler import Deadline

# Methods that RFC 9110 calls safe.
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")

# Leaving a layer out may save up to this many times its own time, and this much more: the layer leaves cold caches and
# takes turns of the event loop. Above that, the app does something else without the layer.
MOST_TIMES, MOST_US = 5.0, 20.0

Block = TypeVar("Block")
# The blocks of a round in the order in which they were made, each with the layer that was left out.
Blocks: TypeAlias = list[tuple[Arm, Block]]


class Arms:
    """Requests of one stack with every layer and without single ones.

    `layers` may be left out as far as is known, each with the app that is called in its place; `why_not` has the reason
    for the others. `changing` are the layers without which the body of the response has another length. Those in
    `together` are only left out together, in the arm TOGETHER. `bypasses` are the trampolines of `layers` and those of
    `further` layers. `why_none` is a reason against leaving out any layer.
    """

    def __init__(
        self,
        stack: Stack,
        caller: server.Caller,
        rng: random.Random,
        layers: Iterable[EntryIndex],
        *,
        further: Iterable[EntryIndex] = (),
        why_none: str | None = None,
    ) -> None:
        self.stack = stack
        self.caller = caller
        self.rng = rng
        self.layers: dict[EntryIndex, EntryIndex] = {}
        self.together: tuple[EntryIndex, ...] = ()
        self.why_not: dict[EntryIndex, str] = {}
        self.changing: set[EntryIndex] = set()
        method = caller.template.line.method
        if method not in SAFE_METHODS:
            why_none = f"a {method} request is sent past no layer"
        for index in layers:
            inner = why_none or inner_app(stack, index)
            if isinstance(inner, str):
                self.why_not[index] = inner
            else:
                self.layers[index] = inner
        self.bypasses = Bypasses(stack, {**dict.fromkeys(further), **self.layers})

    def refuse(self, index: EntryIndex, why: str) -> None:
        """Leave a layer, or those that are left out together, out of no further request."""
        if index == TOGETHER:
            self.together = ()
        else:
            del self.layers[index]
        self.why_not[index] = why

    def refuse_all(self, why: str) -> None:
        """Leave no layer out of any further request."""
        for index in [*self.layers]:
            self.refuse(index, why)

    def join(self, layers: Iterable[EntryIndex], why: str) -> None:
        """Leave these layers out only together, for this reason."""
        self.together = tuple(layers)
        for index in self.together:
            self.refuse(index, why)

    @property
    def arms(self) -> list[EntryIndex]:
        """What can be left out."""
        return [*self.layers, *([TOGETHER] if self.together else [])]

    def without(self, arm: Arm) -> AbstractContextManager[None]:
        """Send the requests of a block past what an arm leaves out."""
        return self.bypasses.without(*self.left_out(arm))

    def left_out(self, arm: Arm) -> tuple[EntryIndex, ...]:
        """Return the layers that an arm leaves out."""
        if arm is None:
            return ()
        return self.together if arm == TOGETHER else (arm,)

    async def try_each(
        self, limit_s: Seconds, arms: Iterable[EntryIndex] | None = None, lengths: Collection[int | None] = ()
    ) -> None:
        """Make a first request without each arm. Refuses arms without which it fails or takes longer than this.

        `lengths` are those that bodies have with every layer, if bodies are to be compared.
        """
        for index in self.arms if arms is None else arms:
            try:
                async with self.caller.loop.limited(limit_s):
                    with self.without(index):
                        exchange = await self.caller()
                if lengths and exchange.body_bytes not in lengths:
                    self.changing.add(index)
            except loops.OutOfTimeError:
                self.refuse(index, f"without {_them(index)} a request did not end within {limit_s:.3g} s")
            except Exception as error:  # whatever the app does without the layer
                self._refuse_for(error, index)

    async def rounds(
        self,
        block: Callable[[Arm], Awaitable[Block]],
        deadline: Deadline,
        block_ns: float,
        *,
        most: int = sys.maxsize,
        whole: Callable[[int], int] = lambda layers: 1,
        around: Callable[[], AbstractContextManager[None]] = nullcontext,
        failures: type[Exception] = Exception,
        when: str = "",
    ) -> list[Blocks[Block]]:
        """Make rounds until the deadline, at most `most`. A round is one block without each layer and some with all.

        All layers are compared with the same blocks with every layer; `whole` returns the number of these for a number
        of layers. `block` makes a block, which is expected to take `block_ns`. In too little time for one round, only
        blocks with every layer are made. `around` is a context round each round. A layer without which a block raises
        one of `failures` is refused, in the situation that `when` names, and its blocks do not count. Raises what else
        a block raises.
        """
        rounds: list[Blocks[Block]] = []
        enough, round_ns = True, block_ns * (len(self.arms) + 1)
        while enough and len(rounds) < most:
            begin = deadline.clock()
            enough = begin + round_ns <= deadline.at_ns
            arms: list[Arm] = [*[None] * whole(len(self.arms)), *(self.arms if enough else ())]
            if not arms or (rounds and not enough):
                break
            with around():
                rounds.append(await self._round(self.rng.sample(arms, len(arms)), block, deadline, failures, when))
            round_ns = deadline.clock() - begin
        return [[(arm, made) for arm, made in blocks if arm not in self.why_not] for blocks in rounds]

    async def _round(
        self,
        arms: Sequence[Arm],
        block: Callable[[Arm], Awaitable[Block]],
        deadline: Deadline,
        failures: type[Exception],
        when: str,
    ) -> Blocks[Block]:
        blocks: Blocks[Block] = []
        for arm in arms:
            try:
                with self.without(arm):
                    blocks.append((arm, await block(arm)))
            except failures as error:
                if arm is None:
                    raise
                self._refuse_for(error, arm, when)
            deadline.over()  # for its tick: a round is never left incomplete
        return blocks

    def _refuse_for(self, error: Exception, index: EntryIndex, when: str = "") -> None:
        """Refuse a layer that the app cannot do without. Raises what ends the whole measurement."""
        self.caller.check()
        self.refuse(index, f"the app {_what_it_does(error)} without {_them(index)}{when}")


def _them(index: EntryIndex) -> str:
    return "them" if index == TOGETHER else "it"


def _what_it_does(error: Exception) -> str:
    """Say by an error what the app does in place of answering as usual."""
    if isinstance(error, ResponseError) and error.__cause__ is not None:
        return f"raises {type(error.__cause__).__name__}"
    if isinstance(error, ResponseError) and error.status is not None:
        return f"answers {error.status}"
    return "does not answer"


def inner_app(stack: Stack, index: EntryIndex) -> EntryIndex | str:
    """Return the only ASGI callable that a layer calls, or why that cannot be called in the layer's place."""
    entries = stack.entries
    layer = entries[index]
    if index not in stack.probeable:
        return "it cannot be told from a neighbour, or it runs in another thread"
    if layer.hook is not None or len(parts_of(entries, index)) > 1:
        return "its framework calls it and what is inside it separately"
    inside = [EntryIndex(inner) for inner, entry in enumerate(entries) if index in entry.parents]
    if not inside:
        return "it answers without calling an inner app" if stack.handed_on is None else stack.handed_on.because
    if len(inside) > 1:
        return "it calls several inner apps"
    inner = entries[inside[0]]
    if inner.hook is not None:
        return "its framework calls what is inside it, not the layer"
    if inner.elsewhere:
        return "its inner app runs in another thread"
    if len(inner.parents) > 1:
        return "its inner app is called more than once in a request"
    if not inner.enterable:
        return "its inner app is made for each request"
    return inside[0]


def other_way(saved: Estimate, own: Estimate | None, when: str = "") -> str | None:
    """Say that an app does something else without a layer, such as less for a client that is not logged in.

    Leaving the layer out then saves far more than the layer's own time explains. Returns None if the app does the same,
    or if nobody can tell.
    """
    if own is None or not (saved.bounded and own.bounded):
        return None
    if saved.low <= MOST_TIMES * max(0.0, own.high) + MOST_US:
        return None
    return f"the app takes another way without it: {saved.estimate:.0f} µs less{when}, not {own.estimate:.0f}"
