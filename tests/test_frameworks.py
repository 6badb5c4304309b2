"""Layers of frameworks whose middlewares are not ASGI callables, with a framework made for these tests."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from pytest_mwbudget.asgi.frameworks.seam import Seam
from pytest_mwbudget.config.budgets import Budgets
from pytest_mwbudget.model.stack import parts_of

from .apps import Noop, measured, names_of, stack_of
from .readings import near, readings
from .test_truth_exact import calls
from .toy import DecoratedHook, Either, Hooks, InThread, Passing, Toy, answering, ok, passing, returning, seam, toy

__all__ = ["toy"]
pytestmark = pytest.mark.usefixtures("toy")


def test_layers_are_those_of_the_framework_in_its_order() -> None:
    hooks = Hooks()
    app = Toy(ok, [passing, Passing, Either, returning], [hooks.before], [hooks.after])
    assert names_of(app) == [
        "function[tests.toy.passing]",
        "Passing",
        "Either",
        "function[tests.toy.returning]",
        "Hooks",
    ]


def test_asgi_layers_stand_outside_those_of_the_framework() -> None:
    stack = stack_of(Noop(Toy(ok, [passing])))
    assert [layer.name for _, layer in stack.layers] == ["Noop", "Toy", "function[tests.toy.passing]"]
    # No default budget applies to the app itself.
    assert [layer.kind for _, layer in stack.layers] == ["middleware", "routing", "middleware"]
    assert stack.endpoint == 3


def test_a_function_that_takes_the_app_is_a_layer_of_its_own() -> None:
    async def middleware(app: Any, scope: Any, receive: Any, send: Any) -> None:
        await app(scope, receive, send)

    stack = stack_of(functools.partial(middleware, Toy(ok, [passing])))
    assert [stack.entries[entry].kind for entry, _ in stack.layers] == ["middleware", "routing", "middleware"]
    assert not stack.outside


def test_functions_of_one_code_are_layers_of_their_own() -> None:
    assert names_of(Toy(ok, [passing, passing])) == ["function[tests.toy.passing]#1", "function[tests.toy.passing]#2"]


def test_layers_of_an_app_with_a_layer_round_one_of_its_methods() -> None:
    class App(Toy):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await self.wrapped_call(scope, receive, send)

        async def call(self, scope: Any, receive: Any, send: Any) -> None:
            await super().__call__(scope, receive, send)

    app = App(ok, [passing])
    app.wrapped_call = Noop(app.call)
    stack = stack_of(app)
    assert [layer.name for _, layer in stack.layers] == ["Noop", "App", "function[tests.toy.passing]"]
    rows = {entry for entry, _ in stack.layers} | {0, stack.endpoint}
    assert rows == set(stack.probeable)


def test_an_app_that_gives_up_before_another_is_a_layer_with_its_own() -> None:
    async def not_found(scope: Any) -> bytes:
        return b"not found"

    first, second = Toy(not_found, [passing]), Toy(ok, [Passing])

    async def cascade(scope: Any, receive: Any, send: Any) -> None:
        async def refused(message: Any) -> None: ...

        await first(scope, receive, refused)
        await second(scope, receive, send)

    stack = stack_of(cascade)
    assert [layer.name for _, layer in stack.layers][1:] == ["Toy#1", "Toy#2", "Passing"]
    assert stack.endpoint is not None
    assert stack.entries[stack.endpoint].parent == stack.layers[-1][0]
    assert {entry for entry, _ in stack.layers} | {stack.endpoint} == set(stack.probeable)


def test_functions_with_equal_cells_are_told_apart() -> None:
    def limit(most: int) -> Callable[..., Any]:
        async def limited(scope: Any, most: int = most) -> None: ...

        return limited

    entered, beside = limit(1), limit(1)
    app = Toy(ok, before=[limit(2), entered])
    app.wrapped = [beside]  # a layer of another route, which the request does not enter
    stack = stack_of(app)
    assert [stack.entries[entry].function for entry, _ in stack.layers if entry is not None] == app.before


def test_a_cell_may_change_in_a_request() -> None:
    number = 0

    async def before(scope: Any) -> None:
        nonlocal number
        number += 1

    async def after(scope: Any, body: Any) -> None:
        assert number

    stack = stack_of(Toy(ok, before=[before], after=[after]))
    assert [stack.entries[entry].function for entry, _ in stack.layers if entry is not None] == [before, after]


def test_a_handler_that_calls_another_is_one_endpoint(toy: ModuleType) -> None:
    async def other(scope: Any) -> bytes:
        return await ok(scope)

    toy.seam = lambda app: Seam(seam(app).layers, (other, ok))  # type: ignore[attr-defined]
    stack = stack_of(Toy(other, [passing]))
    assert stack.endpoint == 2
    assert parts_of(stack.entries, stack.endpoint) == (2, 3)


def test_a_layer_inside_one_that_answers_is_not_entered() -> None:
    stack = stack_of(Toy(ok, [answering, passing]))
    assert [(layer.name, layer.entered) for _, layer in stack.layers] == [
        ("function[tests.toy.answering]", True),
        ("function[tests.toy.passing]", False),
    ]
    assert stack.endpoint is None


def test_an_app_that_cannot_be_cut_further_is_the_endpoint() -> None:
    stack = stack_of(Toy(ok, before=[Hooks().before], cut=False))
    assert [layer.name for _, layer in stack.layers] == ["Hooks"]
    assert stack.endpoint == 0
    assert not stack.outside


def test_a_framework_that_cannot_be_read_breaks_nothing(toy: ModuleType) -> None:
    def moved(app: object) -> None:
        raise AttributeError("no chain")

    toy.seam = moved  # type: ignore[attr-defined]
    measurement = measured(Noop(Toy(ok, [passing])))
    assert [report.name for report in measurement.layers] == ["Noop"]
    assert (
        "The layers of Toy (AttributeError: no chain) could not be read, so they are in its endpoint. [missing-layers]"
        in (measurement.notes)
    )


@pytest.mark.live
@readings
def test_a_layer_that_runs_in_a_thread_has_its_hops() -> None:
    outer, sync, inner = measured(Toy(ok, [passing, InThread, passing])).layers
    assert sync.name == "InThread"
    # A hop to a thread may wait for a processor.
    assert sync.us.high > 300
    assert sync.us.estimate < 10_000
    assert all(report.us is not None and near(report.us, 0, most_us=100) for report in (outer, inner))
    # The thread works while the event loop is free.
    assert sync.occupation is None
    assert sync.layer.adapts == "it is sync"


def test_how_long_a_layer_in_a_thread_holds_the_event_loop_is_not_known() -> None:
    budgets = Budgets(default={"busy_us": 1000.0})
    sync = measured(Toy(ok, [InThread]), settings={"budgets": budgets}).layers[0]
    judged = sync.judged["busy_us"]
    assert (judged.verdict, judged.reason) == (
        "undecided",
        "layers of this app run in threads, so how long it holds the event loop is not known; use a budget of us"
        " [uncountable]",
    )


def app_with_hooks() -> Toy:
    hooks, after = Hooks(), Hooks()
    return Toy(ok, [passing], [hooks.before], [hooks.after, after.after])


# The calls of each row: the app with those of `respond`, the layers, the endpoint.
APPS: dict[str, tuple[Callable[[], Toy], list[int]]] = {
    "functions": (lambda: Toy(ok, [passing, passing]), [2, 1, 1, 1]),
    "an object": (lambda: Toy(ok, [passing, Passing]), [2, 1, 1, 1]),
    "a plain call and a coroutine": (lambda: Toy(ok, [Either, passing, Either]), [2, 2, 1, 2, 1]),
    "decorated methods": (
        lambda: Toy(ok, before=[DecoratedHook().before, DecoratedHook().before]),
        [2, 2, 2, 1],
    ),
    "hooks beside the handler": (app_with_hooks, [2, 4, 1, 1, 2]),
}


@pytest.mark.parametrize(("make", "expected"), APPS.values(), ids=APPS)
def test_every_row_has_its_calls_and_no_others(make: Callable[[], Toy], expected: list[int]) -> None:
    app = make()
    _, estimates = calls(app)
    entries = stack_of(app).entries
    # A probe makes more calls outside of the layer than inside, and half of all is charged to each side.
    lean = [0.0] * len(entries)
    for index, entry in enumerate(entries[1:], 1):
        more = 1.0 if entry.plain else 0.5
        lean[index if entry.part_of is None else entry.part_of] -= more
        lean[entry.parent] += more
    assert {index: us.estimate - lean[index] for index, us in estimates.split.items()} == pytest.approx(
        dict(zip(estimates.split, expected, strict=True)), abs=0.1
    )
