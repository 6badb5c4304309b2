"""httpx with its ASGITransport, cut after cut: a layer is the difference of two mean requests."""

from __future__ import annotations

from itertools import pairwise
from statistics import mean
from time import perf_counter

import httpx

from ways.app import HEADERS, LAYERS, NAMES, make_app


async def layers_us(seconds: float) -> dict[str, float]:
    """What each layer costs."""
    means = [await mean_us(cut, seconds / (len(LAYERS) + 1)) for cut in range(len(LAYERS) + 1)]
    return {name: outer - inner for name, (outer, inner) in zip(NAMES, pairwise(means), strict=True)}


async def mean_us(cut: int, seconds: float) -> float:
    transport = httpx.ASGITransport(make_app(LAYERS[cut:]))
    async with httpx.AsyncClient(transport=transport, base_url="http://testserver", headers=HEADERS) as client:
        taken_us = []
        end = perf_counter() + seconds
        while not taken_us or perf_counter() < end:
            begin = perf_counter()
            await client.get("/")
            taken_us.append((perf_counter() - begin) * 1e6)
    return mean(taken_us)
