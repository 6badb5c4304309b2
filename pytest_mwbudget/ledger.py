"""The ledger: requests whose every creation, task and message is charged to the layer that caused it.

A probe stands at every boundary, as for timing, but this one switches the owner that is charged. What a call makes
before the callee's function has control is the caller's; the coroutine of the callee, and everything done in it, is
the callee's; what is inside a deeper boundary is that layer's. A task is its spawner's until it enters a boundary. The
event loop's work on a suspended task is the owner's who suspended.
"""

from __future__ import annotations

import inspect
import tracemalloc
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import CodeType
from typing import Any, TypeAlias

from .asgi import Observer
from .boundaries import HARNESS, Clock, Key, key_of
from .counters import Counters, Owner, Tally
from .discovery import Stack
from .errors import MeasurementError
from .exchange import Function, Parameters, detour, exchanged, twin
from .instruments import uncollected
from .loops import Library
from .retention import retained
from .spawning import Spawning

# Makes one request under an observer.
Call: TypeAlias = Callable[[Observer], Awaitable[Any]]

# Below this nothing is typical.
FEWEST = 3


@dataclass(frozen=True, slots=True)
class Page:
    """What one request was charged with, by owner; owners as in `boundaries`, then what is not the request's.

    `tallies` are objects, allocations, bytes and suspensions. `types` are the objects by the name of their type,
    `retained` those of them that stayed alive. `received` and `sent` are messages through an owner's outer boundary.
    """

    tallies: list[Tally]
    types: dict[Owner, Counter[str]]
    tasks: dict[Owner, Counter[str]]
    threads: dict[Owner, Counter[str]]
    received: Counter[Owner]
    sent: Counter[Owner]
    retained: dict[Owner, Counter[str]] = field(default_factory=dict)


@dataclass(slots=True)
class _Site:
    """One function that enters one or more layers."""

    function: Function
    owners: dict[Key, Owner] = field(default_factory=dict)


