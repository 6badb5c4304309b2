"""How far the times of a measurement can be trusted, one sentence each. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from ..errors import tagged
from ..model.estimate import Estimate, Microseconds, independent_sum
from ..model.stack import EntryIndex
from .estimates import SHARED_SHARE
from .rows import told_by
from .verdicts import Look

# Outside of all layers an app object takes a few microseconds. This much, and this share of the request, is done by
# what was put round it.
OUTSIDE_SHARE, OUTSIDE_US = 0.25, 50.0
# Rows that do not add up to the total are worth a note from this share and this much on, where their intervals do not
# explain it: on the apps that the method was tried on they add up within 1 to 6 per cent.
UNEXPLAINED_SHARE, UNEXPLAINED_US = 0.06, 2.0
# An interval this wide says little: a budget of 1.3 times the figure, as the docs advise, lies within it. Of a few
# microseconds nobody decides on less than this.
WIDE_SHARE, WIDE_US = 0.3, 5.0
# Above an endpoint that waits as long as this, layers cost more than above one that answers at once. A thread that it
# waits for takes some 60 µs, and doubles the rows.
COLD_WAIT_US = 40.0
# This many figures are named in a note; of more it says how many.
MOST_NAMED = 3


def remarks(
    look: Look, endpoint: EntryIndex | None, refused: Mapping[EntryIndex, str], *, stopped: bool
) -> Iterator[str]:
    """Say what to know of the figures of the last look.

    `endpoint` is its entry, None where no row has it. `refused` says by entry why a layer could not be bypassed, and
    `stopped` that sampling stopped for the sake of time, before the figures were precise.
    """
    slowdowns = _slowdowns(look, endpoint)
    if max(slowdowns.values()) > 1:
        slower = f"The machine ran {max(slowdowns.values()):.2f} times slower than at its best{_while_read(slowdowns)}."
        yield tagged(slower, "slow-machine")
    if stopped:
        yield tagged(
            "Sampling stopped as soon as every budget was known to be kept. For precise figures run with -v, or"
            " write a report.",
            "stopped-early",
        )
    else:
        yield from _wide(_figures(look, endpoint))
    yield from _unexplained(_figures(look, endpoint))
    yield from _cold(look, endpoint)
    if _much_outside(look):
        yield tagged(
            "(outside) is what stands round the app object itself, as Sentry and OpenTelemetry may: no layer, and"
            " in no budget but total_us.",
            "outside",
        )
    for row in look.rows:
        why = None if row.entry is None else refused.get(row.entry)
        if why is not None:
            refusal = f"{row.layer.name} could not be bypassed ({why}); its row may be {SHARED_SHARE:.0%} off."
            yield tagged(refusal, "bypass")


def slowest(look: Look, endpoint: EntryIndex | None) -> float:
    """Return how many times slower than at its best the machine ran, at the slowest of the figures that are shown."""
    return max(_slowdowns(look, endpoint).values())


def _figures(look: Look, endpoint: EntryIndex | None) -> dict[str, Estimate]:
    """The figures that are shown, by the name of the row; the total last."""
    found = look.estimates
    figures = {"(outside)": found.outside} if found.probed else {}
    figures |= {row.layer.name: row.us for row in look.rows if row.us is not None}
    if endpoint is not None and endpoint in found.split:
        figures["(endpoint)"] = found.split[endpoint]
    return figures | {"(total)": found.whole}


def _slowdowns(look: Look, endpoint: EntryIndex | None) -> dict[str, float]:
    """How much slower than at its best the machine ran for each figure that is shown; at least 1."""
    found = look.estimates.slowdowns
    slowdowns = {"(outside)": found.outside} if look.estimates.probed else {}
    slowdowns |= {row.layer.name: row.slowdown for row in look.rows if row.us is not None}
    if endpoint is not None and endpoint in found.split:
        slowdowns["(endpoint)"] = found.split[endpoint]
    return slowdowns | {"(total)": found.whole}


def _while_read(slowdowns: Mapping[str, float]) -> str:
    """Which figures were read at a slow time, where only some of them were: they do not add up with the others."""
    slow = [name for name, slowdown in slowdowns.items() if slowdown > 1]
    if len(slow) == len(slowdowns):
        return ""
    named = ", ".join(slow) if len(slow) <= MOST_NAMED else f"{len(slow)} of {len(slowdowns)} figures"
    return f" while it read {named}, and not for the rest"


def _wide(figures: Mapping[str, Estimate]) -> Iterator[str]:
    """Which figures are known so badly that they say little."""
    wide = [
        name
        for name, us in figures.items()
        if math.isfinite(us.half_width) and us.half_width > max(WIDE_US, WIDE_SHARE * abs(us.estimate))
    ]
    if wide:
        named = ", ".join(wide) if len(wide) <= MOST_NAMED else f"{len(wide)} figures"
        yield tagged(
            f"The intervals of {named} are too wide to set a budget by, {WIDE_SHARE:.0%} and more to one side."
            " Measure again when the machine is less busy; if the app waits for a database or a network, with an"
            " async stand-in for it.",
            "wide-interval",
        )


def _unexplained(figures: Mapping[str, Estimate]) -> Iterator[str]:
    """By how much rows and total do not fit together, where that is more than their intervals explain."""
    *rows, total = figures.values()
    residue = independent_sum(*rows, -total)
    if not math.isfinite(residue.half_width) or residue.low <= 0 <= residue.high:
        return
    if abs(residue.estimate) > max(UNEXPLAINED_US, UNEXPLAINED_SHARE * total.estimate):
        more = "more" if residue.estimate > 0 else "less"
        yield tagged(
            f"The rows add up to {abs(residue.estimate) / total.estimate:.0%} {more} than the total, which their"
            " intervals do not explain: some row, or the total, is wrong by up to"
            f" {abs(residue.estimate):.0f} µs. Measure again when the machine is less busy.",
            "unattributed",
        )


def _cold(look: Look, endpoint: EntryIndex | None) -> Iterator[str]:
    """That rows above an endpoint that waits are not those above another one."""
    waited_us = 0.0 if endpoint is None else look.estimates.suspended.get(endpoint, 0.0)
    if waited_us > COLD_WAIT_US and any(row.us is not None for row in look.rows):
        yield tagged(
            f"The endpoint waits, for {_duration(waited_us)}. Caches are cold when it goes on, so the same layer"
            " costs two to four times what it costs above an endpoint that answers at once. The rows are right for"
            " this request; compare them, and set budgets, for one request only.",
            "cold-caches",
        )


def _much_outside(look: Look) -> bool:
    if any(told_by(row, look.rows) is None for row in look.rows):
        return False  # a layer is measured with it
    return look.estimates.outside.low > max(OUTSIDE_US, OUTSIDE_SHARE * look.estimates.whole.estimate)


def _duration(us: Microseconds) -> str:
    return f"{us / 1000:.3g} ms" if us >= 1000 else f"{us:.0f} µs"
