"""A command ends with all that it started."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from pytest_mwbudget.interpreter.clocks import perf_counter
from pytest_mwbudget.versus import commands
from pytest_mwbudget.versus.commands import TimeOverError, run_to_the_end

pytestmark = [pytest.mark.once, pytest.mark.skipif(sys.platform == "win32", reason="no groups of processes")]

# Starts a server that has its output, writes the server's id to a file, and ends or stays. A shell starts sooner than
# Python, so a short time limit is enough.
STARTS = "sleep 60 & echo $! >id; echo started; sleep {stays}"


@pytest.fixture(autouse=True)
def short_wait_for_zombies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait shortly for processes that have ended: as a zombie, the server still belongs to its group."""
    monkeypatch.setattr(commands, "ENDING_S", 0.5)


def ended(place: Path) -> bool:
    """Whether the server has ended. Where nobody waits for orphans, it stays as a zombie."""
    number = int((place / "id").read_text())
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def test_what_a_process_left_behind_is_ended_and_its_output_is_not_waited_for(tmp_path: Path) -> None:
    begin = perf_counter()
    status, output = run_to_the_end(["sh", "-c", STARTS.format(stays=0)], tmp_path, limit_s=50)
    assert (status, output) == (0, "started")
    assert perf_counter() - begin < 40
    assert ended(tmp_path)


def test_after_the_time_all_are_ended(tmp_path: Path) -> None:
    with pytest.raises(TimeOverError):
        run_to_the_end(["sh", "-c", STARTS.format(stays=60)], tmp_path, limit_s=1)
    assert ended(tmp_path)


def test_a_text_is_a_command_of_a_shell(tmp_path: Path) -> None:
    assert run_to_the_end("echo one && exit 3", tmp_path) == (3, "one")
