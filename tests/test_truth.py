"""Live apps against ground truth, with margins that hold on two busy cores. Finer figures: bench/accuracy.py."""

from __future__ import annotations

import asyncio
import time
from time import perf_counter_ns
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware

from pytest_mwbudget import asgi
from pytest_mwbudget.budgets import Bounds, Budgets
from pytest_mwbudget.measure import measure
from pytest_mwbudget.model import Measurement
from pytest_mwbudget.settings import Settings
from pytest_mwbudget.timing import Bench

# On a busy machine; on a quiet one nothing here takes more than two seconds.
MOST_S = 15.0


class Spin:
    def __init__(self, app: Any, us: int) -> None:
        self.app = app
        self.us = us

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        end = perf_counter_ns() + self.us * 1000
        while perf_counter_ns() < end:
            pass
        await self.app(scope, receive, send)


class Noop:
    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.app(scope, receive, send)


class PassThrough(BaseHTTPMiddleware):
    async def dispatch(self, request: Any, call_next: Any) -> Any:
        return await call_next(request)


def measured(layers: list[Middleware]) -> Measurement:
    app = FastAPI(middleware=layers)

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    request = asgi.build_request("GET", "/health", {"headers": {"origin": "http://elsewhere"}})
    return asyncio.run(measure(app, request, Settings(max_time_s=MOST_S), Bench()))


def us(measurement: Measurement, name: str) -> float:
    estimate = measurement.layer(name).us
    assert estimate is not None
    return estimate.estimate


@pytest.mark.parametrize("place", ["outermost", "middle", "innermost"])
def test_known_costs_are_read_at_every_place(place: str) -> None:
    neighbours = [Middleware(CORSMiddleware, allow_origins=["*"]), Middleware(GZipMiddleware)]
    known = [Middleware(Spin, us=20), Middleware(Noop), Middleware(Spin, us=200)]
    cut = {"outermost": 0, "middle": 1, "innermost": 2}[place]
    measurement = measured([*neighbours[:cut], *known, *neighbours[cut:]])
    assert us(measurement, "Spin#2") - us(measurement, "Spin#1") == pytest.approx(180, rel=0.1)
    assert us(measurement, "Noop") < 2


def test_nested_base_http_middlewares_cost_the_same() -> None:
    measurement = measured([Middleware(PassThrough), Middleware(Noop), Middleware(PassThrough)])
    outer, inner = measurement.layer("PassThrough#1").us, measurement.layer("PassThrough#2").us
    assert outer is not None
    assert inner is not None
    # Beyond what the run itself says that it does not know.
    assert outer.low <= inner.high * 1.15
    assert inner.low <= outer.high * 1.15
    assert 50 < outer.estimate < 2000
    assert us(measurement, "Noop") < 2


def test_the_books_balance() -> None:
    measurement = measured([Middleware(PassThrough), Middleware(Spin, us=50), Middleware(GZipMiddleware)])
    books = measurement.books
    assert books is not None
    assert books.endpoint is not None
    rows = [report.us for report in measurement.layers if report.us is not None] + [books.outside, books.endpoint]
    unsure = sum(row.half_width for row in rows) + books.total.half_width
    assert abs(books.residue_us) <= 0.05 * books.total.estimate + unsure


def test_who_waits_who_blocks_and_who_works_is_told_apart() -> None:
    class Waits(Noop):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await asyncio.sleep(0.0005)
            await self.app(scope, receive, send)

    class Blocks(Noop):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            time.sleep(0.0005)
            await self.app(scope, receive, send)

    async def endpoint(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})

    # Budgets that are decided only when the times are known well enough for what is asked, also at half the speed.
    limits: dict[str, Bounds] = {"Waits": {"busy_us": 300}, "Blocks": {"busy_us": 200}, "Spin": {"busy_us": 80}}
    settings = Settings(budgets=Budgets(layers=limits), max_time_s=MOST_S)
    request = asgi.build_request("GET", "/", {})
    measurement = asyncio.run(measure(Waits(Blocks(Spin(endpoint, 200))), request, settings, Bench()))
    assert [report.verdict for report in measurement.layers] == ["pass", "fail", "fail"]
    spent = {report.name: report.occupation for report in measurement.layers}
    waits, blocks, works = spent["Waits"], spent["Blocks"], spent["Spin"]
    assert waits is not None
    assert blocks is not None
    assert works is not None
    assert us(measurement, "Waits") > 450
    assert waits.wait_us > 300
    assert us(measurement, "Blocks") > 450
    assert blocks.wait_us == 0
    assert (works.busy == measurement.layer("Spin").us, works.wait_us) == (True, 0)
    if Bench().cpu_clock is not None:
        assert (waits.blocking, blocks.blocking, works.blocking) == (False, True, False)
        assert blocks.cpu_us is not None
        assert blocks.cpu_us < 300
        assert works.cpu_us is not None
        assert works.cpu_us > 100


def test_a_slow_noisy_endpoint_does_not_blur_the_layers_above_it() -> None:
    async def endpoint(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(0.002)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})

    request = asgi.build_request("GET", "/", {})
    measurement = asyncio.run(measure(Spin(Noop(endpoint), 200), request, Settings(max_time_s=MOST_S), Bench()))
    assert us(measurement, "Spin") == pytest.approx(200, abs=50)
    assert us(measurement, "Noop") < 20
    assert measurement.books is not None
    assert measurement.books.endpoint is not None
    assert measurement.books.endpoint.estimate > 1900
