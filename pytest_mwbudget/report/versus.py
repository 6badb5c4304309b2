"""What `mwbudget versus` found, as a document. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from ..comparison.pairs import Change, Changes, RowKey
from ..model.judged import Verdict
from ..model.quantities import TRAITS
from ..model.request_keys import RequestKey
from .document import Block, Bullets, Cell, Code, Column, Paragraph, Section, Strong, Table, TableRow, Tone, cells
from .text import figure, formatted, listed

# With more requests only the rows are shown in which something changed or a limit is not kept.
FEW_REQUESTS = 3
# Names of rows are not cut below this width.
LEAST_NAME = 30
# The most undecided limits that have a sentence each, and the most requests that a sentence names.
MOST = 5


@dataclass(frozen=True, slots=True)
class Versus:
    """A finished comparison of two sides with these `names`.

    `heading` says what was compared, `remarks` what the figures do not cover, and `limited` whether there are limits.
    """

    heading: Sequence[str]
    changes: Changes
    remarks: Sequence[str] = ()
    names: tuple[str, str] = ("base", "HEAD")
    limited: bool = False

    @property
    def failures(self) -> list[Change]:
        """The changes that are larger than allowed."""
        return [change for change in self.changes.all if change.verdict == "fail"]

    @property
    def certain(self) -> bool:
        """Whether every limit is certainly kept or broken."""
        return not self.undecided and not self.changes.unknown

    @property
    def undecided(self) -> list[Change]:
        """The changes of which it is not known whether they are allowed."""
        return [change for change in self.changes.all if change.verdict == "undecided"]

    def requests(self) -> Iterator[tuple[RequestKey, list[Change], list[Change]]]:
        """Yield each request with the changes to show: those of times, then those of counts."""
        keys = list(dict.fromkeys(change.row.request for change in self.changes.all))
        for key in keys:
            times = [change for change in self.changes.times if change.row.request == key]
            counts = [change for change in self.changes.counts if change.row.request == key and _changed(change)]
            yield key, times if len(keys) <= FEW_REQUESTS else [change for change in times if _changed(change)], counts

    def sentences(self) -> Iterator[tuple[Verdict | None, str]]:
        """Say which limits are broken or undecided, each with the verdict, and how many rows changed."""
        for change in (*self.failures, *self.undecided[:MOST]):
            assert change.most is not None
            text = told(change).removeprefix("undecided: ")
            allowed = f"--fail allows {_number(change, change.most)} more"
            yield change.verdict, f"{change.verdict}: {_row(change.row)}: {text}; {allowed}"
        if len(self.undecided) > MOST:
            yield "undecided", f"undecided: {len(self.undecided) - MOST} more limits"
        for unknown in self.changes.unknown[:MOST]:
            why = f"{unknown.quantity} not counted, so --fail cannot limit them: {unknown.why}"
            yield "undecided", f"undecided: {_row(unknown.row)}: {why}"
        if len(self.changes.unknown) > MOST:
            yield "undecided", f"undecided: {len(self.changes.unknown) - MOST} more limits of what is not counted"
        words = [change.word for change in self.changes.times]
        if words:
            names = (("more", "slower"), ("less", "faster"), ("same", "the same"), ("undecided", "undecided"))
            counted = [f"{words.count(word)} {name}" for word, name in names if word in words]
            yield None, f"of {len(words)} times, {', '.join(counted)}"
        changed = sum(_changed(count) for count in self.changes.counts)
        yield None, f"of {len(self.changes.counts)} counts, {changed or 'none'} changed"

    def one_sided(self) -> Iterator[str]:
        """Say which requests only one side has, and that no limit is of anything that was measured."""
        for name, keys in zip(self.names, (self.changes.only_base, self.changes.only_head), strict=True):
            if keys:
                requests = [f"{key.request} ({key.nodeid})" for key in keys]
                yield f"measured with {name} only: {listed(requests, MOST)}"
        if self.limited and not any(change.verdict for change in self.changes.all):
            yield "no limit of --fail applies to a measured figure; limits apply to layers, total_us to requests"

    def ending(self) -> str | None:
        """Say how much is undecided, and what decides it; None if nothing is."""
        limits = len(self.undecided) + len(self.changes.unknown)
        if limits:
            are = "1 limit is" if limits == 1 else f"{limits} limits are"
            decides = "a longer --max-time decides more" if self.undecided else "see the reasons above"
            return f"undecided: {are} neither kept nor exceeded for certain; {decides}; --undecided fail fails the run"
        times = sum(change.word == "undecided" for change in self.changes.times)
        if times and not self.limited:
            return f"undecided: {times} of {len(self.changes.times)} times; a longer --max-time decides more"
        return None


def told(change: Change) -> str:
    """Say in words what changed."""
    word, by = change.word, change.by
    if word in ("new", "gone"):
        value = change.after if change.before is None else change.before
        assert value is not None
        return f"{word}: {_number(change, value)}"
    if not change.timed:
        return _told_count(change)
    if word in ("more", "less"):
        ends = (by.low, by.high) if word == "more" else (-by.high, -by.low)
        share = f", {100 * abs(by.estimate) / change.before:.1f} %" if change.before and change.before > 1 else ""
        name = "slower" if word == "more" else "faster"
        return f"{name} by {figure(abs(by.estimate))} µs ({figure(ends[0])} to {figure(ends[1])}{share})"
    if word == "same":
        return f"same within {figure(change.within)} µs"
    if not by.bounded:
        return "undecided: too few pairs of processes"
    return f"undecided: between {figure(-by.low)} µs faster and {figure(by.high)} µs slower"


def _told_count(change: Change) -> str:
    low, high = change.by.low, change.by.high
    if change.word == "undecided":
        return f"undecided: between {_more(change, -low, -low, less=True)} and {_more(change, high, high)}"
    if change.word == "same":
        return "same"
    return _more(change, *sorted((abs(low), abs(high))), less=change.word == "less")


def _more(change: Change, least: float, most: float, *, less: bool = False) -> str:
    """Say how many more there are: `40 to 41 more objects`."""
    span = " to ".join(dict.fromkeys(_number(change, end) for end in (least, most)))
    if TRAITS[change.quantity].format == "size":
        return f"{span} {'less' if less else 'more'}"
    return f"{span} {'fewer' if less else 'more'} {change.quantity}"


def _changed(change: Change) -> bool:
    """Whether a change is worth a line."""
    if change.verdict in ("fail", "undecided") or change.word in ("more", "less"):
        return True
    return change.word in ("new", "gone") and (change.timed or change.by.high > 0 or change.by.low < 0)


def _number(change: Change, value: float) -> str:
    """Return a number; of times and sizes with its unit."""
    if change.timed:
        return f"{figure(value)} µs"
    return formatted(change.quantity, value)


def _count(change: Change) -> str:
    """Say what a count was and is: `objects 61 → 101`, and the range of the change if it has one."""
    if change.before is None or change.after is None:
        value = change.after if change.before is None else change.before
        assert value is not None
        return f"{change.quantity} {_number(change, value)} ({change.word})"
    ends = f"{change.quantity} {_number(change, change.before)} → {_number(change, change.after)}"
    return ends if change.by.low == change.by.high else f"{ends} ({told(change)})"


def _row(row: RowKey) -> str:
    return f"{row.name} in {row.request.request}"


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
        rows = [(name, [*own]) for name, own in groupby(counts, lambda change: change.row.name)]
        blocks.append(Bullets([_counts(name, own) for name, own in rows]))
    return Section(Code(key.request), blocks, key.nodeid)


def _table(times: Sequence[Change], names: Sequence[str]) -> Table:
    ends = [Column(f"{name} µs", least=10) for name in names]
    columns = [Column("row", short="", least=LEAST_NAME), *ends, Column("change", align="left")]
    return Table(columns, [*map(_row_of, times)])


def _row_of(change: Change) -> TableRow:
    ends = ("-" if end is None else figure(end) for end in (change.before, change.after))
    tone = _tone(change.verdict)
    return TableRow(cells(Code(change.row.name), *ends, Cell(told(change), tone)), tone)


def _counts(name: str, own: Sequence[Change]) -> Paragraph:
    fails = any(change.verdict == "fail" for change in own)
    return Paragraph((Code(name), f": {', '.join(map(_count, own))}"), "fail" if fails else None)


def _tone(verdict: Verdict | None) -> Tone:
    """Leave out the verdict on a limit that is kept: most are."""
    return None if verdict == "pass" else verdict
