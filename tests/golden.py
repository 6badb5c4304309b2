"""The renderings of the results in `golden/results.json`. `python -m tests.golden` writes them anew.

`test_golden.py` compares them with the files, so that a commit shows each change of an output. Where the JSON changes,
the results are written anew too.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_mwbudget.comparison.allowed import parsed
from pytest_mwbudget.comparison.figures import RequestFigures, figures_of
from pytest_mwbudget.comparison.history import history_run
from pytest_mwbudget.comparison.pairs import Pair, compare_pairs
from pytest_mwbudget.comparison.run_sets import merged
from pytest_mwbudget.comparison.two_runs import compare
from pytest_mwbudget.model.changes import Since
from pytest_mwbudget.model.measured_run import LeftOut, MeasuredRun
from pytest_mwbudget.model.request_keys import keyed
from pytest_mwbudget.model.results import FRAMES, Counts, RepeatedTest, RequestLine, Result, ResultRow, SurveyRun
from pytest_mwbudget.model.runs import Commit, Run
from pytest_mwbudget.report import benchmark, comparison, gfm, html, junit, lines, markdown, versus
from pytest_mwbudget.report.advice import advise
from pytest_mwbudget.report.github import annotation, level
from pytest_mwbudget.report.overview import together
from pytest_mwbudget.report.terminal import failure, left_out, one_line, run
from pytest_mwbudget.session.baseline import since_of
from pytest_mwbudget.storage import codec
from pytest_mwbudget.storage.history import line_of

FOLDER = Path(__file__).parent / "golden"
RESULTS = FOLDER / "results.json"
RUN = Run(
    "2026-11-23T10:00:00+00:00", "3.13.1", "CPython", "Linux", "asyncio", {"starlette": "1.3.1"}, None, "Epyc", "0"
)
SURVEY = SurveyRun(12.5, 120, 40, (RepeatedTest("tests/test_shop.py::test_calls", "assert 3 == 1"),))
LEFT_OUT = [LeftOut("tests/test_shop.py::test_posts", RequestLine("POST", "/orders"), "a POST request is not repeated")]
SINCE = Since("main", RUN.created, Commit("a" * 40, uncommitted=False), new=("b GET /",), differences=("Python",))
ALLOWED = "us:5%,objects:0,total_us:10%"
WIDTHS = (80, 120)
# The page of a request is long, so it is rendered of results that have all its parts between them.
ON_THE_PAGE = (
    "every_figure",
    "hostile_names",
    "over_limits",
    "uncountable",
    "profile",
    "load",
    "untimed",
    "real_failure",
)

VERBOSITIES = {0: "plain", 1: "verbose"}

Measured = Sequence[tuple[str, Result]]


def stored() -> Measured:
    """Return the results with the ids of their tests. A figure that they do not have yet is null."""
    return [codec.measured(completed(data)) for data in json.loads(RESULTS.read_text(encoding="utf-8"))]


def completed(data: dict[str, Any]) -> dict[str, Any]:
    """Return a stored result with every figure that rows have today."""
    every, of_counts = (dict.fromkeys(codec.RECORDS.shape(kind)) for kind in (ResultRow, Counts))
    if data["endpoint"] is not None:
        data["endpoint"]["parts"] = [every | part for part in data["endpoint"]["parts"]]
    frames = {name: data["ledger"][name] and of_counts | data["ledger"][name] for name in FRAMES}
    return {**data, "layers": [every | row for row in data["layers"]], "ledger": {**data["ledger"], **frames}}


def changed(data: Any, rng: random.Random, key: str = "") -> Any:
    """Return a result's JSON as of a later run: some times and counts are higher.

    Calls in threads stay, because the times of a row that waits for threads are not compared.
    """
    if isinstance(data, Mapping):
        if "estimate" in data:
            factor = rng.choice([0.7, 1.0, 1.0, 1.4])
            return {name: end if end is None else end * factor for name, end in data.items()}
        if "count" in data and key != "threads":
            more = rng.choice([0, 0, 3])
            return {**data, **{name: data[name] + more for name in ("count", "low", "high") if name in data}}
        return {name: changed(value, rng, name) for name, value in data.items()}
    if isinstance(data, list):
        return [changed(value, rng, key) for value in data]
    return data


def later(measured: Measured) -> Measured:
    """Return the results of a later run, without the first request."""
    rng = random.Random(7)
    return [
        codec.measured(changed(codec.measurement(nodeid, result, advise(result)), rng))
        for nodeid, result in measured[1:]
    ]


def renderings() -> Iterator[tuple[str, str]]:
    """Yield the name of each file with its text."""
    measured = stored()
    for width in WIDTHS:
        for verbosity, name in VERBOSITIES.items():
            yield f"terminal-{name}-{width}.txt", terminal(measured, width, verbosity)
        yield f"failures-{width}.txt", "".join(_failures(measured, width))
        results = [result for _, result in measured]
        overview = [*together(None, results, LEFT_OUT, width, 1), *together(SURVEY, results, LEFT_OUT, width, 1)]
        yield f"overview-{width}.txt", _text(overview)
    yield "lines.txt", _text(one_line(result) for _, result in measured)
    yield "annotations.txt", "".join(_annotations(measured))
    yield "junit.txt", "".join(_properties(measured))
    yield from _documents(measured)
    yield from _comparisons(measured)
    yield from _pairs(measured)


def terminal(measured: Measured, width: int, verbosity: int) -> str:
    """Return what a run prints of these results, and of requests that were left out."""
    return _text([*run(measured, "CPython 3.13", width, verbosity), *left_out(LEFT_OUT, verbosity)])


def _text(lines: Iterable[lines.Line]) -> str:
    return "".join(f"{line.style or '-'}\t{line.text}\n" for line in lines)


def _failures(measured: Measured, width: int) -> Iterator[str]:
    for nodeid, result in measured:
        if result.verdict in ("fail", "undecided"):
            yield f"==== {nodeid}\n{failure(result, width, undecided_fails=True)}\n"


def _annotations(measured: Measured) -> Iterator[str]:
    for _, result in measured:
        if (severity := level(result.verdict, "warn")) is not None:
            yield annotation(result, severity, "tests/test_shop.py", 12) + "\n"


def _properties(measured: Measured) -> Iterator[str]:
    for nodeid, result in [*measured, ("all", None)]:
        yield f"==== {nodeid}\n"
        results = [other for _, other in measured] if result is None else [result]
        yield from (f"{name}={value}\n" for name, value in junit.properties(results))


def _documents(measured: Measured) -> Iterator[tuple[str, str]]:
    whole = MeasuredRun(RUN, tuple(measured), tuple(LEFT_OUT), SURVEY)
    yield "report.md", markdown.render(whole)
    yield "benchmark.json", codec.text(benchmark.document(whole))
    yield "history.jsonl", line_of(whole)
    small = tuple(request for request in measured if request[0].endswith("::test_no_layers"))
    yield "document.json", codec.text(codec.document(replace(whole, measured=small, since=SINCE), advise))
    history = [history_run(RUN, measured), history_run(replace(RUN, created="2026-11-24T10:00:00+00:00"), measured)]
    some = [request for request in measured if request[0].partition("::test_")[2] in ON_THE_PAGE]
    page = html.render(replace(whole, measured=tuple(some)), str, history)
    yield "page.html", re.sub(r"<(style|script)\b.*?</\1>\n?", "", page, flags=re.DOTALL)


def _comparisons(measured: Measured) -> Iterator[tuple[str, str]]:
    before = {"before": MeasuredRun(RUN, tuple(measured))}
    after = {"after": MeasuredRun(replace(RUN, packages={"starlette": "1.4.0"}), tuple(later(measured)))}
    compared = compare(merged(before), merged(after), parsed(ALLOWED, "--fail"))
    since = since_of("before", before, compared)
    for width in WIDTHS:
        yield f"compare-{width}.txt", _text(lines.render(comparison.for_terminal(compared, since), width))
    yield "compare.md", gfm.render(comparison.for_page(compared, since), gfm.MAX_COMMENT, comparison.left_out)


def _of_speed(result: Result) -> RequestFigures:
    return replace(figures_of(result), reference_ns=2000.0)


def _pairs(measured: Measured) -> Iterator[tuple[str, str]]:
    sides = [{key: _of_speed(result) for key, result in keyed(side)} for side in (measured, later(measured))]
    pairs = [Pair(*sides)] * 8
    finished = versus.Versus(("base against HEAD",), compare_pairs(pairs, 3, parsed(ALLOWED, "--fail"), last=True))
    document = versus.document(finished)
    for width in WIDTHS:
        yield f"versus-{width}.txt", _text(lines.render(document, width))
    yield "versus.md", gfm.render(document)


def rewritten() -> str:
    """Return the text of the file of results, as they are written today."""
    measurements = (codec.measurement(nodeid, result, advise(result)) for nodeid, result in stored())
    lines = (json.dumps(measurement, ensure_ascii=False, separators=(",", ":")) for measurement in measurements)
    return "[\n" + ",\n".join(lines) + "\n]\n"


def main() -> None:
    """Write all renderings, and remove files of renderings that are gone."""
    texts = {**dict(renderings()), RESULTS.name: rewritten()}
    for file in FOLDER.iterdir():
        if file.name not in texts:
            file.unlink()
    for name, text in texts.items():
        (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
