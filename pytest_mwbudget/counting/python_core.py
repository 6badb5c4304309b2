"""The counting core in Python: it follows owners, and counts no objects. `c_core/` has the same interface in C."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, TypeAlias

from ..interpreter.coroutine_proxy import CoroutineProxy
from ..model.stack import Owner
from .charger import NOBODY, Charger, Lent

# objects, allocations, bytes, suspensions
Tally: TypeAlias = tuple[int, int, int, int]
# period, owner, type
Birth: TypeAlias = tuple[int, Owner, type]

MAX_OWNERS = 100_000


class _Lane(threading.local):
    """The owner that a thread is charged to in a run; with NOBODY the lane is not open."""

    generation = -1
    current = suspender = NOBODY


class PythonCore(Charger):
    """What both cores do: charge owners, and tell what was charged.

    One counting run at a time. The thread that starts it is counted, and so is any other while it does the work of an
    owner. After the owners of the run come two more: `aside`, which is charged for what is nobody's, and the owner of
    other threads at other times. Without a counting run everything but `start` and `run` raises RuntimeError.
    """

    def __init__(self) -> None:
        self.generation = 0
        self.owners = 0
        self.lane = _Lane()
        self.suspended: list[Owner] = []

    def start(self, owners: int, skipped: tuple[str, ...] = (), /) -> bool:
        """Start counting for this many owners; whether another reference tracer was there, which keeps its events.

        With `skipped` the core in C counts executed code in place of memory: see `executed`. It skips code whose file
        name begins with one of these.
        """
        if self.owners:
            raise RuntimeError("counting is under way already: there can be one counting run in a process")
        if not 1 <= owners <= MAX_OWNERS:
            raise ValueError(f"{owners} owners, but a counting run has 1 to {MAX_OWNERS}")
        self.owners, self.suspended = owners, []
        self.generation += 1
        self.charge(Owner(owners))
        return False

    def stop(self) -> tuple[bool, bool]:
        """Stop counting; whether objects, and whether allocations, were lost to another tool."""
        self._require_run()
        self.owners = 0
        return False, False

    def take(self) -> tuple[list[Tally], list[tuple[Owner, type, int]]]:
        """Return what was counted since the last call, by owner, and the objects by type.

        A class of these lives until then, and as long as objects of the class are remembered.
        """
        self._require_run()
        taken, self.suspended = Counter(self.suspended), []
        return [(0, 0, 0, taken[Owner(number)]) for number in range(self.owners + 2)], []

    def other_threads(self) -> dict[int, int]:
        """Return the events since the last call in threads that never did work of an owner, by the thread's ident."""
        self._require_run()
        return {}

    def run(self, owner: Owner, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Any:
        """See `Charger`."""
        if self.owners:
            self._require_run(owner)
        return self._run(self.generation, owner, function, arguments, named)

    def _run(
        self, generation: int, owner: Owner, function: Callable[..., Any], arguments: tuple[Any, ...], named: Any
    ) -> Any:
        before = self.hand_over(generation, owner)
        try:
            return function(*arguments, **named)
        finally:
            self.give_back(generation, before)

    def coroutine_proxy(
        self, owner: Owner, awaitable: Awaitable[Any], root: bool = False, returned: Callable[[], Any] | None = None, /
    ) -> Coroutine[Any, Any, Any]:
        """See `Charger`."""
        self._require_run(owner)
        return _Charged(self, owner, awaitable, root, returned)

    def aside(self, function: Callable[..., Any], /) -> Callable[..., Any]:
        """See `Charger`."""
        self._require_run()
        generation, aside = self.generation, Owner(self.owners)

        def guard(*arguments: Any, **named: Any) -> Any:
            before = self.charged(generation)
            if before != NOBODY:
                self.charge(aside)
            try:
                return function(before, *arguments, **named)
            finally:
                if before != NOBODY:
                    self.give_back(generation, before)

        return guard

    def callback(self, owner: Owner, function: Callable[..., Any], /) -> Callable[..., Any]:
        """See `Charger`."""
        self._require_run(owner)
        generation = self.generation

        def guard(*arguments: Any, **named: Any) -> Any:
            before = self.hand_over(generation, owner)
            try:
                return function(*arguments, **named)
            finally:
                if before == NOBODY:
                    self.give_back(generation, before)

        return guard

    def lent(self, owner: Owner, function: Callable[..., Any], /) -> Callable[..., Any]:
        """See `Charger`."""
        self._require_run(owner)
        return Lent(partial(self._run, self.generation, owner), function)

    def discount(self, owner: Owner, made: object, /) -> None:
        """See `Charger`."""
        self._require_run(owner)

    def period(self, number: int, /) -> None:
        """Remember the objects that are created from here on under this number; no more with -1."""
        self._require_run()

    def born(self, objects: list[Any], /) -> dict[int, Birth]:
        """Return which of these objects were remembered, by id."""
        self._require_run()
        return {}

    def untracked(self, objects: list[Any], /) -> list[Any]:
        """Return those objects that can hold a remembered object and that the garbage collector does not track.

        These are dicts, and remembered tuples: an older tuple cannot hold a newer object.
        """
        self._require_run()
        return []

    def live(self, generation: int) -> bool:
        """Whether the run of that generation is under way."""
        return bool(self.owners) and generation == self.generation

    def charged(self, generation: int) -> Owner:
        """Return the owner that this thread is charged to, NOBODY if there is none or the run is over."""
        return self.lane.current if self.live(generation) and self.lane.generation == generation else NOBODY

    def charge(self, owner: Owner) -> None:
        """Charge an owner in this thread, or NOBODY."""
        self.lane.generation, self.lane.current = self.generation, owner

    def hand_over(self, generation: int, owner: Owner) -> Owner:
        """Charge an owner in this thread until `give_back`; returns who was charged."""
        before = self.charged(generation)
        if self.live(generation):
            self.charge(owner)
        return before

    def give_back(self, generation: int, before: Owner) -> None:
        """Charge whom `hand_over` returned."""
        if self.live(generation):
            self.charge(before)

    def _require_run(self, owner: int = 0) -> None:
        if not self.owners:
            raise RuntimeError("no counting run is under way")
        if not 0 <= owner <= self.owners + 1:
            raise ValueError(f"owner {owner}, but this counting run has 0 to {self.owners + 1}")


class _Charged(CoroutineProxy):
    """A coroutine whose steps are charged to an owner."""

    def __init__(
        self, core: PythonCore, owner: Owner, awaitable: Awaitable[Any], root: bool, returned: Callable[[], Any] | None
    ) -> None:
        super().__init__(awaitable)
        self._core = core
        self._owner = owner
        self._root = root
        self._returned = returned
        self._generation = core.generation

    def _entered(self) -> Owner:
        before = self._core.hand_over(self._generation, self._owner)
        if self._core.live(self._generation):
            self._core.lane.suspender = NOBODY
        return before

    def _suspended(self, before: Owner) -> None:
        core = self._core
        if not core.live(self._generation):
            return
        lane = core.lane
        if lane.suspender == NOBODY:  # the innermost proxy comes first
            lane.suspender = self._owner
            core.suspended.append(self._owner)
        core.charge(lane.suspender if self._stays(before) else before)
        if self._root:
            lane.suspender = NOBODY

    def _ended(self, before: Owner, *, returned: bool) -> None:
        core = self._core
        if not core.live(self._generation):
            return
        core.lane.suspender = NOBODY
        core.charge(self._owner if self._stays(before) else before)
        if returned and self._returned is not None:
            core.run(Owner(core.owners), self._returned)

    def _stays(self, before: Owner) -> bool:
        """Whether the charge stays after the step. Outside of a lane, a loop is not charged between steps."""
        return self._root and before != NOBODY
