"""The file of limits in runs of pytest: judging, updating, what is missing, what is refused."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from pytest_mwbudget.config.checks import check
from pytest_mwbudget.config.settings import Settings
from pytest_mwbudget.counting.backend import counting_backend
from pytest_mwbudget.errors import SettingError
from pytest_mwbudget.interpreter.clocks import perf_counter
from pytest_mwbudget.limits.file import Limit, LimitsFile, Place, parsed, text_of
from pytest_mwbudget.limits.updating import Measured
from pytest_mwbudget.model.measured_run import MeasuredRun
from pytest_mwbudget.model.quantities import Quantity
from pytest_mwbudget.model.results import RequestLine, Result
from pytest_mwbudget.session import gate
from pytest_mwbudget.session.limits import evidence, of_tests, recount
from pytest_mwbudget.session.limits.of_tests import RunLimits, surroundings
from pytest_mwbudget.session.limits.recount import Recount, RecountError, RecountTimeError, recounted
from pytest_mwbudget.timing.host_speed import processor

from .apps import alone, run_inside
from .canned import RUN, as_json

# Which limits are written and judged is the same in every interpreter.
pytestmark = pytest.mark.once

FIX = ("--mw-budget-update", "--mw-budget-update-mode=create,trim,fix", "--mw-budget-reason=it must")
UPDATE = ("--mw-budget-update",)
HERE = surroundings("asyncio")
# The app round which `Layer` stands, for the end of a conftest.
OF_LAYER = """

async def hello(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"ok"})


@pytest.fixture
def mw_budget_app():
    return Layer(hello)
"""
# A layer that spawns as many tasks as the file `cost` says: tasks are counted in every Python.
CONFTEST = """
import asyncio
from pathlib import Path

import pytest

COST = int(Path(__file__).with_name("cost").read_text())


async def nothing():
    pass


class Layer:
    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        for task in [asyncio.create_task(nothing()) for _ in range(COST)]:
            await task
        await self.app(scope, receive, send)
"""
CONFTEST += OF_LAYER
TESTS = """
import pytest

@pytest.mark.mw_budget
def test_one(mw_budget):
    mw_budget.get("/one")

@pytest.mark.mw_budget
def test_two(mw_budget):
    mw_budget.get("/two")
"""


class Project:
    """A project with a file of limits. `recounts` are what other processes counted again."""

    # The file and the JSON document that an update of TESTS writes: the same in every test.
    updated: ClassVar[tuple[str, str] | None] = None

    def __init__(self, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pytester, self.recounts = pytester, list[Recount]()
        self.file = pytester.path / "mw-budgets.json"
        for name in ("CI", "GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
            monkeypatch.delenv(name, raising=False)
        pytester.makeconftest(CONFTEST)
        pytester.makepyfile(test_app=TESTS)
        pytester.makeini("[pytest]\nmw_budget_file = mw-budgets.json\n")
        self.costs(20)

    def costs(self, tasks: int) -> None:
        (self.pytester.path / "cost").write_text(str(tasks))

    def run(self, *arguments: str, measure: bool = True) -> pytest.RunResult:
        options = ["-q", "-W", "default::pytest_mwbudget.BudgetWarning"]
        options += ["--mw-budget", "--mw-budget-flamegraph=never"] if measure else []
        return run_inside(self.pytester, *options, *arguments)

    def recorded(self) -> Any:
        """Write the file that an update of TESTS writes, and return its JSON document; one update serves all tests."""
        if Project.updated is None:
            self.run(*UPDATE, "--mw-budget-json=mw.json").assert_outcomes(passed=2)
            document = (self.pytester.path / "mw.json").read_text(encoding="utf-8")
            Project.updated = (self.file.read_text(encoding="utf-8"), document)
        text, document = Project.updated
        self.file.write_text(text, encoding="utf-8")
        return json.loads(document)

    @property
    def limits(self) -> dict[str, float]:
        """The limits of tasks, by test and row."""
        limits = parsed(self.file.read_text(encoding="utf-8"), "'f'").limits
        return {
            f"{p.nodeid.rpartition('_')[2]} {p.row}": limit.most for p, limit in limits.items() if p.quantity == "tasks"
        }

    def commit(self) -> None:
        for command in ("init -q", "add -A", "-c user.name=x -c user.email=x@x commit -qm x"):
            subprocess.run(["git", *command.split()], cwd=self.pytester.path, check=True, capture_output=True)


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project whose counts are the same in other processes."""
    project = Project(pytester, monkeypatch)

    def recounted(config: pytest.Config, order: Recount, limit_s: float | None) -> Any:
        project.recounts.append(order)
        return measured_here(config, order)

    monkeypatch.setattr(evidence, "recounted", recounted)
    monkeypatch.setattr(of_tests, "recounted", in_no_other_process)
    return project


def measured_here(config: pytest.Config, order: Recount) -> Any:
    """Return what the run itself has measured of these tests."""
    summary = config.pluginmanager.get_plugin("mw-budget-summary")
    measured = (request.measured for request in summary.requests)
    return as_json(MeasuredRun(RUN, tuple((nodeid, result) for nodeid, result in measured if nodeid in order.tests)))


def spawned(measurement: Any, tasks: int) -> None:
    """Set the number of tasks that the layer of a measurement spawned."""
    for row in (measurement["layers"][0], measurement["ledger"]["total"]):
        row["tasks"] |= {"count": tasks, "low": tasks, "high": tasks}


def in_no_other_process(*arguments: Any) -> None:
    raise RecountError("no other process")


EVERY_ROW = {"one (outside)": 0, "one Layer": 20, "one (endpoint)": 0, "one (total)": 20}
EVERY_ROW |= {name.replace("one", "two"): number for name, number in EVERY_ROW.items()}


def test_a_file_that_breaks_during_the_run_stays_as_it_is_and_fails_the_update(project: Project) -> None:
    project.recorded()
    project.pytester.makepyfile(
        test_app=TESTS + "\n    from pathlib import Path\n    Path('mw-budgets.json').write_text('{')\n"
    )
    result = project.run(*UPDATE)
    result.assert_outcomes(passed=2)
    assert result.ret == 1
    result.stdout.fnmatch_lines(["mw-budgets.json cannot be updated: 'mw-budgets.json' *"])
    assert project.file.read_text(encoding="utf-8") == "{"


