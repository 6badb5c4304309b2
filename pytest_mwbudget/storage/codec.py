"""The codec: runs and their results as plain data for JSON, and back.

One table says where each key of the JSON is in the records, for writing and for reading. `schema.json` beside this
module describes the file for others: `docs/tables.py` writes the keys of figures into it, and a test holds its keys and
types against the table and the types of the records.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, TypeAlias

from ..model.changes import Change
from ..model.estimate import Estimate
from ..model.measured_run import LeftOut, MeasuredRun
from ..model.quantities import COMPARED, PROCESS_WIDE, TRAITS, Source, from_sources
from ..model.reasons import reasons
from ..model.results import FRAMES, Advice, Count, Counts, Result, ResultRow
from ..model.saves import UNREAD
from ..model.trend import Trend
from .records import LIST, OBJECT, PLAIN, Records, Shape, Values, checked, fields_of

Data: TypeAlias = Mapping[str, Any]
Advise: TypeAlias = Callable[[Result], Iterable[Advice]]

SCHEMA = "pytest-mwbudget/1"
# The one time whose interval has a key of its own.
BUSY: Mapping[str, Shape] = {
    "busy_us": "occupation.busy.estimate",
    "busy_interval_us": ("occupation.busy.low", "occupation.busy.high"),
}


def _named(*keys: str, within: str = "") -> dict[str, Shape]:
    """Return the shape of keys that have the names of fields, of the record at the path `within`."""
    return {key: f"{within}.{key}" if within else key for key in keys}


def _times(source: Source) -> dict[str, Shape]:
    """Return the shape of the times of a source."""
    shapes = (BUSY if traits.name in BUSY else {traits.name: traits.path} for traits in from_sources(source))
    return {key: shape for times in shapes for key, shape in times.items()}


def _count(quantity: str, kinds: str | None, within: str) -> dict[str, Shape]:
    """Return the shape of a count, with its types or names under the key `kinds`."""
    path = f"{within}{quantity}"
    return {**_named("count", "exact", "low", "high", within=path), **({kinds: f"{path}.kinds"} if kinds else {})}


def _counts(within: str = "") -> dict[str, Shape]:
    """Return the shape of counts, which a layer has beside its other keys."""
    counted = [traits for name, traits in TRAITS.items() if traits.counted and name not in ("received", "sent")]
    return {
        **{traits.name: _count(traits.name, traits.kinds, within) for traits in counted},
        "messages": {"receive": f"{within}received.count", "send": f"{within}sent.count"},
        **{key: f"{within}{key}" for key in ("own_types", "ranges", "why")},
    }


ROW: Mapping[str, Shape] = {
    **_named("index", "name", "qualname", "kind", "entered", "runs_task", within="layer"),
    **_named("merged_with", "merged_because", within="layer"),
    "us": "us",
    **_times("savings"),
    **_times("occupation"),
    "blocking": "occupation.blocking",
    **_named("tails", "trend"),
    **_counts("counts."),
    "per_message": "messages",
    "budget_us": "budget_us",
    "budgets": "judged",
    **_named("verdict", "reason"),
    **_named("origin", "adapts", within="layer"),
    "load": "load",
    "mostly_c": None,
}
RESULT: Mapping[str, Shape] = {
    "nodeid": None,
    **_named("request", "route", "surveyed"),
    "budget_place": "place",
    **_named("status", "loop", "verdict"),
    **_named("rounds", "requests", "seconds", within="effort"),
    **_named("floor_us", "slowdown", "reference_ns"),
    "total_us": "frames.total.us",
    "total_budget_us": "frames.total.judged.us.bound",
    "total_verdict": "frames.total.judged.us.verdict",
    "total_reason": "frames.total.judged.us.reason",
    "outside_us": "frames.outside.us",
    "endpoint_us": "frames.endpoint.us",
    "residue_us": "residue_us",
    "outside": "frames.outside.judged.us",
    "endpoint": {
        **_named("parts", "closed", within="endpoint"),
        "judged": "frames.endpoint.judged.us",
        **_named("notes", "observed", within="endpoint"),
    },
    "layers": "layers",
    "ledger": {"requests": "counted", **{frame: f"frames.{frame}.counts" for frame in FRAMES}, "why": "uncounted"},
    **_named("recorded", "notes", "disturbed", "profile"),
    "advice": None,
    **_named("changes", "load"),
}
# What begins a document and a line of the history.
SURROUNDINGS: Mapping[str, Shape] = {
    "schema": None,
    "created": "run.created",
    "environment": {
        **_named("python", "implementation", "platform", "loop", within="run"),
        **_named("processor", "hash_seed", "packages", within="run"),
    },
    "commit": "run.commit",
}
RUN: Mapping[str, Shape] = {
    **SURROUNDINGS,
    "measurements": None,
    **_named("left_out", "survey"),
    "comparison": "since",
}

SHAPES: Mapping[type, Mapping[str, Shape]] = {
    MeasuredRun: RUN,
    Result: RESULT,
    ResultRow: ROW,
    Counts: _counts(),
    Trend: _named(*fields_of(Trend), "grows"),
    # What a comparison allowed is said in the sentences of `since`.
    Change: _named(*(name for name in fields_of(Change) if name not in ("most", "verdict"))),
}
UNKNOWN = {"residue_us": math.nan, "floor_us": math.inf}
COMPLETED: Mapping[type, Callable[[Data], Data]] = {
    # An end that is infinite is null.
    Estimate: lambda ends: {"estimate": 0.0, "low": -math.inf, "high": math.inf, **ends},
    # Of messages only the median is written.
    Count: lambda numbers: {"low": numbers["count"], "high": numbers["count"], **numbers},
    # Of a result that was timed, a number that is not finite is null.
    Result: lambda known: {
        **known,
        **{name: number for name, number in UNKNOWN.items() if known["effort"] and known[name] is None},
    },
}
RECORDS = Records(SHAPES, COMPLETED)


# ---- write -------------------------------------------------------------------------------------------------------


def document(run: MeasuredRun, advise: Advise = lambda result: ()) -> dict[str, Any]:
    """Return a run as in a whole file. `advise` gives the advice on a result."""
    measurements = [measurement(nodeid, result, advise(result)) for nodeid, result in run.measured]
    return {**RECORDS.plain(run), "schema": SCHEMA, "measurements": measurements}


def text(data: Data) -> str:
    """Return the text of a file of plain data."""
    return json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def measurement(nodeid: str, result: Result, advice: Iterable[Advice] = ()) -> dict[str, Any]:
    """Return a result with the id of its test, and advice on it."""
    data = RECORDS.plain(result)
    rows = [*zip(result.layers, data["layers"], strict=True)]
    for row, row_data in rows:
        row_data["mostly_c"] = row.mostly_c(result.slowdown or 1.0)
    if result.endpoint is not None:
        rows += zip(result.endpoint.parts, data["endpoint"]["parts"], strict=True)
    for row, row_data in rows:
        row_data["why"] = RECORDS.plain(reasons(row, result))
    for counts in (*(row_data for _, row_data in rows), *(data["ledger"][frame] for frame in FRAMES)):
        if counts and counts["objects"] is None:
            counts["own_types"] = None
    return {**data, "nodeid": RECORDS.plain(nodeid), "advice": RECORDS.plain([*advice])}


# ---- read --------------------------------------------------------------------------------------------------------


def measured_run(data: Data) -> MeasuredRun:
    """Read a whole file. Advice is not read but derived from the results again.

    Raises LookupError, TypeError or ValueError if the data are of something else.
    """
    run = RECORDS.record(MeasuredRun, data)
    if datetime.fromisoformat(run.run.created).tzinfo is None:
        raise ValueError(f"created is {run.run.created!r}, which has no time zone")
    return replace(run, measured=tuple(map(measured, checked(LIST, data["measurements"]))))


def storable(run: MeasuredRun) -> MeasuredRun:
    """Return a run as it is read from its file: with texts that can be written, whatever the app calls its things."""
    return measured_run(document(run))


def measured(data: Data) -> tuple[str, Result]:
    """Read a result with the id of its test."""
    return checked(PLAIN[str], checked(OBJECT, data)["nodeid"]), result(data)


def left_out(data: Data) -> LeftOut:
    """Read a request that was not measured."""
    return RECORDS.record(LeftOut, data)


def result(data: Data) -> Result:
    """Read a result that `measurement` wrote."""
    values, uncounted = RECORDS.values(Result, data), checked(OBJECT, checked(OBJECT, data["ledger"])["why"])
    values["layers"] = tuple(_row(row, uncounted) for row in checked(LIST, data["layers"]))
    if "endpoint" in values:
        values["endpoint"]["parts"] = tuple(_row(row, uncounted) for row in checked(LIST, data["endpoint"]["parts"]))
    for frame, row in values.get("frames", {}).items():
        row["layer"] = ResultRow.of_frame(frame).layer
    whole = RECORDS.made(Result, values)
    _check_names(whole)
    return whole


def _check_names(result: Result) -> None:
    """Raise ValueError if a part of a result names a layer or a quantity that does not exist."""
    layers = [row.layer.index for row in result.layers]
    for index in result.profile.hottest if result.profile else ():
        if index not in layers:
            raise ValueError(f"the profile has functions of layer {index}, and the layers are {layers}")
    for change in result.changes:
        if change.quantity not in COMPARED:
            raise ValueError(f"a change has the quantity {change.quantity!r}, which is none of {COMPARED}")


def _row(data: Data, uncounted: Data) -> ResultRow:
    """Read a layer or a part. `uncounted` says by quantity why it could not be counted for any row."""
    whys = checked(OBJECT, checked(OBJECT, data)["why"])
    why = {key: reason for key, reason in whys.items() if key in PROCESS_WIDE and key not in uncounted}
    values = RECORDS.values(ResultRow, {**data, "why": None if data["messages"] is None else why})
    if "us" in values and "saves" not in values and whys.get("saves_us") != UNREAD:
        values["saves"] = Values(why=whys.get("saves_us"))
    return RECORDS.made(ResultRow, values)
