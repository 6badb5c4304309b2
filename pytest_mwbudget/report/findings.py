"""Sentences on a result: exceeded budgets, undecided budgets, the next step. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..errors import tagged
from ..model.quantities import COUNTED, TRAITS, Quantity
from ..model.remedies import BudgetPlace
from ..model.results import Recorded, RecordedLimit, Verdict, worst
from ..model.stack import ENDPOINT, TOTAL
from .document import Paragraph
from .table import Row
from .text import amount, bound, figure, listed, whole

IN_FILE = "in the table of the request in the file of requests"
ACCEPT = "Next: if the cost is intended, this writes the figures into the file of limits:"
# The most names in a list.
MOST_KINDS = 10


@dataclass(frozen=True, slots=True)
class Finding:
    """A sentence on a row, with a list below it. `verdict` is None if it adds a detail to the previous finding."""

    subject: str
    text: str
    verdict: Verdict | None = None
    items: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """Subject and text."""
        return f"{self.subject} {self.text}".lstrip()

    @property
    def paragraph(self) -> Paragraph:
        """The sentence with the list below it."""
        return Paragraph(self.sentence, below=self.items)


def exceeded(row: Row) -> Iterator[Finding]:
    """Say by how much a row exceeds its budgets and its recorded limits and, for counts, which types it creates."""
    for quantity in row.exceeded:
        measured = row.figures.get(quantity)
        # The types of objects have a sentence of their own.
        kinds = [f"{n} × {kind}" for kind, n in measured.kinds.items()] if measured and quantity != "objects" else []
        yield Finding(_subject(row), _excess(row, quantity), "fail", tuple(kinds[:MOST_KINDS]))
    if row.over_limits:
        excesses = "; ".join(map(_over_limit, row.over_limits))
        limits = "limit" if len(row.over_limits) == 1 else "limits"
        yield Finding(_subject(row), f"is over its recorded {limits}: {excesses}.", "fail")
    # Of a row that is no layer, another row's sentence names them.
    over = [limit for limit in row.over_limits if not row.is_frame or row.name == ENDPOINT]
    new = next((limit.new for limit in over if limit.new), None)
    if new:
        more = [f"{number} {kind}" for kind, number in sorted(new.items(), key=lambda pair: -pair[1])]
        yield Finding("", f"New since the limit was kept: {', '.join(more[:MOST_KINDS])}.")
    elif set(COUNTED).intersection([*row.exceeded, *(limit.quantity for limit in over)]):
        yield from _created(row)


def _subject(row: Row) -> str:
    return "The whole request" if row.name == TOTAL else row.name


def _over_limit(limit: RecordedLimit) -> str:
    assert limit.value is not None
    most, more = (_short(limit.quantity, number) for number in (limit.limit, limit.value - limit.limit))
    return f"{amount(limit.quantity, limit.value)}, limit {most} (+{more})"


def _short(quantity: Quantity, value: float) -> str:
    """Format a number, with its unit only if it is a time or a size."""
    return whole(value) if TRAITS[quantity].format == "number" else amount(quantity, value)


def _excess(row: Row, quantity: Quantity) -> str:
    measured, most, traits = row.figures.get(quantity), row.judged[quantity].bound, TRAITS[quantity]
    if measured is not None and not measured.column.counted:
        excess, low, high = (
            figure(None if end is None else end - most) for end in (measured.value, measured.low, measured.high)
        )
        taken = f"{figure(measured.value)} µs per {traits.per}, its budget is {bound(most)} µs"
        return f"{traits.verb} {taken}: {excess} µs too much ({low} to {high}).{_meant(most, measured.value)}"
    varies = ""
    if measured is not None and measured.varies and measured.low is not None and measured.high is not None:
        varies = f" ({amount(quantity, measured.low)} to {amount(quantity, measured.high)})"
    return f"{traits.verb} {row.amount_of(quantity)} per request{varies}, its budget is {amount(quantity, most)}."


def _meant(most_us: float, us: float | None) -> str:
    """Ask whether a budget of less than a microsecond, which the layer keeps in milliseconds, was meant so."""
    if most_us >= 1 or us is None or us > most_us * 1000:
        return ""
    return (
        f" Budgets are in microseconds: if {bound(most_us)} ms were meant, this is a budget of {bound(most_us * 1000)}."
    )


def _created(row: Row) -> Iterator[Finding]:
    """Name the most frequent types, and the types that no other row creates."""
    objects, own = row.figures.get("objects"), row.own_types
    if objects is not None and objects.kinds:
        frequent = [f"{number} {kind}" for kind, number in objects.kinds.items()]
        yield Finding("", f"Most objects are {', '.join(frequent[:MOST_KINDS])}.")
    if own:
        yield Finding("", f"Types that only it creates: {listed(own, MOST_KINDS)}.")


def undecided(rows: Sequence[Row]) -> Iterator[Finding]:
    """Say which budgets are undecided and why: a sentence for each quantity and reason, and for the whole request."""
    by_reason: dict[tuple[bool, Quantity, str | None], list[str]] = {}
    for row in rows:
        for quantity, judged in row.judged.items():
            if judged.verdict == "undecided":
                by_reason.setdefault((row.is_frame, quantity, judged.reason), []).append(_subject(row))
    for (_, quantity, reason), names in by_reason.items():
        listed = " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
        subject = listed if quantity == "us" else f"{quantity} of {listed}"
        yield Finding(subject, f"{'are' if len(names) > 1 else 'is'} undecided: {reason}.", "undecided")
    yield from _undecided_limits(rows)


def mostly_c(rows: Sequence[Row], slowdown: float) -> Iterator[str]:
    """Name the rows whose work the counts of executed code do not see."""
    rows_in_c = [row for row in rows if row.mostly_c(slowdown)]
    if rows_in_c:
        listed = ", ".join(
            f"{row.name} ({row.figures['cpu_us'].text} µs, {amount('bytecodes', row.figures['bytecodes'].value)})"
            for row in rows_in_c
        )
        yield tagged(f"Mostly C code, which bytecodes, calls and py_calls do not see: {listed}.", "in-c")


def _undecided_limits(rows: Sequence[Row]) -> Iterator[Finding]:
    """Say which recorded limits are undecided and why: a sentence for each reason."""
    by_reason: dict[str | None, list[str]] = {}
    for row in rows:
        for quantity, limit in row.limits.items():
            if limit.verdict == "undecided":
                by_reason.setdefault(limit.reason, []).append(f"{quantity} of {_subject(row)}")
    for reason, names in by_reason.items():
        yield Finding(", ".join(names), f"cannot be judged by the recorded limits: {reason}.", "undecided")


def missing(recorded: Recorded | None) -> Iterator[Finding]:
    """Say which recorded limits are missing."""
    if recorded is not None and recorded.missing is not None:
        yield Finding("", recorded.missing, "fail" if recorded.required else "undecided")


def headline(
    rows: Sequence[Row],
    first: Row | None,
    uncountable: Sequence[Quantity],
    recorded: Recorded | None = None,
    parts: Sequence[Row] = (),
) -> str:
    """Sum up the failure: the greatest excess of the layer to look at first, and how many layers fail.

    A budget that is exceeded comes before a recorded limit. `parts` are the rows inside the endpoint.
    """
    if first is not None and first.exceeded:
        judged = [
            worst(budget.verdict for budget in row.judged.values()) for row in rows if not row.is_frame and row.judged
        ]
        return f"{_worst(first, first.name)} ({judged.count('fail')} of {len(judged)} layers over budget)"
    others = [row for row in (*parts, *rows) if row.exceeded]
    if others:
        row = max(others, key=lambda each_row: (each_row is not rows[-1], each_row.badness))
        return _worst(row, "total" if row is rows[-1] else row.name)
    over = [row for row in rows if row.over_limits]
    if over:
        row = first if first is not None and first.over_limits else max(over, key=lambda each_row: each_row.badness)
        limit = max(row.over_limits, key=lambda each_limit: (each_limit.value or 0) / max(each_limit.limit, 0.5))
        number, most = (amount(limit.quantity, each_number) for each_number in (limit.value or 0, limit.limit))
        rows_over = f"{len(over)} of {len(rows)} rows over recorded limits"
        return f"{row.name} {number}, recorded limit {most} ({rows_over})"
    if any(finding.verdict == "fail" for finding in missing(recorded)):
        return "no recorded limit"
    return f"{' and '.join(uncountable)} cannot be counted here" if uncountable else "undecided"


def _worst(row: Row, name: str) -> str:
    quantity = max(row.exceeded, key=row.times_its_budget)
    number, budget = row.amount_of(quantity), amount(quantity, row.judged[quantity].bound)
    traits = TRAITS[quantity]
    per = "" if traits.per == "request" else f" per {traits.per}"
    return f"{name} {traits.prefix}{number}{per}, budget {budget}"


# ---- what to do next ---------------------------------------------------------------------------------------------


def next_step(row: Row, place: BudgetPlace, *, advised: bool, profiled: bool) -> str:
    """Suggest the next step for a row over its budget, and a budget in `place` that the row would meet."""
    if row.is_frame:
        key = f"{row.name.strip('()')}_us"
        intended = f"if the cost is intended, set {_set(key, _enough(row, 'us'), place)}."
        if row.name != TOTAL:
            return f"Next: {intended[0].upper()}{intended[1:]}"
        return f"Next: begin with the costliest row; {intended}"
    enough = {quantity: _enough(row, quantity) for quantity in row.exceeded}
    key = "endpoint" if row.is_part else "layers"
    intended = f"if this is intended, set {_set(key, _budgets(row.name, enough, place), place)}."
    if advised:
        return f"Next: the advice above; or, {intended}"
    if profiled:
        place_of = "the endpoint" if row.is_part else row.name
        return f"Next: look for {place_of} in the flamegraph; {intended}"
    target = f"{row.name} of the endpoint" if row.kind == "part" else row.layer.qualname
    return f"Next: profile {target} on this request; {intended}"


def next_step_uncountable(quantities: Sequence[Quantity], place: BudgetPlace) -> str:
    """Suggest the next step for budgets of quantities that cannot be counted here."""
    counted = f"where {' and '.join(quantities)} can be counted"
    run = f"Next: run this test {counted}, or skip it here; if the budget is not to be enforced here,"
    if place == "marker":
        without = ", ".join(f"{quantity}=None" for quantity in quantities)
        return f"{run} set undecided='warn', or {without} in the marker."
    warn = "'warn'" if place == "file" else "warn"
    return f"{run} set {_set('undecided', warn, place)}, or remove the budget."


def _set(key: str, value: str, place: BudgetPlace) -> str:
    """Return how to write a setting in its place."""
    if place == "marker":
        return f"{key}={value} in the marker"
    if place == "file":
        return f"{key} = {value} {IN_FILE}"
    return f"mw_budget_{key} = {value} in the configuration"


def _budgets(name: str, enough: Mapping[Quantity, str], place: BudgetPlace) -> str:
    """Return how to write the budgets of a layer or a part in their place."""
    time = enough.get("us") if len(enough) == 1 else None
    if place == "marker":
        budgets = time or f"{{{', '.join(f'{quantity!r}: {most}' for quantity, most in enough.items())}}}"
        return f"{{{name!r}: {budgets}}}"
    if place == "file":
        budgets = time or f"{{ {', '.join(f'{quantity} = {most}' for quantity, most in enough.items())} }}"
        return f"{{ {name!r} = {budgets} }}"
    return f"{name} = {time or ', '.join(f'{quantity}: {most}' for quantity, most in enough.items())}"


def _enough(row: Row, quantity: Quantity) -> str:
    """Return a budget that the row meets: a time plus 30 %, rounded up; for a count, its maximum."""
    measured = row.figure_of(quantity)
    assert measured is not None
    if measured.column.counted:
        return f"{measured.high:.0f}"
    high = measured.value * 1.3
    step = 10 ** max(0, math.floor(math.log10(max(high, 1.0))) - 1)
    return bound(math.ceil(high / step) * step)
