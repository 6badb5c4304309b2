"""The end of a run, in the process that reports: tables in the terminal, files, annotations, GitHub's job summary."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ..errors import MwBudgetError, SettingError, report_of, tagged
from ..model.quantities import COUNTED
from .artifacts import HISTORY, JSON, RENDERED, SAVE, Output, check_distinct
from .configuration import LIMITS, enforced, plugin_folder, surveying
from .progress import tell
from .provenance import this_run, version_of

if TYPE_CHECKING:
    from ..comparison.history import HistoryRun
    from ..model.measured_run import LeftOut, MeasuredRun
    from ..model.results import Result, SurveyRun
    from ..report.lines import Line
    from .baseline import Baseline
    from .limits.update import Outcome

# The outcomes that pytest itself reports; plugins that repeat tests have others.
OUTCOMES = ("passed", "failed", "skipped")
# The values of --tb that show no failure in full.
WITHOUT_FAILURES = ("line", "no")
# The number of processes that show whether a count differs between processes, and the most seconds for each.
PROCESSES, PROCESS_S = 3, 300.0


def configure(config: pytest.Config) -> None:
    """Check the paths of the files, and register the summary if the run measures."""
    if hasattr(config, "workerinput"):
        return  # a worker's results are reported by the process that started it
    try:
        files, baseline = dict(_files(config)), _baseline(config)
    except MwBudgetError as error:
        raise pytest.UsageError(report_of(error)) from None
    if enforced(config):
        config.pluginmanager.register(Summary(config, files, baseline), "mw-budget-summary")


def _baseline(config: pytest.Config) -> Baseline | None:
    """Return the run to compare with, None without one."""
    if config.getoption("mw_budget_compare") is None and config.getoption("mw_budget_compare_fail") is None:
        return None
    from .baseline import configured_baseline

    return configured_baseline(config)


def _files(config: pytest.Config) -> Iterator[tuple[Output, Path]]:
    files: dict[str, Path] = {}
    for output in (JSON, SAVE, HISTORY, *RENDERED):
        value = config.getoption(f"--mw-budget-{output.name}")
        if value is None:
            continue
        option = f"--mw-budget-{output.name}={value!r}"
        if not enforced(config):
            raise SettingError(f"{option} has nothing to write without measuring; add --mw-budget", message_id="file")
        files[option] = config.invocation_params.dir / value
        if output is SAVE:
            from ..storage.saved_runs import saved_file

            files[option] = saved_file(plugin_folder(config), value, option)
        check_distinct(files)
        output.check(files[option], option)
        yield output, files[option]


@dataclass
class Attempt:
    """One run of a test. `repeated` is whether a plugin runs the test again after it."""

    requests: list[Request] = field(default_factory=list)
    repeated: bool = False


@dataclass
class Request:
    """A result, with the id of its test and the report that brought it.

    `undecided` is what the settings do about an undecided verdict, `in_failure` whether a failure has the table.
    """

    measured: tuple[str, Result]
    report: pytest.TestReport
    undecided: str
    attempt: Attempt
    in_failure: bool = False

    @property
    def result(self) -> Result:
        """The result alone."""
        return self.measured[1]


class Summary:
    """Collects what the tests of this run measured, and writes `files` at its end."""

    def __init__(self, config: pytest.Config, files: Mapping[Output, Path], baseline: Baseline | None) -> None:
        self.config = config
        self.files = files
        self.baseline = baseline
        self.requests: list[Request] = []
        self.left_out: list[LeftOut] = []
        # The latest of each test, by its id and the worker that ran it; and the tests that failed.
        self.attempts: dict[tuple[str, str], Attempt] = {}
        self.failed: set[str] = set()
        # Tests of which no limit is recorded: they failed or were skipped.
        self.unfinished: set[str] = set()
        self.limits: Outcome | None = None
        self.remarks: list[str] = []
        # All that was measured, known after the tests.
        self.run: MeasuredRun

    def pytest_report_header(self) -> list[str]:
        """Say what is counted here, and how to count the rest if the C extension was not built."""
        from ..counting.backend import counting_backend

        why_not = counting_backend().why_not
        counts = ", ".join(name for name in COUNTED if name not in why_not)
        interpreter = f"{platform.python_implementation()} {platform.python_version()}"
        lines = [f"mw-budget: {version_of('pytest-mwbudget')}, {interpreter}, counts {counts}"]
        if "allocations" in why_not:
            lines.append(f"mw-budget: no objects and no memory are counted: {why_not['allocations']} (mwbudget doctor)")
        return lines

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take the results of a report, also of one from another process."""
        from ..storage import codec

        test = (report.nodeid, getattr(report, "worker_id", ""))
        if report.when == "setup" or test not in self.attempts:
            self.attempts[test] = Attempt()
        attempt = self.attempts[test]
        undecided = getattr(report, "mw_budget_undecided", ())
        fresh = [
            Request(codec.measured(data), report, when_undecided, attempt)
            for data, when_undecided in zip(getattr(report, "mw_budget", ()), undecided, strict=True)
        ]
        self.requests += fresh
        # An attempt that is repeated leaves out the same requests again.
        left_out = map(codec.left_out, getattr(report, "mw_budget_left_out", ()))
        self.left_out += [request for request in left_out if request not in self.left_out]
        attempt.requests += fresh
        attempt.repeated = attempt.repeated or report.outcome not in OUTCOMES
        if report.outcome != "passed" and report.outcome in OUTCOMES:
            self.unfinished.add(getattr(report, "mw_budget_test", report.nodeid))
        # With subtests the failure is in another report than the measurement. An expected failure is not a failure.
        if report.when != "setup" and report.failed and not hasattr(report, "wasxfail"):
            self.failed.add(report.nodeid)
            style = self.config.getoption("tbstyle", "auto")  # an option of the terminal plugin, which can be off
            shown = getattr(report, "mw_budget_in_failure", ()) if style not in WITHOUT_FAILURES else ()
            for number, request in enumerate(attempt.requests):
                request.in_failure = request.in_failure or number in shown

    def _lasting(self) -> list[Request]:
        """Return the requests of attempts that were not repeated."""
        return [request for request in self.requests if not request.attempt.repeated]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Compare, and write the files and GitHub's job summary.

        A budget that the survey found broken, a figure that grew by more than is allowed, and a file that cannot be
        written fail the run.
        """
        from ..model.measured_run import MeasuredRun
        from ..storage import codec

        measured, left_out = [request.measured for request in self._lasting()], [*self.left_out]
        survey: SurveyRun | None = None
        self._finish_limits(session, measured)
        if surveying(self.config):
            from .survey import Survey

            plugin: Survey = self.config.pluginmanager.getplugin(Survey.NAME)
            surveyed = [*map(codec.measured, plugin.measurements)]
            fails, remarks = plugin.judged([result for _, result in surveyed])
            self.remarks += remarks
            if fails:
                _fail(session)
            measured += surveyed
            left_out += map(codec.left_out, plugin.left_out)
            survey = plugin.run()
        folder = self.config.rootpath if self.files or self.baseline else None
        run = this_run((result for _, result in measured), folder)
        self.run = MeasuredRun(run, tuple(measured), tuple(left_out), survey)
        if self.baseline is not None and not self.config.option.collectonly:
            self._compare(session, self.baseline)
        history: Sequence[HistoryRun] = ()
        for output, path in self.files.items():
            try:
                if output is SAVE and not self.run.measured:
                    nothing = f"nothing was measured, so {str(path)!r} is left as it was"
                    self.remarks.append(tagged(nothing, "file"))
                elif output is HISTORY:
                    history = self._remember(path)
                else:
                    output.write(path, self.run, history)
            except (OSError, ValueError) as error:
                unwritten = f"--mw-budget-{output.name}={str(path)!r} cannot be written: {error}"
                self.remarks.append(tagged(unwritten, "file"))
                _fail(session)
        step_summary = os.environ.get("GITHUB_STEP_SUMMARY")
        if step_summary and self.requests:
            self._add_to(Path(step_summary))

    def _finish_limits(self, session: pytest.Session, measured: Sequence[tuple[str, Result]]) -> None:
        """Update the file of limits, if there is one and the run came to its end. A refused update fails the run."""
        ended = session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
        if self.config.stash.get(LIMITS, None) is None or not ended:
            return
        from .limits.update import finish

        self.limits = finish(self.config, measured, self.unfinished, self.left_out)
        if self.limits.failed:
            _fail(session)

    def _remember(self, path: Path) -> Sequence[HistoryRun]:
        """Append the run to the history, and return all of it."""
        from ..storage.history import append, line_of, read

        if self.run.measured:
            append(path, line_of(self.run))
        history, remarks = read(path) if path.is_file() else ((), ())
        self.remarks += remarks
        return history

    def _compare(self, session: pytest.Session, baseline: Baseline) -> None:
        """Add the changes to the run, and to the requests whose tables are printed; a forbidden growth fails it."""
        ended = session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
        # A survey claims requests in the order of the tests, and times them.
        again = self._counted_again if ended and not surveying(self.config) else lambda tests, seed: ()
        self.run = baseline.compared(self.run, again)
        for request, measured in zip(self._lasting(), self.run.measured, strict=False):
            request.measured = measured
        if self.run.since is not None and self.run.since.grown:
            _fail(session)

    def _counted_again(self, tests: tuple[str, ...], seed: int | None) -> Iterator[MeasuredRun]:
        """Count tests again in other processes, after all fixtures are torn down."""
        from ..storage.codec import measured_run
        from .limits.evidence import number_of
        from .limits.recount import SEEDS, Recount, RecountError, recounted

        tell(self.config, f"a count grew: counting {number_of(tests)} again in {PROCESSES} other processes")
        try:
            for own_seed in SEEDS[:PROCESSES]:
                order = Recount(tests, own_seed if seed is None else seed)
                yield measured_run(recounted(self.config, order, PROCESS_S))
        except RecountError as error:
            text = f"whether a count that grew differs between processes is not known: {error}"
            self.remarks.append(tagged(text, "grown"))

    def _add_to(self, step_summary: Path) -> None:
        """Append to the file in which GitHub collects a step's summary, up to GitHub's limit."""
        from ..report.github import MAX_SUMMARY
        from ..report.markdown import render

        try:
            there = step_summary.stat().st_size if step_summary.exists() else 0
            with step_summary.open("a", encoding="utf-8") as file:
                # An earlier command may have ended its output in the middle of a line.
                file.write("\n" + render(self.run, limit=MAX_SUMMARY - there - 1))
        except OSError as error:
            # Only a remark: the user did not ask for this file, and in a container it often does not exist.
            self.remarks.append(tagged(f"GITHUB_STEP_SUMMARY cannot be written: {error}", "file"))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print a line for each request, the tables that are in no failure, and GitHub's annotations."""
        width, verbosity = self.config.get_terminal_writer().fullwidth, self.config.get_verbosity()
        for title, lines in self._sections(width, verbosity):
            if title is not None:
                terminalreporter.write_sep("=", title)
            for line in lines:
                terminalreporter.write_line(line.text, **({line.style: True} if line.style else {}))
        for remark in self.remarks:
            terminalreporter.write_line(remark, yellow=True)
        if os.environ.get("GITHUB_ACTIONS") == "true":
            for text in self._annotations():
                terminalreporter.write_line(text)

    def _sections(self, width: int, verbosity: int) -> Iterator[tuple[str | None, Iterable[Line]]]:
        """Yield the lines that are printed, each section with its title; None if it has none."""
        from ..report.comparison import of_run
        from ..report.lines import render
        from ..report.overview import together

        requests = self._of_requests(width, verbosity)
        if requests:
            yield "mw-budget", requests
        # The survey; in another run the matrix of all requests, with -v.
        if self.run.survey is not None or verbosity > 0:
            shown = together(self.run.survey, self.run.results, self.run.left_out, width, verbosity)
            yield "mw-budget survey" if self.run.survey else None, shown
        if self.run.since is not None:
            # The table of a failure was made before anything was compared.
            failing = [request.measured for request in self._lasting() if request.in_failure]
            yield "mw-budget compare", render(of_run(self.run.since, failing), width)
        if self.limits is not None:
            yield None, self.limits.lines

    def _of_requests(self, width: int, verbosity: int) -> list[Line]:
        """Return the lines and tables of the requests of tests, and what was not measured."""
        from ..report.terminal import left_out, run

        lines: list[Line] = []
        if self.requests:
            lines += run(
                [request.measured for request in self.requests],
                self.run.run.interpreter,
                width,
                verbosity,
                in_failures={place for place, request in enumerate(self.requests) if request.in_failure},
                repeated={place for place, request in enumerate(self.requests) if request.attempt.repeated},
            )
        # What a survey left out is grouped by reason in its section.
        if self.run.survey is None:
            lines += left_out(self.run.left_out, verbosity)
        return lines

    def _annotations(self) -> Iterator[str]:
        from ..report.github import annotation, level

        for request in self._lasting():
            result, report = request.result, request.report
            severity = level(result.verdict, request.undecided)
            if severity == "warning" or (severity == "error" and report.nodeid in self.failed):
                file, line, _ = report.location
                yield annotation(result, severity, self._in_workspace(file), None if line is None else line + 1)

    def _in_workspace(self, file: str) -> str:
        """Return a path below pytest's root as a path from the root of the repository."""
        path = Path(os.path.abspath(self.config.rootpath / file))
        workspace = os.environ.get("GITHUB_WORKSPACE")
        if workspace and path.is_relative_to(workspace):
            return path.relative_to(workspace).as_posix()
        return Path(file).as_posix()


def _fail(session: pytest.Session) -> None:
    if session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
