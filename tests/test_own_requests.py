"""Requests of a marked test's own clients in whole pytest runs: which are measured, which are left out, and why."""

from __future__ import annotations

import gc
import json
import threading
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

import pytest_mwbudget.session.requests.own
from pytest_mwbudget.recording.recorder import OVERLAPPED

from .apps import ANYIO, ASYNCIO, FAST, LEAN, Scheduled, alone, run_inside

APP = """
import asyncio
import contextlib

import anyio
from pytest_mwbudget.asgi.http_library import httpx
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient


class Noop:
    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        await self.app(scope, receive, send)


class Header(BaseHTTPMiddleware):  # spawns a task
    async def dispatch(self, request, call_next):
        return await call_next(request)


async def ok(request):
    return PlainTextResponse("ok")


async def item(request):
    return PlainTextResponse(request.path_params["n"])


async def echo(request):
    return PlainTextResponse(await request.body())


async def broken(request):
    raise LookupError("no such shelf")


def slow(seconds):
    async def endpoint(request):
        await anyio.sleep(seconds)
        return PlainTextResponse("ok")

    return endpoint


async def ticks(request):
    async def pieces():
        for n in range(3):
            yield f"{n} "
    return StreamingResponse(pieces())


async def greet(websocket):
    await websocket.accept()
    await websocket.send_text("hi")
    await websocket.close()


routes = [
    Route("/", ok),
    Route("/health", ok),
    Route("/items/{n}", item),
    Route("/echo", echo, methods=["GET", "POST"]),
    Route("/broken", broken),
    Route("/ticks", ticks),
    WebSocketRoute("/ws", greet),
]


def make(*layers, endpoint=None, **options):
    used = [Route("/", endpoint, methods=["GET", "POST"])] if endpoint else routes
    return Starlette(routes=used, middleware=[Middleware(layer) for layer in layers or (Noop,)], **options)


def once_then(then, answers=1):
    # An endpoint that answers some requests with ok, and every later one with what `then` returns.
    seen = []

    async def endpoint(request):
        seen.append(1)
        if len(seen) > answers:
            answer = then(request)
            return await answer if asyncio.iscoroutine(answer) else answer
        return PlainTextResponse("ok")

    return endpoint


app = make()


def client_of(app=app):
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop")
"""

HEAD = """
import asyncio
import contextvars
import sys
import threading

import anyio
from pytest_mwbudget.asgi.http_library import httpx
import pytest
from starlette.responses import PlainTextResponse
from shop import *
"""

# Old versions of pytest-asyncio leave a loop of the inner run open.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <(socket|function BaseEventLoop):pytest.PytestUnraisableExceptionWarning"
)
# Starlette's warning that its client runs on httpx.
QUIET = ("-W", "ignore:Using .httpx. with .starlette")
SHOWN = ("-W", "always::pytest_mwbudget.errors.BudgetWarning")
UNDRAWN = "--mw-budget-flamegraph=never"
# No test reads a figure: where figures are read, as with -v, they need not be precise.
IMPRECISELY = Scheduled(**FAST | {"precision_time_s": 0.01, "parts_time_s": 0.01})


@dataclass(eq=False)
class Reports:
    """A pytest plugin that keeps what a run measured and what it left out."""

    measured: list[tuple[str, str, str | None]] = field(default_factory=list)
    timed: list[tuple[str, str]] = field(default_factory=list)
    left_out: list[tuple[str, str, str]] = field(default_factory=list)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for record in getattr(report, "mw_budget", ()):
            name, line = _name(record["nodeid"]), _line(record["request"])
            self.measured.append((name, line, record["verdict"]))
            self.timed += [] if record["seconds"] is None else [(name, line)]
        for record in getattr(report, "mw_budget_left_out", ()):
            self.left_out.append((_name(record["nodeid"]), _line(record["request"]), record["reason"]))

    @property
    def verdicts(self) -> list[str | None]:
        return [verdict for *_, verdict in self.measured]

    @property
    def lines(self) -> list[str]:
        return [line for _, line, _ in self.measured]

    @property
    def reasons(self) -> list[str]:
        return [reason for *_, reason in self.left_out]


def _name(nodeid: str) -> str:
    return nodeid.partition("::")[2]


def _line(request: dict[str, str]) -> str:
    return f"{request['method']} {request['url']}"


@dataclass
class Outcome:
    """A finished run and its reports."""

    result: pytest.RunResult
    reports: Reports

    def assert_outcomes(self, **numbers: int) -> None:
        self.result.assert_outcomes(**numbers)

    def says(self, *patterns: str) -> None:
        """Check that the output has texts like these, in which `*` stands for any text, across lines too."""
        output = " ".join(self.result.stdout.str().split())
        for pattern in patterns:
            assert _matches(output, f"*{pattern}"), (pattern, self.result.stdout.str())


