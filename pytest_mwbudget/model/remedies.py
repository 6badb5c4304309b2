"""Where the user of a measurement can set a budget, and how to give it more time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

from .estimate import Seconds

# Of a marked test, of a request in a file of requests, or of the run.
BudgetPlace: TypeAlias = Literal["marker", "file", "configuration"]


@dataclass(frozen=True, slots=True)
class TimeOption:
    """What gives a measurement more time, as a message names it: `requests` share its seconds equally."""

    name: str = "--mw-budget-max-time"
    requests: int = 1

    def of(self, seconds: Seconds) -> str:
        """Return the option with the value that gives a request so many seconds."""
        return f"{self.name}={math.ceil(seconds * self.requests)}"


MAX_TIME = TimeOption()
