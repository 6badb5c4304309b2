"""The command `mwbudget compare`: what changed between stored results, and whether it is allowed."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ..comparison.allowed import parsed
from ..comparison.run_sets import merged
from ..comparison.two_runs import compare
from ..config.table import SETTINGS
from ..report import gfm, lines
from ..report.comparison import for_page, for_terminal, left_out
from ..session.artifacts import MARKDOWN, put
from ..session.baseline import since_of
from ..storage.saved_runs import files_in, located, stored_runs
from .app import FAILED, PASSED
from .files import files_of


def main(command_line: Mapping[str, Any]) -> int:
    """Compare as the `command_line` says. Returns the exit status: 1 if something grew by more than is allowed.

    Raises MwBudgetError for unusable arguments and files.
    """
    allowed = parsed(command_line["fail"], "--fail")
    folder, sides = Path(str(SETTINGS["dir"].default)), []
    for side in ("before", "after"):
        path, name = located(command_line[side], folder, Path(), repr(command_line[side]))
        sides.append((path, name, stored_runs(path, name if path.is_file() else None)))
    files = files_of(command_line, (MARKDOWN,), [file for path, _, _ in sides for file in files_in(path)])
    (_, name, before), (_, _, after) = sides
    comparison = compare(merged(before), merged(after), allowed)
    since = since_of(name, before, comparison)
    for page in files.values():
        put(page, gfm.render(for_page(comparison, since), gfm.MAX_COMMENT, partial(left_out, "mwbudget compare")))
    for line in lines.render(for_terminal(comparison, since), shutil.get_terminal_size().columns):
        print(line.text)
    return FAILED if since.grown else PASSED