class Ledger:
    """The ledger of one stack. `count` makes the requests and returns a page for each."""

    def __init__(self, stack: Stack, counters: Counters, library: Library) -> None:
        self.stack = stack
        self.core = counters.core
        # What cannot be counted, by quantity; more when another tool takes the events away.
        self.why_not = dict(counters.why_not)
        self.library = library
        self.background = len(stack.entries) + 1
        self.aside = self.background + 1
        self.spawning = Spawning(self.core, self.background, self.aside)
        self.received: Counter[Owner] = Counter()
        self.sent: Counter[Owner] = Counter()
        self.other_tracer = False
        self.made_classes = False

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Count from here on; everything is as it was at the end, whatever happens."""
        try:
            self.other_tracer = self.core.start(self.aside)
        except RuntimeError as error:
            raise MeasurementError(f"nothing can be counted: {error}; measure one request at a time") from error
        try:
            with ExitStack() as stack:
                stack.enter_context(self.spawning.watched(self.library))
                for site in self._sites():
                    entered = self.core.aside(self._entered(site))
                    stack.enter_context(exchanged(site.function, detour(site.function.__code__, entered)))
                yield
        finally:
            self._note_lost(*self.core.stop())

    def _note_lost(self, objects: bool, allocations: bool) -> None:
        reason = "another tool put its own hook in place of this one during the count"
        if objects:
            self.why_not |= dict.fromkeys(("objects", "retained"), reason)
        if allocations:
            self.why_not |= dict.fromkeys(("allocations", "bytes"), reason)

    def notes(self) -> Iterator[str]:
        """What else hooks into the interpreter."""
        if tracemalloc.is_tracing():
            yield "tracemalloc is tracing: it keeps what it traces, and slows everything down."
        elif self.other_tracer:
            yield "Another reference tracer was at work while objects were counted; it got its events as before."

    def _sites(self) -> list[_Site]:
        sites: dict[int, _Site] = {}
        for index in self.stack.probeable:
            entry = self.stack.entries[index]
            assert entry.function is not None
            site = sites.setdefault(id(entry.function), _Site(entry.function))
            site.owners[key_of(entry.leads)] = index + 1
        return list(sites.values())

    async def watch(self, app: Any, scope: Any, receive: Any, send: Any) -> None:
        """Call the app, and charge whom it concerns."""
        await self.core.passage(HARNESS, self.core.run(HARNESS, app, scope, receive, send))

    async def count(self, call: Call, requests: int, settle: int, limit_ns: int, clock: Clock) -> list[Page]:
        """A page for each of `requests` requests, after `settle` others; for fewest when the time is over."""
        with uncollected(), self.opened():
            begin = clock()
            for _ in range(settle):
                await self._apart(call)
                if clock() - begin > limit_ns:
                    break
            pages: list[Page] = []
            begin = clock()
            while len(pages) < requests and (len(pages) < FEWEST or clock() - begin < limit_ns):
                self.core.period(len(pages))
                self.page()
                await self._apart(call)
                pages.append(self.page())
            # What stays alive only until the next request comes is no leak.
            self.core.period(-1)
            await self._apart(call)
            return self._with_retained(pages)

    async def _apart(self, call: Call) -> None:
        """Make a request. What is done here round it is charged to nobody, whoever was charged before a suspension."""
        await self.core.passage(self.aside, call(self.watch), True)

    def _with_retained(self, pages: list[Page]) -> list[Page]:
        if "objects" not in self.why_not:
            for page, alive in zip(pages, retained(self.core, len(pages), classes=self.made_classes), strict=True):
                for owner, kinds in alive.items():
                    page.retained[owner] = Counter()
                    for kind, number in kinds.items():
                        page.retained[owner][type_name(kind)] += number
        return pages

    def page(self) -> Page:
        """What was charged since the last time."""
        tallies, made = self.core.take()
        types: defaultdict[Owner, Counter[str]] = defaultdict(Counter)
        for owner, kind, number in made:
            self.made_classes |= issubclass(kind, type)
            types[owner][type_name(kind)] += number
        page = Page(tallies, dict(types), *self.spawning.take(), self.received, self.sent)
        self.received, self.sent = Counter(), Counter()
        return page

    # ---- probes -----------------------------------------------------------------------------------------------------

    def _entered(self, site: _Site) -> Callable[..., Any]:
        """What is called, aside, in place of the site's function."""
        core, parameters = self.core, Parameters.of(site.function.__code__)
        original = twin(site.function, site.function.__code__)

        def entered(caller: Owner, *flat: Any) -> Any:
            arguments, named, containers = parameters.gathered(flat)
            if caller < 0:
                return original(*arguments, **named)
            for container in containers:
                core.discount(caller, container)
            owner = site.owners.get(key_of(arguments[:-3])) if len(arguments) >= 3 else None
            if owner is None:
                return core.run(caller, original, *arguments, **named)
            *leads, scope, receive, send = arguments
            receive = self._receive(caller, owner, receive)
            send = self._send(caller, owner, send)
            answer = core.run(owner, original, *leads, scope, receive, send, **named)
            return core.passage(owner, answer)

        return entered

    def _receive(self, outer: Owner, owner: Owner, receive: Callable[[], Awaitable[Any]]) -> Callable[..., Any]:
        """The layer's `receive`: what is done in it is the outer one's."""
        core = self.core

        def came() -> None:
            self.received[owner] += 1

        def asked(caller: Owner) -> Any:
            if caller < 0:
                return receive()
            return core.passage(outer, core.run(outer, receive), False, came)

        return _receiving(core.aside(asked))

    def _send(self, outer: Owner, owner: Owner, send: Callable[[Any], Awaitable[Any]]) -> Callable[..., Any]:
        """The layer's `send`: what is done in it is the outer one's."""
        core = self.core

        def went() -> None:
            self.sent[owner] += 1

        def given(caller: Owner, message: Any) -> Any:
            if caller < 0:
                return send(message)
            return core.passage(outer, core.run(outer, send, message), False, went)

        return _sending(core.aside(given))


def type_name(kind: type) -> str:
    """`module.qualname` of a class."""
    return f"{kind.__module__}.{kind.__qualname__}"


def _coroutine_functions(maker: Callable[[Any], Any]) -> Callable[[Any], Callable[..., Any]]:
    """The maker of a function that, asked whether it is a coroutine function, says yes: it is awaited as one."""
    code = maker.__code__
    constants = (
        one.replace(co_flags=one.co_flags | inspect.CO_COROUTINE) if isinstance(one, CodeType) else one
        for one in code.co_consts
    )
    return twin(maker, code.replace(co_consts=tuple(constants)))


@_coroutine_functions
def _receiving(guard: Callable[..., Any]) -> Any:
    def receive() -> Any:
        return guard()

    return receive


@_coroutine_functions
def _sending(guard: Callable[..., Any]) -> Any:
    def send(message: Any) -> Any:
        return guard(message)

    return send
