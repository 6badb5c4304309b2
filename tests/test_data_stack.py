"""A request has room for the frames of its functions, however deep in the stack its test runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any, get_args

import pytest
from starlette.applications import Starlette

from pytest_mwbudget.asgi import loops
from pytest_mwbudget.config.settings import Settings
from pytest_mwbudget.interpreter.data_stack import with_room
from pytest_mwbudget.model.results import LoopName
from pytest_mwbudget.session.gate import measurable
from pytest_mwbudget.workload.host import Host

from .apps import ASYNCIO, run_inside

CALLS = 100
# A chunk of the stack has room for fewer frames of `at`, so one of these depths is at its end.
DEPTHS = range(200)


def called() -> None: ...


# Its frame is larger than that of `at`, so at one of the depths a chunk has no room for it.
called.__code__ = called.__code__.replace(co_stacksize=60)


def faults() -> int:
    """Return how many page faults some calls take from here."""
    resource = pytest.importorskip("resource")
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    for _ in range(CALLS):
        called()
    return int(resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before)


def most_faults(run: Callable[[Callable[[], int]], int]) -> int:
    """Return the page faults of `run(faults)` at the worst depth."""

    def at(depth: int) -> int:
        return run(faults) if depth == 0 else at(depth - 1)

    return max(map(at, DEPTHS))


def on_a_loop(name: LoopName, function: Callable[[], int]) -> int:
    async def main() -> int:
        return function()

    return loops.run(name, main)


def in_a_host(function: Callable[[], int]) -> int:
    async def main(hosting: Any) -> int:
        return function()

    host = Host(Starlette(), Settings(lifespan=False))
    try:
        return host.run(main)
    finally:
        host.close()


RUNS: dict[str, Callable[[Callable[[], int]], int]] = {
    "call": with_room,
    "host": in_a_host,
    **{str(name): partial(on_a_loop, name) for name in get_args(LoopName)},
}


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts the page faults of a thread")
@pytest.mark.parametrize("name", RUNS)
def test_no_depth_of_the_stack_makes_a_call_slow(name: str) -> None:
    if name in get_args(LoopName):
        pytest.importorskip(name)
    if most_faults(lambda function: function()) < CALLS / 2:
        pytest.skip("this Python keeps a chunk of its stack that is free")
    assert most_faults(RUNS[name]) < CALLS / 2
    assert with_room(lambda: most_faults(RUNS[name])) < CALLS / 2


class Item:
    """Has what `measurable` needs of an item of pytest."""

    had_room = False

    def runtest(self) -> None:
        self.had_room = sys._getframe(1).f_code is with_room.__code__


class ItemOfAnotherPlugin(Item):
    @property
    def runtest(self) -> Any:
        return super().runtest


@pytest.mark.parametrize(("item", "room"), [(Item(), True), (ItemOfAnotherPlugin(), False)])
def test_a_test_has_room_while_it_runs_and_is_as_before_afterwards(item: Any, room: bool) -> None:
    with measurable(item):
        item.runtest()
    assert vars(item).pop("had_room") == room
    assert vars(item) == {}


def test_what_stands_in_for_a_test_stays() -> None:
    item: Any = Item()
    item.runtest = stand_in = item.runtest
    with measurable(item):
        item.runtest()
    assert vars(item) == {"had_room": True, "runtest": stand_in}


@pytest.mark.parametrize(("option", "mark"), [("--mw-budget", "@pytest.mark.mw_budget"), ("--mw-budget-survey", "")])
def test_an_async_test_runs_with_room(option: str, mark: str, pytester: pytest.Pytester) -> None:
    pytest.importorskip(ASYNCIO)
    pytester.makepyfile(f"""
import sys

import pytest

from pytest_mwbudget.asgi.http_library import httpx


async def app(scope, receive, send):
    frame, names = sys._getframe(), []
    while frame is not None:
        names.append(frame.f_code.co_name)
        frame = frame.f_back
    assert "with_room" in names
    await send({{"type": "http.response.start", "status": 200}})
    await send({{"type": "http.response.body"}})


{mark}
@pytest.mark.asyncio
async def test_it():
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as client:
        assert (await client.get("/")).status_code == 200
""")
    run_inside(pytester, option, using=[ASYNCIO]).assert_outcomes(passed=1)
