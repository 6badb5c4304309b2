"""Judge a result by the recorded limits of its request."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from ..analysis.judge import QUIET, Conditions, judge
from ..analysis.witness import why_contradicted
from ..errors import tagged
from ..model.quantities import COUNTED, Quantity
from ..model.results import Recorded, RecordedLimit, Result, ResultRow
from ..model.stack import TOTAL
from .file import Limit, Place
from .sections import Surroundings, python_of


def judged(
    result: Result, limits: Mapping[Place, Limit], processor: str, crowded: str | None = None
) -> Iterator[RecordedLimit]:
    """Judge the figures of a result that have a limit, in the order of the limits.

    Only times of this `processor` are judged. `crowded` is the reason why no failure of a time counts. A row that the
    request does not have, or did not enter, is not judged.
    """
    rows = {row.name: row for row in result.rows() if row.layer.entered and (not row.is_frame or _has_figure(row))}
    for place, limit in limits.items():
        row, quantity = rows.get(place.row), place.quantity
        if row is None or place.processor not in ("", processor):
            continue
        figure = row.figure(quantity)
        if figure is not None and not figure.bounded:
            figure = None
        why = _why_together(row, result, limits) or (_why_unknown(row, quantity, result) if figure is None else None)
        if quantity not in COUNTED:
            why = why or row.unsure
        if figure is None or why is not None:
            yield RecordedLimit(row.name, quantity, None, limit.most, "undecided", why)
            continue
        verdict = judge(quantity, figure, limit.most, _conditions(row, quantity, result))
        if quantity not in COUNTED:
            saved = row.saves.us if row.saves else None
            verdict = verdict.unless(crowded).unless(why_contradicted(row, quantity, limit.most, saved))
        yield RecordedLimit(row.name, quantity, figure.estimate, limit.most, verdict.verdict, verdict.reason)


def _has_figure(row: ResultRow) -> bool:
    """Whether any figure of a row is known, as it has its place in the table then."""
    return bool(row.counted) or any(us.bounded for us in row.estimates.values())


def _conditions(row: ResultRow, quantity: Quantity, result: Result) -> Conditions:
    """Return the conditions of a figure. The whole request has no probes and needs no detection limit."""
    if quantity in COUNTED:
        return QUIET
    limit_us = 0.0 if row.name == TOTAL or result.floor_us is None else result.floor_us
    return Conditions(slowdown=result.slowdown or 1.0, waited=row.waited_us, limit=limit_us)


def _why_together(row: ResultRow, result: Result, limits: Collection[Place]) -> str | None:
    """Return why a row has no figures of its own, or of itself alone; None if it has."""
    if row.layer.merged_with is not None:
        return tagged(f"it is measured together with {row.layer.merged_with}", "merged")
    inside = [layer.name for layer in result.layers if layer.layer.merged_with == row.name]
    if not any(place.row in inside for place in limits):
        return None
    return tagged(f"{' and '.join(inside)} is measured together with it, and was not when the limit was", "merged")


def _why_unknown(row: ResultRow, quantity: Quantity, result: Result) -> str:
    """Return why a figure is not known."""
    if result.disturbed is not None:
        return tagged(result.disturbed, "active-tool")
    if quantity not in COUNTED:
        return tagged("its time is not known", "too-few-requests")
    why = (row.counts.why.get(quantity) if row.counts else None) or result.uncounted.get(quantity)
    return tagged(f"{quantity} cannot be counted here: {why}" if why else f"{quantity} were not counted", "uncountable")


def with_recorded(result: Result, recorded: Recorded) -> Result:
    """Return the result with what came of its limits, and with the worst verdict on budgets and limits."""
    return replace(result, recorded=recorded).with_verdict()


def with_undecided(result: Result, why: str) -> Result:
    """Return the result with each of its limits undecided."""
    assert result.recorded is not None
    limits = (replace(limit, value=None, verdict="undecided", reason=why) for limit in result.recorded.limits)
    return with_recorded(result, replace(result.recorded, limits=tuple(limits)))


def is_broken_count(limit: RecordedLimit) -> bool:
    """Whether the limit is of a count that is known and not within it in most requests."""
    return limit.verdict != "pass" and limit.quantity in COUNTED and limit.value is not None


def judged_in_another(result: Result, again: Result, seed: int) -> Result:
    """Judge broken counts by those of the same request in another process, which had a hash seed.

    A count that is within its limit there differs between processes. It passes, and a note says so.
    """
    assert result.recorded is not None
    limits, kept = list[RecordedLimit](), list[str]()
    for limit in result.recorded.limits:
        other = again.figure(limit.row, limit.quantity) if is_broken_count(limit) else None
        if other is not None and judge(limit.quantity, other, limit.limit).verdict == "pass":
            limits.append(replace(limit, verdict="pass", reason=None))
            kept.append(f"{limit.quantity} of {limit.row} ({limit.value:g} here, {other.high} there)")
        else:
            limits.append(limit)
    judged = with_recorded(result, replace(result.recorded, limits=tuple(limits)))
    if not kept:
        return judged
    there = f"a process of the test alone, with PYTHONHASHSEED={seed}"
    text = f"Counts differ between processes, and are within their limits in {there}: {', '.join(kept)}."
    return replace(judged, notes=(*result.notes, tagged(text, "varying-process")))


def without_limits(result: Result, limits: Mapping[Place, Limit], recorded: Collection[Quantity]) -> list[str]:
    """Return the rows that have a count to record and no limit at all."""
    known = {place.row for place in limits}
    counts = {quantity for quantity in recorded if quantity in COUNTED}
    return [row.name for row in result.rows() if row.name not in known and counts & row.counted.keys()]


def changed(
    section: str, packages: Mapping[str, str], here: Surroundings, installed: Mapping[str, str]
) -> Iterator[str]:
    """Say what differs from what the limits of a section were recorded with."""
    recorded, own = python_of(section), python_of(here.section)
    if recorded != own:
        yield f"{recorded}, here {own}"
    for name in sorted(packages.keys() & installed.keys()):
        if packages[name] != installed[name]:
            yield f"{name} {packages[name]}, here {installed[name]}"
