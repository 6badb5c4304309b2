"""Every assumption about CPython and asyncio beyond their documentation, with a self-check for each.

A self-check runs once, when a feature first needs the assumption, on objects made for the check. It returns None, or
one sentence on what is unexpected and what is lost, which the feature passes on.

Some assumptions need no self-check, because their failure shows. `monitoring` finds code objects through
`gc.get_objects()`; the proof in `foreign_tools` sees instrumented code that was not found. `profiling` replaces parts
of pyinstrument; an exception there becomes the reason why there is no flamegraph.
"""

from __future__ import annotations

import gc
import inspect
import opcode
import sys
import threading
from collections.abc import Callable, Collection, Coroutine, Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib.machinery import BuiltinImporter
from importlib.util import module_from_spec
from types import AsyncGeneratorType, CodeType, CoroutineType, FrameType, FunctionType, GeneratorType
from typing import Any, Literal, TypeAlias

from ..errors import described

# Returns None, or the reason why the internal cannot be used.
SelfCheck: TypeAlias = Callable[[], str | None]

SELF_CHECKS: list[Any] = []


def self_check(wrong: str, lost: str) -> Callable[[Callable[[], bool]], SelfCheck]:
    """Make a self-check of a function that returns whether the internal is as expected. An exception means no."""

    def decorate(as_expected: Callable[[], bool]) -> SelfCheck:
        @lru_cache(maxsize=1)
        def why_not() -> str | None:
            reason = ""
            try:
                if as_expected():
                    return None
            except Exception as error:  # of any kind: the internal has changed
                reason = f" ({described(error)})"
            import platform

            interpreter = f"{platform.python_implementation()} {platform.python_version()}"
            return f"{interpreter} is not as expected: {wrong}{reason}, so {lost}"

        SELF_CHECKS.append(why_not)
        return why_not

    return decorate


# ---- code objects -----------------------------------------------------------------------------------------------


def set_code(function: Any, code: CodeType) -> None:
    """Let every call of the function run `code`."""
    function.__code__ = code


@self_check(
    "a call does not run the code object that was assigned to its function",
    "no probe can be placed and nothing can be measured",
)
def why_no_code_patching() -> bool:
    """Check that assigned code runs, that constants can be any objects, and that a flag alone makes no coroutine."""
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


# The instructions that replace others in code watched by a tracer, profiler or monitoring tool.
_INSTRUMENTED = frozenset(number for name, number in opcode.opmap.items() if name.startswith("INSTRUMENTED_"))


def is_instrumented(code: CodeType) -> bool:
    """Return whether the code was instrumented when it last ran. CPython 3.11 instruments no code."""
    if not hasattr(sys, "monitoring"):
        return False
    plain, adaptive = code.co_code, code._co_code_adaptive  # type: ignore[attr-defined]
    # An instruction has two bytes, and its inline cache follows: where the plain code has CACHE, this one has data.
    return any(plain[i] != 0 and adaptive[i] in _INSTRUMENTED for i in range(0, len(plain), 2))


@self_check(
    "a code object does not show that it is instrumented",
    "it cannot be proved that no tracer, profiler or monitoring tool slowed the measurement down",
)
def why_no_proof() -> bool:
    """Check that an event on a code object shows in its instructions, from Python 3.12 on."""
    monitoring: Any = getattr(sys, "monitoring", None)
    if monitoring is None:
        return True
    tool = next((tool for tool in range(6) if monitoring.get_tool(tool) is None), None)
    if tool is None:  # six active tools, which `foreign_tools` reports first
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


