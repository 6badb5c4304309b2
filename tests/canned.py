"""Results as reports get them: rows that are no layers are given by their times, their counts and their budgets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pytest_mwbudget.model.results import FRAMES, Books, Frame, Judged, Ledger, RequestLine, Result, ResultRow

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
