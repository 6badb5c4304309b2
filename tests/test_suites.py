"""The plugin beside other plugins and tools: each case is a small suite, run in a separate process.

Each suite has one test within its budget and one over its budget. Verdicts and counts must be those of a run without
the other plugin, and the other plugin must still work after the measurements.
"""

from __future__ import annotations

import json
import pstats
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from .conftest import needs, required
from .readings import never, readings

pytestmark = pytest.mark.live

# Coverage and profilers are running when conftest.py is imported, so the thread of the pool has coverage's tracer.
CONFTEST = """
from concurrent.futures import ThreadPoolExecutor

import pytest

POOL = ThreadPoolExecutor(1)
POOL.submit(int).result()


@pytest.fixture
def pool():
    return POOL


@pytest.fixture
def anyio_backend():
    return "trio"


def pytest_configure(config):
    # Budgets here are so far from the truth that verdicts are sure at once; reports would have precise figures.
    from pytest_mwbudget.session.gate import SCHEDULE
    from pytest_mwbudget.timing.schedule import Schedule

    # A busy machine makes as many warm-up calls and counts as many requests as another one.
    config.stash[SCHEDULE] = Schedule(
        precision_time_s=0.3,
        failure_time_s=0.3,
        watched_time_s=0,
        brief_warm_ns=60 * 10**9,
        counting_ns=60 * 10**9,
    )
"""

SHOP = """
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route


class Version(BaseHTTPMiddleware):
    async def dispatch(self, request, call_next):
        response = await call_next(request)
        response.headers["version"] = "1"
        return response


class Spin:
    zeros = [0] * 25_000

    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        self.zeros.count(1)  # some 200 µs, without objects, and without a clock that a test could freeze
        await self.app(scope, receive, send)


async def hello(request):
    return PlainTextResponse("hello")


app = Starlette(routes=[Route("/", hello)], middleware=[Middleware(Version), Middleware(Spin)])
"""

# Functions that run only after the measurements.
LATER = """
from time import perf_counter


def work():
    end = perf_counter() + 0.1
    while perf_counter() < end:
        pass


def work_in_thread():
    return 1
"""

TESTS = """
import unittest
from datetime import date
from threading import enumerate as threads
from time import sleep

import pytest

from later import work, work_in_thread

{tests}

def test_later(pool):
    work()
    assert pool.submit(work_in_thread).result() == 1
"""

PAIR = """
{decorator}
@pytest.mark.mw_budget(us=2000, loop={loop!r})
{define} test_kept({fixtures}):
    {request}

{decorator}
@pytest.mark.mw_budget(layers={{"Spin": 20}}, loop={loop!r})
{define} test_broken({fixtures}):
    {request}
"""


def pair(
    request: str = "mw_budget.get('/')",
    decorator: str = "",
    define: str = "def",
    fixtures: str = "mw_budget",
    loop: str = "asyncio",
) -> str:
    """Return the source of a test within its budget and of a test over its budget."""
    return PAIR.format(request=request, decorator=decorator, define=define, fixtures=fixtures, loop=loop)


def async_pair(decorator: str, loop: str = "asyncio") -> str:
    """Return the source of `pair` as async tests."""
    return pair("await mw_budget.aget('/')", decorator, "async def", loop=loop)


IN_SUBTESTS = """with subtests.test("before"):
        pass
    with subtests.test("measured"):
        mw_budget.get("/")
    with subtests.test("after"):
        pass
"""

UNITTEST = """
class TestUnit(unittest.TestCase):
    @pytest.fixture(autouse=True)
    def client_of_the_app(self, mw_budget):
        self.client = mw_budget

    @pytest.mark.mw_budget(us=2000)
    def test_kept(self):
        self.client.get("/")

    @pytest.mark.mw_budget(layers={"Spin": 20})
    def test_broken(self):
        self.client.get("/")
"""

TIMED_OUT = """
@pytest.mark.timeout(0.2)
def test_own():
    sleep(30)
"""

TIMER_RUNS = """
def test_own():
    assert "pytest_timeout" in str(threads())
"""

BENCHMARK = """
def test_own(benchmark):
    benchmark(sum, (1, 2))
"""

