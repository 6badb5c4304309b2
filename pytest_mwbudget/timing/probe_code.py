"""The code of probes: everything here runs inside timed requests.

A probe appends to a log which owner has the time from here on, and the clock. `analysis.event_log` reads the log.
`probes` decides where probes stand.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import CodeType
from typing import Any, TypeAlias

from ..asgi.calls import Call, FrameworkReader, Key, Reader
from ..interpreter.clocks import Clock
from ..interpreter.code_patching import Function, detour, mentioned_cells, trampoline
from ..interpreter.identity import identity
from ..interpreter.stand_ins import stand_in_for_awaitable, stand_in_for_callable
from ..model.stack import LISTENING, OWNER_BITS, RECEIVING, SENDING, SUSPENDED, Owner

# Owner, nanoseconds, owner, nanoseconds, …: from each moment on the time is that owner's. A call of `receive` or `send`
# adds RECEIVING or SENDING to the owner. A deque, because a list that grows is moved now and then, which takes time of
# the current owner.
Log: TypeAlias = deque[int]
# The owner of the time inside a layer, and the function to call.
Target: TypeAlias = tuple[Owner, Callable[..., Any]]
Targets: TypeAlias = dict[Key, Target]
# A probe: takes the target, then the arguments before the scope, scope, receive and send; at a framework's layer, which
# has no such arguments, all arguments.
Probe: TypeAlias = Callable[..., Any]

# Messages of a WebSocket after which others follow.
OPEN = frozenset(("websocket.connect", "websocket.receive"))


# ---- entering a probe -------------------------------------------------------------------------------------------

# Constants of the trampoline's source. Objects take their places in the code, which runs with the user's globals and
# must not look up a name there.
_PROBE = "the probe"
_UNPATCHED = "the function with its original code"
_FIND = "the function that finds a target by its key"
_ENTER = "the function that notes a target that is entered"
_IDENTITY = "the function identity"
_TOLD = "the function that returns what tells calls apart"
_LOG, _OWNERS = "the log", "the owners inside which the boundary is"

# A plain function even in place of a coroutine function: its result is awaited, and a coroutine of its own would be one
# more to step through.
_SHAPE = """
def make({cells}):
    def shape({signature}):
        if False: ({cells})
        _identity_ = {identity!r}
        _find_ = {find!r}{told}{log}
        _target_ = _find_({key})
        if _target_ is None{outside}:
            _unpatched_ = {unpatched!r}
            return _unpatched_({passed})
        _enter_ = {enter!r}
        _enter_(_target_)
        _probe_ = {probe!r}
        return _probe_(_target_, {arguments})
