"""The pytest side: options, marker, fixtures, and the hooks that carry verdicts into reports.

pytest imports this module in every run; what is heavy is imported when a marked test runs.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Generator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .estimates import Machine
    from .fixture import MwBudget
    from .settings import Settings

MARKER = (
    "mw_budget(us=..., busy_us=..., objects=..., allocations=..., bytes=..., tasks=..., threads=..., retained=..., "
    "layers={...}, total_us=..., expect_status=..., lifespan=..., loop=..., max_time=..., undecided=...): measure "
    "every middleware layer of the app on the requests made through the fixture mw_budget, and with --mw-budget fail "
    "the test when a layer takes or creates more per request than its budget"
)
# Settings that the command line or the configuration may give, by their marker keyword.
COUNTED = {
    "objects": "objects created",
    "allocations": "requests to Python's allocators",
    "bytes": "bytes requested of them, for example 16 KiB",
    "tasks": "tasks spawned",
    "threads": "calls handed to worker threads",
    "retained": "objects left alive",
}
CONFIGURABLE = (
    "us",
    "busy_us",
    *COUNTED,
    "layers",
    "total_us",
    "expect_status",
    "lifespan",
    "loop",
    "max_time",
    "undecided",
    "startup_timeout",
)
ON_COMMAND_LINE = ("loop", "max_time", "undecided")

FAILURE_WIDTH = 79

_client: pytest.StashKey[MwBudget] = pytest.StashKey()
_machine: pytest.StashKey[Machine] = pytest.StashKey()


# ---- options ----------------------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("mw-budget", "cost of ASGI middleware layers")
    group.addoption(
        "--mw-budget",
        action="store_true",
        default=None,
        help="measure the requests of tests that use the fixture mw_budget, and enforce their budgets",
    )
    group.addoption(
        "--mw-budget-json", metavar="PATH", default=None, help="write everything that was measured to PATH as JSON"
    )
    group.addoption(
        "--mw-budget-loop",
        metavar="asyncio|uvloop|trio",
        default=None,
        help="the event loop of requests in tests that are not async (default: asyncio)",
    )
    group.addoption(
        "--mw-budget-max-time",
        metavar="SECONDS",
        default=None,
        help="time at most this long for one request (default: 5)",
    )
    group.addoption(
        "--mw-budget-undecided",
        metavar="warn|fail|pass",
        default=None,
        help="what to do about a budget on which there was no verdict in time (default: warn)",
    )
    parser.addini("mw_budget", "measure and enforce in every run, as with --mw-budget", type="bool", default=False)
    parser.addini("mw_budget_app", "the app under test as package.module:attribute")
    parser.addini("mw_budget_us", "default budget of every middleware layer, microseconds per request")
    parser.addini("mw_budget_busy_us", "default budget for holding the event loop, microseconds per request")
    for quantity, meaning in COUNTED.items():
        parser.addini(f"mw_budget_{quantity}", f"default budget of every middleware layer: {meaning} per request")
    parser.addini(
        "mw_budget_layers",
        "budgets by layer name, one a line: NAME = MICROSECONDS, or NAME = us: 80, tasks: 0",
        type="linelist",
    )
    parser.addini("mw_budget_total_us", "default budget of the whole request, microseconds")
    parser.addini("mw_budget_expect_status", "the response status to expect; any below 400 when nothing is said")
    parser.addini("mw_budget_lifespan", "false to leave the app's lifespan alone")
    parser.addini("mw_budget_loop", "asyncio, uvloop or trio: the event loop of tests that are not async")
    parser.addini("mw_budget_max_time", "seconds of timing for one request, at most (default: 5)")
    parser.addini("mw_budget_undecided", "warn, fail or pass when there is no verdict in time (default: warn)")
    parser.addini("mw_budget_startup_timeout", "seconds for the app's startup, and for one request (default: 30)")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER)
    configured = _configured(config)
    if any(value is not None for value in configured.values()):
        from .errors import SettingError
        from .settings import merge

        try:
            merge([], configured)
        except SettingError as error:
            raise pytest.UsageError(str(error)) from None
    path = config.getoption("mw_budget_json")
    if path is not None:
        _check_json(config, path)
    config.pluginmanager.register(_Collected(config), "mw-budget-collected")


def _check_json(config: pytest.Config, path: str) -> None:
    if not enforced(config):
        raise pytest.UsageError(f"--mw-budget-json={path!r} has nothing to write without measuring; add --mw-budget")
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with Path(path).open("a"):
            pass
    except OSError as error:
        raise pytest.UsageError(
            f"--mw-budget-json={path!r} cannot be written: {error}; give the path of a file to write"
        ) from None


def _configured(config: pytest.Config) -> dict[str, Any]:
    """The command line's and the configuration's values by marker keyword, None where nothing was said."""
    values: dict[str, Any] = {key: config.getini(f"mw_budget_{key}") or None for key in CONFIGURABLE}
    for key in ON_COMMAND_LINE:
        option = config.getoption(f"mw_budget_{key}")
        if option is not None:
            values[key] = option
    return values


def enforced(config: pytest.Config) -> bool:
    """Whether this run measures."""
    return bool(config.getoption("mw_budget") or config.getini("mw_budget"))


# ---- fixtures ---------------------------------------------------------------------------------------------------


@pytest.fixture
def mw_budget_app(pytestconfig: pytest.Config) -> Any:
    """The ASGI app under test: override this fixture, or set `mw_budget_app` in the configuration."""
    from .asgi import NamedApp

    return NamedApp(pytestconfig.getini("mw_budget_app") or "", pytestconfig.rootpath)


@pytest.fixture
def mw_budget(request: pytest.FixtureRequest, mw_budget_app: Any) -> MwBudget:
    """An HTTP client of the app under test: each request is measured when `--mw-budget` is on."""
    from .errors import SettingError
    from .fixture import MwBudget
    from .settings import Settings
    from .timing import Bench

    item, config = request.node, request.config
    bench = Bench(machine=_shared_machine(config), progress=_Progress(config))
    try:
        settings = _settings_of(item)
    except SettingError:
        settings = Settings()  # the test fails in its call phase, as a test and not as an error before it
    client = MwBudget(mw_budget_app, settings, enforced(config), bench)
    item.stash[_client] = client
    return client


def _shared_machine(config: pytest.Config) -> Machine:
    from .estimates import Machine

    return config.stash.setdefault(_machine, Machine())


# ---- running a test ---------------------------------------------------------------------------------------------


def _settings_of(item: pytest.Item) -> Settings:
    """What the test's markers, the command line and the configuration say; SettingError when one is unusable."""
    from .errors import SettingError
    from .settings import MARKER_KEYS, merge

    markers = list(item.iter_markers("mw_budget"))
    for marker in markers:
        if marker.args:
            raise SettingError(
                f"the mw_budget marker got {marker.args[0]!r} without a keyword; write for example"
                f" @pytest.mark.mw_budget(us=50). The keywords are: {', '.join(MARKER_KEYS)}"
            )
    return merge([marker.kwargs for marker in markers], _configured(item.config))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    return (yield from _explained(item))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    outcome = yield from _explained(item, check_settings=True)
    _require_request(item)
    _enforce(item)
    return outcome


