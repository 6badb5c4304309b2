"""The events of executed code, which the core in C counts, and the proof that none is missing. From Python 3.12 on."""

from __future__ import annotations

import dis
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType
from typing import Any

from ..interpreter import monitoring, tracers
from ..interpreter.code_patching import PROBE_FILE, twin
from ..interpreter.internals import self_check
from ..model.stack import HARNESS

# Code of these files is in no count: the package with its server and its probes, and the code that takes the place of
# a layer's.
OWN_FILES = (f"{Path(__file__).parents[1]}{os.sep}", PROBE_FILE)
MEANWHILE = "a tracer, profiler or sys.monitoring tool was switched on or off while executed code was counted"


def c_core() -> Any:
    """Return the core in C. Raises ImportError if it was not built."""
    from . import _core  # type: ignore[attr-defined, unused-ignore]

    return _core


def why_no_executed() -> str | None:
    """Return why no executed code can be counted here, None if it can."""
    if monitoring.api() is None:
        return f"executed code can be seen from Python 3.12 on, this is {sys.version_info[0]}.{sys.version_info[1]}"
    if monitoring.free_tool() is None:
        return "all tool ids of sys.monitoring are taken, so no more tool can see executed code"
    return why_no_events()


@contextmanager
def counting_events(core: Any) -> Iterator[None]:
    """Let the core in C get the events of all code in the block."""
    tool, events = monitoring.free_tool(), monitoring.api().events
    assert tool is not None
    callbacks = {events.INSTRUCTION: core.on_instruction, events.CALL: core.on_call, events.PY_START: core.on_start}
    # An earlier tool with this id may have switched events off for single instructions. That ends when the code runs
    # without the tool, as the code of requests has.
    _known(_inside)
    with monitoring.tool_at_work(tool, callbacks):
        yield


@self_check("the code of a function is not counted as its instructions tell", "no executed code is counted")
def why_no_events() -> bool:
    """Check the count of known code, from Python 3.12 on. Another tool at work would take events away."""
    if monitoring.api() is None or monitoring.at_work() or tracers.at_work():
        return True
    core = c_core()
    try:
        core.start(1, OWN_FILES)
    except RuntimeError:  # it counts already, and was checked before
        return True
    try:
        with counting_events(core):
            return Undisturbed(core).why_not() is None
    finally:
        core.stop()


class Undisturbed:
    """The proof that nobody else watched code since this was created: another tool takes events away."""

    def __init__(self, core: Any) -> None:
        self.core = core
        self.begin = self._number_of_events()

    def why_not(self) -> str | None:
        """Return who watched code as far as is known, None if nobody did."""
        if self.begin is None or self._number_of_events() != self.begin:
            return MEANWHILE
        if names := monitoring.local_at_work(self.core.known_codes()):
            return f"a sys.monitoring tool ({', '.join(names)}) watched code while it was counted"
        return None

    def _number_of_events(self) -> int | None:
        """Return the number of the set of events that are on, None if known code is not counted as it should be.

        CPython changes the number whenever any tool is switched on or off, also a tracer of `sys.settrace`.
        """
        self.core.take_executed()
        self.core.run(HARNESS, _known, _inside)
        counted = self.core.take_executed()[HARNESS]
        number: int = self.core.instrumentation(_known.__code__)
        return number if counted == _executed_by_known() else None


def _elsewhere(function: Any) -> Any:
    """Return the function with code of another file: code of this package is not counted."""
    return twin(function, function.__code__.replace(co_filename="<known code of pytest-mwbudget>"))


@_elsewhere
def _inside() -> int:
    return 1


@_elsewhere
def _known(inside: Callable[[], int]) -> int:
    return inside() + inside() + len("ab")


def _executed_by_known() -> tuple[int, int, int]:
    """Return what a call of `_known` executes: neither function has a jump."""
    known, inside = (_watched(function.__code__) for function in (_known, _inside))
    names = [*known, *inside, *inside]
    return len(names), names.count("CALL"), 3


def _watched(code: CodeType) -> list[str]:
    """Return the names of the instructions that have events: those after RESUME."""
    names = [instruction.opname for instruction in dis.get_instructions(code)]
    return names[names.index("RESUME") + 1 :]
