"""`--mw-budget-survey` in whole runs: what is measured, what is not, and that no test changes its outcome."""

from __future__ import annotations

import gc
import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any

# See tests/test_plugin.py: modules imported here are not imported again in each run.
import pytest
import starlette.middleware.base  # noqa: F401

import pytest_mwbudget.engine
import pytest_mwbudget.session.survey
from pytest_mwbudget.counting.backend import NOT_BUILT, Backend
from pytest_mwbudget.counting.python_core import PythonCore
from pytest_mwbudget.model.quantities import EXECUTED, PROCESS_WIDE
from pytest_mwbudget.session import survey_time
from pytest_mwbudget.session.configuration import time_limit_s
from pytest_mwbudget.session.survey import (
    LOOKS,
)

from .apps import ASYNCIO, FAST, LEAN, Scheduled, alone, run_inside
from .apps import needs as counts
from .conftest import needs

SHOP = """
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route

calls = []


async def add_header(request, call_next):
    return await call_next(request)


async def health(request):
    calls.append("health")
    return PlainTextResponse("ok")


async def order(request):
    calls.append("order")
    return PlainTextResponse("tea", 200 if request.path_params["id"] < 10 else 404)


async def make(request):
    calls.append("make")
    return PlainTextResponse("made")


async def broken(request):
    raise LookupError("no such shelf")


def create_app():
    routes = [
        Route("/health", health),
        Route("/orders/{id:int}", order),
        Route("/orders", make, methods=["POST"]),
        Route("/broken", broken),
    ]
    return Starlette(routes=routes, middleware=[Middleware(BaseHTTPMiddleware, dispatch=add_header)])
"""

HEAD = """
import pytest
import shop
from starlette.testclient import TestClient


@pytest.fixture
def client():
    with TestClient(shop.create_app()) as client:
        yield client


@pytest.fixture(scope="module")
def shared():
    with TestClient(shop.create_app()) as client:
        yield client


@pytest.fixture(autouse=True)
def no_calls():
    shop.calls.clear()

"""

# No test needs precise times.
IMPRECISE = Scheduled(**FAST | {"precision_time_s": 0.02})
# Few seconds for each request, as there would be in a large suite.
SHORT = "--mw-budget-survey-time=20"


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A directory with an app, and with a lock directory of its own."""
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY", "GITHUB_WORKSPACE"):
        monkeypatch.delenv(name, raising=False)
    pytester.makepyfile(shop=SHOP)
    return pytester


@pytest.fixture
def untimed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let requests only be counted: times take most of a run, and few tests here are about them."""
    for name in ("MOST_S", "FIRST_S"):
        monkeypatch.setattr(survey_time, name, survey_time.LEAST_S / 2)


def survey(suite: pytest.Pytester, tests: str, *arguments: str) -> pytest.RunResult:
    suite.makepyfile(test_shop=HEAD + tests)
    options = ("-W", "ignore", "--mw-budget-json=found.json", "--mw-budget-survey", SHORT)
    using = [ASYNCIO] if "async def test" in tests else []
    return run_inside(suite, *options, *arguments, plugins=[IMPRECISE], using=using)


def found(suite: pytest.Pytester) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((suite.path / "found.json").read_text())
    return data


def routes(suite: pytest.Pytester) -> list[str]:
    """List the requests that were measured, in order, with the status."""
    return [
        f"{measurement['request']['method']} {measurement['route']} {measurement['status']}"
        for measurement in found(suite)["measurements"]
        if measurement["surveyed"]
    ]


def left_out(suite: pytest.Pytester) -> dict[str, str]:
    return {
        f"{omission['request']['method']} {omission['request']['url']}": omission["reason"]
        for omission in found(suite)["left_out"]
    }


def said(result: pytest.RunResult) -> str:
    return " ".join(result.stdout.str().split())


# ---- what is measured ---------------------------------------------------------------------------------------------


