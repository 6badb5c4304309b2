"""The history of runs: its lines, appending from several processes, what changed when, and the charts."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_mwbudget.__main__ import main
from pytest_mwbudget.comparison.figures import figures_of
from pytest_mwbudget.comparison.history import HistoryRun, Past, history_run, over_time
from pytest_mwbudget.model.estimate import Estimate
from pytest_mwbudget.model.measured_run import MeasuredRun
from pytest_mwbudget.model.results import Count, Result
from pytest_mwbudget.model.runs import Commit
from pytest_mwbudget.report.charts import charts
from pytest_mwbudget.report.html import render
from pytest_mwbudget.storage.history import append, line_of, read, read_line

from .canned import RUN as CANNED
from .canned import as_json, one_run
from .test_comparison import RUN, about, counts, layer, result
from .test_report_json import RESULTS

pytestmark = pytest.mark.once


def run(number: int, us: float | Estimate = 50.0, objects: int = 100, **said: Any) -> HistoryRun:
    """Return the run of a commit, whose only layer takes so long and creates so many objects."""
    measurement = result(layer("Auth", us, counts=counts(objects=Count(objects, objects, objects))))
    commit = Commit(f"{number:040x}", False)
    day = f"2026-11-{number + 1:02}T10:00:00+00:00"
    return history_run(replace(RUN, created=day, commit=commit, **said), [("t", replace(measurement, loop="asyncio"))])


def past(history: Sequence[HistoryRun]) -> Past:
    (request_past,) = over_time(history).values()
    return request_past


def steps(history: Sequence[HistoryRun], quantity: str = "us") -> list[tuple[int, str]]:
    (series,) = [
        row_series for row_series in past(history).series if (row_series.row, row_series.quantity) == ("Auth", quantity)
    ]
    return [(step.place, step.change.word) for step in series.steps]


# ---- what changed when ---------------------------------------------------------------------------------------------


def test_a_count_changes_at_the_run_at_which_it_did():
    runs = [run(n, objects=many) for n, many in enumerate((100, 100, 101, 101, 90))]
    assert steps(runs, "objects") == [(2, "more"), (4, "fewer")]


def test_a_time_changes_only_where_the_intervals_prove_it():
    assert steps([run(n, us) for n, us in enumerate((50.0, 51.0, 49.0, 80.0, 81.0))]) == [(3, "slower")]
    assert steps([run(n, about(us, 0.5)) for n, us in enumerate((50.0, 51.0, 49.0, 80.0, 81.0))]) == []


def test_a_slow_drift_is_seen_once_it_is_certain():
    drifting = [run(n, 50.0 * 1.04**n) for n in range(12)]
    (first, word), *_ = steps(drifting)
    assert word == "slower"
    assert 2 < first < 8


def test_a_run_with_wide_intervals_hides_no_later_change():
    wide = about(50.0, 0.6)
    assert steps([run(0, wide), run(1, 50.0), run(2, 80.0)]) == [(2, "slower")]
    assert steps([run(0, 50.0), run(1, wide), run(2, 80.0)]) == [(2, "slower")]


def test_times_of_another_processor_are_left_out_and_its_counts_are_drawn():
    request_past = past([run(0, 90.0, objects=99, processor="Xeon"), run(1, 50.0), run(2, 50.0)])
    points = {series.quantity: series.points for series in request_past.series if series.row == "Auth"}
    assert points["us"] == (None, about(50.0), about(50.0))
    assert [point.estimate for point in points["objects"] if point] == [99, 100, 100]


def test_runs_of_another_interpreter_are_left_out():
    assert len(past([run(0, python="3.12.1"), run(1), run(2)]).runs) == 2


def test_only_requests_of_the_newest_run_are_drawn():
    other = history_run(replace(RUN, created="2026-11-01T00:00:00+00:00"), [("gone", result())])
    assert [key.nodeid for key in over_time([other, run(1)])] == ["t"]
    assert over_time([]) == {}


def test_a_layer_that_is_new_has_no_earlier_points():
    before = history_run(replace(RUN, created="2026-11-01T00:00:00+00:00"), [("t", result())])
    (series,) = [
        row_series
        for row_series in past([before, run(1)]).series
        if (row_series.row, row_series.quantity) == ("Auth", "us")
    ]
    assert series.points == (None, about(50.0))
    assert series.steps == ()


# ---- the file -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RESULTS)
def test_a_line_has_every_figure(name: str):
    measurement: Result = RESULTS[name]
    text = line_of(one_run(measurement))
    assert text.endswith("\n")
    assert text.count("\n") == 1
    back = read_line(text)
    assert back.run == CANNED
    (figures,) = back.requests.values()
    expected = figures_of(measurement)
    assert list(figures.rows) == list(expected.rows)
    assert (figures.slowdown, figures.reference_ns) == (expected.slowdown, expected.reference_ns)
    for row, kept in expected.rows.items():
        for quantity, us in kept.figures.items():
            read_back = figures.rows[row].figures[quantity]
            if math.isfinite(us.estimate) and us.bounded:
                assert (read_back.estimate, read_back.low, read_back.high) == pytest.approx(
                    (us.estimate, us.low, us.high), abs=0.001
                )
            else:
                assert not read_back.bounded


def test_runs_are_read_oldest_first(tmp_path: Path):
    """As git's merge=union joins two branches, all lines of one come before those of the other."""
    path = tmp_path / "history.jsonl"
    days = (
        "2026-01-02T00:00:00+00:00",
        "2026-01-04T00:00:00+00:00",
        "2026-01-01T12:00:00+05:00",
        "2026-01-03T00:00:00",
    )
    for day in days:
        append(path, line_of(MeasuredRun(replace(RUN, created=day), ())))
    runs, remarks = read(path)
    assert [stored.run.created for stored in runs] == [days[2], days[0], days[3], days[1]]
    assert remarks == []