def with_callers(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield the frame and its callers, innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def _instruction(frame: FrameType) -> str:
    """Return the name of the frame's current instruction."""
    return opcode.opname[frame.f_code.co_code[frame.f_lasti]]


def begins(frame: FrameType) -> bool:
    """Return whether a frame begins, and is not resumed, at a call that a profile function sees."""
    code = frame.f_code.co_code
    resumed_after = code[frame.f_lasti + 1] & 3 if _instruction(frame) == "RESUME" else 0
    return resumed_after == 0


def step_ended(frame: FrameType) -> Literal["suspended", "returned", "raised"]:
    """Return how a step of a frame ended, at a return that a profile function sees."""
    instruction = _instruction(frame)
    if instruction in ("YIELD_VALUE", "RESUME"):  # Python 3.13 is already at the next step
        return "suspended"
    return "returned" if instruction.startswith("RETURN_") else "raised"


@self_check(
    "frames do not tell a call that begins from one that is resumed, or a return from a suspension",
    "no layer can be found",
)
def why_no_steps() -> bool:
    """Check what a profile function sees of two calls: one is suspended and returns, the other raises."""

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


# What holds the frame of a suspended call, with the attribute.
SUSPENDED = ((CoroutineType, "cr_frame"), (GeneratorType, "gi_frame"), (AsyncGeneratorType, "ag_frame"))


def functions_of(frames: Collection[FrameType]) -> list[FunctionType | None]:
    """Return the function of each frame, None while the frame runs.

    A frame that has ended holds its function. Until then the coroutine or generator of a suspended frame does.
    """
    functions = [_function_held_by(frame, frame) for frame in frames]
    missing = {frame: place for place, frame in enumerate(frames) if functions[place] is None}
    for holder in gc.get_referrers(*missing) if missing else ():
        frame = next((getattr(holder, name) for kind, name in SUSPENDED if type(holder) is kind), None)
        if frame in missing:
            functions[missing[frame]] = _function_held_by(holder, frame)
    return functions


def _function_held_by(holder: object, frame: FrameType) -> FunctionType | None:
    held = [
        value for value in gc.get_referents(holder) if type(value) is FunctionType and value.__code__ is frame.f_code
    ]
    # A function may be among its own arguments, and so may others with the same code.
    return held[0] if len(set(map(id, held))) == 1 else None


@self_check("a frame that has ended or is suspended does not lead to its function", "no layer can be found")
def why_no_functions() -> bool:
    """Check that the functions of frames are found."""
    frames: list[FrameType] = []

    def called() -> None:
        frames.append(sys._getframe())

    def stepped() -> Iterator[None]:
        frames.append(sys._getframe())
        yield

    called()
    steps = stepped()
    next(steps)
    functions = functions_of(frames)
    return functions[0] is called and functions[1] is stepped


# ---- tools of threads -------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _extension() -> Any:
    """Return the C extension that reads and writes the tools of all threads, None if it was not built."""
    try:
        from . import _tracing  # type: ignore[attr-defined]
    except ImportError:
        return None
    return _tracing


def thread_tools() -> Any:
    """Return the C extension that reads and writes the tools of all threads, None if it cannot be used."""
    return _extension() if why_no_thread_tools() is None else None


@self_check(
    "a thread does not keep its tracer and profiler where the C extension looks for them",
    "tracers and profilers of other threads cannot be suspended",
)
def why_no_thread_tools() -> bool:
    """Check that the extension sees the same as `sys`, and that it suspends and restores a profiler.

    Only reads if a tool is active, so that nobody notices.
    """
    tracing = _extension()
    if tracing is None:
        return True
    own = {"tracer": sys.gettrace(), "profiler": sys.getprofile()}
    seen = {kind: tool for kind, ident, tool in tracing.at_work() if ident == threading.get_ident()}
    if seen or own != {"tracer": None, "profiler": None}:
        return all(seen.get(kind) is tool for kind, tool in own.items())

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
    """Return a copy of the module `time` in which no test can replace functions; `time` itself if that fails."""
    spec = BuiltinImporter.find_spec("time")
    if spec is None or spec.loader is None:
        import time  # not at the top, where freezegun would replace its functions

        return time
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def thread_target(thread: threading.Thread) -> Any:
    """Return the function that the thread will run; its method `run` if `threading` has renamed the attribute."""
    target = getattr(thread, "_target", None)
    return thread.run if target is None else target


@contextmanager
def bootstrap_replaced(thread: threading.Thread, around: Callable[[Callable[[], Any]], Any]) -> Iterator[None]:
    """Let a thread that is started in the block do all its work inside of what `around` returns."""
    own: Any = thread
    vars(thread)["_bootstrap"] = around(own._bootstrap)
    try:
        yield
    finally:
        vars(thread).pop("_bootstrap", None)


@self_check("a thread does not begin in its method `_bootstrap`", "what the threads of a layer do is not counted")
def why_no_bootstrap() -> bool:
    """Check that a thread runs the attribute that took the place of its `_bootstrap`."""
    seen: list[str] = []

    def around(bootstrap: Callable[[], Any]) -> Callable[[], Any]:
        def begin() -> None:
            seen.append("begun")
            bootstrap()

        return begin

    thread = threading.Thread(target=lambda: seen.append("running"))
    with bootstrap_replaced(thread, around):
        thread.start()
    thread.join()
    return seen == ["begun", "running"]


def awaited_condition(frame: FrameType | None) -> int:
    """Return the id of the `threading.Condition` that the thread of a frame waits for, 0 if it does not."""
    for caller in with_callers(frame):
        if caller.f_code is threading.Condition.wait.__code__:
            return id(caller.f_locals.get("self"))
    return 0


def loop_iteration(loop: object) -> Callable[[], None] | None:
    """Return the method with which asyncio's own loop runs all that is ready, None for other loops.

    The loop looks the method up on itself, so an attribute of the loop replaces it.
    """
    return getattr(loop, "_run_once", None)


def eager_constructor(factory: Any) -> Callable[..., Any] | None:
    """Return the task constructor of asyncio's eager task factory, None for other factories."""
    import asyncio  # not at the top: CPython 3.12 crashes if a second interpreter imports it

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
    """Check that the constructor can be read, from Python 3.12 on."""
    import asyncio

    create: Any = getattr(asyncio, "create_eager_task_factory", None)
    if create is None:
        return True

    def constructor() -> None: ...

    factory = create(constructor)
    return factory.__code__ is asyncio.eager_task_factory.__code__ and _first_cell(factory) is constructor  # type: ignore[attr-defined, unused-ignore]
