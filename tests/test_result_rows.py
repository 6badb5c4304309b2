"""The rows of a result, which limits, comparisons and reports share; figures that are measured for some readers."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from pytest_mwbudget.comparison.figures import figures_of
from pytest_mwbudget.comparison.history import history_run, over_time
from pytest_mwbudget.comparison.surroundings import Comparable
from pytest_mwbudget.comparison.two_runs import changes
from pytest_mwbudget.limits.costs import costs
from pytest_mwbudget.model.changes import Change, Since
from pytest_mwbudget.model.endpoint import EndpointReport
from pytest_mwbudget.model.estimate import Estimate
from pytest_mwbudget.model.judged import Judged
from pytest_mwbudget.model.load import LayerLoad, Load
from pytest_mwbudget.model.messages import Messages, PerMessage
from pytest_mwbudget.model.quantities import COMPARED, RECORDABLE
from pytest_mwbudget.model.results import Count, LayerReport, Result
from pytest_mwbudget.model.saves import Saves
from pytest_mwbudget.model.stack import Layer
from pytest_mwbudget.model.tails import Tails
from pytest_mwbudget.model.trend import Trend
from pytest_mwbudget.report.change_text import of_rows, without_implied
from pytest_mwbudget.report.charts import charts
from pytest_mwbudget.report.html import render as html
from pytest_mwbudget.report.junit import properties
from pytest_mwbudget.report.markdown import render
from pytest_mwbudget.report.view import view
from pytest_mwbudget.storage import codec
from pytest_mwbudget.storage.history import line_of, read_line

from .canned import but, one_run
from .test_comparison import RUN, about, counts, layer, result
from .test_report_html import read as read_page
from .test_report_schema import misfits, written


def part(name: str, us: float | None = 20.0, **said: Any) -> LayerReport:
    time = None if us is None else about(us)
    kind = said.pop("kind", "part")
    return LayerReport(Layer(0, name, name, kind), time, counts=counts(), **said)


def opened(*parts: LayerReport, **said: Any) -> Result:
    """Return a result whose endpoint has these parts."""
    return result(layer("Auth"), endpoint=EndpointReport(parts), **said)


def loaded(report: LayerReport, **said: Any) -> Result:
    """Return a result with figures under load: 5,000 requests per second, unless the arguments say something else."""
    known = {"clients": 100, "rps": about(5000.0), "p50_ms": about(20.0), "p99_ms": about(40.0), "busy": 0.9}
    size = {"rounds": 30, "quiet": 25, "requests": 9000, "seconds": 10.0, "server": "uvicorn 0.30 on asyncio"}
    return replace(result(report), load=Load(**{**known, **size, **said}))


def share(of: float, **said: Any) -> LayerReport:
    """Return a layer that costs a share of the requests per second."""
    load = LayerLoad(share=about(of), **{"method": "bypass", "added_us": about(10.0), **said})
    return replace(layer("Auth"), load=load)


def changed(before: Result, after: Result) -> dict[tuple[str, str], Change]:
    all_changes = changes(figures_of(before), figures_of(after), Comparable())
    return {(change.row, change.quantity): change for change in all_changes}


def words(before: Result, after: Result) -> dict[tuple[str, str], str]:
    return {key: change.word for key, change in changed(before, after).items()}


# ---- the rows ----------------------------------------------------------------------------------------------------


def test_the_rows_stand_from_the_outermost_to_the_whole_request() -> None:
    measured = opened(part("handler"), part("shop.db:get_db", kind="dependency"))
    assert [(row.name, row.kind) for row in measured.rows()] == [
        ("(outside)", "frame"),
        ("Auth", "middleware"),
        ("(endpoint)", "frame"),
        ("(total)", "frame"),
    ]
    assert [(row.key, row.kind) for row in measured.rows(parts=True)][3:5] == [
        ("(endpoint) handler", "part"),
        ("(endpoint) shop.db:get_db", "dependency"),
    ]


def test_an_endpoint_without_figures_and_budget_has_no_row() -> None:
    measured = result(layer("Auth"))
    assert measured.books is not None
    assert measured.ledger is not None
    books, ledger = replace(measured.books, endpoint=None), replace(measured.ledger, endpoint=None)
    without = but(measured, books=books, ledger=ledger)
    assert "(endpoint)" not in [row.name for row in without.rows()]
    budgeted = but(without, budgets={"endpoint": Judged(50.0, "undecided", "it is merged")})
    assert [row.judged for row in budgeted.rows() if row.name == "(endpoint)"] == [
        {"us": Judged(50.0, "undecided", "it is merged")}
    ]


def test_a_row_has_every_figure_of_its_layer() -> None:
    report = replace(
        share(0.04),
        messages=Messages(PerMessage(100, about(3.0)), first_byte=about(7.0)),
        saves=Saves(about(55.0)),
        tails=Tails(2000, about(60.0), about(90.0)),
    )
    row = next(row for row in loaded(report).rows() if row.name == "Auth")
    total = next(row for row in loaded(report).rows() if row.name == "(total)")
    assert {*row.estimates, *row.counted, *total.estimates} == {*COMPARED}
    assert row.estimates["us_per_message"] == about(3.0)
    assert total.estimates["rps"] == about(5000.0)


def test_limits_are_of_layers_and_never_of_a_part_of_the_same_name() -> None:
    measured = opened(part("Auth", 900.0))
    of_rows = costs(replace(measured, slowdown=1.0), RECORDABLE)
    assert of_rows.keys() == {"(outside)", "Auth", "(endpoint)", "(total)"}
    assert of_rows["Auth"]["us"].typical == 50.0


def test_the_figure_of_a_count_is_the_typical_number_with_the_range_that_judges_it() -> None:
    varies = replace(
        counts(), objects=Count(5, 3, 90), tasks=Count(2, 1, 2), ranges={"objects": (4, 9), "bytes": (7, 8)}
    )
    row = replace(layer("Auth"), counts=replace(varies, bytes=None, calls=None))
    assert row.figure("objects") == Estimate(5, 4, 9)
    assert row.figure("tasks") == Estimate(2, 1, 2)
    assert row.figure("bytes") == Estimate(7, 7, 8)  # no number is typical
    assert row.figure("calls") is None
    assert row.figure("us") == about(50.0)
    assert layer("Auth", None).figure("us") is None
    measured = result(row)
    assert measured.figure("Auth", "objects") == row.figure("objects")
    assert measured.figure("Gone", "objects") is None


# ---- comparisons -------------------------------------------------------------------------------------------------


def test_parts_are_compared_only_where_both_runs_opened_the_endpoint() -> None:
    closed, before, after = result(layer("Auth")), opened(part("serialize", 20.0)), opened(part("serialize", 90.0))
    assert words(before, after)["(endpoint) serialize", "us"] == "slower"
    assert not any(row.startswith("(endpoint) ") for row, _ in words(closed, after))
    assert not any(row.startswith("(endpoint) ") for row, _ in words(before, closed))
    budgeted = opened(replace(part("serialize", None), counts=None, judged={"us": Judged(9.0, "undecided", "closed")}))
    assert not any(row.startswith("(endpoint) ") for row, _ in words(budgeted, after))


def test_a_new_dependency_is_a_new_part() -> None:
    word_of = words(opened(part("handler")), opened(part("handler"), part("shop:get_db", kind="dependency")))
    assert word_of["(endpoint) shop:get_db", "us"] == "new"
    assert word_of["(endpoint) handler", "us"] == "same"


def test_a_part_and_a_layer_of_one_name_are_two_rows() -> None:
    word_of = words(opened(part("Auth", 20.0)), opened(part("Auth", 90.0)))
    assert (word_of["Auth", "us"], word_of["(endpoint) Auth", "us"]) == ("same", "slower")
    shown = replace(
        opened(part("Auth", 90.0)), changes=(*changed(opened(part("Auth")), opened(part("Auth", 90.0))).values(),)
    )
    assert [row.changes["us"].word for row in view(shown).lines() if row.name == "Auth"] == ["same", "slower"]


def test_a_count_of_the_endpoint_is_told_by_its_parts() -> None:
    def told_of(*before_and_after: Result) -> list[str]:
        changes = changed(*before_and_after).values()
        return [change.row for change in without_implied([*changes]) if change.quantity == "objects" and change.changed]

    more = counts(objects=Count(150, 150, 150))
    before = opened(part("handler"))
    assert before.ledger is not None
    after = opened(replace(part("handler"), counts=more), ledger=replace(before.ledger, endpoint=more, total=more))
    assert told_of(before, after) == ["(endpoint) handler"]
    assert told_of(replace(before, endpoint=None), after) == ["(endpoint)"]


def test_the_page_has_the_changes_of_parts() -> None:
    before, after = opened(part("serialize", 20.0)), opened(part("serialize", 90.0))
    shown = replace(after, changes=(*changed(before, after).values(),))
    page = html(one_run(shown, since=Since("main")))
    assert re.search(r"Time inside the endpoint.*?<th[^>]*>.*?change.*?serialize.*?\+70\.0 slower", page, re.DOTALL)


def test_the_page_has_what_changed_under_load() -> None:
    before, after = loaded(share(0.05)), loaded(share(0.2), rps=about(2000.0))
    shown = replace(after, changes=(*changed(before, after).values(),))
    page = html(one_run(shown, since=Since("main")))
    assert "rps_share +15.0% slower" in page
    assert "rps -3,000 slower" in page


def tailed(us: float, p99: float | None) -> Result:
    return result(replace(layer("Auth", us), tails=Tails(2000, about(60.0), None if p99 is None else about(p99))))


def test_a_figure_that_only_one_run_measured_is_no_change() -> None:
    assert ("Auth", "p99_us") not in words(tailed(50.0, None), tailed(50.0, 90.0))
    assert ("Auth", "p99_us") not in words(tailed(50.0, 90.0), result(layer("Auth")))
    saving = result(replace(layer("Auth"), saves=Saves(about(70.0))))
    assert ("Auth", "saves_us") not in words(result(layer("Auth")), saving)
    assert not {"rps", "p50_ms", "p99_ms"} & {
        quantity for _, quantity in words(result(layer("Auth")), loaded(layer("Auth")))
    }


def test_a_percentile_is_told_where_it_changed_and_the_typical_time_did_not() -> None:
    def sentences(before: Result, after: Result) -> str:
        return " ".join(of_rows([*changed(before, after).values()], timed=False))

    assert "p99_us 90.0 → 500.0 µs" in sentences(tailed(50.0, 90.0), tailed(50.0, 500.0))
    assert "p99_us" not in sentences(tailed(50.0, 90.0), tailed(300.0, 500.0))
    same = without_implied([*changed(tailed(50.0, 90.0), tailed(50.0, 91.0)).values()])
    assert not any(change.quantity == "p99_us" for change in same)


@pytest.mark.parametrize(
    ("after", "word"), [({"rps": 2000.0}, "slower"), ({"rps": 9000.0}, "faster"), ({"rps": 5100.0}, "same")]
)
def test_fewer_requests_per_second_are_slower(after: dict[str, float], word: str) -> None:
    rps = {key: about(value) for key, value in after.items()}
    assert words(loaded(share(0.05)), loaded(share(0.05), **rps))["(total)", "rps"] == word


def test_latency_and_share_are_slower_when_they_rise() -> None:
    word_of = words(loaded(share(0.05)), loaded(share(0.2), p99_ms=about(90.0)))
    assert word_of["(total)", "p99_ms"] == "slower"
    assert word_of["Auth", "rps_share"] == "slower"
    assert word_of["(total)", "p50_ms"] == "same"


@pytest.mark.parametrize("said", [{"clients": 10}, {"server": "uvicorn 0.30 on uvloop"}, {"quiet": 2}])
def test_figures_under_another_load_are_not_comparable(said: dict[str, Any]) -> None:
    change_of = changed(loaded(share(0.05)), loaded(share(0.2), rps=about(900.0), **said))
    assert {change_of["(total)", "rps"].word, change_of["Auth", "rps_share"].word} == {"not comparable"}
    assert change_of["Auth", "us"].word == "same"


def test_a_share_of_processor_time_needs_no_quiet_rounds_and_no_other_clock_beside_it() -> None:
    processor, wall = ({"clock": clock} for clock in ("processor", "wall"))
    noisy = {"quiet": 0}
    change_of = changed(loaded(share(0.05, **processor), **noisy), loaded(share(0.2, **processor), **noisy))
    assert change_of["Auth", "rps_share"].word == "slower"
    assert change_of["(total)", "rps"].word == "not comparable"
    changed_clock = changed(loaded(share(0.05, **wall)), loaded(share(0.2, **processor)))["Auth", "rps_share"]
    assert changed_clock.word == "not comparable"
    assert changed_clock.reason == "it is a share of wall-clock time, then of processor time"


def test_a_machine_that_was_slow_under_load_explains_fewer_requests_per_second() -> None:
    slow = loaded(share(0.05), rps=about(3000.0), p50_ms=about(33.0), slowdown=1.5)
    assert words(loaded(share(0.05)), slow)["(total)", "rps"] == "unclear"
    assert words(loaded(share(0.05)), slow)["(total)", "p50_ms"] == "unclear"
    assert (
        words(loaded(share(0.05)), replace(slow, load=replace(slow.load, slowdown=1.0)))["(total)", "rps"] == "slower"
    )


def test_a_share_of_the_split_is_not_compared() -> None:
    assert ("Auth", "rps_share") not in words(loaded(share(0.05)), loaded(share(0.2, method="split")))


def test_changes_under_load_have_their_units() -> None:
    before, after = loaded(share(0.05)), loaded(share(0.2), rps=about(2000.0), p99_ms=about(90.0))
    text = " ".join(of_rows([*changed(before, after).values()], timed=False))
    assert "rps_share 5.0% → 20.0% (+15.0%)" in text
    assert "rps 5,000 → 2,000 (-3,000), p99_ms 40.0 → 90.0 ms (+50.0)" in text


def test_the_history_keeps_parts_and_figures_under_load() -> None:
    measured = replace(loaded(share(0.0512)), endpoint=EndpointReport((part("serialize"),)))
    (figures,) = read_line(line_of(one_run(measured))).requests.values()
    assert figures.load == figures_of(measured).load
    assert figures.rows["Auth"].figures["rps_share"].estimate == 0.0512
    assert figures.rows["(endpoint) serialize"].figures["us"] == about(20.0)


def test_charts_draw_what_is_known_under_load_and_parts_that_changed() -> None:
    def drawn(*results: Result) -> set[tuple[str, str]]:
        (past,) = over_time([history_run(RUN, [("t", result)]) for result in results]).values()
        data = charts(past)
        assert data is not None
        return {(chart["row"], chart["quantity"]) for chart in data["charts"]}

    first = replace(loaded(share(0.05)), endpoint=EndpointReport((part("serialize"),)))
    second = replace(first, endpoint=EndpointReport((part("serialize", 90.0),)))
    assert {("(total)", "requests/s"), ("(total)", "p99 ms"), ("Auth", "share of requests/s")} <= drawn(first, first)
    assert ("(endpoint) serialize", "µs") not in drawn(first, first)
    assert ("(endpoint) serialize", "µs") in drawn(first, second)


def test_the_past_has_no_points_of_another_load() -> None:
    runs = [history_run(RUN, [("t", loaded(share(0.05), **load))]) for load in ({"clients": 10}, {}, {})]
    (past,) = over_time(runs).values()
    (series,) = [series for series in past.series if series.quantity == "rps"]
    assert [point is not None for point in series.points] == [False, True, True]


# ---- reports -----------------------------------------------------------------------------------------------------


STREAM = replace(
    layer("Stream"),
    messages=Messages(PerMessage(100, about(3.0)), first_byte=about(7.0)),
    saves=Saves(about(55.0)),
    tails=Tails(2000, about(60.0), about(90.0)),
    trend=Trend(5000, about(2.0), slower=True, counted=400, later=4000, objects=3.0),
)


def test_junit_has_the_further_figures_of_the_worst_layer() -> None:
    junit_properties = dict(properties([result(STREAM)]))
    further = {
        key: value
        for key, value in junit_properties.items()
        if key.endswith(("saves_us", "message", "byte_us", "p99_us"))
    }
    assert further == {
        "mw_budget.worst_layer_saves_us": 55.0,
        "mw_budget.worst_layer_us_per_message": 3.0,
        "mw_budget.worst_layer_first_byte_us": 7.0,
        "mw_budget.worst_layer_p99_us": 90.0,
    }
    assert junit_properties["mw_budget.worst_layer_us_per_1000"] == 2.0
    assert junit_properties["mw_budget.worst_layer_lasting"] == 3.0


def test_junit_has_the_worst_part_of_the_endpoint() -> None:
    over = part("serialize", 90.0, judged={"us": Judged(50.0, "fail")})
    junit_properties = dict(properties([opened(part("handler", 300.0), over)]))
    assert junit_properties["mw_budget.worst_part"] == "serialize"
    assert junit_properties["mw_budget.worst_part_us"] == 90.0
    assert "mw_budget.worst_part" not in dict(properties([result(layer("Auth"))]))


def test_junit_has_the_figures_under_load_and_the_layer_over_its_share() -> None:
    over = replace(share(0.05), layer=Layer(1, "Over", "shop.Over", "middleware"))
    assert over.load is not None
    over = replace(over, load=replace(over.load, judged=Judged(0.01, "fail")))
    measured = loaded(share(0.3))
    measured = replace(measured, layers=(*measured.layers, over))
    assert {key: value for key, value in properties([measured]) if key.startswith("mw_budget.load_")} == {
        "mw_budget.load_clients": 100,
        "mw_budget.load_rps": 5000.0,
        "mw_budget.load_p50_ms": 20.0,
        "mw_budget.load_p99_ms": 40.0,
        "mw_budget.load_worst_layer": "Over",
        "mw_budget.load_worst_layer_rps_share": 0.05,
    }


def test_the_page_has_one_table_of_an_app_under_load_and_sorts_its_budgets_by_number() -> None:
    judged = Judged(0.05, "pass")
    shown = replace(loaded(share(0.04, judged=judged)), endpoint=EndpointReport((part("handler"),)))
    page = read_page(html(one_run(shown)))
    titles = [title.text for title in page.all("h3")]
    assert "Time inside the endpoint" in titles
    (table,) = (table for table in page.all("table") if any("load" in name for name in table.classes))
    assert [title for title in titles if "nder load" in title] == ["Under load, 100 clients"]
    budget = table.all("tbody")[0].all("td")[2]
    assert (budget.text, budget.attributes["data-value"]) == ("5.0%", "0.05")


def test_the_json_of_every_figure_keeps_the_schema_and_is_read_again() -> None:
    before, after = loaded(share(0.05), slowdown=1.2), loaded(share(0.2), rps=about(2000.0))
    measured = replace(after, layers=(*after.layers, STREAM), endpoint=EndpointReport((part("serialize"),)))
    measured = replace(measured, changes=(*changed(before, after).values(),))
    assert misfits(written(measured)) == []
    again = codec.result(codec.measurement("t", measured))
    assert (again.load, again.layers[1].trend) == (measured.load, STREAM.trend)
    assert [row.estimates for row in again.rows(parts=True)] == [row.estimates for row in measured.rows(parts=True)]


def test_markdown_has_columns_by_message_only_where_messages_pass() -> None:
    shown = render(one_run(result(STREAM)))
    assert "| saves µs | µs/message | 1st byte µs |" in shown
    assert "| 3.00 (2.94 … 3.06) | 7.00 (6.86 … 7.14) |" in shown
    assert "µs/message" not in render(one_run(result(layer("Auth"))))


def test_an_interval_without_an_end_has_no_half_width() -> None:
    open_end = replace(layer("Auth"), saves=Saves(Estimate(5.0, 4.0, float("inf"))))
    (row,) = [row for row in view(result(open_end)).rows if row.name == "Auth"]
    assert row.figures["saves_us"].with_half_width == "5.00 ± ?"
