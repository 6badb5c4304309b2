"""The view of a finished result that every report formats. Pure.

Only this module and the modules it calls decide which layer to look at first, which rows there are, and each sentence.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..errors import tagged
from ..model.quantities import Quantity
from ..model.remedies import BudgetPlace
from ..model.results import Advice, Effort, HotFunction, Profile, Result, Verdict
from ..model.stack import ENDPOINT, Origin
from .advice import advise
from .change_text import of_rows
from .findings import Finding, exceeded, headline, missing, mostly_c, next_step, next_step_uncountable, undecided
from .growing import growing
from .table import Row, rows
from .text import figure, has_id
from .under_load import LoadView, load_view

# A row within its budget is no worse than a row without a budget.
GRAVITY: Mapping[Verdict | None, int] = {"fail": 2, "undecided": 1, "pass": 0, None: 0}


@dataclass(frozen=True, slots=True)
class View:
    """A finished result. Times are microseconds per request.

    `rows` begins with `(outside)` and ends with `(total)`. `first` is the layer to look at first: the worst verdict
    counts, then the largest ratio to a budget, then the most time. `costliest` is the layer that takes the most time.
    Both are None if no layer qualifies. `residue` is the sum of the rows less the total. `detection_limit`,
    `residue` and `effort` are None if nothing was timed, `counted` (a number of requests) is None if nothing was
    counted. `uncounted` has the quantities that could not be counted, by reason. `headline` sums up the failure,
    `findings` has each budget and recorded limit that is exceeded or undecided, and the missing limits. `changed` says
    which figures certainly changed. `place` is where a budget of this request can stand. `accept` is the command that
    writes the figures into the file of limits, empty if there is nothing to accept or a budget is broken too. `parts`
    are the rows of the opened endpoint, and `closed` says why it could not be opened. `load` is the app under load,
    None if it was not measured so.
    """

    request: str
    status: int
    loop: str
    verdict: Verdict | None
    rows: tuple[Row, ...]
    first: Row | None
    costliest: Row | None
    detection_limit: str | None
    residue: str | None
    effort: Effort | None
    counted: int | None
    uncounted: Mapping[str, list[str]]
    uncountable: tuple[Quantity, ...]
    headline: str
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    advice: tuple[Advice, ...]
    profile: Profile | None
    place: BudgetPlace
    accept: str
    changed: tuple[str, ...] = ()
    parts: tuple[Row, ...] = ()
    closed: str | None = None
    load: LoadView | None = None

    def lines(self, *, every_part: bool = True) -> list[Row]:
        """The rows with those of the parts below `(endpoint)`, or only parts that are not within their budgets."""
        parts = [row for row in self.parts if every_part or GRAVITY[row.verdict]]
        return [line for row in self.rows for line in (row, *(parts if row.name == ENDPOINT else ()))]

    @property
    def layers(self) -> list[Row]:
        """The rows that are layers."""
        return [row for row in self.rows if not row.is_frame]

    @property
    def total(self) -> Row:
        """The whole request."""
        return self.rows[-1]

    @property
    def first_part(self) -> Row | None:
        """The part of the endpoint to look at first, None as for `first`."""
        return _first(self.parts)

    @property
    def undecided(self) -> list[Finding]:
        """The findings on undecided budgets."""
        return [finding for finding in self.findings if finding.verdict == "undecided"]

    @property
    def has_ids(self) -> bool:
        """Whether a note or a finding ends with the id of a message."""
        return any(map(has_id, (*self.notes, *(finding.sentence for finding in self.findings))))

    @property
    def hottest(self) -> list[tuple[str, tuple[HotFunction, ...]]]:
        """The layers over their budgets by name, each with its hottest functions."""
        names: dict[int, str] = {row.layer.index: row.name for row in self.layers}
        return [(names[index], functions) for index, functions in self.profile.hottest.items()] if self.profile else []

    @property
    def origins(self) -> dict[str, list[str]]:
        """The names of the layers by whose code they are, the project's own first, with the place of a function."""
        own = [
            f"{row.name} ({origin.place})" if origin.place else row.name
            for row, origin in self._known_origins
            if origin.own
        ]
        names = {"own": own} if own else {}
        for row, origin in self._known_origins:
            if origin.distribution is not None:
                names.setdefault(f"from {origin.distribution}", []).append(row.name)
        return names

    @property
    def _known_origins(self) -> list[tuple[Row, Origin]]:
        return [(row, row.origin) for row in self.rows if row.origin is not None]

    def next_step(self, row: Row) -> str:
        """Suggest the next step for a row over its budget."""
        advised = any(advice.layer == row.name for advice in self.advice)
        return next_step(row, self.place, advised=advised, profiled=self.profile is not None)

    @property
    def next_step_uncountable(self) -> str:
        """The next step for budgets of uncountable quantities; empty if there are none."""
        return next_step_uncountable(self.uncountable, self.place) if self.uncountable else ""


