"""A lock between processes that ends with its process, however the process ends.

The package filelock is not used. On CPython 3.12 and newer it adds an audit hook to the process, which cannot be
removed. Python would then create three objects and call the hook for each audit event of the app under test.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from weakref import WeakSet

from ..interpreter.clocks import sleep
from ..interpreter.files import REAL
from ..model.estimate import Seconds

# A link that another user put into a directory for temporary files must not be followed.
FLAGS = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
PAUSE_S: Seconds = 0.05


class FileLock:
    """A lock for which the file `path` stands. The file is made if need be, and stays."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def acquire(self) -> bool:
        """Take the lock without waiting; return whether it was free. Raises OSError where files cannot be locked."""
        descriptor: int = REAL.os.open(str(self.path), FLAGS, 0o600)
        try:
            free = _locked(descriptor)
        except BaseException:
            REAL.os.close(descriptor)
            raise
        if not free:
            REAL.os.close(descriptor)
            return False
        self._descriptor = descriptor
        _held.add(self)
        return True

    def release(self, *, shared: bool = False) -> None:
        """Release the lock if it is held; one that is `shared` with the parent of a forked child stays the parent's."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:
            return
        _held.discard(self)
        try:
            if not shared:
                _unlock(descriptor)
        finally:
            REAL.os.close(descriptor)


@contextmanager
def held(path: Path, patience_s: Seconds) -> Iterator[None]:
    """Hold the lock of `path` in the block; go on without it after `patience_s`, or where files cannot be locked."""
    lock = FileLock(path)
    with suppress(OSError):
        for _ in range(round(patience_s / PAUSE_S)):
            if lock.acquire():
                break
            sleep(PAUSE_S)
    try:
        yield
    finally:
        lock.release()


if sys.platform == "win32":
    # Windows refuses to write a byte that another handle has locked, so this one is behind the end of every file.
    LOCKED_BYTE = 2**30

    def _locked(descriptor: int) -> bool:
        REAL.os.lseek(descriptor, LOCKED_BYTE, os.SEEK_SET)
        try:
            REAL.locking.locking(descriptor, REAL.locking.LK_NBLCK, 1)
        except PermissionError:
            return False
        return True

    def _unlock(descriptor: int) -> None:
        REAL.os.lseek(descriptor, LOCKED_BYTE, os.SEEK_SET)
        REAL.locking.locking(descriptor, REAL.locking.LK_UNLCK, 1)

else:

    def _locked(descriptor: int) -> bool:
        try:
            REAL.locking.flock(descriptor, REAL.locking.LOCK_EX | REAL.locking.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _unlock(descriptor: int) -> None:
        REAL.locking.flock(descriptor, REAL.locking.LOCK_UN)


_held: WeakSet[FileLock] = WeakSet()


def _forget_all() -> None:
    """Close the files in a forked child, which would keep the locks of a parent that is killed."""
    for lock in list(_held):
        with suppress(OSError):
            lock.release(shared=True)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
