"""A survey: every test of a suite is a workload, and each distinct request of the run is measured once.

The survey must not change what a test comes to. Where a test fails whose requests were recorded, it runs again without,
and the second run counts.
"""

from __future__ import annotations

import gc
import shutil
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, TypeAlias

import pytest
from _pytest.runner import runtestprotocol

from ..asgi import loops
from ..asgi.naming import names_held
from ..config.budgets import Budgets
from ..config.settings import Settings, merge
from ..errors import tagged
from ..model.estimate import Seconds
from ..model.results import RepeatedTest, RequestLine, Result, SurveyRun, Turn
from ..model.stack import Layer
from ..recording.recorder import Recorded
from ..workload.time_budget import LEAST_S, WARM_SHARE, TimeBudget
from .claims import CLAIMS, Claims, Sums
from .configuration import configured, plugin_of, survey_time_s, surveying, test_id, time_limit_s
from .gate import environment_of, measurable, turns_of
from .requests.examples import MOST_REQUESTS, has_examples
from .requests.names import UnmatchedNames
from .requests.own import OwnRequests, identity_of
from .survey_time import UNJUDGED, WAIT_S, Plan, plan_of

NOT_SEARCHED = "a survey searches the heap of the suite for them only if there is a budget of retained objects"
# The layers of a request are looked for until this many in a row like it have entered known layers: a login or a cache
# may change them.
LOOKS = 3
# The share of a test's own time limit that its measurements may take, and again that each may wait.
LIMIT_SHARE = 0.25
# How to measure what there was no time for.
MORE_TIME = "--mw-budget-survey-time gives it more"
# The longest text of a cause.
CAUSE = 300

# Key of the survey in what a worker of pytest-xdist is told, and in the reports with which it tells what it found.
SHARED = "mw_budget_survey"
Account: TypeAlias = dict[str, Any]


def configure(config: pytest.Config) -> None:
    """Register the survey if the command line asks for one. Raises UsageError for a time that cannot be used."""
    if surveying(config) and not config.pluginmanager.has_plugin(Survey.NAME):
        config.pluginmanager.register(Survey(config), Survey.NAME)


# ---- one test -----------------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class SurveyedRequests(OwnRequests):
    """Measures the requests of one test that nobody in the run has measured yet.

    `plan` says how long to time the next request, or why it is not measured. `turns` gives the turns of measurements.
    `ended` is told what an attempt took.
    """

    plan: Callable[[Recorded], Plan | str | None]
    budget: TimeBudget
    turns: Callable[[Seconds], AbstractContextManager[Turn]]
    ended: Callable[[Sums], None]
    current_plan: Plan | None = None
    current_notes: Sequence[str] = ()

    async def _measured(self, request: Recorded) -> None:
        if self.examples and len(self.results) >= MOST_REQUESTS:
            return
        with loops.unwatched():
            plan = self.plan(request)
        if plan is None:
            return
        if isinstance(plan, str):
            self.leave_out(RequestLine(request.caller.template.line.method, request.route), plan)
            return
        known, environment, spent_s = len(self.results), self.environment, self.budget.spent_s
        turn = partial(self.budget.turn, self.turns, plan.wait_s)
        uncounted = {} if "retained" in self.settings.budgets.quantities else {"retained": NOT_SEARCHED}
        self.environment = replace(plan.environment(environment), turns=turn, uncounted=uncounted)
        self.current_plan, self.current_notes = plan, []
        try:
            with _small_heap() if uncounted else nullcontext():
                await super()._measured(request)
        finally:
            plan, self.environment = self.current_plan, environment
            self.results[known:] = [
                replace(result, surveyed=True, notes=(*result.notes, *self.current_notes))
                for result in self.results[known:]
            ]
            with loops.unwatched():
                seconds, measured = self.budget.spent_s - spent_s, len(self.results) > known
                self.ended(Sums(seconds, min(seconds, _timing_s(self.results[known:])), int(measured)))

    def _is_new(self, request: Recorded, entered: tuple[str, ...]) -> bool:
        assert self.claims is not None
        with loops.unwatched():
            return self.claims.claim(identity_of(request, entered))

    def _settings_of(self, settings: Settings, layers: Sequence[Layer]) -> Settings:
        """Return the settings for the time that the request gets, which depends on whether its stack is new."""
        assert self.claims is not None
        assert self.current_plan is not None
        stack = tuple(layer.qualname for layer in layers if layer.entered)
        with loops.unwatched():
            new = self.current_plan.of_stack(new=True).timed and self.claims.claim(repr(("stack", *stack)))
        self.current_plan = self.current_plan.of_stack(new=new)
        note = self.current_plan.unjudged(settings)
        self.current_notes = [note] if note else []
        return self.current_plan.settings(settings)


