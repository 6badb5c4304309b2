"""Objects reachable from living objects, including those that the garbage collector does not track."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from typing import Any

import pytest

from pytest_mwbudget.counting.retained import reachable

core: Any = pytest.importorskip(
    "pytest_mwbudget.counting._core", reason="the C extension cannot be imported", exc_type=ImportError
)
pytestmark = pytest.mark.skipif(not core.COUNTS_OBJECTS, reason="object counts need CPython 3.13")


@pytest.fixture(autouse=True)
def _remembering() -> Iterator[None]:
    """A counting run that records the objects that each test creates."""
    core.start(1)
    core.period(0)
    yield
    core.stop()


def nested(depth: int, innermost: object) -> tuple[Any, ...]:
    """Return nested untracked tuples: each holds the next tuple twice, so there are 2 ** depth paths."""
    made = (innermost, innermost)
    for _ in range(depth - 1):
        made = (made, made)
    for _ in range(depth):
        gc.collect()
        if not gc.is_tracked(made):
            return made
    pytest.skip("this interpreter tracks all tuples")


def ids_reached(holders: list[Any]) -> set[int]:
    core.period(-1)
    return {id(found) for objects in reachable(core, holders) for found in objects}


@pytest.mark.parametrize("depth", [1, 30, 60, 200])
def test_containers_that_share_their_parts_are_looked_into_once(depth: int) -> None:
    leaf = float("2.5")
    outermost = nested(depth, leaf)
    begin = time.perf_counter()
    reached = ids_reached([[outermost], [{1: outermost}]])
    assert time.perf_counter() - begin < 20
    assert id(leaf) in reached


def test_many_containers_are_all_looked_into() -> None:
    leaves = [float(number) + 0.5 for number in range(20_000)]
    holders = [(leaf, leaf) for leaf in leaves]
    gc.collect()
    assert {id(leaf) for leaf in leaves} <= ids_reached([holders])


def test_holders_are_reached_themselves() -> None:
    holder = [object()]
    assert {id(holder), id(holder[0])} <= ids_reached([holder])


def test_an_older_dict_is_looked_into_and_an_older_tuple_is_not() -> None:
    core.period(-1)
    older_dict: dict[int, float] = {1: 1.5}
    older_tuple = nested(2, 2.5)
    core.period(0)
    older_dict[2] = leaf = float("3.5")
    newer_tuple = nested(1, 4.5)
    assert core.untracked([older_tuple, newer_tuple, [older_tuple], "text"]) == [newer_tuple]
    if gc.is_tracked(older_dict):  # as every dict is from Python 3.14 on, so the collector lists it
        assert id(leaf) in ids_reached([older_dict])
    else:
        assert core.untracked([older_dict]) == [older_dict]
        assert id(leaf) in ids_reached([[older_dict]])


def test_what_takes_a_list_says_so() -> None:
    with pytest.raises(TypeError, match="untracked\\(\\) takes a list, not tuple"):
        core.untracked(())
