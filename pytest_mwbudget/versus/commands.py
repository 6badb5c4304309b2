"""Run a command, and leave no process of it behind."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile

from ..interpreter.clocks import perf_counter, sleep
from ..model.estimate import Seconds

SHOWN_CHARACTERS = 4000
# How long a process gets to end after it was asked to.
ENDING_S: Seconds = 3.0
PAUSE_S: Seconds = 0.02
# What a CI system and a terminal that is closed send to end a process. Windows has no SIGHUP.
ENDINGS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))


class TimeOverError(Exception):
    """The time for a process was over."""


def run_to_the_end(
    command: Sequence[str] | str,
    place: Path,
    environment: Mapping[str, str] | None = None,
    limit_s: Seconds | None = None,
) -> tuple[int, str]:
    """Return the exit status of a command and the end of its output. No process of it outlives this function.

    A command that is a text is one of a shell. Raises TimeOverError if it does not end within `limit_s`.
    """
    # Into a file: the end of a pipe comes with the end of the last process that has it, such as a server.
    with TemporaryFile() as output:
        # In a session of its own: Ctrl-C reaches only this process, which then ends that one with all its children.
        process = subprocess.Popen(  # noqa: S603 - a shell for the user's own command line only
            command,
            shell=isinstance(command, str),
            cwd=place,
            env=None if environment is None else dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise TimeOverError from None
        finally:
            with uninterrupted():
                _end(process)
        output.seek(0)
        return status, output.read().decode(errors="replace").rstrip()[-SHOWN_CHARACTERS:]


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process and its children, also those that it left behind."""
    for how in ("SIGTERM", "SIGKILL"):
        if not _told_to_end(process, how):
            break
        until = perf_counter() + ENDING_S
        while _is_there(process) and perf_counter() < until:
            sleep(PAUSE_S)
    process.wait()


def _told_to_end(process: subprocess.Popen[bytes], how: str) -> bool:
    """Send a signal to a process and its children. Returns whether there was any."""
    if not hasattr(os, "killpg"):
        process.kill()
        return process.poll() is None
    try:
        os.killpg(process.pid, getattr(signal, how))
    except (ProcessLookupError, PermissionError):  # PermissionError: macOS, for processes that have ended
        return False
    return True


def _is_there(process: subprocess.Popen[bytes]) -> bool:
    if process.poll() is None or not hasattr(os, "killpg"):
        return process.returncode is None
    try:
        os.killpg(process.pid, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Let neither Ctrl-C nor what else ends this process in the block, which cleans up."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, *ENDINGS)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
