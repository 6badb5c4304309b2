"""How much a quantity may grow before a comparison fails, such as `us:10%,bytecodes:0`, and the verdict on a change."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from ..config.checks import count, size
from ..errors import SettingError, near_miss
from ..model.changes import Change
from ..model.estimate import Microseconds
from ..model.judged import Verdict
from ..model.quantities import COUNTED, RECORDABLE, TRAITS
from ..model.stack import ENDPOINT, OUTSIDE, TOTAL
from .figures import is_part

# `total_us` is the time of the whole request, the other quantities are those of a layer.
LIMITABLE: tuple[str, ...] = (*RECORDABLE, "total_us")
# Times do not tell a smaller change from none, neither as a failure nor as a success (docs/decisions/0030).
LEAST_US: Microseconds = 0.5
EXAMPLE = "us:10%,bytecodes:0"

_TIME = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*(us|µs|μs|ms)?", re.IGNORECASE)
_PERCENT = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*%")


@dataclass(frozen=True, slots=True)
class Growth:
    """How much a quantity may grow: by `percent` of what it was, and by `least` in any case.

    `least` is in microseconds for times, a number for counts. `written` is the growth in the user's words.
    """

    written: str
    percent: float
    least: float

    def most(self, before: float) -> float:
        """Return the largest growth that is allowed for a figure that was `before`."""
        return max(self.least, before * self.percent / 100)


Allowed: TypeAlias = Mapping[str, Growth]


def limited_as(change: Change) -> str | None:
    """Return the quantity as users limit its growth, None for the rows that nobody budgets."""
    if change.row == TOTAL:
        return "total_us" if change.quantity == "us" else None
    return None if change.row in (OUTSIDE, ENDPOINT) or is_part(change.row) else change.quantity


def judged(change: Change, allowed: Allowed, room: float = 0.0) -> Change:
    """Return a change with the largest growth that is allowed and the verdict, as it is if nothing limits it.

    A row that is new has not grown; the total contains it. A change passes if its interval reaches no more than `room`
    above the limit, because the figure varies by as much without any change.
    """
    growth = allowed.get(limited_as(change) or "")
    if growth is None or change.word in ("new", "gone"):
        return change
    if change.change is None or change.before is None:
        return replace(change, verdict="undecided")
    most = growth.most(change.before.high)
    verdict: Verdict = "undecided"
    if change.change.low > most:
        verdict = "fail"
    elif change.change.high <= most + room:
        verdict = "pass"
    return replace(change, most=most, verdict=verdict)


def parsed(text: str | None, option: str) -> Allowed:
    """Read pairs of a quantity and its growth, separated by commas: `us:10%,total_us:20us,bytes:1 KiB,tasks:0`.

    A growth is a percentage, or an amount: microseconds for times (also with `us`, `µs`, `ms`), a whole number for
    counts, a size for `bytes`. Nothing is limited without a text. The `option` begins the error message. Raises
    SettingError if the text has an unknown quantity, the same quantity twice, or an amount that is not one.
    """
    allowed: dict[str, Growth] = {}
    where = f"{option}={text!r}"
    for part in () if text is None else text.split(","):
        name, colon, written = (piece.strip() for piece in part.partition(":"))
        if not (name and colon and written):
            raise SettingError(
                f"{where} has the part {part.strip()!r}; write QUANTITY:GROWTH, several of them separated by commas,"
                f" for example {EXAMPLE}. The quantities are: {', '.join(LIMITABLE)}"
            )
        if name not in LIMITABLE:
            raise SettingError(
                f"{where} has the quantity {name!r}.{near_miss(name, LIMITABLE)} The quantities are:"
                f" {', '.join(LIMITABLE)}"
            )
        if name in allowed:
            raise SettingError(f"{where} has {name} twice; give each quantity once, for example {EXAMPLE}")
        allowed[name] = _growth(name, written, f"{where}: {name}")
    return allowed


def _growth(quantity: str, written: str, where: str) -> Growth:
    least = 0.0 if quantity in COUNTED else LEAST_US
    if (percent := _PERCENT.fullmatch(written)) is not None:
        return Growth(written, _finite(percent[1], written, where), least)
    amount = _number(quantity, written, where) if quantity in COUNTED else _time(written, where)
    return Growth(written, 0.0, max(least, amount))


def _time(written: str, where: str) -> Microseconds:
    time = _TIME.fullmatch(written)
    if time is None:
        raise SettingError(
            f"{where} is {written!r}; give a percentage or microseconds, 0 or more, for example 10% or 5us"
        )
    return _finite(time[1], written, where) * (1000 if (time[2] or "").lower() == "ms" else 1)


def _number(quantity: str, written: str, where: str) -> int:
    sized = TRAITS[quantity].format == "size"
    try:
        return size(written, where) if sized else count(written, where)
    except SettingError:
        example = "10% or 1 KiB" if sized else "10% or 0"
        raise SettingError(
            f"{where} is {written!r}; give a percentage or a whole number, 0 or more, for example {example}"
        ) from None


def _finite(digits: str, written: str, where: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise SettingError(f"{where} is {written!r}, which is too large; give a smaller number")
    return number
