"""The file of limits in a run: its settings, the limits of a test, and what the run has collected."""

from __future__ import annotations

import math
import os
import platform
import shlex
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from tempfile import gettempdir
from typing import Any

import pytest

from ...config.checks import check
from ...config.settings import Settings
from ...config.table import SETTINGS
from ...counting.backend import counting_backend
from ...errors import SettingError, tagged
from ...interpreter.clocks import perf_counter
from ...interpreter.files import faked
from ...limits.file import Limit, LimitsFile, Place, parsed
from ...limits.judging import (
    changed,
    is_broken_count,
    judged,
    judged_in_another,
    with_recorded,
    without_limits,
)
from ...limits.sections import Surroundings, chosen
from ...model.estimate import Seconds
from ...model.quantities import COUNTED, RECORDED, Quantity
from ...model.request_keys import RequestKey, keyed
from ...model.results import Recorded, RecordedLimit, Result, Verdict
from ...model.stack import ENDPOINT, OUTSIDE, TOTAL
from ...storage.codec import measured_run
from ...storage.file_lock import held
from ...timing.host_speed import processor
from ..configuration import CHANGED, LIMITS, configured, enforced, test_id
from ..provenance import version_of
from .kept_objects import KeptObjects, kept_objects, new_objects, place_of
from .recount import SEEDS, Recount, RecountError, RecountTimeError, counted_only, recount, recounted

UPDATE = "--mw-budget-update"
# The longest time to wait for a test in another process, which may wait for something that this process holds.
RECHECK_S = 60.0
# The share of a test's time limit that these processes may take.
RECHECK_SHARE = 0.5
# A count over its limit fails after RECHECKS other processes exceed it too, or at once if one has the same count.
RECHECKS = 3
# The counts above a limit that were the same in another process: layer, quantity, count.
SAME_COUNTS: pytest.StashKey[set[tuple[str, Quantity, float]]] = pytest.StashKey()
# Whether a process took RECHECK_S: others would wait as long, for example for a database that this process has locked.
TOOK_TOO_LONG: pytest.StashKey[bool] = pytest.StashKey()


def configure(config: pytest.Config) -> None:
    """Read the file of limits of a run that measures. Raises SettingError if a setting or the file is unusable."""
    config.stash[LIMITS] = limits = _run_limits(config)
    if limits is not None and not config.pluginmanager.has_plugin(Collected.NAME):
        config.pluginmanager.register(Collected(config), Collected.NAME)
    order = recount()
    if limits is None and order is not None:  # for a comparison of runs
        config.stash[CHANGED] = lambda settings: counted_only(settings, order)


def _run_limits(config: pytest.Config) -> RunLimits | None:
    modes, reason = _update(config)
    file_name = configured(config)["file"]
    if file_name is None:
        if modes:
            raise SettingError(
                f"{UPDATE} has no file to update; set mw_budget_file = mw-budgets.json in the configuration, or give"
                " --mw-budget-file=mw-budgets.json"
            )
        return None
    if not enforced(config):
        if config.getoption("mw_budget_file") is not None:
            raise SettingError(f"--mw-budget-file={file_name!r} judges nothing without measuring; add --mw-budget")
        return None
    as_option = config.getoption("mw_budget_file") is not None
    path = (config.invocation_params.dir if as_option else config.rootpath) / str(file_name)
    record = configured(config)["record"]
    return RunLimits(
        path=path,
        name=str(file_name),
        file=read(path, repr(str(file_name))),
        quantities=_by_default() if record is None else check("record", record, "mw_budget_record"),
        modes=modes,
        reason=reason,
        required=os.environ.get("CI", "").casefold() not in ("", "0", "false"),
        processor=processor(),
        options=tuple(_repeated(config)),
        recount=recount(),
        kept=kept_objects(config),
    )


def _repeated(config: pytest.Config) -> Iterator[str]:
    """Yield the options without which the tests of this run would have other limits, or would not be there."""
    for setting in (SETTINGS[name] for name in ("app", "file", "request")):
        value = config.getoption(setting.key)
        for each in (value,) if isinstance(value, str) else value or ():
            yield f"{setting.flag}={shlex.quote(each)}"


def _by_default() -> tuple[Quantity, ...]:
    """Return what is recorded unless a setting says otherwise, with allocations where nothing else tells of work."""
    uncounted = counting_backend().why_not
    return (*RECORDED, "allocations") if {"objects", "bytecodes"} <= uncounted.keys() else RECORDED


