"""Run other processes: each ends in time, and no process that it started outlives it."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

# A test may have replaced `subprocess.Popen` by something that starts no process, and has the id of none.
from subprocess import Popen
from tempfile import TemporaryFile
from typing import IO, Any

from .interpreter.clocks import perf_counter, sleep
from .model.estimate import Seconds

# How long processes get to end after they were asked to.
ENDING_S: Seconds = 3.0
# The pauses between two looks whether a process has ended become longer: most processes here end at once or run long.
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.001, 0.05
# What a CI system and a terminal that is closed send to end a process. Windows has no SIGHUP.
ENDINGS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
# Set by GitHub: each process of pytest would add its table to the summary of the job.
STEP_SUMMARY = "GITHUB_STEP_SUMMARY"
# What pytest-xdist sets for a worker, which projects name databases and files after.
OF_WORKER = ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_XDIST_TESTRUNUID")
# Where Linux lists the processes.
PROC = Path("/proc")


class TimeOverError(Exception):
    """The time for a process was over."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The exit status of a process and what it printed. `errors` is empty if they are in `output`."""

    status: int
    output: bytes
    errors: bytes

    def end(self, characters: int) -> str:
        """Return the end of the output."""
        return self.output.decode(errors="replace").strip()[-characters:]


def environment_of_pytest(**changed: str) -> dict[str, str]:
    """Return the environment for another process of pytest: no worker, and adding nothing to the summary of the job.

    Tests that look at the CI system find what they find in this process.
    """
    return {name: value for name, value in os.environ.items() if name not in (STEP_SUMMARY, *OF_WORKER)} | changed


def run(
    command: Sequence[str] | str,
    place: Path,
    environment: Mapping[str, str] | None = None,
    limit_s: Seconds | None = None,
    *,
    errors_apart: bool = False,
) -> Ended:
    """Run a command in the directory `place` until its process ends. A text is a command of a shell.

    Raises TimeOverError if it does not end within `limit_s`, and OSError if it cannot be started.
    """
    # Into files: a pipe that nobody reads fills, and its end comes with the last process that has it, such as a server
    # that the command has left behind.
    with TemporaryFile() as output, TemporaryFile() as errors, endings_interrupt():
        streams = {"stdout": output, "stderr": errors if errors_apart else subprocess.STDOUT}
        with started(command, place, environment, **streams) as process:
            if not _waited(lambda: process.poll() is not None, limit_s):
                raise TimeOverError
        return Ended(process.returncode, _content(output), _content(errors))


def _content(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read()


@contextmanager
def started(
    command: Sequence[str] | str,
    place: Path | None = None,
    environment: Mapping[str, str] | None = None,
    **streams: Any,
) -> Iterator[Popen[bytes]]:
    """Run a command in the block, after which its process and all that it started are ended.

    `streams` are those of Popen; there is no input unless they say so.
    """
    process = None
    try:
        # In a session of its own: Ctrl-C reaches only this process, which then ends that process with all its children.
        # An interrupt while it starts would leave it behind.
        with uninterrupted():
            process = Popen(  # noqa: S603 - a shell for the user's own command line only
                command,
                shell=isinstance(command, str),
                cwd=place,
                env=environment,
                start_new_session=True,
                **{"stdin": subprocess.DEVNULL, **streams},
            )
        yield process
    finally:
        if process is not None:
            _close(process)


def _close(process: Popen[bytes]) -> None:
    """End a process and its children, and close its pipes."""
    with uninterrupted():
        _end(process)
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                with suppress(OSError):  # what was not written yet cannot be written any more
                    pipe.close()


def _end(process: Popen[bytes]) -> None:
    """End a process and its children, also those that it left behind."""
    for name in ("SIGTERM", "SIGKILL"):
        if not _signalled(process, name) or _waited(lambda: not _is_there(process), ENDING_S):
            break
    process.wait()


def _signalled(process: Popen[bytes], name: str) -> bool:
    """Send a signal to a process and its children. Returns whether there was any."""
    if not hasattr(os, "killpg"):
        process.kill()
        return process.poll() is None
    try:
        os.killpg(process.pid, getattr(signal, name))
    except (ProcessLookupError, PermissionError):  # PermissionError: macOS, for processes that have ended
        return False
    return True


def _is_there(process: Popen[bytes]) -> bool:
    """Whether the process or a child of it runs."""
    if process.poll() is None or not hasattr(os, "killpg"):
        return process.returncode is None
    try:
        os.killpg(process.pid, 0)
    except (ProcessLookupError, PermissionError):
        return False
    # In many containers nobody waits for orphans: they stay in the group for good after they have ended.
    processes = list(PROC.glob("[0-9]*/stat"))
    return not processes or any(_runs(stat, process.pid) for stat in processes)


def _runs(stat: Path, group: int) -> bool:
    """Whether Linux says in `stat` that a process is of the group, and has not ended."""
    try:
        state, _parent, own_group, *_ = stat.read_text(errors="replace").rpartition(")")[2].split()
    except (OSError, ValueError):  # it is gone meanwhile
        return False
    return int(own_group) == group and state not in ("Z", "X")


def _waited(ended: Callable[[], bool], limit_s: Seconds | None) -> bool:
    """Wait until `ended`, for at most `limit_s` of a clock that no test can stop. Returns whether it ended."""
    until_s = float("inf") if limit_s is None else perf_counter() + limit_s
    pause_s = SHORTEST_PAUSE_S
    while not ended():
        if perf_counter() > until_s:
            return False
        sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
    return True


# ---- signals ------------------------------------------------------------------------------------------------------


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Put off Ctrl-C, and what else ends this process, to the end of the block, which cleans up."""
    late: list[int] = []
    try:
        with _handled((signal.SIGINT, *ENDINGS), lambda number, frame: late.append(number)):
            yield
    finally:
        for number in late[:1]:
            signal.raise_signal(number)


@contextmanager
def endings_interrupt() -> Iterator[None]:
    """Clean up when a CI system or the terminal ends this process in the block, as after Ctrl-C."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    # `nohup` ignores SIGHUP; a program with a handler of its own knows what to do.
    with _handled([number for number in ENDINGS if signal.getsignal(number) is signal.SIG_DFL], interrupt):
        yield


@contextmanager
def _handled(numbers: Sequence[int], handler: Callable[[int, Any], object]) -> Iterator[None]:
    """Handle signals in the block. They reach the main thread only."""
    if threading.current_thread() is not threading.main_thread():
        numbers = ()
    # A handler that is not Python's, None, could not be put back. What is ignored stays so, also for processes.
    known = [number for number in numbers if signal.getsignal(number) not in (None, signal.SIG_IGN)]
    before = {number: signal.signal(number, handler) for number in known}
    try:
        yield
    finally:
        for number, usual in before.items():
            signal.signal(number, usual)
