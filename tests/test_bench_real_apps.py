"""The mechanics of `bench/real_apps.py`; no application is installed."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from .conftest import needs
from .test_requests import APP

pytestmark = pytest.mark.bench

needs("httpx", reason="the applications are asked with httpx")


@pytest.fixture
def real_apps(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(Path(__file__).parent.parent / "bench")
    return importlib.import_module("real_apps")


def reading(**changed: Any) -> dict[str, Any]:
    requests = [
        {"url": "/a", "layers": 3, "total_us": 90.4, "costliest": ["Gate", 20.0], "tasks": 1, "notes": 0},
        {"url": "/b", "layers": 5, "total_us": None, "costliest": None, "tasks": None, "notes": 1},
    ]
    return {
        "app": "shop",
        "version": "1.0",
        "measure": {"status": 0, "seconds": 20.4, "requests": requests, "left_out": [["/c", "GET /c answered 401"]]},
        "pytest": {"status": 0, "seconds": 9.0, "outcomes": ["2 passed", "1 skipped"]},
        "afterwards": [{"url": "/a", "before": 200, "after": 200, "changed": []}],
        **changed,
    }


def test_the_report_has_a_row_for_each_application(real_apps: ModuleType) -> None:
    report = real_apps.report([reading()])
    assert report.tables[0].rows == [("shop", "1.0", "3", "2", "5", "1", "90 … 90", "Gate", "20.0", "20")]
    assert report.tables[1].rows == [("shop", "status 0", "20", "status 0", "9", "2 passed, 1 skipped", "1", "yes")]
    assert [goal.met for goal in report.goals] == [True, True]


@pytest.mark.parametrize(
    ("changed", "met"),
    [
        ({"afterwards": None}, [True, False]),
        ({"afterwards": []}, [True, False]),
        ({"afterwards": [{"before": 200, "after": 500, "changed": []}]}, [True, False]),
        ({"afterwards": [{"before": 200, "after": 200, "changed": ["Gate.__call__"]}]}, [True, False]),
        ({"measure": {"status": 2, "seconds": 1.0, "requests": [], "left_out": []}}, [False, True]),
    ],
)
def test_what_misses_a_goal(real_apps: ModuleType, changed: dict[str, Any], met: list[bool]) -> None:
    report = real_apps.report([reading(**changed)])
    assert [goal.met for goal in report.goals] == met


def test_an_application_is_measured_in_its_environment(
    real_apps: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shop").symlink_to(sys.prefix)
    monkeypatch.setenv(real_apps.KEPT, str(tmp_path))
    # On a busy machine 2 s do not suffice for each request. The command ends as soon as all is known.
    monkeypatch.setattr(real_apps, "QUICK_S", 20)
    root = str(Path(__file__).parents[1])
    application = real_apps.Application(
        "shop", ("pytest",), "shop:create_app('health', 'private')", {"shop.py": APP}, {"PYTHONPATH": root}
    )
    reading = real_apps.reading(application, quick=True)
    assert [request["url"] for request in reading["measure"]["requests"]] == ["/health", "/api/health"]
    assert reading["measure"]["left_out"][0][0] == "/private"
    assert reading["pytest"]["outcomes"] == ["2 passed", "1 skipped"]
    assert real_apps.same(reading)
    json.dumps(real_apps.report([reading]).tables[0].rows)


def test_what_runs_afterwards_is_a_program(real_apps: ModuleType) -> None:
    subprocess.run([sys.executable, "-c", f"compile({real_apps.AFTERWARDS!r}, 'afterwards', 'exec')"], check=True)
