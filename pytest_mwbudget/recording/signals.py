"""Notice the signals with which a user, or a plugin such as pytest-timeout, ends a test."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType

ENDING = ("SIGINT", "SIGALRM")


@contextmanager
def noting_signals(note: Callable[[str], None]) -> Iterator[None]:
    """Call `note` with the name of each signal that comes in the block, before its handler runs.

    Does nothing outside the main thread, where no signal comes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with ExitStack() as undo:
        for name in ENDING:
            _note_signal(name, note, undo)
        yield


def _note_signal(name: str, note: Callable[[str], None], undo: ExitStack) -> None:
    number = getattr(signal, name, None)
    before = signal.getsignal(number) if number is not None else None
    if number is None or not callable(before):
        return
    passed_on = before

    def handler(number: int, frame: FrameType | None) -> None:
        __tracebackhide__ = True
        note(name)
        passed_on(number, frame)

    def restore() -> None:
        if signal.getsignal(number) is handler:  # else the test has set its own
            signal.signal(number, before)

    signal.signal(number, handler)
    undo.callback(restore)
