"""The plugin in whole pytest runs: options, marker, fixtures, reports. Budgets are far from the actual costs."""

from __future__ import annotations

import json
import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

import pytest_mwbudget.config.checks
import pytest_mwbudget.engine
import pytest_mwbudget.report.github
import pytest_mwbudget.report.markdown
import pytest_mwbudget.session.artifacts
import pytest_mwbudget.session.configuration
from pytest_mwbudget.counting.backend import Backend, PythonCore
from pytest_mwbudget.model.quantities import PROCESS_WIDE, RECORDABLE

from .apps import FAST, LEAN, LEAN_WITH_COVERAGE, SPIN, Scheduled, needs
from .test_report_github import read
from .test_report_schema import misfits

APP = (
    SPIN
    + """
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route

calls = []


async def health(request):
    calls.append(1)
    return PlainTextResponse("ok")


async def search(request):
    return JSONResponse({"got": await request.json(), "auth": request.headers["authorization"]})


async def broken(request):
    raise LookupError("no such shelf")


def create_app():
    routes = [
        Route("/health", health),
        Route("/search", search, methods=["POST"]),
        Route("/broken", broken),
    ]
    return Starlette(routes=routes, middleware=[Middleware(Spin, us=300)])


app = create_app()
"""
)

CONFTEST = """
import pytest
from shop import create_app


@pytest.fixture
def mw_budget_app():
    return create_app()
"""

# The longest that a run may take. With the schedule below, a run ends as soon as its verdicts are known.
QUICK = "--mw-budget-max-time=5"
# The warning filters of the outer run would turn BudgetWarning into an error.
WARNINGS_SHOWN = ("-W", "always::pytest_mwbudget.errors.BudgetWarning")


@pytest.fixture
def shop(pytester: pytest.Pytester) -> pytest.Pytester:
    """A directory with an app whose layer Spin takes 300 µs."""
    pytester.makepyfile(shop=APP)
    pytester.makeconftest(CONFTEST)
    return pytester


@pytest.fixture(autouse=True)
def no_github(monkeypatch: pytest.MonkeyPatch) -> None:
    """No GitHub Actions in inner runs, even if the outer run is a job of GitHub Actions."""
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY", "GITHUB_WORKSPACE"):
        monkeypatch.delenv(name, raising=False)


# Profiles are short, because a sample takes time proportional to the stack depth, and inner runs are deep in the stack.
QUICKLY = Scheduled(**FAST, profile_least_s=0.02, profile_chunk_s=0.02, profile_samples=5, profile_events=1)


def run(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    options = ("-p", "no:cacheprovider", "-p", "no:xdist", *LEAN, *arguments)
    return pytester.runpytest_inprocess(*options, plugins=[QUICKLY])


def marked(keywords: str, body: str = "mw_budget.get('/health')") -> str:
    return f"""
import pytest


@pytest.mark.mw_budget({keywords})
def test_it(mw_budget):
    {body}
"""


# ---- without enforcement ----------------------------------------------------------------------------------------


def test_without_the_option_the_request_is_made_once_and_nothing_is_timed(shop: pytest.Pytester) -> None:
    shop.makepyfile(
        marked(
            "us=1",
            """measurement = mw_budget.get('/health')
    import shop
    assert shop.calls == [1]
    assert measurement.response.text == 'ok'
    assert measurement.verdict is None and measurement.layers == ()""",
        )
    )
    result = run(shop)
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("*mw-budget*")


def test_the_configuration_can_enforce_in_every_run(shop: pytest.Pytester) -> None:
    shop.makeini("[pytest]\nmw_budget = true\nmw_budget_max_time = 0.4\n")
    shop.makepyfile(marked("us=20"))
    run(shop).assert_outcomes(failed=1)


def test_a_test_without_marker_or_fixture_is_left_alone(shop: pytest.Pytester) -> None:
    shop.makepyfile("def test_it():\n    pass\n")
    result = run(shop, "--mw-budget")
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("*mw-budget*")


# ---- verdicts ---------------------------------------------------------------------------------------------------


def test_a_layer_over_its_budget_fails_the_test_with_its_evidence(shop: pytest.Pytester) -> None:
    shop.makepyfile(marked("us=20"))
    result = run(shop, "--mw-budget", QUICK)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "GET /health: Spin * µs, budget 20 µs (1 of 3 layers over budget)",
            "layer * µs/request * interval * budget * verdict",
            "Spin * 20 * fail",
            "(endpoint)*",
            "(total)*",
            "Spin takes * µs per request, its budget is 20 µs: * too much*",
            "Next: *",
            "* mw-budget *",
            "FAILED *test_it*",
        ]
    )
    result.stdout.no_fnmatch_line("*pytest_mwbudget/*")


def test_a_stack_within_its_budgets_passes_and_is_shown(shop: pytest.Pytester) -> None:
    shop.makepyfile(marked("us=2000, total_us=500000"))
    result = run(shop, "--mw-budget", QUICK)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*::test_it GET /health pass: *", "own: Spin; *", "CPython *"])
    result.stdout.no_fnmatch_line("Spin*pass")
    result = run(shop, "--mw-budget", QUICK, "-v")
    result.stdout.fnmatch_lines(
        ["*::test_it GET /health pass: *", "Spin*2000  pass", "(total)*500000  pass", "detection limit *", "CPython *"]
    )


def test_the_total_has_a_budget_of_its_own(shop: pytest.Pytester) -> None:
    shop.makepyfile(marked("total_us=20"))
    result = run(shop, "--mw-budget", "--mw-budget-max-time=1")  # The interval of the total takes additional requests.
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["GET /health: total * µs, budget 20 µs", "The whole request takes *"])


def test_a_named_layer_has_its_own_budget(shop: pytest.Pytester) -> None:
    shop.makepyfile(marked("us=20, layers={'shop:Spin': 2000, 'ServerErrorMiddleware': 1000}"))
    result = run(shop, "--mw-budget", QUICK, "-v")
    result.stdout.fnmatch_lines(["ServerErr*1000  pass", "Spin*2000  pass"])


def test_the_test_function_finishes_before_its_verdict(shop: pytest.Pytester) -> None:
    shop.makepyfile(
        marked(
            "us=20",
            """measurement = mw_budget.get('/health')
    print('spin verdict:', measurement.layer('Spin').verdict)""",
        )
    )
    result = run(shop, "--mw-budget", QUICK)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["spin verdict: fail"])


def test_a_failing_assertion_of_the_test_itself_is_what_fails(shop: pytest.Pytester) -> None:
    shop.makepyfile(marked("us=20", "assert mw_budget.get('/health').response.text == 'no'"))
    result = run(shop, "--mw-budget", QUICK)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*AssertionError*"])


@pytest.mark.parametrize(("action", "outcome"), [("warn", "passed"), ("pass", "passed"), ("fail", "failed")])
def test_an_undecided_budget_is_treated_as_the_settings_say(shop: pytest.Pytester, action: str, outcome: str) -> None:
    # In so little time no detection limit is known, on a machine of any speed.
    shop.makepyfile(marked("layers={'Spin': 100}, max_time=0.0001"))
    result = run(shop, "--mw-budget", f"--mw-budget-undecided={action}", *WARNINGS_SHOWN)
    result.assert_outcomes(**{outcome: 1}, warnings=1 if action == "warn" else 0)
    if action == "warn":
        result.stdout.fnmatch_lines(["*BudgetWarning: GET /health: Spin is undecided: *too-few-requests*"])
    if action == "fail":
        result.stdout.fnmatch_lines(["GET /health: undecided", "Spin is undecided: there were too few requests *"])


@pytest.mark.parametrize(
    ("keywords", "outcomes"),
    [
        ("us=500, tasks=5", {"passed": 1, "warnings": 1}),
        ("us=500, tasks=5, undecided='fail'", {"failed": 1}),
        ("us=500, tasks=5, undecided='pass'", {"passed": 1}),
        ("total_us=500000", {"passed": 1}),
    ],
)
def test_budgets_that_apply_to_no_layer_are_like_undecided_ones(
    shop: pytest.Pytester, keywords: str, outcomes: dict[str, int]
) -> None:
    shop.makepyfile(
        conftest="""
        import pytest

        async def app(scope, receive, send):
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b""})

        @pytest.fixture
        def mw_budget_app():
            return app
        """,
        test_it=marked(f"lifespan=False, {keywords}"),
    )
    result = run(shop, "--mw-budget", QUICK, *WARNINGS_SHOWN)
    result.assert_outcomes(**outcomes)
    if outcomes != {"passed": 1}:
        result.stdout.fnmatch_lines(["*GET /health: no budget applies (tasks, us for every *total_us is*"])


def test_where_warnings_are_errors_an_undecided_budget_fails_the_test_and_says_why(shop: pytest.Pytester) -> None:
    request = "mw_budget.get('/health')"
    shop.makepyfile(marked("layers={'Spin': 100}, max_time=0.0001", f"{request}, {request}"))
    result = run(shop, "--mw-budget", "-W", "error")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "GET /health: Spin is undecided: there were too few requests *too-few-requests*",
            "GET /health: Spin is undecided: there were too few requests *too-few-requests*",
            "It failed because warnings are errors in this run. To keep it a warning, add*",
        ]
    )
    result.stdout.no_fnmatch_line("*gate.py*")
    remedy = "default::pytest_mwbudget.BudgetWarning"
    run(shop, "--mw-budget", "-W", "error", "-W", remedy).assert_outcomes(passed=1, warnings=2)
    shop.makeini(f"[pytest]\nfilterwarnings =\n    error\n    {remedy}\n")
    run(shop, "--mw-budget").assert_outcomes(passed=1, warnings=2)


