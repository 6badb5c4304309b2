"""If an internal of the interpreter is not as expected, the feature that needs it says so, and the rest works."""

from __future__ import annotations

import asyncio
import gc
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import BuiltinImporter
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_mwbudget.asgi.loops import replaced
from pytest_mwbudget.config.budgets import Budgets
from pytest_mwbudget.counting import backend
from pytest_mwbudget.counting.backend import PythonCore, counting_backend
from pytest_mwbudget.counting.spawning import Spawning
from pytest_mwbudget.errors import MeasurementError
from pytest_mwbudget.interpreter import internals
from pytest_mwbudget.interpreter.code_patching import detour, patched_code
from pytest_mwbudget.interpreter.foreign_tools import suspended
from pytest_mwbudget.model.quantities import PROCESS_WIDE

from .apps import Noop, hello, measured, stack_of

needs_monitoring = pytest.mark.skipif(not hasattr(sys, "monitoring"), reason="sys.monitoring came with Python 3.12")
needs_eager_tasks = pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with Python 3.12")
needs_extension = pytest.mark.skipif(internals.thread_tools() is None, reason="needs the extension in C")


@pytest.fixture(autouse=True)
def _checked_anew() -> Iterator[None]:
    for check in internals.SELF_CHECKS:
        check.cache_clear()
    yield
    for check in internals.SELF_CHECKS:
        check.cache_clear()


@pytest.mark.parametrize("check", [check for check in internals.SELF_CHECKS if check is not backend.why_no_counting])
def test_this_interpreter_is_as_expected(check: Callable[[], str | None]) -> None:
    assert check() is None


def test_the_core_in_c_counts_as_expected() -> None:
    pytest.importorskip("pytest_mwbudget.counting._core")
    assert backend.why_no_counting() is None


def test_a_self_check_runs_once_and_an_exception_is_a_reason() -> None:
    runs = []

    def as_expected() -> bool:
        runs.append(None)
        raise KeyError("gone")

    check = internals.self_check("a thing is missing", "nothing is known of it")(as_expected)
    internals.SELF_CHECKS.remove(check)
    assert check() == check()
    assert len(runs) == 1
    version = sys.version.split()[0]
    assert check() == (
        f"CPython {version} is not as expected: a thing is missing (KeyError: 'gone'), so nothing is known of it"
    )


# ---- code patching ----------------------------------------------------------------------------------------------


def test_without_code_patching_nothing_is_measured_and_the_error_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(internals, "set_code", lambda function, code: None)
    with pytest.raises(MeasurementError, match=r"a call does not run the code object .* nothing can be measured"):
        measured(Noop(hello))


def test_no_code_is_made_or_assigned_without_code_patching(monkeypatch: pytest.MonkeyPatch) -> None:
    def function() -> None: ...

    code = function.__code__
    monkeypatch.setattr(internals, "set_code", lambda function, code: None)
    with pytest.raises(MeasurementError, match="is not as expected"):
        detour(code, print)
    with pytest.raises(MeasurementError, match="is not as expected"), patched_code(function, code):
        pass


# ---- frames -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "broken", "why"),
    [
        ("begins", lambda frame: True, "a call that begins from one that is resumed"),
        ("step_ended", lambda frame: "returned", "a return from a suspension"),
        ("functions_of", lambda frames: [None] * len(frames), "does not lead to its function"),
    ],
)
def test_without_what_frames_tell_no_layer_is_looked_for(
    monkeypatch: pytest.MonkeyPatch, name: str, broken: Any, why: str
) -> None:
    monkeypatch.setattr(internals, name, broken)
    with pytest.raises(MeasurementError, match=f"{why}.* so no layer can be found"):
        stack_of(Noop(hello))
    assert sys.getprofile() is None


def test_an_unknown_instruction_is_not_as_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"NEW_{name}" for name in internals.opcode.opname]
    monkeypatch.setattr(internals, "opcode", SimpleNamespace(opname=names))
    assert "is not as expected" in (internals.why_no_steps() or "")


