"""Logs written by hand: who spent how long."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_mwbudget.boundaries import HARNESS, SUSPENDED
from pytest_mwbudget.timeline import Spent, spent

OUTER, INNER = 1, 2

# A busy machine is no reason to fail.
relaxed = settings(deadline=None)


def read(*crossings: tuple[int, int]) -> Spent:
    """The log of a request that started at 0, before anybody's time is counted."""
    return spent([HARNESS, 0, *(part for crossing in crossings for part in crossing)], owners=3)


def test_each_owner_has_the_time_from_its_crossing_to_the_next() -> None:
    assert read((OUTER, 100), (INNER, 110), (OUTER, 140), (HARNESS, 145)).ns == (0, 15, 30)


def test_time_before_the_first_crossing_is_nobodys() -> None:
    early, late = read((OUTER, 1), (HARNESS, 6)), read((OUTER, 901), (HARNESS, 906))
    assert early.ns == late.ns == (0, 5, 0)


def test_the_servers_receive_and_send_are_the_harness_and_are_counted() -> None:
    found = read((OUTER, 0), (HARNESS, 10), (OUTER, 13), (HARNESS, 20), (OUTER, 24), (HARNESS, 30))
    assert found.ns == (7, 23, 0)
    assert found.messages == 2


def test_a_request_without_messages_has_none() -> None:
    assert read((OUTER, 0), (HARNESS, 10)).messages == 0


def test_a_suspension_belongs_to_the_owner_that_is_resumed() -> None:
    found = read((OUTER, 0), (INNER, 10), (SUSPENDED, 15), (OUTER, 40), (HARNESS, 42))
    assert found.ns == (0, 10 + 25 + 2, 5)
    assert found.resumed == (0, 1, 0)


def test_tasks_that_take_turns_do_not_charge_one_another() -> None:
    found = read((OUTER, 0), (SUSPENDED, 5), (INNER, 6), (SUSPENDED, 16), (OUTER, 18), (HARNESS, 20))
    assert found.ns == (0, 5 + 2 + 2, 1 + 10)
    assert found.resumed == (0, 1, 1)


def test_suspensions_one_inside_the_other_are_one() -> None:
    found = read((OUTER, 0), (SUSPENDED, 5), (SUSPENDED, 6), (OUTER, 9), (HARNESS, 10))
    assert found.ns == (0, 10, 0)
    assert found.resumed == (0, 1, 0)


def test_a_resumption_in_the_servers_receive_is_not_another_message() -> None:
    found = read((OUTER, 0), (HARNESS, 10), (SUSPENDED, 12), (HARNESS, 20), (OUTER, 21), (HARNESS, 30))
    assert found.messages == 1
    assert found.ns == (11, 19, 0)
    assert found.resumed == (1, 0, 0)


def test_a_log_that_ends_suspended_charges_nobody_for_the_wait() -> None:
    assert read((OUTER, 0), (SUSPENDED, 5)).ns == (0, 5, 0)


def test_a_request_that_came_to_no_probe_spent_nothing() -> None:
    assert read() == Spent((0, 0, 0), (0, 0, 0), 0)


@relaxed
@given(
    steps=st.lists(st.tuples(st.sampled_from([SUSPENDED, HARNESS, OUTER, INNER]), st.integers(0, 1000)), min_size=1),
    start=st.integers(0, 10**6),
)
def test_the_shares_add_up_to_the_time_between_the_first_and_the_last_crossing(
    steps: list[tuple[int, int]], start: int
) -> None:
    now, crossings = start, [(OUTER, start)]
    for owner, later in steps:
        now += later
        crossings.append((owner, now))
    crossings.append((HARNESS, now + 7))
    assert sum(read(*crossings).ns) == now + 7 - start
