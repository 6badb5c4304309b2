"""Lay the tests of HEAD over the base, and check after each process that it measured its own side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path

from ..errors import VersusError
from .order import Statement
from .sides import Ran, Side
from .worktrees import OfTests, Worktrees

# The most modules that a message names.
MOST_NAMES = 3


class Origin:
    """Knows which files of the base are those of HEAD."""

    def __init__(self, worktrees: Worktrees, arguments: Sequence[str]) -> None:
        self.worktrees = worktrees
        self.arguments = arguments
        self.laid_over: frozenset[str] = frozenset()

    def lay_over(self, statement: Statement) -> None:
        """Give the base the tests and the configuration of HEAD, after a process of HEAD has told what these are."""
        # A pattern of all modules, such as *.py, is one of the app too.
        patterns = [pattern for pattern in statement.patterns if not fnmatch("__init__.py", pattern)]
        # Another directory of `testpaths` may hold the app, too.
        folders = [path for path in statement.paths if "test" in Path(path).name.lower()]
        tests = OfTests(patterns, [*folders, *self._files()])
        self.laid_over = frozenset(self.worktrees.lay_over(tests))
        self.worktrees.compile(self.worktrees.base)

    def _files(self) -> list[str]:
        """Return the files that the arguments for pytest name."""
        head, place = self.worktrees.head, self.worktrees.place(self.worktrees.head)
        paths = [place / argument.partition("::")[0] for argument in self.arguments if not argument.startswith("-")]
        return [path.relative_to(head).as_posix() for path in paths if path.is_file() and head in path.parents]

    def check(self, side: Side, ran: Ran) -> None:
        """Raise VersusError unless the modules of the project, besides the tests, came from the side's worktree."""
        elsewhere = ran.statement.elsewhere
        if elsewhere:
            names = "".join(f"\n    {name} from {file}" for name, file in list(elsewhere.items())[:MOST_NAMES])
            more = f"\n    and {len(elsewhere) - MOST_NAMES} more" if len(elsewhere) > MOST_NAMES else ""
            raise VersusError(
                f"modules of this project were not imported from the checkout of {side.name}, so both sides could be"
                f" the same code:{names}{more}\nInstall the project as editable (pip install -e .), and build"
                " extensions in each checkout, for example with --prepare 'python setup.py build_ext --inplace'."
                " If addopts names a plugin of the project with -p, name it in pytest_plugins of a conftest.py instead",
                message_id="versus-origin",
            )
        if not set(ran.statement.own) - self.laid_over:
            raise VersusError(
                f"the tests imported no module of this project from the checkout of {side.name} besides tests and"
                " conftest files, and these are the same on both sides; compare in the repository of the app, and move"
                " the app out of the test files",
                message_id="versus-origin",
            )

    def remarks(self, statements: Mapping[str, Statement]) -> list[str]:
        """Say that no imported module differs."""
        names = {name for statement in statements.values() for name in statement.own}
        if any(_content(self.worktrees.base / name) != _content(self.worktrees.head / name) for name in names):
            return []
        return [f"none of the {len(names)} modules of the project that the tests import differs between the sides"]


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None
