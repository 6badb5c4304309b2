"""The view of a result: its rows, the layer to look at first, and that every report uses the view."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_mwbudget.model.estimate import Estimate
from pytest_mwbudget.model.quantities import COUNTED, Quantity
from pytest_mwbudget.model.results import Books, Count, Judged, LayerReport, Occupation, RequestLine, Result, worst
from pytest_mwbudget.model.stack import Layer
from pytest_mwbudget.report.github import annotation
from pytest_mwbudget.report.html import render as html
from pytest_mwbudget.report.junit import properties
from pytest_mwbudget.report.markdown import render as markdown
from pytest_mwbudget.report.terminal import failure, one_line, table
from pytest_mwbudget.report.view import view
from pytest_mwbudget.storage import codec

from .canned import but, one_run
from .test_report_html import Element, read
from .test_report_json import RESULTS, UNCOUNTABLE
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
    result,
    row,
    same,
    timed,
    us,
)

pytestmark = pytest.mark.once

each_result = pytest.mark.parametrize("found", RESULTS.values(), ids=RESULTS)


# ---- the rows ----------------------------------------------------------------------------------------------------


@each_result
def test_the_rows_are_those_of_the_result_between_outside_and_total(found: Result) -> None:
    shown = view(found)
    assert [row.layer for row in shown.layers] == [row.layer for row in found.layers]
    assert [shown_row.name for shown_row in shown.layers] == [report.name for report in found.layers]
    assert [shown_row.verdict for shown_row in shown.layers] == [report.verdict for report in found.layers]
    ends = [found.books and found.books.endpoint, found.ledger and found.ledger.endpoint]
    endpoint = any(end is not None for end in ends)
    frames = ["(outside)", *["(endpoint)"] * endpoint, "(total)"]
    assert [shown_row.name for shown_row in shown.rows if shown_row.is_frame] == frames
    assert (shown.rows[0].name, shown.total.name) == ("(outside)", "(total)")


@each_result
def test_a_row_has_each_figure_that_the_result_has_and_no_other(found: Result) -> None:
    for report in view(found).layers:
        known = {}
        if report.us is not None and math.isfinite(report.us.half_width):
            known["us"] = (report.us.estimate, report.us.low, report.us.high)
        if report.saves is not None and report.saves.us is not None:
            known["saves_us"] = (report.saves.us.estimate, report.saves.us.low, report.saves.us.high)
        if report.occupation is not None:
            spent = report.occupation
            known["busy_us"] = (spent.busy.estimate, spent.busy.low, spent.busy.high)
            known["wait_us"] = (spent.wait_us, None, None)
            if spent.cpu_us is not None:
                known["cpu_us"] = (spent.cpu_us, None, None)
        for key in (*COUNTED, "received", "sent", "suspensions") if report.counts else ():
            count = getattr(report.counts, key)
            if count is not None:
                known[key] = (count.count, count.low, count.high)
        assert {key: (figure.value, figure.low, figure.high) for key, figure in report.figures.items()} == known


@each_result
def test_the_view_is_the_same_after_the_way_through_json(found: Result) -> None:
    there = codec.measurement("t", found)
    assert repr(view(codec.result(json.loads(json.dumps(there))))) == repr(view(codec.result(there)))
    assert codec.measurement("t", codec.result(there)) == there


def test_a_tool_that_was_at_work_is_not_forgotten_in_json() -> None:
    disturbed = but(UNCOUNTABLE, books=None, floor_us=None, effort=None, disturbed="a tracer was at work")
    disturbed = replace(disturbed, layers=(replace(disturbed.layers[0], us=None, occupation=None),))
    back = codec.result(codec.measurement("t", disturbed))
    assert back.disturbed == "a tracer was at work"
    assert view(back).headline == view(disturbed).headline == "undecided"
    assert view(back).layers[0].why["us"] == "a tracer was at work"
    assert view(UNCOUNTABLE).headline == "objects cannot be counted here"


def test_a_figure_shows_its_range_or_interval() -> None:
    figures = view(timed(counted(replace(PASSING, counts=MUCH, occupation=BUSY)))).layers[0].figures
    assert (figures["us"].text, figures["us"].span) == ("17.9", "17.5 … 18.3")
    assert (figures["objects"].text, figures["objects"].span) == ("~478", "460 … 520")
    assert (figures["bytes"].text, figures["tasks"].text) == ("~64.0 KiB", "3")


def test_what_has_no_interval_has_no_figure() -> None:
    nothing = Estimate(0.0, -math.inf, math.inf)
    unbounded = but(result(replace(PASSING, us=nothing)), books=Books(nothing, nothing, None, math.nan))
    shown = view(unbounded)
    assert not any("us" in row.figures for row in shown.rows)
    assert (shown.first, shown.costliest, shown.residue) == (None, None, "? µs")
    assert one_line(unbounded).text == "GET /health pass: not known"


def test_a_run_without_times_has_no_detection_limit_and_no_residue() -> None:
    shown = view(counted(layer_row()))
    assert (shown.detection_limit, shown.residue, shown.effort, shown.counted) == (None, None, None, 21)
    shown = view(result(PASSING))
    assert (shown.detection_limit, shown.residue, shown.counted) == ("0.12 µs", "1.20 µs (+0.5%)", None)


def test_a_result_of_a_run_that_does_not_enforce_has_an_empty_view() -> None:
    shown = view(Result(request=RequestLine("GET", "/"), status=200))
    assert (shown.layers, shown.first, shown.findings, shown.advice) == ([], None, (), ())
    assert list(table(shown, 80)) == []


@pytest.mark.parametrize("render", [html, markdown])
@pytest.mark.parametrize(("note", "times"), [("The machine was slow. [slow-machine]", 1), ("No id.", 0)])
def test_a_report_says_once_what_ids_in_brackets_are_for(render: Callable[..., str], note: str, times: int) -> None:
    if render is html:
        pytest.importorskip("jinja2")
    noted = replace(timed(counted(PASSING)), notes=(note, note))
    text = render(one_run(noted, noted))
    assert text.count("mwbudget explain ID") == times


# ---- the layer to look at first ----------------------------------------------------------------------------------

MOST = {"us": 40.0, "busy_us": 20.0, "objects": 300.0, "tasks": 0.0}


@st.composite
def stacks(draw: st.DrawFn) -> Result:
    """Draw a result of layers whose verdicts match their figures."""
    layers = []
    for index in range(draw(st.integers(1, 5))):
        numbers: dict[Quantity, float] = {
            "us": draw(st.integers(1, 400)) / 4,
            "busy_us": draw(st.integers(1, 200)) / 4,
            "objects": draw(st.integers(0, 1000)),
            "tasks": draw(st.integers(0, 3)),
        }
        counts = replace(NONE, objects=same(int(numbers["objects"])), tasks=same(int(numbers["tasks"])))
        budgets: dict[Quantity, Judged] = {}
        for quantity in draw(st.sets(st.sampled_from(list(numbers)))):
            verdict = "fail" if numbers[quantity] > MOST[quantity] else draw(st.sampled_from(["pass", "undecided"]))
            budgets[quantity] = Judged(MOST[quantity], verdict, "it is near" if verdict == "undecided" else None)
        occupation = replace(BUSY, busy=us(numbers["busy_us"]), wait_us=0.0)
        layer = Layer(index, f"Layer{index}", f"shop.Layer{index}", "middleware")
        layers.append(LayerReport(layer, us(numbers["us"]), occupation, counts, budgets))
    verdict = worst(report.verdict for report in layers if report.verdict)
    return replace(timed(counted(*layers), *layers), verdict=verdict)


def badness(report: LayerReport) -> tuple[bool, bool, float, float]:
    """Return an independent sort key: fails, is undecided, highest ratio to a budget, time."""
    assert report.us is not None
    assert report.occupation is not None
    assert report.counts is not None
    values = {"us": report.us.estimate, "busy_us": report.occupation.busy.estimate}
    over = [
        values.get(quantity, getattr(getattr(report.counts, quantity, None), "count", 0)) / max(budget.bound, 0.5)
        for quantity, budget in report.judged.items()
        if budget.verdict == "fail"
    ]
    return report.verdict == "fail", report.verdict == "undecided", max(over, default=0.0), report.us.estimate


@relaxed
@given(found=stacks())
def test_the_first_layer_is_as_bad_as_any(found: Result) -> None:
    first = view(found).first
    assert first is not None
    assert not first.is_frame
    assert badness(first) == max(map(badness, found.layers))


@settings(deadline=None, max_examples=25)  # Each example renders a page.
@given(found=stacks())
def test_every_report_has_each_finding_and_names_the_same_layer_first(found: Result) -> None:
    data = one_run(found)
    page = read(html(data))
    check_first(found, page)
    check_findings(found, page.text, markdown(data))


def check_first(found: Result, page: Element) -> None:
    first = view(found).first
    assert first is not None
    assert dict(properties([found]))["mw_budget.worst_layer"] == first.name
    overview = page.all("table", "overview")[0].all("tbody")[0].all("td")
    assert overview[-1].all("span", "name")[0].text == first.name
    if found.verdict == "fail":
        assert failure(found, 79).startswith(f"GET /health: {first.name} ")
        assert re.search(r"title=([^:]*): (\w+) ", annotation(found, "error", "t.py", 1).replace("%3A", ":"))[2] == (  # type: ignore[index]
            first.name
        )


def check_findings(found: Result, page: str, text: str) -> None:
    shown = view(found)
    failure_text = " ".join(failure(found, 1000, undecided_fails=True).split())
    sent = annotation(found, "error", "t.py", 1)
    for finding in shown.findings:
        assert finding.sentence in failure_text
        assert finding.sentence in sent.replace("%25", "%")
        assert finding.sentence.replace("_", "&#95;") in text or finding.sentence in text
        assert finding.verdict is None or f"{finding.subject} {finding.text}" in page
    judged = [budget.verdict for report in found.layers for budget in report.judged.values()]
    assert sum(finding.verdict == "fail" for finding in shown.findings) == judged.count("fail")
    assert bool(shown.undecided) == ("undecided" in judged)


def test_a_layer_over_its_budget_comes_before_a_costlier_one_and_both_have_their_names() -> None:
    shown = view(result(row(0, "Slow", 900.0, 1000.0), FAILING, OPEN))
    assert shown.first is not None
    assert shown.costliest is not None
    assert (shown.first.name, shown.costliest.name) == ("AuthMiddleware", "Slow")


def test_of_equals_the_outermost_comes_first() -> None:
    shown = view(result(row(0, "A", 100.0, 50.0, "fail"), row(1, "B", 100.0, 50.0, "fail")))
    assert shown.first is not None
    assert shown.first.name == "A"


def test_a_run_of_counts_in_which_all_pass_has_no_layer_to_look_at() -> None:
    assert view(counted(judged(layer_row(), tasks=(0, "pass")))).first is None


def test_layers_that_are_undecided_for_one_reason_share_a_sentence_and_the_request_has_its_own() -> None:
    near = replace(OPEN, layer=replace(OPEN.layer, name="Near"))
    different = result(OPEN, near, budgets={"total": Judged(245.0, "undecided", "the interval holds it")})
    reason = OPEN.judged["us"].reason
    alike = but(different, budgets={"total": Judged(245.0, "undecided", reason)})
    assert [finding.sentence for finding in view(alike).undecided] == [
        f"CORSMiddleware and Near are undecided: {reason}.",
        f"The whole request is undecided: {reason}.",
    ]


def test_an_undecided_layer_is_named_before_a_costlier_one_that_passes() -> None:
    undecided = counted(
        judged(layer_row("Open"), tasks=(0, "undecided")), judged(layer_row("Fine", 1), tasks=(0, "pass"))
    )
    page = read(html(one_run(undecided)))
    assert page.all("table", "overview")[0].all("tbody")[0].all("td")[-1].text == "Open undecided"


def test_a_stored_failure_without_its_figure_is_still_shown() -> None:
    stored = result(replace(FAILING, us=None), verdict="fail")
    assert view(stored).findings == ()
    assert "AuthMiddleware" in failure(stored, 79)


# ---- executed code ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cpu_us", "bytecodes", "slowdown", "suspended", "mostly"),
    [
        (153.0, 1111, 1.0, (0, 0.0), True),  # GZip of 7 kB
        (29.9, 33, None, (0, 0.0), True),  # a regular expression
        (316.6, 6309, 1.0, (8, 0.0), False),  # a BaseHTTPMiddleware
        (64.1, 12035, 1.0, (0, 0.0), False),  # a loop
        (153.0, 1111, 1.3, (0, 0.0), False),  # on a machine that may have slowed it down by 1.69
        (9.0, 10, 1.0, (0, 0.0), False),
        (None, 33, 1.0, (0, 0.0), None),
        (29.9, None, 1.0, (0, 0.0), None),
        (33.6, 93, 1.0, (1, 2059.0), None),  # it sleeps, on uvloop
        (20.9, 193, 1.0, (10, 0.0), None),  # it yields
        (33.6, 93, 1.0, (0, 36.5), None),
    ],
)
def test_a_layer_that_works_mostly_in_c_is_named(
    cpu_us: float | None,
    bytecodes: int | None,
    slowdown: float | None,
    suspended: tuple[int, float],
    mostly: bool | None,
) -> None:
    suspensions, wait_us = suspended
    spent = Occupation(us(400.0), wait_us, cpu_us)
    counts = replace(
        MUCH, bytecodes=None if bytecodes is None else same(bytecodes), suspensions=Count(0, 0, suspensions)
    )
    report = replace(layer_row(counts=counts), us=us(400.0), occupation=spent)
    result = replace(timed(counted(report)), slowdown=slowdown)
    (auth,) = [row for row in view(result).rows if not row.is_frame]
    assert auth.mostly_c(slowdown or 1.0) is mostly
    assert codec.measurement("t", result)["layers"][0]["mostly_c"] is mostly
    named = "Mostly C code, which bytecodes, calls and py_calls do not see: Auth ("
    assert [note.startswith(named) for note in view(result).notes if note.endswith("[in-c]")] == [True] * bool(mostly)
