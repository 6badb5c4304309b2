"""The JSON document: its shape, loading it, and that every JSON parser accepts it."""

from __future__ import annotations

import json
import math
import platform
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta

import pytest

from pytest_mwbudget.model.changes import Since
from pytest_mwbudget.model.estimate import Estimate
from pytest_mwbudget.model.measured_run import LeftOut, MeasuredRun
from pytest_mwbudget.model.quantities import COUNTED, PROCESS_WIDE
from pytest_mwbudget.model.results import (
    Books,
    Count,
    Counts,
    Effort,
    HotFunction,
    Judged,
    LayerReport,
    Ledger,
    Occupation,
    Profile,
    RepeatedTest,
    RequestLine,
    Result,
    SurveyRun,
)
from pytest_mwbudget.model.runs import Commit
from pytest_mwbudget.model.saves import Saves
from pytest_mwbudget.model.stack import Layer
from pytest_mwbudget.report.advice import advise
from pytest_mwbudget.report.terminal import failure, table
from pytest_mwbudget.report.view import view
from pytest_mwbudget.session.provenance import this_run
from pytest_mwbudget.storage import codec

from .canned import RUN, as_json, but, canned, one_run

GZIP = Layer(0, "GZipMiddleware", "starlette.middleware.gzip.GZipMiddleware", "middleware", runs_task=True)
MOUNT = Layer(1, "Mount", "starlette.routing.Mount", "routing", merged_with="GZipMiddleware", merged_because="no probe")
AUTH = Layer(2, "Auth#2", "shop.Auth", "middleware", entered=False)


def exact(number: int, **kinds: int) -> Count:
    return Count(number, number, number, {f"shop.{kind}": many for kind, many in kinds.items()})


NOTHING = Counts(*[exact(0)] * 12)
GZIP_COUNTS = Counts(
    objects=Count(5, 4, 9, {"builtins.dict": 3, "shop.Token": 2}),
    allocations=exact(30),
    bytes=Count(2048, 2000, 4096),
    tasks=exact(1, rest=1),
    threads=exact(2, work=2),
    retained=exact(1, Token=1),
    received=exact(3),
    sent=exact(4),
    suspensions=Count(2, 2, 6),
    bytecodes=exact(6410),
    calls=exact(529),
    py_calls=exact(327),
    own_types=("shop.Token",),
)
LEDGER = Ledger(outside=NOTHING, endpoint=replace(NOTHING, sent=exact(4)), total=GZIP_COUNTS, requests=21)
BUSY = Occupation(Estimate(7.9, 7.5, 8.2), 10.0, 6.5, blocking=True)

RESULT = canned(
    request=RequestLine("GET", "/health?q=ü"),
    status=200,
    loop="uvloop",
    layers=(
        LayerReport(
            GZIP,
            Estimate(17.9, 17.5, 18.2),
            BUSY,
            GZIP_COUNTS,
            {"us": Judged(50.0, "pass"), "busy_us": Judged(9.0, "pass"), "tasks": Judged(0, "fail")},
            saves=Saves(Estimate(20.5, 19.0, 22.0)),
        ),
        LayerReport(MOUNT, judged={"us": Judged(20.0, "undecided", "it is measured together")}),
        LayerReport(AUTH),
    ),
    ledger=LEDGER,
    books=Books(Estimate(245.1, 244.0, 246.3), Estimate(0.6, 0.3, 0.9), Estimate(41.0, 40.6, 41.3), -0.7),
    floor_us=0.12,
    slowdown=1.25,
    effort=Effort(requests=960, rounds=120, seconds=0.41),
    budgets={"total": Judged(400.0, "pass")},
    verdict="undecided",
    notes=("A tracer was suspended.",),
)
# A run that ended at once, without intervals.
UNKNOWN = but(
    RESULT,
    layers=(LayerReport(GZIP, counts=GZIP_COUNTS, judged={"us": Judged(50.0, "undecided", "too few")}),),
    books=Books(Estimate(0.0, -math.inf, math.inf), Estimate(0.6, 0.3, 0.9), None, math.nan),
    floor_us=math.inf,
    slowdown=1.0,
)
# Every budget is a count, so there are no times.
UNTIMED = but(
    RESULT,
    layers=(
        LayerReport(GZIP, counts=GZIP_COUNTS, judged={"tasks": Judged(0, "fail"), "bytes": Judged(4096, "pass")}),
        LayerReport(MOUNT, judged={"tasks": Judged(0, "undecided", "it is measured together")}),
        LayerReport(AUTH, judged={"tasks": Judged(0, "undecided", "the request did not come to it")}),
    ),
    books=None,
    floor_us=None,
    slowdown=None,
    effort=None,
    budgets={},
    verdict="fail",
)
WHY = dict.fromkeys(PROCESS_WIDE, "the extension was not built")
UNCOUNTED = replace(GZIP_COUNTS, **dict.fromkeys(PROCESS_WIDE), own_types=())
# Counted without the extension, on a platform whose CPU clock is too coarse.
UNCOUNTABLE = but(
    RESULT,
    layers=(
        replace(
            RESULT.layers[0],
            occupation=replace(BUSY, cpu_us=None, blocking=False),
            counts=UNCOUNTED,
            judged={"objects": Judged(100, "undecided", "objects cannot be counted here")},
        ),
    ),
    ledger=Ledger(UNCOUNTED, None, UNCOUNTED, 21, WHY),
)
RESULTS = {
    "timed": RESULT,
    "unknown": UNKNOWN,
    "untimed": UNTIMED,
    "uncountable": UNCOUNTABLE,
    "without layers": replace(RESULT, layers=()),
}
each_result = pytest.mark.parametrize("result", RESULTS.values(), ids=RESULTS)


