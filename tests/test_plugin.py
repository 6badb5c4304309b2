"""The plugin in whole pytest runs: options, marker, fixtures, reports. Budgets are far from the actual costs."""

from __future__ import annotations

import json
import re
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import pytest_mwbudget.config.checks
import pytest_mwbudget.engine
import pytest_mwbudget.report.github
import pytest_mwbudget.report.markdown
import pytest_mwbudget.session.artifacts
import pytest_mwbudget.session.configuration
from pytest_mwbudget.asgi.app import NamedApp
from pytest_mwbudget.counting.backend import Backend, PythonCore
from pytest_mwbudget.errors import AppError
from pytest_mwbudget.model.quantities import PROCESS_WIDE, RECORDABLE
from pytest_mwbudget.storage.codec import measured_run

from .apps import ANYIO, ASYNCIO, FAST, LEAN, LEAN_WITH_COVERAGE, SPIN, Scheduled, alone, needs, run_inside
from .projects import QUICK as QUICK_IN_WORKERS
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
    return Starlette(routes=routes, middleware=[Middleware(Spin, us=200)])


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

# These tests read verdicts, and no figure that has to be precise.
BRIEFLY = Scheduled(
    **FAST
    | {
        "failure_time_s": 0.02,
        "watched_time_s": 0.02,
        "precision_time_s": 0.02,
        "parts_time_s": 0.02,
        "executed_ns": 5_000_000,
    }
)
# The longest that a run may take. With the schedule above, a run ends as soon as its verdicts are known.
QUICK = "--mw-budget-max-time=5"
# The warning filters of the outer run would turn BudgetWarning into an error.
WARNINGS_SHOWN = ("-W", "always::pytest_mwbudget.errors.BudgetWarning")
# Enforcement for tests of failures that do not look at the flamegraph, which takes time to sample and to draw.
UNDRAWN = ("--mw-budget", "--mw-budget-flamegraph=never")


@pytest.fixture
def shop(pytester: pytest.Pytester) -> pytest.Pytester:
    """A directory with an app whose layer Spin takes 200 µs."""
    pytester.makepyfile(shop=APP)
    pytester.makeconftest(CONFTEST)
    return pytester


@pytest.fixture
def idle_shop(shop: pytest.Pytester) -> pytest.Pytester:
    """The shop whose layer Spin takes no time, for tests that count: its requests are quick, and its counts exact."""
    shop.makepyfile(shop=APP.replace("us=200", "us=0"))
    return shop


@pytest.fixture(autouse=True)
def no_github(monkeypatch: pytest.MonkeyPatch) -> None:
    """No GitHub Actions in inner runs, even if the outer run is a job of GitHub Actions."""
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY", "GITHUB_WORKSPACE"):
        monkeypatch.delenv(name, raising=False)


def run(pytester: pytest.Pytester, *arguments: str, using: Sequence[str] = ()) -> pytest.RunResult:
    return run_inside(pytester, *arguments, plugins=[BRIEFLY], using=using)


