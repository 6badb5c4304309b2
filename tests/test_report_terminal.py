"""The table, the evidence of a failure, and the lines around them."""

from __future__ import annotations

import ast
import math
import re
import tomllib
from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pytest_mwbudget.analysis.judge import judge
from pytest_mwbudget.config.budgets import Bounds, assign
from pytest_mwbudget.config.checks import check
from pytest_mwbudget.config.settings import merge
from pytest_mwbudget.model.estimate import Estimate
from pytest_mwbudget.model.quantities import COUNTED, EXECUTED, CountedQuantity, Quantity
from pytest_mwbudget.model.remedies import BudgetPlace
from pytest_mwbudget.model.results import (
    Books,
    Count,
    Counts,
    Effort,
    HotFunction,
    Judged,
    LayerReport,
    Ledger,
    Occupation,
    Profile,
    Recorded,
    RecordedLimit,
    RequestLine,
    Result,
    Verdict,
)
from pytest_mwbudget.model.stack import Layer, Origin
from pytest_mwbudget.report.advice import BASE_HTTP, advise
from pytest_mwbudget.report.github import annotation
from pytest_mwbudget.report.lines import STYLES
from pytest_mwbudget.report.table import US, Figure
from pytest_mwbudget.report.terminal import failure, one_line, run, table
from pytest_mwbudget.report.text import amount, distinct, figure, printable, shortened, size, wrapped
from pytest_mwbudget.report.view import view

from .canned import but, canned

pytestmark = pytest.mark.once

# No deadline: examples are slow on a busy machine.
relaxed = settings(deadline=None)

LONG = "BaseHTTPMiddleware[shop.observability.middleware.add_process_time_header_to_every_response]#2"


def us(estimate: float, margin: float = 0.4) -> Estimate:
    return Estimate(estimate, estimate - margin, estimate + margin)


def row(
    index: int,
    name: str,
    estimate: float | None,
    budget: float | None = None,
    verdict: Verdict = "pass",
    reason: str | None = None,
    **of_layer: object,
) -> LayerReport:
    """Return the report of a layer with a time, and a time budget if `budget` is given."""
    layer = Layer(index, name, f"shop.middleware.{name}", "middleware", **of_layer)  # type: ignore[arg-type]
    time = None if estimate is None else us(estimate)
    judged: dict[Quantity, Judged] = {} if budget is None else {"us": Judged(budget, verdict, reason)}
    return LayerReport(layer, time, judged=judged)


def result(*rows: LayerReport, verdict: Verdict = "pass", **rest: object) -> Result:
    return canned(
        request=RequestLine("GET", "/health"),
        status=200,
        layers=rows,
        books=Books(us(245.1), us(0.6), us(41.0), 1.2),
        floor_us=0.12,
        effort=Effort(requests=960, rounds=120, seconds=0.41),
        verdict=verdict,
        **rest,  # type: ignore[arg-type]
    )


def same(number: int, **kinds: int) -> Count:
    """Return a count that is the same in every request."""
    return Count(number, number, number, {f"shop.{kind}": many for kind, many in kinds.items()})


NONE = Counts(*[same(0)] * 12)


def counted(
    *rows: LayerReport,
    verdict: Verdict = "pass",
    total: Counts = NONE,
    outside: Counts = NONE,
    endpoint: Counts | None = NONE,
    why: dict[str, str] | None = None,
) -> Result:
    """Return the result of a run in which every budget is a count."""
    return canned(
        request=RequestLine("GET", "/health"),
        status=200,
        layers=rows,
        ledger=Ledger(outside, endpoint, total, 21, why or {}),
        verdict=verdict,
    )


def timed(found: Result, *rows: LayerReport) -> Result:
    """Return the same result with times."""
    return but(result(*(rows or found.layers), verdict=found.verdict or "pass"), ledger=found.ledger)


def layer_row(name: str = "Auth", index: int = 0, *, runs_task: bool = False, counts: Counts = NONE) -> LayerReport:
    layer = Layer(index, name, f"shop.middleware.{name}", "middleware", aliases=frozenset({name}), runs_task=runs_task)
    return LayerReport(layer, counts=counts)


def lines(found: Result, width: int = 80, *, verbose: bool = False) -> list[str]:
    return [line.text for line in table(view(found), width, verbose)]


def sentences(found: Result) -> list[str]:
    """Return the sentences of a result's findings."""
    return [finding.sentence for finding in view(found).findings]


def flat(text: str) -> str:
    """Return the text without its line breaks."""
    return " ".join(text.split())


PASSING = row(0, "GZipMiddleware", 17.9, 50.0)
FAILING = row(1, "AuthMiddleware", 117.25, 50.0, verdict="fail")
OPEN = row(2, "CORSMiddleware", 49.9, 50.0, verdict="undecided", reason="the interval holds the budget")


# ---- the table --------------------------------------------------------------------------------------------------


def test_rows_stand_outermost_first_between_outside_and_endpoint_and_total() -> None:
    names = [line.split()[0] for line in lines(result(PASSING, FAILING, OPEN))]
    assert names[:7] == [
        "layer",
        "(outside)",
        "GZipMiddleware",
        "AuthMiddleware",
        "CORSMiddleware",
        "(endpoint)",
        "(total)",
    ]


def test_a_row_has_estimate_interval_budget_and_verdict() -> None:
    assert lines(result(PASSING))[2].split() == ["GZipMiddleware", "17.9", "17.5", "…", "18.3", "50", "pass"]


def test_the_total_has_its_own_budget_and_verdict() -> None:
    shown = lines(result(PASSING, budgets={"total": Judged(400.0, "pass")}))
    assert shown[4].split() == ["(total)", "245.1", "244.7", "…", "245.5", "400", "pass"]


def test_the_foot_has_detection_limit_residue_and_effort() -> None:
    foot = flat("\n".join(lines(result(PASSING))[5:]))
    for part in ("detection limit 0.12 µs; rows less total 1.20 µs (+0.5%)", "120 rounds", "960 requests", "0.4 s"):
        assert part in foot


def test_where_a_message_has_an_id_its_use_is_told_once() -> None:
    noted = result(PASSING, verdict=None, notes=("The machine was slow. [slow-machine]",))
    reasoned = result(OPEN, verdict="undecided")
    reasoned = but(reasoned, budgets={"total": Judged(245.0, "undecided", "it is near [near-budget]")})
    for with_id in (noted, reasoned):
        shown = [line.text for line in run([("a", with_id), ("b", with_id)], "CPython 3", 80)]
        assert shown[-2:] == [
            "CPython 3, loop asyncio, µs per request",
            "More: mwbudget explain ID, for an ID in [brackets]",
        ]
        assert sum("mwbudget explain" in line for line in shown) == 1
        last = failure(with_id, 79, undecided_fails=True).splitlines()[-1]
        assert last == "More: mwbudget explain undecided, or an ID in [brackets]"
    plain = [line.text for line in run([("a", result(PASSING))], "CPython 3", 80)]
    assert not any("mwbudget explain" in line for line in plain)


def test_notes_stand_below() -> None:
    assert lines(result(PASSING, notes=("A tracer was suspended.",)))[-1] == "note: A tracer was suspended."


