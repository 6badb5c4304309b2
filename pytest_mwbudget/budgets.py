"""Budgets: which one applies to which layer, and whether an estimate keeps it."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .errors import LayerNameError, SettingError, near_miss
from .model import Estimate, Layer, Microseconds, Verdict


@dataclass(frozen=True, slots=True)
class Budgets:
    """Upper bounds in microseconds per request: for every middleware, for named layers, for the whole request."""

    us: Microseconds | None = None
    layers: Mapping[str, Microseconds] = field(default_factory=dict)
    total_us: Microseconds | None = None


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict, and for an undecided one the reason."""

    verdict: Verdict
    reason: str | None = None


def budget_us(value: object, where: str) -> Microseconds:
    """`value` as a budget in microseconds; SettingError unless it is a finite number above zero.

    `where` names the place the value came from, for the message.
    """
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


def assign(budgets: Budgets, stack: Sequence[Layer]) -> dict[int, Microseconds]:
    """The budget of each layer that has one, by layer index.

    A name is a layer's name in the table, its class name, or its qualified name (`module:Class` or `module.Class`);
    the more exact name wins over the less exact. Without a name the default applies to middleware, not to routing.
    Raises LayerNameError when a name matches nothing.
    """
    assigned = {layer.index: budgets.us for layer in stack if budgets.us is not None and layer.kind == "middleware"}
    ranked: dict[int, int] = {}
    for name, bound in budgets.layers.items():
        ranks = {layer.index: _rank(name, layer) for layer in stack}
        matches = {index: rank for index, rank in ranks.items() if rank is not None}
        if not matches:
            raise LayerNameError(_no_such_layer(name, stack))
        for index, rank in matches.items():
            if rank >= ranked.get(index, 0):
                assigned[index], ranked[index] = bound, rank
    return assigned


def named(budgets: Budgets, layer: Layer) -> bool:
    """Whether a budget names the layer, and not only the default applies to it."""
    return any(_rank(name, layer) is not None for name in budgets.layers)


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


def judge(us: Estimate, bound: Microseconds, *, floor: Microseconds, slowdown: float) -> Judgement:
    """Whether `us` keeps `bound`.

    `pass` when the whole interval is within the budget, `fail` when all of it is above: also after the slowdown of
    the machine (its reference workload against the quickest time it has shown, at least 1) is taken out, because a
    busy neighbour must not fail anybody's test. A budget below the floor of the run is refused.
    """
    if not math.isfinite(floor):
        return Judgement(
            "undecided",
            "there were too few requests to tell this run's floor; give the run more time with --mw-budget-max-time",
        )
    if bound < floor:
        return Judgement(
            "undecided",
            f"a budget of {bound:g} µs is below this run's floor of {floor:.2f} µs, the least it could tell from"
            f" nothing; raise the budget above the floor, or give the run more time with --mw-budget-max-time",
        )
    if us.high <= bound:
        return Judgement("pass")
    if us.low > bound:
        if us.low / slowdown > bound:
            return Judgement("fail")
        return Judgement(
            "undecided",
            f"the machine ran {slowdown:.2f} times slower than at its best, which alone may explain the excess"
            f"; run it again when the machine is less busy",
        )
    return Judgement("undecided", f"the interval {us.low:.2f} to {us.high:.2f} µs holds the budget of {bound:g} µs")


def overall(verdicts: Sequence[Verdict]) -> Verdict | None:
    """The worst of them: any fail, else any undecided, else pass; None when nothing was judged."""
    if not verdicts:
        return None
    if "fail" in verdicts:
        return "fail"
    return "undecided" if "undecided" in verdicts else "pass"


def seconds_needed(us: Estimate, bound: Microseconds, spent_s: float) -> float | None:
    """How long the run would have to be for a verdict, as the interval narrows with the square root of the time.

    None when the estimate stands on the budget, where no time is enough.
    """
    gap = abs(us.estimate - bound)
    if not math.isfinite(us.half_width) or gap == 0:
        return None
    return spent_s * (us.half_width / gap) ** 2
