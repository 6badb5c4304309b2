"""Random stacks break no promise, and the hunt finds deliberate violations."""

from __future__ import annotations

import asyncio
import gc
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from pytest_mwbudget.asgi import discovery, server
from pytest_mwbudget.asgi.stack import Stack as FoundStack
from pytest_mwbudget.counting import spawning
from pytest_mwbudget.engine import measure
from pytest_mwbudget.model.estimate import Estimate
from pytest_mwbudget.model.results import Measurement

from . import fuzz_stacks
from .apps import hello
from .canned import but
from .fuzz_stacks import Finding, Violation, found_in, hunt, main, unmeasured, violations
from .readings import readings
from .stacks import FORMS, HABITS, IN_A_THREAD, SPIN_US, Built, Layer, Plain, Stack, allowed_habits, rows_of, smaller

pytestmark = pytest.mark.live

UNTIMED, TIMED = 15, 6
FORMS_AT_ONCE = 6


def kept(stack: Stack, finding: Finding | None) -> None:
    assert finding is None, f"a promise is broken:\n{finding}"


# ---- the promises -----------------------------------------------------------------------------------------------


def test_random_stacks_keep_the_promises() -> None:
    hunt(17, UNTIMED, timed=False, report=kept)


@readings
def test_the_times_of_random_stacks_keep_the_promises() -> None:
    hunt(18, TIMED, timed=True, report=kept)


@pytest.mark.parametrize("first", range(0, len(FORMS), FORMS_AT_ONCE))
def test_every_form_is_found_and_changes_nothing(first: int) -> None:
    forms = list(FORMS)[first : first + FORMS_AT_ONCE]
    assert violations(Stack(tuple(map(Layer, forms))), timed=False) == []


@pytest.mark.parametrize("name", HABITS)
def test_every_habit_stays_as_it_is(name: str) -> None:
    layers = (Layer("closure"), Layer(habits=(name,)), Layer("closure"))
    assert violations(Stack(layers, endpoint="streaming", method="POST"), timed=False) == []


@pytest.mark.parametrize(
    "stack",
    [
        Stack((Layer(habits=(IN_A_THREAD,)), Layer()), "mount", below=1),
        Stack((Layer(habits=("returns a value of its own", IN_A_THREAD)),)),
        Stack((Layer(habits=("holds messages back", IN_A_THREAD)), Layer())),
        Stack((Layer(habits=(IN_A_THREAD,)), Layer(habits=("answers by itself",)), Layer("closure"))),
    ],
    ids=["below a router", "a value", "messages held back", "an answer in the thread"],
)
def test_what_runs_in_another_thread_has_its_rows(stack: Stack) -> None:
    assert violations(stack, timed=False) == []


@readings
@pytest.mark.parametrize(
    "stack",
    [
        # Wrong once: the blank layers of a null layer had other parameters, or did not begin the task.
        Stack((Layer("no-op function[tests.apps._with_option]"), Layer("no-op function[tests.apps._with_option]"))),
        Stack((Layer("no-op Defaults"),)),
        Stack((Layer("partial with keyword-only arguments"),)),
        Stack((Layer("BaseHTTPMiddleware"),), method="POST"),
        Stack((Layer(habits=("enters its inside twice", "runs its inside in a task")),)),
    ],
    ids=["partials of one function", "a keyword", "only keywords", "the split of a task layer", "tasks twice"],
)
def test_times_that_were_wrong_stay_right(stack: Stack) -> None:
    assert violations(stack, timed=True) == []


# ---- the grammar ------------------------------------------------------------------------------------------------


def test_what_a_stack_does_without_us() -> None:
    catching = Layer(habits=("wraps send", "catches exceptions"))
    failing = Stack((catching, Layer("closure")), endpoint="raises")
    outcome = unmeasured(Built(failing))
    assert (outcome.status, outcome.headers, outcome.body) == (500, (("x-layer-0", "1"),), b"0:-\n1:-")
    assert unmeasured(Built(Stack((Layer(),), endpoint="raises"))).raised == ("BoomError('boom')",)
    twice = Built(Stack((Layer(habits=("enters its inside twice", "spawns two tasks")), Layer(spin_us=1))))
    assert unmeasured(twice).body == b"0:-\n1:-\n1:-"
    assert [(row.name, row.tasks, row.entered) for row in rows_of(twice)] == [("Plain", 4, True), ("Plain", 0, True)]
    assert len(twice.parts[1].spun_ns) == 2
    assert min(twice.parts[1].spun_ns) >= 1000