def marked(keywords: str, body: str = "mw_budget.get('/health')", name: str = "test_it") -> str:
    return f"""
import pytest


@pytest.mark.mw_budget({keywords})
def {name}(mw_budget):
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


def test_the_configuration_can_enforce_in_every_run(with_task: pytest.Pytester) -> None:
    with_task.makeini("[pytest]\nmw_budget = true\n")
    with_task.makepyfile(marked("tasks=0"))
    run(with_task, "--mw-budget-flamegraph=never").assert_outcomes(failed=1)


def test_a_test_without_marker_or_fixture_is_left_alone_and_so_is_the_summary_of_a_step(
    shop: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(shop.path / "summary.md"))
    shop.makepyfile("def test_it():\n    pass\n")
    result = run(shop, "--mw-budget")
    result.assert_outcomes(passed=1)
    assert [line for line in result.outlines if "mw-budget" in line and not line.startswith("mw-budget: ")] == []
    assert not (shop.path / "summary.md").exists()


@pytest.mark.parametrize("built", [True, False])
def test_the_header_says_what_is_counted_and_how_to_count_more(
    shop: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, built: bool
) -> None:
    why_not = {} if built else {"allocations": "the C extension was not built", "bytes": "the same"}
    monkeypatch.setattr("pytest_mwbudget.counting.backend.counting_backend", lambda: Backend(PythonCore(), why_not))
    shop.makepyfile("def test_it():\n    pass\n")
    result = run(shop, "--mw-budget", "-v")
    counts = "objects, allocations, bytes, retained" if built else "objects, retained"
    result.stdout.fnmatch_lines([f"mw-budget: *, *Python 3*, counts {counts}, *"])
    missing = "mw-budget: no objects and no memory are counted: the C extension was not built (mwbudget doctor)"
    assert (missing in result.outlines) is not built


# ---- verdicts ---------------------------------------------------------------------------------------------------


def test_a_layer_over_its_budget_fails_the_test_with_its_evidence_and_a_flamegraph(shop: pytest.Pytester) -> None:
    shop.makepyfile(marked("us=20"))
    result = run(shop, "--mw-budget", QUICK)
    result.assert_outcomes(failed=1)
    folder = shop.path / ".mw-budget"
    assert pictures(folder) == ALL_THREE
    assert (folder / ".gitignore").read_text() == "*\n"
    (page,) = (path for path in folder.glob("*-1.html"))
    result.stdout.fnmatch_lines(
        [
            "GET /health: Spin * µs, budget 20 µs (1 of 3 layers over budget)",
            "layer * µs/request * interval * budget * verdict",
            "Spin * 20 * fail",
            "(endpoint)*",
            "(total)*",
            "Spin takes * µs per request, its budget is 20 µs: * too much*",
            "Hottest in Spin, µs per request*",
            "    * (*shop.py:*)",
            "Next: *",
            f"Flamegraph: *{page.name}",
            "* mw-budget *",
            "FAILED *test_it*",
        ]
    )
    result.stdout.no_fnmatch_line("*pytest_mwbudget/*")


def test_a_stack_within_its_budgets_passes_and_is_shown_without_a_flamegraph(shop: pytest.Pytester) -> None:
    shop.makepyfile(marked("us=2000, total_us=500000"))
    result = run(shop, "--mw-budget", QUICK)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*::test_it GET /health pass: *", "own: Spin; *", "CPython *"])
    result.stdout.no_fnmatch_line("Spin*pass")
    result = run(shop, "--mw-budget", QUICK, "-v")
    result.stdout.fnmatch_lines(
        ["*::test_it GET /health pass: *", "Spin*2000  pass", "(total)*500000  pass", "detection limit *", "CPython *"]
    )
    assert not (shop.path / ".mw-budget").exists()


def test_the_total_has_a_budget_of_its_own(shop: pytest.Pytester) -> None:
    shop.makepyfile(marked("total_us=20"))
    result = run(shop, *UNDRAWN, QUICK)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["GET /health: total * µs, budget 20 µs", "The whole request takes *"])


def test_a_named_layer_has_its_own_budget(shop: pytest.Pytester) -> None:
    shop.makepyfile(marked("us=20, layers={'shop:Spin': 2000, 'ServerErrorMiddleware': 1000}"))
    result = run(shop, "--mw-budget", QUICK, "-v")
    result.stdout.fnmatch_lines(["ServerErr*1000  pass", "Spin*2000  pass"])


def test_a_verdict_comes_after_the_test_function_and_not_in_place_of_its_own_failure(
    with_task: pytest.Pytester,
) -> None:
    goes_on = "print('verdict:', mw_budget.get('/health').layer('AddHeader').verdict)"
    asserts = "assert mw_budget.get('/health').response.text == 'no'"
    with_task.makepyfile(marked("tasks=0", goes_on, "test_goes_on") + marked("tasks=0", asserts, "test_asserts"))
    result = run(with_task, *UNDRAWN)
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(
        [
            "*_ test_goes_on _*",
            "GET /health: AddHeader 1 task, *",
            "verdict: fail",
            "*_ test_asserts _*",
            "*AssertionError*",
        ]
    )


@pytest.mark.usefixtures("github")
def test_an_undecided_budget_is_treated_as_the_settings_say(shop: pytest.Pytester) -> None:
    # In so little time no detection limit is known, on a machine of any speed.
    undecided = "layers={'Spin': 100}, max_time=0.0001"
    shop.makepyfile(
        marked(f"{undecided}, undecided='warn'", name="test_warns")
        + marked(f"{undecided}, undecided='pass'", name="test_passes")
        + marked(undecided, name="test_as_the_option_says")
    )
    result = run(shop, "--mw-budget", "--mw-budget-undecided=fail", *WARNINGS_SHOWN)
    result.assert_outcomes(passed=2, failed=1, warnings=1)
    result.stdout.fnmatch_lines(
        [
            "*_ test_as_the_option_says _*",
            "GET /health: undecided",
            "Spin is undecided: there were too few requests *",
            "*::test_warns",
            "*BudgetWarning: GET /health: Spin is undecided: *too-few-requests*",
        ]
    )
    github_annotations = annotations(result)
    assert [command for command, _, _ in github_annotations] == ["warning", "error"]
    assert all(properties["title"] == "GET /health: undecided" for _, properties, _ in github_annotations)
    assert all("too few requests" in message for _, _, message in github_annotations)


def test_budgets_that_apply_to_no_layer_are_like_undecided_ones(shop: pytest.Pytester) -> None:
    of_layers = "lifespan=False, us=500, tasks=5"
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
        test_it=marked(of_layers, name="test_warns")
        + marked(f"{of_layers}, undecided='fail'", name="test_fails")
        + marked(f"{of_layers}, undecided='pass'", name="test_passes")
        + marked("lifespan=False, total_us=500000", name="test_total")
        # The verdict on the whole request is none on a layer.
        + marked(f"{of_layers}, total_us=500000, undecided='fail'", name="test_both"),
    )
    result = run(shop, "--mw-budget", QUICK, *WARNINGS_SHOWN)
    result.assert_outcomes(passed=3, failed=2, warnings=1)
    reason = "*GET /health: no budget applies (tasks, us for every *total_us is*"
    result.stdout.fnmatch_lines(["*_ test_fails _*", reason, "*_ test_both _*", reason, "*::test_warns", reason])


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


def test_a_request_that_a_fixture_makes_afterwards_is_judged_and_shown(idle_shop: pytest.Pytester) -> None:
    idle_shop.makepyfile(
        """
        import pytest

        @pytest.fixture
        def client(mw_budget):
            yield mw_budget
            mw_budget.get("/threads")

        @pytest.mark.mw_budget(layers={"Threaded": {"threads": 9}})
        def test_kept(client):
            client.get("/health")

        @pytest.mark.mw_budget(layers={"Threaded": {"threads": 0}})
        def test_broken(client):
            client.get("/health")
        """
    )
    idle_shop.makepyfile(
        conftest="""
        import asyncio
        import pytest
        import shop

        class Threaded:
            def __init__(self, app):
                self.app = app

            async def __call__(self, scope, receive, send):
                if scope["path"] == "/threads":
                    await asyncio.to_thread(len, "")
                    scope["path"] = "/health"
                await self.app(scope, receive, send)

        @pytest.fixture
        def mw_budget_app():
            return Threaded(shop.create_app())
        """
    )
    result = run(idle_shop, *UNDRAWN)
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(
        [
            "*_ ERROR at teardown of test_broken _*",
            "GET /threads: Threaded 1 call, *",
            "Threaded * fail",
            "*::test_kept GET /health pass: *",
            "*::test_kept GET /threads pass: *",
            "*::test_broken GET /health pass: *",
            "*::test_broken GET /threads fail: *",
        ]
    )


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


@pytest.mark.skipif(not hasattr(pytest, "Subtests"), reason="this pytest has no subtests")
def test_a_request_that_raises_in_a_subtest_is_the_only_failure(shop: pytest.Pytester) -> None:
    calls = {
        "test_raises": "get('/broken')",
        "test_status": "get('/missing')",
        "test_option": "get('/health', header=1)",
        "test_method": "post('/health')",
    }
    source = "".join(marked("tasks=0", f"with subtests.test(): mw_budget.{call}", name) for name, call in calls.items())
    shop.makepyfile(source.replace("(mw_budget)", "(mw_budget, subtests)"))
    result = run(shop, "--mw-budget")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    # The heading of a failure has the name of the test, then that of the subtest.
    result.stdout.fnmatch_lines([f"*_ {name} *_*" for name in calls])
    result.stdout.no_fnmatch_line("*made no request*")


# ---- the marker and its values ----------------------------------------------------------------------------------


UNUSABLE = [
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
]


def test_an_unusable_marker_says_what_is_wrong_also_without_enforcement(shop: pytest.Pytester) -> None:
    tests = {f"test_{number}": case for number, case in enumerate(UNUSABLE)}
    shop.makepyfile("".join(marked(keywords, name=name) for name, (keywords, _) in tests.items()))
    result = run(shop)
    result.assert_outcomes(failed=len(tests))
    lines = [line for name, (_, message) in tests.items() for line in (f"*_ {name} _*", message)]
    result.stdout.fnmatch_lines([*lines, "*= short test summary info =*"])


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


@pytest.mark.parametrize(
    ("ini", "message"),
    [
        ("mw_budget = perhaps", "*mw_budget in the configuration: * 'perhaps'; give true or false"),
        ("mw_budget_us = many", "*mw_budget_us is 'many', which is not a number*"),
        ("mw_budget_layers = Spin = taks: 0", "*mw_budget_layers: Spin has a budget of 'taks'*"),
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
        "--mw-budget-json=mw.json",
        "--mw-budget-benchmark-json=mw.bench.json",
        "--mw-budget-loop=",
    ],
)
def test_an_unusable_option_is_a_usage_error(shop: pytest.Pytester, option: str) -> None:
    result = run(shop, option)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: *mw*budget*"])


FILES = [f"--mw-budget-{name}=out/mw.{name}" for name in ("json", "markdown", "benchmark-json")]


def test_a_path_that_cannot_be_written_is_a_usage_error_that_leaves_nothing_behind(shop: pytest.Pytester) -> None:
    # The last path is checked last: the others have passed by then.
    result = run(shop, "--mw-budget", "--mw-budget-dir=flames", *FILES[:-1], "--mw-budget-benchmark-json=.")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --mw-budget-benchmark-json='.' cannot be written: *"])
    assert not Path(shop.path, "out").exists()
    assert not Path(shop.path, "flames").exists()


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

        pytestmark = pytest.mark.mw_budget(tasks=0)


        def test_without():
            pass


        def test_with(mw_budget):
            mw_budget.get("/health")
        """
    )
    run(shop, "--mw-budget").assert_outcomes(passed=2)


