"""Which requests are timed when there is not enough time for all."""

from __future__ import annotations

from dataclasses import replace

from pytest_mwbudget.model.results import Result
from pytest_mwbudget.workload.shares import fitting, most_useful_first

from .test_report_terminal import NONE, counted, layer_row, same


def request(objects: int | None, *names: str) -> Result:
    rows = [layer_row(name, place) for place, name in enumerate(names)]
    return counted(*rows, total=replace(NONE, objects=None if objects is None else same(objects)))


def test_one_request_of_each_stack_comes_first_and_then_the_costliest() -> None:
    results = {0: request(10, "Auth"), 1: request(30, "Auth"), 2: request(5, "Auth", "GZip"), 3: request(20, "Auth")}
    assert most_useful_first(results) == [1, 2, 3, 0]


def test_a_layer_that_is_not_entered_makes_no_other_stack() -> None:
    aside = layer_row("GZip", 1)
    aside = replace(aside, layer=replace(aside.layer, entered=False))
    other = counted(layer_row("Auth"), aside, total=replace(NONE, objects=same(9)))
    assert most_useful_first({0: request(10, "Auth"), 1: request(1, "Csrf"), 2: other}) == [0, 1, 2]


def test_requests_keep_their_order_where_no_objects_are_counted() -> None:
    assert most_useful_first({0: request(None, "Auth"), 1: request(None, "Auth")}) == [0, 1]


def test_as_many_requests_fit_as_there_is_time_for() -> None:
    needed_s = {7: 1.0, 3: 5.0, 5: 0.5}
    assert fitting([7, 3, 5], needed_s, 6.6) == [7, 3, 5]
    assert fitting([7, 3, 5], needed_s, 2.0) == [7, 5]
    assert fitting([7, 3, 5], needed_s, 0.4) == []
