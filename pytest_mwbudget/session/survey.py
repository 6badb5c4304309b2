"""A survey: every test of a suite is a workload, and each distinct request of the run is measured once.

The survey must not change what a test comes to. Where a test fails whose requests were recorded, it runs again without,
and the second run counts.
"""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, TypeAlias

import pytest
from _pytest.runner import runtestprotocol

from ..asgi import loops
from ..config.settings import Settings, merge
from ..errors import tagged
from ..interpreter.clocks import perf_counter_ns
from ..model.estimate import Seconds
from ..model.remedies import TimeOption
from ..model.results import RepeatedTest, RequestLine, SurveyRun, Turn
from ..recording.recorder import Recorded
from ..timing.run import NS_PER_S, Environment
from .claims import CLAIMS, Claims, Sums
from .configuration import configured, survey_time_s, surveying
from .gate import environment_of, turns_of
from .own_requests import OwnRequests, identity_of

# A request is timed for at most this long, which gives good intervals, and for at least this long or not at all.
MOST_S, LEAST_S = 2.0, 0.15
# How long a request waits for its turn: as long as a few other processes take.
WAIT_S: Seconds = 10.0
# Before anything is known, this many requests are expected in this many tests.
EXPECTED_REQUESTS, EXPECTED_TESTS = 3, 10
NOT_SEARCHED = "a survey searches the heap of the suite for them only if there is a budget of retained objects"
# The share of a request's time for warming up.
WARM_SHARE = 0.2
# What is asked in this many calls which layers it enters; a request with the same answer may enter others each time.
LOOKS = 3
# The share of a test's own time limit that its measurements may take, and again that each may wait.
LIMIT_SHARE = 0.25
# What gives a request without a budget more time.
IN_A_TEST = TimeOption("a marked test with max_time")
# The longest text of a cause.
CAUSE = 300

# Key of the survey in what a worker of pytest-xdist is told, and in what it tells at its end.
SHARED = "mw_budget_survey"
Told: TypeAlias = dict[str, Any]


def configure(config: pytest.Config) -> None:
    """Register the survey if the command line asks for one. Raises UsageError for a time that cannot be used."""
    if surveying(config) and not config.pluginmanager.has_plugin(Survey.NAME):
        config.pluginmanager.register(Survey(config), Survey.NAME)


# ---- one test -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Plan:
    """How long to time a request: for `seconds`, or not at all below LEAST_S.

    `left_s` is left of the survey. `wait_s` is how long to wait for a turn.
    """

    seconds: Seconds
    left_s: Seconds
    wait_s: Seconds = WAIT_S

    @property
    def timed(self) -> bool:
        """Whether there is time for more than counts."""
        return self.seconds >= LEAST_S

    def settings(self, settings: Settings) -> Settings:
        """Return the settings for the time. A budget of time gets more, because a failure needs patience."""
        if settings.budgets.bound_time and self._patient(settings):
            return settings
        return replace(
            settings,
            budgets=settings.budgets.of_counts,
            max_time_s=max(self.seconds, LEAST_S),
            timed=self.timed,
            more_time=IN_A_TEST,
        )

    def unjudged(self, settings: Settings) -> str | None:
        """Say that budgets of time are not judged, None if they are or there are none."""
        if not settings.budgets.bound_time or self._patient(settings):
            return None
        return tagged("Not judged by its budgets of time: the survey had little time left.", "survey-time")

    def _patient(self, settings: Settings) -> bool:
        return self.timed and self.left_s >= settings.max_time_s

    def environment(self, environment: Environment) -> Environment:
        """Return the environment for the time, with less warming up."""
        schedule = environment.schedule
        brief = replace(
            schedule,
            warm_ns=min(schedule.warm_ns, round(WARM_SHARE * self.seconds * NS_PER_S)),
            precision_time_s=min(schedule.precision_time_s, self.seconds),
        )
        return replace(environment, precise=True, schedule=brief, progress=lambda share: None)


