"""The files that a command writes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..session.artifacts import Output, check_distinct


def files_of(
    command_line: Mapping[str, Any], outputs: Iterable[Output], sources: Iterable[Path] = ()
) -> dict[Output, Path]:
    """Return the files of these kinds that the command line names.

    Raises SettingError if one cannot be written, or is another one or one of the `sources`.
    """
    options = {
        output: f"--{output.name}={command_line[output.name]!r}"
        for output in outputs
        if command_line[output.name] is not None
    }
    files = {output: Path(command_line[output.name]) for output in options}
    check_distinct(
        {repr(str(source)): source for source in sources} | {options[output]: path for output, path in files.items()}
    )
    for output, path in files.items():
        output.check(path, options[output])
    return files