@pytest.mark.parametrize(("budget", "errors"), [(9, 0), (0, 1)])
def test_a_request_that_a_fixture_makes_afterwards_is_judged_and_shown(
    shop: pytest.Pytester, budget: int, errors: int
) -> None:
    shop.makepyfile(
        f"""
        import pytest

        @pytest.fixture
        def client(mw_budget):
            yield mw_budget
            mw_budget.get("/threads")

        @pytest.mark.mw_budget(layers={{"ThreadsAfterwards": {{"threads": {budget}}}}})
        def test_it(client):
            client.get("/health")
        """
    )
    shop.makepyfile(
        conftest="""
        import asyncio
        import pytest
        import shop

        class ThreadsAfterwards:
            def __init__(self, app):
                self.app = app

            async def __call__(self, scope, receive, send):
                if scope["path"] == "/threads":
                    await asyncio.to_thread(len, "")
                    scope["path"] = "/health"
                await self.app(scope, receive, send)

        @pytest.fixture
        def mw_budget_app():
            return ThreadsAfterwards(shop.create_app())
        """
    )
    result = run(shop, "--mw-budget", "--mw-budget-flamegraph=never")
    result.assert_outcomes(passed=1, errors=errors)
    if errors:
        result.stdout.fnmatch_lines(["GET /threads: ThreadsAfterwards 1 call, *", "ThreadsAfterwards * fail"])
    verdict = "fail" if errors else "pass"
    result.stdout.fnmatch_lines(["*::test_it GET /health pass: *", f"*::test_it GET /threads {verdict}: *"])


def test_a_measurement_error_of_a_fixture_afterwards_is_explained(shop: pytest.Pytester) -> None:
    shop.makepyfile(
        """
        import pytest

        @pytest.fixture
        def client(mw_budget):
            yield mw_budget
            mw_budget.get("/nothing-there")

        @pytest.mark.mw_budget(tasks=0)
        def test_it(client):
            client.get("/health")
        """
    )
    result = run(shop, "--mw-budget")
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["GET /nothing-there*404*"])
    result.stdout.no_fnmatch_line("*asgi.py*")


def test_a_marked_test_that_measures_nothing_fails(shop: pytest.Pytester) -> None:
    shop.makepyfile(marked("us=20", "pass"))
    run(shop).assert_outcomes(passed=1)
    result = run(shop, "--mw-budget")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["this test is for mw_budget but made no request*"])


@pytest.mark.parametrize("arguments", [(), ("--mw-budget",)])
def test_a_request_that_raises_as_the_test_expects_was_made(shop: pytest.Pytester, arguments: tuple[str, ...]) -> None:
    shop.makepyfile(marked("tasks=0", "with pytest.raises(LookupError): mw_budget.get('/broken')"))
    run(shop, *arguments).assert_outcomes(passed=1)


@pytest.mark.parametrize("call", ["get('/broken')", "get('/missing')", "get('/health', header=1)", "post('/health')"])
@pytest.mark.skipif(not hasattr(pytest, "Subtests"), reason="this pytest has no subtests")
def test_a_request_that_raises_in_a_subtest_is_the_only_failure(shop: pytest.Pytester, call: str) -> None:
    source = marked("tasks=0", f"with subtests.test(): mw_budget.{call}")
    shop.makepyfile(source.replace("test_it(mw_budget)", "test_it(mw_budget, subtests)"))
    result = run(shop, "--mw-budget")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.no_fnmatch_line("*made no request*")


# ---- the marker and its values ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        (
            "uss=5",
            "unknown keyword 'uss'*Did you mean 'us'?*keywords are: us, busy_us, us_per_message, p95_us, p99_us,"
            " objects, * layers, *",
        ),
        ("50", "the mw_budget marker got 50 without a keyword*us=50*"),
        ("us=0", "*us is 0, which cannot be kept*"),
        ("us=-3", "*us is -3, which cannot be kept*"),
        ("us=float('nan')", "*us is nan, which cannot be kept*"),
        ("us='much'", "*us is 'much', which is not a number*"),
        ("us=True", "*us is True, which is not a number*"),
        ("layers={'Spin': 0}", "*layers[[]'Spin'[]] is 0, which cannot be kept*"),
        ("layers=['Spin']", "*layers has the line 'Spin'*"),
        ("expect_status=99", "*expect_status is 99*from 100 to 599*"),
        ("undecided='wran'", "*undecided is 'wran'. Did you mean 'warn'?*"),
        ("max_time=0", "*max_time is 0*"),
        ("lifespan='maybe'", "*lifespan is 'maybe'*"),
        ("task=0", "unknown keyword 'task'*Did you mean 'tasks'?*"),
        ("tasks=-1", "*tasks is -1; give a whole number*"),
        ("bytes='16 KiBs'", "*bytes is '16 KiBs'; *The units are: *"),
        ("layers={'Spin': {'taks': 0}}", "*layers[[]'Spin'[]] has a budget of 'taks'. Did you mean 'tasks'?*"),
        ("loop='curio'", "*loop is 'curio'.*The choices are: asyncio, uvloop, trio*"),
    ],
)
def test_an_unusable_marker_says_what_is_wrong_also_without_enforcement(
    shop: pytest.Pytester, keywords: str, message: str
) -> None:
    shop.makepyfile(marked(keywords))
    result = run(shop)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([message])


def test_the_closest_marker_wins_key_by_key(shop: pytest.Pytester) -> None:
    shop.makeini("[pytest]\nmw_budget_us = 7\nmw_budget_layers =\n    ServerErrorMiddleware = 3000\n")
    shop.makepyfile(
        """
        import pytest

        pytestmark = pytest.mark.mw_budget(us=11, total_us=12, layers={"Spin": 1})


        @pytest.mark.mw_budget(total_us=22)
        class TestIt:
            @pytest.mark.mw_budget(layers={"Spin": 2})
            def test_it(self, mw_budget):
                budgets = mw_budget.settings.budgets
                assert (budgets.default, budgets.total_us) == ({"us": 11}, 22)
                assert budgets.layers == {"Spin": {"us": 2}, "ServerErrorMiddleware": {"us": 3000}}
        """
    )
    run(shop).assert_outcomes(passed=1)


def test_a_marker_can_take_inherited_budgets_away_so_that_nothing_is_timed(shop: pytest.Pytester) -> None:
    shop.makeini("[pytest]\nmw_budget_us = 7\nmw_budget_layers =\n    Spin = 1\n")
    shop.makepyfile(
        """
        import pytest

        pytestmark = pytest.mark.mw_budget(us=11, total_us=12, layers={"Spin": 1})


        @pytest.mark.mw_budget(tasks=0, us=None, total_us=None, layers=None)
        def test_counts(mw_budget):
            measurement = mw_budget.get("/health")
            assert measurement.verdict == "pass" and measurement.books is None


        @pytest.mark.mw_budget(us=2000, total_us=None, layers={"Spin": None})
        def test_layer(mw_budget):
            assert mw_budget.get("/health").layer("Spin").verdict is None
        """
    )
    run(shop, "--mw-budget", QUICK).assert_outcomes(passed=2)


def test_a_parameter_sets_marker_wins_over_that_of_its_function(shop: pytest.Pytester) -> None:
    shop.makepyfile(
        """
        import pytest


        @pytest.mark.parametrize("_", [pytest.param("narrow", marks=pytest.mark.mw_budget(us=9)), "wide"])
        @pytest.mark.mw_budget(us=5000)
        def test_it(mw_budget, _):
            mw_budget.get("/health")
        """
    )
    run(shop, "--mw-budget", QUICK).assert_outcomes(passed=1, failed=1)


@pytest.mark.parametrize(
    ("ini", "message"),
    [
        ("mw_budget = perhaps", "*mw_budget in the configuration: * 'perhaps'; give true or false"),
        ("mw_budget_us = many", "*mw_budget_us is 'many', which is not a number*"),
        ("mw_budget_undecided = maybe", "*mw_budget_undecided is 'maybe'*The choices are: warn, fail, pass*"),
        ("mw_budget_lifespan = perhaps", "*mw_budget_lifespan is 'perhaps'*"),
        ("mw_budget_tasks = -1", "*mw_budget_tasks is '-1'; give a whole number*"),
        ("mw_budget_bytes = 16 KiBs", "*mw_budget_bytes is '16 KiBs'*The units are: *"),
        ("mw_budget_layers = Spin = taks: 0", "*mw_budget_layers: Spin has a budget of 'taks'*"),
        ("mw_budget_loop = curio", "*mw_budget_loop is 'curio'.*The choices are: asyncio, uvloop, trio*"),
    ],
)
def test_an_unusable_configuration_is_a_usage_error(shop: pytest.Pytester, ini: str, message: str) -> None:
    shop.makeini(f"[pytest]\n{ini}\n")
    result = run(shop)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([message])


@pytest.mark.parametrize(
    "option",
    [
        "--mw-budget-max-time=soon",
        "--mw-budget-undecided=maybe",
        "--mw-budget-json=mw.json",
        "--mw-budget-html=mw.html",
        "--mw-budget-markdown=mw.md",
        "--mw-budget-benchmark-json=mw.bench.json",
        "--mw-budget-loop=nonsense",
        "--mw-budget-loop=",
    ],
)
def test_an_unusable_option_is_a_usage_error(shop: pytest.Pytester, option: str) -> None:
    result = run(shop, option)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: *mw*budget*"])


