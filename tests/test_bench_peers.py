"""The mechanics of `bench/peers.py` and of the ways that it runs; the timings are not checked."""

from __future__ import annotations

import asyncio
import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.conftest import needs

pytestmark = pytest.mark.bench

BENCH = Path(__file__).parent.parent / "bench"

for package in ("httpx", "pytest_benchmark", "sentry_sdk", "opentelemetry.instrumentation.asgi", "pyinstrument"):
    needs(package, reason="bench/peers.py compares with it; it comes with the dependency group `bench`")


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCH))
    script = importlib.import_module("peers")
    for name, value in {"TRUTH_ROUNDS": 3, "TRUTH_S": 0.01, "TRUTH_WARM_CALLS": 2, "ADDED_CALLS": 3}.items():
        monkeypatch.setattr(script, name, value)
    monkeypatch.setattr(importlib.import_module("known"), "WARM_CALLS", 5)
    monkeypatch.setattr(script, "VERDICT_TIME_S", 0.2)
    return script


def test_all_that_is_run_is_read_and_reported(peers: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def process(
        file: str, kind: str, way: str = peers.OURS, seconds: float = 0.0, effort: float = 1.0
    ) -> dict[str, Any]:
        asked.append((kind, way, seconds))
        return made(peers, kind, way)

    monkeypatch.setattr(peers, "fresh_process", process)
    monkeypatch.setattr(peers, "RUNS", 2)
    readings = peers.measure(quick=False)
    assert asked[0] == ("time", peers.OURS, 0.0)
    assert sorted(asked[1:]) == sorted(
        2
        * [
            *[("run", way, 3.0) for way in peers.WAYS],
            *[("ladder", peers.BENCHMARK, 3.0 * share) for share in peers.LADDER if share != 1.0],
            ("verdicts", peers.OURS, 3.0),
        ]
    )
    text = str(peers.report(readings))
    assert all(way.title in text for way in peers.WAYS.values())
    assert len(peers.report(readings).tables) == 4


def test_our_own_time_is_told(peers: ModuleType) -> None:
    assert peers.worker("time")["seconds"] > 0


@pytest.mark.parametrize("way", ["cuts_httpx", "isolated", "samples_pyinstrument"])
def test_a_way_tells_every_layer(peers: ModuleType, way: str) -> None:
    assert list(peers.ask(way, 0.1)) == list(peers.NAMES)


@pytest.mark.parametrize("way", ["cuts_httpx", "isolated"])
def test_a_way_makes_requests_also_if_its_time_is_over_at_once(peers: ModuleType, way: str) -> None:
    assert list(peers.ask(way, 0.0)) == list(peers.NAMES)


def test_opentelemetry_tells_no_layer(peers: ModuleType) -> None:
    assert "GET /" in peers.ask("spans_opentelemetry", 0.05)
    assert not set(peers.ask("spans_opentelemetry", 0.05)) & set(peers.NAMES)


def test_a_span_of_sentry_loses_what_is_inside_it(peers: ModuleType) -> None:
    spans = [span("a", "request", 0, 90), span("b", "a", 10, 70, "Inner"), span("c", "a", 75, 85, op="send")]
    sentry = importlib.import_module("ways.spans_sentry")
    assert sentry.own_us(spans) == pytest.approx({"Outer": 90 - 60 - 10, "Inner": 60})


def span(name: str, parent: str, begin: int, end: int, layer: str = "Outer", op: str = "middleware.starlette") -> Any:
    """Make a span as Sentry sends it, between two microseconds of the request."""
    times = {key: f"2026-01-01T00:00:00.{us:06}Z" for key, us in {"start_timestamp": begin, "timestamp": end}.items()}
    return {"span_id": name, "parent_span_id": parent, "description": layer, "op": op, **times}


def test_cuts_are_subtracted_from_each_other(peers: ModuleType, tmp_path: Path) -> None:
    tests = [{"params": {"cut": cut}, "stats": {"median": (10 - cut) ** 2 * 1e-6}} for cut in (3, 0, 1, 2, 4, 5, 6)]
    report = tmp_path / "report.json"
    report.write_text(peers.json.dumps({"benchmarks": tests}))
    layers = importlib.import_module("ways.cuts_pytest_benchmark").layers_us(report)
    assert layers == pytest.approx(dict(zip(peers.NAMES, (19, 17, 15, 13, 11, 9), strict=True)))


def test_pytest_runs_in_a_fresh_process(peers: ModuleType) -> None:
    reading = peers.fresh_process(peers.__file__, kind="ladder", way=peers.BENCHMARK, seconds=0.01)
    assert list(reading["us"]) == list(peers.NAMES)
    assert reading["truth_us"] == {}
    assert reading["added_us"] is None


def test_the_truth_is_told_of_every_layer(peers: ModuleType) -> None:
    assert sorted(asyncio.run(peers.truth_us(1.0))) == sorted(peers.NAMES)


@pytest.mark.parametrize("way", ["budgets_mwbudget", "cuts_httpx", "spans_opentelemetry", "samples_pyinstrument"])
def test_a_request_can_be_made_with_the_tool_at_work(peers: ModuleType, way: str) -> None:
    assert asyncio.run(peers.tooled_us(way)) > 0


def test_our_verdicts_are_those_of_the_layers(peers: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    async def generous(effort: float) -> dict[str, float]:
        return dict.fromkeys(peers.NAMES, 1e6)

    monkeypatch.setattr(peers, "truth_us", generous)
    reading = peers.verdicts(1.0)
    assert list(reading["verdicts"]) == list(peers.NAMES)
    assert set(reading["seconds"]) <= set(peers.NAMES)


def test_lines_are_those_of_code(peers: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "WAYS_DIRECTORY", tmp_path)
    (tmp_path / "some.py").write_text(
        '"""About.\n\nMore.\n"""\n\nimport os  # why\n# a remark\n\n\ndef f():\n    return 1\n'
    )
    assert peers.lines_of("some") == 3


# ---- the report, from made-up readings ------------------------------------------------------------------------------


def made(peers: ModuleType, kind: str, way: str, us: float = 10.0, seconds: float = 3.0) -> dict[str, Any]:
    """Make the results of a process; the true cost of every layer is 10 µs."""
    truth = dict.fromkeys(peers.NAMES, 10.0)
    if kind == "verdicts":
        return {
            "truth_us": truth,
            "verdicts": dict.fromkeys(peers.NAMES, "pass"),
            "seconds": dict.fromkeys(peers.NAMES, seconds),
        }
    says = {"GET /": 500.0} if way == "spans_opentelemetry" else dict.fromkeys(peers.NAMES, us)
    added_us = 5.0 if way in peers.ADDING else None
    return {
        "us": says,
        "truth_us": truth if kind == "run" else {},
        "seconds": seconds,
        "given_s": seconds,
        "added_us": added_us,
    }


def runs(peers: ModuleType, way: str, *us: float, share: float = 1.0) -> list[dict[str, Any]]:
    """Make runs of a way with these figures."""
    kind = "run" if share == 1.0 else "ladder"
    return [{"kind": kind, "way": way, "share": share, **made(peers, kind, way, figure, 3.0 * share)} for figure in us]


def gates(peers: ModuleType, seconds: float) -> list[dict[str, Any]]:
    """Make three readings of our verdicts, each after `seconds`."""
    return [{"kind": "verdicts", **made(peers, "verdicts", peers.OURS, seconds=seconds)} for _ in range(3)]


@pytest.mark.parametrize(
    ("cuts_us", "met"),
    [
        ((5.0, 8.0, 10.0, 11.2), (True, False)),  # one bad run does not count as spread
        ((5.0, 5.2, 11.3, 11.5), (True, True)),
        ((5.0, 8.0, 10.0, 10.8), (False, False)),
    ],
)
def test_the_goal_on_spread(peers: ModuleType, cuts_us: tuple[float, ...], met: tuple[bool, bool]) -> None:
    readings = [*runs(peers, peers.OURS, 10.0, 10.0, 10.2, 10.2), *runs(peers, peers.BENCHMARK, *cuts_us)]
    goals = peers.report(readings).goals
    assert tuple(goal.met for goal in goals) == met
    assert all("Noop" in goal.found for goal in goals)


def test_a_single_run_has_no_spread(peers: ModuleType) -> None:
    report = peers.report([*runs(peers, peers.OURS, 10.0), *runs(peers, peers.BENCHMARK, 12.0)])
    assert not report.goals
    assert "+2.00 (+2.00)" in str(report)


def test_runs_that_agree_are_infinitely_better(peers: ModuleType) -> None:
    goals = peers.report([*runs(peers, peers.OURS, 10.0, 10.0), *runs(peers, peers.BENCHMARK, 8.0, 12.0)]).goals
    assert all(goal.met for goal in goals)


@pytest.mark.parametrize(("seconds", "met"), [(0.25, True), (0.5, False)])
def test_the_goal_on_verdicts(peers: ModuleType, seconds: float, met: bool) -> None:
    readings = [*gates(peers, seconds), *runs(peers, peers.BENCHMARK, 8.0, 12.0)]
    readings += runs(peers, peers.BENCHMARK, 4.0, 16.0, share=0.25)
    (goal,) = peers.report(readings).goals
    assert goal.met == met


def test_a_lucky_short_time_tells_nothing(peers: ModuleType) -> None:
    readings = [*gates(peers, 0.5), *runs(peers, peers.BENCHMARK, 4.0, 16.0)]
    readings += runs(peers, peers.BENCHMARK, 9.0, 11.0, share=0.25)
    assert "> 3.0" in str(peers.report(readings))


def test_cuts_that_never_tell_are_slower_than_the_longest_time(peers: ModuleType) -> None:
    readings = [*gates(peers, 0.5), *runs(peers, peers.BENCHMARK, 4.0, 16.0)]
    readings += runs(peers, peers.BENCHMARK, 4.0, 16.0, share=4.0)
    (goal,) = peers.report(readings).goals
    assert goal.met
    assert "> 12.0" in str(peers.report(readings))


def test_layers_without_verdict_are_not_sooner(peers: ModuleType) -> None:
    readings = [*gates(peers, 0.05), *runs(peers, peers.BENCHMARK, 8.0, 12.0)]
    readings += runs(peers, peers.BENCHMARK, 4.0, 16.0, share=0.25)
    (goal,) = peers.report(readings).goals
    assert goal.met
    for reading in readings[:3]:
        reading["verdicts"] = dict.fromkeys(list(peers.NAMES)[:4], "undecided") | dict.fromkeys(
            list(peers.NAMES)[4:], "pass"
        )
    (goal,) = peers.report(readings).goals
    assert not goal.met


def test_a_layer_without_verdict_is_named(peers: ModuleType) -> None:
    readings = [*gates(peers, 0.25), *runs(peers, peers.BENCHMARK, 8.0, 12.0)]
    for reading in readings[:3]:
        reading["verdicts"]["Noop"] = "undecided"
    (goal,) = peers.report(readings).goals
    assert goal.found.endswith("ours had no verdict on Noop")


def test_what_names_no_layer_is_quoted(peers: ModuleType) -> None:
    (note,) = peers.report(runs(peers, "spans_opentelemetry", 0.0)).notes
    assert note == "OpenTelemetry's spans name no layer. They show: `GET /` 500.0 µs."


def test_no_readings_make_an_empty_report(peers: ModuleType) -> None:
    assert not peers.report([]).goals