def test_what_is_created_judges_the_next_runs_and_changes_no_more(project: Project) -> None:
    result = project.run(*UPDATE)
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(
        [
            "mw-budget: counting 2 tests again in another process",
            "mw-budget: counting 2 tests alone, each in a process of its own",
            "mw-budgets.json: * created",
        ]
    )
    assert project.limits == EVERY_ROW
    both, one, two = (
        ("test_app.py::test_one", "test_app.py::test_two"),
        ("test_app.py::test_one",),
        ("test_app.py::test_two",),
    )
    in_order = Recount(both, 2, delayed=True)
    assert project.recounts == [
        in_order,
        Recount(one, 1, alone=True, delayed=True),
        Recount(two, 1, alone=True, delayed=True),
    ]
    text = project.file.read_text(encoding="utf-8")
    for arguments in ((), UPDATE, FIX):
        result = project.run(*arguments)
        result.assert_outcomes(passed=2)
        assert project.file.read_text(encoding="utf-8") == text
    assert project.recounts[3:] == [in_order, in_order]  # of the two updates
    project.costs(21)
    result = project.run("test_app.py::test_one")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "GET /one: Layer 21 tasks, recorded limit 20 tasks (2 of 4 rows over recorded limits)",
            "Layer is over its recorded limit*: *",
            "Next: if the cost is intended, this writes the figures into the file*",
            "    pytest --mw-budget --mw-budget-update --mw-budget-update-mode=create,trim,fix"
            " --mw-budget-reason='why it costs more' test_app.py::test_one",
            "More: mwbudget explain over-limit*",
        ]
    )


def test_without_a_limit_a_run_warns_and_fails_in_ci(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    result = project.run("test_app.py::test_one")
    result.assert_outcomes(passed=1, warnings=1)
    missing = f"mw-budgets.json has no section for {HERE.section} (it has none yet)"
    command = "pytest --mw-budget --mw-budget-update test_app.py::test_one"
    result.stdout.fnmatch_lines([f"*BudgetWarning: GET /one: {missing}; this writes it: {command} [[]no-limit[]]*"])
    monkeypatch.setenv("CI", "true")
    result = project.run("test_app.py::test_one")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "GET /one: no recorded limit",
            "    pytest --mw-budget --mw-budget-update test_app.py::test_one",
            "More: mwbudget explain no-limit*",
        ]
    )
    project.run(*UPDATE, "test_app.py::test_one").assert_outcomes(passed=1)
    result = project.run()
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["mw-budgets.json has no limits for this request in its section *"])
    text = project.file.read_text(encoding="utf-8").replace('"Layer": {', '"Former": {')
    project.file.write_text(text, encoding="utf-8")
    result = project.run("test_app.py::test_one")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["mw-budgets.json has no limits for Layer of this request*"])
    monkeypatch.setenv("CI", "false")
    project.run("test_app.py::test_one").assert_outcomes(passed=1, warnings=1)


def test_a_failure_says_once_that_a_limit_is_missing(project: Project) -> None:
    project.pytester.makepyfile(test_app=TESTS.replace("mw_budget\ndef test_one", "mw_budget(tasks=1)\ndef test_one"))
    result = project.run("test_app.py::test_one")
    result.assert_outcomes(failed=1)
    assert str(result.stdout).count("mw-budgets.json has no section") == 1


def test_nothing_is_judged_without_measuring_or_without_a_file(project: Project) -> None:
    project.file.write_text("no JSON")
    project.run(measure=False).assert_outcomes(passed=2)
    project.file.unlink()
    counted = ("-o", "mw_budget_tasks=20")  # without any budget, times would be measured
    project.run("-o", "mw_budget_file=", *counted, "test_app.py::test_one").assert_outcomes(passed=1)


def test_limits_of_counts_need_no_times(project: Project) -> None:
    measurements = project.recorded()["measurements"]
    assert [measurement["total_us"] for measurement in measurements] == [None, None]
    assert {measurement["recorded"]["section"] for measurement in measurements} == {None}
    project.run("--mw-budget-json=mw.json", "test_app.py::test_one")
    (first,) = json.loads((project.pytester.path / "mw.json").read_text(encoding="utf-8"))["measurements"]
    assert first["total_us"] is None
    assert first["verdict"] == "pass"
    assert first["recorded"]["section"] == HERE.section
    assert {
        (limit["row"], limit["limit"]) for limit in first["recorded"]["limits"] if limit["quantity"] == "tasks"
    } == {
        ("(outside)", 0),
        ("Layer", 20),
        ("(endpoint)", 0),
        ("(total)", 20),
    }


def test_only_fix_raises_limits_and_it_lists_the_raises_by_size_with_large_ones_marked(project: Project) -> None:
    project.recorded()
    project.costs(22)
    result = project.run(*UPDATE, "test_app.py::test_one")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["mw-budgets.json: nothing is written of * that did not pass"])
    result.stdout.no_fnmatch_line("*is up to date*")
    result = project.run(*FIX, "test_app.py::test_one")
    result.assert_outcomes(passed=1)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["  raised: test_app.py::test_one, GET /one, Layer: 20 tasks to 22 tasks (+10%)"])
    result.stdout.no_fnmatch_line("*raised by more than*")
    assert '"limit": 22, "reason": "it must"' in project.file.read_text(encoding="utf-8")
    project.run("test_app.py::test_one").assert_outcomes(passed=1)
    project.costs(44)
    result = project.run(*FIX, "test_app.py::test_one")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(
        [
            "  ! raised: test_app.py::test_one, GET /one, Layer: 22 tasks to 44 tasks (+100%)",
            "  !: raised by more than 15%",
        ]
    )
    raises = [line for line in result.outlines if "raised: " in line]
    shares = [float(line.partition("(+")[2].rstrip("%)")) for line in raises]
    assert shares == sorted(shares, reverse=True)
    project.costs(5)
    result = project.run(*UPDATE, "test_app.py::test_one")
    result.stdout.fnmatch_lines(["  trimmed: test_app.py::test_one, GET /one, Layer: 44 tasks to 5 tasks"])
    assert project.limits["one Layer"] == 5


def test_no_limit_passes_a_budget_of_the_marker(project: Project) -> None:
    project.recorded()
    project.costs(22)
    marked = TESTS.replace("mw_budget\ndef test_one", "mw_budget(tasks=21)\ndef test_one")
    project.pytester.makepyfile(test_app=marked)
    result = project.run(*FIX)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["Layer spawns 22 tasks per request, its budget is 21 tasks."])
    result.stdout.fnmatch_lines(["mw-budgets.json: nothing is written of 1 test that did not pass"])
    assert project.limits["one Layer"] == 20
    assert project.limits["two Layer"] == 22
    result = project.run("test_app.py::test_one")
    result.stdout.fnmatch_lines(
        ["GET /one: Layer 22 tasks, budget 21 tasks*", "Layer spawns 22 tasks*", "Layer is over its recorded limit*"]
    )
    # The command would write nothing of this test.
    result.stdout.no_fnmatch_line("*--mw-budget-update*")


