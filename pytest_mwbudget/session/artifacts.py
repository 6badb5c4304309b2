"""The files that a result can be written to."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryFile
from typing import TYPE_CHECKING

from ..errors import SettingError

if TYPE_CHECKING:
    from ..comparison.history import HistoryRun
    from ..model.measured_run import MeasuredRun


@dataclass(frozen=True, slots=True)
class Output:
    """A kind of file: `name` is its option, `package` must be installed to render it."""

    name: str
    package: str | None = None

    def render(self, run: MeasuredRun, path: Path, history: Sequence[HistoryRun] = ()) -> str:
        """Render the run as the text of a file that will be at `path`; the HTML page draws the history."""
        from ..report import benchmark, html, markdown
        from ..report.advice import advise
        from ..storage import codec

        if self.name == "html":
            return html.render(run, lambda file: _seen_from(path, file), history)
        if self.name == "markdown":
            return markdown.render(run)
        return codec.text(benchmark.document(run) if self.name == "benchmark-json" else codec.document(run, advise))

    def check(self, path: Path, option: str) -> None:
        """Check before the tests that the file can be written, and leave nothing behind.

        `option` is the option as the user wrote it. Raises SettingError if a package is missing or `path` cannot be
        written.
        """
        if self.package is not None and find_spec(self.package) is None:
            raise SettingError(
                f"{option} needs the package {self.package}, which is not installed here; install the plugin with its"
                f' extra {self.name}: pip install "pytest-mwbudget[{self.name}]"',
                message_id="file",
            )
        try:
            _try(path)
        except OSError as error:
            raise SettingError(
                f"{option} cannot be written: {error}; give the path of a file to write", message_id="file"
            ) from None

    def write(self, path: Path, run: MeasuredRun, history: Sequence[HistoryRun] = ()) -> None:
        """Write the run to `path`, all of it or nothing."""
        put(path, self.render(run, path, history))


def put(path: Path, text: str) -> None:
    """Write the text to a temporary file that then replaces `path`; make the directories above it."""
    if _is_special(path):
        path.write_text(text, encoding="utf-8")
        return
    target = Path(os.path.realpath(path))
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        _replace(target, text)
    except OSError as error:
        if not target.is_file():
            # Name the user's file, not the temporary one.
            raise OSError(error.errno, error.strerror, str(path)) from None
        # A file that is a mount point, or in a directory without write permission, can only be overwritten.
        target.write_text(text, encoding="utf-8")


def _replace(target: Path, text: str) -> None:
    beside = target.with_name(f".mw-budget-{os.getpid()}-{token_hex(4)}")
    try:
        beside.write_text(text, encoding="utf-8")
        if target.exists():
            shutil.copymode(target, beside)
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)


def _is_special(path: Path) -> bool:
    """Whether the path is a device or a pipe, which must not be replaced."""
    return path.exists() and not path.is_file() and not path.is_dir()


def _try(path: Path) -> None:
    """Raise OSError if no file can be written at `path`, and leave nothing behind."""
    if _is_special(path):
        return  # opening a pipe waits for its reader
    target = Path(os.path.realpath(path))
    try:
        target.stat()
    except FileNotFoundError:
        with TemporaryFile(dir=next(above for above in target.parents if above.exists())):
            return
    with target.open("a"):
        pass


def check_distinct(files: Mapping[str, Path]) -> None:
    """Raise SettingError if two of the files are the same. The keys are the options as the user wrote them."""
    seen: dict[str, str] = {}
    for option, path in files.items():
        other = seen.setdefault(os.path.realpath(path), option)
        if other != option:
            raise SettingError(f"{option} is the same file as {other}; give each file its own path", message_id="file")


def _seen_from(page: Path, file: str) -> str:
    """Return the path of `file` as a link in `page`."""
    try:
        return Path(os.path.relpath(file, page.parent)).as_posix()
    except ValueError:  # on another drive
        return file


# The same file, elsewhere and under a name.
JSON, SAVE = Output("json"), Output("save")
# A line of a file of many runs.
HISTORY = Output("history")
# What can be rendered from the JSON.
HTML, MARKDOWN = Output("html", "jinja2"), Output("markdown")
RENDERED = (HTML, MARKDOWN, Output("benchmark-json"))
# What `mwbudget measure` writes.
STORED = (JSON, HTML, MARKDOWN)
