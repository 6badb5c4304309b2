"""`mwbudget compare`, and `render` with several files."""

from __future__ import annotations

import io
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt

from pytest_mwbudget.__main__ import main
from pytest_mwbudget.comparison.run_sets import merged
from pytest_mwbudget.comparison.two_runs import compare
from pytest_mwbudget.model.changes import Since
from pytest_mwbudget.model.measured_run import MeasuredRun
from pytest_mwbudget.model.results import Count, RequestLine, Result
from pytest_mwbudget.report import gfm
from pytest_mwbudget.report.comparison import for_page, left_out
from pytest_mwbudget.storage import codec

from .canned import RUN
from .test_comparison import counts, layer, result, stored

pytestmark = pytest.mark.once

BEFORE = result(layer("Auth", 100.0, counts=counts(objects=Count(512, 512, 512))), layer("Cors", 8.0))
AFTER = result(layer("Auth", 150.0, counts=counts(objects=Count(518, 518, 518))), layer("Cors", 8.1))
OTHER = replace(BEFORE, request=RequestLine("GET", "/other"))


def write(path: str, *found: tuple[str, Result], **said: Any) -> str:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(codec.text(codec.document(MeasuredRun(replace(RUN, **said), found))), encoding="utf-8")
    return path


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")


@pytest.fixture
def files() -> tuple[str, str]:
    return write("a.json", ("t", BEFORE), ("u", OTHER)), write("b.json", ("t", AFTER), ("u", OTHER))


def test_other_files_of_this_package_in_a_directory_are_passed_over(files: tuple[str, str]) -> None:
    Path("before").mkdir()
    Path("a.json").rename("before/a.json")
    Path("before/mw-budgets.json").write_text('{"schema": "pytest-mwbudget-limits/1"}')
    Path("before/history.json").write_text('{"schema": "pytest-mwbudget-history/1"}')
    assert main(["compare", "before", "b.json"]) == 0


def test_a_figure_is_printed_where_an_arrow_cannot_be(files: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="cp1252", write_through=True))
    assert main(["compare", *files]) == 0
    assert b"Auth: objects 512 \\u2192 518 (+6)" in written.getvalue()


