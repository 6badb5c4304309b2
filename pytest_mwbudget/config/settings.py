"""The settings of a test: marker, command line, configuration and defaults, merged and checked.

For each key the closest value wins: the closest marker (`session.markers` has their order), then wider markers, the
command line, the configuration, the default. `None` in a marker removes the values of all wider sources.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, Protocol, TypeAlias

from ..errors import SettingError, near_miss
from ..model.estimate import Seconds
from ..model.quantities import UNDER_LOAD, Quantity, budgeted
from ..model.remedies import MAX_TIME, BudgetPlace, TimeOption
from ..model.results import FRAMES, LoopName, Result
from .budgets import Bound, Budgets, LayerBounds
from .checks import check
from .table import MARKER, SETTINGS

WhenUndecided: TypeAlias = Literal["warn", "fail", "pass"]
# The clients of a load, unless a test says otherwise.
CLIENTS = 100
WhenProfiled: TypeAlias = Literal["failing", "always", "never"]

MARKER_KEYS = tuple(name for name, setting in SETTINGS.items() if MARKER in setting.places)


class Limits(Protocol):
    """The recorded limits of a test."""

    @property
    def timed(self) -> bool:
        """Whether the limits need times."""

    def following(self, results: Sequence[Result], route: str | None = None) -> Limits:
        """Return the limits for the next request of the test, after these results."""

    def judged(self, result: Result, crowded: str | None) -> Result:
        """Return the result with the verdicts on its limits.

        `crowded` is the reason why no failure of a time counts.
        """


@dataclass(frozen=True, slots=True)
class Under:
    """Load: the number of clients that send requests at the same time."""

    clients: int = CLIENTS


def _of(name: str, **changed: Any) -> Any:
    """Make the field of a setting, with the default of the table unless `changed` overrides it."""
    return field(**{"default": SETTINGS[name].default, **changed}, metadata={"setting": name})


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of a test's measurements. `config.table` says what those mean that a user can set."""

    budgets: Budgets = field(default_factory=Budgets)
    # None accepts any status below 400.
    expect_status: int | None = _of("expect_status")
    repeat: tuple[str, ...] = _of("repeat", default=())
    lifespan: bool = _of("lifespan")
    # None is asyncio's default loop; in an async test, the loop of the test.
    loop: LoopName | None = _of("loop")
    trend: bool = _of("trend")
    max_time_s: Seconds = _of("max_time")
    startup_timeout_s: Seconds = _of("startup_timeout")
    when_undecided: WhenUndecided = _of("undecided")
    # For budgets of quantities that cannot be counted here.
    when_uncountable: WhenUndecided = _of("undecided", default="fail")
    flamegraph: WhenProfiled = _of("flamegraph")
    # Asks for a measurement under load, which processes that count or compare for another one leave out.
    load: Under | None = None
    loads: bool = True
    load_time_s: Seconds = _of("load_time")
    # The shares of the requests per second that layers may cost.
    load_budgets: Budgets = field(default_factory=Budgets)
    p99_ms: float | None = _of("p99_ms")
    # The recorded limits of the test, None without a file of limits.
    limits: Limits | None = None
    # Some requests of a count take longer.
    delayed: bool = False
    # Whether to measure times, None to measure them if a budget or the report of a test needs them.
    timed: bool | None = None
    # Where a budget of these requests can stand, what gives a measurement more time, and what the user can do about a
    # request that takes longer than `startup_timeout_s`.
    place: BudgetPlace = "marker"
    more_time: TimeOption = MAX_TIME
    slow_answer: str = "raise mw_budget_startup_timeout"

    @property
    def need_clock(self) -> bool:
        """Whether to measure time: recorded limits of counts take the place of a report without budgets."""
        if self.timed is not None:
            return self.timed
        if self.load is not None or self.trend:
            return True
        if self.limits is None:
            return self.budgets.need_clock
        return self.budgets.bound_time or self.limits.timed

    def on_undecided(self, result: Result) -> WhenUndecided:
        """Return what to do about an undecided request: more time would not decide what cannot be counted."""
        return self.when_uncountable if result.uncountable else self.when_undecided

    def fails(self, result: Result) -> bool:
        """Whether a request fails its test, or the command that measures it."""
        return result.verdict == "fail" or (result.verdict == "undecided" and self.on_undecided(result) == "fail")

    def narrowed(self, budgets: Budgets) -> Settings:
        """Return the settings with some of their budgets. What is not timed for all of them is not timed for some."""
        return replace(self, budgets=budgets, timed=self.timed if self.need_clock else False)


_FIELDS: dict[str, str] = {
    attribute.name: attribute.metadata["setting"] for attribute in fields(Settings) if attribute.metadata
}


def merge(markers: Iterable[Mapping[str, Any]], configured: Mapping[str, Any]) -> Settings:
    """Merge and check the settings of one test.

    `markers` are the keyword arguments of the `mw_budget` markers, closest first. `configured` has the value of the
    command line or the configuration for each setting, None if not set. Raises SettingError for an unknown keyword or
    an invalid value.
    """
    # For each setting its values with their sources, closest first.
    stated: dict[str, list[tuple[Any, str]]] = {}
    for marker in markers:
        for key, value in marker.items():
            if key not in MARKER_KEYS:
                raise SettingError(
                    f"unknown keyword {key!r} in the mw_budget marker.{near_miss(key, MARKER_KEYS)}"
                    f" The keywords are: {', '.join(MARKER_KEYS)}"
                )
            stated.setdefault(key, []).append((value, f"mw_budget marker: {key}"))
    for key, value in configured.items():
        if value is not None:
            stated.setdefault(key, []).append((value, SETTINGS[key].key))
    layers, parts = (_merged_layers(key, stated.get(key, ())) for key in ("layers", "endpoint"))
    closest = {key: values[0] for key, values in stated.items() if values[0][0] is not None}
    of_frames = [f"{frame}_us" for frame in FRAMES]
    used = [key for key in (*budgeted("layer"), *of_frames, *_FIELDS.values()) if key in closest]
    checked = {key: check(key, *closest[key]) for key in used}
    frames = {key: checked[key] for key in of_frames if key in checked}
    bounds = {key: checked[key] for key in budgeted("layer") if key in checked}
    shares = {name: kept for name, of_layer in layers.items() if (kept := _known(of_layer, under_load=True))}
    others = {name: _known(of_layer, under_load=False) for name, of_layer in layers.items()}
    return Settings(
        Budgets(_known(bounds, under_load=False), others, **frames, endpoint=parts),
        load_budgets=Budgets(_known(bounds, under_load=True), shares),
        **{name: checked[key] for name, key in _FIELDS.items() if key in checked},
    )


def _known(bounds: Mapping[Quantity, Bound], *, under_load: bool) -> dict[Quantity, Bound]:
    """Return the bounds of quantities that are known only under load, or of the others."""
    return {quantity: most for quantity, most in bounds.items() if (quantity in UNDER_LOAD) == under_load}


def _merged_layers(key: str, stated: Iterable[tuple[Any, str]]) -> dict[str, LayerBounds]:
    """Merge the budgets by name of a layer or part, closest first, quantity by quantity."""
    layers: dict[str, LayerBounds] = {}
    for value, where in stated:
        if value is None:
            break  # None removes all wider values
        wider = check(key, value, where)
        layers = {name: {**wider.get(name, {}), **layers.get(name, {})} for name in {**wider, **layers}}
    return layers
