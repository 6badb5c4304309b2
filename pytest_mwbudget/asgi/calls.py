"""Find ASGI's three arguments in a call, wherever they stand, and tell layers that share a function apart.

Most functions take (scope, receive, send) last: `__call__(self, scope, receive, send)`. The three may also stand
elsewhere (`layer(scope, receive, send, *, app)`), be passed by name, or stand inside another argument, as in wrapt's
`wrapper(wrapped, instance, args, kwargs)`. All other arguments tell the layers that share a function apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from ..interpreter.code_patching import Function, Parameters
from ..interpreter.identity import identity, is_a

# The place of an argument: its position, or its name where it is passed by name.
Spot: TypeAlias = int | str
Spots: TypeAlias = tuple[Spot, Spot, Spot]
# The identity of the arguments that tell layers of one function apart.
Key: TypeAlias = int | tuple[int, ...]

ROLES = ("scope", "receive", "send")
# Types that can hold the three as one argument.
HOLDERS = (tuple, dict)


@dataclass(slots=True)
class Call:
    """The arguments of a call, with ASGI's three among them.

    `spots` are those of scope, receive and send; `within` is the position of an argument that holds all three.
    """

    positional: tuple[Any, ...]
    named: dict[str, Any]
    spots: Spots
    within: int | None
    scope: Any
    receive: Any
    send: Any
    key: Key = ()

    @property
    def lead(self) -> object:
        """The argument before the scope, None if there is none. Skips None and holders where a holder has the scope."""
        if self.within is not None:
            before = self.positional[: self.within]
            leads = [value for value in before if value is not None and not is_a(value, *HOLDERS)]
            return leads[-1] if leads else None
        count = self.lead_count
        return self.positional[count - 1] if count else None

    @property
    def lead_count(self) -> int:
        """The number of positional arguments before the scope."""
        scope = self.spots[0]
        return len(self.positional) if isinstance(scope, str) else scope

    def others(self) -> Iterator[tuple[Spot, Any]]:
        """Yield all arguments but the three and their holder, by their spots."""
        taken = set(self.spots) if self.within is None else {self.within}
        for spot, value in enumerate(self.positional):
            # Beside a tuple of arguments there is most often a dict of others, made for the call as well.
            if spot not in taken and (self.within is None or not is_a(value, *HOLDERS)):
                yield spot, value
        for name in sorted(self.named.keys() - taken):
            yield name, self.named[name]

    def key_of(self, telling: frozenset[Spot]) -> Key:
        """Return the identity of the arguments at these spots."""
        values = [value for spot, value in self.others() if spot in telling]
        return identity(values[0]) if len(values) == 1 else tuple(map(identity, values))

    def replaced(self, scope: Any, receive: Any, send: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments with others in place of the three. Their holder is copied."""
        scope_spot, receive_spot, send_spot = self.spots
        new = {scope_spot: scope, receive_spot: receive, send_spot: send}
        within = self.within
        if within is not None:
            holder = self.positional[within]
            if type(holder) is dict:
                held: Any = holder | new
            else:
                held = tuple(new.get(spot, value) for spot, value in enumerate(holder))
            return (*self.positional[:within], held, *self.positional[within + 1 :]), self.named
        positional = tuple(new.get(spot, value) for spot, value in enumerate(self.positional))
        return positional, {name: new.get(name, value) for name, value in self.named.items()}


@dataclass(frozen=True, slots=True)
class FrameworkCall:
    """A call of a framework's middleware or handler, without ASGI's arguments.

    `lead` is its first argument where that tells it from other calls of the function, else None.
    """

    lead: object
    lead_count = 0
    within = None
    receive = send = None

    def others(self) -> Iterator[tuple[Spot, Any]]:
        """Yield nothing: no argument but the first tells layers apart."""
        return iter(())

    @property
    def key(self) -> Key:
        """The identity of the first argument."""
        return () if self.lead is None else identity(self.lead)

    def key_of(self, telling: frozenset[Spot]) -> Key:
        """Return the same."""
        return self.key


def call_in(
    parameters: Parameters,
    positional: tuple[Any, ...],
    named: dict[str, Any],
    is_asgi: Callable[[dict[Any, Any], object, object], bool] = lambda scope, receive, send: True,
) -> Call | None:
    """Find scope, receive and send among the arguments of a call. Returns None where they are not there.

    Looks for them by name, then side by side, rightmost first, then inside one of the arguments.
    """
    for spots, within in _places(parameters, positional, named):
        if within is None:
            scope, receive, send = (named[spot] if isinstance(spot, str) else positional[spot] for spot in spots)
        else:
            scope, receive, send = (positional[within][spot] for spot in spots)
        if is_a(scope, dict) and callable(receive) and callable(send) and is_asgi(scope, receive, send):
            return Call(positional, named, spots, within, scope, receive, send)
    return None


def _places(
    parameters: Parameters, positional: tuple[Any, ...], named: dict[str, Any]
) -> Iterator[tuple[Spots, int | None]]:
    """Yield where the three may stand, the most likely place first: their spots, and the position of a holder."""
    spots = {name: spot for spot, name in enumerate(parameters.positional)} | {name: name for name in named}
    by_name = [spots.get(role) for role in ROLES]
    if by_name[0] is None and positional:
        by_name[0] = len(positional) - 1  # layer(scope, receive=receive, send=send), through *args and **kwargs
    if None not in by_name:
        yield tuple(by_name), None  # type: ignore[misc]
    for start in range(len(positional) - 3, -1, -1):
        yield (start, start + 1, start + 2), None
    for within, holder in enumerate(positional):
        if type(holder) is tuple:
            for start in range(len(holder) - 3, -1, -1):
                yield (start, start + 1, start + 2), within
        elif type(holder) is dict and holder.keys() >= set(ROLES):
            yield ROLES, within


@dataclass(frozen=True, slots=True)
class FrameworkReader:
    """Reads the calls of one function of a framework.

    `instances` means that the first argument tells layers apart, or what `lead_of` returns for it.
    """

    parameters: Parameters
    instances: bool
    lead_of: Callable[[Any], object] | None = None
    ordinary = False

    def read(self, positional: tuple[Any, ...], named: dict[str, Any]) -> FrameworkCall:
        """Return the call."""
        lead = positional[0] if self.instances else None
        return FrameworkCall(lead if self.lead_of is None else self.lead_of(lead))


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads the calls of one function; the arguments at the spots in `telling` tell its layers apart."""

    parameters: Parameters
    telling: frozenset[Spot]

    @classmethod
    def of(cls, function: Function, telling: frozenset[Spot]) -> Reader:
        """Return the reader of a function, which must have its own code."""
        return cls(Parameters.of(function.__code__), telling)

    @property
    def ordinary(self) -> bool:
        """Whether the three are always the last parameters, and the parameters before them tell the layers apart."""
        parameters = self.parameters
        names = parameters.positional
        if parameters.keywords or parameters.starred or parameters.double_starred or len(names) < len(ROLES):
            return False
        moved = set(ROLES) <= set(names) and names[-3:] != ROLES
        return not moved and self.telling == frozenset(range(len(names) - len(ROLES)))

    def read(self, positional: tuple[Any, ...], named: dict[str, Any]) -> Call | None:
        """Return the call with its key, None where it is no call of an ASGI callable."""
        call = call_in(self.parameters, positional, named)
        if call is not None:
            call.key = call.key_of(self.telling)
        return call
