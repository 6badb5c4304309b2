"""Tell the project's own files from those of Python and of installed packages, by their place alone."""

from __future__ import annotations

import sysconfig
from pathlib import PurePath

# The directories of installed packages, wherever the environment is: also inside the project.
SITES = ("site-packages", "dist-packages")
STANDARD_LIBRARY = sysconfig.get_path("stdlib")


def site_of(file: str) -> PurePath | None:
    """Return the directory of installed packages that contains the file, None for a file elsewhere."""
    return next((above for above in PurePath(file).parents if above.name in SITES), None)


def is_own(file: str) -> bool:
    """Return whether this is a file of the project: not of Python, not of an installed package, and a file at all.

    A package in editable mode is part of the project, because its files are in their repository.
    """
    path = PurePath(file)
    return path.suffix == ".py" and site_of(file) is None and not path.is_relative_to(STANDARD_LIBRARY)