def _update(config: pytest.Config) -> tuple[frozenset[str], str | None]:
    """Return what an update may do, empty without one, and the reason for raising limits."""
    mode, reason = config.getoption("mw_budget_update_mode"), config.getoption("mw_budget_reason")
    if not config.getoption("mw_budget_update"):
        for option, value in (("--mw-budget-update-mode", mode), ("--mw-budget-reason", reason)):
            if value is not None:
                raise SettingError(f"{option}={value!r} updates nothing; add {UPDATE}")
        return frozenset(), None
    if not enforced(config):
        raise SettingError(f"{UPDATE} has no figures to write without measuring; add --mw-budget")
    modes: frozenset[str] = check("update_mode", mode or SETTINGS["update_mode"].default, "--mw-budget-update-mode")
    if "fix" in modes and reason is None:
        raise SettingError(
            "--mw-budget-update-mode has fix, which raises limits, and a raise needs a reason; add"
            " --mw-budget-reason='why it costs more'"
        )
    if reason is not None and "fix" not in modes:
        raise SettingError(f"--mw-budget-reason={reason!r} explains no raise; add fix to --mw-budget-update-mode")
    return modes, None if reason is None else check("reason", reason, "--mw-budget-reason")


def read(path: Path, name: str) -> LimitsFile:
    """Read a file of limits, an empty one if there is no file. Raises SettingError if it cannot be used."""
    try:
        return parsed(path.read_text(encoding="utf-8"), name)
    except FileNotFoundError:
        return LimitsFile()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(
            f"{name} cannot be read: {error}; give the path of a file of limits, or of one to write",
            message_id="limits-file",
        ) from None


def surroundings(loop: str) -> Surroundings:
    """Return the surroundings of this process with an event loop."""
    return Surroundings(
        platform.python_implementation(), platform.python_version(), loop, f"{platform.system()} {platform.machine()}"
    )


# ---- the limits of a test -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunLimits:
    """The file of limits as a run uses it.

    `name` is the path as the user wrote it. `modes` are what an update may do, empty without one. `required` is whether
    a missing limit is a failure. `options` are those that a command to accept figures repeats, as a shell takes them.
    `recount` is what this run counts for another one, and then it judges nothing; None in other runs. `kept` are the
    objects of rows that kept their limits in an earlier run.
    """

    path: Path
    name: str
    file: LimitsFile
    quantities: tuple[Quantity, ...]
    modes: frozenset[str]
    reason: str | None
    required: bool
    processor: str
    options: tuple[str, ...]
    recount: Recount | None
    kept: KeptObjects

    def of(self, nodeid: str, settings: Settings) -> Settings:
        """Return the settings of a test with its limits."""
        limits = TestLimits(self, nodeid)
        if self.recount:
            settings = counted_only(settings, self.recount)
        return replace(settings, limits=limits)

    def command(self, *tests: str, raises: bool) -> str:
        """Return the command that accepts the figures of these tests, of all tests without any."""
        words = ["pytest", "--mw-budget", *self.options, UPDATE]
        if raises:
            words += ["--mw-budget-update-mode=create,trim,fix", "--mw-budget-reason='why it costs more'"]
        return " ".join([*words, *map(shlex.quote, tests)])


