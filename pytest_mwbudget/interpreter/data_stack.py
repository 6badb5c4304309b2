"""Room for the frames of the functions that a measurement calls.

CPython keeps frames in chunks of 16 KiB, and gives a chunk back to the system when the first frame in it returns. Where
chunks end depends on how deep in the stack a test runs. A call that has no room in a chunk then costs two system calls
and a page fault or more, each time: a layer of 3 µs takes 20. Patch releases of 2026 keep a chunk instead:
https://github.com/python/cpython/issues/142183
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")

# For a frame of so many slots CPython makes a chunk of 32,768. The rest is room for hundreds of frames, but not for
# another frame of this size, so a call within a call has a chunk of its own. Slots without a value take no memory.
_SLOTS = 17_000


def with_room(function: Callable[[], _T]) -> _T:
    """Call a function with room for the frames of all that it calls."""
    __tracebackhide__ = True
    return function()


with_room.__code__ = with_room.__code__.replace(co_stacksize=_SLOTS)
