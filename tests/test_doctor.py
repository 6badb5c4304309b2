"""`mwbudget doctor`: what can be measured in an environment."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_mwbudget.__main__ import main
from pytest_mwbudget.commands import doctor
from pytest_mwbudget.counting.backend import Backend
from pytest_mwbudget.counting.python_core import PythonCore
from pytest_mwbudget.interpreter import internals
from pytest_mwbudget.load import server


def ticking(steps_ns: list[int]) -> Callable[[], int]:
    """Return a clock that goes on by these steps, again and again."""
    now, number = 0, 0

    def clock() -> int:
        nonlocal now, number
        now += steps_ns[number % len(steps_ns)]
        number += 1
        return now

    return clock


def finding(subject: str, findings: list[doctor.Finding]) -> doctor.Finding:
    return next(each for each in findings if each.subject == subject)


def test_every_subject_is_examined_and_has_a_line(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setattr(doctor, "NOISE_S", 0.01)
    assert main(["doctor"]) == 0
    output = capsys.readouterr().out
    for subject in (
        "Python",
        "counted",
        "event loops",
        "clients of tests",
        "frameworks",
        "under load",
        "cores",
        "clock",
    ):
        assert f"  {subject} " in output
    assert "the machine now" in output
    assert max(map(len, output.splitlines())) <= doctor.MOST_COLUMNS


def test_the_same_findings_as_json(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setattr(doctor, "NOISE_S", 0.01)
    assert main(["doctor", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert set(printed) == {"mwbudget", "python", "findings"}
    assert {tuple(each) for each in printed["findings"]} == {("subject", "state", "text", "remedy")}


def test_what_is_not_counted_has_its_reason_and_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    not_built = "the C extension was not built: install with a C compiler"
    why_not = {
        "objects": "too old",
        "retained": "too old",
        "bytecodes": "no events",
        "tasks": not_built,
        "bytes": "GIL",
    }
    monkeypatch.setattr(doctor, "counting_backend", lambda: Backend(PythonCore(), why_not))
    monkeypatch.setattr(doctor, "EXECUTED_FROM", (sys.version_info[0], sys.version_info[1] + 1))
    counted, *others = doctor.counted()
    assert "bytecodes" not in counted.text.split(", ")
    assert "threads" in counted.text.split(", ")
    assert [(each.text, each.remedy) for each in others] == [
        ("objects, retained: too old", "use Python 3.13 or newer"),
        ("bytecodes: no events", "use Python 3.12 or newer"),
        (f"tasks: {not_built}", doctor.BUILD),
        ("bytes: GIL", "use CPython with the GIL, in a version that is tested"),
    ]
    assert {each.state for each in others} == {"limited"}


@pytest.mark.parametrize(
    ("attribute", "value", "state"),
    [
        ("platform.python_implementation", lambda: "PyPy", "lost"),
        ("why_no_code_patching", lambda: "CPython 3.99 is not as expected", "lost"),
        ("SELF_CHECKS", [lambda: None, lambda: "CPython 3.99 is not as expected"], "limited"),
        ("SUPPORTED", ((2, 6), (2, 7)), "limited"),
        ("sysconfig.get_config_var", lambda name: 1, "limited"),
        ("sysconfig.get_config_var", lambda name: 0, "fine"),
    ],
)
def test_an_interpreter_that_cannot_be_used(
    monkeypatch: pytest.MonkeyPatch, attribute: str, value: object, state: str
) -> None:
    monkeypatch.setattr(f"pytest_mwbudget.commands.doctor.{attribute}", value)
    found = doctor.python()
    assert found.state == state
    assert bool(found.remedy) is (state != "fine")


def test_where_nothing_can_be_measured_the_status_is_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "NOISE_S", 0.01)
    monkeypatch.setattr(doctor, "why_no_code_patching", lambda: "CPython 3.99 is not as expected")
    assert main(["doctor"]) == 1
    assert "lost     Python" in capsys.readouterr().out


@pytest.mark.parametrize(("tools", "state"), [(object(), "fine"), (None, "limited")])
def test_without_the_extension_other_threads_are_traced(
    monkeypatch: pytest.MonkeyPatch, tools: object, state: str
) -> None:
    monkeypatch.setattr(doctor, "thread_tools", lambda: tools)
    monkeypatch.setattr(doctor, "version_of", {"coverage": "7.1"}.get)
    monkeypatch.setenv("COVERAGE_CORE", "pytrace")
    assert doctor.tracers().state == state
    assert doctor.tracers().text.endswith("; coverage 7.1, core pytrace")


@pytest.mark.parametrize(
    ("quota", "state"), [("150000 100000", "limited"), ("800000 100000", "fine"), ("max 100000", "fine")]
)
def test_a_limit_of_the_container_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, quota: str, state: str
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 1, 2, 3}, raising=False)
    monkeypatch.setattr(doctor, "siblings", lambda core: {core})
    monkeypatch.setattr(doctor, "CGROUP_QUOTA", tmp_path / "cpu.max")
    (tmp_path / "cpu.max").write_text(quota, encoding="ascii")
    found = doctor.cores()
    assert found.state == state
    assert ("allows 1.5 of them" in found.text) is (state == "limited")


@pytest.mark.parametrize(("quota", "cores"), [("150000", 1.5), ("-1", None)])
def test_a_limit_of_an_older_control_group_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, quota: str, cores: float | None
) -> None:
    monkeypatch.setattr(doctor, "CGROUP_QUOTA", tmp_path / "none")
    monkeypatch.setattr(doctor, "CGROUP_1_FOLDER", tmp_path)
    for name, text in zip(doctor.CGROUP_1_FILES, (quota, "100000"), strict=True):
        (tmp_path / name).write_text(text + "\n", encoding="ascii")
    assert doctor.cpu_quota() == cores


@pytest.mark.parametrize("installed", [True, False])
def test_whether_an_app_can_be_served_under_load(monkeypatch: pytest.MonkeyPatch, installed: bool) -> None:
    monkeypatch.setattr(doctor, "version_of", {"uvicorn": "0.40"}.get if installed else lambda name: None)
    found = doctor.under_load()
    assert (found.state, found.remedy) == (("fine", "") if installed else ("limited", server.INSTALL))
    assert ("uvicorn 0.40" in found.text) == installed


def test_one_core_is_not_enough_for_load(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor, "CGROUP_QUOTA", tmp_path / "none")
    monkeypatch.setattr(doctor, "CGROUP_1_FOLDER", tmp_path)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {3}, raising=False)
    monkeypatch.setattr(doctor, "siblings", lambda core: {core, core + 1})
    found = doctor.cores()
    assert found.state == "limited"
    assert "1 of them share a physical core" in found.text
    assert "two cores" in found.remedy


@pytest.mark.parametrize(("step_ns", "state"), [(100, "fine"), (15_000_000, "limited")])
def test_a_coarse_clock_is_found(step_ns: int, state: str) -> None:
    found = doctor.clock_steps(ticking([0, 0, step_ns]))
    assert found.state == state
    assert f"{step_ns} ns" in found.text


@pytest.mark.parametrize(
    ("slow_ns", "state", "text"),
    [
        ([], "fine", "0%"),
        ([1300.0] * 30, "limited", "36%"),
        ([1300.0] * 70, "limited", "75%"),
        ([99_000.0], "limited", "50%"),  # another process took the core
    ],
)
def test_the_noise_is_the_time_of_slow_moments(
    monkeypatch: pytest.MonkeyPatch, slow_ns: list[float], state: str, text: str
) -> None:
    readings = itertools.chain(slow_ns, itertools.repeat(1000.0))
    monkeypatch.setattr(doctor, "reference_ns", lambda clock: next(readings))
    found = doctor.noise(1.01, ticking([10_000_000]))  # a hundred readings
    assert found.state == state
    assert found.text.startswith(f"{text} of 1.01 s were")
    assert ("gate on counts" in found.remedy) is (state == "limited")


def test_a_machine_that_is_never_alone_on_its_core_is_not_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "reference_ns", lambda clock: 1000.0)
    widths = itertools.cycle([2.0, 2.5, 3.0])
    monkeypatch.setattr(doctor, "issue_width", lambda: next(widths))
    found = doctor.noise(1.01, ticking([10_000_000]))
    assert found.state == "limited"
    assert "used the same core" in found.text
    assert "gate on counts" in found.remedy


def test_versions_are_those_of_what_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "version_of", {"trio": "0.30"}.get)
    assert doctor.installed(doctor.LOOPS) == ["trio 0.30"]
    assert finding("event loops", list(doctor.examined(0.001, ticking([100])))).text == "asyncio, trio 0.30"


def test_the_supported_versions_are_those_of_the_metadata() -> None:
    import tomllib

    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    said = [
        line.rpartition(" ")[2]
        for line in project["classifiers"]
        if line.startswith("Programming Language :: Python :: 3.")
    ]
    assert (said[0], said[-1]) == tuple(f"{major}.{minor}" for major, minor in doctor.SUPPORTED)
    assert sys.version_info[:2] >= doctor.SUPPORTED[0]


def test_an_extension_that_was_not_built_is_no_fault_of_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Any:
        raise ImportError("cannot import name '_core'")

    for module in ("backend", "events"):
        monkeypatch.setattr(f"pytest_mwbudget.counting.{module}.c_core", missing)
    for check in internals.SELF_CHECKS:
        check.cache_clear()
    assert doctor.python().state == "fine"
    counted, first, *_ = doctor.counted()
    assert counted.text == "tasks, threads"
    assert first.remedy == doctor.BUILD
    for check in internals.SELF_CHECKS:
        check.cache_clear()
