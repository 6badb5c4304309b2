"""Room for the frames of the functions that a measurement calls.

CPython keeps frames in chunks of 16 KiB, and gives a chunk back to the system when the first frame in it returns. Where
chunks end depends on how deep in the stack a test runs. A call that has no room in a chunk costs two system calls and
page faults each time (docs/decisions/0043).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")

# The slots of a frame that is larger than a chunk. CPython makes a chunk of 32,768 slots for it, with room for hundreds
# of frames after it, but for no second one of this size: `with_room` within `with_room` makes another chunk. Unused
# slots take no memory, except in a traceback, which holds 136 KB.
_SLOTS = 17_000


def with_room(function: Callable[[], _T]) -> _T:
    """Call a function with room for the frames of the functions that it calls, in this thread."""
    __tracebackhide__ = True
    return function()


with_room.__code__ = with_room.__code__.replace(co_stacksize=_SLOTS)