def test_a_frame_that_refers_to_nothing_is_not_as_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(internals.gc, "get_referents", lambda *objects: [])
    assert "is not as expected" in (internals.why_no_functions() or "")


# ---- proof that no tool is active -------------------------------------------------------------------------------


@needs_monitoring
def test_without_the_proof_verdicts_are_undecided_and_counts_of_tasks_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(internals, "_INSTRUMENTED", frozenset())
    measurement = measured(Noop(hello), settings={"budgets": Budgets({"us": 1000.0, "objects": 1000.0, "tasks": 1.0})})
    why = "a code object does not show that it is instrumented"
    assert measurement.verdict == "undecided"
    layer = measurement.layer("Noop")
    assert why in (layer.judged["us"].reason or "")
    if "objects" not in counting_backend().why_not:
        assert why in (layer.judged["objects"].reason or "")
    assert layer.judged["tasks"].verdict == "pass"
    assert layer.us is None
    assert measurement.books is None
    assert why in (measurement.disturbed or "")
    assert any(why in note and note.endswith("no verdicts on them. [active-tool]") for note in measurement.notes)


@needs_monitoring
def test_a_tool_that_can_be_seen_needs_no_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(internals, "_INSTRUMENTED", frozenset())
    with suspended() as foreign_tools:
        sys.settrace(lambda *event: None)
        try:
            foreign_tools.unproven = None
            foreign_tools.check()
        finally:
            sys.settrace(None)
    assert foreign_tools.unproven is None
    assert "was active" in foreign_tools.why_no_figures


@needs_monitoring
def test_checking_the_proof_leaves_no_tool() -> None:
    monitoring: Any = sys.monitoring  # type: ignore[attr-defined, unused-ignore]
    before = [monitoring.get_tool(tool) for tool in range(6)]
    internals.why_no_proof()
    assert [monitoring.get_tool(tool) for tool in range(6)] == before


@needs_monitoring
def test_where_all_tools_are_taken_the_proof_is_taken_to_work() -> None:
    monitoring: Any = sys.monitoring  # type: ignore[attr-defined, unused-ignore]
    free = [tool for tool in range(6) if monitoring.get_tool(tool) is None]
    for tool in free:
        monitoring.use_tool_id(tool, "taken")
    try:
        assert internals.why_no_proof() is None
    finally:
        for tool in free:
            monitoring.free_tool_id(tool)


@pytest.mark.skipif(hasattr(sys, "monitoring"), reason="Python 3.12 and later instrument code")
def test_python_3_11_instruments_no_code_and_needs_no_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(internals, "_INSTRUMENTED", frozenset(range(256)))
    with suspended() as foreign_tools:
        foreign_tools.check()
    assert foreign_tools.unproven is None
    assert not foreign_tools.distorting


# ---- tools of threads -------------------------------------------------------------------------------------------


def with_replaced(module: Any, **wrong: Any) -> Any:
    """Copy the module's functions, with some of them replaced."""
    return SimpleNamespace(**{name: getattr(module, name) for name in dir(module) if not name.startswith("__")} | wrong)


def of_the_extension(monkeypatch: pytest.MonkeyPatch, **wrong: Any) -> None:
    misled = with_replaced(internals._extension(), **wrong)
    monkeypatch.setattr(internals, "_extension", lambda: misled)


@needs_extension
@pytest.mark.parametrize(
    "wrong",
    [{"at_work": list}, {"suspend": list}, {"resume": lambda taken: None}],
    ids=["sees nothing", "takes nothing off", "puts nothing back"],
)
def test_an_extension_that_does_not_fit_is_not_used(monkeypatch: pytest.MonkeyPatch, wrong: dict[str, Any]) -> None:
    of_the_extension(monkeypatch, **wrong)
    assert internals.thread_tools() is None
    assert "tracers and profilers of other threads cannot be suspended" in (internals.why_no_thread_tools() or "")
    assert sys.getprofile() is None


