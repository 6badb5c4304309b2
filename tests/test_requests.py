"""Requests without a test, in whole pytest runs: `--mw-budget-app` and `--mw-budget-request`."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

import pytest_mwbudget.workload.host
from pytest_mwbudget.asgi.app import NamedApp
from pytest_mwbudget.errors import AppError, SettingError
from pytest_mwbudget.workload.requests import RequestFile, parsed, read, workload

from .apps import LEAN, alone, run_inside

pytestmark = pytest.mark.once

APP = """
import asyncio
import contextlib
import sys
from pathlib import Path

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Mount, Route


def noted(what):
    with Path("log").open("a") as log:
        log.write(what + "\\n")


class Outer:
    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        await self.app(scope, receive, send)


class Inner(Outer):
    pass


async def health(request):
    noted(f"loop {id(asyncio.get_running_loop())}")
    return PlainTextResponse(request.state.word)


async def echo(request):
    return PlainTextResponse(f"{request.headers.get('x-team')} {len(await request.body())}")


async def private(request):
    known = request.headers.get("authorization") == "Bearer t"
    return PlainTextResponse("ok" if known else "who?", 200 if known else 401)


async def events(request):
    async def forever():
        while True:
            yield b"tick"
            await asyncio.sleep(0.01)

    return StreamingResponse(forever())


async def broken(request):
    raise LookupError("no such shelf")


async def leaves(request):
    sys.exit(3)


async def large(request):
    return PlainTextResponse("x" * 10_000_000)


@contextlib.asynccontextmanager
async def lifespan(app):
    noted("startup")
    yield {"word": "ok"}
    noted("shutdown")


ROUTES = {
    "/health": health, "/private": private, "/events": events, "/broken": broken, "/leaves": leaves, "/large": large,
    "/echo": echo,
}


def create_app(*names, startup=lifespan):
    routes = [Route("/" + name, ROUTES["/" + name], methods=["GET", "POST"]) for name in names]
    routes += [Route("/item/{number}", health), Route("/write", health, methods=["POST"])]
    api = Starlette(routes=[Route("/health", health)], middleware=[Middleware(Inner)])
    return Starlette(routes=[*routes, Mount("/api", api)], middleware=[Middleware(Outer)], lifespan=startup)


app = create_app("health")


def make():
    noted("made")
    return create_app("health")


def breaks():
    raise OSError("no database")


async def later():
    return app