@pytest.mark.parametrize("verbose", [False, True])
@pytest.mark.parametrize("verdict", ["pass", "fail", "undecided"])
def test_every_row_of_the_longest_names_and_numbers_fits_eighty_columns(verdict: Verdict, verbose: bool) -> None:
    widest = Estimate(1_234_567.8, 1_234_567.8, 1_234_567.8)
    long = replace(row(0, LONG, 0.0, 999_999.0, verdict, merged_with=LONG), us=widest)
    wide = result(long, budgets={"total": Judged(1_500_000.0, verdict)}, notes=("as it was measured " * 12,))
    wide = but(wide, books=Books(widest, widest, widest, 123_456.7))
    assert max(len(line) for line in lines(wide, 80, verbose=verbose)) <= 79


def over(report: LayerReport, estimate: Estimate, budget: float) -> LayerReport:
    """Return the same row with another time, over another budget."""
    return replace(report, us=estimate, judged={"us": Judged(budget, "fail")})


@relaxed
@given(width=st.integers(20, 300))
def test_columns_stay_apart_at_any_width(width: int) -> None:
    shown = lines(result(over(FAILING, Estimate(1234.56, 123.45, 99_999.0), 0.0123)), width)
    assert shown[2].split()[-6:] == ["1235", "123.5", "…", "99999", "0.0123", "fail"]


def test_a_wide_terminal_does_not_tear_the_table_apart() -> None:
    assert max(map(len, lines(result(PASSING), 300))) < 120


def test_long_names_are_cut_in_the_middle() -> None:
    name = lines(result(row(0, LONG, 5.0)))[2].split()[0]
    assert name.startswith("BaseHTTPMiddle")
    assert name.endswith("response]#2")
    assert "…" in name


def test_a_layer_that_was_not_entered_says_so_and_has_no_figure() -> None:
    shown = lines(result(row(0, "RouterMiddleware", None, entered=False)))
    assert shown[2].split() == ["RouterMiddleware", "-"]
    assert shown[3] == "  not entered: a layer outside it answered"


def test_a_merged_layer_names_its_neighbour() -> None:
    shown = lines(result(row(0, "Proxy", None, merged_with="GZipMiddleware", merged_because="it is written in C")))
    assert shown[2].split() == ["Proxy", "-"]
    assert shown[3] == "  measured with GZipMiddleware"


def test_verbose_adds_where_the_layer_comes_from_and_what_kind_it_is() -> None:
    assert "  shop.middleware.GZipMiddleware, middleware" in lines(result(PASSING), verbose=True)
    assert not any("shop.middleware" in line for line in lines(result(PASSING)))


def test_verdicts_have_a_style_and_no_text_has_colour_codes() -> None:
    shown = list(table(view(result(PASSING, FAILING, OPEN)), 80))
    assert [line.style for line in shown[2:5]] == ["green", "red", "yellow"]
    assert not any("\x1b" in line.text for line in shown)
    assert set(STYLES.values()) <= {"", "green", "red", "yellow"}


def test_a_row_without_a_verdict_has_no_style() -> None:
    assert list(table(view(result(row(0, "A", 1.0))), 80))[2].style == ""


def test_what_has_no_interval_has_no_figure() -> None:
    nothing = Estimate(0.0, -math.inf, math.inf)
    without_interval = but(result(PASSING), books=Books(nothing, nothing, None, 0.0), floor_us=math.inf)
    text = "\n".join(lines(without_interval))
    assert "0.00" not in text.replace("0.00 µs", "")
    assert "detection limit ? µs" in text
    assert "inf" not in text
    assert "(endpoint)" not in text


def test_nothing_ends_in_a_space() -> None:
    assert all(line == line.rstrip() for line in lines(result(PASSING, row(1, "A", None, entered=False))))


# ---- the second part of the table -------------------------------------------------------------------------------

BUSY = Occupation(us(7.9), 10.0, 6.5)
# A count of every quantity.
MUCH = Counts(
    objects=Count(478, 460, 520, {"builtins.dict": 300, "shop.Token": 178}),
    allocations=same(1200),
    bytes=Count(64 * 1024, 60 * 1024, 80 * 1024),
    tasks=same(3, rest=2, pump=1),
    threads=same(2, work=2),
    retained=same(1, Token=1),
    received=same(1),
    sent=same(2),
    suspensions=same(4),
    bytecodes=same(6410),
    calls=same(529),
    py_calls=same(327),
    own_types=("shop.Token",),
)


def second(found: Result, width: int = 80, *, verbose: bool = False) -> list[str]:
    """Return the second part of the table, from its heading to its total."""
    shown = lines(found, width, verbose=verbose)
    begin = next(number for number, line in enumerate(shown) if line.startswith("per request"))
    end = next(number for number, line in enumerate(shown) if line.startswith("(total)") and number > begin)
    return shown[begin : end + 1]


def heading(found: Result, *, verbose: bool = False) -> list[str]:
    return re.split(r"\s{2,}", second(found, 120, verbose=verbose)[0])


def test_counts_stand_outermost_first_between_outside_and_endpoint_and_total() -> None:
    result = counted(
        layer_row("A", counts=replace(NONE, threads=same(2))),
        layer_row("B", 1, counts=replace(NONE, threads=same(3))),
        outside=replace(NONE, threads=same(1)),
        endpoint=replace(NONE, threads=same(4)),
        total=replace(NONE, threads=same(5)),
    )
    assert [line.split() for line in second(result)] == [
        ["per", "request", "threads"],
        ["(outside)", "1"],
        ["A", "2"],
        ["B", "3"],
        ["(endpoint)", "4"],
        ["(total)", "5"],
    ]
    assert lines(result)[0].startswith("per request")


def test_times_come_first_where_there_are_any() -> None:
    result = timed(counted(replace(PASSING, counts=NONE)))
    shown = lines(result)
    assert shown[0].startswith("layer")
    gap = shown.index("")
    assert shown[gap - 1].startswith("(total)")
    assert shown[gap + 1].startswith("per request")


def test_an_app_that_answers_from_a_layer_has_no_endpoint_in_either_part() -> None:
    assert not any("(endpoint)" in line for line in lines(counted(layer_row(), endpoint=None)))


def test_a_column_of_zeros_folds_away_and_is_there_when_asked() -> None:
    result = counted(layer_row(counts=replace(NONE, threads=same(2))))
    assert heading(result) == ["per request", "threads"]
    assert heading(result, verbose=True) == [
        "per request",
        *("objects", "allocs", "bytes", "retained", "tasks", "threads"),
        *("bytecodes", "calls", "py calls", "recv", "send"),
    ]


@pytest.mark.parametrize(
    ("field", "title"),
    [
        *(("objects", "objects"), ("allocations", "allocs"), ("bytes", "bytes"), ("retained", "retained")),
        *(("tasks", "tasks"), ("threads", "threads"), ("bytecodes", "bytecodes")),
    ],
)
def test_a_column_with_something_in_any_row_is_there(field: str, title: str) -> None:
    some: Counts = replace(NONE, **{field: same(7)})  # type: ignore[arg-type]
    for result in (counted(layer_row(), total=some), counted(layer_row(), layer_row("B", 1, counts=some))):
        assert heading(result) == ["per request", title]


@pytest.mark.parametrize("field", ["calls", "py_calls", "received", "sent"])
def test_a_detail_is_there_when_asked(field: str) -> None:
    result = counted(layer_row(counts=replace(NONE, tasks=same(1), **{field: same(7)})))  # type: ignore[arg-type]
    assert heading(result) == ["per request", "tasks"]
    assert len(heading(result, verbose=True)) == 12