def test_a_measurement_says_what_was_measured() -> None:
    data = codec.measurement("test_overhead.py::test_health", RESULT)
    assert data["nodeid"] == "test_overhead.py::test_health"
    assert data["request"] == {"method": "GET", "url": "/health?q=ü"}
    assert (data["status"], data["verdict"], data["rounds"], data["seconds"]) == (200, "undecided", 120, 0.41)
    assert data["total_us"] == {"estimate": 245.1, "low": 244.0, "high": 246.3}
    assert data["outside_us"] == {"estimate": 0.6, "low": 0.3, "high": 0.9}
    assert data["endpoint_us"] == {"estimate": 41.0, "low": 40.6, "high": 41.3}


def test_a_layer_says_how_it_spends_its_time() -> None:
    layer = codec.measurement("t", RESULT)["layers"][0]
    assert (layer["busy_us"], layer["busy_interval_us"]) == (7.9, [7.5, 8.2])
    assert (layer["wait_us"], layer["cpu_us"], layer["blocking"]) == (10.0, 6.5, True)


def test_a_layer_says_what_was_counted() -> None:
    layer = codec.measurement("t", RESULT)["layers"][0]
    types = {"builtins.dict": 3, "shop.Token": 2}
    assert layer["objects"] == {"count": 5, "exact": False, "low": 4, "high": 9, "types": types}
    assert layer["allocations"] == {"count": 30, "exact": True, "low": 30, "high": 30}
    assert layer["bytes"] == {"count": 2048, "exact": False, "low": 2000, "high": 4096}
    assert layer["tasks"] == {"count": 1, "exact": True, "low": 1, "high": 1, "names": {"shop.rest": 1}}
    assert layer["threads"] == {"count": 2, "exact": True, "low": 2, "high": 2, "names": {"shop.work": 2}}
    assert layer["retained"] == {"count": 1, "exact": True, "low": 1, "high": 1, "types": {"shop.Token": 1}}
    assert layer["suspensions"] == {"count": 2, "exact": False, "low": 2, "high": 6}
    assert layer["messages"] == {"receive": 3, "send": 4}
    assert layer["own_types"] == ["shop.Token"]
    assert layer["why"] == {}


def test_a_layer_has_its_budgets_by_quantity_and_that_of_time_by_itself() -> None:
    gzip, mount, auth = codec.measurement("t", RESULT)["layers"]
    assert gzip["budgets"] == {
        "us": {"bound": 50.0, "verdict": "pass", "reason": None},
        "busy_us": {"bound": 9.0, "verdict": "pass", "reason": None},
        "tasks": {"bound": 0, "verdict": "fail", "reason": None},
    }
    assert (gzip["budget_us"], gzip["verdict"], gzip["reason"]) == (50.0, "fail", None)
    undecided = {"bound": 20.0, "verdict": "undecided", "reason": "it is measured together"}
    assert (mount["budgets"], mount["budget_us"]) == ({"us": undecided}, 20.0)
    assert (auth["budgets"], auth["budget_us"]) == ({}, None)
    assert codec.measurement("t", UNTIMED)["layers"][0]["budget_us"] is None


