"""Budgets: which one applies to which layer, and whether a measurement keeps it."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TypeAlias

from ..errors import LayerNameError, SettingError, near_miss
from ..model.estimate import Microseconds
from ..model.results import COUNTED, Quantity
from ..model.stack import Layer

# Upper bounds by quantity: microseconds for `us` and `busy_us`, whole numbers for what is counted.
Bounds: TypeAlias = Mapping[Quantity, float]
# Those of a named layer: None takes the default of a quantity away from it.
LayerBounds: TypeAlias = Mapping[Quantity, float | None]


@dataclass(frozen=True, slots=True)
class Budgets:
    """Upper bounds per request: for every middleware, for named layers, and of time for the whole request."""

    default: Bounds = field(default_factory=dict)
    layers: Mapping[str, LayerBounds] = field(default_factory=dict)
    total_us: Microseconds | None = None

    @property
    def quantities(self) -> set[Quantity]:
        """Every quantity that has a bound somewhere."""
        return {
            quantity
            for bounds in (self.default, *self.layers.values())
            for quantity, most in bounds.items()
            if most is not None
        }

    @property
    def need_clock(self) -> bool:
        """Whether time has to be measured; also when nothing has a bound, to be reported."""
        return self.bound_time or not self.quantities

    @property
    def bound_time(self) -> bool:
        """Whether there is a budget of time."""
        return self.total_us is not None or not self.quantities.issubset(COUNTED)


def bound(quantity: Quantity, value: object, where: str) -> float:
    """`value` as a budget of `quantity`; SettingError when it cannot be one. `where` names its place."""
    if quantity == "bytes":
        return size(value, where)
    return number(value, where) if quantity in COUNTED else budget_us(value, where)


def budget_us(value: object, where: str) -> Microseconds:
    """`value` as a budget in microseconds; SettingError unless it is a finite number above zero."""
    remedy = "give a number of microseconds per request above 0, for example 50"
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            raise SettingError(f"{where} is {value!r}, which is not a number; {remedy}") from None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise SettingError(f"{where} is {value!r}, which is not a number; {remedy}")
    if not 0 < value <= sys.float_info.max:
        raise SettingError(f"{where} is {value!r}, which cannot be kept; {remedy}")
    return float(value)


def number(value: object, where: str) -> int:
    """`value` as a count; SettingError unless it is a whole number from zero on."""
    if isinstance(value, str) and value.strip().isdecimal() and len(value) < 20:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise SettingError(f"{where} is {value!r}; give a whole number per request from 0 on, for example 100")
    return value


UNITS = {"": 1, "b": 1, "kb": 1000, "mb": 1000**2, "gb": 1000**3, "kib": 1024, "mib": 1024**2, "gib": 1024**3}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")


def size(value: object, where: str) -> int:
    """`value` as a number of bytes: a whole number, or a text like "16 KiB" (1024 bytes each) or "16 kB" (1000)."""
    if isinstance(value, str):
        match = _SIZE.fullmatch(value.strip())
        if match is None or match[2].lower() not in UNITS:
            raise SettingError(
                f"{where} is {value!r}; give a number of bytes per request, or one with a unit, for example '16 KiB'."
                f" The units are: B, kB, MB, GB, KiB, MiB, GiB"
            )
        return math.floor(Decimal(match[1]) * UNITS[match[2].lower()])
    return number(value, where)


def assign(budgets: Budgets, stack: Sequence[Layer]) -> dict[int, dict[Quantity, float]]:
    """The bounds of each layer that has any, by layer index.

    A name is a layer's name in the table, its class name, or its qualified name (`module:Class` or `module.Class`);
    the more exact name wins over the less exact. Without a name the default applies to middleware, not to routing.
    Raises LayerNameError when a name with a bound matches nothing; one that only takes bounds away may.
    """
    assigned: dict[int, dict[Quantity, float | None]] = {
        layer.index: dict(budgets.default) for layer in stack if layer.kind == "middleware"
    }
    ranked: dict[tuple[int, Quantity], int] = {}
    for name, bounds in budgets.layers.items():
        ranks = {layer.index: _rank(name, layer) for layer in stack}
        matches = {index: rank for index, rank in ranks.items() if rank is not None}
        if not matches and (not bounds or any(most is not None for most in bounds.values())):
            raise LayerNameError(_no_such_layer(name, stack))
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


def named(budgets: Budgets, layer: Layer, quantity: Quantity) -> bool:
    """Whether a budget of the quantity names the layer, and not only the default applies to it."""
    return any(
        _rank(name, layer) is not None and bounds.get(quantity) is not None for name, bounds in budgets.layers.items()
    )


def _rank(name: str, layer: Layer) -> int | None:
    """How exactly `name` names `layer`: 3 by its place, 2 qualified, 1 by an alias, None not at all."""
    if name == layer.name:
        return 3
    if name.replace(":", ".") == layer.qualname:
        return 2
    return 1 if name in layer.aliases else None


def _no_such_layer(name: str, stack: Sequence[Layer]) -> str:
    names = [layer.name for layer in stack]
    known = [*names, *(layer.qualname for layer in stack), *sorted(set().union(*(layer.aliases for layer in stack)))]
    have = f"The layers are: {', '.join(names)}." if names else "The stack has no layers."
    return f"the budget names a layer {name!r} that is not in the stack.{near_miss(name, known)} {have}"
