"""Marker, command line, configuration and defaults, merged and checked into one frozen record.

The closest value wins, key by key: the marker closest to the test (`markers` has their order), then wider markers,
then the command line, then the configuration, then the defaults. `None` in a marker takes away what all wider places
say of that key.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Literal, TypeAlias, cast, get_args

from ..errors import SettingError, near_miss
from ..model.estimate import Seconds
from ..model.results import QUANTITIES, LoopName, Quantity
from .budgets import Budgets, LayerBounds, bound, budget_us

WhenUndecided: TypeAlias = Literal["warn", "fail", "pass"]
WhenProfiled: TypeAlias = Literal["failing", "always", "never"]

# What the command line and the configuration alone may say.
RUN_KEYS = ("startup_timeout", "flamegraph")
# Deadlines are nanoseconds in integers and timers of event loops, which do not take any number of seconds.
MOST_SECONDS = 86_400
MARKER_KEYS = (*QUANTITIES, "layers", "total_us", "expect_status", "lifespan", "loop", "max_time", "undecided")


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that a test has to say about its measurement.

    `max_time_s` bounds the timing of one request, `startup_timeout_s` the app's startup, its shutdown, and one
    request. `expect_status` None means any status below 400; `loop` None means what asyncio takes, in an async test the
    test's own. `flamegraph` says which requests are called again under a profiler. `when_uncountable` is for a budget
    of a count that cannot be counted here: `when_undecided` where somebody said that, else `"fail"`.
    """

    budgets: Budgets = field(default_factory=Budgets)
    expect_status: int | None = None
    lifespan: bool = True
    loop: LoopName | None = None
    max_time_s: Seconds = 5.0
    startup_timeout_s: Seconds = 30.0
    when_undecided: WhenUndecided = "warn"
    when_uncountable: WhenUndecided = "fail"
    flamegraph: WhenProfiled = "failing"


def merge(markers: Iterable[Mapping[str, Any]], configured: Mapping[str, Any]) -> Settings:
    """The settings of one test.

    `markers` are the keyword arguments of the `mw_budget` markers, closest first. `configured` has the values of the
    command line and the configuration by the same keys, None where nothing was said; `configured` alone may also
    have `startup_timeout` and `flamegraph`. Raises SettingError for an unknown keyword or an unusable value.
    """
    said: dict[str, tuple[str, Any]] = {}
    named: list[tuple[str, Any]] = []
    for place, values in _places(markers, configured):
        for key, value in values.items():
            if key == "layers":
                named.append((place.format(key), value))
            else:
                said.setdefault(key, (place.format(key), value))
    return _checked({key: found for key, found in said.items() if found[1] is not None}, _merged_layers(named))