def test_a_row_may_have_something_in_one_request_of_many() -> None:
    seldom = Count(0, 0, 3)
    result = counted(layer_row(counts=replace(NONE, tasks=seldom)))
    assert heading(result) == ["per request", "tasks"]
    assert second(result)[2].split() == ["Auth", "~0"]
    # Objects retained by some requests may be a growing cache; only a typical count is a leak.
    assert heading(counted(layer_row(counts=replace(NONE, retained=seldom, threads=same(2))))) == [
        "per request",
        "threads",
    ]


def test_a_count_that_varies_is_marked_and_its_range_is_there_when_asked() -> None:
    total = replace(MUCH, objects=Count(500, 480, 540))
    result = counted(layer_row(counts=replace(MUCH, retained=same(0))), total=total)
    auth = second(result, 120)[2].split()
    assert auth == ["Auth", "~478", "1200", "~64.0", "KiB", "0", "3", "2", "6410"]
    assert "21 requests counted; ~ varies from request to request" in lines(result)
    assert not any("…" in line for line in lines(result))
    verbose = lines(result, verbose=True)
    assert [line for line in verbose if "…" in line] == ["  objects 460 … 520", "  bytes 60.0 KiB … 80.0 KiB"]


def test_where_nothing_varies_nothing_is_said_of_it() -> None:
    result = counted(layer_row(counts=replace(NONE, threads=same(2))), total=replace(NONE, threads=same(2)))
    assert "21 requests counted" in lines(result)
    assert "~" not in "\n".join(lines(result, verbose=True))


def test_what_varies_in_a_row_is_explained_also_where_the_total_does_not_vary() -> None:
    result = counted(layer_row(counts=replace(NONE, tasks=Count(1, 0, 2))), total=replace(NONE, tasks=same(2)))
    assert any("~" in line for line in second(result))
    assert "21 requests counted; ~ varies from request to request" in lines(result)


def test_sizes_stand_with_their_unit() -> None:
    result = counted(layer_row(counts=replace(NONE, bytes=same(16 * 1024))), total=replace(NONE, bytes=same(17_000)))
    assert [line.split()[1:] for line in second(result)[2:]] == [["16.0", "KiB"], ["0", "B"], ["16.6", "KiB"]]


def test_a_layer_without_counts_has_dashes() -> None:
    merged = LayerReport(replace(layer_row("Proxy", 1).layer, merged_with="Auth"))
    absent = LayerReport(replace(layer_row("Inner", 2).layer, entered=False))
    result = counted(layer_row(counts=replace(NONE, threads=same(2), tasks=same(1))), merged, absent)
    shown = second(result)
    assert shown[3:7] == [shown[3], "  measured with Auth", shown[5], "  not entered: a layer outside it answered"]
    assert (shown[3].split(), shown[5].split()) == (["Proxy", "-", "-"], ["Inner", "-", "-"])


def test_a_remark_is_made_once() -> None:
    result = timed(counted(), row(0, "Proxy", None, merged_with="Auth"), row(1, "Inner", None, entered=False))
    for verbose in (False, True):
        shown = lines(result, verbose=verbose)
        assert shown.count("  measured with Auth") == 1
        assert shown.count("  not entered: a layer outside it answered") == 1
        assert sum("shop.middleware.Proxy" in line for line in shown) == verbose


def test_without_times_verbose_still_says_where_a_layer_comes_from() -> None:
    assert "  shop.middleware.Auth" in lines(counted(layer_row()), verbose=True)
    assert "  shop.middleware.Auth" not in lines(counted(layer_row()))


WHY = "the C extension was not built: install with a C compiler"


def test_what_cannot_be_counted_has_no_column_and_one_line_for_each_reason() -> None:
    cannot = replace(NONE, objects=None, allocations=None, bytes=None, retained=None, tasks=same(1))
    why = {"objects": WHY, "allocations": WHY, "bytes": WHY, "retained": "no such thing"}
    result = counted(layer_row(counts=cannot), outside=cannot, endpoint=cannot, total=cannot, why=why)
    assert heading(result) == ["per request", "tasks"]
    own = replace(cannot, **dict.fromkeys(EXECUTED))
    result = counted(layer_row(counts=own), outside=own, endpoint=own, total=own, why=why)
    assert heading(result, verbose=True) == ["per request", "tasks", "threads", "recv", "send"]
    assert [line for line in lines(result, 120) if "not counted" in line] == [
        f"not counted: objects, allocations, bytes ({WHY}) [uncountable]",
        "not counted: retained (no such thing) [uncountable]",
    ]


def test_times_have_columns_where_a_layer_waits_or_blocks_or_has_a_budget_for_it() -> None:
    plain = replace(PASSING, counts=NONE, occupation=Occupation(us(17.9), 0.0, 17.0))
    times = ["busy µs", "wait µs", "cpu µs"]
    assert heading(timed(counted(plain))) == ["per request"]
    shown = lines(timed(counted(plain)), 120, verbose=True)
    assert [re.split(r"\s{2,}", line)[-3:] for line in shown if line.startswith("per request")][-1] == times
    waits = replace(plain, occupation=BUSY)
    blocks = replace(plain, occupation=replace(BUSY, wait_us=0.0, blocking=True))
    judged = replace(plain, judged={"busy_us": Judged(50.0, "pass")})
    assert heading(timed(counted(waits))) == ["per request", *times]
    assert heading(timed(counted(blocks))) == ["per request", *times]
    assert heading(timed(counted(judged))) == ["per request", *times, "verdict"]
    assert heading(counted(layer_row(counts=replace(NONE, sent=same(2)))), verbose=True)[-1] == "send"


def test_a_row_says_how_its_time_is_spent() -> None:
    result = timed(counted(replace(PASSING, counts=NONE, occupation=BUSY)))
    assert second(result)[2].split() == ["GZipMiddleware", "7.90", "10.0", "6.50"]
    # (outside) has no such figures, and a platform may have no CPU time.
    assert second(result)[1].split() == ["(outside)"]
    result = timed(counted(replace(PASSING, counts=NONE, occupation=replace(BUSY, cpu_us=None))))
    assert second(result)[2].split() == ["GZipMiddleware", "7.90", "10.0"]


def test_advice_stands_below_with_its_page() -> None:
    blocking = Occupation(us(260.0), 0.0, 20.0, blocking=True)
    result = timed(counted(replace(PASSING, counts=NONE, occupation=blocking)))
    (advice,) = advise(result)
    assert flat("\n".join(lines(result))).endswith(f" advice: {advice.text} ({advice.page})")
    # The command is on one line at every width, so that it can be copied.
    for width in range(60, 100):
        assert sum(advice.page in line for line in lines(result, width)) == 1
    assert "advice" not in "\n".join(lines(timed(counted(replace(PASSING, counts=NONE, occupation=BUSY)))))


def judged(report: LayerReport, **bounds: tuple[float, Verdict]) -> LayerReport:
    """Return the same row with these budgets and verdicts."""
    budgets: dict[Quantity, Judged] = {
        quantity: Judged(bound, verdict, "it is measured together" if verdict == "undecided" else None)
        for quantity, (bound, verdict) in bounds.items()  # type: ignore[misc]
    }
    return replace(report, judged=budgets)


