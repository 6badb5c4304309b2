"""The command `mwbudget measure`: an app without pytest and without a test."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_mwbudget.__main__ import main
from pytest_mwbudget.commands import measure
from pytest_mwbudget.config.settings import Settings
from pytest_mwbudget.counting.backend import counting_backend
from pytest_mwbudget.workload.time_budget import TimeBudget

from .apps import FAST_SCHEDULE, needs, run_inside
from .test_report_schema import misfits
from .test_requests import APP

# No test needs precise times.
SCHEDULE = replace(FAST_SCHEDULE, precision_time_s=0.02)
# A stream that does not end cannot be measured, whatever status is expected.
EXPECTED = {"private": 401, "events": 200}


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module with an app; each test has its own, because a module is imported once in a process."""
    name = f"shop_{abs(hash(tmp_path))}"
    Path(tmp_path, f"{name}.py").write_text(APP, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(measure, "Schedule", lambda: SCHEDULE)
    return name


def logged() -> list[str]:
    return Path("log").read_text().split("\n")[:-1]


def test_every_route_is_counted_and_timed(shop: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["measure", f"{shop}:app", "--time", "5", "--json", "out.json"]) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert err == ""
    assert lines[0] == f"{shop}:app: 2 requests; routes left out: 1 (path parameters), 1 (no GET)"
    what = "allocs" if "objects" in counting_backend().why_not else "objects"
    assert lines[1].split() == ["per", "request", "status", what, "tasks", "layers", "most", what]
    assert all(line.split()[3].isdigit() for line in lines[2:4])
    assert [line.split()[:3] for line in lines[2:4]] == [["GET", "/health", "200"], ["GET", "/api/health", "200"]]
    # The matrix shows what two routes cost, so a line for each is enough.
    assert out.index("layers and routes: ") < out.index(f"{shop}:app GET /health no budget: ")
    assert "(endpoint)" in out
    assert "verdict" not in out
    assert lines[-1] == "-v shows the table of each request"
    log = logged()
    assert (log[0], log[-1], len(set(log))) == ("startup", "shutdown", 3)
    document = json.loads(Path("out.json").read_text())
    assert misfits(document) == []
    assert [measurement["total_us"] is not None for measurement in document["measurements"]] == [True, True]
    assert {measurement["nodeid"] for measurement in document["measurements"]} == {f"{shop}:app"}


@needs("objects")
def test_a_row_of_counts_names_the_layer_with_most_objects(shop: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["measure", f"{shop}:app", "GET /health", "--time", "2"]) == 0
    cells = capsys.readouterr().out.splitlines()[2].split()
    assert int(cells[3]) > 100
    assert cells[4:7] == ["0", "3", "ExceptionMiddleware:"]


@needs("objects")
def test_the_counts_of_the_rows_are_those_of_the_tables(shop: str) -> None:
    """The app raises audit events: a hook that the measurement adds between the two would create objects."""
    Path("audited_app.py").write_text(
        f"from {shop} import app as inner\n\n\nasync def app(scope, receive, send):\n"
        "    for _ in range(50):\n        id(scope)\n    await inner(scope, receive, send)\n"
    )
    command = [sys.executable, "-m", "pytest_mwbudget", "measure", "audited_app:app", "/health", "--time=0.5"]
    done = subprocess.run([*command, "--json=out.json"], capture_output=True, text=True, check=True)
    row = next(line.split() for line in done.stdout.splitlines() if line.startswith("GET /health"))
    (measurement,) = json.loads(Path("out.json").read_text())["measurements"]
    assert int(row[3]) == measurement["ledger"]["total"]["objects"]["count"]


def test_pytest_counts_a_request_as_the_command_does(
    shop: str, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    app = f"{shop}:create_app('health', 'private', 'events')"
    requests = "[[requests]]\nurl = '/health'\n" + "".join(
        f"[[requests]]\nurl = '/{name}'\nexpect_status = {status}\n" for name, status in EXPECTED.items()
    )
    Path("requests.toml").write_text(requests)
    monkeypatch.setattr("pytest_mwbudget.workload.host.RESPONSE_S", 0.6)
    assert main(["measure", app, "--requests=requests.toml", "--time=10", "--json=command.json"]) == 0
    options = (f"--mw-budget-app={app}", "-o", "mw_budget_requests=requests.toml", "-o", "mw_budget_tasks=5")
    written = ("--mw-budget", "--mw-budget-json=pytest.json")
    result = run_inside(pytester, f"--rootdir={tmp_path}", *written, *options)
    result.assert_outcomes(passed=2, skipped=1)
    documents = [json.loads(Path(f"{name}.json").read_text()) for name in ("command", "pytest")]
    figures = [
        [
            (each["request"], each["ledger"]["total"], [(row["name"], row["tasks"]) for row in each["layers"]])
            for each in document["measurements"]
        ]
        for document in documents
    ]
    assert figures[0] == figures[1]
    reasons = [[(each["request"], each["reason"]) for each in document["left_out"]] for document in documents]
    assert reasons[0] == reasons[1]
    assert [request["url"] for request, _ in reasons[0]] == ["/events"]


def test_requests_and_headers_of_the_command_line(shop: str, capsys: pytest.CaptureFixture[str]) -> None:
    app, header = f"{shop}:create_app('private', 'echo')", "authorization: Bearer t"
    assert main(["measure", app, "/private", "--time=10", "POST /echo", "--header", header]) == 0
    out = capsys.readouterr().out
    assert f"{app}: 2 requests\nnote: The app is what {app} returned.\n" in out
    assert [line.split()[:3] for line in out.splitlines()[3:5]] == [
        ["GET", "/private", "200"],
        ["POST", "/echo", "200"],
    ]


def test_a_single_request_has_its_table_and_pages_are_written(shop: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("jinja2")
    assert main(["measure", f"{shop}:app", "GET /health", "--time=2", "--html=mw.html", "--markdown=mw.md"]) == 0
    out = capsys.readouterr().out
    assert "\n(total)" in out
    assert "-v shows" not in out
    assert "GET /health" in Path("mw.html").read_text(encoding="utf-8")
    assert "GET /health" in Path("mw.md").read_text(encoding="utf-8")


def test_what_cannot_be_measured_is_named_and_the_rest_goes_on(
    shop: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytest_mwbudget.workload.host.RESPONSE_S", 0.6)
    app = f"{shop}:create_app('private', 'events', 'health')"
    assert main(["measure", app, "--time=10", "--json=out.json"]) == 0
    out = capsys.readouterr().out
    assert "GET /private     not measured: answered 401\n" in out
    assert "GET /events      not measured: the response did not end within 0.6 s\n" in out
    assert "GET /health no budget" in out
    left_out = json.loads(Path("out.json").read_text())["left_out"]
    assert [entry["request"]["url"] for entry in left_out] == ["/private", "/events"]
    assert left_out[0]["reason"].startswith("GET /private answered 401; nothing was measured. Correct the request")


def test_an_app_that_does_not_allow_the_host(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(measure, "Schedule", lambda: SCHEDULE)
    Path("guarded_shop.py").write_text(
        "from starlette.applications import Starlette\n"
        "from starlette.middleware.trustedhost import TrustedHostMiddleware\n"
        "from starlette.responses import Response\n"
        "from starlette.routing import Route\n"
        "routes = [Route('/health', lambda request: Response())]\n"
        "app = TrustedHostMiddleware(Starlette(routes=routes), allowed_hosts=['shop.example'])\n"
    )
    command = ["measure", "guarded_shop:app", "--time=1"]
    assert main([*command, "--json=out.json"]) == 1
    assert "GET /health  not measured: answered 400 to the host testserver\n" in capsys.readouterr().out
    (left_out,) = json.loads(Path("out.json").read_text())["left_out"]
    assert "If the app refuses this host, name another in the header host. Otherwise correct" in left_out["reason"]
    assert main([*command, "--header=host: shop.example"]) == 0
    assert "GET /health no budget" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("broken", "the app raised LookupError: no such shelf ("),
        ("leaves", "the app called sys.exit(3) ("),
    ],
)
def test_a_request_that_fails_is_status_1(
    shop: str, capsys: pytest.CaptureFixture[str], name: str, reason: str
) -> None:
    assert main(["measure", f"{shop}:create_app('{name}', 'health')", "--time=10"]) == 1
    out = capsys.readouterr().out
    assert f"not measured: {reason}" in out
    assert "GET /health no budget" in out
    assert logged()[-1] == "shutdown"


def test_the_time_is_a_limit_and_what_was_left_out_is_named(shop: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The first route takes all of the time, so its row is all there is."""
    names = [f"slow{number}" for number in range(6)]
    Path("sleeping_app.py").write_text(
        f"import {shop} as shop\n\n\nasync def slow(request):\n    await shop.asyncio.sleep(0.01)\n"
        f"    return shop.PlainTextResponse('ok')\n\n\nshop.ROUTES.update({{f'/{{name}}': slow for name in {names}}})\n"
        f"app = shop.create_app(*{names})\n"
    )
    assert main(["measure", "sleeping_app:app", "--time=0.01", "--json=out.json"]) == 0
    out = capsys.readouterr().out
    assert re.findall(r"^(GET \S+) +200", out, re.MULTILINE) == ["GET /slow0"]
    reason = "the 0.01 s of --time were used up"
    assert f"not measured, because {reason}: GET /slow1, GET /slow2, GET /slow3 and 3 more\n" in out
    assert f"only counted, because {reason}: GET /slow0\n" in out
    assert f"note: Not timed: {reason}" in out
    document = json.loads(Path("out.json").read_text())
    assert [entry["reason"] for entry in document["left_out"]] == [reason] * 6
    assert [measurement["total_us"] for measurement in document["measurements"]] == [None]


def test_a_request_that_hangs_when_the_time_is_over_is_ended(
    shop: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def clock() -> float:
        """Stand still until the request hangs: counting the first one may take more than the time."""
        return 10.0 if Path("hangs").exists() else 0.0

    monkeypatch.setattr(measure, "TimeBudget", lambda limit_s: TimeBudget(limit_s, clock))
    monkeypatch.setattr(measure, "GRACE_S", 0.1)
    Path("hanging_app.py").write_text(
        f"import asyncio\nfrom pathlib import Path\nfrom {shop} import app as inner\n\n\n"
        "async def app(scope, receive, send):\n"
        "    while scope['type'] == 'http' and scope['path'] == '/api/health':\n"
        "        Path('hangs').touch()\n"
        "        try:\n            await asyncio.sleep(60)\n"
        "        except asyncio.CancelledError:\n            return\n"
        "    await inner(scope, receive, send)\n"
    )
    assert main(["measure", "hanging_app:app", "/health", "/api/health", "--time=0.5"]) == 0
    out = capsys.readouterr().out
    assert "GET /api/health  not measured: the 0.5 s of --time were used up\n" in out


def test_every_table_is_shown_if_asked_for(shop: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["measure", f"{shop}:app", "-v", "--time", "5"]) == 0
    out = capsys.readouterr().out
    assert out.count("\n(total)") >= 2
    assert "-v shows" not in out


def test_a_broken_budget_of_the_file_is_status_1_and_the_remedies_are_those_of_the_command(
    shop: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options: set[str] = set()
    measured = measure.measure

    async def noted(app: Any, request: Any, settings: Settings, *others: Any, **named: Any) -> Any:
        options.add(settings.more_time.name)
        return await measured(app, request, settings, *others, **named)

    monkeypatch.setattr(measure, "measure", noted)
    Path("requests.toml").write_text("[[requests]]\nurl = '/health'\nus = 0.001\ntotal_us = 0.001\n")
    assert main(["measure", f"{shop}:app", "--requests", "requests.toml", "--time=2"]) == 1
    assert options == {"--time"}
    out = capsys.readouterr().out
    assert f"{shop}:app GET /health fail: " in out
    assert "--mw-budget" not in out


@pytest.mark.parametrize(("undecided", "status"), [("warn", 0), ("fail", 1)])
def test_an_undecided_budget_of_the_file_fails_if_it_says_so(shop: str, undecided: str, status: int) -> None:
    Path("requests.toml").write_text(f"[[requests]]\nurl = '/health'\nus_per_message = 1\nundecided = '{undecided}'\n")
    assert main(["measure", f"{shop}:app", "--requests", "requests.toml", "--time=2"]) == status


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{shop}:nix"], "APP is '{shop}:nix', but '{shop}' has no 'nix'."),
        (["{shop}:breaks"], "APP is '{shop}:breaks', but the factory failed with OSError: no database ("),
        (["nowhere_at_all:app"], "importing 'nowhere_at_all' failed with ModuleNotFoundError"),
        (["{shop}:app", "health"], "REQUEST is 'health'; write a method and a path"),
        (["{shop}:app", "--time=0"], "--time is '0'; give a number of seconds above 0"),
        (["{shop}:app", "--header=x"], "--header is 'x'; write for example"),
        (
            ["{shop}:app", "--header=cookie: a=1", "--header=Cookie: b=2"],
            "--header gives 'Cookie' twice; give it once with both values, for example 'cookie: a=1; b=2'",
        ),
        (["{shop}:app", "--requests=no.toml"], "--requests='no.toml' cannot be read: "),
        (["{shop}:app", "--json=/dev/null/x"], "--json='/dev/null/x' cannot be written: "),
        (["{shop}:app", "--json=x", "--markdown=x"], "--markdown='x' is the same file as --json='x'"),
    ],
)
def test_what_is_unusable_is_status_2_with_a_message(
    shop: str, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["measure", *(argument.format(shop=shop) for argument in arguments)]) == 2
    out, err = capsys.readouterr()
    assert message.format(shop=shop) in err
    assert err.startswith("error: ")
    assert out == ""


def test_an_app_that_does_not_start_is_status_2_and_shows_what_it_printed(
    shop: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("other_app.py").write_text(
        f"from {shop} import *\n\n\n@contextlib.asynccontextmanager\nasync def fails(app):\n"
        "    print('connecting')\n    raise OSError('no database')\n    yield\n\n\napp = create_app(startup=fails)\n"
    )
    assert main(["measure", "other_app:app", "/health"]) == 2
    err = capsys.readouterr().err
    assert "the app's lifespan startup failed with OSError: no database" in err
    assert "The app printed:\nconnecting" in err


def test_the_app_is_shut_down_where_nobody_reads_the_output(shop: str) -> None:
    command = [sys.executable, "-m", "pytest_mwbudget", "measure", f"{shop}:app", "/health"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(60) == 141  # what it found is not known to anybody
    assert logged() == ["startup", "shutdown"]


def test_a_shutdown_that_fails_is_told(shop: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("ending_app.py").write_text(
        f"import os\nfrom {shop} import *\n\n\n@contextlib.asynccontextmanager\nasync def ends(app):\n"
        "    yield {'word': 'ok'}\n    os._exit(0)\n\n\napp = create_app('health', startup=ends)\n"
    )
    assert main(["measure", "ending_app:app", "/health", "--time=2"]) == 0
    out = capsys.readouterr().out
    assert (
        "warning: the app's lifespan shutdown failed with LifespanError: the app's lifespan called os._exit(0)" in out
    )
    assert "GET /health no budget" in out


def test_an_interrupt_leaves_what_is_known(
    shop: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*arguments: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(measure.Measuring, "time", interrupt)
    assert main(["measure", f"{shop}:app", "/health"]) == 130
    assert re.search(r"GET /health no budget: \d requests counted", capsys.readouterr().out)
    assert logged()[-1] == "shutdown"


def test_an_interrupt_of_the_startup_is_no_traceback(shop: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("slow_app.py").write_text("raise KeyboardInterrupt\n")
    assert main(["measure", "slow_app:app"]) == 130
    assert capsys.readouterr() == ("", "")


def test_a_request_that_is_counted_and_not_timed_says_why(shop: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("limited_app.py").write_text(
        f"from {shop} import app as inner\n\ncalls = 0\n\n\nasync def app(scope, receive, send):\n"
        "    global calls\n    calls += scope['type'] == 'http'\n    if calls > 85:\n"
        "        raise LookupError('the token was used')\n    await inner(scope, receive, send)\n"
    )
    assert main(["measure", "limited_app:app", "/health"]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "note: Not timed: GET /health: call " in out
    assert "raised LookupError: the token was used" in out
    Path("requests.toml").write_text("[[requests]]\nurl = '/health'\nus = 50\n")
    sys.modules["limited_app"].calls = 0  # type: ignore[attr-defined]
    assert main(["measure", "limited_app:app", "--requests=requests.toml", "-v"]) == 1
    assert "its time was not measured" in " ".join(capsys.readouterr().out.split())


def test_what_the_app_prints_stays_out_of_the_output(shop: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("chatty_app.py").write_text(
        f"import logging\nfrom {shop} import app as inner\n\nlogging.basicConfig()\n\n\n"
        "async def app(scope, receive, send):\n    print('chat')\n    logging.warning('chat')\n"
        "    await inner(scope, receive, send)\n"
    )
    assert main(["measure", "chatty_app:app", "/health", "--time=2"]) == 0
    out, err = capsys.readouterr()
    assert "chat\n" not in out + err


def test_the_module_is_the_command_and_needs_no_pytest_configuration(shop: str) -> None:
    Path("pytest.ini").write_text("[pytest]\naddopts = --no-such-option\n")
    command = [sys.executable, "-m", "pytest_mwbudget", "measure", f"{shop}:app", "/health", "--time=0.5"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "GET /health no budget" in done.stdout
