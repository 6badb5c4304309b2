"""The two checkouts that are measured: the base, with the tests and the configuration of HEAD, and HEAD."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from compileall import compile_dir
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from tempfile import mkdtemp

from ..errors import VersusError
from ..processes import run, uninterrupted
from .repository import Base, Repository, is_file

# Files that configure pytest, or are loaded by it, in any directory.
CONFIGURATION = (
    *("pytest.toml", ".pytest.toml", "pytest.ini", ".pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg"),
    "conftest.py",
)
# How much of the output of a failed command an error shows.
SHOWN_CHARACTERS = 4000
# Directories that hold tests and their helpers by convention.
OF_TESTS = ("test", "tests")


@dataclass(frozen=True, slots=True)
class OfTests:
    """What belongs to the tests: the patterns of their files' names, and paths of files and directories."""

    patterns: Sequence[str] = ("test_*.py", "*_test.py")
    paths: Sequence[str] = ()

    def own(self, name: str) -> bool:
        """Whether a file, by its path in the repository, belongs to the tests or configures them."""
        path = PurePosixPath(name)
        if path.name in CONFIGURATION or any(fnmatch(path.name, pattern) for pattern in self.patterns):
            return True
        if any(part in OF_TESTS for part in path.parts[:-1]):
            return True
        return any(test_path == path or test_path in path.parents for test_path in map(PurePosixPath, self.paths))


@dataclass(frozen=True, slots=True)
class Worktrees:
    """Two directories whose paths have the same length. `here` is the user's working directory in the repository."""

    repository: Repository
    base: Path
    head: Path
    here: Path

    def place(self, root: Path) -> Path:
        """Return the directory in a worktree that stands for the user's working directory."""
        place = root / self.here
        place.mkdir(parents=True, exist_ok=True)  # the base may not have it
        return place

    def lay_over(self, tests: OfTests) -> list[str]:
        """Replace tests and configuration of the base by those of HEAD. Returns their paths in the repository."""
        of_head = [name for name in self.repository.files(self.head) if tests.own(name)]
        for name in self.repository.files(self.base):
            if tests.own(name) and name not in of_head:
                (self.base / name).unlink()
        _copy(of_head, self.head, self.base)
        return of_head

    def compile(self, place: Path) -> None:
        """Compile all modules of a worktree, so that no process finds less compiled than another."""
        # A file that is no valid Python fails where a test imports it.
        # By force: a file that replaced one of the same second looks compiled.
        compile_dir(place, quiet=2, force=True)

    def prepare(self, command: str) -> None:
        """Run the user's command in both. Raises VersusError, with the end of its output, if it fails."""
        for place in (self.base, self.head):
            ended = run(command, place)
            if ended.status:
                raise VersusError(
                    f"--prepare={command!r} failed with exit status {ended.status} for {self.name(place)}; correct"
                    f" the command, which runs in a fresh checkout of each side:\n{ended.end(SHOWN_CHARACTERS)}",
                    message_id="versus-side",
                )

    def name(self, place: Path) -> str:
        """Return what a worktree is called in messages."""
        return "the base" if place == self.base else "HEAD"


@contextmanager
def worktrees(repository: Repository, base: Base) -> Iterator[Worktrees]:
    """Check out the base and HEAD, with the changes that are not committed, and remove both after the block."""
    here = Path(os.path.realpath(Path.cwd())).relative_to(os.path.realpath(repository.root))
    folder = Path(os.path.realpath(mkdtemp(prefix="mwbudget-versus-")))
    both = Worktrees(repository, folder / "a", folder / "b", here)
    try:
        for place, commit in ((both.base, base.commit), (both.head, "HEAD")):
            repository.git("worktree", "add", "--detach", "--force", str(place), commit)
        _take_changes(repository, both.head)
        for place in (both.base, both.head):
            both.compile(place)
        yield both
    finally:
        with uninterrupted():
            # Not `git worktree prune`: that would drop every worktree whose directory is not there at the moment.
            for place in (both.base, both.head):
                repository.asked("worktree", "remove", "--force", "--force", str(place))
            shutil.rmtree(folder, ignore_errors=True)


def _take_changes(repository: Repository, place: Path) -> None:
    """Make the worktree what the working tree is: changed files, deleted ones, and those that git does not know."""
    changed = repository.changed()
    for name in changed:
        # Where a directory is now, there can be another repository, or files that are copied below.
        if not os.path.lexists(repository.root / name) and is_file(place / name):
            (place / name).unlink()
    _copy([name for name in changed if is_file(repository.root / name)], repository.root, place)


def _copy(names: Iterable[str], source: Path, target: Path) -> None:
    for name in names:
        path = target / name
        _make_room(path, target)
        shutil.copy2(source / name, path, follow_symlinks=False)


def _make_room(path: Path, target: Path) -> None:
    """Remove what is where a file will be: the same file, a directory, or a file in place of a directory above it."""
    for folder in reversed(path.relative_to(target).parents):
        if is_file(target / folder):
            (target / folder).unlink()
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