def test_the_worst_verdict_on_what_is_not_the_time_stands_in_the_second_part() -> None:
    sent = replace(NONE, threads=same(2))
    rows = [
        judged(layer_row("A", counts=sent), tasks=(0, "pass"), objects=(5, "fail")),
        judged(layer_row("B", 1, counts=sent), us=(50, "fail"), tasks=(0, "pass")),
        judged(layer_row("C", 2, counts=sent), tasks=(0, "undecided")),
        judged(layer_row("D", 3, counts=sent), us=(50, "fail")),
        layer_row("E", 4, counts=sent),
    ]
    shown = [
        line for line in table(view(timed(counted(*rows), *rows)), 80) if re.match(r"[A-E] +0( +5)? +0 +2", line.text)
    ]
    assert [(line.text.partition("  2")[2].split(), line.style) for line in shown] == [
        (["fail"], "red"),
        (["pass"], "green"),
        (["undecided"], "yellow"),
        ([], ""),
        ([], ""),
    ]


def test_without_a_budget_but_of_time_the_second_part_has_no_verdicts() -> None:
    assert heading(timed(counted(replace(PASSING, counts=MUCH))))[-1] != "verdict"


def full(width: int, *, with_times: bool, verbose: bool = False) -> list[str]:
    """Return a table with something in every column."""
    report = judged(layer_row(LONG, counts=MUCH), tasks=(0, "undecided"))
    why = {"retained": "it cannot be known " * 6}
    result = counted(report, outside=MUCH, endpoint=MUCH, total=MUCH, why=why)
    if with_times:
        result = timed(result, replace(report, us=us(17.9), occupation=BUSY))
    return lines(result, width, verbose=verbose)


@pytest.mark.parametrize("verbose", [False, True])
@pytest.mark.parametrize("with_times", [False, True])
def test_a_table_with_something_in_every_column_fits_eighty_columns(with_times: bool, verbose: bool) -> None:
    shown = full(80, with_times=with_times, verbose=verbose)
    assert max(map(len, shown)) <= 79
    assert not any(line != line.rstrip() for line in shown)


def test_columns_that_have_no_room_stand_below_with_the_same_names() -> None:
    wide, narrow = full(140, with_times=False), full(100, with_times=True)
    assert sum(line.startswith("per request") for line in wide) == 1
    begins = [number for number, line in enumerate(narrow) if line.startswith("per request")]
    assert len(begins) == 2
    assert all(narrow[begin - 1] == "" for begin in begins)
    for begin in begins:
        rows = narrow[begin + 1 : begin + 5]
        assert [row.split()[0][:8] for row in rows] == ["(outside", "BaseHTTP", "(endpoin", "(total)"]
    # Only the first part has the verdict.
    assert [narrow[begin].endswith("verdict") for begin in begins] == [True, False]
    assert [narrow[begin + 2].endswith("undecided") for begin in begins] == [True, False]


COUNTS_OF_MUCH = ["~478", "1200", "~64.0", "KiB", "1", "3", "2", "6410"]
# Calls, Python functions entered, messages received and sent.
DETAILS_OF_MUCH = ["529", "327", "1", "2"]


@relaxed
@given(width=st.integers(1, 300), verbose=st.booleans(), with_times=st.booleans())
def test_no_figure_is_lost_at_any_width(width: int, verbose: bool, with_times: bool) -> None:
    shown = full(max(width, 20), with_times=with_times, verbose=verbose)
    shown = shown[next(number for number, line in enumerate(shown) if line.startswith("per request")) :]

    def figures(start: str) -> list[str]:
        return [word for line in shown if line.startswith(start) for word in line.split()[1:]]

    times = ["7.90", "10.0", "6.50"] if with_times else []
    counts = [*COUNTS_OF_MUCH, *(DETAILS_OF_MUCH if verbose else [])]
    words = figures("Base")
    assert words.count("undecided") == 1
    assert [word for word in words if word != "undecided"] == [*counts, *times]
    assert figures("(total)") == counts


@pytest.mark.parametrize("width", range(40, 61))
def test_a_narrow_terminal_gets_columns_under_each_other(width: int) -> None:
    shown = full(width, with_times=True)
    begin = next(number for number, line in enumerate(shown) if line.startswith("per request"))
    end = next(number for number, line in enumerate(shown) if line.startswith("detection limit"))
    assert max(map(len, shown[begin:end])) < width
    report = judged(layer_row(LONG, counts=MUCH), tasks=(0, "fail"))
    assert LONG in failure(counted(report, total=MUCH, verdict="fail"), width)


def test_a_mark_in_a_column_that_is_folded_away_is_not_explained() -> None:
    result = counted(layer_row(counts=replace(NONE, retained=Count(0, 0, 3))))
    assert "21 requests counted" in lines(result)
    assert "21 requests counted; ~ varies from request to request" in lines(result, verbose=True)


@pytest.mark.parametrize("width", [1, 10, 80])
def test_without_any_column_there_are_still_the_rows(width: int) -> None:
    result = counted(layer_row("A"))
    assert [line.split()[0] for line in second(result, width)] == ["per", "(outside)", "A", "(endpoint)", "(total)"]


# ---- one line ---------------------------------------------------------------------------------------------------


def test_the_short_form_names_verdict_total_and_costliest_layer() -> None:
    line = one_line(result(PASSING, FAILING, verdict="fail"))
    assert line.text == (
        "GET /health fail: 245.1 (244.7 … 245.5) µs, costliest layer AuthMiddleware: 117.2 (116.8 … 117.7) µs"
    )
    assert line.style == "red"


def test_the_short_form_of_an_app_without_layers() -> None:
    assert one_line(result()).text == "GET /health pass: 245.1 (244.7 … 245.5) µs"


def test_the_short_form_of_a_request_without_budgets() -> None:
    assert one_line(result(verdict=None)).text == "GET /health no budget: 245.1 (244.7 … 245.5) µs"
    assert one_line(counted(verdict=None)).text == "GET /health no budget: 21 requests counted"


def test_the_short_form_of_a_run_without_times() -> None:
    line = one_line(counted(layer_row(), verdict="fail"))
    assert line.text == "GET /health fail: 21 requests counted"
    assert line.style == "red"


def test_the_short_form_of_a_run_with_both_has_the_time() -> None:
    text = "GET /health pass: 245.1 (244.7 … 245.5) µs, costliest layer GZipMiddleware: 17.9 (17.5 … 18.3) µs"
    assert one_line(timed(counted(PASSING))).text == text


# ---- a whole run ------------------------------------------------------------------------------------------------

MEASURED = [("t.py::test_one", timed(counted(PASSING))), ("t.py::test_two", counted(layer_row(), verdict="fail"))]


SHORT = [f"{nodeid} {one_line(result).text}" for nodeid, result in MEASURED]
ENVIRONMENT = "CPython 3.13.0, loop asyncio, µs per request"


@pytest.mark.parametrize("verbosity", [0, -1])
@pytest.mark.parametrize("verdict", ["fail", "undecided", None])
def test_a_run_has_the_tables_of_requests_that_do_not_keep_their_budgets(
    verbosity: int, verdict: Verdict | None
) -> None:
    other = counted(layer_row(), verdict=verdict)
    measured = [MEASURED[0], ("t.py::test_two", other)]
    shown = [line.text for line in run(measured, "CPython 3.13.0", 80, verbosity)]
    assert shown == [SHORT[0], f"t.py::test_two {one_line(other).text}", *lines(other), "", ENVIRONMENT]


def test_twenty_kept_requests_have_twenty_lines() -> None:
    shown = [line.text for line in run([MEASURED[0]] * 20, "CPython 3.13.0", 80)]
    assert shown == [*[SHORT[0]] * 20, ENVIRONMENT]


