"""The mechanics of bench/savings.py; its timings are not checked."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytestmark = pytest.mark.bench

BENCH = Path(__file__).parent.parent / "bench"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCH)
    return importlib.import_module("savings")


def made(bench: ModuleType, us: float = 10.05) -> list[dict[str, Any]]:
    """Make two readings of each kind, whose truth is 10 µs."""
    known = {"why": None, "row_us": 8.0, "truth_low": 9.9, "truth_us": 10.0, "truth_high": 10.1}
    interval = {"low": us - 0.3, "us": us, "high": us + 0.3}
    return [{"process": number, "kind": kind} | known | interval for number in range(2) for kind in bench.KINDS]


def test_every_layer_is_read_and_rebuilt(bench: ModuleType) -> None:
    readings = bench.worker(number=0, max_time_s=3.0, share=0.2)
    assert {reading["kind"] for reading in readings} == set(bench.KINDS)
    # On a busy machine some layers have a reason in place of a figure.
    assert not [reading["why"] for reading in readings if "failed" in (reading["why"] or "")]
    text = str(bench.report(readings))
    assert all(reading["kind"] in text or reading["why"] in text for reading in readings)


def test_the_goals(bench: ModuleType) -> None:
    assert [goal.met for goal in bench.report(made(bench)).goals] == [True, True]
    assert [goal.met for goal in bench.report(made(bench, us=11.0)).goals] == [False, False]
    assert [goal.met for goal in bench.report([]).goals] == [False, False]


def test_readings_without_a_figure_stand_apart(bench: ModuleType) -> None:
    missing = {"process": 0, "kind": "CORS", "why": "there were too few requests in quiet moments"}
    report = bench.report([*made(bench), missing])
    assert report.tables == bench.report(made(bench)).tables
    assert report.notes[0].startswith("1 of 19 readings have no figure: there were too few requests")
