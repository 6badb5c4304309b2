"""Names of layers and of parts of the endpoint in budgets: which match nothing in a request, a test or a run."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ...asgi.stack import Stack
from ...config.budgets import Nameable, names_of, no_such, unmatched, unmatched_parts, without, without_parts
from ...config.settings import Settings


@dataclass
class Unmatched:
    """The names of one kind that match nothing in any request so far; None before a request that shows it.

    `known` are the names that a budget could use: those of tables, each with its other names.
    """

    kind: Nameable
    names: Sequence[str] | None = None
    known: dict[str, list[str]] = field(default_factory=dict)

    def take(self, names: Collection[str] | None, known: Mapping[str, list[str]]) -> None:
        """Take what another request, or other requests together, do not match."""
        if names is not None:
            self.names = sorted(names if self.names is None else {*names} & {*self.names})
        self.known = {**known, **self.known}


@dataclass
class UnmatchedNames:
    """The names that match no layer, and those that match no part, in any request so far."""

    layers: Unmatched = field(default_factory=lambda: Unmatched("layer"))
    parts: Unmatched = field(default_factory=lambda: Unmatched("part"))

    def take(self, other: UnmatchedNames) -> None:
        """Take what other requests do not match."""
        self.layers.take(other.layers.names, other.layers.known)
        self.parts.take(other.parts.names, other.parts.known)

    def messages(self, where: str | None = None) -> Iterator[str]:
        """Explain each of the names. `where` says of what it is missing, by default of a request."""
        for unmatched_here in (self.layers, self.parts):
            for name in unmatched_here.names or ():
                yield no_such(unmatched_here.kind, name, unmatched_here.known, where)

    def plain(self) -> dict[str, Any]:
        """Return it as plain data, for another process."""
        return asdict(self)

    @classmethod
    def of_plain(cls, data: Mapping[str, Any]) -> UnmatchedNames:
        """Return what `plain` has returned."""
        return cls(Unmatched(**data["layers"]), Unmatched(**data["parts"]))


@dataclass(frozen=True, slots=True)
class Applying:
    """The settings with those budgets by name that match something in a stack, and the names that match nothing."""

    settings: Settings
    unmatched: UnmatchedNames

    @classmethod
    def to(
        cls, stack: Stack, settings: Settings, layers: Collection[str] = (), parts: Collection[str] = ()
    ) -> Applying:
        """Leave out the budgets that match nothing in the stack, but for those of `layers` and `parts`."""
        budgets = settings.budgets
        all_layers, all_parts = ([row for _, row in rows] for rows in (stack.layers, stack.parts))
        names = {*unmatched(budgets, all_layers)} - {*layers}
        of_parts = {*unmatched_parts(budgets, all_parts)} - {*parts}
        missing = UnmatchedNames()
        missing.layers.take(names, names_of(all_layers))
        missing.parts.take(of_parts, names_of(all_parts))  # none is missing in an endpoint that is closed
        return cls(settings.narrowed(without_parts(without(budgets, names), of_parts)), missing)