def test_lines_are_appended_and_read_in_order(tmp_path: Path):
    file = tmp_path / "deep" / "history.jsonl"
    for nodeid in ("a", "b"):
        append(file, line_of(one_run(result(), nodeid=nodeid)))
    runs, remarks = read(file)
    assert [key.nodeid for run in runs for key in run.requests] == ["a", "b"]
    assert remarks == []


# A line with a number that no float can be.
NUMBERS = re.sub(r'"slowdown":[^,]*', f'"slowdown":1{"0" * 400}', line_of(one_run(result()))).strip()


@pytest.mark.parametrize(
    "broken",
    [
        '{"schema": "pytest-mwbud',
        "<<<<<<< ours",
        "[]",
        '{"schema": "other/1"}',
        '{"schema": 5}',
        "[" * 9999,
        "\x00",
        NUMBERS,
    ],
)
def test_a_broken_line_is_reported_and_the_others_are_read(tmp_path: Path, broken: str):
    file = tmp_path / "history.jsonl"
    good = line_of(one_run(result(), nodeid="a"))
    append(file, good)
    with file.open("a", encoding="utf-8") as out:
        out.write(broken)  # a run that was killed leaves no line break
    append(file, good)
    runs, remarks = read(file)
    assert len(runs) == 2
    (remark,) = remarks
    assert remark.startswith(f"line 2 of {str(file)!r} is left out: ")
    assert remark.endswith("[history]")


APPEND = """
import sys
from pathlib import Path
from pytest_mwbudget.storage.history import append
for number in range(20):
    append(Path(sys.argv[1]), sys.argv[2] * 5000 + chr(10))
"""


def test_processes_that_append_at_the_same_time_keep_all_lines_whole(tmp_path: Path):
    file = tmp_path / "history.jsonl"
    writers = [subprocess.Popen([sys.executable, "-c", APPEND, str(file), letter]) for letter in "abc"]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    lines = file.read_text(encoding="utf-8").splitlines()
    assert sorted(lines) == sorted(letter * 5000 for letter in "abc" for _ in range(20))


# ---- the charts ---------------------------------------------------------------------------------------------------


def test_times_and_counts_that_changed_are_drawn():
    drawn = charts(past([run(0), run(1, 80.0, objects=101), run(2, 80.0, objects=101)]))
    assert drawn is not None
    assert drawn["about"].startswith("3 runs, from commit 0000000000 of 2026-11-01 to commit 0000000000 of 2026-11-03")
    names = [(chart["row"], chart["quantity"]) for chart in drawn["charts"]]
    assert ("Auth", "µs") in names
    assert ("Auth", "objects") in names
    assert ("Auth", "tasks") not in names, "it never changed"
    (auth,) = [chart for chart in drawn["charts"] if (chart["row"], chart["quantity"]) == ("Auth", "µs")]
    assert [mark["tone"] for mark in auth["marks"]] == ["", "worse", ""]
    assert [mark["to"] is None for mark in auth["marks"]] == [False, False, True]
    assert auth["steps"] == [("worse", "commit 0000000000 of 2026-11-02: +30.0 slower")]
    assert auth["latest"] == "80.0"
    positions = [float(mark[key].rstrip("%")) for mark in auth["marks"] for key in ("x", "y", "low", "high")]
    assert all(0 <= position <= 100 for position in positions)
    assert positions[1] > positions[5], "what is slower is higher up"


def test_a_single_run_has_no_charts():
    assert charts(past([run(0)])) is None


def test_the_page_draws_the_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    pytest.importorskip("jinja2")
    monkeypatch.chdir(tmp_path)
    whole = one_run(result(layer("Auth", 80.0)))
    Path("mw.json").write_text(json.dumps(as_json(whole)), encoding="utf-8")
    earlier = one_run(result(layer("Auth", 50.0)))
    for measured_run in (earlier, whole):
        append(Path("history.jsonl"), line_of(measured_run))
    with Path("history.jsonl").open("a", encoding="utf-8") as out:
        out.write("broken\n")
    assert main(["render", "mw.json", "--html=mw.html", "--history=history.jsonl"]) == 0
    assert capsys.readouterr().err.startswith("note: line 3 of 'history.jsonl' is left out: ")
    page = Path("mw.html").read_text(encoding="utf-8")
    assert "Over time" in page
    assert "commit aaaaaaaaaa of 20" in page
    assert "+30.0 slower" in page
    assert "Over time" not in render(whole)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--history=nope.jsonl", "--html=mw.html"], "--history='nope.jsonl' cannot be read: "),
        (["--history=nope.jsonl"], "--history='nope.jsonl' is drawn on the HTML page; add --html=PATH"),
    ],
)
def test_a_history_that_cannot_be_drawn_is_an_error(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.chdir(tmp_path)
    Path("mw.json").write_text(json.dumps(as_json(one_run())), encoding="utf-8")
    assert main(["render", "mw.json", *arguments]) == 2
    assert capsys.readouterr().err.startswith(f"error: {message}")
