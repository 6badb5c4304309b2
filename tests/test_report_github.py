"""Annotations of GitHub Actions, parsed as its runner parses them."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mwbudget.model.results import Judged, RequestLine, Result
from pytest_mwbudget.report.advice import advise
from pytest_mwbudget.report.github import MAX_TITLE, annotation, level
from pytest_mwbudget.report.text import printable

from .test_report_terminal import FAILING, NONE, OPEN, PASSING, counted, judged, layer_row, relaxed, result, same, timed

OVER = result(PASSING, FAILING, verdict="fail")


def read(line: str) -> tuple[str, dict[str, str], str]:
    """Return command, properties and message of a line, unescaped as by the runner."""
    assert len(line.splitlines()) == 1
    match = re.fullmatch(r"::(\w+) ([^:]*)::(.*)", line)
    assert match is not None
    pairs = dict(pair.split("=", 1) for pair in match[2].split(","))
    return match[1], {key: unescaped(text) for key, text in pairs.items()}, unescaped(match[3])


def unescaped(text: str) -> str:
    for code, character in (("%0D", "\r"), ("%0A", "\n"), ("%3A", ":"), ("%2C", ","), ("%25", "%")):
        text = text.replace(code, character)
    return text


def test_an_annotation_has_its_place_what_is_over_and_by_how_much() -> None:
    command, properties, message = read(annotation(OVER, "error", "tests/test_shop.py", 12))
    assert command == "error"
    assert properties == {
        "file": "tests/test_shop.py",
        "line": "12",
        "title": "GET /health: AuthMiddleware 117.2 µs, budget 50 µs (1 of 2 layers over budget)",
    }
    assert message == "AuthMiddleware takes 117.2 µs per request, its budget is 50 µs: 67.2 µs too much (66.8 to 67.7)."


def test_the_items_of_a_list_stand_in_lines_of_their_own() -> None:
    counts = replace(NONE, tasks=same(2, rest=2))
    measurement = counted(judged(layer_row(counts=counts), tasks=(0, "fail")), verdict="fail")
    _, _, message = read(annotation(measurement, "error", "t.py", 1))
    assert message.splitlines() == ["Auth spawns 2 tasks per request, its budget is 0 tasks.", "    2 × shop.rest"]


def test_what_is_undecided_says_why() -> None:
    measurement = result(PASSING, OPEN, verdict="undecided")
    command, properties, message = read(annotation(measurement, "warning", "t.py", 1))
    assert (command, properties["title"]) == ("warning", "GET /health: undecided")
    assert message == "CORSMiddleware is undecided: the interval holds the budget."


def test_a_request_over_its_total_says_by_how_much() -> None:
    measurement = result(PASSING, budgets={"total": Judged(200.0, "fail")}, verdict="fail")
    _, _, message = read(annotation(measurement, "error", "t.py", 1))
    assert message.startswith("The whole request takes 245.1 µs per request, its budget is 200 µs: 45.1 µs too much")


def test_advice_comes_last() -> None:
    task = "starlette.middleware.base.BaseHTTPMiddleware.__call__.<locals>.call_next.<locals>.coro"
    tasks = replace(same(1), kinds={task: 1})
    row = replace(FAILING, counts=replace(NONE, tasks=tasks, objects=same(400)))
    measurement = timed(counted(row), row)
    (advice,) = advise(measurement)
    _, _, message = read(annotation(measurement, "error", "t.py", 1))
    assert message.splitlines()[-1] == advice.text


def test_a_test_whose_line_nobody_knows_has_none() -> None:
    assert "line" not in read(annotation(OVER, "error", "t.py", None))[1]


@relaxed
@given(url=st.text(st.sampled_from("/a:,%\r\n=0A;?&é")), file=st.text(st.sampled_from("/a:,%=2C"), min_size=1))
def test_nothing_that_an_app_or_a_file_is_called_ends_a_property(url: str, file: str) -> None:
    measurement = replace(OVER, request=RequestLine("GET", url))
    _, properties, message = read(annotation(measurement, "error", file, 3))
    assert properties["file"] == file
    assert properties["title"].startswith(printable(f"GET {url}: Auth"))
    assert message.startswith("AuthMiddleware takes")


def test_a_name_with_a_line_end_stays_in_its_line() -> None:
    name = "A\n::error::gotcha%0A\x1b[31m"
    row = replace(FAILING, layer=replace(FAILING.layer, name=name))
    _, properties, message = read(annotation(result(row, verdict="fail"), "error", "t.py", 1))
    shown = "A\\n::error::gotcha%0A\\x1b[31m"
    assert properties["title"].startswith(f"GET /health: {shown} 117.2 µs")
    assert message.startswith(f"{shown} takes")


def test_a_title_is_no_longer_than_github_takes_it() -> None:
    measurement = replace(OVER, request=RequestLine("GET", "/" + "x" * 500))
    title = read(annotation(measurement, "error", "t.py", 1))[1]["title"]
    assert len(title) == MAX_TITLE
    assert title.endswith("(1 of 2 layers over budget)")


@pytest.mark.parametrize(
    ("verdict", "undecided", "grave"),
    [
        ("fail", "warn", "error"),
        ("fail", "pass", "error"),
        ("undecided", "fail", "error"),
        ("undecided", "warn", "warning"),
        ("undecided", "pass", None),
        ("pass", "fail", None),
        (None, "warn", None),
    ],
)
def test_an_annotation_is_as_grave_as_what_the_test_makes_of_it(verdict: Any, undecided: str, grave: Any) -> None:
    measurement: Result = replace(OVER, verdict=verdict)
    assert level(measurement.verdict, undecided) == grave
