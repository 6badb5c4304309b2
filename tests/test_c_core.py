"""What only the core in C does: exact counts, hooks beside those of other tools, and no crashes."""

from __future__ import annotations

import ctypes
import gc
import os
import random
import shutil
import subprocess
import sys
import threading
import tracemalloc
import types
import weakref
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

core = pytest.importorskip(
    "pytest_mwbudget.counting._core", reason="the C extension cannot be imported", exc_type=ImportError
)


def disturbed() -> bool:
    """Tell whether a coverage tool or tracemalloc is active; both create objects of their own."""
    monitoring = getattr(sys, "monitoring", None)
    covered = monitoring is not None and monitoring.get_tool(monitoring.COVERAGE_ID) is not None
    return covered or sys.gettrace() is not None or tracemalloc.is_tracing()


pytestmark = pytest.mark.skipif(disturbed(), reason="another tool creates objects in the middle of what is counted")
counts_objects = pytest.mark.skipif(not core.COUNTS_OBJECTS, reason="creations can be seen from Python 3.13 on")

# AddressSanitizer delays the reuse of freed memory: no address is used again, and the process grows.
SANITIZED = "libasan" in os.environ.get("LD_PRELOAD", "")
WARM = 30  # calls until the interpreter has specialized the code


@pytest.fixture(autouse=True)
def nothing_left_open() -> Iterator[None]:
    """Stop the counting run and enable garbage collection after each test."""
    yield
    with suppress(RuntimeError):
        core.stop()
    gc.enable()


@contextmanager
def opened(owners: int = 1) -> Iterator[None]:
    """Open a counting run without automatic garbage collection."""
    gc.collect()
    gc.disable()
    core.start(owners)
    try:
        yield
    finally:
        core.stop()
        gc.enable()


class Spent:
    """The counts of each owner, and each owner's objects by type."""

    def __init__(self) -> None:
        self.tallies, made = core.take()
        self.types: list[Counter[type]] = [Counter() for _ in self.tallies]
        for owner, kind, number in made:
            self.types[owner][kind] += number

    @property
    def objects(self) -> list[int]:
        return [tally[0] for tally in self.tallies]

    @property
    def allocations(self) -> list[int]:
        return [tally[1] for tally in self.tallies]

    @property
    def bytes(self) -> list[int]:
        return [tally[2] for tally in self.tallies]


def spent_by(function: Callable[[], Any], owners: int = 1) -> Spent:
    """Return the cost of one call in a warm interpreter, charged to owner 0."""
    with opened(owners):
        for _ in range(WARM):
            core.run(0, function)
        core.take()
        core.run(0, function)
        return Spent()


class Own:
    """A class of which only these tests create instances."""


@types.coroutine
def trap() -> Generator[Any, Any, Any]:
    return (yield)


# ---- exact counts -------------------------------------------------------------------------------------------------

NUMBER = 1000
BOXES: list[list[Any]] = [[index + 0.5] for index in range(NUMBER)]
A, B = object(), object()
ONE_TUPLE = (A,)


def keeping_tuples() -> None:
    for box in BOXES:
        box[0] = (A, box)


def dropping_tuples() -> None:
    for box in BOXES:
        _ = (A, box)


def dropping_floats() -> None:
    number = 1.0
    for _ in BOXES:
        _ = number + 1.0


def keeping_instances() -> None:
    for box in BOXES:
        box[0] = Own()


def keeping_lists() -> None:
    for box in BOXES:
        box[0] = [A]


def keeping_dicts() -> None:
    for box in BOXES:
        box[0] = {"a": A}


# The iterator that `for` creates over a list: none since CPython 3.15.
ITERATOR = {} if sys.version_info >= (3, 15) else {type(iter([])): 1}


@counts_objects
@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (keeping_tuples, tuple),
        (dropping_tuples, tuple),
        (dropping_floats, float),
        (keeping_instances, Own),
        (keeping_lists, list),
        (keeping_dicts, dict),
    ],
)
def test_every_object_is_counted_with_its_type(function: Any, kind: type) -> None:
    spent = spent_by(function)
    assert spent.types[0] == Counter({kind: NUMBER, **ITERATOR})
    assert spent.objects[0] == NUMBER + len(ITERATOR)


@counts_objects
@pytest.mark.parametrize("function", [dropping_tuples, dropping_floats])
def test_an_object_out_of_a_free_list_is_an_object_and_no_allocation(function: Any) -> None:
    spent = spent_by(function)
    assert spent.objects[0] == NUMBER + len(ITERATOR)
    assert spent.allocations[0] <= 2


@counts_objects
@pytest.mark.parametrize(
    ("function", "kind"),
    [(lambda: tuple(box for box in BOXES[:30]), tuple), (lambda: "%d" % len(BOXES), str)],  # noqa: UP031
)
def test_an_object_that_is_brought_to_its_size_is_one_object(function: Any, kind: type) -> None:
    assert spent_by(function).types[0][kind] == 1


ONE, ONE_ARRAY = b"x", bytearray(b"x")


