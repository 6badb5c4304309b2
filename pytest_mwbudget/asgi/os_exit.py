"""Keep the app from ending the test process with `os._exit`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType

from ..errors import LifespanError, MeasurementError
from ..interpreter.internals import with_callers

# Whether the running code was started by the app's lifespan.
in_lifespan: ContextVar[bool] = ContextVar("pytest_mwbudget_lifespan", default=False)


@contextmanager
def exit_refused() -> Iterator[None]:
    """Turn a call of `os._exit` by the app into LifespanError or MeasurementError.

    Some apps end their shutdown with `os._exit(0)`: in a merge gate, any failure would become a success. Forked
    children and threads that existed before keep the real `os._exit`: pytest-timeout and execnet end a test run from
    their threads.
    """
    real, process = os._exit, os.getpid()
    # Not by ident, which a new thread gets again, nor by `threading`, which never forgets a thread it did not start.
    before = [_outermost(frame) for frame in sys._current_frames().values()]
    before.remove(_outermost(sys._getframe()))

    def refuse(status: int) -> None:
        if os.getpid() == process and _outermost(sys._getframe()) not in before:
            called = f"called os._exit({status}), which would have ended the test run with that status and no report"
            if in_lifespan.get():
                raise LifespanError(
                    f"the app's lifespan {called}; leave it alone with lifespan=False, or keep the call out of the test"
                    f" environment"
                )
            raise MeasurementError(f"the app {called}; keep the call out of the test environment", message_id="app")
        real(status)

    os._exit = refuse  # type: ignore[assignment]
    try:
        yield
    finally:
        os._exit = real


def _outermost(frame: FrameType) -> FrameType:
    """Return the frame in which the thread of `frame` began."""
    return [*with_callers(frame)][-1]
