"""The mechanics of `bench/claims.py`, its apps and its verdicts; its timings are not checked."""

from __future__ import annotations

import asyncio
import importlib
from pathlib import Path
from types import ModuleType

import pytest

from pytest_mwbudget.model.estimate import Estimate
from tests.conftest import needs

pytestmark = pytest.mark.bench

httpx = pytest.importorskip("httpx", reason="the apps are asked with httpx")
needs("fastapi", reason="some of the apps are FastAPI's")
needs("uvicorn", reason="apps stand behind uvicorn")
needs("httptools", reason="uvicorn parses with httptools")


@pytest.fixture
def claims(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(Path(__file__).parent.parent / "bench")
    return importlib.import_module("claims")


@pytest.fixture
def cases(claims: ModuleType) -> ModuleType:
    return importlib.import_module("claim_cases")


def responses(app: object, *paths: str) -> list[tuple[int, dict[str, str], bytes]]:
    async def asked() -> list[tuple[int, dict[str, str], bytes]]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://testserver") as client:
            got = [await client.get(path) for path in paths]
        return [(response.status_code, dict(response.headers), response.content) for response in got]

    return asyncio.run(asked())


def test_a_quick_run_has_a_report_and_a_page(claims: ModuleType) -> None:
    needs("prometheus_fastapi_instrumentator", reason="it is an instrument of a claim")
    needs("django", reason="a claim is of Django's middlewares")
    readings = claims.measure(quick=True)
    assert {reading["name"] for reading in readings} == set(claims.QUICK_RUNS)
    assert "not measured" in str(claims.report(readings))
    assert claims.page(readings, "The method.", "The machine.").count("\n## ") == 1 + len(claims.CASES)


def test_the_instruments_are_measured(claims: ModuleType) -> None:
    needs("sentry_sdk", reason="it is an instrument of a claim")
    needs("opentelemetry.instrumentation.fastapi", reason="it is an instrument of a claim")
    reading = claims.fresh_process(claims.__file__, name="all", seconds=0.2)
    assert reading["name"] == "all"


@pytest.mark.parametrize("headers", [False, True])
def test_one_layer_answers_as_the_five(claims: ModuleType, headers: bool) -> None:
    paths = ("/", "/watch?v=1", "/ws?transport=websocket")
    five, one = (responses(make(20, headers), *paths) for make in (claims.five, claims.claimed.collapsed))
    assert five[0] == one[0]
    assert [status for status, _, _ in five] == [status for status, _, _ in one] == [200, 302, 400]
    assert ("x-frame-options" in one[0][1]) == headers


def test_every_figure_of_a_case_is_measured(claims: ModuleType) -> None:
    asked: set[str] = set()

    class Recorded(dict[tuple[str, str], Estimate]):
        def __missing__(self, key: tuple[str, str]) -> Estimate:
            name = key[0]
            asked.add(name)
            us = (1000.0 if "400" in name else 10.0) * (1 if name in ("bare", "Django") else 2)
            return Estimate(us, us - 1, us + 1)

    for case in claims.CASES:
        assert claims.remark(case, Recorded()).endswith(case.remark(Recorded()))
        assert all(claim.measured(Recorded()) is not None for claim in case.claims)
    assert asked == set(claims.RUNS)


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [
        (Estimate(5.0, 1.5, 9.0), "agrees"),
        (Estimate(2.0, 0.5, 3.0), "undecided"),
        (Estimate(2.0, 0.5, 90.0), "undecided"),
        (Estimate(0.5, 0.1, 0.9), "differs"),
        (Estimate(20.0, 11.0, 30.0), "differs"),
    ],
)
def test_verdicts_are_on_the_whole_interval(cases: ModuleType, ours: Estimate, verdict: str) -> None:
    claim = cases.Claim("a time", (2.0, 5.0), cases.of("app"), 2.0)
    assert claim.verdict({("app", "total_us"): ours}) == verdict
    assert claim.verdict({}) == "not measured"


def test_processes_are_merged(claims: ModuleType) -> None:
    readings = [
        {"name": "app", "total_us": [10.0, 8.0, 11.0], "threads": 2, "message_us": None, "slowdown": 1.0},
        {"name": "app", "total_us": [12.0, 11.0, 13.0], "threads": 2, "message_us": None, "slowdown": 1.0},
    ]
    merged = claims.merged(readings)
    assert merged["app", "threads"] == Estimate(2.0, 2.0, 2.0)
    us = merged["app", "total_us"]
    assert (us.estimate, us.high) == (11.0, 12.0)
    assert us.low == pytest.approx(11.0 - 5**0.5 / 2)


def test_intervals_of_ratios(cases: ModuleType) -> None:
    figures = {("a", "total_us"): Estimate(2.0, 1.0, 4.0), ("b", "total_us"): Estimate(8.0, 8.0, 8.0)}
    a, b = cases.of("a"), cases.of("b")
    of_independent = cases.over(a, b)(figures)
    assert (of_independent.estimate, of_independent.low, of_independent.high) == pytest.approx((0.25, 0.125, 0.5))
    saved = cases.saved(b, a)(figures)
    assert (saved.estimate, saved.low, saved.high) == pytest.approx((75.0, 50.0, 87.5))
    assert cases.Claim("a ratio", 1.0, cases.over(cases.less(a, b), b)).measured(figures) is None
    assert cases.over(a, a)(figures).high == pytest.approx(2**2**0.5)
    assert cases.related(a, a)(figures) == Estimate(1.0, 0.25, 4.0)
    assert cases.related(b, cases.less(a, cases.constant(2)))(
        {**figures, ("a", "total_us"): Estimate(3, 1, 4)}
    ).high == (float("inf"))
