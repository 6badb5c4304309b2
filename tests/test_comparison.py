"""What changed between two runs: the words for times and counts, runs that cannot be compared, several files."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from pytest_mwbudget.comparison.allowed import parsed
from pytest_mwbudget.comparison.figures import figures_of
from pytest_mwbudget.comparison.run_sets import merged
from pytest_mwbudget.comparison.surroundings import Comparable, comparable, differences
from pytest_mwbudget.comparison.two_runs import changes, compare, counted_again, grown_counts
from pytest_mwbudget.model.changes import Change
from pytest_mwbudget.model.estimate import Estimate
from pytest_mwbudget.model.measured_run import MeasuredRun
from pytest_mwbudget.model.quantities import BETWEEN_RUNS, COUNTED
from pytest_mwbudget.model.request_keys import keyed
from pytest_mwbudget.model.results import (
    Books,
    Count,
    Counts,
    Effort,
    LayerReport,
    Ledger,
    Occupation,
    RequestLine,
    Result,
)
from pytest_mwbudget.model.runs import Run
from pytest_mwbudget.model.stack import Layer

from .canned import but, canned

RUN = Run("2026-11-23T10:00:00+00:00", "3.13.1", "CPython", "Linux", "asyncio", {}, None, "Epyc", "0")
ZERO = Count(0, 0, 0)


def about(us: float, half_width: float = 0.02) -> Estimate:
    return Estimate(us, us * (1 - half_width), us * (1 + half_width))


def counts(**said: Any) -> Counts:
    """Return counts of 100 of everything but threads, unless the arguments say something else."""
    known = {
        **dict.fromkeys(COUNTED, Count(100, 100, 100)),
        "threads": ZERO,
        "received": ZERO,
        "sent": ZERO,
        "suspensions": ZERO,
    }
    return Counts(**{**known, **said})


def layer(name: str, us: float | Estimate | None = 50.0, **said: Any) -> LayerReport:
    time = about(us) if isinstance(us, (int, float)) else us
    known = {"us": time, "counts": counts(), "occupation": time and Occupation(time, 0.0, None)}
    report = {**known, **{key: value for key, value in said.items() if key in ("counts", "occupation")}}
    return LayerReport(Layer(0, name, f"shop.{name}", "middleware", **said.get("kind", {})), **report)


def result(*layers: LayerReport, **said: Any) -> Result:
    books = Books(about(300.0), about(5.0), about(40.0), 0.0)
    known = {
        "request": RequestLine("GET", "/health"),
        "status": 200,
        "layers": layers,
        "books": books,
        "ledger": Ledger(counts(), counts(), counts(), 21),
        "floor_us": 0.1,
        "effort": Effort(requests=960, rounds=120, seconds=0.4),
        "slowdown": 1.0,
        "reference_ns": 2000.0,
    }
    return canned(**{**known, **said})


def changed(before: Result, after: Result, limits: Comparable | None = None) -> tuple[Change, ...]:
    return changes(figures_of(before), figures_of(after), limits or Comparable())


def change(
    before: Result, after: Result, row: str = "Auth", quantity: str = "us", limits: Comparable | None = None
) -> Change:
    all_changes = changed(before, after, limits)
    (wanted,) = [change for change in all_changes if (change.row, change.quantity) == (row, quantity)]
    return wanted


def word(before: float | Estimate, after: float | Estimate, **said: Any) -> str:
    return change(result(layer("Auth", before)), replace(result(layer("Auth", after)), **said)).word


# ---- times --------------------------------------------------------------------------------------------------------


def test_a_time_is_slower_or_faster_only_when_the_whole_interval_says_so():
    assert word(100.0, 130.0) == "slower"
    assert word(130.0, 100.0) == "faster"
    assert word(100.0, 101.0) == "same"
    assert word(100.0, about(130.0, 0.4)) == "unclear"


def test_the_interval_contains_what_two_processes_differ_by():
    exact = Estimate(100.0, 100.0, 100.0)
    limit = 100.0 / (1 - BETWEEN_RUNS)
    assert word(exact, Estimate(*[limit + 0.1] * 3)) == "slower"
    assert word(exact, Estimate(*[limit - 0.1] * 3)) == "same"


def test_the_change_has_both_figures_and_an_interval_round_the_difference():
    auth = change(result(layer("Auth", 100.0)), result(layer("Auth", 130.0)))
    assert (auth.before, auth.after) == (about(100.0), about(130.0))
    assert auth.change is not None
    assert auth.change.estimate == pytest.approx(30.0)
    assert auth.change.low == pytest.approx(30.0 - (2.0**2 + 2.6**2) ** 0.5 - 0.08 * 130)
    assert auth.share == pytest.approx(0.3)


def test_a_machine_that_was_slow_in_one_run_explains_a_change():
    assert word(100.0, 150.0, slowdown=1.3) != "slower"
    assert word(100.0, 250.0, slowdown=1.3) == "slower"
    slow = replace(result(layer("Auth", 150.0)), slowdown=1.3)
    assert change(slow, result(layer("Auth", 100.0))).word != "faster"


def test_a_run_that_never_saw_the_machine_fast_is_as_slow_as_the_other_run_shows():
    assert word(100.0, 150.0, reference_ns=2600.0) != "slower"
    assert word(100.0, 150.0, reference_ns=2100.0) == "slower"
    assert word(100.0, 150.0, reference_ns=None) == "slower"


def test_a_wide_change_is_unclear_and_a_narrow_one_is_the_same():
    assert word(about(100.0, 0.02), about(100.0, 0.02)) == "same"
    assert word(about(100.0, 0.25), about(100.0, 0.25)) == "unclear"
    assert word(about(5.0, 0.4), about(5.0, 0.4)) == "same", "below 5 µs nobody cares"


def test_a_figure_without_an_interval_is_not_compared():
    auth = change(result(layer("Auth", 100.0)), result(layer("Auth", Estimate(90.0, 10.0, float("inf")))))
    assert (auth.word, auth.change) == ("not measured", None)
    assert auth.reason == "there were too few requests for an interval"


def test_a_row_that_waits_for_threads_has_no_comparable_time():
    threaded = counts(threads=Count(1, 1, 1))
    before = result(ledger=Ledger(counts(), threaded, threaded, 21))
    after = but(before, books=Books(about(900.0), about(5.0), about(640.0), 0.0))
    for row in ("(endpoint)", "(total)"):
        assert change(before, after, row).word == "not comparable"
        assert "threads" in str(change(before, after, row).reason)
    assert change(before, after, "(outside)").word == "same"


def test_noise_of_two_equal_runs_is_hardly_ever_a_change():
    # Two processes, each with its own bias of some per cent, and intervals that hold 99 % of the time.
    chance, rows = random.Random(20), 1500
    runs: tuple[list[LayerReport], list[LayerReport]] = ([], [])
    for number in range(rows):
        true_us = 10 ** chance.uniform(0, 3)
        for layers in runs:
            sigma = true_us * chance.choice((0.005, 0.02, 0.1))
            read = chance.gauss(true_us * (1 + chance.gauss(0, 0.03)), sigma)
            us = Estimate(read, read - 2.58 * sigma, read + 2.58 * sigma)
            layers.append(layer(f"Layer{number}", us, counts=None, occupation=None))
    all_changes = changed(*(result(*layers) for layers in runs))
    words = [change.word for change in all_changes if change.row.startswith("Layer") and change.quantity == "us"]
    assert len(words) == rows
    assert sum(word in ("slower", "faster") for word in words) / rows < 0.01


# ---- counts --------------------------------------------------------------------------------------------------------


def of(**said: Any) -> Result:
    return result(layer("Auth", counts=counts(**said)))


@pytest.mark.parametrize("quantity", [quantity for quantity in COUNTED if quantity != "threads"])
def test_an_exact_count_changes_by_one(quantity):
    before, after = of(**{quantity: Count(100, 100, 100)}), of(**{quantity: Count(101, 101, 101)})
    count = change(before, after, quantity=quantity)
    assert (count.word, count.change) == ("more", Estimate(1, 1, 1))
    assert change(after, before, quantity=quantity).word == "fewer"
    assert change(before, before, quantity=quantity).word == "same"


def test_a_count_that_varies_changes_when_the_ranges_do_not_overlap():
    before = of(bytes=Count(100, 90, 110))
    assert change(before, of(bytes=Count(112, 105, 120)), quantity="bytes").word == "same"
    assert change(before, of(bytes=Count(130, 111, 140)), quantity="bytes").word == "more"


def test_counts_of_a_request_that_uses_threads_may_differ_by_a_little():
    ledger = Ledger(counts(), counts(), counts(threads=Count(1, 1, 1)), 21)
    before, few, many = (but(of(bytes=Count(n, n, n)), ledger=ledger) for n in (39_000, 39_300, 41_000))
    assert change(before, few, quantity="bytes").word == "same"
    assert change(before, many, quantity="bytes").word == "more"
    task = but(of(tasks=Count(101, 101, 101)), ledger=ledger)
    assert change(but(of(), ledger=ledger), task, quantity="tasks").word == "same", "within two per cent"
    one_task = but(of(tasks=Count(1, 1, 1)), ledger=ledger)
    assert change(but(of(tasks=ZERO), ledger=ledger), one_task, quantity="tasks").word == "more"


def test_a_count_that_one_run_could_not_make_is_not_measured():
    objects = change(of(objects=None), of(), quantity="objects")
    assert (objects.word, objects.reason) == ("not measured", "in the earlier run it was not measured")


# ---- rows ---------------------------------------------------------------------------------------------------------


def test_rows_are_new_or_gone():
    before, after = result(layer("Old"), layer("Auth")), result(layer("Auth"), layer("New"))
    words = {(change.row, change.word) for change in changed(before, after) if change.quantity == "us"}
    assert {("New", "new"), ("Old", "gone"), ("Auth", "same")} <= words
    assert [change.row for change in changed(before, after)][-1] == "Old", "what is gone comes last"


def test_a_layer_that_the_request_does_not_reach_any_more_is_named_with_the_reason():
    left = layer("Auth", None, counts=None, occupation=None, kind={"entered": False})
    assert change(result(layer("Auth")), result(left)).reason == "the request did not come to it"
    merged_layer = layer("Auth", None, counts=None, occupation=None, kind={"merged_with": "CORS"})
    auth = change(result(merged_layer), result(layer("Auth")))
    assert auth.reason == "in the earlier run it was measured together with CORS"


def test_a_quantity_that_neither_run_knows_is_left_out():
    nothing = result(layer("Auth", None, counts=counts(objects=None)), books=None)
    assert not {(change.row, change.quantity) for change in changed(nothing, nothing)} & {
        ("Auth", "us"),
        ("Auth", "objects"),
        ("(total)", "us"),
    }


# ---- surroundings -------------------------------------------------------------------------------------------------


def run(**said: Any) -> Run:
    return replace(RUN, **said)


@pytest.mark.parametrize(
    ("later", "times", "both"),
    [
        (run(), True, True),
        (run(packages={"starlette": "2"}, platform="Linux-6"), True, True),
        (run(processor="Xeon"), False, True),
        (run(processor=None), False, True),
        (run(processor="unknown processor"), False, True),
        (run(platform="Linux-5.10-aarch64-with-glibc2.31"), False, False),
        (run(platform="Linux-6.1.0-13-arm64-aarch64-with-glibc2.36"), False, False),
        (run(platform="macOS-14.4-arm64-arm-64bit"), False, False),
        (run(platform="Windows-10-10.0.19045-SP0"), False, False),
        (run(python="3.13.2"), False, True),
        (run(python="3.12.1"), False, False),
        (run(implementation="PyPy"), False, False),
    ],
)
def test_times_need_the_same_processor_and_interpreter_and_counts_the_same_minor_version(later, times, both):
    limits = comparable(RUN, later, "asyncio", "asyncio")
    assert (limits.times is None, limits.counts is None) == (times, both)


def test_the_kernel_of_another_distribution_is_no_other_machine():
    debian, ubuntu = "Linux-6.1.0-13-amd64-x86_64-with-glibc2.36", "Linux-6.8.0-azure-x86_64-with-glibc2.39"
    assert comparable(run(platform=debian), run(platform=ubuntu), "asyncio", "asyncio") == Comparable()
    assert run(platform=debian).machine == "Linux x86_64"


def test_another_loop_is_not_comparable():
    limits = comparable(RUN, RUN, "asyncio", "uvloop")
    assert limits.times == limits.counts == "measured on the loop asyncio, then on uvloop"


def test_on_another_processor_only_counts_are_compared():
    limits = comparable(RUN, run(processor="Xeon"), "asyncio", "asyncio")
    before, after = (
        result(layer("Auth", 100.0)),
        result(layer("Auth", 900.0, counts=counts(objects=Count(200, 200, 200)))),
    )
    assert change(before, after, limits=limits).word == "not comparable"
    assert change(before, after, limits=limits).reason == "measured on Epyc, then on Xeon"
    assert change(before, after, quantity="objects", limits=limits).word == "more"


def test_what_the_surroundings_differ_by_is_named():
    later = run(python="3.13.2", packages={"starlette": "2"}, hash_seed="random")
    assert list(differences(run(packages={"anyio": "4"}), later)) == [
        "CPython 3.13.1 → CPython 3.13.2",
        "hash seed 0 → random",
        "anyio 4 → unknown",
        "starlette unknown → 2",
    ]


# ---- several files ------------------------------------------------------------------------------------------------


def stored(*measured: tuple[str, Result], **said: Any) -> MeasuredRun:
    return MeasuredRun(run(**said), measured)


def test_shards_are_merged():
    shards = merged({"a": stored(("t1", result(layer("A")))), "b": stored(("t2", result(layer("B"))))})
    assert [place.key.nodeid for place in shards.requests] == ["t1", "t2"]
    assert shards.repeated == ()


def test_of_a_request_in_several_files_the_newest_counts_and_that_is_said():
    early = stored(("t", result(layer("Early"))), ("u", result()), created="2026-11-23T11:00:00+02:00")
    late = stored(("t", result(layer("Late"))), created="2026-11-23T10:00:00+00:00")
    for files in ({"early": early, "late": late}, {"late": late, "early": early}):
        merged_files = merged(files)
        (kept,) = [
            measured.result.layers[0].name
            for place, measured in merged_files.requests.items()
            if place.key.nodeid == "t"
        ]
        assert kept == "Late"
        assert merged_files.repeated == ("t GET /health: in 2 files (early, late); the newest counts, late",)


def test_the_same_test_on_another_interpreter_is_another_request():
    old, new = stored(("t", result(layer("A", 10.0))), python="3.12.1"), stored(("t", result(layer("A", 50.0))))
    before, after = merged({"12": old, "13": new}), merged({"13": new, "12": old})
    assert before.repeated == ()
    comparison = compare(before, after)
    assert len(comparison.requests) == 2
    assert {change.word for _, change in comparison.changes} == {"same"}


def test_a_request_that_the_earlier_run_has_on_another_interpreter_is_matched_and_not_comparable():
    comparison = compare(
        merged({"a": stored(("t", result(layer("A"))), python="3.12.1")}),
        merged({"b": stored(("t", result(layer("A"))))}),
    )
    assert {change.word for _, change in comparison.changes} == {"not comparable"}
    assert comparison.differences == ("CPython 3.12.1 → CPython 3.13.1",)


def test_requests_of_one_run_only_are_named():
    comparison = compare(merged({"a": stored(("old", result()))}), merged({"b": stored(("new", result()))}))
    assert (comparison.requests, comparison.new, comparison.gone) == (
        [],
        [("new", "GET /health")],
        [("old", "GET /health")],
    )


# ---- counts that differ between processes ------------------------------------------------------------------------


def objects_of(number: int) -> MeasuredRun:
    return stored(("t", of(objects=Count(number, number, number))))


def verdict(before: int, after: int, elsewhere: Sequence[int], limits: str = "objects:0") -> str | None:
    """Return the verdict on objects that other processes of the later side count otherwise."""
    comparison = compare(merged({"a": objects_of(before)}), merged({"b": objects_of(after)}), parsed(limits, "--fail"))
    assert (len(grown_counts(comparison)) > 0) == bool(comparison.judged("fail"))
    processes = [
        {key: figures_of(result) for key, result in keyed(objects_of(number).measured)} for number in elsewhere
    ]
    again = counted_again(comparison, processes)
    return next(change.verdict for _, change in again.changes if (change.row, change.quantity) == ("Auth", "objects"))


def test_a_count_that_is_the_same_in_other_processes_has_grown():
    assert verdict(10, 11, [11, 11, 11]) == verdict(10, 11, []) == "fail"
    assert verdict(10, 60, [61, 60, 59]) == "fail"
    assert verdict(10, 10, [60]) == "pass"


def test_what_is_not_certain_any_more_is_not_comparable_with_the_reason():
    comparison = compare(merged({"a": objects_of(970)}), merged({"b": objects_of(990)}), parsed("objects:0", "--fail"))
    again = counted_again(comparison, [{key: figures_of(r) for key, r in keyed(objects_of(978).measured)}])
    assert again.judged("fail") == []
    assert again.unjudged() == {("objects", "it differs between processes of this run, from 978 to 990"): 1}


def test_counted_again_a_request_that_uses_threads_may_still_differ_by_a_little():
    ledger = Ledger(counts(), counts(), counts(threads=Count(1, 1, 1)), 21)
    runs = [stored(("t", but(of(bytecodes=Count(n, n, n)), ledger=ledger))) for n in (5000, 5110, 5100, 5090, 5110)]
    before, after, *others = runs
    comparison = compare(merged({"a": before}), merged({"b": after}), parsed("bytecodes:0", "--fail"))
    assert len(grown_counts(comparison)) == 1
    again = counted_again(comparison, [{key: figures_of(r) for key, r in keyed(other.measured)} for other in others])
    assert again.judged("fail") == []


@pytest.mark.parametrize("limits", ["objects:0", "objects:5", "objects:2%"])
def test_a_count_that_differs_between_processes_hardly_ever_fails_without_a_change(limits: str):
    """By the addresses of objects, as in OpenTelemetry. Of the first comparisons, up to half fail."""
    chance = random.Random(1)
    drawn = [[chance.randint(967, 991) for _ in range(5)] for _ in range(400)]
    failed = [verdict(before, after, elsewhere, limits) == "fail" for before, after, *elsewhere in drawn]
    assert sum(failed) <= 8
    grown = [verdict(before, after + 100, [n + 100 for n in elsewhere], limits) for before, after, *elsewhere in drawn]
    assert grown.count("fail") > 390


# ---- what is allowed ----------------------------------------------------------------------------------------------


def test_what_cannot_be_judged_is_counted_by_reason():
    epyc, xeon = stored(("t", result(layer("Auth")))), stored(("t", result(layer("Auth", 900.0))), processor="Xeon")
    comparison = compare(merged({"a": epyc}), merged({"b": xeon}), parsed("us:1%,objects:0", "--fail"))
    assert comparison.judged("fail") == []
    assert comparison.unjudged() == {("us", "measured on Epyc, then on Xeon"): 1}


def test_a_quantity_that_neither_run_measured_is_named():
    run = merged({"a": stored(("t", result(replace(layer("Auth"), us=None))))})
    comparison = compare(run, run, parsed("us:1%,objects:0", "--fail"))
    assert comparison.unjudged() == {("us", "neither run measured it"): 0}
