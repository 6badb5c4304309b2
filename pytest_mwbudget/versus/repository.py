"""The git repository: which commits are compared, which files differ, and what cannot be compared."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

from ..errors import VersusError
from ..processes import Ended, run

# Set by git for its hooks. A command for another worktree must not use them.
LOCAL_VARIABLES = (
    *("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY"),
    *("GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_NAMESPACE"),
)
# Hooks of the repository must not run, and monitors of the file system need not start.
CONFIG = ("-c", f"core.hooksPath={os.devnull}", "-c", "core.fsmonitor=false", "-c", "advice.detachedHead=false")
# Where a main branch can be, the most certain first.
MAIN_BRANCHES = ("origin/HEAD", "origin/main", "origin/master", "main", "master")
GITHUB_BRANCH = "GITHUB_BASE_REF"
# The first one is set where HEAD is a merge with the target branch, and names the tip of that branch. The second one
# names the commit at which the source branch left it, after which others may have changed the target branch.
GITLAB_COMMITS = ("CI_MERGE_REQUEST_TARGET_BRANCH_SHA", "CI_MERGE_REQUEST_DIFF_BASE_SHA")
# Files that say which packages a project needs.
DEPENDENCIES = (
    *("pyproject.toml", "setup.cfg", "setup.py", "Pipfile", "Pipfile.lock", "poetry.lock", "uv.lock", "pdm.lock"),
    *("pylock*.toml", "*requirements*.txt", "requirements/*.txt", "environment.yml", "conda-lock.yml"),
)
SHORT = 10
DEEPER = (
    "this clone is shallow; fetch the whole history: `fetch-depth: 0` for actions/checkout, `GIT_DEPTH: 0` on GitLab,"
    " `git fetch --unshallow` elsewhere"
)


@dataclass(frozen=True, slots=True)
class Base:
    """The commit that HEAD is compared with, and how it was chosen."""

    commit: str
    chosen: str

    def __str__(self) -> str:
        return f"{self.commit[:SHORT]} ({self.chosen})"


class Repository:
    """The repository round a directory. Raises VersusError where there is none."""

    def __init__(self, place: Path) -> None:
        self.root = place
        ended = self._run("rev-parse", "--show-toplevel")
        if ended.status:
            # Such as a clone of another user, which git does not read in a container.
            message = " ".join(os.fsdecode(ended.errors).split())
            raise VersusError(
                f"{str(place)!r} is not in a git repository that git reads ({message}); run the command in the clone of"
                " your project, or compare two apps with --app-a and --app-b",
                message_id="versus-base",
            )
        self.root = Path(_printed(ended))

    def git(self, *arguments: str, place: Path | None = None) -> str:
        """Return what a git command prints, without the last newline. Raises VersusError if it fails."""
        ended = self._run(*arguments, place=place)
        if ended.status:
            message = os.fsdecode(ended.errors).strip()
            raise VersusError(f"git {arguments[0]} failed: {message}", message_id="versus-base")
        return _printed(ended)

    def asked(self, *arguments: str) -> str | None:
        """Return what a git command prints, None if it fails."""
        ended = self._run(*arguments)
        return None if ended.status else _printed(ended)

    def _run(self, *arguments: str, place: Path | None = None) -> Ended:
        environment = {name: value for name, value in os.environ.items() if name not in LOCAL_VARIABLES}
        environment |= {"LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0"}
        try:
            return run(["git", *CONFIG, *arguments], place or self.root, environment, errors_apart=True)
        except FileNotFoundError as error:
            if error.filename != "git":
                raise
            raise VersusError("git is not installed here; install it", message_id="versus-base") from None

    # ---- the base -------------------------------------------------------------------------------------------------

    def base(self, revision: str | None, environment: Mapping[str, str]) -> Base:
        """Return the commit of `revision`, without one the merge base of HEAD with the main branch.

        Raises VersusError if it is not known here, or holds what the working tree holds.
        """
        if self.commit("HEAD") is None:
            raise VersusError("there is no commit yet; commit first", message_id="versus-base")
        base = self._named(revision) if revision else self._merge_base(environment)
        if base.commit == self.commit("HEAD") and not self.changed():
            raise VersusError(
                f"the base {base} is HEAD, and no file is changed: there is nothing to compare; name an older commit,"
                " for example --base HEAD~1",
                message_id="versus-base",
            )
        return base

    def commit(self, revision: str) -> str | None:
        """Return the full name of a commit, None if it is not known here."""
        return self.asked("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")

    def _named(self, revision: str) -> Base:
        commit = self.commit(revision)
        if commit is None:
            remedy = DEEPER if self._is_shallow() else "`git log --oneline` lists commits; fetch it if it is elsewhere"
            raise VersusError(
                f"--base={revision!r} is not a commit that this clone knows; {remedy}", message_id="versus-base"
            )
        return Base(commit, revision)

    def _merge_base(self, environment: Mapping[str, str]) -> Base:
        gitlab = next((name for name in GITLAB_COMMITS if environment.get(name)), None)
        sha = environment[gitlab] if gitlab else None
        if gitlab and sha and (commit := self.commit(sha)) is not None:
            return Base(commit, gitlab)
        branch = environment.get(GITHUB_BRANCH)
        names = ((f"origin/{branch}", branch) if branch else ()) + MAIN_BRANCHES
        main = next((name for name in names if self.commit(name) is not None), None)
        if main is None or sha:
            missing = f"the commit {sha[:SHORT]} of {gitlab}" if sha else f"a main branch ({', '.join(names)})"
            remedy = DEEPER if self._is_shallow() else "fetch it, or name the commit with --base"
            raise VersusError(f"{missing} is not known here; {remedy}", message_id="versus-base")
        commit = self.asked("merge-base", "HEAD", main)
        if not commit:
            remedy = DEEPER if self._is_shallow() else "they have no commit in common; name the commit with --base"
            raise VersusError(f"HEAD and {main} have no merge base here; {remedy}", message_id="versus-base")
        return Base(commit, f"merge base with {main}")

    def _is_shallow(self) -> bool:
        return self.asked("rev-parse", "--is-shallow-repository") == "true"

    # ---- files ----------------------------------------------------------------------------------------------------

    def changed(self) -> list[str]:
        """Return the files that differ from HEAD in the working tree, also those that git does not know yet.

        Not those of a virtual environment in the repository, which both sides run in.
        """
        known = self.git("diff", "--name-only", "--no-renames", "--ignore-submodules", "-z", "HEAD", "--")
        unknown = self.git("ls-files", "--others", "--exclude-standard", "-z").split("\0")
        environments = tuple(name.removesuffix("pyvenv.cfg") for name in unknown if name.endswith("/pyvenv.cfg"))
        own = [name for name in unknown if not name.startswith(environments)]
        return sorted({name for name in (*known.split("\0"), *own) if name})

    def files(self, place: Path) -> list[str]:
        """Return the files of a worktree that git knows, or would take. A submodule is a directory, not a file."""
        listed = self.git("ls-files", "--cached", "--others", "--exclude-standard", "-z", place=place)
        return sorted({name for name in listed.split("\0") if name and is_file(place / name)})

    def remarks(self, base: Base) -> list[str]:
        """Say what the worktrees lack, and which dependencies differ although both sides run in one environment."""
        remarks = []
        names = self.git("diff", "--name-only", "--no-renames", "-z", base.commit, "--").split("\0")
        changed = [name for name in names if name and _lists_dependencies(name)]
        if changed:
            remarks.append(
                f"both sides run with the packages that are installed here, and {', '.join(changed)} changed since the"
                " base: a difference by other versions of packages does not show"
            )
        modules = self.git("ls-files", "--stage")
        if any(line.startswith("160000 ") for line in modules.splitlines()):
            remarks.append(
                "submodules are empty in both worktrees; fill them with --prepare 'git submodule update --init'"
            )
        attributes = [name for name in self.files(self.root) if PurePosixPath(name).name == ".gitattributes"]
        if any("filter=lfs" in (self.root / name).read_text(errors="replace") for name in attributes):
            remarks.append("files of Git LFS are in the worktrees as git checks them out: without git-lfs, as pointers")
        return remarks


def _printed(ended: Ended) -> str:
    return os.fsdecode(ended.output).rstrip("\n")


def is_file(path: Path) -> bool:
    """Whether git would take a path as a file: also a link, wherever it leads."""
    return os.path.lexists(path) and (path.is_symlink() or not path.is_dir())


def _lists_dependencies(name: str) -> bool:
    return any(fnmatch(name, pattern) or fnmatch(PurePosixPath(name).name, pattern) for pattern in DEPENDENCIES)
