"""What pairs of processes show: speeds, words, limits, counts, rows of one side."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from pytest_mwbudget.comparison.allowed import LEAST_US, Allowed, parsed
from pytest_mwbudget.comparison.pairs import TOTAL, Change, Changes, Pair, Process, changes
from pytest_mwbudget.model.estimate import Estimate
from pytest_mwbudget.model.request_keys import RequestKey
from pytest_mwbudget.model.results import Books, Count, Counts, LayerReport, Ledger, Method, RequestLine, Result
from pytest_mwbudget.model.stack import Layer

from .canned import canned

KEY = RequestKey("tests/test_app.py::test_health", "GET /health")
ZERO = Count(0, 0, 0)
EMPTY = Counts(ZERO, ZERO, ZERO, ZERO, ZERO, ZERO, ZERO, ZERO, ZERO)


def exactly(us: float) -> Estimate:
    return Estimate(us, us - 1, us + 1)


def result(
    layers: Mapping[str, float], objects: Mapping[str, Count | None] | None = None, method: Method = "split"
) -> Result:
    """A result whose layers take these times, with an endpoint of 40 µs and 5 µs outside."""
    objects = objects or {}
    reports = tuple(
        LayerReport(
            Layer(index, name, f"app.{name}", "class"),
            exactly(us),
            method,
            counts=replace(EMPTY, objects=objects.get(name, ZERO)),
        )
        for index, (name, us) in enumerate(layers.items())
    )
    books = Books(exactly(999.0), exactly(5.0), exactly(40.0), 0.0)
    return canned(
        request=RequestLine("GET", "/health"),
        status=200,
        layers=reports,
        books=books,
        ledger=Ledger(EMPTY, EMPTY, EMPTY, 21),
    )


def pairs_of(
    base: Sequence[Result], head: Sequence[Result], speeds: Sequence[tuple[float, float]] | None = None
) -> list[Pair]:
    """Pairs of one request; `speeds` are the times of the reference workload of the base and of HEAD."""
    speeds = speeds or [(2000.0, 2000.0)] * len(base)
    return [
        Pair(Process({KEY: a}, {KEY: slow_a}), Process({KEY: b}, {KEY: slow_b}))
        for a, b, (slow_a, slow_b) in zip(base, head, speeds, strict=True)
    ]


def noisy(before: float, after: float, count: int = 12, noise: float = 0.01, seed: int = 1) -> list[Pair]:
    """Pairs whose layer Work costs `before` and `after`, with noise; the machine is up to 1.6 times slower at times."""
    rng = random.Random(seed)
    speeds = [(rng.choice([2000.0, 3200.0]), rng.choice([2000.0, 3200.0])) for _ in range(count)]

    def side(us: float, speed: float) -> Result:
        slow = speed / 2000
        return result({"Work": us * slow * rng.gauss(1, noise), "Other": 20 * slow * rng.gauss(1, noise)})

    base = [side(before, slow) for slow, _ in speeds]
    head = [side(after, slow) for _, slow in speeds]
    return pairs_of(base, head, speeds)


def found(pairs: Sequence[Pair], limits: str = "", look: int = 1) -> Changes:
    allowed: Allowed = parsed(limits, "--fail") if limits else {}
    return changes(pairs, look, allowed)


def row(all_changes: Changes, name: str, quantity: str = "us") -> Change:
    (one,) = [one for one in all_changes.all if one.row.name == name and one.quantity == quantity]
    return one


def test_a_slower_layer_is_found_whatever_the_speed_of_the_machine() -> None:
    change = row(found(noisy(100, 110)), "Work")
    assert change.word == "more"
    assert change.by.low < 10 < change.by.high
    assert change.before == pytest.approx(100, rel=0.02)


def test_a_faster_layer_is_found() -> None:
    change = row(found(noisy(100, 90)), "Work")
    assert change.word == "less"
    assert change.by.low < -10 < change.by.high


def test_what_has_not_changed_is_the_same() -> None:
    change = row(found(noisy(100, 100)), "Work")
    assert change.word == "same"
    assert change.within < 5
    assert change.known


def test_too_much_noise_is_undecided() -> None:
    change = row(found(noisy(100, 104, noise=0.2)), "Work")
    assert change.word == "undecided"
    assert not change.known


@pytest.mark.parametrize(
    ("after", "limits", "verdict"),
    [
        (110, "us:5%", "fail"),
        (102, "us:5%", "pass"),
        (110, "us:20us", "pass"),
        (110, "us:2us", "fail"),
        (90, "us:0", "pass"),
    ],
)
def test_a_limit_fails_only_what_is_certainly_above_it(after: float, limits: str, verdict: str) -> None:
    change = row(found(noisy(100, after, count=20), limits), "Work")
    assert change.verdict == verdict


def test_a_change_near_the_limit_is_undecided() -> None:
    assert row(found(noisy(100, 105), "us:5%"), "Work").verdict == "undecided"


def test_limits_of_layers_are_not_for_the_endpoint_and_the_total() -> None:
    all_changes = found(noisy(100, 150), "us:1%")
    assert row(all_changes, "(endpoint)").verdict is None
    assert row(all_changes, TOTAL, "total_us").verdict is None
    assert row(found(noisy(100, 150), "total_us:1%"), TOTAL, "total_us").verdict == "fail"


def test_no_limit_is_below_what_times_can_tell() -> None:
    change = row(found(noisy(0.1, 0.4), "us:0"), "Work")
    assert change.most == LEAST_US
    assert change.verdict == "pass"


def test_the_total_is_the_sum_of_the_rows() -> None:
    change = row(found(pairs_of([result({"Work": 10})] * 6, [result({"Work": 13})] * 6)), TOTAL, "total_us")
    assert change.before == pytest.approx(55)
    assert change.by.estimate == pytest.approx(3)


def test_a_bypass_is_not_compared_with_a_split() -> None:
    split, bypass = result({"Work": 10}), result({"Work": 14}, method="bypass")
    change = row(found(pairs_of([split] * 8, [bypass, split, bypass, *[split] * 5])), "Work")
    assert change.by.estimate == pytest.approx(0)


def test_a_layer_that_became_one_of_the_other_kind_is_compared() -> None:
    split, bypass = result({"Work": 10}), result({"Work": 140}, method="bypass")
    assert row(found(pairs_of([split] * 6, [bypass] * 6)), "Work").by.estimate == pytest.approx(130)


def test_rows_of_one_side_are_new_or_gone() -> None:
    all_changes = found(pairs_of([result({"Old": 10})] * 6, [result({"New": 12})] * 6), "us:0,objects:0,total_us:1us")
    assert (row(all_changes, "Old").word, row(all_changes, "New").word) == ("gone", "new")
    assert row(all_changes, "New").after == 12
    # What is new has not grown. The total has.
    assert row(all_changes, "New").verdict is None
    assert row(all_changes, "New", "objects").verdict is None
    assert row(all_changes, TOTAL, "total_us").verdict == "fail"


def test_requests_of_one_side_are_named() -> None:
    other = RequestKey("tests/test_app.py::test_new", "GET /new")
    one = result({"Work": 10})
    pair = Pair(Process({KEY: one}), Process({KEY: one, other: one}))
    assert found([pair] * 5).only_head == [other]
    assert found([Pair(pair.head, pair.base)] * 5).only_base == [other]


def test_a_pair_in_which_a_test_failed_does_not_count() -> None:
    one = Process({KEY: result({"Work": 10})})
    failed = Pair(one, Process({}))
    assert not list(found([failed]).all)
    all_changes = found([Pair(one, one)] * 4 + [failed])
    assert not row(all_changes, "Work").by.bounded
    assert row(found([Pair(one, one)] * 5 + [failed]), "Work").by.bounded
    assert all_changes.only_base == []


def test_counts_are_compared_exactly() -> None:
    base, head = result({"Work": 1}, {"Work": Count(10, 10, 10)}), result({"Work": 1}, {"Work": Count(11, 11, 11)})
    change = row(found(pairs_of([base] * 3, [head] * 3), "objects:0"), "Work", "objects")
    assert (change.word, change.verdict, change.by) == ("more", "fail", Estimate(1, 1, 1))
    assert row(found(pairs_of([base] * 3, [head] * 3), "objects:1"), "Work", "objects").verdict == "pass"


def test_counts_that_vary_alike_do_not_fail() -> None:
    varies = result({"Work": 1}, {"Work": Count(10, 9, 12)})
    change = row(found(pairs_of([varies] * 3, [varies] * 3), "objects:0"), "Work", "objects")
    assert change.verdict == "undecided"


def test_counts_are_compared_seed_by_seed() -> None:
    seeds = [444, 450, 456]
    base = [result({"Work": 1}, {"Work": Count(one, one, one)}) for one in seeds]
    head = [result({"Work": 1}, {"Work": Count(one + 2, one + 2, one + 2)}) for one in seeds]
    assert row(found(pairs_of(base, head)), "Work", "objects").by == Estimate(2, 2, 2)


@pytest.mark.parametrize(
    ("pairs", "word", "known"), [(3, "undecided", False), (7, "undecided", False), (8, "more", True)]
)
def test_a_count_that_may_vary_by_itself_takes_more_pairs(pairs: int, word: str, known: bool) -> None:
    base = [result({"Work": 1}, {"Work": Count(2644, 2644, 2644)})] * pairs
    numbers = [2655, 2650, *[2651] * (pairs - 2)]
    head = [result({"Work": 1}, {"Work": Count(one, one, one)}) for one in numbers]
    change = row(found(pairs_of(base, head)), "Work", "objects")
    assert (change.word, change.known) == (word, known)
    assert row(found(pairs_of(base, head), "objects:0"), "Work", "objects").verdict == (
        "fail" if known else "undecided"
    )


def test_a_change_that_is_the_same_in_each_pair_is_one_though_requests_vary() -> None:
    base, head = (result({"Work": 1}, {"Work": Count(one, one - 1, one + 2)}) for one in (10, 20))
    assert row(found(pairs_of([base] * 3, [head] * 3)), "Work", "objects").by == Estimate(10, 7, 13)


def test_a_count_that_is_not_known_is_left_out() -> None:
    unknown, known = result({"Work": 1}, {"Work": None}), result({"Work": 1}, {"Work": Count(5, 5, 5)})
    names = [(one.row.name, one.quantity) for one in found(pairs_of([unknown] * 3, [known] * 3)).counts]
    assert ("Work", "objects") not in names
    assert ("Work", "tasks") in names


def test_no_false_alarm_in_simulated_runs_and_few_misses() -> None:
    alarms = sum(row(found(noisy(100, 100, seed=seed), "us:0"), "Work").verdict == "fail" for seed in range(200))
    hits = sum(row(found(noisy(100, 105, seed=seed)), "Work").word == "more" for seed in range(50))
    assert alarms == 0
    assert hits >= 45


def test_a_row_without_a_figure_is_not_compared() -> None:
    known = result({"Work": 10})
    unknown = replace(known, layers=(replace(known.layers[0], us=Estimate(0.0, -math.inf, math.inf)),))
    all_changes = found(pairs_of([known] * 6, [unknown, *[known] * 5]))
    assert row(all_changes, "Work").by == Estimate(0, 0, 0)
    assert row(all_changes, TOTAL, "total_us").by == Estimate(0, 0, 0)


def test_with_limits_only_these_are_waited_for() -> None:
    pairs = noisy(100, 150, noise=0.2)
    assert {one.row.name for one in found(pairs).open} > {"Work"}
    assert {one.row.name for one in found(pairs, "us:500us").open} == set()
    assert {one.row.name for one in found(pairs, "us:50us").open} == {"Work"}


def test_a_limited_count_that_a_side_does_not_have_is_told() -> None:
    counted, not_counted = result({"Work": 1.0, "Old": 1.0}), result({"Work": 1.0, "New": 1.0}, {"Work": None})
    work, other = not_counted.layers
    assert work.counts is not None
    work = replace(work, counts=replace(work.counts, why={"objects": "it varies"}))
    not_counted = replace(not_counted, layers=(work, other))
    for base, head in ((counted, not_counted), (not_counted, counted), (not_counted, not_counted)):
        (one,) = (one for one in found(pairs_of([base] * 3, [head] * 3), "objects:0").unknown if one.row.name == "Work")
        assert (one.quantity, one.why) == ("objects", "it varies")
    assert not found(pairs_of([counted] * 3, [not_counted] * 3), "tasks:0").unknown
    assert not found(pairs_of([counted] * 3, [not_counted] * 2 + [counted]), "objects:0").unknown