def test_what_is_the_same_in_many_requests_is_told_once() -> None:
    task = replace(NONE, tasks=Count(1, 1, 1, {f"{BASE_HTTP}__call__": 1}))
    auth = replace(row(0, "Auth", 20.0, 50.0, origin=Origin()), counts=task)
    advised = result(auth, row(1, "GZip", 9.0, 50.0, origin=Origin("starlette")))
    (advice,) = view(advised).advice
    measured = [(f"t.py::test_{number}", advised) for number in range(6)]
    shown = [line.text for line in run(measured, "CPython 3.13.0", 300)]
    assert shown[6] == "own: Auth; from starlette: GZip"
    assert flat(" ".join(shown[7:-1])) == f"advice: {advice.text} ({advice.page}); in test_0, test_1, test_2 and 3 more"


def test_a_verbose_run_has_verbose_tables() -> None:
    shown = [line.text for line in run(MEASURED[:1], "CPython 3.13.0", 80, 1)]
    assert shown[1:-2] == lines(MEASURED[0][1], verbose=True) != lines(MEASURED[0][1])


def test_a_very_quiet_run_has_a_line_for_each_request() -> None:
    shown = list(run(MEASURED, "CPython 3.13.0", 80, -2))
    assert [line.text for line in shown] == [*SHORT, ENVIRONMENT]
    assert [line.style for line in shown] == ["green", "red", ""]


def test_below_a_table_stands_why_a_verdict_is_undecided() -> None:
    near = row(2, "CORSMiddleware", 49.9, 50.0, verdict="undecided", reason="it is near [near-budget]")
    undecided = result(PASSING, near, verdict="undecided")
    shown = list(run([("a", undecided)], "CPython 3.13.0", 80))
    (reason,) = [line for line in shown if "is undecided" in line.text]
    assert (reason.text, reason.style) == ("CORSMiddleware is undecided: it is near [near-budget].", "yellow")
    assert shown[-1].text == "More: mwbudget explain ID, for an ID in [brackets]"
    assert not any(
        "is undecided" in line.text for line in run([("a", undecided)], "CPython 3.13.0", 80, in_failures={0})
    )


def test_a_table_that_stands_elsewhere_is_not_told_again() -> None:
    shown = [line.text for line in run(MEASURED, "CPython 3.13.0", 80, in_failures={1})]
    assert shown == [*SHORT, ENVIRONMENT]


def test_an_attempt_that_was_repeated_has_a_line_that_says_so() -> None:
    shown = [line.text for line in run(MEASURED, "CPython 3.13.0", 80, repeated={0})]
    assert shown == [f"{SHORT[0]} (attempt was repeated)", SHORT[1], *lines(MEASURED[1][1]), "", ENVIRONMENT]


def test_a_run_names_its_loops_and_no_unit_where_nothing_was_timed() -> None:
    measured = [(nodeid, replace(MEASURED[1][1], loop=loop)) for nodeid, loop in (("a", "uvloop"), ("b", "asyncio"))]
    assert [line.text for line in run(measured, "CPython 3.13.0", 80)][-1] == "CPython 3.13.0, loop asyncio, uvloop"


# ---- the failure ------------------------------------------------------------------------------------------------


def test_reasons_are_what_is_over_and_what_is_open() -> None:
    failed = result(PASSING, FAILING, OPEN, budgets={"total": Judged(200.0, "fail")}, verdict="fail")
    assert sentences(failed) == [
        "AuthMiddleware takes 117.2 µs per request, its budget is 50 µs: 67.2 µs too much (66.8 to 67.7).",
        "The whole request takes 245.1 µs per request, its budget is 200 µs: 45.1 µs too much (44.7 to 45.5).",
        "CORSMiddleware is undecided: the interval holds the budget.",
    ]
    assert sentences(result(PASSING)) == []


def test_a_failure_has_layer_budget_excess_with_its_interval_and_what_next() -> None:
    text = flat(failure(result(PASSING, FAILING, verdict="fail"), 79))
    assert text.startswith("GET /health: AuthMiddleware 117.2 µs, budget 50 µs (1 of 2 layers over budget)")
    assert "AuthMiddleware takes 117.2 µs per request, its budget is 50 µs: 67.2 µs too much (66.8 to 67.7)." in text
    assert "Next: profile shop.middleware.AuthMiddleware on this request" in text
    assert "layers={'AuthMiddleware': 160}" in text
    assert "GZipMiddleware takes" not in text


def test_a_failure_holds_the_table() -> None:
    failed = result(PASSING, FAILING, verdict="fail")
    assert "\n".join(lines(failed, 79)) in failure(failed, 79)


def test_a_layer_with_advice_is_told_to_follow_it() -> None:
    counts = replace(NONE, objects=same(484), tasks=Count(1, 1, 1, {f"{BASE_HTTP}__call__.coro": 1}))
    failed = timed(counted(replace(FAILING, counts=counts, occupation=BUSY), verdict="fail"))
    text = flat(failure(failed, 79))
    (advice,) = advise(failed)
    assert f"advice: {advice.text}" in text
    assert "Next: the advice above; or, if this is intended, set layers={'AuthMiddleware': 160} in the marker." in text


@pytest.mark.parametrize(
    ("place", "layer", "total"),
    [
        ("marker", "set layers={'AuthMiddleware': 160} in the marker.", "set total_us=320 in the marker."),
        (
            "file",
            "set layers = { 'AuthMiddleware' = 160 } in the table of the request in the file of requests.",
            "set total_us = 320 in the table of the request in the file of requests.",
        ),
        (
            "configuration",
            "set mw_budget_layers = AuthMiddleware = 160 in the configuration.",
            "set mw_budget_total_us = 320 in the configuration.",
        ),
    ],
)
def test_the_next_step_names_a_place_in_which_the_budget_can_stand(place: BudgetPlace, layer: str, total: str) -> None:
    assert layer in flat(failure(replace(result(FAILING, verdict="fail"), place=place), 79))
    over_total = result(PASSING, budgets={"total": Judged(200.0, "fail")}, verdict="fail")
    assert total in flat(failure(replace(over_total, place=place), 79))


def test_a_suggested_budget_of_counts_can_be_written_in_each_place() -> None:
    judged: dict[Quantity, Judged] = {"tasks": Judged(0, "fail"), "objects": Judged(9, "fail")}
    layer = replace(FAILING, counts=replace(NONE, objects=same(484), tasks=same(1)), judged=judged)
    failed = counted(layer, verdict="fail")
    places: tuple[BudgetPlace, ...] = get_args(BudgetPlace)
    text = {place: flat(failure(replace(failed, place=place), 79)) for place in places}
    assert "layers={'AuthMiddleware': {'tasks': 1, 'objects': 484}} in the marker." in text["marker"]
    line = text["file"].rpartition("set ")[2].partition(" in the table")[0]
    assert tomllib.loads(line) == {"layers": {"AuthMiddleware": {"tasks": 1, "objects": 484}}}
    line = text["configuration"].partition("mw_budget_layers = ")[2].partition(" in the configuration")[0]
    assert check("layers", [line], "x") == {"AuthMiddleware": {"tasks": 1, "objects": 484}}


