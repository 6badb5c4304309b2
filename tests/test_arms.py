"""Requests with every layer and without single ones: which layers may be left out, and the order of the blocks."""

from __future__ import annotations

import asyncio
import math
import random
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from pytest_mwbudget.analysis.savings import TOGETHER, Arm
from pytest_mwbudget.asgi import loops
from pytest_mwbudget.errors import MeasurementError, MwBudgetError, ResponseError
from pytest_mwbudget.model.estimate import Estimate
from pytest_mwbudget.model.results import LoopName
from pytest_mwbudget.model.stack import EntryIndex
from pytest_mwbudget.timing.arms import Arms, Blocks, other_way
from pytest_mwbudget.timing.sampler import Deadline

from .apps import (
    Answering,
    App,
    Cascade,
    InATask,
    Noop,
    StarArguments,
    caller,
    discovered,
    hello,
    indistinct,
    not_found,
    outer,
    respond,
    unchanged_code,
)
from .test_discovery import OtherThread

pytestmark = pytest.mark.once

FIRST, SECOND, THIRD = (EntryIndex(index) for index in range(3))


async def arms_of(app: App, method: str = "GET", *, status: int | None = None, why_none: str | None = None) -> Arms:
    """Return the arms of a request to the app, with all of its layers."""
    call = await caller(app, method, expect_status=status)
    await call()
    stack = await discovered(call)
    layers = [index for index, _ in stack.layers if index is not None]
    return Arms(stack, call, random.Random(1), layers, why_none=why_none)


# ---- which layers may be left out, by the stack -------------------------------------------------------------------


