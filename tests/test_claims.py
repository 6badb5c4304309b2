"""Claims of several processes: each is granted once, sums are those of all, and nothing fails without the folder."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path

import pytest

from pytest_mwbudget.session import claims
from pytest_mwbudget.session.claims import Claims, Sums


def test_a_process_is_granted_a_claim_once() -> None:
    own = Claims()
    assert [own.claim(key) for key in ("a", "b", "a")] == [True, True, False]


def test_another_process_gets_what_is_not_taken(tmp_path: Path) -> None:
    one, other = Claims(tmp_path), Claims(tmp_path)
    assert one.claim("GET /ü \ud800")
    assert not other.claim("GET /ü \ud800")
    assert other.claim("GET /b")
    assert not one.claim("GET /b")


def claimed(folder: Path, keys: list[str]) -> list[str]:
    own = Claims(folder)
    granted = [key for key in keys if own.claim(key)]
    own.add(Sums(0.25, 0.0, len(granted), 1))
    return granted


def test_processes_at_the_same_time_share_the_claims_among_themselves(tmp_path: Path) -> None:
    keys = [f"GET /{i}" for i in range(300)]
    with multiprocessing.get_context("spawn").Pool(3, maxtasksperchild=1) as pool:
        parts = pool.starmap(claimed, [(tmp_path, keys)] * 3)
    assert sorted(key for part in parts for key in part) == sorted(keys)
    sums = Claims(tmp_path).sums()
    assert (sums.requests, sums.tests, sums.seconds) == (300, 3, 0.75)


def test_the_sums_are_those_of_all_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = Claims(tmp_path), Claims(tmp_path)
    one.add(Sums(1.5, 1.0, 2))
    assert one.sums() == Sums(1.5, 1.0, 2, 0)
    monkeypatch.setattr(claims.os, "getpid", lambda: -1)
    other.add(Sums(tests=3))
    other.add(Sums(0.5))
    assert other.sums() == Sums(2.0, 1.0, 2, 3)


def test_a_file_that_another_process_has_broken_is_not_counted(tmp_path: Path) -> None:
    own = Claims(tmp_path)
    own.add(Sums(tests=1))
    (tmp_path / "sums-x").write_text("{")
    assert own.sums() == Sums(tests=1)
    (tmp_path / "sums-x").write_text(json.dumps({"tests": 4}))
    assert own.sums() == Sums(tests=5)


def test_without_the_folder_a_process_is_on_its_own(tmp_path: Path) -> None:
    own = Claims(tmp_path / "gone")
    assert own.claim("a")
    assert not own.claim("a")
    own.add(Sums(tests=1))
    assert own.sums() == Sums(tests=1)
