"""What a run needs of the file system is there before the first test, which may put a fake file system in place."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from pytest_mwbudget.interpreter import files
from pytest_mwbudget.session import profiles
from pytest_mwbudget.storage import file_lock

from .apps import FAST, alone

pytestmark = pytest.mark.once

# Notes what code of the package opens, lists and makes while a test runs, and which of its modules are imported. Those
# of other packages may be imported. What is in REAL is on the real file system.
AUDIT = """
import json
import sys

import pytest

EVENTS = {"open", "import", "os.listdir", "os.scandir", "os.mkdir", "os.remove", "os.rename", "subprocess.Popen"}
REAL = ("pytest_mwbudget.asgi.origins", "pytest_mwbudget.storage.file_lock")
found, inside = [], []


def note(event, args):
    if not inside or event not in EVENTS:
        return
    if event == "import" or str(args[0]).endswith(".pyc"):
        if "pytest_mwbudget" not in str(args[0]):
            return
    elif str(args[0]).startswith("/proc/"):
        return
    frame = sys._getframe(1)
    while frame is not None and not frame.f_globals.get("__name__", "").startswith("pytest_mwbudget."):
        frame = frame.f_back
    if frame is not None and frame.f_globals["__name__"] not in REAL:
        found.append(f"{frame.f_globals['__name__']}:{frame.f_code.co_name} {event} {args[0]}")


def phase(item):
    inside.append(item)
    try:
        return (yield)
    finally:
        inside.clear()


def reported(item, call):
    return (yield from phase(item))


first = pytest.hookimpl(wrapper=True, tryfirst=True)
pytest_runtest_setup = pytest_runtest_call = pytest_runtest_teardown = first(phase)
pytest_runtest_makereport = first(reported)


def pytest_configure(config):
    from pytest_mwbudget.session import gate
    from pytest_mwbudget.timing.schedule import Schedule

    config.stash[gate.SCHEDULE] = Schedule(**SCHEDULE)
    sys.addaudithook(note)


def pytest_unconfigure():
    with open("found.json", "w") as file:
        json.dump(found, file)
"""

APP = """
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient


async def page(request):
    return PlainTextResponse("ok")


app = Starlette(routes=[Route("/", page)])
TestClient(app).get("/")  # the client imports its event loop


@pytest.mark.mw_budget(us=100_000)
def test_fixture(mw_budget):
    mw_budget.get("/")


@pytest.mark.mw_budget(total_us=1)
def test_broken(mw_budget):
    mw_budget.get("/")


@pytest.mark.mw_budget(us=100_000)
def test_own_client():
    TestClient(app).get("/")


def test_unmarked():
    assert TestClient(app).get("/other").status_code == 404
"""


@pytest.mark.parametrize("option", [None, "--mw-budget", "--mw-budget-survey"])
def test_nothing_is_opened_or_imported_while_a_test_runs(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, option: str | None
) -> None:
    pytester.makeini("[pytest]\nmw_budget_app = test_app:app\n")
    pytester.makeconftest(f"SCHEDULE = {FAST | {'watched_time_s': 0}}\n{AUDIT}")
    pytester.makepyfile(test_app=APP)
    options = [option, "--mw-budget-flamegraph=never"] if option else []
    result = pytester.runpytest_subprocess(*alone(monkeypatch), *options)
    result.assert_outcomes(passed=3 if option else 4, failed=1 if option else 0)
    assert json.loads((pytester.path / "found.json").read_text()) == []


def test_a_lock_is_one_of_the_real_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.lock"
    monkeypatch.setattr(file_lock, "os", None)
    lock, other = file_lock.FileLock(path), file_lock.FileLock(path)
    assert lock.acquire()
    assert not other.acquire()
    lock.release()
    assert other.acquire()
    other.release()


def test_a_fake_file_system_gets_no_files_of_the_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not files.faked()
    monkeypatch.setattr(files, "os", object())
    assert files.faked()
    assert files.REAL.os is os is sys.modules["os"]
    with pytest.raises(profiles.SettingError, match="fake file system"):
        profiles.Publisher(None, "test", None)(1)(None, None)  # type: ignore[arg-type]
