"""The examples keep their budgets when measured, each in a separate run of pytest."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.readings import BusyError, readings

HERE = Path(__file__).parent


def measured(pytester: pytest.Pytester, example: str, tests: int, max_time_s: int = 1) -> dict[str, dict[str, Any]]:
    """Return the measurements of an example's tests by test name."""
    report = pytester.path / "budgets.json"
    # A machine that is too busy for a verdict must not fail the example.
    options = [
        "--mw-budget",
        f"--mw-budget-max-time={max_time_s}",
        "--mw-budget-load-time=5",
        f"--mw-budget-json={report}",
        "--mw-budget-undecided=pass",
        "-p",
        "no:cacheprovider",
    ]
    result = pytester.runpytest_subprocess(*options, HERE / example)
    result.assert_outcomes(passed=tests)
    measurements = json.loads(report.read_text(encoding="utf-8"))["measurements"]
    return {measurement["nodeid"].rpartition("::")[2]: measurement for measurement in measurements}


def cost(measurement: dict[str, Any], name: str) -> float:
    """Return the total self time in µs of all layers of a class that have one."""
    layers = [layer for layer in measurement["layers"] if layer["name"].partition("#")[0] == name and layer["us"]]
    return float(sum(layer["us"]["estimate"] for layer in layers))


def test_hello_budget(pytester: pytest.Pytester) -> None:
    found = measured(pytester, "hello_budget", 2)["test_health"]
    names = [layer["name"] for layer in found["layers"]]
    assert "GZipMiddleware" in names
    assert "BaseHTTPMiddleware[add_version_header]" in names


@readings
def test_stacked(pytester: pytest.Pytester) -> None:
    # In a second a busy machine may not know every layer, and a sum of fewer layers is no cost.
    found = measured(pytester, "stacked", 4, max_time_s=5)
    one, five = cost(found["test_basehttp[one]"], "BaseHTTPNoop"), cost(found["test_basehttp[five]"], "BaseHTTPNoop")
    assert one > 20
    assert 2 < five / one < 15
    assert cost(found["test_pure[five]"], "PureNoop") < one


@readings
def test_under_load(pytester: pytest.Pytester) -> None:
    found = measured(pytester, "under_load", 2)
    loads = {name: one["load"] for name, one in found.items()}
    assert loads["test_health[plain]"]["rps"]["estimate"] > loads["test_health[quota]"]["rps"]["estimate"]
    waits = {layer["name"]: layer["load"]["wait"] for layer in found["test_health[quota]"]["layers"]}
    if None in (waits["Quota"], waits["VersionHeader"]):
        raise BusyError("how long requests wait for their turn in a layer is not known")
    assert waits["Quota"]["serialises"]
    assert not waits["VersionHeader"]["serialises"]
