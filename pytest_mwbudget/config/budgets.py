"""Budgets, and which of them apply to which layer."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias, TypeVar

from ..errors import LayerNameError, near_miss
from ..model.endpoint import PARTS
from ..model.estimate import Microseconds
from ..model.quantities import COUNTED, Quantity
from ..model.results import FRAMES, Frame
from ..model.stack import Layer

Bound = TypeVar("Bound", float, float | None)
# What a budget can name.
Nameable: TypeAlias = Literal["layer", "part"]
# Upper bounds by quantity: microseconds for times, whole numbers for counts.
Bounds: TypeAlias = Mapping[Quantity, float]
# Bounds of a named layer: None removes the default bound of a quantity.
LayerBounds: TypeAlias = Mapping[Quantity, float | None]


@dataclass(frozen=True, slots=True)
class Budgets:
    """Upper bounds per request: for every middleware layer, for named layers, and for the whole request.

    `outside_us` is for what is outside all layers, `endpoint_us` for the whole endpoint, `endpoint` for its parts.
    """

    default: Bounds = field(default_factory=dict)
    layers: Mapping[str, LayerBounds] = field(default_factory=dict)
    total_us: Microseconds | None = None
    outside_us: Microseconds | None = None
    endpoint_us: Microseconds | None = None
    endpoint: Mapping[str, LayerBounds] = field(default_factory=dict)

    @property
    def frames(self) -> dict[Frame, Microseconds]:
        """The bounds of the rows that are no layers."""
        bounds = {"outside": self.outside_us, "endpoint": self.endpoint_us, "total": self.total_us}
        return {frame: most for frame in FRAMES if (most := bounds[frame]) is not None}

    @property
    def of_parts(self) -> Budgets:
        """The budgets of the parts of the endpoint, as those of named layers."""
        return Budgets(layers=self.endpoint)

    @property
    def quantities(self) -> set[Quantity]:
        """Every quantity with a bound of layers."""
        return {
            quantity
            for bounds in (self.default, *self.layers.values())
            for quantity, most in bounds.items()
            if most is not None
        }

    @property
    def of_counts(self) -> Budgets:
        """The budgets of counts, without those of time."""

        def counted(bounds: Mapping[Quantity, Bound]) -> dict[Quantity, Bound]:
            return {quantity: most for quantity, most in bounds.items() if quantity in COUNTED}

        layers = {name: kept for name, bounds in self.layers.items() if (kept := counted(bounds))}
        parts = {name: kept for name, bounds in self.endpoint.items() if (kept := counted(bounds))}
        return Budgets(counted(self.default), layers, endpoint=parts)

    @property
    def need_clock(self) -> bool:
        """Whether to measure time: to check a budget of time, or for the report if there are no budgets."""
        return self.bound_time or not (self.quantities or self.of_parts.quantities)

    @property
    def bound_time(self) -> bool:
        """Whether any budget limits a time."""
        quantities = self.quantities | (self.of_parts.quantities if self.endpoint else set())
        return bool(self.frames) or not quantities.issubset(COUNTED)


def assign(budgets: Budgets, stack: Sequence[Layer]) -> dict[int, dict[Quantity, float]]:
    """Return the bounds of each layer that has any, by layer index.

    A name is a layer's name in the table, its class name, or its qualified name (`module:Class` or `module.Class`);
    the more exact name wins. The default applies to middleware, not to routing. Raises LayerNameError if a name matches
    no layer, unless the name only removes bounds.
    """
    assigned: dict[int, dict[Quantity, float | None]] = {
        layer.index: dict(budgets.default) for layer in stack if layer.kind == "middleware"
    }
    ranked: dict[tuple[int, Quantity], int] = {}
    for name in unmatched(budgets, stack):
        raise LayerNameError(no_such("layer", name, names_of(stack)))
    for name, bounds in budgets.layers.items():
        ranks = {layer.index: _rank(name, layer) for layer in stack}
        matches = {index: rank for index, rank in ranks.items() if rank is not None}
        for index, rank in matches.items():
            for quantity, value in bounds.items():
                if rank >= ranked.get((index, quantity), 0):
                    assigned.setdefault(index, {})[quantity] = value
                    ranked[index, quantity] = rank
    kept: dict[int, dict[Quantity, float]] = {
        index: {quantity: most for quantity, most in bounds.items() if most is not None}
        for index, bounds in assigned.items()
    }
    return {index: bounds for index, bounds in kept.items() if bounds}


def unmatched(budgets: Budgets, stack: Sequence[Layer]) -> list[str]:
    """List the names that match no layer, except those that only remove bounds."""
    return [
        name
        for name, bounds in budgets.layers.items()
        if all(_rank(name, layer) is None for layer in stack)
        and (not bounds or any(most is not None for most in bounds.values()))
    ]


def unmatched_parts(budgets: Budgets, parts: Sequence[Layer]) -> list[str]:
    """List the names that match no part of an opened endpoint, except those that any route can have."""
    return [name for name in unmatched(budgets.of_parts, parts) if name not in PARTS] if parts else []


def without_parts(budgets: Budgets, names: Collection[str]) -> Budgets:
    """Return the budgets without those of the parts of these names."""
    return replace(budgets, endpoint={name: most for name, most in budgets.endpoint.items() if name not in names})


def without(budgets: Budgets, names: Collection[str]) -> Budgets:
    """Return the budgets without those of the layers of these names."""
    return replace(budgets, layers={name: bounds for name, bounds in budgets.layers.items() if name not in names})


def named(budgets: Budgets, layer: Layer, quantity: Quantity) -> bool:
    """Whether a budget of the quantity was set for the layer by name."""
    return any(
        _rank(name, layer) is not None and bounds.get(quantity) is not None for name, bounds in budgets.layers.items()
    )


def _rank(name: str, layer: Layer) -> int | None:
    """Rank how exactly `name` matches `layer`: 3 name in the table, 2 qualified name, 1 alias, None no match."""
    if name == layer.name:
        return 3
    if name.replace(":", ".") == layer.qualname:
        return 2
    return 1 if name in layer.aliases else None


def names_of(rows: Iterable[Layer]) -> dict[str, list[str]]:
    """Return the names in the table of layers or parts, each with the other names that a budget can use."""
    return {row.name: [row.qualname, *sorted(row.aliases)] for row in rows}


def no_such(kind: Nameable, name: str, known: Mapping[str, Sequence[str]], where: str | None = None) -> str:
    """Explain that a budget names a layer or part that does not exist.

    `where` ends the clause that begins with "that", by default for a single request.
    """
    others = [other for names in known.values() for other in names]
    have = f"The {kind}s are: {', '.join(known)}." if known else "The stack has no layers."
    possible: list[str] = []
    if kind == "part":
        possible = [part for part in PARTS if part not in known]
        have += f" A route can also have: {', '.join(possible)}."
        where = where or "the endpoint does not have"
    hint = near_miss(name, [*known, *possible, *others])
    return f"the budget names a {kind} {name!r} that {where or 'is not in the stack'}.{hint} {have}"
