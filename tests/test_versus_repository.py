"""Which commits are compared, and what is said of a repository."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_mwbudget.errors import VersusError
from pytest_mwbudget.versus.repository import Repository

from .projects import Project

pytestmark = pytest.mark.once


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A repository with one commit on main, and one on the branch `change`."""
    project = Project(tmp_path / "project")
    project.put("app.py", "one = 1\n")
    project.commit()
    project.git("checkout", "--quiet", "-b", "change")
    project.put("app.py", "one = 2\n")
    project.commit()
    return project


def test_the_base_is_the_merge_base_with_main(project: Project) -> None:
    first = project.git("rev-parse", "main")
    project.git("checkout", "--quiet", "main")
    project.put("other.py", "")
    project.commit()
    project.git("checkout", "--quiet", "change")
    base = Repository(project.root).base(None, {})
    assert (base.commit, base.chosen) == (first, "merge base with main")


def test_a_remote_main_branch_goes_before_a_local_one(project: Project, tmp_path: Path) -> None:
    clone = Project(tmp_path / "clone")
    clone.git("remote", "add", "origin", str(project.root))
    # Newer versions of git take the branch that the other repository is on for its main branch.
    clone.git("config", "remote.origin.followRemoteHEAD", "never")
    clone.git("fetch", "--quiet", "origin")
    clone.git("checkout", "--quiet", "-b", "mine", "origin/change")
    assert Repository(clone.root).base(None, {}).chosen == "merge base with origin/main"


def test_a_named_base_is_taken_as_it_is(project: Project) -> None:
    assert Repository(project.root).base("HEAD~1", {}).commit == project.git("rev-parse", "main")


def test_ci_systems_name_the_base(project: Project) -> None:
    first = project.git("rev-parse", "main")
    project.git("branch", "release", "main")
    repository = Repository(project.root)
    assert repository.base(None, {"GITHUB_BASE_REF": "release"}).chosen == "merge base with release"
    assert repository.base(None, {"CI_MERGE_REQUEST_DIFF_BASE_SHA": first}).commit == first


def test_a_merge_with_the_main_branch_is_compared_with_that_branch(project: Project) -> None:
    """GitLab's merged results pipelines: what others merged since is no change of the merge request."""
    left = project.git("rev-parse", "main")
    project.git("checkout", "--quiet", "main")
    project.put("other.py", "")
    tip = project.commit()
    project.git("checkout", "--quiet", "change")
    project.git("merge", "--quiet", "--no-edit", "main")
    environment = {"CI_MERGE_REQUEST_DIFF_BASE_SHA": left, "CI_MERGE_REQUEST_TARGET_BRANCH_SHA": tip}
    assert Repository(project.root).base(None, environment).commit == tip
    # GitLab leaves the variable empty in other pipelines of merge requests.
    environment["CI_MERGE_REQUEST_TARGET_BRANCH_SHA"] = ""
    assert Repository(project.root).base(None, environment).commit == left


def test_without_a_change_there_is_nothing_to_compare(project: Project) -> None:
    project.git("checkout", "--quiet", "main")
    with pytest.raises(VersusError, match="nothing to compare; name an older commit") as raised:
        Repository(project.root).base(None, {})
    assert raised.value.message_id == "versus-base"


@pytest.mark.parametrize("name", ["app.py", "new.py"])
def test_a_change_that_is_not_committed_is_one(project: Project, name: str) -> None:
    project.git("checkout", "--quiet", "main")
    project.put(name, "one = 3\n")
    repository = Repository(project.root)
    assert repository.base(None, {}).commit == project.git("rev-parse", "HEAD")
    assert repository.changed() == [name]


def test_a_virtual_environment_is_no_change(project: Project) -> None:
    for name in (".venv/pyvenv.cfg", ".venv/lib/site.py", "new.py"):
        project.put(name, "")
    assert Repository(project.root).changed() == ["new.py"]


def test_a_shallow_clone_names_the_remedy(project: Project, tmp_path: Path) -> None:
    clone = Project(tmp_path / "clone")
    clone.git("remote", "add", "origin", f"file://{project.root}")
    clone.git("fetch", "--quiet", "--depth=1", "origin", "change")
    clone.git("checkout", "--quiet", "FETCH_HEAD")
    repository = Repository(clone.root)
    for revision, environment in (
        (None, {}),
        ("HEAD~1", {}),
        (None, {"CI_MERGE_REQUEST_DIFF_BASE_SHA": project.git("rev-parse", "main")}),
    ):
        with pytest.raises(VersusError, match=r"shallow.*fetch-depth: 0.*GIT_DEPTH: 0"):
            repository.base(revision, environment)


def test_an_unknown_base_is_an_error_with_the_remedy(project: Project) -> None:
    with pytest.raises(VersusError, match=r"--base='nix' is not a commit that this clone knows; `git log"):
        Repository(project.root).base("nix", {})
    with pytest.raises(VersusError, match=r"--base='--all' is not a commit"):
        Repository(project.root).base("--all", {})


def test_histories_without_a_common_commit_are_told(project: Project) -> None:
    project.git("checkout", "--quiet", "--orphan", "other")
    project.commit()
    with pytest.raises(VersusError, match="no merge base here; they have no commit in common"):
        Repository(project.root).base(None, {})


def test_no_repository_and_no_commit_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    with pytest.raises(VersusError, match=r"not in a git repository.*--app-a"):
        Repository(tmp_path)
    project = Project(tmp_path / "empty")
    with pytest.raises(VersusError, match="no commit yet"):
        Repository(project.root).base(None, {})


def test_without_git_the_message_says_so(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(project.root))
    with pytest.raises(VersusError, match="git is not installed"):
        Repository(project.root)


def test_what_git_says_of_a_repository_that_it_does_not_read_is_told(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git = tmp_path / "bin" / "git"
    git.parent.mkdir()
    git.write_text("#!/bin/sh\necho 'fatal: detected dubious ownership' >&2\nexit 128\n")
    git.chmod(0o755)
    monkeypatch.setenv("PATH", str(git.parent), prepend=os.pathsep)
    with pytest.raises(VersusError, match="detected dubious ownership"):
        Repository(project.root)


def test_variables_of_a_hook_name_no_other_repository(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_DIR", os.devnull)
    assert Repository(project.root).root == project.root.resolve()


def test_what_the_checkouts_lack_is_told(project: Project, tmp_path: Path) -> None:
    library = Project(tmp_path / "library")
    commit = library.commit()
    project.put("requirements-dev.txt", "starlette\n")
    project.put("pyproject.toml", "[project]\n")
    project.put(".gitattributes", "*.bin filter=lfs diff=lfs merge=lfs -text\n")
    project.git("update-index", "--add", "--cacheinfo", f"160000,{commit},vendor/library")
    project.git("add", "requirements-dev.txt", "pyproject.toml", ".gitattributes")
    repository = Repository(project.root)
    packages, submodules, lfs = repository.remarks(repository.base(None, {}))
    assert "pyproject.toml, requirements-dev.txt changed" in packages
    assert "submodules are empty" in submodules
    assert "LFS" in lfs


def test_a_change_of_code_alone_has_no_remark(project: Project) -> None:
    repository = Repository(project.root)
    assert repository.remarks(repository.base(None, {})) == []
