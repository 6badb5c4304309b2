"""The figures under load as plain data, and back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..model.estimate import Estimate
from ..model.judged import Judged
from ..model.load import LayerLoad, Load, Wait


def read_load(data: Mapping[str, Any]) -> Load:
    """Read what `dataclasses.asdict` made of a `Load`, with null for infinity."""
    estimates = {key: _estimate(data[key]) for key in ("rps", "p50_ms", "p99_ms")}
    return Load(**{**data, **estimates, **_common(data, "endpoint"), "notes": tuple(data["notes"])})


def read_layer_load(data: Mapping[str, Any]) -> LayerLoad:
    """Read what `dataclasses.asdict` made of a `LayerLoad`."""
    keys = ("share", "added_us", "collecting_us")
    estimates = {key: None if data[key] is None else _estimate(data[key]) for key in keys}
    return LayerLoad(**{**data, **estimates, **_common(data, "wait")})


def _common(data: Mapping[str, Any], wait: str) -> dict[str, Any]:
    return {wait: data[wait] and Wait(**data[wait]), "judged": data["judged"] and Judged(**data["judged"])}


def _estimate(data: Mapping[str, float | None]) -> Estimate:
    ends = (data["estimate"], data["low"], data["high"])
    unknown = (0.0, -math.inf, math.inf)
    return Estimate(*(none if end is None else end for end, none in zip(ends, unknown, strict=True)))