def test_a_failure_with_a_profile_names_the_file_and_the_hottest_functions() -> None:
    hot = (HotFunction("Auth.check", "shop/auth.py", 12, 43.5, 84.6), HotFunction("len", "", 0, 1.25, 1.25))
    profile = Profile(300, 900, 400.0, ".mw-budget/x-1.html", "p", "s", {FAILING.layer.index: hot})
    text = failure(replace(result(FAILING, verdict="fail"), profile=profile), 79)
    assert text.endswith("\nFlamegraph: .mw-budget/x-1.html\nMore: mwbudget explain over-budget")
    assert "Hottest in AuthMiddleware, µs per request (self time, with callees):" in text
    assert "\n       43.5    84.6  Auth.check (shop/auth.py:12)\n" in text
    assert "\n       1.25    1.25  len\n" in text
    assert "Next: look for AuthMiddleware in the flamegraph; if this is intended" in flat(text)


def test_a_failure_names_its_flamegraph_once_and_a_table_below_its_figures() -> None:
    profile = Profile(300, 900, 400.0, ".mw-budget/x-1.html", "p", "s", {})
    profiled = replace(result(FAILING, verdict="fail"), profile=profile)
    assert failure(profiled, 79).count("x-1.html") == 1
    assert lines(profiled)[-1] == "flamegraph: .mw-budget/x-1.html"
    assert not any("flamegraph" in line for line in lines(result(FAILING)))


@pytest.mark.parametrize(
    ("us", "enough"), [(0.05, "1"), (0.9, "2"), (2.4, "4"), (3.0, "4"), (7.8, "11"), (80.0, "110"), (1230.0, "1600")]
)
def test_a_suggested_budget_is_the_row_and_30_percent_in_two_figures_or_whole_microseconds(
    us: float, enough: str
) -> None:
    text = flat(failure(result(row(0, "Auth", us, us / 2, verdict="fail"), verdict="fail"), 79))
    assert f"layers={{'Auth': {enough}}} in the marker" in text


def test_a_request_over_its_total_says_by_how_much_and_what_next() -> None:
    over_total = result(PASSING, budgets={"total": Judged(200.0, "fail")}, verdict="fail")
    text = flat(failure(over_total, 79))
    assert text.startswith("GET /health: total 245.1 µs, budget 200 µs")
    assert (
        "The whole request takes 245.1 µs per request, its budget is 200 µs: 45.1 µs too much (44.7 to 45.5)." in text
    )
    assert "total_us=320" in text


@pytest.mark.parametrize("high", [0.3, 7.0, 49.0, 60.0, 117.0, 999.0, 12_345.0])
def test_the_suggested_budget_would_pass(high: float) -> None:
    report = over(FAILING, Estimate(high * 0.95, high * 0.9, high), high / 2)
    text = flat(failure(result(report, verdict="fail"), 79))
    suggested = float(text.partition("layers={'AuthMiddleware': ")[2].partition("}")[0])
    assert high < suggested <= high * 1.5 or suggested == 1


def test_what_is_undecided_fails_only_where_the_settings_say_so() -> None:
    text = failure(result(OPEN, verdict="undecided"), 79, undecided_fails=True)
    assert text.startswith("GET /health: undecided")
    assert "CORSMiddleware is undecided: the interval holds the budget." in flat(text)


def test_each_open_verdict_has_its_sentence() -> None:
    undecided = result(PASSING, OPEN, budgets={"total": Judged(245.0, "undecided", "it is near")})
    assert sentences(undecided) == [
        "CORSMiddleware is undecided: the interval holds the budget.",
        "The whole request is undecided: it is near.",
    ]
    assert sentences(result(PASSING)) == []


def test_a_failure_fits_its_width_but_for_words_that_are_longer() -> None:
    text = failure(result(FAILING, OPEN, row(3, LONG, 117.0, 50.0, verdict="fail"), verdict="fail"), 79)
    assert all(len(line) <= 79 or LONG in line for line in text.splitlines())
    assert "\x1b" not in text


# ---- the failure of a count -------------------------------------------------------------------------------------


def failing(quantity: CountedQuantity, count: Count, most: float, **rest: object) -> LayerReport:
    counts: Counts = replace(NONE, **{quantity: count}, **rest)  # type: ignore[arg-type]
    return judged(layer_row(counts=counts), **{quantity: (most, "fail")})


def text_of(*rows: LayerReport) -> str:
    return flat(failure(counted(*rows, verdict="fail"), 79))


@pytest.mark.parametrize(
    ("quantity", "number", "most", "shown", "allowed", "verb"),
    [
        ("objects", 478, 300, "478 objects", "300 objects", "creates"),
        ("objects", 1, 0, "1 object", "0 objects", "creates"),
        ("allocations", 9, 1, "9 allocations", "1 allocation", "makes"),
        ("bytes", 20_480, 16_384, "20.0 KiB", "16.0 KiB", "requests"),
        ("tasks", 3, 0, "3 tasks", "0 tasks", "spawns"),
        ("threads", 1, 0, "1 call", "0 calls", "hands to worker threads"),
        ("retained", 2, 1, "2 objects", "1 object", "leaves behind"),
    ],
)
def test_a_count_over_its_budget_says_what_how_many_and_what_is_allowed(
    quantity: CountedQuantity, number: int, most: int, shown: str, allowed: str, verb: str
) -> None:
    text = text_of(failing(quantity, same(number), most))
    assert text.startswith(f"GET /health: Auth {shown}, budget {allowed} (1 of 1 layers over budget)")
    assert f"Auth {verb} {shown} per request, its budget is {allowed}." in text
    assert "Next: profile shop.middleware.Auth on this request; if this is intended, set layers={'Auth':" in text


def test_a_count_that_varies_is_shown_with_its_range() -> None:
    text = text_of(failing("bytes", Count(20_480, 20_000, 40_960), 16_384))
    assert "Auth requests 20.0 KiB per request (19.5 KiB to 40.0 KiB), its budget is 16.0 KiB." in text
    assert "per request (" not in text_of(failing("bytes", same(20_480), 16_384))


@pytest.mark.parametrize("quantity", ["tasks", "threads", "retained"])
def test_what_is_over_is_named_with_its_number(quantity: CountedQuantity) -> None:
    shown = failure(counted(failing(quantity, same(12, often=9, seldom=3), 0), verdict="fail"), 79).splitlines()
    number = next(number for number, line in enumerate(shown) if "its budget is" in line)
    listed = [line.strip() for line in shown[number + 1 :] if "×" in line]
    assert listed == ["9 × shop.often", "3 × shop.seldom"]


def test_a_name_stays_beside_its_number_however_long() -> None:
    name = "add_time.<locals>." * 6
    text = failure(counted(failing("tasks", same(9, **{name: 9}), 0), verdict="fail"), 79)
    assert f"    9 × shop.{name}" in text.splitlines()


def test_of_many_names_the_ten_most_frequent_are_listed() -> None:
    names = {f"name_{number:02}": 30 - number for number in range(12)}
    text = text_of(failing("tasks", same(300, **names), 0))
    assert [name for name in names if name in text] == [f"name_{number:02}" for number in range(10)]


@pytest.mark.parametrize("quantity", ["objects", "allocations", "bytes"])
def test_what_is_created_explains_objects_allocations_and_bytes(quantity: CountedQuantity) -> None:
    objects = Count(478, 478, 478, {"builtins.dict": 300, "shop.Token": 178})
    report = failing(quantity, same(478), 1, own_types=("shop.Token",))
    assert report.counts is not None
    text = text_of(replace(report, counts=replace(report.counts, objects=objects)))
    assert "Most objects are 300 builtins.dict, 178 shop.Token." in text
    assert "Types that only it creates: shop.Token." in text


