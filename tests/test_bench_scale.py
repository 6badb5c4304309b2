"""The mechanics of `bench/scale.py`; its timings are not checked."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytestmark = pytest.mark.bench

BENCH = Path(__file__).parent.parent / "bench"

pytest.importorskip("resource", reason="bench/scale.py reads the peak memory of a process as POSIX systems tell it")


@pytest.fixture
def scale(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("scale")


def in_this_process(script: ModuleType) -> Any:
    return lambda file, **arguments: script.worker(**arguments)


def test_every_part_has_readings_and_a_table(scale: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "fresh_process", in_this_process(scale))
    monkeypatch.setattr(scale, "MAX_TIME_S", 0.1)
    monkeypatch.setattr(scale, "DEPTHS", (1, 3))
    monkeypatch.setattr(scale, "HANDLERS", ("fast", "CPU 1 ms"))
    monkeypatch.setattr(scale, "SIZES", ("fast", "streamed 100 kB"))
    monkeypatch.setattr(scale, "PROCESSES", 1)
    monkeypatch.setattr(scale, "SESSION_REQUESTS", 2)
    readings = scale.measure(quick=False)
    seen = [(reading["part"], reading["value"]) for reading in readings]
    assert seen == [
        *[("depth", depth) for depth in scale.DEPTHS],
        *[("handler", handler) for handler in scale.HANDLERS],
        *[("size", size) for size in scale.SIZES],
        ("session", 2),
    ]
    assert all(reading["requests"] > 0 for reading in readings if reading["part"] != "session")
    text = str(scale.report(readings))
    assert all(str(value) in text for _, value in seen)


@pytest.mark.parametrize("name", ["waits 1 ms", "noisy 1 ms", "CPU 1 ms", "fast"])
def test_only_the_cheap_layer_above_a_handler_is_a_layer(
    scale: ModuleType, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scale, "MAX_TIME_S", 0.05)
    _, found = scale.measured(scale.handler(name), scale.Environment(), precise=False)
    assert [layer.name for layer in found.layers] == ["Spin"]


def test_streamed_responses_come_in_pieces(scale: ModuleType) -> None:
    sent = bodies(scale, "streamed 100 kB")
    assert [len(body) for body in sent] == [65536, 100_000 - 65536, 0]
    assert [len(body) for body in bodies(scale, "whole 100 kB")] == [100_000, 0]


def bodies(scale: ModuleType, name: str) -> list[bytes]:
    """List the bodies that the app sends, by message."""
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scale.asyncio.run(scale.sized(name)({"type": "http"}, None, send))
    return [message["body"] for message in sent if message["type"] == "http.response.body"]


def made(part: str, value: Any, **changes: Any) -> dict[str, Any]:
    """Make a reading like that of a process."""
    reading = {
        "part": part,
        "value": value,
        "verdict_s": 1.0,
        "timing_s": 0.5,
        "requests": 200,
        "request_us": 10.0,
        "verdict": "pass",
        "table_s": 2.0,
        "table_requests": 1000,
        "grown_mib": 1.5,
    }
    return {**reading, **changes}


@pytest.mark.parametrize(("seconds", "met"), [(1.9, True), (2.1, False)])
def test_the_goal_on_depth(scale: ModuleType, seconds: float, met: bool) -> None:
    readings = [made("depth", 5), made("depth", 100, verdict_s=seconds)]
    (goal,) = scale.report(readings).goals
    assert goal.met == met
    assert f"{seconds:.1f} times until the verdicts" in goal.found


def test_a_table_that_takes_long_misses_the_goal_on_depth(scale: ModuleType) -> None:
    (goal,) = scale.report([made("depth", 5), made("depth", 100, table_s=5.0)]).goals
    assert not goal.met


@pytest.mark.parametrize(
    ("changes", "met"),
    [
        ({"verdict_s": 5.0}, True),
        ({"requests": 500}, False),
        ({"timing_s": 5.1}, False),
        ({"verdict": "undecided"}, False),
    ],
)
def test_the_goal_on_handlers(scale: ModuleType, changes: dict[str, Any], met: bool) -> None:
    readings = [made("handler", "fast"), made("handler", "CPU 1 ms"), made("handler", "waits 20 ms", **changes)]
    (goal,) = scale.report(readings).goals
    assert goal.met == met
    assert ("not decided everywhere: waits 20 ms" in goal.found) == ("verdict" in changes)
    assert ("in 1 of 2 processes" in goal.found) == ("timing_s" in changes)


def test_a_part_without_something_to_compare_has_no_goal(scale: ModuleType) -> None:
    report = scale.report([made("depth", 5), made("handler", "fast")])
    assert len(report.tables) == 2
    assert not report.goals
    assert not scale.report([]).tables


def test_a_session_tells_its_growth(scale: ModuleType) -> None:
    reading = {
        "part": "session",
        "value": 6,
        "seconds": [1.0, 1.0, 1.0, 1.0, 2.0, 2.0],
        "peak_mib": [10.0, 11.0, 12.0, 12.0, 12.0, 13.0],
        "verdicts": ["pass"] * 5 + ["undecided"],
    }
    text = str(scale.report([reading]))
    assert "0.500" in text
    assert "5 pass, 1 undecided" in text
