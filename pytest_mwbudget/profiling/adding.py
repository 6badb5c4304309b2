"""Add a profile to a result, or a note on why there is none."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from ..asgi import loops, server
from ..asgi.stack import Stack
from ..config.settings import Settings
from ..errors import MwBudgetError, described, of_the_app, tagged
from ..interpreter.foreign_tools import ForeignTools
from ..model.results import Profile, Result
from ..timing.looks import Environment

if TYPE_CHECKING:
    from .sampling import Profiled


async def with_profile(
    result: Result,
    publish: Callable[[Profiled, Result], Profile],
    stack: Stack,
    caller: server.Caller,
    settings: Settings,
    environment: Environment,
    foreign_tools: ForeignTools,
    timed: Callable[[], Awaitable[Result]],
) -> Result:
    """Profile a request and add the profile, whose files `publish` writes.

    A result without times is profiled by those that `timed` returns: they tell the app's time from the profiler's.
    """
    if foreign_tools.distorting:
        return _without(result, foreign_tools.why_no_figures)
    try:
        times = result if result.total_us else await timed()
    except MwBudgetError as error:
        return _without(result, str(error))
    limit_s = caller.limit_s or settings.startup_timeout_s
    try:
        from .sampling import profile

        async with caller.loop.limited(limit_s) as extend:
            profiled = await profile(
                stack, caller, result, times, environment.clock, lambda: extend(limit_s), environment.schedule
            )
    except loops.OutOfTimeError:
        slow = "" if caller.limit_s else f"; {settings.slow_answer}"
        why = f"under the profiler, which slows requests down, one did not end within {limit_s:g} s{slow}"
        return _without(result, why)
    except Exception as raised:  # the app's or the profiler's
        return _without(result, f"under the profiler the app raised {described(of_the_app(raised))}")
    try:
        return replace(result, profile=publish(profiled, result))
    except (MwBudgetError, OSError, RecursionError) as error:
        return _without(result, str(error))


def _without(result: Result, why: str) -> Result:
    note = tagged(f"There is no flamegraph: {why}", "no-flamegraph")
    return replace(result, notes=(*result.notes, note))