"""


def probe_trampoline(
    reader: Reader | FrameworkReader,
    probe: Probe,
    targets: Targets,
    unpatched: Function,
    search: ArgumentSearch,
    inside: Collection[Owner] | None,
) -> CodeType:
    """Return code for a function that enters the probe if the function is called for one of the `targets`.

    The code itself finds the target, but for an ASGI callable whose last arguments are not scope, receive and send:
    there `search` does. With `inside`, calls enter the probe only while one of these owners has the time.
    """
    original = unpatched.__code__
    names = reader.parameters.positional
    if isinstance(reader, FrameworkReader):
        # A method in a decorator that takes any arguments has its instance among these.
        first = names[:1] or (f"{reader.parameters.starred}[0]",)
        telling, arguments = first[: reader.instances], reader.parameters.passed
    elif reader.ordinary:
        telling, last = names[:-3], ", ".join(names[-3:])
        arguments = f"({''.join(f'{name}, ' for name in telling)}), {last}"
    else:
        return detour(original, search.entering(reader, probe, targets, unpatched))
    teller = reader.lead_of if isinstance(reader, FrameworkReader) else None
    identities = [f"_identity_({name if teller is None else f'_told_({name})'})" for name in telling]
    source = _SHAPE.format(
        cells=mentioned_cells(original),
        signature=reader.parameters.signature,
        passed=reader.parameters.passed,
        key=identities[0] if len(identities) == 1 else f"({''.join(f'{expression}, ' for expression in identities)})",
        arguments=arguments,
        identity=_IDENTITY,
        find=_FIND,
        told="" if teller is None else f"\n        _told_ = {_TOLD!r}",
        log="" if inside is None else f"\n        _log_ = {_LOG!r}\n        _owners_ = {_OWNERS!r}",
        outside="" if inside is None else " or _log_[-2] not in _owners_",
        unpatched=_UNPATCHED,
        enter=_ENTER,
        probe=_PROBE,
    )
    stand_ins: dict[object, object] = {_IDENTITY: identity, _FIND: targets.get, _UNPATCHED: unpatched, _PROBE: probe}
    stand_ins |= {_ENTER: search.entered.append, _TOLD: teller, _LOG: search.log, _OWNERS: inside}
    return trampoline(original, source, stand_ins)


@dataclass(frozen=True, slots=True)
class ArgumentSearch:
    """Search the arguments of functions that do not take scope, receive and send last.

    A search takes longer than a probe, and would fall outside the null layer. So its time is logged as that of
    `unowned`, an owner without a row (docs/decisions/0006). `entered` are the targets that probes entered.
    """

    unowned: Owner
    log: Log
    clock: Clock
    entered: deque[Target] = field(default_factory=deque)

    def begin(self) -> Owner:
        """Log that the time has no owner. Returns the owner before, SUSPENDED if nothing was logged."""
        before = Owner(self.log[-2])
        # After a suspension the next owner gets the time of the suspension, which must be a row. Time before
        # the outermost probe is in no log.
        if before == SUSPENDED or len(self.log) == 2:
            return SUSPENDED
        self.log.extend((self.unowned, self.clock()))
        return before

    def end(self, before: Owner) -> None:
        """Log that the time is that owner's again."""
        if before != SUSPENDED:
            self.log.extend((before, self.clock()))

    def entering(self, reader: Reader, probe: Probe, targets: Targets, unpatched: Function) -> Callable[..., Any]:
        """Return a function that takes any arguments and enters the probe, with the call for the leading arguments."""
        gathered, read, begin, end = reader.parameters.gathered, reader.read, self.begin, self.end

        def search(*flat: Any) -> Any:
            before = begin()
            positional, named, _ = gathered(flat)
            call = read(positional, named)
            target = None if call is None else targets.get(call.key)
            end(before)
            if call is None or target is None:
                return unpatched(*positional, **named)
            self.entered.append(target)
            return probe(target, (call,), call.scope, call.receive, call.send)

        return search

    def as_target(self, reader: Reader | FrameworkReader, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that a probe can call: it takes the call first if the arguments were searched."""
        if isinstance(reader, FrameworkReader) or reader.ordinary:
            return function
        begin, end = self.begin, self.end

        def target(call: Call, scope: Any, receive: Any, send: Any) -> Any:
            before = begin()
            positional, named = call.replaced(scope, receive, send)
            end(before)
            return function(*positional, **named)

        return target


# ---- probes -----------------------------------------------------------------------------------------------------


def _receiving_after_body(timeline: Log, clock: Clock, starter: Sequence[Owner | None]) -> Callable[..., Any]:
    """Return the coroutine function that calls a `receive` after the body, in which a layer outside may work.

    The wait for the disconnect, most often in a task of its own, is no row's. `starter` has the owner that started the
    running task, None where steps are not logged: then a log of what another task does could not be told apart.
    """
    log = timeline.append

    async def after_body(outer: Owner, ask: Callable[..., Any], arguments: Any, named: Any) -> Any:
        before, started = timeline[-2], starter[0]
        if before == SUSPENDED or started is None:
            return await ask(*arguments, **named)
        listens = before >= LISTENING or before == started
        log(outer | LISTENING if listens else outer)
        log(clock())
        try:
            return await ask(*arguments, **named)
        finally:
            log(before & OWNER_BITS if OWNER_BITS < before < LISTENING else before)
            log(clock())

    return after_body


def _message_probes(
    timeline: Log, clock: Clock, starter: Sequence[Owner | None]
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return functions that put a probe round a `receive` and round a `send`, given the owner and the owner outside.

    Afterwards the row goes on that called: code further inside may use what a layer keeps in a context variable.
    `starter` has the owner that started the running task.
    """
    log, after_body = timeline.append, _receiving_after_body(timeline, clock, starter)

    def receiving(owner: Owner, outer: Owner, receive: Any) -> Any:
        body_over, asked = False, outer | RECEIVING

        async def probed_receive(*arguments: Any, **named: Any) -> Any:
            nonlocal body_over
            if body_over:
                return await after_body(outer, ask, arguments, named)
            before = timeline[-2]
            if before == SUSPENDED:  # in a thread that the layer has started: its time until here is the layer's
                before = owner
                log(owner)
                log(clock())
            elif before > OWNER_BITS:
                before &= OWNER_BITS
            log(asked)
            log(clock())
            try:
                message = await ask(*arguments, **named)
                # Not `isinstance`, nor a method that the class may override: the message may be an object of the app.
                body_over = issubclass(type(message), dict) and not (
                    dict.get(message, "more_body", False) or dict.get(message, "type") in OPEN
                )
                return message
            finally:
                log(before)
                log(clock())

        ask, stand_in = stand_in_for_callable(receive, probed_receive)
        return stand_in

    def sending(owner: Owner, outer: Owner, send: Any) -> Any:
        given = outer | SENDING

        async def probed_send(*arguments: Any, **named: Any) -> Any:
            before = timeline[-2]
            if before == SUSPENDED:
                before = owner
                log(owner)
                log(clock())
            elif before > OWNER_BITS:
                before &= OWNER_BITS
            log(given)
            log(clock())
            try:
                return await give(*arguments, **named)
            finally:
                log(before)
                log(clock())

        give, stand_in = stand_in_for_callable(send, probed_send)
        return stand_in

    return receiving, sending


def _message_probes_inside(
    timeline: Log, clock: Clock, inside: Collection[Owner]
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return the same for an endpoint whose parts have probes: afterwards the part goes on that receives or sends.

    `inside` are the owners of the endpoint and its parts.
    """
    log = timeline.append

    def receiving(owner: Owner, outer: Owner, receive: Any) -> Any:
        body_over = False

        async def probed_receive(*arguments: Any, **named: Any) -> Any:
            nonlocal body_over
            if body_over:
                return await ask(*arguments, **named)
            before = timeline[-2]
            if before not in inside:
                before = owner
            log(outer)
            log(clock())
            try:
                message = await ask(*arguments, **named)
                # Not `isinstance`, nor a method that the class may override: the message may be an object of the app.
                body_over = issubclass(type(message), dict) and not (
                    dict.get(message, "more_body", False) or dict.get(message, "type") in OPEN
                )
                return message
            finally:
                log(before)
                log(clock())

        ask, stand_in = stand_in_for_callable(receive, probed_receive)
        return stand_in

    def sending(owner: Owner, outer: Owner, send: Any) -> Any:
        async def probed_send(*arguments: Any, **named: Any) -> Any:
            before = timeline[-2]
            if before not in inside:
                before = owner
            log(outer)
            log(clock())
            try:
                return await give(*arguments, **named)
            finally:
                log(before)
                log(clock())

        give, stand_in = stand_in_for_callable(send, probed_send)
        return stand_in

    return receiving, sending


def _probe_of_awaitable(timeline: Log, clock: Clock) -> Callable[[Owner, Awaitable[Any]], Coroutine[Any, Any, Any]]:
    """Return the coroutine function in which runs what a plain function of an owner returned."""
    log = timeline.append

    async def awaited(owner: Owner, awaitable: Awaitable[Any]) -> Any:
        outer = timeline[-2]
        log(owner)
        log(clock())
        try:
            return await awaitable
        finally:
            log(outer)
            log(clock())

    return awaited


def probe_for(
    timeline: Log,
    clock: Clock,
    starter: Sequence[Owner | None],
    *,
    plain: bool,
    inside: Collection[Owner] | None,
) -> Probe:
    """Return a probe for coroutine functions, or for `plain` functions, whose code runs as soon as they are called.

    `starter` has the owner that started the running task. `inside` are the owners of an endpoint whose parts have
    probes.
    """
    log = timeline.append
    # One of the two is called inside the layer and the other outside, because half of a probe is charged to each side.
    receiving, sending = (
        _message_probes(timeline, clock, starter) if inside is None else _message_probes_inside(timeline, clock, inside)
    )
    awaited = _probe_of_awaitable(timeline, clock)

    async def probe(hit: Target, leads: tuple[Any, ...], scope: Any, receive: Any, send: Any) -> Any:
        owner, target = hit
        outer = timeline[-2]
        probed_receive = receiving(owner, outer, receive)
        log(owner)
        log(clock())
        try:
            probed_send = sending(owner, outer, send)
            return await target(*leads, scope, probed_receive, probed_send)
        finally:
            log(outer)
            log(clock())

    def plain_probe(hit: Target, leads: tuple[Any, ...], scope: Any, receive: Any, send: Any) -> Any:
        owner, target = hit
        outer = timeline[-2]
        probed_receive = receiving(owner, outer, receive)
        log(owner)
        log(clock())
        try:
            probed_send = sending(owner, outer, send)
            answer = target(*leads, scope, probed_receive, probed_send)
            return stand_in_for_awaitable(answer, partial(awaited, owner))
        finally:
            log(outer)
            log(clock())

    return plain_probe if plain else probe


def framework_probe_for(timeline: Log, clock: Clock, *, plain: bool) -> Probe:
    """Return a probe for layers of a framework, which get neither receive nor send."""
    log = timeline.append
    awaited = _probe_of_awaitable(timeline, clock)

    async def inside(target: Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        # Inside the layer, as the probe's own coroutine is outside of it: half of a probe is charged to each side. A
        # plain probe makes a stand-in inside.
        return await target(*arguments, **named)

    async def probe(hit: Target, /, *arguments: Any, **named: Any) -> Any:
        owner, target = hit
        outer = timeline[-2]
        log(owner)
        log(clock())
        try:
            return await inside(target, arguments, named)
        finally:
            log(outer)
            log(clock())

    def plain_probe(hit: Target, /, *arguments: Any, **named: Any) -> Any:
        owner, target = hit
        outer = timeline[-2]
        log(owner)
        log(clock())
        try:
            return stand_in_for_awaitable(target(*arguments, **named), partial(awaited, owner))
        finally:
            log(outer)
            log(clock())

    return plain_probe if plain else probe
