"""Results that earlier runs stored: saved by a name, or in files and directories of files."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import MwBudgetError, SettingError, described, near_miss
from ..model.measured_run import MeasuredRun
from .codec import SCHEMA, measured_run

# The directory of saved runs below that of `mw_budget_dir`.
SAVED = "saved"
# Names become names of files, on any system.
NAME = re.compile(r"\w[\w.+-]*", re.ASCII)
REMEDY = "give a file that --mw-budget-json wrote"


def read(source: Path) -> MeasuredRun:
    """Read the run in a file; MwBudgetError if this version cannot read it."""
    data = _json(source)
    schema = data.get("schema") if isinstance(data, dict) else None
    if schema != SCHEMA:
        raise MwBudgetError(
            f"{str(source)!r} has the schema {schema!r}, and this version reads {SCHEMA!r}; {REMEDY}, and render it"
            f" with the version of pytest-mwbudget that wrote it",
            message_id="file",
        )
    try:
        return measured_run(data)
    except (LookupError, TypeError, ValueError) as error:
        raise MwBudgetError(
            f"{str(source)!r} is not a whole result ({described(error)}); give a file as --mw-budget-json wrote it",
            message_id="file",
        ) from None


def _json(source: Path) -> Any:
    try:
        return json.loads(source.read_text(encoding="utf-8"))
    except OSError as error:
        raise MwBudgetError(f"{str(source)!r} cannot be read: {error}; {REMEDY}", message_id="file") from None
    except (RecursionError, ValueError) as error:
        raise MwBudgetError(f"{str(source)!r} is not JSON: {error}; {REMEDY}", message_id="file") from None


def files_in(source: Path) -> list[Path]:
    """Return the file, or the results in a directory and the directories below it.

    Other JSON files in a directory are passed over. Raises MwBudgetError for a directory without results.
    """
    if not source.is_dir():
        return [source]
    files = [path for path in sorted(source.rglob("*.json")) if path.is_file() and _is_result(path)]
    if not files:
        raise MwBudgetError(
            f"the directory {str(source)!r} has no results; {REMEDY}, or a directory with such files", message_id="file"
        )
    return files


def _is_result(path: Path) -> bool:
    try:
        data = _json(path)
    except MwBudgetError:
        return False
    # Of any version: files of limits and histories have schemas of their own.
    return isinstance(data, dict) and str(data.get("schema", "")).partition("/")[0] == SCHEMA.partition("/")[0]


def stored_runs(source: Path, name: str | None = None) -> dict[str, MeasuredRun]:
    """Read the runs in a file or a directory by name. `name` is that of a saved run, else files have their paths."""
    return {name or str(path): read(path) for path in files_in(source)}


# ---- saved runs ----------------------------------------------------------------------------------------------------


def saved_file(folder: Path, name: str, option: str) -> Path:
    """Return the file of a saved run below the directory of the plugin; SettingError if the name cannot be used."""
    if not NAME.fullmatch(name):
        raise SettingError(
            f"{option} is not a name; use letters, digits, '.', '_', '+' and '-', for example main or v1.2,"
            " and --mw-budget-json=PATH for a file elsewhere"
        )
    return folder / SAVED / f"{name}.json"


def located(name_or_path: str, folder: Path, here: Path, option: str) -> tuple[Path, str]:
    """Return the file or directory of `NAME|PATH`, and how to call it: a saved name wins over a path.

    `folder` is the plugin's directory, `here` the working directory, `option` what the user wrote. Raises SettingError
    with the saved names if there is neither.
    """
    if NAME.fullmatch(name_or_path):
        saved = saved_file(folder, name_or_path, option)
        if saved.is_file():
            return saved, name_or_path
    path = here / name_or_path
    if path.exists():
        return path, name_or_path
    names = saved_names(folder)
    have = f"The names are: {', '.join(names)}" if names else "No run is saved there; --mw-budget-save=NAME saves one"
    raise SettingError(
        f"{option} is neither a run saved in {str(folder / SAVED)!r} nor a file or directory."
        f"{near_miss(name_or_path, names)} {have}",
        message_id="file",
    )


def saved_names(folder: Path) -> Sequence[str]:
    """Return the names of the saved runs."""
    return sorted(path.stem for path in (folder / SAVED).glob("*.json"))
