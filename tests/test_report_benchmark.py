"""JSON of pytest-benchmark, read as benchmark trackers do, and by pytest-benchmark itself if installed."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from pytest_mwbudget.model.estimate import Estimate
from pytest_mwbudget.model.results import Books, RequestLine, Result
from pytest_mwbudget.report.benchmark import MAX_NAME, document

from .canned import RUN, but, one_run
from .test_report_terminal import FAILING, NONE, PASSING, counted, layer_row, row, timed, us

FOUND = timed(counted(PASSING, FAILING))
NODEID = "tests/test_shop.py::test_health[before]"


def written(*results: Result, nodeid: str = NODEID) -> Any:
    return document(one_run(*results, nodeid=nodeid))


def rows(*results: Result, **rest: Any) -> dict[str, Any]:
    """Return the benchmarks by full name, and check that the names are unique."""
    benchmarks = written(*results, **rest)["benchmarks"]
    by_name = {benchmark["fullname"]: benchmark for benchmark in benchmarks}
    assert len(by_name) == len(benchmarks)
    return by_name


def github_action_benchmark(data: Any) -> list[tuple[str, float, str, str]]:
    """Return name, value, range and extra as the tool `pytest` of github-action-benchmark reads them."""
    return [
        (
            benchmark["fullname"],
            benchmark["stats"]["ops"],
            f"stddev: {benchmark['stats']['stddev']}",
            f"mean: {benchmark['stats']['mean']} sec, rounds: {benchmark['stats']['rounds']}",
        )
        for benchmark in data["benchmarks"]
    ]


def bencher(data: Any, average: str) -> dict[str, tuple[float, float, float]]:
    """Return value, lower and upper value in nanoseconds as Bencher's adapter `python_pytest` reads them."""
    assert isinstance(data["machine_info"], dict)
    assert isinstance(data["commit_info"], dict)
    middle, spread = {"mean": ("mean", "stddev"), "median": ("median", "iqr")}[average]
    values = {}
    for benchmark in data["benchmarks"]:
        value, width = benchmark["stats"][middle] * 1e9, benchmark["stats"][spread] * 1e9
        values[benchmark["fullname"]] = (value, value - width, value + width)
    return values


def test_every_layer_and_the_whole_request_is_a_benchmark() -> None:
    assert list(rows(FOUND)) == [
        f"{NODEID} GET /health GZipMiddleware",
        f"{NODEID} GET /health AuthMiddleware",
        f"{NODEID} GET /health (total)",
    ]
    benchmark = rows(FOUND)[f"{NODEID} GET /health GZipMiddleware"]
    assert (benchmark["group"], benchmark["name"]) == (f"{NODEID} GET /health", "GZipMiddleware")


def test_github_action_benchmark_charts_requests_in_a_second() -> None:
    name, value, spread, extra = github_action_benchmark(written(FOUND))[0]
    assert name.endswith("GZipMiddleware")
    assert value == pytest.approx(1 / 17.9e-6)
    assert float(spread.removeprefix("stddev: ")) == pytest.approx(0.4e-6)
    assert extra.endswith("rounds: 960")


@pytest.mark.parametrize("average", ["mean", "median"])
def test_bencher_charts_the_estimate_and_shows_at_least_the_interval(average: str) -> None:
    value, low, high = bencher(written(FOUND), average)[f"{NODEID} GET /health AuthMiddleware"]
    assert value == pytest.approx(117_250)
    assert low <= 116_850.1
    assert high >= 117_649.9


def test_an_interval_that_is_longer_on_one_side_is_covered() -> None:
    skew = replace(PASSING, us=Estimate(10.0, 9.5, 13.0))
    stats = rows(timed(counted(skew)))[f"{NODEID} GET /health GZipMiddleware"]["stats"]
    assert stats["stddev"] == pytest.approx(3e-6)
    assert (stats["min"], stats["q1"], stats["q3"], stats["max"]) == pytest.approx((9.5e-6, 9.5e-6, 13e-6, 13e-6))
    assert stats["iqr"] == pytest.approx(3.5e-6)


