"""The hooks of tests that use the plugin: their client, explained errors, and when they are judged."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from ..config.settings import Settings, merge
from ..errors import MwBudgetError, SettingError, report_of
from ..interpreter.data_stack import with_room
from .claims import CLAIMS
from .configuration import (
    CHANGED,
    check_flamegraphs,
    check_survey,
    configured,
    enforced,
    figures_read,
    plugin_folder,
    saves_read,
    settings_of,
    surveying,
    test_id,
    time_limit_s,
)
from .enforcing import enforce, require_request
from .limits.of_tests import configure as configure_limits
from .limits.of_tests import rechecked
from .markers import note_start
from .progress import Progress
from .requests.examples import has_examples, without_deadline
from .tracebacks import Tracebacks, entered, raise_at

if TYPE_CHECKING:
    from ..timing.host_speed import Machine
    from ..timing.looks import Environment
    from ..timing.schedule import Schedule
    from .enforcing import Client
    from .profiles import Publisher
    from .requests.client import MwBudget
    from .requests.own import OwnRequests
    from .turns import Turns

# What a plugin puts here takes the place of the usual schedule: tests of this package have a quick schedule.
SCHEDULE: pytest.StashKey[Schedule] = pytest.StashKey()
# The same for the speed of the machine as earlier runs saw it.
MACHINE: pytest.StashKey[Machine] = pytest.StashKey()
# What measures the requests of a test: the fixture, or for a test without it what records the test's own clients.
_client: pytest.StashKey[Client] = pytest.StashKey()
_turns: pytest.StashKey[Turns] = pytest.StashKey()


def configure(config: pytest.Config) -> None:
    """Check the command line and the configuration; in a run that measures, register the hooks."""
    try:
        merge([], configured(config))
        check_flamegraphs(config)
        check_survey(config)
        configure_limits(config)
    except SettingError as error:
        raise pytest.UsageError(report_of(error)) from None
    if enforced(config):
        take_part(config)


def take_part(config: pytest.Config) -> None:
    """Register the hooks that run with every test, unless they are."""
    from .remembered_speed import Recall

    for hooks in (Gate(), Recall(), Tracebacks(_concerned)):
        if not config.pluginmanager.has_plugin(hooks.NAME):
            config.pluginmanager.register(hooks, hooks.NAME)
    if enforced(config) and _turns not in config.stash:
        from .turns import TakesTurns, Turns

        alone, waiting = not hasattr(config, "workerinput"), Progress(config).waiting
        config.stash[_turns] = Turns(alone=alone, on_wait=waiting)
        config.pluginmanager.register(TakesTurns(config.stash[_turns], _times), TakesTurns.NAME)


def prepare(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    """Import and read what the tests of this run need, in the process that runs them, before the first test.

    While a test runs, its file system may be fake, and a module that is imported then would work on it.
    """
    from . import profiles  # noqa: F401
    from .requests import client, hosted  # noqa: F401

    if enforced(config):
        from ..counting.backend import counting_backend
        from ..interpreter.internals import thread_tools
        from ..report import flamegraph, junit, terminal  # noqa: F401
        from ..storage import codec  # noqa: F401
        from . import captured_output  # noqa: F401
        from .requests import own  # noqa: F401

        thread_tools()
        counting_backend()
        _shared_machine(config)
    if hasattr(config.option, "parallel_threads"):
        _keep_single_threaded(config, items)


def _keep_single_threaded(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    """Have pytest-run-parallel run a test in one thread if one request at a time is made for it."""
    for item in items:
        measured = surveying(config) or (enforced(config) and item.get_closest_marker("mw_budget") is not None)
        if measured or "mw_budget" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.thread_unsafe(reason="mw-budget makes one request at a time"))


def _times(item: pytest.Item) -> bool:
    """Whether a test takes the fixture or is marked, and is timed; with unusable settings it is not."""
    if _skipped(item):
        return False
    try:
        return item.get_closest_marker("mw_budget") is not None and settings_of(item).need_clock
    except SettingError:
        return False


def _skipped(item: pytest.Item) -> bool:
    """Whether a marker certainly skips the test; a condition in a string is not evaluated."""
    conditions = [
        condition
        for marker in item.iter_markers("skipif")
        for condition in (marker.args or (marker.kwargs.get("condition"),))
    ]
    return item.get_closest_marker("skip") is not None or any(condition is True for condition in conditions)


# ---- the client -------------------------------------------------------------------------------------------------


def client_for(request: pytest.FixtureRequest, app: Any) -> MwBudget:
    """The client of `app` for the test that requests it."""
    from ..timing.looks import Environment
    from .requests.client import MwBudget
    from .requests.hosted import RequestItem, hosted

    item, config = request.node, request.config
    take_part(config)  # nothing that pytest collects shows a fixture that is asked for at run time
    environment = environment_of(config) if enforced(config) else Environment()
    try:
        settings = settings_of(item)
    except SettingError:
        settings = Settings()  # the call phase raises the error, so that the test fails, not its setup
    make = partial(hosted, request) if isinstance(item, RequestItem) else MwBudget
    client = make(
        app=app,
        settings=settings,
        enforce=enforced(config),
        environment=environment,
        publisher=_publisher(item),
        current=lambda: settings_of(item),
        examples=has_examples(item),
        limit_s=time_limit_s(item),
    )
    item.stash[_client] = client
    return client


@contextmanager
def _recording(item: pytest.Item) -> Iterator[None]:
    """Record the requests that a test without the fixture makes in the block from the time on that it is marked."""
    with ExitStack() as stack:

        def begin() -> None:
            if _client not in item.stash and item.get_closest_marker("mw_budget") is not None:
                stack.enter_context(_own_requests(item, settings_of(item)).recording())

        def add_marker(marker: str | pytest.MarkDecorator, append: bool = True) -> None:
            add(marker, append)
            begin()

        if enforced(item.config) and _client not in item.stash:
            with suppress(SettingError):  # the call phase raises the error
                begin()
            add, item.add_marker = item.add_marker, add_marker  # type: ignore[method-assign]
            stack.callback(delattr, item, "add_marker")
        yield


def _own_requests(item: pytest.Item, settings: Settings) -> OwnRequests:
    """Return what measures the requests of a test's own clients."""
    from .requests.own import OwnRequests

    requests = OwnRequests(
        settings=settings,
        environment=environment_of(item.config),
        publisher=_publisher(item),
        current=lambda: settings_of(item),
        # A test may ask for the fixture at run time.
        active=lambda: item.stash.get(_client, None) is requests,
        claims=item.config.stash.get(CLAIMS, None),
        examples=has_examples(item),
        limit_s=time_limit_s(item),
    )
    item.stash[_client] = requests
    return requests


