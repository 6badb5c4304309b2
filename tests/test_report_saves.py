"""What leaving a layer out saves, in every report."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from pytest_mwbudget.model.estimate import Estimate
from pytest_mwbudget.model.results import Result
from pytest_mwbudget.model.saves import UNREAD, Saves
from pytest_mwbudget.report.html import render as html
from pytest_mwbudget.report.markdown import render as markdown
from pytest_mwbudget.storage import codec

from .canned import one_run
from .test_report_terminal import counted, layer_row, lines, row, timed

WHY = "the app answers 401 without it"
GZIP = replace(row(0, "GZip", 19.7, 50), saves=Saves(Estimate(26.31, 25.6, 26.9)))
AUTH = replace(row(1, "Auth", 8.0), saves=Saves(None, WHY))
READ = timed(counted(layer_row()), GZIP, AUTH)
UNREAD_RESULT = timed(counted(layer_row()), row(0, "GZip", 19.7, 50))


def test_the_terminal_shows_it_with_v_only() -> None:
    shown = lines(READ, verbose=True)
    assert shown[0].split() == ["layer", "µs/request", "interval", "saves", "budget", "verdict"]
    assert shown[2].split() == ["GZip", "19.7", "19.3", "…", "20.1", "26.3", "±", "0.71", "50", "pass"]
    place = next(number for number, line in enumerate(shown) if line.startswith("Auth"))
    assert shown[place].split() == ["Auth", "8.00", "7.60", "…", "8.40", "-"]
    assert f"  saves: {WHY}" in shown[place:]
    assert "saves" not in "\n".join(lines(READ))
    assert "saves" not in "\n".join(lines(UNREAD_RESULT, verbose=True))
    assert max(map(len, shown)) < 80


def test_the_json_has_it_or_the_reason_and_is_read_back() -> None:
    data = json.loads(json.dumps(codec.measurement("t", READ)))
    gzip, auth = data["layers"]
    assert gzip["saves_us"] == {"estimate": 26.31, "low": 25.6, "high": 26.9}
    assert "saves_us" not in gzip["why"]
    assert auth["saves_us"] is None
    assert auth["why"]["saves_us"] == WHY
    assert [layer.saves for layer in codec.result(data).layers] == [GZIP.saves, AUTH.saves]
    assert codec.measurement("t", codec.result(data)) == data


@pytest.mark.parametrize(
    ("result", "why"),
    [
        (UNREAD_RESULT, UNREAD),
        (counted(layer_row()), "every budget is a count, so nothing was timed"),
    ],
)
def test_where_nobody_reads_it_the_json_says_so(result: Result, why: str) -> None:
    data = codec.measurement("t", result)
    assert data["layers"][0]["saves_us"] is None
    assert data["layers"][0]["why"]["saves_us"] == why
    assert codec.result(data).layers[0].saves is None


def test_html_and_markdown_have_a_column_where_it_is_known() -> None:
    page = markdown(one_run(READ))
    assert "| tasks | saves µs |\n" in page
    assert "| 26.3 (25.6 … 26.9) |\n" in page
    assert "saves µs" not in markdown(one_run(UNREAD_RESULT))
    pytest.importorskip("jinja2")
    page = html(one_run(READ))
    assert "saves µs" in page
    assert ">26.3 ± 0.71</td>" in page
    assert WHY in page
    page = html(one_run(UNREAD_RESULT))
    assert "saves µs" not in page
    assert "saves_us" not in page
