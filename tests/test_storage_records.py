"""Records as plain data, and back: by their fields, or by the shape that is given for them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Literal, NamedTuple

import pytest

from pytest_mwbudget.storage.records import Records, Values


class Point(NamedTuple):
    x: float
    y: float | None


@dataclass(frozen=True)
class Span:
    low: float
    high: float


@dataclass(frozen=True)
class Part:
    name: str
    word: Literal["old", "new"] = "old"
    span: Span | None = None
    points: tuple[Point, ...] = ()
    numbers: Mapping[int, str] = field(default_factory=dict)
    by_word: Mapping[Literal["old", "new"], int] = field(default_factory=dict)
    ends: tuple[int, int] = (0, 0)

    @property
    def loud(self) -> str:
        return self.name.upper()


@dataclass(frozen=True)
class Whole:
    part: Part
    parts: Mapping[str, Part] = field(default_factory=dict)
    note: str | None = None


BY_FIELDS = Records({}, {})
SHAPED = Records(
    {
        Whole: {
            "name": "part.name",
            "loud": "part.loud",
            "ends": ("part.span.low", "part.span.high"),
            "first": {"name": "parts.first.name", "word": "parts.first.word"},
            "note": "note",
            "told": None,
        }
    },
    {Span: lambda ends: {"low": 0.0, "high": 0.0, **ends}},
)
PART = Part("a", "new", Span(1.0, 2.0), (Point(1.0, None),), {3: "three"})


def there_and_back(records: Records, record: Any) -> Any:
    return records.record(type(record), json.loads(json.dumps(records.plain(record))))


@pytest.mark.parametrize("record", [PART, Part("b"), Point(0.5, 1), Whole(PART, {"first": PART}, "note")])
def test_a_record_has_the_keys_of_its_fields_and_comes_back(record: Any) -> None:
    assert there_and_back(BY_FIELDS, record) == record
    assert list(BY_FIELDS.plain(PART)) == ["name", "word", "span", "points", "numbers", "by_word", "ends"]
    assert BY_FIELDS.plain(PART)["numbers"] == {"3": "three"}


def test_a_record_with_a_shape_has_its_keys_and_comes_back_with_what_they_hold() -> None:
    whole = Whole(Part("a", span=Span(1.0, 2.0)), {"first": Part("b", "new")})
    data = SHAPED.plain(whole)
    first = {"name": "b", "word": "new"}
    assert data == {"name": "a", "loud": "A", "ends": [1.0, 2.0], "first": first, "note": None, "told": None}
    assert there_and_back(SHAPED, whole) == whole


def test_a_list_and_an_object_of_a_record_that_is_missing_are_null() -> None:
    data = SHAPED.plain(Whole(Part("a")))
    assert (data["ends"], data["first"]) == (None, None)
    assert there_and_back(SHAPED, Whole(Part("a"))) == Whole(Part("a"))


def test_a_number_that_is_not_finite_is_null_and_its_record_is_completed() -> None:
    data = SHAPED.plain(Whole(Part("a", span=Span(float("-inf"), float("nan")))))
    assert data["ends"] == [None, None]
    assert SHAPED.record(Whole, data).part.span == Span(0.0, 0.0)


class Most(IntEnum):
    LOW = 2


class Meters(float):
    pass


def test_numbers_of_other_classes_come_back_as_plain_ones() -> None:
    span = BY_FIELDS.record(Span, BY_FIELDS.plain(Span(Most.LOW, Meters(2.5))))
    assert span == Span(2, 2.5)
    assert (type(span.low), type(span.high)) == (int, float)


def test_a_lone_surrogate_is_read_as_an_escape() -> None:
    assert BY_FIELDS.record(Part, {**BY_FIELDS.plain(PART), "name": "A\udcff"}).name == "A\\udcff"


def test_a_base_gives_its_shape_to_a_subclass() -> None:
    @dataclass(frozen=True)
    class More(Whole):
        more: int = 1

    assert SHAPED.plain(More(Part("a"))) == SHAPED.plain(Whole(Part("a")))


def test_values_can_be_added_before_the_record_is_made() -> None:
    values = SHAPED.values(Whole, SHAPED.plain(Whole(Part("a"))))
    assert values == {"part": {"name": "a", "loud": "A"}}
    assert SHAPED.made(Whole, Values(values, note="b")) == Whole(Part("a"), note="b")


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"name": 5}, TypeError, "5 is not of type str"),
        ({"word": "other"}, ValueError, r"'other' is none of \('old', 'new'\)"),
        ({"span": {"low": True, "high": 1}}, TypeError, "True is not of type float"),
        ({"span": {"low": 10**400, "high": 1}}, ValueError, "1000.*000 is not a finite number"),
        ({"ends": [1, 10**400]}, ValueError, "1000.*000 is not a finite number"),
        ({"span": {"low": float("nan"), "high": 1}}, ValueError, "nan is not a finite number"),
        ({"span": {"low": 1}}, KeyError, "high"),
        ({"span": []}, TypeError, r"\[\] is not of type dict"),
        ({"points": "ab"}, TypeError, "'ab' is not of type list"),
        ({"ends": [1.0]}, ValueError, r"\[1.0\] has not 2 values"),
        ({"numbers": []}, TypeError, r"\[\] is not of type dict"),
        ({"name": None}, TypeError, "name"),
        ({"numbers": {"three": "3"}}, ValueError, "three"),
        ({"by_word": {"other": 1}}, ValueError, r"'other' is none of \('old', 'new'\)"),
    ],
)
def test_data_of_something_else_are_refused(changed: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        BY_FIELDS.record(Part, {**BY_FIELDS.plain(PART), **changed})
