"""Sentry's middleware spans: a layer is its span less the spans directly inside it. Nothing is sent anywhere."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime
from statistics import median
from time import perf_counter
from typing import Any

import sentry_sdk
from sentry_sdk.integrations.fastapi import FastApiIntegration
from sentry_sdk.integrations.starlette import StarletteIntegration
from sentry_sdk.transport import Transport

from ways.app import NAMES, call, make_app


class Kept(Transport):
    """Keeps the spans of every request."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[list[dict[str, Any]]] = []

    def capture_envelope(self, envelope: Any) -> None:
        event = envelope.get_transaction_event()
        if event is not None:
            self.requests.append(event["spans"])


def begin() -> Kept:
    """Sentry as an app has it, every request traced."""
    kept = Kept()
    sentry_sdk.init(
        dsn="https://key@sentry.invalid/1",
        transport=kept,
        traces_sample_rate=1.0,
        integrations=[StarletteIntegration(middleware_spans=True), FastApiIntegration(middleware_spans=True)],
    )
    return kept


async def layers_us(seconds: float) -> dict[str, float]:
    """What each layer costs."""
    kept, app = begin(), make_app()
    end = perf_counter() + seconds
    while perf_counter() < end:
        await call(app)
    own: dict[str, list[float]] = defaultdict(list)
    for spans in kept.requests:
        for name, us in own_us(spans).items():
            own[name].append(us)
    return {name: median(values) for name, values in own.items() if name in NAMES}


def own_us(spans: list[dict[str, Any]]) -> dict[str, float]:
    """Microseconds in each middleware's span that are in no span inside it."""
    lasted = {span["span_id"]: lasted_us(span) for span in spans}
    inside: dict[str, float] = defaultdict(float)
    for span in spans:
        inside[span["parent_span_id"]] += lasted[span["span_id"]]
    return {
        span["description"]: lasted[span["span_id"]] - inside[span["span_id"]]
        for span in spans
        if span["op"] == "middleware.starlette"
    }


def lasted_us(span: dict[str, Any]) -> float:
    begin, end = (datetime.fromisoformat(span[key]) for key in ("start_timestamp", "timestamp"))
    return (end - begin).total_seconds() * 1e6
