"""OpenTelemetry's spans of an ASGI app: one for the request, one for each message. None names a layer."""

from __future__ import annotations

from collections import defaultdict
from statistics import median
from time import perf_counter

from opentelemetry.instrumentation.asgi import OpenTelemetryMiddleware
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from ways.app import call, make_app


def traced() -> tuple[OpenTelemetryMiddleware, InMemorySpanExporter]:
    """The app as OpenTelemetry instruments it, and where its spans go."""
    provider, exporter = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return OpenTelemetryMiddleware(make_app(), tracer_provider=provider), exporter


async def layers_us(seconds: float) -> dict[str, float]:
    """What each span lasts, by its name: none of a layer."""
    app, exporter = traced()
    end = perf_counter() + seconds
    while perf_counter() < end:
        await call(app)
    lasted: dict[str, list[float]] = defaultdict(list)
    for span in exporter.get_finished_spans():
        assert span.start_time is not None
        assert span.end_time is not None
        lasted[span.name].append((span.end_time - span.start_time) / 1000)
    return {name: median(values) for name, values in lasted.items()}
