"""What `mwbudget versus` found, as a document. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from ..comparison.outcome import Comparison
from ..model.changes import CERTAIN, Change, within
from ..model.estimate import Estimate
from ..model.judged import Verdict
from ..model.request_keys import RequestKey
from .change_text import summed
from .document import Block, Bullets, Cell, Code, Column, Paragraph, Section, Strong, Table, TableRow, Tone, cells
from .text import figure, formatted, listed

# With more requests only the rows are shown in which something changed or a limit is not kept.
FEW_REQUESTS = 3
# Names of rows are not cut below this width.
LEAST_NAME = 30
# The most undecided limits that have a sentence each.
MOST = 5


@dataclass(frozen=True, slots=True)
class Versus:
    """A finished comparison of two sides with these `names`.

    `heading` says what was compared, and `remarks` what the figures do not cover.
    """

    heading: Sequence[str]
    comparison: Comparison
    remarks: Sequence[str] = ()
    names: tuple[str, str] = ("base", "HEAD")

    @property
    def times(self) -> list[Change]:
        """The changes of times."""
        return [change for _, change in self.comparison.changes if not change.traits.counted]

    @property
    def counts(self) -> list[Change]:
        """The changes of counts."""
        return [change for _, change in self.comparison.changes if change.traits.counted and change.reason is None]

    @property
    def failures(self) -> list[tuple[RequestKey, Change]]:
        """The changes that are larger than allowed."""
        return self.comparison.judged("fail")

    @property
    def undecided(self) -> list[tuple[RequestKey, Change]]:
        """The changes of which it is not known whether they are allowed."""
        return [(key, change) for key, change in self.comparison.judged("undecided") if change.reason is None]

    @property
    def unknown(self) -> list[tuple[RequestKey, Change]]:
        """The figures that are limited and were not measured on both sides."""
        return [(key, change) for key, change in self.comparison.judged("undecided") if change.reason is not None]

    @property
    def unmeasured(self) -> list[str]:
        """The quantities that are limited and of which there is no figure that has a limit."""
        return [quantity for (quantity, _), number in self.comparison.unjudged().items() if not number]

    @property
    def certain(self) -> bool:
        """Whether every limit is certainly kept or broken."""
        return not self.comparison.judged("undecided") and not self.unmeasured

    def requests(self) -> Iterator[tuple[RequestKey, list[Change], list[Change]]]:
        """Yield each request with the changes to show: those of times, then those of counts."""
        few = len(self.comparison.requests) <= FEW_REQUESTS
        for key, changes in self.comparison.requests:
            times = [change for change in changes if not change.traits.counted and (few or _changed(change))]
            yield key, times, [change for change in changes if change.traits.counted and _changed(change)]

    def sentences(self) -> Iterator[tuple[Verdict | None, str]]:
        """Say which limits are broken or undecided, each with the verdict, and how many rows changed."""
        for key, change in (*self.failures, *self.undecided[:MOST]):
            assert change.most is not None
            text = in_words(change).removeprefix("unclear: ")
            allowed = f"--fail allows {_number(change, change.most)} more"
            yield change.verdict, f"{change.verdict}: {_name(change)} in {key.request}: {text}; {allowed}"
        if len(self.undecided) > MOST:
            yield "undecided", f"undecided: {len(self.undecided) - MOST} more limits"
        for key, change in self.unknown[:MOST]:
            unknown = "not counted, so --fail cannot limit them" if change.traits.counted else "not known on both sides"
            why = f"{change.quantity} {unknown}: {change.reason}"
            yield "undecided", f"undecided: {change.row} in {key.request}: {why}"
        if len(self.unknown) > MOST:
            yield "undecided", f"undecided: {len(self.unknown) - MOST} more limits on figures that are not known"
        for quantity in self.unmeasured:
            yield "undecided", f"undecided: {quantity}: no figure was measured that --fail could limit"
        if self.times:
            yield None, f"of {len(self.times)} times, {summed(self.times)}"
        changed = sum(_changed(count) for count in self.counts)
        yield None, f"of {len(self.counts)} counts, {changed or 'none'} changed"

    def one_sided(self) -> Iterator[str]:
        """Say which requests only one side has, and that no limit is of anything that was measured."""
        for name, keys in zip(self.names, (self.comparison.gone, self.comparison.new), strict=True):
            if keys:
                requests = [f"{key.request} ({key.nodeid})" for key in keys]
                yield f"measured with {name} only: {listed(requests)}"
        if self.comparison.allowed and all(change.most is None for _, change in self.comparison.changes):
            yield "no limit of --fail applies to a measured figure; limits apply to layers, total_us to requests"

    def ending(self) -> str | None:
        """Say how much is undecided, and what decides it; None if nothing is."""
        limits = len(self.comparison.judged("undecided")) + len(self.unmeasured)
        if limits:
            are = "1 limit is" if limits == 1 else f"{limits} limits are"
            decides = "a longer --max-time decides more" if self.undecided else "see the reasons above"
            return f"undecided: {are} neither kept nor exceeded for certain; {decides}; --undecided fail fails the run"
        times = sum(change.word == "unclear" for change in self.times)
        if times and not self.comparison.allowed:
            return f"unclear: {times} of {len(self.times)} times; a longer --max-time tells more"
        return None


def in_words(change: Change) -> str:
    """Say in words what changed."""
    by = change.change
    if change.word == "not measured":
        return change.word
    if by is None or change.before is None:
        return f"{change.word}: {_number(change, *_ends(change))}"
    if change.traits.counted:
        return _count_in_words(change, by)
    if change.word in CERTAIN:
        ends = (by.low, by.high) if by.low > 0 else (-by.high, -by.low)
        before_us = change.before.estimate
        share = f", {100 * abs(by.estimate) / before_us:.1f} %" if before_us > 1 else ""
        return f"{change.word} by {figure(abs(by.estimate))} µs ({figure(ends[0])} to {figure(ends[1])}{share})"
    if change.word == "same":
        return f"same within {figure(within(by))} µs"
    if not by.bounded:
        return "unclear: too few pairs of processes"
    return f"unclear: between {figure(-by.low)} µs faster and {figure(by.high)} µs slower"


def _count_in_words(change: Change, by: Estimate) -> str:
    low, high = by.low, by.high
    if change.word == "unclear":
        return f"unclear: between {_more(change, -low, -low, less=True)} and {_more(change, high, high)}"
    if change.word == "same":
        return "same"
    return _more(change, *sorted((abs(low), abs(high))), less=change.word == "fewer")


def _more(change: Change, least: float, most: float, *, less: bool = False) -> str:
    """Say how many more there are: `40 to 41 more objects`."""
    span = " to ".join(dict.fromkeys(_number(change, end) for end in (least, most)))
    if change.traits.format == "size":
        return f"{span} {'less' if less else 'more'}"
    return f"{span} {'fewer' if less else 'more'} {change.quantity}"


def _changed(change: Change) -> bool:
    """Whether a change is worth a line."""
    if change.word in ("new", "gone"):
        return not change.traits.counted or any(end.high > 0 for end in (change.before, change.after) if end)
    if change.word == "not measured":
        return not change.traits.counted
    told = change.verdict in ("fail", "undecided") or change.word in CERTAIN or _is_alike(change)
    return change.reason is None and told


def _is_alike(change: Change) -> bool:
    """Whether a count changed alike in each of a few pairs, so that the change is likely and not yet certain."""
    by = change.change
    return change.traits.counted and by is not None and by.estimate != 0 and 0 in (by.low, by.high)


def _number(change: Change, value: float) -> str:
    """Return a number; of times and sizes with its unit."""
    if not change.traits.counted:
        return f"{figure(value)} µs"
    return formatted(change.quantity, value)


def _count(change: Change) -> str:
    """Say what a count was and is: `objects 61 → 101`, and the range of the change if it has one."""
    ends = f"{change.quantity} {' → '.join(_number(change, end) for end in _ends(change))}"
    if change.change is None:
        return f"{ends} ({change.word})"
    return ends if change.change.low == change.change.high else f"{ends} ({in_words(change)})"


def _name(change: Change) -> str:
    """Return the row, and which of its times it is if that is not the self time."""
    return change.row if change.traits.counted or change.quantity == "us" else f"{change.row} {change.quantity}"


def _ends(change: Change) -> list[float]:
    """Return what a figure was and is, as far as there is such a row."""
    return [end.estimate for end in (change.before, change.after) if end is not None]


def document(comparison: Versus) -> Section:
    """Make a document of the comparison: what was compared, each request, what broke a limit."""
    sections = [
        _section(key, times, counts, comparison.names)
        for key, times, counts in comparison.requests()
        if times or counts
    ]
    sentences = [Paragraph(text, _tone(verdict), whole=True) for verdict, text in comparison.sentences()]
    notes = [Paragraph(f"note: {text}", whole=True) for text in (*comparison.one_sided(), *comparison.remarks)]
    ending = comparison.ending()
    last = [] if ending is None else [Paragraph(Strong(ending), "undecided", whole=True)]
    heading = Bullets([Paragraph(line, whole=True) for line in comparison.heading])
    return Section("What the change costs per request", [heading, *sections, Bullets([*sentences, *notes, *last])])


def _section(key: RequestKey, times: Sequence[Change], counts: Sequence[Change], names: Sequence[str]) -> Section:
    blocks: list[Block] = [_table(times, names)] if times else []
    if counts:
        rows = [(name, [*own]) for name, own in groupby(counts, lambda change: change.row)]
        blocks.append(Bullets([_counts(name, own) for name, own in rows]))
    return Section(Code(key.request), blocks, key.nodeid)


def _table(times: Sequence[Change], names: Sequence[str]) -> Table:
    ends = [Column(f"{name} µs", least=10) for name in names]
    columns = [Column("row", short="", least=LEAST_NAME), *ends, Column("change", align="left")]
    return Table(columns, [*map(_row_of, times)])


def _row_of(change: Change) -> TableRow:
    ends = ("-" if end is None else figure(end.estimate) for end in (change.before, change.after))
    tone = _tone(change.verdict)
    return TableRow(cells(Code(_name(change)), *ends, Cell(in_words(change), tone)), tone)


def _counts(name: str, own: Sequence[Change]) -> Paragraph:
    fails = any(change.verdict == "fail" for change in own)
    return Paragraph((Code(name), f": {', '.join(map(_count, own))}"), "fail" if fails else None)


def _tone(verdict: Verdict | None) -> Tone:
    """Leave out the verdict on a limit that is kept: most are."""
    return None if verdict == "pass" else verdict