@pytest.mark.parametrize("name", ["json", "markdown", "benchmark-json"])
def test_a_path_that_cannot_be_written_is_a_usage_error(shop: pytest.Pytester, name: str) -> None:
    result = run(shop, "--mw-budget", f"--mw-budget-{name}=.")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: --mw-budget-{name}='.' cannot be written: *"])


def test_a_page_without_its_template_library_is_a_usage_error_before_any_test(
    shop: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pytest_mwbudget.session.artifacts, "find_spec", lambda name: None)
    shop.makepyfile(marked("us=20"))
    result = run(shop, "--mw-budget", "--mw-budget-html=mw.html")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["ERROR: --mw-budget-html='mw.html' needs the package jinja2, *: pip install *pytest-mwbudget[[]html[]]\""]
    )
    assert not Path(shop.path, "mw.html").exists()


def test_a_layer_name_that_matches_nothing_is_explained(shop: pytest.Pytester) -> None:
    shop.makepyfile(marked("layers={'Spinn': 5}"))
    result = run(shop, "--mw-budget", QUICK)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["*layer 'Spinn' that is not in the stack. Did you mean 'Spin'? The layers are: ServerErrorMiddleware, Spin,*"]
    )


def test_a_marker_on_a_module_is_for_its_tests_that_take_the_fixture(shop: pytest.Pytester) -> None:
    shop.makepyfile(
        """
        import pytest

        pytestmark = pytest.mark.mw_budget(us=5000)


        def test_without():
            pass


        def test_with(mw_budget):
            mw_budget.get("/health")
        """
    )
    run(shop, "--mw-budget", QUICK).assert_outcomes(passed=2)


def test_the_fixture_can_be_asked_for_at_run_time(shop: pytest.Pytester) -> None:
    shop.makepyfile(
        """
        import pytest


        @pytest.mark.mw_budget(us=20)
        def test_it(request):
            request.getfixturevalue("mw_budget").get("/health")
        """
    )
    run(shop, "--mw-budget", QUICK).assert_outcomes(failed=1)


def test_an_unmarked_test_that_asks_for_the_fixture_at_run_time_is_judged(shop: pytest.Pytester) -> None:
    shop.makeini("[pytest]\nmw_budget_us = 20\n")
    shop.makepyfile("def test_it(request):\n    request.getfixturevalue('mw_budget').get('/health')\n")
    run(shop, "--mw-budget", QUICK).assert_outcomes(failed=1)


def test_a_fixture_that_asks_for_it_at_run_time_is_explained_without_enforcement(shop: pytest.Pytester) -> None:
    shop.makepyfile(
        """
        import pytest


        @pytest.fixture
        def client(request):
            return request.getfixturevalue("mw_budget")


        def test_it(client):
            client.get("/missing")
        """
    )
    result = run(shop)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["GET /missing answered 404; nothing was measured.*"])
    result.stdout.no_fnmatch_line("*pytest_mwbudget/*")


def test_wrappers_in_conftest_files_see_the_verdict(shop: pytest.Pytester) -> None:
    shop.makeconftest(
        CONFTEST
        + """

@pytest.hookimpl(wrapper=True)
def pytest_runtest_call():
    try:
        return (yield)
    except pytest.fail.Exception:
        pytest.skip("the verdict was seen")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call):
    report = yield
    assert hasattr(report, "mw_budget") == (call.when == "call")
    return report
"""
    )
    shop.makepyfile(marked("us=20"))
    run(shop, "--mw-budget", QUICK).assert_outcomes(skipped=1)


def test_a_request_in_another_fixture_is_explained_as_well(shop: pytest.Pytester) -> None:
    shop.makepyfile(
        """
        import pytest


        @pytest.fixture
        def prepared(mw_budget):
            return mw_budget.get("/missing")


        def test_it(prepared):
            pass
        """
    )
    result = run(shop)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["GET /missing answered 404; nothing was measured.*"])
    result.stdout.no_fnmatch_line("*pytest_mwbudget/*")


NOT_ENTERED = """
import pytest
from shop import create_app
from starlette.responses import PlainTextResponse


class Doorkeeper:
    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        await PlainTextResponse("closed")(scope, receive, send)


class Inner(Doorkeeper):
    pass


@pytest.fixture
def mw_budget_app():
    return Doorkeeper(Inner(create_app()))
"""


def test_what_is_named_but_not_entered_is_undecided(shop: pytest.Pytester) -> None:
    shop.makeconftest(NOT_ENTERED)
    shop.makepyfile(marked("us=5000, layers={'Inner': 5}"))
    result = run(shop, "--mw-budget", QUICK, *WARNINGS_SHOWN)
    result.assert_outcomes(passed=1, warnings=1)
    result.stdout.fnmatch_lines(["*Inner is undecided: the request did not come to it*", "Inner * - * 5 * undecided"])


def test_nothing_is_judged_without_a_budget(shop: pytest.Pytester) -> None:
    shop.makepyfile(marked("", "assert mw_budget.get('/health').verdict is None"))
    run(shop, "--mw-budget", QUICK).assert_outcomes(passed=1)


SELECTED = """
import pytest


@pytest.fixture
def client(mw_budget):
    return mw_budget


def test_by_fixture(mw_budget):
    mw_budget.get("/health")


def test_through_another(client):
    client.get("/health")


@pytest.mark.usefixtures("client")
def test_by_name(request):
    request.getfixturevalue("mw_budget").get("/health")


@pytest.mark.mw_budget(tasks=0)
def test_at_run_time(request):
    request.getfixturevalue("mw_budget").get("/health")


class TestAll:
    def test_in_a_class(self, client):
        client.get("/health")


def test_else():
    raise AssertionError("not selected")
"""


@pytest.mark.parametrize("arguments", [(), ("--mw-budget", "-o", "mw_budget_tasks=0")])
def test_the_marker_selects_every_test_that_measures(shop: pytest.Pytester, arguments: tuple[str, ...]) -> None:
    shop.makepyfile(SELECTED)
    run(shop, *arguments, "-m", "mw_budget", "--strict-markers").assert_outcomes(passed=5, deselected=1)
    run(shop, *arguments, "-m", "not mw_budget").assert_outcomes(failed=1, deselected=5)


def test_a_layer_that_is_asked_for_without_measuring_is_explained(shop: pytest.Pytester) -> None:
    shop.makepyfile(marked("", "mw_budget.get('/health').layer('Spin')"))
    result = run(shop)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*no layer 'Spin': nothing was measured; run pytest with --mw-budget, *"])
    result.stdout.no_fnmatch_line("*model.py*")


def test_a_layer_that_is_not_there_has_its_near_miss_and_the_names(shop: pytest.Pytester) -> None:
    shop.makepyfile(marked("tasks=0", "mw_budget.get('/health').layer('ServerError')"))
    result = run(shop, "--mw-budget")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["*no layer 'ServerError'. Did you mean 'ServerErrorMiddleware'? The layers are: *Spin*"]
    )


# ---- the app ----------------------------------------------------------------------------------------------------


def test_the_app_can_be_named_in_the_configuration(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(shop=APP)
    pytester.makeini("[pytest]\nmw_budget_app = shop:app\n")
    pytester.makepyfile(marked(""))
    run(pytester).assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("shopp:app", "mw_budget_app is 'shopp:app', but importing 'shopp' failed*"),
        ("shop:ap", "mw_budget_app is 'shop:ap', but 'shop' has no 'ap'.*The names that it has are: *app*"),
        ("shop:app.state.shop", "*'shop.app.state' has no 'shop'*"),
        ("shop", "mw_budget_app is 'shop'; write 'package.module:app'"),
        ("shop:calls", "mw_budget_app is 'shop:calls', and that is [[][]], which is not an ASGI app*"),
        ("shop:Spin.__call__", "*does not take (scope, receive, send)*"),
        ("", "mw_budget has no app to measure*"),
    ],
)
def test_an_app_that_cannot_be_had_is_explained(pytester: pytest.Pytester, reference: str, message: str) -> None:
    pytester.makepyfile(shop=APP)
    pytester.makeini(f"[pytest]\nmw_budget_app = {reference}\n")
    pytester.makepyfile(marked("us=5"))
    result = run(pytester)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([message])


# ---- responses --------------------------------------------------------------------------------------------------


def test_a_request_is_built_as_httpx_builds_it(shop: pytest.Pytester) -> None:
    shop.makepyfile(
        marked(
            "tasks=0",
            """measurement = mw_budget.request(
        'POST', '/search', json={'q': 'x'}, params={'page': 2}, headers={'authorization': 'Bearer t'})
    assert measurement.response.json() == {'got': {'q': 'x'}, 'auth': 'Bearer t'}
    assert str(measurement.request) == 'POST /search?page=2'""",
        )
    )
    run(shop, "--mw-budget", QUICK).assert_outcomes(passed=1)


def test_an_error_status_fails_the_test_with_the_body_and_nothing_is_measured(shop: pytest.Pytester) -> None:
    shop.makepyfile(marked("us=2000", "mw_budget.get('/missing')"))
    for arguments in ([], ["--mw-budget"]):
        result = run(shop, *arguments)
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(["GET /missing answered 404; nothing was measured.*", "The body begins: Not Found"])
        result.stdout.no_fnmatch_line("*µs/request*")


def test_an_option_that_builds_no_request_is_explained(shop: pytest.Pytester) -> None:
    shop.makepyfile(marked("", "mw_budget.get('/health', header={'a': 'b'})"))
    result = run(shop)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["a request has no option 'header'. Did you mean 'headers'? The options are: *"])


