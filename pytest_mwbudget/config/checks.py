"""Checks of values, by the kind of value in `config.table`.

A check takes a value and the name of its source, which begins the error message. It returns the converted value, and
raises SettingError if the value is invalid. Numbers may be text, as in options and ini keys.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from importlib.util import find_spec
from typing import Any, TypeVar, get_args

from ..errors import SettingError, near_miss
from ..model.estimate import Microseconds, Seconds
from ..model.quantities import RECORDABLE, Quantity, budgeted
from ..model.results import LoopName
from .budgets import LayerBounds
from .table import SETTINGS

Number = TypeVar("Number", int, float)

# A larger whole number cannot be compared with a figure, formatted or stored.
MOST = sys.float_info.max
# A day. Deadlines in integer nanoseconds and timers of event loops do not accept any number of seconds.
MOST_SECONDS = 86_400
UNITS = {"": 1, "b": 1, "kb": 1000, "mb": 1000**2, "gb": 1000**3, "kib": 1024, "mib": 1024**2, "gib": 1024**3}
TRUTHS = {**dict.fromkeys(("true", "1", "yes", "on"), True), **dict.fromkeys(("false", "0", "no", "off"), False)}
# What an update of recorded limits may do.
MODES = ("create", "trim", "fix")
# Each client is a connection: more would need another limit of open files.
MOST_CLIENTS = 10_000
# A token of RFC 9110.
METHOD = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")


def check(name: str, value: object, where: str) -> Any:
    """Check the value of the setting `name`; `where` names its source in messages."""
    kind = SETTINGS[name].kind
    return KINDS[kind](value, where) if kind in KINDS else choice(kind.split("|"), value, where)


# ---- numbers --------------------------------------------------------------------------------------------------------


def _float(value: Any) -> float | None:
    """Convert to a float: None if it is not a number, infinity if it is too large."""
    try:
        return None if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        return None
    except OverflowError:
        return math.inf


def _plain_float(value: object) -> float | None:
    return _float(value) if isinstance(value, (str, int, float)) else None


def _share(value: object) -> float | None:
    """Convert a share: text such as "5%", or a number."""
    if not isinstance(value, str):
        return _float(value)
    number = _float(value.strip().removesuffix("%"))
    return number / 100 if number is not None and value.strip().endswith("%") else number


def _int(value: object) -> int | None:
    """Convert to a whole number; None if it is no whole number, or is text of 20 or more characters."""
    if isinstance(value, str) and value.strip().isdecimal() and len(value) < 20:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _number(
    convert: Callable[[object], Number | None], fits: Callable[[Number], bool], wanted: str
) -> Callable[[object, str], Number]:
    """Make the check of a number. `convert` returns None for what is not a number, `wanted` says what to give."""

    def checked(value: object, where: str) -> Number:
        number = convert(value)
        if number is None or not fits(number):
            raise SettingError(f"{where} is {value!r}; give {wanted}")
        return number

    return checked


milliseconds = _number(_plain_float, lambda ms: 0 < ms < math.inf, "a number of milliseconds above 0, for example 20")
share = _number(
    _share,
    lambda part: 0 < part < 1,
    "a share of the requests per second above 0 and below 100 %, for example '5%' or 0.05",
)
clients = _number(
    _int, lambda number: 1 <= number <= MOST_CLIENTS, f"a whole number of clients from 1 to {MOST_CLIENTS}"
)
count = _number(_int, lambda number: 0 <= number <= MOST, "a whole number per request from 0 on, for example 100")
status_code = _number(_int, lambda code: 100 <= code <= 599, "an HTTP status code from 100 to 599, for example 404")
seconds: Callable[[object, str], Seconds] = _number(
    _float,
    lambda number: 0 < number <= MOST_SECONDS,
    f"a number of seconds above 0, for example 5, and of at most {MOST_SECONDS}, which is a day",
)


def microseconds(value: object, where: str) -> Microseconds:
    """Check a budget of time: a finite number above zero."""
    number = _plain_float(value)
    if number is not None and 0 < number < math.inf:
        return number
    problem = "is not a number" if number is None else "cannot be kept"
    raise SettingError(
        f"{where} is {value!r}, which {problem}; give a number of microseconds per request above 0, for example 50"
    )


def size(value: object, where: str) -> int:
    """Check a number of bytes: a whole number, or text such as "16 KiB" (1024 bytes each) or "16 kB" (1000)."""
    if isinstance(value, str):
        match = _SIZE.fullmatch(value.strip())
        number = Decimal(match[1]) * UNITS[match[2].lower()] if match and match[2].lower() in UNITS else None
        if number is None or number > MOST:
            raise SettingError(
                f"{where} is {value!r}; give a number of bytes per request, or one with a unit, for example '16 KiB'."
                f" The units are: B, kB, MB, GB, KiB, MiB, GiB"
            )
        return math.floor(number)
    return count(value, where)


# ---- others ---------------------------------------------------------------------------------------------------------


def truth(value: object, where: str) -> bool:
    """Check a truth value: a bool, or a word of `TRUTHS`."""
    flag = TRUTHS.get(value.casefold()) if isinstance(value, str) else value
    if not isinstance(flag, bool):
        raise SettingError(f"{where} is {value!r}; give True or False")
    return flag


def choice(choices: Sequence[Any], value: object, where: str) -> Any:
    """Check that a value is one of the choices."""
    if value not in choices:
        miss = near_miss(value, choices) if isinstance(value, str) else ""
        raise SettingError(f"{where} is {value!r}.{miss} The choices are: {', '.join(choices)}")
    return value


def loop_name(value: object, where: str) -> LoopName:
    """Check the name of an event loop, whose library must be installed."""
    choices = get_args(LoopName)
    name: LoopName = choice(choices, value, where)
    if find_spec(name) is None:
        raise SettingError(
            f"{where} is {name!r}, but {name} is not installed here; install it (pip install {name}), or choose another"
            f" of: {', '.join(choices)}"
        )
    return name


def layer_budgets(
    value: object, where: str, quantities: Sequence[Quantity] = budgeted("layer")
) -> dict[str, LayerBounds]:
    """Check budgets of these quantities by layer name, from a mapping or from lines.

    A mapping has microseconds, or bounds by quantity: `{"A": 80, "B": {"us": 80, "tasks": 0}}`. The same as lines:
    `A = 80`, `B = us: 80, tasks: 0`. `None` in a mapping removes the budgets of the layer, or of the quantity.
    """
    if isinstance(value, (list, tuple)) and all(isinstance(line, str) for line in value):
        return _of_lines(value, where, quantities)
    if not isinstance(value, Mapping):
        raise SettingError(
            f"{where} is {value!r}; give a mapping of layer names to microseconds or to budgets, for example"
            f" layers={{'GZipMiddleware': 80, 'AuthMiddleware': {{'us': 50, 'tasks': 0}}}}"
        )
    for name in value:
        if not isinstance(name, str):
            raise SettingError(
                f"{where} has the layer name {name!r}; give the name as the table shows it, in quotes, for example"
                f" 'GZipMiddleware'"
            )
    return {name: _bounds(bounds, f"{where}[{name!r}]", quantities) for name, bounds in value.items()}


def part_budgets(value: object, where: str) -> dict[str, LayerBounds]:
    """Check budgets by part of the endpoint, in the forms of `layer_budgets`."""
    if isinstance(value, Mapping) and all(isinstance(name, str) for name in value):
        return layer_budgets(value, where, budgeted("part"))
    if isinstance(value, (list, tuple)) and all(isinstance(line, str) for line in value):
        return _of_lines(value, where, budgeted("part"), "part")
    raise SettingError(
        f"{where} is {value!r}; give a mapping of parts of the endpoint to microseconds or to budgets, for example"
        f" endpoint={{'serialize': 200, 'myapp.db:get_db': {{'us': 80, 'threads': 0}}}}"
    )


def _of_lines(
    lines: Sequence[str], where: str, quantities: Sequence[Quantity], what: str = "layer"
) -> dict[str, LayerBounds]:
    budgets: dict[str, LayerBounds] = {}
    for name, bounds in (_line(line, where, quantities, what) for line in lines):
        if name in budgets:
            raise SettingError(
                f"{where} has two lines for {name!r}; write one line with all budgets, for example {name} = us: 80,"
                " tasks: 0"
            )
        budgets[name] = bounds
    return budgets


def _line(line: str, where: str, quantities: Sequence[Quantity], what: str = "layer") -> tuple[str, LayerBounds]:
    name, equals, text = (part.strip() for part in line.rpartition("="))
    if not (equals and name):
        raise SettingError(
            f"{where} has the line {line!r}; write NAME = MICROSECONDS or NAME = QUANTITY: NUMBER, ..., one {what} a"
            f" line"
        )
    place = f"{where}: {name}"
    if ":" not in text:
        return name, _bounds(text, place, quantities)
    pairs = [pair.partition(":") for pair in text.split(",")]
    bounds = {quantity.strip(): value.strip() for quantity, _, value in pairs}
    if len(bounds) < len(pairs):
        raise SettingError(f"{place} is {text!r}, with two budgets of one quantity; leave out one of them")
    return name, _bounds(bounds, place, quantities)


def _bounds(value: object, where: str, quantities: Sequence[Quantity]) -> LayerBounds:
    """Check bounds by quantity; a plain number is a bound of `us`."""
    if value is None:
        return dict.fromkeys(quantities)
    if not isinstance(value, Mapping):
        return {"us": microseconds(value, where)}
    for quantity in value:
        if quantity not in quantities:
            raise SettingError(
                f"{where} has a budget of {quantity!r}.{near_miss(str(quantity), quantities)} The quantities are:"
                f" {', '.join(quantities)}"
            )
    return {
        quantity: None if most is None else check(quantity, most, f"{where}[{quantity!r}]")
        for quantity, most in value.items()
    }


def methods(value: object, where: str) -> tuple[str, ...]:
    """Check the names of HTTP methods: a list of them, or lines."""
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, (list, tuple, set, frozenset)) or not all(
        isinstance(name, str) and METHOD.fullmatch(name) for name in names
    ):
        raise SettingError(f"{where} is {value!r}; give a list of HTTP methods, for example ['POST']")
    return tuple(name.upper() for name in names)


def quantities(value: object, where: str) -> tuple[Quantity, ...]:
    """Check the names of quantities, separated by commas or spaces."""
    chosen = dict.fromkeys(choice(RECORDABLE, name, where) for name in _words(value))
    if not chosen:
        raise SettingError(f"{where} names no quantity. The quantities are: {', '.join(RECORDABLE)}")
    return tuple(quantity for quantity in RECORDABLE if quantity in chosen)


def modes(value: object, where: str) -> frozenset[str]:
    """Check what an update may do: some of `MODES`, separated by commas or spaces."""
    chosen = frozenset(choice(MODES, name, where) for name in _words(value))
    if not chosen:
        raise SettingError(f"{where} names no mode. The modes are: {', '.join(MODES)}")
    return chosen


def _words(value: object) -> list[str]:
    return str(value).replace(",", " ").split()


def text(value: object, where: str) -> str:
    """Check a text, which must not be blank."""
    sentence = " ".join(str(value).split())
    if not sentence:
        raise SettingError(f"{where} is blank; write a sentence")
    return sentence


# Any other kind is a choice.
KINDS: Mapping[str, Callable[[object, str], Any]] = {
    "MICROSECONDS": microseconds,
    "MILLISECONDS": milliseconds,
    "SHARE": share,
    "COUNT": count,
    "SIZE": size,
    "STATUS": status_code,
    "SECONDS": seconds,
    "LINES": layer_budgets,
    "PARTS": part_budgets,
    "METHODS": methods,
    "QUANTITIES": quantities,
    "MODES": modes,
    "TEXT": text,
    "true|false": truth,
    "asyncio|uvloop|trio": loop_name,
}
