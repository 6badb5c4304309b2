"""Update a file of limits: create what is missing, trim what is too high, fix what is broken.

A second update with the same costs changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from ..analysis.judge import judge
from ..model.quantities import COUNTED, Quantity
from ..model.request_keys import RequestKey
from ..model.results import Result
from ..model.stack import ENDPOINT, OUTSIDE, TOTAL
from .costs import Cost, costs, room_us
from .file import Limit, LimitsFile, Place
from .sections import Surroundings, chosen

# A limit above this many times the cost is trimmed. For a time this is twice its room.
TRIM_ABOVE = 1.6
# A limit that is raised by more than this share of itself is marked, so that reviewers look at it.
LARGE_RAISE = 0.15


@dataclass(frozen=True, slots=True)
class Measured:
    """What a run says of a request: all rows of its stack, their costs, and the budgets that people set, by row."""

    rows: frozenset[str]
    costs: Mapping[str, Mapping[Quantity, Cost]]
    ceilings: Mapping[tuple[str, Quantity], float] = field(default_factory=dict)

    @classmethod
    def of(cls, result: Result, quantities: Collection[Quantity]) -> Measured:
        """Return what a result says, of these quantities."""
        ceilings = {(row.name, quantity): j.bound for row in result.rows() for quantity, j in row.judged.items()}
        names = frozenset({OUTSIDE, ENDPOINT, TOTAL, *(row.name for row in result.rows())})
        return cls(names, costs(result, quantities), ceilings)

    def without_counts(self) -> Measured:
        """Return the same without the costs that are counts."""
        times = {
            row: {q: cost for q, cost in costs_of_row.items() if q not in COUNTED}
            for row, costs_of_row in self.costs.items()
        }
        return replace(self, costs=times)

    def with_another(self, other: Measured) -> Measured:
        """Return the costs in both processes. A count that only one of them has is kept."""
        return self._merged(other, Cost.with_another)

    def or_higher(self, other: Measured) -> Measured:
        """Return the higher counts. A count that only one of them has is kept."""
        return self._merged(other, Cost.or_higher)

    def _merged(self, other: Measured, merge: Callable[[Cost, Cost], Cost]) -> Measured:
        costs_by_row = {row: dict(own) for row, own in self.costs.items()}
        for row, quantity, cost in other.counted:
            own = costs_by_row.setdefault(row, {})
            own[quantity] = merge(own[quantity], cost) if quantity in own else cost
        return replace(self, rows=self.rows | other.rows, costs=costs_by_row)

    @property
    def counted(self) -> Iterator[tuple[str, Quantity, Cost]]:
        """The costs that are counts: row, quantity, cost."""
        for row, costs_of_row in self.costs.items():
            yield from ((row, quantity, cost) for quantity, cost in costs_of_row.items() if quantity in COUNTED)


@dataclass(frozen=True, slots=True)
class Rules:
    """What an update may do: `modes` are some of create, trim and fix.

    `quantities` are recorded. `reason` is stored beside each raised limit.
    """

    modes: frozenset[str]
    quantities: tuple[Quantity, ...]
    processor: str
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """A limit that was written, raised, lowered or removed. `before` or `after` is None."""

    kind: Literal["created", "trimmed", "raised", "removed"]
    place: Place
    before: Limit | None
    after: Limit | None

    @property
    def share(self) -> float:
        """By which share of itself the limit was raised; infinite for a limit of 0, 0.0 for another change."""
        if self.kind != "raised" or self.before is None or self.after is None:
            return 0.0
        return self.after.most / self.before.most - 1 if self.before.most else math.inf

    @property
    def is_large(self) -> bool:
        """Whether the limit was raised by more than LARGE_RAISE."""
        return self.share > LARGE_RAISE + 1e-9


@dataclass(frozen=True, slots=True)
class Refused:
    """A limit that is broken and was not raised, because `cost` is above the `ceiling`, a budget that a person set."""

    place: Place
    cost: float
    limit: float
    ceiling: float


@dataclass(frozen=True, slots=True)
class Broken:
    """A limit that is not certainly kept."""

    place: Place
    cost: Cost
    limit: Limit


@dataclass(frozen=True, slots=True)
class Update:
    """The updated file, with what was changed in it, what was refused, and the limits in it that are broken."""

    file: LimitsFile
    changes: tuple[Change, ...] = ()
    refused: tuple[Refused, ...] = ()
    broken: tuple[Broken, ...] = ()

    @property
    def of_counts(self) -> set[str]:
        """The tests of which the limit of a count is written or removed, or is broken."""
        places = {change.place for change in self.changes} | {broken.place for broken in self.broken}
        return {place.nodeid for place in places if place.quantity in COUNTED}


def updated(
    file: LimitsFile,
    here: Surroundings,
    measured: Mapping[RequestKey, Measured],
    unused: Collection[str],
    packages: Mapping[str, str],
    rules: Rules,
    partly: Collection[str] = (),
) -> Update:
    """Update the section of `here`.

    `measured` has the requests of tests that passed, `unused` the ids of tests that do not exist any more, `partly` of
    tests with a request that was left out. `packages` are the versions of the distributions in the stacks. If every
    test of the section was measured and no limit is broken any more, the section gets the versions of `here`.
    """
    if not measured and not unused:
        return Update(file)
    section = chosen(file.sections, here) or here.section
    limits, changes, refused = dict(file.limits), list[Change](), list[Refused]()
    for key, request in measured.items():
        outcomes = [figure.change() for figure in _figures(section, key, request, limits, rules)]
        refused_here = [change for change in outcomes if isinstance(change, Refused)]
        refused += refused_here
        # A row that is refused is the reason why others of its request are broken, such as the total.
        changes += [
            change
            for change in outcomes
            if isinstance(change, Change) and not (refused_here and change.kind == "raised")
        ]
    if "trim" in rules.modes:
        obsolete = unused_places(file, section, measured, unused, rules.quantities, partly)
        changes += [Change("removed", place, limits[place], None) for place in obsolete]
    for change in changes:
        if change.after is None:
            del limits[change.place]
        else:
            limits[change.place] = change.after
    tests = {place.nodeid for place in limits if place.section == section}
    after = (figure for key, request in measured.items() for figure in _figures(section, key, request, limits, rules))
    broken = tuple(
        Broken(figure.place, figure.cost, figure.limit)
        for figure in after
        if figure.limit is not None and figure.broken
    )
    whole = not broken and tests <= {key.nodeid for key in measured} - {*partly}
    written = _with_packages(LimitsFile(limits, file.packages), section, here.section, packages, whole=whole)
    return Update(written, tuple(changes), tuple(refused), broken)


def _figures(
    section: str,
    key: RequestKey,
    request: Measured,
    limits: Mapping[Place, Limit],
    rules: Rules,
) -> Iterator[_Figure]:
    """Yield the costs of a request with their limits."""
    for row, costs_of_row in request.costs.items():
        for quantity, cost in costs_of_row.items():
            place = Place(section, *key, row, quantity, "" if quantity in COUNTED else rules.processor)
            yield _Figure(place, cost, limits.get(place), request.ceilings.get((row, quantity)), rules)


def _with_packages(
    file: LimitsFile, section: str, own: str, installed: Mapping[str, str], *, whole: bool
) -> LimitsFile:
    """Return the file with the versions of packages in a section; if it is `whole`, under the name `own`."""
    file = file.pruned()
    if section not in file.sections:
        return file
    if not whole:
        added = {(section, name): version for name, version in installed.items()}
        return LimitsFile(file.limits, added | dict(file.packages))
    others = {key: version for key, version in file.packages.items() if key[0] != section}
    renamed = LimitsFile(file.limits, others).renamed({section: own})
    return LimitsFile(renamed.limits, others | {(own, name): version for name, version in installed.items()})


def unused_places(
    file: LimitsFile,
    section: str,
    measured: Mapping[RequestKey, Measured],
    unused: Collection[str],
    quantities: Collection[Quantity] = (),
    partly: Collection[str] = (),
) -> Iterator[Place]:
    """Yield the limits of a section that no test uses.

    Their test does not exist any more, a test that passed does not make their request, or the request does not have
    their row. With `quantities` also the limits of other quantities in measured requests. In the tests that were
    measured `partly`, a request that is missing can be the one that was left out.
    """
    tests = {key.nodeid for key in measured} - {*partly}
    for place in file.limits:
        if place.section != section:
            continue
        request = measured.get(RequestKey(place.nodeid, place.request))
        if (
            place.nodeid in unused
            or (request is None and place.nodeid in tests)
            or (
                request is not None
                and (place.row not in request.rows or (quantities and place.quantity not in quantities))
            )
        ):
            yield place


@dataclass(frozen=True, slots=True)
class _Figure:
    """A cost with its limit and its ceiling, None if it has none."""

    place: Place
    cost: Cost
    limit: Limit | None
    ceiling: float | None
    rules: Rules

    def change(self) -> Change | Refused | None:
        """Return what an update does with the limit, None if it leaves the limit alone."""
        modes, limit = self.rules.modes, self.limit
        if limit is None:
            return self._created() if "create" in modes else None
        if self.broken:
            return self._raised(limit) if "fix" in modes else None
        return self._trimmed(limit) if "trim" in modes else None

    @property
    def _counted(self) -> bool:
        return self.place.quantity in COUNTED

    @property
    def _enough(self) -> float:
        """The limit to write: the high end of a count, a time with its room, no more than the ceiling."""
        enough = self.cost.end if self._counted else rounded_up(self.cost.typical + room_us(self.cost.typical))
        return enough if self.ceiling is None else min(enough, self.ceiling)

    def _written(self, most: float, reason: str | None = None) -> Limit:
        low = self.cost.low if self._counted and self.cost.low < most else None
        return Limit(most, low, reason)

    def _created(self) -> Change | None:
        if self.cost.low > self._enough:  # always above its ceiling: the test fails for that
            return None
        return Change("created", self.place, None, self._written(self._enough))

    def _trimmed(self, limit: Limit) -> Change | None:
        cost, most = self.cost, limit.most
        if self._counted:
            in_range = limit.low is not None and limit.low <= cost.typical
            too_high = most > TRIM_ABOVE * cost.high and not in_range
        else:
            too_high = most > cost.typical + 2 * room_us(cost.typical)
        if not too_high or not cost.typical <= self._enough < most:
            return None
        return Change("trimmed", self.place, limit, self._written(self._enough))

    @property
    def broken(self) -> bool:
        """Whether the limit is not certainly kept: the cost is above it, or the range of a count contains it."""
        if self.limit is None:
            return False
        most = self.limit.most
        verdict = judge(self.place.quantity, self.cost.figure, most).verdict
        if verdict != "undecided" or not self._counted:
            return verdict == "fail"
        # A limit at its ceiling cannot be raised, and the budget of the test judges the count.
        return self.cost.typical > most or self.ceiling is None or self.ceiling > most

    def _raised(self, limit: Limit) -> Change | Refused:
        if self.ceiling is not None and self.cost.typical > self.ceiling:
            return Refused(self.place, self.cost.typical, limit.most, self.ceiling)
        return Change("raised", self.place, limit, self._written(self._enough, self.rules.reason))


def rounded_up(us: float) -> float:
    """Round a time up to three significant digits."""
    if us <= 0:
        return 0.0
    digits = 2 - math.floor(math.log10(us))
    return math.ceil(round(us * 10.0**digits, 6)) / 10.0**digits
