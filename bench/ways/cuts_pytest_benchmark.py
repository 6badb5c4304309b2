"""pytest-benchmark, one test a cut: the app without its outermost layers. A layer is the difference of two medians."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from ways.app import LAYERS, NAMES, call, make_app


@pytest.mark.parametrize("cut", range(len(LAYERS) + 1))
def test_cut(benchmark: Any, cut: int) -> None:
    app = make_app(LAYERS[cut:])
    with asyncio.Runner() as runner:
        benchmark(lambda: runner.run(call(app)))


def layers_us(report: Path) -> dict[str, float]:
    """What each layer costs, from what --benchmark-json wrote."""
    tests = json.loads(report.read_text())["benchmarks"]
    medians = [test["stats"]["median"] * 1e6 for test in sorted(tests, key=lambda test: test["params"]["cut"])]
    return {name: outer - inner for name, (outer, inner) in zip(NAMES, pairwise(medians), strict=True)}
