"""The command `mwbudget compare`: what changed between stored results, and whether it is allowed."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..comparison.allowed import parsed
from ..comparison.comparing import compare
from ..comparison.merging import merged
from ..config.table import SETTINGS
from ..report.comparison import lines, markdown
from ..session.artifacts import MARKDOWN, check_distinct, put
from ..session.comparison import since_of
from ..storage.saved_runs import files_in, located, stored_runs

SAME, GROWN = 0, 1


def main(command_line: Mapping[str, Any]) -> int:
    """Compare as the `command_line` says. Returns the exit status: 1 if something grew by more than is allowed.

    Raises MwBudgetError for unusable arguments and files.
    """
    allowed = {} if command_line["fail"] is None else parsed(command_line["fail"], f"--fail={command_line['fail']!r}")
    folder, sides = Path(str(SETTINGS["dir"].default)), []
    for side in ("before", "after"):
        path, name = located(command_line[side], folder, Path(), repr(command_line[side]))
        sides.append((path, name, stored_runs(path, name if path.is_file() else None)))
    page = None if command_line["markdown"] is None else Path(command_line["markdown"])
    if page is not None:
        option = f"--markdown={command_line['markdown']!r}"
        check_distinct({repr(str(file)): file for path, _, _ in sides for file in files_in(path)} | {option: page})
        MARKDOWN.check(page, option)
    (_, name, before), (_, _, after) = sides
    comparison = compare(merged(before), merged(after))
    since = since_of(name, before, comparison, allowed)
    if page is not None:
        put(page, markdown(comparison, since))
    for line in lines(comparison, since, shutil.get_terminal_size().columns):
        print(line.text)
    return GROWN if since.grown else SAME