class Suite:
    """Runs tests in a directory with an app of one layer, under --mw-budget."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self.pytester, self.schedule = pytester, IMPRECISELY
        pytester.makepyfile(shop=APP)

    def run(self, tests: str, *arguments: str, measure: bool = True) -> Outcome:
        self.pytester.makepyfile(test_shop=HEAD + dedent(tests))
        reports = Reports()
        using = [ASYNCIO, ANYIO] if "async def test" in tests else []
        options = [*QUIET, *SHOWN, *arguments]
        options += ["--mw-budget"] if measure else []
        result = run_inside(self.pytester, *options, plugins=[self.schedule, reports], using=using)
        return Outcome(result, reports)


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Suite:
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY", "GITHUB_WORKSPACE"):
        monkeypatch.delenv(name, raising=False)
    return Suite(pytester)


# ---- which tests ----------------------------------------------------------------------------------------------------


def test_a_mark_on_a_test_that_exists_measures_its_requests_and_keeps_its_own_failure(suite: Suite) -> None:
    outcome = suite.run(
        """
        client = TestClient(make(Header))

        @pytest.mark.mw_budget(tasks=1)
        def test_kept():
            assert client.get("/health").text == "ok"

        @pytest.mark.mw_budget(tasks=0)
        def test_broken_budget():
            assert client.get("/health").text == "ok"

        @pytest.mark.mw_budget(tasks=0)
        def test_failed_by_itself():
            client.get("/health")
            raise AssertionError("its own")

        def test_unmarked():
            assert client.get("/health").text == "ok"
        """
    )
    outcome.assert_outcomes(passed=2, failed=2)
    assert outcome.reports.measured == [
        ("test_kept", "GET /health", "pass"),
        ("test_broken_budget", "GET /health", "fail"),
        ("test_failed_by_itself", "GET /health", "fail"),
    ]
    outcome.says(
        "_ test_broken_budget _*GET /health: Header 1 task, budget 0*mwbudget explain over-budget"
        "*_ test_failed_by_itself _*AssertionError: its own"
    )


def test_without_the_option_only_the_keywords_are_checked(suite: Suite) -> None:
    tests = """
        @pytest.mark.mw_budget(us=50)
        def test_marked():
            before = httpx.ASGITransport.handle_async_request, TestClient.send
            assert TestClient(app).get("/health").text == "ok"
            assert "pytest_mwbudget" not in httpx.ASGITransport.handle_async_request.__module__

        @pytest.mark.mw_budget(us=50)
        def test_without_a_request():
            pass

        @pytest.mark.mw_budget(micros=50)
        def test_misspelt():
            pass

        @pytest.mark.mw_budget(repeat="P OST")
        def test_no_method():
            pass
    """
    outcome = suite.run(tests, measure=False)
    outcome.assert_outcomes(passed=2, failed=2)
    outcome.says("unknown keyword 'micros'", "repeat*is 'P OST'; give a list of HTTP methods, for example ['POST']")
    assert not outcome.reports.measured
    assert not outcome.reports.left_out


def test_a_mark_on_a_class_or_a_module_measures_and_only_one_on_a_test_requires_a_request(suite: Suite) -> None:
    outcome = suite.run(
        """
        pytestmark = pytest.mark.mw_budget(tasks=0)

        def test_module():
            TestClient(app).get("/health")

        def test_no_request():
            pass

        @pytest.mark.mw_budget(us=50)
        def test_no_request_of_its_own_mark():
            pass

        @pytest.mark.mw_budget(us=50)
        def test_lifespan_only():
            with TestClient(app):
                pass

        @pytest.mark.mw_budget(tasks=1)
        class TestClass:
            def test_inside(self):
                TestClient(make(Header)).get("/health")

            def test_no_request(self):
                pass

            def test_post_only(self):
                TestClient(app).post("/echo", content=b"x")

        class TestUnittest(__import__("unittest").TestCase):
            def test_old(self):
                self.assertEqual(TestClient(app).get("/").text, "ok")
        """,
        "-Werror::pytest_mwbudget.errors.BudgetWarning",
    )
    outcome.assert_outcomes(passed=6, failed=2)
    for test in ("test_no_request_of_its_own_mark", "test_lifespan_only"):
        outcome.says(
            f"_ {test} _*made no request to an ASGI app in this process while it was marked*explain no-request",
            f"FAILED test_shop.py::{test} ",
        )
    assert outcome.reports.measured == [
        ("test_module", "GET /health", "pass"),
        ("TestClass::test_inside", "GET /health", "pass"),
        ("TestUnittest::test_old", "GET /", "pass"),
    ]
    assert [line for _, line, _ in outcome.reports.left_out] == ["POST /echo"]


def test_the_fixture_measures_in_place_of_the_clients(suite: Suite) -> None:
    outcome = suite.run(
        """
        @pytest.fixture
        def mw_budget_app():
            return app

        @pytest.mark.mw_budget(tasks=0)
        def test_both(mw_budget):
            assert TestClient(app).get("/items/1").text == "1"
            mw_budget.get("/health")

        @pytest.mark.mw_budget(tasks=0)
        def test_asked_for_at_run_time(request):
            client = request.getfixturevalue("mw_budget")
            assert TestClient(app).get("/items/1").text == "1"
            client.get("/health")

        @pytest.mark.mw_budget(tasks=0)
        def test_fixture_unused(mw_budget):
            assert TestClient(app).get("/items/1").text == "1"
        """
    )
    outcome.assert_outcomes(passed=2, failed=1)
    assert outcome.reports.lines == ["GET /health"] * 2
    assert not outcome.reports.left_out
    outcome.says("made no request through the fixture mw_budget")


def test_client_fixtures_of_each_scope(suite: Suite) -> None:
    scopes = ("function", "class", "module", "session")
    tests = [
        f"""
        @pytest.fixture(scope="{scope}")
        def {scope}_client():
            with TestClient(make()) as client:
                client.get("/items/of-the-fixture")  # not a request of the test
                yield client
                client.get("/items/of-the-teardown")

        @pytest.mark.mw_budget(tasks=0)
        class Test{scope.title()}:
            def test_first(self, {scope}_client):
                assert {scope}_client.get("/health").text == "ok"

            def test_second(self, {scope}_client):
                assert {scope}_client.get("/health").text == "ok"
        """
        for scope in scopes
    ]
    outcome = suite.run("".join(tests))
    outcome.assert_outcomes(passed=2 * len(scopes))
    assert [(name, line) for name, line, _ in outcome.reports.measured] == [
        (f"Test{scope.title()}::{test}", "GET /health") for scope in scopes for test in ("test_first", "test_second")
    ]


def test_async_tests_of_each_plugin_and_loop(suite: Suite) -> None:
    outcome = suite.run(
        """
        import pytest_asyncio

        @pytest_asyncio.fixture
        async def client():
            async with client_of() as client:
                yield client

        @pytest.mark.asyncio
        @pytest.mark.mw_budget(tasks=0)
        async def test_asyncio(client):
            assert (await client.get("/health")).text == "ok"

        @pytest.mark.anyio
        @pytest.mark.mw_budget(tasks=0)
        async def test_anyio(anyio_backend_name):
            async with client_of() as client:
                assert (await client.get("/items/1")).text == "1"
                assert (await client.get("/health")).text == "ok"
        """
    )
    outcome.assert_outcomes(passed=3)
    assert outcome.reports.lines == ["GET /health", *["GET /items/1", "GET /health"] * 2]
    assert outcome.reports.verdicts == ["pass"] * 5


# ---- which requests -------------------------------------------------------------------------------------------------


def test_each_distinct_request_is_measured_once(suite: Suite) -> None:
    outcome = suite.run(
        """
        @pytest.mark.mw_budget(tasks=1)
        def test_routes():
            client = TestClient(app)
            for path in ("/items/1", "/items/2", "/health?a=1", "/health?a=2", "/", "/nowhere"):
                for _ in range(2):
                    client.get(path)
            client.head("/health")
            client.get("/health", headers={"x": "1"})
            TestClient(make(Header)).get("/health")

        class Gate(Noop):
            async def __call__(self, scope, receive, send):
                if dict(scope.get("headers", ())).get(b"x-short"):
                    await PlainTextResponse("ok")(scope, receive, send)
                else:
                    await self.app(scope, receive, send)

        @pytest.mark.mw_budget(tasks=0)
        def test_layers():
            client = TestClient(make(Gate, Noop))
            for headers in ({}, {"x-short": "1"}, {}):
                assert client.get("/health", headers=headers).text == "ok"
        """
    )
    outcome.assert_outcomes(passed=2)
    assert [measurement for measurement in outcome.reports.measured if measurement[0] == "test_routes"] == [
        ("test_routes", "GET /items/1", "pass"),
        ("test_routes", "GET /health?a=1", "pass"),
        ("test_routes", "GET /", "pass"),
        ("test_routes", "GET /nowhere", None),
        ("test_routes", "HEAD /health", "pass"),
        ("test_routes", "GET /health", "pass"),  # of the other app
    ]
    # By route the second request is another one as well: it never came to the router.
    assert [line for name, line, _ in outcome.reports.measured if name == "test_layers"] == ["GET /health"] * 2


def test_other_methods_are_left_out_unless_the_marker_repeats_them(suite: Suite) -> None:
    outcome = suite.run(
        """
        calls = []

        async def create(request):
            calls.append(await request.body())
            return PlainTextResponse("made", 201)

        def ask():
            calls.clear()
            assert TestClient(make(endpoint=create)).post("/", content=b"tea").status_code == 201

        @pytest.mark.mw_budget(tasks=0, undecided="pass")
        def test_left_out():
            ask()
            assert calls == [b"tea"]

        @pytest.mark.mw_budget(tasks=0, repeat=["post"])
        def test_repeated():
            ask()
            assert len(calls) > 10 and set(calls) == {b"tea"}

        @pytest.mark.mw_budget(tasks=0, repeat=["WS"])
        def test_websocket():
            with TestClient(app).websocket_connect("/ws") as websocket:
                assert websocket.receive_text() == "hi"
        """
    )
    outcome.assert_outcomes(passed=3)
    assert outcome.reports.measured == [("test_repeated", "POST /", "pass"), ("test_websocket", "WS /ws", "pass")]
    assert [(name, line) for name, line, _ in outcome.reports.left_out] == [("test_left_out", "POST /")]
    assert "set repeat=['POST'] in the mw_budget marker" in outcome.reports.reasons[0]


def test_repeat_in_the_configuration(suite: Suite) -> None:
    suite.pytester.makeini("[pytest]\nmw_budget_repeat =\n    POST\n    put\n")
    outcome = suite.run(
        """
        @pytest.mark.mw_budget(tasks=0)
        def test_it():
            assert TestClient(app).post("/echo", content=b"tea").text == "tea"
        """
    )
    outcome.assert_outcomes(passed=1)
    assert outcome.reports.lines == ["POST /echo"]


def test_an_error_status_is_measured_and_not_judged(suite: Suite) -> None:
    outcome = suite.run(
        """
        client = TestClient(make(Header))

        @pytest.mark.mw_budget(tasks=0)
        def test_error():
            assert client.get("/nowhere").status_code == 404

        @pytest.mark.mw_budget(tasks=0, expect_status=404)
        def test_expected():
            assert client.get("/nowhere").status_code == 404
            assert client.get("/health").status_code == 200
        """,
        "-v",
        UNDRAWN,
    )
    outcome.assert_outcomes(passed=1, failed=1, warnings=1)
    assert outcome.reports.measured == [
        ("test_error", "GET /nowhere", None),
        ("test_expected", "GET /nowhere", "fail"),
        ("test_expected", "GET /health", None),
    ]
    outcome.says("Not judged: it answered 404; expect_status=404 in the marker judges it. [not-judged]")
    outcome.says("Not judged: it answered 200, not 404. [not-judged]")
    outcome.says("none of its requests was judged (GET /nowhere: it answered 404; *) [left-out]")


def test_a_request_that_is_not_judged_is_timed_only_beside_budgets_of_time(suite: Suite) -> None:
    outcome = suite.run(
        """
        # Its health route is past the layer of a budget: nothing of it is judged.
        past = Starlette(routes=[Route("/health", ok)])

        class Routes:
            def test_error(self):
                assert TestClient(app).get("/nowhere").status_code == 404

            def test_named(self):
                assert TestClient(app).get("/health").status_code == 200
                assert TestClient(past).get("/health").status_code == 200

        @pytest.mark.mw_budget(tasks=0)
        class TestCount(Routes):
            pass

        @pytest.mark.mw_budget(layers={"Noop": {"tasks": 0}})
        class TestCountOfALayer(Routes):
            pass

        @pytest.mark.mw_budget(us=10_000)
        class TestTime(Routes):
            pass
        """,
        "-v",
    )
    outcome.assert_outcomes(passed=6)
    assert [(name, line) for name, line, _ in outcome.reports.measured] == [
        (f"{kind}::{test}", line)
        for kind in ("TestCount", "TestCountOfALayer", "TestTime")
        for test, line in [("test_error", "GET /nowhere"), ("test_named", "GET /health"), ("test_named", "GET /health")]
    ]
    assert [*dict.fromkeys(outcome.reports.timed)] == [
        ("TestTime::test_error", "GET /nowhere"),
        ("TestTime::test_named", "GET /health"),
    ]


def test_a_marked_test_is_undecided_if_none_of_its_requests_was_judged(suite: Suite) -> None:
    outcome = suite.run(
        """
        @pytest.mark.mw_budget(tasks=0, undecided="warn")
        def test_warned_of():
            TestClient(app).post("/echo")

        @pytest.mark.mw_budget(tasks=0, undecided="fail")
        def test_failed():
            TestClient(app).post("/echo")

        @pytest.mark.mw_budget(tasks=0, undecided="pass")
        def test_passed():
            TestClient(app).post("/echo")

        @pytest.mark.mw_budget(tasks=0, undecided="fail")
        def test_one_is_judged():
            client = TestClient(app)
            client.post("/echo")
            client.get("/nowhere")
            client.get("/health")
        """
    )
    outcome.assert_outcomes(passed=3, failed=1, warnings=1)
    why = "none of its requests was judged (POST /echo: a POST request is not repeated automatically;*[left-out]"
    outcome.says(f"_ test_failed _*{why}", f"test_shop.py::test_warned_of *BudgetWarning: {why}")


def test_a_budget_by_name_must_name_a_layer_of_some_request(suite: Suite) -> None:
    outcome = suite.run(
        """
        def ask():
            TestClient(app).get("/health")
            TestClient(make(Header)).get("/health")

        @pytest.mark.mw_budget(layers={"Header": {"tasks": 0}, "Noop": {"tasks": 0}})
        def test_of_one_app_each():
            ask()

        @pytest.mark.mw_budget(layers={"Heder": {"tasks": 1}})
        def test_of_none():
            ask()
        """,
        UNDRAWN,
    )
    outcome.assert_outcomes(failed=2)
    assert outcome.reports.verdicts == ["pass", "fail", None, None]
    outcome.says("GET /health: Header 1 task, budget 0", "'Heder'*Did you mean 'Header'?")


def test_a_layer_that_a_budget_names_may_be_in_a_request_that_is_not_judged(suite: Suite) -> None:
    outcome = suite.run(
        """
        @pytest.mark.mw_budget(layers={"Header": {"tasks": 5}}, undecided="fail")
        def test_another_request_has_it():
            TestClient(make(Header)).get("/health")
            TestClient(app).get("/health")

        @pytest.mark.mw_budget(layers={"Header": {"tasks": 5}}, undecided="fail")
        def test_a_request_that_is_not_found_has_it():
            TestClient(make(Header)).get("/nowhere")
            TestClient(app).get("/health")

        @pytest.mark.mw_budget(layers={"Header": {"tasks": 5}})
        def test_a_request_that_was_left_out_may_have_it():
            TestClient(make(Header)).post("/health")
            TestClient(app).get("/health")

        @pytest.mark.mw_budget(layers={"Header": {"tasks": 5}}, undecided="fail")
        def test_where_undecided_fails():
            TestClient(make(Header)).post("/health")
            TestClient(app).get("/health")
        """,
        UNDRAWN,
    )
    outcome.assert_outcomes(passed=3, failed=1)
    outcome.says("*it may be in a request that was left out*")


def test_a_name_that_a_marker_of_a_module_misspells_is_said_too(suite: Suite) -> None:
    outcome = suite.run(
        """
        pytestmark = pytest.mark.mw_budget(layers={"Heder": {"tasks": 5}}, undecided="fail")

        def test_it():
            client = TestClient(make(Header))
            client.post("/echo")
            client.get("/health")
        """,
        UNDRAWN,
    )
    outcome.assert_outcomes(failed=1)
    outcome.says("'Heder'*Did you mean 'Header'?*it may be in a request that was left out")


# ---- what a measurement must not change -----------------------------------------------------------------------------


def test_repetitions_leave_the_random_generators_as_they_were_and_draw_other_numbers(suite: Suite) -> None:
    outcome = suite.run(
        """
        import random

        drawn = []

        async def roll(request):
            drawn.append(random.getrandbits(64))
            return PlainTextResponse(f"{drawn[-1]}")

        @pytest.mark.mw_budget(tasks=0)
        def test_it():
            client = TestClient(make(endpoint=roll))
            random.seed(1)
            rolled = [client.get("/").text for _ in range(2)]
            random.seed(1)
            assert rolled == [f"{random.getrandbits(64)}" for _ in range(2)]
            assert len({*drawn}) == len(drawn) > 2
        """
    )
    outcome.assert_outcomes(passed=1)
    assert outcome.reports.verdicts == ["pass"]


def test_functions_that_a_test_replaces_are_called_by_the_app_only(suite: Suite) -> None:
    outcome = suite.run(
        """
        from unittest import mock

        async def work():
            pass

        async def start(request):
            asyncio.create_task(work()).cancel()
            return PlainTextResponse("ok")

        @pytest.mark.mw_budget(tasks=0)
        def test_create_task():
            with mock.patch("asyncio.create_task", lambda coroutine: coroutine.close() or mock.Mock()) as replaced:
                TestClient(make(endpoint=start)).get("/")

        @pytest.fixture
        def sent(monkeypatch):
            sent = mock.AsyncMock(return_value="sent")
            monkeypatch.setattr(httpx.AsyncClient, "send", sent)
            return sent

        @pytest.mark.mw_budget(tasks=0)
        @pytest.mark.asyncio
        async def test_of_a_client(sent):
            TestClient(app).get("/health")
            async with httpx.AsyncClient() as client:
                assert await client.get("https://rates.example/") == "sent"
            assert sent.await_args.args[0].url.host == "rates.example"
        """
    )
    outcome.assert_outcomes(passed=2)
    assert outcome.reports.verdicts == ["pass", "pass"]


def test_a_request_whose_repetitions_a_layer_answers_is_left_out(suite: Suite) -> None:
    outcome = suite.run(
        """
        class Cache:
            def __init__(self, app):
                self.app, self.kept = app, []

            async def __call__(self, scope, receive, send):
                async def keep(message):
                    kept.append(message)
                    await send(message)

                if scope["type"] == "http" and self.kept:
                    for message in self.kept:
                        await send(message)
                    return
                kept = []
                await self.app(scope, receive, keep)
                self.kept = kept

        @pytest.mark.mw_budget(tasks=0)
        def test_it():
            client = TestClient(make(Cache, Header))
            assert client.get("/health").text == client.get("/health").text == "ok"
        """
    )
    outcome.assert_outcomes(passed=1)
    assert outcome.reports.measured == [("test_it", "GET /health", "pass")]
    (reason,) = outcome.reports.reasons
    assert reason.startswith("its repetitions do not come to shop.ok; a layer answers them, such as a cache")


def test_a_loop_that_is_not_the_clients_is_a_reason(suite: Suite) -> None:
    outcome = suite.run(
        """
        @pytest.mark.mw_budget(tasks=0, loop="trio")
        def test_it():
            TestClient(app).get("/health")
            TestClient(app, backend="trio").get("/items/1")
        """
    )
    outcome.assert_outcomes(passed=1)
    assert outcome.reports.lines == ["GET /items/1"]
    assert outcome.reports.reasons == ["loop='trio' was requested, but the test's client runs the app on asyncio"]


# ---- requests that pass through -------------------------------------------------------------------------------------

# Tests whose request is left out, with the reason.
PASSED_THROUGH = {
    "test_stream": (
        """
        def test_stream():
            with TestClient(app).stream("GET", "/ticks") as response:
                assert response.read() == b"0 1 2 "
        """,
        "its response is read as a stream",
    ),
    "test_websocket": (
        """
        def test_websocket():
            with TestClient(app).websocket_connect("/ws") as websocket:
                assert websocket.receive_text() == "hi"
        """,
        "a WS request is not repeated automatically",
    ),
    "test_raises": (
        """
        def test_raises():
            with pytest.raises(LookupError, match="no such shelf"):
                TestClient(app).get("/broken")
        """,
        "the app raised LookupError",
    ),
    "test_raise_server_exceptions": (
        """
        def test_raise_server_exceptions():
            assert TestClient(app, raise_server_exceptions=False).get("/broken").status_code == 500
        """,
        "the app raised LookupError",
    ),
    "test_sys_exit": (
        """
        async def leave(request):
            sys.exit(3)

        @pytest.mark.asyncio
        async def test_sys_exit():
            other = asyncio.new_event_loop()
            with pytest.raises(SystemExit):
                await asyncio.to_thread(other.run_until_complete, client_of(make(endpoint=leave)).get("/"))
            other.close()
        """,
        "the app was ended by SystemExit",
    ),
    "test_skip": (
        """
        @pytest.mark.asyncio
        async def test_skip():
            skips = make(endpoint=once_then(lambda request: pytest.skip("later"), answers=0))
            with pytest.raises(pytest.skip.Exception):
                await client_of(skips).get("/")
        """,
        "the app was ended by Skipped",
    ),
    "test_another_status": (
        """
        def test_another_status():
            limited = once_then(lambda request: PlainTextResponse("slow down", 429), answers=3)
            assert TestClient(make(endpoint=limited)).get("/").text == "ok"
        """,
        "call 4 answered 429, the calls before it 200. *\nThe body begins: slow down",
    ),
    "test_raises_when_repeated": (
        """
        def rejects(request):
            raise LookupError("the token was used")

        def test_raises_when_repeated():
            assert TestClient(make(endpoint=once_then(rejects))).get("/").text == "ok"
        """,
        "call 2 raised LookupError*: the token was used (*test_shop.py:*); the calls before it answered 200. *",
    ),
    "test_a_stand_in_that_allows_one_call": (
        """
        def test_a_stand_in_that_allows_one_call():
            endpoint = once_then(lambda request: pytest.fail("called twice"))
            assert TestClient(make(endpoint=endpoint)).get("/").text == "ok"
        """,
        "a repetition raised Failed: called twice",
    ),
    "test_sys_exit_when_repeated": (
        """
        def test_sys_exit_when_repeated():
            with TestClient(make(endpoint=once_then(lambda request: sys.exit(3)))) as client:
                assert client.get("/").text == "ok"
                client.portal.call(asyncio.sleep, 0)  # the client's loop still runs
        """,
        "the app called sys.exit(3) *",
    ),
    "test_cancelled_error_when_repeated": (
        """
        def cancels(request):
            raise asyncio.CancelledError

        @pytest.mark.asyncio
        async def test_cancelled_error_when_repeated():
            async with client_of(make(endpoint=once_then(cancels))) as client:
                assert (await client.get("/")).text == "ok"
        """,
        "call 2 raised CancelledError: *",
    ),
    "test_half_a_response_when_repeated": (
        """
        @pytest.mark.asyncio
        async def test_half_a_response_when_repeated():
            calls = []

            async def half(scope, receive, send):
                calls.append(1)
                await send({"type": "http.response.start", "status": 200, "headers": []})
                await send({"type": "http.response.body", "body": b"x", "more_body": len(calls) > 1})

            assert (await client_of(half).get("/")).text == "x"
        """,
        "the app began a response with status 200 and returned before the response was complete; *",
    ),
    "test_cancelled": (
        """
        @pytest.mark.asyncio
        async def test_cancelled():
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):  # the app is called before the loop looks at the clock
                    await client_of(make(endpoint=slow(60))).get("/")
        """,
        "the app was ended by CancelledError",
    ),
    "test_cancelled_while_it_is_measured": (
        """
        @pytest.mark.asyncio
        async def test_cancelled_while_it_is_measured():
            client = client_of(make(endpoint=once_then(slow(60), answers=5)))
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await client.get("/")
        """,
        "it was cancelled while it was measured; a time limit in the test counts the repetitions too",
    ),
    "test_an_anyio_scope_ends_while_it_is_measured": (
        """
        @pytest.mark.anyio
        @pytest.mark.parametrize("anyio_backend", ["trio"])
        async def test_an_anyio_scope_ends_while_it_is_measured(anyio_backend):
            client = client_of(make(endpoint=once_then(slow(60), answers=5)))
            with anyio.move_on_after(0.05) as scope:
                await client.get("/")
            assert scope.cancelled_caught
        """,
        "it was cancelled while it was measured; a time limit in the test counts the repetitions too",
    ),
    "test_at_the_same_time": (
        """
        @pytest.mark.asyncio
        async def test_at_the_same_time():
            async with client_of(make(endpoint=slow(0.01))) as client:
                responses = await asyncio.gather(client.get("/"), client.get("/"))
            assert [response.text for response in responses] == ["ok", "ok"]
        """,
        OVERLAPPED,
    ),
}


def test_requests_that_pass_through(suite: Suite) -> None:
    before = set(threading.enumerate())
    # After each case a request is measured as always, and no thread is left; trio keeps idle threads.
    tests = [
        """
        pytestmark = pytest.mark.mw_budget(tasks=0)
        before = set(threading.enumerate())

        def threads_left():
            left = [thread.name for thread in threading.enumerate() if thread not in before]
            return [name for name in left if not name.startswith("Trio thread")]
        """
    ]
    for case, (test, _) in PASSED_THROUGH.items():
        then = f"""
        def {case}_then():
            assert TestClient(app).get("/health").text == "ok"
            assert threads_left() == []
        """
        tests += [test, then]
    outcome = suite.run("".join(tests))
    outcome.assert_outcomes(passed=2 * len(PASSED_THROUGH))
    assert outcome.reports.measured == [(f"{case}_then", "GET /health", "pass") for case in PASSED_THROUGH]
    reasons: dict[str, str] = {}
    for name, _, reason in outcome.reports.left_out:
        reasons.setdefault(name.partition("[")[0], reason)
    assert [*reasons] == [*PASSED_THROUGH]
    for case, (_, reason) in PASSED_THROUGH.items():
        assert _matches(reasons[case], reason), (case, reasons[case])
    outcome.says(f"{len(outcome.reports.left_out)} requests were not measured; -v says which and why")
    left = [thread.name for thread in threading.enumerate() if thread not in before]
    assert [name for name in left if not name.startswith("Trio thread")] == []


def _matches(text: str, pattern: str) -> bool:
    """Tell whether the text is the pattern, in which `*` stands for any text."""
    parts, place = pattern.split("*"), 0
    for part in parts:
        start = text.find(part, place)
        if start < 0:
            return False
        place = start + len(part)
    return text.startswith(parts[0])


HANGING = """
class Pool(Noop):
    # Holds back what comes after some requests.
    answers, swallows = 0, False

    def __init__(self, app):
        self.app = app
        self.left = self.answers

    async def __call__(self, scope, receive, send):
        if scope["type"] == "http":
            self.left -= 1
            while self.left < 0:
                try:
                    await anyio.sleep(60)
                except asyncio.CancelledError:
                    if not self.swallows:
                        raise
                    return
        await self.app(scope, receive, send)
