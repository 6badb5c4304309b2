"""Cores: pin the server and the load generator apart."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

SIBLINGS = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


@dataclass(frozen=True, slots=True)
class Cores:
    """Cores of the server and of the load generator, None if the system does not let processes be pinned.

    `alone` is whether there is one core only, which both share.
    """

    server: int | None = None
    generator: int | None = None
    alone: bool = False


def cores() -> Cores:
    """Choose cores for the calling thread and the load generator: of different physical cores if possible."""
    if not hasattr(os, "sched_setaffinity"):
        return Cores(alone=os.cpu_count() == 1)
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) == 1:
        return Cores(alone=True)
    server = allowed[0]
    apart = [core for core in allowed if core not in siblings(server)] or allowed[1:]
    return Cores(server, apart[-1])


def siblings(core: int) -> set[int]:
    """Return the logical cores of the same physical core, with the core itself."""
    numbers = {core}
    with suppress(OSError, ValueError):
        for part in Path(SIBLINGS.format(core)).read_text(encoding="ascii").split(","):
            first, _, last = part.partition("-")
            numbers.update(range(int(first), int(last or first) + 1))
    return numbers


def _moved(core: int) -> bool:
    """Move the calling thread to a core. Returns whether the system lets it, which a sandbox may not do."""
    try:
        os.sched_setaffinity(0, {core})
    except OSError:
        return False
    return True


@contextmanager
def pinned(core: int | None) -> Iterator[None]:
    """Pin the calling thread to a core in the block. Threads that begin meanwhile are freed with it at the end."""
    if core is None:
        yield
        return
    before, others = os.sched_getaffinity(0), {thread.native_id for thread in threading.enumerate()}
    if not _moved(core):
        yield
        return
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
        for thread in threading.enumerate():
            if thread.native_id is not None and thread.native_id not in others:
                with suppress(OSError):  # it has ended
                    os.sched_setaffinity(thread.native_id, before)
