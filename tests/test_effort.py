"""How many requests a test with the plugin makes to a FastAPI app, depending on which figures are read."""

from __future__ import annotations

# Imported here once, because pytester forgets the modules that an inner run imported.
import fastapi  # noqa: F401
import pytest
import starlette.middleware.base
import starlette.middleware.cors
import starlette.middleware.gzip  # noqa: F401

from .apps import Scheduled, run_inside
from .readings import readings

pytestmark = [pytest.mark.live, pytest.mark.once]

CONFTEST = """
from pathlib import Path

import pytest
from fastapi import FastAPI
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware


class AddHeader(BaseHTTPMiddleware):
    async def dispatch(self, request, call_next):
        response = await call_next(request)
        response.headers["x-added"] = "1"
        return response


@pytest.fixture
def mw_budget_app(request):
    app, calls = FastAPI(), []

    @app.get("/health")
    async def health():
        calls.append(1)
        return {"status": "ok"}

    app.add_middleware(GZipMiddleware)
    app.add_middleware(CORSMiddleware, allow_origins=["*"])
    app.add_middleware(AddHeader)
    yield app
    with Path("calls.txt").open("a") as file:
        print(len(calls), file=file)
"""
TESTS = """
import pytest

@pytest.mark.parametrize("number", range({tests}))
@pytest.mark.mw_budget({keywords})
def test_health(mw_budget, number):
    mw_budget.get("/health")
"""
# The first look takes a tenth of the time limit, so a run that stops there stops early. On a busy machine the time may
# be too short for an interval of the total, which does not matter here.
BRIEF = ["--mw-budget-max-time=1", "--mw-budget-undecided=pass"]
KEPT_WITH_ROOM = "us=20_000, total_us=100_000"
# Calls of the endpoint: 100 to warm up, 23 to find the layers and count, and about 600 for the first look. A layer of
# this app suspends, so the first look makes as many requests without probes as with probes. Some tests need more on a
# busy machine. Warming up alone makes 1000 calls when the run reports figures.
MOST_AT_FIRST_SIGHT = 800
# Warming up takes its number of calls and no less, however slow the machine is: 100 for first sight, 1000 for figures
# that somebody reads.
SCHEDULE = {"brief_warm_ns": 1_000_000_000, "warm_ns": 30_000_000_000, "precision_time_s": 0.3}
SCHEDULE |= {"profile_least_s": 0.05, "profile_samples": 10}
STOPPED = "Sampling stopped as soon as every budget was known to be kept."


class Notes:
    """A pytest plugin that keeps the notes on what a run measured. `lines` are the run's output."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.lines: pytest.LineMatcher = pytest.LineMatcher([])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.notes += [note for one in getattr(report, "mw_budget", ()) for note in one["notes"]]

    @property
    def stopped(self) -> bool:
        """Whether sampling stopped before the figures were precise."""
        return any(note.startswith(STOPPED) for note in self.notes)


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)
    pytester.makeconftest(CONFTEST)
    return pytester


def calls(project: pytest.Pytester, keywords: str, *arguments: str, tests: int = 1) -> tuple[Notes, list[int]]:
    """Run this number of tests, and return the notes and each test's calls of the endpoint."""
    project.makepyfile(TESTS.format(keywords=keywords, tests=tests))
    (project.path / "calls.txt").unlink(missing_ok=True)
    # Without the cache the speed of the machine is unknown, as in a first run.
    notes = Notes()
    result = run_inside(project, "--mw-budget", *arguments, plugins=[Scheduled(**SCHEDULE), notes])
    result.assert_outcomes(passed=tests)
    notes.lines = result.stdout
    return notes, [int(line) for line in (project.path / "calls.txt").read_text().split()]


@readings
def test_ten_requests_with_room_in_their_budgets_are_done_at_first_sight(project: pytest.Pytester) -> None:
    notes, made = calls(project, KEPT_WITH_ROOM, tests=10)
    assert notes.stopped
    assert sorted(made)[4] < MOST_AT_FIRST_SIGHT


@readings
def test_figures_that_nobody_reads_take_no_time_however_little_there_is(project: pytest.Pytester) -> None:
    notes, _ = calls(project, KEPT_WITH_ROOM, *BRIEF)
    assert notes.stopped


@readings
@pytest.mark.parametrize(
    ("keywords", "arguments"),
    [
        (KEPT_WITH_ROOM, ["-v"]),
        (KEPT_WITH_ROOM, ["--mw-budget-json=out.json"]),
        (KEPT_WITH_ROOM, ["--mw-budget-markdown=out.md"]),
        (KEPT_WITH_ROOM, ["--mw-budget-html=out.html"]),
        (KEPT_WITH_ROOM, ["--mw-budget-benchmark-json=out.json"]),
        (KEPT_WITH_ROOM, ["--mw-budget-flamegraph=always"]),
        ("", []),
    ],
)
def test_figures_that_somebody_reads_take_their_time(
    keywords: str, arguments: list[str], project: pytest.Pytester
) -> None:
    notes, (made,) = calls(project, keywords, *BRIEF, *arguments)
    assert not notes.stopped
    assert made > MOST_AT_FIRST_SIGHT


@pytest.mark.parametrize("verbosity", ["-q", "-v"])
@readings  # on a busy machine no layer is certainly the costliest
def test_a_figure_is_shown_with_its_interval(verbosity: str, project: pytest.Pytester) -> None:
    notes, _ = calls(project, KEPT_WITH_ROOM, verbosity)
    quiet = "*GET /health pass: * (* … *) µs, costliest layer AddHeader: * (* … *) µs"
    notes.lines.fnmatch_lines([quiet if verbosity == "-q" else "AddHeader * … *  20000  pass"])
