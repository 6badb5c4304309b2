"""The JSON document: its shape, the way back, and that every reader can read it."""

from __future__ import annotations

import json
import math
import platform
from dataclasses import replace
from typing import Any

import pytest

from pytest_mwbudget.model import Books, Effort, Estimate, Layer, LayerReport, RequestLine, Result
from pytest_mwbudget.report.json import document, environment, from_json, to_json
from pytest_mwbudget.report.terminal import table

GZIP = Layer(0, "GZipMiddleware", "starlette.middleware.gzip.GZipMiddleware", "middleware")
MOUNT = Layer(1, "Mount", "starlette.routing.Mount", "routing", merged_with="GZipMiddleware", merged_because="no probe")
AUTH = Layer(2, "Auth#2", "shop.Auth", "middleware", entered=False)

RESULT = Result(
    request=RequestLine("GET", "/health?q=ü"),
    status=200,
    loop="uvloop",
    layers=(
        LayerReport(GZIP, Estimate(17.9, 17.5, 18.2), "split", 50.0, "pass"),
        LayerReport(MOUNT, None, None, 20.0, "undecided", "it is measured together"),
        LayerReport(AUTH, None, None),
    ),
    books=Books(Estimate(245.1, 244.0, 246.3), Estimate(0.6, 0.3, 0.9), Estimate(41.0, 40.6, 41.3), -0.7),
    floor_us=0.12,
    effort=Effort(requests=960, rounds=120, seconds=0.41),
    total_budget_us=400.0,
    total_verdict="pass",
    verdict="undecided",
    notes=("A tracer was suspended.",),
)
UNKNOWN = replace(
    RESULT,
    layers=(LayerReport(GZIP, Estimate(17.9, -math.inf, math.inf), "split", 50.0, "undecided", "too few"),),
    books=Books(Estimate(0.0, -math.inf, math.inf), Estimate(0.6, 0.3, 0.9), None, math.nan),
    floor_us=math.inf,
)

NUMBER = (int, float)
ESTIMATE = {"estimate": NUMBER, "low": NUMBER, "high": NUMBER}
# The shape that stays; more keys may come. A tuple lists the types a value may have.
SHAPE = {
    "schema": str,
    "environment": {"python": str, "implementation": str, "platform": str, "loop": str, "packages": dict},
    "measurements": [
        {
            "nodeid": str,
            "request": {"method": str, "url": str},
            "status": int,
            "verdict": str,
            "rounds": int,
            "seconds": NUMBER,
            "floor_us": NUMBER,
            "total_us": ESTIMATE,
            "outside_us": ESTIMATE,
            "endpoint_us": ESTIMATE,
            "layers": [
                {
                    "index": int,
                    "name": str,
                    "qualname": str,
                    "kind": str,
                    "entered": bool,
                    "us": ESTIMATE,
                    "method": str,
                    "budget_us": NUMBER,
                    "verdict": str,
                    "merged_with": (str, type(None)),
                }
            ],
        }
    ],
}


def misfits(data: Any, shape: Any, where: str = "") -> list[str]:
    """Where `data` is not of the shape."""
    if isinstance(shape, dict):
        missing = [f"{where}/{key} is missing" for key in shape if key not in data]
        return missing + [m for key in shape if key in data for m in misfits(data[key], shape[key], f"{where}/{key}")]
    if isinstance(shape, list):
        return [m for number, item in enumerate(data) for m in misfits(item, shape[0], f"{where}/{number}")]
    return [] if isinstance(data, shape) else [f"{where} is {data!r}"]


def test_the_document_has_the_shape_that_was_promised() -> None:
    measured = replace(RESULT, layers=RESULT.layers[:1])
    assert misfits(document([to_json(measured, "test_overhead.py::test_health")]), SHAPE) == []


def test_the_check_of_the_shape_can_fail() -> None:
    data = document([to_json(replace(RESULT, layers=RESULT.layers[:1]), "t")])
    del data["environment"]["loop"]
    data["measurements"][0]["layers"][0]["us"]["low"] = "17"
    assert misfits(data, SHAPE) == ["/environment/loop is missing", "/measurements/0/layers/0/us/low is '17'"]


def test_a_measurement_says_what_was_measured() -> None:
    data = to_json(RESULT, "test_overhead.py::test_health")
    assert data["nodeid"] == "test_overhead.py::test_health"
    assert data["request"] == {"method": "GET", "url": "/health?q=ü"}
    assert (data["status"], data["verdict"], data["rounds"], data["seconds"]) == (200, "undecided", 120, 0.41)
    assert data["total_us"] == {"estimate": 245.1, "low": 244.0, "high": 246.3}
    assert data["outside_us"] == {"estimate": 0.6, "low": 0.3, "high": 0.9}
    assert data["endpoint_us"] == {"estimate": 41.0, "low": 40.6, "high": 41.3}


def test_a_layer_without_figures_has_null_and_its_reason() -> None:
    _, merged, absent = to_json(RESULT, "t")["layers"]
    assert (merged["us"], merged["method"], merged["merged_with"]) == (None, None, "GZipMiddleware")
    assert (merged["verdict"], merged["reason"]) == ("undecided", "it is measured together")
    assert (absent["us"], absent["entered"], absent["budget_us"], absent["verdict"]) == (None, False, None, None)


@pytest.mark.parametrize("result", [RESULT, UNKNOWN], ids=["known", "unknown"])
def test_no_number_is_one_that_json_does_not_know(result: Result) -> None:
    text = json.dumps(document([to_json(result, "t")]), allow_nan=False)
    assert "NaN" not in text
    assert "Infinity" not in text


def test_the_way_there_and_back_loses_nothing() -> None:
    assert from_json(json.loads(json.dumps(to_json(RESULT, "t")))) == RESULT


def test_what_is_unknown_comes_back_as_unknown() -> None:
    back = from_json(json.loads(json.dumps(to_json(UNKNOWN, "t"))))
    assert back.layers == UNKNOWN.layers
    assert back.floor_us == math.inf
    assert back.books is not None
    assert back.books.total == Estimate(0.0, -math.inf, math.inf)
    assert back.books.endpoint is None
    assert math.isnan(back.books.residue_us)


@pytest.mark.parametrize("result", [RESULT, UNKNOWN], ids=["known", "unknown"])
def test_the_table_is_the_same_after_the_way_back(result: Result) -> None:
    back = from_json(json.loads(json.dumps(to_json(result, "t"))))
    assert list(table(back, 80)) == list(table(result, 80))


def test_the_environment_names_interpreter_loop_and_installed_packages() -> None:
    found = environment("asyncio")
    assert found["python"] == platform.python_version()
    assert found["loop"] == "asyncio"
    assert found["packages"]["pytest"] == pytest.__version__
    assert all(isinstance(version, str) for version in found["packages"].values())


def test_the_document_names_every_loop_that_was_measured_on() -> None:
    rows = [to_json(replace(RESULT, loop=loop), "t") for loop in ("uvloop", "asyncio", "uvloop")]
    assert document(rows)["environment"]["loop"] == "asyncio, uvloop"


def test_a_run_that_measured_nothing_is_a_document_too() -> None:
    data = document([])
    assert (data["schema"], data["measurements"]) == ("pytest-mwbudget/1", [])