"""
# For each case: the budget, the loop, how many requests are answered, whether the app swallows a cancellation, and the
# time limit of a request, which is longer than the time between two looks at the clock while requests are timed.
HANGS = {
    "at_once": ("tasks=9", "asyncio", 1, False, 0.3),
    "while_counted": ("tasks=9", "asyncio", 15, False, 0.3),
    "while_timed": ("us=0.01", "asyncio", 100, False, 0.4),
    "trio": ("tasks=9", "trio", 3, False, 0.3),
    "swallows_cancellation": ("tasks=9", "asyncio", 3, True, 0.3),
}


@pytest.mark.parametrize("outside", ["", "Header, "], ids=["same task", "inner task"])
def test_an_app_that_stops_answering_is_named_with_the_layer(suite: Suite, outside: str) -> None:
    tests = [
        f"""
@pytest.mark.mw_budget({budget})
def test_{case}(monkeypatch):
    monkeypatch.setattr("pytest_mwbudget.recording.recorder.LEAST_LIMIT_S", {limit_s})
    Pool.answers, Pool.swallows = {answers}, {swallows}
    assert TestClient(make({outside}Pool, Noop), backend="{backend}").get("/health").text == "ok"

@pytest.mark.mw_budget(tasks=0)
def test_{case}_then():
    assert TestClient(app).get("/health").text == "ok"
