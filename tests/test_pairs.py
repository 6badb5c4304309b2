"""What pairs of processes show: speeds, words, limits, counts, rows of one side."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import median

import pytest

from pytest_mwbudget.comparison.allowed import parsed
from pytest_mwbudget.comparison.figures import figures_of
from pytest_mwbudget.comparison.outcome import Comparison
from pytest_mwbudget.comparison.pairs import TIMES, TOTAL, Pair, Process, compare_pairs
from pytest_mwbudget.model.changes import Change, within
from pytest_mwbudget.model.estimate import Estimate
from pytest_mwbudget.model.messages import Messages, PerMessage
from pytest_mwbudget.model.request_keys import RequestKey
from pytest_mwbudget.model.results import (
    Books,
    Count,
    Counts,
    LayerReport,
    Ledger,
    Occupation,
    RequestLine,
    Result,
)
from pytest_mwbudget.model.stack import Layer

from .canned import canned

pytestmark = pytest.mark.once

KEY = RequestKey("tests/test_app.py::test_health", "GET /health")
ZERO = Count(0, 0, 0)
EMPTY = Counts(ZERO, ZERO, ZERO, ZERO, ZERO, ZERO, ZERO, ZERO, ZERO)


def exactly(us: float) -> Estimate:
    return Estimate(us, us - 1, us + 1)


def result(layers: Mapping[str, float], objects: Mapping[str, Count | None] | None = None) -> Result:
    """A result whose layers take these times, with an endpoint of 40 µs and 5 µs outside."""
    objects = objects or {}
    reports = tuple(
        LayerReport(
            Layer(index, name, f"app.{name}", "class"),
            exactly(us),
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


def process(measured: Result) -> Process:
    """Return a process that measured one request."""
    return {KEY: figures_of(measured)}


def pairs_of(
    base: Sequence[Result], head: Sequence[Result], speeds: Sequence[tuple[float, float]] | None = None
) -> list[Pair]:
    """Pairs of one request; `speeds` are the times of the reference workload of the base and of HEAD."""
    speeds = speeds or [(2000.0, 2000.0)] * len(base)
    return [
        Pair(process(replace(a, reference_ns=slow_a)), process(replace(b, reference_ns=slow_b)))
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


def compared(pairs: Sequence[Pair], limits: str | None = None) -> Comparison:
    return compare_pairs(pairs, 1, parsed(limits, "--fail"))


def row(comparison: Comparison, name: str, quantity: str = "us") -> Change:
    (change,) = [change for _, change in comparison.changes if (change.row, change.quantity) == (name, quantity)]
    return change


def by(comparison: Comparison, name: str, quantity: str = "us") -> Estimate:
    difference = row(comparison, name, quantity).change
    assert difference is not None
    return difference


def test_a_slower_layer_is_found_whatever_the_speed_of_the_machine() -> None:
    comparison = compared(noisy(100, 110))
    change = row(comparison, "Work")
    assert change.word == "slower"
    assert change.before is not None
    assert change.before.estimate == pytest.approx(100, rel=0.02)
    assert by(comparison, "Work").low < 10 < by(comparison, "Work").high


def test_a_faster_layer_is_compared() -> None:
    comparison = compared(noisy(100, 90))
    assert row(comparison, "Work").word == "faster"
    assert by(comparison, "Work").low < -10 < by(comparison, "Work").high


def test_what_has_not_changed_is_the_same() -> None:
    comparison = compared(noisy(100, 100))
    assert row(comparison, "Work").word == "same"
    assert within(by(comparison, "Work")) < 5
    assert row(comparison, "Work") not in comparison.open


def test_too_much_noise_is_unclear() -> None:
    comparison = compared(noisy(100, 104, noise=0.2))
    assert row(comparison, "Work").word == "unclear"
    assert row(comparison, "Work") in comparison.open


@pytest.mark.parametrize(
    ("after", "limits", "verdict"),
    [
        (110, "us:5%", "fail"),
        (102, "us:5%", "pass"),
        (105, "us:5%", "undecided"),
    ],
)
def test_a_limit_fails_only_what_is_certainly_above_it(after: float, limits: str, verdict: str) -> None:
    change = row(compared(noisy(100, after, count=20), limits), "Work")
    assert change.verdict == verdict


def test_the_total_is_the_sum_of_the_rows() -> None:
    comparison = compared(pairs_of([result({"Work": 10})] * 6, [result({"Work": 13})] * 6))
    assert row(comparison, TOTAL).before == Estimate(55, 55, 55)
    assert by(comparison, TOTAL).estimate == pytest.approx(3)


def test_limited_times_follow_the_self_time_in_the_order_of_the_table() -> None:
    spent = Occupation(exactly(9.0), 1.0, 8.0)
    messages = Messages(PerMessage(10, exactly(1.0)))
    (layer,) = result({"Work": 10}).layers
    both = replace(result({"Work": 10}), layers=(replace(layer, occupation=spent, messages=messages),))
    comparison = compared(pairs_of([both] * 3, [both] * 3), "us_per_message:5%,busy_us:5%")
    assert [change.quantity for _, change in comparison.changes if change.row == "Work"][:3] == list(TIMES)


def test_rows_of_one_side_are_new_or_gone() -> None:
    comparison = compared(pairs_of([result({"Old": 10})] * 6, [result({"New": 12})] * 6), "us:0,objects:0,total_us:1us")
    assert (row(comparison, "Old").word, row(comparison, "New").word) == ("gone", "new")
    assert row(comparison, "New").after == Estimate(12, 12, 12)
    # What is new has not grown. The total has.
    assert row(comparison, "New").verdict is None
    assert row(comparison, "New", "objects").verdict is None
    assert row(comparison, TOTAL, "us").verdict == "fail"


def test_requests_of_one_side_are_named() -> None:
    other = RequestKey("tests/test_app.py::test_new", "GET /new")
    measured = result({"Work": 10})
    pair = Pair(process(measured), {**process(measured), other: figures_of(measured)})
    assert compared([pair] * 5).new == [other]
    assert compared([Pair(pair.head, pair.base)] * 5).gone == [other]


def test_a_pair_in_which_a_test_failed_does_not_count() -> None:
    measured_process = process(result({"Work": 10}))
    failed = Pair(measured_process, {})
    assert not list(compared([failed]).changes)
    comparison = compared([Pair(measured_process, measured_process)] * 4 + [failed])
    assert not by(comparison, "Work").bounded
    assert by(compared([Pair(measured_process, measured_process)] * 5 + [failed]), "Work").bounded
    assert comparison.gone == []


def test_counts_are_compared_exactly() -> None:
    base, head = result({"Work": 1}, {"Work": Count(10, 10, 10)}), result({"Work": 1}, {"Work": Count(11, 11, 11)})
    change = row(compared(pairs_of([base] * 5, [head] * 5), "objects:0"), "Work", "objects")
    assert (change.word, change.verdict, change.change) == ("more", "fail", Estimate(1, 1, 1))
    assert row(compared(pairs_of([base] * 3, [head] * 3), "objects:1"), "Work", "objects").verdict == "pass"
    assert row(compared(pairs_of([base] * 3, [base] * 3), "objects:0"), "Work", "objects").verdict == "pass"
    # A count with two values may by chance change alike in a few pairs.
    few = compared(pairs_of([base] * 4, [head] * 4), "objects:0")
    assert row(few, "Work", "objects").verdict == "undecided"
    assert row(few, "Work", "objects") in few.open
    unlimited = compared(pairs_of([base] * 4, [head] * 4))
    assert row(unlimited, "Work", "objects") in unlimited.open


def test_counts_that_vary_alike_in_the_requests_of_each_process_have_not_changed() -> None:
    varies = result({"Work": 1}, {"Work": Count(10, 9, 12)})
    change = row(compared(pairs_of([varies] * 3, [varies] * 3), "objects:0"), "Work", "objects")
    assert (change.word, change.verdict) == ("same", "pass")


def test_a_request_that_is_a_stray_counts_no_more_than_for_a_budget() -> None:
    stray = result({"Work": 1}, {"Work": Count(61, 61, 75)})
    (layer,) = stray.layers
    assert layer.counts is not None
    stray = replace(stray, layers=(replace(layer, counts=replace(layer.counts, ranges={"objects": (61, 61)})),))
    assert figures_of(stray).rows["Work"].figures["objects"] == Estimate(61, 61, 61)


def pairs_of_counts(before: Sequence[int], after: Sequence[int]) -> list[Pair]:
    base, head = ([result({"Work": 1}, {"Work": Count(n, n, n)}) for n in side] for side in (before, after))
    return pairs_of(base, head)


def verdict_in_time(draw: Callable[[random.Random], int], more: int, limits: str, seed: int) -> tuple[str | None, int]:
    """Return the verdict on a count, and after how many pairs: at the looks of `versus`, 24 pairs at most."""
    rng, looks = random.Random(seed), (3, 4, 6, 9, 13, 19, 24)
    pairs = pairs_of_counts(*([draw(rng) + by for _ in range(24)] for by in (0, more)))
    for look, number in enumerate(looks, 1):
        comparison = compare_pairs(pairs[:number], look, parsed(limits, "--fail"), last=number == looks[-1])
        if not comparison.open:
            break
    return row(comparison, "Work", "objects").verdict, number


@pytest.mark.parametrize("limits", ["objects:0", "objects:5"])
@pytest.mark.parametrize(
    "draw",
    [lambda rng: rng.randint(967, 991), lambda rng: rng.choice((967, 979)), lambda rng: round(rng.gauss(400, 8))],
)
def test_a_count_that_varies_from_process_to_process_is_decided_and_does_not_fail(
    draw: Callable[[random.Random], int], limits: str
) -> None:
    unchanged = [verdict_in_time(draw, 0, limits, seed) for seed in range(60)]
    assert Counter(verdict for verdict, _ in unchanged).keys() <= {"pass", "undecided"}
    assert sum(verdict == "undecided" for verdict, _ in unchanged) <= 2
    assert median(number for _, number in unchanged) <= 13
    grown = [verdict_in_time(draw, 50, limits, seed) for seed in range(20)]
    assert {verdict for verdict, _ in grown} == {"fail"}


def verdicts_at_looks(before: Sequence[int], after: Sequence[int]) -> list[str | None]:
    pairs, limits = pairs_of_counts(before, after), parsed("objects:0", "--fail")
    looks = [compare_pairs(pairs[:number], look, limits) for look, number in enumerate((3, 4, 6, 9, 13), 1)]
    return [row(comparison, "Work", "objects").verdict for comparison in looks]


def test_growth_within_the_range_of_the_base_does_not_pass() -> None:
    by_seed = [967, 971, 975, 979, 983, 987, 991, 969, 973, 977, 981, 985, 989]
    verdicts = verdicts_at_looks(by_seed, [number + 20 + place % 2 for place, number in enumerate(by_seed)])
    assert "pass" not in verdicts
    assert verdicts[-1] == "fail"
    assert "pass" not in verdicts_at_looks([100] * 12 + [300], [150] * 13)  # one stray process


def test_growth_within_the_range_of_the_requests_does_not_pass() -> None:
    base = [result({"Work": 1}, {"Work": Count(100, 100, 400)})] * 9
    head = [result({"Work": 1}, {"Work": Count(300 + n % 2, 100, 400)}) for n in range(9)]
    assert row(compared(pairs_of(base, head), "objects:0"), "Work", "objects").verdict == "fail"


def test_counts_are_compared_seed_by_seed() -> None:
    seeds = [444, 450, 456, 462, 440]
    base = [result({"Work": 1}, {"Work": Count(seed, seed, seed)}) for seed in seeds]
    head = [result({"Work": 1}, {"Work": Count(seed + 2, seed + 2, seed + 2)}) for seed in seeds]
    assert by(compared(pairs_of(base, head)), "Work", "objects") == Estimate(2, 2, 2)


@pytest.mark.parametrize(
    ("pairs", "word", "verdict"), [(3, "unclear", "undecided"), (8, "unclear", "undecided"), (9, "more", "fail")]
)
def test_a_count_that_may_vary_by_itself_takes_more_pairs(pairs: int, word: str, verdict: str) -> None:
    base = [result({"Work": 1}, {"Work": Count(2644, 2644, 2644)})] * pairs
    numbers = [2655, 2650, *[2651] * (pairs - 2)]
    head = [result({"Work": 1}, {"Work": Count(number, number, number)}) for number in numbers]
    comparison = compared(pairs_of(base, head), "objects:0")
    change = row(comparison, "Work", "objects")
    assert (change.word, change.verdict) == (word, verdict)
    assert (change in comparison.open) == (verdict == "undecided")


def test_a_percentage_of_a_count_that_varies_is_of_the_end_of_its_range_as_between_two_runs() -> None:
    base, head = (result({"Work": 1}, {"Work": Count(n, n - 20, n + 20)}) for n in (100, 250))
    pairs = pairs_of([base] * 3, [head] * 3)
    assert row(compared(pairs, "objects:50%"), "Work", "objects").most == 60


def test_a_change_that_is_the_same_in_each_pair_is_one_though_requests_vary() -> None:
    base, head = (result({"Work": 1}, {"Work": Count(number, number - 1, number + 2)}) for number in (10, 20))
    assert by(compared(pairs_of([base] * 5, [head] * 5)), "Work", "objects") == Estimate(10, 10, 10)


def test_a_count_that_is_not_known_is_left_out() -> None:
    unknown, known = result({"Work": 1}, {"Work": None}), result({"Work": 1}, {"Work": Count(5, 5, 5)})
    names = [(change.row, change.quantity) for _, change in compared(pairs_of([unknown] * 3, [known] * 3)).changes]
    assert ("Work", "objects") not in names
    assert ("Work", "tasks") in names


def test_no_false_alarm_in_simulated_runs_and_few_misses() -> None:
    alarms = sum(row(compared(noisy(100, 100, seed=seed), "us:0"), "Work").verdict == "fail" for seed in range(200))
    hits = sum(row(compared(noisy(100, 105, seed=seed)), "Work").word == "slower" for seed in range(50))
    assert alarms == 0
    assert hits >= 45


def test_a_row_without_a_figure_is_not_compared() -> None:
    known = result({"Work": 10})
    unknown = replace(known, layers=(replace(known.layers[0], us=Estimate(0.0, -math.inf, math.inf)),))
    comparison = compared(pairs_of([known] * 6, [unknown, *[known] * 5]))
    assert by(comparison, "Work") == Estimate(0, 0, 0)
    assert by(comparison, TOTAL) == Estimate(0, 0, 0)


@pytest.mark.parametrize(("slow", "side"), [("head", "HEAD"), ("base", "the base"), ("both", "the base")])
def test_a_layer_too_slow_to_have_a_time_is_not_gone_and_passes_no_limit(slow: str, side: str) -> None:
    """Such as one that waits for 300 ms from HEAD on; its total is not that of the other rows."""
    known = result({"Work": 10, "Other": 5})
    without = replace(known, layers=(replace(known.layers[0], us=None), known.layers[1]))
    base, head = without if slow in ("base", "both") else known, without if slow in ("head", "both") else known
    comparison = compared(pairs_of([base] * 6, [head] * 6), "us:5%,total_us:5%")
    change = row(comparison, "Work")
    assert (change.word, change.verdict) == ("not measured", "undecided")
    assert change.reason == f"in {side} there were too few requests for an interval"
    assert change in comparison.open
    assert row(comparison, "Other").verdict == "pass"
    totals = [change.verdict for _, change in comparison.changes if change.row == TOTAL and change.quantity == "us"]
    assert totals == ([] if slow == "both" else ["undecided"])
    assert ("total_us", "neither run measured it") in comparison.unjudged() or totals


def test_a_layer_that_is_measured_with_another_one_is_not_gone() -> None:
    known = result({"Work": 10, "Other": 5})
    joined = replace(known.layers[1], layer=replace(known.layers[1].layer, merged_with="Work"), us=None, counts=None)
    merged = replace(known, layers=(known.layers[0], joined))
    comparison = compared(pairs_of([known] * 6, [merged] * 6), "us:5%,objects:0")
    for quantity in ("us", "objects"):
        change = row(comparison, "Other", quantity)
        assert (change.word, change.verdict) == ("not measured", "undecided")
    assert row(comparison, "Other").reason == "in HEAD it was measured together with Work"
    # With both sides alike there is nothing to tell.
    assert "Other" not in {change.row for _, change in compared(pairs_of([merged] * 6, [merged] * 6), "us:5%").changes}


def test_with_limits_only_these_are_waited_for() -> None:
    pairs = noisy(100, 150, noise=0.2)
    assert {change.row for change in compared(pairs).open} > {"Work"}
    assert {change.row for change in compared(pairs, "us:500us").open} == set()
    assert {change.row for change in compared(pairs, "us:50us").open} == {"Work"}


def test_a_limited_count_that_a_side_does_not_have_is_told() -> None:
    counted, not_counted = result({"Work": 1.0, "Old": 1.0}), result({"Work": 1.0, "New": 1.0}, {"Work": None})
    work, other = not_counted.layers
    assert work.counts is not None
    work = replace(work, counts=replace(work.counts, why={"objects": "it varies"}))
    not_counted = replace(not_counted, layers=(work, other))
    for base, head in ((counted, not_counted), (not_counted, counted), (not_counted, not_counted)):
        change = row(compared(pairs_of([base] * 3, [head] * 3), "objects:0"), "Work", "objects")
        assert (change.word, change.verdict, change.reason) == ("not measured", "undecided", "it varies")
    assert not compared(pairs_of([counted] * 3, [not_counted] * 3), "tasks:0").judged("undecided")
    assert not compared(pairs_of([counted] * 3, [not_counted] * 2 + [counted]), "objects:0").judged("undecided")


def test_what_cannot_be_counted_is_not_waited_for() -> None:
    not_counted = result({"Work": 1.0}, {"Work": None})
    assert not compared(pairs_of([not_counted] * 3, [not_counted] * 3), "objects:0").open