# The app is imported on the fake file system.
FAKED = "fs.create_file('/shelf/tea'); mw_budget.get('/'); assert os.listdir('/shelf') == ['tea']"

# 40 examples, of which the first is measured.
GIVEN = """
from hypothesis import HealthCheck, given, settings, strategies
"""
EXAMPLES = """@settings(deadline=1, max_examples=40, database=None, suppress_health_check=[*HealthCheck])
@given(number=strategies.integers(0, 1000))"""

FROZEN = "mw_budget.get('/'); assert date.today().year == 2020"

# ---- checks that the other plugin still works -------------------------------------------------------------------

Works = Callable[[Path, str], bool]


def prints(*texts: str) -> Works:
    """Return a check that the run printed all of these texts."""
    return lambda folder, printed: all(text in printed for text in texts)


BY_ITS_OUTCOMES = prints()


def covered(folder: Path, printed: str) -> bool:
    """Return whether coverage saw every line, including those run after the measurements and in the pool's thread."""
    files = json.loads((folder / "coverage.json").read_text())["files"]
    return files.keys() >= {"shop.py", "later.py"} and not any(file["missing_lines"] for file in files.values())


def profiled(folder: Path, printed: str) -> bool:
    """Return whether the profiler saw the call after the measurements."""
    stats: Any = pstats.Stats(str(folder / "profile.out"))
    return ("later.py", "work") in {(Path(file).name, name) for file, _, name in stats.stats}


# ---- the cases --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Suite:
    """A case: the packages and pytest plugins that it needs, its command line, its tests and their outcomes.

    `always`: the case runs with all other tests. The other cases take minutes and run only when required.
    `slows_loop`: each step of the event loop runs Python code of the other tool, whose objects are charged to the layer
    that waits.
    """

    name: str
    packages: tuple[str, ...] = ()
    plugins: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    runner: tuple[str, ...] = ("-m", "pytest")
    environment: dict[str, str] = field(default_factory=dict)
    tests: str = pair()
    outcomes: dict[str, int] = field(default_factory=lambda: {"passed": 2, "failed": 1})
    works: Works = BY_ITS_OUTCOMES
    loop: str = "asyncio"
    slows_loop: bool = False
    always: bool = False
    python: tuple[int, int] = (3, 11)
    pytest: tuple[int, int] = (8, 2)


def coverage(core: str, *arguments: str, python: tuple[int, int] = (3, 11)) -> Suite:
    """Return a case of pytest-cov with this core of coverage."""
    return Suite(
        "".join(["cov-", core, *arguments]),
        ("pytest_cov",),
        ("pytest_cov",),
        ("--cov=shop", "--cov=later", "--cov-report=json", *arguments),
        environment={"COVERAGE_CORE": core},
        works=covered,
        always=core != "pytrace" and not arguments,
        python=python,
    )


ONE_MORE = {"passed": 3, "failed": 1}
FIXTURE_SCOPE = ("-o", "asyncio_default_fixture_loop_scope=function")
BUILT_IN_SUBTESTS = hasattr(pytest, "Subtests")  # from pytest 9 on