class Waiting:
    """Waits for the turns of measurements, for at most `most_s` in all, which is no time of the survey.

    A suite beside another run that measures would otherwise wait at each request.
    """

    def __init__(self, turns: Callable[[Seconds], AbstractContextManager[Turn]], most_s: Seconds) -> None:
        self.usual = turns
        self.most_s = most_s
        self.waited_s: Seconds = 0.0

    @contextmanager
    def turns(self, wait_s: Seconds) -> Iterator[Turn]:
        """Wait for a turn."""
        begin = perf_counter_ns()
        with self.usual(max(0.0, min(wait_s, self.most_s - self.waited_s))) as turn:
            self.waited_s += (perf_counter_ns() - begin) / NS_PER_S
            yield turn


@dataclass
class SurveyedRequests(OwnRequests):
    """Measures the requests of one test that nobody in the run has measured yet.

    `plan` says how long to time the next request, or why it is not measured. `waiting` waits for turns. `ended` is told
    what an attempt took.
    """

    plan: Callable[[Recorded], Plan | str | None] = field(kw_only=True)
    waiting: Waiting = field(kw_only=True)
    ended: Callable[[Sums], None] = field(kw_only=True)

    async def _measured(self, request: Recorded) -> None:
        with loops.unwatched():
            plan = self.plan(request)
        if plan is None:
            return
        if isinstance(plan, str):
            self._leave_out(RequestLine(request.caller.template.line.method, request.route), plan)
            return
        usual, known = self.current, len(self.results)
        environment, waited_s = self.environment, self.waiting.waited_s
        turns = partial(self.waiting.turns, plan.wait_s)
        self.environment = replace(plan.environment(environment), turns=turns, uncounted=_uncounted(self.settings))
        self.current = lambda: plan.settings(usual())
        begin = perf_counter_ns()
        try:
            with _small_heap() if self.environment.uncounted else nullcontext():
                await super()._measured(request)
        finally:
            self.current, self.environment = usual, environment
            note = plan.unjudged(usual())
            self.results[known:] = [
                replace(result, surveyed=True, notes=(*result.notes, *([note] if note else [])))
                for result in self.results[known:]
            ]
            waited_s = self.waiting.waited_s - waited_s
            with loops.unwatched():
                seconds, measured = (perf_counter_ns() - begin) / NS_PER_S - waited_s, len(self.results) > known
                timing = plan.seconds if measured and plan.timed else 0.0
                self.ended(Sums(seconds, min(timing, seconds), int(measured)))

    def _is_new(self, request: Recorded, entered: tuple[str, ...]) -> bool:
        assert self.claims is not None
        with loops.unwatched():
            return self.claims.claim(identity_of(request, entered))


@contextmanager
def _small_heap() -> Iterator[None]:
    """Hide what exists before the block from garbage collections and from the search for retained objects in it.

    In a suite of 3,800 tests these took seven eighths of the time of a measurement.
    """
    if gc.get_freeze_count():  # the app has frozen objects, which must stay so
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


# ---- the run ------------------------------------------------------------------------------------------------------


