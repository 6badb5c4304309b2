"""The mechanics of the bench scripts; their timings are for people to read."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCH = Path(__file__).parent.parent / "bench"


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, BENCH / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_accuracy_reads_every_layer_at_every_place_and_prints_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    accuracy = script("accuracy")
    monkeypatch.setattr(accuracy, "WARM_CALLS", 5)
    monkeypatch.setattr(accuracy.null_us, "__defaults__", (20,))
    readings = accuracy.worker(max_time_s=0.25)
    for kind in accuracy.PROBES:
        own = [reading for reading in readings if reading["probes"] == kind]
        seen = {(reading["endpoint"], reading["place"], reading["spin_us"]) for reading in own}
        # On a busy machine some rows have no interval in so short a time.
        assert 18 <= len(seen) == len(own) <= 2 * 3 * 6
        text = accuracy.table(own)
        # What the probes are, the heading, the rows, the goal; an empty line and what it ran on.
        assert len(text.splitlines()) == 2 + len(seen) + 1 + 2
        assert f"of {len(own)} readings" in text
        assert all(reading["null_us"] is None or 0 < reading["null_us"] < 1000 for reading in own)


def test_accuracy_writes_its_readings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    accuracy = script("accuracy")
    made = [
        {
            "probes": "C",
            "null_us": 0.5,
            "endpoint": endpoint,
            "place": place,
            "spin_us": spin_us,
            "truth_us": 1.0,
            "error_us": 0.05,
            "covered": True,
            "half_width_us": 0.1,
        }
        for endpoint in accuracy.ENDPOINTS
        for place in accuracy.PLACES
        for spin_us in (0, *accuracy.SPINS_US)
    ]
    monkeypatch.setattr(accuracy, "fresh_process", lambda seed, max_time_s: made)
    monkeypatch.setattr(sys, "argv", ["accuracy.py", "--quick", "--json", str(tmp_path / "readings.json")])
    accuracy.main()
    assert (tmp_path / "readings.json").read_text().count('"error_us"') == 2 * len(made)
