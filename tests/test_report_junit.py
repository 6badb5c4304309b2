"""Properties of a testcase: those of the worst request, and if there are several requests, those of each."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from pytest_mwbudget.model.estimate import Estimate
from pytest_mwbudget.model.results import Books, RequestLine, Result
from pytest_mwbudget.report.junit import properties

from .canned import but
from .test_report_terminal import FAILING, MUCH, NONE, OPEN, PASSING, counted, judged, layer_row, result, row, us


def of(*results: Result) -> dict[str, Any]:
    pairs = list(properties(results))
    assert len(dict(pairs)) == len(pairs)
    return dict(pairs)


def test_a_request_has_its_verdict_and_its_worst_layer_with_what_was_measured() -> None:
    assert of(result(PASSING, replace(FAILING, counts=MUCH), verdict="fail")) == {
        "mw_budget.request": "GET /health",
        "mw_budget.verdict": "fail",
        "mw_budget.total_us": 245.1,
        "mw_budget.worst_layer": "AuthMiddleware",
        "mw_budget.worst_layer_us": 117.25,
        "mw_budget.worst_layer_objects": 478,
        "mw_budget.worst_layer_allocations": 1200,
        "mw_budget.worst_layer_bytes": 65_536,
        "mw_budget.worst_layer_tasks": 3,
        "mw_budget.worst_layer_threads": 2,
        "mw_budget.worst_layer_retained": 1,
        "mw_budget.worst_layer_bytecodes": 6410,
        "mw_budget.worst_layer_calls": 529,
        "mw_budget.worst_layer_py_calls": 327,
    }


def test_what_is_not_known_has_no_property() -> None:
    unknown = replace(PASSING, us=Estimate(0.0, -math.inf, math.inf), judged={})
    timeless = but(result(unknown), verdict=None, books=Books(unknown.us, us(0.6), None, math.nan))
    assert of(timeless) == {"mw_budget.request": "GET /health"}
    countless = replace(FAILING, counts=replace(NONE, objects=None, allocations=None, bytes=None, retained=None))
    assert "mw_budget.worst_layer_objects" not in of(result(countless, verdict="fail"))
    assert of(result(countless, verdict="fail"))["mw_budget.worst_layer_tasks"] == 0


def test_a_run_without_times_has_the_counts_of_what_fails() -> None:
    fine = judged(layer_row("Fine", counts=NONE), tasks=(0, "pass"))
    bad = judged(layer_row("Bad", 1, counts=MUCH), tasks=(0, "fail"))
    properties = of(counted(fine, bad, verdict="fail"))
    assert properties["mw_budget.worst_layer"] == "Bad"
    assert properties["mw_budget.worst_layer_tasks"] == 3
    assert "mw_budget.worst_layer_us" not in properties
    assert "mw_budget.total_us" not in properties
    assert "mw_budget.worst_layer" not in of(counted(fine))


@pytest.mark.parametrize(
    ("rows", "name"),
    [
        ((PASSING, row(1, "Slow", 900.0, 1000.0), FAILING), "AuthMiddleware"),
        ((PASSING, row(1, "Slow", 900.0, 1000.0), OPEN), "CORSMiddleware"),
        ((OPEN, FAILING), "AuthMiddleware"),
        ((FAILING, row(2, "Worse", 300.0, 50.0, "fail")), "Worse"),
        ((row(1, "Slow", 900.0, 800.0, "fail"), row(2, "Worse", 300.0, 50.0, "fail")), "Worse"),
        ((PASSING, row(1, "Slow", 900.0)), "Slow"),
    ],
)
def test_the_worst_layer_has_the_worst_verdict_then_the_most_excess_then_the_most_time(rows: Any, name: str) -> None:
    assert of(result(*rows))["mw_budget.worst_layer"] == name


def request(url: str, verdict: Any, total: float) -> Result:
    plain = result(row(0, f"Layer of {url}", total / 2), verdict=verdict)
    return but(plain, request=RequestLine("GET", url), books=Books(us(total), us(0.6), None, 0.0))


def test_of_several_requests_the_plain_names_are_those_of_the_worst_and_each_has_its_number() -> None:
    properties = of(request("/a", "pass", 900.0), request("/b", "fail", 100.0), request("/c", "fail", 300.0))
    assert (properties["mw_budget.request"], properties["mw_budget.verdict"]) == ("GET /c", "fail")
    assert (properties["mw_budget.worst_layer"], properties["mw_budget.worst_layer_us"]) == ("Layer of /c", 150.0)
    assert [properties[f"mw_budget.{number}.request"] for number in (1, 2, 3)] == ["GET /a", "GET /b", "GET /c"]
    assert [properties[f"mw_budget.{number}.verdict"] for number in (1, 2, 3)] == ["pass", "fail", "fail"]
    assert properties["mw_budget.1.worst_layer_us"] == 450.0


def test_a_single_request_has_no_number() -> None:
    assert not any(".1." in name for name in of(request("/a", "pass", 9.0)))


def test_every_value_can_be_sent_home_and_written() -> None:
    odd = replace(FAILING, layer=replace(FAILING.layer, name="A\udcff\n"))
    properties = of(replace(result(odd, verdict="fail"), request=RequestLine("GET", "/\udcff")))
    assert (properties["mw_budget.request"], properties["mw_budget.worst_layer"]) == ("GET /\\udcff", "A\\udcff\\n")


def test_a_test_without_requests_has_no_properties() -> None:
    assert of() == {}