@pytest.mark.parametrize("number", [100, 1000, 100_000])
def test_an_allocation_is_counted_with_the_bytes_that_were_asked_for(number: int) -> None:
    spent = spent_by(lambda: ONE * number)
    assert (spent.allocations[0], spent.bytes[0]) == (1, sys.getsizeof(ONE * number))
    spent = spent_by(lambda: ONE_ARRAY * number)
    assert (spent.allocations[0], spent.bytes[0]) == (2, sys.getsizeof(ONE_ARRAY * number))


def test_a_call_that_creates_nothing_costs_nothing() -> None:
    def nothing() -> None:
        pass

    assert spent_by(nothing).tallies[0] == (0, 0, 0, 0)


def test_the_sum_over_owners_is_what_one_owner_would_be_charged() -> None:
    parts = [keeping_tuples, keeping_instances, dropping_floats, keeping_dicts, lambda: ONE * 5000]

    def whole(owners: list[int]) -> None:
        for owner, part in zip(owners, parts, strict=True):
            core.run(owner, part)

    apart, alone = [0, 1, 1, 2, 0], [0, 0, 0, 0, 0]  # floats alone may allocate nothing: CPython 3.14 has free floats
    separate = spent_by(lambda: whole(apart), owners=3)
    together = spent_by(lambda: whole(alone), owners=3)
    assert together.tallies[1:3] == [(0, 0, 0, 0)] * 2
    assert [sum(tally) for tally in zip(*separate.tallies[:3], strict=True)] == list(together.tallies[0])
    assert sum(separate.types[:3], Counter()) == together.types[0]
    assert all(tally[1] for tally in separate.tallies[:3])


def test_taking_begins_anew_and_what_it_makes_itself_is_nobodys() -> None:
    with opened():
        core.callback(0, int)()
        _ = ONE * 5000
        assert core.take()[0][0][2] >= 5000
        second = core.take()
    assert second[0][0] == (0, 0, 0, 0)


def test_switching_between_many_owners_costs_them_nothing() -> None:
    def switching() -> None:
        charge_4000()
        charge_3000()
        whoever()
        charge_0()

    with opened(5000):
        whoever = core.aside(int)
        charge_4000, charge_3000, charge_0 = (core.callback(owner, int) for owner in (4000, 3000, 0))
        core.run(0, switching)
        core.take()
        core.run(0, switching)
        tallies, _ = core.take()
    assert {owner for owner, tally in enumerate(tallies) if tally != (0, 0, 0, 0)} == {5000}


def test_what_another_thread_creates_goes_to_an_owner_of_other_threads() -> None:
    go, done = threading.Event(), threading.Event()

    def work() -> None:
        go.wait()
        keeping_instances()
        _ = ONE * 1_000_000
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    with opened():
        core.callback(0, int)()
        go.set()
        done.wait()
        spent = Spent()
    thread.join()
    assert spent.bytes[-1] >= 1_000_000 + NUMBER * 16
    assert spent.bytes[0] < 100_000
    if core.COUNTS_OBJECTS:
        assert [kinds[Own] for kinds in spent.types] == [0, 0, NUMBER]


# ---- threads -----------------------------------------------------------------------------------------------------


@contextmanager
def switching_often() -> Iterator[None]:
    """Let threads take turns as often as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def joined(*works: Callable[[], Any]) -> None:
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("function", [keeping_instances, keeping_tuples, dropping_floats, lambda: ONE * 5000])
def test_a_thread_is_charged_what_its_work_costs_anywhere(function: Callable[[], Any]) -> None:
    here = spent_by(function, owners=2)
    with opened(2):
        for _ in range(WARM):
            core.run(0, function)
        work = core.lent(1, function)
        done: list[Spent] = []

        def alone() -> None:
            work()
            core.take()
            work()
            done.append(Spent())

        joined(alone)
    assert done[0].tallies[1] == here.tallies[0]
    assert done[0].types[1] == here.types[0]


@counts_objects
def test_threads_at_the_same_time_are_each_charged_exactly_their_own() -> None:
    def making(number: int) -> None:
        for _ in range(number):
            Own()

    def probed(caller: int, arguments: Any, named: Any) -> None:
        core.discount(caller, arguments)
        core.discount(caller, named)

    with opened(5), switching_often():
        probe = core.aside(probed)

        def calling(*arguments: Any, **named: Any) -> None:
            probe(arguments, named)

        works = [lambda owner=owner: core.lent(owner, making)(owner * 1000) for owner in range(1, 4)]
        joined(*works, lambda: core.lent(4, lambda: [calling(1, two=2) for _ in range(1000)])(), lambda: making(777))
        spent = Spent()
    assert [kinds[Own] for kinds in spent.types] == [0, 1000, 2000, 3000, 0, 0, 777]
    # The containers for the probe were taken off again, although other threads allocated meanwhile.
    assert spent.types[4][dict] == spent.types[4][tuple] == 0


@counts_objects
def test_objects_made_in_a_thread_are_remembered_for_their_owner() -> None:
    kept: list[Any] = []
    with opened(3):
        core.period(7)
        joined(core.lent(2, lambda: kept.append(Own())), lambda: kept.append(Own()))
        core.period(-1)
        births = core.born(kept)
    assert sorted(births.values()) == [(7, 2, Own), (7, 4, Own)]


def test_a_thread_may_end_a_run_and_begin_another_within_lent_work() -> None:
    def again() -> None:
        core.stop()
        core.start(2)
        core.callback(1, int)()
        [Own() for _ in range(50)]

    core.start(3)
    joined(core.lent(2, core.aside(lambda _: core.run(1, core.lent(0, again)))))
    assert core.aside(int)() == -1  # this thread is in no lane of the second run
    tallies, _ = core.take()
    assert len(tallies) == 4
    core.stop()


def test_daemon_threads_in_lent_work_do_not_disturb_the_end_of_the_process() -> None:
    code = """
