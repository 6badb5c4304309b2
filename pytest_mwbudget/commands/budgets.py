"""The command `mwbudget budgets merge`: join files of limits."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from ..errors import SettingError
from ..limits.file import LimitsFile, parsed, text_of
from ..limits.merging import merged
from ..session.artifacts import put


def merge(files: Sequence[str], output: str | None, base: str | None) -> None:
    """Merge files, and write the result to `output` or print it.

    The `base` is what the files were made of. Unless it is named, it is the file at `output`, if there is one and it is
    not among the files. Raises SettingError for a file that cannot be read.
    """
    limits_files = [_read(file) for file in files]
    if base is None and output is not None and Path(output).exists():
        among = Path(output).resolve() in [Path(file).resolve() for file in files]
        base = None if among else output
    text = text_of(merged(limits_files, None if base is None else _read(base, empty=True)))
    if output is None:
        sys.stdout.write(text)
    else:
        put(Path(output), text)


def _read(file: str, *, empty: bool = False) -> LimitsFile:
    """Read a file. With `empty` it may be empty, as git hands over a base that does not exist."""
    try:
        text = Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(
            f"{file!r} cannot be read: {error}; give files that --mw-budget-update wrote", message_id="limits-file"
        ) from None
    return LimitsFile() if empty and not text.strip() else parsed(text, repr(file))
