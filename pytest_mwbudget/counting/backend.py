"""The counting backend: the core in C, or else the core in Python, which follows owners and counts no objects.

Both have the same interface, `Core`, and the same tests; `_core.c` says what the interface means. A backend names the
quantities that its core cannot count, with the reason.
"""

from __future__ import annotations

import sys
import sysconfig
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from ..interpreter.coroutine_proxy import CoroutineProxy
from ..interpreter.internals import self_check
from ..model.stack import HARNESS, Owner

# objects, allocations, bytes, suspensions
Tally: TypeAlias = tuple[int, int, int, int]

NOBODY = Owner(-1)
MAX_OWNERS = 100_000


class Charger(Protocol):
    """Who is charged: owners by number, from 0 on; see `_core.c`."""

    def run(self, owner: Owner, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Any:
        """Call it for this owner."""

    def coroutine_proxy(
        self, owner: Owner, awaitable: Awaitable[Any], root: bool = False, returned: Callable[[], Any] | None = None, /
    ) -> Coroutine[Any, Any, Any]:
        """A coroutine that charges each of its steps to the owner."""

    def aside(self, function: Callable[..., Any], /) -> Callable[..., Any]:
        """A callable that calls `function(owner, ...)`, charged to nobody."""

    def callback(self, owner: Owner, function: Callable[..., Any], /) -> Callable[..., Any]:
        """A callable for an event loop to call on behalf of the owner."""

    def discount(self, owner: Owner, made: object, /) -> None:
        """Take the creation of the object, just now, off the owner's tally."""


class Core(Charger, Protocol):
    """The interface of both cores: charge owners, and tell what was charged. One counting run at a time."""

    def start(self, owners: int, /) -> bool:
        """Start counting for this many owners; whether another reference tracer was there."""

    def stop(self) -> tuple[bool, bool]:
        """Stop counting; whether objects, and whether allocations, were lost to another tool."""

    def take(self) -> tuple[list[Tally], list[tuple[Owner, type, int]]]:
        """What was counted since the last time, by owner, and the objects by type.

        A class lives at least until this has told of it, and as long as objects of it are remembered.
        """

    def charge(self, owner: Owner, /) -> Owner:
        """Charge this owner from here on; returns who was charged. In a thread that is not counted: changes nothing."""

    def period(self, number: int, /) -> None:
        """Remember the objects that are created from here on under this number; no more with -1."""

    def born(self, ids: Iterable[int], /) -> list[tuple[int, Owner, type]]:
        """Of the living objects with these ids, those that were remembered: period, owner, type."""

    def reached(self, objects: list[Any], /) -> set[int]:
        """The ids of remembered objects among these and what they refer to."""


@dataclass(frozen=True, slots=True)
class Backend:
    """A core, and by quantity why the core cannot count it."""

    core: Core
    why_not: Mapping[str, str]


def counting_backend() -> Backend:
    """Return the best backend that this interpreter allows."""
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return _without("a free-threaded interpreter is not supported")
    try:
        from . import _core  # type: ignore[attr-defined]
    except ImportError as error:
        missing = getattr(error, "name", None) == f"{__package__}._core" or "cannot import name" in str(error)
        reason = "the C extension was not built: install with a C compiler" if missing else str(error)
        return _without(reason)
    core: Any = _core
    if (why := why_no_counting()) is not None:
        return _without(why)
    if not core.COUNTS_OBJECTS:
        version = f"this is {sys.version_info[0]}.{sys.version_info[1]}"
        reason = f"creations can be seen from Python 3.13 on, {version}"
        return Backend(core, {"objects": reason, "retained": reason})
    return Backend(core, {})


@self_check("the core in C does not count the objects that are made before it", "it is not used")
def why_no_counting() -> bool:
    """Check the core in C on objects that are made for it: each is one object and one allocation of its owner."""
    from . import _core  # type: ignore[attr-defined, unused-ignore]

    class Sample:
        __slots__ = ()

    core: Any = _core
    own, samples = 0, 5
    try:
        core.start(1)
    except RuntimeError:  # it counts already, and was checked before
        return True
    try:
        core.take()
        core.run(own, lambda: None)
        before, _ = core.take()
        made = core.run(own, lambda: [Sample(), Sample(), Sample(), Sample(), Sample()])
        after, kinds = core.take()
    finally:
        core.stop()
    _, allocations, size, _ = (more - less for more, less in zip(after[own], before[own], strict=True))
    objects = sum(number for owner, kind, number in kinds if (owner, kind) == (own, Sample))
    return (
        len(made) == samples
        and allocations >= samples
        and size >= samples * Sample.__basicsize__
        and (objects == samples or not core.COUNTS_OBJECTS)
    )


def _without(reason: str) -> Backend:
    return Backend(PythonCore(), dict.fromkeys(("objects", "retained", "allocations", "bytes"), reason))


# ---- in Python ---------------------------------------------------------------------------------------------------


class PythonCore:
    """Owners followed in Python: for tasks, threads, messages and suspensions. It counts no objects."""

    def __init__(self) -> None:
        self.generation = 0
        self.thread = 0
        self.owners = 0
        self.current = self.suspender = NOBODY
        self.suspensions: list[int] = []

    @property
    def open(self) -> bool:
        """Whether a counting run is under way."""
        return bool(self.owners)

    def live(self, generation: int) -> bool:
        """Whether the run of that generation is under way, and this is its thread."""
        return self.open and generation == self.generation and threading.get_ident() == self.thread

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

    def start(self, owners: int, /) -> bool:
        """See `Core`."""
        if self.open:
            raise RuntimeError("counting is under way already: there can be one counting run in a process")
        if not 1 <= owners <= MAX_OWNERS:
            raise ValueError(f"{owners} owners, but a counting run has 1 to {MAX_OWNERS}")
        self.owners, self.current, self.suspender = owners, Owner(owners), NOBODY
        self.suspensions = [0] * (owners + 2)
        self.thread = threading.get_ident()
        self.generation += 1
        return False

    def stop(self) -> tuple[bool, bool]:
        """See `Core`."""
        self._require_open(HARNESS)
        self.owners = 0
        return False, False

    def take(self) -> tuple[list[Tally], list[tuple[Owner, type, int]]]:
        """See `Core`."""
        self._require_open(HARNESS)
        taken: list[Tally] = [(0, 0, 0, number) for number in self.suspensions]
        self.suspensions = [0] * len(taken)
        return taken, []

    def charge(self, owner: Owner, /) -> Owner:
        """See `Core`."""
        self._require_open(owner)
        if not self.live(self.generation):
            return Owner(self.owners + 1)
        return self.hand_over(self.generation, owner)

    def run(self, owner: Owner, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Any:
        """See `Core`."""
        if not self.live(self.generation):
            return function(*arguments, **named)
        self._require_open(owner)
        generation = self.generation
        before = self.hand_over(generation, owner)
        try:
            return function(*arguments, **named)
        finally:
            self.give_back(generation, before)

    def coroutine_proxy(
        self, owner: Owner, awaitable: Awaitable[Any], root: bool = False, returned: Callable[[], Any] | None = None, /
    ) -> Coroutine[Any, Any, Any]:
        """See `Core`."""
        self._require_open(owner)
        return _Charged(self, owner, awaitable, root, returned)

    def aside(self, function: Callable[..., Any], /) -> Callable[..., Any]:
        """See `Core`."""
        self._require_open(HARNESS)
        generation, aside = self.generation, Owner(self.owners)

        def guard(*arguments: Any, **named: Any) -> Any:
            before = self.hand_over(generation, aside)
            try:
                return function(before, *arguments, **named)
            finally:
                self.give_back(generation, before)

        return guard

    def callback(self, owner: Owner, function: Callable[..., Any], /) -> Callable[..., Any]:
        """See `Core`."""
        self._require_open(owner)
        generation = self.generation

        def guard(*arguments: Any, **named: Any) -> Any:
            if self.live(generation):
                self.current = owner
            return function(*arguments, **named)

        return guard

    def discount(self, owner: Owner, made: object, /) -> None:
        """See `Core`."""
        self._require_open(owner)

    def period(self, number: int, /) -> None:
        """See `Core`."""
        self._require_open(HARNESS)

    def born(self, ids: Iterable[int], /) -> list[tuple[int, Owner, type]]:
        """See `Core`."""
        self._require_open(HARNESS)
        return []

    def reached(self, objects: list[Any], /) -> set[int]:
        """See `Core`."""
        self._require_open(HARNESS)
        return set()

    def _require_open(self, owner: Owner) -> None:
        if not self.open:
            raise RuntimeError("no counting run is under way")
        if not 0 <= owner <= self.owners + 1:
            raise ValueError(f"owner {owner}, but this counting run has 0 to {self.owners + 1}")


class _Charged(CoroutineProxy):
    """A coroutine whose steps are charged to an owner."""

    def __init__(
        self,
        core: PythonCore,
        owner: Owner,
        awaitable: Awaitable[Any],
        root: bool,
        returned: Callable[[], Any] | None,
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
