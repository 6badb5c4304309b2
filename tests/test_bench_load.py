"""The mechanics of `bench/load.py`; its timings are not checked."""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.conftest import needs

pytestmark = pytest.mark.bench

needs("fastapi", reason="the measured apps are FastAPI's")
needs("uvicorn", reason="the apps stand behind uvicorn")
needs("httptools", reason="uvicorn parses with httptools")

KEY = {"layer": "CORS", "loop": "asyncio", "generator": "wrk", "concurrency": 100}
WHOLE = {"rps": 4000.0, "p50_ms": 25.0, "p99_ms": 40.0, "rounds": 20, "quiet": 18, "busy": 1.0}


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(Path(__file__).parent.parent / "bench")
    return importlib.import_module("load")


def pair(without_us: float, with_us: float, waited: float = 0.01, gauge_ns: int = 1000) -> dict[str, Any]:
    def burst(us: float) -> dict[str, Any]:
        return {"us": us, "cpu_us": us / 2, "collecting_us": us / 10, "waited": waited}

    return {"kind": "pair", **KEY, "without": burst(without_us), "with": burst(with_us), "gauge_ns": gauge_ns}


def pairs(without_us: float, with_us: float) -> list[dict[str, Any]]:
    return [pair(without_us, with_us)] * 8 + [
        {"kind": "ours", "layer": "CORS", "loop": "asyncio", "us": None, "suspensions": 0, "turn_us": 3}
    ]


def stated(*shares: float) -> list[dict[str, Any]]:
    return [
        {"kind": "load", **KEY, "share": [share, share - 0.01, share + 0.01], "method": "bypass", **WHOLE}
        for share in shares
    ]


@pytest.mark.parametrize(("shares", "met"), [((0.19, 0.21), True), ((0.3, 0.32), False)])
def test_the_goal_compares_shares_with_the_measured_drop(
    load: ModuleType, shares: tuple[float, float], met: bool
) -> None:
    report = load.report([*pairs(200.0, 250.0), *stated(*shares)])
    assert [goal.met for goal in report.goals] == [met]
    (row,) = report.tables[0].rows
    assert row[:6] == ["CORS", "asyncio", "100", "8", "5000", "20.0%"]
    assert row[7] == f"{sum(shares) / 2:.1%}"


def test_pairs_of_slow_moments_count_but_not_those_whose_server_had_to_wait(load: ModuleType) -> None:
    slow, waited = [pair(400.0, 500.0, gauge_ns=2000)] * 3, [pair(200.0, 900.0, waited=0.4)] * 9
    report = load.report([*pairs(200.0, 250.0), *slow, *waited, *stated(0.2)])
    (row,) = report.tables[0].rows
    assert row[3:6] == ["11", "5000", "20.0%"]


def test_settings_whose_drop_is_not_known_are_counted(load: ModuleType) -> None:
    unsure = [*pairs(200.0, 250.0), *[pair(200.0, 300.0)] * 4]
    report = load.report([*unsure, *stated(0.3)])
    assert any(note.startswith("In 1 of 1 settings") and note.endswith("in 1 of 1.") for note in report.notes)
    (row,) = report.tables[0].rows
    assert row[-1] == "not known well enough"


def verdicts(ratio: float, verdict: str, condition: str = "idle", number: int = 5) -> list[dict[str, Any]]:
    about = {"kind": "verdict", "condition": condition, "ratio": ratio, "layer": "CORS", "loop": "asyncio"}
    reading = {**about, "clients": 100, "share": [0.2, 0.19, 0.21], "clock": "processor", "verdict": verdict, **WHOLE}
    return [reading] * number


@pytest.mark.parametrize(
    ("further", "met"),
    [
        (verdicts(0.7, "undecided", number=1), True),
        (verdicts(0.7, "undecided", number=2), False),
        (verdicts(0.7, "pass", number=1), False),
        (verdicts(1.3, "fail", number=1), False),
        ([{**verdicts(0.7, "pass")[0], "layer": "GZip"}], True),  # wrk does not know its drop
    ],
)
def test_the_goal_of_verdicts_counts_wrong_and_undecided(
    load: ModuleType, further: list[dict[str, Any]], met: bool
) -> None:
    truth = [{**reading, "kind": f"judged {reading['kind']}"} for reading in pairs(200.0, 250.0)]
    both = [
        reading
        for condition in load.CONDITIONS
        for ratio, verdict in ((0.7, "fail"), (1.3, "pass"))
        for reading in verdicts(ratio, verdict, condition)
    ]
    report = load.report([*truth, *both, *further])
    assert [goal.met for goal in report.goals] == [met]
    (table,) = report.tables
    assert [row[3] for row in table.rows] == ["0.7", "1.3"] * 2


