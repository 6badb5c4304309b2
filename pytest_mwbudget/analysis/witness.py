"""Judge a layer by two witnesses: by its row, and by what leaving it out saves in whole requests. Pure; no clock."""

from __future__ import annotations

from dataclasses import replace

from ..errors import tagged
from ..model.estimate import Estimate
from ..model.judged import Judged
from ..model.quantities import COUNTED, TRAITS, Quantity
from ..model.results import Counts, ResultRow
from .judge import fails_above

# A saving and a row may differ by this much and this share: a layer leaves cold caches to others.
WITNESS_US, WITNESS_SHARE = 3.0, 0.15
# To create an object takes at least this long. Fewer objects than in OBJECTS_US are not looked at.
OBJECT_US, OBJECTS_US = 0.01, 2.0


def in_doubt(report: ResultRow, counts: Counts | None) -> bool:
    """Return whether a verdict on the time of a layer should not stand on its row alone.

    A failure never does. Nor does a pass of a layer that spawns tasks, or that creates more objects than its row has
    time for: another row may have been charged with the work.
    """
    if report.us is None:
        return False
    verdicts = {judged.verdict for quantity, judged in report.judged.items() if quantity not in COUNTED}
    if "fail" in verdicts:
        return True
    if "us" not in report.judged or "pass" not in verdicts or counts is None:
        return False
    objects = counts.objects.count if counts.objects else 0
    return report.layer.runs_task or counts.tasks.count > 0 or objects * OBJECT_US > max(OBJECTS_US, report.us.high)


def judged_by_both(report: ResultRow, saved: Estimate) -> ResultRow:
    """Return a layer with verdicts by its row and by what leaving it out saves; undecided where the two disagree.

    A failure stands if both are over the budget.
    """
    own, judged = report.us, dict(report.judged)
    if own is None or not contradicts(saved, own):
        return report
    for quantity, by_row in report.judged.items():
        if quantity == "us" and by_row.verdict == "pass" and saved.low > fails_above(by_row.bound, 1.0):
            judged[quantity] = Judged(by_row.bound, "undecided", _contradiction(saved, own))
        elif quantity not in COUNTED:
            judged[quantity] = by_row.unless(why_contradicted(report, quantity, by_row.bound, saved))
    return replace(report, judged=judged)


def contradicts(saved: Estimate, own: Estimate) -> bool:
    """Return whether a saving and a row differ by more than both intervals and the known error explain."""
    slack = WITNESS_US + WITNESS_SHARE * max(abs(own.estimate), abs(saved.estimate))
    return saved.low > own.high + slack or saved.high < own.low - slack


def why_contradicted(report: ResultRow, quantity: Quantity, bound: float, saved: Estimate | None) -> str | None:
    """Return why a failure does not stand by what leaving a layer out saves, None if it stands."""
    own = report.us
    if own is None or saved is None or not contradicts(saved, own):
        return None
    whole = TRAITS[quantity].source in ("split", "occupation")
    return None if whole and saved.low > bound else _contradiction(saved, own)


def _contradiction(saved: Estimate, own: Estimate) -> str:
    """Say how a saving and a row differ."""
    return tagged(
        f"by its row the layer takes {own.estimate:.1f} µs ({own.low:.1f} to {own.high:.1f}), but a whole request"
        f" without it is {saved.estimate:.1f} µs shorter ({saved.low:.1f} to {saved.high:.1f}): the app does something"
        " else without the layer, or a row is charged with the work of another layer; use a budget of counts for this"
        " layer",
        "contradicted",
    )