@pytest.mark.parametrize("estimate", [-0.3, 0.0, 0.05])
def test_what_cannot_be_told_from_nothing_stands_as_the_floor(estimate: float) -> None:
    benchmark = rows(timed(counted(row(0, "Noop", estimate))))[f"{NODEID} GET /health Noop"]
    assert benchmark["stats"]["mean"] == benchmark["stats"]["median"] == pytest.approx(0.12e-6)
    assert benchmark["stats"]["ops"] == pytest.approx(1 / 0.12e-6)
    assert 0 <= benchmark["stats"]["min"] <= benchmark["stats"]["mean"] <= benchmark["stats"]["max"]
    assert benchmark["extra_info"] == {"estimate_us": estimate, "interval_us": [estimate - 0.4, estimate + 0.4]}


def test_nothing_is_divided_by_zero_without_a_floor() -> None:
    result = replace(timed(counted(row(0, "Noop", 0.0))), floor_us=0.0)
    assert math.isfinite(rows(result)[f"{NODEID} GET /health Noop"]["stats"]["ops"])


def test_the_numbers_agree_with_each_other() -> None:
    for benchmark in written(FOUND)["benchmarks"]:
        stats = benchmark["stats"]
        assert stats["ops"] == pytest.approx(stats["rounds"] / stats["total"])
        assert stats["iqr"] == pytest.approx(stats["q3"] - stats["q1"])
        assert stats["iterations"] == 1


def test_rows_without_an_interval_are_left_out() -> None:
    unknown = replace(PASSING, us=Estimate(0.0, -math.inf, math.inf))
    merged = row(1, "Merged", None, merged_with="GZipMiddleware")
    assert list(rows(timed(counted(unknown, merged)))) == [f"{NODEID} GET /health (total)"]
    nothing = but(timed(counted(PASSING)), books=Books(unknown.us, us(0.6), None, math.nan))
    assert list(rows(nothing)) == [f"{NODEID} GET /health GZipMiddleware"]


def test_a_run_without_times_has_no_benchmarks() -> None:
    assert written(counted(layer_row(counts=NONE)))["benchmarks"] == []


def test_names_are_those_of_the_last_run_also_where_a_request_is_made_twice_or_a_layer_is_new() -> None:
    other = replace(FOUND, request=RequestLine("GET", "/search"))
    first = rows(FOUND, other, FOUND)
    more = replace(FOUND, layers=(row(0, "New", 3.0), *FOUND.layers))
    assert set(first) < set(rows(more, other, more))
    assert f"{NODEID} GET /health #2 (total)" in first


def test_a_name_is_no_longer_than_bencher_takes_it() -> None:
    result = replace(FOUND, request=RequestLine("GET", "/" + "x" * 3000))
    assert [name[-14:] for name in rows(result)] == ["GZipMiddleware", "AuthMiddleware", "xxxxxx (total)"]
    assert max(map(len, rows(result))) == MAX_NAME


def test_the_time_of_the_run_is_that_of_the_document() -> None:
    assert written(FOUND)["datetime"] == RUN.created


def test_pytest_benchmark_has_the_same_keys_and_can_compare_two_files(tmp_path: Any, capsys: Any) -> None:
    stats = pytest.importorskip("pytest_benchmark.stats")
    cli = pytest.importorskip("pytest_benchmark.cli")
    benchmark = written(FOUND)["benchmarks"][0]
    assert {*stats.Stats.fields, "iterations"} == benchmark["stats"].keys()
    assert {"group", "name", "fullname", "params", "param", "extra_info", "options", "stats"} == benchmark.keys()
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    for path in paths:
        path.write_text(json.dumps(written(FOUND)), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["py.test-benchmark", "compare", *map(str, paths)])
        patch.chdir(tmp_path)
        cli.main()
    assert "AuthMiddleware" in capsys.readouterr().out