def test_a_part_removes_nothing_and_a_whole_run_names_what_is_unused(project: Project) -> None:
    project.recorded()
    text = project.file.read_text(encoding="utf-8")
    renamed = TESTS.replace("test_two", "test_second")
    project.pytester.makepyfile(test_app=renamed, test_more="def test_more(): pass")
    for part in (("test_app.py::test_one",), ("test_more.py",), ("-k", "more"), ("--ignore=test_app.py",)):
        project.run(*UPDATE, *part)
        assert project.file.read_text(encoding="utf-8") == text, part
    result = project.run()
    result.stdout.fnmatch_lines(
        [
            "mw-budgets.json has limits that no test uses: test_app.py::test_two; --mw-budget-update removes them"
            " [[]unused-limit[]]"
        ]
    )
    result = project.run(*UPDATE)
    result.stdout.fnmatch_lines(["mw-budgets.json: * created, * removed"])
    assert set(project.limits) == {name.replace("two", "second") for name in EVERY_ROW}
    (project.pytester.path / "test_app.py").write_text(renamed.replace("@pytest.mark.mw_budget\ndef test_one", "def x"))
    project.run(*UPDATE)
    assert not [name for name in project.limits if name.startswith("one")]


def test_of_a_file_that_was_collected_in_part_nothing_is_removed(project: Project) -> None:
    fails = TESTS.replace('get("/one")', 'get("/one")\n    assert not __import__("os").path.exists("fail")')
    project.pytester.makepyfile(**{"shop/__init__": "", "shop/test_app": fails})
    (project.pytester.path / "test_app.py").unlink()
    project.pytester.syspathinsert()
    project.run(*UPDATE)
    text = project.file.read_text(encoding="utf-8")
    (project.pytester.path / "fail").touch()
    project.run("-p", "cacheprovider").assert_outcomes(passed=1, failed=1)
    (project.pytester.path / "fail").unlink()
    project.run(*UPDATE, "--lf", "-p", "cacheprovider").assert_outcomes(passed=1)
    assert project.file.read_text(encoding="utf-8") == text
    project.run(*UPDATE, "--pyargs", "shop.test_app::test_one").assert_outcomes(passed=1)
    assert project.file.read_text(encoding="utf-8") == text


def test_a_test_that_is_marked_late_is_not_unused(project: Project) -> None:
    """By another plugin, or while it runs."""
    late = """

import pytest

def pytest_collection_modifyitems(items):
    for item in items:
        if item.name == "test_two":
            item.add_marker("mw_budget")
"""
    tests = """
import pytest

@pytest.mark.mw_budget
def test_one(mw_budget):
    mw_budget.get("/one")

def test_two(request):
    request.getfixturevalue("mw_budget").get("/two")

def test_three(request):
    request.node.add_marker("mw_budget")
    request.getfixturevalue("mw_budget").get("/three")
"""
    project.pytester.makeconftest(CONFTEST + late)
    project.pytester.makepyfile(test_app=tests)
    project.run(*UPDATE).assert_outcomes(passed=3)
    text = project.file.read_text(encoding="utf-8")
    assert "test_three" in text
    for arguments in ((), UPDATE):
        result = project.run(*arguments)
        result.assert_outcomes(passed=3)
        result.stdout.no_fnmatch_line("*no test uses*")
        assert project.file.read_text(encoding="utf-8") == text
    # Where such a test does not run to its end, it still exists.
    skipped = tests.replace("def test_three", "@pytest.mark.skip\ndef test_three")
    for more, written in (
        ((*UPDATE, "-k", "test_one"), tests),
        ((*UPDATE, "-m", "mw_budget"), tests),
        (UPDATE, skipped),
    ):
        project.pytester.makepyfile(test_app=written)
        result = project.run(*more)
        assert result.ret == 0
        assert project.file.read_text(encoding="utf-8") == text
        result = project.run(*more[len(UPDATE) :])
        result.stdout.no_fnmatch_line("*no test uses*")
    # Or where its request is left out.
    own = "TestClient(request.getfixturevalue('mw_budget_app')).post('/three')"
    left_out = "from starlette.testclient import TestClient\n" + tests.replace(
        'request.getfixturevalue("mw_budget").get("/three")', own
    )
    project.pytester.makepyfile(test_app=left_out)
    assert project.run(*UPDATE).ret == 0
    assert project.file.read_text(encoding="utf-8") == text
    # One that runs to its end without a request is judged no more.
    project.pytester.makepyfile(test_app=tests.replace('    request.node.add_marker("mw_budget")\n', "    return\n"))
    project.run(*UPDATE).assert_outcomes(passed=3)
    assert "test_three" not in project.file.read_text(encoding="utf-8")


def test_a_skipped_test_is_not_unused(project: Project) -> None:
    project.recorded()
    text = project.file.read_text(encoding="utf-8")
    for mark in ("@pytest.mark.skip", "@pytest.mark.xfail(reason='x', strict=False)"):
        project.pytester.makepyfile(test_app=TESTS.replace("def test_two", f"{mark}\ndef test_two"))
        assert "unused" not in project.run().stdout.str()
        project.run(*UPDATE)
        assert project.file.read_text(encoding="utf-8") == text or "xfail" in mark
    project.pytester.makepyfile(test_app="import pytest\npytest.skip('here', allow_module_level=True)", test_b=TESTS)
    project.run(*UPDATE)
    assert parsed(text, "'f'").limits.keys() < parsed(project.file.read_text(encoding="utf-8"), "'f'").limits.keys()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--mw-budget-reason=x",), "--mw-budget-reason='x' updates nothing; add --mw-budget-update"),
        (("--mw-budget-update-mode=fix",), "--mw-budget-update-mode='fix' updates nothing; add --mw-budget-update"),
        ((*UPDATE, "--mw-budget-reason=x"), "--mw-budget-reason='x' explains no raise; add fix to"),
        ((*UPDATE, "--mw-budget-update-mode=fix"), "--mw-budget-update-mode has fix, which raises limits, and a raise"),
        ((*UPDATE, "--mw-budget-update-mode=fixx"), "--mw-budget-update-mode is 'fixx'. Did you mean 'fix'? The"),
        ((*FIX[:2], "--mw-budget-reason= "), "--mw-budget-reason is blank; write a sentence"),
        ((*UPDATE, "-o", "mw_budget_file="), "--mw-budget-update has no file to update; set mw_budget_file ="),
        (("-o", "mw_budget_record=object"), "mw_budget_record is 'object'. Did you mean 'objects'? The choices are:"),
    ],
)
def test_settings_that_do_nothing_or_cannot_be_used_are_explained(
    project: Project, arguments: tuple[str, ...], said: str
) -> None:
    result = project.run(*arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {said.replace('[', '[[]')}*"])


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("update_mode", "here names no mode. The modes are: create, trim,"),
        ("record", "here names no quantity. The quantities are: us, busy_us, us_per_message, objects"),
    ],
)
def test_a_list_without_a_name_is_explained(name: str, said: str) -> None:
    with pytest.raises(SettingError, match=f"^{re.escape(said)}"):
        check(name, ",", "here")