@needs_extension
def test_the_extension_is_checked_against_a_tool_that_is_at_work_which_notices_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events: list[str] = []
    touched: list[str] = []
    of_the_extension(monkeypatch, suspend=lambda: touched.append("suspend"), resume=lambda taken: None)

    def profile(frame: Any, event: str, arg: object) -> None:
        events.append(event)

    sys.setprofile(profile)
    try:
        assert internals.why_no_thread_tools() is None
        assert sys.getprofile() is profile
    finally:
        sys.setprofile(None)
    assert touched == []


def test_a_thread_whose_bootstrap_was_replaced_runs_inside_of_the_other_and_keeps_nothing() -> None:
    assert internals.why_no_bootstrap() is None
    seen: list[str] = []
    thread = threading.Thread(target=lambda: seen.append("run"))
    before = set(vars(thread))

    def around(bootstrap: Any) -> Any:
        return lambda: [seen.append("begun"), bootstrap(), seen.append("ended")]

    with internals.bootstrap_replaced(thread, around):
        thread.start()
    thread.join()
    assert seen == ["begun", "run", "ended"]
    assert set(vars(thread)) <= before


def test_a_thread_that_begins_elsewhere_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", lambda thread: None)
    assert "what the threads of a layer do is not counted" in (internals.why_no_bootstrap.__wrapped__() or "")


@needs_extension
@needs_monitoring
def test_without_a_fitting_extension_a_tool_of_another_thread_is_told_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of_the_extension(monkeypatch, at_work=list)
    with ThreadPoolExecutor(1, "waiting") as pool, suspended():
        pool.submit(sys.setprofile, lambda *event: None).result()
        with suspended() as foreign_tools:
            pass
        pool.submit(sys.setprofile, None).result()
    (active,) = foreign_tools.active
    assert re.match(r"a tracer or profiler of another thread \((\S.*, )?waiting_0; CPython ", active)
    assert active.endswith("so tracers and profilers of other threads cannot be suspended)")


@needs_extension
def test_without_a_fitting_extension_the_own_tracer_sleeps_and_wakes(monkeypatch: pytest.MonkeyPatch) -> None:
    of_the_extension(monkeypatch, suspend=list, at_work=lambda: [("tracer", 0, None)])

    def trace(*event: object) -> None: ...

    sys.settrace(trace)
    try:
        with suspended():
            assert sys.gettrace() is None
        assert sys.gettrace() is trace
    finally:
        sys.settrace(None)


# ---- the counting core ------------------------------------------------------------------------------------------


def of_the_core(monkeypatch: pytest.MonkeyPatch, **wrong: Any) -> None:
    core = pytest.importorskip("pytest_mwbudget.counting._core")
    misled = with_replaced(core, **wrong)
    monkeypatch.setattr("pytest_mwbudget.counting._core", misled)
    monkeypatch.setitem(sys.modules, "pytest_mwbudget.counting._core", misled)


@pytest.mark.parametrize(
    "wrong",
    [
        {"run": lambda owner, function: function()},
        {"take": lambda: ([(0, 0, 0, 0)] * 3, [])},
        {"take": lambda: 1 / 0},
    ],
    ids=["charges nobody", "counts nothing", "fails"],
)
def test_a_core_in_c_that_does_not_count_is_not_used(monkeypatch: pytest.MonkeyPatch, wrong: dict[str, Any]) -> None:
    of_the_core(monkeypatch, **wrong)
    backend = counting_backend()
    assert isinstance(backend.core, PythonCore)
    assert set(backend.why_not) == set(PROCESS_WIDE)
    assert "the core in C does not count the objects that are made before it" in backend.why_not["objects"]
    monkeypatch.undo()
    for check in internals.SELF_CHECKS:
        check.cache_clear()
    assert not isinstance(counting_backend().core, PythonCore)