@pytest.mark.parametrize("quantity", ["tasks", "threads", "retained"])
def test_what_is_created_explains_the_rest_as_well(quantity: CountedQuantity) -> None:
    report = failing(quantity, same(3, rest=3), 1, own_types=("shop.Token",))
    assert report.counts is not None
    text = text_of(replace(report, counts=replace(report.counts, objects=same(3, Token=3))))
    assert "Most objects are 3 shop.Token." in text
    assert "Types that only it creates: shop.Token." in text


def test_of_many_types_the_ten_most_frequent_are_listed_and_the_rest_of_its_own_counted() -> None:
    types = {f"Type_{number:02}": 30 - number for number in range(13)}
    own = tuple(f"shop.{name}" for name in types)
    text = text_of(failing("objects", same(312, **types), 1, own_types=own))
    most = text.partition("Most objects are ")[2].partition(". ")[0]
    assert most.split(", ") == [f"{30 - number} shop.Type_{number:02}" for number in range(10)]
    only = text.partition("Types that only it creates: ")[2].partition(" and 3 more.")[0]
    assert only.split(", ") == list(own[:10])


def test_where_the_types_are_not_known_nothing_is_said_of_them() -> None:
    report = failing("bytes", same(20_480), 16_384)
    assert report.counts is not None
    text = text_of(replace(report, counts=replace(report.counts, objects=None)))
    assert "Most objects are" not in text
    assert "Types that only" not in text


def test_several_budgets_of_a_layer_are_each_explained() -> None:
    counts = replace(MUCH, objects=same(478, Token=478))
    report = judged(layer_row(counts=counts), objects=(300, "fail"), tasks=(0, "fail"), threads=(5, "pass"))
    text = text_of(report)
    assert "Auth creates 478 objects per request" in text
    assert "Auth spawns 3 tasks per request" in text
    assert "2 × shop.rest" in text
    assert "worker threads" not in text
    assert "layers={'Auth': {'objects': 478, 'tasks': 3}}" in text


def test_the_headline_has_the_excess_that_is_the_greatest_share_and_how_many_are_over() -> None:
    rows = [
        judged(layer_row("A", counts=MUCH), objects=(470, "fail"), threads=(1, "fail")),
        judged(layer_row("B", 1, counts=MUCH), tasks=(1, "fail")),
        judged(layer_row("C", 2, counts=MUCH), tasks=(9, "pass")),
        layer_row("D", 3, counts=MUCH),
    ]
    assert text_of(*rows).startswith("GET /health: B 3 tasks, budget 1 task (2 of 3 layers over budget)")


def test_a_budget_of_zero_that_is_not_kept_is_a_great_excess() -> None:
    rows = [
        judged(layer_row("A", counts=replace(MUCH, objects=same(500))), objects=(300, "fail")),
        judged(layer_row("B", 1, counts=replace(MUCH, tasks=same(1))), tasks=(0, "fail")),
    ]
    assert text_of(*rows).startswith("GET /health: B 1 task, budget 0 tasks")


def test_a_layer_that_holds_the_event_loop_too_long_says_for_how_long() -> None:
    report = judged(replace(FAILING, counts=NONE, occupation=BUSY), busy_us=(5.0, "fail"))
    text = flat(failure(timed(counted(report, verdict="fail")), 79))
    assert text.startswith("GET /health: AuthMiddleware busy 7.90 µs, budget 5 µs (1 of 1 layers over budget)")
    assert "AuthMiddleware holds the event loop for 7.90 µs per request, its budget is 5 µs: 2.90 µs too much" in text
    assert "layers={'AuthMiddleware': {'busy_us': 11}}" in text


def suggested(text: str) -> dict[str, object]:
    """Return the keywords that a failure suggests for the marker."""
    call = re.search(r"layers=\{.*\}", flat(text))
    assert call is not None
    keywords = ast.parse(f"marker({call[0]})", mode="eval").body
    assert isinstance(keywords, ast.Call)
    return {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in keywords.keywords}


def verdicts(report: LayerReport, bounds: Bounds) -> set[Verdict]:
    """Return the verdicts on the same figures under other budgets."""
    figures = {quantity: report.figure(quantity) for quantity in bounds}
    return {judge(quantity, held, bounds[quantity]).verdict for quantity, held in figures.items() if held is not None}


TIMES: tuple[Quantity, ...] = ("us", "busy_us")


@pytest.mark.parametrize("runs_task", [False, True])
@pytest.mark.parametrize(
    "quantities",
    [
        *((quantity,) for quantity in (*TIMES, *COUNTED)),
        ("us", "tasks"),
        ("busy_us", "us"),
        ("bytes", "objects", "allocations"),
        (*TIMES, *COUNTED),
    ],
    ids=", ".join,
)
def test_the_suggested_budget_pasted_into_the_marker_makes_the_layer_pass(
    quantities: tuple[Quantity, ...], runs_task: bool
) -> None:
    report = layer_row("BaseHTTPMiddleware[shop.add_time]#2", counts=MUCH, runs_task=runs_task)
    report = replace(report, us=us(17.9), occupation=BUSY)
    low: dict[str, tuple[float, Verdict]] = {
        quantity: (0 if quantity in COUNTED else 1.5, "fail") for quantity in quantities
    }
    report = judged(report, **low)
    marker = {quantity: most for quantity, (most, _) in low.items()}
    assert verdicts(report, assign(merge([marker], {}).budgets, [report.layer])[0]) == {"fail"}
    keywords = suggested(failure(timed(counted(report, verdict="fail")), 79))
    bounds = assign(merge([marker | keywords], {}).budgets, [report.layer])[0]
    assert set(bounds) == set(quantities)
    assert verdicts(report, bounds) == {"pass"}


def test_what_cannot_be_counted_is_told_by_its_quantity() -> None:
    report = judged(layer_row(), objects=(5, "undecided"), us=(5, "undecided"))
    assert sentences(counted(report)) == [
        "objects of Auth is undecided: it is measured together.",
        "Auth is undecided: it is measured together.",
    ]


def test_a_failure_of_counts_fits_its_width_but_for_words_that_are_longer() -> None:
    types = {f"Type_{number:02}": 30 - number for number in range(13)}
    counts = replace(MUCH, objects=same(312, **types), tasks=same(9, rest=9), own_types=tuple(types))
    report = judged(layer_row(counts=counts), objects=(1, "fail"), tasks=(0, "fail"))
    text = failure(counted(report, verdict="fail", total=counts), 79)
    assert all(len(line) <= 79 for line in text.splitlines())
    assert "\x1b" not in text


# ---- names with control characters ------------------------------------------------------------------------------

ODD = "A\n::error file=x,line=1::pwned\nB\x1b[31m\u2028\udcff"
SHOWN = "A\\n::error file=x,line=1::pwned\\nB\\x1b[31m\\u2028\\udcff"


def odd(verdict: Verdict) -> Result:
    """Return a result in which everything has the name ODD."""
    many = Count(3, 3, 3, {ODD: 3})
    counts = replace(MUCH, objects=many, tasks=many, threads=many, retained=many, own_types=(ODD,))
    report = judged(
        layer_row(ODD, counts=counts), us=(50, verdict), objects=(1, verdict), tasks=(1, verdict), threads=(1, verdict)
    )
    report = replace(report, us=us(117.0), occupation=replace(BUSY, blocking=True))
    report = replace(report, judged={key: replace(budget, reason=ODD) for key, budget in report.judged.items()})
    merged = row(1, "Merged", None, merged_with=ODD)
    profile = Profile(3, 9, 4.0, ODD, ODD, ODD, {0: (HotFunction(ODD, ODD, 1, 1.0, 1.0),)})
    return but(
        timed(counted(report, verdict=verdict, why={"retained": ODD}), report, merged),
        request=RequestLine("GET", ODD),
        loop=ODD,
        notes=(ODD,),
        profile=profile,
        budgets={"total": Judged(1.0, verdict, ODD)},
    )


