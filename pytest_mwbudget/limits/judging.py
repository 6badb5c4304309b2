"""Judge a result by the recorded limits of its request."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from ..analysis.verdicts import judge, judge_count
from ..analysis.witness import contradiction, contradicts, overruled
from ..errors import tagged
from ..model.estimate import Estimate
from ..model.quantities import COUNTED, Quantity
from ..model.results import Count, Range, Recorded, RecordedLimit, Result, worst
from ..model.stack import TOTAL
from .costs import Figure, Figures, counts_of, figures, range_of
from .file import Limit, Place
from .sections import Surroundings, python_of


def judged(
    result: Result, limits: Mapping[Place, Limit], processor: str, crowded: str | None = None
) -> Iterator[RecordedLimit]:
    """Judge the figures of a result that have a limit, in the order of the rows.

    Only times of this `processor` are judged. `crowded` is the reason why no failure of a time counts. A layer that the
    request does not have, or did not enter, is not judged.
    """
    known, entered = figures(result), {report.name: report.layer.entered for report in result.layers}
    merged = {report.layer.merged_with for report in result.layers}
    for place, limit in limits.items():
        row, quantity = place.row, place.quantity
        if place.processor not in ("", processor) or not entered.get(row, row in known):
            continue
        why = _why_not(result, row, quantity, known.get(row, {}), merged, limits)
        if why is not None:
            yield RecordedLimit(row, quantity, None, limit.most, "undecided", why)
            continue
        if (judged_by := range_of(result, row, quantity)) is not None:
            yield _count_judged(place, known.get(row, {}).get(quantity), judged_by, limit)
        else:
            yield _time_judged(place, known[row][quantity], limit, result, crowded)


def _why_not(
    result: Result,
    row: str,
    quantity: Quantity,
    known: Figures,
    merged: Collection[str | None],
    limits: Mapping[Place, Limit],
) -> str | None:
    """Return why a limit cannot be judged, None if it can."""
    layer = next((report for report in result.layers if report.name == row), None)
    if layer is not None and layer.layer.merged_with is not None:
        return tagged(f"it is measured together with {layer.layer.merged_with}", "merged")
    inside = [report.name for report in result.layers if report.layer.merged_with == row]
    if row in merged and any(place.row in inside for place in limits):
        return tagged(f"{' and '.join(inside)} is measured together with it, and was not when the limit was", "merged")
    if quantity in known or range_of(result, row, quantity) is not None:
        return None
    if result.disturbed is not None:
        return tagged(result.disturbed, "active-tool")
    if quantity not in COUNTED:
        return tagged("its time is not known", "too-few-requests")
    own = counts_of(result, row)
    why = (own.why.get(quantity) if own else None) or result.uncounted.get(quantity)
    return tagged(f"{quantity} cannot be counted here: {why}" if why else f"{quantity} were not counted", "uncountable")


def _count_judged(place: Place, figure: Figure | None, judged_by: Range, limit: Limit) -> RecordedLimit:
    """Judge a count by its range. Where no number is typical, the lowest one is shown."""
    judgement, typical = judge_count(judged_by, limit.most), figure.count if isinstance(figure, Count) else judged_by[0]
    return RecordedLimit(place.row, place.quantity, typical, limit.most, judgement.verdict, judgement.reason)


def _time_judged(place: Place, figure: Figure, limit: Limit, result: Result, crowded: str | None) -> RecordedLimit:
    limit_us = 0.0 if place.row == TOTAL or result.floor_us is None else result.floor_us
    assert isinstance(figure, Estimate)
    judgement = judge(figure, limit.most, limit_us=limit_us, slowdown=result.slowdown or 1.0)
    verdict, reason = judgement.verdict, judgement.reason
    if judgement.time_tells:
        reason = tagged(f"{judgement.reason}", "near-budget")
    if verdict == "fail" and crowded:
        verdict, reason = "undecided", crowded
    why = _contradicted(result, place, limit.most) if verdict == "fail" else None
    if why is not None:
        verdict, reason = "undecided", why
    return RecordedLimit(place.row, place.quantity, figure.estimate, limit.most, verdict, reason)


def _contradicted(result: Result, place: Place, most: float) -> str | None:
    """Return why a failure does not count by what leaving the layer out saves, None if it counts."""
    report = next((layer for layer in result.layers if layer.name == place.row), None)
    saved = report.saves.us if report and report.saves else None
    if report is None or report.us is None or saved is None or not contradicts(saved, report.us):
        return None
    return contradiction(saved, report.us) if overruled(place.quantity, most, saved) else None


def with_recorded(result: Result, recorded: Recorded) -> Result:
    """Return the result with what came of its limits, and with the worst verdict on budgets and limits."""
    verdicts = (recorded.verdict, *result.verdicts)
    return replace(result, recorded=recorded, verdict=worst(verdict for verdict in verdicts if verdict is not None))


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
        other = range_of(again, limit.row, limit.quantity) if is_broken_count(limit) else None
        if other is not None and judge_count(other, limit.limit).verdict == "pass":
            limits.append(replace(limit, verdict="pass", reason=None))
            kept.append(f"{limit.quantity} of {limit.row} ({limit.value:g} here, {other[1]} there)")
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
    counts = [quantity for quantity in recorded if quantity in COUNTED]
    return [
        row
        for row, row_figures in figures(result).items()
        if row not in known and any(q in row_figures for q in counts)
    ]


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
