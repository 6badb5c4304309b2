"""How much a quantity may grow before a comparison fails, such as `us:10%,bytecodes:0`, and the verdict on a change."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ..config.checks import count, size
from ..errors import SettingError, near_miss
from ..model.estimate import Estimate, Microseconds
from ..model.judged import Verdict
from ..model.quantities import COUNTED, RECORDABLE, TRAITS, Quantity

# `total_us` is the time of the whole request, the other quantities are those of a layer.
Compared: TypeAlias = Quantity | Literal["total_us"]
LIMITABLE: tuple[Compared, ...] = (*RECORDABLE, "total_us")
# Times do not tell a smaller change from none, neither as a failure nor as a success (docs/decisions/0030).
LEAST_US: Microseconds = 0.5
EXAMPLE = "us:10%,bytecodes:0"

_TIME = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*(us|µs|μs|ms)?", re.IGNORECASE)
_PERCENT = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*%")


@dataclass(frozen=True, slots=True)
class Growth:
    """How much a quantity may grow: by `percent` of what it was, or by `amount` in its own unit.

    Exactly one of the two is set. The unit is microseconds for times, a number for counts. `said` is the amount as the
    user wrote it. It is never less than `least`, in the same unit.
    """

    said: str
    percent: float | None = None
    amount: float | None = None
    least: float = 0.0

    def most(self, before: float) -> float:
        """Return the largest growth that is allowed for a figure that was `before`."""
        if self.amount is not None:
            return max(self.least, self.amount)
        assert self.percent is not None
        return max(self.least, before * self.percent / 100)


Allowed: TypeAlias = Mapping[Compared, Growth]


def judge_growth(change: Estimate, most: float) -> Verdict:
    """Judge a change with its interval by the largest growth that is allowed."""
    return "fail" if change.low > most else "pass" if change.high <= most else "undecided"


def parsed(text: str, where: str) -> Allowed:
    """Read pairs of a quantity and its growth, separated by commas: `us:10%,total_us:20us,bytes:1 KiB,tasks:0`.

    A growth is a percentage, or an amount: microseconds for times (also with `us`, `µs`, `ms`), a whole number for
    counts, a size for `bytes`. `where` is the option with its value, which begins the error message. Raises
    SettingError if the text has an unknown quantity, the same quantity twice, or an amount that is not one.
    """
    allowed: dict[Compared, Growth] = {}
    for part in text.split(","):
        name, colon, written = (piece.strip() for piece in part.partition(":"))
        if not (name and colon and written):
            raise SettingError(
                f"{where} has the part {part.strip()!r}; write QUANTITY:GROWTH, several of them separated by commas,"
                f" for example {EXAMPLE}. The quantities are: {', '.join(LIMITABLE)}"
            )
        quantity = next((known for known in LIMITABLE if known == name), None)
        if quantity is None:
            raise SettingError(
                f"{where} has the quantity {name!r}.{near_miss(name, LIMITABLE)} The quantities are:"
                f" {', '.join(LIMITABLE)}"
            )
        if quantity in allowed:
            raise SettingError(f"{where} has {name} twice; give each quantity once, for example {EXAMPLE}")
        allowed[quantity] = _growth(quantity, written, f"{where}: {name}")
    return allowed


def _growth(quantity: Compared, written: str, where: str) -> Growth:
    percent, least = _PERCENT.fullmatch(written), 0.0 if quantity in COUNTED else LEAST_US
    if percent is not None:
        return Growth(written, percent=_finite(percent[1], written, where), least=least)
    if quantity not in COUNTED:
        time = _TIME.fullmatch(written)
        if time is None:
            raise SettingError(
                f"{where} is {written!r}; give a percentage or microseconds, 0 or more, for example 10% or 5us"
            )
        us = _finite(time[1], written, where) * (1000 if (time[2] or "").lower() == "ms" else 1)
        return Growth(written, amount=us, least=least)
    sized = TRAITS[quantity].format == "size"
    try:
        return Growth(written, amount=size(written, where) if sized else count(written, where))
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