class Twice(Noop):
    """Calls its app once more, and throws the first response away."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def nowhere(message: Any) -> None:
            pass

        await self.app(dict(scope), receive, nowhere)
        await self.app(scope, receive, send)


ANSWERS = "it answers without calling an inner app"
MERGED = "it cannot be told from a neighbour, or it runs in another thread"
REASONS: dict[str, tuple[Callable[[], App], list[str]]] = {
    "answers": (lambda: Noop(Answering(hello, 200)), [ANSWERS]),
    "cascade": (lambda: Noop(Cascade(not_found, hello)), ["it calls several inner apps", ANSWERS]),
    "twice": (lambda: Noop(Twice(hello)), ["its inner app is called more than once in a request"]),
    "thread": (lambda: Noop(OtherThread(Noop(hello))), ["its inner app runs in another thread", MERGED]),
    "indistinct": (lambda: Noop(indistinct(hello)), ["its inner app is made for each request", MERGED]),
}


@pytest.mark.parametrize("kind", REASONS)
def test_why_layers_cannot_be_left_out(kind: str) -> None:
    make, expected = REASONS[kind]
    assert [*asyncio.run(arms_of(make())).why_not.values()] == expected


def test_layers_that_call_one_app_once_can_be_left_out() -> None:
    arms = asyncio.run(arms_of(Noop(InATask(StarArguments(outer(hello))))))
    assert arms.layers == {EntryIndex(index): EntryIndex(index + 1) for index in range(4)}
    assert not arms.why_not


def test_only_a_safe_request_is_sent_past_a_layer() -> None:
    for method in ("GET", "HEAD", "OPTIONS"):
        assert asyncio.run(arms_of(Noop(hello), method)).layers
    assert not asyncio.run(arms_of(Noop(hello), why_none="it is late")).layers
    for why_none in (None, "it is late"):
        arms = asyncio.run(arms_of(Noop(Answering(hello, 200)), "POST", why_none=why_none))
        assert set(arms.why_not.values()) == {"a POST request is sent past no layer"}
        assert not arms.layers


# ---- by what the app answers --------------------------------------------------------------------------------------


class Session(Noop):
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.app({**scope, "session": True}, receive, send)


def needs_session(without: Callable[[Any], Any]) -> App:
    """Make an endpoint that answers with a session, and does something else without it."""

    async def endpoint(scope: Any, receive: Any, send: Any) -> None:
        await (respond(send) if "session" in scope else without(send))

    return endpoint


async def raises(send: Any) -> None:
    raise KeyError


async def exits(send: Any) -> None:
    sys.exit(3)


async def silent(send: Any) -> None:
    pass


async def hangs(send: Any) -> None:
    await loops.current().event().wait()


async def endless(send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    while True:
        await send({"type": "http.response.body", "body": b"more", "more_body": True})


WITHOUT: dict[Callable[[Any], Any], str] = {
    raises: "the app raises KeyError without it",
    exits: "the app does not answer without it",
    silent: "the app does not answer without it",
    endless: "the app does not answer without it",
    lambda send: respond(send, status=204): "the app answers 204 without it",
    hangs: "without it a request did not end within 0.05 s",
}


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_a_layer_that_the_app_cannot_do_without_is_refused_with_the_reason(loop: LoopName) -> None:
    if loop == "trio":
        pytest.importorskip("trio")

    async def why_not(without: Callable[[Any], Any]) -> dict[EntryIndex, str]:
        arms = await arms_of(Noop(Session(needs_session(without))))
        with arms.bypasses.installed():
            await arms.try_each(0.05)
        assert [*arms.layers] == [FIRST]
        return arms.why_not

    for without, why in WITHOUT.items():
        assert loops.run(loop, lambda without=without: why_not(without)) == {SECOND: why}  # type: ignore[misc]


# ---- by how long the app takes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("saved_us", "own_us", "other"),
    [
        (121.0, 107.0, False),  # a BaseHTTPMiddleware under load, with 100 clients
        (356.0, 107.0, False),  # with 1,000
        (12.0, 0.1, False),
        (900.0, 5.0, True),  # a login, without which the endpoint does nothing
        (-900.0, 5.0, False),
    ],
)
def test_a_layer_saves_many_times_its_own_time_only_if_the_app_does_something_else(
    saved_us: float, own_us: float, other: bool
) -> None:
    saved, own = Estimate(saved_us, saved_us, saved_us), Estimate(own_us, own_us, own_us)
    expected = "the app takes another way without it: 900 µs less under load, not 5" if other else None
    assert other_way(saved, own, " under load") == expected
    assert other_way(Estimate(saved_us, -math.inf, math.inf), own) is None
    assert other_way(saved, None) is None


# ---- the order of blocks ------------------------------------------------------------------------------------------

NS_PER_S = 1_000_000_000
BLOCK_NS = NS_PER_S // 10


class Made:
    """Makes blocks of a tenth of a second by a clock of its own, without requests, for three layers."""

    def __init__(
        self,
        end_s: float,
        *,
        failing: Arm = THIRD,
        after: int = sys.maxsize,
        error: type[MwBudgetError] = ResponseError,
        joined: Sequence[EntryIndex] = (),
        check: Callable[[], None] = lambda: None,
        **options: Any,
    ) -> None:
        self.now_ns = self.ticks = 0
        self.order: list[Arm] = []
        self.failing, self.after, self.error, self.check = failing, after, error, check
        self.joined = joined
        deadline = Deadline(round(end_s * NS_PER_S), lambda: self.now_ns, self.tick)
        with unchanged_code():
            self.arms, self.rounds = asyncio.run(self.made(deadline, options))

    async def made(self, deadline: Deadline, options: Any) -> tuple[Arms, list[Blocks[int]]]:
        arms = await arms_of(Noop(Noop(Noop(hello))))
        arms.caller.check = self.check
        arms.join(self.joined, "it is quick")
        with arms.bypasses.installed():
            return arms, await arms.rounds(self.block, deadline, BLOCK_NS, **options)

    def tick(self) -> None:
        self.ticks += 1

    async def block(self, arm: Arm) -> int:
        self.order.append(arm)
        self.now_ns += BLOCK_NS
        if arm == self.failing and self.order.count(arm) > self.after:
            error = self.error("without it the app answers another status")
            if isinstance(error, ResponseError):
                error.status = 500
            raise error
        return len(self.order)


def test_each_round_has_every_arm_in_random_order() -> None:
    made = Made(8.0)
    assert len(made.rounds) == 20
    assert made.ticks == len(made.order) == 80
    assert [arm for blocks in made.rounds for arm, _ in blocks] == made.order
    assert [number for blocks in made.rounds for _, number in blocks] == [*range(1, 81)]
    assert all({arm for arm, _ in blocks} == {None, FIRST, SECOND, THIRD} for blocks in made.rounds)
    firsts = Counter(made.order[::4])
    assert min(firsts[arm] for arm in (None, FIRST, SECOND, THIRD)) >= 2


def test_all_layers_share_the_blocks_with_every_layer() -> None:
    made = Made(1.1, whole=lambda layers: layers - 1)
    assert [Counter(arm for arm, _ in blocks) for blocks in made.rounds] == [
        Counter({None: 2, FIRST: 1, SECOND: 1, THIRD: 1})
    ] * 2


def test_no_round_begins_that_would_not_end_in_time() -> None:
    made = Made(1.5)
    assert len(made.rounds) == 3
    assert made.now_ns <= 1.5 * NS_PER_S
    assert len(Made(1.5, most=2).rounds) == 2


def test_too_little_time_for_a_round_is_for_the_app_with_every_layer() -> None:
    made = Made(0.3)
    assert made.rounds == [[(None, 1)]]


def test_without_arms_no_round_is_made() -> None:
    assert Made(0.3, whole=lambda layers: 0).rounds == []


@pytest.mark.parametrize("after", [0, 3])
def test_a_layer_without_which_a_block_fails_is_left_in_from_then_on_and_does_not_count(after: int) -> None:
    made = Made(8.0, after=after, when=" under load")
    assert made.arms.why_not == {THIRD: "the app answers 500 without it under load"}
    assert [*made.arms.layers] == [FIRST, SECOND]
    assert made.order.count(THIRD) == after + 1
    assert len(made.rounds) > 20
    assert all({arm for arm, _ in blocks} == {None, FIRST, SECOND} for blocks in made.rounds)


def test_layers_that_are_joined_are_left_out_together() -> None:
    async def entered() -> list[str]:
        names: list[str] = []

        class Named(Noop):
            def __init__(self, app: App, name: str) -> None:
                super().__init__(app)
                self.name = name

            async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
                names.append(self.name)
                await self.app(scope, receive, send)

        arms = await arms_of(Named(Named(Named(hello, "c"), "b"), "a"))
        arms.join([FIRST, SECOND], "it is quick")
        names.clear()
        with arms.bypasses.installed():
            for arm in (None, TOGETHER, THIRD):
                names.append("|")
                with arms.without(arm):
                    await arms.caller()
        return names

    assert "".join(asyncio.run(entered())) == "|abc|c|ab"
    made = Made(8.0, joined=[FIRST, SECOND])
    assert all({arm for arm, _ in blocks} == {None, TOGETHER, THIRD} for blocks in made.rounds)
    assert made.arms.why_not == dict.fromkeys((FIRST, SECOND), "it is quick")


def test_joined_layers_that_the_app_cannot_do_without_are_left_in() -> None:
    made = Made(8.0, joined=[FIRST, SECOND], failing=TOGETHER, after=2)
    assert made.order.count(TOGETHER) == 3
    assert made.arms.left_out(TOGETHER) == ()
    assert all({arm for arm, _ in blocks} == {None, THIRD} for blocks in made.rounds)


def test_a_failure_with_every_layer_is_that_of_the_caller() -> None:
    with pytest.raises(ResponseError):
        Made(8.0, failing=None, after=2)


def test_only_the_failures_that_are_the_apps_refuse_a_layer() -> None:
    assert Made(8.0, after=2, error=MeasurementError).arms.why_not == {THIRD: "the app does not answer without it"}
    with pytest.raises(MeasurementError):
        Made(8.0, after=2, error=MeasurementError, failures=ResponseError)


def test_what_ends_the_measurement_ends_the_rounds() -> None:
    def ended() -> None:
        raise MeasurementError("the time of the test is over")

    with pytest.raises(MeasurementError, match="the time of the test"):
        Made(8.0, after=2, check=ended)
