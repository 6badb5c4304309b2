"""Logs written by hand: what each owner spends between its messages, and until the first part of a body leaves it."""

from __future__ import annotations

import pytest

from pytest_mwbudget.analysis.message_log import MessageTimes, message_times
from pytest_mwbudget.model.stack import ASIDE, HARNESS, RECEIVING, SENDING, SUSPENDED

LAYER, ENDPOINT = 1, 2


class Log:
    """The log of a request through one layer to an endpoint."""

    def __init__(self) -> None:
        self.now = 0
        self.log = [HARNESS, 0]
        self.owned_by(LAYER, 100)
        self.owned_by(ENDPOINT, 100)

    def owned_by(self, owner: int, ns: int) -> None:
        """Let an owner have the time from now on, for `ns`."""
        self.log += [owner, self.now]
        self.now += ns

    def read(self) -> MessageTimes:
        self.owned_by(HARNESS, 0)
        return message_times(self.log, owners=3)

    def send(self, layer: int = 0, endpoint: int = 0, *, passed: bool = True) -> None:
        """Send a message that takes so many ns in the layer and in the endpoint afterwards."""
        self.owned_by(LAYER | SENDING, layer)
        if passed:
            self.owned_by(HARNESS | SENDING, 7)
            self.owned_by(LAYER, 0)
        self.owned_by(ENDPOINT, endpoint)

    def receive(self, layer: int = 0, endpoint: int = 0) -> None:
        """Receive a message that takes so many ns in the layer and in the endpoint afterwards."""
        self.owned_by(LAYER | RECEIVING, 0)
        self.owned_by(HARNESS | RECEIVING, 7)
        self.owned_by(LAYER, layer)
        self.owned_by(ENDPOINT, endpoint)


def test_a_message_takes_what_each_owner_spends_between_two_of_them() -> None:
    log = Log()
    for _ in range(12):
        log.send(30, 50)
    sent = log.read().sent
    assert (sent.spent.ns[LAYER], sent.spent.ns[ENDPOINT]) == (30, 50)
    assert sent.inner[LAYER] == sent.outer[LAYER] == sent.outer[ENDPOINT] == sent.count(LAYER) == 12


@pytest.mark.parametrize("number", [0, 1, 11])
def test_the_first_two_messages_and_the_last_are_left_out(number: int) -> None:
    log = Log()
    for place in range(12):
        log.send(30 + 900 * (place == number), 50 + 900 * (place == number))
    spent = log.read().sent.spent
    assert (spent.ns[LAYER], spent.ns[ENDPOINT]) == (30, 50)


def test_work_of_a_message_in_the_middle_counts() -> None:
    log = Log()
    for place in range(12):
        log.send(30 + 900 * (place == 6))
    assert log.read().sent.spent.ns[LAYER] == 30 + 900 / 9


def test_both_ways_are_told_apart_where_they_take_turns() -> None:
    log = Log()
    for _ in range(12):
        log.receive(layer=20, endpoint=5)
        log.send(layer=30, endpoint=50)
    times = log.read()
    assert (times.received.spent.ns[LAYER], times.sent.spent.ns[LAYER]) == (20, 30)
    assert (times.received.spent.ns[ENDPOINT], times.sent.spent.ns[ENDPOINT]) == (5, 50)


def test_a_receive_that_waits_beside_the_task_that_sends_is_of_its_way() -> None:
    log = Log()
    for _ in range(12):
        log.owned_by(LAYER | RECEIVING, 0)  # one task of the endpoint asks for the next message
        log.owned_by(HARNESS | RECEIVING, 7)
        log.owned_by(SUSPENDED, 5)
        log.owned_by(ENDPOINT, 50)  # another one answers the message before
        log.send(layer=30, endpoint=0)
        log.owned_by(SUSPENDED, 0)
        log.owned_by(HARNESS, 7)
        log.owned_by(LAYER, 20)
        log.owned_by(ENDPOINT, 5)
    times = log.read()
    assert (times.received.spent.ns[LAYER], times.sent.spent.ns[LAYER]) == (20, 30)


def test_a_layer_that_joins_messages_has_those_of_the_side_with_more() -> None:
    log = Log()
    for place in range(12):
        log.send(30, passed=place in (0, 11))
    sent = log.read().sent
    assert (sent.inner[LAYER], sent.outer[LAYER], sent.count(LAYER)) == (12, 2, 12)
    assert sent.spent.ns[LAYER] == 30


def test_a_layer_that_gets_all_messages_before_it_hands_on_the_first_works_at_both_sides() -> None:
    log = Log()
    for _ in range(12):
        log.send(1, passed=False)
    for _ in range(12):
        log.owned_by(LAYER, 30)
        log.owned_by(HARNESS | SENDING, 7)
    sent = log.read().sent
    assert (sent.count(LAYER), sent.spent.ns[LAYER]) == (12, 31)


def test_a_layer_that_asks_for_all_messages_before_it_is_asked_for_one() -> None:
    log = Log()
    for _ in range(12):
        log.owned_by(LAYER, 0)
        log.owned_by(HARNESS | RECEIVING, 7)
        log.owned_by(LAYER, 20)
    for _ in range(12):
        log.owned_by(ENDPOINT, 5)
        log.owned_by(LAYER | RECEIVING, 1)
        log.owned_by(ENDPOINT, 0)
    received = log.read().received
    assert (received.count(LAYER), received.spent.ns[LAYER]) == (12, 21)