def test_every_distinct_request_of_a_suite_is_measured_once_without_a_mark(suite: pytest.Pytester) -> None:
    tests = """
def test_health(client):
    assert client.get("/health").text == "ok"

@pytest.mark.parametrize("number", [1, 2, 99])
def test_order(client, number):
    assert client.get(f"/orders/{number}").status_code == (200 if number < 10 else 404)

def test_with_another_client(shared):
    shared.get("/health")
    shared.get("/orders/3")

def test_without_a_request():
    pass
"""
    result = survey(suite, tests)
    result.assert_outcomes(passed=6)
    assert result.ret == 0
    assert routes(suite) == ["GET /health 200", "GET /orders/{id} 200", "GET /orders/{id} 404"]
    printed = said(result)
    assert "mw-budget survey" in printed
    assert "3 requests of 6 tests measured in" in printed
    # On a busy machine the little time that a survey has gives no interval.
    assert re.search(r"GET /orders/\{id\} 404 +(~?[\d.]+|\?)", result.stdout.str())
    assert re.search(r"\n\S+\[add_header\] +own +3 ", result.stdout.str())
    assert "layers and routes: µs per request" in printed
    assert found(suite)["survey"]["tests"] == 6
    assert found(suite)["measurements"][0]["nodeid"] == "test_shop.py::test_health"


def test_times_and_counts_are_those_of_the_request_and_the_files_are_written(suite: pytest.Pytester) -> None:
    files = ("--mw-budget-html=a.html", "--mw-budget-markdown=a.md")
    survey(suite, "def test_health(client): client.get('/health')", *files)
    (measurement,) = found(suite)["measurements"]
    layers = {layer["name"]: layer for layer in measurement["layers"]}
    assert layers["BaseHTTPMiddleware[add_header]"]["tasks"]["count"] == 1
    assert (
        layers["BaseHTTPMiddleware[add_header]"]["us"]["estimate"] > layers["ServerErrorMiddleware"]["us"]["estimate"]
    )
    assert measurement["verdict"] is None
    assert "Layers over all routes" in (suite.path / "a.html").read_text()
    assert "A survey of 1 test," in Path(suite.path / "a.md").read_text()


@pytest.mark.usefixtures("untimed")
def test_async_tests_and_unittest_classes_are_workloads_too(suite: pytest.Pytester) -> None:
    needs("pytest_asyncio", reason="an async test runs with it", group="suites")
    tests = """
import unittest
from pytest_mwbudget.asgi.http_library import httpx

@pytest.mark.asyncio
async def test_async():
    async with httpx.AsyncClient(transport=httpx.ASGITransport(shop.create_app()), base_url="http://shop") as client:
        assert (await client.get("/health")).status_code == 200

class TestShop(unittest.TestCase):
    def setUp(self):
        self.client = TestClient(shop.create_app())

    def test_order(self):
        self.assertEqual(self.client.get("/orders/1").status_code, 200)

class TestShared:
    def test_one(self, shared):
        shared.get("/orders/99")
"""
    survey(suite, tests).assert_outcomes(passed=3)
    assert routes(suite) == ["GET /health 200", "GET /orders/{id} 200", "GET /orders/{id} 404"]


def test_a_request_that_writes_or_fails_is_named_and_so_is_the_reason(suite: pytest.Pytester) -> None:
    tests = """
def test_make(client):
    assert client.post("/orders").text == "made"
    assert shop.calls == ["make"]

def test_broken(client):
    with pytest.raises(LookupError):
        client.get("/broken")
"""
    result = survey(suite, tests)
    result.assert_outcomes(passed=2)
    assert routes(suite) == []
    reasons = left_out(suite)
    assert reasons.keys() == {"POST /orders", "GET /broken"}
    assert "a POST request is not repeated automatically" in reasons["POST /orders"]
    assert reasons["GET /broken"] == "the app raised LookupError"
    assert "not measured: POST /orders: a POST request" in said(result)


@pytest.mark.usefixtures("untimed")
def test_a_request_that_writes_is_measured_if_the_configuration_says_so(suite: pytest.Pytester) -> None:
    survey(suite, "def test_make(client): client.post('/orders')", "-o", "mw_budget_repeat=POST")
    assert routes(suite) == ["POST /orders 200"]


def test_a_suite_without_requests_is_told_so(suite: pytest.Pytester) -> None:
    result = survey(suite, "def test_nothing(): pass")
    result.assert_outcomes(passed=1)
    assert "no request to an ASGI app in this process was measured in 1 test" in said(result)


