"""The typical counts of rows, from known charges of requests."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mwbudget.counting.charged_requests import RequestCharges
from pytest_mwbudget.counting.rows import row_counts, with_own_types
from pytest_mwbudget.model.results import Count


def charged(objects: dict[int, dict[str, int]] | None = None, **more: Any) -> RequestCharges:
    """Make the charges of a request to two owners: these objects by type, and four allocations of 100 bytes each."""
    types = {owner: Counter(kinds) for owner, kinds in (objects or {}).items()}
    tallies = [(sum(types.get(owner, {}).values()), 4, 400, owner) for owner in range(2)]
    values: dict[str, Any] = {
        "tasks": {},
        "threads": {},
        "received": Counter[int](),
        "sent": Counter[int](),
        "retained": {},
    }
    return RequestCharges(tallies, types, **{**values, **more})


def test_what_every_request_has_is_exact() -> None:
    counts = row_counts([charged({0: {"a": 2, "b": 5}})] * 3, [0], {})
    assert counts.objects == Count(7, 7, 7, {"b": 5, "a": 2})
    assert counts.objects.exact
    assert (counts.allocations, counts.bytes) == (Count(4, 4, 4), Count(400, 400, 400))


def test_what_varies_has_its_least_its_most_and_what_a_request_really_had() -> None:
    charges = [charged({0: {"a": number}}) for number in (9, 1, 3, 2)]
    objects = row_counts(charges, [0], {}).objects
    assert objects == Count(2, 1, 9, {"a": 2})
    assert not objects.exact


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [([3] * 21, None), ([3] * 20 + [9], (3, 3)), ([1] * 3 + [5] * 15 + [9] * 3, (1, 9)), ([2, 1, 9], (1, 9))],
)
def test_the_range_of_what_varies_is_without_strays(numbers: list[int], expected: tuple[int, int] | None) -> None:
    charges = [charged({0: {"a": number}}, tasks={0: Counter({"t": number})}) for number in numbers]
    counts = row_counts(charges, [0], {})
    assert counts.ranges == ({"objects": expected, "tasks": expected} if expected else {})
    assert counts.range_of("tasks") == expected or not expected
    assert "objects" not in row_counts(charges, [0], {"objects": "a reason"}).ranges


def test_a_row_of_several_owners_has_them_all() -> None:
    counts = row_counts([charged({0: {"a": 1}, 1: {"a": 2, "b": 1}}, tasks={1: Counter({"t": 1})})], [0, 1], {})
    assert counts.objects == Count(4, 4, 4, {"a": 3, "b": 1})
    assert (counts.allocations, counts.suspensions.count) == (Count(8, 8, 8), 1)
    assert counts.tasks == Count(1, 1, 1, {"t": 1})


def test_a_type_that_the_typical_request_does_not_have_is_not_among_its_kinds() -> None:
    charges = [charged({0: {"a": 1}}), charged({0: {"a": 1}}), charged({0: {"a": 1, "rare": 5}})]
    objects = row_counts(charges, [0], {}).objects
    assert objects == Count(1, 1, 6, {"a": 1})


def test_an_owner_without_anything_has_zeros() -> None:
    counts = row_counts([charged()], [1], {})
    assert counts.objects == counts.tasks == counts.threads == counts.retained == counts.sent == Count(0, 0, 0)


@pytest.mark.parametrize("quantity", ["objects", "allocations", "bytes", "retained"])
def test_what_cannot_be_counted_is_none(quantity: str) -> None:
    counts = row_counts([charged({0: {"a": 1}})], [0], {quantity: "a reason"})
    assert getattr(counts, quantity) is None
    others = {"objects", "allocations", "bytes", "retained"} - {quantity}
    assert all(getattr(counts, other) is not None for other in others)


def test_own_types_are_those_of_no_other_row() -> None:
    charges = [charged({0: {"shared": 1, "first": 1}, 1: {"shared": 3, "second": 1}})]
    rows = with_own_types({"one": row_counts(charges, [0], {}), "two": row_counts(charges, [1], {})})
    assert (rows["one"].own_types, rows["two"].own_types) == (("first",), ("second",))


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=30))
def test_the_typical_number_is_one_that_occurred_between_the_ends(numbers: list[int]) -> None:
    objects = row_counts([charged({0: {"a": number}}) for number in numbers], [0], {}).objects
    assert objects is not None
    assert objects.count in numbers
    assert (objects.low, objects.high) == (min(numbers), max(numbers))
    assert 2 * sum(number <= objects.count for number in numbers) >= len(numbers)
    assert 2 * sum(number >= objects.count for number in numbers) >= len(numbers)