def test_a_resumption_in_a_send_is_no_message_and_its_wait_is_of_the_way() -> None:
    log = Log()
    for _ in range(12):
        log.owned_by(LAYER | SENDING, 10)
        log.owned_by(SUSPENDED, 25)
        log.owned_by(LAYER | SENDING, 5)
        log.owned_by(HARNESS | SENDING, 0)
        log.owned_by(LAYER, 0)
        log.owned_by(ENDPOINT, 0)
    sent = log.read().sent
    assert sent.inner[LAYER] == 12
    assert (sent.spent.ns[LAYER], sent.spent.resumed[LAYER]) == (40, 1)


def test_the_wait_of_a_message_goes_on_past_a_step_aside_which_has_its_own_time() -> None:
    log = Log()
    for _ in range(12):
        log.owned_by(LAYER | SENDING, 10)
        log.owned_by(SUSPENDED, 25)
        log.owned_by(ASIDE, 0)
        log.owned_by(ENDPOINT, 8)  # a task that the endpoint has started
        log.owned_by(SUSPENDED, 15)
        log.owned_by(LAYER, 5)
        log.owned_by(HARNESS | SENDING, 0)
        log.owned_by(LAYER, 0)
        log.owned_by(ENDPOINT, 3)
    sent = log.read().sent
    assert sent.inner[LAYER] == sent.outer[LAYER] == sent.outer[ENDPOINT] == 12
    assert (sent.spent.ns[LAYER], sent.spent.resumed[LAYER]) == (10 + 25 + 15 + 5, 1)
    assert (sent.spent.ns[ENDPOINT], sent.spent.resumed[ENDPOINT]) == (8 + 3, 1)


def test_a_step_aside_of_the_owner_that_waits_is_not_the_end_of_its_wait() -> None:
    log = Log()
    for _ in range(12):
        log.owned_by(LAYER | RECEIVING, 0)
        log.owned_by(HARNESS | RECEIVING, 7)
        log.owned_by(SUSPENDED, 25)
        log.owned_by(ASIDE, 0)
        log.owned_by(LAYER, 4)
        log.owned_by(SUSPENDED, 15)
        log.owned_by(HARNESS, 1)  # it is the server that waits for the message
        log.owned_by(LAYER, 20)
        log.owned_by(ENDPOINT, 5)
    received = log.read().received
    assert received.inner[LAYER] == received.outer[LAYER] == 12
    assert (received.spent.ns[LAYER], received.spent.resumed[LAYER]) == (4 + 20, 1)
    assert (received.spent.ns[HARNESS], received.spent.resumed[HARNESS]) == (7 + 25 + 15 + 1, 1)


def test_steps_aside_before_the_first_byte_are_time_of_their_owner_and_nothing_held() -> None:
    log = Log()
    for _ in range(12):
        log.owned_by(ENDPOINT, 50)
        log.owned_by(SUSPENDED, 40)
        log.owned_by(ASIDE, 0)
        log.owned_by(LAYER, 9)
        log.owned_by(SUSPENDED, 60)
        log.owned_by(ENDPOINT, 0)
        log.send(30)
    first = log.read().first
    assert first.spent.ns[LAYER] == 100 + 2 * (9 + 30)
    assert first.spent.ns[ENDPOINT] == 100 + 2 * (50 + 40 + 60)
    assert (first.spent.resumed[LAYER], first.spent.resumed[ENDPOINT]) == (2, 2)
    assert (first.held_ns[LAYER], first.arrived[LAYER]) == (0, 0)


def test_a_buffer_holds_the_first_byte_also_while_others_take_steps_aside() -> None:
    log = Log()
    log.send(30, 50)
    for _ in range(9):
        log.owned_by(SUSPENDED, 40)
        log.owned_by(ASIDE, 0)
        log.owned_by(LAYER, 6)
        log.owned_by(SUSPENDED, 60)
        log.owned_by(ENDPOINT, 0)
        log.send(30, 50, passed=False)
    log.send(30, 50)
    first = log.read().first
    assert first.arrived[LAYER] == 9
    assert first.held_ns[LAYER] == 9 * 50 + 8 * (40 + 60)  # the first step aside is before the first part comes
    assert first.spent.ns[LAYER] == 100 + 11 * 30 + 9 * 6


def test_without_messages_there_is_nothing() -> None:
    times = message_times([HARNESS, 0], owners=3)
    assert times.sent.spent.ns == times.received.spent.ns == times.first.spent.ns == (0, 0, 0)


def test_a_layer_that_passes_on_adds_its_own_time_to_the_first_byte_and_holds_nothing() -> None:
    log = Log()
    for _ in range(12):
        log.send(30, 50)
    first = log.read().first
    assert (first.spent.ns[LAYER], first.held_ns[LAYER], first.arrived[LAYER]) == (100 + 30 + 30, 0, 0)
    assert first.spent.ns[ENDPOINT] == 100 + 50


def test_a_buffer_holds_the_first_byte_while_the_others_work() -> None:
    log = Log()
    log.send(30, 50)
    for _ in range(9):
        log.send(30, 50, passed=False)
    log.send(30, 50)
    first = log.read().first
    assert first.arrived[LAYER] == 9
    assert first.held_ns[LAYER] == 9 * 50
    assert first.spent.ns[LAYER] == 100 + 11 * 30
