"""The table, the evidence of a failure, and the lines round them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_mwbudget.model import Books, Effort, Estimate, Layer, LayerReport, RequestLine, Result, Verdict
from pytest_mwbudget.report.terminal import (
    STYLES,
    failure,
    figure,
    interval,
    one_line,
    shortened,
    table,
    undecided,
    wrapped,
)

# A busy machine is no reason to fail.
relaxed = settings(deadline=None)

LONG = "BaseHTTPMiddleware[shop.observability.middleware.add_process_time_header_to_every_response]#2"


def us(estimate: float, margin: float = 0.4) -> Estimate:
    return Estimate(estimate, estimate - margin, estimate + margin)


def row(index: int, name: str, estimate: float | None, budget: float | None = None, **rest: object) -> LayerReport:
    of_layer = {key: rest.pop(key) for key in ("entered", "merged_with", "merged_because") if key in rest}
    layer = Layer(index, name, f"shop.middleware.{name}", "middleware", **of_layer)  # type: ignore[arg-type]
    found = None if estimate is None else us(estimate)
    return LayerReport(layer, found, "split" if found else None, budget, **rest)  # type: ignore[arg-type]


def result(*rows: LayerReport, verdict: Verdict = "pass", **rest: object) -> Result:
    return Result(
        request=RequestLine("GET", "/health"),
        status=200,
        layers=rows,
        books=Books(us(245.1), us(0.6), us(41.0), 1.2),
        floor_us=0.12,
        effort=Effort(requests=960, rounds=120, seconds=0.41),
        verdict=verdict,
        **rest,  # type: ignore[arg-type]
    )


def lines(found: Result, width: int = 80, *, verbose: bool = False) -> list[str]:
    return [line.text for line in table(found, width, verbose=verbose)]


def flat(text: str) -> str:
    """The text without its line breaks."""
    return " ".join(text.split())


PASSING = row(0, "GZipMiddleware", 17.9, 50.0, verdict="pass")
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
    found = lines(result(PASSING, total_budget_us=400.0, total_verdict="pass"))
    assert found[4].split() == ["(total)", "245.1", "244.7", "…", "245.5", "400", "pass"]


def test_the_foot_has_floor_residue_and_effort() -> None:
    foot = flat("\n".join(lines(result(PASSING))[5:]))
    for part in ("floor 0.12 µs", "rows minus total 1.20 µs", "(+0.5%)", "120 rounds", "960 requests", "0.4 s"):
        assert part in foot


def test_notes_stand_below() -> None:
    assert lines(result(PASSING, notes=("A tracer was suspended.",)))[-1] == "note: A tracer was suspended."


@pytest.mark.parametrize("verbose", [False, True])
@pytest.mark.parametrize("verdict", ["pass", "fail", "undecided"])
def test_every_row_of_the_longest_names_and_numbers_fits_eighty_columns(verdict: Verdict, verbose: bool) -> None:
    widest = Estimate(1_234_567.8, 1_234_567.8, 1_234_567.8)
    long = replace(row(0, LONG, 0.0, 999_999.0, verdict=verdict, merged_with=LONG), us=widest)
    found = result(long, total_budget_us=1_500_000.0, total_verdict=verdict, notes=("as it was measured " * 12,))
    found = replace(found, books=Books(widest, widest, widest, 123_456.7))
    assert max(len(line) for line in lines(found, 80, verbose=verbose)) <= 79


@relaxed
@given(width=st.integers(20, 300))
def test_columns_stay_apart_at_any_width(width: int) -> None:
    found = lines(result(replace(FAILING, us=Estimate(-123.46, -1234.5, 99_999.0), budget_us=0.0123)), width)
    assert found[2].split()[-6:] == ["-123.5", "-1234", "…", "99999", "0.0123", "fail"]


def test_a_wide_terminal_does_not_tear_the_table_apart() -> None:
    assert max(map(len, lines(result(PASSING), 300))) < 120


def test_long_names_are_cut_in_the_middle() -> None:
    name = lines(result(row(0, LONG, 5.0)))[2].split()[0]
    assert name.startswith("BaseHTTPMiddle")
    assert name.endswith("response]#2")
    assert "…" in name


def test_a_layer_that_was_not_entered_says_so_and_has_no_figure() -> None:
    found = lines(result(row(0, "RouterMiddleware", None, entered=False)))
    assert found[2].split() == ["RouterMiddleware", "-"]
    assert found[3] == "  not entered: a layer outside it answered"


def test_a_merged_layer_names_its_neighbour() -> None:
    found = lines(result(row(0, "Proxy", None, merged_with="GZipMiddleware", merged_because="it is written in C")))
    assert found[2].split() == ["Proxy", "-"]
    assert found[3] == "  measured with GZipMiddleware"


def test_verbose_adds_where_the_layer_comes_from_and_how_it_was_measured() -> None:
    assert "  shop.middleware.GZipMiddleware, middleware, split" in lines(result(PASSING), verbose=True)
    assert not any("split" in line for line in lines(result(PASSING)))


def test_verdicts_have_a_style_and_no_text_has_colour_codes() -> None:
    shown = list(table(result(PASSING, FAILING, OPEN), 80))
    assert [line.style for line in shown[2:5]] == ["green", "red", "yellow"]
    assert not any("\x1b" in line.text for line in shown)
    assert set(STYLES.values()) <= {"", "green", "red", "yellow"}


def test_a_row_without_a_verdict_has_no_style() -> None:
    assert list(table(result(row(0, "A", 1.0)), 80))[2].style == ""


def test_what_has_no_interval_has_no_figure() -> None:
    nothing = Estimate(0.0, -math.inf, math.inf)
    found = replace(result(PASSING), books=Books(nothing, nothing, None, 0.0), floor_us=math.inf)
    text = "\n".join(lines(found))
    assert "0.00" not in text.replace("0.00 µs", "")
    assert "floor ? µs" in text
    assert "inf" not in text
    assert "(endpoint)" not in text


def test_nothing_ends_in_a_space() -> None:
    assert all(line == line.rstrip() for line in lines(result(PASSING, row(1, "A", None, entered=False))))


# ---- one line ---------------------------------------------------------------------------------------------------


def test_the_short_form_names_verdict_total_and_costliest_layer() -> None:
    line = one_line(result(PASSING, FAILING, verdict="fail"))
    assert line.text == "GET /health fail: 245.1 µs, most in AuthMiddleware: 117.2 µs"
    assert line.style == "red"


def test_the_short_form_of_an_app_without_layers() -> None:
    assert one_line(result()).text == "GET /health pass: 245.1 µs"


# ---- the failure ------------------------------------------------------------------------------------------------


def test_a_failure_has_layer_budget_excess_with_its_interval_and_what_next() -> None:
    text = flat(failure(result(PASSING, FAILING, verdict="fail"), 79))
    assert text.startswith("GET /health: AuthMiddleware 117.2 µs, budget 50 µs (1 of 2 layers over budget)")
    assert "AuthMiddleware takes 117.2 µs per request, its budget is 50 µs: 67.2 µs too much (66.8 to 67.7)." in text
    assert "Next: profile shop.middleware.AuthMiddleware on this request" in text
    assert "layers={'AuthMiddleware': 160}" in text
    assert "GZipMiddleware takes" not in text


def test_a_failure_holds_the_table() -> None:
    found = result(PASSING, FAILING, verdict="fail")
    assert "\n".join(lines(found, 79)) in failure(found, 79)


def test_a_layer_that_runs_its_inside_in_a_task_is_told_about_pure_asgi() -> None:
    text = flat(failure(result(replace(FAILING, layer=replace(FAILING.layer, runs_task=True)), verdict="fail"), 79))
    assert "pure ASGI" in text
    assert "layers={'AuthMiddleware': 160}" in text


def test_a_request_over_its_total_says_by_how_much_and_what_next() -> None:
    found = result(PASSING, total_budget_us=200.0, total_verdict="fail", verdict="fail")
    text = flat(failure(found, 79))
    assert text.startswith("GET /health: total 245.1 µs, budget 200 µs")
    assert (
        "The whole request takes 245.1 µs per request, its budget is 200 µs: 45.1 µs too much (44.7 to 45.5)." in text
    )
    assert "total_us=320" in text


@pytest.mark.parametrize("high", [0.3, 7.0, 49.0, 60.0, 117.0, 999.0, 12_345.0])
def test_the_suggested_budget_would_pass(high: float) -> None:
    over = replace(FAILING, us=Estimate(high * 0.95, high * 0.9, high), budget_us=high / 2)
    text = flat(failure(result(over, verdict="fail"), 79))
    suggested = float(text.partition("layers={'AuthMiddleware': ")[2].partition("}")[0])
    assert high < suggested <= high * 1.5 or suggested == 1


def test_what_is_undecided_fails_only_where_the_settings_say_so() -> None:
    text = failure(result(OPEN, verdict="undecided"), 79, undecided_fails=True)
    assert text.startswith("GET /health: undecided")
    assert "CORSMiddleware is undecided: the interval holds the budget." in flat(text)


def test_each_open_verdict_has_its_sentence() -> None:
    found = result(PASSING, OPEN, total_verdict="undecided", total_reason="it is near")
    assert list(undecided(found)) == [
        "CORSMiddleware is undecided: the interval holds the budget.",
        "The whole request is undecided: it is near.",
    ]
    assert list(undecided(result(PASSING))) == []


def test_a_failure_fits_its_width_but_for_words_that_are_longer() -> None:
    text = failure(result(FAILING, OPEN, row(3, LONG, 117.0, 50.0, verdict="fail"), verdict="fail"), 79)
    assert all(len(line) <= 79 or LONG in line for line in text.splitlines())
    assert "\x1b" not in text


# ---- text -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.123, "0.12"),
        (9.5, "9.50"),
        (17.94, "17.9"),
        (-17.94, "-17.9"),
        (1234.5, "1234"),
        (None, "?"),
        (math.inf, "?"),
        (math.nan, "?"),
    ],
)
def test_figures_have_the_decimals_that_mean_something(value: float | None, text: str) -> None:
    assert figure(value) == text


def test_an_interval_shows_both_ends() -> None:
    assert interval(Estimate(5.0, 4.5, 15.0)) == "4.50 … 15.0"


@relaxed
@given(text=st.text(max_size=60), width=st.integers(1, 40))
def test_shortened_text_fits_and_keeps_both_ends(text: str, width: int) -> None:
    found = shortened(text, width)
    assert len(found) <= width
    if len(text) <= width:
        assert found == text
    else:
        head = (width - 1) // 2
        assert len(found) == width
        assert found[head] == "…"
        assert text.startswith(found[:head])
        assert text.endswith(found[head + 1 :])


@relaxed
@given(words=st.lists(st.text("abc-", min_size=1, max_size=30), max_size=30), width=st.integers(40, 90))
def test_wrapped_text_loses_no_word_and_fits(words: list[str], width: int) -> None:
    found = wrapped(" ".join(words), width)
    assert " ".join(found).split() == words
    assert all(len(line) <= width for line in found)