def test_the_apps_own_timeout_is_the_apps(shop: pytest.Pytester) -> None:
    shop.makepyfile(shop=APP.replace('LookupError("no such shelf")', 'TimeoutError("pool")'))
    shop.makepyfile(marked("", "mw_budget.get('/broken')"))
    result = run(shop, "--mw-budget")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*TimeoutError: pool"])


def test_an_expected_error_status_is_measured(shop: pytest.Pytester) -> None:
    shop.makepyfile(marked("us=2000", "mw_budget.get('/missing', expect_status=404)"))
    run(shop, "--mw-budget", QUICK).assert_outcomes(passed=1)


def test_an_exception_in_the_app_fails_the_test_with_the_apps_traceback(shop: pytest.Pytester) -> None:
    shop.makepyfile(marked("us=2000", "mw_budget.get('/broken')"))
    result = run(shop, "--mw-budget")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*raise LookupError*", "*shop.py:*: LookupError"])


# ---- counts -----------------------------------------------------------------------------------------------------

# An app with one more layer, whose class replaces HABIT.
HABITS = """
import asyncio

import pytest
from shop import create_app
from starlette.middleware.base import BaseHTTPMiddleware


class AddHeader(BaseHTTPMiddleware):
    async def dispatch(self, request, call_next):
        response = await call_next(request)
        response.headers["x-added"] = "1"
        return response


class Keeper:
    kept = []

    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        self.kept.append(bytearray(100_000))
        await self.app(scope, receive, send)


class Threads(Keeper):
    async def __call__(self, scope, receive, send):
        await asyncio.to_thread(len, "")
        await self.app(scope, receive, send)


@pytest.fixture
def mw_budget_app():
    app = create_app()
    app.add_middleware(HABIT)
    return app
"""


@pytest.fixture
def with_task(shop: pytest.Pytester) -> pytest.Pytester:
    """The shop with a layer that runs the app inside it in a task."""
    return with_habit(shop, "AddHeader")


def with_habit(shop: pytest.Pytester, habit: str) -> pytest.Pytester:
    """Add a layer of HABITS to the shop."""
    shop.makeconftest(HABITS.replace("HABIT", habit))
    return shop


def test_a_layer_that_spawns_a_task_fails_a_budget_of_none_with_the_name_of_the_coroutine(
    with_task: pytest.Pytester,
) -> None:
    with_task.makepyfile(marked("tasks=0"))
    result = run(with_task, "--mw-budget")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "GET /health: AddHeader 1 task, budget 0 tasks (1 of 4 layers over budget)",
            "per request * tasks * verdict",
            "AddHeader * fail",
            "Spin * pass",
            "AddHeader spawns 1 task per request, its budget is 0 tasks.",
            "    1 × starlette.middleware.base.BaseHTTPMiddleware.*coro",
            "Next: *",
            "* mw-budget *",
            "*::test_it GET /health fail: 21 requests counted",
        ]
    )
    result.stdout.no_fnmatch_line("*µs/request*")
    result.stdout.no_fnmatch_line("*pytest_mwbudget/*")


def test_without_that_layer_the_same_budget_is_kept(shop: pytest.Pytester) -> None:
    shop.makepyfile(
        marked(
            "tasks=0",
            """measurement = mw_budget.get('/health')
    assert [report.verdict for report in measurement.layers] == ['pass'] * 3
    assert measurement.books is None and measurement.verdict == 'pass'
    import shop
    assert len(shop.calls) < 150""",
        )
    )
    result = run(shop, "--mw-budget")
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("*µs/request*")


def test_a_test_with_a_budget_of_a_count_passes_without_enforcement(with_task: pytest.Pytester) -> None:
    with_task.makepyfile(marked("tasks=0", "assert mw_budget.get('/health').ledger is None"))
    run(with_task).assert_outcomes(passed=1)


def test_what_the_failure_suggests_makes_the_test_pass(with_task: pytest.Pytester) -> None:
    with_task.makepyfile(marked("tasks=0"))
    suggested = re.search(r"set\s+(layers=\{.*?\}\})", run(with_task, "--mw-budget").stdout.str(), re.DOTALL)
    assert suggested is not None
    with_task.makepyfile(marked(f"tasks=0, {' '.join(suggested[1].split())}"))
    run(with_task, "--mw-budget").assert_outcomes(passed=1)


COUNT_CASES = [
    ("AddHeader", "mw_budget_tasks = 0", "AddHeader spawns 1 task per request, its budget is 0 tasks."),
    ("Threads", "mw_budget_threads = 0", "Threads hands to worker threads 1 call per request, its budget is 0 calls."),
    pytest.param(
        "AddHeader",
        "mw_budget_objects = 80",
        r"AddHeader creates \d+ objects per request.* its budget is 80 objects\.",
        marks=needs("objects"),
    ),
    pytest.param(
        "AddHeader",
        "mw_budget_allocations = 80",
        r"AddHeader makes \d+ allocations per request.* its budget is 80 allocations\.",
        marks=needs("allocations"),
    ),
    pytest.param(
        "Keeper",
        "mw_budget_bytes = 64 KiB",
        r"Keeper requests 9\d\.\d KiB per request.* its budget is 64\.0 KiB\.",
        marks=needs("bytes"),
    ),
    pytest.param(
        "Keeper",
        "mw_budget_retained = 0",
        "Keeper leaves behind 1 object per request, its budget is 0 objects.",
        marks=needs("retained"),
    ),
]


@pytest.mark.parametrize(("habit", "ini", "sentence"), COUNT_CASES)
def test_the_configuration_can_have_a_budget_for_each_count(
    shop: pytest.Pytester, habit: str, ini: str, sentence: str
) -> None:
    # The Spin layer must not spin here: reading the clock creates a varying number of objects.
    with_habit(shop, habit).makeini(f"[pytest]\n{ini}\n")
    shop.makepyfile(shop=APP.replace("us=300", "us=0"))
    shop.makepyfile(marked(""))
    result = run(shop, "--mw-budget")
    result.assert_outcomes(failed=1)
    text = " ".join(result.stdout.str().split())
    assert re.search(rf"GET /health: {habit} [^()]*\(1 of 4 layers over budget\)", text)
    assert re.search(sentence, text)


def test_the_configuration_can_have_a_budget_for_holding_the_event_loop(shop: pytest.Pytester) -> None:
    shop.makeini("[pytest]\nmw_budget_busy_us = 20\n")
    shop.makepyfile(marked(""))
    result = run(shop, "--mw-budget", QUICK)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["Spin holds the event loop for * µs per request, its budget is 20 µs: *"])


def test_every_quantity_can_be_given_in_the_configuration_and_the_marker_wins(shop: pytest.Pytester) -> None:
    configured = "".join(f"mw_budget_{quantity} = 7\n" for quantity in RECORDABLE)
    shop.makeini(f"[pytest]\n{configured}mw_budget_layers =\n    Spin = us: 8, tasks: 0\n    Other = 9\n")
    shop.makepyfile(
        marked(
            "tasks=3, layers={'Spin': {'tasks': 2}}",
            f"""budgets = mw_budget.settings.budgets
    assert budgets.default == {dict.fromkeys(RECORDABLE, 7) | {"tasks": 3}}
    assert budgets.layers == {{'Spin': {{'us': 8, 'tasks': 2}}, 'Other': {{'us': 9}}}}""",
        )
    )
    run(shop).assert_outcomes(passed=1)


@pytest.fixture
def no_extension(monkeypatch: pytest.MonkeyPatch) -> None:
    """An installation without a C compiler."""
    why = dict.fromkeys(PROCESS_WIDE, "there is no extension")
    monkeypatch.setattr(pytest_mwbudget.engine, "counting_backend", lambda: Backend(PythonCore(), why))


@pytest.mark.usefixtures("no_extension", "github")
def test_a_budget_of_what_cannot_be_counted_here_fails_the_test_with_the_remedy(shop: pytest.Pytester) -> None:
    shop.makepyfile(marked("layers={'Spin': {'objects': 100, 'tasks': 0}}"))
    result = run(shop, "--mw-budget")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "GET /health: objects cannot be counted here",
            "Spin * undecided",
            f"not counted: {', '.join(PROCESS_WIDE)}",
            "objects of Spin is undecided: objects cannot be counted here: there is no",
            "Next: run this test where objects can be counted, *",
        ]
    )
    assert "objects=None in the marker." in " ".join(result.stdout.str().split())
    ((command, properties, _),) = annotations(result)
    assert (command, properties["title"]) == ("error", "GET /health: objects cannot be counted here")


@pytest.mark.usefixtures("no_extension")
@pytest.mark.parametrize(
    ("keywords", "arguments", "ini", "outcomes"),
    [
        ("", (), "", {"failed": 1}),
        ("", (), "mw_budget_undecided = warn", {"passed": 1, "warnings": 1}),
        ("", ("--mw-budget-undecided=warn",), "", {"passed": 1, "warnings": 1}),
        (", undecided='warn'", (), "", {"passed": 1, "warnings": 1}),
        (", undecided='pass'", (), "", {"passed": 1}),
        (", undecided='fail'", (), "", {"failed": 1}),
        (", bytes=None", (), "", {"passed": 1}),
    ],
)
def test_what_cannot_be_counted_is_as_grave_as_somebody_said(
    shop: pytest.Pytester, keywords: str, arguments: tuple[str, ...], ini: str, outcomes: dict[str, int]
) -> None:
    shop.makeini(f"[pytest]\n{ini}\n")
    shop.makepyfile(f"import pytest\n\npytestmark = pytest.mark.mw_budget(bytes=100)\n{marked(f'tasks=5{keywords}')}")
    run(shop, "--mw-budget", *arguments, *WARNINGS_SHOWN).assert_outcomes(**outcomes)


