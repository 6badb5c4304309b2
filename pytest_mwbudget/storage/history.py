"""The history file: one line a run, appended by any number of processes, read for the HTML page."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..comparison.figures import RequestFigures, RowFigures
from ..comparison.history import HistoryRun, history_run
from ..errors import described, tagged
from ..model.estimate import Estimate, Seconds
from ..model.measured_run import MeasuredRun
from ..model.quantities import TRAITS
from ..model.request_keys import RequestKey
from .codec import COMPLETED, SURROUNDINGS
from .file_lock import held
from .records import LIST, OBJECT, Records, Values, checked

SCHEMA = "pytest-mwbudget-history/1"
# Appending takes milliseconds. After this long, the lock is another program's, or cannot be had.
PATIENCE_S: Seconds = 10.0

RECORDS = Records(
    {
        HistoryRun: {key: SURROUNDINGS.get(key) for key in ("schema", "created", "commit", "environment", "requests")},
        RequestFigures: {
            "nodeid": None,
            "request": None,
            "loop": "loop",
            "slowdown": "slowdown",
            "reference_ns": "reference_ns",
            "load": "load",
            "rows": None,
        },
    },
    COMPLETED,
)


# ---- the file ----------------------------------------------------------------------------------------------------


def append(path: Path, line: str) -> None:
    """Append a line in one write, after a line break if a killed run left a part of a line. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file, held(path, PATIENCE_S):
        file.seek(max(file.seek(0, 2) - 1, 0))
        broken = file.read() not in (b"", b"\n")
        file.write(b"\n" * broken + line.encode())
        file.flush()


def read(path: Path) -> tuple[Sequence[HistoryRun], Sequence[str]]:
    """Read the runs, oldest first, and say which lines are broken. Raises OSError.

    Git's merge=union, and jobs that end in another order than they began, append lines in another order.
    """
    runs: list[tuple[datetime, HistoryRun]] = []
    remarks: list[str] = []
    with path.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                run = read_line(line)
                created = datetime.fromisoformat(run.run.created)
                runs.append((created if created.tzinfo else created.replace(tzinfo=UTC), run))
            except (LookupError, RecursionError, TypeError, ValueError) as error:
                why = described(error)
                remarks.append(tagged(f"line {number} of {str(path)!r} is left out: {why}", "history"))
    return [run for _, run in sorted(runs, key=lambda dated: dated[0])], remarks


# ---- a line ------------------------------------------------------------------------------------------------------


def line_of(run: MeasuredRun) -> str:
    """Return the line of a run: what it was made of, and each figure with both ends of its interval."""
    stored = history_run(run.run, run.measured)
    requests = [
        {**RECORDS.plain(figures), **key._asdict(), "rows": {name: _row(row) for name, row in figures.rows.items()}}
        for key, figures in stored.requests.items()
    ]
    data = RECORDS.plain({**RECORDS.plain(stored), "schema": SCHEMA, "requests": requests})
    return json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n"


def _row(row: RowFigures) -> dict[str, Any]:
    figures = {key: _rounded(key, figure) for key, figure in row.figures.items()}
    return {"clock": row.clock, **figures}


def _rounded(key: str, figure: Estimate) -> list[float]:
    digits = 5 if TRAITS[key].format == "share" else 3
    return [round(end, digits) for end in (figure.estimate, figure.low, figure.high)]


def read_line(line: str) -> HistoryRun:
    """Read a line. Raises LookupError, RecursionError, TypeError or ValueError if it is none."""
    data = checked(OBJECT, json.loads(line))
    if data["schema"] != SCHEMA:
        raise ValueError(f"it has the schema {data['schema']!r}, and this version reads {SCHEMA!r}")
    requests = {
        RequestKey(request["nodeid"], request["request"]): _figures(request)
        for request in checked(LIST, data["requests"])
    }
    return RECORDS.made(HistoryRun, Values(RECORDS.values(HistoryRun, data), requests=requests))


def _figures(data: Mapping[str, Any]) -> RequestFigures:
    rows = {name: _read_row(row) for name, row in checked(OBJECT, data["rows"]).items()}
    return RECORDS.made(RequestFigures, Values(RECORDS.values(RequestFigures, data), rows=rows))


def _read_row(data: Mapping[str, Any]) -> RowFigures:
    figures = {key: _read_figure(ends) for key, ends in checked(OBJECT, data).items() if isinstance(ends, list)}
    return RowFigures(figures, data.get("clock"))


def _read_figure(ends: Sequence[float | None]) -> Estimate:
    return RECORDS.record(Estimate, dict(zip(("estimate", "low", "high"), ends, strict=True)))