# ---- outcomes -----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("untimed")
def test_a_test_that_sees_the_repetition_runs_again_without_and_that_counts(suite: pytest.Pytester) -> None:
    tests = """
runs, made = [], []

@pytest.fixture
def once(client):
    yield client
    assert shop.calls == ["order"]

@pytest.fixture(scope="module")
def app_of_the_module():
    made.append(1)
    return shop.create_app()

def test_called_once(client, record_property):
    runs.append(1)
    record_property("run", len(runs))
    print("run", len(runs))
    client.get("/health")
    assert shop.calls == ["health"], f"{len(shop.calls) > 10} in run {len(runs)}"

def test_runs():
    assert runs == [1, 1]

def test_in_a_teardown(once):
    once.get("/orders/1")

def test_app_of_a_wider_scope(app_of_the_module):
    TestClient(app_of_the_module).get("/orders/99")
    assert shop.calls == ["order"]

def test_after(app_of_the_module):
    assert made == [1]
"""
    result = survey(suite, tests, "--junitxml=junit.xml")
    result.assert_outcomes(passed=5)
    assert result.ret == 0
    assert routes(suite) == ["GET /health 200", "GET /orders/{id} 200", "GET /orders/{id} 404"]
    repeated = found(suite)["survey"]["repeated"]
    names = ["test_called_once", "test_in_a_teardown", "test_app_of_a_wider_scope"]
    assert [test["nodeid"] for test in repeated] == [f"test_shop.py::{name}" for name in names]
    assert repeated[0]["cause"].startswith("AssertionError: True in run 1")
    assert "assert" in repeated[1]["cause"]
    assert "test_called_once failed while the survey recorded it, and passed in a second run" in said(result)
    junit = (suite.path / "junit.xml").read_text()
    assert re.findall(r'name="run" value="(\d)"', junit) == ["2"]


def test_tools_that_refuse_blocking_calls_in_a_loop_see_those_of_the_app_only(suite: pytest.Pytester) -> None:
    tests = """
import asyncio
import os

@pytest.fixture(autouse=True)
def no_blocking(monkeypatch):
    def guarded(function):
        def guard(*arguments, **named):
            try:
                asyncio.get_running_loop()
            except RuntimeError:
                return function(*arguments, **named)
            raise RuntimeError(f"{function.__name__} blocks the loop")
        return guard

    for name in ("getcwd", "mkdir", "open", "stat", "listdir"):
        monkeypatch.setattr(os, name, guarded(getattr(os, name)))

def test_it():
    assert TestClient(shop.create_app()).get("/health").text == "ok"
"""
    survey(suite, tests).assert_outcomes(passed=1)
    assert left_out(suite) == {}
    assert routes(suite) == ["GET /health 200"]


@pytest.mark.usefixtures("untimed")
def test_a_test_that_fails_anyway_fails_with_its_own_report(suite: pytest.Pytester) -> None:
    tests = """
def test_wrong(client):
    print("once")
    assert client.get("/health").text == "no"

def test_raises(client):
    client.get("/broken")

def test_without_a_request():
    assert False
"""
    result = survey(suite, tests)
    result.assert_outcomes(failed=3)
    assert found(suite)["survey"]["repeated"] == []
    printed = result.stdout.str()
    assert printed.count("once\n") == 1
    assert "pytest_mwbudget/recording" not in printed
    assert "LookupError: no such shelf" in printed


@pytest.mark.usefixtures("untimed")
def test_skips_and_expected_failures_stay_what_they_are(suite: pytest.Pytester) -> None:
    tests = """
@pytest.mark.skip
def test_skipped(client):
    client.get("/health")

@pytest.mark.xfail(strict=True)
def test_expected(client):
    assert client.get("/health").text == "no"

def test_skips(client):
    client.get("/orders/1")
    pytest.skip("later")
"""
    survey(suite, tests).assert_outcomes(skipped=2, xfailed=1)


def test_tests_with_subtests_are_left_alone(suite: pytest.Pytester) -> None:
    tests = """
import unittest

class TestParts(unittest.TestCase):
    def test_parts(self):
        for part in ("health", "orders/1"):
            with self.subTest(part):
                TestClient(shop.create_app()).get(f"/{part}")
        self.assertEqual(shop.calls, ["health", "order"])
"""
    result = survey(suite, tests)
    result.assert_outcomes(passed=1)
    assert routes(suite) == []


@pytest.mark.usefixtures("untimed")
def test_reruns_of_pytest_rerunfailures_stay_its_own(suite: pytest.Pytester) -> None:
    needs("pytest_rerunfailures", reason="a test is repeated by it", group="suites")
    tests = """
runs = []

@pytest.mark.flaky(reruns=2)
def test_flaky(client):
    runs.append(1)
    client.get("/health")
    assert len(runs) == 2
    assert shop.calls == ["health"]
"""
    result = survey(suite, tests)
    assert result.parseoutcomes() == {"passed": 1, "rerun": 1}