@pytest.mark.usefixtures("no_extension")
def test_what_cannot_be_counted_in_a_layer_that_was_not_entered_is_undecided_for_that(shop: pytest.Pytester) -> None:
    shop.makeconftest(NOT_ENTERED)
    shop.makepyfile(marked("tasks=5, layers={'Inner': {'objects': 5}}"))
    result = run(shop, "--mw-budget", *WARNINGS_SHOWN)
    result.assert_outcomes(passed=1, warnings=1)
    result.stdout.fnmatch_lines(["*objects of Inner is undecided: the request did not come to it*"])


def test_json_of_a_run_in_which_every_budget_is_a_count(with_task: pytest.Pytester) -> None:
    with_task.makepyfile(marked("tasks=0"))
    run(with_task, "--mw-budget", "--mw-budget-json=mw.json").assert_outcomes(failed=1)
    document = json.loads((with_task.path / "mw.json").read_text())
    assert misfits(document) == []
    (measurement,) = document["measurements"]
    check_counts(measurement)
    assert (measurement["total_us"], measurement["seconds"]) == (None, None)
    assert measurement["layers"][1]["why"]["us"] == "every budget is a count, so nothing was timed"


def check_counts(measurement: dict[str, Any]) -> None:
    """Check the counts of the app with a layer that spawns a task."""
    layer = measurement["layers"][1]
    assert (layer["name"], layer["verdict"], measurement["verdict"]) == ("AddHeader", "fail", "fail")
    assert layer["budgets"] == {"tasks": {"bound": 0, "verdict": "fail", "reason": None}}
    assert (layer["tasks"]["count"], layer["tasks"]["exact"]) == (1, True)
    (name,) = layer["tasks"]["names"]
    assert name.startswith("starlette.middleware.base.BaseHTTPMiddleware")
    assert layer["messages"]["send"] >= 2
    assert measurement["ledger"]["requests"] == 21
    assert measurement["ledger"]["total"]["tasks"]["count"] == 1


def test_a_very_quiet_run_in_which_every_budget_is_a_count_has_one_line(with_task: pytest.Pytester) -> None:
    with_task.makepyfile(marked("tasks=1"))
    result = run(with_task, "--mw-budget", "-qq")
    result.stdout.fnmatch_lines(["*::test_it GET /health pass: 21 requests counted"])
    result.stdout.no_fnmatch_line("per request*")


# ---- loops ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loop", ["asyncio", "uvloop", "trio"])
@pytest.mark.parametrize("place", ["option", "configuration", "marker"])
def test_a_test_that_is_not_async_runs_on_the_loop_that_is_asked_for(
    shop: pytest.Pytester, loop: str, place: str
) -> None:
    pytest.importorskip(loop)
    other = "asyncio" if loop == "trio" else "trio"
    pytest.importorskip(other)
    # The value at `place` must win against another loop configured at a less specific place.
    shop.makeini(f"[pytest]\nmw_budget_loop = {loop if place == 'configuration' else other}\n")
    option = {"option": [f"--mw-budget-loop={loop}"], "marker": [f"--mw-budget-loop={other}"]}.get(place, [])
    keywords = f"loop={loop!r}, tasks=0" if place == "marker" else "tasks=0"
    shop.makepyfile(marked(keywords, f"assert mw_budget.get('/health').loop == {loop!r}"))
    result = run(shop, "--mw-budget", *option)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines([f"CPython *, loop {loop}"])


@pytest.mark.parametrize("loop", ["uvloop", "trio"])
@pytest.mark.parametrize("place", ["option", "configuration"])
def test_a_loop_that_is_not_installed_is_a_usage_error(
    shop: pytest.Pytester, loop: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pytest_mwbudget.config.checks, "find_spec", lambda name: None)
    if place == "configuration":
        shop.makeini(f"[pytest]\nmw_budget_loop = {loop}\n")
    result = run(shop, *([f"--mw-budget-loop={loop}"] if place == "option" else []))
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: mw_budget_loop is '{loop}', but {loop} is not installed here; *"])


def test_a_loop_that_does_not_exist_is_a_usage_error_with_the_choices(shop: pytest.Pytester) -> None:
    result = run(shop, "--mw-budget-loop=tiro")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: mw_budget_loop is 'tiro'. Did you mean 'trio'? *asyncio, uvloop, trio"])


def test_an_async_test_on_another_loop_than_it_says_is_explained(shop: pytest.Pytester) -> None:
    pytest.importorskip("trio")
    shop.makepyfile(ASYNC.format(marker="asyncio", us="2000, loop='trio'", fixtures=""))
    result = run(shop)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["loop='trio' was requested, but this test runs on asyncio; *"])


# ---- async tests ------------------------------------------------------------------------------------------------

ASYNC = """
import asyncio

import pytest


@pytest.mark.{marker}
@pytest.mark.mw_budget(us={us})
async def test_it(mw_budget{fixtures}):
    loop = asyncio.get_running_loop()
    measurement = await mw_budget.aget("/health")
    assert measurement.response.text == "ok"
    assert asyncio.get_running_loop() is loop
"""


@pytest.mark.parametrize(("marker", "fixtures"), [("asyncio", ""), ("anyio", ", anyio_backend")])
@pytest.mark.parametrize(("us", "outcome"), [(2000, "passed"), (20, "failed")])
def test_async_tests_measure_on_their_own_loop(
    shop: pytest.Pytester, marker: str, fixtures: str, us: int, outcome: str
) -> None:
    shop.makepyfile(
        ASYNC.format(marker=marker, us=us, fixtures=fixtures)
        + "\n\n@pytest.fixture\ndef anyio_backend():\n    return 'asyncio'\n"
    )
    run(shop, "--mw-budget", QUICK).assert_outcomes(**{outcome: 1})


def test_a_sync_request_inside_a_running_loop_names_the_async_one(shop: pytest.Pytester) -> None:
    shop.makepyfile(ASYNC.format(marker="asyncio", us=20, fixtures="").replace("await mw_budget.aget", "mw_budget.get"))
    result = run(shop)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*await mw_budget.aget(...)*"])


# ---- reports ----------------------------------------------------------------------------------------------------


def test_json_has_the_promised_shape(shop: pytest.Pytester) -> None:
    shop.makepyfile(marked("us=2000, total_us=5000"))
    target = shop.path / "reports" / "mw.json"
    run(shop, "--mw-budget", QUICK, f"--mw-budget-json={target}").assert_outcomes(passed=1)
    document = json.loads(target.read_text())
    assert misfits(document) == []
    assert document["schema"] == "pytest-mwbudget/1"
    assert {"python", "implementation", "platform", "loop", "packages"} <= document["environment"].keys()
    assert document["environment"]["packages"]["starlette"]
    (measurement,) = document["measurements"]
    assert measurement["nodeid"].endswith("::test_it")
    assert measurement["request"] == {"method": "GET", "url": "/health"}
    assert (measurement["status"], measurement["verdict"]) == (200, "pass")
    assert {"rounds", "seconds", "floor_us", "total_us", "outside_us", "endpoint_us"} <= measurement.keys()
    spin = next(layer for layer in measurement["layers"] if layer["name"] == "Spin")
    assert spin["index"] == 1
    assert spin["qualname"] == "shop.Spin"
    assert (spin["kind"], spin["entered"], spin["method"]) == ("middleware", True, "split")
    assert (spin["budget_us"], spin["verdict"], spin["merged_with"]) == (2000, "pass", None)
    assert spin["us"]["low"] <= spin["us"]["estimate"] <= spin["us"]["high"]


def test_files_stand_where_the_command_line_says_wherever_a_test_goes(shop: pytest.Pytester) -> None:
    shop.makepyfile(marked("us=2000", "mw_budget.get('/health'); import os; os.chdir('/')"))
    files = {"json": "out/mw.json", "markdown": "out/mw.md", "benchmark-json": "out/mw.bench.json"}
    run(shop, "--mw-budget", QUICK, *(f"--mw-budget-{name}={path}" for name, path in files.items()))
    found = {name: Path(shop.path, path).read_text(encoding="utf-8") for name, path in files.items()}
    document = json.loads(found["json"])
    assert found["markdown"] == pytest_mwbudget.report.markdown.render(document)
    assert "<code>Spin</code>" in found["markdown"]
    fullnames = [one["fullname"] for one in json.loads(found["benchmark-json"])["benchmarks"]]
    nodeid = document["measurements"][0]["nodeid"]
    assert fullnames[1:] == [f"{nodeid} GET /health {name}" for name in ("Spin", "ExceptionMiddleware", "(total)")]


def test_a_run_leaves_a_page(shop: pytest.Pytester) -> None:
    pytest.importorskip("jinja2")
    shop.makepyfile(marked("tasks=0"))
    run(shop, "--mw-budget", "--mw-budget-html=mw.html").assert_outcomes(passed=1)
    assert "Spin" in Path(shop.path, "mw.html").read_text(encoding="utf-8")


def test_a_file_that_cannot_be_written_at_the_end_fails_the_run_and_takes_nothing_else(shop: pytest.Pytester) -> None:
    shop.makepyfile(marked("tasks=0", "mw_budget.get('/health'); open('out', 'w').close()"))
    result = run(shop, "--mw-budget", "--mw-budget-json=out/mw.json", "--mw-budget-markdown=mw.md")
    result.assert_outcomes(passed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*::test_it GET /health pass: *", "--mw-budget-json='*mw.json' cannot be written: *"])
    assert "Spin" in Path(shop.path, "mw.md").read_text(encoding="utf-8")


FILES = [f"--mw-budget-{name}=out/mw.{name}" for name in ("json", "markdown", "benchmark-json")]


def test_a_usage_error_leaves_nothing_behind(shop: pytest.Pytester) -> None:
    result = run(shop, "--mw-budget", *FILES, "--mw-budget-dir=flames", "--mw-budget-html=.")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert not Path(shop.path, "out").exists()
    assert not Path(shop.path, "flames").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="there a process cannot end itself by SIGTERM")