def test_each_row_has_both_figures_the_change_and_a_word(
    files: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", *files]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("compared with a.json, commit aaaaaaaaaa, 20")
    assert any(line.startswith("t GET /health: 1 slower, ") for line in lines)
    (auth,) = [line.split() for line in lines if line.startswith("Auth ") and "slower" in line]
    assert auth == ["Auth", "100.0", "150.0", "+50.0", "+50.0%", "+34.4", "…", "+65.6", "slower"]
    assert "Auth: objects 512 → 518 (+6)" in lines


def test_what_grew_by_more_than_is_allowed_is_named_and_gives_status_1(
    files: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", *files, "--fail", "us:10%,objects:0"]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "t GET /health: Auth us 100.0 → 150.0 µs, +50.0 (+50.0%, +34.4 … +65.6); allowed: us:10% [grown]" in out
    assert "t GET /health: Auth objects 512 → 518, +6 (+1.2%); allowed: objects:0 [grown]" in out
    assert main(["compare", *files, "--fail", "us:60%,objects:10"]) == 0
    assert main(["compare", files[1], files[0], "--fail", "us:0,objects:0"]) == 0, "what became less is allowed"


def test_a_gate_without_a_common_request_has_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", write("a.json", ("t", BEFORE)), write("b.json", ("v", BEFORE)), "--fail=us:10%"]) == 1
    assert "no request is in both runs" in capsys.readouterr().out


def test_directories_and_saved_names_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    write(".mw-budget/saved/main.json", ("t", BEFORE), ("u", OTHER))
    write("new/one/a.json", ("t", AFTER))
    write("new/two/a.json", ("u", OTHER))
    assert main(["compare", "main", "new", "--fail", "objects:0"]) == 1
    out = capsys.readouterr().out
    assert out.startswith("compared with main, commit")
    assert "u GET /other: " in out


def test_the_markdown_has_what_grew_and_the_requests_that_changed(files: tuple[str, str]) -> None:
    assert main(["compare", *files, "--fail=us:10%", "--markdown", "out/c.md"]) == 1
    text = Path("out/c.md").read_text(encoding="utf-8")
    assert text.startswith("## mw-budget: 1 slower, 1 more, ")
    assert "| <code>Auth</code> | 100.0 | 150.0 | +50.0 +50.0% | +34.4 … +65.6 | **slower** |" in text
    assert "- Auth: objects 512 → 518 (+6)" in text
    assert "allowed: us:10% &#91;grown&#93;" in text
    assert "<summary>1 request without a certain change</summary>" in text
    assert text.count("###") == 1


def test_the_markdown_fits_into_a_comment_and_says_what_it_left_out() -> None:
    before, after = (merged({"a": stored(*((f"t{n}", side) for n in range(400)))}) for side in (BEFORE, AFTER))
    text = gfm.render(for_page(compare(before, after), Since("a")), 20_000, partial(left_out, "mwbudget compare"))
    assert 15_000 < len(text.encode()) <= 20_000
    assert "more sections are left out: there is no room here." in text


def test_no_name_of_the_app_becomes_markup() -> None:
    odd = "<script>|`*x*`@user"
    before, after = (result(layer(odd, us)) for us in (10.0, 90.0))
    sides = (merged({name: stored((odd, side))}) for name, side in (("a", before), ("b", after)))
    text = gfm.render(for_page(compare(*sides), Since(odd)))
    html = MarkdownIt("gfm-like", {"html": True, "linkify": False}).render(text)
    assert "<script>" not in html
    assert "<em>" not in html
    assert html.count("</tr>") == 1 + 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nope", "b.json"], "'nope' is neither a run saved in '.mw-budget/saved' nor a file or directory. No run is"),
        (["a.json", "empty"], "the directory 'empty' has no results; give a file that --mw-budget-json wrote"),
        (["a.json", "b.json", "--fail", "us"], "--fail='us' has the part 'us'; write QUANTITY:GROWTH"),
        (["a.json", "b.json", "--markdown", "a.json"], "--markdown='a.json' is the same file as 'a.json'"),
        (["a.json", "b.json", "--markdown", "."], "--markdown='.' cannot be written: "),
        (["a.json", "bad.json"], "'bad.json' is not a whole result (KeyError: 'created')"),
    ],
)
def test_errors_name_the_value_and_the_remedy(
    arguments: list[str], message: str, files: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("empty").mkdir()
    Path("bad.json").write_text('{"schema": "pytest-mwbudget/1"}', encoding="utf-8")
    assert main(["compare", *arguments]) == 2
    out, error = capsys.readouterr()
    assert (out, error.startswith(f"error: {message}")) == ("", True), error


# ---- render ---------------------------------------------------------------------------------------------------------


def test_several_files_are_rendered_as_one(capsys: pytest.CaptureFixture[str]) -> None:
    write("a.json", ("t", BEFORE))
    write("shards/b.json", ("u", OTHER))
    assert main(["render", "a.json", "shards"]) == 0
    out, error = capsys.readouterr()
    assert "t GET /health" in out
    assert "u GET /other" in out
    assert error == ""


def test_a_request_in_several_files_is_said_and_the_newest_counts(capsys: pytest.CaptureFixture[str]) -> None:
    write("a.json", ("t", AFTER), created="2026-11-23T10:00:00+00:00")
    write("b.json", ("t", BEFORE), created="2026-11-22T10:00:00+00:00")
    assert main(["render", "a.json", "b.json", "--markdown=mw.md"]) == 0
    assert "note: t GET /health: in 2 files (b.json, a.json); the newest counts, a.json" in capsys.readouterr().err
    text = Path("mw.md").read_text(encoding="utf-8")
    assert "150.0" in text
    assert "100.0" not in text


def test_the_same_test_on_two_interpreters_is_two_requests() -> None:
    for python in ("3.12.1", "3.13.1"):
        write(f"{python}.json", ("t", BEFORE), python=python)
    assert main(["render", "3.12.1.json", "3.13.1.json", "--markdown=mw.md"]) == 0
    text = Path("mw.md").read_text(encoding="utf-8")
    assert "t (CPython 3.12, Linux, loop asyncio)" in text
    assert "t (CPython 3.13, Linux, loop asyncio)" in text
    assert "3.12.1, 3.13.1" in text
