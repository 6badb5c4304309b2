"""Cores of the server and the load generator: chosen apart, pinned for a while, given back."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from pytest_mwbudget.load import processor
from pytest_mwbudget.load.processor import Cores, cores, pinned, siblings

linux = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="threads cannot be pinned here")


@linux
@pytest.mark.parametrize(
    ("allowed", "twins", "expected"),
    [
        ({0, 1}, {0: "0", 1: "1"}, Cores(0, 1)),
        ({0, 1}, {0: "0-1"}, Cores(0, 1)),  # better than one core
        ({0, 1, 2, 3}, {0: "0,3", 3: "0,3"}, Cores(0, 2)),
        ({5}, {}, Cores(alone=True)),
    ],
)
def test_the_generator_has_another_physical_core_if_there_is_one(
    allowed: set[int], twins: dict[int, str], expected: Cores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for core, listed in twins.items():
        (tmp_path / str(core)).write_text(f"{listed}\n")
    monkeypatch.setattr(processor, "SIBLINGS", f"{tmp_path}/{{}}")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: allowed)
    assert cores() == expected


def test_a_core_whose_siblings_are_unknown_has_itself_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "SIBLINGS", "/nowhere/{}")
    assert siblings(3) == {3}


@linux
def test_the_thread_and_those_it_began_are_given_back() -> None:
    before, stop, seen = os.sched_getaffinity(0), threading.Event(), []

    def wait() -> None:
        seen.append(os.sched_getaffinity(0))
        stop.wait()
        seen.append(os.sched_getaffinity(0))

    with pinned(min(before)):
        assert os.sched_getaffinity(0) == {min(before)}
        thread = threading.Thread(target=wait)
        thread.start()
        while not seen:
            pass
    assert os.sched_getaffinity(0) == before
    stop.set()
    thread.join()
    assert seen == [{min(before)}, before]
    with pinned(None):
        assert os.sched_getaffinity(0) == before


@linux
def test_where_the_system_forbids_it_the_thread_stays_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(pid: int, cores: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setaffinity", forbidden)
    before = os.sched_getaffinity(0)
    with pinned(min(before)):
        assert os.sched_getaffinity(0) == before
