"""The Markdown report, read by a Markdown parser: its contents, and that no name becomes markup."""

from __future__ import annotations

import functools
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from pytest_mwbudget.model.estimate import Estimate
from pytest_mwbudget.model.measured_run import MeasuredRun
from pytest_mwbudget.model.results import HotFunction, Judged, Occupation, RequestLine, Result, Verdict
from pytest_mwbudget.report.advice import advise
from pytest_mwbudget.report.gfm import code, plain
from pytest_mwbudget.report.markdown import render

from .canned import but, one_run
from .test_report_schema import PROFILE
from .test_report_terminal import (
    BUSY,
    FAILING,
    MUCH,
    NONE,
    OPEN,
    PASSING,
    counted,
    judged,
    layer_row,
    relaxed,
    row,
    same,
    timed,
    us,
)

pytestmark = pytest.mark.once

PARSER = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
NODEID = "tests/test_shop.py::test_health[before]"


class Page(HTMLParser):
    """The texts of a page's elements, by tag."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[tuple[str, list[str]]] = []
        self.texts: dict[str, list[str]] = {}
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.texts.setdefault(tag, [])
        self.open.append((tag, []))

    def handle_data(self, data: str) -> None:
        for _, parts in self.open:
            parts.append(data)

    def handle_endtag(self, tag: str) -> None:
        name, parts = self.open.pop()
        assert name == tag
        self.texts[tag].append("".join(parts))

    def rows(self) -> list[list[str]]:
        """Return the rows of the tables without their headings."""
        columns = 7
        cells = self.texts.get("td", [])
        return [cells[begin : begin + columns] for begin in range(0, len(cells), columns)]


def text(*results: Result, limit: int | None = None) -> str:
    return render(one_run(*results, nodeid=NODEID), limit)


def page(*results: Result) -> Page:
    return Page(PARSER.render(text(*results)))


def items(*results: Result) -> list[str]:
    return page(*results).texts.get("li", [])


FAILED = timed(counted(PASSING, FAILING, verdict="fail"), replace(PASSING, counts=NONE), replace(FAILING, counts=MUCH))


# ---- contents ---------------------------------------------------------------------------------------------------


def test_each_request_has_a_heading_with_its_test_and_verdict() -> None:
    rendered = page(FAILED)
    assert rendered.texts["h2"] == ["mw-budget: 1 fail"]
    assert rendered.texts["h3"] == [f"{NODEID} GET /health: fail"]


def test_the_table_has_every_row_with_time_interval_budget_verdict_objects_and_tasks() -> None:
    rendered = page(but(FAILED, budgets={"total": Judged(400.0, "pass")}))
    assert rendered.texts["th"] == ["layer", "µs/request", "interval", "budget", "verdict", "objects", "tasks"]
    assert rendered.rows() == [
        ["(outside)", "0.60", "0.20 … 1.00", "", "", "0", "0"],
        ["GZipMiddleware", "17.9", "17.5 … 18.3", "50 µs", "pass", "0", "0"],
        ["AuthMiddleware", "117.2", "116.8 … 117.7", "50 µs", "fail", "~478", "3"],
        ["(endpoint)", "41.0", "40.6 … 41.4", "", "", "0", "0"],
        ["(total)", "245.1", "244.7 … 245.5", "400 µs", "pass", "0", "0"],
    ]
    assert rendered.texts["strong"] == ["fail"]


def test_what_is_not_known_is_a_dash() -> None:
    unknown = replace(PASSING, us=Estimate(0.0, float("-inf"), float("inf")))
    rows = page(timed(counted(unknown, row(1, "Merged", None, merged_with="GZipMiddleware")))).rows()
    assert rows[1] == ["GZipMiddleware", "–", "", "50 µs", "pass", "–", "–"]
    assert rows[2] == ["Merged", "–", "", "", "", "–", "–"]
    assert [cells[0] for cells in page(counted(layer_row(), endpoint=None)).rows()] == ["(outside)", "Auth", "(total)"]


def test_all_budgets_of_a_layer_stand_in_its_row() -> None:
    report = judged(replace(PASSING, counts=NONE), us=(50, "pass"), tasks=(0, "pass"), bytes=(16_384, "undecided"))
    assert page(timed(counted(report))).rows()[1][3:5] == ["50 µs, 0 tasks, 16.0 KiB", "undecided"]
    other_time = judged(PASSING, us=(50, "pass"), p99_us=(80, "pass"))
    assert page(timed(counted(other_time))).rows()[1][3] == "50 µs, 80 µs (p99_us)"


def test_reasons_stand_below_the_table_and_items_below_their_sentence() -> None:
    spawns = judged(layer_row(counts=replace(NONE, tasks=same(2, rest=2))), tasks=(0, "fail"))
    html = PARSER.render(text(counted(spawns, verdict="fail")))
    assert "<li>Auth spawns 2 tasks per request, its budget is 0 tasks.\n<ul>\n<li>2 × shop.rest</li>" in html
    assert (
        items(timed(counted(OPEN, verdict="undecided")))[0]
        == "CORSMiddleware is undecided: the interval holds the budget."
    )


def test_a_layer_that_was_not_entered_or_is_merged_says_so() -> None:
    measured = timed(counted(row(0, "Absent", None, entered=False), row(1, "Merged", None, merged_with="Absent")))
    assert items(measured)[:2] == [
        "Absent was not entered: a layer outside it answered",
        "Merged is measured with Absent",
    ]


def test_notes_advice_and_effort_come_last() -> None:
    blocking = replace(
        PASSING, counts=replace(NONE, bytecodes=same(900)), occupation=Occupation(us(260.0), 0.0, 20.0, blocking=True)
    )
    measured = replace(timed(counted(blocking), blocking), notes=("A tracer was suspended.",))
    (advice,) = advise(measured)
    assert items(measured) == [
        "note: A tracer was suspended.",
        f"advice: {advice.text} ({advice.page})",
        "960 requests timed in 0.4 s, detection limit 0.12 µs; 21 requests counted",
    ]
    assert not any("advice" in item for item in items(timed(counted(replace(PASSING, occupation=BUSY)))))


def test_a_profile_names_its_flamegraph_and_the_hottest_functions() -> None:
    (hot,) = PROFILE.hottest[0]
    functions = tuple(replace(hot, function=name) for name in ("a", "b", "c", "d"))
    texts = items(replace(FAILED, profile=replace(PROFILE, hottest={1: functions})))
    assert ".mw-budget/test_it-1.html" in texts[5]
    hottest = "AuthMiddleware: {} at shop.py:12, 90.0 µs per request, 95.5 with its callees"
    assert texts[1:5] == [hottest.format(name) for name in ("a", "b", "c", "d")]


def test_a_function_that_is_not_written_in_python_has_no_place() -> None:
    hottest = {1: (HotFunction("perf_counter", "<built-in>", 0, 2.0, 3.0),)}
    texts = items(replace(FAILED, profile=replace(PROFILE, hottest=hottest)))
    assert "AuthMiddleware: perf_counter, 2.00 µs per request, 3.00 with its callees" in texts


def named(url: str, verdict: Verdict | None) -> Result:
    return replace(FAILED, request=RequestLine("GET", url), verdict=verdict)


def test_what_fails_comes_first_and_the_rest_as_it_was_measured() -> None:
    urls = {"/a": "pass", "/b": "undecided", "/c": None, "/d": "fail", "/e": "pass"}
    rendered = page(*(named(url, verdict) for url, verdict in urls.items()))  # type: ignore[arg-type]
    assert [heading.removeprefix(f"{NODEID} GET ") for heading in rendered.texts["h3"]] == [
        "/d: fail",
        "/b: undecided",
        "/a: pass",
        "/e: pass",
        "/c",
    ]
    assert rendered.texts["h2"] == ["mw-budget: 1 fail, 1 undecided, 2 pass, 1 without a budget"]


def test_the_interpreter_and_the_loop_stand_at_the_end() -> None:
    assert page(FAILED).texts["p"][-1].startswith("CPython 3.")
    assert page(FAILED).texts["p"][-1].endswith(", loop asyncio")


def test_a_run_that_measured_nothing_says_so() -> None:
    assert page().texts["h2"] == ["mw-budget: nothing was measured"]


# ---- the size limit ---------------------------------------------------------------------------------------------

MANY = [named(f"/{number}", "fail" if number == 39 else "pass") for number in range(40)]


@functools.cache
def run_of_many() -> MeasuredRun:
    return one_run(*MANY, nodeid=NODEID)


@functools.cache
def headings_of_many() -> list[str]:
    return page(*MANY).texts["h3"]


@pytest.mark.parametrize("limit", [1000, 5000, 20_000])
def test_what_does_not_fit_is_left_out_and_a_sentence_says_so(limit: int) -> None:
    cut = render(run_of_many(), limit)
    assert limit - 2000 < len(cut.encode()) <= limit
    rendered = Page(PARSER.render(cut))
    shown = rendered.texts.get("h3", [])
    assert f"{40 - len(shown)} of 40 requests are left out: " in cut
    assert rendered.texts["h2"] == ["mw-budget: 1 fail, 39 pass"]
    assert shown == headings_of_many()[: len(shown)]
    if shown:
        assert shown[0].endswith("/39: fail")


def test_what_fits_is_whole() -> None:
    whole = text(*MANY[:3])
    assert text(*MANY[:3], limit=len(whole.encode())) == whole
    assert "left out" not in whole
    assert "1 of 3 requests are left out" in text(*MANY[:3], limit=len(whole.encode()) - 1)


@pytest.mark.parametrize("limit", [0, -5, 100])
def test_where_there_is_no_room_there_is_nothing(limit: int) -> None:
    assert render(run_of_many(), limit) == ""


# ---- names with Markdown syntax ---------------------------------------------------------------------------------

HOSTILE = [
    "<script>alert(1)</script>",
    "</code><img src=x onerror=alert(1)>",
    "a|b|c",
    "a\\|b",
    "`x` ``y``",
    "**bold** _under_ __init__ ~~gone~~",
    "[text](javascript:alert(1))",
    "![image](https://shop.example/x.png)",
    "<https://shop.example>",
    "&lt;b&gt; &amp; &#64;",
    "line\r\nend\n\n# heading",
    "1. one",
    "12) twelve",
    "- dash",
    "+ plus",
    "# hash",
    "> quote",
    "--- ---",
    "BaseHTTPMiddleware[add_version_header]#2",
    "$x$ :smile: \\",
]
PLAIN_TAGS = {"h2", "h3", "table", "thead", "tbody", "tr", "th", "td", "code", "strong", "ul", "li", "p"}


@pytest.mark.parametrize("name", HOSTILE)
def test_no_name_becomes_markup(name: str) -> None:
    layer = replace(FAILING.layer, name=name)
    kinds = {name: 3}
    counts = replace(MUCH, tasks=replace(same(3), kinds=kinds), own_types=(name,))
    report = judged(replace(FAILING, layer=layer, counts=counts), us=(50, "fail"), tasks=(0, "fail"))
    measured = replace(
        timed(counted(report, verdict="fail"), report, row(2, "Merged", None, merged_with=name)),
        request=RequestLine("GET", name),
        notes=(name,),
        profile=replace(PROFILE, flamegraph=name, hottest={1: (HotFunction(name, name, 1, 2.0, 3.0),)}),
    )
    shown = Page(PARSER.render(render(one_run(measured, nodeid=name))))
    line = " ".join(name.split())
    assert shown.texts.keys() <= PLAIN_TAGS
    assert shown.texts["h3"] == [f"{line} GET {line}: fail"]
    assert shown.rows()[1][0] == line
    assert [len(cells) for cells in shown.rows()] == [7] * 5
    assert f"3 × {line}" in shown.texts["li"]
    assert f"{line}: {line} at {line}:1, 2.00 µs per request, 3.00 with its callees" in shown.texts["li"]
    assert f"note: {line}" in shown.texts["li"]
    assert f"Merged is measured with {line}" in shown.texts["li"]


MARKS = st.text(st.sampled_from("ab 1\\`*_{}[]()<>#+-.!|~&;:$@/=^'\"\n\r\tw_"), max_size=20)


@relaxed
@given(name=MARKS)
def test_any_text_is_itself_in_a_cell_a_heading_and_an_item(name: str) -> None:
    line = " ".join(name.split())
    shown = Page(PARSER.render(f"### {code(name)}\n\n| a |\n|---|\n| {code(name)} |\n\n- {plain(name)}x\n"))
    assert shown.texts["h3"] == shown.texts["td"] == [line]
    assert shown.texts["li"] == [f"{line}x"]
    assert shown.texts.keys() <= PLAIN_TAGS


@pytest.mark.parametrize("mark", ["@octocat", "owner/shop#1", "https://shop.example", "WWW.shop.example"])
def test_what_github_makes_links_of_is_written_by_number(mark: str) -> None:
    assert mark not in plain(mark)
    assert mark not in code(mark)


def test_common_names_stay_readable() -> None:
    for name in ("GZipMiddleware", "tests/test_shop.py::test_health", "shop.middleware.add_header", "GET /health?q=1"):
        assert plain(name) == name