def _explained(item: pytest.Item, *, check_settings: bool = False) -> Generator[None, object, object]:
    """Run a phase of a test; an error of this package fails it with what it says, and not with where it was raised."""
    if not _concerned(item):
        return (yield)
    from .errors import MwBudgetError

    try:
        if check_settings:
            _settings_of(item)
        return (yield)
    except MwBudgetError as error:
        raise _failed(error) from error.__cause__


def _concerned(item: pytest.Item) -> bool:
    marked = item.get_closest_marker("mw_budget") is not None
    return marked or _client in item.stash or "mw_budget" in getattr(item, "fixturenames", ())


def _failed(error: Exception) -> BaseException:
    """A test failure that says what `error` says, and nothing of where in this package it was raised."""
    return pytest.fail.Exception(str(error), pytrace=False)


def _require_request(item: pytest.Item) -> None:
    """A marked test that measures nothing would be a gate that is always open.

    A marker on a class or module is for the tests there that take the fixture; one on a function means that function.
    """
    client = item.stash.get(_client, None)
    if (client is not None and client.results) or not enforced(item.config):
        return
    if client is not None or any(marker.name == "mw_budget" for marker in item.own_markers):
        pytest.fail(
            "this test is for mw_budget but made no request through the fixture mw_budget, so nothing was measured;"
            " take the fixture as an argument and call for example mw_budget.get('/health')",
            pytrace=False,
        )