class Survey:
    """The hooks of a survey, and what it found in this process and in the workers of pytest-xdist."""

    NAME = "mw-budget-survey"

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.limit_s: Seconds = survey_time_s(config)
        self.settings = replace(merge([], configured(config)), place="configuration")
        self.folder: Path | None = None
        shared = getattr(config, "workerinput", {}).get(SHARED)
        self.claims = config.stash[CLAIMS] = Claims(Path(shared) if shared else None)
        self.waiting = Waiting(turns_of(config).measuring, self.limit_s)
        self.tests = 0
        self.measurements: list[dict[str, Any]] = []
        self.left_out: list[dict[str, Any]] = []
        self.repeated: list[RepeatedTest] = []
        self.unknown_clients: set[str] = set()
        self._spent_in_test_s: Seconds = 0.0
        self._unrecorded: set[str] = set()
        self._looked: dict[str, int] = {}

    def run(self) -> SurveyRun:
        """Return what the whole run has spent."""
        sums = self.claims.sums()
        unknown = tuple(sorted(self.unknown_clients))
        return SurveyRun(sums.seconds, self.limit_s, sums.tests, tuple(self.repeated), unknown)

    # ---- time -------------------------------------------------------------------------------------------------------

    def _plan(self, request: Recorded, item: pytest.Item) -> Plan | str | None:
        """Return how long to time a request, why it is not measured, or None if the survey knows it."""
        known = identity_of(request)
        if self._looked.get(known, 0) >= LOOKS:
            return None
        sums = self.claims.sums()
        if sums.seconds >= self.limit_s:
            over = f"the {self.limit_s:g} s of the survey were over; --mw-budget-survey-time gives it more"
            return over if self.claims.claim(f"named {known}") else None
        left_s = self.limit_s - sums.seconds
        share_s = share_of(left_s, sums, self.tests)
        limit_s, wait_s = time_limit_s(item), WAIT_S
        if limit_s is not None:
            wait_s = min(wait_s, LIMIT_SHARE * limit_s)
            room_s = LIMIT_SHARE * limit_s - self._spent_in_test_s
            if room_s < LEAST_S:
                return f"the test's time limit of {limit_s:g} s leaves no time to measure it"
            share_s = min(share_s, room_s)
        self._looked[known] = self._looked.get(known, 0) + 1
        self.claims.claim(f"named {known}")
        return Plan(share_s, left_s, wait_s)

    def _ended(self, spent: Sums) -> None:
        self._spent_in_test_s += spent.seconds
        self.claims.add(spent)

    # ---- tests ------------------------------------------------------------------------------------------------------

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Note how many tests there are."""
        self.tests = len(session.items)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        """Run a test, and run it again without recording if it fails; only the last run is reported."""
        self._spent_in_test_s = 0.0
        try:
            if not self._may_record(item) or _repeated_by_others(item):
                return None
            item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
            for report in self._reports(item, nextitem):
                item.ihook.pytest_runtest_logreport(report=report)
            item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
            return True
        finally:
            self.claims.add(Sums(tests=1))

    def _reports(self, item: pytest.Item, nextitem: pytest.Item | None) -> list[pytest.TestReport]:
        properties = list(item.user_properties)
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        failed = next((report for report in reports if report.failed), None)
        if failed is None or item.nodeid not in self._unrecorded:
            return reports
        item.user_properties[:] = properties
        item._report_sections.clear()
        again = runtestprotocol(item, log=False, nextitem=nextitem)
        if not any(report.failed for report in again):
            self.repeated.append(RepeatedTest(item.nodeid, _cause(failed)))
        return again

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """Record the requests of a test."""
        if not self._may_record(item) or item.nodeid in self._unrecorded:
            return (yield)
        requests = self._requests_of(item)
        try:
            with requests.recording():
                return (yield)
        finally:
            if requests.tried:
                # If the test fails now or in its teardown, the next run of it is its own.
                self._unrecorded.add(item.nodeid)
            self._keep(item, requests)

    def _requests_of(self, item: pytest.Item) -> SurveyedRequests:
        return SurveyedRequests(
            self.settings,
            environment_of(self.config),
            lambda number: None,
            lambda: self.settings,
            lambda: True,
            self.claims,
            plan=lambda request: self._plan(request, item),
            waiting=self.waiting,
            ended=self._ended,
        )

    def _may_record(self, item: pytest.Item) -> bool:
        """Return whether a test is a workload: it is not marked, and reports nothing before its end."""
        return item.get_closest_marker("mw_budget") is None and not _has_subtests(item)

    def _keep(self, item: pytest.Item, requests: SurveyedRequests) -> None:
        from ..report.json import left_out_to_json, to_json

        self.measurements += [to_json(result, item.nodeid) for result in requests.results]
        for one in requests.left_out:
            if self.claims.claim(repr(("left out", str(one.request), one.reason))):
                self.left_out.append(left_out_to_json(item.nodeid, one.request, one.reason))
        self.unknown_clients.update(requests.unknown_clients)

    # ---- workers of pytest-xdist ------------------------------------------------------------------------------------

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tell a worker the folder of the run."""
        if self.folder is None:
            self.folder = Path(mkdtemp(prefix="pytest-mwbudget-survey-"))
            self.claims.folder = self.folder
        node.workerinput[SHARED] = str(self.folder)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """In a worker, tell what it found."""
        output: Told | None = getattr(self.config, "workeroutput", None)
        if output is not None:
            output[SHARED] = {
                "measurements": self.measurements,
                "left_out": self.left_out,
                "repeated": [asdict(one) for one in self.repeated],
                "unknown_clients": sorted(self.unknown_clients),
            }

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """Take what a worker found. A worker that crashed tells nothing."""
        told: Told = getattr(node, "workeroutput", {}).get(SHARED, {})
        self.measurements += told.get("measurements", ())
        self.left_out += told.get("left_out", ())
        self.repeated += [RepeatedTest(**one) for one in told.get("repeated", ())]
        self.unknown_clients.update(told.get("unknown_clients", ()))

    def pytest_unconfigure(self) -> None:
        """Remove the folder of the run."""
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