@pytest.mark.skipif(sys.version_info < (3, 13), reason="creations can be seen from Python 3.13 on")
def test_objects_that_are_missed_rule_out_the_core_in_c(monkeypatch: pytest.MonkeyPatch) -> None:
    core = pytest.importorskip("pytest_mwbudget.counting._core")
    of_the_core(monkeypatch, take=lambda: (core.take()[0], []))
    assert isinstance(counting_backend().core, PythonCore)


def test_without_the_core_in_c_tasks_and_time_are_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    of_the_core(monkeypatch, run=lambda owner, function: function())
    measurement = measured(Noop(hello), settings={"budgets": Budgets({"us": 1e6, "allocations": 1e6, "tasks": 1.0})})
    judged = measurement.layer("Noop").judged
    assert (judged["us"].verdict, judged["tasks"].verdict) == ("pass", "pass")
    assert judged["allocations"].verdict == "undecided"
    assert "allocations cannot be counted here: CPython " in (judged["allocations"].reason or "")


def test_a_core_that_counts_already_is_not_disturbed() -> None:
    core = pytest.importorskip("pytest_mwbudget.counting._core")
    core.start(2)
    try:
        core.callback(1, int)()
        assert counting_backend().core is core
        assert core.aside(int)() == 1
    finally:
        core.stop()


# ---- the standard library ---------------------------------------------------------------------------------------


@needs_eager_tasks
def test_an_eager_factory_that_hides_its_constructor_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(internals, "_first_cell", lambda factory: ()[0])
    notes: list[str] = []

    async def main() -> None:
        core = PythonCore()
        core.start(2)
        spawning = Spawning(core, 1, 2)
        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined, unused-ignore]
        with spawning.watched("asyncio"):
            await asyncio.create_task(asyncio.sleep(0))
        notes.extend(spawning.unseen)
        assert sum(sum(tasks.values()) for tasks in spawning.take()[0].values()) == 1

    asyncio.run(main())
    (note,) = notes
    assert "does not hold the constructor" in note
    assert note.endswith("so tasks that anyio makes with that constructor are not counted.")


def test_a_function_that_is_not_written_in_python_is_told_and_the_others_are_watched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(threading.Thread, "start", len)
    measurement = measured(Noop(hello))
    assert "Calls of builtins.len are not counted: it is not written in Python." in measurement.notes
    assert measurement.layer("Noop").counts is not None


def test_a_loop_whose_methods_cannot_be_replaced_is_refused() -> None:
    class Fixed:
        __slots__ = ()

        def call_soon(self) -> None: ...

    loop: Any = Fixed()
    why = r"nothing can be measured on a loop of .*Fixed: its call_soon"
    with pytest.raises(MeasurementError, match=why), replaced(loop, "call_soon", print):
        pass


def test_a_thread_without_the_name_of_its_target_is_named_by_its_method() -> None:
    thread = threading.Thread(target=time.sleep)
    assert internals.thread_target(thread) is time.sleep
    del thread._target  # type: ignore[attr-defined]
    assert internals.thread_target(thread) == thread.run


def test_a_loop_without_a_known_iteration_is_taken_for_another_loop() -> None:
    assert internals.loop_iteration(object()) is None


def test_without_a_copy_of_time_its_own_functions_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert internals.private_time() is not time
    monkeypatch.setattr(BuiltinImporter, "find_spec", lambda *arguments: None)
    assert internals.private_time() is time


def test_self_checks_leave_nothing_behind() -> None:
    for check in internals.SELF_CHECKS:
        check()
        check.cache_clear()
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(20):
        for check in internals.SELF_CHECKS:
            check.cache_clear()
            check()
    while gc.collect():  # Python 3.14 frees the frames of generators in a second collection
        pass
    assert len(gc.get_objects()) - before < 20