@dataclass(frozen=True, slots=True)
class TestLimits:
    """The recorded limits of a test, for the request that follows `before`, which has the `route`."""

    __test__ = False  # not a test of pytest's

    run: RunLimits
    nodeid: str
    before: tuple[Result, ...] = ()
    route: str | None = None

    @property
    def timed(self) -> bool:
        """Whether the test has recorded times, or times are recorded in this run."""
        if self.run.modes and not set(self.run.quantities).issubset(COUNTED):
            return True
        processor = self.run.processor
        return any(place.processor == processor and place.nodeid == self.nodeid for place in self.run.file.limits)

    def following(self, results: Sequence[Result], route: str | None = None) -> TestLimits:
        """Return the limits for the next request of the test, after these results."""
        return replace(self, before=tuple(results), route=route)

    def judged(self, result: Result, crowded: str | None) -> Result:
        """Return the result with the verdicts on its limits; without any while limits are being fixed."""
        run = self.run
        *_, (key, _) = keyed(
            (self.nodeid, each_result) for each_result in (*self.before, replace(result, route=self.route))
        )
        packages = installed(result)
        if run.recount or "fix" in run.modes:
            return replace(result, recorded=Recorded(None, packages=packages))
        here = surroundings(result.loop)
        section = chosen(run.file.sections, here)
        limits = {place: limit for place, limit in run.file.limits.items() if place[:3] == (section, *key)}
        judged_limits = tuple(
            self._with_new(judged_limit, here, key, result)
            for judged_limit in judged(result, limits, run.processor, crowded)
        )
        missing = None if "create" in run.modes else self._missing(result, section, here, limits)
        recorded = Recorded(
            section,
            judged_limits,
            missing,
            run.required,
            packages,
            tuple(changed(section, run.file.packages_of(section), here, packages)) if section else (),
            run.command(self.nodeid, raises=any(judged_limit.verdict == "fail" for judged_limit in judged_limits)),
        )
        return with_recorded(result, recorded)

    def _with_new(self, limit: RecordedLimit, here: Surroundings, key: RequestKey, result: Result) -> RecordedLimit:
        """Add the new objects to a limit of objects that is broken."""
        counts = next((row.counts for row in result.rows() if row.name == limit.row), None)
        if limit.verdict != "fail" or limit.quantity != "objects" or counts is None or counts.objects is None:
            return limit
        before = self.run.kept.get(place_of(here.section, key, limit.row))
        return replace(limit, new=new_objects(counts.objects.kinds, before))

    def _missing(
        self, result: Result, section: str | None, here: Surroundings, limits: Mapping[Place, Limit]
    ) -> str | None:
        """Say what has no limit, None if everything has one."""
        name, what = self.run.name, None
        if section is None:
            sections = self.run.file.sections
            others = f"its sections are: {'; '.join(sections)}" if sections else "it has none yet"
            what = f"no section for {here.section} ({others})"
        elif not limits:
            what = f"no limits for this request in its section {section}"
        elif rows := without_limits(result, limits, self.run.quantities):
            what = f"no limits for {' and '.join(rows)} of this request"
        if what is None:
            return None
        # A failure shows the command below.
        remedy = "" if self.run.required else f"; this writes it: {self.run.command(self.nodeid, raises=False)}"
        return tagged(f"{name} has {what}{remedy}", "no-limit")


def rechecked(
    config: pytest.Config, nodeid: str, results: Sequence[Result], limit_s: Seconds | None = None
) -> list[Result]:
    """Return the results of a test, with broken counts judged by the test alone in other processes.

    A count that differs between processes, by hash seeds or addresses, fails only if RECHECKS of them have it over its
    limit. One that is the same in another process is certain, unless its limit is a range. If a process fails, if they
    take more than RECHECK_SHARE of the test's time limit `limit_s`, if one took RECHECK_S for an earlier test, or if a
    fake file system is in place, the verdicts stay.

    A layer that costs more breaks the limits of many tests, and processes for each would take minutes. A test is not
    counted again for a count of a layer that was the same for an earlier test.
    """
    same = config.stash.setdefault(SAME_COUNTS, set())
    rejudged, certain = [*results], set[tuple[str, Quantity, float]]()
    run = config.stash[LIMITS]
    ranges = {place[1:5] for place, limit in run.file.limits.items() if limit.low is not None} if run else set()
    until_s = perf_counter() + (math.inf if limit_s is None else RECHECK_SHARE * limit_s)
    for seed in SEEDS[:RECHECKS]:
        # An undecided limit fails no test by itself: one process is enough.
        verdicts: tuple[Verdict, ...] = ("fail", "undecided") if seed == SEEDS[0] else ("fail",)
        broken = {count for result in rejudged for count in _broken(result, verdicts)}
        left_s = min(RECHECK_S, until_s - perf_counter())
        if not broken - certain or broken & same or faked() or left_s <= 0 or config.stash.get(TOOK_TOO_LONG, False):
            break
        try:
            with _turn(left_s):
                document = recounted(config, Recount((nodeid,), seed, alone=True), left_s)
            again = dict(keyed(measured_run(document).measured))
        except RecountError as error:
            config.stash[TOOK_TOO_LONG] = left_s == RECHECK_S and isinstance(error, RecountTimeError)
            break
        for number, (key, result) in enumerate(keyed((nodeid, result) for result in results)):
            if key in again and result.recorded is not None:
                exact = (count for count in _broken(result) if (*key, *count[:2]) not in ranges)
                certain.update(count for count in exact if _is_counted(again[key], *count))
                rejudged[number] = judged_in_another(rejudged[number], again[key], seed)
    same.update(count for count in certain if count[0] not in (OUTSIDE, ENDPOINT, TOTAL))
    return rejudged


