"""Each layer by itself round a stub that answers at once, less the stub: the usual microbenchmark of a middleware."""

from __future__ import annotations

from statistics import median
from time import perf_counter
from typing import Any

from ways.app import LAYERS, call


async def stub(scope: Any, receive: Any, send: Any) -> None:
    headers = [(b"content-length", b"17"), (b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b'{"hello":"world"}'})


async def layers_us(seconds: float) -> dict[str, float]:
    """What each layer costs."""
    share_s = seconds / (len(LAYERS) + 1)
    alone_us = await median_us(stub, share_s)
    return {layer.__name__: await median_us(layer(stub, **options), share_s) - alone_us for layer, options in LAYERS}


async def median_us(app: Any, seconds: float) -> float:
    taken_us = []
    end = perf_counter() + seconds
    while not taken_us or perf_counter() < end:
        begin = perf_counter()
        await call(app)
        taken_us.append((perf_counter() - begin) * 1e6)
    return median(taken_us)
