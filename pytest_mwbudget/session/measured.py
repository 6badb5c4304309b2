"""What the gate knows of the requests of a test, whoever makes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..config.budgets import Budgets
from ..config.settings import Settings
from ..model.results import RequestLine, Result


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A request that was not measured, and why."""

    request: RequestLine
    reason: str


class MeasuredRequests:
    """The requests of one test.

    `tried` is whether there was one, `enforce` whether they are measured. `unknown_clients` are the modules of clients
    whose requests cannot be seen.
    """

    settings: Settings
    enforce: bool
    tried: bool
    results: Sequence[Result]
    unknown_clients: Sequence[str] = ()

    def fresh_left_out(self) -> Sequence[LeftOut]:
        """Return the requests that were left out since the last call."""
        return ()

    def budgets_of(self, result: Result) -> Budgets:
        """Return the budgets by which a result was judged."""
        return self.settings.budgets

    def why_none_judged(self) -> str | None:
        """Say that there were requests and none was judged; None if one was."""
        return None

    def unknown_layer(self) -> str | None:
        """Say which budget names a layer that no request has; None if there is none."""
        return None
