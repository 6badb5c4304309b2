"""Notice the signals with which a user, or a plugin such as pytest-timeout, ends a test."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

# Those that come while the main thread waits for a client, and those that come in a task of the main thread: there
# SIGINT is the loop's, which takes its handler back by identity when it ends. A task that outlives it would put the
# handler of an ended loop back.
ENDING, IN_A_TASK = ("SIGINT", "SIGALRM"), ("SIGALRM",)


@contextmanager
def noting_signals(note: Callable[[str], None], names: Sequence[str] = ENDING) -> Iterator[None]:
    """Call `note` with the name of each of these signals that comes in the block, before its handler runs.

    Does nothing outside the main thread, where no signal comes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with ExitStack() as undo:
        for number in (getattr(signal, name) for name in names if hasattr(signal, name)):
            before = signal.getsignal(number)
            if callable(before):
                noting = _Noting(number.name, note, before)
                signal.signal(number, noting)
                undo.callback(noting.remove, number)
        yield


@dataclass(eq=False, slots=True)
class _Noting:
    """A handler that notes a signal and passes it on."""

    name: str
    note: Callable[[str], None]
    passed_on: Callable[..., Any]

    def __call__(self, number: int, frame: FrameType | None) -> None:
        __tracebackhide__ = True
        self.note(self.name)
        self.passed_on(number, frame)

    def remove(self, number: signal.Signals) -> None:
        """Put the handler before this handler back, wherever this handler is: blocks of tasks end in any order."""
        current: object = signal.getsignal(number)
        if current is self:
            signal.signal(number, self.passed_on)
        while isinstance(current, _Noting):  # else the test has set its own
            if current.passed_on is self:
                current.passed_on = self.passed_on
            current = current.passed_on