def share_of(left_s: Seconds, sums: Sums, tests: int) -> Seconds:
    """Return how long to time the next request: the time that is left, divided by the requests that are expected.

    As many are expected in each test as in the tests before. What a request takes besides, for finding its layers and
    counting, is subtracted. At most MOST_S.
    """
    rate = (sums.requests + EXPECTED_REQUESTS) / (sums.tests + EXPECTED_TESTS)
    expected = 1 + max(0, tests - sums.tests - 1) * rate
    besides_s = (sums.seconds - sums.timing) / max(1, sums.requests)
    return max(0.0, min(MOST_S, left_s / expected - besides_s))


def _uncounted(settings: Settings) -> dict[str, str]:
    """Return why retained objects are not counted, unless a budget needs them."""
    return {} if "retained" in settings.budgets.quantities else {"retained": NOT_SEARCHED}


# ---- what a test is -------------------------------------------------------------------------------------------------


def _has_subtests(item: pytest.Item) -> bool:
    """Return whether a test may report subtests while it runs: a run of it cannot be taken back then."""
    code = getattr(getattr(item, "function", None), "__code__", None)
    return "subtests" in getattr(item, "fixturenames", ()) or "subTest" in getattr(code, "co_names", ())


def _repeated_by_others(item: pytest.Item) -> bool:
    """Return whether pytest-rerunfailures repeats the test if it fails: the second run is not recorded then either."""
    plugin = item.config.pluginmanager.getplugin("rerunfailures")
    reruns = getattr(plugin, "get_reruns_count", None)
    return bool(reruns and reruns(item))


def time_limit_s(item: pytest.Item) -> Seconds | None:
    """Return the time limit that pytest-timeout sets the test, None without one."""
    if not item.config.pluginmanager.has_plugin("timeout"):
        return None
    marker = item.get_closest_marker("timeout")
    said = [*(marker.args[:1] if marker else ()), marker.kwargs.get("timeout") if marker else None]
    said += [item.config.getoption("timeout", None), os.environ.get("PYTEST_TIMEOUT")]
    with suppress(ValueError):  # the key is unknown
        said.append(item.config.getini("timeout"))
    for value in said:
        with suppress(TypeError, ValueError):
            return float(value) or None
    return None


def _cause(report: pytest.TestReport) -> str:
    """Return the first line of a failure."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = str(getattr(crash, "message", None) or report.longrepr or "")
    return (text.strip().splitlines() or ["no message"])[0][:CAUSE]