def waits(rps: float, share: list[float] | None) -> dict[str, Any]:
    about = {"kind": "waiting", "layer": "BaseHTTPMiddleware", "wait_ms": 50.0, "clients": 100, "method": "bypass"}
    return {**about, "bursts": [[1000.0, 970.0]] * 5, **WHOLE, "rps": rps, "share": share}


@pytest.mark.parametrize(
    ("rps", "share", "met"),
    [
        (1010.0, [0.045, 0.04, 0.05], True),
        (1010.0, [0.1, 0.02, 0.2], True),
        (1010.0, [0.1, 0.08, 0.2], False),
        (1100.0, [0.03, 0.02, 0.04], False),
        (1010.0, [0.03, -math.inf, math.inf], False),
        (1010.0, None, False),
    ],
)
def test_the_goal_of_apps_that_wait(load: ModuleType, rps: float, share: list[float] | None, met: bool) -> None:
    report = load.report([waits(rps, share)])
    assert [goal.met for goal in report.goals] == [met]
    ((*_, drop, _stated, _interval, _off),) = report.tables[0].rows
    assert drop == "3.0%"


def test_the_story_and_the_shares_of_the_published_cases(load: ModuleType) -> None:
    names = {"CORS, auth B": 3000.0, "CORS, auth A": 6000.0, "hello": 6000.0, "1 B": 3000.0}
    readings = [{"kind": "case", "case": name, **WHOLE, "rps": rps} for name, rps in names.items()]
    cases, story = load.report(readings).tables
    assert story.rows[-1][:3] == ["after over before", "1.74", "2.00"]
    assert next(row for row in cases.rows if row[0] == "1 B")[-2:] == ["44%", "50%"]


def test_every_part_has_its_readings(load: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def nobody(*_: Any) -> Iterator[None]:
        yield

    def own_worker(file: str, **arguments: Any) -> Any:
        return json.loads(json.dumps(load.worker(**arguments | {"seconds": 0.2})))

    taken = [[{**reading, "layer": "BaseHTTPMiddleware"} for reading in pairs(200.0, 250.0)], []]
    plan = replace(load.QUICK.plan, concurrencies=(3,))
    monkeypatch.setattr(load, "QUICK", load.Size(plan, 0.2, ("1 A",)))
    monkeypatch.setattr(load, "fresh_process", own_worker)
    monkeypatch.setattr(load.server, "awake", nobody)
    monkeypatch.setattr(load.server, "of_process", lambda plan, *_: taken.pop())
    monkeypatch.setattr(load, "neighbours", nobody)
    monkeypatch.setattr(load.server, "served", lambda *_, **__: nullcontext(SimpleNamespace(ports=(1, 2))))
    monkeypatch.setattr(load.server, "burst", lambda *_: load.server.Burst(900.0, 90))
    monkeypatch.setattr(load, "WAITING_ORDINARY_S", 0.1)
    monkeypatch.setattr(load.shutil, "which", lambda name: name)
    readings = load.measure(quick=True)
    assert [(reading["kind"], reading.get("generator")) for reading in readings] == [
        ("load", "wrk"),
        ("load", "ab"),
        ("case", None),
        *([("judged pair", "wrk")] * 8),
        ("judged ours", None),
        *([("verdict", None)] * 4),
        ("waiting", None),
    ]
    assert all(reading["rps"] > 0 for reading in readings if reading["kind"] in ("load", "case", "verdict", "waiting"))
    assert {reading["ratio"] for reading in readings if reading["kind"] == "verdict"} == set(load.JUDGED_RATIOS)
    load.report(readings)
    assert [reading["kind"] for reading in load.measure(quick=True, part=3)] == ["case"]


def test_with_append_the_readings_of_the_file_are_kept(
    load: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "load.json"
    for share in (0.19, 0.21):
        monkeypatch.setattr("sys.argv", ["load.py", "--json", str(path), "--append"])
        load.main("load.py", "About.", lambda quick, share=share: [*pairs(200.0, 250.0), *stated(share)], load.report)
    readings = importlib.import_module("stored").loads(path.read_text(encoding="utf-8"))["readings"]
    assert [reading["share"][0] for reading in readings if reading["kind"] == "load"] == [0.19, 0.21]
    assert "reached" in capsys.readouterr().out
