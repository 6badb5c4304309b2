"""A document as Markdown of GitHub's kind: for the summary of a job, for comments on a merge request."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

from ..model.estimate import Estimate
from ..model.results import Count, Counts, Profile, Result, Verdict
from .advice import advise
from .json import measured
from .terminal import ITEM, amount, figure, interval, reasons

COLUMNS = ("layer", "µs/request", "interval", "budget", "verdict", "objects", "tasks")
RULER = "|---|--:|--:|--:|---|--:|--:|"
UNKNOWN = "–"
ORDER: tuple[Verdict | None, ...] = ("fail", "undecided", "pass", None)
# So many of a layer's functions are named where a profile has them.
HOTTEST = 3

# What means something to Markdown, or to what GitHub and GitLab make of its text: marks, tags, links, mentions.
# An underscore inside a word means nothing, and the numbers and dashes that begin a list only where a line begins.
SPECIAL = re.compile(r"[\\`*\[\]<>&|~$@#]|(?<![^\W_])_|_(?![^\W_])|(?<=[Ww]{3})\.|:(?=//)|^[-+]|^\d(?=\d*[.)](?:\s|$))")


def render(document: Mapping[str, Any], limit: int | None = None) -> str:
    """The text: a section for each measured request, those that fail first.

    No longer than `limit` bytes: where not all sections fit, the last ones are left out and a sentence says so. Empty
    where there is no room for even that.
    """
    found = sorted(measured(document), key=lambda one: ORDER.index(one[1].verdict))
    head = _head([result for _, result in found])
    sections = ["\n".join(_section(nodeid, result)) for nodeid, result in found]
    foot = _foot(document["environment"])
    text = _joined([head, *sections, foot])
    if limit is None or _size(text) <= limit:
        return text
    room = limit - _size(_joined([head, _left_out(len(sections), len(sections)), foot]))
    ends = accumulate(_size(section) + 2 for section in sections)  # two line ends stand between any two parts
    kept = sections[: sum(end <= room for end in ends)]
    if room < 0:
        return ""
    return _joined([head, *kept, _left_out(len(sections) - len(kept), len(sections)), foot])


def _joined(parts: Sequence[str]) -> str:
    return "\n\n".join(parts) + "\n"


def _size(text: str) -> int:
    return len(text.encode())


def _left_out(number: int, of: int) -> str:
    return f"{number} of {of} requests are left out: there is no room here for more. The JSON has them all."


def _head(results: Sequence[Result]) -> str:
    verdicts = [result.verdict for result in results]
    numbers = [f"{verdicts.count(one)} {one or 'without a budget'}" for one in ORDER if one in verdicts]
    return f"## mw-budget: {', '.join(numbers) or 'nothing was measured'}"


def _foot(environment: Mapping[str, Any]) -> str:
    words = (environment["implementation"], environment["python"], "on", environment["platform"])
    return f"{plain(' '.join(words))}, loop {plain(environment['loop'])}"


# ---- one request -------------------------------------------------------------------------------------------------


def _section(nodeid: str, result: Result) -> Iterator[str]:
    verdict = "" if result.verdict is None else f": {result.verdict}"
    yield f"### {code(nodeid)} {code(str(result.request))}{verdict}"
    yield ""
    yield _row(COLUMNS)
    yield RULER
    yield from map(_row, _rows(result))
    yield ""
    yield from _reasons(result)
    yield from (f"- note: {plain(note)}" for note in result.notes)
    yield from (f"- advice: {plain(advice.text)} ({code(advice.page)})" for advice in advise(result))
    if result.profile is not None:
        yield from _hot(result, result.profile)
    yield f"- {_effort(result)}"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _rows(result: Result) -> Iterator[Sequence[str]]:
    """The cells of each row, in the order of the terminal's table."""
    books, ledger = result.books, result.ledger
    yield _cells("(outside)", books.outside if books else None, ledger.outside if ledger else None)
    for report in result.layers:
        budgets = ", ".join(amount(quantity, judged.bound) for quantity, judged in report.judged.items())
        yield _cells(code(report.name), report.us, report.counts, budgets, report.verdict)
    us, counts = books.endpoint if books else None, ledger.endpoint if ledger else None
    if us or counts:
        yield _cells("(endpoint)", us, counts)
    budget = "" if result.total_budget_us is None else amount("us", result.total_budget_us)
    us, counts = books.total if books else None, ledger.total if ledger else None
    yield _cells("(total)", us, counts, budget, result.total_verdict)


def _cells(
    name: str, us: Estimate | None, counts: Counts | None, budget: str = "", verdict: Verdict | None = None
) -> Sequence[str]:
    known = us is not None and math.isfinite(us.half_width)
    times = (figure(us.estimate), interval(us)) if us is not None and known else (UNKNOWN, "")
    marked = "**fail**" if verdict == "fail" else verdict or ""
    numbers = (counts.objects, counts.tasks) if counts else (None, None)
    return (name, *times, budget, marked, *map(_number, numbers))


def _number(count: Count | None) -> str:
    """The typical number; `~` says that it varies from request to request."""
    return UNKNOWN if count is None else f"{'' if count.exact else '~'}{count.count}"


def _reasons(result: Result) -> Iterator[str]:
    for text in reasons(result):
        yield f"{'  ' if text.startswith(ITEM) else ''}- {plain(text)}"
    for report in result.layers:
        if not report.layer.entered:
            yield f"- {code(report.name)} was not entered: a layer outside it answered"
        if report.layer.merged_with is not None:
            yield f"- {code(report.name)} is measured with {code(report.layer.merged_with)}"


def _hot(result: Result, profile: Profile) -> Iterator[str]:
    yield f"- flamegraph: {code(profile.flamegraph)}"
    names: dict[int, str] = {report.layer.index: report.name for report in result.layers}
    for index, functions in profile.hottest.items():
        for hot in functions[:HOTTEST]:
            place = f" at {code(hot.place)}" if hot.place else ""
            yield (
                f"  - {code(names[index])}: {code(hot.function)}{place},"
                f" {figure(hot.own_us)} µs per request, {figure(hot.total_us)} with what it calls"
            )


def _effort(result: Result) -> str:
    parts = []
    if result.effort is not None:
        effort = result.effort
        parts.append(f"{effort.requests} requests timed in {effort.seconds:.1f} s, floor {figure(result.floor_us)} µs")
    if result.ledger is not None:
        parts.append(f"{result.ledger.requests} requests counted")
    return "; ".join(parts)


# ---- text --------------------------------------------------------------------------------------------------------


def code(text: str) -> str:
    """Text of the app in the type of code, where no name becomes a mention or a link.

    As an element of HTML, which holds anything: Markdown's own marks have no way to write a bar in a table.
    """
    return f"<code>{plain(text)}</code>"


def plain(text: str) -> str:
    """`text` in one line in which nothing is markup; what could be is written by its number."""
    line = " ".join(text.split())
    return SPECIAL.sub(lambda found: f"&#{ord(found[0])};", line)
