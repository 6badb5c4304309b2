"""Measure how long a hop to another thread and back takes."""

from __future__ import annotations

import _thread
from collections.abc import Callable


def hop_ns(clock: Callable[[], int]) -> float:
    """Return the nanoseconds of a fixed hop: start a thread, hear of it, wake it, and hear of it again.

    Thread pools and event loops wait in the same way: asleep, without the GIL, until another thread wakes them. The
    thread ends with the hop, so nothing has to be closed. It is none of `threading`, so no tracer or thread check that
    an app or a test has installed there sees it.
    """
    go, back = _thread.allocate_lock(), _thread.allocate_lock()
    go.acquire()
    back.acquire()

    def partner() -> None:
        back.release()
        go.acquire()
        back.release()

    begin = clock()
    _thread.start_new_thread(partner, ())
    try:
        back.acquire()
    finally:
        go.release()  # also after an interrupt, so that the thread ends
    back.acquire()
    return float(clock() - begin)
