"""The files that a result can become: what each is called, what it needs, who renders it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .errors import SettingError


@dataclass(frozen=True, slots=True)
class Output:
    """A kind of file. `name` is its option's, `package` has to be installed.

    `render` makes its text of a document and of the path where it will be.
    """

    name: str
    render: Callable[[Mapping[str, Any], Path], str]
    package: str | None = None

    def check(self, path: Path, said: str) -> None:
        """Make sure, before there is any work to lose, that the file can be made.

        `said` is the option as the user wrote it. Raises SettingError where a package is missing or `path` cannot be
        written; a file that is not there yet is made, and the directories above it.
        """
        self.check_package(said)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a"):
                pass
        except OSError as error:
            raise SettingError(f"{said} cannot be written: {error}; give the path of a file to write") from None

    def check_package(self, said: str) -> None:
        """Make sure that what renders the file is there; SettingError where it is not."""
        if self.package is not None and find_spec(self.package) is None:
            raise SettingError(
                f"{said} needs the package {self.package}, which is not installed here; install"
                f" pytest-mwbudget[{self.name}]"
            )

    def write(self, path: Path, document: Mapping[str, Any]) -> None:
        """Write the document to `path`."""
        path.write_text(self.render(document, path), encoding="utf-8")


def check_distinct(files: Mapping[str, Path]) -> None:
    """Make sure that no file is written over another. The keys are what the user said of each; raises SettingError."""
    seen: dict[str, str] = {}
    for said, path in files.items():
        other = seen.setdefault(os.path.realpath(path), said)
        if other != said:
            raise SettingError(f"{said} is the same file as {other}; give each file a path of its own")


def _json(document: Mapping[str, Any], path: Path) -> str:
    from .report.json import render

    return render(document)


def _html(document: Mapping[str, Any], path: Path) -> str:
    from .report.html import render

    return render(document, lambda file: _seen_from(path, file))


def _seen_from(page: Path, file: str) -> str:
    """The path of `file` as a link in `page`."""
    try:
        return Path(os.path.relpath(file, page.parent)).as_posix()
    except ValueError:  # on another drive
        return file


def _markdown(document: Mapping[str, Any], path: Path) -> str:
    from .report.markdown import render

    return render(document)


def _benchmark(document: Mapping[str, Any], path: Path) -> str:
    from .report.benchmark import render

    return render(document)


JSON = Output("json", _json)
# What can be made again of the JSON.
RENDERED = (Output("html", _html, "jinja2"), Output("markdown", _markdown), Output("benchmark-json", _benchmark))
