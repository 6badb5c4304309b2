"""Make a process import the project from one worktree, and prove afterwards that it did.

Each process of a comparison imports this module before the project, so it needs the standard library only.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

# Where a project's modules are, relative to the root of the repository and to the working directory, besides what
# installed packages add to `sys.path`.
PLACES = ("", "src")
# Folders without projects of the repository's own.
NOT_PROJECTS = ("node_modules", "site-packages", "venv")
# Modules of these names are the tests' own, or scripts.
NOT_OWN = ("conftest", "setup", "__main__", "__mp_main__")
OWN_PACKAGE = __name__.partition(".")[0]


@dataclass(frozen=True, slots=True)
class Proof:
    """Where the modules of the project came from: paths in the worktree, and modules from elsewhere by name."""

    own: Sequence[str]
    elsewhere: dict[str, str]


@dataclass
class Worktree:
    """One side of a comparison. `checkout` is the directory of the user's clone, whose modules must not be imported."""

    root: Path
    checkout: Path
    roots: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.root, self.checkout = _real(self.root), _real(self.checkout)
        paths = sysconfig.get_paths()
        installed = {_real(paths[name]) for name in ("purelib", "platlib", "stdlib", "platstdlib")}
        if self.checkout in _real(sys.prefix).parents:
            installed.add(_real(sys.prefix))
        self._installed = tuple(installed)

    def enter(self) -> None:
        """Let imports find this worktree before installed packages, and before import hooks of editable installs."""
        for entry in sys.path:
            mapped = self.mapped(entry)
            if mapped is not None and mapped.is_dir():
                self.roots.append(str(mapped))
        here = _real(Path.cwd())
        projects = [here, self.root] if self.root in here.parents else [self.root]
        self.roots += [str(project / place) for project in projects for place in PLACES if (project / place).is_dir()]
        self.roots = list(dict.fromkeys(self.roots))
        others = [entry for entry in sys.path if entry and self.mapped(entry) is None and entry not in self.roots]
        sys.path[:] = [*self.roots, *others]
        sys.meta_path.insert(0, Finder(self))

    def mapped(self, path: str | Path) -> Path | None:
        """Return the path in this worktree for one in the user's clone, None for any other path."""
        real = _real(path)
        if self.root in (real, *real.parents) or any(folder in (real, *real.parents) for folder in self._installed):
            return None
        return self.root / real.relative_to(self.checkout) if self.checkout in (real, *real.parents) else None

    def holds(self, path: str | Path) -> bool:
        """Whether a path is in this worktree."""
        real = _real(path)
        return self.root in (real, *real.parents)

    def proof(self) -> Proof:
        """Return which imported modules are of this worktree, and which should be and are not."""
        own: set[str] = set()
        elsewhere: dict[str, str] = {}
        for name, file in _files(dict(sys.modules)):
            if self.holds(file):
                own.add(_real(file).relative_to(self.root).as_posix())
            elif not _is_exempt(name) and (self.mapped(file) is not None or self._has(name)):
                elsewhere[name] = file
        return Proof(sorted(own), elsewhere)

    @cached_property
    def projects(self) -> Sequence[str]:
        """The folders of the worktree that pip can install, with the places of their modules."""
        found: list[str] = []
        for folder, inside, files in os.walk(self.root):
            inside[:] = [name for name in inside if not name.startswith(".") and name not in NOT_PROJECTS]
            if not {"pyproject.toml", "setup.py", "setup.cfg"}.isdisjoint(files):
                found += [os.path.join(folder, place) for place in PLACES]
        return found

    def _has(self, name: str) -> bool:
        """Whether this worktree has a file for a module of this name.

        Of a package in a monorepo that pip has installed, the copy would be measured on both sides.
        """
        parts = name.split(".")
        if parts[-1] == "conftest":
            return False
        return any(
            Path(root, *parts).with_suffix(".py").is_file() or Path(root, *parts, "__init__.py").is_file()
            for root in (*self.roots, *([] if parts[0] in sys.stdlib_module_names else self.projects))
        )


class Finder:
    """Stands first in `sys.meta_path`: finds modules of the worktree, whatever other finders would say."""

    def __init__(self, worktree: Worktree) -> None:
        self.worktree = worktree

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        """Return the spec of a module of the worktree, None for any other.

        Raises ModuleNotFoundError for a module that only the user's clone has.
        """
        places = self.worktree.roots if path is None else [folder for folder in path if self.worktree.holds(folder)]
        spec = PathFinder.find_spec(name, places, target) if places else None
        if spec is not None and spec.origin is not None:
            return spec
        if path is not None and not places:
            return None
        return self._moved(self._of_others(name, path, target))

    def _of_others(self, name: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                return spec
        return None

    def _moved(self, spec: ModuleSpec | None) -> ModuleSpec | None:
        """Return the same module in the worktree for one that an editable install finds in the user's clone."""
        if spec is None or spec.origin is None or not os.path.isabs(spec.origin):
            return None
        place = self.worktree.mapped(spec.origin)
        if place is None:
            return None
        if not place.is_file():
            if place.suffix == ".py":
                raise ModuleNotFoundError(f"No module named {spec.name!r}", name=spec.name)
            return None  # an extension: the next finder answers, and the proof names it
        package = [str(place.parent)] if spec.submodule_search_locations is not None else None
        return spec_from_file_location(spec.name, place, submodule_search_locations=package)


def _is_exempt(name: str) -> bool:
    """Whether a module may come from the clone: a script, or of this plugin, which is the same on both sides."""
    return name in NOT_OWN or name.partition(".")[0] == OWN_PACKAGE


def _files(modules: dict[str, ModuleType]) -> Iterator[tuple[str, str]]:
    for name, module in modules.items():
        # A module that a test has put there can be anything.
        file = vars(module).get("__file__") if isinstance(module, ModuleType) else None
        if isinstance(file, str) and os.path.isabs(file):
            yield name, file


def _real(path: str | Path) -> Path:
    return Path(os.path.realpath(path))