# ---- marked tests -------------------------------------------------------------------------------------------------


def test_marked_tests_are_judged_as_always_timed_as_the_others_and_not_measured_again(suite: pytest.Pytester) -> None:
    tests = """
@pytest.fixture
def mw_budget_app():
    return shop.create_app()

@pytest.mark.mw_budget(tasks=0)
def test_marked(client):
    client.get("/health")

@pytest.mark.mw_budget(tasks=9)
def test_fixture(mw_budget):
    mw_budget.get("/health")

def test_unmarked(client):
    client.get("/health")
    client.get("/orders/1")
"""
    result = survey(suite, tests, "--mw-budget-flamegraph=never")
    result.assert_outcomes(passed=2, failed=1)
    assert "BaseHTTPMiddleware[add_header] spawns 1 task per request, its budget is 0 tasks" in said(result)
    assert routes(suite) == ["GET /orders/{id} 200"]
    assert len(found(suite)["measurements"]) == 3
    assert all(measurement["total_us"] is not None for measurement in found(suite)["measurements"])


# ---- budgets ------------------------------------------------------------------------------------------------------


def test_a_broken_budget_of_the_configuration_fails_the_run_and_no_test(suite: pytest.Pytester) -> None:
    tests = "def test_health(client): client.get('/health')"
    result = survey(suite, tests, "-o", "mw_budget_tasks=0")
    result.assert_outcomes(passed=1)
    assert result.ret == 1
    printed = said(result)
    assert "GET /health: BaseHTTPMiddleware[add_header] spawns 1 task per request, its budget is 0 tasks." in printed
    assert "[survey-budget]" in printed
    # Times are measured although every budget is a count.
    assert found(suite)["measurements"][0]["total_us"] is not None


@counts("retained")
@pytest.mark.usefixtures("untimed")
def test_retained_objects_are_searched_for_only_if_there_is_a_budget_of_them(suite: pytest.Pytester) -> None:
    tests = """
import gc

def test_health(client):
    client.get("/health")
    assert gc.get_freeze_count() == 0
"""
    gc.unfreeze()
    survey(suite, tests).assert_outcomes(passed=1)
    (measurement,) = found(suite)["measurements"]
    assert measurement["ledger"]["why"]["retained"].startswith("a survey searches the heap of the suite for them only")
    assert [layer["retained"] for layer in measurement["layers"]] == [None] * 3
    result = survey(suite, tests, "-o", "mw_budget_retained=1000")
    result.assert_outcomes(passed=1)
    (measurement,) = found(suite)["measurements"]
    assert all(layer["retained"]["count"] == 0 for layer in measurement["layers"])


def test_a_kept_budget_and_one_for_a_layer_that_only_another_app_has_break_nothing(suite: pytest.Pytester) -> None:
    (suite.path / "pytest.ini").write_text("[pytest]\nmw_budget_layers = GZipMiddleware = tasks: 0\n")
    result = survey(suite, "def test_health(client): client.get('/health')", "-o", "mw_budget_tasks=1")
    assert result.ret == 0
    assert routes(suite) == ["GET /health 200"]
    assert found(suite)["measurements"][0]["verdict"] == "pass"