def test_the_ledger_has_what_is_no_layers_and_the_sum() -> None:
    ledger = codec.measurement("t", RESULT)["ledger"]
    assert ledger["requests"] == 21
    assert ledger["outside"]["messages"] == {"receive": 0, "send": 0}
    assert ledger["endpoint"]["messages"] == {"receive": 0, "send": 4}
    assert ledger["total"]["objects"]["count"] == 5
    assert ledger["why"] == {}
    assert codec.measurement("t", UNCOUNTABLE)["ledger"]["endpoint"] is None
    assert codec.measurement("t", UNCOUNTABLE)["ledger"]["why"] == WHY


def test_a_layer_without_figures_has_null_and_its_reason() -> None:
    _, merged, absent = codec.measurement("t", RESULT)["layers"]
    assert (merged["us"], merged["merged_with"]) == (None, "GZipMiddleware")
    assert (merged["verdict"], merged["reason"]) == ("undecided", "it is measured together")
    assert (absent["us"], absent["entered"], absent["budget_us"], absent["verdict"]) == (None, False, None, None)


FIGURES = {"us", "saves_us", "busy_us", "wait_us", "cpu_us", *COUNTED, "suspensions", "messages", "own_types"}


@each_result
def test_every_figure_that_is_null_has_its_reason_and_no_other(result: Result) -> None:
    for layer in codec.measurement("t", result)["layers"]:
        assert {key for key in FIGURES if layer[key] is None} == layer["why"].keys()
        assert all(layer["why"].values())


def test_a_layer_without_any_figure_has_one_reason_for_all() -> None:
    _, merged, absent = codec.measurement("t", RESULT)["layers"]
    assert merged["why"] == dict.fromkeys(FIGURES, "it is measured together with GZipMiddleware")
    assert absent["why"] == dict.fromkeys(FIGURES, "the request did not come to this layer")
    _, merged, absent = codec.measurement("t", UNTIMED)["layers"]
    assert merged["why"] == dict.fromkeys(FIGURES, "it is measured together with GZipMiddleware")
    assert absent["why"] == dict.fromkeys(FIGURES, "the request did not come to this layer")


def test_a_run_without_the_clock_says_so_for_each_time() -> None:
    data = codec.measurement("t", UNTIMED)
    times = ("us", "saves_us", "busy_us", "wait_us", "cpu_us")
    assert data["layers"][0]["why"] == dict.fromkeys(times, "every budget is a count, so nothing was timed")
    for key in (
        "rounds",
        "requests",
        "seconds",
        "floor_us",
        "slowdown",
        "total_us",
        "outside_us",
        "endpoint_us",
        "residue_us",
    ):
        assert data[key] is None
    assert data["ledger"]["requests"] == 21


def test_a_run_that_was_too_short_says_so_for_each_time() -> None:
    times = ("us", "saves_us", "busy_us", "wait_us", "cpu_us")
    assert codec.measurement("t", UNKNOWN)["layers"][0]["why"] == dict.fromkeys(times, "there were too few requests")


def test_what_cannot_be_counted_or_told_is_null_with_its_own_reason() -> None:
    layer = codec.measurement("t", UNCOUNTABLE)["layers"][0]
    cannot = {
        "cpu_us": "the clock of the processor's time is too coarse here, or there were too few requests",
        "own_types": WHY["objects"],
    }
    assert layer["why"] == {**WHY, **cannot}
    assert layer["tasks"]["count"] == 1
    assert layer["blocking"] is False


@each_result
def test_no_number_is_one_that_json_does_not_know(result: Result) -> None:
    text = codec.text(codec.document(one_run(result)))
    assert "NaN" not in text
    assert "Infinity" not in text


def there_and_back(result: Result) -> Result:
    return codec.result(json.loads(json.dumps(codec.measurement("t", result))))


@pytest.mark.parametrize("name", [name for name in RESULTS if name != "unknown"])
def test_the_way_there_and_back_loses_nothing(name: str) -> None:
    assert there_and_back(RESULTS[name]) == RESULTS[name]


def test_zero_of_everything_comes_back_as_zero() -> None:
    layer = LayerReport(GZIP, counts=NOTHING, judged={"tasks": Judged(0, "pass")})
    result = but(UNTIMED, layers=(layer,), ledger=Ledger(NOTHING, None, NOTHING, 3), verdict="pass")
    assert there_and_back(result) == result


def test_a_total_without_a_median_comes_back_as_zero_of_unknown_width() -> None:
    data = codec.measurement("t", UNKNOWN)
    data["total_us"]["estimate"] = None  # as the schema allows
    books = codec.result(data).books
    assert books is not None
    assert books.total == Estimate(0.0, -math.inf, math.inf)