def test_the_rows_of_a_description() -> None:
    layers = (Layer("closure"), Layer(habits=("answers by itself",)), Layer("frozen dataclass"))
    answered = Built(Stack(layers, "mount", below=2))
    assert unmeasured(answered).status == 401
    assert [(row.name, row.entered) for row in rows_of(answered)] == [
        ("ServerErrorMiddleware", True),
        ("function[tests.stacks.closure]", True),
        ("ExceptionMiddleware", True),
        ("Router", True),
        ("Plain", True),
        ("Frozen", False),
    ]
    hidden = Built(Stack((Layer(habits=(IN_A_THREAD,)), Layer())))
    assert [row.hidden for row in rows_of(hidden)] == [False, True]


def test_habits_fit_their_form_and_their_loop() -> None:
    assert allowed_habits("no-op Slots", "asyncio") == []
    assert "wraps send" not in allowed_habits("BaseHTTPMiddleware", "asyncio")
    assert "spawns two tasks" in allowed_habits("BaseHTTPMiddleware", "trio")
    assert "shields its inside" not in allowed_habits("class", "trio")


def test_a_description_can_be_evaluated_and_gets_smaller_until_nothing_is_left() -> None:
    stack = Stack((Layer("closure", ("wraps send", "suspends"), SPIN_US), Layer()), "route", 1, "reads", "POST", "trio")
    assert eval(repr(stack)) == stack
    steps = 0
    while (less := next(smaller(stack), None)) is not None:
        stack, steps = less, steps + 1
    assert (stack, steps) == (Stack(), 6)


# ---- violations are found ---------------------------------------------------------------------------------------


def invariants(stack: Stack, *, timed: bool = False) -> set[str]:
    return {violation.invariant for violation in violations(stack, timed=timed)}


@pytest.mark.once
def test_an_app_that_gets_something_else_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def receive(exchange: server.Exchange) -> Any:
        return {"type": "http.request", "body": b"something else", "more_body": False}

    monkeypatch.setattr(server.Exchange, "receive", receive)
    assert invariants(Stack((Layer(),), endpoint="reads", method="POST")) == {"the app as without us"}


@pytest.mark.once
def test_an_exception_that_is_another_one_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def send(exchange: server.Exchange, message: Any) -> None:
        raise RuntimeError("not the app's")

    monkeypatch.setattr(server.Exchange, "send", send)
    assert invariants(Stack((Layer(),))) == {"the app as without us"}


@pytest.mark.once
def test_a_layer_that_is_missing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    stack_of = discovery.stack_of

    def without_the_last(*traces: Any) -> FoundStack:
        stack = stack_of(*traces)
        return replace(stack, layers=stack.layers[:-1])

    monkeypatch.setattr(discovery, "stack_of", without_the_last)
    assert invariants(Stack((Layer(), Layer("closure")))) == {"no layer missing or invented"}


@pytest.mark.once
def test_a_wrong_count_is_found_and_the_stack_made_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spawning, "POOLS", ("builtins.",))
    threads = "hands work to a thread"
    stack = Stack((Layer("closure"), Layer("frozen dataclass", ("suspends", threads)), Layer()), "starlette")
    # More time than shrinking takes on a busy machine.
    finding = found_in(stack, timed=False, shrink_s=600)
    assert finding is not None
    assert finding.stack == Stack((Layer(habits=(threads,)),))
    assert str(finding) == (
        "  counts: Plain has 0 threads {}, described are 1\n"
        f'  replay: python -m tests.fuzz_stacks --replay "{finding.stack!r}"'
    )


async def other(scope: Any, receive: Any, send: Any) -> None: ...