def _enforce(item: pytest.Item) -> None:
    """Fail the test for the budgets that were not kept, warn of those on which there is no verdict."""
    client = item.stash.get(_client, None)
    if client is None or not client.enforce:
        return
    from .errors import BudgetWarning
    from .report.terminal import failure, undecided

    action = client.settings.when_undecided
    failing = {"fail", "undecided"} if action == "fail" else {"fail"}
    broken = [result for result in client.results if result.verdict in failing]
    if broken:
        texts = [failure(result, FAILURE_WIDTH, undecided_fails=action == "fail") for result in broken]
        pytest.fail("\n\n".join(texts), pytrace=False)
    if action == "warn":
        for result in client.results:
            sentences = list(undecided(result))
            if sentences:
                item.warn(BudgetWarning(f"{result.request}: {' '.join(sentences)}"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    client = item.stash.get(_client, None) if call.when == "call" else None
    if client is not None and client.enforce:
        from .report.json import to_json

        # A plain attribute of plain data travels with the report, also from pytest-xdist's workers.
        # Once each: there are reports also for subtests.
        fresh = client.results[client.reported :]
        client.reported = len(client.results)
        report.mw_budget = [to_json(result, item.nodeid) for result in fresh]  # type: ignore[attr-defined]
    return report


# ---- the end of the run -----------------------------------------------------------------------------------------


class _Collected:
    """What the tests of this run measured, in the process that reports."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.measurements: list[dict[str, Any]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.measurements += getattr(report, "mw_budget", ())

    def pytest_sessionfinish(self) -> None:
        path = self.config.getoption("mw_budget_json")
        if path is None or hasattr(self.config, "workerinput"):
            return
        import json

        from .report.json import document

        text = json.dumps(document(self.measurements), indent=1, ensure_ascii=False, allow_nan=False)
        Path(path).write_text(text + "\n", encoding="utf-8")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        verbosity = self.config.get_verbosity()
        if not self.measurements or verbosity < -1:
            return
        from .report.json import environment, from_json
        from .report.terminal import one_line, table

        terminalreporter.write_sep("=", "mw-budget")
        width = shutil.get_terminal_size().columns
        for data in self.measurements:
            result = from_json(data)
            if verbosity < 0:
                line = one_line(result)
                terminalreporter.write_line(f"{data['nodeid']} {line.text}", **_markup(line.style))
                continue
            terminalreporter.write_line(f"{data['nodeid']}: {result.request} {result.status}", bold=True)
            for line in table(result, width, verbose=verbosity > 0):
                terminalreporter.write_line(line.text, **_markup(line.style))
            terminalreporter.write_line("")
        loops = ", ".join(sorted({data["loop"] for data in self.measurements}))
        about = environment(loops)
        unit = ", µs per request" if any(data["total_us"] for data in self.measurements) else ""
        terminalreporter.write_line(f"{about['implementation']} {about['python']}, loop {loops}{unit}")


def _markup(style: str) -> dict[str, bool]:
    return {style: True} if style else {}


class _Progress:
    """Shows on a terminal that a long measurement is alive; elsewhere it prints nothing."""

    # Below this share of the time limit a measurement is too short to be worth a word.
    FROM_SHARE = 0.1

    def __init__(self, config: pytest.Config) -> None:
        self.reporter = config.pluginmanager.getplugin("terminalreporter")
        self.capture = config.pluginmanager.getplugin("capturemanager")
        self.shown = 0

    def __call__(self, share: float | None) -> None:
        if self.reporter is None or not self.reporter.isatty:
            return
        if share is None:
            self._write(" " * self.shown)
            self.shown = 0
        elif share >= self.FROM_SHARE:
            self._write(f" measuring, {share:.0%} of the time limit".ljust(self.shown))

    def _write(self, text: str) -> None:
        """Write the text and put the cursor back, so that what comes next overwrites it."""
        if not text:
            return
        self.shown = len(text)
        # Past the reporter, which counts what it writes to know where the line ends.
        with self.capture.global_and_fixture_disabled() if self.capture else nullcontext():
            sys.stdout.write(text + "\b" * len(text))
            sys.stdout.flush()