def test_an_option_needs_a_run_that_measures(project: Project) -> None:
    for option in ("--mw-budget-file=x.json", "--mw-budget-update"):
        result = project.run(option, measure=False)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines([f"ERROR: {option.partition('=')[0]}*without measuring; add --mw-budget"])


def test_a_file_that_cannot_be_used_is_not_overwritten(project: Project) -> None:
    text = "<<<<<<< HEAD\n"
    project.file.write_text(text)
    for arguments in ((), UPDATE):
        result = project.run(*arguments)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines(["ERROR: 'mw-budgets.json' *", "More: mwbudget explain limits-file"])
    assert project.file.read_text() == text


def test_another_patch_release_or_package_is_compared_and_named(project: Project) -> None:
    project.recorded()
    file = parsed(project.file.read_text(encoding="utf-8"), "'f'")
    minor = ".".join(HERE.version.split(".")[:2])
    other = HERE.section.replace(f" {HERE.version},", f" {minor}.99,")
    limits = {place._replace(section=other): limit for place, limit in file.limits.items()}
    project.file.write_text(text_of(LimitsFile(limits)), encoding="utf-8")
    project.costs(21)
    result = project.run("test_app.py::test_one")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [f"note: The limits were recorded with CPython {minor}.99, here CPython {HERE.version}.*"]
    )
    lines = [
        "mw-budgets.json was recorded with other versions, and is compared all the same: CPython"
        f" {minor}.99, here CPython {HERE.version} [[]limits-changed[]]"
    ]
    result.stdout.fnmatch_lines(lines)
    project.costs(20)
    result = project.run(*UPDATE, "test_app.py::test_one")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(lines)
    assert other in project.file.read_text(encoding="utf-8")
    result = project.run(*UPDATE)
    result.stdout.fnmatch_lines(["mw-budgets.json: recorded with the versions of this run now"])
    assert other not in project.file.read_text(encoding="utf-8")


def test_a_count_that_another_process_does_not_have_is_not_written(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evidence, "recounted", lambda config, order, limit_s: as_json(MeasuredRun(RUN)))
    result = project.run(*UPDATE, "test_app.py::test_one", "-o", "mw_budget_record=tasks")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        [
            "mw-budgets.json: no count is written of test_app.py::test_one, GET /one: another process did not count it"
            " [[]limit-refused[]]"
        ]
    )
    result.stdout.no_fnmatch_line("*no limits of*")

    def failed(config: pytest.Config, order: Recount, limit_s: float | None) -> None:
        raise RecountError("pytest ended with status 3 and no result: boom")

    monkeypatch.setattr(evidence, "recounted", failed)
    result = project.run(*UPDATE, "test_app.py::test_one")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        ["mw-budgets.json: no count is written, because counting in another process failed: *boom*"]
    )
    assert not project.file.exists()


