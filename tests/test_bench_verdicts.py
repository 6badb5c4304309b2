"""The mechanics of bench/verdicts.py; its timings are not checked."""

from __future__ import annotations

import importlib
import random
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.bench

BENCH = Path(__file__).parent.parent / "bench"


@pytest.fixture
def verdicts(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCH)
    return importlib.import_module("verdicts")


def made(ratio: float, verdict: str, **others: Any) -> dict[str, Any]:
    return {
        "process": 0,
        "condition": "idle",
        "layer": "Work",
        "ratio": ratio,
        "budget_us": 20.0 * ratio,
        "verdict": verdict,
        "reason": "the interval holds the budget" if verdict == "undecided" else None,
        "failed_once": verdict == "fail",
        "stood_s": 0.5,
        "estimate_us": 20.1,
        "truth_us": 20.0,
        "truth_low_us": 19.9,
        "truth_high_us": 20.1,
        "saved_us": 22.0,
        **others,
    }


def test_every_layer_has_every_ratio_once_in_a_block(verdicts: ModuleType) -> None:
    runs = verdicts.block(random.Random(1))
    assert len(runs) == len(verdicts.RATIOS)
    met = Counter((name, ratio) for run in runs for name, ratio in run.items())
    assert met == Counter((name, ratio) for name in verdicts.LAYERS for ratio in verdicts.RATIOS)
    assert all(set(run.values()) <= set(verdicts.FAR) or set(run.values()) <= set(verdicts.NEAR) for run in runs)


def test_a_layer_is_left_out_in_place_and_put_back(verdicts: ModuleType) -> None:
    stack = verdicts.Stack(random.Random(1))

    def chain() -> list[Any]:
        apps = [stack.root]
        while apps[-1] is not verdicts.endpoint:
            apps.append(apps[-1].app)
        return apps

    whole = chain()
    assert whole == [stack.root, *stack.layers.values(), verdicts.endpoint]
    outer, inner = stack.outer["Work"], stack.inner["Work"]
    place = whole.index(stack.layers["Work"])
    stack.link("Work")
    assert chain() == [*whole[:place], outer, stack.layers["Work"], inner, *whole[place + 1 :]]
    stack.link("Work", without=True)
    assert chain() == [*whole[:place], outer, inner, *whole[place + 1 :]]
    stack.link("PassThrough", without=True)
    assert chain() == [stack.root, stack.inner["PassThrough"], *whole[2:]]
    stack.link()
    assert chain() == whole


def test_the_truth_is_that_of_the_best_speed(verdicts: ModuleType) -> None:
    truth = verdicts.Truth(None, None, random.Random(1), None)
    for number in range(400):
        blocks = verdicts.Series(), verdicts.Series()
        quick = number % 10  # tenths of a block's requests, which are too few in some blocks
        for place in range(verdicts.BLOCK_CALLS):
            slow = place % 10 >= quick
            for block, cost_ns in zip(blocks, (120_000.0, 100_000.0), strict=True):
                block.add(cost_ns * (1.6 if slow else 1.0) + number % 7, 1600.0 if slow else 1000.0)
        truth.pairs["Work"].append(blocks)
    assert truth.quickest_ns() == 1000.0
    estimate = truth.us("Work")
    assert estimate.low == estimate.estimate == estimate.high == 20.0


