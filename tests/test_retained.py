"""What is reachable from living objects, also where the garbage collector does not look."""

from __future__ import annotations

import gc
import time
from typing import Any

import pytest

from pytest_mwbudget.counting.retained import reachable


def nested(depth: int, innermost: object) -> tuple[Any, ...]:
    """Tuples that the collector does not track: each has the one inside it twice, so there are 2 ** depth paths."""
    made = (innermost, innermost)
    for _ in range(depth - 1):
        made = (made, made)
    for _ in range(depth):
        if not gc.is_tracked(made):
            break
        gc.collect()
    return made


def ids_reached(holders: list[Any]) -> set[int]:
    return {id(found) for objects in reachable(holders) for found in objects}


@pytest.mark.parametrize("depth", [1, 30, 60, 200])
def test_containers_that_share_their_parts_are_looked_into_once(depth: int) -> None:
    leaf = float("2.5")
    outermost = nested(depth, leaf)
    if gc.is_tracked(outermost):
        pytest.skip("this interpreter tracks all tuples")
    begin = time.perf_counter()
    reached = ids_reached([[outermost], [{1: outermost}]])
    assert time.perf_counter() - begin < 1
    assert id(leaf) in reached


def test_many_containers_are_all_looked_into() -> None:
    leaves = [float(number) + 0.5 for number in range(20_000)]
    holders = [(leaf, leaf) for leaf in leaves]
    gc.collect()
    assert {id(leaf) for leaf in leaves} <= ids_reached([holders])


def test_holders_are_reached_themselves() -> None:
    holder = [object()]
    assert {id(holder), id(holder[0])} <= ids_reached([holder])