def test_a_count_that_is_within_its_limit_in_another_process_is_kept(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = project.recorded()
    asked: list[Recount] = []

    def recounted(config: pytest.Config, order: Recount, limit_s: float) -> Any:
        asked.append(order)
        return document

    monkeypatch.setattr(of_tests, "recounted", recounted)
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    project.run("test_app.py::test_one").assert_outcomes(passed=1)
    assert asked == []
    project.costs(21)
    result = project.run("-vv", "test_app.py::test_one")
    result.assert_outcomes(passed=1)
    assert asked == [Recount(("test_app.py::test_one",), 1, alone=True)]
    text = " ".join(result.stdout.str().split())
    assert "within their limits in a process of the test alone, with PYTHONHASHSEED=1:" in text
    assert "tasks of Layer (21 here, 20 there)" in text
    if hasattr(pytest, "Subtests"):  # whose reports come before the test ends
        inside = TESTS.replace("mw_budget)", "mw_budget, subtests)").replace(
            "mw_budget.get", "with subtests.test(): mw_budget.get"
        )
        project.pytester.makepyfile(test_app=inside)
        result = project.run("-vv", "test_app.py::test_one", "--mw-budget-json=found.json")
        assert result.ret == 0
        (measured,) = json.loads((project.pytester.path / "found.json").read_text())["measurements"]
        assert measured["verdict"] == "pass"


def test_a_count_fails_if_it_is_the_same_in_another_process_or_too_high_in_three(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = project.recorded()
    # By test: the low end of its limit, its counts in other processes, and its outcome. The same count in another
    # process is certain, unless the limit is a range. That test is last: later tests are not counted again.
    cases: dict[str, tuple[float | None, tuple[int, ...], str]] = {
        "test_app.py::test_other_counts_and_one_within": (None, (22, 23, 20), "passed"),
        "test_app.py::test_other_counts": (None, (22, 23, 24), "failed"),
        "test_app.py::test_range_and_one_within": (18, (21, 21, 20), "passed"),
        "test_app.py::test_range": (18, (21, 21, 21), "failed"),
        "test_app.py::test_same_count": (None, (21,), "failed"),
    }
    limits = {
        place._replace(nodeid=nodeid): Limit(20, low) if (place.quantity, limit.most) == ("tasks", 20) else limit
        for nodeid, (low, _, _) in cases.items()
        for place, limit in parsed(project.file.read_text(encoding="utf-8"), "'f'").limits.items()
        if place.nodeid == "test_app.py::test_one"
    }
    project.file.write_text(text_of(LimitsFile(limits)), encoding="utf-8")
    tests = [nodeid.partition("::")[2] for nodeid in cases]
    project.pytester.makepyfile(
        test_app="\n".join(f"def {test}(mw_budget):\n    mw_budget.get('/one')" for test in tests)
    )
    rest = {nodeid: iter(counts) for nodeid, (_, counts, _) in cases.items()}

    def recounted(config: pytest.Config, order: Recount, limit_s: float) -> Any:
        (nodeid,) = order.tests
        other = json.loads(json.dumps(document["measurements"][0])) | {"nodeid": nodeid}
        spawned(other, next(rest[nodeid]))
        return {**document, "measurements": [other]}

    monkeypatch.setattr(of_tests, "recounted", recounted)
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    project.costs(21)
    recorder: Any = project.run().reprec  # type: ignore[attr-defined]
    calls = [report for report in recorder.getreports("pytest_runtest_logreport") if report.when == "call"]
    assert {call.nodeid: call.outcome for call in calls} == {nodeid: case[-1] for nodeid, case in cases.items()}
    assert [nodeid for nodeid, counts in rest.items() if [*counts]] == []


def test_other_processes_take_a_part_of_the_time_limit_of_the_test_and_none_if_it_failed(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.recorded()
    project.costs(21)
    limits_s: list[float] = []

    def recounted(config: pytest.Config, order: Recount, limit_s: float) -> Any:
        limits_s.append(limit_s)
        raise RecountError("no other process")

    monkeypatch.setattr(of_tests, "recounted", recounted)
    monkeypatch.setattr(gate, "time_limit_s", lambda item: 4.0)
    project.run("-k", "test_one").assert_outcomes(failed=1, deselected=1)
    (limit_s,) = limits_s
    assert 0 < limit_s <= 2
    project.pytester.makepyfile(test_app=TESTS + "    raise KeyError\n")
    project.run("-k", "test_two").assert_outcomes(failed=1, deselected=1)
    assert limits_s == [limit_s]


def test_after_a_process_that_took_too_long_no_other_is_started(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.recorded()
    project.costs(21)
    asked: list[tuple[str, ...]] = []
    error: RecountError = RecountError("no other process")

    def recounted(config: pytest.Config, order: Recount, limit_s: float) -> Any:
        asked.append(order.tests)
        raise error

    monkeypatch.setattr(of_tests, "recounted", recounted)
    project.run().assert_outcomes(failed=2)
    assert asked == [("test_app.py::test_one",), ("test_app.py::test_two",)]
    asked.clear()
    error = RecountTimeError("pytest took longer than 60 s")
    project.run().assert_outcomes(failed=2)
    assert asked == [("test_app.py::test_one",)]


def test_a_run_says_that_recorded_times_are_those_of_another_processor(project: Project) -> None:
    project.recorded()
    limits = parsed(project.file.read_text(encoding="utf-8"), "'f'").limits
    total = next(place for place in limits if place.row == "(total)" and place.nodeid.endswith("test_one"))
    times = {total._replace(quantity="us", processor="Abacus 3000"): Limit(1.0)}
    project.file.write_text(text_of(LimitsFile({**limits, **times})), encoding="utf-8")
    result = project.run()
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(
        [
            "mw-budgets.json: no recorded time of 1 request was judged: it has times of Abacus 3000; this is *"
            " [[]no-limit[]]"
        ]
    )
    result.stdout.no_fnmatch_line("*to record times*")
    result = project.run("-o", "mw_budget_record=us")
    result.stdout.fnmatch_lines(["*; to record times of it: pytest --mw-budget --mw-budget-update [[]no-limit[]]"])
    times[total._replace(quantity="us", processor=processor())] = Limit(1e9)
    project.file.write_text(text_of(LimitsFile({**limits, **times})), encoding="utf-8")
    result = project.run()
    result.assert_outcomes(passed=2)
    result.stdout.no_fnmatch_line("*no recorded time*")


def test_what_counts_for_another_process_makes_no_profile_and_no_load() -> None:
    nothing = {"quantities": (), "modes": frozenset[str](), "options": (), "kept": {}, "reason": None}
    order = Recount(("test_app.py::test_one",), seed=1)
    run = RunLimits(Path("f"), "f", LimitsFile(), required=False, processor="", recount=order, **nothing)
    settings = run.of("test_app.py::test_one", Settings(flamegraph="always"))
    assert (settings.flamegraph, settings.loads, settings.timed) == ("never", False, False)


def test_another_process_can_be_started_wherever_the_test_has_gone(
    pytestconfig: pytest.Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [*recount._command(pytestconfig)]
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert [*recount._command(pytestconfig)] == command


def test_a_layer_that_broke_a_limit_for_certain_is_not_counted_again_for_each_test(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    less = project.recorded()
    project.costs(21)
    project.run("--mw-budget-json=same.json").assert_outcomes(failed=2)
    other = json.loads((project.pytester.path / "same.json").read_text(encoding="utf-8"))
    asked: list[tuple[str, ...]] = []

    def recounted(config: pytest.Config, order: Recount, limit_s: float) -> Any:
        asked.append(order.tests)
        return other

    monkeypatch.setattr(of_tests, "recounted", recounted)
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    project.run().assert_outcomes(failed=2)
    # Several times where allocations are recorded, which differ from one run to the next.
    assert set(asked) == {("test_app.py::test_one",)}
    asked.clear()
    other = less
    project.run().assert_outcomes(passed=2)
    assert asked == [("test_app.py::test_one",), ("test_app.py::test_two",)]


def test_counts_that_differ_are_counted_in_more_processes(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    orders: list[Recount] = []

    def recounted(config: pytest.Config, order: Recount, limit_s: float | None) -> Any:
        orders.append(order)
        document = measured_here(config, order)
        for measurement in document["measurements"]:
            if "one" in measurement["nodeid"] and order.seed in (2, 5):
                spawned(measurement, 21)
        return document

    monkeypatch.setattr(evidence, "recounted", recounted)
    project.run(*UPDATE).assert_outcomes(passed=2)
    assert [order.seed for order in orders if order.alone and "test_one" in order.tests[0]] == [1, 3, 4, 5, 6]
    assert [order.seed for order in orders if order.alone and "test_two" in order.tests[0]] == [1]
    assert '"tasks": [20, 22]' in project.file.read_text(encoding="utf-8")
    assert project.limits["two Layer"] == 20


def test_a_limit_is_the_higher_one_of_the_test_alone_and_after_others(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    def recounted(config: pytest.Config, order: Recount, limit_s: float | None) -> Any:
        document = measured_here(config, order)
        for measurement in document["measurements"]:
            if order.alone and "two" in measurement["nodeid"]:
                spawned(measurement, 25)
        return document

    monkeypatch.setattr(evidence, "recounted", recounted)
    result = project.run(*UPDATE, "-o", "mw_budget_record=tasks")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(
        [
            "mw-budgets.json: some counts differ if the test runs alone; the higher one is the limit",
            "  test_app.py::test_two, GET /two, Layer: 25 tasks alone, 20 tasks after other tests",
        ]
    )
    assert project.limits["two Layer"] == 25
    assert project.limits["one Layer"] == 20
    project.run().assert_outcomes(passed=2)
    project.costs(25)
    result = project.run()
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["FAILED test_app.py::test_one *"])


def test_allocations_are_recorded_where_neither_objects_nor_bytecodes_are_counted(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    for why_not, recorded in (({}, False), ({"objects": "no"}, False), ({"objects": "no", "bytecodes": "no"}, True)):
        monkeypatch.setattr(of_tests, "counting_backend", lambda why_not=why_not: SimpleNamespace(why_not=why_not))
        project.file.unlink(missing_ok=True)
        project.run(*UPDATE).assert_outcomes(passed=2)
        assert ('"allocations"' in project.file.read_text(encoding="utf-8")) == recorded


def test_an_update_says_which_quantities_have_no_limits(project: Project) -> None:
    lacking = " and ".join(quantity for quantity in ("objects", "bytecodes") if quantity in counting_backend().why_not)
    result = project.run(*UPDATE, "-o", "mw_budget_record=objects,bytecodes,tasks")
    if lacking:
        result.stdout.fnmatch_lines([f"mw-budgets.json: no limits of {lacking} in 2 of 2 requests: not counted; *"])
    else:
        result.stdout.no_fnmatch_line("*no limits of*")
    result = project.run(*UPDATE, "-o", "mw_budget_record=us_per_message,tasks")
    result.stdout.fnmatch_lines(["mw-budgets.json: no limits of us_per_message in 2 of 2 requests: the machine *"])


def test_each_quantity_without_limits_has_its_own_number_of_requests(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = Measured.of

    def of(result: Result, quantities: Collection[Quantity]) -> Measured:
        return every(result, quantities) if result.request == RequestLine("GET", "/one") else every(result, {"threads"})

    monkeypatch.setattr(Measured, "of", of)
    result = project.run(*UPDATE, "-o", "mw_budget_record=tasks,allocations,threads,us_per_message")
    result.stdout.fnmatch_lines_random(
        [
            "mw-budgets.json: no limits of us_per_message in 2 of 2 requests: the machine *",
            "mw-budgets.json: no limits of allocations and tasks in 1 of 2 requests: not counted; *",
        ]
    )


def test_a_request_that_a_test_makes_only_alone_has_limits_that_stay(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a login of a fixture of the session, which the first test of a process makes."""

    def recounted(config: pytest.Config, order: Recount, limit_s: float | None) -> Any:
        document = measured_here(config, order)
        if order.alone and "two" in order.tests[0]:
            (two,) = document["measurements"]
            document["measurements"].append(two | {"request": two["request"] | {"url": "/login"}})
        return document

    monkeypatch.setattr(evidence, "recounted", recounted)
    project.run(*UPDATE, "test_app.py::test_two")
    text = project.file.read_text(encoding="utf-8")
    assert '"GET /login": {' in text
    assert "no test uses" not in project.run("test_app.py::test_two").stdout.str()
    project.run(*UPDATE, "test_app.py::test_two")
    assert project.file.read_text(encoding="utf-8") == text
    monkeypatch.setattr(evidence, "recounted", lambda config, order, limit_s: measured_here(config, order))
    project.run(*UPDATE, "test_app.py::test_two").stdout.fnmatch_lines(["mw-budgets.json: * removed"])
    assert "GET /login" not in project.file.read_text(encoding="utf-8")


def test_a_test_that_cannot_run_alone_has_limits_of_the_run(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    def recounted(config: pytest.Config, order: Recount, limit_s: float | None) -> Any:
        if order.alone and "two" in order.tests[0]:
            raise RecountError("pytest ended with status 1: no data")
        return measured_here(config, order)

    monkeypatch.setattr(evidence, "recounted", recounted)
    result = project.run(*UPDATE)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["mw-budgets.json: test_app.py::test_two could not be counted alone: *: no data"])
    assert project.limits == EVERY_ROW


def test_a_limit_that_another_process_breaks_is_not_up_to_date(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.recorded()

    def recounted(config: pytest.Config, order: Recount, limit_s: float | None) -> Any:
        document = measured_here(config, order)
        for measurement in document["measurements"]:
            if not order.alone:
                spawned(measurement, 20 + order.seed % 3)
        return document

    monkeypatch.setattr(evidence, "recounted", recounted)
    result = project.run(*UPDATE, "test_app.py::test_one")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(
        [
            "mw-budgets.json: other processes exceed limits that this run keeps; to raise them: pytest --mw-budget *",
            "  test_app.py::test_one, GET /one, Layer: 20 to 22 tasks, limit 20 tasks",
        ]
    )
    result.stdout.no_fnmatch_line("*is up to date*")
    assert project.limits["one Layer"] == 20
    project.run(*FIX, "test_app.py::test_one")
    assert '"tasks": {"limit": [20, 22], "reason": "it must"}' in project.file.read_text(encoding="utf-8")


def test_what_another_run_wrote_meanwhile_is_kept(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = evidence.recounted
    other = Place("CPython 3.9.1, asyncio, Elsewhere", "t.py::test", "GET /", "(total)", "tasks")

    def recounted(config: pytest.Config, order: Recount, limit_s: float | None) -> Any:
        project.file.write_text(text_of(LimitsFile({other: Limit(1)})), encoding="utf-8")
        return plain(config, order, limit_s)

    monkeypatch.setattr(evidence, "recounted", recounted)
    project.run(*UPDATE, "test_app.py::test_one")
    limits = parsed(project.file.read_text(encoding="utf-8"), "'f'").limits
    assert limits[other] == Limit(1)
    assert {place.section for place in limits} == {other.section, HERE.section}


@pytest.mark.skipif(sys.platform == "win32", reason="no groups of processes")
def test_a_recount_ends_what_a_test_leaves_behind_and_is_in_the_same_ci_system(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has the output of the recount, too, which nobody must wait for."""
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(pytester.path / "summary"))
    pytester.makepyfile(
        test_app="""
        import os
        import subprocess

        def test_one():
            server = subprocess.Popen(["sleep", "60"])
            assert (os.environ["GITHUB_ACTIONS"], os.environ.get("GITHUB_STEP_SUMMARY")) == ("true", None)
        """
    )
    config: Any = SimpleNamespace(
        invocation_params=SimpleNamespace(dir=pytester.path, args=[*alone(monkeypatch), "--mw-budget", "test_app.py"]),
        pluginmanager=SimpleNamespace(get_plugins=set),
    )
    begin = perf_counter()
    assert recounted(config, Recount(("test_app.py::test_one",), seed=1, alone=True))["measurements"] == []
    assert perf_counter() - begin < 40


def test_a_run_that_is_interrupted_writes_nothing(project: Project) -> None:
    project.pytester.makepyfile(test_app=TESTS.replace('mw_budget.get("/two")', "pytest.exit('enough')"))
    project.run(*UPDATE)
    assert project.recounts == []
    assert not project.file.exists()


def test_reports_say_which_limit_was_broken(project: Project) -> None:
    pytest.importorskip("jinja2")
    project.recorded()
    project.costs(25)
    project.run("--mw-budget-html=mw.html", "--mw-budget-markdown=mw.md", "--junitxml=mw.xml", "test_app.py::test_one")
    texts = {name: (project.pytester.path / f"mw.{name}").read_text(encoding="utf-8") for name in ("html", "md", "xml")}
    for name in ("html", "md"):
        assert "is over its recorded limit" in texts[name]
        assert "limit 20 (+5)" in texts[name].replace("&#43;", "+")
        assert "--mw-budget-update-mode=create,trim,fix" in texts[name].replace("&#61;", "=")
    assert 'name="mw_budget.over_recorded_limits" value="' in texts["xml"]
    assert "Layer: 25 tasks, limit 20 tasks" in texts["xml"]


def test_two_requests_of_one_name_have_limits_of_their_own(project: Project) -> None:
    project.pytester.makepyfile(
        test_app="""
        def test_one(mw_budget):
            assert mw_budget.get("/one").recorded is not None
            mw_budget.get("/one")
        """
    )
    project.run(*UPDATE).assert_outcomes(passed=1)
    text = project.file.read_text(encoding="utf-8")
    assert '"GET /one": {' in text
    assert '"GET /one (2)": {' in text
    project.run().assert_outcomes(passed=1)


def test_requests_of_a_client_of_the_test_are_judged(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("starlette")
    project.pytester.makepyfile(
        test_app="""
        import pytest
        from starlette.applications import Starlette
        from starlette.responses import PlainTextResponse
        from starlette.routing import Route
        from starlette.testclient import TestClient
        from conftest import Layer

        async def item(request):
            return PlainTextResponse("x", status_code=404 if request.path_params["id"] == "0" else 200)

        @pytest.mark.mw_budget
        def test_one():
            app = Starlette(routes=[Route("/items/{id}", item)])
            app.add_middleware(Layer)
            client = TestClient(app)
            assert client.get("/items/7").status_code == 200
            assert client.get("/items/0").status_code == 404
        """
    )
    filtered = ("-W", "ignore::DeprecationWarning")
    project.run(*UPDATE, *filtered).assert_outcomes(passed=1)
    text = project.file.read_text(encoding="utf-8")
    assert '"GET /items/{id}": {' in text
    assert "404" not in text
    assert '"starlette": "' in text
    project.run(*filtered, "--mw-budget-json=mw.json").assert_outcomes(passed=1)
    project.costs(21)
    project.run(*filtered).assert_outcomes(failed=1)
    # Another process also measures the request that is not judged.
    document = json.loads((project.pytester.path / "mw.json").read_text(encoding="utf-8"))
    assert [measurement["status"] for measurement in document["measurements"]] == [200, 404]
    monkeypatch.setattr(of_tests, "recounted", lambda config, order, limit_s: document)
    project.run(*filtered).assert_outcomes(passed=1)


OF_METHODS = """
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient
from conftest import Layer

async def item(request):
    return PlainTextResponse("x")

@pytest.mark.mw_budget
def test_one():
    app = Starlette(routes=[Route("/a", item), Route("/b", item), Route("/orders", item, methods=["POST"])])
    app.add_middleware(Layer)
    client = TestClient(app)
    for path in PATHS:
        client.get(path)
    client.post("/orders")
"""


def test_a_request_of_another_method_that_is_left_out_keeps_no_limits(project: Project) -> None:
    pytest.importorskip("starlette")
    filtered = ("-W", "ignore::DeprecationWarning")
    for paths in (["/a", "/b"], ["/a"]):
        project.pytester.makepyfile(test_app=OF_METHODS.replace("PATHS", repr(paths)))
        project.run(*UPDATE, *filtered).assert_outcomes(passed=1)
        text = project.file.read_text(encoding="utf-8")
        assert [f"GET {path}" in text for path in ("/a", "/b")] == ["/a" in paths, "/b" in paths]


def test_a_request_that_is_left_out_keeps_its_limits(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("starlette")
    project.pytester.makepyfile(
        test_app="""
        import os
        import pytest
        from starlette.applications import Starlette
        from starlette.responses import PlainTextResponse
        from starlette.routing import Route
        from starlette.testclient import TestClient
        from conftest import Layer

        calls = []

        async def flaky(request):
            calls.append(request)
            return PlainTextResponse("x", status_code=500 if os.environ.get("FLAKY") and len(calls) % 2 else 200)

        async def home(request):
            return PlainTextResponse("x")

        @pytest.mark.mw_budget
        def test_one():
            app = Starlette(routes=[Route("/home", home), Route("/flaky", flaky)])
            app.add_middleware(Layer)
            client = TestClient(app)
            client.get("/home")
            client.get("/flaky")
        """
    )
    filtered = ("-W", "ignore::DeprecationWarning")
    project.run(*UPDATE, *filtered).assert_outcomes(passed=1)
    text = project.file.read_text(encoding="utf-8")
    assert "GET /flaky" in text
    monkeypatch.setenv("FLAKY", "1")
    for arguments in ((), UPDATE):
        result = project.run(*arguments, *filtered)
        result.assert_outcomes(passed=1)
        result.stdout.fnmatch_lines(["1 request was not measured*"])
        result.stdout.no_fnmatch_line("*no test uses*")
        assert project.file.read_text(encoding="utf-8") == text


def test_requests_without_a_test_are_judged(project: Project) -> None:
    project.pytester.makepyfile(shop="from conftest import Layer, hello\napp = Layer(hello)\n")
    app = ("--mw-budget-app=shop:app", "--mw-budget-request=GET /x")
    project.run(*app, *UPDATE)
    assert project.limits == {
        "mw-budget::GET /x " + row.removeprefix("one "): n for row, n in EVERY_ROW.items() if "one" in row
    }
    result = project.run(*app)
    result.assert_outcomes(passed=1)
    assert "unused" not in result.stdout.str()
    project.costs(21)
    result = project.run(*app)
    result.assert_outcomes(failed=1)
    # The app has no table of routes: without the option there is no such request.
    command = "    pytest --mw-budget --mw-budget-app=shop:app --mw-budget-request='GET /x' *'mw-budget::GET /x'"
    result.stdout.fnmatch_lines([command])
    project.costs(20)
    project.run(*UPDATE)
    assert len(project.limits) == 12


def test_an_update_of_a_request_by_its_id_removes_no_others(project: Project) -> None:
    pytest.importorskip("starlette")
    project.pytester.makepyfile(
        shop="""
        from starlette.applications import Starlette
        from starlette.middleware import Middleware
        from starlette.responses import PlainTextResponse
        from starlette.routing import Route
        from conftest import Layer

        async def item(request):
            return PlainTextResponse("x")

        app = Starlette(routes=[Route("/a", item), Route("/b", item)], middleware=[Middleware(Layer)])
        """
    )
    app = "--mw-budget-app=shop:app"
    project.run(app, *UPDATE).assert_outcomes(passed=2)
    text = project.file.read_text(encoding="utf-8")
    for arguments in ((), UPDATE):
        result = project.run(app, *arguments, "mw-budget::GET /a")
        result.assert_outcomes(passed=1)
        result.stdout.no_fnmatch_line("*no test uses*")
        assert project.file.read_text(encoding="utf-8") == text


# ---- other processes ---------------------------------------------------------------------------------------------


APART = ("-p", "no:cacheprovider", "-q", "--mw-budget", "--mw-budget-flamegraph=never")


def run_apart(pytester: pytest.Pytester, *arguments: str, seed: str = "random") -> pytest.RunResult:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONHASHSEED", seed)
        patch.delenv("CI", raising=False)
        return pytester.run(sys.executable, "-m", "pytest", *alone(patch), *APART, *arguments)


@pytest.mark.live
def test_workers_judge_and_the_process_that_reports_writes(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The counts are confirmed in real processes, which write no other file. A group of xdist is no part of an id."""
    pytest.importorskip("xdist")
    project = Project(pytester, monkeypatch)
    grouped = TESTS.replace("def test_one", "@pytest.mark.xdist_group('g')\ndef test_one")
    options = [*alone(monkeypatch, "xdist"), "--dist=loadgroup", *APART]

    def run(workers: int, *arguments: str) -> pytest.RunResult:
        return pytester.runpytest_inprocess("-n", str(workers), *options, *arguments)

    pytester.makepyfile(test_app=grouped)
    result = run(2, *UPDATE, "--junitxml=mw.xml", "--mw-budget-markdown=mw.md")
    assert result.ret == 0, result.stdout.str()
    assert project.limits == EVERY_ROW
    assert "test_two" in (pytester.path / "mw.xml").read_text(encoding="utf-8")
    assert "test_two" in (pytester.path / "mw.md").read_text(encoding="utf-8").replace("\\_", "_")
    pytester.makepyfile(test_app=grouped.replace("test_two", "test_second"))
    project.costs(21)
    result = run(1, "-W", "default::pytest_mwbudget.BudgetWarning")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["Layer is over its recorded limit*", "* test_app.py::test_one"])
    result.stdout.fnmatch_lines(["mw-budgets.json has limits that no test uses: test_app.py::test_two; *"])


KEEPS = """
import logging
import os

import pytest


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    path = tmp_path_factory.mktemp("kept") / str(os.getpid())
    path.touch()
    return path


@pytest.mark.mw_budget
def test_one(mw_budget, kept):
    logging.getLogger().info("the first process")
    mw_budget.get("/one")


def test_kept(kept):
    assert kept.exists()
"""


def test_another_process_keeps_away_from_the_files_of_this_one(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.recorded()
    project.pytester.makepyfile(test_app=KEEPS)
    project.costs(21)
    monkeypatch.setattr(of_tests, "recounted", recounted)
    files = ("--basetemp=base", "--log-file=mw.log", "--log-file-level=INFO")
    result = project.pytester.runpytest_inprocess(*alone(monkeypatch), *APART, *files)
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(["Layer is over its recorded limit*"])
    assert "the first process" in (project.pytester.path / "mw.log").read_text(encoding="utf-8")


FIRST_ONLY = """
import asyncio

import pytest

from conftest import hello

MADE = []


class Layer:
    def __init__(self, app):
        self.app, self.first = app, not MADE
        MADE.append(self)

    async def __call__(self, scope, receive, send):
        if self.first:
            await asyncio.gather(asyncio.sleep(0))
        await self.app(scope, receive, send)
"""
APP_OF_A_MODULE = """
import pytest
from layer import Layer
from conftest import hello

app = Layer(hello)

@pytest.fixture
def mw_budget_app():
    return app

@pytest.mark.mw_budget
def test_one(mw_budget):
    mw_budget.get("/one")
"""


@pytest.mark.live
def test_what_only_the_first_app_of_a_process_does_is_in_every_limit(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both apps are made when their modules are imported, so a test alone is a process that imports one of them."""
    project = Project(pytester, monkeypatch)
    (pytester.path / "test_app.py").unlink()
    pytester.makepyfile(layer=FIRST_ONLY, test_a=APP_OF_A_MODULE, test_b=APP_OF_A_MODULE)
    result = run_apart(pytester, *UPDATE)
    assert result.ret == 0, result.stdout.str()
    result.stdout.fnmatch_lines(["  test_b.py::test_one, GET /one, Layer: 1 task alone, 0 tasks after other tests"])
    limits = parsed(project.file.read_text(encoding="utf-8"), "'f'").limits
    assert {limit.most for place, limit in limits.items() if place[3:5] == ("Layer", "tasks")} == {1}
    for tests in ((), ("test_b.py",), ("test_b.py", "test_a.py")):
        result = run_apart(pytester, *tests)
        assert result.ret == 0, result.stdout.str()
