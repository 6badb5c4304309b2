"""Processes take turns at measuring: what waits, for how long, and what happens if the wait times out."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

import pytest

import pytest_mwbudget.session.requests.client
import pytest_mwbudget.session.turns
from pytest_mwbudget.session.turns import POLL_S, WAIT_AGAIN_S, WAIT_S, Turns
from pytest_mwbudget.storage.file_lock import FileLock

from .apps import FAST, LEAN, SPIN, Scheduled, run_inside
from .projects import QUICK
from .readings import readings

# ---- who waits --------------------------------------------------------------------------------------------------


def test_one_at_a_time(tmp_path: Path) -> None:
    first = Turns(folder=tmp_path)
    second = Turns(folder=tmp_path, pause=lambda s: first.end())
    with first.taken() as turn:
        assert (turn.crowded, turn.note) == (None, None)
        with second.taken() as turn:
            assert (turn.crowded, turn.note) == (None, None)
            assert first.lock is None


def test_who_has_waited_in_vain_knows_it_and_waits_less_the_next_time(tmp_path: Path) -> None:
    pauses: list[float] = []
    waits: list[bool] = []
    first, second = Turns(folder=tmp_path), Turns(folder=tmp_path, pause=pauses.append, on_wait=waits.append)
    with first.taken():
        with second.taken() as turn:
            assert turn.crowded is not None
            assert f"the {WAIT_S:g} s that this one waited" in turn.crowded
        assert sum(pauses) == pytest.approx(WAIT_S, abs=2 * POLL_S)
        assert waits == [True, False]
        pauses.clear()
        with second.taken() as turn:
            assert turn.crowded is not None
        assert sum(pauses) == pytest.approx(WAIT_AGAIN_S, abs=2 * POLL_S)
    with second.taken() as turn:
        assert turn.crowded is None
    assert second.patience_s == WAIT_S


def test_who_stands_in_line_is_next(tmp_path: Path) -> None:
    """Serve a waiting process before the one that has just ended, which asks again before the waiter polls."""
    first, third = Turns(folder=tmp_path), Turns(folder=tmp_path, pause=lambda s: None)
    crowded = []

    def first_ends_and_asks_again(seconds: float) -> None:
        first.end()
        with third.taken(0) as turn:
            crowded.append(turn.crowded)

    second = Turns(folder=tmp_path, pause=first_ends_and_asks_again)
    with first.taken(), second.taken() as turn:
        assert turn.crowded is None
    assert crowded[0] is not None


def test_a_measurement_in_a_test_that_has_its_turn_does_not_wait_again(tmp_path: Path) -> None:
    turns = Turns(folder=tmp_path)
    with turns.taken() as whole, turns.measuring() as turn:
        assert turn is whole
    with turns.measuring() as turn:
        assert turns.lock is not None
        assert turn.crowded is None
    assert turns.lock is None


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, ValueError])
def test_a_turn_ends_however_it_ends(error: type[BaseException], tmp_path: Path) -> None:
    with pytest.raises(error), Turns(folder=tmp_path).taken():
        raise error
    with Turns(folder=tmp_path).taken(0) as turn:
        assert turn.crowded is None


def test_nobody_is_left_in_line_by_who_is_interrupted_there(tmp_path: Path) -> None:
    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    first = Turns(folder=tmp_path)
    with first.taken(), pytest.raises(KeyboardInterrupt), Turns(folder=tmp_path, pause=interrupted).taken():
        pass
    with Turns(folder=tmp_path).taken(0) as turn:
        assert turn.crowded is None


@pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX's")
def test_a_process_that_is_killed_leaves_nothing(tmp_path: Path) -> None:
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom pytest_mwbudget.session.turns import Turns\n"
        "with Turns(folder=Path(sys.argv[1])).taken():\n    print(flush=True)\n    time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with Turns(folder=tmp_path).taken(0) as turn:
            assert turn.crowded is not None
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    with Turns(folder=tmp_path).taken(0) as turn:
        assert turn.crowded is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_child_keeps_no_turn_of_a_process_that_is_killed(tmp_path: Path) -> None:
    code = (
        "import os, sys, time\nfrom pathlib import Path\nfrom pytest_mwbudget.session.turns import Turns\n"
        "with Turns(folder=Path(sys.argv[1])).taken():\n"
        "    if child := os.fork():\n        print(child, flush=True)\n    time.sleep(60)\n    os._exit(0)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        try:
            with Turns(folder=tmp_path).taken(10) as turn:  # The child may not have run yet.
                assert turn.crowded is None
        finally:
            os.kill(child, signal.SIGKILL)


@pytest.mark.skipif(sys.platform == "win32", reason="links need a right there")
def test_a_link_in_the_place_of_a_lock_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match="lock"):
        FileLock(tmp_path / "lock").acquire()
    assert not (tmp_path / "other").exists()


def test_a_lock_that_is_not_held_can_be_released(tmp_path: Path) -> None:
    one, other = FileLock(tmp_path / "lock"), FileLock(tmp_path / "lock")
    assert one.acquire()
    assert not other.acquire()
    other.release()
    assert not other.acquire()
    one.release()
    one.release()
    assert other.acquire()
    other.release()


def test_where_there_can_be_no_lock_is_a_note(tmp_path: Path) -> None:
    no_folder = tmp_path / "file"
    no_folder.touch()
    with Turns(folder=no_folder).taken() as turn:
        assert turn.note is not None
        assert turn.note.startswith("Nothing keeps other processes from measuring at the same time: ")
        assert turn.crowded is None
    with Turns(folder=no_folder, alone=False).taken() as turn:
        assert turn.crowded is not None
        assert "set TMPDIR to a directory that can be written" in turn.crowded


# ---- in a run ---------------------------------------------------------------------------------------------------

CONFTEST = (
    SPIN
    + """