def _publisher(item: pytest.Item) -> Publisher:
    from .profiles import Publisher

    return Publisher(plugin_folder(item.config), test_id(item), item.config.invocation_params.dir)


def environment_of(config: pytest.Config) -> Environment:
    """Return what the measurements of a run that measures need from their surroundings."""
    from ..timing.looks import Environment
    from ..timing.schedule import Schedule
    from .captured_output import set_apart

    return Environment(
        machine=_shared_machine(config),
        progress=Progress(config),
        apart=lambda: set_apart(config),
        precise=figures_read(config),
        # Both sides of a comparison of versions have little time for each request.
        inside=figures_read(config) and config.stash.get(CHANGED, None) is None,
        saves=saves_read(config),
        schedule=config.stash.get(SCHEDULE, Schedule()),
        turns=config.stash[_turns].measuring,
    )


def turns_of(config: pytest.Config) -> Turns:
    """Return the turns of a run that measures."""
    return config.stash[_turns]


def _shared_machine(config: pytest.Config) -> Machine:
    from .remembered_speed import machine

    if MACHINE not in config.stash:
        config.stash[MACHINE] = machine(config)
    return config.stash[MACHINE]


# ---- running a test ---------------------------------------------------------------------------------------------


class Gate:
    """The hooks around the phases of each test."""

    NAME = "mw-budget-gate"

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, object, object]:
        """Explain what the fixtures of a test raise."""
        if _client in item.stash:  # from an earlier attempt, if a plugin runs the test again
            del item.stash[_client]
        note_start(item)
        return (yield from _explained(item))

    # With trylast, wrappers in conftest files run outside this wrapper and see the verdict.
    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """Explain what a test raises, note its results, and fail it for its budgets."""
        try:
            with _recording(item), measurable(item) if _measures(item) else nullcontext():
                outcome = yield from _explained(item, check_settings=True)
            _recheck(item)
        finally:
            _note_properties(item)
            client = item.stash.get(_client, None)
            if client is not None:
                client.judged = True
        require_request(item, client)
        enforce(item, client, whole=True)
        return outcome

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, object, object]:
        """Do the same for requests that fixtures make in teardown."""
        client = item.stash.get(_client, None)
        before = len(client.results) if client is not None else 0
        try:
            outcome = yield from _explained(item)
        finally:
            _note_properties(item)
        enforce(item, item.stash.get(_client, None), before)
        return outcome

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Attach the results of a test's requests to its report."""
        report = yield
        client = item.stash.get(_client, None)
        report.mw_budget_test = test_id(item)  # type: ignore[attr-defined]
        if client is not None and client.enforce and call.when != "setup":
            from ..model.measured_run import LeftOut
            from ..storage.codec import RECORDS, measurement

            # pytest-xdist sends attributes of plain data from its workers along with the report. Each result is sent
            # once, and not with a subtest, because the verdicts are final only at the end of the test.
            # `mw_budget_in_failure` has the numbers of the requests whose tables are in this report.
            report.mw_budget_left_out = [  # type: ignore[attr-defined]
                RECORDS.plain(LeftOut(test_id(item), left_out.request, left_out.reason))
                for left_out in client.fresh_left_out()
            ]
            fresh = client.results[client.reported :] if client.judged or call.when == "teardown" else []
            client.reported += len(fresh)
            report.mw_budget = [measurement(test_id(item), result) for result in fresh]  # type: ignore[attr-defined]
            report.mw_budget_undecided = [  # type: ignore[attr-defined]
                client.settings.on_undecided(result) for result in fresh
            ]
            # Only our verdicts are read: `__getattr__` of a user's exception may raise anything.
            excinfo = call.excinfo
            verdict = excinfo.value if excinfo and issubclass(excinfo.type, pytest.fail.Exception) else None
            shown = getattr(verdict, "mw_budget_in_failure", ())
            report.mw_budget_in_failure = list(shown)  # type: ignore[attr-defined]
            crash = getattr(report.longrepr, "reprcrash", None)
            if shown and crash is not None:
                # On CI and with -vv, pytest's summary repeats the whole message, and so would show the table twice.
                crash.message = f"Failed: {verdict.mw_budget_headlines}"  # type: ignore[union-attr]
            machine = _shared_machine(item.config)
            if math.isfinite(machine.seen_ns):
                report.mw_budget_seen_ns = machine.seen_ns  # type: ignore[attr-defined]
            if math.isfinite(machine.seen_hop_ns):
                report.mw_budget_seen_hop_ns = machine.seen_hop_ns  # type: ignore[attr-defined]
        return report