def test_a_run_that_is_killed_leaves_no_empty_file(shop: pytest.Pytester) -> None:
    shop.makepyfile(
        marked("tasks=0", "mw_budget.get('/health'); import os, signal; os.kill(os.getpid(), signal.SIGTERM)")
    )
    assert shop.runpytest_subprocess(*LEAN, "--mw-budget", *FILES).ret != 0
    assert not Path(shop.path, "out").exists()


def test_two_files_at_one_path_are_a_usage_error(shop: pytest.Pytester) -> None:
    result = run(shop, "--mw-budget", "--mw-budget-json=mw", "--mw-budget-markdown=./mw")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --mw-budget-markdown='./mw' is the same file as --mw-budget-json='mw'; *"])


def test_hooks_bear_that_pytest_reads_every_attribute_before_the_first_test(shop: pytest.Pytester) -> None:
    # pytest before 8.3.3 does this when it looks for fixtures in a plugin.
    shop.makeconftest(
        CONFTEST
        + """

def pytest_runtestloop(session):
    for name, plugin in session.config.pluginmanager.list_name_plugin():
        if name.startswith("mw-budget"):
            for attribute in dir(plugin):
                getattr(plugin, attribute)
"""
    )
    shop.makepyfile(marked("tasks=0"))
    result = run(shop, "--mw-budget", "--mw-budget-json=mw.json", "-v")
    result.stdout.fnmatch_lines(["per request*", "Spin * pass"])
    assert len(json.loads((shop.path / "mw.json").read_text())["measurements"]) == 1


# ---- JUnit XML --------------------------------------------------------------------------------------------------


def junit(pytester: pytest.Pytester) -> tuple[dict[str, str], str, ElementTree.Element]:
    """Return the properties of the only testcase, the text of its failure, and its suite."""
    suite = ElementTree.parse(Path(pytester.path, "junit.xml")).getroot()[0]
    (case,) = suite.iter("testcase")
    found = {one.attrib["name"]: one.attrib["value"] for one in case.iter("property")}
    return found, case.findtext("failure", ""), suite


def test_junitxml_counts_a_layer_over_budget_as_a_failure_that_can_be_read(shop: pytest.Pytester) -> None:
    shop.makepyfile(marked("us=20"))
    run(shop, "--mw-budget", QUICK, "--junitxml=junit.xml")
    found, text, suite = junit(shop)
    assert suite.get("failures") == "1"
    lines = text.splitlines()
    assert re.fullmatch(r"GET /health: Spin [\d.]+ µs, budget 20 µs \(1 of 3 layers over budget\)", lines[0])
    assert max(len(line) for line in lines if not line.startswith("Flamegraph: ")) <= 79
    (row,) = [line for line in lines if line.startswith("Spin ") and line.endswith("fail")]
    assert re.search(r" [\d.]+ +[\d.]+ … [\d.]+ +20  fail$", row)
    assert "#x1B" not in text  # pytest's replacement for the escape character
    message = suite.find(".//failure").attrib["message"]  # type: ignore[union-attr]
    assert lines[0] in message.splitlines()[0]
    assert (found["mw_budget.request"], found["mw_budget.verdict"]) == ("GET /health", "fail")
    assert found["mw_budget.worst_layer"] == "Spin"
    assert float(found["mw_budget.total_us"]) > float(found["mw_budget.worst_layer_us"]) > 150
    assert found["mw_budget.worst_layer_tasks"] == "0"


def test_junitxml_has_what_was_measured_also_where_the_test_fails_for_something_else(shop: pytest.Pytester) -> None:
    shop.makepyfile(marked("tasks=0", "mw_budget.get('/health'); mw_budget.get('/health?2'); assert False"))
    run(shop, "--mw-budget", "--junitxml=junit.xml")
    found, text, _ = junit(shop)
    assert "assert False" in text
    assert found["mw_budget.verdict"] == "pass"
    assert [found[f"mw_budget.{number}.request"] for number in (1, 2)] == ["GET /health", "GET /health?2"]


def test_junitxml_without_enforcement_has_no_properties(shop: pytest.Pytester) -> None:
    shop.makepyfile(marked("tasks=0"))
    run(shop, "--junitxml=junit.xml")
    assert junit(shop)[0] == {}


RERUN = """

from _pytest.runner import runtestprotocol


def pytest_runtest_protocol(item, nextitem):
    for outcome in ("rerun", "failed"):
        item._initrequest()
        for report in runtestprotocol(item, nextitem=nextitem, log=False):
            if report.failed:
                report.outcome = outcome
            item.ihook.pytest_runtest_logreport(report=report)
        names = [name for name, _ in report.user_properties]
        print("properties:", len(names), len(set(names)))
    return True
"""


@pytest.fixture
def run_again(with_task: pytest.Pytester) -> pytest.Pytester:
    """A directory in which every test runs twice, in the way of pytest-rerunfailures."""
    conftest = with_task.path / "conftest.py"
    conftest.write_text(conftest.read_text() + RERUN)
    return with_task


def test_an_attempt_that_was_repeated_has_a_line_that_says_so_and_is_in_no_file(run_again: pytest.Pytester) -> None:
    run_again.makepyfile(marked("tasks=0"))
    result = run(run_again, "--mw-budget", "--mw-budget-json=mw.json", "--tb=no")
    lines = [line for line in result.stdout.lines if "::test_it GET /health fail: " in line]
    assert [line.endswith(" (attempt was repeated)") for line in lines] == [True, False]
    assert len([line for line in result.stdout.lines if re.match("AddHeader .* fail$", line)]) == 1
    assert len(json.loads((run_again.path / "mw.json").read_text())["measurements"]) == 1


def test_an_attempt_is_not_judged_by_the_requests_of_the_one_before(run_again: pytest.Pytester) -> None:
    run_again.makepyfile(
        marked(
            "tasks=0",
            """attempts.append(1)
    if len(attempts) == 1:
        request.getfixturevalue('mw_budget').get('/health')""",
        ).replace("(mw_budget)", "(request)")
        + "\n\nattempts = []\n"
    )
    result = run(run_again, "--mw-budget", "-s")
    result.stdout.fnmatch_lines(["*made no request to an ASGI app in this process*"])


@pytest.mark.parametrize(("option", "read"), [("--junitxml=junit.xml", True), ("--strict-markers", False)])
def test_figures_of_a_junit_file_are_precise(pytester: pytest.Pytester, option: str, read: bool) -> None:
    config = pytester.parseconfigure("--mw-budget", option)
    assert pytest_mwbudget.session.configuration.figures_read(config) is read


@pytest.mark.usefixtures("github")
@pytest.mark.parametrize("workers", [(), ("-n", "1")])
def test_what_a_rerun_made_good_is_no_verdict(with_task: pytest.Pytester, workers: tuple[str, ...]) -> None:
    pytest.importorskip("pytest_rerunfailures")
    with_task.makepyfile(
        marked(
            "tasks=0",
            """attempt.append(1)
    request.node.add_marker(pytest.mark.mw_budget(tasks=len(attempt) - 1))
    mw_budget.get('/health')""",
        ).replace("(mw_budget)", "(mw_budget, request)")
        + "\n\nattempt = []\n"
    )
    plugins = ("-p", "no:xdist") if not workers else ()
    result = with_task.runpytest_subprocess(
        *plugins,
        *workers,
        *LEAN,
        "--mw-budget",
        "--mw-budget-flamegraph=never",
        "--reruns=1",
        "--mw-budget-json=mw.json",
    )
    assert result.parseoutcomes().items() >= {"passed": 1, "rerun": 1}.items()
    (measurement,) = json.loads((with_task.path / "mw.json").read_text())["measurements"]
    assert measurement["verdict"] == "pass"
    assert annotations(result) == []
    result.stdout.fnmatch_lines(
        ["*::test_it GET /health fail: * (attempt was repeated)", "*::test_it GET /health pass:*"]
    )


def test_a_test_that_is_run_again_has_its_properties_once(run_again: pytest.Pytester) -> None:
    run_again.makepyfile(marked("tasks=0"))
    result = run(run_again, "--mw-budget", "-s")
    numbers = [line.split()[-2:] for line in result.stdout.lines if "properties: " in line]
    assert len(numbers) == 2
    assert all(number == of and int(of) > 3 for number, of in numbers)


# ---- GitHub Actions ---------------------------------------------------------------------------------------------


def annotations(result: pytest.RunResult) -> list[tuple[str, dict[str, str], str]]:
    return [read(line) for line in result.stdout.lines if line.startswith("::")]


