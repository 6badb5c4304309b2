"""Everything the package assumes about CPython and asyncio beyond their documentation, with a self-check for each.

A self-check runs once, when the feature that needs the assumption is first used, on objects made for it. It returns
None, or one sentence that says what is not as expected and what is lost. The feature passes that sentence on.

Some assumptions need no self-check, because the feature shows by itself that they fail. `monitoring` finds code objects
through `gc.get_objects()`: the proof in `foreign_tools` sees instrumented code that the search misses. `profiling`
replaces parts of pyinstrument: an exception there becomes the reason why there is no flamegraph.
"""

from __future__ import annotations

import gc
import inspect
import opcode
import sys
import threading
from collections.abc import Callable, Coroutine
from functools import lru_cache
from importlib.machinery import BuiltinImporter
from importlib.util import module_from_spec
from types import CodeType, FrameType, FunctionType
from typing import Any, Literal, TypeAlias

# None, or why the internal cannot be relied on.
SelfCheck: TypeAlias = Callable[[], str | None]

SELF_CHECKS: list[Any] = []


def self_check(wrong: str, lost: str) -> Callable[[Callable[[], bool]], SelfCheck]:
    """Make a self-check of a function that returns whether the internal is as expected; an exception means no."""

    def decorate(as_expected: Callable[[], bool]) -> SelfCheck:
        @lru_cache(maxsize=1)
        def why_not() -> str | None:
            found = ""
            try:
                if as_expected():
                    return None
            except Exception as error:  # whatever it is, the internal has changed
                found = f" ({type(error).__name__}: {error})"
            import platform

            interpreter = f"{platform.python_implementation()} {platform.python_version()}"
            return f"{interpreter} is not as expected: {wrong}{found}, so {lost}"

        SELF_CHECKS.append(why_not)
        return why_not

    return decorate


# ---- code objects -----------------------------------------------------------------------------------------------


def set_code(function: Any, code: CodeType) -> None:
    """Let every call of the function, however it is referred to, run `code`."""
    function.__code__ = code


@self_check(
    "a call does not run the code object that was assigned to its function",
    "no probe can be placed and nothing can be measured",
)
def why_no_code_patching() -> bool:
    """Check that assigned code runs, that any object can be a constant, and that a flag alone makes no coroutine."""
    placeholder, cell, answer = "the target stands here", object(), object()

    async def patched(argument: object) -> object:
        return cell, argument

    def template(cell: object) -> CodeType:
        def shape(argument: object) -> object:
            target: Any = "the target stands here"
            return target(argument) if target else cell

        return shape.__code__

    class Holder:
        call = patched

    def target(argument: object) -> object:
        return answer if type(argument) is Holder else None

    kept, original, replacing = Holder().call, patched.__code__, template(cell)
    set_code(
        patched,
        replacing.replace(
            co_consts=tuple(target if constant == placeholder else constant for constant in replacing.co_consts),
            co_flags=replacing.co_flags | inspect.CO_COROUTINE,
            co_freevars=original.co_freevars,
        ),
    )
    returned: object = kept()
    marked = inspect.iscoroutinefunction(patched)
    set_code(patched, original)
    patched(None).close()
    if inspect.iscoroutine(returned):  # the function ran its own code
        returned.close()
    return returned is answer and marked


# The numbers of the instructions that replace others in code that a tracer, profiler or monitoring tool watches.
_INSTRUMENTED = frozenset(number for name, number in opcode.opmap.items() if name.startswith("INSTRUMENTED_"))


def is_instrumented(code: CodeType) -> bool:
    """Whether the code ran instrumented when it last ran. CPython 3.11 instruments no code."""
    if not hasattr(sys, "monitoring"):
        return False
    plain, adaptive = code.co_code, code._co_code_adaptive  # type: ignore[attr-defined]
    # An instruction is two bytes, and its inline cache follows: what is a CACHE in the plain code is data here.
    return any(plain[i] != 0 and adaptive[i] in _INSTRUMENTED for i in range(0, len(plain), 2))


@self_check(
    "a code object does not show that it is instrumented",
    "it cannot be proved that no tracer, profiler or monitoring tool slowed the measurement down",
)
def why_no_proof() -> bool:
    """Check that an event on a code object shows in its instructions; there is nothing to check before Python 3.12."""
    monitoring: Any = getattr(sys, "monitoring", None)
    if monitoring is None:
        return True
    tool = next((tool for tool in range(6) if monitoring.get_tool(tool) is None), None)
    if tool is None:  # six tools are at work: `foreign_tools` has to do with them first
        return True

    def watched() -> None: ...

    before = is_instrumented(watched.__code__)
    monitoring.use_tool_id(tool, "pytest-mwbudget")
    try:
        monitoring.set_local_events(tool, watched.__code__, monitoring.events.PY_START)
        during = is_instrumented(watched.__code__)
        monitoring.set_local_events(tool, watched.__code__, 0)
    finally:
        monitoring.free_tool_id(tool)
    return during and not before


# ---- frames -----------------------------------------------------------------------------------------------------


def _instruction(frame: FrameType) -> str:
    """The name of the instruction that the frame is at."""
    return opcode.opname[frame.f_code.co_code[frame.f_lasti]]


def begins(frame: FrameType) -> bool:
    """Whether a frame that a profile function sees called begins now, and is not resumed."""
    code = frame.f_code.co_code
    resumed_after = code[frame.f_lasti + 1] & 3 if _instruction(frame) == "RESUME" else 0
    return resumed_after == 0


