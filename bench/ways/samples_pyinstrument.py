"""pyinstrument: the share of the samples that belong to a layer, times the time of a request without it."""

from __future__ import annotations

from collections import defaultdict
from time import perf_counter
from typing import Any

from pyinstrument import Profiler

from ways.app import NAMES, call, make_app

# Starlette's own innermost layer: what runs in it is no longer the last one's of ours.
INSIDE = "ExceptionMiddleware"


async def layers_us(seconds: float) -> dict[str, float]:
    """What each layer costs."""
    app = make_app()
    request_us = await mean_us(app, seconds / 2)
    with Profiler(async_mode="disabled") as profiler:
        await mean_us(app, seconds / 2)
    assert profiler.last_session is not None
    root = profiler.last_session.root_frame()
    assert root is not None
    own_s: dict[str | None, float] = defaultdict(float)
    charge(root, None, own_s)
    return {name: own_s[name] / sum(own_s.values()) * request_us for name in NAMES}


async def mean_us(app: Any, seconds: float) -> float:
    requests = 0
    begin = perf_counter()
    while not requests or perf_counter() - begin < seconds:
        await call(app)
        requests += 1
    return (perf_counter() - begin) / requests * 1e6


def charge(frame: Any, layer: str | None, own_s: dict[str | None, float]) -> None:
    """Charge what a frame itself took to the layer in which it ran."""
    layer = frame.class_name if frame.class_name in (*NAMES, INSIDE) else layer
    own_s[layer] += frame.time - sum(child.time for child in frame.children)
    for child in frame.children:
        charge(child, layer, own_s)