@pytest.fixture
def github(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job of GitHub Actions."""
    monkeypatch.setenv("GITHUB_ACTIONS", "true")


@pytest.mark.usefixtures("github")
@pytest.mark.parametrize("verbosity", [(), ("-q",), ("-qq",)])
def test_a_failed_request_is_an_error_at_its_test(with_task: pytest.Pytester, verbosity: tuple[str, ...]) -> None:
    with_task.makepyfile(test_tasks=marked("tasks=0"))
    ((command, properties, message),) = annotations(run(with_task, "--mw-budget", *verbosity))
    assert command == "error"
    title = "GET /health: AddHeader 1 task, budget 0 tasks (1 of 4 layers over budget)"
    assert properties == {"file": "test_tasks.py", "line": "4", "title": title}  # the line of the marker
    assert message.startswith("AddHeader spawns 1 task per request, its budget is 0 tasks.\n    1 × starlette.")


@pytest.mark.usefixtures("github")
@pytest.mark.parametrize(("action", "commands"), [("warn", ["warning"]), ("pass", []), ("fail", ["error"])])
def test_an_undecided_request_is_as_grave_as_the_settings_say(
    shop: pytest.Pytester, action: str, commands: list[str]
) -> None:
    shop.makepyfile(marked("layers={'Spin': 100}, max_time=0.0001"))
    result = run(shop, "--mw-budget", f"--mw-budget-undecided={action}", *WARNINGS_SHOWN)
    found = annotations(result)
    assert [command for command, _, _ in found] == commands
    assert all(properties["title"] == "GET /health: undecided" for _, properties, _ in found)
    assert all("too few requests" in message for _, _, message in found)


@pytest.mark.usefixtures("github")
def test_an_expected_failure_is_no_error(with_task: pytest.Pytester) -> None:
    with_task.makepyfile(marked("tasks=0").replace("@pytest", "@pytest.mark.xfail\n@pytest"))
    result = run(with_task, "--mw-budget")
    result.assert_outcomes(xfailed=1)
    assert annotations(result) == []


@pytest.mark.usefixtures("github")
def test_a_test_that_is_run_again_is_an_error_once(run_again: pytest.Pytester) -> None:
    run_again.makepyfile(marked("tasks=0"))
    assert len(annotations(run(run_again, "--mw-budget"))) == 1


@pytest.mark.usefixtures("github")
@pytest.mark.skipif(not hasattr(pytest, "Subtests"), reason="this pytest has no subtests")
def test_a_request_in_a_subtest_is_an_error_where_the_test_fails_for_it(with_task: pytest.Pytester) -> None:
    source = marked("tasks=0", "with subtests.test(): mw_budget.get('/health')")
    with_task.makepyfile(source.replace("test_it(mw_budget)", "test_it(mw_budget, subtests)"))
    assert len(annotations(run(with_task, "--mw-budget"))) == 1


def test_there_are_no_annotations_elsewhere(with_task: pytest.Pytester) -> None:
    with_task.makepyfile(marked("tasks=0"))
    assert annotations(run(with_task, "--mw-budget")) == []


@pytest.mark.usefixtures("github")
def test_a_file_is_named_from_the_root_of_the_repository(
    with_task: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_WORKSPACE", str(with_task.path.parent))
    with_task.makepyfile(test_tasks=marked("tasks=0"))
    ((_, properties, _),) = annotations(run(with_task, "--mw-budget"))
    assert properties["file"] == f"{with_task.path.name}/test_tasks.py"
    monkeypatch.setenv("GITHUB_WORKSPACE", "/nowhere")
    ((_, properties, _),) = annotations(run(with_task, "--mw-budget"))
    assert properties["file"] == "test_tasks.py"


def test_the_summary_of_a_step_grows_and_stays_within_what_github_takes(
    with_task: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = with_task.path / "summary.md"
    summary.write_text("before", encoding="utf-8")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    with_task.makepyfile(marked("tasks=0"))
    run(with_task, "--mw-budget", "--mw-budget-markdown=mw.md")
    first = summary.read_text(encoding="utf-8")
    section = (with_task.path / "mw.md").read_text(encoding="utf-8")
    assert first == f"before\n{section}"
    assert "| <code>AddHeader</code> own |" in section

    monkeypatch.setattr(pytest_mwbudget.report.github, "MAX_SUMMARY", len(first.encode()) + len(section.encode()) // 2)
    run(with_task, "--mw-budget")
    second = summary.read_text(encoding="utf-8").removeprefix(first)
    assert "1 of 1 requests are left out" in second
    assert "AddHeader" not in second


def test_a_run_that_measures_nothing_leaves_the_summary_of_its_step_alone(
    shop: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(shop.path / "summary.md"))
    shop.makepyfile("def test_it():\n    pass\n")
    run(shop, "--mw-budget").assert_outcomes(passed=1)
    assert not (shop.path / "summary.md").exists()


def test_a_summary_that_cannot_be_written_is_a_remark(shop: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(shop.path / "missing" / "summary.md"))
    shop.makepyfile(marked("tasks=0"))
    result = run(shop, "--mw-budget")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["GITHUB_STEP_SUMMARY cannot be written: *summary.md' [[]file]"])


# ---- the terminal -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verbosity", [(), ("-q",), ("-qq",), ("-v",)], ids=str)
@pytest.mark.parametrize("us", [20, 2000])
def test_each_table_stands_once_and_each_request_has_a_line(
    shop: pytest.Pytester, us: int, verbosity: tuple[str, ...]
) -> None:
    shop.makepyfile(marked(f"us={us}"))
    lines = run(shop, "--mw-budget", QUICK, *verbosity).stdout.lines
    verdict, failing = ("fail", 1) if us == 20 else ("pass", 0)
    assert len([line for line in lines if f"::test_it GET /health {verdict}: " in line]) == 1
    assert lines.count("  shop.Spin, middleware, split, own") == ("-v" in verbosity)
    tables = [number for number, line in enumerate(lines) if re.match(r"layer +µs/request", line)]
    assert len(tables) == (1 if verbosity == ("-v",) else failing)
    (section,) = (number for number, line in enumerate(lines) if "= mw-budget =" in line)
    assert [number < section for number in tables] == [True] * failing + [False] * (len(tables) - failing)


@pytest.mark.parametrize(
    ("body", "arguments", "outcomes"),
    [
        ("mw_budget.get('/health'); assert False", (), {"failed": 1}),
        ("mw_budget.get('/health')", ("-vv",), {"failed": 1}),
        ("mw_budget.get('/health')", ("--tb=no",), {"failed": 1}),
        ("mw_budget.get('/health')", ("--tb=line",), {"failed": 1}),
        ("mw_budget.get('/health')", ("--tb=native",), {"failed": 1}),
        ("pytest.xfail() if mw_budget.get('/health') else 0", (), {"xfailed": 1}),
        ("request.applymarker(pytest.mark.xfail), mw_budget.get('/health')", (), {"xfailed": 1}),
    ],
)
def test_the_table_of_a_failing_request_stands_once_whatever_pytest_shows(
    with_task: pytest.Pytester, body: str, arguments: tuple[str, ...], outcomes: dict[str, int]
) -> None:
    with_task.makepyfile(marked("tasks=0", body).replace("(mw_budget)", "(mw_budget, request)"))
    result = run(with_task, "--mw-budget", *arguments)
    result.assert_outcomes(**outcomes)
    assert len([line for line in result.stdout.lines if re.match("AddHeader .* fail$", line)]) == 1


def test_pytests_summary_has_a_line_for_each_request_also_on_ci(
    with_task: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "true")
    with_task.makepyfile(marked("tasks=0", "mw_budget.get('/health?1'), mw_budget.get('/health?2')"))
    lines = run(with_task, "--mw-budget").stdout.lines
    (short,) = (number for number, line in enumerate(lines) if "= short test summary info =" in line)
    over = "AddHeader 1 task, budget 0 tasks (1 of 4 layers over budget)"
    each = f"GET /health?1: {over}; GET /health?2: {over}"
    assert [line.partition(" - ")[2] for line in lines[short + 1 : -1]] == [f"Failed: {each}"]


@pytest.mark.skipif(not hasattr(pytest, "Subtests"), reason="this pytest has no subtests")
def test_the_table_of_a_request_in_a_subtest_stands_once(with_task: pytest.Pytester) -> None:
    body = "mw_budget.get('/health?1')\n    with subtests.test(): mw_budget.get('/health?2')"
    with_task.makepyfile(marked("tasks=0", body).replace("(mw_budget)", "(mw_budget, subtests)"))
    result = run(with_task, "--mw-budget")
    assert len([line for line in result.stdout.lines if re.match("AddHeader .* fail$", line)]) == 2
    result.stdout.fnmatch_lines(["*::test_it GET /health?1 fail: *", "*::test_it GET /health?2 fail: *"])


@pytest.mark.parametrize("color", ["yes", "no"])
def test_the_table_reads_in_80_columns_with_and_without_colour(
    shop: pytest.Pytester, color: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shop.makepyfile(test_shop=marked("us=2000"))
    result = run(shop, "--mw-budget", QUICK, f"--color={color}", "-v")
    text = "\n".join(result.stdout.lines)
    assert ("\x1b[32mSpin" in text) == (color == "yes")
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    lines = plain[plain.index("= mw-budget =") :].splitlines()[1:-1]
    table = [line for line in lines if not line.startswith("test_shop.py::")]  # longer with a longer test name
    assert max(map(len, table)) <= 80


@pytest.mark.parametrize("width", [64, 110])
def test_the_table_is_as_wide_as_pytests_own_writer(shop: pytest.Pytester, width: int) -> None:
    long = "ALayerWithANameThatIsLongerThanMostTerminalsAreWideSoThatItHasToBeShortened" + 3 * "InTheMiddle"
    shop.makepyfile(shop=APP.replace("Spin", long))
    shop.makeconftest(
        CONFTEST
        + f"""

def pytest_runtestloop(session):
    session.config.get_terminal_writer().fullwidth = {width}
"""
    )
    shop.makepyfile(test_shop=marked(""))
    text = "\n".join(run(shop, "--mw-budget", QUICK).stdout.lines)
    section = text[text.index("= mw-budget =") :].splitlines()
    # Notes below the table may name the layer, whose whole name is as wide as they are.
    table = [line for line in section if re.match(r"layer |\(\w+\) |ALayer\w*…\w*Middle ", line)]
    assert width - 4 < max(map(len, table)) <= width
    assert [line.partition(" ")[0] for line in table if "…" in line.partition(" ")[0]]


@pytest.mark.usefixtures("github")
def test_results_come_home_from_xdist_workers(with_task: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(with_task.path / "summary.md"))
    with_task.makepyfile(test_time=marked("us=20, layers={'AddHeader': 1e6}"), test_tasks=marked("tasks=0"))
    files = ("--mw-budget-json=mw.json", "--junitxml=junit.xml")
    result = with_task.runpytest_subprocess(
        "-n", "1", *LEAN, "--mw-budget", "--mw-budget-max-time=1", "--mw-budget-flamegraph=never", *files
    )
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["* mw-budget *"])
    result.stdout.fnmatch_lines_random(["Spin*fail", "AddHeader*fail", "21 requests counted*", "detection limit *"])
    measurements = json.loads((with_task.path / "mw.json").read_text())["measurements"]
    assert len(measurements) == 2
    by_file = {measurement["nodeid"].partition(":")[0]: measurement for measurement in measurements}
    check_counts(by_file["test_tasks.py"])
    assert by_file["test_time.py"]["layers"][2]["us"]["estimate"] > 150
    assert {properties["file"] for _, properties, _ in annotations(result)} == by_file.keys()
    assert (with_task.path / "summary.md").read_text(encoding="utf-8").startswith("\n## mw-budget: 2 fail\n")
    cases = ElementTree.parse(Path(with_task.path, "junit.xml")).getroot().iter("testcase")
    named = {case.attrib["classname"]: [one.attrib for one in case.iter("property")] for case in cases}
    assert {"name": "mw_budget.worst_layer", "value": "Spin"} in named["test_time"]
    assert {"name": "mw_budget.worst_layer_tasks", "value": "1"} in named["test_tasks"]


# ---- together with other tools ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("core", "name"),
    [
        ("ctrace", "a tracer (coverage.*)"),
        pytest.param(
            "sysmon",
            "a sys.monitoring tool (coverage*)",
            marks=pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring is new in Python 3.12"),
        ),
    ],
)
@pytest.mark.live
def test_coverage_is_suspended_during_the_measurement_and_loses_nothing(
    shop: pytest.Pytester, core: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COVERAGE_CORE", core)
    shop.makepyfile(marked("us=2000"))
    covered = ("-p", "no:xdist", *LEAN_WITH_COVERAGE, "--cov=shop", "--cov-report=term-missing")
    result = shop.runpytest_subprocess(*covered, "--mw-budget", QUICK, "-v")
    result.assert_outcomes(passed=1)
    said = " ".join(result.stdout.str().split())
    pattern = re.escape(f"note: {name} was suspended during the measurement.").replace(r"\*", r"\S*")
    assert re.search(pattern, said), said
    plain = shop.runpytest_subprocess(*covered)
    assert _coverage_line(result) == _coverage_line(plain)


def _coverage_line(result: pytest.RunResult) -> str:
    return next(line for line in result.stdout.lines if line.startswith("shop.py"))


def test_progress_prints_nothing_in_a_pipe(shop: pytest.Pytester) -> None:
    shop.makepyfile(marked("layers={'Spin': 100}, max_time=0.0001"))
    result = shop.runpytest_subprocess("-p", "no:xdist", *LEAN, "--mw-budget")
    assert "measuring" not in result.stdout.str() + result.stderr.str()
    assert "\b" not in result.stdout.str()


HAS_HOOKS = "assert request.config.pluginmanager.has_plugin('mw-budget-gate')"
MARKED_BADLY = "import pytest\n\n\n@pytest.mark.mw_budget(uss=1)\n"


@pytest.mark.parametrize(
    ("options", "source"),
    [
        ((), f"def test_it(request):\n    {HAS_HOOKS.replace('assert', 'assert not')}"),
        (("-o", "mw_budget_us=50"), f"def test_it(request):\n    {HAS_HOOKS.replace('assert', 'assert not')}"),
        (("--mw-budget",), f"def test_it(request):\n    {HAS_HOOKS}"),
        (("-o", "mw_budget=true"), f"def test_it(request):\n    {HAS_HOOKS}"),
        ((), f"def test_one():\n    pass\n\n\ndef test_it(request, mw_budget):\n    {HAS_HOOKS}"),
    ],
)
def test_hooks_that_run_with_every_test_are_there_only_where_one_needs_them(
    shop: pytest.Pytester, options: tuple[str, ...], source: str
) -> None:
    shop.makepyfile(source)
    assert run(shop, *options).ret == 0


@pytest.mark.parametrize(
    "source",
    [
        f"{MARKED_BADLY}def test_it():\n    pass",
        f"{MARKED_BADLY}class TestAll:\n    def test_it(self):\n        pass",
        f"{MARKED_BADLY}class TestAll:\n    class TestSome:\n        def test_it(self):\n            pass",
        "import pytest\n\npytestmark = pytest.mark.mw_budget(uss=1)\n\n\ndef test_it():\n    pass",
    ],
    ids=["function", "class", "outer class", "module"],
)
def test_a_marker_is_checked_wherever_it_stands(shop: pytest.Pytester, source: str) -> None:
    shop.makepyfile(f"{source}\n")
    result = run(shop)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*unknown keyword 'uss' in the mw_budget marker.*"])


def test_a_run_with_nothing_marked_imports_nothing_heavy(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_it():
            assert "pytest_mwbudget.plugin" in sys.modules
            heavy = {"httpx", "httpx2", "anyio", "asgi_lifespan", "pyinstrument", "pytest_mwbudget.engine"}
            assert not heavy & sys.modules.keys()
        """
    )
    pytester.runpytest_subprocess("-p", "no:anyio", *LEAN, "--mw-budget").assert_outcomes(passed=1)


