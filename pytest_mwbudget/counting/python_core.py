"""The counting core in Python: it follows owners, and counts no objects. `c_core/` has the same interface in C."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeAlias

from ..interpreter.coroutine_proxy import CoroutineProxy
from ..model.stack import Owner
from .charger import NOBODY, Charger

# objects, allocations, bytes, suspensions
Tally: TypeAlias = tuple[int, int, int, int]
# period, owner, type
Birth: TypeAlias = tuple[int, Owner, type]

MAX_OWNERS = 100_000


class PythonCore(Charger):
    """What both cores do: charge owners, and tell what was charged.

    One counting run at a time, in the thread that started it. After the owners of the run come two more: `aside`, which
    is charged for what is nobody's, and the owner of other threads. Without a counting run everything but `start` and
    `run` raises RuntimeError.
    """

    def __init__(self) -> None:
        self.generation = 0
        self.thread = 0
        self.owners = 0
        self.current = self.suspender = NOBODY
        self.suspensions: list[int] = []

    def start(self, owners: int, /) -> bool:
        """Start counting for this many owners; whether another reference tracer was there, which keeps its events."""
        if self.owners:
            raise RuntimeError("counting is under way already: there can be one counting run in a process")
        if not 1 <= owners <= MAX_OWNERS:
            raise ValueError(f"{owners} owners, but a counting run has 1 to {MAX_OWNERS}")
        self.owners, self.current, self.suspender = owners, Owner(owners), NOBODY
        self.suspensions = [0] * (owners + 2)
        self.thread = threading.get_ident()
        self.generation += 1
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
        taken: list[Tally] = [(0, 0, 0, number) for number in self.suspensions]
        self.suspensions = [0] * len(taken)
        return taken, []

    def run(self, owner: Owner, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Any:
        """See `Charger`."""
        generation = self.generation
        if not self.live(generation):
            return function(*arguments, **named)
        self._require_run(owner)
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
            before = self.hand_over(generation, aside)
            try:
                return function(before, *arguments, **named)
            finally:
                self.give_back(generation, before)

        return guard

    def callback(self, owner: Owner, function: Callable[..., Any], /) -> Callable[..., Any]:
        """See `Charger`."""
        self._require_run(owner)
        generation = self.generation

        def guard(*arguments: Any, **named: Any) -> Any:
            if self.live(generation):
                self.current = owner
            return function(*arguments, **named)

        return guard

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
        """Return those objects that can hold a remembered one and that the garbage collector does not track.

        These are dicts, and remembered tuples: an older tuple cannot hold a newer object.
        """
        self._require_run()
        return []

    def live(self, generation: int) -> bool:
        """Whether the run of that generation is under way, and this is its thread."""
        return bool(self.owners) and generation == self.generation and threading.get_ident() == self.thread

    def hand_over(self, generation: int, owner: Owner) -> Owner:
        """Charge an owner until `give_back`; returns who was charged, or NOBODY where nothing is counted."""
        if not self.live(generation):
            return NOBODY
        before, self.current = self.current, owner
        return before

    def give_back(self, generation: int, before: Owner) -> None:
        """Charge whom `hand_over` returned."""
        if before != NOBODY and self.live(generation):
            self.current = before

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
        if before != NOBODY:
            self._core.suspender = NOBODY
        return before

    def _suspended(self, before: Owner) -> None:
        core = self._core
        if before == NOBODY or not core.live(self._generation):
            return
        if core.suspender == NOBODY:  # the innermost proxy comes first
            core.suspender = self._owner
            core.suspensions[self._owner] += 1
        if self._root:
            core.current, core.suspender = core.suspender, NOBODY
        else:
            core.current = before

    def _ended(self, before: Owner, *, returned: bool) -> None:
        core = self._core
        if before == NOBODY or not core.live(self._generation):
            return
        core.suspender = NOBODY
        core.current = self._owner if self._root else before
        if returned and self._returned is not None:
            core.run(Owner(core.owners), self._returned)
