"""The mechanics of `bench/growth.py`."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from .apps import needs
from .readings import readings

pytestmark = pytest.mark.bench


@pytest.fixture
def growth(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(Path(__file__).parent.parent / "bench")
    return importlib.import_module("growth")


def reading(change: str = "nothing", word: str = "same", more: tuple[str, ...] = (), **others: Any) -> dict[str, Any]:
    return {
        "condition": "as it is",
        "change": change,
        "word": word,
        "by_us": None,
        "more": list(more),
        "others": [],
        **others,
    }


def test_a_line_says_how_often_each_figure_has_grown(growth: ModuleType) -> None:
    readings = [
        reading(),
        reading("one task", more=("bytecodes", "calls", "objects", "tasks")),
        reading("one task", "slower", more=("bytecodes", "tasks")),
        reading("one task", others=[["CORSMiddleware", "us", "slower"]]),
    ]
    assert growth.report(readings).tables[0].rows == [
        ("nothing (as it is)", *"1000000"),
        ("one task (as it is)", "3", "2", "1", "1", "2", "1", "1"),
    ]


@pytest.mark.parametrize(
    ("found", "met"),
    [
        (reading(), [True, True, True]),
        (reading(others=[["Work", "bytecodes", "more"]]), [False, True, True]),
        (reading(others=[["Work", "us", "slower"]]), [True, True, False]),
        (reading("one call", more=("calls",)), [True, False, True]),
        (
            reading("one task", more=("bytecodes",), others=[["CORSMiddleware", "bytecodes", "more"]]),
            [True, True, True],
        ),
        (
            reading("one call", more=("bytecodes",), others=[["CORSMiddleware", "bytecodes", "more"]]),
            [False, True, True],
        ),
        (reading("1 %"), [True, True, True]),
    ],
)
def test_what_misses_a_goal(growth: ModuleType, found: dict[str, Any], met: list[bool]) -> None:
    assert [goal.met for goal in growth.report([found]).goals[:3]] == met


@pytest.mark.parametrize(("growing", "bounded", "met"), [(9, 0, True), (8, 0, False), (10, 1, False)])
def test_what_grows_within_a_run_is_named_and_nothing_else(
    growth: ModuleType, growing: int, bounded: int, met: bool
) -> None:
    trends = [{"Growing": number < growing, "Bounded": number < bounded} for number in range(10)]
    report = growth.report([reading(), *({"condition": "as it is", "trends": trend} for trend in trends)])
    assert report.goals[-1].met is met
    assert report.tables[1].rows == [("as it is", "10", str(growing), str(bounded))]


def test_the_time_of_a_layer_may_be_missing(growth: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "merged", lambda runs: runs)
    monkeypatch.setattr(growth, "compare", lambda *runs: SimpleNamespace(changes=[]))
    found = growth.compared({}, {}, "task", "as it is")
    assert [(reading["word"], reading["by_us"]) for reading in found] == [("not measured", None)]


@readings  # on a busy machine growth is not always certain
def test_a_process_names_what_grows(growth: ModuleType) -> None:
    assert growth.worker() == {"Growing": True, "Bounded": False}


@needs("bytecodes")
def test_counts_of_two_runs_show_each_change(growth: ModuleType) -> None:
    with growth.apps():
        before, after = (growth.one_run("work", version, 50) for version in (0, 1))
    by_change = {reading["change"]: reading for reading in growth.compared(before, after, "work", "as it is")}
    assert "bytecodes" in by_change["one attribute access"]["more"]
    assert "bytecodes" not in by_change["nothing"]["more"]
    assert not [other for other in by_change["nothing"]["others"] if other[1] == "bytecodes"]
