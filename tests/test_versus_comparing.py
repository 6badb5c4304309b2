"""The order of the processes, when they end, and what is said of tests of one side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_mwbudget.analysis.paired import FEWEST_PAIRS
from pytest_mwbudget.comparison.allowed import parsed
from pytest_mwbudget.errors import VersusError
from pytest_mwbudget.processes import Ended, TimeOverError
from pytest_mwbudget.versus import sides
from pytest_mwbudget.versus.comparing import PAIRS_OF_COUNTS, TIME_S, Comparing, _check
from pytest_mwbudget.versus.order import Statement
from pytest_mwbudget.versus.sides import Ran, Side

from .canned import but
from .test_pairs import process, result

pytestmark = pytest.mark.once

PLACE = Path()
BASE, HEAD = (Side(name, Path(name), PLACE, PLACE, []) for name in ("base", "HEAD"))
TOLD = Statement(own=["app.py"], tests=["t::a"])


class World:
    """Processes that take `takes_s` of an imagined clock; the layer of HEAD costs `after`."""

    def __init__(self, after: float = 100.0, takes_s: float = 2.0, noise: Callable[[int], float] = lambda number: 0.0):
        self.after = after
        self.takes_s = takes_s
        self.noise = noise
        self.now_s = 0.0
        self.ran: list[tuple[str, float, int]] = []
        self.stop: BaseException | None = None
        self.stop_at = 10**9
        self.told = {"base": TOLD, "HEAD": TOLD}

    def run(self, side: Side, time_s: float, seed: int, limit_s: float) -> Ran:
        if self.stop is not None and len(self.ran) >= self.stop_at:
            raise self.stop
        self.now_s += self.takes_s
        us = (100.0 if side is BASE else self.after) + self.noise(len(self.ran))
        self.ran.append((side.name, time_s, seed))
        measured = result({"Work": us}) if time_s else but(result({"Work": us}), books=None)
        return Ran(process(measured), self.told[side.name], "output")

    def comparing(self, limits: str | None = None, end_s: float = 1000.0, **more: Any) -> Comparing:
        self.lines: list[str] = []
        self.checked: list[str] = []
        self.laid: list[Statement] = []
        allowed = parsed(limits, "--fail")
        return Comparing(
            BASE,
            HEAD,
            allowed,
            end_s,
            more.get("check", lambda side, ran: self.checked.append(side.name)),
            self.laid.append,
            self.lines.append,
            run=self.run,
            clock=lambda: self.now_s,
        )


def noisy(number: int) -> float:
    return 30.0 * (-1) ** (number // 3)


def test_sides_take_turns_and_pairs_share_a_seed() -> None:
    world = World(noise=noisy)
    world.comparing(end_s=17.0).comparison()
    assert [name for name, _, _ in world.ran] == ["HEAD", "base", "base", "HEAD"] * 2
    assert [seed for _, _, seed in world.ran] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert {time_s for _, time_s, _ in world.ran} == {TIME_S}


def test_it_ends_when_all_is_known() -> None:
    world = World(after=110.0)
    comparison = world.comparing("us:5%").comparison()
    assert len(world.ran) == 2 * FEWEST_PAIRS
    assert not comparison.open
    assert [change.row for _, change in comparison.judged("fail")] == ["Work"]


def test_counts_need_few_pairs_and_no_time() -> None:
    world = World()
    world.comparing("objects:0").comparison()
    assert len(world.ran) == 2 * PAIRS_OF_COUNTS
    assert {time_s for _, time_s, _ in world.ran} == {0.0}


def test_no_pair_is_begun_that_would_not_end_in_time() -> None:
    world = World(noise=noisy)
    comparing = world.comparing(end_s=60.0)
    comparison = comparing.comparison()
    assert comparison.open
    assert 50.0 < world.now_s <= 60.0
    assert comparing.seconds == world.now_s


def test_the_first_pair_is_made_in_any_case() -> None:
    world = World()
    comparison = world.comparing(end_s=1.0).comparison()
    assert len(world.ran) == 2
    assert {change.word for _, change in comparison.changes if not change.traits.counted} == {"unclear"}


def test_a_process_that_hangs_ends_the_comparison() -> None:
    world = World(noise=noisy)
    world.stop, world.stop_at = TimeOverError(), 7
    comparing = world.comparing()
    comparing.comparison()
    assert len(comparing.pairs) == 3
    world.stop_at = 0
    with pytest.raises(VersusError, match="before both sides had run once; raise --max-time"):
        world.comparing().comparison()


def test_after_an_interrupt_the_pairs_so_far_are_told() -> None:
    world = World(noise=noisy)
    world.stop, world.stop_at = KeyboardInterrupt(), 5
    comparing = world.comparing()
    comparing.comparison()
    assert comparing.interrupted
    assert len(comparing.pairs) == 2
    world.ran.clear()
    world.stop_at = 0
    with pytest.raises(KeyboardInterrupt):
        world.comparing().comparison()


def test_tests_of_head_are_laid_over_before_the_base_runs_and_each_process_is_checked() -> None:
    world = World(after=150.0)
    world.comparing().comparison()
    assert world.laid == [TOLD]
    assert len(world.checked) == len(world.ran)

    def refuse(side: Side, ran: Ran) -> None:
        raise VersusError("elsewhere")

    with pytest.raises(VersusError, match="elsewhere"):
        world.comparing(check=refuse).comparison()


def test_a_failing_test_of_head_ends_it_with_the_output() -> None:
    world = World()
    world.told["HEAD"] = Statement(failed={"t::a": "assert 1 == 2"})
    with pytest.raises(VersusError, match=r"tests fail with HEAD.*t::a; correct them first. .*--prepare\noutput"):
        world.comparing().comparison()


def test_a_failing_app_is_named_without_advice_for_commits() -> None:
    here = Path("/here")
    side = Side("B", here, here, here, [])
    with pytest.raises(VersusError, match=r"tests fail with B, .*; correct them first\.\noutput"):
        _check(side, Ran({}, Statement(failed={"t::a": "assert 1 == 2"}), "output"))


def test_head_without_a_request_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    ran = Ran({}, TOLD, "output", ["t::a GET /: it answered 500"])
    monkeypatch.setattr(world, "run", lambda *arguments: ran)
    with pytest.raises(VersusError, match=r"measured no request; mark a test[\s\S]*it answered 500\noutput"):
        world.comparing().comparison()


def test_tests_of_one_side_are_named() -> None:
    world = World(after=150.0)
    many = [f"t::{number}" for number in range(8)]
    world.told = {
        "base": Statement(tests=["t::old", "t::new"], failed={"t::new": "no such route"}),
        "HEAD": Statement(tests=["t::new", *many]),
    }
    comparing = world.comparing()
    comparing.comparison()
    failed, base, head = comparing.remarks()
    assert "t::new (no such route)" in failed
    assert base == "run with base only: t::old"
    assert head == "run with HEAD only: t::0, t::1, t::2, t::3, t::4 and 3 more"


def test_without_a_request_on_both_sides_nothing_is_compared() -> None:
    world = World()

    def run(side: Side, time_s: float, seed: int, limit_s: float) -> Ran:
        if side is HEAD:
            return world.run(side, time_s, seed, limit_s)
        world.now_s += 1
        return Ran({}, Statement(failed={"t::a": "no such route"}), "output")

    comparing = world.comparing(end_s=9.0)
    comparing.run = run
    with pytest.raises(VersusError, match=r"nothing was compared: t::a \(no such route\)"):
        comparing.comparison()


def test_requests_that_are_left_out_are_named() -> None:
    world = World(after=150.0)
    comparing = world.comparing()
    comparing.comparison()
    comparing.ran["HEAD"] = replace(comparing.ran["HEAD"], left_out=["t::a GET /b: it answered 500"])
    assert comparing.remarks() == ["not measured with HEAD: t::a GET /b: it answered 500"]


def test_a_process_prints_no_annotations_for_github(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environments: list[Mapping[str, str]] = []

    def run_command(command: Sequence[str], place: Path, environment: Mapping[str, str], limit_s: float) -> Ended:
        environments.append(environment)
        return Ended(sides.NO_TESTS, b"::error::", b"")

    monkeypatch.setattr(sides, "run_command", run_command)
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    with pytest.raises(VersusError, match="pytest found no test for HEAD"):
        sides.run(Side("HEAD", tmp_path, tmp_path, tmp_path, []), 0.0, 1, 10.0)
    assert "GITHUB_ACTIONS" not in environments[0]