def test_what_is_unknown_comes_back_as_unknown() -> None:
    back = there_and_back(UNKNOWN)
    assert back.layers == UNKNOWN.layers
    assert back.floor_us == math.inf
    assert back.books is not None
    assert back.books.total == Estimate(0.0, -math.inf, math.inf)
    assert back.books.endpoint is None
    assert math.isnan(back.books.residue_us)


@each_result
@pytest.mark.parametrize("verbose", [False, True])
def test_the_table_is_the_same_after_the_way_back(result: Result, verbose: bool) -> None:
    back = there_and_back(result)
    assert list(table(view(back), 80, verbose)) == list(table(view(result), 80, verbose))


@each_result
def test_the_failure_is_the_same_after_the_way_back(result: Result) -> None:
    assert failure(there_and_back(result), 79) == failure(result, 79)


def test_a_run_has_interpreter_loops_installed_packages_and_the_time() -> None:
    run = this_run(replace(RESULT, loop=loop) for loop in ("uvloop", "asyncio", "uvloop"))
    assert run.interpreter == f"{platform.python_implementation()} {platform.python_version()}"
    assert run.loop == "asyncio, uvloop"
    assert run.packages["pytest"] == pytest.__version__
    created = datetime.fromisoformat(run.created)
    assert created.tzinfo is not None
    assert abs(datetime.now(UTC) - created) < timedelta(minutes=5)
    assert this_run([]).loop == "asyncio"


def test_a_run_comes_back_with_all_its_parts() -> None:
    survey = SurveyRun(1.5, 60, 3, (RepeatedTest("b", "assert 1"),), ("httpx9",), 2)
    since = Since("main", RUN.created, Commit("a" * 40), ("new",), grown=("Auth grew",))
    left_out = (LeftOut("c", RequestLine("POST", "/"), "it is not repeated"),)
    run = MeasuredRun(RUN, (("a", RESULT), ("b", UNTIMED)), left_out, survey, since)
    assert codec.measured_run(as_json(run)) == run


@pytest.mark.parametrize("key", ["status", "request", "ledger"])
def test_what_must_have_a_value_cannot_be_null(key: str) -> None:
    with pytest.raises(TypeError):
        codec.result({**codec.measurement("t", RESULT), key: None})


def test_a_profile_comes_back_with_its_functions() -> None:
    hot = HotFunction("spin", "shop.py", 12, 90.0, 95.5)
    profile = Profile(400, 2100, 410.5, "a.html", "b.html", "c.json", {0: (hot,), 2: ()})
    assert there_and_back(replace(RESULT, profile=profile)).profile == profile


def test_advice_is_that_of_the_result() -> None:
    layer = replace(RESULT.layers[0], us=Estimate(400.0, 399.0, 401.0))
    result = replace(
        RESULT, layers=(replace(layer, occupation=Occupation(Estimate(400.0, 399.0, 401.0), 0.0, 1.0, True)),)
    )
    (advice,) = (measurement["advice"] for measurement in as_json(one_run(result))["measurements"])
    assert advice == [asdict(each_advice) for each_advice in advise(result)]
    assert [each_advice["rule"] for each_advice in advice] == ["blocking"]


def test_the_text_of_the_file_keeps_every_letter() -> None:
    data = codec.document(one_run(RESULT, nodeid="tests/test_ü.py"))
    assert json.loads(codec.text(data)) == data
    assert "test_ü" in codec.text(data)


def test_every_text_can_be_written_whatever_the_app_calls_its_things() -> None:
    odd = "A\udcff"
    counts = replace(GZIP_COUNTS, tasks=Count(1, 1, 1, {odd: 1}), own_types=(odd,))
    layer = replace(RESULT.layers[0], layer=replace(RESULT.layers[0].layer, name=odd), counts=counts)
    result = replace(RESULT, layers=(layer,), request=RequestLine("GET", odd), notes=(odd,))
    data = codec.document(MeasuredRun(RUN, ((odd, result),)))
    codec.text(data).encode()
    (measurement,) = data["measurements"]
    assert [measurement["nodeid"], *measurement["notes"]] == ["A\\udcff"] * 2
    assert measurement["layers"][0]["tasks"]["names"] == {"A\\udcff": 1}


def test_a_run_that_measured_nothing_is_a_document_too() -> None:
    data = codec.document(MeasuredRun(RUN))
    assert (data["schema"], data["measurements"]) == ("pytest-mwbudget/1", [])
