"""The two checkouts: what each holds, and that nothing is left of them."""

from __future__ import annotations

import marshal
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import cache_from_source
from pathlib import Path

import pytest

from pytest_mwbudget.errors import VersusError
from pytest_mwbudget.versus.repository import Repository
from pytest_mwbudget.versus.worktrees import OfTests, Worktrees, worktrees

from .projects import Project, shop

pytestmark = pytest.mark.once


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.chdir(tmp_path)
    project = shop(tmp_path / "shop")
    monkeypatch.chdir(project.root)
    return project


@contextmanager
def checkouts(project: Project, revision: str | None = None) -> Iterator[Worktrees]:
    repository = Repository(project.root)
    with worktrees(repository, repository.base(revision, {})) as both:
        yield both


def test_head_is_the_working_tree_and_the_base_is_the_commit(project: Project) -> None:
    """The changes are of every kind, and some of them are committed."""
    project.put("src/shop/committed.py", "")
    project.put("data.bin", "old")
    project.commit()
    project.put("src/shop/app.py", "changed = True\n")
    project.put("src/shop/unknown.py", "")
    project.put("ignored/__pycache__/x.pyc", "")
    (project.root / "data.bin").unlink()
    os.symlink("app.py", project.root / "src/shop/link.py")
    with checkouts(project) as both:
        assert (both.head / "src/shop/app.py").read_text() == "changed = True\n"
        assert "TASKS = 0" in (both.base / "src/shop/app.py").read_text()
        for name, of_head in (("unknown.py", True), ("committed.py", True), ("../../data.bin", False)):
            assert [(place / "src/shop" / name).exists() for place in (both.base, both.head)] == [False, of_head]
        assert not (both.head / "ignored").exists()
        assert (both.head / "src/shop/link.py").is_symlink()
        assert len(str(both.base)) == len(str(both.head))
        for place in (both.base, both.head):
            assert Path(cache_from_source(str(place / "src/shop/app.py"))).exists()
    # The user's own checkout is as it was.
    assert "src/shop/app.py" in project.git("status", "--short")
    assert (project.root / "src/shop/app.py").read_text() == "changed = True\n"


def test_tests_and_configuration_are_those_of_head(project: Project) -> None:
    project.put("tests/test_old.py", "")
    project.put("tests/data/old.json", "")
    project.commit()
    project.git("branch", "--force", "main")
    (project.root / "tests/test_old.py").unlink()
    project.put("tests/data/new.json", "")
    project.put("tests/helpers.py", "")
    project.put("src/shop/check_shop.py", "")
    project.put("conftest.py", "")
    project.put("pyproject.toml", "[tool.x]\n")
    project.put("scripts/bench.py", "")
    project.put("src/shop/app.py", "changed = True\n")
    with checkouts(project) as both:
        taken = both.lay_over(OfTests(("check_*.py",), ("scripts/bench.py",)))
        names = {path.relative_to(both.base).as_posix() for path in both.base.rglob("*.*") if path.is_file()}
        assert "TASKS = 0" in (both.base / "src/shop/app.py").read_text()
    assert {"tests/data/new.json", "tests/helpers.py", "src/shop/check_shop.py", "conftest.py"} <= names
    assert {"pyproject.toml", "scripts/bench.py", "pytest.ini"} <= names
    assert not names & {"tests/test_old.py"}
    assert "src/shop/app.py" not in taken


def test_hooks_do_not_run(project: Project) -> None:
    hook = project.root / ".git/hooks/post-checkout"
    hook.write_text(f"#!/bin/sh\ntouch {project.root}/hooked\n")
    hook.chmod(0o755)
    project.put("new.py", "")
    with checkouts(project):
        pass
    assert not (project.root / "hooked").exists()


@pytest.mark.parametrize("error", [None, RuntimeError, KeyboardInterrupt])
def test_nothing_is_left(project: Project, error: type[BaseException] | None) -> None:
    project.put("new.py", "")
    with suppress(error or ()), checkouts(project) as both:
        if error is not None:
            raise error
    assert not both.base.parent.exists()
    assert len(project.git("worktree", "list").splitlines()) == 1


def test_the_users_command_runs_in_both_and_a_failure_is_told_with_its_output(project: Project) -> None:
    project.put("new.py", "")
    with checkouts(project) as both:
        both.prepare("echo built > built.txt")
        assert [(place / "built.txt").exists() for place in (both.base, both.head)] == [True, True]
        with pytest.raises(VersusError, match=r"'echo oh no; exit 3' failed with exit status 3 for the base") as raised:
            both.prepare("echo oh no; exit 3")
        assert str(raised.value).endswith("oh no")


def test_a_subdirectory_is_measured_in_the_same_place(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.put("sub/new.py", "")
    monkeypatch.chdir(project.root / "sub")
    repository = Repository(Path.cwd())
    with worktrees(repository, repository.base(None, {})) as both:
        assert both.place(both.head) == both.head / "sub"
        assert both.place(both.base).is_dir()


def test_other_worktrees_whose_directory_is_not_there_stay(project: Project, tmp_path: Path) -> None:
    project.git("worktree", "add", "--quiet", "-b", "elsewhere", str(tmp_path / "elsewhere"))
    (tmp_path / "elsewhere").rename(tmp_path / "not mounted")
    project.put("src/shop/app.py", "")
    with checkouts(project) as both:
        folder = both.base.parent
    assert str(tmp_path / "elsewhere") in project.git("worktree", "list")
    assert str(folder) not in project.git("worktree", "list")
    assert not folder.exists()


def test_files_and_directories_take_each_others_place(project: Project) -> None:
    project.put("tests/one", "file")
    project.put("tests/two/inside.py", "")
    project.commit()
    (project.root / "tests/one").unlink()
    project.put("tests/one/inside.py", "inside = 1\n")
    (project.root / "tests/two/inside.py").unlink()
    (project.root / "tests/two").rmdir()
    project.put("tests/two", "file")
    with checkouts(project, "HEAD") as both:
        both.lay_over(OfTests())
        for place in (both.base, both.head):
            assert (place / "tests/one/inside.py").read_text() == "inside = 1\n"
            assert (place / "tests/two").read_text() == "file"


def test_a_file_of_the_same_second_is_compiled_again(project: Project) -> None:
    project.put("tests/helper.py", "value = 1\n")
    project.commit()
    project.put("tests/helper.py", "value = 2\n")
    with checkouts(project, "HEAD") as both:
        for place in (both.base, both.head):
            os.utime(place / "tests/helper.py", (1_000_000_000, 1_000_000_000))
        both.compile(both.base)
        both.lay_over(OfTests())
        both.compile(both.base)
        cached = Path(cache_from_source(str(both.base / "tests/helper.py")))
        assert marshal.loads(cached.read_bytes()[16:]).co_consts[0] == 2


def test_a_submodule_among_the_tests_is_left_alone(project: Project) -> None:
    project.git("update-index", "--add", "--cacheinfo", f"160000,{project.git('rev-parse', 'HEAD')},tests/data")
    project.git("commit", "--quiet", "-m", "submodule")
    (project.root / "tests/data").mkdir()
    project.put("src/shop/app.py", "")
    with checkouts(project, "HEAD") as both:
        assert "tests/data" not in both.lay_over(OfTests())
