"""Results as reports get them: rows that are no layers are given by their times, their counts and their budgets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pytest_mwbudget.model.measured_run import MeasuredRun
from pytest_mwbudget.model.results import FRAMES, Books, Frame, Judged, Ledger, RequestLine, Result, ResultRow
from pytest_mwbudget.model.runs import Commit, Run
from pytest_mwbudget.report.advice import advise
from pytest_mwbudget.storage import codec

PACKAGES = {"pytest": "9.0.0", "starlette": "1.3.1"}
COMMIT = Commit("a" * 40, uncommitted=False)
RUN = Run("2026-11-23T10:00:00+00:00", "3.13.1", "CPython", "Linux", "asyncio", PACKAGES, COMMIT, "Epyc", "0")
# A value of the result that `but` keeps.
KEPT: Any = object()


def canned(**said: Any) -> Result:
    """Return the result of GET /health; `said` are values as of `but`."""
    return but(Result(request=RequestLine("GET", "/health"), status=200), **said)


def but(
    found: Result,
    *,
    books: Books | None = KEPT,
    ledger: Ledger | None = KEPT,
    budgets: Mapping[Frame, Judged] = KEPT,
    **others: Any,
) -> Result:
    """Return the result with other values. `budgets` are those of the rows that are no layers."""
    books = found.books if books is KEPT else books
    ledger = found.ledger if ledger is KEPT else ledger
    if budgets is KEPT:
        budgets = {frame: row.judged["us"] for frame, row in found.frames.items() if row.judged}
    frames: dict[Frame, ResultRow] = {}
    for frame in FRAMES:
        us, counts, judged = getattr(books, frame, None), getattr(ledger, frame, None), budgets.get(frame)
        if us or counts or judged:
            frames[frame] = replace(ResultRow.of_frame(frame, us, judged), counts=counts)
    return replace(
        found,
        frames=frames,
        residue_us=books.residue_us if books else None,
        counted=ledger.requests if ledger else None,
        uncounted=ledger.why if ledger else {},
        **others,
    )


def one_run(*results: Result, nodeid: str = "t", run: Run = RUN, **others: Any) -> MeasuredRun:
    """Return a run with these results of one test, as it is read from a file."""
    return codec.storable(MeasuredRun(run, tuple((nodeid, result) for result in results), **others))


def as_json(run: MeasuredRun) -> Any:
    """Return the document of a run as parsed from its file."""
    return json.loads(codec.text(codec.document(run, advise)))
