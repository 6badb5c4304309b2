"""The file of limits as text: read and checked, written so that a diff can be read.

A file is a flat mapping from `Place` to `Limit`, which makes updating and merging operations on mappings.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..errors import SettingError, near_miss
from ..model.quantities import COUNTED, RECORDABLE, Quantity
from .sections import is_section

SCHEMA = "pytest-mwbudget-limits/1"
# A line that git writes between the sides of a merge conflict.
CONFLICT = re.compile(r"^(<{7}|\|{7}|={7}|>{7})(\s|$)")


class Place(NamedTuple):
    """Where a limit stands. `processor` is the processor model of a time, empty for a count."""

    section: str
    nodeid: str
    request: str
    row: str
    quantity: Quantity
    processor: str = ""


@dataclass(frozen=True, slots=True)
class Limit:
    """An upper limit. A count that varies has a range from `low` to `most`; `low` is None for other limits.

    `reason` is why the limit was raised last.
    """

    most: float
    low: float | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class LimitsFile:
    """The limits by their places, and the versions of packages by section and name of the package."""

    limits: Mapping[Place, Limit] = field(default_factory=dict)
    packages: Mapping[tuple[str, str], str] = field(default_factory=dict)

    @property
    def sections(self) -> list[str]:
        """The names of the sections, sorted."""
        return sorted({place.section for place in self.limits})

    def pruned(self) -> LimitsFile:
        """Return the file without the packages of sections that have no limit."""
        sections = self.sections
        return LimitsFile(self.limits, {key: version for key, version in self.packages.items() if key[0] in sections})

    def renamed(self, sections: Mapping[str, str]) -> LimitsFile:
        """Return the file with other names for some sections."""
        names = {section: section for section in self.sections} | dict(sections)
        return LimitsFile(
            {place._replace(section=names[place.section]): limit for place, limit in self.limits.items()},
            {(names[section], name): version for (section, name), version in self.pruned().packages.items()},
        )

    def packages_of(self, section: str) -> dict[str, str]:
        """Return the versions of a section by package."""
        return {name: version for (each_section, name), version in self.packages.items() if each_section == section}


# ---- write -------------------------------------------------------------------------------------------------------


def text_of(file: LimitsFile) -> str:
    """Return the text of a file: sorted, with one line for each row of a request."""
    file = file.pruned()
    sections: dict[str, Any] = {name: {"packages": {}, "tests": {}} for name in file.sections}
    for (section, name), version in sorted(file.packages.items()):
        sections[section]["packages"][name] = version
    for place in sorted(file.limits, key=_order):
        requests = sections[place.section]["tests"].setdefault(place.nodeid, {})
        row = requests.setdefault(place.request, {}).setdefault(place.row, {})
        written = _written(file.limits[place])
        if place.processor:
            row.setdefault(place.quantity, {})[place.processor] = written
        else:
            row[place.quantity] = written
    return "\n".join(_lines({"schema": SCHEMA, "sections": sections}, 0)) + "\n"


def _order(place: Place) -> tuple[str, str, str, str, int, str]:
    return (*place[:4], RECORDABLE.index(place.quantity), place.processor)


def _written(limit: Limit) -> object:
    most = _number(limit.most)
    value = most if limit.low is None else [_number(limit.low), most]
    return value if limit.reason is None else {"limit": value, "reason": limit.reason}


def _number(value: float) -> float:
    return int(value) if value == int(value) else value


# The depth at which a value is a row, which is written in one line: sections, section, tests, test, request, row.
ROW_DEPTH = 6


def _lines(value: Mapping[str, Any], depth: int) -> Iterator[str]:
    """Yield the lines of an object; each key begins a line, down to the rows."""
    yield "{"
    for number, (key, member) in enumerate(value.items(), 1):
        begin, comma = f"{' ' * (depth + 1)}{_json(key)}: ", "," if number < len(value) else ""
        if isinstance(member, Mapping) and member and depth + 1 < ROW_DEPTH:
            first, *others = _lines(member, depth + 1)
            yield f"{begin}{first}"
            yield from others[:-1]
            yield f"{others[-1]}{comma}"
        else:
            yield f"{begin}{_json(member)}{comma}"
    yield f"{' ' * depth}}}"


def _json(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return text.encode(errors="backslashreplace").decode()  # a lone surrogate of a test's id


# ---- read --------------------------------------------------------------------------------------------------------


def parsed(text: str, label: str) -> LimitsFile:
    """Read the text of a file; `label` names the file in messages.

    Raises SettingError for a merge conflict, for text that is not JSON, for another version, and for a limit that is no
    limit, with its place.
    """
    for number, line in enumerate(text.splitlines(), 1):
        if CONFLICT.match(line):
            raise _error(
                f"{label} has a merge conflict in line {number}; resolve it, or let `mwbudget budgets merge` join both"
                " sides, which git show :2:FILE and git show :3:FILE print, with their --base, git show :1:FILE"
            )
    try:
        document = json.loads(text, object_pairs_hook=_without_twins)
    except (RecursionError, ValueError) as error:
        raise _error(f"{label} is not JSON: {error}; correct it, or restore the committed version") from None
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema != SCHEMA:
        raise _error(
            f"{label} has the schema {schema!r}, and this version of pytest-mwbudget reads {SCHEMA!r}; use the version"
            " that wrote it, or write the file anew with --mw-budget-update after removing it"
        )
    limits: dict[Place, Limit] = {}
    packages: dict[tuple[str, str], str] = {}
    for section, content in _members(document.get("sections"), f"{label}: sections"):
        where = f"{label}: {section!r}"
        if not is_section(section):
            raise _error(f"{where} is not the name of a section; write it like 'CPython 3.13.0, asyncio, Linux x86_64'")
        for name, version in _members(content.get("packages", {}) if isinstance(content, dict) else None, where):
            packages[section, name] = _version(version, f"{where}, packages, {name!r}")
        for place, value in _rows(section, content.get("tests", {}), where):
            limits.update(_limits(place, value, f"{where}, {place.nodeid}, {place.request}, {place.row}"))
    return LimitsFile(limits, packages).pruned()


def _error(message: str) -> SettingError:
    return SettingError(message, message_id="limits-file")


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse a key that stands twice, as after a merge by hand: JSON would take the last one."""
    members = dict(pairs)
    if len(members) < len(pairs):
        twin = next(key for number, (key, _) in enumerate(pairs) if key in dict(pairs[:number]))
        raise ValueError(f"the key {twin!r} occurs twice in one object")
    return members


