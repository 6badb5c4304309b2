"""The mechanics of bench/idle.py; its timings are not checked."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytestmark = [
    pytest.mark.bench,
    pytest.mark.skipif(
        not hasattr(os, "wait4"), reason="bench/idle.py reads the time of a process as POSIX systems tell it"
    ),
]

BENCH = Path(__file__).parent.parent / "bench"


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCH)
    return importlib.import_module("idle")


def made(suite: str, added_ms: float, pairs: int = 20) -> list[dict[str, Any]]:
    without = {"wall_ms": 250.0, "cpu_ms": 240.0}
    return [
        {
            "suite": suite,
            "without": without,
            "with": {clock: ms + added_ms for clock, ms in without.items()},
            "reference_ms": 20.0,
        }
        for _ in range(pairs)
    ]


def test_whole_processes_run_with_the_plugin_and_without_it(idle: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle, "SUITES", {"run 2 tests": (2, ())})
    monkeypatch.setattr(idle, "QUICK_PAIRS", 1)
    listed, timed = idle.measure(quick=True)
    assert timed["suite"] == listed["suite"] == "run 2 tests"
    assert all(timed[kind][clock] > 0 for kind in ("with", "without") for clock in ("wall_ms", "cpu_ms"))
    assert "pytest_mwbudget.plugin" in listed["modules"]
    text = str(idle.report([timed, listed]))
    assert "run 2 tests" in text
    assert "pytest_mwbudget.plugin" in text


def test_a_run_that_fails_is_no_reading(idle: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="status 3"):
        idle.run(["-c", "raise SystemExit(3)"], tmp_path)


def test_bytecode_is_written_aside(idle: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    (tmp_path / "module.py").touch()
    idle.run(["-c", "import sys; sys.path.append('.'); import module"], tmp_path)
    assert list((tmp_path / "bytecode").rglob("module*.pyc"))


def test_a_pytest_round_it_does_not_matter(idle: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_ADDOPTS", "--no-such-option")
    idle.write_suite(tmp_path, 1)
    assert "pytest_mwbudget.plugin" in idle.modules_added("collect 1 test", tmp_path)


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ({"with": set(), "without": set()}, r"with the plugin did not import .*pip install"),
        ({"with": {"pytest_mwbudget.plugin"}, "without": {"pytest_mwbudget.plugin"}}, r"-pno:mwbudget imported"),
    ],
)
def test_runs_that_are_not_what_they_are_called_end_the_bench(
    idle: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: dict[str, set[str]], message: str
) -> None:
    monkeypatch.setattr(idle, "modules", lambda suite, kind, directory: found[kind])
    with pytest.raises(RuntimeError, match=message):
        idle.modules_added("collect 1 test", tmp_path)


def test_the_suites_have_as_many_tests_as_they_say(idle: ModuleType, tmp_path: Path) -> None:
    idle.write_suite(tmp_path, 7)
    assert (tmp_path / "test_idle.py").read_text().count("def test_") == 7


@pytest.mark.parametrize(
    ("added_ms", "met"), [(1.0, True), (-1.0, True), (2.3, False), (3.0, False)], ids=["less", "faster", "ms", "both"]
)
def test_the_goal_is_two_milliseconds_and_one_per_cent(idle: ModuleType, added_ms: float, met: bool) -> None:
    report = idle.report(made("collect 1 test", added_ms))
    assert [goal.met for goal in report.goals] == [met, met]
    assert f"{added_ms:+.2f}" in str(report)


def test_a_median_within_the_goal_is_not_enough(idle: ModuleType) -> None:
    readings = [
        pair for _ in range(20) for added_ms in (-1.0, -1.0, 5.0) for pair in made("collect 1 test", added_ms, 1)
    ]
    assert not any(goal.met for goal in idle.report(readings).goals)


def test_pairs_of_slow_moments_are_left_out(idle: ModuleType) -> None:
    slow = [{**pair, "reference_ms": 30.0} for pair in made("collect 1 test", 50.0)]
    assert idle.added("cpu_ms", slow + made("collect 1 test", 1.0)).estimate == pytest.approx(1.0)


def test_one_per_cent_is_a_limit_of_its_own(idle: ModuleType) -> None:
    readings = made("collect 1 test", 1.5)
    for reading in readings:
        for kind in ("with", "without"):
            reading[kind]["wall_ms"] -= 150.0
    wall, cpu = idle.report(readings).goals
    assert (wall.met, cpu.met) == (False, True)


def test_running_tests_is_reported_by_the_test_and_has_no_goal(idle: ModuleType) -> None:
    report = idle.report(made("run 400 tests", 8.0))
    assert not report.goals
    assert "20 µs" in report.notes[0]


def test_modules_of_others_are_named(idle: ModuleType) -> None:
    report = idle.report([{"suite": "collect 1 test", "modules": ["json.tool", "pytest_mwbudget"]}])
    assert "2 more modules with the plugin, 1 of them its own (pytest_mwbudget)" in report.notes[0]
    assert "of others: json.tool" in report.notes[0]


def test_no_readings_are_no_goals(idle: ModuleType) -> None:
    report = idle.report([])
    assert not report.goals
    assert not report.tables[0].rows


def test_instructions_are_read_from_what_cachegrind_tells(idle: ModuleType) -> None:
    assert idle.counted("==7== \n==7== I   refs:      1,296,158,149\n") == 1_296_158_149
    with pytest.raises(RuntimeError, match="no number of instructions: 'nothing'"):
        idle.counted("nothing")


@pytest.mark.parametrize(("most", "met"), [(1_009, True), (1_011, False)])
def test_every_pair_of_instructions_must_be_within_the_share(idle: ModuleType, most: int, met: bool) -> None:
    counted = [
        {"suite": "collect 1 test", "instructions": {"with": number, "without": 1_000}} for number in (1_004, most)
    ]
    report = idle.report([*made("collect 1 test", 1.0), *counted])
    goal = next(goal for goal in report.goals if "instructions" in goal.goal)
    assert goal.met is met
    assert "+0.40 to" in str(report)


def test_without_cachegrind_there_are_no_instructions(idle: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle, "SUITES", {"collect 1 test": (1, idle.COLLECT)})
    monkeypatch.setattr(idle, "QUICK_PAIRS", 1)
    monkeypatch.setattr(idle.shutil, "which", lambda name: None)
    report = idle.report(idle.measure(quick=True))
    assert not any("instructions" in goal.goal for goal in report.goals)
    assert report.notes[-1].startswith("Instructions were not counted: valgrind is not installed")


def test_where_instructions_were_counted_nothing_is_said_of_valgrind(idle: ModuleType) -> None:
    counted = {"suite": "collect 1 test", "instructions": {"with": 1_004, "without": 1_000}}
    assert "valgrind" not in str(idle.report([*made("collect 1 test", 1.0), counted]))