def _timing_s(results: Sequence[Result]) -> Seconds:
    """Return how long warming up and sampling took."""
    return sum(result.effort.seconds / (1 - WARM_SHARE) for result in results if result.effort is not None)


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
        self.settings = replace(merge([], configured(config)), place="configuration")
        self.folder: Path | None = None
        shared = getattr(config, "workerinput", {}).get(SHARED)
        self.claims = config.stash[CLAIMS] = Claims(Path(shared) if shared else None)
        self.budget = TimeBudget(survey_time_s(config))
        self.tests = 0
        self.measurements: list[dict[str, Any]] = []
        self.left_out: list[dict[str, Any]] = []
        self.repeated: list[RepeatedTest] = []
        self.unknown_clients: set[str] = set()
        self.unmatched = UnmatchedNames()
        self._spent_in_test_s: Seconds = 0.0
        self._unrecorded: set[str] = set()
        # For requests that are alike: how many in a row have entered layers that were known.
        self._alike: dict[tuple[str, ...], int] = {}
        self._latest: tuple[str, ...] = ()
        self._unexamined = 0
        self._timer: tuple[pytest.Item, Any] | None = None

    def judged(self, results: Sequence[Result]) -> tuple[bool, list[str]]:
        """Return whether the run fails for what the survey measured, and what its tables do not say of that.

        A name that matches nothing is only told: a marked test may make the request that has it, or one that was not
        selected.
        """
        undecided = [*self._undecided(results)]
        unmatched = self.unmatched.messages("no request of the survey has")
        fails = bool(undecided) or any(result.verdict == "fail" for result in results)
        return fails, [*undecided, *(tagged(text, "layer-name") for text in unmatched)]

    def _undecided(self, results: Sequence[Result]) -> Iterator[str]:
        """Say that requests without a verdict fail the run, and why there is none."""
        from ..report.view import view
        from ..storage import codec

        whys: dict[str, str] = {}
        for result in results:
            if result.verdict == "undecided" and self.settings.fails(result):
                sentences = [finding.sentence for finding in view(result).undecided]
                uncountable = (sentence for sentence in sentences if sentence.endswith("[uncountable]"))
                whys[result.label] = next(uncountable, sentences[0])
        if self.settings.when_undecided == "fail":
            whys |= {result.label: UNJUDGED for result in results if UNJUDGED in result.notes}
            if self.settings.budgets != Budgets():
                late = (codec.left_out(each) for each in self.left_out)
                whys |= {str(each.request): each.reason for each in late if each.reason.endswith(MORE_TIME)}
        for label, why in [*whys.items()][:1]:
            number = "1 request is" if len(whys) == 1 else f"{len(whys)} requests are"
            yield tagged(f"{number} undecided, which fails the run; {label}: {why}", "survey-budget")

    def run(self) -> SurveyRun:
        """Return what the whole run has spent."""
        sums = self.claims.sums()
        unknown = tuple(sorted(self.unknown_clients))
        return SurveyRun(sums.seconds, self.budget.limit_s, sums.tests, tuple(self.repeated), unknown, sums.unexamined)

    # ---- time -------------------------------------------------------------------------------------------------------

    def _plan(self, request: Recorded, item: pytest.Item) -> Plan | str | None:
        """Return how long to time a request, why it is not measured, or None if the survey knows it."""
        known = identity_of(request)
        # Many tests make an app of the same class, each with other layers.
        alike = self._latest = (known, *names_held(request.caller.app))
        if self._alike.get(alike, 0) >= LOOKS:
            self._unexamined += 1
            return None
        sums = self.claims.sums()
        if sums.seconds >= self.budget.limit_s:
            over = f"the {self.budget.limit_s:g} s of the survey were over; {MORE_TIME}"
            return over if self.claims.claim(f"named {known}") else None
        plan, limit_s = plan_of(self.budget.limit_s, sums, self.tests), time_limit_s(item)
        if limit_s is not None:
            room_s = LIMIT_SHARE * limit_s - self._spent_in_test_s
            if room_s < LEAST_S:
                return f"the test's time limit of {limit_s:g} s leaves no time to measure it"
            plan = replace(plan.within(room_s), wait_s=min(WAIT_S, LIMIT_SHARE * limit_s))
        self._alike[alike] = self._alike.get(alike, 0) + 1
        self.claims.claim(f"named {known}")
        return plan

    def _ended(self, spent: Sums) -> None:
        self._spent_in_test_s += spent.seconds
        self.claims.add(spent)
        if spent.requests:
            self._alike[self._latest] = 1

    # ---- tests ------------------------------------------------------------------------------------------------------

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Note how many tests there are."""
        self.tests = len(session.items)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        """Run a test, and run it again without recording if it fails; only the last run is reported."""
        self._spent_in_test_s, self._unexamined = 0.0, 0
        try:
            if not self._may_record(item) or _repeated_by_others(item):
                return None
            item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
            for report in self._reports(item, nextitem):
                item.ihook.pytest_runtest_logreport(report=report)
            item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
            return True
        finally:
            self.claims.add(Sums(tests=1, unexamined=self._unexamined))

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_timeout_set_timer(self, item: pytest.Item, settings: Any) -> None:
        """Note with which settings pytest-timeout has started the timer of a test."""
        self._timer = (item, settings)

    def _restart_timer(self, item: pytest.Item) -> None:
        """Give the second run of a test its whole time limit: pytest-timeout starts one timer for both runs."""
        if self._timer is None or self._timer[0] is not item:
            return
        settings = self._timer[1]
        if not settings.func_only:
            self.config.hook.pytest_timeout_cancel_timer(item=item)
            self.config.hook.pytest_timeout_set_timer(item=item, settings=settings)

    def _reports(self, item: pytest.Item, nextitem: pytest.Item | None) -> list[pytest.TestReport]:
        properties, markers = list(item.user_properties), list(item.own_markers)
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        failed = next((report for report in reports if report.failed), None)
        if failed is None or item.nodeid not in self._unrecorded:
            return reports
        item.user_properties[:] = properties
        item.own_markers[:] = markers  # without those that the test added
        item._report_sections.clear()
        self._restart_timer(item)
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
            with requests.recording(), measurable(item):
                return (yield)
        finally:
            if requests.tried:
                # If the test fails now or in its teardown, the next run of it is its own.
                self._unrecorded.add(item.nodeid)
            self._keep(item, requests)

    def _requests_of(self, item: pytest.Item) -> SurveyedRequests:
        return SurveyedRequests(
            settings=self.settings,
            environment=environment_of(self.config),
            publisher=lambda number: None,
            current=lambda: self.settings,
            # A test that is marked while it runs is judged from then on.
            active=lambda: self._may_record(item),
            claims=self.claims,
            examples=has_examples(item),
            plan=lambda request: self._plan(request, item),
            budget=self.budget,
            turns=turns_of(self.config).measuring,
            ended=self._ended,
        )

    def _may_record(self, item: pytest.Item) -> bool:
        """Return whether a test is a workload: it is not marked, and reports nothing before its end."""
        return item.get_closest_marker("mw_budget") is None and not _has_subtests(item)

    def _keep(self, item: pytest.Item, requests: SurveyedRequests) -> None:
        from ..model.measured_run import LeftOut
        from ..storage.codec import RECORDS, measurement

        self.measurements += [measurement(test_id(item), result) for result in requests.results]
        for left_out in requests.left_out:
            if self.claims.claim(repr(("left out", str(left_out.request), left_out.reason))):
                self.left_out.append(RECORDS.plain(LeftOut(test_id(item), left_out.request, left_out.reason)))
        self.unknown_clients.update(requests.unknown_clients)
        self.unmatched.take(requests.unmatched)

    # ---- workers of pytest-xdist ------------------------------------------------------------------------------------

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tell a worker the folder of the run."""
        if self.folder is None:
            self.folder = Path(mkdtemp(prefix="pytest-mwbudget-survey-"))
            self.claims.folder = self.folder
        node.workerinput[SHARED] = str(self.folder)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Tell what a worker has found with each report: a worker that crashes loses only what its last test found."""
        if hasattr(self.config, "workerinput"):
            setattr(report, SHARED, self._fresh())
        else:
            self._take(getattr(report, SHARED, {}))

    def _fresh(self) -> Account:
        """Return what has not been told yet, as plain data."""
        fresh = {
            "measurements": self.measurements,
            "left_out": self.left_out,
            "repeated": [asdict(test) for test in self.repeated],
            "unknown_clients": sorted(self.unknown_clients),
            "unmatched": self.unmatched.plain(),
        }
        self.measurements, self.left_out, self.repeated, self.unknown_clients = [], [], [], set()
        self.unmatched = UnmatchedNames()
        return {name: found for name, found in fresh.items() if found}

    def _take(self, fresh: Account) -> None:
        self.measurements += fresh.get("measurements", ())
        self.left_out += fresh.get("left_out", ())
        self.repeated += [RepeatedTest(**test) for test in fresh.get("repeated", ())]
        self.unknown_clients.update(fresh.get("unknown_clients", ()))
        if "unmatched" in fresh:
            self.unmatched.take(UnmatchedNames.of_plain(fresh["unmatched"]))

    def pytest_unconfigure(self) -> None:
        """Remove the folder of the run."""
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


# ---- what a test is -------------------------------------------------------------------------------------------------


def _has_subtests(item: pytest.Item) -> bool:
    """Return whether a test may report subtests while it runs: a run of it cannot be taken back then."""
    code = getattr(getattr(item, "function", None), "__code__", None)
    return "subtests" in getattr(item, "fixturenames", ()) or "subTest" in getattr(code, "co_names", ())


def _repeated_by_others(item: pytest.Item) -> bool:
    """Return whether pytest-rerunfailures repeats the test if it fails: the second run is not recorded then either."""
    plugin = plugin_of(item.config, "pytest_rerunfailures")
    reruns = getattr(plugin, "get_reruns_count", None)
    return bool(reruns and reruns(item))


def _cause(report: pytest.TestReport) -> str:
    """Return the first line of a failure."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = str(getattr(crash, "message", None) or report.longrepr or "")
    return (text.strip().splitlines() or ["no message"])[0][:CAUSE]