def _turn(patience_s: Seconds) -> AbstractContextManager[None]:
    """Let one worker of pytest-xdist count again at a time: these processes share what is named after a worker."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    return nullcontext() if run is None else held(Path(gettempdir()) / f"mw-budget-recount-{run}.lock", patience_s)


def _broken(
    result: Result, verdicts: Collection[Verdict] = ("fail", "undecided")
) -> Iterator[tuple[str, Quantity, float]]:
    """Yield the counts that are not within their limits, with these verdicts: row, quantity, count."""
    for limit in filter(is_broken_count, result.recorded.limits if result.recorded else ()):
        if limit.value is not None and limit.verdict in verdicts:
            yield limit.row, limit.quantity, limit.value


def _is_counted(result: Result, row: str, quantity: Quantity, value: float) -> bool:
    figure = result.figure(row, quantity)
    return figure is not None and figure.estimate == value


def installed(result: Result) -> dict[str, str]:
    """Return the versions of the distributions that layers of the stack come from."""
    versions: dict[str, str] = {}
    for name in {report.layer.origin.distribution for report in result.layers if report.layer.origin}:
        if name is not None and (version := version_of(name)) is not None:
            versions[name] = version
    return dict(sorted(versions.items()))


# ---- what was collected -------------------------------------------------------------------------------------------

# What the ids of requests without a test begin with, in place of a file.
REQUESTS = "mw-budget"
# Key of what a worker of pytest-xdist has collected.
COLLECTED = "mw_budget_collected"


class Collected:
    """Which judged tests exist in the files that were collected as a whole.

    `tests` are the ids of marked tests, deselected ones included, `others` those of other tests, which may be marked
    only when they run, `files` the collected files, `passed` and `unfinished` the tests that ran to their end or not.
    """

    NAME = "mw-budget-collected"

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        # What the command line names. Where requests take the place of tests, pytest is given no arguments later.
        self.named = [argument for argument in config.args if "::" in argument]
        self.tests: set[str] = set()
        self.others: set[str] = set()
        self.passed: set[str] = set()
        self.unfinished: set[str] = set()
        self.files: set[str] = set()

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note the files that could be collected."""
        if report.passed:
            self.files.add(report.nodeid)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Generator[None, None, None]:
        """Note the marked tests, also those that other plugins leave out, and those that they mark."""
        every = [*items]
        yield
        for item in every:
            marked = item.get_closest_marker("mw_budget") or "mw_budget" in getattr(item, "fixturenames", ())
            (self.tests if marked else self.others).add(test_id(item))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note the tests that passed, those that did not, and those that were marked when they ran."""
        test = getattr(report, "mw_budget_test", report.nodeid)
        if hasattr(report, "mw_budget"):
            self.tests.add(test)
        if not report.passed:
            self.unfinished.add(test)
        elif report.when == "call":
            self.passed.add(test)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Tell the process that reports, from one of the workers."""
        if getattr(session.config, "workerinput", {}).get("workerid") == "gw0":
            session.config.workeroutput[COLLECTED] = [*map(sorted, (self.tests, self.others, self.files))]  # type: ignore[attr-defined]

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take what a worker has collected."""
        tests, others, files = getattr(node, "workeroutput", {}).get(COLLECTED, ((), (), ()))
        self.tests.update(tests)
        self.others.update(others)
        self.files.update(files)

    def unused(self, recorded: set[str]) -> set[str]:
        """Return the ids of `recorded` tests that do not exist any more, or are not judged any more.

        Only of files that were collected as a whole, and of files that are gone. A test without a marker may be marked
        when it runs, so it is judged no more only if it passed.
        """
        if not recorded & self.tests:
            return set()  # perhaps another root directory, from which every id is another one
        if self.config.getoption("lf", None) or (self.named and self.config.option.pyargs):
            return set()  # collected in part: what passed is left out, or an id that begins with a module
        parts = {self._file_of(argument) for argument in self.named}
        if self.config.getoption("mw_budget_request") is not None:
            parts.add(REQUESTS)
        unknown = self.others - (self.passed - self.unfinished)
        gone = recorded - self.tests - unknown
        return {nodeid for nodeid in gone if self._is_whole(nodeid.partition("::")[0], parts)}

    def _is_whole(self, file: str, parts: set[str]) -> bool:
        if file in parts:
            return False
        return file in self.files or (file.endswith(".py") and not (self.config.rootpath / file).exists())

    def _file_of(self, argument: str) -> str:
        """Return the file of an argument as ids name it."""
        file, root = argument.partition("::")[0], self.config.rootpath
        path = PurePath(os.path.abspath(self.config.invocation_params.dir / file))
        return path.relative_to(root).as_posix() if path.is_relative_to(root) and file != REQUESTS else file
