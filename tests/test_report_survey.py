"""The view of a survey, and its lines on a terminal."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest

from pytest_mwbudget.model.estimate import Estimate
from pytest_mwbudget.model.measured_run import LeftOut
from pytest_mwbudget.model.results import LayerReport, RepeatedTest, RequestLine, Result, SurveyRun
from pytest_mwbudget.model.stack import Origin
from pytest_mwbudget.report.document import Cell, plain
from pytest_mwbudget.report.html import render as html
from pytest_mwbudget.report.markdown import render as markdown
from pytest_mwbudget.report.overview import survey as lines_of
from pytest_mwbudget.report.survey import Survey, survey
from pytest_mwbudget.storage import codec

from .canned import as_json, one_run
from .test_report_html import read
from .test_report_json import RESULT
from .test_report_matrix import request as _request
from .test_report_schema import misfits
from .test_report_terminal import NONE, counted, layer_row, row, same

RUN = SurveyRun(12.5, 120, 40, (RepeatedTest("test_a.py::test_calls", "assert 3 == 1"),))
STARLETTE = Origin("starlette")


def request(url: str, *rows: LayerReport, total: float = 245.0, **more: object) -> Result:
    return replace(_request(url, *rows, total=total), surveyed=True, **more)


def auth(us: float, index: int = 0, tasks: int = 1, **of_layer: object) -> LayerReport:
    counts = replace(NONE, tasks=same(tasks), objects=same(round(us) * 2))
    return replace(row(index, "Auth", us, **of_layer), counts=counts)


FAST, SLOW = request("/fast", auth(10), total=90), request("/slow", auth(50), row(1, "GZip", 4.0), total=400)
MIDDLE = request("/middle", auth(20), row(1, "GZip", 8.0), total=100)


def of(*results: Result, run: SurveyRun = RUN) -> Survey:
    return survey(run, results, [])


def layers(found: Survey) -> list[dict[str, Cell]]:
    """Return the cells of each layer by the titles of their columns, without intervals."""
    titles = [plain(column.title) for column in found.layers.columns]
    return [dict(zip(titles, row.cells, strict=True)) for row in found.layers.rows]


def values(layer: dict[str, Cell], *titles: str) -> list[object]:
    return [layer[title].value for title in titles]


def names(found: Survey) -> list[str]:
    return [plain(layer["layer"].text) for layer in layers(found)]


def test_allocations_show_what_is_created_where_objects_cannot_be_counted() -> None:
    def counted(result: Result) -> Result:
        reports = tuple(
            replace(report, counts=replace(report.counts or NONE, objects=None, allocations=same(7)))
            for report in result.layers
        )
        return replace(result, layers=reports)

    survey = of(counted(FAST), counted(SLOW))
    assert "objects" not in [plain(column.title) for column in survey.layers.columns]
    assert {layer["allocations"].value for layer in layers(survey)} == {7}
    assert values(layers(of(counted(FAST), SLOW))[0], "objects") == [100]


def test_a_layer_class_has_its_typical_and_its_worst_route() -> None:
    survey = of(FAST, SLOW, MIDDLE)
    first, second = layers(survey)
    assert names(survey) == ["Auth", "GZip"]
    assert values(first, "routes", "µs", "worst µs", "objects", "tasks") == [3, 20, 50, 40, 1]
    assert (first["worst on"].text, first["worst on"].brief) == ("GET /slow", "1")
    assert values(second, "routes", "worst µs") == [2, 8]
    assert (second["worst on"].text, second["worst on"].brief) == ("GET /middle", "2")
    routes = [plain(row.cells[0].text).split(maxsplit=1) for row in survey.routes.rows]
    assert routes == [["1", "GET /slow"], ["2", "GET /middle"], ["3", "GET /fast"]]
    assert survey.numbers == {1: 1, 2: 2, 0: 3}


def times(found: Survey) -> list[str]:
    """Return the typical and the worst time of the only layer, with their intervals."""
    (row,) = found.layers.rows
    return [plain(cell.text) for cell in row.cells[3:7]]


def test_a_median_is_between_the_medians_of_the_ends() -> None:
    """If every interval holds its time, the median of the times is in this one."""
    intervals = Estimate(60, 30, 90), Estimate(20, 19, 22), Estimate(40, 38, 41)
    survey = of(*(request(f"/{i}", replace(auth(1), us=us)) for i, us in enumerate(intervals)))
    assert times(survey) == ["40.0", "30.0 … 41.0", "60.0", "30.0 … 90.0"]
    unknown = replace(auth(1), us=Estimate(50, -math.inf, math.inf))
    assert times(of(request("/a", unknown))) == ["–"] * 4
    survey = of(request("/a", replace(auth(1), us=intervals[0])), FAST)
    assert times(survey)[:2] == ["35.0", "19.8 … 50.2"]


def test_the_layer_that_takes_the_most_time_in_all_comes_first() -> None:
    rare, often = row(1, "Rare", 70.0), row(0, "Often", 30.0)
    survey = of(*(request(f"/{i}", often) for i in range(5)), request("/rare", often, rare))
    assert names(survey) == ["Often", "Rare"]


def test_a_class_that_stands_twice_in_a_stack_is_one_class() -> None:
    both = auth(6, 0), auth(9, 1)
    twice = [replace(report, layer=replace(report.layer, name=f"Auth#{i}")) for i, report in enumerate(both, 1)]
    survey = of(request("/", *twice))
    assert names(survey) == ["Auth"]
    assert values(layers(survey)[0], "routes", "µs", "worst µs") == [1, 7.5, 9]


def test_two_functions_of_one_name_are_two_classes() -> None:
    other = auth(7)
    other = replace(other, layer=replace(other.layer, qualname="elsewhere.Auth", origin=STARLETTE))
    survey = of(FAST, request("/b", other))
    assert [(layer["layer"].text, layer["from"].text) for layer in layers(survey)] == [
        ("Auth", ""),
        ("Auth", "starlette"),
    ]


def test_what_a_request_does_not_enter_is_not_counted() -> None:
    refused = request("/no", row(0, "Auth", None, entered=False), total=5)
    merged = request("/merged", row(0, "Auth", None, merged_with="GZip", merged_because="no probe"), total=5)
    (layer,) = layers(of(FAST, refused, merged))
    assert layer["routes"].value == 1


def test_a_route_has_its_total_its_endpoint_and_the_share_of_its_layers() -> None:
    (route,) = of(MIDDLE).routes.rows
    assert [route.cells[place].value for place in (1, 3, 4)] == [100, 41, pytest.approx(0.28)]


def test_requests_that_were_only_counted_have_no_times_and_are_said() -> None:
    only = replace(counted(layer_row("Auth", counts=replace(NONE, objects=same(7)))), surveyed=True)
    survey = of(only)
    assert survey.counted_only == 1
    (layer,), (route,) = layers(survey), survey.routes.rows
    assert values(layer, "µs", "worst µs", "objects") == [None, None, 7]
    assert layer["worst on"].text == ""
    assert [cell.text for cell in route.cells[1:]] == ["–", "–", "–", "–"]
    assert "1 of them were only counted" in text(only)


def test_only_what_the_survey_judged_breaks_it() -> None:
    over = request("/over", row(0, "Auth", 90.0, 50, "fail"), verdict="fail")
    marked = replace(over, surveyed=False)
    assert [title for title, _ in of(over, marked).broken] == ["GET /over"]
    ((_, (finding,)),) = of(over).broken
    assert finding.sentence.startswith("Auth takes 90.0 µs per request, its budget is 50 µs")
    open_ = request("/open", row(0, "Auth", 50.0, 50, "undecided", "near"), verdict="undecided")
    assert of(open_, replace(open_, surveyed=False)).undecided == 1


def test_what_was_left_out_is_grouped_by_reason() -> None:
    left = [(f"test_{i}", RequestLine("POST", url), "a POST") for i, url in enumerate("aba")]
    left.append(("test", RequestLine("GET", "c"), "it raised"))
    assert survey(RUN, [], left).left_out == {"a POST": ["POST a", "POST b"], "it raised": ["GET c"]}


# ---- the terminal -------------------------------------------------------------------------------------------------


def text(*results: Result, run: SurveyRun = RUN, width: int = 80, verbosity: int = 0, left: int = 0) -> str:
    requests = [("test", RequestLine("POST", f"/{i}"), "a POST request is not repeated") for i in range(left)]
    return "\n".join(line.text for line in lines_of(run, results, requests, width, verbosity))


def test_it_says_how_much_was_measured_then_routes_layers_and_the_matrix() -> None:
    shown = text(FAST, SLOW, MIDDLE)
    assert shown.startswith("3 requests of 40 tests measured in 12.5 s of at most 120\n")
    lines = [line.split() for line in shown.splitlines()]
    assert ["1", "GET", "/slow", "400.0", "399.6", "…", "400.4", "41.0", "14%"] in lines
    assert ["Auth", "3", "20.0", "50.0", "1", "40", "1"] in lines
    assert "layers and routes: µs per request, all routes" in shown
    assert ["layer", "from", "1", "2", "3"] in lines


def test_a_route_that_is_listed_twice_says_why() -> None:
    assert "listed again" not in text(FAST, SLOW)
    assert "a route that is listed again has another app" in text(FAST, request("/fast", auth(10), row(1, "GZip", 4.0)))


def test_a_suite_without_requests_is_told_which_clients_are_recorded() -> None:
    shown = " ".join(text(run=replace(RUN, tests=1)).split())
    assert shown.startswith("no request to an ASGI app in this process was measured in 1 test; clients such as")


def test_it_names_the_tests_that_ran_twice_with_the_cause() -> None:
    shown = " ".join(text(FAST).split())
    ran = "test_a.py::test_calls failed while the survey recorded it, and passed in a second run without recording:"
    assert ran in shown
    assert "assert 3 == 1 [survey-repeated] More: mwbudget explain ID" in shown


def test_many_of_a_kind_are_cut_and_listed_when_asked() -> None:
    many = [request(f"/{i}", auth(10), total=i + 1) for i in range(50)]
    run = replace(RUN, repeated=tuple(RepeatedTest(f"test_{i}", "no") for i in range(9)))
    short, whole = text(*many, run=run, left=9), text(*many, run=run, left=9, verbosity=1)
    assert "20 more routes; -v lists them" in short
    assert "6 more tests ran twice; -v lists them" in short
    assert "not measured: POST /0, POST /1, POST /2 and 6 more: a POST request is not repeated" in " ".join(
        short.split()
    )
    assert "more" not in whole.replace("More: mwbudget", "")
    assert "POST /8" in whole
    assert " 50  GET /0 " in whole


@pytest.mark.parametrize("width", [70, 80, 120])
def test_the_lines_fit_the_width(width: int) -> None:
    long = request("/a" * 60, auth(10), replace(row(1, "L" * 70, 3.0)))
    shown = text(long, FAST, SLOW, width=width)
    assert max(map(len, shown.splitlines())) < width


def test_broken_budgets_are_said_in_red_with_the_excess() -> None:
    over = request("/over", row(0, "Auth", 90.0, 50, "fail"), verdict="fail")
    lines = list(lines_of(RUN, [over], [], 80))
    assert [line.style for line in lines if "GET /over: Auth takes 90.0" in line.text] == ["red"]
    assert any("[survey-budget]" in line.text for line in lines)


def test_clients_that_are_not_known_are_named() -> None:
    assert "of this version of httpx9" in " ".join(text(run=replace(RUN, unknown_clients=("httpx9",))).split())


@pytest.mark.parametrize(("number", "more"), [(1, "1 more request is"), (8, "8 more requests are")])
def test_the_number_of_requests_nobody_looked_at_is_in_every_report(number: int, more: str) -> None:
    run = replace(RUN, unexamined=number)
    data = one_run(FAST, nodeid="test_it", survey=run)
    page = read(html(data)).text
    for shown in (text(FAST, run=run), markdown(data), page):
        assert f"{more} like these: three in a row entered layers that were known" in " ".join(shown.split())


# ---- files --------------------------------------------------------------------------------------------------------

OUT = LeftOut("test", RequestLine("POST", "/x"), "a POST request is not repeated")
DATA = one_run(FAST, SLOW, nodeid="test_it", left_out=(OUT,), survey=RUN)


def test_the_json_keeps_it() -> None:
    stored = codec.measured_run(as_json(DATA))
    assert stored.survey == RUN
    assert [result.surveyed for result in stored.results] == [True, True]
    assert stored.left_out == (OUT,)
    assert misfits(as_json(one_run(replace(RESULT, surveyed=True), nodeid="test", left_out=(OUT,), survey=RUN))) == []


def test_the_page_has_the_layers_over_all_routes_and_what_ran_twice() -> None:
    page = read(html(DATA))
    (table,) = (element for element in page.all("table") if "classes" in (element.attributes.get("class") or ""))
    rows = [[cell.text for cell in (*line.all("th"), *line.all("td"))] for line in table.all("tbody")[0].all("tr")]
    assert rows[0] == ["Auth", "2", "30.0 29.6 … 30.4", "50.0 49.6 … 50.4", "20", "1", "GET /slow"]
    assert "A survey of 40 tests, which measured for 12.5 s of at most 120." in page.text
    assert re.search(r"test_a.py::test_calls ?: +assert 3 == 1", page.text)
    assert re.search(r"POST /x ?: a POST request is not repeated", page.text)


def test_markdown_has_them_too() -> None:
    document = markdown(DATA)
    assert "A survey of 40 tests, which measured for 12.5 s of at most 120." in document
    times = "30.0 | 29.6 … 30.4 | 50.0 | 49.6 … 50.4"
    assert f"| <code>Auth</code> |  | 2 | {times} | <code>GET /slow</code> | 20 | 1 |" in document
    assert "- <code>test&#95;a.py::test&#95;calls</code>: assert 3 == 1" in document.replace("_", "&#95;")


def test_a_wide_terminal_has_the_intervals_and_a_narrow_one_marks_wide_ones() -> None:
    wide = request("/wide", replace(auth(1), us=Estimate(60, 30, 90)), total=400)
    roomy, narrow = text(wide, width=140), text(wide, width=80)
    assert re.search(r"^Auth +1 +60\.0 +30\.0 … 90\.0 +60\.0 +30\.0 … 90\.0 +1 ", roomy, re.MULTILINE)
    assert "~" not in roomy
    assert re.search(r"^Auth +1 +~60\.0 +~60\.0 +1 ", narrow, re.MULTILINE)
    assert "~: wide interval, which a terminal of 111 columns shows" in " ".join(narrow.split())