"""
        for case, (budget, backend, answers, swallows, limit_s) in HANGS.items()
    ]
    # A slow machine must not make fewer requests before it counts, or the app answers all that are counted.
    suite.schedule = Scheduled(**FAST | {"precision_time_s": 0.01, "brief_warm_ns": 60_000_000_000})
    outcome = suite.run(HANGING + "".join(tests))
    outcome.assert_outcomes(passed=2 * len(HANGS))
    assert outcome.reports.measured == [(f"test_{case}_then", "GET /health", "pass") for case in HANGS]
    assert [name for name, *_ in outcome.reports.left_out] == [f"test_{case}" for case in HANGS]
    path = (
        "Starlette > ServerErrorMiddleware > Header > Pool" if outside else "Starlette > ServerErrorMiddleware > Pool"
    )
    for name, _, reason in outcome.reports.left_out:
        assert "the app stopped answering" in reason, name
        assert "it waited at Pool.__call__ (test_shop.py:" in reason, name
        assert reason.endswith(f"inside {path}"), (name, reason)


# ---- the test is as it would be without us --------------------------------------------------------------------------


def test_what_a_test_prepares_holds_in_repetitions_and_afterwards(suite: Suite) -> None:
    outcome = suite.run(
        """
        from starlette.background import BackgroundTask

        user = contextvars.ContextVar("user", default="nobody")
        tasks = []

        @contextlib.asynccontextmanager
        async def lifespan(app):
            yield {"greeting": "hello", "log": []}

        async def endpoint(request):
            greeting = request.state.greeting
            request.state.greeting = "changed"
            request.state.log.append(1)
            answer = f"{greeting} {request.cookies.get('name')} {user.get()} {request.app.state.override}"
            user.set("changed")
            response = PlainTextResponse(answer, background=BackgroundTask(tasks.append, 1))
            response.set_cookie("seen", "yes")
            return response

        @pytest.mark.mw_budget(tasks=0)
        def test_it():
            app = make(endpoint=endpoint, lifespan=lifespan)
            app.state.override = "fake"
            with TestClient(app, cookies={"name": "anna"}) as client:
                client.app_state["greeting"] = "good day"
                assert client.get("/").text == "good day anna nobody fake"
                assert len(tasks) > 10 and len(client.app_state["log"]) == len(tasks)
                assert client.app_state["greeting"] == "good day"
                assert dict(client.cookies) == {"name": "anna", "seen": "yes"}

        @pytest.mark.asyncio
        @pytest.mark.mw_budget(tasks=0)
        async def test_context():
            app = make(endpoint=endpoint)
            app.state.override = "fake"
            user.set("bob")
            state = {"greeting": "hi", "log": []}

            async def with_state(scope, receive, send):
                scope["state"] = dict(state)
                await app(scope, receive, send)

            assert (await client_of(with_state).get("/")).text == "hi None bob fake"
            assert user.get() == "changed"  # as without a recorder: the client calls the app in the test's own context
        """
    )
    outcome.assert_outcomes(passed=2)
    assert outcome.reports.verdicts == ["pass", "pass"]


def test_ten_megabytes_both_ways(suite: Suite) -> None:
    outcome = suite.run(
        """
        @pytest.mark.mw_budget(tasks=0, repeat=["POST"])
        def test_it():
            content = b"x" * 10_000_000
            assert TestClient(app).post("/echo", content=content).content == content

        @pytest.mark.asyncio
        @pytest.mark.mw_budget(tasks=0, repeat=["POST"])
        async def test_async():
            content = b"x" * 10_000_000
            assert (await client_of().post("/echo", content=content)).content == content
        """
    )
    outcome.assert_outcomes(passed=2)
    assert outcome.reports.verdicts == ["pass", "pass"]
    gc.collect()


def test_tasks_that_the_app_leaves_end_with_the_loop(suite: Suite) -> None:
    outcome = suite.run(
        """
        left = []

        async def leaves(request):
            left.append(asyncio.create_task(asyncio.sleep(60)))
            return PlainTextResponse("ok")

        @pytest.mark.mw_budget(tasks=1)
        def test_it():
            with TestClient(make(endpoint=leaves)) as client:
                assert client.get("/").text == "ok"

        def test_next():
            assert len(left) > 10 and all(task.cancelled() for task in left)
        """,
        "-Werror",
        *QUIET,
    )
    outcome.assert_outcomes(passed=2)


def test_no_task_no_patch_and_no_app_is_left(suite: Suite) -> None:
    outcome = suite.run(
        """
        import gc
        import weakref

        methods = (httpx.ASGITransport.handle_async_request, httpx.AsyncClient.send, TestClient.send)
        finders = list(sys.meta_path)
        apps = []

        @pytest.mark.asyncio
        @pytest.mark.mw_budget(tasks=0)
        async def test_tasks():
            async with client_of() as client:
                await client.get("/health")
            assert asyncio.all_tasks() == {asyncio.current_task()}

        @pytest.mark.mw_budget(tasks=1)
        def test_app():
            app = make(Header)
            apps.append(weakref.ref(app))
            TestClient(app).get("/health")

        def test_next():
            assert methods == (httpx.ASGITransport.handle_async_request, httpx.AsyncClient.send, TestClient.send)
            assert sys.meta_path == finders
            gc.collect()
            assert apps[0]() is None
        """
    )
    outcome.assert_outcomes(passed=3)


def test_clients_in_threads(suite: Suite) -> None:
    outcome = suite.run(
        """
        @pytest.mark.mw_budget(tasks=0)
        def test_made_and_closed_in_one():
            answers = []

            def ask():
                with TestClient(app) as client:
                    answers.append(client.get("/health").text)
                client.close()

            thread = threading.Thread(target=ask)
            thread.start()
            thread.join()
            assert answers == ["ok"]

        def slow(request):
            __import__("time").sleep(0.2)
            return PlainTextResponse("ok")

        @pytest.mark.mw_budget(tasks=9)
        def test_used_from_several():
            answers = []
            with TestClient(make(endpoint=slow)) as client:
                threads = [threading.Thread(target=lambda: answers.append(client.get("/").text)) for _ in range(4)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
            assert answers == ["ok"] * 4
        """
    )
    outcome.assert_outcomes(passed=2)
    assert outcome.reports.lines.count("GET /health") == 1
    assert [(name, reason) for name, _, reason in outcome.reports.left_out] == [("test_used_from_several", OVERLAPPED)]


def test_a_worker_thread_that_does_not_end_in_time(suite: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    # However long the first request takes.
    monkeypatch.setattr(pytest_mwbudget.recording.recorder, "SLOWER", 0)
    monkeypatch.setattr(pytest_mwbudget.recording.recorder, "LEAST_LIMIT_S", 0.3)
    outcome = suite.run(
        """
        import time
        calls = []

        def slow(request):
            calls.append(1)
            if len(calls) == 3:
                time.sleep(0.8)
            return PlainTextResponse("ok")

        @pytest.mark.mw_budget(tasks=9)
        def test_it():
            assert TestClient(make(endpoint=slow)).get("/").text == "ok"
            assert len(calls) == 3
        """
    )
    outcome.assert_outcomes(passed=1, warnings=1)
    assert "inside Starlette > ServerErrorMiddleware > Noop > ExceptionMiddleware > " in outcome.reports.reasons[0]


def test_tests_of_other_kinds(suite: Suite) -> None:
    outcome = suite.run(
        """
        import unittest
        from unittest import mock

        from freezegun import freeze_time

        async def uses_the_tests_loop(request):
            assert await request.app.state.queue.get() == 1
            await request.app.state.queue.put(1)
            await asyncio.sleep(1)
            return PlainTextResponse("ok")

        class TestOld(unittest.IsolatedAsyncioTestCase):
            @pytest.mark.mw_budget(tasks=0)
            async def test_it(self):
                app = make(endpoint=uses_the_tests_loop)
                app.state.queue = asyncio.Queue()
                await app.state.queue.put(1)
                with mock.patch("asyncio.sleep", mock.AsyncMock()) as sleep:
                    self.assertEqual((await client_of(app).get("/")).text, "ok")
                assert all(call == mock.call(1) for call in sleep.mock_calls)

        @pytest.mark.asyncio
        @pytest.mark.mw_budget(tasks=0)
        async def test_sync_client_in_an_async_test():
            assert TestClient(app).get("/health").text == "ok"

        @pytest.mark.asyncio
        @pytest.mark.mw_budget(tasks=0)
        async def test_task_group():
            async with asyncio.TaskGroup() as group:
                response = group.create_task(client_of().get("/health"))
            assert response.result().text == "ok"

        @pytest.mark.mw_budget(tasks=0)
        def test_frozen_time():
            with freeze_time("2026-01-01"):
                assert TestClient(app).get("/health").text == "ok"
        """
    )
    outcome.assert_outcomes(passed=4)
    assert outcome.reports.lines == ["GET /", "GET /health", "GET /health", "GET /health"]
    assert outcome.reports.measured[-1] == ("test_frozen_time", "GET /health", "pass")


def test_no_frame_of_the_recorder_is_in_a_traceback(suite: Suite) -> None:
    outcome = suite.run(
        """
        pytestmark = pytest.mark.mw_budget(tasks=0)

        def test_sync():
            TestClient(app).get("/broken")

        @pytest.mark.asyncio
        async def test_async():
            await client_of().get("/broken")
        """,
        "--tb=native",
    )
    outcome.assert_outcomes(failed=2)
    outcome.says("in test_sync*in broken*in test_async*in broken")
    assert "pytest_mwbudget" not in outcome.result.stdout.str()


def test_a_fault_of_the_measurement_fails_no_test(suite: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: Any) -> None:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(pytest_mwbudget.session.requests.own, "measure_again", broken)
    outcome = suite.run(
        """
        @pytest.mark.mw_budget(tasks=0)
        def test_it():
            assert TestClient(app).get("/health").text == "ok"
        """
    )
    outcome.assert_outcomes(passed=1, warnings=1)
    assert outcome.reports.reasons == ["the measurement failed with ZeroDivisionError: ours"]


@pytest.mark.live
@pytest.mark.once
@pytest.mark.parametrize("method", ["signal"])
def test_pytest_timeout_ends_a_measurement(suite: Suite, method: str) -> None:
    pytest.importorskip("pytest_timeout")
    outcome = suite.run(
        """
        @pytest.mark.timeout(0.5)
        @pytest.mark.mw_budget(tasks=9)
        def test_sync():
            TestClient(make(endpoint=slow(0.1))).get("/")

        @pytest.mark.asyncio
        @pytest.mark.timeout(0.5)
        @pytest.mark.mw_budget(tasks=9)
        async def test_async():
            await client_of(make(endpoint=slow(0.1))).get("/")

        @pytest.mark.mw_budget(tasks=0)
        def test_next():
            assert TestClient(app).get("/health").text == "ok"
        """,
        "-p",
        "timeout",
        f"--timeout-method={method}",
    )
    outcome.assert_outcomes(passed=1, failed=2)
    outcome.says("Failed: Timeout *>0.5s")
    assert outcome.reports.measured[-1] == ("test_next", "GET /health", "pass")


@pytest.mark.parametrize("survey", [False, True])
def test_a_test_that_is_marked_while_it_runs_is_measured_from_then_on(suite: Suite, survey: bool) -> None:
    outcome = suite.run(
        """
        def test_kept(request):
            TestClient(app).get("/health?before")
            request.node.add_marker(pytest.mark.mw_budget(tasks=1))
            TestClient(app).get("/health")

        def test_broken(request):
            request.applymarker(pytest.mark.mw_budget(tasks=0))
            TestClient(make(Header)).get("/health")

        def test_narrowed(request):
            request.node.add_marker(pytest.mark.mw_budget(tasks=1))
            request.node.add_marker(pytest.mark.mw_budget(tasks=0))
            TestClient(make(Header)).get("/health")

        @pytest.mark.mw_budget(tasks=0)
        def test_marked_before(request):
            request.node.add_marker(pytest.mark.mw_budget(tasks=1))
            TestClient(make(Header)).get("/health")

        @pytest.mark.asyncio
        async def test_async(request):
            request.node.add_marker(pytest.mark.mw_budget(tasks=1))
            await client_of(app).get("/health")

        def test_with_the_fixture(request):
            request.node.add_marker(pytest.mark.mw_budget(tasks=1))
            request.getfixturevalue("mw_budget").get("/health")
            TestClient(app).get("/own")

        def test_marked_at_last(request):
            TestClient(app).get("/health")
            request.node.add_marker(pytest.mark.mw_budget(tasks=1))

        def test_unusable(request):
            request.node.add_marker(pytest.mark.mw_budget(tusks=1))
            TestClient(app).get("/health")

        def test_other_mark(request):
            request.node.add_marker(pytest.mark.filterwarnings("ignore"))
            assert "add_marker" in vars(request.node)

        @pytest.fixture(autouse=True)
        def no_mark_stays(request):
            yield
            assert "add_marker" not in vars(request.node)

        @pytest.fixture
        def mw_budget_app():
            return app
        """,
        UNDRAWN,
        *(["--mw-budget-survey"] if survey else []),
    )
    outcome.assert_outcomes(passed=5, failed=4)
    judged = [measurement for measurement in outcome.reports.measured if "before" not in measurement[1]]
    assert judged == [
        ("test_kept", "GET /health", "pass"),
        ("test_broken", "GET /health", "fail"),
        ("test_narrowed", "GET /health", "fail"),
        ("test_marked_before", "GET /health", "pass"),
        ("test_async", "GET /health", "pass"),
        ("test_with_the_fixture", "GET /health", "pass"),
    ]
    assert not outcome.reports.left_out
    outcome.says(
        "made no request to an ASGI app in this process while it was marked with mw_budget",
        "unknown keyword 'tusks' in the mw_budget marker",
    )


@pytest.mark.parametrize("client", ["a sync test", "asyncio", "trio"])
def test_ctrl_c_ends_the_run(suite: Suite, client: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asking = """
        def test_it():
            try:
                TestClient(make(endpoint=interrupted)).get("/")
    """
    if client != "a sync test":
        asking = f"""
        @pytest.mark.anyio
        @pytest.mark.parametrize("anyio_backend", ["{client}"])
        async def test_it():
            try:
                await client_of(make(endpoint=interrupted)).get("/")
        """
    tests = f"""
        import os, signal

        signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what runs in the background of a shell
        calls = []

        async def interrupted(request):
            calls.append(1)
            if len(calls) == 5:
                os.kill(os.getpid(), signal.SIGINT)
            return PlainTextResponse("ok")

        @pytest.mark.mw_budget(us=0.01)  # takes seconds
        {asking.strip()}
            finally:
                print("calls:", len(calls))

        def test_next():
            pass
        """
    suite.pytester.makepyfile(test_shop=HEAD + dedent(tests))
    options = (*alone(monkeypatch, "anyio"), "-p", "no:cacheprovider", "-s", *QUIET, "--mw-budget")
    result = suite.pytester.runpytest_subprocess(*options)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    # Without the interrupt there are twenty thousand. The main thread of a busy machine may get it late.
    result.stdout.re_match_lines([r".*calls: \d{1,4}$", ".*KeyboardInterrupt.*"])
    result.stdout.no_fnmatch_line("*signals.py*")


def test_a_request_that_nobody_finishes_is_collected_in_silence(suite: Suite) -> None:
    outcome = suite.run(
        """
        import asyncio
        import gc

        async def app(scope, receive, send):
            await asyncio.sleep(100)

        @pytest.mark.mw_budget(tasks=1, undecided="pass")
        def test_left():
            loop = asyncio.new_event_loop()
            client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")
            task = loop.create_task(client.get("/"))
            loop.run_until_complete(asyncio.sleep(0.01))
            loop.close()
            task._log_destroy_pending = False
            del task
            gc.collect()
        """,
        "-W",
        "error::pytest.PytestUnraisableExceptionWarning",
    )
    outcome.result.assert_outcomes(passed=1)


def test_a_client_whose_module_is_loaded_again_is_recorded(suite: Suite) -> None:
    outcome = suite.run(
        """
        import importlib
        import starlette.testclient as module

        @pytest.mark.mw_budget(tasks=1)
        def test_loaded_again():
            before = dict(vars(module))
            try:
                importlib.reload(module)
                assert module.TestClient(app).get("/health").text == "ok"
            finally:
                vars(module).update(before)
        """
    )
    assert outcome.reports.measured == [("test_loaded_again", "GET /health", "pass")]


# ---- reports --------------------------------------------------------------------------------------------------------

MIXED = """
@pytest.mark.mw_budget(tasks=0)
def test_it():
    client = TestClient(app)
    client.get("/health")
    client.post("/echo")

@pytest.mark.mw_budget(tasks=0)
def test_other():
    client = TestClient(app)
    client.get("/items/<b>")
    client.delete("/<b>")
"""


def test_reports_name_the_requests_that_were_left_out(suite: Suite) -> None:
    files = {name: suite.pytester.path / f"report.{name}" for name in ("json", "html", "md", "xml")}
    outcome = suite.run(
        MIXED,
        f"--mw-budget-json={files['json']}",
        f"--mw-budget-html={files['html']}",
        f"--mw-budget-markdown={files['md']}",
        f"--junitxml={files['xml']}",
        "-v",
    )
    outcome.assert_outcomes(passed=2)
    document = json.loads(files["json"].read_text())
    assert [(_name(left_out["nodeid"]), _line(left_out["request"])) for left_out in document["left_out"]] == [
        ("test_it", "POST /echo"),
        ("test_other", "DELETE /%3Cb%3E"),
    ]
    assert "repeat=['POST']" in document["left_out"][0]["reason"]
    outcome.says("test_it POST /echo not measured: a POST request is not repeated automatically; ")
    for name in ("html", "md"):
        text = files[name].read_text()
        assert "POST /echo" in text
        assert "DELETE /%3Cb%3E" in text
        assert "a POST request is not repeated automatically" in text
        assert "/<b>" not in text
    properties = ElementTree.parse(files["xml"]).iter("property")
    assert any(
        "GET /health" in str(junit_property.get("name")) + str(junit_property.get("value"))
        for junit_property in properties
    )


@pytest.mark.live
@pytest.mark.once
def test_requests_of_xdists_workers(suite: Suite) -> None:
    pytest.importorskip("xdist")
    suite.pytester.makepyfile(shop=APP, test_shop=HEAD + MIXED)
    path = suite.pytester.path / "report.json"
    options = ["-n", "2", "-p", "no:cacheprovider", *LEAN, *QUIET, "--mw-budget", f"--mw-budget-json={path}", "-v"]
    result = suite.pytester.runpytest_subprocess(*options, timeout=600)
    result.assert_outcomes(passed=2)
    document = json.loads(Path(path).read_text())
    assert sorted(_line(left_out["request"]) for left_out in document["left_out"]) == ["DELETE /%3Cb%3E", "POST /echo"]
    assert sorted(_line(measurement["request"]) for measurement in document["measurements"]) == [
        "GET /health",
        "GET /items/%3Cb%3E",
    ]


def test_a_test_that_runs_again_is_judged_by_its_last_requests(suite: Suite) -> None:
    suite.pytester.makeconftest(
        """
        def pytest_runtest_protocol(item, nextitem):
            from _pytest.runner import runtestprotocol
            item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
            for _ in range(2):
                for report in runtestprotocol(item, nextitem=nextitem, log=False):
                    item.ihook.pytest_runtest_logreport(report=report)
            return True
        """
    )
    outcome = suite.run(
        """
        runs = []

        @pytest.mark.mw_budget(tasks=0)
        def test_it():
            runs.append(1)
            TestClient(make(Header) if len(runs) == 1 else app).get("/health")
        """,
        UNDRAWN,
    )
    outcome.assert_outcomes(passed=1, failed=1)
    assert outcome.reports.verdicts == ["fail", "pass"]