@pytest.mark.parametrize(("marker", "ini"), [("@pytest.mark.mw_budget(tasks=0)", ""), ("", "mw_budget_tasks = 0")])
def test_the_fixture_can_be_asked_for_at_run_time(with_task: pytest.Pytester, marker: str, ini: str) -> None:
    with_task.makeini(f"[pytest]\n{ini}\n")
    asks = "def test_it(request):\n    request.getfixturevalue('mw_budget').get('/health')\n"
    with_task.makepyfile(f"import pytest\n\n{marker}\n{asks}")
    run(with_task, *UNDRAWN).assert_outcomes(failed=1)


def test_a_request_in_another_fixture_is_explained_without_enforcement(shop: pytest.Pytester) -> None:
    shop.makepyfile(
        """
        import pytest

        @pytest.fixture
        def client(request):
            return request.getfixturevalue("mw_budget")

        @pytest.fixture
        def prepared(mw_budget):
            return mw_budget.get("/missing")

        def test_asks(client):
            client.get("/missing")

        def test_prepared(prepared):
            pass
        """
    )
    result = run(shop)
    result.assert_outcomes(failed=1, errors=1)
    why = "GET /missing answered 404; nothing was measured.*"
    result.stdout.fnmatch_lines(["*_ ERROR at setup of test_prepared _*", why, "*_ test_asks _*", why])
    result.stdout.no_fnmatch_line("*pytest_mwbudget/*")


