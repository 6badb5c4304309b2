"""Results that earlier runs stored: saved by a name, or in files and directories of files."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from ..comparison.merging import StoredRun
from ..errors import MwBudgetError, SettingError, described, near_miss
from ..report.json import SCHEMA, compared, encodable, left_out, measured, run_of, surveyed, to_json
from ..report.merged import merged_documents

# The directory of saved runs below that of `mw_budget_dir`.
SAVED = "saved"
# Names become names of files, on any system.
NAME = re.compile(r"\w[\w.+-]*", re.ASCII)
REMEDY = "give a file that --mw-budget-json wrote"
# The errors that reading and rendering raise for data of another shape.
MISSHAPEN = (ArithmeticError, AssertionError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
ENVIRONMENT = ("python", "implementation", "platform", "loop", "packages", "processor", "hash_seed")


def misshapen(source: object, error: Exception) -> MwBudgetError:
    """Return the error for a file that has the schema's name and another shape."""
    return MwBudgetError(
        f"{str(source)!r} is not a whole result ({described(error)}); give a file as --mw-budget-json wrote it",
        message_id="file",
    )


def read(source: Path) -> Mapping[str, Any]:
    """Read the document in a file; MwBudgetError if this version cannot read it."""
    try:
        document = json.loads(source.read_text(encoding="utf-8"))
    except OSError as error:
        raise MwBudgetError(f"{str(source)!r} cannot be read: {error}; {REMEDY}", message_id="file") from None
    except (RecursionError, ValueError) as error:
        raise MwBudgetError(f"{str(source)!r} is not JSON: {error}; {REMEDY}", message_id="file") from None
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema != SCHEMA:
        raise MwBudgetError(
            f"{str(source)!r} has the schema {schema!r}, and this version reads {SCHEMA!r}; {REMEDY}, and render it"
            f" with the version of pytest-mwbudget that wrote it",
            message_id="file",
        )
    return cast("Mapping[str, Any]", document)


def whole(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document as this version writes it; raises an error of MISSHAPEN if parts are missing."""
    for part in (run_of, left_out, surveyed, compared):
        part(document)
    environment = {key: document["environment"][key] for key in ENVIRONMENT}
    measurements = [to_json(result, nodeid) for nodeid, result in measured(document)]
    return cast("dict[str, Any]", encodable({**document, "environment": environment, "measurements": measurements}))


def together_of(sources: Sequence[Path]) -> tuple[dict[str, Any], Sequence[str]]:
    """Read the documents of several files as one, and say which requests several of them have.

    Raises MwBudgetError if a file is no whole result.
    """
    documents = {str(source): _wholly(source) for source in sources}
    if len(documents) == 1:
        return next(iter(documents.values())), ()
    return merged_documents(documents)


def _wholly(source: Path) -> dict[str, Any]:
    document = read(source)
    try:
        return whole(document)
    except MISSHAPEN as error:
        raise misshapen(source, error) from None


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
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, RecursionError, ValueError):
        return False
    return isinstance(document, dict) and str(document.get("schema", "")).startswith(SCHEMA.partition("/")[0])


def stored_runs(source: Path, name: str | None = None) -> list[StoredRun]:
    """Read the runs in a file or a directory. `name` is that of a saved run, else files have their paths."""
    runs = []
    for path in files_in(source):
        document = read(path)
        try:
            runs.append(StoredRun(name or str(path), run_of(document), measured(document)))
        except MISSHAPEN as error:
            raise misshapen(path, error) from None
    return runs


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
