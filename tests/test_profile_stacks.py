"""Attribution of a profile's stacks to layers."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from pytest_mwbudget.analysis.profile_stacks import (
    BLOCK,
    MARKER,
    MOST_DEPTH,
    NO_LAYER,
    attributed,
    blocks_of,
    fitted,
    frame_info,
    innermost_owner,
    pruned,
)

MACHINERY = ("/site/pytest_mwbudget/", "<probe>")
OUTER, INNER = frame_info("Outer", BLOCK, 0), frame_info("Inner", BLOCK, 1)
BLOCKS = {0: (frame_info("(outside)", BLOCK, NO_LAYER),), 1: (OUTER,), 2: (OUTER, INNER)}


def marker(owner: int) -> str:
    return frame_info("_called", MARKER, owner)


def code(name: str) -> str:
    return frame_info(name, "/app/layers.py", 7)


STEP = frame_info("coroutine.send", "<built-in>", 0)
PROBE = frame_info("entered", "/site/pytest_mwbudget/counting/attribution.py", 90)
ROOT = [frame_info("main", "/app/test.py", 1), marker(1), code("outer")]


def test_a_sample_is_the_innermost_markers() -> None:
    assert innermost_owner([*ROOT, PROBE, marker(2), code("inner")]) == 2
    assert innermost_owner([*ROOT, PROBE, marker(2), code("inner"), PROBE, marker(1), code("send")]) == 1
    assert innermost_owner([code("main")]) == -1


def test_frames_stand_below_the_blocks_of_their_owner_without_those_that_called_it() -> None:
    inner = [*ROOT, PROBE, marker(2), STEP, code("inner"), code("helper")]
    assert attributed([(inner, 2.0)], BLOCKS, MACHINERY) == [([OUTER, INNER, code("inner"), code("helper")], 2.0)]


def test_the_send_of_a_layer_is_the_layers_whoever_called_it() -> None:
    sending = [*ROOT, PROBE, marker(2), code("inner"), PROBE, marker(1), code("send")]
    assert attributed([(sending, 1.0)], BLOCKS, MACHINERY) == [([OUTER, code("send")], 1.0)]


def test_a_child_task_hangs_below_the_layer_that_spawned_it() -> None:
    loop = frame_info("_run_once", "/lib/asyncio/base_events.py", 1900)
    task = [frame_info("main", "/app/test.py", 1), loop, PROBE, marker(1), STEP, code("child")]
    assert attributed([(task, 1.0)], BLOCKS, MACHINERY) == [([OUTER, code("child")], 1.0)]


def test_what_the_probes_do_is_nobodys_time() -> None:
    for stack in (
        [*ROOT, PROBE],
        [*ROOT, PROBE, frame_info("get_ident", "<built-in>", 0)],
        [*ROOT, PROBE, marker(2)],
        [*ROOT, PROBE, marker(2), STEP],
        [frame_info("main", "/app/test.py", 1)],
    ):
        assert attributed([(stack, 1.0)], BLOCKS, MACHINERY) == []


def test_what_is_done_for_an_owner_without_a_block_is_left_out() -> None:
    assert attributed([([marker(9), code("aside")], 1.0)], BLOCKS, MACHINERY) == []


def test_equal_stacks_are_added_up_whatever_line_they_were_at_and_classes_stay() -> None:
    first, second = (f"{code('dispatch')}\x01cAuth\x01l{line}" for line in (12, 13))
    records = attributed([([marker(1), first], 1.0), ([marker(1), second], 2.0)], BLOCKS, MACHINERY)
    assert records == [([OUTER, f"{code('dispatch')}\x01cAuth"], 3.0)]


def test_a_name_cannot_end_itself() -> None:
    hostile = {1: (frame_info("A\x00B\x01C", BLOCK, 0),)}
    ((stack, _),) = attributed([([marker(1), code("f")], 1.0)], hostile, MACHINERY)
    assert stack[0].split("\x00") == ["A\ufffdB\ufffdC", BLOCK, "0"]
    assert blocks_of(stack) == hostile[1]


def test_the_code_of_a_probe_is_machinery_and_a_package_of_a_like_name_is_not() -> None:
    probe, alike = frame_info("f", "<probe>", 1), frame_info("f", "/site/pytest_mwbudget_demo/app.py", 1)
    assert attributed([([marker(1), code("f"), probe], 1.0)], BLOCKS, MACHINERY) == []
    assert attributed([([marker(1), alike], 1.0)], BLOCKS, MACHINERY) == [([OUTER, alike], 1.0)]


def test_deep_frames_end_in_what_called_them() -> None:
    deep = [marker(1), *(code(f"f{number}") for number in range(1000))]
    (record,) = attributed([(deep, 1.0)], BLOCKS, MACHINERY)
    assert record == ([OUTER, *deep[1:MOST_DEPTH]], 1.0)


A, B, C = ([OUTER, code(name)] for name in "abc")


def test_what_a_block_takes_too_long_is_taken_off_in_proportion_to_its_calls() -> None:
    records = [(A, 10.0), (B, 10.0)]
    corrected = fitted(records, [(A, 1.0), (B, 3.0)], {(OUTER,): 12.0}, 0)
    assert {stack[-1]: round(seconds, 6) for stack, seconds in corrected} == {A[-1]: 8.0, B[-1]: 4.0}


def test_nothing_gets_less_than_nothing_and_the_rest_bears_it() -> None:
    corrected = fitted([(A, 10.0), (B, 1.0)], [(A, 1.0), (B, 3.0)], {(OUTER,): 5.0}, 0)
    assert [round(seconds, 6) for _, seconds in corrected] == [5.0, 0.0]


def test_what_has_no_calls_is_scaled() -> None:
    assert [s for _, s in fitted([(A, 1.0), (B, 3.0)], [], {(OUTER,): 2.0}, 0)] == [0.5, 1.5]
    assert [s for _, s in fitted([(A, 1.0), (B, 3.0)], [(A, 5.0)], {(OUTER,): 8.0}, 0)] == [2.0, 6.0]
    assert [s for _, s in fitted([(A, 0.0)], [], {(OUTER,): 8.0}, 0)] == [0.0]


def test_what_was_not_timed_shares_what_is_left() -> None:
    inner = [OUTER, INNER, code("c")]
    corrected = fitted([(A, 3.0), (inner, 6.0)], [], {(OUTER,): 4.0}, 2.0)
    assert corrected == [(A, 4.0), (inner, 2.0)]


SPENT = st.lists(st.tuples(st.floats(0.01, 10), st.integers(0, 20)), min_size=1, max_size=12)


@given(SPENT, st.floats(0.01, 50))
def test_a_fitted_block_takes_what_it_has_to_and_keeps_the_order_of_equals(
    spent: list[tuple[float, int]], wanted: float
) -> None:
    stacks = [[OUTER, code(f"f{number}")] for number in range(len(spent))]
    records = [(stack, seconds) for stack, (seconds, _) in zip(stacks, spent, strict=True)]
    events = [(stack, float(number)) for stack, (_, number) in zip(stacks, spent, strict=True)]
    corrected = [seconds for _, seconds in fitted(records, events, {(OUTER,): wanted}, 0)]
    assert math.isclose(math.fsum(corrected), wanted, rel_tol=1e-6)
    assert min(corrected) >= 0
    for (before, number), after in zip(spent, corrected, strict=True):
        for (other_before, other_number), other_after in zip(spent, corrected, strict=True):
            if number == other_number and before <= other_before:
                assert after <= other_after + 1e-9


def test_blocks_are_what_a_stack_begins_with() -> None:
    assert blocks_of([OUTER, INNER, code("a")]) == (OUTER, INNER)
    assert blocks_of([code("a")]) == ()


def test_thin_frames_end_in_the_frame_that_called_them() -> None:
    records = [([OUTER, code("a"), code("thin")], 0.1), ([OUTER, code("a"), code("thick")], 5.0)]
    assert pruned(records, 1.0) == [([OUTER, code("a")], 0.1), ([OUTER, code("a"), code("thick")], 5.0)]


RECORDS = st.lists(st.tuples(st.lists(st.sampled_from("abc"), min_size=1, max_size=5), st.floats(0.01, 10)), min_size=1)


@given(RECORDS, st.floats(0, 5))
def test_pruning_loses_only_what_is_thin_altogether(records: list[tuple[list[str], float]], least: float) -> None:
    kept = pruned(records, least)
    lost = sum(seconds for _, seconds in records) - sum(seconds for _, seconds in kept)
    roots = {stack[0] for stack, _ in records}
    thin = [root for root in roots if sum(s for stack, s in records if stack[0] == root) < least]
    assert abs(lost - sum(s for stack, s in records if stack[0] in thin)) < 1e-6
    for depth in range(1, 6):
        prefixes = {tuple(stack[:depth]) for stack, _ in kept if len(stack) >= depth}
        for prefix in prefixes:
            assert sum(s for stack, s in records if tuple(stack[:depth]) == prefix) >= least