def test_wrappers_in_conftest_files_see_the_verdict(with_task: pytest.Pytester) -> None:
    conftest = with_task.path / "conftest.py"
    conftest.write_text(
        conftest.read_text()
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
    assert hasattr(report, "mw_budget") == (call.when != "setup")
    return report
"""
    )
    with_task.makepyfile(marked("tasks=0"))
    result = run(with_task, *UNDRAWN)
    result.assert_outcomes(skipped=1)
    assert result.ret == 0


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


def test_the_marker_selects_every_test_that_measures(idle_shop: pytest.Pytester) -> None:
    idle_shop.makepyfile(SELECTED)
    measured = run(idle_shop, "--mw-budget", "-o", "mw_budget_tasks=0", "-m", "mw_budget", "--strict-markers")
    measured.assert_outcomes(passed=5, deselected=1)
    # What is selected does not depend on enforcement.
    run(idle_shop, "-m", "not mw_budget").assert_outcomes(failed=1, deselected=5)


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


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("shop:ap", "mw_budget_app is 'shop:ap', but 'shop' has no 'ap'.*The names that it has are: *app*"),
        ("shop:app.state.shop", "*'shop.app.state' has no 'shop'*"),
        ("shop", "mw_budget_app is 'shop'; write 'package.module:app'"),
        ("shop:calls", "mw_budget_app is 'shop:calls', and that is [[][]], which is not an ASGI app*"),
        ("shop:Spin.__call__", "*does not take (scope, receive, send)*"),
    ],
)
def test_a_name_that_is_not_that_of_an_app_is_explained(
    pytester: pytest.Pytester, reference: str, message: str
) -> None:
    pytester.makepyfile(shop=APP)
    with pytest.raises(AppError) as caught:
        NamedApp(reference, pytester.path).load()
    pytest.LineMatcher(str(caught.value).splitlines()).fnmatch_lines([message])


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
    shop.makepyfile(marked("tasks=0", "assert mw_budget.get('/missing', expect_status=404).verdict == 'pass'"))
    run(shop, "--mw-budget").assert_outcomes(passed=1)


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
def with_task(idle_shop: pytest.Pytester) -> pytest.Pytester:
    """The shop with a layer that runs the app inside it in a task."""
    return with_habit(idle_shop, "AddHeader")


def with_habit(shop: pytest.Pytester, habit: str) -> pytest.Pytester:
    """Add a layer of HABITS to the shop."""
    shop.makeconftest(HABITS.replace("HABIT", habit))
    return shop


def test_a_layer_that_spawns_a_task_fails_a_budget_of_none_and_passes_as_the_failure_suggests(
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
            "*::test_it GET /health fail: 5 requests counted",
        ]
    )
    result.stdout.no_fnmatch_line("*µs/request*")
    result.stdout.no_fnmatch_line("*pytest_mwbudget/*")
    assert annotations(result) == []  # this is no job of GitHub Actions
    suggested = re.search(r"set\s+(layers=\{.*?\}\})", result.stdout.str(), re.DOTALL)
    with_task.makepyfile(marked(f"tasks=0, {' '.join(suggested[1].split())}"))
    run(with_task, "--mw-budget").assert_outcomes(passed=1)


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
    idle_shop: pytest.Pytester, habit: str, ini: str, sentence: str
) -> None:
    with_habit(idle_shop, habit).makeini(f"[pytest]\n{ini}\n")
    idle_shop.makepyfile(marked(""))
    result = run(idle_shop, *UNDRAWN)
    result.assert_outcomes(failed=1)
    text = " ".join(result.stdout.str().split())
    assert re.search(rf"GET /health: {habit} [^()]*\(1 of 4 layers over budget\)", text)
    assert re.search(sentence, text)


def test_the_configuration_can_have_a_budget_for_holding_the_event_loop(shop: pytest.Pytester) -> None:
    shop.makeini("[pytest]\nmw_budget_busy_us = 20\n")
    shop.makepyfile(marked(""))
    result = run(shop, *UNDRAWN, QUICK)
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


BYTES = "import pytest\n\npytestmark = pytest.mark.mw_budget(bytes=100)\n"


@pytest.mark.usefixtures("no_extension")
def test_what_cannot_be_counted_is_as_grave_as_the_marker_says(idle_shop: pytest.Pytester) -> None:
    keywords = {
        "test_nothing_said": "",
        "test_warns": ", undecided='warn'",
        "test_passes": ", undecided='pass'",
        "test_fails": ", undecided='fail'",
        "test_without": ", bytes=None",
    }
    idle_shop.makepyfile(BYTES + "".join(marked(f"tasks=5{keyword}", name=name) for name, keyword in keywords.items()))
    result = run(idle_shop, "--mw-budget", *WARNINGS_SHOWN)
    result.assert_outcomes(passed=3, failed=2, warnings=1)
    result.stdout.fnmatch_lines(["*::test_warns", "FAILED *::test_nothing_said*", "FAILED *::test_fails*"])


@pytest.mark.usefixtures("no_extension")
@pytest.mark.parametrize(
    ("arguments", "ini"), [((), "mw_budget_undecided = warn"), (("--mw-budget-undecided=warn",), "")]
)
def test_what_cannot_be_counted_is_as_grave_as_the_settings_of_the_run_say(
    shop: pytest.Pytester, arguments: tuple[str, ...], ini: str
) -> None:
    shop.makeini(f"[pytest]\n{ini}\n")
    shop.makepyfile(BYTES + marked("tasks=5"))
    run(shop, "--mw-budget", *arguments, *WARNINGS_SHOWN).assert_outcomes(passed=1, warnings=1)


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
    assert measurement["ledger"]["requests"] == 5
    assert measurement["ledger"]["total"]["tasks"]["count"] == 1


def test_a_very_quiet_run_in_which_every_budget_is_a_count_has_one_line(with_task: pytest.Pytester) -> None:
    with_task.makepyfile(marked("tasks=1"))
    result = run(with_task, "--mw-budget", "-qq")
    result.stdout.fnmatch_lines(["*::test_it GET /health pass: 5 requests counted"])
    result.stdout.no_fnmatch_line("per request*")


# ---- loops ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loop", ["asyncio", "uvloop", "trio"])
def test_a_test_that_is_not_async_runs_on_the_loop_of_the_option_or_of_its_marker(
    idle_shop: pytest.Pytester, loop: str
) -> None:
    pytest.importorskip(loop)
    other = "asyncio" if loop == "trio" else "trio"
    pytest.importorskip(other)
    # The option must win against the configuration, and the marker against the option.
    idle_shop.makeini(f"[pytest]\nmw_budget_loop = {other}\n")
    idle_shop.makepyfile(
        marked("tasks=0", f"assert mw_budget.get('/health').loop == {loop!r}", "test_option")
        + marked(f"loop={other!r}, tasks=0", f"assert mw_budget.get('/health').loop == {other!r}", "test_marker")
    )
    result = run(idle_shop, "--mw-budget", f"--mw-budget-loop={loop}")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines([f"CPython *, loop {', '.join(sorted((loop, other)))}"])


def test_a_test_that_is_not_async_runs_on_the_loop_of_the_configuration(shop: pytest.Pytester) -> None:
    pytest.importorskip("trio")
    shop.makeini("[pytest]\nmw_budget_loop = trio\n")
    shop.makepyfile(marked("tasks=0", "assert mw_budget.get('/health').loop == 'trio'"))
    result = run(shop, "--mw-budget")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["CPython *, loop trio"])


def test_a_loop_that_is_not_installed_is_a_usage_error(shop: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pytest_mwbudget.config.checks, "find_spec", lambda name: None)
    result = run(shop, "--mw-budget-loop=trio")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: mw_budget_loop is 'trio', but trio is not installed here; *"])


def test_a_loop_that_does_not_exist_is_a_usage_error_with_the_choices(shop: pytest.Pytester) -> None:
    result = run(shop, "--mw-budget-loop=tiro")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: mw_budget_loop is 'tiro'. Did you mean 'trio'? *asyncio, uvloop, trio"])


# ---- async tests ------------------------------------------------------------------------------------------------

ASYNC = """
import asyncio

import pytest


@pytest.mark.{marker}
@pytest.mark.mw_budget(us={us})
async def {name}(mw_budget{fixtures}):
    loop = asyncio.get_running_loop()
    measurement = await mw_budget.aget("/health")
    assert measurement.response.text == "ok"
    assert asyncio.get_running_loop() is loop
"""


def test_async_tests_measure_on_their_own_loop(shop: pytest.Pytester) -> None:
    pytest_asyncio = {"marker": "asyncio", "fixtures": ""}
    anyio = {"marker": "anyio", "fixtures": ", anyio_backend"}
    shop.makepyfile(
        ASYNC.format(name="test_asyncio_kept", us=2000, **pytest_asyncio)
        + ASYNC.format(name="test_asyncio_broken", us=20, **pytest_asyncio)
        + ASYNC.format(name="test_anyio_kept", us=2000, **anyio)
        + ASYNC.format(name="test_anyio_broken", us=20, **anyio)
        + "\n\n@pytest.fixture\ndef anyio_backend():\n    return 'asyncio'\n"
    )
    result = run(shop, *UNDRAWN, QUICK, using=[ASYNCIO, ANYIO])
    result.assert_outcomes(passed=2, failed=2)
    result.stdout.fnmatch_lines(["FAILED *::test_asyncio_broken*", "FAILED *::test_anyio_broken*"])


def test_a_sync_request_inside_a_running_loop_names_the_async_one(shop: pytest.Pytester) -> None:
    source = ASYNC.format(name="test_it", marker="asyncio", us=20, fixtures="")
    shop.makepyfile(source.replace("await mw_budget.aget", "mw_budget.get"))
    result = run(shop, using=[ASYNCIO])
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*await mw_budget.aget(...)*"])


# ---- reports ----------------------------------------------------------------------------------------------------


def test_files_stand_where_the_command_line_says_and_the_json_has_the_promised_shape(shop: pytest.Pytester) -> None:
    # The test changes its working directory, which must not move the files.
    shop.makepyfile(marked("us=2000, total_us=5000", "mw_budget.get('/health'); import os; os.chdir('/')"))
    files = {"json": "out/mw.json", "markdown": f"{shop.path}/reports/mw.md", "benchmark-json": "out/mw.bench.json"}
    options = [f"--mw-budget-{name}={path}" for name, path in files.items()]
    run(shop, "--mw-budget", QUICK, *options).assert_outcomes(passed=1)
    texts = {name: Path(shop.path, path).read_text(encoding="utf-8") for name, path in files.items()}
    document = json.loads(texts["json"])
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
    assert (spin["kind"], spin["entered"]) == ("middleware", True)
    assert (spin["budget_us"], spin["verdict"], spin["merged_with"]) == (2000, "pass", None)
    assert spin["us"]["low"] <= spin["us"]["estimate"] <= spin["us"]["high"]
    assert texts["markdown"] == pytest_mwbudget.report.markdown.render(measured_run(document))
    assert "<code>Spin</code>" in texts["markdown"]
    fullnames = [benchmark["fullname"] for benchmark in json.loads(texts["benchmark-json"])["benchmarks"]]
    rows = ("Spin", "ExceptionMiddleware", "(total)")
    assert fullnames[1:] == [f"{measurement['nodeid']} GET /health {name}" for name in rows]


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


@pytest.mark.skipif(sys.platform == "win32", reason="there a process cannot end itself by SIGTERM")
def test_a_run_that_is_killed_leaves_no_empty_file(shop: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.makepyfile(
        marked("tasks=0", "mw_budget.get('/health'); import os, signal; os.kill(os.getpid(), signal.SIGTERM)")
    )
    assert shop.runpytest_subprocess(*alone(monkeypatch), "--mw-budget", *FILES).ret != 0
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
    properties = {element.attrib["name"]: element.attrib["value"] for element in case.iter("property")}
    return properties, case.findtext("failure", ""), suite


def test_junitxml_counts_a_layer_over_budget_as_a_failure_that_can_be_read(shop: pytest.Pytester) -> None:
    shop.makepyfile(marked("us=20"))
    run(shop, "--mw-budget", QUICK, "--junitxml=junit.xml")
    properties, text, suite = junit(shop)
    assert suite.get("failures") == "1"
    lines = text.splitlines()
    assert re.fullmatch(r"GET /health: Spin [\d.]+ µs, budget 20 µs \(1 of 3 layers over budget\)", lines[0])
    assert max(len(line) for line in lines if not line.startswith("Flamegraph: ")) <= 79
    (row,) = [line for line in lines if line.startswith("Spin ") and line.endswith("fail")]
    assert re.search(r" [\d.]+ +[\d.]+ … [\d.]+ +20  fail$", row)
    assert "#x1B" not in text  # pytest's replacement for the escape character
    message = suite.find(".//failure").attrib["message"]  # type: ignore[union-attr]
    assert lines[0] in message.splitlines()[0]
    assert (properties["mw_budget.request"], properties["mw_budget.verdict"]) == ("GET /health", "fail")
    assert properties["mw_budget.worst_layer"] == "Spin"
    assert float(properties["mw_budget.total_us"]) > float(properties["mw_budget.worst_layer_us"]) > 150
    assert properties["mw_budget.worst_layer_tasks"] == "0"


def test_junitxml_has_what_was_measured_also_where_the_test_fails_for_something_else(shop: pytest.Pytester) -> None:
    shop.makepyfile(marked("tasks=0", "mw_budget.get('/health'); mw_budget.get('/health?2'); assert False"))
    run(shop, "--mw-budget", "--junitxml=junit.xml")
    properties, text, _ = junit(shop)
    assert "assert False" in text
    assert properties["mw_budget.verdict"] == "pass"
    assert [properties[f"mw_budget.{number}.request"] for number in (1, 2)] == ["GET /health", "GET /health?2"]


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


@pytest.mark.usefixtures("github")
def test_an_attempt_that_was_repeated_has_a_line_that_says_so_and_is_in_no_report(run_again: pytest.Pytester) -> None:
    run_again.makepyfile(marked("tasks=0"))
    result = run(run_again, *UNDRAWN, "--mw-budget-json=mw.json", "--tb=no", "-s")
    lines = [line for line in result.stdout.lines if "::test_it GET /health fail: " in line]
    assert [line.endswith(" (attempt was repeated)") for line in lines] == [True, False]
    assert len([line for line in result.stdout.lines if re.match("AddHeader .* fail$", line)]) == 1
    assert len(json.loads((run_again.path / "mw.json").read_text())["measurements"]) == 1
    assert len(annotations(result)) == 1
    # The names of the properties of each attempt: how many, and how many different ones.
    numbers = [line.split()[-2:] for line in result.stdout.lines if "properties: " in line]
    assert len(numbers) == 2
    assert all(number == of and int(of) > 3 for number, of in numbers)


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
    result = run(run_again, *UNDRAWN, "-s")
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
    options = (*UNDRAWN, "--reruns=1", "--mw-budget-json=mw.json")
    result = with_task.runpytest_subprocess(*workers, *LEAN, *options) if workers else run(with_task, *options)
    assert result.parseoutcomes().items() >= {"passed": 1, "rerun": 1}.items()
    (measurement,) = json.loads((with_task.path / "mw.json").read_text())["measurements"]
    assert measurement["verdict"] == "pass"
    assert annotations(result) == []
    result.stdout.fnmatch_lines(
        ["*::test_it GET /health fail: * (attempt was repeated)", "*::test_it GET /health pass:*"]
    )


# ---- GitHub Actions ---------------------------------------------------------------------------------------------


def annotations(result: pytest.RunResult) -> list[tuple[str, dict[str, str], str]]:
    return [read(line) for line in result.stdout.lines if line.startswith("::")]


@pytest.fixture
def github(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job of GitHub Actions."""
    monkeypatch.setenv("GITHUB_ACTIONS", "true")


@pytest.mark.usefixtures("github")
@pytest.mark.parametrize(("workspace", "verbosity"), [("", ()), ("/nowhere", ("-qq",))])
def test_a_failed_request_is_an_error_at_its_test(
    with_task: pytest.Pytester, workspace: str, verbosity: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_WORKSPACE", workspace)
    with_task.makepyfile(test_tasks=marked("tasks=0"))
    ((command, properties, message),) = annotations(run(with_task, *UNDRAWN, *verbosity))
    assert command == "error"
    title = "GET /health: AddHeader 1 task, budget 0 tasks (1 of 4 layers over budget)"
    assert properties == {"file": "test_tasks.py", "line": "4", "title": title}  # the line of the marker
    assert message.startswith("AddHeader spawns 1 task per request, its budget is 0 tasks.\n    1 × starlette.")


@pytest.mark.usefixtures("github")
def test_an_expected_failure_is_no_error(with_task: pytest.Pytester) -> None:
    with_task.makepyfile(marked("tasks=0").replace("@pytest", "@pytest.mark.xfail\n@pytest"))
    result = run(with_task, *UNDRAWN)
    result.assert_outcomes(xfailed=1)
    assert annotations(result) == []


@pytest.mark.usefixtures("github")
@pytest.mark.skipif(not hasattr(pytest, "Subtests"), reason="this pytest has no subtests")
def test_a_request_in_a_subtest_is_an_error_where_the_test_fails_for_it(with_task: pytest.Pytester) -> None:
    source = marked("tasks=0", "with subtests.test(): mw_budget.get('/health')")
    with_task.makepyfile(source.replace("test_it(mw_budget)", "test_it(mw_budget, subtests)"))
    assert len(annotations(run(with_task, *UNDRAWN))) == 1


@pytest.mark.usefixtures("github")
def test_a_file_is_named_from_the_root_of_the_repository(
    with_task: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_WORKSPACE", str(with_task.path.parent))
    with_task.makepyfile(test_tasks=marked("tasks=0"))
    ((_, properties, _),) = annotations(run(with_task, *UNDRAWN))
    assert properties["file"] == f"{with_task.path.name}/test_tasks.py"


def test_the_summary_of_a_step_grows_and_stays_within_what_github_takes(
    with_task: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = with_task.path / "summary.md"
    summary.write_text("before", encoding="utf-8")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    with_task.makepyfile(marked("tasks=0"))
    run(with_task, *UNDRAWN, "--mw-budget-markdown=mw.md")
    first = summary.read_text(encoding="utf-8")
    section = (with_task.path / "mw.md").read_text(encoding="utf-8")
    assert first == f"before\n{section}"
    assert "| <code>AddHeader</code> own |" in section

    monkeypatch.setattr(pytest_mwbudget.report.github, "MAX_SUMMARY", len(first.encode()) + len(section.encode()) // 2)
    run(with_task, *UNDRAWN)
    second = summary.read_text(encoding="utf-8").removeprefix(first)
    assert "1 of 1 requests are left out" in second
    assert "AddHeader" not in second


def test_a_summary_that_cannot_be_written_is_a_remark(shop: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(shop.path / "missing" / "summary.md"))
    shop.makepyfile(marked("tasks=0"))
    result = run(shop, "--mw-budget")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["GITHUB_STEP_SUMMARY cannot be written: *summary.md' [[]file]"])


# ---- the terminal -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verbosity", [(), ("-q",), ("-qq",), ("-v",)], ids=str)
def test_each_table_stands_once_and_each_request_has_a_line(shop: pytest.Pytester, verbosity: tuple[str, ...]) -> None:
    shop.makepyfile(marked("us=20", name="test_broken") + marked("us=2000", name="test_kept"))
    lines = run(shop, *UNDRAWN, QUICK, *verbosity).stdout.lines
    for test, verdict in (("test_broken", "fail"), ("test_kept", "pass")):
        assert len([line for line in lines if f"::{test} GET /health {verdict}: " in line]) == 1
    verbose = verbosity == ("-v",)
    assert lines.count("  shop.Spin, middleware, own") == 2 * verbose
    tables = [number for number, line in enumerate(lines) if re.match(r"layer +µs/request", line)]
    (section,) = (number for number, line in enumerate(lines) if "= mw-budget =" in line)
    # The table of the failure stands in it, the other one in the section with -v only.
    assert [number < section for number in tables] == [True] + [False] * verbose


@pytest.mark.parametrize("option", ["-vv", "--tb=no", "--tb=line", "--tb=native"])
def test_the_table_of_a_failing_request_stands_once_whatever_pytest_shows(
    with_task: pytest.Pytester, option: str
) -> None:
    with_task.makepyfile(marked("tasks=0"))
    result = run(with_task, *UNDRAWN, option)
    result.assert_outcomes(failed=1)
    assert len([line for line in result.stdout.lines if re.match("AddHeader .* fail$", line)]) == 1


def test_the_table_of_a_request_over_budget_stands_once_where_something_else_is_the_outcome(
    with_task: pytest.Pytester,
) -> None:
    source = (
        marked("tasks=0", "mw_budget.get('/health'); assert False", "test_asserts")
        + marked("tasks=0", "pytest.xfail() if mw_budget.get('/health') else 0", "test_xfails")
        + marked("tasks=0", "request.applymarker(pytest.mark.xfail), mw_budget.get('/health')", "test_marks")
    )
    with_task.makepyfile(source.replace("(mw_budget)", "(mw_budget, request)"))
    result = run(with_task, *UNDRAWN)
    result.assert_outcomes(failed=1, xfailed=2)
    # The line of each request, and its table below.
    pattern = re.compile(r".*::(\w+) GET /health fail: |AddHeader .* fail$")
    shown = [match[1] or "table" for line in result.stdout.lines if (match := pattern.match(line))]
    assert shown == ["test_asserts", "table", "test_xfails", "table", "test_marks", "table"]


def test_pytests_summary_has_a_line_for_each_request_also_on_ci(
    with_task: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "true")
    with_task.makepyfile(marked("tasks=0", "mw_budget.get('/health?1'), mw_budget.get('/health?2')"))
    lines = run(with_task, *UNDRAWN).stdout.lines
    (short,) = (number for number, line in enumerate(lines) if "= short test summary info =" in line)
    over = "AddHeader 1 task, budget 0 tasks (1 of 4 layers over budget)"
    each = f"GET /health?1: {over}; GET /health?2: {over}"
    assert [line.partition(" - ")[2] for line in lines[short + 1 : -1]] == [f"Failed: {each}"]


@pytest.mark.skipif(not hasattr(pytest, "Subtests"), reason="this pytest has no subtests")
def test_the_table_of_a_request_in_a_subtest_stands_once(with_task: pytest.Pytester) -> None:
    body = "mw_budget.get('/health?1')\n    with subtests.test(): mw_budget.get('/health?2')"
    with_task.makepyfile(marked("tasks=0", body).replace("(mw_budget)", "(mw_budget, subtests)"))
    result = run(with_task, *UNDRAWN)
    assert len([line for line in result.stdout.lines if re.match("AddHeader .* fail$", line)]) == 2
    result.stdout.fnmatch_lines(["*::test_it GET /health?1 fail: *", "*::test_it GET /health?2 fail: *"])


def test_the_table_reads_in_80_columns_and_in_colour(shop: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shop.makepyfile(test_shop=marked("us=2000"))
    result = run(shop, "--mw-budget", QUICK, "--color=yes", "-v")
    text = "\n".join(result.stdout.lines)
    assert "\x1b[32mSpin" in text
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
    with_task.makepyfile(shop=APP)
    with_task.makepyfile(test_time=marked("us=20, layers={'AddHeader': 1e6}"), test_tasks=marked("tasks=0"))
    files = ("--mw-budget-json=mw.json", "--junitxml=junit.xml")
    conftest = with_task.path / "conftest.py"
    conftest.write_text(conftest.read_text() + QUICK_IN_WORKERS)
    options = (*alone(monkeypatch, "xdist"), "-p", "no:cacheprovider", "-n", "1", *UNDRAWN, QUICK)
    result = with_task.runpytest_inprocess(*options, *files)
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["* mw-budget *"])
    result.stdout.fnmatch_lines_random(["Spin*fail", "AddHeader*fail", "5 requests counted*", "detection limit *"])
    measurements = json.loads((with_task.path / "mw.json").read_text())["measurements"]
    assert len(measurements) == 2
    by_file = {measurement["nodeid"].partition(":")[0]: measurement for measurement in measurements}
    check_counts(by_file["test_tasks.py"])
    assert by_file["test_time.py"]["layers"][2]["us"]["estimate"] > 150
    assert {properties["file"] for _, properties, _ in annotations(result)} == by_file.keys()
    assert (with_task.path / "summary.md").read_text(encoding="utf-8").startswith("\n## mw-budget: 2 fail\n")
    cases = ElementTree.parse(Path(with_task.path, "junit.xml")).getroot().iter("testcase")
    named = {case.attrib["classname"]: [element.attrib for element in case.iter("property")] for case in cases}
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
    output = " ".join(result.stdout.str().split())
    pattern = re.escape(f"note: {name} was suspended during the measurement.").replace(r"\*", r"\S*")
    assert re.search(pattern, output), output
    plain = shop.runpytest_subprocess(*covered)
    assert _coverage_line(result) == _coverage_line(plain)


def _coverage_line(result: pytest.RunResult) -> str:
    return next(line for line in result.stdout.lines if line.startswith("shop.py"))


def test_progress_prints_nothing_where_the_output_is_no_terminal(shop: pytest.Pytester) -> None:
    shop.makepyfile(marked("layers={'Spin': 100}, max_time=0.0001"))
    result = run(shop, "--mw-budget", *WARNINGS_SHOWN)
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


def test_a_request_within_its_budgets_has_a_flamegraph_where_it_is_asked_for(idle_shop: pytest.Pytester) -> None:
    idle_shop.makepyfile(marked("tasks=0"))
    result = run(idle_shop, "--mw-budget", "--mw-budget-flamegraph=always", "--mw-budget-dir=here")
    result.assert_outcomes(passed=1)
    assert pictures(idle_shop.path / "here") == ALL_THREE
    result.stdout.fnmatch_lines(["flamegraph: *here*-1.html"])


def test_flamegraphs_can_be_turned_off_and_moved_in_the_configuration(with_task: pytest.Pytester) -> None:
    with_task.makepyfile(marked("tasks=0"))
    result = run(with_task, "--mw-budget", "--mw-budget-flamegraph=never")
    result.assert_outcomes(failed=1)
    result.stdout.no_fnmatch_line("*Flamegraph*")
    assert not (with_task.path / ".mw-budget").exists()
    with_task.makeini("[pytest]\nmw_budget_dir = out/flames\nmw_budget_flamegraph = always\n")
    run(with_task, "--mw-budget").assert_outcomes(failed=1)
    assert pictures(with_task.path / "out" / "flames") == ALL_THREE


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


def test_a_flamegraph_that_cannot_be_kept_is_a_note_and_the_verdict_stands(with_task: pytest.Pytester) -> None:
    with_task.makepyfile(marked("tasks=0"))
    (with_task.path / ".mw-budget").write_text("")
    result = run(with_task, "--mw-budget")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["AddHeader * fail", "note: There is no flamegraph:*", "*cannot be written*"])
