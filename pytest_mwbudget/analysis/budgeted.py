"""Which budgets apply to which row, and which rows are measured together. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..config import budgets
from ..config.budgets import Budgets
from ..errors import LayerNameError, tagged
from ..model.endpoint import PARTS
from ..model.estimate import Microseconds
from ..model.quantities import Quantity
from ..model.results import Frame, ResultRow
from ..model.stack import EntryIndex, Layer, RowIndex
from .estimates import Key


@dataclass(frozen=True, slots=True)
class Together:
    """Layers or the endpoint measured with a layer, because no probe can stand between. `why` names them.

    `bounds` are the sums of the budgets of all of them, of quantities for which each has a budget.
    """

    why: str
    bounds: Mapping[Quantity, float]


@dataclass(frozen=True, slots=True)
class Bounded:
    """A row with the budgets that apply to it; `entry` is the entry of the stack with which it begins.

    `by_name` are the quantities whose budget names the row. `frame` is set if the row is no layer.
    """

    entry: EntryIndex | None
    layer: Layer
    bounds: Mapping[Quantity, float]
    together: Together | None = None
    by_name: frozenset[Quantity] = frozenset()
    frame: Frame | None = None

    @property
    def key(self) -> Key | None:
        """What the time of the row is known by, None for a row without a time of its own."""
        return self.frame if self.entry is None else self.entry


def bounded_layers(
    layers: Sequence[tuple[EntryIndex | None, Layer]], all_budgets: Budgets, endpoint: tuple[str, str] | None = None
) -> tuple[Bounded, ...]:
    """Return every layer of a stack with the budgets that apply to it.

    Default budgets apply to layers that the request enters, a budget by name also to others. `endpoint` is the layer
    with which the endpoint is measured, and why; None if it has a row. Raises LayerNameError for a budget that names no
    layer.
    """
    assigned = budgets.assign(all_budgets, [layer for _, layer in layers])
    alone = []
    for entry, layer in layers:
        bounds = assigned.get(layer.index, {})
        by_name = frozenset(quantity for quantity in bounds if budgets.named(all_budgets, layer, quantity))
        kept = {quantity: most for quantity, most in bounds.items() if layer.entered or quantity in by_name}
        alone.append(Bounded(entry, layer, kept, by_name=by_name))
    return tuple(replace(bounded, together=_together(bounded, alone, endpoint)) for bounded in alone)


def _together(bounded: Bounded, layers: Sequence[Bounded], endpoint: tuple[str, str] | None) -> Together | None:
    """Return the layers or the endpoint that a layer is measured with, None if there are none."""
    name = bounded.layer.name
    if endpoint is not None and endpoint[0] == name:
        # The endpoint has no budget, so there is no budget of all of it.
        why = tagged(f"what is inside it is measured together with it: {endpoint[1]}", "merged")
        return Together(why, {})
    others = [other for other in layers if other.layer.merged_with == name]
    if not others:
        return None
    all_of_them = [each_layer.bounds for each_layer in (bounded, *others)]
    shared = set.intersection(*map(set, all_of_them))
    names = " and ".join(other.layer.name for other in others)
    return Together(
        tagged(f"{names} is measured together with it: {others[0].layer.merged_because}", "merged"),
        {quantity: sum(bounds[quantity] for bounds in all_of_them) for quantity in shared},
    )


def bounded_parts(parts: Sequence[tuple[EntryIndex, Layer]], all_budgets: Budgets) -> tuple[Bounded, ...]:
    """Return every part of the endpoint with the budgets that apply to it.

    A part with a budget that the request did not come to has no entry, and so has every part of a closed endpoint.
    Raises LayerNameError for a budget that names no part of an opened endpoint.
    """
    layers = [layer for _, layer in parts]
    absent = [name for name in budgets.unmatched(all_budgets.of_parts, layers) if name in PARTS or not parts]
    layers += [
        Layer(RowIndex(place), name, name, "part", entered=False) for place, name in enumerate(absent, len(layers))
    ]
    for name in budgets.unmatched(all_budgets.of_parts, layers):
        raise LayerNameError(budgets.no_such("part", name, budgets.names_of(layers)))
    assigned = budgets.assign(all_budgets.of_parts, layers)
    entry_of = {layer.index: entry for entry, layer in parts}
    return tuple(Bounded(entry_of.get(part.index), part, assigned.get(part.index, {})) for part in layers)


def bounded_rows(
    layers: Sequence[Bounded], frames: Mapping[Frame, Microseconds], endpoint: EntryIndex | None
) -> list[Bounded]:
    """Return all rows that can have a time, outermost first: the layers, and the others with their budgets `frames`."""

    def framed(frame: Frame, entry: EntryIndex | None = None) -> Bounded:
        bounds: dict[Quantity, float] = {"us": frames[frame]} if frame in frames else {}
        return Bounded(entry, ResultRow.of_frame(frame).layer, bounds, frame=frame)

    endpoints = [] if endpoint is None else [framed("endpoint", endpoint)]
    return [framed("outside"), *layers, *endpoints, framed("total")]
