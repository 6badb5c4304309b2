"""The command `mwbudget load`."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import pytest_mwbudget.load.server
from pytest_mwbudget.__main__ import main
from pytest_mwbudget.commands import load
from pytest_mwbudget.timing.looks import Environment

from .apps import FAST_SCHEDULE, SPIN
from .conftest import needs
from .projects import heeds_interrupts
from .test_load_generator import ended

needs("uvicorn", "the server of a measurement under load", "load")

APP = (
    SPIN
    + """
import sys


async def hello(scope, receive, send):
    if scope["type"] != "http":
        raise LookupError("only http")
    status = 500 if scope["path"] == "/broken" else 200
    if scope["path"] == "/raises":
        print("the shelf is empty")
        raise LookupError("no such shelf")
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


def make():
    return Spin(hello, us=300)


app = make()
"""
)


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "loaded_shop.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "loaded_shop", raising=False)
    quick = functools.partial(Environment, schedule=FAST_SCHEDULE)
    monkeypatch.setattr(load, "Environment", quick)
    return tmp_path


def test_it_prints_the_table_and_writes_the_files(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "loaded_shop:make",
        "/",
        "--clients=2",
        "--time=0.3",
        "--p99-ms=9000",
        "--json=r.json",
        "--header=a: b",
    ]
    assert main(["load", *arguments]) == 0
    printed = capsys.readouterr().out
    assert "note: The app is what loaded_shop:make() returned." in printed
    assert "under load, 2 clients" in printed
    assert "budget 9000 ms, " in " ".join(printed.split())
    (measurement,) = json.loads((shop / "r.json").read_text(encoding="utf-8"))["measurements"]
    assert measurement["load"]["clients"] == 2
    assert measurement["load"]["judged"]["bound"] == 9000
    assert measurement["layers"][0]["load"]["share"]["estimate"] is not None


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["loaded_shop:app", "/broken"], "GET /broken answered 500"),
        (["loaded_shop:app", "/raises"], "the app raised LookupError: no such shelf; correct the request"),
        (["loaded_shop:nothing", "/"], "has no 'nothing'"),
        (["loaded_shop:app", "/", "--clients=none"], "--clients is 'none'; give a whole number of clients"),
        (["loaded_shop:app", "/", "--rps-share=5 apples"], "--rps-share is '5 apples'; give a share"),
        (["loaded_shop:app", "/", "--p99-ms=-1"], "--p99-ms is '-1'; give a number of milliseconds"),
        (["loaded_shop:app", "/", "--loop=trio"], "not on trio"),
        (["loaded_shop:app", "/", "--time=0"], "--time is '0'; give a number of seconds"),
    ],
)
def test_errors_say_what_to_do(
    shop: Path, arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["load", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert expected in error
    assert ("the shelf is empty" in error) == ("/raises" in arguments)


def test_without_the_server_it_names_the_extra(
    shop: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pytest_mwbudget.load.server, "find_spec", lambda name: None)
    assert main(["load", "loaded_shop:app", "/"]) == 2
    assert "pip install 'pytest-mwbudget[load]'" in capsys.readouterr().err


@pytest.mark.live
@pytest.mark.once
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="reads /proc")
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_after_it_was_ended(tmp_path: Path, ending: int) -> None:
    (tmp_path / "loaded_shop.py").write_text(APP)
    command = [sys.executable, "-m", "pytest_mwbudget", "load", "loaded_shop:app", "/", "--time=60"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=tmp_path, **pipes, preexec_fn=heeds_interrupts) as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        for _ in range(6000):
            if (found := children.read_text().split()) and listening(process.pid):
                break
            time.sleep(0.01)
        child = int(found[0])
        time.sleep(0.5)
        assert len(listening(process.pid)) == 1
        assert listening(process.pid)[0].startswith("0100007F:")
        os.kill(process.pid, ending)
        _, error = process.communicate(timeout=120)
    assert process.returncode == (130 if ending == signal.SIGINT else -ending)
    assert ended(child)
    assert b"Traceback" not in error


def listening(pid: int) -> list[str]:
    """Return the addresses at which a process listens."""
    sockets = set()
    for file in Path(f"/proc/{pid}/fd").iterdir():
        try:
            sockets.add(os.readlink(file))
        except OSError:
            continue
    lines = [
        line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    ]
    return [fields[1] for fields in lines if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets]