"""


@pytest.fixture
def shop(pytester: pytest.Pytester) -> pytest.Pytester:
    """A directory with an app and a test that must not run."""
    pytester.makepyfile(shop=APP, test_shop="def test_of_the_team():\n    assert False\n")
    return pytester


def run(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return run_inside(pytester, "--mw-budget-max-time=5", *arguments)


def measured(pytester: pytest.Pytester, app: str, *arguments: str) -> pytest.RunResult:
    """Run with counts only, unless the arguments have a budget of time."""
    return run(pytester, "--mw-budget", f"--mw-budget-app={app}", "-o", "mw_budget_tasks=5", *arguments)


def logged() -> list[str]:
    return Path("log").read_text().split("\n")[:-1] if Path("log").exists() else []


def requested(result: pytest.RunResult) -> list[str]:
    return [line for line in result.outlines if line.startswith("mw-budget::")]


# ---- which requests ---------------------------------------------------------------------------------------------


def test_an_item_for_each_route_that_get_can_request(shop: pytest.Pytester) -> None:
    result = measured(shop, "shop:app", "--collect-only", "-q")
    assert requested(result) == ["mw-budget::GET /health", "mw-budget::GET /api/health"]
    result.stdout.fnmatch_lines("mw-budget: 2 requests; routes left out: 1 (path parameters), 1 (no GET)")
    assert logged() == []  # neither startup nor a request


def test_all_items_share_the_app_of_a_factory_its_lifespan_a_loop_and_budgets_by_layer(shop: pytest.Pytester) -> None:
    # Only one of the two requests enters the layer.
    budgets = ("-o", "mw_budget_layers=Inner = tasks: 9")
    result = measured(shop, "shop:make", "-v", "--mw-budget-json=out.json", *budgets)
    result.assert_outcomes(passed=2)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["note: The app is what shop:make() returned. [[]app]"])
    log = logged()
    assert (log[:2], log[-1]) == (["made", "startup"], "shutdown")
    assert [log.count(what) for what in ("made", "startup", "shutdown")] == [1, 1, 1]
    assert len(set(log[2:-1])) == 1
    measurements = json.loads(Path("out.json").read_text())["measurements"]
    layers = [[layer["name"].partition("#")[0] for layer in measurement["layers"]] for measurement in measurements]
    outer, inner = (["ServerErrorMiddleware", own, "ExceptionMiddleware"] for own in ("Outer", "Inner"))
    assert layers == [outer, [*outer, "Router", "Starlette", *inner]]


def test_requests_of_the_command_line_take_the_place_of_routes(shop: pytest.Pytester) -> None:
    arguments = ("--mw-budget-request=POST /health", "--mw-budget-request=/item/3", "--mw-budget-request=GET /item/3")
    result = measured(shop, "shop:app", *arguments, "-v")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["mw-budget::POST /health PASSED*", "mw-budget::GET /item/3 PASSED*"])


@pytest.mark.parametrize("line", ["health", "", "GET", "G(T /x"])
def test_an_unusable_request_is_told_with_an_example(line: str) -> None:
    with pytest.raises(SettingError) as caught:
        parsed(line, "--mw-budget-request")
    assert fnmatch(str(caught.value), "*; *GET*")


def test_an_unusable_request_is_a_usage_error(shop: pytest.Pytester) -> None:
    result = measured(shop, "shop:app", "--mw-budget-request=")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines("ERROR: --mw-budget-request is ''; *GET*")


def test_requests_of_a_file(shop: pytest.Pytester) -> None:
    shop.makefile(
        ".toml",
        requests="""
        [headers]
        X-Team = "tea"

        [[requests]]
        url = "/echo"

        [[requests]]
        method = "post"
        url = "/echo"
        json = { item = "tea" }
        headers = { x-team = "own" }
        name = "an order"

        [[requests]]
        url = "/private"
        expect_status = 401

        [[requests]]
        url = "/private"
        headers = { authorization = "Bearer t" }
        """,
    )
    arguments = ("-o", "mw_budget_requests=requests.toml", "-v", "--mw-budget-json=out.json")
    result = measured(shop, "shop:create_app('echo', 'private')", *arguments)
    result.assert_outcomes(passed=4)
    names = ["GET /echo", "an order", "GET /private", "GET /private (2)"]
    result.stdout.fnmatch_lines([f"mw-budget::{name} PASSED*" for name in names])
    measurements = json.loads(Path("out.json").read_text())["measurements"]
    assert [measurement["status"] for measurement in measurements] == [200, 200, 401, 200]


def test_a_file_of_headers_is_for_all_routes(shop: pytest.Pytester) -> None:
    shop.makefile(".toml", requests="headers = { authorization = 'Bearer t' }")
    result = measured(shop, "shop:create_app('private')", "-o", "mw_budget_requests=requests.toml")
    result.assert_outcomes(passed=2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[requests]\n", "cannot be read: "),
        ("[[request]]\n", "has 'request'. Did you mean 'requests'[?]"),
        ("requests = 3\n", "has requests = 3; write each request as a table"),
        ("[[requests]]\nmethod = 'GET'\n", "request 1 has the url None; give a path"),
        ("[[requests]]\nurl = '/a'\nbudget = 3\n", "request 1 has 'budget'. The keys are: method, url, *, us, *"),
        ("[[requests]]\nurl = '/a'\np99_ms = 9\n", "request 1: 'p99_ms' is for requests under load, *mwbudget load*"),
        ("[[requests]]\nurl = '/a'\nlayers.A.rps_share = 0.1\n", "request 1: 'rps_share' is for requests under load"),
        ("[[requests]]\nurl = '/a'\nlifespan = false\n", "request 1 has 'lifespan', which one request cannot set"),
        ("[[requests]]\nurl = '/a'\nus = 0\n", "request 1: mw_budget marker: us is 0, which cannot be kept"),
        ("[[requests]]\nurl = '/a'\nbody = 'a'\njson = 1\n", "request 1 has a body and json; give one of them"),
        ("[[requests]]\nurl = '/a'\nheaders = { a = 1 }\n", "request 1 has the headers {'a': 1}; give texts"),
    ],
)
def test_an_unusable_file_is_told_with_the_place(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "requests.toml"
    file.write_text(text)
    with pytest.raises(SettingError) as caught:
        read(file, "mw_budget_requests = 'requests.toml'")
    assert fnmatch(str(caught.value), f"mw_budget_requests = 'requests.toml'*{message}*")


def test_an_unusable_file_is_a_usage_error(shop: pytest.Pytester) -> None:
    Path("requests.toml").write_text("requests = 3\n")
    result = measured(shop, "shop:app", "-o", "mw_budget_requests=requests.toml")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines("ERROR: mw_budget_requests = 'requests.toml' has requests = 3; write each request *")


def test_an_id_of_an_item_is_a_choice(shop: pytest.Pytester) -> None:
    result = measured(shop, "shop:app", "mw-budget::GET /health", "--collect-only", "-q")
    assert requested(result) == ["mw-budget::GET /health"]
    result = measured(shop, "shop:app", "mw-budget::GET /heath")
    result.stdout.fnmatch_lines("'mw-budget::GET /heath' is not a request. Did you mean 'mw-budget::GET /health'[?]*")
    assert result.ret == pytest.ExitCode.INTERRUPTED


# ---- when there are items ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ("--mw-budget", "-o", "mw_budget_app=shop:app", "-o", "mw_budget_requests=no.toml"),
        ("--mw-budget-app=shop:app",),
        ("--mw-budget", "--mw-budget-app=shop:app", "test_shop.py"),
        ("--mw-budget", "--mw-budget-app=shop:app", "."),
    ],
)
def test_other_runs_are_as_they_were(shop: pytest.Pytester, arguments: tuple[str, ...]) -> None:
    result = run(shop, *arguments)
    result.assert_outcomes(failed=1)
    result.stdout.no_fnmatch_line("*mw-budget::*")


def test_the_option_is_the_app_of_the_fixture(shop: pytest.Pytester) -> None:
    shop.makepyfile(test_shop="def test_it(mw_budget):\n    assert mw_budget.get('/health').response.text == 'ok'\n")
    run(shop, "--mw-budget-app=shop:make", "-o", "mw_budget_app=shop:nothing").assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--mw-budget-request=/health",), "measures nothing without --mw-budget; add it"),
        (("--mw-budget", "--mw-budget-request=/health", "test_shop.py"), "'test_shop.py' names a test; leave out*"),
    ],
)
def test_a_request_that_would_not_be_made_is_a_usage_error(
    shop: pytest.Pytester, arguments: tuple[str, ...], message: str
) -> None:
    result = run(shop, *arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(f"ERROR: --mw-budget-request='/health' *{message}")


# ---- beside other options of pytest ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "paths"),
    [("-k=api", ["/api/health"]), ("-m=mw_budget", ["/health", "/api/health"]), ("-m=not mw_budget", [])],
)
def test_items_are_selected_as_tests_are(shop: pytest.Pytester, option: str, paths: list[str]) -> None:
    result = measured(shop, "shop:app", option, "--collect-only", "-q")
    assert requested(result) == [f"mw-budget::GET {path}" for path in paths]
    assert result.parseoutcomes().get("deselected", 0) == 2 - len(paths)


def test_a_time_limit_of_an_item_holds_as_that_of_a_test(shop: pytest.Pytester) -> None:
    pytest.importorskip("pytest_timeout")
    only = ("--mw-budget-request=/health", "-o", "mw_budget_us=100000")
    result = measured(shop, "shop:app", "-v", "-p", "pytest_timeout", "--timeout=20", *only)
    result.stdout.fnmatch_lines("note: The test, or another task of its event loop, has a time limit, so*")


def test_what_failed_last_runs_again(shop: pytest.Pytester) -> None:
    app, cached = "shop:create_app('broken')", ("-p", "cacheprovider")
    measured(shop, app, *cached)
    result = measured(shop, app, *cached, "--lf")
    result.assert_outcomes(failed=1, deselected=1)


@pytest.mark.live
@pytest.mark.once
def test_workers_share_the_items_and_each_has_one_lifespan(shop: pytest.Pytester) -> None:
    options = ["-n", "2", "-p", "no:randomly", "--mw-budget", "--mw-budget-app=shop:app", "-o", "mw_budget_tasks=5"]
    result = shop.runpytest_subprocess(*LEAN, *options, "-o", "mw_budget_layers=Inner = tasks: 9")
    result.assert_outcomes(passed=2)
    assert 1 <= logged().count("startup") == logged().count("shutdown") <= 2


# ---- the app -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scope", ["function", "module", "session"])
def test_the_app_of_an_overridden_fixture_lives_as_long_as_the_fixture(shop: pytest.Pytester, scope: str) -> None:
    shop.makeconftest(
        f"""
        import pytest
        from shop import create_app, noted

        @pytest.fixture(scope={scope!r})
        def mw_budget_app():
            noted("set up")
            yield create_app("health")
            noted("torn down")
        """
    )
    measured(shop, "shop:app").assert_outcomes(passed=2)
    ends = [what for what in logged() if not what.startswith("loop")]
    once = ["set up", "startup", "shutdown", "torn down"]
    assert ends == once * (2 if scope == "function" else 1)


def test_requests_of_fixtures_use_the_app_and_the_lifespan_of_the_items(shop: pytest.Pytester) -> None:
    shop.makeconftest(
        """
        import pytest

        @pytest.fixture(autouse=True)
        def log_in(mw_budget):
            mw_budget.get("/health")
        """
    )
    measured(shop, "shop:app", "--mw-budget-json=out.json").assert_outcomes(passed=2)
    assert [logged().count(what) for what in ("startup", "shutdown")] == [1, 1]
    assert len(set(logged())) == 3  # they have one loop, too
    urls = [measurement["request"]["url"] for measurement in json.loads(Path("out.json").read_text())["measurements"]]
    assert urls == ["/health", "/health", "/health", "/api/health"]


def test_an_unexpected_status_in_a_fixture_is_an_error_and_other_loops_have_a_lifespan_of_their_own(
    shop: pytest.Pytester,
) -> None:
    shop.makeconftest(
        """
        import asyncio
        import pytest

        @pytest.fixture(autouse=True)
        def log_in(mw_budget):
            if "api" in mw_budget.item.name:
                mw_budget.get("/private", expect_status=200)
            mw_budget.get("/private", expect_status=401)
            yield
            asyncio.run(mw_budget.aget("/health"))
        """
    )
    result = measured(
        shop, "shop:create_app('health', 'private')", "--mw-budget-request=/health", "--mw-budget-request=/api/health"
    )
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["GET /private answered 401, expected 200; nothing was measured.*"])
    assert [what for what in logged() if "loop" not in what] == ["startup", "startup", "shutdown", "shutdown"]
    assert len(set(logged())) == 4


@pytest.mark.parametrize(("loop", "startups"), [("asyncio", 1), ("uvloop", 1), ("trio", 2)])
def test_each_loop_runs_the_app(shop: pytest.Pytester, loop: str, startups: int) -> None:
    pytest.importorskip(loop)
    app = APP.replace("asyncio.get_running_loop()", "request.app")
    shop.makepyfile(shop=app)
    measured(shop, "shop:app", f"--mw-budget-loop={loop}").assert_outcomes(passed=2)
    assert logged().count("startup") == logged().count("shutdown") == startups


# ---- budgets -----------------------------------------------------------------------------------------------------


def test_the_configuration_and_the_file_have_budgets(shop: pytest.Pytester) -> None:
    shop.makefile(".toml", requests="[[requests]]\nurl = '/health'\n[[requests]]\nurl = '/api/health'\nobjects = 0\n")
    arguments = ("-o", "mw_budget_requests=requests.toml", "-o", "mw_budget_total_us=1000000")
    result = measured(shop, "shop:app", *arguments, "--mw-budget-flamegraph=never")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["FAILED mw-budget::GET /api/health - Failed: GET /api/health: *"])


@pytest.mark.parametrize(("chosen", "status", "word"), [((), 1, "error"), (("-k", "api"), 0, "warning")])
def test_a_budget_for_a_layer_of_no_route_is_an_error(
    shop: pytest.Pytester, chosen: tuple[str, ...], status: int, word: str
) -> None:
    result = measured(shop, "shop:app", "-o", "mw_budget_layers=Iner = tasks: 9", *chosen)
    assert result.ret == status
    result.stdout.fnmatch_lines(
        [f"{word}: the budget names a layer 'Iner' that no measured request has. Did you mean 'Inner'[?] *Outer*"]
    )


def test_a_budget_for_a_part_of_no_endpoint_is_an_error(shop: pytest.Pytester) -> None:
    result = measured(shop, "shop:app", "-o", "mw_budget_endpoint=handlr = tasks: 9", "-v")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["error: the budget names a part 'handlr' that no measured request has. Did you mean*"])


def test_a_layer_may_be_on_a_route_that_was_skipped(shop: pytest.Pytester) -> None:
    result = measured(shop, "shop:create_app('private', 'health')", "-o", "mw_budget_layers=Audit = tasks: 9")
    result.assert_outcomes(passed=2, skipped=1)
    assert result.ret == 0
    result.stdout.fnmatch_lines(["warning: the budget names a layer 'Audit' that no measured request has.*"])


def test_headers_of_the_command_line_replace_those_of_the_file_in_any_case() -> None:
    file = RequestFile({"Authorization": "of the file", "X-A": "1"})
    (wanted,) = workload([parsed("GET /x", "REQUEST")], file, None, {"authorization": "given"}).requests
    assert wanted.options["headers"] == {"X-A": "1", "authorization": "given"}


def test_a_layer_in_the_budgets_of_a_request_must_be_on_it(shop: pytest.Pytester) -> None:
    shop.makefile(".toml", requests="[[requests]]\nurl = '/health'\nlayers = { Inner = { tasks = 9 } }\n")
    result = measured(shop, "shop:app", "-o", "mw_budget_requests=requests.toml")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines("the budget names a layer 'Inner' that is not in the stack*")


# ---- bad cases ---------------------------------------------------------------------------------------------------


def test_what_cannot_be_measured_is_skipped_also_in_junit_xml_and_the_rest_goes_on(
    shop: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pytest_mwbudget.workload.host, "RESPONSE_S", 0.6)
    names = ("private", "events", "broken", "leaves", "health")
    result = measured(shop, f"shop:create_app{names}", "-rs", "-v", "--junitxml=out.xml")
    result.assert_outcomes(passed=2, skipped=2, failed=2)
    text = result.stdout.str()
    assert "LookupError: no such shelf" in text
    assert "GET /leaves: the app called sys.exit(3) (" in text
    result.stdout.fnmatch_lines(
        [
            "SKIPPED [[]1[]] mw-budget: GET /private answered 401; nothing was measured.*",
            "SKIPPED [[]1[]] mw-budget: GET /events: the response did not end within 0.6 s; an endless stream*",
        ]
    )
    assert "pytest_mwbudget" not in text.partition("FAILURES")[2].partition("= mw-budget =")[0]
    assert (logged().count("startup"), logged().count("shutdown")) == (1, 1)
    cases = list(ElementTree.parse("out.xml").iter("testcase"))
    assert [(case.get("classname"), case.get("name")) for case in cases] == [
        ("mw-budget", f"GET /{name}") for name in (*names, "api/health")
    ]
    skipped = cases[0].find("skipped")
    assert skipped is not None
    assert str(skipped.get("message")).startswith("GET /private answered 401")


def test_a_run_that_measures_nothing_fails(shop: pytest.Pytester) -> None:
    """An expired token would open the gate."""
    arguments = ("shop:create_app('private', 'health')", "--mw-budget-request=/private")
    result = measured(shop, *arguments)
    result.assert_outcomes(skipped=1)
    assert result.ret == 1
    result.stdout.fnmatch_lines(["error: no request was measured; the reasons*[[]response[]]"])
    both = (*arguments, "--mw-budget-request=/health")
    assert measured(shop, *both).ret == 0
    assert measured(shop, *both, "-k", "private").ret == 0  # another job may measure the rest
    shop.makeconftest("import pytest\n\n@pytest.fixture(autouse=True)\ndef no_database():\n    pytest.skip('today')\n")
    assert measured(shop, *arguments).ret == 0  # for a reason of the team


def test_a_listed_request_fails_if_it_is_not_to_be_undecided(shop: pytest.Pytester) -> None:
    requests = "[[requests]]\nurl = '/private'\ntasks = 5\n[[requests]]\nurl = '/health'\n"
    shop.makefile(".toml", requests=requests)
    arguments = ("shop:create_app('private', 'health')", "-o", "mw_budget_requests=requests.toml")
    measured(shop, *arguments).assert_outcomes(passed=1, skipped=1)
    result = measured(shop, *arguments, "--mw-budget-undecided=fail")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*GET /private answered 401; nothing was measured*"])


def test_a_redirect_shows_what_the_app_answered(shop: pytest.Pytester) -> None:
    (shop.path / "moved.py").write_text(
        "from shop import *\nfrom starlette.responses import RedirectResponse\n\nasync def moved(request):\n"
        "    return RedirectResponse('/health')\n\nROUTES['/moved'] = moved\napp = create_app('moved')\n"
    )
    result = measured(shop, "moved:app", "--mw-budget-request=/moved")
    result.stdout.fnmatch_lines(["*GET /moved answered 307, pass: *"])


def test_a_skip_by_a_fixture_or_a_mark_skips_its_item_only(shop: pytest.Pytester) -> None:
    shop.makeconftest(
        """
        import pytest

        @pytest.fixture(autouse=True)
        def log_in(request, mw_budget):
            if request.node.name == "GET /echo":
                pytest.skip("no database")
            if request.node.name == "GET /item/1":
                mw_budget.get("/private")

        def pytest_collection_modifyitems(items):
            items[0].add_marker(pytest.mark.skip("not today"))
        """
    )
    requests = [f"--mw-budget-request={path}" for path in ("/health", "/echo", "/item/1", "/api/health")]
    result = measured(shop, "shop:create_app('health', 'echo', 'private')", *requests, "-rs")
    result.assert_outcomes(passed=1, skipped=3)
    for reason in ("not today", "no database", "GET /private answered 401"):
        result.stdout.fnmatch_lines([f"SKIPPED [[]1[]] mw-budget: {reason}*"])


def test_ten_megabytes_both_ways(shop: pytest.Pytester) -> None:
    body = "x" * 10_000_000
    posted = f"[[requests]]\nmethod = 'POST'\nurl = '/echo'\nbody = '{body}'\n"
    Path("requests.toml").write_text(f"{posted}[[requests]]\nurl = '/large'\n")
    result = measured(shop, "shop:create_app('echo', 'large')", "-o", "mw_budget_requests=requests.toml")
    result.assert_outcomes(passed=2)


@pytest.mark.parametrize(
    ("source", "app", "message"),
    [
        (
            "import no_such_package\n",
            "other:app",
            "importing 'other' failed with ModuleNotFoundError: No module named*",
        ),
        ("import sys\nsys.exit('bye')\n", "other:app", "importing 'other' called sys.exit('bye') (*other.py:2)*"),
        ("app = 3\n", "other:ap", "'other' has no 'ap'. Did you mean 'app'[?]*"),
        ("app = 3\n", "other:app", "that is 3, which is not an ASGI app; name the ASGI app itself*"),
        ("", "shop:breaks", "the factory failed with OSError: no database (*shop.py:*); correct the call"),
        ("", "shop:later", "the factory is `async def`*"),
        ("", "shop:create_app(name)", "whose call cannot be read: *; write *literal*"),
        ("app = None\n", "other", "write 'package.module:app'*"),
        ("class App:\n    pass\n", "other:App", "that is <class 'other.App'>, which is not an ASGI app*"),
    ],
)
def test_an_app_that_cannot_be_had_is_told_with_the_reason(
    shop: pytest.Pytester, source: str, app: str, message: str
) -> None:
    shop.makepyfile(other=source)
    with pytest.raises(AppError) as caught:
        NamedApp(app, shop.path, "--mw-budget-app").load()
    assert fnmatch(str(caught.value), f"--mw-budget-app is *{message}")


def test_an_app_that_cannot_be_had_is_one_error_of_the_collection(shop: pytest.Pytester) -> None:
    result = measured(shop, "shop:breaks")
    result.assert_outcomes(errors=1)
    message = "the factory failed with OSError: no database (*shop.py:*); correct the call"
    result.stdout.fnmatch_lines(["*ERROR collecting mw-budget*", f"--mw-budget-app is *{message}"])


def test_an_app_that_cannot_be_had_for_given_requests_is_one_failure(shop: pytest.Pytester) -> None:
    arguments = ("--mw-budget-request=/a", "--mw-budget-request=/b")
    result = measured(shop, "shop:nothing", *arguments, "-rs")
    result.assert_outcomes(failed=1, skipped=1)
    result.stdout.fnmatch_lines("SKIPPED * there is no app: see the failure of mw-budget::GET /a")


@pytest.mark.parametrize(
    ("before", "after"), [("raise OSError('no database')", "pass"), ("pass", "raise OSError('x')")]
)
def test_a_lifespan_that_fails_is_one_failure(shop: pytest.Pytester, before: str, after: str) -> None:
    shop.makepyfile(
        other=f"""
        import contextlib
        from shop import *

        @contextlib.asynccontextmanager
        async def fails(app):
            {before}
            yield {{"word": "ok"}}
            {after}

        app = create_app("health", startup=fails)
        """
    )
    result = measured(shop, "other:app")
    if before == "pass":
        result.assert_outcomes(passed=2, errors=1)
        result.stdout.fnmatch_lines("the app's lifespan shutdown failed with OSError: x*")
    else:
        result.assert_outcomes(failed=1, skipped=1)
        result.stdout.fnmatch_lines("the app's lifespan startup failed with OSError: no database*")


def test_each_request_that_fails_has_its_message_and_the_next_one_is_measured(shop: pytest.Pytester) -> None:
    shop.makepyfile(
        other="""
        import asyncio
        from shop import app as inner

        async def app(scope, receive, send):
            path = scope.get("path")
            if path == "/waits":
                await asyncio.sleep(60)
            elif path == "/returns":
                await send({"type": "http.response.start", "status": 200, "headers": []})
            elif path == "/raises":
                raise LookupError("in a layer")
            else:
                await inner(scope, receive, send)
        """
    )
    requests = [f"--mw-budget-request=/{name}" for name in ("waits", "returns", "raises", "health")]
    result = measured(shop, "other:app", "-o", "mw_budget_startup_timeout=1.2", *requests)
    result.assert_outcomes(failed=3, passed=1)
    late = (
        "GET /waits: the app did not begin a response within 1.2 s; make *; it waited at app (other.py:*), inside app*"
    )
    early = "GET /returns: the app began a response with status 200 and returned before the response was complete*"
    result.stdout.fnmatch_lines([late, early, "*LookupError: in a layer"])
    assert logged()[-1] == "shutdown"


def test_an_interrupt_shuts_the_app_down_and_a_shutdown_that_fails_then_is_no_traceback(
    shop: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.makepyfile(
        other="""
        import contextlib
        from shop import *

        @contextlib.asynccontextmanager
        async def fails(app):
            yield {"word": "ok"}
            noted("shutdown")
            raise OSError("x")

        async def interrupted(scope, receive, send):
            if scope["type"] == "http":
                raise KeyboardInterrupt
            await inner(scope, receive, send)

        inner, app = create_app("health", startup=fails), interrupted
        """
    )
    options = ("--mw-budget", "--mw-budget-app=other:app", "--mw-budget-request=/health")
    result = shop.runpytest_subprocess(*alone(monkeypatch), *options)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["*KeyboardInterrupt*"])
    result.stdout.no_fnmatch_line("*INTERNALERROR*")
    assert "Traceback" not in result.stderr.str()
    assert logged() == ["shutdown"]


def test_a_schema_that_cannot_be_made_and_an_app_without_routes_say_what_to_do(shop: pytest.Pytester) -> None:
    class Raising:
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None: ...

        def openapi(self) -> Any:
            raise TypeError("no schema")

    with pytest.raises(AppError, match="making its OpenAPI schema failed with TypeError: no schema; name the requests"):
        workload((), RequestFile(), Raising())
    shop.makepyfile(other="class App:\n    async def __call__(self, scope, receive, send): ...\n")
    result = measured(shop, "other:App()")
    result.stdout.fnmatch_lines("the app has no route that GET can request as it is*'GET /health'")