def test_a_small_process_judges_every_layer(verdicts: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    ratios = {name: verdicts.RATIOS[place] for place, name in enumerate(verdicts.LAYERS)}
    monkeypatch.setattr(verdicts, "block", lambda chance: [ratios])
    monkeypatch.setattr(verdicts, "SETTLE_CALLS", 1)
    monkeypatch.setattr(verdicts, "BLOCK_CALLS", 2)
    monkeypatch.setattr(verdicts, "QUICK_CALLS", 1)
    monkeypatch.setattr(verdicts, "fresh_process", lambda file, **size: verdicts.worker(**size))
    small = replace(
        verdicts.QUICK, conditions=("bursts",), warm_calls=5, first_truth_s=0.1, truth_s=0.0, max_time_s=0.3
    )
    monkeypatch.setattr(verdicts, "QUICK", small)
    readings = verdicts.measure(quick=True)
    assert {reading["layer"]: reading["ratio"] for reading in readings} == ratios
    for reading in readings:
        assert set(reading) == set(made(1.05, "pass"))
        assert reading["verdict"] in verdicts.VERDICTS
        assert reading["truth_low_us"] <= reading["truth_us"] <= reading["truth_high_us"]
    text = str(verdicts.report(readings))
    assert "bursts" in text
    assert "6 verdicts: 1 runs in each of 1 conditions" in text


def test_runs_are_dealt_in_whole_blocks(verdicts: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def fresh_process(file: str, **size: Any) -> list[Any]:
        asked.append(size)
        return [made(1.05, "pass")]

    monkeypatch.setattr(verdicts, "fresh_process", fresh_process)
    readings = verdicts.measure(quick=False, runs=19)
    assert asked == [{"traced": 0, **asdict(verdicts.Size(blocks=2))}] * verdicts.PROCESSES
    assert [reading["layer"] for reading in readings] == ["Work"] * verdicts.PROCESSES


@pytest.mark.parametrize(("fails", "met"), [(0, True), (1, False)])
def test_one_false_fail_is_one_too_many(verdicts: ModuleType, fails: int, met: bool) -> None:
    readings = [made(1.05, "pass")] * 1500 + [made(1.3, "fail")] * fails
    assert verdicts.report(readings).goals[0].met is met


def test_a_fail_that_was_taken_back_is_a_false_fail(verdicts: ModuleType) -> None:
    readings = [made(1.15, "pass")] * 1000 + [made(1.15, "pass", failed_once=True)]
    assert not verdicts.report(readings).goals[0].met


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("before", ["fail", "undecided"])
def test_a_fail_counts_where_the_run_could_have_ended(verdicts: ModuleType, last: bool, before: str) -> None:
    judged = SimpleNamespace(bound=21.0, verdict="pass", reason=None)
    layer = SimpleNamespace(judged={"us": judged}, us=None)
    looks = [
        verdicts.Look(1.0, last, {"Work": before}),
        verdicts.Look(1.1, last, {"Work": "fail"}),
        verdicts.Look(1.2, False, {"Work": "pass"}),
        verdicts.Look(1.4, True, {"Work": "pass"}),
    ]
    reading = verdicts.verdict_of("Work", SimpleNamespace(layer=lambda name: layer), looks)
    assert reading["failed_once"] is (last and before == "fail")
    assert (reading["verdict"], reading["stood_s"]) == ("pass", 1.2)


@pytest.mark.parametrize("taken_back", [True, False])
def test_a_fail_that_the_second_witness_contradicts_is_no_false_fail(verdicts: ModuleType, taken_back: bool) -> None:
    reason = "by its row the layer takes 25.0 µs (24.0 to 26.0), but … use a budget of counts [contradicted]"
    judged = SimpleNamespace(bound=21.0, verdict="undecided", reason=reason)
    if not taken_back:
        judged = SimpleNamespace(bound=21.0, verdict="fail", reason=None)
    layer = SimpleNamespace(judged={"us": judged}, us=None)
    looks = [verdicts.Look(seconds, True, {"Work": "fail"}) for seconds in (1.0, 1.1, 1.2)]
    reading = verdicts.verdict_of("Work", SimpleNamespace(layer=lambda name: layer), looks)
    assert reading["failed_once"] is not taken_back
    assert reading["verdict"] == judged.verdict
    if taken_back:
        assert reading["reason"] == "the row and what leaving the layer out saves disagree"


def test_reasons_are_kept_without_their_numbers(verdicts: ModuleType) -> None:
    reason = "the interval 18.00 to 22.00 µs holds the budget of 20 µs"
    judged = SimpleNamespace(bound=20.0, verdict="undecided", reason=reason)
    layer = SimpleNamespace(judged={"us": judged}, us=None)
    looks = [verdicts.Look(1.0, True, {"Work": "undecided"})]
    reading = verdicts.verdict_of("Work", SimpleNamespace(layer=lambda name: layer), looks)
    assert reading["reason"] == "the interval holds the budget"


def test_too_few_verdicts_reach_no_goal(verdicts: ModuleType) -> None:
    false_fails, _ = verdicts.report([made(1.05, "pass")] * 1499).goals
    assert not false_fails.met
    assert false_fails.found == "0 in 1,499"


def test_a_fail_below_the_true_cost_is_right(verdicts: ModuleType) -> None:
    readings = [made(1.05, "pass")] * 1500 + [made(0.95, "fail"), made(0.7, "fail")]
    assert all(goal.met for goal in verdicts.report(readings).goals)


@pytest.mark.parametrize(("undecided", "met"), [(49, True), (50, False)])
def test_more_than_95_per_cent_are_decided(verdicts: ModuleType, undecided: int, met: bool) -> None:
    readings = [made(0.85, "fail")] * (1000 - undecided) + [made(1.15, "undecided")] * undecided
    report = verdicts.report([*readings, made(1.05, "undecided")])
    assert report.goals[1].met is met
    assert f"the interval holds the budget {undecided} times" in str(report)


def test_a_gate_that_always_passes_reaches_no_goal(verdicts: ModuleType) -> None:
    readings = [made(ratio, "pass") for ratio in (0.7, 0.85, 1.15, 1.3)] * 300
    false_fails, decided = verdicts.report(readings).goals
    assert false_fails.found == "0 in 600"
    assert not decided.met
    assert decided.found == "50.0 % of 1,200, a verdict on 100.0 %"


def test_a_verdict_with_an_unsure_truth_stands_apart(verdicts: ModuleType) -> None:
    unsure = made(1.05, "fail", truth_low_us=19.0, truth_high_us=21.5)
    moved = made(1.05, "fail", truth_us=23.0, truth_low_us=22.9, truth_high_us=23.1)
    report = verdicts.report([made(1.05, "pass")] * 1500 + [unsure, moved])
    assert report.goals[0].met
    assert report.tables[0].rows[0][-1] == "2"
    assert "Among those apart" in str(report)
    assert "Work 1.05 (idle) 2 times" in str(report)


def test_times_are_those_of_verdicts(verdicts: ModuleType) -> None:
    readings = [made(1.3, "pass", stood_s=second) for second in range(1, 21)] + [made(1.3, "undecided", stood_s=99.0)]
    assert verdicts.times(readings) == ["10.5", "19.0"]
    assert verdicts.times([made(1.3, "undecided")]) == ["-", "-"]


def test_no_readings_reach_no_goal(verdicts: ModuleType) -> None:
    report = verdicts.report([])
    assert not any(goal.met for goal in report.goals)
    assert str(report)
