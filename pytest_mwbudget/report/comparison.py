"""Changes between two runs: cells and sentences for all reports, and the output of `mwbudget compare`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ..comparison.allowed import limited_as
from ..comparison.outcome import Comparison, RequestChanges
from ..errors import tagged
from ..model.changes import BETTER, WORSE, Change, Since
from ..model.request_keys import RequestKey
from ..model.results import Result
from .change_text import MOST_NAMES, about, of_rows, sentence, share, signed, span, summed, without_implied
from .markdown import code, heads, plain, row_of
from .terminal import MAX_WIDTH, MIN_NAME, Line
from .text import distinct, figure, listed, printable, wrapped

STYLES = {**dict.fromkeys(WORSE, "red"), **dict.fromkeys(BETTER, "green")}
SHARE = "%"
COLUMNS = ("before µs", "after µs", "change", SHARE, "interval")


def grown_sentences(comparison: Comparison) -> Iterator[str]:
    """Say which figures grew by more than is allowed."""
    for key, change in comparison.judged("fail"):
        quantity = limited_as(change) or change.quantity
        allowed = f"allowed: {quantity}:{comparison.allowed[quantity].written}"
        yield tagged(f"{' '.join(key)}: {sentence(change)}; {allowed}", "grown")


def unjudged_sentences(comparison: Comparison) -> Iterator[str]:
    """Say how many figures of a quantity could not be judged, and why."""
    for (quantity, reason), number in comparison.unjudged().items():
        rows = "1 figure of " if number == 1 else f"{number} figures of " if number else ""
        yield tagged(f"{rows}{quantity} could not be judged by what is allowed: {reason}", "not-comparable")


def reasons(changes: Iterable[Change]) -> Iterator[str]:
    """Yield each reason why figures have no change, with the first rows that it holds for."""
    by_reason: dict[str, dict[str, list[str]]] = {}
    for change in changes:
        if change.reason is not None:
            rows = by_reason.setdefault(f"{change.word}: {change.reason}", {})
            rows.setdefault(change.quantity, []).append(change.row)
    for reason, quantities in by_reason.items():
        parts = [f"{quantity} of {listed(rows, MOST_NAMES)}" for quantity, rows in quantities.items()]
        yield f"{', '.join(parts)}: {reason}"


# ---- the terminal ---------------------------------------------------------------------------------------------------


def lines(comparison: Comparison, since: Since, width: int) -> Iterator[Line]:
    """Lay out a comparison: what was compared, the changes of each request, and what grew by too much."""
    width = min(width, MAX_WIDTH) - 1
    yield from (Line(text) for message in about(since) for text in wrapped(message, width))
    for request in comparison.requests:
        yield Line("")
        yield from _request(request, width)
    if since.grown or since.unjudged:
        yield Line("")
    yield from verdict(since, width)


def compared_run(since: Since, failing: Sequence[tuple[str, Result]], width: int) -> Iterator[Line]:
    """Lay out what a run was compared with, and what grew by too much.

    The tables of the run have the changes, but not those of `failing` tests, which are given with their ids.
    """
    width = min(width, MAX_WIDTH) - 1
    yield from (Line(text) for message in about(since) for text in wrapped(message, width))
    for nodeid, result in failing:
        for change in of_rows(result.changes, timed=True):
            yield from (Line(text) for text in wrapped(f"{nodeid} {result.label}: {change}", width))
    yield from verdict(since, width)


def verdict(since: Since, width: int) -> Iterator[Line]:
    """Lay out which figures grew by more than is allowed, and which could not be judged."""
    yield from (Line(text, "red") for message in since.grown for text in wrapped(message, width))
    yield from (Line(text, "yellow") for message in since.unjudged for text in wrapped(message, width))


def _request(request: RequestChanges, width: int) -> Iterator[Line]:
    changes = without_implied(request.changes)
    yield Line(printable(f"{' '.join(request.key)}: {summed(changes)}"), "bold")
    times = [change for change in changes if change.quantity == "us" and change.reason is None]
    if times:
        yield from _times(times, width)
    yield from (Line(text) for row_sentence in of_rows(changes, timed=False) for text in wrapped(row_sentence, width))
    yield from (Line(text) for reason in reasons(changes) for text in wrapped(reason, width))


def _times(changes: Sequence[Change], width: int) -> Iterator[Line]:
    """Lay out times before and after. A narrow terminal has no room for percentages."""
    cells = [_cells(change) for change in changes]
    longest, words = (
        max(map(len, texts)) for texts in zip(*((change.row, change.word) for change in changes), strict=True)
    )
    widths = [2 + max(map(len, column)) for column in zip(COLUMNS, *cells, strict=True)]
    if longest + sum(widths) + 2 + words > width:
        widths[COLUMNS.index(SHARE)] = 0
    names = max(MIN_NAME, min(longest, width - sum(widths) - 2 - words))
    briefer = distinct(["layer", *(change.row for change in changes)], names)
    words_and_styles = [("", "bold"), *((change.word, STYLES.get(change.word, "")) for change in changes)]
    for name, row, (word, style) in zip(briefer, (COLUMNS, *cells), words_and_styles, strict=True):
        figures = "".join(f"{text:>{room}}" for text, room in zip(row, widths, strict=True) if room)
        yield Line(f"{name.ljust(names)}{figures}  {word}".rstrip(), style)


def _cells(change: Change) -> tuple[str, ...]:
    """Return the columns of a time: before, after, change, percentage, interval."""
    ends = (figure(end.estimate) if end else "" for end in (change.before, change.after))
    difference = signed(change, change.change.estimate) if change.change else ""
    return (*ends, difference, share(change), span(change))


# ---- Markdown -------------------------------------------------------------------------------------------------------

# A comment on a pull request of GitHub has at most 65,536 characters.
MAX_COMMENT = 65_000
HEADS = ("layer", "before µs", "after µs", "change", "interval", "")


def markdown(comparison: Comparison, since: Since, limit: int = MAX_COMMENT) -> str:
    """Render a comparison as GitHub's Markdown: what grew by too much, then the requests that changed.

    The text has at most `limit` bytes: if not all requests fit, the last ones are left out and a sentence says so.
    """
    requests = [(key, without_implied(changes)) for key, changes in comparison.requests]
    head = [f"## mw-budget: {summed(change for _, changes in requests for change in changes)}"]
    head += ["\n".join(f"- {plain(message)}" for message in (*since.grown, *since.unjudged, *about(since)))]
    changed = [(key, changes) for key, changes in requests if any(change.changed for change in changes)]
    same = [key for key, changes in requests if not any(change.changed for change in changes)]
    sections = ["\n".join(_section(key, changes)) for key, changes in changed]
    if same:
        items = "\n".join(f"- {code(key.nodeid)} {code(key.request)}" for key in same)
        were = "1 request" if len(same) == 1 else f"{len(same)} requests"
        sections.append(f"<details><summary>{were} without a certain change</summary>\n\n{items}\n\n</details>")
    kept: list[str] = []
    for section in sections:
        if len("\n\n".join([*head, *kept, section]).encode()) + len(_left_out(len(sections))) + 3 > limit:
            break
        kept.append(section)
    if len(kept) < len(sections):
        kept.append(_left_out(len(sections) - len(kept)))
    return "\n\n".join([*head, *kept]) + "\n"


def _left_out(sections: int) -> str:
    return f"{sections} more sections are left out: there is no room here. `mwbudget compare` prints them all."


def _section(key: RequestKey, changes: Sequence[Change]) -> Iterator[str]:
    yield f"### {code(key.nodeid)} {code(key.request)}: {summed(changes)}"
    yield ""
    times = [change for change in changes if change.quantity == "us" and change.reason is None]
    if times:
        yield from heads("lrrrrl", *HEADS)
        for change in times:
            before, after, difference, percent, interval = _cells(change)
            word = f"**{change.word}**" if change.word in WORSE else change.word
            yield row_of(code(change.row), before, after, f"{difference} {percent}".strip(), interval, word)
        yield ""
    yield from (f"- {plain(row_sentence)}" for row_sentence in of_rows(changes, timed=False))
    yield from (f"- {plain(reason)}" for reason in reasons(changes))