def step_ended(frame: FrameType) -> Literal["suspended", "returned", "raised"]:
    """How a step of a frame ended for which a profile function sees a return."""
    instruction = _instruction(frame)
    if instruction in ("YIELD_VALUE", "RESUME"):  # Python 3.13 says where it will go on
        return "suspended"
    return "returned" if instruction.startswith("RETURN_") else "raised"


@self_check(
    "frames do not tell a call that begins from one that is resumed, or a return from a suspension",
    "no layer can be found",
)
def why_no_steps() -> bool:
    """Check how frames look to a profile function in two calls: one is suspended and returns, one raises."""

    async def watched(awaitable: Any) -> None:
        await awaitable

    class Once:
        def __await__(self) -> Any:
            yield

    seen: list[str] = []

    def profile(frame: FrameType, event: str, _: object) -> None:
        if frame.f_code is watched.__code__:
            seen.append(step_ended(frame) if event == "return" else "began" if begins(frame) else "resumed")

    calls: list[Coroutine[Any, None, None]] = [watched(Once()), watched(None)]
    previous = sys.getprofile()
    sys.setprofile(profile)
    try:
        for call, ends in ((calls[0], None), (calls[0], StopIteration), (calls[1], TypeError)):
            try:
                call.send(None)
            except (StopIteration, TypeError) as end:
                if type(end) is not ends:
                    raise
    finally:
        sys.setprofile(previous if callable(previous) else None)
    return seen == ["began", "suspended", "resumed", "returned", "began", "raised"]


def function_of(frame: FrameType) -> FunctionType | None:
    """The function whose call `frame` was: a finished frame holds it. None while it still runs."""
    held = [
        value for value in gc.get_referents(frame) if type(value) is FunctionType and value.__code__ is frame.f_code
    ]
    # It may also be among its own arguments; but then another one of the same code may be there, too.
    return held[0] if len(set(map(id, held))) == 1 else None


@self_check("the frame of a call that has ended does not hold the function that was called", "no layer can be found")
def why_no_functions() -> bool:
    """Check that the frame of a call leads to its function."""
    frames: list[FrameType] = []

    def called() -> None:
        frames.append(sys._getframe())

    called()
    return function_of(frames[0]) is called


# ---- tools of threads -------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _extension() -> Any:
    """The module in C that reads and writes the tools of all threads, None where it was not built."""
    try:
        from . import _tracing  # type: ignore[attr-defined]
    except ImportError:
        return None
    return _tracing


def thread_tools() -> Any:
    """The module in C that reads and writes the tools of all threads, None where there is none to rely on."""
    return _extension() if why_no_thread_tools() is None else None


@self_check(
    "a thread does not keep its tracer and profiler where the C extension looks for them",
    "tracers and profilers of other threads cannot be suspended",
)
def why_no_thread_tools() -> bool:
    """Check that the extension sees what `sys` sees, and that it takes a profiler off and puts it back.

    Only reads where a tool is at work already: its owner must not notice.
    """
    tracing = _extension()
    if tracing is None:
        return True
    own = {"tracer": sys.gettrace(), "profiler": sys.getprofile()}
    found = {kind: tool for kind, ident, tool in tracing.at_work() if ident == threading.get_ident()}
    if found or own != {"tracer": None, "profiler": None}:
        return all(found.get(kind) is tool for kind, tool in own.items())

    def profile(frame: FrameType, event: str, argument: object) -> None: ...

    sys.setprofile(profile)
    try:
        found_tools = [(kind, tool) for kind, _, tool in tracing.at_work()]
        if found_tools != [("profiler", profile)]:
            return ("profiler", profile) in found_tools
        taken = tracing.suspend()
        suspended = sys.getprofile() is None and tracing.at_work() == []
        tracing.resume(taken)
        return suspended and sys.getprofile() is profile
    finally:
        sys.setprofile(None)


# ---- the standard library ---------------------------------------------------------------------------------------


def private_time() -> Any:
    """A copy of the module `time` in which no test can replace a function; `time` itself where none can be made."""
    spec = BuiltinImporter.find_spec("time")
    if spec is None or spec.loader is None:
        import time  # here only: freezegun replaces what a module of this package holds

        return time
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def thread_target(thread: threading.Thread) -> Any:
    """What the thread is to run; its method `run` where `threading` does not keep the target under this name."""
    return getattr(thread, "_target", None) or thread.run


def loop_iteration(loop: object) -> Callable[[], None] | None:
    """The method with which asyncio's own loop does all that is ready, None for another loop.

    It is called as an attribute of the loop, so that an attribute of that name takes its place.
    """
    return getattr(loop, "_run_once", None)


def eager_constructor(factory: Any) -> Callable[..., Any] | None:
    """What asyncio's eager task factory makes tasks with, None for another factory."""
    import asyncio  # here only: CPython 3.12 crashes where another interpreter imports it

    eager = getattr(asyncio, "eager_task_factory", None)  # Python 3.12
    if eager is None or getattr(factory, "__code__", None) is not eager.__code__ or why_no_eager_constructor():
        return None
    return _first_cell(factory)


def _first_cell(factory: Any) -> Callable[..., Any]:
    constructor: Callable[..., Any] = factory.__closure__[0].cell_contents
    return constructor


@self_check(
    "asyncio's eager task factory does not hold the constructor of its tasks in a cell",
    "tasks that anyio makes with that constructor are not counted",
)
def why_no_eager_constructor() -> bool:
    """Check that the constructor can be read; there is none before Python 3.12."""
    import asyncio

    create: Any = getattr(asyncio, "create_eager_task_factory", None)
    if create is None:
        return True

    def constructor() -> None: ...

    factory = create(constructor)
    return factory.__code__ is asyncio.eager_task_factory.__code__ and _first_cell(factory) is constructor  # type: ignore[attr-defined, unused-ignore]
