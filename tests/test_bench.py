"""The mechanics of bench/accuracy.py and bench/harness.py; their timings are not checked."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.conftest import needs
from tests.readings import readings

pytestmark = pytest.mark.bench

BENCH = Path(__file__).parent.parent / "bench"


@pytest.fixture
def accuracy(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCH)
    return importlib.import_module("accuracy")


def made(
    accuracy: ModuleType, error_us: float = 0.05, low: float = 0.1, residue_us: float = 0.1
) -> list[dict[str, Any]]:
    """Make a reading of each kind at each place of two stacks, in two processes."""
    return [
        {
            "process": process,
            "stack": stack,
            "place": place,
            "kind": kind,
            "low": low,
            "us": 1.0 + error_us,
            "high": 1.1,
            "truth_us": 1.0,
            "truth_half_width_us": 0.01,
            "slow": False,
            "seconds": 0.5,
            "residue_us": residue_us,
            "total_us": 10.0,
        }
        for process in range(2)
        for stack in ("3 layers", "10 layers")
        for place in ("outermost", "between", "innermost")
        for kind in accuracy.PLAIN
    ]


@readings
def test_accuracy_reads_every_known_layer(accuracy: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        accuracy, "STACKS", {name: accuracy.STACKS[name] for name in ("3 layers", "10 layers, a child task")}
    )
    readings = accuracy.worker(number=0, max_time_s=1.0, truth_s=0.01)
    # On a busy machine some rows have no interval after this short time.
    assert 3 <= len(readings) <= 3 + 7
    assert not accuracy.NEIGHBOURS.keys() & {reading["kind"] for reading in readings}
    known = {"process": 0, "truth_half_width_us": 0.0, "slow": False}
    text = str(accuracy.report([{**reading, **known} for reading in readings]))
    assert all(kind in text for kind in {reading["kind"] for reading in readings})


@pytest.mark.parametrize("doubt", [{"slow": True}, {"truth_half_width_us": 0.3}, {"truth_half_width_us": None}])
def test_accuracy_leaves_out_what_proves_nothing(accuracy: ModuleType, doubt: dict[str, Any]) -> None:
    plain = made(accuracy)
    doubtful = [{**reading, **doubt} for reading in made(accuracy, error_us=5.0)]
    report, expected = accuracy.report([*plain, *doubtful]), accuracy.report(plain)
    assert (report.tables, report.goals) == (expected.tables, expected.goals)
    assert report.notes[0].startswith(f"{len(doubtful)} of {len(plain) + len(doubtful)} readings stand apart")
    # Whether the rows add up to the total needs no truth.
    assert not any(goal.met for goal in accuracy.report(doubtful).goals[:-1])


def test_accuracy_draws_each_kind_as_often_as_any_other(accuracy: ModuleType) -> None:
    import random

    drawn = accuracy.kinds_of(30, accuracy.PLAIN, random.Random(1))
    assert sorted(drawn.count(kind) for kind in accuracy.NEIGHBOURS) == [1, 1]
    assert {drawn.count(kind) for kind in accuracy.PLAIN} == {4}
    assert accuracy.kinds_of(3, accuracy.PLAIN, random.Random(1)) != accuracy.kinds_of(
        3, accuracy.PLAIN, random.Random(2)
    )


@pytest.mark.parametrize(
    ("readings", "met"),
    [
        ({}, [True, True, True, True, True]),
        ({"error_us": 0.5}, [False, True, True, True, True]),
        ({"low": 1.05}, [True, False, False, True, True]),
        ({"low": -0.1}, [True, True, True, False, True]),
        ({"residue_us": -0.3}, [True, True, True, True, False]),
    ],
)
def test_the_goals_of_accuracy(accuracy: ModuleType, readings: dict[str, float], met: list[bool]) -> None:
    report = accuracy.report(made(accuracy, **readings))
    assert [goal.met for goal in report.goals] == met
    assert [table.title for table in report.tables] == [
        "By layer, µs",
        "By stack and place, µs",
        "What the rows add up to above the total, in per cent of the total",
    ]


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCH)
    return importlib.import_module("harness")


def run_script(
    harness: ModuleType, monkeypatch: pytest.MonkeyPatch, *arguments: str, report: Any = lambda readings: "its report"
) -> list[dict[str, Any]]:
    """Run a script of one size with these arguments, and return the arguments of each call of `measure`."""
    asked: list[dict[str, Any]] = []

    def measure(quick: bool, processes: int) -> list[dict[str, Any]]:
        asked.append({"quick": quick, "processes": processes})
        return [{"us": 1.5}]

    monkeypatch.setattr(sys, "argv", ["script.py", *arguments])
    harness.main("script.py", "What it does.", measure, report, processes=3)
    return asked


def test_a_script_prints_its_report_and_writes_its_readings(
    harness: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(harness, "revision", lambda: "abc1234")
    begin = datetime.now(UTC).replace(microsecond=0)
    run_script(harness, monkeypatch, "--quick", "--json", str(tmp_path / "script.json"))
    assert capsys.readouterr().out.startswith("its report\n")
    stored = importlib.import_module("stored").loads((tmp_path / "script.json").read_text(encoding="utf-8"))
    assert (stored["script"], stored["quick"], stored["readings"]) == ("script", True, [{"us": 1.5}])
    assert stored["revision"] == "abc1234"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", stored["created"])
    assert begin <= datetime.fromisoformat(stored["created"]) <= datetime.now(UTC)


def test_a_report_that_fails_does_not_take_the_readings_with_it(
    harness: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def report(readings: list[dict[str, Any]]) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_script(harness, monkeypatch, "--json", str(tmp_path / "script.json"), report=report)
    written = importlib.import_module("stored").loads((tmp_path / "script.json").read_text(encoding="utf-8"))
    assert written["readings"] == [{"us": 1.5}]


@pytest.mark.parametrize(
    ("arguments", "asked"),
    [
        ((), {"quick": False, "processes": 3}),
        (("--processes", "1"), {"quick": False, "processes": 1}),
        (("--quick",), {"quick": True, "processes": 3}),
    ],
)
def test_sizes_are_those_given(
    harness: ModuleType, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], asked: dict[str, Any]
) -> None:
    assert run_script(harness, monkeypatch, *arguments) == [asked]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--processes", "0"), "'0' is no size: give a whole number, 1 or more"),
        (("--processes", "-2"), "'-2' is no size"),
        (("--processes", "many"), "'many' is no size"),
        (("--quick", "--processes", "3"), "--quick has sizes of its own: leave out --quick or --processes"),
        (("--json", "nowhere/script.json"), "there is no folder 'nowhere': make it, or name another"),
        (("--json", "."), "'.' is a folder: name a file in it"),
    ],
)
def test_arguments_that_cannot_be_meant_are_refused_before_anything_is_measured(
    harness: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(harness, "taken", None)
    with pytest.raises(SystemExit, match="2"):
        run_script(harness, monkeypatch, *arguments)
    assert message in capsys.readouterr().err


def test_the_machine_is_told_with_the_packages_that_are_installed(
    harness: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness, "PACKAGES", ("pytest", "no-such-package"))
    assert list(harness.machine()) == ["python", "system", "pytest"]


def test_the_tools_that_are_compared_are_told(harness: ModuleType) -> None:
    group = tomllib.loads((BENCH.parent / "pyproject.toml").read_text(encoding="utf-8"))["dependency-groups"]["bench"]
    compared = {re.split(r"[>;]", one)[0] for one in group if isinstance(one, str)}
    assert compared <= set(harness.PACKAGES)


@pytest.mark.skipif(shutil.which("git") is None, reason="there is no git")
def test_the_revision_is_that_of_the_code_with_its_changes(
    harness: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    assert harness.revision(tmp_path) == ""

    def git(*command: str) -> str:
        known = ("-c", "user.name=somebody", "-c", "user.email=somebody@example.org")
        done = subprocess.run(["git", *known, *command], cwd=tmp_path, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    code, script = tmp_path / "pytest_mwbudget" / "code.py", tmp_path / "bench" / "script.py"
    results, page = tmp_path / "bench" / "results" / "a.json", tmp_path / "docs" / "evidence.md"
    for path in (code, script, results, page):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("first", encoding="utf-8")
    git("init")
    assert harness.revision(tmp_path) == ""
    git("add", ".")
    git("commit", "--message", "first")
    head = git("rev-parse", "--short", "HEAD")
    assert harness.revision(tmp_path) == head
    results.write_text("second", encoding="utf-8")
    page.write_text("second", encoding="utf-8")
    assert harness.revision(tmp_path) == head
    script.write_text("second", encoding="utf-8")
    assert harness.revision(tmp_path) == f"{head}+changes"
    git("commit", "--all", "--message", "second")
    assert harness.revision(tmp_path) == head
    code.write_text("second", encoding="utf-8")
    assert harness.revision(tmp_path) == f"{head}+changes"
    git("commit", "--all", "--message", "third")
    assert harness.revision(tmp_path) == git("rev-parse", "--short", "HEAD")


def test_without_git_there_is_no_revision(harness: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert harness.revision() == ""


def test_a_pytest_round_it_is_not_inherited(harness: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_ADDOPTS", "--no-such-option")
    monkeypatch.setenv("ANOTHER", "kept")
    assert "PYTEST_ADDOPTS" not in harness.inherited()
    assert harness.inherited()["ANOTHER"] == "kept"


def test_neighbours_end_with_those_who_asked_for_them(harness: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    real = subprocess.Popen

    def popen(*arguments: Any, **options: Any) -> Any:
        started.append(real(*arguments, **options))
        return started[-1]

    monkeypatch.setattr(harness.subprocess, "Popen", popen)
    with harness.neighbours((0.01, 0.01), (0.01, 0.01)):
        assert [process.poll() for process in started] == [None, None]
    assert None not in [process.poll() for process in started]


@pytest.mark.parametrize("group", ["bench", "suites"])
def test_a_missing_package_skips_and_fails_where_it_is_required(group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(f"MWBUDGET_REQUIRE_{group.upper()}", raising=False)
    with pytest.raises(pytest.skip.Exception, match="a reason"):
        needs("no_such_package", reason="a reason", group=group)
    monkeypatch.setenv(f"MWBUDGET_REQUIRE_{group.upper()}", "1")
    with pytest.raises(pytest.fail.Exception, match=f"there is no no_such_package: a reason .*--group {group}"):
        needs("no_such_package", reason="a reason", group=group)
