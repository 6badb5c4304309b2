"""The file of limits: reading, writing, choosing a section, judging, updating and merging. All pure."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_mwbudget.errors import SettingError
from pytest_mwbudget.limits.costs import Cost, costs, room_us
from pytest_mwbudget.limits.file import SCHEMA, Limit, LimitsFile, Place, parsed, text_of
from pytest_mwbudget.limits.judging import changed, judged, without_limits
from pytest_mwbudget.limits.merging import merged
from pytest_mwbudget.limits.sections import Surroundings, chosen
from pytest_mwbudget.limits.updating import Measured, Rules, rounded_up, unused_places, updated
from pytest_mwbudget.model.estimate import Estimate
from pytest_mwbudget.model.quantities import COUNTED, RECORDABLE, Quantity
from pytest_mwbudget.model.request_keys import RequestKey
from pytest_mwbudget.model.results import Counts, Verdict
from pytest_mwbudget.model.saves import Saves

from .canned import but
from .test_report_json import RESULT

pytestmark = pytest.mark.once

HERE = Surroundings("CPython", "3.13.2", "asyncio", "Linux x86_64")
SECTION, CPU = HERE.section, "AMD EPYC 7763"
KEY = RequestKey("tests/test_shop.py::test_health", "GET /health")
PLACE = Place(SECTION, *KEY, "CORSMiddleware", "objects")


def place(**changes: Any) -> Place:
    return PLACE._replace(**changes)


# ---- the file ----------------------------------------------------------------------------------------------------

FILE = LimitsFile(
    {
        place(row="(total)"): Limit(165),
        place(): Limit(456, 444),
        place(quantity="tasks"): Limit(0),
        place(quantity="us", processor=CPU): Limit(12.5, reason="a header more"),
        place(section="CPython 3.12.1, trio, Linux x86_64", row="Auth"): Limit(7, reason="keys ü"),
    },
    {(SECTION, "starlette"): "1.0", (SECTION, "fastapi"): "0.120"},
)
TEXT = """\
{
 "schema": "pytest-mwbudget-limits/1",
 "sections": {
  "CPython 3.12.1, trio, Linux x86_64": {
   "packages": {},
   "tests": {
    "tests/test_shop.py::test_health": {
     "GET /health": {
      "Auth": {"objects": {"limit": 7, "reason": "keys ü"}}
     }
    }
   }
  },
  "CPython 3.13.2, asyncio, Linux x86_64": {
   "packages": {
    "fastapi": "0.120",
    "starlette": "1.0"
   },
   "tests": {
    "tests/test_shop.py::test_health": {
     "GET /health": {
      "(total)": {"objects": 165},
      "CORSMiddleware": {"us": {"AMD EPYC 7763": {"limit": 12.5, "reason": "a header more"}}, "objects": [444, 456], "tasks": 0}
     }
    }
   }
  }
 }
}
"""  # noqa: E501


def test_a_file_is_sorted_with_a_line_for_each_row() -> None:
    assert text_of(FILE) == TEXT
    assert parsed(TEXT, "'f'") == FILE
    assert parsed(text_of(LimitsFile()), "'f'") == LimitsFile()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "'f' is not JSON: .*; correct it, or restore the committed version"),
        ("[1]", "'f' has the schema None, and this version of pytest-mwbudget reads 'pytest-mwbudget-limits/1'; use"),
        ('{"schema": "pytest-mwbudget-limits/2"}', "'f' has the schema 'pytest-mwbudget-limits/2', and this version"),
        (
            f'{{\n<<<<<<< HEAD\n"schema": "{SCHEMA}"\n=======\n',
            "'f' has a merge conflict in line 2; resolve it, or",
        ),
        (f'{{"schema": "{SCHEMA}", "schema": 1}}', "'f' is not JSON: the key 'schema' occurs twice in one object"),
        (f'{{"schema": "{SCHEMA}", "sections": []}}', r"'f': sections: \[\] is not an object; restore the committed"),
        (
            f'{{"schema": "{SCHEMA}", "sections": {{"3.13": {{}}}}}}',
            "'f': '3.13' is not the name of a section; write it",
        ),
    ],
)
def test_a_file_that_cannot_be_used_is_explained(text: str, said: str) -> None:
    with pytest.raises(SettingError, match=said) as raised:
        parsed(text, "'f'")
    assert raised.value.message_id == "limits-file"


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"objects": "5"}, 'CORSMiddleware, objects is "5", which is no limit; write 478, or'),
        ({"objects": -1}, "which is no limit"),
        ({"objects": True}, "which is no limit"),
        ({"objects": 1.5}, "which is no limit"),
        ({"objects": [456, 444]}, r"is \[456, 444\], which is no limit"),
        ({"objects": {"limit": 5}}, "which is no limit"),
        ({"objects": {"limit": 5, "reason": "x", "more": 1}}, "which is no limit"),
        ({"objekts": 5}, "CORSMiddleware has a limit of 'objekts'. Did you mean 'objects'\\? The quantities are: us,"),
        ({"us": 5}, "CORSMiddleware, us: 5 is not an object"),
        ({"us": {"AMD": "fast"}}, "us, 'AMD' is \"fast\", which is no limit; write a number of microseconds"),
        (5, "GET /health, CORSMiddleware: 5 is not an object"),
    ],
)
def test_a_limit_that_is_none_is_named_with_its_place(row: Any, said: str) -> None:
    tests = {KEY.nodeid: {KEY.request: {"CORSMiddleware": row}}}
    text = json.dumps({"schema": SCHEMA, "sections": {SECTION: {"packages": {}, "tests": tests}}})
    with pytest.raises(SettingError, match=said):
        parsed(text, "'f'")


def test_a_version_is_text() -> None:
    text = json.dumps({"schema": SCHEMA, "sections": {SECTION: {"packages": {"fastapi": 1}, "tests": {}}}})
    with pytest.raises(SettingError, match="packages, 'fastapi' is 1; write the version as text"):
        parsed(text, "'f'")


# ---- sections ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "found"),
    [("3.13.2", "3.13.2"), ("3.13.3", "3.13.4"), ("3.13.9", "3.13.4"), ("3.13.0rc1", "3.13.2"), ("3.12.0", None)],
)
def test_the_nearest_patch_release_is_chosen(version: str, found: str | None) -> None:
    names = [replace(HERE, version=release).section for release in ("3.13.2", "3.13.4", "3.14.0")]
    here = replace(HERE, version=version)
    assert chosen(names, here) == (found and replace(HERE, version=found).section)
    assert chosen(names, replace(here, loop="trio")) is None
    assert chosen(names, replace(here, platform="Darwin arm64")) is None
    assert chosen(names, replace(here, implementation="PyPy")) is None


def test_what_changed_is_named() -> None:
    recorded = {"starlette": "1.0", "fastapi": "0.120", "gone": "1"}
    installed = {"starlette": "1.1", "fastapi": "0.120", "new": "2"}
    assert [*changed(SECTION, recorded, replace(HERE, version="3.13.5"), installed)] == [
        "CPython 3.13.2, here CPython 3.13.5",
        "starlette 1.0, here 1.1",
    ]
    assert [*changed(SECTION, recorded, HERE, recorded)] == []


# ---- judging -----------------------------------------------------------------------------------------------------


def test_each_row_is_judged_by_its_limits() -> None:
    limits = {
        place(row="GZipMiddleware", quantity="objects"): Limit(4),
        place(row="GZipMiddleware", quantity="tasks"): Limit(1),
        place(row="(total)", quantity="threads"): Limit(1),
        place(row="Auth#2", quantity="objects"): Limit(0),  # not entered
        place(row="Gone", quantity="objects"): Limit(0),
        place(row="Mount", quantity="objects"): Limit(0),
        place(row="(total)", quantity="us", processor="another"): Limit(0),
    }
    verdicts = {(limit.row, limit.quantity): (limit.verdict, limit.value) for limit in judged(RESULT, limits, CPU)}
    assert verdicts == {
        ("GZipMiddleware", "objects"): ("undecided", None),  # Mount is measured together with it, and has a limit
        ("GZipMiddleware", "tasks"): ("undecided", None),
        ("(total)", "threads"): ("fail", 2),
        ("Mount", "objects"): ("undecided", None),
    }
    del limits[place(row="Mount", quantity="objects")]
    verdicts = {(limit.row, limit.quantity): (limit.verdict, limit.value) for limit in judged(RESULT, limits, CPU)}
    assert verdicts["GZipMiddleware", "objects"] == ("undecided", 5)  # 4 to 7
    assert verdicts["GZipMiddleware", "tasks"] == ("pass", 1)


@pytest.mark.parametrize("row", ["(outside)", "GZipMiddleware", "(endpoint)", "(total)"])
@pytest.mark.parametrize(("most", "verdict"), [(299, "fail"), (300, "undecided"), (399, "undecided"), (400, "pass")])
def test_a_count_without_a_typical_number_is_judged_by_its_range_in_every_row(
    row: str, most: int, verdict: str
) -> None:
    def varies(counts: Counts | None) -> Counts | None:
        return counts and replace(counts, bytecodes=None, ranges={"bytecodes": (300, 400)})

    ledger = RESULT.ledger
    assert ledger is not None
    result = but(
        RESULT,
        layers=tuple(replace(report, counts=varies(report.counts)) for report in RESULT.layers),
        ledger=replace(ledger, **{name: varies(getattr(ledger, name)) for name in ("outside", "endpoint", "total")}),  # type: ignore[arg-type]
    )
    (limit,) = judged(result, {place(row=row, quantity="bytecodes"): Limit(most)}, CPU)
    assert (limit.verdict, limit.value) == (verdict, 300)
    assert "300 to 400" in (limit.reason or "") if verdict == "undecided" else limit.reason is None


def test_a_time_is_judged_by_its_interval() -> None:
    assert RESULT.books is not None
    total = RESULT.books.total
    quiet = replace(RESULT, slowdown=1.0)
    for most, verdict in ((total.low / 1.2, "fail"), (total.estimate, "undecided"), (total.high, "pass")):
        limits = {place(row="(total)", quantity="us", processor=CPU): Limit(most)}
        (limit,) = judged(quiet, limits, CPU)
        assert (limit.verdict, limit.value) == (verdict, total.estimate)
        assert (limit.reason is None) == (verdict != "undecided")
    limits = {place(row="(total)", quantity="us", processor=CPU): Limit(total.low / 1.2)}
    (slow,) = judged(replace(RESULT, slowdown=1.5), limits, CPU)
    (crowded,) = judged(quiet, limits, CPU, crowded="another process measures")
    assert (slow.verdict, crowded.verdict, crowded.reason) == ("undecided", "undecided", "another process measures")


def test_the_total_needs_no_detection_limit_and_a_time_without_an_interval_is_not_known() -> None:
    books = RESULT.books
    assert books is not None
    limits = {
        place(row=row, quantity="us", processor=CPU): Limit(us.high)
        for row, us in (("(outside)", books.outside), ("(total)", books.total))
    }
    coarse = replace(RESULT, slowdown=1.0, floor_us=1e6)
    outside, total = judged(coarse, limits, CPU)
    assert (outside.verdict, total.verdict) == ("undecided", "pass")
    assert str(outside.reason).endswith("[below-detection-limit]")
    unknown = Estimate(10.0, -math.inf, math.inf)
    outside, total = judged(but(coarse, books=replace(books, outside=unknown)), limits, CPU)
    assert (outside.value, outside.reason) == (None, "its time is not known [too-few-requests]")
    untold = but(coarse, books=replace(books, outside=unknown), ledger=None)
    assert [limit.row for limit in judged(untold, limits, CPU)] == ["(total)"]


@pytest.mark.parametrize(("saved_us", "verdict"), [(2.0, "undecided"), (500.0, "fail"), (None, "fail")])
def test_a_broken_time_that_leaving_the_layer_out_contradicts_is_undecided(
    saved_us: float | None, verdict: Verdict
) -> None:
    row = max(RESULT.layers, key=lambda report: report.us.estimate if report.us else 0.0)
    assert row.us is not None
    saves = Saves(None, "why") if saved_us is None else Saves(Estimate(saved_us, saved_us - 1, saved_us + 1))
    layers = tuple(replace(report, saves=saves) if report is row else report for report in RESULT.layers)
    limits = {place(row=row.name, quantity="us", processor=CPU): Limit(row.us.low / 1.3)}
    (limit,) = judged(replace(RESULT, slowdown=1.0, layers=layers), limits, CPU)
    assert limit.verdict == verdict
    if verdict == "undecided":
        assert "a whole request without it is 2.0 µs shorter" in str(limit.reason)


def test_a_time_that_may_be_a_wait_for_threads_or_of_other_requests_does_not_fail() -> None:
    row = max(RESULT.layers, key=lambda report: report.us.estimate if report.us else 0.0)
    assert row.us is not None
    limits = {place(row=row.name, quantity="us", processor=CPU): Limit(row.us.low / 1.3)}
    cases: list[tuple[dict[str, Any], str]] = [
        ({}, "None"),
        ({"waited_us": row.us.low}, "[slow-machine]"),
        ({"unsure": "why [other-way]"}, "why [other-way]"),
    ]
    for told, end in cases:
        layers = tuple(replace(report, **told) if report is row else report for report in RESULT.layers)
        (limit,) = judged(replace(RESULT, slowdown=1.0, layers=layers), limits, CPU)
        assert str(limit.reason).endswith(end)
        assert limit.verdict == ("undecided" if told else "fail")


def test_a_count_that_is_not_counted_here_is_undecided() -> None:
    assert RESULT.ledger is not None
    without = replace(RESULT.ledger, why={"objects": "no compiler"}, total=replace(RESULT.ledger.total, objects=None))
    (limit,) = judged(but(RESULT, ledger=without), {place(row="(total)"): Limit(1)}, CPU)
    assert limit.verdict == "undecided"
    assert limit.reason == "objects cannot be counted here: no compiler [uncountable]"
    alone = replace(without, why={}, total=replace(without.total, why={"objects": "it differs"}))
    (limit,) = judged(but(RESULT, ledger=alone), {place(row="(total)"): Limit(1)}, CPU)
    assert limit.reason == "objects cannot be counted here: it differs [uncountable]"


def test_a_row_without_a_limit_is_missing() -> None:
    rows = without_limits(RESULT, {place(row="(total)"): Limit(1)}, ("objects", "us"))
    assert "GZipMiddleware" in rows
    assert "(total)" not in rows
    assert "Auth#2" not in rows  # not entered
    assert without_limits(RESULT, {}, ("us",)) == []


# ---- costs -------------------------------------------------------------------------------------------------------


def of_count(count: int | None, low: int, high: int) -> Cost:
    return Cost.of(Estimate(low if count is None else count, low, high), counted=True)


def test_processes_that_differ_leave_room_for_other_processes() -> None:
    first, second = of_count(444, 444, 446), of_count(450, 449, 450)
    both = first.with_another(second)
    assert both == second.with_another(first) == Cost(444, 450, 444, 450, 6)
    assert (first.end, both.end) == (448, 456)
    assert both.differs
    assert not first.differs


def test_a_test_that_costs_more_alone_gets_this_as_limit_without_room_for_the_difference() -> None:
    after_others, alone = of_count(130, 130, 132), of_count(274, 270, 276)
    for cost in (after_others.or_higher(alone), alone.or_higher(after_others)):
        assert (cost.low, cost.high, cost.end, cost.differs) == (130, 276, 276 + 6, False)


def test_a_count_without_a_typical_number_is_recorded_as_its_range() -> None:
    assert RESULT.ledger is not None
    counts = replace(RESULT.ledger.total, bytecodes=None, ranges={"bytecodes": (3085, 3358)})
    cost = costs(but(RESULT, ledger=replace(RESULT.ledger, total=counts)), ["bytecodes"])["(total)"]["bytecodes"]
    assert (cost.low, cost.typical, cost.high, cost.end) == (3085, 3085, 3358, 3358 + 273)
    limits = after(LimitsFile(), {"bytecodes": cost}, replace(rules("create"), quantities=("bytecodes",)))
    assert limits == {"bytecodes": Limit(3631, 3085)}


def test_only_a_certain_time_is_recorded() -> None:
    quiet = replace(RESULT, slowdown=1.0)
    assert "us" in costs(quiet, ["us"])["(total)"]
    assert "(total)" not in costs(replace(RESULT, slowdown=1.2), ["us"])
    assert quiet.books is not None
    wide = replace(quiet.books, total=Estimate(100, 60, 140))
    assert "(total)" not in costs(but(quiet, books=wide), ["us"])


# ---- updating ----------------------------------------------------------------------------------------------------

ROWS = ("(endpoint)", "(total)", "A", "B")
RECORDED: tuple[Quantity, ...] = ("us", "objects", "tasks")


def rules(*modes: str, reason: str | None = "why") -> Rules:
    return Rules(frozenset(modes), RECORDED, CPU, reason)


def measured(cost: Mapping[Quantity, Cost], row: str = "A", **ceilings: float) -> dict[RequestKey, Measured]:
    return {KEY: Measured(frozenset(ROWS), {row: cost}, {(row, quantity): most for quantity, most in ceilings.items()})}  # type: ignore[misc]


def exact(number: int) -> Cost:
    return of_count(number, number, number)


def of(**limits: Limit) -> LimitsFile:
    return LimitsFile(
        {place(row="A", quantity=q, processor=CPU if q == "us" else ""): limit for q, limit in limits.items()},
        {(SECTION, "starlette"): "1"},
    )


def after(file: LimitsFile, cost: Mapping[Quantity, Cost], how: Rules, **ceilings: float) -> dict[str, Limit]:
    updated_file = updated(file, HERE, measured(cost, **ceilings), (), {"starlette": "1"}, how).file
    return {where.quantity: limit for where, limit in updated_file.limits.items()}


def test_create_writes_counts_exactly_and_times_with_room() -> None:
    cost: dict[Quantity, Cost] = {
        "us": Cost.of(Estimate(100, 98, 103), counted=False),
        "objects": exact(7),
        "tasks": exact(0),
    }
    cost["objects"] = cost["objects"].with_another(exact(9))
    update = updated(LimitsFile(), HERE, measured(cost), (), {"starlette": "1"}, rules("create"))
    assert update.file == of(us=Limit(130), objects=Limit(11, 7), tasks=Limit(0))
    assert {change.kind for change in update.changes} == {"created"}
    assert update.of_counts == {KEY.nodeid}
    assert after(LimitsFile(), cost, rules("trim", "fix")) == {}


def test_no_limit_is_created_above_a_ceiling() -> None:
    cost: dict[Quantity, Cost] = {"objects": exact(7).with_another(exact(9))}
    assert after(LimitsFile(), cost, rules("create"), objects=10)["objects"] == Limit(10, 7)
    assert after(LimitsFile(), cost, rules("create"), objects=8) == {"objects": Limit(8, 7)}
    assert after(LimitsFile(), cost, rules("create"), objects=6) == {}


@pytest.mark.parametrize(
    ("limit", "cost", "trimmed"),
    [
        (Limit(16), exact(10), None),
        (Limit(17), exact(10), Limit(10)),
        (Limit(1), exact(0), Limit(0)),
        (Limit(40, reason="old"), exact(10), Limit(10)),
        (Limit(40, 10), exact(10), None),  # it varies, and this is in its range
        (Limit(40, 20), exact(10), Limit(10)),
    ],
)
def test_trim_lowers_counts_to_their_high_end(limit: Limit, cost: Cost, trimmed: Limit | None) -> None:
    assert after(of(objects=limit), {"objects": cost}, rules("create", "trim"))["objects"] == (trimmed or limit)
    assert after(of(objects=limit), {"objects": cost}, rules("create"))["objects"] == limit


@pytest.mark.parametrize(("most", "trimmed"), [(160, None), (161, 130), (100, None)])
def test_trim_lowers_times_to_their_room(most: float, trimmed: float | None) -> None:
    limits = after(of(us=Limit(most)), {"us": Cost.of(Estimate(100, 98, 102), counted=False)}, rules("trim"))
    assert limits["us"].most == (trimmed or most)


@pytest.mark.parametrize(
    ("before", "number", "share", "is_large"),
    [
        (100, 115, 0.15, False),
        (100, 116, 0.16, True),
        (49, 72, 23 / 49, True),
        (1, 2, 1.0, True),
        (0, 1, math.inf, True),
    ],
)
def test_fix_raises_to_what_the_test_needs(before: int, number: int, share: float, is_large: bool) -> None:
    update = updated(of(objects=Limit(before)), HERE, measured({"objects": exact(number)}), (), {}, rules("fix"))
    assert update.file.limits[place(row="A")] == Limit(number, reason="why")
    (change,) = update.changes
    assert change.share == pytest.approx(share)
    assert change.is_large is is_large


def test_fix_leaves_a_limit_that_is_not_broken() -> None:
    update = updated(of(objects=Limit(100)), HERE, measured({"objects": exact(100)}), (), {}, rules("fix"))
    assert update.changes == ()


@pytest.mark.parametrize(("modes", "raised"), [(("create", "trim"), False), (("create", "trim", "fix"), True)])
def test_a_limit_in_the_range_of_a_count_is_broken(modes: tuple[str, ...], raised: bool) -> None:
    """The typical request keeps it, and the next run may not."""
    varies: dict[Quantity, Cost] = {"objects": of_count(98, 96, 118)}
    update = updated(of(objects=Limit(102)), HERE, measured(varies), (), {}, rules(*modes))
    assert update.file.limits[place(row="A", quantity="objects")] == (Limit(140, 96, "why") if raised else Limit(102))
    assert ([broken.place.quantity for broken in update.broken] == ["objects"]) is not raised
    assert update.of_counts == {KEY.nodeid}
    kept = updated(of(objects=Limit(118)), HERE, measured(varies), (), {}, rules(*modes))
    assert (kept.changes, kept.broken) == ((), ())


def test_a_limit_at_its_ceiling_is_not_broken_by_a_range() -> None:
    varies: dict[Quantity, Cost] = {"objects": of_count(98, 96, 118)}
    update = updated(of(objects=Limit(102)), HERE, measured(varies, objects=102), (), {}, rules("fix"))
    assert (update.changes, update.refused, update.broken) == ((), (), ())


def test_fix_never_passes_a_ceiling() -> None:
    head, how = of(objects=Limit(100)), rules("fix")
    (refused,) = updated(head, HERE, measured({"objects": exact(110)}, objects=105), (), {}, how).refused
    assert (refused.cost, refused.limit, refused.ceiling) == (110, 100, 105)
    cost: dict[Quantity, Cost] = {"objects": Cost(101, 104, 101, 104, 3)}
    assert after(head, cost, how, objects=105)["objects"] == Limit(105, 101, "why")


def test_where_one_row_is_refused_no_other_of_its_request_is_raised() -> None:
    file = LimitsFile({place(row="A"): Limit(10), place(row="(total)"): Limit(1000)})
    costs: dict[str, dict[Quantity, Cost]] = {"A": {"objects": exact(20)}, "(total)": {"objects": exact(1010)}}
    run = {KEY: Measured(frozenset(ROWS), costs, {("A", "objects"): 15})}
    update = updated(file, HERE, run, (), {}, rules("fix"))
    assert [refusal.place.row for refusal in update.refused] == ["A"]
    assert update.changes == ()


def test_a_broken_time_is_raised() -> None:
    how = rules("fix")
    assert after(of(us=Limit(100)), {"us": Cost.of(Estimate(112, 110, 114), counted=False)}, how)["us"] == Limit(
        146, reason="why"
    )
    assert after(of(us=Limit(100)), {"us": Cost.of(Estimate(106, 105, 107), counted=False)}, how)["us"] == Limit(
        100
    )  # no failure


def test_trim_removes_what_no_test_uses() -> None:
    other = "tests/test_shop.py::test_other"
    used = {
        place(row="A"): Limit(5),
        place(nodeid=other): Limit(5),
        place(section="CPython 3.12.0, asyncio, x"): Limit(1),
    }
    unused = {
        place(row="Gone"): Limit(5),
        place(request="GET /gone"): Limit(5),
        place(nodeid="gone.py::test"): Limit(5),
        place(row="A", quantity="bytes"): Limit(5),  # not recorded any more
    }
    file, now = LimitsFile(used | unused), measured({"objects": exact(5)})
    assert updated(file, HERE, now, {"gone.py::test"}, {}, rules("create", "trim")).file.limits == used
    assert updated(file, HERE, now, {"gone.py::test"}, {}, rules("create", "fix")).file.limits == file.limits
    assert {*unused_places(file, SECTION, now, {"gone.py::test"})} == {*unused} - {place(row="A", quantity="bytes")}
    assert updated(file, HERE, {}, (), {}, rules("trim")).file == file


def test_a_section_gets_new_versions_when_all_of_it_was_measured() -> None:
    file = LimitsFile({place(row="A"): Limit(5)}, {(SECTION, "starlette"): "1", (SECTION, "gone"): "1"})
    newer, now = replace(HERE, version="3.13.9"), measured({"objects": exact(5)})
    renewed = updated(file, newer, now, (), {"starlette": "2"}, rules("create")).file
    assert renewed == LimitsFile({place(section=newer.section, row="A"): Limit(5)}, {(newer.section, "starlette"): "2"})
    part = LimitsFile({**file.limits, place(nodeid="other.py::test"): Limit(5)}, file.packages)
    renewed = updated(part, newer, now, (), {"starlette": "2", "new": "1"}, rules("create")).file
    assert renewed == LimitsFile(part.limits, {**part.packages, (SECTION, "new"): "1"})
    broken = updated(file, newer, measured({"objects": exact(50)}, objects=10), (), {"starlette": "2"}, rules("fix"))
    assert broken.refused
    assert broken.file == file


def test_the_counts_of_all_processes_are_joined() -> None:
    one, other = measured({"objects": exact(5), "us": exact(1)})[KEY], measured({"objects": exact(6)})[KEY]
    whole = one.with_another(other)
    assert whole.costs["A"] == {"objects": Cost(5, 6, 5, 6, 1), "us": exact(1)}
    # A row or a count that only one process has is recorded: the next run may have it too.
    more = measured({"tasks": exact(5)}, "New")[KEY]
    assert one.with_another(more).costs == one.costs | more.costs
    assert one.with_another(replace(more, rows=frozenset({"New"}))).rows == {*ROWS, "New"}
    assert one.without_counts().costs == {"A": {"us": exact(1)}}


def test_the_higher_counts_are_taken_without_room_for_the_difference() -> None:
    one, other = measured({"objects": exact(5), "us": exact(1)})[KEY], measured({"objects": exact(9)})[KEY]
    for higher in (one.or_higher(other), other.or_higher(one)):
        assert (higher.costs["A"]["objects"].low, higher.costs["A"]["objects"].end) == (5, 9)
    assert one.or_higher(other).costs["A"]["us"] == exact(1)


def test_a_time_is_rounded_up_to_three_digits() -> None:
    assert [rounded_up(us) for us in (0, 130.0, 130.01, 0.1234, 12345, 5.3)] == [0, 130, 131, 0.124, 12400, 5.3]


# ---- properties --------------------------------------------------------------------------------------------------

numbers = st.integers(0, 60)
counts = st.builds(lambda a, b, c: of_count(*(sorted((a, b, c))[i] for i in (1, 0, 2))), numbers, numbers, numbers)
times = st.builds(
    lambda us, share: Cost.of(Estimate(us, us * (1 - share), us * (1 + share)), counted=False),
    st.floats(0.1, 500),
    st.floats(0, 0.3),
)
many = st.lists(counts, min_size=1, max_size=3).map(lambda of_processes: of_processes[0].with_another(of_processes[-1]))
figures = st.fixed_dictionaries({}, optional={"us": times, "objects": many, "tasks": many})
requests = st.builds(
    lambda costs_of_rows, ceilings: Measured(frozenset(ROWS), costs_of_rows, ceilings),
    st.fixed_dictionaries({}, optional=dict.fromkeys(ROWS, figures)),
    st.dictionaries(st.tuples(st.sampled_from(ROWS), st.sampled_from(("objects", "tasks"))), numbers, max_size=2),
)
keys = st.builds(
    RequestKey, st.sampled_from(("t.py::a", "t.py::b", "t.py::gone")), st.sampled_from(("GET /", "GET /x"))
)
runs = st.dictionaries(keys.filter(lambda key: key.nodeid != "t.py::gone"), requests, max_size=3)
some = settings(max_examples=50, deadline=None)


@st.composite
def files(draw: st.DrawFn) -> LimitsFile:
    own = draw(st.sampled_from((SECTION, replace(HERE, version="3.13.7").section)))
    sections = st.sampled_from((own, "CPython 3.12.0, trio, x"))
    limits = {}
    for _ in range(draw(st.integers(0, 6))):
        quantity: Quantity = draw(st.sampled_from(RECORDED))
        where = Place(
            draw(sections), *draw(keys), draw(st.sampled_from(ROWS)), quantity, CPU if quantity == "us" else ""
        )
        most = draw(numbers)
        low = None if quantity == "us" or not most else draw(st.none() | st.integers(0, most - 1))
        limits[where] = Limit(most, low, draw(st.none() | st.sampled_from(("x", "y"))))
    packages = draw(st.dictionaries(st.tuples(sections, st.sampled_from("ab")), st.sampled_from(("1.9", "1.10"))))
    return LimitsFile(limits, packages).pruned()


modes = st.sets(st.sampled_from(("create", "trim", "fix")), min_size=1)


@some
@given(files(), runs, modes, st.sets(st.just("t.py::gone")))
def test_a_second_update_changes_nothing(
    file: LimitsFile, run: dict[RequestKey, Measured], how: set[str], unused: set[str]
) -> None:
    first = updated(file, HERE, run, unused, {"a": "2"}, rules(*how))
    second = updated(first.file, HERE, run, unused, {"a": "2"}, rules(*how))
    assert second.file == first.file
    assert second.changes == ()
    assert parsed(text_of(first.file), "'f'") == first.file


@some
@given(files(), runs, modes)
def test_limits_move_only_as_allowed(file: LimitsFile, run: dict[RequestKey, Measured], how: set[str]) -> None:
    for change in updated(file, HERE, run, (), {}, rules(*how)).changes:
        before, now, where = change.before, change.after, change.place
        mode = {"created": "create", "trimmed": "trim", "removed": "trim", "raised": "fix"}[change.kind]
        assert mode in how
        if now is not None:
            ceiling = run[RequestKey(where.nodeid, where.request)].ceilings.get((where.row, where.quantity), now.most)
            assert now.most <= ceiling
        if change.kind == "trimmed":
            assert before is not None
            assert now is not None
            assert now.most < before.most
        if change.kind == "raised":
            assert before is not None
            assert now is not None
            assert now.most > before.most
            assert now.reason == "why"


@some
@given(files(), runs)
def test_what_was_recorded_is_kept_by_what_was_measured(file: LimitsFile, run: dict[RequestKey, Measured]) -> None:
    """After all modes a figure is within its limit, refused, or above its ceiling."""
    update = updated(file, HERE, run, (), {}, rules("create", "trim", "fix"))
    section = chosen(update.file.sections, HERE)
    refused = {refusal.place[1:] for refusal in update.refused}
    for key, request in run.items():
        for row, costs_of_row in request.costs.items():
            for quantity, cost in costs_of_row.items():
                where = Place(section or "", *key, row, quantity, CPU if quantity == "us" else "")
                if where[1:] in refused or cost.typical > request.ceilings.get((row, quantity), cost.typical):
                    continue
                if quantity in COUNTED and not any(p[:3] == where[1:4] for p in refused):
                    limit = update.file.limits.get(where)
                    broken_together = any(p[:2] == where[1:3] for p in refused)
                    assert broken_together or (limit is not None and cost.typical <= limit.most)


@some
@given(files(), files(), files(), st.none() | files())
def test_merging_depends_on_no_order(a: LimitsFile, b: LimitsFile, c: LimitsFile, base: LimitsFile | None) -> None:
    assert merged([a, b, c], base) == merged([c, a, b], base) == merged([b, b, a, c, c], base)
    assert merged([a], base) == merged([a, a], base) == a
    assert merged([a, merged([a, b], base)]) == merged([merged([a, b], base), a])
    if base is None:
        assert merged([merged([a, b]), c]) == merged([a, merged([b, c])])
        assert merged([a, merged([a, b])]) == merged([a, b])


def test_what_one_job_changed_wins_over_what_the_other_left_alone() -> None:
    base = LimitsFile({place(row="A"): Limit(10), place(row="B"): Limit(10), place(row="C"): Limit(10)})
    trimmed = LimitsFile({**base.limits, place(row="A"): Limit(5)})
    raised = LimitsFile({place(row="A"): Limit(10), place(row="B"): Limit(11, reason="x"), place(row="D"): Limit(1)})
    limits = merged([trimmed, raised], base).limits
    assert limits == {place(row="A"): Limit(5), place(row="B"): Limit(11, reason="x"), place(row="D"): Limit(1)}
    assert merged([trimmed, raised]).limits[place(row="A")] == Limit(10, 5)  # without a base the higher one wins


def test_a_section_that_one_job_renamed_keeps_what_the_other_changed_in_it() -> None:
    """An update of the whole section on a new patch release renames it."""
    old, new = "CPython 3.13.1, asyncio, Linux x86_64", "CPython 3.13.2, asyncio, Linux x86_64"

    def of(section: str, **limits: Limit) -> LimitsFile:
        rows = {place(row=row)._replace(section=section): limit for row, limit in limits.items()}
        return LimitsFile(rows, {(section, "starlette"): "1.0"})

    base = of(old, A=Limit(50), B=Limit(10))
    renamed, raised = of(new, A=Limit(50), B=Limit(5)), of(old, A=Limit(60, reason="x"), B=Limit(10), C=Limit(1))
    assert merged([renamed, raised], base) == of(new, A=Limit(60, reason="x"), B=Limit(5), C=Limit(1))
    # Sections that were apart before, or that no file renamed, stay apart.
    both = LimitsFile({**base.limits, **of(new, A=Limit(51)).limits})
    assert merged([both, raised], base).sections == [old, new]
    assert merged([base, of(new, A=Limit(50))]).sections == [old, new]


def test_two_changes_of_one_limit_give_the_higher_one() -> None:
    one, other = LimitsFile({place(): Limit(456, 450)}), LimitsFile({place(): Limit(448, reason="x")})
    assert merged([one, other]).limits == {place(): Limit(456, 448)}
    time = place(quantity="us", processor=CPU)
    assert merged([LimitsFile({time: Limit(5)}), LimitsFile({time: Limit(6)})]).limits == {time: Limit(6)}
    versions = [LimitsFile(one.limits, {(SECTION, "a"): version}) for version in ("1.9", "1.10")]
    assert merged(versions).packages == {(SECTION, "a"): "1.10"}


def test_every_quantity_can_be_recorded() -> None:
    limits = {place(quantity=q, processor="" if q in COUNTED else CPU): Limit(3) for q in RECORDABLE}
    assert parsed(text_of(LimitsFile(limits)), "'f'") == LimitsFile(limits)
    assert room_us(100) == 30
    assert room_us(1) == 5