def _explained(item: pytest.Item, *, check_settings: bool = False) -> Generator[None, object, object]:
    """Run a phase of a test; an error of this package fails the test with its message, without our traceback."""
    try:
        if check_settings and _concerned(item):
            settings_of(item)
        return (yield)
    except MwBudgetError as error:
        if not _concerned(item):  # a test may be marked while it runs
            raise
        failure = pytest.fail.Exception(report_of(error), pytrace=False)
        failure.__cause__ = error.__cause__
        if entered(error):
            raise failure.with_traceback(error.__traceback__) from failure.__cause__
        raise_at(item, failure)


@contextmanager
def measurable(item: pytest.Item) -> Iterator[None]:
    """Give a test room for frames, and lift the deadline of its examples, in the block."""
    # The event loop of an async test, on which it makes its requests, starts in `runtest`.
    attributes = vars(item)
    before = attributes.get("runtest")
    attributes["runtest"] = partial(with_room, item.runtest)
    try:
        with without_deadline(item):
            yield
    finally:
        del attributes["runtest"]
        if before is not None:
            attributes["runtest"] = before


def _measures(item: pytest.Item) -> bool:
    return enforced(item.config) and _client in item.stash


def _concerned(item: pytest.Item) -> bool:
    marked = item.get_closest_marker("mw_budget") is not None
    return marked or _client in item.stash or "mw_budget" in getattr(item, "fixturenames", ())


def _note_properties(item: pytest.Item) -> None:
    """Note the results in the test's properties, which JUnit XML and other reports of pytest show."""
    client = item.stash.get(_client, None)
    if client is not None and client.enforce:
        from ..report.junit import PREFIX, properties

        # A test that runs again keeps the properties of its last run only.
        others = [pair for pair in item.user_properties if not str(pair[0]).startswith(PREFIX)]
        item.user_properties[:] = [*others, *properties(client.results)]


def _recheck(item: pytest.Item) -> None:
    """Judge broken counts of recorded limits again, in processes of the test alone."""
    client = item.stash.get(_client, None)
    if client is not None and client.enforce:
        results = rechecked(item.config, test_id(item), client.results, client.limit_s)
        client.results[:] = results  # type: ignore[assignment]
