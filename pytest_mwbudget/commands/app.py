"""What the commands that measure an app have in common: headers, the app's own output, tables and files."""

from __future__ import annotations

import platform
import shutil
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, TextIO

from ..errors import MwBudgetError, SettingError
from ..model.measured_run import LeftOut, MeasuredRun
from ..model.results import Result
from ..report.terminal import run
from ..session.artifacts import Output
from ..session.provenance import this_run
from ..storage.codec import storable

# The exit statuses: the last one is that of a program that the user has interrupted, as shells report it.
PASSED, FAILED, INTERRUPTED = 0, 1, 130
# How much of the app's output an error shows.
SHOWN_CHARACTERS = 2000


def headers_of(command_line: Mapping[str, Any]) -> dict[str, str]:
    """Return the headers of the options `NAME: VALUE`.

    Raises SettingError if one is something else, or if two have the same name: only the last one would be sent.
    """
    headers: dict[str, str] = {}
    for name, value in map(_header, command_line["header"] or ()):
        if name.casefold() in map(str.casefold, headers):
            both = "'cookie: a=1; b=2'" if name.casefold() == "cookie" else f"'{name}: first, second'"
            raise SettingError(f"--header gives {name!r} twice; give it once with both values, for example {both}")
        headers[name] = value
    return headers


def _header(line: str) -> tuple[str, str]:
    name, colon, value = line.partition(":")
    if not (colon and name.strip()):
        raise SettingError(f"--header is {line!r}; write for example --header 'authorization: Bearer t'")
    return name.strip(), value.strip()


@contextmanager
def output_apart() -> Iterator[None]:
    """Let what the app prints in the block go to a file: it answers thousands of requests.

    An error of this package gets the end of it as a note.
    """
    with TemporaryFile("w+", encoding="utf-8", errors="backslashreplace") as file:
        aside: Any = _Aside(file)
        try:
            with redirect_stdout(aside), redirect_stderr(aside):
                yield
        except MwBudgetError as error:
            file.seek(0)
            if text := file.read().rstrip():
                error.add_note(f"The app printed:\n{text[-SHOWN_CHARACTERS:]}")
            raise
        finally:
            aside.stream = sys.stderr


class _Aside:
    """Stands for a stream: handlers of the app's loggers may keep it and write to it until the process ends."""

    def __init__(self, stream: IO[str]) -> None:
        self.stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def print_waits(terminal: TextIO) -> Callable[[bool], None]:
    """Return what prints that a wait for another process has begun, and nothing when it ends."""

    def show(waits: bool) -> None:
        if waits:
            print("waiting for another process that measures", file=terminal, flush=True)

    return show


def print_tables(
    results: Sequence[tuple[str, Result]], terminal: TextIO, verbosity: int = 0, in_matrix: Collection[int] = ()
) -> None:
    """Print a line for each request, and the tables of those that need a look."""
    python = f"{platform.python_implementation()} {platform.python_version()}"
    for line in run(results, python, shutil.get_terminal_size().columns, verbosity, in_matrix=in_matrix):
        print(line.text, file=terminal)


def write(
    files: Mapping[Output, Path],
    results: Sequence[tuple[str, Result]],
    left_out: Sequence[LeftOut] = (),
) -> None:
    """Write the results to each of the files."""
    if not files:
        return
    made = this_run((result for _, result in results), Path.cwd())
    stored = storable(MeasuredRun(made, tuple(results), tuple(left_out)))
    for output, path in files.items():
        output.write(path, stored)