# ---- flamegraphs ------------------------------------------------------------------------------------------------


def pictures(folder: Path) -> list[str]:
    return sorted(path.name.rpartition("-")[2] for path in folder.glob("*-*.*"))


ALL_THREE = ["1.html", "1.pyinstrument.html", "1.speedscope.json"]


def test_a_failing_request_has_a_flamegraph_and_the_failure_names_it(shop: pytest.Pytester) -> None:
    shop.makepyfile(marked("us=20"))
    result = run(shop, "--mw-budget", QUICK)
    result.assert_outcomes(failed=1)
    folder = shop.path / ".mw-budget"
    assert pictures(folder) == ALL_THREE
    assert (folder / ".gitignore").read_text() == "*\n"
    (page,) = (path for path in folder.glob("*-1.html"))
    result.stdout.fnmatch_lines(["Hottest in Spin, µs per request*", "    * (*shop.py:*)", f"Flamegraph: *{page.name}"])


def test_a_request_within_its_budgets_has_none_unless_it_is_asked_for(shop: pytest.Pytester) -> None:
    shop.makepyfile(marked("us=2000"))
    run(shop, "--mw-budget", QUICK).assert_outcomes(passed=1)
    assert not (shop.path / ".mw-budget").exists()
    run(shop, "--mw-budget", QUICK, "--mw-budget-flamegraph=always", "--mw-budget-dir=here").assert_outcomes(passed=1)
    assert pictures(shop.path / "here") == ALL_THREE


def test_the_flamegraph_of_a_test_that_passes_is_named(shop: pytest.Pytester) -> None:
    shop.makepyfile(marked("us=2000"))
    result = run(shop, "--mw-budget", QUICK, "--mw-budget-flamegraph=always", "--mw-budget-dir=here")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["flamegraph: *here*-1.html"])


def test_flamegraphs_can_be_turned_off_and_moved_in_the_configuration(shop: pytest.Pytester) -> None:
    shop.makepyfile(marked("us=20"))
    result = run(shop, "--mw-budget", QUICK, "--mw-budget-flamegraph=never")
    result.assert_outcomes(failed=1)
    result.stdout.no_fnmatch_line("*Flamegraph*")
    assert not (shop.path / ".mw-budget").exists()
    shop.makeini("[pytest]\nmw_budget_dir = out/flames\nmw_budget_flamegraph = always\n")
    run(shop, "--mw-budget", QUICK).assert_outcomes(failed=1)
    assert pictures(shop.path / "out" / "flames") == ALL_THREE


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--mw-budget", "--mw-budget-flamegraph=sometimes"], "*The choices are: failing, always, never*"),
        (["--mw-budget-dir=here"], "*draws nothing without measuring; add --mw-budget*"),
        (["--mw-budget-flamegraph=always"], "*draws nothing without measuring; add --mw-budget*"),
        (["--mw-budget", "--mw-budget-dir=shop.py"], "*cannot be written*give the path of a directory*"),
    ],
)
def test_what_is_wrong_with_a_flamegraphs_settings_is_a_usage_error(
    shop: pytest.Pytester, arguments: list[str], message: str
) -> None:
    result = run(shop, *arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([message])


def test_a_flamegraph_that_cannot_be_kept_is_a_note_and_the_verdict_stands(shop: pytest.Pytester) -> None:
    shop.makepyfile(marked("us=20"))
    (shop.path / ".mw-budget").write_text("")
    result = run(shop, "--mw-budget", QUICK)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["Spin * 20 * fail", "note: There is no flamegraph:*", "*cannot be written*"])