def _members(value: object, where: str) -> Iterable[tuple[str, Any]]:
    if not isinstance(value, dict):
        raise _error(f"{where}: {json.dumps(value)[:80]} is not an object; restore the committed version of the file")
    return value.items()


def _version(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise _error(f"{where} is {json.dumps(value)[:80]}; write the version as text")
    return value


def _rows(section: str, tests: object, where: str) -> Iterator[tuple[Place, dict[str, Any]]]:
    """Yield each row, with the place of its first quantity."""
    for nodeid, requests in _members(tests, where):
        for request, rows in _members(requests, f"{where}, {nodeid}"):
            for row, value in _members(rows, f"{where}, {nodeid}, {request}"):
                _members(value, f"{where}, {nodeid}, {request}, {row}")
                yield Place(section, nodeid, request, row, RECORDABLE[0]), value


def _limits(row: Place, value: Mapping[str, Any], where: str) -> Iterator[tuple[Place, Limit]]:
    for quantity, written in value.items():
        if quantity not in RECORDABLE:
            raise _error(
                f"{where} has a limit of {quantity!r}.{near_miss(quantity, RECORDABLE)} The quantities are:"
                f" {', '.join(RECORDABLE)}"
            )
        place, of = row._replace(quantity=quantity), f"{where}, {quantity}"
        if quantity in COUNTED:
            yield place, _limit(written, of, counted=True)
        else:
            for processor, time in _members(written, of):
                yield place._replace(processor=processor), _limit(time, f"{of}, {processor!r}", counted=False)


def _limit(value: Any, where: str, *, counted: bool) -> Limit:
    """Read a limit: a number, the range of a count, or an object with `limit` and `reason`."""
    plain, reason = value, None
    if isinstance(value, dict):
        plain, reason = value.get("limit"), value.get("reason")
    low, most = plain if isinstance(plain, list) and len(plain) == 2 and counted else (None, plain)
    numbers = [most] if low is None else [low, most]
    kinds = (int,) if counted else (int, float)
    known = not isinstance(value, dict) or (value.keys() == {"limit", "reason"} and isinstance(reason, str))
    if (
        not known
        or not all(
            isinstance(number, kinds) and not isinstance(number, bool) and 0 <= number < math.inf for number in numbers
        )
        or (low is not None and low > most)
    ):
        example = "478, or [444, 456] for a count that varies" if counted else "a number of microseconds, such as 12.5"
        raise _error(
            f'{where} is {json.dumps(value)[:80]}, which is no limit; write {example}, or {{"limit": ..., "reason":'
            ' "..."}'
        )
    return Limit(most, low, reason)