PLAIN = {"asyncio": Suite("plain"), "trio": Suite("plain-trio", tests=pair(loop="trio"), loop="trio")}
SUITES = [
    coverage("ctrace"),
    coverage("ctrace", "--cov-branch"),
    coverage("pytrace"),
    coverage("sysmon", python=(3, 12)),
    Suite("xdist", ("xdist",), ("xdist",), ("-n", "2", "-v"), works=prints("[gw0]", "[gw1]")),
    Suite("randomly", ("pytest_randomly",), ("randomly",), works=prints("Using --randomly-seed=")),
    Suite(
        "rerunfailures",
        ("xdist", "pytest_rerunfailures"),
        ("xdist", "rerunfailures"),  # With pytest-xdist installed, it starts a thread.
        ("--reruns", "1"),
        outcomes={"passed": 2, "failed": 1, "rerun": 1},
    ),
    Suite(
        "timeout-signal",
        ("pytest_timeout",),
        ("timeout",),
        ("--timeout=60", "--timeout-method=signal"),
        tests=pair() + TIMED_OUT,
        outcomes={"passed": 2, "failed": 2},
        works=prints(">0.2s"),
    ),
    Suite(
        "timeout-thread",
        ("pytest_timeout",),
        ("timeout",),
        ("--timeout=60", "--timeout-method=thread"),
        tests=pair() + TIMER_RUNS,
        outcomes=ONE_MORE,
    ),
    Suite("asyncio", ("pytest_asyncio",), ("asyncio",), FIXTURE_SCOPE, tests=async_pair("@pytest.mark.asyncio")),
    Suite(
        "anyio-trio",
        ("trio",),
        ("anyio",),
        tests=async_pair("@pytest.mark.anyio", "trio"),
        loop="trio",
        slows_loop=True,  # trio runs as a guest of anyio's loop.
    ),
    Suite(
        "benchmark",
        ("pytest_benchmark",),
        ("benchmark",),
        tests=pair() + BENCHMARK,
        outcomes=ONE_MORE,
        works=prints("benchmark: 1 tests"),
    ),
    Suite(
        "codspeed",
        ("pytest_benchmark", "pytest_codspeed"),
        ("benchmark", "codspeed"),  # codspeed replaces the fixture of benchmark.
        ("--codspeed", "--codspeed-warmup-time=0", "--codspeed-max-rounds=1"),
        tests=pair(decorator="@pytest.mark.benchmark") + BENCHMARK,
        outcomes={"passed": 2, "failed": 1, "deselected": 1},
        works=prints("3 benchmarked"),
    ),
    Suite(
        "freezegun",
        ("freezegun",),
        tests="import freezegun" + pair(FROZEN, "@freezegun.freeze_time('2020-02-02')"),
        slows_loop=True,  # The loop reads freezegun's clock.
    ),
    Suite(
        "freezegun-real-asyncio",
        ("freezegun",),
        tests="import freezegun" + pair(FROZEN, "@freezegun.freeze_time('2020-02-02', real_asyncio=True)"),
    ),
    Suite(
        "time-machine",
        ("time_machine",),
        tests="import time_machine" + pair(FROZEN, "@time_machine.travel('2020-02-02', tick=False)"),
    ),
    Suite(
        "hypothesis",
        ("hypothesis",),
        ("hypothesispytest",),
        ("-v", "--hypothesis-show-statistics"),
        tests=GIVEN + pair("mw_budget.get('/', headers={'n': str(number)})", EXAMPLES, fixtures="mw_budget, number"),
        works=prints("Hypothesis Statistics", "Stopped because settings.max_examples=40"),
    ),
    Suite(
        "pyfakefs",
        ("pyfakefs",),
        ("fakefs",),
        tests="import os\n" + pair(FAKED, fixtures="fs, mw_budget"),
    ),
    Suite(
        "run-parallel",
        ("pytest_run_parallel",),
        ("run-parallel",),
        ("--parallel-threads=4", "-v"),
        works=prints("PARALLEL PASSED", "[thread-unsafe]: mw-budget makes one request at a time"),
    ),
    Suite(
        "subtests",
        () if BUILT_IN_SUBTESTS else ("pytest_subtests",),
        () if BUILT_IN_SUBTESTS else ("subtests",),
        tests=pair(IN_SUBTESTS, fixtures="mw_budget, subtests"),
    ),
    Suite("unittest", tests=UNITTEST),
    Suite("cProfile", runner=("-m", "cProfile", "-o", "profile.out", "-m", "pytest"), works=profiled),
    Suite(
        "profile",
        runner=("-m", "profile", "-o", "profile.out", "-m", "pytest"),
        # On 3.11 `profile` fails, also without this plugin, if garbage collection starts between a call and its event.
        tests="import gc\ngc.disable()\n" + pair(),
        works=profiled,
        always=True,
        pytest=(8, 4),  # Before, every failing test fails with an AssertionError of `profile`.
    ),
    Suite(
        "pyinstrument",
        runner=("-m", "pyinstrument", "-r", "pstats", "-o", "profile.out", "-m", "pytest"),
        works=profiled,
    ),
    # All installed plugins with their default options.
    Suite("all", ("pytest_asyncio",), (), FIXTURE_SCOPE, environment={"PYTEST_DISABLE_PLUGIN_AUTOLOAD": ""}),
]


