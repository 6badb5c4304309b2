"""The items of requests that no test makes: when there are any, which, and what is said of them all together."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from pathlib import Path

import pytest

from ...errors import AppError, SettingError, near_miss, report_of, tagged
from ...workload.requests import RequestFile, Wanted, Workload, parsed, read, workload
from ..configuration import enforced, named_app
from .hosted import HostedClient, RequestItem
from .names import UnmatchedNames

# The name of the collector: the ids of its items begin with it.
NAME = "mw-budget"
# Of what a name in a budget is missing if no request matches it.
NOWHERE = "no measured request has"


def configure(config: pytest.Config) -> None:
    """Register the collector of requests, unless the command line names a test. It names an app or a request."""
    lines = config.getoption("mw_budget_request")
    try:
        paths, chosen = _arguments(config)
        if lines is not None:
            _check_use(lines, paths, measures=enforced(config))
        if paths or not enforced(config):
            return  # --mw-budget-app names the app of the fixture only
        wanted = tuple(parsed(line, "--mw-budget-request") for line in lines or ())
        collects = CollectsRequests(wanted, _file(config), chosen)
    except SettingError as error:
        raise pytest.UsageError(report_of(error)) from None
    config.pluginmanager.register(collects, "mw-budget-requests")
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Together(), "mw-budget-together")


def _arguments(config: pytest.Config) -> tuple[list[str], list[str]]:
    """Return the paths of tests on the command line, and the ids of requests."""
    given = config.args if config.args_source is pytest.Config.ArgsSource.ARGS else []
    ids = [argument for argument in given if argument.startswith(f"{NAME}::")]
    return [argument for argument in given if argument not in ids], ids


def _check_use(lines: Sequence[str], paths: Sequence[str], *, measures: bool) -> None:
    """Raise SettingError where --mw-budget-request would do nothing."""
    option = f"--mw-budget-request={lines[0]!r}"
    if not measures:
        raise SettingError(f"{option} measures nothing without --mw-budget; add it")
    if paths:
        raise SettingError(f"{option} makes a run without tests, and {paths[0]!r} names a test; leave out one of them")


def _file(config: pytest.Config) -> RequestFile:
    path = config.getini("mw_budget_requests")
    return read(config.rootpath / str(path), f"mw_budget_requests = {path!r}") if path else RequestFile()


class Requests(pytest.Module):
    """Collects an item for each request. It is a module without a file, so fixtures of every scope work."""

    # As pytest does for text files: there is no module to import.
    obj = None
    collects: CollectsRequests

    def collect(self) -> Iterable[RequestItem]:
        """Return the items; if the command line names items, only these."""
        try:
            return list(self._items())
        except (AppError, SettingError) as error:
            raise self.CollectError(report_of(error)) from None

    def _items(self) -> Iterator[RequestItem]:
        chosen, collected = self.collects.chosen, self.collects.found(self.config)
        names = [f"{NAME}::{request.name}" for request in collected.requests]
        for asked in chosen:
            if asked not in names:
                hint = near_miss(asked, names)
                raise SettingError(f"{asked!r} is not a request.{hint} The requests are: {', '.join(names)}")
        for wanted, name in zip(collected.requests, names, strict=True):
            if not chosen or name in chosen:
                yield RequestItem.of(self, wanted)


class CollectsRequests:
    """Collects the requests in place of tests. `chosen` are the ids on the command line, empty for all."""

    def __init__(self, lines: Sequence[Wanted], file: RequestFile, chosen: Sequence[str]) -> None:
        self.lines = lines
        self.file = file
        self.chosen = chosen
        self.workload: Workload | None = None
        self.partial = bool(chosen)

    def found(self, config: pytest.Config) -> Workload:
        """Return the requests; the app is imported only if its route table is needed. Raises MwBudgetError."""
        app = None if self.lines or self.file.requests else named_app(config).load()
        self.workload = workload(self.lines, self.file, app)
        return self.workload

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> None:
        """Collect no tests."""
        session.config.args = []

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        """Add the collector of requests to the session."""
        report = yield
        if isinstance(collector, pytest.Session):
            requests = Requests.from_parent(collector, path=Path(collector.config.rootpath / NAME))
            requests.collects = self
            report.result = [*report.result, requests]
        return report

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        """Note that this run does not make every request."""
        self.partial = True

    def pytest_report_collectionfinish(self) -> str | None:
        """Say how many requests there are, and which routes are left out."""
        return f"mw-budget: {self.workload.summary}" if self.workload else None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Note which names of budgets match nothing in a request, and take the place of a skip away."""
        if not isinstance(item, RequestItem):
            return (yield)
        if call.excinfo is not None and isinstance(call.excinfo.value, pytest.skip.Exception):
            # For a skip by a fixture or a mark, pytest asserts that the item is at a line of a file.
            call.excinfo.value._use_item_location = False
        report = yield
        client = item.funcargs.get("mw_budget") if call.when == "call" else None
        measured = client.unmatched if isinstance(client, HostedClient) else None
        if measured is not None or report.skipped:
            report.mw_budget_request = {  # type: ignore[attr-defined]
                "unmatched": None if measured is None else measured.plain(),
                "chosen": self.partial,
                "left_out": isinstance(client, HostedClient) and bool(client.left_out),
            }
        if isinstance(report.longrepr, tuple):
            report.longrepr = (NAME, None, report.longrepr[2])  # type: ignore[assignment]
        return report


class Together:
    """Fails the run for what concerns all of its requests: that none was measured, or that none has a named layer.

    `chosen` is whether only some requests are made, which fails for none of this. `partial` is whether a request was
    not measured, and could have a name in budgets of the configuration that is `unmatched` so far. `left_out` is
    whether that was because of what the app answers.
    """

    def __init__(self) -> None:
        self.unmatched = UnmatchedNames()
        self.chosen = False
        self.partial = False
        self.measured = False
        self.left_out = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take what came of a request, also from another process."""
        outcome = getattr(report, "mw_budget_request", None)
        if outcome is None:
            return
        self.chosen = self.chosen or outcome["chosen"]
        self.partial = self.partial or self.chosen or outcome["unmatched"] is None
        self.left_out = self.left_out or outcome["left_out"]
        if outcome["unmatched"] is not None:
            self.measured = True
            self.unmatched.take(UnmatchedNames.of_plain(outcome["unmatched"]))

    @property
    def _nothing(self) -> bool:
        return self.left_out and not self.measured

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail a run that is successful otherwise."""
        failed = (self._nothing and not self.chosen) or (not self.partial and any(self.unmatched.messages()))
        if failed and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say what concerns all requests."""
        if self._nothing:
            kind = "warning" if self.chosen else "error"
            nothing = f"{kind}: no request was measured; the reasons are those of the skipped requests (pytest -rs)"
            terminalreporter.write_line(tagged(nothing, "response"), yellow=self.chosen, red=not self.chosen)
        kind = "warning" if self.partial else "error"
        for text in self.unmatched.messages(NOWHERE):
            line = tagged(f"{kind}: {text}", "layer-name")
            terminalreporter.write_line(line, yellow=self.partial, red=not self.partial)