def task_factory(loop: Any, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
    return asyncio.Task(coroutine, loop=loop, **options)


@pytest.mark.once
@pytest.mark.parametrize(
    ("leave", "restore"),
    [
        (gc.disable, gc.enable),
        (lambda: setattr(Plain, "left", 1), lambda: delattr(Plain, "left")),
        (lambda: asyncio.get_running_loop().set_task_factory(task_factory), lambda: None),
        (partial(setattr, hello, "__code__", other.__code__), partial(setattr, hello, "__code__", hello.__code__)),
    ],
    ids=["garbage collection", "an attribute of a class", "a task factory", "code"],
)
def test_what_is_left_behind_is_found(leave: Any, restore: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def leaving(*arguments: Any) -> Measurement:
        measurement = await measure(*arguments)
        leave()
        return measurement

    monkeypatch.setattr(fuzz_stacks, "measure", leaving)
    try:
        assert invariants(Stack((Layer(),))) == {"nothing left behind"}
    finally:
        restore()


def below_zero(measurement: Measurement) -> Measurement:
    first, *others = measurement.layers
    return replace(measurement, layers=(replace(first, us=Estimate(-2.0, -3.0, -1.0)), *others))


def exchanged(measurement: Measurement) -> Measurement:
    first, second = measurement.layers
    return replace(measurement, layers=(replace(first, us=second.us), replace(second, us=first.us)))


def apart(measurement: Measurement) -> Measurement:
    assert measurement.books is not None
    total_us, more_us = measurement.books.total.estimate, 10_000.0
    total = Estimate(*[total_us + more_us] * 3)
    books = replace(measurement.books, total=total, residue_us=measurement.books.residue_us - more_us)
    return but(measurement, books=books)


def not_added_up(measurement: Measurement) -> Measurement:
    assert measurement.books is not None
    return but(measurement, books=replace(measurement.books, residue_us=measurement.books.residue_us + 1))


@pytest.mark.once
@readings
@pytest.mark.parametrize(
    ("spoil", "broken"),
    [
        (below_zero, "interval of Plain"),
        (exchanged, "spin of Plain"),
        (apart, "rows near the total"),
        (not_added_up, "rows add up"),
    ],
)
@pytest.mark.parametrize("always", [True, False])
def test_wrong_times_are_found_unless_they_are_chance(
    spoil: Any, broken: str, always: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0

    async def spoiled(*arguments: Any) -> Measurement:
        nonlocal calls
        calls += 1
        measurement = await measure(*arguments)
        return spoil(measurement) if always or calls == 1 else measurement

    monkeypatch.setattr(fuzz_stacks, "measure", spoiled)
    monkeypatch.setattr(fuzz_stacks, "busy_now", lambda: "")
    found = invariants(Stack((Layer(spin_us=SPIN_US), Layer("closure"))), timed=True)
    # Rows that do not add up are reported at once, because noise cannot be the reason.
    assert (broken in found) == (always or spoil is not_added_up)


@pytest.mark.once
@pytest.mark.parametrize(
    ("busy", "measurements", "is_reported"),
    [([""], 3, True), (["noise", ""], 4, True), (["noise"] * 4, 6, False)],
    ids=["quiet", "busy once", "always busy"],
)
def test_a_wrong_time_is_only_reported_of_a_machine_that_is_not_busy(
    busy: list[str], measurements: int, is_reported: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong, answers, looked = [Violation("spin of Plain", "wrong", timed=True)], iter(busy), []

    def times_of(*seen: Any) -> list[Violation]:
        looked.append(seen)
        return wrong

    seen: Any = None
    monkeypatch.setattr(fuzz_stacks, "_times_of", times_of)
    monkeypatch.setattr(fuzz_stacks, "measured", lambda *_, **__: None)
    monkeypatch.setattr(fuzz_stacks, "busy_now", lambda: next(answers))
    assert fuzz_stacks._wrong_times(Stack(), seen, 0, seen) == (wrong if is_reported else [])
    assert len(looked) == measurements


# ---- the command ------------------------------------------------------------------------------------------------


@pytest.mark.once
def test_the_command_replays_a_description(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    description = repr(Stack((Layer(habits=("hands work to a thread",)),)))
    assert main(["--untimed", "--replay", description]) == 0
    assert capsys.readouterr().out == "nothing is wrong with it\n"
    monkeypatch.setattr(spawning, "POOLS", ("builtins.",))
    assert main(["--untimed", "--replay", description]) == 1
    assert capsys.readouterr().out == "counts: Plain has 0 threads {}, described are 1\n"


@pytest.mark.once
def test_the_command_hunts_until_its_time_is_over(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[Stack] = []

    def found_in(stack: Stack, *, timed: bool) -> Finding | None:
        assert not timed
        looked.append(stack)
        return Finding(stack, [Violation("counts", "wrong")]) if len(looked) == 1 else None

    monkeypatch.setattr(fuzz_stacks, "found_in", found_in)
    assert main(["--seconds", "0.2", "--untimed", "--without", "suspends"]) == 1
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first == "  counts: wrong"
    assert last.startswith(f"{len(looked)} stacks, 1 with something wrong, seeds 1 to ")
    assert not any("suspends" in layer.habits for stack in looked for layer in stack.layers)
    with pytest.raises(SystemExit):
        main(["--without", "nothing like it"])
    assert "no form or habit is called 'nothing like it'; there are class, " in capsys.readouterr().err
