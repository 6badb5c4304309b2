"""The mechanics of `bench/versus.py`; its timings are not checked."""

from __future__ import annotations

import importlib
import random
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pytest_mwbudget.comparison.pairs import Pair, compare_pairs
from pytest_mwbudget.versus import comparing

from .conftest import needs
from .readings import readings

pytestmark = pytest.mark.bench

BENCH = Path(__file__).parent.parent / "bench"


@pytest.fixture
def versus(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    needs("starlette", "the app of the bench uses starlette")
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("versus")


def stored(rng: random.Random, condition: str = "as it is", noise: float = 0.01) -> dict[str, Any]:
    """A process as the bench stores it, on a machine with two speeds."""
    slow = rng.choice([1.0, 1.3])
    rows = {"CORSMiddleware": 7.0, "Work": 100.0, "(endpoint)": 20.0}
    return {
        "kind": "process",
        "condition": condition,
        "seconds": 2.0,
        "reference_ns": 2000.0 * slow,
        "outside_us": slow,
        "rows": {name: us * slow * rng.gauss(1, noise) for name, us in rows.items()},
    }


def one_run(**more: Any) -> dict[str, Any]:
    """A run of the app with six layers, in which nothing was found unless said otherwise."""
    layers = ("Work", "WithAttribute", "WithCall", "Longer1", "Longer5", "Longer20")
    run: dict[str, Any] = {
        "kind": "run",
        "condition": "as it is",
        "app": "work",
        "pairs": 9,
        "seconds": 60.0,
        "before_us": dict.fromkeys(layers, 100.0),
        "by_us": {"CORSMiddleware": [0.0, -0.1, 0.1], **{layer: [5.0, 4.0, 6.0] for layer in layers}},
        "slower": [],
        "failed": [],
        "undecided": [],
        "counts": {layer: {} for layer in layers},
    }
    return run | more


def test_every_change_is_only_in_the_second_version(versus: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    with versus.apps() as folder:
        monkeypatch.syspath_prepend(str(folder))
        monkeypatch.delitem(importlib.sys.modules, "grown", raising=False)  # type: ignore[attr-defined]
        grown = importlib.import_module("grown")
        codes = {
            layer.name: [getattr(grown, f"{layer.name}{version}").__call__.__code__.co_code for version in (0, 1)]
            for layer in versus.LAYERS
        }
        assert {name for name, (before, after) in codes.items() if before != after} == {
            "WithAttribute",
            "WithCall",
            "WithTask",
        }
        apps = [
            eval(versus.factory("work", version, 1000).replace(":", ".", 1), {"grown": grown}) for version in (0, 1)
        ]
    rounds = [[layer.kwargs["rounds"] for layer in app.user_middleware[1:]] for app in apps]
    assert rounds == [[1000] * 6, [1000, 1000, 1000, 1010, 1050, 1200]]


@readings  # on a busy machine a fifth of a second may be too short for a figure
def test_runs_and_processes_are_made(versus: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparing, "TIME_S", 0.2)
    monkeypatch.setattr(comparing, "SLOWER", 1000)  # one pair for each run, on a busy machine as on another
    monkeypatch.setattr(versus, "TIME_S", 0.2)
    monkeypatch.setattr(versus, "CONDITIONS", {"as it is": ()})
    taken = versus.measure(quick=False, runs=1, processes=2, seconds=20)
    assert [reading["kind"] for reading in taken] == ["run", "run", "process", "process"]
    assert [(reading["app"], reading["pairs"]) for reading in taken[:2]] == [("work", 1), ("task", 1)]
    assert set(taken[2]["rows"]) >= {"Work", "CORSMiddleware", "(endpoint)"}
    assert taken[2]["reference_ns"] > 0
    assert "20 % (as it is)" in str(versus.report(taken))


def test_a_busy_machine_has_time_for_the_first_pair_of_a_short_run(
    versus: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(versus, "run", lambda side, time_s, seed, limit_s: limit_s)
    assert [versus.patient(None, 0.5, 0, limit_s) for limit_s in (1.0, 500.0)] == [versus.SECONDS, 500.0]


def test_drawn_runs_find_what_was_added_and_nothing_else(versus: ModuleType) -> None:
    rng = random.Random(1)
    processes = [stored(rng) for _ in range(60)]
    assert versus.drawn(processes, 1.0, 20)["fail"] == 0
    counts = versus.drawn(processes, 1.05, 20)
    assert counts["layer slower"] == counts["layer fails"] == 20


def test_a_drawn_run_has_as_many_pairs_as_fit(versus: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(1)
    seen: list[int] = []

    def counting(pairs: list[Pair], *arguments: Any, **more: Any) -> Any:
        seen.append(len(pairs))
        return compare_pairs(pairs, *arguments, **more)

    monkeypatch.setattr(comparing, "compare_pairs", counting)
    versus.Drawn([stored(rng, noise=0.5) for _ in range(60)], rng).run(1.0)
    assert seen[-1] == versus.SECONDS // 4 - 1


def test_goals_follow_from_the_runs(versus: ModuleType) -> None:
    good = [one_run(slower=["Longer5"]) for _ in range(20)]
    assert all(goal.met for goal in versus.report(good).goals)
    alarm = [*good, one_run(slower=["Longer5"], failed=["CORSMiddleware"])]
    assert [goal.met for goal in versus.report(alarm).goals] == [False, True]
    missed = [*good, *(one_run() for _ in range(3))]
    assert [goal.met for goal in versus.report(missed).goals] == [True, False]
    assert not any(goal.met for goal in versus.report([]).goals)


def test_a_row_that_changes_is_no_false_alarm(versus: ModuleType) -> None:
    changed = [one_run(slower=["Longer5"], failed=["WithAttribute", "Longer1", "(total)"])]
    assert versus.report(changed).goals[0].met
    assert versus.unchanged("task", ["(outside)", "CORSMiddleware"]) == ["ExceptionMiddleware", "(endpoint)"]


def test_counts_have_a_column_each(versus: ModuleType) -> None:
    counts = one_run()["counts"] | {"WithCall": {"bytecodes": 3, "objects": -1}}
    lines = str(versus.counts_table([one_run(counts=counts), one_run()])).splitlines()
    (line,) = (line for line in lines if line.startswith("one call"))
    assert line.split()[-5:] == ["0", "0", "1", "0", "0"]
