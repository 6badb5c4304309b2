"""Per-request overhead of every ASGI middleware, measured in-process and held to a budget, as a pytest plugin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .errors import BudgetWarning, MwBudgetError
    from .model.endpoint import EndpointReport
    from .model.estimate import Estimate
    from .model.load import LayerLoad, Load, Wait
    from .model.messages import Messages, PerMessage
    from .model.results import Count, Counts, Judged, LayerReport, Measurement, Occupation, ResultRow
    from .model.saves import Saves
    from .model.stack import Layer
    from .model.tails import Tails
    from .model.trend import Trend
    from .session.requests.client import MwBudget

__version__ = "1.0.0"

__all__ = [
    "BudgetWarning",
    "Count",
    "Counts",
    "EndpointReport",
    "Estimate",
    "Judged",
    "Layer",
    "LayerLoad",
    "LayerReport",
    "Load",
    "Measurement",
    "Messages",
    "MwBudget",
    "MwBudgetError",
    "Occupation",
    "PerMessage",
    "ResultRow",
    "Saves",
    "Tails",
    "Trend",
    "Wait",
]

_HOMES = {
    "BudgetWarning": "errors",
    "MwBudgetError": "errors",
    "MwBudget": "session.requests.client",
    "Count": "model.results",
    "Counts": "model.results",
    "EndpointReport": "model.endpoint",
    "Estimate": "model.estimate",
    "Judged": "model.results",
    "Layer": "model.stack",
    "LayerLoad": "model.load",
    "LayerReport": "model.results",
    "Load": "model.load",
    "Measurement": "model.results",
    "Messages": "model.messages",
    "Occupation": "model.results",
    "PerMessage": "model.messages",
    "ResultRow": "model.results",
    "Saves": "model.saves",
    "Tails": "model.tails",
    "Trend": "model.trend",
    "Wait": "model.load",
}


def __getattr__(name: str) -> Any:
    # pytest imports this package in every run, also where nothing is marked: what is heavy waits until it is asked for.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
