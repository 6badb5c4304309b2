"""The files of profiles and their paths."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_mwbudget.errors import SettingError
from pytest_mwbudget.model.results import Profile
from pytest_mwbudget.profiling.sampling import Profiled
from pytest_mwbudget.session.profiles import Publisher, check, ready, slug

from .test_report_flamegraph import REQUESTS, RESULT, SESSION

PROFILED = Profiled(SESSION, REQUESTS, 123, 130.0)


def test_each_request_of_a_test_has_three_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publisher = Publisher(tmp_path / "out", "tests/test_app.py::test_x[a/b]", tmp_path)
    monkeypatch.chdir("/")  # A test may change the working directory.
    first, second = publisher(1)(PROFILED, RESULT), publisher(2)(PROFILED, RESULT)
    for profile in (first, second):
        for path in (profile.flamegraph, profile.pyinstrument, profile.speedscope):
            assert Path(path).parent == Path("out")
            assert Path(path).name.startswith("tests-test_app.py-test_x-a-b-")
            assert (tmp_path / path).stat().st_size > 100
    assert first.flamegraph.endswith("-1.html")
    assert second.flamegraph.endswith("-2.html")
    assert (tmp_path / "out" / ".gitignore").read_text() == "*\n"


def test_elsewhere_paths_are_told_in_full(tmp_path: Path) -> None:
    profile = Publisher(tmp_path / "out", "t.py::test", tmp_path / "project")(1)(PROFILED, RESULT)
    assert Path(profile.flamegraph).is_absolute()
    assert Path(profile.flamegraph).exists()


def test_a_profile_says_what_it_is_made_of(tmp_path: Path) -> None:
    profile = Publisher(tmp_path, "t.py::test", tmp_path)(1)(PROFILED, RESULT)
    assert isinstance(profile, Profile)
    assert (profile.requests, profile.samples, profile.request_us) == (REQUESTS, 123, 130.0)
    assert [one.function for one in profile.hottest[0]] == ["check", "Outer.__call__"]
    assert list(profile.hottest) == [0]


def test_the_next_run_writes_over_the_files_of_the_last(tmp_path: Path) -> None:
    paths = [Publisher(tmp_path, "t.py::test", tmp_path)(1)(PROFILED, RESULT).flamegraph for _ in range(2)]
    assert paths[0] == paths[1]


def test_a_directory_that_is_there_keeps_its_gitignore(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("mine\n")
    ready(tmp_path)
    assert (tmp_path / ".gitignore").read_text() == "mine\n"


def test_what_cannot_be_a_directory_is_an_error_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingError, match=r"--mw-budget-dir=.x. cannot be written.*give the path of a directory"):
        check(tmp_path / "file", "--mw-budget-dir='x'")


@settings(max_examples=30)
@given(st.text(max_size=200))
def test_any_test_has_a_name_that_any_file_system_takes(nodeid: str) -> None:
    name = slug(nodeid)
    assert 0 < len(name) <= 90
    assert not set(name) & set('/\\:*?"<>|[] ')
    assert not name.startswith(".")


def test_tests_whose_names_look_alike_have_different_files() -> None:
    assert slug("t.py::test[a/b]") != slug("t.py::test[a-b]")
    assert slug("test_\udc80.py::test").startswith("test_-.py-test-")


def test_a_check_leaves_nothing_behind(tmp_path: Path) -> None:
    check(tmp_path / "a" / "b", "--mw-budget-dir='a/b'")
    assert list(tmp_path.iterdir()) == []