# ---- the runs ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def counts_alone() -> dict[str, dict[str, int | None]]:
    """The counts of runs without any other plugin, by event loop."""
    return {}


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A directory with an app and a separate lock directory, so that no test waits for other measurements."""
    monkeypatch.setenv("TMPDIR", str(pytester.mkdir("locks")))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    pytester.makeini("[pytest]\nmw_budget_app = shop:app\n")
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(shop=SHOP, later=LATER)
    return pytester


def run(project: pytest.Pytester, suite: Suite) -> pytest.RunResult:
    project.makepyfile(test_suite=TESTS.format(tests=suite.tests))
    plugins = [part for name in ("mwbudget", *suite.plugins) for part in ("-p", name)]
    options = ["--mw-budget", "--mw-budget-json=found.json", "--mw-budget-flamegraph=never"]
    with pytest.MonkeyPatch.context() as patch:
        for name, value in suite.environment.items():
            patch.setenv(name, value)
        command = [sys.executable, *suite.runner, "-W", "error", *plugins, *options, *suite.arguments]
        return project.run(*command, timeout=600)


def counted(project: pytest.Pytester, suite: Suite) -> dict[str, int | None]:
    """Return the counts of a suite's run, by test, row and quantity, after checking outcomes and verdicts."""
    result = run(project, suite)
    outcomes, printed = result.parseoutcomes(), result.stdout.str()
    outcomes.pop("subtests", None)  # pytest-subtests counts passing subtests, pytest 9 does not.
    assert outcomes == suite.outcomes
    assert re.search(r"GET /: Spin [\d.]+ µs, budget 20 µs \(1 of 1 layers over budget\)", printed)
    assert "Traceback" not in result.stderr.str()
    assert suite.works(project.path, printed)

    verdicts, counts = {}, {}
    for measurement in json.loads((project.path / "found.json").read_text())["measurements"]:
        test = measurement["nodeid"].rpartition("::")[2]
        layers = {layer["name"]: layer for layer in measurement["layers"]}
        verdicts[test] = {name: layer["verdict"] for name, layer in layers.items() if layer["verdict"] is not None}
        rows = layers | {f"({name})": measurement["ledger"][name] for name in ("outside", "endpoint", "total")}
        for name, row in rows.items():
            for quantity in ("objects", "tasks", "threads"):
                counts[f"{test} {name} {quantity}"] = row[quantity] and row[quantity]["count"]
    names = ("ServerErrorMiddleware", "Version", "Spin", "ExceptionMiddleware")
    never("fail" in verdicts["test_kept"].values() or "pass" in verdicts["test_broken"].values(), str(verdicts))
    assert verdicts == {"test_kept": dict.fromkeys(names, "pass"), "test_broken": {"Spin": "fail"}}
    return counts


@readings
@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.name)
def test_verdicts_and_counts_are_those_of_a_run_alone(
    suite: Suite, project: pytest.Pytester, counts_alone: dict[str, dict[str, int | None]]
) -> None:
    if not suite.always and not required("suites"):
        pytest.skip("tox -e suites runs it, or MWBUDGET_REQUIRE_SUITES=1")
    if sys.version_info < suite.python or pytest.version_tuple[:2] < suite.pytest:
        pytest.skip("needs Python {}.{} and pytest {}.{}".format(*suite.python, *suite.pytest))
    for package in suite.packages:
        needs(package, reason="a suite runs with it", group="suites")
    if suite.loop not in counts_alone:
        counts_alone[suite.loop] = counted(project, PLAIN[suite.loop])
    suite_counts, expected = counted(project, suite), counts_alone[suite.loop]
    both = {key: (suite_counts.get(key), expected.get(key)) for key in suite_counts | expected}
    ignored = ("Version objects", "(total) objects") if suite.slows_loop else ()
    others = {key: counts for key, counts in both.items() if counts[0] != counts[1] and not key.endswith(ignored)}
    never(bool(others), f"counts are not those of a run alone: {others}")
