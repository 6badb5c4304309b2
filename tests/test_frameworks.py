"""Layers of frameworks whose middlewares are not ASGI callables, with a framework made for these tests."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest

from pytest_mwbudget.config.budgets import Budgets

from .apps import Noop, measured, names_of, stack_of
from .test_truth_exact import calls
from .toy import Either, Hooks, InThread, Passing, Toy, answering, ok, passing, returning, toy

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
    assert stack.endpoint == 3


def test_functions_of_one_code_are_layers_of_their_own() -> None:
    assert names_of(Toy(ok, [passing, passing])) == ["function[tests.toy.passing]#1", "function[tests.toy.passing]#2"]


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
    found = measured(Noop(Toy(ok, [passing])))
    assert [report.name for report in found.layers] == ["Noop"]
    assert (
        "The layers of Toy (AttributeError: no chain) could not be read, so they are in its endpoint. [missing-layers]"
        in (found.notes)
    )


@pytest.mark.live
def test_a_layer_that_runs_in_a_thread_has_its_hops() -> None:
    outer, sync, inner = measured(Toy(ok, [passing, InThread, passing])).layers
    assert sync.name == "InThread"
    assert sync.us is not None
    assert 300 < sync.us.estimate < 3000
    assert all(one.us is not None and one.us.estimate < 100 for one in (outer, inner))
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
    "hooks beside the handler": (app_with_hooks, [2, 4, 1, 1, 2]),
}


@pytest.mark.parametrize(("make", "expected"), APPS.values(), ids=APPS)
def test_every_row_has_its_calls_and_no_others(make: Callable[[], Toy], expected: list[int]) -> None:
    app = make()
    _, found = calls(app)
    entries = stack_of(app).entries
    # A probe makes more calls outside of the layer than inside, and half of all is charged to each side.
    lean = [0.0] * len(entries)
    for index, entry in enumerate(entries[1:], 1):
        more = 1.0 if entry.plain else 0.5
        lean[index if entry.part_of is None else entry.part_of] -= more
        lean[entry.parent] += more
    assert {index: us.estimate - lean[index] for index, us in found.split.items()} == pytest.approx(
        dict(zip(found.split, expected, strict=True)), abs=0.1
    )
