"""The output files of a run: a path that cannot be written is reported before the tests run."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import pytest_mwbudget.session.artifacts
from pytest_mwbudget.errors import SettingError
from pytest_mwbudget.session.artifacts import JSON, RENDERED, Output, check_distinct

from .canned import as_json, one_run
from .test_report_schema import PROFILED

EVERY = {output.name: output for output in (JSON, *RENDERED)}
HTML = EVERY["html"]
DATA = one_run(PROFILED, nodeid="tests/test_shop.py::test_health")


@pytest.mark.parametrize("output", EVERY.values(), ids=EVERY)
def test_each_writes_what_it_is_called(output: Output, tmp_path: Path) -> None:
    if output.package is not None:
        pytest.importorskip(output.package)
    path = tmp_path / "file"
    output.write(path, DATA)
    text = path.read_text(encoding="utf-8")
    assert "GZipMiddleware" in text
    begin = {
        "json": '{\n "schema": ',
        "html": "<!doctype html>",
        "markdown": "## ",
        "benchmark-json": '{\n "machine_info"',
    }
    assert text.lower().startswith(begin[output.name])


def test_what_is_written_as_json_is_the_document(tmp_path: Path) -> None:
    JSON.write(tmp_path / "mw.json", DATA)
    assert json.loads((tmp_path / "mw.json").read_text(encoding="utf-8")) == as_json(DATA)


def test_a_page_links_to_flamegraphs_from_where_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jinja2")
    monkeypatch.chdir(tmp_path)
    for path, link in (
        (tmp_path / "mw.html", '".mw-budget/test_it-1.html"'),
        (tmp_path / "reports" / "mw.html", '"../.mw-budget/test_it-1.html"'),
        (Path("reports", "deep", "mw.html"), '"../../.mw-budget/test_it-1.html"'),
    ):
        HTML.check(path, "--html")
        HTML.write(path, DATA)
        assert f"href={link}" in path.read_text(encoding="utf-8")


def test_a_flamegraph_on_another_drive_keeps_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jinja2")

    def relpath(path: str, start: str) -> str:
        raise ValueError("path is on mount 'D:', start on mount 'C:'")

    monkeypatch.setattr(os.path, "relpath", relpath)
    HTML.write(tmp_path / "mw.html", DATA)
    assert 'href=".mw-budget/test_it-1.html"' in (tmp_path / "mw.html").read_text(encoding="utf-8")


def test_a_check_leaves_nothing_behind_and_keeps_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "mw.json"
    JSON.check(path, "--mw-budget-json='a/b/mw.json'")
    assert list(tmp_path.iterdir()) == []
    JSON.write(path, DATA)
    path.write_text("before")
    JSON.check(path, "--mw-budget-json='a/b/mw.json'")
    assert path.read_text() == "before"


def test_a_file_is_there_as_a_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mw.json"
    path.write_text("before")
    path.chmod(0o640)

    def killed(self: Path, target: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            JSON.write(path, DATA)
    assert path.read_text() == "before"
    JSON.write(path, DATA)
    assert json.loads(path.read_text(encoding="utf-8")) == as_json(DATA)
    assert path.stat().st_mode & 0o777 == 0o640
    assert [one.name for one in tmp_path.iterdir()] == ["mw.json"]


def test_a_new_file_has_the_mode_that_any_file_gets(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("")
    JSON.write(tmp_path / "mw.json", DATA)
    assert (tmp_path / "mw.json").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_where_no_file_can_take_its_place_it_is_written_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(self: Path, target: Path) -> None:
        raise OSError(16, "Device or resource busy")

    monkeypatch.setattr(Path, "replace", busy)
    with pytest.raises(OSError, match="busy"):
        JSON.write(tmp_path / "mw.json", DATA)
    (tmp_path / "mw.json").write_text("before")
    JSON.write(tmp_path / "mw.json", DATA)
    assert json.loads((tmp_path / "mw.json").read_text(encoding="utf-8")) == as_json(DATA)
    assert [one.name for one in tmp_path.iterdir()] == ["mw.json"]


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("mw.json")
    JSON.check(tmp_path / "link", "--json")
    JSON.write(tmp_path / "link", DATA)
    assert (tmp_path / "link").is_symlink()
    assert json.loads((tmp_path / "mw.json").read_text(encoding="utf-8")) == as_json(DATA)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_written_to_and_stays_one(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    JSON.check(path, "--json")
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    JSON.write(path, one_run())
    assert json.loads(os.read(reader, 1 << 16))["measurements"] == []
    os.close(reader)
    assert path.is_fifo()


def test_a_path_that_cannot_be_written_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "file" / "mw.json", tmp_path / "file" / "a" / "mw.json", tmp_path / ("x" * 300)):
        with pytest.raises(SettingError, match=r"^--json='x' cannot be written: .*; give the path of a file to write$"):
            JSON.check(path, "--json='x'")


def test_two_names_of_one_file_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    check_distinct({"--json='a'": Path("a"), "--html='b/a'": Path("b/a")})
    for path in (tmp_path / "a", Path("b/../a")):
        with pytest.raises(
            SettingError, match=r"^--html='x' is the same file as --json='a'; give each file its own path$"
        ):
            check_distinct({"--json='a'": Path("a"), "--html='x'": path})


def test_a_missing_package_is_named_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pytest_mwbudget.session.artifacts, "find_spec", lambda name: None)
    with pytest.raises(SettingError, match=r"^--html='x' needs the package jinja2, .* \"pytest-mwbudget\[html\]\"$"):
        HTML.check(tmp_path / "x", "--html='x'")
    JSON.check(tmp_path / "y", "--json='y'")
