"""Event logs written by hand: the time of each owner, and its part in suspensions."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_mwbudget.analysis.event_log import Spent, leaning_ns, passing_ns, spent
from pytest_mwbudget.model.stack import ASIDE, FURTHER_OWNERS, HARNESS, SENDING, SUSPENDED

pytestmark = pytest.mark.once

OUTER, INNER, NULL, UNOWNED, OTHERS = 1, 2, 3, 4, 5

# A busy machine must not fail these tests.
relaxed = settings(deadline=None)


def read(*crossings: tuple[int, int]) -> Spent:
    """Read the log of a request that starts at 0, before any owner is charged."""
    used = spent([HARNESS, 0, *(part for crossing in crossings for part in crossing)], 3 + FURTHER_OWNERS)
    return Spent(used.ns[:3], used.suspended[:3], used.resumed[:3])


def test_each_owner_has_the_time_from_its_crossing_to_the_next() -> None:
    assert read((OUTER, 100), (INNER, 110), (OUTER, 140), (HARNESS, 145)).ns == (0, 15, 30)


def test_time_before_the_first_crossing_is_nobodys() -> None:
    early, late = read((OUTER, 1), (HARNESS, 6)), read((OUTER, 901), (HARNESS, 906))
    assert early.ns == late.ns == (0, 5, 0)


def test_the_servers_receive_and_send_are_the_harness() -> None:
    used = read((OUTER, 0), (HARNESS, 10), (OUTER, 13), (HARNESS, 20), (OUTER, 24), (HARNESS, 30))
    assert used.ns == (7, 23, 0)


def passing(*crossings: tuple[int, int]) -> int:
    return passing_ns([HARNESS, 0, *(part for crossing in crossings for part in crossing)], NULL)


@pytest.mark.parametrize("entering", [[(NULL, 3)], [(NULL, 3), (UNOWNED, 4), (NULL, 9)]])
@pytest.mark.parametrize(
    "leaving", [[(NULL, 60), (HARNESS, 90)], [(NULL, 60), (UNOWNED, 70), (NULL, 75), (HARNESS, 90)]]
)
def test_messages_pass_a_null_layer_between_entering_and_leaving_it(
    entering: list[tuple[int, int]], leaving: list[tuple[int, int]]
) -> None:
    first = (OUTER, 10), (NULL | SENDING, 20), (HARNESS | SENDING, 21), (NULL, 30), (OUTER, 33)
    second = (NULL | SENDING, 40), (HARNESS | SENDING, 45), (SUSPENDED, 47), (HARNESS, 50), (NULL, 51), (OUTER, 52)
    assert passing(*entering, (OUTER, 10), *leaving) == 0
    assert passing(*entering, *first, *leaving) == 1 + 3
    assert passing(*entering, *first, *second, *leaving) == 1 + 3 + 5 + 1


def test_a_blank_layer_divides_the_inside_of_the_outer_probe_from_the_outside_of_the_inner_one() -> None:
    entering = (OUTER, 10), (UNOWNED, 12), (OUTER, 15), (NULL, 20), (UNOWNED, 27), (INNER, 30)
    message = (UNOWNED | SENDING, 40), (NULL, 41), (OUTER | SENDING, 45), (NULL, 50), (UNOWNED, 55), (INNER, 57)
    leaving = (UNOWNED, 60), (NULL, 61), (OUTER, 64), (HARNESS, 70)
    log = [HARNESS, 0, *(part for crossing in (*entering, *message, *leaving) for part in crossing)]
    inside, outside = 7 + 4 + 5 + 3, 3 + 1 + 2 + 1
    assert leaning_ns(log, NULL, UNOWNED) == inside - outside


def test_a_suspension_belongs_to_the_owner_that_is_resumed() -> None:
    used = read((OUTER, 0), (INNER, 10), (SUSPENDED, 15), (OUTER, 40), (HARNESS, 42))
    assert used.ns == (0, 10 + 25 + 2, 5)
    assert used.suspended == (0, 25, 0)
    assert used.resumed == (0, 1, 0)


def test_an_owner_that_is_resumed_more_than_once_has_the_sum_of_its_suspensions() -> None:
    used = read((OUTER, 0), (SUSPENDED, 1), (OUTER, 30), (SUSPENDED, 31), (OUTER, 71), (HARNESS, 72))
    assert used.ns == (0, 72, 0)
    assert used.suspended == (0, 29 + 40, 0)
    assert used.resumed == (0, 2, 0)


def test_each_owner_has_its_own_suspensions() -> None:
    used = read((OUTER, 0), (INNER, 10), (SUSPENDED, 15), (INNER, 40), (OUTER, 42), (SUSPENDED, 43), (OUTER, 50))
    assert used.ns == (0, 10 + 1 + 7, 5 + 25 + 2)
    assert used.suspended == (0, 7, 25)


def test_without_a_suspension_nobody_was_suspended() -> None:
    assert read((OUTER, 100), (INNER, 110), (OUTER, 140), (HARNESS, 145)).suspended == (0, 0, 0)


def test_tasks_that_take_turns_do_not_charge_one_another() -> None:
    used = read((OUTER, 0), (SUSPENDED, 5), (INNER, 6), (SUSPENDED, 16), (OUTER, 18), (HARNESS, 20))
    assert used.ns == (0, 5 + 2 + 2, 1 + 10)
    assert used.suspended == (0, 2, 1)
    assert used.resumed == (0, 1, 1)


def test_suspensions_one_inside_the_other_are_one() -> None:
    used = read((OUTER, 0), (SUSPENDED, 5), (SUSPENDED, 6), (OUTER, 9), (HARNESS, 10))
    assert used.ns == (0, 10, 0)
    assert used.suspended == (0, 4, 0)
    assert used.resumed == (0, 1, 0)


def test_a_resumption_in_the_servers_receive_is_the_harness() -> None:
    used = read((OUTER, 0), (HARNESS, 10), (SUSPENDED, 12), (HARNESS, 20), (OUTER, 21), (HARNESS, 30))
    assert used.ns == (11, 19, 0)
    assert used.suspended == (8, 0, 0)
    assert used.resumed == (1, 0, 0)


def test_a_log_that_ends_suspended_charges_nobody_for_the_wait() -> None:
    used = read((OUTER, 0), (SUSPENDED, 5))
    assert (used.ns, used.suspended) == ((0, 5, 0), (0, 0, 0))


def test_a_request_that_came_to_no_probe_spent_nothing() -> None:
    assert read() == Spent((0, 0, 0), (0, 0, 0), (0, 0, 0))


# ---- steps that the request does not wait for -----------------------------------------------------------------------


def test_the_wait_goes_on_past_a_step_aside_to_the_owner_that_the_request_goes_on_with() -> None:
    aside = (SUSPENDED, 15), (ASIDE, 20), (INNER, 20), (SUSPENDED, 26)
    used = read((OUTER, 0), *aside, (OUTER, 40), (HARNESS, 42))
    assert used.ns == (0, 15 + (20 - 15) + (40 - 26) + 2, 6)
    assert used.suspended == (0, (20 - 15) + (40 - 26), 0)
    assert used.resumed == (0, 1, 1)


def test_what_an_owner_does_aside_is_charged_to_it_without_the_wait_before() -> None:
    used = read((OUTER, 0), (INNER, 10), (SUSPENDED, 15), (ASIDE, 40), (INNER, 40), (HARNESS, 47))
    assert used.ns == (0, 10, 5 + 7)
    assert used.suspended == (0, 0, 0)
    assert used.resumed == (0, 0, 1)


def test_the_wait_goes_on_past_any_number_of_steps_aside() -> None:
    steps = [(owner, 100 * number + later) for number in range(1, 6) for owner, later in ((ASIDE, 0), (INNER, 0))]
    ended = [(SUSPENDED, 100 * number + 30) for number in range(1, 6)]
    crossings = sorted([*steps, *ended], key=lambda crossing: crossing[1])
    used = read((OUTER, 0), (SUSPENDED, 10), *crossings, (OUTER, 600), (HARNESS, 605))
    assert used.ns == (0, 10 + (590 - 5 * 30) + 5, 5 * 30)
    assert used.suspended == (0, 590 - 5 * 30, 0)
    assert used.resumed == (0, 1, 5)


def test_a_step_aside_may_send_through_other_owners() -> None:
    aside = (SUSPENDED, 5), (ASIDE, 8), (INNER, 8), (OUTER | SENDING, 10), (INNER, 13), (SUSPENDED, 14)
    used = read((OUTER, 0), *aside, (OUTER, 20), (HARNESS, 21))
    assert used.ns == (0, 5 + 3 + 3 + (20 - 14) + 1, 2 + 1)
    assert used.suspended == (0, 3 + 6, 0)
    assert used.resumed == (0, 1, 1)


def test_the_wait_before_a_step_that_enters_a_layer_belongs_to_the_owner_that_started_the_step() -> None:
    """The request goes on in a task of its own."""
    entering = (SUSPENDED, 5), (ASIDE, 8), (OUTER, 8), (INNER, 10), (SUSPENDED, 13)
    used = read((OUTER, 0), *entering, (INNER, 20), (OUTER, 22), (SUSPENDED, 23), (OUTER, 30), (HARNESS, 31))
    assert used.ns == (0, 5 + 3 + 2 + 1 + (30 - 23) + 1, 3 + (20 - 13) + 2)
    assert used.suspended == (0, 3 + 7, 7)
    assert used.resumed == (0, 2, 1)


def test_tasks_one_in_another_have_the_waits_before_their_own_steps() -> None:
    """The server starts a task for OUTER, and OUTER for INNER."""
    begin = (HARNESS, 0), (OUTER, 0), (SUSPENDED, 1), (ASIDE, 11), (OUTER, 11), (INNER, 12)
    nested = (SUSPENDED, 13), (ASIDE, 23), (INNER, 23), (INNER | SENDING, 24), (INNER, 25), (SUSPENDED, 26), (INNER, 36)
    used = read(*begin, *nested, (OUTER, 37), (SUSPENDED, 38), (OUTER, 48), (HARNESS, 49))
    assert used.suspended == (0, 10 + 10, 10 + 10)


def test_a_step_that_makes_another_request_leaves_the_wait_to_the_owner_that_waits() -> None:
    """OUTER has a task that calls the inner app again while the request waits in INNER."""
    again = (ASIDE, 30), (OUTER, 30), (INNER, 32), (OUTER, 33), (SUSPENDED, 34)
    used = read((OUTER, 0), (INNER, 10), (SUSPENDED, 12), *again, (INNER, 60), (OUTER, 61), (HARNESS, 62))
    assert used.suspended == (0, 0, (30 - 12) + (60 - 34))
    assert used.ns == (0, 10 + 2 + 1 + 1, 2 + 1 + (30 - 12) + (60 - 34) + 1)


@pytest.mark.parametrize("entered", [INNER, NULL])
def test_the_time_of_a_worker_that_carries_the_request_is_of_the_owner_that_waits_for_it(entered: int) -> None:
    worker = (SUSPENDED, 5), (ASIDE, 15), (OTHERS, 15), (entered, 18), (INNER, 20), (OTHERS, 21), (SUSPENDED, 24)
    used = read((OUTER, 0), *worker, (OUTER, 30), (HARNESS, 31))
    assert used.ns[OUTER] == 5 + (15 - 5) + (18 - 15) + (24 - 21) + (30 - 24) + 1
    assert used.suspended[OUTER] == (15 - 5) + (30 - 24)


def test_work_that_was_there_before_the_request_counts_once() -> None:
    log = [HARNESS, 0, OUTER, 0, SUSPENDED, 5, ASIDE, 10, OTHERS, 10, SUSPENDED, 110, OUTER, 120, HARNESS, 121]
    used = spent(log, 3 + FURTHER_OWNERS)
    assert used.ns[OTHERS] == 100
    assert used.resumed[OTHERS] == 1


def test_the_time_between_the_marker_and_the_step_is_of_the_wait() -> None:
    used = read((OUTER, 0), (SUSPENDED, 5), (ASIDE, 8), (INNER, 9), (SUSPENDED, 12), (OUTER, 20), (HARNESS, 20))
    assert used.ns == (0, 5 + 3 + 1 + 8, 3)
    assert used.suspended == (0, 3 + 1 + 8, 0)


def test_a_step_aside_of_the_server_is_no_message() -> None:
    used = read((OUTER, 0), (SUSPENDED, 5), (ASIDE, 8), (HARNESS, 8), (SUSPENDED, 9), (OUTER, 11), (HARNESS, 12))
    assert used.ns == (1, 5 + 3 + 2 + 1, 0)
    assert used.resumed == (1, 1, 0)


def test_a_log_that_ends_after_a_step_aside_charges_nobody_for_the_wait() -> None:
    used = read((OUTER, 0), (SUSPENDED, 5), (ASIDE, 8), (INNER, 8), (SUSPENDED, 11))
    assert (used.ns, used.suspended) == ((0, 5, 3), (0, 0, 0))


@relaxed
@given(
    steps=st.lists(
        st.tuples(st.sampled_from([SUSPENDED, ASIDE, HARNESS, OUTER, INNER]), st.integers(0, 1000)), min_size=1
    ),
    start=st.integers(0, 10**6),
)
def test_the_shares_add_up_to_the_time_between_the_first_and_the_last_crossing(
    steps: list[tuple[int, int]], start: int
) -> None:
    now, crossings = start, [(OUTER, start)]
    for owner, later in steps:
        now += later
        crossings.append((owner, now))
    # A request that has waited goes on, and not aside.
    crossings += [(SUSPENDED, now), (OUTER, now), (HARNESS, now + 7)]
    used = read(*crossings)
    assert sum(used.ns) == now + 7 - start
    assert all(0 <= suspended <= ns for suspended, ns in zip(used.suspended, used.ns, strict=True))
    assert all(resumed for resumed, ns in zip(used.resumed, used.suspended, strict=True) if ns)


@relaxed
@given(
    steps=st.lists(st.tuples(st.integers(0, 1000), st.sampled_from([HARNESS, OUTER, INNER]), st.integers(0, 1000))),
    last=st.integers(0, 1000),
)
def test_steps_aside_have_their_own_time_and_the_request_has_all_of_the_wait(
    steps: list[tuple[int, int, int]], last: int
) -> None:
    """The outer layer waits; each step begins some time after the one before has ended."""
    now, crossings, own = 100, [(OUTER, 0), (SUSPENDED, 100)], [0, 0, 0]
    for idle, owner, works in steps:
        crossings += [(ASIDE, now + idle), (owner, now + idle), (SUSPENDED, now + idle + works)]
        now += idle + works
        own[owner] += works
    used = read(*crossings, (OUTER, now + last), (HARNESS, now + last))
    waited = sum(idle for idle, _, _ in steps) + last
    assert used.ns == (own[HARNESS], 100 + own[OUTER] + waited, own[INNER])
    assert used.suspended == (0, waited, 0)
    resumed = [sum(charged == owner for _, charged, _ in steps) for owner in range(3)]
    assert used.resumed == (resumed[HARNESS], resumed[OUTER] + 1, resumed[INNER])
