"""The mechanics of `bench/releases.py`; no release is installed."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from .conftest import needs

pytestmark = pytest.mark.bench

needs("itsdangerous", reason="starlette's sessions, which the measured app has, need it")


@pytest.fixture
def releases(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(Path(__file__).parent.parent / "bench")
    return importlib.import_module("releases")


def counts(**changed: int | None) -> dict[str, Any]:
    return {"bytecodes": 431, "calls": 36, "py_calls": 9, "objects": 65, "tasks": 0, "us": [8.5, 8.0, 9.0], **changed}


def reading(release: str, **layer: int | None) -> dict[str, Any]:
    rows = {"CORSMiddleware": counts(**layer), "(total)": counts()}
    return {"release": release, "python": "3.13.0", "anyio": "4.0", "rows": rows}


def test_the_tables_have_a_line_for_each_release(releases: ModuleType) -> None:
    bytecodes, times, _ = releases.report([reading("1.0"), reading("1.1", bytecodes=1431)]).tables
    assert bytecodes.head == ("starlette", "CORS", "total")
    assert bytecodes.rows == [("1.0", "431", "431"), ("1.1", "1,431", "431")]
    assert times.rows == [("1.0", "8.5", "8.5"), ("1.1", "8.5", "8.5")]


def test_a_release_at_which_counts_change_is_named(releases: ModuleType) -> None:
    changed = releases.report(
        [reading("1.0"), reading("1.1", tasks=1, objects=80), reading("1.2", tasks=1, objects=80)]
    )
    assert list(changed.tables[2].rows) == [("CORS", "1.1", "objects 65 → 80, tasks 0 → 1")]


def test_an_uncounted_release_misses_the_goal(releases: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(releases, "RELEASES", ("1.0", "1.1"))
    readings = [reading("1.0"), reading("1.1")]
    assert releases.report(readings).goals[0].met
    readings[1]["rows"]["(total)"] = counts(bytecodes=None)
    assert not releases.report(readings).goals[0].met


def test_a_row_that_a_release_does_not_have_is_a_dash(releases: ModuleType) -> None:
    without = reading("1.0")
    del without["rows"]["CORSMiddleware"]
    table, *_ = releases.report([without, reading("1.1")]).tables
    assert table.rows[0] == ("1.0", "-", "431")


def test_a_release_is_measured_in_its_environment(releases: ModuleType) -> None:
    reading = releases.reading(Path(sys.executable), "installed", quick=True)
    assert next(iter(reading["rows"])) == "(outside)"
    assert {"CORSMiddleware", "GZipMiddleware", "SessionMiddleware", "(total)"} <= set(reading["rows"])
    json.dumps(releases.report([reading, reading]).tables[0].rows)


def test_the_picture_of_the_docs_is_of_the_results(releases: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent.parent / "docs")
    drawn = importlib.import_module("charts")
    readings = drawn.stored.loads(drawn.RESULTS.read_text(encoding="utf-8"))["readings"]
    assert drawn.picture(readings) == drawn.PICTURE.read_text(encoding="utf-8"), "run python docs/charts.py"
