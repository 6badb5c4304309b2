"""The mechanics of bench/accuracy.py, bench/harness.py and bench/evidence.py; timings are for people to read."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCH = Path(__file__).parent.parent / "bench"


@pytest.fixture
def accuracy(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCH)
    return importlib.import_module("accuracy")


def made(accuracy: ModuleType, error_us: float = 0.05, low: float = 0.1) -> list[dict[str, Any]]:
    """A reading of each kind at each place of two stacks, by each kind of probes, in two processes."""
    return [
        {
            "process": process,
            "stack": stack,
            "place": place,
            "kind": kind,
            "probes": probes,
            "low": low,
            "us": 1.0 + error_us,
            "high": 1.1,
            "truth_us": 1.0,
            "seconds": 0.5,
        }
        for process in range(2)
        for stack in ("3 layers", "10 layers")
        for place in ("outermost", "between", "innermost")
        for kind in accuracy.PLAIN
        for probes in ("C", "Python")
    ]


def test_accuracy_reads_every_known_layer(accuracy: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        accuracy, "STACKS", {name: accuracy.STACKS[name] for name in ("3 layers", "10 layers, a child task")}
    )
    readings = accuracy.worker(number=0, max_time_s=0.25, truth_s=0.01)
    assert {reading["probes"] for reading in readings} == set(accuracy.PROBES)
    # On a busy machine some rows have no interval in so short a time.
    for probes in accuracy.PROBES:
        assert 3 <= sum(reading["probes"] == probes for reading in readings) <= 3 + 8
    assert not accuracy.NEIGHBOURS.keys() & {reading["kind"] for reading in readings}
    text = str(accuracy.report([{"process": 0, **reading} for reading in readings]))
    assert all(kind in text for kind in {reading["kind"] for reading in readings})


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
    [({}, [True, True, True]), ({"error_us": 0.5}, [False, True, True]), ({"low": -0.1}, [True, True, False])],
)
def test_the_goals_of_accuracy(accuracy: ModuleType, readings: dict[str, float], met: list[bool]) -> None:
    report = accuracy.report(made(accuracy, **readings))
    assert [goal.met for goal in report.goals] == met
    assert [table.title for table in report.tables] == [
        f"Probes in {probes}: {by}, µs" for probes in ("C", "Python") for by in ("by layer", "by stack and place")
    ]


def test_a_script_prints_its_report_and_writes_its_readings(
    accuracy: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from harness import main  # type: ignore[import-not-found]

    monkeypatch.setattr(sys, "argv", ["accuracy.py", "--quick", "--json", str(tmp_path / "accuracy.json")])
    readings = made(accuracy)
    main("accuracy.py", "What it does.", lambda quick, processes: readings, accuracy.report, processes=3)
    assert "reached: |bias|" in capsys.readouterr().out
    stored = json.loads((tmp_path / "accuracy.json").read_text(encoding="utf-8"))
    assert (stored["script"], stored["quick"], stored["readings"]) == ("accuracy", True, readings)


def test_the_page_has_what_is_stored(accuracy: ModuleType, tmp_path: Path) -> None:
    evidence = importlib.import_module("evidence")
    stored = {"quick": False, "seconds": 61.0, "machine": {"python": "CPython 3"}, "readings": made(accuracy)}
    (tmp_path / "accuracy.json").write_text(json.dumps(stored), encoding="utf-8")
    text = evidence.page(tmp_path)
    assert "## How far the figures are from the truth" in text
    assert "```sh\npython bench/accuracy.py" in text
    assert "- reached: |bias| <= 0.1 µs" in text
    assert "python CPython 3; 1 minutes." in text
    assert "quick run" not in text


def test_neighbours_end_with_those_who_asked_for_them(accuracy: ModuleType) -> None:
    from harness import neighbours

    with neighbours((0.01, 0.01), (0.01, 0.01)):
        pass