import os
from pathlib import Path
from time import monotonic_ns

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware

import pytest_mwbudget.session.requests.client

measure = pytest_mwbudget.session.requests.client.measure


async def noted(*args):
    apart = args[3].turns

    # From when it has its turn to when it is done.
    from contextlib import contextmanager
    from dataclasses import replace

    @contextmanager
    def turns():
        with apart() as turn:
            begin = monotonic_ns()
            yield turn
            with Path(f"spans-{os.getpid()}.txt").open("a") as file:
                print(begin, monotonic_ns(), file=file)

    return await measure(*args[:3], replace(args[3], turns=turns), *args[4:])


pytest_mwbudget.session.requests.client.measure = noted


@pytest.fixture
def mw_budget_app():
    return Starlette(middleware=[Middleware(Spin, us=100)])
"""
)
TEST = """
import pytest

@pytest.mark.parametrize("number", range({tests}))
@pytest.mark.mw_budget({keywords}, expect_status=404)
def test_it({fixture}, number, request):
    request.getfixturevalue("mw_budget").get("/")
"""
WARNINGS_SHOWN = ["-W", "always::pytest_mwbudget.errors.BudgetWarning"]


@pytest.fixture
def project(
    pytester: pytest.Pytester, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> pytest.Pytester:
    """A directory with a layer of 100 µs, and a separate directory for locks."""
    folder = str(tmp_path_factory.mktemp("locks"))
    monkeypatch.setattr(tempfile, "tempdir", folder)
    monkeypatch.setenv("TMPDIR", folder)
    pytester.makeconftest(CONFTEST)
    return pytester


def spans(project: pytest.Pytester) -> list[tuple[int, int]]:
    """Return when each measurement began and ended, of all processes, in order."""
    lines = [line for path in project.path.glob("spans-*.txt") for line in path.read_text().splitlines()]
    return sorted((int(begin), int(end)) for begin, end in map(str.split, lines))


@pytest.mark.live
@pytest.mark.once
def test_workers_of_xdist_take_turns(project: pytest.Pytester) -> None:
    """Take turns whether a test requests the fixture by its name or at run time."""
    project.makeconftest(CONFTEST + QUICK)
    project.makepyfile(
        test_by_name=TEST.format(keywords="us=10_000", tests=3, fixture="mw_budget"),
        test_run_time=TEST.format(keywords="us=10_000", tests=3, fixture="tmp_path"),
    )
    result = project.runpytest_subprocess("-n", "2", "--dist=each", *LEAN, "--mw-budget")
    result.assert_outcomes(passed=12)
    assert len(list(project.path.glob("spans-*.txt"))) == 2
    assert len(spans(project)) == 12
    assert all(end <= begin for (_, end), (begin, _) in pairwise(spans(project)))


def run(project: pytest.Pytester, keywords: str, *arguments: str, tests: int = 1) -> pytest.RunResult:
    project.makepyfile(TEST.format(keywords=keywords, tests=tests, fixture="mw_budget"))
    options = [*WARNINGS_SHOWN, "--mw-budget", *arguments]
    return run_inside(project, *options)


@readings
def test_who_has_waited_in_vain_fails_nobody_and_passes_what_is_kept(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = {"kept": "us=10_000", "counted": "tasks=0"}
    broken = {"broken": "layers={'Spin': 10}, total_us=10, max_time=0.4"}
    for name, keywords in (kept | broken).items():
        project.makepyfile(**{f"test_{name}": TEST.format(keywords=keywords, tests=1, fixture="mw_budget")})
    monkeypatch.setattr(pytest_mwbudget.session.turns, "WAIT_S", 0.1)
    monkeypatch.setattr(pytest_mwbudget.session.turns, "WAIT_AGAIN_S", 0.1)
    imprecisely = Scheduled(**FAST | {"precision_time_s": 0.01, "parts_time_s": 0.01})
    options = [*WARNINGS_SHOWN, "--mw-budget", "--mw-budget-json=mw.json"]
    with Turns().taken():
        result = run_inside(project, *options, plugins=[imprecisely])
    result.assert_outcomes(passed=3, warnings=1)
    measurements = json.loads((project.path / "mw.json").read_text(encoding="utf-8"))["measurements"]
    by_file = {measurement["nodeid"].partition(".py")[0]: measurement for measurement in measurements}
    verdicts = {name: measurement["verdict"] for name, measurement in by_file.items()}
    assert verdicts == {"test_kept": "pass", "test_counted": "pass", "test_broken": "undecided"}
    (of_spin,) = [layer["reason"] for layer in by_file["test_broken"]["layers"] if layer["name"] == "Spin"]
    for reason in (of_spin, by_file["test_broken"]["total_reason"]):
        assert "another process went on measuring for the 0.1 s that this one waited" in reason


def test_what_needs_no_clock_does_not_wait(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    def waited(self: Turns, wait_s: float) -> None:
        raise AssertionError("it waited")

    monkeypatch.setattr(Turns, "_begun", waited)
    run(project, "tasks=0").assert_outcomes(passed=1)


@pytest.mark.live
@pytest.mark.once
@readings
def test_the_wait_is_outside_of_the_time_limit_of_a_test(project: pytest.Pytester) -> None:
    holder = (
        "import time\nfrom pytest_mwbudget.session.turns import Turns\n"
        "with Turns().taken():\n    print(flush=True)\n    time.sleep(6)\n"
    )
    with subprocess.Popen([sys.executable, "-c", holder], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        run(project, "us=10_000", "-p", "timeout", "-o", "timeout=5").assert_outcomes(passed=1)
        assert process.wait() == 0


def test_a_run_that_cannot_lock_says_so_and_goes_on(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_only(lock: FileLock) -> bool:
        raise PermissionError(errno.EROFS, "Read-only file system", str(lock.path))

    monkeypatch.setattr(FileLock, "acquire", read_only)
    result = run(project, "layers={'Spin': 10}", "--mw-budget-flamegraph=never")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*note: Nothing keeps other processes from measuring at the same time: *"])


def test_a_test_that_a_marker_skips_does_not_wait(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    begun = Turns._begun
    monkeypatch.setattr(Turns, "_begun", lambda self, wait_s: waits.append(wait_s) or begun(self, wait_s))
    project.makepyfile(
        """
        import pytest

        @pytest.mark.skip
        def test_skip(mw_budget):
            pass

        @pytest.mark.skipif(True, reason="not here")
        def test_skipif(mw_budget):
            pass

        @pytest.mark.skipif(condition=True, reason="not here")
        def test_condition(mw_budget):
            pass

        @pytest.mark.skipif(False, reason="not here")
        def test_waits(mw_budget):
            assert False
        """
    )
    run_inside(project, "--mw-budget").assert_outcomes(skipped=3, failed=1)
    assert len(waits) == 1


def test_a_terminal_says_that_a_test_waits(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_terminal = """

def pytest_sessionstart(session):
    session.config.pluginmanager.getplugin("terminalreporter").isatty = lambda: True
"""
    conftest = project.path / "conftest.py"
    conftest.write_text(conftest.read_text() + on_a_terminal)
    monkeypatch.setattr(pytest_mwbudget.session.turns, "SILENT_S", 0.05)
    with Turns().taken():
        monkeypatch.setattr(pytest_mwbudget.session.turns, "WAIT_S", 0.15)
        result = run(project, "us=10_000", "--mw-budget-max-time=0.5")
    assert "waiting for another process that measures" in result.stdout.str()


@pytest.mark.live
@pytest.mark.once
def test_a_log_says_once_that_tests_wait(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pytest_mwbudget.session.turns, "SILENT_S", 0.1)
    monkeypatch.setattr(pytest_mwbudget.session.turns, "WAIT_S", 0.3)
    monkeypatch.setattr(pytest_mwbudget.session.turns, "WAIT_AGAIN_S", 0.3)
    with Turns().taken():
        result = run(project, "us=10_000", "--mw-budget-max-time=0.5", tests=2)
    result.assert_outcomes(passed=2)
    assert result.outlines.count("waiting for another process that measures") == 1
