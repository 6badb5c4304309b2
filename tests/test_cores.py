"""What both counting cores do: charge owners through calls, coroutines, tasks and threads."""

from __future__ import annotations

import asyncio
import collections.abc
import gc
import inspect
import pickle
import re
import sys
import threading
import types
import warnings
import weakref
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from traceback import walk_tb
from typing import Any

import pytest
import trio

from pytest_mwbudget.counting import backend as backend_module
from pytest_mwbudget.counting.backend import counting_backend
from pytest_mwbudget.counting.charger import NOBODY
from pytest_mwbudget.counting.python_core import MAX_OWNERS, PythonCore
from pytest_mwbudget.model.quantities import EXECUTED, PROCESS_WIDE

try:
    from pytest_mwbudget.counting import _core
except ImportError as error:
    why_no_extension = f"the C extension cannot be imported: {error}"
else:
    why_no_extension = ""

OWNERS = 4
ASIDE, ELSEWHERE = OWNERS, OWNERS + 1
CORES = ["python", pytest.param("c", marks=pytest.mark.skipif(bool(why_no_extension), reason=why_no_extension))]


@pytest.fixture(params=CORES)
def closed(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A core without a counting run; a run that the test opens is stopped at the end."""
    core: Any = PythonCore() if request.param == "python" else _core
    yield core
    with suppress(RuntimeError):
        core.stop()


@pytest.fixture
def core(closed: Any) -> Any:
    """A core with a counting run of four owners."""
    closed.start(OWNERS)
    return closed


@pytest.fixture
def charged(core: Any) -> Callable[[], int]:
    """A function that returns the currently charged owner."""
    return core.aside(lambda owner: owner)


def charge(core: Any, owner: int) -> None:
    """Charge the owner from here on."""
    core.callback(owner, int)()


def suspensions(core: Any) -> list[int]:
    return [tally[3] for tally in core.take()[0]]


def in_a_thread(function: Callable[[], Any]) -> Any:
    result: list[Any] = []
    thread = threading.Thread(target=lambda: result.append(function()))
    thread.start()
    thread.join()
    return result[0]


@types.coroutine
def trap(value: object = None) -> Generator[Any, Any, Any]:
    """Suspend with a value, and return what is sent."""
    return (yield value)


# ---- the counting run ---------------------------------------------------------------------------------------------


def test_there_is_one_counting_run_at_a_time(core: Any) -> None:
    with pytest.raises(RuntimeError, match="counting is under way already: there can be one counting run in a process"):
        core.start(1)
    core.stop()
    core.start(1)


def test_a_refused_start_leaves_the_one_under_way_alone(core: Any, charged: Any) -> None:
    charge(core, 2)
    with pytest.raises(RuntimeError):
        core.start(1)
    assert charged() == 2


@pytest.mark.parametrize(
    "use",
    [
        lambda core: core.stop(),
        lambda core: core.take(),
        lambda core: core.coroutine_proxy(0, trap()),
        lambda core: core.aside(print),
        lambda core: core.callback(0, print),
        lambda core: core.lent(0, print),
        lambda core: core.other_threads(),
        lambda core: core.discount(0, ()),
        lambda core: core.period(0),
        lambda core: core.born([]),
    ],
)
def test_nothing_can_be_done_while_no_counting_run_is_under_way(closed: Any, use: Any) -> None:
    with pytest.raises(RuntimeError, match="no counting run is under way"):
        use(closed)


@pytest.mark.parametrize("owners", [-1, 0, MAX_OWNERS + 1])
def test_the_number_of_owners_has_bounds(closed: Any, owners: int) -> None:
    with pytest.raises(ValueError, match=f"{owners} owners, but a counting run has 1 to 100000"):
        closed.start(owners)
    with pytest.raises(RuntimeError, match="no counting run is under way"):
        closed.take()


@pytest.mark.parametrize("owner", [-1, ELSEWHERE + 1])
@pytest.mark.parametrize(
    "use",
    [
        lambda core, owner: core.run(owner, int),
        lambda core, owner: core.coroutine_proxy(owner, trap()),
        lambda core, owner: core.callback(owner, int),
        lambda core, owner: core.lent(owner, int),
        lambda core, owner: core.discount(owner, ()),
    ],
)
def test_an_owner_that_the_counting_run_does_not_have_is_refused(core: Any, use: Any, owner: int) -> None:
    with pytest.raises(ValueError, match=f"owner {owner}, but this counting run has 0 to {ELSEWHERE}"):
        use(core, owner)


def test_take_has_a_tally_for_every_owner_the_probes_and_the_other_threads(core: Any) -> None:
    tallies, _ = core.take()
    assert [len(tally) for tally in tallies] == [4] * (OWNERS + 2)


def test_at_the_beginning_nobody_is_charged(core: Any, charged: Any) -> None:
    assert charged() == ASIDE


def test_a_counting_run_can_be_stopped_in_another_thread(core: Any) -> None:
    assert in_a_thread(core.stop) == (False, False)
    core.start(1)
    assert len(core.take()[0]) == 3


def test_nothing_is_born_that_was_not_remembered(core: Any) -> None:
    core.period(-1)
    assert core.born([core, 1]) == {}


# ---- calls --------------------------------------------------------------------------------------------------------


def test_run_charges_the_call_and_then_whom_it_was(core: Any, charged: Any) -> None:
    charge(core, 1)
    assert core.run(2, charged) == 2
    assert charged() == 1


def test_run_passes_arguments_results_and_exceptions_on(core: Any, charged: Any) -> None:
    charge(core, 1)
    assert core.run(2, lambda *arguments, **named: (arguments, named), 3, 4, five=5) == ((3, 4), {"five": 5})
    with pytest.raises(KeyError, match="six"):
        core.run(2, {}.__getitem__, "six")
    assert charged() == 1


def test_run_only_calls_where_no_counting_run_is_under_way(closed: Any) -> None:
    assert closed.run(99, int, "1") == 1


@pytest.mark.parametrize(
    "around",
    [
        lambda core, function: core.run(3, function),
        lambda core, function: core.aside(lambda _: function())(),
        lambda core, function: core.coroutine_proxy(3, calling(function)).send(None),
        lambda core, function: core.coroutine_proxy(3, calling(function), True).send(None),
        lambda core, function: core.coroutine_proxy(3, calling(int), False, function).send(None),
        lambda core, function: core.coroutine_proxy(3, Calling(function, int)).send(None),
        lambda core, function: begun(core, Calling(int, function)).close(),
    ],
)
def test_a_counting_run_that_is_started_within_a_call_keeps_its_own_owners(core: Any, around: Any) -> None:
    def reopen() -> None:
        core.stop()
        core.start(1)
        charge(core, 0)

    charge(core, 3)
    with suppress(StopIteration, KeyError):
        around(core, reopen)
    assert len(core.take()[0]) == 3
    assert core.aside(int)() == 0


async def calling(function: Callable[[], Any]) -> Any:
    return function()


def begun(core: Any, awaitable: Any) -> Any:
    proxy = core.coroutine_proxy(3, awaitable)
    proxy.send(None)
    return proxy


class Calling:
    """An awaitable that calls functions when awaited, and when asked how its steps are ended."""

    def __init__(self, awaited: Callable[[], Any], asked: Callable[[], Any]) -> None:
        self.awaited = awaited
        self.asked = asked

    def __await__(self) -> Any:
        self.awaited()
        return self

    def __next__(self) -> int:
        return 1

    def __getattr__(self, name: str) -> Any:
        self.asked()
        raise AttributeError(name)


def test_aside_tells_who_called_and_charges_nobody(core: Any, charged: Any) -> None:
    charge(core, 2)
    guard = core.aside(lambda owner: (owner, charged()))
    assert guard() == (2, ASIDE)
    assert charged() == 2


@pytest.mark.parametrize("number", [0, 1, 10, 11, 12, 13, 300])
@pytest.mark.parametrize("names", [0, 1, 12, 300])
def test_aside_passes_any_number_of_arguments_on(core: Any, number: int, names: int) -> None:
    arguments = tuple(object() for _ in range(number))
    named = {f"name{index}": object() for index in range(names)}
    charge(core, 1)
    assert core.aside(lambda *given, **more: (given, more))(*arguments, **named) == ((1, *arguments), named)


def test_aside_restores_the_charge_after_an_exception(core: Any, charged: Any) -> None:
    charge(core, 2)
    with pytest.raises(ZeroDivisionError):
        core.aside(lambda owner: owner / 0)()
    assert charged() == 2


def test_aside_has_no_caller_in_another_thread_nor_after_its_counting_run(core: Any, charged: Any) -> None:
    assert in_a_thread(charged) == NOBODY
    core.stop()
    assert charged() == NOBODY
    core.start(OWNERS)
    assert charged() == NOBODY


def test_a_callback_leaves_the_charge_with_its_owner(core: Any, charged: Any) -> None:
    charge(core, 1)
    assert core.callback(3, lambda *arguments, **named: (charged(), arguments, named))(1, two=2) == (
        3,
        (1,),
        {"two": 2},
    )
    assert charged() == 3


def test_a_callback_that_outlives_its_counting_run_only_calls(core: Any) -> None:
    guard = core.callback(3, int)
    core.stop()
    assert guard("1") == 1
    core.start(OWNERS)
    charge(core, 0)
    assert guard("2") == 2
    assert core.aside(int)() == 0


def test_a_callback_in_another_thread_leaves_no_charge_behind(core: Any, charged: Any) -> None:
    charge(core, 1)
    assert in_a_thread(lambda: (core.callback(3, charged)(), charged())) == (3, NOBODY)
    assert charged() == 1


# ---- threads ------------------------------------------------------------------------------------------------------


def test_lent_work_is_charged_where_it_is_called(core: Any, charged: Any) -> None:
    charge(core, 1)
    work = core.lent(2, lambda *arguments, **named: (charged(), arguments, named))
    assert in_a_thread(lambda: (work(1, two=2), charged())) == ((2, (1,), {"two": 2}), NOBODY)
    assert work(1) == (2, (1,), {})
    assert charged() == 1


def test_lent_work_within_other_lent_work_gives_the_charge_back(core: Any, charged: Any) -> None:
    inner = core.lent(3, charged)
    work = core.lent(2, lambda: (charged(), inner(), charged(), core.run(1, charged), charged()))
    assert in_a_thread(work) == (2, 3, 2, 1, 2)


def test_an_exception_ends_lent_work_too(core: Any, charged: Any) -> None:
    def fails() -> Any:
        with pytest.raises(ZeroDivisionError):
            core.lent(2, lambda: 1 / 0)()
        return charged()

    assert in_a_thread(fails) == NOBODY
    assert in_a_thread(core.lent(1, fails)) == 1


def test_everything_that_charges_works_in_a_thread_with_lent_work(core: Any, charged: Any) -> None:
    async def inner() -> Any:
        seen.append(charged())
        await trap()

    seen: list[Any] = []

    def work() -> None:
        proxy = core.coroutine_proxy(1, core.coroutine_proxy(3, inner()), True)
        proxy.send(None)
        seen.append(charged())  # the root leaves the charge with the owner that suspended
        with suppress(StopIteration):
            proxy.send(None)
        seen.append(charged())
        seen.append(core.aside(lambda owner: (owner, charged()))())
        core.callback(2, int)()
        seen.append(charged())

    charge(core, 0)
    in_a_thread(lambda: core.lent(0, work)())
    assert seen == [3, 3, 1, (1, ASIDE), 2]
    assert charged() == 0
    assert suspensions(core)[:OWNERS] == [0, 0, 0, 1]


def test_two_threads_each_have_their_own_charge(core: Any, charged: Any) -> None:
    step = threading.Barrier(3, timeout=120)
    seen: list[int] = []

    def work(inner: int) -> None:
        step.wait()  # both threads have begun
        seen.append(charged())
        step.wait()
        core.callback(inner, int)()
        step.wait()  # both charge another owner now
        seen.append(charged())

    charge(core, 0)
    threads = [threading.Thread(target=core.lent(owner, work), args=(owner + 2,)) for owner in (0, 1)]
    for thread in threads:
        thread.start()
    for _ in range(3):
        step.wait()
    assert charged() == 0
    for thread in threads:
        thread.join()
    assert sorted(seen[:2]) == [0, 1]
    assert sorted(seen[2:]) == [2, 3]


def test_a_thread_that_outlives_its_counting_run_is_charged_to_nobody(core: Any, charged: Any) -> None:
    go, stopped, ended = threading.Event(), threading.Event(), threading.Event()
    seen: list[Any] = []

    async def inner() -> None:
        await trap()

    def work() -> None:
        proxy = core.coroutine_proxy(3, inner(), True)
        proxy.send(None)

        def across() -> None:
            go.set()
            stopped.wait(120)
            seen.append(core.aside(lambda owner: owner)())  # a guard of the second run

        core.run(1, core.aside(lambda _: core.callback(2, core.lent(0, across))()))
        seen.append(core.aside(lambda owner: owner)())
        with suppress(StopIteration):
            proxy.send(None)
        seen.append(core.run(0, core.aside(lambda owner: owner)))
        ended.set()

    thread = threading.Thread(target=core.lent(2, work), daemon=True)
    thread.start()
    go.wait(120)
    core.stop()
    core.start(OWNERS)
    charge(core, 1)
    stopped.set()
    assert ended.wait(120)
    thread.join()
    assert seen == [NOBODY, NOBODY, 0]
    assert core.aside(lambda owner: owner)() == 1
    assert charged() == NOBODY
    assert suspensions(core)[:OWNERS] == [0, 0, 0, 0]


def test_lent_work_after_its_counting_run_is_only_called(core: Any) -> None:
    work = core.lent(2, lambda: core.aside(lambda owner: owner)())
    core.stop()
    core.start(OWNERS)
    charge(core, 1)
    assert in_a_thread(work) == NOBODY
    assert work() == 1


def test_lent_work_has_the_attributes_of_its_function(core: Any) -> None:
    def work() -> None: ...

    lent = core.lent(1, work)
    assert (lent.__qualname__, lent.__module__, lent.__code__) == (work.__qualname__, __name__, work.__code__)
    with pytest.raises(AttributeError):
        _ = lent.missing


def test_lent_work_can_be_sent_to_another_process(core: Any) -> None:
    sent = pickle.loads(pickle.dumps(core.lent(1, len)))
    assert sent("four") == 4


def test_events_in_other_threads_are_told_by_thread(core: Any) -> None:
    go, done = threading.Event(), threading.Event()

    def work() -> None:
        go.wait(120)
        [object() for _ in range(100)]
        core.lent(1, lambda: [bytearray(2000) for _ in range(10_000)])()
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    core.other_threads()
    go.set()
    assert done.wait(120)
    events = core.other_threads()
    thread.join()
    core.other_threads()
    assert core.other_threads() == {}
    if not isinstance(core, PythonCore):
        assert set(events) == {thread.ident}
        assert 100 <= events[thread.ident] < 5000


# ---- proxies: one step at a time ---------------------------------------------------------------------------------


def test_each_step_of_a_proxy_is_charged_to_its_owner(core: Any, charged: Any) -> None:
    seen = []

    async def inner() -> str:
        seen.append(charged())
        assert await trap("one") == "two"
        seen.append(charged())
        return "three"

    proxy = core.coroutine_proxy(2, inner())
    charge(core, 0)
    assert proxy.send(None) == "one"
    assert charged() == 0
    charge(core, 1)
    with pytest.raises(StopIteration) as stop:
        proxy.send("two")
    assert stop.value.value == "three"
    assert seen == [2, 2]
    assert charged() == 1
    assert suspensions(core)[:OWNERS] == [0, 0, 1, 0]


def test_nested_proxies_follow_the_stack_and_the_innermost_suspends(core: Any, charged: Any) -> None:
    seen = []

    async def deep() -> None:
        seen.append(charged())
        await trap()
        seen.append(charged())

    async def middle() -> None:
        seen.append(charged())
        await core.coroutine_proxy(2, deep())
        seen.append(charged())
        await trap()

    proxy = core.coroutine_proxy(0, core.coroutine_proxy(1, middle()))
    charge(core, 3)
    proxy.send(None)
    assert charged() == 3
    assert suspensions(core)[:OWNERS] == [0, 0, 1, 0]
    proxy.send(None)
    assert charged() == 3
    assert suspensions(core)[:OWNERS] == [0, 1, 0, 0]
    with pytest.raises(StopIteration):
        proxy.send(None)
    assert charged() == 3
    assert suspensions(core)[:OWNERS] == [0, 0, 0, 0]
    assert seen == [1, 2, 2, 1]


def test_a_root_leaves_the_charge_with_who_suspended_and_at_its_end_keeps_it(core: Any, charged: Any) -> None:
    async def task() -> None:
        await trap()
        await core.coroutine_proxy(2, trap())

    root = core.coroutine_proxy(1, task(), True)
    charge(core, 3)
    left = []
    for _ in range(2):
        root.send(None)
        left.append(charged())
        charge(core, 3)
    with pytest.raises(StopIteration):
        root.send(None)
    assert [*left, charged()] == [1, 2, 1]
    assert suspensions(core)[:OWNERS] == [0, 1, 1, 0]


def test_a_proxy_that_raises_gives_the_charge_back(core: Any, charged: Any) -> None:
    async def interrupted() -> None:
        raise KeyboardInterrupt

    charge(core, 3)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            core.coroutine_proxy(0, core.coroutine_proxy(1, interrupted())).send(None)
        assert charged() == 3
    assert suspensions(core)[:OWNERS] == [0, 0, 0, 0]


RETURNED = [None, "text", (), (1, 2), ValueError("an exception as a value"), StopIteration(1), KeyError]


@pytest.mark.parametrize("value", RETURNED, ids=repr)
def test_what_a_coroutine_returns_comes_through_send_and_through_await(core: Any, value: object) -> None:
    async def inner() -> object:
        return value

    async def outer() -> object:
        return await core.coroutine_proxy(1, inner())

    for coroutine in (core.coroutine_proxy(0, inner()), outer(), core.coroutine_proxy(0, outer())):
        with pytest.raises(StopIteration) as stop:
            coroutine.send(None)
        assert stop.value.value is value


def test_a_proxy_can_be_used_once(core: Any) -> None:
    async def inner() -> None:
        pass

    proxy = core.coroutine_proxy(0, inner())
    for error in (StopIteration, RuntimeError, RuntimeError):
        with pytest.raises(error):
            proxy.send(None)


def test_a_coroutine_that_suspends_again_and_again_is_no_leak_of_the_charge(core: Any, charged: Any) -> None:
    async def inner() -> None:
        for number in range(100):
            assert await trap(number) == number

    proxy = core.coroutine_proxy(1, core.coroutine_proxy(2, inner()))
    charge(core, 0)
    sent = None
    for _ in range(100):
        sent = proxy.send(sent)
    assert charged() == 0
    assert suspensions(core)[:OWNERS] == [0, 0, 100, 0]
    proxy.close()


def test_a_proxy_of_an_earlier_counting_run_only_steps(core: Any) -> None:
    old = core.coroutine_proxy(3, trap(), True, pytest.fail)
    core.stop()
    core.start(1)
    charge(core, 0)
    old.send(None)
    with pytest.raises(StopIteration):
        old.send(None)
    assert core.aside(int)() == 0
    assert suspensions(core) == [0, 0, 0]


def test_a_counting_run_that_is_stopped_during_a_step_may_leave_its_proxies_behind(core: Any) -> None:
    async def inner() -> str:
        core.stop()
        await trap()
        return "done"

    proxy = core.coroutine_proxy(1, core.coroutine_proxy(2, inner(), True), False, pytest.fail)
    proxy.send(None)
    with pytest.raises(StopIteration, match="done"):
        proxy.send(None)


@pytest.mark.parametrize("root", [False, True])
def test_a_proxy_that_another_thread_steps_is_charged_there(core: Any, charged: Any, root: bool) -> None:
    seen = []

    async def inner() -> str:
        seen.append(charged())
        await trap("there")
        seen.append(charged())
        return "here"

    proxy = core.coroutine_proxy(2, inner(), root)
    charge(core, 1)
    assert in_a_thread(lambda: (proxy.send(None), charged())) == ("there", NOBODY)
    assert charged() == 1
    with pytest.raises(StopIteration, match="here"):
        proxy.send(None)
    assert seen == [2, 2]
    assert suspensions(core)[:OWNERS] == [0, 0, 1, 0]


# ---- proxies: throw, close, returned -----------------------------------------------------------------------------


def test_what_is_thrown_is_raised_inside_and_charged_to_the_owner(core: Any, charged: Any) -> None:
    seen = []

    async def inner() -> None:
        for _ in range(2):
            try:
                await trap()
            except LookupError as error:
                seen.append((charged(), error))

    proxy = core.coroutine_proxy(1, core.coroutine_proxy(2, inner()))
    charge(core, 0)
    proxy.send(None)
    thrown = KeyError("a")
    proxy.throw(thrown)
    assert charged() == 0
    with pytest.raises(StopIteration):
        proxy.throw(IndexError)
    assert charged() == 0
    assert [(owner, type(error)) for owner, error in seen] == [(2, KeyError), (2, IndexError)]
    assert seen[0][1] is thrown
    assert suspensions(core)[:OWNERS] == [0, 0, 2, 0]


def test_an_exception_may_be_thrown_in_three_parts(core: Any) -> None:
    with pytest.raises(ZeroDivisionError) as elsewhere:
        _ = 1 / 0
    traceback = elsewhere.tb
    proxy = core.coroutine_proxy(1, trap())
    proxy.send(None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        with pytest.raises(ValueError, match="parts") as raised:
            proxy.throw(ValueError, ValueError("parts"), traceback)
    assert traceback.tb_frame in [frame for frame, _ in walk_tb(raised.tb)]


@pytest.mark.parametrize("arguments", [(), (5,), (int,), (ValueError, 1, 2, 3)])
def test_what_is_no_exception_cannot_be_thrown(core: Any, charged: Any, arguments: tuple[Any, ...]) -> None:
    charge(core, 0)
    for awaitable in (trap(), Stepped(iter([1]))):
        proxy = core.coroutine_proxy(1, awaitable)
        proxy.send(None)
        with pytest.raises(TypeError):
            proxy.throw(*arguments)
        assert charged() == 0


def test_close_raises_inside_and_is_charged_to_the_owner(core: Any, charged: Any) -> None:
    seen = []

    async def inner() -> None:
        try:
            await trap()
        finally:
            seen.append((charged(), sys.exc_info()[0]))

    proxy = core.coroutine_proxy(1, core.coroutine_proxy(2, inner()))
    charge(core, 0)
    proxy.send(None)
    proxy.close()
    proxy.close()
    assert seen == [(2, GeneratorExit)]
    assert charged() == 0
    with pytest.raises(RuntimeError, match="cannot reuse already awaited coroutine"):
        proxy.send(None)


def test_a_coroutine_that_ignores_close_is_an_error(core: Any, charged: Any) -> None:
    async def stubborn() -> None:
        try:
            await trap()
        except GeneratorExit:
            await trap()

    for coroutine in (core.coroutine_proxy(1, stubborn()), awaiting(core.coroutine_proxy(1, stubborn()))):
        charge(core, 0)
        coroutine.send(None)
        with pytest.raises(RuntimeError, match="ignored GeneratorExit"):
            coroutine.close()
        assert charged() == 0
        coroutine.close()


def test_closing_a_proxy_that_was_never_begun_closes_the_coroutine(core: Any) -> None:
    coroutine = awaiting(trap())
    core.coroutine_proxy(0, core.coroutine_proxy(1, coroutine)).close()
    assert inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED
    del coroutine
    gc.collect()  # a warning of a coroutine that was never awaited would be an error here


def test_closing_a_proxy_that_was_never_begun_leaves_another_awaitable_alone(core: Any) -> None:
    class Connection:
        def __await__(self) -> Any:
            pytest.fail("awaited")

        def close(self) -> None:
            pytest.fail("closed")

    assert core.coroutine_proxy(0, Connection()).close() is None


def test_a_proxy_that_is_dropped_ends_its_coroutine(core: Any) -> None:
    ended = []

    async def inner() -> None:
        try:
            await trap()
        finally:
            ended.append(True)

    proxy = core.coroutine_proxy(0, core.coroutine_proxy(1, inner()))
    proxy.send(None)
    del proxy
    assert ended == [True]


def test_a_proxy_that_is_dropped_unawaited_is_reported_as_a_coroutine_is(core: Any) -> None:
    async def forgotten() -> None:
        pass

    with pytest.warns(RuntimeWarning, match="forgotten' was never awaited"):
        core.coroutine_proxy(0, forgotten())


def test_who_wants_to_know_is_told_aside_and_once_that_the_coroutine_returned(core: Any, charged: Any) -> None:
    owners = []
    proxy = core.coroutine_proxy(1, trap(), False, lambda: owners.append(charged()))
    charge(core, 0)
    proxy.send(None)
    assert owners == []
    with pytest.raises(StopIteration, match="result"):
        proxy.send("result")
    assert owners == [ASIDE]
    assert charged() == 0


def test_who_wants_to_know_is_told_as_well_when_the_coroutine_caught_what_was_thrown(core: Any) -> None:
    async def catching() -> str:
        try:
            await trap()
        except ValueError:
            return "caught"
        return "not reached"

    notices = []
    proxy = core.coroutine_proxy(1, catching(), False, lambda: notices.append("told"))
    proxy.send(None)
    with pytest.raises(StopIteration) as stop:
        proxy.throw(ValueError)
    assert (stop.value.value, notices) == ("caught", ["told"])


@pytest.mark.parametrize("end", [lambda proxy: proxy.throw(ValueError), lambda proxy: proxy.close()])
def test_nobody_is_told_of_a_coroutine_that_did_not_return(core: Any, end: Any) -> None:
    proxy = core.coroutine_proxy(1, trap(), False, pytest.fail)
    proxy.send(None)
    with suppress(ValueError):
        end(proxy)


@pytest.mark.parametrize("step", [lambda proxy: proxy.send(None), lambda proxy: proxy.throw(KeyError)])
def test_an_error_of_who_wanted_to_know_is_raised_in_place_of_the_result(core: Any, charged: Any, step: Any) -> None:
    async def catching() -> None:
        with suppress(KeyError):
            await trap()

    proxy = core.coroutine_proxy(1, catching(), False, lambda: {}["missing"])
    charge(core, 0)
    proxy.send(None)
    with pytest.raises(KeyError, match="missing"):
        step(proxy)
    assert charged() == 0


# ---- proxies: what can be awaited --------------------------------------------------------------------------------


async def awaiting(awaitable: Any) -> Any:
    return await awaitable


class Stepped:
    """An awaitable with a given iterator."""

    def __init__(self, steps: Any) -> None:
        self.steps = steps

    def __await__(self) -> Any:
        return self.steps


def a_generator() -> Generator[Any, Any, Any]:
    yield 1
    return (yield 2)


@types.coroutine
def a_generator_coroutine() -> Generator[Any, Any, Any]:
    return (yield from a_generator())


AWAITABLES: dict[str, Callable[[], Any]] = {
    "coroutine": lambda: awaiting(a_generator_coroutine()),
    "generator coroutine": a_generator_coroutine,
    "generator from __await__": lambda: Stepped(a_generator()),
    "iterator without send": lambda: Stepped(iter([1, 2])),
    "itself an iterator": lambda: Stepped(map(int, "12")),
}


@pytest.mark.parametrize("make", AWAITABLES.values(), ids=AWAITABLES)
def test_a_proxy_steps_whatever_can_be_awaited(core: Any, charged: Any, make: Any) -> None:
    for proxy in (core.coroutine_proxy(1, make()), awaiting(core.coroutine_proxy(1, make()))):
        charge(core, 0)
        assert [proxy.send(None), proxy.send(None)] == [1, 2]
        with pytest.raises(StopIteration):
            proxy.send(None)
        assert charged() == 0
    assert suspensions(core)[:OWNERS] == [0, 4, 0, 0]


@pytest.mark.parametrize("make", AWAITABLES.values(), ids=AWAITABLES)
@pytest.mark.parametrize("begun", [False, True])
def test_an_exception_can_be_thrown_into_whatever_can_be_awaited(
    core: Any, charged: Any, make: Any, begun: bool
) -> None:
    thrown = ValueError("thrown")
    for error in (thrown, ValueError):
        proxy = core.coroutine_proxy(1, make())
        charge(core, 0)
        if begun:
            proxy.send(None)
        with pytest.raises(ValueError) as raised:  # noqa: PT011
            proxy.throw(error)
        assert error is ValueError or raised.value is thrown
        assert charged() == 0


@pytest.mark.parametrize("make", AWAITABLES.values(), ids=AWAITABLES)
def test_whatever_can_be_awaited_can_be_closed(core: Any, make: Any) -> None:
    proxy = core.coroutine_proxy(1, make())
    proxy.send(None)
    assert proxy.close() is None
    unbegun = core.coroutine_proxy(1, make())
    assert unbegun.close() is None


def test_a_value_that_an_iterator_cannot_take_is_an_error_as_with_await(core: Any) -> None:
    proxy = core.coroutine_proxy(1, Stepped(iter([1, 2])))
    proxy.send(None)
    with pytest.raises(AttributeError, match="send"):
        proxy.send("value")


@pytest.mark.parametrize(
    ("not_awaitable", "messages"),
    [
        # The wording differs between versions: CPython 3.14 changed the first two, 3.15 the others.
        (lambda: 5, ["object int can't be used in 'await' expression", "'int' object can't be awaited"]),
        (a_generator, ["object generator can't be used in 'await' expression", "'generator' object can't be awaited"]),
        (
            lambda: Stepped([1]),
            ["__await__() returned non-iterator of type 'list'", "__await__() must return an iterator, not list"],
        ),
        (
            lambda: Stepped(None),
            [
                "__await__() returned non-iterator of type 'NoneType'",
                "__await__() must return an iterator, not NoneType",
            ],
        ),
        (
            lambda: Stepped(a_generator_coroutine()),
            ["__await__() returned a coroutine", "__await__() must return an iterator, not coroutine"],
        ),
    ],
)
def test_what_cannot_be_awaited_is_an_error_at_the_first_step(
    core: Any, charged: Any, not_awaitable: Any, messages: list[str]
) -> None:
    proxy = core.coroutine_proxy(1, not_awaitable())
    charge(core, 0)
    with pytest.raises(TypeError, match="|".join(map(re.escape, messages))):
        proxy.send(None)
    assert charged() == 0


# ---- proxies as coroutines ---------------------------------------------------------------------------------------


def test_a_proxy_is_a_coroutine_for_those_who_ask(core: Any) -> None:
    proxy = core.coroutine_proxy(0, trap())
    assert asyncio.iscoroutine(proxy)
    assert inspect.isawaitable(proxy)
    assert isinstance(proxy, collections.abc.Coroutine)
    proxy.close()


def test_a_proxy_forwards_what_else_is_asked_of_a_coroutine(core: Any) -> None:
    async def inner() -> None:
        assert proxy.cr_running
        await trap()

    coroutine = inner()
    proxy = core.coroutine_proxy(0, core.coroutine_proxy(1, coroutine))
    assert proxy.__qualname__ == coroutine.__qualname__
    assert proxy.__name__ == "inner"
    assert proxy.cr_frame is coroutine.cr_frame
    assert proxy.cr_code is inner.__code__
    assert inspect.getcoroutinestate(proxy) == inspect.CORO_CREATED
    proxy.send(None)
    assert proxy.cr_await is coroutine.cr_await
    assert inspect.getcoroutinestate(proxy) == inspect.CORO_SUSPENDED
    proxy.close()
    assert inspect.getcoroutinestate(proxy) == inspect.CORO_CLOSED
    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = proxy.no_such_thing


def test_a_proxy_can_be_referred_to_weakly(core: Any) -> None:
    dead = []
    proxy = core.coroutine_proxy(0, trap())
    reference = weakref.ref(proxy, dead.append)
    assert reference() is proxy
    del proxy
    assert dead == [reference]


def test_cycles_through_proxies_and_guards_are_collected(core: Any) -> None:
    class Holder:
        pass

    def cycle() -> weakref.ref[Holder]:
        async def inner() -> None:
            holder.self = holder  # type: ignore[attr-defined]
            await trap()

        holder = Holder()
        holder.coroutine_proxy = core.coroutine_proxy(0, inner(), False, lambda: holder)  # type: ignore[attr-defined]
        holder.unbegun = core.coroutine_proxy(0, Stepped(map(id, [holder])))  # type: ignore[attr-defined]
        holder.aside = core.aside(lambda _: holder)  # type: ignore[attr-defined]
        holder.callback = core.callback(0, lambda: holder)  # type: ignore[attr-defined]
        holder.coroutine_proxy.send(None)  # type: ignore[attr-defined]
        return weakref.ref(holder)

    references = [cycle() for _ in range(10)]
    gc.collect()
    assert [reference() for reference in references] == [None] * 10


# ---- asyncio and trio ---------------------------------------------------------------------------------------------


def test_interleaved_tasks_are_each_charged_to_their_owner(core: Any, charged: Any) -> None:
    seen: dict[int, set[int]] = {0: set(), 1: set(), 2: set()}

    async def inner(owner: int, mine: asyncio.Event, others: asyncio.Event) -> int:
        for _ in range(5):
            seen[owner].add(charged())
            await asyncio.sleep(0)
        seen[owner].add(charged())
        mine.set()
        await others.wait()
        seen[owner].add(charged())
        return owner

    async def main() -> list[int]:
        events = [asyncio.Event() for _ in range(3)]
        tasks = [
            asyncio.create_task(core.coroutine_proxy(owner, inner(owner, events[owner], events[owner - 1]), True))
            for owner in range(3)
        ]
        return await asyncio.gather(*tasks)

    assert asyncio.run(main()) == [0, 1, 2]
    assert seen == {0: {0}, 1: {1}, 2: {2}}
    # Only the first task has to wait for its event.
    assert suspensions(core)[:OWNERS] == [6, 5, 5, 0]


def test_proxies_can_be_gathered_awaited_and_cancelled(core: Any, charged: Any) -> None:
    seen = []

    async def forever(owner: int) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            seen.append((owner, charged()))
            raise

    async def main() -> None:
        task = asyncio.create_task(core.coroutine_proxy(1, forever(1), True))
        group = asyncio.gather(core.coroutine_proxy(2, forever(2), True), core.coroutine_proxy(3, forever(3), True))
        await asyncio.sleep(0)
        for waiting in (task, group):
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await core.coroutine_proxy(0, core.coroutine_proxy(1, forever(1)))

    asyncio.run(main())
    assert seen == [(1, 1), (2, 2), (3, 3), (1, 1)]


def test_a_future_can_be_awaited_through_a_proxy(core: Any, charged: Any) -> None:
    async def main() -> str:
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        loop.call_soon(future.set_result, "result")
        charge(core, 0)
        result: str = await core.coroutine_proxy(1, core.coroutine_proxy(2, future))
        assert charged() == 0
        failed = loop.create_future()
        failed.set_exception(ValueError("failed"))
        with pytest.raises(ValueError, match="failed"):
            await core.coroutine_proxy(1, failed)
        assert charged() == 0
        return result

    assert asyncio.run(core.coroutine_proxy(0, main(), True)) == "result"
    assert suspensions(core)[1:3] == [0, 1]


def test_an_exception_comes_through_a_task_and_its_nested_proxies(core: Any, charged: Any) -> None:
    class Oops(Exception):
        pass

    async def inner() -> None:
        await asyncio.sleep(0)
        raise Oops

    async def main() -> None:
        charge(core, 0)
        with pytest.raises(Oops):
            await core.coroutine_proxy(1, core.coroutine_proxy(2, inner()))
        assert charged() == 0
        with pytest.raises(ExceptionGroup) as raised:
            async with asyncio.TaskGroup() as group:
                group.create_task(core.coroutine_proxy(1, inner(), True))
        assert isinstance(raised.value.exceptions[0], Oops)

    asyncio.run(core.coroutine_proxy(0, main(), True))


def test_asynchronous_generators_and_context_managers_are_charged_within_a_proxy(core: Any, charged: Any) -> None:
    async def numbers() -> Any:
        for number in range(3):
            await asyncio.sleep(0)
            yield number, charged()

    async def inner() -> list[Any]:
        return [item async for item in numbers()]

    async def main() -> list[Any]:
        items: list[Any] = await core.coroutine_proxy(2, inner())
        return items

    assert asyncio.run(core.coroutine_proxy(0, main(), True)) == [(0, 2), (1, 2), (2, 2)]
    assert suspensions(core)[2] == 3


def test_a_proxy_is_the_coroutine_of_a_trio_task(core: Any, charged: Any) -> None:
    seen: dict[int, set[int]] = {1: set(), 2: set()}

    async def inner(owner: int) -> None:
        for _ in range(3):
            seen[owner].add(charged())
            await trio.lowlevel.checkpoint()
        with trio.CancelScope() as scope:
            scope.cancel()
            await trio.sleep_forever()
        assert scope.cancelled_caught
        seen[owner].add(charged())

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for owner in seen:
                nursery.start_soon(lambda owner=owner: core.coroutine_proxy(owner, inner(owner), True))

    trio.run(main)
    assert seen == {1: {1}, 2: {2}}
    assert suspensions(core)[1:3] == [4, 4]


# ---- choice of the core -------------------------------------------------------------------------------------------


@pytest.mark.skipif(bool(why_no_extension), reason=why_no_extension)
def test_the_core_in_c_is_taken_and_says_what_it_cannot_count_here() -> None:
    backend = counting_backend()
    assert backend.core is _core
    first = {**dict.fromkeys(("objects", "retained"), (3, 13)), **dict.fromkeys(EXECUTED, (3, 12))}
    assert set(backend.why_not) == {quantity for quantity, version in first.items() if sys.version_info < version}


def test_without_the_extension_the_core_in_python_is_taken_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pytest_mwbudget.counting._core", None)
    monkeypatch.delattr("pytest_mwbudget.counting._core", raising=False)
    monkeypatch.setattr(backend_module.sysconfig, "get_config_var", {"Py_GIL_DISABLED": 0}.get)
    backend = counting_backend()
    assert isinstance(backend.core, PythonCore)
    assert dict(backend.why_not) == dict.fromkeys(
        PROCESS_WIDE, "the C extension was not built: install with a C compiler"
    )


def test_a_free_threaded_interpreter_gets_the_core_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend_module.sysconfig, "get_config_var", {"Py_GIL_DISABLED": 1}.get)
    backend = counting_backend()
    assert isinstance(backend.core, PythonCore)
    assert set(backend.why_not.values()) == {"a free-threaded interpreter is not supported"}
