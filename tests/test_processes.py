"""A process ends in time, with all that it started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from freezegun import freeze_time

from pytest_mwbudget import processes
from pytest_mwbudget.interpreter.clocks import perf_counter, sleep
from pytest_mwbudget.processes import TimeOverError, endings_interrupt, run, started, uninterrupted

pytestmark = [pytest.mark.once, pytest.mark.skipif(sys.platform == "win32", reason="no groups of processes")]

# Starts a server that has its output, writes the server's id to a file, and ends or stays. A shell starts sooner than
# Python, so a short time limit is enough.
STARTS = "sleep 60 & echo $! >id; echo started; echo failed >&2; sleep {stays}"


@pytest.fixture(autouse=True)
def usual_signals() -> Iterator[None]:
    """Heed signals that `nohup` and background jobs of a shell ignore: the tests may run in such a job."""
    usual = {signal.SIGINT: signal.default_int_handler} | dict.fromkeys(processes.ENDINGS, signal.SIG_DFL)
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def ended(place: Path) -> bool:
    """Whether the server has ended. Where nobody waits for orphans, it stays as a zombie."""
    number = int((place / "id").read_text())
    try:
        os.kill(number, 0)
        stat = Path(f"/proc/{number}/stat").read_text()
    except ProcessLookupError:
        return True
    except FileNotFoundError:  # its parent has read its status meanwhile, unless this system has no such files
        return Path("/proc").exists()
    return stat.rpartition(")")[2].split()[0] == "Z"


def written(place: Path) -> bool:
    """Whether the file with the server's id is there."""
    return (place / "id").exists() and bool((place / "id").read_text())


def out_of_time(command: list[str] | str, place: Path) -> None:
    """Run a command that writes an id until its time is over. On a busy machine it may need more time for that."""
    for limit_s in (0.3, 3, 30):
        with pytest.raises(TimeOverError):
            run(command, place, limit_s=limit_s)
        if written(place):
            return


@contextmanager
def sent(number: int, when: Callable[[], bool]) -> Iterator[None]:
    """Send this process a signal as soon as something is true."""

    def send() -> None:
        while not when():
            sleep(0.01)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        thread.join()


@pytest.mark.parametrize("apart", [False, True])
def test_what_a_process_left_behind_is_ended_and_its_output_is_not_waited_for(tmp_path: Path, apart: bool) -> None:
    begin = perf_counter()
    finished = run(["sh", "-c", STARTS.format(stays=0)], tmp_path, limit_s=50, errors_apart=apart)
    assert finished.status == 0
    assert (finished.output, finished.errors) == ((b"started\n", b"failed\n") if apart else (b"started\nfailed\n", b""))
    assert perf_counter() - begin < 40
    assert ended(tmp_path)


def test_after_the_time_all_are_ended_also_if_a_test_has_stopped_the_clocks(tmp_path: Path) -> None:
    with freeze_time():
        out_of_time(["sh", "-c", STARTS.format(stays=60)], tmp_path)
    assert ended(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGINT, *processes.ENDINGS])
def test_an_interrupt_ends_all(tmp_path: Path, number: int) -> None:
    before = signal.getsignal(number)
    with sent(number, lambda: written(tmp_path)), pytest.raises(KeyboardInterrupt):
        run(["sh", "-c", STARTS.format(stays=60)], tmp_path)
    assert ended(tmp_path)
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("number", [signal.SIGINT, *processes.ENDINGS])
def test_an_interrupt_while_a_process_starts_ends_it_too(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    begun: list[subprocess.Popen[bytes]] = []

    class Interrupted(subprocess.Popen[bytes]):
        def __init__(self, *arguments: object, **options: object) -> None:
            super().__init__(*arguments, **options)  # type: ignore[call-overload]
            begun.append(self)
            signal.raise_signal(number)

    monkeypatch.setattr(processes, "Popen", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(["sleep", "60"], Path.cwd())
    assert begun[0].returncode is not None


def test_a_process_is_ended_where_the_block_fails(tmp_path: Path) -> None:
    with suppress(LookupError), started(STARTS.format(stays=60), tmp_path, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"started\n"
        raise LookupError
    assert (process.returncode, process.stdout.closed, ended(tmp_path)) == (-signal.SIGTERM, True, True)


def test_a_process_that_does_not_heed_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "ENDING_S", 0.05)
    out_of_time("trap '' TERM; echo $$ >id; while :; do sleep 0.1; done", tmp_path)
    assert ended(tmp_path)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the list of processes is Linux's")
@pytest.mark.parametrize(("state", "ending_s", "waits"), [("Z", 5.0, False), ("S", 0.05, True)])
def test_processes_that_nobody_waits_for_are_not_waited_for_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, ending_s: float, waits: bool
) -> None:
    """As in a container whose first process waits for no orphans: they stay in the group."""
    monkeypatch.setattr(processes, "ENDING_S", ending_s)
    monkeypatch.setattr(processes, "PROC", tmp_path)
    monkeypatch.setattr(os, "killpg", lambda group, number: None)
    with started("exit 0") as process:
        process.wait()
        (tmp_path / "1").mkdir()
        (tmp_path / "1/stat").write_text(f"1 (a) b)) {state} 1 {process.pid} {process.pid} 0 -1")
        begin = perf_counter()
    assert (perf_counter() - begin > ending_s) == waits


def test_output_of_any_length_is_taken_and_its_end_is_text(tmp_path: Path) -> None:
    assert len(run("head -c 300000 /dev/zero", tmp_path).output) == 300_000
    assert run("printf '1234\\377\\n'", tmp_path).end(2) == "4\N{REPLACEMENT CHARACTER}"


def test_a_text_is_a_command_of_a_shell_with_its_environment_and_no_input(tmp_path: Path) -> None:
    finished = run("cat; echo $WORD && exit 3", tmp_path, {"WORD": "one"})
    assert (finished.status, finished.output) == (3, b"one\n")


def test_a_command_that_does_not_exist_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        run(["no-such-command"], tmp_path)


# ---- signals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fails", [False, True])
def test_an_interrupt_while_something_is_cleaned_up_comes_afterwards(fails: bool) -> None:
    steps = []
    try:
        with uninterrupted():
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            steps.append("cleaned up")
            if fails:
                raise OSError
    except KeyboardInterrupt:
        steps.append("interrupted")
    assert steps == ["cleaned up", "interrupted"]


def test_signals_that_somebody_handles_or_ignores_stay_his() -> None:
    seen = []
    signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    with endings_interrupt():
        signal.raise_signal(signal.SIGTERM)
    assert seen == [signal.SIGTERM]


def test_threads_other_than_the_main_one_run_processes_too(tmp_path: Path) -> None:
    outputs: list[bytes] = []
    thread = threading.Thread(target=lambda: outputs.append(run("echo one", tmp_path).output))
    thread.start()
    thread.join()
    assert outputs == [b"one\n"]


def test_the_environment_of_pytest_is_of_no_worker_and_without_the_summary_of_the_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in tuple(os.environ):
        if name.startswith("PYTEST_XDIST_"):
            monkeypatch.delenv(name)
    monkeypatch.delenv(processes.STEP_SUMMARY, raising=False)
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    expected = dict(os.environ)
    monkeypatch.setenv(processes.STEP_SUMMARY, "summary.md")
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")
    assert processes.environment_of_pytest(ADDED="2") == {**expected, "ADDED": "2"}


def test_a_test_may_have_put_something_in_the_place_of_popen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", None)
    assert run([sys.executable, "-c", "print(1)"], tmp_path).output == b"1\n"