def view(result: Result) -> View:
    """Derive the view of a result."""
    every = [*rows(result)]
    outer_rows, parts = (tuple(row for row in every if row.is_part is inside) for inside in (False, True))
    layers = [row for row in outer_rows if not row.is_frame]
    first = _first(layers)
    uncounted: dict[str, list[str]] = {}
    for quantity, why in result.uncounted.items():
        uncounted.setdefault(why, []).append(quantity)
    load = load_view(result)
    return View(
        request=str(result.request),
        status=result.status,
        loop=result.loop,
        verdict=result.verdict,
        rows=outer_rows,
        first=first,
        costliest=max((row for row in layers if "us" in row.figures), key=_us, default=None),
        detection_limit=f"{figure(result.floor_us)} µs" if result.timed else None,
        residue=_residue(result),
        effort=result.effort,
        counted=result.counted,
        uncounted=uncounted,
        uncountable=result.uncountable,
        headline=_headline(result, outer_rows, first, parts, load),
        findings=(
            *(finding for row in (*outer_rows, *parts) for finding in exceeded(row)),
            *missing(result.recorded),
            *undecided((*outer_rows, *parts)),
            *(load.findings if load else ()),
        ),
        notes=(
            *result.notes,
            *(result.endpoint.notes if result.endpoint else ()),
            *mostly_c(layers, result.slowdown or 1.0),
            *growing(result.layers),
            *_other_versions(result),
        ),
        advice=tuple(advise(result)),
        profile=result.profile,
        place=result.place,
        accept=_accept(result),
        changed=tuple(of_rows(result.changes, timed=True)),
        parts=parts,
        closed=result.endpoint.closed if result.endpoint else None,
        load=load,
    )


def _accept(result: Result) -> str:
    """Return the command that accepts the figures, empty without one: of a test over a budget nothing is written."""
    recorded = result.recorded
    if recorded is None or not (recorded.broken or recorded.missing) or "fail" in result.verdicts:
        return ""
    return recorded.command


def _headline(
    result: Result, outer_rows: Sequence[Row], first: Row | None, parts: Sequence[Row], load: LoadView | None
) -> str:
    """Sum up the failure: a budget of the request alone comes before those under load."""
    over = any(row.exceeded or row.over_limits for row in (*outer_rows, *parts))
    if load is not None and load.headline and not over:
        return load.headline
    return headline(outer_rows, first, result.uncountable, result.recorded, parts)


def _other_versions(result: Result) -> Iterator[str]:
    """Say what differs from what the limits were recorded with, where this may explain the verdict."""
    recorded = result.recorded
    if recorded is not None and recorded.changed and recorded.verdict != "pass":
        yield tagged(f"The limits were recorded with {'; '.join(recorded.changed)}.", "limits-changed")


def _us(row: Row) -> float:
    return row.figures["us"].value if "us" in row.figures else 0.0


def _first(rows: Sequence[Row]) -> Row | None:
    """Return the row to look at first, None if none was timed and all budgets are kept."""
    known = [row for row in rows if "us" in row.figures or GRAVITY[row.verdict]]
    return max(known, key=_badness, default=None)


def _badness(row: Row) -> tuple[int, float, float]:
    return GRAVITY[row.verdict], row.badness, _us(row)


def _residue(result: Result) -> str | None:
    if result.residue_us is None or result.total_us is None:
        return None
    us, total = result.residue_us, result.total_us.estimate
    share = f" ({us / total:+.1%})" if total and math.isfinite(us) else ""
    return f"{figure(us)} µs{share}"