import threading, time
from pytest_mwbudget.counting import _core as core
def work():
    begun.set()
    while True:
        [object() for _ in range(1000)]
begun = threading.Event()
core.start(2)
thread = threading.Thread(target=core.lent(1, work), daemon=True)
thread.start()
begun.wait()
end = time.monotonic() + 30
while (counted := core.take()[0][1][1]) <= 0 and time.monotonic() < end:
    time.sleep(0.05)
print(counted > 0)
"""
    assert in_a_process(code) == "True\n"
    code += "core.stop(); core.start(1); time.sleep(0.05); print(core.take()[0][0][1])"
    assert in_a_process(code) == "True\n0\n"


def returned(coroutine: Any) -> None:
    with suppress(StopIteration):
        coroutine.send(None)


def thrown_into(coroutine: Any) -> None:
    with suppress(KeyError):
        coroutine.throw(ERROR)


def closed(coroutine: Any) -> None:
    coroutine.close()


ERROR = KeyError("thrown")


@pytest.mark.parametrize("value", [None, ("a", "tuple"), 3])
@pytest.mark.parametrize("end", [returned, thrown_into, closed])
def test_a_proxy_costs_the_owner_nothing(value: object, end: Callable[[Any], None]) -> None:
    async def inner() -> object:
        await trap()
        return value

    async def outer(awaitable: Any) -> None:
        await awaitable

    def drive(coroutine: Any) -> None:
        coroutine.send(None)
        end(coroutine)

    def cost(wrapped: Callable[[Any], Any]) -> tuple[Any, ...]:
        with opened():
            for _ in range(WARM):
                ERROR.__traceback__ = None
                coroutine = outer(wrapped(inner()))
                core.take()
                core.run(0, drive, coroutine)
                spent = Spent()
        return (*spent.tallies[0][:3], spent.types[0])

    assert cost(lambda coroutine: core.coroutine_proxy(0, core.coroutine_proxy(0, coroutine))) == cost(
        lambda coroutine: coroutine
    )


def test_asking_a_proxy_or_a_guard_for_what_it_forwards_costs_the_owner_nothing_more() -> None:
    def asking(subject: Any) -> Any:
        for _ in range(WARM):
            core.take()
            core.run(0, getattr, subject, "__qualname__")
        return core.take()[0][0]

    with opened():
        coroutine = trap()
        assert asking(core.coroutine_proxy(0, coroutine)) == asking(coroutine)
        assert asking(core.aside(keeping_lists)) == asking(keeping_lists)


# ---- discounts ----------------------------------------------------------------------------------------------------

LONG = 25  # tuples of this length come from no free list


def discounting(function: Callable[[Callable[[object], None]], Any]) -> Spent:
    """Return the cost of a function that discounts the objects which it passes to its argument."""
    with opened():
        discount = core.aside(core.discount)
        for _ in range(WARM):
            core.take()
            core.run(0, function, discount)
        return Spent()


def test_a_discounted_object_was_not_created() -> None:
    plain = discounting(lambda _: ONE_TUPLE * LONG)
    assert plain.allocations[0] == 1
    assert plain.bytes[0] > LONG * 8
    discounted = discounting(lambda discount: discount(ONE_TUPLE * LONG))
    assert discounted.tallies[0] == (0, 0, 0, 0)
    assert discounted.types[0][tuple] == 0
    assert discounted.bytes[1] >= plain.bytes[0]


def test_only_the_object_is_discounted_and_not_its_neighbours() -> None:
    def function(discount: Any) -> None:
        before = ONE_TUPLE * LONG
        made = ONE_TUPLE * (LONG + 1)
        after = ONE_TUPLE * (LONG + 2)
        discount(made)
        del before, after

    spent = discounting(function)
    assert (spent.allocations[0], spent.bytes[0]) == (2, 2 * sys.getsizeof(ONE_TUPLE * (LONG + 1)))
    if core.COUNTS_OBJECTS:
        assert (spent.objects[0], spent.types[0][tuple]) == (2, 2)


def test_of_several_uses_of_the_same_memory_the_last_is_discounted() -> None:
    def function(discount: Any) -> None:
        _ = ONE_TUPLE * (LONG - 1)
        _ = None
        discount(ONE_TUPLE * LONG)

    discounting(function)  # warm up the interpreter
    with opened():
        discount = core.aside(core.discount)
        core.run(0, function, discount)
        assert core.take()[0][0][1:3] == (1, sys.getsizeof(ONE_TUPLE * (LONG - 1)))


def test_discounting_finds_the_object_below_many_allocations_of_the_probe() -> None:
    held = []

    def probe(owner: int, made: object) -> None:
        held.append([bytearray(100) for _ in range(100)])
        core.discount(owner, made)

    with opened():
        discount = core.aside(probe)
        for _ in range(WARM):
            core.take()
            core.run(0, lambda: discount(ONE_TUPLE * LONG))
        assert core.take()[0][0] == (0, 0, 0, 0)


@counts_objects
def test_discounting_an_object_out_of_a_free_list_takes_no_allocation_off() -> None:
    def function(note: Any, discount: Any) -> None:
        allocated = (A, A, A, A, A, A, A, A, A, A, A, A, A, A, A, A, A)
        note(allocated)
        del allocated
        again = (B, B, B, B, B, B, B, B, B, B, B, B, B, B, B, B, B)
        note(again)
        discount(again)

    addresses: list[int] = []
    emptying = [tuple(range(17)) for _ in range(3000)]
    with opened():
        # Not charged, because id() creates a tuple if the process has an audit hook.
        note = core.aside(lambda _, made: addresses.append(id(made)))
        core.run(0, function, note, core.aside(core.discount))
        spent = Spent()
    assert addresses[0] == addresses[1]
    assert spent.types[0][tuple] == 1
    assert spent.bytes[0] >= sys.getsizeof(emptying[0])


def test_a_discounted_dict_is_discounted_with_its_keys() -> None:
    def named(**named: Any) -> dict[str, Any]:
        return named

    def cost(discount: Callable[..., Any]) -> tuple[int, ...]:
        with opened():
            guard = core.aside(discount)

            def call() -> None:
                guard(named(a=A, b=B))

            core.run(0, call)  # the first call allocates more
            emptying = [{"a": index} for index in range(300)]
            core.take()
            core.run(0, call)
            tally: tuple[int, ...] = core.take()[0][0]
        assert emptying
        return tally

    plain, discounted = cost(lambda *_: None), cost(core.discount)
    assert plain[1] - discounted[1] == 2
    assert plain[2] - discounted[2] >= sys.getsizeof({"a": 1}) - 16


# ---- remembered objects -------------------------------------------------------------------------------------------


@counts_objects
def test_an_object_is_remembered_with_its_period_owner_and_type() -> None:
    with opened(2):
        before = Own()
        core.period(7)
        first = core.run(1, Own)
        core.period(8)
        second = core.run(0, Own)
        core.period(-1)
        after = Own()
        assert list(core.born([before, first, second, after]).values()) == [(7, 1, Own), (8, 0, Own)]


@counts_objects
@pytest.mark.skipif(SANITIZED, reason="no address is used again here")
@pytest.mark.parametrize("again", [8, -1])
def test_an_address_that_is_used_again_belongs_to_its_new_object(again: int) -> None:
    with opened():
        core.period(7)
        kept = [Own() for _ in range(NUMBER)]
        addresses = set(map(id, kept))
        assert core.born(kept) == dict.fromkeys(addresses, (7, 1, Own))
        core.period(again)
        del kept
        anew = [Own() for _ in range(NUMBER)]
        same = [instance for instance in anew if id(instance) in addresses]
        assert same
        assert core.born(same) == (dict.fromkeys(map(id, same), (8, 1, Own)) if again == 8 else {})


@counts_objects
@pytest.mark.skipif(SANITIZED, reason="no address is used again here")
def test_an_object_whose_end_the_interpreter_did_not_report_is_forgotten_when_its_address_is_used_again() -> None:
    def address_of_a_short_life() -> int:
        instance = Own()
        address = id(instance)
        del instance  # up to 3.13.2 the bytecode loop does not report deallocations
        return address

    with opened():
        core.period(7)
        address = address_of_a_short_life()
        core.period(-1)
        anew = [Own() for _ in range(NUMBER)]
        assert address in map(id, anew)
        assert core.born(anew) == {}


@counts_objects
def test_an_object_that_moves_when_it_grows_is_found_at_its_new_address() -> None:
    with opened():
        core.period(3)
        moved = core.run(0, tuple, map(abs, range(NUMBER)))
        assert core.born([moved]) == {id(moved): (3, 0, tuple)}


@pytest.mark.parametrize("objects", [5, None, (), map(id, ())])
def test_what_is_no_list_of_objects_is_refused(objects: Any) -> None:
    with opened(), pytest.raises(TypeError, match=r"born\(\) takes a list"):
        core.born(objects)


@counts_objects
def test_objects_that_are_found_again_and_while_others_are_remembered_are_told_once() -> None:
    with opened():
        core.period(7)
        made = core.run(0, lambda: [Own() for _ in range(9 * NUMBER)])
        assert core.born(made * 2) == {id(own): (7, 0, Own) for own in made}


def test_a_period_is_a_number_of_reasonable_size() -> None:
    with opened():
        for period, error in ((2**40, OverflowError), (None, TypeError)):
            with pytest.raises(error):
                core.period(period)


# ---- classes ------------------------------------------------------------------------------------------------------


@counts_objects
def test_classes_that_come_and_go_are_counted_apart() -> None:
    def one(index: int) -> None:
        kind = type(f"Kind{index}", (), {})
        for _ in range(index + 1):
            kind()

    with opened():
        for indices in (range(20), range(20, 40)):
            for index in indices:
                core.run(0, one, index)
                gc.collect()
            made = Spent().types[0]
            numbers = {kind.__name__: number for kind, number in made.items() if kind.__name__.startswith("Kind")}
            assert numbers == {f"Kind{index}": index + 1 for index in indices}


@counts_objects
def test_a_class_may_die_once_it_was_told_of() -> None:
    with opened():
        kind = type("Kind", (), {})
        reference = weakref.ref(kind)
        kind()
        del kind
        gc.collect()
        assert reference() is not None
        core.take()
        gc.collect()
        assert reference() is None


@counts_objects
def test_a_class_lives_as_long_as_objects_of_it_are_remembered() -> None:
    with opened():
        core.period(0)
        kind = type("Kind", (), {})
        reference = weakref.ref(kind)
        instance = kind()
        core.take()
        del kind
        gc.collect()
        assert core.born([instance]) == {id(instance): (0, 1, reference())}


@counts_objects
def test_a_class_may_die_when_the_last_remembered_object_of_it_has() -> None:
    with opened():
        core.period(0)
        kind = type("Kind", (), {})
        reference = weakref.ref(kind)
        instances = [kind() for _ in range(10)]
        core.take()
        del kind
        gc.collect()
        assert reference() is not None
        instances.clear()
        core.take()
        gc.collect()
        assert reference() is None


@counts_objects
def test_stopping_the_counting_run_lets_go_of_every_class() -> None:
    with opened():
        core.period(0)
        kind = type("Kind", (), {})
        reference = weakref.ref(kind)
        kept = [kind()]
        core.take()
        kept.append(kind())
        del kind, kept
    gc.collect()
    assert reference() is None


# ---- hooks --------------------------------------------------------------------------------------------------------


def allocations_counted() -> bool:
    def buffer() -> bytes:
        return ONE * 1000

    core.run(0, buffer)  # the first call allocates more
    core.take()
    core.run(0, buffer)
    return core.take()[0][0][1:3] == (1, 1033)


def counting_works() -> bool:
    core.start(1)
    return allocations_counted() and core.stop()[1] is False


def tracing_works() -> bool:
    before = tracemalloc.get_traced_memory()[0]
    held = bytearray(1_000_000)
    during = tracemalloc.get_traced_memory()[0]
    del held
    after = tracemalloc.get_traced_memory()[0]
    return 1_000_000 <= during - before < 1_100_000 and during - after > 900_000


@pytest.fixture(autouse=True)
def tracing_left_off() -> Iterator[None]:
    yield
    tracemalloc.stop()


def test_tracemalloc_from_before_traces_on_during_the_counting_run_and_after_it() -> None:
    tracemalloc.start()
    for _ in range(3):
        core.start(1)
        assert tracing_works()
        assert allocations_counted()
        assert core.stop() == (False, False)
        assert tracing_works()


def test_tracemalloc_that_starts_and_stops_during_the_counting_run_takes_no_allocations() -> None:
    core.start(1)
    tracemalloc.start()
    assert tracing_works()
    assert allocations_counted()
    tracemalloc.stop()
    assert allocations_counted()
    assert core.stop()[1] is False
    assert counting_works()


def test_tracemalloc_that_starts_during_the_counting_run_and_stops_after_it_leaves_a_link() -> None:
    for _ in range(3):
        core.start(1)
        tracemalloc.start()
        assert core.stop()[1] is False
        assert tracing_works()
        assert counting_works()
        assert tracing_works()
        tracemalloc.stop()
        assert counting_works()
        assert counting_works()


@pytest.mark.parametrize("again", [False, True])
def test_tracemalloc_that_stops_during_the_counting_run_takes_the_allocations_and_that_is_reported(again: bool) -> None:
    tracemalloc.start()
    core.start(1)
    tracemalloc.stop()
    if again:
        tracemalloc.start()
    assert not allocations_counted()
    assert core.stop()[1] is True
    assert not again or tracing_works()
    assert counting_works()
    tracemalloc.stop()
    assert counting_works()


def test_counting_runs_and_tracemalloc_in_any_order_leave_both_at_work() -> None:
    steps = [tracemalloc.start, tracemalloc.stop, lambda: core.start(1), core.stop]
    chance = random.Random(1)
    for _ in range(4000):
        with suppress(RuntimeError):
            chance.choice(steps)()
    with suppress(RuntimeError):
        core.stop()
    tracemalloc.stop()
    assert counting_works()
    tracemalloc.start()
    assert tracing_works()
    assert counting_works()


@pytest.mark.parametrize("domain", [1, 2])
def test_a_tool_that_puts_our_allocator_back_after_the_counting_run_is_survived(domain: int) -> None:
    def allocator() -> Any:
        pointers = (ctypes.c_void_p * 5)()
        ctypes.pythonapi.PyMem_GetAllocator(domain, pointers)
        return pointers

    before = allocator()
    core.start(1)
    ours = allocator()
    assert list(ours) != list(before)
    ctypes.pythonapi.PyMem_SetAllocator(domain, before)
    assert core.stop() == (False, True)
    ctypes.pythonapi.PyMem_SetAllocator(domain, ours)
    for _ in range(2):
        core.start(1)
        assert allocations_counted()
        assert core.stop() == (False, False)
        assert list(allocator()) == list(before)


def tracer() -> int:
    """Return the address of the installed reference tracer."""
    get = ctypes.pythonapi.PyRefTracer_GetTracer
    get.restype = ctypes.c_void_p
    return get(ctypes.byref(ctypes.c_void_p())) or 0


def set_tracer(address: int) -> None:
    ctypes.pythonapi.PyRefTracer_SetTracer(ctypes.c_void_p(address), None)


TRACERS = """
typedef int (*tracer)(void *object, int event, void *data);
#define TRACER(name) \\
    long name##_events; tracer name##_next; \\
    int name(void *object, int event, void *data) \\
    { name##_events++; return name##_next ? name##_next(object, event, data) : 0; }
TRACER(one)
TRACER(two)
"""


class Tracer:
    """A tracer in C that counts events, and forwards them to the previous tracer on request."""

    def __init__(self, library: ctypes.CDLL, name: str) -> None:
        self.events = ctypes.c_long.in_dll(library, f"{name}_events")
        self.next = ctypes.c_void_p.in_dll(library, f"{name}_next")
        self.address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value

    def install(self, *, forwarding: bool = False) -> None:
        self.next.value = tracer() if forwarding else None
        set_tracer(self.address)

    def works(self) -> bool:
        before = self.events.value
        keeping_instances()
        return NUMBER < self.events.value - before < 3 * NUMBER


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("a tracer needs a C compiler")
    folder = tmp_path_factory.mktemp("tracers")
    (folder / "tracers.c").write_text(TRACERS)
    subprocess.run([compiler, "-shared", "-fPIC", "tracers.c", "-o", "tracers.so"], cwd=folder, check=True)
    return ctypes.CDLL(str(folder / "tracers.so"))


@pytest.fixture
def one(library: ctypes.CDLL) -> Iterator[Tracer]:
    yield Tracer(library, "one")
    with suppress(RuntimeError):
        core.stop()
    set_tracer(0)


@pytest.fixture
def two(library: ctypes.CDLL) -> Tracer:
    return Tracer(library, "two")


def objects_counted() -> bool:
    core.take()
    core.run(0, keeping_instances)
    return Spent().types[0][Own] == NUMBER


@counts_objects
def test_no_other_tracer_is_reported_where_there_is_none(one: Tracer) -> None:
    set_tracer(0)
    assert core.start(1) is False
    assert objects_counted()
    assert core.stop() == (False, False)
    assert tracer() == 0


@counts_objects
def test_a_tracer_from_before_is_reported_gets_its_events_and_is_put_back(one: Tracer) -> None:
    one.install()
    for _ in range(3):
        assert core.start(1) is True
        assert objects_counted()
        assert one.works()
        assert core.stop() == (False, False)
        assert tracer() == one.address
        assert one.works()


@counts_objects
def test_a_tracer_that_takes_the_events_during_the_counting_run_is_reported_and_stays(one: Tracer) -> None:
    core.start(1)
    one.install()
    assert not objects_counted()
    assert core.stop() == (True, False)
    assert tracer() == one.address
    assert one.works()
    assert core.start(1) is True
    assert objects_counted()


@counts_objects
def test_tracemalloc_taking_the_events_is_reported(one: Tracer) -> None:
    set_tracer(0)
    core.start(1)
    tracemalloc.start()
    counted = objects_counted()
    assert core.stop()[0] is not counted


@counts_objects
def test_a_tracer_that_passes_the_events_on_takes_nothing(one: Tracer, two: Tracer) -> None:
    one.install()
    assert core.start(1) is True
    two.install(forwarding=True)
    for _ in range(3):
        assert objects_counted()
        assert one.works()
        assert two.works()
        assert core.stop() == (False, False)
        assert one.works()
        assert two.works()
        assert core.start(1) is True


@counts_objects
@pytest.mark.parametrize("forwarding", [False, True])
def test_a_tracer_that_puts_back_what_it_found_after_the_counting_run_loses_nobody(
    one: Tracer, two: Tracer, forwarding: bool
) -> None:
    one.install()
    core.start(1)
    ours = tracer()
    two.install(forwarding=forwarding)
    assert core.stop() == (not forwarding, False)
    set_tracer(ours)
    assert one.works()
    for _ in range(3):
        assert core.start(1) is True
        assert objects_counted()
        assert one.works()
        assert core.stop() == (False, False)
        assert tracer() == one.address


# ---- robustness ---------------------------------------------------------------------------------------------------


def test_an_await_method_that_steps_its_own_proxy_leaves_nothing_behind() -> None:
    def a_generator() -> Generator[Any, Any, Any]:
        yield 1

    class Greedy:
        def __await__(self) -> Any:
            steps = a_generator()
            references.append(weakref.ref(steps))
            if len(references) == 1:
                proxies[0].send(None)
            return steps

    references: list[Any] = []
    with opened():
        proxies = [core.coroutine_proxy(0, Greedy())]
        proxies[0].send(None)
        del proxies[0]
    gc.collect()
    assert [reference() for reference in references] == [None, None]


class Iterating:
    """An awaitable whose iterator has no `throw`."""

    def __await__(self) -> Any:
        return iter([1, 2])


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((ValueError, "text"), "text"),
        ((ValueError, ("two", "arguments")), r"\('two', 'arguments'\)"),
        ((ValueError, ValueError("instance"), None), "instance"),
        ((ValueError, None, None), "^$"),
        ((ValueError("instance"), None, None), "instance"),
    ],
)
def test_an_iterator_that_takes_no_exceptions_ends_with_what_is_thrown(
    arguments: Any, message: str, begun: bool
) -> None:
    with opened():
        proxy = core.coroutine_proxy(0, Iterating())
        if begun:
            proxy.send(None)
        with pytest.raises(ValueError, match=message):
            proxy.throw(*arguments)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        (name, arguments)
        for name in ("start", "run", "coroutine_proxy", "aside", "callback", "discount")
        for arguments in ((), (None, None), (2**80, None), (1, 2, 3, 4, 5, 6))
    ],
)
def test_wrong_arguments_are_errors(name: str, arguments: Any) -> None:
    with opened(), pytest.raises((TypeError, OverflowError)):
        getattr(core, name)(*arguments)


@pytest.mark.parametrize("make", [lambda: core.coroutine_proxy(0, None), lambda: core.aside(int)])
def test_the_types_can_be_neither_instantiated_nor_changed(make: Any) -> None:
    with opened():
        kind = type(make())
    with pytest.raises(TypeError, match="cannot create"):
        kind()
    with pytest.raises(TypeError, match="immutable type"):
        kind.attribute = 1


def test_a_guard_forwards_what_it_is_asked() -> None:
    with opened():
        for guard in (core.aside(keeping_tuples), core.callback(0, keeping_tuples)):
            assert guard.__name__ == "keeping_tuples"
            assert guard.__code__ is keeping_tuples.__code__
            with pytest.raises(AttributeError, match="no_such_thing"):
                _ = guard.no_such_thing


@pytest.mark.parametrize(
    ("make", "use"),
    [
        (lambda awaitable: core.coroutine_proxy(999, awaitable, True), lambda proxy: proxy.send(None)),
        (lambda _: core.callback(999, int), lambda guard: guard()),
        (lambda _: core.aside(abs), lambda guard: guard()),
    ],
)
def test_a_collection_that_opens_a_smaller_counting_run_in_the_middle_is_survived(make: Any, use: Any) -> None:
    class Reopening:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            reopened.append(True)
            core.stop()
            core.start(1)

    reopened: list[bool] = []
    threshold = gc.get_threshold()
    for number in range(20):
        core.start(1000)
        awaitable = trap()
        Reopening()
        _ = [(number, number, [number] * length) for length in range(5)]
        _ = None  # leaves free tuples behind, so that up to 3.11 the proxy triggers the collection
        gc.set_threshold(1)
        try:
            made = make(awaitable)
        except ValueError:
            made = int
        gc.set_threshold(*threshold)
        gc.collect()
        use(made) if made is not int else None
        assert core.aside(int)() in range(3)
        awaitable.close()
        core.stop()
    assert len(reopened) == 20


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_process_goes_on_counting() -> None:
    output = in_a_process(
        """
import os
import random
from pytest_mwbudget.counting import _core as core
one = b"x"
def works():
    core.take()
    core.run(0, lambda: one * 1000)
    return core.take()[0][0][1:3] == (1, 1033)
core.start(1)
child = os.fork()
assert works()
assert core.stop() == (False, False)
core.start(1)
assert works()
if child:
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    print("both")
"""
    )
    assert output == "both\n"


def test_an_interpreter_may_end_with_an_open_counting_run() -> None:
    output = in_a_process(
        """
import asyncio
from pytest_mwbudget.counting import _core as core
core.start(3)
core.period(0)
async def main():
    await asyncio.sleep(0)
kept = [core.coroutine_proxy(1, main()), core.aside(print), type("Kind", (), {})()]
kept.append(kept)
asyncio.run(core.coroutine_proxy(1, main(), True))
kept[0].close()
print("end")
"""
    )
    assert output == "end\n"


def in_a_process(code: str) -> str:
    completed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parent.parent, check=False
    )
    assert (completed.returncode, completed.stderr) == (0, "")
    return completed.stdout


# ---- other interpreters -------------------------------------------------------------------------------------------

# Creates an interpreter on every version, with or without a GIL of its own, and runs code in it.
INTERPRETERS = """
import atexit
import sys
if sys.version_info >= (3, 13):
    import _interpreters
    destroy = _interpreters.destroy
    def make(own_gil):
        return _interpreters.create("isolated" if own_gil else "legacy")
    def run(interpreter, code):
        error = _interpreters.exec(interpreter, code)
        assert error is None, error.formatted
else:
    import _xxsubinterpreters
    destroy = _xxsubinterpreters.destroy
    def make(own_gil):
        return _xxsubinterpreters.create(isolated=own_gil)
    run = _xxsubinterpreters.run_string
def prepared(own_gil):
    interpreter = make(own_gil)
    atexit.register(destroy, interpreter)
    run(interpreter, f"import sys; sys.path[:] = {sys.path!r}")
    return interpreter
"""
own_gils = pytest.mark.parametrize("own_gil", [False, True] if sys.version_info >= (3, 12) else [False])


@own_gils
def test_another_interpreter_is_refused_and_gets_the_core_in_python(own_gil: bool) -> None:
    code = """
run(prepared(OWN_GIL), '''
from pytest_mwbudget.counting.backend import PythonCore, counting_backend
try:
    from pytest_mwbudget.counting import _core
except ImportError as error:
    assert "interpreter" in str(error), error
else:
    raise AssertionError("imported")
found = counting_backend()
assert isinstance(found.core, PythonCore)
assert "interpreter" in found.why_not["bytes"], found.why_not
''')
print("refused")
"""
    assert in_a_process(INTERPRETERS + code.replace("OWN_GIL", str(own_gil))) == "refused\n"


@own_gils
def test_what_another_interpreter_creates_is_not_counted_and_disturbs_nothing(own_gil: bool) -> None:
    code = """
import threading
from pytest_mwbudget.counting import _core as core
busy = '''
class Own:
    pass
for number in range(100):
    kind = type(f"Kind{number}", (), {})
    kept = [(number, kind(), Own(), bytearray(10000)) for _ in range(200)]
'''
one, boxes = b"x", [[None] for _ in range(1000)]
class Own:
    pass
def function():
    for box in boxes:
        box[0] = Own()
    return one * 1000
core.start(1)
core.period(0)
interpreters = [prepared(OWN_GIL) for _ in range(3)]
core.take()
run(interpreters[0], busy)
tallies, _ = core.take()
assert sum(tally[2] for tally in tallies) < 1_000_000, tallies
targets = [run, core.lent(0, run)]
threads = [
    threading.Thread(target=target, args=(interpreter, busy))
    for target, interpreter in zip(targets, interpreters[1:], strict=True)
]
for thread in threads:
    thread.start()
found = set()
for _ in range(30):
    core.take()
    core.run(0, function)
    made = [number for owner, kind, number in core.take()[1] if owner == 0 and kind is Own]
    found.update(made)
for thread in threads:
    thread.join()
assert found == ({1000} if core.COUNTS_OBJECTS else set()), found
assert sum(tally[2] for tally in core.take()[0]) < 1_000_000
assert core.stop() == (False, False)
print("counted")
"""
    assert in_a_process(INTERPRETERS + code.replace("OWN_GIL", str(own_gil))) == "counted\n"


# ---- memory -------------------------------------------------------------------------------------------------------


def resident() -> int:
    """Return the resident bytes; 0 if they cannot be read or freed memory is kept."""
    statm = Path("/proc/self/statm")
    if SANITIZED or not statm.exists():
        return 0
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def memory_after(work: Callable[[int], None], times: int) -> tuple[int, int]:
    """Run `work` repeatedly, and return the allocated blocks and the resident bytes."""
    for number in range(times):
        work(number)
    gc.collect()
    return sys.getallocatedblocks(), resident()


def assert_flat(work: Callable[[int], None], times: int) -> None:
    blocks, memory = memory_after(work, times // 10)
    blocks_later, memory_later = memory_after(work, times)
    assert abs(blocks_later - blocks) < times // 4
    assert memory_later - memory < 8_000_000


def test_thousands_of_counting_runs_leave_no_memory_behind() -> None:
    async def inner() -> int:
        await trap()
        return 3

    def one_counting_run(number: int) -> None:
        core.start(3)
        core.period(number)
        kept = [Own(), {number: number}, object()]
        root = core.coroutine_proxy(1, core.coroutine_proxy(2, inner(), False, list), True)
        root.send(None)
        with suppress(ValueError):
            root.throw(ValueError)
        returning = core.coroutine_proxy(1, inner(), False, list)
        returning.send(None)
        with suppress(StopIteration):
            returning.send(None)
        core.run(2, core.callback(1, core.aside(core.discount)), ONE_TUPLE * LONG)
        if number % 10 == 0:
            joined(core.lent(2, core.lent(1, Own)), Own)
        core.other_threads()
        core.born(kept)
        core.take()
        with suppress(TypeError):
            core.coroutine_proxy(0, 5).send(None)
        with suppress(TypeError):
            core.coroutine_proxy(0, Iterating()).throw(5)
        core.stop()

    assert_flat(one_counting_run, 2000)


def test_an_open_counting_run_does_not_grow_with_what_it_has_told() -> None:
    def one_request(number: int) -> None:
        core.run(0, type(f"Kind{number}", (), {}))
        core.run(0, lambda: [Own() for _ in range(100)])
        core.take()

    core.start(1)
    assert_flat(one_request, 1000)


# ---- under debug hooks --------------------------------------------------------------------------------------------


@pytest.mark.skipif("MWBUDGET_AGAIN" in os.environ, reason="this is the second time")
@pytest.mark.live
def test_all_of_this_holds_under_the_debug_hooks_of_the_interpreter() -> None:
    # Other plugins and their configuration are off, because loading them takes time.
    alone = ["-p", "no:cacheprovider", "--noconftest", "-c", os.devnull, "-o", "markers=live", "-W", "error"]
    completed = subprocess.run(
        [sys.executable, "-X", "dev", "-m", "pytest", "-q", *alone, __file__],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONMALLOC": "debug", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "MWBUDGET_AGAIN": "1"},
        cwd=Path(__file__).parent.parent,
        check=False,
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr
