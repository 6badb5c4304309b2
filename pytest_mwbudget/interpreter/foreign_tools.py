"""Suspend foreign tools and the garbage collector during a measurement, and make room for the frames of probes.

Foreign tools are tracers, profilers, coverage and the tools of `sys.monitoring`.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import CodeType

from . import internals, monitoring, tracers

# The most frames that the probes of one boundary put on the stack, for the call of the layer and for a message from it.
FRAMES_OF_PROBES = 20
# The largest C int, which is the most that `sys.setrecursionlimit` accepts.
MOST_FRAMES = 2**31 - 1


@dataclass(slots=True)
class ForeignTools:
    """The names of foreign tools: `suspended` ones, and `active` ones, which distort figures.

    `missed` names the other threads that a suspended tool did not watch. `unproven` is the reason why it cannot be
    proved that no unseen tool is active.
    """

    suspended: list[str] = field(default_factory=list)
    active: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    unproven: str | None = None

    @property
    def distorting(self) -> bool:
        """Whether figures of time and memory would be wrong."""
        return bool(self.active) or self.unproven is not None

    @property
    def why_no_figures(self) -> str:
        """The reason why there are no figures of time and memory, and the remedy."""
        if not self.active and self.unproven is not None:
            return self.unproven
        remedy = "measure without it, in a separate job"
        if any("coverage" in name for name in self.active):
            remedy += (
                " (pytest --no-cov), or set COVERAGE_CORE=sysmon, which before Python 3.14 falls back to the tracer"
                " where branches are covered"
            )
        return f"{' and '.join(self.active)} was active during the measurement; {remedy}"

    def check(self, codes: Iterable[CodeType] = ()) -> None:
        """Add to `active` the tools that are active in spite of the suspension, or were when `codes` last ran."""
        names = tracers.described(tracers.at_work()) + [_tool(name) for name in monitoring.at_work()]
        if not names:
            self.unproven = internals.why_no_proof()
            if self.unproven is None and monitoring.instrumented(codes):
                names = [_unseen()]
        self.active += [name for name in names if name not in self.active]


@contextmanager
def garbage_collection_paused() -> Iterator[None]:
    """Pause garbage collection, which takes time of the current layer and runs callbacks of no layer."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def garbage_collection_deferred() -> Iterator[None]:
    """Pause garbage collection in the block, and collect the youngest generation at its end."""
    try:
        with garbage_collection_paused():
            yield
    finally:
        gc.collect(0)


@contextmanager
def raised_recursion_limit(boundaries: int) -> Iterator[None]:
    """Raise the recursion limit to make room for the frames of the probes at this number of boundaries."""
    before = sys.getrecursionlimit()
    raised = min(before + FRAMES_OF_PROBES * boundaries, MOST_FRAMES)
    sys.setrecursionlimit(raised)
    try:
        yield
    finally:
        if sys.getrecursionlimit() == raised:  # else the app has set its own
            sys.setrecursionlimit(before)


@contextmanager
def suspended(new_threads: tracers.Hooks | None = None) -> Iterator[ForeignTools]:
    """Suspend the tracers and profilers of every thread and every `sys.monitoring` tool, and restore them.

    `new_threads` are the tools of threads that start outside the block, by default the current ones.
    """
    with tracers.suspended(new_threads) as tools, monitoring.suspended() as names:
        foreign = ForeignTools(
            suspended=[*tracers.described(tools), *map(_tool, names)],
            missed=[tool.thread for tool in tools if tool.thread is not None],
        )
        foreign.check()
        yield foreign


def _tool(name: str) -> str:
    return f"a sys.monitoring tool ({name})"


def _unseen() -> str:
    """Describe the unseen tool that most likely instruments code."""
    others = tracers.other_threads()
    if internals.thread_tools() is None and others:
        unusable = internals.why_no_thread_tools()
        return f"a tracer or profiler of another thread ({', '.join(others)}{f'; {unusable}' if unusable else ''})"
    return "a tracer, profiler or sys.monitoring tool that something switched on meanwhile"