@pytest.mark.usefixtures("untimed")
def test_a_budget_that_cannot_be_judged_fails_the_run(suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it would fail a marked test: else an image without a C compiler passes everything."""
    tests = "def test_health(client): client.get('/health')"
    why_not = dict.fromkeys((*EXECUTED, *PROCESS_WIDE), NOT_BUILT)
    with monkeypatch.context() as without:
        without.setattr(pytest_mwbudget.engine, "counting_backend", lambda: Backend(PythonCore(), why_not))
        result = survey(suite, tests, "-o", "mw_budget_allocations=0")
        result.assert_outcomes(passed=1)
        assert result.ret == 1
        assert "1 request is undecided, which fails the run; GET /health: " in said(result)
        assert survey(suite, tests, "-o", "mw_budget_allocations=0", "--mw-budget-undecided=warn").ret == 0
    # There is no time for a budget of time, or for anything. What no budget of time applies to is not undecided.
    one = "GET /health"
    tests += "\ndef test_order(client): client.get('/orders/1')\ndef test_none(client): client.get('/orders/99')"
    for budget, more, undecided, status, text in (
        ("us=100000", (), "warn", 0, one),
        ("us=100000", (), "fail", 1, "2 requests are undecided, which fails the run"),
        ("layers=GZipMiddleware=us: 9", (), "fail", 0, one),
        ("tasks=9", ("--mw-budget-survey-time=0.01",), "warn", 0, one),
        ("tasks=9", ("--mw-budget-survey-time=0.01",), "fail", 1, "1 request is undecided, which fails the run"),
    ):
        result = survey(suite, tests, "-o", f"mw_budget_{budget}", f"--mw-budget-undecided={undecided}", *more)
        assert result.ret == status
        assert text in said(result)
        assert ("which fails the run" in said(result)) == bool(status)


@pytest.mark.usefixtures("untimed")
def test_a_name_that_no_request_of_the_survey_has_is_told(suite: pytest.Pytester) -> None:
    """Other tests may have it, so it fails nothing."""
    tests = "def test_health(client): client.get('/health')\ndef test_order(client): client.get('/orders/1')"
    for quantity in ("tasks", "us"):  # of which there is time for the first only
        (suite.path / "pytest.ini").write_text(f"[pytest]\nmw_budget_layers = GZipMiddlewre = {quantity}: 9\n")
        result = survey(suite, tests, "--mw-budget-undecided=fail")
        result.assert_outcomes(passed=2)
        assert result.ret == 0
        assert "a layer 'GZipMiddlewre' that no request of the survey has. Did you mean" in said(result)
    (suite.path / "pytest.ini").write_text("[pytest]\nmw_budget_layers = BaseHTTPMiddleware = tasks: 9\n")
    assert "the budget names" not in said(survey(suite, tests))


@pytest.mark.usefixtures("untimed")
def test_an_error_response_is_not_judged(suite: pytest.Pytester) -> None:
    result = survey(suite, "def test_none(client): client.get('/orders/99')", "-o", "mw_budget_tasks=0")
    assert result.ret == 0
    assert found(suite)["measurements"][0]["verdict"] is None


# ---- time ---------------------------------------------------------------------------------------------------------


def test_when_the_time_is_over_the_rest_is_named_once(suite: pytest.Pytester) -> None:
    tests = """
@pytest.mark.parametrize("path", ["/health", "/orders/1", "/orders/2", "/orders/99"])
def test_it(client, path):
    client.get(path)
"""
    result = survey(suite, tests, "--mw-budget-survey-time=0.001")
    result.assert_outcomes(passed=4)
    assert routes(suite) == ["GET /health 200"]
    over = "the 0.001 s of the survey were over; --mw-budget-survey-time gives it more"
    assert left_out(suite) == {"GET /orders/{id}": over}
    assert len(found(suite)["left_out"]) == 1
    assert "not measured: GET /orders/{id}: the 0.001 s of the survey were over" in said(result)


def test_where_there_is_little_time_for_each_request_is_only_counted(suite: pytest.Pytester) -> None:
    tests = """
def test_health(client):
    client.get("/health")

@pytest.mark.parametrize("number", range(40))
def test_many(number):
    pass
"""
    result = survey(suite, tests, "--mw-budget-survey-time=0.5", "-o", "mw_budget_us=1")
    result.assert_outcomes(passed=41)
    (measurement,) = found(suite)["measurements"]
    assert measurement["total_us"] is None
    assert measurement["verdict"] is None
    assert measurement["layers"][1]["tasks"]["count"] == 1
    assert "1 of them were only counted, because there was little time for each [survey-time]" in said(result)


@pytest.mark.usefixtures("untimed")
def test_a_request_that_was_looked_at_often_is_not_called_again(suite: pytest.Pytester) -> None:
    tests = f"""
def test_health(client):
    for _ in range({LOOKS}):
        client.get("/health")
    shop.calls.clear()
    client.get("/health")
    assert shop.calls == ["health"]
"""
    survey(suite, tests).assert_outcomes(passed=1)
    assert found(suite)["survey"]["repeated"] == []


@pytest.mark.usefixtures("untimed")
def test_every_stack_of_one_route_is_measured_also_of_apps_that_many_tests_make(suite: pytest.Pytester) -> None:
    tests = f"""
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Route

class Layer:
    def __init__(self, app):
        self.app = app
    async def __call__(self, scope, receive, send):
        await self.app(scope, receive, send)

LAYERS = [type(f"Layer{{number}}", (Layer,), {{}}) for number in range(3)]

def pure(app, wrapped):
    async def outer(scope, receive, send):
        await wrapped(scope, receive, send)
    return outer

@pytest.mark.parametrize("number", range(3))
def test_it(number):
    for _ in range({LOOKS}):
        app = Starlette(routes=[Route("/", shop.health)], middleware=[Middleware(LAYERS[number])])
        assert TestClient(app).get("/").text == "ok"
        if number < 2:
            app.user_middleware.insert(0, Middleware(pure, wrapped=LAYERS[number + 1](app.router)))
            app.middleware_stack = None
            assert TestClient(app).get("/").text == "ok"
    shop.calls.clear()
    assert TestClient(app).get("/").text == "ok"
    assert shop.calls == ["health"]
"""
    survey(suite, tests).assert_outcomes(passed=3)
    stacks = [[layer["name"] for layer in measurement["layers"]] for measurement in found(suite)["measurements"]]
    names = [f"Layer{number}" for number in range(3)]
    assert [name for name in names if any(name in stack for stack in stacks)] == names
    assert len(stacks) == 5
    assert found(suite)["survey"]["unexamined"] == 3


@pytest.mark.usefixtures("untimed")
def test_a_stack_that_goes_on_changing_is_looked_at_as_long_as_it_does(suite: pytest.Pytester) -> None:
    tests = """
class Layer:
    def __init__(self, app):
        self.app = app
    async def __call__(self, scope, receive, send):
        await self.app(scope, receive, send)

class Switch:
    def __init__(self, app):
        self.ways = [cls(app) for cls in LAYERS]
    async def __call__(self, scope, receive, send):
        await self.ways[int(scope["query_string"])](scope, receive, send)

LAYERS = [type(f"Layer{number}", (Layer,), {}) for number in range(5)]

def test_it():
    app = shop.create_app()
    app.add_middleware(Switch)
    client = TestClient(app)
    for number in range(5):
        assert client.get(f"/health?{number}").text == "ok"
    for number in range(10):
        assert client.get("/health?0").text == "ok"
"""
    result = survey(suite, tests)
    result.assert_outcomes(passed=1)
    assert len(found(suite)["measurements"]) == 5
    assert found(suite)["survey"]["unexamined"] == 8
    assert "8 more requests are like these: three in a row entered layers that were known" in said(result)


@pytest.mark.usefixtures("untimed")
def test_the_second_run_of_a_test_has_its_whole_time_limit(suite: pytest.Pytester) -> None:
    """pytest-timeout starts one timer for both runs, and after it has ended the first one there is none."""
    needs("pytest_timeout", reason="it sets the limit", group="suites")
    tests = """
import time

@pytest.mark.timeout(1.5)
def test_stuck(client):
    client.get("/health")
    time.sleep(20)
"""
    survey(suite, tests, "-p", "timeout").assert_outcomes(failed=1)


@pytest.mark.usefixtures("untimed")
def test_a_test_with_a_time_limit_keeps_most_of_it(suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    needs("pytest_timeout", reason="it sets the limit", group="suites")
    # With the real least time the limit would be so short that a busy machine exceeds it.
    monkeypatch.setattr(pytest_mwbudget.session.survey, "LEAST_S", 2.0)
    tests = """
@pytest.mark.timeout(4)
def test_short(client):
    client.get("/health")

@pytest.mark.timeout(60)
def test_long(client):
    client.get("/orders/1")
"""
    survey(suite, tests, "-p", "timeout").assert_outcomes(passed=2)
    assert routes(suite) == ["GET /orders/{id} 200"]
    assert left_out(suite) == {"GET /health": "the test's time limit of 4 s leaves no time to measure it"}


@pytest.mark.parametrize(
    ("arguments", "environment", "limit_s"),
    [((), "", None), (("--timeout=9",), "7", 9), ((), "7", 7), (("-o", "timeout=8"), "", 8)],
)
def test_the_time_limit_is_that_of_pytest_timeout(
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    environment: str,
    limit_s: float | None,
) -> None:
    needs("pytest_timeout", reason="it sets the limit", group="suites")
    monkeypatch.delenv("PYTEST_TIMEOUT", raising=False)
    if environment:
        monkeypatch.setenv("PYTEST_TIMEOUT", environment)
    limits = []

    class Asks:
        def pytest_collection_finish(self, session: pytest.Session) -> None:
            limits.extend(map(time_limit_s, session.items))

    pytester.makepyfile(
        """
        import pytest

        def test_unmarked(): pass

        @pytest.mark.timeout(3)
        def test_marked(): pass

        @pytest.mark.timeout(timeout=4)
        def test_marked_by_name(): pass

        @pytest.mark.timeout(0)
        def test_without_limit(): pass
        """
    )
    run_inside(pytester, "-p", "timeout", "--collect-only", *arguments, plugins=[Asks()])
    assert limits == [limit_s, 3, 4, None]


# ---- options and processes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--mw-budget-survey-time=5",), "--mw-budget-survey-time='5' limits no survey; add --mw-budget-survey"),
        (
            ("--mw-budget-survey", "--mw-budget-survey-time=soon"),
            "mw_budget_survey_time is 'soon'; give a number of seconds",
        ),
        (
            ("--mw-budget-survey", "-o", "mw_budget_survey_time=-1"),
            "mw_budget_survey_time is '-1'; give a number of seconds",
        ),
        (("--mw-budget-survey", "-o", "mw_budget_us=soon"), "mw_budget_us is 'soon'"),
    ],
)
def test_unusable_options_are_usage_errors(pytester: pytest.Pytester, arguments: tuple[str, ...], message: str) -> None:
    pytester.makepyfile("def test_it(): pass")
    result = run_inside(pytester, *arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert message in result.stderr.str()


@pytest.mark.live
@pytest.mark.once
def test_workers_measure_each_request_once_and_leave_nothing_behind(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = suite.mkdir("temporary")
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    suite.makepyfile(
        test_shop=HEAD
        + """
@pytest.mark.parametrize("time", range(6))
@pytest.mark.parametrize("path", ["/health", "/orders/1", "/orders/99"])
def test_it(client, path, time):
    client.get(path)

@pytest.mark.parametrize("time", range(4))
def test_once(client, time):
    client.get("/orders")
    client.post("/orders")
    assert shop.calls == ["make"]
"""
    )
    options = (*LEAN, "-W", "ignore", "-n", "2", "-o", "mw_budget_tasks=0", "--mw-budget-json=found.json")
    result = suite.runpytest_subprocess(*options, "--mw-budget-survey", "--mw-budget-survey-time=1")
    result.assert_outcomes(passed=22)
    assert result.ret == 1
    measured = routes(suite)
    named = {f"{omission['request']['method']} {omission['request']['url']}" for omission in found(suite)["left_out"]}
    assert len(measured) == len(set(measured))
    assert set(measured) <= {"GET /health 200", "GET /orders/{id} 200", "GET /orders/{id} 404", "GET /orders 405"}
    assert len(measured) >= 1
    assert "POST /orders" in named
    assert len(found(suite)["left_out"]) == len(
        {(omission["reason"], str(omission["request"])) for omission in found(suite)["left_out"]}
    )
    assert found(suite)["survey"]["tests"] == 22
    assert "of 22 tests measured in" in said(result)
    assert [name for name in os.listdir(folder) if "survey" in name] == []


@pytest.mark.usefixtures("untimed")  # in this process; a worker imports the module anew
@pytest.mark.live
def test_a_worker_that_crashes_loses_only_what_its_last_test_found(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(suite.mkdir("temporary")))
    suite.makeconftest(
        """
        from pytest_mwbudget.session import survey_time

        survey_time.MOST_S = survey_time.FIRST_S = survey_time.LEAST_S / 2
        """
    )
    suite.makepyfile(
        test_shop=HEAD
        + """
def test_first(client):
    client.get("/health")
    client.post("/orders")

def test_second(client):
    client.get("/orders/1")
    import os
    os._exit(3)

def test_third(client):
    client.get("/orders/99")
"""
    )
    plugins = (*alone(monkeypatch, "xdist"), "-p", "no:cacheprovider")
    options = (
        *plugins,
        "-W",
        "ignore",
        "-n",
        "1",
        "--mw-budget-json=found.json",
        "-o",
        "mw_budget_layers=Gone=tasks: 9",
    )
    result = suite.runpytest_inprocess(*options, "--mw-budget-survey", "--mw-budget-survey-time=60")
    result.assert_outcomes(passed=2, failed=1)
    assert routes(suite) == ["GET /health 200", "GET /orders/{id} 404"]
    assert list(left_out(suite)) == ["POST /orders"]
    assert "the budget names a layer 'Gone' that no request of the survey has." in said(result)
