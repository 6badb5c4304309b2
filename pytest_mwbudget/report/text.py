"""Formatting of numbers and names, shared by all reports."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from itertools import count, islice

from ..model.quantities import TAILS, TRAITS, Format
from ..model.tails import Tails

# The id that `errors.tagged` appends to a message.
ID_AT_END = re.compile(r" \[[a-z-]+\]\.?$")
# What most names of layers have in common. A class that stands twice in a stack has a number.
SHARED = re.compile(r"Middleware(?=(#\d+)?$)")


def figure(value: float | None) -> str:
    """Format microseconds with two decimals at most, fewer for large values; `?` if unknown or infinite."""
    if value is None or not math.isfinite(value):
        return "?"
    return f"{value:z.{2 if abs(value) < 10 else 1 if abs(value) < 1000 else 0}f}"


def bound(value: float) -> str:
    """Format a budget as the user would write it."""
    return f"{value:.0f}" if value >= 1000 else f"{value:.4g}"


def rate(value: float) -> str:
    """Format requests per second; `?` if unknown."""
    if not math.isfinite(value) or value <= 0:
        return "?"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def percent(value: float) -> str:
    """Format a share; `?` if it is infinite."""
    return f"{value:z.1%}" if math.isfinite(value) else "?"


def size(number: float) -> str:
    """Format a number of bytes with a binary unit."""
    if number < 1024:
        return f"{number:.0f} B"
    for unit, scale in (("KiB", 1024), ("MiB", 1024**2)):
        if number < 1000 * scale:
            return f"{number / scale:.1f} {unit}"
    return f"{number / 1024**3:.1f} GiB"


def whole(number: float) -> str:
    """Format a count."""
    return f"{number:.0f}"


# The formats of numbers without their units.
NUMBERS: Mapping[Format, Callable[[float], str]] = {
    "time": figure,
    "latency": figure,
    "number": whole,
    "size": size,
    "share": percent,
    "rate": rate,
}


def formatted(quantity: str, value: float) -> str:
    """Format a number of a quantity without its unit; a size has one."""
    return NUMBERS[TRAITS[quantity].format](value)


def amount(quantity: str, value: float) -> str:
    """Format a number with the unit of its quantity: `50 µs`, `478 objects`, `16.0 KiB`, `1 task`."""
    traits = TRAITS[quantity]
    if traits.format == "time":
        return f"{figure(value) if value != int(value) else bound(value)} µs"
    if traits.format != "number":
        return formatted(quantity, value)
    singular, plural = traits.unit
    return f"{value:.0f} {singular if value == 1 else plural}"


def listed(names: Collection[str], most: int = 5) -> str:
    """Return the first names, and the number of the others."""
    more = len(names) - most
    return ", ".join(islice(names, most)) + (f" and {more} more" if more > 0 else "")


def escaped(text: str) -> str:
    """Put `text` in one line: characters that are not printable become escapes.

    A name of the app could otherwise break the line, or change colours.
    """
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def printable(text: str) -> str:
    """Escape a line of a terminal, so that it begins no workflow command of GitHub Actions either."""
    shown = escaped(text)
    return f"\\x3a{shown.lstrip()[1:]}" if shown.lstrip().startswith("::") else shown


def has_id(text: str) -> bool:
    """Whether a message ends with an id for `mwbudget explain`."""
    return ID_AT_END.search(text) is not None


def shortened(text: str, width: int) -> str:
    """Make `text` printable and shorten it to `width` characters: its middle is replaced by an ellipsis."""
    return _cut(printable(text), width, (width - 1) // 2)


def _cut(text: str, width: int, head: int) -> str:
    return text if len(text) <= width else f"{text[:head]}…{text[len(text) - (width - 1 - head) :]}"


def distinct(names: Sequence[str], width: int) -> list[str]:
    """Make the names of a table printable and shorten them to `width` characters; different names stay different.

    A name that fits stays as it is. A longer one loses what most names have in common, `Middleware`, and then its
    middle. Names that would be equal lose another part.
    """
    texts = dict.fromkeys(map(printable, names))
    shorter = {text: text for text in texts if len(text) <= width}
    alike: dict[str, list[str]] = {}
    for text in (text for text in texts if text not in shorter):
        alike.setdefault(_cut(_brief(text, width), width, (width - 1) // 2), []).append(text)
    clear = {same[0]: brief for brief, same in alike.items() if len(same) == 1 and brief not in shorter}
    shorter |= clear
    for same in alike.values():
        if same[0] not in clear:
            shorter |= dict(zip(same, _apart(same, width, {*shorter.values()}), strict=True))
    return [shorter[printable(name)] for name in names]


def _apart(names: Sequence[str], width: int, taken: Container[str]) -> list[str]:
    """Shorten names so that they differ from each other and from those that are taken; by numbers if need be."""
    middle = (width - 1) // 2
    for head in sorted(range(1, width - 1), key=lambda head: abs(head - middle)):
        shorter = [_cut(_brief(name, width), width, head) for name in names]
        if len({*shorter}) == len(names) and not any(text in taken for text in shorter):
            return shorter
    numbers, numbered = map(str, count(1)), list[str]()
    for name in names:
        tries = (f"{name[: width - len(number) - 1]}…{number}" for number in numbers)
        numbered.append(next(text for text in tries if text not in taken))
    return numbered


def _brief(name: str, width: int) -> str:
    stem = name if len(name) <= width else SHARED.sub("…", name)
    return stem if len(stem) <= width else stem.replace("…", "", 1)


def wrapped(text: str, width: int) -> list[str]:
    """Make `text` printable and break it into lines of at most `width` characters; a longer word stays whole."""
    width = max(width, 1)
    return textwrap.wrap(printable(text), width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def percentiles(tails: Tails) -> str:
    """Return the known percentiles with their intervals, and the number of requests that they come from."""
    parts = []
    for quantity in TAILS:
        us, name = getattr(tails, quantity), quantity.removesuffix("_us")
        parts.append(f"{name} {figure(us.estimate)} µs ({figure(us.low)} … {figure(us.high)})" if us else f"{name} ?")
    return f"{', '.join(parts)}, of {tails.requests} requests"