def _places(
    markers: Iterable[Mapping[str, Any]], configured: Mapping[str, Any]
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The values of each place with the pattern of its name, closest first; SettingError for an unknown keyword."""
    for marker in markers:
        for key in marker:
            if key not in MARKER_KEYS:
                raise SettingError(
                    f"unknown keyword {key!r} in the mw_budget marker.{near_miss(key, MARKER_KEYS)}"
                    f" The keywords are: {', '.join(MARKER_KEYS)}"
                )
        yield "mw_budget marker: {}", marker
    yield "mw_budget_{}", {key: value for key, value in configured.items() if value is not None}


def _merged_layers(named: Iterable[tuple[str, Any]]) -> dict[str, LayerBounds]:
    """Budgets by layer name from all places, closest first, quantity by quantity."""
    layers: dict[str, LayerBounds] = {}
    for where, value in named:
        if value is None:
            break  # it takes away all wider ones
        wider = layer_budgets(value, where)
        layers = {name: {**wider.get(name, {}), **layers.get(name, {})} for name in {**wider, **layers}}
    return layers


def _checked(said: Mapping[str, tuple[str, Any]], layers: Mapping[str, LayerBounds]) -> Settings:
    """The record, every value checked with the name of the place it came from."""

    def get(key: str, default: Any, check: Any) -> Any:
        if key not in said:
            return default
        where, value = said[key]
        return check(value, where)

    default = Settings()
    bounds = {
        quantity: bound(quantity, said[quantity][1], said[quantity][0]) for quantity in QUANTITIES if quantity in said
    }
    return Settings(
        budgets=Budgets(bounds, layers, get("total_us", None, budget_us)),
        expect_status=get("expect_status", default.expect_status, status_code),
        lifespan=get("lifespan", default.lifespan, truth),
        loop=get("loop", default.loop, loop_name),
        max_time_s=get("max_time", default.max_time_s, seconds),
        startup_timeout_s=get("startup_timeout", default.startup_timeout_s, seconds),
        when_undecided=get("undecided", default.when_undecided, when_undecided),
        when_uncountable=get("undecided", default.when_uncountable, when_undecided),
        flamegraph=get("flamegraph", default.flamegraph, when_profiled),
    )


def layer_budgets(value: object, where: str) -> dict[str, LayerBounds]:
    """Budgets by layer name, from a mapping or from lines.

    A mapping has microseconds, or bounds by quantity: `{"A": 80, "B": {"us": 80, "tasks": 0}}`. Lines say the same:
    `A = 80`, `B = us: 80, tasks: 0`. `None` in a mapping means no budget of that layer, or of that quantity.
    """
    if isinstance(value, Mapping):
        return {_layer_name(name, where): _bounds(bounds, f"{where}[{name!r}]") for name, bounds in value.items()}
    if isinstance(value, (list, tuple)) and all(isinstance(line, str) for line in value):
        return dict(_line(line, where) for line in value)
    raise SettingError(
        f"{where} is {value!r}; give a mapping of layer names to microseconds or to budgets, for example"
        f" layers={{'GZipMiddleware': 80, 'AuthMiddleware': {{'us': 50, 'tasks': 0}}}}"
    )


def _line(line: str, where: str) -> tuple[str, LayerBounds]:
    name, equals, text = (part.strip() for part in line.rpartition("="))
    if not (equals and name):
        raise SettingError(
            f"{where} has the line {line!r}; write NAME = MICROSECONDS or NAME = QUANTITY: NUMBER, ..., one layer a"
            f" line"
        )
    place = f"{where}: {name}"
    if ":" not in text:
        return name, _bounds(text, place)
    pairs = [pair.partition(":") for pair in text.split(",")]
    return name, _bounds({quantity.strip(): value.strip() for quantity, _, value in pairs}, place)


def _bounds(value: object, where: str) -> LayerBounds:
    """Bounds by quantity; a plain number is one of microseconds."""
    if value is None:
        return dict.fromkeys(QUANTITIES)
    if not isinstance(value, Mapping):
        return {"us": budget_us(value, where)}
    for quantity in value:
        if quantity not in QUANTITIES:
            raise SettingError(
                f"{where} has a budget of {quantity!r}.{near_miss(str(quantity), QUANTITIES)} The quantities are:"
                f" {', '.join(QUANTITIES)}"
            )
    known: dict[Quantity, Any] = dict(value)
    return {
        quantity: None if most is None else bound(quantity, most, f"{where}[{quantity!r}]")
        for quantity, most in known.items()
    }


def _layer_name(name: object, where: str) -> str:
    if not isinstance(name, str):
        raise SettingError(
            f"{where} has the layer name {name!r}; give the name as the table shows it, in quotes, for example"
            f" 'GZipMiddleware'"
        )
    return name


def status_code(value: object, where: str) -> int:
    """`value` as an HTTP status code, 100 to 599."""
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 100 <= value <= 599:
        raise SettingError(f"{where} is {value!r}; give an HTTP status code from 100 to 599, for example 404")
    return int(value)


def truth(value: object, where: str) -> bool:
    """`value` as true or false."""
    if isinstance(value, str) and value.casefold() in ("true", "false", "1", "0", "yes", "no", "on", "off"):
        return value.casefold() in ("true", "1", "yes", "on")
    if not isinstance(value, bool):
        raise SettingError(f"{where} is {value!r}; give True or False")
    return value


def seconds(value: object, where: str) -> Seconds:
    """`value` as a number of seconds above zero and of at most `MOST_SECONDS`."""
    try:
        number = math.nan if isinstance(value, bool) else float(cast("float", value))
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not 0 < number <= MOST_SECONDS:
        raise SettingError(
            f"{where} is {value!r}; give a number of seconds above 0, for example 5, and of at most {MOST_SECONDS},"
            " which is a day"
        )
    return number


def when_undecided(value: object, where: str) -> WhenUndecided:
    """`value` as one of the three things to do about an undecided verdict."""
    return cast("WhenUndecided", _one_of(get_args(WhenUndecided), value, where))


def when_profiled(value: object, where: str) -> WhenProfiled:
    """`value` as one of the three answers to which requests are profiled."""
    return cast("WhenProfiled", _one_of(get_args(WhenProfiled), value, where))


def loop_name(value: object, where: str) -> LoopName:
    """`value` as the name of an event loop whose library is installed."""
    choices = get_args(LoopName)
    name = cast("LoopName", _one_of(choices, value, where))
    if find_spec(name) is None:
        raise SettingError(
            f"{where} is {name!r}, but {name} is not installed here; install it (pip install {name}), or choose another"
            f" of: {', '.join(choices)}"
        )
    return name


def _one_of(choices: tuple[Any, ...], value: object, where: str) -> object:
    if value not in choices:
        miss = near_miss(value, choices) if isinstance(value, str) else ""
        raise SettingError(f"{where} is {value!r}.{miss} The choices are: {', '.join(choices)}")
    return value
