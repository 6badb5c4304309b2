"""The one judge: every verdict with its reason on canned figures, and what holds for all figures and bounds."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import pytest

from pytest_mwbudget.analysis.budgeted import Bounded, Together, bounded_rows
from pytest_mwbudget.analysis.estimates import Estimates
from pytest_mwbudget.analysis.judge import QUIET, Conditions, fails_above, judge
from pytest_mwbudget.analysis.shares import SPLIT_ROOM
from pytest_mwbudget.analysis.tails import percentile
from pytest_mwbudget.analysis.verdicts import Look, judge_all, judge_count, seconds_needed
from pytest_mwbudget.model.estimate import ZERO, Estimate
from pytest_mwbudget.model.judged import Judged, Verdict, worst
from pytest_mwbudget.model.messages import Messages, PerMessage
from pytest_mwbudget.model.quantities import BETWEEN_RUNS, TRAITS, Quantity
from pytest_mwbudget.model.results import Count, Counts, Effort, Frame, ResultRow
from pytest_mwbudget.model.stack import EntryIndex, Layer, RowIndex

pytestmark = pytest.mark.once

UNKNOWN = Estimate(40.0, -math.inf, math.inf)


def us(low: float, high: float) -> Estimate:
    return Estimate((low + high) / 2, low, high)


# ---- one figure, one bound ---------------------------------------------------------------------------------------

TOO_FEW = "there were too few requests [too-few-requests]"
NO_LIMIT = (
    "there were too few requests to tell this run's detection limit; give the run more time with --mw-budget-max-time"
    " [too-few-requests]"
)
BELOW = (
    "a budget of 0.05 µs is below this run's detection limit of 0.12 µs, the least overhead that it could tell from"
    " zero; raise the budget above that limit"
)
MORE_TIME = f"{BELOW}, or give the run more time with --mw-budget-max-time [below-detection-limit]"
SLOWER = (
    "the machine ran 1.20 times slower than at its best, and a layer up to 1.44 times, which may explain the excess;"
    " run it again when the machine is less busy [slow-machine]"
)
SLOWER_UNDER_LOAD = SLOWER.replace(", and a layer up to 1.44 times", "")
HOPS = (
    "hops to threads took longer than at the machine's best, by up to 40 µs here, which may explain the excess; run it"
    " again when the machine is less busy [slow-machine]"
)
LIMITED = Conditions(limit=0.12)
SLOW = Conditions(limit=0.1, slowdown=1.2)
WAITED = Conditions(limit=0.1, waited=40.0)
TOLD = Conditions(limit=0.1, holds="wait", near="runs differ by", too_few=TOO_FEW, no_pass="no pass", no_fail="no fail")
GROWS = Conditions(unsure="it grows")
OF_SPLIT = Conditions(room=SPLIT_ROOM, near="can be off")


def holds(interval: str, bound: str) -> str:
    return f"the interval {interval} holds the budget of {bound} [near-budget]"


def begins(interval: str, bound: str, near: str = "8% that figures differ by from run to run") -> str:
    return f"the interval {interval} begins above the budget of {bound} by no more than the {near} [near-budget]"


def varies(interval: str, bound: int) -> str:
    return f"most requests have {interval}, and the budget of {bound} is in this range [varying-count]"


Case = tuple[str, Estimate, float, Conditions, Verdict, str | None]
CASES: list[Case] = [
    # The whole interval decides.
    ("us", us(40, 49), 50, QUIET, "pass", None),
    ("us", us(40, 50), 50, QUIET, "pass", None),
    ("us", us(45.5, 55.25), 50, QUIET, "undecided", holds("45.50 to 55.25 µs", "50 µs")),
    ("us", us(50, 60), 50, QUIET, "undecided", holds("50.00 to 60.00 µs", "50 µs")),
    ("us", us(51.5, 58.25), 50, QUIET, "undecided", begins("51.50 to 58.25 µs", "50 µs")),
    ("us", us(53.9, 60), 50, QUIET, "undecided", begins("53.90 to 60.00 µs", "50 µs")),
    ("us", us(54.1, 60), 50, QUIET, "fail", None),
    # A slow machine explains an excess up to the square of its slowdown, and turns none into a pass.
    ("us", us(65, 75), 50, SLOW, "undecided", SLOWER),
    ("us", us(77, 92), 50, SLOW, "undecided", SLOWER),
    ("us", us(78, 92), 50, SLOW, "fail", None),
    ("us", us(49, 65), 50, SLOW, "undecided", holds("49.00 to 65.00 µs", "50 µs")),
    # So do waits for threads.
    ("us", us(145, 155), 100, WAITED, "undecided", HOPS),
    ("us", us(147, 155), 100, WAITED, "undecided", HOPS),
    ("us", us(149, 155), 100, WAITED, "fail", None),
    ("us", us(95, 115), 100, WAITED, "undecided", holds("95.00 to 115.00 µs", "100 µs")),
    ("us", us(75, 95), 100, WAITED, "pass", None),
    # A budget below the detection limit can only fail, by a figure that would be above that limit too.
    ("us", us(0, 0.02), 0.05, LIMITED, "undecided", MORE_TIME),
    ("us", us(0.11, 0.125), 0.05, LIMITED, "undecided", MORE_TIME),
    ("us", us(0.125, 10), 0.05, LIMITED, "undecided", MORE_TIME),
    ("us", us(0.09, 0.11), 0.05, replace(LIMITED, least_limit=0.1), "undecided", f"{BELOW} [below-detection-limit]"),
    ("us", us(1.4, 1.6), 0.05, LIMITED, "fail", None),
    ("us", us(1.4, 1.6), 0.05, replace(LIMITED, slowdown=20.0), "undecided", MORE_TIME),
    ("us", us(0.9, 1.1), 50, replace(LIMITED, limit=math.inf), "undecided", NO_LIMIT),
    # The conditions have the reason for each place of a figure.
    ("us", us(40, 49), 50, TOLD, "undecided", "no pass"),
    ("us", us(54.1, 60), 50, TOLD, "undecided", "no fail"),
    ("us", us(51, 60), 50, TOLD, "undecided", "no fail"),
    ("us", UNKNOWN, 50, TOLD, "undecided", TOO_FEW),
    ("us", UNKNOWN, 0.05, TOLD, "undecided", TOO_FEW),
    ("us", us(49, 51), 50, TOLD, "undecided", holds("49.00 to 51.00 µs", "50 µs; wait")),
    ("us", us(51, 60), 50, OF_SPLIT, "undecided", begins("51.00 to 60.00 µs", "50 µs", "50% that can be off")),
    ("us", us(49, 51), 50, GROWS, "undecided", "it grows"),
    ("us", us(51, 60), 50, GROWS, "undecided", "it grows"),
    ("us", us(54.1, 60), 50, GROWS, "fail", None),
    # Any excess of a percentile fails unless the machine explains it, which its conditions say.
    ("p99_us", us(50.1, 60), 50, SLOW, "fail", None),
    ("p99_us", us(50.1, 60), 50, replace(SLOW, no_fail="the machine"), "undecided", "the machine"),
    ("p99_us", Estimate(60, 50.1, math.inf), 50, Conditions(too_few=TOO_FEW), "undecided", TOO_FEW),
    ("p99_us", Estimate(40, -math.inf, 50), 50, Conditions(too_few=TOO_FEW), "pass", None),
    # A count is judged by its range, and may reach its budget.
    ("objects", Estimate(5, 5, 5), 4, QUIET, "fail", None),
    ("objects", Estimate(5, 5, 5), 5, QUIET, "pass", None),
    ("tasks", Estimate(5, 5, 9), 4, QUIET, "fail", None),
    ("bytes", Estimate(5, 5, 9), 5, QUIET, "undecided", varies("5 to 9", 5)),
    ("calls", Estimate(5, 5, 9), 8, QUIET, "undecided", varies("5 to 9", 8)),
    ("calls", Estimate(5, 5, 9), 9, QUIET, "pass", None),
    ("tasks", Estimate(0, 0, 0), 0, QUIET, "pass", None),
    ("tasks", Estimate(0, 0, 1), 0, QUIET, "undecided", varies("0 to 1", 0)),
    ("tasks", Estimate(1, 1, 1), 0, QUIET, "fail", None),
    # Figures under load have their own units.
    ("rps_share", us(0.04, 0.06), 0.05, QUIET, "undecided", holds("4.0% to 6.0%", "5.0%")),
    ("rps_share", us(0.07, 0.09), 0.05, QUIET, "fail", None),
    ("p99_ms", us(19, 21), 20, QUIET, "undecided", holds("19 ms to 21 ms", "20 ms")),
    ("p99_ms", us(23, 27), 20, SLOW, "undecided", SLOWER_UNDER_LOAD),
]


@pytest.mark.parametrize(("quantity", "figure", "bound", "conditions", "verdict", "reason"), CASES)
def test_every_verdict_has_its_reason(
    quantity: str, figure: Estimate, bound: float, conditions: Conditions, verdict: Verdict, reason: str | None
) -> None:
    assert judge(quantity, figure, bound, conditions) == Judged(bound, verdict, reason)


def test_a_neighbour_who_slows_apps_by_more_than_the_reference_workload_fails_nobody() -> None:
    """Measured beside a neighbour: the reference workload took 1.77 times as long, a request-ID layer 2.45 times."""
    assert judge("us", us(2.4 * 7.5, 2.5 * 7.5), 7.5, Conditions(slowdown=1.77)).verdict == "undecided"


QUANTITIES = ("us", "busy_us", "us_per_message", "p99_us", "objects", "bytes", "rps_share", "p99_ms")


def drawn(rng: random.Random) -> tuple[str, Estimate, float, Conditions]:
    """Return a figure near its bound, sometimes without an end, and conditions."""
    bound = rng.choice([0.0, 0.05, 20.0, 300.0])
    centre = max(0.1, bound) * rng.choice([0.5, 0.9, 1.0, 1.05, 1.3, 3.0])
    low, high = centre * rng.uniform(0.6, 1.0), centre * rng.uniform(1.0, 1.4)
    figure = Estimate(centre, rng.choice([low, low, low, -math.inf]), rng.choice([high, high, high, math.inf]))
    conditions = Conditions(
        slowdown=rng.choice([1.0, 1.0, 1.15, 2.0]),
        waited=rng.choice([0.0, 0.0, 40.0]),
        limit=rng.choice([0.0, 0.1, 30.0, math.inf]),
        no_pass=rng.choice([None, None, "it does not pass"]),
        no_fail=rng.choice([None, None, "it does not fail"]),
        too_few=rng.choice([None, "too few"]),
        unsure=rng.choice([None, "unsure"]),
    )
    return rng.choice(QUANTITIES), figure, bound, conditions


def test_what_holds_of_all_verdicts() -> None:
    rng = random.Random(17)
    seen: set[tuple[str, Verdict]] = set()
    for _ in range(20_000):
        quantity, figure, bound, conditions = drawn(rng)
        judged = judge(quantity, figure, bound, conditions)
        seen.add((quantity, judged.verdict))
        assert (judged.reason is None) == (judged.verdict != "undecided")
        if judged.verdict == "pass":
            assert figure.high <= bound
            assert conditions.limit <= bound or figure.low > conditions.limit
        if judged.verdict == "fail":
            assert figure.low > bound
            assert TRAITS[quantity].room is None or figure.low > fails_above(
                bound, conditions.slowdown, conditions.waited
            )
        # What excuses a figure makes no failure, and neither a failure nor a pass comes of a wider interval.
        excused = [replace(conditions, slowdown=conditions.slowdown + 0.5), replace(conditions, waited=50.0)]
        kinder = [judge(quantity, figure, bound, each_conditions) for each_conditions in excused]
        if bound >= conditions.limit:
            kinder.append(judge(quantity, figure, bound + 1, conditions))
        assert judged.verdict == "fail" or all(each_judged.verdict != "fail" for each_judged in kinder)
        wider = judge(quantity, figure.widened(3), bound, conditions)
        assert wider.verdict in ("undecided", judged.verdict)
    assert seen == {(quantity, verdict) for quantity in QUANTITIES for verdict in ("pass", "fail", "undecided")}


def test_only_a_failure_is_taken_back() -> None:
    failed = Judged(5.0, "fail")
    assert failed.unless(None) == failed
    assert failed.unless("why") == Judged(5.0, "undecided", "why")
    for judged in (Judged(5.0, "pass"), Judged(5.0, "undecided", "another reason")):
        assert judged.unless("why") == judged


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        ([], None),
        (["pass", "pass"], "pass"),
        (["pass", "undecided"], "undecided"),
        (["undecided", "fail", "pass"], "fail"),
    ],
)
def test_the_worst_verdict_is_the_overall_one(verdicts: list[Verdict], expected: Verdict | None) -> None:
    assert worst(verdicts) == expected
    assert worst(iter(verdicts)) == expected


# ---- the rows of a look -------------------------------------------------------------------------------------------

OUTER, INNER, MERGED, ENDPOINT = (EntryIndex(index) for index in range(4))
EFFORT = Effort(requests=1000, rounds=10, seconds=2.0)
CROWDED = "another process measured at the same time [other-process]"


def estimates(**changes: Any) -> Estimates:
    """Return the estimates of two layers of 20 µs within 19 and 21, an endpoint of 100 µs, and 150 µs altogether."""
    split = {OUTER: us(19, 21), INNER: us(19, 21), ENDPOINT: us(95, 105)}
    known: dict[str, Any] = {
        "split": split,
        "holding": split,
        "suspended": dict.fromkeys(split, 0.0),
        "cpu": None,
        "suspended_cpu": dict.fromkeys(split, ZERO),
        "method_us": dict.fromkeys(split, 0.3),
        "shared_us": {},
        "outside": us(4, 6),
        "whole": us(145, 155),
        "others": ZERO,
        "detection_limit_us": 0.1,
        "least_us": 0.05,
        "slowdowns": dict.fromkeys((*split, "outside", "total"), 1.0),
        "best_ns": 1000.0,
        "probed": True,
        "in_threads": False,
        "own_ns": dict.fromkeys(split, [20_000.0] * 2000),
        "machine_ns": [100_000.0] * 2000,
        "alpha": 0.001,
        "messages": {},
        "message_limit_us": 0.1,
    }
    return Estimates(**known | changes)


def layer(index: int, *, merged: bool = False) -> Layer:
    name = ("Outer", "Inner", "Merged")[index]
    with_outer = {"merged_with": "Outer", "merged_because": "no probe can stand between"} if merged else {}
    return Layer(RowIndex(index), name, f"shop.{name}", "middleware", **with_outer)  # type: ignore[arg-type]


def looked(
    of: Estimates,
    bounds: dict[Quantity, float] | None = None,
    *,
    together: Together | None = None,
    merged: dict[Quantity, float] | None = None,
    frames: dict[Frame, float] | None = None,
    crowded: str | None = None,
    effort: Effort = EFFORT,
) -> Look:
    """Judge budgets of the outer layer, of one that is merged with it, and of rows that are no layers."""
    rows = [Bounded(OUTER, layer(0), bounds or {}, together), Bounded(INNER, layer(1), {})]
    rows += [] if merged is None else [Bounded(None, layer(2, merged=True), merged)]
    return judge_all(bounded_rows(rows, frames or {}, ENDPOINT), of, effort, crowded=crowded)


def only(look: Look) -> Judged:
    """Return the only budget of a look."""
    ((_, _, judged),) = look.budgets
    return judged


MERGES = "it is measured together with Outer: no probe can stand between [merged]"
TOGETHER = "Merged is measured together with it: no probe can stand between [merged]"
HELD = "the interval 19.00 to 21.00 µs holds the budget of {} µs; {} [near-budget]"
SECONDS = "--mw-budget-max-time=4 may be enough"
NEVER = "it is so near its budget that no run would decide: a budget of 1.3 times the figure leaves room"
FULL = (
    "that would take more than 60 s; use a budget of counts (tasks, objects), or a budget of 1.3 times the figure"
    " (26 µs); if the app waits for a database or a network, give it an async stand-in"
)
COURSE = (
    "its time grows with the requests served, here from 19.00 to 21.00 µs, so a verdict on the budget of {} µs would"
    " depend on their number; bound what is collected, or find it without a search [growing]"
)
SHORT = "there were too few requests {}; give the run more time with --mw-budget-max-time [too-few-requests]"
FEW = (
    "fewer than 10 messages pass it in each direction; measure a request with a longer stream or body, or remove this"
    " budget with layers={'Outer': {'us_per_message': None}} [few-messages]"
)
THREADS = (
    "layers of this app run in threads, so how long it holds the event loop is not known; use a budget of us"
    " [uncountable]"
)
GROWING, KNOWN = estimates(growing={OUTER}), estimates()
NO_TIMES = estimates(split={}, own_ns={})
UNBOUNDED = estimates(split={OUTER: Estimate(20, -math.inf, math.inf), ENDPOINT: us(95, 105)})
STREAMS = estimates(messages={OUTER: Messages(PerMessage(20, us(2, 3)))})


@pytest.mark.parametrize(
    ("look", "verdict", "reason"),
    [
        (looked(KNOWN, {"us": 21}), "pass", None),
        (looked(KNOWN, {"us": 17}), "fail", None),
        (looked(KNOWN, {"us": 17}, crowded=CROWDED), "undecided", CROWDED),
        (looked(KNOWN, {"us": 20.8}), "undecided", HELD.format(20.8, SECONDS)),
        (looked(KNOWN, {"us": 20.4}), "undecided", HELD.format(20.4, FULL)),
        (
            looked(KNOWN, {"us": 20.2}),
            "undecided",
            HELD.format(20.2, NEVER),
        ),
        (
            looked(UNBOUNDED, {"us": 50}),
            "undecided",
            "there were too few requests for an interval: --mw-budget-max-time=1 may be enough [too-few-requests]",
        ),
        (looked(NO_TIMES, {"us": 50}), "undecided", SHORT.format("to tell its time")),
        (looked(NO_TIMES, {"p95_us": 50}), "undecided", SHORT.format("to tell its time")),
        (looked(NO_TIMES, {"busy_us": 50}), "undecided", SHORT.format("to tell how long it holds the event loop")),
        (looked(estimates(in_threads=True), {"busy_us": 50}), "undecided", THREADS),
        (looked(KNOWN, {"busy_us": 21}), "pass", None),
        # Growth.
        (looked(GROWING, {"us": 29.5}), "pass", None),
        (looked(GROWING, {"us": 28}), "undecided", COURSE.format(28)),
        (looked(GROWING, {"us": 20}), "undecided", COURSE.format(20)),
        (looked(GROWING, {"us": 18.5}), "undecided", COURSE.format(18.5)),
        (looked(GROWING, {"us": 17}), "fail", None),
        (looked(GROWING, {"p95_us": 20}), "undecided", COURSE.format(20)),
        # Messages.
        (looked(KNOWN, {"us_per_message": 5}), "undecided", FEW),
        (looked(STREAMS, {"us_per_message": 3}), "pass", None),
        (looked(STREAMS, {"us_per_message": 1}), "fail", None),
        # Rows that are measured together.
        (looked(KNOWN, {"us": 15}, together=Together(TOGETHER, {})), "undecided", TOGETHER),
        (looked(KNOWN, {"us": 15}, together=Together(TOGETHER, {"us": 25})), "undecided", TOGETHER),
        (looked(KNOWN, {"us": 15}, together=Together(TOGETHER, {"us": 17})), "fail", None),
        (looked(KNOWN, {"us": 21}, together=Together(TOGETHER, {})), "pass", None),
        (looked(KNOWN, merged={"us": 21}), "pass", None),
        (looked(KNOWN, merged={"us": 20.9}), "undecided", MERGES),
        (looked(GROWING, merged={"us": 28}), "undecided", MERGES),
        (looked(KNOWN, merged={"p99_us": 21}), "pass", None),
        (looked(KNOWN, merged={"p99_us": 20}), "undecided", MERGES),
        (looked(NO_TIMES, merged={"us": 21}), "undecided", MERGES),
        (looked(KNOWN, merged={"us_per_message": 21}), "undecided", MERGES),
        # Rows that are no layers. Only the whole request needs no detection limit.
        (looked(KNOWN, frames={"endpoint": 105}), "pass", None),
        (looked(KNOWN, frames={"endpoint": 80}), "fail", None),
        (looked(KNOWN, frames={"total": 100}), "fail", None),
        (looked(KNOWN, frames={"outside": 3}), "fail", None),
        (looked(estimates(detection_limit_us=math.inf), frames={"total": 100}), "fail", None),
        (
            looked(estimates(detection_limit_us=math.inf), frames={"outside": 3}),
            "undecided",
            SHORT.format("to tell this run's detection limit"),
        ),
        (looked(KNOWN, frames={"total": 100}, crowded=CROWDED), "undecided", CROWDED),
        (
            looked(KNOWN, frames={"endpoint": 100.2}),  # the method may be wrong by 0.3
            "undecided",
            f"the interval 95.00 to 105.00 µs holds the budget of 100.2 µs; {NEVER} [near-budget]",
        ),
        (
            looked(estimates(shared_us={ENDPOINT: 11.0}), frames={"endpoint": 103}),  # a part runs in a task of its own
            "undecided",
            "the interval 95.00 to 105.00 µs holds the budget of 103 µs; --mw-budget-max-time=7 may be enough"
            " [near-budget]",
        ),
    ],
)
def test_every_row_of_a_look_is_judged(look: Look, verdict: Verdict, reason: str | None) -> None:
    judged = only(look)
    assert (judged.verdict, judged.reason) == (verdict, reason)


def test_a_layer_that_is_measured_with_the_endpoint_is_not_judged_by_the_whole_endpoint() -> None:
    inside = Bounded(None, replace(layer(2, merged=True), merged_with="(endpoint)"), {"us": 200.0})
    judged = only(judge_all(bounded_rows([inside], {}, ENDPOINT), KNOWN, EFFORT))
    assert (judged.verdict, judged.reason) == ("undecided", MERGES.replace("Outer", "(endpoint)"))


def own_ns(slow: int) -> dict[EntryIndex, list[float]]:
    """Return 2,000 requests of the outer layer, of which some take 1 ms, evenly spread."""
    return {OUTER: [1_000_000.0 if slow and number % (2000 // slow) == 0 else 20_000.0 for number in range(2000)]}


FEW_REQUESTS = estimates(own_ns={OUTER: [20_000.0] * 50})
WAITS = "it waits for threads or for something else, and the machine decides how long a wait takes [machine-tail]"


@pytest.mark.parametrize(
    ("of", "crowded", "verdict", "reason"),
    [
        (estimates(own_ns=own_ns(0)), None, "pass", None),
        (estimates(own_ns=own_ns(100)), None, "fail", None),
        (estimates(own_ns=own_ns(100)), CROWDED, "undecided", CROWDED),
        (estimates(own_ns=own_ns(100), hopping={OUTER}), None, "undecided", WAITS),
        (estimates(own_ns=own_ns(100), machine_ns=[]), None, "undecided", "pieces of fixed work"),
        (FEW_REQUESTS, None, "undecided", "p99 takes about"),
        (replace(FEW_REQUESTS, growing={OUTER}), None, "undecided", "its time grows with the requests served"),
        (replace(FEW_REQUESTS, detection_limit_us=2000.0), None, "undecided", "below this run's detection limit"),
        (
            estimates(own_ns=own_ns(100), detection_limit_us=2000.0),
            None,
            "undecided",
            "below this run's detection limit",
        ),
        (estimates(own_ns=own_ns(20)), None, "undecided", "holds the budget of 40 µs; give the run more time"),
    ],
)
def test_only_the_slow_requests_of_a_layer_fail_its_percentile(
    of: Estimates, crowded: str | None, verdict: Verdict, reason: str | None
) -> None:
    judged = only(looked(of, {"p99_us": 40}, crowded=crowded))
    assert judged.verdict == verdict
    assert (judged.reason is None) if reason is None else (reason in str(judged.reason))


def test_a_look_knows_what_failed_what_is_kept_and_what_is_precise() -> None:
    look = looked(KNOWN, {"us": 17, "busy_us": 25}, frames={"total": 100})
    assert look.failed == {("Outer", "us"), ("(total)", "us")}
    assert not look.kept
    assert looked(KNOWN, {"us": 21}).kept
    assert not looked(KNOWN).kept
    assert not looked(UNBOUNDED, frames={"total": 200}).kept
    assert not look.precise
    assert looked(estimates(split={OUTER: us(19.5, 20.5), ENDPOINT: us(95, 105)})).precise
    assert not looked(NO_TIMES).precise


def test_general_budgets_of_messages_are_for_layers_that_messages_pass() -> None:
    bounded = Bounded(INNER, layer(1), {"us_per_message": 5.0, "us": 30.0})
    for by_name, judged in (
        (frozenset[Quantity](), {"us"}),
        (frozenset[Quantity]({"us_per_message"}), {"us", "us_per_message"}),
    ):
        rows = [Bounded(OUTER, layer(0), {}), replace(bounded, by_name=by_name)]
        look = judge_all(bounded_rows(rows, {}, None), STREAMS, EFFORT)
        assert {quantity for _, quantity, _ in look.budgets} == judged


# ---- counts -------------------------------------------------------------------------------------------------------


def counts(number: int | None, high: int | None = None, why: dict[str, str] | None = None) -> Counts:
    count = None if number is None else Count(number, number, high or number)
    none = Count(0, 0, 0)
    return Counts(count, none, none, none, none, none, none, none, none, why=why or {})


def judged_count(
    own: Counts | None, most: int, *, together: Together | None = None, neighbour: Counts | None = None, **more: Any
) -> Judged:
    merged = neighbour is not None
    bounded = Bounded(OUTER, layer(2, merged=merged), {"objects": most}, together)
    other = ResultRow(layer(0), counts=neighbour) if merged else None
    return judge_count(
        bounded, ResultRow(bounded.layer, counts=own), "objects", other, more.pop("uncounted", {}), **more
    )


@pytest.mark.parametrize(
    ("judged", "verdict", "reason"),
    [
        (judged_count(counts(5), 5), "pass", None),
        (judged_count(counts(5), 4), "fail", None),
        (judged_count(counts(5, 9), 7), "undecided", varies("5 to 9", 7)),
        (judged_count(counts(5), 4, together=Together(TOGETHER, {})), "undecided", TOGETHER),
        (judged_count(counts(5), 2, together=Together(TOGETHER, {"objects": 4})), "fail", None),
        (judged_count(None, 5, neighbour=counts(5)), "pass", None),
        (judged_count(None, 4, neighbour=counts(5)), "undecided", MERGES),
        (
            judged_count(counts(None), 5, uncounted={"objects": "no compiler"}),
            "undecided",
            "objects cannot be counted here: no compiler [uncountable]",
        ),
        (
            judged_count(counts(None, why={"objects": "a thread works unseen"}), 5),
            "undecided",
            "objects cannot be counted here: a thread works unseen [uncountable]",
        ),
        (
            judged_count(counts(None), 5, uncounted={"objects": "a tool"}, disturbed="a tool [active-tool]"),
            "undecided",
            "a tool [active-tool]",
        ),
        (judged_count(counts(5), 5, uncounted={"objects": "elsewhere"}, disturbed="a tool"), "pass", None),
    ],
)
def test_a_budget_of_a_count_is_judged_by_the_range(judged: Judged, verdict: Verdict, reason: str | None) -> None:
    assert (judged.verdict, judged.reason) == (verdict, reason)


# ---- time --------------------------------------------------------------------------------------------------------


def test_half_the_distance_to_the_budget_takes_four_times_as_long() -> None:
    near, far = Estimate(49, 45, 53), Estimate(48, 44, 52)
    assert seconds_needed(far, 50, 1.0) == pytest.approx(4.0)
    assert seconds_needed(near, 50, 1.0) == pytest.approx(16.0)


@pytest.mark.parametrize("slowdown", [1.0, 1.5])
def test_a_failure_needs_an_interval_beyond_what_runs_and_machines_differ_by(slowdown: float) -> None:
    above = (1 + BETWEEN_RUNS) * slowdown**2 * 50
    assert seconds_needed(Estimate(above + 2, above - 6, above + 10), 50, 1.0, slowdown=slowdown) == pytest.approx(16.0)
    assert seconds_needed(Estimate(above - 0.5, above - 6, above + 10), 50, 1.0, slowdown=slowdown) is None


def test_the_wider_side_of_the_interval_counts() -> None:
    assert seconds_needed(Estimate(48, 40, 49), 50, 1.0) == pytest.approx(16.0)


@pytest.mark.parametrize("figure", [Estimate(50, 45, 55), Estimate(52, 45, 59), UNKNOWN])
def test_nobody_knows_how_long_when_the_estimate_is_on_the_budget_or_unbounded(figure: Estimate) -> None:
    assert seconds_needed(figure, 50, 1.0) is None


def test_what_the_method_may_be_wrong_by_takes_no_time_away() -> None:
    assert seconds_needed(Estimate(46, 39, 53), 50, 1.0, method_us=3.0) == pytest.approx(16.0)
    assert seconds_needed(Estimate(199, 196.7, 201.3), 200, 1.0, method_us=2.1) is None


def test_a_busy_time_is_excused_by_the_speed_in_the_requests_that_tell_a_part_of_it() -> None:
    slow = estimates(cpu_slowdown=1.9)
    assert only(looked(KNOWN, {"busy_us": 17})).verdict == "fail"
    assert str(only(looked(slow, {"busy_us": 17})).reason).endswith("[slow-machine]")
    assert only(looked(slow, {"us": 17})).verdict == "fail"


def test_the_percentile_of_a_task_spawning_layer_may_be_wrong_by_what_its_row_may() -> None:
    alone, shared = (percentile(of, OUTER, "p95_us") for of in (KNOWN, estimates(shared_us={OUTER: 3.0})))
    assert alone is not None
    assert shared is not None
    assert shared.half_width == pytest.approx(alone.half_width + 3)