@pytest.mark.parametrize("width", [40, 80, 1000])
@pytest.mark.parametrize("verbosity", [-1, 0, 1])
@pytest.mark.parametrize("verdict", ["fail", "undecided"])
def test_no_name_ends_a_line_or_colours_it(verdict: Verdict, verbosity: int, width: int) -> None:
    result = odd(verdict)
    shown = [line.text for line in run([(ODD, result)], ODD, width, verbosity)]
    shown += failure(result, width, undecided_fails=True).split("\n")
    shown += [one_line(result).text, *annotation(result, "error", "t.py", 1).split("%0A")]
    assert [line for line in shown if not line.isprintable()] == []
    assert shown[0].startswith(SHOWN)


def test_the_suggested_name_is_one_that_the_marker_takes() -> None:
    report = judged(layer_row(ODD, counts=MUCH), tasks=(0, "fail"))
    text = failure(counted(report, verdict="fail"), 1000)
    assert suggested(text) == {"layers": {ODD: {"tasks": 3}}}


def test_what_has_a_glyph_stays_as_it_is() -> None:
    assert printable("GET /health?q=ü … µ × 雪") == "GET /health?q=ü … µ × 雪"
    assert printable(ODD) == printable(SHOWN) == SHOWN


# ---- text -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.123, "0.12"),
        (9.5, "9.50"),
        (17.94, "17.9"),
        (-17.94, "-17.9"),
        (-0.001, "0.00"),
        (1234.5, "1234"),
        (None, "?"),
        (math.inf, "?"),
        (math.nan, "?"),
    ],
)
def test_figures_have_the_decimals_that_mean_something(value: float | None, text: str) -> None:
    assert figure(value) == text


def test_an_interval_shows_both_ends() -> None:
    us = view(result(replace(PASSING, us=Estimate(5.0, 4.5, 15.0)))).rows[1].figures["us"]
    assert (us.text, us.span) == ("5.00", "4.50 … 15.0")


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (16 * 1024, "16.0 KiB"),
        (1000 * 1024, "1.0 MiB"),
        (1536 * 1024, "1.5 MiB"),
        (1000 * 1024**2, "1.0 GiB"),
        (5 * 1024**4, "5120.0 GiB"),
    ],
)
def test_sizes_are_short(number: int, text: str) -> None:
    assert size(number) == text


@pytest.mark.parametrize(
    ("quantity", "value", "text"),
    [
        ("us", 50.0, "50 µs"),
        ("us", 0.25, "0.25 µs"),
        ("busy_us", 117.25, "117.2 µs"),
        ("objects", 1, "1 object"),
        ("objects", 478, "478 objects"),
        ("allocations", 0, "0 allocations"),
        ("bytes", 16_384.0, "16.0 KiB"),
        ("tasks", 1, "1 task"),
        ("threads", 2, "2 calls"),
        ("retained", 1, "1 object"),
    ],
)
def test_an_amount_has_its_unit(quantity: Quantity, value: float, text: str) -> None:
    assert amount(quantity, value) == text


@relaxed
@given(
    names=st.lists(
        st.tuples(st.text("Aab#", max_size=30), st.sampled_from(("", "Middleware", "Middleware#1"))), min_size=1
    ),
    width=st.integers(12, 40),
)
@example(names=[("A" * 12, ""), ("A" * 12, "Middleware")], width=12)
def test_names_of_a_table_fit_and_stay_different(names: list[tuple[str, str]], width: int) -> None:
    whole = ["".join(parts) for parts in names]
    shorter = distinct(whole, width)
    assert all(len(name) <= width for name in shorter)
    assert len(set(shorter)) == len(set(whole))
    assert [short for short, name in zip(shorter, whole, strict=True) if len(name) <= width] == [
        name for name in whole if len(name) <= width
    ]


def test_a_long_name_loses_what_names_have_in_common() -> None:
    names = ["RequestResponseMiddleware", "RequestTraceIdMiddleware", "ServerErrorMiddleware#1", "CORSMiddleware"]
    assert distinct(names, 16) == ["RequestResponse…", "RequestTraceId…", "ServerError…#1", "CORSMiddleware"]
    assert distinct(["A" * 20 + "1" + "B" * 20, "A" * 20 + "2" + "B" * 20], 12) == ["AAAAAAAAAA…1", "AAAAAAAAAA…2"]


def test_counts_over_a_limit_stand_beside_it() -> None:
    rows = [layer_row("A", counts=replace(NONE, tasks=same(1))), layer_row("B", 1, counts=replace(NONE, tasks=same(1)))]
    limits = tuple(
        RecordedLimit(name, "tasks", 1, limit, "fail" if limit == 0 else "pass") for name, limit in (("A", 0), ("B", 3))
    )
    recorded = Recorded("CPython 3.13.0, asyncio, Linux x86_64", limits)
    lines = failure(replace(counted(*rows), recorded=recorded, verdict="fail"), 160).splitlines()
    place = next(i for i, line in enumerate(lines) if line.startswith("per request"))
    end = lines[place].index("tasks  limit") + len("tasks  limit")
    cells = {line.split()[0]: line[:end].split()[-2:] for line in lines[place + 1 :] if len(line) >= end}
    assert (cells["A"], cells["B"]) == (["1", "0"], ["1", "3"])


@pytest.mark.parametrize(
    ("us", "text", "span"),
    [
        (Estimate(0.6, -404, 624), "?", "not known"),
        (Estimate(0.3, -1.7, 2.3), "0.30", "-1.70 … 2.30"),
        (Estimate(332.9, 323.8, 15303), "332.9", "323.8 … 15303"),
        (Estimate(30, -5, 65), "30.0", "-5.00 … 65.0"),
    ],
)
def test_an_interval_that_says_nothing_is_shown_as_not_known(us: Estimate, text: str, span: str) -> None:
    figure = Figure(US, us.estimate, us.low, us.high)
    assert (figure.text, figure.span) == (text, span)


@relaxed
@given(text=st.text(max_size=60), width=st.integers(1, 40))
def test_shortened_text_fits_and_keeps_both_ends(text: str, width: int) -> None:
    short = shortened(text, width)
    text = printable(text)
    assert len(short) <= width
    if len(text) <= width:
        assert short == text
    else:
        head = (width - 1) // 2
        assert len(short) == width
        assert short[head] == "…"
        assert text.startswith(short[:head])
        assert text.endswith(short[head + 1 :])


@relaxed
@given(words=st.lists(st.text("abc-", min_size=1, max_size=30), max_size=30), width=st.integers(40, 90))
def test_wrapped_text_loses_no_word_and_fits(words: list[str], width: int) -> None:
    lines = wrapped(" ".join(words), width)
    assert " ".join(lines).split() == words
    assert all(len(line) <= width for line in lines)


@pytest.mark.parametrize("name", ["::error file=x::pwned", "  ::error::pwned"])
def test_no_name_is_a_command_of_githubs_runner(name: str) -> None:
    assert not printable(name).lstrip().startswith("::")
    assert printable(name).endswith("pwned")
    assert printable("a::b") == "a::b"
